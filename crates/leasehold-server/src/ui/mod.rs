//! Pages for people: plain HTML that works without scripts. Who may see, decide and order what is the API's rule, and its functions do it.
//! Text of models, tools and far sides comes in through [`maud`], which escapes it, after the screen has made it visible.

mod approve;
mod ask;
mod card;
mod dead;
mod doubt;
mod form;
mod frame;
mod inbox;
mod kept;
mod login;
mod run;
mod runs;
mod say;
mod story;
mod text;

use crate::{
    access::Who,
    api::{App, Problem, RunPath},
};
use axum::{
    Form, Router,
    extract::{FromRequest, FromRequestParts, Request},
    http::{StatusCode, Uri, header, request::Parts},
    response::{IntoResponse as _, Redirect, Response},
    routing::{get, post},
};
use frame::{Flash, refusal};
use kept::Kept;
use leasehold::run::RunId;
use std::sync::Arc;

/// Every page.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(inbox::page))
        .route("/login", get(login::show).post(login::enter))
        .route("/logout", post(login::leave))
        .route("/runs", get(runs::page))
        .route("/runs/{id}", get(run::page))
        .route("/runs/{id}/decision", post(say::decision))
        .route("/runs/{id}/input", post(say::input))
        .route("/runs/{id}/answer", post(say::answer))
        .route("/runs/{id}/resolve", post(say::resolve))
        .route("/runs/{id}/redrive", post(say::redrive))
        .route("/runs/{id}/discard", post(say::discard))
        .route("/runs/{id}/cancel", post(say::cancel))
        .route("/assets/leasehold.css", get(|| asset("text/css", include_bytes!("assets/leasehold.css"))))
        .route("/assets/icon.svg", get(|| asset("image/svg+xml", include_bytes!("assets/icon.svg"))))
}

async fn asset(kind: &'static str, bytes: &'static [u8]) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=3600")], bytes).into_response()
}

/// A page that is not there.
pub(crate) fn nothing_here() -> Response {
    refusal(true, &Problem::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here"))
}

/// Somebody who has logged in; whoever has not is sent to do so, and then to where it wanted to go.
pub(crate) struct Visitor {
    who: Who,
    /// What came of its last order, where no page has said so.
    said: Option<Flash>,
}

impl FromRequestParts<Arc<App>> for Visitor {
    type Rejection = Response;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        match app.visitor(&parts.headers).await {
            Ok(Some(who)) => Ok(Self { who, said: app.flash(&parts.headers) }),
            // A form is not sent again by itself.
            Ok(None) if parts.method != axum::http::Method::GET => Err(Redirect::to("/login").into_response()),
            Ok(None) => Err(Redirect::to(&login::path(&parts.uri)).into_response()),
            Err(problem) => Err(refusal(false, &problem)),
        }
    }
}

/// The run that a page's path names.
pub(crate) struct Run(RunId);

impl FromRequestParts<Arc<App>> for Run {
    type Rejection = Response;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        match RunPath::from_request_parts(parts, app).await {
            Ok(RunPath(id)) => Ok(Self(id)),
            Err(problem) => Err(refusal(true, &problem)),
        }
    }
}

/// What a form of a page sends.
pub(crate) struct Sent(Kept);

impl<S: Send + Sync> FromRequest<S> for Sent {
    type Rejection = Response;
    async fn from_request(request: Request, state: &S) -> Result<Self, Response> {
        match Form::<Vec<(String, String)>>::from_request(request, state).await {
            Ok(Form(pairs)) => Kept::bounded(pairs).map(Self).map_err(|problem| refusal(true, &problem)),
            Err(rejection) => {
                let problem = Problem::new(rejection.status(), "not_read", "the form did not arrive whole, or is too long");
                Err(refusal(true, &problem))
            }
        }
    }
}

/// A path of this server, and nothing that a browser takes for another one.
fn is_local(path: &str) -> bool {
    let plain = path.starts_with('/') && !path.starts_with("//") && !path.contains('\\');
    plain && path.parse::<Uri>().is_ok_and(|uri| uri.authority().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_path_of_this_server_is_gone_to() {
        for path in ["/", "/runs/0191?x=1", "/runs/a%2Fb"] {
            assert!(is_local(path), "{path}");
        }
        for path in ["", "runs", "//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "/a\nb"] {
            assert!(!is_local(path), "{path}");
        }
    }
}
