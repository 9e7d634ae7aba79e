//! `leasehold run` against a model server that somebody else wrote and a real HTTP tool: suspends with exit 3, is approved from a
//! second process, and the write arrives exactly once, with its key, its run and its fencing token.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::run::{RunId, State};
use leasehold_testkit::{
    aimock::Aimock,
    far_side::FarSide,
    home::Home,
    recorded::{Recorded, Why, Wire},
};
use serde_json::json;

fn configuration(model_url: &str, far: &FarSide) -> String {
    format!(
        r#"
[store]
url = "sqlite:leasehold.db"
[[model]]
name = "default"
provider = "openai"
model = "gpt-4o-mini"
base_url = "{model_url}/v1"
api_key_env = "TEST_MODEL_KEY"
[[agent]]
name = "a"
model = "default"
system = "You keep the ledger."
tools = ["ledger.append"]
[[tool.http]]
name = "ledger.append"
description = "Append one line to the ledger"
effect = "non_idempotent_write"
method = "POST"
url = "{}"
headers = {{ Authorization = {{ env = "TEST_LEDGER_TOKEN", prefix = "Bearer " }}, X-Org = "acme" }}
parameters = {{ type = "object", properties = {{ text = {{ type = "string" }} }}, required = ["text"] }}
"#,
        far.url("/append")
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_against_a_foreign_model_server_waits_and_its_write_arrives_once_from_a_second_process() {
    let calls = json!([{ "name": "ledger__append", "arguments": { "text": "pier 2 is repaired" }, "id": "call_0" }]);
    let fixtures = json!({ "fixtures": [
        { "match": { "userMessage": "note the repair", "hasToolResult": true }, "response": { "content": "It is noted." } },
        { "match": { "userMessage": "note the repair" }, "response": { "content": "I will note it.", "toolCalls": calls } },
    ] });
    let Some(server) = Aimock::start(&fixtures, &[], &[]).await else { return };
    let far = FarSide::start().await.expect("a port");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    home.write("leasehold.toml", &configuration(server.url(), &far));

    let secrets = [("TEST_MODEL_KEY", "sk-model-secret"), ("TEST_LEDGER_TOKEN", "ledger-secret")];
    let ran = home.run_with(&["run", "--agent", "a", "--json", "note the repair"], &secrets).await;
    assert_eq!(ran.code(), 3, "{ran}");
    let waiting = ran.json();
    assert_eq!(waiting["state"], "waiting_for_approval");
    assert_eq!(waiting["waiting"]["calls"][0]["arguments"], json!({ "text": "pier 2 is repaired" }));
    assert_eq!(far.arrived().len(), 0, "nothing arrives before the approval");
    let id: RunId = waiting["id"].as_str().expect("an id").parse().expect("a run id");
    let digest = waiting["waiting"]["turn_digest"].as_str().expect("a digest");

    let approved = home.run_with(&["approve", &id.to_string(), "--digest", digest, "--json"], &secrets).await;
    assert_eq!(approved.code(), 0, "{approved}");
    assert_eq!(approved.json()["state"], "completed");
    assert_eq!(approved.json()["output"], "It is noted.");

    let arrived = far.arrived();
    assert_eq!(arrived.len(), 1, "exactly once");
    assert_eq!(arrived[0].header("idempotency-key"), id.idempotency_key(&leasehold::run::CallId("t1c0".into())));
    assert_eq!(arrived[0].header("leasehold-run"), id.to_string());
    assert_eq!(arrived[0].header("leasehold-fencing-token"), "2");
    assert_eq!(arrived[0].header("authorization"), "Bearer ledger-secret");
    assert_eq!(arrived[0].text(), r#"{"text":"pier 2 is repaired"}"#);
    assert_eq!(home.row(id).await.state, State::Completed);

    for shown in [
        &ran,
        &approved,
        &home.run_with(&["config"], &secrets).await,
        &home.run_with(&["runs", "show", &id.to_string()], &secrets).await,
    ] {
        for (_, secret) in secrets {
            assert!(!shown.to_string().contains(secret), "a secret is shown: {shown}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_cached_and_thought_is_counted_and_shown() {
    let server = Recorded::play([Wire::OpenAi.stream(&Wire::OpenAi.frames("ok", &[], Some(Why::Done)))]).await;
    let far = FarSide::start().await.expect("a port");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    home.write("leasehold.toml", &configuration(server.url(), &far));
    let secrets = [("TEST_MODEL_KEY", "sk-model-secret"), ("TEST_LEDGER_TOKEN", "ledger-secret")];
    let ran = home.run_with(&["run", "--agent", "a", "--json", "think"], &secrets).await;
    assert_eq!(ran.code(), 0, "{ran}");
    let counted = json!({ "input_tokens": 30, "output_tokens": 9, "cached_tokens": 10, "reasoning_tokens": 4 });
    assert_eq!(ran.json()["usage"], counted, "{ran}");
    let id = ran.json()["id"].as_str().expect("an id").to_owned();
    let shown = home.run_with(&["runs", "show", &id], &secrets).await.to_string();
    assert!(shown.contains("30 + 9 tokens (10 cached, 4 reasoning)"), "{shown}");
}
