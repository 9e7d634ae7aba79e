//! Whether the process lives, and whether it can serve. Anybody may ask, and nothing else is said.

use super::App;
use axum::{extract::State, http::StatusCode};
use std::{sync::Arc, time::Duration};

/// How long the store may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The process lives.
#[utoipa::path(get, path = "/healthz", tag = "health", security(()), responses((status = 204, description = "It lives")))]
pub(crate) async fn healthz() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// The store answers, and the process is not ending.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()),
    responses((status = 204, description = "It can serve"), (status = 503, description = "It cannot")))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> StatusCode {
    let answers = tokio::time::timeout(PATIENCE, app.runtime.store().now()).await.is_ok_and(|now| now.is_ok());
    if answers && !app.ending.is_cancelled() { StatusCode::NO_CONTENT } else { StatusCode::SERVICE_UNAVAILABLE }
}
