//! The store for many machines: one PostgreSQL database, shared by every process. It promises what [`Store`] asks for, durably:
//! `synchronous_commit = on` is set on every connection, and a caller hears of a commit after the server acknowledged it.
//!
//! All SQL is in `sql/`, one statement a file, with the names that the embedded store uses, and no rule of the protocol is in any:
//! the constraints of the schema mirror them. Every transaction is one statement, so nothing is left open by a process that dies
//! or a future that is dropped; but for a claim of many rows (`claim`), a write of several records (`records`), one that
//! is charged (`charge`) or carries artifacts (`artifacts`) and the work of a tool (`transaction`), which are bounded. The guard stands in the statement that writes, and is judged
//! on the newest version of the row, locked. No write, renewal or claim waits for a row that somebody else has locked.
//!
//! Leases run on the **database's clock**, named `db`; no clock of a client decides about one. A lease of another clock (a row that came
//! from an embedded store) is foreign, see the lease section of the protocol.
//!
//! A process has one connection that commits guarded writes, a few for everything else, a few for the work of transactional tools, one for its renewals, and a worker one that
//! listens for hints. What the URL
//! may say stands at [`PostgresStore::connect`].

mod artifacts;
mod charge;
mod claim;
mod committer;
mod connections;
mod hints;
mod open;
mod records;
mod renewer;
mod row;
mod sql;
mod text;
mod transaction;

pub use open::OpenError;
pub use transaction::PostgresTransaction;

use self::{
    committer::Committer,
    connections::{Connections, Query as _},
    hints::Hints,
    renewer::PostgresRenewer,
    row::{Damaged, EntryArrays, EntryColumns, RowColumns, total},
    sql::{Params, Sql},
    text::stored,
};
use super::{
    Answer, Artifact, Choose, Chosen, Filter, Hint, Insert, Inserted, Lapse, Lapsed, Listed, ReadError, Record, Renewer,
    RequestKey, Store, Transacted, Transaction, Unavailable, Visible, Wanted, Write, shape, transaction::Work,
};
use crate::{
    clock::BootClock,
    limits::TRANSACTIONS_AT_ONCE_MAX,
    postgres::Target,
    run::{Claimer, Entry, LeaseId, LeaseTime, RunId, Snapshot, State},
};
use async_trait::async_trait;
use jiff::Timestamp;
use std::{fmt, sync::Arc, time::Duration};
use tokio::sync::broadcast;
use tokio_postgres::Row;
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

/// Connections for everything but guarded writes and renewals; further callers wait for one.
const CONNECTIONS_MAX: usize = 6;

/// Names the database's clock in a lease: nanoseconds since 1970 as the database has them.
pub const CLOCK: &str = "db";

/// The clock that ends leases.
#[derive(Clone, Debug)]
enum LeaseClock {
    /// The server's, read in the statement itself.
    Database,
    /// One that a test moves.
    Injected(Arc<dyn BootClock>),
}

/// What a statement is told about the time.
struct LeaseNow {
    clock: String,
    /// None: the statement reads the server's clock.
    ns: Option<i64>,
}

impl LeaseClock {
    fn now(&self) -> LeaseNow {
        match self {
            Self::Database => LeaseNow { clock: CLOCK.into(), ns: None },
            Self::Injected(clock) => LeaseNow { clock: clock.boot_id().to_owned(), ns: Some(clock.now().ns) },
        }
    }
}

impl LeaseNow {
    fn bind<'a>(&'a self, params: &mut Params<'a>) {
        params.one("clock", &self.clock).one("now_ns", &self.ns);
    }
}

/// See the module.
pub struct PostgresStore {
    target: Target,
    tls: MakeRustlsConnect,
    clock: LeaseClock,
    committer: Committer,
    shared: Connections,
    tools: Connections,
    hints: Hints,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store at {}", self.target.place)
    }
}

impl PostgresStore {
    /// Connects, and brings the schema to this version. Must be called on the runtime that will use the store.
    ///
    /// The URL is `postgres://user:password@host1:5432,host2:5432/database`, with `libpq`'s parameters as far as the driver knows
    /// them. `sslmode` is `disable`, `prefer`, `require`, `verify-ca` or `verify-full`; without it `prefer` where every host is this
    /// machine and `verify-full` otherwise. `sslrootcert` names a PEM file of trusted authorities (the system's without it),
    /// `passfile` a password file; `PGPASSWORD` and `PGPASSFILE` count too. Of several hosts the one that takes writes is used.
    /// `statement_cache=off` is for transaction poolers that do not know prepared statements.
    ///
    /// # Errors
    /// The database cannot be used; the error says what helps, and never holds the password.
    pub async fn connect(url: &str) -> Result<Arc<Self>, OpenError> {
        Self::open(url, LeaseClock::Database).await
    }

    /// The same with leases on a clock of the caller's instead of the database's: for tests that move it. Two stores on one
    /// database need the same clock.
    ///
    /// # Errors
    /// As for `connect`.
    pub async fn connect_with_clock(url: &str, clock: Arc<dyn BootClock>) -> Result<Arc<Self>, OpenError> {
        Self::open(url, LeaseClock::Injected(clock)).await
    }

    /// What a URL names, without its password, for messages; nothing is connected.
    ///
    /// # Errors
    /// It does not read; the error does not repeat it.
    pub fn place(url: &str) -> Result<String, OpenError> {
        connections::target(url, |_| None).map(|target| target.place)
    }

    async fn open(url: &str, clock: LeaseClock) -> Result<Arc<Self>, OpenError> {
        let target = connections::target(url, |name| std::env::var(name).ok())?;
        let tls = open::prepare(&target).await?;
        let failed = |why| OpenError::Failed { place: target.place.clone(), why };
        let commits = Connections::new(&target, tls.clone(), 1).map_err(failed)?;
        let shared = Connections::new(&target, tls.clone(), CONNECTIONS_MAX).map_err(failed)?;
        let tools = Connections::new(&target, tls.clone(), TRANSACTIONS_AT_ONCE_MAX).map_err(failed)?;
        let committer = Committer::start(commits, clock.clone());
        let hints = Hints::start(shared.clone());
        Ok(Arc::new(Self { target, tls, clock, committer, shared, tools, hints }))
    }

    /// Every row that `read` makes something of; one that does not decode is passed over, and said, so that it hides no other.
    async fn rows<T>(
        &self,
        sql: &Sql,
        params: &Params<'_>,
        read: impl Fn(&Row) -> Result<T, Damaged>,
    ) -> Result<Vec<T>, Unavailable> {
        let rows = self.shared.read(sql, params).await?;
        Ok(rows
            .iter()
            .filter_map(|row| {
                read(row).map_err(|Damaged(why)| tracing::warn!("a row of a list does not read and is passed over: {why}")).ok()
            })
            .collect())
    }

    /// Sends an insert. None where its id or its key is taken.
    async fn insert_once(&self, insert: &Insert) -> Result<Option<Inserted>, Unavailable> {
        let columns = RowColumns::of(&insert.row, insert.lease);
        let encoded: Vec<EntryColumns> =
            insert.entries.iter().map(|e| EntryColumns::of(insert.row.id, insert.write_id, e)).collect();
        let mut entries = EntryArrays::default();
        encoded.iter().for_each(|e| entries.push(e));
        let now = self.clock.now();
        let key = insert.key.as_ref();
        let scope = key.map(|k| stored(&k.scope));
        let name = key.map(|k| stored(&k.key));
        let hash = key.map(|k| stored(&k.request_hash));
        let mut params = Params::default();
        columns.bind(&mut params);
        now.bind(&mut params);
        params.one("request_scope", &scope).one("request_key", &name).one("request_hash", &hash);
        entries.bind(&mut params);
        let rows = match self.shared.query(&sql::INSERT_RUN, &params).await {
            Ok(rows) => rows,
            Err(failed) => return self.shared.refused(&failed).map(|refused| Some(Inserted::Refused(refused))),
        };
        let made = rows.first().map(row::lease_end).transpose();
        Ok(made.map_err(|Damaged(why)| self.unreadable(&why))?.map(Inserted::Applied))
    }

    fn unreadable(&self, why: &str) -> Unavailable {
        Unavailable(format!("{}: {why}", self.target.place))
    }

    /// Why an insert made no row; none where what stood in its way has gone.
    async fn stands_in_the_way(&self, insert: &Insert) -> Result<Option<Inserted>, Unavailable> {
        let id = insert.row.id;
        match committer::is_there(&self.shared, id, insert.write_id).await? {
            Some((true, end)) => return Ok(Some(Inserted::Applied(end))),
            Some((false, _)) => return Err(Unavailable(format!("the id {id} is another run's"))),
            None => {}
        }
        let Some(RequestKey { scope, key, request_hash }) = &insert.key else { return Ok(None) };
        let (scope, key) = (stored(scope), stored(key));
        let mut params = Params::default();
        params.one("scope", &scope).one("key", &key);
        let read = |row: &Row| Ok((row::run_id(row)?, row::column::<String>(row, "request_hash")?));
        let found = self.rows(&sql::BY_REQUEST_KEY, &params, read).await?;
        Ok(found
            .into_iter()
            .next()
            .map(|(run, hash)| if hash == stored(request_hash) { Inserted::Existing(run) } else { Inserted::KeyConflict(run) }))
    }
}

/// The waiting and the dead are asked for all the time and have an index; it serves only filters within it.
fn wants_attention(states: &[State]) -> bool {
    !states.is_empty() && states.iter().all(|s| s.is_waiting() || *s == State::Dead)
}

fn limited(limit: usize) -> i64 {
    // A page fits any integer.
    i64::try_from(shape::page(limit)).unwrap_or(0)
}

fn nanos(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX)
}

fn after_or_first(id: Option<RunId>) -> Uuid {
    id.map_or(Uuid::nil(), |id| id.0)
}
fn before_or_last(id: Option<RunId>) -> Uuid {
    id.map_or(Uuid::max(), |id| id.0)
}

fn corrupt(run: RunId, Damaged(why): Damaged, rest: Option<Snapshot>) -> ReadError {
    ReadError::Corrupt { run, why, rest: rest.map(Box::new) }
}

/// Owner, initiator and teams whose runs are shown; no owner: everybody's.
fn seen_by(visible_to: Option<&Visible>) -> (Option<String>, Option<String>, Vec<String>) {
    let teams = visible_to.iter().flat_map(|seen| &seen.teams).map(|team| stored(team)).collect();
    (visible_to.map(|seen| stored(&seen.owner)), visible_to.map(|seen| stored(&seen.initiator)), teams)
}

#[async_trait]
impl Store for PostgresStore {
    async fn insert(&self, insert: Insert) -> Result<Inserted, Unavailable> {
        shape::check_insert(&insert)?;
        // What stood in the way may be gone at the second look (a transaction that was undone); it is not gone for ever.
        for _ in 0..3 {
            if let Some(made) = self.insert_once(&insert).await? {
                return Ok(made);
            }
            if let Some(found) = self.stands_in_the_way(&insert).await? {
                return Ok(found);
            }
        }
        Err(self.unreadable("the run could not be inserted, and nothing stands in its way"))
    }

    async fn write(&self, write: Write) -> Result<Answer, Unavailable> {
        shape::check_write(&write)?;
        if !write.charges.is_empty() || !write.artifacts.is_empty() {
            return self.write_charged(&write).await;
        }
        self.committer.send(&write).await
    }

    async fn transact(&self, transaction: Transaction) -> Result<Transacted, Unavailable> {
        match transaction.work.clone() {
            Work::Postgres(_) if !self.tools.is_prepared() => Ok(Transacted::NoDatabase(format!(
                "{} is used with statement_cache=off, and a transactional tool needs prepared statements",
                self.target.place
            ))),
            Work::Postgres(work) => self.transact_work(transaction, work).await,
            work => Ok(Transacted::no_database(&format!("PostgreSQL ({})", self.target.place), &work)),
        }
    }

    async fn load(&self, id: RunId) -> Result<Option<Snapshot>, ReadError> {
        let mut params = Params::default();
        params.one("id", &id.0);
        let rows = self.shared.read(&sql::LOAD, &params).await?;
        rows.first().map(|row| row::snapshot(row).map_err(|e| corrupt(id, e, row::rest(row)))).transpose()
    }

    async fn journal(&self, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError> {
        let (from, limit) = (total(from), limited(limit));
        let mut params = Params::default();
        params.one("id", &id.0).one("from", &from).one("limit", &limit);
        let rows = self.shared.read(&sql::JOURNAL, &params).await?;
        rows.iter().map(row::entry).collect::<Result<_, _>>().map_err(|e| corrupt(id, e, None))
    }

    async fn artifacts(&self, id: RunId) -> Result<Vec<Artifact>, Unavailable> {
        self.artifacts_of(id).await
    }

    async fn artifact(&self, id: RunId, handle: &str) -> Result<Option<Artifact>, Unavailable> {
        self.artifact_of(id, handle).await
    }

    async fn list(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Result<Vec<Listed>, Unavailable> {
        let sql = if wants_attention(&filter.states) { &sql::LIST_ATTENTION } else { &sql::LIST };
        let states = (!filter.states.is_empty()).then(|| filter.states.iter().map(|s| s.as_str()).collect());
        let (agent, owner) = (filter.agent.as_deref().map(stored), filter.owner.as_deref().map(stored));
        let reason = filter.reason.as_deref().map(stored);
        let (see_owner, see_initiator, see_teams) = seen_by(filter.visible_to.as_ref());
        let since_ms = filter.since.map(Timestamp::as_millisecond);
        let (before, limit) = (before_or_last(before), limited(limit));
        let mut params = Params::default();
        params
            .any("states", &states)
            .one("agent", &agent)
            .one("owner", &owner)
            .one("reason", &reason)
            .one("since_ms", &since_ms)
            .one("see_owner", &see_owner)
            .one("see_initiator", &see_initiator)
            .many("see_teams", &see_teams)
            .one("flagged_only", &filter.flagged_only)
            .one("before", &before)
            .one("limit", &limit);
        self.rows(sql, &params, row::listed).await
    }

    async fn claim(&self, wanted: Wanted, choose: Choose) -> Result<Chosen, Unavailable> {
        self.claim_due(&wanted, &choose).await
    }

    async fn next_due(&self, agents: &[String]) -> Result<Option<Timestamp>, Unavailable> {
        let agents: Vec<String> = agents.iter().map(|a| stored(a)).collect();
        let mut params = Params::default();
        params.many("agents", &agents);
        let due = self.rows(&sql::NEXT_DUE, &params, |row| row::column::<Option<i64>>(row, "due_at_ms")).await?;
        Ok(due.into_iter().flatten().next().and_then(|ms| Timestamp::from_millisecond(ms).ok()))
    }

    async fn now(&self) -> Result<LeaseTime, Unavailable> {
        let now = self.clock.now();
        let mut params = Params::default();
        params.one("now_ns", &now.ns);
        let rows = self.shared.read(&sql::NOW, &params).await?;
        let ns = rows.first().map(|row| row::column(row, "now_ns")).transpose();
        let ns = ns.map_err(|Damaged(why)| self.unreadable(&why))?.ok_or_else(|| self.unreadable("it has no time"))?;
        Ok(LeaseTime { clock: now.clock, ns })
    }

    async fn lapsed(&self, ttl: Duration, after: Option<RunId>, limit: usize) -> Result<Vec<Lapsed>, Unavailable> {
        let now = self.clock.now();
        let (ttl_ns, after, limit) = (nanos(ttl), after_or_first(after), limited(limit));
        let mut params = Params::default();
        now.bind(&mut params);
        params.one("ttl_ns", &ttl_ns).one("after", &after).one("limit", &limit);
        self.rows(&sql::LAPSED, &params, |row| {
            Ok(Lapsed {
                id: row::run_id(row)?,
                epoch: u64::try_from(row::column::<i64>(row, "epoch")?).unwrap_or(0),
                lease_id: LeaseId(row::column(row, "lease_id")?),
                expires_at: row::lease_end(row)?.ok_or_else(|| Damaged("a held row has no lease end".into()))?,
                lapse: if row::column(row, "is_foreign")? {
                    Lapse::Foreign
                } else if row::column(row, "is_over")? {
                    Lapse::Passed
                } else {
                    Lapse::Ahead
                },
            })
        })
        .await
    }

    async fn overdue(&self, now: Timestamp, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, Unavailable> {
        let (now_ms, after, limit) = (now.as_millisecond(), after_or_first(after), limited(limit));
        let mut params = Params::default();
        params.one("now_ms", &now_ms).one("after", &after).one("limit", &limit);
        self.rows(&sql::OVERDUE, &params, row::run_id).await
    }

    async fn callers(
        &self,
        tool: &str,
        since: Timestamp,
        visible_to: Option<&Visible>,
        limit: usize,
    ) -> Result<Vec<RunId>, Unavailable> {
        let (tool, since_ms, limit) = (stored(tool), since.as_millisecond(), limited(limit));
        let (see_owner, see_initiator, see_teams) = seen_by(visible_to);
        let mut params = Params::default();
        params
            .one("tool", &tool)
            .one("since_ms", &since_ms)
            .one("see_owner", &see_owner)
            .one("see_initiator", &see_initiator)
            .many("see_teams", &see_teams)
            .one("limit", &limit);
        self.rows(&sql::CALLERS, &params, row::run_id).await
    }

    async fn untold(&self, since: Timestamp, limit: usize) -> Result<Vec<(RunId, Timestamp)>, Unavailable> {
        let (since_ms, limit) = (since.as_millisecond(), limited(limit));
        let mut params = Params::default();
        params.one("since_ms", &since_ms).one("limit", &limit);
        self.rows(&sql::UNTOLD, &params, |row| {
            let at = Timestamp::from_millisecond(row::column(row, "finished_at_ms")?);
            Ok((row::run_id(row)?, at.map_err(|e| Damaged(e.to_string()))?))
        })
        .await
    }

    async fn told(&self, id: RunId, finished_at: Timestamp) -> Result<(), Unavailable> {
        let finished_at_ms = finished_at.as_millisecond();
        let mut params = Params::default();
        params.one("id", &id.0).one("finished_at_ms", &finished_at_ms);
        self.shared.read(&sql::TOLD, &params).await.map(|_| ())
    }

    async fn find(&self, suffix: &str) -> Result<Vec<RunId>, Unavailable> {
        let Some(suffix) = shape::id_suffix(suffix) else { return Ok(Vec::new()) };
        let mut params = Params::default();
        params.one("suffix", &suffix);
        self.rows(&sql::FIND, &params, row::run_id).await
    }

    async fn announce(&self, worker: &str, ttl: Duration, claimer: &Claimer) -> Result<(), Unavailable> {
        let (now, name, ttl_ns) = (self.clock.now(), stored(worker), nanos(ttl));
        let serves = shape::serves(claimer);
        let mut params = Params::default();
        now.bind(&mut params);
        self.shared.read(&sql::FORGET_WORKERS, &params).await?;
        params.one("name", &name).one("ttl_ns", &ttl_ns).one("executes", &claimer.open).one("serves", &serves);
        self.shared.read(&sql::ANNOUNCE, &params).await.map(|_| ())
    }

    async fn workers(&self) -> Result<Vec<Claimer>, Unavailable> {
        let (now, limit) = (self.clock.now(), limited(usize::MAX));
        let mut params = Params::default();
        now.bind(&mut params);
        params.one("limit", &limit);
        self.rows(&sql::WORKERS, &params, |row| Ok(shape::claimer(&row::column::<String>(row, "serves")?))).await
    }

    async fn record(&self, kind: &str, key: &str) -> Result<Option<Record>, Unavailable> {
        self.record_of(kind, key).await
    }

    async fn records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, Unavailable> {
        self.records_of(kind, after, limit).await
    }

    async fn put_records(&self, records: Vec<Record>) -> Result<bool, Unavailable> {
        self.put_all(records).await
    }

    async fn remove_record(&self, kind: &str, key: &str, version: u64) -> Result<bool, Unavailable> {
        self.remove(kind, key, version).await
    }

    fn hint(&self, hint: Hint) {
        self.hints.say(hint);
    }

    async fn hints_sent(&self, patience: Duration) {
        self.hints.sent(patience).await;
    }

    fn hints(&self) -> Option<broadcast::Receiver<Hint>> {
        Some(self.hints.heard(&self.target, &self.tls))
    }

    fn renewer(&self) -> Result<Box<dyn Renewer>, Unavailable> {
        // It connects at its first round, on its own thread: nothing here may block.
        Ok(Box::new(PostgresRenewer {
            target: self.target.clone(),
            tls: self.tls.clone(),
            clock: self.clock.clone(),
            runtime: None,
            client: None,
        }))
    }

    fn describe(&self) -> String {
        self.target.place.clone()
    }
}
