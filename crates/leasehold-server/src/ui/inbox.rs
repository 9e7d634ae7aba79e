//! What waits for a person.

use super::{Visitor, refusal, screen};
use crate::api::App;
use axum::{extract::State, response::Response};
use std::sync::Arc;

pub(super) async fn page(State(app): State<Arc<App>>, Visitor(who): Visitor) -> Response {
    match app.inbox_text(&who).await {
        Ok(text) => screen("Inbox", &who, &text),
        Err(problem) => refusal(Some(&who), &problem),
    }
}
