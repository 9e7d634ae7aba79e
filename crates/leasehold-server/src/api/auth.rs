//! Who asks: a bearer token, and what it stands for. Every endpoint that says anything has a [`Caller`].

use super::{App, problem::Problem};
use crate::access::{Method, Role, Who};
use async_trait::async_trait;
use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, StatusCode, header, request::Parts},
};
use leasehold::{run::Principal, store::Unavailable};
use std::{collections::BTreeSet, sync::Arc};
use subtle::ConstantTimeEq as _;

/// Finds who a token stands for.
#[async_trait]
pub(crate) trait Authenticate: Send + Sync {
    /// None: nobody, or not any more.
    async fn bearer(&self, token: &str) -> Result<Option<Who>, Unavailable>;
}

/// One token, of `admin`.
pub(crate) struct OneToken(Option<String>);

impl OneToken {
    /// An empty one is none.
    pub(crate) fn new(token: Option<String>) -> Self {
        Self(token.filter(|token| !token.is_empty()))
    }
}

#[async_trait]
impl Authenticate for OneToken {
    async fn bearer(&self, token: &str) -> Result<Option<Who>, Unavailable> {
        let is_it = self.0.as_ref().is_some_and(|known| bool::from(known.as_bytes().ct_eq(token.as_bytes())));
        Ok(is_it.then(|| Who {
            principal: Principal::person("admin"),
            person: "admin".into(),
            role: Role::Admin,
            teams: BTreeSet::new(),
            tools: vec!["*".into()],
            method: Method::Token("environment".into()),
        }))
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
