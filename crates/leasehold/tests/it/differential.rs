//! The stores are one engine: the same random histories go into the memory store, SQLite and PostgreSQL, and every answer, row,
//! journal and list is the same in all. The histories are those of the core's own tests; many run side by side, so that what the
//! stores commit together is compared too. The seeds are fixed; `HISTORIES=200` goes further.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]
#![allow(dead_code, reason = "the core's tests use the rest of these modules")]

#[path = "../core_run/given.rs"]
pub(super) mod given;
#[path = "../core_run/rows.rs"]
mod rows;
#[path = "../core_run/rules.rs"]
mod rules;
#[path = "../core_run/walk.rs"]
pub(super) mod walk;
#[path = "../core_run/world.rs"]
pub(super) mod world;

use given::at;
use jiff::Timestamp;
use leasehold::{
    clock::ManualClock,
    run::*,
    store::{
        Answer, Choose, ExpiryGuard, Filter, Guard, Held, Insert, Inserted, LeaseOp, Look, RequestKey, Store, Wanted, Write,
        memory::MemoryStore, postgres::PostgresStore, sqlite::SqliteStore,
    },
};
use leasehold_testkit::postgres::{Cluster, Version};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};
use uuid::Uuid;
use walk::Walk;

const TTL: Duration = Duration::from_secs(60);
/// Histories that run side by side.
const TOGETHER: u64 = 12;

/// One accepted event, as every store gets it.
#[derive(Clone)]
struct Step {
    before: Snapshot,
    delta: Delta,
    expires: bool,
    write_id: WriteId,
    number: i64,
}

fn op(lease: LeaseChange) -> LeaseOp {
    match lease {
        LeaseChange::Keep => LeaseOp::Keep,
        LeaseChange::Grant | LeaseChange::Extend => LeaseOp::Extend(TTL),
        LeaseChange::Drop => LeaseOp::Drop,
    }
}

fn entries(from: u64, bodies: &[EntryBody], row: &Snapshot, write_id: WriteId, number: i64) -> Vec<Entry> {
    let holder = row.lease.as_ref().map(|l| l.holder.clone());
    (from..)
        .zip(bodies)
        .map(|(sequence, body)| Entry {
            sequence,
            at: at(number),
            epoch: row.epoch,
            holder: holder.clone(),
            write_id,
            mac: None,
            body: body.clone(),
        })
        .collect()
}

impl Step {
    /// As this store gets it: of an expiry it is told the end that it has itself.
    async fn write(&self, store: &dyn Store) -> Write {
        let seen = store.load(self.before.id).await.unwrap().and_then(|row| row.lease).map(|l| l.expires_at);
        let expiry = seen.filter(|_| self.expires).map(|expires_at| ExpiryGuard { expires_at, watched: None });
        let lease_id = self.before.lease.as_ref().map(|l| l.lease_id);
        Write {
            write_id: self.write_id,
            guard: Guard { sequence: self.before.sequence, epoch: self.before.epoch, lease_id, expiry },
            next: self.delta.next.clone(),
            lease: op(self.delta.lease),
            entries: entries(self.before.sequence, &self.delta.entries, &self.delta.next, self.write_id, self.number),
            charges: Vec::new(),
            called: Vec::new(),
            artifacts: Vec::new(),
        }
    }
}

/// A walk whose accepted events are taken off as they happen.
struct History {
    walk: Walk,
    id: RunId,
    row: Snapshot,
    taken: usize,
    steps: Vec<Step>,
}

impl History {
    fn new(seed: u64) -> Self {
        let walk = Walk::new(seed);
        let id = RunId(id_of(seed));
        let row = Snapshot { id, ..walk.world.born.next.clone() };
        Self { walk, id, row, taken: 0, steps: Vec::new() }
    }

    fn birth(&self) -> Insert {
        let write_id = WriteId::of_content(&format!("{}/birth", self.id));
        let born = &self.walk.world.born;
        // Every third shares its key with the one before it.
        let seed = self.walk.world.seed;
        let key = (!seed.is_multiple_of(3)).then(|| RequestKey {
            scope: "s".into(),
            key: format!("k{}", seed / 3),
            request_hash: if seed.is_multiple_of(2) { "one" } else { "other" }.into(),
        });
        let entries = entries(0, &born.entries, &self.row, write_id, 0);
        Insert { write_id, row: self.row.clone(), lease: op(born.lease), entries, key }
    }

    /// What happens next.
    fn next(&mut self) -> Vec<Step> {
        self.walk.step();
        let new: Vec<_> = self.walk.world.trace[self.taken..].to_vec();
        self.taken = self.walk.world.trace.len();
        let mut steps = Vec::new();
        for (event, result) in new {
            let Ok(mut delta) = result else { continue };
            if delta.is_unchanged() {
                continue;
            }
            delta.next.id = self.id;
            let number = i64::try_from(self.steps.len() + steps.len()).unwrap();
            let write_id = WriteId::of_content(&format!("{}/{number}", self.id));
            let expires = matches!(event, Event::Clock(Tick::Expire { .. }));
            let before = std::mem::replace(&mut self.row, delta.next.clone());
            steps.push(Step { before, delta, expires, write_id, number });
        }
        self.steps.extend(steps.iter().cloned());
        steps
    }
}

fn id_of(seed: u64) -> Uuid {
    Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0000 + u128::from(seed))
}

/// What a claim of these agents is shown that takes nothing.
async fn due(store: Arc<dyn Store>, agents: &[String], now: Timestamp, limit: usize) -> Vec<Snapshot> {
    let shown = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&shown);
    let choose: Choose = Arc::new(move |rows| {
        *seen.lock().unwrap() = rows.into_iter().map(Result::unwrap).collect();
        Vec::new()
    });
    let agents = agents.iter().map(|agent| (agent.clone(), limit)).collect();
    store.claim(Wanted { agents, now, except: Vec::new() }, choose).await.unwrap();
    std::mem::take(&mut *shown.lock().unwrap())
}

struct Stores {
    all: Vec<(&'static str, Arc<dyn Store>)>,
    clock: Arc<ManualClock>,
}

impl Stores {
    /// Asks every store the same; the answers must be the same.
    async fn same<T, Fut>(&self, what: &str, ask: impl Fn(Arc<dyn Store>) -> Fut) -> T
    where
        T: PartialEq + std::fmt::Debug,
        Fut: Future<Output = T>,
    {
        let mut answers = Vec::new();
        for (name, store) in &self.all {
            answers.push((name, ask(store.clone()).await));
        }
        let (first, answer) = answers.remove(0);
        for (name, other) in answers {
            assert_eq!(other, answer, "{what}: {name} and {first} differ");
        }
        answer
    }

    /// Sends each history's writes in their order, the histories side by side.
    async fn send(&self, what: &str, batches: &[Vec<Step>]) -> Vec<Vec<Answer>> {
        self.same(what, |store| async move {
            let sends = batches.iter().map(|steps| {
                let store = store.clone();
                async move {
                    let mut answers = Vec::new();
                    for step in steps {
                        let write = step.write(&*store).await;
                        answers.push(store.write(write).await.unwrap());
                    }
                    answers
                }
            });
            futures::future::join_all(sends).await
        })
        .await
    }

    async fn queries(&self, rng: &mut fastrand::Rng) {
        let now = at(rng.i64(-100..4_000));
        let agents = vec!["editor".to_owned()];
        let limit = rng.usize(1..8);
        let after = rng.bool().then(|| RunId(id_of(rng.u64(0..TOGETHER))));
        let asked = &agents;
        self.same("due", |s| due(s, asked, now, limit)).await;
        self.same("next due", |s| async move { s.next_due(asked).await.unwrap() }).await;
        self.same("lapsed", |s| async move { s.lapsed(TTL, after, limit).await.unwrap() }).await;
        self.same("overdue", |s| async move { s.overdue(now, after, limit).await.unwrap() }).await;
        let states = rng.choose_multiple([State::Queued, State::Dead, State::WaitingForApproval, State::Cancelled], limit % 4);
        let filter = &Filter { states, flagged_only: rng.u8(0..5) == 0, ..Filter::default() };
        self.same("list", |s| async move { s.list(filter, after, limit).await.unwrap() }).await;
    }

    /// Renews rights, standing and long gone.
    async fn renew(&self, rights: Vec<Held>) {
        let asked = &rights;
        let looks = self.same("renew", |store| async move {
            let rights = asked.clone();
            let renew = move || {
                let mut looks: Vec<Look> = store.renewer().unwrap().renew(&rights, TTL).unwrap();
                looks.sort_by_key(|l| (l.right.id, l.right.epoch, l.right.lease_id.0));
                looks
            };
            tokio::task::spawn_blocking(renew).await.unwrap()
        });
        looks.await;
    }
}

async fn stores() -> (Stores, impl Sized) {
    let clock = ManualClock::new();
    let directory = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(directory.path().join("runs.db"), clock.clone()).unwrap();
    let mut all: Vec<(&str, Arc<dyn Store>)> = vec![("memory", MemoryStore::new(clock.clone())), ("SQLite", sqlite)];
    let mut databases = Vec::new();
    for (name, version) in [("PostgreSQL 15", Version::V15), ("PostgreSQL 18", Version::V18)] {
        let database = tokio::task::spawn_blocking(move || Cluster::shared(version)).await.unwrap().database().await;
        all.push((name, PostgresStore::connect_with_clock(&database.url(), clock.clone()).await.unwrap()));
        databases.push(database);
    }
    (Stores { all, clock }, (directory, databases))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_histories_leave_the_same_rows_and_journals_in_every_store() {
    let histories: u64 = std::env::var("HISTORIES").ok().and_then(|n| n.parse().ok()).unwrap_or(24);
    let (stores, _kept) = stores().await;
    let mut answers_seen = BTreeSet::new();
    for first in (0..histories).step_by(usize::try_from(TOGETHER).unwrap()) {
        together(&stores, first, &mut answers_seen).await;
    }
    // Histories in which nobody ever comes too late would show little.
    assert_eq!(answers_seen, BTreeSet::from(["applied", "fenced", "moved"]));
}

async fn together(stores: &Stores, first: u64, answers_seen: &mut BTreeSet<&'static str>) {
    let mut rng = fastrand::Rng::with_seed(first);
    let mut histories: Vec<History> = (first..first + TOGETHER).map(History::new).collect();
    let mut born = Vec::new();
    for history in &histories {
        let birth = &history.birth();
        let inserted = stores.same("birth", |s| async move { s.insert(birth.clone()).await.unwrap() }).await;
        assert_eq!(stores.same("birth again", |s| async move { s.insert(birth.clone()).await.unwrap() }).await, inserted);
        born.push(matches!(inserted, Inserted::Applied(_)));
    }
    let mut taken = born.into_iter();
    histories.retain(|_| taken.next().unwrap());
    assert!(histories.len() < usize::try_from(TOGETHER).unwrap(), "some were found by their key");

    for round in 0..60 {
        let batches: Vec<Vec<Step>> = histories.iter_mut().map(History::next).collect();
        let expiries: Vec<Vec<Step>> =
            batches.iter().map(|b| b.iter().take(1).filter(|s| s.expires).cloned().collect()).collect();
        if expiries.iter().any(|e| !e.is_empty()) {
            for answer in stores.send("an expiry that may be early", &expiries).await.concat() {
                answers_seen.insert(word(&answer));
            }
            stores.clock.advance(TTL);
        }
        for answer in stores.send("what happened", &batches).await.concat() {
            assert!(matches!(answer, Answer::Applied(_)), "round {round}: {answer:?}");
            answers_seen.insert("applied");
        }
        late(stores, &histories, &mut rng, answers_seen).await;
        stores.clock.advance(Duration::from_millis(rng.u64(0..20_000)));
        for history in &histories {
            let id = history.id;
            let row = stores.same("row", |s| async move { s.load(id).await.unwrap().unwrap() }).await;
            assert_eq!(without_end(row), without_end(history.row.clone()), "what was stored is what was decided");
        }
        if round % 4 == 0 {
            stores.queries(&mut rng).await;
        }
        if round % 7 == 0 {
            stores.renew(rights(&histories, &mut rng)).await;
        }
    }
    for history in &histories {
        let id = history.id;
        let journal = stores.same("journal", |s| async move { s.journal(id, 0, 1_000).await.unwrap() }).await;
        assert_eq!(u64::try_from(journal.len()).unwrap(), history.row.sequence);
    }
}

/// Somebody sends an old write again, as itself and as another.
async fn late(stores: &Stores, histories: &[History], rng: &mut fastrand::Rng, answers_seen: &mut BTreeSet<&'static str>) {
    let mut again = Vec::new();
    for history in histories {
        let Some(step) = rng.choice(&history.steps) else { continue };
        let mut step = step.clone();
        if rng.bool() {
            step.write_id = WriteId::of_content(&format!("{}/late/{}", history.id, rng.u64(..)));
        }
        // A heartbeat journals nothing: sent again it is another renewal.
        if !step.delta.entries.is_empty() {
            again.push(vec![step]);
        }
    }
    for answer in stores.send("what was sent again", &again).await.concat() {
        answers_seen.insert(word(&answer));
    }
}

fn rights(histories: &[History], rng: &mut fastrand::Rng) -> Vec<Held> {
    let rows = histories.iter().filter_map(|h| {
        let row = if rng.bool() { &h.row } else { &rng.choice(&h.steps)?.before };
        let lease_id = row.lease.as_ref()?.lease_id;
        Some(Held { id: h.id, epoch: row.epoch, lease_id })
    });
    rows.collect()
}

fn word(answer: &Answer) -> &'static str {
    match answer {
        Answer::Applied(_) => "applied",
        Answer::Fenced => "fenced",
        Answer::Moved => "moved",
        Answer::Gone => "gone",
        Answer::Refused(_) => "refused",
        Answer::OverBudget(_) => "over budget",
    }
}

fn without_end(mut row: Snapshot) -> Snapshot {
    if let Some(lease) = &mut row.lease {
        lease.expires_at = LeaseTime { clock: String::new(), ns: 0 };
    }
    row
}
