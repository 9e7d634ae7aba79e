//! The PostgreSQL store while its server crashes, its connections are cut and its answers are lost: what was acknowledged is there,
//! a right that still stands is never called lost, and a caller finds out by its write id.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    run::{Snapshot, WriteId},
    store::{Answer, Held, Lapse, Store, Write, postgres::PostgresStore},
};
use leasehold_testkit::{
    fixture::{TTL, insert, record, running},
    postgres::{Cluster, Database, Extra, Version},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};

const PATIENCE: Duration = Duration::from_secs(60);

async fn own(version: Version) -> Arc<Cluster> {
    tokio::task::spawn_blocking(move || Cluster::own(version, Extra::default())).await.unwrap()
}

async fn held_run(store: &dyn Store) -> Snapshot {
    let first = insert(running("a"));
    let id = first.row.id;
    store.insert(first).await.unwrap();
    store.load(id).await.unwrap().unwrap()
}

async fn is_there(store: &dyn Store, write: &Write) -> Option<bool> {
    let journal = store.journal(write.next.id, write.guard.sequence, 1_000).await.ok()?;
    Some(journal.iter().any(|e| e.write_id == write.write_id))
}

/// As a holder does it: sent, and after no answer looked up and sent again, until it is known to be applied. The row afterwards.
async fn applied(store: &dyn Store, write: Write) -> Snapshot {
    let started = Instant::now();
    loop {
        assert!(started.elapsed() < PATIENCE, "the store does not come back");
        match store.write(write.clone()).await {
            Ok(Answer::Applied(end)) => {
                let mut row = write.next;
                if let (Some(lease), Some(end)) = (row.lease.as_mut(), end) {
                    lease.expires_at = end;
                }
                return row;
            }
            Ok(other) => panic!("the right stands, and the answer is {other:?}"),
            Err(_) => {
                if is_there(store, &write).await == Some(true)
                    && let Ok(Some(row)) = store.load(write.next.id).await
                {
                    return row;
                }
                // A server that is away gives no signal of its return.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn crashes(version: Version) {
    const WRITERS: usize = 8;
    let cluster = own(version).await;
    let store = PostgresStore::connect(&cluster.url("postgres")).await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let count = watch::Sender::new(0_usize);
    let mut writers = Vec::new();
    for _ in 0..WRITERS {
        let (store, stop, count) = (store.clone(), stop.clone(), count.clone());
        let mut row = held_run(&*store).await;
        writers.push(tokio::spawn(async move {
            let mut acknowledged: Vec<WriteId> = Vec::new();
            while !stop.load(Ordering::SeqCst) {
                let write = record(&row, "step");
                let write_id = write.write_id;
                row = applied(&*store, write).await;
                acknowledged.push(write_id);
                count.send_modify(|n| *n += 1);
            }
            (row, acknowledged)
        }));
    }
    let mut seen = count.subscribe();
    for _ in 0..3 {
        let target = *seen.borrow() + 20 * WRITERS;
        tokio::time::timeout(PATIENCE, seen.wait_for(|n| *n >= target)).await.expect("writers go on").unwrap();
        let cluster = cluster.clone();
        tokio::task::spawn_blocking(move || cluster.restart_immediate()).await.unwrap();
    }
    let target = *seen.borrow() + 5 * WRITERS;
    tokio::time::timeout(PATIENCE, seen.wait_for(|n| *n >= target)).await.expect("writers go on").unwrap();
    stop.store(true, Ordering::SeqCst);
    let mut rows = Vec::new();
    for writer in writers {
        rows.push(writer.await.unwrap());
    }
    cluster.restart_immediate();
    let store = PostgresStore::connect(&cluster.url("postgres")).await.unwrap();
    for (row, acknowledged) in rows {
        assert_eq!(store.load(row.id).await.unwrap().unwrap().sequence, row.sequence);
        let mut journal = Vec::new();
        while let page = store.journal(row.id, journal.len() as u64, 1_000).await.unwrap()
            && !page.is_empty()
        {
            journal.extend(page);
        }
        let numbers: Vec<u64> = journal.iter().map(|e| e.sequence).collect();
        assert_eq!(numbers, (0..row.sequence).collect::<Vec<_>>(), "no gap");
        let written: Vec<WriteId> = journal[1..].iter().map(|e| e.write_id).collect();
        assert_eq!(written, acknowledged, "each acknowledged write once, in its order");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_acknowledged_write_survives_crashes_of_postgresql_15() {
    crashes(Version::V15).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_acknowledged_write_survives_crashes_of_postgresql_18() {
    crashes(Version::V18).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connections_that_the_server_ends_lose_no_write_and_fence_nobody() {
    let database = Cluster::shared(Version::V15).database().await;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let count = watch::Sender::new(0_usize);
    let mut writers = Vec::new();
    for _ in 0..6 {
        let (store, count) = (store.clone(), count.clone());
        let mut row = held_run(&*store).await;
        writers.push(tokio::spawn(async move {
            for _ in 0..60 {
                row = applied(&*store, record(&row, "step")).await;
                count.send_modify(|n| *n += 1);
            }
            row
        }));
    }
    let client = database.cluster().client("postgres").await.unwrap();
    let end = format!(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{}' AND application_name = 'leasehold'",
        database.name()
    );
    let mut seen = count.subscribe();
    let mut cuts = 0;
    for round in 1..=30 {
        tokio::time::timeout(PATIENCE, seen.wait_for(|n| *n >= round * 10)).await.expect("writers go on").unwrap();
        cuts += client.query(&end, &[]).await.unwrap().len();
    }
    assert!(cuts >= 30, "hardly anything was cut: {cuts}");
    for writer in writers {
        let row = writer.await.unwrap();
        assert_eq!(row.sequence, 61);
        let store = PostgresStore::connect(&database.url()).await.unwrap();
        let journal = store.journal(row.id, 0, 100).await.unwrap();
        assert_eq!(journal.iter().map(|e| e.sequence).collect::<Vec<_>>(), (0..61).collect::<Vec<_>>());
    }
}

/// A wire between store and server that loses what is told to it.
struct Wire {
    port: u16,
    mode: watch::Sender<Mode>,
    cuts: watch::Sender<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Whole,
    /// Questions arrive, answers do not.
    NoAnswers,
    /// Nothing arrives.
    NoQuestions,
}

impl Wire {
    async fn to(cluster: &Cluster) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, to) = (listener.local_addr().unwrap().port(), cluster.port());
        let (mode, cuts) = (watch::Sender::new(Mode::Whole), watch::Sender::new(0));
        let (modes, cut) = (mode.clone(), cuts.clone());
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pump(near_in, far_out, modes.subscribe(), cut.subscribe(), Mode::NoQuestions));
                tokio::spawn(pump(far_in, near_out, modes.subscribe(), cut.subscribe(), Mode::NoAnswers));
            }
        });
        Self { port, mode, cuts }
    }

    async fn store(&self, database: &str) -> Arc<PostgresStore> {
        PostgresStore::connect(&format!("postgres://leasehold@127.0.0.1:{}/{database}", self.port)).await.unwrap()
    }

    fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    /// Ends every connection; later ones are whole.
    fn cut(&self) {
        self.cuts.send_modify(|n| *n += 1);
        self.set(Mode::Whole);
    }
}

async fn pump(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mode: watch::Receiver<Mode>,
    mut cut: watch::Receiver<u32>,
    swallows: Mode,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        tokio::select! {
            biased;
            _ = cut.changed() => return,
            read = from.read(&mut buffer) => {
                let Ok(count @ 1..) = read else { return };
                if *mode.borrow() != swallows && to.write_all(&buffer[..count]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_commit_whose_answer_is_lost_is_found_by_its_write_id_and_applied_once() {
    let database = Cluster::shared(Version::V15).database().await;
    let (direct, wire) = (PostgresStore::connect(&database.url()).await.unwrap(), Wire::to(database.cluster()).await);
    let store = wire.store(database.name()).await;
    let row = held_run(&*store).await;
    let row = applied(&*store, record(&row, "before, so that the connection is there")).await;

    let write = record(&row, "committed");
    wire.set(Mode::NoAnswers);
    let (sender, sent) = (store.clone(), write.clone());
    let pending = tokio::spawn(async move { sender.write(sent).await });
    while is_there(&*direct, &write).await != Some(true) {
        tokio::task::yield_now().await;
    }
    wire.cut();
    let lost = pending.await.unwrap().unwrap_err();
    assert!(lost.0.contains("postgres://leasehold@"), "{lost}");
    // The pool may still hold a connection that was cut: a read over it has no answer, and is asked again.
    while is_there(&*store, &write).await.is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(is_there(&*store, &write).await, Some(true));
    let after = direct.load(row.id).await.unwrap();
    assert!(matches!(store.write(write).await.unwrap(), Answer::Applied(Some(_))), "sent again it is applied");
    assert_eq!(direct.load(row.id).await.unwrap(), after, "and changes nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_that_never_arrived_is_not_there_and_can_be_sent_again() {
    let database = Cluster::shared(Version::V15).database().await;
    let (direct, wire) = (PostgresStore::connect(&database.url()).await.unwrap(), Wire::to(database.cluster()).await);
    let store = wire.store(database.name()).await;
    let row = held_run(&*store).await;
    let row = applied(&*store, record(&row, "before, so that the connection is there")).await;

    let write = record(&row, "lost on its way");
    wire.set(Mode::NoQuestions);
    let (sender, sent) = (store.clone(), write.clone());
    let pending = tokio::spawn(async move { sender.write(sent).await });
    assert_eq!(is_there(&*direct, &write).await, Some(false));
    wire.cut();
    pending.await.unwrap().unwrap_err();
    while is_there(&*store, &write).await.is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(is_there(&*store, &write).await, Some(false));
    assert!(matches!(store.write(write.clone()).await.unwrap(), Answer::Applied(Some(_))));
    assert_eq!(is_there(&*direct, &write).await, Some(true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_renewal_waits_no_longer_than_a_lease_allows_and_comes_back_by_itself() {
    let database = Cluster::shared(Version::V15).database().await;
    let wire = Wire::to(database.cluster()).await;
    let store = wire.store(database.name()).await;
    let row = held_run(&*store).await;
    let held = Held { id: row.id, epoch: row.epoch, lease_id: row.lease.unwrap().lease_id };
    tokio::task::spawn_blocking(move || {
        let mut renewer = store.renewer().unwrap();
        assert!(renewer.renew(&[held], TTL).unwrap()[0].held);
        wire.set(Mode::NoAnswers);
        let started = Instant::now();
        renewer.renew(&[held], Duration::from_secs(3)).unwrap_err();
        assert!(started.elapsed() < Duration::from_secs(3), "a dead server took the lease with it");
        wire.cut();
        assert!(renewer.renew(&[held], TTL).unwrap()[0].held, "on a new connection");
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_that_somebody_keeps_locked_fails_alone() {
    let database = Cluster::shared(Version::V15).database().await;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let (locked, free) = (held_run(&*store).await, held_run(&*store).await);
    let person = database.cluster().client(database.name()).await.unwrap();
    person.batch_execute(&format!("BEGIN; SELECT 1 FROM runs WHERE id = '{}' FOR UPDATE", locked.id)).await.unwrap();
    let writes = [record(&locked, "waits"), record(&free, "one"), record(&locked, "behind it")].map(|write| {
        let store = store.clone();
        tokio::spawn(async move { store.write(write).await })
    });
    let [waits, one, behind] = writes;
    let refused = waits.await.unwrap().unwrap_err();
    assert!(refused.0.contains("locked") && refused.0.contains(&locked.id.to_string()), "{refused}");
    assert!(matches!(one.await.unwrap().unwrap(), Answer::Applied(Some(_))));
    behind.await.unwrap().unwrap_err();
    person.batch_execute("ROLLBACK").await.unwrap();
    applied(&*store, record(&locked, "again")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_that_somebody_keeps_locked_holds_up_no_other_write() {
    let database = Cluster::shared(Version::V15).database().await;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let (locked, mut free) = (held_run(&*store).await, held_run(&*store).await);
    let person = lock(&database, &locked).await;
    // Its holder asks again and again, as long as its lease lasts.
    let (asking, of) = (store.clone(), locked.clone());
    let holder = tokio::spawn(async move {
        let mut asked = 0;
        while asking.write(record(&of, "waits")).await.is_err() {
            asked += 1;
        }
        asked
    });
    let started = Instant::now();
    let mut slowest = Duration::ZERO;
    while started.elapsed() < Duration::from_secs(3) {
        let sent = Instant::now();
        free = applied(&*store, record(&free, "step")).await;
        slowest = slowest.max(sent.elapsed());
    }
    assert!(slowest < Duration::from_secs(1), "a write of another run took {slowest:?}");
    person.batch_execute("ROLLBACK").await.unwrap();
    assert!(holder.await.unwrap() > 0, "it was locked");
    assert_eq!(store.load(locked.id).await.unwrap().unwrap().sequence, locked.sequence + 1);
}

async fn lock(database: &Database, row: &Snapshot) -> tokio_postgres::Client {
    let person = database.cluster().client(database.name()).await.unwrap();
    person.batch_execute(&format!("BEGIN; SELECT 1 FROM runs WHERE id = '{}' FOR UPDATE", row.id)).await.unwrap();
    person
}

fn right(row: &Snapshot) -> Held {
    Held { id: row.id, epoch: row.epoch, lease_id: row.lease.as_ref().unwrap().lease_id }
}

/// One renewal of these, as the thread of a process with such leases makes it: held, and renewed, of each.
async fn renewed(store: &Arc<PostgresStore>, rows: &[&Snapshot], ttl: Duration) -> Vec<(bool, bool)> {
    let (store, rights): (_, Vec<Held>) = (store.clone(), rows.iter().map(|row| right(row)).collect());
    let looks = {
        let rights = rights.clone();
        tokio::task::spawn_blocking(move || store.renewer().unwrap().renew(&rights, ttl).unwrap()).await.unwrap()
    };
    let of = |right: &Held| looks.iter().find(|look| look.right == *right).map(|look| (look.held, look.renewed)).unwrap();
    rights.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_that_somebody_keeps_locked_is_without_word_and_every_other_right_is_renewed() {
    let database = Cluster::shared(Version::V15).database().await;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let (locked, free) = (held_run(&*store).await, held_run(&*store).await);
    let person = lock(&database, &locked).await;
    let (ttl, started) = (Duration::from_secs(3), Instant::now());
    assert_eq!(renewed(&store, &[&locked, &free], ttl).await, [(true, false), (true, true)]);
    assert!(started.elapsed() < ttl / 3, "the others waited for it: {:?}", started.elapsed());
    let end = |row: Option<Snapshot>| row.unwrap().lease.unwrap().expires_at;
    assert_ne!(end(store.load(free.id).await.unwrap()), free.lease.clone().unwrap().expires_at);
    assert_eq!(end(store.load(locked.id).await.unwrap()), locked.lease.clone().unwrap().expires_at);
    person.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(renewed(&store, &[&locked, &free], ttl).await, [(true, true), (true, true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_row_that_is_locked_for_a_moment_is_renewed_by_the_same_renewal() {
    let database = Cluster::shared(Version::V15).database().await;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let row = held_run(&*store).await;
    let person = lock(&database, &row).await;
    let rows = [&row];
    let (renewal, unlocked) = tokio::join!(renewed(&store, &rows, TTL), async {
        // The renewal has come by, passed over the row, and not gone away.
        let watcher = database.cluster().client(database.name()).await.unwrap();
        let passed = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND query LIKE '-- Extends%' AND state = 'idle'";
        let started = Instant::now();
        while watcher.query_one(passed, &[]).await.unwrap().get::<_, i64>(0) == 0 && started.elapsed() < PATIENCE / 10 {
            tokio::task::yield_now().await;
        }
        person.batch_execute("ROLLBACK").await
    });
    unlocked.unwrap();
    assert_eq!(renewal, [(true, true)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_right_that_moves_on_under_the_lock_is_without_word_until_that_is_committed() {
    let database = Cluster::shared(Version::V15).database().await;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let row = held_run(&*store).await;
    let other = lock(&database, &row).await;
    other.execute("UPDATE runs SET epoch = epoch + 1 WHERE id = $1", &[&row.id.0]).await.unwrap();
    assert_eq!(renewed(&store, &[&row], Duration::from_secs(3)).await, [(true, false)]);
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(renewed(&store, &[&row], Duration::from_secs(3)).await, [(false, false)]);
}

#[tokio::test]
async fn a_lease_ends_on_the_databases_clock() {
    let database = Cluster::shared(Version::V15).database().await;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let row = held_run(&*store).await;
    let client = database.cluster().client(database.name()).await.unwrap();
    let now: i64 =
        client.query_one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint", &[]).await.unwrap().get(0);
    let end = row.lease.as_ref().unwrap().expires_at.clone();
    let left = end.ns - now;
    assert_eq!(end.clock, "db");
    assert!(left > 0 && left <= i64::try_from(TTL.as_nanos()).unwrap(), "{left}");
    assert_eq!(store.lapsed(TTL, None, 10).await.unwrap(), []);
    // Only the database's clock can end it, and here it is the row that moves.
    client.execute("UPDATE runs SET lease_expires_ns = lease_expires_ns - $1", &[&(left + 1)]).await.unwrap();
    let lapsed = store.lapsed(TTL, None, 10).await.unwrap();
    assert_eq!((lapsed.len(), lapsed[0].id, lapsed[0].lapse), (1, row.id, Lapse::Passed));
    let seen = store.load(row.id).await.unwrap().unwrap();
    let expired = leasehold_testkit::fixture::expire(&seen, false);
    assert_eq!(store.write(expired).await.unwrap(), Answer::Applied(None));
}
