//! A browser for tests of pages: the Chromium of this machine.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// Where Debian and others have it.
const PLACES: [&str; 3] = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

fn found() -> Option<PathBuf> {
    PLACES.iter().map(PathBuf::from).find(|path| path.exists())
}

/// The browser, got from the distribution where this process may do that. None: there is none to be had, and why was said; a test
/// that needs one is left out.
pub fn chromium() -> Option<PathBuf> {
    if let Some(found) = found() {
        return Some(found);
    }
    let apt = Path::new("/usr/bin/apt-get");
    if crate::postgres::current_is_root() && apt.exists() {
        let run = |arguments: &[&str]| Command::new(apt).args(arguments).status().is_ok_and(|status| status.success());
        if run(&["update", "-qq"]) && run(&["install", "-y", "-qq", "--no-install-recommends", "chromium"]) {
            return found();
        }
    }
    eprintln!("left out: there is no Chromium on this machine (Debian: apt-get install chromium)");
    None
}
