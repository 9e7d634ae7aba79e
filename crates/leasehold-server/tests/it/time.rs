//! Real processes whose clocks are wrong, that get no time, or that take their time: a live lease is not taken away, a dead one does
//! not last, and no write starts after its lease.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use crate::hours::{
    self, PATIENCE, TTL, in_doubt, keeps, ledger, on_a_database, on_a_file, untroubled, wall_clock, worker, worker_by,
};
use leasehold::run::{EntryBody, RunId, State};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{APPEND_ONCE, Home, Ledger},
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
    // The record knows one time, by whichever process.
    let journal = home.journal(id).await;
    let at = |kind: &str| journal.iter().find(|e| e.body.kind() == kind).expect("is there").at;
    let lasted = at("lease_expired").duration_since(at("write_stamped")).as_secs();
    assert!((0..60).contains(&lasted), "{journal:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wall_clocks_ten_minutes_apart_and_stepping_steal_no_live_lease_and_keep_no_dead_one() {
    tokio::join!(wrong_wall_clocks(on_a_file()), wrong_wall_clocks(on_a_database().await));
}

/// What `date` says in a process that goes by this clock, in seconds from the truth.
fn wrong_by(clock: &leasehold_testkit::wall_clock::WallClock) -> i64 {
    let ran = Command::new("date").arg("+%s").envs(clock.environment()).output().unwrap();
    let said: i64 = String::from_utf8_lossy(&ran.stdout).trim().parse().unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    said - jiff::Timestamp::now().as_second()
}

async fn limits_of_another_clock(home: Home, wrong: i64) {
    let far = FarSide::start().await.unwrap();
    home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout: "60s" }, APPEND_ONCE);
    far.then([Then::Hold]);
    let clock = wall_clock(wrong).await;
    assert!((wrong_by(&clock) - wrong).abs() < 60, "the clock is as wrong as it is meant to be");
    // The first process on the store has the right time, the one that writes has not.
    assert_eq!(home.run(&["inbox"]).await.code(), 0);
    let environment = clock.environment();
    let environment: Vec<(&str, &str)> = environment.iter().map(|(name, value)| (name.as_ref(), value.as_ref())).collect();
    let queued = home.run_with(&["run", "--queue", "append a line"], &environment).await;
    assert_eq!(queued.code(), 0, "{queued}");
    let id: RunId = queued.stdout().trim().parse().unwrap();
    let mut holder = worker_by(&home, &clock);
    far.wait_for(1).await;
    holder.kill();
    // It was due at once, though its caller's clock may be ahead of the worker's; and now it is in doubt.
    let _other = worker(&home);
    let row = home.until(id, "in doubt", in_doubt).await;
    let left = row.fence.unwrap().in_flight_until.duration_since(jiff::Timestamp::now()).as_secs();
    assert!((30..=60).contains(&left), "it may be on its way for {left} s more");
    let early = home.run(&["resolve", &id.to_string(), "--call", "t1c0", "--not-landed"]).await;
    assert!(early.code() == 1 && early.stderr().contains("too_early"), "{early}");
    assert_eq!(far.arrived().len(), 1);
    let again = home.run(&["run", "--queue", "append a line"]).await;
    let id = again.stdout().trim().parse().unwrap();
    far.release();
    home.until(id, "completed", |row| row.state == State::Completed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_means_the_same_to_processes_whose_wall_clocks_differ_by_ten_minutes() {
    for wrong in [WRONG_S, -WRONG_S] {
        tokio::join!(limits_of_another_clock(on_a_file(), wrong), async {
            limits_of_another_clock(on_a_database().await, wrong).await;
        });
    }
}

/// A worker that stands still in its tool past the tool's own time limit, with the answer in its socket.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_came_while_its_process_stood_still_is_heard_when_it_goes_on() {
    for home in [on_a_file(), on_a_database().await] {
        let far = FarSide::start().await.unwrap();
        home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout: "3s" }, APPEND_ONCE);
        // Several, because which of the two is looked at first is chance.
        far.then(vec![Then::Hold; 6]);
        let mut ids = Vec::new();
        for _ in 0..6 {
            ids.push(home.enqueue().await);
        }
        let paused = worker(&home);
        far.wait_for(6).await;
        home.pause(ids[0], &paused).await;
        far.release();
        let _other = worker(&home);
        let mut limit = jiff::Timestamp::MIN;
        for id in &ids {
            limit = limit.max(home.until(*id, "in doubt", in_doubt).await.fence.unwrap().in_flight_until);
        }
        while jiff::Timestamp::now() < limit {
            // The limit is wall time, and gives no signal.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        paused.signal("CONT");
        for id in ids {
            home.until(id, "completed", |row| row.state == State::Completed).await;
        }
        assert_eq!(far.arrived().len(), 6);
    }
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
