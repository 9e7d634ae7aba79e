//! What is configured and what of it can run in this process, as lines of a list: agents and tools.

use crate::config::{Agent, Config};
use leasehold::agent::registry::{AgentSpec, Registry, matches};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// An agent.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct AgentLine {
    pub(crate) name: String,
    /// Its model, as it is called in the record.
    pub(crate) model: String,
    /// What it is offered: names, or beginnings before `*`.
    pub(crate) tools: Vec<String>,
    pub(crate) max_rounds: u32,
    pub(crate) require_second_approver: bool,
    /// Why it cannot run here.
    pub(crate) problem: Option<String>,
}

/// A tool.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct ToolLine {
    pub(crate) name: String,
    /// Who provides it: `http`, `site`, ...
    pub(crate) source: Option<String>,
    /// Where it goes, without secrets.
    pub(crate) endpoint: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) effect: Option<String>,
    pub(crate) approval: Option<String>,
    /// The agents that are offered it.
    pub(crate) agents: Vec<String>,
    /// The others, each with the first rule that denies it: its name, and in words.
    pub(crate) denied: BTreeMap<String, DeniedLine>,
    /// The schema of its arguments.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Value>,
    /// Why it cannot run here.
    pub(crate) problem: Option<String>,
}

/// Why an agent is not offered a tool.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct DeniedLine {
    /// `unknown`, `withheld`, `disabled`, `disabled_for_agent`, `not_offered` or `data_class`.
    pub(crate) rule: String,
    /// In words.
    pub(crate) why: String,
}

/// The configured agents.
pub(crate) fn agents(
    config: &Config,
    models: &BTreeMap<String, Result<String, String>>,
    missing: &BTreeMap<String, String>,
) -> Vec<AgentLine> {
    let lines = config.agents.iter().map(|agent| AgentLine {
        name: agent.name.clone(),
        model: match models.get(&agent.model) {
            Some(Ok(shown)) => shown.clone(),
            _ => agent.model.clone(),
        },
        tools: agent.tools.clone(),
        max_rounds: agent.max_rounds,
        require_second_approver: agent.require_second_approver,
        problem: missing.get(&agent.name).cloned(),
    });
    lines.collect()
}

/// The bundled source that a tool is of, by its name, where it is configured; none: another.
fn bundled(config: &Config, name: &str) -> Option<&'static str> {
    let all = [("fetch", config.fetch.is_some()), ("files", config.files.is_some()), ("sql", !config.sql.is_empty())];
    let source = name.split_once('.')?.0;
    all.into_iter().find(|(bundled, is_there)| *is_there && *bundled == source).map(|(bundled, _)| bundled)
}

/// The tools, by name, with what this process has of each.
pub(crate) fn tools(config: &Config, registry: &Registry, missing: &BTreeMap<String, String>) -> Vec<ToolLine> {
    let offered_to = |name: &str| -> Vec<String> {
        let offered = |tools: &[String]| tools.iter().any(|pattern| matches(pattern, name));
        // One that cannot run here has no verdict here.
        let is_offered = |agent: &&Agent| match registry.agent(&agent.name) {
            Some(spec) => registry.verdict(spec, None, name).is_ok(),
            None => offered(&agent.tools),
        };
        config.agents.iter().filter(is_offered).map(|agent| agent.name.clone()).collect()
    };
    let denied_to = |name: &str| -> BTreeMap<String, DeniedLine> {
        let one = |agent: &Arc<AgentSpec>| {
            let denial = registry.verdict(agent, None, name).err()?;
            Some((agent.name.clone(), DeniedLine { rule: denial.name().to_owned(), why: denial.to_string() }))
        };
        registry.agents().filter_map(one).collect()
    };
    let present = registry.tools().map(|tool| {
        let spec = tool.spec();
        ToolLine {
            name: spec.name.clone(),
            source: Some(spec.source.clone()),
            endpoint: Some(spec.endpoint.clone()),
            description: Some(spec.description.clone()),
            effect: Some(tool.effect().as_str().to_owned()),
            approval: Some(tool.approval().as_str().to_owned()),
            agents: offered_to(&spec.name),
            denied: denied_to(&spec.name),
            parameters: Some(spec.parameters.clone()),
            problem: None,
        }
    });
    let absent = missing.iter().map(|(name, why)| ToolLine {
        name: name.clone(),
        source: Some(bundled(config, name).unwrap_or("http").into()),
        endpoint: None,
        description: None,
        effect: None,
        approval: None,
        agents: offered_to(name),
        denied: denied_to(name),
        parameters: None,
        problem: Some(why.clone()),
    });
    let withheld = registry.all_withheld().map(|(name, why)| ToolLine {
        name: name.to_owned(),
        source: Some(bundled(config, name).unwrap_or("mcp").into()),
        endpoint: None,
        description: None,
        effect: None,
        approval: None,
        agents: offered_to(name),
        denied: denied_to(name),
        parameters: None,
        problem: Some(why.to_owned()),
    });
    let mut lines: Vec<_> = present.chain(absent).chain(withheld).collect();
    lines.sort_by(|a, b| a.name.cmp(&b.name));
    lines
}
