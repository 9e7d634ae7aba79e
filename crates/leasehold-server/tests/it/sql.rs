//! `[[tool.sql]]` in the command: whole runs on both databases, and what keeps one from being offered.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{Sandbox, one_call, said, text};
use leasehold_testkit::postgres::{Cluster, Database, Version};
use serde_json::{Value, json};

const PASSWORD: &str = "hunter2-of-the-tests";

/// A clerk that is offered the databases and asks one of them.
async fn sandbox(section: &str) -> Sandbox {
    let sandbox = Sandbox::new("").await;
    let shop = rusqlite::Connection::open(sandbox.path("shop.db")).unwrap();
    shop.execute_batch("CREATE TABLE orders (id, total); INSERT INTO orders VALUES (1, 12.5), (2, 7)").unwrap();
    sandbox.write("script.toml", &one_call("sql.shop", "{ query = \"SELECT id FROM orders WHERE total > 10\" }"));
    let file = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    let file = file.replace("[\"ledger.*\"]", "[\"ledger.*\", \"sql.*\"]");
    sandbox.write("leasehold.toml", &format!("{file}\n{section}"));
    sandbox
}

/// What the call of a run answered.
async fn result(sandbox: &Sandbox, run: &Value) -> Value {
    let events = sandbox.events(&text(run, "/id")).await;
    events.iter().find(|event| event["kind"] == "tool_outcome").unwrap()["payload"]["result"].clone()
}

async fn line(sandbox: &Sandbox) -> Value {
    let tools = sandbox.leasehold(&["tools", "--json"]).await.exits(0).json();
    tools["items"].as_array().unwrap().iter().find(|line| line["name"] == "sql.shop").unwrap().clone()
}

async fn reader(more: &str) -> (Database, String) {
    let database = Cluster::shared(Version::V15).database().await;
    let role = format!("reader_{}", database.name());
    let make = format!(
        "CREATE TABLE orders (id int, total numeric); INSERT INTO orders VALUES (1, 12.5), (2, 7);
         CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}' {more}; GRANT SELECT ON orders TO {role}"
    );
    database.execute(&make).await.unwrap();
    (database, role)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_asks_a_file_and_the_store_itself_is_refused() {
    let sandbox = sandbox("[[tool.sql]]\nname = \"shop\"\nurl = \"sqlite:shop.db\"\ntables = [\"orders\"]\n").await;
    let line = line(&sandbox).await;
    assert_eq!(
        (&line["effect"], &line["source"], &line["agents"]),
        (&json!("read_only"), &json!("sql"), &json!(["clerk"])),
        "{line}"
    );
    let shown = sandbox.leasehold(&["config"]).await.exits(0).out;
    assert!(shown.contains("[[tool.sql]]") && shown.contains("max_rows = 200"), "{shown}");
    let run = sandbox.leasehold(&["run", "--json", "which?"]).await.exits(0).json();
    assert_eq!(result(&sandbox, &run).await, json!({ "columns": ["id"], "rows": [[1]], "truncated": false }));
    let file = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    sandbox.write("leasehold.toml", &file.replace("sqlite:shop.db", "sqlite:runs.db"));
    let said = sandbox.leasehold(&["tools", "--why"]).await.exits(0);
    assert!(said.out.contains("cannot run here") && said.out.contains("a store of leasehold's"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_asks_a_server_whose_url_is_in_the_environment() {
    let (database, role) = reader("").await;
    let sandbox = sandbox("[[tool.sql]]\nname = \"shop\"\nurl_env = \"SHOP_URL\"\n").await;
    // Who does not have the variable does not run what needs it.
    assert!(text(&line(&sandbox).await, "/problem").contains("SHOP_URL is not set"));
    let url =
        |password: &str| format!("postgres://{role}{password}@127.0.0.1:{}/{}", database.cluster().port(), database.name());
    let mut command = sandbox.command(&["run", "--json", "which?"]);
    command.env("SHOP_URL", url(&format!(":{PASSWORD}")));
    let run = said(command).await.exits(0).json();
    assert_eq!(result(&sandbox, &run).await["rows"], json!([[1]]));
    // The password of the environment is the store's.
    let mut command = sandbox.command(&["run", "--json", "which?"]);
    command.env("SHOP_URL", url("")).env("PGPASSWORD", PASSWORD);
    let run = said(command).await.exits(0).json();
    let why = result(&sandbox, &run).await;
    assert!(why.as_str().unwrap().contains("password missing"), "{why}");
    // Nowhere in the record or in what is shown.
    let bytes = std::fs::read(sandbox.path("runs.db")).unwrap();
    assert!(!String::from_utf8_lossy(&bytes).contains(PASSWORD));
    let mut command = sandbox.command(&["config"]);
    command.env("SHOP_URL", url(&format!(":{PASSWORD}")));
    let shown = said(command).await.exits(0).out;
    assert!(shown.contains("SHOP_URL") && !shown.contains(PASSWORD), "{shown}");
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_that_is_too_powerful_is_not_offered_and_tools_says_why() {
    let (database, role) = reader("IN ROLE pg_read_server_files").await;
    let url = format!("postgres://{role}:{PASSWORD}@127.0.0.1:{}/{}", database.cluster().port(), database.name());
    let sandbox = sandbox(&format!("[[tool.sql]]\nname = \"shop\"\nurl = \"{url}\"\n")).await;
    let line = line(&sandbox).await;
    assert_eq!((&line["source"], &line["agents"]), (&json!("sql"), &json!([])), "{line}");
    let why = text(&line, "/problem");
    assert!(why.contains("leasehold.toml:") && why.contains("pg_read_server_files") && !why.contains(PASSWORD), "{why}");
    let run = sandbox.leasehold(&["run", "--json", "which?"]).await.exits(0).json();
    assert!(result(&sandbox, &run).await.as_str().unwrap().contains("sql.shop"), "{run}");
    database.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_section_is_said_with_its_line() {
    for (section, key, words) in [
        ("[[tool.sql]]\nname = \"shop\"\n", "[[tool.sql]]", "where the database is"),
        ("[[tool.sql]]\nname = \"shop\"\nurl = \"mysql://u:hunter2@h/d\"\n", "url = \"mysql", "postgres://"),
        (
            "[[tool.sql]]\nname = \"shop\"\nurl_env = \"postgres://u:hunter2@h/d\"\n",
            "url_env",
            "not the name of an environment",
        ),
        ("[[tool.sql]]\nname = \"shop\"\nurl = \"sqlite:a.db\"\nmax_rows = 0\n", "max_rows", "from 1 to"),
        (
            "[[tool.sql]]\nname = \"shop\"\nurl = \"sqlite:a.db\"\n[[tool.sql]]\nname = \"shop\" # again\nurl = \"sqlite:b.db\"\n",
            "name = \"shop\" # again",
            "two databases",
        ),
        (
            "[[tool.sql]]\nname = \"shop\"\nurl = \"sqlite:a.db\"\n[[mcp]]\nname = \"sql\"\ncommand = [\"x\"]\n",
            "name = \"sql\"",
            "two sources",
        ),
    ] {
        let sandbox = sandbox(section).await;
        let file = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
        let line = file.lines().position(|line| line.starts_with(key)).unwrap() + 1;
        let said = sandbox.leasehold(&["tools"]).await.exits(2);
        assert!(
            said.err.contains(&format!("leasehold.toml:{line}: ")) && said.err.contains(words),
            "{line} {section} {said:?}"
        );
        assert!(!said.err.contains("hunter2"), "{said:?}");
    }
}
