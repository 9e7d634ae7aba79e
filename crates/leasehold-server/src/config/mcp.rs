//! `[[mcp]]`: what can be said of a server before anybody asked it. Which tools it has is known to the store, not to the file.

use super::{diagnostic::ConfigError, effective::Mcp, file::File};
use leasehold::agent::{
    registry::matches,
    tool::mcp::{McpConfig, McpServer},
};
use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};
use toml::Spanned;

/// Keys of a server that can be wrong by their value.
const KEYS: [&str; 14] = [
    "name",
    "command",
    "url",
    "env",
    "headers",
    "oauth",
    "requires_approval",
    "effects",
    "approval",
    "timeout",
    "questions",
    "max_response",
    "error_outcome",
    "idempotency_argument",
];

/// Checks the servers. `base`: what a relative program is relative to; `taken`: sources of other tools, with their places.
pub(super) fn servers(
    file: &File,
    base: &Path,
    taken: &HashMap<&str, String>,
    place: &dyn Fn(&Spanned<McpConfig>, Option<&str>) -> String,
) -> Result<Vec<Mcp>, ConfigError> {
    let mut seen = taken.clone();
    let mut servers = Vec::with_capacity(file.mcp.len());
    for spanned in &file.mcp {
        let mut config = spanned.get_ref().clone();
        // A name without a directory is looked for in PATH.
        if let Some(program) = config.command.as_mut().and_then(|command| command.first_mut()).filter(|p| p.contains('/')) {
            *program = base.join(&*program).display().to_string();
        }
        let places: BTreeMap<String, String> = KEYS.iter().map(|key| ((*key).to_owned(), place(spanned, Some(key)))).collect();
        let mcp = Mcp { config, places, place: place(spanned, None) };
        let at = |key: &str| mcp.at(key).to_owned();
        // With any environment: what is wrong then is wrong everywhere.
        McpServer::new_with_env(mcp.config.clone(), |_| Some("x".into()))
            .map_err(|e| ConfigError::new(at(&e.key), e.to_string()))?;
        if let Some(other) = seen.insert(&spanned.get_ref().name, at("name")) {
            let what = format!("two sources of tools are named `{}`; the other one is at {other}", mcp.config.name);
            return Err(ConfigError::new(at("name"), what).mend("rename one: tools are told apart by it"));
        }
        servers.push(mcp);
    }
    Ok(servers)
}

/// A pattern means a tool that is known. Which tools a server has is not known here: `server.*` stands for any.
pub(crate) fn may_name(pattern: &str, known: &str) -> bool {
    matches(pattern, known) || (known.ends_with('*') && matches(known, pattern))
}
