//! The row of a run, without any content: everything that guards and closes are decided from. A run whose content cannot be
//! decoded can still be cancelled, discarded and swept, because nothing here depends on it.

use super::{
    chain::Chain,
    ids::{CallId, LeaseId, RunId},
    state::{Attribution, Effect, LateAnswer, Mode, OnExpiry, Outcome, Reason, Recovery, SegmentKind, State},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A point on a store's lease clock. Embedded store: nanoseconds of the boot-time clock (it counts suspend) and the boot's
/// id; a server's store: the database's clock. Points of different clocks are not comparable.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseTime {
    /// Which clock: the boot id, or the name of the database clock.
    pub clock: String,
    /// Nanoseconds on it.
    pub ns: i64,
}

/// The time-limited right to execute a run. Its epoch is the row's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// New with every grant.
    pub lease_id: LeaseId,
    /// Diagnostic name, segment kind first: `resume:web-01:4711`. Decides nothing.
    pub holder: String,
    /// When the right ends unless it is renewed; set by the store, on its own clock.
    pub expires_at: LeaseTime,
}

/// The durable stamp of the one write in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The call that is in flight.
    pub call_id: CallId,
    /// Its tool.
    pub tool: String,
    /// The effect it was stamped with; counts whatever is declared later.
    pub effect: Effect,
    /// Sent with every repeat of this call.
    pub idempotency_key: String,
    /// Epoch of the newest stamp.
    pub epoch: u64,
    /// Lease of the newest stamp.
    pub lease_id: LeaseId,
    /// 1 for the first entry.
    pub attempt: u32,
    /// The call may have been entered before the newest stamp.
    pub repeat: bool,
    /// The tool can be asked whether it happened.
    pub verifiable: bool,
    /// When the newest stamp was made.
    pub stamped_at: Timestamp,
    /// Until then the request may still be on its way: stamped_at + the tool's timeout + its `settle_after`.
    pub in_flight_until: Timestamp,
}

/// One stamp of a call: who could have entered it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The stamping segment's epoch.
    pub epoch: u64,
    /// The stamping segment's lease.
    pub lease_id: LeaseId,
    /// False once it is certain that this segment never entered the call.
    pub entered: bool,
    /// What its process said: the answer it recorded, or what it said after its right moved on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<LateAnswer>,
    /// What it answered is that it needs input before it goes on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asked: bool,
    /// Where it asked: the call may have been entered before, and nobody knows what became of that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeat: bool,
}

/// A person's word on a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallVerdict {
    /// Approved or denied.
    pub approved: bool,
    /// Who.
    pub by: String,
    /// When.
    pub at: Timestamp,
}

/// A call of the open turn, without content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenCall {
    /// Its id.
    pub id: CallId,
    /// Its tool.
    pub tool: String,
    /// What it was declared to do when the model asked for it.
    pub effect: Effect,
    /// A person has to decide before it may start.
    pub needs_person: bool,
    /// What the person said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<CallVerdict>,
    /// What became of it; none: pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Every segment that stamped it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stamps: Vec<Stamp>,
    /// A person said that what was stamped is not there; until the next stamp.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub absent: bool,
    /// Journal sequence of the late evidence that says an earlier attempt is done, not yet taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<u64>,
    /// Journal sequence of the question that this running call asks a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<u64>,
}

impl OpenCall {
    /// Has no outcome yet.
    pub fn is_pending(&self) -> bool {
        self.outcome.is_none()
    }
    /// May start as far as people are concerned.
    pub fn is_released(&self) -> bool {
        !self.needs_person || self.verdict.as_ref().is_some_and(|v| v.approved)
    }
    /// A person has still to say something.
    pub fn is_undecided(&self) -> bool {
        self.is_pending() && self.needs_person && self.verdict.is_none()
    }
    /// Some segment may have entered it.
    pub fn maybe_entered(&self) -> bool {
        self.stamps.iter().any(|s| s.entered)
    }
    /// It was entered, and what it answered last is that it needs input before it goes on.
    pub fn has_asked(&self) -> bool {
        self.stamps.iter().rfind(|s| s.entered).is_some_and(|s| s.asked)
    }
    /// The newest stamp made under this right.
    pub fn stamp_of(&self, epoch: u64, lease_id: LeaseId) -> Option<&Stamp> {
        self.stamps.iter().rfind(|s| s.epoch == epoch && s.lease_id == lease_id)
    }
    /// The newest stamp made under this right.
    pub fn stamp_of_mut(&mut self, epoch: u64, lease_id: LeaseId) -> Option<&mut Stamp> {
        self.stamps.iter_mut().rfind(|s| s.epoch == epoch && s.lease_id == lease_id)
    }
    /// An attempt's process has not said yet what became of it, and its word could speak against the outcome or be a second
    /// landing.
    pub fn may_be_spoken_of(&self) -> bool {
        let matters = self.effect == Effect::NonIdempotentWrite || self.outcome != Some(Outcome::Done);
        matters && self.stamps.iter().any(|s| s.entered && !s.asked && s.late.is_empty())
    }
    /// Attempts whose process said that they are done; more than one of a non-idempotent write is a duplicate effect.
    pub fn attempts_done(&self) -> usize {
        self.stamps.iter().filter(|s| s.late.contains(&LateAnswer::Done)).count()
    }
}

/// The newest model reply's calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTurn {
    /// Counts from 1.
    pub number: u32,
    /// Names exactly what the card showed; none before the first suspend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Until when a person may decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What happens then.
    pub on_expiry: OnExpiry,
    /// Who proposed other arguments; under four eyes they may deny, not release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edited_by: Vec<String>,
    /// In the order the model asked for them.
    pub calls: Vec<OpenCall>,
    /// Of earlier turns, the calls that a former holder may still speak of. Each has its outcome.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub earlier: Vec<OpenCall>,
}

impl OpenTurn {
    /// The call of that id.
    pub fn call(&self, id: &CallId) -> Option<&OpenCall> {
        self.calls.iter().find(|c| &c.id == id)
    }
    /// The call of that id.
    pub fn call_mut(&mut self, id: &CallId) -> Option<&mut OpenCall> {
        self.calls.iter_mut().find(|c| &c.id == id)
    }
    /// The call of that id, of this turn or of an earlier one.
    pub fn known(&self, id: &CallId) -> Option<&OpenCall> {
        self.calls.iter().chain(&self.earlier).find(|c| &c.id == id)
    }
    /// The call of that id, of this turn or of an earlier one.
    pub fn known_mut(&mut self, id: &CallId) -> Option<&mut OpenCall> {
        self.calls.iter_mut().chain(&mut self.earlier).find(|c| &c.id == id)
    }
    /// The calls of this turn and of earlier ones that a former holder may still speak of once the next turn is open.
    pub fn spoken_of_later(self) -> Vec<OpenCall> {
        self.earlier.into_iter().chain(self.calls).filter(OpenCall::may_be_spoken_of).collect()
    }
    /// Calls without an outcome.
    pub fn pending(&self) -> impl Iterator<Item = &OpenCall> {
        self.calls.iter().filter(|c| c.is_pending())
    }
}

/// Totals of a run over all its segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens sent to models.
    pub input_tokens: u64,
    /// Tokens received from models.
    pub output_tokens: u64,
    /// Of the tokens sent, those the provider had cached.
    pub cached_tokens: u64,
    /// Of the tokens received, those the model thought with; 0 where the provider does not tell. Not written then: an entry of an older
    /// version has to read as it was hashed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub reasoning_tokens: u64,
    /// Cost in billionths of a US dollar, where prices are configured.
    pub cost_nano_usd: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(tokens: &u64) -> bool {
    *tokens == 0
}

impl Usage {
    /// The sum; stays at the maximum rather than wrap.
    pub fn plus(self, other: Self) -> Self {
        Self {
            input_tokens: self.input_tokens.saturating_add(other.input_tokens),
            output_tokens: self.output_tokens.saturating_add(other.output_tokens),
            cached_tokens: self.cached_tokens.saturating_add(other.cached_tokens),
            reasoning_tokens: self.reasoning_tokens.saturating_add(other.reasoning_tokens),
            cost_nano_usd: self.cost_nano_usd.saturating_add(other.cost_nano_usd),
        }
    }
}

/// The row of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The run.
    pub id: RunId,
    /// The agent that executes it.
    pub agent: String,
    /// Under whose identity it executes.
    pub owner: String,
    /// The person who started it, or who owns the machine that did.
    pub initiator: String,
    /// The team whose members see it, besides its owner.
    pub team: Option<String>,
    /// How it was asked for.
    pub mode: Mode,
    /// Where it stands.
    pub state: State,
    /// Why, where failed or dead.
    pub reason: Option<Reason>,
    /// How often the right changed hands: the fencing token.
    pub epoch: u64,
    /// Entries in the journal, which is the number of the next one.
    pub sequence: u64,
    /// The standing right, while running or cancelling.
    pub lease: Option<Lease>,
    /// The kind of segment that the next claim makes.
    pub next_segment: SegmentKind,
    /// Somebody cancelled; never unset.
    pub cancel_requested: bool,
    /// Who finishes it.
    pub recovery: Recovery,
    /// The start named the recovery (else it is the default).
    pub recovery_explicit: bool,
    /// Requeues spent.
    pub requeues: u32,
    /// Larger is claimed earlier.
    pub priority: i32,
    /// Not claimed before.
    pub due_at: Timestamp,
    /// The write in flight.
    pub fence: Option<Fence>,
    /// The newest turn.
    pub turn: Option<OpenTurn>,
    /// A request is stored from which it can continue.
    pub has_request: bool,
    /// The initiator and an edit's author may not release.
    pub second_approver: bool,
    /// Model replies so far.
    pub rounds: u32,
    /// Totals so far.
    pub usage: Usage,
    /// Effects known to have landed twice.
    pub duplicates: u32,
    /// Times that a process said of its call what the recorded outcome does not: the opposite, or what nobody knew.
    pub contradictions: u32,
    /// By whom its writes were released so far: the weakest of them.
    pub attribution: Option<Attribution>,
    /// What binds its journal; none where an older version made it.
    pub chain: Option<Chain>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it was first claimed.
    pub started_at: Option<Timestamp>,
    /// When it was settled.
    pub finished_at: Option<Timestamp>,
    /// When a person was first asked for what is waiting now (a decision, values, the answer to a running call), or the run went dead.
    pub since: Timestamp,
}

impl Snapshot {
    /// The pending call that the fence names, with its turn's bookkeeping.
    pub fn fenced_call(&self) -> Option<&OpenCall> {
        let fence = self.fence.as_ref()?;
        self.turn.as_ref()?.call(&fence.call_id)
    }
    /// A non-idempotent write is in flight.
    pub fn has_non_idempotent_fence(&self) -> bool {
        self.fence.as_ref().is_some_and(|f| f.effect == Effect::NonIdempotentWrite)
    }
    /// The call whose fence is missed: its newest stamp may have been used, it has no outcome, its tool has not asked for input, and
    /// nobody said that it is not there. No transition makes such a row.
    pub fn misses_fence(&self) -> Option<&OpenCall> {
        let stamped = |c: &&OpenCall| c.stamps.last().is_some_and(|s| s.entered && !s.asked) && !c.absent;
        let fenced = self.fence.as_ref().map(|f| &f.call_id);
        self.turn.as_ref()?.pending().filter(stamped).find(|c| Some(&c.id) != fenced)
    }
    /// The calls that ask a person something that can be answered, each with its question's sequence.
    pub fn questions(&self) -> impl Iterator<Item = (&OpenCall, u64)> {
        let calls = self.turn.iter().filter(|_| self.state == State::Running).flat_map(|t| t.pending());
        calls.filter_map(|call| Some((call, call.question?)))
    }
    /// Calls without an outcome.
    pub fn has_pending_calls(&self) -> bool {
        self.turn.as_ref().is_some_and(|t| t.pending().next().is_some())
    }
}
