//! Real processes on PostgreSQL, killed at the worst moments: the same scenes. And what the command says of a database.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold_testkit::{
    home::Home,
    postgres::{Cluster, Version},
};

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
