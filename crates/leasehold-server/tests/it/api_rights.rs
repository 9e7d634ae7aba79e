//! Who may do what over HTTP, as one table: every route of the served description, and every kind of caller. What is refused has
//! changed nothing and says nothing of a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    Sandbox,
    api::{Answer, Server, TOKEN},
    crew::Made,
    one_call, text,
};
use leasehold_testkit::far_side::Then;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The callers, in the order of the table's columns.
const CALLERS: [&str; 14] = [
    "none",    // no token
    "wrong",   // a token that is none
    "expired", // of the runner `rita`
    "revoked", // of the runner `rita`
    "gone",    // of an administrator who was disabled
    "viewer",  // of no shared run
    "member",  // a viewer of the run's team
    "owner",   // a token of `rita` with the role runner, which started every run
    "runner",  // of another team
    "appr",    // an approver of the run's tools
    "other",   // an approver of other tools
    "machine", // of `rita`, with the role approver and every tool
    "oper",    // an operator without tools
    "admin",
];

/// A line is a request: what is asked for, with which body or `Accept`, and of which run. A cell is the answer: a status; `+` where
/// the list has the run and `-` where it has not; or a refusal: 401 `unauthenticated`, 404 `not_found`, `role` 403 `not_permitted`,
/// `tool` 403 `approver_not_permitted`, `mach` 403 `machine_may_not_release`, `early` 409 `too_early`, which is a rule of the run
/// and not of rights.
const TABLE: &str = "
                                                              none wrong expired revoked gone viewer member owner runner appr other machine oper admin
GET  /healthz                       -          -              204  204   204     204     204  204    204    204   204    204  204   204     204  204
GET  /readyz                        -          -              204  204   204     204     204  204    204    204   204    204  204   204     204  204
GET  /api/v1/agents                 -          -              401  401   401     401     401  200    200    200   200    200  200   200     200  200
GET  /api/v1/tools                  -          -              401  401   401     401     401  200    200    200   200    200  200   200     200  200
GET  /api/v1/mcp                    -          -              401  401   401     401     401  200    200    200   200    200  200   200     200  200
POST /api/v1/mcp/{name}/probe       -          -              401  401   401     401     401  role   role   role  role   role role  role    404  404
POST /api/v1/mcp/{name}/import      -          -              401  401   401     401     401  role   role   role  role   role role  role    404  404
POST /api/v1/mcp/{name}/acknowledge tools      -              401  401   401     401     401  role   role   role  role   role role  role    role 404
POST /api/v1/mcp/{name}/switch      off        -              401  401   401     401     401  role   role   role  role   role role  role    role 404
POST /api/v1/mcp/{name}/logout      -          -              401  401   401     401     401  role   role   role  role   role role  role    role 404
GET  /api/v1/inbox                  -          waiting        401  401   401     401     401  200-   200+   200+  200-   200+ 200-  200+    200+ 200+
GET  /api/v1/inbox                  plain      waiting        401  401   401     401     401  200-   200+   200+  200-   200+ 200-  200+    200+ 200+
GET  /api/v1/runs                   -          waiting        401  401   401     401     401  200-   200+   200+  200-   200- 200-  200+    200+ 200+
GET  /api/v1/runs                   plain      waiting        401  401   401     401     401  200-   200+   200+  200-   200- 200-  200+    200+ 200+
GET  /api/v1/runs                   -          done           401  401   401     401     401  200-   200+   200+  200-   200- 200-  200+    200+ 200+
POST /api/v1/runs                   start      -              401  401   401     401     401  role   role   202   202    202  202   202     202  202
GET  /api/v1/runs/{id}              -          waiting        401  401   401     401     401  404    200    200   404    200  404   200     200  200
GET  /api/v1/runs/{id}              plain      waiting        401  401   401     401     401  404    200    200   404    200  404   200     200  200
GET  /api/v1/runs/{id}              -          done           401  401   401     401     401  404    200    200   404    404  404   200     200  200
GET  /api/v1/runs/{id}              -          doubt          401  401   401     401     401  404    200    200   404    404  404   200     200  200
GET  /api/v1/runs/{id}/events       -          waiting        401  401   401     401     401  404    200    200   404    200  404   200     200  200
GET  /api/v1/runs/{id}/events       stream     waiting        401  401   401     401     401  404    200    200   404    200  404   200     200  200
GET  /api/v1/runs/{id}/events       -          done           401  401   401     401     401  404    200    200   404    404  404   200     200  200
GET  /api/v1/runs/{id}/events       stream     done           401  401   401     401     401  404    200    200   404    404  404   200     200  200
GET  /api/v1/runs/{id}/artifacts    -          done           401  401   401     401     401  404    200    200   404    404  404   200     200  200
GET  /api/v1/runs/{id}/artifacts    -          waiting        401  401   401     401     401  404    200    200   404    200  404   200     200  200
GET  /api/v1/runs/{id}/artifacts/{artifact} -  done           401  401   401     401     401  404    404    404   404    404  404   404     404  404
POST /api/v1/runs/{id}/decision     approve    waiting        401  401   401     401     401  404    role   role  404    200  404   mach    tool 200
POST /api/v1/runs/{id}/decision     deny       waiting        401  401   401     401     401  404    role   role  404    200  404   200     200  200
POST /api/v1/runs/{id}/input        values     asks           401  401   401     401     401  404    role   role  404    200  404   mach    tool 200
POST /api/v1/runs/{id}/answer       question   waiting        401  401   401     401     401  404    role   role  404    none  404  none    none none
POST /api/v1/runs/{id}/cancel       -          waiting        401  401   401     401     401  404    role   200   404    role 404   200     200  200
POST /api/v1/runs/{id}/cancel       -          asks           401  401   401     401     401  404    role   200   404    role 404   200     200  200
POST /api/v1/runs/{id}/resolve      landed     doubt          401  401   401     401     401  404    role   role  404    404  404   role    202  202
POST /api/v1/runs/{id}/resolve      not_landed doubt          401  401   401     401     401  404    role   role  404    404  404   role    tool early
POST /api/v1/runs/{id}/resolve      abandon    doubt          401  401   401     401     401  404    role   role  404    404  404   role    200  200
POST /api/v1/runs/{id}/redrive      -          failed         401  401   401     401     401  404    role   role  404    404  404   role    202  202
POST /api/v1/runs/{id}/discard      -          doubt          401  401   401     401     401  404    role   role  404    404  404   role    200  200
";

struct Line {
    method: Method,
    path: &'static str,
    with: &'static str,
    run: &'static str,
    cells: Vec<&'static str>,
}

fn table() -> Vec<Line> {
    let mut lines = TABLE.lines().filter(|line| !line.is_empty()).map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), CALLERS, "the columns are the callers");
    lines
        .map(|words| {
            let [method, path, with, run, cells @ ..] = words.as_slice() else { panic!("{words:?}") };
            assert_eq!(cells.len(), CALLERS.len(), "{words:?}");
            Line { method: method.parse().unwrap(), path, with, run, cells: cells.to_vec() }
        })
        .collect()
}

/// In whatever a run contains.
const CANARY: &str = "canary";

const MORE: &str = r#"
[[model]]
name = "broken"
provider = "scripted"
script = "broken.toml"
[[model]]
name = "asking"
provider = "scripted"
script = "asking.toml"
[[model]]
name = "hasty"
provider = "scripted"
script = "hasty.toml"
[[agent]]
name = "broken"
model = "broken"
[[agent]]
name = "asker"
model = "asking"
tools = ["forms.append"]
[[agent]]
name = "hasty"
model = "hasty"
tools = ["hasty.append"]
[[tool.http]]
name = "forms.append"
description = "Append what a person fills in"
method = "POST"
url = "FAR"
effect = "non_idempotent_write"
approval = "none"
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
input = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
[[tool.http]]
name = "hasty.append"
description = "Append without asking"
method = "POST"
url = "FAR"
timeout = "60s"
effect = "non_idempotent_write"
approval = "none"
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
"#;

/// A run that requests are made of.
#[derive(Clone, Debug)]
struct Run {
    id: String,
    digest: String,
    epoch: Value,
}

/// A server with the callers, and one run of each kind at a time.
struct Scene {
    sandbox: Sandbox,
    server: Server,
    tokens: BTreeMap<&'static str, String>,
    runs: BTreeMap<&'static str, Run>,
}

impl Scene {
    async fn new() -> Self {
        let script = one_call("ledger.append", "{ text = \"canary-arguments\" }").replace("It is done.", "canary-output");
        let sandbox = Sandbox::with_script("", &script).await;
        let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
        sandbox.write("leasehold.toml", &(config + &MORE.replace("FAR", &sandbox.far.url("/append"))));
        sandbox.write("broken.toml", "[[reply]]\nerror = \"auth\"\n[[reply]]\ntext = \"canary-output\"\n");
        sandbox.write("asking.toml", &one_call("forms.append", "{ text = \"canary-arguments\" }"));
        sandbox.write("hasty.toml", &one_call("hasty.append", "{ text = \"canary-arguments\" }"));
        let tokens = crew(&sandbox).await;
        let server = sandbox.serve_with(&[("LEASEHOLD_LOG", "trace")]).await;
        // The one that ends has ended.
        let expired = Some(tokens["expired"].as_str());
        let ask = || server.asked_by(expired, Method::GET, "/api/v1/agents", None);
        server.until(ask, |answer| answer.status.as_u16() == 401).await;
        Self { sandbox, server, tokens, runs: BTreeMap::new() }
    }

    fn token(&self, caller: &str) -> Option<&str> {
        self.tokens.get(caller).map(String::as_str)
    }

    /// The run of that kind, made by the owner where there is none.
    async fn run(&mut self, kind: &'static str) -> Run {
        if let Some(run) = self.runs.get(kind) {
            return run.clone();
        }
        let (agent, state) = match kind {
            "waiting" | "done" => ("clerk", "waiting_for_approval"),
            "asks" => ("asker", "waiting_for_input"),
            "doubt" => ("hasty", "dead"),
            "failed" => ("broken", "failed"),
            _ => panic!("{kind}"),
        };
        if kind == "doubt" {
            self.sandbox.far.then([Then::HangUp]);
        }
        let body = json!({
            "agent": agent, "team": "harbour", "input": "canary-input", "mode": "wait", "metadata": { "ticket": "canary-metadata" }
        });
        let start = self.server.asked_by(self.token("owner"), Method::POST, "/api/v1/runs", Some(&body));
        let shown = Answer::of(start).await.is(200);
        assert_eq!(text(&shown, "/state"), state, "{shown}");
        let run = Run {
            id: text(&shown, "/id"),
            digest: text(&shown, "/waiting/turn_digest"),
            epoch: shown["fence"]["epoch"].clone(),
        };
        if kind == "done" {
            self.sandbox.far.then([Then::Answer(200, "canary-result".into())]);
            let decision = json!({ "turn_digest": run.digest, "decision": "approve", "reason": "canary-reason" });
            let done = self.server.post(&format!("/runs/{}/decision?wait=true", run.id), decision).await.is(200);
            assert_eq!((text(&done, "/state"), text(&done, "/output")), ("completed".into(), "canary-output".into()));
        }
        self.runs.insert(kind, run.clone());
        run
    }

    /// What there is, as an administrator reads it: all runs, the record of one, and what has arrived.
    async fn everything(&self, line: &Line) -> Value {
        let listed = self.server.get("/runs?limit=1000").await.is(200);
        let record = match self.runs.get(line.run) {
            Some(run) => Some(self.server.record(&run.id).await),
            None => None,
        };
        json!([listed, record, self.sandbox.far.arrived().len()])
    }

    /// A run that an order sent on comes to its end.
    async fn spent(&mut self, kind: &str) {
        if let Some(run) = self.runs.remove(kind) {
            let ask = || self.server.request(Method::GET, &format!("/runs/{}", run.id));
            self.server.until(ask, |answer| answer.is(200)["finished_at"].is_string()).await;
        }
    }

    async fn ask(&self, line: &Line, caller: &str, run: &Run) -> Answer {
        let body = match line.with {
            "approve" | "deny" => Some(json!({ "turn_digest": run.digest, "decision": line.with })),
            "values" => Some(json!({ "turn_digest": run.digest, "values": { "text": "canary-values" } })),
            "question" => Some(json!({ "call_id": "t1c0", "question": 3, "values": { "text": "canary-values" } })),
            "landed" | "not_landed" | "abandon" => {
                Some(json!({ "call_id": "t1c0", "fence_epoch": run.epoch, "outcome": line.with }))
            }
            "start" => Some(json!({ "agent": "broken", "input": "of another run", "run_at": "2999-01-01T00:00:00Z" })),
            "tools" => Some(json!({ "tools": [{ "name": "a", "hash": "b" }] })),
            "off" => Some(json!({ "off": true })),
            _ => None,
        };
        let query = match line.with {
            "stream" => "?until=waiting",
            "approve" | "deny" | "values" => "?wait=true",
            _ => "",
        };
        let path = line.path.replace("{id}", &run.id).replace("{name}", "nobody") + query;
        let accept = match line.with {
            "plain" => "text/plain",
            "stream" => "text/event-stream",
            _ => "application/json",
        };
        let request = self.server.asked_by(self.token(caller), line.method.clone(), &path, body.as_ref());
        Answer::of(request.header("accept", accept)).await
    }
}

async fn crew(sandbox: &Sandbox) -> BTreeMap<&'static str, String> {
    sandbox.user("dora", "admin", &[]).await;
    sandbox.user("vera", "viewer", &["--team", "pier"]).await;
    sandbox.user("vito", "viewer", &["--team", "harbour"]).await;
    sandbox.user("rita", "approver", &["--team", "harbour", "--tool", "*"]).await;
    sandbox.user("ruth", "runner", &["--team", "pier", "--tool", "*"]).await;
    let tools = ["--tool", "ledger.append", "--tool", "forms.*", "--tool", "hasty.append"];
    sandbox.user("anna", "approver", &tools).await;
    sandbox.user("abel", "approver", &["--team", "pier", "--tool", "site.*", "--tool", "ledger.append2"]).await;
    sandbox.user("olga", "operator", &[]).await;
    let revoked = sandbox.token("rita", &["--role", "runner"]).await;
    sandbox.leasehold(&["token", "revoke", &revoked.id]).await.exits(0);
    let gone = sandbox.token("dora", &[]).await;
    sandbox.leasehold(&["user", "disable", "dora"]).await.exits(0);
    let mut made = vec![("revoked", revoked), ("gone", gone)];
    made.push(("expired", sandbox.token("rita", &["--role", "runner", "--expires", "1s"]).await));
    made.push(("owner", sandbox.token("rita", &["--role", "runner"]).await));
    made.push(("machine", sandbox.token("rita", &["nightly", "--machine", "--role", "approver"]).await));
    for (caller, user) in
        [("viewer", "vera"), ("member", "vito"), ("runner", "ruth"), ("appr", "anna"), ("other", "abel"), ("oper", "olga")]
    {
        made.push((caller, sandbox.token(user, &[]).await));
    }
    let mut tokens: BTreeMap<&str, String> = made.into_iter().map(|(caller, Made { secret, .. })| (caller, secret)).collect();
    tokens.insert("wrong", format!("lh_{}", "x".repeat(43)));
    tokens.insert("admin", TOKEN.into());
    tokens
}

/// The status and the code that a cell stands for.
fn refusal(cell: &str) -> Option<(u16, &'static str)> {
    Some(match cell {
        "401" => (401, "unauthenticated"),
        "404" => (404, "not_found"),
        "role" => (403, "not_permitted"),
        "tool" => (403, "approver_not_permitted"),
        "mach" => (403, "machine_may_not_release"),
        "early" => (409, "too_early"),
        "none" => (409, "no_question"),
        _ => return None,
    })
}

/// Everything of an answer that is not the moment.
fn said(answer: &Answer) -> (u16, String, Vec<(String, String)>) {
    let headers = answer.headers.iter().filter(|(name, _)| *name != "date");
    let headers = headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
    (answer.status.as_u16(), answer.body.clone(), headers.collect())
}

/// No run has it.
const NO_RUN: &str = "01890000-0000-7000-8000-000000000000";

#[tokio::test]
async fn each_route_answers_each_caller_as_the_table_says_and_a_refusal_changes_and_tells_nothing() {
    let mut scene = Scene::new().await;
    let mut refused = 0;
    for line in table() {
        let mut before = None;
        for (caller, cell) in CALLERS.iter().zip(&line.cells) {
            let here = format!("{} {} {} by {caller}", line.method, line.path, line.with);
            let run = match line.run {
                "-" => Run { id: NO_RUN.into(), digest: String::new(), epoch: json!(1) },
                kind => scene.run(kind).await,
            };
            let Some((status, code)) = refusal(cell) else {
                let answer = scene.ask(&line, caller, &run).await;
                assert_eq!(answer.status.as_str(), &cell[..3], "{here}: {answer:?}");
                if let Some(has) = cell.get(3..).filter(|has| !has.is_empty()) {
                    // A screen shortens ids.
                    let end = if line.with == "plain" { &run.id[28..] } else { &run.id };
                    assert_eq!(answer.body.contains(end), has == "+", "{here}: {answer:?}");
                    assert!(has == "+" || !answer.body.contains(CANARY), "{here}: {answer:?}");
                }
                if line.method == Method::POST {
                    scene.spent(line.run).await;
                    before = None;
                }
                continue;
            };
            refused += 1;
            let was = match before.take() {
                Some(was) => was,
                None => scene.everything(&line).await,
            };
            let answer = scene.ask(&line, caller, &run).await;
            assert_eq!(answer.status.as_u16(), status, "{here}: {answer:?}");
            answer.problem(status, code);
            let is = scene.everything(&line).await;
            assert_eq!(is, was, "{here} was refused and changed something");
            before = Some(is);
            let headers = format!("{:?}", answer.headers);
            for secret in [CANARY, &run.id, &run.digest, "rita", TOKEN].into_iter().filter(|secret| !secret.is_empty()) {
                assert!(!answer.body.contains(secret) && !headers.contains(secret), "{here} tells {secret}: {answer:?}");
            }
            // What is not there is not told from what one may not see.
            if matches!(cell, &"404" | &"401") && line.run != "-" {
                let nothing = Run { id: NO_RUN.into(), ..run };
                assert_eq!(said(&scene.ask(&line, caller, &nothing).await), said(&answer), "{here}");
            }
            if scene.server.said().contains(CANARY) {
                panic!("{here}: the log has something of a run");
            }
        }
    }
    assert!(refused > 200, "the table has shrunk: {refused}");
    let log = scene.server.said();
    assert!(log.contains("/api/v1/runs"), "the log is not read");
    for secret in scene.tokens.values() {
        assert!(!log.contains(secret.trim_start_matches("lh_")), "a token is in the log");
    }
}

#[tokio::test]
async fn the_table_has_every_route_that_is_described() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let served = Answer::of(server.client.get(format!("{}/openapi.json", server.url))).await.is(200);
    let mut described = BTreeSet::new();
    for (path, item) in served["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|key| !["parameters", "summary"].contains(&key.as_str())) {
            described.insert((method.to_uppercase(), path.clone()));
        }
    }
    let tabled: BTreeSet<(String, String)> =
        table().iter().map(|line| (line.method.to_string(), line.path.to_owned())).collect();
    assert_eq!(described, tabled);
}
