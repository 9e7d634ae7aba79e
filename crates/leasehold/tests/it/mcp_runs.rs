//! Whole runs that write through MCP servers of others, on SQLite: released by a person, on the first pass, and broken off in the call.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use leasehold::{
    agent::tool::{
        Tool,
        http::HeaderSource,
        mcp::{McpConfig, McpServer},
    },
    limits::{ARGUMENTS_BYTES_MAX, RESULT_STORED_BYTES_MAX},
    run::{EntryBody, Outcome, State, Via},
};
use leasehold_testkit::{
    mcp::{self, HttpServer},
    park::Place,
    world::{World, WorldBuilder},
};
use std::{
    path::Path,
    time::{Duration, Instant},
};

const REMEMBER: &str = r#"
[[reply]]
calls = [{ tool = "memory.create_entities", arguments = { entities = [{ name = "pier 2", entityType = "berth", observations = ["free"] }] } }]
[[reply]]
text = "It is remembered."
"#;

async fn memory(program: String, file: &Path, requires_approval: Option<bool>) -> Vec<Tool> {
    let mut config = McpConfig::command("memory", [program]);
    config.env.insert("MEMORY_FILE_PATH".into(), HeaderSource::Text(file.display().to_string()));
    config.requires_approval = requires_approval;
    let server = McpServer::new(config).unwrap();
    let offered = server.tools(&server.list().await.unwrap()).unwrap();
    assert_eq!(offered.refused, []);
    offered.tools
}

fn world(place: &Place, script: &str, tools: Vec<Tool>) -> WorldBuilder {
    tools.into_iter().fold(World::builder(script).on(&place.store, &place.clock), WorldBuilder::tool)
}

fn lines(file: &Path) -> usize {
    std::fs::read_to_string(file).unwrap_or_default().lines().filter(|line| !line.is_empty()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_of_others_is_written_to_once_after_a_person_released_it_or_on_the_first_pass() {
    let Some(program) = mcp::npm("mcp-server-memory").await else { return };
    let folder = tempfile::tempdir().unwrap();
    for (name, requires_approval) in [("asked", None), ("first pass", Some(false))] {
        let (place, file) = (Place::sqlite(), folder.path().join(name));
        let world = world(&place, REMEMBER, memory(program.clone(), &file, requires_approval).await).build();
        let id = world.run("Remember pier 2").await;
        if requires_approval.is_none() {
            assert_eq!(world.row(id).await.state, State::WaitingForApproval);
            assert_eq!(lines(&file), 0, "nothing is written before it is released");
            let details = world.runtime.details(id).await.unwrap();
            let identity = &details.card().unwrap().calls[0].tool;
            assert_eq!((identity.source.as_str(), identity.name.as_str()), ("mcp", "memory.create_entities"));
            assert!(!identity.endpoint.contains(&folder.path().display().to_string()), "{identity:?}");
            world.approve(id).await.unwrap();
        }
        assert_eq!(world.row(id).await.state, State::Completed, "{name}");
        assert_eq!(lines(&file), 1, "{name}");
        assert!(std::fs::read_to_string(&file).unwrap().contains("pier 2"), "{name}");
        let kinds = world.kinds(id).await;
        let at = |kind: &str| kinds.iter().position(|k| *k == kind);
        assert!(at("write_stamped").is_some() && at("write_stamped") < at("tool_outcome"), "{name}: {kinds:?}");
        assert_eq!(at("suspended").is_some(), requires_approval.is_none(), "{name}: {kinds:?}");
        assert_eq!(world.row(id).await.fence, None);
        let outcome = world.story(id).await.calls.values().next().unwrap().outcome.clone().unwrap();
        assert_eq!((outcome.outcome, outcome.via), (Outcome::Done, Via::Tool), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_in_the_call_leaves_a_doubt_and_no_second_call() {
    let Some(command) = mcp::own().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ledger");
    let script = format!(
        "[[reply]]\ncalls = [{{ tool = \"own.append_and_hang\", arguments = {{ path = \"{}\", text = \"pier 2\" }} }}]\n",
        file.display()
    );
    let place = Place::sqlite();
    let tools = async |name: &str| {
        let mut config = McpConfig::command("own", command.clone());
        config.requires_approval = Some(false);
        let server = McpServer::new(config).unwrap();
        let offered = server.tools(&server.list().await.unwrap()).unwrap();
        assert!(!offered.tools.is_empty(), "{name}");
        (server, offered.tools)
    };
    let (first_server, first_tools) = tools("first").await;
    let first = world(&place, &script, first_tools).process("test:1").build();
    let execution = first.start("Note pier 2").await;
    let id = execution.run();
    let segment = execution.spawn();
    let limit = Instant::now() + Duration::from_secs(20);
    while lines(&file) == 0 {
        assert!(Instant::now() < limit, "the tool was not entered");
        // Only the file says that the far side was reached.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    segment.abort();
    first_server.shutdown().await;

    let (_second_server, second_tools) = tools("second").await;
    let second = world(&place, &script, second_tools).process("test:2").build();
    second.lapse().await;
    let row = second.row(id).await;
    assert_eq!((row.state, row.reason.as_ref().map(|reason| reason.as_str())), (State::Dead, Some("write_in_doubt")));
    assert!(second.runtime.claim(id).await.is_err(), "nobody goes on by himself");
    assert_eq!(lines(&file), 1);
    let stamped = second.entries(id).await.iter().filter(|entry| matches!(entry.body, EntryBody::WriteStamped(_))).count();
    assert_eq!(stamped, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_in_the_call_is_a_doubt_and_a_call_that_cannot_reach_one_is_told_to_the_model() {
    let Some(command) = mcp::own().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ledger");
    let script = |tool: &str| {
        format!(
            "[[reply]]\ncalls = [{{ tool = \"{tool}\", arguments = {{ path = \"{}\", text = \"pier 2\" }} }}]\n[[reply]]\ntext = \"So be it.\"\n",
            file.display()
        )
    };
    let mut config = McpConfig::command("own", command);
    config.requires_approval = Some(false);
    let server = McpServer::new(config).unwrap();
    let definitions = server.list().await.unwrap();
    let tools = server.tools(&definitions).unwrap().tools;
    let places = [Place::sqlite(), Place::sqlite()];
    let dying = world(&places[0], &script("own.append_and_die"), tools).build();
    let id = dying.run("Note pier 2").await;
    let row = dying.row(id).await;
    assert_eq!((row.state, row.reason.as_ref().map(|reason| reason.as_str())), (State::Dead, Some("write_in_doubt")));
    assert_eq!(lines(&file), 1);

    let mut config = McpConfig::command("own", ["/nowhere/at-all"]);
    config.requires_approval = Some(false);
    let tools = McpServer::new(config).unwrap().tools(&definitions).unwrap().tools;
    let nowhere = world(&places[1], &script("own.append"), tools).build();
    let id = nowhere.run("Note pier 2").await;
    assert_eq!(nowhere.row(id).await.state, State::Completed);
    let outcome = nowhere.story(id).await.calls.values().next().unwrap().outcome.clone().unwrap();
    assert_eq!(outcome.outcome, Outcome::NotApplied);
    assert!(nowhere.results()[0].1.contains("does not start"), "{:?}", nowhere.results());
    assert_eq!(lines(&file), 1);
}

/// Runs the one call of a tool to its end, released where it waits; how it ended, and its result as text.
async fn one_call(place: &Place, tools: Vec<Tool>, tool: &str, arguments: &serde_json::Value) -> (Outcome, bool, String) {
    let script = serde_json::json!({ "reply": [{ "calls": [{ "tool": tool, "arguments": arguments }] }, { "text": "done" }] });
    let world = world(place, &toml::to_string(&script).unwrap(), tools).build();
    let id = world.run("task").await;
    if world.row(id).await.state == State::WaitingForApproval {
        world.approve(id).await.unwrap();
    }
    let row = world.row(id).await;
    let why = world.story(id).await.end.map(|end| end.detail).unwrap_or_default();
    assert_eq!((row.state, row.reason), (State::Completed, None), "{tool}: {why:.300}");
    let outcome = world.story(id).await.calls.values().next().unwrap().outcome.clone().unwrap();
    let text = outcome.result["result"].as_str().or(outcome.result.as_str()).map(str::to_owned);
    (outcome.outcome, outcome.is_error, text.unwrap_or_else(|| outcome.result.to_string()))
}

#[tokio::test(flavor = "multi_thread")]
async fn megabytes_go_through_whole_runs_and_what_is_over_a_limit_is_refused_or_cut_and_says_so() {
    let Some(command) = mcp::own().await else { return };
    let far = HttpServer::start(command.clone()).await;
    for reached in [McpConfig::command("own", command), McpConfig::url("own", far.url())] {
        for requires_approval in [None, Some(false)] {
            let mut config = reached.clone();
            (config.requires_approval, config.max_response) = (requires_approval, Some(8 << 20));
            let server = McpServer::new(config).unwrap();
            let definitions = server.list().await.unwrap();
            let tools = || server.tools(&definitions).unwrap().tools;
            let place = Place::sqlite();
            // What the official SDK takes over HTTP is less.
            let text = "x".repeat(if server.endpoint().starts_with("http") { 3 << 20 } else { 5 << 20 });
            let (outcome, is_error, result) = one_call(&place, tools(), "own.echo", &serde_json::json!({ "text": text })).await;
            assert!((outcome, is_error) == (Outcome::Done, false) && result == text, "{outcome} {result:.200}");
            if server.endpoint().starts_with("http") {
                let much = serde_json::json!({ "text": "x".repeat(5 << 20) });
                let (outcome, is_error, result) = one_call(&place, tools(), "own.echo", &much).await;
                assert!((outcome, is_error) == (Outcome::Done, true) && result.contains("413"), "{outcome} {result:.200}");
            }
            let more = serde_json::json!({ "text": "x".repeat(ARGUMENTS_BYTES_MAX) });
            let (outcome, _, result) = one_call(&place, tools(), "own.echo", &more).await;
            assert_eq!(outcome, Outcome::Refused, "{result:.200}");
            let (outcome, is_error, result) =
                one_call(&place, tools(), "own.long", &serde_json::json!({ "bytes": 7 << 20 })).await;
            let end = &result[result.len().saturating_sub(120)..];
            assert!((outcome, is_error) == (Outcome::Done, false) && end.contains("[excerpt: the first"), "{outcome} {end}");
            assert!(result.len() > 6_000_000 && result.len() < RESULT_STORED_BYTES_MAX + 200, "{}", result.len());
            server.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_after_a_restart_of_the_server_has_its_write_however_the_old_session_is_refused() {
    let Some(program) = mcp::npm("mcp-server-everything").await else { return };
    let mut far = HttpServer::start(vec![program, "streamableHttp".into()]).await;
    for requires_approval in [None, Some(false)] {
        let mut config = McpConfig::url("every", far.url());
        config.requires_approval = requires_approval;
        let server = McpServer::new(config).unwrap();
        let definitions = server.list().await.unwrap();
        for _ in 0..2 {
            let place = Place::sqlite();
            let tools = server.tools(&definitions).unwrap().tools;
            let sum = serde_json::json!({ "a": 2, "b": 40 });
            let (outcome, is_error, result) = one_call(&place, tools, "every.get-sum", &sum).await;
            assert_eq!((outcome, is_error), (Outcome::Done, false), "{result}");
            assert!(result.contains("42"), "{result}");
            // The next call finds its session unknown, which this server says with a 400.
            far.restart().await;
        }
    }
}
