//! What the tests about time share: a home on each store, leases as short as a test wants them, and a look at a run that keeps its
//! lease for as long as it has to.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use leasehold::run::{Entry, EntryBody, RunId, Snapshot, State};
use leasehold_testkit::{
    far_side::FarSide,
    home::{APPEND_ONCE, Home, Ledger, Running},
    postgres::{Cluster, Version},
    wall_clock::WallClock,
};
use std::time::{Duration, Instant};

/// Longer than this nothing is waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The lease of [`Home::ledger`].
pub(crate) const TTL: Duration = Duration::from_secs(2);

pub(crate) fn on_a_file() -> Home {
    Home::new(env!("CARGO_BIN_EXE_leasehold"))
}

pub(crate) async fn on_a_database() -> Home {
    let cluster = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.unwrap();
    Home::on_database(env!("CARGO_BIN_EXE_leasehold"), cluster.database().await)
}

/// A write that needs nobody, of this effect.
pub(crate) fn ledger(home: &Home, far: &FarSide, effect: &str) {
    home.ledger(far, Ledger { effect, approval: "none", timeout: "60s" }, APPEND_ONCE);
}

/// The configuration with leases of another length.
pub(crate) fn lease(home: &Home, ttl: &str) {
    change(home, "ttl = \"2s\"", &format!("ttl = \"{ttl}\""));
}

/// The configuration with so many segments at once in a worker.
pub(crate) fn places(home: &Home, number: usize) {
    change(home, "tools = [", &format!("concurrency = {number}\ntools = ["));
}

fn change(home: &Home, from: &str, to: &str) {
    let config = std::fs::read_to_string(home.path().join("leasehold.toml")).unwrap();
    assert!(config.contains(from), "{config}");
    home.write("leasehold.toml", &config.replace(from, to));
}

pub(crate) fn worker(home: &Home) -> Running {
    home.start(&["worker"], None)
}

/// A worker that goes by this wall clock.
pub(crate) fn worker_by(home: &Home, clock: &WallClock) -> Running {
    let mut command = home.command(&["worker"]);
    command.envs(clock.environment());
    home.start_as(command, None)
}

pub(crate) async fn wall_clock(wrong_by: i64) -> WallClock {
    tokio::task::spawn_blocking(move || WallClock::wrong_by(wrong_by)).await.unwrap()
}

/// The run stays with its holder, who renews, for so long.
pub(crate) async fn keeps(home: &Home, held: &Snapshot, lasts: Duration) {
    let lease = held.lease.as_ref().expect("held");
    let (started, mut renewals, mut last) = (Instant::now(), 0, lease.expires_at.clone());
    while started.elapsed() < lasts || renewals < 4 {
        let row = home.row(held.id).await;
        assert_eq!((row.state, row.epoch, row.requeues), (held.state, held.epoch, held.requeues), "{row:?}");
        let now = row.lease.expect("still held");
        assert_eq!((now.lease_id, &now.holder), (lease.lease_id, &lease.holder));
        if now.expires_at != last {
            (renewals, last) = (renewals + 1, now.expires_at);
        }
        assert!(started.elapsed() < lasts + PATIENCE, "nothing is renewed");
        // It is watched whether nothing happens, which gives no signal.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn in_doubt(row: &Snapshot) -> bool {
    row.state == State::Dead && row.reason.is_some_and(|r| r.as_str() == "write_in_doubt")
}

pub(crate) fn count(journal: &[Entry], kind: &str) -> usize {
    journal.iter().filter(|e| e.body.kind() == kind).count()
}

/// The run has completed, as if nothing had happened: one holder, no lease lost, no requeue spent, nothing said late.
pub(crate) async fn untroubled(home: &Home, id: RunId) {
    let row = home.until(id, "completed", |row| row.state.is_settled() || row.state == State::Dead).await;
    assert_eq!((row.state, row.epoch, row.requeues), (State::Completed, 1, 0), "{row:?}");
    let journal = home.journal(id).await;
    for kind in ["lease_expired", "requeued", "in_doubt", "late_evidence", "write_not_started", "write_restamped"] {
        assert_eq!(count(&journal, kind), 0, "{kind}: {journal:?}");
    }
    let late = |e: &Entry| matches!(&e.body, EntryBody::ToolOutcome(outcome) if outcome.late);
    assert!(!journal.iter().any(late));
}
