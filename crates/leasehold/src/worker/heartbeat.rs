//! Renewal. One thread and one connection of its own renew every lease of this process in one statement, every third of the
//! ttl, whatever tools, models and the store's queue do; once a second it looks for foreign changes. What it finds reaches
//! the segment through its [`Signal`]. A right whose row somebody else has locked is neither lost nor renewed: it is asked for again
//! soon, by itself, and its trust window runs down meanwhile.
//!
//! A simulation has no threads and no real time: there a [`Ticker`] makes the same rounds on the time of the async runtime.

use super::{said::Asked, trust::TrustWindow};
use crate::{
    clock::BootClock,
    run::RunId,
    store::{Held, Look, Renewer, Store, Unavailable},
};
use std::{
    collections::HashMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{Notify, watch};

/// What the heartbeat found out about a held run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signal {
    /// A cancel was accepted.
    pub cancel: bool,
    /// The right is gone.
    pub lost: bool,
    /// The journal as the store has it.
    pub sequence: u64,
}

struct Holding {
    trust: Arc<TrustWindow>,
    signal: watch::Sender<Signal>,
}

#[derive(Default)]
struct Book {
    held: HashMap<Held, Holding>,
    renew_now: bool,
    look_now: bool,
    /// Counts finished renewals, so that a caller can wait for one that began after it asked.
    rounds: u64,
    closed: bool,
}

struct Shared {
    book: Mutex<Book>,
    wake: Condvar,
    /// The same wake-up for a ticker.
    asked: Notify,
    /// A round of renewals has ended. It wakes those who wait in the order in which they came.
    renewed: Notify,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The renewing thread of a process. Ends when it is dropped.
pub struct Heartbeat {
    shared: Arc<Shared>,
    clock: Arc<dyn BootClock>,
    ttl: Duration,
}

impl std::fmt::Debug for Heartbeat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "heartbeat (ttl {:?})", self.ttl)
    }
}

/// How often foreign changes are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// When what had no word is asked for again: soon, not at once.
const SOON: Duration = Duration::from_millis(200);

impl Heartbeat {
    /// Starts the thread.
    ///
    /// # Errors
    /// The store gives no connection, or the system no thread.
    pub fn start(store: &Arc<dyn Store>, clock: Arc<dyn BootClock>, ttl: Duration) -> Result<Arc<Self>, Unavailable> {
        let (heartbeat, beat) = Self::new(store, clock, ttl)?;
        thread::Builder::new()
            .name("leasehold-renew".into())
            .spawn(move || beat.run())
            .map_err(|e| Unavailable(format!("no thread for renewals: {e}")))?;
        Ok(heartbeat)
    }

    /// Without a thread: whoever runs the ticker makes the rounds, on the time of the async runtime. For simulations; what
    /// blocks that runtime blocks these renewals too.
    ///
    /// # Errors
    /// The store gives no connection.
    pub fn ticked(
        store: &Arc<dyn Store>,
        clock: Arc<dyn BootClock>,
        ttl: Duration,
    ) -> Result<(Arc<Self>, Ticker), Unavailable> {
        let (heartbeat, beat) = Self::new(store, clock, ttl)?;
        Ok((heartbeat, Ticker { beat }))
    }

    fn new(store: &Arc<dyn Store>, clock: Arc<dyn BootClock>, ttl: Duration) -> Result<(Arc<Self>, Beat), Unavailable> {
        let renewer = store.renewer()?;
        let (wake, asked, renewed) = (Condvar::new(), Notify::new(), Notify::new());
        let shared = Arc::new(Shared { book: Mutex::default(), wake, asked, renewed });
        let (weak, store) = (Arc::downgrade(&shared), Arc::clone(store));
        let beat = Beat {
            shared: weak,
            store,
            renewer,
            clock: Arc::clone(&clock),
            ttl,
            without_word: Vec::new(),
            asked: Asked::default(),
        };
        Ok((Arc::new(Self { shared, clock, ttl }), beat))
    }

    /// A right that was just granted by a request sent at `trust`'s origin: renewed from now on.
    pub(crate) fn hold(self: &Arc<Self>, held: Held, trust: Arc<TrustWindow>) -> (HoldGuard, watch::Receiver<Signal>) {
        let (signal, receiver) = watch::channel(Signal::default());
        self.shared.book().held.insert(held, Holding { trust, signal });
        self.shared.wake.notify_all();
        (HoldGuard { heartbeat: Arc::clone(self), held }, receiver)
    }

    /// A new trust window from a request sent at `sent`.
    pub(crate) fn window(&self, sent: crate::clock::BootInstant) -> Arc<TrustWindow> {
        TrustWindow::new(Arc::clone(&self.clock), self.ttl, sent)
    }

    /// The clock of the trust windows.
    pub(crate) fn now(&self) -> crate::clock::BootInstant {
        self.clock.now()
    }

    /// Somebody else may have changed this run: looks now, where it is held here.
    pub(crate) fn look_now(&self, run: RunId) {
        let mut book = self.shared.book();
        if book.held.keys().any(|held| held.id == run) {
            book.look_now = true;
            self.shared.wake.notify_all();
        }
    }

    /// Asks for a renewal now and waits until one that began after this call has ended, at most `patience`.
    pub(crate) async fn renew_now(&self, patience: Duration) {
        let target = {
            let mut book = self.shared.book();
            book.renew_now = true;
            // A round in progress began before this call: the one after it counts.
            book.rounds + 1
        };
        self.shared.wake.notify_all();
        self.shared.asked.notify_one();
        // Nobody may answer in time; the caller looks at its trust window next, whatever the reason.
        let renewed = async {
            loop {
                let ended = self.shared.renewed.notified();
                if self.shared.book().rounds >= target {
                    return;
                }
                ended.await;
            }
        };
        tokio::time::timeout(patience, renewed).await.ok();
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.shared.book().closed = true;
        self.shared.wake.notify_all();
    }
}

/// Ends the renewal of one right when dropped.
pub(crate) struct HoldGuard {
    heartbeat: Arc<Heartbeat>,
    held: Held,
}

impl Drop for HoldGuard {
    fn drop(&mut self) {
        self.heartbeat.shared.book().held.remove(&self.held);
    }
}

/// What a round came to.
enum Round {
    /// Nothing is held.
    Nothing,
    /// The store answered.
    Answered,
    /// It did not.
    Silent,
}

/// Makes the rounds of a [`Heartbeat`] without a thread.
pub struct Ticker {
    beat: Beat,
}

impl Ticker {
    /// Runs until the heartbeat is dropped.
    pub async fn run(mut self) {
        let renew_every = self.beat.ttl / 3;
        let mut last_renewal = tokio::time::Instant::now();
        loop {
            let Some(shared) = self.beat.shared.upgrade() else { return };
            let look_every = self.beat.look_every();
            let pause = look_every.min(renew_every.saturating_sub(last_renewal.elapsed())).max(Duration::from_millis(1));
            tokio::select! {
                biased;
                () = shared.asked.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            let asked = std::mem::take(&mut shared.book().renew_now);
            let renew = asked || last_renewal.elapsed() >= renew_every;
            match self.beat.round(&shared, renew) {
                Round::Nothing => last_renewal = tokio::time::Instant::now(),
                Round::Answered if renew => last_renewal = tokio::time::Instant::now(),
                Round::Silent if renew => tokio::time::sleep(SOON).await,
                Round::Answered | Round::Silent => {}
            }
            self.beat.round_done(&shared, renew);
        }
    }
}

struct Beat {
    shared: Weak<Shared>,
    store: Arc<dyn Store>,
    renewer: Box<dyn Renewer>,
    clock: Arc<dyn BootClock>,
    ttl: Duration,
    /// Rights whose rows somebody else had locked when they were to be renewed.
    without_word: Vec<Held>,
    asked: Asked,
}

impl Beat {
    fn look_every(&self) -> Duration {
        if self.without_word.is_empty() { LOOK_EVERY } else { SOON }
    }

    fn run(mut self) {
        let renew_every = self.ttl / 3;
        let mut last_renewal = Instant::now();
        loop {
            let Some(shared) = self.shared.upgrade() else { return };
            let book = shared.book();
            if book.closed {
                return;
            }
            let pause = if book.held.is_empty() {
                // Nothing to renew: sleep until something is held.
                Duration::from_secs(3600)
            } else if book.renew_now {
                Duration::ZERO
            } else {
                self.look_every().min(renew_every.saturating_sub(last_renewal.elapsed()))
            };
            let (mut book, _) = shared
                .wake
                .wait_timeout_while(book, pause, |b| !b.closed && !b.renew_now && b.held.is_empty())
                .unwrap_or_else(PoisonError::into_inner);
            if !book.closed && !book.renew_now && !book.held.is_empty() {
                let until = self.look_every().min(renew_every.saturating_sub(last_renewal.elapsed()));
                (book, _) = shared
                    .wake
                    .wait_timeout_while(book, until, |b| !b.closed && !b.renew_now && !b.look_now)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            if book.closed {
                return;
            }
            let renew = book.renew_now || last_renewal.elapsed() >= renew_every;
            (book.renew_now, book.look_now) = (false, false);
            drop(book);
            match self.round(&shared, renew) {
                Round::Nothing => last_renewal = Instant::now(),
                Round::Answered if renew => last_renewal = Instant::now(),
                Round::Silent if renew => {
                    let pause = shared.wake.wait_timeout(shared.book(), SOON);
                    drop(pause.unwrap_or_else(PoisonError::into_inner));
                }
                Round::Answered | Round::Silent => {}
            }
            self.round_done(&shared, renew);
        }
    }

    /// Renews everything, or what had no word when it was to be renewed; looks at the rest; and tells the segments.
    fn round(&mut self, shared: &Shared, renew: bool) -> Round {
        let mut held: Vec<Held> = shared.book().held.keys().copied().collect();
        // So that a simulation plays a seed the same way twice.
        held.sort_by_key(|right| (right.id, right.epoch));
        if held.is_empty() {
            return Round::Nothing;
        }
        let sent = self.clock.now();
        let (due, rest): (Vec<Held>, Vec<Held>) = held.iter().partition(|right| renew || self.without_word.contains(right));
        match self.ask(&due, &rest) {
            Ok(looks) => {
                self.asked.answered("renewals");
                Self::tell(shared, &held, &looks, sent);
                let is_without_word = |right: &Held| looks.iter().any(|l| l.right == *right && l.held && !l.renewed);
                self.without_word = due.into_iter().filter(is_without_word).collect();
                Round::Answered
            }
            Err(unavailable) => {
                // The trust windows run down by themselves; the next round tries again, on a new connection.
                self.asked.failed(&format!("{} leases could not be renewed", held.len()), &unavailable);
                match self.store.renewer() {
                    Ok(renewer) => self.renewer = renewer,
                    Err(why) => tracing::debug!("there is no new connection for renewals: {why}"),
                }
                Round::Silent
            }
        }
    }

    fn ask(&mut self, due: &[Held], rest: &[Held]) -> Result<Vec<Look>, Unavailable> {
        let mut looks = if due.is_empty() { Vec::new() } else { self.renewer.renew(due, self.ttl)? };
        if !rest.is_empty() {
            looks.extend(self.renewer.look(rest)?);
        }
        Ok(looks)
    }

    fn round_done(&self, shared: &Shared, renewed: bool) {
        if renewed {
            shared.book().rounds += 1;
            shared.renewed.notify_waiters();
        }
    }

    fn tell(shared: &Shared, held: &[Held], looks: &[Look], sent: crate::clock::BootInstant) {
        let book = shared.book();
        let by_right: HashMap<&Held, &Look> = looks.iter().map(|look| (&look.right, look)).collect();
        for right in held {
            let Some(holding) = book.held.get(right) else { continue };
            // No row, or another's: a segment that has just ended its run by itself is no longer in the book or does not listen.
            let look = by_right.get(right);
            let lost = !look.is_some_and(|l| l.held);
            if lost {
                holding.trust.lose();
            } else if look.is_some_and(|l| l.renewed) {
                holding.trust.confirmed(sent);
            }
            let found =
                Signal { cancel: look.is_some_and(|l| l.cancel_requested), lost, sequence: look.map_or(0, |l| l.sequence) };
            holding.signal.send_if_modified(|signal| {
                let changed = *signal != found;
                *signal = found;
                changed
            });
        }
    }
}
