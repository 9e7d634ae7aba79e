//! Opening the file: what it may be, in which mode it is used, and how its schema comes to be this version's.
//!
//! Two processes that open a new file at the same moment must both succeed, and the migration runner takes no lock of its own.
//! So whoever finds the schema behind takes an advisory lock on the **directory** (a lock on the file itself would, when let go,
//! drop SQLite's own locks of this process) and looks again. The migrations run as one transaction, so a process that dies amid
//! them leaves nothing, and one that lost a race sees a whole schema.

use super::busy;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags};
use std::{
    fs::{File, TryLockError},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

mod embedded {
    #![allow(missing_docs, unreachable_pub, reason = "the macro writes public items without documents")]
    refinery::embed_migrations!("src/store/sqlite/migrations");
}

/// The shortest database has one page of the smallest size.
const PAGE_BYTES_MIN: u64 = 512;

/// Why a file cannot be used as a store, and what helps.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no such directory.
    #[error("cannot create {}: the directory {} does not exist; create it, or name another path", path.display(), directory.display())]
    DirectoryMissing {
        /// The database file.
        path: PathBuf,
        /// Its directory.
        directory: PathBuf,
    },
    /// The path is a directory or a device.
    #[error("{} is not a file; name a database file, for example {}", path.display(), path.join("leasehold.db").display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
    },
    /// The file or its directory cannot be opened for writing.
    #[error("{} cannot be opened for writing ({why}); this process needs to read and write the file and its directory", path.display())]
    NotWritable {
        /// The database file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
    /// The file is something else.
    #[error("{} is not a leasehold database ({why}); name another path, or move the file away", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
        /// What it is.
        why: String,
    },
    /// A newer version has used the file.
    #[error("{} has schema version {found}, this binary knows up to {known}; use a newer leasehold", path.display())]
    NewerSchema {
        /// The database file.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version that this binary knows.
        known: i64,
    },
    /// The schema cannot be brought to this version.
    #[error("the schema of {} cannot be brought to this version: {why}; restore the file from a backup", path.display())]
    Migration {
        /// The database file.
        path: PathBuf,
        /// What the migration runner said.
        why: String,
    },
    /// The write-ahead log does not work there.
    #[error("{} is on a file system without shared memory (journal mode stayed {mode}); put it on a local disk", path.display())]
    NoWriteAheadLog {
        /// The database file.
        path: PathBuf,
        /// The mode that SQLite fell back to.
        mode: String,
    },
    /// Another process keeps the file.
    #[error("{} was busy for {} s; another process keeps it locked", path.display(), busy::PATIENCE.as_secs())]
    Busy {
        /// The database file.
        path: PathBuf,
    },
    /// The system failed.
    #[error("{} cannot be used: {why}", path.display())]
    Failed {
        /// The database file.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
}

/// The newest schema version of this binary.
fn known_version() -> i64 {
    embedded::migrations::runner().get_migrations().iter().map(|m| i64::from(m.version())).max().unwrap_or(0)
}

/// A connection in the mode that every part of the store relies on: it waits for others, and a commit is on the disk when it returns.
pub(super) fn connect(path: &Path, create: bool) -> rusqlite::Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if create {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let mut connection = Connection::open_with_flags(path, flags)?;
    busy::wait_on(&mut connection)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // The log is cut back after a checkpoint, so that one burst does not keep the disk for good.
    connection.pragma_update_and_check(None, "journal_size_limit", 64 * 1024 * 1024, |_| Ok(()))?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Makes the file usable and gives a connection to it.
pub(super) fn prepare(path: &Path) -> Result<Connection, OpenError> {
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.is_dir() {
        return Err(OpenError::DirectoryMissing { path: path.into(), directory: directory.into() });
    }
    if let Ok(found) = path.metadata() {
        if !found.is_file() {
            return Err(OpenError::NotAFile { path: path.into() });
        }
        // SQLite takes a file that is too short to be a database for an empty one, and would write over it.
        if (1..PAGE_BYTES_MIN).contains(&found.len()) {
            return Err(OpenError::NotADatabase { path: path.into(), why: "it is too short to be one".into() });
        }
    }
    let fail = |e| explain(path, &e);
    let mut connection = busy::patiently(|| connect(path, true)).map_err(fail)?;
    if connection.is_readonly(MAIN_DB).map_err(fail)? {
        return Err(OpenError::NotWritable { path: path.into(), why: "it is read-only".into() });
    }
    if !is_ready(&mut connection, path)? {
        let _lock = lock_directory(directory, path)?;
        if !is_ready(&mut connection, path)? {
            set_log_mode(&connection, path)?;
            migrate(&mut connection, path)?;
        }
    }
    Ok(connection)
}

/// The schema is this version's and the log mode is set. An error where it is another program's or a newer version's.
fn is_ready(connection: &mut Connection, path: &Path) -> Result<bool, OpenError> {
    let fail = |e| explain(path, &e);
    let tables = busy::patiently(|| {
        connection.query_row(
            "SELECT count(*), count(*) FILTER (WHERE name = 'refinery_schema_history') FROM sqlite_schema",
            [],
            |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)),
        )
    });
    let (all, history) = tables.map_err(fail)?;
    if history == 0 {
        return if all == 0 {
            Ok(false)
        } else {
            Err(OpenError::NotADatabase { path: path.into(), why: "it holds another program's tables".into() })
        };
    }
    let newest = busy::patiently(|| {
        connection.query_row("SELECT max(version) FROM refinery_schema_history", [], |row| row.get::<_, Option<i64>>(0))
    });
    let (found, known) = (newest.map_err(fail)?.unwrap_or(0), known_version());
    if found > known {
        return Err(OpenError::NewerSchema { path: path.into(), found, known });
    }
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(fail)?;
    Ok(found == known && mode == "wal")
}

fn set_log_mode(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let mode: String = busy::patiently(|| connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0)))
        .map_err(|e| explain(path, &e))?;
    if mode == "wal" { Ok(()) } else { Err(OpenError::NoWriteAheadLog { path: path.into(), mode }) }
}

/// Under the directory's lock. All migrations are one transaction; a busy file begins them again.
fn migrate(connection: &mut Connection, path: &Path) -> Result<(), OpenError> {
    let deadline = Instant::now() + busy::PATIENCE;
    loop {
        let Err(error) = embedded::migrations::runner().set_grouped(true).run(connection) else { return Ok(()) };
        let sqlite = std::error::Error::source(error.kind()).and_then(|s| s.downcast_ref::<rusqlite::Error>());
        let busy = sqlite.is_some_and(busy::is_busy);
        if !busy || Instant::now() >= deadline {
            let why = sqlite.map_or_else(|| error.to_string(), ToString::to_string);
            return Err(OpenError::Migration { path: path.into(), why });
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Held until the value is dropped, also by death.
fn lock_directory(directory: &Path, path: &Path) -> Result<File, OpenError> {
    let fail = |e: std::io::Error| OpenError::NotWritable { path: path.into(), why: e.to_string() };
    let file = File::open(directory).map_err(fail)?;
    let deadline = Instant::now() + busy::PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => return Err(OpenError::Busy { path: path.into() }),
            Err(TryLockError::Error(e)) => return Err(fail(e)),
        }
    }
}

fn explain(path: &Path, error: &rusqlite::Error) -> OpenError {
    let path = path.to_path_buf();
    let why = error.to_string();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => OpenError::NotADatabase { path, why: "SQLite cannot read it".into() },
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => OpenError::NotWritable { path, why },
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => OpenError::Busy { path },
        _ => OpenError::Failed { path, why },
    }
}
