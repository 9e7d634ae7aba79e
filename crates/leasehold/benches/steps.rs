//! What a durable step costs, as ratios to the raw commit rate of the same disk in the same run: `cargo bench -p leasehold`.
//! Absolute times of a shared machine mean little; the ratios are what is compared.

#![allow(clippy::expect_used, missing_docs, reason = "a bench fails by panicking")]

use leasehold::{
    StartRun,
    agent::tool::{Approval, WriteEffect},
    clock::SystemClock,
    store::{Store, sqlite::SqliteStore},
};
use leasehold_testkit::{
    fixture::{insert, record, running},
    world::{RecordedRead, RecordedWrite, Recorder, World},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

const ROUNDS: usize = 10;
const LASTS: Duration = Duration::from_millis(1500);

/// One UPDATE and one INSERT of 400 bytes in a transaction, flushed.
fn raw_commits(directory: &std::path::Path) -> f64 {
    let connection = rusqlite::Connection::open(directory.join("raw.db")).expect("a file");
    connection.pragma_update(None, "journal_mode", "wal").expect("wal");
    connection.pragma_update(None, "synchronous", "full").expect("full");
    connection
        .execute_batch("create table r (id integer primary key, n integer); create table j (n integer, payload blob); insert into r values (1, 0)")
        .expect("a schema");
    let payload = vec![7_u8; 400];
    let started = Instant::now();
    let mut commits = 0_u32;
    while started.elapsed() < LASTS {
        connection.execute_batch("begin immediate").expect("begins");
        connection.execute("update r set n = n + 1 where id = 1", []).expect("updates");
        connection.execute("insert into j values (?1, ?2)", rusqlite::params![commits, payload]).expect("inserts");
        connection.execute_batch("commit").expect("commits");
        commits += 1;
    }
    f64::from(commits) / started.elapsed().as_secs_f64()
}

/// Guarded writes of so many runs at once.
async fn writes(store: Arc<SqliteStore>, at_once: usize) -> f64 {
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mut row = running("a");
            store.insert(insert(row.clone())).await.expect("inserted");
            let mut done = 0_u32;
            while started.elapsed() < LASTS {
                let write = record(&row, &"x".repeat(400));
                let next = write.next.clone();
                store.write(write).await.expect("written");
                row = next;
                done += 1;
            }
            done
        });
    }
    let done: u32 = tasks.join_all().await.into_iter().sum();
    f64::from(done) / started.elapsed().as_secs_f64()
}

fn script(tool: &str) -> String {
    let mut text = String::new();
    for round in 0..ROUNDS {
        text.push_str(&format!("[[reply]]\ncalls = [{{ tool = \"{tool}\", arguments = {{ text = \"{round}\" }} }}]\n"));
    }
    text.push_str("[[reply]]\ntext = \"done\"\n");
    text
}

/// Whole runs of ten rounds, so many at once: steps (a model reply or a call) a second.
async fn runs(store: Arc<dyn Store>, tool: &str, at_once: usize) -> f64 {
    let recorder = Recorder::default();
    let clock = leasehold::clock::ManualClock::new();
    let world = World::builder(&script(tool))
        .on(&store, &clock)
        .tool(RecordedRead::new("notes.read", &recorder).tool())
        .tool(RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder).tool(Approval::None))
        .build();
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let runtime = world.runtime.clone();
        tasks.spawn(async move {
            let mut done = 0_usize;
            while started.elapsed() < LASTS {
                let start = StartRun::new("a", "bench", World::person());
                runtime.start(start).await.expect("started").finish().await.expect("finished");
                done += 1;
            }
            done
        });
    }
    let done: usize = tasks.join_all().await.into_iter().sum();
    (done * 2 * ROUNDS) as f64 / started.elapsed().as_secs_f64()
}

#[tokio::main]
async fn main() {
    let directory = tempfile::tempdir().expect("a directory");
    let clock = Arc::new(SystemClock::new().expect("a clock"));
    let store = SqliteStore::open(directory.path().join("leasehold.db"), clock).expect("a store");
    println!("| workload | at once | per second | x raw commit |\n| --- | --- | --- | --- |");
    let raw = raw_commits(directory.path());
    println!("| raw SQLite commit (UPDATE + INSERT) | 1 | {raw:.0} | 1.00 |");
    for at_once in [1, 16, 128] {
        let rate = writes(Arc::clone(&store), at_once).await;
        println!("| guarded write | {at_once} | {rate:.0} | {:.2} |", rate / raw);
    }
    for tool in ["notes.read", "ledger.append"] {
        for at_once in [1, 16, 128] {
            let rate = runs(Arc::clone(&store) as Arc<dyn Store>, tool, at_once).await;
            println!("| step of a ten-round run, {tool} | {at_once} | {rate:.0} | {:.2} |", rate / raw);
        }
    }
    let again = raw_commits(tempfile::tempdir().expect("a directory").path());
    println!("| raw SQLite commit, again | 1 | {again:.0} | {:.2} |", again / raw);
}
