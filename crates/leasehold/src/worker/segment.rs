//! A segment: the stretch of a run executed under one lease. It exists only with a lease, and it is the only way to a
//! [`WritePermit`]. Everything an agent changes goes through it.

use super::{
    aside::{PutAside, Room},
    heartbeat::{Heartbeat, HoldGuard, Signal},
    permit::WritePermit,
    trust::TrustWindow,
};
use crate::{
    agent::tool::Asker,
    clock::BootInstant,
    run::{
        Act, CallId, Charge, Event, Fence, Late, LateAnswer, Recorded, Rejection, Right, RunId, Snapshot, StampCall, State,
        Story, WriteId, body,
    },
    store::{
        Held, Unavailable,
        engine::{CommitError, Done, Engine, Sealed},
    },
};
use jiff::Timestamp;
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::sync::watch;

mod transact;

pub(crate) use transact::{Transacting, TransactionalCall};

/// Why a segment cannot go on.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SegmentError {
    /// The right moved on, or ran out while the store did not answer: stop, touch nothing but a late outcome.
    #[error("the right to this run is gone: {0}")]
    Lost(String),
    /// The write was stamped, not entered, and unstamped again; the segment still holds the run.
    #[error("the write was not entered: {0}")]
    NotEntered(String),
    /// A rule forbids it; the segment still holds the run.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// A budget would be exceeded: nothing is stamped, and the segment still holds the run.
    #[error("the budget `{0}` would be exceeded")]
    OverBudget(String),
    /// The record does not decode.
    #[error("{0}")]
    Unreadable(String),
}

/// A run under a lease of this process.
pub struct Segment {
    engine: Arc<Engine>,
    heartbeat: Arc<Heartbeat>,
    row: Snapshot,
    story: Story,
    right: Right,
    trust: Arc<TrustWindow>,
    signal: watch::Receiver<Signal>,
    _hold: HoldGuard,
}

/// A store is given at least this long to answer, also where the lease is about to end.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

fn no_answer() -> CommitError {
    CommitError::Unavailable(Unavailable("it is silent".into()))
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "segment of run {} epoch {}", self.row.id, self.right.epoch)
    }
}

impl Segment {
    /// From a grant that is durable: `row` is the row it made, `sent` the time before its request was sent. The only callers
    /// are the ones that were granted the lease: start, claim, decide.
    pub(crate) fn new(
        engine: Arc<Engine>,
        heartbeat: Arc<Heartbeat>,
        row: Snapshot,
        story: Story,
        sent: BootInstant,
    ) -> Result<Self, SegmentError> {
        let Some(lease) = &row.lease else { return Err(SegmentError::Lost("the grant is over already".into())) };
        let right = Right { epoch: row.epoch, lease_id: lease.lease_id };
        let trust = heartbeat.window(sent);
        let held = Held { id: row.id, epoch: right.epoch, lease_id: right.lease_id };
        let (hold, signal) = heartbeat.hold(held, Arc::clone(&trust));
        Ok(Self { engine, heartbeat, row, story, right, trust, signal, _hold: hold })
    }

    /// What its run may keep yet of what its calls put aside.
    pub(crate) fn room(&self) -> Arc<Room> {
        Room::of(Arc::clone(&self.engine), self.row.id)
    }
    /// The row as this holder knows it.
    pub fn row(&self) -> &Snapshot {
        &self.row
    }
    /// The journal so far, folded.
    pub fn story(&self) -> &Story {
        &self.story
    }
    /// The run.
    pub fn run(&self) -> RunId {
        self.row.id
    }
    /// Its right.
    pub fn right(&self) -> Right {
        self.right
    }
    /// Wall time.
    pub fn now(&self) -> Timestamp {
        self.engine.now().wall
    }
    /// A cancel was accepted, as far as this holder has heard.
    pub fn is_cancelled(&self) -> bool {
        self.row.state == State::Cancelling || self.signal.borrow().cancel
    }
    /// The right is gone, as far as this holder has heard.
    pub fn is_lost(&self) -> bool {
        self.trust.is_lost() || self.trust.left().is_zero()
    }
    /// Still executes: no event has ended its right.
    pub fn is_open(&self) -> bool {
        self.row.state.is_held()
    }
    /// What the heartbeat finds, for waiting on.
    pub(crate) fn signal(&self) -> watch::Receiver<Signal> {
        self.signal.clone()
    }

    /// Applies acts as one durable step. A lost answer is repeated by its id until the lease's own deadline; a journal that grew
    /// is folded and the acts are applied to what is there now.
    ///
    /// # Errors
    /// See [`SegmentError`].
    pub(crate) async fn commit(&mut self, acts: Vec<Act>) -> Result<(), SegmentError> {
        self.commit_with(acts, &[], &Sealed::default()).await
    }

    async fn commit_with(&mut self, acts: Vec<Act>, charges: &[Charge], kept: &Sealed) -> Result<(), SegmentError> {
        let write_id = WriteId::random();
        let mut pause = Duration::from_millis(20);
        let mut refused_since = None;
        let mut drafted = None;
        loop {
            // What was not answered is sent again as it was: the store takes either for the other.
            let draft = match drafted.take() {
                Some(draft) => Ok(draft),
                None => {
                    let events = acts.iter().cloned().map(|act| Event::Holder(self.right, act)).collect();
                    self.engine.draft(&self.row, events, write_id, None).map(|draft| draft.charged(charges).keeping(kept))
                }
            };
            let sent = self.heartbeat.now();
            // A store that does not answer at all is waited for no longer than the lease lasts; what it does later is recognised
            // by the write id, or refused by the guard.
            let patience = self.trust.left().max(PATIENCE_MIN);
            let answer = match draft {
                Ok(draft) => {
                    drafted = Some(draft.clone());
                    tokio::time::timeout(patience, self.engine.send(draft)).await.unwrap_or_else(|_| Err(no_answer()))
                }
                Err(error) => Err(error),
            };
            match answer {
                Ok(done) => {
                    self.took(done, sent);
                    return Ok(());
                }
                Err(CommitError::Rejected(Rejection::Fenced) | CommitError::Fenced | CommitError::Gone) => {
                    self.trust.lose();
                    return Err(SegmentError::Lost("another segment holds it, or nobody".into()));
                }
                Err(CommitError::Rejected(rejection)) => return Err(rejection.into()),
                Err(CommitError::OverBudget(budget)) => return Err(SegmentError::OverBudget(budget)),
                Err(CommitError::Moved) => {
                    drafted = None;
                    if self.catch_up(write_id).await? {
                        return Ok(());
                    }
                }
                // A full disk or a permission may be mended while the lease lasts. What is not is an outage like any other: renewed
                // for ever, it would show a healthy run to everybody.
                Err(error @ (CommitError::Unavailable(_) | CommitError::Refused(_))) => {
                    if matches!(error, CommitError::Refused(_)) {
                        self.refused(&error, sent, &mut refused_since);
                    }
                    if let Err(lost) = self.wait_for_store(&error.to_string(), &mut pause).await {
                        // The right may be over because this very write ended it.
                        return if self.was_applied(write_id).await { Ok(()) } else { Err(lost) };
                    }
                }
                Err(CommitError::Corrupt(why)) => return Err(SegmentError::Unreadable(why)),
            }
        }
    }

    /// The store would not have it, since then; for a whole lease: the right is given up.
    fn refused(&self, error: &CommitError, sent: BootInstant, since: &mut Option<BootInstant>) {
        let (run, ttl) = (self.row.id, self.engine.ttl());
        let since = *since.get_or_insert_with(|| {
            tracing::warn!(%run, "run {run} cannot be recorded, and is tried again for {ttl:?}: {error}");
            sent
        });
        if i128::from(sent.ns) - i128::from(since.ns) >= ttl.as_nanos().cast_signed() {
            self.trust.lose();
        }
    }

    async fn was_applied(&mut self, write_id: WriteId) -> bool {
        matches!(tokio::time::timeout(PATIENCE_MIN, self.reload(write_id)).await, Ok(Ok(true)))
    }

    /// The store does not answer: wait a little, until the lease's own deadline.
    async fn wait_for_store(&self, why: &str, pause: &mut Duration) -> Result<(), SegmentError> {
        if self.is_lost() {
            return Err(SegmentError::Lost(format!("the store took nothing until the lease's deadline: {why}")));
        }
        tokio::time::sleep((*pause).min(self.trust.left())).await;
        *pause = (*pause * 2).min(Duration::from_secs(1));
        Ok(())
    }

    fn took(&mut self, done: Done, sent: BootInstant) {
        for entry in &done.entries {
            self.story.fold(entry);
        }
        self.row = done.row;
        if self.is_open() {
            // A step renews, for free.
            self.trust.confirmed(sent);
        }
    }

    /// Folds what others added. True where the write of that id turns out to be there.
    async fn catch_up(&mut self, write_id: WriteId) -> Result<bool, SegmentError> {
        let mut pause = Duration::from_millis(20);
        loop {
            let patience = self.trust.left().max(PATIENCE_MIN);
            match tokio::time::timeout(patience, self.reload(write_id)).await.unwrap_or_else(|_| Err(no_answer())) {
                Ok(own) => return Ok(own),
                Err(CommitError::Unavailable(unavailable)) => {
                    self.wait_for_store(&unavailable.to_string(), &mut pause).await?;
                }
                Err(CommitError::Gone | CommitError::Fenced) => {
                    self.trust.lose();
                    return Err(SegmentError::Lost("another segment holds it, or nobody".into()));
                }
                Err(error) => return Err(SegmentError::Unreadable(error.to_string())),
            }
        }
    }

    async fn reload(&mut self, write_id: WriteId) -> Result<bool, CommitError> {
        let row = self.engine.load(self.row.id).await?;
        let entries = self.engine.journal_of(&row, self.story.next).await?;
        let own = entries.iter().any(|entry| entry.write_id == write_id);
        let held = row.epoch == self.right.epoch && row.lease.as_ref().is_some_and(|l| l.lease_id == self.right.lease_id);
        if !held && !own {
            return Err(CommitError::Fenced);
        }
        // The row and the journal are two reads: what was added between them is folded by the next look.
        for entry in entries.iter().take_while(|entry| entry.sequence < row.sequence) {
            self.story.fold(entry);
        }
        self.row = row;
        Ok(own)
    }

    /// Takes in a foreign change that the heartbeat announced.
    ///
    /// # Errors
    /// See [`SegmentError`].
    pub(crate) async fn refresh(&mut self) -> Result<(), SegmentError> {
        self.catch_up(WriteId::random()).await.map(|_| ())
    }

    /// Journals what was learned.
    ///
    /// # Errors
    /// See [`SegmentError`].
    pub(crate) async fn record(&mut self, records: Vec<Recorded>) -> Result<(), SegmentError> {
        self.commit(vec![Act::Record(records)]).await
    }

    /// Journals what became of a call, and keeps what it has put aside with that.
    ///
    /// # Errors
    /// See [`SegmentError`].
    pub(crate) async fn record_outcome(
        &mut self,
        outcome: body::ToolOutcome,
        aside: Vec<PutAside>,
    ) -> Result<(), SegmentError> {
        // Where nothing can be sealed, the outcome cannot be either, which is tried again below.
        let kept = self.engine.sealed_artifacts(self.row.id, &outcome.call_id, &aside).unwrap_or_default();
        self.commit_with(vec![Act::Record(vec![Recorded::Outcome(outcome)])], &[], &kept).await
    }

    /// Stamps a write, together with the acts that led to it, and hands out the permit to enter it. The stamp is durable and the
    /// trust window was checked after it when this returns.
    ///
    /// # Errors
    /// Rejected: nothing is stamped. Lost: nothing may be entered.
    pub async fn fence(&mut self, stamp: StampCall) -> Result<WritePermit, SegmentError> {
        self.fence_after(Vec::new(), stamp, &[]).await
    }

    pub(crate) async fn fence_after(
        &mut self,
        mut acts: Vec<Act>,
        stamp: StampCall,
        charges: &[Charge],
    ) -> Result<WritePermit, SegmentError> {
        let call_id = stamp.call_id.clone();
        acts.push(Act::Stamp(stamp));
        self.commit_stamp(acts, &call_id, charges).await?;
        self.permit(call_id).await
    }

    /// A stamp that may be durable although its segment has stopped was certainly not used: that is said for as long as this
    /// process lives, so that no doubt comes of it.
    async fn commit_stamp(&mut self, acts: Vec<Act>, call_id: &CallId, charges: &[Charge]) -> Result<(), SegmentError> {
        let result = self.commit_with(acts, charges, &Sealed::default()).await;
        if let Err(SegmentError::Lost(why)) = &result {
            self.offer_late(call_id.clone(), (LateAnswer::NotStarted, Value::String(why.clone()), true), Vec::new());
        }
        result
    }

    /// Stamps the standing fence's call anew, to repeat it with the same key and arguments.
    ///
    /// # Errors
    /// As for [`fence`](Self::fence).
    pub async fn refence(&mut self, stamp: StampCall, found_absent: bool) -> Result<WritePermit, SegmentError> {
        let call_id = stamp.call_id.clone();
        let acts = vec![Act::Restamp { stamp, found_absent }];
        if self.row.fence.as_ref().is_some_and(|f| self.is_own(f, &call_id)) {
            // A repeat in place: this segment has entered the call under the stamp that stands. Where the new one does not come
            // to be, "not started" would be taken for that entry.
            self.commit(acts).await?;
        } else {
            self.commit_stamp(acts, &call_id, &[]).await?;
        }
        self.permit(call_id).await
    }

    fn is_own(&self, fence: &Fence, call: &CallId) -> bool {
        fence.call_id == *call && fence.epoch == self.right.epoch && fence.lease_id == self.right.lease_id
    }

    /// Keeps what a tool answered after the right was lost, and offers it as a late outcome for as long as this process lives.
    pub(crate) fn offer_late(
        &self,
        call_id: CallId,
        (answer, result, is_error): (LateAnswer, Value, bool),
        aside: Vec<PutAside>,
    ) {
        let late = Late { call_id, right: self.right, answer, is_error, result };
        self.engine.offer_late(self.row.id, late, aside);
    }

    /// The permit for the fence that stands: own stamp, and the right certain to hold long enough to enter.
    async fn permit(&mut self, call: CallId) -> Result<WritePermit, SegmentError> {
        // The first wait may be for a renewal that was already on its way when it was asked for.
        for _ in 0..2 {
            if !self.trust.holds() && !self.is_lost() {
                self.heartbeat.renew_now(self.trust.left()).await;
            }
        }
        let held = self.is_open()
            && self.row.epoch == self.right.epoch
            && self.row.lease.as_ref().is_some_and(|l| l.lease_id == self.right.lease_id);
        if !held {
            // The stamp came to be, its answer was lost, and so is the right by now.
            let why = "the lease ended before the write was entered".to_owned();
            self.trust.lose();
            self.offer_late(call, (LateAnswer::NotStarted, Value::String(why.clone()), true), Vec::new());
            return Err(SegmentError::Lost(why));
        }
        let Some(fence) = self.row.fence.clone().filter(|f| self.is_own(f, &call)) else {
            return Err(Rejection::NoFence(call).into());
        };
        if self.row.state != State::Running {
            let why = "the run was cancelled before the write was entered".to_owned();
            self.commit_stamp(vec![Act::Unstamp { call_id: call.clone(), why: why.clone() }], &call, &[]).await?;
            return Err(SegmentError::NotEntered(why));
        }
        if !self.trust.holds() {
            let why = "the lease could not be renewed before the write was entered".to_owned();
            self.commit_stamp(vec![Act::Unstamp { call_id: call.clone(), why: why.clone() }], &call, &[]).await?;
            return Err(SegmentError::NotEntered(why));
        }
        Ok(WritePermit {
            run: self.row.id,
            call,
            key: fence.idempotency_key.clone(),
            epoch: fence.epoch,
            attempt: fence.attempt,
            trust: Arc::clone(&self.trust),
            // Whoever enters it says whether somebody can be asked.
            asker: Asker::nobody(),
        })
    }
}
