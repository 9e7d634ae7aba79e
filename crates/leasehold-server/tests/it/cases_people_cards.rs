//! What a person is shown and what they fill in: a preview that fails is said and never lets a call through, and values are judged before
//! anything is done with them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{Sandbox, api::Answer, people::decision, text};
use leasehold_testkit::far_side::{FarSide, Then};
use reqwest::Method;
use serde_json::{Value, json};

/// The preview of a call is an error, a broken connection, silence, nothing at all, or far too much. The call waits each time, the card
/// says that there is no preview or shows a bounded one, and a person can decide.
#[tokio::test]
async fn a_preview_that_fails_is_said_and_one_that_is_too_long_is_cut_and_the_call_waits_all_the_same() {
    let looks = FarSide::start().await.unwrap();
    let preview = format!("preview = {{ url = \"{}\" }}", looks.url("/preview"));
    let sandbox = Sandbox::new(&preview).await;
    let server = sandbox.serve().await;
    let long: Vec<String> = (0..30).map(|line| format!("{line:02}{}", "x".repeat(898))).collect();
    let cases = [
        (Then::Answer(500, "broken".into()), "no preview, you are deciding without one: HTTP 500"),
        (Then::Answer(404, "none".into()), "no preview, you are deciding without one: HTTP 404"),
        (Then::Redirect("http://127.0.0.1:1/".into()), "no preview, you are deciding without one: HTTP 302"),
        (Then::HangUp, "no preview, you are deciding without one: "),
        (Then::Hold, "no preview, you are deciding without one: "),
        (Then::Answer(200, String::new()), "HTTP 200 without a body"),
        (Then::Answer(200, " \n\t\n".into()), "no preview, you are deciding without one: the tool showed nothing"),
        (Then::Answer(200, long.join("\n")), "00x"),
    ];
    for (round, (then, shown)) in cases.into_iter().enumerate() {
        looks.then([then.clone()]);
        let (id, digest) = server.suspended().await;
        assert_eq!((looks.arrived().len(), sandbox.far.arrived().len()), (round + 1, 0), "{then:?}");
        let run = server.get(&format!("/runs/{id}")).await.is(200);
        let preview = text(&run, "/waiting/calls/0/preview");
        assert!(preview.starts_with(shown), "{then:?}: {preview}");
        let plain = server.request(Method::GET, &format!("/runs/{id}")).header("accept", "text/plain");
        let screen = Answer::of(plain).await.body;
        let words = shown.split(" without").next().unwrap();
        assert!(screen.contains(words), "{then:?}: {screen}");
        if shown.starts_with("00") {
            let lines: Vec<&str> = preview.lines().collect();
            assert_eq!((lines.len(), lines[20]), (21, "[10 more lines]"), "{preview}");
            for line in &lines[..20] {
                let (kept, cut) = line.split_once(" [cut: ").unwrap();
                assert_eq!((kept.chars().count(), cut), (500, "900 characters]"), "{line}");
            }
        }
        let denied = server.post(&format!("/runs/{id}/decision?wait=true"), decision(&digest, "deny")).await.is(200);
        assert_eq!((&denied["state"], sandbox.far.arrived().len()), (&"completed".into(), 0), "{then:?}");
    }
    looks.then([Then::Answer(500, "broken".into())]);
    let (id, digest) = server.suspended().await;
    server.post(&format!("/runs/{id}/decision?wait=true"), decision(&digest, "approve")).await.is(200);
    assert_eq!(sandbox.far.arrived().len(), 1);
}

/// A form of a text, a number that may be left out, a box that has to be checked, and a choice.
const FORM: &str = r#"approval = "none"
input = { type = "object", required = ["text", "agree", "size"], properties = { text = { type = "string", minLength = 1 }, count = { type = "integer", minimum = 1 }, agree = { const = true }, size = { enum = ["s", "l"] } } }"#;

const TWO: &str = r#"
[[reply]]
calls = [
  { tool = "ledger.append", arguments = { text = "first", to = "ann" } },
  { tool = "ledger.append", arguments = { text = "second", to = "bob" } },
]
[[reply]]
text = "Done."
"#;

/// A person sends a form as browsers do: numbers and boxes as texts, an unchecked box as no key at all, an empty field as an empty text,
/// a label in the place of its value. Each is refused with the field it is about, and nothing is done with the fields that fit. Two calls
/// of the same tool ask one after the other, and each gets its own values.
#[tokio::test]
async fn values_that_do_not_fit_are_refused_by_field_and_those_that_do_reach_one_call() {
    let sandbox = Sandbox::with_script(FORM, TWO).await;
    sandbox.change(&[(
        "properties = { text = { type = \"string\" } }, required = [\"text\"], additionalProperties = false",
        "properties = { text = { type = \"string\" } }, required = [\"text\"]",
    )]);
    let server = sandbox.serve().await;
    let body = json!({ "agent": "clerk", "input": "note", "mode": "wait" });
    let run = server.post("/runs", body).await.is(200);
    let (id, digest) = (text(&run, "/id"), text(&run, "/waiting/turn_digest"));
    assert_eq!(run["state"], "waiting_for_input");
    let path = format!("/runs/{id}/input");
    let waits = sandbox.stands(&server, &id).await;
    let good = json!({ "text": "x", "agree": true, "size": "s" });
    let with = |key: &str, value: Value| {
        let mut values = good.clone();
        values[key] = value;
        values
    };
    let without = |key: &str| {
        let mut values = good.clone();
        values.as_object_mut().unwrap().remove(key);
        values
    };
    for (values, pointer) in [
        (json!({}), "#/values"),
        (without("agree"), "#/values"),
        (without("text"), "#/values"),
        (with("agree", json!(false)), "#/values/agree"),
        (with("agree", json!("true")), "#/values/agree"),
        (with("agree", json!("on")), "#/values/agree"),
        (with("agree", json!(1)), "#/values/agree"),
        (with("agree", Value::Null), "#/values/agree"),
        (with("count", json!("3")), "#/values/count"),
        (with("count", json!("")), "#/values/count"),
        (with("count", json!(0)), "#/values/count"),
        (with("count", json!(1.5)), "#/values/count"),
        (with("count", Value::Null), "#/values/count"),
        (with("size", json!("S")), "#/values/size"),
        (with("size", json!("small")), "#/values/size"),
        (with("size", json!("")), "#/values/size"),
        (with("size", json!(["s"])), "#/values/size"),
        (with("text", json!("")), "#/values/text"),
        (with("text", json!(7)), "#/values/text"),
        (with("text", json!(["x"])), "#/values/text"),
        (with("to", json!("eve")), "#/values/to"),
        (with("Text", json!("x")), "#/values/Text"),
        (with("__proto__", json!({})), "#/values/__proto__"),
        (json!([]), "#/values"),
        (json!("text=x&agree=on"), "#/values"),
        (Value::Null, "#/values"),
    ] {
        let problem =
            server.post(&path, json!({ "turn_digest": digest, "values": values })).await.problem(422, "invalid_input");
        let pointers: Vec<&str> = problem["errors"].as_array().unwrap().iter().filter_map(|e| e["pointer"].as_str()).collect();
        assert!(pointers.contains(&pointer), "{values}: {problem}");
    }
    let form = server.request(Method::POST, &path).form(&[("turn_digest", digest.as_str()), ("values[text]", "x")]);
    Answer::of(form).await.problem(415, "unsupported_media_type");
    server.post(&path, json!({ "turn_digest": digest })).await.problem(422, "invalid_input");
    server.post(&path, json!({ "values": good })).await.problem(422, "invalid_input");
    server.post(&path, json!({ "turn_digest": "0", "values": good })).await.problem(409, "stale_turn");
    assert_eq!(sandbox.stands(&server, &id).await, waits);

    // One after the other, each its own.
    let first = json!({ "turn_digest": digest, "values": with("text", json!("one")) });
    let next = server.post(&format!("{path}?wait=true"), &first).await.is(200);
    assert_eq!((&next["state"], sandbox.far.arrived().len()), (&"waiting_for_input".into(), 0));
    let second = text(&next, "/waiting/turn_digest");
    assert_ne!(second, digest);
    assert_eq!(next["waiting"]["calls"][0]["id"], "t1c1");
    server.post(&path, &first).await.is(202);
    let other = json!({ "turn_digest": digest, "values": with("text", json!("other")) });
    assert_eq!(server.post(&path, other).await.problem(409, "already_decided")["call_id"], "t1c0");
    let values = json!({ "text": "two", "agree": true, "size": "l", "count": 3 });
    let done = server.post(&format!("{path}?wait=true"), json!({ "turn_digest": second, "values": values })).await.is(200);
    assert_eq!(done["state"], "completed");
    let mut arrived: Vec<Value> =
        sandbox.far.arrived().iter().map(|request| serde_json::from_slice(&request.body).unwrap()).collect();
    arrived.sort_by_key(|body| body["to"].to_string());
    let expected = [
        json!({ "to": "ann", "text": "one", "agree": true, "size": "s" }),
        json!({ "to": "bob", "text": "two", "agree": true, "size": "l", "count": 3 }),
    ];
    assert_eq!(arrived, expected);
}
