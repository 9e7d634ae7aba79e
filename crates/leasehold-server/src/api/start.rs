//! `POST /runs`: starts a run.

use super::{
    App, Caller,
    events::{Reader, Until, stream},
    extract::{Json, Query, Wants, maybe_objects, maybe_whole, words},
    limits,
    listen::Connection,
    problem::Problem,
};
use crate::{
    access::{Role, Who},
    wire,
};
use axum::{
    Extension,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse as _, Response},
};
use jiff::Timestamp;
use leasehold::{
    StartError, StartRun, Started, limits as bounds,
    run::{self, InputMessage, Request, RunId},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{sync::Arc, time::Duration};

words!(Speaker, StartMode, StartRecovery);

/// Who speaks in a message.
#[derive(Clone, Copy, Debug, Deserialize, strum::EnumString, strum::VariantNames, utoipa::ToSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Speaker {
    /// The caller.
    User,
    /// The model.
    Assistant,
}

/// A message of a conversation; text only.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    role: Speaker,
    text: String,
}

/// Whether the caller waits.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::EnumString, strum::VariantNames, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case", try_from = "String")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum StartMode {
    /// A worker takes it.
    #[default]
    Queue,
    /// The answer comes when the run settled or waits for a person.
    Wait,
}

/// Who finishes a run whose process died.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::EnumString, strum::VariantNames, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case", try_from = "String")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum StartRecovery {
    /// It goes back to the queue: the default of `queue`.
    Requeue,
    /// Nobody: the default of `wait`.
    Abandon,
}

/// A new run.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StartBody {
    /// The agent.
    agent: String,
    /// The task. Either this or `messages`.
    input: Option<String>,
    /// A conversation whose last message is the task.
    #[serde(default, deserialize_with = "maybe_objects")]
    messages: Option<Vec<Message>>,
    /// Whether the caller waits.
    #[serde(default)]
    #[schema(inline)]
    mode: StartMode,
    /// Who finishes it when its process died.
    #[schema(inline)]
    recovery: Option<StartRecovery>,
    /// Narrows the agent's tools: names, or beginnings before `*`.
    tools: Option<Vec<String>>,
    /// Narrows the agent's cap on rounds.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1)]
    max_rounds: Option<u32>,
    /// Larger is claimed earlier.
    #[serde(default, deserialize_with = "maybe_whole")]
    priority: Option<i32>,
    /// Not claimed before; only for `queue`.
    #[schema(value_type = Option<String>, format = DateTime)]
    run_at: Option<Timestamp>,
    /// The caller's own, given back as it came.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Map<String, Value>>,
    /// The team whose members see the run.
    team: Option<String>,
    /// Only says whether it could be started.
    #[serde(default)]
    dry_run: bool,
}

/// How a wait goes.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StartQuery {
    /// How long `wait` waits, in seconds.
    #[serde(default)]
    #[param(nullable = false, minimum = 1, maximum = 600)]
    timeout: Option<u32>,
    /// Until when a stream goes on.
    #[serde(default)]
    #[param(nullable = false, inline)]
    until: Option<Until>,
}

/// How long a request may wait.
pub(super) fn patience(seconds: Option<u32>) -> Result<Duration, Problem> {
    let seconds = seconds.unwrap_or(limits::WAIT_DEFAULT);
    if (1..=limits::WAIT_MAX).contains(&seconds) {
        Ok(Duration::from_secs(seconds.into()))
    } else {
        Err(Problem::parameter("timeout", format!("a wait is from 1 to {} seconds", limits::WAIT_MAX)))
    }
}

/// What a dry run answers.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct DryRun {
    dry_run: bool,
    agent: String,
    #[schema(inline)]
    mode: StartMode,
    #[schema(inline)]
    recovery: StartRecovery,
    /// What the agent would be offered.
    tools: Vec<String>,
    /// The cap on rounds that would hold.
    max_rounds: u32,
}

/// What a start that waits, or only asks, is answered.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum StartAnswer {
    #[allow(dead_code, reason = "a run is answered as everywhere; this describes both")]
    Run(Box<wire::Run>),
    DryRun(DryRun),
}

impl StartBody {
    fn recovery(&self) -> StartRecovery {
        self.recovery.unwrap_or(match self.mode {
            StartMode::Queue => StartRecovery::Requeue,
            StartMode::Wait => StartRecovery::Abandon,
        })
    }

    fn messages(&mut self) -> Result<Vec<InputMessage>, Problem> {
        let (messages, place) = match (self.input.take(), self.messages.take()) {
            (Some(text), None) => (vec![InputMessage { role: run::Role::User, text }], "#/input"),
            (None, Some(messages)) => {
                let role = |speaker| match speaker {
                    Speaker::User => run::Role::User,
                    Speaker::Assistant => run::Role::Assistant,
                };
                (messages.into_iter().map(|m| InputMessage { role: role(m.role), text: m.text }).collect(), "#/messages")
            }
            (Some(_), Some(_)) => return Err(Problem::field("#/messages", "give either input or messages")),
            (None, None) => return Err(Problem::field("#/input", "say what the agent should do")),
        };
        match messages.last() {
            Some(last) if last.role == run::Role::Assistant => {
                return Err(Problem::field(place, "the last message is the task: it is the user's"));
            }
            Some(last) if !last.text.trim().is_empty() => {}
            _ => return Err(Problem::field(place, "it is empty: say what the agent should do")),
        }
        let bytes: usize = messages.iter().map(|message| message.text.len()).sum();
        if bytes > bounds::REQUEST_BYTES_MAX {
            return Err(Problem::field(place, format!("at most {} bytes", bounds::REQUEST_BYTES_MAX)));
        }
        Ok(messages)
    }

    /// Whoever asks may start this.
    fn start(mut self, who: &Who) -> Result<StartRun, Problem> {
        let messages = self.messages()?;
        if self.max_rounds == Some(0) {
            return Err(Problem::field("#/max_rounds", "at least 1"));
        }
        if self.mode == StartMode::Wait && self.run_at.is_some() {
            return Err(Problem::field("#/run_at", "a run that is waited for starts at once"));
        }
        if let Some(team) = &self.team
            && !who.teams.contains(team)
            && who.needs(Role::Operator).is_err()
        {
            return Err(Problem::field("#/team", "this is none of the caller's teams"));
        }
        let request =
            Request { messages, tools: self.tools, max_rounds: self.max_rounds, metadata: self.metadata.unwrap_or_default() };
        Ok(StartRun {
            agent: self.agent,
            request,
            recovery: self.recovery.map(|recovery| match recovery {
                StartRecovery::Requeue => run::Recovery::Requeue,
                StartRecovery::Abandon => run::Recovery::Abandon,
            }),
            priority: self.priority.unwrap_or_default(),
            run_at: self.run_at,
            by: who.by(),
            initiator: Some(who.person.clone()),
            team: self.team,
        })
    }
}

fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all("idempotency-key").iter();
    let wrong = |why: &str| Problem::parameter("Idempotency-Key", why);
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err(wrong("there is more than one")),
        (Some(value), None) => match value.to_str() {
            Ok(key) if (1..=limits::KEY_BYTES_MAX).contains(&key.len()) => Ok(Some(key.to_owned())),
            _ => Err(wrong("a key is from 1 to 256 visible characters")),
        },
    }
}

impl App {
    /// Why an agent that is configured cannot run here says more than that it is not there.
    async fn not_started(&self, agent: &str, error: StartError) -> Problem {
        let executable = match self.in_force.now().await {
            Ok((_, executable)) => executable,
            Err(unknown) => return unknown.into(),
        };
        match (&error, executable.missing_agents.get(agent)) {
            (StartError::NoAgent(..), Some(why)) => {
                tracing::warn!("agent `{agent}` cannot run here: {why}");
                Problem::field("#/agent", format!("agent `{agent}` cannot run on this server"))
            }
            _ => error.into(),
        }
    }

    async fn dry_run(&self, mode: StartMode, recovery: StartRecovery, start: StartRun) -> Result<DryRun, Problem> {
        let agent = start.agent.clone();
        if let Err(error) = self.runtime.check_start(start.clone()) {
            return Err(self.not_started(&agent, error).await);
        }
        let registry = self.runtime.registry();
        let spec = registry.agent(&agent).ok_or_else(Problem::internal)?;
        let offered = registry.offered(spec, start.request.tools.as_deref());
        Ok(DryRun {
            dry_run: true,
            mode,
            recovery,
            tools: offered.iter().map(|tool| tool.spec().name.clone()).collect(),
            max_rounds: start.request.max_rounds.map_or(spec.max_rounds, |n| n.min(spec.max_rounds)),
            agent,
        })
    }

    /// Starts it here, or puts it in the queue; its id.
    async fn begin(self: &Arc<Self>, mode: StartMode, start: StartRun, key: Option<String>) -> Result<RunId, Problem> {
        if self.ending.is_cancelled() {
            return Err(Problem::ending());
        }
        let (app, agent) = (Arc::clone(self), start.agent.clone());
        let begun = self.detached(async move {
            let begun = match mode {
                StartMode::Wait if app.execute => app.runtime.start_once(start, key).await.map(|started| match started {
                    Started::Existing(run) => run,
                    Started::New(execution) => {
                        let run = execution.run();
                        app.execute(*execution);
                        run
                    }
                }),
                // Whoever waits is not here to go on, but its word on recovery holds.
                StartMode::Wait => {
                    let recovery = start.recovery.or(Some(run::Recovery::Abandon));
                    app.runtime.enqueue(StartRun { recovery, ..start }, key).await
                }
                StartMode::Queue => app.runtime.enqueue(start, key).await,
            };
            match begun {
                Ok(run) => Ok(run),
                Err(error) => Err(app.not_started(&agent, error).await),
            }
        });
        begun.await
    }
}

/// Starts a run.
///
/// The same `Idempotency-Key` with the same request is the same run; with another request it is a conflict. With
/// `Accept: text/event-stream` the answer is the run's events from the first.
#[utoipa::path(post, path = "/runs", tag = "runs", request_body = StartBody,
    params(StartQuery, ("Idempotency-Key" = Option<String>, Header, nullable = false, description = "At most 256 characters", min_length = 1, max_length = 256)),
    responses(
        (status = 200, description = "`wait`: the run settled or waits for a person. Or the answer to a dry run", content(
            (StartAnswer = "application/json"), (String = "text/event-stream"))),
        (status = 202, description = "The run, as it is now", body = wire::Run,
            headers(("Location" = String, description = "The run")))))]
pub(crate) async fn start(
    State(app): State<Arc<App>>,
    Caller { who, shown }: Caller,
    connection: Option<Extension<Connection>>,
    headers: HeaderMap,
    Query(query): Query<StartQuery>,
    Json(body): Json<StartBody>,
) -> Result<Response, Problem> {
    who.needs(Role::Runner)?;
    let (key, patience) = (key(&headers)?, patience(query.timeout)?);
    let (mode, recovery, dry_run) = (body.mode, body.recovery(), body.dry_run);
    let new = body.start(&who)?;
    if dry_run {
        return Ok((StatusCode::OK, axum::Json(StartAnswer::DryRun(app.dry_run(mode, recovery, new).await?))).into_response());
    }
    let events = Wants::of(&headers) == Wants::Events;
    // Before it is started: who cannot be answered starts nothing.
    let place = if events || mode == StartMode::Wait { app.stream_place()? } else { app.request_place()? };
    let id = app.begin(mode, new, key).await?;
    let mut response = match (events, mode) {
        (true, _) => {
            let connection = connection.map(|Extension(connection)| connection);
            stream(&app, &who, id, 0, query.until.unwrap_or_default(), Reader { connection, shown, _place: place })
        }
        (false, StartMode::Wait) => app.answer_at_rest(&who, id, patience).await?,
        (false, StartMode::Queue) => app.accepted(&who, id).await?,
    };
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert("leasehold-run-id", value);
    }
    Ok(response)
}
