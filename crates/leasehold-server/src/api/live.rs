//! Pieces of a reply as a model of this process writes them, for whoever watches a run. A hint: what counts is the reply in the
//! journal, which has them all.

use super::limits;
use leasehold::{Live, run::RunId};
use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Context,
};
use tokio::sync::{broadcast, mpsc::UnboundedReceiver};

/// A piece of text of a run.
pub(crate) type Piece = (RunId, Arc<str>);

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
        if let Live::Text(run, text) = said {
            // Nobody may be watching.
            self.streams.send((run, text.into())).ok();
        }
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
pub(super) async fn next(pieces: &mut broadcast::Receiver<Piece>, id: RunId) -> Arc<str> {
    loop {
        match pieces.recv().await {
            Ok((run, text)) if run == id => return text,
            Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        }
    }
}

/// What is there now of this run.
pub(super) fn waiting(pieces: &mut broadcast::Receiver<Piece>, id: RunId) -> Vec<Arc<str>> {
    let mut all = Vec::new();
    loop {
        match pieces.try_recv() {
            Ok((run, text)) if run == id => all.push(text),
            Ok(_) | Err(broadcast::error::TryRecvError::Lagged(_)) => {}
            Err(_) => return all,
        }
    }
}
