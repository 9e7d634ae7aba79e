//! The description of the API is the one in `docs/openapi.json`, and a stranger's requests made from it meet no answer that it does
//! not describe and nothing that breaks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    Sandbox,
    api::{Answer, Server, TOKEN},
    text,
};
use leasehold_testkit::far_side::Then;
use serde_json::{Value, json};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Output,
};
use tokio::{process::Command, task::spawn_blocking};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[tokio::test]
async fn the_description_of_the_api_is_current() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let served = Answer::of(server.client.get(format!("{}/openapi.json", server.url))).await.is(200);
    assert_eq!(served["openapi"], "3.1.0");
    let text = serde_json::to_string_pretty(&served).unwrap() + "\n";
    let path = root().join("docs/openapi.json");
    if std::env::var_os("LEASEHOLD_WRITE_OPENAPI").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap_or_default()).unwrap_or_default();
    assert_eq!(
        served, kept,
        "docs/openapi.json is not current: run this test with LEASEHOLD_WRITE_OPENAPI=1 and look at the change"
    );
}

/// The first of these that is there.
async fn python() -> Option<&'static str> {
    for name in ["python3", "python"] {
        let found = Command::new(name).args(["-m", "venv", "--help"]).output().await;
        if found.is_ok_and(|output| output.status.success()) {
            return Some(name);
        }
    }
    None
}

#[track_caller]
fn did(what: &str, output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{what}:\n{}\n{}", text(&output.stdout), text(&output.stderr));
}

/// schemathesis in an environment of its own under `target/`, installed once.
async fn schemathesis(python: &str) -> PathBuf {
    let place = root().join("target/schemathesis");
    // One process of this checkout at a time.
    let lock = File::create(root().join("target/schemathesis.lock")).unwrap();
    let lock = spawn_blocking(move || lock.lock().map(|()| lock)).await.unwrap().unwrap();
    // By its Python, not by the script that names the directory it was made in.
    let program = place.join("bin/python");
    let runs = Command::new(&program).args(["-m", MODULE, "--version"]).output().await.is_ok_and(|ran| ran.status.success());
    if !runs {
        // What is left of one that was broken off, too.
        let venv = Command::new(python).args(["-m", "venv", "--clear"]).arg(&place).output().await.unwrap();
        did("a virtual environment", &venv);
        let pip = Command::new(&program).args(["-m", "pip", "install", "--quiet", SCHEMATHESIS]).output().await.unwrap();
        did("pip install schemathesis", &pip);
    }
    drop(lock);
    program
}

const MODULE: &str = "schemathesis.cli";
const SCHEMATHESIS: &str = "schemathesis>=4,<5";

/// The operations on a run, and whether the run is one in doubt; the others are of one that waits.
const ON_A_RUN: [(&str, bool); 8] = [
    ("GET /api/v1/runs/{id}", false),
    ("GET /api/v1/runs/{id}/events", false),
    ("POST /api/v1/runs/{id}/cancel", false),
    ("POST /api/v1/runs/{id}/decision", false),
    ("POST /api/v1/runs/{id}/input", false),
    ("POST /api/v1/runs/{id}/resolve", true),
    ("POST /api/v1/runs/{id}/redrive", true),
    ("POST /api/v1/runs/{id}/discard", true),
];

/// A run of the team that waits, or whose write is in doubt.
async fn run(sandbox: &Sandbox, server: &Server, in_doubt: bool) -> String {
    let body = json!({ "agent": "clerk", "input": "note hello", "mode": "wait", "team": "harbour" });
    let run = server.post("/runs", body).await.is(200);
    let id = text(&run, "/id");
    if in_doubt {
        sandbox.far.then([Then::HangUp]);
        let decision = json!({ "turn_digest": run["waiting"]["turn_digest"], "decision": "approve" });
        let dead = server.post(&format!("/runs/{id}/decision?wait=true"), decision).await.is(200);
        assert_eq!(dead["reason"], "write_in_doubt", "{dead}");
    }
    id
}

/// A server, and a run for each operation on one, for whoever has that token: so many examples of each operation.
async fn meet_what_is_described(sandbox: &Sandbox, token: &str, examples: u8) {
    let Some(python) = python().await else {
        eprintln!("left out: there is no Python with venv, which brings schemathesis");
        return;
    };
    let program = schemathesis(python).await;
    let server = sandbox.serve().await;
    // What a request means is not in the schema: an agent that is there, a conversation that ends with a task, a call that waits.
    let meant = "checks.positive_data_acceptance.enabled = false\n";
    let mut config = format!("[[operations]]\ninclude-name = \"POST /api/v1/runs\"\n{meant}");
    // Something to find: the run that a path means. One order leaves nothing of it for the next.
    for (name, in_doubt) in ON_A_RUN {
        let id = run(sandbox, &server, in_doubt).await;
        let meant = if ["decision", "resolve"].iter().any(|order| name.ends_with(order)) { meant } else { "" };
        config += &format!("[[operations]]\ninclude-name = \"{name}\"\nparameters = {{ id = \"{id}\" }}\n{meant}");
    }
    sandbox.write("schemathesis.toml", &config);
    let output = Command::new(program)
        .args(["-m", MODULE, "run", &format!("{}/openapi.json", server.url), "--url", &server.url])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--max-examples", &examples.to_string(), "--seed", "4711", "--generation-deterministic"])
        .args(["--request-timeout", "20", "--no-color", "--suppress-health-check", "all", "--warnings", "off"])
        .current_dir(sandbox.dir.path())
        .output()
        .await
        .unwrap();
    did("schemathesis", &output);
    assert!(!server.said().contains("panicked"), "{}", server.said());
}

#[tokio::test]
async fn a_strangers_requests_meet_what_is_described() {
    meet_what_is_described(&Sandbox::new("").await, TOKEN, 20).await;
}

/// The same as somebody who may less: of the team of the run, or a program of that person.
async fn as_a(role: &str, more: &[&str]) {
    let sandbox = Sandbox::new("").await;
    sandbox.user("somebody", role, &["--team", "harbour", "--tool", "ledger.*"]).await;
    let token = sandbox.token("somebody", more).await;
    meet_what_is_described(&sandbox, &token.secret, 5).await;
}

#[tokio::test]
async fn a_viewers_requests_meet_what_is_described() {
    as_a("viewer", &[]).await;
}

#[tokio::test]
async fn a_runners_requests_meet_what_is_described() {
    as_a("runner", &[]).await;
}

#[tokio::test]
async fn an_approvers_requests_meet_what_is_described() {
    as_a("approver", &[]).await;
}

#[tokio::test]
async fn an_operators_requests_meet_what_is_described() {
    as_a("operator", &[]).await;
}

#[tokio::test]
async fn a_machines_requests_meet_what_is_described() {
    as_a("operator", &["nightly", "--machine", "--role", "operator"]).await;
}
