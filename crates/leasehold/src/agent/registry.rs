//! What this process can execute: agents, and the tools they are offered. Nothing that is not here can be called.

use super::{
    model::Model,
    policy::{DataClass, ToolPolicy},
    tool::{Tool, ToolSpec},
};
use crate::run::{OnExpiry, Usage, canonical_hash};
use async_trait::async_trait;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

/// Price of a model's tokens, in US dollars per million.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Tokens sent.
    pub input: f64,
    /// Tokens received.
    pub output: f64,
    /// Tokens sent that the provider had cached.
    pub cached: f64,
}

impl Price {
    /// Fills in the cost of a usage.
    pub fn of(&self, usage: Usage) -> Usage {
        // A dollar per million tokens is 1000 billionths of a dollar per token. `as` saturates.
        let fresh = usage.input_tokens.saturating_sub(usage.cached_tokens) as f64;
        let nano = fresh * self.input + usage.cached_tokens as f64 * self.cached + usage.output_tokens as f64 * self.output;
        Usage { cost_nano_usd: (nano * 1000.0).round() as u64, ..usage }
    }
}

/// How much an agent's writes may do in a window of time, over all its runs. Beyond it a person is asked.
#[derive(Clone, Debug, PartialEq)]
pub struct EffectBudget {
    /// Its tools: `source.tool`, or `source.*`.
    pub tool: String,
    /// How much.
    pub limit: EffectLimit,
    /// In how long.
    pub window: Duration,
}

/// What an [`EffectBudget`] counts.
#[derive(Clone, Debug, PartialEq)]
pub enum EffectLimit {
    /// So many writes.
    Writes(u32),
    /// So much of a numeric argument, in millionths.
    Sum {
        /// The argument.
        argument: String,
        /// At most.
        max_millionths: i64,
    },
}

impl EffectBudget {
    /// What it is counted under. Another limit counts on from what was counted before.
    pub fn key(&self, agent: &str) -> String {
        let what = match &self.limit {
            EffectLimit::Writes(_) => "writes".to_owned(),
            EffectLimit::Sum { argument, .. } => format!("sum of {argument}"),
        };
        format!("{agent}: {what} of {} in {} s", self.tool, self.window.as_secs())
    }
    /// At most so much.
    pub fn max(&self) -> i64 {
        match &self.limit {
            EffectLimit::Writes(max) => i64::from(*max),
            EffectLimit::Sum { max_millionths, .. } => *max_millionths,
        }
    }
    /// What a call with these arguments counts; none where the argument is missing, or is no amount that can be counted.
    pub fn amount(&self, arguments: &serde_json::Map<String, serde_json::Value>) -> Option<i64> {
        let EffectLimit::Sum { argument, .. } = &self.limit else { return Some(1) };
        let amount = arguments.get(argument)?.as_f64()? * 1e6;
        // Beyond 2^53 millionths a number is not what was written; below zero it would give back what others spent.
        (0.0..=9_007_199_254_740_992.0).contains(&amount).then(|| amount.round() as i64)
    }
}

/// A model that is asked when those before it fail ([`ModelErrorClass::falls_back`](super::model::ModelErrorClass::falls_back)).
#[derive(Clone)]
pub struct Fallback {
    /// The model.
    pub model: Arc<dyn Model>,
    /// What it costs.
    pub price: Option<Price>,
    /// Tokens that it can take in and give in one reply; none: not known.
    pub window: Option<u64>,
}

/// An agent as the operator configured it.
#[derive(Clone)]
pub struct AgentSpec {
    /// Its name.
    pub name: String,
    /// Its model.
    pub model: Arc<dyn Model>,
    /// What the model costs.
    pub price: Option<Price>,
    /// Asked in this order where the model fails.
    pub fallbacks: Vec<Fallback>,
    /// Its instructions.
    pub system: String,
    /// What it is offered: `source.tool`, or `source.*`.
    pub tools: Vec<String>,
    /// Of these, the ones that are switched off: `source.tool`, or `source.*`.
    pub disabled: Vec<String>,
    /// How sensitive data may be that the provider of its model sees.
    pub zone: DataClass,
    /// Tokens that its model can take in and give in one reply; older tool results are shortened to fit. None: not known.
    pub window: Option<u64>,
    /// Model replies in one run.
    pub max_rounds: u32,
    /// Segments of this agent in one process.
    pub concurrency: usize,
    /// The initiator may not release.
    pub second_approver: bool,
    /// How long a person has.
    pub decision_deadline: Option<Duration>,
    /// What happens then.
    pub on_expiry: OnExpiry,
    /// How long a release counts that was not used.
    pub approval_valid_for: Duration,
    /// What its writes may do in a window of time, over all its runs.
    pub effect_budgets: Vec<EffectBudget>,
    /// Tokens that one run may use, sent and received; beyond, it fails before the next model call.
    pub max_tokens: Option<u64>,
    /// What one run may cost, in billionths of a US dollar.
    pub max_cost_nano_usd: Option<u64>,
}

impl AgentSpec {
    /// An agent with the defaults of the configuration file. Several agents may share one model in an [`Arc`].
    pub fn new(name: impl Into<String>, model: impl Model + 'static) -> Self {
        Self {
            name: name.into(),
            model: Arc::new(model),
            price: None,
            fallbacks: Vec::new(),
            system: String::new(),
            tools: Vec::new(),
            disabled: Vec::new(),
            zone: DataClass::default(),
            window: None,
            max_rounds: crate::limits::ROUNDS_DEFAULT,
            concurrency: 16,
            second_approver: false,
            decision_deadline: None,
            on_expiry: OnExpiry::Continue,
            approval_valid_for: Duration::from_secs(24 * 3600),
            effect_budgets: Vec::new(),
            max_tokens: None,
            max_cost_nano_usd: None,
        }
    }
    /// With instructions.
    pub fn system(mut self, text: impl Into<String>) -> Self {
        self.system = text.into();
        self
    }
    /// With tools: `source.tool`, or `source.*`.
    pub fn tools<S: Into<String>>(mut self, patterns: impl IntoIterator<Item = S>) -> Self {
        self.tools = patterns.into_iter().map(Into::into).collect();
        self
    }
    /// Hash of everything that shapes what it does: recorded with runs and cards, shown when it changed.
    pub fn version(&self) -> String {
        let others = self.fallbacks.iter().map(|other| other.model.name());
        let models: Vec<&str> = std::iter::once(self.model.name()).chain(others).collect();
        canonical_hash(&(&self.name, models.join(", then "), &self.system, &self.tools, self.max_rounds))
    }
}

impl fmt::Debug for AgentSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "agent {} ({})", self.name, self.model.name())
    }
}

/// Why agents and tools do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Two tools of one name.
    #[error("two tools are named `{0}`: rename one")]
    ToolTwice(String),
    /// Two agents of one name.
    #[error("two agents are named `{0}`: rename one")]
    AgentTwice(String),
    /// Not `source.tool`.
    #[error("tool name `{0}` is not of the form `source.tool`")]
    BadName(String),
    /// A pattern that names nothing.
    #[error("agent `{agent}` is offered `{pattern}`, and there is no such tool; there are: {known}")]
    NoSuchTool {
        /// The agent.
        agent: String,
        /// The pattern.
        pattern: String,
        /// What there is.
        known: String,
    },
    /// The schema of a tool is not one.
    #[error("tool `{tool}`: its parameters are not a JSON Schema for an object: {why}")]
    BadSchema {
        /// The tool.
        tool: String,
        /// What is wrong.
        why: String,
    },
    /// A person would be asked twice about one call, and only the second time see all of it.
    #[error(
        "tool `{0}` asks for input and for approval: whoever fills in the values of a write releases it; set its approval to \"none\", or \
         take its input away"
    )]
    InputAndApproval(String),
    /// Two names that cannot be told apart on the wire.
    #[error("tools `{0}` and `{1}` have the same name on the wire (`{2}`): rename one")]
    WireCollision(String, String, String),
}

/// Agents and tools of this process.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    agents: BTreeMap<String, Arc<AgentSpec>>,
    tools: BTreeMap<String, RegisteredTool>,
    withheld: BTreeMap<String, String>,
    policy: ToolPolicy,
}

/// Where it is known which agents and tools are in force. Asked before a model is, and before each write is stamped, so that what
/// an operator switches off or changes holds from the next call on.
#[async_trait]
pub trait Authority: Send + Sync {
    /// What is in force now: what was, or another registry.
    ///
    /// # Errors
    /// It is not known, in words. Nothing is called then.
    async fn in_force(&self) -> Result<Arc<Registry>, String>;

    /// Before a model is asked on behalf of an agent with these patterns: finds out, within bounded time, what tools there are that
    /// nobody has looked for yet. True: something was looked for, and what is in force may be another registry.
    async fn look_for(&self, _patterns: &[String]) -> bool {
        false
    }
}

/// The registry in force, which may be replaced while runs are executed. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct InForce(Arc<RwLock<Arc<Registry>>>);

impl InForce {
    pub(crate) fn new(registry: Arc<Registry>) -> Self {
        Self(Arc::new(RwLock::new(registry)))
    }
    /// The one of now.
    pub(crate) fn now(&self) -> Arc<Registry> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
    pub(crate) fn replace(&self, registry: Arc<Registry>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = registry;
    }
}

#[derive(Clone)]
pub(crate) struct RegisteredTool {
    pub(crate) tool: Tool,
    pub(crate) schema: Arc<jsonschema::Validator>,
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tool.fmt(f)
    }
}

/// A name that a pattern names: itself, or a beginning before `*`.
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => pattern == name,
    }
}

impl Registry {
    /// Empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// A name that is taken or malformed, a schema that is none.
    pub fn add_tool(&mut self, tool: impl Into<Tool>) -> Result<(), RegistryError> {
        let tool = tool.into();
        let ToolSpec { name, parameters, .. } = tool.spec();
        match name.split_once('.') {
            Some((source, rest)) if !source.is_empty() && !rest.is_empty() => {}
            _ => return Err(RegistryError::BadName(name.clone())),
        }
        if self.tools.contains_key(name) {
            return Err(RegistryError::ToolTwice(name.clone()));
        }
        let wire = super::model::wire_name::to_wire(name);
        if let Some(other) = self.tools.keys().find(|other| super::model::wire_name::to_wire(other) == wire) {
            return Err(RegistryError::WireCollision(other.clone(), name.clone(), wire));
        }
        let bad = |why: String| RegistryError::BadSchema { tool: name.clone(), why };
        if parameters.get("type").and_then(|t| t.as_str()) != Some("object") {
            return Err(bad("`type` must be `object`".into()));
        }
        let schema = jsonschema::draft202012::new(parameters).map_err(|e| bad(e.to_string()))?;
        if let Some(input) = &tool.spec().input {
            if input.get("type").and_then(|t| t.as_str()) != Some("object") || input.get("properties").is_none() {
                return Err(bad("`input` must be an object with `properties`".into()));
            }
            jsonschema::draft202012::new(input).map_err(|e| bad(format!("`input`: {e}")))?;
            if tool.effect().is_write() && tool.approval() == super::tool::Approval::Required {
                return Err(RegistryError::InputAndApproval(name.clone()));
            }
        }
        let name = name.clone();
        self.tools.insert(name, RegisteredTool { tool, schema: Arc::new(schema) });
        Ok(())
    }

    /// Notes a tool that is not offered, and why: `source.tool`, or `source.*` where not even the names are known. Agents may name
    /// it. A tool of that name that was added is taken away.
    pub fn withhold(&mut self, name: impl Into<String>, why: impl Into<String>) {
        let name = name.into();
        self.tools.remove(&name);
        self.withheld.insert(name, why.into());
    }

    /// Why a tool is not offered that the operator has; none: it is, or there is none.
    pub fn withheld(&self, name: &str) -> Option<&str> {
        if self.tools.contains_key(name) {
            return None;
        }
        let of_source = || self.withheld.iter().find(|(known, _)| matches(known, name)).map(|(_, why)| why);
        self.withheld.get(name).or_else(of_source).map(String::as_str)
    }

    /// Names of tools that are not offered, or `source.*`, with why.
    pub fn all_withheld(&self) -> impl Iterator<Item = (&str, &str)> {
        self.withheld.iter().map(|(name, why)| (name.as_str(), why.as_str()))
    }

    /// Names of the tools that are known and not offered.
    pub fn withheld_names(&self) -> impl Iterator<Item = &str> {
        self.withheld.keys().map(String::as_str).filter(|name| !name.ends_with('*'))
    }

    /// Rules over all agents.
    pub fn set_policy(&mut self, policy: ToolPolicy) {
        self.policy = policy;
    }
    pub(super) fn policy(&self) -> &ToolPolicy {
        &self.policy
    }

    /// Adds an agent; its tools must be there.
    ///
    /// # Errors
    /// A name that is taken, a pattern that matches nothing.
    pub fn add_agent(&mut self, agent: AgentSpec) -> Result<(), RegistryError> {
        if self.agents.contains_key(&agent.name) {
            return Err(RegistryError::AgentTwice(agent.name));
        }
        let is_withheld = |pattern: &str| self.withheld.keys().any(|known| matches(pattern, known) || matches(known, pattern));
        for pattern in &agent.tools {
            if !self.tools.keys().any(|name| matches(pattern, name)) && !is_withheld(pattern) {
                return Err(RegistryError::NoSuchTool {
                    agent: agent.name.clone(),
                    pattern: pattern.clone(),
                    known: if self.tools.is_empty() { "none".into() } else { self.tool_names().collect::<Vec<_>>().join(", ") },
                });
            }
        }
        self.agents.insert(agent.name.clone(), Arc::new(agent));
        Ok(())
    }

    /// The agent of that name.
    pub fn agent(&self, name: &str) -> Option<&Arc<AgentSpec>> {
        self.agents.get(name)
    }
    /// All agents, by name.
    pub fn agents(&self) -> impl Iterator<Item = &Arc<AgentSpec>> {
        self.agents.values()
    }
    /// The tool of that name.
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.get(name).map(|t| &t.tool)
    }
    /// All tools, by name.
    pub fn tools(&self) -> impl Iterator<Item = &Tool> {
        self.tools.values().map(|t| &t.tool)
    }
    /// Names of all tools.
    pub fn tool_names(&self) -> impl Iterator<Item = &str> {
        self.tools.keys().map(String::as_str)
    }
    pub(crate) fn registered(&self, name: &str) -> Option<&RegisteredTool> {
        self.tools.get(name)
    }

    /// What the agent is offered, narrowed by a request's own patterns where it has some.
    pub fn offered(&self, agent: &AgentSpec, narrow: Option<&[String]>) -> Vec<&Tool> {
        self.tools.keys().filter_map(|name| self.verdict(agent, narrow, name).ok()).collect()
    }
}
