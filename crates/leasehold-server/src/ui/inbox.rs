//! What waits for a person, most urgent first.

use super::{
    Visitor,
    card::{Back, Looked, card},
    frame::{COUNTED_MAX, Count, Place, counted, framed, refusal},
    kept::Kept,
    text::{icon, line, run_link, time},
};
use crate::{
    api::{
        App, Problem,
        inbox::{KINDS, cursor, from_cursor, place},
    },
    render::about,
};
use axum::{
    extract::{Query, State},
    http::StatusCode,
    response::Response,
};
use leasehold::{Details, InboxKind, store::Listed};
use maud::{Markup, html};
use serde::Deserialize;
use std::sync::Arc;

/// Cards of a page.
const CARDS_MAX: usize = 20;

/// Which.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    kind: Option<String>,
    cursor: Option<String>,
}

fn words(kind: InboxKind) -> (&'static str, &'static str) {
    match kind {
        InboxKind::InDoubt => ("doubt", "In doubt"),
        InboxKind::Approval => ("hand", "Approve"),
        InboxKind::Question => ("form", "Question"),
        InboxKind::Input => ("form", "Input"),
        InboxKind::Duplicate => ("warn", "Landed twice"),
        InboxKind::Contradicted => ("warn", "Contradicted"),
        InboxKind::Dead => ("stop", "Dead letter"),
    }
}

pub(super) async fn page(State(app): State<Arc<App>>, visitor: Visitor, Query(asked): Query<Asked>) -> Response {
    match shown(&app, &visitor, &asked).await {
        Ok((main, Some(count))) => counted(&app, &visitor, StatusCode::OK, "Inbox", Place::Inbox, &main, Some(count)),
        Ok((main, None)) => framed(&app, &visitor, StatusCode::OK, "Inbox", Place::Inbox, &main).await,
        Err(problem) => refusal(true, &problem),
    }
}

async fn shown(app: &Arc<App>, visitor: &Visitor, asked: &Asked) -> Result<(Markup, Option<Count>), Problem> {
    let only = asked.kind.as_deref().and_then(|kind| KINDS.into_iter().find(|known| known.as_str() == kind));
    let after = asked.cursor.as_deref().and_then(from_cursor);
    // The first page of all is counted with one look.
    let is_whole = only.is_none() && after.is_none();
    let most = if is_whole { COUNTED_MAX } else { CARDS_MAX };
    let (mut items, mut more) = app.waiting(&visitor.who, only, after, most).await?;
    let count = is_whole.then_some((items.len(), more));
    more |= items.len() > CARDS_MAX;
    items.truncate(CARDS_MAX);
    let mut cards = Vec::with_capacity(items.len());
    for (index, (kind, listed)) in items.iter().enumerate() {
        cards.push(match app.details_with_similar(&visitor.who, listed.id).await {
            Ok(details) => whole(app, visitor, &details, *kind, index == 0).await,
            // One that cannot be read hides no other.
            Err(_) => unread(app, *kind, listed),
        });
    }
    let next = items.last().filter(|_| more).map(|item| cursor(place(item)));
    let main = html! {
        div.narrow {
            div.page-head {
                h1 { "Inbox" }
                p.soft { @match (items.len(), more) {
                    (n, _) if after.is_some() => { b { (n) } " more that wait for a person" },
                    (0, false) => { "nothing waits" @if only.is_none() { " for a person" } },
                    (1, false) => { b { "1" } " waits for a person" },
                    (n, false) => { b { (n) } " wait for a person" },
                    (n, true) => { "the " b { (n) } " most urgent of those that wait for a person" },
                } }
            }
            nav.row.row-wide.small aria-label="Kinds" {
                ul.tabs {
                    li { a href="/" aria-current=[only.is_none().then_some("true")] { "All" } }
                    @for kind in KINDS { @let (picture, word) = words(kind);
                        li { a href={ "/?kind=" (kind.as_str()) } aria-current=[(only == Some(kind)).then_some("true")] { (icon(picture)) (word) } }
                    }
                }
                p.push.muted.tiny.sort-note { "Most urgent first: writes in doubt, decisions, then the rest; the longest waiting first" }
            }
            @if cards.is_empty() && only.is_some() { p.gap-top { "Nothing of this kind waits for a person." } } @else if cards.is_empty() { (empty()) } @else { ol.items.gap-top { @for card in &cards { (card) } } }
            @if let Some(next) = next {
                nav.pager aria-label="Pages" { a.btn href={ "/?" @if let Some(only) = only { "kind=" (only.as_str()) "&" } "cursor=" (next) } { "More" } }
            }
        }
    };
    Ok((main, count))
}

async fn whole(app: &Arc<App>, visitor: &Visitor, details: &Details, kind: InboxKind, open: bool) -> Markup {
    let kept = Kept::default();
    card(&Looked { app, visitor, details, subject: app.subject(details), kept: &kept, back: Back::Inbox, open }, kind).await
}

fn unread(app: &App, kind: InboxKind, listed: &Listed) -> Markup {
    let (picture, word) = words(kind);
    html! {
        li { details.card data-kind="dead" {
            summary {
                span.chev { (icon("chev")) }
                span.kind { (icon(picture)) (word) }
                h2 { "The record of this run cannot be read" }
                span.sub { (line(&about(kind, listed, None))) }
                span.since { (time(listed.since, app.now())) }
            }
            div.card-body { div.card-main { p { "Run " (run_link(listed.id)) ", agent " (line(&listed.agent)) } } }
        } }
    }
}

fn empty() -> Markup {
    let kind = |kind: &'static str, picture: &'static str, word: &'static str, text: &'static str| {
        html! { li data-kind=(kind) { h2.kind { (icon(picture)) (word) } p { (text) } } }
    };
    html! {
        div.empty.stack {
            p { "Nothing needs you. What appears here:" }
            ul.empty-kinds aria-label="What appears here" {
                (kind("approve", "hand", "Approve", "An agent asked for a write that needs a person. You see it before it happens; nothing of that turn has run."))
                (kind("doubt", "doubt", "In doubt", "A write went out and its answer was lost. It is not repeated until you say whether it landed."))
                (kind("input", "form", "Input", "An agent needs an answer that it cannot look up. You get a form, not a chat."))
                (kind("dead", "stop", "Dead letter", "leasehold refuses to go on by itself and says why. Mend the cause, then redrive; finished calls stay finished."))
            }
            p.soft { "To see one of each, in a terminal:" }
            pre.code tabindex="0" role="group" aria-label="Commands to try" { "leasehold demo" }
        }
    }
}
