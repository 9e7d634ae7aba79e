//! PostgreSQL does not run as root: where the tests do, its programs run as another user of the machine.

use std::{os::unix::process::CommandExt as _, path::Path, process::Command};

/// Who a program runs as.
#[derive(Clone, Copy, Debug)]
pub(super) struct User {
    uid: u32,
    gid: u32,
}

pub(crate) fn current_is_root() -> bool {
    // The owner of this process's own entry is its effective user.
    std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0)
}

impl User {
    /// Another user than root, where this is root.
    pub(super) fn needed() -> Result<Option<Self>, String> {
        if !current_is_root() {
            return Ok(None);
        }
        let users = std::fs::read_to_string("/etc/passwd").map_err(|e| format!("/etc/passwd: {e}"))?;
        let find = |name: &str| {
            let line = users.lines().find(|l| l.split(':').next() == Some(name))?;
            let mut fields = line.split(':').skip(2);
            Some(Self { uid: fields.next()?.parse().ok()?, gid: fields.next()?.parse().ok()? })
        };
        find("postgres")
            .or_else(|| find("nobody"))
            .map(Some)
            .ok_or_else(|| "there is neither a user postgres nor nobody".into())
    }

    /// Makes the command run as this user.
    pub(super) fn of(user: Option<Self>, command: &mut Command) {
        if let Some(Self { uid, gid }) = user {
            command.uid(uid).gid(gid);
        }
    }

    /// Gives a file or directory to this user.
    pub(super) fn own(user: Option<Self>, path: &Path) -> Result<(), String> {
        match user {
            None => Ok(()),
            Some(Self { uid, gid }) => {
                std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(|e| format!("{}: {e}", path.display()))
            }
        }
    }
}
