//! One attempt to deliver one event: a signed POST, no redirect, no proxy, ten seconds.

use super::{
    outbox::Notice,
    sign::Secret,
    target::{Resolver, check_url},
};
use crate::config::Webhook;
use jiff::{SignedDuration, Timestamp};
use reqwest::{Client, Url, header, redirect};
use serde_json::json;
use std::time::Duration;

/// For the whole attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Delivers.
#[derive(Debug)]
pub(super) struct Delivery {
    client: Client,
    url: Url,
    secret: Secret,
    link_base: Option<String>,
}

/// It did not come there, or nobody knows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// Without the URL.
    pub(super) why: String,
    /// How long the receiver wants to be left alone.
    pub(super) retry_after: Option<SignedDuration>,
}

impl Delivery {
    pub(super) fn new(webhook: &Webhook, secret: Secret) -> Result<Self, String> {
        let url = check_url(&webhook.url, webhook.insecure_http).map_err(|(what, mend)| format!("{what}\n  {mend}"))?;
        let client = Client::builder()
            .retry(reqwest::retry::never())
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .dns_resolver(Resolver::new(&url, webhook.insecure_http))
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .timeout(TIMEOUT)
            .build()
            .map_err(|e| format!("no HTTP client: {}", e.without_url()))?;
        Ok(Self { client, url, secret, link_base: webhook.link_base.clone() })
    }

    /// The same for every attempt.
    fn body(&self, notice: &Notice) -> String {
        let event: &str = notice.event.into();
        let link = self.link_base.as_ref().map(|base| format!("{}/runs/{}", base.trim_end_matches('/'), notice.run));
        let mut data = json!({ "run": notice.run, "state": notice.state, "reason": notice.reason, "link": link });
        if let Some(head) = &notice.head {
            data["head"] = head.as_str().into();
        }
        json!({ "type": format!("run.{event}"), "timestamp": notice.at, "data": data }).to_string()
    }

    /// One attempt.
    pub(super) async fn attempt(&self, id: &str, notice: &Notice, now: Timestamp) -> Result<(), Failed> {
        let failed = |why: String| Failed { why, retry_after: None };
        let body = self.body(notice);
        let timestamp = now.as_second();
        let signature = self.secret.sign(id, timestamp, &body).map_err(|why| failed(why.into()))?;
        let request = self
            .client
            .post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp.to_string())
            .header("webhook-signature", signature)
            .body(body);
        // What it says beyond its status is not read.
        let answer = request.send().await.map_err(|e| failed(chain(&e.without_url())))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(());
        }
        let why = if status.is_redirection() {
            format!("it answered {}: redirects are not followed; configure where it is", status.as_u16())
        } else {
            format!("it answered {}", status.as_u16())
        };
        let asked = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        Err(Failed { why, retry_after: asked.map(|seconds: u32| SignedDuration::from_secs(seconds.into())) })
    }
}

/// An error with what is behind it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text = format!("{text}: {inner}");
        source = inner.source();
    }
    text
}
