//! `[[mcp]]` as the operator writes it. Nothing is guessed: an unknown key, a wrong type or a contradiction is an error that says what
//! to write.

use super::{
    super::http::{ConfiguredApproval, ConfiguredEffect, HeaderSource, units},
    oauth::OAuthConfig,
};
use crate::limits::MCP_QUESTIONS_MAX;
use serde::Deserialize;
use std::{collections::BTreeMap, fmt, time::Duration};

/// One `[[mcp]]`.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct McpConfig {
    /// Tools become `name.tool`.
    pub name: String,
    /// The program and its arguments, which speaks over its standard input and output. This or `url`.
    #[serde(default)]
    pub command: Option<Vec<String>>,
    /// Where the server is reached over HTTP. This or `command`.
    #[serde(default)]
    pub url: Option<String>,
    /// Variables of the process, beside a few harmless ones of this process.
    #[serde(default)]
    pub env: BTreeMap<String, HeaderSource>,
    /// Sent with each request over HTTP.
    #[serde(default)]
    pub headers: BTreeMap<String, HeaderSource>,
    /// How this program gets the right to use the server; left out: it asks for none.
    #[serde(default)]
    pub oauth: Option<OAuthConfig>,
    /// Whether a person releases the calls of tools that are not declared `read_only`; only an explicit `false` turns it off.
    #[serde(default)]
    pub requires_approval: Option<bool>,
    /// What each tool does to the world; left out: `non_idempotent_write`.
    #[serde(default)]
    pub effects: BTreeMap<String, ConfiguredEffect>,
    /// Per tool, whatever `requires_approval` says.
    #[serde(default)]
    pub approval: BTreeMap<String, ConfiguredApproval>,
    /// For each operation, connecting included; left out: 30 s.
    #[serde(default, deserialize_with = "units::optional_duration")]
    pub timeout: Option<Duration>,
    /// How long a person has, in all of one call, to answer what the server asks; left out: nobody is asked.
    #[serde(default, deserialize_with = "units::optional_duration")]
    pub questions: Option<Duration>,
    /// Bytes of a result that are kept; left out: 1 MiB.
    #[serde(default, deserialize_with = "units::optional_size")]
    pub max_response: Option<usize>,
    /// Per tool, what an error answer (`isError`) says of the effect; left out: `done`.
    #[serde(default)]
    pub error_outcome: BTreeMap<String, ErrorOutcome>,
    /// Per tool, the argument that gets the idempotency key. The model does not see it.
    #[serde(default)]
    pub idempotency_argument: BTreeMap<String, String>,
}

/// What an error answer of a tool says of its effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorOutcome {
    /// The tool says no.
    #[default]
    Done,
    /// It may have happened all the same.
    Unknown,
}

impl McpConfig {
    /// A server named `name`, reached over the input and output of a process.
    pub fn command(name: impl Into<String>, command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { command: Some(command.into_iter().map(Into::into).collect()), ..Self::empty(name.into()) }
    }

    /// A server named `name`, reached over HTTP.
    pub fn url(name: impl Into<String>, url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::empty(name.into()) }
    }

    fn empty(name: String) -> Self {
        Self {
            name,
            command: None,
            url: None,
            env: BTreeMap::new(),
            headers: BTreeMap::new(),
            oauth: None,
            requires_approval: None,
            effects: BTreeMap::new(),
            approval: BTreeMap::new(),
            timeout: None,
            questions: None,
            max_response: None,
            error_outcome: BTreeMap::new(),
            idempotency_argument: BTreeMap::new(),
        }
    }

    /// Tools that are named under a key that speaks of tools, each with that key.
    pub(super) fn named_tools(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let effects = self.effects.keys().map(|tool| ("effects", tool.as_str()));
        let approval = self.approval.keys().map(|tool| ("approval", tool.as_str()));
        let outcomes = self.error_outcome.keys().map(|tool| ("error_outcome", tool.as_str()));
        let arguments = self.idempotency_argument.keys().map(|tool| ("idempotency_argument", tool.as_str()));
        effects.chain(approval).chain(outcomes).chain(arguments)
    }

    /// What contradicts itself in the file alone.
    pub(super) fn check(&self) -> Result<(), McpConfigError> {
        let wrong = |key: &str, why: String| Err(McpConfigError { server: self.name.clone(), key: key.to_owned(), why });
        if self.questions.is_some_and(|limit| limit > MCP_QUESTIONS_MAX) {
            let longest = MCP_QUESTIONS_MAX.as_secs() / 3_600;
            return wrong("questions", format!("must be at most {longest}h"));
        }
        if let Some(oauth) = &self.oauth {
            if self.url.is_none() {
                return wrong("oauth", "belongs to a `url`; for a `command` write `env`".into());
            }
            if let Some(header) = self.headers.keys().find(|name| name.eq_ignore_ascii_case("authorization")) {
                return wrong(&format!("headers.{header}"), "there is [mcp.oauth] too: remove one of the two".into());
            }
            if let Err((key, why)) = oauth.check() {
                return wrong(&format!("oauth.{key}"), why);
            }
        }
        for (tool, effect) in &self.effects {
            if *effect != ConfiguredEffect::ReadOnly {
                continue;
            }
            for (key, is_there) in [
                ("approval", self.approval.get(tool) == Some(&ConfiguredApproval::Required)),
                ("error_outcome", self.error_outcome.contains_key(tool)),
                ("idempotency_argument", self.idempotency_argument.contains_key(tool)),
            ] {
                if is_there {
                    return wrong(
                        &format!("{key}.{tool}"),
                        "belongs to a write, and `effects` says read_only: remove one of the two".into(),
                    );
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for McpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Arguments of a command and a query may hold a secret, so neither is shown.
        f.debug_struct("McpConfig")
            .field("name", &self.name)
            .field("command", &self.command.as_ref().and_then(|command| command.first()))
            .field("url", &self.url.as_ref().map(|url| super::target::shown_url(url)))
            .field("env", &self.env)
            .field("headers", &self.headers)
            .field("oauth", &self.oauth)
            .field("requires_approval", &self.requires_approval)
            .field("effects", &self.effects)
            .field("approval", &self.approval)
            .field("timeout", &self.timeout)
            .field("questions", &self.questions)
            .field("max_response", &self.max_response)
            .field("error_outcome", &self.error_outcome)
            .field("idempotency_argument", &self.idempotency_argument)
            .finish()
    }
}

/// A server that cannot be used as it is configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("mcp server `{server}`: `{key}`: {why}")]
pub struct McpConfigError {
    /// The server.
    pub server: String,
    /// The key in its configuration.
    pub key: String,
    /// What is wrong, and the mend.
    pub why: String,
}
