//! Each family of providers, in pieces and whole, against a server that plays what goes wrong in its own words: what is not whole,
//! ended in an error, or no reply at all is classified, and never a reply.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    agent::model::{
        Message, Model as _, ModelError, ModelErrorClass, ModelRequest, OfferedTool, Reply, TranscriptCall,
        provider::{ProviderConfig, ProviderModel, needs_base_url, providers},
    },
    limits,
    run::{CallId, RunId},
};
use leasehold_testkit::recorded::{Recorded, Why, Wire, answer, http};
use serde_json::{Value, json};
use std::time::Duration;

fn request() -> ModelRequest {
    let parameters = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
    ModelRequest {
        run: RunId::new(),
        replies_so_far: 0,
        errors_so_far: 0,
        system: "Be brief.".into(),
        messages: vec![Message::User("go".into())],
        tools: vec![OfferedTool { name: "ledger.append".into(), description: "Appends".into(), parameters }],
        on_text: None,
    }
}

async fn ask(wire: Wire, stream: bool, bytes: Vec<u8>) -> Result<Reply, ModelError> {
    ask_of(wire.provider(), wire, stream, bytes).await
}

async fn ask_of(provider: &str, wire: Wire, stream: bool, bytes: Vec<u8>) -> Result<Reply, ModelError> {
    let server = Recorded::play([bytes]).await;
    let config = ProviderConfig {
        base_url: Some(format!("{}{}", server.url(), wire.path())),
        api_key: Some("sk-key".into()),
        timeout: Duration::from_secs(10),
        stream,
        ..ProviderConfig::new("default", provider, "some-model")
    };
    let answer = ProviderModel::new(config).unwrap().reply(request()).await;
    assert_eq!(server.requests().len(), 1, "{wire:?}: one request and no retry");
    answer
}

async fn class(wire: Wire, stream: bool, bytes: Vec<u8>) -> ModelErrorClass {
    match ask(wire, stream, bytes.clone()).await {
        Ok(reply) => {
            let said: String = String::from_utf8_lossy(&bytes).chars().take(4_000).collect();
            panic!("{wire:?}, stream {stream}: {said}\nis taken for a reply of {} calls", reply.calls.len())
        }
        Err(error) => error.class,
    }
}

fn two() -> [(&'static str, Value); 2] {
    [("ledger__append", json!({ "text": "grün" })), ("ledger__append", json!({ "text": "zwei" }))]
}

#[tokio::test]
async fn a_whole_turn_is_a_reply_in_each_family_with_what_was_cached_and_thought_counted() {
    for wire in Wire::ALL {
        for stream in [true, false] {
            let bytes = match stream {
                true => wire.stream(&wire.frames("I will.", &two(), Some(Why::Calls))),
                false => wire.whole("I will.", &two(), Some(Why::Calls)),
            };
            let reply = ask(wire, stream, bytes).await.unwrap_or_else(|e| panic!("{wire:?}, stream {stream}: {e}"));
            assert_eq!(reply.text, "I will.", "{wire:?}, stream {stream}");
            let called: Vec<(&str, Value)> =
                reply.calls.iter().map(|c| (c.tool.as_str(), serde_json::from_str(&c.raw_arguments).unwrap())).collect();
            let asked = two().map(|(_, arguments)| ("ledger.append", arguments));
            assert_eq!(called, asked, "{wire:?}, stream {stream}");
            let usage = reply.usage;
            let counted = (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.reasoning_tokens);
            let thought = if wire == Wire::Ollama { 0 } else { 4 };
            assert_eq!(counted, (30, 10, 9, thought), "{wire:?}, stream {stream}");
        }
    }
}

#[tokio::test]
async fn a_stream_that_is_cut_anywhere_is_asked_for_again() {
    for wire in Wire::ALL {
        let frames = wire.frames("I will.", &two(), Some(Why::Calls));
        // Its usage and its end mark come after the reason to stop; Gemini and Ollama have nothing after it.
        let needed = frames.len() - if matches!(wire, Wire::OpenAi) { 2 } else { 1 };
        for kept in 1..=needed {
            let kept = if kept == needed && wire != Wire::OpenAi { break } else { &frames[..kept] };
            let cut = class(wire, true, wire.stream(kept)).await;
            assert_eq!(cut, ModelErrorClass::Truncated, "{wire:?}, {} of {} frames", kept.len(), frames.len());
            let broken = class(wire, true, wire.broken_stream(kept)).await;
            assert_eq!(broken, ModelErrorClass::Truncated, "{wire:?}, broken after {} frames", kept.len());
        }
        // In the middle of a frame.
        let last = &frames[needed - 1];
        let mut kept = frames[..needed - 1].to_vec();
        kept.push(last[..last.len() / 2].to_owned());
        assert!(class(wire, true, wire.stream(&kept)).await.is_transient(), "{wire:?}");
    }
}

#[tokio::test]
async fn a_reply_without_a_reason_to_stop_is_none() {
    for wire in Wire::ALL {
        assert_eq!(class(wire, false, wire.whole("I will.", &two(), None)).await, ModelErrorClass::Truncated, "{wire:?}");
        assert_eq!(
            class(wire, true, wire.stream(&wire.frames("I will.", &two(), None))).await,
            ModelErrorClass::Truncated,
            "{wire:?}"
        );
    }
}

#[tokio::test]
async fn an_error_event_after_whole_calls_is_no_answer_whatever_follows() {
    for wire in Wire::ALL {
        let frames = wire.frames("I will.", &two(), Some(Why::Calls));
        let before_the_end = wire.frames("I will.", &two(), None).len();
        let mut failed = frames.clone();
        failed.insert(before_the_end, wire.frame(&wire.error()));
        assert_eq!(class(wire, true, wire.stream(&failed)).await, ModelErrorClass::Server, "{wire:?}");
        failed.truncate(before_the_end + 1);
        assert_eq!(class(wire, true, wire.stream(&failed)).await, ModelErrorClass::Server, "{wire:?}");
        assert_eq!(class(wire, true, wire.stream(&[wire.frame(&wire.error())])).await, ModelErrorClass::Server, "{wire:?}");
    }
}

#[tokio::test]
async fn a_200_that_is_no_reply_is_the_servers_fault() {
    for wire in Wire::ALL {
        for stream in [true, false] {
            for bytes in [
                answer("200 OK", &wire.error()),
                answer("200 OK", &wire.nothing()),
                answer("200 OK", &json!([])),
                http("200 OK", "text/html", "<html><body>Log in</body></html>"),
                http("200 OK", "application/json", ""),
            ] {
                let class = class(wire, stream, bytes.clone()).await;
                let said = String::from_utf8_lossy(&bytes);
                assert!(
                    matches!(class, ModelErrorClass::Server | ModelErrorClass::Truncated),
                    "{wire:?} {stream}: {class} {said}"
                );
            }
        }
        if wire != Wire::Ollama {
            assert!(class(wire, true, wire.stream(&[wire.frame(&wire.nothing())])).await.is_transient(), "{wire:?}");
        }
    }
}

#[tokio::test]
async fn a_limit_in_the_middle_of_a_call_is_never_that_call() {
    for wire in Wire::ALL {
        let whole = class(wire, false, wire.whole("", &two(), Some(Why::Length))).await;
        let streamed = class(wire, true, wire.stream(&wire.frames("", &two(), Some(Why::Length)))).await;
        assert_eq!((whole, streamed), (ModelErrorClass::Truncated, ModelErrorClass::Truncated), "{wire:?}");
        // A text that ran into it is a reply that says so.
        let reply = ask(wire, true, wire.stream(&wire.frames("half of", &[], Some(Why::Length)))).await.unwrap();
        assert_eq!(reply.text, "half of", "{wire:?}");
    }
}

#[tokio::test]
async fn a_refusal_is_a_refusal_in_each_family_that_has_one() {
    for wire in [Wire::OpenAi, Wire::Anthropic, Wire::Gemini] {
        let whole = class(wire, false, wire.whole("I", &[], Some(Why::Refused))).await;
        let streamed = class(wire, true, wire.stream(&wire.frames("I", &[], Some(Why::Refused)))).await;
        assert_eq!((whole, streamed), (ModelErrorClass::Refused, ModelErrorClass::Refused), "{wire:?}");
    }
    // Gemini refuses a question with a list of candidates that is empty or missing.
    let blocked =
        json!({ "promptFeedback": { "blockReason": "PROHIBITED_CONTENT" }, "usageMetadata": { "promptTokenCount": 3 } });
    assert_eq!(class(Wire::Gemini, false, answer("200 OK", &blocked)).await, ModelErrorClass::Refused);
    assert_eq!(class(Wire::Gemini, true, Wire::Gemini.stream(&[Wire::Gemini.frame(&blocked)])).await, ModelErrorClass::Refused);
}

#[tokio::test]
async fn a_status_is_its_class_in_each_family() {
    for wire in Wire::ALL {
        for (status, expected) in [
            ("401 Unauthorized", ModelErrorClass::Auth),
            ("402 Payment Required", ModelErrorClass::Auth),
            ("404 Not Found", ModelErrorClass::Client),
            ("429 Too Many Requests", ModelErrorClass::RateLimited),
            ("503 Service Unavailable", ModelErrorClass::Server),
        ] {
            for stream in [true, false] {
                assert_eq!(class(wire, stream, answer(status, &wire.error())).await, expected, "{wire:?} {status} {stream}");
            }
        }
    }
}

#[tokio::test]
async fn thoughts_are_part_of_what_was_received_whether_a_server_counts_them_there_or_on_top() {
    let usage = |output: u64, thought: u64, total: Value| {
        json!({ "prompt_tokens": 12, "completion_tokens": output, "total_tokens": total,
            "completion_tokens_details": { "reasoning_tokens": thought }, "prompt_cache_hit_tokens": 8 })
    };
    for provider in ["openai", "openrouter", "deepseek", "xai", "azure"] {
        for (usage, output, thought) in [
            (usage(227, 192, json!(239)), 227, 192),
            // xAI counts them apart: its total says so, or there are more of them than of all.
            (usage(150, 50, json!(212)), 200, 50),
            (usage(35, 192, json!(239)), 227, 192),
            (usage(35, 192, Value::Null), 227, 192),
            (usage(35, 0, json!(47)), 35, 0),
        ] {
            let message = json!({ "message": { "content": "ok" }, "finish_reason": "stop" });
            let whole = answer("200 OK", &json!({ "choices": [message], "usage": usage }));
            let mut frames = Wire::OpenAi.frames("ok", &[], Some(Why::Done));
            let at = frames.len() - 2;
            frames[at] = Wire::OpenAi.frame(&json!({ "choices": [], "usage": usage }));
            for (stream, bytes) in [(false, whole), (true, Wire::OpenAi.stream(&frames))] {
                let counted = ask_of(provider, Wire::OpenAi, stream, bytes).await.unwrap().usage;
                let counted = (counted.input_tokens, counted.cached_tokens, counted.output_tokens, counted.reasoning_tokens);
                assert_eq!(counted, (12, 8, output, thought), "{provider} {stream} {usage}");
            }
        }
    }
    // Gemini counts them apart, also where there is nothing else.
    let tokens = json!({ "promptTokenCount": 3, "thoughtsTokenCount": 4, "totalTokenCount": 7 });
    let end = json!({ "candidates": [{ "content": { "parts": [] }, "finishReason": "STOP" }], "usageMetadata": tokens });
    for (stream, bytes) in [(false, answer("200 OK", &end)), (true, Wire::Gemini.stream(&[Wire::Gemini.frame(&end)]))] {
        let counted = ask(Wire::Gemini, stream, bytes).await.unwrap().usage;
        assert_eq!((counted.output_tokens, counted.reasoning_tokens), (4, 4), "{stream}");
    }
}

#[tokio::test]
async fn thoughts_of_a_turn_with_calls_go_back_to_the_server_that_refuses_what_follows_without_them() {
    let call = json!({ "index": 0, "id": "x", "function": { "name": "ledger__append", "arguments": "{}" } });
    let delta = |delta: Value| json!({ "choices": [{ "delta": delta }] });
    let end = json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] });
    let pieces =
        [json!({ "reasoning_content": "Let " }), json!({ "reasoning_content": "me." }), json!({ "tool_calls": [call] })];
    let mut frames: Vec<String> = pieces.map(delta).iter().chain([&end]).map(|frame| Wire::OpenAi.frame(frame)).collect();
    frames.push("data: [DONE]\n\n".into());
    let whole = |thought: &str| {
        let message = json!({ "content": "", "reasoning_content": thought, "tool_calls": [call] });
        answer("200 OK", &json!({ "choices": [{ "message": message, "finish_reason": "tool_calls" }] }))
    };
    let played =
        [(true, Wire::OpenAi.stream(&frames), "Let me."), (false, whole("Let me."), "Let me."), (false, whole(""), "")];
    for (stream, bytes, thought) in played {
        let server = Recorded::play([bytes.clone(), bytes]).await;
        let of = |provider: &str, stream| ProviderConfig {
            base_url: Some(format!("{}/v1/", server.url())),
            api_key: Some("sk-key".into()),
            stream,
            ..ProviderConfig::new("default", provider, "some-model")
        };
        let reply = ProviderModel::new(of("deepseek", stream)).unwrap().reply(request()).await.unwrap();
        let id = CallId::of(1, 0);
        let call = TranscriptCall { id: id.clone(), tool: "ledger.append".into(), arguments: serde_json::Map::new() };
        let then = |opaque| {
            let result = Message::ToolResult { call_id: id.clone(), text: "ok".into(), is_error: false };
            let asked = Message::Assistant { text: String::new(), calls: vec![call.clone()], opaque };
            ModelRequest { messages: vec![Message::User("go".into()), asked, result], ..request() }
        };
        for (provider, opaque, expected) in [
            ("deepseek", reply.opaque.clone(), json!(thought)),
            // Another model asked for the call: the field is wanted all the same, and by nobody else.
            ("deepseek", None, json!("")),
            ("groq", reply.opaque.clone(), Value::Null),
        ] {
            ProviderModel::new(of(provider, stream)).unwrap().reply(then(opaque)).await.unwrap();
            let (_, body) = server.requests().pop().unwrap();
            assert_eq!(body["messages"][2]["reasoning_content"], expected, "{provider}: {body}");
        }
    }
}

#[tokio::test]
async fn every_provider_is_asked_at_its_path_with_its_key_for_the_model_as_it_is_configured() {
    let server = Recorded::play([Wire::OpenAi.whole("ok", &[], Some(Why::Done))]).await;
    for provider in providers().filter(|name| !["anthropic", "gemini", "ollama"].contains(name)) {
        for model in ["plain", "mistral-medium", "vendor::model", "accounts/a/models/b"] {
            let url = format!("{}/openai/v1?api-version=2024-10-21", server.url());
            let config = ProviderConfig {
                base_url: Some(url),
                api_key: Some("sk-key".into()),
                stream: false,
                ..ProviderConfig::new("default", provider, model)
            };
            let reply =
                ProviderModel::new(config).unwrap().reply(request()).await.unwrap_or_else(|e| panic!("{provider}: {e}"));
            assert_eq!(reply.text, "ok", "{provider}");
            let (head, body) = server.requests().pop().unwrap();
            let head = head.to_ascii_lowercase();
            assert!(head.starts_with("post /openai/v1/chat/completions?api-version=2024-10-21 http"), "{provider}: {head}");
            let (bearer, api_key) = (head.contains("authorization: bearer sk-key"), head.contains("api-key: sk-key"));
            assert_eq!((bearer, api_key), (provider != "azure", provider == "azure"), "{provider}: {head}");
            assert_eq!(body["model"], model, "{provider}");
            assert_eq!((&body["reasoning_effort"], &body["thinking"]), (&Value::Null, &Value::Null), "{provider}: {body}");
        }
        let without_an_address = ProviderConfig { api_key: Some("k".into()), ..ProviderConfig::new("default", provider, "m") };
        assert_eq!(ProviderModel::new(without_an_address).is_err(), needs_base_url(provider), "{provider}");
    }
}

#[tokio::test]
async fn a_reply_that_does_not_stop_is_given_up_at_its_limit() {
    let reply = |text: usize| Wire::OpenAi.frames(&"x".repeat(text), &[], Some(Why::Done));
    let bytes = |frames: &[String]| frames.iter().map(|frame| frame.len() - "data: \n\n".len()).sum::<usize>();
    let most = limits::MODEL_REPLY_BYTES_MAX - bytes(&reply(2)) + 2;
    assert_eq!(bytes(&reply(most)), limits::MODEL_REPLY_BYTES_MAX);
    let whole = ask(Wire::OpenAi, true, Wire::OpenAi.stream(&reply(most))).await.unwrap();
    assert_eq!(whole.text.len(), most);
    assert_eq!(class(Wire::OpenAi, true, Wire::OpenAi.stream(&reply(most + 1))).await, ModelErrorClass::Server);
}
