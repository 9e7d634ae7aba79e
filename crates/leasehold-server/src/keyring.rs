//! The keys that seal what lies in the store: where they come from, and that a store which was written sealed is not opened without
//! them. A process without them would take every sealed run for an unreadable one, and settle it.
//!
//! Which keys a store was written with stands in its records before anything is sealed with them; ids only, never a key.

use crate::{
    cli::Failure,
    config::{Config, ConfigError, KeyringAt},
};
use leasehold::{
    limits::{KEYRING_BYTES_MAX, SEALED_KEYS_MAX, SEALED_NOTE_ATTEMPTS_MAX},
    seal::Keyring,
    store::{Record, Store, Unavailable},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeSet, io::Read as _, path::Path, sync::Arc};

/// The variable with the keyring itself.
pub(crate) const VARIABLE: &str = "LEASEHOLD_KEYRING";
/// Of the record, and its key.
const KIND: &str = "seal";
const KEY: &str = "keys";

/// With which keys the store was written.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Sealed {
    keys: BTreeSet<String>,
}

/// Text of a keyring's file; a device or a pipe has no size, so it is read up to the bound.
pub(crate) fn read(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|e| e.to_string())?;
    let mut text = String::new();
    file.take(KEYRING_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > KEYRING_BYTES_MAX {
        return Err(format!("it is longer than {KEYRING_BYTES_MAX} bytes; no more are read"));
    }
    Ok(text)
}

/// The configured keyring; none where there is none. No error repeats what is in it.
pub(crate) fn configured(config: &Config) -> Result<Option<Keyring>, ConfigError> {
    let (text, place) = match &config.keyring.value {
        KeyringAt::Nowhere => return Ok(None),
        KeyringAt::Environment => (std::env::var(VARIABLE).unwrap_or_default(), format!("environment variable {VARIABLE}")),
        KeyringAt::File(path) => {
            let place = format!("{}: {}", config.keyring.origin, path.display());
            let text = read(path).map_err(|e| {
                ConfigError::new(&place, format!("the keyring cannot be read: {e}"))
                    .mend("make a key with `leasehold key create`, or name the file that has the keys")
            })?;
            (text, place)
        }
    };
    Keyring::parse(&text).map(Some).map_err(|e| ConfigError::new(place, e.to_string()))
}

/// The keyring for this store, noted in it. With exit 2 where the store was written with newer keys than are here.
pub(crate) async fn for_store(config: &Config, store: &Arc<dyn Store>) -> Result<Option<Arc<Keyring>>, Failure> {
    let ring = configured(config)?;
    let unreachable = |e: Unavailable| Failure::refused(format!("{e}\n  what was asked was not begun"));
    for _ in 0..SEALED_NOTE_ATTEMPTS_MAX {
        let record = store.record(KIND, KEY).await.map_err(unreachable)?;
        let sealed = match &record {
            None => Sealed::default(),
            Some(record) => serde_json::from_str(&record.body).map_err(|_| {
                Failure::usage(format!("{}: its record of keys does not read, so it is not opened", store.describe()))
            })?,
        };
        let has = |id: &str| ring.as_ref().is_some_and(|ring| ring.ids().any(|known| known == id));
        if let Some(newest) = sealed.keys.last().filter(|id| !has(id)) {
            return Err(missing(config, &store.describe(), newest));
        }
        let Some(newest) = ring.as_ref().and_then(|ring| ring.ids().last()) else { return Ok(None) };
        if sealed.keys.contains(newest) {
            return Ok(ring.map(Arc::new));
        }
        let mut keys = sealed.keys;
        keys.insert(newest.to_owned());
        if keys.len() > SEALED_KEYS_MAX {
            return Err(Failure::usage(format!(
                "{}: it was written with {SEALED_KEYS_MAX} keys already, and takes no further one",
                store.describe()
            )));
        }
        let body = serde_json::to_string(&Sealed { keys }).map_err(|e| Failure::refused(e.to_string()))?;
        let version = record.map_or(0, |record| record.version);
        if store.put_record(Record { version, ..Record::new(KIND, KEY, body) }).await.map_err(unreachable)? {
            return Ok(ring.map(Arc::new));
        }
    }
    Err(Failure::refused(format!("{}: others go on noting keys in it; try again", store.describe())))
}

fn missing(config: &Config, store: &str, newest: &str) -> Failure {
    let mend = match &config.keyring.value {
        KeyringAt::Nowhere => format!(
            "name the keyring that has it: in {} [seal] keyring = \"..\", or its text in {VARIABLE}",
            config.file.as_ref().map_or_else(|| "leasehold.toml".into(), |file| file.display().to_string())
        ),
        KeyringAt::File(path) => format!("add the line of key `{newest}` to {}", path.display()),
        KeyringAt::Environment => format!("add the line of key `{newest}` to {VARIABLE}"),
    };
    Failure::usage(format!(
        "{store}: it was written sealed with key `{newest}`, which this process does not have; nothing was changed\n  {mend}"
    ))
}
