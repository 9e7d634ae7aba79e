//! The ledger: a far side that appends whatever it is sent, every time, and keeps the key, run and epoch of each write.

use super::Failure;
use axum::{Json, Router, extract::State, http::HeaderMap, routing::post};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// A line of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub(super) key: String,
    pub(super) run: String,
    pub(super) epoch: String,
}

type Lines = Arc<Mutex<Vec<Line>>>;

/// The ledger, on a port of this machine for the life of the demo.
pub(super) struct Ledger {
    lines: Lines,
    port: u16,
}

impl Ledger {
    /// Listens.
    pub(super) async fn open() -> Result<Self, Failure> {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let lines = Lines::default();
        let router = Router::new().route("/append", post(append)).with_state(Arc::clone(&lines));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { lines, port })
    }
    /// Where.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
    /// What it has.
    pub(super) fn entries(&self) -> Vec<Line> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn append(State(lines): State<Lines>, headers: HeaderMap, Json(_): Json<Value>) -> Json<Value> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let line = Line { key: header("idempotency-key"), run: header("leasehold-run"), epoch: header("leasehold-fencing-token") };
    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
    lines.push(line);
    Json(json!({ "line": lines.len() }))
}
