//! A worker runs a call of an MCP server that asks in the middle of it, and a person answers with the real command: the write happens
//! once, with what was answered.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use leasehold::run::{CallId, EntryBody, RunId, State};
use leasehold_testkit::{
    home::Home,
    mcp::{self, HttpServer},
};
use serde_json::{Value, json};
use std::path::PathBuf;

struct Place {
    home: Home,
    ledger: PathBuf,
}

impl Place {
    /// `keys`: of the server.
    fn new(keys: &str) -> Self {
        let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
        let ledger = home.path().join("ledger");
        home.write(
            "leasehold.toml",
            &format!(
                r#"
[store]
url = "sqlite:leasehold.db"
[lease]
ttl = "2s"
sweep_interval = "200ms"
[[model]]
name = "m"
provider = "scripted"
script = "script.toml"
[[agent]]
name = "a"
model = "m"
tools = ["asking.*"]
[[mcp]]
name = "asking"
requires_approval = false
questions = "10m"
{keys}
"#
            ),
        );
        let path = ledger.display();
        home.write(
            "script.toml",
            &format!(
                "[[reply]]\ncalls = [{{ tool = \"asking.send\", arguments = {{ path = \"{path}\", text = \"pier 2\" }} }}]\n[[reply]]\ntext = \"done\"\n"
            ),
        );
        Self { home, ledger }
    }

    /// The digest of what the run waits for.
    async fn asked(&self, id: RunId) -> String {
        let row = self.home.until(id, "waiting", |row| row.state == State::WaitingForInput).await;
        assert_eq!((row.lease, row.fence), (None, None), "it waits without a process");
        row.turn.unwrap().digest.unwrap()
    }

    /// `leasehold input`, which goes on with the run in its own process, or leaves it to the worker.
    async fn answer(&self, id: RunId, digest: &str, answer: &[&str], exit: i32) -> String {
        let id = id.to_string();
        let ran = self.home.run(&[&["input", &id, "--digest", digest], answer].concat()).await;
        assert_eq!(ran.code(), exit, "{ran}");
        ran.stderr()
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.ledger.with_extension(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn result(&self, id: RunId) -> Value {
        let entries = self.home.journal(id).await;
        let outcome = entries.into_iter().find_map(|entry| match entry.body {
            EntryBody::ToolOutcome(outcome) if outcome.call_id == CallId::of(1, 0) => Some(outcome.result),
            _ => None,
        });
        outcome.unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_asks_what_a_server_asks_and_the_write_happens_once_with_what_the_person_answered() {
    let Some(command) = mcp::asking().await else { return };
    let far = HttpServer::start(command.clone()).await;
    for keys in [format!("command = {}", Value::from(command)), format!("url = \"{}\"", far.url())] {
        let place = Place::new(&keys);
        let config = place.home.run(&["config"]).await;
        assert!(config.stdout().contains("questions = \"10m\""), "{config}");
        // What it lists is known from now on.
        let probed = place.home.run(&["mcp", "probe", "asking"]).await;
        assert_eq!(probed.code(), 0, "{probed}");
        let _worker = place.home.start(&["worker"], None);
        let id = place.home.enqueue().await;
        let digest = place.asked(id).await;
        let shown = place.home.run(&["runs", "show", &id.to_string()]).await.stdout();
        assert!(shown.contains("asking asks: Which size?"), "{shown}");
        assert!(shown.contains("size"), "{shown}");
        let wrong = place.answer(id, &digest, &["--values", r#"{"size": 10}"#], 2).await;
        assert!(wrong.contains("/size"), "{wrong}");
        assert_eq!((place.lines("entered").len(), place.lines("").len()), (1, 0));
        place.answer(id, &digest, &["--values", r#"{"size": 7}"#], 0).await;
        place.home.until(id, "completed", |row| row.state == State::Completed).await;
        assert_eq!(place.lines(""), ["pier 2 7"]);
        assert_eq!(place.lines("entered").len(), 2);
        let followed = place.home.run(&["runs", "follow", &id.to_string(), "--json"]).await.stdout();
        let asked = followed.lines().find(|line| line.contains("\"input_required\"")).unwrap();
        assert!(asked.contains("Which size?") && !asked.contains("\"state\""), "only the server sees its state again: {asked}");

        let id = place.home.enqueue().await;
        let digest = place.asked(id).await;
        place.answer(id, &digest, &["--decline", "--no-wait"], 0).await;
        place.home.until(id, "completed", |row| row.state == State::Completed).await;
        assert_eq!(place.result(id).await, json!({ "result": "not sent: decline" }));
        assert_eq!(place.lines("").len(), 1);
    }
}
