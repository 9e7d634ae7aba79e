//! Two servers on one database: what one is asked the other knows, a turn that both are told to release is executed once, and a
//! stream of one shows what the other does.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{self, Sandbox, api::recorded, kinds, text};
use futures::future::join_all;
use leasehold_testkit::postgres::{Cluster, Version};
use serde_json::json;

#[tokio::test]
async fn two_servers_of_one_database_are_one_to_their_clients() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.unwrap();
    let database = cluster.database().await;
    let sandbox = Sandbox::new("").await;
    let url = database.url();
    let environment = [("LEASEHOLD_STORE_URL", url.as_str())];
    let (one, other) = (sandbox.serve_with(&environment).await, sandbox.serve_with(&environment).await);
    let body = json!({ "agent": "clerk", "input": "note hello\u{0}", "metadata": { "n": 1e300 } });
    let start = |n| {
        support::api::Answer::of(if n % 2 == 0 { &one } else { &other }.posting("/runs", &body).header("idempotency-key", "k"))
    };
    let started = join_all((0..20).map(start)).await;
    let id = text(&started[0].is(202), "/id");
    assert!(started.iter().all(|answer| text(&answer.is(202), "/id") == id), "{started:?}");

    let path = format!("/runs/{id}/events");
    let mut events = other.stream(&path, None).await;
    let mut seen = events.until("suspended").await;
    let digest = text(&one.until_state(&id, "waiting_for_approval").await, "/waiting/turn_digest");
    let decision = json!({ "turn_digest": digest, "decision": "approve" });
    let decide = format!("/runs/{id}/decision?wait=true");
    let answers = join_all((0..12).map(|n| if n % 2 == 0 { &one } else { &other }.post(&decide, &decision))).await;
    for answer in &answers {
        assert!(answer.status.is_success() || answer.status.as_u16() == 409, "{answer:?}");
    }
    seen.extend(events.rest().await);
    let numbers = recorded(&seen);
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(seen.last().map(|last| last.name.as_str()), Some("settled"));
    let all = one.get(&format!("{path}?limit=1000")).await.is(200)["items"].as_array().unwrap().clone();
    let count = |kind: &str| kinds(&all).iter().filter(|k| *k == kind).count();
    assert_eq!((count("approval"), count("write_stamped"), sandbox.far.arrived().len()), (1, 1, 1));
    let run = other.get(&format!("/runs/{id}")).await.is(200);
    assert_eq!((&run["state"], &run["metadata"]), (&"completed".into(), &body["metadata"]));
    assert_eq!(run, one.get(&format!("/runs/{id}")).await.is(200));
}
