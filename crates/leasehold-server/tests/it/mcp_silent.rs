//! MCP servers that never answer, hang in the handshake, never list their tools or end at once: they hold up who asks for their tools,
//! for as long as they are allowed to, and nothing else; and what was started for a server ends with who started it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{
    Sandbox,
    mcp::{Place, once},
    one_call, until,
};
use leasehold::run::State;
use leasehold_testkit::{far_side::FarSide, home::Running, mcp};
use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

/// To start, to claim and to end, on a machine that is busy.
const SOON: Duration = Duration::from_secs(12);

const ANSWERS_THE_FIRST: &str =
    r#"read line; echo '{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}'; sleep 600"#;
/// Its process has a child that is to end with it, and both have the place in their arguments.
const SLEEPS_IN_A_CHILD: &str = r#"sh -c 'sleep 600; true' "$0"; true"#;
const NEVER_LISTS: &str = r#"read line; echo '{"jsonrpc":"2.0","id":0,"error":{"code":-32601,"message":"no"}}'
read line; echo '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"n","version":"1"}}}'
sleep 600"#;

/// Name and script of each.
const SILENT: [(&str, &str); 4] =
    [("silent", SLEEPS_IN_A_CHILD), ("handshake", ANSWERS_THE_FIRST), ("lists", NEVER_LISTS), ("ends", "exit 3")];

/// Sections of all of them, and of one behind a port that accepts and says nothing.
fn sections(place: &Place, timeout: &str, port: u16) -> String {
    let mut text = String::new();
    for (name, script) in SILENT {
        let here = place.home.path().display().to_string();
        let command = serde_json::Value::from(vec!["sh", "-c", script, here.as_str()]);
        text.push_str(&format!("[[mcp]]\nname = \"{name}\"\ncommand = {command}\ntimeout = \"{timeout}\"\n"));
    }
    text.push_str(&format!("[[mcp]]\nname = \"port\"\nurl = \"http://127.0.0.1:{port}/mcp\"\ntimeout = \"{timeout}\"\n"));
    text
}

fn ledger(far: &FarSide) -> String {
    format!(
        "[[tool.http]]\nname = \"ledger.append\"\ndescription = \"Appends\"\neffect = \"non_idempotent_write\"\napproval = \"none\"\n\
         method = \"POST\"\nurl = \"{}\"\nparameters = {{ type = \"object\" }}\n",
        far.url("/append")
    )
}

/// Its children that are over and not reaped.
fn zombies_of(process: &Running) -> usize {
    let parent = process.id().to_string();
    let stats = std::fs::read_dir("/proc").unwrap().flatten();
    let stats = stats.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let is_one = |stat: &String| {
        let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        fields.next() == Some("Z") && fields.next() == Some(&parent)
    };
    stats.filter(is_one).count()
}

#[tokio::test]
async fn servers_that_say_nothing_hold_up_neither_the_start_nor_other_tools_nor_the_end() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    for verb in ["worker", "serve"] {
        let Some(place) = Place::new().await else { return };
        let far = FarSide::start().await.unwrap();
        let sections = sections(&place, "60s", port.local_addr().unwrap().port());
        place.configure_more(&format!("{}{sections}", ledger(&far)), r#"["ledger.*"]"#);
        place.script(&one_call("ledger.append", "{}"));
        let begun = Instant::now();
        let mut process = place.running(verb);
        for _ in 0..2 {
            let id = place.home.enqueue().await;
            place.home.until(id, "completed", |row| row.state == State::Completed).await;
        }
        assert_eq!(far.arrived().len(), 2);
        assert!(begun.elapsed() < SOON, "{verb}: {:?}", begun.elapsed());
        // The one that ends at once was tried more than once by now, and each time to its end.
        assert_eq!(zombies_of(&process), 0, "{verb}");
        assert!(place.processes().len() > 1, "{verb}: they are there: {:?}", place.processes());
        let asked = Instant::now();
        process.signal("TERM");
        process.ended().await;
        assert!(asked.elapsed() < SOON, "{verb}: {:?}", asked.elapsed());
        assert_eq!(process.wait(), Some(0), "{verb}");
        until(|| place.processes().is_empty().then_some(())).await;
    }
}

#[tokio::test]
async fn a_run_in_the_foreground_waits_as_long_as_a_server_may_take_and_says_what_it_does_not_have() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let Some(place) = Place::new().await else { return };
    let far = FarSide::start().await.unwrap();
    let sections = sections(&place, "3s", port.local_addr().unwrap().port());
    place.script(&one_call("ledger.append", "{}"));
    let names = SILENT.map(|(name, _)| name).into_iter().chain(["port"]);
    let patterns: Vec<String> = names.clone().map(|name| format!("\"{name}.*\"")).collect();
    place.configure_more(&format!("{}{sections}", ledger(&far)), &format!("[\"ledger.*\", {}]", patterns.join(", ")));
    let begun = Instant::now();
    let ran = place.ends(&["run", "note a line"], 0).await;
    assert!(begun.elapsed() < Duration::from_secs(3) + SOON, "{:?}", begun.elapsed());
    for name in names.clone() {
        assert!(ran.stderr().contains(&format!("{name}.*: not offered: ")), "{name}: {ran}");
    }
    assert_eq!(far.arrived().len(), 1, "what there is can be called");
    assert_eq!(place.processes(), Vec::<String>::new(), "nothing is left");

    // Nobody waits for servers of which the agent is offered nothing.
    place.configure_more(&format!("{}{}", ledger(&far), sections.replace("3s", "60s")), r#"["ledger.*"]"#);
    let begun = Instant::now();
    let ran = place.ends(&["run", "note a line"], 0).await;
    assert!(begun.elapsed() < SOON && !ran.stderr().contains("not offered"), "{:?}: {ran}", begun.elapsed());

    for name in names {
        place.configure_more(&format!("{}{sections}", ledger(&far)), r#"["ledger.*"]"#);
        let ran = place.ends(&["mcp", "probe", name], 1).await;
        assert!(ran.stderr().contains(&format!("mcp server `{name}`")), "{ran}");
        assert_eq!(place.processes(), Vec::<String>::new(), "{name}: nothing is left");
    }
}

/// Under a worker the run of an agent that is offered tools of such a server goes on without them when its time is over.
#[tokio::test]
async fn a_run_under_a_worker_goes_on_without_a_server_that_says_nothing() {
    let Some(place) = Place::new().await else { return };
    let far = FarSide::start().await.unwrap();
    let sections = sections(&place, "3s", 9);
    place.configure_more(&format!("{}{sections}", ledger(&far)), r#"["ledger.*", "silent.*", "lists.*"]"#);
    place.script(&one_call("ledger.append", "{}"));
    let id = place.home.enqueue().await;
    let process = place.home.start(&["worker"], None);
    place.home.until(id, "completed", |row| row.state == State::Completed).await;
    assert_eq!(far.arrived().len(), 1);
    drop(process);
}

/// It can be told to end while its run waits for such a server.
#[tokio::test]
async fn a_worker_whose_run_waits_for_a_server_ends_when_it_is_told_to() {
    let Some(place) = Place::new().await else { return };
    place.configure_more(&sections(&place, "60s", 9), r#"["silent.*"]"#);
    place.script(&once("silent.append"));
    let id = place.home.enqueue().await;
    let mut process = place.home.start(&["worker"], None);
    place.home.until(id, "claimed", |row| row.state == State::Running).await;
    until(|| place.processes().iter().any(|line| line.contains("sleep")).then_some(())).await;
    let asked = Instant::now();
    process.signal("TERM");
    process.ended().await;
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    assert_eq!(place.home.row(id).await.state, State::Queued, "it is handed back");
    until(|| place.processes().is_empty().then_some(())).await;
}

/// A server reads the end of its input when who started it is killed, and ends.
#[tokio::test]
async fn servers_of_a_process_that_is_killed_end_with_it() {
    let Some(place) = Place::new().await else { return };
    let here = place.home.path().display().to_string();
    let mut sections = format!("[[mcp]]\nname = \"notes\"\n{}\n", place.by_pipes());
    let mut add = |name: &str, command: Vec<String>| {
        sections.push_str(&format!("[[mcp]]\nname = \"{name}\"\ncommand = {}\n", serde_json::Value::from(command)));
    };
    for name in ["memory", "filesystem", "everything"] {
        if let Some(program) = mcp::npm(&format!("mcp-server-{name}")).await {
            let what = if name == "everything" { "stdio".into() } else { here.clone() };
            add(name, vec![program, what, here.clone()]);
        }
    }
    if let (Some(python), Some(mut own)) = (mcp::python().await, mcp::own().await) {
        add("time", vec![python, "-m".into(), "mcp_server_time".into(), "--local-timezone=UTC".into()]);
        own.push(here.clone());
        add("own", own);
    }
    place.configure_more(&sections, r#"["notes.*"]"#);
    for verb in ["worker", "serve"] {
        // Nobody has asked them yet.
        for file in ["leasehold.db", "leasehold.db-wal", "leasehold.db-shm"] {
            std::fs::remove_file(place.home.path().join(file)).ok();
        }
        let mut process = place.running(verb);
        let children = |of: &Running| {
            let parent = of.id().to_string();
            let stats = std::fs::read_dir("/proc").unwrap().flatten();
            let ids = stats.filter_map(|entry| {
                let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
                let is_child = stat.rsplit(") ").next()?.split(' ').nth(1)? == parent;
                is_child.then(|| entry.path())
            });
            ids.collect::<Vec<_>>()
        };
        let count = sections.matches("[[mcp]]").count();
        until(|| (children(&process).len() == count).then_some(())).await;
        let servers = children(&process);
        process.kill();
        until(|| servers.iter().all(|server| !server.exists()).then_some(())).await;
        until(|| place.processes().is_empty().then_some(())).await;
    }
}

/// Whoever is interrupted, or told to end, while a server keeps silent leaves no process of it behind.
#[tokio::test]
async fn who_asks_a_silent_server_can_be_interrupted_and_leaves_nothing() {
    let Some(place) = Place::new().await else { return };
    place.configure_more(&sections(&place, "60s", 9), r#"["silent.*"]"#);
    place.script(&once("silent.append"));
    let asks: [&[&str]; 3] = [&["mcp", "probe", "silent"], &["run", "note a line"], &["worker", "--once"]];
    for arguments in asks {
        for signal in ["INT", "TERM"] {
            let mut process = place.home.start(arguments, None);
            until(|| place.processes().iter().any(|line| line.contains("sleep")).then_some(())).await;
            let asked = Instant::now();
            process.signal(signal);
            process.ended().await;
            assert!(asked.elapsed() < SOON, "{arguments:?}, {signal}: {:?}", asked.elapsed());
            until(|| place.processes().is_empty().then_some(())).await;
        }
    }
}

/// A server that is asked through the API.
#[tokio::test]
async fn a_question_of_the_api_to_a_silent_server_holds_up_neither_other_questions_nor_the_end() {
    let Some(place) = Place::new().await else { return };
    let sandbox = Sandbox::new("").await;
    let configuration = place.configuration(&sections(&place, "60s", 9), "[]");
    sandbox.write("leasehold.toml", &configuration);
    let server = sandbox.serve().await;
    let probe = tokio::spawn(server.posting("/mcp/silent/probe", "{}").send());
    until(|| place.processes().iter().any(|line| line.contains("sleep")).then_some(())).await;
    let begun = Instant::now();
    assert_eq!(server.get("/mcp").await.is(200)["items"].as_array().unwrap().len(), 5);
    assert!(begun.elapsed() < SOON);
    server.signal(rustix::process::Signal::TERM);
    let (code, said) = server.ended().await;
    assert!(code == Some(0) && begun.elapsed() < SOON, "{code:?} after {:?}: {said}", begun.elapsed());
    probe.abort();
    until(|| place.processes().is_empty().then_some(())).await;
}
