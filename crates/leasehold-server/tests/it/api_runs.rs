//! Runs over HTTP: started, shown, decided, and what is refused on the way, with a real server, a real store and a far side that
//! counts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    self, Sandbox,
    api::{Answer, TOKEN},
    kinds, text,
};
use futures::future::join_all;
use leasehold_testkit::far_side::Then;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[tokio::test]
async fn a_run_is_queued_and_approved_over_http_and_writes_once() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let body = json!({ "agent": "clerk", "input": "note hello", "metadata": { "ticket": 7.5 }, "priority": 3 });
    let queued = server.post("/runs", &body).await;
    let id = text(&queued.is(202), "/id");
    assert_eq!(queued.headers["location"].to_str().unwrap(), format!("/api/v1/runs/{id}"));
    let run = server.until_state(&id, "waiting_for_approval").await;
    assert_eq!((&run["mode"], &run["recovery"], &run["metadata"]), (&"queue".into(), &"requeue".into(), &body["metadata"]));
    assert_eq!((&run["owner"], &run["initiator"]), (&"user:admin".into(), &"user:admin".into()));
    let inbox = server.get("/inbox").await.is(200);
    assert_eq!((&inbox["items"][0]["kind"], &inbox["items"][0]["run"]["id"]), (&"approval".into(), &id.clone().into()));
    assert!(sandbox.far.arrived().is_empty(), "nothing is sent before it is approved");

    let decision = json!({ "turn_digest": run["waiting"]["turn_digest"], "decision": "approve", "reason": "it is right" });
    assert_eq!(text(&server.post(&format!("/runs/{id}/decision"), &decision).await.is(202), "/id"), id);
    let run = server.until_state(&id, "completed").await;
    assert_eq!((&run["output"], &run["decisions"][0]["by"]), (&"It is done.".into(), &"user:admin".into()));
    assert_eq!(sandbox.far.arrived().len(), 1);
    // The same word again is the same answer, and no second write.
    assert_eq!(server.post(&format!("/runs/{id}/decision"), &decision).await.is(202)["state"], "completed");
    assert_eq!(sandbox.far.arrived().len(), 1);

    // What the API says is what the command says.
    let page = server.get(&format!("/runs/{id}/events?limit=3")).await.is(200);
    assert_eq!((page["items"].as_array().unwrap().len(), &page["next_cursor"]), (3, &"2".into()));
    let rest = server.get(&format!("/runs/{id}/events?cursor=2&limit=1000")).await.is(200);
    let all: Vec<Value> = [page["items"].as_array().unwrap().clone(), rest["items"].as_array().unwrap().clone()].concat();
    assert_eq!((kinds(&all), &rest["next_cursor"]), (kinds(&sandbox.events(&id).await), &Value::Null));
    let show = sandbox.show(&id).await;
    assert_eq!(server.get(&format!("/runs/{id}")).await.is(200), show);
}

#[tokio::test]
async fn who_waits_gets_the_run_when_it_rests_or_as_it_is() {
    let sandbox = Sandbox::new("timeout = \"30s\"").await;
    let sandbox = {
        let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
        sandbox.write("leasehold.toml", &config.replacen("timeout = \"2s\"\n", "", 1));
        sandbox
    };
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    sandbox.far.then([Then::Hold]);
    let decision = json!({ "turn_digest": digest, "decision": "approve" });
    let answer = server.post(&format!("/runs/{id}/decision?wait=true&timeout=1"), &decision).await;
    let run = answer.is(202);
    assert_eq!((&run["state"], &run["fence"]["tool"]), (&"running".into(), &"ledger.append".into()), "{run}");
    sandbox.far.release();
    let again = server.post(&format!("/runs/{id}/decision?wait=true"), &decision).await.is(200);
    assert_eq!((&again["state"], sandbox.far.arrived().len()), (&"completed".into(), 1));
    for wrong in ["0", "601", "x", "-1"] {
        let problem = server.post(&format!("/runs?timeout={wrong}"), json!({ "agent": "clerk", "input": "x" })).await;
        assert_eq!(problem.problem(422, "invalid_input")["errors"][0]["parameter"], "timeout", "{wrong}");
    }
}

#[tokio::test]
async fn fifty_starts_with_one_key_are_one_run() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    for mode in ["queue", "wait"] {
        let body = json!({ "agent": "clerk", "input": format!("{mode} hello"), "mode": mode });
        let start = |_| Answer::of(server.posting("/runs", &body).header("idempotency-key", mode));
        let answers = join_all((0..50).map(start)).await;
        let runs: BTreeSet<String> = answers.iter().map(|answer| text(&answer.json(), "/id")).collect();
        assert!(answers.iter().all(|answer| answer.status.is_success()), "{answers:?}");
        assert_eq!(runs.len(), 1);
        let other = server.posting("/runs", json!({ "agent": "clerk", "input": "else" })).header("idempotency-key", mode);
        assert_eq!(Answer::of(other).await.problem(409, "key_conflict")["run"].as_str(), runs.first().map(String::as_str));
    }
    assert_eq!(server.get("/runs").await.is(200)["items"].as_array().unwrap().len(), 2);
    for wrong in ["", &"x".repeat(257)] {
        let request = server.posting("/runs", json!({ "agent": "clerk", "input": "x" })).header("idempotency-key", wrong);
        assert_eq!(Answer::of(request).await.problem(422, "invalid_input")["errors"][0]["parameter"], "Idempotency-Key");
    }
}

#[tokio::test]
async fn a_decision_that_is_not_one_of_the_two_words_changes_nothing() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let path = format!("/runs/{id}/decision");
    let before = server.get(&format!("/runs/{id}/events")).await.is(200);
    for wrong in [
        json!(null),
        json!("yes"),
        json!("APPROVE"),
        json!("Approve"),
        json!(" approve"),
        json!(""),
        json!(1),
        json!(true),
        json!({}),
        json!({ "approve": null }),
        json!(["approve"]),
    ] {
        let problem =
            server.post(&path, json!({ "turn_digest": digest, "decision": wrong })).await.problem(422, "invalid_input");
        assert_eq!(problem["errors"][0]["pointer"], "#/decision", "{wrong}: {problem}");
        let call = json!({ "turn_digest": digest, "calls": [{ "id": "t1c0", "decision": wrong }] });
        let problem = server.post(&path, &call).await.problem(422, "invalid_input");
        assert_eq!(problem["errors"][0]["pointer"], "#/calls/0/decision", "{wrong}: {problem}");
    }
    for (wrong, pointer) in [
        (json!({ "turn_digest": digest }), "#/decision"),
        (json!({ "decision": "approve" }), "#"),
        (json!({ "turn_digest": digest, "decision": "approve", "force": true }), "#/force"),
        (json!({ "turn_digest": null, "decision": "approve" }), "#/turn_digest"),
        (json!({ "turn_digest": digest, "calls": [{ "id": "t9c9", "decision": "approve" }] }), "#/calls"),
        (
            json!({ "turn_digest": digest, "calls": [{ "id": "t1c0", "decision": "deny", "arguments": {} }] }),
            "#/calls/0/arguments",
        ),
        (
            json!({ "turn_digest": digest, "calls": [{ "id": "t1c0", "decision": "deny" }, { "id": "t1c0", "decision": "approve" }] }),
            "#/calls/1/id",
        ),
        (
            json!({ "turn_digest": digest, "calls": [{ "id": "t1c0", "decision": "approve", "arguments": { "x": 1 } }] }),
            "#/calls",
        ),
        (
            json!({ "turn_digest": digest, "calls": [{ "id": "t1c0", "decision": "approve", "arguments": 7 }] }),
            "#/calls/0/arguments",
        ),
    ] {
        let problem = server.post(&path, &wrong).await.problem(422, "invalid_input");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{wrong}: {problem}");
    }
    for twice in ["{\"turn_digest\": \"D\", \"decision\": \"deny\", \"decision\": \"approve\"}".replace('D', &digest)] {
        server.post(&path, twice).await.problem(422, "invalid_input");
    }
    for broken in ["", "{", "\"approve\"", "[]", "approve"] {
        assert!(server.post(&path, broken).await.status.is_client_error(), "{broken}");
    }
    let form = server.request(Method::POST, &path).form(&[("turn_digest", digest.as_str()), ("decision", "approve")]);
    Answer::of(form).await.problem(415, "unsupported_media_type");
    server.post(&path, json!({ "turn_digest": "0", "decision": "approve" })).await.problem(409, "stale_turn");

    assert_eq!(server.get(&format!("/runs/{id}/events")).await.is(200), before);
    assert!(sandbox.far.arrived().is_empty());
    server.post(&format!("{path}?wait=true"), json!({ "turn_digest": digest, "decision": "deny" })).await.is(200);
    server.post(&path, json!({ "turn_digest": digest, "decision": "approve" })).await.problem(409, "already_decided");
    server.post(&format!("/runs/{id}/input"), json!({ "turn_digest": digest, "values": {} })).await.problem(409, "not_waiting");
    assert!(sandbox.far.arrived().is_empty());
}

#[tokio::test]
async fn a_start_that_asks_for_more_than_there_is_starts_nothing() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let with = |more: Value| {
        let mut body = json!({ "agent": "clerk", "input": "x" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let mut deep = json!(1);
    for _ in 0..70 {
        deep = json!([deep]);
    }
    for (wrong, pointer) in [
        (json!({ "input": "x" }), "#"),
        (json!({ "agent": "clerk" }), "#/input"),
        (with(json!({ "agent": "nobody" })), "#/agent"),
        (with(json!({ "input": "  " })), "#/input"),
        (with(json!({ "messages": [] })), "#/messages"),
        (json!({ "agent": "clerk", "messages": [] }), "#/messages"),
        (json!({ "agent": "clerk", "messages": [{ "role": "system", "text": "obey" }] }), "#/messages/0/role"),
        (json!({ "agent": "clerk", "messages": [{ "role": "tool", "text": "done" }] }), "#/messages/0/role"),
        (json!({ "agent": "clerk", "messages": [{ "role": "assistant", "text": "x" }] }), "#/messages"),
        (json!({ "agent": "clerk", "messages": [{ "role": "user", "text": ["x"] }] }), "#/messages/0/text"),
        (with(json!({ "mode": "now" })), "#/mode"),
        (with(json!({ "recovery": "retry" })), "#/recovery"),
        (with(json!({ "tools": ["site.*"] })), "#/tools"),
        (with(json!({ "max_rounds": 0 })), "#/max_rounds"),
        (with(json!({ "max_rounds": 6.5 })), "#/max_rounds"),
        (with(json!({ "run_at": "tomorrow" })), "#/run_at"),
        (with(json!({ "metadata": [] })), "#/metadata"),
        (with(json!({ "metadata": { "a": deep } })), "#/metadata"),
        (with(json!({ "owner": "somebody" })), "#/owner"),
        (with(json!({ "principal": { "id": "ann" } })), "#/principal"),
    ] {
        let problem = server.post("/runs", &wrong).await.problem(422, "invalid_input");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{wrong}: {problem}");
    }
    let dry = with(json!({ "dry_run": true, "tools": ["ledger.*"], "max_rounds": 3, "mode": "wait" }));
    let expected = json!({
        "dry_run": true, "agent": "clerk", "mode": "wait", "recovery": "abandon", "tools": ["ledger.append"], "max_rounds": 3
    });
    assert_eq!(server.post("/runs", &dry).await.is(200), expected);
    assert_eq!(server.get("/runs").await.is(200)["items"], json!([]));
    let messages =
        json!([{ "role": "user", "text": "a" }, { "role": "assistant", "text": "b" }, { "role": "user", "text": "c\u{0}" }]);
    let run =
        server.post("/runs", json!({ "agent": "clerk", "messages": messages, "run_at": "2999-01-01T00:00:00Z" })).await.is(202);
    assert_eq!(run["state"], "queued");
    let first = server.get(&format!("/runs/{}/events", text(&run, "/id"))).await.is(200)["items"][0].clone();
    assert_eq!(first["payload"]["request"]["messages"], messages);
}

#[tokio::test]
async fn nobody_is_told_anything_without_a_token() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let paths = [
        (Method::GET, "/runs".to_owned()),
        (Method::POST, "/runs".into()),
        (Method::GET, format!("/runs/{id}")),
        (Method::GET, format!("/runs/{id}/events")),
        (Method::POST, format!("/runs/{id}/decision")),
        (Method::POST, format!("/runs/{id}/input")),
        (Method::POST, format!("/runs/{id}/cancel")),
        (Method::POST, format!("/runs/{id}/resolve")),
        (Method::POST, format!("/runs/{id}/redrive")),
        (Method::POST, format!("/runs/{id}/discard")),
        (Method::GET, "/inbox".into()),
        (Method::GET, "/agents".into()),
        (Method::GET, "/tools".into()),
    ];
    let body = json!({ "turn_digest": digest, "decision": "approve" }).to_string();
    for (method, path) in &paths {
        let url = format!("{}/api/v1{path}", server.url);
        let short = &TOKEN[..TOKEN.len() - 1];
        for authorization in
            [None, Some(format!("Bearer {short}")), Some("Bearer ".into()), Some(format!("Basic {TOKEN}")), Some(TOKEN.into())]
        {
            let mut request =
                server.client.request(method.clone(), &url).header("content-type", "application/json").body(body.clone());
            if let Some(value) = &authorization {
                request = request.header("authorization", value);
            }
            let answer = Answer::of(request).await;
            answer.problem(401, "unauthenticated");
            assert_eq!(answer.headers["www-authenticate"], "Bearer", "{method} {path}");
            assert!(!answer.body.contains(TOKEN) && !answer.body.contains(short));
        }
    }
    for path in ["/healthz", "/readyz"] {
        let answer = Answer::of(server.client.get(format!("{}{path}", server.url))).await;
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (204, ""));
    }
    assert!(sandbox.far.arrived().is_empty());
    let said = server.said();
    assert!(!said.contains(TOKEN), "{said}");
}

#[tokio::test]
async fn another_site_and_another_name_are_refused() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve_with(&[("LEASEHOLD_SERVER_PUBLIC_URL", "https://agents.example")]).await;
    let body = json!({ "agent": "clerk", "input": "x" });
    let port = server.url.rsplit(':').next().unwrap().to_owned();
    for host in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", ""] {
        let answer = Answer::of(server.request(Method::GET, "/runs").header("host", host)).await;
        answer.problem(421, "foreign_host");
    }
    for host in [
        format!("localhost:{port}"),
        "127.0.0.1".into(),
        "[::1]:80".into(),
        "agents.example".into(),
        "Agents.Example:443".into(),
    ] {
        Answer::of(server.request(Method::GET, "/runs").header("host", host)).await.is(200);
    }
    for (name, value) in [
        ("origin", "https://evil.example"),
        ("origin", "null"),
        ("origin", "http://127.0.0.1:1"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        Answer::of(server.posting("/runs", &body).header(name, value)).await.problem(403, "cross_origin");
    }
    assert_eq!(server.get("/runs").await.is(200)["items"], json!([]));
    for (name, value) in [
        ("origin", server.url.as_str()),
        ("origin", "https://agents.example"),
        ("sec-fetch-site", "same-origin"),
        ("sec-fetch-site", "none"),
    ] {
        Answer::of(server.posting("/runs", &body).header(name, value)).await.is(202);
    }
}

#[tokio::test]
async fn what_is_too_much_or_unknown_is_a_problem_with_a_name() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    server.get("/nothing").await.problem(404, "not_found");
    server.get("/runs/nothing").await.problem(404, "not_found");
    server.get("/runs/00000000-0000-7000-8000-000000000000").await.problem(404, "not_found");
    for verb in ["decision", "input", "cancel", "resolve", "redrive", "discard"] {
        let body = match verb {
            "decision" => json!({ "turn_digest": "d", "decision": "approve" }),
            "input" => json!({ "turn_digest": "d", "values": {} }),
            "resolve" => json!({ "call_id": "t1c0", "fence_epoch": 1, "outcome": "landed" }),
            _ => json!({}),
        };
        server.post(&format!("/runs/00000000-0000-7000-8000-000000000000/{verb}"), body).await.problem(404, "not_found");
    }
    let answer = Answer::of(server.request(Method::DELETE, "/runs")).await;
    answer.problem(405, "method_not_allowed");
    assert!(answer.headers["allow"].to_str().unwrap().contains("POST"));
    server.post("/runs", "{").await.problem(400, "not_json");
    let long = format!("{{\"agent\": \"clerk\", \"input\": \"{}\"}}", "x".repeat(8 * 1024 * 1024));
    server.post("/runs", long).await.problem(413, "too_large");
    let long = json!({ "agent": "clerk", "input": "x".repeat(4 * 1024 * 1024 + 1) });
    server.post("/runs", long).await.problem(422, "invalid_input");
    Answer::of(server.request(Method::GET, "/runs").header("x-long", "x".repeat(40_000))).await.problem(431, "head_too_large");
    for query in ["limit=0", "limit=1001", "limit=x", "state=RUNNING", "reason=none", "since=yesterday", "cursor=1"] {
        let problem = server.get(&format!("/runs?{query}")).await.problem(422, "invalid_input");
        assert_eq!(problem["errors"][0]["parameter"], query.split('=').next().unwrap(), "{problem}");
    }
    server.get("/runs?colour=red").await.problem(422, "invalid_input");
    server.get("/inbox?cursor=dead").await.problem(422, "invalid_input");
    let answer = server.get("/runs").await;
    for (name, value) in
        [("x-content-type-options", "nosniff"), ("cache-control", "no-store"), ("referrer-policy", "no-referrer")]
    {
        assert_eq!(answer.headers[name], value);
    }
    assert!(answer.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    // Each principal has a rate, and is told when to come again.
    let mut hasty = Vec::new();
    while !hasty.iter().any(|answer: &Answer| answer.status.as_u16() == 429) {
        assert!(hasty.len() < 20_000, "nobody is told to come later");
        hasty.extend(join_all((0..500).map(|_| server.get("/agents"))).await);
    }
    let refused: Vec<&Answer> = hasty.iter().filter(|answer| answer.status.as_u16() == 429).collect();
    for answer in refused {
        answer.problem(429, "rate_limited");
        assert!(answer.headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() > 0);
    }
}

#[tokio::test]
async fn a_terminal_elsewhere_gets_the_screens_of_the_command() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let plain = async |path: &str| {
        let answer = Answer::of(server.request(Method::GET, path).header("accept", "text/plain")).await;
        assert_eq!(
            (answer.status.as_u16(), answer.headers["content-type"].to_str().unwrap()),
            (200, "text/plain; charset=utf-8")
        );
        answer.body
    };
    let screen = plain(&format!("/runs/{id}")).await;
    assert!(
        screen.contains(&digest) && screen.contains("Waits for a decision") && screen.contains("text: \"hello\""),
        "{screen}"
    );
    let short = &id[id.len() - 8..];
    assert!(plain("/runs").await.contains(short));
    let inbox = plain("/inbox").await;
    assert!(inbox.contains(short) && inbox.contains("ledger.append"), "{inbox}");
}

#[tokio::test]
async fn lists_go_on_where_they_stopped() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(server.suspended().await.0);
    }
    for (list, place) in [("/runs", "/id"), ("/inbox", "/run/id")] {
        let (mut seen, mut cursor) = (Vec::new(), None);
        loop {
            let after = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
            let page = server.get(&format!("{list}?limit=2{after}")).await.is(200);
            seen.extend(page["items"].as_array().unwrap().iter().map(|item| text(item, place)));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = Some(next.to_owned()),
                None => break,
            }
        }
        // Runs: newest first; the inbox: the longest waiting first.
        if list == "/runs" {
            seen.reverse();
        }
        assert_eq!(seen, ids, "{list}");
    }
    assert_eq!(server.get("/runs?state=completed").await.is(200)["items"], json!([]));
    assert_eq!(
        server.get("/runs?state=waiting_for_approval&agent=clerk&owner=user:admin").await.is(200)["items"]
            .as_array()
            .unwrap()
            .len(),
        5
    );
}

#[tokio::test]
async fn a_server_that_does_not_execute_only_queues() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve_with(&[("LEASEHOLD_SERVER_EXECUTE", "false")]).await;
    let run = server.post("/runs?timeout=1", json!({ "agent": "clerk", "input": "x", "mode": "wait" })).await.is(202);
    assert_eq!((&run["state"], &run["recovery"]), (&"queued".into(), &"abandon".into()));
    let id = text(&run, "/id");
    sandbox.leasehold(&["worker", "--once"]).await.exits(0);
    let run = server.get(&format!("/runs/{id}")).await.is(200);
    let decision = json!({ "turn_digest": run["waiting"]["turn_digest"], "decision": "approve" });
    assert_eq!(server.post(&format!("/runs/{id}/decision"), decision).await.is(202)["state"], "queued");
    assert!(sandbox.far.arrived().is_empty());
    sandbox.leasehold(&["worker", "--once"]).await.exits(0);
    assert_eq!(server.until_state(&id, "completed").await["output"], "It is done.");
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test]
async fn a_server_that_does_not_execute_asks_the_far_side_with_its_own_secret() {
    let verify = "verify = { method = \"GET\", url = \"FAR/{idempotency_key}\", settle_after = \"100ms\" }";
    let sandbox = Sandbox::new(&format!("headers = {{ X-Secret = {{ env = \"LEDGER_SECRET\" }} }}\n{verify}")).await;
    let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    sandbox.write("leasehold.toml", &config.replace("FAR", &sandbox.far.url("/entries")));
    let secret = ("LEDGER_SECRET", "of-the-ledger");
    let server = sandbox.serve_with(&[("LEASEHOLD_SERVER_EXECUTE", "false"), secret]).await;
    let id = server.queue().await;
    let worker = async || {
        let mut command = sandbox.command(&["worker", "--once"]);
        command.env(secret.0, secret.1);
        support::said(command).await
    };
    worker().await.exits(0);
    let digest = text(&server.get(&format!("/runs/{id}")).await.is(200), "/waiting/turn_digest");
    server.post(&format!("/runs/{id}/decision"), json!({ "turn_digest": digest, "decision": "approve" })).await.is(202);
    // The write breaks off without an answer.
    sandbox.far.then([Then::HangUp]);
    worker().await;
    let run = server.until_state(&id, "dead").await;
    assert_eq!(run["reason"], "write_in_doubt", "{run}");
    let landed = || json!({ "call_id": "t1c0", "fence_epoch": run["fence"]["epoch"], "outcome": "not_landed" });
    sandbox.far.then([Then::Json("{\"line\": 7}".into())]);
    let before = sandbox.far.arrived().len();
    let resolve = format!("/runs/{id}/resolve");
    // Until it can no longer be in flight.
    let refused = server.until(|| server.posting(&resolve, landed()), |answer| answer.json()["code"] != "too_early").await;
    refused.problem(409, "verified_landed");
    let asked = sandbox.far.arrived()[before].clone();
    assert_eq!((asked.method.as_str(), asked.header("x-secret").as_str()), ("GET", "of-the-ledger"));
    sandbox.far.then([Then::Answer(404, "none".into())]);
    let resolved = server.post(&resolve, landed()).await.is(202);
    assert_eq!(resolved["verify"], json!({ "asked": true, "answer": "absent", "why": null }));
}

#[tokio::test]
async fn it_refuses_to_be_reached_from_elsewhere_in_the_clear() {
    let sandbox = Sandbox::new("").await;
    let mut command = sandbox.command(&["serve"]);
    command.env("LEASEHOLD_SERVER_LISTEN", "0.0.0.0:0").env("LEASEHOLD_ADMIN_TOKEN", TOKEN);
    let said = support::said(command).await.exits(2);
    assert!(said.err.contains("insecure_http = true") && said.err.contains("public_url"), "{}", said.err);
}
