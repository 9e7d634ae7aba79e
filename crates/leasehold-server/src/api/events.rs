//! `/runs/{id}/events`: the journal, a page at once or as it grows. A stream reads the journal and nothing else: a hint of this process
//! only wakes it, and what another process or the sweep commits is seen by looking.

use super::{
    App, Caller,
    auth::Shown,
    extract::{Query, RunPath, Wants, words},
    hinted, limits,
    listen::Connection,
    live,
    problem::Problem,
    rests,
};
use crate::{
    access::Who,
    wire::{Event, Page},
};
use axum::{
    Extension, Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{
        IntoResponse as _, Response,
        sse::{Event as Sent, KeepAlive, Sse},
    },
};
use leasehold::{
    limits::PAGE_MAX,
    run::{Entry, EntryBody, RunId, Snapshot, State as RunState, withhold},
    store::ReadError,
};
use serde::Deserialize;
use serde_json::json;
use std::{convert::Infallible, sync::Arc};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, MissedTickBehavior},
};

words!(Until);

/// Until when a stream goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, strum::EnumString, strum::VariantNames, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Until {
    /// The run settled or is dead.
    #[default]
    Settled,
    /// Or it waits for a person.
    Waiting,
}

impl Until {
    fn over(self, row: &Snapshot) -> bool {
        match self {
            Self::Settled => row.state.is_settled() || row.state == RunState::Dead,
            Self::Waiting => rests(row),
        }
    }
}

/// Which entries.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct EventsQuery {
    /// Only entries after this number. `Last-Event-ID` wins over it.
    #[serde(default)]
    #[param(nullable = false)]
    after: Option<u64>,
    /// The same, as `next_cursor` names it.
    #[serde(default)]
    #[param(nullable = false)]
    cursor: Option<u64>,
    /// At most this many in a page.
    #[serde(default)]
    #[param(nullable = false, minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Until when a stream goes on.
    #[serde(default)]
    #[param(nullable = false, inline)]
    until: Option<Until>,
}

/// The number of a page's rows.
pub(super) fn page_size(limit: Option<u32>) -> Result<usize, Problem> {
    let limit = usize::try_from(limit.unwrap_or(limits::PAGE_DEFAULT)).unwrap_or(usize::MAX);
    if (1..=PAGE_MAX).contains(&limit) {
        Ok(limit)
    } else {
        Err(Problem::parameter("limit", format!("a page has from 1 to {PAGE_MAX} items")))
    }
}

fn last_seen(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.trim().parse().ok());
    let number = number.filter(|number| *number <= NUMBER_MAX);
    number.map(Some).ok_or_else(|| Problem::parameter("Last-Event-ID", "this is not the number of an entry"))
}

/// No run has more entries: the stores count them so far.
const NUMBER_MAX: u64 = i64::MAX.unsigned_abs();

fn numbered(name: &str, number: Option<u64>) -> Result<Option<u64>, Problem> {
    match number {
        Some(number) if number > NUMBER_MAX => Err(Problem::parameter(name, "this is not the number of an entry")),
        number => Ok(number),
    }
}

/// The journal of a run: a page, or with `Accept: text/event-stream` a stream.
///
/// A stream has an event for each entry, named after its kind, whose id is its sequence, and begins behind `Last-Event-ID`. It stays
/// open while the run waits and ends when it has settled or is dead. Between entries come events named `text` without an id: pieces of
/// a reply that a model of this very process is writing; they may be missing. Where a settled run has nothing after that id,
/// the answer is 204.
#[utoipa::path(get, path = "/runs/{id}/events", tag = "runs",
    params(("id" = String, Path, description = "The run", format = Uuid), EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, nullable = false, description = "The last entry that the client has")),
    responses(
        (status = 200, description = "A page of entries, or a stream of them", content(
            (Page<Event> = "application/json"), (String = "text/event-stream"))),
        (status = 204, description = "Nothing is left: the run has settled")))]
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Caller { who, shown }: Caller,
    connection: Option<Extension<Connection>>,
    headers: HeaderMap,
    RunPath(id): RunPath,
    Query(query): Query<EventsQuery>,
) -> Result<Response, Problem> {
    let limit = page_size(query.limit)?;
    let (after, cursor) = (numbered("after", query.after)?, numbered("cursor", query.cursor)?);
    let last = last_seen(&headers)?.or(after).or(cursor);
    let next = last.map_or(0, |n| n.saturating_add(1));
    let row = app.seen(&who, id).await?;
    if Wants::of(&headers) == Wants::Events {
        let until = query.until.unwrap_or_default();
        if until.over(&row) && next >= row.sequence {
            return Ok(StatusCode::NO_CONTENT.into_response());
        }
        let connection = connection.map(|Extension(connection)| connection);
        let reader = Reader { connection, shown, _place: app.stream_place()? };
        return Ok(stream(&app, &who, id, next, until, reader));
    }
    let entries = app.events_page(&who, id, next, limit).await?;
    let more = entries.last().filter(|last| last.sequence + 1 < row.sequence);
    let next_cursor = more.map(|last| last.sequence.to_string());
    Ok(Json(Page { items: entries.iter().map(Event::from).collect(), next_cursor }).into_response())
}

impl App {
    /// Entries of a run, as the caller may see them.
    async fn events_page(&self, who: &Who, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError> {
        let mut entries = self.runtime.events_page(id, from, limit).await?;
        entries.iter_mut().for_each(|entry| withhold(&mut entry.body, &|tool| who.decides(tool)));
        Ok(entries)
    }
}

/// Whoever reads a stream.
pub(super) struct Reader {
    /// What is closed where it does not.
    pub(super) connection: Option<Connection>,
    /// What it showed, which has to go on counting.
    pub(super) shown: Shown,
    /// Its place.
    pub(super) _place: OwnedSemaphorePermit,
}

/// The events of a run from entry number `next` on.
pub(super) fn stream(app: &Arc<App>, who: &Who, id: RunId, next: u64, until: Until, reader: Reader) -> Response {
    let (sender, receiver) = mpsc::channel(limits::STREAM_BUFFER);
    let feed = Feed { app: Arc::clone(app), who: who.clone(), id, next, until, sender, reader };
    tokio::spawn(feed.run());
    let events = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|event| (Ok::<_, Infallible>(event), receiver))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(limits::KEEP_ALIVE)).into_response();
    let headers = response.headers_mut();
    // A proxy must not hold events back.
    headers.insert("x-accel-buffering", header::HeaderValue::from_static("no"));
    response
}

/// Whoever reads has gone, or left an event for too long.
struct Gone;

struct Feed {
    app: Arc<App>,
    who: Who,
    id: RunId,
    next: u64,
    until: Until,
    sender: mpsc::Sender<Sent>,
    reader: Reader,
}

impl Feed {
    /// Dropping the sender ends the stream.
    async fn run(mut self) {
        // Subscribed first, then looked, and looked again anyway.
        let mut hints = self.app.runtime.engine().subscribe();
        let mut pieces = self.app.texts.subscribe();
        let app = Arc::clone(&self.app);
        let mut checks = tokio::time::interval_at(Instant::now() + limits::RECHECK, limits::RECHECK);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            match self.look(&mut pieces).await {
                Ok(false) => {}
                Ok(true) | Err(Gone) => return,
            }
            let id = self.id;
            let text = tokio::select! {
                biased;
                () = app.ending.cancelled() => return,
                () = self.sender.closed() => return,
                _ = checks.tick() => match app.known(&self.reader.shown).await {
                    Ok(Some(who)) => {
                        self.who = who;
                        None
                    }
                    Ok(None) => return,
                    // Asked again at the next look.
                    Err(_) => None,
                },
                // What was committed before a piece was said is told before it.
                () = hinted(&mut hints, id) => None,
                text = live::next(&mut pieces, id) => Some(text),
                () = tokio::time::sleep(limits::POLL) => None,
            };
            if let Some(text) = text
                && self.text(&text).await.is_err()
            {
                return;
            }
        }
    }

    /// Sends what is there; true where nothing more comes.
    async fn look(&mut self, pieces: &mut tokio::sync::broadcast::Receiver<live::Piece>) -> Result<bool, Gone> {
        let row = match self.app.runtime.store().load(self.id).await {
            Ok(Some(row)) => row,
            Err(ReadError::Corrupt { rest: Some(rest), .. }) => *rest,
            // Asked again: it is only watched.
            Err(ReadError::Unavailable(_)) => return Ok(false),
            Ok(None) | Err(ReadError::Corrupt { .. }) => return Ok(true),
        };
        // The row was read first: what it counts is there to be read. Pieces that were said until now belong to the last reply of
        // that, or to one that is not there yet.
        let mut texts = Vec::new();
        if self.next < row.sequence {
            self.app.texts.catch_up();
            texts = live::waiting(pieces, self.id);
        }
        while self.next < row.sequence {
            match self.app.events_page(&self.who, self.id, self.next, limits::STREAM_PAGE).await {
                Ok(entries) if entries.is_empty() => return Ok(false),
                Ok(entries) => {
                    let is_last = entries.last().is_some_and(|last| last.sequence + 1 >= row.sequence);
                    let reply = entries.iter().rposition(|entry| matches!(entry.body, EntryBody::ModelReply(_)));
                    for (index, entry) in entries.iter().enumerate() {
                        if is_last && Some(index) == reply {
                            self.texts(&mut texts).await?;
                        }
                        let event = Sent::default().id(entry.sequence.to_string()).event(entry.body.kind());
                        self.send(event.json_data(Event::from(entry))).await?;
                        self.next = entry.sequence + 1;
                    }
                }
                Err(ReadError::Unavailable(_)) => return Ok(false),
                Err(ReadError::Corrupt { .. }) => {
                    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", "an entry does not decode");
                    self.send(Sent::default().event("problem").json_data(problem)).await?;
                    return Ok(true);
                }
            }
        }
        self.texts(&mut texts).await?;
        Ok(self.until.over(&row))
    }

    async fn texts(&self, texts: &mut Vec<Arc<str>>) -> Result<(), Gone> {
        for text in texts.drain(..) {
            self.text(&text).await?;
        }
        Ok(())
    }

    async fn text(&self, text: &str) -> Result<(), Gone> {
        self.send(Sent::default().event("text").json_data(json!({ "text": text }))).await
    }

    /// A reader that leaves an event for too long is cut off, and comes back where it was.
    async fn send(&self, event: Result<Sent, axum::Error>) -> Result<(), Gone> {
        let event = event.map_err(|_| Gone)?;
        let sent = tokio::select! {
            sent = self.sender.send_timeout(event, limits::READER_PATIENCE) => sent,
            () = self.app.ending.cancelled() => return Err(Gone),
        };
        if let Err(mpsc::error::SendTimeoutError::Timeout(_)) = &sent
            && let Some(connection) = &self.reader.connection
        {
            connection.cut();
        }
        sent.map_err(|_| Gone)
    }
}
