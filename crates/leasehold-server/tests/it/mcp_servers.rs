//! Whole runs through MCP servers that nobody here wrote, by the real command: after a card, and on the first pass in the foreground and
//! under a worker.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{
    mcp::{Place, once},
    one_call,
};
use leasehold::run::State;
use leasehold_testkit::mcp::{self, HttpServer};

/// One write of a server, and how often it has happened.
struct Write<'a> {
    /// Keys of the server.
    keys: String,
    tool: &'a str,
    arguments: String,
    /// None: it leaves no trace that can be counted.
    happened: Option<&'a dyn Fn() -> usize>,
}

async fn writes(place: &Place, write: Write<'_>) {
    let Write { keys, tool, arguments, happened } = write;
    let count = || happened.map_or(0, |count| count());
    let each = usize::from(happened.is_some());
    place.script(&one_call(tool, &arguments));
    place.configure(&keys, r#"["notes.*"]"#);
    let before = count();

    let id = place.suspended().await;
    assert_eq!(count(), before, "{tool}: nothing happens before somebody releases it");
    let card = place.show(id).await["waiting"]["calls"][0].clone();
    assert_eq!(
        (&card["tool"], &card["source"], &card["effect"]),
        (&tool.into(), &"mcp".into(), &"non_idempotent_write".into())
    );
    let ran = place.approve(id, &[]).await;
    assert_eq!(ran.code(), 0, "{tool}: {ran}");
    assert_eq!(place.home.row(id).await.state, State::Completed);
    assert_eq!(count(), before + each, "{tool}: by a card");

    place.configure(&format!("{keys}\nrequires_approval = false"), r#"["notes.*"]"#);
    place.ends(&["run", "note a line"], 0).await;
    assert_eq!(count(), before + 2 * each, "{tool}: by `run`");
    let id = place.home.enqueue().await;
    let _worker = place.home.start(&["worker"], None);
    place.home.until(id, "completed", |row| row.state == State::Completed).await;
    assert_eq!(count(), before + 3 * each, "{tool}: by `worker`");
    let outcomes = place.outcomes(id).await;
    assert!(outcomes.len() == 1 && outcomes[0].0 == "done", "{outcomes:?}");
}

fn lines(path: &std::path::Path, with: &str) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().matches(with).count()
}

#[tokio::test]
async fn the_memory_server() {
    let (Some(program), Some(place)) = (mcp::npm("mcp-server-memory").await, Place::new().await) else { return };
    let graph = place.home.path().join("graph.jsonl");
    let happened = || lines(&graph, "\"free\"");
    let arguments = r#"{ observations = [{ entityName = "pier 2", contents = ["free"] }] }"#;
    let keys = format!("command = [\"{program}\"]\nenv = {{ MEMORY_FILE_PATH = \"{}\" }}", graph.display());
    // It adds an observation once, whoever says it.
    let three = r#"{ entities = [{ name = "pier 2", entityType = "berth", observations = ["free"] }] }"#;
    let written = || happened().min(1);
    std::fs::write(&graph, "").unwrap();
    place.script(&one_call("notes.create_entities", three));
    place.configure(&keys, r#"["notes.*"]"#);
    let id = place.suspended().await;
    assert_eq!(written(), 0);
    assert_eq!(place.approve(id, &[]).await.code(), 0);
    assert_eq!(happened(), 1);
    writes(&place, Write { keys, tool: "notes.add_observations", arguments: arguments.into(), happened: None }).await;
    assert_eq!(happened(), 1, "the graph has it once");
}

#[tokio::test]
async fn the_filesystem_server() {
    let (Some(program), Some(place)) = (mcp::npm("mcp-server-filesystem").await, Place::new().await) else { return };
    let site = place.home.path().join("site");
    std::fs::create_dir(&site).unwrap();
    let page = site.join("page.txt");
    std::fs::write(&page, "x").unwrap();
    let happened = || lines(&page, "y");
    let arguments = format!("{{ path = \"{}\", edits = [{{ oldText = \"x\", newText = \"xy\" }}] }}", page.display());
    let keys = format!("command = [\"{program}\", \"{}\"]", site.display());
    writes(&place, Write { keys, tool: "notes.edit_file", arguments, happened: Some(&happened) }).await;
}

#[tokio::test]
async fn the_everything_server() {
    let (Some(program), Some(place)) = (mcp::npm("mcp-server-everything").await, Place::new().await) else { return };
    let keys = format!("command = [\"{program}\"]");
    writes(&place, Write { keys, tool: "notes.get-sum", arguments: "{ a = 1, b = 2 }".into(), happened: None }).await;
}

#[tokio::test]
async fn the_git_server() {
    let Some(place) = Place::new().await else { return };
    let repository = place.home.path().join("site");
    std::fs::create_dir(&repository).unwrap();
    let Some((command, commits)) = mcp::git(&repository).await else { return };
    let keys = format!("command = {}", serde_json::Value::from(command));
    let arguments = format!("{{ repo_path = \"{}\", message = \"moved\" }}", repository.display());
    writes(&place, Write { keys, tool: "notes.git_commit", arguments, happened: Some(&commits) }).await;
}

#[tokio::test]
async fn the_time_server() {
    let (Some(python), Some(place)) = (mcp::python().await, Place::new().await) else { return };
    let keys = format!("command = [\"{python}\", \"-m\", \"mcp_server_time\"]");
    let arguments = r#"{ timezone = "Europe/Berlin" }"#.to_owned();
    writes(&place, Write { keys, tool: "notes.get_current_time", arguments, happened: None }).await;
}

async fn fastmcp(over_http: bool) {
    let (Some(command), Some(place)) = (mcp::own().await, Place::new().await) else { return };
    let ledger = place.home.path().join("ledger");
    let happened = || lines(&ledger, "one\n");
    let server;
    let keys = if over_http {
        server = HttpServer::start(command).await;
        format!("url = \"{}\"", server.url())
    } else {
        format!("command = {}", serde_json::Value::from(command))
    };
    let arguments = format!("{{ path = \"{}\", text = \"one\" }}", ledger.display());
    writes(&place, Write { keys, tool: "notes.append", arguments, happened: Some(&happened) }).await;
}

#[tokio::test]
async fn a_server_on_fastmcp_over_pipes() {
    fastmcp(false).await;
}

#[tokio::test]
async fn a_server_on_fastmcp_over_http() {
    fastmcp(true).await;
}

/// A store that knows nothing of a server: the first run of a worker meets it too.
#[tokio::test]
async fn a_run_that_waited_for_a_worker_has_the_tools_of_a_server_that_nobody_asked_yet() {
    let Some(place) = Place::new().await else { return };
    place.configure(&format!("{}\nrequires_approval = false", place.by_pipes()), r#"["notes.*"]"#);
    place.script(&once("notes.append"));
    let id = place.home.enqueue().await;
    let _worker = place.home.start(&["worker"], None);
    place.home.until(id, "settled", |row| row.state.is_settled()).await;
    assert_eq!(place.calls().len(), 1, "{:?}", place.outcomes(id).await);
}
