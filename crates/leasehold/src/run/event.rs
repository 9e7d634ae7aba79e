//! What can happen to a run, by who has the authority: the holder, a former holder, the clock, a person. Nothing else changes one.

use super::{
    chain::Hash256,
    decision::{EditedCard, TurnCard},
    ids::{CallId, LeaseId, RunId},
    journal::{ReplyCall, Request, body},
    snapshot::{LeaseTime, Usage},
    state::{Effect, LateAnswer, Mode, OnExpiry, Principal, Reason, Recovery, ResolutionKind, SegmentKind, words},
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{collections::BTreeSet, time::Duration};

/// A run to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRun {
    /// Chosen by the starter, so that a repeat after a lost answer is the same run.
    pub id: RunId,
    /// Random: the key of the hashes in its chain.
    pub salt: Hash256,
    /// The agent.
    pub agent: String,
    /// Hash of its configuration.
    pub agent_version: String,
    /// What is asked.
    pub request: Request,
    /// How.
    pub mode: Mode,
    /// Who finishes it; none: requeue where it was queued, abandon where a caller waits.
    pub recovery: Option<Recovery>,
    /// Under whose identity it executes.
    pub owner: String,
    /// The person behind it.
    pub initiator: String,
    /// The team that sees it.
    pub team: Option<String>,
    /// Who asked.
    pub by: Principal,
    /// Larger is claimed earlier.
    pub priority: i32,
    /// Not claimed before.
    pub run_at: Option<Timestamp>,
    /// The agent wants four eyes.
    pub second_approver: bool,
}

/// A right to execute, as it is handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// New.
    pub lease_id: LeaseId,
    /// Host and process: the holder's name without the kind of segment.
    pub process: String,
}

/// The right that an actor claims to act under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// Its epoch.
    pub epoch: u64,
    /// Its lease.
    pub lease_id: LeaseId,
}

/// What a claimer can execute.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Claimer {
    /// Agents it has.
    pub agents: BTreeSet<String>,
    /// Tools it has.
    pub tools: BTreeSet<String>,
    /// The queue is open to it.
    pub open: bool,
}

/// What a segment records.
#[derive(Clone, Debug, PartialEq)]
pub enum Recorded {
    /// A whole model reply; opens a turn.
    Reply {
        /// Journaled as it is; its `turn` is set by the core.
        reply: body::ModelReply,
        /// What happens when nobody decides about its calls.
        on_expiry: OnExpiry,
    },
    /// What became of a call; `late` and `evidence` are set by the core.
    Outcome(body::ToolOutcome),
    /// Take the late evidence on a call as its outcome.
    Evidence(CallId),
}

/// How a write is stamped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StampCall {
    /// The call.
    pub call_id: CallId,
    /// As declared now; the more careful of this and the recorded one counts.
    pub effect: Effect,
    /// The tool can be asked afterwards.
    pub verifiable: bool,
    /// The tool's timeout + its `settle_after`.
    pub in_flight_for: Duration,
    /// Where the tool sends it.
    pub endpoint: String,
}

/// What the holder of the lease does.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// Extends the lease.
    Heartbeat,
    /// Journals what it learned.
    Record(Vec<Recorded>),
    /// Sets the fence.
    Stamp(StampCall),
    /// Sets the standing fence anew, to repeat its call.
    Restamp {
        /// The same as for a stamp.
        stamp: StampCall,
        /// The tool was asked since the call was last entered, and it was not there.
        found_absent: bool,
    },
    /// Certainly not entered under its own stamp.
    Unstamp {
        /// The call.
        call_id: CallId,
        /// Why.
        why: String,
    },
    /// What the call answered is that it needs input: it is pending again, without a fence.
    InputRequired(body::InputRequired),
    /// Asks a person.
    Suspend {
        /// What the person sees.
        card: TurnCard,
        /// Until when.
        deadline: Option<Timestamp>,
    },
    /// The agent answered.
    Complete {
        /// The answer.
        output: String,
        /// The cap on rounds ended it.
        truncated: bool,
    },
    /// The agent failed.
    Fail {
        /// Why.
        reason: Reason,
        /// In words.
        detail: String,
    },
    /// Try later.
    Retry {
        /// In words.
        why: String,
        /// Not before, where somebody said so.
        not_before: Option<Timestamp>,
    },
    /// Shuts down.
    Yield,
    /// Nobody knows what became of the write.
    Doubt {
        /// In words.
        why: String,
    },
    /// Request or journal does not decode.
    Unreadable {
        /// In words; no content.
        why: String,
    },
    /// A running tool asks a person.
    Question(body::Question),
    /// Ends a cancelled run once nothing runs.
    Settle,
}

/// What a process says about a call that it stamped, after its right moved on.
#[derive(Clone, Debug, PartialEq)]
pub struct Late {
    /// The call.
    pub call_id: CallId,
    /// The right it was stamped under.
    pub right: Right,
    /// What it says.
    pub answer: LateAnswer,
    /// The answer is an error.
    pub is_error: bool,
    /// The answer.
    pub result: Value,
}

/// What time alone does.
#[derive(Clone, Debug, PartialEq)]
pub enum Tick {
    /// A lease ended.
    Expire {
        /// The right as seen.
        right: Right,
        /// Its end as seen; the store checks it again.
        expires_at: LeaseTime,
    },
    /// Nobody decided in time.
    WaitExpired,
}

/// A person's word on one call.
#[derive(Clone, Debug, PartialEq)]
pub struct DecideCall {
    /// The call.
    pub call_id: CallId,
    /// Approved or denied.
    pub approved: bool,
    /// Why.
    pub reason: Option<String>,
    /// Changed arguments, already validated.
    pub arguments: Option<Map<String, Value>>,
    /// Preview and precondition of the changed arguments. [`Runtime::decide`](crate::Runtime::decide) asks the tool for them; what
    /// a caller puts here does not count.
    pub edited_card: Option<EditedCard>,
}

impl DecideCall {
    /// Lets a call run.
    pub fn approve(call_id: CallId) -> Self {
        Self { call_id, approved: true, reason: None, arguments: None, edited_card: None }
    }
    /// Denies a call; the model is told the reason.
    pub fn deny(call_id: CallId, reason: Option<String>) -> Self {
        Self { call_id, approved: false, reason, arguments: None, edited_card: None }
    }
    /// Lets a call run with other arguments than the model asked for.
    pub fn edit(call_id: CallId, arguments: Map<String, Value>) -> Self {
        Self { arguments: Some(arguments), ..Self::approve(call_id) }
    }
}

/// What a person, or a machine with the right, orders.
#[derive(Clone, Debug, PartialEq)]
pub enum Order {
    /// Decides about calls; the last one continues the run.
    Decide {
        /// Names what was seen.
        digest: String,
        /// Per call, undecided ones only.
        calls: Vec<DecideCall>,
        /// The decider executes; none: the run is queued.
        grant: Option<Grant>,
    },
    /// Decides about some calls; others stay undecided.
    DecidePart {
        /// Names what was seen.
        digest: String,
        /// Per call.
        calls: Vec<DecideCall>,
    },
    /// Proposes other arguments, under four eyes.
    Edit {
        /// Names what was seen.
        digest: String,
        /// The card with the new arguments.
        card: TurnCard,
        /// Per call: the new arguments.
        calls: Vec<DecideCall>,
    },
    /// Fills in values.
    Submit {
        /// Names what was seen.
        digest: String,
        /// For which call.
        call_id: CallId,
        /// Which of the questions that the call has asked; none: the values that its tool declares.
        question: Option<String>,
        /// Already validated; none: the person declines.
        values: Option<Map<String, Value>>,
        /// The submitter executes; none: the run is queued.
        grant: Option<Grant>,
    },
    /// Answers a running tool.
    Answer {
        /// The call that asks.
        call_id: CallId,
        /// Which question.
        question: u64,
        /// Already validated; none: the person declines.
        values: Option<Map<String, Value>>,
    },
    /// Cancels.
    Cancel {
        /// Why.
        note: Option<String>,
    },
    /// Settles a doubt.
    Resolve {
        /// The write.
        call_id: CallId,
        /// Which doubt.
        fence_epoch: u64,
        /// What the person says.
        outcome: ResolutionKind,
        /// What the write answered, where the person knows.
        result: Option<Value>,
        /// Why.
        note: Option<String>,
    },
    /// Sends a dead or failed run on.
    Redrive {
        /// Releases older than this are asked for again.
        approved_after: Timestamp,
        /// Why.
        note: Option<String>,
    },
    /// Gives a run up.
    Discard {
        /// Why.
        note: Option<String>,
    },
    /// The store was restored from a backup.
    Restored,
}

/// An event of a run that exists.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A worker takes it from the queue.
    Claim {
        /// The right it gets.
        grant: Grant,
        /// What the claimer can execute.
        claimer: Claimer,
    },
    /// The holder acts.
    Holder(Right, Act),
    /// A former holder speaks.
    LateOutcome(Late),
    /// Time passed.
    Clock(Tick),
    /// A person orders.
    Person(Principal, Order),
}

words!(
    /// Events by name, as in the transition table.
    EventKind {
        /// start
        Start,
        /// enqueue
        Enqueue,
        /// claim
        Claim,
        /// heartbeat
        Heartbeat,
        /// record
        Record,
        /// stamp
        Stamp,
        /// restamp
        Restamp,
        /// unstamp
        Unstamp,
        /// input_required
        InputRequired,
        /// suspend
        Suspend,
        /// complete
        Complete,
        /// fail
        Fail,
        /// retry
        Retry,
        /// yield
        Yield,
        /// doubt
        Doubt,
        /// unreadable
        Unreadable,
        /// question
        Question,
        /// answer
        Answer,
        /// cancel
        Cancel,
        /// settle
        Settle,
        /// decide_part
        DecidePart,
        /// edit
        Edit,
        /// decide
        Decide,
        /// submit
        Submit,
        /// wait_expired
        WaitExpired,
        /// expire
        Expire,
        /// restored
        Restored,
        /// late_outcome
        LateOutcome,
        /// resolve
        Resolve,
        /// redrive
        Redrive,
        /// discard
        Discard,
    }
);

impl EventKind {
    /// A person's word on what waits.
    pub(super) fn decides(self) -> bool {
        matches!(self, Self::Decide | Self::DecidePart | Self::Edit | Self::Submit)
    }
}

impl Event {
    /// Its name.
    pub fn kind(&self) -> EventKind {
        match self {
            Self::Claim { .. } => EventKind::Claim,
            Self::Holder(_, act) => match act {
                Act::Heartbeat => EventKind::Heartbeat,
                Act::Record(_) => EventKind::Record,
                Act::Stamp(_) => EventKind::Stamp,
                Act::Restamp { .. } => EventKind::Restamp,
                Act::Unstamp { .. } => EventKind::Unstamp,
                Act::Suspend { .. } => EventKind::Suspend,
                Act::Complete { .. } => EventKind::Complete,
                Act::Fail { .. } => EventKind::Fail,
                Act::Retry { .. } => EventKind::Retry,
                Act::Yield => EventKind::Yield,
                Act::Doubt { .. } => EventKind::Doubt,
                Act::Unreadable { .. } => EventKind::Unreadable,
                Act::Question(_) => EventKind::Question,
                Act::InputRequired(_) => EventKind::InputRequired,
                Act::Settle => EventKind::Settle,
            },
            Self::LateOutcome(_) => EventKind::LateOutcome,
            Self::Clock(Tick::Expire { .. }) => EventKind::Expire,
            Self::Clock(Tick::WaitExpired) => EventKind::WaitExpired,
            Self::Person(_, order) => match order {
                Order::Decide { .. } => EventKind::Decide,
                Order::DecidePart { .. } => EventKind::DecidePart,
                Order::Edit { .. } => EventKind::Edit,
                Order::Submit { .. } => EventKind::Submit,
                Order::Answer { .. } => EventKind::Answer,
                Order::Cancel { .. } => EventKind::Cancel,
                Order::Resolve { .. } => EventKind::Resolve,
                Order::Redrive { .. } => EventKind::Redrive,
                Order::Discard { .. } => EventKind::Discard,
                Order::Restored => EventKind::Restored,
            },
        }
    }
}

/// How long a requeued run waits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// After the first requeue.
    pub initial: Duration,
    /// Times the wait before.
    pub factor: f64,
    /// At most.
    pub max: Duration,
    /// Spread over the upper half of the wait.
    pub jitter: bool,
}

impl Backoff {
    /// The wait after `requeues` earlier ones; `chance` in 0..1.
    pub fn wait(&self, requeues: u32, chance: f64) -> Duration {
        let grown = self.initial.as_secs_f64() * self.factor.max(1.0).powi(i32::try_from(requeues).unwrap_or(i32::MAX));
        let capped = grown.min(self.max.as_secs_f64());
        let wait = if self.jitter { capped * (0.5 + chance.clamp(0.0, 1.0) / 2.0) } else { capped };
        Duration::try_from_secs_f64(wait).unwrap_or(self.max)
    }
}

/// The operator's rules that the core needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Requeues before a run is dead.
    pub max_requeues: u32,
    /// Between them.
    pub backoff: Backoff,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_requeues: 3,
            backoff: Backoff { initial: Duration::from_secs(5), factor: 2.0, max: Duration::from_secs(600), jitter: true },
        }
    }
}

/// What the core is told about the world.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Now {
    /// Wall time.
    pub wall: Timestamp,
    /// The operator's rules.
    pub policy: Policy,
    /// A random number in 0..1, for the jitter.
    pub chance: f64,
}

/// Adds to a usage; kept beside the events because totals are part of the row.
pub(crate) fn total(row: Usage, reply: Usage) -> Usage {
    row.plus(reply)
}

/// A reply's calls as they stand in the row.
pub(crate) fn open_calls(calls: &[ReplyCall]) -> Vec<super::snapshot::OpenCall> {
    calls
        .iter()
        .map(|call| super::snapshot::OpenCall {
            id: call.id.clone(),
            tool: call.tool.clone(),
            effect: call.effect,
            needs_person: call.needs_person,
            verdict: None,
            outcome: None,
            stamps: Vec::new(),
            absent: false,
            evidence: None,
            question: None,
        })
        .collect()
}

/// The name of a holder.
pub(crate) fn holder_name(kind: SegmentKind, process: &str) -> String {
    format!("{kind}:{process}")
}

/// What a write's stamp counts against a budget. The same call is counted once, however often it is stamped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Names the budget.
    pub budget: String,
    /// The call.
    pub call: CallId,
    /// When, by the clock of the process that stamps.
    pub at: Timestamp,
    /// What was counted in this time before counts.
    pub window: Duration,
    /// So much together at most; none: counted, and let through (a person has said so).
    pub max: Option<i64>,
    /// So much: 1 for a count, millionths for a sum.
    pub amount: i64,
}

impl Charge {
    /// What was counted at or before this time does not count.
    pub(crate) fn since(&self) -> Timestamp {
        self.at.checked_sub(self.window).unwrap_or(Timestamp::MIN)
    }
    /// With what was spent it is too much.
    pub(crate) fn exceeds(&self, spent: i64) -> bool {
        self.max.is_some_and(|max| spent.saturating_add(self.amount) > max)
    }
}
