//! Who may speak, who was faster, and what is on record before anything is done: accounts that are disabled between the card and the
//! click, two tabs, a server started anew, and a store that does not take the entry that authorises a write.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    self, Sandbox,
    api::{Answer, Server},
    kinds,
    people::decision,
    text,
};
use futures::future::join_all;
use leasehold_testkit::far_side::Then;
use serde_json::{Value, json};

/// An approver sees the card, and the account is disabled before the click: it is refused, also with a second token and on the page
/// that was open, and nothing changes. Another approver decides.
#[tokio::test]
async fn an_approver_whose_account_was_disabled_after_the_card_was_shown_releases_nothing() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let anna = sandbox.person("anna", "approver", &["ledger.*"]).await;
    let bert = sandbox.person("bert", "approver", &["ledger.*"]).await;
    let (id, digest) = server.suspended().await;
    let seen = anna.get(&server, &format!("/runs/{id}")).await.is(200);
    assert_eq!(seen["waiting"]["turn_digest"], digest);
    let waits = sandbox.stands(&server, &id).await;
    sandbox.leasehold(&["user", "disable", "anna"]).await.exits(0);
    for word in ["approve", "deny"] {
        anna.decides(&server, (&id, &digest), word).await.problem(401, "unauthenticated");
    }
    for path in [format!("/runs/{id}"), "/inbox".into()] {
        anna.get(&server, &path).await.problem(401, "unauthenticated");
    }
    assert_eq!(sandbox.stands(&server, &id).await, waits);

    // Less is left of the rights than the card takes: the same.
    sandbox.leasehold(&["user", "set", "anna", "--enable"]).await.exits(0);
    sandbox.leasehold(&["user", "set", "anna", "--role", "viewer"]).await.exits(0);
    anna.decides(&server, (&id, &digest), "approve").await.problem(404, "not_found");
    sandbox.leasehold(&["user", "set", "anna", "--role", "approver", "--tool", "site.*"]).await.exits(0);
    anna.decides(&server, (&id, &digest), "approve").await.problem(404, "not_found");
    assert_eq!(sandbox.stands(&server, &id).await, waits);

    bert.decides(&server, (&id, &digest), "approve").await.is(202);
    let run = server.until_state(&id, "completed").await;
    assert_eq!((&run["decisions"][0]["by"], sandbox.far.arrived().len()), (&"user:bert".into(), 1));
}

/// A run whose write is in doubt, because the far side broke the connection, and its fence's epoch.
async fn doubted(sandbox: &Sandbox, server: &Server) -> (String, u64) {
    let (id, digest) = server.suspended().await;
    sandbox.far.then([Then::HangUp]);
    server.post(&format!("/runs/{id}/decision"), decision(&digest, "approve")).await.is(202);
    let run = server.until_state(&id, "dead").await;
    assert_eq!(run["reason"], "write_in_doubt", "{run}");
    (id, run["fence"]["epoch"].as_u64().unwrap())
}

fn resolution(epoch: u64, outcome: &str) -> Value {
    json!({ "call_id": "t1c0", "fence_epoch": epoch, "outcome": outcome })
}

/// A write in doubt is open in two tabs. In one it is resolved; the other is told that this doubt stands no more, whatever it says, and
/// finds the new state in the run and in the stream that it has open.
#[tokio::test]
async fn a_doubt_that_is_resolved_in_one_tab_is_stale_in_the_other_which_sees_what_became_of_it() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let olga = sandbox.person("olga", "operator", &["ledger.*"]).await;
    let otto = sandbox.person("otto", "operator", &["ledger.*"]).await;
    for (first, state) in [("landed", "completed"), ("abandon", "failed")] {
        let (id, epoch) = doubted(&sandbox, &server).await;
        let arrived = sandbox.far.arrived().len();
        let path = format!("/runs/{id}/resolve");
        let last = sandbox.stands(&server, &id).await.journal.len() as u64 - 1;
        let answer = olga.post(&server, &path, resolution(epoch, first)).await;
        assert!(answer.status.is_success(), "{answer:?}");
        // The stream of the other tab goes on where it was.
        let shown = server.stream(&format!("/runs/{id}/events"), Some(last)).await.rest().await;
        assert_eq!((shown[0].name.as_str(), &shown[0].data["payload"]["outcome"]), ("resolved", &first.into()), "{shown:?}");
        assert_eq!(shown[0].data["payload"]["by"]["id"], "user:olga");
        server.until_state(&id, state).await;
        let settled = sandbox.stands(&server, &id).await;
        for other in ["landed", "not_landed", "abandon"] {
            let told = otto.post(&server, &path, resolution(epoch, other)).await;
            told.problem(409, "stale_doubt");
            if other != first {
                olga.post(&server, &path, resolution(epoch, other)).await.problem(409, "stale_doubt");
            }
            assert_eq!(otto.get(&server, &format!("/runs/{id}")).await.is(200)["state"], state);
        }
        // The same word by the same person is the same answer.
        olga.post(&server, &path, resolution(epoch, first)).await.is(200);
        assert_eq!(sandbox.stands(&server, &id).await, settled);
        assert_eq!(sandbox.far.arrived().len(), arrived, "{first}");
    }
}

/// One call is open in two tabs. In one it is decided; the other is told by whom and when, and its open stream shows it.
#[tokio::test]
async fn a_call_that_is_decided_in_one_tab_is_told_to_the_other_with_who_and_when() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let anna = sandbox.person("anna", "approver", &["ledger.*"]).await;
    let bert = sandbox.person("bert", "approver", &["ledger.*"]).await;
    for (word, other, writes) in [("approve", "deny", 1), ("deny", "approve", 0)] {
        let before = sandbox.far.arrived().len();
        let (id, digest) = server.suspended().await;
        let mut open = server.stream(&format!("/runs/{id}/events"), None).await;
        open.until("suspended").await;
        anna.decides(&server, (&id, &digest), word).await.is(202);
        let seen = open.until("approval").await;
        let shown = &seen.last().unwrap().data;
        assert_eq!(shown["payload"]["by"]["id"], "user:anna", "{shown}");
        assert_eq!(shown["payload"]["calls"][0]["approved"], word == "approve", "{shown}");
        for said in [other, word] {
            let told = bert.decides(&server, (&id, &digest), said).await.problem(409, "already_decided");
            assert_eq!((&told["call_id"], &told["by"]), (&"t1c0".into(), &"user:anna".into()), "{told}");
            // The verdict and its entry are of one transaction, and not of one look at the clock.
            let at = |value: &Value| text(value, "/at").parse::<jiff::Timestamp>().unwrap();
            assert!(at(shown).duration_since(at(&told)).abs().as_millis() < 1_000, "{told} {shown}");
        }
        let rest = open.rest().await;
        assert_eq!(rest.last().unwrap().data["payload"]["state"], "completed");
        assert_eq!(sandbox.far.arrived().len() - before, writes, "{word}");
    }
}

/// The same decision again after the server was killed, once while the write was on its way and once after it: the same answer, and one
/// write.
#[tokio::test]
async fn a_decision_again_after_a_restart_is_the_same_answer_and_one_execution() {
    let sandbox = Sandbox::new("").await;
    let mut server = sandbox.serve().await;
    let anna = sandbox.person("anna", "approver", &["ledger.*"]).await;
    let bert = sandbox.person("bert", "approver", &["ledger.*"]).await;
    for word in ["approve", "deny"] {
        let (id, digest) = server.suspended().await;
        anna.decides(&server, (&id, &digest), word).await.is(202);
        server.until_state(&id, "completed").await;
        let first = sandbox.stands(&server, &id).await;
        for _ in 0..2 {
            server.kill().await;
            server = sandbox.serve().await;
            let again = anna.decides(&server, (&id, &digest), word).await.is(202);
            assert_eq!((&again["state"], &again["decisions"][0]["by"]), (&"completed".into(), &"user:anna".into()));
            bert.decides(&server, (&id, &digest), word).await.problem(409, "already_decided");
            assert_eq!(sandbox.stands(&server, &id).await, first, "{word}");
        }
    }
    assert_eq!(sandbox.far.arrived().len(), 1);

    // Killed in the write: what was decided is decided, and the write is in doubt and not made again.
    let (id, digest) = server.suspended().await;
    sandbox.far.then([Then::Hold]);
    anna.decides(&server, (&id, &digest), "approve").await.is(202);
    sandbox.far.wait_for(2).await;
    server.kill().await;
    server = sandbox.serve().await;
    for _ in 0..3 {
        anna.decides(&server, (&id, &digest), "approve").await.is(202);
    }
    server.until_state(&id, "dead").await;
    assert_eq!(anna.decides(&server, (&id, &digest), "approve").await.is(202)["reason"], "write_in_doubt");
    assert_eq!(sandbox.far.arrived().len(), 2);
}

/// A second connection to the store, which another program may have.
fn store(sandbox: &Sandbox) -> rusqlite::Connection {
    let store = rusqlite::Connection::open(sandbox.path("runs.db")).unwrap();
    store.busy_timeout(support::PATIENCE).unwrap();
    store
}

/// The store takes everything but the entry that authorises the write: the decision is answered as not taken, nothing is sent, and the
/// run waits on. Once the store takes it, the same decision counts, once.
#[tokio::test]
async fn a_decision_that_cannot_be_recorded_releases_nothing() {
    join_all(["approval", "input"].map(|kind| async move {
        let asks = "approval = \"none\"\ninput = { type = \"object\", properties = { text = { type = \"string\" } }, required = [\"text\"] }";
        let sandbox = Sandbox::new(if kind == "input" { asks } else { "" }).await;
        let server = sandbox.serve().await;
        let run = server.post("/runs", json!({ "agent": "clerk", "input": "note", "mode": "wait" })).await.is(200);
        let (id, digest) = (text(&run, "/id"), text(&run, "/waiting/turn_digest"));
        let waits = sandbox.stands(&server, &id).await;
        let trigger = format!(
            "CREATE TRIGGER refuses BEFORE INSERT ON journal WHEN NEW.kind = '{kind}' BEGIN SELECT RAISE(ABORT, 'not this one'); END"
        );
        store(&sandbox).execute_batch(&trigger).unwrap();
        let says = async || -> Answer {
            match kind {
                "input" => {
                    let values = json!({ "turn_digest": digest, "values": { "text": "hello" } });
                    server.post(&format!("/runs/{id}/input"), values).await
                }
                _ => server.post(&format!("/runs/{id}/decision"), decision(&digest, "approve")).await,
            }
        };
        let refused = says().await;
        refused.problem(507, "store_refused");
        assert!(!refused.body.contains("not this one"), "{refused:?}");
        assert_eq!(sandbox.stands(&server, &id).await, waits);
        store(&sandbox).execute_batch("DROP TRIGGER refuses").unwrap();
        says().await.is(202);
        server.until_state(&id, "completed").await;
        says().await.is(202);
        assert_eq!(sandbox.far.arrived().len(), 1);
    }))
    .await;
}

/// The stamp before a write, too: it was approved, and where the store does not take the stamp nothing is sent.
#[tokio::test]
async fn a_write_whose_stamp_cannot_be_recorded_is_not_made() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let trigger =
        "CREATE TRIGGER refuses BEFORE INSERT ON journal WHEN NEW.kind = 'write_stamped' BEGIN SELECT RAISE(ABORT, 'no'); END";
    store(&sandbox).execute_batch(trigger).unwrap();
    server.post(&format!("/runs/{id}/decision"), decision(&digest, "approve")).await.is(202);
    // For a whole lease it is tried, then the run is let go: nothing is sent, and nobody has to look after what was not stamped.
    let ask = || server.request(reqwest::Method::GET, &format!("/runs/{id}/events?limit=1000"));
    server.until(ask, |answer| answer.body.contains("\"lease_expired\"")).await;
    let stands = sandbox.stands(&server, &id).await;
    assert!(!kinds(&stands.journal).contains(&"write_stamped".to_owned()) && stands.arrived == 0, "{stands:?}");
    store(&sandbox).execute_batch("DROP TRIGGER refuses").unwrap();
    server.until_state(&id, "completed").await;
    assert_eq!(sandbox.far.arrived().len(), 1);
}

/// A change of users or tokens whose entry of the audit cannot be recorded is not made: nobody gets in by it, and nobody is kept out.
#[tokio::test]
async fn a_change_of_users_or_tokens_that_the_audit_does_not_take_is_not_made() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let anna = sandbox.person("anna", "approver", &["ledger.*"]).await;
    let (id, digest) = server.suspended().await;
    let users = sandbox.leasehold(&["user", "list", "--json"]).await.exits(0).json();
    let tokens = async || {
        let listed = sandbox.leasehold(&["token", "list", "--json"]).await.exits(0).json();
        // Being used is no change of rights.
        listed["items"].as_array().unwrap().iter().map(|t| (text(t, "/id"), text(t, "/revoked_at"))).collect::<Vec<_>>()
    };
    let before = tokens().await;
    let audit = sandbox.leasehold(&["audit", "--json"]).await.exits(0).out;
    let trigger =
        "CREATE TRIGGER refuses BEFORE INSERT ON records WHEN NEW.kind = 'audit' BEGIN SELECT RAISE(ABORT, 'no'); END";
    store(&sandbox).execute_batch(trigger).unwrap();
    let of_anna = before.last().unwrap().0.clone();
    for arguments in [
        &["user", "add", "eve", "--role", "admin"][..],
        &["user", "set", "anna", "--role", "admin"],
        &["user", "disable", "anna"],
        &["user", "login", "anna"],
        &["token", "create", "more", "--owner", "anna"],
        &["token", "create", "robot", "--owner", "anna", "--machine"],
        &["token", "revoke", &of_anna],
    ] {
        let said = sandbox.leasehold(arguments).await.exits(1);
        assert!(said.out.is_empty() && !said.err.is_empty(), "{arguments:?}: {said:?}");
    }
    assert_eq!(sandbox.leasehold(&["user", "list", "--json"]).await.exits(0).json(), users);
    assert_eq!(tokens().await, before);
    assert_eq!(sandbox.leasehold(&["audit", "--json"]).await.exits(0).out, audit);
    let kinds = "SELECT count(*) FROM records WHERE kind IN ('login_link', 'machine')";
    assert_eq!(store(&sandbox).query_row(kinds, [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    // Who had rights has them still.
    anna.decides(&server, (&id, &digest), "approve").await.is(202);
    server.until_state(&id, "completed").await;
    store(&sandbox).execute_batch("DROP TRIGGER refuses").unwrap();
    sandbox.leasehold(&["user", "disable", "anna"]).await.exits(0);
    anna.get(&server, "/inbox").await.problem(401, "unauthenticated");
}
