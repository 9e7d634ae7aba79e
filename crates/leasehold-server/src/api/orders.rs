//! What else a person orders: cancel, resolve, redrive, discard.

use super::{
    App, Caller,
    extract::{Json, MaybeJson, RunPath, noted, whole, words},
    problem::Problem,
};
use crate::{access::Who, wire};
use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use leasehold::{
    Asked, Resolution, Resolved,
    run::{CallId, ResolutionKind, RunId, Snapshot, State as RunState},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

words!(Truth);

/// Why something is ordered.
#[derive(Debug, Default, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct OrderBody {
    /// Kept in the record.
    note: Option<String>,
}

/// What a person says of a write in doubt.
#[derive(Clone, Copy, Debug, Deserialize, strum::EnumString, strum::VariantNames, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Truth {
    /// It happened.
    Landed,
    /// It did not happen; the call may be made again.
    NotLanded,
    /// Give it up: unknown, not to be repeated.
    Abandon,
}

/// A resolution.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolveBody {
    /// The call in doubt.
    pub(crate) call_id: String,
    /// Which doubt about it: the epoch of the run's fence.
    #[serde(deserialize_with = "whole")]
    pub(crate) fence_epoch: u64,
    #[schema(inline)]
    pub(crate) outcome: Truth,
    /// What the write answered, where that is known and it landed.
    pub(crate) result: Option<Value>,
    /// Kept in the record.
    pub(crate) note: Option<String>,
}

/// What came of asking the far side before a person's "not landed" was taken.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Verify {
    /// It was asked.
    asked: bool,
    /// `absent` or `unknown`.
    answer: Option<&'static str>,
    why: Option<String>,
}

/// The run, and what came of asking.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct ResolvedRun {
    #[serde(flatten)]
    run: wire::Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    verify: Option<Verify>,
}

/// Cancels a run: what is in flight finishes, nothing new starts.
#[utoipa::path(post, path = "/runs/{id}/cancel", tag = "people", request_body(content = Option<OrderBody>, description = "May be left out"),
    params(("id" = String, Path, description = "The run", format = Uuid)),
    responses(
        (status = 200, description = "It is cancelled", body = wire::Run),
        (status = 202, description = "Something is still in flight (`cancelling`) or in doubt (`cancel_requested`)", body = wire::Run)))]
pub(crate) async fn cancel(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    RunPath(id): RunPath,
    MaybeJson(body): MaybeJson<OrderBody>,
) -> Result<Response, Problem> {
    let row = app.cancelled(&who, id, body.note).await?;
    if row.state.is_settled() { app.answer(&who, id).await } else { app.accepted(&who, id).await }
}

/// Says what is true of a write in doubt. "Not landed" asks a tool that can be asked first.
#[utoipa::path(post, path = "/runs/{id}/resolve", tag = "people", request_body = ResolveBody,
    params(("id" = String, Path, description = "The run", format = Uuid)),
    responses(
        (status = 200, description = "The run rests", body = ResolvedRun),
        (status = 202, description = "The run goes on", body = ResolvedRun)))]
pub(crate) async fn resolve(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    RunPath(id): RunPath,
    Json(body): Json<ResolveBody>,
) -> Result<Response, Problem> {
    let resolved = app.resolved(&who, id, body).await?;
    let verify = resolved.asked.map(|asked| match asked {
        Asked::Absent => Verify { asked: true, answer: Some("absent"), why: None },
        Asked::Unknown(why) => Verify { asked: true, answer: Some("unknown"), why: Some(why) },
        Asked::NotAsked(why) => Verify { asked: false, answer: None, why: Some(why) },
    });
    let status = if resolved.row.state == RunState::Queued { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok((status, axum::Json(ResolvedRun { run: app.run(&who, id).await?, verify })).into_response())
}

/// Sends a dead or failed run on.
#[utoipa::path(post, path = "/runs/{id}/redrive", tag = "people", request_body(content = Option<OrderBody>, description = "May be left out"),
    params(("id" = String, Path, description = "The run", format = Uuid)),
    responses(
        (status = 200, description = "It waits for a person again", body = wire::Run),
        (status = 202, description = "It goes on", body = wire::Run)))]
pub(crate) async fn redrive(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    RunPath(id): RunPath,
    MaybeJson(body): MaybeJson<OrderBody>,
) -> Result<Response, Problem> {
    let row = app.redriven(&who, id, body.note).await?;
    app.ordered(&who, id, &row).await
}

/// Gives a dead run up.
#[utoipa::path(post, path = "/runs/{id}/discard", tag = "people", request_body(content = Option<OrderBody>, description = "May be left out"),
    params(("id" = String, Path, description = "The run", format = Uuid)),
    responses((status = 200, description = "It is cancelled", body = wire::Run)))]
pub(crate) async fn discard(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    RunPath(id): RunPath,
    MaybeJson(body): MaybeJson<OrderBody>,
) -> Result<Response, Problem> {
    let row = app.discarded(&who, id, body.note).await?;
    app.ordered(&who, id, &row).await
}

impl App {
    /// Cancels, as far as this caller may.
    pub(crate) async fn cancelled(&self, who: &Who, id: RunId, note: Option<String>) -> Result<Snapshot, Problem> {
        who.may_cancel(&self.row(id).await?)?;
        noted("#/note", note.as_deref())?;
        let (runtime, by) = (self.runtime.clone(), who.by());
        self.detached(async move { Ok(runtime.cancel(id, by, note).await?) }).await
    }

    /// Settles a doubt, as far as this caller may.
    pub(crate) async fn resolved(&self, who: &Who, id: RunId, body: ResolveBody) -> Result<Resolved, Problem> {
        let row = self.row(id).await?;
        who.may_settle(&row)?;
        let outcome = match body.outcome {
            Truth::Landed => ResolutionKind::Landed,
            Truth::NotLanded => ResolutionKind::NotLanded,
            Truth::Abandon => ResolutionKind::Abandon,
        };
        noted("#/note", body.note.as_deref())?;
        if body.result.is_some() && outcome != ResolutionKind::Landed {
            return Err(Problem::field("#/result", "only a write that landed has answered"));
        }
        if outcome == ResolutionKind::NotLanded {
            // The call may be made again: a release like an approval.
            who.may_decide(&row, row.fenced_call().into_iter())?;
        }
        let said = Resolution {
            call_id: CallId(body.call_id),
            fence_epoch: Some(body.fence_epoch),
            outcome,
            result: body.result,
            note: body.note,
            by: who.by(),
        };
        let runtime = self.asking.clone();
        self.detached(async move { Ok(runtime.resolve(id, said).await?) }).await
    }

    /// Sends a dead or failed run on, as far as this caller may.
    pub(crate) async fn redriven(&self, who: &Who, id: RunId, note: Option<String>) -> Result<Snapshot, Problem> {
        who.may_settle(&self.row(id).await?)?;
        noted("#/note", note.as_deref())?;
        let (runtime, by) = (self.runtime.clone(), who.by());
        self.detached(async move { Ok(runtime.redrive(id, by, note).await?) }).await
    }

    /// Gives a dead run up, as far as this caller may.
    pub(crate) async fn discarded(&self, who: &Who, id: RunId, note: Option<String>) -> Result<Snapshot, Problem> {
        who.may_settle(&self.row(id).await?)?;
        noted("#/note", note.as_deref())?;
        let (runtime, by) = (self.runtime.clone(), who.by());
        self.detached(async move { Ok(runtime.discard(id, by, note).await?) }).await
    }

    async fn ordered(&self, who: &Who, id: RunId, row: &Snapshot) -> Result<Response, Problem> {
        if super::rests(row) { self.answer(who, id).await } else { self.accepted(who, id).await }
    }
}
