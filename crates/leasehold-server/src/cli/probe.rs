//! `LEASEHOLD_STOP_AT=<point>:<file>`: a segment of this process stops when it reaches that point for the first time, after it
//! has made the file, and goes on when the file is removed. Leases are still renewed. The demo, drills and crash tests kill the
//! process there, or hold it there for too long.

use crate::config::ConfigError;
use async_trait::async_trait;
use leasehold::{
    run::{CallId, RunId},
    worker::{Point, Probe},
};
use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

/// The variable.
pub(crate) const STOP_AT: &str = "LEASEHOLD_STOP_AT";

/// Stops a segment at one point.
#[derive(Debug)]
pub(crate) struct StopAt {
    point: Point,
    file: PathBuf,
    reached: AtomicBool,
}

/// Between looks whether the file is still there.
const LOOK: Duration = Duration::from_millis(20);

impl StopAt {
    /// What the environment asks for.
    pub(crate) fn from_environment(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, ConfigError> {
        let Some(text) = env(STOP_AT).filter(|text| !text.is_empty()) else { return Ok(None) };
        let wrong = || ConfigError::new(format!("environment variable {STOP_AT}"), "is not <point>:<file>");
        let (point, file) = text.split_once(':').ok_or_else(wrong)?;
        Ok(Some(Self { point: point.parse().map_err(|_| wrong())?, file: file.into(), reached: AtomicBool::new(false) }))
    }
}

#[async_trait]
impl Probe for StopAt {
    async fn at(&self, point: Point, run: RunId, _call: Option<&CallId>) {
        if point != self.point || self.reached.swap(true, Ordering::AcqRel) {
            return;
        }
        // Whoever waits for the file kills this process or removes the file; without it there is nobody, and the segment goes on.
        match std::fs::write(&self.file, run.to_string()) {
            Ok(()) => {
                while self.file.exists() {
                    tokio::time::sleep(LOOK).await;
                }
            }
            Err(error) => tracing::error!("{STOP_AT}: {} cannot be written: {error}", self.file.display()),
        }
    }
}
