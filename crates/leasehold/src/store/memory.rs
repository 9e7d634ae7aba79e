//! The store in memory: the contract without a disk, for tests and for a run that nobody needs to find again. Every operation
//! holds one lock from its first look to its last change, so each is a transaction. Nothing survives the value.

use super::{
    Answer, Artifact, Choose, Chosen, Filter, Guard, Held, Insert, Inserted, Lapse, Lapsed, LeaseOp, Listed, Look, ReadError,
    Record, Renewer, RequestKey, Store, Unavailable, Visible, Wanted, Write, record, shape,
};
use crate::{
    clock::BootClock,
    run::{CallId, Charge, Claimer, Entry, LeaseTime, RunId, Snapshot, State, WriteId},
};
use async_trait::async_trait;
use jiff::Timestamp;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

#[derive(Debug)]
struct Stored {
    row: Snapshot,
    journal: Vec<Entry>,
    /// When it settled, as somebody was told.
    told: Option<Timestamp>,
}

#[derive(Debug, Default)]
struct Tables {
    runs: BTreeMap<RunId, Stored>,
    keys: HashMap<(String, String), (RunId, String)>,
    workers: HashMap<String, (LeaseTime, Claimer)>,
    effects: HashMap<(String, RunId, CallId), (Timestamp, i64)>,
    records: BTreeMap<(String, String), Record>,
    callers: HashMap<(String, RunId), Timestamp>,
    artifacts: BTreeMap<(RunId, String), Artifact>,
}

#[derive(Debug)]
struct Shared {
    tables: Mutex<Tables>,
    clock: Arc<dyn BootClock>,
}

impl Shared {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A caller that panicked while it held the lock left each row whole: rows are replaced, never edited in steps.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
    fn now(&self) -> LeaseTime {
        LeaseTime { clock: self.clock.boot_id().to_owned(), ns: self.clock.now().ns }
    }
    fn after(&self, ttl: Duration) -> LeaseTime {
        let now = self.now();
        LeaseTime { ns: now.ns.saturating_add(i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX)), ..now }
    }
}

/// See the module. Cheap to clone the `Arc` of; two handles of one `Arc` are one store.
#[derive(Debug)]
pub struct MemoryStore {
    shared: Arc<Shared>,
}

impl MemoryStore {
    /// An empty store whose leases run on this clock.
    pub fn new(clock: Arc<dyn BootClock>) -> Arc<Self> {
        Arc::new(Self { shared: Arc::new(Shared { tables: Mutex::default(), clock }) })
    }

    /// A second handle on the same rows, as another process has on a file.
    pub fn reopen(&self) -> Arc<Self> {
        Arc::new(Self { shared: Arc::clone(&self.shared) })
    }
}

impl Shared {
    fn guard_holds(&self, row: &Snapshot, guard: &Guard) -> bool {
        let lease_id = row.lease.as_ref().map(|l| l.lease_id);
        if row.epoch != guard.epoch || lease_id != guard.lease_id || row.sequence != guard.sequence {
            return false;
        }
        let Some(expiry) = &guard.expiry else { return true };
        let Some(lease) = &row.lease else { return false };
        let over = match Lapse::of(&lease.expires_at, &self.now(), expiry.watched.unwrap_or(Duration::MAX)) {
            None => false,
            Some(Lapse::Passed) => true,
            Some(Lapse::Ahead | Lapse::Foreign) => expiry.watched.is_some(),
        };
        lease.expires_at == expiry.expires_at && over
    }

    fn write(&self, tables: &mut Tables, write: Write) -> Result<Answer, Unavailable> {
        shape::check_write(&write)?;
        let run = write.next.id;
        let over = write.charges.iter().find(|charge| charge.exceeds(spent(&tables.effects, charge, run)));
        let Some(stored) = tables.runs.get_mut(&run) else { return Ok(Answer::Gone) };
        if !self.guard_holds(&stored.row, &write.guard) {
            let lease_id = stored.row.lease.as_ref().map(|l| l.lease_id);
            return Ok(if has_write(stored, write.write_id) {
                Answer::Applied(lease_end(&stored.row))
            } else if stored.row.epoch != write.guard.epoch || lease_id != write.guard.lease_id {
                Answer::Fenced
            } else {
                Answer::Moved
            });
        }
        if let Some(charge) = over {
            return Ok(Answer::OverBudget(charge.budget.clone()));
        }
        let called_at = write.entries.last().map(|entry| entry.at);
        let mut next = write.next;
        match write.lease {
            LeaseOp::Keep => next.lease = stored.row.lease.clone(),
            LeaseOp::Drop => next.lease = None,
            LeaseOp::Extend(ttl) => {
                if let Some(lease) = &mut next.lease {
                    lease.expires_at = self.after(ttl);
                }
            }
        }
        shape::check_row(&next).map_err(refused)?;
        stored.row = next;
        stored.journal.extend(with_write_id(write.entries, write.write_id));
        let end = lease_end(&stored.row);
        if let Some(at) = called_at {
            tables.callers.extend(write.called.into_iter().map(|tool| ((tool, run), at)));
        }
        for artifact in write.artifacts {
            tables.artifacts.entry((run, artifact.handle.clone())).or_insert(artifact);
        }
        for charge in write.charges {
            tables.effects.entry((charge.budget, run, charge.call)).or_insert((charge.at, charge.amount));
        }
        Ok(Answer::Applied(end))
    }
}

fn sees(seen: &Visible, row: &Snapshot) -> bool {
    row.owner == seen.owner
        || row.initiator == seen.initiator
        || row.team.as_ref().is_some_and(|team| seen.teams.contains(team))
}

/// What other calls have spent of a budget.
fn spent(effects: &HashMap<(String, RunId, CallId), (Timestamp, i64)>, charge: &Charge, run: RunId) -> i64 {
    let since = charge.since();
    let others = effects
        .iter()
        .filter(|((budget, by, call), (at, _))| *budget == charge.budget && (*by, call) != (run, &charge.call) && *at > since);
    others.map(|(_, (_, amount))| *amount).fold(0, i64::saturating_add)
}

fn lease_end(row: &Snapshot) -> Option<LeaseTime> {
    row.lease.as_ref().map(|l| l.expires_at.clone())
}

fn refused(why: &str) -> Unavailable {
    Unavailable(format!("memory: the row is refused: {why}"))
}

fn has_write(stored: &Stored, write_id: WriteId) -> bool {
    stored.journal.iter().any(|e| e.write_id == write_id)
}

#[async_trait]
impl Store for MemoryStore {
    async fn insert(&self, insert: Insert) -> Result<Inserted, Unavailable> {
        shape::check_insert(&insert)?;
        let mut tables = self.shared.tables();
        let id = insert.row.id;
        if let Some(stored) = tables.runs.get(&id) {
            return if has_write(stored, insert.write_id) {
                Ok(Inserted::Applied(lease_end(&stored.row)))
            } else {
                Err(refused("its run id is another run's"))
            };
        }
        let key = insert.key.map(|RequestKey { scope, key, request_hash }| ((scope, key), request_hash));
        if let Some((key, hash)) = &key
            && let Some((run, stored_hash)) = tables.keys.get(key)
        {
            return Ok(if stored_hash == hash { Inserted::Existing(*run) } else { Inserted::KeyConflict(*run) });
        }
        let mut row = insert.row;
        if let (LeaseOp::Extend(ttl), Some(lease)) = (insert.lease, &mut row.lease) {
            lease.expires_at = self.shared.after(ttl);
        }
        shape::check_row(&row).map_err(refused)?;
        if let Some((key, hash)) = key {
            tables.keys.insert(key, (id, hash));
        }
        let end = lease_end(&row);
        tables.runs.insert(id, Stored { row, journal: with_write_id(insert.entries, insert.write_id), told: None });
        Ok(Inserted::Applied(end))
    }

    async fn write(&self, write: Write) -> Result<Answer, Unavailable> {
        self.shared.write(&mut self.shared.tables(), write)
    }

    async fn load(&self, id: RunId) -> Result<Option<Snapshot>, ReadError> {
        Ok(self.shared.tables().runs.get(&id).map(|s| s.row.clone()))
    }

    async fn journal(&self, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError> {
        let tables = self.shared.tables();
        let from = usize::try_from(from).unwrap_or(usize::MAX);
        Ok(tables
            .runs
            .get(&id)
            .map(|s| s.journal.iter().skip(from).take(shape::page(limit)).cloned().collect())
            .unwrap_or_default())
    }

    async fn artifacts(&self, id: RunId) -> Result<Vec<Artifact>, Unavailable> {
        let tables = self.shared.tables();
        let of_run = tables.artifacts.iter().filter(|((run, _), _)| *run == id).map(|(_, artifact)| artifact);
        let mut found: Vec<Artifact> = of_run.map(|it| Artifact { content: Arc::default(), ..it.clone() }).collect();
        found.sort_by(|a, b| (a.sequence, &a.handle).cmp(&(b.sequence, &b.handle)));
        found.truncate(shape::page(usize::MAX));
        Ok(found)
    }

    async fn artifact(&self, id: RunId, handle: &str) -> Result<Option<Artifact>, Unavailable> {
        Ok(self.shared.tables().artifacts.get(&(id, handle.to_owned())).cloned())
    }

    async fn list(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Result<Vec<Listed>, Unavailable> {
        let tables = self.shared.tables();
        let shown = |row: &Snapshot| {
            (filter.states.is_empty() || filter.states.contains(&row.state))
                && filter.agent.as_ref().is_none_or(|a| *a == row.agent)
                && filter.owner.as_ref().is_none_or(|o| *o == row.owner)
                && filter.reason.as_ref().is_none_or(|r| row.reason.is_some_and(|x| x.as_str() == r))
                && filter.since.is_none_or(|s| row.created_at >= s)
                && filter.visible_to.as_ref().is_none_or(|seen| sees(seen, row))
                && (!filter.flagged_only || row.duplicates > 0 || row.contradictions > 0)
        };
        Ok(tables
            .runs
            .iter()
            .rev()
            .filter(|(id, s)| before.is_none_or(|b| **id < b) && shown(&s.row))
            .take(shape::page(limit))
            .map(|(_, s)| listed(&s.row))
            .collect())
    }

    async fn claim(&self, wanted: Wanted, choose: Choose) -> Result<Chosen, Unavailable> {
        let mut tables = self.shared.tables();
        let mut shown = Vec::new();
        for (agent, most) in &wanted.agents {
            let is_due = |r: &&Snapshot| r.state == State::Queued && r.due_at <= wanted.now && r.agent == *agent;
            let mut due: Vec<&Snapshot> = tables.runs.values().map(|s| &s.row).filter(is_due).collect();
            due.retain(|r| !wanted.except.contains(&r.id));
            due.sort_by_key(|r| (Reverse(r.priority), r.due_at, r.id));
            shown.extend(due.into_iter().take(shape::page(*most)).cloned().map(Ok));
        }
        if shown.is_empty() {
            return Ok(Vec::new());
        }
        Ok(choose(shown).into_iter().map(|write| self.shared.write(&mut tables, write)).collect())
    }

    async fn next_due(&self, agents: &[String]) -> Result<Option<Timestamp>, Unavailable> {
        let tables = self.shared.tables();
        let queued = tables.runs.values().map(|s| &s.row).filter(|r| r.state == State::Queued && agents.contains(&r.agent));
        Ok(queued.map(|r| r.due_at).min())
    }

    async fn now(&self) -> Result<LeaseTime, Unavailable> {
        Ok(self.shared.now())
    }

    async fn lapsed(&self, ttl: Duration, after: Option<RunId>, limit: usize) -> Result<Vec<Lapsed>, Unavailable> {
        let now = self.shared.now();
        let tables = self.shared.tables();
        Ok(tables
            .runs
            .values()
            .filter(|s| after.is_none_or(|a| s.row.id > a))
            .filter_map(|s| s.row.lease.as_ref().map(|lease| (&s.row, lease)))
            .filter_map(|(row, lease)| {
                Some(Lapsed {
                    id: row.id,
                    epoch: row.epoch,
                    lease_id: lease.lease_id,
                    expires_at: lease.expires_at.clone(),
                    lapse: Lapse::of(&lease.expires_at, &now, ttl)?,
                })
            })
            .take(shape::page(limit))
            .collect())
    }

    async fn overdue(&self, now: Timestamp, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, Unavailable> {
        let tables = self.shared.tables();
        let passed = |row: &Snapshot| row.turn.as_ref().and_then(|t| t.deadline).is_some_and(|d| d <= now);
        Ok(tables
            .runs
            .values()
            .map(|s| &s.row)
            .filter(|r| r.state.is_waiting() && after.is_none_or(|a| r.id > a) && passed(r))
            .take(shape::page(limit))
            .map(|r| r.id)
            .collect())
    }

    async fn callers(
        &self,
        tool: &str,
        since: Timestamp,
        visible_to: Option<&Visible>,
        limit: usize,
    ) -> Result<Vec<RunId>, Unavailable> {
        let tables = self.shared.tables();
        let shown = |id: &RunId| tables.runs.get(id).is_some_and(|s| visible_to.is_none_or(|to| sees(to, &s.row)));
        let of = tables.callers.iter().filter(|((of, id), at)| of == tool && **at >= since && shown(id));
        let mut found: Vec<(Timestamp, RunId)> = of.map(|((_, id), at)| (*at, *id)).collect();
        found.sort_by_key(|newest| std::cmp::Reverse(*newest));
        found.truncate(shape::page(limit));
        Ok(found.into_iter().map(|(_, id)| id).collect())
    }

    async fn untold(&self, since: Timestamp, limit: usize) -> Result<Vec<(RunId, Timestamp)>, Unavailable> {
        let tables = self.shared.tables();
        let untold = |s: &Stored| s.row.finished_at.filter(|at| s.told != Some(*at) && *at >= since).map(|at| (s.row.id, at));
        let mut found: Vec<(RunId, Timestamp)> = tables.runs.values().filter_map(untold).collect();
        found.sort_by_key(|(id, at)| (*at, *id));
        found.truncate(shape::page(limit));
        Ok(found)
    }

    async fn told(&self, id: RunId, finished_at: Timestamp) -> Result<(), Unavailable> {
        let mut tables = self.shared.tables();
        if let Some(stored) = tables.runs.get_mut(&id).filter(|stored| stored.row.finished_at == Some(finished_at)) {
            stored.told = Some(finished_at);
        }
        Ok(())
    }

    async fn find(&self, suffix: &str) -> Result<Vec<RunId>, Unavailable> {
        let Some(suffix) = shape::id_suffix(suffix) else { return Ok(Vec::new()) };
        let tables = self.shared.tables();
        Ok(tables.runs.keys().rev().filter(|id| id.0.simple().to_string().ends_with(&suffix)).take(2).copied().collect())
    }

    async fn announce(&self, worker: &str, ttl: Duration, claimer: &Claimer) -> Result<(), Unavailable> {
        let mut tables = self.shared.tables();
        if claimer.open {
            tables.workers.insert(worker.to_owned(), (self.shared.after(ttl), claimer.clone()));
        } else {
            tables.workers.remove(worker);
        }
        Ok(())
    }

    async fn workers(&self) -> Result<Vec<Claimer>, Unavailable> {
        let now = self.shared.now();
        let tables = self.shared.tables();
        let alive = tables.workers.values().filter(|(end, _)| end.clock == now.clock && end.ns > now.ns);
        Ok(alive.map(|(_, claimer)| claimer.clone()).take(shape::page(usize::MAX)).collect())
    }

    async fn record(&self, kind: &str, key: &str) -> Result<Option<Record>, Unavailable> {
        Ok(self.shared.tables().records.get(&(kind.to_owned(), key.to_owned())).cloned())
    }

    async fn records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, Unavailable> {
        let tables = self.shared.tables();
        let of_kind = tables.records.values().filter(|r| r.kind == kind && after.is_none_or(|after| r.key.as_str() > after));
        Ok(of_kind.take(shape::page(limit)).cloned().collect())
    }

    async fn put_records(&self, records: Vec<Record>) -> Result<bool, Unavailable> {
        let records = record::in_order(records)?;
        let mut tables = self.shared.tables();
        let name = |r: &Record| (r.kind.clone(), r.key.clone());
        if records.iter().any(|r| tables.records.get(&name(r)).map_or(0, |there| there.version) != r.version) {
            return Ok(false);
        }
        tables.records.extend(records.into_iter().map(|r| (name(&r), r.written())));
        Ok(true)
    }

    async fn remove_record(&self, kind: &str, key: &str, version: u64) -> Result<bool, Unavailable> {
        let mut tables = self.shared.tables();
        let name = (kind.to_owned(), key.to_owned());
        let same = tables.records.get(&name).is_some_and(|there| there.version == version);
        if same {
            tables.records.remove(&name);
        }
        Ok(same)
    }

    fn renewer(&self) -> Result<Box<dyn Renewer>, Unavailable> {
        Ok(Box::new(MemoryRenewer { shared: Arc::clone(&self.shared) }))
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

/// An entry is of the write that appended it, whatever its maker put there: re-sends are recognised by it.
fn with_write_id(entries: Vec<Entry>, write_id: WriteId) -> Vec<Entry> {
    entries.into_iter().map(|e| Entry { write_id, ..e }).collect()
}

fn listed(row: &Snapshot) -> Listed {
    Listed {
        id: row.id,
        agent: row.agent.clone(),
        owner: row.owner.clone(),
        team: row.team.clone(),
        state: row.state.as_str().to_owned(),
        reason: row.reason.map(|r| r.as_str().to_owned()),
        epoch: row.epoch,
        holder: row.lease.as_ref().map(|l| l.holder.clone()),
        fence_tool: row.fence.as_ref().map(|f| f.tool.clone()),
        cancel_requested: row.cancel_requested,
        duplicates: row.duplicates,
        contradictions: row.contradictions,
        attribution: row.attribution.map(|a| a.as_str().to_owned()),
        created_at: row.created_at,
        since: row.since,
    }
}

struct MemoryRenewer {
    shared: Arc<Shared>,
}

impl MemoryRenewer {
    fn each(&self, held: &[Held], ttl: Option<Duration>) -> Vec<Look> {
        let mut tables = self.shared.tables();
        let mut looks = Vec::with_capacity(held.len());
        for right in held {
            let Some(stored) = tables.runs.get_mut(&right.id) else { continue };
            let row = &mut stored.row;
            let epoch_is_right = row.epoch == right.epoch;
            let lease = row.lease.as_mut().filter(|l| epoch_is_right && l.lease_id == right.lease_id);
            let still_held = lease.is_some();
            if let (Some(lease), Some(ttl)) = (lease, ttl) {
                lease.expires_at = self.shared.after(ttl);
            }
            looks.push(Look {
                right: *right,
                held: still_held,
                renewed: still_held && ttl.is_some(),
                sequence: row.sequence,
                cancel_requested: row.cancel_requested,
            });
        }
        looks
    }
}

impl Renewer for MemoryRenewer {
    fn renew(&mut self, held: &[Held], ttl: Duration) -> Result<Vec<Look>, Unavailable> {
        Ok(self.each(held, Some(ttl)))
    }
    fn look(&mut self, held: &[Held]) -> Result<Vec<Look>, Unavailable> {
        Ok(self.each(held, None))
    }
}
