//! HTTP tools, declared by the operator.
//!
//! Guarantees: one call is at most one request of a write on the wire - no retry, no redirect, no connection from a pool, no
//! proxy from the environment; a write carries its idempotency key, run and epoch; what its answer means is decided
//! exactly as the protocol says, and everything in doubt is unknown. The arguments never decide where a
//! request goes.

mod answer;
mod config;
mod look;
pub(super) mod send;
mod template;
#[cfg(test)]
mod tests;
pub mod units;
mod verify;

pub use config::{
    Absent, BodyKind, ConfiguredApproval, ConfiguredEffect, HeaderSource, HttpToolConfig, HttpToolError, LookConfig, Outcomes,
    ShownTo, VerifyConfig,
};

use super::{
    Approval, Arguments, Preview, ReadAnswer, ReadTool, Tool, ToolSpec, Verify, WriteAnswer, WriteEffect, WritePermit,
    WriteTool, last_check::GATE,
};
use crate::run::{Effect, canonical_hash};
use answer::{Meaning, Statuses};
use async_trait::async_trait;
use look::{HttpLook, HttpPreview};
use reqwest::{
    Method,
    header::{HeaderMap, HeaderName, HeaderValue},
};
use send::{Caller, Failure};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use template::UrlTemplate;
use verify::HttpVerify;

/// How long a call may take where the operator does not say.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Bytes of an answer that are read where the operator does not say.
pub const RESPONSE_BYTES_DEFAULT: usize = 1024 * 1024;
/// The write's own headers, which no configuration replaces.
const IDEMPOTENCY_KEY: &str = "idempotency-key";
const RUN: &str = "leasehold-run";
const FENCING_TOKEN: &str = "leasehold-fencing-token";
/// Headers that the client writes itself, because they frame the request.
const FRAMING: [&str; 5] = ["host", "content-length", "transfer-encoding", "connection", "accept-encoding"];

/// Builds tools from configuration.
#[derive(Debug)]
pub struct HttpTool;

impl HttpTool {
    /// The tool, with headers from this process's environment.
    ///
    /// # Errors
    /// The key that is wrong and the mend.
    pub fn build(config: HttpToolConfig) -> Result<Tool, HttpToolError> {
        Self::build_with_env(config, |name| std::env::var(name).ok())
    }

    /// The tool, with headers from the given environment.
    ///
    /// # Errors
    /// The key that is wrong and the mend.
    pub fn build_with_env(config: HttpToolConfig, env: impl Fn(&str) -> Option<String>) -> Result<Tool, HttpToolError> {
        let name = config.name.clone();
        let wrong = |key: &str, why: String| HttpToolError { tool: name.clone(), key: key.to_owned(), why };
        let effect = Effect::from(config.effect);
        let is_read = effect == Effect::ReadOnly;
        if is_read && config.approval == Some(ConfiguredApproval::Required) {
            return Err(wrong(
                "approval",
                "a read_only tool waits for nobody: remove `approval`, or declare its write effect".into(),
            ));
        }
        if is_read && !config.outcomes.is_empty() {
            return Err(wrong("outcomes", "belongs to a write; the effect is read_only".into()));
        }
        if is_read && config.verify.is_some() {
            return Err(wrong("verify", "belongs to a write; the effect is read_only".into()));
        }
        for (key, look) in [("preview", &config.preview), ("precondition", &config.precondition)] {
            if is_read && look.is_some() {
                return Err(wrong(key, "belongs to a write; the effect is read_only".into()));
            }
        }
        let method = match config.method.as_str() {
            "GET" => Method::GET,
            "HEAD" => Method::HEAD,
            "POST" => Method::POST,
            "PUT" => Method::PUT,
            "PATCH" => Method::PATCH,
            "DELETE" => Method::DELETE,
            other => return Err(wrong("method", format!("`{other}` is none of GET, HEAD, POST, PUT, PATCH, DELETE"))),
        };
        let url = UrlTemplate::parse(&config.url).map_err(|why| wrong("url", why))?;
        let parameters =
            config.parameters.unwrap_or_else(|| json!({ "type": "object", "properties": {}, "additionalProperties": false }));
        check_placeholders(&url, &parameters).map_err(|why| wrong("url", why))?;
        let headers = headers(&config.headers, env).map_err(|(header, why)| wrong(&format!("headers.{header}"), why))?;
        let statuses = Statuses::moved_by(&config.outcomes).map_err(|why| wrong("outcomes", why))?;
        let timeout = config.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let query = config.url.split_once('?').map_or(String::new(), |(_, query)| format!("?#{:.8}", canonical_hash(&query)));
        let spec = ToolSpec {
            input: config.input,
            name: config.name.clone(),
            description: config.description,
            parameters,
            source: "http".into(),
            endpoint: format!("{method} {}{query}", url.shown()),
            timeout,
        };
        let max_response = config.max_response.unwrap_or(RESPONSE_BYTES_DEFAULT);
        let verify = match &config.verify {
            Some(verify) => Some(
                HttpVerify::new(verify, &spec.parameters, headers.clone(), timeout, max_response)
                    .map_err(|(key, why)| wrong(key, why))?,
            ),
            None => None,
        };
        let look = |key: &str, look: &Option<LookConfig>| {
            let made = look.as_ref().map(|look| HttpLook::new(look, &spec.parameters, headers.clone(), timeout, max_response));
            made.transpose().map_err(|why| wrong(key, why))
        };
        let preview = HttpPreview {
            preview: look("preview", &config.preview)?,
            precondition: look("precondition", &config.precondition)?,
            only_deciders: [&config.preview, &config.precondition]
                .into_iter()
                .flatten()
                .any(|look| look.shown_to == ShownTo::Deciders),
        };
        let preview = (preview.preview.is_some() || preview.precondition.is_some()).then_some(preview);
        let caller =
            Caller::new(method, url, headers, config.body, timeout, max_response, is_read).map_err(|why| wrong("url", why))?;
        let write_effect = match effect {
            Effect::ReadOnly => return Ok(Tool::Read(Arc::new(HttpRead { spec, caller }))),
            Effect::IdempotentWrite => WriteEffect::Idempotent,
            _ => WriteEffect::NonIdempotent,
        };
        let approval = config.approval.map_or(Approval::Required, Approval::from);
        Ok(Tool::Write(Arc::new(HttpWrite { spec, caller, write_effect, statuses, verify, preview }), approval))
    }
}

/// Each placeholder is a declared, required argument that has a text.
fn check_placeholders(url: &UrlTemplate, parameters: &Value) -> Result<(), String> {
    url.placeholders().try_for_each(|name| check_placeholder(name, parameters))
}

fn check_placeholder(name: &str, parameters: &Value) -> Result<(), String> {
    let Some(property) = parameters.get("properties").and_then(|p| p.get(name)) else {
        return Err(format!("the placeholder `{{{name}}}` is not in `parameters.properties`"));
    };
    let is_required =
        parameters.get("required").and_then(Value::as_array).is_some_and(|r| r.iter().any(|r| r.as_str() == Some(name)));
    if !is_required {
        return Err(format!("the placeholder `{{{name}}}` is not in `parameters.required`: add it"));
    }
    if let Some(kind) = property.get("type").and_then(Value::as_str)
        && !matches!(kind, "string" | "number" | "integer" | "boolean")
    {
        return Err(format!(
            "the placeholder `{{{name}}}` is of type {kind}: only strings, numbers and booleans go into a URL"
        ));
    }
    Ok(())
}

pub(super) fn headers(
    configured: &std::collections::BTreeMap<String, HeaderSource>,
    env: impl Fn(&str) -> Option<String>,
) -> Result<HeaderMap, (String, String)> {
    let mut headers = HeaderMap::new();
    for (name, source) in configured {
        let wrong = |why: String| (name.clone(), why);
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("is not a header name".into()))?;
        if matches!(header.as_str(), IDEMPOTENCY_KEY | RUN | FENCING_TOKEN) {
            return Err(wrong("is sent by leasehold with each write and cannot be replaced: remove it".into()));
        }
        if FRAMING.contains(&header.as_str()) {
            return Err(wrong("is written by the HTTP client itself: remove it".into()));
        }
        let text = value_of(source, &env).map_err(wrong)?;
        let mut value =
            HeaderValue::from_str(&text).map_err(|_| wrong("its value contains a line break or a control character".into()))?;
        value.set_sensitive(true);
        if headers.insert(header, value).is_some() {
            return Err(wrong("is there twice, in different case".into()));
        }
    }
    Ok(headers)
}

/// The text that a value stands for.
pub(super) fn value_of(source: &HeaderSource, env: &impl Fn(&str) -> Option<String>) -> Result<String, String> {
    match source {
        HeaderSource::Text(text) => Ok(text.clone()),
        HeaderSource::Env { env: variable, prefix } => {
            if !is_variable_name(variable) {
                // What stands there may be the secret itself: it is not repeated.
                return Err("`env` is not the name of an environment variable; write the name, never the secret".into());
            }
            let value = env(variable)
                .filter(|value| !value.trim().is_empty())
                .ok_or_else(|| format!("the environment variable {variable} is not set"))?;
            Ok(format!("{prefix}{value}"))
        }
    }
}

/// Letters, digits and `_`, not beginning with a digit.
pub(super) fn is_variable_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

struct HttpRead {
    spec: ToolSpec,
    caller: Caller,
}

#[async_trait]
impl ReadTool for HttpRead {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        let request = match self.caller.request(arguments, &HeaderMap::new()) {
            Ok(request) => request,
            Err(why) => return ReadAnswer::error(why),
        };
        match self.caller.send(request).await {
            Err(failure) => ReadAnswer::error(failure.why()),
            Ok(reply) => match (reply.status, reply.body.into_value(reply.status)) {
                (status, Ok(body)) if status.is_success() => ReadAnswer::ok(body),
                (status, Ok(body)) => ReadAnswer::error_value(error_result(status.as_u16(), body)),
                (status, Err(why)) => ReadAnswer::error(format!("HTTP {}: {why}", status.as_u16())),
            },
        }
    }
}

struct HttpWrite {
    spec: ToolSpec,
    caller: Caller,
    write_effect: WriteEffect,
    statuses: Statuses,
    verify: Option<HttpVerify>,
    preview: Option<HttpPreview>,
}

#[async_trait]
impl WriteTool for HttpWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    fn write_effect(&self) -> WriteEffect {
        self.write_effect
    }
    fn preview(&self) -> Option<&dyn Preview> {
        self.preview.as_ref().map(|preview| preview as &dyn Preview)
    }
    fn verify(&self) -> Option<&dyn Verify> {
        self.verify.as_ref().map(|verify| verify as &dyn Verify)
    }
    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        let headers = match own_headers(&permit) {
            Ok(headers) => headers,
            Err(why) => return WriteAnswer::NotApplied { why },
        };
        let request = match self.caller.request(arguments, &headers) {
            Ok(request) => request,
            Err(why) => return WriteAnswer::NotApplied { why: format!("nothing was sent: {why}") },
        };
        // Again when the connection stands: see `last_check`.
        if let Err(not_held) = permit.check() {
            return WriteAnswer::NotStarted { why: not_held.to_string() };
        }
        let reply = match GATE.scope(permit.trust.clone(), self.caller.send(request)).await {
            Ok(reply) => reply,
            Err(Failure::NotHeld(why)) => return WriteAnswer::NotStarted { why },
            Err(failure @ Failure::NoConnection(_)) => return WriteAnswer::NotApplied { why: failure.why() },
            Err(failure) => return WriteAnswer::Unknown { why: failure.why() },
        };
        let status = reply.status.as_u16();
        match self.statuses.meaning(status) {
            Meaning::Unknown => WriteAnswer::Unknown { why: format!("the far side answered HTTP {status}") },
            Meaning::NotApplied => WriteAnswer::NotApplied { why: format!("the far side answered HTTP {status}") },
            Meaning::Done => match reply.body.into_value(reply.status) {
                Err(why) => WriteAnswer::Unknown { why: format!("the far side answered HTTP {status}, and {why}") },
                Ok(body) if status >= 400 => WriteAnswer::Done { result: error_result(status, body), is_error: true },
                Ok(body) => WriteAnswer::done(body),
            },
        }
    }
}

fn error_result(status: u16, body: Value) -> Value {
    json!({ "status": status, "body": body })
}

fn own_headers(permit: &WritePermit) -> Result<HeaderMap, String> {
    own_headers_of(permit.idempotency_key(), &permit.run().to_string(), permit.fencing_token())
}

fn own_headers_of(key: &str, run: &str, fencing_token: u64) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, text) in [(IDEMPOTENCY_KEY, key.to_owned()), (RUN, run.to_owned()), (FENCING_TOKEN, fencing_token.to_string())] {
        let value = HeaderValue::try_from(text).map_err(|_| format!("the value of {name} cannot be sent"))?;
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}
