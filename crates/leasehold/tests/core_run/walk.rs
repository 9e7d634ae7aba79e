//! Random histories of one run: holders, former holders that speak late, a reaper, persons, machines, a restore.

use super::{given::*, rows::EDITOR, world::World};
use leasehold::run::*;
use serde_json::{Map, Value};

/// Where a process is with the one write it may be making.
enum At {
    Idle,
    Stamped(CallId, Effect),
    InTool(usize),
    Answered(usize),
    Asks(usize),
}

struct Process {
    right: Right,
    at: At,
}

/// See the module.
pub(crate) struct Walk {
    pub(crate) rng: fastrand::Rng,
    pub(crate) world: World,
    processes: Vec<Process>,
    leases: u128,
    digests: Vec<String>,
}

impl Walk {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let recovery = rng.choice([None, None, Some(Recovery::Requeue), Some(Recovery::Abandon)]).flatten();
        let mode = if rng.bool() { Mode::Wait } else { Mode::Queue };
        let first = (mode == Mode::Wait).then(|| grant(1));
        let world = World::new(seed, new_run(mode, recovery, rng.u8(0..3) == 0), first.clone());
        let processes = first.map(|_| Process { right: right(1, 1), at: At::Idle }).into_iter().collect();
        Self { rng, world, processes, leases: 1, digests: Vec::new() }
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(0..n) == 0
    }

    fn grant(&mut self) -> Grant {
        self.leases += 1;
        grant(self.leases)
    }

    /// The run was granted: its process starts.
    fn started(&mut self) {
        let lease_id = self.world.row.lease.as_ref().unwrap().lease_id;
        self.processes.push(Process { right: Right { epoch: self.world.row.epoch, lease_id }, at: At::Idle });
        if self.processes.len() > 6 {
            self.processes.remove(0);
        }
    }

    /// Something happens.
    pub(crate) fn step(&mut self) {
        if let Some(digest) = self.world.row.turn.as_ref().and_then(|t| t.digest.clone())
            && self.digests.last() != Some(&digest)
        {
            self.digests.push(digest);
        }
        match self.rng.u32(0..100) {
            0..50 => self.process(),
            50..68 if self.world.row.state == State::Queued => self.claim(),
            50..68 => self.process(),
            68..78 => self.clock(),
            78 if !self.processes.is_empty() => {
                let dies = self.rng.usize(0..self.processes.len());
                self.processes.remove(dies);
            }
            _ if self.world.row.state.is_held() && !self.one_in(5) => self.process(),
            _ if self.world.row.state == State::Queued && !self.one_in(5) => self.claim(),
            _ => self.person(),
        }
    }

    fn claim(&mut self) {
        if !self.one_in(3) {
            self.world.seconds = self.world.seconds.max(self.world.row.due_at.as_second() - at(0).as_second() + 1);
        }
        let event = Event::Claim { grant: self.grant(), claimer: claimer() };
        if self.world.send(event).is_ok() {
            self.started();
        }
    }

    fn clock(&mut self) {
        self.world.seconds += self.rng.i64(0..90);
        let event = if self.one_in(3) { Event::Clock(Tick::WaitExpired) } else { expiry(&self.world.row) };
        let _ = self.world.send(event);
    }

    fn process(&mut self) {
        if self.processes.is_empty() {
            return;
        }
        let index = if self.rng.bool() { self.rng.usize(0..self.processes.len()) } else { self.processes.len() - 1 };
        let mut process = self.processes.swap_remove(index);
        process.at = match std::mem::replace(&mut process.at, At::Idle) {
            At::Idle if self.world.holds(process.right) => self.idle_holder(process.right),
            At::Idle => self.idle_other(process.right),
            At::Stamped(call, effect) => self.stamped(process.right, call, effect),
            At::InTool(attempt) => self.in_tool(process.right, attempt),
            At::Answered(attempt) => self.answered(process.right, attempt),
            At::Asks(attempt) => self.asks(process.right, attempt),
        };
        self.processes.push(process);
        let last = self.processes.len() - 1;
        self.processes.swap(index, last);
    }

    fn act(&mut self, right: Right, act: Act) -> Result<Delta, Rejection> {
        self.world.send(Event::Holder(right, act))
    }

    /// It has lost the run, and says things that must not count.
    fn idle_other(&mut self, right: Right) -> At {
        let calls: Vec<CallId> = self.world.row.turn.iter().flat_map(|t| &t.calls).map(|c| c.id.clone()).collect();
        let Some(id) = self.rng.choice(&calls).cloned() else { return At::Idle };
        let stamped = self.world.attempts.iter().any(|a| a.call == id && a.right == right)
            || self
                .world
                .row
                .turn
                .as_ref()
                .and_then(|t| t.call(&id))
                .is_some_and(|c| c.stamp_of(right.epoch, right.lease_id).is_some());
        if stamped || self.rng.bool() {
            let acts = [
                Act::Stamp(stamp(&id, Effect::NonIdempotentWrite, true)),
                Act::Restamp { stamp: stamp(&id, Effect::NonIdempotentWrite, true), found_absent: true },
                Act::Record(vec![outcome(&id, Outcome::Done, Via::Tool)]),
                Act::Complete { output: "late".into(), truncated: false },
                Act::Yield,
                Act::Settle,
            ];
            let act = self.rng.choice(acts).unwrap();
            let _ = self.act(right, act);
        } else {
            let answer = self.rng.choice([LateAnswer::Done, LateAnswer::NotApplied, LateAnswer::NotStarted]).unwrap();
            let _ = self.world.send(late(&id, right, answer));
        }
        At::Idle
    }

    fn idle_holder(&mut self, right: Right) -> At {
        if self.one_in(20) {
            return self.anything(right);
        }
        if let Some(fence) = self.world.row.fence.clone() {
            return self.standing_fence(right, &fence);
        }
        if self.world.row.state == State::Cancelling {
            let _ = self.act(right, Act::Settle);
            return At::Idle;
        }
        let turn = self.world.row.turn.clone();
        let pending: Vec<OpenCall> = turn.iter().flat_map(|t| t.pending()).cloned().collect();
        if pending.iter().any(OpenCall::is_undecided) {
            let kind = if self.one_in(5) { WaitKind::Input } else { WaitKind::Approval };
            let shown: Vec<CallId> = pending.iter().filter(|c| c.is_undecided()).map(|c| c.id.clone()).collect();
            let deadline = self.rng.bool().then(|| at(self.world.seconds + 60));
            let _ = self.act(right, Act::Suspend { card: card(kind, &shown), deadline });
            return At::Idle;
        }
        let Some(next) = pending.first() else {
            let rounds = self.world.row.rounds;
            let act = if rounds >= 8 || self.one_in(12) {
                Act::Complete { output: "done".into(), truncated: false }
            } else {
                let calls: Vec<(Effect, bool)> = (0..self.rng.usize(0..4)).map(|_| self.a_call()).collect();
                Act::Record(vec![reply(rounds + 1, &calls)])
            };
            if self.act(right, act).is_ok() && rounds.is_multiple_of(3) && self.world.holds(right) {
                // The gate does not let it through.
                let _ = self.act(right, Act::Record(vec![outcome(&call(rounds + 1, 1), Outcome::Refused, Via::Gate)]));
            }
            return At::Idle;
        };
        if !next.effect.is_write() {
            let _ = self.act(right, Act::Record(vec![outcome(&next.id, Outcome::Done, Via::Tool)]));
            return At::Idle;
        }
        if next.evidence.is_some() {
            let _ = self.act(right, Act::Record(vec![Recorded::Evidence(next.id.clone())]));
            return At::Idle;
        }
        if next.has_asked() && self.rng.bool() {
            let deadline = self.rng.bool().then(|| at(self.world.seconds + 60));
            let card = card(WaitKind::Input, std::slice::from_ref(&next.id));
            let _ = self.act(right, Act::Suspend { card, deadline });
            return At::Idle;
        }
        if next.maybe_entered() && self.one_in(3) {
            // The tool is not what it was: a person is asked again, with the calls that are left.
            let deadline = self.rng.bool().then(|| at(self.world.seconds + 60));
            let shown: Vec<CallId> = pending.iter().map(|c| c.id.clone()).collect();
            let _ = self.act(right, Act::Suspend { card: card(WaitKind::Approval, &shown), deadline });
            return At::Idle;
        }
        let verifiable = self.rng.bool();
        match self.act(right, Act::Stamp(stamp(&next.id, next.effect, verifiable))) {
            Ok(_) => At::Stamped(next.id.clone(), next.effect),
            Err(_) => At::Idle,
        }
    }

    fn a_call(&mut self) -> (Effect, bool) {
        let effect = *self
            .rng
            .choice(&[Effect::ReadOnly, Effect::IdempotentWrite, Effect::NonIdempotentWrite, Effect::NonIdempotentWrite])
            .unwrap();
        (effect, effect.is_write() && self.one_in(3))
    }

    /// A fence that an earlier segment left, or that is kept for an earlier entry.
    fn standing_fence(&mut self, right: Right, fence: &Fence) -> At {
        let id = fence.call_id.clone();
        let evidence = self.world.row.fenced_call().is_some_and(|c| c.evidence.is_some());
        let act = if evidence && !self.one_in(6) {
            Act::Record(vec![Recorded::Evidence(id.clone())])
        } else if self.one_in(8) {
            // Neither asked nor absent: it must not be entered again.
            Act::Restamp { stamp: stamp(&id, fence.effect, true), found_absent: false }
        } else if fence.effect == Effect::IdempotentWrite {
            match self.rng.u8(0..6) {
                0 => Act::Retry { why: "unknown".into(), not_before: None },
                1 => Act::Yield,
                2 => Act::Settle,
                _ => Act::Restamp { stamp: stamp(&id, Effect::IdempotentWrite, false), found_absent: false },
            }
        } else if !fence.verifiable || self.one_in(4) {
            Act::Doubt { why: "nobody knows".into() }
        } else if self.world.has_landed(&id) {
            Act::Record(vec![outcome(&id, Outcome::Done, Via::Verify)])
        } else {
            Act::Restamp { stamp: stamp(&id, fence.effect, true), found_absent: true }
        };
        let absent = matches!(act, Act::Restamp { found_absent: true, .. });
        let restamps = matches!(act, Act::Restamp { .. });
        match self.act(right, act) {
            Ok(_) if restamps => {
                if absent {
                    self.world.found_absent(&id);
                }
                At::Stamped(id, fence.effect)
            }
            _ => At::Idle,
        }
    }

    /// What a holder may do at any time, sensible or not; it is in no tool.
    fn anything(&mut self, right: Right) -> At {
        let calls: Vec<CallId> = self.world.row.turn.iter().flat_map(|t| &t.calls).map(|c| c.id.clone()).collect();
        let id = self.rng.choice(&calls).cloned().unwrap_or_else(|| call(1, 0));
        let question = body::Question { call_id: id.clone(), prompt: "which?".into(), schema: Value::Null };
        let acts = vec![
            Act::Heartbeat,
            Act::Record(vec![outcome(&id, Outcome::Refused, Via::Gate)]),
            Act::Record(vec![outcome(&id, Outcome::NotRun, Via::Gate)]),
            Act::Record(vec![outcome(&id, Outcome::Denied, Via::Gate)]),
            Act::Record(vec![Recorded::Evidence(id.clone())]),
            Act::Unstamp { call_id: id.clone(), why: "again".into() },
            Act::Suspend { card: card(WaitKind::Approval, std::slice::from_ref(&id)), deadline: None },
            Act::Suspend { card: card(WaitKind::Input, std::slice::from_ref(&id)), deadline: None },
            Act::Complete { output: "done".into(), truncated: true },
            Act::Fail { reason: Reason::Budget, detail: "spent".into() },
            Act::Retry { why: "503".into(), not_before: None },
            Act::Yield,
            Act::Doubt { why: "?".into() },
            Act::Unreadable { why: "tag 9".into() },
            Act::Question(question),
            Act::InputRequired(body::InputRequired {
                call_id: id.clone(),
                tool: "t".into(),
                questions: Vec::new(),
                state: None,
            }),
            Act::Settle,
        ];
        let act = self.rng.choice(acts).unwrap();
        // `unstamp` is a process's word that it did not enter, `input_required` its tool's that it did nothing; of a stamp that it did
        // enter either would be a lie.
        let entered = self.world.attempts.iter().any(|a| a.right == right && a.call == id);
        if !(matches!(act, Act::Unstamp { .. } | Act::InputRequired(_)) && entered) {
            let _ = self.act(right, act);
        }
        At::Idle
    }

    fn stamped(&mut self, right: Right, call: CallId, effect: Effect) -> At {
        let holds = self.world.holds(right);
        if if holds { self.one_in(4) } else { !self.one_in(10) } {
            let word = if holds {
                Event::Holder(right, Act::Unstamp { call_id: call.clone(), why: "no time left".into() })
            } else {
                self.world.note("late not started");
                late(&call, right, LateAnswer::NotStarted)
            };
            let _ = self.world.send(word);
            return At::Idle;
        }
        let landed = !self.one_in(3);
        At::InTool(self.world.enter(right, &call, effect, landed))
    }

    fn in_tool(&mut self, right: Right, attempt: usize) -> At {
        if self.one_in(3) {
            let _ = self.act(right, Act::Heartbeat);
            return At::InTool(attempt);
        }
        if !self.world.attempts[attempt].landed && self.one_in(4) {
            return At::Asks(attempt);
        }
        let known = self.rng.u8(0..10) < 6;
        let entered = &mut self.world.attempts[attempt];
        entered.answer = match (known, entered.landed) {
            (true, true) => LateAnswer::Done,
            (true, false) => LateAnswer::NotApplied,
            (false, _) => LateAnswer::Unknown,
        };
        At::Answered(attempt)
    }

    fn answered(&mut self, right: Right, attempt: usize) -> At {
        let Self { world, .. } = self;
        let (id, effect, answer) = {
            let a = &world.attempts[attempt];
            (a.call.clone(), a.effect, a.answer)
        };
        if !world.holds(right) {
            let told = world.send(late(&id, right, answer));
            if told.is_ok() && answer == LateAnswer::Done {
                world.told_done(attempt);
            }
            return if self.rng.bool() { At::Answered(attempt) } else { At::Idle };
        }
        let act = match answer {
            LateAnswer::Done => Act::Record(vec![outcome(&id, Outcome::Done, Via::Tool)]),
            LateAnswer::NotApplied => Act::Record(vec![outcome(&id, Outcome::NotApplied, Via::Tool)]),
            _ if self.one_in(4) => Act::Record(vec![outcome(&id, Outcome::Unknown, Via::Tool)]),
            _ if effect == Effect::NonIdempotentWrite && self.one_in(3) => {
                let found_absent = !self.world.has_landed(&id);
                Act::Restamp { stamp: stamp(&id, effect, true), found_absent }
            }
            _ if effect == Effect::NonIdempotentWrite => Act::Doubt { why: "timed out".into() },
            _ if self.world.row.state == State::Cancelling => Act::Settle,
            _ if self.one_in(3) => Act::Retry { why: "timed out".into(), not_before: None },
            _ => Act::Restamp { stamp: stamp(&id, effect, false), found_absent: false },
        };
        let restamps = matches!(act, Act::Restamp { .. });
        match self.act(right, act) {
            Ok(_) if restamps => At::Stamped(id, effect),
            Ok(_) => {
                if answer == LateAnswer::Done {
                    self.world.told_done(attempt);
                }
                // The answer may be lost: it is offered again.
                if self.one_in(5) { At::Answered(attempt) } else { At::Idle }
            }
            // With an earlier entry that nobody knows of, "not applied" is "unknown".
            Err(Rejection::RepeatIsUnknown(_)) => {
                self.world.attempts[attempt].answer = LateAnswer::Unknown;
                At::Answered(attempt)
            }
            Err(Rejection::HasOutcome(_) | Rejection::UnknownCall(_)) => At::Idle,
            Err(_) => At::Answered(attempt),
        }
    }

    /// The tool did nothing, and does not go on before it has input.
    fn asks(&mut self, right: Right, attempt: usize) -> At {
        let id = self.world.attempts[attempt].call.clone();
        if !self.world.holds(right) {
            let _ = self.world.send(late(&id, right, LateAnswer::Unknown));
            return At::Idle;
        }
        let asked = body::InputRequired { call_id: id, tool: "t".into(), questions: Vec::new(), state: None };
        match self.act(right, Act::InputRequired(asked)) {
            Ok(_) | Err(Rejection::HasOutcome(_) | Rejection::UnknownCall(_)) => At::Idle,
            Err(_) => At::Asks(attempt),
        }
    }

    fn person(&mut self) {
        let by = self.rng.choice([ann(), bob(), bob(), bob(), bob(), robot(), Principal::person(EDITOR)]).unwrap();
        let state = self.world.row.state;
        let order = match state {
            State::WaitingForApproval if !self.one_in(12) => self.decision(),
            State::WaitingForInput if !self.one_in(12) => self.submit(),
            State::Dead if !self.one_in(8) => self.for_the_dead(),
            State::Failed => Order::Redrive { approved_after: at(self.world.seconds - 60), note: None },
            _ if self.one_in(6) => match self.rng.u8(0..14) {
                0 => Order::Restored,
                1 => Order::Discard { note: None },
                2 => self.decision(),
                3 => self.for_the_dead(),
                4..10 => self.answer(),
                _ => Order::Cancel { note: None },
            },
            _ => self.answer(),
        };
        if let Ok(delta) = self.world.send(Event::Person(by, order))
            && delta.lease == LeaseChange::Grant
        {
            self.started();
        }
    }

    fn digest(&mut self) -> String {
        let stale = self.one_in(6);
        let seen = if stale { self.rng.choice(&self.digests).cloned() } else { self.digests.last().cloned() };
        let now = self.world.row.turn.as_ref().and_then(|t| t.digest.clone());
        if stale { seen } else { now }.unwrap_or_default()
    }

    fn decision(&mut self) -> Order {
        let digest = self.digest();
        let calls = self.world.row.turn.iter().flat_map(|t| &t.calls);
        let undecided: Vec<CallId> = calls.filter(|c| c.is_undecided()).map(|c| c.id.clone()).collect();
        let some = self.one_in(3);
        let words: Vec<DecideCall> = undecided
            .iter()
            .enumerate()
            .filter(|(index, _)| !some || *index == 0)
            .map(|(_, id)| if self.one_in(9) { edited(id) } else { decided(id, self.rng.u8(0..3) > 0) })
            .collect();
        if self.one_in(5) {
            return Order::Edit { digest, card: card(WaitKind::Approval, &undecided), calls: words };
        }
        if some {
            return Order::DecidePart { digest, calls: words };
        }
        let grant = self.rng.bool().then(|| self.grant());
        Order::Decide { digest, calls: words, grant }
    }

    fn submit(&mut self) -> Order {
        let calls: Vec<CallId> = self.world.row.turn.iter().flat_map(|t| &t.calls).map(|c| c.id.clone()).collect();
        let call_id = self.rng.choice(&calls).cloned().unwrap_or_else(|| call(1, 0));
        let grant = self.rng.bool().then(|| self.grant());
        let question = self.rng.bool().then(|| "size".to_owned());
        let values = (!self.one_in(4)).then(Map::new);
        Order::Submit { digest: self.digest(), call_id, question, values, grant }
    }

    fn answer(&mut self) -> Order {
        let calls = self.world.row.turn.iter().flat_map(|t| &t.calls);
        let asked = calls.filter_map(|c| c.question.map(|q| (c.id.clone(), q))).next();
        let (call_id, question) = asked.unwrap_or_else(|| (call(1, 0), 1));
        let values = question.is_multiple_of(2).then(Map::new);
        Order::Answer { call_id, question, values }
    }

    fn for_the_dead(&mut self) -> Order {
        let fence = self.world.row.fence.clone();
        if let Some(fence) = fence.filter(|_| !self.one_in(5)) {
            let outcome = self.rng.choice([
                ResolutionKind::Landed,
                ResolutionKind::NotLanded,
                ResolutionKind::NotLanded,
                ResolutionKind::Abandon,
            ]);
            if !self.one_in(3) {
                self.world.seconds = self.world.seconds.max(fence.in_flight_until.as_second() - at(0).as_second() + 1);
            }
            let fence_epoch = if self.one_in(8) { fence.epoch + 1 } else { fence.epoch };
            return Order::Resolve { call_id: fence.call_id, fence_epoch, outcome: outcome.unwrap(), result: None, note: None };
        }
        match self.rng.u8(0..8) {
            0 => Order::Discard { note: None },
            1 => Order::Cancel { note: None },
            2 => Order::Restored,
            _ => Order::Redrive { approved_after: at(self.world.seconds - 60), note: None },
        }
    }

    /// 6: from wherever it is, the clock and a person bring it to an end.
    pub(crate) fn drain(&mut self) {
        for _ in 0..4 {
            let row = &self.world.row;
            let event = match row.state {
                State::Completed | State::Failed | State::Cancelled => return,
                State::Running | State::Cancelling => expiry(row),
                State::Dead => Event::Person(bob(), Order::Discard { note: None }),
                State::Queued if row.cancel_requested => Event::Person(bob(), Order::Discard { note: None }),
                _ => Event::Person(bob(), Order::Cancel { note: None }),
            };
            let sent = self.world.send(event);
            self.world.must(sent.is_ok(), "6: a state without an exit");
        }
        self.world.must(self.world.row.state.is_settled(), "6: a state without an exit");
    }
}
