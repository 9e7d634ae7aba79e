//! The store contract, on PostgreSQL: the same suite, on the oldest and the newest version that is tested.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    clock::ManualClock,
    store::{Store, postgres::PostgresStore},
};
use leasehold_testkit::{
    conformance::{self, Subject},
    postgres::{Cluster, Database, Version},
};
use std::sync::Arc;

struct Postgres {
    store: Arc<PostgresStore>,
    clock: Arc<ManualClock>,
    database: Database,
    more: &'static str,
}

impl Postgres {
    async fn new(version: Version, more: &'static str) -> Self {
        let database = Cluster::shared(version).database().await;
        let clock = ManualClock::new();
        let store = PostgresStore::connect_with_clock(&format!("{}{more}", database.url()), clock.clone()).await.unwrap();
        Self { store, clock, database, more }
    }
}

#[async_trait::async_trait]
impl Subject for Postgres {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
    fn clock(&self) -> Arc<ManualClock> {
        self.clock.clone()
    }
    async fn reopen(&self) -> Arc<dyn Store> {
        let url = format!("{}{}", self.database.url(), self.more);
        PostgresStore::connect_with_clock(&url, self.clock.clone()).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgresql_15_keeps_the_contract() {
    conformance::run(async || Box::new(Postgres::new(Version::V15, "").await) as Box<dyn Subject>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgresql_18_keeps_the_contract() {
    conformance::run(async || Box::new(Postgres::new(Version::V18, "").await) as Box<dyn Subject>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_prepared_statements_it_keeps_the_contract() {
    conformance::run(async || Box::new(Postgres::new(Version::V15, "?statement_cache=off").await) as Box<dyn Subject>).await;
}
