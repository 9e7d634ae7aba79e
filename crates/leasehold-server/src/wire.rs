//! What `--json` prints: the same objects as the API answers with. Structs of their own, so that the library's types can change
//! without changing what programs read.

mod artifact;
mod lines;

pub(crate) use artifact::{Artifact, served_as};
pub(crate) use lines::{Event, RunLine};

use crate::render::Subject;
use jiff::Timestamp;
use leasehold::{
    InboxKind, SimilarCall,
    clock::BootClock,
    run::{self, Attribution, CardCall, Entry, EntryBody, LeaseTime, OpenCall, Outcome, Snapshot, State, WaitKind, body},
    store::{Listed, postgres::CLOCK},
};
use serde::Serialize;
use serde_json::{Map, Value};

/// A page of a list.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    pub(crate) next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// All there is.
    pub(crate) fn whole(items: Vec<T>) -> Self {
        Self { items, next_cursor: None }
    }
}

/// The write in flight.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Fence {
    tool: String,
    call_id: String,
    effect: &'static str,
    idempotency_key: String,
    epoch: u64,
    attempt: u32,
    repeat: bool,
    verifiable: bool,
    #[schema(value_type = String, format = DateTime)]
    stamped_at: Timestamp,
}

/// What a person needs to know to settle a write in doubt.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Doubt {
    tool: String,
    call_id: String,
    #[schema(value_type = Object)]
    arguments: Map<String, Value>,
    idempotency_key: String,
    endpoint: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    stamped_at: Timestamp,
    stamped_by: Option<String>,
    /// Until when the last renewal of its process held; none where that process itself said that it does not know.
    #[schema(value_type = Option<String>, format = DateTime)]
    last_renewal_held_until: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    in_flight_until: Timestamp,
    may_still_be_in_flight: bool,
    why: String,
    evidence: Vec<Evidence>,
    check: String,
}

/// What a former holder says.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Evidence {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    epoch: u64,
    answer: &'static str,
}

/// The doubt that stands, if one does.
fn doubt(subject: &Subject<'_>) -> Option<Doubt> {
    let fence = subject.doubted()?;
    let stamped = subject.stamped(&fence.call_id);
    let held_until = subject.lease_of(fence.lease_id).and_then(|(_, ended)| ended.expires_at.as_ref());
    let evidence =
        subject.evidence(&fence.call_id).map(|(at, late)| Evidence { at, epoch: late.epoch, answer: late.answer.as_str() });
    Some(Doubt {
        tool: fence.tool.clone(),
        call_id: fence.call_id.to_string(),
        arguments: subject.arguments(&fence.call_id),
        idempotency_key: fence.idempotency_key.clone(),
        endpoint: stamped.map(|(_, stamped)| stamped.endpoint.clone()).filter(|endpoint| !endpoint.is_empty()),
        stamped_at: fence.stamped_at,
        stamped_by: stamped.and_then(|(entry, _)| entry.holder.clone()),
        last_renewal_held_until: held_until.and_then(|end| lease_end(end, subject.boot, subject.now)),
        in_flight_until: fence.in_flight_until,
        may_still_be_in_flight: fence.in_flight_until > subject.now,
        why: subject.doubted_because().to_owned(),
        evidence: evidence.collect(),
        check: how_to_check(fence),
    })
}

/// How a person finds out what became of a write in doubt.
pub(crate) fn how_to_check(fence: &run::Fence) -> String {
    if fence.verifiable {
        "`resolve .. --not-landed` asks the far side once more, and is refused where it says that the write landed".into()
    } else {
        format!("look at the far side for the key {}, which went with the write", fence.idempotency_key)
    }
}

/// A call on the card.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct WaitingCall {
    pub(crate) id: String,
    pub(crate) tool: String,
    source: String,
    #[schema(value_type = Object)]
    arguments: Map<String, Value>,
    effect: &'static str,
    needs_approval: bool,
    decision: Option<&'static str>,
    /// Why a person is asked, where it is not only the tool's approval: what has changed since it was approved, a budget, a repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    why: Option<String>,
    preview: Option<String>,
    precondition: Option<String>,
    /// Preview and precondition are only for who may decide about the call.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    preview_withheld: bool,
    /// Calls of the same tool with much the same arguments, where they were looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    similar: Option<Vec<Similar>>,
}

/// A call of the same tool with much the same arguments: open, on its way or done in the last 24 hours.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Similar {
    run: String,
    agent: String,
    call_id: String,
    #[schema(value_type = Object)]
    arguments: Map<String, Value>,
    /// All arguments are the same.
    same: bool,
    /// `open`: it may still start; `started`: nobody knows yet what became of it; `done`.
    stage: &'static str,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
}

impl From<&SimilarCall> for Similar {
    fn from(call: &SimilarCall) -> Self {
        Self {
            run: call.run.to_string(),
            agent: call.agent.clone(),
            call_id: call.call.to_string(),
            arguments: call.arguments.clone(),
            same: call.same,
            stage: call.stage.as_str(),
            at: call.at,
        }
    }
}

/// What a person is asked.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Waiting {
    kind: &'static str,
    pub(crate) turn_digest: String,
    #[schema(value_type = Option<String>, format = DateTime)]
    deadline: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    /// What the call itself asks before it goes on, in its tool's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt: Option<String>,
    pub(crate) calls: Vec<WaitingCall>,
}

/// What a running call asks a person.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Question {
    call_id: String,
    tool: String,
    /// Which question: the number of its entry in the journal.
    question: u64,
    /// In the tool's words.
    prompt: String,
    /// JSON Schema of the values.
    #[schema(value_type = Object)]
    schema: Value,
    #[schema(value_type = String, format = DateTime)]
    asked_at: Timestamp,
}

/// What a person decided about one call.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Decision {
    call_id: String,
    /// `approve`, `deny`, or `input` where values were given.
    decision: &'static str,
    /// Arguments that somebody else has to release: not an approval yet.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    proposal: bool,
    reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    arguments: Option<Map<String, Value>>,
    /// What a person filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    values: Option<Map<String, Value>>,
    by: String,
    /// `self`: who is behind the run; `second_person`: somebody else; `unknown`: a machine, or nobody that is known.
    attribution: &'static str,
    /// How they showed who they are: `local`, `token:<id>`, `session:<id>`.
    method: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    turn_digest: String,
}

/// Totals.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Usage {
    input_tokens: u64,
    output_tokens: u64,
    cached_tokens: u64,
    /// Of `output_tokens`; 0 where the provider does not tell.
    reasoning_tokens: u64,
}

/// Why it did not complete.
#[derive(Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub(crate) struct RunError {
    pub(crate) code: String,
    pub(crate) detail: String,
}

/// A run, as `GET /runs/{id}` answers.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Run {
    pub(crate) id: String,
    agent: String,
    pub(crate) state: &'static str,
    reason: Option<&'static str>,
    mode: &'static str,
    recovery: &'static str,
    owner: String,
    initiator: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    team: Option<String>,
    holder: Option<String>,
    epoch: u64,
    #[schema(value_type = Option<String>, format = DateTime)]
    lease_expires_at: Option<Timestamp>,
    cancel_requested: bool,
    /// Why nobody goes on with it, where it is queued and that was looked for: what the live workers lack.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false, nullable = false)]
    unserved: Option<String>,
    fence: Option<Fence>,
    #[serde(skip_serializing_if = "Option::is_none")]
    doubt: Option<Doubt>,
    pub(crate) waiting: Option<Waiting>,
    /// What running calls ask a person now.
    questions: Vec<Question>,
    decisions: Vec<Decision>,
    pub(crate) output: Option<String>,
    truncated: bool,
    /// By whom its writes were released, the weakest of them; none: no person released any.
    attribution: Option<&'static str>,
    rounds: u32,
    usage: Usage,
    cost: f64,
    requeues: u32,
    pub(crate) error: Option<RunError>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    finished_at: Option<Timestamp>,
    #[schema(value_type = Object)]
    metadata: Map<String, Value>,
    /// Why it is not shown whole: then what is empty here may be so because it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    unreadable: Option<String>,
}

/// When a lease ends on the wall clock, as far as this machine can tell.
pub(crate) fn lease_end(end: &LeaseTime, boot: &dyn BootClock, now: Timestamp) -> Option<Timestamp> {
    if end.clock == CLOCK {
        return Timestamp::from_nanosecond(end.ns.into()).ok().map(leasehold::clock::to_millis);
    }
    if end.clock != boot.boot_id() {
        return None;
    }
    let left = end.ns.saturating_sub(boot.now().ns);
    now.checked_add(jiff::SignedDuration::from_nanos(left)).ok().map(leasehold::clock::to_millis)
}

/// The newest card, where the run waits.
pub(crate) fn standing_card<'a>(row: &Snapshot, entries: &'a [Entry]) -> Option<&'a body::Suspended> {
    if !row.state.is_waiting() {
        return None;
    }
    entries.iter().rev().find_map(|entry| match &entry.body {
        EntryBody::Suspended(suspended) => Some(suspended),
        _ => None,
    })
}

/// The newest end, where the run has one.
pub(crate) fn settled(row: &Snapshot, entries: &[Entry]) -> Option<body::Settled> {
    if !row.state.is_settled() {
        return None;
    }
    entries.iter().rev().find_map(|entry| match &entry.body {
        EntryBody::Settled(settled) => Some(settled.clone()),
        _ => None,
    })
}

/// Why a failed or dead run is that, in a code and in words.
pub(crate) fn error(row: &Snapshot, entries: &[Entry]) -> Option<RunError> {
    if !matches!(row.state, State::Failed | State::Dead) {
        return None;
    }
    let code = row.reason.map_or_else(|| row.state.as_str().to_owned(), |reason| reason.as_str().to_owned());
    let detail = entries.iter().rev().find_map(|entry| match &entry.body {
        EntryBody::Settled(b) => Some(b.detail.clone()),
        EntryBody::DeadLettered(b) => Some(b.detail.clone()),
        EntryBody::InDoubt(b) => Some(b.why.clone()),
        _ => None,
    });
    Some(RunError { code, detail: detail.unwrap_or_default() })
}

/// Still on the card: pending, or denied while others of the turn wait. One whose outcome became known has left it.
pub(crate) fn on_card(call: &OpenCall) -> bool {
    call.is_pending() || call.outcome == Some(Outcome::Denied)
}

/// A call of a card as it would run: with a person's arguments, where one changed them, and what the tool says of those.
pub(crate) fn as_decided(card: &CardCall, entries: &[Entry]) -> CardCall {
    let edit = entries.iter().rev().find_map(|entry| match &entry.body {
        // What was decided before this card was shown has been taken into it.
        EntryBody::Suspended(_) => Some(None),
        EntryBody::Approval(approval) => {
            let decided = approval.calls.iter().find(|call| call.call_id == card.id)?;
            Some(decided.arguments.clone().map(|arguments| (arguments, decided.edited_card.clone())))
        }
        _ => None,
    });
    match edit.flatten() {
        Some((arguments, edited)) => card.clone().edited(arguments, edited),
        None => card.clone(),
    }
}

fn verdict_word(approved: bool) -> &'static str {
    if approved { "approve" } else { "deny" }
}

fn waiting(subject: &Subject<'_>) -> Option<Waiting> {
    let Subject { row, entries, similar, .. } = *subject;
    let suspended = standing_card(row, entries)?;
    let turn = row.turn.as_ref()?;
    let calls = suspended.card.calls.iter().filter_map(|card| {
        let open = turn.call(&card.id).filter(|call| on_card(call))?;
        let card = as_decided(card, entries);
        let similar = similar.map(|similar| similar.get(&card.id).into_iter().flatten().map(Similar::from).collect());
        Some(WaitingCall {
            preview_withheld: card.is_withheld(),
            similar,
            id: card.id.to_string(),
            tool: card.tool.name,
            source: card.tool.source,
            arguments: card.arguments,
            effect: card.tool.effect.as_str(),
            needs_approval: open.needs_person,
            decision: open.verdict.as_ref().map(|v| verdict_word(v.approved)),
            why: card.why,
            preview: card.preview,
            precondition: card.precondition,
        })
    });
    Some(Waiting {
        kind: match suspended.card.kind {
            WaitKind::Approval => "approval",
            WaitKind::Input => "input",
        },
        turn_digest: turn.digest.clone().unwrap_or_else(|| suspended.digest.clone()),
        deadline: turn.deadline,
        schema: suspended.card.schema.clone(),
        prompt: suspended.card.question.as_ref().map(|asked| asked.prompt.clone()),
        calls: calls.collect(),
    })
}

fn questions(subject: &Subject<'_>) -> Vec<Question> {
    let asked = subject.questions().map(|asked| Question {
        call_id: asked.call.id.to_string(),
        tool: asked.call.tool.clone(),
        question: asked.number,
        prompt: asked.question.prompt.clone(),
        schema: asked.question.schema.clone(),
        asked_at: asked.at,
    });
    asked.collect()
}

fn decisions(initiator: &str, entries: &[Entry]) -> Vec<Decision> {
    let mut all = Vec::new();
    for entry in entries {
        let made = |call: &run::CallId, decision, by: &run::Principal, digest: &str| Decision {
            call_id: call.to_string(),
            decision,
            proposal: false,
            reason: None,
            arguments: None,
            values: None,
            by: by.id.clone(),
            attribution: Attribution::of(by, initiator).as_str(),
            method: by.method.clone(),
            at: entry.at,
            turn_digest: digest.to_owned(),
        };
        match &entry.body {
            EntryBody::Approval(approval) => all.extend(approval.calls.iter().map(|call| Decision {
                proposal: approval.proposal,
                reason: call.reason.clone(),
                arguments: call.arguments.clone(),
                ..made(&call.call_id, verdict_word(call.approved), &approval.by, &approval.digest)
            })),
            EntryBody::Input(input) => all.push(Decision {
                values: (!input.declined).then(|| input.values.clone()),
                ..made(&input.call_id, if input.declined { "declined" } else { "input" }, &input.by, &input.digest)
            }),
            _ => {}
        }
    }
    all
}

impl Run {
    /// From a row and its whole journal.
    pub(crate) fn new(subject: &Subject<'_>) -> Self {
        let Subject { row, entries, boot, now, .. } = *subject;
        let end = settled(row, entries);
        let request = entries.iter().find_map(|entry| match &entry.body {
            EntryBody::Started(born) | EntryBody::Enqueued(born) => Some(&born.request),
            _ => None,
        });
        Self {
            id: row.id.to_string(),
            agent: row.agent.clone(),
            state: row.state.as_str(),
            reason: row.reason.map(run::Reason::as_str),
            mode: row.mode.as_str(),
            recovery: row.recovery.as_str(),
            owner: row.owner.clone(),
            initiator: row.initiator.clone(),
            team: row.team.clone(),
            holder: row.lease.as_ref().map(|lease| lease.holder.clone()),
            epoch: row.epoch,
            lease_expires_at: row.lease.as_ref().and_then(|lease| lease_end(&lease.expires_at, boot, now)),
            cancel_requested: row.cancel_requested,
            unserved: subject.unserved.map(ToString::to_string),
            fence: row.fence.as_ref().map(|fence| Fence {
                tool: fence.tool.clone(),
                call_id: fence.call_id.to_string(),
                effect: fence.effect.as_str(),
                idempotency_key: fence.idempotency_key.clone(),
                epoch: fence.epoch,
                attempt: fence.attempt,
                repeat: fence.repeat,
                verifiable: fence.verifiable,
                stamped_at: fence.stamped_at,
            }),
            doubt: doubt(subject),
            waiting: waiting(subject),
            questions: questions(subject),
            decisions: decisions(&row.initiator, entries),
            output: end.as_ref().and_then(|end| end.output.clone()),
            truncated: end.is_some_and(|end| end.truncated),
            attribution: row.attribution.map(Attribution::as_str),
            rounds: row.rounds,
            usage: Usage {
                input_tokens: row.usage.input_tokens,
                output_tokens: row.usage.output_tokens,
                cached_tokens: row.usage.cached_tokens,
                reasoning_tokens: row.usage.reasoning_tokens,
            },
            cost: dollars(row.usage.cost_nano_usd),
            requeues: row.requeues,
            error: error(row, entries),
            created_at: row.created_at,
            started_at: row.started_at,
            finished_at: row.finished_at,
            metadata: request.map(|request| request.metadata.clone()).unwrap_or_default(),
            unreadable: subject.unreadable.map(str::to_owned),
        }
    }
}

/// Billionths of a dollar as dollars.
pub(crate) fn dollars(nano: u64) -> f64 {
    nano as f64 / 1e9
}

/// An item of the inbox.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct InboxItem {
    /// `in_doubt`, `approval`, `question`, `input`, `duplicate`, `contradicted` or `dead`.
    kind: &'static str,
    run: InboxRun,
    /// Why the run is not shown whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
}

/// The whole run where it can be read, its plain columns where not: one unreadable row hides no other.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
enum InboxRun {
    Whole(Box<Run>),
    Line(Box<RunLine>),
}

impl InboxItem {
    /// Of a row, and of the run as far as it could be read.
    pub(crate) fn new(kind: InboxKind, listed: &Listed, read: Result<Subject<'_>, String>, unreadable: Option<String>) -> Self {
        let (run, unreadable) = match (read, unreadable) {
            (Ok(subject), None) => (InboxRun::Whole(Box::new(Run::new(&subject))), None),
            (Ok(_), Some(why)) | (Err(why), _) => (InboxRun::Line(Box::new(listed.into())), Some(why)),
        };
        Self { kind: kind.as_str(), run, unreadable }
    }
}
