//! Against a real PostgreSQL, as a role that was granted more than it should be.

use super::{answer, call, config, peak_kib, refused, rows, tool};
use futures::{StreamExt as _, stream::poll_fn};
use leasehold::{agent::tool::sql::SqlTool, store::postgres::PostgresStore};
use leasehold_testkit::postgres::{Cluster, Database, Version};
use serde_json::json;
use std::{
    path::Path,
    time::{Duration, Instant},
};
use tokio_postgres::{AsyncMessage, NoTls};

const PASSWORD: &str = "hunter2-of-the-tests";

/// A shop whose reader may write, if the transaction let it.
const SHOP: &str = "
    CREATE TABLE orders (id int PRIMARY KEY, total numeric NOT NULL, at timestamptz NOT NULL);
    INSERT INTO orders VALUES (1, 12.30, '2026-01-02 03:04:05.5+01'), (2, 0.10, '2026-01-03 00:00:00Z');
    CREATE SEQUENCE numbers;
    CREATE TABLE log (line text);
    CREATE FUNCTION sneak() RETURNS int LANGUAGE sql AS 'DELETE FROM orders; SELECT 1';
    CREATE FUNCTION sneak_as_owner() RETURNS int LANGUAGE sql SECURITY DEFINER AS 'DELETE FROM orders; SELECT 1';
    CREATE FUNCTION sneak_out() RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS $$
        BEGIN SET TRANSACTION READ WRITE; DELETE FROM orders; RETURN 1; END $$;
    CREATE PROCEDURE wipe() LANGUAGE plpgsql AS $$ BEGIN DELETE FROM orders; COMMIT; END $$;
    CREATE VIEW logged AS SELECT sneak_as_owner();
    CREATE RULE written AS ON INSERT TO log DO INSTEAD DELETE FROM orders;
    GRANT ALL ON ALL TABLES IN SCHEMA public TO {role};
    GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role};
    GRANT CREATE ON SCHEMA public TO {role}";

struct Shop {
    database: Database,
    role: String,
}

impl Shop {
    async fn new(more: &str) -> Self {
        let database = Cluster::shared(Version::V15).database().await;
        let role = format!("reader_{}", database.name());
        database.execute(&format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}' {more}")).await.unwrap();
        database.execute(&SHOP.replace("{role}", &role)).await.unwrap();
        Self { database, role }
    }

    fn url(&self) -> String {
        format!("postgres://{}:{PASSWORD}@127.0.0.1:{}/{}", self.role, self.database.cluster().port(), self.database.name())
    }

    /// Everything that a query could have left behind.
    async fn state(&self) -> String {
        let look = "
            SELECT json_build_array(
                (SELECT json_agg(o ORDER BY id) FROM orders o),
                (SELECT json_build_array(last_value, is_called) FROM numbers),
                (SELECT count(*) FROM log),
                (SELECT count(*) FROM pg_largeobject_metadata),
                (SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()),
                (SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace),
                (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace),
                (SELECT json_agg(setconfig) FROM pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase
                    WHERE datname = current_database())
            )::text";
        let client = self.database.cluster().client(self.database.name()).await.unwrap();
        client.query_one(look, &[]).await.unwrap().get(0)
    }

    /// Waits until the server has no session of the reader's any more, and so no lock of one.
    async fn is_left(&self) {
        let client = self.database.cluster().client(self.database.name()).await.unwrap();
        let since = Instant::now();
        loop {
            let count: i64 = client
                .query_one("SELECT count(*) FROM pg_stat_activity WHERE usename = $1", &[&self.role])
                .await
                .unwrap()
                .get(0);
            if count == 0 {
                return;
            }
            assert!(since.elapsed() < Duration::from_secs(20), "a session of the reader's is still there");
            // The server tells nobody when a session has ended.
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Roles belong to the server, not to the database.
    async fn end(self) {
        let role = &self.role;
        self.database.execute(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await.unwrap();
    }
}

#[tokio::test]
async fn no_query_changes_anything_in_whatever_disguise() {
    let shop = Shop::new("").await;
    let tool = tool(&config(&shop.url(), ""));
    let before = shop.state().await;
    for (query, words) in [
        ("DELETE FROM orders", "syntax error"),
        ("INSERT INTO orders VALUES (3, 1, now()) RETURNING id", "syntax error"),
        ("UPDATE orders SET total = 0 RETURNING id", "syntax error"),
        ("MERGE INTO orders o USING orders n ON o.id = n.id WHEN MATCHED THEN DELETE", "syntax error"),
        ("TRUNCATE orders", "syntax error"),
        ("DROP TABLE orders", "syntax error"),
        ("CREATE TABLE x AS SELECT 1", "syntax error"),
        ("SELECT * INTO x FROM orders", "INTO"),
        ("WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone", "data-modifying"),
        ("SELECT * FROM (WITH gone AS (DELETE FROM orders RETURNING *) SELECT * FROM gone) g", "data-modifying"),
        ("WITH new AS (INSERT INTO log VALUES ('x') RETURNING *) SELECT * FROM new", "data-modifying"),
        ("SELECT 1; DELETE FROM orders", "multiple commands"),
        ("SELECT 1; COMMIT; DELETE FROM orders", "multiple commands"),
        ("/* x */ SELECT 1 /* ; */ ; -- ;\n DELETE FROM orders", "multiple commands"),
        ("SELECT 1) ; DELETE FROM orders", "syntax error"),
        ("SELECT * FROM orders FOR UPDATE", "read-only transaction"),
        ("SELECT * FROM orders FOR KEY SHARE", "read-only transaction"),
        ("COPY orders TO STDOUT", "syntax error"),
        ("COPY orders FROM PROGRAM 'id'", "syntax error"),
        ("COPY (SELECT 1) TO '/tmp/leasehold-was-here'", "syntax error"),
        ("EXPLAIN ANALYZE DELETE FROM orders", "syntax error"),
        ("EXECUTE x", "syntax error"),
        ("DO $$ BEGIN DELETE FROM orders; END $$", "syntax error"),
        ("CALL wipe()", "syntax error"),
        ("SET TRANSACTION READ WRITE", "syntax error"),
        ("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE", "syntax error"),
        ("RESET ALL", "syntax error"),
        ("COMMIT", "syntax error"),
        ("COMMIT AND CHAIN", "syntax error"),
        ("BEGIN READ WRITE", "syntax error"),
        ("PREPARE TRANSACTION 'x'", "syntax error"),
        ("LOCK TABLE orders", "syntax error"),
        ("NOTIFY x", "syntax error"),
        ("ALTER DATABASE postgres SET statement_timeout = 1", "syntax error"),
        ("VACUUM", "syntax error"),
        ("", "syntax error"),
        ("-- nothing", "syntax error"),
        ("SELECT sneak()", "read-only transaction"),
        ("SELECT sneak_as_owner()", "read-only transaction"),
        ("SELECT sneak_out()", "transaction read-write mode must be set before any query"),
        ("SELECT * FROM logged", "read-only transaction"),
        ("SELECT set_config('transaction_read_only', 'off', true), sneak()", "must be set before any query"),
        ("SELECT set_config('default_transaction_read_only', 'off', false), sneak()", "read-only transaction"),
        ("SELECT set_config('role', 'leasehold', true)", "permission denied"),
        ("SELECT set_config('session_authorization', 'leasehold', true)", "permission denied"),
        ("SELECT query_to_xml('DELETE FROM orders', true, true, '')", "not allowed in a non-volatile function"),
        ("SELECT nextval('numbers')", "read-only transaction"),
        ("SELECT setval('numbers', 99)", "read-only transaction"),
        ("SELECT lo_import('/etc/passwd')", "permission denied"),
        ("SELECT lo_export(1, '/tmp/leasehold-was-here')", "permission denied"),
        ("SELECT pg_read_file('/etc/passwd')", "permission denied"),
        ("SELECT pg_read_binary_file('/etc/passwd')", "permission denied"),
        ("SELECT pg_ls_dir('/')", "permission denied"),
        ("SELECT pg_stat_file('/etc/passwd')", "permission denied"),
        ("SELECT pg_reload_conf()", "permission denied"),
        ("SELECT pg_switch_wal()", "permission denied"),
        ("SELECT pg_stat_reset()", "permission denied"),
        ("SELECT pg_create_restore_point('x')", "permission denied"),
        ("SELECT pg_create_physical_replication_slot('x')", "must be superuser or replication role"),
        ("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'leasehold'", "must be a superuser"),
        ("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE usename = 'leasehold'", "must be a superuser"),
    ] {
        let why = refused(&tool, query).await;
        assert!(why.contains(words), "{query}: {why}");
        assert!(!why.contains(PASSWORD), "{why}");
        assert_eq!(shop.state().await, before, "{query}");
    }
    assert!(!Path::new("/tmp/leasehold-was-here").exists());
    shop.end().await;
}

#[tokio::test]
async fn what_a_function_may_do_in_a_read_only_transaction_ends_with_it() {
    let shop = Shop::new("").await;
    let tool = tool(&config(&shop.url(), ""));
    let before = shop.state().await;
    let url = shop.database.url();
    let (listener, mut connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    let mut messages = poll_fn(move |context| connection.poll_message(context));
    let listening = tokio::spawn(async move {
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(heard) = message {
                return heard.payload().to_owned();
            }
        }
        panic!("the connection ended");
    });
    listener.batch_execute("LISTEN shop").await.unwrap();
    for query in [
        "SELECT pg_notify('shop', 'sneaked')",
        "SELECT pg_advisory_lock(7)",
        "SELECT lo_create(4711)",
        "SELECT set_config('work_mem', '1GB', false)",
        "SELECT pg_current_xact_id()",
        "SELECT pg_export_snapshot()",
    ] {
        // A version of the server may refuse it, too.
        call(&tool, query, json!([])).await;
    }
    shop.is_left().await;
    assert_eq!(shop.state().await, before);
    let client = shop.database.cluster().client(shop.database.name()).await.unwrap();
    let free: bool = client.query_one("SELECT pg_try_advisory_lock(7)", &[]).await.unwrap().get(0);
    assert!(free, "an advisory lock ends with its session");
    client.batch_execute("NOTIFY shop, 'real'").await.unwrap();
    assert_eq!(listening.await.unwrap(), "real", "nothing was notified before");
    shop.end().await;
}

#[tokio::test]
async fn values_come_as_json_has_them_and_parameters_are_only_values() {
    let shop = Shop::new("").await;
    let tool = tool(&config(&shop.url(), ""));
    let all = answer(&tool, "TABLE orders ORDER BY id;", json!([])).await;
    assert_eq!(
        all,
        json!({
            "columns": ["id", "total", "at"],
            "rows": [[1, "12.30", "2026-01-02T02:04:05.5Z"], [2, "0.10", "2026-01-03T00:00:00Z"]],
            "truncated": false,
        })
    );
    let many = "SELECT NULL, true, 9223372036854775807, 1.5::float8, 'NaN'::float8, '\\x00ff'::bytea, '{\"a\": [1]}'::jsonb,
        '2026-01-02'::date, '2026-01-02 03:04:05'::timestamp, 'infinity'::timestamptz, ARRAY[1, 2], 'é'::text,
        '00000000-0000-0000-0000-000000000001'::uuid, '0044-01-01 BC'::timestamp, interval '1 day'";
    assert_eq!(
        answer(&tool, many, json!([])).await["rows"][0],
        json!([
            null, true, 9_223_372_036_854_775_807_i64, 1.5, "NaN", { "bytes": 2 }, { "a": [1] }, "2026-01-02", "2026-01-02T03:04:05",
            "infinity", "{1,2}", "é", "00000000-0000-0000-0000-000000000001", "0044-01-01 00:00:00 BC", "P1D",
        ])
    );
    let injected = "'; DELETE FROM orders; --";
    let given = json!([1, injected, null, true, 1.5]);
    let back = answer(&tool, "SELECT id, $2::text, $3::int, $4::bool, $5::numeric FROM orders WHERE id = $1", given).await;
    assert_eq!(back["rows"], json!([[1, injected, null, true, "1.5"]]));
    let wrong = call(&tool, "SELECT $1::int", json!(["x"])).await;
    assert!(wrong.is_error && wrong.result.as_str().unwrap().contains("invalid input syntax"), "{wrong:?}");
    let few = call(&tool, "SELECT $1::int, $2::int", json!([1])).await;
    assert_eq!(few.result, "the query has 2 parameters, and 1 are given");
    assert!(refused(&tool, "SELECT totl FROM orders").await.contains("does not exist"));
    shop.end().await;
}

#[tokio::test]
async fn rows_bytes_and_time_are_bounded_and_what_is_left_out_is_said() {
    let shop = Shop::new("").await;
    let few = tool(&config(&shop.url(), "max_rows = 3\nmax_bytes = \"1KiB\"\ntimeout = \"2s\""));
    let three = answer(&few, "SELECT * FROM generate_series(1, 3)", json!([])).await;
    assert_eq!((rows(&three), &three["truncated"]), (3, &json!(false)));
    let more = answer(&few, "SELECT * FROM generate_series(1, 4)", json!([])).await;
    assert_eq!((rows(&more), &more["truncated"], &more["note"]), (3, &json!(true), &json!("only the first 3 rows")));
    let since = Instant::now();
    let endless = answer(&few, "SELECT generate_series(1, 2000000000)", json!([])).await;
    assert_eq!((rows(&endless), &endless["truncated"]), (3, &json!(true)));
    assert!(since.elapsed() < Duration::from_secs(2), "only what is wanted is fetched");
    let wide = answer(&few, "SELECT repeat('x', 600) FROM generate_series(1, 3)", json!([])).await;
    assert_eq!((rows(&wide), &wide["truncated"]), (1, &json!(true)));
    // One row of far more than anybody keeps; the driver would take it in as a whole.
    let before = peak_kib();
    let huge = answer(&few, "SELECT repeat('x', 100000000)", json!([])).await;
    assert_eq!((rows(&huge), &huge["truncated"]), (0, &json!(true)));
    assert!(huge["note"].as_str().unwrap().contains("more than 1024 bytes"), "{huge}");
    assert!(peak_kib() - before < 40 * 1024, "it is taken in no further than it is wanted");
    for query in [
        "SELECT pg_sleep(60)",
        "SELECT set_config('statement_timeout', '0', false), pg_sleep(60)",
        "SELECT pg_sleep(1) FROM generate_series(1, 60)",
        "SELECT count(*) FROM generate_series(1, 1000000) a, generate_series(1, 1000000) b",
    ] {
        let since = Instant::now();
        let why = refused(&few, query).await;
        assert!(why.contains("statement timeout") || why.contains("no whole answer within 2s"), "{query}: {why}");
        assert!(since.elapsed() < Duration::from_secs(5), "{query}");
    }
    shop.is_left().await;
    shop.end().await;
}

#[tokio::test]
async fn a_lock_that_somebody_holds_is_not_waited_for_until_others_wait_too() {
    let shop = Shop::new("").await;
    let tool = tool(&config(&shop.url(), ""));
    let mut holder = shop.database.cluster().client(shop.database.name()).await.unwrap();
    let held = holder.transaction().await.unwrap();
    held.batch_execute("LOCK TABLE orders").await.unwrap();
    assert!(refused(&tool, "SELECT * FROM orders").await.contains("lock timeout"));
    held.rollback().await.unwrap();
    shop.end().await;
}

#[tokio::test]
async fn a_role_that_could_do_more_than_read_is_refused_with_the_reason() {
    let shop = Shop::new("").await;
    let role = &shop.role;
    let config = config(&shop.url(), "");
    let tool = tool(&config);
    let fit = async || {
        let config = config.clone();
        let asked = move || SqlTool::fit(&config, Path::new("/"), |_| None, Duration::from_secs(20));
        tokio::task::spawn_blocking(asked).await.unwrap()
    };
    assert_eq!(fit().await, Ok(()));
    for (give, take, words) in [
        (format!("ALTER ROLE {role} SUPERUSER"), format!("ALTER ROLE {role} NOSUPERUSER"), "is a superuser"),
        (format!("ALTER ROLE {role} REPLICATION"), format!("ALTER ROLE {role} NOREPLICATION"), "may replicate"),
        (format!("GRANT leasehold TO {role}"), format!("REVOKE leasehold FROM {role}"), "can become the superuser leasehold"),
        (
            format!("GRANT pg_read_server_files TO {role}"),
            format!("REVOKE pg_read_server_files FROM {role}"),
            "pg_read_server_files",
        ),
        (
            format!("GRANT pg_write_server_files TO {role}"),
            format!("REVOKE pg_write_server_files FROM {role}"),
            "pg_write_server_files",
        ),
        (
            format!("GRANT pg_execute_server_program TO {role}; ALTER ROLE {role} NOINHERIT"),
            format!("REVOKE pg_execute_server_program FROM {role}; ALTER ROLE {role} INHERIT"),
            "pg_execute_server_program",
        ),
        (format!("GRANT pg_signal_backend TO {role}"), format!("REVOKE pg_signal_backend FROM {role}"), "pg_signal_backend"),
        ("CREATE EXTENSION dblink".into(), "DROP EXTENSION dblink".into(), "the extension dblink"),
    ] {
        shop.database.execute(&give).await.unwrap();
        let why = refused(&tool, "SELECT 1").await;
        assert!(why.contains("it is not queried: its role") && why.contains(words), "{give}: {why}");
        assert_eq!(fit().await, Err(why), "{give}");
        shop.database.execute(&take).await.unwrap();
        answer(&tool, "SELECT 1", json!([])).await;
    }
    shop.end().await;
}

#[tokio::test]
async fn a_store_of_leaseholds_is_not_queried_unless_the_operator_says_so() {
    let shop = Shop::new("").await;
    PostgresStore::connect(&shop.database.url()).await.unwrap();
    // In the same database, and nothing that the role may read.
    let plain = tool(&config(&shop.url(), ""));
    answer(&plain, "SELECT 1", json!([])).await;
    let tables = "SELECT string_agg(relname, ',') FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum = 1
        WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname NOT IN ('orders', 'log')";
    let client = shop.database.cluster().client(shop.database.name()).await.unwrap();
    let tables: String = client.query_one(tables, &[]).await.unwrap().get(0);
    assert!(tables.split(',').count() >= 8, "{tables}");
    // Every one that the migrations have made, as a whole and by one column.
    for table in tables.split(',') {
        let column = "SELECT attname::text FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum = 1";
        let column: String = client.query_one(column, &[&table]).await.unwrap().get(0);
        for what in ["SELECT".to_owned(), format!("SELECT ({column})")] {
            shop.database.execute(&format!("GRANT {what} ON {table} TO {}", shop.role)).await.unwrap();
            assert!(refused(&plain, "SELECT 1").await.contains("allow_store = true"), "{what} {table}");
            shop.database.execute(&format!("REVOKE {what} ON {table} FROM {}", shop.role)).await.unwrap();
            answer(&plain, "SELECT 1", json!([])).await;
        }
    }
    shop.database.execute(&format!("GRANT SELECT ON runs, journal TO {}", shop.role)).await.unwrap();
    let allowed = tool(&config(&shop.url(), "allow_store = true"));
    answer(&allowed, "SELECT count(*) FROM runs", json!([])).await;
    shop.end().await;
}

#[tokio::test]
async fn no_error_repeats_the_password() {
    let shop = Shop::new("").await;
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for url in [
        shop.url().replace(PASSWORD, &format!("{PASSWORD}x")),
        shop.url().replace(&format!("/{}", shop.database.name()), "/nowhere"),
        format!("postgres://ada:{PASSWORD}@127.0.0.1:{port}/shop"),
        format!("{}?sslmode=verify-full", shop.url()),
    ] {
        let tool = tool(&config(&url, ""));
        let why = refused(&tool, "SELECT 1").await;
        assert!(why.contains("does not take a connection") && !why.contains(PASSWORD) && !why.contains("postgres://"), "{why}");
        assert!(!tool.spec().endpoint.contains(PASSWORD), "{}", tool.spec().endpoint);
    }
    for url in [format!("postgres://ada:{PASSWORD}@host:port/d"), format!("postgres://ada:x@{PASSWORD}@host/d")] {
        let config = config(&url, "");
        let said = SqlTool::check(&config).unwrap_err().to_string();
        assert!(!said.contains(PASSWORD), "{said}");
        assert!(!config.endpoint().contains(PASSWORD), "{}", config.endpoint());
    }
    shop.end().await;
}

#[tokio::test]
async fn a_query_that_nobody_waits_for_any_more_leaves_the_server() {
    let shop = Shop::new("").await;
    let tool = tool(&config(&shop.url(), "timeout = \"20s\""));
    let asked =
        tokio::spawn(async move { call(&tool, "SELECT n, pg_sleep(0.01) FROM generate_series(1, 100000) n", json!([])).await });
    let client = shop.database.cluster().client(shop.database.name()).await.unwrap();
    let since = Instant::now();
    loop {
        let busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = $1 AND query LIKE 'FETCH%' AND state = 'active'";
        let count: i64 = client.query_one(busy, &[&shop.role]).await.unwrap().get(0);
        if count == 1 {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "it never ran");
    }
    asked.abort();
    let since = Instant::now();
    shop.is_left().await;
    assert!(since.elapsed() < Duration::from_secs(10), "before its timeout");
    shop.end().await;
}
