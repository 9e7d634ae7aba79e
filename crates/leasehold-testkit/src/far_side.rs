//! The far side: an HTTP service on loopback that records every request it gets, and then answers, breaks off or stays silent as
//! the test says. What arrived is counted here and nowhere else.

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{Notify, watch};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Arrived {
    /// Its method.
    pub method: Method,
    /// Path and query.
    pub uri: Uri,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
    /// When.
    pub at: jiff::Timestamp,
}

impl Arrived {
    /// A header as text; empty where it is absent.
    pub fn header(&self, name: &str) -> String {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
    }
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// What becomes of a request after it was recorded, which is to say after its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Then {
    /// Answers with a status and a text.
    Answer(u16, String),
    /// Answers 200 with this JSON.
    Json(String),
    /// Answers with a redirect to there.
    Redirect(String),
    /// Answers 301 with a redirect to there.
    MovedTo(String),
    /// Answers 503 and wants to be left alone for so many seconds.
    RetryAfter(u32),
    /// Breaks the connection without an answer.
    HangUp,
    /// Stays silent until [`FarSide::release`].
    Hold,
}

struct Shared {
    arrived: watch::Sender<Vec<Arrived>>,
    then: Mutex<VecDeque<Then>>,
    released: Notify,
}

/// A running service.
pub struct FarSide {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl FarSide {
    /// Starts it on a free port; it ends with the test's runtime.
    ///
    /// # Errors
    /// No port.
    pub async fn start() -> std::io::Result<Self> {
        Self::start_on(0).await
    }

    /// The same on a port of loopback, as one that was away and comes back.
    ///
    /// # Errors
    /// The port is taken.
    pub async fn start_on(port: u16) -> std::io::Result<Self> {
        let shared =
            Arc::new(Shared { arrived: watch::Sender::new(Vec::new()), then: Mutex::default(), released: Notify::new() });
        let router = Router::new().fallback(handle).with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?;
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { shared, address })
    }

    /// Where it is.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// What becomes of the next requests, in order; then 200 "ok".
    pub fn then(&self, then: impl IntoIterator<Item = Then>) {
        self.shared.then.lock().unwrap_or_else(PoisonError::into_inner).extend(then);
    }

    /// Lets every request that is held go on, with 200 "ok".
    pub fn release(&self) {
        self.shared.released.notify_waiters();
    }

    /// What arrived so far, in order.
    pub fn arrived(&self) -> Vec<Arrived> {
        self.shared.arrived.borrow().clone()
    }

    /// Waits until so many requests have arrived.
    pub async fn wait_for(&self, count: usize) -> Vec<Arrived> {
        let mut arrived = self.shared.arrived.subscribe();
        // The sender lives as long as this value, so the wait ends only when the requests are there.
        match arrived.wait_for(|all| all.len() >= count).await {
            Ok(all) => all.clone(),
            Err(_) => Vec::new(),
        }
    }
}

async fn handle(State(shared): State<Arc<Shared>>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let released = shared.released.notified();
    shared.arrived.send_modify(|all| all.push(Arrived { method, uri, headers, body, at: jiff::Timestamp::now() }));
    let then = shared.then.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    match then {
        None => (StatusCode::OK, "ok").into_response(),
        Some(Then::Answer(status, text)) => {
            (StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), text).into_response()
        }
        Some(Then::Json(text)) => ([("content-type", "application/json")], text).into_response(),
        Some(Then::Redirect(to)) => (StatusCode::FOUND, [("location", to)], "moved").into_response(),
        Some(Then::MovedTo(to)) => (StatusCode::MOVED_PERMANENTLY, [("location", to)], "moved").into_response(),
        Some(Then::RetryAfter(seconds)) => {
            (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", seconds.to_string())], "busy").into_response()
        }
        // A handler that unwinds takes its connection with it; nothing is printed.
        Some(Then::HangUp) => std::panic::resume_unwind(Box::new(())),
        Some(Then::Hold) => {
            released.await;
            (StatusCode::OK, "ok").into_response()
        }
    }
}
