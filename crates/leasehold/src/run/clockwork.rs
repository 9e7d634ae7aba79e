//! What a claim, the clock and a former holder do to a run; the reaper's verdict.

use super::{
    decision::TurnCard,
    draft::Draft,
    event::{Claimer, Grant, Late, Tick},
    holder::not_started,
    ids::CallId,
    journal::{EntryBody, body},
    snapshot::Snapshot,
    state::{Effect, LateAnswer, OnExpiry, Outcome, Reason, Recovery, SegmentKind, State, Via},
    transition::Rejection,
};

pub(super) fn claim<'a>(mut draft: Draft<'a>, grant: &Grant, claimer: &Claimer) -> Result<Draft<'a>, Rejection> {
    if !claimer.open {
        return Err(Rejection::QueueClosed);
    }
    if draft.row.due_at > draft.now.wall {
        return Err(Rejection::NotDue(draft.row.due_at));
    }
    if let Some(lacking) = lacking(draft.row, claimer) {
        return Err(Rejection::NotServed(lacking));
    }
    let kind = draft.row.next_segment;
    draft.grant(grant, kind);
    draft.next.state = if draft.row.cancel_requested { State::Cancelling } else { State::Running };
    draft.push(EntryBody::SegmentOpened(body::SegmentOpened { segment: kind, lease_id: grant.lease_id }));
    Ok(draft)
}

/// What the claimer would need and has not. A pending call that the gate will refuse anyway (its tool is known to nobody)
/// has its outcome already, so every pending call counts.
pub fn lacking(row: &Snapshot, claimer: &Claimer) -> Option<String> {
    if !claimer.agents.contains(&row.agent) {
        return Some(row.agent.clone());
    }
    let calls = row.turn.iter().flat_map(|t| t.pending()).map(|c| &c.tool);
    calls.chain(row.fence.iter().map(|f| &f.tool)).find(|tool| !claimer.tools.contains(*tool)).cloned()
}

pub(super) fn tick(mut draft: Draft<'_>, tick: Tick) -> Result<Draft<'_>, Rejection> {
    match tick {
        Tick::Expire { right, expires_at } => {
            let Some(lease) = draft.row.lease.clone() else { return Err(Rejection::NotExpired) };
            if draft.row.epoch != right.epoch || lease.lease_id != right.lease_id || lease.expires_at != expires_at {
                return Err(Rejection::NotExpired);
            }
            draft.push(EntryBody::LeaseExpired(body::LeaseExpired {
                holder: lease.holder.clone(),
                epoch: draft.row.epoch,
                lease_id: lease.lease_id,
                expires_at: Some(lease.expires_at.clone()),
            }));
            let verdict = verdict(draft.row, draft.now.policy.max_requeues);
            let next = draft.same_segment();
            draft.next.epoch += 1;
            draft.drop_lease();
            let gone = format!("{} was not heard of: its lease ended without a word", lease.holder);
            match verdict {
                Verdict::InDoubt => draft.in_doubt(&format!("{gone}, and the write was in flight")),
                Verdict::Verify => {
                    let asked = draft.row.fence.as_ref().map_or(draft.now.wall, |f| f.in_flight_until);
                    let due = draft.after_backoff().max(asked);
                    draft.next.requeues += 1;
                    draft.requeue(&format!("{gone}; the write in flight is verified first"), due, next);
                }
                Verdict::Cancelled => draft.cancelled(&format!("cancelled; {gone}")),
                Verdict::Abandoned if !draft.row.has_request => {
                    draft.dead(Reason::Abandoned, &format!("{gone}, and there is nothing to continue this run from"));
                }
                Verdict::Abandoned => draft.dead(Reason::Abandoned, &format!("{gone}, and nobody waits for this run any more")),
                Verdict::RetriesExhausted => draft.dead(Reason::RetriesExhausted, &gone),
                Verdict::Requeue => {
                    let due = draft.after_backoff();
                    draft.next.requeues += 1;
                    draft.requeue(&gone, due, next);
                }
            }
        }
        Tick::WaitExpired => wait_expired(&mut draft)?,
    }
    Ok(draft)
}

/// What becomes of a run whose lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A non-idempotent write was in flight: a person is asked.
    InDoubt,
    /// A verifiable one was: back to the queue, to ask the tool.
    Verify,
    /// It was being cancelled.
    Cancelled,
    /// Nothing to continue from, or nobody to continue for.
    Abandoned,
    /// Requeued too often.
    RetriesExhausted,
    /// Back to the queue.
    Requeue,
}

/// The reaper's verdict, in the page's order: the write in flight comes first.
pub fn verdict(row: &Snapshot, max_requeues: u32) -> Verdict {
    let requeues_left = row.requeues < max_requeues;
    let continues = row.has_request && row.recovery == Recovery::Requeue;
    match &row.fence {
        Some(fence) if fence.effect == Effect::NonIdempotentWrite => {
            if fence.verifiable && continues && requeues_left {
                Verdict::Verify
            } else {
                Verdict::InDoubt
            }
        }
        _ if row.cancel_requested => Verdict::Cancelled,
        _ if !continues => Verdict::Abandoned,
        _ if !requeues_left => Verdict::RetriesExhausted,
        _ => Verdict::Requeue,
    }
}

fn wait_expired(draft: &mut Draft<'_>) -> Result<(), Rejection> {
    let Some(turn) = draft.row.turn.clone() else { return Err(Rejection::DeadlineNotPassed) };
    if turn.deadline.is_none_or(|deadline| deadline > draft.now.wall) {
        return Err(Rejection::DeadlineNotPassed);
    }
    let undecided: Vec<CallId> = turn.calls.iter().filter(|c| c.is_undecided()).map(|c| c.id.clone()).collect();
    draft.push(EntryBody::Expired(body::Expired { calls: undecided.clone() }));
    match turn.on_expiry {
        OnExpiry::Continue => {
            for id in &undecided {
                draft.outcome_text(id, Outcome::NotRun, Via::Expiry, "nobody decided in time; the call was not run");
            }
            let now = draft.now.wall;
            draft.queued(now, SegmentKind::Resume);
        }
        OnExpiry::DeadLetter => draft.dead(Reason::DecisionExpired, "nobody decided in time"),
    }
    Ok(())
}

pub(super) fn late_outcome(mut draft: Draft<'_>, late: Late) -> Result<Draft<'_>, Rejection> {
    let row = draft.row;
    let is_holder = row.epoch == late.right.epoch && row.lease.as_ref().is_some_and(|l| l.lease_id == late.right.lease_id);
    if is_holder && row.state.is_held() {
        return Err(Rejection::StillHolder);
    }
    let own_fence = row
        .fence
        .as_ref()
        .filter(|f| f.call_id == late.call_id && f.epoch == late.right.epoch && f.lease_id == late.right.lease_id);
    if let Some(fence) = own_fence {
        let settles = match late.answer {
            LateAnswer::Done => true,
            LateAnswer::NotApplied | LateAnswer::NotStarted => !fence.repeat,
            LateAnswer::Unknown => false,
        };
        if settles {
            let doubted = row.reason == Some(Reason::WriteInDoubt);
            fence_settled(&mut draft, late);
            if doubted {
                draft.resume("the process that was thought lost answered");
            } else if row.state == State::Queued && row.cancel_requested {
                draft.cancelled("cancelled; the process that was thought lost answered");
            }
            return Ok(draft);
        }
    }
    let call = row.turn.as_ref().and_then(|t| t.call(&late.call_id));
    match call {
        Some(call)
            if late.answer == LateAnswer::Done
                && call.is_pending()
                && !draft.is_fenced(&late.call_id)
                && call.stamp_of(late.right.epoch, late.right.lease_id).is_some()
                && !row.state.is_settled() =>
        {
            overtakes(&mut draft, late);
        }
        _ => evidence(&mut draft, late),
    }
    Ok(draft)
}

/// Keeps what a sender said about its own attempt, so that the same answer sent again is recognised.
fn remember(draft: &mut Draft<'_>, late: &Late) {
    if let Some(stamp) = draft.call_mut(&late.call_id).and_then(|c| c.stamp_of_mut(late.right.epoch, late.right.lease_id)) {
        stamp.late.push(late.answer);
    }
}

/// The sender's word on the write that its own stamp still guards.
fn fence_settled(draft: &mut Draft<'_>, late: Late) {
    remember(draft, &late);
    let tool = draft.row.fence.as_ref().map(|f| f.tool.clone()).unwrap_or_default();
    let outcome = match late.answer {
        LateAnswer::NotStarted => {
            let why = late.result.as_str().unwrap_or("stamped, and not entered").to_owned();
            return not_started(draft, &late.call_id, why, true, false);
        }
        LateAnswer::Done => Outcome::Done,
        LateAnswer::NotApplied | LateAnswer::Unknown => Outcome::NotApplied,
    };
    draft.outcome(late_body(late, tool, outcome));
}

fn late_body(late: Late, tool: String, outcome: Outcome) -> body::ToolOutcome {
    body::ToolOutcome {
        call_id: late.call_id,
        tool,
        outcome,
        is_error: late.is_error,
        result: late.result,
        late: true,
        via: Via::LateOutcome,
        evidence: None,
    }
}

/// A person said "not landed", nobody has stamped it again, and now its process says that it is done: that counts.
fn overtakes(draft: &mut Draft<'_>, late: Late) {
    let id = late.call_id.clone();
    remember(draft, &late);
    let tool = draft.call_mut(&id).map(|c| c.tool.clone()).unwrap_or_default();
    draft.outcome(late_body(late, tool, Outcome::Done));
    if !draft.row.state.is_waiting() {
        return;
    }
    let now = draft.now.wall;
    let Some(turn) = draft.next.turn.as_mut() else { return };
    if turn.calls.iter().any(|c| c.is_undecided()) {
        turn.digest = turn.digest.as_deref().map(|digest| TurnCard::digest_without(digest, &id));
    } else {
        draft.requeue("the call that waited turned out to be done", now, SegmentKind::Resume);
    }
}

/// Anything else is evidence: kept, shown, and taken where the record would otherwise say that nothing happened. Only a process
/// that stamped the call can say what became of it; another's word is listed, and changes nothing.
fn evidence(draft: &mut Draft<'_>, late: Late) {
    let sequence = draft.sequence();
    let Late { call_id, right, answer, is_error, result } = late;
    let mut contradicts = false;
    let mut stamped = false;
    let mut duplicate = None;
    if let Some(call) = draft.known_mut(&call_id) {
        let others_done = call.attempts_done() > 0;
        let others_entered = call.stamps.iter().any(|s| s.entered && (s.epoch != right.epoch || s.lease_id != right.lease_id));
        let newest = call.stamps.iter().rfind(|s| s.entered).map(|s| (s.epoch, s.lease_id));
        let (outcome, effect, tool) = (call.outcome, call.effect, call.tool.clone());
        match call.stamp_of_mut(right.epoch, right.lease_id) {
            None => contradicts = answer == LateAnswer::Done,
            Some(stamp) if stamp.late.contains(&answer) => return,
            Some(stamp) => {
                stamp.late.push(answer);
                stamped = true;
                match (answer, outcome) {
                    (LateAnswer::Done, None) => {
                        call.evidence.get_or_insert(sequence);
                    }
                    // Somebody said of this attempt that it is not there, and of a later one, which nobody heard of, that it is.
                    (LateAnswer::Done, Some(Outcome::Done)) => {
                        let released = newest != Some((right.epoch, right.lease_id));
                        contradicts = effect == Effect::NonIdempotentWrite && released && !others_done;
                    }
                    (LateAnswer::Done, Some(_)) => contradicts = true,
                    (LateAnswer::NotApplied | LateAnswer::NotStarted, Some(Outcome::Done | Outcome::Unknown)) => {
                        contradicts = !others_entered;
                    }
                    _ => {}
                }
                if answer == LateAnswer::Done && others_done && effect == Effect::NonIdempotentWrite {
                    duplicate = Some(body::DuplicateEffect { call_id: call_id.clone(), tool, epoch: right.epoch });
                }
            }
        }
    }
    draft.push(EntryBody::LateEvidence(body::LateEvidence {
        call_id,
        epoch: right.epoch,
        lease_id: right.lease_id,
        answer,
        is_error,
        result,
        contradicts,
    }));
    if contradicts && stamped {
        draft.next.contradictions = draft.next.contradictions.saturating_add(1);
    }
    if let Some(duplicate) = duplicate {
        draft.duplicate(duplicate);
    }
}
