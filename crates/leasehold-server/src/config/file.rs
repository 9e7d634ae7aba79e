//! The shape of `leasehold.toml`. Reading it is the library's part (serde and toml); what the parts mean together is checked in
//! [`super::check`]. Every table refuses keys that it does not know.

use crate::webhook::Event;
use jiff::SignedDuration;
use leasehold::agent::{
    policy::{DataClass, Enforcement},
    tool::{fetch::FetchConfig, http::HttpToolConfig, mcp::McpConfig, sql::SqlConfig},
};
use serde::{Deserialize, Deserializer, de};
use std::{collections::BTreeMap, fmt, time::Duration};
use toml::Spanned;

/// A duration as people write it: `60s`, `5m`, `1h 30m`. Not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period(pub(crate) Duration);

/// Reads a duration.
pub(crate) fn parse_period(text: &str) -> Result<Period, String> {
    let mend = "write a number with a unit, such as \"500ms\", \"60s\", \"5m\" or \"24h\"";
    let signed: SignedDuration = text.trim().parse().map_err(|_| format!("`{text}` is not a duration: {mend}"))?;
    Duration::try_from(signed).map(Period).map_err(|_| format!("`{text}` is negative; a duration is not"))
}

/// A duration as it is written in the file.
pub(crate) fn period_text(duration: Duration) -> String {
    match SignedDuration::try_from(duration) {
        Ok(signed) => format!("{signed:#}"),
        Err(_) => format!("{duration:?}"),
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Period;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, such as \"60s\" or \"5m\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Period, E> {
                parse_period(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// `"none"` or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline(pub(crate) Option<Duration>);

impl<'de> Deserialize<'de> for Deadline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "none" {
            return Ok(Self(None));
        }
        parse_period(&text).map(|period| Self(Some(period.0))).map_err(|e| de::Error::custom(format!("{e}, or \"none\"")))
    }
}

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    pub(crate) store: Store,
    pub(crate) server: Server,
    pub(crate) worker: Worker,
    pub(crate) lease: Lease,
    pub(crate) auth: Auth,
    pub(crate) seal: Seal,
    pub(crate) webhook: Option<Spanned<Webhook>>,
    pub(crate) model: Vec<Spanned<Model>>,
    pub(crate) agent: Vec<Spanned<Agent>>,
    pub(crate) tool: Tools,
    pub(crate) mcp: Vec<Spanned<McpConfig>>,
    pub(crate) policy: Policy,
}

/// Rules over all agents.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Policy {
    pub(crate) disabled: Vec<Spanned<String>>,
    pub(crate) data_classes: Enforcement,
    pub(crate) classes: BTreeMap<Spanned<String>, DataClass>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Store {
    pub(crate) url: Option<Spanned<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Server {
    pub(crate) listen: Option<Spanned<String>>,
    pub(crate) execute: Option<Spanned<bool>>,
    pub(crate) public_url: Option<Spanned<String>>,
    pub(crate) trusted_proxies: Option<Spanned<Vec<String>>>,
    pub(crate) insecure_http: Option<Spanned<bool>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Worker {
    pub(crate) concurrency: Option<Spanned<u32>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Lease {
    pub(crate) ttl: Option<Spanned<Period>>,
    pub(crate) sweep_interval: Option<Spanned<Period>>,
    pub(crate) max_requeues: Option<Spanned<u32>>,
    pub(crate) backoff: Backoff,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Backoff {
    pub(crate) initial: Option<Spanned<Period>>,
    pub(crate) factor: Option<Spanned<f64>>,
    pub(crate) max: Option<Spanned<Period>>,
    pub(crate) jitter: Option<Spanned<bool>>,
}

/// What the owner of a local store has to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Local {
    /// Nothing: whoever opens the store owns it.
    #[default]
    Owner,
    /// A token.
    Token,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Auth {
    pub(crate) admin_token_env: Option<Spanned<String>>,
    pub(crate) local: Option<Spanned<Local>>,
}

/// Sealing of what lies in the store.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Seal {
    pub(crate) keyring: Option<Spanned<String>>,
}

/// Where the operator is told of runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Webhook {
    pub(crate) url: Spanned<String>,
    pub(crate) secret_env: Option<Spanned<String>>,
    pub(crate) events: Option<Spanned<Vec<Event>>>,
    pub(crate) link_base: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) insecure_http: bool,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Price {
    pub(crate) input: f64,
    pub(crate) output: f64,
    pub(crate) cached: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    pub(crate) name: Spanned<String>,
    pub(crate) provider: Spanned<String>,
    pub(crate) model: Option<Spanned<String>>,
    pub(crate) base_url: Option<Spanned<String>>,
    pub(crate) api_key_env: Option<Spanned<String>>,
    pub(crate) timeout: Option<Spanned<Period>>,
    pub(crate) stream: Option<bool>,
    pub(crate) price: Option<Spanned<Price>>,
    #[serde(default)]
    pub(crate) fallback: Vec<Spanned<String>>,
    pub(crate) max_concurrency: Option<Spanned<u32>>,
    pub(crate) requests_per_minute: Option<Spanned<u32>>,
    pub(crate) script: Option<Spanned<String>>,
    pub(crate) window: Option<Spanned<u64>>,
    #[serde(default)]
    pub(crate) zone: DataClass,
}

/// What happens to a run when nobody decides in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnExpired {
    #[default]
    Continue,
    DeadLetter,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Agent {
    pub(crate) name: Spanned<String>,
    pub(crate) model: Option<Spanned<String>>,
    #[serde(default)]
    pub(crate) system: String,
    #[serde(default)]
    pub(crate) tools: Vec<Spanned<String>>,
    #[serde(default)]
    pub(crate) disabled: Vec<Spanned<String>>,
    pub(crate) max_rounds: Option<Spanned<u32>>,
    pub(crate) concurrency: Option<Spanned<u32>>,
    #[serde(default)]
    pub(crate) require_second_approver: bool,
    pub(crate) decision_deadline: Option<Deadline>,
    #[serde(default)]
    pub(crate) on_decision_expired: OnExpired,
    pub(crate) approval_valid_for: Option<Spanned<Period>>,
    pub(crate) max_tokens: Option<Spanned<u64>>,
    pub(crate) max_cost: Option<Spanned<f64>>,
    #[serde(default)]
    pub(crate) effect_budgets: Vec<Spanned<EffectBudget>>,
}

/// What an agent's writes may do in a window of time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EffectBudget {
    pub(crate) tool: Spanned<String>,
    pub(crate) max_writes: Option<Spanned<u32>>,
    pub(crate) max_sum: Option<Spanned<f64>>,
    pub(crate) argument: Option<Spanned<String>>,
    pub(crate) window: Spanned<Period>,
}

/// Whether a person has to release a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ApprovalWord {
    Required,
    None,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Tools {
    pub(crate) http: Vec<Spanned<HttpToolConfig>>,
    pub(crate) site: Option<Spanned<Site>>,
    pub(crate) files: Option<Spanned<Files>>,
    pub(crate) fetch: Option<Spanned<FetchConfig>>,
    pub(crate) sql: Vec<Spanned<SqlConfig>>,
}

/// Files within one directory.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Files {
    pub(crate) root: Spanned<String>,
    #[serde(default)]
    pub(crate) write: bool,
    #[serde(default)]
    pub(crate) approval: BTreeMap<Spanned<String>, ApprovalWord>,
}

/// The bundled site.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Site {
    pub(crate) path: Option<Spanned<String>>,
    pub(crate) approval: BTreeMap<Spanned<String>, ApprovalWord>,
}
