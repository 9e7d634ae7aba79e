//! Real processes that end, start anew and are mistaken for each other; a machine that was booted anew; a PostgreSQL that is
//! restarted under many runs, and one whose clock jumps.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use crate::hours::{self, TTL, count, in_doubt, keeps, ledger, on_a_database, on_a_file, untroubled, worker};
use leasehold::{
    Runtime, RuntimeConfig, StartRun,
    agent::{
        model::Model,
        registry::{AgentSpec, Registry},
        tool::{Approval, WriteEffect},
    },
    clock::{self, ManualClock, SystemClock},
    run::{EntryBody, Principal, RunId, Snapshot, State},
    store::{Store, sqlite::SqliteStore},
};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{Home, Running},
    postgres::{Cluster, Extra, Version},
    wall_clock::WallClock,
    world::{RecordedWrite, Recorder, SpiedModel, World},
};
use std::{
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

async fn asked_to_end(home: Home) {
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    hours::lease(&home, "1500ms");
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let mut ending = worker(&home);
    far.wait_for(1).await;
    let held = home.row(id).await;
    let _other = worker(&home);
    ending.signal("TERM");
    keeps(&home, &held, Duration::from_secs(8)).await;
    far.release();
    ending.ended().await;
    assert_eq!(ending.wait(), Some(0));
    let row = home.until(id, "completed", |row| row.state.is_settled()).await;
    assert_eq!((row.state, row.requeues), (State::Completed, 0), "an interruption costs no requeue");
    let journal = home.journal(id).await;
    assert_eq!((count(&journal, "lease_expired"), count(&journal, "tool_outcome")), (0, 1), "{journal:?}");
    assert_eq!(far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_end_under_a_long_tool_renews_until_it_has_recorded_it() {
    tokio::join!(asked_to_end(on_a_file()), asked_to_end(on_a_database().await));
}

/// Whether this machine lets the test have process ids of its own, and how.
fn own_process_ids() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["--pid", "--fork"], &["--user", "--map-root-user", "--pid", "--fork"]];
    let works = |way: &&&[&str]| Command::new("unshare").args(**way).arg("true").output().is_ok_and(|o| o.status.success());
    ways.iter().find(works).copied()
}

/// A worker that is process 1 of its own container, as it sees it.
fn contained(home: &Home, way: &[&str]) -> Running {
    let plain = home.command(&["worker"]);
    let mut command = Command::new("unshare");
    command.args(way).arg("--kill-child").arg(plain.get_program()).args(plain.get_args()).current_dir(home.path());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    home.start_as(command, None)
}

/// A signal to what runs inside.
fn signal_inside(container: &Running, name: &str) {
    let id = container.id();
    let inside = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
    let sent = Command::new("kill").arg(format!("-{name}")).arg(inside.trim()).status();
    assert!(sent.is_ok_and(|s| s.success()), "SIG{name} to {inside}");
}

async fn same_name(home: Home, way: &[&str]) {
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let old = contained(&home, way);
    far.wait_for(1).await;
    let held = home.row(id).await;
    let (_, name) = held.lease.as_ref().unwrap().holder.split_once(':').unwrap();
    assert!(name.ends_with(":1"), "{name}");
    // The old one is not dead, only still; the container is started anew beside it.
    signal_inside(&old, "STOP");
    let _new = contained(&home, way);
    let row = home.until(id, "in doubt", in_doubt).await;
    assert_eq!((row.epoch, far.arrived().len()), (held.epoch + 1, 1), "settled as a stranger's, and not gone on with");
    signal_inside(&old, "CONT");
    far.release();
    // What the old one knows counts as late; what goes on then is another holder of the same name.
    let row = home.until(id, "completed", |row| row.state.is_settled()).await;
    assert_eq!((row.state, far.arrived().len()), (State::Completed, 1), "{row:?}");
    let journal = home.journal(id).await;
    let opened = |e: &&leasehold::run::Entry| matches!(e.body, EntryBody::SegmentOpened(_));
    let segments: Vec<_> = journal.iter().filter(opened).map(|e| (e.holder.clone(), e.epoch)).collect();
    assert_eq!(segments, [(Some(format!("worker:{name}")), held.epoch), (Some(format!("resume:{name}")), held.epoch + 2)]);
    let late = |e: &leasehold::run::Entry| matches!(&e.body, EntryBody::ToolOutcome(outcome) if outcome.late);
    assert_eq!(journal.iter().filter(|e| late(e)).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_started_anew_with_host_name_and_process_id_of_the_old_one_is_not_taken_for_it() {
    // Where containers may not be made, a test of the library has two processes of one name.
    let Some(way) = own_process_ids() else { return };
    tokio::join!(same_name(on_a_file(), way), same_name(on_a_database().await, way));
}

/// A run that a process of another boot holds: the store is told another boot's clock, and the process is this one.
async fn of_another_boot(home: &Home) -> (World, Arc<ManualClock>, RunId) {
    let far = FarSide::start().await.unwrap();
    ledger(home, &far, "idempotent_write");
    let id = home.enqueue().await;
    let clock = ManualClock::new();
    let store: Arc<dyn Store> = SqliteStore::open(home.path().join("leasehold.db"), clock.clone()).unwrap();
    let tool = RecordedWrite::new("ledger.append", WriteEffect::Idempotent, &Recorder::default()).tool(Approval::None);
    let world = World::builder("[[reply]]\ntext = \"never asked\"\n").tool(tool).on(&store, &clock).ttl(TTL).build();
    // What is due by real time is due by this clock too.
    clock.step_wall(jiff::Timestamp::now().as_millisecond() - clock::WallClock::now(&*clock).as_millisecond());
    (world, clock, id)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_earlier_boot_left_is_watched_for_one_lease_and_then_goes_on() {
    let home = on_a_file();
    let (world, _, id) = of_another_boot(&home).await;
    let left = world.runtime.claim(id).await.unwrap();
    drop((left, world));
    let ran = home.run(&["reap"]).await;
    assert!(ran.stderr().contains("a worker watches them for one ttl"), "{ran}");
    let row = home.row(id).await;
    let lease = row.lease.unwrap();
    assert_eq!((row.state, row.epoch, lease.expires_at.clock.as_str()), (State::Running, 1, "boot-1"));
    let _worker = worker(&home);
    let row = home.until(id, "completed", |row| row.state.is_settled()).await;
    assert_eq!((row.state, row.epoch, row.requeues), (State::Completed, 3, 1));
    let journal = home.journal(id).await;
    let expired = journal.iter().find_map(|e| match &e.body {
        EntryBody::LeaseExpired(body) => Some((body.lease_id, body.holder.clone())),
        _ => None,
    });
    assert_eq!(expired, Some((lease.lease_id, lease.holder)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_whose_lease_another_machine_renews_is_refused() {
    let home = on_a_file();
    let (world, clock, id) = of_another_boot(&home).await;
    let held = world.runtime.claim(id).await.unwrap();
    let renewing = tokio::spawn(async move {
        loop {
            // Each renewal of the other machine ends a little later.
            clock.advance(Duration::from_millis(10));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let ran = home.run(&["worker"]).await;
    assert_eq!(ran.code(), 2, "{ran}");
    assert!(ran.stderr().contains("a SQLite store belongs to one machine") && ran.stderr().contains(&id.to_string()), "{ran}");
    let row = home.row(id).await;
    assert_eq!((row.state, row.epoch), (State::Running, 1), "nothing of the other machine is touched");
    renewing.abort();
    drop(held);
}

async fn caps_over_a_restart(home: Home) {
    const PLACES: usize = 2;
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "idempotent_write");
    hours::places(&home, PLACES);
    far.then((0..2 * PLACES).map(|_| Then::Hold));
    let ids = many(&home, 3 * PLACES).await;
    let mut first = worker(&home);
    far.wait_for(PLACES).await;
    first.kill();
    let second = worker(&home);
    far.wait_for(2 * PLACES).await;
    let name = format!(":{}", second.id());
    let of_second = |rows: Vec<Snapshot>| -> Vec<Snapshot> {
        rows.into_iter().filter(|row| row.lease.as_ref().is_some_and(|l| l.holder.ends_with(&name))).collect()
    };
    let held = of_second(rows(&home, &ids).await);
    assert_eq!(held.len(), PLACES, "what the dead one held takes no place, and adds none");
    // Two leases long: the runs of the dead worker come back to the queue and find no place.
    keeps(&home, &held[0], TTL * 2).await;
    let queued = |row: &Snapshot| row.state == State::Queued;
    assert_eq!(rows(&home, &ids).await.iter().filter(|row| queued(row)).count(), 2 * PLACES);
    assert_eq!((of_second(rows(&home, &ids).await).len(), far.arrived().len()), (PLACES, 2 * PLACES));
    far.release();
    for id in ids {
        home.until(id, "completed", |row| row.state == State::Completed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_started_anew_keeps_the_cap_of_its_agent() {
    tokio::join!(caps_over_a_restart(on_a_file()), caps_over_a_restart(on_a_database().await));
}

/// Enqueues for agent `a` without a command for each.
async fn many(home: &Home, runs: usize) -> Vec<RunId> {
    let mut registry = Registry::new();
    let model = SpiedModel::new("[[reply]]\ntext = \"never asked\"\n") as Arc<dyn Model>;
    registry.add_agent(AgentSpec::new("a", model)).unwrap();
    let clock = Arc::new(SystemClock::new().unwrap());
    let desk = Runtime::new(RuntimeConfig::new(home.store().await, Arc::new(registry), clock)).unwrap();
    let mut ids = Vec::new();
    for n in 0..runs {
        let start = StartRun::new("a", format!("task {n}"), Principal::person("local:ada"));
        ids.push(desk.enqueue(start, None).await.unwrap());
    }
    ids
}

async fn rows(home: &Home, ids: &[RunId]) -> Vec<Snapshot> {
    let mut rows = Vec::new();
    for id in ids {
        rows.push(home.row(*id).await);
    }
    rows
}

async fn own_server(extra: Vec<(String, String)>) -> (Arc<Cluster>, Home) {
    let open = move || Cluster::own(Version::V15, Extra { environment: &extra, ..Extra::default() });
    let cluster = tokio::task::spawn_blocking(open).await.unwrap();
    let home = Home::on_database(env!("CARGO_BIN_EXE_leasehold"), cluster.database().await);
    (cluster, home)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_that_is_restarted_under_fifty_runs_costs_none_of_them_anything() {
    const RUNS: usize = 50;
    let (cluster, home) = own_server(Vec::new()).await;
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    // A restart on a busy machine takes seconds, and two thirds of a lease is what a renewal has left.
    hours::lease(&home, "20s");
    hours::places(&home, RUNS / 2);
    far.then((0..RUNS).map(|_| Then::Hold));
    let ids = many(&home, RUNS).await;
    let _workers = [worker(&home), worker(&home)];
    far.wait_for(RUNS).await;
    let held = rows(&home, &ids).await;
    for immediate in [true, false] {
        let restarted = cluster.clone();
        let restart = move || if immediate { restarted.restart_immediate() } else { restarted.restart_fast() };
        tokio::task::spawn_blocking(restart).await.unwrap();
        cluster.answers().await;
        // A renewal after it: the processes have found their way back.
        let ends = |rows: &[Snapshot]| -> Vec<_> { rows.iter().map(|r| r.lease.clone().map(|l| l.expires_at)).collect() };
        let before = ends(&rows(&home, &ids).await);
        let started = Instant::now();
        while ends(&rows(&home, &ids).await).iter().zip(&before).any(|(now, was)| now == was) {
            assert!(started.elapsed() < hours::PATIENCE, "not every lease is renewed after the restart");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    for (now, was) in rows(&home, &ids).await.iter().zip(&held) {
        let lease_id = |row: &Snapshot| row.lease.as_ref().map(|l| l.lease_id);
        assert_eq!((now.state, now.epoch, lease_id(now)), (State::Running, 1, lease_id(was)));
    }
    far.release();
    for id in ids {
        untroubled(&home, id).await;
    }
    assert_eq!(far.arrived().len(), RUNS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_clock_that_jumps_ten_minutes_makes_no_doubt_and_no_lease_that_lasts_for_ever() {
    const RUNS: usize = 12;
    let wall = hours::wall_clock(0).await;
    let (cluster, home) = own_server(wall.environment()).await;
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    hours::places(&home, RUNS / 2);
    far.then((0..RUNS).map(|_| Then::Hold));
    let ids = many(&home, RUNS).await;
    let (mut first, mut second) = (worker(&home), worker(&home));
    far.wait_for(RUNS).await;
    let mut watching = worker(&home);
    let started = rows(&home, &ids).await;
    // A look of each sweep at the clock as it was.
    keeps(&home, &started[0], TTL).await;
    jumps(&cluster, &wall, 600).await;
    keeps(&home, &started[0], TTL * 3).await;
    let held = rows(&home, &ids).await;
    assert!(held.iter().all(|row| (row.state, row.epoch) == (State::Running, 1)), "{held:?}");
    // Orphans are found after a jump as ever.
    let of = |name: &str| -> Vec<RunId> {
        let is_of = |row: &&Snapshot| row.lease.as_ref().is_some_and(|l| l.holder.ends_with(name));
        held.iter().filter(is_of).map(|row| row.id).collect()
    };
    let (firsts, seconds) = (of(&format!(":{}", first.id())), of(&format!(":{}", second.id())));
    assert_eq!((firsts.len(), seconds.len()), (RUNS / 2, RUNS / 2));
    first.kill();
    for id in &firsts {
        home.until(*id, "in doubt", in_doubt).await;
    }
    // Back by ten minutes: the leases of a process that dies then end ten minutes from now.
    second.signal("STOP");
    jumps(&cluster, &wall, 0).await;
    second.kill();
    for id in &seconds {
        home.until(*id, "in doubt", in_doubt).await;
    }
    assert_eq!(far.arrived().len(), RUNS);
    watching.kill();
}

/// Sets the server's clock, and sees that it is set.
async fn jumps(cluster: &Arc<Cluster>, wall: &WallClock, by: i64) {
    wall.set(by);
    let client = cluster.client("postgres").await.unwrap();
    let row = client.query_one("SELECT extract(epoch FROM clock_timestamp())::bigint", &[]).await.unwrap();
    let off = row.get::<_, i64>(0) - jiff::Timestamp::now().as_second();
    assert!((by - 5..=by + 5).contains(&off), "the server's clock is {off} s off");
}
