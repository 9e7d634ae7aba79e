//! A program that embeds the library, written with the short ways alone: own tools, a file, a worker in the background, a
//! decision. What has to be said here, every user has to say.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use leasehold::{
    Decision, InboxKind, PoolConfig, Runtime, RuntimeConfig, StartRun,
    agent::{
        model::scripted::ScriptedModel,
        registry::{AgentSpec, Registry},
        tool::{
            Approval, Previewed, ReadAnswer, WriteAnswer, WriteEffect, WritePermit,
            rust::{read_tool, write_tool},
        },
    },
    clock::{ManualClock, SystemClock},
    run::{CallId, DecideCall, Outcome, Principal, State},
    store::{memory::MemoryStore, sqlite::SqliteStore},
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Line {
    text: String,
}

const SCRIPT: &str = r#"
[[reply]]
calls = [{ tool = "ledger.read", arguments = {} }, { tool = "ledger.append", arguments = { text = "pier 2" } }]
[[reply]]
text = "It is in the ledger."
"#;

fn registry(ledger: &Arc<Mutex<Vec<String>>>) -> Registry {
    let reading = Arc::clone(ledger);
    let read = read_tool("ledger.read", "Read the ledger", move |_: Nothing| {
        let text = reading.lock().unwrap().join("\n");
        async move { ReadAnswer::ok(text) }
    });
    let writing = Arc::clone(ledger);
    let append = write_tool(
        "ledger.append",
        "Append one line",
        WriteEffect::NonIdempotent,
        Approval::Required,
        move |permit: WritePermit, line: Line| {
            let ledger = Arc::clone(&writing);
            async move {
                if let Err(not_held) = permit.check() {
                    return WriteAnswer::NotStarted { why: not_held.to_string() };
                }
                ledger.lock().unwrap().push(line.text);
                WriteAnswer::done("appended")
            }
        },
    )
    .preview(|line: Line| async move { Ok(Previewed::text(format!("+ {}", line.text)).only_while("open")) });
    let mut registry = Registry::new();
    registry.add_tool(read).unwrap();
    registry.add_tool(append).unwrap();
    let model = ScriptedModel::from_toml("scripted", SCRIPT).unwrap();
    registry.add_agent(AgentSpec::new("clerk", model).tools(["ledger.*"])).unwrap();
    registry
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_with_own_tools_a_file_a_worker_and_a_decision() {
    let ledger = Arc::new(Mutex::new(Vec::new()));
    let directory = tempfile::tempdir().unwrap();
    let clock = Arc::new(SystemClock::new().unwrap());
    let store = SqliteStore::open(directory.path().join("embed.db"), clock.clone()).unwrap();
    let runtime = Runtime::new(RuntimeConfig::new(store, registry(&ledger), clock)).unwrap();

    let worker = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.work(PoolConfig::default()).await }
    });
    let ann = Principal::person("ann");
    let id = runtime.enqueue(StartRun::new("clerk", "Note pier 2", ann.clone()), None).await.unwrap();
    let mut seen = 0;
    let details = loop {
        seen += runtime.wait_events(id, seen).await.unwrap().len() as u64;
        let details = runtime.details(id).await.unwrap();
        if details.row.state.is_waiting() {
            break details;
        }
    };
    assert!(runtime.inbox(10).await.unwrap().iter().any(|(kind, run)| *kind == InboxKind::Approval && run.id == id));
    assert_eq!(details.card().unwrap().calls[0].preview.as_deref(), Some("+ pier 2"));

    let decided = runtime.decide(id, Decision::approve(details.digest().unwrap(), ann)).await.unwrap();
    let row = decided.execution.expect("this process has what the run needs").finish().await.unwrap();
    assert_eq!(row.state, State::Completed);
    assert_eq!(*ledger.lock().unwrap(), ["pier 2"]);
    assert_eq!(runtime.details(id).await.unwrap().digest(), None, "nothing waits any more");

    runtime.stop();
    worker.await.unwrap();
}

#[tokio::test]
async fn a_denial_and_an_edit_need_no_more_words() {
    let ledger = Arc::new(Mutex::new(Vec::new()));
    let clock = ManualClock::new();
    let config = RuntimeConfig::new(MemoryStore::new(clock.clone()), registry(&ledger), clock);
    let runtime = Runtime::new(RuntimeConfig { ttl: Duration::from_secs(10), ..config }).unwrap();
    let ann = || Principal::person("ann");
    let waiting = async || {
        let execution = runtime.start(StartRun::new("clerk", "Note pier 2", ann())).await.unwrap();
        let id = execution.run();
        execution.finish().await.unwrap();
        let digest = runtime.details(id).await.unwrap().digest().unwrap().to_owned();
        (id, digest)
    };
    let (id, digest) = waiting().await;
    let denied = runtime.decide(id, Decision::deny(digest, ann(), "not today")).await.unwrap();
    denied.execution.unwrap().finish().await.unwrap();
    let story = runtime.details(id).await.unwrap().story;
    assert_eq!(story.calls[&CallId::of(1, 1)].outcome.as_ref().unwrap().outcome, Outcome::Denied);
    assert_eq!(ledger.lock().unwrap().len(), 0);

    let (id, digest) = waiting().await;
    let arguments = serde_json::json!({ "text": "pier 3" }).as_object().cloned().unwrap();
    let edit = Decision::calls(digest, ann(), vec![DecideCall::edit(CallId::of(1, 1), arguments)]);
    runtime.decide(id, edit).await.unwrap().execution.unwrap().finish().await.unwrap();
    let call = runtime.details(id).await.unwrap().story.calls[&CallId::of(1, 1)].clone();
    assert_eq!(call.outcome.unwrap().outcome, Outcome::Done);
    let card = call.card.unwrap();
    assert_eq!((card.preview.as_deref(), card.precondition.as_deref()), (Some("+ pier 3"), Some("open")));
    assert_eq!(*ledger.lock().unwrap(), ["pier 3"]);
}

#[tokio::test]
async fn a_short_inbox_has_what_waits_longest() {
    let ledger = Arc::new(Mutex::new(Vec::new()));
    let clock = ManualClock::new();
    let runtime = Runtime::new(RuntimeConfig::new(MemoryStore::new(clock.clone()), registry(&ledger), clock.clone())).unwrap();
    let mut started = Vec::new();
    for _ in 0..3 {
        let execution = runtime.start(StartRun::new("clerk", "Note pier 2", Principal::person("ann"))).await.unwrap();
        started.push(execution.run());
        execution.finish().await.unwrap();
        clock.advance(Duration::from_secs(1));
    }
    let listed: Vec<_> = runtime.inbox(2).await.unwrap().into_iter().map(|(_, run)| run.id).collect();
    assert_eq!(listed, started[..2]);
}
