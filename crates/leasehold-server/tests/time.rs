//! Real processes whose clocks are wrong, that get no time, or that take their time: a live lease is not taken away, a dead one does
//! not last, and no write starts after its lease.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

mod hours;

use hours::{PATIENCE, TTL, in_doubt, keeps, ledger, on_a_database, on_a_file, untroubled, wall_clock, worker, worker_by};
use leasehold::run::{EntryBody, State};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{Home, Ledger},
};
use std::{
    collections::BTreeSet,
    process::{Child, Command},
    time::Duration,
};

/// Ten minutes.
const WRONG_S: i64 = 600;

async fn wrong_wall_clocks(home: Home) {
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let (ahead, behind) = (wall_clock(WRONG_S).await, wall_clock(-WRONG_S).await);
    let mut holder = worker_by(&home, &ahead);
    far.wait_for(1).await;
    let held = home.row(id).await;
    let _other = worker_by(&home, &behind);
    keeps(&home, &held, TTL * 2).await;
    // Both step in mid-lease, by twenty minutes, each to the other side.
    ahead.set(-WRONG_S);
    behind.set(WRONG_S);
    keeps(&home, &held, TTL * 2).await;
    holder.kill();
    home.until(id, "in doubt", in_doubt).await;
    assert_eq!(far.arrived().len(), 1);
    // The clocks were as wrong as they were meant to be.
    let wrong_by = |kind: &str, journal: &[leasehold::run::Entry]| {
        let at = journal.iter().find(|e| e.body.kind() == kind).expect("is there").at;
        at.duration_since(jiff::Timestamp::now()).as_secs()
    };
    let journal = home.journal(id).await;
    assert!((WRONG_S - 120..=WRONG_S).contains(&wrong_by("segment_opened", &journal)), "{journal:?}");
    assert!((WRONG_S - 120..=WRONG_S).contains(&wrong_by("lease_expired", &journal)), "{journal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wall_clocks_ten_minutes_apart_and_stepping_steal_no_live_lease_and_keep_no_dead_one() {
    tokio::join!(wrong_wall_clocks(on_a_file()), wrong_wall_clocks(on_a_database().await));
}

async fn slow_tool(home: Home) {
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    hours::lease(&home, "1s");
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let _workers = [worker(&home), worker(&home)];
    far.wait_for(1).await;
    keeps(&home, &home.row(id).await, Duration::from_secs(10)).await;
    far.release();
    untroubled(&home, id).await;
    assert_eq!(far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_of_ten_leases_is_entered_once_and_its_lease_is_renewed_throughout() {
    tokio::join!(slow_tool(on_a_file()), slow_tool(on_a_database().await));
}

/// Busy programs on one processor; they end with this value.
struct Busy(Vec<Child>);

impl Busy {
    fn on_processor(number: &str) -> Self {
        let one = || Command::new("taskset").args(["-c", number, "sh", "-c", "while :; do :; done"]).spawn().expect("taskset");
        Self((0..3).map(|_| one()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

async fn starved(home: Home) {
    const WRITES: usize = 4;
    let far = FarSide::start().await.unwrap();
    let one = |n| format!("[[reply]]\ncalls = [{{ tool = \"ledger.append\", arguments = {{ text = \"{n}\" }} }}]\n");
    let script: String = (0..WRITES).map(one).collect::<String>() + "[[reply]]\ntext = \"done\"\n";
    home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout: "60s" }, &script);
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let mut pinned = Command::new("taskset");
    let plain = home.command(&["worker"]);
    pinned.args(["-c", "0", "nice", "-n", "19"]).arg(plain.get_program()).args(plain.get_args());
    pinned.current_dir(home.path()).env_clear();
    pinned.envs(std::env::vars_os()).envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let _starved = home.start_as(pinned, None);
    far.wait_for(1).await;
    let held = home.row(id).await;
    let _busy = Busy::on_processor("0");
    let _other = worker(&home);
    // Three leases long: the write is under way and nothing else gets the processor.
    let started = std::time::Instant::now();
    while started.elapsed() < TTL * 3 {
        assert_eq!(far.arrived().len(), 1, "nothing is started beside it");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    far.release();
    let row = home.until(id, "at rest", |row| row.state.is_settled() || row.state == State::Dead).await;
    assert!(row.state == State::Completed || in_doubt(&row), "{row:?}");
    let (arrived, journal) = (far.arrived(), home.journal(id).await);
    let texts: BTreeSet<String> = arrived.iter().map(leasehold_testkit::far_side::Arrived::text).collect();
    assert_eq!(texts.len(), arrived.len(), "none arrived twice");
    assert!(row.state != State::Completed || arrived.len() == WRITES, "{row:?}");
    for request in &arrived {
        let epoch: u64 = request.header("leasehold-fencing-token").parse().unwrap();
        let lost = journal.iter().find(|e| matches!(&e.body, EntryBody::LeaseExpired(body) if body.epoch == epoch));
        assert!(lost.is_none_or(|lost| request.at < lost.at), "started after its lease: {request:?} {lost:?}");
    }
    assert!(held.epoch <= row.epoch);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_hardly_gets_the_processor_starts_no_write_after_its_lease() {
    let patience = PATIENCE * 2;
    tokio::time::timeout(patience, starved(on_a_file())).await.expect("in time");
}
