//! Who asks: a bearer token, or the session of a browser, and what it stands for. Every endpoint that says anything has a [`Caller`].

use super::{App, problem::Problem};
use crate::access::{Access, AccessError, NewSession, Who};
use async_trait::async_trait;
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use axum_extra::extract::CookieJar;
use leasehold::store::Unavailable;
use secrecy::{ExposeSecret as _, SecretString};
use std::sync::Arc;

/// Finds who a token or a session stands for, and begins and ends sessions.
#[async_trait]
pub(crate) trait Authenticate: Send + Sync {
    /// None: nobody, or not any more.
    async fn bearer(&self, token: &str) -> Result<Option<Who>, Unavailable>;
    /// None: nobody, or not any more.
    async fn session(&self, secret: &str) -> Result<Option<Who>, Unavailable>;
    /// A session for the person who shows this token; the browser's previous one ends.
    async fn with_token(&self, token: &str, previous: Option<&str>) -> Result<Option<NewSession>, AccessError>;
    /// A session for the user of this link, once; the browser's previous one ends.
    async fn with_link(&self, link: &str, previous: Option<&str>) -> Result<Option<NewSession>, AccessError>;
    /// Ends a session.
    async fn end(&self, secret: &str) -> Result<bool, AccessError>;
}

#[async_trait]
impl Authenticate for Access {
    async fn bearer(&self, token: &str) -> Result<Option<Who>, Unavailable> {
        Self::bearer(self, token).await
    }
    async fn session(&self, secret: &str) -> Result<Option<Who>, Unavailable> {
        Self::session(self, secret).await
    }
    async fn with_token(&self, token: &str, previous: Option<&str>) -> Result<Option<NewSession>, AccessError> {
        self.start_session(token, previous).await
    }
    async fn with_link(&self, link: &str, previous: Option<&str>) -> Result<Option<NewSession>, AccessError> {
        self.consume_link(link, previous).await
    }
    async fn end(&self, secret: &str) -> Result<bool, AccessError> {
        self.end_session(secret).await
    }
}

/// What a request shows.
#[derive(Clone, Debug)]
pub(crate) enum Shown {
    /// A token.
    Bearer(SecretString),
    /// The session of a browser.
    Session(SecretString),
}

/// An authenticated caller, within its rate.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Who.
    pub(crate) who: Who,
    /// What it showed, which has to go on counting for what lasts.
    pub(crate) shown: Shown,
}

fn unauthenticated(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
}

/// The token of a header.
fn token(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut headers = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(only), None) = (headers.next(), headers.next()) else {
        return Err(unauthenticated("this needs a token: Authorization: Bearer .."));
    };
    let text = only.to_str().unwrap_or_default();
    match text.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => Ok(token.trim()),
        _ => Err(unauthenticated("this needs a token: Authorization: Bearer ..")),
    }
}

impl App {
    /// The name of the cookie with a browser's session. Over TLS browsers bind it to this very host.
    pub(crate) fn cookie(&self) -> &'static str {
        if self.is_https() { "__Host-leasehold" } else { "leasehold" }
    }

    /// The secret of the session that a browser has.
    pub(crate) fn session_of(&self, headers: &HeaderMap) -> Option<SecretString> {
        CookieJar::from_headers(headers).get(self.cookie()).map(|cookie| cookie.value().into())
    }

    /// What a request shows. One that has a token has no session beside it.
    fn shown(&self, headers: &HeaderMap) -> Result<Shown, Problem> {
        match self.session_of(headers).filter(|_| !headers.contains_key(header::AUTHORIZATION)) {
            Some(session) => Ok(Shown::Session(session)),
            None => token(headers).map(|token| Shown::Bearer(token.into())),
        }
    }

    /// Who shows it; none: nobody, or not any more.
    pub(super) async fn known(&self, shown: &Shown) -> Result<Option<Who>, Unavailable> {
        match shown {
            Shown::Bearer(token) => self.access.bearer(token.expose_secret()).await,
            Shown::Session(secret) => self.access.session(secret.expose_secret()).await,
        }
    }
}

impl App {
    /// Who a browser's session stands for, within its rate; none: whoever it is has to log in.
    pub(crate) async fn visitor(&self, headers: &HeaderMap) -> Result<Option<Who>, Problem> {
        let Some(secret) = self.session_of(headers) else { return Ok(None) };
        let Some(who) = self.access.session(secret.expose_secret()).await? else { return Ok(None) };
        self.within_rate(&who)?;
        Ok(Some(who))
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let shown = app.shown(&parts.headers)?;
        let who = app.known(&shown).await?;
        let who = who.ok_or_else(|| match &shown {
            Shown::Bearer(_) => unauthenticated("this token is not known, or not any more"),
            Shown::Session(_) => unauthenticated("this session is over: log in"),
        })?;
        app.within_rate(&who)?;
        Ok(Self { who, shown })
    }
}
