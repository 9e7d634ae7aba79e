//! Real processes, killed at each point of a write.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::support::{self, Sandbox, kinds, text};
use serde_json::{Value, json};

/// Kills a worker at a point of a write of that effect, lets the system recover, and says how the run stands.
async fn killed(point: &str, effect: &str) -> (Sandbox, Value) {
    let sandbox = Sandbox::new(&format!("approval = \"none\"\neffect = \"{effect}\"")).await;
    let id = sandbox.leasehold(&["run", "--queue", "note hello"]).await.exits(0).out.trim().to_owned();
    sandbox.kill_worker_at(point, &["worker", "--once", &id]).await;
    let since = std::time::Instant::now();
    loop {
        let run = sandbox.show(&id).await;
        match text(&run, "/state").as_str() {
            "queued" => {
                // Due after its backoff; a run that is not is left alone.
                sandbox.leasehold(&["worker", "--once"]).await.exits(0);
            }
            "running" => assert!(since.elapsed() < support::PATIENCE, "{run}"),
            _ => return (sandbox, run),
        }
    }
}

fn once_in_doubt(run: &Value) {
    assert_eq!((text(run, "/state"), text(run, "/reason")), ("dead".into(), "write_in_doubt".into()), "{run}");
    assert_eq!(text(run, "/fence/tool"), "ledger.append");
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_stamp_the_write_happens_once() {
    for effect in ["non_idempotent_write", "idempotent_write"] {
        let (sandbox, run) = killed("before_stamp", effect).await;
        assert_eq!(text(&run, "/state"), "completed", "{effect}: {run}");
        assert_eq!(sandbox.far.arrived().len(), 1, "{effect}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_non_idempotent_write_killed_after_the_stamp_is_in_doubt_and_was_not_sent() {
    let (sandbox, run) = killed("after_stamp", "non_idempotent_write").await;
    once_in_doubt(&run);
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_non_idempotent_write_killed_in_the_tool_or_after_it_is_in_doubt_and_sent_at_most_once() {
    for (point, sent) in [("in_tool", 0..=1), ("after_return", 1..=1)] {
        let (sandbox, run) = killed(point, "non_idempotent_write").await;
        once_in_doubt(&run);
        assert!(sent.contains(&sandbox.far.arrived().len()), "{point}");
        let id = text(&run, "/id");
        let shown = sandbox.leasehold(&["runs", "show", &id]).await.exits(0);
        assert!(shown.out.starts_with("In doubt: ledger.append may have happened once; nobody knows."), "{}", shown.out);
        assert!(shown.out.contains(&text(&run, "/fence/idempotency_key")) && shown.out.lines().count() < 50, "{}", shown.out);
        sandbox.leasehold(&["worker", "--once"]).await.exits(0);
        assert!(sent.contains(&sandbox.far.arrived().len()), "{point}: not repeated");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_write_is_repeated_with_the_same_key_and_arguments() {
    for point in ["after_stamp", "in_tool", "after_return"] {
        let (sandbox, run) = killed(point, "idempotent_write").await;
        assert_eq!(text(&run, "/state"), "completed", "{point}: {run}");
        let arrived = sandbox.far.arrived();
        assert!((1..=2).contains(&arrived.len()), "{point}: {}", arrived.len());
        assert!(arrived.iter().all(|a| a.header("idempotency-key") == arrived[0].header("idempotency-key")), "{point}");
        assert!(arrived.iter().all(|a| a.text() == arrived[0].text()), "{point}");
        assert!(kinds(&sandbox.events(&text(&run, "/id")).await).contains(&"write_restamped".to_owned()), "{point}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_after_the_record_or_in_the_next_model_call_the_write_is_not_made_again() {
    for effect in ["non_idempotent_write", "idempotent_write"] {
        let (sandbox, run) = killed("after_record", effect).await;
        assert_eq!(text(&run, "/state"), "completed", "{effect}: {run}");
        assert_eq!(sandbox.far.arrived().len(), 1, "{effect}");
    }
    // The first model call of the approving process is the one after the write.
    let sandbox = Sandbox::new("").await;
    let (id, digest) = sandbox.suspended().await;
    sandbox.kill_worker_at("before_model", &["approve", &id, "--digest", &digest]).await;
    assert_eq!(sandbox.far.arrived().len(), 1);
    sandbox.until_state(&id, "queued").await;
    sandbox.leasehold(&["worker", "--once"]).await.exits(0);
    let run = sandbox.until_state(&id, "completed").await;
    assert_eq!(run["decisions"].as_array().unwrap().len(), 1, "nobody was asked again");
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stamp_is_on_the_row_while_the_write_runs_and_gone_after_it() {
    let sandbox = Sandbox::new("approval = \"none\"").await;
    sandbox.far.then([leasehold_testkit::far_side::Then::Hold]);
    let mut running = sandbox.command(&["run", "--json", "note hello"]).spawn().unwrap();
    let arrived = sandbox.far.wait_for(1).await;
    let listed = sandbox.leasehold(&["runs", "list", "--json"]).await.json();
    let id = text(&listed, "/items/0/id");
    let run = sandbox.show(&id).await;
    assert_eq!(text(&run, "/fence/idempotency_key"), arrived[0].header("idempotency-key"));
    assert!(text(&run, "/holder").starts_with("interactive:"), "{run}");
    assert_ne!(run["lease_expires_at"], json!(null));
    sandbox.far.release();
    assert!(running.wait().await.unwrap().success());
    assert_eq!(sandbox.show(&id).await["fence"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_is_resolved_by_a_person_once_and_only_as_it_stands() {
    let (sandbox, run) = killed("after_return", "non_idempotent_write").await;
    let (id, epoch) = (text(&run, "/id"), run["fence"]["epoch"].to_string());
    let inbox = sandbox.leasehold(&["inbox", "--json"]).await.exits(0).json();
    assert_eq!((text(&inbox, "/items/0/kind"), text(&inbox, "/items/0/run/id")), ("in_doubt".into(), id.clone()));
    sandbox.leasehold(&["runs", "redrive", &id]).await.exits(1);
    let early = sandbox.leasehold(&["resolve", &id, "--call", "t1c0", "--fence-epoch", &epoch, "--not-landed"]).await;
    // Until the tool's own time limit has passed the write may still be on its way.
    if early.exit == Some(1) {
        assert!(early.err.contains("too_early"), "{early:?}");
        sandbox.leasehold(&["resolve", &id, "--call", "t1c0", "--fence-epoch", "99", "--landed"]).await.exits(1);
        let landed = ["resolve", &id, "--call", "t1c0", "--fence-epoch", &epoch, "--landed", "{\"line\": 1}", "--note", "seen"];
        sandbox.leasehold(&landed).await.exits(0);
        sandbox.leasehold(&landed).await.exits(0);
        sandbox.leasehold(&["worker", "--once", &id]).await.exits(0);
        assert_eq!(sandbox.far.arrived().len(), 1);
    } else {
        early.exits(0);
        sandbox.leasehold(&["worker", "--once", &id]).await.exits(0);
    }
    let run = sandbox.until_state(&id, "completed").await;
    assert_eq!(run["fence"], json!(null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_was_given_up_is_unknown_for_good() {
    let (sandbox, run) = killed("after_return", "non_idempotent_write").await;
    let id = text(&run, "/id");
    sandbox.leasehold(&["resolve", &id, "--call", "t1c0", "--abandon"]).await.exits(0);
    let run = sandbox.show(&id).await;
    assert_eq!((text(&run, "/state"), text(&run, "/reason")), ("failed".into(), "abandoned".into()));
    let shown = sandbox.leasehold(&["runs", "show", &id]).await.exits(0);
    assert!(
        shown.out.starts_with("Failed: a person gave up a write in doubt; ledger.append may have happened"),
        "{}",
        shown.out
    );
    sandbox.leasehold(&["runs", "redrive", &id]).await.exits(0);
    sandbox.leasehold(&["worker", "--once"]).await.exits(0);
    assert_eq!(text(&sandbox.show(&id).await, "/state"), "completed");
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reap_says_what_it_would_settle_and_then_settles_it() {
    let sandbox = Sandbox::new("approval = \"none\"").await;
    let id = sandbox.leasehold(&["run", "--queue", "note hello"]).await.exits(0).out.trim().to_owned();
    sandbox.kill_worker_at("after_stamp", &["worker", "--once", &id]).await;
    let since = std::time::Instant::now();
    let would = loop {
        let would = sandbox.leasehold(&["reap", "--dry-run", "--json"]).await.exits(0).json();
        if would["items"] != json!([]) {
            break would;
        }
        assert!(since.elapsed() < support::PATIENCE);
    };
    assert_eq!((text(&would, "/items/0/run"), &would["items"][0]["state"]), (id.clone(), &json!(null)));
    let did = sandbox.leasehold(&["reap", "--json"]).await.exits(0).json();
    assert_eq!((text(&did, "/items/0/run"), text(&did, "/items/0/state")), (id, "dead".into()));
    assert_eq!(sandbox.leasehold(&["reap", "--json"]).await.exits(0).json()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_end_hands_its_run_back() {
    let sandbox = Sandbox::with_script("", "[[reply]]\ntext = \"late\"\npause = \"60s\"\n").await;
    let id = sandbox.leasehold(&["run", "--queue", "think"]).await.exits(0).out.trim().to_owned();
    let worker = sandbox.command(&["worker"]).spawn().unwrap();
    sandbox.until_state(&id, "running").await;
    let pid = rustix::process::Pid::from_raw(i32::try_from(worker.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = tokio::time::timeout(support::PATIENCE, worker.wait_with_output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let run = sandbox.show(&id).await;
    assert_eq!((text(&run, "/state"), &run["requeues"]), ("queued".into(), &json!(0)), "no requeue was spent");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_checks_everything_it_claims() {
    let dir = tempfile::tempdir().unwrap();
    let said = support::said(support::command(dir.path(), &["demo", "--yes"])).await.exits(0);
    assert!(said.out.contains("all checked") && !said.out.contains("NOT SO"), "{}", said.out);
}
