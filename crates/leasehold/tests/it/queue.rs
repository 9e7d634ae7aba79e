//! The queue worked by several pools: each run is claimed once, whose turn it is, and what a worker passes over.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    PoolConfig, Runtime, RuntimeConfig, StartRun, Unserved, Worked,
    agent::registry::{AgentSpec, Registry},
    clock::ManualClock,
    run::{Claimer, Reason, RunId, Snapshot, State},
    store::{Filter, Listed, Store, memory::MemoryStore, postgres::PostgresStore, sqlite::SqliteStore},
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op,
    fixture::{fence, insert, queued},
    postgres::{Cluster, Extra, Version},
    world::{SpiedModel, World},
};
use std::{collections::HashSet, sync::Arc, time::Duration};

const DONE: &str = "[[reply]]\ntext = \"done\"\n";

/// A process with these agents, each with its places.
fn process(store: Arc<dyn Store>, clock: &Arc<ManualClock>, agents: &[(&str, usize)]) -> Runtime {
    let mut registry = Registry::new();
    for (name, concurrency) in agents {
        let agent = AgentSpec { concurrency: *concurrency, ..AgentSpec::new(*name, SpiedModel::new(DONE)) };
        registry.add_agent(agent).unwrap();
    }
    Runtime::new(RuntimeConfig::new(store, registry, Arc::clone(clock))).unwrap()
}

fn start(agent: &str) -> StartRun {
    StartRun::new(agent, "task", World::person())
}

/// Works off what is due, so many segments at once.
async fn drain(runtime: &Runtime, concurrency: usize) -> Worked {
    // One sweep at the beginning: nothing here is swept.
    let sweep_interval = Duration::from_secs(3_600);
    runtime.work(PoolConfig { concurrency, sweep_interval, ..PoolConfig::drain() }).await
}

async fn all(store: &dyn Store) -> Vec<Listed> {
    let mut all: Vec<Listed> = Vec::new();
    while let page = store.list(&Filter::default(), all.last().map(|r| r.id), usize::MAX).await.unwrap()
        && !page.is_empty()
    {
        all.extend(page);
    }
    all
}

async fn four_pools_drain(stores: Vec<Arc<dyn Store>>, clock: Arc<ManualClock>) {
    const RUNS: usize = 2_000;
    let pools: Vec<Runtime> = stores.iter().map(|s| process(Arc::clone(s), &clock, &[("a", 64), ("b", 64)])).collect();
    let enqueue = (0..RUNS).map(|n| pools[n % 4].enqueue(start(if n % 3 == 0 { "a" } else { "b" }), None));
    let enqueued: HashSet<RunId> = futures::future::try_join_all(enqueue).await.unwrap().into_iter().collect();
    assert_eq!(enqueued.len(), RUNS);
    let mut working = tokio::task::JoinSet::new();
    for pool in pools {
        working.spawn(async move { drain(&pool, 64).await });
    }
    let mut executed = Vec::new();
    for worked in working.join_all().await {
        for (run, ended) in worked.executed {
            let row = ended.expect("nobody is in the way of a holder");
            assert_eq!((row.state, row.epoch, row.requeues), (State::Completed, 1, 0), "claimed once");
            executed.push(run);
        }
    }
    assert_eq!(executed.len(), RUNS, "each is executed once");
    assert_eq!(executed.into_iter().collect::<HashSet<_>>(), enqueued, "none is lost");
    let rows = all(&*stores[0]).await;
    assert!(rows.iter().all(|row| row.state == "completed" && row.epoch == 1));
    assert_eq!(rows.len(), RUNS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_pools_drain_two_thousand_runs_of_one_postgresql_and_claim_each_once() {
    let database = tokio::task::spawn_blocking(|| Cluster::shared(Version::V18)).await.unwrap().database().await;
    let clock = ManualClock::new();
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..4 {
        stores.push(PostgresStore::connect_with_clock(&database.url(), clock.clone()).await.unwrap());
    }
    four_pools_drain(stores, clock).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_pools_drain_two_thousand_runs_of_one_file_and_claim_each_once() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let open = || SqliteStore::open(directory.path().join("runs.db"), clock.clone()).unwrap() as Arc<dyn Store>;
    four_pools_drain((0..4).map(|_| open()).collect(), clock.clone()).await;
}

fn memory() -> (Arc<dyn Store>, Arc<ManualClock>) {
    let clock = ManualClock::new();
    (MemoryStore::new(clock.clone()), clock)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_under_its_pools_costs_no_run_a_requeue() {
    const RUNS: usize = 400;
    let cluster = tokio::task::spawn_blocking(|| Cluster::own(Version::V18, Extra::default())).await.unwrap();
    let clock = ManualClock::new();
    let mut pools = Vec::new();
    for _ in 0..2 {
        let store = PostgresStore::connect_with_clock(&cluster.url("postgres"), clock.clone()).await.unwrap();
        pools.push(process(store, &clock, &[("a", 16)]));
    }
    let enqueue = (0..RUNS).map(|n| pools[n % 2].enqueue(start("a"), None));
    futures::future::try_join_all(enqueue).await.unwrap();
    let working: Vec<_> =
        pools.iter().cloned().map(|pool| tokio::spawn(async move { pool.work(PoolConfig::default()).await })).collect();
    let store = pools[0].store();
    // A store that is away is asked again.
    let settled = async || {
        let completed = Filter { states: vec![State::Completed], ..Filter::default() };
        store.list(&completed, None, RUNS).await.map_or(0, |rows| rows.len())
    };
    let started = std::time::Instant::now();
    for target in [RUNS / 4, RUNS / 2, RUNS] {
        while settled().await < target {
            assert!(started.elapsed() < Duration::from_secs(90), "runs are left: {}", settled().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if target < RUNS {
            let cluster = cluster.clone();
            tokio::task::spawn_blocking(move || cluster.restart_immediate()).await.unwrap();
        }
    }
    for listed in all(&**store).await {
        let row = store.load(listed.id).await.unwrap().unwrap();
        assert_eq!((row.state, row.epoch, row.requeues), (State::Completed, 1, 0));
    }
    for (pool, work) in pools.iter().zip(working) {
        pool.stop();
        work.await.unwrap();
    }
}

/// The agents in the order in which their runs ended.
fn agents(worked: &Worked) -> Vec<&str> {
    worked.executed.iter().map(|(_, ended)| ended.as_ref().unwrap().agent.as_str()).collect()
}

#[tokio::test]
async fn a_long_queue_of_one_agent_starves_no_other() {
    let (store, clock) = memory();
    let pool = process(store, &clock, &[("a", 4), ("b", 4)]);
    for _ in 0..30 {
        pool.enqueue(start("a"), None).await.unwrap();
    }
    clock.advance(Duration::from_secs(1));
    for _ in 0..3 {
        pool.enqueue(start("b"), None).await.unwrap();
    }
    // One place: whose turn it is has to be known from one claim to the next.
    let worked = drain(&pool, 1).await;
    assert_eq!(agents(&worked)[..6], ["a", "b", "a", "b", "a", "b"]);
    assert_eq!(worked.executed.len(), 33);
}

#[tokio::test]
async fn a_larger_priority_is_claimed_first_and_nothing_before_its_time() {
    let (store, clock) = memory();
    let pool = process(store.clone(), &clock, &[("a", 4), ("b", 4)]);
    let later = leasehold::clock::WallClock::now(&*clock).checked_add(Duration::from_secs(60)).unwrap();
    let low = pool.enqueue(start("a"), None).await.unwrap();
    let high = pool.enqueue(StartRun { priority: 5, ..start("b") }, None).await.unwrap();
    let not_yet = pool.enqueue(StartRun { priority: 9, run_at: Some(later), ..start("a") }, None).await.unwrap();
    let order = |worked: &Worked| worked.executed.iter().map(|(run, _)| *run).collect::<Vec<_>>();
    assert_eq!(order(&drain(&pool, 1).await), [high, low]);
    assert_eq!(store.load(not_yet).await.unwrap().unwrap().epoch, 0);
    clock.advance(Duration::from_secs(60));
    assert_eq!(order(&drain(&pool, 1).await), [not_yet]);
}

#[tokio::test]
async fn runs_that_a_worker_cannot_serve_hide_none_that_it_can() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("runs.db");
    let clock = ManualClock::new();
    let store = SqliteStore::open(&file, clock.clone()).unwrap();
    let pool = process(store.clone(), &clock, &[("a", 2)]);
    let mut hidden = Vec::new();
    for n in 0..5 {
        // They come first, and this process has not the tool of their standing fence.
        let row = Snapshot { priority: 7, epoch: 1, fence: Some(fence(1)), ..queued("a") };
        let row = if n == 4 { Snapshot { fence: None, epoch: 0, ..row } } else { row };
        hidden.push(row.id);
        store.insert(insert(row)).await.unwrap();
    }
    let raw = rusqlite::Connection::open(&file).unwrap();
    raw.execute("UPDATE runs SET turn = '{' WHERE id = ?1", [hidden[4].to_string()]).unwrap();
    let served = [pool.enqueue(start("a"), None).await.unwrap(), pool.enqueue(start("a"), None).await.unwrap()];
    clock.advance(Duration::from_secs(60));
    let worked = drain(&pool, 1).await;
    assert_eq!(worked.executed.iter().map(|(run, _)| *run).collect::<Vec<_>>(), served);
    assert!(worked.not_served.keys().all(|run| hidden.contains(run)), "{worked:?}");
    for run in &hidden[..4] {
        assert_eq!(worked.not_served[run], "this process does not serve `shop.order`");
        assert_eq!(store.load(*run).await.unwrap().unwrap().epoch, 1);
    }
    // Nobody will ever serve the one that cannot be read: it is settled, and out of the way.
    let unreadable = store.load(hidden[4]).await.unwrap().unwrap();
    assert_eq!((unreadable.state, unreadable.reason), (State::Dead, Some(Reason::Unreadable)));
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_found_by_its_lease_and_executed_once() {
    let (inner, clock) = memory();
    let store = FaultyStore::new(inner);
    let pool = process(store.clone(), &clock, &[("a", 8)]);
    for _ in 0..5 {
        pool.enqueue(start("a"), None).await.unwrap();
    }
    store.fail_next(Op::Claim, How::After);
    let worked = drain(&pool, 8).await;
    assert_eq!(store.hits(), 1);
    assert_eq!(worked.executed.len(), 5);
    assert!(worked.executed.iter().all(|(_, ended)| ended.as_ref().is_ok_and(|row| row.epoch == 1 && row.requeues == 0)));
}

async fn an_enqueue_is_repeated(inner: Arc<dyn Store>, clock: Arc<ManualClock>) {
    let store = FaultyStore::new(inner.clone());
    let process = process(store.clone(), &clock, &[("a", 1)]);
    // The runtime asks twice by itself, under one id; then the caller has to.
    store.arm(Fault::on(Op::Insert, How::After).times(2));
    let enqueue = async || process.enqueue(start("a"), Some("order-17".into())).await;
    assert!(enqueue().await.is_err());
    let run = enqueue().await.unwrap();
    assert_eq!(enqueue().await.unwrap(), run);
    assert_eq!(all(&*inner).await.iter().map(|r| r.id).collect::<Vec<_>>(), [run]);
}

#[tokio::test]
async fn an_enqueue_whose_answer_was_lost_and_that_is_repeated_under_its_key_is_one_run() {
    let clock = ManualClock::new();
    let directory = tempfile::tempdir().unwrap();
    an_enqueue_is_repeated(SqliteStore::open(directory.path().join("runs.db"), clock.clone()).unwrap(), clock.clone()).await;
    let database = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.unwrap().database().await;
    an_enqueue_is_repeated(PostgresStore::connect_with_clock(&database.url(), clock.clone()).await.unwrap(), clock).await;
}

#[tokio::test]
async fn what_no_live_worker_serves_is_said_with_what_they_lack() {
    let (store, clock) = memory();
    let process = process(store.clone(), &clock, &[("a", 1)]);
    let needs_a_tool = Snapshot { epoch: 1, fence: Some(fence(1)), ..queued("a") };
    let unserved = async |row: &Snapshot| process.unserved(row).await.unwrap();
    assert_eq!(unserved(&queued("a")).await, Some(Unserved::NoWorker));
    let serving = |agents: &[&str], tools: &[&str]| {
        let names = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Claimer { agents: names(agents), tools: names(tools), open: true }
    };
    let ttl = Duration::from_secs(60);
    store.announce("one", ttl, &serving(&["b"], &["shop.order"])).await.unwrap();
    assert_eq!(unserved(&queued("a")).await, Some(Unserved::Agent("a".into())));
    assert_eq!(unserved(&queued("b")).await, None);
    store.announce("two", ttl, &serving(&["a"], &[])).await.unwrap();
    assert_eq!(unserved(&queued("a")).await, None);
    assert_eq!(unserved(&needs_a_tool).await, Some(Unserved::Tool("shop.order".into())));
    assert_eq!(unserved(&Snapshot { state: State::Completed, fence: None, ..needs_a_tool.clone() }).await, None);
    store.announce("three", ttl, &serving(&["a"], &["shop.order"])).await.unwrap();
    assert_eq!(unserved(&needs_a_tool).await, None);
    clock.advance(ttl);
    assert_eq!(unserved(&queued("a")).await, Some(Unserved::NoWorker), "who says nothing for a ttl is gone");
}
