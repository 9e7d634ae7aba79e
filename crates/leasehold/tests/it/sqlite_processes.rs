//! One file, several processes: opening at once, writing at once, death amid writes.
//!
//! A test that needs another process starts this test binary again with a file named in the environment; the tests named
//! `as_a_child_...` do nothing without it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    clock::SystemClock,
    run::{RunId, Snapshot},
    store::{Answer, Record, Store, sqlite::SqliteStore},
};
use leasehold_testkit::fixture::{foreign, insert, queued, record, running};
use std::{
    collections::HashMap,
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Barrier},
    thread,
};

const FILE: &str = "LEASEHOLD_TEST_FILE";
const RUN: &str = "LEASEHOLD_TEST_RUN";
const EACH: u64 = 25;
/// Steps of the schema, each taken once.
const MIGRATIONS: i64 = 11;

fn open(path: &Path) -> Arc<SqliteStore> {
    SqliteStore::open(path, Arc::new(SystemClock::new().unwrap())).unwrap()
}

fn file_for_a_child() -> Option<PathBuf> {
    env::var_os(FILE).map(PathBuf::from)
}

fn child(test: &str, file: &Path, run: Option<RunId>) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([&format!("sqlite_processes::{test}"), "--exact", "--nocapture"]).env(FILE, file).stdout(Stdio::piped());
    if let Some(run) = run {
        command.env(RUN, run.to_string());
    }
    command.spawn().unwrap()
}

fn migrations(file: &Path) -> i64 {
    let raw = rusqlite::Connection::open(file).unwrap();
    raw.query_row("SELECT count(*) FROM refinery_schema_history", [], |row| row.get(0)).unwrap()
}

#[test]
fn as_a_child_it_opens_the_file() {
    let Some(file) = file_for_a_child() else { return };
    open(&file);
}

#[test]
fn a_new_file_is_opened_by_eight_processes_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("runs.db");
    let children: Vec<_> = (0..8).map(|_| child("as_a_child_it_opens_the_file", &file, None)).collect();
    for child in children {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    assert_eq!(migrations(&file), MIGRATIONS);
}

#[test]
fn a_new_file_is_opened_by_eight_threads_at_once() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let file = directory.path().join(format!("{round}.db"));
        let start = Barrier::new(8);
        thread::scope(|threads| {
            for _ in 0..8 {
                threads.spawn(|| {
                    start.wait();
                    open(&file);
                });
            }
        });
        assert_eq!(migrations(&file), MIGRATIONS);
    }
}

async fn add_entries(store: &SqliteStore, run: RunId) {
    for _ in 0..EACH {
        loop {
            let seen = store.load(run).await.unwrap().unwrap();
            match store.write(foreign(&seen, "one")).await.unwrap() {
                Answer::Applied(_) => break,
                other => assert_eq!(other, Answer::Moved),
            }
        }
    }
}

#[tokio::test]
async fn as_a_child_it_adds_entries() {
    let Some(file) = file_for_a_child() else { return };
    add_entries(&open(&file), env::var(RUN).unwrap().parse().unwrap()).await;
}

#[tokio::test]
async fn four_processes_write_one_run_without_a_gap_and_never_see_the_file_locked() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("runs.db");
    let store = open(&file);
    let row = queued("a");
    let run = row.id;
    store.insert(insert(row)).await.unwrap();
    let children: Vec<_> = (0..3).map(|_| child("as_a_child_it_adds_entries", &file, Some(run))).collect();
    add_entries(&store, run).await;
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let numbers: Vec<u64> = store.journal(run, 0, 1_000).await.unwrap().iter().map(|e| e.sequence).collect();
    assert_eq!(numbers, (0..=4 * EACH).collect::<Vec<_>>());
}

#[tokio::test]
async fn as_a_child_it_records_until_it_is_killed() {
    let Some(file) = file_for_a_child() else { return };
    let store = open(&file);
    let mut recorders = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = store.clone();
        recorders.spawn(async move {
            let mut row: Snapshot = running("a");
            store.insert(insert(row.clone())).await.unwrap();
            loop {
                let write = record(&row, "step");
                let next = write.next.clone();
                assert!(matches!(store.write(write).await.unwrap(), Answer::Applied(Some(_))));
                let mut out = std::io::stdout().lock();
                writeln!(out, "acknowledged {} {}", row.id, row.sequence).unwrap();
                out.flush().unwrap();
                row = next;
            }
        });
    }
    recorders.join_all().await;
}

#[tokio::test]
async fn what_a_killed_process_had_acknowledged_is_there() {
    let directory = tempfile::tempdir().unwrap();
    for kill_after in [1, 57, 200] {
        let file = directory.path().join(format!("{kill_after}.db"));
        let mut child = child("as_a_child_it_records_until_it_is_killed", &file, None);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acknowledged: HashMap<RunId, u64> = HashMap::new();
        let mut seen = 0;
        // Until the pipe ends, so that what was acknowledged before the kill arrived counts too.
        while let Some(Ok(line)) = lines.next() {
            // The harness writes the test's name onto the first line.
            let Some((_, told)) = line.split_once("acknowledged ") else { continue };
            let Some((run, sequence)) = told.split_once(' ') else { continue };
            let Ok(sequence) = sequence.parse() else { continue };
            acknowledged.insert(run.parse().unwrap(), sequence);
            seen += 1;
            if seen == kill_after {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert!(seen >= kill_after);
        let store = open(&file);
        for (run, sequence) in acknowledged {
            let row = store.load(run).await.unwrap().unwrap();
            let entries = store.journal(run, 0, 1_000).await.unwrap();
            assert!(row.sequence > sequence, "run {run}: entry {sequence} was acknowledged and is lost");
            assert_eq!(entries.len() as u64, row.sequence, "row and journal were written together");
        }
    }
}

const WRITERS: usize = 8;

#[tokio::test(flavor = "multi_thread")]
async fn as_a_child_it_writes_records_until_it_is_killed() {
    let Some(file) = file_for_a_child() else { return };
    let store = open(&file);
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for version in 0.. {
                let counted = |key| Record { version, ..Record::new(format!("user-{writer}"), key, "{}") };
                let entry = Record::new(format!("audit-{writer}"), format!("{version:08}"), "{}");
                assert!(store.put_records(vec![counted("ada"), entry, counted("zoe")]).await.unwrap());
                let mut out = std::io::stdout().lock();
                writeln!(out, "acknowledged {writer}").unwrap();
                out.flush().unwrap();
            }
        });
    }
    writers.join_all().await;
}

#[tokio::test]
async fn records_that_belong_together_are_all_there_or_none_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    for kill_after in [1, 10, 57, 101, 200, 333] {
        let file = directory.path().join(format!("{kill_after}.db"));
        let mut child = child("as_a_child_it_writes_records_until_it_is_killed", &file, None);
        let mut acknowledged = [0; WRITERS];
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let Some((_, writer)) = line.split_once("acknowledged ") else { continue };
            let Ok(writer) = writer.parse::<usize>() else { continue };
            acknowledged[writer] += 1;
            if acknowledged.iter().sum::<usize>() == kill_after {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        let store = open(&file);
        for (writer, acknowledged) in acknowledged.into_iter().enumerate() {
            let entries = store.records(&format!("audit-{writer}"), None, 1_000).await.unwrap().len();
            let users = store.records(&format!("user-{writer}"), None, 9).await.unwrap();
            let versions: Vec<usize> = users.iter().map(|user| usize::try_from(user.version).unwrap()).collect();
            assert_eq!(versions, vec![entries; if entries == 0 { 0 } else { 2 }], "they were written together");
            assert!((acknowledged..=acknowledged + 1).contains(&entries), "{acknowledged} acknowledged, {entries} there");
        }
    }
}
