//! Older MCP servers, which ask a person in the middle of a call on its connection, in whole runs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use super::mcp_ledger::Ledger;
use leasehold::{
    OrderError, QuestionAnswer, StandingQuestion,
    agent::tool::{
        http::ConfiguredEffect,
        mcp::{McpConfig, McpServer},
    },
    client::Executed,
    run::{CallId, Outcome, Principal, RunId, State},
};
use leasehold_testkit::{
    mcp::{self, HttpServer},
    park::Place,
    world::World,
};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::task::JoinHandle;

const LONG: Duration = Duration::from_secs(600);

/// A run that calls one tool of a server.
struct Run {
    world: World,
    id: RunId,
    ended: JoinHandle<Executed>,
    /// Where it is kept, as long as it is looked at.
    _place: Option<Place>,
}

fn config(config: McpConfig) -> McpConfig {
    McpConfig { questions: Some(LONG), requires_approval: Some(false), ..config }
}

impl Run {
    async fn start(server: &McpServer, tool: &str, arguments: &Value) -> Self {
        let place = Place::sqlite();
        let run = Self::start_on(&place, server, tool, arguments).await;
        Self { _place: Some(place), ..run }
    }
    async fn start_on(place: &Place, server: &McpServer, tool: &str, arguments: &Value) -> Self {
        let world = Self::world(place, server, tool, arguments, "test:1").await;
        let execution = world.start("task").await;
        let id = execution.run();
        Self { world, id, ended: execution.spawn(), _place: None }
    }
    async fn world(place: &Place, server: &McpServer, tool: &str, arguments: &Value, process: &str) -> World {
        let script = json!({ "reply": [
            { "calls": [{ "tool": format!("{}.{tool}", server.name()), "arguments": arguments }] },
            { "text": "done" },
        ] });
        let listed = server.listed().borrow().clone();
        let definitions = match listed {
            Some(listed) => listed.as_ref().clone(),
            None => server.list().await.unwrap(),
        };
        let tools = server.tools(&definitions).unwrap().tools;
        let builder = World::builder(&toml::to_string(&script).unwrap()).on(&place.store, &place.clock).process(process);
        tools.into_iter().fold(builder, leasehold_testkit::world::WorldBuilder::tool).build()
    }
    /// What stands, once something does that was asked after this entry.
    async fn asked(&self, after: u64) -> StandingQuestion {
        let mut seen = 0;
        loop {
            seen += self.world.runtime.wait_events(self.id, seen).await.unwrap().len() as u64;
            let details = self.world.runtime.details(self.id).await.unwrap();
            assert!(!details.row.state.is_settled(), "it ended and asked nothing: {:?}", self.world.results());
            if let Some(asked) = details.questions().find(|asked| asked.question > after) {
                return asked;
            }
        }
    }
    async fn answer(&self, asked: &StandingQuestion, values: Option<Value>) -> Result<State, OrderError> {
        let values = values.map(|values| values.as_object().cloned().unwrap());
        let (call_id, by) = (asked.call_id.clone(), Principal::person("bob"));
        let said = QuestionAnswer { call_id, question: asked.question, values, by };
        self.world.runtime.answer(self.id, said).await.map(|row| row.state)
    }
    /// The state in which it ended, and what is known of its call.
    async fn ended(self) -> (State, Option<Outcome>, String) {
        let state = self.ended.await.unwrap().unwrap().state;
        let outcome = self.world.story(self.id).await.calls[&CallId::of(1, 0)].outcome.clone();
        let result = outcome.as_ref().map(|known| known.result.clone()).unwrap_or_default();
        (state, outcome.map(|known| known.outcome), result.as_str().map_or_else(|| result.to_string(), str::to_owned))
    }
}

const ELICIT: &str = "trigger-elicitation-request";

async fn everything() -> Option<(Vec<McpConfig>, HttpServer)> {
    let program = mcp::npm("mcp-server-everything").await?;
    let far = HttpServer::start(vec![program.clone(), "streamableHttp".into()]).await;
    Some((vec![McpConfig::command("every", [program]), McpConfig::url("every", far.url())], far))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_asks_in_the_middle_of_the_call_and_hears_what_the_person_said() {
    let Some((reached, _far)) = everything().await else { return };
    for reached in reached {
        let none = McpServer::new(reached.clone()).unwrap();
        let names = |tools: Vec<leasehold::agent::tool::mcp::Definition>| tools.into_iter().any(|tool| tool.name == ELICIT);
        assert!(!names(none.list().await.unwrap()), "what is not switched on is not declared");
        for effect in [ConfiguredEffect::ReadOnly, ConfiguredEffect::NonIdempotentWrite] {
            let mut config = config(reached.clone());
            config.effects.insert(ELICIT.into(), effect);
            let server = McpServer::new(config).unwrap();
            let run = Run::start(&server, ELICIT, &json!({})).await;
            let asked = run.asked(0).await;
            assert_eq!(asked.prompt, "every asks: Please provide inputs for the following fields:");
            let field = |name: &str| &asked.schema["properties"][name];
            assert_eq!(field("legacyTitledEnum")["enumNames"][1], "Dogs");
            assert_eq!(field("titledSingleSelectEnum")["oneOf"][0], json!({ "const": "hero-1", "title": "Superman" }));
            assert_eq!(field("titledMultipleSelectEnum")["items"]["anyOf"][0]["title"], "Tuna");
            assert_eq!((&field("email")["format"], &field("integer")["maximum"]), (&json!("email"), &json!(100)));
            assert_eq!(field("untitledMultipleSelectEnum")["default"], json!(["Guitar"]));
            let wrong = json!({ "name": "Ann", "titledMultipleSelectEnum": ["fish-9"] });
            assert!(matches!(run.answer(&asked, Some(wrong)).await, Err(OrderError::InvalidFields(_))));
            run.answer(&asked, Some(json!({ "name": "Ann", "integer": 7 }))).await.unwrap();
            let (state, outcome, result) = run.ended().await;
            assert_eq!((state, outcome), (State::Completed, Some(Outcome::Done)), "{result}");
            let raw = result.split_once("Raw result: ").unwrap().1;
            let raw: Value = serde_json::from_str(raw).unwrap();
            assert_eq!(raw, json!({ "action": "accept", "content": { "name": "Ann", "integer": 7 } }));

            let run = Run::start(&server, ELICIT, &json!({})).await;
            let asked = run.asked(0).await;
            run.answer(&asked, None).await.unwrap();
            let (_, _, result) = run.ended().await;
            assert!(result.contains("User declined"), "{result}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_that_ask_at_the_same_time_do_not_get_each_others_answers() {
    let Some((reached, _far)) = everything().await else { return };
    for reached in reached {
        let server = McpServer::new(config(reached)).unwrap();
        let (one, two) = (Run::start(&server, ELICIT, &json!({})).await, Run::start(&server, ELICIT, &json!({})).await);
        // An older server cannot say for which call it asks: one of them has its turn, whichever.
        let (first, second, asked) = tokio::select! {
            asked = one.asked(0) => (&one, &two, asked),
            asked = two.asked(0) => (&two, &one, asked),
        };
        assert_eq!(second.world.runtime.details(second.id).await.unwrap().questions().count(), 0);
        first.answer(&asked, Some(json!({ "name": first.id.to_string() }))).await.unwrap();
        let asked = second.asked(0).await;
        second.answer(&asked, Some(json!({ "name": second.id.to_string() }))).await.unwrap();
        for run in [one, two] {
            let id = run.id.to_string();
            let (state, _, result) = run.ended().await;
            assert_eq!(state, State::Completed);
            assert!(result.contains(&format!("Name: {id}")), "{result}");
        }
    }
}

/// A server of the old handshake in a shell whose one tool asks and says what it was answered. `$n` counts its processes.
fn shell(ledger: &Ledger, question: &str, before_it_asks: &str) -> McpConfig {
    let script = format!(
        r#"
        echo start >> {path}.starts; n=$(wc -l < {path}.starts)
        read discover; echo '{{"jsonrpc":"2.0","id":0,"error":{{"code":-32601,"message":"no"}}}}'
        read initialize; echo '{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"s","version":"1"}}}}}}'
        read initialized
        read list; echo '{{"jsonrpc":"2.0","id":2,"result":{{"tools":[{{"name":"ask","inputSchema":{{"type":"object"}}}}]}}}}'
        for id in 3 4; do
            read call || exit; echo "$call" >> {path}.entered
            {before_it_asks}
            echo '{{"jsonrpc":"2.0","id":"q'$id'","method":"elicitation/create","params":{question}}}'
            read answer; echo "$answer" >> {path}
            echo '{{"jsonrpc":"2.0","id":'$id',"result":{{"content":[{{"type":"text","text":"so be it"}}]}}}}'
        done
        read more"#,
        path = ledger.path.display()
    );
    config(McpConfig::command("shell", ["sh", "-c", &script]))
}

const FORM: &str =
    r#"{"message":"Sure?","requestedSchema":{"type":"object","properties":{"size":{"type":"integer"}},"required":["size"]}}"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_gets_an_error_where_nobody_answered_and_no_word_in_a_persons_name() {
    let nested =
        r#"{"message":"Sure?","requestedSchema":{"type":"object","properties":{"a":{"type":"object","properties":{}}}}}"#;
    let url = r#"{"mode":"url","message":"Go","url":"https://example.com/","elicitationId":"1"}"#;
    let long = format!(
        r#"{{"message":"{}","requestedSchema":{{"type":"object","properties":{{}}}}}}"#,
        "x".repeat(leasehold::limits::QUESTION_PROMPT_BYTES_MAX)
    );
    for (question, cancelled, why) in [
        (nested, false, "cannot be shown here"),
        (url, false, "at a URL cannot be shown here"),
        (long.as_str(), false, "cannot be shown here: it is"),
        (FORM, true, "the run was cancelled"),
        (FORM, false, "no person answered within 700ms"),
    ] {
        let ledger = Ledger::new();
        let mut config = shell(&ledger, question, "");
        if !cancelled {
            config.questions = Some(Duration::from_millis(700));
        }
        let run = Run::start(&McpServer::new(config).unwrap(), "ask", &json!({})).await;
        if cancelled {
            run.asked(0).await;
            run.world.runtime.cancel(run.id, World::person(), None).await.unwrap();
        }
        let (state, outcome, result) = run.ended().await;
        let expected = if cancelled { State::Cancelled } else { State::Completed };
        assert_eq!((state, outcome, result.as_str()), (expected, Some(Outcome::Done), "so be it"), "{why}");
        let answer: Value = serde_json::from_str(&ledger.lines()[0]).unwrap();
        assert!(answer.get("result").is_none(), "{why}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains(why), "{why}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_deadline_of_an_operation_stands_still_while_a_person_is_asked() {
    let ledger = Ledger::new();
    let limit = Duration::from_secs(2);
    let config = McpConfig { timeout: Some(limit), ..shell(&ledger, FORM, "") };
    let run = Run::start(&McpServer::new(config).unwrap(), "ask", &json!({})).await;
    let asked = run.asked(0).await;
    // What is tested is that this much time passes.
    tokio::time::sleep(limit * 3 / 2).await;
    run.answer(&asked, Some(json!({ "size": 1 }))).await.unwrap();
    let (state, outcome, result) = run.ended().await;
    assert_eq!((state, outcome, result.as_str()), (State::Completed, Some(Outcome::Done), "so be it"));
    assert_eq!(ledger.entered().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_server_has_one_call_at_a_time_and_its_question_goes_to_the_run_of_that_call() {
    let ledger = Ledger::new();
    let go = ledger.path.with_extension("go");
    let server =
        McpServer::new(shell(&ledger, FORM, &format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()))).unwrap();
    let one = Run::start(&server, "ask", &json!({})).await;
    ledger.reached().await;
    let two = Run::start(&server, "ask", &json!({})).await;
    while !two.world.kinds(two.id).await.contains(&"write_stamped") {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Only time would show that the second call is made although it is not its turn.
    tokio::time::sleep(Duration::from_millis(500)).await;
    std::fs::write(&go, "").unwrap();
    tokio::select! {
        asked = one.asked(0) => one.answer(&asked, Some(json!({ "size": 1 }))).await.unwrap(),
        asked = two.asked(0) => panic!("the other run is asked: {asked:?}"),
    };
    assert_eq!(one.ended().await.0, State::Completed);
    let asked = two.asked(0).await;
    two.answer(&asked, Some(json!({ "size": 2 }))).await.unwrap();
    assert_eq!(two.ended().await.0, State::Completed);
    let sizes: Vec<Value> = ledger
        .lines()
        .iter()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["result"]["content"]["size"].clone())
        .collect();
    assert_eq!(sizes, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_older_server_asks_for_a_call_that_was_given_up_reaches_no_other_run() {
    let ledger = Ledger::new();
    // The first process asks late.
    let go = ledger.path.with_extension("go");
    let late = format!("while [ $n = 1 ] && [ ! -e {} ]; do sleep 0.02; done", go.display());
    let mut config = shell(&ledger, FORM, &late);
    config.effects.insert("ask".into(), ConfiguredEffect::ReadOnly);
    let server = McpServer::new(config).unwrap();
    let given_up = Run::start(&server, "ask", &json!({})).await;
    ledger.reached().await;
    given_up.world.runtime.cancel(given_up.id, World::person(), None).await.unwrap();
    assert_eq!(given_up.ended.await.unwrap().unwrap().state, State::Cancelled);

    let run = Run::start(&server, "ask", &json!({})).await;
    std::fs::write(&go, "").unwrap();
    let asked = run.asked(0).await;
    assert_eq!(server.health().restarts, 1, "it is asked on a connection of its own");
    run.answer(&asked, Some(json!({ "size": 2 }))).await.unwrap();
    assert_eq!(run.ended().await.0, State::Completed);
    assert_eq!(ledger.entered().len(), 2);
    let answer: Value = serde_json::from_str(ledger.lines().last().unwrap()).unwrap();
    assert_eq!(answer["result"], json!({ "action": "accept", "content": { "size": 2 } }));
}
