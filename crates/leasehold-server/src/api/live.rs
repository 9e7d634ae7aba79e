//! Pieces of a reply as a model of this process writes them, for whoever watches a run. A hint: what counts is the reply in the
//! journal, which has them all.

use super::limits;
use leasehold::{Live, run::RunId};
use std::sync::Arc;
use tokio::sync::{broadcast, mpsc::UnboundedReceiver};

/// A piece of text of a run.
pub(crate) type Piece = (RunId, Arc<str>);

/// Hands pieces to every stream.
pub(crate) struct Texts(broadcast::Sender<Piece>);

impl Default for Texts {
    fn default() -> Self {
        Self(broadcast::Sender::new(limits::LIVE_BUFFER))
    }
}

impl Texts {
    /// Pieces from now on.
    pub(super) fn subscribe(&self) -> broadcast::Receiver<Piece> {
        self.0.subscribe()
    }

    /// Hands on what the executors of this process say, for as long as they do.
    pub(crate) async fn forward(&self, mut live: UnboundedReceiver<Live>) {
        while let Some(said) = live.recv().await {
            if let Live::Text(run, text) = said {
                // Nobody may be watching.
                self.0.send((run, text.into())).ok();
            }
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
