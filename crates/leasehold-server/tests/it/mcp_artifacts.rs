//! Images and files that MCP servers answer with, through the real command and its API: kept with the outcome, served as files that run
//! nothing, shown to nobody who may not see the run. And what a server declares of its results, held against them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{
    Sandbox,
    api::{Answer, Server, TOKEN},
    command,
    mcp::{Place, once, tool},
    said, text, until,
};
use base64::Engine as _;
use leasehold::run::{EntryBody, RunId, State};
use leasehold_testkit::{
    home::Home,
    mcp,
    postgres::{Cluster, Version},
};
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

async fn bytes(server: &Server, path: &str) -> (reqwest::header::HeaderMap, Vec<u8>) {
    let response = server.request(Method::GET, path).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200, "{path}");
    (response.headers().clone(), response.bytes().await.unwrap().to_vec())
}

/// The results of a run's calls, by tool.
async fn results(server: &Server, id: &str) -> Value {
    let events = server.get(&format!("/runs/{id}/events")).await.is(200);
    let outcomes = events["items"].as_array().unwrap().iter().filter(|event| event["kind"] == "tool_outcome");
    outcomes.map(|event| (text(event, "/payload/tool"), event["payload"]["result"].clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_everything_server_shows_is_kept_served_and_written_by_the_command() {
    let Some(program) = mcp::npm("mcp-server-everything").await else { return };
    let sandbox = Sandbox::new("").await;
    let tools = ["get-tiny-image", "get-resource-links", "get-structured-content"];
    let effects: Vec<String> = tools.iter().map(|tool| format!("{tool} = \"read_only\"")).collect();
    let section = format!("[[mcp]]\nname = \"every\"\ncommand = [\"{program}\"]\neffects = {{ {} }}\n", effects.join(", "));
    sandbox.write(
        "leasehold.toml",
        &format!(
            "[store]\nurl = \"sqlite:leasehold.db\"\n[[model]]\nname = \"m\"\nprovider = \"scripted\"\nscript = \"script.toml\"\n\
             [[agent]]\nname = \"a\"\nmodel = \"m\"\ntools = [\"every.*\"]\n{section}"
        ),
    );
    let script = r#"
[[reply]]
calls = [
    { tool = "every.get-tiny-image", arguments = {} },
    { tool = "every.get-resource-links", arguments = { count = 3 } },
    { tool = "every.get-structured-content", arguments = { location = "New York" } },
]
[[reply]]
text = "looked"
"#;
    sandbox.write("script.toml", script);
    let server = sandbox.serve().await;
    let run = server.post("/runs", r#"{"agent": "a", "input": "look", "mode": "wait"}"#).await.is(200);
    assert_eq!(run["state"], "completed", "{run}");
    let id = text(&run, "/id");
    let results = results(&server, &id).await;
    let image = results["every.get-tiny-image"].as_array().unwrap().iter().find(|part| part["type"] == "image").unwrap();
    let links = results["every.get-resource-links"].as_array().unwrap();
    let links: Vec<&Value> = links.iter().filter(|part| part["type"] == "resource_link").collect();
    assert!(
        links.len() == 3 && links.iter().all(|link| link["uri"].is_string() && link.get("artifact").is_none()),
        "{links:?}"
    );
    assert!(results["every.get-structured-content"]["temperature"].is_number(), "{results}");

    let listed = server.get(&format!("/runs/{id}/artifacts")).await.is(200);
    let artifact = &listed["items"][0];
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    for name in ["artifact", "mime_type", "bytes", "sha256", "type"] {
        assert_eq!(artifact[name], image[name], "{name}");
    }
    assert_eq!(artifact["call_id"], "t1c0");
    let handle = text(artifact, "/artifact");
    let path = format!("/runs/{id}/artifacts/{handle}");
    let (headers, content) = bytes(&server, &path).await;
    assert!(content.starts_with(PNG) && json!(content.len()) == artifact["bytes"]);
    assert_eq!(hex::encode(Sha256::digest(&content)), text(artifact, "/sha256"));
    for (name, value) in [
        ("content-type", "image/png"),
        ("content-disposition", &format!("attachment; filename=\"{handle}.png\"")),
        ("x-content-type-options", "nosniff"),
        ("content-security-policy", "default-src 'none'; frame-ancestors 'none'; sandbox"),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(headers[name], value, "{name}");
    }
    server.get(&format!("/runs/{id}/artifacts/{}", "0".repeat(32))).await.problem(404, "not_found");
    server.get(&format!("/runs/{id}/artifacts/..%2F{handle}")).await.problem(404, "not_found");

    // Somebody who sees other runs only.
    sandbox.user("vera", "runner", &["--team", "pier"]).await;
    let token = sandbox.token("vera", &[]).await;
    for path in [format!("/api/v1{path}"), format!("/api/v1/runs/{id}/artifacts")] {
        Answer::of(server.asked_by(Some(&token.secret), Method::GET, &path, None)).await.problem(404, "not_found");
        Answer::of(server.asked_by(None, Method::GET, &path, None)).await.problem(401, "unauthenticated");
    }

    // The command, on the store and as a client elsewhere.
    let out = sandbox.path("out").display().to_string();
    let listed = sandbox.leasehold(&["runs", "artifacts", &id, "--json"]).await.exits(0).json();
    assert_eq!(listed["items"][0], *artifact);
    for _ in 0..2 {
        let said = sandbox.leasehold(&["runs", "artifacts", &id, "--out", &out]).await.exits(0);
        assert!(said.out.contains(&handle) && said.out.contains("image/png"), "{said:?}");
    }
    assert_eq!(std::fs::read(sandbox.path("out").join(format!("{handle}.png"))).unwrap(), content);
    let elsewhere = tempfile::tempdir().unwrap();
    let mut client = command(elsewhere.path(), &["--server", &server.url, "runs", "artifacts", &id, "--out", "here"]);
    client.env("LEASEHOLD_TOKEN", TOKEN);
    said(client).await.exits(0);
    assert_eq!(std::fs::read(elsewhere.path().join("here").join(format!("{handle}.png"))).unwrap(), content);
    let mut stranger = command(elsewhere.path(), &["--server", &server.url, "runs", "artifacts", &id]);
    stranger.env("LEASEHOLD_TOKEN", &token.secret);
    assert!(said(stranger).await.exits(1).err.contains("there is no run"));
}

async fn own(home: Home, call: (&str, &str)) -> Option<Place> {
    let place = Place::at(home).await?;
    let command = Value::from(mcp::own().await?);
    place.configure(&format!("command = {command}\nrequires_approval = false"), r#"["notes.*"]"#);
    place.script(&crate::support::one_call(call.0, call.1));
    place.ends(&["mcp", "import", "notes"], 0).await;
    Some(place)
}

fn home() -> Home {
    Home::new(env!("CARGO_BIN_EXE_leasehold"))
}

async fn on_postgres() -> Home {
    let cluster = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.unwrap();
    Home::on_database(env!("CARGO_BIN_EXE_leasehold"), cluster.database().await)
}

#[tokio::test]
async fn five_megabytes_are_kept_whole_and_ten_are_described() {
    for (home, bytes, is_kept) in
        [(home(), 5_000_000, true), (on_postgres().await, 5_000_000, true), (self::home(), 10_000_000, false)]
    {
        let Some(place) = own(home, ("notes.picture", &format!("{{ bytes = {bytes} }}"))).await else { return };
        let run = place.ends(&["run", "--json", "look"], 0).await.json();
        let id = text(&run, "/id");
        let listed = place.ends(&["runs", "artifacts", &id, "--json"], 0).await.json();
        let (_, result) = place.outcomes(id.parse().unwrap()).await[0].clone();
        let result: Value = serde_json::from_str(&result).unwrap();
        assert_eq!((&result["type"], &result["bytes"]), (&json!("image"), &json!(bytes)));
        assert_eq!(listed["items"].as_array().unwrap().len(), usize::from(is_kept), "{listed}");
        if is_kept {
            let out = place.home.path().join("out").display().to_string();
            place.ends(&["runs", "artifacts", &id, "--out", &out], 0).await;
            let content = std::fs::read(format!("{out}/{}.png", text(&result, "/artifact"))).unwrap();
            assert_eq!((content.len(), hex::encode(Sha256::digest(&content))), (bytes, text(&result, "/sha256")));
        } else {
            assert_eq!(result["note"], "not kept: an artifact has 8388608 bytes at most");
        }
    }
}

async fn there(place: &Place, id: RunId) -> (usize, usize) {
    // The store is read twice, with a process that may write in between: the entry first.
    let entries = place.home.journal(id).await;
    let outcomes = entries.iter().filter(|entry| matches!(entry.body, EntryBody::ToolOutcome(_))).count();
    (outcomes, place.home.store().await.artifacts(id).await.unwrap().len())
}

/// A worker is killed with SIGKILL before and after its outcome is written, and while five megabytes are on their way to the store.
async fn killed_around_the_outcome(home: Home) {
    let Some(place) = Place::at(home).await else { return };
    let keys = "requires_approval = false\neffects = { append = \"idempotent_write\" }";
    place.configure(&format!("{}\n{keys}", place.by_pipes()), r#"["notes.*"]"#);
    place.script(&once("notes.append"));
    place.ends(&["mcp", "import", "notes"], 0).await;
    let image = base64::engine::general_purpose::STANDARD.encode([PNG, &[7; 5_000_000]].concat());
    place.answers(&json!({ "content": [{ "type": "image", "data": image, "mimeType": "image/png" }] }));
    let points = [Some("after_return"), Some("after_record")].into_iter().chain([None; 8]);
    let mut seen = Vec::new();
    for (n, point) in points.enumerate() {
        let before = place.calls().len();
        let id = place.home.enqueue().await;
        let mut worker = place.home.start(&["worker"], point);
        match point {
            Some(_) => worker.stopped().await,
            None => {
                until(|| (place.calls().len() > before).then_some(())).await;
                // Somewhere in what follows: the answer is read and written.
                std::thread::sleep(std::time::Duration::from_millis(60 * u64::try_from(n).unwrap()));
            }
        }
        worker.kill();
        let (outcomes, artifacts) = there(&place, id).await;
        assert_eq!(outcomes, artifacts, "{point:?}, {n}: an entry and its artifact are there together");
        match point {
            Some("after_return") => assert_eq!(outcomes, 0),
            Some(_) => assert_eq!(outcomes, 1),
            None => {}
        }
        seen.push(outcomes);
        let _worker = place.home.start(&["worker"], None);
        place.home.until(id, "completed", |row| row.state == State::Completed).await;
        assert_eq!(there(&place, id).await, (1, 1), "{point:?}, {n}");
    }
    eprintln!("outcomes there at each death: {seen:?}");
}

#[tokio::test]
async fn a_worker_that_is_killed_leaves_entry_and_artifact_or_neither_on_sqlite() {
    killed_around_the_outcome(home()).await;
}

#[tokio::test]
async fn a_worker_that_is_killed_leaves_entry_and_artifact_or_neither_on_postgresql() {
    killed_around_the_outcome(on_postgres().await).await;
}

#[tokio::test]
async fn a_result_that_is_not_what_the_server_declares_is_an_error_of_a_read_and_marked_on_a_write() {
    for effect in ["read_only", "idempotent_write"] {
        let Some(place) = Place::new().await else { return };
        let mut append = tool("append");
        append["outputSchema"] =
            json!({ "type": "object", "properties": { "size": { "type": "number" } }, "required": ["size"] });
        place.lists(&[append]);
        let keys = format!("{}\nrequires_approval = false\neffects = {{ append = \"{effect}\" }}", place.by_pipes());
        place.configure(&keys, r#"["notes.*"]"#);
        place.script(&once("notes.append"));
        for (structured, fits) in [(json!({ "size": 7 }), true), (json!({ "size": "seven" }), false), (Value::Null, false)] {
            let mut answer = json!({ "content": [{ "type": "text", "text": "noted" }] });
            if structured.is_object() {
                answer["structuredContent"] = structured.clone();
            }
            place.answers(&answer);
            let run = place.ends(&["run", "--json", "note a line"], 0).await.json();
            let outcome =
                place.home.journal(text(&run, "/id").parse().unwrap()).await.into_iter().find_map(|entry| match entry.body {
                    EntryBody::ToolOutcome(outcome) => Some(outcome),
                    _ => None,
                });
            let outcome = outcome.unwrap();
            let here = format!("{effect}: {outcome:?}");
            assert_eq!(outcome.outcome.to_string(), "done", "{here}");
            let says = |value: &Value| value.as_str().is_some_and(|it| it.contains("does not fit the output schema"));
            if fits {
                assert_eq!((outcome.is_error, &outcome.result), (false, &structured), "{here}");
            } else if effect == "read_only" {
                assert!(outcome.is_error && says(&outcome.result), "{here}");
                assert_eq!(outcome.result.to_string().contains("`/size`"), structured.is_object(), "{here}");
            } else {
                let kept = if structured.is_object() { structured } else { json!("noted") };
                assert_eq!((outcome.is_error, &outcome.result["result"]), (false, &kept), "{here}");
                assert!(says(&outcome.result["note"]), "{here}");
            }
        }
    }
}
