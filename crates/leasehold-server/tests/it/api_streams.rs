//! Streams of a run's events: each event once wherever a client comes back, an end when the run has one, and the truth read from the
//! journal, whoever wrote it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    Sandbox,
    api::{Answer, Events, Server, recorded},
    text,
};
use leasehold_testkit::far_side::Then;
use reqwest::Method;
use serde_json::json;
use std::collections::BTreeSet;

async fn approve(server: &Server, id: &str, digest: &str) -> Answer {
    server.post(&format!("/runs/{id}/decision"), json!({ "turn_digest": digest, "decision": "approve" })).await
}

#[tokio::test]
async fn a_stream_that_is_taken_up_again_anywhere_gives_each_event_once() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let path = format!("/runs/{id}/events");
    // It stays open through the wait: the rest comes on the same stream.
    let mut live = server.stream(&path, None).await;
    let mut seen = live.until("suspended").await;
    approve(&server, &id, &digest).await.is(202);
    seen.extend(live.rest().await);
    let whole = server.get(&format!("{path}?limit=1000")).await.is(200)["items"].as_array().unwrap().clone();
    let numbers: Vec<u64> = (0..whole.len() as u64).collect();
    assert_eq!(recorded(&seen), numbers);
    assert_eq!(seen.iter().filter(|event| event.id.is_some()).map(|event| event.data.clone()).collect::<Vec<_>>(), whole);
    assert!(seen.iter().all(|event| event.id.is_none() == (event.name == "text")));
    for last in &numbers {
        let behind = &numbers[usize::try_from(*last).unwrap() + 1..];
        let events = server.stream(&path, Some(*last)).await;
        if behind.is_empty() {
            // Nothing is left: a client that comes back by itself is told to stop.
            assert_eq!(events.response.status().as_u16(), 204);
            continue;
        }
        assert_eq!(events.response.headers()["content-type"], "text/event-stream");
        assert_eq!(recorded(&events.rest().await), behind);
        let after = server.stream(&format!("{path}?after={last}"), None).await;
        assert_eq!(recorded(&after.rest().await), behind);
    }
    // Where a client came back is where it goes on, whatever its URL says.
    assert_eq!(recorded(&server.stream(&format!("{path}?after=0"), Some(2)).await.rest().await), &numbers[3..]);
    assert_eq!(server.stream(&path, Some(i64::MAX.unsigned_abs())).await.response.status().as_u16(), 204);
    let wrong = server.request(Method::GET, &path).header("last-event-id", "x").header("accept", "text/event-stream");
    Answer::of(wrong).await.problem(422, "invalid_input");
}

#[tokio::test]
async fn a_stream_until_the_wait_ends_there() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let body = json!({ "agent": "clerk", "input": "note hello" });
    let start = server.posting("/runs?until=waiting", body).header("accept", "text/event-stream");
    let events = Events::of(start).await;
    let id = events.response.headers()["leasehold-run-id"].to_str().unwrap().to_owned();
    let seen = events.rest().await;
    assert_eq!((seen[0].name.as_str(), seen[0].id), ("enqueued", Some(0)));
    let last = seen.last().unwrap();
    assert_eq!(last.name, "suspended");
    let again = server.stream(&format!("/runs/{id}/events?until=waiting"), last.id).await;
    assert_eq!(again.response.status().as_u16(), 204);
    let path = format!("/runs/{id}/events?until=someday");
    Answer::of(server.request(Method::GET, &path).header("accept", "text/event-stream")).await.problem(422, "invalid_input");
}

#[tokio::test]
async fn pieces_of_a_reply_come_before_it_and_have_no_number() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let mut events = server.stream(&format!("/runs/{id}/events"), None).await;
    events.until("suspended").await;
    approve(&server, &id, &digest).await.is(202);
    let seen = events.until("model_reply").await;
    let (reply, pieces) = seen.split_last().unwrap();
    let pieces: Vec<&str> =
        pieces.iter().filter(|event| event.name == "text").map(|event| event.data["text"].as_str().unwrap()).collect();
    assert_eq!(pieces.concat(), text(&reply.data, "/payload/text"));
    assert_eq!(pieces.concat(), "It is done.");
}

#[tokio::test]
async fn a_stream_shows_and_ends_with_what_another_process_does() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve_with(&[("LEASEHOLD_SERVER_EXECUTE", "false")]).await;
    let id = server.queue().await;
    let mut events = server.stream(&format!("/runs/{id}/events"), None).await;
    events.until("enqueued").await;
    sandbox.leasehold(&["worker", "--once"]).await.exits(0);
    events.until("suspended").await;
    sandbox.leasehold(&["runs", "cancel", &id]).await.exits(0);
    let rest = events.rest().await;
    assert_eq!(
        rest.last().map(|last| (last.name.as_str(), &last.data["payload"]["state"])),
        Some(("settled", &"cancelled".into()))
    );
}

#[tokio::test]
async fn a_client_that_goes_away_cancels_nothing() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    sandbox.far.then([Then::Hold]);
    let decision = json!({ "turn_digest": digest, "decision": "approve" });
    let request = tokio::spawn(server.posting(&format!("/runs/{id}/decision?wait=true"), decision).send());
    let events = server.stream(&format!("/runs/{id}/events"), None).await;
    sandbox.far.wait_for(1).await;
    request.abort();
    drop(events);
    sandbox.far.release();
    assert_eq!(server.until_state(&id, "completed").await["output"], "It is done.");
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test]
async fn a_killed_server_breaks_its_streams_off_and_the_next_one_settles_the_run() {
    let sandbox = Sandbox::new("").await;
    let first = sandbox.serve().await;
    let (id, digest) = first.suspended().await;
    let path = format!("/runs/{id}/events");
    let mut events = first.stream(&path, None).await;
    let mut seen = events.until("suspended").await;
    sandbox.far.then([Then::Hold]);
    approve(&first, &id, &digest).await.is(202);
    seen.extend(events.until("write_stamped").await);
    sandbox.far.wait_for(1).await;
    first.kill().await;
    seen.extend(events.rest().await);

    let second = sandbox.serve().await;
    let last = recorded(&seen).last().copied();
    seen.extend(second.stream(&path, last).await.rest().await);
    let numbers = recorded(&seen);
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    let names: BTreeSet<&str> = seen.iter().map(|event| event.name.as_str()).collect();
    assert!(names.contains("lease_expired") && names.contains("in_doubt"), "{names:?}");
    let run = second.until_state(&id, "dead").await;
    assert_eq!((&run["reason"], sandbox.far.arrived().len()), (&"write_in_doubt".into(), 1));
    let inbox = second.get("/inbox").await.is(200);
    assert_eq!((&inbox["items"][0]["kind"], &inbox["items"][0]["run"]["id"]), (&"in_doubt".into(), &id.clone().into()));

    // A person says what is true, and the run goes on without a second write.
    let resolve = |epoch: u64, outcome: &str| json!({ "call_id": "t1c0", "fence_epoch": epoch, "outcome": outcome });
    let epoch = run["fence"]["epoch"].as_u64().unwrap();
    let path = format!("/runs/{id}/resolve");
    second.post(&path, resolve(epoch + 7, "landed")).await.problem(409, "stale_doubt");
    second.post(&path, resolve(epoch, "maybe")).await.problem(422, "invalid_input");
    let early = second.post(&path, resolve(epoch, "not_landed")).await;
    if early.status.as_u16() == 409 {
        assert!(early.problem(409, "too_early")["until"].is_string());
    } else {
        panic!("it may still be in flight: {early:?}");
    }
    second.post(&path, resolve(epoch, "landed")).await.is(202);
    assert_eq!(second.until_state(&id, "completed").await["output"], "It is done.");
    assert_eq!(sandbox.far.arrived().len(), 1);
}
