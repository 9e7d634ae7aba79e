//! People with tokens of their own at a real server, and how a run stands before and after they spoke.

use super::{
    Sandbox,
    api::{Answer, Server},
    own, text,
};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

/// A user with a token.
pub(crate) struct Person {
    secret: String,
}

/// What no refused word may change: the state, what is waited for, the journal, and what arrived at the far side.
#[derive(Debug, PartialEq)]
pub(crate) struct Stands {
    pub(crate) state: String,
    pub(crate) waiting: Value,
    pub(crate) journal: Vec<Value>,
    pub(crate) arrived: usize,
}

impl Sandbox {
    /// Makes a user of that role and those tools, and a token for it.
    pub(crate) async fn person(&self, name: &str, role: &str, tools: &[&str]) -> Person {
        let mut add = vec!["user", "add", name, "--role", role];
        add.extend(tools.iter().flat_map(|tool| ["--tool", tool]));
        self.leasehold(&add).await.exits(0);
        let made = self.leasehold(&["token", "create", "t", "--owner", name, "--json"]).await.exits(0).json();
        Person { secret: text(&made, "/secret") }
    }
    /// Writes the configuration anew with each of these replaced, which has to be there.
    pub(crate) fn change(&self, replaced: &[(&str, &str)]) {
        let mut config = std::fs::read_to_string(self.path("leasehold.toml")).unwrap();
        for (old, new) in replaced {
            assert!(config.contains(old), "{old} is not in:\n{config}");
            config = config.replace(old, new);
        }
        self.write("leasehold.toml", &config);
    }
    /// How a run stands, as the first administrator sees it.
    pub(crate) async fn stands(&self, server: &Server, id: &str) -> Stands {
        let run = own(server.get(&format!("/runs/{id}")).await.is(200));
        let journal = server.get(&format!("/runs/{id}/events?limit=1000")).await.is(200)["items"].as_array().unwrap().clone();
        Stands { state: text(&run, "/state"), waiting: run["waiting"].clone(), journal, arrived: self.far.arrived().len() }
    }
}

impl Person {
    fn request(&self, server: &Server, method: Method, path: &str) -> RequestBuilder {
        server.client.request(method, format!("{}/api/v1{path}", server.url)).bearer_auth(&self.secret)
    }
    pub(crate) async fn get(&self, server: &Server, path: &str) -> Answer {
        Answer::of(self.request(server, Method::GET, path)).await
    }
    pub(crate) async fn post(&self, server: &Server, path: &str, body: impl ToString) -> Answer {
        let request = self.request(server, Method::POST, path).header("content-type", "application/json");
        Answer::of(request.body(body.to_string())).await
    }
    /// Decides about all that waits.
    pub(crate) async fn decides(&self, server: &Server, (id, digest): (&str, &str), word: &str) -> Answer {
        self.post(server, &format!("/runs/{id}/decision"), decision(digest, word)).await
    }
}

/// One word about all that waits.
pub(crate) fn decision(digest: &str, word: &str) -> Value {
    json!({ "turn_digest": digest, "decision": word })
}
