//! Who may not release a write over HTTP, nor say of one in doubt that it did not land: a machine, who started the run and who wrote
//! an edit where a second person has to release, and whoever has no right to the tool. An administrator is no exception. Each of
//! them may deny.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    self, Sandbox,
    api::{Answer, Server, TOKEN},
    text,
};
use leasehold_testkit::far_side::Then;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ASKER: &str = r#"
[[agent]]
name = "asker"
model = "asking"
require_second_approver = true
tools = ["forms.append"]
[[model]]
name = "asking"
provider = "scripted"
script = "asking.toml"
[[tool.http]]
name = "forms.append"
method = "POST"
url = "FAR"
description = "Append what a person fills in"
effect = "non_idempotent_write"
approval = "none"
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
input = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
"#;

/// A server whose agents want a second person, and people who could release but for the one rule.
struct Scene {
    sandbox: Sandbox,
    server: Server,
    tokens: BTreeMap<&'static str, String>,
}

/// A run, and the digest of its card.
type Run = (String, String);

impl Scene {
    async fn new() -> Self {
        let sandbox = Sandbox::new("").await;
        let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
        let config = config.replace("name = \"clerk\"\n", "name = \"clerk\"\nrequire_second_approver = true\n");
        let config = config.replace("timeout = \"2s\"", "timeout = \"300ms\"");
        assert!(config.contains("require_second_approver") && config.contains("300ms"), "{config}");
        sandbox.write("leasehold.toml", &(config + &ASKER.replace("FAR", &sandbox.far.url("/append"))));
        sandbox.write("asking.toml", &support::one_call("forms.append", "{ text = \"from the model\" }"));
        let every = ["--tool", "ledger.*", "--tool", "forms.*"];
        for (user, role, tools) in [
            ("rita", "operator", &every[..]),
            ("eddy", "operator", &every),
            ("otto", "operator", &every),
            ("olga", "operator", &["--tool", "site.*"]),
            ("anna", "approver", &every),
            ("root", "admin", &[]),
        ] {
            sandbox.user(user, role, tools).await;
        }
        let mut tokens = BTreeMap::from([("admin", TOKEN.to_owned())]);
        for user in ["rita", "eddy", "otto", "olga", "anna", "root"] {
            tokens.insert(user, sandbox.token(user, &[]).await.secret);
        }
        // Programs of people who may everything themselves.
        tokens.insert("nightly", sandbox.token("otto", &["nightly", "--machine", "--role", "operator"]).await.secret);
        tokens.insert("weekly", sandbox.token("root", &["weekly", "--machine", "--role", "admin"]).await.secret);
        let server = sandbox.serve().await;
        Self { sandbox, server, tokens }
    }

    async fn post(&self, who: &str, path: &str, body: Value) -> Answer {
        let path = format!("/api/v1{path}");
        Answer::of(self.server.asked_by(Some(&self.tokens[who]), Method::POST, &path, Some(&body))).await
    }

    async fn started(&self, who: &str, agent: &str) -> Run {
        let run = self.post(who, "/runs", json!({ "agent": agent, "input": "note hello", "mode": "wait" })).await.is(200);
        assert!(text(&run, "/state").starts_with("waiting_for_"), "{run}");
        (text(&run, "/id"), text(&run, "/waiting/turn_digest"))
    }

    async fn decide(&self, who: &str, (id, digest): &Run, verdict: &str) -> Answer {
        let body = json!({ "turn_digest": digest, "decision": verdict });
        self.post(who, &format!("/runs/{id}/decision?wait=true"), body).await
    }

    /// Somebody proposes other arguments: the same run with its new card.
    async fn edited(&self, who: &str, (id, digest): &Run) -> Run {
        let edit = json!({ "id": "t1c0", "decision": "approve", "arguments": { "text": format!("as {who} says") } });
        let body = json!({ "turn_digest": digest, "calls": [edit] });
        let run = self.post(who, &format!("/runs/{id}/decision?wait=true"), body).await.is(200);
        assert_eq!(run["state"], "waiting_for_approval", "an edit is no release: {run}");
        assert_eq!(run["waiting"]["calls"][0]["arguments"]["text"], format!("as {who} says"));
        let new = text(&run, "/waiting/turn_digest");
        assert_ne!(&new, digest);
        (id.clone(), new)
    }

    /// A run whose released write broke off without an answer, started and edited by those.
    async fn in_doubt(&self, starter: &str, editor: Option<&str>) -> (String, Value) {
        let mut run = self.started(starter, "clerk").await;
        if let Some(editor) = editor {
            run = self.edited(editor, &run).await;
        }
        self.sandbox.far.then([Then::HangUp]);
        let doubt = self.decide("anna", &run, "approve").await.is(200);
        assert_eq!((&doubt["state"], &doubt["reason"]), (&"dead".into(), &"write_in_doubt".into()), "{doubt}");
        (run.0, doubt["fence"]["epoch"].clone())
    }

    async fn resolve(&self, who: &str, (id, epoch): &(String, Value), outcome: &str) -> Answer {
        let body = json!({ "call_id": "t1c0", "fence_epoch": epoch, "outcome": outcome });
        self.post(who, &format!("/runs/{id}/resolve"), body).await
    }

    /// It is refused so, and nothing has changed.
    async fn refuses(&self, id: &str, code: &str, order: impl Future<Output = Answer>) {
        let before = (self.server.record(id).await, self.sandbox.far.arrived().len());
        let answer = order.await;
        answer.problem(403, code);
        assert_eq!((self.server.record(id).await, self.sandbox.far.arrived().len()), before, "{answer:?}");
    }
}

/// Who starts, who edits, who is refused, and with which code.
const CASES: [(&str, Option<&str>, &str, &str); 10] = [
    ("rita", None, "rita", "self_approval"),
    ("rita", Some("eddy"), "eddy", "self_approval"),
    ("rita", Some("eddy"), "rita", "self_approval"),
    ("rita", Some("rita"), "rita", "self_approval"),
    ("rita", None, "nightly", "machine_may_not_release"),
    ("rita", None, "weekly", "machine_may_not_release"),
    ("rita", None, "olga", "approver_not_permitted"),
    // An administrator, as the one who starts and as the author.
    ("admin", None, "admin", "self_approval"),
    ("rita", Some("admin"), "admin", "self_approval"),
    // Who is behind the program that starts.
    ("nightly", None, "otto", "self_approval"),
];

#[tokio::test]
async fn a_write_is_released_by_a_second_person_with_the_right_and_denied_by_each() {
    let scene = Scene::new().await;
    for (starter, editor, who, code) in CASES {
        let mut runs = Vec::new();
        for _ in 0..2 {
            let mut run = scene.started(starter, "clerk").await;
            if let Some(editor) = editor {
                run = scene.edited(editor, &run).await;
            }
            runs.push(run);
        }
        let [released, denied] = runs.as_slice() else { panic!() };
        let (id, digest) = released;
        let path = format!("/runs/{id}/decision");
        scene.refuses(id, code, scene.decide(who, released, "approve")).await;
        let named = json!({ "turn_digest": digest, "calls": [{ "id": "t1c0", "decision": "approve" }] });
        scene.refuses(id, code, scene.post(who, &path, named)).await;
        // Nobody makes an approval of an edit by sending both at once.
        let arrived = scene.sandbox.far.arrived().len();
        if code != "self_approval" {
            let edit = json!({ "id": "t1c0", "decision": "approve", "arguments": { "text": "mine" } });
            let edit = json!({ "turn_digest": digest, "calls": [edit] });
            scene.refuses(id, code, scene.post(who, &path, edit)).await;
        }
        let done = scene.decide("anna", released, "approve").await.is(200);
        assert_eq!((&done["state"], scene.sandbox.far.arrived().len()), (&"completed".into(), arrived + 1));
        let written = editor.map_or("hello".to_owned(), |editor| format!("as {editor} says"));
        assert_eq!(scene.sandbox.far.arrived().last().unwrap().text(), json!({ "text": written }).to_string());

        let done = scene.decide(who, denied, "deny").await.is(200);
        assert_eq!((&done["state"], scene.sandbox.far.arrived().len()), (&"completed".into(), arrived + 1), "{who} may deny");
        assert_eq!(done["decisions"].as_array().unwrap().last().unwrap()["decision"], "deny", "{done}");
    }
}

#[tokio::test]
async fn a_write_in_doubt_is_said_not_to_have_landed_by_a_second_person_with_the_right_and_given_up_by_each() {
    let scene = Scene::new().await;
    for (starter, editor, who, code) in CASES {
        let given_up = scene.in_doubt(starter, editor).await;
        scene.refuses(&given_up.0, code, scene.resolve(who, &given_up, "not_landed")).await;
        let again = scene.in_doubt(starter, editor).await;
        let ask = || {
            let body = json!({ "call_id": "t1c0", "fence_epoch": &again.1, "outcome": "not_landed" });
            let path = format!("/api/v1/runs/{}/resolve", again.0);
            scene.server.asked_by(Some(&scene.tokens["root"]), Method::POST, &path, Some(&body))
        };
        let arrived = scene.sandbox.far.arrived().len();
        let early = |answer: &Answer| answer.status.as_u16() == 409 && answer.json()["code"] == "too_early";
        scene.server.until(ask, |answer| !early(answer)).await.is(202);
        let run = scene.server.until_state(&again.0, "completed").await;
        assert_eq!(scene.sandbox.far.arrived().len(), arrived + 1, "it was made again: {run}");

        // The write before that one can no longer be in flight, either.
        scene.refuses(&given_up.0, code, scene.resolve(who, &given_up, "not_landed")).await;
        let run = scene.resolve(who, &given_up, "abandon").await.is(200);
        assert_eq!((&run["state"], &run["reason"]), (&"failed".into(), &"abandoned".into()), "{run}");
        assert_eq!(scene.sandbox.far.arrived().len(), arrived + 1, "{who} gave up the one that had arrived");
    }
}

#[tokio::test]
async fn values_for_a_write_are_given_by_a_second_person_with_the_right() {
    let scene = Scene::new().await;
    for (who, code) in [
        ("rita", "self_approval"),
        ("nightly", "machine_may_not_release"),
        ("weekly", "machine_may_not_release"),
        ("olga", "approver_not_permitted"),
    ] {
        let (id, digest) = scene.started("rita", "asker").await;
        let path = format!("/runs/{id}/input?wait=true");
        let values = json!({ "turn_digest": digest, "values": { "text": "of a person" } });
        scene.refuses(&id, code, scene.post(who, &path, values.clone())).await;
        let arrived = scene.sandbox.far.arrived().len();
        assert_eq!(scene.post("anna", &path, values).await.is(200)["state"], "completed");
        assert_eq!(scene.sandbox.far.arrived().len(), arrived + 1);
        assert_eq!(scene.sandbox.far.arrived().last().unwrap().text(), json!({ "text": "of a person" }).to_string());
    }
}
