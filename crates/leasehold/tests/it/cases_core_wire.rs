//! A run on real wires: an HTTP write whose answer says nothing, a provider that names calls as it likes, and many runs on one file.
#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use leasehold::{
    Runtime, RuntimeConfig, StartRun,
    agent::{
        model::provider::{ProviderConfig, ProviderModel},
        registry::{AgentSpec, Registry},
        tool::{Approval, ReadAnswer, WriteEffect, http::HttpTool},
    },
    clock::SystemClock,
    run::{Outcome, Policy, State},
    store::{Filter, Held, Store as _, sqlite::SqliteStore},
};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    park::{Park, Place},
    world::{RecordedRead, RecordedWrite, Recorder, SpiedModel, World},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{io::AsyncReadExt as _, net::TcpListener};

const APPEND: &str = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "one" } }]
[[reply]]
text = "done"
"#;

fn http_write(url: &str, timeout: &str) -> leasehold::agent::tool::Tool {
    let config = json!({
        "name": "ledger.append", "description": "Appends", "effect": "non_idempotent_write", "approval": "none",
        "method": "POST", "url": url, "timeout": timeout,
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}},
    });
    HttpTool::build(serde_json::from_value(config).expect("a configuration")).expect("a tool")
}

/// Commits what arrives, counts it, and resets the connection.
async fn resetting() -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/", listener.local_addr().expect("bound"));
    let arrived = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&arrived);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("accepted");
            let mut bytes = Vec::new();
            while !String::from_utf8_lossy(&bytes).contains("one") {
                stream.read_buf(&mut bytes).await.expect("read");
            }
            count.fetch_add(1, Ordering::SeqCst);
            stream.set_zero_linger().expect("set");
        }
    });
    (url, arrived)
}

#[tokio::test]
async fn a_write_that_commits_and_answers_nothing_usable_is_one_request_and_a_doubt() {
    let far = FarSide::start().await.expect("starts");
    let (reset, arrived) = resetting().await;
    let answer = |status| Some(Then::Answer(status, "broken".into()));
    for (then, timeout) in [
        (answer(500), "30s"),
        (answer(502), "30s"),
        (answer(409), "30s"),
        (answer(429), "30s"),
        (Some(Then::Redirect(far.url("/elsewhere"))), "30s"),
        (Some(Then::Hold), "200ms"),
        (None, "30s"),
    ] {
        let before = far.arrived().len() + usize::try_from(arrived.load(Ordering::SeqCst)).expect("small");
        let url = match &then {
            Some(then) => {
                far.then([then.clone()]);
                far.url("/append")
            }
            None => reset.clone(),
        };
        let world = World::builder(APPEND).tool(http_write(&url, timeout)).build();
        let id = world.run("append").await;
        let row = world.row(id).await;
        assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"), "{then:?}");
        let after = far.arrived().len() + usize::try_from(arrived.load(Ordering::SeqCst)).expect("small");
        assert_eq!(after - before, 1, "one request on the wire: {then:?}");
        assert_eq!(world.model.requests().len(), 1, "the model is not told that it failed: {then:?}");
        assert!(world.story(id).await.calls.values().all(|c| c.outcome.is_none()));
    }
    far.release();
    let arrived = far.arrived();
    assert!(arrived.iter().all(|a| a.header("idempotency-key").starts_with("lh-") && !a.header("leasehold-run").is_empty()));
    let keys: BTreeSet<String> = arrived.iter().map(|a| a.header("idempotency-key")).collect();
    assert_eq!(keys.len(), arrived.len(), "each run's call has its own");
}

#[tokio::test]
async fn a_clear_no_is_done_and_a_closed_port_did_not_happen() {
    let far = FarSide::start().await.expect("starts");
    for status in [400, 401, 404, 422] {
        far.then([Then::Answer(status, "no".into())]);
        let world = World::builder(APPEND).tool(http_write(&far.url("/append"), "30s")).build();
        let id = world.run("append").await;
        assert_eq!(world.row(id).await.state, State::Completed, "{status}");
        let outcome = world.story(id).await.calls.into_values().next().expect("a call").outcome.expect("known");
        assert_eq!((outcome.outcome, outcome.is_error), (Outcome::Done, true));
    }
    let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("bound");
    let world = World::builder(APPEND).tool(http_write(&format!("http://{closed}/"), "30s")).build();
    let id = world.run("append").await;
    assert_eq!(world.row(id).await.state, State::Completed);
    let outcome = world.story(id).await.calls.into_values().next().expect("a call").outcome.expect("known");
    assert_eq!((outcome.outcome, outcome.is_error), (Outcome::NotApplied, true));
}

/// A turn of two calls with the provider's ids.
fn turn(ids: [&str; 2]) -> String {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "ledger__append", "arguments": "{\"text\":\"x\"}"}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call(ids[0]), call(ids[1])]});
    json!({"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}).to_string()
}

#[tokio::test]
async fn whatever_ids_a_provider_gives_each_call_has_its_own_decision_key_and_result() {
    for ids in [["call_0", "call_0"], ["", ""], ["call_0", "call_1"]] {
        let answer = json!({"id": "c", "model": "m", "choices": [{"index": 0, "message": {"role": "assistant", "content": "done"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 1}});
        let far = FarSide::start().await.expect("starts");
        far.then([turn(ids), turn(ids), answer.to_string()].map(Then::Json));
        let config = ProviderConfig {
            base_url: Some(far.url("/v1/")),
            api_key: Some("k".into()),
            stream: false,
            ..ProviderConfig::new("default", "openai", "gpt-test")
        };
        let model = Arc::new(ProviderModel::new(config).expect("a provider"));
        let recorder = Recorder::default();
        let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder).tool(Approval::Required);
        let world = World::builder("").tool(tool).agent(|agent| AgentSpec { model, ..agent }).build();
        let id = world.run("append").await;
        for _ in 0..2 {
            let waiting = world.story(id).await.card.expect("waits").card;
            assert_eq!(waiting.calls.len(), 2);
            world.approve(id).await.expect("held");
        }
        assert_eq!(world.row(id).await.state, State::Completed, "{ids:?}");
        let keys: BTreeSet<String> = recorder.entries().into_iter().map(|e| e.key).collect();
        assert_eq!((recorder.count("ledger.append"), keys.len()), (4, 4));
        // What was sent back: each call once, each with one result of its own id.
        let last: Value = serde_json::from_str(&far.arrived().pop().expect("asked").text()).expect("JSON");
        let messages = last["messages"].as_array().expect("messages");
        let asked = messages.iter().flat_map(|m| m["tool_calls"].as_array().into_iter().flatten()).map(|c| c["id"].to_string());
        let asked: Vec<String> = asked.collect();
        let answered: Vec<String> =
            messages.iter().filter(|m| m["role"] == "tool").map(|m| m["tool_call_id"].to_string()).collect();
        assert_eq!(asked, answered);
        assert_eq!(asked.iter().collect::<BTreeSet<_>>().len(), 4, "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_writers_and_readers_on_one_file_never_see_it_locked_and_renewals_are_not_late() {
    let directory = tempfile::tempdir().expect("a directory");
    let clock = Arc::new(SystemClock::new().expect("a clock"));
    let store = SqliteStore::open(directory.path().join("leasehold.db"), Arc::clone(&clock) as _).expect("opens");
    let recorder = Recorder::default();
    let large = "x".repeat(300_000);
    let call =
        "{ tool = \"notes.read\", arguments = { text = \"1\" } }, { tool = \"ledger.append\", arguments = { text = \"2\" } }";
    let script = format!("[[reply]]\ncalls = [{call}]\n").repeat(4) + "[[reply]]\ntext = \"done\"\n";
    let mut registry = Registry::new();
    let read = RecordedRead::new("notes.read", &recorder).answer(ReadAnswer::ok(large.as_str())).tool();
    registry.add_tool(read).expect("fits");
    let write = RecordedWrite::new("ledger.append", WriteEffect::Idempotent, &recorder).tool(Approval::None);
    registry.add_tool(write).expect("fits");
    let agent = AgentSpec::new("a", SpiedModel::new(&script) as std::sync::Arc<dyn leasehold::agent::model::Model>)
        .tools(["notes.*", "ledger.*"]);
    registry.add_agent(agent).expect("fits");
    let ttl = Duration::from_secs(6);
    let runtime = Runtime::new(RuntimeConfig {
        authority: None,
        keyring: None,
        owners: None,
        store: Arc::clone(&store) as _,
        registry: Arc::new(registry),
        clock: Arc::clone(&clock) as _,
        wall: clock,
        ttl,
        policy: Policy::default(),
        process: "test:1".into(),
        probe: None,
        live: None,
    })
    .expect("starts");
    // A renewing connection beside theirs, which says how long a renewal takes at worst.
    let watched = runtime.start(StartRun::new("a", "watched", World::person())).await.expect("started");
    let row = watched.row().clone();
    let held = Held { id: row.id, epoch: row.epoch, lease_id: row.lease.expect("held").lease_id };
    let mut renewer = store.renewer().expect("a connection");
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let renewing = std::thread::spawn(move || {
        let mut worst = Duration::ZERO;
        while !stopped.load(Ordering::SeqCst) {
            let begun = Instant::now();
            let looks = renewer.renew(&[held], ttl).expect("never locked");
            assert!(looks[0].held);
            worst = worst.max(begun.elapsed());
            std::thread::yield_now();
        }
        worst
    });
    let mut writing = tokio::task::JoinSet::new();
    let mut reading = tokio::task::JoinSet::new();
    for n in 0..20 {
        let execution = runtime.start(StartRun::new("a", format!("run {n}"), World::person())).await.expect("started");
        let (id, runtime) = (execution.run(), runtime.clone());
        writing.spawn(execution.finish());
        reading.spawn(async move {
            loop {
                runtime.list(&Filter::default(), None, 50).await.expect("never locked");
                if runtime.details(id).await.expect("never locked").row.state.is_settled() {
                    return;
                }
            }
        });
    }
    for ended in writing.join_all().await {
        assert_eq!(ended.expect("never locked, never lost").state, State::Completed);
    }
    reading.join_all().await;
    stop.store(true, Ordering::SeqCst);
    let worst = renewing.join().expect("never locked");
    assert!(worst < ttl / 3, "a renewal took {worst:?}");
    assert_eq!(recorder.count("ledger.append"), 80);
    drop(watched);
}

#[tokio::test]
async fn a_lease_is_renewed_while_the_tool_runs_whatever_the_tool_does() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder).inside(park.clone());
        let ttl = Duration::from_millis(600);
        let world = World::builder(APPEND).tool(tool.tool(Approval::None)).on(&place.store, &place.clock).ttl(ttl).build();
        let execution = world.start("append").await;
        let id = execution.run();
        let segment = execution.spawn();
        park.reached().await;
        for _ in 0..3 {
            // Nearly all of the ttl passes, and the next renewal brings it back.
            let before = world.row(id).await.lease.expect("held").expires_at;
            place.clock.advance(Duration::from_millis(500));
            while world.row(id).await.lease.expect("held").expires_at == before {
                tokio::task::yield_now().await;
            }
            world.runtime.sweep(10, false).await.expect("swept");
        }
        park.release();
        assert_eq!(segment.await.expect("joined").expect("held").state, State::Completed, "{}", place.name);
        assert_eq!((world.row(id).await.epoch, recorder.count("ledger.append")), (1, 1));
    }
}
