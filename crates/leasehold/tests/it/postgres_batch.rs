//! Writes that are committed together on PostgreSQL: one statement, and each write judged by its own guard.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    run::{LeaseId, Reason, RunId, Snapshot},
    store::{Answer, LeaseOp, Store, Write, postgres::PostgresStore},
};
use leasehold_testkit::{
    fixture::{expire, insert, record, running},
    postgres::{Cluster, Database, Version},
};
use std::sync::Arc;
use tokio::task::JoinHandle;

struct Scene {
    database: Database,
    store: Arc<PostgresStore>,
}

impl Scene {
    async fn new() -> Self {
        let database = Cluster::shared(Version::V15).database().await;
        let store = PostgresStore::connect(&database.url()).await.unwrap();
        Self { database, store }
    }

    async fn held(&self) -> Snapshot {
        let first = insert(running("a"));
        let id = first.row.id;
        self.store.insert(first).await.unwrap();
        self.row(id).await
    }

    async fn row(&self, id: RunId) -> Snapshot {
        self.store.load(id).await.unwrap().unwrap()
    }

    /// Sends all while the committing task waits for a table that a person has locked, so that it takes them together.
    async fn together(&self, writes: Vec<Write>) -> Vec<Result<Answer, String>> {
        let waiting = self.held().await;
        let person = self.database.cluster().client(self.database.name()).await.unwrap();
        // A transaction sees the activity of its beginning for ever.
        let watcher = self.database.cluster().client(self.database.name()).await.unwrap();
        person.batch_execute("BEGIN; LOCK TABLE journal").await.unwrap();
        let send = |write: Write| -> JoinHandle<Result<Answer, String>> {
            let store = self.store.clone();
            tokio::spawn(async move { store.write(write).await.map_err(|e| e.0) })
        };
        let first = send(record(&waiting, "keeps the task busy"));
        let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
        while watcher.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::task::yield_now().await;
        }
        let mut sent = Vec::new();
        for write in writes {
            sent.push(send(write));
            // The test has one thread: each is in the queue before the next is sent.
            tokio::task::yield_now().await;
        }
        person.batch_execute("ROLLBACK").await.unwrap();
        assert!(matches!(first.await.unwrap(), Ok(Answer::Applied(_))));
        let mut answers = Vec::new();
        for one in sent {
            answers.push(one.await.unwrap());
        }
        answers
    }

    async fn transactions(&self, runs: &[RunId], sequence: i64) -> i64 {
        let client = self.database.cluster().client(self.database.name()).await.unwrap();
        let ids: Vec<_> = runs.iter().map(|id| id.0).collect();
        let count = "SELECT count(DISTINCT xmin::text) FROM journal WHERE run_id = ANY ($1) AND sequence = $2";
        client.query_one(count, &[&ids, &sequence]).await.unwrap().get(0)
    }
}

fn applied(answer: &Result<Answer, String>) -> bool {
    matches!(answer, Ok(Answer::Applied(Some(_))))
}

#[tokio::test]
async fn what_waits_is_committed_in_one_transaction() {
    let scene = Scene::new().await;
    let mut rows = Vec::new();
    for _ in 0..20 {
        rows.push(scene.held().await);
    }
    let answers = scene.together(rows.iter().map(|row| record(row, "step")).collect()).await;
    assert!(answers.iter().all(applied), "{answers:?}");
    let ids: Vec<RunId> = rows.iter().map(|r| r.id).collect();
    assert_eq!(scene.transactions(&ids, 1).await, 1);
}

#[tokio::test]
async fn of_writes_that_are_sent_together_each_is_judged_by_its_own_guard() {
    let scene = Scene::new().await;
    let (fine, too, stale, ahead) = (scene.held().await, scene.held().await, scene.held().await, scene.held().await);
    let silent = scene.held().await;
    let (epoch, lease, early, again) = (scene.held().await, scene.held().await, scene.held().await, scene.held().await);
    for row in [&stale, &silent] {
        assert!(matches!(scene.store.write(record(row, "somebody was faster")).await.unwrap(), Answer::Applied(_)));
    }
    let resent = record(&again, "once");
    scene.store.write(resent.clone()).await.unwrap();
    let mut of_the_future = record(&ahead, "leaves a gap");
    (of_the_future.guard.sequence, of_the_future.next.sequence, of_the_future.entries[0].sequence) = (7, 8, 7);
    let mut renewal = record(&silent, "");
    renewal.entries.clear();
    renewal.next = Snapshot { rounds: 77, ..silent.clone() };
    let mut other_epoch = record(&epoch, "another epoch");
    other_epoch.guard.epoch = 9;
    let mut other_lease = record(&lease, "another lease");
    other_lease.guard.lease_id = Some(LeaseId::random());
    let before = [scene.row(ahead.id).await, scene.row(silent.id).await, scene.row(early.id).await];
    let answers = scene
        .together(vec![
            record(&fine, "fine"),
            record(&stale, "stale"),
            of_the_future,
            renewal,
            other_epoch,
            other_lease,
            expire(&early, false),
            record(&running("a"), "nowhere"),
            resent,
            record(&too, "fine too"),
        ])
        .await;
    assert!(applied(&answers[0]) && applied(&answers[8]) && applied(&answers[9]), "{answers:?}");
    assert_eq!(scene.transactions(&[fine.id, too.id], 1).await, 1, "nothing took the statement apart");
    let expected = [Answer::Moved, Answer::Moved, Answer::Moved, Answer::Fenced, Answer::Fenced, Answer::Moved, Answer::Gone];
    assert_eq!(answers[1..8], expected.map(Ok));
    for row in before {
        assert_eq!(scene.row(row.id).await, row, "what was refused changed nothing");
    }
    assert_eq!(scene.store.journal(again.id, 0, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn two_writes_of_one_run_are_applied_one_after_the_other() {
    let scene = Scene::new().await;
    let (row, other) = (scene.held().await, scene.held().await);
    let first = record(&row, "first");
    let second = record(&first.next, "second");
    let answers = scene.together(vec![first, record(&other, "beside it"), second]).await;
    assert!(answers.iter().all(applied), "{answers:?}");
    assert_eq!(scene.row(row.id).await.sequence, 3);
    assert_eq!(scene.store.journal(row.id, 0, 10).await.unwrap().len(), 3);
}

#[tokio::test]
async fn of_two_rivals_that_are_sent_together_the_first_wins() {
    let scene = Scene::new().await;
    let (row, other) = (scene.held().await, scene.held().await);
    let answers =
        scene.together(vec![record(&row, "first"), record(&other, "beside it"), record(&row, "a rival of the first")]).await;
    assert!(applied(&answers[0]) && applied(&answers[1]), "{answers:?}");
    assert_eq!(answers[2], Ok(Answer::Moved));
    assert_eq!(scene.store.journal(row.id, 0, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_write_that_the_schema_refuses_fails_alone() {
    let scene = Scene::new().await;
    let (fine, bad, too) = (scene.held().await, scene.held().await, scene.held().await);
    let mut impossible = record(&bad, "impossible");
    impossible.next.reason = Some(Reason::Budget);
    impossible.lease = LeaseOp::Keep;
    let answers = scene.together(vec![record(&fine, "one"), impossible, record(&too, "two")]).await;
    assert!(applied(&answers[0]) && applied(&answers[2]), "{answers:?}");
    let Ok(Answer::Refused(refused)) = &answers[1] else { panic!("it is said that nothing of it is there: {answers:?}") };
    assert!(refused.lasting && refused.why.contains("a_reason_of_its_state"), "{refused}");
    assert_eq!(scene.row(bad.id).await, bad);
}
