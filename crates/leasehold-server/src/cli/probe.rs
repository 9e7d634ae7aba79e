//! `LEASEHOLD_STOP_AT=<point>:<file>`: this process stops for good when a segment of it reaches that point for the first time,
//! after it has made the file. Leases are still renewed. The demo and crash tests kill it there.

use crate::config::ConfigError;
use async_trait::async_trait;
use leasehold::{
    run::{CallId, RunId},
    worker::{Point, Probe},
};
use std::path::PathBuf;

/// The variable.
pub(crate) const STOP_AT: &str = "LEASEHOLD_STOP_AT";

/// Stops a segment at one point.
#[derive(Debug)]
pub(crate) struct StopAt {
    point: Point,
    file: PathBuf,
}

impl StopAt {
    /// What the environment asks for.
    pub(crate) fn from_environment(env: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, ConfigError> {
        let Some(text) = env(STOP_AT).filter(|text| !text.is_empty()) else { return Ok(None) };
        let wrong = || ConfigError::new(format!("environment variable {STOP_AT}"), "is not <point>:<file>");
        let (point, file) = text.split_once(':').ok_or_else(wrong)?;
        Ok(Some(Self { point: point.parse().map_err(|_| wrong())?, file: file.into() }))
    }
}

#[async_trait]
impl Probe for StopAt {
    async fn at(&self, point: Point, run: RunId, _call: Option<&CallId>) {
        if point != self.point {
            return;
        }
        // Whoever waits for the file kills this process; without the file there is nobody, and the segment goes on.
        match std::fs::write(&self.file, run.to_string()) {
            Ok(()) => std::future::pending().await,
            Err(error) => tracing::error!("{STOP_AT}: {} cannot be written: {error}", self.file.display()),
        }
    }
}
