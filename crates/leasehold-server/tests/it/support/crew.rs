//! Users and tokens of a sandbox, and requests of whoever has one.

use super::{Sandbox, api::Server, own, text};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

/// A token that was made.
#[derive(Clone, Debug)]
pub(crate) struct Made {
    pub(crate) secret: String,
    pub(crate) id: String,
}

impl Sandbox {
    /// Adds a user of that role.
    pub(crate) async fn user(&self, name: &str, role: &str, more: &[&str]) {
        self.leasehold(&[&["user", "add", name, "--role", role][..], more].concat()).await.exits(0);
    }
    /// Makes a token of a user.
    pub(crate) async fn token(&self, owner: &str, more: &[&str]) -> Made {
        let name = more.first().filter(|first| !first.starts_with("--"));
        let (name, more) = name.map_or(("t", more), |name| (*name, &more[1..]));
        let made = self.leasehold(&[&["token", "create", name, "--owner", owner, "--json"][..], more].concat()).await;
        let made = made.exits(0).json();
        Made { secret: text(&made, "/secret"), id: text(&made, "/id") }
    }
}

impl Server {
    /// A request of whoever has that token to a whole path, with a body where there is one.
    pub(crate) fn asked_by(&self, token: Option<&str>, method: Method, path: &str, body: Option<&Value>) -> RequestBuilder {
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        match body {
            Some(body) => request.header("content-type", "application/json").body(body.to_string()),
            None => request,
        }
    }
    /// What the record has of a run, as an administrator reads it: its row and its journal.
    pub(crate) async fn record(&self, id: &str) -> (Value, Value) {
        let row = own(self.get(&format!("/runs/{id}")).await.is(200));
        (row, self.get(&format!("/runs/{id}/events?limit=1000")).await.is(200))
    }
}
