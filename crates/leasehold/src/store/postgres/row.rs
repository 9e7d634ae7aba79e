//! A row of `runs` and of `journal` to and from its columns. Reading asserts again what the constraints asserted when it was
//! written; a row that fails is corrupt, alone.

use super::{
    sql::Params,
    text::{shown, stored},
};
use crate::{
    run::{
        CallId, Chain, Effect, Entry, EntryBody, Fence, Hash256, Lease, LeaseId, LeaseTime, Mode, OpenTurn, Recovery, RunId,
        SegmentKind, Snapshot, State, Usage, WriteId,
    },
    store::{Guard, LeaseOp, Listed, Write, shape},
};
use jiff::Timestamp;
use std::{fmt, str::FromStr};
use tokio_postgres::{Row, types::FromSqlOwned};
use uuid::Uuid;

/// Larger numbers than the store keeps stay at its maximum; only totals of usage could get there.
pub(super) fn total(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The values of some columns, once for one row and once, as arrays, for many; both bind the same names in the same order.
macro_rules! columns {
    ($(#[$doc:meta])* $one:ident, $many:ident { $($name:ident: $of:ty),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $one { $(pub(super) $name: $of,)+ }

        /// The same of many rows.
        #[derive(Default)]
        pub(super) struct $many<'a> { $($name: Vec<&'a $of>,)+ }

        impl $one {
            #[allow(dead_code, reason = "entries are arrays in every statement")]
            pub(super) fn bind<'a>(&'a self, params: &mut Params<'a>) {
                $(params.one(stringify!($name), &self.$name);)+
            }
        }

        impl<'a> $many<'a> {
            pub(super) fn push(&mut self, one: &'a $one) {
                $(self.$name.push(&one.$name);)+
            }
            pub(super) fn bind<'b>(&'b self, params: &mut Params<'b>) where 'a: 'b {
                $(params.many(stringify!($name), &self.$name);)+
            }
        }
    };
}

columns! {
    /// A whole row but for the end of its lease, which the statement computes.
    RowColumns, RowArrays {
        id: Uuid,
        agent: String,
        owner: String,
        initiator: String,
        team: Option<String>,
        mode: &'static str,
        state: &'static str,
        reason: Option<&'static str>,
        epoch: i64,
        sequence: i64,
        lease_id: Option<Uuid>,
        holder: Option<String>,
        next_segment: &'static str,
        cancel_requested: bool,
        recovery: &'static str,
        recovery_explicit: bool,
        requeues: i64,
        priority: i32,
        due_at_ms: i64,
        fence_call: Option<String>,
        fence_tool: Option<String>,
        fence_effect: Option<&'static str>,
        fence_key: Option<String>,
        fence_epoch: Option<i64>,
        fence_lease_id: Option<Uuid>,
        fence_attempt: Option<i64>,
        fence_repeat: Option<bool>,
        fence_verifiable: Option<bool>,
        fence_stamped_at_ms: Option<i64>,
        fence_in_flight_until_ms: Option<i64>,
        turn: Option<String>,
        wait_deadline_ms: Option<i64>,
        has_request: bool,
        second_approver: bool,
        rounds: i64,
        input_tokens: i64,
        output_tokens: i64,
        cached_tokens: i64,
        reasoning_tokens: i64,
        cost_nano_usd: i64,
        duplicates: i64,
        contradictions: i64,
        attribution: Option<&'static str>,
        chain_salt: Option<Vec<u8>>,
        chain_head: Option<Vec<u8>>,
        created_at_ms: i64,
        started_at_ms: Option<i64>,
        finished_at_ms: Option<i64>,
        since_ms: i64,
        ttl_ns: Option<i64>,
    }
}

columns! {
    /// What a guarded write saw.
    GuardColumns, GuardArrays {
        keep_lease: bool,
        guard_epoch: i64,
        guard_lease_id: Option<Uuid>,
        guard_sequence: i64,
        seen_clock: Option<String>,
        seen_ns: Option<i64>,
        watched_ns: Option<i64>,
    }
}

columns! {
    /// An entry.
    EntryColumns, EntryArrays {
        entry_run: Uuid,
        entry_sequence: i64,
        entry_at_ms: i64,
        entry_epoch: i64,
        entry_holder: Option<String>,
        entry_write_id: Uuid,
        entry_kind: &'static str,
        entry_mac: Option<Vec<u8>>,
        entry_payload: Vec<u8>,
    }
}

impl RowColumns {
    /// Of this row after this operation on its lease.
    pub(super) fn of(row: &Snapshot, op: LeaseOp) -> Self {
        let (lease, ttl_ns) = match op {
            LeaseOp::Extend(ttl) => (row.lease.as_ref(), Some(i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX))),
            LeaseOp::Keep | LeaseOp::Drop => (None, None),
        };
        let fence = row.fence.as_ref();
        Self {
            id: row.id.0,
            agent: stored(&row.agent),
            owner: stored(&row.owner),
            initiator: stored(&row.initiator),
            team: row.team.as_deref().map(stored),
            mode: row.mode.as_str(),
            state: row.state.as_str(),
            reason: row.reason.map(|r| r.as_str()),
            epoch: total(row.epoch),
            sequence: total(row.sequence),
            lease_id: lease.map(|l| l.lease_id.0),
            holder: lease.map(|l| stored(&l.holder)),
            next_segment: row.next_segment.as_str(),
            cancel_requested: row.cancel_requested,
            recovery: row.recovery.as_str(),
            recovery_explicit: row.recovery_explicit,
            requeues: row.requeues.into(),
            priority: row.priority,
            due_at_ms: row.due_at.as_millisecond(),
            fence_call: fence.map(|f| stored(&f.call_id.0)),
            fence_tool: fence.map(|f| stored(&f.tool)),
            fence_effect: fence.map(|f| f.effect.as_str()),
            fence_key: fence.map(|f| stored(&f.idempotency_key)),
            fence_epoch: fence.map(|f| total(f.epoch)),
            fence_lease_id: fence.map(|f| f.lease_id.0),
            fence_attempt: fence.map(|f| f.attempt.into()),
            fence_repeat: fence.map(|f| f.repeat),
            fence_verifiable: fence.map(|f| f.verifiable),
            fence_stamped_at_ms: fence.map(|f| f.stamped_at.as_millisecond()),
            fence_in_flight_until_ms: fence.map(|f| f.in_flight_until.as_millisecond()),
            // JSON writes U+0000 as an escape. Structs of words, numbers and strings: it has no failing case.
            turn: row.turn.as_ref().and_then(|t| serde_json::to_string(t).ok()),
            wait_deadline_ms: row.turn.as_ref().and_then(|t| t.deadline).map(Timestamp::as_millisecond),
            has_request: row.has_request,
            second_approver: row.second_approver,
            rounds: row.rounds.into(),
            input_tokens: total(row.usage.input_tokens),
            output_tokens: total(row.usage.output_tokens),
            cached_tokens: total(row.usage.cached_tokens),
            reasoning_tokens: total(row.usage.reasoning_tokens),
            cost_nano_usd: total(row.usage.cost_nano_usd),
            duplicates: row.duplicates.into(),
            contradictions: row.contradictions.into(),
            attribution: row.attribution.map(|a| a.as_str()),
            chain_salt: row.chain.map(|c| c.salt.0.to_vec()),
            chain_head: row.chain.map(|c| c.head.0.to_vec()),
            created_at_ms: row.created_at.as_millisecond(),
            started_at_ms: row.started_at.map(Timestamp::as_millisecond),
            finished_at_ms: row.finished_at.map(Timestamp::as_millisecond),
            since_ms: row.since.as_millisecond(),
            ttl_ns,
        }
    }
}

columns! {
    /// A tool that a write called.
    CalledColumns, CalledArrays {
        called_tool: String,
        called_run: Uuid,
        called_at_ms: i64,
    }
}

impl CalledColumns {
    /// Of each tool that this write called.
    pub(super) fn of(write: &Write) -> Vec<Self> {
        let Some(at) = write.entries.last().map(|entry| entry.at) else { return Vec::new() };
        let one = |tool: &String| {
            let called_tool = stored(tool);
            Self { called_tool, called_run: write.next.id.0, called_at_ms: at.as_millisecond() }
        };
        write.called.iter().map(one).collect()
    }
}

impl GuardColumns {
    /// Of this guard.
    pub(super) fn of(guard: &Guard, op: LeaseOp) -> Self {
        let seen = guard.expiry.as_ref();
        Self {
            keep_lease: op == LeaseOp::Keep,
            guard_epoch: total(guard.epoch),
            guard_lease_id: guard.lease_id.map(|l| l.0),
            guard_sequence: total(guard.sequence),
            seen_clock: seen.map(|e| e.expires_at.clock.clone()),
            seen_ns: seen.map(|e| e.expires_at.ns),
            watched_ns: seen.and_then(|e| e.watched).map(|ttl| i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX)),
        }
    }
}

impl EntryColumns {
    /// An entry is of the write that appends it, whatever its maker put there: re-sends are recognised by it.
    pub(super) fn of(run: RunId, write_id: WriteId, entry: &Entry) -> Self {
        Self {
            entry_run: run.0,
            entry_sequence: total(entry.sequence),
            entry_at_ms: entry.at.as_millisecond(),
            entry_epoch: total(entry.epoch),
            entry_holder: entry.holder.as_deref().map(stored),
            entry_write_id: write_id.0,
            entry_kind: entry.body.kind(),
            entry_mac: entry.mac.map(|mac| mac.0.to_vec()),
            entry_payload: entry.body.encode(),
        }
    }
}

/// Why a row does not decode: the column, no content.
pub(super) struct Damaged(pub(super) String);

fn damaged(column: &str, why: impl fmt::Display) -> Damaged {
    Damaged(format!("column {column}: {why}"))
}

fn plain<T: FromSqlOwned>(row: &Row, column: &str) -> Result<T, Damaged> {
    row.try_get(column).map_err(|_| damaged(column, "is of another type"))
}

fn text(row: &Row, column: &str) -> Result<String, Damaged> {
    plain(row, column).map(shown)
}

fn count(row: &Row, column: &str) -> Result<u64, Damaged> {
    u64::try_from(plain::<i64>(row, column)?).map_err(|_| damaged(column, "is negative"))
}

fn small(row: &Row, column: &str) -> Result<u32, Damaged> {
    u32::try_from(plain::<i64>(row, column)?).map_err(|_| damaged(column, "is out of its range"))
}

fn word<T: FromStr>(row: &Row, column: &str) -> Result<T, Damaged> {
    optional_word(row, column)?.ok_or_else(|| damaged(column, "is missing"))
}

fn optional_word<T: FromStr>(row: &Row, column: &str) -> Result<Option<T>, Damaged> {
    let text: Option<String> = plain(row, column)?;
    text.map(|t| t.parse().map_err(|_| damaged(column, "is not a value that this version knows"))).transpose()
}

fn time(row: &Row, column: &str) -> Result<Timestamp, Damaged> {
    optional_time(row, column)?.ok_or_else(|| damaged(column, "is missing"))
}

fn optional_time(row: &Row, column: &str) -> Result<Option<Timestamp>, Damaged> {
    let ms: Option<i64> = plain(row, column)?;
    ms.map(|ms| Timestamp::from_millisecond(ms).map_err(|_| damaged(column, "is not a time"))).transpose()
}

/// The row of the statement `load`.
pub(super) fn snapshot(row: &Row) -> Result<Snapshot, Damaged> {
    let turn = turn(row)?;
    let snapshot = Snapshot {
        id: RunId(plain(row, "id")?),
        agent: text(row, "agent")?,
        owner: text(row, "owner")?,
        initiator: text(row, "initiator")?,
        team: plain::<Option<String>>(row, "team")?.map(shown),
        mode: word(row, "mode")?,
        state: word(row, "state")?,
        reason: optional_word(row, "reason")?,
        epoch: count(row, "epoch")?,
        sequence: count(row, "sequence")?,
        lease: lease(row)?,
        next_segment: word(row, "next_segment")?,
        cancel_requested: plain(row, "cancel_requested")?,
        recovery: word(row, "recovery")?,
        recovery_explicit: plain(row, "recovery_explicit")?,
        requeues: small(row, "requeues")?,
        priority: plain(row, "priority")?,
        due_at: time(row, "due_at_ms")?,
        fence: fence(row)?,
        turn,
        has_request: plain(row, "has_request")?,
        second_approver: plain(row, "second_approver")?,
        rounds: small(row, "rounds")?,
        usage: Usage {
            input_tokens: count(row, "input_tokens")?,
            output_tokens: count(row, "output_tokens")?,
            cached_tokens: count(row, "cached_tokens")?,
            reasoning_tokens: count(row, "reasoning_tokens")?,
            cost_nano_usd: count(row, "cost_nano_usd")?,
        },
        duplicates: small(row, "duplicates")?,
        contradictions: small(row, "contradictions")?,
        attribution: optional_word(row, "attribution")?,
        chain: chain(row)?,
        created_at: time(row, "created_at_ms")?,
        started_at: optional_time(row, "started_at_ms")?,
        finished_at: optional_time(row, "finished_at_ms")?,
        since: time(row, "since_ms")?,
    };
    shape::check_read(&snapshot).map_err(Damaged)?;
    Ok(snapshot)
}

/// What of a row that does not decode can be read.
pub(super) fn rest(row: &Row) -> Option<Snapshot> {
    let created_at = time(row, "created_at_ms").unwrap_or(Timestamp::UNIX_EPOCH);
    let words = |column| text(row, column).unwrap_or_default();
    let left = Snapshot {
        id: run_id(row).ok()?,
        agent: words("agent"),
        owner: words("owner"),
        initiator: words("initiator"),
        team: plain::<Option<String>>(row, "team").ok().flatten().map(shown),
        mode: word(row, "mode").unwrap_or(Mode::Queue),
        state: State::Dead,
        reason: optional_word(row, "reason").ok().flatten(),
        epoch: count(row, "epoch").ok()?,
        sequence: count(row, "sequence").ok()?,
        lease: lease(row).ok()?,
        next_segment: word(row, "next_segment").unwrap_or(SegmentKind::Worker),
        cancel_requested: plain(row, "cancel_requested").unwrap_or(false),
        recovery: word(row, "recovery").unwrap_or(Recovery::Abandon),
        recovery_explicit: plain(row, "recovery_explicit").unwrap_or(true),
        requeues: small(row, "requeues").unwrap_or(0),
        priority: plain(row, "priority").unwrap_or(0),
        due_at: time(row, "due_at_ms").unwrap_or(created_at),
        fence: fence(row).ok()?,
        turn: None,
        has_request: false,
        second_approver: plain(row, "second_approver").unwrap_or(true),
        rounds: small(row, "rounds").unwrap_or(0),
        usage: Usage {
            input_tokens: count(row, "input_tokens").unwrap_or(0),
            output_tokens: count(row, "output_tokens").unwrap_or(0),
            cached_tokens: count(row, "cached_tokens").unwrap_or(0),
            reasoning_tokens: count(row, "reasoning_tokens").unwrap_or(0),
            cost_nano_usd: count(row, "cost_nano_usd").unwrap_or(0),
        },
        duplicates: small(row, "duplicates").unwrap_or(0),
        contradictions: small(row, "contradictions").unwrap_or(0),
        attribution: optional_word(row, "attribution").ok().flatten(),
        chain: chain(row).ok().flatten(),
        created_at,
        started_at: optional_time(row, "started_at_ms").ok().flatten(),
        finished_at: None,
        since: time(row, "since_ms").unwrap_or(created_at),
    };
    shape::rest(word(row, "state").ok(), turn(row).ok().flatten(), left)
}

fn hash(row: &Row, column: &str) -> Result<Option<Hash256>, Damaged> {
    let bytes: Option<Vec<u8>> = plain(row, column)?;
    let whole = |bytes: Vec<u8>| bytes.try_into().map(Hash256).map_err(|_| damaged(column, "is not 32 bytes long"));
    bytes.map(whole).transpose()
}

fn chain(row: &Row) -> Result<Option<Chain>, Damaged> {
    Ok(hash(row, "chain_salt")?.zip(hash(row, "chain_head")?).map(|(salt, head)| Chain { salt, head }))
}

fn turn(row: &Row) -> Result<Option<OpenTurn>, Damaged> {
    let decode = |json: String| {
        let why = |e: serde_json::Error| format!("does not decode at line {} column {}", e.line(), e.column());
        serde_json::from_str(&json).map_err(|e| damaged("turn", why(e)))
    };
    plain::<Option<String>>(row, "turn")?.map(decode).transpose()
}

fn lease(row: &Row) -> Result<Option<Lease>, Damaged> {
    let Some(lease_id) = plain::<Option<Uuid>>(row, "lease_id")? else { return Ok(None) };
    let expires_at = LeaseTime { clock: plain(row, "lease_clock")?, ns: plain(row, "lease_expires_ns")? };
    Ok(Some(Lease { lease_id: LeaseId(lease_id), holder: text(row, "holder")?, expires_at }))
}

/// The end of the lease in a row that has its two columns; none where it has no lease.
pub(super) fn lease_end(row: &Row) -> Result<Option<LeaseTime>, Damaged> {
    let clock: Option<String> = plain(row, "lease_clock")?;
    let ns: Option<i64> = plain(row, "lease_expires_ns")?;
    Ok(clock.zip(ns).map(|(clock, ns)| LeaseTime { clock, ns }))
}

fn fence(row: &Row) -> Result<Option<Fence>, Damaged> {
    let Some(call_id) = plain::<Option<String>>(row, "fence_call")? else { return Ok(None) };
    Ok(Some(Fence {
        call_id: CallId(shown(call_id)),
        tool: text(row, "fence_tool")?,
        effect: Effect::from_stored(&plain::<String>(row, "fence_effect")?),
        idempotency_key: text(row, "fence_key")?,
        epoch: count(row, "fence_epoch")?,
        lease_id: LeaseId(plain(row, "fence_lease_id")?),
        attempt: small(row, "fence_attempt")?,
        repeat: plain(row, "fence_repeat")?,
        verifiable: plain(row, "fence_verifiable")?,
        stamped_at: time(row, "fence_stamped_at_ms")?,
        in_flight_until: time(row, "fence_in_flight_until_ms")?,
    }))
}

/// The row of the statement `journal`.
pub(super) fn entry(row: &Row) -> Result<Entry, Damaged> {
    let sequence = count(row, "sequence")?;
    let kind: String = plain(row, "kind")?;
    let payload: &[u8] = row.try_get("payload").map_err(|_| damaged("payload", "is of another type"))?;
    Ok(Entry {
        sequence,
        at: time(row, "at_ms")?,
        epoch: count(row, "epoch")?,
        holder: plain::<Option<String>>(row, "holder")?.map(shown),
        write_id: WriteId(plain(row, "write_id")?),
        mac: hash(row, "mac")?,
        body: EntryBody::decode(&kind, payload).map_err(|e| Damaged(format!("entry {sequence}: {e}")))?,
    })
}

/// A wall time of a plain column; a damaged one is shown as the epoch rather than hide its row.
fn shown_time(row: &Row, column: &str) -> Result<Timestamp, Damaged> {
    Ok(Timestamp::from_millisecond(plain(row, column)?).unwrap_or(Timestamp::UNIX_EPOCH))
}

/// The row of the statements `list`: plain columns, nothing is decoded.
pub(super) fn listed(row: &Row) -> Result<Listed, Damaged> {
    Ok(Listed {
        id: run_id(row)?,
        agent: text(row, "agent")?,
        owner: text(row, "owner")?,
        team: plain::<Option<String>>(row, "team")?.map(shown),
        state: plain(row, "state")?,
        reason: plain(row, "reason")?,
        epoch: count(row, "epoch")?,
        holder: plain::<Option<String>>(row, "holder")?.map(shown),
        fence_tool: plain::<Option<String>>(row, "fence_tool")?.map(shown),
        cancel_requested: plain(row, "cancel_requested")?,
        duplicates: small(row, "duplicates").unwrap_or(u32::MAX),
        contradictions: small(row, "contradictions").unwrap_or(u32::MAX),
        attribution: plain(row, "attribution")?,
        created_at: shown_time(row, "created_at_ms")?,
        since: shown_time(row, "since_ms")?,
    })
}

/// The id of a row that has it.
pub(super) fn run_id(row: &Row) -> Result<RunId, Damaged> {
    plain(row, "id").map(RunId)
}

/// Any other column.
pub(super) fn column<T: FromSqlOwned>(row: &Row, column: &str) -> Result<T, Damaged> {
    plain(row, column)
}
