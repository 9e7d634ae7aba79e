//! Identifiers. A run id is time-ordered (UUIDv7); lease and write ids are random, so that a process
//! recognises its own grant or write after it lost the answer.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{fmt, str::FromStr};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Uuid::from_str(text).map(Self)
            }
        }
    };
}

uuid_id!(
    /// One durable execution of an agent on one request.
    RunId
);
uuid_id!(
    /// One grant of the right to execute a run. New with every grant.
    LeaseId
);
uuid_id!(
    /// Marks the journal entries of one store write, so that its writer finds out whether it was applied.
    WriteId
);

impl RunId {
    /// A new id; ids sort by the time of their creation.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The idempotency key of a call of this run: the same over every repeat of that call, and no other's.
    pub fn idempotency_key(&self, call: &CallId) -> String {
        let hash = Sha256::digest(format!("{}/{}", self.0, call.0));
        let mut key = String::from("lh-");
        for byte in &hash[..16] {
            key.push_str(&format!("{byte:02x}"));
        }
        key
    }
}

impl Default for RunId {
    fn default() -> Self {
        Self::new()
    }
}

impl LeaseId {
    /// A new random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

impl WriteId {
    /// A new random id.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// The id of a write that must happen once however often it is sent, named by its content.
    pub fn of_content(content: &str) -> Self {
        Self(Uuid::new_v5(&Uuid::NAMESPACE_OID, content.as_bytes()))
    }
}

/// A tool call's own id, unique in its run, given by leasehold and never by a model: `t<turn>c<index>`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CallId(pub String);

impl CallId {
    /// The id of call `index` (from 0) of turn `turn` (from 1).
    pub fn of(turn: u32, index: usize) -> Self {
        Self(format!("t{turn}c{index}"))
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
