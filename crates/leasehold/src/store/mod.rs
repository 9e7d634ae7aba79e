//! The store contract: storage, not engine. A store keeps rows and journals and applies guarded writes; no rule of the protocol
//! lives in it. What changes is computed by [`apply`](crate::run::apply), in the engine alone.
//!
//! A store promises:
//!
//! 1. **One write is one transaction**: the row changes and the entries are appended together, or neither is.
//! 2. **The guard is checked in that transaction**: sequence, epoch and lease id of the row are what the writer saw; for an
//!    expiry the lease's end too, and that it has passed on the store's own clock. Answers never collapse, see [`Answer`].
//! 3. **Applied means durable**: the answer comes after the commit reached the disk.
//! 4. **A write id is recognised**: a write whose entries are there already answers [`Answer::Applied`] again and changes nothing.
//! 5. **The store's clock ends leases**: where a write grants or extends, the new end is the store's now + ttl.
//! 6. **Batches**: writes that wait are committed together; each caller gets its own answer, and one that errors, or whose row
//!    somebody else keeps locked, neither takes the others down nor holds them up.
//! 7. **A charge is counted in the transaction of its write**, once for each call; two writes that charge the same budget are counted
//!    one after the other, and one that would exceed it changes nothing.
//! 8. Bytes come back as they went in.
//! 9. **Two claims never see the same row**: what a claim is shown nobody else is shown or changes until that claim is committed or
//!    undone, and no claim waits for another's rows longer than it takes to commit. A claimer that dies or stands still in between
//!    holds nothing for longer than seconds.
//! 10. **Records are compared and set**: a [`Record`] is written where its version is the one that its writer saw, and only there. Those
//!     of one [`put_records`](Store::put_records) are written together or not at all, whoever dies in between, and are locked in the
//!     order of kind and key, so that no two writers wait for each other. `false` says that somebody was faster, and nothing else: a
//!     refusal of the database is an error.
//!
//! 11. **Work and its record are one**: what [`transact`](Store::transact) does in the store's own database is there with the guarded
//!     write that journals it, or neither is. A store without a database does not begin it.
//!
//! 12. **Artifacts are there with the entry that they came with**, or neither is: those of a write are written in its transaction, and
//!     one whose handle its run has already stays as it is.
//!
//! [`conformance`](../../leasehold_testkit/conformance/index.html) in the test kit is this contract as tests, with one entry for every store.

mod artifact;
pub mod engine;
pub mod memory;
pub mod postgres;
mod record;
mod shape;
pub mod sqlite;
pub mod transaction;
mod wall;

pub use artifact::Artifact;
pub use record::Record;
pub use transaction::{Transacted, Transaction};
pub use wall::StoreWall;

use crate::run::{Charge, Claimer, Entry, LeaseId, LeaseTime, RunId, Snapshot, State, WriteId};
use async_trait::async_trait;
use jiff::Timestamp;
use std::{fmt, sync::Arc, time::Duration};
use tokio::sync::broadcast;

/// No answer: what was asked may have been applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store did not answer: {0}")]
pub struct Unavailable(pub String);

/// Why a read has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// No answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// This row or entry does not decode; others are not affected.
    #[error("run {run} cannot be read: {why}")]
    Corrupt {
        /// Which run.
        run: RunId,
        /// What is wrong; no content.
        why: String,
        /// What of a row can be read, with the most careful value for what cannot: for ending the run, never for going on with
        /// it. None for an entry, and where the row's guard, lease or fence cannot be read.
        rest: Option<Box<Snapshot>>,
    },
}

/// What a write does to the lease columns; the store computes the times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOp {
    /// Stays (a foreign change, or none held).
    Keep,
    /// Set or moved to the store's now + ttl; id and holder are those of the new row's lease.
    Extend(Duration),
    /// Cleared.
    Drop,
}

/// What the writer saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The row's sequence.
    pub sequence: u64,
    /// The row's epoch.
    pub epoch: u64,
    /// The row's lease id; none where the row has no lease.
    pub lease_id: Option<LeaseId>,
    /// For an expiry: the lease's end as seen.
    pub expiry: Option<ExpiryGuard>,
}

/// The extra guard of an expiry: in the statement itself, so that a renewal in between wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiryGuard {
    /// The end as seen.
    pub expires_at: LeaseTime,
    /// The lease was watched unrenewed for a whole ttl, which is this: it is over where its end says nothing, being of a clock
    /// that stopped (another boot) or further away than a lease granted now. Otherwise the end must have passed on the store's
    /// clock.
    pub watched: Option<Duration>,
}

/// One guarded write: the new row and what is appended.
#[derive(Clone, Debug)]
pub struct Write {
    /// Kept on the entries.
    pub write_id: WriteId,
    /// Must match.
    pub guard: Guard,
    /// The whole row afterwards. Its lease's `expires_at` is ignored where `lease` says `Extend`.
    pub next: Snapshot,
    /// The lease columns.
    pub lease: LeaseOp,
    /// Appended, numbered from `guard.sequence`.
    pub entries: Vec<Entry>,
    /// Counted in the same transaction; where one is too much, nothing is written.
    pub charges: Vec<Charge>,
    /// The tools that write of which its entries show a person a call, or stamp one; each once.
    pub called: Vec<String>,
    /// Kept with its entries.
    pub artifacts: Vec<Artifact>,
}

/// The store said no, for a reason of its own (a permission, a full disk): certainly nothing of it is there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store refused it, and nothing has changed: {why}")]
pub struct StoreRefused {
    /// What it said.
    pub why: String,
    /// Sent again it is refused again, until somebody changes the store.
    pub lasting: bool,
}

/// Answers of a guarded write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Durable, now or by an earlier send of the same write; the row's lease end, where it has one.
    Applied(Option<LeaseTime>),
    /// Epoch or lease is another's: the right moved on.
    Fenced,
    /// The same right, but the journal grew (or, for an expiry, the lease was renewed).
    Moved,
    /// No such row.
    Gone,
    /// A charge is too much for this budget; nothing is written.
    OverBudget(String),
    /// The store would not have it.
    Refused(StoreRefused),
}

/// A new run.
#[derive(Clone, Debug)]
pub struct Insert {
    /// Kept on the first entry.
    pub write_id: WriteId,
    /// The first row.
    pub row: Snapshot,
    /// `Extend` where it is claimed at birth, else `Keep`.
    pub lease: LeaseOp,
    /// The first entries, from 0.
    pub entries: Vec<Entry>,
    /// The caller's request key.
    pub key: Option<RequestKey>,
}

/// Makes a repeated enqueue find its run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// Whose key.
    pub scope: String,
    /// The key.
    pub key: String,
    /// Hash of the request; another request under the same key is a conflict.
    pub request_hash: String,
}

/// What became of an insert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// There now (by this or an earlier send of the same write); its lease end, where it has one.
    Applied(Option<LeaseTime>),
    /// The key has a run with the same request.
    Existing(RunId),
    /// The key has a run with another request.
    KeyConflict(RunId),
    /// The store would not have it.
    Refused(StoreRefused),
}

/// Whose rows a list shows: those of this owner, those that this person is behind, and those of these teams.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visible {
    /// The owner.
    pub owner: String,
    /// The person behind a run.
    pub initiator: String,
    /// The teams.
    pub teams: Vec<String>,
}

/// Which rows a list shows; every field narrows.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// One of these; empty: any.
    pub states: Vec<State>,
    /// This agent.
    pub agent: Option<String>,
    /// This owner.
    pub owner: Option<String>,
    /// This reason.
    pub reason: Option<String>,
    /// Created at or after.
    pub since: Option<Timestamp>,
    /// Only rows that this principal sees: its own and those of its teams.
    pub visible_to: Option<Visible>,
    /// Only rows with an effect that landed twice, or with an outcome that its process contradicts.
    pub flagged_only: bool,
}

/// A row of a list: plain columns only, so that a row that does not decode is listed like any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The run.
    pub id: RunId,
    /// Its agent.
    pub agent: String,
    /// Its owner.
    pub owner: String,
    /// Its team.
    pub team: Option<String>,
    /// Its state.
    pub state: String,
    /// Its reason.
    pub reason: Option<String>,
    /// Its epoch.
    pub epoch: u64,
    /// Its holder.
    pub holder: Option<String>,
    /// The tool of its standing fence.
    pub fence_tool: Option<String>,
    /// Somebody cancelled it.
    pub cancel_requested: bool,
    /// Effects that landed twice.
    pub duplicates: u32,
    /// Times that a process said the opposite of a recorded outcome.
    pub contradictions: u32,
    /// By whom its writes were released, the weakest of them.
    pub attribution: Option<String>,
    /// Created.
    pub created_at: Timestamp,
    /// Waits or is dead since.
    pub since: Timestamp,
}

/// Why a lease may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// Its end has passed on the store's clock.
    Passed,
    /// Its end is further away than that of a lease granted now: the store's clock stepped back since.
    Ahead,
    /// Its end is on another clock than the store's present one.
    Foreign,
}

/// A row whose lease may have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lapsed {
    /// The run.
    pub id: RunId,
    /// Its epoch.
    pub epoch: u64,
    /// Its lease.
    pub lease_id: LeaseId,
    /// The lease's end.
    pub expires_at: LeaseTime,
    /// Why.
    pub lapse: Lapse,
}

impl Lapse {
    /// Of a lease that ends then, on a store whose clock says `now`; none where it lasts.
    pub(crate) fn of(end: &LeaseTime, now: &LeaseTime, ttl: Duration) -> Option<Self> {
        let ttl = i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX);
        if end.clock != now.clock {
            Some(Self::Foreign)
        } else if end.ns <= now.ns {
            Some(Self::Passed)
        } else if end.ns > now.ns.saturating_add(ttl) {
            Some(Self::Ahead)
        } else {
            None
        }
    }
}

/// A right that a process believes it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    /// The run.
    pub id: RunId,
    /// The epoch.
    pub epoch: u64,
    /// The lease.
    pub lease_id: LeaseId,
}

/// What a look or a renewal found for one held right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The right: a process that lost a run and claimed it again may ask about both.
    pub right: Held,
    /// The row still has this epoch and lease, as far as is known: `false` says that the right moved on.
    pub held: bool,
    /// This very call extended it. A right that is held and was to be extended and was not is without word: somebody else has its
    /// row for the moment, and it is asked for again.
    pub renewed: bool,
    /// The row's sequence; differs from the holder's where somebody else wrote.
    pub sequence: u64,
    /// A cancel was accepted.
    pub cancel_requested: bool,
}

/// Which queued runs a claim wants to see.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Of these agents, at most so many runs each (and [`PAGE_MAX`](crate::limits::PAGE_MAX)).
    pub agents: Vec<(String, usize)>,
    /// Due at this time.
    pub now: Timestamp,
    /// None of these.
    pub except: Vec<RunId>,
}

/// What a claim writes of the rows it is shown; a row that does not decode is shown as its error. It must not block. A store that
/// had to begin its transaction again asks again, and only the writes of the last time count.
pub type Choose = Arc<dyn Fn(Vec<Result<Snapshot, ReadError>>) -> Vec<Write> + Send + Sync>;

/// What became of each write of a claim, in their order; one that errors does not take the others down.
pub type Chosen = Vec<Result<Answer, Unavailable>>;

/// A run was changed by some process. It may be missed or come for nothing: whoever hears one looks, and looks anyway from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Which run; none: any.
    pub run: Option<RunId>,
    /// It is queued now.
    pub queued: bool,
}

/// A connection of its own for the renewing thread: nothing else waits on it and it waits on nothing else.
pub trait Renewer: Send {
    /// Extends every right that is still held, in one statement, and says what it found, one [`Look`] for each whose run has a row. A row
    /// that somebody else has locked keeps no other from being extended: it is waited for only a small part of the ttl.
    ///
    /// # Errors
    /// No answer; some may have been extended.
    fn renew(&mut self, held: &[Held], ttl: Duration) -> Result<Vec<Look>, Unavailable>;
    /// The same without extending.
    ///
    /// # Errors
    /// No answer.
    fn look(&mut self, held: &[Held]) -> Result<Vec<Look>, Unavailable>;
}

/// A store. See the module for what it promises.
#[async_trait]
pub trait Store: Send + Sync + fmt::Debug {
    /// Adds a run.
    async fn insert(&self, insert: Insert) -> Result<Inserted, Unavailable>;
    /// Applies one guarded write; many callers' writes are committed together.
    async fn write(&self, write: Write) -> Result<Answer, Unavailable>;
    /// Does work in the store's own database and applies the guarded write that it concludes in, as one transaction on a connection
    /// of its own.
    async fn transact(&self, transaction: Transaction) -> Result<Transacted, Unavailable> {
        Ok(Transacted::no_database(&self.describe(), &transaction.work))
    }
    /// The row.
    async fn load(&self, id: RunId) -> Result<Option<Snapshot>, ReadError>;
    /// Entries from number `from`, at most `limit` (and [`PAGE_MAX`](crate::limits::PAGE_MAX)).
    async fn journal(&self, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError>;
    /// The artifacts of a run without their content, in the order of their entries and handles; at most
    /// [`PAGE_MAX`](crate::limits::PAGE_MAX).
    async fn artifacts(&self, id: RunId) -> Result<Vec<Artifact>, Unavailable>;
    /// An artifact with its content.
    async fn artifact(&self, id: RunId, handle: &str) -> Result<Option<Artifact>, Unavailable>;
    /// Rows, newest first, those with an id below `before`; at most `limit`.
    async fn list(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Result<Vec<Listed>, Unavailable>;
    /// Shows `choose` queued runs that are due, those of an agent by priority, then due time, then id, and applies what it writes, in
    /// one transaction. Where nothing is due it is not asked.
    async fn claim(&self, wanted: Wanted, choose: Choose) -> Result<Chosen, Unavailable>;
    /// When the next queued run of these agents becomes due, if any.
    async fn next_due(&self, agents: &[String]) -> Result<Option<Timestamp>, Unavailable>;
    /// Now on the clock that ends leases.
    async fn now(&self) -> Result<LeaseTime, Unavailable>;
    /// Held rows whose lease may have ended, see [`Lapse`], where leases last a ttl; those with an id above `after` in id order.
    async fn lapsed(&self, ttl: Duration, after: Option<RunId>, limit: usize) -> Result<Vec<Lapsed>, Unavailable>;
    /// Waiting rows whose deadline passed at `now`.
    async fn overdue(&self, now: Timestamp, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, Unavailable>;
    /// Runs that showed a person a call of this tool, or stamped one, at or after `since`, and that are visible: those that did so last,
    /// first; at most `limit` (and [`PAGE_MAX`](crate::limits::PAGE_MAX)).
    async fn callers(
        &self,
        tool: &str,
        since: Timestamp,
        visible_to: Option<&Visible>,
        limit: usize,
    ) -> Result<Vec<RunId>, Unavailable>;
    /// Settled rows of which nobody was told as they settled last, that settled at or after `since`, with that time: those that settled
    /// first, first; at most `limit` (and [`PAGE_MAX`](crate::limits::PAGE_MAX)). Rows of which somebody was told cost nothing.
    async fn untold(&self, since: Timestamp, limit: usize) -> Result<Vec<(RunId, Timestamp)>, Unavailable>;
    /// Somebody was told that a run settled at that time; nothing where it has settled again since, or goes on.
    async fn told(&self, id: RunId, finished_at: Timestamp) -> Result<(), Unavailable>;
    /// Finds a run id by the end (or whole) of its text; at most two, so that an ambiguous end is seen.
    async fn find(&self, suffix: &str) -> Result<Vec<RunId>, Unavailable>;
    /// A worker says that it lives until the store's now + ttl, and what it executes; one that is not open takes it back.
    async fn announce(&self, worker: &str, ttl: Duration, claimer: &Claimer) -> Result<(), Unavailable>;
    /// What the announced workers that live execute; at most [`PAGE_MAX`](crate::limits::PAGE_MAX) of them.
    async fn workers(&self) -> Result<Vec<Claimer>, Unavailable>;
    /// A record, also one that has expired.
    async fn record(&self, kind: &str, key: &str) -> Result<Option<Record>, Unavailable>;
    /// Records of a kind in the order of the bytes of their keys, those with a key above `after`; at most `limit` (and
    /// [`PAGE_MAX`](crate::limits::PAGE_MAX)).
    async fn records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, Unavailable>;
    /// Writes all of them or none, each as the version after its own: false where one of them has another version by now. At most
    /// [`RECORDS_AT_ONCE_MAX`](crate::limits::RECORDS_AT_ONCE_MAX).
    async fn put_records(&self, records: Vec<Record>) -> Result<bool, Unavailable>;
    /// Writes one.
    async fn put_record(&self, record: Record) -> Result<bool, Unavailable> {
        self.put_records(vec![record]).await
    }
    /// Takes a record away that still has this version: false where it has another, or is gone.
    async fn remove_record(&self, kind: &str, key: &str, version: u64) -> Result<bool, Unavailable>;
    /// Tells other processes; after the commit, without waiting, and nobody hears of a failure. A store without a way to does nothing.
    fn hint(&self, _: Hint) {}
    /// Waits until the hints given so far are sent, at most `patience`: for a process that is about to end.
    async fn hints_sent(&self, _patience: Duration) {}
    /// Hints of other processes from now on; none where the store has no way.
    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        None
    }
    /// A connection for the renewing thread.
    fn renewer(&self) -> Result<Box<dyn Renewer>, Unavailable>;
    /// Where it is, for messages: path or URL without secrets.
    fn describe(&self) -> String;
}
