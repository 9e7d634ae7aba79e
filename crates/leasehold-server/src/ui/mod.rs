//! Pages for people: plain HTML that works without scripts. They say what the commands say, and who may see what is the API's rule.
//! Text of models, tools and far sides comes in through [`maud`], which escapes it, after the screen has made it visible.

mod inbox;
mod login;
mod run;

use crate::{
    access::Who,
    api::{App, Problem},
};
use axum::{
    Router,
    extract::FromRequestParts,
    http::{HeaderName, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse as _, Redirect, Response},
    routing::{get, post},
};
use maud::{DOCTYPE, Markup, html};
use std::sync::Arc;

/// What a page may load and where its forms go: this server alone.
const POLICY: [(HeaderName, &str); 2] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    // A form of a page names its origin only where it may.
    (header::REFERRER_POLICY, "same-origin"),
];

/// Every page.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(inbox::page))
        .route("/login", get(login::show).post(login::enter))
        .route("/logout", post(login::leave))
        .route("/runs/{id}", get(run::page))
        .route("/assets/leasehold.css", get(|| asset("text/css", include_bytes!("assets/leasehold.css"))))
        .route("/assets/icon.svg", get(|| asset("image/svg+xml", include_bytes!("assets/icon.svg"))))
}

async fn asset(kind: &'static str, bytes: &'static [u8]) -> Response {
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "max-age=3600")], bytes).into_response()
}

/// Somebody who has logged in; whoever has not is sent to do so, and then to where it wanted to go.
pub(crate) struct Visitor(Who);

impl FromRequestParts<Arc<App>> for Visitor {
    type Rejection = Response;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Response> {
        match app.visitor(&parts.headers).await {
            Ok(Some(who)) => Ok(Self(who)),
            Ok(None) => Err(Redirect::to(&login::path(&parts.uri)).into_response()),
            Err(problem) => Err(refusal(None, &problem)),
        }
    }
}

/// A path of this server, and nothing that a browser takes for another one.
fn is_local(path: &str) -> bool {
    let plain = path.starts_with('/') && !path.starts_with("//") && !path.contains('\\');
    plain && path.parse::<Uri>().is_ok_and(|uri| uri.authority().is_none())
}

/// A whole page.
fn document(title: &str, who: Option<&Who>, main: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · leasehold" }
                link rel="icon" href="/assets/icon.svg";
                link rel="stylesheet" href="/assets/leasehold.css";
            }
            body.plain {
                main id="main" {
                    p.brand { "leasehold" }
                    (main)
                    @if let Some(who) = who {
                        form method="post" action="/logout" {
                            p.small.muted { (who.principal.id) " · " a href="/" { "inbox" } " " button.btn { "Sign out" } }
                        }
                    }
                }
            }
        }
    }
}

fn page(status: StatusCode, title: &str, who: Option<&Who>, main: &Markup) -> Response {
    (status, POLICY, document(title, who, main)).into_response()
}

/// What was refused, for people.
fn refusal(who: Option<&Who>, problem: &Problem) -> Response {
    let status = problem.status();
    let main = html! {
        div.sheet {
            h1 { (status.canonical_reason().unwrap_or("Refused")) }
            div.notice data-tone="bad" role="alert" { p { (problem.detail()) } }
        }
    };
    page(status, "Refused", who, &main)
}

/// What the command prints.
fn screen(title: &str, who: &Who, text: &str) -> Response {
    page(
        StatusCode::OK,
        title,
        Some(who),
        &html! { h1 { (title) } pre.code tabindex="0" role="region" aria-label=(title) { (text) } },
    )
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
