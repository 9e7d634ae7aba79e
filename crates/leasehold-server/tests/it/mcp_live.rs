//! What a server says while its call runs, as somebody sees it who watches: how far it is, and its log. None of it is recorded, none of it
//! slows the run, and whoever gives a call up says so to the server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{
    Sandbox,
    api::Sent,
    mcp::{Place, once},
    one_call, text, until,
};
use leasehold_testkit::mcp::{self, HttpServer};
use serde_json::{Value, json};
use std::time::Instant;

/// A server of the API whose agent `a` has these tools of a server `every`.
async fn sandbox(command: &Value, keys: &str, script: &str) -> Sandbox {
    let sandbox = Sandbox::new("").await;
    sandbox.write(
        "leasehold.toml",
        &format!(
            "[store]\nurl = \"sqlite:leasehold.db\"\n[[model]]\nname = \"m\"\nprovider = \"scripted\"\nscript = \"script.toml\"\n\
             [[agent]]\nname = \"a\"\nmodel = \"m\"\ntools = [\"every.*\"]\n[[mcp]]\nname = \"every\"\ncommand = {command}\n{keys}\n"
        ),
    );
    sandbox.write("script.toml", script);
    sandbox
}

/// The events of a run from its start to its end, and its journal.
async fn watched(sandbox: &Sandbox) -> (Vec<Sent>, Vec<Value>) {
    let server = sandbox.serve().await;
    let start = server.posting("/runs", r#"{"agent": "a", "input": "look"}"#).header("accept", "text/event-stream");
    let events = crate::support::api::Events::of(start).await;
    let id = events.response.headers()["leasehold-run-id"].to_str().unwrap().to_owned();
    let seen = events.rest().await;
    let journal = server.get(&format!("/runs/{id}/events?limit=1000")).await.is(200)["items"].as_array().unwrap().clone();
    assert_eq!(journal.last().unwrap()["kind"], "settled", "{journal:?}");
    (seen, journal)
}

fn of<'a>(seen: &'a [Sent], name: &'a str) -> Vec<&'a Value> {
    seen.iter().filter(|event| event.name == name && event.id.is_none()).map(|event| &event.data).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_the_everything_server_is_streamed_and_not_recorded() {
    let Some(program) = mcp::npm("mcp-server-everything").await else { return };
    let script = one_call("every.trigger-long-running-operation", "{ duration = 2, steps = 4 }");
    let keys = "effects = { trigger-long-running-operation = \"read_only\" }";
    let (seen, journal) = watched(&sandbox(&json!([program]), keys, &script).await).await;
    let progress = of(&seen, "progress");
    assert!(progress.len() >= 3, "{seen:?}");
    for said in &progress {
        assert_eq!((&said["call_id"], &said["total"]), (&json!("t1c0"), &json!(4.0)));
    }
    assert!(progress.iter().map(|said| said["value"].as_f64().unwrap()).is_sorted_by(|a, b| a < b), "{progress:?}");
    // The call was under way.
    let at = |name: &str| seen.iter().position(|event| event.name == name).unwrap();
    assert!(at("model_reply") < at("progress") && at("progress") < at("tool_outcome"), "{seen:?}");
    assert!(!journal.iter().any(|entry| entry.to_string().contains("progress")), "{journal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_floods_is_shown_at_a_bounded_rate_without_secrets_and_slows_nothing() {
    let Some(command) = mcp::own().await else { return };
    let keys = "env = { SECRET = \"sk-canary-0123456789\" }\neffects = { flood = \"read_only\", shout = \"read_only\" }\ntimeout = \"60s\"";
    for (tool, arguments, name) in [
        ("every.flood", "{ count = 10000 }", "progress"),
        ("every.shout", "{ bytes = 10000000, times = 3, name = \"SECRET\" }", "log"),
        ("every.shout", "{ bytes = 100, times = 10000, name = \"SECRET\" }", "log"),
    ] {
        let begun = Instant::now();
        let sandbox = sandbox(&Value::from(command.clone()), keys, &one_call(tool, arguments)).await;
        let (seen, journal) = watched(&sandbox).await;
        let said = of(&seen, name);
        let took = begun.elapsed();
        assert!(
            !said.is_empty() && said.len() < 30 + 10 * usize::try_from(took.as_secs()).unwrap(),
            "{}: {took:?}",
            said.len()
        );
        let all = said.iter().map(ToString::to_string).collect::<String>() + &format!("{journal:?}");
        assert!(!all.contains("sk-canary"), "a secret is shown");
        assert!(said.iter().all(|said| said.to_string().len() < 1_000), "{name} is cut");
        let outcome = journal.iter().find(|entry| entry["kind"] == "tool_outcome").unwrap();
        assert_eq!(outcome["payload"]["is_error"], false, "{outcome}");
        assert!(took.as_secs() < 50, "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_at_a_terminal_sees_how_far_a_call_is() {
    let Some(program) = mcp::npm("mcp-server-everything").await else { return };
    let script = one_call("every.trigger-long-running-operation", "{ duration = 2, steps = 4 }");
    let keys = "effects = { trigger-long-running-operation = \"read_only\" }";
    let sandbox = sandbox(&json!([program]), keys, &script).await;
    let terminal = sandbox.on_terminal(&["run", "look"]);
    until(|| terminal.seen().contains("t1c0: 2 of 4").then_some(())).await;
}

/// Over pipes and over HTTP; by a cancel, and by its timeout.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_told_that_a_read_was_given_up() {
    for over_http in [false, true] {
        for timeout in ["60s", "2s"] {
            let Some(place) = Place::new().await else { return };
            let here = format!("http: {over_http}, timeout: {timeout}");
            let server;
            let at = if over_http {
                server = HttpServer::start(place.command()).await;
                format!("url = \"{}\"", server.url())
            } else {
                place.by_pipes()
            };
            place
                .configure(&format!("{at}\neffects = {{ append = \"read_only\" }}\ntimeout = \"{timeout}\""), r#"["notes.*"]"#);
            place.script(&once("notes.append"));
            place.ends(&["mcp", "import", "notes"], 0).await;
            place.hold();
            let id = place.home.enqueue().await;
            let _worker = place.home.start(&["worker"], None);
            until(|| (place.calls().len() == 1).then_some(())).await;
            assert_eq!(place.told("notifications/cancelled"), Vec::<Value>::new(), "{here}");
            if timeout == "60s" {
                place.ends(&["runs", "cancel", &id.to_string()], 0).await;
            }
            let told = until(|| place.told("notifications/cancelled").pop()).await;
            assert!(told["params"]["requestId"].is_number(), "{here}: {told}");
            assert!(text(&told, "/params/reason").contains("gave it up"), "{here}: {told}");
            place.release();
            place.home.until(id, "settled", |row| row.state.is_settled()).await;
            assert_eq!(place.calls().len(), 1, "{here}: it is not called again");
        }
    }
}

/// One that was answered, or of which nothing was sent, is not taken back.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_told_nothing_of_a_call_that_it_has_answered() {
    let Some(place) = Place::new().await else { return };
    place.configure(&format!("{}\neffects = {{ append = \"read_only\" }}", place.by_pipes()), r#"["notes.*"]"#);
    place.script(&once("notes.append"));
    place.ends(&["run", "note a line"], 0).await;
    assert_eq!(place.calls().len(), 1);
    assert_eq!(place.told("notifications/initialized").len(), 1, "what it is told is written down");
    assert_eq!(place.told("notifications/cancelled"), Vec::<Value>::new());
}
