//! From what a provider or the network did to one of our classes. The class decides what the runtime does, so this is the
//! only place that reads providers' wording.

use super::super::{ModelError, ModelErrorClass};
use genai::webc;
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use reqwest::header::HeaderMap;
use serde_json::Value;
use std::{error::Error as _, fmt::Display, time::Duration};

/// Characters of a detail.
const DETAIL_CHARS_MAX: usize = 500;
/// A key shorter than this is no secret, and replacing it would garble the text.
const KEY_CHARS_MIN: usize = 6;

const CONTEXT_WORDS: [&str; 11] = [
    "context_length_exceeded",
    "context length",
    "context window",
    "context size",
    "maximum context",
    "prompt is too long",
    "input is too long",
    "prompt too long",
    "too many tokens",
    "input token count",
    "reduce the length",
];
const REFUSED_WORDS: [&str; 4] = ["content_filter", "content_policy", "responsibleaipolicyviolation", "safety system"];

/// Makes errors; knows the key only to keep it out of them.
pub(super) struct Faults {
    key: Option<String>,
}

impl Faults {
    pub(super) fn new(key: Option<String>) -> Self {
        Self { key: key.filter(|key| key.len() >= KEY_CHARS_MIN) }
    }

    /// An error of a class, its text bounded and without the key.
    pub(super) fn of(&self, class: ModelErrorClass, detail: impl Display) -> ModelError {
        let mut detail = detail.to_string();
        if let Some(key) = &self.key {
            detail = detail.replace(key.as_str(), "***");
        }
        if let Some((end, _)) = detail.char_indices().nth(DETAIL_CHARS_MAX) {
            detail.truncate(end);
            detail.push('…');
        }
        ModelError { class, detail, retry_after: None }
    }

    /// An error object that came with a 200 or in a stream.
    pub(super) fn of_body(&self, body: &Value) -> ModelError {
        let body = body.get("error").unwrap_or(body);
        let status = ["code", "status", "status_code"].iter().find_map(|key| body.get(key)?.as_u64()?.try_into().ok());
        let text = body.to_string();
        let class = match status {
            Some(status @ 400..600) => of_status(status, &text),
            _ => of_words(&text),
        };
        self.of(class, text)
    }

    pub(super) fn classify(&self, error: genai::Error) -> ModelError {
        use ModelErrorClass::{Auth, Client, Connection, Server, Truncated};
        match error {
            genai::Error::HttpError { status, body, headers, .. } => self.http(status.as_u16(), &body, &headers),
            genai::Error::WebModelCall { webc_error, .. } | genai::Error::WebAdapterCall { webc_error, .. } => match webc_error
            {
                webc::Error::ResponseFailedStatus { status, body, headers } => self.http(status.as_u16(), &body, &headers),
                webc::Error::ResponseFailedNotJson { content_type, body } => {
                    self.of(Server, format!("the answer is {content_type}, not JSON: {body}"))
                }
                webc::Error::ResponseFailedInvalidJson { body, cause } => {
                    self.of(Server, format!("the answer is no JSON ({cause}): {body}"))
                }
                webc::Error::Reqwest(e) => self.transport(e),
                other => self.of(Server, other),
            },
            genai::Error::WebStream { error, cause, .. } => match error.downcast::<genai::Error>() {
                Ok(inner) => self.classify(*inner),
                Err(error) => match error.downcast::<reqwest::Error>() {
                    Ok(e) => self.transport(*e),
                    Err(error) if error.is::<webc::StreamTimeout>() => self.of(Connection, cause),
                    Err(_) => self.of(Truncated, cause),
                },
            },
            genai::Error::ChatResponse { body, .. } => self.of_body(&body),
            genai::Error::StreamParse { serde_error, .. } if serde_error.is_eof() => {
                self.of(Truncated, format!("the stream broke off in the middle of an event ({serde_error})"))
            }
            genai::Error::StreamParse { serde_error, .. } => {
                self.of(Server, format!("an event of the stream is no JSON ({serde_error})"))
            }
            // Its display repeats the whole request, which is not for a log.
            genai::Error::ChatResponseGeneration { cause, .. } => {
                self.of(Server, format!("the answer is not a reply ({cause})"))
            }
            e @ (genai::Error::RequiresApiKey { .. }
            | genai::Error::NoAuthData { .. }
            | genai::Error::NoAuthResolver { .. }) => self.of(Auth, e),
            e @ (genai::Error::JsonValueExt(_)
            | genai::Error::SerdeJson(_)
            | genai::Error::NoChatResponse { .. }
            | genai::Error::InvalidJsonResponseElement { .. }) => self.of(Server, format!("the answer is not a reply ({e})")),
            e => self.of(Client, e),
        }
    }

    fn http(&self, status: u16, body: &str, headers: &HeaderMap) -> ModelError {
        let class = of_status(status, body);
        ModelError {
            retry_after: retry_after(headers, Timestamp::now()),
            ..self.of(class, format!("HTTP {status}: {}", body.trim()))
        }
    }

    fn transport(&self, error: reqwest::Error) -> ModelError {
        let class = if error.is_redirect() {
            ModelErrorClass::Client
        } else if error.is_timeout() || error.is_connect() || error.is_request() {
            ModelErrorClass::Connection
        } else {
            ModelErrorClass::Truncated
        };
        // Without the URL, which may have been configured with a secret in its query.
        let error = error.without_url();
        let mut words = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            words = format!("{words}: {cause}");
            source = cause.source();
        }
        self.of(class, words)
    }
}

fn has_any(text: &str, words: &[&str]) -> bool {
    let text = text.to_ascii_lowercase();
    words.iter().any(|word| text.contains(word))
}

fn of_status(status: u16, body: &str) -> ModelErrorClass {
    match status {
        // Also where the account of the key has no money left.
        401..=403 => ModelErrorClass::Auth,
        408 => ModelErrorClass::Connection,
        429 => ModelErrorClass::RateLimited,
        400 | 413 | 422 if has_any(body, &CONTEXT_WORDS) => ModelErrorClass::ContextOverflow,
        413 if has_any(body, &["too large", "too_large"]) => ModelErrorClass::ContextOverflow,
        400 | 422 if has_any(body, &REFUSED_WORDS) => ModelErrorClass::Refused,
        500.. => ModelErrorClass::Server,
        // A redirect too: it is not followed, so the configured URL is the wrong one.
        _ => ModelErrorClass::Client,
    }
}

/// An error object without a status.
fn of_words(text: &str) -> ModelErrorClass {
    if has_any(text, &CONTEXT_WORDS) {
        ModelErrorClass::ContextOverflow
    } else if has_any(text, &REFUSED_WORDS) {
        ModelErrorClass::Refused
    } else if has_any(text, &["rate_limit", "rate limit", "too many requests", "resource_exhausted"]) {
        ModelErrorClass::RateLimited
    } else if has_any(
        text,
        &["authentication_error", "permission_error", "invalid_api_key", "unauthorized", "permission_denied"],
    ) {
        ModelErrorClass::Auth
    } else if has_any(text, &["invalid_request", "invalid_argument", "not_found_error", "model_not_found"]) {
        ModelErrorClass::Client
    } else {
        ModelErrorClass::Server
    }
}

fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let seconds = |text: &str| text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    if let Some(wait) = text("retry-after-ms").and_then(seconds) {
        return Some(wait / 1000);
    }
    let value = text("retry-after")?;
    seconds(value).or_else(|| {
        let at = DateTimeParser::new().parse_timestamp(value).ok()?;
        Some(Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::HeaderValue;

    #[test]
    fn retry_after_is_read_as_seconds_milliseconds_and_a_date() {
        let now: Timestamp = "2015-10-21T07:27:30Z".parse().unwrap();
        for (name, value, expected) in [
            ("retry-after", "7", Some(7_000)),
            ("retry-after", "0.5", Some(500)),
            ("retry-after-ms", "250", Some(250)),
            ("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT", Some(30_000)),
            ("retry-after", "Wed, 21 Oct 2015 07:00:00 GMT", Some(0)),
            ("retry-after", "-3", None),
            ("retry-after", "soon", None),
            ("x-other", "7", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            assert_eq!(retry_after(&headers, now), expected.map(Duration::from_millis), "{name}: {value}");
        }
    }

    #[test]
    fn a_detail_is_bounded_and_never_holds_the_key() {
        let error =
            Faults::new(Some("sk-s3cret".into())).of(ModelErrorClass::Auth, format!("bad key sk-s3cret {}", "ü".repeat(900)));
        assert!(error.detail.starts_with("bad key *** ü"), "{error}");
        assert_eq!(error.detail.chars().count(), DETAIL_CHARS_MAX + 1);
    }
}
