//! Signing in and out. A link is shown a button and nothing else: what looks at links before people do (mail scanners, previews of
//! chats) consumes none.

use super::{
    Visitor,
    frame::{plain, refusal},
    is_local,
};
use crate::{
    access::{AccessError, NewSession},
    api::{App, Problem},
};
use axum::{
    Form,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse as _, Redirect, Response},
};
use axum_extra::extract::{
    CookieJar,
    cookie::{Cookie, SameSite},
};
use maud::{Markup, html};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use std::sync::Arc;

/// The page to sign in at, which then goes to where somebody wanted to go.
pub(super) fn path(wanted: &Uri) -> String {
    match wanted.path_and_query().map(|path| path.as_str()).filter(|path| is_local(path) && *path != "/") {
        Some(path) => format!("/login?next={}", utf8_percent_encode(path, NON_ALPHANUMERIC)),
        None => "/login".to_owned(),
    }
}

/// What brings somebody here.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    /// A link that signs in once.
    link: Option<String>,
    /// Where to go then.
    next: Option<String>,
}

/// What the form sends.
#[derive(Deserialize)]
pub(super) struct Entry {
    token: Option<SecretString>,
    link: Option<SecretString>,
    next: Option<String>,
}

fn hidden(name: &str, value: Option<&str>) -> Markup {
    html! { @if let Some(value) = value { input type="hidden" name=(name) value=(value); } }
}

fn form(asked: &Asked, refused: Option<&str>) -> Markup {
    let next = asked.next.as_deref().filter(|path| is_local(path));
    html! {
        div.sheet {
            h1 { "Sign in" }
            @if let Some(why) = refused {
                div.notice data-tone="bad" role="alert" { p { (why) } }
            }
            form.stack method="post" action="/login" {
                (hidden("next", next))
                @if let Some(link) = &asked.link {
                    (hidden("link", Some(link)))
                    p { "This link signs you in once." }
                } @else {
                    input type="text" name="username" autocomplete="username" value="token" hidden;
                    div.field {
                        label for="token" { "Token" }
                        input id="token" name="token" type="password" autocomplete="current-password" required spellcheck="false"
                            aria-describedby="token-hint";
                        p.hint id="token-hint" { "Starts with " code { "lh_" } ". Pasting and password managers work." }
                    }
                }
                button.btn data-look="primary" { "Sign in" }
            }
            @if asked.link.is_none() {
                details.more {
                    summary { "No token yet?" }
                    div.stack-tight.small {
                        p { "Whoever runs this server makes you a link that signs you in once:" }
                        pre.code tabindex="0" role="region" aria-label="Command" { "leasehold user login NAME" }
                    }
                }
            }
        }
    }
}

/// The form, or the button of a link.
pub(super) async fn show(State(app): State<Arc<App>>, headers: HeaderMap, Query(asked): Query<Asked>) -> Response {
    let known = match app.visitor(&headers).await {
        Ok(known) => known,
        Err(problem) => return refusal(false, &problem),
    };
    // A link may be somebody else's: it is asked about in any case.
    match (known, &asked.link) {
        (Some(_), None) => go_on(asked.next.as_deref()),
        _ => plain(StatusCode::OK, "Sign in", &form(&asked, None)),
    }
}

fn go_on(next: Option<&str>) -> Response {
    Redirect::to(next.filter(|path| is_local(path)).unwrap_or("/")).into_response()
}

impl App {
    fn cookie_of(&self, secret: SecretString) -> Cookie<'static> {
        let mut cookie = Cookie::new(self.cookie(), secret.expose_secret().to_owned());
        cookie.set_http_only(true);
        cookie.set_secure(self.is_https());
        cookie.set_same_site(SameSite::Lax);
        cookie.set_path("/");
        cookie
    }
}

/// Begins a session. The browser's previous one ends, and the secret is a new one.
pub(super) async fn enter(State(app): State<Arc<App>>, headers: HeaderMap, Form(entry): Form<Entry>) -> Response {
    let previous = app.session_of(&headers);
    let previous = previous.as_ref().map(|secret| secret.expose_secret());
    let begun: Result<Option<NewSession>, AccessError> = match (&entry.link, &entry.token) {
        (Some(link), _) => app.access().with_link(link.expose_secret(), previous).await,
        (None, Some(token)) => app.access().with_token(token.expose_secret().trim(), previous).await,
        (None, None) => Ok(None),
    };
    match begun {
        Ok(Some(session)) => {
            let jar = CookieJar::new().add(app.cookie_of(session.secret));
            (jar, go_on(entry.next.as_deref())).into_response()
        }
        Ok(None) => {
            let why = match entry.link {
                Some(_) => "This link was used, is older than ten minutes, or is none. Ask for another one.",
                None => "This token is not known here, was revoked, or is a machine's.",
            };
            let asked = Asked { link: None, next: entry.next };
            plain(StatusCode::UNAUTHORIZED, "Sign in", &form(&asked, Some(why)))
        }
        Err(error) => refusal(false, &Problem::from(error)),
    }
}

/// Ends the session.
pub(super) async fn leave(State(app): State<Arc<App>>, headers: HeaderMap, _visitor: Visitor) -> Response {
    let Some(secret) = app.session_of(&headers) else { return Redirect::to("/login").into_response() };
    match app.access().end(secret.expose_secret()).await {
        Ok(_) => {
            let gone = app.cookie_of(SecretString::default());
            (CookieJar::new().add(expired(gone)), Redirect::to("/login")).into_response()
        }
        Err(error) => refusal(true, &Problem::from(error)),
    }
}

/// As a browser forgets it.
fn expired(mut cookie: Cookie<'static>) -> Cookie<'static> {
    cookie.make_removal();
    cookie
}
