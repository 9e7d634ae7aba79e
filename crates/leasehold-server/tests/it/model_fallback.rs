//! Fallbacks and limits of a model from the configuration to what people see: who answered, what was discarded, what is missing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{Sandbox, api::Events, text};
use leasehold_testkit::recorded::{Recorded, Wire};
use serde_json::json;

/// A main model that breaks off in the middle of its stream, and a spare that plays a script.
async fn sandbox(keys: &str) -> (Sandbox, Recorded) {
    let sandbox = Sandbox::with_script("", "[[reply]]\ntext = \"The spare answers.\"\n").await;
    let main = Recorded::play([Wire::OpenAi.broken_stream(&Wire::OpenAi.frames("Half an answer", &[], None))]).await;
    let configuration = format!(
        r#"
[store]
url = "sqlite:runs.db"
[[model]]
name = "main"
provider = "openai"
model = "gpt-test"
base_url = "{}/v1/"
fallback = ["spare"]
max_concurrency = 3
requests_per_minute = 600
{keys}
[[model]]
name = "spare"
provider = "scripted"
script = "script.toml"
max_concurrency = 1
[[agent]]
name = "clerk"
model = "main"
"#,
        main.url()
    );
    sandbox.write("leasehold.toml", &configuration);
    (sandbox, main)
}

const WHY: &str = "main (openai/gpt-test) failed (truncated); spare (scripted) is asked";

#[tokio::test]
async fn who_watches_a_run_sees_what_was_discarded_and_who_answered() {
    let (sandbox, main) = sandbox("").await;
    let ran = sandbox.leasehold(&["run", "--agent", "clerk", "go"]).await.exits(0);
    assert!(ran.err.contains(WHY), "{}", ran.err);
    assert_eq!(ran.out.trim(), "The spare answers.");
    assert_eq!(main.requests().len(), 1);

    let server = sandbox.serve().await;
    let start = server.posting("/runs", json!({ "agent": "clerk", "input": "go" })).header("accept", "text/event-stream");
    let mut events = Events::of(start).await;
    let seen = events.until("model_reply").await;
    let (reply, before) = seen.split_last().unwrap();
    assert_eq!(text(&reply.data, "/payload/model"), "spare (scripted)");
    assert_eq!(text(&reply.data, "/payload/text"), "The spare answers.");
    let pieces: Vec<_> =
        before.iter().filter(|event| event.id.is_none()).map(|event| (event.name.as_str(), &event.data)).collect();
    let said = [
        ("text", json!({ "text": "Half an" })),
        ("text", json!({ "text": " answer" })),
        ("discarded", json!({ "why": WHY })),
        ("text", json!({ "text": "The spare answers." })),
    ];
    assert_eq!(pieces, said.iter().map(|(name, data)| (*name, data)).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_configuration_shows_them_and_a_fallback_without_its_key_is_told_before_it_is_needed() {
    let (sandbox, _main) = sandbox("").await;
    let shown = sandbox.leasehold(&["config"]).await.exits(0).out;
    for line in ["fallback = [\"spare\"]", "max_concurrency = 3", "requests_per_minute = 600", "max_concurrency = 1"] {
        assert!(shown.contains(line), "{shown}");
    }
    let (lacking, _main) =
        self::sandbox("[[model]]\nname = \"far\"\nprovider = \"groq\"\nmodel = \"x\"\napi_key_env = \"NOT_SET_HERE\"\n").await;
    let configuration = std::fs::read_to_string(lacking.path("leasehold.toml")).unwrap();
    lacking.write("leasehold.toml", &configuration.replace("fallback = [\"spare\"]", "fallback = [\"spare\", \"far\"]"));
    let agents = lacking.leasehold(&["agents"]).await.exits(0).out;
    assert!(agents.contains("cannot run here") && agents.contains("NOT_SET_HERE"), "{agents}");
}
