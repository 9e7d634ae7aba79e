//! What only a file can do to a store: be something else, be newer, be damaged in one row, be kept by somebody, refuse.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use futures::poll;
use leasehold::{
    clock::{BootClock, ManualClock},
    run::{Effect, RunId},
    store::{
        Answer, Filter, ReadError, Store, StoreRefused,
        sqlite::{OpenError, SqliteStore},
    },
};
use leasehold_testkit::fixture::{completed, fence, in_doubt, insert, queued, record, running, waiting};
use rusqlite::Connection;
use std::{
    fs,
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
    time::Duration,
};

struct File {
    directory: tempfile::TempDir,
    clock: Arc<ManualClock>,
}

impl File {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), clock: ManualClock::new() }
    }
    fn path(&self) -> PathBuf {
        self.directory.path().join("runs.db")
    }
    fn open(&self) -> Arc<SqliteStore> {
        SqliteStore::open(self.path(), self.clock.clone()).unwrap()
    }
    /// Past every rule, as a damaged disk is.
    fn raw(&self) -> Connection {
        let raw = Connection::open(self.path()).unwrap();
        raw.pragma_update(None, "ignore_check_constraints", true).unwrap();
        raw
    }
}

fn open(path: &Path) -> Result<Arc<SqliteStore>, OpenError> {
    SqliteStore::open(path, ManualClock::new())
}

#[test]
fn a_missing_directory_is_named() {
    let file = File::new();
    let path = file.directory.path().join("no/such/runs.db");
    let error = open(&path).unwrap_err();
    assert!(matches!(error, OpenError::DirectoryMissing { .. }));
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains("create it"), "{text}");
}

#[test]
fn a_directory_is_not_a_file() {
    let file = File::new();
    assert!(matches!(open(file.directory.path()).unwrap_err(), OpenError::NotAFile { .. }));
}

#[test]
fn a_place_that_takes_no_file_is_not_writable() {
    let error = open(Path::new("/proc/runs.db")).unwrap_err();
    assert!(matches!(error, OpenError::NotWritable { .. }), "{error:?}");
}

#[test]
fn another_file_is_refused_and_left_alone() {
    let file = File::new();
    for content in ["x".to_owned(), "text ".repeat(50), "text ".repeat(5_000)] {
        fs::write(file.path(), &content).unwrap();
        let error = open(&file.path()).unwrap_err();
        assert!(matches!(error, OpenError::NotADatabase { .. }), "{error:?}");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), content);
    }
}

#[test]
fn another_programs_database_is_refused_and_left_alone() {
    let file = File::new();
    Connection::open(file.path()).unwrap().execute_batch("CREATE TABLE accounts (id INTEGER)").unwrap();
    let before = fs::read(file.path()).unwrap();
    assert!(matches!(open(&file.path()).unwrap_err(), OpenError::NotADatabase { .. }));
    assert_eq!(fs::read(file.path()).unwrap(), before);
}

#[test]
fn an_empty_file_becomes_a_store() {
    let file = File::new();
    fs::write(file.path(), "").unwrap();
    file.open();
}

#[test]
fn a_file_of_a_newer_version_is_refused() {
    let file = File::new();
    file.open();
    let newer =
        "INSERT INTO refinery_schema_history SELECT 4711, 'later', applied_on, checksum FROM refinery_schema_history LIMIT 1";
    file.raw().execute_batch(newer).unwrap();
    let error = open(&file.path()).unwrap_err();
    assert!(matches!(error, OpenError::NewerSchema { found: 4711, .. }), "{error:?}");
    assert!(error.to_string().contains("use a newer leasehold"));
}

#[tokio::test]
async fn a_row_from_before_thoughts_were_counted_reads_as_none() {
    let file = File::new();
    let row = running("a");
    file.open().insert(insert(row.clone())).await.unwrap();
    let before = "ALTER TABLE runs DROP COLUMN reasoning_tokens; DELETE FROM refinery_schema_history WHERE name = 'reasoning'";
    file.raw().execute_batch(before).unwrap();
    let read = file.open().load(row.id).await.unwrap().unwrap();
    assert_eq!(read.usage, row.usage);
}

#[tokio::test]
async fn a_row_that_does_not_decode_hides_no_other() {
    let file = File::new();
    let store = file.open();
    let mut ids = Vec::new();
    for row in [running("a"), running("a"), running("a"), running("a"), running("a")] {
        ids.push(row.id);
        store.insert(insert(row)).await.unwrap();
    }
    let raw = file.raw();
    let damage = |sql: &str, id: RunId| assert_eq!(raw.execute(sql, [id.to_string()]).unwrap(), 1);
    damage("UPDATE runs SET turn = '{\"number\":' WHERE id = ?", ids[0]);
    damage("UPDATE runs SET state = 'running', mode = 'sideways' WHERE id = ?", ids[1]);
    damage("UPDATE runs SET cancel_requested = 1 WHERE id = ?", ids[2]);
    damage("UPDATE journal SET payload = x'01ff' WHERE run_id = ?", ids[3]);
    for id in &ids[..3] {
        let error = store.load(*id).await.unwrap_err();
        assert!(matches!(error, ReadError::Corrupt { run, .. } if run == *id), "{error}");
        assert!(!error.to_string().contains("number"), "no content: {error}");
    }
    assert!(matches!(store.journal(ids[3], 0, 10).await, Err(ReadError::Corrupt { .. })));
    store.load(ids[3]).await.unwrap().unwrap();
    store.load(ids[4]).await.unwrap().unwrap();
    assert_eq!(store.list(&Filter::default(), None, 10).await.unwrap().len(), 5);
    file.clock.advance(Duration::from_secs(61));
    let lapsed: Vec<_> = store.lapsed(Duration::from_secs(60), None, 10).await.unwrap().iter().map(|l| l.id).collect();
    assert_eq!(lapsed, ids);
}

#[tokio::test]
async fn an_effect_of_a_newer_version_is_the_most_careful_one() {
    let file = File::new();
    let store = file.open();
    let mut row = running("a");
    let mut fence = fence(1);
    fence.effect = Effect::IdempotentWrite;
    row.fence = Some(fence);
    let id = row.id;
    store.insert(insert(row)).await.unwrap();
    file.raw().execute("UPDATE runs SET fence_effect = 'sometimes'", []).unwrap();
    assert_eq!(store.load(id).await.unwrap().unwrap().fence.unwrap().effect, Effect::NonIdempotentWrite);
}

#[tokio::test]
async fn the_schema_refuses_rows_that_no_transition_makes() {
    let file = File::new();
    let store = file.open();
    for row in [queued("queued"), running("running"), waiting("waiting", None), completed("completed"), in_doubt("dead")] {
        store.insert(insert(row)).await.unwrap();
    }
    let raw = Connection::open(file.path()).unwrap();
    let lease = "lease_id = 'l', holder = 'h', lease_clock = 'c', lease_expires_ns = 1";
    let fence = "fence_call = 'c', fence_tool = 't', fence_effect = 'read_only', fence_key = 'k', fence_epoch = 1, \
        fence_lease_id = 'l', fence_attempt = 1, fence_repeat = 0, fence_verifiable = 0, fence_stamped_at_ms = 0, \
        fence_in_flight_until_ms = 0";
    for (agent, change, constraint) in [
        ("waiting", lease, "a_lease_exactly_while_held"),
        ("queued", lease, "a_lease_exactly_while_held"),
        (
            "running",
            "lease_id = NULL, holder = NULL, lease_clock = NULL, lease_expires_ns = NULL",
            "a_lease_exactly_while_held",
        ),
        ("running", "holder = NULL", "a_lease_is_whole"),
        ("running", "lease_expires_ns = NULL", "a_lease_is_whole"),
        ("running", "epoch = 0", "held_only_after_a_grant"),
        ("running", "cancel_requested = 1", "cancelling_exactly"),
        ("running", "state = 'cancelling'", "cancelling_exactly"),
        ("dead", "fence_key = NULL", "a_fence_is_whole"),
        ("waiting", fence, "a_fence_only_where_it_may_stand"),
        ("completed", fence, "a_fence_only_where_it_may_stand"),
        ("queued", fence, "fence_epoch > 0 AND fence_epoch <= epoch"),
        ("dead", "reason = NULL", "a_reason_of_its_state"),
        ("dead", "reason = 'budget'", "a_reason_of_its_state"),
        ("queued", "reason = 'budget'", "a_reason_of_its_state"),
        ("queued", "state = 'sleeping'", "state IN"),
        ("queued", "epoch = -1", "epoch >= 0"),
        ("queued", "sequence = 0", "sequence > 0"),
        ("queued", "requeues = 'many'", "requeues"),
        ("queued", "request_key = 'k'", "a_request_key_is_whole"),
    ] {
        let error = raw.execute(&format!("UPDATE runs SET {change} WHERE agent = '{agent}'"), []).unwrap_err();
        assert!(error.to_string().contains(constraint), "{agent}: {change}: {error}");
    }
    let orphan = "INSERT INTO journal VALUES ('nobody', 0, 0, 0, NULL, 'w', 'settled', x'01', NULL)";
    raw.pragma_update(None, "foreign_keys", true).unwrap();
    assert!(raw.execute(orphan, []).unwrap_err().to_string().contains("FOREIGN KEY"));
}

#[tokio::test]
async fn a_write_waits_for_another_process_and_reads_do_not() {
    let file = File::new();
    let store = file.open();
    let row = queued("a");
    let id = row.id;
    store.insert(insert(row.clone())).await.unwrap();
    let other = Connection::open(file.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut write = pin!(store.write(record(&row, "waits")));
    assert!(poll!(&mut write).is_pending());
    assert_eq!(store.load(id).await.unwrap().unwrap().sequence, 1);
    assert_eq!(store.list(&Filter::default(), None, 10).await.unwrap().len(), 1);
    assert!(poll!(&mut write).is_pending());
    other.execute_batch("COMMIT").unwrap();
    assert_eq!(write.await.unwrap(), Answer::Applied(None));
}

/// Puts sixty writes behind a file that somebody keeps, so that they wait together, and lets them go.
async fn sixty_waiting(file: &File, store: &SqliteStore, culprit: usize) -> Vec<Result<Answer, String>> {
    let mut rows = Vec::new();
    for _ in 0..60 {
        let row = queued("a");
        store.insert(insert(row.clone())).await.unwrap();
        rows.push(row);
    }
    let other = Connection::open(file.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut writes: Vec<_> = rows
        .iter()
        .enumerate()
        .map(|(n, row)| Box::pin(store.write(record(row, if n == culprit { "poison" } else { "fine" }))))
        .collect();
    for write in &mut writes {
        assert!(poll!(write).is_pending());
    }
    other.execute_batch("COMMIT").unwrap();
    let mut answers = Vec::new();
    for write in writes {
        answers.push(write.await.map_err(|e| e.0));
    }
    answers
}

#[tokio::test]
async fn a_change_that_takes_the_transaction_with_it_fails_alone() {
    for raise in ["ABORT", "FAIL", "ROLLBACK"] {
        let file = File::new();
        let store = file.open();
        let trigger = format!(
            "CREATE TRIGGER poisoned AFTER INSERT ON journal WHEN NEW.holder = 'poison' BEGIN SELECT RAISE({raise}, 'bad'); END"
        );
        file.raw().execute_batch(&trigger).unwrap();
        let answers = sixty_waiting(&file, &store, 31).await;
        for (n, answer) in answers.into_iter().enumerate() {
            match answer.unwrap() {
                Answer::Refused(StoreRefused { why, lasting }) => {
                    assert!(n == 31 && lasting);
                    assert!(why.contains("bad") && why.contains(file.path().to_str().unwrap()), "{why}");
                }
                answer => assert_eq!((answer, n != 31), (Answer::Applied(None), true)),
            }
        }
        let raw = file.raw();
        let count = |sql: &str| raw.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(count("SELECT count(*) FROM runs WHERE sequence = 2"), 59);
        assert_eq!(count("SELECT count(*) FROM journal WHERE sequence = 1"), 59);
    }
}

#[tokio::test]
async fn a_store_that_cannot_answer_says_where_it_is_and_recovers() {
    let file = File::new();
    let store = file.open();
    let row = queued("a");
    store.insert(insert(row.clone())).await.unwrap();
    file.raw().execute_batch("ALTER TABLE journal RENAME TO elsewhere").unwrap();
    let path = file.path();
    let path = path.to_str().unwrap();
    // It is certain that nothing of it is there.
    let Answer::Refused(refused) = store.write(record(&row, "lost")).await.unwrap() else { panic!("it was taken") };
    assert!(refused.why.contains(path), "{refused}");
    assert!(store.journal(row.id, 0, 10).await.unwrap_err().to_string().contains(path));
    assert_eq!(store.load(row.id).await.unwrap(), Some(row.clone()));
    file.raw().execute_batch("ALTER TABLE elsewhere RENAME TO journal").unwrap();
    assert_eq!(store.write(record(&row, "found")).await.unwrap(), Answer::Applied(None));
    assert_eq!(store.journal(row.id, 0, 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn a_commit_is_flushed_before_its_answer() {
    let file = File::new();
    let store = file.open();
    let raw = file.raw();
    let mode: String = raw.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    drop(raw);
    // A copy of what is on the disk beside the living store is what a crash leaves.
    let row = queued("a");
    store.insert(insert(row.clone())).await.unwrap();
    let copy = tempfile::tempdir().unwrap();
    for end in ["", "-wal"] {
        let name = format!("runs.db{end}");
        fs::copy(file.directory.path().join(&name), copy.path().join(&name)).unwrap();
    }
    let clock: Arc<dyn BootClock> = ManualClock::new();
    let after = SqliteStore::open(copy.path().join("runs.db"), clock).unwrap();
    assert_eq!(after.load(row.id).await.unwrap(), Some(row));
}

/// The plan of a statement, one line.
fn plan(raw: &Connection, sql: &str) -> String {
    let mut statement = raw.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    // The parameters stay unbound: the plan does not depend on them.
    let lines = statement.raw_query().mapped(|row| row.get::<_, String>(3));
    lines.map(Result::unwrap).collect::<Vec<_>>().join("; ")
}

#[test]
fn what_is_asked_all_the_time_uses_the_index_of_what_is_open() {
    let file = File::new();
    file.open();
    let raw = file.raw();
    for (sql, index) in [
        (include_str!("../../src/store/sqlite/sql/due.sql"), "runs_due"),
        (include_str!("../../src/store/sqlite/sql/next_due.sql"), "runs_due"),
        (include_str!("../../src/store/sqlite/sql/lapsed.sql"), "runs_held"),
        (include_str!("../../src/store/sqlite/sql/overdue.sql"), "runs_overdue"),
        (include_str!("../../src/store/sqlite/sql/list_attention.sql"), "runs_attention"),
        (include_str!("../../src/store/sqlite/sql/untold.sql"), "runs_untold (finished_at_ms>?"),
        (include_str!("../../src/store/sqlite/sql/told.sql"), "sqlite_autoindex_runs_1 (id=?)"),
        (include_str!("../../src/store/sqlite/sql/callers.sql"), "callers_newest (tool=? AND at_ms>?)"),
        (include_str!("../../src/store/sqlite/sql/list.sql"), "sqlite_autoindex_runs_1 (id<?)"),
        (include_str!("../../src/store/sqlite/sql/write_run.sql"), "sqlite_autoindex_runs_1 (id=?)"),
        (include_str!("../../src/store/sqlite/sql/renew.sql"), "sqlite_autoindex_runs_1 (id=?)"),
        (include_str!("../../src/store/sqlite/sql/journal.sql"), "sqlite_autoindex_journal_1 (run_id=? AND sequence>?)"),
        (include_str!("../../src/store/sqlite/sql/write_is_there.sql"), "sqlite_autoindex_journal_1 (run_id=?)"),
    ] {
        let plan = plan(&raw, sql);
        assert!(plan.contains(index), "{sql}\n{plan}");
        let sorts = plan.contains("TEMP B-TREE FOR ORDER BY");
        assert_eq!(sorts, index == "runs_overdue", "{sql}\n{plan}");
    }
}

#[test]
fn no_index_names_a_column_that_changes_at_every_step() {
    let file = File::new();
    file.open();
    let raw = file.raw();
    let mut statement = raw
        .prepare(
            "SELECT i.name FROM pragma_index_list('runs') AS l, pragma_index_info(l.name) AS i
             WHERE i.name LIKE '%lease%' OR i.name IN ('sequence', 'holder', 'rounds', 'turn', 'fence_call')",
        )
        .unwrap();
    let named: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(named, [""; 0]);
}

#[test]
fn every_statement_file_is_one_statement_of_this_schema_and_is_used() {
    let file = File::new();
    file.open();
    let raw = file.raw();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store/sqlite");
    let code: String = fs::read_dir(&folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "rs"))
        .map(|p| fs::read_to_string(p).unwrap())
        .collect();
    for entry in fs::read_dir(folder.join("sql")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        raw.prepare(&fs::read_to_string(&path).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(code.contains(&format!("sql/{name}")), "{name} is not used");
    }
}

#[tokio::test]
async fn a_file_that_is_deleted_or_replaced_takes_nothing_more_from_who_had_it_open() {
    for replaced in [false, true] {
        let file = File::new();
        let store = file.open();
        let run = running("a");
        let held = leasehold::store::Held { id: run.id, epoch: run.epoch, lease_id: run.lease.as_ref().unwrap().lease_id };
        store.insert(insert(run.clone())).await.unwrap();
        let mut renewer = store.renewer().unwrap();
        let ttl = Duration::from_secs(60);
        assert_eq!(renewer.renew(&[held], ttl).unwrap().len(), 1);
        for name in ["runs.db", "runs.db-wal", "runs.db-shm"] {
            fs::remove_file(file.directory.path().join(name)).unwrap();
        }
        let other = replaced.then(|| file.open());
        let what = if replaced { "was replaced" } else { "was deleted" };
        let refused = [
            store.write(record(&run, "more")).await.unwrap_err().to_string(),
            store.load(run.id).await.unwrap_err().to_string(),
            renewer.renew(&[held], ttl).unwrap_err().to_string(),
            renewer.look(&[held]).unwrap_err().to_string(),
        ];
        for text in refused {
            assert!(text.contains(what) && text.contains("runs.db"), "{text}");
        }
        if let Some(other) = other {
            assert!(other.load(run.id).await.unwrap().is_none(), "a new record begins");
        }
    }
}
