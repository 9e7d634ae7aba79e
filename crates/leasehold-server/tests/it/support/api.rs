//! A real `leasehold serve`, and a client of its API.

use super::{PATIENCE, Sandbox, text, until};
use reqwest::{Method, RequestBuilder, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Child,
    time::timeout,
};

/// What the tests let `serve` accept.
pub(crate) const TOKEN: &str = "a-token-of-the-tests-0123456789abcdef";

/// Between two questions of one who waits: half of what the limit of requests allows.
const PAUSE: Duration = Duration::from_millis(20);

/// A server that runs; killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) url: String,
    pub(crate) client: reqwest::Client,
    said: Arc<Mutex<String>>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: reqwest::header::HeaderMap,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) async fn of(request: RequestBuilder) -> Self {
        let response = timeout(PATIENCE, request.send()).await.expect("an answer in time").unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        Self { status, headers, body: timeout(PATIENCE, response.text()).await.expect("a body in time").unwrap() }
    }
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("not JSON ({e}): {self:?}"))
    }
    /// The body where the status is that.
    #[track_caller]
    pub(crate) fn is(&self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        self.json()
    }
    /// A problem with that status and code.
    #[track_caller]
    pub(crate) fn problem(&self, status: u16, code: &str) -> Value {
        let kind = self.headers.get("content-type").map(|value| value.to_str().unwrap());
        assert_eq!((self.status.as_u16(), kind), (status, Some("application/problem+json")), "{self:?}");
        let problem = self.json();
        assert_eq!((&problem["code"], &problem["status"]), (&code.into(), &status.into()), "{self:?}");
        problem
    }
}

impl Sandbox {
    /// Starts a server with the configuration's `[server]` on a free port.
    pub(crate) async fn serve(&self) -> Server {
        self.serve_with(&[]).await
    }
    /// The same with more environment.
    pub(crate) async fn serve_with(&self, environment: &[(&str, &str)]) -> Server {
        let mut command = self.command(&["serve"]);
        command.env("LEASEHOLD_SERVER_LISTEN", "127.0.0.1:0").env("LEASEHOLD_ADMIN_TOKEN", TOKEN);
        command.envs(environment.iter().copied());
        let mut child = command.spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (heard, stderr) = (Arc::clone(&said), child.stderr.take().unwrap());
        tokio::spawn(async move {
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let mut said = heard.lock().unwrap();
                said.push_str(&line);
                said.push('\n');
            }
        });
        let url = until(|| {
            let text = said.lock().unwrap().clone();
            if let Some(status) = child.try_wait().unwrap() {
                panic!("serve ended ({status}): {text}");
            }
            text.lines().find_map(|line| line.strip_prefix("listening on ").map(str::to_owned))
        })
        .await;
        Server { child, url, client: reqwest::Client::new(), said }
    }
}

impl Server {
    /// A request with the token.
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}/api/v1{path}", self.url)).bearer_auth(TOKEN)
    }
    pub(crate) async fn get(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, path)).await
    }
    /// Posts JSON as it is written.
    pub(crate) fn posting(&self, path: &str, body: impl ToString) -> RequestBuilder {
        self.request(Method::POST, path).header("content-type", "application/json").body(body.to_string())
    }
    pub(crate) async fn post(&self, path: &str, body: impl ToString) -> Answer {
        Answer::of(self.posting(path, body)).await
    }
    /// Queues a run of the clerk.
    pub(crate) async fn queue(&self) -> String {
        text(&self.post("/runs", r#"{"agent": "clerk", "input": "note hello"}"#).await.is(202), "/id")
    }
    /// A run that waits, and the digest of its card.
    pub(crate) async fn suspended(&self) -> (String, String) {
        let body = r#"{"agent": "clerk", "input": "note hello", "mode": "wait"}"#;
        let run = self.post("/runs", body).await.is(200);
        assert_eq!(run["state"], "waiting_for_approval", "{run}");
        (text(&run, "/id"), text(&run, "/waiting/turn_digest"))
    }
    /// Asks, slower than a principal may, until that is the answer.
    pub(crate) async fn until(&self, ask: impl Fn() -> RequestBuilder, is: impl Fn(&Answer) -> bool) -> Answer {
        let since = Instant::now();
        loop {
            let answer = Answer::of(ask()).await;
            if is(&answer) {
                return answer;
            }
            assert!(since.elapsed() < PATIENCE, "{answer:?}");
            tokio::time::sleep(PAUSE).await;
        }
    }
    pub(crate) async fn until_state(&self, id: &str, state: &str) -> Value {
        let ask = || self.request(Method::GET, &format!("/runs/{id}"));
        self.until(ask, |answer| answer.is(200)["state"] == state).await.json()
    }
    /// Opens a stream.
    pub(crate) async fn stream(&self, path: &str, last: Option<u64>) -> Events {
        let mut request = self.request(Method::GET, path).header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Events::of(request).await
    }
    pub(crate) fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid().try_into().unwrap()).unwrap(), signal).unwrap();
    }
    /// Waits until it has ended; its exit code and what it said.
    pub(crate) async fn ended(mut self) -> (Option<i32>, String) {
        let status = timeout(PATIENCE, self.child.wait()).await.expect("serve ends").unwrap();
        (status.code(), self.said())
    }
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }
}

/// An event of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) id: Option<u64>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

/// A stream that is read.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) response: reqwest::Response,
    read: String,
}

impl Events {
    pub(crate) async fn of(request: RequestBuilder) -> Self {
        let response = timeout(PATIENCE, request.send()).await.expect("an answer in time").unwrap();
        Self { response, read: String::new() }
    }
    /// The next event; none where the stream has ended.
    pub(crate) async fn next(&mut self) -> Option<Sent> {
        loop {
            while let Some((block, rest)) = self.read.split_once("\n\n") {
                let (block, rest) = (block.to_owned(), rest.to_owned());
                self.read = rest;
                let field = |name: &str| block.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                // A comment keeps the connection alive.
                if let Some(data) = field("data:") {
                    let id = field("id:").map(|id| id.parse().unwrap());
                    let name = field("event:").unwrap_or_default().to_owned();
                    return Some(Sent { id, name, data: serde_json::from_str(data).unwrap() });
                }
            }
            // A server that is killed breaks its streams off.
            match timeout(PATIENCE, self.response.chunk()).await.expect("an event in time") {
                Ok(Some(bytes)) => self.read.push_str(std::str::from_utf8(&bytes).unwrap()),
                Ok(None) | Err(_) => return None,
            }
        }
    }
    /// Until it ends.
    pub(crate) async fn rest(mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await {
            all.push(event);
        }
        all
    }
    /// Until an event of that name, which is the last of them.
    pub(crate) async fn until(&mut self, name: &str) -> Vec<Sent> {
        let mut all = Vec::new();
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("it ended without {name}: {all:?}"));
            all.push(event);
            if all.last().is_some_and(|last| last.name == name) {
                return all;
            }
        }
    }
}

/// What is on record, without the pieces of text between.
pub(crate) fn recorded(events: &[Sent]) -> Vec<u64> {
    events.iter().filter_map(|event| event.id).collect()
}
