//! A transition in the making: the steps that several events share, each in one place.

use super::{
    event::{Grant, Now},
    ids::CallId,
    journal::{EntryBody, body},
    snapshot::{OpenCall, Snapshot},
    state::{Effect, Outcome, Principal, Reason, Recovery, SegmentKind, State, Via},
    transition::{Delta, LeaseChange, Rejection, lease_of},
};
use serde_json::Value;

/// The new row and the entries so far.
pub(super) struct Draft<'a> {
    pub(super) row: &'a Snapshot,
    pub(super) now: &'a Now,
    pub(super) next: Snapshot,
    entries: Vec<EntryBody>,
    lease: LeaseChange,
}

/// What the model is told of a call whose outcome nobody will know.
const CLOSED_UNKNOWN: &str = "outcome unknown, do not repeat";
/// What the model is told of a call that ends after its tool has asked for input.
const ASKED_BEFORE: &str = "its tool was entered before and asked for input, so that what it did is not known: do not repeat";
/// What the model is told of a call that was never begun.
const CLOSED_NOT_RUN: &str = "not run";

impl<'a> Draft<'a> {
    pub(super) fn new(row: &'a Snapshot, now: &'a Now) -> Self {
        Self { row, now, next: row.clone(), entries: Vec::new(), lease: LeaseChange::Keep }
    }

    pub(super) fn finish(self) -> Delta {
        Delta { next: self.next, entries: self.entries, lease: self.lease }
    }

    /// The sequence of the entry pushed next.
    pub(super) fn sequence(&self) -> u64 {
        self.next.sequence
    }

    pub(super) fn push(&mut self, entry: EntryBody) {
        self.entries.push(entry);
        self.next.sequence += 1;
    }

    pub(super) fn extend(&mut self) {
        self.lease = LeaseChange::Extend;
    }

    /// Ends the standing right; the epoch is the caller's. Whoever asked a person is not heard of any more, so nothing that was asked
    /// is answered after it.
    pub(super) fn drop_lease(&mut self) {
        for call in self.next.turn.iter_mut().flat_map(|turn| &mut turn.calls) {
            call.question = None;
        }
        if self.next.lease.take().is_some() {
            self.lease = LeaseChange::Drop;
        }
    }

    /// Hands the right out.
    pub(super) fn grant(&mut self, grant: &Grant, kind: SegmentKind) {
        self.next.epoch += 1;
        self.next.lease = Some(lease_of(grant, kind));
        self.lease = LeaseChange::Grant;
        self.next.started_at.get_or_insert(self.now.wall);
    }

    /// The pending call of that id.
    pub(super) fn pending(&self, id: &CallId) -> Result<&OpenCall, Rejection> {
        let call = self.next.turn.as_ref().and_then(|t| t.call(id)).ok_or_else(|| Rejection::UnknownCall(id.clone()))?;
        if call.is_pending() { Ok(call) } else { Err(Rejection::HasOutcome(id.clone())) }
    }

    pub(super) fn call_mut(&mut self, id: &CallId) -> Option<&mut OpenCall> {
        self.next.turn.as_mut().and_then(|t| t.call_mut(id))
    }

    /// The call of that id, of the open turn or of an earlier one.
    pub(super) fn known_mut(&mut self, id: &CallId) -> Option<&mut OpenCall> {
        self.next.turn.as_mut().and_then(|t| t.known_mut(id))
    }

    /// The standing fence is this call's.
    pub(super) fn is_fenced(&self, id: &CallId) -> bool {
        self.next.fence.as_ref().is_some_and(|f| &f.call_id == id)
    }

    /// Gives a pending call its outcome and removes its fence. Late evidence that it is done is taken instead of anything that
    /// says otherwise; where its tool answered an attempt and had answered an earlier one, both are listed. A verify or a
    /// person may have seen the earlier attempt's effect: their word is no second landing.
    pub(super) fn outcome(&mut self, mut outcome: body::ToolOutcome) {
        let Some(call) = self.call_mut(&outcome.call_id) else { return };
        let evidence = call.evidence.take();
        let non_idempotent = call.effect == Effect::NonIdempotentWrite;
        if let Some(sequence) = evidence
            && outcome.outcome != Outcome::Done
        {
            outcome.outcome = Outcome::Done;
            outcome.is_error = false;
            outcome.result = Value::Null;
            outcome.via = Via::Evidence;
            outcome.evidence = Some(sequence);
        }
        if call.has_asked() && matches!(outcome.outcome, Outcome::Refused | Outcome::Denied | Outcome::NotRun) {
            // It was entered: that it did nothing before it asked is its own word, and no promise of ours.
            outcome.outcome = Outcome::Unknown;
            outcome.result =
                Value::String(format!("{}; {ASKED_BEFORE}", outcome.result.as_str().unwrap_or("it does not go on")));
        }
        let answered = matches!(outcome.via, Via::Tool | Via::LateOutcome) && outcome.outcome == Outcome::Done;
        let twice = answered && non_idempotent && call.attempts_done() > 1;
        call.outcome = Some(outcome.outcome);
        call.question = None;
        let duplicate = body::DuplicateEffect {
            call_id: outcome.call_id.clone(),
            tool: outcome.tool.clone(),
            epoch: self.next.fence.as_ref().map_or(self.next.epoch, |f| f.epoch),
        };
        if self.is_fenced(&outcome.call_id) {
            self.next.fence = None;
        }
        self.push(EntryBody::ToolOutcome(outcome));
        if twice {
            self.duplicate(duplicate);
        }
    }

    /// Lists a call that landed twice.
    pub(super) fn duplicate(&mut self, duplicate: body::DuplicateEffect) {
        self.next.duplicates = self.next.duplicates.saturating_add(1);
        self.push(EntryBody::DuplicateEffect(duplicate));
    }

    /// An outcome that the runtime gives, in words.
    pub(super) fn outcome_text(&mut self, id: &CallId, outcome: Outcome, via: Via, text: &str) {
        let tool = self.call_mut(id).map(|c| c.tool.clone()).unwrap_or_default();
        self.outcome(body::ToolOutcome {
            call_id: id.clone(),
            tool,
            outcome,
            is_error: true,
            result: Value::String(text.to_owned()),
            late: false,
            via,
            evidence: None,
        });
    }

    /// The late evidence on a call becomes its outcome.
    pub(super) fn take_evidence(&mut self, id: &CallId) {
        // `outcome` replaces whatever it is given by the evidence.
        self.outcome_text(id, Outcome::Unknown, Via::Evidence, "");
    }

    /// Gives every call of the open turn its outcome, because the run ends here.
    pub(super) fn close_turn(&mut self) {
        let pending: Vec<(CallId, bool)> = match &self.next.turn {
            Some(turn) => turn.pending().map(|c| (c.id.clone(), self.is_fenced(&c.id) || c.maybe_entered())).collect(),
            None => Vec::new(),
        };
        for (id, maybe_entered) in pending {
            if maybe_entered {
                self.outcome_text(&id, Outcome::Unknown, Via::Close, CLOSED_UNKNOWN);
            } else {
                self.outcome_text(&id, Outcome::NotRun, Via::Close, CLOSED_NOT_RUN);
            }
        }
    }

    /// Ends the run as cancelled, its turn closed in the same transaction.
    pub(super) fn cancelled(&mut self, detail: &str) {
        self.close_turn();
        self.settle(State::Cancelled, None, None, false, detail);
    }

    /// Ends the run.
    pub(super) fn settle(
        &mut self,
        state: State,
        reason: Option<Reason>,
        output: Option<String>,
        truncated: bool,
        detail: &str,
    ) {
        self.drop_lease();
        self.next.state = state;
        self.next.reason = reason;
        self.next.finished_at = Some(self.now.wall);
        self.push(EntryBody::Settled(body::Settled { state, reason, output, truncated, detail: detail.to_owned() }));
    }

    /// The runtime refuses to continue.
    pub(super) fn dead(&mut self, reason: Reason, detail: &str) {
        self.drop_lease();
        self.next.state = State::Dead;
        self.next.reason = Some(reason);
        self.next.finished_at = None;
        self.next.since = self.now.wall;
        self.push(EntryBody::DeadLettered(body::DeadLettered { reason, detail: detail.to_owned() }));
    }

    /// The standing write may have happened.
    pub(super) fn in_doubt(&mut self, why: &str) {
        self.drop_lease();
        self.next.state = State::Dead;
        self.next.reason = Some(Reason::WriteInDoubt);
        self.next.finished_at = None;
        self.next.since = self.now.wall;
        if let Some(fence) = self.next.fence.clone() {
            self.push(EntryBody::InDoubt(body::InDoubt {
                call_id: fence.call_id,
                tool: fence.tool,
                idempotency_key: fence.idempotency_key,
                fence_epoch: fence.epoch,
                why: why.to_owned(),
            }));
        }
    }

    /// Back to the queue.
    pub(super) fn queued(&mut self, due_at: jiff::Timestamp, next_segment: SegmentKind) {
        self.drop_lease();
        self.next.state = State::Queued;
        self.next.reason = None;
        self.next.finished_at = None;
        self.next.due_at = due_at;
        self.next.next_segment = next_segment;
    }

    /// Back to the queue, and journaled as that.
    pub(super) fn requeue(&mut self, why: &str, due_at: jiff::Timestamp, next_segment: SegmentKind) {
        self.queued(due_at, next_segment);
        let requeues = self.next.requeues;
        self.push(EntryBody::Requeued(body::Requeued { why: why.to_owned(), requeues, due_at }));
    }

    /// When a run that spends a requeue now is due.
    pub(super) fn after_backoff(&self) -> jiff::Timestamp {
        let wait = self.now.policy.backoff.wait(self.next.requeues, self.now.chance);
        crate::clock::to_millis(self.now.wall.checked_add(wait).unwrap_or(self.now.wall))
    }

    /// The kind of segment that goes on where this one stopped: what was released by a person stays `resume`.
    pub(super) fn same_segment(&self) -> SegmentKind {
        match self.row.lease.as_ref() {
            Some(lease) if lease.holder.starts_with(SegmentKind::Resume.as_str()) => SegmentKind::Resume,
            Some(_) => SegmentKind::Worker,
            None => self.row.next_segment,
        }
    }

    /// Goes on after a doubt was settled, or not: the page's "continue".
    pub(super) fn resume(&mut self, why: &str) {
        if self.next.cancel_requested {
            self.cancelled(why);
        } else if !self.next.has_request {
            self.dead(Reason::Abandoned, "there is nothing to continue from");
        } else if self.next.recovery == Recovery::Abandon {
            self.dead(Reason::Abandoned, "nobody waits for this run any more");
        } else {
            self.requeue(why, self.now.wall, SegmentKind::Resume);
        }
    }

    /// A person's order, as an entry body.
    pub(super) fn by(by: Principal, note: Option<String>) -> body::By {
        body::By { by, note }
    }
}
