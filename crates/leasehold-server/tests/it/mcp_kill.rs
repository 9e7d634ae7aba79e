//! Workers that write through an MCP server and are killed with SIGKILL at every point around the call. What arrived is counted by the
//! server: a write that is not idempotent arrives at most once, and where nobody knows whether it did, it is in doubt.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{
    mcp::{Place, once},
    until,
};
use leasehold::run::{Outcome, Reason, RunId, Snapshot, State, Story};
use leasehold_testkit::{home::Running, mcp, mcp::HttpServer};
use serde_json::json;

const POINTS: [&str; 5] = ["before_stamp", "after_stamp", "in the call", "after_return", "after_record"];

/// How the server is reached, and who releases the write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    PipesAndCard,
    HttpAtOnce,
}

struct Scene {
    place: Place,
    /// Ends with the scene.
    _server: Option<HttpServer>,
    id: RunId,
}

async fn scene(way: Way, effect: &str) -> Option<Scene> {
    let place = Place::new().await?;
    let effects = format!("effects = {{ append = \"{effect}\" }}\ntimeout = \"4s\"");
    let server = match way {
        Way::PipesAndCard => {
            place.configure(&format!("{}\n{effects}", place.by_pipes()), r#"["notes.*"]"#);
            None
        }
        Way::HttpAtOnce => {
            let server = HttpServer::start(place.command()).await;
            place.configure(&format!("url = \"{}\"\n{effects}\nrequires_approval = false", server.url()), r#"["notes.*"]"#);
            Some(server)
        }
    };
    place.script(&once("notes.append"));
    place.ends(&["mcp", "import", "notes"], 0).await;
    let id = place.home.enqueue().await;
    if way == Way::PipesAndCard {
        place.ends(&["worker", "--once"], 0).await;
        assert_eq!(place.approve(id, &["--no-wait"]).await.code(), 0);
    }
    Some(Scene { place, _server: server, id })
}

impl Scene {
    /// A worker that has come to a point, and how many calls have arrived by then.
    async fn comes_to(&self, point: &str) -> Running {
        if point == "in the call" {
            self.place.hold();
            let worker = self.place.home.start(&["worker"], None);
            until(|| (!self.place.calls().is_empty()).then_some(())).await;
            return worker;
        }
        let mut worker = self.place.home.start(&["worker"], Some(point));
        worker.stopped().await;
        worker
    }

    async fn taken_over(&self) -> Snapshot {
        let _worker = self.place.home.start(&["worker"], None);
        self.place.home.until(self.id, "at rest", |row| row.state.is_settled() || row.state == State::Dead).await
    }

    /// The run completed, and these many calls arrived, each the same.
    async fn completed_after(&self, calls: usize) {
        let row = self.taken_over().await;
        assert_eq!((row.state, row.fence), (State::Completed, None));
        let story = Story::of(&self.place.home.journal(self.id).await);
        assert_eq!(story.calls.values().next().unwrap().outcome.as_ref().unwrap().outcome, Outcome::Done);
        let arrived = self.place.calls();
        assert_eq!(arrived.len(), calls, "{arrived:?}");
        let key = self.id.idempotency_key(&leasehold::run::CallId("t1c0".into()));
        for call in &arrived {
            assert_eq!(call["meta"]["leasehold/idempotency-key"], key.as_str());
            assert_eq!((&call["meta"]["leasehold/run"], &call["arguments"]), (&json!(self.id), &json!({ "text": "one" })));
        }
        let tokens: Vec<u64> = arrived.iter().map(|call| call["meta"]["leasehold/fencing-token"].as_u64().unwrap()).collect();
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }

    async fn in_doubt_after(&self, calls: usize) {
        let row = self.taken_over().await;
        assert_eq!((row.state, row.reason), (State::Dead, Some(Reason::WriteInDoubt)));
        assert_eq!(self.place.calls().len(), calls);
        let inbox = self.place.ends(&["inbox", "--json"], 0).await.json();
        assert_eq!(inbox["items"][0]["kind"], "in_doubt", "{inbox}");
        // A person says that it did happen: the run goes on, and nothing is sent.
        let id = self.id.to_string();
        if calls == 1 {
            self.place.ends(&["resolve", &id, "--call", "t1c0", "--landed", "--note", "it is there"], 0).await;
            assert_eq!(self.taken_over().await.state, State::Completed);
            assert_eq!(self.place.calls().len(), 1);
        }
    }
}

async fn killed_at_every_point(way: Way, effect: &str) {
    let is_idempotent = effect == "idempotent_write";
    for point in POINTS {
        let Some(scene) = scene(way, effect).await else { return };
        let mut worker = scene.comes_to(point).await;
        worker.kill();
        if point == "in the call" {
            scene.place.release();
        }
        let arrived = if ["before_stamp", "after_stamp"].contains(&point) { 0 } else { 1 };
        assert_eq!(scene.place.calls().len(), arrived, "{way:?}, {effect}, {point}");
        match point {
            "before_stamp" | "after_record" => scene.completed_after(1).await,
            _ if is_idempotent => scene.completed_after(arrived + 1).await,
            _ => scene.in_doubt_after(arrived).await,
        }
    }
}

#[tokio::test]
async fn a_write_over_pipes_that_is_not_idempotent_arrives_at_most_once() {
    killed_at_every_point(Way::PipesAndCard, "non_idempotent_write").await;
}

#[tokio::test]
async fn an_idempotent_write_over_pipes_is_repeated_with_its_key() {
    killed_at_every_point(Way::PipesAndCard, "idempotent_write").await;
}

#[tokio::test]
async fn a_write_over_http_that_is_not_idempotent_arrives_at_most_once() {
    killed_at_every_point(Way::HttpAtOnce, "non_idempotent_write").await;
}

#[tokio::test]
async fn an_idempotent_write_over_http_is_repeated_with_its_key() {
    killed_at_every_point(Way::HttpAtOnce, "idempotent_write").await;
}

/// The memory server's graph is a file of its own; killed with the worker right after the call came back, it has the entity once.
#[tokio::test]
async fn a_graph_of_the_memory_server_is_written_once_when_the_worker_is_killed_and_the_run_settled() {
    let (Some(program), Some(place)) = (mcp::npm("mcp-server-memory").await, Place::new().await) else { return };
    let graph = place.home.path().join("graph.jsonl");
    let entities = || {
        let text = std::fs::read_to_string(&graph).unwrap_or_default();
        text.lines().filter(|line| line.contains("pier 2")).count()
    };
    let env = format!("env = {{ MEMORY_FILE_PATH = \"{}\" }}", graph.display());
    place.configure(&format!("command = [\"{program}\"]\n{env}"), r#"["notes.*"]"#);
    place.script(&crate::support::one_call(
        "notes.create_entities",
        r#"{ entities = [{ name = "pier 2", entityType = "berth", observations = ["free"] }] }"#,
    ));
    let _place = killed_once_it_has_written(place, &entities).await;
    assert_eq!(entities(), 1);
}

#[tokio::test]
async fn a_commit_of_the_git_server_is_made_once_when_the_worker_is_killed_and_the_run_settled() {
    let Some(place) = Place::new().await else { return };
    let repository = place.home.path().join("site");
    std::fs::create_dir(&repository).unwrap();
    let Some((command, commits)) = mcp::git(&repository).await else { return };
    place.configure(&format!("command = {}", serde_json::Value::from(command)), r#"["notes.*"]"#);
    let arguments = format!("{{ repo_path = \"{}\", message = \"moved\" }}", repository.display());
    place.script(&crate::support::one_call("notes.git_commit", &arguments));
    let made = || commits() - 1;
    let _place = killed_once_it_has_written(place, &made).await;
    assert_eq!(made(), 1);
}

/// Releases the one write of the script, kills its worker once the write has happened and before it is recorded, and settles it.
async fn killed_once_it_has_written(place: Place, written: &dyn Fn() -> usize) -> Place {
    place.ends(&["mcp", "import", "notes"], 0).await;
    let id = place.home.enqueue().await;
    place.ends(&["worker", "--once"], 0).await;
    assert_eq!(place.approve(id, &["--no-wait"]).await.code(), 0);
    let mut worker = place.home.start(&["worker"], Some("in_tool"));
    worker.stopped().await;
    until(|| (written() == 1).then_some(())).await;
    worker.kill();
    let scene = Scene { place, _server: None, id };
    let row = scene.taken_over().await;
    assert_eq!((row.state, row.reason), (State::Dead, Some(Reason::WriteInDoubt)));
    scene.place.ends(&["resolve", &id.to_string(), "--call", "t1c0", "--landed", "--note", "it is there"], 0).await;
    assert_eq!(scene.taken_over().await.state, State::Completed);
    scene.place
}
