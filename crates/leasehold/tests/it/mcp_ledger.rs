//! What the tools of the asking servers of these tests leave behind.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use serde_json::{Value, json};
use std::{path::PathBuf, time::Duration};

/// Where the tools of `asking.py` leave what they did.
pub(super) struct Ledger {
    _folder: tempfile::TempDir,
    pub(super) path: PathBuf,
}

impl Ledger {
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { path: folder.path().join("ledger"), _folder: folder }
    }
    pub(super) fn call(&self, text: &str) -> Value {
        json!({ "path": self.path, "text": text })
    }
    pub(super) fn lines(&self) -> Vec<String> {
        std::fs::read_to_string(&self.path).unwrap_or_default().lines().map(str::to_owned).collect()
    }
    /// Waits until the tool was entered.
    pub(super) async fn reached(&self) {
        while self.entered().is_empty() {
            // Only the file says that the far side was reached.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    /// With what the tool was entered.
    pub(super) fn entered(&self) -> Vec<Value> {
        let entered = std::fs::read_to_string(self.path.with_extension("entered")).unwrap_or_default();
        entered.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}
