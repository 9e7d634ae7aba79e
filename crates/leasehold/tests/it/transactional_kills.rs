//! Real processes that are killed with SIGKILL at every point around the one commit of a transactional call, 200 times a store. After
//! each death its row is there exactly where its outcome is, looked at in one statement; in the end it is there once. The table has no
//! key that is unique.
//!
//! A child is this test binary again, with a run named in the environment.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use async_trait::async_trait;
use leasehold::{
    Runtime, RuntimeConfig, StartRun,
    agent::{
        model::scripted::ScriptedModel,
        registry::{AgentSpec, Registry},
        tool::{
            Approval, Tool,
            transactional::{Called, PostgresTransaction, SqliteTransaction, postgres_tool, sqlite_tool},
        },
    },
    clock::{BootClock, BootInstant, SystemClock, WallClock},
    run::{CallId, EntryBody, Outcome, Principal, RunId, State},
    store::{Store, postgres::PostgresStore, sqlite::SqliteStore, transaction::rusqlite::params},
    worker::{Point, Probe},
};
use leasehold_testkit::postgres::{Cluster, Database, Version};
use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

const STORE: &str = "LEASEHOLD_TEST_TRANSACTIONAL_STORE";
const RUN: &str = "LEASEHOLD_TEST_TRANSACTIONAL_RUN";
const AHEAD: &str = "LEASEHOLD_TEST_TRANSACTIONAL_AHEAD";
const DIES: &str = "LEASEHOLD_TEST_TRANSACTIONAL_DIES";

const KILLS: usize = 200;
/// Children at a time.
const SIDE_BY_SIDE: usize = 4;
/// What a child says when it is where it dies.
const HERE: &str = "here";

const SCRIPT: &str = r#"
[[reply]]
calls = [{ tool = "ledger.book", arguments = { text = "one" } }]
[[reply]]
text = "done"
"#;

/// Where a child dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dies {
    /// Before the transaction begins.
    Before,
    /// In the tool, before its statement.
    Entered,
    /// In the tool, after its statement.
    Inserted,
    /// Nobody holds it: so many microseconds after the tool's statement, in the guarded write, in the commit, or after it.
    Anywhere(u64),
    /// After the commit.
    After,
    /// Not at all.
    Never,
}

impl Dies {
    /// The deaths of a round, over all points.
    fn of(kill: usize) -> Self {
        match kill % 10 {
            0 => Self::Before,
            1 => Self::Entered,
            2 => Self::Inserted,
            3 => Self::After,
            // Up to 40 ms, close together at first, where the commit is.
            _ => Self::Anywhere(((kill as u64 * 7_919) % 200).pow(2)),
        }
    }
    fn is_said_by(self, said: &str) -> bool {
        said == format!("{self:?}")
    }
}

/// Says that it is here; the others wait there for their death.
fn here() {
    println!("\n{HERE}");
    std::io::stdout().flush().unwrap();
}

fn wait_for_death() -> ! {
    here();
    loop {
        std::thread::park();
    }
}

/// What this process is to do where it comes by.
#[derive(Clone)]
struct Orders(String);

impl Orders {
    fn die(&self, at: Dies) {
        if at.is_said_by(&self.0) {
            wait_for_death();
        }
    }
    fn inserted(&self) {
        self.die(Dies::Inserted);
        if self.0.starts_with("Anywhere") {
            here();
        }
    }
}

#[async_trait]
impl Probe for Orders {
    async fn at(&self, point: Point, _: RunId, _: Option<&CallId>) {
        match point {
            Point::BeforeStamp => self.die(Dies::Before),
            Point::AfterRecord => self.die(Dies::After),
            _ => {}
        }
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Booking {
    text: String,
}

fn tool(is_sqlite: bool, orders: Orders) -> Tool {
    if is_sqlite {
        let work = move |transaction: &SqliteTransaction, called: Called, booking: Booking| {
            orders.die(Dies::Entered);
            let sql = "INSERT INTO bookings (run, key, text) VALUES (?1, ?2, ?3)";
            transaction.execute(sql, params![called.run.to_string(), called.idempotency_key, booking.text])?;
            orders.inserted();
            Ok("booked".into())
        };
        return sqlite_tool("ledger.book", "Book", Approval::None, work).tool();
    }
    let work = move |transaction: PostgresTransaction, called: Called, booking: Booking| {
        let orders = orders.clone();
        async move {
            orders.die(Dies::Entered);
            let sql = "INSERT INTO bookings (run, key, text) VALUES ($1, $2, $3)";
            transaction.execute(sql, &[&called.run.to_string(), &called.idempotency_key, &booking.text]).await?;
            orders.inserted();
            Ok("booked".into())
        }
    };
    postgres_tool("ledger.book", "Book", Approval::None, work).tool()
}

/// The machine's clocks, moved ahead by who wants leases to be over.
#[derive(Debug)]
struct Ahead {
    clock: SystemClock,
    by_ns: AtomicI64,
}

impl Ahead {
    fn by(ns: i64) -> Arc<Self> {
        Arc::new(Self { clock: SystemClock::new().unwrap(), by_ns: AtomicI64::new(ns) })
    }
    fn move_on(&self) {
        self.by_ns.fetch_add(61_000_000_000, Ordering::SeqCst);
    }
}

impl BootClock for Ahead {
    fn now(&self) -> BootInstant {
        BootInstant { ns: BootClock::now(&self.clock).ns + self.by_ns.load(Ordering::SeqCst) }
    }
    fn boot_id(&self) -> &str {
        self.clock.boot_id()
    }
}

impl WallClock for Ahead {
    fn now(&self) -> jiff::Timestamp {
        let by = jiff::SignedDuration::from_nanos(self.by_ns.load(Ordering::SeqCst));
        leasehold::clock::to_millis(WallClock::now(&self.clock).checked_add(by).unwrap())
    }
}

async fn runtime(url: &str, clock: &Arc<Ahead>, orders: Orders) -> Runtime {
    let file = url.strip_prefix("sqlite:");
    let store: Arc<dyn Store> = match file {
        Some(file) => SqliteStore::open(file, Arc::clone(clock) as _).unwrap(),
        None => PostgresStore::connect_with_clock(url, Arc::clone(clock) as _).await.unwrap(),
    };
    let mut registry = Registry::new();
    registry.add_tool(tool(file.is_some(), orders.clone())).unwrap();
    let model = ScriptedModel::from_toml("scripted", SCRIPT).unwrap();
    registry.add_agent(AgentSpec::new("a", model).tools(["ledger.*"])).unwrap();
    let config = RuntimeConfig::new(store, registry, Arc::clone(clock));
    Runtime::new(RuntimeConfig { probe: Some(Arc::new(orders)), ..config }).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn as_a_child_it_books() {
    let Ok(url) = env::var(STORE) else { return };
    let run: RunId = env::var(RUN).unwrap().parse().unwrap();
    let runtime = runtime(&url, &Ahead::by(env::var(AHEAD).unwrap().parse().unwrap()), Orders(env::var(DIES).unwrap())).await;
    let execution = runtime.claim(run).await.unwrap();
    // How it ends is looked at in the store.
    execution.finish().await.ok();
}

/// Starts a process that executes the run, kills it where it dies, and waits until it is gone.
fn kill(url: &str, run: RunId, ahead_ns: i64, dies: Dies) {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["transactional_kills::as_a_child_it_books", "--exact", "--nocapture"])
        .env(STORE, url)
        .env(RUN, run.to_string())
        .env(AHEAD, ahead_ns.to_string())
        .env(DIES, format!("{dies:?}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.find(|line| line.as_ref().is_ok_and(|line| line == HERE));
    assert!(said.is_some(), "{dies:?}: the child ended before it was there");
    if let Dies::Anywhere(micros) = dies {
        std::thread::sleep(Duration::from_micros(micros));
    }
    // SIGKILL.
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A store, and how its tables are looked at beside it.
enum At {
    Sqlite { file: PathBuf, _directory: tempfile::TempDir },
    Postgres(Database),
}

impl At {
    fn url(&self) -> String {
        match self {
            Self::Sqlite { file, .. } => format!("sqlite:{}", file.display()),
            Self::Postgres(database) => database.url(),
        }
    }

    async fn make_table(&self) {
        let sql = "CREATE TABLE bookings (run TEXT NOT NULL, key TEXT NOT NULL, text TEXT NOT NULL)";
        match self {
            Self::Sqlite { file, .. } => rusqlite::Connection::open(file).unwrap().execute_batch(sql).unwrap(),
            Self::Postgres(database) => database.execute(sql).await.unwrap(),
        }
    }

    /// Rows of the tool, and outcomes in the journal, of one instant.
    async fn counts(&self, run: RunId) -> (i64, i64) {
        let id = run.to_string();
        match self {
            Self::Sqlite { file, .. } => {
                let sql = "SELECT (SELECT count(*) FROM bookings WHERE run = ?1),
                    (SELECT count(*) FROM journal WHERE run_id = ?1 AND kind = 'tool_outcome')";
                let connection = rusqlite::Connection::open(file).unwrap();
                connection.query_row(sql, [id], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
            }
            Self::Postgres(database) => {
                let sql = "SELECT (SELECT count(*) FROM bookings WHERE run = $1),
                    (SELECT count(*) FROM journal WHERE run_id::text = $1 AND kind = 'tool_outcome')";
                let client = database.cluster().client(database.name()).await.unwrap();
                let row = client.query_one(sql, &[&id]).await.unwrap();
                (row.get(0), row.get(1))
            }
        }
    }
}

async fn a_process_is_killed_again_and_again(at: At) {
    let clock = Ahead::by(0);
    let survivor = runtime(&at.url(), &clock, Orders(format!("{:?}", Dies::Never))).await;
    at.make_table().await;
    let (mut there, mut not_there) = (0, 0);
    let kills: Vec<usize> = (0..KILLS).collect();
    for together in kills.chunks(SIDE_BY_SIDE) {
        let mut killed = Vec::new();
        for number in together {
            let dies = Dies::of(*number);
            let run = survivor.enqueue(StartRun::new("a", "go", Principal::person("ada")), None).await.unwrap();
            let (url, ahead_ns) = (at.url(), clock.by_ns.load(Ordering::SeqCst));
            killed.push((run, dies, tokio::task::spawn_blocking(move || kill(&url, run, ahead_ns, dies))));
        }
        let mut runs = Vec::new();
        for (run, dies, gone) in killed {
            gone.await.unwrap();
            let (rows, outcomes) = at.counts(run).await;
            assert_eq!(rows, outcomes, "{dies:?}: a row without its outcome, or the other way round");
            assert!(rows <= 1, "{dies:?}: it is there twice");
            match dies {
                Dies::Before | Dies::Entered | Dies::Inserted => assert_eq!(rows, 0, "{dies:?}"),
                Dies::After => assert_eq!(rows, 1, "{dies:?}"),
                Dies::Anywhere(_) | Dies::Never => {}
            }
            *(if rows == 1 { &mut there } else { &mut not_there }) += 1;
            runs.push((run, dies));
        }
        // The survivor goes on with what is left, once the leases of the dead have ended.
        for _ in 0..3 {
            clock.move_on();
            survivor.sweep(100, false).await.unwrap();
            clock.move_on();
            for (run, _) in &runs {
                if survivor.store().load(*run).await.unwrap().unwrap().state == State::Queued {
                    survivor.claim(*run).await.unwrap().finish().await.unwrap();
                }
            }
        }
        for (run, dies) in runs {
            let row = survivor.store().load(run).await.unwrap().unwrap();
            assert_eq!((row.state, &row.fence), (State::Completed, &None), "{dies:?}");
            assert_eq!(at.counts(run).await, (1, 1), "{dies:?}");
            let entries = survivor.events(run, 0).await.unwrap();
            let done = entries.iter().filter(|e| matches!(&e.body, EntryBody::ToolOutcome(o) if o.outcome == Outcome::Done));
            assert_eq!(done.count(), 1, "{dies:?}");
            assert!(!entries.iter().any(|e| matches!(e.body, EntryBody::InDoubt(_))), "{dies:?}: it was in doubt");
        }
    }
    eprintln!("{KILLS} kills: {there} after the commit, {not_there} before it");
    assert!(there > KILLS / 10 && not_there > KILLS / 10, "all deaths were on one side: {there}, {not_there}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sqlite_a_process_killed_at_any_point_of_a_transactional_call_leaves_its_row_and_its_outcome_or_neither() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("leasehold.db");
    a_process_is_killed_again_and_again(At::Sqlite { file, _directory: directory }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgresql_a_process_killed_at_any_point_of_a_transactional_call_leaves_its_row_and_its_outcome_or_neither() {
    let database = Cluster::shared(Version::V15).database().await;
    a_process_is_killed_again_and_again(At::Postgres(database)).await;
}
