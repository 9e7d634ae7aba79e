//! Artifacts, which are there with the write that brings them or not at all.

use super::World;
use crate::fixture::{record, running};
use leasehold::{
    run::Snapshot,
    store::{Answer, Artifact, Write},
};
use std::sync::Arc;

fn artifact(handle: &str, sequence: u64, content: &[u8]) -> Artifact {
    let about = b"\x01\x00about \xff".to_vec();
    Artifact { handle: handle.into(), sequence, bytes: content.len() as u64, about, content: content.into() }
}

fn bringing(row: &Snapshot, artifacts: Vec<Artifact>) -> Write {
    Write { artifacts, ..record(row, "outcome") }
}

fn listed(artifact: &Artifact) -> Artifact {
    Artifact { content: Arc::default(), ..artifact.clone() }
}

pub(super) async fn artifacts_are_there_with_the_write_that_brings_them(world: World) {
    let (row, other) = (world.add(running("a")).await, world.add(running("a")).await);
    assert_eq!(world.store.artifacts(row.id).await.unwrap(), []);
    let large: Vec<u8> = (0..6_000_000_u32).map(|n| (n % 251) as u8).collect();
    let first = [artifact("b", 1, &large), artifact("a", 1, b""), artifact("c", 1, &[0, 255, b'\'', 10])];
    let row = world.apply(bringing(&row, first.to_vec())).await;
    let later = artifact("0", 2, b"later");
    let row = world.apply(bringing(&row, vec![later.clone()])).await;
    // What another handle finds was durable.
    let store = world.subject.reopen().await;
    let expected = [&first[1], &first[0], &first[2], &later].map(listed);
    assert_eq!(store.artifacts(row.id).await.unwrap(), expected);
    for artifact in first.iter().chain([&later]) {
        assert_eq!(store.artifact(row.id, &artifact.handle).await.unwrap().as_ref(), Some(artifact));
    }
    assert_eq!(store.artifact(row.id, "d").await.unwrap(), None);
    assert_eq!(store.artifacts(other.id).await.unwrap(), []);
    assert_eq!(store.artifact(other.id, "a").await.unwrap(), None);
}

pub(super) async fn a_write_whose_guard_does_not_hold_keeps_nothing(world: World) {
    let row = world.add(running("a")).await;
    let now = world.apply(record(&row, "step")).await;
    assert_eq!(world.write(bringing(&row, vec![artifact("a", 1, b"one")])).await, Answer::Moved);
    let mut stranger = bringing(&now, vec![artifact("a", 2, b"one")]);
    stranger.guard.epoch += 1;
    assert_eq!(world.write(stranger).await, Answer::Fenced);
    let nobody = running("a");
    assert_eq!(world.write(bringing(&nobody, vec![artifact("a", 1, b"one")])).await, Answer::Gone);
    for id in [row.id, nobody.id] {
        assert_eq!(world.store.artifacts(id).await.unwrap(), []);
        assert_eq!(world.store.artifact(id, "a").await.unwrap(), None);
    }
}

pub(super) async fn a_content_is_kept_once_and_a_write_sent_again_changes_nothing(world: World) {
    let (row, other) = (world.add(running("a")).await, world.add(running("a")).await);
    let first = bringing(&row, vec![artifact("a", 1, b"one")]);
    let row = world.apply(first.clone()).await;
    let row = world.apply(bringing(&row, vec![artifact("a", 2, b"one"), artifact("b", 2, b"two")])).await;
    let end = row.lease.as_ref().map(|l| l.expires_at.clone());
    assert_eq!(world.write(first).await, Answer::Applied(end));
    world.apply(bringing(&other, vec![artifact("a", 1, b"one")])).await;
    let expected = [artifact("a", 1, b"one"), artifact("b", 2, b"two")];
    assert_eq!(world.store.artifacts(row.id).await.unwrap(), [listed(&expected[0]), listed(&expected[1])]);
    assert_eq!(world.store.artifacts(other.id).await.unwrap(), [listed(&expected[0])]);
}
