//! `/inbox`: what needs a person, most urgent first, as far as the caller may see it.

use super::{
    App, Caller,
    events::page_size,
    extract::{Query, Wants},
    problem::Problem,
    runs::text,
};
use crate::{
    access::{Role, Who},
    render::{about, inbox_table},
    terminal::Screen,
    wire::{InboxItem, Page},
};
use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use jiff::Timestamp;
use leasehold::{InboxKind, run::RunId, store::Listed};
use serde::Deserialize;
use std::sync::Arc;

/// A page of it.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct InboxQuery {
    /// At most this many.
    #[serde(default)]
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Go on after this item, as `next_cursor` names it.
    #[serde(default)]
    #[param(
        nullable = false,
        pattern = "^(in_doubt|approval|question|input|duplicate|contradicted|dead)_[0-9]{1,13}_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
    )]
    cursor: Option<String>,
}

/// Where an item stands: by urgency, then the longest waiting first.
pub(crate) type Place = (InboxKind, Timestamp, RunId);

pub(crate) const KINDS: [InboxKind; 7] = [
    InboxKind::InDoubt,
    InboxKind::Approval,
    InboxKind::Question,
    InboxKind::Input,
    InboxKind::Duplicate,
    InboxKind::Contradicted,
    InboxKind::Dead,
];

pub(crate) fn place((kind, listed): &(InboxKind, Listed)) -> Place {
    (*kind, listed.since, listed.id)
}

pub(crate) fn cursor((kind, since, id): Place) -> String {
    format!("{}_{}_{id}", kind.as_str(), since.as_millisecond())
}

pub(crate) fn from_cursor(text: &str) -> Option<Place> {
    let (rest, id) = text.rsplit_once('_')?;
    let (kind, since) = rest.rsplit_once('_')?;
    let kind = KINDS.into_iter().find(|known| known.as_str() == kind)?;
    Some((kind, Timestamp::from_millisecond(since.parse().ok()?).ok()?, id.parse().ok()?))
}

impl App {
    /// Whether the caller may see what is listed.
    async fn shows(&self, who: &Who, listed: &Listed) -> bool {
        if who.needs(Role::Operator).is_ok() {
            return true;
        }
        // The rules ask about pending calls, which only the row has. One that cannot be read is the operator's.
        self.row(listed.id).await.is_ok_and(|row| who.sees(&row).is_ok())
    }
}

/// What needs a person, most urgent first.
#[utoipa::path(get, path = "/inbox", tag = "people", params(InboxQuery),
    responses((status = 200, description = "A page", content((Page<InboxItem> = "application/json"), (String = "text/plain")))))]
pub(crate) async fn inbox(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    headers: HeaderMap,
    Query(query): Query<InboxQuery>,
) -> Result<Response, Problem> {
    let limit = page_size(query.limit)?;
    let after = match &query.cursor {
        None => None,
        Some(text) => Some(from_cursor(text).ok_or_else(|| Problem::parameter("cursor", "this is not a cursor of the inbox"))?),
    };
    let (items, more) = app.waiting(&who, None, after, limit).await?;
    if Wants::of(&headers) == Wants::Text {
        return Ok(text(app.screen_of(&items).await));
    }
    let next_cursor = items.last().filter(|_| more).map(|item| cursor(place(item)));
    let mut shown = Vec::with_capacity(items.len());
    for (kind, listed) in &items {
        let _place = app.journal_place().await;
        let mut details = app.runtime.details(listed.id).await.map_err(|error| error.to_string());
        if let Ok(details) = &mut details {
            details.withhold(|tool| who.decides(tool));
        }
        let unreadable = details.as_ref().ok().and_then(|details| details.unreadable.clone());
        let read = details.as_ref().map(|details| app.subject(details)).map_err(Clone::clone);
        shown.push(InboxItem::new(*kind, listed, read, unreadable));
    }
    Ok(Json(Page { items: shown, next_cursor }).into_response())
}

impl App {
    /// What the caller sees of what needs a person, of one kind or of all, and whether there is more.
    pub(crate) async fn waiting(
        &self,
        who: &Who,
        only: Option<InboxKind>,
        after: Option<Place>,
        limit: usize,
    ) -> Result<(Vec<(InboxKind, Listed)>, bool), Problem> {
        let mut all = self.runtime.inbox(usize::MAX).await?;
        all.retain(|(kind, _)| only.is_none_or(|only| only == *kind));
        all.sort_by_key(place);
        let mut items = Vec::new();
        for item in all.into_iter().filter(|item| after.is_none_or(|after| place(item) > after)) {
            if !self.shows(who, &item.1).await {
                continue;
            }
            if items.len() == limit {
                return Ok((items, true));
            }
            items.push(item);
        }
        Ok((items, false))
    }

    async fn screen_of(&self, items: &[(InboxKind, Listed)]) -> String {
        let mut rows: Vec<(&'static str, &Listed, String)> = Vec::with_capacity(items.len());
        for (kind, listed) in items {
            rows.push((kind.as_str(), listed, about(*kind, listed, self.row(listed.id).await.ok().as_ref())));
        }
        let mut screen = Screen::new(false);
        inbox_table(&mut screen, &rows, self.wall.now());
        screen.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_names_a_place_and_nothing_else_does() {
        for kind in KINDS {
            let place = (kind, Timestamp::from_millisecond(1_764_000_000_123).unwrap(), RunId::new());
            assert_eq!(from_cursor(&cursor(place)), Some(place));
        }
        assert!(KINDS.is_sorted());
        for wrong in ["", "dead", "dead_1_x", "alive_1_00000000-0000-7000-8000-000000000000"] {
            assert_eq!(from_cursor(wrong), None, "{wrong}");
        }
    }
}
