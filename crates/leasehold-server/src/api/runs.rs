//! `/runs` and `/runs/{id}`: what there is, as JSON or as the screen that the command prints.

use super::{
    App, Caller,
    events::page_size,
    extract::{Query, RunPath, Wants},
    problem::Problem,
};
use crate::{
    access::Who,
    render::{runs_table, show},
    terminal::Screen,
    wire::{self, Page, RunLine},
};
use axum::{
    Json,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse as _, Response},
};
use jiff::Timestamp;
use leasehold::{
    run::{Reason, RunId, State as RunState},
    store::{Filter, Listed},
};
use serde::Deserialize;
use std::sync::Arc;
use strum::IntoEnumIterator as _;
use utoipa::openapi::{ObjectBuilder, Schema, Type};

/// A screen as text.
pub(super) fn text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// Which runs.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// In this state.
    #[serde(default)]
    #[param(schema_with = states)]
    pub(crate) state: Option<RunState>,
    /// Of this agent.
    #[serde(default)]
    #[param(nullable = false)]
    pub(crate) agent: Option<String>,
    /// Of this owner.
    #[serde(default)]
    #[param(nullable = false)]
    pub(crate) owner: Option<String>,
    /// With this reason.
    #[serde(default)]
    #[param(schema_with = reasons)]
    pub(crate) reason: Option<Reason>,
    /// Made since then.
    #[serde(default)]
    #[param(nullable = false, value_type = Option<String>, format = DateTime)]
    pub(crate) since: Option<Timestamp>,
    /// At most this many.
    #[serde(default)]
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    pub(crate) limit: Option<u32>,
    /// Go on after this run, as `next_cursor` names it.
    #[serde(default)]
    #[param(nullable = false, value_type = Option<String>, format = Uuid)]
    pub(crate) cursor: Option<RunId>,
}

fn words(words: impl Iterator<Item = &'static str>) -> Schema {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words)).build().into()
}

fn states() -> Schema {
    words(RunState::iter().map(RunState::as_str))
}

fn reasons() -> Schema {
    words(Reason::iter().map(Reason::as_str))
}

/// Runs, newest first.
#[utoipa::path(get, path = "/runs", tag = "runs", params(ListQuery),
    responses((status = 200, description = "A page", content((Page<RunLine> = "application/json"), (String = "text/plain")))))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    headers: HeaderMap,
    Query(query): Query<ListQuery>,
) -> Result<Response, Problem> {
    let (rows, more) = app.listed(&who, &query).await?;
    if Wants::of(&headers) == Wants::Text {
        let mut screen = Screen::new(false);
        runs_table(&mut screen, &rows, app.wall.now());
        return Ok(text(screen.into_text()));
    }
    let next_cursor = rows.last().filter(|_| more).map(|row| row.id.to_string());
    Ok(Json(Page { items: rows.iter().map(RunLine::from).collect(), next_cursor }).into_response())
}

impl App {
    /// A page of the runs that the caller may see, and whether there are more.
    pub(crate) async fn listed(&self, who: &Who, query: &ListQuery) -> Result<(Vec<Listed>, bool), Problem> {
        let limit = page_size(query.limit)?;
        let filter = Filter {
            states: query.state.into_iter().collect(),
            agent: query.agent.clone(),
            owner: query.owner.clone(),
            reason: query.reason.map(|reason| reason.as_str().to_owned()),
            since: query.since,
            visible_to: who.visible(),
            flagged_only: false,
        };
        let rows = self.runtime.list(&filter, query.cursor, limit).await?;
        // A store gives no more than a page, so whether there is more is a question of its own.
        let more = match rows.last() {
            Some(last) if rows.len() == limit => !self.runtime.list(&filter, Some(last.id), 1).await?.is_empty(),
            _ => false,
        };
        Ok((rows, more))
    }

    /// The screen of a run.
    async fn run_text(&self, who: &Who, id: RunId) -> Result<String, Problem> {
        self.seen(who, id).await?;
        let mut screen = Screen::new(false);
        show(&mut screen, &self.subject(&self.details_with_similar(who, id).await?));
        Ok(screen.into_text())
    }
}

/// A run, as it stands.
#[utoipa::path(get, path = "/runs/{id}", tag = "runs", params(("id" = String, Path, description = "The run", format = Uuid)),
    responses((status = 200, description = "The run", content((wire::Run = "application/json"), (String = "text/plain")))))]
pub(crate) async fn show_run(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    headers: HeaderMap,
    RunPath(id): RunPath,
) -> Result<Response, Problem> {
    if Wants::of(&headers) == Wants::Text {
        return Ok(text(app.run_text(&who, id).await?));
    }
    app.seen(&who, id).await?;
    let details = app.details_with_similar(&who, id).await?;
    Ok(Json(wire::Run::new(&app.subject(&details))).into_response())
}
