//! A write of which nobody knows whether it happened: what was sent, what is known, and a person's word on it.

use super::{
    card::{Head, Looked, Urgency},
    frame::may_not,
    text::{clock, effect, icon, line, members, time},
};
use crate::{
    render::words,
    wire::{how_to_check, lease_end},
};
use leasehold::run::EntryBody;
use maud::{Markup, html};

/// The card.
pub(super) fn card(looked: &Looked<'_>) -> Markup {
    let subject = &looked.subject;
    let Some(fence) = subject.doubted() else { return super::dead::cannot_be_read(looked) };
    let stamped = subject.stamped(&fence.call_id);
    let head = Head {
        kind: "doubt",
        picture: "doubt",
        word: "In doubt",
        title: html! { (line(&fence.tool)) " may have happened" },
        sub: html! { (effect(fence.effect)) " " span.tag.fence-tag data-effect=(fence.effect.as_str()) { (icon("fence")) "fence stands" } },
        urgency: Urgency::Now,
        since: html! { "sent " (time(fence.stamped_at, subject.now)) },
    };
    let endpoint = stamped.map(|(_, stamped)| stamped.endpoint.as_str()).filter(|endpoint| !endpoint.is_empty());
    let holder = stamped.and_then(|(entry, _)| entry.holder.as_deref()).unwrap_or("an unknown process");
    let evidence = subject.entries.iter().filter(|entry| match &entry.body {
        EntryBody::WriteStamped(b) | EntryBody::WriteRestamped(b) => b.call_id == fence.call_id,
        EntryBody::WriteNotStarted(b) => b.call_id == fence.call_id,
        EntryBody::LateEvidence(b) => b.call_id == fence.call_id,
        EntryBody::LeaseExpired(b) => b.lease_id == fence.lease_id,
        EntryBody::InDoubt(b) => b.call_id == fence.call_id,
        _ => false,
    });
    let held = subject
        .lease_of(fence.lease_id)
        .and_then(|(_, ended)| ended.expires_at.as_ref())
        .and_then(|end| lease_end(end, subject.boot, subject.now));
    let facts = looked.facts(&html! {
        dt { "Sent by" } dd { (line(holder)) span.sub { "epoch " (fence.epoch) ", attempt " (fence.attempt) @if fence.repeat { ", it may have been entered before" } } }
        @if let Some(held) = held { dt { "Last heard" } dd { "its lease held until " (time(held, subject.now)) } }
        dt { "On its way" }
        dd { @if fence.in_flight_until > subject.now { "perhaps until " (time(fence.in_flight_until, subject.now)) }
             @else { "no longer, by its own time limit" span.sub { "which ended " (time(fence.in_flight_until, subject.now)) } } }
        dt { "To check" } dd { (line(&how_to_check(fence))) }
    });
    head.around(looked, &html! {
        div.card-body {
            div.card-main {
                p { "It was sent, and no answer is on record. It " b { "may have happened" } @if fence.in_flight_until > subject.now { ", or " b { "may still happen" } } ". Nothing repeats it until somebody says what is true." }
                div {
                    h3.lead { "What was sent" }
                    dl.kv.long {
                        @if let Some(endpoint) = endpoint { div { dt { "To" } dd { (line(endpoint)) } } }
                        div { dt { "Idempotency-Key" } dd { code.id { (line(&fence.idempotency_key)) } } }
                        div { dt { "Leasehold-Fencing-Token" } dd { code.id { (fence.epoch) } } }
                    }
                    (members(&subject.arguments(&fence.call_id)))
                }
                div {
                    h3.lead { "Evidence" }
                    ol.steps-mini { @for entry in evidence { li { (clock(entry.at)) span { (line(&words(entry))) } } } }
                    p.small.soft { "Why nobody knows: " (line(subject.doubted_because())) }
                }
            }
            (facts)
            (settle(looked, &fence.call_id.0, fence.epoch))
        }
    })
}

fn settle(looked: &Looked<'_>, call: &str, epoch: u64) -> Markup {
    let (row, kept) = (&looked.details.row, looked.kept);
    if let Err(why) = looked.visitor.who.may_settle(row) {
        return html! { div.card-act { (may_not("You may look and not settle this:", &why.to_string())) } };
    }
    let outcome = kept.get("outcome").unwrap_or_default();
    let choice = |value: &'static str, words: &'static str, hint: &'static str| {
        html! { label.choice { input type="radio" name="outcome" value=(value) required checked[outcome == value]; b { (words) } span.hint { (hint) } } }
    };
    let id = row.id;
    html! {
        form.card-act.settle method="post" action=(looked.action("resolve")) {
            (looked.hidden())
            input type="hidden" name="call_id" value=(call);
            input type="hidden" name="fence_epoch" value=(epoch);
            fieldset.stack {
                legend.lead { "What happened? You decide on evidence from outside, for example the far side's own list." }
                div.choices {
                    (choice("landed", "It landed", "The run goes on with the result that you give. The call is never made again."))
                    (choice("not_landed", "It did not land", "This one call may run once more, with the same key."))
                    (choice("abandon", "Abandon", "The run ends as failed. Nothing more is sent."))
                }
                div.when.when-landed.field {
                    label for={ "result-" (id) } { "Result that the agent should see " span.hint { "JSON or text; may be left empty" } }
                    textarea id={ "result-" (id) } name="result" rows="2" { "\n" (kept.get("result").unwrap_or_default()) }
                }
                div.field {
                    label for={ "note-" (id) } { "Note " span.hint { "kept in the record" } }
                    div.row.note-row {
                        input id={ "note-" (id) } name="note" type="text" autocomplete="off" value=(kept.get("note").unwrap_or_default());
                        button.btn data-look="primary" { "Settle this write" }
                    }
                }
            }
        }
    }
}
