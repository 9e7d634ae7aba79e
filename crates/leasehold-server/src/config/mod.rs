//! `leasehold.toml`: where it is found, what it says, and what is in effect.
//!
//! Order: a flag over `LEASEHOLD_*` in the environment over the file over the default. Each error names its file and line, what
//! is wrong and how to mend it, and is raised before anything starts. Secrets are named by their environment variable; no value
//! of one is kept here.

mod budgets;
mod bundled;
mod check;
mod diagnostic;
pub(crate) mod effective;
pub(crate) mod file;
mod files;
mod mcp;
pub(crate) mod models;
mod policy;
pub(crate) mod server;
#[cfg(test)]
mod tests;

pub(crate) use diagnostic::{ConfigError, Stamp};
pub(crate) use effective::{
    Agent, Config, Fetch, Files, Http, KeyringAt, Mcp, Model, ModelKind, Origin, Site, Sql, StoreAt, Webhook,
};

pub(crate) use mcp::may_name;

use diagnostic::Source;
use std::path::{Path, PathBuf};

/// What was found before it was read.
#[derive(Debug)]
pub(crate) struct Found {
    /// The file, where there is one.
    pub(crate) source: Option<Source>,
    /// The user's data directory, for a store that no file places.
    pub(crate) data_dir: PathBuf,
}

/// Finds, reads and checks the configuration. `named`: the file that a flag or `LEASEHOLD_CONFIG` asks for; it must be there.
pub(crate) fn load(named: Option<&Path>, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
    let source = match named {
        Some(path) => Some(Source::read(path)?),
        None => {
            let places = [
                Some(PathBuf::from("leasehold.toml")),
                user_dir(env, "XDG_CONFIG_HOME", ".config").map(|d| d.join("leasehold.toml")),
            ];
            // A file that is there and cannot be read is an error, not a reason to look further.
            let first = places.into_iter().flatten().find(|path| std::fs::symlink_metadata(path).is_ok());
            first.map(|path| Source::read(&path)).transpose()?
        }
    };
    let data_dir = user_dir(env, "XDG_DATA_HOME", ".local/share").unwrap_or_default();
    check::check(&Found { source, data_dir }, env)
}

/// `leasehold` in a directory of the user: what the variable says, else under the home.
fn user_dir(env: &dyn Fn(&str) -> Option<String>, variable: &str, under_home: &str) -> Option<PathBuf> {
    // The XDG rule: a relative path is ignored.
    let named = env(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || env("HOME").filter(|home| !home.is_empty()).map(|home| PathBuf::from(home).join(under_home));
    named.or_else(home).map(|dir| dir.join("leasehold"))
}
