//! What the runtime refuses to go on with, and records that say two things.

use super::{
    card::{Head, Looked, Urgency},
    frame::may_not,
    text::{clock, code, line, run_link, time},
};
use crate::{
    render::{sentence, words},
    wire,
};
use leasehold::run::EntryBody;
use maud::{Markup, html};

/// A dead run.
pub(super) fn card(looked: &Looked<'_>) -> Markup {
    let (row, subject) = (&looked.details.row, &looked.subject);
    let reason = row.reason.map_or("dead", |reason| reason.as_str());
    let head = Head {
        kind: "dead",
        picture: "stop",
        word: "Dead letter",
        title: html! { (line(&row.agent)) " does not go on: " (reason.replace('_', " ")) },
        sub: html! { @if let Some(fence) = &row.fence { span.tag { (line(&fence.tool)) " may have happened" } } },
        urgency: Urgency::None,
        since: html! { "died " (time(subject.entries.last().map_or(row.created_at, |entry| entry.at), subject.now)) },
    };
    let error = wire::error(row, subject.entries).map(|error| error.detail).filter(|detail| !detail.is_empty());
    let attempts = subject.entries.iter().filter(|entry| {
        matches!(
            entry.body,
            EntryBody::Requeued(_) | EntryBody::LeaseExpired(_) | EntryBody::DeadLettered(_) | EntryBody::SegmentOpened(_)
        )
    });
    let attempts: Vec<_> = attempts.collect();
    let shown = &attempts[attempts.len().saturating_sub(ATTEMPTS_MAX)..];
    head.around(
        looked,
        &html! {
            div.card-body {
                div.card-main {
                    p { (line(&sentence(subject).1)) }
                    @if let Some(error) = &error { div { h3.lead { "Last error" } (code("Last error", error)) } }
                    @if let Some(why) = subject.unreadable { div { h3.lead { "It is not shown whole" } (code("Why", why)) } }
                    @if !shown.is_empty() { div {
                        h3.lead { "Attempts" }
                        ol.steps-mini { @for entry in shown { li { (clock(entry.at)) span { (line(&words(entry))) } } } }
                    } }
                }
                (looked.facts(&html! { dt { "Reason" } dd { code { (reason) } } dt { "Requeues" } dd { (row.requeues) } }))
                (orders(looked))
            }
        },
    )
}

/// Attempts that are shown, the newest.
const ATTEMPTS_MAX: usize = 20;

fn orders(looked: &Looked<'_>) -> Markup {
    let row = &looked.details.row;
    if let Err(why) = looked.visitor.who.may_settle(row) {
        return html! { div.card-act { (may_not("You may look and not order this:", &why.to_string())) } };
    }
    html! {
        form.card-act method="post" action=(looked.action("discard")) {
            (looked.hidden())
            div.field.grow {
                label for={ "note-" (row.id) } { "Note " span.hint { "kept in the record" } }
                // Enter in it sends nothing: what it would order is not to be taken back.
                textarea id={ "note-" (row.id) } name="note" rows="1" { "\n" (looked.kept.get("note").unwrap_or_default()) }
            }
            button.btn data-look="danger" { "Discard" }
            @if !row.cancel_requested && !row.has_non_idempotent_fence() {
                button.btn data-look="primary" formaction=(looked.action("redrive")) { "Redrive" }
            }
        }
    }
}

/// The button that ends a run.
pub(super) fn cancel(looked: &Looked<'_>) -> Markup {
    html! {
        @if looked.visitor.who.may_cancel(&looked.details.row).is_ok() {
            form.card-act method="post" action=(looked.action("cancel")) {
                (looked.hidden())
                p.sum { "What is in flight finishes, and nothing new starts." }
                button.btn data-look="danger" { "Cancel the run" }
            }
        }
    }
}

/// What waits, and cannot be read.
pub(super) fn cannot_be_read(looked: &Looked<'_>) -> Markup {
    let row = &looked.details.row;
    let head = Head {
        kind: "dead",
        picture: "warn",
        word: "Cannot be read",
        title: html! { "What " (line(&row.agent)) " waits for cannot be read" },
        sub: html! { (run_link(row.id)) },
        urgency: Urgency::None,
        since: html! { "made " (time(row.created_at, looked.subject.now)) },
    };
    head.around(
        looked,
        &html! {
            div.card-body {
                div.card-main {
                    p { "Nobody can decide about what nobody can see. A cancel ends the run." }
                    @if let Some(why) = looked.subject.unreadable { (code("Why", why)) }
                }
                (looked.facts(&html! {}))
                (cancel(looked))
            }
        },
    )
}

/// A call that landed twice.
pub(super) fn twice(looked: &Looked<'_>) -> Markup {
    let words = |body: &EntryBody| matches!(body, EntryBody::DuplicateEffect(_));
    shown(
        looked,
        "Landed twice",
        "A call of this run landed twice",
        "The far side has done one thing twice. The runtime cannot take it back: look there, and undo one of them if it matters.",
        words,
    )
}

/// A record that its own process contradicts.
pub(super) fn contradicted(looked: &Looked<'_>) -> Markup {
    let words = |body: &EntryBody| matches!(body, EntryBody::LateEvidence(late) if late.contradicts);
    shown(
        looked,
        "Contradicted",
        "A call's own process says otherwise than the record",
        "The record says one thing of a call, and the process that made it says the other. Look at the far side.",
        words,
    )
}

fn shown(looked: &Looked<'_>, word: &'static str, title: &str, what: &str, is: fn(&EntryBody) -> bool) -> Markup {
    let (row, subject) = (&looked.details.row, &looked.subject);
    let head = Head {
        kind: "doubt",
        picture: "warn",
        word,
        title: html! { (title) },
        sub: html! { "agent " (line(&row.agent)) },
        urgency: Urgency::None,
        since: html! { "made " (time(row.created_at, subject.now)) },
    };
    let entries = subject.entries.iter().filter(|entry| is(&entry.body));
    head.around(looked, &html! {
        div.card-body {
            div.card-main {
                p { (what) }
                p { (line(&sentence(subject).1)) }
                ol.steps-mini { @for entry in entries.take(ATTEMPTS_MAX) { li { (clock(entry.at)) span { (line(&words(entry))) } } } }
            }
            (looked.facts(&html! {}))
        }
    })
}
