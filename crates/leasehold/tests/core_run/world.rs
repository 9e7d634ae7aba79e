//! A run, its journal, and the world its writes land in. Every accepted event is checked against the invariants of the protocol
//! that can be decided here; they are counted from the journal and the world, never from the row alone.

use super::{given::*, rules};
use leasehold::run::*;
use std::collections::{BTreeMap, BTreeSet};

/// One entry into a tool.
pub(crate) struct Attempt {
    pub(crate) call: CallId,
    pub(crate) right: Right,
    pub(crate) effect: Effect,
    /// The effect really happened.
    pub(crate) landed: bool,
    /// Entered after its right had moved on: the documented exception.
    pub(crate) paused: bool,
    pub(crate) answer: LateAnswer,
}

/// See the module.
pub(crate) struct World {
    pub(crate) seed: u64,
    /// How the run began.
    #[allow(dead_code, reason = "the differential test, which shares this world, inserts it")]
    pub(crate) born: Delta,
    pub(crate) row: Snapshot,
    pub(crate) seconds: i64,
    pub(crate) attempts: Vec<Attempt>,
    /// Rules taken.
    pub(crate) rules: BTreeMap<usize, usize>,
    /// Things that happened, by name, to show that the walk is not vacuous.
    pub(crate) happened: BTreeMap<&'static str, usize>,
    calls: BTreeSet<CallId>,
    outcomes: BTreeMap<CallId, (Outcome, Via)>,
    standing: Option<CallId>,
    /// Entries of a non-idempotent call that somebody allowed beyond the first: a person, or a verify that found nothing.
    allowed_again: BTreeMap<CallId, usize>,
    /// A person said "not landed" and was wrong.
    wrongly_not_landed: BTreeSet<CallId>,
    /// A process that stamped the call said that it is done.
    known_done: BTreeMap<CallId, BTreeSet<usize>>,
    decisions: BTreeSet<(String, CallId)>,
    resolutions: BTreeSet<(CallId, u64)>,
    editors: BTreeSet<String>,
    /// All that was sent, and what came of it.
    pub(crate) trace: Vec<(Event, Result<Delta, Rejection>)>,
}

impl World {
    pub(crate) fn new(seed: u64, run: NewRun, first: Option<Grant>) -> Self {
        let born = birth(run, first, &now());
        Self {
            seed,
            row: born.next.clone(),
            born,
            seconds: 0,
            attempts: Vec::new(),
            rules: BTreeMap::new(),
            happened: BTreeMap::new(),
            calls: BTreeSet::new(),
            outcomes: BTreeMap::new(),
            standing: None,
            allowed_again: BTreeMap::new(),
            wrongly_not_landed: BTreeSet::new(),
            known_done: BTreeMap::new(),
            decisions: BTreeSet::new(),
            resolutions: BTreeSet::new(),
            editors: BTreeSet::new(),
            trace: Vec::new(),
        }
    }

    #[track_caller]
    pub(crate) fn must(&self, holds: bool, what: &str) {
        if holds {
            return;
        }
        let last = &self.trace[self.trace.len().saturating_sub(40)..];
        let told = last.iter().map(|(event, result)| match result {
            Ok(d) => {
                format!("{event:?}\n    -> {} {:?}", d.next.state, d.entries.iter().map(EntryBody::kind).collect::<Vec<_>>())
            }
            Err(rejection) => format!("{event:?}\n    -> ! {rejection}"),
        });
        panic!("seed {}: {what}\n{}\n{:#?}", self.seed, told.collect::<Vec<_>>().join("\n"), self.row);
    }

    pub(crate) fn note(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
    }

    pub(crate) fn holds(&self, right: Right) -> bool {
        let lease = self.row.lease.as_ref();
        self.row.state.is_held() && self.row.epoch == right.epoch && lease.is_some_and(|l| l.lease_id == right.lease_id)
    }

    /// Sends an event, and checks what came of it.
    pub(crate) fn send(&mut self, event: Event) -> Result<Delta, Rejection> {
        let kind = event.kind();
        let result = apply(&self.row, event.clone(), &now_at(self.seconds));
        self.trace.push((event.clone(), result.clone()));
        let delta = match result {
            Ok(delta) => delta,
            Err(rejection) => {
                self.must(!matches!(rejection, Rejection::OffTable { .. }), "the draft is off the table");
                return Err(rejection);
            }
        };
        if let Some(wrong) = rules::wrong(&self.row, kind, &delta) {
            self.must(false, &wrong);
        }
        if !delta.is_unchanged() {
            let fitting = rules::fitting(&self.row, kind, &delta);
            self.must(!fitting.is_empty(), "no rule of the table fits");
            for rule in fitting {
                *self.rules.entry(rule).or_default() += 1;
            }
        }
        self.check_authority(&event, &delta);
        let before = std::mem::replace(&mut self.row, delta.next.clone());
        for entry in &delta.entries {
            self.check_entry(&before, entry);
        }
        self.must(self.standing == self.row.fence.as_ref().map(|f| f.call_id.clone()), "9: the journal and the fence differ");
        if matches!(self.row.state, State::Completed | State::Cancelled) {
            self.must(self.calls.iter().all(|c| self.outcomes.contains_key(c)), "8: ended with a call that has no outcome");
        }
        Ok(delta)
    }

    /// 4: only the holder acts as one, and a process that never stamped a call changes nothing by speaking of it.
    fn check_authority(&self, event: &Event, delta: &Delta) {
        match event {
            Event::Holder(right, _) => self.must(self.holds(*right), "4: a segment without the right changed the run"),
            Event::LateOutcome(late) => {
                let call = self.row.turn.as_ref().and_then(|t| t.known(&late.call_id));
                if call.is_none_or(|c| c.stamp_of(late.right.epoch, late.right.lease_id).is_none()) {
                    let only_listed = Snapshot { sequence: self.row.sequence, ..delta.next.clone() };
                    self.must(only_listed == self.row, "4: a process that stamped nothing changed the run");
                }
            }
            _ => {}
        }
    }

    fn check_entry(&mut self, before: &Snapshot, entry: &EntryBody) {
        match entry {
            EntryBody::ModelReply(reply) => {
                self.calls.extend(reply.calls.iter().map(|c| c.id.clone()));
                self.editors.clear();
            }
            EntryBody::ToolOutcome(said) => {
                let second = self.outcomes.insert(said.call_id.clone(), (said.outcome, said.via)).is_some();
                self.must(!second, "8: a second outcome");
                let known = self.known_done.contains_key(&said.call_id);
                self.must(
                    !known || said.outcome == Outcome::Done,
                    "a call that is known to be done was journaled as something else",
                );
                self.standing.take_if(|c| *c == said.call_id);
                match said.via {
                    Via::Evidence => self.note("evidence taken"),
                    Via::LateOutcome => self.note("late outcome"),
                    Via::Verify => self.note("verified"),
                    _ => {}
                }
            }
            EntryBody::WriteStamped(s) => {
                self.check_stamp(before, s);
                self.must(self.standing.is_none(), "stamped under another fence");
                self.standing = Some(s.call_id.clone());
            }
            EntryBody::WriteRestamped(s) => {
                self.check_stamp(before, s);
                self.must(self.standing.as_ref() == Some(&s.call_id), "restamped without its fence");
            }
            EntryBody::WriteNotStarted(n) if !n.fence_kept => self.standing = None,
            EntryBody::Resolved(r) => {
                let names = before.fence.as_ref().is_some_and(|f| f.call_id == r.call_id && f.epoch == r.fence_epoch);
                self.must(names, "5: a resolution of a doubt that it does not name");
                let new = self.resolutions.insert((r.call_id.clone(), r.fence_epoch));
                self.must(new, "5: a resolution consumed twice");
                if r.outcome == ResolutionKind::NotLanded {
                    self.must(r.by.kind == PrincipalKind::Person, "a machine released a write");
                    self.check_release(before, &r.by);
                    *self.allowed_again.entry(r.call_id.clone()).or_default() += 1;
                    if self.attempts.iter().any(|a| a.call == r.call_id && a.landed) {
                        self.wrongly_not_landed.insert(r.call_id.clone());
                    }
                    if self.row.fence.is_none() {
                        self.standing = None;
                    }
                }
            }
            EntryBody::Approval(a) => self.check_decision(before, a),
            EntryBody::InputRequired(asked) => {
                *self.allowed_again.entry(asked.call_id.clone()).or_default() += 1;
                if self.row.fence.is_none() {
                    self.standing = None;
                }
                self.note("a tool asks");
            }
            EntryBody::Input(i) => {
                self.must(waits_on(before, &i.digest), "5: an input to another card");
                let new = self.decisions.insert((i.digest.clone(), i.call_id.clone()));
                self.must(new, "5: values taken twice for one card");
                let call = before.turn.as_ref().and_then(|t| t.call(&i.call_id));
                if (!i.declined || call.is_some_and(OpenCall::has_asked)) && call.is_some_and(|c| c.effect.is_write()) {
                    self.must(i.by.kind == PrincipalKind::Person, "a machine released a write");
                    self.check_release(before, &i.by);
                }
            }
            _ => {}
        }
    }

    fn check_stamp(&mut self, before: &Snapshot, stamped: &body::Stamped) {
        self.must(!self.outcomes.contains_key(&stamped.call_id), "3: a call with an outcome was stamped");
        self.must(!before.cancel_requested, "7: stamped after a cancel");
        self.must(!self.known_done.contains_key(&stamped.call_id), "stamped although its process had said that it is done");
        let call = before.turn.as_ref().and_then(|t| t.call(&stamped.call_id));
        self.must(call.is_some_and(OpenCall::is_released), "stamped what no person had released");
    }

    fn check_release(&self, before: &Snapshot, by: &Principal) {
        let own = by.id == before.initiator || self.editors.contains(&by.id);
        self.must(!before.second_approver || !own, "four eyes: released by the initiator or by the author of an edit");
    }

    fn check_decision(&mut self, before: &Snapshot, approval: &body::Approval) {
        self.must(waits_on(before, &approval.digest), "5: a decision about another card");
        if approval.proposal {
            self.editors.insert(approval.by.id.clone());
            return;
        }
        for decided in &approval.calls {
            let new = self.decisions.insert((approval.digest.clone(), decided.call_id.clone()));
            self.must(new, "5: a call decided twice on one card");
            if decided.approved {
                self.must(approval.by.kind == PrincipalKind::Person, "a machine released a write");
                self.check_release(before, &approval.by);
            }
        }
    }

    /// A process enters the tool.
    pub(crate) fn enter(&mut self, right: Right, call: &CallId, effect: Effect, landed: bool) -> usize {
        let paused = !self.holds(right);
        if !paused {
            let own = |f: &Fence| f.call_id == *call && f.epoch == right.epoch && f.lease_id == right.lease_id;
            self.must(self.row.fence.as_ref().is_some_and(own), "1: entered without its own stamp");
        }
        let answer = LateAnswer::Unknown;
        self.attempts.push(Attempt { call: call.clone(), right, effect, landed, paused, answer });
        if effect == Effect::NonIdempotentWrite {
            let entered = self.attempts.iter().filter(|a| a.call == *call && !a.paused).count();
            let allowed = 1 + self.allowed_again.get(call).copied().unwrap_or(0);
            self.must(entered <= allowed, "2: a non-idempotent call was entered again");
        }
        self.note(if paused { "entered after a pause" } else { "entered" });
        self.attempts.len() - 1
    }

    /// The tool's own verify, asked by a claim: it sees what has landed.
    pub(crate) fn has_landed(&self, call: &CallId) -> bool {
        self.attempts.iter().any(|a| a.call == *call && a.landed)
    }

    /// A truthful verify found nothing, and the call was stamped again.
    pub(crate) fn found_absent(&mut self, call: &CallId) {
        *self.allowed_again.entry(call.clone()).or_default() += 1;
        self.note("restamped after a verify");
    }

    /// The run was told that this attempt is done.
    pub(crate) fn told_done(&mut self, attempt: usize) {
        let call = self.attempts[attempt].call.clone();
        self.known_done.entry(call).or_default().insert(attempt);
    }

    /// What must hold of the whole history.
    pub(crate) fn check_history(&mut self) {
        let mut twice = 0;
        for (call, told) in &self.known_done {
            let non_idempotent = told.iter().all(|i| self.attempts[*i].effect == Effect::NonIdempotentWrite);
            twice += if non_idempotent { told.len() - 1 } else { 0 };
            self.must(!told.is_empty(), &format!("{call}"));
        }
        self.must(self.row.duplicates as usize == twice, &format!("known to have landed twice: {twice}"));
        if twice > 0 {
            self.note("landed twice, and listed");
        }
        for (call, (outcome, via)) in &self.outcomes {
            let attempts = || self.attempts.iter().filter(|a| a.call == *call);
            match outcome {
                Outcome::Done if *via != Via::Resolution && *via != Via::Gate => {
                    let is_write = attempts().next().is_some() || *via != Via::Tool;
                    self.must(!is_write || attempts().any(|a| a.landed), &format!("8: {call} is done, and nothing landed"));
                }
                Outcome::NotApplied | Outcome::Denied | Outcome::NotRun | Outcome::Refused => {
                    let excused = self.wrongly_not_landed.contains(call);
                    let landed = attempts().any(|a| a.landed && !a.paused);
                    self.must(excused || !landed, &format!("8: {call} is {outcome}, and its effect happened"));
                }
                _ => {}
            }
        }
        for attempt in &self.attempts {
            let stands = self.standing.as_ref() == Some(&attempt.call);
            let pending_again = self.allowed_again.contains_key(&attempt.call);
            let ended = self.outcomes.contains_key(&attempt.call);
            self.must(stands || pending_again || ended, &format!("9: the write {} is forgotten", attempt.call));
        }
    }
}

fn waits_on(row: &Snapshot, digest: &str) -> bool {
    row.state.is_waiting() && row.turn.as_ref().and_then(|t| t.digest.as_deref()) == Some(digest)
}
