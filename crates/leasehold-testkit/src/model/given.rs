//! Events as the processes and persons of the model send them.

use super::Plan;
use jiff::Timestamp;
use leasehold::run::{
    Act, Backoff, CallId, CardCall, Claimer, DecideCall, Effect, Event, Grant, Hash256, Late, LateAnswer, LeaseId, Mode,
    NewRun, Now, Order, Outcome, Policy, Principal, Recorded, Recovery, ReplyCall, Request, ResolutionKind, Right, RunId,
    Snapshot, StampCall, Tick, ToolIdentity, TurnCard, Usage, Via, WaitKind, body,
};
use serde_json::{Map, Value};
use std::time::Duration;
use uuid::Uuid;

/// A call as the plan has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPlan {
    /// What it does.
    pub effect: Effect,
    /// A person decides first.
    pub needs_person: bool,
    /// It can be asked; true: its absence means that it was not applied.
    pub verify: Option<bool>,
}

/// The moment of everything that does not wait.
pub(super) const SOON: i64 = 0;
/// Long after every time that a row names.
pub(super) const LATER: i64 = 1_000_000;

pub(super) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap_or(Timestamp::UNIX_EPOCH)
}

pub(super) fn now(plan: &Plan, seconds: i64) -> Now {
    let backoff = Backoff { initial: Duration::from_secs(5), factor: 2.0, max: Duration::from_secs(60), jitter: false };
    Now { wall: at(seconds), policy: Policy { max_requeues: plan.bounds.requeues, backoff }, chance: 0.5 }
}

/// The lease of an epoch: one epoch has one lease, as long as no store is restored.
pub(super) fn lease_of(epoch: u64) -> LeaseId {
    LeaseId(Uuid::from_u128(u128::from(epoch)))
}

pub(super) fn right_of(epoch: u64) -> Right {
    Right { epoch, lease_id: lease_of(epoch) }
}

pub(super) fn grant(row: &Snapshot) -> Grant {
    Grant { lease_id: lease_of(row.epoch + 1), process: "model:1".into() }
}

pub(super) fn person() -> Principal {
    Principal::person("bob")
}

pub(super) fn by_person(order: Order) -> Event {
    Event::Person(person(), order)
}

pub(super) fn new_run(plan: &Plan) -> NewRun {
    let mode = if plan.recovery == Recovery::Abandon { Mode::Wait } else { Mode::Queue };
    NewRun {
        salt: Hash256([7; 32]),
        id: RunId(Uuid::from_u128(7)),
        agent: "a".into(),
        agent_version: String::new(),
        request: Request::default(),
        mode,
        recovery: None,
        owner: "ann".into(),
        initiator: "ann".into(),
        team: None,
        by: Principal::person("ann"),
        priority: 0,
        run_at: None,
        second_approver: false,
    }
}

pub(super) fn claim(row: &Snapshot) -> Event {
    let claimer = Claimer { agents: [String::from("a")].into(), tools: [String::from("t")].into(), open: true };
    Event::Claim { grant: grant(row), claimer }
}

pub(super) fn expire(row: &Snapshot) -> Option<Event> {
    let lease = row.lease.as_ref()?;
    let right = Right { epoch: row.epoch, lease_id: lease.lease_id };
    Some(Event::Clock(Tick::Expire { right, expires_at: lease.expires_at.clone() }))
}

pub(super) fn reply(turn: u32, calls: &[CallPlan], plan: &Plan) -> Recorded {
    let calls = calls.iter().enumerate().map(|(index, call)| ReplyCall {
        id: CallId::of(turn, index),
        tool: "t".into(),
        raw_arguments: String::new(),
        arguments: None,
        effect: call.effect,
        needs_person: call.needs_person,
    });
    let reply = body::ModelReply {
        turn: 0,
        text: String::new(),
        calls: calls.collect(),
        model: String::new(),
        stop: String::new(),
        usage: Usage::default(),
        opaque: None,
    };
    Recorded::Reply { reply, on_expiry: plan.on_expiry }
}

pub(super) fn outcome(id: &CallId, outcome: Outcome, via: Via) -> Act {
    Act::Record(vec![Recorded::Outcome(body::ToolOutcome {
        call_id: id.clone(),
        tool: "t".into(),
        outcome,
        is_error: false,
        result: Value::Null,
        late: false,
        via,
        evidence: None,
    })])
}

pub(super) fn stamp(id: &CallId, call: CallPlan) -> StampCall {
    StampCall {
        endpoint: "test".into(),
        call_id: id.clone(),
        effect: call.effect,
        verifiable: call.verify.is_some(),
        in_flight_for: Duration::from_secs(30),
    }
}

pub(super) fn restamp(id: &CallId, call: CallPlan, found_absent: bool) -> Act {
    Act::Restamp { stamp: stamp(id, call), found_absent }
}

pub(super) fn late(id: &CallId, epoch: u64, answer: LateAnswer) -> Event {
    Event::LateOutcome(Late { call_id: id.clone(), right: right_of(epoch), answer, is_error: false, result: Value::Null })
}

pub(super) fn suspend(calls: &[CallId]) -> Act {
    waits(WaitKind::Approval, calls)
}

/// Waits for what the call has asked.
pub(super) fn suspend_for_input(call: &CallId) -> Act {
    waits(WaitKind::Input, std::slice::from_ref(call))
}

pub(super) fn input_required(id: &CallId) -> Act {
    let asked = body::InputRequired { call_id: id.clone(), tool: "t".into(), questions: Vec::new(), state: None };
    Act::InputRequired(asked)
}

/// Values for what a call has asked, or that there will be none.
pub(super) fn submit(digest: &str, id: &CallId, gives: bool, grant: Option<Grant>) -> Event {
    let (call_id, question) = (id.clone(), Some(String::new()));
    by_person(Order::Submit { digest: digest.to_owned(), call_id, question, values: gives.then(Map::new), grant })
}

fn waits(kind: WaitKind, calls: &[CallId]) -> Act {
    let calls = calls.iter().map(|id| CardCall {
        id: id.clone(),
        tool: ToolIdentity {
            source: String::new(),
            name: "t".into(),
            endpoint: String::new(),
            schema_hash: String::new(),
            effect: Effect::NonIdempotentWrite,
            approval: String::new(),
        },
        arguments: Map::new(),
        preview: None,
        precondition: None,
        preview_for: None,
        why: None,
    });
    let card = TurnCard { kind, turn: 1, agent_version: String::new(), calls: calls.collect(), schema: None, question: None };
    Act::Suspend { card, deadline: Some(at(60)) }
}

pub(super) fn decide(digest: &str, calls: &[(CallId, bool)], grant: Option<Grant>) -> Event {
    let calls = calls
        .iter()
        .map(|(id, approved)| DecideCall {
            call_id: id.clone(),
            approved: *approved,
            reason: None,
            arguments: None,
            edited_card: None,
        })
        .collect();
    by_person(Order::Decide { digest: digest.to_owned(), calls, grant })
}

pub(super) fn resolve(id: &CallId, fence_epoch: u64, outcome: ResolutionKind) -> Event {
    by_person(Order::Resolve { call_id: id.clone(), fence_epoch, outcome, result: None, note: None })
}

impl Plan {
    /// Every call, in order.
    pub(super) fn calls(&self) -> Vec<CallPlan> {
        self.turns.iter().flatten().copied().collect()
    }
    /// Nobody waits for a person in it, or a caller waits for it.
    pub(super) fn is_free(&self) -> bool {
        self.recovery == Recovery::Abandon || self.calls().iter().all(|call| !call.needs_person)
    }
    /// Their ids.
    pub(super) fn call_ids(&self) -> Vec<CallId> {
        let turn = |(number, calls): (u32, &Vec<CallPlan>)| -> Vec<CallId> {
            (0..calls.len()).map(|index| CallId::of(number, index)).collect()
        };
        (1..).zip(&self.turns).flat_map(turn).collect()
    }
}
