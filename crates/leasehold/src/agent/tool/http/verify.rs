//! Asking the far side of an HTTP write whether a call happened: one GET or HEAD, no redirect (a page to log in at answers 200
//! too), key, run and epoch with it. 200: it landed; 404: absent now; anything else says nothing.

use super::{
    config::{Absent, VerifyConfig},
    own_headers_of,
    send::Caller,
    template::UrlTemplate,
};
use crate::agent::tool::{Arguments, Verified, Verify, VerifyQuery};
use async_trait::async_trait;
use reqwest::{Method, header::HeaderMap};
use serde_json::Value;
use std::time::Duration;

/// Placeholders that the call itself fills, beside its arguments.
const OWN_PLACEHOLDERS: [&str; 3] = ["idempotency_key", "run", "fencing_token"];

#[derive(Debug)]
pub(super) struct HttpVerify {
    caller: Caller,
    placeholders: Vec<String>,
    settle_after: Duration,
    absent_is_not_applied: bool,
}

impl HttpVerify {
    /// With the tool's headers, timeout and limit.
    ///
    /// # Errors
    /// The key that is wrong and why.
    pub(super) fn new(
        config: &VerifyConfig,
        parameters: &Value,
        headers: HeaderMap,
        timeout: Duration,
        max_response: usize,
    ) -> Result<Self, (&'static str, String)> {
        let method = match config.method.as_str() {
            "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            other => return Err(("verify.method", format!("`{other}` is neither GET nor HEAD: asking must change nothing"))),
        };
        let url = UrlTemplate::parse(&config.url).map_err(|why| ("verify.url", why))?;
        let placeholders: Vec<String> = url.placeholders().map(str::to_owned).collect();
        for name in placeholders.iter().filter(|n| !OWN_PLACEHOLDERS.contains(&n.as_str())) {
            super::check_placeholder(name, parameters).map_err(|why| ("verify.url", why))?;
        }
        let caller = Caller::new(method, url, headers, super::BodyKind::Json, timeout, max_response, false)
            .map_err(|why| ("verify.url", why))?;
        Ok(Self {
            caller,
            placeholders,
            settle_after: config.settle_after.unwrap_or_default(),
            absent_is_not_applied: config.absent == Absent::NotApplied,
        })
    }
}

#[async_trait]
impl Verify for HttpVerify {
    fn settle_after(&self) -> Duration {
        self.settle_after
    }

    fn absent_is_not_applied(&self) -> bool {
        self.absent_is_not_applied
    }

    async fn verify(&self, query: &VerifyQuery, arguments: &Arguments) -> Verified {
        let token = query.fencing_token.to_string();
        let own = |name: &str| match name {
            "idempotency_key" => Some(Value::from(query.idempotency_key.as_str())),
            "run" => Some(Value::from(query.run.as_str())),
            "fencing_token" => Some(Value::from(token.as_str())),
            _ => None,
        };
        // Only what the URL names: the rest of the arguments belongs to the write.
        let filled: Arguments = self
            .placeholders
            .iter()
            .filter_map(|name| Some((name.clone(), own(name).or_else(|| arguments.get(name).cloned())?)))
            .collect();
        let request = own_headers_of(&query.idempotency_key, &query.run, query.fencing_token)
            .and_then(|headers| self.caller.request(&filled, &headers));
        let request = match request {
            Ok(request) => request,
            Err(why) => return Verified::Unknown(why),
        };
        match self.caller.send(request).await {
            Err(failure) => Verified::Unknown(failure.why()),
            Ok(reply) => match (reply.status.as_u16(), reply.body.into_value(reply.status)) {
                (200, Ok(body)) => Verified::Landed(body),
                (200, Err(why)) => Verified::Unknown(format!("HTTP 200, and {why}")),
                (404, _) => Verified::Absent,
                (status, _) => Verified::Unknown(format!("HTTP {status}")),
            },
        }
    }
}
