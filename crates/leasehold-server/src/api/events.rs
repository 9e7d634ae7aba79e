//! `/runs/{id}/events`: the journal, a page at once or as it grows. A stream reads the journal and nothing else: a hint of this process
//! only wakes it, and what another process or the sweep commits is seen by looking.

use super::{
    App, Caller,
    auth::Shown,
    extract::{Query, RunPath, Wants, words},
    hinted, limits,
    listen::Connection,
    live::{self, Said},
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
    agent::tool::Progress,
    limits::PAGE_MAX,
    run::{Entry, EntryBody, RunId, Snapshot, State as RunState, withhold},
    store::ReadError,
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{convert::Infallible, sync::Arc};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
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
/// a reply that a model of this very process is writing; they may be missing. One named `discarded` says that the pieces before it
/// are no part of the reply. Where a settled run has nothing after that id, the answer is 204.
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
    let place = app.journal_place().await;
    let entries = app.events_page(&who, id, next, limit).await?;
    drop(place);
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
    let room = Arc::new(Semaphore::new(limits::STREAM_BYTES));
    let feed =
        Feed { app: Arc::clone(app), who: who.clone(), id, next, page: limits::STREAM_PAGE, until, sender, room, reader };
    tokio::spawn(feed.run());
    let events = futures::stream::unfold(receiver, |mut receiver: mpsc::Receiver<Taken>| async {
        // What is taken makes room.
        receiver.recv().await.map(|(event, _room)| (Ok::<_, Infallible>(event), receiver))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(limits::KEEP_ALIVE)).into_response();
    let headers = response.headers_mut();
    // A proxy must not hold events back.
    headers.insert("x-accel-buffering", header::HeaderValue::from_static("no"));
    response
}

/// Whoever reads has gone, or left an event for too long.
struct Gone;

/// An event as it is sent, and how much room it needs.
struct Framed {
    sent: Sent,
    bytes: u32,
}

impl Framed {
    fn new(event: Sent, data: &impl Serialize) -> Result<Self, Gone> {
        let text = serde_json::to_string(data).map_err(|_| Gone)?;
        // One that needs more than all has all for itself.
        let bytes = u32::try_from(text.len().min(limits::STREAM_BYTES)).map_err(|_| Gone)?;
        Ok(Self { sent: event.data(text), bytes })
    }
    fn piece(said: &Said) -> Result<Self, Gone> {
        match said {
            Said::Text(text) => Self::new(Sent::default().event("text"), &json!({ "text": text })),
            Said::Discarded(why) => Self::new(Sent::default().event("discarded"), &json!({ "why": why })),
            Said::Progress(call, Progress { value, total, message }) => {
                let data = json!({ "call_id": call, "value": value, "total": total, "message": message });
                Self::new(Sent::default().event("progress"), &data)
            }
            Said::Log(call, level, text) => {
                Self::new(Sent::default().event("log"), &json!({ "call_id": call, "level": level, "text": text }))
            }
        }
    }
}

/// An event on its way, with the room that it takes until it is read.
type Taken = (Sent, OwnedSemaphorePermit);

struct Feed {
    app: Arc<App>,
    who: Who,
    id: RunId,
    next: u64,
    /// Entries that are read at once: one for a reader that is behind, more again while it keeps up.
    page: usize,
    until: Until,
    sender: mpsc::Sender<Taken>,
    room: Arc<Semaphore>,
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
                _ = checks.tick() => if self.may_read().await { None } else { return },
                // What was committed before a piece was said is told before it.
                () = hinted(&mut hints, id) => None,
                text = live::next(&mut pieces, id) => Some(text),
                () = tokio::time::sleep(limits::POLL) => None,
            };
            if let Some(text) = text
                && self.say(&text).await.is_err()
            {
                return;
            }
        }
    }

    /// Who reads is still known, and may still see the run. Where there is no answer it is asked again.
    async fn may_read(&mut self) -> bool {
        match self.app.known(&self.reader.shown).await {
            Ok(Some(who)) => {
                self.who = who;
                match self.app.seen(&self.who, self.id).await {
                    Ok(_) => true,
                    Err(problem) => problem.code != Problem::not_found().code,
                }
            }
            Ok(None) => false,
            Err(_) => true,
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
        let (app, mut texts) = (Arc::clone(&self.app), Vec::new());
        if self.next < row.sequence {
            self.app.texts.catch_up();
            let (of_calls, of_replies) = live::waiting(pieces, self.id).into_iter().partition(Said::is_of_a_call);
            texts = of_replies;
            // What a call has said until now is told before it is told that it is over.
            for said in Vec::from_iter::<Vec<Said>>(of_calls) {
                self.offer(Framed::piece(&said)?)?;
            }
        }
        while self.next < row.sequence {
            let place = app.journal_place().await;
            let entries = match self.app.events_page(&self.who, self.id, self.next, self.page).await {
                Ok(entries) if entries.is_empty() => return Ok(false),
                Ok(entries) => entries,
                Err(ReadError::Unavailable(_)) => return Ok(false),
                Err(ReadError::Corrupt { .. }) => {
                    let problem = Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", "an entry does not decode");
                    drop(place);
                    self.send(Framed::new(Sent::default().event("problem"), &problem)?).await?;
                    return Ok(true);
                }
            };
            let behind = self.told(&row, entries, &mut texts)?;
            drop(place);
            self.page = (self.page * 2).min(limits::STREAM_PAGE);
            if let Some(bytes) = behind {
                // Nothing is kept meanwhile: it is in the journal.
                self.page = 1;
                self.has_room(bytes).await?;
            }
        }
        for text in texts {
            self.say(&text).await?;
        }
        Ok(self.until.over(&row))
    }

    /// Tells of these entries, with the pieces of the last reply before it. Where the reader leaves no room for one, the room that
    /// it needs.
    fn told(&mut self, row: &Snapshot, entries: Vec<Entry>, texts: &mut Vec<Said>) -> Result<Option<u32>, Gone> {
        let is_last = entries.last().is_some_and(|last| last.sequence + 1 >= row.sequence);
        let reply = entries.iter().rposition(|entry| matches!(entry.body, EntryBody::ModelReply(_)));
        for (index, entry) in entries.into_iter().enumerate() {
            if is_last && Some(index) == reply {
                for text in texts.drain(..) {
                    // A hint: where there is no room it is left out.
                    self.offer(Framed::piece(&text)?)?;
                }
            }
            let event = Sent::default().id(entry.sequence.to_string()).event(entry.body.kind());
            if let Some(left) = self.offer(Framed::new(event, &Event::from(&entry))?)? {
                return Ok(Some(left.bytes));
            }
            self.next = entry.sequence + 1;
            if Some(index) == reply && !is_last {
                // They may be of this reply, which has them all.
                texts.clear();
            }
        }
        Ok(None)
    }

    /// A piece of a reply.
    async fn say(&self, said: &Said) -> Result<(), Gone> {
        self.send(Framed::piece(said)?).await
    }

    /// Sends it where there is room, and gives it back where there is none.
    fn offer(&self, event: Framed) -> Result<Option<Framed>, Gone> {
        let Framed { sent, bytes } = event;
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(bytes) else { return Ok(Some(Framed { sent, bytes })) };
        match self.sender.try_send((sent, room)) {
            Ok(()) => Ok(None),
            Err(mpsc::error::TrySendError::Full((sent, _))) => Ok(Some(Framed { sent, bytes })),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Gone),
        }
    }

    async fn send(&self, event: Framed) -> Result<(), Gone> {
        let mut left = self.offer(event)?;
        while let Some(event) = left {
            self.has_room(event.bytes).await?;
            left = self.offer(event)?;
        }
        Ok(())
    }

    /// Waits until there is room. A reader that leaves an event for too long is cut off, and comes back where it was.
    async fn has_room(&self, bytes: u32) -> Result<(), Gone> {
        let room = async {
            let place = self.sender.reserve().await.map_err(|_| Gone)?;
            let room = tokio::select! {
                room = self.room.acquire_many(bytes) => room.map_err(|_| Gone)?,
                () = self.sender.closed() => return Err(Gone),
            };
            drop((place, room));
            Ok(())
        };
        tokio::select! {
            room = tokio::time::timeout(limits::READER_PATIENCE, room) => room.unwrap_or_else(|_| {
                if let Some(connection) = &self.reader.connection {
                    connection.cut();
                }
                Err(Gone)
            }),
            () = self.app.ending.cancelled() => Err(Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{who, world},
        *,
    };
    use crate::access::Role;
    use futures::FutureExt as _;

    fn event(bytes: usize) -> Framed {
        Framed { sent: Sent::default(), bytes: bytes.try_into().unwrap() }
    }

    async fn feed(app: Arc<App>) -> (Feed, mpsc::Receiver<Taken>) {
        let (sender, receiver) = mpsc::channel(limits::STREAM_BUFFER);
        let room = Arc::new(Semaphore::new(limits::STREAM_BYTES));
        let reader = Reader { connection: None, shown: Shown::Bearer("ann".into()), _place: app.stream_place().unwrap() };
        let (page, until) = (limits::STREAM_PAGE, Until::Settled);
        (
            Feed {
                app,
                who: who("ann", Role::Operator, &[], &[]),
                id: RunId::new(),
                next: 0,
                page,
                until,
                sender,
                room,
                reader,
            },
            receiver,
        )
    }

    /// There was room for it.
    fn taken(feed: &Feed, bytes: usize) -> bool {
        feed.offer(event(bytes)).is_ok_and(|left| left.is_none())
    }

    #[tokio::test]
    async fn what_waits_for_a_reader_is_bounded_in_number_and_in_bytes() {
        let world = world().await;
        let (feed, mut reader) = feed(Arc::clone(&world.app)).await;
        assert!(taken(&feed, limits::STREAM_BYTES - 1) && taken(&feed, 1) && !taken(&feed, 1));
        assert!(feed.has_room(1).now_or_never().is_none(), "it waits");
        drop(reader.recv().await.unwrap());
        assert!(feed.has_room(limits::STREAM_BYTES.try_into().unwrap()).now_or_never().is_none(), "not for all");
        assert!(feed.has_room(1).now_or_never().is_some() && taken(&feed, limits::STREAM_BYTES - 1));
        while reader.try_recv().is_ok() {}
        // One that is longer than all has all for itself.
        let Ok(long) = Framed::piece(&Said::Text("x".repeat(limits::STREAM_BYTES * 2).into())) else { panic!("it is text") };
        assert!(feed.offer(long).is_ok_and(|left| left.is_none()) && !taken(&feed, 1));
        drop(reader.recv().await.unwrap());
        for _ in 0..limits::STREAM_BUFFER {
            assert!(taken(&feed, 1));
        }
        assert!(!taken(&feed, 1));
        drop(reader);
        assert!(feed.has_room(1).await.is_err() && feed.offer(event(1)).is_err(), "whoever reads has gone");
    }

    #[tokio::test]
    async fn so_many_journals_are_read_at_once_for_whoever_asks() {
        let world = world().await;
        let mut places = Vec::new();
        for _ in 0..limits::JOURNAL_READS_MAX {
            places.push(world.app.journal_place().now_or_never().flatten().expect("a place"));
        }
        let mut next = Box::pin(world.app.journal_place());
        assert!((&mut next).now_or_never().is_none(), "it waits");
        places.pop();
        assert!(next.now_or_never().flatten().is_some());
    }
}
