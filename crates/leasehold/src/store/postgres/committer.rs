//! The one task that commits guarded writes. It takes whatever waits while the previous commit flushes and sends it as one statement,
//! which is one transaction: no timer, so an idle store answers after one commit, and a busy one pays one flush for many callers.
//!
//! - Two writes to one run are never in one statement: the later one waits for the next, in the order of their arrival.
//! - A statement that the server refuses is taken apart and sent one by one, so that only the culprit fails.
//! - No statement waits for a row that somebody else has locked: it passes over it, and the caller whose row it is asks again for a
//!   moment. So a row that is kept locked, by hand or by a process that stands still, holds up no other run.
//! - A statement whose answer is lost is unknown for all in it, and nothing is sent again here: each caller looks for its write id.

use super::{
    LeaseClock,
    connections::{Again, Connections, Failed, Query},
    row::{self, CalledArrays, CalledColumns, EntryArrays, EntryColumns, GuardArrays, GuardColumns, RowArrays, RowColumns},
    sql::{self, Params},
};
use crate::{
    limits::COMMIT_BATCH_MAX,
    run::{LeaseTime, RunId, WriteId},
    store::{Answer, Unavailable, Write},
};
use backon::{ExponentialBuilder, Retryable as _};
use std::{
    borrow::Borrow,
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;

/// Bytes of one statement's payloads and turns; what is beyond waits for the next one. A larger write goes alone.
const BATCH_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How often a write is sent again that fell to another transaction's fault.
const ATTEMPTS_MAX: u32 = 5;
/// How long a write is tried whose row somebody else has locked; then its caller decides whether to ask again. Another process's
/// commit and a renewal take less.
pub(super) const LOCKED_PATIENCE: Duration = Duration::from_millis(500);

/// How a row that is locked is tried again, the renewals' too: others' locks last for one commit.
pub(super) fn until_unlocked() -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(2))
        .with_max_delay(Duration::from_millis(100))
        .with_jitter()
        .without_max_times()
}

/// One write, encoded.
#[derive(Debug)]
pub(super) struct Encoded {
    row: RowColumns,
    guard: GuardColumns,
    entries: Vec<EntryColumns>,
    called: Vec<CalledColumns>,
    id: RunId,
    write_id: WriteId,
    bytes: usize,
}

impl Encoded {
    /// Of this write.
    pub(super) fn of(write: &Write) -> Self {
        let (id, write_id) = (write.next.id, write.write_id);
        let entries: Vec<EntryColumns> = write.entries.iter().map(|e| EntryColumns::of(id, write_id, e)).collect();
        let row = RowColumns::of(&write.next, write.lease);
        let bytes = row.turn.as_ref().map_or(0, String::len) + entries.iter().map(|e| e.entry_payload.len()).sum::<usize>();
        let (guard, called) = (GuardColumns::of(&write.guard, write.lease), CalledColumns::of(write));
        Self { row, guard, entries, called, id, write_id, bytes }
    }
}

/// One write that waits.
#[derive(Debug)]
struct Job {
    write: Arc<Encoded>,
    reply: oneshot::Sender<Result<Answer, Unanswered>>,
}

/// Why a write has no answer yet.
#[derive(Clone, Debug)]
pub(super) enum Unanswered {
    /// Somebody else has its row locked: it was not written.
    Locked,
    Lost(Unavailable),
}

impl Unanswered {
    /// For a caller.
    pub(super) fn in_words(self, place: &str, run: RunId) -> Unavailable {
        match self {
            Self::Locked => {
                Unavailable(format!("{place}: somebody else keeps the row of run {run} locked; it was not written"))
            }
            Self::Lost(unavailable) => unavailable,
        }
    }
}

impl From<Unavailable> for Unanswered {
    fn from(unavailable: Unavailable) -> Self {
        Self::Lost(unavailable)
    }
}

impl Borrow<Encoded> for Job {
    fn borrow(&self) -> &Encoded {
        &self.write
    }
}

/// What became of a write whose row could be locked.
#[derive(Debug)]
pub(super) enum Tried {
    /// Its guard held; the end of the row's lease.
    Written(Option<LeaseTime>),
    /// Its guard did not hold.
    Guarded,
}

/// Of the rows that could be locked; the others are not there, or locked by somebody else.
pub(super) type Written = HashMap<RunId, Tried>;

/// Sends many writes, at most one to a run, as one statement.
pub(super) async fn write_many(
    to: &impl Query,
    clock: &LeaseClock,
    writes: &[impl Borrow<Encoded> + Sync],
) -> Result<Written, Failed> {
    let now = clock.now();
    let (mut rows, mut guards, mut entries) = (RowArrays::default(), GuardArrays::default(), EntryArrays::default());
    let mut called = CalledArrays::default();
    for write in writes.iter().map(Borrow::borrow) {
        rows.push(&write.row);
        guards.push(&write.guard);
        write.entries.iter().for_each(|e| entries.push(e));
        write.called.iter().for_each(|c| called.push(c));
    }
    let mut params = Params::default();
    rows.bind(&mut params);
    guards.bind(&mut params);
    now.bind(&mut params);
    entries.bind(&mut params);
    called.bind(&mut params);
    let written = to.query(&sql::WRITE_RUNS, &params).await?;
    written.iter().map(|row| Ok((row::run_id(row).map_err(unread)?, tried(row)?))).collect()
}

/// The way to the task; it ends with the last sender.
#[derive(Clone, Debug)]
pub(super) struct Committer {
    jobs: mpsc::UnboundedSender<Job>,
    place: Arc<str>,
}

impl Committer {
    /// Starts the task on the current runtime.
    pub(super) fn start(connections: Connections, clock: LeaseClock) -> Self {
        // No bound of its own: each caller waits for its answer, so the queue is as long as callers are many.
        let (jobs, waiting) = mpsc::unbounded_channel();
        let place = connections.place().into();
        tokio::spawn(Task { connections, clock }.run(waiting));
        Self { jobs, place }
    }

    /// Sends a write and waits for the commit that holds it.
    pub(super) async fn send(&self, write: &Write) -> Result<Answer, Unavailable> {
        let (encoded, started) = (Arc::new(Encoded::of(write)), Instant::now());
        let sent = (|| self.send_once(Arc::clone(&encoded)))
            .retry(until_unlocked())
            .when(|why| matches!(why, Unanswered::Locked) && started.elapsed() < LOCKED_PATIENCE)
            .await;
        sent.map_err(|why| why.in_words(&self.place, encoded.id))
    }

    async fn send_once(&self, write: Arc<Encoded>) -> Result<Answer, Unanswered> {
        let (reply, answer) = oneshot::channel();
        let stopped = || Unavailable("the task that commits has stopped".into());
        self.jobs.send(Job { write, reply }).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

/// What the guard is compared with, and whether the write is there.
struct Standing {
    epoch: i64,
    lease_id: Option<uuid::Uuid>,
    end: Option<LeaseTime>,
    is_there: bool,
}

struct Task {
    connections: Connections,
    clock: LeaseClock,
}

impl Task {
    async fn run(self, mut waiting: mpsc::UnboundedReceiver<Job>) {
        let mut deferred = VecDeque::new();
        loop {
            if deferred.is_empty() {
                let Some(first) = waiting.recv().await else { return };
                deferred.push_back(first);
            }
            while let Ok(job) = waiting.try_recv() {
                deferred.push_back(job);
            }
            self.commit(next_batch(&mut deferred)).await;
        }
    }

    async fn commit(&self, jobs: Vec<Job>) {
        if jobs.len() == 1 {
            for job in jobs {
                self.commit_one(job).await;
            }
            return;
        }
        match write_many(&self.connections, &self.clock, &jobs).await {
            Ok(mut written) => {
                for job in jobs {
                    let answer = self.answer(&job.write, written.remove(&job.write.id)).await;
                    // A caller that has gone does not want its answer.
                    job.reply.send(answer).ok();
                }
            }
            Err(Failed::Refused { .. }) => {
                for job in jobs {
                    self.commit_one(job).await;
                }
            }
            Err(lost) => {
                let unavailable = self.connections.unavailable(&lost);
                tracing::warn!(writes = jobs.len(), "no answer to a commit of {} writes: {unavailable}", jobs.len());
                for job in jobs {
                    job.reply.send(Err(unavailable.clone().into())).ok();
                }
            }
        }
    }

    async fn commit_one(&self, job: Job) {
        let mut attempt = 1;
        let sent = loop {
            match self.send_one(&job.write).await {
                Err(Failed::Refused { again: Again::Now, .. }) if attempt < ATTEMPTS_MAX => attempt += 1,
                other => break other,
            }
        };
        let answer = match sent {
            Ok(tried) => self.answer(&job.write, tried).await,
            Err(failed) => self.connections.refused(&failed).map(Answer::Refused).map_err(Unanswered::from),
        };
        job.reply.send(answer).ok();
    }

    /// None where the row could not be locked.
    async fn send_one(&self, write: &Encoded) -> Result<Option<Tried>, Failed> {
        let now = self.clock.now();
        let mut entries = EntryArrays::default();
        write.entries.iter().for_each(|e| entries.push(e));
        let mut called = CalledArrays::default();
        write.called.iter().for_each(|c| called.push(c));
        let mut params = Params::default();
        write.row.bind(&mut params);
        write.guard.bind(&mut params);
        now.bind(&mut params);
        entries.bind(&mut params);
        called.bind(&mut params);
        let rows = self.connections.query(&sql::WRITE_RUN, &params).await?;
        rows.first().map(tried).transpose()
    }

    /// Where the guard failed, or the row could not be locked: says why. Read after the write, so what it finds may be newer; every
    /// answer stays true then, because no row comes back to an epoch, a lease or a sequence that it has left.
    async fn answer(&self, write: &Encoded, tried: Option<Tried>) -> Result<Answer, Unanswered> {
        if let Some(Tried::Written(end)) = tried {
            return Ok(Answer::Applied(end));
        }
        unwritten(&self.connections, write, tried.is_none()).await
    }
}

/// The row came back, so its write is committed; that it cannot be read makes its answer unknown.
fn unread(row::Damaged(why): row::Damaged) -> Failed {
    Failed::Lost(why)
}

fn tried(row: &Row) -> Result<Tried, Failed> {
    if !row::column(row, "is_written").map_err(unread)? {
        return Ok(Tried::Guarded);
    }
    row::lease_end(row).map(Tried::Written).map_err(unread)
}

/// Why a write is not there, or that it is.
pub(super) async fn unwritten(connections: &Connections, write: &Encoded, locked: bool) -> Result<Answer, Unanswered> {
    let Some(row) = standing(connections, write.id, write.write_id).await? else { return Ok(Answer::Gone) };
    Ok(if row.is_there {
        Answer::Applied(row.end)
    } else if row.epoch != write.guard.guard_epoch || row.lease_id != write.guard.guard_lease_id {
        Answer::Fenced
    } else if locked {
        return Err(Unanswered::Locked);
    } else {
        Answer::Moved
    })
}

async fn standing(connections: &Connections, id: RunId, write_id: WriteId) -> Result<Option<Standing>, Unavailable> {
    let mut params = Params::default();
    params.one("id", &id.0).one("write_id", &write_id.0);
    let rows = connections.read(&sql::GUARD_OF, &params).await?;
    let read = |row: &Row| -> Result<Standing, row::Damaged> {
        Ok(Standing {
            epoch: row::column(row, "epoch")?,
            lease_id: row::column(row, "lease_id")?,
            end: row::lease_end(row)?,
            is_there: row::column(row, "is_there")?,
        })
    };
    rows.first().map(read).transpose().map_err(|row::Damaged(why)| Unavailable(format!("{}: {why}", connections.place())))
}

/// Whether this write is on the row of this run, and the row's lease end; none where there is no such row.
pub(super) async fn is_there(
    connections: &Connections,
    id: RunId,
    write_id: WriteId,
) -> Result<Option<(bool, Option<LeaseTime>)>, Unavailable> {
    Ok(standing(connections, id, write_id).await?.map(|s| (s.is_there, s.end)))
}

/// What goes in one statement: the first of each run, in order, within the bounds. The rest stays, in order.
fn next_batch(waiting: &mut VecDeque<Job>) -> Vec<Job> {
    let mut batch: Vec<Job> = Vec::new();
    let mut seen = HashSet::new();
    let mut bytes = 0;
    let mut rest = VecDeque::new();
    for job in waiting.drain(..) {
        let fits = batch.is_empty() || (batch.len() < COMMIT_BATCH_MAX && bytes + job.write.bytes <= BATCH_BYTES_MAX);
        // A run whose earlier write waits keeps its later ones waiting too.
        if seen.insert(job.write.id) && fits {
            bytes += job.write.bytes;
            batch.push(job);
        } else {
            rest.push_back(job);
        }
    }
    *waiting = rest;
    batch
}
