//! What may be offered and called at all: one order of rules, named, for offering, execution and approval.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{Sandbox, text};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{APPEND_ONCE, Home, Ledger},
};
use serde_json::Value;

/// Adds this to the sandbox's configuration.
fn with(sandbox: &Sandbox, more: &str) {
    let file = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    sandbox.write("leasehold.toml", &format!("{file}\n{more}"));
}

async fn line(sandbox: &Sandbox) -> Value {
    let tools = sandbox.leasehold(&["tools", "--json"]).await.exits(0).json();
    tools["items"].as_array().unwrap().iter().find(|line| line["name"] == "ledger.append").unwrap().clone()
}

const CLASSED: &str = "[policy]\nclasses = { \"ledger.*\" = \"confidential\" }\n";

#[tokio::test(flavor = "multi_thread")]
async fn each_rule_that_denies_a_tool_is_named_without_running_anything() {
    for (more, rule, words) in [
        ("[policy]\ndisabled = [\"ledger.*\"]\n", "disabled", "switched off for every agent (`ledger.*`)"),
        (CLASSED, "data_class", "its data is confidential, and the provider of the agent's model may see public data at most"),
    ] {
        let sandbox = Sandbox::new("").await;
        with(&sandbox, more);
        let line = line(&sandbox).await;
        assert_eq!((text(&line, "/denied/clerk/rule"), &line["agents"]), (rule.into(), &serde_json::json!([])), "{line}");
        assert!(text(&line, "/denied/clerk/why").contains(words), "{line}");
        let said = sandbox.leasehold(&["tools", "--why"]).await.exits(0);
        assert!(said.out.contains(&format!("not to clerk ({rule})")) && said.out.contains(words), "{said:?}");
        // The model asks for it all the same, whether it is offered something else or nothing, and hears why it is not called.
        let file = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
        let another = file.replace("[\"ledger.*\"]\n[[tool", "[\"ledger.*\", \"site.list_pages\"]\n[[tool");
        assert_ne!(another, file);
        for configuration in [file, another] {
            sandbox.write("leasehold.toml", &configuration);
            let said = sandbox.leasehold(&["run", "go", "--json"]).await.exits(0).json();
            assert_eq!(said["rounds"], 2, "{said}");
            let events = sandbox.events(&text(&said, "/id")).await;
            let outcome = events.iter().find(|event| event["kind"] == "tool_outcome").unwrap();
            assert_eq!(text(outcome, "/payload/outcome"), "refused");
            assert!(text(outcome, "/payload/result").contains(&format!("is not offered now ({rule})")), "{outcome}");
        }
        assert_eq!(sandbox.far.arrived().len(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_comes_while_a_call_waits_is_asked_again_when_it_was_approved() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    with(&sandbox, "[policy]\ndisabled = [\"ledger.append\"]\n");
    sandbox.leasehold(&["approve", &id, "--digest", &digest]).await.exits(3);
    let run = sandbox.show(&id).await;
    let why = text(&run, "/waiting/calls/0/why");
    assert!(why.contains("`ledger.append` is not offered any more (disabled)"), "{why}");
    assert_ne!(text(&run, "/waiting/turn_digest"), digest);
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn observed_classes_are_said_and_bind_nobody_and_placed_models_may_see_more() {
    let observed = CLASSED.replace("[policy]\n", "[policy]\ndata_classes = \"observe\"\n");
    for (more, zone, is_said) in [(observed.as_str(), "", true), (CLASSED, "zone = \"confidential\"", false)] {
        let sandbox = Sandbox::new("approval = \"none\"").await;
        with(&sandbox, more);
        let file = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
        sandbox.write("leasehold.toml", &file.replace("script = ", &format!("{zone}\nscript = ")));
        assert_eq!(line(&sandbox).await["agents"], serde_json::json!(["clerk"]));
        let said = sandbox.leasehold(&["run", "go"]).await.exits(0);
        assert_eq!(said.err.contains("a call is let through: its data is confidential"), is_said, "{said:?}");
        assert_eq!(sandbox.far.arrived().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_that_names_no_tool_is_refused_with_its_line() {
    for (more, line) in [
        ("[policy]\ndisabled = [\"ledgers.*\"]\n", "disabled"),
        ("[policy]\nclasses = { \"ledger.apend\" = \"internal\" }\n", "classes"),
        ("[policy]\nclasses = { \"ledger.append\" = \"secret\" }\n", "secret_adjacent"),
    ] {
        let sandbox = Sandbox::new("").await;
        with(&sandbox, more);
        let said = sandbox.leasehold(&["tools"]).await.exits(2);
        assert!(said.err.contains("leasehold.toml:") && said.err.contains(line), "{said:?}");
    }
}

/// A process that stops at a point, whose configuration is edited there, and that goes on to its end.
async fn edited_at(point: &str, effect: &str, far: &FarSide, edit: (&str, &str)) -> Home {
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    home.ledger(far, Ledger { effect, approval: "none", timeout: "5s" }, APPEND_ONCE);
    let mut run = home.start(&["run", "go"], Some(point));
    run.stopped().await;
    let file = home.path().join("leasehold.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    let after = before.replacen(edit.0, edit.1, 1);
    assert_ne!(before, after);
    std::fs::write(file, after).unwrap();
    run.go_on();
    run.ended().await;
    home
}

/// What the agent of the configuration gains.
const AGENT: (&str, &str) = ("tools = [\"ledger.append\"]", "tools = [\"ledger.append\"]\ndisabled = [\"ledger.append\"]");

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_of_an_agent_while_its_model_answers_counts_for_the_write_that_it_asks_for() {
    let renamed = ("name = \"a\"", "name = \"b\"");
    let reached = ("approval = \"none\"", "approval = \"required\"");
    for edit in [AGENT, renamed, reached] {
        let far = FarSide::start().await.unwrap();
        edited_at("before_model", "non_idempotent_write", &far, edit).await;
        assert_eq!(far.arrived().len(), 0, "{edit:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_to_be_repeated_is_not_once_it_is_switched_off_or_goes_elsewhere() {
    let elsewhere = FarSide::start().await.unwrap();
    let everywhere = ("[[agent]]", "[policy]\ndisabled = [\"ledger.append\"]\n[[agent]]");
    let other = elsewhere.url("/append");
    for edit in [AGENT, everywhere, ("name = \"a\"", "name = \"b\""), ("url = \"", "url = \"OTHER")] {
        let far = FarSide::start().await.unwrap();
        far.then([Then::HangUp]);
        let own = far.url("/append");
        let edit = if edit.1.ends_with("OTHER") { (own.as_str(), other.as_str()) } else { edit };
        edited_at("after_return", "idempotent_write", &far, edit).await;
        assert_eq!((far.arrived().len(), elsewhere.arrived().len()), (1, 0), "{edit:?}");
    }
}
