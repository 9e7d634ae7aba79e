//! The table read a second time, independently of `apply`, and what holds of every transition whatever it is.

use leasehold::run::*;

/// The table's rules for this pair that the transition fits.
pub(crate) fn fitting(row: &Snapshot, kind: EventKind, delta: &Delta) -> Vec<usize> {
    TABLE
        .iter()
        .enumerate()
        .filter(|(_, rule)| rule.event == kind && rule.from.contains(&row.state) && fits(rule, row, delta))
        .map(|(index, _)| index)
        .collect()
}

fn fits(rule: &Rule, row: &Snapshot, delta: &Delta) -> bool {
    let next = &delta.next;
    let to = rule.to.contains(&To::Is(next.state)) || rule.to.contains(&To::Same) && next.state == row.state;
    let jumped = next.epoch - row.epoch;
    let epoch = match rule.epoch {
        EpochOp::Keep => jumped == 0,
        EpochOp::Next => jumped == 1,
        EpochOp::NextIfGranted => jumped == u64::from(next.lease.is_some()),
        EpochOp::Jump => jumped == 1 << 20,
    };
    let lease = match rule.lease {
        LeaseCol::Keep | LeaseCol::Extend => next.lease == row.lease,
        LeaseCol::Grant => next.lease.is_some() && next.lease != row.lease,
        LeaseCol::GrantOrNone => next.lease.is_some() == (next.state == State::Running),
        LeaseCol::Drop => next.lease.is_none(),
    };
    let fence = match rule.fence {
        FenceCol::None => row.fence.is_none() && next.fence.is_none(),
        FenceCol::Keep => next.fence == row.fence,
        FenceCol::Set => row.fence.is_none() && next.fence.is_some(),
        FenceCol::Renew => row.fence.is_some() && next.fence.as_ref().is_some_and(|f| f.repeat && f.epoch == row.epoch),
        FenceCol::Remove => row.fence.is_some() && next.fence.is_none(),
        FenceCol::RemoveOrKeep => next.fence.is_none() || next.fence == row.fence,
    };
    to && epoch && lease && fence && delta.entries.iter().all(|e| rule.journal.contains(&e.kind()))
}

/// What is wrong with a transition, by what no event may do.
pub(crate) fn wrong(row: &Snapshot, kind: EventKind, delta: &Delta) -> Option<String> {
    let next = &delta.next;
    if let Err(what) = next.check() {
        return Some(format!("row: {what}"));
    }
    if let Some(call) = next.misses_fence() {
        return Some(format!("{} may have been entered, and has no fence", call.id));
    }
    if next.sequence != row.sequence + delta.entries.len() as u64 {
        return Some("the sequence does not count the entries".into());
    }
    if delta.entries.is_empty() && kind != EventKind::Heartbeat && (!delta.is_unchanged() || next != row) {
        return Some("a change without an entry".into());
    }
    if kind == EventKind::Heartbeat && next != row {
        return Some("a heartbeat changed the row".into());
    }
    if next.epoch < row.epoch {
        return Some("the epoch fell".into());
    }
    if row.cancel_requested && !next.cancel_requested {
        return Some("a cancel was unset".into());
    }
    if (row.second_approver, &row.initiator, &row.owner, &row.team, row.id)
        != (next.second_approver, &next.initiator, &next.owner, &next.team, next.id)
    {
        return Some("what is fixed at birth changed".into());
    }
    wrong_fence(row, delta).or_else(|| wrong_calls(row, delta))
}

fn wrong_fence(row: &Snapshot, delta: &Delta) -> Option<String> {
    let next = &delta.next;
    if let (Some(fence), None) = (&row.fence, &next.fence) {
        let says_why = delta.entries.iter().any(|entry| match entry {
            EntryBody::ToolOutcome(o) => o.call_id == fence.call_id,
            EntryBody::WriteNotStarted(n) => n.call_id == fence.call_id && !n.fence_kept,
            EntryBody::InputRequired(asked) => asked.call_id == fence.call_id,
            EntryBody::Resolved(r) => r.call_id == fence.call_id && r.outcome == ResolutionKind::NotLanded,
            _ => false,
        });
        if !says_why {
            return Some("the fence is gone and no entry says why".into());
        }
    }
    let stamped = delta.entries.iter().find_map(|entry| match entry {
        EntryBody::WriteStamped(s) | EntryBody::WriteRestamped(s) => Some(s),
        _ => None,
    });
    match (stamped, next.fence == row.fence) {
        (None, false) if next.fence.is_some() => Some("a fence without its entry".into()),
        (Some(s), _) => {
            let fence = next.fence.as_ref();
            let own = fence.is_some_and(|f| {
                f.call_id == s.call_id
                    && f.epoch == next.epoch
                    && Some(f.lease_id) == row.lease.as_ref().map(|l| l.lease_id)
                    && f.idempotency_key == row.id.idempotency_key(&s.call_id)
            });
            let heard =
                row.cancel_requested || row.turn.as_ref().and_then(|t| t.call(&s.call_id)).is_none_or(|c| !c.is_pending());
            (!own || heard).then(|| "stamped what must not be, or not as its own".into())
        }
        _ => None,
    }
}

fn wrong_calls(row: &Snapshot, delta: &Delta) -> Option<String> {
    let (old, new) = (row.turn.as_ref(), delta.next.turn.as_ref());
    let mut told: Vec<(&CallId, Outcome)> = delta
        .entries
        .iter()
        .filter_map(|e| match e {
            EntryBody::ToolOutcome(o) => Some((&o.call_id, o.outcome)),
            _ => None,
        })
        .collect();
    let (Some(old), Some(new)) = (old, new) else {
        return (old.is_some() || !told.is_empty()).then(|| "a turn vanished, or a call of none was answered".into());
    };
    if old.number != new.number {
        let complete = old.pending().next().is_none() && new.number == old.number + 1 && told.is_empty();
        return (!complete).then(|| "a turn was left open".into());
    }
    for (before, after) in old.calls.iter().zip(&new.calls) {
        if before.outcome.is_some() && (before.outcome != after.outcome || before.stamps.len() != after.stamps.len()) {
            return Some(format!("call {} had its outcome and was touched", before.id));
        }
        if before.outcome != after.outcome {
            let entry = told.iter().position(|(id, said)| **id == before.id && Some(*said) == after.outcome);
            match entry {
                Some(index) => told.remove(index),
                None => return Some(format!("call {} got an outcome that is not journaled", before.id)),
            };
        }
        if before.evidence.is_some() && after.outcome.is_some_and(|o| o != Outcome::Done) {
            return Some(format!("evidence on call {} was dropped", before.id));
        }
    }
    (!told.is_empty() || old.calls.len() != new.calls.len())
        .then(|| "an outcome was journaled that the row does not have".into())
}
