//! What the far side of an HTTP write says before it: a preview, and what has to hold. Each is one GET without redirects, with the
//! tool's headers; it changes nothing and carries no key.

use super::{BodyKind, config::LookConfig, send::Caller, template::UrlTemplate};
use crate::{
    agent::tool::{Arguments, Preview, Previewed},
    run::canonical_hash,
};
use async_trait::async_trait;
use reqwest::{Method, header::HeaderMap};
use serde_json::Value;
use std::time::Duration;

/// Characters of a condition that are kept as they are; a longer one ends in its hash.
const CONDITION_CHARS_MAX: usize = 500;

#[derive(Debug)]
pub(super) struct HttpLook {
    caller: Caller,
    placeholders: Vec<String>,
}

impl HttpLook {
    /// With the tool's headers, timeout and limit.
    ///
    /// # Errors
    /// Why the URL is none.
    pub(super) fn new(
        config: &LookConfig,
        parameters: &Value,
        headers: HeaderMap,
        timeout: Duration,
        max_response: usize,
    ) -> Result<Self, String> {
        if config.method.as_deref().is_some_and(|method| method != "GET") {
            return Err("is asked with GET: looking must change nothing".into());
        }
        let url = UrlTemplate::parse(&config.url)?;
        let placeholders: Vec<String> = url.placeholders().map(str::to_owned).collect();
        placeholders.iter().try_for_each(|name| super::check_placeholder(name, parameters))?;
        let caller = Caller::new(Method::GET, url, headers, BodyKind::Json, timeout, max_response, false)?;
        Ok(Self { caller, placeholders })
    }

    /// The status and the body.
    async fn look(&self, arguments: &Arguments) -> Result<(u16, Value), String> {
        // Only what the URL names: the rest of the arguments belongs to the write.
        let named = self.placeholders.iter().filter_map(|name| Some((name.clone(), arguments.get(name)?.clone())));
        let request = self.caller.request(&named.collect(), &HeaderMap::new())?;
        let reply = self.caller.send(request).await.map_err(|failure| failure.why())?;
        let status = reply.status;
        let body = reply.body.into_value(status).map_err(|why| format!("HTTP {}, and {why}", status.as_u16()))?;
        Ok((status.as_u16(), body))
    }
}

#[derive(Debug)]
pub(super) struct HttpPreview {
    pub(super) preview: Option<HttpLook>,
    pub(super) precondition: Option<HttpLook>,
    pub(super) only_deciders: bool,
}

#[async_trait]
impl Preview for HttpPreview {
    async fn preview(&self, arguments: &Arguments) -> Result<Previewed, String> {
        // The condition first: what the preview shows is then at most newer.
        let condition = match &self.precondition {
            None => None,
            Some(look) => match look.look(arguments).await? {
                (200, body) => Some(condition(&text(&body))),
                (404, _) => Some("nothing is there".to_owned()),
                (status, _) => return Err(format!("what has to hold cannot be looked up: HTTP {status}")),
            },
        };
        let shown = match &self.preview {
            None => condition.as_ref().map(|now| format!("now: {now}")).unwrap_or_default(),
            Some(look) => match look.look(arguments).await? {
                (200, body) => text(&body),
                (status, _) => return Err(format!("HTTP {status}")),
            },
        };
        Ok(Previewed { text: shown, precondition: condition })
    }
    fn only_deciders(&self) -> bool {
        self.only_deciders
    }
}

fn text(body: &Value) -> String {
    match body {
        Value::String(text) => text.clone(),
        other => format!("{other:#}"),
    }
}

fn condition(text: &str) -> String {
    if text.chars().count() <= CONDITION_CHARS_MAX {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(CONDITION_CHARS_MAX).collect();
    format!("{beginning}.. (SHA-256 of the whole: {})", canonical_hash(&text))
}
