//! What a transactional tool may do in the transaction, for how long, and whom it holds up meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use super::transactional::{Bench, Booking, Gate, SCRIPT, Twist, outcome};
use leasehold::{
    agent::tool::{
        Approval,
        transactional::{PostgresTransaction, postgres_tool},
    },
    limits,
    run::{Outcome, State},
    store::{Store, postgres::PostgresStore},
};
use leasehold_testkit::world::World;
use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_statement_that_the_tool_hides_does_not_pass_for_done_on_postgresql() {
    let bench = Bench::postgres().await;
    let told = bench.told(Twist::Swallow("SELECT 1 / 0")).await;
    assert!(told.contains("division by zero"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_can_neither_use_the_tables_of_leasehold_nor_end_its_transaction() {
    for bench in Bench::each().await {
        let ours = [
            "SELECT count(*) FROM runs",
            "UPDATE runs SET epoch = epoch + 1",
            "DELETE FROM journal",
            "INSERT INTO bookings SELECT 'x', kind FROM journal",
            "UPDATE records SET version = 7",
            "DELETE FROM effects",
            "SELECT count(*) FROM workers",
            "SELECT count(*) FROM callers",
            "SELECT count(*) FROM refinery_schema_history",
            "WITH gone AS (SELECT id FROM runs) SELECT count(*) FROM gone",
            "COMMIT",
            "ROLLBACK",
            "END",
            "SAVEPOINT a",
            "CREATE TABLE mine (a TEXT)",
            "DROP TABLE runs",
        ];
        for statement in ours {
            bench.told(Twist::Also(statement)).await;
            if !bench.is_sqlite() {
                // There the statement itself went through, or doomed the transaction.
                bench.told(Twist::Swallow(statement)).await;
            }
        }
        // By a view.
        bench.execute("CREATE VIEW theirs AS SELECT id FROM runs").await;
        bench.told(Twist::Also("SELECT count(*) FROM theirs")).await;
    }
    // A statement that SQLite refused did nothing, and its transaction goes on.
    let bench = Bench::sqlite().await;
    for statement in ["DELETE FROM journal", "COMMIT", "ROLLBACK", "PRAGMA foreign_keys = off", "ATTACH ':memory:' AS a"] {
        let world = bench.world(Approval::None, Twist::Swallow(statement)).build();
        let id = world.run("go").await;
        assert_eq!(outcome(&world, id).await.outcome, Outcome::Done, "{statement}");
    }
    assert_eq!(bench.rows().await.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_trigger_or_a_foreign_key_does_to_the_tables_of_leasehold_is_refused_on_postgresql() {
    let bench = Bench::postgres().await;
    bench
        .execute(
            "CREATE TABLE pulled (a TEXT);
             CREATE FUNCTION pull() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN UPDATE runs SET epoch = epoch + 1; RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER pull AFTER INSERT ON pulled DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pull();
             CREATE TABLE children (run UUID REFERENCES runs (id) DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
    for statement in
        ["INSERT INTO pulled VALUES ('a')", "INSERT INTO children VALUES (NULL), ('00000000-0000-0000-0000-000000000000')"]
    {
        bench.told(Twist::Also(statement)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_tool_sets_for_its_session_does_not_reach_the_record_on_postgresql() {
    let bench = Bench::postgres().await;
    bench.execute("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.runs (LIKE public.runs)").await;
    bench.execute("DO $$ BEGIN CREATE ROLE leasehold_stranger; EXCEPTION WHEN duplicate_object THEN NULL; END $$").await;
    let sets = [
        "SELECT set_config('search_path', 'elsewhere', true)",
        "SELECT set_config('search_path', 'elsewhere', false)",
        "SELECT set_config('role', 'leasehold_stranger', true)",
    ];
    for (n, statement) in sets.into_iter().enumerate() {
        // The second leaves its session elsewhere, where the tool's own table is not: a process of its own.
        let url = bench.place.database.as_ref().unwrap().url();
        let store: Arc<dyn Store> = PostgresStore::connect_with_clock(&url, bench.place.clock.clone()).await.unwrap();
        let world = bench.world(Approval::None, Twist::Also(statement)).on(&store, &bench.place.clock).build();
        let id = world.run("go").await;
        assert_eq!(world.row(id).await.state, State::Completed, "{statement}");
        assert_eq!((outcome(&world, id).await.outcome, bench.rows().await.len()), (Outcome::Done, n + 1), "{statement}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_takes_too_long_is_undone_at_its_bound() {
    for bench in Bench::each().await {
        let for_ever = if bench.is_sqlite() {
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
        } else {
            "SELECT pg_sleep(60)"
        };
        let started = Instant::now();
        let told = bench.told(Twist::Also(for_ever)).await;
        assert!(told.contains("longer than 2 s"), "{}: {told}", bench.name());
        assert!((Duration::from_secs(2)..Duration::from_secs(20)).contains(&started.elapsed()), "{:?}", started.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_has_no_more_than_the_limit_whatever_its_tool_says() {
    let bench = Bench::postgres().await;
    let patient =
        postgres_tool("ledger.book", "Book", Approval::None, |transaction: PostgresTransaction, _, _: Booking| async move {
            transaction.query("SELECT pg_sleep(60)", &[]).await?;
            Ok("slept".into())
        });
    let tool = patient.timeout(Duration::from_secs(3600)).tool();
    let world = World::builder(SCRIPT).on(&bench.place.store, &bench.place.clock).tool(tool).build();
    let started = Instant::now();
    let id = world.run("go").await;
    assert_eq!(outcome(&world, id).await.outcome, Outcome::NotApplied);
    assert!(started.elapsed() >= limits::TRANSACTION_MAX, "{:?}", started.elapsed());
    assert!(started.elapsed() < limits::TRANSACTION_MAX * 3, "{:?}", started.elapsed());

    // Of a lease of 3 s it has a third, and not the 2 s that its tool wants.
    let short = bench.world(Approval::None, Twist::Also("SELECT pg_sleep(60)")).ttl(Duration::from_secs(3)).build();
    let id = short.run("go").await;
    assert_eq!(outcome(&short, id).await.result, "it took longer than 1 s and was undone");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_has_so_many_transactions_open_at_once_and_the_next_waits_for_a_connection_on_postgresql() {
    let most = limits::TRANSACTIONS_AT_ONCE_MAX;
    let bench = Bench::postgres().await;
    let gate = Gate::new();
    let world = bench.world(Approval::None, Twist::Hold(Arc::clone(&gate))).build();
    let mut lives = Vec::new();
    for _ in 0..=most {
        lives.push(world.start("go").await.spawn());
    }
    while bench.entered.load(Ordering::SeqCst) < most {
        tokio::task::yield_now().await;
    }
    // Another run goes from its start to its end, and the one too many is not entered meanwhile.
    let other = World::builder("[[reply]]\ntext = \"done\"").on(&bench.place.store, &bench.place.clock).build();
    let id = other.run("go").await;
    assert_eq!(other.row(id).await.state, State::Completed);
    assert_eq!(bench.entered.load(Ordering::SeqCst), most);
    gate.released.send_replace(true);
    for life in lives {
        assert_eq!(life.await.unwrap().unwrap().state, State::Completed);
    }
    assert_eq!(bench.rows().await.len(), most + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_falls_to_another_transaction_is_begun_again_and_is_there_once() {
    let most = limits::TRANSACTION_ATTEMPTS_MAX as usize;
    for bench in Bench::each().await {
        let world = bench.world(Approval::None, Twist::Again(most - 1)).build();
        let id = world.run("go").await;
        assert_eq!(outcome(&world, id).await.outcome, Outcome::Done, "{}", bench.name());
        assert_eq!((bench.rows().await.len(), bench.entered.load(Ordering::SeqCst)), (1, most), "{}", bench.name());
    }
    for bench in Bench::each().await {
        bench.told(Twist::Again(most)).await;
        assert_eq!(bench.entered.load(Ordering::SeqCst), most, "{}", bench.name());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_works_holds_up_no_other_run_on_postgresql_and_on_sqlite_none_beyond_its_bound() {
    let bench = Bench::postgres().await;
    let gate = Gate::new();
    let slow = bench.world(Approval::None, Twist::Hold(Arc::clone(&gate))).build();
    let slow_life = slow.start("go").await.spawn();
    gate.entered().await;
    let other = bench.world(Approval::None, Twist::Plain).build();
    let id = other.run("go").await;
    assert_eq!((other.row(id).await.state, bench.rows().await.len()), (State::Completed, 1));
    gate.released.send_replace(true);
    assert_eq!(slow_life.await.unwrap().unwrap().state, State::Completed);
    assert_eq!(bench.rows().await.len(), 2);

    let bench = Bench::sqlite().await;
    let for_ever = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
    let slow = bench.world(Approval::None, Twist::Also(for_ever)).build();
    let slow_life = slow.start("go").await.spawn();
    let entered = || bench.entered.load(Ordering::SeqCst) > 0;
    while !entered() {
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    let other = World::builder("[[reply]]\ntext = \"done\"").on(&bench.place.store, &bench.place.clock).build();
    let id = other.run("go").await;
    assert_eq!(other.row(id).await.state, State::Completed);
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(slow_life.await.unwrap().unwrap().state, State::Completed);
}
