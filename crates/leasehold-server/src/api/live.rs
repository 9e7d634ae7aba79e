//! Pieces of a reply as a model of this process writes them, and what a tool of it says while it runs, for whoever watches a run. A hint:
//! what counts is the reply in the journal, which has them all, and the outcome.

use super::limits;
use leasehold::{
    Live,
    agent::tool::Progress,
    run::{CallId, RunId},
};
use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Context,
};
use tokio::sync::{broadcast, mpsc::UnboundedReceiver};

/// What a model of this process says of a run's next reply, or a tool of its running call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Said {
    /// More of its text.
    Text(Arc<str>),
    /// The text before this is no part of it, and why.
    Discarded(Arc<str>),
    /// How far a call is.
    Progress(CallId, Progress),
    /// A line of the log of a call, after its level.
    Log(CallId, Arc<str>, Arc<str>),
}

impl Said {
    /// A running call says it, and no model.
    pub(super) fn is_of_a_call(&self) -> bool {
        matches!(self, Self::Progress(..) | Self::Log(..))
    }
}

/// Something that is said of a run.
pub(crate) type Piece = (RunId, Said);

/// Hands pieces to every stream.
pub(crate) struct Texts {
    live: Mutex<UnboundedReceiver<Live>>,
    streams: broadcast::Sender<Piece>,
}

impl Texts {
    /// What the executors of this process say.
    pub(crate) fn new(live: UnboundedReceiver<Live>) -> Self {
        Self { live: Mutex::new(live), streams: broadcast::Sender::new(limits::LIVE_BUFFER) }
    }

    /// Pieces from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Piece> {
        self.streams.subscribe()
    }

    fn live(&self) -> MutexGuard<'_, UnboundedReceiver<Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, said: Live) {
        let piece = match said {
            Live::Text(run, text) => (run, Said::Text(text.into())),
            Live::Discarded(run, why) => (run, Said::Discarded(why.into())),
            Live::Progress(run, call, progress) => (run, Said::Progress(call, progress)),
            Live::Log(run, call, level, text) => (run, Said::Log(call, level.into(), text.into())),
            Live::Model(_) | Live::Tool(..) => return,
        };
        // Nobody may be watching.
        self.streams.send(piece).ok();
    }

    /// Hands on what is said, for as long as somebody may say something.
    pub(crate) async fn forward(&self) {
        let next = |cx: &mut Context<'_>| {
            let mut live = self.live();
            live.poll_recv(cx).map(|said| said.map(|said| self.say(said)))
        };
        while poll_fn(next).await.is_some() {}
    }

    /// Hands on what has been said until now: what was said before an entry was committed is out before the entry is told.
    pub(super) fn catch_up(&self) {
        let mut live = self.live();
        while let Ok(said) = live.try_recv() {
            self.say(said);
        }
    }
}

/// The next piece of this run. Pieces that were missed are left out.
pub(super) async fn next(pieces: &mut broadcast::Receiver<Piece>, id: RunId) -> Said {
    loop {
        match pieces.recv().await {
            Ok((run, said)) if run == id => return said,
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

/// What is there now of this run.
pub(super) fn waiting(pieces: &mut broadcast::Receiver<Piece>, id: RunId) -> Vec<Said> {
    let mut all = Vec::new();
    loop {
        match pieces.try_recv() {
            Ok((run, said)) if run == id => all.push(said),
            Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_)) => {}
            Err(_) => return all,
        }
    }
}
