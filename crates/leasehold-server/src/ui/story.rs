//! What a journal says: its effects on the world, the talk, and every entry in words.

use super::{
    runs::lease,
    text::{block, clock, effect, icon, line, members},
};
use crate::render::words;
use leasehold::{
    Details,
    run::{Entry, EntryBody, Outcome, StoryCall, Via},
};
use maud::{Markup, html};
use serde_json::Value;

/// Entries of a journal on a page; of a longer one the middle is left out.
const ENTRIES_MAX: usize = 300;
/// Of those, from the beginning.
const ENTRIES_HEAD: usize = 50;
/// Calls in the table of effects, the newest.
const EFFECTS_MAX: usize = 100;

/// The entries that are shown, and how many are left out before the second part.
fn shown<T>(entries: &[T]) -> (&[T], usize, &[T]) {
    if entries.len() <= ENTRIES_MAX {
        return (entries, 0, &[]);
    }
    let left_out = entries.len() - ENTRIES_MAX;
    (&entries[..ENTRIES_HEAD], left_out, &entries[ENTRIES_HEAD + left_out..])
}

/// Each write with its key and what became of it.
pub(super) fn effects(details: &Details) -> Markup {
    let mut writes: Vec<&StoryCall> = details.story.calls.values().filter(|call| call.asked.effect.is_write()).collect();
    writes.sort_by_key(|call| (call.turn, call.stamps.first().map(|stamp| stamp.at)));
    let reads = details.story.calls.len() - writes.len();
    let left_out = writes.len().saturating_sub(EFFECTS_MAX);
    html! {
        section.block aria-labelledby="h-effects" {
            h2 id="h-effects" { "Effects on the world" }
            @if writes.is_empty() { p.soft { "It has asked for no write." } } @else {
                div.panel.scroll tabindex="0" role="region" aria-label="Effects, scrolls sideways" {
                    table.table.cards-on-phone role="table" {
                        thead role="rowgroup" { tr role="row" {
                            @for head in ["Call", "Effect", "Idempotency key", "Stamped", "Entered", "Outcome"] { th role="columnheader" scope="col" { (head) } }
                        } }
                        tbody role="rowgroup" { @for call in &writes[left_out..] { (effect_row(details, call)) } }
                    }
                }
            }
            @if left_out > 0 { p.small.muted { (left_out) " earlier writes are left out." } }
            @if reads > 0 { p.small.muted.gap-s { (reads) @if reads == 1 { " read is" } @else { " reads are" } " in the transcript; they have no fence." } }
        }
    }
}

fn effect_row(details: &Details, call: &StoryCall) -> Markup {
    let entered = call.stamps.iter().filter(|stamp| stamp.entered).count();
    let first = call.stamps.first();
    html! {
        tr role="row" {
            th role="rowheader" scope="row" { code { (line(&call.asked.tool)) } span.sub { "call " (line(&call.asked.id.0)) } }
            td role="cell" { (effect(call.asked.effect)) }
            td role="cell" data-l="Key" { @if first.is_some() { code.id { (details.row.id.idempotency_key(&call.asked.id)) } } @else { "none sent" } }
            td role="cell" data-l="Stamped" { @if let Some(stamp) = call.stamps.last() { (clock(stamp.at)) " " (lease(stamp.epoch, stamp.holder.as_deref())) } @else { "never" } }
            td role="cell" data-l="Entered" { @match entered { 0 => "not", 1 => "once", n => { "up to " (n) " times" } } }
            td role="cell" data-l="Outcome" {
                (outcome(call))
                @if let Some(decided) = &call.decided { span.sub { @if decided.approved { "approved" } @else { "denied" } " by " (line(&decided.by)) @if let Some(reason) = &decided.reason { ": " (line(reason)) } } }
            }
        }
    }
}

fn outcome(call: &StoryCall) -> Markup {
    let Some(outcome) = &call.outcome else {
        return html! { @if call.was_entered() { (icon("doubt")) " not known" } @else { "not yet run" } };
    };
    let (picture, word) = match (outcome.outcome, outcome.is_error) {
        (Outcome::Done, false) => ("check", "landed"),
        (Outcome::Done, true) => ("warn", "answered with an error"),
        (Outcome::NotApplied, _) => ("slash", "did not happen"),
        (Outcome::Unknown, _) => ("doubt", "not known"),
        (Outcome::Refused, _) => ("slash", "refused before it ran"),
        (Outcome::Denied, _) => ("slash", "denied, not run"),
        (Outcome::NotRun, _) => ("slash", "not run"),
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
    html! { (icon(picture)) " " (word) (via) }
}

/// What was said, by whom.
pub(super) fn transcript(details: &Details) -> Markup {
    let (head, left_out, tail) = shown(&details.entries);
    html! {
        section.block aria-labelledby="h-talk" {
            h2 id="h-talk" { "Transcript" }
            ol.panel.transcript {
                @for entry in head { (said(details, entry)) }
                @if left_out > 0 { li data-by="system" { div.who { "…" } div.said { (left_out) " entries are left out." } div.meta {} } }
                @for entry in tail { (said(details, entry)) }
            }
        }
    }
}

fn said(details: &Details, entry: &Entry) -> Markup {
    let paragraph = |text: &str| html! { @if !text.trim().is_empty() { p.talk { (block(text)) } } };
    let (by, who, said) = match &entry.body {
        EntryBody::Started(born) | EntryBody::Enqueued(born) => {
            let messages = &born.request.messages;
            (
                "user",
                "Request".to_owned(),
                html! { @for message in messages.iter().rev().take(20).rev() { (paragraph(&message.text)) } },
            )
        }
        EntryBody::ModelReply(reply) => (
            "model",
            "Model".to_owned(),
            html! {
                (paragraph(&reply.text))
                @for call in &reply.calls {
                    div.asks {
                        p.row { code { (line(&call.tool)) } " " (effect(call.effect)) }
                        @match &call.arguments { Some(arguments) => (members(arguments)), None => p.small { "not an object: " code { (line(&call.raw_arguments)) } } }
                    }
                }
            },
        ),
        EntryBody::ToolOutcome(outcome) => (
            "tool",
            line(&outcome.tool),
            html! {
                @match &outcome.result {
                    Value::Object(object) => (members(object)),
                    Value::String(text) => (paragraph(text)),
                    Value::Null => p.small.soft { (line(&words(entry))) },
                    other => p.talk { code { (block(&serde_json::to_string_pretty(other).unwrap_or_default())) } },
                }
                @if outcome.is_error || outcome.outcome != Outcome::Done || outcome.late { p.small.soft { (line(&words(entry))) } }
            },
        ),
        EntryBody::Approval(approval) => (
            "person",
            line(&approval.by.id),
            html! {
                @for call in &approval.calls { p {
                    @if call.approved { "Approved " } @else { "Denied " }
                    code { (line(details.story.calls.get(&call.call_id).map_or(call.call_id.0.as_str(), |call| call.asked.tool.as_str()))) }
                    @if call.arguments.is_some() { ", with other arguments" }
                    @if let Some(reason) = &call.reason { ": " (line(reason)) }
                    @if approval.proposal { " (a proposal: somebody else releases it)" }
                } }
            },
        ),
        EntryBody::Input(input) => (
            "person",
            line(&input.by.id),
            html! { @if input.declined { p { "Declined to fill in values." } } @else { (members(&input.values)) } },
        ),
        EntryBody::Answered(answered) => (
            "person",
            line(&answered.by.id),
            html! { @match &answered.values { Some(values) => (members(values)), None => p { "Declined to answer." } } },
        ),
        EntryBody::Question(question) => ("tool", "Question".to_owned(), paragraph(&question.prompt)),
        EntryBody::SegmentOpened(_) | EntryBody::WriteStamped(_) | EntryBody::Suspended(_) => return html! {},
        _ => ("system", "leasehold".to_owned(), html! { (line(&words(entry))) }),
    };
    html! {
        li data-by=(by) {
            div.who { (who) span.sub { "#" (entry.sequence) } }
            div.said { (said) }
            div.meta { (clock(entry.at)) }
        }
    }
}

/// Every entry in words.
pub(super) fn timeline(details: &Details) -> Markup {
    let (head, left_out, tail) = shown(&details.entries);
    let row = |entry: &Entry| {
        html! {
            tr role="row" {
                td role="cell" data-l="Entry" { (entry.sequence) }
                td role="cell" data-l="At" { (clock(entry.at)) }
                td role="cell" data-l="Lease" { (lease(entry.epoch, entry.holder.as_deref())) }
                td.words role="cell" { (line(&words(entry))) }
            }
        }
    };
    html! {
        section.block aria-labelledby="h-time" {
            h2 id="h-time" { "What happened" }
            div.panel.scroll tabindex="0" role="region" aria-label="Events, scrolls sideways" {
                table.table.cards-on-phone role="table" {
                    thead role="rowgroup" { tr role="row" { @for head in ["Entry", "At", "Lease", "What"] { th role="columnheader" scope="col" { (head) } } } }
                    tbody role="rowgroup" {
                        @for entry in head { (row(entry)) }
                        @if left_out > 0 { tr role="row" { td role="cell" colspan="4" { (left_out) " entries are left out; all: " code { "leasehold runs follow " (details.row.id) } } } }
                        @for entry in tail { (row(entry)) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_journal_the_middle_is_left_out() {
        let many = |n: usize| (0..n).collect::<Vec<_>>();
        assert_eq!(shown(&many(ENTRIES_MAX)).1, 0);
        let long = many(ENTRIES_MAX + 3);
        let (head, left_out, tail) = shown(&long);
        assert_eq!((head.len(), left_out, tail.len()), (ENTRIES_HEAD, 3, ENTRIES_MAX - ENTRIES_HEAD));
        assert_eq!(tail.first(), Some(&(ENTRIES_HEAD + 3)));
    }
}
