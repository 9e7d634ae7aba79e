//! The list of runs, newest first.

use super::{
    Visitor,
    frame::{Place, framed, refusal},
    text::{chip, icon, line, time},
};
use crate::api::{App, Problem, runs::ListQuery};
use axum::{
    extract::{Query, State},
    http::StatusCode,
    response::{IntoResponse as _, Redirect, Response},
};
use leasehold::{
    run::{Reason, State as RunState},
    store::Listed,
};
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use std::{fmt::Write as _, sync::Arc};
use strum::IntoEnumIterator as _;

/// Rows of a page.
const ROWS_MAX: u32 = 50;

/// Which. A filter of a form is there and empty where nobody chose.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Asked {
    #[serde(default)]
    q: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    agent: String,
    #[serde(default)]
    owner: String,
    #[serde(default)]
    cursor: String,
}

impl Asked {
    fn query(&self) -> ListQuery {
        let some = |text: &str| Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned);
        ListQuery {
            state: self.state.parse().ok(),
            reason: self.reason.parse().ok(),
            agent: some(&self.agent),
            owner: some(&self.owner),
            cursor: self.cursor.parse().ok(),
            limit: Some(ROWS_MAX),
            since: None,
        }
    }
    /// The same list from another row on.
    fn path(&self, cursor: &str) -> String {
        let mut path = "/runs?".to_owned();
        for (name, value) in [("state", &self.state), ("reason", &self.reason), ("agent", &self.agent), ("owner", &self.owner)]
        {
            if !value.is_empty() {
                write!(path, "{name}={}&", utf8_percent_encode(value, NON_ALPHANUMERIC)).ok();
            }
        }
        path + "cursor=" + cursor
    }
    fn is_filtered(&self) -> bool {
        [&self.q, &self.state, &self.reason, &self.agent, &self.owner].into_iter().any(|text| !text.trim().is_empty())
    }
}

pub(super) async fn page(State(app): State<Arc<App>>, visitor: Visitor, Query(asked): Query<Asked>) -> Response {
    let wanted = asked.q.trim();
    let mut missing = None;
    if !wanted.is_empty() {
        // Whether it is not there, not theirs or one of several is the same answer.
        let found = app.runtime().find(wanted.trim_start_matches('…')).await;
        match found {
            Ok(id) if app.seen(&visitor.who, id).await.is_ok() => return Redirect::to(&format!("/runs/{id}")).into_response(),
            _ => missing = Some(wanted),
        }
    }
    match shown(&app, &visitor, &asked, missing).await {
        Ok(main) => framed(&app, &visitor, StatusCode::OK, "Runs", Place::Runs, &main).await,
        Err(problem) => refusal(true, &problem),
    }
}

async fn shown(app: &Arc<App>, visitor: &Visitor, asked: &Asked, missing: Option<&str>) -> Result<Markup, Problem> {
    let (rows, more) = app.listed(&visitor.who, &asked.query()).await?;
    let next = rows.last().filter(|_| more).map(|row| asked.path(&row.id.to_string()));
    let now = app.now();
    Ok(html! {
        div.page-head { h1 { "Runs" } p.soft { "newest first" } }
        @if let Some(missing) = missing {
            div.notice data-tone="wait" role="status" { (icon("warn")) p { "No single run of yours has an id that ends in " code { (line(missing)) } ". Give 4 of its digits or more, from the end." } }
        }
        div.panel {
            form.filters method="get" action="/runs" role="search" aria-label="Filter runs" {
                div.field.grow { label for="q" { "Id, or its end" } input id="q" name="q" type="search" value=(asked.q) spellcheck="false"; }
                div.field { label for="fs" { "State" } select id="fs" name="state" {
                    option value="" { "any" }
                    @for state in RunState::iter() { option value=(state.as_str()) selected[asked.state == state.as_str()] { (state.as_str().replace('_', " ")) } }
                } }
                div.field { label for="fr" { "Reason" } select id="fr" name="reason" {
                    option value="" { "any" }
                    @for reason in Reason::iter() { option value=(reason.as_str()) selected[asked.reason == reason.as_str()] { (reason.as_str().replace('_', " ")) } }
                } }
                div.field { label for="fa" { "Agent" } input id="fa" name="agent" type="text" value=(asked.agent) autocomplete="off"; }
                div.field { label for="fo" { "Owner" } input id="fo" name="owner" type="text" value=(asked.owner) autocomplete="off"; }
                div.row { button.btn { "Filter" } a.btn data-look="quiet" href="/runs" { "Clear" } }
            }
            @if rows.is_empty() {
                div.empty { p { @if asked.is_filtered() { "No run of yours is like that." } @else { "No run yet. In a terminal: " code { "leasehold run \"..\"" } } } }
            } @else {
                div.scroll tabindex="0" role="region" aria-label="Runs, scrolls sideways" {
                    table.table.cards-on-phone role="table" {
                        caption.vh { "Runs, newest first" }
                        thead role="rowgroup" { tr role="row" {
                            @for head in ["Run", "State", "Agent", "Owner", "Write in flight", "Lease", "Made", "Since"] { th role="columnheader" scope="col" { (head) } }
                        } }
                        tbody role="rowgroup" { @for row in &rows { (line_of(row, now)) } }
                    }
                }
            }
            @if let Some(next) = next { nav.pager aria-label="Pages" { a.btn href=(next) rel="next" { "Older" } } }
        }
    })
}

fn line_of(row: &Listed, now: jiff::Timestamp) -> Markup {
    let id = row.id.to_string();
    html! {
        tr role="row" {
            th role="rowheader" scope="row" { a href={ "/runs/" (id) } title=(id) { code.id { "…" (id.get(28..).unwrap_or(&id)) } } }
            td role="cell" { (chip(&row.state, row.reason.as_deref())) @if let Some(reason) = &row.reason { span.sub { (line(&reason.replace('_', " "))) } } }
            td role="cell" data-l="Agent" { (line(&row.agent)) }
            td role="cell" data-l="Owner" { (line(&row.owner)) @if let Some(team) = &row.team { span.sub { "team " (line(team)) } } }
            td role="cell" data-l="Write" { @if let Some(tool) = &row.fence_tool { span.tag.fence-tag { (icon("fence")) (line(tool)) } } @if row.duplicates + row.contradictions > 0 { span.tag { (icon("warn")) "look at it" } } }
            td role="cell" data-l="Lease" { (lease(row.epoch, row.holder.as_deref())) }
            td role="cell" data-l="Made" { (time(row.created_at, now)) }
            td role="cell" data-l="Since" { (time(row.since, now)) }
        }
    }
}

/// The epoch decides, and the holder's name explains.
pub(super) fn lease(epoch: u64, holder: Option<&str>) -> Markup {
    html! {
        span.lease data-live=[holder.is_none().then_some("no")] {
            b { span.vh { "epoch " } "e" (epoch) } @if let Some(holder) = holder { span { (line(holder)) } }
        }
    }
}
