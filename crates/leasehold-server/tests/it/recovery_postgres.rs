//! Recovery between real processes, on PostgreSQL: a worker, a sweep and an approver, each a process with a directory of its own.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::run::RunId;
use leasehold_testkit::{
    home::Home,
    postgres::{Cluster, Version},
};
use std::sync::Arc;

#[allow(clippy::duplicate_mod, reason = "the same scenes on the other store")]
#[path = "recovery_scenes/mod.rs"]
mod recovery_scenes;

/// A home, and a second directory on the same database.
pub(crate) struct Stage {
    pub(crate) home: Home,
    cluster: Arc<Cluster>,
    database: String,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let cluster = tokio::task::spawn_blocking(|| Cluster::shared(Version::V15)).await.expect("a server");
        let database = cluster.database().await;
        let name = database.name().to_owned();
        Self { home: Home::on_database(env!("CARGO_BIN_EXE_leasehold"), database), cluster, database: name }
    }

    /// Another directory with the same configuration.
    pub(crate) fn elsewhere(&self) -> Home {
        let there = Home::new(env!("CARGO_BIN_EXE_leasehold"));
        for name in ["leasehold.toml", "script.toml"] {
            there.write(name, &std::fs::read_to_string(self.home.path().join(name)).expect("is there"));
        }
        there
    }

    /// A newer version may write what this one's constraints forbid.
    pub(crate) async fn without_constraints(&self) {
        let drop = "DO $$ DECLARE name text; BEGIN
            FOR name IN SELECT conname FROM pg_constraint WHERE conrelid = 'runs'::regclass AND contype = 'c' LOOP
                EXECUTE format('ALTER TABLE runs DROP CONSTRAINT %I', name);
            END LOOP; END $$";
        self.cluster.execute(&self.database, drop).await.expect("dropped");
    }

    /// Changes one row behind the program's back.
    pub(crate) async fn damage(&self, statement: &str, run: RunId) {
        let statement = statement.replace("BYTES", "'\\x01ff'::bytea").replace("RUN", &run.to_string());
        let client = self.cluster.client(&self.database).await.expect("connects");
        assert_eq!(client.execute(&statement, &[]).await.expect("changed"), 1, "{statement}");
    }
}
