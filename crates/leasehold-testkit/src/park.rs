//! Where a test holds a process still, and the places it works in.

use crate::{
    postgres::{Cluster, Database, Version},
    world::Inside,
};
use async_trait::async_trait;
use leasehold::{
    Execution,
    agent::tool::{Arguments, WriteAnswer, WritePermit},
    clock::ManualClock,
    run::{CallId, RunId},
    store::{Store, memory::MemoryStore, postgres::PostgresStore, sqlite::SqliteStore},
    worker::{Point, Probe},
};
use std::sync::Arc;
use tokio::sync::watch;

/// A place that holds whoever comes by until it is released: inside a tool, or at a point of a segment.
#[derive(Debug)]
pub struct Park {
    point: Option<Point>,
    at_visit: u64,
    visits: watch::Sender<u64>,
    released: watch::Sender<bool>,
}

impl Park {
    /// Holds at this point; also as an [`Inside`], which holds in the tool.
    pub fn at(point: Point) -> Arc<Self> {
        Self::at_visit(point, 1)
    }
    /// Lets those before this visit of the point pass.
    pub fn at_visit(point: Point, visit: u64) -> Arc<Self> {
        Arc::new(Self {
            point: Some(point),
            at_visit: visit,
            visits: watch::Sender::new(0),
            released: watch::Sender::new(false),
        })
    }
    /// Holds whoever is in a tool.
    pub fn in_tool() -> Arc<Self> {
        Arc::new(Self { point: None, at_visit: 1, visits: watch::Sender::new(0), released: watch::Sender::new(false) })
    }
    /// Waits until somebody is held.
    pub async fn reached(&self) {
        // An error would mean that the sender is gone; it lives in self.
        self.visits.subscribe().wait_for(|n| *n >= self.at_visit).await.ok();
    }
    /// Lets go of all, now and from now on.
    pub fn release(&self) {
        self.released.send_replace(true);
    }
    /// Executes until somebody is held here, and then drops the segment where it is, as if its process had died.
    pub async fn kill(&self, execution: Execution) -> RunId {
        let id = execution.run();
        let segment = tokio::spawn(execution.finish());
        self.reached().await;
        segment.abort();
        // That it was aborted is what was asked for.
        segment.await.ok();
        id
    }
    async fn hold(&self) {
        let mut visit = 0;
        self.visits.send_modify(|n| {
            *n += 1;
            visit = *n;
        });
        if visit >= self.at_visit {
            self.released.subscribe().wait_for(|released| *released).await.ok();
        }
    }
}

#[async_trait]
impl Probe for Park {
    async fn at(&self, point: Point, _: RunId, _: Option<&CallId>) {
        if Some(point) == self.point {
            self.hold().await;
        }
    }
}

#[async_trait]
impl Inside for Park {
    async fn inside(&self, _: &WritePermit, _: &Arguments) -> Option<WriteAnswer> {
        self.hold().await;
        None
    }
}

/// A store of a kind, and the clocks it runs on.
pub struct Place {
    /// The kind, for messages.
    pub name: &'static str,
    /// The store.
    pub store: Arc<dyn Store>,
    /// The clocks.
    pub clock: Arc<ManualClock>,
    /// The database file, where it has one.
    pub file: Option<std::path::PathBuf>,
    /// The database, where it has one.
    pub database: Option<Database>,
    _directory: Option<tempfile::TempDir>,
}

impl Place {
    /// In memory.
    pub fn memory() -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::new(Arc::clone(&clock) as _);
        Self { name: "memory", store, clock, file: None, database: None, _directory: None }
    }
    /// In a file that goes with it.
    ///
    /// # Panics
    /// There is no place for a file.
    pub fn sqlite() -> Self {
        let clock = ManualClock::new();
        let made = tempfile::tempdir().map(|directory| {
            let file = directory.path().join("leasehold.db");
            (SqliteStore::open(&file, Arc::clone(&clock) as _), file, directory)
        });
        match made {
            Ok((Ok(store), file, directory)) => {
                Self { name: "sqlite", store, clock, file: Some(file), database: None, _directory: Some(directory) }
            }
            Ok((Err(error), ..)) => panic!("the test's store does not open: {error}"),
            Err(error) => panic!("no directory for the test's store: {error}"),
        }
    }
    /// In a database of its own, whose leases run on the test's clock.
    ///
    /// # Panics
    /// There is no PostgreSQL.
    pub async fn postgres() -> Self {
        let database = Cluster::shared(Version::V15).database().await;
        let clock = ManualClock::new();
        match PostgresStore::connect_with_clock(&database.url(), Arc::clone(&clock) as _).await {
            Ok(store) => Self { name: "postgres", store, clock, file: None, database: Some(database), _directory: None },
            Err(error) => panic!("the test's database does not open: {error}"),
        }
    }
    /// One of each kind that needs no server.
    pub fn each() -> [Self; 2] {
        [Self::memory(), Self::sqlite()]
    }
}
