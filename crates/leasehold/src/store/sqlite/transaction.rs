//! Work of a transactional tool on the embedded store: on a connection of its own, under the file's write lock from its first look to
//! its commit, one at a time in a process. Everybody else's commit waits for it, so it is bounded: the statements are ended when the
//! time is over, and what was done is undone.
//!
//! While the tool has the connection, an authorizer refuses every statement that names a table of leasehold, ends the transaction or
//! changes a schema. The hooks take the connection `&mut`, which the tool does not have, so it cannot remove them.

use super::{
    busy::{is_busy, patiently},
    change::{self, Content, Tried, now},
    open,
    place::Place,
    turns::Turns,
};
use crate::{
    clock::BootClock,
    store::{
        Answer, Transacted, Transaction, Unavailable, shape,
        transaction::{Conclude, Undone},
    },
};
use rusqlite::{
    Connection, ErrorCode,
    hooks::{AuthAction, AuthContext, Authorization},
};
use serde_json::Value;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{sync::Mutex, task};

/// The store's database, in a transaction that is not the tool's to end. Tables of leasehold cannot be named in it.
pub type SqliteTransaction = Connection;

/// Work on the embedded store; it may be begun again from its beginning. It holds the file's write lock, so it must not wait for
/// anything.
pub type SqliteWork = Arc<dyn Fn(&SqliteTransaction) -> Result<Value, Undone> + Send + Sync>;

/// Tables that are not a tool's, beside SQLite's own. A test compares them with the schema.
const OWN_TABLES: [&str; 8] =
    ["runs", "journal", "artifacts", "workers", "records", "effects", "callers", "refinery_schema_history"];

/// Steps of SQLite's machine between two looks at the time.
const STEPS_BETWEEN_LOOKS: i32 = 1_000;

impl From<rusqlite::Error> for Undone {
    fn from(error: rusqlite::Error) -> Self {
        if is_busy(&error) { Self::Again(error.to_string()) } else { Self::Refused(error.to_string()) }
    }
}

/// The connection for work; none is open until the first.
#[derive(Debug)]
pub(super) struct Tools {
    connection: Arc<Mutex<Option<Connection>>>,
    clock: Arc<dyn BootClock>,
    turns: Arc<Turns>,
    place: Arc<Place>,
}

impl Tools {
    pub(super) fn new(clock: Arc<dyn BootClock>, turns: Arc<Turns>, place: Arc<Place>) -> Self {
        Self { connection: Arc::default(), clock, turns, place }
    }

    /// See [`Store::transact`](crate::store::Store::transact).
    pub(super) async fn transact(&self, transaction: Transaction, work: SqliteWork) -> Result<Transacted, Unavailable> {
        let mut kept = Arc::clone(&self.connection).lock_owned().await;
        let (clock, turns, place) = (Arc::clone(&self.clock), Arc::clone(&self.turns), Arc::clone(&self.place));
        let done = task::spawn_blocking(move || {
            place.check()?;
            let unavailable = |error| place.unavailable(&error);
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => patiently(|| open::connect(place.path(), false)).map_err(unavailable)?,
            };
            // It is this transaction's turn until its value is dropped; others of the process wait, renewals first.
            let turn = patiently(|| {
                let turn = turns.writer();
                connection.execute_batch("BEGIN IMMEDIATE")?;
                Ok(turn)
            });
            let _turn = turn.map_err(unavailable)?;
            let open = Open { connection: &mut connection, clock: &*clock, place: &place };
            let done = open.run(transaction, &work);
            if connection.is_autocommit() {
                *kept = Some(connection);
            }
            // One that would not be rolled back is closed, which undoes what it had open.
            done
        });
        done.await.map_err(|e| Unavailable(format!("{}: the transaction did not finish: {e}", self.place)))?
    }
}

/// A transaction that has begun.
struct Open<'a> {
    connection: &'a mut Connection,
    clock: &'a dyn BootClock,
    place: &'a Place,
}

impl Open<'_> {
    fn run(mut self, transaction: Transaction, work: &SqliteWork) -> Result<Transacted, Unavailable> {
        let Transaction { run, write_id, guard, bound, conclude, .. } = transaction;
        let seen = change::stands_against(self.connection, run, write_id, &guard).map_err(|e| self.place.unavailable(&e));
        let done = match seen {
            // The lock is held: what stands now stands at the commit.
            Ok(None) => self.work(work, bound).and_then(|worked| match worked {
                Ok(value) => self.conclude(value, conclude),
                Err(undone) => Ok(undone),
            }),
            Ok(Some(answer)) => Ok(Transacted::Answered(answer)),
            Err(unavailable) => Err(unavailable),
        };
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::warn!("{}: a transaction was not rolled back, and its connection is closed: {error}", self.place);
        }
        done
    }

    /// What the tool makes of the connection.
    fn work(&mut self, work: &SqliteWork, bound: Duration) -> Result<Result<Value, Transacted>, Unavailable> {
        let deadline = Instant::now() + bound;
        let hooked = |error| self.place.unavailable(&error);
        self.connection.authorizer(Some(allowed)).map_err(hooked)?;
        self.connection.progress_handler(STEPS_BETWEEN_LOOKS, Some(move || Instant::now() >= deadline)).map_err(hooked)?;
        let connection = &*self.connection;
        let worked = catch_unwind(AssertUnwindSafe(|| work(connection)));
        self.connection.progress_handler(0, None::<fn() -> bool>).map_err(hooked)?;
        self.connection.authorizer(None::<fn(AuthContext<'_>) -> Authorization>).map_err(hooked)?;
        Ok(match worked {
            Err(_) => Err(Transacted::broke()),
            Ok(_) if Instant::now() >= deadline => Err(Transacted::too_long(bound)),
            Ok(Err(undone)) => Err(Transacted::Undone(undone)),
            // SQLite undoes by itself where the disk is full or fails.
            Ok(Ok(_)) if self.connection.is_autocommit() => {
                Err(Transacted::Undone(Undone::refused("the database has undone what the tool did")))
            }
            Ok(Ok(value)) => Ok(value),
        })
    }

    fn conclude(&self, value: Value, conclude: Conclude) -> Result<Transacted, Unavailable> {
        let write = conclude(value)?;
        shape::check_write(&write)?;
        let content = Content::of(&write.next, &write.entries);
        let end = match change::try_write(self.connection, &write, &content, &now(self.clock)) {
            Ok(Tried::Written(end)) => end,
            Ok(Tried::Guarded) => return Ok(Transacted::Answered(Answer::Moved)),
            Ok(Tried::Over(budget)) => return Ok(Transacted::Answered(Answer::OverBudget(budget))),
            Err(error) if is_busy(&error) => return Err(self.place.unavailable(&error)),
            Err(error) => return Ok(self.refused(&error)),
        };
        match self.connection.execute_batch("COMMIT") {
            Ok(()) => Ok(Transacted::Answered(Answer::Applied(end))),
            // What the tool's tables want to hold at the end of the transaction does not; it is still open.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                Ok(Transacted::Undone(error.into()))
            }
            // The last thing that a commit writes is what makes it one: without room for all of it there is none.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => Ok(self.refused(&error)),
            Err(error) => Err(self.place.unavailable(&error)),
        }
    }

    fn refused(&self, error: &rusqlite::Error) -> Transacted {
        Transacted::Answered(Answer::Refused(change::refused(self.place, error)))
    }
}

/// What a tool's statement may do: read and change rows of tables that are not leasehold's.
fn allowed(context: AuthContext<'_>) -> Authorization {
    let is_its_own = |table: &str| {
        let table = table.to_ascii_lowercase();
        !table.starts_with("sqlite_") && !OWN_TABLES.contains(&table.as_str())
    };
    let is_allowed = match context.action {
        AuthAction::Select | AuthAction::Recursive | AuthAction::Function { .. } => true,
        AuthAction::Read { table_name, .. }
        | AuthAction::Insert { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Delete { table_name } => is_its_own(table_name),
        // A full text index asks for it.
        AuthAction::Pragma { pragma_name, pragma_value } => pragma_name == "data_version" && pragma_value.is_none(),
        _ => false,
    };
    if is_allowed { Authorization::Allow } else { Authorization::Deny }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new table of leasehold is a tool's to change until it is named here, and in the statement for PostgreSQL.
    #[test]
    fn every_table_of_the_schema_is_kept_from_tools_on_both_databases() {
        let directory = tempfile::tempdir().unwrap();
        let connection = open::prepare(&directory.path().join("leasehold.db")).unwrap();
        let sql = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'";
        let mut statement = connection.prepare(sql).unwrap();
        let mut there: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let mut named = OWN_TABLES.map(str::to_owned).to_vec();
        there.sort();
        named.sort();
        assert_eq!(there, named);
        // The tables are the same there.
        let touched = include_str!("../postgres/sql/touched.sql");
        for table in named {
            assert!(touched.contains(&format!("'{table}'::regclass")), "{table}");
        }
    }
}
