//! The work of a transactional tool: statements in the store's own database that are committed in the very transaction which journals
//! what they came to. There is either both or neither, whoever dies when, so such a call is never in doubt.
//!
//! The store makes the transaction, on a connection of its own, and nothing else does: a tool only says what is to be done in it. The
//! guard of the write (epoch, lease, sequence) holds when the transaction commits, or all of it is undone.

use super::{Answer, Guard, Unavailable, Write};
use crate::run::{RunId, WriteId};
use futures::future::BoxFuture;
use serde_json::Value;
use std::{fmt, sync::Arc, time::Duration};

pub use super::{
    postgres::PostgresTransaction,
    sqlite::{SqliteTransaction, SqliteWork},
};
/// The driver whose types a [`PostgresTransaction`] takes and gives.
pub use ::tokio_postgres;
/// The driver whose connection a [`SqliteTransaction`] is.
pub use rusqlite;

/// Work on PostgreSQL; it may be begun again from its beginning.
pub type PostgresWork = Arc<dyn Fn(PostgresTransaction) -> BoxFuture<'static, Result<Value, Undone>> + Send + Sync>;

/// What is done in the transaction, in the dialect of its database.
#[derive(Clone)]
pub enum Work {
    /// On the embedded store.
    Sqlite(SqliteWork),
    /// On PostgreSQL.
    Postgres(PostgresWork),
}

impl Work {
    /// Which database it needs.
    pub fn database(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "SQLite",
            Self::Postgres(_) => "PostgreSQL",
        }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "work on {}", self.database())
    }
}

/// Why work is not there: its transaction was rolled back. A database's error becomes one with `?`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undone {
    /// The tool or its database says no; for the model.
    #[error("{0}")]
    Refused(String),
    /// It fell to another transaction, or to a lost connection: the same may go through.
    #[error("{0}")]
    Again(String),
}

impl Undone {
    /// The tool says no.
    pub fn refused(why: impl Into<String>) -> Self {
        Self::Refused(why.into())
    }
}

/// The guarded write that journals what the work came to, made of its result while the transaction is open. It must not block.
pub type Conclude = Box<dyn FnOnce(Value) -> Result<Write, Unavailable> + Send>;

/// Work, and the guarded write that goes with it.
pub struct Transaction {
    /// Of this run.
    pub run: RunId,
    /// The write's id.
    pub write_id: WriteId,
    /// The write's guard.
    pub guard: Guard,
    /// What is done before it.
    pub work: Work,
    /// How long it may take; then it is undone.
    pub bound: Duration,
    /// Makes the write.
    pub conclude: Conclude,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} for run {}", self.work, self.run)
    }
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transacted {
    /// Of the guarded write. Applied: the work is there with it. Everything else: neither is by this transaction; where an earlier
    /// one of the same write id is there, it is `Moved`.
    Answered(Answer),
    /// The work was not done, and nothing of it is there.
    Undone(Undone),
    /// This store is not the database that the work needs; it was not begun.
    NoDatabase(String),
}

impl Transacted {
    pub(super) fn no_database(store: &str, work: &Work) -> Self {
        Self::NoDatabase(format!("the tool writes to {}, and the record of this run is in {store}", work.database()))
    }

    /// Work that was cut off.
    pub(super) fn too_long(bound: Duration) -> Self {
        Self::Undone(Undone::Refused(format!("it took longer than {} s and was undone", bound.as_secs_f32())))
    }

    pub(super) fn broke() -> Self {
        Self::Undone(Undone::refused("the tool broke in the middle of the call, and what it had done was undone"))
    }
}
