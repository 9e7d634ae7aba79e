//! How long a holder may trust its own lease without asking.
//!
//! The store decides when a lease ends; the holder must stop before that. It therefore counts the ttl from *before* the
//! request that granted or renewed the lease was sent, on a clock that goes on while the machine sleeps, so its own deadline is
//! never later than the store's. The other half is the expiry guard in the store's `expire` statement.

use crate::clock::{BootClock, BootInstant};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

/// The holder's own view of its lease; shared with every permit.
#[derive(Debug)]
pub struct TrustWindow {
    clock: Arc<dyn BootClock>,
    ttl: Duration,
    deadline_ns: AtomicI64,
    lost: AtomicBool,
}

impl TrustWindow {
    /// A window from a grant whose request was sent at `sent`.
    pub(crate) fn new(clock: Arc<dyn BootClock>, ttl: Duration, sent: BootInstant) -> Arc<Self> {
        let window = Self { clock, ttl, deadline_ns: AtomicI64::new(0), lost: AtomicBool::new(false) };
        window.confirmed(sent);
        Arc::new(window)
    }

    /// A renewal sent at `sent` was confirmed. An older confirmation that arrives late changes nothing.
    pub(crate) fn confirmed(&self, sent: BootInstant) {
        let deadline = sent.ns.saturating_add(i64::try_from(self.ttl.as_nanos()).unwrap_or(i64::MAX));
        self.deadline_ns.fetch_max(deadline, Ordering::AcqRel);
    }

    /// The right is known to be gone.
    pub(crate) fn lose(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// The store said that somebody else holds the run, or nobody.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Time left until the holder's own deadline.
    pub fn left(&self) -> Duration {
        if self.is_lost() {
            return Duration::ZERO;
        }
        let left = self.deadline_ns.load(Ordering::Acquire).saturating_sub(self.clock.now().ns);
        Duration::from_nanos(u64::try_from(left).unwrap_or(0))
    }

    /// Enough is left to enter a write: a third of the ttl.
    pub fn holds(&self) -> bool {
        self.left() >= self.ttl / 3
    }
}
