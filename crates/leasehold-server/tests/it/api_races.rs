//! Orders that meet: one of them counts, the others are told so by name, and no story is told that is not true.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{self, Sandbox, kinds, text};
use futures::future::{join, join_all};
use leasehold_testkit::far_side::Then;
use rustix::process::Signal;
use serde_json::json;

#[tokio::test]
async fn twelve_approvals_of_one_turn_are_one_execution() {
    let sandbox = Sandbox::new("").await;
    let (one, other) = (sandbox.serve().await, sandbox.serve().await);
    for round in 1..=3 {
        let (id, digest) = one.suspended().await;
        let decision = json!({ "turn_digest": digest, "decision": "approve" });
        let path = format!("/runs/{id}/decision?wait=true");
        let answers = join_all((0..12).map(|n| if n % 2 == 0 { &one } else { &other }.post(&path, &decision))).await;
        for answer in &answers {
            let named = answer.status.as_u16() == 409 && answer.json()["code"].is_string();
            assert!(answer.status.is_success() || named, "{answer:?}");
        }
        assert!(answers.iter().any(|answer| answer.status.is_success()));
        one.until_state(&id, "completed").await;
        assert_eq!(sandbox.far.arrived().len(), round, "one write for each turn");
        let events = one.get(&format!("/runs/{id}/events?limit=1000")).await.is(200)["items"].as_array().unwrap().clone();
        let count = |kind: &str| kinds(&events).iter().filter(|k| *k == kind).count();
        assert_eq!((count("approval"), count("write_stamped")), (1, 1), "{events:?}");
    }
}

#[tokio::test]
async fn an_approval_and_a_cancel_at_once_tell_one_of_two_true_stories() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    for round in 0..12 {
        let before = sandbox.far.arrived().len();
        let (id, digest) = server.suspended().await;
        let decision = json!({ "turn_digest": digest, "decision": "approve" });
        let (approve, cancel) = (format!("/runs/{id}/decision"), format!("/runs/{id}/cancel"));
        // Who is asked first differs from round to round.
        let (approved, cancelled) = if round % 2 == 0 {
            join(server.post(&approve, &decision), server.post(&cancel, "{}")).await
        } else {
            let (cancelled, approved) = join(server.post(&cancel, ""), server.post(&approve, &decision)).await;
            (approved, cancelled)
        };
        for answer in [&approved, &cancelled] {
            assert!(answer.status.is_success() || answer.status.as_u16() == 409, "{answer:?}");
        }
        // It ends by itself either way: the stream says when.
        let events = server.stream(&format!("/runs/{id}/events"), None).await.rest().await;
        let run = server.get(&format!("/runs/{id}")).await.is(200);
        let wrote = sandbox.far.arrived().len() - before;
        let done = events.iter().any(|event| event.name == "tool_outcome" && event.data["payload"]["outcome"] == "done");
        match (text(&run, "/state").as_str(), approved.status.is_success()) {
            ("completed", true) => assert_eq!((wrote, done), (1, true), "{events:?}"),
            ("cancelled", true) => assert_eq!((wrote, wrote == 1), (wrote.min(1), done), "{events:?}"),
            ("cancelled", false) => assert_eq!((wrote, done), (0, false), "{events:?}"),
            _ => panic!("{run} {approved:?} {cancelled:?}"),
        }
    }
}

#[tokio::test]
async fn a_request_to_end_lets_a_running_write_finish() {
    for approved_over_http in [true, false] {
        let sandbox = Sandbox::new("").await;
        let server = sandbox.serve().await;
        let id = if approved_over_http {
            let (id, digest) = server.suspended().await;
            sandbox.far.then([Then::Hold]);
            let decision = json!({ "turn_digest": digest, "decision": "approve" });
            server.post(&format!("/runs/{id}/decision"), decision).await.is(202);
            id
        } else {
            // The pool of the server goes on with what was decided elsewhere.
            let (id, digest) = sandbox.suspended().await;
            sandbox.far.then([Then::Hold]);
            sandbox.leasehold(&["approve", &id, "--digest", &digest, "--no-wait"]).await.exits(0);
            id
        };
        let events = server.stream(&format!("/runs/{id}/events"), None).await;
        sandbox.far.wait_for(1).await;
        server.signal(Signal::TERM);
        // The stream ends at once, the write does not.
        events.rest().await;
        sandbox.far.release();
        let (code, said) = server.ended().await;
        assert_eq!(code, Some(0), "{said}");
        assert_eq!(sandbox.far.arrived().len(), 1);
        let recorded = sandbox.events_so_far(&id).await;
        let outcome = recorded.iter().find(|event| event["kind"] == "tool_outcome").expect("the outcome is on record");
        assert_eq!(outcome["payload"]["outcome"], "done", "approved over HTTP: {approved_over_http}: {recorded:?}");
        // The rest is handed back, and goes on without the write.
        sandbox.leasehold(&["worker", "--once"]).await.exits(0);
        let run = sandbox.show(&id).await;
        assert_eq!((&run["state"], sandbox.far.arrived().len()), (&"completed".into(), 1), "{run}");
    }
}

#[tokio::test]
async fn who_waits_while_the_server_ends_gets_the_run_as_it_is() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    sandbox.far.then([Then::Hold]);
    let decision = json!({ "turn_digest": digest, "decision": "approve" });
    let path = format!("/runs/{id}/decision?wait=true");
    let waiting = tokio::spawn(support::api::Answer::of(server.posting(&path, &decision)));
    sandbox.far.wait_for(1).await;
    server.signal(Signal::TERM);
    let answer = waiting.await.unwrap();
    assert_eq!(answer.is(202)["state"], "running");
    sandbox.far.release();
    assert_eq!(server.ended().await.0, Some(0));
    assert_eq!(sandbox.far.arrived().len(), 1);
}
