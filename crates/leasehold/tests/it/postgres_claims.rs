//! A process that dies or stands still in the middle of a claim of many rows: the rows are anybody's again, at once or within seconds, and
//! nothing of the claim is there.
//!
//! The other process is this test binary again, with a database named in the environment.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    run::{RunId, State},
    store::{Choose, Store, Wanted, postgres::PostgresStore},
};
use leasehold_testkit::{
    fixture::{at, claim, insert, queued},
    postgres::{Cluster, Database, Version},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const URL: &str = "LEASEHOLD_TEST_URL";
const ROWS: usize = 5;

fn wanted() -> Wanted {
    Wanted { agents: vec![("a".into(), 100)], now: at(0), except: Vec::new() }
}

#[tokio::test]
async fn as_a_child_it_never_answers_what_it_claims() {
    let Ok(url) = env::var(URL) else { return };
    let store = PostgresStore::connect(&url).await.unwrap();
    let choose: Choose = Arc::new(|rows| {
        let writes = rows.into_iter().map(|row| claim(&row.unwrap())).collect::<Vec<_>>();
        let mut out = std::io::stdout().lock();
        writeln!(out, "holds {}", writes.len()).unwrap();
        out.flush().unwrap();
        loop {
            std::thread::park();
        }
    });
    store.claim(wanted(), choose).await.unwrap();
}

/// How many rows a claim is shown; it takes none.
async fn free(store: &PostgresStore) -> usize {
    let shown = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&shown);
    let choose: Choose = Arc::new(move |rows| {
        seen.store(rows.len(), Ordering::SeqCst);
        Vec::new()
    });
    store.claim(wanted(), choose).await.unwrap();
    shown.load(Ordering::SeqCst)
}

struct Scene {
    _database: Database,
    store: Arc<PostgresStore>,
    ids: Vec<RunId>,
    child: Child,
}

impl Scene {
    /// Rows, and a process that stands in the middle of a claim of them.
    async fn new(version: Version) -> Self {
        let database = tokio::task::spawn_blocking(move || Cluster::shared(version)).await.unwrap().database().await;
        let store = PostgresStore::connect(&database.url()).await.unwrap();
        let mut ids = Vec::new();
        for _ in 0..ROWS {
            let row = queued("a");
            ids.push(row.id);
            store.insert(insert(row)).await.unwrap();
        }
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["postgres_claims::as_a_child_it_never_answers_what_it_claims", "--exact", "--nocapture"]);
        let mut child = command.env(URL, database.url()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let scene = Self { _database: database, store, ids, child };
        let told = lines.map(Result::unwrap).find(|line| line.contains("holds ")).unwrap();
        assert!(told.ends_with(&format!("holds {ROWS}")), "{told}");
        let asked = Instant::now();
        assert_eq!(free(&scene.store).await, 0, "nobody else is shown them");
        assert!(asked.elapsed() < Duration::from_secs(2), "and nobody waits for them");
        scene
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    async fn free_again_within(self, bound: Duration) {
        let asked = Instant::now();
        while free(&self.store).await < ROWS {
            assert!(asked.elapsed() < bound, "the rows are still held");
            // Rows that come free give no signal.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for id in &self.ids {
            let row = self.store.load(*id).await.unwrap().unwrap();
            assert_eq!((row.state, row.epoch, row.sequence, row.requeues), (State::Queued, 0, 1, 0));
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // A child that is gone already is as good.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[tokio::test]
async fn what_a_killed_process_was_claiming_is_free_at_once() {
    let scene = Scene::new(Version::V18).await;
    scene.signal(Signal::KILL);
    scene.free_again_within(Duration::from_secs(2)).await;
}

#[tokio::test]
async fn what_a_process_that_stands_still_was_claiming_is_free_within_seconds() {
    for version in [Version::V15, Version::V18] {
        let scene = Scene::new(version).await;
        scene.signal(Signal::STOP);
        scene.free_again_within(Duration::from_secs(8)).await;
    }
}
