//! `runs show`: what happened, on one screen.

use super::{Subject, card, doubt, how_to_answer, how_to_decide, many, offset, questions, sentence, span, when, words};
use crate::{
    terminal::{Look, Screen, span as piece},
    wire::{dollars, lease_end, settled},
};
use leasehold::run::{Reason, State};

/// Entries of a timeline that are shown; of a longer one the middle is left out.
const TIMELINE_MAX: usize = 30;
/// Of those, from the beginning.
const TIMELINE_HEAD: usize = 6;
/// Lines of an answer.
const OUTPUT_LINES_MAX: usize = 20;

/// One screen about a run.
pub(crate) fn show(screen: &mut Screen, subject: &Subject<'_>) {
    let row = subject.row;
    let (look, text) = sentence(subject);
    screen.styled(look, text).gap();
    facts(screen, subject);
    if let Some(why) = subject.unreadable {
        screen.fact(11, "unreadable", format!("it is not shown whole: {why}"));
    }
    if row.state.is_waiting() {
        screen.gap().styled(Look::Strong, "Waits for a decision");
        card(screen, subject, None);
        how_to_decide(screen, subject);
    }
    if subject.questions().next().is_some() {
        screen.gap().styled(Look::Strong, "Asks a person");
        questions(screen, subject, None);
        how_to_answer(screen, subject);
    }
    if row.reason == Some(Reason::WriteInDoubt) && row.state == State::Dead {
        screen.gap();
        doubt(screen, subject);
    }
    if let Some(output) = settled(row, subject.entries).and_then(|end| end.output) {
        screen.gap().styled(Look::Strong, "Answer");
        screen.block(2, &output, OUTPUT_LINES_MAX);
    }
    screen.gap().styled(Look::Strong, "What happened");
    timeline(screen, subject);
    next_steps(screen, subject);
}

fn facts(screen: &mut Screen, subject: &Subject<'_>) {
    let row = subject.row;
    let reason = row.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let cancel = if row.cancel_requested { ", cancel requested" } else { "" };
    screen.fact(11, "run", row.id.to_string());
    screen.fact(11, "state", format!("{}{reason}{cancel}", row.state));
    screen.fact(11, "agent", &row.agent);
    let initiator = if row.initiator == row.owner { String::new() } else { format!(", started by {}", row.initiator) };
    screen.fact(11, "owner", format!("{}{initiator}", row.owner));
    match &row.lease {
        Some(lease) => {
            let end = lease_end(&lease.expires_at, subject.boot, subject.now);
            let until = end.map_or_else(String::new, |end| format!(", lease until {}", when(end, subject.now)));
            screen.fact(11, "holder", format!("{} (epoch {}){until}", lease.holder, row.epoch));
        }
        None => {
            screen.fact(11, "holder", format!("nobody (epoch {})", row.epoch));
        }
    }
    if row.state.is_held()
        && let Some(fence) = &row.fence
    {
        let what = format!(
            "{} {}, key {}, stamped {}",
            fence.tool,
            fence.call_id,
            fence.idempotency_key,
            when(fence.stamped_at, subject.now)
        );
        screen.fact(11, "in flight", what);
    }
    let cost = if row.usage.cost_nano_usd > 0 { format!(", ${:.4}", dollars(row.usage.cost_nano_usd)) } else { String::new() };
    let parts: Vec<String> = [(row.usage.cached_tokens, "cached"), (row.usage.reasoning_tokens, "reasoning")]
        .into_iter()
        .filter(|(tokens, _)| *tokens > 0)
        .map(|(tokens, what)| format!("{tokens} {what}"))
        .collect();
    let parts = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    let totals = format!(
        "{}, {} + {} tokens{parts}{cost}, {}",
        many(row.rounds, "round"),
        row.usage.input_tokens,
        row.usage.output_tokens,
        many(row.requeues, "requeue")
    );
    screen.fact(11, "totals", totals);
    let lasted = row.finished_at.map(|end| format!(", took {}", span(end.duration_since(row.created_at).unsigned_abs())));
    screen.fact(11, "created", format!("{}{}", when(row.created_at, subject.now), lasted.unwrap_or_default()));
}

fn timeline(screen: &mut Screen, subject: &Subject<'_>) {
    let entries = subject.entries;
    let left_out = entries.len().saturating_sub(TIMELINE_MAX);
    for (index, entry) in entries.iter().enumerate() {
        if left_out > 0 && index == TIMELINE_HEAD {
            let how = format!("  ... {left_out} entries; all: {} runs follow {}", subject.command, subject.row.id);
            screen.styled(Look::Faint, how);
        }
        if left_out > 0 && (TIMELINE_HEAD..TIMELINE_HEAD + left_out).contains(&index) {
            continue;
        }
        let at = offset(entry.at, subject.row.created_at);
        screen.spans(&[piece(Look::Faint, format!("  {at:>9}  ")), piece(Look::Plain, words(entry))]);
    }
}

fn next_steps(screen: &mut Screen, subject: &Subject<'_>) {
    let row = subject.row;
    let (command, id) = (subject.command, row.id);
    match (row.state, row.reason) {
        (State::Dead, Some(Reason::WriteInDoubt)) => {}
        (State::Dead, _) | (State::Failed, _) if row.fence.as_ref().is_none_or(|_| !row.has_non_idempotent_fence()) => {
            screen.gap();
            if !row.cancel_requested {
                screen.command(format!("  to continue it:  {command} runs redrive {id}"));
            }
            if row.state == State::Dead {
                screen.command(format!("  to give it up:   {command} runs discard {id}"));
            }
        }
        (State::Running | State::Queued, _) => {
            screen
                .gap()
                .command(format!("  to see it live:  {command} runs follow {id}"))
                .command(format!("  to stop it:      {command} runs cancel {id}"));
        }
        _ => {}
    }
}
