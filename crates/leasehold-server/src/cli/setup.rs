//! From the configuration to what this process can execute. What cannot be set up here (a key that is not in the environment, a
//! script that is not there) takes away the agents that need it and nothing else: another process may have it.

use super::context::env;
use crate::{
    config::{Config, ConfigError, Model, ModelKind, Origin, models::in_turn},
    mcp::{Offer, Offers},
    terminal,
};
use leasehold::agent::{
    model::{
        Model as AgentModel,
        limited::{Limited, ModelLimits},
        provider::{ProviderConfig, ProviderModel},
        scripted::ScriptedModel,
    },
    registry::{AgentSpec, Fallback, Registry, RegistryError},
    tool::{
        Approval, Tool,
        fetch::Fetch,
        files::Files,
        http::HttpTool,
        site::{Site, SiteApprovals},
        sql::SqlTool,
    },
};
use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};
use tokio::runtime::{Handle, RuntimeFlavor};

/// The script there is when nothing else is configured.
const DEFAULT_SCRIPT: &str = include_str!("default_script.toml");

/// Longest time that a database is asked for whether it may be queried; each call asks again.
const FIT_PATIENCE: Duration = Duration::from_secs(3);

/// What this process can execute, and what it cannot.
#[derive(Debug, Default)]
pub(crate) struct Executable {
    /// Agents and tools that can run.
    pub(crate) registry: Arc<Registry>,
    /// Agents that cannot, and why.
    pub(crate) missing_agents: BTreeMap<String, String>,
    /// Tools that cannot, and why.
    pub(crate) missing_tools: BTreeMap<String, String>,
    /// Models by name, as they are called in the record; or why there is none.
    pub(crate) models: BTreeMap<String, Result<String, String>>,
}

/// What the configured agents and tools are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To be executed by this process.
    Execute,
    /// To be known by name, schema and version: a secret or a script that only who executes needs may be missing, and nothing is called.
    Declare,
}

/// Sets up what can be set up.
///
/// # Errors
/// A configuration that is wrong wherever it is used; what only this process lacks is no error.
pub(crate) fn executable(config: &Config, to: Use, mcp: Offers) -> Result<Executable, ConfigError> {
    executable_with(config, to, mcp, &mut Models::default())
}

/// Models that were set up before, by how they are configured.
pub(crate) type Models = BTreeMap<String, Arc<dyn AgentModel>>;

/// The same with models that were set up before: one that is configured as it was goes on with its limits.
///
/// # Errors
/// As [`executable`].
pub(crate) fn executable_with(config: &Config, to: Use, mcp: Offers, before: &mut Models) -> Result<Executable, ConfigError> {
    let mut registry = Registry::new();
    let mut missing_tools = BTreeMap::new();
    for http in &config.http {
        let name = http.tool.name.clone();
        // First with any environment: what is wrong then is wrong everywhere.
        let wrong = |key: &str, why: String| {
            let head = key.split('.').next().unwrap_or(key);
            ConfigError::new(http.places.get(head).unwrap_or(&http.place), format!("tool `{name}`: `{key}`: {why}"))
        };
        HttpTool::build_with_env(http.tool.clone(), |_| Some("x".into())).map_err(|e| wrong(&e.key, e.why))?;
        let build = match to {
            Use::Execute => HttpTool::build(http.tool.clone()),
            Use::Declare => HttpTool::build_with_env(http.tool.clone(), |_| Some("x".into())),
        };
        match build {
            Ok(tool) => {
                let schema = http.places.get("parameters").unwrap_or(&http.place);
                registry.add_tool(tool).map_err(|e| {
                    let place = if matches!(e, RegistryError::BadSchema { .. }) { schema } else { &http.place };
                    ConfigError::new(place, e.to_string())
                })?;
            }
            Err(e) => {
                missing_tools.insert(name, e.to_string());
            }
        }
    }
    for tool in site(config)? {
        registry.add_tool(tool).map_err(|e| ConfigError::new("the bundled site", e.to_string()))?;
    }
    if let Some(configured) = &config.files {
        match Files::open(&configured.root) {
            Ok(files) => {
                let mut tools = files.read_tools();
                if configured.write {
                    let word = |name: &str| configured.approval.get(name).copied().unwrap_or(Approval::Required);
                    tools.extend(files.write_tools(word("files.write"), word("files.edit")));
                }
                for tool in tools {
                    registry.add_tool(tool).map_err(|e| ConfigError::new(configured.origin.to_string(), e.to_string()))?;
                }
            }
            Err(error) => registry.withhold("files.*", format!("the directory of [tool.files]: {error}")),
        }
    }
    if let Some(configured) = &config.fetch {
        let wrong = |what: String| ConfigError::new(configured.origin.to_string(), what);
        let tool = Fetch::tool(&configured.config).map_err(|e| wrong(e.to_string()))?;
        registry.add_tool(tool).map_err(|e| wrong(e.to_string()))?;
    }
    for sql in &config.sql {
        let name = format!("sql.{}", sql.config.name);
        let opened = match to {
            Use::Execute => SqlTool::open(&sql.config, &sql.base, env),
            Use::Declare => Ok(SqlTool::declare(&sql.config)),
        };
        match opened {
            Ok(tool) => {
                registry.add_tool(tool).map_err(|e| ConfigError::new(&sql.place, e.to_string()))?;
                if to == Use::Execute
                    && let Err(why) = off_the_executor(|| SqlTool::fit(&sql.config, &sql.base, env, FIT_PATIENCE))
                {
                    registry.withhold(name, format!("{}: {why}", sql.url_place));
                }
            }
            Err(e) => {
                missing_tools.insert(name, format!("{}: {e}", sql.url_place));
            }
        }
    }
    registry.set_policy(config.policy.clone());
    let missing_servers: BTreeMap<String, String> =
        mcp.iter().filter_map(|(name, offer)| Some((format!("{name}."), offer.lacks.clone()?))).collect();
    for tool in mcp.into_values().flat_map(|offer| register(offer, &mut registry)) {
        tracing::warn!(tool = %tool.0, "a tool of an MCP server is not offered: {}", tool.1);
    }
    let mut models = BTreeMap::new();
    let mut built: BTreeMap<&str, Arc<dyn AgentModel>> = BTreeMap::new();
    let set_up_before = std::mem::take(before);
    for model in &config.models {
        // Has names of variables, never what is in them. A script may be another by now, and has no limits to keep.
        let key = format!("{model:?}");
        let kept = set_up_before.get(&key).filter(|_| model.limits != ModelLimits::default()).map(Arc::clone);
        match kept.map_or_else(|| build(model, to), Ok) {
            Ok(ready) => {
                let ready: Arc<dyn AgentModel> = match model.limits {
                    limits if limits == ModelLimits::default() || set_up_before.contains_key(&key) => ready,
                    limits => Arc::new(Limited::new(ready, limits)),
                };
                before.insert(key, Arc::clone(&ready));
                models.insert(model.name.clone(), Ok(ready.name().to_owned()));
                built.insert(&model.name, ready);
            }
            Err(why) => {
                models.insert(model.name.clone(), Err(why));
            }
        }
    }
    let mut missing_agents = BTreeMap::new();
    for agent in &config.agents {
        let lost = missing_tools.iter().find(|(name, _)| agent.tools.iter().any(|pattern| offers(pattern, name)));
        // Which tools a server has is not in the configuration: an agent that names any of them needs it.
        let names = |prefix: &str| agent.tools.iter().any(|pattern| pattern.starts_with(prefix));
        let lost = lost.or_else(|| missing_servers.iter().find(|(prefix, _)| names(prefix)));
        // Its fallbacks too: an agent that only seems to have them is found out on the day they are needed.
        let turn = in_turn(&config.models, &agent.model);
        let unset = turn.iter().find_map(|model| models.get(&model.name)?.as_ref().err());
        let mut asked = turn.iter().filter_map(|m| built.get(m.name.as_str()).map(|model| (model.clone(), m.price, m.window)));
        let why = match (asked.next(), unset, lost) {
            (_, Some(why), _) => why.clone(),
            (Some(_), _, Some((_, why))) => why.clone(),
            (None, ..) => format!("there is no model `{}`", agent.model),
            (Some((model, price, window)), ..) => {
                let spec = AgentSpec {
                    disabled: agent.disabled.clone(),
                    // What a fallback's provider may not see, the first one's may not either: it may be sent on.
                    zone: turn.iter().map(|model| model.zone).min().unwrap_or_default(),
                    price,
                    fallbacks: asked.map(|(model, price, window)| Fallback { model, price, window }).collect(),
                    window,
                    max_rounds: agent.max_rounds,
                    concurrency: usize::try_from(agent.concurrency).unwrap_or(usize::MAX),
                    second_approver: agent.require_second_approver,
                    decision_deadline: agent.decision_deadline,
                    on_expiry: agent.on_decision_expired,
                    approval_valid_for: agent.approval_valid_for,
                    max_tokens: agent.limits.max_tokens,
                    max_cost_nano_usd: agent.limits.max_cost_nano_usd,
                    effect_budgets: agent.limits.effect_budgets.clone(),
                    ..AgentSpec::new(&agent.name, model.clone()).system(&agent.system).tools(&agent.tools)
                };
                let place = agent.origin.to_string();
                match registry.add_agent(spec) {
                    Ok(()) => continue,
                    // What tools a server has is not in the configuration, and another store may know it otherwise.
                    Err(error @ RegistryError::NoSuchTool { .. }) if !config.mcp.is_empty() => format!("{place}: {error}"),
                    Err(error) => return Err(ConfigError::new(place, error.to_string())),
                }
            }
        };
        missing_agents.insert(agent.name.clone(), why);
    }
    Ok(Executable { registry: Arc::new(registry), missing_agents, missing_tools, models })
}

/// Lets the tasks of this thread go on elsewhere while it waits, where there are threads to go to.
fn off_the_executor<T>(wait: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(runtime) if runtime.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(wait),
        _ => wait(),
    }
}

/// Adds a server's tools; gives those that cannot be added, and why.
fn register(offer: Offer, registry: &mut Registry) -> Vec<(String, String)> {
    let mut refused = Vec::new();
    for tool in offer.tools {
        let name = tool.spec().name.clone();
        if let Err(error) = registry.add_tool(tool) {
            registry.withhold(&name, error.to_string());
            refused.push((name, error.to_string()));
        }
    }
    for (name, why) in offer.withheld {
        registry.withhold(name, why);
    }
    refused
}

/// A pattern of an agent covers a tool.
pub(crate) fn offers(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix))
}

fn build(model: &Model, to: Use) -> Result<Arc<dyn AgentModel>, String> {
    match &model.kind {
        ModelKind::Scripted { .. } if to == Use::Declare => {
            ScriptedModel::from_toml(&model.name, DEFAULT_SCRIPT).map(|m| Arc::new(m) as _).map_err(|e| e.to_string())
        }
        ModelKind::Scripted { script: None } => {
            ScriptedModel::from_toml(&model.name, DEFAULT_SCRIPT).map(|m| Arc::new(m) as _).map_err(|e| e.to_string())
        }
        ModelKind::Scripted { script: Some(path) } => {
            let text = std::fs::read_to_string(path).map_err(|e| {
                format!("{}: model `{}`: the script {} cannot be read: {e}", model.origin, model.name, path.display())
            })?;
            ScriptedModel::from_toml(&model.name, &text)
                .map(|m| Arc::new(m) as _)
                .map_err(|e| format!("{}:{}: {}", path.display(), e.line, e.why))
        }
        ModelKind::Provider { provider, model: id, base_url, api_key_env, timeout, stream } => {
            let api_key = match api_key_env {
                None => None,
                Some(_) if to == Use::Declare => Some("none".to_owned()),
                Some(variable) => Some(env(variable).filter(|key| !key.trim().is_empty()).ok_or_else(|| {
                    format!("{}: model `{}`: the environment variable {variable} is not set", model.origin, model.name)
                })?),
            };
            let config = ProviderConfig {
                base_url: base_url.clone(),
                api_key: api_key.map(Into::into),
                timeout: *timeout,
                stream: *stream,
                ..ProviderConfig::new(&model.name, provider, id)
            };
            ProviderModel::new(config).map(|m| Arc::new(m) as _).map_err(|e| format!("{}: {e}", model.origin))
        }
    }
}

/// Says on standard error which model answers where no configuration chose one.
pub(crate) fn announce(config: &Config, agent_model: &str) {
    let Some(model) = config.models.iter().find(|m| m.name == agent_model) else { return };
    match (&model.kind, &model.origin) {
        (ModelKind::Scripted { script: None }, _) => terminal::note(
            "no model is configured and no provider's key is in the environment: a scripted model answers, which plays a fixed \
             script whatever it is asked",
        ),
        (ModelKind::Provider { provider, model, .. }, Origin::Env(variable)) => {
            terminal::note(format!(
                "no model is configured: {provider} {model} answers, because {variable} is in the environment"
            ));
        }
        _ => {}
    }
}

fn site(config: &Config) -> Result<Vec<Tool>, ConfigError> {
    let Some(site) = &config.site else { return Ok(Vec::new()) };
    let wrong = |what: String| ConfigError::new(site.origin.to_string(), what);
    if site.origin == Origin::Default {
        make_directory(&site.path).map_err(|e| wrong(format!("the bundled site {}: {e}", site.path.display())))?;
    }
    let open = Site::open(&site.path).map_err(|e| wrong(format!("{}: {e}", site.path.display())))?;
    Ok(open.tools_with(site_approvals(&site.approval)))
}

/// The operator's word on who releases what, with the rule for the rest.
pub(crate) fn site_approvals(said: &BTreeMap<String, Approval>) -> SiteApprovals {
    let mut approvals = SiteApprovals::default();
    for (name, approval) in said {
        match name.as_str() {
            "site.update_page_metadata" => approvals.update = *approval,
            "site.create_page" => approvals.create = *approval,
            // Checked when the configuration was read.
            _ => {}
        }
    }
    approvals
}

/// Makes the directory of a file that nobody placed: the user's own, for the user alone.
pub(crate) fn make_directory(file: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::agent::policy::DataClass;

    #[test]
    fn every_limit_of_an_agent_reaches_what_executes_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("leasehold.toml");
        let text = r#"
[[model]]
name = "m"
provider = "openai"
model = "x"
api_key_env = "K"
price = { input = 1, output = 2 }
[[agent]]
name = "a"
model = "m"
tools = ["site.*"]
max_tokens = 9
max_cost = 0.5
effect_budgets = [{ tool = "site.create_page", max_writes = 2, window = "1h" }]
"#;
        std::fs::write(&file, text).unwrap();
        let config = crate::config::load(Some(&file), &|_| None).unwrap();
        let ready = executable(&config, Use::Declare, Offers::new()).unwrap();
        assert_eq!(ready.missing_agents, BTreeMap::new());
        let agent = ready.registry.agent("a").unwrap();
        assert_eq!((agent.max_tokens, agent.max_cost_nano_usd), (Some(9), Some(500_000_000)));
        assert_eq!(agent.effect_budgets, config.agents[0].limits.effect_budgets);
        assert_eq!(agent.effect_budgets.len(), 1);
    }

    #[test]
    fn an_agent_may_see_what_the_least_trusted_of_its_models_may() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("leasehold.toml");
        let model = |name: &str, more: &str| {
            format!("[[model]]\nname = '{name}'\nprovider = 'openai'\nmodel = 'x'\napi_key_env = 'K'\n{more}\n")
        };
        let placed = "zone = 'confidential'";
        let text = model("m", &format!("{placed}\nfallback = ['n']")) + &model("n", "") + &model("o", placed);
        let agents = "[[agent]]\nname = 'a'\nmodel = 'm'\n[[agent]]\nname = 'b'\nmodel = 'o'\n";
        std::fs::write(&file, text + agents).unwrap();
        let config = crate::config::load(Some(&file), &|_| None).unwrap();
        let ready = executable(&config, Use::Declare, Offers::new()).unwrap();
        let zone = |agent: &str| ready.registry.agent(agent).unwrap().zone;
        assert_eq!((zone("a"), zone("b")), (DataClass::Public, DataClass::Confidential));
    }
}
