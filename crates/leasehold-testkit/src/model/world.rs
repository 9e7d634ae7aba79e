//! The run as the store has it, the processes round it, and what really happened at the far side.

use super::{Plan, checks, given};
use leasehold::run::{CallId, Delta, Effect, Event, LateAnswer, Outcome, Rejection, Snapshot, State, Via, apply, birth};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Wire {
    /// Under way: it may still land.
    Flying,
    /// The effect happened.
    Landed,
    /// It never will.
    Lost,
}

/// Where a process is; calls by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum At {
    /// Has no right, and nothing to say.
    Away,
    /// Holds the right, in no tool.
    Ready,
    /// Has asked the tool, and it was not there.
    FoundAbsent(u8),
    /// Its stamp is durable, and the answer is lost.
    StampSent(u8),
    /// It has the permit and has not entered.
    Stamped(u8),
    /// In the tool.
    InTool(u8, Wire),
    /// The tool has answered; nothing is recorded.
    Answered(u8, LateAnswer),
    /// The tool has answered that it needs input; nothing is recorded.
    Asked(u8),
    /// The record is durable, and the answer is lost.
    RecordSent(u8, LateAnswer),
    /// Has lost the right and something to say; true: it may be on record already.
    Late(u8, LateAnswer, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Process {
    pub(super) at: At,
    /// Of the right that it has or had.
    pub(super) epoch: u64,
    /// Entries of an idempotent write under this right.
    pub(super) entries: u8,
}

/// A call as the far side and the journal know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Call {
    /// Requests whose process does not wait for them any more.
    pub(super) flying: u8,
    /// How often the effect happened.
    pub(super) landed: u8,
    /// Somebody has entered it since the record last allowed that.
    pub(super) entered: bool,
    /// Its outcome in the journal.
    pub(super) outcome: Option<(Outcome, Via)>,
    /// Somebody said "not applied" while an attempt was under way or had landed: the documented exception.
    pub(super) excepted: bool,
    /// Attempts that said that they are done.
    pub(super) told_done: u8,
    /// It has asked for input, and nobody has replied.
    pub(super) waits: bool,
}

/// What of the bounds is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Spent {
    pub(super) grants: u8,
    pub(super) losses: u8,
    pub(super) resolutions: u8,
    pub(super) redrives: u8,
    pub(super) stops: u8,
    pub(super) restores: u8,
    pub(super) unstamps: u8,
    pub(super) asks: u8,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) row: Snapshot,
    pub(super) processes: Vec<Process>,
    pub(super) calls: Vec<Call>,
    /// The digest that was decided on last.
    pub(super) consumed: Option<String>,
    pub(super) spent: Spent,
}

const AWAY: Process = Process { at: At::Away, epoch: 0, entries: 0 };

impl World {
    pub(super) fn born(plan: &Plan) -> Self {
        let claimed = plan.recovery == leasehold::run::Recovery::Abandon;
        let grant = claimed.then(|| leasehold::run::Grant { lease_id: given::lease_of(1), process: "model:1".into() });
        let row = birth(given::new_run(plan), grant, &given::now(plan, given::SOON)).next;
        let mut processes = vec![AWAY; plan.bounds.processes];
        if claimed {
            processes[0] = Process { at: At::Ready, epoch: 1, entries: 0 };
        }
        let calls = vec![Call::default(); plan.calls().len()];
        Self { row, processes, calls, consumed: None, spent: Spent::default() }
    }

    pub(super) fn in_short(&self) -> String {
        let at: Vec<String> = self.processes.iter().map(|p| format!("{:?}@{}", p.at, p.epoch)).collect();
        let fence = self.row.fence.as_ref().map(|f| format!(" fence {}@{}", f.call_id, f.epoch)).unwrap_or_default();
        format!("{} {:?} epoch {}{fence}; {}", self.row.state, self.row.reason, self.row.epoch, at.join(", "))
    }

    pub(super) fn has_right(&self, epoch: u64) -> bool {
        self.row.state.is_held() && self.row.epoch == epoch
    }

    pub(super) fn fenced(&self, ids: &[CallId]) -> Option<usize> {
        self.row.fence.as_ref().and_then(|f| ids.iter().position(|id| *id == f.call_id))
    }

    /// A request is under way, or a process has a permit and has not entered yet.
    pub(super) fn under_way(&self, call: usize) -> bool {
        self.calls[call].flying > 0
            || self.processes.iter().any(|p| match p.at {
                At::Stamped(c) | At::StampSent(c) | At::InTool(c, Wire::Flying) => usize::from(c) == call,
                _ => false,
            })
    }

    /// Sends an event. `None`: a rule refuses it, and nothing has changed.
    pub(super) fn send(&self, plan: &Plan, ids: &[CallId], event: Event, seconds: i64) -> Result<Option<Self>, String> {
        let Ok(delta) = self.ask(plan, event.clone(), seconds)? else { return Ok(None) };
        let mut next = self.clone();
        checks::transition(self, &event, &delta)?;
        for entry in &delta.entries {
            checks::entry(&mut next, self, entry, ids)?;
        }
        next.row = delta.next;
        checks::repeated(plan, &next, event, seconds)?;
        Ok(Some(next))
    }

    /// Asks the core.
    pub(super) fn ask(&self, plan: &Plan, event: Event, seconds: i64) -> Result<Result<Delta, Rejection>, String> {
        match apply(&self.row, event, &given::now(plan, seconds)) {
            Err(Rejection::OffTable { what, .. }) => Err(format!("the draft is off the table: {what}")),
            answer => Ok(answer),
        }
    }

    /// The effect happened; beyond twice (of a write whose repeats converge: once) it makes no difference.
    pub(super) fn land(&mut self, call: usize, effect: Effect) {
        let most = if effect == Effect::NonIdempotentWrite { 2 } else { 1 };
        self.calls[call].landed = self.calls[call].landed.saturating_add(1).min(most);
    }

    /// What every process does by itself once its right is gone: one in no tool stops, one with something to say says it late.
    pub(super) fn settled_down(mut self) -> Self {
        for index in 0..self.processes.len() {
            let process = self.processes[index];
            if self.has_right(process.epoch) {
                continue;
            }
            match process.at {
                At::Ready | At::FoundAbsent(_) => self.processes[index] = AWAY,
                At::Answered(call, answer) => self.processes[index].at = At::Late(call, answer, false),
                At::RecordSent(call, answer) => self.processes[index].at = At::Late(call, answer, true),
                At::Asked(call) => self.processes[index].at = At::Late(call, LateAnswer::Unknown, false),
                At::StampSent(call) => self.processes[index].at = At::Late(call, LateAnswer::NotStarted, false),
                _ => {}
            }
        }
        self
    }

    /// A process dies where it is.
    pub(super) fn crash(&self, index: usize) -> Self {
        let mut next = self.clone();
        if let At::InTool(call, Wire::Flying) = next.processes[index].at {
            next.calls[usize::from(call)].flying += 1;
        }
        next.processes[index] = AWAY;
        next
    }

    pub(super) fn put(mut self, index: usize, at: At) -> Self {
        if at == At::Away {
            self.processes[index] = AWAY;
        } else {
            self.processes[index].at = at;
        }
        self
    }

    /// Two worlds of one key have the same future. Epochs count only by which of them are equal and which is larger; entry
    /// numbers, times and names decide nothing.
    pub(super) fn key(&self, ids: &[CallId]) -> u128 {
        let speaks = |epoch: u64| self.processes.iter().any(|p| p.at != At::Away && p.epoch == epoch);
        let epochs = self.epochs(speaks);
        let rank = |epoch: u64| epochs.binary_search(&epoch).ok();
        let mut processes: Vec<(At, Option<usize>, u8)> = self
            .processes
            .iter()
            .map(|p| if p.at == At::Away { (p.at, None, 0) } else { (p.at, rank(p.epoch), p.entries) })
            .collect();
        processes.sort_unstable();
        let digest = self.row.turn.as_ref().and_then(|t| t.digest.as_ref());
        let stale = self.consumed.is_some() && self.consumed.as_ref() != digest;
        let hash = |salt: u64| {
            let mut hasher = DefaultHasher::new();
            (salt, &processes, &self.calls, self.spent, stale).hash(&mut hasher);
            self.hash_row(&mut hasher, ids, rank, speaks);
            hasher.finish()
        };
        u128::from(hash(1)) << 64 | u128::from(hash(2))
    }

    /// The row alone.
    pub(super) fn row_key(&self, ids: &[CallId]) -> u64 {
        let mut hasher = DefaultHasher::new();
        let epochs = self.epochs(|_| false);
        self.hash_row(&mut hasher, ids, |epoch| epochs.binary_search(&epoch).ok(), |_| false);
        hasher.finish()
    }

    /// The epochs that decide something, in order: the row's, the fence's, and those of processes that may still speak.
    fn epochs(&self, speaks: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut epochs: Vec<u64> = self.processes.iter().map(|p| p.epoch).filter(|epoch| speaks(*epoch)).collect();
        epochs.push(self.row.epoch);
        epochs.extend(self.row.fence.iter().map(|f| f.epoch));
        epochs.sort_unstable();
        epochs.dedup();
        epochs
    }

    fn hash_row(
        &self,
        hasher: &mut DefaultHasher,
        ids: &[CallId],
        rank: impl Fn(u64) -> Option<usize>,
        speaks: impl Fn(u64) -> bool,
    ) {
        let row = &self.row;
        (row.state, row.reason, rank(row.epoch), row.cancel_requested, row.recovery, row.requeues).hash(hasher);
        (row.rounds, row.duplicates, row.contradictions > 0).hash(hasher);
        if let Some(fence) = &row.fence {
            (self.fenced(ids), rank(fence.epoch), fence.repeat, fence.verifiable, fence.effect).hash(hasher);
        }
        let Some(turn) = &row.turn else { return };
        (turn.number, turn.digest.is_some(), turn.calls.len()).hash(hasher);
        let heard = |c: &&leasehold::run::OpenCall| c.stamps.iter().any(|s| speaks(s.epoch));
        for call in turn.calls.iter().chain(turn.earlier.iter().filter(heard)) {
            (&call.id, call.absent).hash(hasher);
            let verdict = call.verdict.as_ref().map(|v| v.approved);
            (call.needs_person, verdict, call.outcome, call.evidence.is_some()).hash(hasher);
            // Of stamps whose process is gone only this counts: whether any was entered, how many are known to be done.
            let gone = |s: &&leasehold::run::Stamp| !speaks(s.epoch);
            let entered = call.stamps.iter().filter(gone).any(|s| s.entered);
            let repeat = call.stamps.iter().rfind(|s| s.entered).is_some_and(|s| s.repeat);
            let done = call.stamps.iter().filter(gone).filter(|s| s.late.contains(&LateAnswer::Done)).count();
            (entered, repeat, call.has_asked(), done).hash(hasher);
            let newest = call.stamps.last().map(|s| (s.entered, s.asked, rank(s.epoch)));
            newest.hash(hasher);
            for stamp in call.stamps.iter().filter(|s| speaks(s.epoch)) {
                let said = stamp.late.iter().fold(0_u8, |said, answer| said | 1 << (*answer as u8));
                (rank(stamp.epoch), stamp.entered, stamp.asked, stamp.repeat, said).hash(hasher);
            }
        }
    }

    /// Counts what makes the exploration more than a walk round an empty room.
    pub(super) fn note(&self, happened: &mut BTreeMap<&'static str, u64>) {
        let mut note = |what, holds: bool| *happened.entry(what).or_default() += u64::from(holds);
        let row = &self.row;
        note("completed", row.state == State::Completed);
        note("cancelled", row.state == State::Cancelled);
        note("failed", row.state == State::Failed);
        note("waiting", row.state.is_waiting());
        note("in doubt", row.reason == Some(leasehold::run::Reason::WriteInDoubt));
        note("dead otherwise", row.state == State::Dead && row.reason != Some(leasehold::run::Reason::WriteInDoubt));
        note("cancelling under a fence", row.state == State::Cancelling && row.fence.is_some());
        let paused = |p: &Process| matches!(p.at, At::Stamped(_) | At::InTool(..)) && !self.has_right(p.epoch);
        note("a paused process with a permit or in a tool", self.processes.iter().any(paused));
        note("something to say late", self.processes.iter().any(|p| matches!(p.at, At::Late(..))));
        note("an answer lost", self.processes.iter().any(|p| matches!(p.at, At::StampSent(_) | At::RecordSent(..))));
        note("marked: the documented exception", self.calls.iter().any(|c| c.excepted));
        note("landed twice", self.calls.iter().any(|c| c.landed > 1));
        note("listed as landed twice", row.duplicates > 0);
        note("listed as contradicted", row.contradictions > 0);
        note(
            "spoken of after its turn",
            row.turn.iter().flat_map(|t| &t.earlier).any(|c| c.stamps.iter().any(|s| !s.late.is_empty())),
        );
        let via = |via| self.calls.iter().any(|c| c.outcome.is_some_and(|(_, v)| v == via));
        note("a tool asks", self.calls.iter().any(|c| c.waits));
        note("waiting for input", row.state == State::WaitingForInput);
        note("evidence taken", via(Via::Evidence));
        note("a late outcome", via(Via::LateOutcome));
        note("verified", via(Via::Verify));
        note("resolved", via(Via::Resolution));
    }
}
