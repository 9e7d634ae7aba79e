//! One change inside an open transaction: the guarded write, the insert, a claim, a worker's word. Nothing here begins or ends a
//! transaction.

use super::{
    artifacts, busy, corrupt, encode, json, limited, records,
    row::{self, RowParams, total},
};
use crate::{
    clock::BootClock,
    run::{Entry, Lease, LeaseTime, RunId, Snapshot, WriteId},
    store::{
        Answer, Choose, Chosen, Guard, Insert, Inserted, LeaseOp, ReadError, Record, RequestKey, StoreRefused, Unavailable,
        Wanted, Write, shape,
    },
};
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, named_params};
use std::{fmt::Display, time::Duration};

/// A change; but for a claim with its content encoded already, so that the writer thread only writes.
pub(super) enum Change {
    Insert { insert: Box<Insert>, content: Content },
    Write { write: Box<Write>, content: Content },
    Claim { wanted: Wanted, choose: Choose },
    Announce { worker: String, ttl: Duration, executes: bool, serves: String },
    Put(Vec<Record>),
    Remove { kind: String, key: String, version: u64 },
    Told { id: RunId, finished_at_ms: i64 },
}

/// The encoded parts of a change.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) turn: Option<String>,
    pub(super) payloads: Vec<Vec<u8>>,
}

impl Content {
    pub(super) fn of(row: &Snapshot, entries: &[Entry]) -> Self {
        Self { turn: row::encode_turn(row.turn.as_ref()), payloads: encode(entries) }
    }
}

/// What became of a change.
#[derive(Debug)]
pub(super) enum Reply {
    Inserted(Inserted),
    Answered(Answer),
    Claimed(Chosen),
    Announced,
    /// Whether the versions were those that the writer saw; otherwise nothing was done.
    Compared(bool),
    /// Not stored, and never will be.
    Refused(Unavailable),
}

/// The clock that ends leases, read anew for each change.
pub(super) fn now(clock: &dyn BootClock) -> LeaseTime {
    LeaseTime { clock: clock.boot_id().to_owned(), ns: clock.now().ns }
}

/// The end of a lease granted or renewed now.
pub(super) fn end(now: &LeaseTime, ttl: Duration) -> LeaseTime {
    let ttl = i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX);
    LeaseTime { clock: now.clock.clone(), ns: now.ns.saturating_add(ttl) }
}

impl Change {
    /// The answer where the store does not take it.
    pub(super) fn refused(&self, refused: StoreRefused) -> Result<Reply, Unavailable> {
        match self {
            Self::Insert { .. } => Ok(Reply::Inserted(Inserted::Refused(refused))),
            Self::Write { .. } => Ok(Reply::Answered(Answer::Refused(refused))),
            _ => Err(Unavailable(refused.to_string())),
        }
    }

    /// Carries it out.
    pub(super) fn apply(&self, connection: &Connection, clock: &dyn BootClock, place: &dyn Display) -> rusqlite::Result<Reply> {
        let now = now(clock);
        match self {
            Self::Insert { insert, content } => apply_insert(connection, insert, content, &now),
            Self::Write { write, content } => apply_write(connection, write, content, &now).map(Reply::Answered),
            Self::Claim { wanted, choose } => {
                let due = due(connection, wanted)?;
                let writes = if due.is_empty() { Vec::new() } else { choose(due) };
                let each = writes.iter().map(|write| apply_chosen(connection, write, &now, place));
                each.collect::<rusqlite::Result<_>>().map(Reply::Claimed)
            }
            Self::Announce { worker, ttl, executes, serves } => {
                let mut forget = connection.prepare_cached(include_str!("sql/forget_workers.sql"))?;
                forget.execute(named_params! { ":clock": now.clock, ":now_ns": now.ns })?;
                let mut announce = connection.prepare_cached(include_str!("sql/announce.sql"))?;
                let end = end(&now, *ttl);
                announce.execute(named_params! {
                    ":name": worker, ":clock": end.clock, ":expires_ns": end.ns, ":executes": executes,
                    ":serves": serves
                })?;
                Ok(Reply::Announced)
            }
            Self::Put(put) => records::put(connection, put).map(Reply::Compared),
            Self::Remove { kind, key, version } => records::remove(connection, kind, key, *version).map(Reply::Compared),
            Self::Told { id, finished_at_ms } => {
                let mut told = connection.prepare_cached(include_str!("sql/told.sql"))?;
                let params = named_params! { ":id": id.to_string(), ":finished_at_ms": finished_at_ms };
                told.execute(params).map(|changed| Reply::Compared(changed == 1))
            }
        }
    }
}

/// What is due of each wanted agent.
pub(super) fn due(connection: &Connection, wanted: &Wanted) -> rusqlite::Result<Vec<Result<Snapshot, ReadError>>> {
    let mut statement = connection.prepare_cached(include_str!("sql/due.sql"))?;
    let except = json(wanted.except.iter().map(ToString::to_string));
    let mut due = Vec::new();
    for (agent, most) in &wanted.agents {
        let now_ms = wanted.now.as_millisecond();
        let params = named_params! { ":agent": agent, ":now_ms": now_ms, ":except": except, ":limit": limited(*most) };
        let mut rows = statement.query(params)?;
        while let Some(row) = rows.next()? {
            let Some(id) = row::run_id(row)? else { continue };
            due.push(row::snapshot(row).map_err(|damaged| corrupt(id, damaged, row::rest(row))));
        }
    }
    Ok(due)
}

/// One of several writes of a transaction: one that fails is undone alone.
fn apply_chosen(
    connection: &Connection,
    write: &Write,
    now: &LeaseTime,
    place: &dyn Display,
) -> rusqlite::Result<Result<Answer, Unavailable>> {
    if let Err(malformed) = shape::check_write(write) {
        return Ok(Err(malformed));
    }
    let content = Content::of(&write.next, &write.entries);
    let answer = alone(connection, "chosen", place, || apply_write(connection, write, &content, now))?;
    Ok(Ok(answer.unwrap_or_else(Answer::Refused)))
}

/// What SQLite did not take, where it is certain that nothing of it is there. Sent again it is mostly refused again: until somebody
/// makes room on the disk, gives a permission, takes a rule away.
pub(super) fn refused(place: &dyn Display, error: &rusqlite::Error) -> StoreRefused {
    let passing = matches!(error.sqlite_error_code(), Some(ErrorCode::OutOfMemory | ErrorCode::SystemIoFailure));
    StoreRefused { why: format!("{place}: {error}"), lasting: !passing }
}

/// One of several changes of a transaction, in a savepoint of this name: one that fails is undone alone. An error is the whole
/// transaction's: it is gone, or waits for another process.
pub(super) fn alone<T>(
    connection: &Connection,
    savepoint: &str,
    place: &dyn Display,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<Result<T, StoreRefused>> {
    let run = |sql: &str| connection.prepare_cached(&format!("{sql} {savepoint}"))?.execute([]).map(|_| ());
    run("SAVEPOINT")?;
    let done = match work() {
        Ok(done) => Ok(done),
        Err(error) if connection.is_autocommit() || busy::is_busy(&error) => return Err(error),
        Err(error) => {
            run("ROLLBACK TO")?;
            Err(refused(place, &error))
        }
    };
    run("RELEASE")?;
    Ok(done)
}

fn apply_write(connection: &Connection, write: &Write, content: &Content, now: &LeaseTime) -> rusqlite::Result<Answer> {
    Ok(match try_write(connection, write, content, now)? {
        Tried::Written(end) => Answer::Applied(end),
        Tried::Guarded => why_not(connection, write)?,
        // Charged by an earlier send of the same write, it is not charged again.
        Tried::Over(budget) => match why_not(connection, write)? {
            Answer::Moved => Answer::OverBudget(budget),
            answer => answer,
        },
    })
}

/// What became of one send of a write.
pub(super) enum Tried {
    /// It is there by this very send; the end of the row's lease.
    Written(Option<LeaseTime>),
    /// Its guard does not hold.
    Guarded,
    /// A charge is too much for this budget.
    Over(String),
}

pub(super) fn try_write(connection: &Connection, write: &Write, content: &Content, now: &LeaseTime) -> rusqlite::Result<Tried> {
    if let Some(budget) = over_budget(connection, write)? {
        return Ok(Tried::Over(budget));
    }
    let lease = granted(write.next.lease.as_ref(), write.lease, now);
    let mut params = RowParams::of(&write.next, content.turn.clone(), lease.as_ref());
    params.set(":keep_lease", write.lease == LeaseOp::Keep);
    params.set(":guard_epoch", total(write.guard.epoch));
    params.set(":guard_lease_id", write.guard.lease_id.map(|l| l.to_string()));
    params.set(":guard_sequence", total(write.guard.sequence));
    let seen = write.guard.expiry.as_ref();
    params.set(":seen_clock", seen.map(|e| e.expires_at.clock.clone()));
    params.set(":seen_ns", seen.map(|e| e.expires_at.ns));
    params.set(":granted_now_ns", seen.and_then(|e| e.watched).map(|ttl| end(now, ttl).ns));
    params.set(":clock", now.clock.clone());
    params.set(":now_ns", now.ns);
    let mut update = connection.prepare_cached(include_str!("sql/write_run.sql"))?;
    let written = update.query_row(&*params.bind(), |row| lease_end(row.get(0)?, row.get(1)?)).optional()?;
    match written {
        Some(end) => {
            append(connection, write.next.id, write.write_id, &write.entries, &content.payloads)?;
            charge(connection, write)?;
            called(connection, write)?;
            artifacts::keep(connection, write)?;
            Ok(Tried::Written(end))
        }
        None => Ok(Tried::Guarded),
    }
}

/// The first budget that a charge of this write exceeds.
fn over_budget(connection: &Connection, write: &Write) -> rusqlite::Result<Option<String>> {
    for charge in write.charges.iter().filter(|charge| charge.max.is_some()) {
        let spent: i64 = connection.prepare_cached(include_str!("sql/spent.sql"))?.query_row(
            named_params! {
                ":budget": charge.budget,
                ":since_ms": charge.since().as_millisecond(),
                ":run_id": write.next.id.to_string(),
                ":call_id": charge.call.0,
            },
            |row| row.get(0),
        )?;
        if charge.exceeds(spent) {
            return Ok(Some(charge.budget.clone()));
        }
    }
    Ok(None)
}

fn charge(connection: &Connection, write: &Write) -> rusqlite::Result<()> {
    for charge in &write.charges {
        let since_ms = charge.since().as_millisecond();
        connection
            .prepare_cached(include_str!("sql/forget_effects.sql"))?
            .execute(named_params! { ":budget": charge.budget, ":since_ms": since_ms })?;
        connection.prepare_cached(include_str!("sql/charge.sql"))?.execute(named_params! {
            ":budget": charge.budget,
            ":run_id": write.next.id.to_string(),
            ":call_id": charge.call.0,
            ":at_ms": charge.at.as_millisecond(),
            ":amount": charge.amount,
        })?;
    }
    Ok(())
}

fn called(connection: &Connection, write: &Write) -> rusqlite::Result<()> {
    let Some(at) = write.entries.last().map(|entry| entry.at) else { return Ok(()) };
    for tool in &write.called {
        connection.prepare_cached(include_str!("sql/called.sql"))?.execute(named_params! {
            ":tool": tool,
            ":run_id": write.next.id.to_string(),
            ":at_ms": at.as_millisecond(),
        })?;
    }
    Ok(())
}

/// The guard failed: says which part, in the same transaction.
fn why_not(connection: &Connection, write: &Write) -> rusqlite::Result<Answer> {
    let Some(row) = standing(connection, write.next.id)? else { return Ok(Answer::Gone) };
    Ok(if is_there(connection, write.next.id, write.write_id)? {
        Answer::Applied(row.end)
    } else if !row.is_held_as(&write.guard) {
        Answer::Fenced
    } else {
        Answer::Moved
    })
}

/// Why a write of that id and guard would not be taken, before it is sent; none: it would.
pub(super) fn stands_against(
    connection: &Connection,
    run: RunId,
    write_id: WriteId,
    guard: &Guard,
) -> rusqlite::Result<Option<Answer>> {
    let Some(row) = standing(connection, run)? else { return Ok(Some(Answer::Gone)) };
    Ok(if is_there(connection, run, write_id)? {
        Some(Answer::Moved)
    } else if !row.is_held_as(guard) {
        Some(Answer::Fenced)
    } else if row.sequence != total(guard.sequence) {
        Some(Answer::Moved)
    } else {
        None
    })
}

fn apply_insert(connection: &Connection, insert: &Insert, content: &Content, now: &LeaseTime) -> rusqlite::Result<Reply> {
    let id = insert.row.id;
    if let Some(row) = standing(connection, id)? {
        return Ok(if is_there(connection, id, insert.write_id)? {
            Reply::Inserted(Inserted::Applied(row.end))
        } else {
            Reply::Refused(Unavailable(format!("the id {id} is another run's")))
        });
    }
    if let Some(RequestKey { scope, key, request_hash }) = &insert.key {
        let mut find = connection.prepare_cached(include_str!("sql/by_request_key.sql"))?;
        let found = find
            .query_row(named_params! { ":scope": scope, ":key": key }, |row| {
                Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
            })
            .optional()?;
        if let Some((run, hash)) = found {
            return Ok(match run.parse() {
                Ok(run) if hash == *request_hash => Reply::Inserted(Inserted::Existing(run)),
                Ok(run) => Reply::Inserted(Inserted::KeyConflict(run)),
                Err(_) => Reply::Refused(Unavailable("the run of this request key has no readable id".into())),
            });
        }
    }
    let lease = granted(insert.row.lease.as_ref(), insert.lease, now);
    let mut params = RowParams::of(&insert.row, content.turn.clone(), lease.as_ref());
    let key = insert.key.as_ref();
    params.set(":request_scope", key.map(|k| k.scope.clone()));
    params.set(":request_key", key.map(|k| k.key.clone()));
    params.set(":request_hash", key.map(|k| k.request_hash.clone()));
    connection.prepare_cached(include_str!("sql/insert_run.sql"))?.execute(&*params.bind())?;
    append(connection, id, insert.write_id, &insert.entries, &content.payloads)?;
    Ok(Reply::Inserted(Inserted::Applied(lease.map(|l| l.expires_at))))
}

/// The lease columns after the operation; `Keep` ignores them.
fn granted(lease: Option<&Lease>, op: LeaseOp, now: &LeaseTime) -> Option<Lease> {
    match op {
        LeaseOp::Extend(ttl) => lease.map(|l| Lease { expires_at: end(now, ttl), ..l.clone() }),
        LeaseOp::Keep | LeaseOp::Drop => None,
    }
}

struct Standing {
    epoch: i64,
    lease_id: Option<String>,
    end: Option<LeaseTime>,
    sequence: i64,
}

impl Standing {
    /// By the holder that the guard names.
    fn is_held_as(&self, guard: &Guard) -> bool {
        self.epoch == total(guard.epoch) && self.lease_id == guard.lease_id.map(|l| l.to_string())
    }
}

fn lease_end(clock: Option<String>, ns: Option<i64>) -> rusqlite::Result<Option<LeaseTime>> {
    Ok(clock.zip(ns).map(|(clock, ns)| LeaseTime { clock, ns }))
}

fn standing(connection: &Connection, id: RunId) -> rusqlite::Result<Option<Standing>> {
    connection
        .prepare_cached(include_str!("sql/guard_of.sql"))?
        .query_row(named_params! { ":id": id.to_string() }, |row| {
            let end = lease_end(row.get(2)?, row.get(3)?)?;
            Ok(Standing { epoch: row.get(0)?, lease_id: row.get(1)?, end, sequence: row.get(4)? })
        })
        .optional()
}

fn is_there(connection: &Connection, id: RunId, write_id: WriteId) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(include_str!("sql/write_is_there.sql"))?
        .query_row(named_params! { ":id": id.to_string(), ":write_id": write_id.to_string() }, |row| row.get(0))
}

/// An entry is of the write that appends it, whatever its maker put there: re-sends are recognised by it.
fn append(
    connection: &Connection,
    run: RunId,
    write_id: WriteId,
    entries: &[Entry],
    payloads: &[Vec<u8>],
) -> rusqlite::Result<()> {
    let mut append = connection.prepare_cached(include_str!("sql/append.sql"))?;
    let (run, write_id) = (run.to_string(), write_id.to_string());
    for (entry, payload) in entries.iter().zip(payloads) {
        append.execute(named_params! {
            ":run_id": run,
            ":sequence": total(entry.sequence),
            ":at_ms": entry.at.as_millisecond(),
            ":epoch": total(entry.epoch),
            ":holder": entry.holder,
            ":write_id": write_id,
            ":kind": entry.body.kind(),
            ":mac": entry.mac.map(|mac| mac.0.to_vec()),
            ":payload": payload,
        })?;
    }
    Ok(())
}
