//! MCP servers of this process: which tools they have, and which of them may be offered.
//!
//! A server is asked for its tools at the first contact; what it says then is taken as it is, and everything that it says
//! otherwise later waits for a person: see [`catalogue`]. What is in force is read anew before the model is asked and before
//! each write: see [`in_force`].

pub(crate) mod catalogue;
pub(crate) mod in_force;
mod lines;
pub(crate) mod logins;
#[cfg(test)]
mod logins_tests;
mod operate;
#[cfg(test)]
mod tests;

pub(crate) use in_force::{InForce, NotKnown};
pub(crate) use lines::{LoginLine, McpLine, McpToolLine};
pub(crate) use operate::{LoggedOut, Probed, Unanswered};

use crate::{
    cli::Use,
    config::{Config, Mcp},
};
use catalogue::{Known, Standing};
use leasehold::agent::tool::{
    Tool,
    mcp::{Definition, Difference, Logins, McpConfigError, McpServer},
};
use lines::line;
use std::{collections::BTreeMap, sync::Arc};

/// What a server's tools come to.
#[derive(Debug, Default)]
pub(crate) struct Offer {
    pub(crate) tools: Vec<Tool>,
    /// Names of tools, or `server.*`, and why they are not offered.
    pub(crate) withheld: Vec<(String, String)>,
    /// What this machine lacks, so that this process cannot use the server.
    pub(crate) lacks: Option<String>,
}

/// The offer of each configured server.
pub(crate) type Offers = BTreeMap<String, Offer>;

/// A configured server, and what this process has of it.
pub(crate) struct Running {
    mcp: Mcp,
    /// Or why this process cannot reach it.
    pub(crate) server: Result<McpServer, String>,
}

/// The servers of this process by name.
pub(crate) struct Servers {
    by_name: BTreeMap<String, Running>,
    logins: Arc<dyn Logins>,
}

impl Servers {
    pub(crate) fn new(logins: Arc<dyn Logins>) -> Self {
        Self { by_name: BTreeMap::new(), logins }
    }

    /// Takes over the configured ones; what is configured as before stays as it is. Gives those that are gone, to be ended.
    pub(crate) fn take(&mut self, configured: &[Mcp], to: Use) -> Vec<McpServer> {
        let mut before = std::mem::take(&mut self.by_name);
        let mut gone = Vec::new();
        for mcp in configured {
            let config = &mcp.config;
            let running = match before.remove(&config.name) {
                Some(running) if running.mcp.config == *config && running.server.is_ok() => {
                    Running { mcp: mcp.clone(), ..running }
                }
                other => {
                    gone.extend(other.and_then(|running| running.server.ok()));
                    let server = match to {
                        Use::Execute => {
                            let logins = Some(Arc::clone(&self.logins));
                            McpServer::new_with_logins(config.clone(), |name| std::env::var(name).ok(), logins)
                        }
                        Use::Declare => McpServer::new_with_env(config.clone(), |_| Some("x".into())),
                    };
                    Running { mcp: mcp.clone(), server: server.map_err(|e| e.to_string()) }
                }
            };
            self.by_name.insert(config.name.clone(), running);
        }
        gone.extend(before.into_values().filter_map(|running| running.server.ok()));
        gone
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Running> {
        self.by_name.get(name)
    }

    /// Those that this process can reach, by name.
    pub(crate) fn reachable(&self) -> impl Iterator<Item = (&String, &McpServer)> {
        self.by_name.iter().filter_map(|(name, running)| Some((name, running.server.as_ref().ok()?)))
    }
}

/// The tools of a server that may be offered, as they are known; of the others, why not.
pub(crate) fn offer(running: &Running, known: &Known) -> Offer {
    let name = &running.mcp.config.name;
    let nothing = |why: String| Offer { withheld: vec![(format!("{name}.*"), why)], ..Offer::default() };
    let server = match &running.server {
        Ok(server) => server,
        Err(why) => return Offer { lacks: Some(why.clone()), ..nothing(why.clone()) },
    };
    if known.server.is_none() {
        return nothing(format!("mcp server `{name}` has not told its tools yet: see `leasehold mcp probe {name}`"));
    }
    if let Some(off) = &known.off {
        return nothing(format!("mcp server `{name}` was switched off by {} at {}", off.by, off.at));
    }
    let mut definitions: Vec<Definition> = Vec::new();
    let mut withheld = Vec::new();
    for (tool, known) in &known.tools {
        match known.standing() {
            Standing::Offered(definition) => definitions.push(definition.clone()),
            standing => withheld.push((format!("{name}.{tool}"), why_not(&standing, name, tool))),
        }
    }
    // The configuration may name tools that are known and not offered now.
    let names = known.tools.keys().map(String::as_str).collect::<Vec<_>>();
    match server.tools_among(&definitions, &names) {
        Ok(offered) => {
            withheld.extend(offered.refused.into_iter().map(|refused| (format!("{name}.{}", refused.tool), refused.why)));
            Offer { tools: offered.tools, withheld, lacks: None }
        }
        Err(McpConfigError { key, why, .. }) => {
            nothing(format!("{}: mcp server `{name}`: `{key}`: {why}", running.mcp.at(&key)))
        }
    }
}

/// The offers of a process that has no store to know them from.
pub(crate) fn unrecorded(config: &Config) -> Offers {
    let one = |name: &String| {
        let why = "what tools it has is known to the store, which was not asked".to_owned();
        (name.clone(), Offer { withheld: vec![(format!("{name}.*"), why)], ..Offer::default() })
    };
    config.mcp.iter().map(|server| one(&server.config.name)).collect()
}

fn why_not(standing: &Standing<'_>, server: &str, tool: &str) -> String {
    let mend = format!("`leasehold mcp acknowledge {server} {tool}` takes it as it is");
    match standing {
        Standing::New(_) => format!("its server offers it since the first contact, and nobody has acknowledged it: {mend}"),
        Standing::Changed(_, differences) => {
            format!("its server describes it otherwise than it was acknowledged ({}): {mend}", told(differences))
        }
        Standing::Gone => format!(
            "its server does not list it any more, or not so that it can be offered: `leasehold mcp probe {server}` says"
        ),
        Standing::Off(off) => format!("it was switched off by {} at {}", off.by, off.at),
        Standing::Offered(_) => String::new(),
    }
}

/// Differences in a line: each place with what was and what is, cut.
fn told(differences: &[Difference]) -> String {
    let value = |value: &Option<serde_json::Value>| match value {
        Some(value) => cut(&value.to_string(), 120),
        None => "nothing".to_owned(),
    };
    let one = |d: &Difference| format!("{}: {} -> {}", cut(&d.path, 120), value(&d.before), value(&d.after));
    let shown: Vec<String> = differences.iter().take(8).map(one).collect();
    let more = differences.len().saturating_sub(shown.len());
    let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join("; "))
}

fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
