//! What every local command needs: the configuration, how to print, and who asks.

use super::{Failure, Global};
use crate::{config::Config, terminal};
use leasehold::run::Principal;
use std::{io, path::Path};

/// A command's surroundings.
#[derive(Debug)]
pub(crate) struct Context {
    /// What is in effect.
    pub(crate) config: Config,
    /// Print JSON.
    pub(crate) json: bool,
    /// How this program was called, for commands that are shown to people.
    pub(crate) command: String,
}

/// The environment, as text; a value that is no text counts as unset. Our own variables are checked when the configuration is read.
pub(crate) fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Context {
    /// Reads the configuration.
    pub(crate) fn load(global: &Global) -> Result<Self, Failure> {
        let named = global.config.as_deref().filter(|path| !path.as_os_str().is_empty());
        if let Some(name) = unreadable_variable() {
            return Err(Failure::usage(format!("environment variable {name}: its value is not text in UTF-8")));
        }
        let config = crate::config::load(named, &env)?;
        Ok(Self { config, json: global.json, command: command(named) })
    }

    /// Whoever opens the store owns it: a person, named after the account of this process.
    pub(crate) fn principal() -> Principal {
        Principal::person(format!("local:{}", account()))
    }
}

/// A variable of ours whose value is no text. Taken for unset it would put the default, such as another store, in its place. The
/// name of the configuration file may be any name.
fn unreadable_variable() -> Option<String> {
    let of_ours = |name: &str| name.starts_with("LEASEHOLD_") && name != "LEASEHOLD_CONFIG";
    let wrong = std::env::vars_os().filter(|(_, value)| value.to_str().is_none());
    wrong.filter_map(|(name, _)| name.into_string().ok()).find(|name| of_ours(name))
}

/// How to call this program again with the same configuration.
fn command(named: Option<&Path>) -> String {
    match named {
        // From the environment it is there the next time too.
        Some(path) if env("LEASEHOLD_CONFIG").as_deref().map(Path::new) != Some(path) => {
            let path = path.display().to_string();
            let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+".contains(c));
            if plain {
                format!("leasehold --config {path}")
            } else {
                format!("leasehold --config '{}'", path.replace('\'', "'\\''"))
            }
        }
        _ => "leasehold".into(),
    }
}

/// The name of the account this process runs under; its number where the machine has no name for it. The environment is not
/// asked: it says whatever it likes.
fn account() -> String {
    let uid = rustix::process::getuid().as_raw();
    std::fs::read_to_string("/etc/passwd").ok().and_then(|text| account_in(&text, uid)).unwrap_or_else(|| uid.to_string())
}

fn account_in(passwd: &str, uid: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    })
}

/// Sends the log to standard error: warnings, or what `LEASEHOLD_LOG` asks for. What the provider library says is in the error
/// that its caller prints.
pub(crate) fn log() {
    let asked = env("LEASEHOLD_LOG").filter(|filter| !filter.trim().is_empty());
    let filter = asked.and_then(|filter| {
        let parsed = tracing_subscriber::EnvFilter::try_new(&filter);
        parsed.map_err(|e| terminal::note(format!("LEASEHOLD_LOG: `{filter}` is not a filter ({e}); warnings are shown"))).ok()
    });
    // At its lower levels the library writes down what servers say, and codes that are exchanged for tokens.
    let quiet = "rmcp=warn".parse().ok();
    let filter = filter.map(|filter| quiet.into_iter().fold(filter, tracing_subscriber::EnvFilter::add_directive));
    let filter = filter.unwrap_or_else(|| tracing_subscriber::EnvFilter::new("warn,genai=off,rmcp=error"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Visible).init();
}

/// Makes log lines safe for a terminal like everything else that is printed.
struct Visible;

impl io::Write for Visible {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // One call is one event; its last line end is ours.
        let text = String::from_utf8_lossy(bytes);
        for line in text.trim_end_matches('\n').split('\n') {
            terminal::note(line);
        }
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_account_is_found_by_its_number() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000::/home/ann:/bin/sh\n";
        assert_eq!(account_in(passwd, 1000).as_deref(), Some("ann"));
        assert_eq!(account_in(passwd, 1001), None);
    }

    #[test]
    fn commands_that_are_shown_repeat_the_configuration() {
        assert_eq!(command(Some(Path::new("/etc/lh.toml"))), "leasehold --config /etc/lh.toml");
        assert_eq!(command(Some(Path::new("my file.toml"))), "leasehold --config 'my file.toml'");
        assert_eq!(command(None), "leasehold");
    }
}
