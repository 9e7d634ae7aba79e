//! The HTTP API: the runtime of this process for programs elsewhere, under `/api/v1`. Every endpoint asks who is there and uses the
//! rules of [`crate::access`]; what a request orders is done whether its client stays or not; what is true is read from the row
//! and the journal, and a hint only wakes whoever looks.
//!
//! A file is a resource. [`problem`] is what a refusal looks like, [`guard`] what every request passes, [`limits`] every bound.

mod artifacts;
pub(crate) mod auth;
mod catalog;
pub(crate) mod decisions;
mod events;
mod extract;
mod guard;
mod health;
pub(crate) mod inbox;
#[cfg(test)]
mod input_tests;
mod limits;
pub(crate) mod listen;
mod live;
mod mcp;
mod openapi;
pub(crate) mod orders;
mod problem;
#[cfg(test)]
mod question_tests;
pub(crate) mod questions;
pub(crate) mod runs;
mod start;
#[cfg(test)]
mod tests;

use crate::{
    access::{Role, Who},
    config::server::Server,
    mcp::InForce,
    render::Subject,
    wire,
};
pub(crate) use auth::Authenticate;
use auth::Caller;
use axum::{
    Json, Router,
    http::{StatusCode, header},
    response::{IntoResponse as _, Response},
};
pub(crate) use extract::RunPath;
use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use leasehold::{
    Details, Execution, Live, Runtime,
    clock::{SystemClock, WallClock},
    run::{RunId, Snapshot, State},
    store::ReadError,
};
use live::Texts;
pub(crate) use problem::Problem;
use std::{
    future::Future,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, broadcast, mpsc::UnboundedReceiver};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// What the endpoints share.
pub(crate) struct App {
    runtime: Runtime,
    asking: Runtime,
    clock: Arc<SystemClock>,
    wall: Arc<dyn WallClock>,
    access: Arc<dyn Authenticate>,
    in_force: Arc<InForce>,
    asks: Arc<InForce>,
    command: String,
    execute: bool,
    server: Server,
    listen: SocketAddr,
    texts: Texts,
    /// Streams and waits end.
    ending: CancellationToken,
    /// Orders under way, and executions.
    tasks: TaskTracker,
    requests: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    journals: Semaphore,
    downloads: Arc<Semaphore>,
    rates: DefaultKeyedRateLimiter<String>,
}

/// What an [`App`] is made of.
pub(crate) struct Parts {
    /// This process's part in the store.
    pub(crate) runtime: Runtime,
    /// The same with the tools that this process can call, for asking one what became of a write.
    pub(crate) asking: Runtime,
    /// What its executors say beside the journal.
    pub(crate) live: UnboundedReceiver<Live>,
    /// Its clock.
    pub(crate) clock: Arc<SystemClock>,
    /// Wall time as the store has it.
    pub(crate) wall: Arc<dyn WallClock>,
    /// Who a token stands for.
    pub(crate) access: Arc<dyn Authenticate>,
    /// What is configured.
    pub(crate) in_force: Arc<InForce>,
    /// The same as this process can call it.
    pub(crate) asks: Arc<InForce>,
    /// How this program is called, for commands that are shown.
    pub(crate) command: String,
    /// Waits and decisions execute here.
    pub(crate) execute: bool,
    /// What is in front of the server.
    pub(crate) server: Server,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
}

/// A run of which nothing more is to be told until a person acts: it settled, waits or is dead.
fn rests(row: &Snapshot) -> bool {
    row.state.is_settled() || row.state.is_waiting() || row.state == State::Dead
}

impl App {
    /// Ready to answer.
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { runtime, asking, live, clock, wall, access, in_force, asks, command, execute, server, listen } = parts;
        Self {
            runtime,
            asking,
            clock,
            wall,
            access,
            in_force,
            asks,
            command,
            execute,
            server,
            listen,
            texts: Texts::new(live),
            ending: CancellationToken::new(),
            tasks: TaskTracker::new(),
            requests: Arc::new(Semaphore::new(limits::REQUESTS_MAX)),
            streams: Arc::new(Semaphore::new(limits::STREAMS_MAX)),
            journals: Semaphore::new(limits::JOURNAL_READS_MAX),
            downloads: Arc::new(Semaphore::new(limits::DOWNLOADS_MAX)),
            rates: RateLimiter::keyed(Quota::per_second(limits::RATE).allow_burst(limits::BURST)),
        }
    }

    /// The runtime, for pages that only look.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Now, as the store has it.
    pub(crate) fn now(&self) -> jiff::Timestamp {
        self.wall.now()
    }

    /// What the tools of this process take, for a form; none where there is no such tool here.
    pub(crate) async fn parameters(&self, tool: &str) -> Option<serde_json::Value> {
        let (_, executable) = self.in_force.now().await.ok()?;
        executable.registry.tool(tool).map(|tool| tool.spec().parameters.clone())
    }

    /// The routes, and what each request passes before them.
    pub(crate) fn router(self: &Arc<Self>) -> Router {
        guard::around(self, openapi::routes(self))
    }

    /// Browsers reach it over TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.server.public_url.value.as_ref().is_some_and(crate::config::server::PublicUrl::is_https)
    }

    /// Begins and ends sessions.
    pub(crate) fn access(&self) -> &dyn Authenticate {
        &*self.access
    }

    /// Pieces of replies as models write them.
    pub(crate) fn texts(&self) -> &Texts {
        &self.texts
    }

    /// Streams end, and those who wait get the run as it is.
    pub(crate) fn end(&self) {
        self.ending.cancel();
    }

    /// Waits until every order and execution that a request began has ended.
    pub(crate) async fn done(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Does it whether the client stays or not.
    async fn detached<T: Send + 'static>(
        &self,
        order: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        self.tasks.spawn(order).await.unwrap_or_else(|_| Err(Problem::internal()))
    }

    /// Goes on with a run whether anybody waits for it or not. How it ends is in the journal.
    fn execute(&self, execution: Execution) {
        self.tasks.spawn(execution.finish());
    }

    fn within_rate(&self, who: &Who) -> Result<(), Problem> {
        self.rates.check_key(&who.principal.id).map_err(|until| {
            let wait = until.wait_time_from(DefaultClock::default().now());
            let detail = "this is faster than one principal may ask";
            Problem::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", detail).retry(wait.as_secs() + 1)
        })
    }

    /// A place for a stream or a wait.
    fn stream_place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.streams).try_acquire_owned().map_err(|_| Problem::overloaded("streams and waiting requests"))
    }

    /// A place for a request that does neither.
    fn request_place(&self) -> Result<OwnedSemaphorePermit, Problem> {
        Arc::clone(&self.requests).try_acquire_owned().map_err(|_| Problem::overloaded("requests"))
    }

    /// A place to read a journal, once there is one: the segments of this process read their runs through the same store, and must
    /// not wait behind everybody who looks.
    async fn journal_place(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.journals.acquire().await.ok()
    }

    /// The row of a run, or what of it can be read.
    async fn row(&self, id: RunId) -> Result<Snapshot, Problem> {
        match self.runtime.store().load(id).await {
            Ok(Some(row)) => Ok(row),
            Ok(None) => Err(Problem::not_found()),
            Err(ReadError::Corrupt { rest: Some(rest), .. }) => Ok(*rest),
            Err(error) => Err(error.into()),
        }
    }

    /// The row, where the caller may know of it.
    pub(crate) async fn seen(&self, who: &Who, id: RunId) -> Result<Snapshot, Problem> {
        let row = self.row(id).await?;
        who.sees(&row)?;
        Ok(row)
    }

    /// The run with its whole journal, as the caller may see it.
    async fn details(&self, who: &Who, id: RunId) -> Result<Details, Problem> {
        let _place = self.journal_place().await;
        let mut details = self.runtime.details(id).await?;
        details.withhold(|tool| who.decides(tool));
        Ok(details)
    }

    /// The same with the calls like those on its card, and with why nobody goes on with it.
    pub(crate) async fn details_with_similar(&self, who: &Who, id: RunId) -> Result<Details, Problem> {
        let mut details = self.details(who, id).await?;
        // Pending calls of its tools are no column: the store would keep runs from an approver that it may see.
        let visible_to = who.visible().filter(|_| who.needs(Role::Approver).is_err());
        details.similar = Some(self.runtime.similar(&details, visible_to.as_ref(), |row| who.sees(row).is_ok()).await?);
        details.unserved = self.runtime.unserved(&details.row).await?;
        Ok(details)
    }

    pub(crate) fn subject<'s>(&'s self, details: &'s Details) -> Subject<'s> {
        Subject {
            row: &details.row,
            entries: &details.entries,
            boot: &*self.clock,
            unreadable: details.unreadable.as_deref(),
            similar: details.similar.as_ref(),
            unserved: details.unserved.as_ref(),
            now: self.wall.now(),
            command: &self.command,
        }
    }

    /// The run as it is now.
    async fn run(&self, who: &Who, id: RunId) -> Result<wire::Run, Problem> {
        Ok(wire::Run::new(&self.subject(&self.details(who, id).await?)))
    }

    /// The run after an order: 200 where it rests, 202 where it goes on.
    async fn answer(&self, who: &Who, id: RunId) -> Result<Response, Problem> {
        let details = self.details(who, id).await?;
        let status = if rests(&details.row) { StatusCode::OK } else { StatusCode::ACCEPTED };
        Ok((status, Json(wire::Run::new(&self.subject(&details)))).into_response())
    }

    /// The run, and that it was accepted.
    async fn accepted(&self, who: &Who, id: RunId) -> Result<Response, Problem> {
        let place = [(header::LOCATION, format!("/api/v1/runs/{id}"))];
        Ok((StatusCode::ACCEPTED, place, Json(self.run(who, id).await?)).into_response())
    }

    /// Waits until the run rests, at most so long and no longer than this process lives; then the run as it is.
    async fn answer_at_rest(&self, who: &Who, id: RunId, patience: Duration) -> Result<Response, Problem> {
        let until = Instant::now() + patience;
        let mut hints = self.runtime.engine().subscribe();
        loop {
            // A store that is away for a moment is asked again.
            let row = self.row(id).await;
            let left = until.saturating_duration_since(Instant::now());
            let over = left.is_zero() || self.ending.is_cancelled();
            match row {
                Ok(row) if over || rests(&row) => return self.answer(who, id).await,
                Err(problem) if over => return Err(problem),
                _ => {}
            }
            tokio::select! {
                () = hinted(&mut hints, id) => {}
                () = self.ending.cancelled() => {}
                () = tokio::time::sleep(left.min(limits::POLL)) => {}
            }
        }
    }
}

/// Ends when this process has changed the run, or may have.
async fn hinted(hints: &mut broadcast::Receiver<leasehold::store::engine::Committed>, id: RunId) {
    while let Ok(hint) = hints.recv().await {
        if hint.run == id {
            return;
        }
    }
}
