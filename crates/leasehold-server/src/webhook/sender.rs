//! Finds what happened, writes it down, and sends what is written down and due. One task; attempts are tasks beside it.

use super::{
    deliver::{Delivery, Failed},
    outbox::{self, Ended, Event, KIND, Notice},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use leasehold::{
    Runtime,
    clock::WallClock,
    limits::{PAGE_MAX, WEBHOOK_AT_ONCE_MAX, WEBHOOK_IN_MIND_MAX},
    run::{RunId, Snapshot, State},
    store::{Filter, Listed, ReadError, Record, Store, Unavailable, engine::Committed},
};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::{broadcast, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until, timeout},
};

/// Looks for what happened so often where nothing was heard, and not sooner after a look than that.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_MIN: Duration = Duration::from_millis(200);
/// A look takes at most this part of the time.
const LOOK_SHARE: u32 = 10;
/// Reads all that is written down so often: what a process that died had taken, and what another one wrote.
const READ_ALL: Duration = Duration::from_secs(15);
/// For the last look and the last attempts of a process that ends.
const END: Duration = Duration::from_secs(15);
/// The record of when settled runs were first asked for.
const SINCE: (&str, &str) = ("webhook_since", "settled");
/// What is written down of settled runs at once.
const SETTLED_AT_ONCE: usize = 16;

/// See the module.
pub(super) struct Sender {
    store: Arc<dyn Store>,
    runtime: Runtime,
    clock: Arc<dyn WallClock>,
    delivery: Arc<Delivery>,
    events: BTreeSet<Event>,
    /// Events of runs that stand as they say now; they are written down.
    standing: HashSet<String>,
    /// When those that are not sent yet are due, as far as is known.
    due: HashMap<String, Timestamp>,
    /// Each ends with the event it was about, and when that is due again.
    attempts: JoinSet<Option<(String, Timestamp)>>,
}

impl Sender {
    pub(super) fn new(runtime: Runtime, clock: Arc<dyn WallClock>, delivery: Delivery, events: BTreeSet<Event>) -> Self {
        let (store, delivery) = (Arc::clone(runtime.store()), Arc::new(delivery));
        let (standing, due, attempts) = Default::default();
        Self { store, runtime, clock, delivery, events, standing, due, attempts }
    }

    fn now(&self) -> Timestamp {
        leasehold::clock::to_millis(self.clock.now())
    }

    /// Until it is stopped.
    pub(super) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let mut hints = self.runtime.engine().subscribe();
        let mut silent = false;
        let mut look_at = Instant::now();
        let mut read_at = Instant::now();
        loop {
            let begun = Instant::now();
            if begun >= look_at {
                let looked = self.look(begun >= read_at).await;
                self.said(looked, &mut silent);
                if begun >= read_at {
                    read_at = Instant::now() + READ_ALL;
                }
                look_at = Instant::now() + LOOK.max(begun.elapsed() * LOOK_SHARE);
            }
            let earliest = begun + LOOK_MIN.max(begun.elapsed() * LOOK_SHARE);
            let next_due = self.send_due();
            tokio::select! {
                // Stopped, or whoever could stop it is gone.
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = sleep_until(look_at) => {}
                () = sleep_until(next_due) => {}
                Some(ended) = self.attempts.join_next() => self.ended(ended),
                () = happened(&mut hints) => look_at = look_at.min(earliest),
            }
        }
        // What is left is in the store, for whoever works next.
        if let Ok(looked) = timeout(END, self.once()).await {
            self.said(looked, &mut silent);
        }
    }

    /// Looks, and tries what is due.
    pub(super) async fn once(&mut self) -> Result<(), Unavailable> {
        let looked = self.look(true).await;
        self.send_due();
        while let Some(ended) = self.attempts.join_next().await {
            self.ended(ended);
            self.send_due();
        }
        looked
    }

    fn ended(&mut self, ended: Result<Option<(String, Timestamp)>, JoinError>) {
        match ended {
            Ok(Some((id, due_at))) => self.keep_in_mind(id, due_at),
            Ok(None) => {}
            Err(error) => tracing::error!("an attempt at the webhook broke: {error}; it is made again"),
        }
    }

    /// A store that is silent is said once.
    fn said(&self, looked: Result<(), Unavailable>, silent: &mut bool) {
        match looked {
            Ok(()) => *silent = false,
            Err(error) => {
                if !*silent {
                    tracing::warn!("what the webhook has to tell is not known: {error}; it is looked for again");
                }
                *silent = true;
            }
        }
    }

    async fn look(&mut self, all: bool) -> Result<(), Unavailable> {
        if self.events.iter().any(|event| *event != Event::Settled) {
            self.find_standing().await?;
        }
        if self.events.contains(&Event::Settled) {
            self.find_settled().await?;
        }
        if all { self.read_all().await } else { Ok(()) }
    }

    /// Runs that wait, or are dead.
    async fn find_standing(&mut self) -> Result<(), Unavailable> {
        let filter =
            Filter { states: vec![State::WaitingForApproval, State::WaitingForInput, State::Dead], ..Filter::default() };
        let mut standing = HashSet::new();
        let mut before: Option<RunId> = None;
        loop {
            let page = self.store.list(&filter, before, PAGE_MAX).await?;
            for run in &page {
                let Some(event) = Event::of(run).filter(|event| self.events.contains(event)) else { continue };
                let id = outbox::id(event, run.id, run.epoch, run.since);
                if !self.standing.contains(&id) {
                    self.write_down(&id, self.standing_notice(event, run)).await?;
                }
                standing.insert(id);
            }
            before = page.last().map(|run| run.id);
            if page.len() < PAGE_MAX {
                break;
            }
        }
        self.standing = standing;
        Ok(())
    }

    fn standing_notice(&self, event: Event, run: &Listed) -> Notice {
        Notice::new(event, run.id, &run.state, run.reason.as_deref(), run.since, self.now())
    }

    /// Settled runs of which nobody was told, from when the webhook was first configured on. Their number is that of what settled since
    /// the last look.
    async fn find_settled(&mut self) -> Result<(), Unavailable> {
        let since = self.settled_since().await?;
        loop {
            let page = self.store.untold(since, PAGE_MAX).await?;
            let is_last = page.len() < PAGE_MAX;
            let (store, now) = (&self.store, self.now());
            let written: Vec<Option<String>> = stream::iter(page)
                .map(|(run, at)| settled(store, run, at, now))
                .buffer_unordered(SETTLED_AT_ONCE)
                .try_collect()
                .await?;
            for id in written.into_iter().flatten() {
                self.keep_in_mind(id, now);
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// The time from which on settled runs are told: when any process of this store was first asked to.
    async fn settled_since(&self) -> Result<Timestamp, Unavailable> {
        let (kind, key) = SINCE;
        if let Some(record) = self.store.record(kind, key).await? {
            return record.body.parse().map_err(|_| Unavailable(format!("the record {kind} does not read")));
        }
        // Where somebody else was first by a moment, that one's time is read at the next look; it is hardly another.
        let now = self.now();
        self.store.put_record(Record::new(kind, key, now.to_string())).await.map(|_| now)
    }

    async fn write_down(&mut self, id: &str, notice: Notice) -> Result<(), Unavailable> {
        let due_at = notice.due_at;
        // False: it is written down already, and read with the others.
        if self.store.put_record(notice.record(id, 0)?).await? {
            self.keep_in_mind(id.to_owned(), due_at);
        }
        Ok(())
    }

    fn keep_in_mind(&mut self, id: String, due_at: Timestamp) {
        if self.due.len() < WEBHOOK_IN_MIND_MAX {
            self.due.insert(id, due_at);
        }
    }

    /// Reads all that is written down: a day's events, and what is not delivered. Takes away what is old.
    async fn read_all(&mut self) -> Result<(), Unavailable> {
        let now = self.now();
        let soon = now.checked_add(SignedDuration::try_from(READ_ALL * 2).unwrap_or_default()).unwrap_or(now);
        self.due.clear();
        let mut after: Option<String> = None;
        loop {
            let page = self.store.records(KIND, after.as_deref(), PAGE_MAX).await?;
            let is_last = page.len() < PAGE_MAX;
            after = page.last().map(|record| record.key.clone());
            for record in page {
                let notice = match Notice::read(&record) {
                    Ok(notice) => notice,
                    // It keeps no other from being sent.
                    Err(error) => {
                        tracing::warn!("{error}; it is not sent");
                        continue;
                    }
                };
                if notice.ended.is_none() && notice.due_at <= soon {
                    self.keep_in_mind(record.key, notice.due_at);
                } else if notice.is_old(now) && !self.standing.contains(&record.key) {
                    // One whose run still stands so would be found and sent anew.
                    self.store.remove_record(KIND, &record.key, record.version).await?;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Begins attempts at what is due, and says when the next one will be.
    fn send_due(&mut self) -> Instant {
        let now = self.now();
        let mut ready: Vec<(Timestamp, String)> =
            self.due.iter().filter(|(_, at)| **at <= now).map(|(id, at)| (*at, id.clone())).collect();
        ready.sort();
        for (_, id) in ready {
            if self.attempts.len() >= WEBHOOK_AT_ONCE_MAX {
                // The end of an attempt makes room.
                return Instant::now() + LOOK;
            }
            self.due.remove(&id);
            let attempt = Attempt {
                store: Arc::clone(&self.store),
                clock: Arc::clone(&self.clock),
                delivery: Arc::clone(&self.delivery),
            };
            self.attempts.spawn(async move { attempt.at(id).await });
        }
        let wait = self.due.values().min().map(|at| at.duration_since(now).max(SignedDuration::ZERO).unsigned_abs());
        Instant::now() + wait.unwrap_or(LOOK)
    }
}

/// Writes down that a run settled, and that somebody is told of it; the id, where that was new.
async fn settled(store: &Arc<dyn Store>, run: RunId, at: Timestamp, now: Timestamp) -> Result<Option<String>, Unavailable> {
    let row: Option<Snapshot> = match store.load(run).await {
        Ok(row) => row,
        Err(ReadError::Unavailable(error)) => return Err(error),
        Err(ReadError::Corrupt { rest, .. }) => rest.map(|rest| *rest),
    };
    // It goes on again, or has settled once more: that is told then.
    let Some(row) = row.filter(|row| row.finished_at == Some(at)) else {
        store.told(run, at).await?;
        return Ok(None);
    };
    let id = outbox::id(Event::Settled, run, row.epoch, at);
    let mut notice = Notice::new(Event::Settled, run, row.state.as_str(), row.reason.map(|r| r.as_str()), at, now);
    notice.head = row.chain.map(|chain| format!("{}:{}", row.sequence, chain.head));
    let is_new = store.put_record(notice.record(&id, 0)?).await?;
    store.told(run, at).await?;
    Ok(is_new.then_some(id))
}

/// Ends when this process has changed a run, or may have.
async fn happened(hints: &mut broadcast::Receiver<Committed>) {
    match hints.recv().await {
        // One look answers all that were said until now.
        Ok(_) => while hints.try_recv().is_ok() {},
        Err(broadcast::error::RecvError::Lagged(_)) => {}
        Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
    }
}

/// One attempt at one event.
struct Attempt {
    store: Arc<dyn Store>,
    clock: Arc<dyn WallClock>,
    delivery: Arc<Delivery>,
}

impl Attempt {
    /// When it is due again, where it is this process's to try.
    async fn at(&self, id: String) -> Option<(String, Timestamp)> {
        let due_at = self.try_at(&id).await.unwrap_or_else(|error| {
            tracing::warn!("webhook {id}: how it stands is not known: {error}; it is read again");
            None
        });
        Some(id).zip(due_at)
    }

    async fn try_at(&self, id: &str) -> Result<Option<Timestamp>, Unavailable> {
        let now = leasehold::clock::to_millis(self.clock.now());
        let Some(record) = self.store.record(KIND, id).await? else { return Ok(None) };
        let notice = Notice::read(&record)?;
        if notice.ended.is_some() || notice.due_at > now {
            return Ok(notice.ended.is_none().then_some(notice.due_at));
        }
        let taken = notice.taken(now);
        if !self.store.put_record(taken.record(id, record.version)?).await? {
            // Another process has it.
            return Ok(None);
        }
        let attempted = self.delivery.attempt(id, &taken, now).await;
        let now = leasehold::clock::to_millis(self.clock.now());
        let after = match attempted {
            Ok(()) => taken.delivered(now),
            Err(Failed { why, retry_after }) => {
                let after = taken.failed(now, retry_after, fastrand::f64());
                let (run, event) = (taken.run, <&str>::from(taken.event));
                match after.ended {
                    Some((Ended::GivenUp, _)) => {
                        tracing::error!(%run, "webhook {id}: run {run} is {event}, and for three days nobody could be told: {why}");
                    }
                    _ => tracing::warn!(%run, "webhook {id}: attempt {}: {why}; again at {}", taken.attempts, after.due_at),
                }
                after
            }
        };
        // False: it was taken from this process, because it stood still for too long. Whoever has it now tells it again.
        let is_ours = self.store.put_record(after.record(id, record.version + 1)?).await?;
        Ok((is_ours && after.ended.is_none()).then_some(after.due_at))
    }
}
