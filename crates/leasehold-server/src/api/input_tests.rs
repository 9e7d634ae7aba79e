//! What a call needs before it goes on, as the endpoints show it and take the values.

use super::tests::{World, world};
use leasehold::{
    StartRun,
    agent::{
        model::scripted::ScriptedModel,
        registry::{AgentSpec, Registry},
        tool::{Approval, InputRequired, Reply, WriteAnswer, WriteEffect, WritePermit, rust::write_tool},
    },
    run::{InputQuestion, Principal, RunId, State},
};
use serde_json::{Map, Value, json};

const STATE: &str = "only-for-the-tool";
/// Text that would draw on a terminal.
const PROMPT: &str = "Which size?\u{1b}[2J\nleasehold input evil";

/// `packer` has a write that does not go on without a size.
pub(super) fn add_to(registry: &mut Registry) {
    let pack = |mut permit: WritePermit, _: Map<String, Value>| async move {
        let Some(said) = permit.asker().continued().cloned() else {
            let size = json!({ "size": { "type": "integer", "minimum": 1 } });
            let schema = json!({ "type": "object", "properties": size, "required": ["size"] });
            let question = InputQuestion { id: "size".into(), prompt: PROMPT.into(), schema };
            return WriteAnswer::NeedsInput(InputRequired { questions: vec![question], state: Some(STATE.into()) });
        };
        WriteAnswer::done(match &said.replies["size"] {
            Reply::Values(values) => values["size"].clone(),
            Reply::Declined => "declined".into(),
        })
    };
    registry.add_tool(write_tool("box.pack", "Pack", WriteEffect::NonIdempotent, Approval::None, pack)).unwrap();
    let script = "[[reply]]\ncalls = [{ tool = 'box.pack', arguments = {} }]\n[[reply]]\ntext = 'done'\n";
    let model = ScriptedModel::from_toml("packs", script).unwrap();
    registry.add_agent(AgentSpec::new("packer", model).tools(["box.*"])).unwrap();
}

/// A run of `ann` that waits for a size; its id and what it is named by.
async fn waiting(world: &World) -> (RunId, String) {
    let execution = world.app.runtime.start(StartRun::new("packer", "a box", Principal::person("ann"))).await.unwrap();
    let row = execution.finish().await.unwrap();
    assert_eq!(row.state, State::WaitingForInput);
    (row.id, row.turn.unwrap().digest.unwrap())
}

async fn result(world: &World, id: RunId) -> Value {
    let (_, events) = world.get("root", &format!("/runs/{id}/events")).await;
    let outcome = events["items"].as_array().unwrap().iter().find(|event| event["kind"] == "tool_outcome").cloned();
    outcome.unwrap()["payload"]["result"].clone()
}

#[tokio::test]
async fn what_a_call_needs_is_shown_and_given_or_declined_and_what_only_the_tool_is_to_see_is_nowhere() {
    let world = world().await;
    let (id, digest) = waiting(&world).await;
    let (_, run) = world.get("zoe", &format!("/runs/{id}")).await;
    let waits = &run["waiting"];
    assert_eq!((&waits["kind"], &waits["prompt"], &waits["turn_digest"]), (&"input".into(), &PROMPT.into(), &json!(digest)));
    assert_eq!(waits["schema"]["required"], json!(["size"]));
    assert_eq!(world.get("zoe", "/inbox").await.1["items"][0]["kind"], "input");
    let (_, events) = world.get("root", &format!("/runs/{id}/events")).await;
    let asked = events["items"].as_array().unwrap().iter().find(|event| event["kind"] == "input_required").unwrap();
    assert_eq!(asked["payload"]["questions"][0]["id"], "size");
    for told in [events.to_string(), run.to_string(), world.text("root", &format!("/runs/{id}")).await] {
        assert!(!told.contains(STATE), "{told}");
    }
    let screen = world.text("zoe", &format!("/runs/{id}")).await;
    assert!(screen.contains("Which size?\\u{1b}[2J") && screen.contains("--decline"), "{screen}");

    let input = format!("/runs/{id}/input");
    let say = |with: Value| {
        let mut body = with;
        body["turn_digest"] = json!(digest);
        body
    };
    for (body, at) in [
        (json!({}), "#/values"),
        (json!({ "values": { "size": 1 }, "decline": true }), "#/decline"),
        (json!({ "values": { "size": 0 } }), "#/values/size"),
        (json!({ "values": null }), "#/values"),
    ] {
        let (status, told) = world.post("zoe", &input, say(body)).await;
        assert_eq!((status, told["errors"][0]["pointer"].as_str()), (422, Some(at)), "{told}");
    }
    assert_eq!(
        world.refused("bot", &input, say(json!({ "values": { "size": 7 } }))).await.0,
        403,
        "a machine releases no write"
    );
    let (status, ended) = world.post("zoe", &format!("{input}?wait=true"), say(json!({ "values": { "size": 7 } }))).await;
    assert_eq!((status, &ended["state"]), (200, &"completed".into()));
    assert_eq!((result(&world, id).await, &ended["decisions"][0]["decision"]), (json!(7), &"input".into()));

    let (id, digest) = waiting(&world).await;
    let body = json!({ "turn_digest": digest, "decline": true });
    let (status, ended) = world.post("zoe", &format!("/runs/{id}/input?wait=true"), body).await;
    assert_eq!((status, &ended["state"], &ended["decisions"][0]["decision"]), (200, &"completed".into(), &"declined".into()));
    assert_eq!(result(&world, id).await, "declined");
}
