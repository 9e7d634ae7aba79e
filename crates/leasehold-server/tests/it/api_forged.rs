//! Orders that are not what they claim: a digest that names something else, another site, another name, a token where none belongs.
//! Each is refused by name, changes nothing, and leaves nothing of the run in the answer or in the log.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    Sandbox,
    api::{Answer, Server, TOKEN},
    one_call, text,
};
use reqwest::Method;
use serde_json::{Value, json};

/// In whatever a run contains.
const CANARY: &str = "canary";

/// A server that logs everything, and a way to a run whose parts all have the canary.
async fn canaries() -> (Sandbox, Server) {
    let script = one_call("ledger.append", "{ text = \"canary-arguments\" }").replace("I do it.", "canary-reply");
    let sandbox = Sandbox::with_script("", &script).await;
    let server = sandbox.serve_with(&[("LEASEHOLD_LOG", "trace")]).await;
    (sandbox, server)
}

async fn suspended(server: &Server) -> (String, String) {
    let body = json!({ "agent": "clerk", "input": "canary-input", "mode": "wait", "metadata": { "note": "canary-metadata" } });
    let run = server.post("/runs", body).await.is(200);
    assert_eq!(run["state"], "waiting_for_approval", "{run}");
    (text(&run, "/id"), text(&run, "/waiting/turn_digest"))
}

/// A refusal has nothing of a run, and no digest.
#[track_caller]
fn tells_nothing(answer: &Answer, digest: &str) {
    let all = format!("{answer:?}");
    assert!(!all.contains(CANARY) && !all.contains(digest) && !all.contains(TOKEN), "{answer:?}");
}

#[tokio::test]
async fn a_decision_with_a_digest_of_something_else_is_stale() {
    let (sandbox, server) = canaries().await;
    let (id, digest) = suspended(&server).await;
    // The same request, the same words of the model, the same arguments: another run.
    let (other, of_other) = suspended(&server).await;
    assert_ne!(digest, of_other);
    let before = (server.record(&id).await, server.record(&other).await);
    let last = if digest.ends_with('0') { "1" } else { "0" };
    let forged = [
        of_other.clone(),
        format!("{}{last}", &digest[..digest.len() - 1]),
        digest.to_uppercase(),
        digest[..16].to_owned(),
        format!(" {digest}"),
        format!("{digest}\u{0}"),
        format!("{digest}{digest}"),
        "0".repeat(digest.len()),
        "%".into(),
        String::new(),
        id.clone(),
    ];
    for forged in forged {
        for verdict in ["approve", "deny"] {
            let rest = json!({ "turn_digest": forged, "decision": verdict });
            let named = json!({ "turn_digest": forged, "calls": [{ "id": "t1c0", "decision": verdict }] });
            for body in [rest, named] {
                let answer = server.post(&format!("/runs/{id}/decision"), &body).await;
                answer.problem(409, "stale_turn");
                tells_nothing(&answer, &digest);
            }
        }
        let edit = json!({ "id": "t1c0", "decision": "approve", "arguments": { "text": "mine" } });
        let edit = json!({ "turn_digest": forged, "calls": [edit] });
        let answer = server.post(&format!("/runs/{id}/decision"), &edit).await;
        answer.problem(409, "stale_turn");
        tells_nothing(&answer, &digest);
    }
    assert_eq!((server.record(&id).await, server.record(&other).await), before);
    assert!(sandbox.far.arrived().is_empty());
    assert!(!server.said().contains(CANARY) && server.said().contains("/decision"), "the log has something of a run");
    let approve = json!({ "turn_digest": digest, "decision": "approve" });
    assert_eq!(server.post(&format!("/runs/{id}/decision?wait=true"), approve).await.is(200)["state"], "completed");
    assert_eq!(server.record(&other).await, before.1, "the other one waits");
    assert_eq!(sandbox.far.arrived().len(), 1);
}

const TWICE: &str = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "the same" } }]
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "the same" } }]
[[reply]]
text = "It is done."
"#;

#[tokio::test]
async fn the_digest_of_a_turn_decides_nothing_about_an_identical_later_one() {
    let sandbox = Sandbox::with_script("", TWICE).await;
    for (user, role) in [("anna", "approver"), ("otto", "approver")] {
        sandbox.user(user, role, &["--tool", "ledger.*"]).await;
    }
    let (anna, otto) = (sandbox.token("anna", &[]).await, sandbox.token("otto", &[]).await);
    let server = sandbox.serve().await;
    for first in ["deny", "approve"] {
        let before = sandbox.far.arrived().len();
        let (id, old) = server.suspended().await;
        let path = format!("/api/v1/runs/{id}/decision?wait=true");
        let say = async |token: &str, digest: &str, verdict: &str| {
            let body = json!({ "turn_digest": digest, "decision": verdict });
            Answer::of(server.asked_by(Some(token), Method::POST, &path, Some(&body))).await
        };
        let waits = say(&anna.secret, &old, first).await.is(200);
        let new = text(&waits, "/waiting/turn_digest");
        assert_eq!(
            (text(&waits, "/state"), &waits["waiting"]["calls"][0]["id"]),
            ("waiting_for_approval".into(), &"t2c0".into())
        );
        assert_ne!(new, old);
        let written = before + usize::from(first == "approve");
        let record = server.record(&id).await;
        let opposite = if first == "approve" { "deny" } else { "approve" };
        // The other word of the same person, and both words of another: none is about what waits now.
        for (token, verdict) in
            [(&anna.secret, opposite), (&otto.secret, first), (&otto.secret, opposite), (&TOKEN.to_owned(), "approve")]
        {
            say(token, &old, verdict).await.problem(409, "stale_turn");
        }
        let body = json!({ "turn_digest": old, "calls": [{ "id": "t2c0", "decision": "approve" }] });
        Answer::of(server.asked_by(Some(&anna.secret), Method::POST, &path, Some(&body))).await.problem(409, "stale_turn");
        // The same word of the same person is the answer that it had, and no word about the later turn.
        let again = say(&anna.secret, &old, first).await.is(200);
        assert_eq!((&again["state"], &again["waiting"]["turn_digest"]), (&"waiting_for_approval".into(), &new.clone().into()));
        assert_eq!((server.record(&id).await, sandbox.far.arrived().len()), (record, written));
        assert_eq!(say(&otto.secret, &new, "approve").await.is(200)["state"], "completed");
        assert_eq!(sandbox.far.arrived().len(), written + 1);
    }
}

#[tokio::test]
async fn a_decision_from_another_site_or_to_another_name_or_that_does_not_fit_changes_nothing() {
    let (sandbox, server) = canaries().await;
    let (id, digest) = suspended(&server).await;
    let path = format!("/runs/{id}/decision");
    let before = server.record(&id).await;
    let approve = json!({ "turn_digest": digest, "decision": "approve" });
    for (name, value, status, code) in [
        ("origin", "https://evil.example", 403, "cross_origin"),
        ("origin", "null", 403, "cross_origin"),
        ("origin", "http://localhost.evil.example", 403, "cross_origin"),
        ("sec-fetch-site", "cross-site", 403, "cross_origin"),
        ("sec-fetch-site", "same-site", 403, "cross_origin"),
        ("host", "evil.example", 421, "foreign_host"),
        ("host", "127.0.0.1.evil.example", 421, "foreign_host"),
        ("host", "localhost@evil.example", 421, "foreign_host"),
    ] {
        for (path, body) in [
            (path.clone(), approve.to_string()),
            (format!("/runs/{id}/cancel"), String::new()),
            (format!("/runs/{id}/input"), json!({ "turn_digest": digest, "values": {} }).to_string()),
            (format!("/runs/{id}/discard"), String::new()),
        ] {
            let answer = Answer::of(server.posting(&path, body).header(name, value)).await;
            answer.problem(status, code);
            tells_nothing(&answer, &digest);
        }
    }
    for arguments in [
        json!({ "text": 7 }),
        json!({ "text": null }),
        json!({ "text": ["x"] }),
        json!({}),
        json!({ "text": "x", "more": 1 }),
        json!({ "Text": "x" }),
    ] {
        let edit = json!({ "id": "t1c0", "decision": "approve", "arguments": arguments });
        let answer = server.post(&path, json!({ "turn_digest": digest, "calls": [edit] })).await;
        assert_eq!(answer.problem(422, "invalid_input")["errors"][0]["pointer"], "#/calls");
        tells_nothing(&answer, &digest);
    }
    let verdicts = [json!(null), json!("yes"), json!("APPROVE"), json!(true), json!({})];
    for verdict in verdicts {
        let answer = server.post(&path, json!({ "turn_digest": digest, "decision": verdict })).await;
        answer.problem(422, "invalid_input");
        tells_nothing(&answer, &digest);
    }
    assert_eq!(server.record(&id).await, before);
    assert!(sandbox.far.arrived().is_empty());
    let said = server.said();
    assert!(!said.contains(CANARY) && !said.contains(&digest) && said.contains("/decision"), "the log has something of a run");
}

#[tokio::test]
async fn a_token_anywhere_but_in_its_header_lets_nobody_in_and_is_in_no_log() {
    let (sandbox, server) = canaries().await;
    sandbox.user("rita", "admin", &[]).await;
    let made = sandbox.token("rita", &[]).await;
    let (id, digest) = suspended(&server).await;
    let before = server.record(&id).await;
    for token in [TOKEN, &made.secret] {
        for name in ["access_token", "token", "bearer", "authorization", "Authorization", "api_key", "link", "session"] {
            for (method, path) in [
                (Method::GET, "/api/v1/runs".to_owned()),
                (Method::GET, format!("/api/v1/runs/{id}")),
                (Method::GET, format!("/api/v1/runs/{id}/events")),
                (Method::GET, "/api/v1/agents".into()),
                (Method::POST, format!("/api/v1/runs/{id}/cancel")),
            ] {
                let path = format!("{path}?{name}={token}");
                let answer = Answer::of(server.asked_by(None, method.clone(), &path, None)).await;
                answer.problem(401, "unauthenticated");
                assert!(!answer.body.contains(token), "{answer:?}");
                // Beside one that counts it is a parameter like others that there are not.
                let answer =
                    Answer::of(server.asked_by(Some(token), Method::GET, &format!("/api/v1/runs?{name}={token}"), None)).await;
                answer.problem(422, "invalid_input");
                assert!(!answer.body.contains(token), "{answer:?}");
            }
        }
        let decision = json!({ "turn_digest": digest, "decision": "approve" });
        let path = format!("/api/v1/runs/{id}/decision");
        for (name, value) in [
            ("cookie", format!("session={token}")),
            ("cookie", format!("__Host-session={token}; token={token}")),
            ("proxy-authorization", format!("Bearer {token}")),
            ("x-api-key", token.to_owned()),
            ("sec-websocket-protocol", token.to_owned()),
        ] {
            let request = server.asked_by(None, Method::POST, &path, Some(&decision)).header(name, value);
            let answer = Answer::of(request).await;
            answer.problem(401, "unauthenticated");
            assert!(!answer.body.contains(token), "{answer:?}");
        }
        // Two are none, and the password of a URL is none.
        let twice = server.asked_by(Some(token), Method::POST, &path, Some(&decision)).header("authorization", "Bearer x");
        Answer::of(twice).await.problem(401, "unauthenticated");
        let basic = server.asked_by(None, Method::POST, &path, Some(&decision)).basic_auth("admin", Some(token));
        Answer::of(basic).await.problem(401, "unauthenticated");
    }
    // In the path of the page that signs in, too, it is no more than text.
    let page = Answer::of(server.asked_by(None, Method::GET, &format!("/login?token={TOKEN}"), None)).await;
    assert!(page.status == 200 && !page.body.contains(TOKEN) && !page.headers.contains_key("set-cookie"), "{page:?}");
    let page = Answer::of(server.asked_by(None, Method::POST, &format!("/login?token={TOKEN}"), None)).await;
    assert!(
        !page.status.is_redirection() && !page.body.contains(TOKEN) && !page.headers.contains_key("set-cookie"),
        "{page:?}"
    );
    assert_eq!(server.record(&id).await, before);
    assert!(sandbox.far.arrived().is_empty());
    let said = server.said();
    assert!(said.contains("/api/v1/runs"), "the log is not read");
    for secret in [TOKEN, made.secret.trim_start_matches("lh_")] {
        assert!(!said.contains(secret), "a token is in the log");
    }
}

const TWO_TOOLS: &str = r#"
[[reply]]
calls = [
  { tool = "ledger.append", arguments = { text = "canary-first" } },
  { tool = "stock.append", arguments = { text = "canary-second" } },
]
[[reply]]
text = "It is done."
"#;

#[tokio::test]
async fn who_has_decided_its_part_has_no_word_about_the_rest() {
    let sandbox = Sandbox::with_script("", TWO_TOOLS).await;
    let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    let ledger = config[config.find("[[tool.http]]").unwrap()..].to_owned();
    let stock = ledger.replace("ledger.append", "stock.append");
    sandbox.write("leasehold.toml", &(config.replace("[\"ledger.*\"]", "[\"*\"]") + &stock));
    for (user, tool) in [("anna", "ledger.*"), ("stan", "stock.*"), ("abel", "site.*")] {
        sandbox.user(user, "approver", &["--tool", tool]).await;
    }
    let mut tokens = Vec::new();
    for user in ["anna", "stan", "abel"] {
        tokens.push(sandbox.token(user, &[]).await.secret);
    }
    let [anna, stan, abel] = tokens.as_slice() else { panic!() };
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let path = format!("/api/v1/runs/{id}/decision?wait=true");
    let say = async |token: &str, body: Value| Answer::of(server.asked_by(Some(token), Method::POST, &path, Some(&body))).await;
    let rest = |verdict: &str| json!({ "turn_digest": digest, "decision": verdict });
    let call = |id: &str, verdict: &str| json!({ "turn_digest": digest, "calls": [{ "id": id, "decision": verdict }] });
    // Of both calls only one is hers.
    say(anna, rest("approve")).await.problem(403, "approver_not_permitted");
    let part = say(anna, call("t1c0", "approve")).await.is(200);
    assert_eq!(part["state"], "waiting_for_approval", "{part}");
    let before = server.record(&id).await;
    // She does not see the run any more; he never did.
    for (token, body, status, code) in [
        (anna, rest("deny"), 403, "approver_not_permitted"),
        (anna, rest("approve"), 403, "approver_not_permitted"),
        (anna, call("t1c1", "deny"), 403, "approver_not_permitted"),
        (anna, call("t1c1", "approve"), 403, "approver_not_permitted"),
        (abel, rest("deny"), 404, "not_found"),
        (abel, rest("approve"), 404, "not_found"),
        (abel, call("t1c0", "deny"), 404, "not_found"),
        (abel, call("t1c1", "deny"), 404, "not_found"),
        (abel, call("t1c1", "approve"), 404, "not_found"),
    ] {
        let answer = say(token, body.clone()).await;
        assert_eq!(server.record(&id).await, before, "{body} changed something: {answer:?}");
        answer.problem(status, code);
        assert!(!answer.body.contains("canary"), "{answer:?}");
        let input = json!({ "turn_digest": digest, "values": { "text": "x" } });
        let path = format!("/api/v1/runs/{id}/input");
        let answer = Answer::of(server.asked_by(Some(token), Method::POST, &path, Some(&input))).await;
        answer.problem(status, code);
    }
    // Her own word again is the answer that it had.
    assert_eq!(say(anna, call("t1c0", "approve")).await.is(200)["state"], "waiting_for_approval");
    assert_eq!(server.record(&id).await, before);
    assert_eq!(say(stan, rest("approve")).await.is(200)["state"], "completed");
    assert_eq!(sandbox.far.arrived().len(), 2);
}
