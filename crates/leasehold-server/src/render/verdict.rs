//! The first line about a run: where it stands, in one sentence that needs no other knowledge.

use super::{Subject, many};
use crate::terminal::Look;
use leasehold::run::{CallId, EntryBody, LateAnswer, MODEL_CALL_FAILED, Outcome, Reason, State, WaitKind};

/// The sentence, and how it looks.
pub(crate) fn sentence(subject: &Subject<'_>) -> (Look, String) {
    let row = subject.row;
    if let Some(why) = subject.unreadable.filter(|_| row.state.is_settled()) {
        // Its row says how it ended, and nothing that is left says what it wrote.
        return (Look::Bad, format!("Is {}. What it did cannot be read: {why}.", row.state));
    }
    match row.state {
        State::Queued => (Look::Plain, format!("{}{}", queued(subject), apart(subject))),
        State::Running => {
            let holder = row.lease.as_ref().map_or("nobody", |lease| lease.holder.as_str());
            let flight = match &row.fence {
                Some(fence) => format!("; {} is in flight", fence.tool),
                None => String::new(),
            };
            let asking: Vec<&str> = row.questions().map(|(call, _)| call.tool.as_str()).collect();
            let (look, asks) = match asking.as_slice() {
                [] => (Look::Plain, String::new()),
                some => (Look::Warn, format!("; a person is asked by {}", some.join(", "))),
            };
            (look, format!("Running: {holder} executes it{flight}{asks}."))
        }
        State::Cancelling => {
            let what = match &row.fence {
                Some(fence) => format!("{} is in flight and is waited for", fence.tool),
                None => "its holder has still to hear it".to_owned(),
            };
            (Look::Warn, format!("Being cancelled: {what}; nothing new starts."))
        }
        State::WaitingForApproval => (Look::Warn, format!("{}{}", waiting(subject), apart(subject))),
        State::WaitingForInput if !super::card::cannot_be_shown(subject) => {
            (Look::Warn, format!("Waits for a person: values are asked for.{}", apart(subject)))
        }
        State::WaitingForInput => (Look::Warn, waiting(subject)),
        State::Completed if row.duplicates + row.contradictions > 0 => (Look::Warn, completed(subject)),
        State::Completed => (Look::Good, completed(subject)),
        State::Failed => (Look::Bad, failed(subject)),
        State::Cancelled => (Look::Plain, format!("Cancelled{}.", unknown_writes(subject))),
        State::Dead => dead(subject),
    }
}

fn queued(subject: &Subject<'_>) -> String {
    let row = subject.row;
    let due =
        if row.due_at > subject.now { format!(", not before {}", super::when(row.due_at, subject.now)) } else { String::new() };
    let fence = match &row.fence {
        Some(fence) if fence.verifiable => format!("; before anything else {} is asked whether it happened", fence.tool),
        Some(fence) if row.has_non_idempotent_fence() => format!("; {} may have happened, and is not repeated", fence.tool),
        Some(fence) => format!("; before anything else {} is repeated with the same key", fence.tool),
        None => String::new(),
    };
    let cancel = if row.cancel_requested { "; a cancel was accepted" } else { "" };
    format!("Queued: waits for a worker{due}{fence}{cancel}.")
}

fn waiting(subject: &Subject<'_>) -> String {
    let undecided: Vec<&str> = subject
        .row
        .turn
        .iter()
        .flat_map(|turn| turn.calls.iter())
        .filter(|call| call.is_undecided())
        .map(|call| call.tool.as_str())
        .collect();
    if super::card::cannot_be_shown(subject) {
        return "Waits for a person, and what it waits for cannot be read: nobody can decide about it; a cancel ends it."
            .into();
    }
    if crate::wire::standing_card(subject.row, subject.entries).is_some_and(|s| s.card.kind == WaitKind::Input) {
        return "Waits for a person: values are asked for.".into();
    }
    match undecided.as_slice() {
        [one] => format!("Waits for a person: {one} runs only if somebody approves it."),
        several => {
            format!(
                "Waits for a person: {} run only if somebody approves them: {}.",
                many(several.len(), "call"),
                several.join(", ")
            )
        }
    }
}

/// The calls that were stamped: writes that may have been entered.
fn stamped<'a>(subject: &Subject<'a>) -> Vec<&'a CallId> {
    let stamped = subject.entries.iter().filter_map(|entry| match &entry.body {
        EntryBody::WriteStamped(stamped) => Some(&stamped.call_id),
        _ => None,
    });
    stamped.collect()
}

fn writes_done(subject: &Subject<'_>) -> usize {
    writes_answered(subject, false)
}

/// Writes that were entered and answered; `with_an_error`: with which they may have done something or nothing.
fn writes_answered(subject: &Subject<'_>, with_an_error: bool) -> usize {
    let stamped = stamped(subject);
    let is_one = |entry: &&leasehold::run::Entry| {
        matches!(&entry.body, EntryBody::ToolOutcome(o)
            if o.outcome == Outcome::Done && o.is_error == with_an_error && stamped.contains(&&o.call_id))
    };
    subject.entries.iter().filter(is_one).count()
}

/// Writes whose outcome nobody knows, for a sentence about an end: those that were closed so, and the one whose fence stands.
fn unknown_writes(subject: &Subject<'_>) -> String {
    let stamped = stamped(subject);
    let closed = subject.entries.iter().filter_map(|entry| match &entry.body {
        // Of a read nothing can have happened.
        EntryBody::ToolOutcome(o) if o.outcome == Outcome::Unknown && stamped.contains(&&o.call_id) => {
            Some((&o.call_id, &o.tool))
        }
        _ => None,
    });
    // Where the journal cannot be read to its end, the row knows of its newest calls.
    let calls = subject.row.turn.iter().flat_map(|turn| turn.calls.iter().chain(&turn.earlier));
    let of_row = calls.filter(|c| c.outcome == Some(Outcome::Unknown) && c.maybe_entered()).map(|c| (&c.id, &c.tool));
    let mut unknown: Vec<(&CallId, &String)> = Vec::new();
    for call in closed.chain(of_row).chain(subject.row.fence.as_ref().map(|fence| (&fence.call_id, &fence.tool))) {
        if !unknown.contains(&call) {
            unknown.push(call);
        }
    }
    let unknown: Vec<&str> = unknown.into_iter().map(|(_, tool)| tool.as_str()).collect();
    let unknown = match unknown.as_slice() {
        [] => String::new(),
        [one] => format!("; {one} may have happened, nobody knows: do not repeat it blindly"),
        several => format!("; these may have happened, nobody knows: {}", several.join(", ")),
    };
    format!("{unknown}{}", contradicted(subject))
}

/// What the process that made a call said against its recorded outcome.
fn contradicted(subject: &Subject<'_>) -> String {
    contradictions(subject).iter().map(|said| format!("; but {said}")).collect()
}

fn contradictions(subject: &Subject<'_>) -> Vec<String> {
    let against = subject.entries.iter().filter_map(|entry| match &entry.body {
        EntryBody::LateEvidence(late) if late.contradicts => {
            let recorded = subject.entries.iter().find_map(|entry| match &entry.body {
                EntryBody::ToolOutcome(o) if o.call_id == late.call_id => Some(o),
                _ => None,
            })?;
            let (tool, recorded) = (&recorded.tool, recorded.outcome.as_str().replace('_', " "));
            let says = if late.answer == LateAnswer::Done { "it happened" } else { "it did not happen" };
            let said = format!("of {tool} {}, recorded as {recorded}, its own process says that {says}", late.call_id);
            // The outcome is of another attempt than the one that is spoken of.
            let again = late.answer == LateAnswer::Done && recorded == "done";
            Some(if again {
                format!("{tool} {} may have happened twice: an attempt that was taken for absent is done", late.call_id)
            } else {
                said
            })
        }
        _ => None,
    });
    against.collect()
}

/// The same as sentences of its own.
fn apart(subject: &Subject<'_>) -> String {
    contradictions(subject).iter().map(|said| format!(" But {said}.")).collect()
}

fn completed(subject: &Subject<'_>) -> String {
    let row = subject.row;
    let open = unknown_writes(subject);
    let writes = match writes_done(subject) {
        0 if row.duplicates > 0 || !open.is_empty() || writes_answered(subject, true) > 0 => {
            "no write is on record as done".to_owned()
        }
        0 => "nothing was written".to_owned(),
        n => format!("{} done", many(n, "write")),
    };
    let writes = match writes_answered(subject, true) {
        0 => writes,
        n => format!("{writes}, {n} answered with an error"),
    };
    let rounds = many(row.rounds, "model reply");
    let truncated = crate::wire::settled(row, subject.entries).is_some_and(|end| end.truncated);
    let cap = if truncated { "; its cap on rounds ended it" } else { "" };
    let twice = match row.duplicates {
        0 => String::new(),
        n => format!("; {} landed twice", many(n, "effect")),
    };
    format!("Completed: {rounds}, {writes}{cap}{twice}{open}.")
}

fn detail(subject: &Subject<'_>) -> String {
    crate::wire::error(subject.row, subject.entries).map(|error| error.detail).unwrap_or_default()
}

fn failed(subject: &Subject<'_>) -> String {
    let words = match subject.row.reason {
        Some(Reason::Refused) => "the model or its provider refused the content",
        Some(Reason::Policy) => "a policy of the operator forbids it",
        Some(Reason::Budget) => "a budget is spent",
        Some(Reason::ModelAuth) => "the model's provider did not accept the credentials",
        Some(Reason::ModelClient) => "the model's provider says that the request is wrong",
        Some(Reason::ModelUnavailable) if detail(subject).starts_with(MODEL_CALL_FAILED) => "the model could not be reached",
        Some(Reason::ModelUnavailable) => "it could not go on, and its caller did not wait for another attempt",
        Some(Reason::ContextOverflow) => "the conversation is longer than the model takes",
        Some(Reason::Abandoned) => "a person gave up a write in doubt",
        _ => "it could not go on",
    };
    with_detail(&format!("Failed: {words}"), &detail(subject), &unknown_writes(subject))
}

fn with_detail(words: &str, detail: &str, more: &str) -> String {
    if detail.is_empty() { format!("{words}{more}.") } else { format!("{words}{more} ({}).", detail.trim_end_matches('.')) }
}

/// Why nobody goes on with a run that was executed for its caller.
fn abandoned(subject: &Subject<'_>) -> &'static str {
    let given_up = subject.entries.iter().rev().find(|entry| matches!(entry.body, EntryBody::DeadLettered(_)));
    match given_up {
        // The holder's own word: it lived when it gave the run up.
        Some(entry) if entry.holder.is_some() => "Dead: its process gave it up, and nobody else goes on with it",
        _ => "Dead: its process lost it or ended, and nobody waits for it any more",
    }
}

fn dead(subject: &Subject<'_>) -> (Look, String) {
    let row = subject.row;
    let unknown = unknown_writes(subject);
    let sentence = match row.reason {
        Some(Reason::WriteInDoubt) => {
            let tool = row.fence.as_ref().map_or("a write", |fence| fence.tool.as_str());
            let attempts = row.fence.as_ref().map_or(1, |fence| fence.attempt);
            let often = if attempts > 1 { format!("in one of {attempts} attempts") } else { "once".to_owned() };
            format!(
                "In doubt: {tool} may have happened {often}; nobody knows. Nothing repeats it until a person says what is true.{}",
                apart(subject)
            )
        }
        Some(Reason::RetriesExhausted) => {
            let requeues = many(row.requeues, "requeue");
            with_detail(&format!("Dead: given up after {requeues}"), &detail(subject), &unknown)
        }
        Some(Reason::Abandoned) => with_detail(abandoned(subject), &detail(subject), &unknown),
        Some(Reason::Unreadable) => with_detail("Dead: its record cannot be read", &detail(subject), &unknown),
        Some(Reason::DecisionExpired) => with_detail("Dead: nobody decided in time", "", &unknown),
        Some(Reason::Restored) => with_detail("Dead: it was under way when the store was restored from a backup", "", &unknown),
        _ => with_detail("Dead", &detail(subject), &unknown),
    };
    (Look::Bad, sentence)
}
