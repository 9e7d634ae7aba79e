//! A run, as it stands.

use super::{Visitor, refusal, screen};
use crate::api::{App, RunPath};
use axum::{extract::State, response::Response};
use std::sync::Arc;

pub(super) async fn page(State(app): State<Arc<App>>, Visitor(who): Visitor, RunPath(id): RunPath) -> Response {
    match app.run_text(&who, id).await {
        Ok(text) => screen(&format!("Run {id}"), &who, &text),
        Err(problem) => refusal(Some(&who), &problem),
    }
}
