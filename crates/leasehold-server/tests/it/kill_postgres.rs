//! Real processes on PostgreSQL, killed at the worst moments: the same scenes. And what the command says of a database.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold_testkit::{
    far_side::FarSide,
    home::{APPEND_ONCE, Home, Ledger},
    postgres::{Cluster, Extra, Version},
};

#[allow(clippy::duplicate_mod, reason = "the same scenes on the other store")]
#[path = "kill_scenes/mod.rs"]
mod kill_scenes;

async fn home() -> Home {
    let cluster = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.unwrap();
    Home::on_database(env!("CARGO_BIN_EXE_leasehold"), cluster.database().await)
}

#[tokio::test]
async fn migrate_makes_a_database_ready_and_names_it_without_a_password() {
    let home = home().await;
    let url = home.store_url().replace("leasehold@", "leasehold:hunter2@");
    home.write("leasehold.toml", &format!("[store]\nurl = \"{url}\"\n"));
    for _ in 0..2 {
        let ran = home.run(&["migrate"]).await;
        assert_eq!(ran.code(), 0, "{ran}");
        assert!(ran.stdout().contains(&format!("{} is ready for this version", home.store_url())), "{ran}");
        assert!(!ran.to_string().contains("hunter2"), "{ran}");
    }
    let ran = home.run(&["config"]).await;
    assert!(ran.stdout().contains(&home.store_url()) && !ran.to_string().contains("hunter2"), "{ran}");
}

#[tokio::test]
async fn a_database_that_cannot_be_used_is_named_with_what_helps() {
    let home = home().await;
    let (server, _) = home.store_url().rsplit_once('/').map(|(server, name)| (server.to_owned(), name.to_owned())).unwrap();
    let url = format!("{}/nowhere", server.replace("leasehold@", "leasehold:hunter2@"));
    home.write("leasehold.toml", &format!("[store]\nurl = \"{url}\"\n"));
    let ran = home.run(&["runs", "list"]).await;
    assert_eq!(ran.code(), 2, "{ran}");
    assert!(ran.stderr().contains("createdb") && ran.stderr().contains("/nowhere"), "{ran}");
    assert!(!ran.to_string().contains("hunter2"), "{ran}");
}

const NONE: Ledger<'_> = Ledger { effect: "non_idempotent_write", approval: "none", timeout: "4s" };

#[tokio::test]
async fn what_the_server_refuses_is_said_to_be_refused_and_a_worker_that_is_refused_does_not_end_with_zero() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.unwrap();
    let database = cluster.database().await;
    let (name, reader) = (database.name().to_owned(), format!("reader_{}", database.name()));
    let home = Home::on_database(env!("CARGO_BIN_EXE_leasehold"), database);
    let far = FarSide::start().await.unwrap();
    home.ledger(&far, Ledger { approval: "required", ..NONE }, APPEND_ONCE);
    let waits = home.enqueue().await;
    assert_eq!(home.run(&["worker", "--once"]).await.code(), 0);
    let digest = home.row(waits).await.turn.unwrap().digest.unwrap();
    let queued = home.enqueue().await;
    let role =
        format!("CREATE ROLE {reader} LOGIN PASSWORD 'read only'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}");
    cluster.execute(&name, &role).await.unwrap();
    let config = std::fs::read_to_string(home.path().join("leasehold.toml")).unwrap();
    home.write("leasehold.toml", &config.replace("//leasehold@", &format!("//{reader}@")));
    let password = [("PGPASSWORD", "read only")];
    let waits = waits.to_string();
    for order in [
        vec!["run", "--queue", "append a line"],
        vec!["approve", &waits, "--digest", &digest],
        vec!["approve", &waits, "--digest", &digest, "--no-wait"],
        vec!["runs", "cancel", &waits],
    ] {
        let before = std::time::Instant::now();
        let ran = home.run_with(&order, &password).await;
        assert_eq!((ran.code(), ran.stdout().as_str()), (1, ""), "{order:?}: {ran}");
        let said = ran.stderr();
        assert!(said.contains("permission denied") && said.contains("nothing has changed"), "{order:?}: {ran}");
        assert!(!said.contains("may have been") && !said.contains("may or may not"), "{order:?}: {ran}");
        assert!(before.elapsed() < std::time::Duration::from_secs(20), "it is not asked again for half a minute");
    }
    for drain in [vec!["worker", "--once"], vec!["worker", "--once", &queued.to_string()]] {
        let ran = home.run_with(&drain, &password).await;
        assert_eq!(ran.code(), 1, "{drain:?}: {ran}");
        assert!(ran.stderr().contains("permission denied"), "{drain:?}: {ran}");
    }
    assert_eq!(far.arrived().len(), 0);
    cluster.execute(&name, &format!("DROP OWNED BY {reader}; DROP ROLE {reader}")).await.unwrap();
}

#[tokio::test]
async fn a_drain_whose_server_goes_away_does_not_end_with_zero() {
    let cluster = tokio::task::spawn_blocking(|| Cluster::own(Version::V15, Extra::default())).await.unwrap();
    let home = Home::on_database(env!("CARGO_BIN_EXE_leasehold"), cluster.database().await);
    let far = FarSide::start().await.unwrap();
    home.ledger(&far, NONE, APPEND_ONCE);
    home.enqueue().await;
    let mut worker = home.start_heard(&["worker", "--once"], &[], Some("after_return"));
    worker.stopped().await;
    let stopping = std::sync::Arc::clone(&cluster);
    tokio::task::spawn_blocking(move || stopping.stop_immediate()).await.unwrap();
    worker.go_on();
    let ran = worker.said().await;
    assert_eq!((ran.code(), far.arrived().len()), (1, 1), "{ran}");
    assert!(ran.stderr().contains("may not be on record"), "{ran}");
}
