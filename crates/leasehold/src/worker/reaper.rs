//! The reaper: a bounded sweep that settles what expired. It runs in every worker, at the start of every local command and as a
//! command; nobody is its leader, because each settlement is a guarded write that a faster sweeper or a late renewal defeats.
//!
//! What it does not do is take a lease away because of time that did not pass. The store's clock decides, so it is compared with this
//! process's own boot clock at each sweep: where it jumped forward, or where the store was away so long that nobody could renew,
//! nothing expires for one ttl, in which every holder that lives renews. Where it stepped back, a lease may end too late: one that ends
//! later than a lease granted now would is watched for one ttl, like one of another boot, and is over if nobody renewed it.

use crate::{
    clock::{BootClock, BootInstant},
    run::{Event, LeaseTime, Right, RunId, State, Tick, WriteId},
    store::{
        ExpiryGuard, Lapse, Lapsed, Unavailable,
        engine::{CommitError, Engine},
    },
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// What a sweep did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs whose lease had ended, with the state they are in now.
    pub settled: Vec<(RunId, State)>,
    /// Runs whose decision came too late, with the state they are in now.
    pub overdue: Vec<(RunId, State)>,
    /// Rows that could not be read or settled; the others were.
    pub failed: Vec<(RunId, String)>,
    /// Leases whose end says nothing, being of another boot of this machine or from before the store's clock stepped back: watched
    /// for one ttl before they count as expired.
    pub watched: usize,
    /// Leases of another boot that are being renewed: the file is shared between machines.
    pub shared: Vec<RunId>,
    /// Nothing was expired, and why.
    pub skipped: Option<Skip>,
    /// There were more rows than it looked at: what is not in it need not be settled.
    pub partial: bool,
}

/// Why nothing expires for one ttl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The store had been away for longer than a ttl.
    Outage,
    /// The store did not answer, and most of that time this process did not run: for so long.
    StoodStill(Duration),
    /// The store's clock jumped forward, by so much.
    ClockJump(Duration),
}

impl std::fmt::Display for Skip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Outage => f.write_str("the store was away for longer than a lease"),
            Self::StoodStill(lasted) => write!(f, "this process stood still for {:.1} s", lasted.as_secs_f64()),
            Self::ClockJump(by) => write!(f, "the store's clock jumped forward by {:.1} s", by.as_secs_f64()),
        }
    }
}

/// Sweeps; remembers what it watches.
#[derive(Debug)]
pub struct Reaper {
    engine: Arc<Engine>,
    clock: Arc<dyn BootClock>,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    watched: HashMap<RunId, (LeaseTime, BootInstant)>,
    last_look: Option<ClockLook>,
    outage: bool,
    /// Since the last look, in nanoseconds.
    stood_still: i64,
    skip: Option<(Skip, BootInstant)>,
    /// Behind which row the next sweep begins, where the last one was full and could not settle a row of it.
    lapsed_after: Option<RunId>,
    overdue_after: Option<RunId>,
}

/// Rows that can never be settled would fill every sweep: behind a full one that had such rows the next goes on, until one comes
/// to the end of the rows, and the next begins at the front again.
fn next_begins(limit: usize, rows: &[RunId], went_on: bool, failed: bool) -> Option<RunId> {
    rows.last().filter(|_| (went_on || failed) && rows.len() >= limit).copied()
}

/// The store's clock, read at some time between two of this process's.
#[derive(Clone, Debug)]
struct ClockLook {
    asked: BootInstant,
    answered: BootInstant,
    store: LeaseTime,
}

impl ClockLook {
    /// By how much the store's clock certainly ran ahead of this one since `last` (behind: negative), however long the two answers
    /// were under way.
    fn jump_since(&self, last: &Self) -> i64 {
        if self.store.clock != last.store.clock {
            return 0;
        }
        let passed = self.store.ns.saturating_sub(last.store.ns);
        let at_most = self.answered.ns.saturating_sub(last.asked.ns);
        let at_least = self.asked.ns.saturating_sub(last.answered.ns);
        if passed > at_most { passed - at_most } else { (passed - at_least).min(0) }
    }
}

impl Reaper {
    /// On an engine.
    pub fn new(engine: Arc<Engine>, clock: Arc<dyn BootClock>) -> Self {
        Self { engine, clock, memory: Mutex::default() }
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One sweep over at most `limit` rows of each kind; with `dry_run` it only counts.
    ///
    /// # Errors
    /// The store did not answer at all.
    pub async fn sweep(&self, limit: usize, dry_run: bool) -> Result<Swept, Unavailable> {
        let mut swept = Swept::default();
        let after = self.memory().lapsed_after.take();
        let (lapsed, look) = match self.look(after, limit).await {
            Ok(found) => found,
            Err(unavailable) => {
                self.memory().outage = true;
                return Err(unavailable);
            }
        };
        swept.skipped = self.skips(look);
        if let Some(why) = swept.skipped {
            // It was said when it began.
            tracing::debug!("{why}: nothing is expired");
            swept.partial = true;
        } else {
            for row in &lapsed {
                self.settle(row, dry_run, &mut swept).await;
            }
            let ids: Vec<RunId> = lapsed.iter().map(|row| row.id).collect();
            self.memory().lapsed_after = next_begins(limit, &ids, after.is_some(), !swept.failed.is_empty());
            swept.partial = after.is_some() || lapsed.len() >= limit;
            self.forget();
        }
        let now = self.engine.now().wall;
        let after = self.memory().overdue_after.take();
        let overdue = self.engine.store().overdue(now, after, limit).await?;
        let failed_before = swept.failed.len();
        for &id in &overdue {
            if dry_run {
                swept.overdue.push((id, State::WaitingForApproval));
                continue;
            }
            let write_id = WriteId::random();
            let changed = self.engine.change(id, write_id, self.engine.ttl(), |_| Event::Clock(Tick::WaitExpired)).await;
            match changed {
                Ok(done) => {
                    tracing::info!(run = %id, "run {id}: nobody decided in time; it is {} now", done.row.state);
                    swept.overdue.push((id, done.row.state));
                }
                Err(CommitError::Rejected(_)) => {}
                Err(error) => swept.failed.push((id, error.to_string())),
            }
        }
        swept.partial |= after.is_some() || overdue.len() >= limit;
        self.memory().overdue_after = next_begins(limit, &overdue, after.is_some(), swept.failed.len() > failed_before);
        Ok(swept)
    }

    /// Never ends: a tick that comes late by this process's own clock says that it did not run meanwhile, so that no store is blamed
    /// for that.
    pub async fn watch_own_time(&self) {
        let mut last = self.clock.now();
        loop {
            tokio::time::sleep(TICK).await;
            let now = self.clock.now();
            let late = now.ns.saturating_sub(last.ns).saturating_sub(TICK_NS);
            // Less is how a busy machine is.
            if late > TICK_NS {
                self.memory().stood_still += late;
            }
            last = now;
        }
    }

    /// Up to `limit` rows, in pages, so that rows which cannot be settled do not hide the ones behind them.
    async fn lapsed(&self, mut after: Option<RunId>, limit: usize) -> Result<Vec<Lapsed>, Unavailable> {
        let mut all = Vec::new();
        while all.len() < limit {
            let page = self.engine.store().lapsed(self.engine.ttl(), after, limit - all.len()).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            all.extend(page);
        }
        Ok(all)
    }

    /// What lapsed, and then the clock that judged it: a jump that made a row lapse is in the look that comes after it.
    async fn look(&self, after: Option<RunId>, limit: usize) -> Result<(Vec<Lapsed>, ClockLook), Unavailable> {
        let lapsed = self.lapsed(after, limit).await?;
        let asked = self.clock.now();
        let store = self.engine.store().now().await?;
        Ok((lapsed, ClockLook { asked, answered: self.clock.now(), store }))
    }

    fn ttl_ns(&self) -> i64 {
        i64::try_from(self.engine.ttl().as_nanos()).unwrap_or(i64::MAX)
    }

    /// Whether expiry is skipped now, and why. A clock that is set a little, as time services do, is no jump: the trust window
    /// keeps a third of the ttl in hand.
    fn skips(&self, look: ClockLook) -> Option<Skip> {
        let (now, ttl) = (look.answered, self.ttl_ns());
        let mut memory = self.memory();
        if let Some(last) = &memory.last_look {
            let jump = look.jump_since(last);
            let away = now.ns.saturating_sub(last.answered.ns);
            let why = if jump > ttl / JUMP_PART {
                Some(Skip::ClockJump(Duration::from_nanos(jump.unsigned_abs())))
            } else if memory.outage && away > ttl {
                let still = memory.stood_still;
                let outage = away.saturating_sub(still) > ttl;
                Some(if outage { Skip::Outage } else { Skip::StoodStill(Duration::from_nanos(still.unsigned_abs())) })
            } else {
                None
            };
            if let Some(why) = why {
                tracing::warn!("{why}: nothing is expired for one ttl");
                memory.skip = Some((why, BootInstant { ns: now.ns.saturating_add(ttl) }));
            }
            if jump < -(ttl / JUMP_PART) {
                let by = Duration::from_nanos(jump.unsigned_abs()).as_secs_f64();
                tracing::warn!("the store's clock stepped back by {by:.1} s: leases from before end when watched for one ttl");
            }
        }
        (memory.outage, memory.stood_still) = (false, 0);
        memory.last_look = Some(look);
        memory.skip.filter(|(_, until)| now < *until).map(|(why, _)| why)
    }

    /// What was watched and did not lapse any more has been renewed or settled.
    fn forget(&self) {
        let (now, ttl) = (self.clock.now(), self.ttl_ns());
        self.memory().watched.retain(|_, (_, since)| now.ns.saturating_sub(since.ns) <= ttl);
    }

    async fn settle(&self, lapsed: &Lapsed, dry_run: bool, swept: &mut Swept) {
        let mut watched = None;
        if lapsed.lapse != Lapse::Passed {
            match self.watch(lapsed) {
                Watched::NotYet => {
                    swept.watched += 1;
                    return;
                }
                Watched::Renewed => {
                    swept.shared.push(lapsed.id);
                    return;
                }
                Watched::Ended => watched = Some(self.engine.ttl()),
            }
        }
        if dry_run {
            swept.settled.push((lapsed.id, State::Running));
            return;
        }
        let row = match self.engine.load_to_end(lapsed.id).await {
            Ok(row) => row,
            Err(error) => {
                swept.failed.push((lapsed.id, error.to_string()));
                return;
            }
        };
        let event = Event::Clock(Tick::Expire {
            right: Right { epoch: lapsed.epoch, lease_id: lapsed.lease_id },
            expires_at: lapsed.expires_at.clone(),
        });
        let guard = ExpiryGuard { expires_at: lapsed.expires_at.clone(), watched };
        match self.engine.commit_guarded(&row, vec![event], WriteId::random(), Some(guard)).await {
            Ok(done) => {
                tracing::info!(run = %lapsed.id, "run {}: its lease ended without a word; it is {} now", lapsed.id, done.row.state);
                swept.settled.push((lapsed.id, done.row.state));
            }
            // Its holder, or another sweeper, was faster: nothing to do.
            Err(CommitError::Moved | CommitError::Fenced | CommitError::Gone | CommitError::Rejected(_)) => {}
            Err(error) => swept.failed.push((lapsed.id, error.to_string())),
        }
    }

    /// A lease whose end cannot be compared with the store's clock is watched for one ttl: its holder renews it in less.
    fn watch(&self, lapsed: &Lapsed) -> Watched {
        let (now, ttl) = (self.clock.now(), self.ttl_ns());
        let mut memory = self.memory();
        let (seen, since) = memory.watched.entry(lapsed.id).or_insert_with(|| (lapsed.expires_at.clone(), now)).clone();
        if seen != lapsed.expires_at {
            // Of two machines on one file each has a boot of its own; on a clock that all share a renewal is what it should be.
            let renewed_elsewhere = lapsed.lapse == Lapse::Foreign && seen.clock == lapsed.expires_at.clock;
            memory.watched.insert(lapsed.id, (lapsed.expires_at.clone(), now));
            return if renewed_elsewhere { Watched::Renewed } else { Watched::NotYet };
        }
        if now.ns.saturating_sub(since.ns) > ttl {
            memory.watched.remove(&lapsed.id);
            return Watched::Ended;
        }
        Watched::NotYet
    }
}

/// More than the ttl's part of this within one sweep's interval is a jump of the store's clock.
const JUMP_PART: i64 = 10;

/// How often a worker looks whether it runs.
const TICK: Duration = Duration::from_secs(1);
const TICK_NS: i64 = 1_000_000_000;

enum Watched {
    NotYet,
    Renewed,
    Ended,
}
