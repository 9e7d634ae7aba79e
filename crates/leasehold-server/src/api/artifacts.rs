//! `/runs/{id}/artifacts`: binary content that came with the outcomes of calls. It is somebody else's: a browser is told to keep it as a
//! file and to run nothing of it, and believes no type but that of a few images.

use super::{App, Caller, extract::RunPath, limits, problem::Problem};
use crate::wire::{Artifact, Page, served_as};
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderName, header},
    response::{IntoResponse as _, Response},
};
use leasehold::run::RunId;
use std::{convert::Infallible, sync::Arc};

const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// No script, no frame, no form: nothing of it does anything, whatever it is.
const NOTHING_RUNS: &str = "default-src 'none'; frame-ancestors 'none'; sandbox";

/// What the calls of a run have had kept, in the order of their outcomes.
#[utoipa::path(get, path = "/runs/{id}/artifacts", tag = "runs",
    params(("id" = String, Path, description = "The run", format = Uuid)),
    responses((status = 200, description = "All of them", body = Page<Artifact>)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    RunPath(id): RunPath,
) -> Result<Response, Problem> {
    app.seen(&who, id).await?;
    let kept = app.runtime.engine().artifacts(id).await?;
    Ok(Json(Page::whole(kept.into_iter().map(Artifact::from).collect())).into_response())
}

/// The content of one.
#[utoipa::path(get, path = "/runs/{id}/artifacts/{artifact}", tag = "runs",
    params(
        ("id" = String, Path, description = "The run", format = Uuid),
        ("artifact" = String, Path, description = "As the result of its call and the list name it")),
    responses((status = 200, description = "Its bytes", content(
        (Vec<u8> = "application/octet-stream"), (Vec<u8> = "image/png"), (Vec<u8> = "image/jpeg"), (Vec<u8> = "image/gif"),
        (Vec<u8> = "image/webp")))))]
pub(crate) async fn content(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    path: Result<Path<(String, String)>, axum::extract::rejection::PathRejection>,
) -> Result<Response, Problem> {
    let Path((id, handle)) = path.map_err(|_| Problem::not_found())?;
    let id: RunId = id.parse().map_err(|_| Problem::not_found())?;
    app.seen(&who, id).await?;
    let place = Arc::clone(&app.downloads).try_acquire_owned().map_err(|_| Problem::overloaded("downloads"))?;
    let (kept, content) = app.runtime.engine().artifact(id, &handle).await?.ok_or_else(Problem::not_found)?;
    let (mime_type, end) = served_as(&kept.mime_type, &content);
    let length = content.len();
    let content = Bytes::from(content);
    let chunks = (0..length).step_by(limits::DOWNLOAD_CHUNK);
    let chunks: Vec<Bytes> = chunks.map(|at| content.slice(at..length.min(at + limits::DOWNLOAD_CHUNK))).collect();
    // It keeps its place until its reader has all of it, or has gone.
    let body = futures::stream::iter(chunks.into_iter().map(move |chunk| {
        let _place = &place;
        Ok::<_, Infallible>(chunk)
    }));
    let headers = [
        (header::CONTENT_TYPE, mime_type.to_owned()),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{}.{end}\"", kept.handle)),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (header::CONTENT_SECURITY_POLICY, NOTHING_RUNS.to_owned()),
        (RESOURCE_POLICY, "same-origin".to_owned()),
    ];
    Ok((headers, Body::from_stream(body)).into_response())
}
