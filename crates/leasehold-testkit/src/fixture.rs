//! Rows, entries and writes as the engine makes them, for tests of a store. Nothing here asks `apply`: a store keeps what it is given.
#![allow(clippy::expect_used, reason = "a fixture that cannot be made is a defect of the test")]

use jiff::Timestamp;
use leasehold::{
    run::{
        Attribution, CallId, CallVerdict, Chain, Effect, Entry, EntryBody, Fence, Hash256, LateAnswer, Lease, LeaseId,
        LeaseTime, Mode, OnExpiry, OpenCall, OpenTurn, Outcome, Principal, Reason, Recovery, RunId, SegmentKind, Snapshot,
        Stamp, State, Usage, Via, WriteId, body,
    },
    store::{ExpiryGuard, Guard, Insert, LeaseOp, Write},
};
use serde_json::Value;
use std::time::Duration;

/// The ttl of every lease here.
pub const TTL: Duration = Duration::from_secs(60);

/// Text that a careless store changes: U+0000, the same as an escape sequence, quotes, a line end, text from right to left with
/// its marks, an emoji of several scalars, a combining mark, a private-use and the last scalar.
pub const EXTREME: &str = "\0nul\\u0000 \\ud800 '\"`;--%_\\ \r\n\t\u{200f}\u{5e9}\u{5dc}\u{5d5}\u{5dd}\u{202e}abc\u{202c} \u{1f469}\u{200d}\u{1f680} e\u{301} \u{e000}\u{10ffff}";

/// A wall time, to the millisecond.
pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(1_767_225_600_000 + ms).expect("within the range of times")
}

/// A queued run without a history.
pub fn queued(agent: &str) -> Snapshot {
    Snapshot {
        id: RunId::new(),
        agent: agent.into(),
        owner: "ada".into(),
        initiator: "ada".into(),
        team: None,
        mode: Mode::Queue,
        state: State::Queued,
        reason: None,
        epoch: 0,
        sequence: 1,
        lease: None,
        next_segment: SegmentKind::Worker,
        cancel_requested: false,
        recovery: Recovery::Requeue,
        recovery_explicit: false,
        requeues: 0,
        priority: 0,
        due_at: at(0),
        fence: None,
        turn: None,
        has_request: true,
        second_approver: false,
        rounds: 0,
        usage: Usage::default(),
        duplicates: 0,
        contradictions: 0,
        attribution: None,
        chain: None,
        created_at: at(0),
        started_at: None,
        finished_at: None,
        since: at(0),
    }
}

/// A run that is held from its birth.
pub fn running(agent: &str) -> Snapshot {
    Snapshot {
        state: State::Running,
        epoch: 1,
        lease: Some(lease(LeaseId::random())),
        started_at: Some(at(0)),
        ..queued(agent)
    }
}

/// A run that waits for a person until `deadline`.
pub fn waiting(agent: &str, deadline: Option<Timestamp>) -> Snapshot {
    let turn = OpenTurn { deadline, ..turn() };
    Snapshot { state: State::WaitingForApproval, epoch: 1, turn: Some(turn), ..queued(agent) }
}

/// A settled run.
pub fn completed(agent: &str) -> Snapshot {
    Snapshot { state: State::Completed, epoch: 1, finished_at: Some(at(5)), ..queued(agent) }
}

/// A run with a write in doubt.
pub fn in_doubt(agent: &str) -> Snapshot {
    Snapshot { state: State::Dead, reason: Some(Reason::WriteInDoubt), epoch: 1, fence: Some(fence(1)), ..queued(agent) }
}

/// A lease whose end the store sets.
pub fn lease(lease_id: LeaseId) -> Lease {
    Lease { lease_id, holder: "worker:test:1".into(), expires_at: LeaseTime { clock: String::new(), ns: 0 } }
}

/// A fence of this epoch.
pub fn fence(epoch: u64) -> Fence {
    Fence {
        call_id: CallId::of(1, 0),
        tool: "shop.order".into(),
        effect: Effect::NonIdempotentWrite,
        idempotency_key: "lh-1".into(),
        epoch,
        lease_id: LeaseId::random(),
        attempt: 1,
        repeat: false,
        verifiable: true,
        stamped_at: at(3),
        in_flight_until: at(4),
    }
}

/// A turn with one call that needs a person.
pub fn turn() -> OpenTurn {
    OpenTurn {
        number: 1,
        digest: Some("d1".into()),
        deadline: None,
        on_expiry: OnExpiry::DeadLetter,
        edited_by: vec![],
        calls: vec![call(0)],
        earlier: Vec::new(),
    }
}

fn call(index: usize) -> OpenCall {
    OpenCall {
        id: CallId::of(1, index),
        tool: "shop.order".into(),
        effect: Effect::NonIdempotentWrite,
        needs_person: true,
        verdict: None,
        outcome: None,
        stamps: Vec::new(),
        absent: false,
        evidence: None,
        question: None,
    }
}

/// A run in which no field has its default, and every text is [`EXTREME`].
pub fn full() -> Snapshot {
    let text = || EXTREME.to_owned();
    let stamp = Stamp {
        epoch: 6,
        lease_id: LeaseId::random(),
        entered: true,
        late: vec![LateAnswer::NotStarted],
        asked: false,
        repeat: false,
    };
    let verdict = CallVerdict { approved: true, by: text(), at: at(77) };
    let decided = OpenCall {
        tool: text(),
        effect: Effect::IdempotentWrite,
        verdict: Some(verdict),
        outcome: Some(Outcome::NotApplied),
        stamps: vec![stamp],
        absent: true,
        evidence: Some(12),
        question: Some(13),
        ..call(0)
    };
    Snapshot {
        id: RunId::new(),
        agent: text(),
        owner: text(),
        initiator: text(),
        team: Some(text()),
        mode: Mode::Wait,
        state: State::Cancelling,
        reason: None,
        epoch: 3 << 20,
        sequence: 1,
        lease: Some(Lease { holder: text(), ..lease(LeaseId::random()) }),
        next_segment: SegmentKind::Resume,
        cancel_requested: true,
        recovery: Recovery::Abandon,
        recovery_explicit: true,
        requeues: 4,
        priority: i32::MIN,
        due_at: at(-123_456_789_001),
        fence: Some(Fence {
            call_id: CallId(text()),
            tool: text(),
            effect: Effect::IdempotentWrite,
            idempotency_key: text(),
            epoch: (3 << 20) - 1,
            lease_id: LeaseId::random(),
            attempt: 9,
            repeat: true,
            verifiable: true,
            stamped_at: at(1),
            in_flight_until: at(2),
        }),
        turn: Some(OpenTurn {
            number: 7,
            digest: Some(text()),
            deadline: Some(at(999)),
            on_expiry: OnExpiry::Continue,
            edited_by: Vec::new(),
            calls: vec![decided.clone(), call(1)],
            earlier: vec![decided],
        }),
        has_request: false,
        second_approver: true,
        rounds: u32::MAX,
        usage: Usage {
            input_tokens: 1,
            output_tokens: 2,
            cached_tokens: 3,
            reasoning_tokens: 2,
            cost_nano_usd: i64::MAX.unsigned_abs(),
        },
        duplicates: 2,
        contradictions: 3,
        attribution: Some(Attribution::Initiator),
        chain: Some(Chain { salt: Hash256([1; 32]), head: Hash256([254; 32]) }),
        created_at: at(3),
        started_at: Some(at(4)),
        finished_at: Some(at(5)),
        since: at(6),
    }
}

/// An entry whose content is this text.
pub fn entry(sequence: u64, text: &str) -> Entry {
    let by = Principal::person(text);
    let body = EntryBody::CancelRequested(body::By { by, note: Some(text.into()) });
    Entry {
        sequence,
        at: at(7),
        epoch: 1,
        holder: Some(text.into()),
        write_id: WriteId::random(),
        mac: Some(Hash256([3; 32])),
        body,
    }
}

/// An entry that carries a result of this many bytes.
pub fn large_entry(sequence: u64, bytes: usize) -> Entry {
    let body = EntryBody::ToolOutcome(body::ToolOutcome {
        call_id: CallId::of(1, 0),
        tool: "disk.read".into(),
        outcome: Outcome::Done,
        is_error: false,
        result: Value::String("\u{e4}".repeat(bytes / 2)),
        late: false,
        via: Via::Tool,
        evidence: None,
    });
    Entry { body, ..entry(sequence, "large") }
}

/// The insert of a row, granted where the row has a lease.
pub fn insert(row: Snapshot) -> Insert {
    let write_id = WriteId::random();
    let lease = if row.lease.is_some() { LeaseOp::Extend(TTL) } else { LeaseOp::Keep };
    let first = Entry { write_id, ..entry(0, "born") };
    Insert { write_id, row, lease, entries: vec![first], key: None }
}

/// What somebody who just read the row guards with.
pub fn guard(row: &Snapshot) -> Guard {
    Guard { sequence: row.sequence, epoch: row.epoch, lease_id: row.lease.as_ref().map(|l| l.lease_id), expiry: None }
}

/// A record by whoever holds `row` (or, where nobody does, a foreign change): one entry; the lease is renewed where there is one.
pub fn record(row: &Snapshot, text: &str) -> Write {
    let write_id = WriteId::random();
    let next = Snapshot { sequence: row.sequence + 1, rounds: row.rounds.wrapping_add(1), ..row.clone() };
    let lease = if row.lease.is_some() { LeaseOp::Extend(TTL) } else { LeaseOp::Keep };
    let entries = vec![Entry { write_id, ..entry(row.sequence, text) }];
    Write { write_id, guard: guard(row), next, lease, entries, charges: Vec::new(), called: Vec::new(), artifacts: Vec::new() }
}

/// A change by somebody else: the lease stays.
pub fn foreign(row: &Snapshot, text: &str) -> Write {
    Write { lease: LeaseOp::Keep, ..record(row, text) }
}

/// The expiry of a held row whose lease was seen to end at its `expires_at`, perhaps watched for a ttl: back to the queue.
pub fn expire(row: &Snapshot, watched: bool) -> Write {
    let mut write = record(row, "expired");
    write.guard.expiry =
        row.lease.as_ref().map(|l| ExpiryGuard { expires_at: l.expires_at.clone(), watched: watched.then_some(TTL) });
    write.next = Snapshot { state: State::Queued, epoch: row.epoch + 1, lease: None, ..write.next };
    write.lease = LeaseOp::Drop;
    write
}

/// The claim of a queued row.
pub fn claim(row: &Snapshot) -> Write {
    let mut write = record(row, "claimed");
    write.next = Snapshot { state: State::Running, epoch: row.epoch + 1, lease: Some(lease(LeaseId::random())), ..write.next };
    write.lease = LeaseOp::Extend(TTL);
    write
}
