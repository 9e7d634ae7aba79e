//! When a server that failed may be tried again.

use crate::limits::MCP_BACKOFF_MAX;
use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use std::time::{Duration, Instant};

const FIRST_WAIT: Duration = Duration::from_millis(100);

/// Grows with each failure, and begins anew after an answer.
#[derive(Debug)]
pub(super) struct Pace {
    waits: ExponentialBackoff,
    failures: u32,
    not_before: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Self {
        let waits = ExponentialBuilder::default().with_min_delay(FIRST_WAIT).with_max_delay(MCP_BACKOFF_MAX);
        Self { waits: waits.with_jitter().without_max_times().build(), failures: 0, not_before: None }
    }
}

impl Pace {
    pub(super) fn failed(&mut self, now: Instant) {
        self.failures = self.failures.saturating_add(1);
        // Jitter may go beyond the longest delay.
        let wait = self.waits.next().unwrap_or(MCP_BACKOFF_MAX).min(MCP_BACKOFF_MAX);
        self.not_before = Some(now + wait);
    }

    pub(super) fn answered(&mut self) {
        if self.failures > 0 {
            *self = Self::default();
        }
    }

    /// In a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// How long it has to wait still.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_their_bound_and_end_with_an_answer() {
        let now = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.wait(now), Duration::ZERO);
        pace.failed(now);
        assert!(pace.wait(now) >= FIRST_WAIT && pace.wait(now) <= FIRST_WAIT * 2, "{:?}", pace.wait(now));
        for _ in 0..100 {
            pace.failed(now);
            assert!(pace.wait(now) <= MCP_BACKOFF_MAX);
        }
        assert_eq!((pace.wait(now), pace.failures()), (MCP_BACKOFF_MAX, 101));
        assert_eq!(pace.wait(now + MCP_BACKOFF_MAX), Duration::ZERO);
        pace.answered();
        assert_eq!((pace.wait(now), pace.failures()), (Duration::ZERO, 0));
    }
}
