//! The embedded store: one SQLite file, shared by every process of one machine. It promises what [`Store`] asks for, durably: a
//! commit is on the disk (write-ahead log, `synchronous = FULL`) before its caller hears of it.
//!
//! One writer thread per store, a few readers, one connection per renewer. All SQL is in `sql/`, one statement a file, and no rule
//! of the protocol is in any: the constraints of the schema mirror them, so that no program can store a row that no transition makes.
//! Leases run on the machine's boot-time clock, named by its boot id (see the lease section of the protocol).

mod artifacts;
mod busy;
mod change;
mod open;
mod place;
mod readers;
mod records;
mod renewer;
mod row;
mod transaction;
mod turns;
mod writer;

pub use open::OpenError;
pub use transaction::{SqliteTransaction, SqliteWork};

use self::{
    busy::patiently,
    change::{Change, Content, Reply, end, now},
    place::Place,
    readers::Readers,
    renewer::SqliteRenewer,
    row::Damaged,
    transaction::Tools,
    turns::Turns,
    writer::Writer,
};
use super::{
    Answer, Artifact, Choose, Chosen, Filter, Insert, Inserted, Lapse, Lapsed, Listed, ReadError, Record, Renewer, Store,
    Transacted, Transaction, Unavailable, Visible, Wanted, Write, record, shape, transaction::Work,
};
use crate::{
    clock::BootClock,
    run::{Claimer, Entry, LeaseTime, RunId, Snapshot, State},
};
use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, named_params};
use std::{path::Path, sync::Arc, time::Duration};

/// See the module.
#[derive(Debug)]
pub struct SqliteStore {
    place: Arc<Place>,
    clock: Arc<dyn BootClock>,
    turns: Arc<Turns>,
    writer: Writer,
    readers: Readers,
    tools: Tools,
}

impl SqliteStore {
    /// Opens the file, creates it where there is none, and brings its schema to this version. Blocks while another process does
    /// the same.
    ///
    /// # Errors
    /// The file cannot be used; the error says what helps.
    pub fn open(path: impl AsRef<Path>, clock: Arc<dyn BootClock>) -> Result<Arc<Self>, OpenError> {
        let path = path.as_ref();
        let connection = open::prepare(path)?;
        let failed = |e: std::io::Error| OpenError::Failed { path: path.into(), why: e.to_string() };
        let place = Arc::new(Place::of(path).map_err(failed)?);
        let turns = Arc::new(Turns::default());
        let writer = Writer::start(connection, Arc::clone(&clock), Arc::clone(&turns), Arc::clone(&place)).map_err(failed)?;
        let readers = Readers::new(Arc::clone(&place));
        let tools = Tools::new(Arc::clone(&clock), Arc::clone(&turns), Arc::clone(&place));
        Ok(Arc::new(Self { place, clock, turns, writer, readers, tools }))
    }

    fn unexpected(&self) -> Unavailable {
        Unavailable(format!("{}: the writer answered another question", self.place))
    }

    /// Runs one statement that gives run ids.
    async fn ids(
        &self,
        sql: &'static str,
        params: Vec<(&'static str, Box<dyn ToSql + Send>)>,
    ) -> Result<Vec<RunId>, Unavailable> {
        self.readers.read(move |c| rows(c, sql, &borrow(&params), row::run_id)).await
    }
}

fn borrow<'a>(params: &'a [(&'static str, Box<dyn ToSql + Send>)]) -> Vec<(&'static str, &'a dyn ToSql)> {
    params.iter().map(|(name, value)| (*name, &**value as &dyn ToSql)).collect()
}

/// Every row that `read` makes something of.
fn rows<T>(
    connection: &Connection,
    sql: &str,
    params: &[(&str, &dyn ToSql)],
    read: impl Fn(&Row<'_>) -> rusqlite::Result<Option<T>>,
) -> rusqlite::Result<Vec<T>> {
    let mut statement = connection.prepare_cached(sql)?;
    statement.query_map(params, |row| read(row))?.filter_map(Result::transpose).collect()
}

fn encode(entries: &[Entry]) -> Vec<Vec<u8>> {
    entries.iter().map(|e| e.body.encode()).collect()
}

fn json(items: impl IntoIterator<Item = impl Into<serde_json::Value>>) -> String {
    serde_json::Value::from_iter(items).to_string()
}

/// The waiting and the dead are asked for all the time and have an index; it serves only filters within it.
fn wants_attention(states: &[State]) -> bool {
    !states.is_empty() && states.iter().all(|s| s.is_waiting() || *s == State::Dead)
}

fn limited(limit: usize) -> i64 {
    // A page fits any integer.
    i64::try_from(shape::page(limit)).unwrap_or(0)
}

/// Text below which no id is, and above which none is.
fn after_or_first(id: Option<RunId>) -> String {
    id.map(|id| id.to_string()).unwrap_or_default()
}
fn before_or_last(id: Option<RunId>) -> String {
    id.map_or_else(|| "g".into(), |id| id.to_string())
}

fn corrupt(run: RunId, Damaged(why): Damaged, rest: Option<Snapshot>) -> ReadError {
    ReadError::Corrupt { run, why, rest: rest.map(Box::new) }
}

#[async_trait]
impl Store for SqliteStore {
    async fn insert(&self, insert: Insert) -> Result<Inserted, Unavailable> {
        shape::check_insert(&insert)?;
        let content = Content::of(&insert.row, &insert.entries);
        match self.writer.send(Change::Insert { insert: Box::new(insert), content }).await? {
            Reply::Inserted(inserted) => Ok(inserted),
            Reply::Refused(why) => Err(why),
            _ => Err(self.unexpected()),
        }
    }

    async fn write(&self, write: Write) -> Result<Answer, Unavailable> {
        shape::check_write(&write)?;
        let content = Content::of(&write.next, &write.entries);
        match self.writer.send(Change::Write { write: Box::new(write), content }).await? {
            Reply::Answered(answer) => Ok(answer),
            Reply::Refused(why) => Err(why),
            _ => Err(self.unexpected()),
        }
    }

    async fn transact(&self, transaction: Transaction) -> Result<Transacted, Unavailable> {
        match transaction.work.clone() {
            Work::Sqlite(work) => self.tools.transact(transaction, work).await,
            work => Ok(Transacted::no_database(&format!("SQLite ({})", self.describe()), &work)),
        }
    }

    async fn load(&self, id: RunId) -> Result<Option<Snapshot>, ReadError> {
        let found = self
            .readers
            .read(move |c| {
                c.prepare_cached(include_str!("sql/load.sql"))?
                    .query_row(named_params! { ":id": id.to_string() }, |row| {
                        Ok(row::snapshot(row).map_err(|e| (e, row::rest(row))))
                    })
                    .optional()
            })
            .await?;
        found.transpose().map_err(|(e, rest)| corrupt(id, e, rest))
    }

    async fn journal(&self, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError> {
        let entries = self
            .readers
            .read(move |c| {
                let id = id.to_string();
                let (from, limit) = (row::total(from), limited(limit));
                let params = named_params! { ":id": id, ":from": from, ":limit": limit };
                rows(c, include_str!("sql/journal.sql"), params, |row| Ok(Some(row::entry(row))))
            })
            .await?;
        entries.into_iter().collect::<Result<_, _>>().map_err(|e| corrupt(id, e, None))
    }

    async fn artifacts(&self, id: RunId) -> Result<Vec<Artifact>, Unavailable> {
        self.readers.read(move |c| artifacts::of_run(c, id, limited(usize::MAX))).await
    }

    async fn artifact(&self, id: RunId, handle: &str) -> Result<Option<Artifact>, Unavailable> {
        let handle = handle.to_owned();
        let read = move |c: &Connection| {
            let mut statement = c.prepare_cached(include_str!("sql/artifact.sql"))?;
            statement.query_row(named_params! { ":run_id": id.to_string(), ":handle": handle }, artifacts::whole).optional()
        };
        self.readers.read(read).await
    }

    async fn list(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Result<Vec<Listed>, Unavailable> {
        let filter = filter.clone();
        let sql =
            if wants_attention(&filter.states) { include_str!("sql/list_attention.sql") } else { include_str!("sql/list.sql") };
        self.readers
            .read(move |c| {
                let states = (!filter.states.is_empty()).then(|| json(filter.states.iter().map(|s| s.as_str())));
                let seen = filter.visible_to.as_ref();
                let params = named_params! {
                    ":see_owner": seen.map(|s| &s.owner),
                    ":see_initiator": seen.map(|s| &s.initiator),
                    ":see_teams": seen.map(|s| json(s.teams.iter().map(String::as_str))),
                    ":states": states,
                    ":agent": filter.agent,
                    ":owner": filter.owner,
                    ":reason": filter.reason,
                    ":since_ms": filter.since.map(Timestamp::as_millisecond),
                    ":flagged_only": filter.flagged_only,
                    ":before": before_or_last(before),
                    ":limit": limited(limit),
                };
                rows(c, sql, params, row::listed)
            })
            .await
    }

    async fn claim(&self, wanted: Wanted, choose: Choose) -> Result<Chosen, Unavailable> {
        // An idle queue is looked at without the write lock.
        let asked = wanted.clone();
        if self.readers.read(move |c| change::due(c, &asked)).await?.is_empty() {
            return Ok(Vec::new());
        }
        match self.writer.send(Change::Claim { wanted, choose }).await? {
            Reply::Claimed(chosen) => Ok(chosen),
            Reply::Refused(why) => Err(why),
            _ => Err(self.unexpected()),
        }
    }

    async fn next_due(&self, agents: &[String]) -> Result<Option<Timestamp>, Unavailable> {
        let agents = json(agents.iter().map(String::as_str));
        let ms: Option<i64> = self
            .readers
            .read(move |c| {
                c.prepare_cached(include_str!("sql/next_due.sql"))?
                    .query_row(named_params! { ":agents": agents }, |row| row.get(0))
            })
            .await?;
        Ok(ms.map(row::shown_time))
    }

    async fn now(&self) -> Result<LeaseTime, Unavailable> {
        Ok(now(&*self.clock))
    }

    async fn lapsed(&self, ttl: Duration, after: Option<RunId>, limit: usize) -> Result<Vec<Lapsed>, Unavailable> {
        let clock = Arc::clone(&self.clock);
        self.readers
            .read(move |c| {
                // Not before it has its turn: what is renewed meanwhile would seem to end too far away.
                let now = now(&*clock);
                let granted_now = end(&now, ttl);
                let params = named_params! {
                    ":clock": now.clock,
                    ":now_ns": now.ns,
                    ":granted_now_ns": granted_now.ns,
                    ":after": after_or_first(after),
                    ":limit": limited(limit),
                };
                rows(c, include_str!("sql/lapsed.sql"), params, |row| {
                    let Some(id) = row::run_id(row)? else { return Ok(None) };
                    let Ok(lease_id) = row.get::<_, String>("lease_id")?.parse() else {
                        tracing::warn!(run = %id, "run {id}: its lease id does not decode; the row is passed over");
                        return Ok(None);
                    };
                    let expires_at = LeaseTime { clock: row.get("lease_clock")?, ns: row.get("lease_expires_ns")? };
                    let Some(lapse) = Lapse::of(&expires_at, &now, ttl) else { return Ok(None) };
                    Ok(Some(Lapsed { id, epoch: row::shown_count(row.get("epoch")?), lease_id, expires_at, lapse }))
                })
            })
            .await
    }

    async fn overdue(&self, now: Timestamp, after: Option<RunId>, limit: usize) -> Result<Vec<RunId>, Unavailable> {
        self.ids(
            include_str!("sql/overdue.sql"),
            vec![
                (":now_ms", Box::new(now.as_millisecond())),
                (":after", Box::new(after_or_first(after))),
                (":limit", Box::new(limited(limit))),
            ],
        )
        .await
    }

    async fn callers(
        &self,
        tool: &str,
        since: Timestamp,
        visible_to: Option<&Visible>,
        limit: usize,
    ) -> Result<Vec<RunId>, Unavailable> {
        let teams = visible_to.map(|seen| json(seen.teams.iter().map(String::as_str)));
        self.ids(
            include_str!("sql/callers.sql"),
            vec![
                (":tool", Box::new(tool.to_owned())),
                (":since_ms", Box::new(since.as_millisecond())),
                (":see_owner", Box::new(visible_to.map(|seen| seen.owner.clone()))),
                (":see_initiator", Box::new(visible_to.map(|seen| seen.initiator.clone()))),
                (":see_teams", Box::new(teams)),
                (":limit", Box::new(limited(limit))),
            ],
        )
        .await
    }

    async fn untold(&self, since: Timestamp, limit: usize) -> Result<Vec<(RunId, Timestamp)>, Unavailable> {
        let (since_ms, limit) = (since.as_millisecond(), limited(limit));
        let read = move |c: &Connection| {
            let params = named_params! { ":since_ms": since_ms, ":limit": limit };
            rows(c, include_str!("sql/untold.sql"), params, |row| {
                Ok(row::run_id(row)?.zip(Some(row::shown_time(row.get("finished_at_ms")?))))
            })
        };
        self.readers.read(read).await
    }

    async fn told(&self, id: RunId, finished_at: Timestamp) -> Result<(), Unavailable> {
        match self.writer.send(Change::Told { id, finished_at_ms: finished_at.as_millisecond() }).await? {
            Reply::Compared(_) => Ok(()),
            _ => Err(self.unexpected()),
        }
    }

    async fn find(&self, suffix: &str) -> Result<Vec<RunId>, Unavailable> {
        let Some(suffix) = shape::id_suffix(suffix) else { return Ok(Vec::new()) };
        self.ids(include_str!("sql/find.sql"), vec![(":suffix", Box::new(suffix))]).await
    }

    async fn announce(&self, worker: &str, ttl: Duration, claimer: &Claimer) -> Result<(), Unavailable> {
        let (worker, executes, serves) = (worker.to_owned(), claimer.open, shape::serves(claimer));
        match self.writer.send(Change::Announce { worker, ttl, executes, serves }).await? {
            Reply::Announced => Ok(()),
            Reply::Refused(why) => Err(why),
            _ => Err(self.unexpected()),
        }
    }

    async fn workers(&self) -> Result<Vec<Claimer>, Unavailable> {
        let now = now(&*self.clock);
        let read = move |c: &Connection| {
            let params = named_params! { ":clock": now.clock, ":now_ns": now.ns, ":limit": limited(usize::MAX) };
            rows(c, include_str!("sql/workers.sql"), params, |row| row.get::<_, String>("serves").map(Some))
        };
        Ok(self.readers.read(read).await?.iter().map(|serves| shape::claimer(serves)).collect())
    }

    async fn record(&self, kind: &str, key: &str) -> Result<Option<Record>, Unavailable> {
        let (kind, key) = (kind.to_owned(), key.to_owned());
        let read = move |c: &Connection| {
            let mut statement = c.prepare_cached(include_str!("sql/record.sql"))?;
            statement.query_row(named_params! { ":kind": kind, ":key": key }, records::read).optional()
        };
        self.readers.read(read).await
    }

    async fn records(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, Unavailable> {
        let (kind, after) = (kind.to_owned(), after.unwrap_or_default().to_owned());
        let read = move |c: &Connection| {
            let params = named_params! { ":kind": kind, ":after": after, ":limit": limited(limit) };
            rows(c, include_str!("sql/records.sql"), params, |row| records::read(row).map(Some))
        };
        self.readers.read(read).await
    }

    async fn put_records(&self, records: Vec<Record>) -> Result<bool, Unavailable> {
        match self.writer.send(Change::Put(record::in_order(records)?)).await? {
            Reply::Compared(same) => Ok(same),
            _ => Err(self.unexpected()),
        }
    }

    async fn remove_record(&self, kind: &str, key: &str, version: u64) -> Result<bool, Unavailable> {
        match self.writer.send(Change::Remove { kind: kind.into(), key: key.into(), version }).await? {
            Reply::Compared(same) => Ok(same),
            _ => Err(self.unexpected()),
        }
    }

    fn renewer(&self) -> Result<Box<dyn Renewer>, Unavailable> {
        let connection = patiently(|| open::connect(self.place.path(), false)).map_err(|e| self.place.unavailable(&e))?;
        Ok(Box::new(SqliteRenewer {
            connection,
            clock: Arc::clone(&self.clock),
            turns: Arc::clone(&self.turns),
            place: Arc::clone(&self.place),
        }))
    }

    fn describe(&self) -> String {
        self.place.to_string()
    }
}
