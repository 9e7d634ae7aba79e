//! A transactional call: its stamp, what it does in the store's own database and its outcome are one transaction. So no fence ever
//! stands for it, and there is nothing to doubt: whoever finds the call pending knows that nothing of it is there.

use super::{PATIENCE_MIN, Segment, SegmentError, no_answer};
use crate::{
    limits,
    run::{Act, Charge, Event, Recorded, Rejection, StampCall, WriteId, body},
    store::{
        engine::{CommitError, Worked},
        transaction::{Undone, Work},
    },
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// A released call of a transactional tool.
pub(crate) struct TransactionalCall {
    /// What led to it and is not durable yet.
    pub(crate) before: Vec<Act>,
    pub(crate) stamp: StampCall,
    pub(crate) charges: Vec<Charge>,
    pub(crate) work: Work,
    /// How long the tool wants to have.
    pub(crate) bound: Duration,
}

impl TransactionalCall {
    fn acts(&self, outcome: body::ToolOutcome) -> Vec<Act> {
        let mut acts = self.before.clone();
        acts.push(Act::Stamp(self.stamp.clone()));
        acts.push(Act::Record(vec![Recorded::Outcome(outcome)]));
        acts
    }
}

/// What became of a transactional call, where the segment goes on.
pub(crate) enum Transacting {
    /// Its outcome is durable: done, and the work is there; not applied, and nothing is.
    Recorded,
    /// The store is not the database that the work needs; nothing was begun or recorded.
    NoDatabase(String),
}

impl Segment {
    /// Does the work of a call and journals `outcome` of its result, or of why it was undone. A lost answer is looked up before the work
    /// is begun again; a journal that grew is folded, and the work is begun again on what is there now.
    ///
    /// # Errors
    /// See [`SegmentError`]; but for `Lost` nothing of it is there.
    pub(crate) async fn transact(
        &mut self,
        call: TransactionalCall,
        outcome: impl Fn(Result<Value, String>) -> body::ToolOutcome + Clone + Send + 'static,
    ) -> Result<Transacting, SegmentError> {
        let call = Arc::new(call);
        let write_id = WriteId::random();
        let mut pause = Duration::from_millis(20);
        let (mut attempts, mut is_unanswered, mut refused_since) = (0, false, None);
        loop {
            let events = {
                let (call, outcome, right) = (Arc::clone(&call), outcome.clone(), self.right);
                move |value| call.acts(outcome(Ok(value))).into_iter().map(|act| Event::Holder(right, act)).collect()
            };
            let sent = self.heartbeat.now();
            let patience = self.trust.left().max(PATIENCE_MIN);
            let working = self.engine.transact(&self.row, write_id, call.work.clone(), call.bound, &call.charges, events);
            match tokio::time::timeout(patience, working).await.unwrap_or_else(|_| Err(no_answer())) {
                Ok(Worked::Done(done)) => {
                    self.took(*done, sent);
                    return Ok(Transacting::Recorded);
                }
                Ok(Worked::NoDatabase(why)) => return Ok(Transacting::NoDatabase(why)),
                Ok(Worked::Undone(undone)) => {
                    // What stood in its way may be its own earlier attempt, of which no answer came.
                    if is_unanswered && self.catch_up(write_id).await? {
                        return Ok(Transacting::Recorded);
                    }
                    attempts += 1;
                    if let Undone::Again(why) = &undone
                        && attempts < limits::TRANSACTION_ATTEMPTS_MAX
                    {
                        self.wait_for_store(why, &mut pause).await?;
                        continue;
                    }
                    self.commit(call.acts(outcome(Err(undone.to_string())))).await?;
                    return Ok(Transacting::Recorded);
                }
                Err(CommitError::Rejected(Rejection::Fenced) | CommitError::Fenced | CommitError::Gone) => {
                    self.trust.lose();
                    return Err(SegmentError::Lost("another segment holds it, or nobody".into()));
                }
                Err(CommitError::Rejected(rejection)) => return Err(rejection.into()),
                Err(CommitError::OverBudget(budget)) => return Err(SegmentError::OverBudget(budget)),
                Err(CommitError::Corrupt(why)) => return Err(SegmentError::Unreadable(why)),
                Err(CommitError::Moved) => {}
                Err(error @ (CommitError::Unavailable(_) | CommitError::Refused(_))) => {
                    match &error {
                        CommitError::Refused(_) => self.refused(&error, sent, &mut refused_since),
                        _ => is_unanswered = true,
                    }
                    if let Err(lost) = self.wait_for_store(&error.to_string(), &mut pause).await {
                        // The right may be over and this very call recorded.
                        return if self.was_applied(write_id).await { Ok(Transacting::Recorded) } else { Err(lost) };
                    }
                }
            }
            if self.catch_up(write_id).await? {
                return Ok(Transacting::Recorded);
            }
        }
    }
}
