//! MCP servers over HTTP: real ones that are restarted and killed, and sockets that do what no server should.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use leasehold::agent::tool::{
    Arguments, ReadAnswer, Tool,
    http::{ConfiguredEffect, HeaderSource},
    mcp::{Change, Link, McpConfig, McpError, McpServer, changes as list_changes},
};
use leasehold_testkit::mcp::{self, HttpServer};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

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

async fn everything() -> Option<HttpServer> {
    let program = mcp::npm("mcp-server-everything").await?;
    // It reads its place from `PORT`, and what it speaks from its first argument.
    Some(HttpServer::start(vec![program, "streamableHttp".into()]).await)
}

#[tokio::test]
async fn a_server_with_sessions_is_listed_and_called() {
    let Some(far) = everything().await else { return };
    let server = reads(McpConfig::url("every", far.url()), &["echo", "trigger-long-running-operation"]);
    let echo = tool(&server, "echo").await;
    assert_eq!(echo.spec().endpoint, far.url());
    assert_eq!(echo.identity().source, "mcp");
    assert_eq!(call(&echo, json!({ "message": "hello" })).await, ReadAnswer::ok("Echo: hello"));
    assert_eq!(server.health().protocol_version.as_deref(), Some("2025-11-25"));
    let before = *server.progress().borrow();
    let long = tool(&server, "trigger-long-running-operation").await;
    assert!(!call(&long, json!({ "duration": 1, "steps": 4 })).await.is_error);
    assert!(*server.progress().borrow() > before, "it reports progress");
    server.shutdown().await;
}

#[tokio::test]
async fn a_session_that_a_restarted_server_does_not_know_ends_at_once_and_the_next_call_works() {
    let Some(mut far) = everything().await else { return };
    let server = reads(McpConfig::url("every", far.url()), &["echo"]);
    let echo = tool(&server, "echo").await;
    far.restart().await;
    // It answers the old session with 400 and an error that names no request.
    let begun = Instant::now();
    assert_eq!(server.list().await.err().map(|error| error.to_string().contains("names no request")), Some(true));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(call(&echo, json!({ "message": "again" })).await, ReadAnswer::ok("Echo: again"));
    far.restart().await;
    let answer = call(&echo, json!({ "message": "a read is sent once more" })).await;
    assert_eq!(answer, ReadAnswer::ok("Echo: a read is sent once more"));
    assert_eq!(server.health().restarts, 2);
}

#[tokio::test]
async fn a_server_that_is_killed_in_a_call_ends_the_call_long_before_its_deadline() {
    let Some(mut far) = everything().await else { return };
    let server = reads(McpConfig::url("every", far.url()), &["trigger-long-running-operation"]);
    let long = tool(&server, "trigger-long-running-operation").await;
    let mut progress = server.progress();
    progress.mark_unchanged();
    let begun = Instant::now();
    let calling = call(&long, json!({ "duration": 60, "steps": 600 }));
    let killing = async {
        progress.changed().await.unwrap();
        far.kill().await;
    };
    let (answer, ()) = tokio::join!(calling, killing);
    assert!(answer.is_error, "{answer:?}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(server.health().link, Link::Down);
}

#[tokio::test]
async fn a_server_that_ends_in_a_call_whose_answer_cannot_be_resumed_ends_it_too() {
    let Some(own) = mcp::own().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("ledger");
    let far = HttpServer::start(own).await;
    let server = reads(McpConfig::url("own", far.url()), &["append_and_die"]);
    let dying = tool(&server, "append_and_die").await;
    let begun = Instant::now();
    let answer = call(&dying, json!({ "path": ledger, "text": "one" })).await;
    assert!(answer.is_error, "{answer:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(std::fs::read_to_string(ledger).unwrap().lines().count(), 1);
}

#[tokio::test]
async fn the_newest_version_needs_no_session_and_survives_a_restart() {
    let Some(own) = mcp::own().await else { return };
    let mut far = HttpServer::start(own).await;
    let server = reads(McpConfig::url("own", far.url()), &["echo"]);
    let echo = tool(&server, "echo").await;
    assert_eq!(server.health().protocol_version.as_deref(), Some("2026-07-28"));
    far.restart().await;
    assert!(!call(&echo, json!({ "text": "again" })).await.is_error);
    assert_eq!(server.health().restarts, 0);
    far.kill().await;
    let gone = call(&echo, json!({ "text": "nobody there" })).await;
    assert!(gone.is_error, "{gone:?}");
    assert!(matches!(server.ping().await, Err(McpError::NotConnected(_) | McpError::Lost(_))));
}

#[tokio::test]
async fn a_server_of_the_newest_version_is_listened_to() {
    let Some(telling) = mcp::telling().await else { return };
    let far = HttpServer::start(telling).await;
    let (hears, speaks) = (reads(McpConfig::url("own", far.url()), &[]), reads(McpConfig::url("own", far.url()), &["learn"]));
    let known = hears.list().await.unwrap();
    assert_eq!(hears.health().protocol_version.as_deref(), Some("2026-07-28"));
    let mut changes = hears.list_changes();
    // Whether it listens already is not known here: what it missed is told again.
    let learn = tool(&speaks, "learn").await;
    let mut learnt = 0;
    let told = tokio::time::timeout(Duration::from_secs(20), async {
        loop {
            learnt += 1;
            assert!(!call(&learn, json!({ "name": format!("new{learnt}") })).await.is_error);
            let heard = tokio::time::timeout(Duration::from_millis(500), changes.wait_for(|count| *count > 0)).await;
            if heard.is_ok() {
                return;
            }
        }
    });
    told.await.unwrap();
    assert!(hears.health().list_changed);
    let found = list_changes(&known, &hears.list().await.unwrap());
    assert_eq!(found.len(), learnt);
    assert!(found.contains(&Change::Added { tool: "new1".into() }), "{found:?}");
    assert!(!hears.health().list_changed);
}

/// A socket that takes what it is sent and answers each request with these bytes, or never.
async fn socket(answer: Option<&'static str>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp?key=query-secret", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut buffer = vec![0; 64 * 1024];
            // One read is enough to see that a request came.
            if stream.read(&mut buffer).await.is_ok()
                && let Some(answer) = answer
            {
                stream.write_all(answer.as_bytes()).await.unwrap();
            } else {
                held.push(stream);
            }
        }
    });
    url
}

#[tokio::test]
async fn what_is_no_answer_ends_by_the_deadline_and_shows_no_secret() {
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
    let denied = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Bearer error=\"header-secret\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let moved = "HTTP/1.1 307 Temporary Redirect\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    for answer in [None, Some(page), Some(denied), Some(moved)] {
        let mut config = McpConfig::url("odd", socket(answer).await);
        config.timeout = Some(Duration::from_secs(2));
        config.headers.insert("authorization".into(), HeaderSource::Env { env: "KEY".into(), prefix: "Bearer ".into() });
        let shown = format!("{config:?}");
        let server = McpServer::new_with_env(config, |name| (name == "KEY").then(|| "header-secret".into())).unwrap();
        let begun = Instant::now();
        let error = server.list().await.unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(4), "{answer:?}: {:?}", begun.elapsed());
        assert_eq!(matches!(error, McpError::TimedOut(_)), answer.is_none(), "{answer:?}: {error:?}");
        for text in [shown, format!("{error:?} {error}"), format!("{server:?} {:?}", server.health())] {
            assert!(!text.contains("header-secret") && !text.contains("query-secret"), "{text}");
        }
    }
}

#[tokio::test]
async fn nobody_there_is_said_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    drop(listener);
    let server = McpServer::new(McpConfig::url("gone", url)).unwrap();
    let begun = Instant::now();
    let Err(McpError::NotConnected(why)) = server.ping().await else { panic!("nobody listens") };
    assert!(why.to_lowercase().contains("connect"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(5));
}
