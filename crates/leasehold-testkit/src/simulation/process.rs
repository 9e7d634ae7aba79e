//! A process of the simulation: a gate that holds it still or lets it die, a clock of its own, and a store that it reaches only
//! as well as the seed has it.

use super::Chance;
use async_trait::async_trait;
use jiff::Timestamp;
use leasehold::{
    clock::{BootClock, BootInstant, WallClock},
    run::{Claimer, Entry, LeaseTime, RunId, Snapshot},
    store::{
        Answer, Artifact, Choose, Chosen, Filter, Held, Insert, Inserted, Lapsed, Listed, Look, ReadError, Record, Renewer,
        Store, Unavailable, Visible, Wanted, Write,
    },
};
use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// Virtual time, and a wall clock that is wrong by as much as it is told.
#[derive(Debug)]
pub(super) struct SimClock {
    base: Instant,
    wrong_by_ms: AtomicI64,
}

impl SimClock {
    pub(super) fn new(base: Instant) -> Arc<Self> {
        Arc::new(Self { base, wrong_by_ms: AtomicI64::new(0) })
    }
    pub(super) fn step_wall(&self, to_ms: i64) {
        self.wrong_by_ms.store(to_ms, Ordering::SeqCst);
    }
}

impl BootClock for SimClock {
    fn now(&self) -> BootInstant {
        let ns = i64::try_from(self.base.elapsed().as_nanos()).unwrap_or(i64::MAX);
        BootInstant { ns: ns.saturating_add(1_000_000_000) }
    }
    fn boot_id(&self) -> &str {
        "simulated"
    }
}

impl WallClock for SimClock {
    fn now(&self) -> Timestamp {
        let ms = i64::try_from(self.base.elapsed().as_millis()).unwrap_or(0);
        let wrong = self.wrong_by_ms.load(Ordering::SeqCst);
        Timestamp::from_millisecond(1_767_225_600_000 + ms + wrong).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Runs,
    Stands,
    Dead,
}

/// Everything a process does to others goes through its gate.
#[derive(Debug)]
pub(super) struct Gate {
    life: Mutex<Life>,
    /// Wakes those who wait in the order in which they came; a `watch` would draw lots.
    changed: Notify,
}

impl Gate {
    pub(super) fn open() -> Arc<Self> {
        Arc::new(Self { life: Mutex::new(Life::Runs), changed: Notify::new() })
    }
    fn life(&self) -> MutexGuard<'_, Life> {
        self.life.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn turn(&self, from: Life, to: Life) {
        let mut life = self.life();
        if *life == from {
            *life = to;
        }
        drop(life);
        self.changed.notify_waiters();
    }
    pub(super) fn stand_still(&self) {
        self.turn(Life::Runs, Life::Stands);
    }
    pub(super) fn go_on(&self) {
        self.turn(Life::Stands, Life::Runs);
    }
    pub(super) fn die(&self) {
        *self.life() = Life::Dead;
    }
    fn runs(&self) -> bool {
        *self.life() == Life::Runs
    }
    /// Passes when the process runs; true where it had to wait. A dead process never passes.
    pub(super) async fn pass(&self) -> bool {
        if self.runs() {
            return false;
        }
        loop {
            let changed = self.changed.notified();
            if self.runs() {
                break;
            }
            changed.await;
        }
        true
    }
}

/// The shared store as one process reaches it: errors before and after, delays, and times when nothing gets through.
pub(super) struct SimStore {
    pub(super) inner: Arc<dyn Store>,
    pub(super) gate: Arc<Gate>,
    pub(super) chance: Chance,
    /// Out of a thousand operations, so many fail before and so many after they were done.
    pub(super) faults: u64,
    pub(super) cut_off: Arc<AtomicBool>,
    pub(super) calm: Arc<AtomicBool>,
}

impl fmt::Debug for SimStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimStore({:?})", self.inner)
    }
}

fn lost(what: &str) -> Unavailable {
    Unavailable(format!("simulated: {what}"))
}

impl SimStore {
    /// Fails before, fails after.
    fn roll(&self) -> (bool, bool) {
        if self.calm.load(Ordering::SeqCst) {
            return (false, false);
        }
        let before = self.cut_off.load(Ordering::SeqCst) || self.chance.of_thousand(self.faults);
        (before, self.chance.of_thousand(self.faults))
    }

    async fn through<T, E: From<Unavailable>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        self.gate.pass().await;
        let (before, after) = self.roll();
        if before {
            tokio::time::sleep(Duration::from_millis(self.chance.below(50))).await;
            return Err(lost("before").into());
        }
        if self.chance.of_thousand(100) && !self.calm.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(self.chance.below(800))).await;
            self.gate.pass().await;
        }
        let done = work.await;
        self.gate.pass().await;
        if after {
            return Err(lost("after").into());
        }
        done
    }
}

#[async_trait]
impl Store for SimStore {
    async fn insert(&self, insert: Insert) -> Result<Inserted, Unavailable> {
        self.through(self.inner.insert(insert)).await
    }
    async fn write(&self, write: Write) -> Result<Answer, Unavailable> {
        self.through(self.inner.write(write)).await
    }
    async fn load(&self, id: RunId) -> Result<Option<Snapshot>, ReadError> {
        self.through(self.inner.load(id)).await
    }
    async fn journal(&self, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError> {
        self.through(self.inner.journal(id, from, limit)).await
    }
    async fn artifacts(&self, id: RunId) -> Result<Vec<Artifact>, Unavailable> {
        self.through(self.inner.artifacts(id)).await
    }
    async fn artifact(&self, id: RunId, handle: &str) -> Result<Option<Artifact>, Unavailable> {
        self.through(self.inner.artifact(id, handle)).await
    }
    async fn list(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Result<Vec<Listed>, Unavailable> {
        self.through(self.inner.list(filter, before, limit)).await
    }
    async fn claim(&self, wanted: Wanted, choose: Choose) -> Result<Chosen, Unavailable> {
        self.through(self.inner.claim(wanted, choose)).await
    }
    async fn next_due(&self, agents: &[String]) -> Result<Option<Timestamp>, Unavailable> {
        self.through(self.inner.next_due(agents)).await
    }
    async fn now(&self) -> Result<LeaseTime, Unavailable> {
        self.through(self.inner.now()).await
    }
    async fn lapsed(&self, ttl: Duration, after: Option<RunId>, limit: usize) -> Result<Vec<Lapsed>, Unavailable> {
        self.through(self.inner.lapsed(ttl, after, limit)).await
    }
    async fn overdue(&self, now: Timestamp, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, Unavailable> {
        self.through(self.inner.overdue(now, after, limit)).await
    }
    async fn callers(
        &self,
        tool: &str,
        since: Timestamp,
        visible_to: Option<&Visible>,
        limit: usize,
    ) -> Result<Vec<RunId>, Unavailable> {
        self.through(self.inner.callers(tool, since, visible_to, limit)).await
    }
    async fn untold(&self, since: Timestamp, limit: usize) -> Result<Vec<(RunId, Timestamp)>, Unavailable> {
        self.through(self.inner.untold(since, limit)).await
    }
    async fn told(&self, id: RunId, finished_at: Timestamp) -> Result<(), Unavailable> {
        self.through(self.inner.told(id, finished_at)).await
    }
    async fn find(&self, suffix: &str) -> Result<Vec<RunId>, Unavailable> {
        self.through(self.inner.find(suffix)).await
    }
    async fn announce(&self, worker: &str, ttl: Duration, claimer: &Claimer) -> Result<(), Unavailable> {
        self.through(self.inner.announce(worker, ttl, claimer)).await
    }
    async fn workers(&self) -> Result<Vec<Claimer>, Unavailable> {
        self.through(self.inner.workers()).await
    }
    async fn record(&self, kind: &str, key: &str) -> Result<Option<Record>, Unavailable> {
        self.through(self.inner.record(kind, key)).await
    }
    async fn records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, Unavailable> {
        self.through(self.inner.records(kind, after, limit)).await
    }
    async fn put_records(&self, records: Vec<Record>) -> Result<bool, Unavailable> {
        self.through(self.inner.put_records(records)).await
    }
    async fn remove_record(&self, kind: &str, key: &str, version: u64) -> Result<bool, Unavailable> {
        self.through(self.inner.remove_record(kind, key, version)).await
    }
    fn renewer(&self) -> Result<Box<dyn Renewer>, Unavailable> {
        let faults = if self.faults == 0 { 0 } else { self.faults + 50 };
        let inner = self.inner.renewer()?;
        Ok(Box::new(SimRenewer {
            inner,
            gate: Arc::clone(&self.gate),
            chance: self.chance.clone(),
            faults,
            cut_off: Arc::clone(&self.cut_off),
            calm: Arc::clone(&self.calm),
        }))
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

struct SimRenewer {
    inner: Box<dyn Renewer>,
    gate: Arc<Gate>,
    chance: Chance,
    faults: u64,
    cut_off: Arc<AtomicBool>,
    calm: Arc<AtomicBool>,
}

impl SimRenewer {
    fn through(
        &mut self,
        work: impl FnOnce(&mut dyn Renewer) -> Result<Vec<Look>, Unavailable>,
    ) -> Result<Vec<Look>, Unavailable> {
        // A process that stands still renews nothing; it does not wait here, because this is no async call.
        if !self.gate.runs() {
            return Err(lost("it stands still"));
        }
        let calm = self.calm.load(Ordering::SeqCst);
        if !calm && (self.cut_off.load(Ordering::SeqCst) || self.chance.of_thousand(self.faults)) {
            return Err(lost("before"));
        }
        let done = work(&mut *self.inner);
        if !calm && self.chance.of_thousand(self.faults) { Err(lost("after")) } else { done }
    }
}

impl Renewer for SimRenewer {
    fn renew(&mut self, held: &[Held], ttl: Duration) -> Result<Vec<Look>, Unavailable> {
        self.through(|inner| inner.renew(held, ttl))
    }
    fn look(&mut self, held: &[Held]) -> Result<Vec<Look>, Unavailable> {
        self.through(|inner| inner.look(held))
    }
}
