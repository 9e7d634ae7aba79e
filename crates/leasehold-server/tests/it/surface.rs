//! What a person types and sees: prompts that nothing else can answer or draw, edits that are shown as they will run, and
//! complaints that help.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::support::{Sandbox, command, kinds, one_call, said, text};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_typed_before_a_question_does_not_answer_it() {
    let script = one_call("ledger.append", "{ text = \"x\" }").replacen("[[reply]]\n", "[[reply]]\npause = \"1s\"\n", 1);
    let sandbox = Sandbox::with_script("", &script).await;
    let mut terminal = sandbox.on_terminal(&["run", "note hello"]);
    terminal.shows("started by").await;
    terminal.types("a");
    terminal.types("a");
    terminal.shows("[a]pprove, [d]eny or [s]kip?").await;
    terminal.types("s");
    assert_eq!(terminal.exit().await, Some(3), "{}", terminal.seen());
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_counts_the_columns_of_the_terminal_draws_no_question_of_its_own() {
    let forged = format!("{}  [a]pprove, [d]eny or [s]kip? a{}    effect     reads only", "x".repeat(67), " ".repeat(48));
    let script = one_call("ledger.append", &format!("{{ text = \"{forged}\" }}"));
    let sandbox = Sandbox::with_script("", &script).await;
    let mut terminal = sandbox.on_terminal(&["run", &forged]);
    terminal.shows("\n  [a]pprove, [d]eny or [s]kip? ").await;
    let seen = terminal.seen();
    // What the terminal shows in 80 columns: no row of it may begin like one of ours, but the one that asks.
    let rows: Vec<String> = seen
        .lines()
        .flat_map(|line| {
            let chars: Vec<char> = line.trim_end_matches('\r').chars().collect();
            chars.chunks(80).map(|row| row.iter().collect::<String>()).collect::<Vec<_>>()
        })
        .collect();
    let asks = rows.iter().filter(|row| row.trim_start().starts_with("[a]pprove")).count();
    assert_eq!(asks, 1, "{rows:#?}");
    assert!(!rows.iter().any(|row| row.starts_with("    effect     reads only")), "{rows:#?}");
    terminal.types("s");
    assert_eq!(terminal.exit().await, Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_at_a_terminal_is_shown_before_what_came_of_it() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    let denied = sandbox.leasehold(&["deny", &id, "--digest", &digest, "--reason", "not today"]).await.exits(0);
    assert!(denied.err.contains("denied t1c0 (not today)"), "{}", denied.err);
    assert!(denied.err.find("denied t1c0") < denied.err.find("denied, not run"), "{}", denied.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_shows_changed_arguments_as_they_will_run() {
    let call = |text: &str| format!("{{ tool = \"ledger.append\", arguments = {{ text = \"{text}\" }} }}");
    let script =
        format!("[[reply]]\ncalls = [{}, {}]\n[[reply]]\ntext = \"done\"\n", call("first words"), call("second words"));
    let sandbox = Sandbox::with_script("", &script).await;
    let (id, digest) = sandbox.suspended().await;
    let edit = ["approve", &id, "--digest", &digest, "--call", "t1c1", "--arguments", "{\"text\": \"better words\"}"];
    sandbox.leasehold(&edit).await.exits(3);
    let shown = sandbox.leasehold(&["runs", "show", &id]).await.exits(0).out;
    let card = &shown[..shown.find("to decide about").unwrap()];
    assert!(card.contains("better words") && !card.contains("second words"), "{card}");
    assert!(card.contains("first words"), "{card}");
    let run = sandbox.show(&id).await;
    assert_eq!(text(&run, "/waiting/calls/1/arguments/text"), "better words");
    assert_eq!(text(&run, "/waiting/calls/1/decision"), "approve");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_arguments_takes_preview_and_precondition_of_the_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let waiting = said(command(dir.path(), &["run", "tidy up", "--json"])).await.exits(3).json();
    let (id, digest) = (text(&waiting, "/id"), text(&waiting, "/waiting/turn_digest"));
    let instead = "{\"page\":\"berths\",\"fields\":{\"title\":\"All berths\"}}";
    let approve = ["approve", &id, "--digest", &digest, "--arguments", instead, "--json"];
    let done = said(command(dir.path(), &approve)).await.exits(0).json();
    assert_eq!(text(&done, "/state"), "completed", "another field is another precondition, and nothing has changed in it");
    let events = said(command(dir.path(), &["runs", "follow", &id, "--json"])).await.exits(0);
    let events: Vec<serde_json::Value> = events.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kinds(&events).iter().filter(|kind| *kind == "suspended").count(), 1);
    let approval = events.iter().find(|event| event["kind"] == "approval").unwrap();
    let taken = &approval["payload"]["calls"][0]["edited_card"];
    assert_eq!(taken["preview"], "title: \"Berths\" -> \"All berths\"");
    assert_eq!(taken["precondition"], "{\"title\":\"Berths\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_complaint_about_what_was_typed_makes_it_visible() {
    let dir = tempfile::tempdir().unwrap();
    let evil = "\u{1b}[2J\r\u{202e}\u{200b}x\nA person has to decide";
    for arguments in
        [&[evil][..], &["runs", "list", "--state", evil], &["runs", "list", "--cursor", evil], &["run", "--x", evil]]
    {
        let said = said(command(dir.path(), arguments)).await.exits(2);
        let raw = |c: char| c != '\n' && (c.is_control() || matches!(c, '\u{202e}' | '\u{200b}'));
        assert!(!said.err.chars().any(raw), "{said:?}");
        assert!(!said.err.lines().any(|line| line.starts_with("A person has to decide")), "{said:?}");
        assert!(said.err.starts_with("error: "), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_that_names_nothing_is_answered_with_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, named) in [
        (["runs", "list", "--state", "waiting"], "waiting_for_approval"),
        (["runs", "list", "--reason", "doubt"], "write_in_doubt"),
    ] {
        let said = said(command(dir.path(), &arguments)).await.exits(2);
        assert!(said.err.contains(named), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_page_says_that_it_is_the_last() {
    let sandbox = Sandbox::with_script("", "[[reply]]\ntext = \"hi\"\n").await;
    for _ in 0..2 {
        sandbox.leasehold(&["run", "x"]).await.exits(0);
    }
    let whole = sandbox.leasehold(&["runs", "list", "--limit", "2", "--json"]).await.exits(0).json();
    assert_eq!((whole["items"].as_array().unwrap().len(), &whole["next_cursor"]), (2, &json!(null)));
    let half = sandbox.leasehold(&["runs", "list", "--limit", "1", "--json"]).await.exits(0).json();
    assert_eq!(half["next_cursor"], half["items"][0]["id"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_variable_names_no_file_and_no_server() {
    let sandbox = Sandbox::new("").await;
    let mut asked = sandbox.command(&["agents", "--json"]);
    asked.env("LEASEHOLD_CONFIG", "").env("LEASEHOLD_URL", "").env("LEASEHOLD_LOG", "");
    let agents = said(asked).await.exits(0).json();
    assert_eq!(agents["items"][0]["name"], "clerk");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_filter_that_is_none_is_said() {
    let sandbox = Sandbox::new("").await;
    let mut asked = sandbox.command(&["agents"]);
    asked.env("LEASEHOLD_LOG", "=====[");
    let agents = said(asked).await.exits(0);
    assert!(agents.err.contains("LEASEHOLD_LOG"), "{agents:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_input_that_a_shell_makes_easily_is_wrong_use() {
    let sandbox = Sandbox::new("").await;
    sandbox.leasehold(&["run", "--queue", "--key", "", "x"]).await.exits(2);
    std::fs::write(sandbox.path("prompt"), b"\xff").unwrap();
    let mut asked = sandbox.command(&["run", "-"]);
    asked.stdin(std::fs::File::open(sandbox.path("prompt")).unwrap());
    let wrong = said(asked).await.exits(2);
    assert!(wrong.err.contains("UTF-8"), "{wrong:?}");
    let endless = sandbox.leasehold(&["--config", "/dev/zero", "config"]).await.exits(2);
    assert!(endless.err.contains("longer than"), "{endless:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_shows_what_a_tool_may_do() {
    let verify = "verify = { method = \"GET\", url = \"http://h/{idempotency_key}\", absent = \"not_applied\" }";
    let sandbox = Sandbox::new(&format!("approval = \"none\"\noutcomes = {{ done = [409] }}\n{verify}")).await;
    let config = sandbox.leasehold(&["config", "--json"]).await.exits(0).json();
    let tool = &config["tool.http"][0];
    let value = |key: &str| tool[key]["value"].clone();
    assert_eq!(
        json!([value("approval"), value("timeout"), value("max_response"), value("body"), value("outcomes.done")]),
        json!(["none", "2s", "1048576B", "json", [409]])
    );
    assert_eq!(value("parameters")["required"], json!(["text"]));
    assert_eq!(json!([value("verify.settle_after"), value("verify.absent")]), json!(["0s", "not_applied"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demo_that_is_left_leaves_nothing_behind() {
    let sandbox = Sandbox::new("").await;
    std::fs::create_dir(sandbox.path("tmp")).unwrap();
    let tmp = sandbox.path("tmp");
    let mut terminal = sandbox.on_terminal_with(&["demo"], |command| {
        command.env("TMPDIR", &tmp);
    });
    terminal.shows("Approve exactly this?").await;
    terminal.interrupts();
    assert_eq!(terminal.exit().await, Some(1), "{}", terminal.seen());
    assert_eq!(std::fs::read_dir(&tmp).unwrap().count(), 0);
}
