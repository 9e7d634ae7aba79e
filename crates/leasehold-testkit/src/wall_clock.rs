//! Wall clocks that are wrong: a process under `libfaketime`, whose wall clock a test sets while it runs. Its boot-time and monotonic
//! clocks stay true. What is missing is fetched from the Debian archive into the target directory.
#![allow(clippy::panic, reason = "test support: a clock that cannot be had fails its test with the reason")]

use crate::postgres::{run, target};
use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

/// The wall clock of one process, or of a server and its children.
#[derive(Debug)]
pub struct WallClock {
    directory: tempfile::TempDir,
}

fn check<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

const LIBRARY: &str = "libfaketimeMT.so.1";
const SETTING: &str = "wrong-by";

impl WallClock {
    /// A clock that is wrong by so many seconds. Blocks where the library is fetched first.
    ///
    /// # Panics
    /// There is no `libfaketime` and it cannot be fetched.
    pub fn wrong_by(seconds: i64) -> Self {
        let library = check("a wall clock of its own", library());
        forget_the_dead();
        // A server that runs as another user reads it too.
        let directory = check("a temporary directory", tempfile::tempdir());
        let open = std::fs::Permissions::from_mode(0o755);
        check("its permissions", std::fs::set_permissions(directory.path(), open));
        check("libfaketime", std::fs::copy(library, directory.path().join(LIBRARY)));
        let clock = Self { directory };
        clock.set(seconds);
        clock
    }

    /// Steps it: wrong by so many seconds from now on.
    ///
    /// # Panics
    /// The setting cannot be written.
    pub fn set(&self, seconds: i64) {
        let (new, setting) = (self.directory.path().join("new"), self.directory.path().join(SETTING));
        check("the setting", std::fs::write(&new, format!("{seconds:+}\n")));
        check("the setting", std::fs::rename(new, setting));
    }

    /// What a process needs in its environment to go by this clock.
    pub fn environment(&self) -> Vec<(String, String)> {
        let path = |name: &str| self.directory.path().join(name).display().to_string();
        [
            ("LD_PRELOAD", path(LIBRARY)),
            ("FAKETIME_TIMESTAMP_FILE", path(SETTING)),
            ("FAKETIME_NO_CACHE", "1".into()),
            // The name of this setting differs from version to version.
            ("DONT_FAKE_MONOTONIC", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

impl Drop for WallClock {
    fn drop(&mut self) {
        forget_the_dead();
    }
}

/// A process that is killed leaves what the library shares between it and its children, under its own id: the next process of that
/// id could not start.
fn forget_the_dead() {
    let Ok(shared) = std::fs::read_dir("/dev/shm") else { return };
    for entry in shared.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|n| n.contains("faketime_")) else { continue };
        let id = name.rsplit('_').next().and_then(|id| id.parse::<u32>().ok());
        if id.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists()) {
            // Another user's, or gone already: not ours to remove.
            std::fs::remove_file(entry.path()).ok();
        }
    }
}

/// The library: the system's, or the one that was fetched.
fn library() -> Result<PathBuf, String> {
    let fetched = target().join("libfaketime");
    let found = || ["/usr/lib".into(), fetched.join("usr/lib")].iter().find_map(|root: &PathBuf| in_libraries(root));
    if let Some(library) = found() {
        return Ok(library);
    }
    std::fs::create_dir_all(&fetched).map_err(|e| format!("{}: {e}", fetched.display()))?;
    let lock = std::fs::File::create(target().join("libfaketime.lock")).map_err(|e| e.to_string())?;
    lock.lock().map_err(|e| e.to_string())?;
    if found().is_none() {
        fetch(&fetched)
            .map_err(|e| format!("libfaketime is missing: install it (Debian: apt-get install libfaketime) ({e})"))?;
    }
    found().ok_or_else(|| format!("the package libfaketime has no {LIBRARY}"))
}

/// `<root>/<architecture>/faketime/<library>`.
fn in_libraries(root: &Path) -> Option<PathBuf> {
    let architectures = std::fs::read_dir(root).ok()?;
    architectures.flatten().map(|a| a.path().join("faketime").join(LIBRARY)).find(|library| library.exists())
}

/// Neither step needs root; only a machine that never listed its packages does.
fn fetch(into: &Path) -> Result<(), String> {
    let place = into.display().to_string();
    let script = format!("cd '{place}' && rm -f ./*.deb && apt-get -qq download libfaketime && dpkg -x ./libfaketime_*.deb .");
    let download = || run("sh", &["-c", &script]);
    download().or_else(|_| run("apt-get", &["update", "-qq"]).and_then(|()| download()))
}
