//! `leasehold drill` with the real binary: every point of every write tool, counted where it arrives.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use crate::support::{self, Sandbox, command, said};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The built-in agent and the bundled site, as without any configuration.
const SITE: &str = "[[agent]]\nname = \"keeper\"\ntools = [\"site.*\"]\n";

type Cells = BTreeMap<(String, String), (u64, String)>;

fn cells(report: &Value) -> Cells {
    let items = report["items"].as_array().unwrap().iter().filter(|item| item["point"].is_string());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    items
        .map(|item| {
            assert_eq!((&item["ok"], &item["findings"]), (&json!(true), &json!([])), "{item}");
            assert!(item["not_drilled"].is_null(), "{item}");
            let settled = (item["entered"].as_u64().unwrap(), text(&item["settled_as"]));
            ((text(&item["tool"]), text(&item["point"])), settled)
        })
        .collect()
}

const NON_IDEMPOTENT: [(&str, u64, &str); 7] = [
    ("before_stamp", 1, "completed"),
    ("after_stamp", 0, "in doubt"),
    ("in_tool", 1, "in doubt"),
    ("after_return", 1, "in doubt"),
    ("after_record", 1, "completed"),
    ("paused_after_stamp", 1, "completed"),
    ("paused_in_tool", 1, "completed"),
];
const IDEMPOTENT: [(&str, u64, &str); 7] = [
    ("before_stamp", 1, "completed"),
    ("after_stamp", 1, "completed"),
    ("in_tool", 2, "completed"),
    ("after_return", 2, "completed"),
    ("after_record", 1, "completed"),
    ("paused_after_stamp", 1, "completed"),
    ("paused_in_tool", 2, "completed"),
];

fn assert_tool(cells: &Cells, tool: &str, twice: &str, expected: [(&str, u64, &str); 7]) {
    for (point, entered, settled) in expected.into_iter().chain([(twice, 1, "completed")]) {
        let found = &cells[&(tool.to_owned(), point.to_owned())];
        assert_eq!(found, &(entered, settled.to_owned()), "{tool} {point}");
    }
}

#[tokio::test]
async fn the_bundled_site_survives_every_point_and_the_configured_one_is_not_touched() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("leasehold.toml"), SITE).unwrap();
    let drilled = said(command(directory.path(), &["drill", "--json"])).await.exits(0);
    let report = drilled.json();
    let cells = cells(&report);
    assert_tool(&cells, "site.create_page", "decided_twice", NON_IDEMPOTENT);
    assert_tool(&cells, "site.update_page_metadata", "decided_twice", IDEMPOTENT);
    assert_eq!(cells.len(), 16);
    let left: Vec<&Value> = report["items"].as_array().unwrap().iter().filter(|item| item["point"].is_null()).collect();
    assert_eq!(left.len(), 2, "the reads: {left:?}");
    let there: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(there, ["leasehold.toml"], "no store and no site was made here");
}

#[tokio::test]
async fn an_http_tool_survives_every_point_at_a_stub_of_its_shape_and_its_endpoint_hears_nothing() {
    let sandbox = Sandbox::new("headers = { Authorization = \"secret\" }\noutcomes = { unknown = [200] }").await;
    let drilled = sandbox.leasehold(&["drill"]).await.exits(0);
    let lines = || drilled.out.lines().filter(|line| line.starts_with("ledger.append"));
    assert_eq!(lines().count(), 8, "{}", drilled.out);
    for (point, entered, settled) in NON_IDEMPOTENT {
        let row = format!("{} {entered} {settled}", point.replace('_', " "));
        let has = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ").contains(&row);
        assert!(lines().any(has), "{row} is missing:\n{}", drilled.out);
    }
    assert!(drilled.out.contains("8 points, all as they should be"), "{}", drilled.out);
    assert_eq!(sandbox.far.arrived().len(), 0, "the true endpoint was not called");
}

#[tokio::test]
async fn a_verify_settles_what_a_dead_worker_left_and_a_write_without_approval_is_claimed_once() {
    let verify = "verify = { method = \"GET\", url = \"http://far.example/{idempotency_key}\", settle_after = \"10m\" }";
    let sandbox = Sandbox::new(&format!("approval = \"none\"\n{verify}")).await;
    let report = sandbox.leasehold(&["drill", "--agent", "clerk", "--json"]).await.exits(0).json();
    let cells = cells(&report);
    let mut expected = NON_IDEMPOTENT;
    // What arrived is found by its key; what did not is evidence for a person.
    expected[2].2 = "completed";
    expected[3].2 = "completed";
    assert_tool(&cells, "ledger.append", "claimed_twice", expected);
    let row = &report["items"][0];
    let keys: BTreeSet<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
    let all = ["agents", "effect", "entered", "findings", "not_drilled", "ok", "point", "settled_as", "tool", "verify", "via"];
    assert_eq!(keys, BTreeSet::from(all));
    assert_eq!((&row["verify"], &row["agents"]), (&json!("in_doubt"), &json!(["clerk"])));
    assert_eq!(report["next_cursor"], Value::Null);
}

#[tokio::test]
async fn a_tool_that_cannot_be_set_up_or_has_no_sample_is_listed_and_costs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let tool = |name: &str, more: &str| {
        format!(
            "[[tool.http]]\nname = \"{name}\"\ndescription = \"d\"\neffect = \"non_idempotent_write\"\nmethod = \"POST\"\n\
             url = \"http://127.0.0.1:9/\"\n{more}\n"
        )
    };
    let text = [
        "[[agent]]\nname = \"a\"\ntools = [\"x.*\"]\n".to_owned(),
        tool("x.secret", "headers = { A = { env = \"NOT_THERE\" } }"),
        tool("x.odd", "parameters = { type = \"object\", required = [\"p\"], properties = { p = { pattern = \"^q{9}$\" } } }"),
    ];
    std::fs::write(directory.path().join("leasehold.toml"), text.concat()).unwrap();
    let report = said(command(directory.path(), &["drill", "--json"])).await.exits(0).json();
    let why = |at: usize| report["items"][at]["not_drilled"].as_str().unwrap().to_owned();
    assert!(why(0).contains("no arguments"), "{}", why(0));
    assert!(why(1).contains("NOT_THERE"), "{}", why(1));
    let unknown = said(command(directory.path(), &["drill", "--agent", "b"])).await.exits(2);
    assert!(unknown.err.contains("no agent `b`"), "{}", unknown.err);
}

#[tokio::test]
async fn nothing_true_is_called_without_a_person() {
    let sandbox = Sandbox::new("").await;
    let refused = sandbox.leasehold(&["drill", "--real"]).await.exits(2);
    assert!(refused.err.contains("really calls POST") && refused.err.contains("7 times"), "{}", refused.err);
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test]
async fn with_a_persons_yes_the_calls_go_to_the_true_endpoint_with_its_headers() {
    let sandbox = Sandbox::new("headers = { Authorization = \"Bearer t0k\" }").await;
    let mut terminal = sandbox.on_terminal(&["drill", "--real"]);
    terminal.shows("Really?").await;
    assert_eq!(sandbox.far.arrived().len(), 0);
    terminal.types("y");
    assert_eq!(terminal.exit().await, Some(0), "{}", terminal.seen());
    let arrived = sandbox.far.arrived();
    assert_eq!(arrived.len(), 7, "one of each point but after_stamp");
    for request in &arrived {
        assert_eq!((request.header("authorization"), request.uri.path()), ("Bearer t0k".to_owned(), "/append"));
        assert_eq!(request.text(), r#"{"text":"drill"}"#);
    }
    let keys: BTreeSet<String> = arrived.iter().map(|a| a.header("idempotency-key")).collect();
    assert_eq!(keys.len(), 7, "each of another run");
}

/// Processes whose command line names this directory.
fn processes_on(directory: &std::path::Path) -> Vec<u32> {
    let named = |id: &u32| {
        let line = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&*directory.to_string_lossy())
    };
    let ids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.filter(named).collect()
}

fn is_stopped(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

#[tokio::test]
async fn the_workers_of_a_drill_that_is_killed_end_with_it() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("leasehold.toml"), SITE).unwrap();
    let scenes = directory.path().join("scenes");
    std::fs::create_dir(&scenes).unwrap();
    let mut drill = command(directory.path(), &["drill"]);
    let mut drill = drill.env("TMPDIR", &scenes).stdout(std::process::Stdio::null()).spawn().unwrap();
    // One of them is stopped, and would neither hear of anything nor end by itself.
    support::until(|| processes_on(&scenes).into_iter().find(|id| is_stopped(*id))).await;
    drill.kill().await.unwrap();
    let since = std::time::Instant::now();
    let mut left = processes_on(&scenes);
    while !left.is_empty() && since.elapsed() < std::time::Duration::from_secs(5) {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        left = processes_on(&scenes);
    }
    for id in &left {
        std::process::Command::new("kill").args(["-9", &id.to_string()]).status().unwrap();
    }
    assert_eq!(left, Vec::<u32>::new(), "workers outlived their drill");
}
