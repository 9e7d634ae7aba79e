//! What an HTTP answer to a write means. The rule is protocol.md's: 2xx and the client errors that say "no" are done, and
//! everything else is unknown unless the operator knows the far side better.

use super::Outcomes;
use reqwest::StatusCode;
use serde_json::Value;
use std::collections::BTreeMap;

/// What a status says of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Done,
    NotApplied,
    Unknown,
}

/// The statuses of one tool.
#[derive(Clone, Debug, Default)]
pub(super) struct Statuses {
    moved: BTreeMap<u16, Meaning>,
}

impl Statuses {
    pub(super) fn moved_by(outcomes: &Outcomes) -> Result<Self, String> {
        let mut moved = BTreeMap::new();
        for (list, meaning) in [
            (&outcomes.done, Meaning::Done),
            (&outcomes.not_applied, Meaning::NotApplied),
            (&outcomes.unknown, Meaning::Unknown),
        ] {
            for &status in list {
                if !(200..600).contains(&status) {
                    return Err(format!("{status} is not the status of an answer (200 to 599)"));
                }
                if moved.insert(status, meaning).is_some_and(|before| before != meaning) {
                    return Err(format!("{status} is in two lists"));
                }
            }
        }
        Ok(Self { moved })
    }

    pub(super) fn meaning(&self, status: u16) -> Meaning {
        self.moved.get(&status).copied().unwrap_or(match status {
            200..300 | 400 | 401 | 403 | 404 | 405 | 410 | 413 | 415 | 422 => Meaning::Done,
            _ => Meaning::Unknown,
        })
    }
}

/// A reply's body as far as it came.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// There was more than the limit.
    pub(super) is_oversized: bool,
    /// The connection ended before the body did; in words.
    pub(super) cut: Option<String>,
    pub(super) is_json: bool,
    pub(super) is_encoded: bool,
}

impl Body {
    /// JSON as a value, text as a string; why not where the reply is cut or cannot be decoded. More than the limit is a whole
    /// answer of which only the beginning is kept, and the result says so.
    pub(super) fn into_value(self, status: StatusCode) -> Result<Value, String> {
        if let Some(cut) = self.cut {
            return Err(format!("its reply was cut: {cut}"));
        }
        if self.is_encoded {
            return Err("its reply is in a content encoding that was not asked for".into());
        }
        if self.bytes.is_empty() && !self.is_oversized {
            return Ok(Value::String(format!("HTTP {} without a body", status.as_u16())));
        }
        if self.is_oversized {
            let kept = self.bytes.len();
            let text = match std::str::from_utf8(&self.bytes) {
                Ok(text) => text,
                // The limit may cut through a character; anything else is no text.
                Err(e) if e.error_len().is_none() => std::str::from_utf8(&self.bytes[..e.valid_up_to()]).unwrap_or_default(),
                Err(_) => return Err("its reply is not UTF-8 text".into()),
            };
            return Ok(Value::String(format!("{text}\n[cut: the reply is longer than {kept} bytes]")));
        }
        if self.is_json {
            return serde_json::from_slice(&self.bytes).map_err(|e| format!("its reply says it is JSON and is not ({e})"));
        }
        String::from_utf8(self.bytes).map(Value::String).map_err(|_| "its reply is not UTF-8 text".into())
    }
}
