//! Budgets: what one run may use, and what an agent's writes may do in a window of time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    Decision, StartRun,
    agent::{
        registry::{AgentSpec, EffectBudget, EffectLimit},
        tool::{Approval, WriteEffect},
    },
    run::{EntryBody, Reason, RunId, Snapshot, State},
};
use leasehold_testkit::{
    park::Place,
    world::{RecordedWrite, Recorder, World},
};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn pay(amount: &str) -> String {
    format!("[[reply]]\ncalls = [{{ tool = \"till.pay\", arguments = {{ amount = {amount} }} }}]\n[[reply]]\ntext = \"done\"\n")
}

fn writes(max: u32) -> EffectBudget {
    EffectBudget { tool: "till.*".into(), limit: EffectLimit::Writes(max), window: HOUR }
}

fn sum(max: f64) -> EffectBudget {
    let limit = EffectLimit::Sum { argument: "amount".into(), max_millionths: (max * 1e6) as i64 };
    EffectBudget { tool: "till.pay".into(), limit, window: HOUR }
}

fn world(place: &Place, recorder: &Recorder, script: &str, approval: Approval, budgets: Vec<EffectBudget>) -> World {
    let tool = till(recorder).tool(approval);
    let agent = move |agent: AgentSpec| AgentSpec { effect_budgets: budgets, ..agent };
    World::builder(script).on(&place.store, &place.clock).tool(tool).agent(agent).build()
}

fn till(recorder: &Recorder) -> RecordedWrite {
    let any = serde_json::json!({ "type": "object" });
    RecordedWrite::new("till.pay", WriteEffect::NonIdempotent, recorder).spec(move |spec| spec.parameters = any)
}

async fn run(world: &World) -> Snapshot {
    let start = StartRun::new("a", "pay", World::person());
    world.runtime.start(start).await.unwrap().finish().await.unwrap()
}

async fn approve(world: &World, row: &Snapshot) -> Snapshot {
    let digest = row.turn.as_ref().and_then(|turn| turn.digest.clone()).unwrap();
    let decided = world.runtime.decide(row.id, Decision::approve(digest, World::person())).await.unwrap();
    decided.execution.unwrap().finish().await.unwrap()
}

async fn why(world: &World, id: RunId) -> String {
    let entries = world.entries(id).await;
    let card = entries.iter().rev().find_map(|entry| match &entry.body {
        EntryBody::Suspended(suspended) => Some(suspended.card.calls[0].why.clone().unwrap_or_default()),
        _ => None,
    });
    card.unwrap_or_default()
}

#[tokio::test]
async fn the_write_beyond_a_budget_of_five_asks_a_person_whichever_process_made_the_five_and_counts_when_released() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        let recorder = Recorder::default();
        for n in 0..5 {
            // A process of its own each, as after a crash.
            let world = world(&place, &recorder, &pay("1"), Approval::None, vec![writes(5)]);
            assert_eq!(run(&world).await.state, State::Completed, "{}: {n}", place.name);
        }
        let world = world(&place, &recorder, &pay("1"), Approval::None, vec![writes(5)]);
        let asked = run(&world).await;
        assert_eq!((asked.state, recorder.count("till.pay")), (State::WaitingForApproval, 5), "{}", place.name);
        assert_eq!(why(&world, asked.id).await, "over budget: a: writes of till.* in 3600 s");
        assert_eq!((approve(&world, &asked).await.state, recorder.count("till.pay")), (State::Completed, 6));
        // What was let through is counted: an hour after the first five there is room for four more.
        place.clock.advance(HOUR - Duration::from_secs(1));
        assert_eq!(run(&world).await.state, State::WaitingForApproval);
        place.clock.advance(Duration::from_secs(2));
        assert_eq!(run(&world).await.state, State::Completed);
    }
}

#[tokio::test]
async fn a_sum_over_an_argument_is_kept_to_the_millionth_and_an_argument_that_is_no_amount_asks() {
    let (place, recorder) = (Place::sqlite(), Recorder::default());
    let state = async |amount: &str| run(&world(&place, &recorder, &pay(amount), Approval::None, vec![sum(0.3)])).await.state;
    assert_eq!(state("0.1").await, State::Completed);
    assert_eq!(state("0.2").await, State::Completed);
    assert_eq!(state("0.000001").await, State::WaitingForApproval);
    assert_eq!(state("0").await, State::Completed);
    for amount in ["-5", "\"5\"", "1e10"] {
        assert_eq!(state(amount).await, State::WaitingForApproval, "{amount}");
    }
    assert_eq!(recorder.count("till.pay"), 3);
}

#[tokio::test]
async fn an_approval_that_did_not_speak_of_the_budget_does_not_lift_it() {
    let (place, recorder) = (Place::memory(), Recorder::default());
    let world = world(&place, &recorder, &pay("1"), Approval::Required, vec![writes(1)]);
    let first = run(&world).await;
    let second = run(&world).await;
    assert_eq!(approve(&world, &first).await.state, State::Completed);
    let again = approve(&world, &second).await;
    assert_eq!((again.state, recorder.count("till.pay")), (State::WaitingForApproval, 1));
    assert!(why(&world, again.id).await.starts_with("over budget"));
    assert_eq!((approve(&world, &again).await.state, recorder.count("till.pay")), (State::Completed, 2));
}

#[tokio::test]
async fn a_run_fails_before_the_model_call_that_its_tokens_or_its_cost_do_not_allow_also_after_a_wait() {
    let (place, recorder) = (Place::memory(), Recorder::default());
    let build = |change: fn(AgentSpec) -> AgentSpec| {
        let tool = till(&recorder).tool(Approval::Required);
        World::builder(&pay("1")).on(&place.store, &place.clock).tool(tool).agent(change).build()
    };
    let spare = build(|agent| AgentSpec { max_tokens: Some(1_000_000), max_cost_nano_usd: Some(u64::MAX), ..agent });
    let waiting = run(&spare).await;
    assert_eq!(waiting.state, State::WaitingForApproval);
    // Another process, with what the run has used already as its whole budget.
    let tight = build(|agent| AgentSpec { max_tokens: Some(1), ..agent });
    let failed = approve(&tight, &waiting).await;
    assert_eq!((failed.state, failed.reason, recorder.count("till.pay")), (State::Failed, Some(Reason::Budget), 1));
    assert_eq!(failed.rounds, 1, "no further model call");
}
