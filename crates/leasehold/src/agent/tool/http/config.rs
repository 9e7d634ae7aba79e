//! `[[tool.http]]` as the operator writes it. Nothing here is guessed: an unknown key, a missing effect or a wrong unit is an
//! error that says what to write.

use super::{super::Approval, units};
use crate::run::Effect;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;
use std::{collections::BTreeMap, fmt, time::Duration};

/// One `[[tool.http]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpToolConfig {
    /// `source.tool`.
    pub name: String,
    /// For the model.
    pub description: String,
    /// What it does to the world: required, there is no default.
    pub effect: ConfiguredEffect,
    /// Whether a person releases a write; left out: yes.
    #[serde(default)]
    pub approval: Option<ConfiguredApproval>,
    /// GET, HEAD, POST, PUT, PATCH or DELETE.
    pub method: String,
    /// With `{placeholders}` from the arguments, never in scheme, host or port.
    pub url: String,
    /// Sent with each request.
    #[serde(default)]
    pub headers: BTreeMap<String, HeaderSource>,
    /// How the arguments that are not in placeholders are sent where the method has a body.
    #[serde(default)]
    pub body: BodyKind,
    /// JSON Schema of the arguments; left out: there are none.
    #[serde(default)]
    pub parameters: Option<Value>,
    /// For the whole call, the reply's body included; left out: 30 s.
    #[serde(default, deserialize_with = "units::optional_duration")]
    pub timeout: Option<Duration>,
    /// Bytes of the reply's body that are read; left out: 1 MiB.
    #[serde(default, deserialize_with = "units::optional_size")]
    pub max_response: Option<usize>,
    /// Moves statuses; writes only.
    #[serde(default)]
    pub outcomes: Outcomes,
    /// How the far side is asked afterwards whether a call happened; writes only.
    #[serde(default)]
    pub verify: Option<VerifyConfig>,
    /// Where the far side says what a call would change; writes only.
    #[serde(default)]
    pub preview: Option<LookConfig>,
    /// Where the far side says what a decision rests on: asked when a person is asked, and again when the call starts; writes only.
    #[serde(default)]
    pub precondition: Option<LookConfig>,
    /// JSON Schema of values that a person fills in before each call.
    #[serde(default)]
    pub input: Option<Value>,
}

/// `preview` and `precondition` as the operator writes them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LookConfig {
    /// GET; left out: GET.
    #[serde(default)]
    pub method: Option<String>,
    /// With the call's arguments as `{placeholders}`.
    pub url: String,
    /// Who is shown the answer; left out: everybody who sees the run.
    #[serde(default)]
    pub shown_to: ShownTo,
}

/// Who is shown what a far side says before a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShownTo {
    /// Everybody who sees the run.
    #[default]
    Everyone,
    /// Who may decide about the call.
    Deciders,
}

/// `verify` as the operator writes it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VerifyConfig {
    /// GET or HEAD.
    pub method: String,
    /// With `{idempotency_key}`, `{run}`, `{fencing_token}` and the call's arguments.
    pub url: String,
    /// How long after the tool's timeout the far side needs to be sure; left out: not at all.
    #[serde(default, deserialize_with = "units::optional_wait")]
    pub settle_after: Option<Duration>,
    /// What a 404 means; left out: a person is asked.
    #[serde(default)]
    pub absent: Absent,
}

/// What "absent" means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Absent {
    /// Evidence for a person.
    #[default]
    InDoubt,
    /// It did not happen: the call is made again.
    NotApplied,
}

/// The three effects a tool can be declared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfiguredEffect {
    /// Changes nothing.
    ReadOnly,
    /// A repeat converges.
    IdempotentWrite,
    /// A repeat is a second effect.
    NonIdempotentWrite,
}

impl From<ConfiguredEffect> for Effect {
    fn from(effect: ConfiguredEffect) -> Self {
        match effect {
            ConfiguredEffect::ReadOnly => Self::ReadOnly,
            ConfiguredEffect::IdempotentWrite => Self::IdempotentWrite,
            ConfiguredEffect::NonIdempotentWrite => Self::NonIdempotentWrite,
        }
    }
}

/// `approval` as configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfiguredApproval {
    /// A person decides.
    Required,
    /// The operator lets it run.
    None,
}

impl From<ConfiguredApproval> for Approval {
    fn from(approval: ConfiguredApproval) -> Self {
        match approval {
            ConfiguredApproval::Required => Self::Required,
            ConfiguredApproval::None => Self::None,
        }
    }
}

/// How a body is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BodyKind {
    /// `application/json`.
    #[default]
    Json,
    /// `application/x-www-form-urlencoded`.
    Form,
}

/// Statuses that mean something else here than everywhere.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcomes {
    /// The far side answered.
    #[serde(default)]
    pub done: Vec<u16>,
    /// It certainly did not happen.
    #[serde(default)]
    pub not_applied: Vec<u16>,
    /// It may have happened.
    #[serde(default)]
    pub unknown: Vec<u16>,
}

impl Outcomes {
    /// Nothing is moved.
    pub fn is_empty(&self) -> bool {
        self.done.is_empty() && self.not_applied.is_empty() && self.unknown.is_empty()
    }
}

/// Where a header's value comes from: text, or `{ env = "NAME", prefix = "Bearer " }`.
#[derive(Clone, PartialEq, Eq)]
pub enum HeaderSource {
    /// As written.
    Text(String),
    /// From the environment, read once at the start.
    Env {
        /// The variable.
        env: String,
        /// Before its value.
        prefix: String,
    },
}

impl fmt::Debug for HeaderSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // A value written into the file may be a secret all the same.
            Self::Text(_) => f.write_str("(text)"),
            Self::Env { env, .. } => write!(f, "(from {env})"),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvHeader {
    env: String,
    #[serde(default)]
    prefix: String,
}

impl<'de> Deserialize<'de> for HeaderSource {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = HeaderSource;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, or { env = \"NAME\", prefix = \"Bearer \" }")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<HeaderSource, E> {
                Ok(HeaderSource::Text(text.to_owned()))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HeaderSource, A::Error> {
                let EnvHeader { env, prefix } = EnvHeader::deserialize(MapAccessDeserializer::new(map))?;
                if env.is_empty() {
                    return Err(A::Error::custom("`env` names no variable"));
                }
                Ok(HeaderSource::Env { env, prefix })
            }
        }
        from.deserialize_any(Either)
    }
}

/// A tool that cannot be built from its configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tool `{tool}`: `{key}`: {why}")]
pub struct HttpToolError {
    /// The tool.
    pub tool: String,
    /// The key in its configuration.
    pub key: String,
    /// What is wrong, and the mend.
    pub why: String,
}
