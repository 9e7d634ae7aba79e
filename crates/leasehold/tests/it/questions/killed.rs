//! Real processes on one file: the one that runs the calls is another than the one that answers, and is killed while it asks.
//!
//! The other process is this test binary again, with the file and the run named in its environment; the test named `as_a_child_...`
//! does nothing without them.

use super::{LONG, code, read, script, size, write};
use leasehold::{
    PoolConfig, QuestionAnswer, Runtime, RuntimeConfig, StandingQuestion, StartRun,
    agent::{
        model::scripted::ScriptedModel,
        registry::{AgentSpec, Registry},
        tool::WriteEffect,
    },
    clock::SystemClock,
    run::{CallId, EntryBody, Outcome, Principal, RunId, State},
    store::sqlite::SqliteStore,
};
use leasehold_testkit::world::World;
use serde_json::{Value, json};
use std::{path::Path, process::Command, sync::Arc, time::Duration};
use tokio::sync::mpsc;

const FILE: &str = "LEASEHOLD_TEST_FILE";
const RUN: &str = "LEASEHOLD_TEST_RUN";

fn process(file: &Path) -> Runtime {
    let (heard, _) = mpsc::unbounded_channel();
    let mut registry = Registry::new();
    registry.add_tool(read(&heard, LONG)).unwrap();
    registry.add_tool(write(WriteEffect::Idempotent, &heard, LONG)).unwrap();
    let model = ScriptedModel::from_toml("scripted", &script(&["boxes.find", "boxes.send"])).unwrap();
    registry.add_agent(AgentSpec::new("a", model).tools(["boxes.*"])).unwrap();
    let clock = Arc::new(SystemClock::new().unwrap());
    let store = SqliteStore::open(file, clock.clone()).unwrap();
    let ttl = Duration::from_secs(2);
    Runtime::new(RuntimeConfig { ttl, ..RuntimeConfig::new(store, registry, clock) }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn as_a_child_it_asks() {
    let (Some(file), Some(run)) = (std::env::var_os(FILE), std::env::var(RUN).ok()) else { return };
    process(Path::new(&file)).claim(run.parse().unwrap()).await.unwrap().finish().await.ok();
}

/// The question of that call that stands, once one does.
async fn asked(runtime: &Runtime, id: RunId, call: &CallId, after: u64) -> StandingQuestion {
    let mut seen = 0;
    loop {
        seen += runtime.wait_events(id, seen).await.unwrap().len() as u64;
        let questions: Vec<_> = runtime.details(id).await.unwrap().questions().collect();
        if let Some(asked) = questions.into_iter().find(|asked| asked.call_id == *call && asked.question > after) {
            return asked;
        }
    }
}

async fn answer(runtime: &Runtime, id: RunId, asked: &StandingQuestion, values: &Value) -> Result<(), leasehold::OrderError> {
    let values = values.as_object().cloned();
    let (call_id, by) = (asked.call_id.clone(), Principal::person("bob"));
    runtime.answer(id, QuestionAnswer { call_id, question: asked.question, values, by }).await.map(|_| ())
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_answers_and_after_a_sigkill_the_question_of_the_dead_one_is_void_and_asked_anew() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("runs.db");
    let here = process(&file);
    let id = here.enqueue(StartRun::new("a", "task", World::person()), None).await.unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["questions::killed::as_a_child_it_asks", "--exact"])
        .env(FILE, &file)
        .env(RUN, id.to_string())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let (find, send) = (CallId::of(1, 0), CallId::of(1, 1));
    let first = asked(&here, id, &find, 0).await;
    answer(&here, id, &first, &size(5)).await.unwrap();
    let second = asked(&here, id, &send, 0).await;
    child.kill().unwrap();
    child.wait().unwrap();
    // A worker here finds it when its lease has ended.
    let worker = tokio::spawn({
        let here = here.clone();
        async move { here.work(PoolConfig { sweep_interval: Duration::from_millis(200), ..PoolConfig::default() }).await }
    });
    let third = asked(&here, id, &send, second.question).await;
    assert_eq!(code(answer(&here, id, &second, &size(7)).await), "no_question");
    answer(&here, id, &third, &size(8)).await.unwrap();
    let mut seen = 0;
    while here.details(id).await.unwrap().row.state != State::Completed {
        seen += here.wait_events(id, seen).await.unwrap().len() as u64;
    }
    let details = here.details(id).await.unwrap();
    let outcome = |call: &CallId| details.story.calls[call].outcome.clone().map(|known| (known.outcome, known.result));
    assert_eq!(outcome(&find), Some((Outcome::Done, json!(5))), "what was answered was not asked again");
    assert_eq!(outcome(&send), Some((Outcome::Done, json!(8))));
    let restamped = details.entries.iter().filter(|entry| matches!(entry.body, EntryBody::WriteRestamped(_))).count();
    assert_eq!(restamped, 1, "the same write again, with its key");
    here.stop();
    worker.await.unwrap();
}
