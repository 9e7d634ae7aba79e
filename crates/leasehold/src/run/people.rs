//! What a person, or a machine with the right, may order. Whether the principal may act on the run at all is the caller's
//! question; what the decision is bound to, and who may never release, is answered here, in the transaction.

use super::{
    draft::Draft,
    event::{DecideCall, Event, Grant, Order},
    holder::no_non_idempotent_fence,
    ids::CallId,
    journal::{EntryBody, body},
    snapshot::Snapshot,
    state::{Attribution, Outcome, Principal, PrincipalKind, Reason, Recovery, ResolutionKind, SegmentKind, State, Via},
    transition::{RESTORE_JUMP, Rejection},
};
use serde_json::Value;

/// The same event came before: it gets the same answer and is not journaled again. What has left the row is looked up in the
/// journal by the caller.
pub(super) fn taken_before(row: &Snapshot, event: &Event) -> Result<bool, Rejection> {
    match event {
        Event::Person(_, Order::Cancel { .. }) => Ok(row.cancel_requested || row.state == State::Cancelled),
        Event::Person(by, Order::Decide { digest, calls, .. } | Order::DecidePart { digest, calls }) => {
            let Some(turn) = row.turn.as_ref().filter(|t| t.digest.as_deref() == Some(digest.as_str())) else {
                return Ok(false);
            };
            let mut repeated = 0;
            for decided in calls {
                let Some(verdict) = turn.call(&decided.call_id).and_then(|c| c.verdict.as_ref()) else { continue };
                if verdict.by == by.id && verdict.approved == decided.approved && decided.arguments.is_none() {
                    repeated += 1;
                } else {
                    return Err(Rejection::AlreadyDecided {
                        call: decided.call_id.clone(),
                        by: verdict.by.clone(),
                        at: verdict.at,
                    });
                }
            }
            Ok(repeated > 0 && repeated == calls.len())
        }
        _ => Ok(false),
    }
}

pub(super) fn order(mut draft: Draft<'_>, by: Principal, order: Order) -> Result<Draft<'_>, Rejection> {
    match order {
        Order::Decide { digest, calls, grant } => decide(&mut draft, by, digest, calls, grant, true)?,
        Order::DecidePart { digest, calls } => decide(&mut draft, by, digest, calls, None, false)?,
        Order::Edit { digest, card, calls } => edit(&mut draft, by, &digest, card, calls)?,
        Order::Submit { digest, call_id, question, values, grant } => {
            on_this_turn(&draft, &digest)?;
            let call = draft.pending(&call_id)?;
            if !call.is_undecided() {
                return Err(Rejection::UnknownCall(call_id));
            }
            // What a tool declares and nobody gives releases nothing. A call that has asked goes on, and is told so.
            if (values.is_some() || call.has_asked()) && call.effect.is_write() {
                release(&mut draft, &by)?;
            }
            if let Some(call) = draft.call_mut(&call_id) {
                call.needs_person = false;
            }
            let lease_id = grant.as_ref().map(|g| g.lease_id);
            go_on(&mut draft, grant);
            let declined = values.is_none();
            // A call that has asked goes on and is told so; one that waits for the values of its tool cannot run without.
            let denied = (declined && question.is_none()).then(|| call_id.clone());
            let values = values.unwrap_or_default();
            draft.push(EntryBody::Input(body::Input { digest, by, call_id, question, values, declined, lease_id }));
            if let Some(id) = denied {
                draft.outcome_text(&id, Outcome::Denied, Via::Decision, "a person declined to fill in the values of this call");
            }
        }
        Order::Answer { call_id, question, values } => {
            let call = draft.pending(&call_id)?;
            if call.question != Some(question) {
                return Err(Rejection::NoQuestion);
            }
            // What is declined releases nothing.
            if values.is_some() && call.effect.is_write() {
                release(&mut draft, &by)?;
            }
            if let Some(call) = draft.call_mut(&call_id) {
                call.question = None;
            }
            draft.push(EntryBody::Answered(body::Answered { call_id, question, by, values }));
        }
        Order::Cancel { note } => cancel(&mut draft, by, note)?,
        Order::Resolve { call_id, fence_epoch, outcome, result, note } => {
            resolve(&mut draft, Resolution { by, call_id, fence_epoch, outcome, result, note })?;
        }
        Order::Redrive { approved_after, note } => redrive(&mut draft, by, approved_after, note)?,
        Order::Discard { note } => {
            if draft.row.state == State::Queued && !draft.row.cancel_requested {
                return Err(Rejection::NotInState { state: State::Queued, event: super::EventKind::Discard });
            }
            draft.push(EntryBody::Discarded(Draft::by(by, note)));
            draft.cancelled("discarded");
        }
        Order::Restored => restored(&mut draft)?,
    }
    Ok(draft)
}

/// The digest names what waits now, and it is not too late.
fn on_this_turn(draft: &Draft<'_>, digest: &str) -> Result<(), Rejection> {
    let turn = draft.row.turn.as_ref().filter(|t| t.digest.as_deref() == Some(digest)).ok_or(Rejection::StaleTurn)?;
    match turn.deadline {
        Some(deadline) if deadline <= draft.now.wall => Err(Rejection::DeadlinePassed(deadline)),
        _ => Ok(()),
    }
}

/// Who may let a write start: never a machine, and under four eyes neither the initiator nor the author of an edit.
fn release(draft: &mut Draft<'_>, by: &Principal) -> Result<(), Rejection> {
    if by.kind == PrincipalKind::Machine {
        return Err(Rejection::MachineMayNotRelease);
    }
    let edited = draft.row.turn.as_ref().is_some_and(|t| t.edited_by.contains(&by.id));
    if draft.row.second_approver && (by.id == draft.row.initiator || edited) {
        return Err(Rejection::SelfApproval(by.id.clone()));
    }
    let of = Attribution::of(by, &draft.row.initiator);
    draft.next.attribution = Some(draft.next.attribution.map_or(of, |weakest| weakest.min(of)));
    Ok(())
}

fn decide(
    draft: &mut Draft<'_>,
    by: Principal,
    digest: String,
    calls: Vec<DecideCall>,
    grant: Option<Grant>,
    is_last: bool,
) -> Result<(), Rejection> {
    on_this_turn(draft, &digest)?;
    if calls.is_empty() {
        return Err(Rejection::EmptyCard);
    }
    if calls.iter().any(|c| c.approved) {
        release(draft, &by)?;
    }
    if draft.row.second_approver && calls.iter().any(|c| c.approved && c.arguments.is_some()) {
        // Under four eyes other arguments are a proposal, which somebody else releases.
        return Err(Rejection::SelfApproval(by.id));
    }
    let (at, who) = (draft.now.wall, by.id.clone());
    for decided in &calls {
        let call = draft.pending(&decided.call_id)?;
        if !call.needs_person {
            return Err(Rejection::UnknownCall(decided.call_id.clone()));
        }
        if let Some(verdict) = &call.verdict {
            return Err(Rejection::AlreadyDecided { call: call.id.clone(), by: verdict.by.clone(), at: verdict.at });
        }
        if let Some(call) = draft.call_mut(&decided.call_id) {
            call.verdict = Some(super::snapshot::CallVerdict { approved: decided.approved, by: who.clone(), at });
        }
    }
    let undecided = draft.next.turn.iter().flat_map(|t| &t.calls).find(|c| c.is_undecided()).map(|c| c.id.clone());
    match (is_last, undecided) {
        (true, Some(call)) => return Err(Rejection::Undecided(call)),
        (false, None) => return Err(Rejection::LastDecision),
        _ => {}
    }
    let denied: Vec<(CallId, String)> = calls
        .iter()
        .filter(|c| !c.approved)
        .map(|c| {
            let reason = c.reason.as_deref().map(|r| format!(": {r}")).unwrap_or_default();
            (c.call_id.clone(), format!("a person denied this call{reason}"))
        })
        .collect();
    let lease_id = grant.as_ref().map(|g| g.lease_id);
    let calls = calls.into_iter().map(decided_body).collect();
    draft.push(EntryBody::Approval(body::Approval { digest, by, calls, proposal: false, lease_id }));
    for (id, text) in &denied {
        draft.outcome_text(id, Outcome::Denied, Via::Decision, text);
    }
    if is_last {
        go_on(draft, grant);
    }
    Ok(())
}

/// A person's word as it is journaled.
fn decided_body(call: DecideCall) -> body::Decided {
    let DecideCall { call_id, approved, reason, arguments, edited_card } = call;
    body::Decided { call_id, approved, reason, arguments, edited_card }
}

/// The run goes on: here, where the person's process executes, else from the queue.
fn go_on(draft: &mut Draft<'_>, grant: Option<Grant>) {
    match grant {
        Some(grant) => {
            draft.next.state = State::Running;
            draft.grant(&grant, SegmentKind::Resume);
        }
        None => {
            let now = draft.now.wall;
            draft.queued(now, SegmentKind::Resume);
        }
    }
}

fn edit(
    draft: &mut Draft<'_>,
    by: Principal,
    digest: &str,
    card: super::decision::TurnCard,
    calls: Vec<DecideCall>,
) -> Result<(), Rejection> {
    on_this_turn(draft, digest)?;
    if !draft.row.second_approver {
        return Err(Rejection::NotUnderFourEyes);
    }
    if by.kind == PrincipalKind::Machine {
        return Err(Rejection::MachineMayNotRelease);
    }
    if calls.is_empty() {
        return Err(Rejection::EmptyCard);
    }
    for id in calls.iter().map(|c| &c.call_id).chain(card.calls.iter().map(|c| &c.id)) {
        let call = draft.pending(id)?;
        if let Some(verdict) = &call.verdict {
            // What was released is not changed afterwards.
            return Err(Rejection::AlreadyDecided { call: id.clone(), by: verdict.by.clone(), at: verdict.at });
        }
    }
    shows_every_undecided(draft, &card)?;
    let author = by.id.clone();
    let calls = calls.into_iter().map(decided_body).collect();
    let deadline = draft.row.turn.as_ref().and_then(|t| t.deadline);
    draft.push(EntryBody::Approval(body::Approval { digest: digest.to_owned(), by, calls, proposal: true, lease_id: None }));
    let digest = card.digest(draft.next.id, draft.sequence());
    if let Some(turn) = &mut draft.next.turn {
        turn.digest = Some(digest.clone());
        if !turn.edited_by.contains(&author) {
            turn.edited_by.push(author);
        }
    }
    draft.push(EntryBody::Suspended(body::Suspended { card, digest, deadline }));
    Ok(())
}

/// A person decides about nothing that the card does not show.
pub(super) fn shows_every_undecided(draft: &Draft<'_>, card: &super::decision::TurnCard) -> Result<(), Rejection> {
    let mut undecided = draft.next.turn.iter().flat_map(|t| &t.calls).filter(|c| c.is_undecided());
    match undecided.find(|call| card.calls.iter().all(|shown| shown.id != call.id)) {
        Some(call) => Err(Rejection::Undecided(call.id.clone())),
        None => Ok(()),
    }
}

fn cancel(draft: &mut Draft<'_>, by: Principal, note: Option<String>) -> Result<(), Rejection> {
    match draft.row.state {
        State::Running => {
            draft.next.state = State::Cancelling;
            draft.next.cancel_requested = true;
            draft.push(EntryBody::CancelRequested(Draft::by(by, note)));
        }
        State::Dead if draft.row.reason != Some(Reason::WriteInDoubt) => {
            return Err(Rejection::NotInState { state: State::Dead, event: super::EventKind::Cancel });
        }
        _ => {
            draft.next.cancel_requested = true;
            draft.push(EntryBody::CancelRequested(Draft::by(by, note)));
            if !draft.row.has_non_idempotent_fence() {
                draft.cancelled("cancelled");
            }
        }
    }
    Ok(())
}

struct Resolution {
    by: Principal,
    call_id: CallId,
    fence_epoch: u64,
    outcome: ResolutionKind,
    result: Option<Value>,
    note: Option<String>,
}

fn resolve(draft: &mut Draft<'_>, said: Resolution) -> Result<(), Rejection> {
    let in_doubt = draft.row.reason == Some(Reason::WriteInDoubt);
    let Some(fence) = draft.row.fence.as_ref().filter(|f| in_doubt && f.call_id == said.call_id && f.epoch == said.fence_epoch)
    else {
        return Err(Rejection::StaleDoubt);
    };
    if said.outcome == ResolutionKind::NotLanded {
        release(draft, &said.by)?;
        if draft.now.wall < fence.in_flight_until {
            return Err(Rejection::TooEarly(fence.in_flight_until));
        }
    }
    let who = said.by.id.clone();
    draft.push(EntryBody::Resolved(body::Resolved {
        call_id: said.call_id.clone(),
        fence_epoch: said.fence_epoch,
        outcome: said.outcome,
        by: said.by,
        note: said.note,
    }));
    draft.next.recovery = Recovery::Requeue;
    let tool = fence.tool.clone();
    match said.outcome {
        ResolutionKind::Landed => {
            let result = said.result.unwrap_or_else(|| Value::String(format!("{who} says that this call happened")));
            draft.outcome(body::ToolOutcome {
                call_id: said.call_id,
                tool,
                outcome: Outcome::Done,
                is_error: false,
                result,
                late: false,
                via: Via::Resolution,
                evidence: None,
            });
            draft.resume("a person says that the write happened");
        }
        ResolutionKind::NotLanded => {
            if draft.call_mut(&said.call_id).is_some_and(|c| c.evidence.is_some()) {
                draft.take_evidence(&said.call_id);
            } else {
                draft.next.fence = None;
                if let Some(call) = draft.call_mut(&said.call_id) {
                    call.absent = true;
                }
            }
            draft.resume("a person says that the write did not happen");
        }
        ResolutionKind::Abandon => {
            let text = format!("outcome unknown, given up by {who}, do not repeat");
            draft.outcome_text(&said.call_id, Outcome::Unknown, Via::Resolution, &text);
            if draft.next.cancel_requested {
                draft.cancelled("cancelled; the write in doubt was given up");
            } else {
                draft.settle(State::Failed, Some(Reason::Abandoned), None, false, &format!("{who} gave up the write in doubt"));
            }
        }
    }
    Ok(())
}

fn redrive(
    draft: &mut Draft<'_>,
    by: Principal,
    approved_after: jiff::Timestamp,
    note: Option<String>,
) -> Result<(), Rejection> {
    no_non_idempotent_fence(draft)?;
    if draft.row.cancel_requested {
        return Err(Rejection::CancelRequested);
    }
    if !draft.row.has_request {
        return Err(Rejection::NothingToContinue);
    }
    let fenced = draft.row.fence.as_ref().map(|f| f.call_id.clone());
    for call in draft.next.turn.iter_mut().flat_map(|t| &mut t.calls) {
        let stale = call.verdict.as_ref().is_some_and(|v| v.approved && v.at < approved_after);
        if call.is_pending() && stale && Some(&call.id) != fenced.as_ref() {
            call.verdict = None;
        }
    }
    draft.next.requeues = 0;
    draft.next.recovery = Recovery::Requeue;
    let now = draft.now.wall;
    draft.queued(now, SegmentKind::Worker);
    draft.push(EntryBody::Redriven(Draft::by(by, note)));
    // A late answer that came while the run was failed: the call is not made again.
    let known: Vec<CallId> =
        draft.next.turn.iter().flat_map(|t| t.pending()).filter(|c| c.evidence.is_some()).map(|c| c.id.clone()).collect();
    for id in known.iter().filter(|id| Some(*id) != fenced.as_ref()) {
        draft.take_evidence(id);
    }
    Ok(())
}

fn restored(draft: &mut Draft<'_>) -> Result<(), Rejection> {
    if draft.row.reason == Some(Reason::Restored) {
        return Err(Rejection::NothingToRestore);
    }
    draft.next.epoch += RESTORE_JUMP;
    draft.drop_lease();
    let was_dead = draft.row.state == State::Dead;
    let since = draft.row.since;
    if draft.row.has_non_idempotent_fence() {
        draft.in_doubt("the store was restored from a backup; what happened since is not in the record");
    } else if was_dead {
        // A dead run stays what it is; the entry says why its epoch jumped.
        let reason = draft.row.reason.unwrap_or(Reason::Restored);
        draft.dead(reason, "the store was restored from a backup");
    } else {
        draft.dead(Reason::Restored, "the store was restored from a backup; what happened since is not in the record");
    }
    if was_dead {
        draft.next.since = since;
    }
    Ok(())
}
