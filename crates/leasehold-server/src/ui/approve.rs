//! Calls that wait for a decision: what exactly would happen, and approve, edit or deny, each call or all.

use super::{
    card::{Head, Looked, Urgency},
    form::Form,
    frame::may_not,
    text::{code, effect, icon, line, members, notice, preview, run_link, says, time},
};
use crate::render::{digest, open_calls};
use leasehold::{
    SimilarStage,
    run::{CardCall, OpenCall, RunId},
};
use maud::{Markup, html};
use serde_json::{Map, Value};
use std::iter::once;

/// Before the names of a call's edited arguments.
pub(super) fn edits(call: &str) -> String {
    format!("arg/{call}")
}

/// The form of a call's arguments, as they would run now.
pub(super) fn editor<'a>(schema: &'a Value, run: RunId, call: &'a CardCall) -> Form<'a> {
    Form { schema, prefix: edits(&call.id.0), scope: run.to_string(), now: Some(&call.arguments) }
}

/// The card.
pub(super) async fn card(looked: &Looked<'_>) -> Markup {
    let (row, subject, who) = (&looked.details.row, &looked.subject, &looked.visitor.who);
    let calls = open_calls(subject);
    let open: Vec<&OpenCall> = calls.iter().map(|(_, open)| *open).filter(|open| open.is_undecided()).collect();
    let (Some(digest), false) = (digest(subject), open.is_empty()) else { return super::dead::cannot_be_read(looked) };
    let may_deny = who.may_decide(row, std::iter::empty());
    let may_all = who.may_decide(row, open.iter().copied());
    let first = calls.first().map(|(card, _)| card.tool.name.as_str()).unwrap_or_default();
    let writes = open.iter().filter(|call| call.effect.is_write()).count();
    let head = Head {
        kind: "approve",
        picture: "hand",
        word: "Approve",
        title: html! { (line(&row.agent)) " wants to " @if writes > 0 { "write" } @else { "act" } ": " @if calls.len() == 1 { (line(first)) } @else { (calls.len()) " calls" } },
        sub: html! { span { (names(&calls)) } @if let Some(open) = open.first() { " " (effect(open.effect)) } },
        urgency: row.turn.as_ref().and_then(|turn| turn.deadline).map_or(Urgency::None, Urgency::Until),
        since: html! { "asked " (time(looked.details.story.card.as_ref().map_or(row.created_at, |card| card.since), subject.now)) },
    };
    let said = looked.details.story.turns.last().map(|turn| turn.text.as_str()).filter(|text| !text.trim().is_empty());
    let mut shown = Vec::with_capacity(calls.len());
    for (index, (card, open)) in calls.iter().enumerate() {
        let schema = looked.app.parameters(&card.tool.name).await.unwrap_or(Value::Null);
        shown.push(call(looked, card, open, (index + 1, calls.len()), &schema));
    }
    let facts = looked.facts(&html! {
        dt { "You" }
        dd { @match (&may_all, &may_deny) {
            (Ok(()), _) => "may decide",
            (Err(why), Ok(())) => { "may deny" span.sub { (line(&why.to_string())) } },
            (_, Err(why)) => { "may look" span.sub { (line(&why.to_string())) } },
        } }
        dt { "Digest" }
        dd { code.id { (digest) } span.sub { "binds you to exactly this" } }
    });
    let all = if open.len() == 1 { "it".to_owned() } else { format!("all {}", open.len()) };
    let reason = looked.kept.get("reason").unwrap_or_default();
    let id = row.id;
    head.around(looked, &html! {
        form.card-body method="post" action=(looked.action("decision")) {
            (looked.hidden())
            input type="hidden" name="turn_digest" value=(digest);
            // Enter in a field sends what is marked, and never what a button for all says.
            button.vh name="decision" value="marked" tabindex="-1" aria-hidden="true" { "Send marks" }
            div.card-main {
                @if let Some(said) = said { (says("The agent says", said)) }
                @for call in &shown { (call) }
            }
            (facts)
            @if let Err(why) = &may_deny { div.card-act { (may_not("You may look and not decide:", &why.to_string())) } } @else {
                div.card-act.stays {
                    p.sum { "Nothing of this has run." }
                    details.deny-all open[!reason.is_empty()] {
                        summary.btn data-look="danger" { span.shut { "Deny " (all) "…" } span.opened { "Back" } }
                        div.field {
                            label for={ "deny-" (id) } { "Why not? " span.hint { "The agent reads this." } }
                            textarea id={ "deny-" (id) } name="reason" rows="2" { "\n" (reason) }
                        }
                        button.btn data-look="deny" name="decision" value="deny" formnovalidate { "Deny " (all) }
                    }
                    @if may_all.is_ok() { button.btn name="decision" value="approve" formnovalidate { "Approve " (all) " as asked" } }
                    button.btn data-look="primary" name="decision" value="marked" { span.marks { "Send marks: " } }
                }
            }
        }
    })
}

fn names(calls: &[(CardCall, &OpenCall)]) -> String {
    let mut names: Vec<&str> = calls.iter().map(|(card, _)| card.tool.name.as_str()).collect();
    names.dedup();
    line(&names.join(", "))
}

fn call(looked: &Looked<'_>, card: &CardCall, open: &OpenCall, (n, of): (usize, usize), schema: &Value) -> Markup {
    let (row, who) = (&looked.details.row, &looked.visitor.who);
    let id = &card.id.0;
    let mark = format!("call/{id}");
    let kept = looked.kept.get(&mark).unwrap_or_default();
    let prefix = format!("{}/", edits(id));
    let mistakes: Vec<(String, String)> = looked
        .kept
        .mistakes
        .iter()
        .filter(|(name, _)| name.starts_with(&prefix))
        .map(|(n, w)| (n.clone(), w.clone()))
        .collect();
    let form = editor(schema, row.id, card);
    let release = who.may_decide(row, once(open)).is_ok();
    let deny = who.may_decide(row, std::iter::empty()).is_ok();
    let edited = looked
        .details
        .story
        .calls
        .get(&card.id)
        .and_then(|call| call.asked.arguments.as_ref())
        .filter(|asked| **asked != card.arguments);
    html! {
        div.call role="group" aria-label={ "Call " (n) " of " (of) ", " (line(&card.tool.name)) } {
            div.call-head {
                span.n { (n) " of " (of) }
                h3 { (line(&card.tool.name)) }
                (effect(card.tool.effect))
                span.push.small.muted { (line(&card.tool.endpoint)) @if !card.tool.source.is_empty() { " (" (line(&card.tool.source)) ")" } }
            }
            div.call-body {
                @if !mistakes.is_empty() { (super::frame::summary(&row.id.to_string(), &mistakes)) }
                @if let Some(why) = &card.why { (notice("wait", &html! { p { b { "Asked, as " } (line(why)) } })) }
                (similar(looked, card))
                @if let Some(asked) = edited { (changed(asked, &card.arguments)) } @else { (members(&card.arguments)) }
                @match &card.preview {
                    Some(text) => { h4.lead { "What would change, says the tool" } (preview(text)) },
                    None if card.is_withheld() => p.small.muted { "The preview is only for who may decide about this tool." },
                    None => p.small.muted { "This tool has no preview." },
                }
                @if let Some(condition) = &card.precondition {
                    p.small.soft { (icon("check")) " Only while this holds: " code { (line(condition)) } ". It is looked at again before the write; if it has moved, nothing is written and you are asked again." }
                }
                div.call-foot {
                    @if let Some(verdict) = open.verdict.as_ref().filter(|_| !open.is_undecided()) {
                        p { b { @if verdict.approved { "Approved" } @else { "Denied" } } " by " (line(&verdict.by)) }
                    } @else if deny {
                        fieldset.seg {
                            legend.vh { "Decision for call " (n) ", " (line(&card.tool.name)) }
                            @if release {
                                label { input type="radio" name=(mark) value="approve" checked[kept == "approve"]; "Approve" }
                                label { input type="radio" name=(mark) value="edit" checked[kept == "edit"]; "Edit" }
                            }
                            label { input type="radio" name=(mark) value="deny" checked[kept == "deny"]; "Deny" }
                        }
                    }
                    details.more { summary { "Exactly what is sent" }
                        (code(&format!("Arguments of call {n}"), &serde_json::to_string_pretty(&card.arguments).unwrap_or_default()))
                    }
                }
                @if open.is_undecided() && release {
                    div.when.when-edit id=(super::form::id_of(&row.id.to_string(), &prefix)) tabindex="-1" {
                        @if form.is_too_long() { p.hint { "These are too many fields for a page: use " code { "leasehold approve --arguments" } "." } }
                        @else {
                            p.hint { "As you want them. They are checked against the tool's schema and kept as your edit." }
                            (form.show(&looked.kept.only_if(kept == "edit")))
                        }
                    }
                }
                @if open.is_undecided() && deny {
                    div.field.when.when-deny {
                        label for={ "why-" (row.id) "-" (n) } { "Why not? " span.hint { "The agent reads this." } }
                        textarea id={ "why-" (row.id) "-" (n) } name={ "reason/" (id) } rows="2" { "\n" (looked.kept.get(&format!("reason/{id}")).unwrap_or_default()) }
                    }
                }
            }
        }
    }
}

/// Arguments that a person has changed: what the agent asked for, and what would run.
fn changed(asked: &Map<String, Value>, now: &Map<String, Value>) -> Markup {
    let mut names: Vec<&String> = asked.keys().chain(now.keys()).collect();
    names.sort();
    names.dedup();
    let shown = |of: &Map<String, Value>, name: &String| match of.get(name) {
        Some(Value::String(text)) => super::text::block(text),
        Some(other) => super::text::block(&other.to_string()),
        None => String::new(),
    };
    html! {
        div.diff {
            div.diff-head.diff-row aria-hidden="true" { span { "Argument" } span { "The agent asked for" } span { "As edited" } }
            dl { @for name in names { div.diff-row {
                dt { (line(name)) }
                @if asked.get(name) == now.get(name) { dd.same { (shown(asked, name)) } dd.same { (shown(now, name)) } }
                @else {
                    dd.was { span.vh { "Asked for: " } del { (shown(asked, name)) } }
                    dd.will { span.vh { "As edited: " } ins { (shown(now, name)) } }
                }
            } } }
        }
    }
}

fn similar(looked: &Looked<'_>, card: &CardCall) -> Markup {
    let alike = looked.subject.similar.and_then(|similar| similar.get(&card.id));
    html! {
        @for similar in alike.into_iter().flatten() {
            div.notice data-tone="wait" {
                (icon("warn"))
                div {
                    p {
                        b { @if similar.same { "The same call" } @else { "A similar call" } @match similar.stage {
                            SimilarStage::Open => " may still start. ",
                            SimilarStage::Started => " was started, and nobody knows what became of it. ",
                            SimilarStage::Done => " is done. ",
                        } }
                        @if similar.run == looked.details.row.id { "In this run" } @else { "In run " (run_link(similar.run)) }
                        ", " (time(similar.at, looked.subject.now)) "."
                    }
                    @if !similar.same { (members(&similar.arguments)) }
                }
            }
        }
    }
}

/// What somebody typed into a form that does not stand any more, for using it again.
pub(super) fn typed(kept: &super::kept::Kept) -> Vec<(String, String)> {
    let reasons = kept.under("reason").filter(|(_, text)| !text.trim().is_empty()).map(|(_, text)| ("reason".to_owned(), text));
    let edits = kept.under("arg/").filter_map(|(name, text)| {
        let (call, name) = name.split_once('/')?;
        (kept.get(&format!("call/{call}")) == Some("edit")).then(|| (name.to_owned(), text))
    });
    let values = kept.under("v/").map(|(name, text)| (name.to_owned(), text));
    let shown = reasons.chain(edits).chain(values).filter(|(_, text)| !text.is_empty());
    shown.take(super::form::FIELDS_MAX).map(|(name, text)| (name, line(text))).collect()
}
