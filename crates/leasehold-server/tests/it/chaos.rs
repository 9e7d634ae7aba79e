//! Worker processes killed and paused at random while they work, and on PostgreSQL a server that crashes and connections that are
//! cut. Short here; `CHAOS_SECONDS` makes it longer, `CHAOS_SEED` another one.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    Runtime, RuntimeConfig,
    agent::{
        model::Model,
        registry::{AgentSpec, Registry},
    },
    clock::SystemClock,
    run::Policy,
    store::Store,
};
use leasehold_testkit::{
    chaos::{Outage, Plan, run},
    home::Home,
    postgres::{Cluster, Extra, Version},
    world::SpiedModel,
};
use std::{pin::Pin, sync::Arc, time::Duration};

/// The people's own process: it has the agent's name to enqueue for, and executes nothing.
fn desk(store: Arc<dyn Store>, ttl: Duration) -> Runtime {
    let model = SpiedModel::new("[[reply]]\ntext = \"never asked\"\n");
    let mut registry = Registry::new();
    registry.add_agent(AgentSpec::new("a", model as Arc<dyn Model>)).expect("one agent");
    let clock = Arc::new(SystemClock::new().expect("a clock"));
    Runtime::new(RuntimeConfig {
        authority: None,
        keyring: None,
        owners: None,
        store,
        registry: Arc::new(registry),
        clock: clock.clone(),
        wall: clock,
        ttl,
        policy: Policy { max_requeues: 50, ..Policy::default() },
        process: "desk:1".into(),
        probe: None,
        live: None,
    })
    .expect("a runtime")
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_and_paused_at_random_lose_no_run_and_start_no_write_twice() {
    chaos(&Home::new(env!("CARGO_BIN_EXE_leasehold")), 20, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgresql_they_lose_no_run_and_start_no_write_twice() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::own(Version::V15, Extra::default())).await.expect("a server");
    let database = cluster.database().await;
    let outages = [crash(&cluster), cut(&cluster)];
    chaos(&Home::on_database(env!("CARGO_BIN_EXE_leasehold"), database), 60, &outages).await;
}

/// The server crashes, and is started again.
fn crash(cluster: &Arc<Cluster>) -> Outage {
    let cluster = Arc::clone(cluster);
    let strike = move || {
        let cluster = Arc::clone(&cluster);
        let crashed = tokio::task::spawn_blocking(move || cluster.restart_immediate());
        Box::pin(async move { crashed.await.expect("a server") }) as Pin<Box<dyn Future<Output = ()> + Send>>
    };
    Outage { name: "crash", strike: Box::new(strike) }
}

/// Every connection is ended by the server.
fn cut(cluster: &Arc<Cluster>) -> Outage {
    let cluster = Arc::clone(cluster);
    let strike = move || {
        let cluster = Arc::clone(&cluster);
        Box::pin(async move {
            let all =
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 't\\_%' AND pid <> pg_backend_pid()";
            cluster.execute("postgres", all).await.expect("a superuser may");
        }) as Pin<Box<dyn Future<Output = ()> + Send>>
    };
    Outage { name: "cut", strike: Box::new(strike) }
}

async fn chaos(home: &Home, seconds: u64, outages: &[Outage]) {
    let ttl = Duration::from_millis(1_500);
    let plan = Plan {
        lasts: Duration::from_secs(number("CHAOS_SECONDS", seconds)),
        workers: 4,
        in_flight: 12,
        seed: number("CHAOS_SEED", 7),
        ttl,
    };
    let store: Arc<dyn Store> = home.store().await;
    let runtime = desk(Arc::clone(&store), ttl);
    let report = run(home, &home.store_url(), store, &runtime, &plan, outages).await.expect("it ran");
    println!("{}", report.line());
    assert_eq!(report.violations, Vec::<String>::new());
    assert!(report.kills > 5 && report.runs > plan.in_flight, "it was no chaos: {}", report.line());
    assert!(outages.iter().all(|o| report.outages.contains_key(o.name)), "the store was left alone: {}", report.line());
}
