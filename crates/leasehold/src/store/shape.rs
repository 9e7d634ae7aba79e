//! What every store holds against a write and a row, whoever made them: storage properties, no rule about when a run may change.
//!
//! A write that fails here is a defect of its maker. It is refused before anything is stored, so that the journal of no run gets
//! a gap and no store holds a row which another store would refuse.

use super::{Insert, LeaseOp, Unavailable, Write};
use crate::{
    limits::PAGE_MAX,
    run::{Claimer, Entry, Fence, OnExpiry, OpenCall, OpenTurn, Reason, Snapshot, Stamp, State},
};

/// At most a page.
pub(super) fn page(limit: usize) -> usize {
    limit.min(PAGE_MAX)
}

/// The last hexadecimal digits of an id as [`Store::find`](super::Store::find) compares them; none where the text cannot be the
/// end of an id.
pub(super) fn id_suffix(text: &str) -> Option<String> {
    let digits: String = text.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
    (!digits.is_empty() && digits.len() <= 32 && digits.bytes().all(|b| b.is_ascii_hexdigit())).then_some(digits)
}

/// What a worker says it serves, as it is stored.
pub(super) fn serves(claimer: &Claimer) -> String {
    // Names and a truth value: it has no failing case.
    serde_json::to_string(claimer).unwrap_or_default()
}

/// The same read back; a text of another version serves nothing that is known here.
pub(super) fn claimer(serves: &str) -> Claimer {
    serde_json::from_str(serves).unwrap_or_default()
}

/// The entries continue the journal without a gap, and the lease operation fits the row.
pub(super) fn check_write(write: &Write) -> Result<(), Unavailable> {
    numbered(&write.entries, write.guard.sequence, write.next.sequence)?;
    match (write.lease, &write.next.lease) {
        (LeaseOp::Extend(_), None) => Err(malformed("it extends a lease which its row has not")),
        (LeaseOp::Drop, Some(_)) => Err(malformed("it drops a lease which its row has")),
        _ => Ok(()),
    }
}

/// The same for a first row.
pub(super) fn check_insert(insert: &Insert) -> Result<(), Unavailable> {
    numbered(&insert.entries, 0, insert.row.sequence)?;
    if insert.entries.is_empty() {
        return Err(malformed("a run begins with an entry"));
    }
    match (insert.lease, &insert.row.lease) {
        (LeaseOp::Extend(_), Some(_)) | (LeaseOp::Keep, None) => Ok(()),
        _ => Err(malformed("its lease is granted where its row has one, and only there")),
    }
}

fn numbered(entries: &[Entry], from: u64, next: u64) -> Result<(), Unavailable> {
    let mut expected = from;
    for entry in entries {
        if entry.sequence != expected {
            return Err(malformed("its entries leave a gap"));
        }
        expected += 1;
    }
    if next == expected { Ok(()) } else { Err(malformed("its row does not count its entries")) }
}

fn malformed(why: &str) -> Unavailable {
    Unavailable(format!("the write is malformed and was not sent: {why}"))
}

/// What holds of every row, in words where it does not; the SQL stores' constraints say the same.
pub(super) fn check_row(row: &Snapshot) -> Result<(), &'static str> {
    let held = row.state.is_held();
    if row.lease.is_some() != held {
        return Err("a lease stands exactly while the run is held");
    }
    if held && row.epoch == 0 {
        return Err("a run is held only after a grant");
    }
    if held && (row.state == State::Cancelling) != row.cancel_requested {
        return Err("a held run is cancelling exactly where a cancel was requested");
    }
    if row.sequence == 0 {
        return Err("a run has a first entry");
    }
    if let Some(fence) = &row.fence {
        if !(held || matches!(row.state, State::Queued | State::Dead)) {
            return Err("a fence stands only while the run is queued, held or dead");
        }
        if fence.epoch == 0 || fence.epoch > row.epoch || fence.attempt == 0 {
            return Err("a fence is of an epoch of its run and of a first or later attempt");
        }
    } else if row.reason == Some(Reason::WriteInDoubt) {
        return Err("a doubt has its fence");
    }
    if reason_fits(row.state, row.reason) { Ok(()) } else { Err("the reason is not one of the state") }
}

/// A row as it is read: what holds of every row, no stamp that may have been used lacks its fence, and no fence names a call that
/// has its outcome. Such a row was changed by another hand; it can be ended, and the call counts as one that may have happened.
pub(super) fn check_read(row: &Snapshot) -> Result<(), String> {
    check_row(row)?;
    if let Some(call) = row.fenced_call().filter(|call| !call.is_pending()) {
        return Err(format!("its fence names call {}, which has an outcome", call.id));
    }
    match row.misses_fence() {
        Some(call) => Err(format!("the fence of call {} is missing: it may have been entered", call.id)),
        None => Ok(()),
    }
}

/// What is left of a row that does not decode, from the columns that do; `state` and `turn` where those do. Nothing can be
/// continued from it. None where there is nothing to end.
pub(super) fn rest(state: Option<State>, turn: Option<OpenTurn>, mut row: Snapshot) -> Option<Snapshot> {
    row.has_request = false;
    row.state = match (state, &row.lease) {
        (_, Some(_)) if row.cancel_requested => State::Cancelling,
        (_, Some(_)) => State::Running,
        (Some(state), None) if !state.is_held() => state,
        (_, None) => State::Dead,
    };
    if row.state.is_settled() {
        return None;
    }
    let unreadable = if row.has_non_idempotent_fence() { Reason::WriteInDoubt } else { Reason::Unreadable };
    if !reason_fits(row.state, row.reason) {
        row.reason = (row.state == State::Dead).then_some(unreadable);
    }
    row.turn = turn;
    if row.fence.is_none() && (row.state.is_held() || matches!(row.state, State::Queued | State::Dead)) {
        row.fence = row.misses_fence().and_then(|call| fence_of(call, &row));
        if row.has_non_idempotent_fence() && row.state == State::Dead {
            row.reason = Some(Reason::WriteInDoubt);
        }
    }
    if let Some(fence) = row.fence.clone()
        && row.fenced_call().is_none_or(|call| !call.is_pending())
    {
        row.turn = Some(turn_of(&fence, row.rounds));
    }
    check_row(&row).is_ok().then_some(row)
}

/// The fence that a call misses, from its newest stamp. When that was made is not known, so nobody waits for it.
fn fence_of(call: &OpenCall, row: &Snapshot) -> Option<Fence> {
    let stamp = call.stamps.last()?;
    Some(Fence {
        call_id: call.id.clone(),
        tool: call.tool.clone(),
        effect: call.effect,
        idempotency_key: row.id.idempotency_key(&call.id),
        epoch: stamp.epoch,
        lease_id: stamp.lease_id,
        attempt: u32::try_from(call.stamps.len()).unwrap_or(u32::MAX),
        repeat: call.stamps.iter().filter(|s| s.entered).count() > 1,
        verifiable: false,
        stamped_at: row.created_at,
        in_flight_until: row.created_at,
    })
}

/// A turn of the one call that a fence names, which may have been entered.
fn turn_of(fence: &Fence, number: u32) -> OpenTurn {
    let stamp =
        Stamp { epoch: fence.epoch, lease_id: fence.lease_id, entered: true, late: Vec::new(), asked: false, repeat: false };
    let call = OpenCall {
        id: fence.call_id.clone(),
        tool: fence.tool.clone(),
        effect: fence.effect,
        needs_person: false,
        verdict: None,
        outcome: None,
        stamps: vec![stamp],
        absent: false,
        evidence: None,
        question: None,
    };
    let on_expiry = OnExpiry::Continue;
    OpenTurn { number, digest: None, deadline: None, on_expiry, edited_by: Vec::new(), calls: vec![call], earlier: Vec::new() }
}

fn reason_fits(state: State, reason: Option<Reason>) -> bool {
    use Reason::{
        Abandoned, Budget, ContextOverflow, DecisionExpired, ModelAuth, ModelClient, ModelUnavailable, Policy, Refused,
        Restored, RetriesExhausted, Unreadable, WriteInDoubt,
    };
    match (state, reason) {
        (
            State::Failed,
            Some(Refused | Policy | Budget | ModelAuth | ModelClient | ModelUnavailable | ContextOverflow | Abandoned),
        )
        | (State::Dead, Some(WriteInDoubt | RetriesExhausted | Abandoned | Unreadable | DecisionExpired | Restored)) => true,
        (State::Failed | State::Dead, _) => false,
        (_, reason) => reason.is_none(),
    }
}
