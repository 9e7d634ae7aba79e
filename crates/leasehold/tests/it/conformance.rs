//! The store contract, on every store.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    clock::ManualClock,
    store::{Store, memory::MemoryStore, sqlite::SqliteStore},
};
use leasehold_testkit::{
    FaultyStore,
    conformance::{self, Subject},
};
use std::sync::Arc;

struct Memory {
    store: Arc<MemoryStore>,
    clock: Arc<ManualClock>,
}

#[async_trait::async_trait]
impl Subject for Memory {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
    fn clock(&self) -> Arc<ManualClock> {
        self.clock.clone()
    }
    async fn reopen(&self) -> Arc<dyn Store> {
        self.store.reopen()
    }
}

struct Sqlite {
    store: Arc<SqliteStore>,
    clock: Arc<ManualClock>,
    directory: tempfile::TempDir,
}

impl Sqlite {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let clock = ManualClock::new();
        let store = SqliteStore::open(directory.path().join("runs.db"), clock.clone()).unwrap();
        Self { store, clock, directory }
    }
}

#[async_trait::async_trait]
impl Subject for Sqlite {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }
    fn clock(&self) -> Arc<ManualClock> {
        self.clock.clone()
    }
    async fn reopen(&self) -> Arc<dyn Store> {
        SqliteStore::open(self.directory.path().join("runs.db"), self.clock.clone()).unwrap()
    }
}

struct Wrapped(Sqlite);

#[async_trait::async_trait]
impl Subject for Wrapped {
    fn store(&self) -> Arc<dyn Store> {
        FaultyStore::new(self.0.store())
    }
    fn clock(&self) -> Arc<ManualClock> {
        self.0.clock()
    }
    async fn reopen(&self) -> Arc<dyn Store> {
        FaultyStore::new(self.0.reopen().await)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_memory_store_keeps_the_contract() {
    conformance::run(async || {
        let clock = ManualClock::new();
        Box::new(Memory { store: MemoryStore::new(clock.clone()), clock }) as Box<dyn Subject>
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_sqlite_store_keeps_the_contract() {
    conformance::run(async || Box::new(Sqlite::new()) as Box<dyn Subject>).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_faulty_store_without_a_fault_keeps_the_contract() {
    conformance::run(async || Box::new(Wrapped(Sqlite::new())) as Box<dyn Subject>).await;
}
