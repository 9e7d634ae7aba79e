//! Five hundred readers of one server, of whom a hundred never read: runs go on as without them, who reads has everything, who does
//! not is cut off and has the rest later, and the server keeps none of it for them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "it/support/mod.rs"]
mod support;

use futures::future::join_all;
use reqwest::Method;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use socket2::SockRef;
use std::{collections::BTreeSet, fmt::Write as _, fs, net::SocketAddr};
use support::{
    PATIENCE, Sandbox,
    api::{Events, Server, TOKEN, recorded},
    kinds, text, until,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

const READERS: usize = 400;
const SLOW: usize = 100;
/// Open files that this process and its server need at least.
const FILES: u64 = 2_048;
/// Replies of the run that nobody reads, and the bytes of each: together more than the sockets of a connection hold.
const LONG: (usize, usize) = (18, 384 * 1024);
/// What the server may need more for all of them: not the long run once for each who does not read it, which were 700 MiB.
const MORE_KIB: u64 = 200 * 1024;

const MORE: &str = r#"
[[model]]
name = "long"
provider = "scripted"
script = "long.toml"
[[agent]]
name = "long"
model = "long"
tools = ["notes.append"]
[[tool.http]]
name = "notes.append"
description = "Append a note"
method = "POST"
url = "FAR"
effect = "idempotent_write"
approval = "none"
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
"#;

/// So many replies with a text of that length and a call, and the last one.
fn replies(count: usize, bytes: usize) -> String {
    let mut script = String::new();
    for n in 0..count {
        let long = "x".repeat(bytes);
        let call = format!("{{ tool = \"notes.append\", arguments = {{ text = \"note {n}\" }} }}");
        writeln!(script, "[[reply]]\ntext = \"{long}\"\ncalls = [{call}]").unwrap();
    }
    script + "[[reply]]\ntext = \"It is done.\"\n"
}

/// Whether this process, and what it starts, may open enough files.
fn may_open_enough() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let enough = limit.maximum.is_none_or(|most| most >= FILES);
    if enough && limit.current.is_some_and(|now| now < FILES) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(FILES), maximum: limit.maximum }).unwrap();
    }
    enough
}

/// A line of `/proc/PID/status`, in KiB.
fn memory(server: &Server, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse().unwrap()
}

/// How many of these connections the server holds. One that it has closed belongs to nobody, whatever of it is still on its way.
fn held(address: SocketAddr, connections: &[TcpStream]) -> usize {
    let all = fs::read_to_string("/proc/net/tcp").unwrap();
    let here = format!(":{:04X}", address.port());
    let peers: BTreeSet<&str> = all
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields[1].ends_with(&here) && fields[9] != "0")
        .filter_map(|fields| fields[2].rsplit(':').next())
        .collect();
    let port = |connection: &TcpStream| format!("{:04X}", connection.local_addr().unwrap().port());
    connections.iter().filter(|connection| peers.contains(port(connection).as_str())).count()
}

/// Asks for a stream, or for a page, and does not read its answer.
async fn never_reads(address: SocketAddr, path: &str, accept: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    // Small segments and a small window: the socket of the server keeps little of what nobody reads.
    SockRef::from(&socket).set_tcp_mss(1_400).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let head =
        format!("GET /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// What a connection that was cut off had brought: the numbers of the entries that had arrived whole.
async fn had(mut stream: TcpStream) -> Vec<u64> {
    let (mut read, mut block) = (Vec::new(), vec![0; 256 * 1024]);
    // It ends, or breaks off.
    while let Ok(count @ 1..) = timeout(PATIENCE, stream.read(&mut block)).await.expect("it ends") {
        read.extend_from_slice(&block[..count]);
    }
    let text = String::from_utf8(read).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{}", &text[..text.len().min(200)]);
    let Some((whole, _)) = text.rsplit_once("\n\n") else { return Vec::new() };
    whole.lines().filter_map(|line| line.strip_prefix("id:")).map(|id| id.trim().parse().unwrap()).collect()
}

async fn journal(server: &Server, id: &str) -> Vec<Value> {
    let page = server.get(&format!("/runs/{id}/events?limit=1000")).await.is(200);
    assert_eq!(page["next_cursor"], Value::Null);
    page["items"].as_array().unwrap().clone()
}

/// A run of the clerk from its approval to its end.
async fn approved(server: &Server, id: &str, digest: &str) {
    let decision = json!({ "turn_digest": digest, "decision": "approve" });
    server.post(&format!("/runs/{id}/decision"), decision).await.is(202);
    server.until_state(id, "completed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_readers_of_whom_a_hundred_never_read_harm_no_run_and_no_server() {
    if !may_open_enough() {
        eprintln!("left out: this process may not open {FILES} files");
        return;
    }
    let first = "[[reply]]\ntext = \"I do it.\"\ncalls = [{ tool = \"ledger.append\", arguments = { text = \"hello\" } }]\n";
    let sandbox = Sandbox::with_script("", &(first.to_owned() + &replies(12, 1_024))).await;
    let config = fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    let config = config.replace("tools = [\"ledger.*\"]", "tools = [\"ledger.*\", \"notes.*\"]");
    sandbox.write("leasehold.toml", &(config + &MORE.replace("FAR", &sandbox.far.url("/notes"))));
    sandbox.write("long.toml", &replies(LONG.0, LONG.1));
    let server = sandbox.serve().await;

    // Without readers: how a run goes, and what one reader of a long one costs.
    let (alone, digest) = server.suspended().await;
    approved(&server, &alone, &digest).await;
    let as_alone = kinds(&journal(&server, &alone).await);
    let started = server.post("/runs", json!({ "agent": "long", "input": "write a lot", "mode": "wait" })).await.is(200);
    let long = text(&started, "/id");
    assert_eq!(started["state"], "completed");
    let path = format!("/runs/{long}/events");
    let whole = recorded(&server.stream(&path, None).await.rest().await);
    assert!(whole.len() > LONG.0 * 3, "{whole:?}");
    let before = memory(&server, "VmRSS");
    let address: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();

    let (id, digest) = server.suspended().await;
    let live = format!("/runs/{id}/events");
    let mut readers = join_all((0..READERS).map(|_| server.stream(&live, None))).await;
    let seen = join_all(readers.iter_mut().map(|reader| reader.until("suspended"))).await;
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        slow.push(never_reads(address, &path, "text/event-stream").await);
    }
    let page = [never_reads(address, &format!("{path}?limit=1000"), "application/json").await];
    // All are there at once.
    until(|| (held(address, &slow) + held(address, &page) == SLOW + 1).then_some(())).await;
    let reading: Vec<_> = readers.into_iter().map(|reader| tokio::spawn(reader.rest())).collect();
    approved(&server, &id, &digest).await;
    let entries = journal(&server, &id).await;
    assert_eq!(kinds(&entries), as_alone, "a run goes as without readers");
    for (mut seen, reader) in seen.into_iter().zip(reading) {
        seen.extend(timeout(PATIENCE, reader).await.expect("it ends").unwrap());
        let told: Vec<&Value> = seen.iter().filter(|event| event.id.is_some()).map(|event| &event.data).collect();
        assert!(told.iter().copied().eq(&entries), "who reads has everything, once");
    }

    // Those who never read are cut off, of whatever answer: the server has let go of their connections.
    until(|| {
        assert!(!server.said().contains("ending"), "{}", server.said());
        (held(address, &slow) + held(address, &page) == 0).then_some(())
    })
    .await;
    let most = memory(&server, "VmHWM");
    eprintln!("{before} KiB before, {most} KiB at most");
    assert!(most < before + MORE_KIB, "{before} KiB before, {most} KiB at most");
    let connections = join_all(slow.into_iter().map(had)).await;
    for had in &connections {
        assert!(had.len() < whole.len() && whole.starts_with(had), "it was cut off: {had:?}");
    }
    // One of them comes back where it was.
    let had = &connections[0];
    let request = server.request(Method::GET, &path).header("accept", "text/event-stream");
    let request = had.last().map(|last| request.try_clone().unwrap().header("last-event-id", *last)).unwrap_or(request);
    let rest = recorded(&Events::of(request).await.rest().await);
    assert_eq!([had.as_slice(), &rest].concat(), whole);
    let (again, digest) = server.suspended().await;
    approved(&server, &again, &digest).await;
    let said = server.said();
    assert!(!said.contains("panicked") && !said.contains("overloaded"), "{said}");
}
