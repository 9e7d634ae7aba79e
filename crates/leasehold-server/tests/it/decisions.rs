//! A write waits for a person; the decision comes from another process, or from the terminal.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::support::{self, Sandbox, kinds, one_call, text};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_write_is_approved_from_a_second_process_and_arrives_once_with_its_key() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    assert_eq!(sandbox.far.arrived().len(), 0);
    let said = sandbox.leasehold(&["approve", &id, "--digest", &digest, "--json"]).await.exits(0);
    let run = said.json();
    assert_eq!(text(&run, "/state"), "completed");
    assert_eq!(run["fence"], json!(null));
    let arrived = sandbox.far.arrived();
    assert_eq!(arrived.len(), 1);
    assert!(arrived[0].header("idempotency-key").starts_with("lh-"));
    assert_eq!(arrived[0].header("leasehold-run"), id);
    assert_eq!(arrived[0].header("leasehold-fencing-token"), "2");
    let events = sandbox.events(&id).await;
    let stamped = events.iter().find(|event| event["kind"] == "write_stamped").unwrap();
    assert!(text(stamped, "/holder").starts_with("resume:"), "{stamped}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_decision_again_gets_the_same_answer_and_another_one_is_refused() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    sandbox.leasehold(&["approve", &id, "--digest", &digest]).await.exits(0);
    sandbox.leasehold(&["approve", &id, "--digest", &digest]).await.exits(0);
    sandbox.leasehold(&["deny", &id, "--digest", &digest]).await.exits(1);
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_about_something_else_changes_nothing() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    let stale = digest.replace(|c: char| c.is_ascii_digit(), "0");
    let said = sandbox.leasehold(&["approve", &id, "--digest", &stale]).await.exits(1);
    assert!(said.err.contains("stale_turn"), "{said:?}");
    assert_eq!(text(&sandbox.show(&id).await, "/waiting/turn_digest"), digest);
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_is_told_to_the_model_with_its_reason() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    let run = sandbox.leasehold(&["deny", &id, "--digest", &digest, "--reason", "not today", "--json"]).await.exits(0).json();
    assert_eq!(text(&run, "/state"), "completed");
    assert_eq!((text(&run, "/decisions/0/decision"), text(&run, "/decisions/0/reason")), ("deny".into(), "not today".into()));
    assert_eq!(sandbox.far.arrived().len(), 0);
    let outcome = sandbox.events(&id).await.into_iter().find(|event| event["kind"] == "tool_outcome").unwrap();
    assert_eq!(text(&outcome, "/payload/outcome"), "denied");
    assert!(outcome["payload"]["result"].to_string().contains("not today"), "{outcome}");
}

const TWO_CALLS: &str = r#"
[[reply]]
calls = [
  { tool = "ledger.append", arguments = { text = "one" } },
  { tool = "ledger.append", arguments = { text = "two" } },
]
[[reply]]
text = "Done."
"#;

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_decided_one_by_one_and_each_decision_hits_its_own() {
    let sandbox = Sandbox::with_script("", TWO_CALLS).await;
    let (id, digest) = sandbox.suspended().await;
    let run = sandbox.leasehold(&["deny", &id, "--digest", &digest, "--call", "t1c0", "--json"]).await.exits(3).json();
    assert_eq!(
        (text(&run, "/waiting/calls/0/decision"), &run["waiting"]["calls"][1]["decision"]),
        ("deny".into(), &json!(null))
    );
    assert_eq!(sandbox.far.arrived().len(), 0);
    sandbox.leasehold(&["approve", &id, "--digest", &digest]).await.exits(0);
    let arrived = sandbox.far.arrived();
    assert_eq!(arrived.len(), 1);
    assert!(arrived[0].text().contains("two"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_can_change_the_arguments_and_they_are_checked() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    sandbox.leasehold(&["approve", &id, "--digest", &digest, "--arguments", "[]"]).await.exits(2);
    sandbox.leasehold(&["approve", &id, "--digest", &digest, "--arguments", "{\"txt\": \"x\"}"]).await.exits(1);
    assert_eq!(sandbox.far.arrived().len(), 0);
    sandbox.leasehold(&["approve", &id, "--digest", &digest, "--arguments", "{\"text\": \"changed\"}"]).await.exits(0);
    assert!(sandbox.far.arrived()[0].text().contains("changed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_can_be_left_to_a_worker() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    let said = sandbox.leasehold(&["approve", &id, "--digest", &digest, "--no-wait"]).await.exits(0);
    assert!(said.err.contains("no worker is running"), "{said:?}");
    assert_eq!(text(&sandbox.show(&id).await, "/state"), "queued");
    sandbox.leasehold(&["worker", "--once", &id]).await.exits(0);
    assert_eq!(text(&sandbox.show(&id).await, "/state"), "completed");
    let events = sandbox.events(&id).await;
    let stamped = events.iter().find(|event| event["kind"] == "write_stamped").unwrap();
    assert!(text(stamped, "/holder").starts_with("resume:"), "{stamped}");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_this_process_does_not_execute_the_decision_is_committed_and_queued() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    let mut asked = sandbox.command(&["approve", &id, "--digest", &digest]);
    asked.env("LEASEHOLD_SERVER_EXECUTE", "false");
    support::said(asked).await.exits(0);
    assert_eq!(text(&sandbox.show(&id).await, "/state"), "queued");
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_this_process_lacks_queues_the_decision_and_denying_still_works() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    sandbox.write("bare.toml", "[store]\nurl = \"sqlite:runs.db\"\n[lease]\nttl = \"1s\"\n");
    let said = sandbox.leasehold(&["--config", "bare.toml", "deny", &id, "--digest", &digest]).await.exits(0);
    assert!(said.err.contains("this process has no agent `clerk`"), "{said:?}");
    sandbox.leasehold(&["worker", "--once"]).await.exits(0);
    assert_eq!(text(&sandbox.show(&id).await, "/state"), "completed");
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_run_is_listed_in_the_inbox_and_its_card_says_how_to_decide() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    let inbox = sandbox.leasehold(&["inbox", "--json"]).await.exits(0).json();
    assert_eq!((text(&inbox, "/items/0/kind"), text(&inbox, "/items/0/run/id")), ("approval".into(), id.clone()));
    assert_eq!(text(&inbox, "/items/0/run/waiting/turn_digest"), digest);
    let shown = sandbox.leasehold(&["runs", "show", &id]).await.exits(0);
    assert!(shown.out.contains(&format!("leasehold approve {id} --digest {digest}")), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_run_can_be_cancelled_and_then_not_approved() {
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    sandbox.leasehold(&["runs", "cancel", &id, "--note", "changed my mind"]).await.exits(0);
    assert_eq!(text(&sandbox.show(&id).await, "/state"), "cancelled");
    sandbox.leasehold(&["runs", "cancel", &id]).await.exits(0);
    sandbox.leasehold(&["approve", &id, "--digest", &digest]).await.exits(1);
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_the_card_and_asks_and_yes_goes_on() {
    let sandbox = Sandbox::new("").await;
    let mut terminal = sandbox.on_terminal(&["run", "note hello"]);
    terminal.shows("[a]pprove, [d]eny or [s]kip?").await;
    assert!(terminal.seen().contains("a repeat is a second effect"), "{}", terminal.seen());
    assert_eq!(sandbox.far.arrived().len(), 0);
    terminal.types("maybe");
    terminal.shows("answer with a, d or s").await;
    terminal.types("a");
    assert_eq!(terminal.exit().await, Some(0), "{}", terminal.seen());
    assert_eq!(sandbox.far.arrived().len(), 1);
    assert!(terminal.seen().contains("It is done."), "{}", terminal.seen());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_input_is_never_a_yes() {
    let sandbox = Sandbox::new("").await;
    let mut terminal = sandbox.on_terminal(&["run", "note hello"]);
    terminal.shows("[s]kip?").await;
    terminal.ends_input();
    assert_eq!(terminal.exit().await, Some(3), "{}", terminal.seen());
    assert!(terminal.seen().contains("approve"), "the way to decide is printed");
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_terminal_a_call_can_be_denied_with_a_reason() {
    let sandbox = Sandbox::new("").await;
    let mut terminal = sandbox.on_terminal(&["run", "note hello"]);
    terminal.shows("[s]kip?").await;
    terminal.types("d");
    terminal.shows("why, for the model").await;
    terminal.types("too early");
    assert_eq!(terminal.exit().await, Some(0), "{}", terminal.seen());
    let listed = sandbox.leasehold(&["runs", "list", "--json"]).await.json();
    let run = sandbox.show(&text(&listed, "/items/0/id")).await;
    assert_eq!(text(&run, "/decisions/0/reason"), "too early");
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn approve_at_a_terminal_shows_the_card_and_takes_only_a_yes() {
    let sandbox = Sandbox::new("").await;
    let (id, _) = sandbox.suspended().await;
    let mut terminal = sandbox.on_terminal(&["approve", &id]);
    terminal.shows("Approve all undecided calls? [y/N]").await;
    terminal.types("");
    assert_eq!(terminal.exit().await, Some(3), "{}", terminal.seen());
    let mut terminal = sandbox.on_terminal(&["approve", &id]);
    terminal.shows("[y/N]").await;
    terminal.types("y");
    assert_eq!(terminal.exit().await, Some(0), "{}", terminal.seen());
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_at_the_question_leaves_the_run_waiting() {
    let sandbox = Sandbox::new("").await;
    let mut terminal = sandbox.on_terminal(&["run", "note hello"]);
    terminal.shows("[s]kip?").await;
    terminal.interrupts();
    assert_eq!(terminal.exit().await, Some(3), "{}", terminal.seen());
    let inbox = sandbox.leasehold(&["inbox", "--json"]).await.json();
    assert_eq!(text(&inbox, "/items/0/kind"), "approval");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_in_a_model_call_cancels_the_run() {
    let sandbox = Sandbox::with_script("", "[[reply]]\ntext = \"late\"\npause = \"60s\"\n").await;
    let mut terminal = sandbox.on_terminal(&["run", "think"]);
    terminal.shows("the model works").await;
    terminal.interrupts();
    terminal.shows("cancelling").await;
    assert_eq!(terminal.exit().await, Some(1), "{}", terminal.seen());
    let listed = sandbox.leasehold(&["runs", "list", "--json"]).await.json();
    assert_eq!(text(&listed, "/items/0/state"), "cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_second_ctrl_c_leaves_at_once_and_the_sweep_settles_the_run() {
    let sandbox = Sandbox::new("approval = \"none\"").await;
    sandbox.far.then([leasehold_testkit::far_side::Then::Hold]);
    let mut terminal = sandbox.on_terminal(&["run", "note hello"]);
    sandbox.far.wait_for(1).await;
    terminal.interrupts();
    terminal.shows("press Ctrl-C again").await;
    terminal.interrupts();
    assert_eq!(terminal.exit().await, Some(1), "{}", terminal.seen());
    sandbox.far.release();
    let listed = sandbox.leasehold(&["runs", "list", "--json"]).await.json();
    let run = sandbox.until_state(&text(&listed, "/items/0/id"), "dead").await;
    assert_eq!(text(&run, "/reason"), "write_in_doubt");
    assert_eq!(sandbox.far.arrived().len(), 1);
}

/// Text that would clear the screen, move the cursor, turn the reading direction and draw a prompt of its own.
const EVIL: &str =
    "x\u{1b}[2J\u{1b}]0;owned\u{7}\rApprove? y\u{8}\u{202e}\u{200b}\u{feff}\u{9b}31m\n[a]pprove, [d]eny or [s]kip? a";

#[tokio::test(flavor = "multi_thread")]
async fn text_of_models_and_tools_is_visible_in_every_output_that_is_not_json() {
    let sandbox = Sandbox::with_script("", "").await;
    let evil = toml::Value::String(EVIL.into()).to_string();
    sandbox.write(
        "script.toml",
        &format!(
            "{}[[reply]]\ntext = {evil}\n",
            one_call("ledger.append", &format!("{{ text = {evil} }}")).replace("[[reply]]\ntext = \"It is done.\"\n", "")
        ),
    );
    sandbox.far.then([leasehold_testkit::far_side::Then::Answer(200, EVIL.into())]);
    let suspended = sandbox.leasehold(&["run", EVIL]).await.exits(3);
    let listed = sandbox.leasehold(&["runs", "list", "--json"]).await.json();
    let id = text(&listed, "/items/0/id");
    let digest = text(&sandbox.show(&id).await, "/waiting/turn_digest");
    let waiting = sandbox.leasehold(&["runs", "show", &id]).await.exits(0);
    let inbox = sandbox.leasehold(&["inbox"]).await.exits(0);
    let approved = sandbox.leasehold(&["approve", &id, "--digest", &digest]).await.exits(0);
    let shown = sandbox.leasehold(&["runs", "show", &id]).await.exits(0);
    let followed = sandbox.leasehold(&["runs", "follow", &id]).await.exits(0);
    for said in [suspended, waiting, inbox, approved, shown, followed] {
        for text in [&said.out, &said.err] {
            let raw: Vec<char> = text
                .chars()
                .filter(|c| *c != '\n' && (c.is_control() || matches!(c, '\u{202e}' | '\u{200b}' | '\u{feff}')))
                .collect();
            assert!(raw.is_empty(), "{raw:?} in:\n{text}");
        }
    }
    let run = sandbox.show(&id).await;
    assert_eq!(text(&run, "/output"), EVIL, "JSON has it exactly");
    assert_eq!(kinds(&sandbox.events(&id).await).last().unwrap(), "settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_question_contains_no_raw_text_of_the_model() {
    let evil = toml::Value::String(EVIL.into()).to_string();
    let sandbox = Sandbox::with_script("", &one_call("ledger.append", &format!("{{ text = {evil} }}"))).await;
    let mut terminal = sandbox.on_terminal(&["run", "note it"]);
    // The model's own is shown behind a bar.
    terminal.shows("\n  [a]pprove, [d]eny or [s]kip? ").await;
    let seen = terminal.seen();
    assert!(!seen.contains("\u{1b}[2J") && !seen.contains("\u{1b}]0") && !seen.contains('\u{202e}'), "{seen:?}");
    let forged = seen.lines().filter(|line| line.trim_start().starts_with("[a]pprove")).count();
    assert_eq!(forged, 1, "only our own line asks:\n{seen}");
    terminal.types("s");
    assert_eq!(terminal.exit().await, Some(3));
}
