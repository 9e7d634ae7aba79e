//! `apply`: the one function that changes a run. It looks the event up in the [table](super::TABLE), checks its guard, drafts
//! the new row and the entries, and then checks its own draft against the table again, so that code and table cannot part.

use super::{
    draft::Draft,
    event::{Event, EventKind, Grant, NewRun, Now, Right, holder_name},
    ids::CallId,
    journal::{EntryBody, body},
    snapshot::{Lease, LeaseTime, Snapshot},
    state::{Mode, Recovery, SegmentKind, State},
    table::{EpochOp, FenceCol, LeaseCol, Rule, TABLE, To},
};
use jiff::Timestamp;

/// What a transition does to the lease; times are the store's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// Stays.
    Keep,
    /// A new one, in the new row.
    Grant,
    /// The same for longer.
    Extend,
    /// None any more.
    Drop,
}

/// A transition: the new row and what is journaled. Empty where the event had been taken before.
#[derive(Clone, Debug, PartialEq)]
pub struct Delta {
    /// The row afterwards.
    pub next: Snapshot,
    /// Appended, in order.
    pub entries: Vec<EntryBody>,
    /// The lease columns.
    pub lease: LeaseChange,
}

impl Delta {
    /// The event changes nothing: it was taken before, and gets the same answer.
    pub fn is_unchanged(&self) -> bool {
        self.entries.is_empty() && self.lease == LeaseChange::Keep
    }
}

/// Why an event is refused. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, strum::IntoStaticStr, strum::EnumDiscriminants)]
#[strum_discriminants(derive(strum::EnumIter, strum::IntoStaticStr, Hash, PartialOrd, Ord))]
#[strum_discriminants(strum(serialize_all = "snake_case"))]
#[strum_discriminants(doc = "Refusals by name.")]
#[strum(serialize_all = "snake_case")]
pub enum Rejection {
    /// Not in this state.
    #[error("a run that is {state} takes no {event}")]
    NotInState {
        /// The state.
        state: State,
        /// The event.
        event: EventKind,
    },
    /// A decision about a run that waits for none.
    #[error("a run that is {0} waits for no decision")]
    NotWaiting(State),
    /// The right is another's.
    #[error("the right to this run has moved on")]
    Fenced,
    /// A write is in flight.
    #[error("call {0} is in flight")]
    FenceStands(CallId),
    /// No write is in flight, or not this one.
    #[error("no fence stands for call {0}")]
    NoFence(CallId),
    /// A non-idempotent write is in flight: nobody continues past it.
    #[error("call {0} is a non-idempotent write in flight")]
    NonIdempotentFence(CallId),
    /// The fence is idempotent: no doubt.
    #[error("no non-idempotent write is in flight")]
    NothingInDoubt,
    /// Not a call of the open turn.
    #[error("there is no call {0} in the open turn")]
    UnknownCall(CallId),
    /// It has its outcome.
    #[error("call {0} has its outcome")]
    HasOutcome(CallId),
    /// A read needs no fence.
    #[error("call {0} is not a write")]
    NotAWrite(CallId),
    /// A write without its fence has no answer.
    #[error("call {0} is a write and was not stamped")]
    WriteNotStamped(CallId),
    /// A person has to decide first.
    #[error("call {0} waits for a person")]
    NotReleased(CallId),
    /// Cancelled.
    #[error("a cancel was accepted")]
    CancelRequested,
    /// Was not in flight when the cancel was heard.
    #[error("call {0} was not in flight when the run was cancelled")]
    NotInFlight(CallId),
    /// Calls of the last turn have no outcome.
    #[error("calls of the open turn have no outcome")]
    TurnOpen,
    /// A fenced write's unknown outcome is a doubt or a repeat.
    #[error("the outcome of call {0} is unknown: that is a doubt or a repeat")]
    UnknownIsDoubt(CallId),
    /// "Not applied" speaks of the call only on its first entry.
    #[error("call {0} may have been entered before: not applied is unknown")]
    RepeatIsUnknown(CallId),
    /// A non-idempotent write is entered again only after its verify found it absent.
    #[error("call {0} was not found absent since it was last entered")]
    NotFoundAbsent(CallId),
    /// Late evidence says that it is done.
    #[error("late evidence says that call {0} is done")]
    EvidenceSaysDone(CallId),
    /// There is no late evidence.
    #[error("there is no late evidence on call {0}")]
    NoEvidence(CallId),
    /// The fence was taken over and is of another segment.
    #[error("the fence of call {0} is another segment's")]
    NotOwnFence(CallId),
    /// The row has no request any more.
    #[error("there is nothing to continue this run from: its row could not be read")]
    NothingToContinue,
    /// Nothing to ask about.
    #[error("nothing on the card")]
    EmptyCard,
    /// Not before.
    #[error("not due before {0}")]
    NotDue(Timestamp),
    /// The claimer lacks something.
    #[error("this process does not serve `{0}`")]
    NotServed(String),
    /// The queue is closed.
    #[error("the queue is closed")]
    QueueClosed,
    /// The digest names something else.
    #[error("the decision is about something else than what waits now")]
    StaleTurn,
    /// Somebody decided.
    #[error("call {call} was decided by {by} at {at}")]
    AlreadyDecided {
        /// The call.
        call: CallId,
        /// Who.
        by: String,
        /// When.
        at: Timestamp,
    },
    /// Calls would stay undecided.
    #[error("call {0} would stay undecided")]
    Undecided(CallId),
    /// No call would stay undecided.
    #[error("this decides the last call")]
    LastDecision,
    /// Not before the deadline.
    #[error("the deadline has not passed")]
    DeadlineNotPassed,
    /// After the deadline.
    #[error("the deadline passed at {0}")]
    DeadlinePassed(Timestamp),
    /// Machines never release a write.
    #[error("a machine may not release a write")]
    MachineMayNotRelease,
    /// Four eyes.
    #[error("{0} started this run or wrote this edit, and may deny, not release")]
    SelfApproval(String),
    /// Only under four eyes.
    #[error("an edit is a proposal only under four eyes")]
    NotUnderFourEyes,
    /// The resolution names another doubt.
    #[error("the doubt that the resolution names does not stand, or not any more")]
    StaleDoubt,
    /// May still be in flight.
    #[error("the write may still be in flight until {0}")]
    TooEarly(Timestamp),
    /// The lease was renewed.
    #[error("the lease has not expired as seen")]
    NotExpired,
    /// The speaker holds the run: a record is due, not a late outcome.
    #[error("the speaker still holds the run")]
    StillHolder,
    /// A question is none that stands.
    #[error("no such question stands")]
    NoQuestion,
    /// Restored before.
    #[error("nothing to restore")]
    NothingToRestore,
    /// A defect: the draft does not fit the table. Nothing is written.
    #[error("internal: {event} in {state} drafted something the table does not allow: {what}")]
    OffTable {
        /// The state.
        state: State,
        /// The event.
        event: EventKind,
        /// What.
        what: String,
    },
}

impl Rejection {
    /// Its name, as in docs and in the API.
    pub fn code(&self) -> &'static str {
        self.into()
    }
}

/// Makes a run: claimed at birth with a grant (start), queued without (enqueue).
pub fn birth(new: NewRun, grant: Option<Grant>, now: &Now) -> Delta {
    let recovery = new.recovery.unwrap_or(match new.mode {
        Mode::Queue => Recovery::Requeue,
        Mode::Wait => Recovery::Abandon,
    });
    let started = body::Born {
        request: new.request,
        mode: new.mode,
        recovery,
        agent_version: new.agent_version,
        by: new.by,
        lease_id: grant.as_ref().map(|g| g.lease_id),
    };
    let (state, epoch, entry, lease) = match &grant {
        Some(_) => (State::Running, 1, EntryBody::Started(started), LeaseChange::Grant),
        None => (State::Queued, 0, EntryBody::Enqueued(started), LeaseChange::Keep),
    };
    let next = Snapshot {
        id: new.id,
        agent: new.agent,
        owner: new.owner,
        team: new.team.clone(),
        initiator: new.initiator,
        mode: new.mode,
        state,
        reason: None,
        epoch,
        sequence: 1,
        lease: grant.map(|g| lease_of(&g, SegmentKind::Interactive)),
        next_segment: SegmentKind::Worker,
        cancel_requested: false,
        recovery,
        recovery_explicit: new.recovery.is_some(),
        requeues: 0,
        priority: new.priority,
        due_at: new.run_at.unwrap_or(now.wall),
        fence: None,
        turn: None,
        has_request: true,
        second_approver: new.second_approver,
        rounds: 0,
        usage: super::snapshot::Usage::default(),
        duplicates: 0,
        contradictions: 0,
        attribution: None,
        chain: None,
        created_at: now.wall,
        started_at: (state == State::Running).then_some(now.wall),
        finished_at: None,
        since: now.wall,
    };
    Delta { next, entries: vec![entry], lease }
}

pub(super) fn lease_of(grant: &Grant, kind: SegmentKind) -> Lease {
    Lease {
        lease_id: grant.lease_id,
        holder: holder_name(kind, &grant.process),
        // The store sets the end, on its own clock.
        expires_at: LeaseTime { clock: String::new(), ns: 0 },
    }
}

/// Applies one event to a row.
///
/// # Errors
/// The named [`Rejection`]; nothing has changed.
pub fn apply(row: &Snapshot, event: Event, now: &Now) -> Result<Delta, Rejection> {
    let kind = event.kind();
    if super::people::taken_before(row, &event)? {
        return Ok(Delta { next: row.clone(), entries: Vec::new(), lease: LeaseChange::Keep });
    }
    let rules = || TABLE.iter().filter(|r| r.event == kind && r.from.contains(&row.state));
    if rules().next().is_none() {
        // A holder whose run has moved on hears that first: it is the answer that tells it to stop.
        if let Event::Holder(right, _) = &event {
            holds(row, *right)?;
        }
        if kind.decides() && !row.state.is_waiting() {
            return Err(Rejection::NotWaiting(row.state));
        }
        return Err(Rejection::NotInState { state: row.state, event: kind });
    }
    let draft = Draft::new(row, now);
    let draft = match event {
        Event::Claim { grant, claimer } => super::clockwork::claim(draft, &grant, &claimer)?,
        Event::Holder(right, act) => {
            holds(row, right)?;
            super::holder::act(draft, act)?
        }
        Event::LateOutcome(late) => super::clockwork::late_outcome(draft, late)?,
        Event::Clock(tick) => super::clockwork::tick(draft, tick)?,
        Event::Person(by, order) => super::people::order(draft, by, order)?,
    };
    let delta = draft.finish();
    let misfits: Vec<String> = rules().filter_map(|rule| misfit(rule, row, &delta)).collect();
    if misfits.len() == rules().count() {
        return Err(Rejection::OffTable { state: row.state, event: kind, what: misfits.join(" / ") });
    }
    if let Err(what) = delta.next.check() {
        return Err(Rejection::OffTable { state: row.state, event: kind, what });
    }
    Ok(delta)
}

/// The right is the row's.
fn holds(row: &Snapshot, right: Right) -> Result<(), Rejection> {
    let held =
        row.state.is_held() && row.epoch == right.epoch && row.lease.as_ref().is_some_and(|l| l.lease_id == right.lease_id);
    if held { Ok(()) } else { Err(Rejection::Fenced) }
}

/// Why a draft does not fit a rule.
fn misfit(rule: &Rule, row: &Snapshot, delta: &Delta) -> Option<String> {
    let next = &delta.next;
    let same_state = next.state == row.state;
    if !rule.to.iter().any(|to| matches!(to, To::Same) && same_state || *to == To::Is(next.state)) {
        return Some(format!("state {}", next.state));
    }
    let granted = delta.lease == LeaseChange::Grant;
    let epoch = match rule.epoch {
        EpochOp::Keep => row.epoch,
        EpochOp::Next => row.epoch + 1,
        EpochOp::NextIfGranted => row.epoch + u64::from(granted),
        EpochOp::Jump => row.epoch + RESTORE_JUMP,
    };
    if next.epoch != epoch {
        return Some(format!("epoch {}", next.epoch));
    }
    let lease = match rule.lease {
        LeaseCol::Keep => delta.lease == LeaseChange::Keep && next.lease == row.lease,
        LeaseCol::Grant => granted,
        LeaseCol::GrantOrNone => granted || next.lease.is_none(),
        LeaseCol::Extend => delta.lease == LeaseChange::Extend && next.lease == row.lease,
        LeaseCol::Drop => next.lease.is_none(),
    };
    if !lease {
        return Some(format!("lease {:?}", delta.lease));
    }
    let fence = match rule.fence {
        FenceCol::None => row.fence.is_none() && next.fence.is_none(),
        FenceCol::Keep => next.fence == row.fence,
        FenceCol::Set => row.fence.is_none() && next.fence.is_some(),
        FenceCol::Renew => {
            matches!((&row.fence, &next.fence), (Some(a), Some(b)) if a.call_id == b.call_id && b.attempt == a.attempt + 1)
        }
        FenceCol::Remove => row.fence.is_some() && next.fence.is_none(),
        FenceCol::RemoveOrKeep => next.fence.is_none() || next.fence == row.fence,
    };
    if !fence {
        return Some("fence".into());
    }
    let stray = delta.entries.iter().find(|entry| !rule.journal.contains(&entry.kind()));
    stray.map(|entry| format!("entry {}", entry.kind()))
}

/// What a restore adds to the epoch, so that no epoch of the lost interval comes again.
pub const RESTORE_JUMP: u64 = 1 << 20;

impl Snapshot {
    /// What holds of every row, whatever happened; the stores' schema constraints say the same.
    ///
    /// # Errors
    /// Which part does not hold.
    pub fn check(&self) -> Result<(), String> {
        let fail = |what: &str| Err(format!("{what} (state {}, epoch {})", self.state, self.epoch));
        if self.lease.is_some() != self.state.is_held() {
            return fail("a lease stands exactly while running or cancelling");
        }
        if self.reason.is_some() != matches!(self.state, State::Failed | State::Dead) {
            return fail("a reason is given exactly where failed or dead");
        }
        if let Some(reason) = self.reason
            && !reason.belongs_to(self.state)
        {
            return fail("the reason is none of this state");
        }
        if self.finished_at.is_some() != self.state.is_settled() {
            return fail("a finish time is given exactly where settled");
        }
        if self.state == State::Cancelling && !self.cancel_requested {
            return fail("cancelling without a cancel");
        }
        if self.state == State::Running && self.cancel_requested {
            return fail("running after a cancel");
        }
        let waits = self.state.is_waiting() || self.state == State::Queued && !self.has_non_idempotent_fence();
        if self.cancel_requested && (waits || matches!(self.state, State::Completed | State::Failed)) {
            return fail("a cancel was not heard");
        }
        if self.fence.is_some() && (self.state.is_waiting() || self.state.is_settled()) {
            return fail("a fence stands where nothing is in flight");
        }
        if let Some(fence) = &self.fence {
            if fence.epoch > self.epoch {
                return fail("a fence of an epoch that has not been");
            }
            match self.fenced_call() {
                Some(call) if call.is_pending() => {}
                _ => return fail("the fence names no pending call of the open turn"),
            }
        }
        if self.reason == Some(super::state::Reason::WriteInDoubt) && !self.has_non_idempotent_fence() {
            return fail("in doubt without a non-idempotent fence");
        }
        if matches!(self.state, State::Completed | State::Cancelled) && self.has_pending_calls() {
            return fail("ended with a call that has no outcome");
        }
        if self.state.is_waiting() && self.turn.as_ref().is_none_or(|t| t.digest.is_none() || t.pending().next().is_none()) {
            return fail("waits for nothing");
        }
        if !self.state.is_held() && self.turn.iter().flat_map(|t| &t.calls).any(|c| c.question.is_some()) {
            return fail("a question stands where nothing runs");
        }
        if self.sequence == 0 {
            return fail("no journal");
        }
        Ok(())
    }
}
