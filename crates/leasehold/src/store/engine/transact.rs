//! Work of a transactional tool: its statements and the guarded write that journals what they came to, in one transaction.

use super::{CommitError, Done, Engine};
use crate::{
    limits,
    run::{Charge, Event, Snapshot, WriteId},
    store::{
        Answer, Guard, Transacted, Transaction, Unavailable,
        transaction::{Undone, Work},
    },
};
use serde_json::Value;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// What became of it, where the store answered.
#[derive(Debug)]
pub(crate) enum Worked {
    /// Durable, both.
    Done(Box<Done>),
    /// Neither is there.
    Undone(Undone),
    /// The store is not the database that the work needs.
    NoDatabase(String),
}

impl Engine {
    /// Does work and applies the events that its result makes, or neither. After `Unavailable` either both are there or neither: the
    /// caller looks for its write id before it begins again.
    ///
    /// # Errors
    /// See [`CommitError`]. A rejection comes before the work is begun.
    pub(crate) async fn transact(
        self: &Arc<Self>,
        row: &Snapshot,
        write_id: WriteId,
        work: Work,
        bound: Duration,
        charges: &[Charge],
        events: impl Fn(Value) -> Vec<Event> + Send + 'static,
    ) -> Result<Worked, CommitError> {
        // What the core forbids is not begun.
        self.draft(row, events(Value::Null), write_id, None)?;
        let made = Arc::new(Mutex::new(None));
        let (engine, before, charges, shared) = (Arc::clone(self), row.clone(), charges.to_vec(), Arc::clone(&made));
        let conclude = move |value: Value| {
            let drafted = engine.draft(&before, events(value), write_id, None);
            let drafted = drafted.map_err(|e| Unavailable(e.to_string()))?.charged(&charges);
            let write = drafted.write.ok_or_else(|| Unavailable("an outcome made no entry".into()))?;
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(drafted.done);
            Ok(write)
        };
        let lease_id = row.lease.as_ref().map(|l| l.lease_id);
        let guard = Guard { sequence: row.sequence, epoch: row.epoch, lease_id, expiry: None };
        let bound = bound.min(limits::TRANSACTION_MAX).min(self.ttl / 3);
        let transaction = Transaction { run: row.id, write_id, guard, work, bound, conclude: Box::new(conclude) };
        match self.store.transact(transaction).await? {
            Transacted::Undone(undone) => Ok(Worked::Undone(undone)),
            Transacted::NoDatabase(why) => Ok(Worked::NoDatabase(why)),
            Transacted::Answered(Answer::Applied(end)) => {
                let done = made.lock().unwrap_or_else(PoisonError::into_inner).take();
                // What was applied was made.
                let done = done.ok_or_else(|| Unavailable("the store applied what it was not given".into()))?;
                Ok(Worked::Done(Box::new(self.applied(done, end))))
            }
            Transacted::Answered(answer) => Err(answer.into()),
        }
    }
}
