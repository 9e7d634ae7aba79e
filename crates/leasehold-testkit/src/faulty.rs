//! A store that fails on command: before it did what was asked, after it did (the answer is lost), or never answering until
//! it is released. What a store may do to its callers, and nothing it may not.

use jiff::Timestamp;
use leasehold::{
    run::{Claimer, Entry, LeaseTime, RunId, Snapshot},
    store::{
        Answer, Artifact, Choose, Chosen, Filter, Held, Insert, Inserted, Lapsed, Listed, Look, ReadError, Record, Renewer,
        Store, Transacted, Transaction, Unavailable, Visible, Wanted, Write,
    },
};
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::watch;

/// Which operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// [`Store::insert`].
    Insert,
    /// [`Store::write`].
    Write,
    /// [`Store::transact`].
    Transact,
    /// [`Store::load`].
    Load,
    /// [`Store::journal`].
    Journal,
    /// [`Store::claim`].
    Claim,
    /// Every other read: lists, queues, sweeps.
    Query,
    /// [`Store::announce`].
    Announce,
    /// [`Store::record`] and [`Store::records`].
    Record,
    /// [`Store::put_records`] and [`Store::remove_record`].
    PutRecords,
    /// [`Renewer::renew`].
    Renew,
    /// [`Renewer::look`].
    Look,
    /// All of them.
    Any,
}

/// How it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Nothing was done.
    Before,
    /// It was done, and the answer is lost.
    After,
    /// It waits until [`FaultyStore::heal`], and is then done and answered.
    Hang,
    /// It is done at once, and the answer waits until [`FaultyStore::heal`].
    HangAfter,
}

type Predicate = Arc<dyn Fn(&Write) -> bool + Send + Sync>;

/// A fault to arm.
#[derive(Clone)]
pub struct Fault {
    op: Op,
    how: How,
    times: Option<u32>,
    when: Option<Predicate>,
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} (times: {:?}, selective: {})", self.how, self.op, self.times, self.when.is_some())
    }
}

impl Fault {
    /// Until it is healed.
    pub fn on(op: Op, how: How) -> Self {
        Self { op, how, times: None, when: None }
    }
    /// That many times.
    pub fn times(self, n: u32) -> Self {
        Self { times: Some(n), ..self }
    }
    /// Only writes of which this holds.
    pub fn when(self, holds: impl Fn(&Write) -> bool + Send + Sync + 'static) -> Self {
        Self { when: Some(Arc::new(holds)), ..self }
    }
    /// Only writes that append an entry of this kind.
    pub fn on_entry(self, kind: &'static str) -> Self {
        self.when(move |w| w.entries.iter().any(|e| e.body.kind() == kind))
    }
}

struct State {
    armed: Vec<Fault>,
    /// Raised by each heal; what hung before it goes on.
    healed: u64,
}

struct Faults {
    state: Mutex<State>,
    woken: Condvar,
    healed: watch::Sender<u64>,
    hits: watch::Sender<u64>,
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of this operation, if one is armed; it is spent by one.
    fn take(&self, op: Op, write: Option<&Write>) -> Option<(How, u64)> {
        let mut state = self.state();
        let healed = state.healed;
        let at = state.armed.iter().position(|f| {
            (f.op == op || f.op == Op::Any)
                && match (&f.when, write) {
                    (None, _) => true,
                    (Some(holds), Some(write)) => holds(write),
                    (Some(_), None) => false,
                }
        })?;
        let how = state.armed[at].how;
        if let Some(left) = &mut state.armed[at].times {
            *left = left.saturating_sub(1);
            if *left == 0 {
                state.armed.remove(at);
            }
        }
        drop(state);
        self.hits.send_modify(|n| *n += 1);
        Some((how, healed))
    }

    async fn released(&self, since: u64) {
        // An error would mean that the sender is gone; it lives in self.
        self.healed.subscribe().wait_for(|n| *n > since).await.ok();
    }

    fn released_blocking(&self, since: u64) {
        drop(self.woken.wait_while(self.state(), |s| s.healed <= since).unwrap_or_else(PoisonError::into_inner));
    }
}

fn lost(op: Op) -> Unavailable {
    Unavailable(format!("fault: {op:?}"))
}

/// Wraps a store. Without an armed fault it is that store.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    faults: Arc<Faults>,
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({:?}, armed: {:?})", self.inner, self.faults.state().armed)
    }
}

impl FaultyStore {
    /// Around this store; nothing is armed.
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        let state = Mutex::new(State { armed: Vec::new(), healed: 0 });
        let faults = Faults { state, woken: Condvar::new(), healed: watch::Sender::new(0), hits: watch::Sender::new(0) };
        Arc::new(Self { inner, faults: Arc::new(faults) })
    }

    /// Arms a fault behind those already armed; the first that fits is taken.
    pub fn arm(&self, fault: Fault) {
        self.faults.state().armed.push(fault);
    }

    /// The next such operation fails.
    pub fn fail_next(&self, op: Op, how: How) {
        self.arm(Fault::on(op, how).times(1));
    }

    /// Everything that asks this store fails, as with a lost connection, until it is healed.
    pub fn lose(&self) {
        self.arm(Fault::on(Op::Any, How::Before));
    }

    /// Disarms every fault and releases what hangs.
    pub fn heal(&self) {
        let mut state = self.faults.state();
        state.armed.clear();
        state.healed += 1;
        let healed = state.healed;
        drop(state);
        self.faults.healed.send_replace(healed);
        self.faults.woken.notify_all();
    }

    /// How many operations met a fault.
    pub fn hits(&self) -> u64 {
        *self.faults.hits.borrow()
    }

    /// Waits until that many operations met a fault: the signal that something hangs or failed.
    pub async fn wait_for_hits(&self, n: u64) {
        // An error would mean that the sender is gone; it lives in self.
        self.faults.hits.subscribe().wait_for(|hits| *hits >= n).await.ok();
    }

    /// The wrapped store.
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    async fn through<T, E: From<Unavailable>>(
        &self,
        op: Op,
        write: Option<&Write>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        match self.faults.take(op, write) {
            None => work.await,
            Some((How::Before, _)) => Err(lost(op).into()),
            Some((How::After, _)) => {
                work.await?;
                Err(lost(op).into())
            }
            Some((How::Hang, since)) => {
                self.faults.released(since).await;
                work.await
            }
            Some((How::HangAfter, since)) => {
                let done = work.await;
                self.faults.released(since).await;
                done
            }
        }
    }
}

#[async_trait::async_trait]
impl Store for FaultyStore {
    async fn insert(&self, insert: Insert) -> Result<Inserted, Unavailable> {
        self.through(Op::Insert, None, self.inner.insert(insert)).await
    }
    async fn write(&self, write: Write) -> Result<Answer, Unavailable> {
        self.through(Op::Write, Some(&write.clone()), self.inner.write(write)).await
    }
    async fn transact(&self, transaction: Transaction) -> Result<Transacted, Unavailable> {
        self.through(Op::Transact, None, self.inner.transact(transaction)).await
    }
    async fn load(&self, id: RunId) -> Result<Option<Snapshot>, ReadError> {
        self.through(Op::Load, None, self.inner.load(id)).await
    }
    async fn journal(&self, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError> {
        self.through(Op::Journal, None, self.inner.journal(id, from, limit)).await
    }
    async fn artifacts(&self, id: RunId) -> Result<Vec<Artifact>, Unavailable> {
        self.through(Op::Query, None, self.inner.artifacts(id)).await
    }
    async fn artifact(&self, id: RunId, handle: &str) -> Result<Option<Artifact>, Unavailable> {
        self.through(Op::Query, None, self.inner.artifact(id, handle)).await
    }
    async fn list(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Result<Vec<Listed>, Unavailable> {
        self.through(Op::Query, None, self.inner.list(filter, before, limit)).await
    }
    async fn claim(&self, wanted: Wanted, choose: Choose) -> Result<Chosen, Unavailable> {
        self.through(Op::Claim, None, self.inner.claim(wanted, choose)).await
    }
    async fn next_due(&self, agents: &[String]) -> Result<Option<Timestamp>, Unavailable> {
        self.through(Op::Query, None, self.inner.next_due(agents)).await
    }
    async fn now(&self) -> Result<LeaseTime, Unavailable> {
        self.through(Op::Query, None, self.inner.now()).await
    }
    async fn lapsed(&self, ttl: Duration, after: Option<RunId>, limit: usize) -> Result<Vec<Lapsed>, Unavailable> {
        self.through(Op::Query, None, self.inner.lapsed(ttl, after, limit)).await
    }
    async fn overdue(&self, now: Timestamp, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, Unavailable> {
        self.through(Op::Query, None, self.inner.overdue(now, after, limit)).await
    }
    async fn callers(
        &self,
        tool: &str,
        since: Timestamp,
        visible_to: Option<&Visible>,
        limit: usize,
    ) -> Result<Vec<RunId>, Unavailable> {
        self.through(Op::Query, None, self.inner.callers(tool, since, visible_to, limit)).await
    }
    async fn untold(&self, since: Timestamp, limit: usize) -> Result<Vec<(RunId, Timestamp)>, Unavailable> {
        self.through(Op::Query, None, self.inner.untold(since, limit)).await
    }
    async fn told(&self, id: RunId, finished_at: Timestamp) -> Result<(), Unavailable> {
        self.through(Op::PutRecords, None, self.inner.told(id, finished_at)).await
    }
    async fn find(&self, suffix: &str) -> Result<Vec<RunId>, Unavailable> {
        self.through(Op::Query, None, self.inner.find(suffix)).await
    }
    async fn announce(&self, worker: &str, ttl: Duration, claimer: &Claimer) -> Result<(), Unavailable> {
        self.through(Op::Announce, None, self.inner.announce(worker, ttl, claimer)).await
    }
    async fn workers(&self) -> Result<Vec<Claimer>, Unavailable> {
        self.through(Op::Query, None, self.inner.workers()).await
    }
    async fn record(&self, kind: &str, key: &str) -> Result<Option<Record>, Unavailable> {
        self.through(Op::Record, None, self.inner.record(kind, key)).await
    }
    async fn records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, Unavailable> {
        self.through(Op::Record, None, self.inner.records(kind, after, limit)).await
    }
    async fn put_records(&self, records: Vec<Record>) -> Result<bool, Unavailable> {
        self.through(Op::PutRecords, None, self.inner.put_records(records)).await
    }
    async fn remove_record(&self, kind: &str, key: &str, version: u64) -> Result<bool, Unavailable> {
        self.through(Op::PutRecords, None, self.inner.remove_record(kind, key, version)).await
    }
    fn renewer(&self) -> Result<Box<dyn Renewer>, Unavailable> {
        Ok(Box::new(FaultyRenewer { inner: self.inner.renewer()?, faults: Arc::clone(&self.faults) }))
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

struct FaultyRenewer {
    inner: Box<dyn Renewer>,
    faults: Arc<Faults>,
}

impl FaultyRenewer {
    fn through(
        &mut self,
        op: Op,
        work: impl FnOnce(&mut dyn Renewer) -> Result<Vec<Look>, Unavailable>,
    ) -> Result<Vec<Look>, Unavailable> {
        match self.faults.take(op, None) {
            None => work(&mut *self.inner),
            Some((How::Before, _)) => Err(lost(op)),
            Some((How::After, _)) => {
                work(&mut *self.inner)?;
                Err(lost(op))
            }
            Some((How::Hang, since)) => {
                self.faults.released_blocking(since);
                work(&mut *self.inner)
            }
            Some((How::HangAfter, since)) => {
                let done = work(&mut *self.inner);
                self.faults.released_blocking(since);
                done
            }
        }
    }
}

impl Renewer for FaultyRenewer {
    fn renew(&mut self, held: &[Held], ttl: Duration) -> Result<Vec<Look>, Unavailable> {
        self.through(Op::Renew, |inner| inner.renew(held, ttl))
    }
    fn look(&mut self, held: &[Held]) -> Result<Vec<Look>, Unavailable> {
        self.through(Op::Look, |inner| inner.look(held))
    }
}
