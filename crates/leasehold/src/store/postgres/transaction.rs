//! Work of a transactional tool on PostgreSQL: in a transaction on a connection of its own, with the guarded write as its last
//! statement. No row of leasehold is locked while the tool works, so a renewal, a cancel and every other run's commit go on; the guard
//! is judged at the end, under the row's lock, and where it does not hold all of it is undone.
//!
//! The tool has statements, not the connection: one at a time, and none that begins or ends a transaction or changes its session. Before
//! the guarded write its deferred constraints are checked, and what it has locked is looked at: where a table of leasehold is among it,
//! the work is undone.

use super::{
    PostgresStore,
    charge::Tried,
    claim::STANDS_AT_MOST,
    committer::{self, Encoded, LOCKED_PATIENCE, until_unlocked},
    connections::{Again, Failed, Query as _, Transaction as OpenTransaction},
    row,
    sql::{self, Params},
};
use crate::store::{
    Answer, Transacted, Transaction, Unavailable, Write, shape,
    transaction::{PostgresWork, Undone},
};
use backon::Retryable as _;
use futures::FutureExt as _;
use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Instant};
use tokio::sync::Mutex;
use tokio_postgres::{Row, types::ToSql};

/// What a tool's statement begins with.
const STATEMENTS: [&str; 7] = ["select", "insert", "update", "delete", "merge", "with", "values"];

/// What the tool has of the transaction.
struct Lent {
    transaction: OpenTransaction,
    /// Why a statement failed: PostgreSQL takes no further one then.
    failed: Option<Undone>,
}

/// The store's database, in a transaction that is not the tool's to end. Clones are the same transaction, which is over with the call.
#[derive(Clone)]
pub struct PostgresTransaction(Arc<Mutex<Option<Lent>>>);

impl fmt::Debug for PostgresTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a transaction of a tool")
    }
}

impl PostgresTransaction {
    /// Runs one statement (SELECT, INSERT, UPDATE, DELETE, MERGE, WITH or VALUES) with its parameters (`$1`), and gives its rows. One
    /// that fails ends the work: the tool's result does not count then.
    ///
    /// # Errors
    /// Another kind of statement, one that the database refuses, a connection that is lost, a call that is over.
    pub async fn query(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Undone> {
        self.run(statement, async |transaction| transaction.rows(statement, parameters).await).await
    }

    /// The same, and gives the number of rows that it changed.
    ///
    /// # Errors
    /// As for `query`.
    pub async fn execute(&self, statement: &str, parameters: &[&(dyn ToSql + Sync)]) -> Result<u64, Undone> {
        self.run(statement, async |transaction| transaction.changed(statement, parameters).await).await
    }

    async fn run<T>(&self, statement: &str, run: impl AsyncFnOnce(&OpenTransaction) -> Result<T, Failed>) -> Result<T, Undone> {
        let mut lent = self.0.lock().await;
        let Some(lent) = lent.as_mut() else { return Err(Undone::refused("the call is over, and its transaction with it")) };
        if let Some(failed) = &lent.failed {
            return Err(failed.clone());
        }
        let answer = if is_statement(statement) {
            run(&lent.transaction).await.map_err(Undone::from)
        } else {
            let may = STATEMENTS.join(", ").to_uppercase();
            Err(Undone::Refused(format!("a tool's statement begins with one of {may}")))
        };
        if let Err(undone) = &answer {
            lent.failed = Some(undone.clone());
        }
        answer
    }
}

/// It begins as a tool's statement may, after white space and comments.
fn is_statement(statement: &str) -> bool {
    let mut rest = statement.trim_start();
    while let Some(comment) = rest.strip_prefix("--") {
        rest = comment.split_once('\n').map_or("", |(_, after)| after).trim_start();
    }
    let word = rest.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default();
    STATEMENTS.contains(&word.to_ascii_lowercase().as_str())
}

impl From<Failed> for Undone {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Refused { again: Again::Now, why } | Failed::Lost(why) => Self::Again(why),
            Failed::Refused { why, .. } => Self::Refused(why),
        }
    }
}

impl From<tokio_postgres::Error> for Undone {
    fn from(error: tokio_postgres::Error) -> Self {
        Failed::from(&error).into()
    }
}

impl PostgresStore {
    /// See [`Store::transact`](crate::store::Store::transact).
    pub(super) async fn transact_work(&self, todo: Transaction, work: PostgresWork) -> Result<Transacted, Unavailable> {
        // The tool's time, and that of the guarded write.
        let stands_at_most = todo.bound.saturating_add(STANDS_AT_MOST);
        let unavailable = |failed: Failed| self.tools.unavailable(&failed);
        let begun = self.tools.begin(stands_at_most).await.map_err(unavailable)?;
        let lent = PostgresTransaction(Arc::new(Mutex::new(Some(Lent { transaction: begun, failed: None }))));
        let handle = lent.clone();
        let worked = async move { work(handle).await };
        let worked = tokio::time::timeout(todo.bound, AssertUnwindSafe(worked).catch_unwind()).await;
        // Whatever the tool has kept of it is over now. Dropped here, its connection is closed, and the server undoes it.
        let Some(Lent { transaction, failed }) = lent.0.lock().await.take() else { return Ok(Transacted::broke()) };
        let value = match worked {
            Err(_) => return Ok(Transacted::too_long(todo.bound)),
            Ok(Err(_)) => return Ok(Transacted::broke()),
            Ok(Ok(answer)) => match failed.map_or(answer, Err) {
                Ok(value) => value,
                Err(undone) => {
                    // Where it cannot be said, the connection is closed, which undoes it too.
                    if let Err(failed) = transaction.end("ROLLBACK").await {
                        tracing::debug!("a transaction of a tool was not rolled back, and is closed: {failed:?}");
                    }
                    return Ok(Transacted::Undone(undone));
                }
            },
        };
        if let Err(undone) = checked(&transaction).await {
            return Ok(Transacted::Undone(undone));
        }
        let write = (todo.conclude)(value)?;
        shape::check_write(&write)?;
        self.conclude(transaction, &write).await
    }

    /// The guarded write, and the commit of all.
    async fn conclude(&self, transaction: OpenTransaction, write: &Write) -> Result<Transacted, Unavailable> {
        let (encoded, started) = (Encoded::of(write), Instant::now());
        let send = || async {
            match self.write_in(&transaction, write, &encoded).await {
                Ok(Tried::Unwritten { locked: true }) => Err(None),
                tried => tried.map_err(Some),
            }
        };
        let may_wait = |why: &Option<Failed>| why.is_none() && started.elapsed() < LOCKED_PATIENCE;
        let (locked, over) = match send.retry(until_unlocked()).when(may_wait).await {
            Ok(Tried::Applied(end)) => {
                return match transaction.end("COMMIT").await {
                    Ok(()) => Ok(Transacted::Answered(Answer::Applied(end))),
                    Err(refused @ Failed::Refused { .. }) => Ok(Transacted::Undone(refused.into())),
                    Err(lost) => Err(self.tools.unavailable(&lost)),
                };
            }
            Ok(Tried::Over(budget)) => (false, Some(budget)),
            Ok(Tried::Unwritten { locked }) => (locked, None),
            Err(None) => (true, None),
            Err(Some(failed @ Failed::Refused { again: Again::Now, .. })) => return Ok(Transacted::Undone(failed.into())),
            Err(Some(failed)) => {
                return self.tools.refused(&failed).map(|refused| Transacted::Answered(Answer::Refused(refused)));
            }
        };
        // Closed, which undoes it.
        drop(transaction);
        match (committer::unwritten(&self.shared, &encoded, locked).await, over) {
            // By an earlier transaction of the same call.
            (Ok(Answer::Applied(_)), _) => Ok(Transacted::Answered(Answer::Moved)),
            (Ok(Answer::Moved), Some(budget)) => Ok(Transacted::Answered(Answer::OverBudget(budget))),
            (Ok(answer), _) => Ok(Transacted::Answered(answer)),
            (Err(unanswered), _) => Err(unanswered.in_words(self.shared.place(), write.next.id)),
        }
    }
}

/// The work may be concluded: what its tables want holds, and it has left leasehold's alone.
async fn checked(transaction: &OpenTransaction) -> Result<(), Undone> {
    // The triggers that wait for the end are run too, so that what they do is seen. Where our tables are found and who writes to them is
    // not the tool's to say.
    transaction.execute("SET CONSTRAINTS ALL IMMEDIATE; SET LOCAL role TO DEFAULT; SET LOCAL search_path TO DEFAULT").await?;
    let rows = transaction.query(&sql::TOUCHED, &Params::default()).await?;
    let is_touched = rows.first().map(|row| row::column(row, "is_touched")).transpose();
    match is_touched {
        Ok(Some(false)) => Ok(()),
        Ok(_) => Err(Undone::refused("the tool used a table of leasehold, which it may not; what it had done was undone")),
        Err(row::Damaged(why)) => Err(Undone::Refused(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_that_ends_the_transaction_is_none_of_a_tools() {
        for good in ["SELECT 1", " \n-- one\n  insert into t values (1)", "with a as (select 1) select * from a", "Values (1)"]
        {
            assert!(is_statement(good), "{good}");
        }
        for bad in [
            "COMMIT",
            "rollback",
            "-- select\nEND",
            "/* select */ abort",
            "SAVEPOINT a",
            "set role none",
            "reset all",
            "prepare transaction 'a'",
            "do $$ begin end $$",
            "-- select",
            "selected",
            "",
        ] {
            assert!(!is_statement(bad), "{bad}");
        }
    }
}
