//! Who asks: a bearer token, and what it stands for. Every endpoint that says anything has a [`Caller`].

use super::{App, problem::Problem};
use crate::access::{Access, Who};
use async_trait::async_trait;
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use leasehold::store::Unavailable;
use std::sync::Arc;

/// Finds who a token stands for.
#[async_trait]
pub(crate) trait Authenticate: Send + Sync {
    /// None: nobody, or not any more.
    async fn bearer(&self, token: &str) -> Result<Option<Who>, Unavailable>;
}

#[async_trait]
impl Authenticate for Access {
    async fn bearer(&self, token: &str) -> Result<Option<Who>, Unavailable> {
        Self::bearer(self, token).await
    }
}

/// An authenticated caller, within its rate.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Who);

fn unauthenticated(detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
}

/// What a request shows.
pub(super) fn token(headers: &HeaderMap) -> Result<&str, Problem> {
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

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;
    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        let who = app.access.bearer(token(&parts.headers)?).await?;
        let who = who.ok_or_else(|| unauthenticated("this token is not known, or not any more"))?;
        app.within_rate(&who)?;
        Ok(Self(who))
    }
}
