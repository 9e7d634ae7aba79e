//! Connections: bounded in number, in the size of a request's head and in the time for one; closed in order at the end.

use super::limits;
use axum::{Router, body::Body, extract::Request};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_io_timeout::TimeoutStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service as _;

/// The connection that a request came on.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    /// Whose.
    pub(crate) peer: SocketAddr,
    cut: CancellationToken,
}

impl Connection {
    /// Of this peer.
    pub(crate) fn new(peer: SocketAddr) -> Self {
        Self { peer, cut: CancellationToken::new() }
    }
    /// Until it is closed so.
    pub(crate) async fn is_cut(&self) {
        self.cut.cancelled().await;
    }
    /// Closes it, whatever is still to be sent.
    pub(crate) fn cut(&self) {
        self.cut.cancel();
    }
}

/// How long connections have for the rest of their answers once nothing is accepted any more.
const CLOSING: Duration = Duration::from_secs(5);
/// Before the next try after the machine gave no connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `ending`; then nothing is accepted, and what is being answered is answered.
pub(crate) async fn serve(listener: TcpListener, router: Router, ending: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ending.cancelled() => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                let (router, ending) = (router.clone(), ending.clone());
                connections.spawn(async move {
                    connection(stream, peer, router, ending).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("a connection was not accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    tokio::time::timeout(CLOSING, connections.wait()).await.ok();
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, ending: CancellationToken) {
    stream.set_nodelay(true).ok();
    // Of an answer that nobody takes, a stream's or another, nothing is kept for long.
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits::READER_PATIENCE));
    let this = Connection::new(peer);
    let connection = this.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(this.clone());
        // A router is always ready.
        router.clone().call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits::HEAD_READ_TIMEOUT).max_buf_size(limits::HEADER_BYTES_MAX * 2);
    let serving = http.serve_connection(TokioIo::new(Box::pin(stream)), service);
    tokio::pin!(serving);
    let mut ended = false;
    loop {
        tokio::select! {
            // What a client breaks off is its own affair.
            _ = &mut serving => return,
            () = connection.is_cut() => return,
            () = ending.cancelled(), if !ended => {
                ended = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
