//! Against real SQLite files.

use super::{answer, call, config, peak_kib, refused, rows, tool};
use leasehold::{
    agent::tool::{Tool, sql::SqlTool},
    clock::SystemClock,
    limits::{
        SQL_AT_ONCE_MAX, SQL_COLUMNS_MAX, SQL_PARAMETERS_MAX, SQL_PATTERN_BYTES_MAX, SQL_QUERY_BYTES_MAX, SQL_RESULT_BYTES_MAX,
        SQL_ROWS_MAX, SQL_VALUE_BYTES_MAX,
    },
    store::sqlite::SqliteStore,
};
use rusqlite::Connection;
use serde_json::json;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

struct Shop {
    directory: TempDir,
}

impl Shop {
    fn new(mode: &str) -> Self {
        let shop = Self { directory: tempfile::tempdir().unwrap() };
        let connection = Connection::open(shop.path("shop.db")).unwrap();
        connection.pragma_update_and_check(None, "journal_mode", mode, |_| Ok(())).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, note TEXT, scan BLOB);
                 INSERT INTO orders VALUES (1, 12.5, 'first', x'00ff'), (2, NULL, 'é', NULL);
                 CREATE TABLE secrets (word TEXT);
                 INSERT INTO secrets VALUES ('open sesame');
                 CREATE VIEW told AS SELECT word FROM secrets;
                 CREATE TRIGGER t AFTER INSERT ON secrets BEGIN DELETE FROM orders; END;",
            )
            .unwrap();
        shop
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn tool(&self, more: &str) -> Tool {
        tool(&config(&format!("sqlite:{}", self.path("shop.db")), more))
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.path("shop.db")).unwrap()
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(self.directory.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[tokio::test]
async fn no_query_changes_anything_in_whatever_disguise() {
    let shop = Shop::new("delete");
    let tool = shop.tool("");
    let (bytes, files) = (shop.bytes(), shop.files());
    let stolen = shop.path("stolen.db");
    let attach = format!("ATTACH DATABASE '{stolen}' AS x");
    let vacuum = format!("VACUUM INTO '{stolen}'");
    for query in [
        "DELETE FROM orders",
        "DELETE FROM orders RETURNING *",
        "INSERT INTO orders VALUES (3, 1, '', NULL) RETURNING id",
        "UPDATE orders SET total = 0 RETURNING id",
        "REPLACE INTO orders VALUES (1, 0, '', NULL)",
        "INSERT INTO secrets VALUES ('x')",
        "WITH x AS (SELECT 1) DELETE FROM orders",
        "WITH x AS (SELECT 1) INSERT INTO secrets SELECT * FROM x RETURNING word",
        "SELECT 1; DELETE FROM orders",
        "SELECT 1; -- x\n;; DELETE FROM orders",
        "SELECT 1; SELECT 2",
        "EXPLAIN DELETE FROM orders",
        "EXPLAIN QUERY PLAN DELETE FROM orders",
        "CREATE TABLE x (a)",
        "CREATE TEMP TABLE x AS SELECT * FROM orders",
        "CREATE TEMP VIEW x AS SELECT 1",
        "CREATE VIRTUAL TABLE x USING fts5(a)",
        "CREATE VIRTUAL TABLE temp.x USING fts5(a)",
        "DROP TABLE orders",
        "ALTER TABLE orders RENAME TO x",
        "REINDEX",
        "ANALYZE",
        "VACUUM",
        vacuum.as_str(),
        attach.as_str(),
        "ATTACH 'file:shop.db?mode=rw' AS x",
        "ATTACH ':memory:' AS x",
        "DETACH main",
        "BEGIN IMMEDIATE",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
        "PRAGMA query_only = 0",
        "PRAGMA journal_mode = WAL",
        "PRAGMA writable_schema = 1",
        "PRAGMA user_version = 7",
        "PRAGMA user_version",
        "PRAGMA database_list",
        "PRAGMA wal_checkpoint",
        "PRAGMA optimize",
        "PRAGMA temp_store_directory = '/tmp'",
        "SELECT * FROM pragma_journal_mode",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM pragma_function_list",
        "SELECT load_extension('/tmp/x.so')",
        "SELECT LOAD_EXTENSION('/tmp/x.so')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/leasehold-was-here', 'x')",
        "SELECT fts3_tokenizer('simple', x'4141414141414141')",
        "",
        "-- nothing",
        ";",
    ] {
        refused(&tool, query).await;
        assert_eq!((shop.bytes(), shop.files()), (bytes.clone(), files.clone()), "{query}");
    }
    assert!(!Path::new("/tmp/leasehold-was-here").exists());
}

#[tokio::test]
async fn values_come_as_json_has_them_in_either_mode_of_the_file() {
    for mode in ["delete", "wal"] {
        let shop = Shop::new(mode);
        let tool = shop.tool("");
        assert_eq!(
            answer(&tool, "SELECT * FROM orders ORDER BY id;", json!([])).await,
            json!({
                "columns": ["id", "total", "note", "scan"],
                "rows": [[1, 12.5, "first", { "bytes": 2 }], [2, null, "é", null]],
                "truncated": false,
            }),
            "{mode}"
        );
        let given = json!([9_223_372_036_854_775_807_i64, "'; DROP TABLE orders", null, true, 0.5]);
        let back = answer(&tool, "SELECT ?1, ?2, ?3, ?4, ?5, 1e999", given).await;
        let expected = json!([[9_223_372_036_854_775_807_i64, "'; DROP TABLE orders", null, 1, 0.5, "inf"]]);
        assert_eq!(back["rows"], expected, "{mode}");
        assert_eq!(answer(&tool, "PRAGMA table_info(orders)", json!([])).await["rows"][0][1], "id");
        assert_eq!(rows(&answer(&tool, "SELECT * FROM pragma_table_info('orders')", json!([])).await), 4);
        answer(&tool, "SELECT value FROM json_each('[1, 2]')", json!([])).await;
        answer(
            &tool,
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 3) SELECT count(*) FROM n",
            json!([]),
        )
        .await;
        assert_eq!(call(&tool, "SELECT ?1, ?2", json!([1])).await.result, "the query has 2 parameters, and 1 are given");
        assert!(refused(&tool, "SELECT totl FROM orders").await.contains("no such column: totl"));
    }
}

#[tokio::test]
async fn of_tables_that_are_listed_no_others_are_read_by_any_name() {
    let shop = Shop::new("delete");
    let tool = shop.tool("tables = [\"Orders\"]");
    assert!(tool.spec().description.contains("Tables: Orders."), "{}", tool.spec().description);
    for query in [
        "SELECT * FROM secrets",
        "SELECT * FROM Main.SECRETS",
        "SELECT count(*) FROM secrets",
        "SELECT 1 FROM secrets",
        "SELECT * FROM told",
        "SELECT * FROM orders WHERE note IN (SELECT word FROM secrets)",
        "SELECT * FROM orders ORDER BY (SELECT word FROM secrets)",
        "WITH orders AS (SELECT * FROM secrets) SELECT * FROM orders",
        "WITH orders AS (SELECT * FROM told) SELECT * FROM orders",
        "SELECT * FROM sqlite_schema",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM dbstat",
        "PRAGMA table_info(secrets)",
        "SELECT * FROM pragma_table_info('secrets')",
        "SELECT * FROM pragma_table_list",
    ] {
        let why = refused(&tool, query).await;
        assert!(!why.contains("sesame"), "{query}: {why}");
    }
    for query in [
        "SELECT count(*) FROM orders",
        "WITH mine AS (SELECT id FROM orders) SELECT count(*) FROM mine",
        "SELECT * FROM pragma_table_info('orders')",
        "PRAGMA table_info(orders)",
    ] {
        answer(&tool, query, json!([])).await;
    }
}

#[tokio::test]
async fn rows_bytes_values_and_time_are_bounded_and_what_is_left_out_is_said() {
    let shop = Shop::new("delete");
    let few = shop.tool("max_rows = 3\nmax_bytes = \"1KiB\"\ntimeout = \"500ms\"");
    let endless = |what: &str| format!("WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT {what} FROM n");
    let three = answer(&few, &format!("{} LIMIT 3", endless("x")), json!([])).await;
    assert_eq!((rows(&three), &three["truncated"]), (3, &json!(false)));
    let more = answer(&few, &endless("x"), json!([])).await;
    assert_eq!((rows(&more), &more["truncated"], &more["note"]), (3, &json!(true), &json!("only the first 3 rows")));
    let wide = answer(&few, &endless("printf('%500s', 'x')"), json!([])).await;
    assert_eq!((rows(&wide), &wide["truncated"]), (1, &json!(true)));
    let value = |bytes: usize| format!("SELECT length(zeroblob({bytes}))");
    answer(&few, &value(SQL_VALUE_BYTES_MAX), json!([])).await;
    assert!(refused(&few, &value(SQL_VALUE_BYTES_MAX + 1)).await.contains("too big"));
    for query in [endless("count(*)"), format!("{} ORDER BY random()", endless("x"))] {
        let since = Instant::now();
        assert!(refused(&few, &query).await.contains("no whole answer within 500ms"), "{query}");
        assert!(since.elapsed() < Duration::from_secs(5), "{query}");
    }
    let tool = shop.tool("");
    let padded = |bytes: usize| format!("SELECT 1{}", " ".repeat(bytes - 8));
    answer(&tool, &padded(SQL_QUERY_BYTES_MAX), json!([])).await;
    assert!(refused(&tool, &padded(SQL_QUERY_BYTES_MAX + 1)).await.contains("longer than"));
    let marks = |count: usize| format!("SELECT {}", vec!["?"; count].join(", "));
    answer(&tool, &marks(SQL_PARAMETERS_MAX), json!(vec![0; SQL_PARAMETERS_MAX])).await;
    let many = call(&tool, &marks(SQL_PARAMETERS_MAX + 1), json!(vec![0; SQL_PARAMETERS_MAX + 1])).await;
    assert!(many.result.as_str().unwrap().contains("more than 100 parameters"), "{many:?}");
}

#[tokio::test]
async fn a_store_of_leaseholds_is_not_queried_unless_the_operator_says_so_whatever_it_is_called() {
    let shop = Shop::new("delete");
    let store = shop.path("runs.db");
    drop(SqliteStore::open(&store, Arc::new(SystemClock::new().unwrap())).unwrap());
    std::os::unix::fs::symlink(&store, shop.path("link.db")).unwrap();
    std::fs::hard_link(&store, shop.path("hard.db")).unwrap();
    for name in ["runs.db", "link.db", "hard.db"] {
        let url = format!("sqlite:{}", shop.path(name));
        let plain = config(&url, "");
        assert!(refused(&tool(&plain), "SELECT 1").await.contains("allow_store = true"), "{name}");
        let fit = SqlTool::fit(&plain, Path::new("/"), |_| None, Duration::ZERO);
        assert!(fit.unwrap_err().contains("store of leasehold's"), "{name}");
        answer(&tool(&config(&url, "allow_store = true")), "SELECT count(*) FROM runs", json!([])).await;
    }
}

#[tokio::test]
async fn a_file_that_is_not_there_is_not_made_and_one_that_is_none_is_said() {
    let shop = Shop::new("delete");
    std::fs::write(
        shop.path("text.db"),
        "no database at all, and longer than a header of one would be, which is 100 bytes or so",
    )
    .unwrap();
    let files = shop.files();
    for (name, words) in [("none.db", "no such database file"), ("text.db", "not a database"), ("", "no such database file")] {
        let tool = tool(&config(&format!("sqlite:{}", shop.path(name)), ""));
        assert!(refused(&tool, "SELECT 1").await.contains(words), "{name}");
    }
    assert_eq!(shop.files(), files);
}

#[test]
fn what_is_wrong_with_the_configuration_is_said_with_its_key() {
    for (text, key) in [
        ("name = ''\nurl = 'sqlite:a.db'", "name"),
        ("name = 'a.b'\nurl = 'sqlite:a.db'", "name"),
        ("name = 'a'", "url"),
        ("name = 'a'\nurl = 'sqlite:'", "url"),
        ("name = 'a'\nurl = 'sqlite::memory:'", "url"),
        ("name = 'a'\nurl = 'sqlite:a.db?mode=rw'", "url"),
        ("name = 'a'\nurl = 'mysql://h/d'", "url"),
        ("name = 'a'\nurl = 'postgres://host'", "url"),
        ("name = 'a'\nurl = 'sqlite:a.db'\nurl_env = 'A'", "url_env"),
        ("name = 'a'\nurl_env = 'postgres://u:p@h/d'", "url_env"),
        ("name = 'a'\nurl = 'sqlite:a.db'\ntables = []", "tables"),
        ("name = 'a'\nurl = 'sqlite:a.db'\nmax_rows = 0", "max_rows"),
        (&format!("name = 'a'\nurl = 'sqlite:a.db'\nmax_rows = {}", SQL_ROWS_MAX + 1), "max_rows"),
        (&format!("name = 'a'\nurl = 'sqlite:a.db'\nmax_bytes = '{}B'", SQL_RESULT_BYTES_MAX + 1), "max_bytes"),
    ] {
        let error = SqlTool::check(&toml::from_str(text).unwrap()).unwrap_err();
        assert_eq!(error.key, key, "{text}: {error}");
        assert!(!error.to_string().contains("u:p"), "{error}");
    }
    let most = format!("name = 'a'\nurl = 'sqlite:a.db'\nmax_rows = {SQL_ROWS_MAX}\nmax_bytes = '{SQL_RESULT_BYTES_MAX}B'");
    SqlTool::check(&toml::from_str(&most).unwrap()).unwrap();
}

#[tokio::test]
async fn one_row_takes_no_more_memory_than_its_columns_may() {
    let shop = Shop::new("delete");
    let tool = shop.tool("");
    let wide = |columns: usize, bytes: usize| {
        let each: Vec<String> = (0..columns).map(|n| format!("hex(zeroblob({}))", bytes / 2 - n - 1)).collect();
        format!("SELECT {}", each.join(", "))
    };
    assert!(refused(&tool, &wide(2, 16_000_000)).await.contains("too big"));
    let columns = |count: usize| format!("SELECT {}", vec!["1"; count].join(", "));
    answer(&tool, &columns(SQL_COLUMNS_MAX), json!([])).await;
    assert!(refused(&tool, &columns(SQL_COLUMNS_MAX + 1)).await.contains("too many columns"));
    let before = peak_kib();
    let most = answer(&tool, &wide(SQL_COLUMNS_MAX, SQL_VALUE_BYTES_MAX), json!([])).await;
    assert_eq!((rows(&most), &most["truncated"]), (0, &json!(true)));
    let taken = peak_kib() - before;
    assert!(taken < 320 * 1024, "{taken} KiB");
    // A table of the file's own may be wider, as long as no more is asked for.
    let names: Vec<String> = (0..SQL_COLUMNS_MAX + 50).map(|n| format!("c{n}")).collect();
    let make = format!("CREATE TABLE broad ({})", names.join(", "));
    Connection::open(shop.path("shop.db")).unwrap().execute_batch(&make).unwrap();
    answer(&tool, "SELECT c0, c240 FROM broad", json!([])).await;
}

#[tokio::test]
async fn a_function_that_could_run_for_minutes_is_refused_and_a_pattern_is_no_longer_than_the_limit() {
    let shop = Shop::new("delete");
    let tool = shop.tool("");
    let like = |bytes: usize| format!("SELECT 'a' LIKE '{}'", "a".repeat(bytes));
    answer(&tool, &like(SQL_PATTERN_BYTES_MAX), json!([])).await;
    assert!(refused(&tool, &like(SQL_PATTERN_BYTES_MAX + 1)).await.contains("pattern too complex"));
    for slow in ["trim('a', 'b')", "LTRIM('a', 'b')", "rtrim('a', 'b')", "json_patch('{}', '{}')"] {
        assert!(refused(&tool, &format!("SELECT {slow}")).await.contains("not authorized"), "{slow}");
    }
}

/// A function that nothing ends while it runs, several times.
fn slow() -> String {
    let half = SQL_VALUE_BYTES_MAX / 4;
    let one =
        |n: usize| format!("instr(hex(zeroblob({})), hex(zeroblob({})) || '1')", SQL_VALUE_BYTES_MAX / 2 - n - 1, half - n);
    let each: Vec<String> = (0..24).map(one).collect();
    format!("SELECT {}", each.join(" + "))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_is_given_back_when_its_query_ends_and_not_before() {
    let shop = Shop::new("delete");
    let tool = Arc::new(shop.tool("timeout = \"1s\""));
    let at_once = |count: usize| {
        let slow = (0..count).map(|_| {
            let tool = Arc::clone(&tool);
            async move { refused(&tool, &slow()).await }
        });
        futures::future::join_all(slow)
    };
    at_once(SQL_AT_ONCE_MAX - 1).await;
    answer(&tool, "SELECT 1", json!([])).await;
    at_once(1).await;
    assert!(refused(&tool, "SELECT 1").await.contains("no whole answer within 1s"), "every place still has a query");
    let since = Instant::now();
    while call(&tool, "SELECT 1", json!([])).await.is_error {
        assert!(since.elapsed() < Duration::from_secs(120), "no place comes back");
    }
}

#[tokio::test]
async fn a_file_that_is_late_or_locked_is_no_reason_against_the_tool() {
    let shop = Shop::new("delete");
    let fit = |name: &str| {
        SqlTool::fit(&config(&format!("sqlite:{}", shop.path(name)), ""), Path::new("/"), |_| None, Duration::ZERO)
    };
    assert_eq!(fit("late.db"), Ok(()));
    let writer = Connection::open(shop.path("shop.db")).unwrap();
    writer.execute_batch("BEGIN EXCLUSIVE").unwrap();
    assert_eq!(fit("shop.db"), Ok(()));
}
