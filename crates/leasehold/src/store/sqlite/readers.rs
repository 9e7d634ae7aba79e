//! A few connections that read, each on a blocking thread while it does. Readers of a write-ahead log neither wait for the writer
//! nor keep it waiting; each read is one statement and so sees one commit.

use super::{busy::patiently, open};
use crate::store::Unavailable;
use rusqlite::Connection;
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
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
    path: PathBuf,
    places: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

impl Readers {
    /// None is opened yet.
    pub(super) fn new(path: PathBuf) -> Self {
        let shared = Shared { path, places: Semaphore::new(READERS_MAX), idle: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Runs one read, again while the file is busy.
    pub(super) async fn read<T, F>(&self, work: F) -> Result<T, Unavailable>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        let place = shared.path.display().to_string();
        let Ok(_permit) = self.shared.places.acquire().await else {
            return Err(Unavailable(format!("{place}: the store is closed")));
        };
        match task::spawn_blocking(move || shared.run(&work)).await {
            Ok(result) => result.map_err(|e| Unavailable(format!("{place}: {e}"))),
            Err(e) => Err(Unavailable(format!("{place}: the read did not finish: {e}"))),
        }
    }
}

impl Shared {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        // A push or a pop is whole or not begun.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run<T>(&self, work: &impl Fn(&Connection) -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        let idle = self.idle().pop();
        let connection = match idle {
            Some(connection) => connection,
            None => patiently(|| {
                let connection = open::connect(&self.path, false)?;
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
