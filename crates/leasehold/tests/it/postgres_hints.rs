//! Hints between processes on PostgreSQL: they wake a worker at once, and without them polling finds everything.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    PoolConfig, Runtime, RuntimeConfig, StartRun,
    agent::registry::{AgentSpec, Registry},
    clock::SystemClock,
    run::{RunId, State},
    store::{Store, postgres::PostgresStore},
};
use leasehold_testkit::{
    FaultyStore,
    postgres::{Cluster, Database, Version},
    world::{SpiedModel, World},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Longer than any test: whoever waits for it fails.
const NEVER: Duration = Duration::from_secs(3_600);
const PATIENCE: Duration = Duration::from_secs(20);

fn process(store: Arc<dyn Store>) -> Runtime {
    let mut registry = Registry::new();
    registry.add_agent(AgentSpec::new("a", SpiedModel::new("[[reply]]\ntext = \"done\"\n"))).unwrap();
    Runtime::new(RuntimeConfig::new(store, registry, Arc::new(SystemClock::new().unwrap()))).unwrap()
}

struct Scene {
    database: Database,
    /// Enqueues; another process as far as the store knows.
    other: Runtime,
    worker: Runtime,
    working: JoinHandle<()>,
}

impl Scene {
    async fn new(poll_interval: Duration, wrap: impl FnOnce(Arc<dyn Store>) -> Arc<dyn Store>) -> Self {
        let database = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.unwrap().database().await;
        let store = wrap(PostgresStore::connect(&database.url()).await.unwrap());
        Self::on(database, poll_interval, store).await
    }

    async fn on(database: Database, poll_interval: Duration, store: Arc<dyn Store>) -> Self {
        let other = process(PostgresStore::connect(&database.url()).await.unwrap());
        let worker = process(store);
        let working = tokio::spawn({
            let worker = worker.clone();
            async move {
                worker.work(PoolConfig { poll_interval, sweep_interval: NEVER, ..PoolConfig::default() }).await;
            }
        });
        Self { database, other, worker, working }
    }

    async fn enqueue(&self) -> RunId {
        self.other.enqueue(StartRun::new("a", "task", World::person()), None).await.unwrap()
    }

    async fn is_executed(&self, run: RunId) -> Duration {
        let asked = Instant::now();
        while self.other.store().load(run).await.unwrap().unwrap().state != State::Completed {
            assert!(asked.elapsed() < PATIENCE, "nobody took run {run}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        asked.elapsed()
    }

    /// The server's count of connections that listen.
    async fn listeners(&self, end: bool) -> i64 {
        let client = self.database.cluster().client(self.database.name()).await.unwrap();
        let end = if end { "AND pg_terminate_backend(pid)" } else { "" };
        let count =
            format!("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %' {end}");
        client.query_one(&count, &[]).await.unwrap().get(0)
    }

    async fn listens(&self) {
        let asked = Instant::now();
        while self.listeners(false).await == 0 {
            assert!(asked.elapsed() < PATIENCE, "the worker does not listen");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) {
        self.worker.stop();
        self.working.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_of_another_process_wakes_a_worker_that_would_not_look_for_an_hour() {
    let scene = Scene::new(NEVER, |store| store).await;
    scene.listens().await;
    for _ in 0..3 {
        let run = scene.enqueue().await;
        assert!(scene.is_executed(run).await < Duration::from_secs(5));
    }
    assert_eq!(scene.listeners(false).await, 1, "one connection listens, in the worker alone");
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_was_cut_comes_back_and_the_worker_looks_for_what_it_missed() {
    let scene = Scene::new(NEVER, |store| store).await;
    scene.listens().await;
    for _ in 0..3 {
        assert_eq!(scene.listeners(true).await, 1);
        let missed = scene.enqueue().await;
        scene.is_executed(missed).await;
        scene.listens().await;
    }
    scene.end().await;
}

/// A way to the server on which nobody may listen, as a pooler has it; it counts who tries.
async fn deaf(port: u16) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (own, refused) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&refused);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let ((mut near_in, near_out), (mut far_in, mut far_out)) = (near.into_split(), far.into_split());
            let near_out = Arc::new(tokio::sync::Mutex::new(near_out));
            let (answers, count) = (Arc::clone(&near_out), Arc::clone(&count));
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(read @ 1..) = near_in.read(&mut buffer).await {
                    if buffer[..read].windows(6).any(|bytes| bytes == b"LISTEN") {
                        count.fetch_add(1, Ordering::SeqCst);
                        let fields = b"SERROR\0C0A000\0Mnobody listens here\0\0";
                        let mut answer = vec![b'E'];
                        answer.extend(u32::try_from(fields.len() + 4).unwrap().to_be_bytes());
                        answer.extend(fields);
                        answer.extend(b"Z\0\0\0\x05I");
                        answers.lock().await.write_all(&answer).await.ok();
                    } else if far_out.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                }
            });
            tokio::spawn(async move {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(read @ 1..) = far_in.read(&mut buffer).await {
                    if near_out.lock().await.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (own, refused)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_may_listen_a_run_is_found_by_polling_and_nothing_else_is_amiss() {
    let database = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.unwrap().database().await;
    let (port, refused) = deaf(database.cluster().port()).await;
    let url = format!("postgres://leasehold@127.0.0.1:{port}/{}", database.name());
    let through = PostgresStore::connect(&url).await.unwrap();
    let scene = Scene::on(database, Duration::from_millis(300), through).await;
    for _ in 0..3 {
        let run = scene.enqueue().await;
        scene.is_executed(run).await;
    }
    let asked = Instant::now();
    while refused.load(Ordering::SeqCst) < 2 {
        assert!(asked.elapsed() < PATIENCE, "it does not try to listen again");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(scene.listeners(false).await, 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hints_a_run_is_found_by_polling() {
    // A store that is wrapped passes no hints on, as a pooler that does not let anybody listen.
    let scene = Scene::new(Duration::from_millis(300), |store| FaultyStore::new(store)).await;
    for _ in 0..3 {
        let run = scene.enqueue().await;
        scene.is_executed(run).await;
    }
    assert_eq!(scene.listeners(false).await, 0);
    scene.end().await;
}
