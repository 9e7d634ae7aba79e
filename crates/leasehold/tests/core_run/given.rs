//! Small makers of what the tests need.

use jiff::Timestamp;
use leasehold::run::*;
use serde_json::{Map, Value};
use std::time::Duration;
use uuid::Uuid;

/// Started every run here.
pub(crate) const INITIATOR: &str = "ann";
/// May release what Ann started.
pub(crate) const APPROVER: &str = "bob";
/// A time, and times relative to it in seconds.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

pub(crate) fn now_at(seconds: i64) -> Now {
    Now { wall: at(seconds), policy: Policy::default(), chance: 0.5 }
}

pub(crate) fn now() -> Now {
    now_at(0)
}

pub(crate) fn ann() -> Principal {
    Principal::person(INITIATOR)
}

pub(crate) fn bob() -> Principal {
    Principal::person(APPROVER)
}

pub(crate) fn robot() -> Principal {
    Principal::machine("robot")
}

/// The same id for the same number.
pub(crate) fn lease(number: u128) -> LeaseId {
    LeaseId(Uuid::from_u128(number))
}

pub(crate) fn right(epoch: u64, number: u128) -> Right {
    Right { epoch, lease_id: lease(number) }
}

pub(crate) fn grant(number: u128) -> Grant {
    Grant { lease_id: lease(number), process: "web-01:4711".into() }
}

pub(crate) fn call(turn: u32, index: usize) -> CallId {
    CallId::of(turn, index)
}

pub(crate) fn claimer() -> Claimer {
    let tools = ["site.create", "site.update", "site.read"].map(String::from).into();
    Claimer { agents: [String::from("editor")].into(), tools, open: true }
}

pub(crate) fn tool_of(effect: Effect) -> &'static str {
    match effect {
        Effect::ReadOnly => "site.read",
        Effect::IdempotentWrite => "site.update",
        Effect::NonIdempotentWrite => "site.create",
    }
}

pub(crate) fn new_run(mode: Mode, recovery: Option<Recovery>, second_approver: bool) -> NewRun {
    NewRun {
        salt: Hash256([7; 32]),
        id: RunId(Uuid::from_u128(7)),
        agent: "editor".into(),
        agent_version: "v1".into(),
        request: Request::default(),
        mode,
        recovery,
        owner: INITIATOR.into(),
        initiator: INITIATOR.into(),
        team: None,
        by: ann(),
        priority: 0,
        run_at: None,
        second_approver,
    }
}

pub(crate) fn reply(turn: u32, calls: &[(Effect, bool)]) -> Recorded {
    let calls = calls.iter().enumerate().map(|(index, (effect, needs_person))| ReplyCall {
        id: call(turn, index),
        tool: tool_of(*effect).into(),
        raw_arguments: "{}".into(),
        arguments: Some(Map::new()),
        effect: *effect,
        needs_person: *needs_person,
    });
    let reply = body::ModelReply {
        turn: 0,
        text: String::new(),
        calls: calls.collect(),
        model: "scripted".into(),
        stop: "tool_calls".into(),
        usage: Usage { input_tokens: 3, output_tokens: 2, reasoning_tokens: 1, ..Usage::default() },
        opaque: None,
    };
    Recorded::Reply { reply, on_expiry: OnExpiry::Continue }
}

pub(crate) fn outcome(id: &CallId, outcome: Outcome, via: Via) -> Recorded {
    Recorded::Outcome(body::ToolOutcome {
        call_id: id.clone(),
        tool: "a tool".into(),
        outcome,
        is_error: outcome != Outcome::Done,
        result: Value::from("said"),
        late: false,
        via,
        evidence: None,
    })
}

pub(crate) fn stamp(id: &CallId, effect: Effect, verifiable: bool) -> StampCall {
    StampCall { call_id: id.clone(), effect, verifiable, in_flight_for: Duration::from_secs(30), endpoint: "ledger".into() }
}

pub(crate) fn late(id: &CallId, right: Right, answer: LateAnswer) -> Event {
    Event::LateOutcome(Late { call_id: id.clone(), right, answer, is_error: false, result: Value::from("late") })
}

pub(crate) fn card(kind: WaitKind, calls: &[CallId]) -> TurnCard {
    let calls = calls.iter().map(|id| CardCall {
        id: id.clone(),
        tool: ToolIdentity {
            source: "site".into(),
            name: "site.create".into(),
            endpoint: "site".into(),
            schema_hash: "s".into(),
            effect: Effect::NonIdempotentWrite,
            approval: "required".into(),
        },
        arguments: Map::new(),
        preview: None,
        precondition: None,
        preview_for: None,
        why: None,
    });
    TurnCard { kind, turn: 1, agent_version: "v1".into(), calls: calls.collect(), schema: None, question: None }
}

pub(crate) fn decided(id: &CallId, approved: bool) -> DecideCall {
    DecideCall { approved, ..DecideCall::approve(id.clone()) }
}

pub(crate) fn edited(id: &CallId) -> DecideCall {
    DecideCall { arguments: Some(Map::from_iter([("title".to_owned(), Value::from("new"))])), ..decided(id, true) }
}

/// The expiry of the row's lease as it stands.
pub(crate) fn expiry(row: &Snapshot) -> Event {
    let lease = row.lease.as_ref();
    Event::Clock(Tick::Expire {
        right: Right { epoch: row.epoch, lease_id: lease.map_or(LeaseId(Uuid::nil()), |l| l.lease_id) },
        expires_at: lease.map_or(LeaseTime { clock: String::new(), ns: 0 }, |l| l.expires_at.clone()),
    })
}

/// Compares a generated file, or rewrites it under `UPDATE_DOCS=1`.
pub(crate) fn compare(path: &str, generated: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, generated).unwrap();
    }
    let stored = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = stored.lines().zip(generated.lines()).find(|(a, b)| a != b);
    assert!(stored == generated, "{} is not what is generated (UPDATE_DOCS=1 rewrites it); first: {differs:?}", path.display());
}
