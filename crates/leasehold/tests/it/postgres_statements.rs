//! Every statement of the PostgreSQL store, asked of real servers: it is understood, and what runs all the time finds its rows by
//! an index however many runs are settled.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::store::postgres::PostgresStore;
use leasehold_testkit::postgres::{Cluster, Database, Version};
use std::{collections::BTreeMap, path::Path};

/// By name, with numbers for parameters.
fn statements(dialect: &str) -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store").join(dialect).join("sql");
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    files
        .map(|f| (f.file_stem().unwrap().to_str().unwrap().to_owned(), numbered(&std::fs::read_to_string(f).unwrap())))
        .collect()
}

fn numbered(named: &str) -> String {
    let mut names: Vec<String> = Vec::new();
    let code: String = named.lines().filter(|l| !l.starts_with("--")).map(|l| format!("{l}\n")).collect();
    let mut sql = String::new();
    let mut parts = code.replace("::", "\u{1}").split(':').map(str::to_owned).collect::<Vec<_>>().into_iter();
    sql.push_str(&parts.next().unwrap());
    for part in parts {
        let end = part.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        let at = names.iter().position(|n| n == name).unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        });
        sql.push_str(&format!("${}{rest}", at + 1));
    }
    sql.replace('\u{1}', "::")
}

async fn migrated(version: Version) -> Database {
    let database = Cluster::shared(version).database().await;
    PostgresStore::connect(&database.url()).await.unwrap();
    database
}

#[tokio::test]
async fn both_versions_understand_every_statement() {
    for version in [Version::V15, Version::V18] {
        let database = migrated(version).await;
        let client = database.cluster().client(database.name()).await.unwrap();
        let statements = statements("postgres");
        assert!(statements.len() > 20, "{statements:?}");
        for (name, sql) in statements {
            let prepared = client.prepare(&sql).await;
            assert!(prepared.is_ok(), "{version:?} {name}: {prepared:?}\n{sql}");
        }
    }
}

#[test]
fn the_two_dialects_have_the_same_statements() {
    let names = |dialect| statements(dialect).into_keys().collect::<std::collections::BTreeSet<_>>();
    let (sqlite, postgres) = (names("sqlite"), names("postgres"));
    // One statement appends with its write and notes what it called, and one looks at a row and for a write on it; only a server has a clock to ask, and locks to look at.
    let parts: Vec<_> = sqlite.difference(&postgres).collect();
    assert_eq!(parts, ["append", "called", "write_is_there"]);
    let more: Vec<_> = postgres.difference(&sqlite).collect();
    assert_eq!(more, ["inspect", "lock_budget", "lock_schema", "notify", "now", "schema_version", "touched", "write_runs"]);
}

/// 20,000 settled runs, and ten of each state that is looked for.
const HISTORY: &str = "
    INSERT INTO runs (id, agent, owner, initiator, mode, state, epoch, sequence, lease_id, holder, lease_clock, lease_expires_ns,
        next_segment, cancel_requested, recovery, recovery_explicit, requeues, priority, due_at_ms, wait_deadline_ms, has_request,
        second_approver, rounds, input_tokens, output_tokens, cached_tokens, cost_nano_usd, duplicates, created_at_ms, since_ms)
    SELECT gen_random_uuid(), 'a', 'ada', 'ada', 'queue', state, 1, 1, lease, holder, clock, ends, 'worker', false, 'requeue', false,
        0, 0, n, n, true, false, 0, 0, 0, 0, 0, 0, n, n
    FROM (
        SELECT n, 'completed' AS state, NULL::uuid AS lease, NULL AS holder, NULL AS clock, NULL::bigint AS ends
        FROM generate_series(1, 20000) AS n
        UNION ALL SELECT n, 'queued', NULL, NULL, NULL, NULL FROM generate_series(1, 10) AS n
        UNION ALL SELECT n, 'waiting_for_approval', NULL, NULL, NULL, NULL FROM generate_series(1, 10) AS n
        UNION ALL SELECT n, 'running', gen_random_uuid(), 'worker:a', 'db', n FROM generate_series(1, 10) AS n
    ) AS rows;
    INSERT INTO journal (run_id, sequence, at_ms, epoch, write_id, kind, payload)
    SELECT id, 0, 0, 1, gen_random_uuid(), 'started', '' FROM runs;
    INSERT INTO callers (tool, run_id, at_ms) SELECT 't' || (since_ms % 10), id, since_ms FROM runs;
    ANALYZE callers; ANALYZE runs; ANALYZE journal";

#[tokio::test]
async fn what_runs_all_the_time_uses_its_index() {
    for version in [Version::V15, Version::V18] {
        let database = migrated(version).await;
        let client = database.cluster().client(database.name()).await.unwrap();
        client.batch_execute(HISTORY).await.unwrap();
        // As the store's own connections plan after some executions.
        client.batch_execute("SET plan_cache_mode = force_generic_plan").await.unwrap();
        let all = statements("postgres");
        for (name, index) in [
            ("write_run", "runs_pkey"),
            ("write_runs", "runs_pkey"),
            ("renew", "runs_pkey"),
            ("look", "runs_pkey"),
            ("load", "runs_pkey"),
            ("guard_of", "journal_pkey"),
            ("journal", "journal_pkey"),
            ("due", "runs_due"),
            ("next_due", "runs_due"),
            ("lapsed", "runs_held"),
            ("overdue", "runs_overdue"),
            ("list", "runs_pkey"),
            ("list_attention", "runs_attention"),
            ("untold", "runs_untold"),
            ("told", "runs_pkey"),
            ("callers", "callers_newest"),
            ("by_request_key", "runs_request_key"),
        ] {
            let sql = &all[name];
            let count = client.prepare(sql).await.unwrap().params().len();
            let nulls = vec!["NULL"; count].join(", ");
            client.batch_execute(&format!("PREPARE {name} AS {sql}")).await.unwrap();
            let rows = client.query(&format!("EXPLAIN EXECUTE {name}({nulls})"), &[]).await.unwrap();
            let plan: Vec<String> = rows.iter().map(|r| r.get(0)).collect();
            let plan = plan.join("\n");
            assert!(plan.contains(index), "{version:?} {name} does not use {index}:\n{plan}");
            for table in ["Seq Scan on runs", "Seq Scan on journal"] {
                assert!(!plan.contains(table), "{version:?} {name} reads a whole table:\n{plan}");
            }
        }
    }
}

#[tokio::test]
async fn a_step_touches_no_index() {
    let database = migrated(Version::V18).await;
    let client = database.cluster().client(database.name()).await.unwrap();
    client.batch_execute(HISTORY).await.unwrap();
    let step =
        "UPDATE runs SET sequence = sequence + 1, lease_expires_ns = lease_expires_ns + 1, rounds = rounds + 1, turn = 't',
        agent = agent, state = state, due_at_ms = due_at_ms WHERE state = 'running'";
    client.batch_execute(step).await.unwrap();
    client.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    let row = client.query_one("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'runs'", &[]);
    let row = row.await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (10, 10));
}
