//! What a refusal looks like: problem details (RFC 9457) with a stable `code`. A refused request has changed nothing, but where the
//! store did not answer.

use crate::access::{AccessError, Denied};
use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use leasehold::{
    OrderError, StartError,
    run::Rejection,
    store::{ReadError, StoreRefused, Unavailable},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// What is wrong with one field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub(crate) struct FieldError {
    /// A field of the body, as a JSON pointer: `#/calls/0/decision`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pointer: Option<String>,
    /// A parameter of the query or a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) parameter: Option<String>,
    /// What is wrong with it.
    pub(crate) detail: String,
}

/// A refusal.
#[derive(Clone, Debug, Serialize)]
#[serde(into = "Shown")]
pub(crate) struct Problem {
    status: u16,
    /// What programs match on.
    pub(crate) code: &'static str,
    detail: String,
    errors: Vec<FieldError>,
    more: Option<Box<Map<String, Value>>>,
    retry_after: Option<u64>,
}

/// As it is sent.
#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Problem)]
pub(crate) struct Shown {
    /// A name for this kind of problem.
    #[serde(rename = "type")]
    kind: String,
    /// The status in words.
    title: &'static str,
    /// The status.
    status: u16,
    /// What programs match on.
    code: &'static str,
    /// What happened, for people.
    detail: String,
    /// Per field, where the input is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    errors: Vec<FieldError>,
    /// What belongs to the code: until when, by whom.
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl From<Problem> for Shown {
    fn from(problem: Problem) -> Self {
        let Problem { status, code, detail, errors, more, .. } = problem;
        let title = StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Refused");
        Self {
            kind: format!("urn:leasehold:{code}"),
            title,
            status,
            code,
            detail,
            errors,
            more: more.map(|m| *m).unwrap_or_default(),
        }
    }
}

impl Problem {
    /// With a status and a code.
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status: status.as_u16(), code, detail: detail.into(), errors: Vec::new(), more: None, retry_after: None }
    }
    /// There is no such thing, or none that the caller may know of.
    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", Denied::NotYours.to_string())
    }
    /// A field of the body is wrong.
    pub(crate) fn field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let (pointer, detail) = (Some(pointer.into()), detail.into());
        Self::invalid(FieldError { pointer, parameter: None, detail })
    }
    /// A parameter is wrong.
    pub(crate) fn parameter(name: impl Into<String>, detail: impl Into<String>) -> Self {
        let (parameter, detail) = (Some(name.into()), detail.into());
        Self::invalid(FieldError { pointer: None, parameter, detail })
    }
    fn invalid(error: FieldError) -> Self {
        let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_input", error.detail.clone());
        problem.errors.push(error);
        problem
    }
    /// Too much at once here.
    pub(crate) fn overloaded(what: &str) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", format!("too many {what} at once: try again")).retry(1)
    }
    /// This process begins nothing more.
    pub(crate) fn ending() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "ending", "this server is ending: ask the next one").retry(2)
    }
    /// Not a word about what it was.
    pub(crate) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "something broke here; the log of the server says what")
    }
    /// After so many seconds.
    pub(crate) fn retry(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }
    /// The status.
    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
    /// What happened, for people.
    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
    /// After so many seconds the same may be asked again.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.retry_after
    }
    /// What is wrong with each field.
    pub(crate) fn errors(&self) -> &[FieldError] {
        &self.errors
    }
    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.more.get_or_insert_default().insert(name.to_owned(), value.into());
        self
    }
    fn refused(rejection: &Rejection) -> Self {
        let status = match rejection {
            Rejection::MachineMayNotRelease | Rejection::SelfApproval(_) => StatusCode::FORBIDDEN,
            Rejection::OffTable { .. } => return Self::internal(),
            _ => StatusCode::CONFLICT,
        };
        let problem = Self::new(status, rejection.code(), rejection.to_string());
        match rejection {
            Rejection::UnknownCall(call) => Self::field("#/calls", format!("there is no call {call} that waits")),
            Rejection::EmptyCard => Self::field("#", "this decides about no call"),
            Rejection::AlreadyDecided { call, by, at } => {
                problem.with("call_id", call.to_string()).with("by", by.clone()).with("at", at.to_string())
            }
            Rejection::TooEarly(until) => problem.with("until", until.to_string()),
            Rejection::DeadlinePassed(at) => problem.with("deadline", at.to_string()),
            Rejection::NotInState { state, .. } | Rejection::NotWaiting(state) => problem.with("state", state.as_str()),
            _ => problem,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, [(header::CONTENT_TYPE, "application/problem+json")], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::NotYours => Self::not_found(),
            Denied::Role(role) => {
                let role: &'static str = role.into();
                Self::new(StatusCode::FORBIDDEN, denied.code(), format!("this needs the role {role}")).with("role", role)
            }
            _ => Self::new(StatusCode::FORBIDDEN, denied.code(), denied.to_string()),
        }
    }
}

impl From<AccessError> for Problem {
    fn from(error: AccessError) -> Self {
        match error {
            AccessError::Denied(denied) => denied.into(),
            AccessError::Unavailable(unavailable) => unavailable.into(),
            AccessError::Invalid { field, why } => Self::field(format!("#/{field}"), why),
            AccessError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, error.code(), error.to_string()),
            AccessError::Exists(_) | AccessError::Conflict(_) => {
                Self::new(StatusCode::CONFLICT, error.code(), error.to_string())
            }
        }
    }
}

impl From<Unavailable> for Problem {
    fn from(unavailable: Unavailable) -> Self {
        tracing::warn!("the store did not answer a request: {unavailable}");
        let detail = "the store does not answer; an order may have been taken, and the same order again gets the same answer";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail).retry(2)
    }
}

impl From<StoreRefused> for Problem {
    fn from(refused: StoreRefused) -> Self {
        tracing::warn!("the store refused a request: {refused}");
        Self::new(StatusCode::INSUFFICIENT_STORAGE, "store_refused", "the store would not have it: nothing has changed")
    }
}

/// A record that does not decode.
fn unreadable(why: &str) -> Problem {
    tracing::warn!("a request met a record that does not decode: {why}");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "unreadable", "the record of this run does not decode")
}

impl From<ReadError> for Problem {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Unavailable(unavailable) => unavailable.into(),
            ReadError::Corrupt { why, .. } => unreadable(&why),
        }
    }
}

impl From<OrderError> for Problem {
    fn from(error: OrderError) -> Self {
        match error {
            OrderError::Refused(rejection) => Self::refused(&rejection),
            OrderError::NotFound => Self::not_found(),
            OrderError::Invalid(why) => Self::field("#/calls", why),
            OrderError::InvalidFields(fields) => {
                let mut problem = Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_input", "the values do not fit");
                problem.errors.extend(fields.into_iter().map(|field| FieldError {
                    pointer: Some(format!("#/values{}", field.pointer)),
                    parameter: None,
                    detail: field.why,
                }));
                problem
            }
            OrderError::Unavailable(unavailable) => unavailable.into(),
            OrderError::StoreRefused(refused) => refused.into(),
            OrderError::VerifiedLanded(result) => {
                let detail = "the far side was asked and says that the write landed";
                Self::new(StatusCode::CONFLICT, "verified_landed", detail).with("result", result)
            }
            OrderError::Unreadable(why) => unreadable(&why),
        }
    }
}

impl From<StartError> for Problem {
    fn from(error: StartError) -> Self {
        match error {
            StartError::NoAgent(..) => Self::field("#/agent", error.to_string()),
            // What else may be wrong with a request was looked at before.
            StartError::Invalid(why) if why.starts_with("the metadata") => Self::field("#/metadata", why),
            StartError::Invalid(why) => Self::field("#/tools", why),
            StartError::KeyConflict(run) => {
                Self::new(StatusCode::CONFLICT, "key_conflict", error.to_string()).with("run", json!(run))
            }
            StartError::Unavailable(unavailable) => unavailable.into(),
            StartError::StoreRefused(refused) => refused.into(),
            StartError::Lost(why) => Unavailable(why).into(),
        }
    }
}
