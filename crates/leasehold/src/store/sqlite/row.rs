//! A row of `runs` and of `journal` to and from its columns. Reading asserts again what the constraints asserted when it was
//! written; a row that fails is corrupt, alone.

use crate::{
    run::{
        CallId, Chain, Effect, Entry, EntryBody, Fence, Hash256, Lease, LeaseTime, Mode, OpenTurn, Recovery, RunId,
        SegmentKind, Snapshot, State, Usage, WriteId,
    },
    store::{Listed, shape},
};
use jiff::Timestamp;
use rusqlite::{Row, ToSql, types::FromSql};
use std::{fmt, str::FromStr};

/// Larger numbers than the store keeps stay at its maximum; only totals of usage could get there.
pub(super) fn total(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A wall time of a plain column; a damaged one is shown as the epoch rather than hide its row.
pub(super) fn shown_time(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A count of a plain column; the constraints keep it from being negative.
pub(super) fn shown_count(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// The turn as its column keeps it.
pub(super) fn encode_turn(turn: Option<&OpenTurn>) -> Option<String> {
    // Structs of words, numbers and strings: serialising them into memory has no failing case.
    turn.and_then(|t| serde_json::to_string(t).ok())
}

/// Parameters of a statement that writes a whole row, by name.
pub(super) struct RowParams(Vec<(&'static str, Box<dyn ToSql>)>);

impl RowParams {
    /// Of this row, with these lease columns.
    pub(super) fn of(row: &Snapshot, turn: Option<String>, lease: Option<&Lease>) -> Self {
        let mut params = Self(Vec::with_capacity(64));
        params.set(":id", row.id.to_string());
        params.set(":agent", row.agent.clone());
        params.set(":owner", row.owner.clone());
        params.set(":initiator", row.initiator.clone());
        params.set(":team", row.team.clone());
        params.set(":mode", row.mode.as_str());
        params.set(":state", row.state.as_str());
        params.set(":reason", row.reason.map(|r| r.as_str()));
        params.set(":epoch", total(row.epoch));
        params.set(":sequence", total(row.sequence));
        params.set(":lease_id", lease.map(|l| l.lease_id.to_string()));
        params.set(":holder", lease.map(|l| l.holder.clone()));
        params.set(":lease_clock", lease.map(|l| l.expires_at.clock.clone()));
        params.set(":lease_expires_ns", lease.map(|l| l.expires_at.ns));
        params.set(":next_segment", row.next_segment.as_str());
        params.set(":cancel_requested", row.cancel_requested);
        params.set(":recovery", row.recovery.as_str());
        params.set(":recovery_explicit", row.recovery_explicit);
        params.set(":requeues", row.requeues);
        params.set(":priority", row.priority);
        params.set(":due_at_ms", row.due_at.as_millisecond());
        params.fence(row.fence.as_ref());
        params.set(":wait_deadline_ms", row.turn.as_ref().and_then(|t| t.deadline).map(Timestamp::as_millisecond));
        params.set(":turn", turn);
        params.set(":has_request", row.has_request);
        params.set(":second_approver", row.second_approver);
        params.set(":rounds", row.rounds);
        params.set(":input_tokens", total(row.usage.input_tokens));
        params.set(":output_tokens", total(row.usage.output_tokens));
        params.set(":cached_tokens", total(row.usage.cached_tokens));
        params.set(":reasoning_tokens", total(row.usage.reasoning_tokens));
        params.set(":cost_nano_usd", total(row.usage.cost_nano_usd));
        params.set(":duplicates", row.duplicates);
        params.set(":contradictions", row.contradictions);
        params.set(":attribution", row.attribution.map(|a| a.as_str()));
        params.set(":chain_salt", row.chain.map(|c| c.salt.0.to_vec()));
        params.set(":chain_head", row.chain.map(|c| c.head.0.to_vec()));
        params.set(":created_at_ms", row.created_at.as_millisecond());
        params.set(":started_at_ms", row.started_at.map(Timestamp::as_millisecond));
        params.set(":finished_at_ms", row.finished_at.map(Timestamp::as_millisecond));
        params.set(":since_ms", row.since.as_millisecond());
        params
    }

    fn fence(&mut self, fence: Option<&Fence>) {
        self.set(":fence_call", fence.map(|f| f.call_id.0.clone()));
        self.set(":fence_tool", fence.map(|f| f.tool.clone()));
        self.set(":fence_effect", fence.map(|f| f.effect.as_str()));
        self.set(":fence_key", fence.map(|f| f.idempotency_key.clone()));
        self.set(":fence_epoch", fence.map(|f| total(f.epoch)));
        self.set(":fence_lease_id", fence.map(|f| f.lease_id.to_string()));
        self.set(":fence_attempt", fence.map(|f| f.attempt));
        self.set(":fence_repeat", fence.map(|f| f.repeat));
        self.set(":fence_verifiable", fence.map(|f| f.verifiable));
        self.set(":fence_stamped_at_ms", fence.map(|f| f.stamped_at.as_millisecond()));
        self.set(":fence_in_flight_until_ms", fence.map(|f| f.in_flight_until.as_millisecond()));
    }

    /// One more parameter.
    pub(super) fn set(&mut self, name: &'static str, value: impl ToSql + 'static) {
        self.0.push((name, Box::new(value)));
    }

    /// As the driver takes them.
    pub(super) fn bind(&self) -> Vec<(&'static str, &dyn ToSql)> {
        self.0.iter().map(|(name, value)| (*name, &**value)).collect()
    }
}

/// Why a row does not decode: the column, no content.
pub(super) struct Damaged(pub(super) String);

fn damaged(column: &str, why: impl fmt::Display) -> Damaged {
    Damaged(format!("column {column}: {why}"))
}

fn plain<T: FromSql>(row: &Row<'_>, column: &str) -> Result<T, Damaged> {
    row.get(column).map_err(|_| damaged(column, "is of another type"))
}

fn count(row: &Row<'_>, column: &str) -> Result<u64, Damaged> {
    u64::try_from(plain::<i64>(row, column)?).map_err(|_| damaged(column, "is negative"))
}

fn word<T: FromStr>(row: &Row<'_>, column: &str) -> Result<T, Damaged> {
    optional_word(row, column)?.ok_or_else(|| damaged(column, "is missing"))
}

fn optional_word<T: FromStr>(row: &Row<'_>, column: &str) -> Result<Option<T>, Damaged> {
    let text: Option<String> = plain(row, column)?;
    text.map(|t| t.parse().map_err(|_| damaged(column, "is not a value that this version knows"))).transpose()
}

fn time(row: &Row<'_>, column: &str) -> Result<Timestamp, Damaged> {
    optional_time(row, column)?.ok_or_else(|| damaged(column, "is missing"))
}

fn optional_time(row: &Row<'_>, column: &str) -> Result<Option<Timestamp>, Damaged> {
    let ms: Option<i64> = plain(row, column)?;
    ms.map(|ms| Timestamp::from_millisecond(ms).map_err(|_| damaged(column, "is not a time"))).transpose()
}

/// The row of the statement `load`.
pub(super) fn snapshot(row: &Row<'_>) -> Result<Snapshot, Damaged> {
    let turn = turn(row)?;
    let snapshot = Snapshot {
        id: word(row, "id")?,
        agent: plain(row, "agent")?,
        owner: plain(row, "owner")?,
        initiator: plain(row, "initiator")?,
        team: plain(row, "team")?,
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
        requeues: plain(row, "requeues")?,
        priority: plain(row, "priority")?,
        due_at: time(row, "due_at_ms")?,
        fence: fence(row)?,
        turn,
        has_request: plain(row, "has_request")?,
        second_approver: plain(row, "second_approver")?,
        rounds: plain(row, "rounds")?,
        usage: Usage {
            input_tokens: count(row, "input_tokens")?,
            output_tokens: count(row, "output_tokens")?,
            cached_tokens: count(row, "cached_tokens")?,
            reasoning_tokens: count(row, "reasoning_tokens")?,
            cost_nano_usd: count(row, "cost_nano_usd")?,
        },
        duplicates: plain(row, "duplicates")?,
        contradictions: plain(row, "contradictions")?,
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
pub(super) fn rest(row: &Row<'_>) -> Option<Snapshot> {
    let created_at = time(row, "created_at_ms").unwrap_or(Timestamp::UNIX_EPOCH);
    let text = |column| plain::<String>(row, column).unwrap_or_default();
    let left = Snapshot {
        id: word(row, "id").ok()?,
        agent: text("agent"),
        owner: text("owner"),
        initiator: text("initiator"),
        team: plain(row, "team").unwrap_or_default(),
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
        requeues: plain(row, "requeues").unwrap_or(0),
        priority: plain(row, "priority").unwrap_or(0),
        due_at: time(row, "due_at_ms").unwrap_or(created_at),
        fence: fence(row).ok()?,
        turn: None,
        has_request: false,
        second_approver: plain(row, "second_approver").unwrap_or(true),
        rounds: plain(row, "rounds").unwrap_or(0),
        usage: Usage {
            input_tokens: count(row, "input_tokens").unwrap_or(0),
            output_tokens: count(row, "output_tokens").unwrap_or(0),
            cached_tokens: count(row, "cached_tokens").unwrap_or(0),
            reasoning_tokens: count(row, "reasoning_tokens").unwrap_or(0),
            cost_nano_usd: count(row, "cost_nano_usd").unwrap_or(0),
        },
        duplicates: plain(row, "duplicates").unwrap_or(0),
        contradictions: plain(row, "contradictions").unwrap_or(0),
        attribution: optional_word(row, "attribution").ok().flatten(),
        chain: chain(row).ok().flatten(),
        created_at,
        started_at: optional_time(row, "started_at_ms").ok().flatten(),
        finished_at: None,
        since: time(row, "since_ms").unwrap_or(created_at),
    };
    shape::rest(word(row, "state").ok(), turn(row).ok().flatten(), left)
}

fn hash(row: &Row<'_>, column: &str) -> Result<Option<Hash256>, Damaged> {
    let bytes: Option<Vec<u8>> = plain(row, column)?;
    let whole = |bytes: Vec<u8>| bytes.try_into().map(Hash256).map_err(|_| damaged(column, "is not 32 bytes long"));
    bytes.map(whole).transpose()
}

fn chain(row: &Row<'_>) -> Result<Option<Chain>, Damaged> {
    Ok(hash(row, "chain_salt")?.zip(hash(row, "chain_head")?).map(|(salt, head)| Chain { salt, head }))
}

fn turn(row: &Row<'_>) -> Result<Option<OpenTurn>, Damaged> {
    let decode = |json: String| {
        let why = |e: serde_json::Error| format!("does not decode at line {} column {}", e.line(), e.column());
        serde_json::from_str(&json).map_err(|e| damaged("turn", why(e)))
    };
    plain::<Option<String>>(row, "turn")?.map(decode).transpose()
}

fn lease(row: &Row<'_>) -> Result<Option<Lease>, Damaged> {
    let Some(lease_id) = optional_word(row, "lease_id")? else { return Ok(None) };
    let expires_at = LeaseTime { clock: plain(row, "lease_clock")?, ns: plain(row, "lease_expires_ns")? };
    Ok(Some(Lease { lease_id, holder: plain(row, "holder")?, expires_at }))
}

fn fence(row: &Row<'_>) -> Result<Option<Fence>, Damaged> {
    let Some(call_id) = plain::<Option<String>>(row, "fence_call")? else { return Ok(None) };
    Ok(Some(Fence {
        call_id: CallId(call_id),
        tool: plain(row, "fence_tool")?,
        effect: Effect::from_stored(&plain::<String>(row, "fence_effect")?),
        idempotency_key: plain(row, "fence_key")?,
        epoch: count(row, "fence_epoch")?,
        lease_id: word(row, "fence_lease_id")?,
        attempt: plain(row, "fence_attempt")?,
        repeat: plain(row, "fence_repeat")?,
        verifiable: plain(row, "fence_verifiable")?,
        stamped_at: time(row, "fence_stamped_at_ms")?,
        in_flight_until: time(row, "fence_in_flight_until_ms")?,
    }))
}

/// The row of the statement `journal`.
pub(super) fn entry(row: &Row<'_>) -> Result<Entry, Damaged> {
    let sequence = count(row, "sequence")?;
    let kind: String = plain(row, "kind")?;
    let payload = row.get_ref("payload").ok().and_then(|v| v.as_blob().ok()).unwrap_or_default();
    Ok(Entry {
        sequence,
        at: time(row, "at_ms")?,
        epoch: count(row, "epoch")?,
        holder: plain(row, "holder")?,
        write_id: word::<WriteId>(row, "write_id")?,
        mac: hash(row, "mac")?,
        body: EntryBody::decode(&kind, payload).map_err(|e| Damaged(format!("entry {sequence}: {e}")))?,
    })
}

/// The row of the statements `list`: plain columns, nothing is decoded. None where not even the id is one.
pub(super) fn listed(row: &Row<'_>) -> rusqlite::Result<Option<Listed>> {
    let Some(id) = run_id(row)? else { return Ok(None) };
    Ok(Some(Listed {
        id,
        agent: row.get("agent")?,
        owner: row.get("owner")?,
        team: row.get("team")?,
        state: row.get("state")?,
        reason: row.get("reason")?,
        epoch: shown_count(row.get("epoch")?),
        holder: row.get("holder")?,
        fence_tool: row.get("fence_tool")?,
        cancel_requested: row.get("cancel_requested")?,
        duplicates: row.get("duplicates")?,
        contradictions: row.get("contradictions")?,
        attribution: row.get("attribution")?,
        created_at: shown_time(row.get("created_at_ms")?),
        since: shown_time(row.get("since_ms")?),
    }))
}

/// The id of a row whose first column it is; one that is no id is passed over, and said, so that it hides no other.
pub(super) fn run_id(row: &Row<'_>) -> rusqlite::Result<Option<RunId>> {
    let text: String = row.get("id")?;
    let id = text.parse().ok();
    if id.is_none() {
        tracing::warn!(id = text, "a row's id is not a run id; the row is passed over");
    }
    Ok(id)
}
