//! What the holder of the lease may do. That it holds it was checked before.

use super::{
    decision::WaitKind,
    draft::Draft,
    event::{Act, Recorded, StampCall, open_calls, total},
    ids::{CallId, LeaseId},
    journal::{EntryBody, body},
    snapshot::{Fence, OpenTurn, Stamp},
    state::{Effect, LateAnswer, OnExpiry, Outcome, Reason, Recovery, SegmentKind, State, Via},
    transition::Rejection,
};

pub(super) fn act(mut draft: Draft<'_>, act: Act) -> Result<Draft<'_>, Rejection> {
    match act {
        Act::Heartbeat => draft.extend(),
        Act::Record(records) => {
            for recorded in records {
                record(&mut draft, recorded)?;
            }
            draft.extend();
        }
        Act::Stamp(call) => stamp(&mut draft, &call)?,
        Act::Restamp { stamp, found_absent } => restamp(&mut draft, &stamp, found_absent)?,
        Act::Unstamp { call_id, why } => unstamp(&mut draft, &call_id, why)?,
        Act::InputRequired(asked) => input_required(&mut draft, asked)?,
        Act::Suspend { card, deadline } => suspend(&mut draft, card, deadline)?,
        Act::Complete { output, truncated } => {
            no_fence(&draft)?;
            if draft.row.has_pending_calls() {
                return Err(Rejection::TurnOpen);
            }
            draft.settle(State::Completed, None, Some(output), truncated, "");
        }
        Act::Fail { reason, detail } => {
            no_fence(&draft)?;
            draft.settle(State::Failed, Some(reason), None, false, &detail);
        }
        Act::Retry { why, not_before } => {
            no_non_idempotent_fence(&draft)?;
            retry(&mut draft, &why, not_before);
        }
        Act::Yield => {
            no_non_idempotent_fence(&draft)?;
            if draft.row.recovery == Recovery::Abandon {
                draft.dead(Reason::Abandoned, "the process shut down, and the caller it executed for is gone with it");
            } else {
                let next = draft.same_segment();
                let now = draft.now.wall;
                draft.requeue("the process shut down", now, next);
            }
        }
        Act::Doubt { why } => {
            if !draft.row.has_non_idempotent_fence() {
                return Err(Rejection::NothingInDoubt);
            }
            draft.in_doubt(&why);
        }
        Act::Unreadable { why } => {
            if draft.row.has_non_idempotent_fence() {
                draft.in_doubt(&format!("the run's record cannot be read: {why}"));
            } else if draft.row.cancel_requested {
                draft.cancelled("cancelled; its record cannot be read");
            } else {
                draft.dead(Reason::Unreadable, &why);
            }
        }
        Act::Question(question) => {
            draft.pending(&question.call_id)?;
            let sequence = draft.sequence();
            if draft.row.questions().next().is_none() {
                draft.next.since = draft.now.wall;
            }
            if let Some(call) = draft.call_mut(&question.call_id) {
                call.question = Some(sequence);
            }
            draft.push(EntryBody::Question(question));
        }
        Act::Settle => {
            no_non_idempotent_fence(&draft)?;
            draft.cancelled("cancelled");
        }
    }
    Ok(draft)
}

fn no_fence(draft: &Draft<'_>) -> Result<(), Rejection> {
    match &draft.next.fence {
        Some(fence) => Err(Rejection::FenceStands(fence.call_id.clone())),
        None => Ok(()),
    }
}

pub(super) fn no_non_idempotent_fence(draft: &Draft<'_>) -> Result<(), Rejection> {
    match &draft.next.fence {
        Some(fence) if fence.effect == Effect::NonIdempotentWrite => Err(Rejection::NonIdempotentFence(fence.call_id.clone())),
        _ => Ok(()),
    }
}

fn record(draft: &mut Draft<'_>, recorded: Recorded) -> Result<(), Rejection> {
    match recorded {
        Recorded::Reply { reply, on_expiry } => reply_recorded(draft, reply, on_expiry),
        Recorded::Outcome(outcome) => outcome_recorded(draft, outcome),
        Recorded::Evidence(id) => {
            if draft.pending(&id)?.evidence.is_none() {
                return Err(Rejection::NoEvidence(id));
            }
            if draft.is_fenced(&id) && draft.row.has_non_idempotent_fence() && entered_by_holder(draft, &id) {
                // What this segment's own attempt did is still to be said: an outcome, or a doubt.
                return Err(Rejection::FenceStands(id));
            }
            draft.take_evidence(&id);
            Ok(())
        }
    }
}

fn reply_recorded(draft: &mut Draft<'_>, mut reply: body::ModelReply, on_expiry: OnExpiry) -> Result<(), Rejection> {
    no_fence(draft)?;
    if draft.next.has_pending_calls() {
        return Err(Rejection::TurnOpen);
    }
    let number = draft.next.rounds.saturating_add(1);
    // Keys are made from call ids: one that came before would make the far side take a new write for a repeat.
    if let Some((_, call)) = reply.calls.iter().enumerate().find(|(index, call)| call.id != CallId::of(number, *index)) {
        return Err(Rejection::UnknownCall(call.id.clone()));
    }
    reply.turn = number;
    draft.next.rounds = number;
    draft.next.usage = total(draft.next.usage, reply.usage);
    let earlier = draft.next.turn.take().map(OpenTurn::spoken_of_later).unwrap_or_default();
    draft.next.turn = Some(OpenTurn {
        number,
        digest: None,
        deadline: None,
        on_expiry,
        edited_by: Vec::new(),
        calls: open_calls(&reply.calls),
        earlier,
    });
    draft.push(EntryBody::ModelReply(reply));
    Ok(())
}

fn outcome_recorded(draft: &mut Draft<'_>, mut outcome: body::ToolOutcome) -> Result<(), Rejection> {
    let id = outcome.call_id.clone();
    let call = draft.pending(&id)?;
    let (is_write, has_evidence, is_released) = (call.effect.is_write(), call.evidence.is_some(), call.is_released());
    outcome.late = false;
    outcome.evidence = None;
    match draft.next.fence.as_ref().filter(|f| f.call_id == id) {
        Some(fence) if outcome.outcome == Outcome::Unknown && (!has_evidence || fence.effect == Effect::NonIdempotentWrite) => {
            return Err(Rejection::UnknownIsDoubt(id));
        }
        // It may be in the tool: that it was never begun is for `unstamp` to say.
        Some(_) if matches!(outcome.outcome, Outcome::Refused | Outcome::Denied | Outcome::NotRun) => {
            return Err(Rejection::FenceStands(id));
        }
        // Of another segment's attempt this one knows only what the tool's verify says.
        Some(fence) if !is_own(draft, fence) && (outcome.outcome, outcome.via) != (Outcome::Done, Via::Verify) => {
            return Err(Rejection::NotOwnFence(id));
        }
        Some(fence) if outcome.outcome != Outcome::Done && fence.repeat && !has_evidence => {
            return Err(Rejection::RepeatIsUnknown(id));
        }
        Some(_) => answered(draft, &outcome),
        None if outcome.outcome == Outcome::Denied => return Err(Rejection::NotReleased(id)),
        None if !is_released && !matches!(outcome.outcome, Outcome::Refused | Outcome::NotRun) => {
            return Err(Rejection::NotReleased(id));
        }
        None if is_write && !matches!(outcome.outcome, Outcome::Refused | Outcome::NotRun) => {
            return Err(Rejection::WriteNotStamped(id));
        }
        None if is_write && draft.row.state == State::Cancelling => return Err(Rejection::NotInFlight(id)),
        None => {}
    }
    draft.outcome(outcome);
    Ok(())
}

/// Keeps the answer of the fenced attempt beside its stamp: its process may offer it again when this one's answer is lost.
fn answered(draft: &mut Draft<'_>, outcome: &body::ToolOutcome) {
    let said = match (outcome.via, outcome.outcome) {
        (Via::Tool, Outcome::Done) => LateAnswer::Done,
        (Via::Tool, Outcome::NotApplied) => LateAnswer::NotApplied,
        _ => return,
    };
    if let Some(stamp) = draft.call_mut(&outcome.call_id).and_then(|c| c.stamps.last_mut()) {
        stamp.late.push(said);
    }
}

/// The fence is of the holder's own stamp.
fn is_own(draft: &Draft<'_>, fence: &Fence) -> bool {
    fence.epoch == draft.row.epoch && fence.lease_id == own_lease(draft)
}

/// The call's newest stamp is the holder's own, and it may have entered the tool under it.
fn entered_by_holder(draft: &Draft<'_>, id: &CallId) -> bool {
    let newest = draft.next.turn.as_ref().and_then(|t| t.call(id)).and_then(|c| c.stamps.last());
    newest.is_some_and(|s| s.entered && s.epoch == draft.row.epoch && s.lease_id == own_lease(draft))
}

fn stamp(draft: &mut Draft<'_>, stamp: &StampCall) -> Result<(), Rejection> {
    no_fence(draft)?;
    let call = draft.pending(&stamp.call_id)?;
    let effect = call.effect.max(stamp.effect);
    if !effect.is_write() {
        return Err(Rejection::NotAWrite(stamp.call_id.clone()));
    }
    if !call.is_released() {
        return Err(Rejection::NotReleased(stamp.call_id.clone()));
    }
    if call.evidence.is_some() {
        return Err(Rejection::EvidenceSaysDone(stamp.call_id.clone()));
    }
    let attempt = u32::try_from(call.stamps.iter().filter(|s| s.entered).count()).unwrap_or(u32::MAX).saturating_add(1);
    // A call that goes on after its tool has asked is no repeat, unless the attempt that asked was one.
    let repeat = call.stamps.iter().rfind(|s| s.entered).is_some_and(|s| s.asked && s.repeat);
    let fence = new_fence(draft, stamp, Entry { effect, attempt, repeat, verifiable: stamp.verifiable })?;
    set_fence(draft, fence, &stamp.endpoint, EntryBody::WriteStamped);
    Ok(())
}

fn restamp(draft: &mut Draft<'_>, stamp: &StampCall, found_absent: bool) -> Result<(), Rejection> {
    let Some(standing) = draft.next.fence.clone().filter(|f| f.call_id == stamp.call_id) else {
        return Err(Rejection::NoFence(stamp.call_id.clone()));
    };
    let call = draft.pending(&stamp.call_id)?;
    if call.evidence.is_some() {
        return Err(Rejection::EvidenceSaysDone(stamp.call_id.clone()));
    }
    // Only a claim verifies: what the holder found before its own entry says nothing about that entry.
    let found_absent = found_absent && standing.verifiable && !entered_by_holder(draft, &stamp.call_id);
    if standing.effect == Effect::NonIdempotentWrite && !found_absent {
        return Err(Rejection::NotFoundAbsent(stamp.call_id.clone()));
    }
    // The fence's own effect and `verifiable` count, not today's declaration.
    let Fence { effect, verifiable, .. } = standing;
    let entry = Entry { effect, attempt: standing.attempt.saturating_add(1), repeat: true, verifiable };
    let fence = new_fence(draft, stamp, entry)?;
    set_fence(draft, fence, &stamp.endpoint, EntryBody::WriteRestamped);
    Ok(())
}

/// What a first stamp and a repeat differ in.
struct Entry {
    effect: Effect,
    attempt: u32,
    repeat: bool,
    verifiable: bool,
}

fn new_fence(draft: &Draft<'_>, stamp: &StampCall, entry: Entry) -> Result<Fence, Rejection> {
    let call = draft.pending(&stamp.call_id)?;
    let now = draft.now.wall;
    Ok(Fence {
        call_id: stamp.call_id.clone(),
        tool: call.tool.clone(),
        effect: entry.effect,
        idempotency_key: draft.next.id.idempotency_key(&stamp.call_id),
        epoch: draft.next.epoch,
        lease_id: own_lease(draft),
        attempt: entry.attempt,
        repeat: entry.repeat,
        verifiable: entry.verifiable,
        stamped_at: now,
        in_flight_until: crate::clock::to_millis(now.checked_add(stamp.in_flight_for).unwrap_or(now)),
    })
}

fn own_lease(draft: &Draft<'_>) -> LeaseId {
    // The holder check has matched the row's lease before any act.
    draft.row.lease.as_ref().map_or(LeaseId(uuid::Uuid::nil()), |l| l.lease_id)
}

fn set_fence(draft: &mut Draft<'_>, fence: Fence, endpoint: &str, entry: fn(body::Stamped) -> EntryBody) {
    if let Some(call) = draft.call_mut(&fence.call_id) {
        call.effect = fence.effect;
        call.absent = false;
        // Of an entry that is over.
        call.question = None;
        call.stamps.push(Stamp {
            epoch: fence.epoch,
            lease_id: fence.lease_id,
            entered: true,
            late: Vec::new(),
            asked: false,
            repeat: false,
        });
    }
    draft.push(entry(body::Stamped {
        call_id: fence.call_id.clone(),
        tool: fence.tool.clone(),
        effect: fence.effect,
        idempotency_key: fence.idempotency_key.clone(),
        attempt: fence.attempt,
        endpoint: endpoint.to_owned(),
    }));
    draft.next.fence = Some(fence);
    draft.extend();
}

fn unstamp(draft: &mut Draft<'_>, id: &CallId, why: String) -> Result<(), Rejection> {
    let Some(fence) = draft.next.fence.clone().filter(|f| &f.call_id == id) else {
        return Err(Rejection::NoFence(id.clone()));
    };
    if !is_own(draft, &fence) {
        return Err(Rejection::NotOwnFence(id.clone()));
    }
    draft.pending(id)?;
    not_started(draft, id, why, false, fence.repeat);
    draft.extend();
    Ok(())
}

/// The newest stamp of the fenced call was not used. The fence stands where an earlier one may have been.
pub(super) fn not_started(draft: &mut Draft<'_>, id: &CallId, why: String, late: bool, fence_kept: bool) {
    if let Some(call) = draft.call_mut(id) {
        call.question = None;
        if let Some(stamp) = call.stamps.last_mut() {
            stamp.entered = false;
        }
    }
    draft.push(EntryBody::WriteNotStarted(body::NotStarted { call_id: id.clone(), late, fence_kept, why }));
    if draft.call_mut(id).is_some_and(|c| c.evidence.is_some()) {
        draft.take_evidence(id);
    } else if !fence_kept {
        draft.next.fence = None;
    }
}

/// The tool was entered and has answered: it does nothing before it has this. The call is pending again, for whoever has the answers.
fn input_required(draft: &mut Draft<'_>, asked: body::InputRequired) -> Result<(), Rejection> {
    let id = asked.call_id.clone();
    let call = draft.pending(&id)?;
    match draft.next.fence.as_ref().filter(|f| f.call_id == id) {
        Some(fence) if !is_own(draft, fence) => return Err(Rejection::NotOwnFence(id)),
        Some(_) => {}
        None if !call.is_released() => return Err(Rejection::NotReleased(id)),
        None if call.effect.is_write() => return Err(Rejection::WriteNotStamped(id)),
        None => {}
    }
    let is_fenced = draft.is_fenced(&id);
    let repeat = is_fenced && draft.next.fence.as_ref().is_some_and(|f| f.repeat);
    let mut has_evidence = false;
    if let Some(call) = draft.call_mut(&id) {
        call.question = None;
        has_evidence = call.evidence.is_some();
        if let Some(stamp) = call.stamps.last_mut().filter(|_| is_fenced) {
            stamp.asked = true;
            stamp.repeat = repeat;
        }
    }
    draft.push(EntryBody::InputRequired(asked));
    if has_evidence {
        draft.take_evidence(&id);
    } else if is_fenced {
        draft.next.fence = None;
    }
    draft.extend();
    Ok(())
}

fn suspend(draft: &mut Draft<'_>, card: super::decision::TurnCard, deadline: Option<jiff::Timestamp>) -> Result<(), Rejection> {
    no_fence(draft)?;
    if card.calls.is_empty() {
        return Err(Rejection::EmptyCard);
    }
    if card.kind == WaitKind::Approval {
        super::people::shows_every_undecided(draft, &card)?;
    }
    let digest = card.digest(draft.next.id, draft.sequence());
    for shown in &card.calls {
        draft.pending(&shown.id)?;
        if let Some(call) = draft.call_mut(&shown.id) {
            call.needs_person = true;
            call.verdict = None;
        }
    }
    if let Some(turn) = &mut draft.next.turn {
        turn.digest = Some(digest.clone());
        turn.deadline = deadline;
    }
    draft.drop_lease();
    draft.next.state = match card.kind {
        WaitKind::Approval => State::WaitingForApproval,
        WaitKind::Input => State::WaitingForInput,
    };
    draft.next.since = draft.now.wall;
    draft.next.next_segment = SegmentKind::Resume;
    if !(draft.next.recovery == Recovery::Abandon && draft.next.recovery_explicit) {
        draft.next.recovery = Recovery::Requeue;
    }
    draft.push(EntryBody::Suspended(body::Suspended { card, digest, deadline }));
    Ok(())
}

fn retry(draft: &mut Draft<'_>, why: &str, not_before: Option<jiff::Timestamp>) {
    if draft.row.recovery == Recovery::Abandon {
        if draft.row.fence.is_some() {
            draft.dead(Reason::Abandoned, why);
        } else {
            draft.settle(State::Failed, Some(Reason::ModelUnavailable), None, false, why);
        }
    } else if draft.row.requeues >= draft.now.policy.max_requeues {
        draft.dead(Reason::RetriesExhausted, why);
    } else {
        let due = not_before.map_or(draft.after_backoff(), |t| t.max(draft.after_backoff()));
        draft.next.requeues += 1;
        let next = draft.same_segment();
        draft.requeue(why, due, next);
    }
}
