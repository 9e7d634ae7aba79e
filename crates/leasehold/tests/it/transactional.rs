//! Transactional tools: what one does in the store's own database is there with its outcome, once, or not at all. The table has no
//! key that is unique, so that a second row would be seen.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use leasehold::{
    Decision, OrderError, StartRun,
    agent::{
        registry::{AgentSpec, EffectBudget, EffectLimit},
        tool::{
            Approval, Previewed, Tool,
            transactional::{Called, PostgresTransaction, SqliteTransaction, Undone, postgres_tool, sqlite_tool},
        },
    },
    run::{EntryBody, Outcome, Principal, RunId, State, Via, body},
    store::{Store, transaction::rusqlite::params},
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op, invariants,
    park::{Park, Place},
    world::{World, WorldBuilder},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

pub(super) const SCRIPT: &str = r#"
[[reply]]
calls = [{ tool = "ledger.book", arguments = { text = "one" } }]
[[reply]]
text = "done"
"#;

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Booking {
    pub(super) text: String,
}

/// What the tool does after it has inserted its row.
#[derive(Clone, Debug)]
pub(super) enum Twist {
    /// Nothing.
    Plain,
    /// Says no.
    Refuse,
    /// Panics.
    Break,
    /// Runs this statement too.
    Also(&'static str),
    /// Runs this statement too, and says that all is well.
    Swallow(&'static str),
    /// Wants to be begun again, so many times.
    Again(usize),
    /// On PostgreSQL: stands there until it is let go.
    Hold(Arc<Gate>),
}

#[derive(Debug)]
pub(super) struct Gate {
    entered: watch::Sender<bool>,
    pub(super) released: watch::Sender<bool>,
}

impl Gate {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { entered: watch::Sender::new(false), released: watch::Sender::new(false) })
    }
    pub(super) async fn entered(&self) {
        self.entered.subscribe().wait_for(|entered| *entered).await.unwrap();
    }
    async fn hold(&self) {
        self.entered.send_replace(true);
        self.released.subscribe().wait_for(|released| *released).await.unwrap();
    }
}

pub(super) struct Bench {
    pub(super) place: Place,
    pub(super) entered: Arc<AtomicUsize>,
}

impl Bench {
    async fn on(place: Place) -> Self {
        let bench = Self { place, entered: Arc::default() };
        bench.execute("CREATE TABLE bookings (key TEXT NOT NULL, text TEXT NOT NULL)").await;
        bench
    }
    pub(super) async fn sqlite() -> Self {
        Self::on(Place::sqlite()).await
    }
    pub(super) async fn postgres() -> Self {
        Self::on(Place::postgres().await).await
    }
    pub(super) async fn each() -> [Self; 2] {
        [Self::sqlite().await, Self::postgres().await]
    }
    pub(super) fn name(&self) -> &'static str {
        self.place.name
    }
    pub(super) fn is_sqlite(&self) -> bool {
        self.place.file.is_some()
    }

    pub(super) async fn execute(&self, sql: &str) {
        match (&self.place.file, &self.place.database) {
            (Some(file), _) => rusqlite::Connection::open(file).unwrap().execute_batch(sql).unwrap(),
            (_, Some(database)) => database.execute(sql).await.unwrap(),
            _ => panic!("no database"),
        }
    }

    /// The rows that there are: key, text.
    pub(super) async fn rows(&self) -> Vec<(String, String)> {
        let sql = "SELECT key, text FROM bookings ORDER BY key";
        match (&self.place.file, &self.place.database) {
            (Some(file), _) => {
                let connection = rusqlite::Connection::open(file).unwrap();
                let mut statement = connection.prepare(sql).unwrap();
                let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
                rows.map(Result::unwrap).collect()
            }
            (_, Some(database)) => {
                let client = database.cluster().client(database.name()).await.unwrap();
                client.query(sql, &[]).await.unwrap().iter().map(|row| (row.get(0), row.get(1))).collect()
            }
            _ => panic!("no database"),
        }
    }

    fn sqlite_tool(&self, approval: Approval, twist: Twist) -> Tool {
        let entered = Arc::clone(&self.entered);
        let work = move |transaction: &SqliteTransaction, called: Called, booking: Booking| {
            let times = entered.fetch_add(1, Ordering::SeqCst) + 1;
            let sql = "INSERT INTO bookings (key, text) VALUES (?1, ?2)";
            transaction.execute(sql, params![called.idempotency_key, booking.text])?;
            match &twist {
                Twist::Plain => {}
                Twist::Refuse => return Err(Undone::refused("the account is closed")),
                Twist::Break => panic!("a defect of the tool"),
                Twist::Also(sql) => transaction.execute_batch(sql)?,
                Twist::Swallow(sql) => drop(transaction.execute_batch(sql)),
                Twist::Again(most) if times <= *most => return Err(Undone::Again("a deadlock".into())),
                Twist::Again(_) => {}
                Twist::Hold(_) => panic!("it holds the file's write lock: nothing may wait in it"),
            }
            Ok(format!("booked {}", booking.text).into())
        };
        sqlite_tool("ledger.book", "Book", approval, work)
            .preview(|booking: Booking| async move { Ok(Previewed::text(format!("+ {}", booking.text))) })
            .timeout(Duration::from_secs(2))
            .tool()
    }

    fn postgres_tool(&self, approval: Approval, twist: Twist) -> Tool {
        let entered = Arc::clone(&self.entered);
        let work = move |transaction: PostgresTransaction, called: Called, booking: Booking| {
            let (entered, twist) = (Arc::clone(&entered), twist.clone());
            async move {
                let times = entered.fetch_add(1, Ordering::SeqCst) + 1;
                let sql = "INSERT INTO bookings (key, text) VALUES ($1, $2)";
                let made = transaction.execute(sql, &[&called.idempotency_key, &booking.text]).await?;
                assert_eq!(made, 1);
                match &twist {
                    Twist::Plain => {}
                    Twist::Refuse => return Err(Undone::refused("the account is closed")),
                    Twist::Break => panic!("a defect of the tool"),
                    Twist::Also(sql) => drop(transaction.query(sql, &[]).await?),
                    Twist::Swallow(sql) => drop(transaction.query(sql, &[]).await),
                    Twist::Again(most) if times <= *most => return Err(Undone::Again("a deadlock".into())),
                    Twist::Again(_) => {}
                    Twist::Hold(gate) => gate.hold().await,
                }
                Ok(format!("booked {}", booking.text).into())
            }
        };
        postgres_tool("ledger.book", "Book", approval, work)
            .preview(|booking: Booking| async move { Ok(Previewed::text(format!("+ {}", booking.text))) })
            .timeout(Duration::from_secs(2))
            .tool()
    }

    fn tool(&self, approval: Approval, twist: Twist) -> Tool {
        if self.is_sqlite() { self.sqlite_tool(approval, twist) } else { self.postgres_tool(approval, twist) }
    }

    pub(super) fn world(&self, approval: Approval, twist: Twist) -> WorldBuilder {
        World::builder(SCRIPT).on(&self.place.store, &self.place.clock).tool(self.tool(approval, twist))
    }

    /// Executes one run whose call comes to nothing, and says what the model was told.
    pub(super) async fn told(&self, twist: Twist) -> String {
        let said = format!("{}: {twist:?}", self.name());
        let world = self.world(Approval::None, twist).build();
        let id = world.run("go").await;
        assert_eq!(world.row(id).await.state, State::Completed, "{said}");
        let outcome = outcome(&world, id).await;
        assert_eq!((outcome.outcome, outcome.is_error), (Outcome::NotApplied, true), "{said}");
        assert_eq!(self.rows().await, [], "{said}");
        let told = world.results().pop().unwrap().1;
        assert!(told.contains(outcome.result.as_str().unwrap()), "{said}: {told}");
        told
    }
}

/// The one outcome in the journal, whose entry is of the write that stamped it.
pub(super) async fn outcome(world: &World, id: RunId) -> body::ToolOutcome {
    let (row, entries) = (world.row(id).await, world.entries(id).await);
    invariants::journal(&row, &entries).unwrap_or_else(|why| panic!("{why}"));
    let outcomes: Vec<_> = entries
        .iter()
        .filter_map(|entry| match &entry.body {
            EntryBody::ToolOutcome(outcome) => Some((entry.write_id, outcome.clone())),
            _ => None,
        })
        .collect();
    let [(write_id, outcome)] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    let stamped: Vec<_> = entries.iter().filter(|e| matches!(e.body, EntryBody::WriteStamped(_))).collect();
    let [stamped] = stamped.as_slice() else { panic!("{stamped:?}") };
    assert_eq!(stamped.write_id, *write_id, "the stamp was durable before the outcome");
    outcome.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approved_call_and_its_row_are_one_transaction_and_no_fence_ever_stands() {
    for bench in Bench::each().await {
        let world = bench.world(Approval::Required, Twist::Plain).build();
        let id = world.run("go").await;
        let waiting = world.row(id).await;
        assert_eq!(waiting.state, State::WaitingForApproval, "{}", bench.name());
        let entries = world.entries(id).await;
        let card = entries.iter().find_map(|e| if let EntryBody::Suspended(s) = &e.body { Some(s.card.clone()) } else { None });
        assert_eq!(card.unwrap().calls[0].preview.as_deref(), Some("+ one"));
        assert_eq!((bench.rows().await, bench.entered.load(Ordering::SeqCst)), (vec![], 0));
        let row = world.approve(id).await.unwrap();
        assert_eq!(row.state, State::Completed, "{}", bench.name());
        let outcome = outcome(&world, id).await;
        assert_eq!((outcome.outcome, outcome.via, outcome.result), (Outcome::Done, Via::Tool, "booked one".into()));
        let key = id.idempotency_key(&outcome.call_id);
        assert_eq!(bench.rows().await, [(key, "one".to_owned())], "{}", bench.name());
        assert_eq!(bench.entered.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_transactional_call_does_nothing() {
    for bench in Bench::each().await {
        let world = bench.world(Approval::Required, Twist::Plain).build();
        let id = world.run("go").await;
        let decision = World::decision(world.digest(id).await, false);
        let decided = world.runtime.decide(id, decision).await.unwrap();
        decided.execution.unwrap().finish().await.unwrap();
        assert_eq!((bench.rows().await, bench.entered.load(Ordering::SeqCst)), (vec![], 0), "{}", bench.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn under_four_eyes_who_started_the_run_does_not_release_a_transactional_call() {
    for bench in Bench::each().await {
        let agent = |agent: AgentSpec| AgentSpec { second_approver: true, ..agent };
        let world = bench.world(Approval::Required, Twist::Plain).agent(agent).build();
        let id = world.run("go").await;
        let digest = world.digest(id).await;
        let own = world.runtime.decide(id, World::decision(digest.clone(), true)).await;
        assert!(matches!(own, Err(OrderError::Refused(_))), "{}", bench.name());
        assert_eq!(bench.rows().await, []);
        let other = Decision { execute: true, ..Decision::approve(digest, Principal::person("local:bob")) };
        world.runtime.decide(id, other).await.unwrap().execution.unwrap().finish().await.unwrap();
        assert_eq!(bench.rows().await.len(), 1, "{}", bench.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transactional_call_beyond_its_budget_leaves_no_row_and_asks_a_person() {
    for bench in Bench::each().await {
        let hour = Duration::from_secs(3600);
        let budget = EffectBudget { tool: "ledger.*".into(), limit: EffectLimit::Writes(1), window: hour };
        let agent = move |agent: AgentSpec| AgentSpec { effect_budgets: vec![budget], ..agent };
        let world = bench.world(Approval::None, Twist::Plain).agent(agent).build();
        let first = world.run("go").await;
        assert_eq!(world.row(first).await.state, State::Completed, "{}", bench.name());
        let second = world.run("go").await;
        assert_eq!(world.row(second).await.state, State::WaitingForApproval, "{}", bench.name());
        assert_eq!(bench.rows().await.len(), 1, "{}", bench.name());
        assert_eq!(world.approve(second).await.unwrap().state, State::Completed);
        assert_eq!(bench.rows().await.len(), 2, "{}", bench.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tools_no_undoes_what_it_did_and_the_model_is_told() {
    for bench in Bench::each().await {
        assert!(bench.told(Twist::Refuse).await.contains("the account is closed"));
        assert!(bench.told(Twist::Break).await.contains("broke"));
        // What its table wants to hold.
        bench.execute("CREATE TABLE once (key TEXT UNIQUE); INSERT INTO once VALUES ('a')").await;
        let told = bench.told(Twist::Also("INSERT INTO once VALUES ('a')")).await;
        assert!(told.to_lowercase().contains("unique"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_table_wants_to_hold_at_the_end_undoes_the_call_too() {
    for bench in Bench::each().await {
        bench
            .execute(
                "CREATE TABLE accounts (name TEXT PRIMARY KEY);
                 CREATE TABLE lines (account TEXT REFERENCES accounts (name) DEFERRABLE INITIALLY DEFERRED)",
            )
            .await;
        let told = bench.told(Twist::Also("INSERT INTO lines VALUES ('nobody')")).await;
        assert!(told.to_lowercase().contains("foreign key"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_the_tools_database_refuses_the_call_before_it_begins() {
    let (sqlite, postgres, memory) = (Bench::sqlite().await, Bench::postgres().await, Place::memory());
    let of_sqlite = || sqlite.sqlite_tool(Approval::None, Twist::Plain);
    let of_postgres = || sqlite.postgres_tool(Approval::None, Twist::Plain);
    for (place, tool, wants, has) in [
        (&memory, of_sqlite(), "SQLite", "memory"),
        (&memory, of_postgres(), "PostgreSQL", "memory"),
        (&sqlite.place, of_postgres(), "PostgreSQL", "SQLite"),
        (&postgres.place, of_sqlite(), "SQLite", "PostgreSQL"),
    ] {
        let world = World::builder(SCRIPT).on(&place.store, &place.clock).tool(tool).build();
        let id = world.run("go").await;
        assert_eq!(world.row(id).await.state, State::Completed);
        let told = world.results().pop().unwrap().1;
        let expected = format!("the tool writes to {wants}, and the record of this run is in {has}");
        assert!(told.contains(&expected) && told.contains("nothing was done"), "{told}");
        let story = world.story(id).await;
        let refused = story.calls.values().next().unwrap().outcome.as_ref().unwrap();
        assert_eq!(refused.outcome, Outcome::Refused);
    }
    assert_eq!(sqlite.entered.load(Ordering::SeqCst), 0);
}

/// A process dies, or an answer is lost, at the one commit of the call; somebody else goes on with the run.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_of_the_commit_neither_loses_nor_doubles_the_row() {
    for bench in Bench::each().await {
        for (n, how) in [How::Before, How::After, How::Hang, How::HangAfter].into_iter().enumerate() {
            let faults = FaultyStore::new(Arc::clone(&bench.place.store));
            faults.arm(Fault::on(Op::Transact, how).times(1));
            let store: Arc<dyn Store> = Arc::clone(&faults) as _;
            let first = bench.world(Approval::None, Twist::Plain).on(&store, &bench.place.clock).process("first:1").build();
            let second = bench.world(Approval::None, Twist::Plain).process("second:2").build();
            let id = first.runtime.enqueue(StartRun::new("a", "go", World::person()), None).await.unwrap();
            let dies = matches!(how, How::Hang | How::HangAfter);
            if dies {
                let life = tokio::spawn(first.runtime.claim(id).await.unwrap().finish());
                faults.wait_for_hits(1).await;
                faults.lose();
                life.abort();
                life.await.ok();
                // What it had sent may still come to be, and renews its lease once.
                for _ in 0..3 {
                    second.lapse().await;
                    if second.row(id).await.state == State::Queued {
                        second.claim(id).await.unwrap();
                    }
                }
            } else {
                first.claim(id).await.unwrap();
            }
            assert_eq!(second.row(id).await.state, State::Completed, "{}: {how:?}", bench.name());
            assert_eq!(outcome(&second, id).await.outcome, Outcome::Done, "{}: {how:?}", bench.name());
            assert_eq!(bench.rows().await.len(), n + 1, "{}: {how:?}", bench.name());
        }
    }
}

/// The commit comes late: the lease has ended, and another process has the run.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_taken_over_before_the_commit_leaves_nothing_of_the_former_holder() {
    for bench in Bench::each().await {
        let faults = FaultyStore::new(Arc::clone(&bench.place.store));
        faults.arm(Fault::on(Op::Transact, How::Hang).times(1));
        let store: Arc<dyn Store> = Arc::clone(&faults) as _;
        let first = bench.world(Approval::None, Twist::Plain).on(&store, &bench.place.clock).process("first:1").build();
        // Held where it is about to ask the model: nothing of the call is there yet.
        let park = Park::at(leasehold::worker::Point::BeforeStamp);
        let second = bench.world(Approval::None, Twist::Plain).process("second:2").probe(Arc::clone(&park) as _).build();
        let id = first.runtime.enqueue(StartRun::new("a", "go", World::person()), None).await.unwrap();
        let life = tokio::spawn(first.runtime.claim(id).await.unwrap().finish());
        faults.wait_for_hits(1).await;
        second.lapse().await;
        let taken = tokio::spawn(second.runtime.claim(id).await.unwrap().finish());
        park.reached().await;
        faults.heal();
        let ended = life.await.unwrap();
        assert!(ended.is_err(), "{}: the former holder went on: {ended:?}", bench.name());
        assert_eq!(bench.rows().await, [], "{}", bench.name());
        if bench.is_sqlite() {
            assert_eq!(bench.entered.load(Ordering::SeqCst), 0, "the tool was entered for who holds no lease");
        }
        park.release();
        assert_eq!(taken.await.unwrap().unwrap().state, State::Completed, "{}", bench.name());
        assert_eq!((outcome(&second, id).await.outcome, bench.rows().await.len()), (Outcome::Done, 1), "{}", bench.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_taken_over_while_the_tool_works_undoes_the_work_on_postgresql() {
    let bench = Bench::postgres().await;
    let gate = Gate::new();
    let first = bench.world(Approval::None, Twist::Hold(Arc::clone(&gate))).process("first:1").build();
    let second = bench.world(Approval::None, Twist::Plain).process("second:2").build();
    let id = first.runtime.enqueue(StartRun::new("a", "go", World::person()), None).await.unwrap();
    let life = tokio::spawn(first.runtime.claim(id).await.unwrap().finish());
    gate.entered().await;
    second.lapse().await;
    assert_eq!(second.claim(id).await.unwrap().state, State::Completed);
    gate.released.send_replace(true);
    assert!(life.await.unwrap().is_err());
    assert_eq!((outcome(&second, id).await.outcome, bench.rows().await.len()), (Outcome::Done, 1));
    assert_eq!(bench.entered.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_while_the_tool_works_is_taken_at_once_and_undoes_the_work_on_postgresql() {
    let bench = Bench::postgres().await;
    let gate = Gate::new();
    let world = bench.world(Approval::None, Twist::Hold(Arc::clone(&gate))).build();
    let execution = world.start("go").await;
    let id = execution.run();
    let life = execution.spawn();
    gate.entered().await;
    let row = world.runtime.cancel(id, World::person(), None).await.unwrap();
    assert_eq!(row.state, State::Cancelling);
    gate.released.send_replace(true);
    assert_eq!(life.await.unwrap().unwrap().state, State::Cancelled);
    assert_eq!(bench.rows().await, []);
}
