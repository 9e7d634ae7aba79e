//! The engine: the only caller of [`apply`]. It turns events into guarded writes and the store's answers into answers that
//! never collapse.

use super::{
    Answer, Chosen, ExpiryGuard, Guard, Hint, Insert, Inserted, LeaseOp, ReadError, RequestKey, Store, StoreRefused,
    Unavailable, Wanted, Write,
};
use crate::{
    clock::WallClock,
    limits,
    run::{
        Chain, Charge, Claimer, Delta, Entry, EntryBody, Event, Grant, Late, LateAnswer, LeaseChange, LeaseId, LeaseTime,
        NewRun, Now, Policy, Rejection, Right, RunId, Snapshot, State, Tick, WriteId, apply, birth,
    },
    seal::{self, Column, Keyring, Place},
};
use backon::{ExponentialBuilder, Retryable};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::broadcast;
use tokio_util::task::TaskTracker;

mod artifacts;
mod late;
mod read;
mod transact;

pub use artifacts::KeptArtifact;
pub(crate) use artifacts::{PutAside, Sealed};
pub(crate) use transact::Worked;

/// Entries that were just committed by this process: a hint for watchers, who read the journal for the truth.
#[derive(Clone, Debug)]
pub struct Committed {
    /// The run.
    pub run: RunId,
    /// The number of its next entry.
    pub next: u64,
    /// It is queued now.
    pub queued: bool,
}

/// Why an event was not taken, or not known to be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CommitError {
    /// A rule forbids it.
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// The right moved on.
    #[error("the right to this run has moved on")]
    Fenced,
    /// The journal grew; the right is the same.
    #[error("the run has changed since it was read")]
    Moved,
    /// No such run.
    #[error("there is no such run")]
    Gone,
    /// A budget would be exceeded: nothing of it is there.
    #[error("the budget `{0}` would be exceeded")]
    OverBudget(String),
    /// No answer: it may have been applied.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store said no: nothing of it is there.
    #[error(transparent)]
    Refused(#[from] StoreRefused),
    /// The row does not decode.
    #[error("{0}")]
    Corrupt(String),
}

impl From<Answer> for CommitError {
    /// Of an answer that is not "applied".
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Fenced => Self::Fenced,
            Answer::Moved => Self::Moved,
            Answer::Gone => Self::Gone,
            Answer::OverBudget(budget) => Self::OverBudget(budget),
            Answer::Refused(refused) => refused.into(),
            Answer::Applied(_) => Unavailable("applied, and taken for a failure".into()).into(),
        }
    }
}

impl From<ReadError> for CommitError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable(unavailable) => Self::Unavailable(unavailable),
            ReadError::Corrupt { .. } => Self::Corrupt(error.to_string()),
        }
    }
}

/// A transition that is durable.
#[derive(Clone, Debug)]
pub struct Done {
    /// The row now.
    pub row: Snapshot,
    /// What was appended; empty where the event had been taken before.
    pub entries: Vec<Entry>,
}

/// A transition and how it is written; no write where nothing changes.
#[derive(Clone, Debug)]
pub(crate) struct Drafted {
    write: Option<Write>,
    done: Done,
}

/// Who claims, and how much.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// What it can execute.
    pub(crate) claimer: Claimer,
    /// Its name as a holder.
    pub(crate) process: String,
    /// Runs at most.
    pub(crate) most: usize,
    /// Of each agent at most.
    pub(crate) places: HashMap<String, usize>,
    /// Which rows it asks for.
    pub(crate) wanted: Wanted,
}

/// What a claim came to.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    /// Held by this process now.
    pub(crate) held: Vec<Done>,
    /// Due, and not for this process: why.
    pub(crate) passed_over: Vec<(RunId, String)>,
    /// Of those, the ones whose row does not decode: a claim of such a one by itself settles it.
    pub(crate) unreadable: Vec<RunId>,
    /// Why a run that it wanted is not held, or not known to be, where that is the store's doing.
    pub(crate) failed: Option<String>,
}

/// What a claim has decided about the rows it was shown last.
#[derive(Default)]
struct Decided {
    drafted: Vec<(Write, Done)>,
    passed_over: Vec<(RunId, String)>,
    unreadable: Vec<RunId>,
}

/// Applies events to runs in a store.
#[derive(Debug)]
pub struct Engine {
    store: Arc<dyn Store>,
    wall: Arc<dyn WallClock>,
    policy: Policy,
    ttl: Duration,
    keyring: Option<Arc<Keyring>>,
    committed: broadcast::Sender<Committed>,
    late: TaskTracker,
}

/// How a store that is busy or away is asked again: until the caller has enough.
fn soon() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(2))
        .with_max_delay(Duration::from_millis(500))
        .with_jitter()
        .without_max_times()
}

/// The tools that write of which these entries show a person a call, or stamp one.
fn called(entries: &[Entry]) -> Vec<String> {
    let mut tools = BTreeSet::new();
    for entry in entries {
        match &entry.body {
            EntryBody::Suspended(suspended) => {
                let writes = suspended.card.calls.iter().filter(|call| call.tool.effect.is_write());
                tools.extend(writes.map(|call| call.tool.name.clone()));
            }
            EntryBody::WriteStamped(stamped) | EntryBody::WriteRestamped(stamped) => {
                tools.insert(stamped.tool.clone());
            }
            _ => {}
        }
    }
    tools.into_iter().collect()
}

impl Drafted {
    /// With what it counts against budgets.
    pub(crate) fn charged(mut self, charges: &[Charge]) -> Self {
        if let Some(write) = &mut self.write {
            write.charges = charges.to_vec();
        }
        self
    }
}

impl Engine {
    /// On a store, under the operator's rules.
    pub fn new(store: Arc<dyn Store>, wall: Arc<dyn WallClock>, policy: Policy, ttl: Duration) -> Self {
        let keyring = None;
        Self { store, wall, policy, ttl, keyring, committed: broadcast::Sender::new(1024), late: TaskTracker::new() }
    }

    /// The same with payloads sealed.
    pub fn with_keyring(self, keyring: Option<Arc<Keyring>>) -> Self {
        Self { keyring, ..self }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// How long a lease lasts.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// What the core is told about the world.
    pub fn now(&self) -> Now {
        Now { wall: self.wall.now(), policy: self.policy, chance: fastrand::f64() }
    }

    /// Hints of what this process commits.
    pub fn subscribe(&self) -> broadcast::Receiver<Committed> {
        self.committed.subscribe()
    }

    fn announce(&self, row: &Snapshot) {
        let hint = Committed { run: row.id, next: row.sequence, queued: row.state == State::Queued };
        // No receiver is the usual case; a hint that nobody hears is no loss.
        self.committed.send(hint).ok();
        // A step of a run concerns nobody else; a run that is queued, cancelled, waiting or settled does.
        if row.state != State::Running {
            self.store.hint(Hint { run: Some(row.id), queued: row.state == State::Queued });
        }
    }

    fn lease_op(&self, lease: LeaseChange) -> LeaseOp {
        match lease {
            LeaseChange::Keep => LeaseOp::Keep,
            LeaseChange::Grant | LeaseChange::Extend => LeaseOp::Extend(self.ttl),
            LeaseChange::Drop => LeaseOp::Drop,
        }
    }

    fn entries(
        &self,
        before: Option<&Snapshot>,
        delta: &Delta,
        chain: &mut Option<Chain>,
        write_id: WriteId,
        by_holder: bool,
    ) -> Vec<Entry> {
        let from = before.map_or(0, |row| row.sequence);
        let lease = match delta.lease {
            LeaseChange::Grant => delta.next.lease.as_ref(),
            _ if by_holder => before.and_then(|row| row.lease.as_ref()),
            _ => None,
        };
        let holder = lease.map(|l| l.holder.clone());
        let at = self.wall.now();
        (from..)
            .zip(&delta.entries)
            .map(|(sequence, body)| {
                let (epoch, holder) = (delta.next.epoch, holder.clone());
                let mut entry = Entry { sequence, at, epoch, holder, write_id, mac: None, body: body.clone() };
                if let Some(chain) = chain {
                    let mac = chain.mac(&entry.body.encode());
                    chain.link(&entry, mac);
                    entry.mac = Some(mac);
                }
                entry
            })
            .collect()
    }

    /// A run that is to be made; with a grant it is claimed at birth.
    ///
    /// # Errors
    /// Its content cannot be sealed.
    pub(crate) fn conceive(
        &self,
        new: NewRun,
        grant: Option<Grant>,
        key: Option<RequestKey>,
        write_id: WriteId,
    ) -> Result<(Insert, Done), Unavailable> {
        let mut chain = Some(Chain::new(new.salt));
        let delta = birth(new, grant, &self.now());
        let entries = self.entries(None, &delta, &mut chain, write_id, true);
        let row = Snapshot { chain, ..delta.next };
        let sealed = self.sealed(row.id, &entries)?;
        let insert = Insert { write_id, row: row.clone(), lease: self.lease_op(delta.lease), entries: sealed, key };
        Ok((insert, Done { row, entries }))
    }

    /// Makes it. A repeat of the same is the same run.
    ///
    /// # Errors
    /// No answer: repeat with the same arguments.
    pub(crate) async fn birth(&self, insert: Insert, mut done: Done) -> Result<(Inserted, Done), Unavailable> {
        let inserted = self.store.insert(insert).await?;
        if let (Inserted::Applied(Some(end)), Some(lease)) = (&inserted, done.row.lease.as_mut()) {
            lease.expires_at = end.clone();
        }
        if !matches!(inserted, Inserted::Refused(_)) {
            self.announce(&done.row);
        }
        Ok((inserted, done))
    }

    /// Applies events, one after the other, as one guarded write on the row as the caller knows it.
    ///
    /// # Errors
    /// See [`CommitError`]; after `Unavailable` the caller may repeat with the same write id.
    pub async fn commit(&self, row: &Snapshot, events: Vec<Event>, write_id: WriteId) -> Result<Done, CommitError> {
        self.commit_guarded(row, events, write_id, None).await
    }

    /// The same with the extra guard of an expiry.
    pub(crate) async fn commit_guarded(
        &self,
        row: &Snapshot,
        events: Vec<Event>,
        write_id: WriteId,
        expiry: Option<ExpiryGuard>,
    ) -> Result<Done, CommitError> {
        self.send(self.draft(row, events, write_id, expiry)?).await
    }

    /// Writes a transition. After `Unavailable` the very same may be sent again.
    pub(crate) async fn send(&self, drafted: Drafted) -> Result<Done, CommitError> {
        let Drafted { write, done } = drafted;
        let Some(write) = write else { return Ok(done) };
        match self.store.write(write).await? {
            Answer::Applied(end) => Ok(self.applied(done, end)),
            answer => Err(answer.into()),
        }
    }

    /// What events make of a row.
    pub(crate) fn draft(
        &self,
        row: &Snapshot,
        events: Vec<Event>,
        write_id: WriteId,
        expiry: Option<ExpiryGuard>,
    ) -> Result<Drafted, CommitError> {
        let now = self.now();
        let mut next = row.clone();
        let mut lease = LeaseChange::Keep;
        let mut entries = Vec::new();
        for event in events {
            let by_holder = matches!(event, Event::Holder(..));
            let delta = apply(&next, event, &now)?;
            if delta.lease != LeaseChange::Keep {
                lease = delta.lease;
            }
            let mut chain = next.chain;
            entries.extend(self.entries(Some(&next), &delta, &mut chain, write_id, by_holder));
            next = Snapshot { chain, ..delta.next };
        }
        let guard =
            Guard { sequence: row.sequence, epoch: row.epoch, lease_id: row.lease.as_ref().map(|l| l.lease_id), expiry };
        let changes = !entries.is_empty() || lease != LeaseChange::Keep;
        let (sealed, called) = (self.sealed(row.id, &entries)?, called(&entries));
        let (lease, charges) = (self.lease_op(lease), Vec::new());
        let write = changes.then(|| Write {
            write_id,
            guard,
            next: next.clone(),
            lease,
            entries: sealed,
            charges,
            called,
            artifacts: Vec::new(),
        });
        Ok(Drafted { write, done: Done { row: next, entries } })
    }

    /// A transition whose write is durable.
    fn applied(&self, mut done: Done, end: Option<LeaseTime>) -> Done {
        if let (Some(end), Some(lease)) = (end, done.row.lease.as_mut()) {
            lease.expires_at = end;
        }
        self.announce(&done.row);
        done
    }

    /// Claims what is due, in one exchange with the store, in the order in which `order` puts it. A lost answer is looked up row by
    /// row, for at most a third of the ttl: what is this process's own by its lease id is held, and what is not known then runs out by
    /// itself.
    ///
    /// # Errors
    /// No answer before anything was claimed.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        claim: Claim,
        order: impl Fn(Vec<Snapshot>) -> Vec<Snapshot> + Send + Sync + 'static,
    ) -> Result<Claimed, Unavailable> {
        let decided = Arc::new(Mutex::new(Decided::default()));
        let (engine, shared, wanted) = (Arc::clone(self), Arc::clone(&decided), claim.wanted.clone());
        let choose = move |shown: Vec<Result<Snapshot, ReadError>>| {
            let now_decided = engine.decide_claims(&claim, shown, &order);
            let writes = now_decided.drafted.iter().map(|(write, _)| write.clone()).collect();
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = now_decided;
            writes
        };
        let chosen = self.store.claim(wanted, Arc::new(choose)).await;
        let Decided { drafted, passed_over, unreadable } =
            std::mem::take(&mut *decided.lock().unwrap_or_else(PoisonError::into_inner));
        let answers: Chosen = match chosen {
            Ok(answers) => answers,
            Err(unavailable) if drafted.is_empty() => return Err(unavailable),
            Err(unavailable) => vec![Err(unavailable); drafted.len()],
        };
        let deadline = tokio::time::Instant::now() + self.ttl / 3;
        let mut held = Vec::with_capacity(drafted.len());
        let mut failed = None;
        for ((write, done), answer) in drafted.into_iter().zip(answers) {
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => match self.sent_again(write, deadline).await {
                    Some(answer) => answer,
                    None => {
                        let run = done.row.id;
                        tracing::warn!(%run, "run {run}: whether it was claimed is not known, so it is left alone: {error}");
                        failed = Some(error.to_string());
                        continue;
                    }
                },
            };
            match answer {
                Answer::Applied(end) => held.push(self.applied(done, end)),
                Answer::Refused(refused) => failed = Some(refused.to_string()),
                // Somebody was faster.
                Answer::Fenced | Answer::Moved | Answer::Gone | Answer::OverBudget(_) => {}
            }
        }
        Ok(Claimed { held, passed_over, unreadable, failed })
    }

    fn decide_claims(
        &self,
        claim: &Claim,
        shown: Vec<Result<Snapshot, ReadError>>,
        order: &impl Fn(Vec<Snapshot>) -> Vec<Snapshot>,
    ) -> Decided {
        let mut decided = Decided::default();
        let mut places = claim.places.clone();
        let mut rows = Vec::with_capacity(shown.len());
        for row in shown {
            match row {
                Ok(row) => rows.push(row),
                Err(ReadError::Corrupt { run, why, .. }) => {
                    decided.passed_over.push((run, format!("it cannot be read: {why}")));
                    decided.unreadable.push(run);
                }
                Err(ReadError::Unavailable(_)) => {}
            }
        }
        for row in order(rows) {
            if decided.drafted.len() == claim.most {
                break;
            }
            let Some(place @ 1..) = places.get_mut(&row.agent) else { continue };
            let grant = Grant { lease_id: LeaseId::random(), process: claim.process.clone() };
            let write_id = WriteId(grant.lease_id.0);
            match self.draft(&row, vec![Event::Claim { grant, claimer: claim.claimer.clone() }], write_id, None) {
                Ok(Drafted { write: Some(write), done }) => {
                    *place -= 1;
                    decided.drafted.push((write, done));
                }
                Err(CommitError::Rejected(Rejection::NotServed(what))) => {
                    decided.passed_over.push((row.id, format!("this process does not serve `{what}`")));
                }
                // The queue was closed, or it is not due after all.
                Ok(Drafted { write: None, .. }) | Err(_) => {}
            }
        }
        decided
    }

    /// A write whose answer was lost, sent again under its id until it is answered; none at the deadline.
    async fn sent_again(&self, write: Write, deadline: tokio::time::Instant) -> Option<Answer> {
        let attempts = (|| self.store.write(write.clone())).retry(soon());
        tokio::time::timeout_at(deadline, attempts).await.ok()?.ok()
    }

    /// Ends a run whose row does not decode, by events that continue nothing. Not where somebody holds it: a newer version may
    /// read what this one cannot. A lease that has ended by the store's clock is taken away in the same write: where not even the
    /// state is known, no sweep finds it.
    ///
    /// # Errors
    /// A rejection, held by somebody, not readable enough for that, no answer.
    pub(crate) async fn end_unreadable(&self, id: RunId, events: Vec<Event>, write_id: WriteId) -> Result<Done, CommitError> {
        let row = self.load_to_end(id).await?;
        let Some(lease) = row.lease.clone() else { return self.commit(&row, events, write_id).await };
        let right = Right { epoch: row.epoch, lease_id: lease.lease_id };
        let expire = Event::Clock(Tick::Expire { right, expires_at: lease.expires_at.clone() });
        let guard = ExpiryGuard { expires_at: lease.expires_at, watched: None };
        let events = std::iter::once(expire).chain(events).collect();
        match self.commit_guarded(&row, events, write_id, Some(guard)).await {
            Err(CommitError::Moved | CommitError::Fenced) => Err(CommitError::Corrupt(format!(
                "run {id} cannot be read here, and {} holds it: wait until its lease has ended",
                lease.holder
            ))),
            ended => ended,
        }
    }

    /// Applies a foreign event to the row as it is: read, apply, write, and again where somebody else was faster. A lost answer
    /// is looked up by the write id and never taken for either.
    ///
    /// # Errors
    /// A rejection, no such run, or no answer for `patience`.
    pub async fn change(
        &self,
        id: RunId,
        write_id: WriteId,
        patience: Duration,
        event: impl Fn(&Snapshot) -> Event,
    ) -> Result<Done, CommitError> {
        self.change_keeping(id, write_id, patience, event, &Sealed::default()).await
    }

    async fn change_keeping(
        &self,
        id: RunId,
        write_id: WriteId,
        patience: Duration,
        event: impl Fn(&Snapshot) -> Event,
        kept: &Sealed,
    ) -> Result<Done, CommitError> {
        let started = tokio::time::Instant::now();
        // The sequence at which a write without an answer was sent: from there on its own entries are looked for.
        let unanswered = AtomicU64::new(u64::MAX);
        let last = Mutex::new(None);
        let sent: Mutex<Option<(u64, u64, Drafted)>> = Mutex::new(None);
        let attempt = || async {
            let row = self.load(id).await?;
            let sent_at = unanswered.load(Ordering::Relaxed);
            if sent_at < row.sequence {
                let entries = self.journal_of(&row, sent_at).await.map_err(CommitError::from)?;
                let own: Vec<Entry> = entries.into_iter().filter(|e| e.write_id == write_id).collect();
                if !own.is_empty() {
                    self.announce(&row);
                    return Ok(Done { row, entries: own });
                }
            }
            // What was sent before and not answered is sent again as it was, where the row is as it was: the store takes either for
            // the other.
            let drafted = sent.lock().unwrap_or_else(PoisonError::into_inner).take();
            let drafted = match drafted.filter(|(sequence, epoch, _)| (*sequence, *epoch) == (row.sequence, row.epoch)) {
                Some((.., drafted)) => drafted,
                None => self.draft(&row, vec![event(&row)], write_id, None)?.keeping(kept),
            };
            *sent.lock().unwrap_or_else(PoisonError::into_inner) = Some((row.sequence, row.epoch, drafted.clone()));
            match self.send(drafted).await {
                Err(CommitError::Unavailable(unavailable)) => {
                    unanswered.fetch_min(row.sequence, Ordering::Relaxed);
                    Err(unavailable.into())
                }
                // What was sent before and not answered may yet come to be, or have.
                Err(CommitError::Refused(refused)) if unanswered.load(Ordering::Relaxed) != u64::MAX => {
                    Err(Unavailable(refused.why).into())
                }
                result => result,
            }
        };
        let attempts = attempt.retry(soon()).when(|error| {
            if let CommitError::Unavailable(unavailable) = error {
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(unavailable.0.clone());
            }
            let again = match error {
                CommitError::Moved | CommitError::Fenced | CommitError::Unavailable(_) => true,
                CommitError::Refused(refused) => !refused.lasting,
                _ => false,
            };
            again && started.elapsed() < patience
        });
        // A store that is silent is given no longer than one that says it cannot.
        match tokio::time::timeout(patience, attempts).await {
            Ok(result) => result,
            Err(_) => {
                let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
                Err(CommitError::Unavailable(Unavailable(last.unwrap_or_else(|| "it is silent".into()))))
            }
        }
    }
}
