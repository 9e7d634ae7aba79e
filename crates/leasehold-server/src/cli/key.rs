//! `leasehold key`: the keys that seal what lies in the store. A key is never printed.

use super::{Context, Exit, Failure, Outcome};
use crate::{
    config::{ConfigError, KeyringAt},
    keyring::{self, VARIABLE},
    terminal::{self, Screen},
    wire::Page,
};
use leasehold::{limits::NAME_BYTES_MAX, seal::Keyring};
use serde::Serialize;
use std::{
    fs::{File, OpenOptions},
    io::{Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Verbs on keys.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeyCommand {
    /// Add a key to the configured keyring; what is written from then on is sealed with it
    Create {
        /// Its id, which has to sort behind those there are; left out: the date and time
        id: Option<String>,
    },
    /// List the ids of the keys, oldest first
    List,
}

#[derive(Debug, Serialize)]
struct ShownKey {
    id: String,
    /// What is new is sealed with this one.
    seals: bool,
}

/// Executes a verb.
pub(crate) fn key(context: &Context, command: &KeyCommand) -> Outcome {
    match command {
        KeyCommand::Create { id } => create(context, id.as_deref()),
        KeyCommand::List => list(context),
    }
}

fn list(context: &Context) -> Outcome {
    let ring = keyring::configured(&context.config)?;
    let mut keys: Vec<ShownKey> =
        ring.iter().flat_map(Keyring::ids).map(|id| ShownKey { id: id.to_owned(), seals: false }).collect();
    if let Some(newest) = keys.last_mut() {
        newest.seals = true;
    }
    if context.json {
        terminal::print_json(&Page::whole(keys))?;
        return Ok(Exit::Done);
    }
    if keys.is_empty() {
        terminal::note("no keyring is configured: what lies in the store is not sealed");
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> =
        keys.into_iter().map(|key| vec![key.id, if key.seals { "seals what is new".into() } else { "opens".into() }]).collect();
    let mut screen = Screen::stdout();
    screen.table(&["key", "use"], &rows);
    screen.print()?;
    Ok(Exit::Done)
}

fn create(context: &Context, id: Option<&str>) -> Outcome {
    let config = &context.config;
    let (path, is_configured) = match &config.keyring.value {
        KeyringAt::Environment => {
            let what = format!("the keyring is in the environment variable {VARIABLE}, and no command can write there");
            return Err(ConfigError::new(VARIABLE, what)
                .mend("make the key without the variable, and put its line there")
                .into());
        }
        KeyringAt::File(path) => (path.clone(), true),
        // Beside the configuration that is to name it.
        KeyringAt::Nowhere => match &config.file {
            Some(file) => (file.with_file_name("leasehold.keyring"), false),
            None => (config.data_dir.join("leasehold.keyring"), false),
        },
    };
    let id = match id {
        Some(id) => id.to_owned(),
        None => jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%S").to_string(),
    };
    let plain = id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
    if id.is_empty() || id.len() > NAME_BYTES_MAX || !plain {
        let rule = format!("an id has 1 to {NAME_BYTES_MAX} characters of a to z, A to Z, 0 to 9 and - _");
        return Err(Failure::usage(format!("`{id}` is no id of a key: {rule}")));
    }
    append(&path, &id)?;
    if context.json {
        terminal::print_json(&serde_json::json!({ "id": id, "keyring": path.display().to_string() }))?;
    } else {
        terminal::note(format!("key `{id}` is in {}; keep a copy of that file away from the store", path.display()));
    }
    if !is_configured {
        let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
        let file = config.file.clone().unwrap_or_else(|| PathBuf::from("leasehold.toml"));
        let named = if config.file.is_some() { name } else { path.display().to_string() };
        terminal::note(format!(
            "nothing is sealed with it yet: end every process of this store, and put into {}:",
            file.display()
        ));
        terminal::note("[seal]");
        terminal::note(format!("keyring = \"{named}\""));
    } else {
        terminal::note(
            "processes that run seal with it once they are started anew; give every one of them the new keyring first",
        );
    }
    Ok(Exit::Done)
}

/// Adds the line of a new key, whole and on the disk, or nothing.
fn append(path: &Path, id: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| Failure::refused(format!("{}: {e}", path.display()));
    let wrong = |why: String| Failure::usage(format!("{}: {why}; nothing was changed", path.display()));
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map_err(failed)?;
    // Two that add at once do it one after the other.
    file.lock().map_err(failed)?;
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() || about.mode() & 0o077 != 0 {
        return Err(wrong("it is not a file that its owner alone can read: chmod 600".into()));
    }
    let mut text = String::new();
    (&file).take(leasehold::limits::KEYRING_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
    if !text.trim().is_empty() {
        let ring = Keyring::parse(&text).map_err(|e| wrong(e.to_string()))?;
        if ring.ids().any(|known| known == id) {
            return Err(wrong(format!("there is a key `{id}` already")));
        }
        // What is new is sealed with the greatest id.
        if let Some(newest) = ring.ids().last().filter(|newest| *newest > id) {
            return Err(wrong(format!("`{id}` sorts before key `{newest}`, so nothing would ever be sealed with it")));
        }
    }
    let line = Keyring::new_line(id).map_err(|e| Failure::refused(e.to_string()))?;
    let line = if text.is_empty() || text.ends_with('\n') { line } else { format!("\n{line}") };
    if text.len() + line.len() > usize::try_from(leasehold::limits::KEYRING_BYTES_MAX).unwrap_or(usize::MAX) {
        return Err(wrong("it is full".into()));
    }
    if let Err(error) = file.write_all(line.as_bytes()).and_then(|()| file.sync_all()) {
        // Half a line would make the other keys unreadable.
        file.set_len(about.len()).map_err(failed)?;
        return Err(failed(error));
    }
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}
