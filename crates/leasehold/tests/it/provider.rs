//! The provider adapter against servers that answer badly. Each server is a socket that reads one request and writes what
//! the test says, so that nothing between the test and the wire is polite.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    agent::model::{
        Message, Model as _, ModelError, ModelErrorClass, ModelRequest, OfferedTool, Piece, Reply, TranscriptCall,
        provider::{ProviderConfig, ProviderError, ProviderModel, provider_in_environment},
    },
    run::{CallId, RunId},
};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

const KEY: &str = "sk-s3cret-key";

struct Server {
    url: String,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn answering(bytes: impl Into<Vec<u8>>) -> Self {
        Self::new(bytes.into(), false).await
    }

    async fn new(bytes: Vec<u8>, keeps_open: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = requests.clone();
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (mut read, mut buffer) = (Vec::new(), [0; 65536]);
                let (head, body) = loop {
                    let n = stream.read(&mut buffer).await.unwrap();
                    assert!(n > 0, "the client hung up in its request");
                    read.extend_from_slice(&buffer[..n]);
                    let text = String::from_utf8_lossy(&read);
                    if let Some((head, body)) = text.split_once("\r\n\r\n") {
                        let length = head.lines().find_map(|line| {
                            line.to_ascii_lowercase().strip_prefix("content-length: ").map(|l| l.parse::<usize>().unwrap())
                        });
                        if body.len() >= length.unwrap() {
                            break (head.to_owned(), serde_json::from_str(body).unwrap());
                        }
                    }
                };
                kept.lock().unwrap().push((head, body));
                let _ = stream.write_all(&bytes).await;
                if keeps_open {
                    std::future::pending::<()>().await;
                }
            }
        });
        Self { url, requests, task }
    }

    fn requests(&self) -> Vec<(String, Value)> {
        self.requests.lock().unwrap().clone()
    }
}

fn http(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn json_answer(body: &Value) -> String {
    http("200 OK", "content-type: application/json\r\n", &body.to_string())
}

/// An event stream that ends as HTTP says, whatever its events are.
fn sse(events: &[String]) -> String {
    let body: String = events.iter().map(|event| format!("data: {event}\n\n")).collect();
    let headers = "content-type: text/event-stream\r\nconnection: close\r\ntransfer-encoding: chunked\r\n";
    format!("HTTP/1.1 200 OK\r\n{headers}\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len())
}

fn delta(delta: Value) -> String {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }).to_string()
}

fn call(index: u32, id: &str, name: &str, arguments: &str) -> String {
    delta(json!({ "tool_calls": [{ "index": index, "id": id, "function": { "name": name, "arguments": arguments } }] }))
}

fn piece(index: u32, arguments: &str) -> String {
    delta(json!({ "tool_calls": [{ "index": index, "function": { "arguments": arguments } }] }))
}

fn finish(reason: &str) -> String {
    let usage = json!({ "prompt_tokens": 11, "completion_tokens": 3, "prompt_tokens_details": { "cached_tokens": 4 } });
    json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }], "usage": usage }).to_string()
}

fn done() -> String {
    "[DONE]".into()
}

fn body(message: Value, reason: &str) -> Value {
    let usage = json!({ "prompt_tokens": 11, "completion_tokens": 3 });
    json!({ "id": "c", "choices": [{ "index": 0, "message": message, "finish_reason": reason }], "usage": usage })
}

fn body_call(id: Value, name: &str, arguments: Value) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

fn config(url: &str) -> ProviderConfig {
    ProviderConfig {
        base_url: Some(url.to_owned()),
        api_key: Some(KEY.into()),
        timeout: Duration::from_secs(10),
        ..ProviderConfig::new("default", "openai", "gpt-test")
    }
}

fn whole_config(url: &str) -> ProviderConfig {
    ProviderConfig { stream: false, ..config(url) }
}

fn request() -> ModelRequest {
    let tool = |name: &str| OfferedTool {
        name: name.into(),
        description: "Does it".into(),
        parameters: json!({ "type": "object", "properties": { "n": { "type": "integer" } } }),
    };
    ModelRequest {
        run: RunId::new(),
        replies_so_far: 0,
        errors_so_far: 0,
        system: "Be brief.".into(),
        messages: vec![Message::User("go".into())],
        tools: vec![tool("ledger.append"), tool("site.read_page")],
        on_text: None,
    }
}

async fn ask(config: ProviderConfig) -> Result<Reply, ModelError> {
    ProviderModel::new(config).unwrap().reply(request()).await
}

async fn streamed(events: &[String]) -> Result<Reply, ModelError> {
    let server = Server::answering(sse(events)).await;
    let answer = ask(config(&server.url)).await;
    assert_eq!(server.requests().len(), 1, "one request and no retry");
    answer
}

async fn whole(answer: String) -> Result<Reply, ModelError> {
    let server = Server::answering(answer).await;
    let answer = ask(whole_config(&server.url)).await;
    assert_eq!(server.requests().len(), 1, "one request and no retry");
    answer
}

fn calls(reply: &Reply) -> Vec<(&str, &str)> {
    reply.calls.iter().map(|call| (call.tool.as_str(), call.raw_arguments.as_str())).collect()
}

#[tokio::test]
async fn a_streamed_reply_is_text_as_it_comes_calls_in_order_and_usage() {
    let server = Server::answering(sse(&[
        delta(json!({ "role": "assistant", "content": "Hel" })),
        delta(json!({ "content": "lo" })),
        call(0, "call_1", "ledger__append", ""),
        piece(0, "{\"n\""),
        piece(0, ": 1}"),
        call(1, "call_2", "site__read_page", "{}"),
        finish("tool_calls"),
        done(),
    ]))
    .await;
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    let model = ProviderModel::new(config(&server.url)).unwrap();
    let reply = model.reply(ModelRequest { on_text: Some(send), ..request() }).await.unwrap();
    assert_eq!(reply.text, "Hello");
    assert_eq!(calls(&reply), [("ledger.append", "{\"n\": 1}"), ("site.read_page", "{}")]);
    assert_eq!((reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.cached_tokens), (11, 3, 4));
    assert_eq!(reply.stop, "tool_calls");
    let text = |text: &str| Some(Piece::Text(text.into()));
    assert_eq!((receive.recv().await, receive.recv().await), (text("Hel"), text("lo")));
    let (head, sent) = server.requests().remove(0);
    assert!(head.starts_with("POST /v1/chat/completions HTTP"), "{head}");
    assert!(head.contains(&format!("Bearer {KEY}")), "{head}");
    assert_eq!(sent["tools"][0]["function"]["name"], "ledger__append");
    assert_eq!(sent["messages"][0], json!({ "role": "system", "content": "Be brief." }));
    assert_eq!(sent["stream"], true);
}

#[tokio::test]
async fn the_transcript_goes_out_with_our_call_ids_and_one_result_each() {
    let server = Server::answering(json_answer(&body(json!({ "content": "ok" }), "stop"))).await;
    let model = ProviderModel::new(whole_config(&server.url)).unwrap();
    let (first, second) = (CallId::of(1, 0), CallId::of(1, 1));
    let asked = |id: &CallId, tool: &str| TranscriptCall {
        id: id.clone(),
        tool: tool.into(),
        arguments: json!({ "n": 1 }).as_object().unwrap().clone(),
    };
    let result = |id: &CallId, text: &str| Message::ToolResult { call_id: id.clone(), text: text.into(), is_error: false };
    let turn = vec![asked(&first, "ledger.append"), asked(&second, "büro weg")];
    let messages = vec![
        Message::User("go".into()),
        Message::Assistant { text: String::new(), calls: turn, opaque: None },
        result(&first, "one"),
        result(&second, "two"),
        Message::Assistant { text: String::new(), calls: vec![], opaque: None },
        Message::User("again".into()),
    ];
    assert_eq!(model.reply(ModelRequest { messages, ..request() }).await.unwrap().text, "ok");
    let sent = server.requests().remove(0).1;
    let messages = sent["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 6, "{messages:#?}");
    assert_eq!(messages[2]["tool_calls"][0]["id"], "c00010000");
    assert_eq!(messages[2]["tool_calls"][0]["function"], json!({ "name": "ledger__append", "arguments": "{\"n\":1}" }));
    let wire = messages[2]["tool_calls"][1]["function"]["name"].as_str().unwrap();
    assert!(wire.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'), "{wire}");
    assert_eq!((&messages[3]["tool_call_id"], &messages[3]["content"]), (&json!("c00010000"), &json!("one")));
    assert_eq!((&messages[4]["tool_call_id"], &messages[4]["content"]), (&json!("c00010001"), &json!("two")));
}

#[tokio::test]
async fn a_stream_that_is_not_whole_is_truncated_whatever_it_said_before() {
    let text = || delta(json!({ "content": "I will" }));
    let open = || call(0, "a", "ledger__append", "{\"n\":1}");
    for events in [
        vec![text()],
        vec![text(), done()],
        vec![open()],
        vec![open(), done()],
        vec![open(), finish("tool_calls")],
        vec![open(), finish("length"), done()],
        vec![call(0, "a", "ledger__append", "{\"n\":"), finish("length"), done()],
        vec![open(), "{\"choices\":[{\"delta\":{\"tool_ca".into()],
    ] {
        let error = streamed(&events).await.unwrap_err();
        assert_eq!(error.class, ModelErrorClass::Truncated, "{events:?}: {error}");
    }
}

#[tokio::test]
async fn a_chunked_body_that_is_cut_is_truncated_and_a_stall_ends_at_the_timeout() {
    let whole = sse(&[call(0, "a", "ledger__append", "{\"n\":1}"), finish("tool_calls"), done()]);
    let half = whole[..whole.len() - 40].to_owned();
    let server = Server::answering(half.clone()).await;
    let error = ask(config(&server.url)).await.unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Truncated, "{error}");
    let stalled = Server::new(half.into(), true).await;
    let config = ProviderConfig { timeout: Duration::from_millis(300), ..config(&stalled.url) };
    let error = ask(config).await.unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Connection, "{error}");
}

#[tokio::test]
async fn an_error_event_ends_the_turn_whatever_comes_after_it() {
    for (error, class) in [
        (json!({ "message": "The server had an error", "type": "server_error" }), ModelErrorClass::Server),
        (json!({ "message": "Overloaded", "type": "overloaded_error" }), ModelErrorClass::Server),
        (json!({ "message": "slow down", "code": "rate_limit_exceeded" }), ModelErrorClass::RateLimited),
        (json!({ "message": "too long", "code": "context_length_exceeded" }), ModelErrorClass::ContextOverflow),
        (json!({ "message": "no", "code": "content_filter" }), ModelErrorClass::Refused),
        (json!({ "message": "no", "code": 401 }), ModelErrorClass::Auth),
    ] {
        let events = [
            delta(json!({ "content": "x" })),
            json!({ "error": error }).to_string(),
            call(0, "a", "ledger__append", "{}"),
            finish("tool_calls"),
            done(),
        ];
        let answer = streamed(&events).await.unwrap_err();
        assert_eq!(answer.class, class, "{answer}");
        let answer = whole(json_answer(&json!({ "error": error }))).await.unwrap_err();
        assert_eq!(answer.class, class, "{answer}");
    }
}

#[tokio::test]
async fn a_status_becomes_its_class_in_both_modes_and_redirects_are_not_followed() {
    let too_long = r#"{"error":{"message":"the maximum context length is 8192","code":"context_length_exceeded"}}"#;
    for (status, text, class) in [
        ("400 Bad Request", "{}", ModelErrorClass::Client),
        ("400 Bad Request", too_long, ModelErrorClass::ContextOverflow),
        ("413 Payload Too Large", "Request Entity Too Large", ModelErrorClass::ContextOverflow),
        ("422 Unprocessable", "prompt is too long: 300000 tokens", ModelErrorClass::ContextOverflow),
        ("400 Bad Request", r#"{"error":{"code":"content_filter"}}"#, ModelErrorClass::Refused),
        ("400 Bad Request", r#"{"error":{"message":"max_tokens is too large"}}"#, ModelErrorClass::Client),
        ("401 Unauthorized", "{}", ModelErrorClass::Auth),
        ("403 Forbidden", "{}", ModelErrorClass::Auth),
        ("404 Not Found", "no such model", ModelErrorClass::Client),
        ("429 Too Many Requests", "{}", ModelErrorClass::RateLimited),
        ("500 Oops", "{}", ModelErrorClass::Server),
        ("503 Unavailable", "<html>", ModelErrorClass::Server),
        ("529 Overloaded", "{}", ModelErrorClass::Server),
        ("302 Found", "", ModelErrorClass::Client),
    ] {
        let answer = http(status, "location: /v1/elsewhere\r\nretry-after: 7\r\n", text);
        for stream in [true, false] {
            let server = Server::answering(answer.clone()).await;
            let error = ask(ProviderConfig { stream, ..config(&server.url) }).await.unwrap_err();
            assert_eq!(error.class, class, "{status}, stream {stream}: {error}");
            assert_eq!(error.retry_after, Some(Duration::from_secs(7)), "{status}, stream {stream}");
            assert_eq!(server.requests().len(), 1, "{status}, stream {stream}");
        }
    }
}

#[tokio::test]
async fn an_answer_that_is_none_is_the_servers_fault() {
    let html = http("200 OK", "content-type: text/html\r\n", "<html><body>Log in</body></html>");
    let boom = json_answer(&json!({ "error": { "message": "boom" } }));
    let empty = json!({ "id": "c", "choices": [] });
    for stream in [true, false] {
        for answer in [&html, &boom, &json_answer(&empty), &json_answer(&json!([]))] {
            let server = Server::answering(answer.clone()).await;
            let error = ask(ProviderConfig { stream, ..config(&server.url) }).await.unwrap_err();
            assert_eq!(error.class, ModelErrorClass::Server, "stream {stream}: {answer}: {error}");
        }
    }
    for events in [[empty.to_string(), done()], [finish("tool_calls"), done()]] {
        let error = streamed(&events).await.unwrap_err();
        assert_eq!(error.class, ModelErrorClass::Server, "{error}");
    }
}

#[tokio::test]
async fn nobody_there_or_a_hang_up_is_a_connection_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    for stream in [true, false] {
        let error = ask(ProviderConfig { stream, ..config(&nobody) }).await.unwrap_err();
        assert_eq!(error.class, ModelErrorClass::Connection, "{error}");
        let server = Server::answering("").await;
        let error = ask(ProviderConfig { stream, ..config(&server.url) }).await.unwrap_err();
        assert_eq!(error.class, ModelErrorClass::Connection, "{error}");
        assert_eq!(server.requests().len(), 1);
    }
}

#[tokio::test]
async fn a_refusal_is_not_an_answer() {
    for answer in [
        streamed(&[delta(json!({ "refusal": "I cannot" })), finish("stop"), done()]).await,
        streamed(&[delta(json!({ "content": "I" })), finish("content_filter"), done()]).await,
        whole(json_answer(&body(json!({ "content": null, "refusal": "I cannot" }), "stop"))).await,
        whole(json_answer(&body(json!({ "content": "" }), "content_filter"))).await,
    ] {
        assert_eq!(answer.unwrap_err().class, ModelErrorClass::Refused);
    }
}

#[tokio::test]
async fn the_providers_call_ids_do_not_matter() {
    let two = [("ledger.append", "{\"n\":1}"), ("ledger.append", "{\"n\":2}")];
    for (first, second) in [("call_0", "call_0"), ("", ""), ("a", "b")] {
        for second_index in [0, 1] {
            let reply = streamed(&[
                call(0, first, "ledger__append", ""),
                piece(0, "{\"n\":"),
                piece(0, "1}"),
                call(second_index, second, "ledger__append", ""),
                piece(second_index, "{\"n\":"),
                piece(second_index, "2}"),
                finish("tool_calls"),
                done(),
            ])
            .await
            .unwrap();
            assert_eq!(calls(&reply), two, "{first} {second}");
        }
        let asked = json!([
            body_call(json!(first), "ledger__append", json!("{\"n\":1}")),
            body_call(json!(second), "ledger__append", json!("{\"n\":2}")),
        ]);
        let reply = whole(json_answer(&body(json!({ "tool_calls": asked }), "tool_calls"))).await.unwrap();
        assert_eq!(calls(&reply), two, "{first} {second}");
    }
    // An index that starts at 1 is one call, not two of the same.
    let reply = streamed(&[call(1, "a", "ledger__append", "{}"), finish("tool_calls"), done()]).await.unwrap();
    assert_eq!(calls(&reply), [("ledger.append", "{}")]);
}

#[tokio::test]
async fn arguments_reach_us_exactly_as_the_model_wrote_them() {
    for raw in
        ["{\"n\": 1", "null", "[]", "{\"n\":1}{\"n\":2}", "", "\"text\"", "{\"n\":1e400}", "{\"n\":1,\"n\":2}", "nonsense"]
    {
        let reply = streamed(&[call(0, "a", "ledger__append", raw), finish("tool_calls"), done()]).await.unwrap();
        assert_eq!(calls(&reply), [("ledger.append", raw)]);
        let asked = json!({ "content": "", "tool_calls": [body_call(Value::Null, "ledger__append", json!(raw))] });
        let reply = whole(json_answer(&body(asked, "tool_calls"))).await.unwrap();
        assert_eq!(calls(&reply), [("ledger.append", raw)]);
    }
}

#[tokio::test]
async fn a_tool_that_was_not_offered_keeps_the_name_the_model_wrote() {
    let reply = streamed(&[call(0, "a", "rm_rf", "{}"), finish("tool_calls"), done()]).await.unwrap();
    assert_eq!(calls(&reply), [("rm_rf", "{}")]);
}

#[tokio::test]
async fn a_text_that_ran_into_the_limit_is_a_reply_that_says_so() {
    let reply = streamed(&[delta(json!({ "content": "half of" })), finish("length"), done()]).await.unwrap();
    assert_eq!((reply.text.as_str(), reply.stop.as_str()), ("half of", "length"));
}

#[tokio::test]
async fn a_key_is_in_no_debug_form_and_no_error() {
    let text = format!("{{\"error\":\"Incorrect API key provided: {KEY}\"}}");
    let server = Server::answering(http("401 Unauthorized", "", &text)).await;
    let config = config(&server.url);
    assert!(!format!("{config:?}").contains(KEY));
    let model = ProviderModel::new(config).unwrap();
    assert_eq!(format!("{model:?}"), "default (openai/gpt-test)");
    let error = model.reply(request()).await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains(KEY), "{error}");
    assert!(error.detail.contains("***"), "{error}");
}

#[test]
fn a_wrong_configuration_is_named_before_anything_is_sent() {
    let refused = |config: ProviderConfig| ProviderModel::new(config).map(drop).unwrap_err();
    let base = || config("http://127.0.0.1:1/v1");
    let unknown = refused(ProviderConfig { provider: "opanai".into(), ..base() });
    assert!(matches!(unknown, ProviderError::UnknownProvider { .. }), "{unknown}");
    for url in ["127.0.0.1:1", "ftp://h/", "http://u:p@h/", ""] {
        let bad = refused(ProviderConfig { base_url: Some(url.into()), ..base() });
        assert!(matches!(bad, ProviderError::BadUrl { .. }), "{url}: {bad}");
    }
    let no_key = refused(ProviderConfig { api_key: None, base_url: None, ..base() });
    assert!(no_key.to_string().contains("OPENAI_API_KEY"), "{no_key}");
    assert!(ProviderModel::new(ProviderConfig { api_key: None, ..base() }).is_ok());
    let known = |name: &str| (name == "ANTHROPIC_API_KEY").then(|| "k".to_owned());
    assert_eq!(provider_in_environment(known), Some(("anthropic", "ANTHROPIC_API_KEY")));
    assert_eq!(provider_in_environment(|_| None), None);
}

mod anthropic {
    use super::*;

    fn event(kind: &str, mut data: Value) -> String {
        data["type"] = json!(kind);
        format!("event: {kind}\ndata: {data}\n\n")
    }

    fn stream(events: &[String]) -> String {
        http("200 OK", "content-type: text/event-stream\r\n", &events.concat())
    }

    fn start(index: u32, block: Value) -> String {
        event("content_block_start", json!({ "index": index, "content_block": block }))
    }

    fn tool(id: &str) -> Value {
        json!({ "type": "tool_use", "id": id, "name": "ledger__append", "input": {} })
    }

    fn block_delta(index: u32, delta: Value) -> String {
        event("content_block_delta", json!({ "index": index, "delta": delta }))
    }

    fn input(index: u32, piece: &str) -> String {
        block_delta(index, json!({ "type": "input_json_delta", "partial_json": piece }))
    }

    fn stop(index: u32) -> String {
        event("content_block_stop", json!({ "index": index }))
    }

    fn opening() -> String {
        event("message_start", json!({ "message": { "usage": { "input_tokens": 9, "output_tokens": 1 } } }))
    }

    fn closing(reason: &str) -> [String; 2] {
        let last = json!({ "delta": { "stop_reason": reason }, "usage": { "output_tokens": 5 } });
        [event("message_delta", last), event("message_stop", json!({}))]
    }

    fn anthropic(url: &str) -> ProviderConfig {
        ProviderConfig { provider: "anthropic".into(), ..config(url) }
    }

    async fn ask_anthropic(events: &[String]) -> Result<Reply, ModelError> {
        let server = Server::answering(stream(events)).await;
        ask(anthropic(&server.url)).await
    }

    #[tokio::test]
    async fn whole_blocks_are_calls_and_others_fail_the_turn() {
        let mut events =
            vec![opening(), start(0, tool("x")), input(0, "{\"n\":"), input(0, "1}"), stop(0), start(1, tool("x")), stop(1)];
        events.extend(closing("tool_use"));
        let reply = ask_anthropic(&events).await.unwrap();
        assert_eq!(calls(&reply), [("ledger.append", "{\"n\":1}"), ("ledger.append", "{}")]);
        assert_eq!((reply.usage.input_tokens, reply.usage.output_tokens), (9, 5));
        let without_its_end = events[..events.len() - 1].to_vec();
        let mut block_without_a_stop = events.clone();
        block_without_a_stop.remove(6);
        let mut interleaved = events.clone();
        interleaved.swap(4, 5);
        let mut out_of_tokens = vec![opening(), start(0, tool("x")), input(0, "{\"n\":1}"), stop(0)];
        out_of_tokens.extend(closing("max_tokens"));
        for (events, class) in [
            (without_its_end, ModelErrorClass::Truncated),
            (block_without_a_stop, ModelErrorClass::Truncated),
            (interleaved, ModelErrorClass::Server),
            (out_of_tokens, ModelErrorClass::Truncated),
        ] {
            let error = ask_anthropic(&events).await.unwrap_err();
            assert_eq!(error.class, class, "{events:?}: {error}");
        }
    }

    #[tokio::test]
    async fn an_overload_in_mid_stream_is_the_servers_fault() {
        let overloaded = event("error", json!({ "error": { "type": "overloaded_error", "message": "Overloaded" } }));
        assert_eq!(ask_anthropic(&[opening(), overloaded]).await.unwrap_err().class, ModelErrorClass::Server);
    }

    #[tokio::test]
    async fn a_signed_thought_goes_back_unchanged_and_only_to_the_provider_that_signed_it() {
        let mut events = vec![
            opening(),
            start(0, json!({ "type": "thinking", "thinking": "", "signature": "" })),
            block_delta(0, json!({ "type": "thinking_delta", "thinking": "Hm." })),
            block_delta(0, json!({ "type": "signature_delta", "signature": "c2ln" })),
            stop(0),
            start(1, tool("x")),
            stop(1),
        ];
        events.extend(closing("tool_use"));
        let server = Server::answering(stream(&events)).await;
        let model = ProviderModel::new(anthropic(&server.url)).unwrap();
        let reply = model.reply(request()).await.unwrap();
        assert!(reply.opaque.is_some());
        let id = CallId::of(1, 0);
        let called = TranscriptCall { id: id.clone(), tool: "ledger.append".into(), arguments: serde_json::Map::new() };
        let messages = vec![
            Message::User("go".into()),
            Message::Assistant { text: String::new(), calls: vec![called], opaque: reply.opaque },
            Message::ToolResult { call_id: id, text: "ok".into(), is_error: false },
        ];
        model.reply(ModelRequest { messages: messages.clone(), ..request() }).await.unwrap();
        let sent = server.requests().remove(1).1;
        let content = &sent["messages"][1]["content"];
        assert_eq!(content[0], json!({ "type": "thinking", "thinking": "Hm.", "signature": "c2ln" }), "{sent:#}");
        assert_eq!(content[1]["id"], "c00010000");
        let other = Server::answering(json_answer(&body(json!({ "content": "ok" }), "stop"))).await;
        let model = ProviderModel::new(whole_config(&other.url)).unwrap();
        model.reply(ModelRequest { messages, ..request() }).await.unwrap();
        assert!(!other.requests()[0].1.to_string().contains("c2ln"));
    }
}

#[tokio::test]
async fn ollama_and_gemini_streams_without_a_reason_to_stop_are_truncated() {
    let asked = json!({ "function": { "name": "ledger__append", "arguments": { "n": 1 } } });
    let ollama = json!({ "message": { "content": "hi", "tool_calls": [asked] } });
    let ollama_end = json!({ "message": { "content": "" }, "done": true, "done_reason": "stop" });
    let part = json!({ "functionCall": { "name": "ledger__append", "args": { "n": 1 } } });
    let gemini = json!({ "candidates": [{ "content": { "parts": [part] } }] });
    let gemini_end = json!({ "candidates": [{ "content": { "parts": [] }, "finishReason": "STOP" }] });
    for (provider, content_type, cut, end) in [
        ("ollama", "application/x-ndjson", format!("{ollama}\n"), format!("{ollama_end}\n")),
        ("gemini", "text/event-stream", format!("data: {gemini}\n\n"), format!("data: {gemini_end}\n\n")),
    ] {
        let headers = format!("content-type: {content_type}\r\n");
        let of = |url: &str| ProviderConfig { provider: provider.into(), ..config(url) };
        let server = Server::answering(http("200 OK", &headers, &cut)).await;
        let error = ask(of(&server.url)).await.unwrap_err();
        assert_eq!(error.class, ModelErrorClass::Truncated, "{provider}: {error}");
        let server = Server::answering(http("200 OK", &headers, &format!("{cut}{end}"))).await;
        let reply = ask(of(&server.url)).await.unwrap();
        assert_eq!(calls(&reply), [("ledger.append", "{\"n\":1}")], "{provider}");
    }
}
