//! A few connections that read, each on a blocking thread while it does. Readers of a write-ahead log neither wait for the writer
//! nor keep it waiting; each read is one statement and so sees one commit.

use super::{busy::patiently, open, place::Place};
use crate::store::Unavailable;
use rusqlite::Connection;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::{sync::Semaphore, task};

/// Reads side by side; further ones wait for a place.
const READERS_MAX: usize = 4;

/// The connections.
#[derive(Clone, Debug)]
pub(super) struct Readers {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Arc<Place>,
    places: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    /// None is opened yet.
    pub(super) fn new(file: Arc<Place>) -> Self {
        let shared = Shared { file, places: Semaphore::new(READERS_MAX), idle: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs one read, again while the file is busy.
    pub(super) async fn read<T, F>(&self, work: F) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let Ok(_permit) = self.shared.places.acquire().await else {
            return Err(Unavailable(format!("{}: the store is closed", self.shared.file)));
        };
        match task::spawn_blocking(move || shared.run(&work)).await {
            Ok(result) => result,
            Err(e) => Err(Unavailable(format!("{}: the read did not finish: {e}", self.shared.file))),
        }
    }
}

impl Shared {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // A push or a pop is whole or not begun.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run<T>(&self, work: &impl Fn(&Connection) -> rusqlite::Result<T>) -> Result<T, Unavailable> {
        self.file.check()?;
        self.read_once(work).map_err(|e| self.file.unavailable(&e))
    }

    fn read_once<T>(&self, work: &impl Fn(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => patiently(|| {
                let connection = open::connect(self.file.path(), false)?;
                connection.pragma_update(None, "query_only", true)?;
                Ok(connection)
            })?,
        };
        let result = patiently(|| work(&connection))?;
        // A connection whose read failed is not used again.
        self.idle().push(connection);
        Ok(result)
    }
}
