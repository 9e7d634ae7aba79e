//! The file that was opened, as opposed to the name it has. A file that is deleted or replaced while it is open goes on taking
//! commits which nobody will find again, and whoever opens the name next works on another record: so it takes none.

use super::busy;
use crate::store::Unavailable;
use std::{
    fmt, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// See the module.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    /// Of a file that is open.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let found = path.metadata()?;
        Ok(Self { path: path.into(), device: found.dev(), inode: found.ino() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The name still leads to the file that was opened. A system that does not say is no reason to stop.
    pub(super) fn check(&self) -> Result<(), Unavailable> {
        let what = match self.path.metadata() {
            Ok(found) if (found.dev(), found.ino()) == (self.device, self.inode) => return Ok(()),
            Ok(_) => "replaced",
            Err(error) if error.kind() == io::ErrorKind::NotFound => "deleted or moved away",
            Err(_) => return Ok(()),
        };
        Err(Unavailable(format!(
            "{self} was {what} while this process had it open; nothing is recorded any more: end this process"
        )))
    }

    /// No answer, because SQLite gave none.
    pub(super) fn unavailable(&self, error: &rusqlite::Error) -> Unavailable {
        if busy::is_busy(error) {
            Unavailable(format!("{self} was busy for {} s: another process keeps it locked", busy::PATIENCE.as_secs()))
        } else {
            Unavailable(format!("{self}: {error}"))
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}
