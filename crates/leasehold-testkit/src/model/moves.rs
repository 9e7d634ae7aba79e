//! What can happen next: a step of a process, of the far side, of the clock, of a person.

use super::{
    Plan, checks, given,
    given::{CallPlan, LATER, SOON},
    world::{At, Process, Wire, World},
};
use leasehold::run::{
    Act, CallId, Effect, Event, LateAnswer, Order, Outcome, Recorded, Recovery, ResolutionKind, State, Tick, Via,
};

type Next = Vec<(String, World)>;

struct Moves<'a> {
    world: &'a World,
    plan: &'a Plan,
    ids: &'a [CallId],
    calls: Vec<CallPlan>,
    next: Next,
}

/// Every step from here.
pub(super) fn from(world: &World, plan: &Plan, ids: &[CallId]) -> Result<Next, String> {
    let mut moves = Moves { world, plan, ids, calls: plan.calls(), next: Vec::new() };
    for index in 0..world.processes.len() {
        // Processes are alike: of two that stand at the same place one is enough.
        if !world.processes[..index].contains(&world.processes[index]) {
            moves.process(index)?;
        }
    }
    moves.far_side();
    moves.clock()?;
    moves.persons()?;
    Ok(moves.next)
}

/// The step of a runtime in which nothing goes wrong, whose processes have all died.
pub(super) fn healthy(world: &World, plan: &Plan, ids: &[CallId]) -> Result<Option<World>, String> {
    let mut moves = Moves { world, plan, ids, calls: plan.calls(), next: Vec::new() };
    match world.processes.iter().position(|p| world.has_right(p.epoch) && p.at != At::Away) {
        Some(holder) => moves.process(holder)?,
        None if world.row.state.is_held() => moves.clock()?,
        None => moves.claim(0, true)?,
    }
    // The first step of a process is the one where nothing goes wrong.
    Ok(moves.next.into_iter().next().map(|(_, world)| world))
}

impl Moves<'_> {
    fn add(&mut self, label: impl Into<String>, world: World) {
        self.next.push((label.into(), world.settled_down()));
    }

    /// Sends an event of the holder; where it is taken, the process is there afterwards.
    fn act(&mut self, index: usize, act: Act, label: &str, then: At) -> Result<bool, String> {
        Ok(self.acted(index, act)?.is_some_and(|world| {
            let ended = !world.row.state.is_held();
            self.add(format!("{index} {label}"), world.put(index, if ended { At::Away } else { then }));
            true
        }))
    }

    fn acted(&self, index: usize, act: Act) -> Result<Option<World>, String> {
        let right = given::right_of(self.world.processes[index].epoch);
        self.world.send(self.plan, self.ids, Event::Holder(right, act), SOON)
    }

    fn can_lose(&self) -> bool {
        self.world.spent.losses < self.plan.bounds.losses
    }

    fn can_stop(&self) -> bool {
        self.world.spent.stops < self.plan.bounds.stops
    }

    /// The same with its answer lost.
    fn lost(&mut self, index: usize, world: &World, label: &str, then: At) {
        if self.can_lose() {
            let mut world = world.clone().put(index, then);
            world.spent.losses += 1;
            self.add(format!("{index} {label}, answer lost"), world);
        }
    }

    fn process(&mut self, index: usize) -> Result<(), String> {
        let process = self.world.processes[index];
        let holds = self.world.has_right(process.epoch);
        match process.at {
            At::Away => return self.claim(index, false),
            At::Ready => self.ready(index)?,
            At::FoundAbsent(call) => self.found_absent(index, call)?,
            At::StampSent(call) => {
                self.add(format!("{index} finds its stamp"), self.world.clone().put(index, At::Stamped(call)))
            }
            At::Stamped(call) => self.stamped(index, call, holds)?,
            At::InTool(call, wire) => self.in_tool(index, call, wire),
            At::Answered(call, answer) => self.answered(index, call, answer)?,
            At::Asked(call) => self.asked(index, call)?,
            At::RecordSent(..) => self.add(format!("{index} finds its record"), self.world.clone().put(index, At::Ready)),
            At::Late(call, answer, told) => self.late(index, call, answer, told)?,
        }
        if !self.world.row.state.is_settled() {
            self.add(format!("{index} dies"), self.world.crash(index));
        }
        Ok(())
    }

    /// `anew`: whatever the bounds say, and although a request may still be under way.
    fn claim(&mut self, index: usize, anew: bool) -> Result<(), String> {
        let row = &self.world.row;
        if row.state != State::Queued || !anew && self.world.spent.grants >= self.plan.bounds.grants {
            return Ok(());
        }
        let under_way = self.world.fenced(self.ids).is_some_and(|call| self.world.under_way(call));
        if self.plan.prompt && !anew && row.has_non_idempotent_fence() && under_way {
            return Ok(());
        }
        if let Some(world) = self.world.send(self.plan, self.ids, given::claim(row), LATER)? {
            self.granted(index, world, "claims");
        }
        Ok(())
    }

    fn granted(&mut self, index: usize, mut world: World, label: &str) {
        world.spent.grants += 1;
        world.processes[index] = Process { at: At::Ready, epoch: world.row.epoch, entries: 0 };
        self.add(format!("{index} {label}"), world);
    }

    fn ready(&mut self, index: usize) -> Result<(), String> {
        let row = &self.world.row;
        if self.world.fenced(self.ids).is_some() {
            return self.standing_fence(index);
        }
        if row.cancel_requested {
            self.act(index, Act::Settle, "settles", At::Away)?;
            return Ok(());
        }
        let undecided: Vec<CallId> =
            row.turn.iter().flat_map(|t| &t.calls).filter(|c| c.is_undecided()).map(|c| c.id.clone()).collect();
        let pending = row.turn.iter().flat_map(|t| t.pending()).next().cloned();
        match pending {
            _ if !undecided.is_empty() => {
                self.act(index, given::suspend(&undecided), "asks a person", At::Away)?;
            }
            Some(call) if call.evidence.is_some() => {
                self.act(index, Act::Record(vec![Recorded::Evidence(call.id)]), "takes evidence", At::Ready)?;
            }
            Some(call) if self.number(&call.id).is_some_and(|number| self.world.calls[number].waits) => {
                self.act(index, given::suspend_for_input(&call.id), "asks for input", At::Away)?;
            }
            Some(call) => {
                let number = self.number(&call.id).unwrap_or_default();
                let stamp = Act::Stamp(given::stamp(&call.id, self.calls[number]));
                self.stamp(index, stamp, number, "stamps")?;
            }
            None => {
                let turn = row.rounds as usize;
                let calls = self.plan.turns.get(turn).map_or(&[] as &[CallPlan], Vec::as_slice);
                if turn <= self.plan.turns.len() {
                    let reply = Act::Record(vec![given::reply(row.rounds + 1, calls, self.plan)]);
                    self.act(index, reply, "records a reply", At::Ready)?;
                } else {
                    let complete = Act::Complete { output: String::new(), truncated: false };
                    self.act(index, complete, "completes", At::Away)?;
                }
            }
        }
        self.stops(index)
    }

    fn number(&self, id: &CallId) -> Option<usize> {
        self.ids.iter().position(|known| known == id)
    }

    /// Shutdown, a model that fails for now, an agent that fails for good.
    fn stops(&mut self, index: usize) -> Result<(), String> {
        if !self.can_stop() {
            return Ok(());
        }
        let fail = Act::Fail { reason: leasehold::run::Reason::Budget, detail: String::new() };
        for (act, label) in [(Act::Yield, "yields"), (retry(), "retries later"), (fail, "fails")] {
            if let Some(mut world) = self.acted(index, act)? {
                world.spent.stops += 1;
                self.add(format!("{index} {label}"), world.put(index, At::Away));
            }
        }
        Ok(())
    }

    fn stamp(&mut self, index: usize, act: Act, call: usize, label: &str) -> Result<(), String> {
        let number = u8::try_from(call).unwrap_or(u8::MAX);
        if let Some(world) = self.acted(index, act)? {
            self.lost(index, &world, label, At::StampSent(number));
            // First in the list is what goes well.
            let world = world.put(index, At::Stamped(number));
            self.next
                .insert(self.next.len() - usize::from(self.can_lose()), (format!("{index} {label}"), world.settled_down()));
        }
        Ok(())
    }

    /// What a segment does first with a fence that another one left.
    fn standing_fence(&mut self, index: usize) -> Result<(), String> {
        let Some(call) = self.world.fenced(self.ids) else { return Ok(()) };
        let (row, id) = (&self.world.row, self.ids[call].clone());
        let number = u8::try_from(call).unwrap_or(u8::MAX);
        if row.fenced_call().is_some_and(|c| c.evidence.is_some()) {
            let taken = self.act(index, Act::Record(vec![Recorded::Evidence(id)]), "takes evidence", At::Ready)?;
            return if taken { Ok(()) } else { Err("evidence that nobody can take".into()) };
        }
        let plan = self.calls[call];
        if !row.has_non_idempotent_fence() {
            if row.cancel_requested {
                self.act(index, Act::Settle, "settles", At::Away)?;
            } else if self.world.processes[index].entries < 2 {
                self.stamp(index, given::restamp(&id, plan, false), call, "stamps again")?;
            }
            self.act(index, retry(), "retries later", At::Away)?;
            return self.stops(index);
        }
        if let Some(absent_is_not_applied) = plan.verify {
            if self.world.calls[call].landed > 0 {
                let verified = given::outcome(&id, Outcome::Done, Via::Verify);
                self.act(index, verified, "verifies: landed", At::Ready)?;
            } else if absent_is_not_applied && !row.cancel_requested {
                let mut world = self.world.clone();
                // What follows is the exception where an attempt is under way at this moment.
                checks::said_absent(&mut world, call);
                self.add(format!("{index} verifies: absent"), world.put(index, At::FoundAbsent(number)));
            }
        }
        self.act(index, doubt(), "doubts", At::Away)?;
        Ok(())
    }

    fn found_absent(&mut self, index: usize, call: u8) -> Result<(), String> {
        let number = usize::from(call);
        let restamp = given::restamp(&self.ids[number], self.calls[number], true);
        let before = self.next.len();
        self.stamp(index, restamp, number, "stamps again")?;
        if self.next.len() == before {
            // A late outcome or a cancel came in between: what is there now decides.
            self.add(format!("{index} looks again"), self.world.clone().put(index, At::Ready));
        }
        Ok(())
    }

    fn stamped(&mut self, index: usize, call: u8, holds: bool) -> Result<(), String> {
        let number = usize::from(call);
        let mut entered = self.world.clone();
        checks::entering(&mut entered, index, number, self.ids, self.calls[number].effect)?;
        entered.processes[index].entries += 1;
        let label = if holds { "enters" } else { "enters after a pause" };
        self.add(format!("{index} {label}"), entered.put(index, At::InTool(call, Wire::Flying)));
        if holds {
            let unstamp = Act::Unstamp { call_id: self.ids[number].clone(), why: String::new() };
            if self.world.spent.unstamps < self.plan.bounds.unstamps
                && let Some(mut world) = self.acted(index, unstamp)?
            {
                world.spent.unstamps += 1;
                self.add(format!("{index} takes its stamp back"), world.put(index, At::Ready));
            }
            return self.cannot_verify_itself(index, number);
        }
        self.add(format!("{index} will say so"), self.world.clone().put(index, At::Late(call, LateAnswer::NotStarted, false)));
        Ok(())
    }

    /// Only a claim verifies: what the holder finds of its own entry is no word on it.
    fn cannot_verify_itself(&self, index: usize, call: usize) -> Result<(), String> {
        if self.calls[call].effect != Effect::NonIdempotentWrite {
            return Ok(());
        }
        let event = Event::Holder(
            given::right_of(self.world.processes[index].epoch),
            given::restamp(&self.ids[call], self.calls[call], true),
        );
        match self.world.ask(self.plan, event, SOON)? {
            Ok(_) => Err("2: a holder stamped its own entry again".into()),
            Err(_) => Ok(()),
        }
    }

    fn in_tool(&mut self, index: usize, call: u8, wire: Wire) {
        let answered = |answer| self.world.clone().put(index, At::Answered(call, answer));
        let mut unknown = answered(LateAnswer::Unknown);
        unknown.calls[usize::from(call)].flying += u8::from(wire == Wire::Flying);
        match wire {
            Wire::Flying => {
                let mut landed = self.world.clone().put(index, At::InTool(call, Wire::Landed));
                landed.land(usize::from(call), self.calls[usize::from(call)].effect);
                self.add(format!("{index}'s request lands"), landed);
                if self.world.spent.asks < self.plan.bounds.asks {
                    let mut asked = self.world.clone().put(index, At::Asked(call));
                    asked.spent.asks += 1;
                    self.add(format!("{index} hears: needs input"), asked);
                }
                self.add(format!("{index}'s request is lost"), self.world.clone().put(index, At::InTool(call, Wire::Lost)));
            }
            Wire::Landed => self.add(format!("{index} hears: done"), answered(LateAnswer::Done)),
            Wire::Lost => self.add(format!("{index} hears: not applied"), answered(LateAnswer::NotApplied)),
        }
        self.add(format!("{index} hears nothing"), unknown);
    }

    fn answered(&mut self, index: usize, call: u8, answer: LateAnswer) -> Result<(), String> {
        let number = usize::from(call);
        let (id, plan) = (self.ids[number].clone(), self.calls[number]);
        let hard = plan.effect == Effect::NonIdempotentWrite;
        self.cannot_verify_itself(index, number)?;
        let known = match answer {
            LateAnswer::Done => Some(Outcome::Done),
            LateAnswer::NotApplied => Some(Outcome::NotApplied),
            _ => None,
        };
        if let Some(known) = known
            && let Some(mut world) = self.acted(index, given::outcome(&id, known, Via::Tool))?
        {
            world.calls[number].told_done += u8::from(answer == LateAnswer::Done);
            self.add(format!("{index} records {known}"), world.clone().put(index, At::Ready));
            self.lost(index, &world, "records", At::RecordSent(call, answer));
            return Ok(());
        }
        if answer == LateAnswer::Done {
            return Err("what its holder knows to be done is not recorded".into());
        }
        // Unknown, or not applied of a call that may have been entered before, which is the same.
        if hard {
            self.act(index, doubt(), "doubts", At::Away)?;
        } else if self.world.row.cancel_requested {
            self.act(index, Act::Settle, "settles", At::Away)?;
        } else {
            if self.world.processes[index].entries < 2 {
                self.stamp(index, given::restamp(&id, plan, false), number, "stamps again")?;
                self.evidence_instead(index, &id)?;
            }
            self.act(index, retry(), "retries later", At::Away)?;
        }
        Ok(())
    }

    fn asked(&mut self, index: usize, call: u8) -> Result<(), String> {
        let asked = given::input_required(&self.ids[usize::from(call)]);
        let Some(world) = self.acted(index, asked)? else {
            return Err("a tool asks, and that is not recorded".into());
        };
        self.add(format!("{index} records that it asks"), world.clone().put(index, At::Ready));
        self.lost(index, &world, "records", At::RecordSent(call, LateAnswer::Unknown));
        Ok(())
    }

    /// A late word on an earlier attempt keeps a repeat from starting, and is taken instead.
    fn evidence_instead(&mut self, index: usize, id: &CallId) -> Result<(), String> {
        if self.world.row.fenced_call().is_some_and(|c| c.evidence.is_some()) {
            self.act(index, Act::Record(vec![Recorded::Evidence(id.clone())]), "takes evidence", At::Ready)?;
        }
        Ok(())
    }

    fn late(&mut self, index: usize, call: u8, answer: LateAnswer, told: bool) -> Result<(), String> {
        let number = usize::from(call);
        let id = &self.ids[number];
        let event = given::late(id, self.world.processes[index].epoch, answer);
        let Some(mut world) = self.world.send(self.plan, self.ids, event, SOON)? else {
            return Err(format!("a late {answer} of {id} was refused"));
        };
        world.calls[number].told_done += u8::from(answer == LateAnswer::Done && !told);
        self.add(format!("{index} says late: {answer}"), world.clone().put(index, At::Away));
        if !told {
            self.lost(index, &world, &format!("says late: {answer}"), At::Late(call, answer, true));
        }
        Ok(())
    }

    fn far_side(&mut self) {
        for call in 0..self.calls.len() {
            if self.world.calls[call].flying == 0 {
                continue;
            }
            let mut lost = self.world.clone();
            lost.calls[call].flying -= 1;
            let mut landed = lost.clone();
            landed.land(call, self.calls[call].effect);
            self.add(format!("a request of call {call} lands, and nobody waits"), landed);
            self.add(format!("a request of call {call} is lost"), lost);
        }
    }

    fn clock(&mut self) -> Result<(), String> {
        if let Some(event) = given::expire(&self.world.row) {
            let expired = self.world.send(self.plan, self.ids, event, SOON)?;
            let expired = expired.ok_or("6: a lease that cannot expire")?;
            self.add("the lease ends", expired);
        }
        if self.world.row.state.is_waiting() {
            let expired = self.world.send(self.plan, self.ids, Event::Clock(Tick::WaitExpired), LATER)?;
            self.add("nobody decides", expired.ok_or("6: a wait that cannot expire")?);
        }
        Ok(())
    }

    fn order(&mut self, order: Order, label: &str, seconds: i64) -> Result<bool, String> {
        let taken = self.world.send(self.plan, self.ids, given::by_person(order), seconds)?;
        Ok(taken.is_some_and(|world| {
            self.add(label, world);
            true
        }))
    }

    fn persons(&mut self) -> Result<(), String> {
        let row = &self.world.row;
        if !row.cancel_requested {
            self.order(Order::Cancel { note: None }, "a person cancels", SOON)?;
        }
        match row.state {
            State::WaitingForApproval => self.decisions()?,
            State::WaitingForInput => self.inputs()?,
            State::Dead | State::Failed => self.for_the_dead()?,
            State::Queued if row.cancel_requested => {
                self.order(Order::Discard { note: None }, "a person discards", SOON)?;
            }
            _ => {}
        }
        if self.world.spent.restores < self.plan.bounds.restores
            && let Some(mut world) = self.world.send(self.plan, self.ids, given::by_person(Order::Restored), SOON)?
        {
            world.spent.restores += 1;
            self.add("the store is restored", world);
        }
        Ok(())
    }

    fn decisions(&mut self) -> Result<(), String> {
        let turn = self.world.row.turn.as_ref();
        let digest = turn.and_then(|t| t.digest.clone()).unwrap_or_default();
        let undecided: Vec<CallId> =
            turn.into_iter().flat_map(|t| &t.calls).filter(|c| c.is_undecided()).map(|c| c.id.clone()).collect();
        if let Some(stale) = self.world.consumed.as_ref().filter(|old| **old != digest) {
            let all: Vec<(CallId, bool)> = undecided.iter().map(|id| (id.clone(), true)).collect();
            if self.world.send(self.plan, self.ids, given::decide(stale, &all, None), SOON)?.is_some() {
                return Err("5: a decision about an earlier card was taken".into());
            }
        }
        let away = self.world.processes.iter().position(|p| p.at == At::Away);
        for (approved, last) in [(true, true), (false, false), (true, false)] {
            let count = undecided.len();
            if count < 2 && approved != last {
                continue;
            }
            let said: Vec<(CallId, bool)> = undecided
                .iter()
                .enumerate()
                .map(|(index, id)| (id.clone(), if index + 1 == count { last } else { approved }))
                .collect();
            let label = format!("a person says {approved}, {last}");
            if let Some(world) = self.world.send(self.plan, self.ids, given::decide(&digest, &said, None), SOON)? {
                self.add(label.clone(), world);
            }
            let grant = given::grant(&self.world.row);
            if let Some(index) = away.filter(|_| self.world.spent.grants < self.plan.bounds.grants)
                && let Some(world) = self.world.send(self.plan, self.ids, given::decide(&digest, &said, Some(grant)), SOON)?
            {
                self.granted(index, world, &label);
            }
        }
        Ok(())
    }

    fn inputs(&mut self) -> Result<(), String> {
        let Some(turn) = &self.world.row.turn else { return Err("a wait for input without a turn".into()) };
        let digest = turn.digest.clone().unwrap_or_default();
        let Some(id) = turn.calls.iter().find(|c| c.is_undecided()).map(|c| c.id.clone()) else {
            return Err("a wait for input of no call".into());
        };
        let away = self.world.processes.iter().position(|p| p.at == At::Away);
        for gives in [true, false] {
            let label = if gives { "a person gives values" } else { "a person declines" };
            if let Some(world) = self.world.send(self.plan, self.ids, given::submit(&digest, &id, gives, None), SOON)? {
                self.add(label, world);
            }
            let grant = given::grant(&self.world.row);
            if let Some(index) = away.filter(|_| self.world.spent.grants < self.plan.bounds.grants)
                && let Some(world) =
                    self.world.send(self.plan, self.ids, given::submit(&digest, &id, gives, Some(grant)), SOON)?
            {
                self.granted(index, world, label);
            }
        }
        Ok(())
    }

    fn for_the_dead(&mut self) -> Result<(), String> {
        let row = &self.world.row;
        self.order(Order::Discard { note: None }, "a person discards", SOON)?;
        if self.world.spent.redrives < self.plan.bounds.redrives {
            // With releases that still count, and with releases that are too old.
            for (after, label) in [(-60, "an operator redrives"), (60, "an operator redrives; asked again")] {
                let redrive = Order::Redrive { approved_after: given::at(after), note: None };
                if let Some(mut world) = self.world.send(self.plan, self.ids, given::by_person(redrive), SOON)? {
                    if world.row.recovery != Recovery::Requeue {
                        return Err("a redriven run that nobody continues".into());
                    }
                    world.spent.redrives += 1;
                    self.add(label, world);
                }
            }
        }
        let Some(call) = self.world.fenced(self.ids).filter(|_| self.world.spent.resolutions < self.plan.bounds.resolutions)
        else {
            return Ok(());
        };
        let epoch = row.fence.as_ref().map_or(0, |f| f.epoch);
        let landed = self.world.calls[call].landed > 0;
        for said in [ResolutionKind::Landed, ResolutionKind::NotLanded, ResolutionKind::Abandon] {
            let wrong = match said {
                ResolutionKind::Landed => !landed,
                ResolutionKind::NotLanded => landed || self.world.under_way(call),
                ResolutionKind::Abandon => false,
            };
            if self.plan.prompt && wrong {
                continue;
            }
            let event = given::resolve(&self.ids[call], epoch, said);
            if let Some(mut world) = self.world.send(self.plan, self.ids, event, LATER)? {
                world.spent.resolutions += 1;
                self.add(format!("a person says {said} of call {call}"), world);
            }
        }
        Ok(())
    }
}

fn retry() -> Act {
    Act::Retry { why: String::new(), not_before: None }
}

fn doubt() -> Act {
    Act::Doubt { why: String::new() }
}
