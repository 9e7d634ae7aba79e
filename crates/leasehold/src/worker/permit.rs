//! The in-memory proof of a stamped fence. No public constructor, not `Clone`, taken by value: what has no permit cannot
//! enter a write, and what had one cannot enter twice.

use super::trust::TrustWindow;
use crate::{
    agent::tool::Asker,
    run::{CallId, RunId},
};
use std::sync::Arc;

/// The right to enter one write once. Made by `Segment::fence` and `Segment::refence` only.
#[derive(Debug)]
pub struct WritePermit {
    pub(crate) run: RunId,
    pub(crate) call: CallId,
    pub(crate) key: String,
    pub(crate) epoch: u64,
    pub(crate) attempt: u32,
    pub(crate) trust: Arc<TrustWindow>,
    pub(crate) asker: Asker,
}

/// The right to execute the run could not be shown to hold: nothing may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease on this run is no longer certain to hold")]
pub struct NotHeld;

impl WritePermit {
    /// The run, for the far side (`Leasehold-Run`).
    pub fn run(&self) -> RunId {
        self.run
    }
    /// The call.
    pub fn call(&self) -> &CallId {
        &self.call
    }
    /// The same over every repeat of this call (`Idempotency-Key`).
    pub fn idempotency_key(&self) -> &str {
        &self.key
    }
    /// The run's epoch: a far side may refuse one lower than it saw for this run (`Leasehold-Fencing-Token`).
    pub fn fencing_token(&self) -> u64 {
        self.epoch
    }
    /// 1 for the first entry of this call.
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
    /// Checks the trust window again, right before the first byte.
    ///
    /// # Errors
    /// [`NotHeld`]: send nothing and answer [`WriteAnswer::NotStarted`](crate::agent::tool::WriteAnswer::NotStarted).
    pub fn check(&self) -> Result<(), NotHeld> {
        if self.trust.holds() { Ok(()) } else { Err(NotHeld) }
    }

    /// The way to a person who can be asked while the write runs. Its fence stands meanwhile, and its timeout runs.
    pub fn asker(&mut self) -> &mut Asker {
        &mut self.asker
    }
    /// What people were asked and said before.
    pub fn asked(&self) -> &Asker {
        &self.asker
    }

    #[cfg(test)]
    pub(crate) fn for_test(run: RunId, call: CallId, epoch: u64, trust: Arc<TrustWindow>) -> Self {
        let key = run.idempotency_key(&call);
        Self { run, call, key, epoch, attempt: 1, trust, asker: Asker::nobody() }
    }
}
