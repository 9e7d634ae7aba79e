//! What must hold. Counted from the journal's entries and from the far side, never from the row alone.

use super::{
    Plan, given, moves,
    world::{At, Wire, World},
};
use leasehold::run::{
    Act, CallId, Delta, Effect, EntryBody, Event, EventKind, LateAnswer, Order, Outcome, Principal, Reason, Recorded,
    Rejection, ResolutionKind, Right, Snapshot, State, TABLE, Via,
};
use std::collections::HashSet;

fn must(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// Of one transition.
pub(super) fn transition(before: &World, event: &Event, delta: &Delta) -> Result<(), String> {
    let (row, next) = (&before.row, &delta.next);
    next.check().map_err(|what| format!("row: {what}"))?;
    must(next.misses_fence().is_none(), "9: a stamp that may have been used has no fence")?;
    must(next.sequence == row.sequence + delta.entries.len() as u64, "8: the journal has a gap")?;
    must(!row.cancel_requested || next.cancel_requested, "7: a cancel was unset")?;
    must(next.epoch >= row.epoch, "the epoch fell")?;
    if let Event::Holder(right, _) = event {
        let lease = row.lease.as_ref().map(|l| l.lease_id);
        must(row.epoch == right.epoch && lease == Some(right.lease_id), "4: a segment without the right changed the run")?;
    }
    if next.state == State::Cancelled && row.state.is_held() && event.kind() != EventKind::Expire {
        let in_tool = before.processes.iter().any(|p| matches!(p.at, At::InTool(..)) && before.has_right(p.epoch));
        must(!in_tool, "7: cancelled is shown while a write of a live lease runs")?;
    }
    if let Some(fence) = row.fence.as_ref().filter(|_| next.fence.is_none()) {
        let says_why = delta.entries.iter().any(|entry| match entry {
            EntryBody::ToolOutcome(said) => said.call_id == fence.call_id,
            EntryBody::WriteNotStarted(said) => said.call_id == fence.call_id,
            EntryBody::InputRequired(said) => said.call_id == fence.call_id,
            EntryBody::Resolved(said) => said.call_id == fence.call_id && said.outcome == ResolutionKind::NotLanded,
            _ => false,
        });
        must(says_why, "9: the fence is gone and no entry says why")?;
    }
    let fits = TABLE.iter().any(|rule| rule.event == event.kind() && rule.from.contains(&row.state));
    must(fits || delta.is_unchanged(), "no rule of the table is for this")
}

/// Of one entry; keeps the books of the world.
pub(super) fn entry(next: &mut World, before: &World, entry: &EntryBody, ids: &[CallId]) -> Result<(), String> {
    let number = |id: &CallId| ids.iter().position(|known| known == id).ok_or_else(|| format!("call {id} is of no plan"));
    match entry {
        EntryBody::ToolOutcome(said) => {
            let call = &mut next.calls[number(&said.call_id)?];
            must(call.outcome.is_none(), "8: a second outcome")?;
            call.outcome = Some((said.outcome, said.via));
            call.waits = false;
            must(call.told_done == 0 || said.outcome == Outcome::Done, "known to be done, and journaled as something else")?;
            if said.outcome == Outcome::Done && said.via != Via::Resolution {
                must(call.landed > 0, "8: done, and nothing landed")?;
            }
        }
        EntryBody::WriteStamped(said) => {
            let call = &next.calls[number(&said.call_id)?];
            stamped(before, call.outcome.is_some(), call.told_done > 0, &said.call_id)?;
            must(
                !call.entered || said.effect != Effect::NonIdempotentWrite,
                "2: stamped again without a word that it is absent",
            )?;
        }
        EntryBody::WriteRestamped(said) => {
            let call = &mut next.calls[number(&said.call_id)?];
            stamped(before, call.outcome.is_some(), call.told_done > 0, &said.call_id)?;
            if said.effect != Effect::NonIdempotentWrite {
                call.entered = false;
            }
            must(!call.entered, "2: a non-idempotent call was stamped again without a word that it is absent")?;
        }
        EntryBody::Resolved(said) => {
            let named = before.row.fence.as_ref().is_some_and(|f| f.call_id == said.call_id && f.epoch == said.fence_epoch);
            must(named, "5: a resolution of a doubt that it does not name")?;
            if said.outcome == ResolutionKind::NotLanded {
                let call = number(&said.call_id)?;
                said_absent(next, call);
            }
        }
        EntryBody::InputRequired(said) => {
            let call = number(&said.call_id)?;
            let own = before.row.fence.as_ref().is_some_and(|f| f.call_id == said.call_id && f.epoch == before.row.epoch);
            must(own, "1: a call that nobody has entered asks")?;
            let books = &mut next.calls[call];
            // Its tool's word: it did nothing.
            books.entered = false;
            books.waits = true;
        }
        EntryBody::Input(said) => {
            let named = before.row.turn.as_ref().is_some_and(|t| t.digest.as_ref() == Some(&said.digest));
            must(before.row.state == State::WaitingForInput && named, "5: values for another card")?;
            must(before.consumed.as_ref() != Some(&said.digest), "5: values consumed twice")?;
            next.consumed = Some(said.digest.clone());
            let call = number(&said.call_id)?;
            next.calls[call].waits = false;
        }
        EntryBody::Approval(said) => {
            let named = before.row.turn.as_ref().is_some_and(|t| t.digest.as_ref() == Some(&said.digest));
            must(before.row.state.is_waiting() && named, "5: a decision about another card")?;
            let new = before.consumed.as_ref() != Some(&said.digest);
            must(new, "5: a decision consumed twice")?;
            next.consumed = Some(said.digest.clone());
        }
        _ => {}
    }
    Ok(())
}

fn stamped(before: &World, ended: bool, known_done: bool, id: &CallId) -> Result<(), String> {
    must(!ended, "3: a call with an outcome was stamped")?;
    must(!before.row.cancel_requested, "7: stamped after an accepted cancel")?;
    must(!known_done, "stamped although its process had said that it is done")?;
    let released = before.row.turn.as_ref().and_then(|t| t.call(id)).is_some_and(leasehold::run::OpenCall::is_released);
    must(released, "stamped what no person had released")
}

/// A person, or the tool's verify, says that the call is not there: it may be entered once more. Where an attempt has landed or
/// may still do so, what follows is the documented exception.
pub(super) fn said_absent(world: &mut World, call: usize) {
    let under_way = world.under_way(call);
    let books = &mut world.calls[call];
    books.excepted |= under_way || books.landed > 0;
    books.entered = false;
}

/// A process enters the tool.
pub(super) fn entering(world: &mut World, index: usize, call: usize, ids: &[CallId], effect: Effect) -> Result<(), String> {
    let process = world.processes[index];
    if !world.has_right(process.epoch) {
        // Paused between its check and the entry: nothing of ours can stop it. Whoever says "not applied" from now on marks it.
        return Ok(());
    }
    let fence = world.row.fence.as_ref();
    let own = fence.is_some_and(|f| f.call_id == ids[call] && f.epoch == process.epoch);
    must(own, "1: entered without its own stamp")?;
    if effect == Effect::NonIdempotentWrite {
        must(!world.calls[call].entered, "2: a non-idempotent call was entered again")?;
    }
    world.calls[call].entered = true;
    Ok(())
}

/// The same event once more gets the same answer, or is refused, and is never consumed again.
pub(super) fn repeated(plan: &Plan, after: &World, event: Event, seconds: i64) -> Result<(), String> {
    let once = match &event {
        Event::Person(_, Order::Cancel { .. } | Order::Decide { .. } | Order::DecidePart { .. } | Order::Resolve { .. }) => {
            true
        }
        Event::LateOutcome(_) => return said_again(plan, after, event, seconds),
        Event::Holder(_, Act::Record(records)) => matches!(records[..], [Recorded::Outcome(_)]),
        Event::Holder(_, Act::Stamp(_)) => true,
        _ => false,
    };
    if !once {
        return Ok(());
    }
    let kind = event.kind();
    match after.ask(plan, event, seconds)? {
        Err(_) => Ok(()),
        Ok(delta) => must(delta.is_unchanged(), &format!("5: the same {kind} was taken twice")),
    }
}

fn said_again(plan: &Plan, after: &World, event: Event, seconds: i64) -> Result<(), String> {
    let Event::LateOutcome(late) = &event else { return Ok(()) };
    let call_is_known = after.row.turn.as_ref().is_some_and(|t| t.known(&late.call_id).is_some());
    match after.ask(plan, event, seconds)? {
        Ok(delta) if call_is_known => must(delta.is_unchanged(), "the same late outcome was journaled twice"),
        _ => Ok(()),
    }
}

impl World {
    /// Of a state.
    pub(super) fn holds(&self, plan: &Plan, ids: &[CallId]) -> Result<(), String> {
        let row = &self.row;
        let mut twice = 0;
        for ((call, id), declared) in self.calls.iter().zip(ids).zip(plan.turns.iter().flatten()) {
            if declared.effect == Effect::NonIdempotentWrite {
                twice += u32::from(call.told_done.saturating_sub(1));
                must(call.landed <= 1 || call.excepted, "2: landed twice, and nobody had said that it was absent")?;
            }
            if let Some((outcome @ (Outcome::NotApplied | Outcome::Denied | Outcome::NotRun | Outcome::Refused), _)) =
                call.outcome
            {
                must(call.landed == 0 || call.excepted, &format!("8: {id} is {outcome}, and its effect happened"))?;
            }
            let otherwise = call.outcome.is_some_and(|(outcome, _)| outcome != Outcome::Done);
            must(
                call.told_done == 0 || !otherwise || row.contradictions > 0,
                "8: contradicted by its process, and not listed",
            )?;
            let stands = row.fence.as_ref().is_some_and(|f| f.call_id == *id);
            must(!call.entered || call.outcome.is_some() || stands, "9: a write that was entered is forgotten")?;
            if matches!(row.state, State::Completed | State::Cancelled) {
                let asked =
                    row.turn.as_ref().is_some_and(|t| *id <= t.calls.last().map_or_else(|| id.clone(), |c| c.id.clone()));
                let known = row.turn.as_ref().and_then(|t| t.call(id)).is_none_or(|c| c.outcome.is_some());
                must(!asked || known, "8: ended with a call that has no outcome")?;
                let flying =
                    self.processes.iter().any(|p| matches!(p.at, At::InTool(c, Wire::Flying) if ids[usize::from(c)] == *id));
                if (flying || call.flying > 0) && !call.excepted && known {
                    let said = call.outcome.map(|(outcome, _)| outcome);
                    must(matches!(said, Some(Outcome::Done | Outcome::Unknown)), "7: under way, and journaled as not run")?;
                }
            }
        }
        must(row.duplicates == twice, &format!("known to have landed twice: {twice}, listed: {}", row.duplicates))
    }
}

/// Checks that are of a row alone are made once for each.
#[derive(Default)]
pub(super) struct Rows {
    rows: HashSet<u64>,
    lively: HashSet<u128>,
}

impl Rows {
    pub(super) fn seen(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn check(&mut self, world: &World, plan: &Plan, ids: &[CallId]) -> Result<(), String> {
        if self.rows.insert(world.row_key(ids)) {
            nobody_else_acts(world, plan, ids)?;
            forbidden_to_the_holder(world, plan, ids)?;
            persons_have_a_way(world, plan)?;
        }
        if !world.row.state.is_settled() && !world.row.state.is_waiting() && world.row.state != State::Dead {
            self.runtime_alone(world, plan, ids)?;
        }
        Ok(())
    }

    /// 6: from every unsettled state the runtime alone comes to a settled, waiting or dead one: the processes die, the lease
    /// ends, and a worker that finds everything in order claims and goes on.
    fn runtime_alone(&mut self, world: &World, plan: &Plan, ids: &[CallId]) -> Result<(), String> {
        let mut now = world.clone();
        for index in 0..now.processes.len() {
            now = now.crash(index);
        }
        now.spent.grants = 0;
        for _ in 0..64 {
            if !self.lively.insert(now.key(ids)) {
                return Ok(());
            }
            if now.row.state.is_settled() || now.row.state.is_waiting() || now.row.state == State::Dead {
                return Ok(());
            }
            now.spent.grants = 0;
            let healthy = moves::healthy(&now, plan, ids)?;
            now = healthy.ok_or_else(|| format!("6: nothing leads on from {}", now.in_short()))?;
        }
        Err(format!("6: no end is in sight from {}", world.in_short()))
    }
}

fn acts_of(ids: &[CallId], plan: &Plan) -> Vec<Act> {
    let calls = plan.calls();
    let mut acts = vec![
        Act::Heartbeat,
        Act::Complete { output: String::new(), truncated: false },
        Act::Fail { reason: Reason::Budget, detail: String::new() },
        Act::Retry { why: String::new(), not_before: None },
        Act::Yield,
        Act::Doubt { why: String::new() },
        Act::Unreadable { why: String::new() },
        Act::Settle,
        given::suspend(ids),
    ];
    for (id, call) in ids.iter().zip(calls) {
        acts.push(given::outcome(id, Outcome::Done, Via::Tool));
        acts.push(Act::Stamp(given::stamp(id, call)));
        acts.push(given::restamp(id, call, true));
        acts.push(Act::Unstamp { call_id: id.clone(), why: String::new() });
        acts.push(given::input_required(id));
    }
    acts
}

/// 4: neither a right of another epoch nor one of another lease does anything, and a stranger's word changes nothing.
fn nobody_else_acts(world: &World, plan: &Plan, ids: &[CallId]) -> Result<(), String> {
    let row = &world.row;
    let older = row.epoch.saturating_sub(1);
    let mut rights = vec![
        Right { epoch: row.epoch, lease_id: given::lease_of(u64::MAX) },
        Right { epoch: older, lease_id: given::lease_of(row.epoch) },
    ];
    if !row.state.is_held() {
        rights.push(given::right_of(row.epoch));
    }
    for right in rights {
        for act in acts_of(ids, plan) {
            let answer = world.ask(plan, Event::Holder(right, act.clone()), given::SOON)?;
            must(answer == Err(Rejection::Fenced), &format!("4: {act:?} under a right that is none: {answer:?}"))?;
        }
    }
    for id in ids {
        let stranger = given::late(id, u64::MAX, LateAnswer::Done);
        if let Ok(delta) = world.ask(plan, stranger, given::SOON)? {
            let listed = Snapshot { sequence: row.sequence, ..delta.next };
            must(listed == *row, "4: a process that stamped nothing changed the run")?;
        }
    }
    Ok(())
}

/// What the holder may not do either.
fn forbidden_to_the_holder(world: &World, plan: &Plan, ids: &[CallId]) -> Result<(), String> {
    let row = &world.row;
    let Some(fence) = row.fence.as_ref().filter(|_| row.state.is_held()) else { return Ok(()) };
    let right = given::right_of(row.epoch);
    let hard = fence.effect == Effect::NonIdempotentWrite;
    for act in acts_of(ids, plan) {
        let forbidden = match &act {
            Act::Complete { .. } | Act::Fail { .. } | Act::Suspend { .. } | Act::Stamp(_) => true,
            Act::InputRequired(asked) => asked.call_id != fence.call_id || fence.epoch != row.epoch,
            Act::Retry { .. } | Act::Yield | Act::Settle => hard,
            Act::Restamp { stamp, .. } => stamp.call_id != fence.call_id || row.cancel_requested || hard && !fence.verifiable,
            _ => false,
        };
        if forbidden {
            let answer = world.ask(plan, Event::Holder(right, act.clone()), given::SOON)?;
            must(answer.is_err(), &format!("{act:?} was taken under the fence of {}", fence.call_id))?;
        }
    }
    let blind = given::restamp(&fence.call_id, super::WRITE, false);
    must(
        !hard || world.ask(plan, Event::Holder(right, blind), given::SOON)?.is_err(),
        "restamped without a word that it is absent",
    )
}

/// Every dead run has an event that a person can cause, every wait a decision; and stale ones are refused.
fn persons_have_a_way(world: &World, plan: &Plan) -> Result<(), String> {
    let row = &world.row;
    let takes = |order: Order, seconds| world.ask(plan, given::by_person(order), seconds).map(|answer| answer.is_ok());
    if row.state == State::Dead {
        must(takes(Order::Discard { note: None }, given::SOON)?, "a dead run that cannot be discarded")?;
        if !row.has_non_idempotent_fence() && !row.cancel_requested {
            let redrive = Order::Redrive { approved_after: given::at(-60), note: None };
            must(takes(redrive, given::SOON)?, "a dead run that cannot be redriven")?;
        }
    }
    let Some(fence) = row.fence.as_ref().filter(|_| row.reason == Some(Reason::WriteInDoubt)) else {
        return waits_for_what_it_shows(world, plan);
    };
    for said in [ResolutionKind::Landed, ResolutionKind::NotLanded, ResolutionKind::Abandon] {
        let resolve = |epoch, seconds| world.ask(plan, given::resolve(&fence.call_id, epoch, said), seconds);
        must(resolve(fence.epoch, given::LATER)?.is_ok(), "a doubt that a person cannot settle")?;
        let stale = resolve(fence.epoch.wrapping_sub(1), given::LATER)?;
        must(stale == Err(Rejection::StaleDoubt), "5: a resolution that names another doubt was taken")?;
    }
    let early = world.ask(plan, given::resolve(&fence.call_id, fence.epoch, ResolutionKind::NotLanded), given::SOON)?;
    must(matches!(early, Err(Rejection::TooEarly(_))), "\"not landed\" was taken while the request may be on its way")
}

fn waits_for_what_it_shows(world: &World, plan: &Plan) -> Result<(), String> {
    let row = &world.row;
    if row.state == State::Queued && row.has_non_idempotent_fence() {
        let until = row.fence.as_ref().map_or(0, |f| f.in_flight_until.as_second() - given::at(0).as_second());
        let early = world.ask(plan, given::claim(row), until - 1)?;
        must(matches!(early, Err(Rejection::NotDue(_))), "a verify may be asked while the request may be on its way")?;
    }
    let Some(turn) = row.turn.as_ref().filter(|_| row.state.is_waiting()) else { return Ok(()) };
    let undecided: Vec<(CallId, bool)> = turn.calls.iter().filter(|c| c.is_undecided()).map(|c| (c.id.clone(), true)).collect();
    let digest = turn.digest.clone().unwrap_or_default();
    if row.state == State::WaitingForInput {
        let Some((call, _)) = undecided.first() else { return Err("a wait for input of no call".into()) };
        let submit = |digest: &str, gives, seconds| world.ask(plan, given::submit(digest, call, gives, None), seconds);
        must(submit(&digest, true, given::SOON)?.is_ok(), "a wait that nobody can end")?;
        must(submit(&digest, false, given::SOON)?.is_ok(), "a wait that nobody can decline")?;
        must(submit("another", true, given::SOON)? == Err(Rejection::StaleTurn), "5: values for another card were taken")?;
        return must(submit(&digest, true, given::LATER)?.is_err(), "values after the deadline were taken");
    }
    let decide = |digest: &str, seconds| world.ask(plan, given::decide(digest, &undecided, None), seconds);
    must(decide(&digest, given::SOON)?.is_ok(), "a wait that nobody can end")?;
    must(decide("another", given::SOON)? == Err(Rejection::StaleTurn), "5: a decision about another card was taken")?;
    must(decide(&digest, given::LATER)?.is_err(), "a decision after the deadline was taken")?;
    let by_machine = match given::decide(&digest, &undecided, None) {
        Event::Person(_, order) => Event::Person(Principal::machine("robot"), order),
        other => other,
    };
    must(world.ask(plan, by_machine, given::SOON)?.is_err(), "a machine released a write")
}
