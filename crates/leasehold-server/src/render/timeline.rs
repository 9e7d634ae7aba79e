//! A journal in words, one line an entry.

use super::result_text;
use leasehold::run::{Entry, EntryBody, LateAnswer, Outcome, ResolutionKind, State, Via, body};

/// Characters of a text in a line of the timeline.
const SHORT: usize = 240;

/// A text in a line: its first characters. Making it visible is the screen's part.
fn short(text: &str) -> String {
    let text = text.trim();
    if text.chars().count() <= SHORT {
        return text.to_owned();
    }
    text.chars().take(SHORT - 3).chain("...".chars()).collect()
}

fn said(text: &str) -> String {
    if text.trim().is_empty() { String::new() } else { format!(": \"{}\"", short(text)) }
}

fn because(note: Option<&str>) -> String {
    note.map(|note| format!(" ({})", short(note))).unwrap_or_default()
}

/// What happened, in words.
pub(crate) fn words(entry: &Entry) -> String {
    let holder = entry.holder.as_deref().unwrap_or("nobody");
    match &entry.body {
        EntryBody::Sealed(kind, _) => format!("{} (sealed)", kind.replace('_', " ")),
        EntryBody::Started(born) => format!("started by {}, claimed at birth by {holder}{}", born.by.id, task(born)),
        EntryBody::Enqueued(born) => format!("queued by {}{}", born.by.id, task(born)),
        EntryBody::SegmentOpened(_) => format!("claimed by {holder} (epoch {})", entry.epoch),
        EntryBody::ModelReply(reply) => reply_words(reply),
        EntryBody::WriteStamped(b) => {
            format!("stamped {} {} by {holder} (epoch {}), key {}", b.tool, b.call_id, entry.epoch, b.idempotency_key)
        }
        EntryBody::WriteRestamped(b) => {
            let by = format!("by {holder} (epoch {})", entry.epoch);
            format!("stamped {} {} again {by}, attempt {}, the same key", b.tool, b.call_id, b.attempt)
        }
        EntryBody::WriteNotStarted(b) => {
            let late = if b.late { ", said late" } else { "" };
            format!("{} was stamped and not entered{late} ({})", b.call_id, short(&b.why))
        }
        EntryBody::ToolOutcome(outcome) => outcome_words(outcome),
        EntryBody::Suspended(b) => {
            let calls: Vec<String> = b.card.calls.iter().map(|call| format!("{} {}", call.tool.name, call.id)).collect();
            format!("waits for a person: {}", calls.join(", "))
        }
        EntryBody::Approval(approval) => {
            let goes_on = match (&approval.lease_id, &entry.holder) {
                (Some(_), Some(holder)) => format!("; {holder} goes on (epoch {})", entry.epoch),
                _ => String::new(),
            };
            format!("{}{goes_on}", approval_words(approval))
        }
        EntryBody::InputRequired(b) => {
            let asked: Vec<&str> = b.questions.iter().map(|question| question.prompt.as_str()).collect();
            format!("{} {} does not go on without input{}", b.tool, b.call_id, said(&asked.join("; ")))
        }
        EntryBody::Input(b) if b.declined => format!("{} declined to fill in values for {}", b.by.id, b.call_id),
        EntryBody::Input(b) => format!("{} filled in values for {}", b.by.id, b.call_id),
        EntryBody::Question(b) => format!("{} asks{}", b.call_id, said(&b.prompt)),
        EntryBody::Answered(b) => {
            let what = if b.values.is_some() { "answered" } else { "declined to answer" };
            format!("{} {what} {}", b.by.id, b.call_id)
        }
        EntryBody::Expired(b) => format!("nobody decided in time about {}", ids(&b.calls)),
        EntryBody::CancelRequested(b) => format!("{} asked to cancel{}", b.by.id, because(b.note.as_deref())),
        EntryBody::Requeued(b) => format!("back to the queue, requeue {} ({})", b.requeues, short(&b.why)),
        EntryBody::LeaseExpired(b) => format!("the lease of {} ended without its word (epoch {})", b.holder, b.epoch),
        EntryBody::InDoubt(b) => format!("in doubt: {} {} ({})", b.tool, b.call_id, short(&b.why)),
        EntryBody::Resolved(b) => {
            let what = match b.outcome {
                ResolutionKind::Landed => "says it happened",
                ResolutionKind::NotLanded => "says it did not happen",
                ResolutionKind::Abandon => "gave it up",
            };
            format!("{} {what}: {}{}", b.by.id, b.call_id, because(b.note.as_deref()))
        }
        EntryBody::Redriven(b) => format!("sent on by {}{}", b.by.id, because(b.note.as_deref())),
        EntryBody::Discarded(b) => format!("discarded by {}{}", b.by.id, because(b.note.as_deref())),
        EntryBody::LateEvidence(b) => {
            let answer = match b.answer {
                LateAnswer::Done => "it is done",
                LateAnswer::NotApplied => "it did not happen",
                LateAnswer::NotStarted => "it was never entered",
                LateAnswer::Unknown => "it may have happened",
            };
            let against = if b.contradicts { "; the record says otherwise" } else { "" };
            format!("a former holder says of {}: {answer}{against}", b.call_id)
        }
        EntryBody::DuplicateEffect(b) => format!("{} {} landed twice", b.tool, b.call_id),
        EntryBody::DeadLettered(b) => format!("dead, {} ({})", b.reason, short(&b.detail)),
        EntryBody::Settled(b) => settled_words(b),
    }
}

fn task(born: &body::Born) -> String {
    born.request.messages.last().map(|message| said(&message.text)).unwrap_or_default()
}

fn ids(calls: &[leasehold::run::CallId]) -> String {
    calls.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn reply_words(reply: &body::ModelReply) -> String {
    if reply.calls.is_empty() {
        return format!("{} answers{}", reply.model, said(&reply.text));
    }
    let calls: Vec<String> = reply.calls.iter().map(|call| format!("{} {}", short(&call.tool), call.id)).collect();
    format!("{} asks for {}{}", reply.model, calls.join(", "), said(&reply.text))
}

fn outcome_words(outcome: &body::ToolOutcome) -> String {
    let what = match (outcome.outcome, outcome.is_error) {
        (Outcome::Done, false) => "done",
        (Outcome::Done, true) => "answered with an error",
        (Outcome::NotApplied, _) => "did not happen",
        (Outcome::Unknown, _) => "outcome unknown",
        (Outcome::Refused, _) => "refused before it ran",
        (Outcome::Denied, _) => "denied, not run",
        (Outcome::NotRun, _) => "not run",
    };
    let via = match outcome.via {
        Via::Tool | Via::Gate | Via::Decision => "",
        Via::LateOutcome => ", said late by its process",
        Via::Verify => ", the far side was asked",
        Via::Resolution => ", as a person says",
        Via::Evidence => ", as an earlier attempt's process said",
        Via::Close => ", closed with the run",
        Via::Expiry => ", nobody decided in time",
    };
    let result = if outcome.result.is_null() { String::new() } else { format!(": {}", short(&result_text(&outcome.result))) };
    format!("{} {} {what}{via}{result}", short(&outcome.tool), outcome.call_id)
}

fn approval_words(approval: &body::Approval) -> String {
    let calls: Vec<String> = approval
        .calls
        .iter()
        .map(|call| {
            let word = if call.approved { "approved" } else { "denied" };
            let edit = if call.arguments.is_some() { " with changed arguments" } else { "" };
            format!("{word} {}{edit}{}", call.call_id, because(call.reason.as_deref()))
        })
        .collect();
    let proposal = if approval.proposal { " (a proposal: somebody else releases it)" } else { "" };
    format!("{} {}{proposal}", approval.by.id, calls.join(", "))
}

fn settled_words(settled: &body::Settled) -> String {
    match settled.state {
        State::Completed => format!("completed{}", if settled.truncated { " at its cap on rounds" } else { "" }),
        state => {
            let reason = settled.reason.map(|reason| format!(", {reason}")).unwrap_or_default();
            let detail = if settled.detail.is_empty() || settled.detail == state.as_str() {
                String::new()
            } else {
                format!(" ({})", short(&settled.detail))
            };
            format!("{state}{reason}{detail}")
        }
    }
}
