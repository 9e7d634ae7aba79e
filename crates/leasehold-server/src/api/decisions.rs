//! What a person says to a run that waits: a decision about its calls, or values for one.

use super::{
    App, Caller,
    extract::{Json, Query, RunPath, noted, objects, present, words},
    problem::Problem,
    questions::{is_false, is_true, one_of},
    start::patience,
};
use crate::{
    access::{Denied, Role, Who},
    wire,
};
use axum::{extract::State, response::Response};
use leasehold::{
    Decided, Decision, OrderError, Submission,
    run::{CallId, DecideCall, EntryBody, OpenCall, RunId, Snapshot},
};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};
use tokio::sync::OwnedSemaphorePermit;

words!(Verdict);

/// One of two words, exactly as they are written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, strum::EnumString, strum::VariantNames, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Verdict {
    /// The call runs.
    Approve,
    /// It does not, and the model is told why.
    Deny,
}

/// What is said of one call.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallDecision {
    /// The call.
    pub(crate) id: String,
    #[schema(inline)]
    pub(crate) decision: Verdict,
    /// Why.
    pub(crate) reason: Option<String>,
    /// It runs with these arguments instead.
    #[schema(value_type = Option<Object>)]
    pub(crate) arguments: Option<Map<String, Value>>,
}

/// A decision about what was shown.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecisionBody {
    /// Names exactly what was shown.
    pub(crate) turn_digest: String,
    /// For every undecided call that `calls` does not name.
    #[serde(default, deserialize_with = "present")]
    #[schema(inline, value_type = Verdict, required = false)]
    pub(crate) decision: Option<Verdict>,
    /// Why, for those.
    pub(crate) reason: Option<String>,
    /// Per call.
    #[serde(default, deserialize_with = "objects")]
    pub(crate) calls: Vec<CallDecision>,
}

/// Whether the answer comes when the run rests again.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DecisionQuery {
    /// The answer comes when the run settled or waits again.
    #[serde(default)]
    wait: bool,
    /// How long it waits, in seconds.
    #[serde(default)]
    #[param(nullable = false, minimum = 1, maximum = 600)]
    timeout: Option<u32>,
}

impl DecisionBody {
    /// Says something, and of each call one thing.
    fn check(&self) -> Result<(), Problem> {
        if self.decision.is_none() && self.calls.is_empty() {
            return Err(Problem::field("#/decision", "say approve or deny, or name calls"));
        }
        noted("#/reason", self.reason.as_deref())?;
        let mut seen = BTreeSet::new();
        for (index, call) in self.calls.iter().enumerate() {
            noted(&format!("#/calls/{index}/reason"), call.reason.as_deref())?;
            if !seen.insert(&call.id) {
                return Err(Problem::field(format!("#/calls/{index}/id"), "this call is named twice"));
            }
            if call.decision == Verdict::Deny && call.arguments.is_some() {
                return Err(Problem::field(format!("#/calls/{index}/arguments"), "a call that is denied does not run"));
            }
        }
        Ok(())
    }

    /// Says something of this call, if it is undecided.
    fn names(&self, call: &OpenCall) -> bool {
        self.decision.is_some() || self.calls.iter().any(|named| named.id == call.id.0)
    }

    /// The calls of the open turn that this would let run.
    fn released<'a>(&self, row: &'a Snapshot) -> Vec<&'a OpenCall> {
        let named = |call: &OpenCall| self.calls.iter().find(|named| named.id == call.id.0);
        let calls = row.turn.iter().flat_map(|turn| &turn.calls);
        calls
            .filter(|call| match named(call) {
                Some(named) => named.decision == Verdict::Approve,
                None => call.is_undecided() && self.decision == Some(Verdict::Approve),
            })
            .collect()
    }

    fn decision(self, who: &Who, execute: bool) -> Decision {
        let calls = self.calls.into_iter().map(|call| DecideCall {
            approved: call.decision == Verdict::Approve,
            reason: call.reason,
            arguments: call.arguments,
            ..DecideCall::approve(CallId(call.id))
        });
        Decision {
            digest: self.turn_digest,
            rest: self.decision.map(|verdict| verdict == Verdict::Approve),
            reason: self.reason,
            calls: calls.collect(),
            by: who.by(),
            execute,
        }
    }
}

impl App {
    /// Carries out a person's word and goes on with the run, whether the client stays or not.
    async fn carried_out(
        self: &Arc<Self>,
        word: impl Future<Output = Result<Decided, OrderError>> + Send + 'static,
    ) -> Result<(), Problem> {
        let app = Arc::clone(self);
        self.detached(async move {
            if let Some(execution) = word.await?.execution {
                app.execute(execution);
            }
            Ok(())
        })
        .await
    }

    /// The answer to a word that was taken, where it is waited for: when the run rests.
    async fn answer_to_word(&self, who: &Who, id: RunId, waits: Option<Duration>) -> Result<Response, Problem> {
        match waits {
            Some(patience) => self.answer_at_rest(who, id, patience).await,
            None => self.accepted(who, id).await,
        }
    }

    /// A place for a word, which may wait.
    fn place_for_word(&self, waits: bool) -> Result<OwnedSemaphorePermit, Problem> {
        if waits { self.stream_place() } else { self.request_place() }
    }

    /// Decides about calls that wait, as far as this caller may.
    pub(crate) async fn decided(self: &Arc<Self>, who: &Who, id: RunId, body: DecisionBody) -> Result<(), Problem> {
        let row = self.row(id).await?;
        let sees = who.sees(&row).is_ok();
        if !sees {
            self.told(who, &row, &body.turn_digest, |call| body.names(call)).await?;
        }
        body.check()?;
        if sees {
            who.may_decide(&row, body.released(&row).into_iter())?;
        }
        // A process that ends leaves the run to the others.
        let decision = body.decision(who, self.execute && !self.ending.is_cancelled());
        let runtime = self.runtime.clone();
        self.carried_out(async move { runtime.decide(id, decision).await }).await
    }

    /// Gives values to the call that waits for them, or declines, as far as this caller may.
    pub(crate) async fn given(self: &Arc<Self>, who: &Who, id: RunId, body: InputBody) -> Result<(), Problem> {
        let row = self.row(id).await?;
        if who.sees(&row).is_err() {
            self.told(who, &row, &body.turn_digest, |_| true).await?;
        } else {
            let waiting = row.turn.iter().flat_map(|turn| &turn.calls).filter(|call| call.is_undecided());
            // What a tool declares and nobody gives releases nothing. A call that has asked goes on, and is told so.
            who.may_decide(&row, waiting.filter(|call| !body.decline || call.has_asked()))?;
        }
        one_of(body.values.as_ref(), body.decline)?;
        let said = Submission {
            digest: body.turn_digest,
            values: body.values,
            by: who.by(),
            execute: self.execute && !self.ending.is_cancelled(),
        };
        let runtime = self.runtime.clone();
        self.carried_out(async move { runtime.submit(id, said).await }).await
    }

    /// An approver names by its digest a card that has been decided and that it was shown while a call of its tools waited: it is
    /// told who was faster, or that it was itself.
    async fn was_decided(&self, who: &Who, id: RunId, digest: &str) -> Result<bool, Problem> {
        if who.needs(Role::Approver).is_err() {
            return Ok(false);
        }
        let entries = self.details(who, id).await?.entries;
        let said = entries.iter().filter_map(|entry| match &entry.body {
            EntryBody::Approval(approval) if approval.digest == digest => Some(&approval.by.id),
            EntryBody::Input(input) if input.digest == digest => Some(&input.by.id),
            _ => None,
        });
        let said: Vec<&String> = said.collect();
        let shown = entries.iter().any(|entry| match &entry.body {
            EntryBody::Suspended(wait) => {
                wait.digest == digest && wait.card.calls.iter().any(|call| who.may_run(&call.tool.name))
            }
            _ => false,
        });
        Ok(!said.is_empty() && (shown || said.contains(&&who.principal.id)))
    }

    /// Who may not see the run and was shown a card is told what became of it, and has no word about a call that still waits.
    async fn told(&self, who: &Who, row: &Snapshot, digest: &str, names: impl Fn(&OpenCall) -> bool) -> Result<(), Problem> {
        if !self.was_decided(who, row.id, digest).await? {
            return Err(Problem::not_found());
        }
        let mut waiting = row.turn.iter().flat_map(|turn| &turn.calls).filter(|call| call.is_undecided());
        if waiting.any(names) { Err(Denied::Tools.into()) } else { Ok(()) }
    }
}

/// Decides about calls that wait.
#[utoipa::path(post, path = "/runs/{id}/decision", tag = "people", request_body = DecisionBody,
    params(("id" = String, Path, description = "The run", format = Uuid), DecisionQuery),
    responses(
        (status = 200, description = "With `wait`: the run settled or waits again", body = wire::Run),
        (status = 202, description = "The decision is taken", body = wire::Run)))]
pub(crate) async fn decide(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    RunPath(id): RunPath,
    Query(query): Query<DecisionQuery>,
    Json(body): Json<DecisionBody>,
) -> Result<Response, Problem> {
    let patience = query.wait.then_some(patience(query.timeout)?);
    let _place = app.place_for_word(query.wait)?;
    app.decided(&who, id, body).await?;
    app.answer_to_word(&who, id, patience).await
}

/// Values for a call that waits for them, or that there will be none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputBody {
    pub(crate) turn_digest: String,
    #[serde(default, deserialize_with = "present")]
    pub(crate) values: Option<Map<String, Value>>,
    #[serde(default)]
    pub(crate) decline: bool,
}

/// Values for a call that waits for them, or that there will be none.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
#[schema(as = InputBody)]
#[allow(dead_code, reason = "it describes what is read as another type")]
pub(crate) enum DescribedInput {
    Values(InputValues),
    Decline(InputDecline),
}

/// Values for a call that waits for them.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "it describes what is read as another type")]
pub(crate) struct InputValues {
    /// Names exactly what was shown.
    turn_digest: String,
    /// The values, by key.
    #[schema(value_type = Object)]
    values: Map<String, Value>,
    #[schema(schema_with = is_false, required = false)]
    decline: Option<bool>,
}

/// The call is given none: it is denied, or goes on without where it asked itself.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "it describes what is read as another type")]
pub(crate) struct InputDecline {
    /// Names exactly what was shown.
    turn_digest: String,
    #[schema(schema_with = is_true)]
    decline: bool,
}

/// Gives values to the call that waits for them, or declines. They are validated before anything is consumed; of a write they are its
/// release.
#[utoipa::path(post, path = "/runs/{id}/input", tag = "people", request_body = DescribedInput,
    params(("id" = String, Path, description = "The run", format = Uuid), DecisionQuery),
    responses(
        (status = 200, description = "With `wait`: the run settled or waits again", body = wire::Run),
        (status = 202, description = "The values are taken", body = wire::Run)))]
pub(crate) async fn input(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    RunPath(id): RunPath,
    Query(query): Query<DecisionQuery>,
    Json(body): Json<InputBody>,
) -> Result<Response, Problem> {
    let patience = query.wait.then_some(patience(query.timeout)?);
    let _place = app.place_for_word(query.wait)?;
    app.given(&who, id, body).await?;
    app.answer_to_word(&who, id, patience).await
}
