//! Recovery between real processes, on an embedded store.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::run::RunId;
use leasehold_testkit::home::Home;

#[path = "recovery_scenes/mod.rs"]
mod recovery_scenes;

/// A home, and a second directory on the same store.
pub(crate) struct Stage {
    pub(crate) home: Home,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        Self { home: Home::new(env!("CARGO_BIN_EXE_leasehold")) }
    }

    /// Another directory with the same configuration, on the same file.
    pub(crate) fn elsewhere(&self) -> Home {
        let there = Home::new(env!("CARGO_BIN_EXE_leasehold"));
        let read = |name: &str| std::fs::read_to_string(self.home.path().join(name)).expect("is there");
        let file = self.home.path().join("leasehold.db");
        let config = read("leasehold.toml").replace("sqlite:leasehold.db", &format!("sqlite:{}", file.display()));
        there.write("leasehold.toml", &config);
        there.write("script.toml", &read("script.toml"));
        there
    }

    fn raw(&self) -> rusqlite::Connection {
        let raw = rusqlite::Connection::open(self.home.path().join("leasehold.db")).expect("opens");
        raw.busy_timeout(std::time::Duration::from_secs(20)).expect("set");
        raw.pragma_update(None, "ignore_check_constraints", true).expect("set");
        raw
    }

    /// A newer version may write what this one's constraints forbid.
    pub(crate) async fn without_constraints(&self) {}

    /// Changes one row behind the program's back.
    pub(crate) async fn damage(&self, statement: &str, run: RunId) {
        let statement = statement.replace("BYTES", "x'01ff'").replace("RUN", &run.to_string());
        assert_eq!(self.raw().execute(&statement, []).expect("changed"), 1, "{statement}");
    }
}
