//! Clocks. Leases of an embedded store and every holder's trust window run on the boot-time clock, which counts suspend and
//! does not step; wall time is for people, for `run_at` and for deadlines of decisions.

use jiff::Timestamp;
use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// A point on this machine's boot-time clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant {
    /// Nanoseconds since boot, suspend included.
    pub ns: i64,
}

impl BootInstant {
    /// On the machine's own clock, for what lives in one process.
    pub fn of_machine() -> Self {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Self { ns: time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec) }
    }

    /// What has passed of it since on the machine's own clock.
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(u64::try_from(Self::of_machine().ns.saturating_sub(self.ns)).unwrap_or_default())
    }
}

/// The boot-time clock.
pub trait BootClock: Send + Sync + fmt::Debug {
    /// Now.
    fn now(&self) -> BootInstant;
    /// Names this boot of this machine.
    fn boot_id(&self) -> &str;
}

/// Wall time, to the millisecond.
pub trait WallClock: Send + Sync + fmt::Debug {
    /// Now.
    fn now(&self) -> Timestamp;
}

/// Rounds down to the millisecond, which is what stores keep.
pub fn to_millis(time: Timestamp) -> Timestamp {
    // `as_millisecond` would round towards 1970.
    let ms = time.as_nanosecond().div_euclid(1_000_000);
    i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(time)
}

/// The machine's own clocks.
#[derive(Clone, Debug)]
pub struct SystemClock {
    boot_id: Arc<str>,
}

impl SystemClock {
    /// Reads the boot id once.
    ///
    /// # Errors
    /// The kernel does not tell it.
    pub fn new() -> std::io::Result<Self> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Ok(Self { boot_id: id.trim().into() })
    }
}

impl BootClock for SystemClock {
    fn now(&self) -> BootInstant {
        BootInstant::of_machine()
    }
    fn boot_id(&self) -> &str {
        &self.boot_id
    }
}

impl WallClock for SystemClock {
    fn now(&self) -> Timestamp {
        to_millis(Timestamp::now())
    }
}

/// Clocks that a test moves.
#[derive(Debug)]
pub struct ManualClock {
    boot_ns: AtomicI64,
    wall_ms: AtomicI64,
    boot_id: Mutex<&'static str>,
}

impl ManualClock {
    /// Boot time 1 s, wall time 2026-01-01.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            boot_ns: AtomicI64::new(1_000_000_000),
            wall_ms: AtomicI64::new(1_767_225_600_000),
            boot_id: Mutex::new("boot-1"),
        })
    }
    /// Both clocks move forward.
    pub fn advance(&self, by: std::time::Duration) {
        self.boot_ns.fetch_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX), Ordering::SeqCst);
        self.wall_ms.fetch_add(i64::try_from(by.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
    /// The wall clock alone steps.
    pub fn step_wall(&self, by_ms: i64) {
        self.wall_ms.fetch_add(by_ms, Ordering::SeqCst);
    }
    /// The boot-time clock alone steps, as a database's clock may that it stands for.
    pub fn step_boot(&self, by_ns: i64) {
        self.boot_ns.fetch_add(by_ns, Ordering::SeqCst);
    }
    /// Another boot.
    pub fn reboot(&self, id: &'static str) {
        self.boot_ns.store(1_000_000_000, Ordering::SeqCst);
        *self.boot_id.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = id;
    }
}

impl BootClock for ManualClock {
    fn now(&self) -> BootInstant {
        BootInstant { ns: self.boot_ns.load(Ordering::SeqCst) }
    }
    fn boot_id(&self) -> &str {
        *self.boot_id.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl WallClock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond(self.wall_ms.load(Ordering::SeqCst)).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}
