//! One run: what happened, in one sentence, and then everything that says so.

use super::{
    Run, Visitor,
    card::{Back, Looked, card, kinds},
    dead::cancel,
    frame::{Place, framed, refusal},
    kept::Kept,
    runs::lease,
    story,
    text::{block, chip, code, icon, line, time},
};
use crate::{
    api::{App, Problem},
    render::{sentence, span},
    wire::{dollars, settled},
};
use axum::{extract::State, http::StatusCode, response::Response};
use leasehold::{
    Details,
    run::{RunId, State as RunState},
};
use maud::{Markup, html};
use std::sync::Arc;

/// Characters of the task in a title.
const TITLE_CHARS_MAX: usize = 80;

pub(super) async fn page(State(app): State<Arc<App>>, visitor: Visitor, Run(id): Run) -> Response {
    match shown(&app, &visitor, id).await {
        Ok((title, main)) => framed(&app, &visitor, StatusCode::OK, &title, Place::Runs, &main).await,
        Err(problem) => refusal(true, &problem),
    }
}

/// What the run was asked, short.
fn task(details: &Details) -> String {
    let asked = details.story.request.as_ref().and_then(|request| request.messages.last()).map(|message| message.text.trim());
    match asked.filter(|text| !text.is_empty()) {
        Some(text) if text.chars().count() > TITLE_CHARS_MAX => {
            let cut: String = text.chars().take(TITLE_CHARS_MAX).collect();
            format!("{}…", line(&cut))
        }
        Some(text) => line(text),
        None => format!("A run of {}", line(&details.row.agent)),
    }
}

async fn shown(app: &Arc<App>, visitor: &Visitor, id: RunId) -> Result<(String, Markup), Problem> {
    app.seen(&visitor.who, id).await?;
    let details = app.details_with_similar(&visitor.who, id).await?;
    let chain = app.runtime().verify_chain(id, &[]).await;
    let kept = Kept::default();
    let looked =
        Looked { app, visitor, details: &details, subject: app.subject(&details), kept: &kept, back: Back::Run, open: true };
    let (row, subject) = (&details.row, looked.subject);
    let mut cards = Vec::new();
    for kind in kinds(&looked) {
        cards.push(card(&looked, kind).await);
    }
    let output = settled(row, subject.entries).and_then(|end| end.output);
    let error =
        crate::wire::error(row, subject.entries).filter(|error| row.state == RunState::Failed && !error.detail.is_empty());
    let state = row.state.as_str();
    let task = task(&details);
    let main = html! {
        div.narrow {
            nav.crumbs aria-label="Breadcrumb" { ol {
                li { a href="/runs" { "Runs" } }
                li { a href={ "/runs?agent=" (percent_encoding::utf8_percent_encode(&row.agent, percent_encoding::NON_ALPHANUMERIC)) } { (line(&row.agent)) } }
                li aria-current="page" { "…" (id.to_string().get(28..).unwrap_or_default()) }
            } }
            div.page-head {
                h1 { "Run of " (line(&row.agent)) }
                (chip(state, row.reason.map(|reason| reason.as_str())))
                div.actions { code.id { (id) } }
            }
            p.verdict { (block(&sentence(&subject).1)) }
            blockquote.says.gap-top { span.muted.small { "It was asked" } br; (task) }
            (totals(&looked))
            @if let Some(why) = subject.unserved { div.notice data-tone="wait" { (icon("warn")) p { (line(&why.to_string())) } } }
            @if let Some(why) = subject.unreadable { div.notice data-tone="bad" { (icon("cross")) p { "It is not shown whole: " (line(why)) } } }
            @if !cards.is_empty() { section.block aria-labelledby="h-waits" { h2 id="h-waits" { "Needs a person" } ol.items { @for card in &cards { (card) } } } }
            @if let Some(output) = &output { section.block aria-labelledby="h-out" { h2 id="h-out" { "Answer" } div.panel { div.panel-body { (code("Answer", output)) } } } }
            @if let Some(error) = &error { section.block aria-labelledby="h-err" { h2 id="h-err" { "Error" } (code("Error", &error.detail)) } }
            (story::effects(&details))
            (story::transcript(&details))
            (story::timeline(&details))
            section.block aria-labelledby="h-chain" {
                h2 id="h-chain" { "Audit chain" }
                div.panel.audit { @match &chain {
                    Ok(Ok(head)) => { span.row { (icon("link")) b { (head.sequence) " entries, unbroken" } } span.muted { "head" } code.id { (head.head) } span.muted { "checked just now" } },
                    Ok(Err(broken)) => { span.row { (icon("cross")) b { "Not as it was recorded" } } span { (line(&broken.to_string())) } },
                    Err(_) => { span.row { (icon("warn")) b { "Not checked: the record cannot be read" } } },
                } }
            }
            @if !row.state.is_settled() && row.state != RunState::Dead { section.block aria-label="Stop" { div.panel { (cancel(&looked)) } } }
        }
    };
    Ok((format!("{}: {task}", state.replace('_', " ")), main))
}

fn totals(looked: &Looked<'_>) -> Markup {
    let (row, now) = (&looked.details.row, looked.subject.now);
    let took = row.finished_at.map(|end| span(end.duration_since(row.created_at).unsigned_abs()));
    html! {
        dl.totals.gap-top {
            @match took { Some(took) => div { dt { "Took" } dd { (took) } }, None => div { dt { "Made" } dd { (time(row.created_at, now)) } } }
            div { dt { "Agent" } dd { (line(&row.agent)) } }
            div { dt { "Started by" } dd { (line(&row.initiator)) } }
            @if row.owner != row.initiator { div { dt { "Runs as" } dd { (line(&row.owner)) } } }
            @if let Some(team) = &row.team { div { dt { "Team" } dd { (line(team)) } } }
            div { dt { "Lease" } dd { (lease(row.epoch, row.lease.as_ref().map(|lease| lease.holder.as_str()))) } }
            div { dt { "Requeues" } dd { (row.requeues) } }
            div { dt { "Turns" } dd { (row.rounds) } }
            div { dt { "Tokens" } dd { (row.usage.input_tokens) " in, " (row.usage.output_tokens) " out" } }
            @if row.usage.cost_nano_usd > 0 { div { dt { "Cost" } dd { (format!("${:.4}", dollars(row.usage.cost_nano_usd))) } } }
            @if let Some(by) = row.attribution { div { dt { "Writes released by" } dd { (by.as_str().replace('_', " ")) } } }
        }
    }
}
