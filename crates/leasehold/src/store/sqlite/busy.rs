//! Waiting for the file. Several processes share one file, and the one that writes keeps the others out for a moment: that is
//! waited for here and never surfaces as an error, until a bound beyond which something is wrong with the machine.
//!
//! SQLite's own waiting (the busy handler) covers most cases and has a weakness: it gives up at once where waiting cannot help
//! the statement (a snapshot that became old, a log that is being recovered). Those are repeated from the beginning of the transaction.

use rusqlite::{Connection, Error, ErrorCode};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Longer than this a caller does not wait for other writers; then: no answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks at a busy file. Short, because it is what a renewal waits behind another process's commit.
const PAUSE: Duration = Duration::from_millis(2);
/// Looks of one statement before the whole transaction is begun again.
const LOOKS_MAX: i32 = 2_000;

/// Somebody else has the file; the same again later is worth it.
pub(super) fn is_busy(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Makes every statement of this connection wait.
pub(super) fn wait_on(connection: &mut Connection) -> rusqlite::Result<()> {
    connection.busy_handler(Some(|looks: i32| {
        thread::sleep(PAUSE);
        looks < LOOKS_MAX
    }))
}

/// Repeats `work`, which must be a whole transaction or a single statement, while the file is busy.
pub(super) fn patiently<T>(mut work: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match work() {
            Err(e) if is_busy(&e) && Instant::now() < deadline => thread::sleep(PAUSE),
            other => return other,
        }
    }
}
