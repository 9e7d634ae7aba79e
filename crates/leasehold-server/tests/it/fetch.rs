//! `[tool.fetch]` in the command: a whole run, and what keeps it from being offered.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{Sandbox, one_call, said, text};
use leasehold_testkit::far_side::Then;
use serde_json::json;

/// A clerk that is offered the tool and gets the far side's page.
async fn sandbox(section: &str) -> Sandbox {
    let sandbox = Sandbox::new("").await;
    let url = sandbox.far.url("/page");
    sandbox.write("script.toml", &one_call("fetch.get", &format!("{{ url = \"{url}\" }}")));
    let file = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    let file = file.replace("[\"ledger.*\"]", "[\"ledger.*\", \"fetch.*\"]");
    let section = section.replace("FAR", sandbox.far.url("").trim_end_matches('/'));
    sandbox.write("leasehold.toml", &format!("{file}\n{section}"));
    sandbox
}

const OPEN: &str = "[tool.fetch]\nallow = [\"FAR\"]\nallow_networks = [\"127.0.0.0/8\"]\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_reads_a_page_that_the_operator_allows() {
    let sandbox = sandbox(OPEN).await;
    let listed = sandbox.leasehold(&["tools", "--json"]).await.exits(0).json();
    let line = listed["items"].as_array().unwrap().iter().find(|line| line["name"] == "fetch.get").unwrap().clone();
    assert_eq!((&line["effect"], &line["agents"]), (&json!("read_only"), &json!(["clerk"])), "{line}");
    let shown = sandbox.leasehold(&["config"]).await.exits(0).out;
    assert!(shown.contains("[tool.fetch]") && shown.contains("allow_networks = [\"127.0.0.0/8\"]"), "{shown}");
    // A proxy of the environment would be asked, and there is none.
    let mut command = sandbox.command(&["run", "--json", "read the page"]);
    command
        .env("HTTP_PROXY", "http://127.0.0.1:9")
        .env("http_proxy", "http://127.0.0.1:9")
        .env("ALL_PROXY", "http://127.0.0.1:9");
    let run = said(command).await.exits(0).json();
    let events = sandbox.events(&text(&run, "/id")).await;
    let outcome = events.iter().find(|event| event["kind"] == "tool_outcome").unwrap();
    let result = &outcome["payload"]["result"];
    assert_eq!(result["status"], 200, "{outcome}");
    assert_eq!(result["url"], sandbox.far.url("/page"));
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_told_why_a_page_is_not_fetched() {
    for (section, words) in [
        ("[tool.fetch]\nallow = [\"FAR\"]\n", "the address 127.0.0.1 is refused (loopback)"),
        (
            "[tool.fetch]\nallow = [\"docs.example.com\"]\nallow_networks = [\"127.0.0.0/8\"]\n",
            "is not among what may be fetched",
        ),
    ] {
        let sandbox = sandbox(section).await;
        sandbox.far.then([Then::HangUp]);
        let run = sandbox.leasehold(&["run", "--json", "read the page"]).await.exits(0).json();
        let events = sandbox.events(&text(&run, "/id")).await;
        let outcome = events.iter().find(|event| event["kind"] == "tool_outcome").unwrap();
        assert!(text(outcome, "/payload/result").contains(words), "{outcome}");
        assert_eq!(sandbox.far.arrived().len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_section_is_said_with_its_line() {
    for (section, key, words) in [
        ("", "tools = ", "there is no such tool"),
        ("[tool.fetch]\n", "[tool.fetch]", "allow"),
        ("[tool.fetch]\nallow = [\"*\"]\n", "allow", "elsewhere than before the first dot"),
        ("[tool.fetch]\nallow = [\"a.example\"]\nallow_networks = [\"10.0.0.1/8\"]\n", "allow_networks", "10.0.0.0/8"),
        ("[tool.fetch]\nallow = [\"a.example\"]\nheaders = {}\n", "headers", "unknown key"),
        (
            "[tool.fetch]\nallow = [\"a.example\"]\n[[mcp]]\nname = \"fetch\"\ncommand = [\"x\"]\n",
            "name = \"fetch\"",
            "two sources",
        ),
    ] {
        let sandbox = sandbox(section).await;
        let file = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
        let line = file.lines().position(|line| line.starts_with(key)).unwrap() + 1;
        let said = sandbox.leasehold(&["tools"]).await.exits(2);
        assert!(
            said.err.contains(&format!("leasehold.toml:{line}: ")) && said.err.contains(words),
            "{line} {section} {said:?}"
        );
    }
}
