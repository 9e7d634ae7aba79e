//! The reaper: a bounded sweep that settles what expired. It runs in every worker, at the start of every local command and as a
//! command; nobody is its leader, because each settlement is a guarded write that a faster sweeper or a late renewal defeats.

use crate::{
    clock::{BootClock, BootInstant},
    run::{Event, LeaseTime, Right, RunId, State, Tick, WriteId},
    store::{
        ExpiryGuard, Lapsed, Unavailable,
        engine::{CommitError, Engine},
    },
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
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
    /// Leases of another boot of this machine, watched for one ttl before they count as expired.
    pub watched: usize,
    /// Leases of another boot that are being renewed: the file is shared between machines.
    pub shared: Vec<RunId>,
    /// Expiry was skipped, because the store had been away for longer than a ttl.
    pub skipped: bool,
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
    foreign: HashMap<RunId, (LeaseTime, BootInstant)>,
    last_contact: Option<BootInstant>,
    outage: bool,
    skip_until: Option<BootInstant>,
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
        let lapsed = match self.lapsed(limit).await {
            Ok(lapsed) => lapsed,
            Err(unavailable) => {
                self.memory().outage = true;
                return Err(unavailable);
            }
        };
        if self.back_from_outage() {
            swept.skipped = true;
            tracing::warn!("the store was away for longer than a lease: nothing is expired for one ttl");
        } else {
            for row in lapsed {
                self.settle(&row, dry_run, &mut swept).await;
            }
        }
        let now = self.engine.now().wall;
        for id in self.engine.store().overdue(now, None, limit).await? {
            if dry_run {
                swept.overdue.push((id, State::WaitingForApproval));
                continue;
            }
            let write_id = WriteId::random();
            let changed = self.engine.change(id, write_id, self.engine.ttl(), |_| Event::Clock(Tick::WaitExpired)).await;
            match changed {
                Ok(done) => swept.overdue.push((id, done.row.state)),
                Err(CommitError::Rejected(_)) => {}
                Err(error) => swept.failed.push((id, error.to_string())),
            }
        }
        Ok(swept)
    }

    /// Up to `limit` rows, in pages, so that rows which cannot be settled do not hide the ones behind them.
    async fn lapsed(&self, limit: usize) -> Result<Vec<Lapsed>, Unavailable> {
        let mut all = Vec::new();
        let mut after = None;
        while all.len() < limit {
            let page = self.engine.store().lapsed(after, limit - all.len()).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.id);
            all.extend(page);
        }
        Ok(all)
    }

    /// Whether expiry is skipped now: the store is back from an outage longer than a ttl, in which nobody could renew.
    fn back_from_outage(&self) -> bool {
        let now = self.clock.now();
        let ttl = i64::try_from(self.engine.ttl().as_nanos()).unwrap_or(i64::MAX);
        let mut memory = self.memory();
        let away = memory.last_contact.map_or(0, |last| now.ns.saturating_sub(last.ns));
        if memory.outage && away > ttl {
            memory.skip_until = Some(BootInstant { ns: now.ns.saturating_add(ttl) });
        }
        memory.outage = false;
        memory.last_contact = Some(now);
        memory.skip_until.is_some_and(|until| now < until)
    }

    async fn settle(&self, lapsed: &Lapsed, dry_run: bool, swept: &mut Swept) {
        let mut foreign_watched = false;
        if lapsed.foreign {
            match self.watch(lapsed) {
                Watched::NotYet => {
                    swept.watched += 1;
                    return;
                }
                Watched::Renewed => {
                    swept.shared.push(lapsed.id);
                    return;
                }
                Watched::Ended => foreign_watched = true,
            }
        }
        if dry_run {
            swept.settled.push((lapsed.id, State::Running));
            return;
        }
        let row = match self.engine.load(lapsed.id).await {
            Ok(row) => row,
            Err(error) => {
                tracing::error!(run = %lapsed.id, "run {}: its lease ended, and it cannot be settled: {error}", lapsed.id);
                swept.failed.push((lapsed.id, error.to_string()));
                return;
            }
        };
        let event = Event::Clock(Tick::Expire {
            right: Right { epoch: lapsed.epoch, lease_id: lapsed.lease_id },
            expires_at: lapsed.expires_at.clone(),
        });
        let guard = ExpiryGuard { expires_at: lapsed.expires_at.clone(), foreign_watched };
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

    /// A lease of another boot cannot be compared with this clock: it is watched for one ttl.
    fn watch(&self, lapsed: &Lapsed) -> Watched {
        let now = self.clock.now();
        let ttl = i64::try_from(self.engine.ttl().as_nanos()).unwrap_or(i64::MAX);
        let mut memory = self.memory();
        let (seen, since) = memory.foreign.entry(lapsed.id).or_insert_with(|| (lapsed.expires_at.clone(), now)).clone();
        if seen != lapsed.expires_at {
            let renewed = seen.clock == lapsed.expires_at.clock;
            memory.foreign.insert(lapsed.id, (lapsed.expires_at.clone(), now));
            return if renewed { Watched::Renewed } else { Watched::NotYet };
        }
        if now.ns.saturating_sub(since.ns) > ttl {
            memory.foreign.remove(&lapsed.id);
            return Watched::Ended;
        }
        Watched::NotYet
    }
}

enum Watched {
    NotYet,
    Renewed,
    Ended,
}
