//! The transition table, once. [`apply`](super::apply) refuses what is not in it and checks its own work against it;
//! `docs/state-machine.md` is generated from it; the stores' schema constraints mirror it.

use super::{event::EventKind as E, state::State as S};
use super::{event::EventKind, state::State, transition::RejectionDiscriminants};
use strum::IntoEnumIterator as _;

/// What becomes of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// Stays.
    Same,
    /// Is this.
    Is(State),
}

/// What becomes of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochOp {
    /// Stays.
    Keep,
    /// + 1: the right changes hands.
    Next,
    /// + 1 where the run is granted, stays where it is queued.
    NextIfGranted,
    /// + 2^20: no epoch of a lost interval comes again.
    Jump,
}

/// What becomes of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseCol {
    /// Stays.
    Keep,
    /// A new one.
    Grant,
    /// A new one, or none where the run is queued.
    GrantOrNone,
    /// The same for longer.
    Extend,
    /// None any more.
    Drop,
}

/// What becomes of the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceCol {
    /// There is none, before and after.
    None,
    /// Stays as it is.
    Keep,
    /// Set.
    Set,
    /// Set anew for the same call.
    Renew,
    /// Removed.
    Remove,
    /// Removed where the event says so, else stays.
    RemoveOrKeep,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// From these states; empty: before the run exists.
    pub from: &'static [State],
    /// On this event.
    pub event: EventKind,
    /// If.
    pub guard: &'static str,
    /// To one of these.
    pub to: &'static [To],
    /// The epoch.
    pub epoch: EpochOp,
    /// The lease.
    pub lease: LeaseCol,
    /// The fence.
    pub fence: FenceCol,
    /// Entries of these kinds only.
    pub journal: &'static [&'static str],
}

const fn rule(
    from: &'static [State],
    event: EventKind,
    guard: &'static str,
    to: &'static [To],
    ops: (EpochOp, LeaseCol, FenceCol),
    journal: &'static [&'static str],
) -> Rule {
    Rule { from, event, guard, to, epoch: ops.0, lease: ops.1, fence: ops.2, journal }
}

use EpochOp as Ep;
use FenceCol as F;
use LeaseCol as L;
use To::{Is, Same};

const HELD: &[State] = &[S::Running, S::Cancelling];
const WAITING: &[State] = &[S::WaitingForApproval, S::WaitingForInput];
const UNSETTLED_OR_DEAD: &[State] = &[S::Queued, S::Running, S::Cancelling, S::WaitingForApproval, S::WaitingForInput, S::Dead];
const ANY: &[State] = &[
    S::Queued,
    S::Running,
    S::Cancelling,
    S::WaitingForApproval,
    S::WaitingForInput,
    S::Completed,
    S::Failed,
    S::Cancelled,
    S::Dead,
];

/// Every transition there is. "holder": epoch and lease id match and the run is running or cancelling.
#[rustfmt::skip]
pub const TABLE: &[Rule] = &[
    rule(&[], E::Start, "request key unused", &[Is(S::Running)], (Ep::Next, L::Grant, F::None), &["started"]),
    rule(&[], E::Enqueue, "request key unused", &[Is(S::Queued)], (Ep::Keep, L::Keep, F::None), &["enqueued"]),
    rule(&[S::Queued], E::Claim, "due; queue open; the claimer serves the agent and every tool of the pending turn and the fence",
        &[Is(S::Running), Is(S::Cancelling)], (Ep::Next, L::Grant, F::Keep), &["segment_opened"]),
    rule(HELD, E::Heartbeat, "holder", &[Same], (Ep::Keep, L::Extend, F::Keep), &[]),
    rule(HELD, E::Record, "holder; a call's outcome: it has none yet; while cancelling only what was in flight",
        &[Same], (Ep::Keep, L::Extend, F::RemoveOrKeep), &["model_reply", "tool_outcome", "duplicate_effect"]),
    rule(&[S::Running], E::Stamp, "holder; no fence; the call is a pending write, released where it must be; no late evidence says done; no cancel requested",
        &[Same], (Ep::Keep, L::Extend, F::Set), &["write_stamped"]),
    rule(&[S::Running], E::Restamp, "holder; the standing fence is this call; no late evidence says done; non-idempotent: taken over, verifiable, and found absent since it was last entered; no cancel requested",
        &[Same], (Ep::Keep, L::Extend, F::Renew), &["write_restamped"]),
    rule(HELD, E::Unstamp, "holder; its own fence, certainly not entered; one taken over is kept",
        &[Same], (Ep::Keep, L::Extend, F::RemoveOrKeep), &["write_not_started", "tool_outcome"]),
    rule(HELD, E::InputRequired, "holder; the call is pending and released; a write: its own fence", &[Same], (Ep::Keep, L::Extend, F::RemoveOrKeep),
        &["input_required", "tool_outcome"]),
    rule(&[S::Running], E::Suspend, "holder; no fence; no cancel requested",
        &[Is(S::WaitingForApproval), Is(S::WaitingForInput)], (Ep::Keep, L::Drop, F::None), &["suspended"]),
    rule(&[S::Running], E::Complete, "holder; no fence; no call without an outcome",
        &[Is(S::Completed)], (Ep::Keep, L::Drop, F::None), &["settled"]),
    rule(&[S::Running], E::Fail, "holder; no fence", &[Is(S::Failed)], (Ep::Keep, L::Drop, F::None), &["settled"]),
    rule(&[S::Running], E::Retry, "holder; no non-idempotent fence; requeues left, or recovery = abandon (failed without a fence, dead with one)",
        &[Is(S::Queued), Is(S::Failed), Is(S::Dead)], (Ep::Keep, L::Drop, F::Keep), &["requeued", "settled", "dead_lettered"]),
    rule(&[S::Running], E::Retry, "holder; no non-idempotent fence; recovery = requeue; requeues spent",
        &[Is(S::Dead)], (Ep::Keep, L::Drop, F::Keep), &["dead_lettered"]),
    rule(&[S::Running], E::Yield, "holder; no non-idempotent fence; recovery = abandon: dead",
        &[Is(S::Queued), Is(S::Dead)], (Ep::Keep, L::Drop, F::Keep), &["requeued", "dead_lettered"]),
    rule(HELD, E::Doubt, "holder; a non-idempotent fence", &[Is(S::Dead)], (Ep::Keep, L::Drop, F::Keep), &["in_doubt"]),
    rule(HELD, E::Unreadable, "holder; request or journal does not decode; in doubt under a non-idempotent fence",
        &[Is(S::Dead)], (Ep::Keep, L::Drop, F::Keep), &["in_doubt", "dead_lettered"]),
    rule(&[S::Cancelling], E::Unreadable, "holder; request or journal does not decode; no non-idempotent fence",
        &[Is(S::Cancelled)], (Ep::Keep, L::Drop, F::RemoveOrKeep), &["settled", "tool_outcome"]),
    rule(&[S::Running], E::Question, "holder; the call is pending; asked until it is answered, asks anew or is entered anew, has its outcome, or the lease ends", &[Same], (Ep::Keep, L::Keep, F::Keep), &["question"]),
    rule(&[S::Running], E::Answer, "names the standing question; for the values of a write: gates pass", &[Same], (Ep::Keep, L::Keep, F::Keep), &["answered"]),
    rule(&[S::Running], E::Cancel, "-", &[Is(S::Cancelling)], (Ep::Keep, L::Keep, F::Keep), &["cancel_requested"]),
    rule(&[S::Cancelling], E::Settle, "holder; no fence, or an idempotent one that is not in the tool any more",
        &[Is(S::Cancelled)], (Ep::Keep, L::Drop, F::RemoveOrKeep), &["settled", "tool_outcome"]),
    rule(&[S::Queued, S::WaitingForApproval, S::WaitingForInput], E::Cancel, "no fence, or an idempotent one",
        &[Is(S::Cancelled)], (Ep::Keep, L::Keep, F::RemoveOrKeep), &["cancel_requested", "settled", "tool_outcome"]),
    rule(&[S::Queued], E::Cancel, "a non-idempotent fence", &[Same], (Ep::Keep, L::Keep, F::Keep), &["cancel_requested"]),
    rule(&[S::Dead], E::Cancel, "write in doubt", &[Same], (Ep::Keep, L::Keep, F::Keep), &["cancel_requested"]),
    rule(&[S::WaitingForApproval], E::DecidePart, "digest names this turn; gates pass; in time; calls stay undecided",
        &[Same], (Ep::Keep, L::Keep, F::None), &["approval", "tool_outcome"]),
    rule(&[S::WaitingForApproval], E::Edit, "the same, under four eyes: a proposal with a new digest",
        &[Same], (Ep::Keep, L::Keep, F::None), &["approval", "suspended"]),
    rule(&[S::WaitingForApproval], E::Decide, "digest names this turn; gates pass; in time; no call stays undecided",
        &[Is(S::Running), Is(S::Queued)], (Ep::NextIfGranted, L::GrantOrNone, F::None), &["approval", "tool_outcome"]),
    rule(&[S::WaitingForInput], E::Submit, "digest names this turn; gates pass; in time",
        &[Is(S::Running), Is(S::Queued)], (Ep::NextIfGranted, L::GrantOrNone, F::None), &["input", "tool_outcome"]),
    rule(WAITING, E::WaitExpired, "deadline passed; to the queue or dead, per agent",
        &[Is(S::Queued), Is(S::Dead)], (Ep::Keep, L::Keep, F::None), &["expired", "tool_outcome", "dead_lettered"]),
    rule(HELD, E::Expire, "lease expired; the verdict: verify, in doubt, abandoned, retries exhausted or requeue",
        &[Is(S::Queued), Is(S::Dead)], (Ep::Next, L::Drop, F::Keep), &["lease_expired", "requeued", "in_doubt", "dead_lettered"]),
    rule(&[S::Cancelling], E::Expire, "lease expired; the verdict: cancelled",
        &[Is(S::Cancelled)], (Ep::Next, L::Drop, F::RemoveOrKeep), &["lease_expired", "settled", "tool_outcome"]),
    rule(UNSETTLED_OR_DEAD, E::Restored, "operator, once after a restore",
        &[Is(S::Dead)], (Ep::Jump, L::Drop, F::Keep), &["dead_lettered", "in_doubt"]),
    rule(HELD, E::LateOutcome, "the fence is this call under the sender's right; done, or not applied / not started where no repeat",
        &[Same], (Ep::Keep, L::Keep, F::Remove), &["tool_outcome", "write_not_started", "duplicate_effect"]),
    rule(&[S::Queued], E::LateOutcome, "the same; cancel requested: cancelled",
        &[Same, Is(S::Cancelled)], (Ep::Keep, L::Keep, F::Remove),
        &["tool_outcome", "write_not_started", "duplicate_effect", "settled"]),
    rule(&[S::Dead], E::LateOutcome, "the same; a doubt continues",
        &[Same, Is(S::Queued), Is(S::Cancelled), Is(S::Dead)], (Ep::Keep, L::Keep, F::Remove),
        &["tool_outcome", "write_not_started", "duplicate_effect", "settled", "dead_lettered", "requeued"]),
    rule(&[S::Queued, S::Running, S::Cancelling, S::Dead], E::LateOutcome, "the sender stamped it; done; no outcome and no fence for it",
        &[Same], (Ep::Keep, L::Keep, F::Keep), &["tool_outcome"]),
    rule(WAITING, E::LateOutcome, "the same; the call leaves the card; none left: queued",
        &[Same, Is(S::Queued)], (Ep::Keep, L::Keep, F::None), &["tool_outcome", "requeued"]),
    rule(ANY, E::LateOutcome, "otherwise", &[Same], (Ep::Keep, L::Keep, F::Keep), &["late_evidence", "duplicate_effect"]),
    rule(&[S::Dead], E::Resolve, "write in doubt; names the call and the fence's epoch; gates pass; not landed: not too early",
        &[Is(S::Queued), Is(S::Cancelled), Is(S::Failed), Is(S::Dead)], (Ep::Keep, L::Keep, F::Remove),
        &["resolved", "tool_outcome", "settled", "requeued", "dead_lettered"]),
    rule(&[S::Dead, S::Failed], E::Redrive, "operator; a request to continue from; no non-idempotent fence; no cancel requested",
        &[Is(S::Queued)], (Ep::Keep, L::Keep, F::Keep), &["redriven", "tool_outcome"]),
    rule(&[S::Dead], E::Discard, "operator", &[Is(S::Cancelled)], (Ep::Keep, L::Keep, F::RemoveOrKeep), &["discarded", "tool_outcome", "settled"]),
    rule(&[S::Queued], E::Discard, "operator; cancel requested",
        &[Is(S::Cancelled)], (Ep::Keep, L::Keep, F::RemoveOrKeep), &["discarded", "tool_outcome", "settled"]),
];

impl To {
    fn in_words(self, from: &[State]) -> String {
        match self {
            Same if from.len() == 1 => from[0].to_string(),
            Same => "=".into(),
            Is(state) => state.to_string(),
        }
    }
}

impl EpochOp {
    fn in_words(self) -> &'static str {
        match self {
            Ep::Keep => "=",
            Ep::Next => "+ 1",
            Ep::NextIfGranted => "+ 1 where granted",
            Ep::Jump => "+ 2^20",
        }
    }
}

impl LeaseCol {
    fn in_words(self) -> &'static str {
        match self {
            L::Keep => "=",
            L::Grant => "grant",
            L::GrantOrNone => "grant / -",
            L::Extend => "extend",
            L::Drop => "drop",
        }
    }
}

impl FenceCol {
    fn in_words(self) -> &'static str {
        match self {
            F::None => "-",
            F::Keep => "keep",
            F::Set => "set",
            F::Renew => "renew",
            F::Remove => "removed",
            F::RemoveOrKeep => "removed / keep",
        }
    }
}

/// `docs/state-machine.md`: this table, a diagram of it, and the words that occur in it.
pub fn markdown() -> String {
    let mut page = String::from(
        "# State machine\n\nGenerated from `TABLE` in `crates/leasehold/src/run/table.rs`; a test compares the two \
         (`UPDATE_DOCS=1 cargo nextest run -p leasehold the_page` writes it anew).\n\n\
         `apply` changes a run by these rules and by nothing else. `=`: stays. *holder*: epoch and lease id match, and the run is \
         running or cancelling. An event that was taken before gets the same answer and is not journaled again.\n\n\
         ## Transitions\n\n| from | event | guard | to | epoch | lease | fence | journal |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for rule in TABLE {
        let cells = [
            list(rule.from.iter().map(ToString::to_string)),
            rule.event.to_string(),
            rule.guard.to_owned(),
            rule.to.iter().map(|to| to.in_words(rule.from)).collect::<Vec<_>>().join(" / "),
            rule.epoch.in_words().to_owned(),
            rule.lease.in_words().to_owned(),
            rule.fence.in_words().to_owned(),
            list(rule.journal.iter().map(ToString::to_string)),
        ];
        page.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    page.push_str("\n## Diagram\n\nChanges of state only.\n\n```mermaid\nstateDiagram-v2\n");
    page.push_str(&diagram());
    page.push_str("```\n\n## States\n\n");
    for state in State::iter() {
        let events = list(EventKind::iter().filter(|e| takes(state, *e)).map(|e| e.to_string()));
        page.push_str(&format!("- `{state}` takes {events}\n"));
    }
    page.push_str("\n## Events\n\n");
    page.push_str(&format!("{}\n", list(EventKind::iter().map(|e| format!("`{e}`")))));
    page.push_str("\n## Rejections\n\nNothing has changed when an event is rejected.\n\n");
    let names = RejectionDiscriminants::iter().map(|r| format!("`{}`", <&str>::from(r)));
    page.push_str(&format!("{}\n", list(names)));
    page
}

/// A run in this state has a rule for this event.
pub fn takes(state: State, event: EventKind) -> bool {
    TABLE.iter().any(|rule| rule.event == event && rule.from.contains(&state))
}

/// The edges of the diagram, one for each pair of states.
fn diagram() -> String {
    let mut edges: std::collections::BTreeMap<(Option<State>, State), Vec<EventKind>> = std::collections::BTreeMap::new();
    for rule in TABLE {
        let from = rule.from.iter().copied().map(Some).chain(rule.from.is_empty().then_some(None));
        for (from, to) in from.flat_map(|from| rule.to.iter().map(move |to| (from, *to))) {
            let Is(to) = to else { continue };
            let events = edges.entry((from, to)).or_default();
            if from != Some(to) && !events.contains(&rule.event) {
                events.push(rule.event);
            }
        }
    }
    let mut lines = String::new();
    for ((from, to), events) in edges.iter().filter(|(_, events)| !events.is_empty()) {
        let from = from.map_or("[*]", State::as_str);
        lines.push_str(&format!("    {from} --> {to}: {}\n", list(events.iter().map(ToString::to_string))));
    }
    for state in State::iter().filter(|s| s.is_settled()) {
        lines.push_str(&format!("    {state} --> [*]\n"));
    }
    lines
}

/// Words with commas between them; a dash for none.
fn list(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "-".into() } else { words.join(", ") }
}
