//! MCP servers over pipes: real ones that nobody here wrote, and some that never answer, die, write garbage or too much.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use leasehold::agent::tool::{
    Arguments, ReadAnswer, Tool,
    http::{ConfiguredEffect, HeaderSource},
    mcp::{Link, McpConfig, McpError, McpServer},
};
use leasehold_testkit::mcp;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn reads(mut config: McpConfig, tools: &[&str]) -> McpServer {
    config.effects = tools.iter().map(|tool| ((*tool).to_owned(), ConfiguredEffect::ReadOnly)).collect();
    McpServer::new(config).unwrap()
}

async fn tool(server: &McpServer, name: &str) -> Tool {
    let offered = server.tools(&server.list().await.unwrap()).unwrap();
    let name = format!("{}.{name}", server.name());
    offered.tools.into_iter().find(|tool| tool.spec().name == name).unwrap()
}

async fn call(tool: &Tool, arguments: Value) -> ReadAnswer {
    let Tool::Read(tool) = tool else { panic!("{tool:?} is no read") };
    let arguments: Arguments = arguments.as_object().unwrap().clone();
    tool.call(&arguments).await
}

/// Processes whose command line has this word, without those that are over and not reaped.
fn processes(word: &str) -> Vec<u32> {
    stats().into_iter().filter(|(_, state, line)| *state != 'Z' && line.contains(word)).map(|(pid, _, _)| pid).collect()
}

/// Children of this process that are over and not reaped.
fn zombies() -> usize {
    let own = std::process::id();
    let is_ours = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)) == Some(own.to_string().as_str())
    };
    stats().into_iter().filter(|(pid, state, _)| *state == 'Z' && is_ours(pid)).count()
}

fn stats() -> Vec<(u32, char, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let Some(state) = stat.rsplit(") ").next().and_then(|rest| rest.chars().next()) else { continue };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        found.push((pid, state, String::from_utf8_lossy(&line).replace('\0', " ")));
    }
    found
}

/// Until it holds; the process table says nothing by itself.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(15);
    while !holds() {
        assert!(Instant::now() < limit, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn shell(name: &str, script: &str) -> McpConfig {
    McpConfig::command(name, ["sh", "-c", script])
}

#[tokio::test]
async fn a_reference_server_is_listed_called_and_described() {
    let Some(program) = mcp::npm("mcp-server-everything").await else { return };
    let server = reads(
        McpConfig::command("every", [program]),
        &["echo", "get-structured-content", "get-tiny-image", "trigger-long-running-operation"],
    );
    assert_eq!(server.health().link, Link::NotTried);
    let definitions = server.list().await.unwrap();
    assert!(definitions.iter().any(|d| d.name == "get-sum" && !d.description.is_empty()), "{definitions:?}");
    let health = server.health();
    assert_eq!((health.link, health.restarts, health.failures), (Link::Up, 0, 0));
    assert_eq!(health.protocol_version.as_deref(), Some("2025-11-25"));
    assert!(health.server.is_some_and(|name| name.starts_with("mcp-servers/everything")), "{:?}", server.health());
    assert!(health.last_contact.is_some() && health.latency.is_some());

    assert_eq!(call(&tool(&server, "echo").await, json!({ "message": "hello" })).await, ReadAnswer::ok("Echo: hello"));
    let structured = call(&tool(&server, "get-structured-content").await, json!({ "location": "New York" })).await;
    assert!(structured.result["temperature"].is_number(), "{structured:?}");
    let image = call(&tool(&server, "get-tiny-image").await, json!({})).await;
    let described = image.result.as_array().unwrap().iter().find(|part| part["type"] == "image").unwrap();
    let note = json!("not kept: this call is of no run that is recorded");
    assert_eq!((&described["mime_type"], &described["note"]), (&json!("image/png"), &note));
    assert!(described.get("data").is_none());

    let before = *server.progress().borrow();
    let long = call(&tool(&server, "trigger-long-running-operation").await, json!({ "duration": 1, "steps": 4 })).await;
    assert!(!long.is_error, "{long:?}");
    assert!(*server.progress().borrow() > before, "it reports progress");
    let unknown = tool(&server, "get-sum").await;
    assert_eq!((unknown.effect().to_string(), unknown.approval().as_str()), ("non_idempotent_write".into(), "required"));
    assert!(server.ping().await.is_ok());
}

#[tokio::test]
async fn a_reference_server_is_told_that_a_call_was_given_up_and_goes_on_answering() {
    let Some(program) = mcp::npm("mcp-server-everything").await else { return };
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    // Whatever it is told is written down on its way.
    let script = format!("tee {} | {program}", told.display());
    let server = reads(shell("every", &script), &["echo", "trigger-long-running-operation"]);
    let (long, echo) = (tool(&server, "trigger-long-running-operation").await, tool(&server, "echo").await);
    let mut progress = server.progress();
    let given_up = tokio::spawn(async move { call(&long, json!({ "duration": 60, "steps": 120 })).await });
    progress.wait_for(|count| *count > 0).await.unwrap();
    given_up.abort();
    let lines = || std::fs::read_to_string(&told).unwrap_or_default();
    until("it is told", || lines().lines().any(|line| line.contains("notifications/cancelled"))).await;
    let said: Vec<Value> = lines().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |method: &str| said.iter().find(|message| message["method"] == method).unwrap();
    assert_eq!(of("notifications/cancelled")["params"]["requestId"], of("tools/call")["id"]);
    assert_eq!(of("logging/setLevel")["params"]["level"], "info", "it has a log, and is asked for it");
    assert_eq!(call(&echo, json!({ "message": "hello" })).await, ReadAnswer::ok("Echo: hello"));
    assert_eq!(server.health().restarts, 0);
}

#[tokio::test]
async fn a_change_of_its_tools_is_noted() {
    let Some(program) = mcp::npm("mcp-server-everything").await else { return };
    let server = reads(McpConfig::command("every", [program]), &[]);
    let mut changes = server.list_changes();
    server.ping().await.unwrap();
    // It registers some of its tools after the handshake and says so.
    tokio::time::timeout(Duration::from_secs(10), changes.wait_for(|count| *count > 0)).await.unwrap().unwrap();
    assert!(server.health().list_changed);
    server.list().await.unwrap();
    assert!(!server.health().list_changed);
}

#[tokio::test]
async fn a_server_that_keeps_silent_about_the_newest_handshake_is_asked_for_the_old_one() {
    let script = r#"read line; case "$line" in *server/discover*) sleep 600; true # mark-silent
        esac; echo '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2024-11-05","capabilities":{"tools":{}},"serverInfo":{"name":"old","version":"1"}}}'
        read initialized; read ping; echo '{"jsonrpc":"2.0","id":1,"result":{}}'; read more"#;
    let mut config = shell("old", script);
    config.timeout = Some(Duration::from_secs(3));
    let server = McpServer::new(config).unwrap();
    server.ping().await.unwrap();
    assert_eq!(server.health().protocol_version.as_deref(), Some("2024-11-05"));
    until("the silent one is ended", || processes("mark-silent").len() == 1).await;
}

#[tokio::test]
async fn servers_of_both_languages_and_all_versions_are_spoken_to() {
    let folder = tempfile::tempdir().unwrap();
    if let Some(program) = mcp::npm("mcp-server-filesystem").await {
        std::fs::write(folder.path().join("berths.txt"), "pier 2").unwrap();
        let path = folder.path().display().to_string();
        let server = reads(McpConfig::command("files", [program, path.clone()]), &["read_text_file"]);
        let read = call(&tool(&server, "read_text_file").await, json!({ "path": format!("{path}/berths.txt") })).await;
        assert_eq!(read.result["content"], "pier 2", "{read:?}");
        let outside = call(&tool(&server, "read_text_file").await, json!({ "path": "/etc/hostname" })).await;
        assert!(outside.is_error && outside.result.as_str().unwrap().contains("denied"), "{outside:?}");
    }
    if let Some(python) = mcp::python().await {
        let time = reads(McpConfig::command("time", [python.as_str(), "-m", "mcp_server_time"]), &["get_current_time"]);
        let now = call(&tool(&time, "get_current_time").await, json!({ "timezone": "Europe/Berlin" })).await;
        assert!(!now.is_error, "{now:?}");
        let Some(own) = mcp::own().await else { return };
        let own = reads(McpConfig::command("own", own), &["echo"]);
        assert_eq!(call(&tool(&own, "echo").await, json!({ "text": "grün" })).await.result.as_str(), None);
        assert_eq!(own.health().protocol_version.as_deref(), Some("2026-07-28"));
    }
}

#[tokio::test]
async fn a_server_that_is_killed_is_started_again_by_the_next_call() {
    let Some(own) = mcp::own().await else { return };
    let server = reads(McpConfig::command("own", own.into_iter().chain(["mark-killed".into()])), &["echo"]);
    let echo = tool(&server, "echo").await;
    for restarts in 1..=2 {
        let running = processes("mark-killed");
        assert_eq!(running.len(), 1);
        std::process::Command::new("kill").args(["-9", &running[0].to_string()]).status().unwrap();
        until("it is gone", || !processes("mark-killed").contains(&running[0])).await;
        let answer = call(&echo, json!({ "text": "again" })).await;
        assert!(!answer.is_error, "{answer:?}");
        assert_eq!(server.health().restarts, restarts);
    }
    assert!(server.health().last_end.is_some_and(|end| end.contains('9')), "{:?}", server.health());
    server.shutdown().await;
    assert_eq!((processes("mark-killed").len(), zombies()), (0, 0));
    assert_eq!(server.health().link, Link::Closed);
    assert!(matches!(server.ping().await, Err(McpError::NotConnected(_))));
}

#[tokio::test]
async fn megabytes_go_both_ways_over_pipes() {
    let Some(own) = mcp::own().await else { return };
    let mut config = McpConfig::command("own", own);
    config.max_response = Some(8 << 20);
    let server = reads(config, &["length", "long", "echo"]);
    let five = 5 << 20;
    let text = "x".repeat(five);
    let (length, long, echo) = (tool(&server, "length").await, tool(&server, "long").await, tool(&server, "echo").await);
    // Side by side: what goes out does not wait for what comes in.
    let (sent, got, both) = tokio::join!(
        call(&length, json!({ "text": text })),
        call(&long, json!({ "bytes": five })),
        call(&echo, json!({ "text": text })),
    );
    assert_eq!(sent.result, json!({ "result": five }), "{:.200?}", sent.result);
    assert_eq!(got.result["result"].as_str().map(str::len), Some(five));
    assert_eq!(both.result["result"].as_str().map(str::len), Some(five));
    // Longer than a message may be: dropped, and ended by the deadline.
    let mut config = server_config_with_timeout().await;
    config.max_response = Some(1 << 20);
    let server = reads(config, &["long"]);
    let long = tool(&server, "long").await;
    let answer = call(&long, json!({ "bytes": 17 << 20 })).await;
    assert!(answer.is_error && answer.result.as_str().unwrap().contains("within"), "{:.200?}", answer.result);
    // A result beyond what is kept is cut and says so.
    let cut = call(&long, json!({ "bytes": 2 << 20 })).await;
    let cut = cut.result.as_str().unwrap();
    assert!(cut.len() < (1 << 20) + 100 && cut.ends_with("[cut: the result is longer than 1048576 bytes]"), "{}", cut.len());
}

async fn server_config_with_timeout() -> McpConfig {
    let mut config = McpConfig::command("own", mcp::own().await.unwrap());
    config.timeout = Some(Duration::from_secs(8));
    config
}

#[tokio::test]
async fn noise_on_both_outputs_is_skipped_and_its_end_kept() {
    let Some(own) = mcp::own().await else { return };
    // Before the first message: ten megabytes of no JSON, half a message, JSON that is no message.
    let garbage = r#"head -c 7500000 /dev/urandom | base64; printf '\0\377{"half": \n[]\n{"jsonrpc":"2.0"}\n'; exec "$0" "$1""#;
    let command = ["sh", "-c", garbage].map(str::to_owned).into_iter().chain(own);
    let server = reads(McpConfig::command("own", command), &["noise", "echo"]);
    let noise = call(&tool(&server, "noise").await, json!({ "bytes": 10 << 20 })).await;
    assert!(!noise.is_error, "{noise:?}");
    assert!(!call(&tool(&server, "echo").await, json!({ "text": "still there" })).await.is_error);
    assert_eq!(server.health().restarts, 0);
    let words = server.health().last_words;
    assert_eq!(words.last().map(String::as_str), Some("last words"));
    assert!(words.iter().map(String::len).sum::<usize>() <= leasehold::limits::MCP_STDERR_BYTES_MAX);
}

#[tokio::test]
async fn a_server_that_never_answers_ends_by_the_deadline() {
    let initialize = r#"read line; echo '{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}'; read line; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}}'; read line;"#;
    let tools =
        r#"read line; echo '{"jsonrpc":"2.0","id":2,"result":{"tools":[{"name":"hang","inputSchema":{"type":"object"}}]}}'; "#;
    for (what, script) in [
        ("the handshake", "sleep 600; true # mark-mute".to_owned()),
        ("the list", format!("{initialize} sleep 600; true # mark-mute")),
    ] {
        let mut config = shell("mute", &script);
        config.timeout = Some(Duration::from_secs(1));
        let server = McpServer::new(config).unwrap();
        let begun = Instant::now();
        assert_eq!(server.list().await, Err(McpError::TimedOut(Duration::from_secs(1))), "{what}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{what}: {:?}", begun.elapsed());
        assert_eq!((server.health().link, server.health().failures), (Link::Down, 1), "{what}");
    }
    let mut config = shell("mute", &format!("{initialize}{tools}sleep 600; true # mark-mute"));
    config.timeout = Some(Duration::from_secs(1));
    let server = reads(config, &["hang"]);
    let hang = tool(&server, "hang").await;
    let begun = Instant::now();
    let answer = call(&hang, json!({})).await;
    assert!(answer.is_error && answer.result.as_str().unwrap().contains("within 1s"), "{answer:?}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    drop((server, hang));
    until("what never answered is ended", || processes("mark-mute").is_empty() && zombies() == 0).await;
}

#[tokio::test]
async fn a_server_that_ends_at_once_is_tried_ever_less_often() {
    let folder = tempfile::tempdir().unwrap();
    let count = folder.path().join("count");
    let mut config = shell("brief", &format!("echo started >> {}; echo bad luck >&2; exit 3", count.display()));
    config.timeout = Some(Duration::from_millis(700));
    let server = McpServer::new(config).unwrap();
    let begun = Instant::now();
    let mut asked = 0;
    let mut last = None;
    while begun.elapsed() < Duration::from_secs(3) {
        last = Some(server.list().await.unwrap_err());
        asked += 1;
    }
    let started = std::fs::read_to_string(&count).unwrap().lines().count();
    // Two processes an attempt, one for each handshake; the waits grow from 0.1 s.
    assert!(started <= 12 && asked > started, "{asked} calls, {started} starts");
    let Some(McpError::NotConnected(why)) = last else { panic!("{last:?}") };
    assert!(why.contains("times in a row") && why.contains("exit status: 3"), "{why}");
    let health = server.health();
    assert_eq!(health.last_words.last().map(String::as_str), Some("bad luck"));
    assert!(health.failures >= 2 && health.next_attempt_in > Duration::ZERO, "{health:?}");
    assert_eq!(zombies(), 0);

    let missing = McpServer::new(McpConfig::command("no", ["/nowhere/at-all"])).unwrap();
    let Err(McpError::NotConnected(why)) = missing.list().await else { panic!("it is not there") };
    assert!(why.contains("`/nowhere/at-all` does not start"), "{why}");
}

#[tokio::test]
async fn a_process_and_what_it_started_end_with_their_server() {
    // The child ignores every polite word, and its parent leaves it behind.
    let stubborn =
        r#"(trap '' TERM HUP INT; while :; do sleep 0.2; done) & trap '' TERM; while :; do sleep 0.2; done # mark-group"#;
    let mut config = shell("group", stubborn);
    config.timeout = Some(Duration::from_millis(500));
    let server = McpServer::new(config.clone()).unwrap();
    server.list().await.unwrap_err();
    assert!(!processes("mark-group").is_empty());
    drop(server);
    until("the whole group is ended after a drop", || processes("mark-group").is_empty() && zombies() == 0).await;

    // A runtime that ends takes them along, though nobody is left to wait for them.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = McpServer::new(config).unwrap();
    let ending = std::thread::spawn(move || {
        runtime.block_on(server.list()).unwrap_err();
        drop(runtime);
        server
    });
    drop(ending.join().unwrap());
    until("the whole group is ended with its runtime", || processes("mark-group").is_empty()).await;
}

#[tokio::test]
async fn a_server_sees_no_environment_but_its_own_and_repeats_no_secret() {
    let Some(own) = mcp::own().await else { return };
    let mut config = McpConfig::command("own", own);
    config.env.insert("TOKEN".into(), HeaderSource::Env { env: "VAULT".into(), prefix: "tok-".into() });
    config.env.insert("PLAIN".into(), HeaderSource::Text("plain-secret".into()));
    for tool in ["environment", "say_secret"] {
        config.effects.insert(tool.into(), ConfiguredEffect::ReadOnly);
    }
    let shown = format!("{config:?}");
    let server = McpServer::new_with_env(config, |name| (name == "VAULT").then(|| "s3cret-value".into())).unwrap();
    let environment = tool(&server, "environment").await;
    let seen = async |name: &str| call(&environment, json!({ "name": name })).await.result["result"].clone();
    assert_eq!(seen("TOKEN").await, "tok-s3cret-value");
    assert_eq!(seen("CARGO_MANIFEST_DIR").await, "(none)", "what is this process's own stays here");
    assert_ne!(seen("PATH").await, "(none)");
    for name in ["TOKEN", "PLAIN"] {
        call(&tool(&server, "say_secret").await, json!({ "name": name })).await;
    }
    let health = server.health();
    assert!(health.last_words.iter().any(|line| line.contains("***")), "{health:?}");
    for text in [shown, format!("{server:?}"), format!("{health:?}"), format!("{environment:?}")] {
        assert!(!text.contains("s3cret-value") && !text.contains("plain-secret"), "{text}");
    }
}
