//! A row of a PostgreSQL store that somebody keeps locked by hand, under a real worker: it costs its own run what the store's silence
//! would, and no other run anything.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use crate::hours::{self, PATIENCE, TTL, count, in_doubt, keeps, ledger, on_a_database, untroubled, worker};
use leasehold::run::State;
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{Home, Running},
    postgres::{Cluster, Version},
};
use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

/// The server and the name of the database.
fn database(home: &Home) -> (Arc<Cluster>, String) {
    (Cluster::shared(Version::V15), home.store_url().rsplit_once('/').unwrap().1.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_kept_locked_for_three_leases_costs_no_other_run_of_its_process_anything_and_then_ends_truthfully() {
    let home = on_a_database().await;
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    far.then([Then::Hold, Then::Hold]);
    let (locked, free) = (home.enqueue().await, home.enqueue().await);
    let _worker = worker(&home);
    far.wait_for(2).await;
    let held = home.row(free).await;
    let (cluster, name) = database(&home);
    let person = cluster.client(&name).await.unwrap();
    person.batch_execute(&format!("BEGIN; SELECT 1 FROM runs WHERE id = '{locked}' FOR UPDATE")).await.unwrap();
    keeps(&home, &held, TTL * 3).await;
    far.release();
    // It is recorded and ends, and what is new is taken and executed, while the row is locked.
    untroubled(&home, free).await;
    let new = home.enqueue().await;
    untroubled(&home, new).await;
    let row = home.row(locked).await;
    assert_eq!((row.state, row.fence.is_some()), (State::Running, true), "nobody could write: {row:?}");
    person.batch_execute("ROLLBACK").await.unwrap();
    let row = home.until(locked, "completed", |row| row.state.is_settled()).await;
    let journal = home.journal(locked).await;
    assert_eq!((row.state, row.requeues, count(&journal, "tool_outcome")), (State::Completed, 0, 1), "{journal:?}");
    assert_eq!(far.arrived().len(), 3, "each write was made once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_no_sweep_can_settle_is_said_once_in_the_log_with_the_reason() {
    let home = on_a_database().await;
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let mut dead = worker(&home);
    far.wait_for(1).await;
    dead.kill();
    let (cluster, name) = database(&home);
    let person = cluster.client(&name).await.unwrap();
    let lock = format!("BEGIN; SELECT 1 FROM runs WHERE id = '{id}' FOR UPDATE");
    person.batch_execute(&lock).await.unwrap();
    let log = home.path().join("worker.log");
    let mut sweeping = home.command(&["worker"]);
    sweeping.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let _worker = home.start_as_it_is(sweeping);
    let said = |what: &str| {
        let of_it = |line: &&str| line.contains(what) && line.contains(&id.to_string());
        std::fs::read_to_string(&log).unwrap().lines().filter(of_it).count()
    };
    let started = Instant::now();
    while said("cannot be settled") == 0 {
        assert!(started.elapsed() < PATIENCE, "it is said nowhere: {}", std::fs::read_to_string(&log).unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Sweeps come by all the time: a run that is enqueued now is swept past, claimed and executed many times over.
    for _ in 0..5 {
        let other = home.enqueue().await;
        untroubled(&home, other).await;
    }
    assert_eq!(said("cannot be settled"), 1, "{}", std::fs::read_to_string(&log).unwrap());
    assert_eq!(said("locked"), 1, "with the reason");
    person.batch_execute("ROLLBACK").await.unwrap();
    home.until(id, "in doubt", in_doubt).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_whose_row_was_locked_for_less_than_it_lasts_is_renewed_as_soon_as_it_is_free() {
    let home = on_a_database().await;
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    hours::lease(&home, "5s");
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let _worker = worker(&home);
    far.wait_for(1).await;
    let held = home.row(id).await;
    let (cluster, name) = database(&home);
    let locked = format!("SELECT 1 FROM runs WHERE id = '{id}' FOR UPDATE");
    cluster.execute(&name, &format!("WITH locked AS MATERIALIZED ({locked}) SELECT pg_sleep(2) FROM locked")).await.unwrap();
    keeps(&home, &held, TTL * 3).await;
    far.release();
    untroubled(&home, id).await;
}

/// A process that executes a run of which the store takes no entry of one kind; what else there is to say is taken.
struct Refusing {
    home: Home,
    far: FarSide,
    id: leasehold::run::RunId,
    process: Running,
}

impl Refusing {
    async fn entries_of(kind: &str, command: &str) -> Self {
        let home = on_a_database().await;
        let far = FarSide::start().await.unwrap();
        ledger(&home, &far, "non_idempotent_write");
        let id = home.enqueue().await;
        let forbid = format!("ALTER TABLE journal ADD CONSTRAINT refused CHECK (kind <> '{kind}') NOT VALID");
        let (cluster, name) = database(&home);
        cluster.execute(&name, &forbid).await.unwrap();
        let mut command = home.command(&[command]);
        command.env("LEASEHOLD_SERVER_LISTEN", "127.0.0.1:0").stdout(Stdio::null());
        command.stderr(std::fs::File::create(home.path().join("its.log")).unwrap());
        let process = home.start_as_it_is(command);
        Self { home, far, id, process }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("its.log")).unwrap()
    }

    async fn takes_all_again(&self) {
        let (cluster, name) = database(&self.home);
        cluster.execute(&name, "ALTER TABLE journal DROP CONSTRAINT refused").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_the_store_refuses_is_let_go_after_a_lease_and_counts_once_it_is_taken() {
    let mut scene = Refusing::entries_of("tool_outcome", "worker").await;
    let id = scene.id;
    let row = scene.home.until(id, "in doubt", in_doubt).await;
    assert_eq!((row.requeues, scene.far.arrived().len()), (0, 1));
    let said = scene.log();
    let of_it = |what: &str| said.lines().filter(|line| line.contains(what) && line.contains(&id.to_string())).count();
    assert_eq!(of_it("cannot be recorded"), 1, "{said}");
    assert_eq!(of_it("class=done"), 1, "what the tool answered: {said}");
    // Asked to end, it stays with the answer that nobody else has until the store takes it.
    scene.process.signal("TERM");
    scene.takes_all_again().await;
    scene.process.ended().await;
    let row = scene.home.row(id).await;
    let journal = scene.home.journal(id).await;
    assert_eq!((row.state, row.fence, count(&journal, "tool_outcome")), (State::Queued, None, 1), "{journal:?}");
    assert_eq!(scene.far.arrived().len(), 1, "the write was made once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_takes_an_outcome_along_does_not_end_with_zero() {
    for command in ["worker", "serve"] {
        let mut scene = Refusing::entries_of("tool_outcome", command).await;
        scene.home.until(scene.id, "in doubt", in_doubt).await;
        scene.process.signal("TERM");
        scene.process.ended().await;
        assert_eq!(scene.process.wait(), Some(1), "{command}: {}", scene.log());
        assert!(scene.log().contains("is not on record"), "{command}: {}", scene.log());
        assert_eq!(scene.far.arrived().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_end_does_not_wait_for_a_stamp_that_the_store_refuses() {
    let mut scene = Refusing::entries_of("write_stamped", "worker").await;
    let started = Instant::now();
    while !scene.log().contains("cannot be recorded") {
        assert!(started.elapsed() < PATIENCE, "{}", scene.log());
        // A file gives no signal.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    scene.process.signal("TERM");
    scene.process.ended().await;
    assert!(scene.far.arrived().is_empty(), "{:?}", scene.home.row(scene.id).await);
}
