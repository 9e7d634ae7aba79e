//! MCP servers since 2026-07-28, whose call ends in questions: the run waits for the replies without a process and without a connection,
//! and the same call is made again with them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use super::mcp_ledger::Ledger;
use leasehold::{
    OrderError, Submission,
    agent::tool::{
        Tool,
        http::ConfiguredEffect,
        mcp::{McpConfig, McpServer},
    },
    limits::QUESTIONS_MAX,
    run::{CallId, Outcome, Reason, RunId, State, TurnCard},
};
use leasehold_testkit::{
    mcp::{self, HttpServer},
    park::Place,
    world::World,
};
use serde_json::{Value, json};
use std::time::Duration;

fn config(config: McpConfig) -> McpConfig {
    McpConfig { questions: Some(Duration::from_secs(600)), requires_approval: Some(false), ..config }
}

/// A process that has the tools of this server, and asks for one call of them.
async fn process(place: &Place, reached: McpConfig, name: &str, tool: &str, arguments: &Value) -> World {
    let server = McpServer::new(reached).unwrap();
    let tools: Vec<Tool> = server.tools(&server.list().await.unwrap()).unwrap().tools;
    assert_eq!(server.health().protocol_version.as_deref(), Some("2026-07-28"));
    let script = json!({ "reply": [
        { "calls": [{ "tool": format!("{}.{tool}", server.name()), "arguments": arguments }] },
        { "text": "done" },
    ] });
    let builder = World::builder(&toml::to_string(&script).unwrap()).on(&place.store, &place.clock).process(name);
    tools.into_iter().fold(builder, leasehold_testkit::world::WorldBuilder::tool).build()
}

async fn card(world: &World, id: RunId) -> TurnCard {
    assert_eq!(world.row(id).await.state, State::WaitingForInput, "{:?}", world.results());
    world.story(id).await.card.unwrap().card
}

async fn submission(world: &World, id: RunId, values: Option<Value>) -> Submission {
    let values = values.map(|values| values.as_object().cloned().unwrap());
    Submission { digest: world.digest(id).await, values, by: World::person(), execute: true }
}

async fn give(world: &World, id: RunId, values: Option<Value>) -> State {
    let said = submission(world, id, values).await;
    world.runtime.submit(id, said).await.unwrap().execution.unwrap().finish().await.unwrap().state
}

async fn result(world: &World, id: RunId) -> (Outcome, String) {
    let outcome = world.story(id).await.calls[&CallId::of(1, 0)].outcome.clone().unwrap();
    (outcome.outcome, outcome.result.as_str().map_or_else(|| outcome.result.to_string(), str::to_owned))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_ended_in_a_question_goes_on_in_another_process_with_what_the_person_said_and_with_its_key() {
    let Some(command) = mcp::asking().await else { return };
    let mut far = HttpServer::start(command.clone()).await;
    for effect in [ConfiguredEffect::NonIdempotentWrite, ConfiguredEffect::ReadOnly] {
        for reached in [McpConfig::command("asking", command.clone()), McpConfig::url("asking", far.url())] {
            let mut reached = config(reached);
            reached.effects.insert("send".into(), effect);
            // A write over pipes is released by a person first.
            let is_asked_about = effect == ConfiguredEffect::NonIdempotentWrite && reached.url.is_none();
            reached.requires_approval = Some(is_asked_about);
            let (place, ledger) = (Place::sqlite(), Ledger::new());
            let call = ledger.call("pier 2");
            let one = process(&place, reached.clone(), "one:1", "send", &call).await;
            let id = one.run("task").await;
            if is_asked_about {
                assert_eq!((one.row(id).await.state, ledger.entered().len()), (State::WaitingForApproval, 0));
                one.approve(id).await.unwrap();
            }
            let asked = card(&one, id).await;
            assert_eq!(asked.question.map(|asked| asked.prompt).as_deref(), Some("asking asks: Which size?"));
            assert_eq!(asked.calls[0].tool.name, "asking.send");
            let schema = asked.schema.unwrap();
            let field = |name: &str| &schema["properties"][name];
            assert_eq!(field("size"), &json!({ "type": "integer", "title": "Size", "minimum": 1, "maximum": 9, "default": 4 }));
            assert_eq!(field("colour")["enumNames"], json!(["Red", "Green"]));
            assert_eq!(field("colour")["enum"], json!(["r", "g"]));
            assert_eq!(field("pier")["oneOf"][1], json!({ "const": "p2", "title": "Pier 2" }));
            assert_eq!(field("mail"), &json!({ "type": "string", "format": "email", "minLength": 3 }));
            assert_eq!((field("by_crane")["default"].clone(), field("weight")["maximum"].clone()), (json!(true), json!(1.5)));
            assert_eq!(schema["required"], json!(["size"]));
            for wrong in
                [json!({}), json!({ "size": 10 }), json!({ "size": 1, "colour": "Red" }), json!({ "size": 1, "pier": "p3" })]
            {
                let said = submission(&one, id, Some(wrong)).await;
                assert!(matches!(one.runtime.submit(id, said).await, Err(OrderError::InvalidFields(_))));
            }
            assert_eq!((ledger.entered().len(), ledger.lines().len()), (1, 0), "what does not fit goes nowhere");

            // The process that asked is gone, and so is the server's.
            drop(one);
            far.kill().await;
            far.restart().await;
            let two = process(&place, reached, "two:2", "send", &call).await;
            // Nothing is filled in for the person: neither of the defaults.
            let values = json!({ "size": 7, "pier": "p2" });
            assert_eq!(give(&two, id, Some(values.clone())).await, State::Completed);
            let (outcome, text) = result(&two, id).await;
            assert_eq!((outcome, ledger.lines().len()), (Outcome::Done, 1), "{text}");
            assert_eq!(ledger.lines(), ["pier 2 7"]);
            let entered = ledger.entered();
            assert_eq!(entered.len(), 2);
            assert_eq!((&entered[0]["answers"], &entered[0]["state"]), (&Value::Null, &Value::Null));
            assert_eq!(entered[1]["answers"], json!({ "a": { "action": "accept", "content": values } }));
            assert_eq!(entered[1]["state"], "of pier 2");
            let kinds = two.kinds(id).await;
            assert_eq!(kinds.iter().filter(|kind| **kind == "input_required").count(), 1, "{kinds:?}");
            if effect == ConfiguredEffect::ReadOnly {
                continue;
            }
            let meta = |entered: &Value, key: &str| entered["meta"][format!("leasehold/{key}")].clone();
            assert_eq!(meta(&entered[0], "run"), id.to_string());
            for key in ["run", "idempotency-key"] {
                assert_eq!(meta(&entered[0], key), meta(&entered[1], key), "the same call");
            }
            let tokens = entered.iter().map(|entered| meta(entered, "fencing-token").as_u64().unwrap()).collect::<Vec<_>>();
            assert!(tokens[0] < tokens[1], "{tokens:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgot_what_it_asked_is_called_anew_and_nobody_is_asked_the_same_twice() {
    let Some(mut command) = mcp::asking().await else { return };
    command.push("--forgetful".into());
    for (tool, asks_again) in [("send", false), ("twice", true)] {
        let (place, ledger) = (Place::sqlite(), Ledger::new());
        let call = ledger.call("pier 2");
        let mut reached = config(McpConfig::command("asking", command.clone()));
        reached.effects.insert(tool.into(), ConfiguredEffect::IdempotentWrite);
        let mut world = process(&place, reached.clone(), "one:1", tool, &call).await;
        let id = world.run("task").await;
        if asks_again {
            // Its second question is not the first one of a new beginning.
            assert_eq!(give(&world, id, Some(json!({ "size": 7 }))).await, State::WaitingForInput);
        }
        world = process(&place, reached, "two:2", tool, &call).await;
        let state = give(&world, id, Some(json!({ "size": 7 }))).await;
        if asks_again {
            assert_eq!(state, State::WaitingForInput);
            assert_eq!(card(&world, id).await.question.unwrap().prompt, "asking asks: Which size?");
            assert_eq!(give(&world, id, Some(json!({ "size": 7 }))).await, State::WaitingForInput);
            assert_eq!(give(&world, id, Some(json!({ "size": 7 }))).await, State::Completed);
        } else {
            assert_eq!(state, State::Completed);
        }
        let (outcome, text) = result(&world, id).await;
        assert_eq!((outcome, ledger.lines()), (Outcome::Done, vec!["pier 2 7".to_owned()]), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_cannot_be_repeated_or_that_somebody_declined_is_not_made_anew() {
    let Some(mut command) = mcp::asking().await else { return };
    command.push("--forgetful".into());
    for (effect, values) in [
        (ConfiguredEffect::NonIdempotentWrite, Some(json!({ "size": 7 }))),
        (ConfiguredEffect::IdempotentWrite, None),
        (ConfiguredEffect::ReadOnly, None),
    ] {
        let (place, ledger) = (Place::sqlite(), Ledger::new());
        let call = ledger.call("pier 2");
        let mut reached = config(McpConfig::command("asking", command.clone()));
        reached.effects.insert("send".into(), effect);
        let id = process(&place, reached.clone(), "one:1", "send", &call).await.run("task").await;
        let world = process(&place, reached, "two:2", "send", &call).await;
        assert_eq!(give(&world, id, values).await, State::Completed);
        let (outcome, text) = result(&world, id).await;
        assert!(outcome == Outcome::Done && text.contains("requestState"), "{text}");
        assert_eq!((ledger.entered().len(), ledger.lines().len()), (1, 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn to_decline_is_told_and_two_calls_that_wait_do_not_get_each_others_replies() {
    let Some(command) = mcp::asking().await else { return };
    let (place, ledger) = (Place::sqlite(), Ledger::new());
    let reached = || config(McpConfig::command("asking", command.clone()));
    let run = process(&place, reached(), "one:1", "send", &ledger.call("one")).await;
    let id = run.run("task").await;
    assert_eq!(give(&run, id, None).await, State::Completed);
    assert_eq!(result(&run, id).await, (Outcome::Done, r#"{"result":"not sent: decline"}"#.into()));
    assert_eq!(ledger.entered()[1]["answers"], json!({ "a": { "action": "decline" } }));

    let ledger = Ledger::new();
    let one = process(&place, reached(), "one:1", "send", &ledger.call("one")).await;
    let two = process(&place, reached(), "two:2", "send", &ledger.call("two")).await;
    let (first, second) = (one.run("task").await, two.run("task").await);
    assert_eq!(give(&two, second, Some(json!({ "size": 2 }))).await, State::Completed);
    assert_eq!(give(&one, first, Some(json!({ "size": 1 }))).await, State::Completed);
    assert_eq!(ledger.lines(), ["two 2", "one 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_here_ends_the_call_as_an_error_and_a_server_asks_only_so_often() {
    let Some(command) = mcp::asking().await else { return };
    let place = Place::sqlite();
    for (what, why) in [
        ("url", "at a URL cannot be shown"),
        ("roots", "not switched on"),
        ("nested", "cannot be shown here"),
        ("nothing", "asks nothing"),
    ] {
        let ledger = Ledger::new();
        let reached = config(McpConfig::command("asking", command.clone()));
        let world = process(&place, reached, "one:1", "strange", &ledger.call(what)).await;
        let id = world.run("task").await;
        let (outcome, text) = result(&world, id).await;
        assert_eq!((world.row(id).await.state, outcome), (State::Completed, Outcome::Done), "{what}: {text}");
        assert!(text.contains(why), "{what}: {text}");
        assert_eq!(ledger.entered().len(), 1, "{what}");
    }
    let ledger = Ledger::new();
    let unasked = McpConfig { questions: None, ..config(McpConfig::command("asking", command.clone())) };
    let world = process(&place, unasked, "one:1", "send", &ledger.call("x")).await;
    let id = world.run("task").await;
    let (_, text) = result(&world, id).await;
    assert!(text.contains("`questions` is not set"), "{text}");

    let ledger = Ledger::new();
    let reached = config(McpConfig::command("asking", command));
    let world = process(&place, reached, "one:1", "insist", &ledger.call("x")).await;
    let id = world.run("task").await;
    for _ in 1..QUESTIONS_MAX {
        assert_eq!(give(&world, id, Some(json!({ "size": 1 }))).await, State::WaitingForInput);
    }
    assert_eq!(give(&world, id, Some(json!({ "size": 1 }))).await, State::Completed);
    let (_, text) = result(&world, id).await;
    assert!(text.contains("which is the limit"), "{text}");
    assert_eq!(ledger.entered().len(), 1 + QUESTIONS_MAX as usize);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_call_that_goes_on_only_what_may_have_arrived_is_in_doubt_and_what_was_not_sent_is_sent_later() {
    let Some(command) = mcp::asking().await else { return };
    let (place, ledger) = (Place::sqlite(), Ledger::new());
    let reached = config(McpConfig::command("asking", command.clone()));
    let world = process(&place, reached, "one:1", "send_and_die", &ledger.call("x")).await;
    let id = world.run("task").await;
    assert_eq!(give(&world, id, Some(json!({ "size": 1 }))).await, State::Dead);
    assert_eq!(world.row(id).await.reason, Some(Reason::WriteInDoubt));
    assert_eq!(ledger.entered().len(), 2, "it is not made a third time");

    // It is gone when the person answers: the replies are kept, and the call goes on once it is back.
    let ledger = Ledger::new();
    let mut far = HttpServer::start(command).await;
    let reached = config(McpConfig::url("asking", far.url()));
    let world = process(&place, reached, "one:1", "send", &ledger.call("x")).await;
    let id = world.run("task").await;
    far.kill().await;
    assert_eq!(give(&world, id, Some(json!({ "size": 1 }))).await, State::Queued);
    assert_eq!((world.row(id).await.fence, ledger.entered().len()), (None, 1));
    far.restart().await;
    place.clock.advance(Duration::from_secs(700));
    world.claim(id).await.unwrap();
    assert_eq!((world.row(id).await.state, ledger.lines()), (State::Completed, vec!["x 1".to_owned()]));
}
