//! The real binary in a directory of its own, with a far side that records what arrives.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use leasehold_testkit::far_side::FarSide;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::process::{Child, Command};

pub(crate) mod api;
pub(crate) mod crew;
pub(crate) mod mcp;
pub(crate) mod people;
pub(crate) mod pty;

/// How long anything may take before the test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a command said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) exit: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// The last line as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let line = self.out.lines().last().unwrap_or_default();
        serde_json::from_str(line).unwrap_or_else(|e| panic!("not JSON ({e}): {self:?}"))
    }
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.exit, Some(code), "out:\n{}\nerr:\n{}", self.out, self.err);
        self
    }
}

/// The place.
pub(crate) struct Sandbox {
    pub(crate) dir: TempDir,
    pub(crate) far: FarSide,
}

/// A script that makes one call and then ends.
pub(crate) fn one_call(tool: &str, arguments: &str) -> String {
    format!(
        "[[reply]]\ntext = \"I do it.\"\ncalls = [{{ tool = \"{tool}\", arguments = {arguments} }}]\n[[reply]]\ntext = \"It is done.\"\n"
    )
}

impl Sandbox {
    /// With a clerk whose script appends `hello` to the ledger; the tool's declaration is extended by `tool`.
    pub(crate) async fn new(tool: &str) -> Self {
        Self::with_script(tool, &one_call("ledger.append", "{ text = \"hello\" }")).await
    }

    /// With that script.
    pub(crate) async fn with_script(tool: &str, script: &str) -> Self {
        let far = FarSide::start().await.unwrap();
        let sandbox = Self { dir: tempfile::tempdir().unwrap(), far };
        let effect = if tool.contains("effect =") { "" } else { "effect = \"non_idempotent_write\"" };
        let url = sandbox.far.url("/append");
        sandbox.write("script.toml", script);
        sandbox.write(
            "leasehold.toml",
            &format!(
                r#"
[store]
url = "sqlite:runs.db"
[lease]
ttl = "1s"
sweep_interval = "200ms"
backoff = {{ initial = "0s", max = "1s" }}
[[model]]
name = "default"
provider = "scripted"
script = "script.toml"
[[agent]]
name = "clerk"
tools = ["ledger.*"]
[[tool.http]]
name = "ledger.append"
description = "Append one line"
method = "POST"
url = "{url}"
timeout = "2s"
parameters = {{ type = "object", properties = {{ text = {{ type = "string" }} }}, required = ["text"], additionalProperties = false }}
{effect}
{tool}
"#
            ),
        );
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// The binary, away from the user's own surroundings.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        command(self.dir.path(), arguments)
    }
    /// Runs it with nothing on standard input.
    pub(crate) async fn leasehold(&self, arguments: &[&str]) -> Said {
        said(self.command(arguments)).await
    }
    /// Starts a run that suspends: its id and the digest of its card.
    pub(crate) async fn suspended(&self) -> (String, String) {
        let run = self.leasehold(&["run", "--json", "note hello"]).await.exits(3).json();
        (text(&run, "/id"), text(&run, "/waiting/turn_digest"))
    }
    pub(crate) async fn show(&self, id: &str) -> Value {
        self.leasehold(&["runs", "show", id, "--json"]).await.exits(0).json()
    }
    /// Starts a worker that stops at a point, and kills it there.
    pub(crate) async fn kill_worker_at(&self, point: &str, arguments: &[&str]) {
        let child = self.parked(point, arguments).await;
        kill(child).await;
    }
    /// A process that has reached a point and stands there.
    pub(crate) async fn parked(&self, point: &str, arguments: &[&str]) -> Child {
        let mark = self.path(&format!("mark-{point}"));
        let mut command = self.command(arguments);
        command.env("LEASEHOLD_STOP_AT", format!("{point}:{}", mark.display()));
        let mut child = command.spawn().unwrap();
        until(|| {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the process ended before {point}: {status}");
            }
            mark.exists().then_some(())
        })
        .await;
        child
    }
    /// Looks until the run is in that state.
    pub(crate) async fn until_state(&self, id: &str, state: &str) -> Value {
        let since = Instant::now();
        loop {
            let run = self.show(id).await;
            if run["state"] == state {
                return run;
            }
            assert!(since.elapsed() < PATIENCE, "{run}");
        }
    }
    /// The events of a run that has not settled.
    pub(crate) async fn events_so_far(&self, id: &str) -> Vec<Value> {
        let store = rusqlite::Connection::open(self.path("runs.db")).unwrap();
        let mut all = store.prepare("SELECT kind, payload FROM journal WHERE run_id = ? ORDER BY sequence").unwrap();
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?));
        let event = |(kind, payload): (String, Vec<u8>)| {
            let payload: Value = serde_json::from_slice(&payload[1..]).unwrap();
            serde_json::json!({ "kind": kind, "payload": payload })
        };
        all.query_map([id], read).unwrap().map(|row| event(row.unwrap())).collect()
    }
    pub(crate) async fn events(&self, id: &str) -> Vec<Value> {
        let said = self.leasehold(&["runs", "follow", id, "--json"]).await;
        said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The binary in a directory, away from the user's own surroundings.
pub(crate) fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.args(arguments).current_dir(dir).env_clear().env("HOME", dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

pub(crate) async fn said(mut command: Command) -> Said {
    let output = tokio::time::timeout(PATIENCE, command.output()).await.expect("the command ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is text");
    Said { exit: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) async fn kill(mut child: Child) {
    child.kill().await.unwrap();
}

/// Looks until there is something.
pub(crate) async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(since.elapsed() < PATIENCE, "it did not come to pass");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// What a run waits for, without what becomes of other runs meanwhile.
pub(crate) fn own(mut run: Value) -> Value {
    for call in run.pointer_mut("/waiting/calls").and_then(Value::as_array_mut).into_iter().flatten() {
        call.as_object_mut().unwrap().remove("similar");
    }
    run
}

/// A text in an answer; empty where there is none.
pub(crate) fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

pub(crate) fn kinds(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| text(event, "/kind")).collect()
}
