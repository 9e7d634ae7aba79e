//! The description of the API is the one in `docs/openapi.json`, and a stranger's requests made from it meet no answer that it does
//! not describe and nothing that breaks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod support;

use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Output,
};
use support::{
    Sandbox,
    api::{Answer, TOKEN},
};
use tokio::process::Command;

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
    program
}

const MODULE: &str = "schemathesis.cli";
const SCHEMATHESIS: &str = "schemathesis>=4,<5";

#[tokio::test]
async fn a_strangers_requests_meet_what_is_described() {
    let Some(python) = python().await else {
        eprintln!("left out: there is no Python with venv, which brings schemathesis");
        return;
    };
    let program = schemathesis(python).await;
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    // Something to find: the run that a path means.
    let (id, _) = server.suspended().await;
    // What a request means is not in the schema: an agent that is there, a conversation that ends with a task, a call that waits.
    let meant = "checks.positive_data_acceptance.enabled = false\n";
    let operations = ["POST /api/v1/runs", "POST /api/v1/runs/{id}/decision", "POST /api/v1/runs/{id}/resolve"];
    let operations = operations.map(|name| format!("[[operations]]\ninclude-name = \"{name}\"\n{meant}")).concat();
    sandbox.write("schemathesis.toml", &format!("[parameters]\nid = \"{id}\"\n{operations}"));
    let output = Command::new(program)
        .args(["-m", MODULE, "run", &format!("{}/openapi.json", server.url), "--url", &server.url])
        .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(["--max-examples", "20", "--seed", "4711", "--generation-deterministic", "--request-timeout", "20"])
        .args(["--no-color", "--suppress-health-check", "all", "--warnings", "off"])
        .current_dir(sandbox.dir.path())
        .output()
        .await
        .unwrap();
    did("schemathesis", &output);
}
