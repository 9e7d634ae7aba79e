//! What a person says to a running call that asks.

use super::{
    App, Caller,
    extract::{Json, RunPath, present, whole},
    problem::Problem,
};
use crate::{
    access::{Role, Who},
    wire,
};
use axum::{extract::State, response::Response};
use leasehold::{
    QuestionAnswer,
    run::{CallId, EntryBody, RunId, Snapshot},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::sync::Arc;
use utoipa::openapi::{ObjectBuilder, Schema, Type};

/// An answer: values, or that there will be none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerBody {
    pub(crate) call_id: String,
    #[serde(deserialize_with = "whole")]
    pub(crate) question: u64,
    #[serde(default, deserialize_with = "present")]
    pub(crate) values: Option<Map<String, Value>>,
    #[serde(default)]
    pub(crate) decline: bool,
}

/// Values for a running call that asks, or that there will be none.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
#[schema(as = AnswerBody)]
#[allow(dead_code, reason = "it describes what is read as another type")]
pub(crate) enum Described {
    Values(AnswerValues),
    Decline(AnswerDecline),
}

/// Values for a running call that asks.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "it describes what is read as another type")]
pub(crate) struct AnswerValues {
    /// The call that asks.
    call_id: String,
    /// Which of its questions, as `questions` of the run names it.
    question: u64,
    /// The values, by key.
    #[schema(value_type = Object)]
    values: Map<String, Value>,
    #[schema(schema_with = is_false, required = false)]
    decline: Option<bool>,
}

/// A running call that asks is given nothing.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "it describes what is read as another type")]
pub(crate) struct AnswerDecline {
    /// The call that asks.
    call_id: String,
    /// Which of its questions, as `questions` of the run names it.
    question: u64,
    #[schema(schema_with = is_true)]
    decline: bool,
}

pub(super) fn is_false() -> Schema {
    ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([false])).build().into()
}

pub(super) fn is_true() -> Schema {
    ObjectBuilder::new().schema_type(Type::Boolean).enum_values(Some([true])).build().into()
}

impl AnswerBody {
    /// Says one of two things.
    fn check(&self) -> Result<(), Problem> {
        one_of(self.values.as_ref(), self.decline)
    }
}

/// Values, or that there will be none.
pub(super) fn one_of(values: Option<&Map<String, Value>>, decline: bool) -> Result<(), Problem> {
    match (values, decline) {
        (None, false) => Err(Problem::field("#/values", "give values, or decline")),
        (Some(_), true) => Err(Problem::field("#/decline", "who gives values does not decline")),
        _ => Ok(()),
    }
}

/// What the caller's rights say of that answer to a run that it sees.
fn may_answer(who: &Who, row: &Snapshot, body: &AnswerBody) -> Result<(), Problem> {
    let asking = row.questions().find(|(call, question)| call.id.0 == body.call_id && *question == body.question);
    Ok(who.may_answer(row, asking.map(|(call, _)| call).filter(|_| !body.decline))?)
}

impl App {
    /// Answers what a running call asks, as far as this caller may.
    pub(crate) async fn answered(&self, who: &Who, id: RunId, body: AnswerBody) -> Result<(), Problem> {
        let row = self.row(id).await?;
        let sees = who.sees(&row).is_ok();
        if !sees && !self.was_answered(who, id, body.question).await? {
            return Err(Problem::not_found());
        }
        body.check()?;
        if sees {
            may_answer(who, &row, &body)?;
        }
        let AnswerBody { call_id, question, values, .. } = body;
        let said = QuestionAnswer { call_id: CallId(call_id), question, values, by: who.by() };
        let runtime = self.runtime.clone();
        self.detached(async move { Ok(runtime.answer(id, said).await?) }).await?;
        Ok(())
    }

    /// An approver names a question that has been answered: it was shown it while it could see the run, and is told who was faster, or
    /// that it was itself.
    async fn was_answered(&self, who: &Who, id: RunId, asked: u64) -> Result<bool, Problem> {
        if who.needs(Role::Approver).is_err() {
            return Ok(false);
        }
        let details = self.details(who, id).await?;
        let shown = |call: &CallId| details.story.calls.get(call).is_some_and(|call| who.may_run(&call.asked.tool));
        Ok(details.entries.iter().any(|entry| match &entry.body {
            EntryBody::Answered(said) if said.question == asked => shown(&said.call_id) || said.by.id == who.principal.id,
            _ => false,
        }))
    }
}

/// Answers what a running call asks. Values are validated before anything is consumed; those for a write pass the gates of its release.
#[utoipa::path(post, path = "/runs/{id}/answer", tag = "people", request_body = Described,
    params(("id" = String, Path, description = "The run", format = Uuid)),
    responses((status = 202, description = "The answer is taken, and the call goes on", body = wire::Run)))]
pub(crate) async fn answer(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    RunPath(id): RunPath,
    Json(body): Json<AnswerBody>,
) -> Result<Response, Problem> {
    app.answered(&who, id, body).await?;
    app.accepted(&who, id).await
}
