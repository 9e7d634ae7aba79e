//! What a running call asks, as the endpoints show it and take the answer.

use super::tests::{World, world};
use leasehold::{
    StartRun,
    agent::{
        model::scripted::ScriptedModel,
        registry::{AgentSpec, Registry},
        tool::{
            Approval, Asker, ReadAnswer, Reply, WriteAnswer, WriteEffect, WritePermit,
            rust::{asking_read_tool, write_tool},
        },
    },
    run::{Principal, RunId},
};
use serde_json::{Map, Value, json};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);
/// Text that would draw on a terminal.
const PROMPT: &str = "Which size?\u{1b}[2J\nleasehold answer evil";

fn schema() -> Value {
    let size = json!({ "type": "integer", "minimum": 1, "title": "Size" });
    json!({ "type": "object", "properties": { "size": size }, "required": ["size"] })
}

fn told(said: &Reply) -> Value {
    match said {
        Reply::Values(values) => values["size"].clone(),
        Reply::Declined => "declined".into(),
    }
}

/// `finder` asks in a read, `sender` in a write, `careful` in a write under four eyes.
pub(super) fn add_to(registry: &mut Registry) {
    let find = asking_read_tool("box.find", "Find a box", |mut asker: Asker, _: Map<String, Value>| async move {
        match asker.ask(PROMPT, schema()).await {
            Ok(said) => ReadAnswer::ok(told(&said)),
            Err(why) => ReadAnswer::error(why.to_string()),
        }
    });
    let effect = WriteEffect::NonIdempotent;
    let send =
        write_tool("box.send", "Send", effect, Approval::None, |mut permit: WritePermit, _: Map<String, Value>| async move {
            match permit.asker().ask(PROMPT, schema()).await {
                Ok(said) => WriteAnswer::done(told(&said)),
                Err(why) => WriteAnswer::NotApplied { why: why.to_string() },
            }
        });
    registry.add_tool(find.timeout(LONG)).unwrap();
    registry.add_tool(send.timeout(LONG)).unwrap();
    for (agent, tool, second_approver) in
        [("finder", "box.find", false), ("sender", "box.send", false), ("careful", "box.send", true)]
    {
        let script = format!("[[reply]]\ncalls = [{{ tool = '{tool}', arguments = {{}} }}]\n[[reply]]\ntext = 'done'\n");
        let mut agent = AgentSpec::new(agent, ScriptedModel::from_toml("asks", &script).unwrap()).tools(["box.*"]);
        agent.second_approver = second_approver;
        registry.add_agent(agent).unwrap();
    }
}

/// A run of that agent and owner that asks; its id and its question's number.
async fn asking(world: &World, agent: &str, owner: &str) -> (RunId, u64) {
    let execution = world.app.runtime.start(StartRun::new(agent, "a box", Principal::person(owner))).await.unwrap();
    let id = execution.run();
    world.app.execute(execution);
    let mut seen = 0;
    loop {
        seen += world.app.runtime.wait_events(id, seen).await.unwrap().len() as u64;
        if let Some(asked) = world.app.runtime.details(id).await.unwrap().questions().next() {
            return (id, asked.question);
        }
    }
}

/// Waits until the run has ended.
async fn ended(world: &World, id: RunId) -> Value {
    let mut seen = 0;
    while !world.app.row(id).await.unwrap().state.is_settled() {
        seen += world.app.runtime.wait_events(id, seen).await.unwrap().len() as u64;
    }
    world.get("root", &format!("/runs/{id}")).await.1
}

fn values(question: u64, size: impl Into<Value>) -> Value {
    json!({ "call_id": "t1c0", "question": question, "values": { "size": size.into() } })
}

fn decline(question: u64) -> Value {
    json!({ "call_id": "t1c0", "question": question, "decline": true })
}

#[tokio::test]
async fn a_run_and_the_inbox_show_what_is_asked_to_whoever_may_answer() {
    let world = world().await;
    let (waits, _) = world.suspended("ann", json!({})).await;
    assert_eq!(world.get("ann", &format!("/runs/{waits}")).await.1["questions"], json!([]));
    let (id, question) = asking(&world, "sender", "ann").await;
    for who in ["ann", "zoe", "olga", "root"] {
        let (status, run) = world.get(who, &format!("/runs/{id}")).await;
        assert_eq!((status, &run["state"], &run["fence"]["tool"]), (200, &"running".into(), &"box.send".into()), "{who}");
        let mut asked = run["questions"][0].clone();
        assert!(asked["asked_at"].as_str().unwrap().parse::<jiff::Timestamp>().is_ok());
        asked.as_object_mut().unwrap().remove("asked_at");
        let whole = json!({
            "call_id": "t1c0", "tool": "box.send", "question": question, "prompt": PROMPT, "schema": schema()
        });
        assert_eq!(asked, whole, "{who}");
    }
    for who in ["bob", "vic", "eve", "sid"] {
        assert_eq!(world.get(who, &format!("/runs/{id}")).await.0, 404, "{who}");
    }
    let (_, inbox) = world.get("zoe", "/inbox").await;
    assert_eq!((&inbox["items"][0]["kind"], &inbox["items"][0]["run"]["id"]), (&"question".into(), &json!(id)));
    assert_eq!(inbox["items"].as_array().unwrap().len(), 1);
    assert_eq!(world.listed("vic", "/inbox").await, 0);
    // Behind what waits for an approval, and each on a page of its own.
    let (_, first) = world.get("olga", "/inbox?limit=1").await;
    assert_eq!((&first["items"][0]["kind"], &first["items"][0]["run"]["id"]), (&"approval".into(), &json!(waits)));
    let cursor = first["next_cursor"].as_str().unwrap();
    let (_, second) = world.get("olga", &format!("/inbox?limit=1&cursor={cursor}")).await;
    assert_eq!((&second["items"][0]["kind"], &second["next_cursor"]), (&"question".into(), &Value::Null));

    let screen = world.text("zoe", &format!("/runs/{id}")).await;
    assert!(screen.contains("Asks a person") && screen.contains("Which size?\\u{1b}[2J"), "{screen}");
    let commands: Vec<&str> = screen.lines().filter(|line| line.trim_start().starts_with("leasehold answer ")).collect();
    assert_eq!(commands.len(), 2, "what the tool says is behind a gutter: {screen}");
    assert!(commands[0].contains(&format!("{id} --call t1c0 --question {question} --values")), "{screen}");
    assert!(world.text("zoe", "/inbox").await.contains("box.send asks"));
}

#[tokio::test]
async fn who_may_not_release_a_call_may_not_answer_it_and_nothing_is_consumed() {
    let world = world().await;
    let (id, question) = asking(&world, "sender", "ann").await;
    let answer = format!("/runs/{id}/answer");
    let given = values(question, 7);
    for (who, status, code) in [
        ("bob", 404, "not_found"),
        ("eve", 404, "not_found"),
        ("ann", 403, "not_permitted"),
        ("olga", 403, "approver_not_permitted"),
        ("bot", 403, "machine_may_not_release"),
    ] {
        assert_eq!(world.refused(who, &answer, given.clone()).await, (status, code.into()), "{who}");
    }
    assert_eq!(world.refused("ann", &answer, decline(question)).await, (403, "not_permitted".into()));
    for (body, pointer) in [
        (json!({ "call_id": "t1c0", "question": question }), "#/values"),
        (json!({ "call_id": "t1c0", "question": question, "values": {}, "decline": true }), "#/decline"),
        (json!({ "call_id": "t1c0", "question": question, "values": null }), "#/values"),
        (json!({ "call_id": "t1c0", "question": "x", "decline": true }), "#/question"),
        (json!({ "call_id": "t1c0", "question": question, "values": {} }), "#/values"),
        (values(question, 0), "#/values/size"),
        (values(question, "7"), "#/values/size"),
    ] {
        let (status, problem) = world.post("zoe", &answer, body.clone()).await;
        assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &pointer.into()), "{body}: {problem}");
    }
    assert_eq!(world.refused("zoe", &answer, values(question + 1, 7)).await, (409, "no_question".into()));
    let (_, run) = world.get("zoe", &format!("/runs/{id}")).await;
    assert_eq!((&run["state"], &run["questions"][0]["question"]), (&"running".into(), &json!(question)));
    assert_eq!(world.post("zoe", &answer, given).await.0, 202);
    assert_eq!(ended(&world, id).await["state"], "completed");
}

#[tokio::test]
async fn an_answer_is_taken_once_and_whoever_gave_it_hears_so_again() {
    let world = world().await;
    let (id, question) = asking(&world, "finder", "ann").await;
    let answer = format!("/runs/{id}/answer");
    assert_eq!(world.refused("olga", &answer, values(question, 7)).await, (403, "approver_not_permitted".into()));
    // A read is released by nobody, so a machine may answer it, with the right to its tool.
    let (status, run) = world.post("bot", &answer, values(question, 7)).await;
    assert_eq!((status, &run["id"]), (202, &json!(id)));
    let run = ended(&world, id).await;
    assert_eq!((&run["state"], &run["questions"]), (&"completed".into(), &json!([])));
    assert_eq!(world.post("bot", &answer, values(question, 7)).await.0, 202);
    // Nothing is asked any more, so an approver does not see it; whoever may have been shown the question is told what became of it.
    assert_eq!(world.get("zoe", &format!("/runs/{id}")).await.0, 404);
    for (who, body) in [("zoe", values(question, 7)), ("bot", values(question, 8)), ("bot", decline(question))] {
        let (status, problem) = world.post(who, &answer, body).await;
        assert_eq!((status, &problem["code"], &problem["by"]), (409, &"already_decided".into(), &"bot".into()), "{who}");
        assert!(problem["at"].is_string() && problem["call_id"] == "t1c0", "{problem}");
    }
    assert_eq!(world.refused("zoe", &answer, values(question + 1, 7)).await, (404, "not_found".into()));
    assert_eq!(world.refused("bob", &answer, values(question, 7)).await, (404, "not_found".into()));
    assert_eq!(world.refused("olga", &answer, values(question + 1, 7)).await, (409, "no_question".into()));
}

#[tokio::test]
async fn under_four_eyes_whoever_started_a_run_declines_what_its_write_asks_and_does_not_answer() {
    let world = world().await;
    let (id, question) = asking(&world, "careful", "zoe").await;
    let answer = format!("/runs/{id}/answer");
    assert_eq!(world.refused("zoe", &answer, values(question, 7)).await, (403, "self_approval".into()));
    assert_eq!(world.post("zoe", &answer, decline(question)).await.0, 202);
    let run = ended(&world, id).await;
    assert_eq!(run["state"], "completed");
    let (_, events) = world.get("root", &format!("/runs/{id}/events")).await;
    let answered = events["items"].as_array().unwrap().iter().find(|event| event["kind"] == "answered").unwrap();
    assert_eq!((&answered["payload"]["by"]["id"], answered["payload"].get("values")), (&"zoe".into(), None));
}
