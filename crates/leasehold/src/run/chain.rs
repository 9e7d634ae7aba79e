//! The chain that binds a run's journal: each entry's link covers the link before it, and, of the entry, its number, kind, time,
//! principal, and a keyed hash of its payload. The key is the run's own salt, so that erasing a payload leaves the chain whole and
//! tells nothing of what was erased.
//!
//! It is tamper-evident against a head that was exported before: whoever can write the store can write a new chain.

use super::journal::Entry;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;

/// 256 bits, shown and kept in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hash256(pub [u8; 32]);

impl Hash256 {
    /// 256 random bits.
    ///
    /// # Errors
    /// The system gives no random numbers.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Hash256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl std::str::FromStr for Hash256 {
    type Err = hex::FromHexError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; 32];
        hex::decode_to_slice(text, &mut bytes)?;
        Ok(Self(bytes))
    }
}

/// What of the chain stands on the row of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Chain {
    /// The key of the payloads' hashes, random for each run.
    pub salt: Hash256,
    /// The newest link; of a run without entries the salt itself.
    pub head: Hash256,
}

impl Chain {
    /// Of a run that is about to be born.
    pub fn new(salt: Hash256) -> Self {
        Self { salt, head: salt }
    }

    /// The keyed hash of a payload.
    pub fn mac(&self, payload: &[u8]) -> Hash256 {
        // An HMAC takes keys of every length: it has no failing case.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.salt.0) else { return self.salt };
        mac.update(payload);
        Hash256(mac.finalize().into_bytes().into())
    }

    /// Takes in the next entry, whose payload has this hash.
    pub fn link(&mut self, entry: &Entry, mac: Hash256) {
        let mut hash = Sha256::new();
        hash.update(self.head.0);
        hash.update(entry.sequence.to_be_bytes());
        hash.update(entry.at.as_millisecond().to_be_bytes());
        for text in [entry.body.kind(), &entry.body.principal().unwrap_or_default()] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        hash.update(mac.0);
        self.head = Hash256(hash.finalize().into());
    }
}

/// Where a journal and its chain part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChainError {
    /// An older version made the run: it has no chain.
    #[error("the run was made by a version without chains")]
    None,
    /// The content of an entry is not what was recorded.
    #[error("entry {0}: its content was changed")]
    Content(u64),
    /// The entries do not lead to the head on the row.
    #[error("the entries do not lead to the head of the run: an entry was changed, added or taken away")]
    Head,
    /// The entries do not lead to a head that was exported.
    #[error("the entries do not lead to the head that was exported at entry {0}")]
    Exported(u64),
}

/// A head as it is exported: the number of entries and the link after the last of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exported {
    /// So many entries.
    pub sequence: u64,
    /// The link after them.
    pub head: Hash256,
}

/// Compares a whole journal with the chain of its row, and with heads that were exported before.
///
/// # Errors
/// Where they part first.
pub fn verify(chain: Option<&Chain>, entries: &[Entry], exported: &[Exported]) -> Result<Exported, ChainError> {
    let chain = chain.ok_or(ChainError::None)?;
    let mut walked = Chain::new(chain.salt);
    let mut sequence = 0;
    let check = |walked: &Chain, sequence: u64| {
        let wrong = exported.iter().find(|e| e.sequence == sequence && e.head != walked.head);
        wrong.map_or(Ok(()), |e| Err(ChainError::Exported(e.sequence)))
    };
    for entry in entries {
        let mac = entry.mac.ok_or(ChainError::Content(entry.sequence))?;
        if mac != chain.mac(&entry.body.encode()) {
            return Err(ChainError::Content(entry.sequence));
        }
        walked.link(entry, mac);
        sequence = entry.sequence + 1;
        check(&walked, sequence)?;
    }
    if walked.head != chain.head {
        return Err(ChainError::Head);
    }
    match exported.iter().find(|e| e.sequence > sequence) {
        Some(missing) => Err(ChainError::Exported(missing.sequence)),
        None => Ok(Exported { sequence, head: walked.head }),
    }
}
