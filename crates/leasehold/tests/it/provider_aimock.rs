//! The provider adapter against aimock, a server of several providers' protocols that nobody here wrote.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    agent::model::{
        Message, Model as _, ModelError, ModelErrorClass, ModelRequest, OfferedTool, Reply, TranscriptCall,
        provider::{ProviderConfig, ProviderModel},
    },
    run::{CallId, RunId},
};
use leasehold_testkit::aimock::Aimock;
use serde_json::{Value, json};
use std::time::Duration;

const KEY: &str = "sk-right-key";

fn fixtures() -> Value {
    let two = json!([
        { "name": "site__read_page", "arguments": { "page": "berths" }, "id": "call_0" },
        { "name": "ledger__append", "arguments": { "text": "grün \"quoted\"" }, "id": "call_0" },
    ]);
    json!({ "fixtures": [
        { "match": { "userMessage": "two calls", "hasToolResult": true }, "response": { "content": "Both are done." } },
        { "match": { "userMessage": "two calls" }, "response": { "content": "I will do two things.", "toolCalls": two } },
        { "match": { "userMessage": "hello" }, "response": { "content": "Hello from the other side." } },
        { "match": { "userMessage": "slow down" }, "response": { "error": { "message": "Rate limited", "type": "rate_limit_error" }, "status": 429 } },
        { "match": { "userMessage": "overload" }, "response": { "error": { "message": "Overloaded", "type": "server_error" }, "status": 503 } },
        { "match": { "userMessage": "cut" }, "response": { "toolCalls": [two[1]] }, "truncateAfterChunks": 6 },
        { "match": { "userMessage": "limit" }, "response": { "toolCalls": [two[1]], "finishReason": "length" } },
    ] })
}

/// Provider, path of its API, streaming.
const PROTOCOLS: [(&str, &str, bool); 18] = [
    ("openai", "/v1", true),
    ("openai", "/v1", false),
    ("anthropic", "/v1", true),
    ("anthropic", "/v1", false),
    ("gemini", "/v1beta", true),
    ("gemini", "/v1beta", false),
    ("ollama", "", true),
    ("ollama", "", false),
    ("azure", AZURE, true),
    ("azure", AZURE, false),
    ("deepseek", "/v1", true),
    ("deepseek", "/v1", false),
    ("fireworks", "/v1", true),
    ("groq", "/v1", true),
    ("mistral", "/v1", true),
    ("openrouter", "/api/v1", true),
    ("together", "/v1", true),
    ("xai", "/v1", true),
];
const AZURE: &str = "/openai/deployments/gpt-4o-mini?api-version=2024-10-21";

fn model(server: &Aimock, (provider, path, stream): (&str, &str, bool), key: &str) -> ProviderModel {
    let config = ProviderConfig::new("default", provider, "gpt-4o-mini");
    ProviderModel::new(ProviderConfig {
        base_url: Some(format!("{}{path}", server.url())),
        api_key: Some(key.into()),
        timeout: Duration::from_secs(20),
        stream,
        ..config
    })
    .unwrap()
}

fn request(messages: Vec<Message>) -> ModelRequest {
    let tool = |name: &str, field: &str| OfferedTool {
        name: name.into(),
        description: "Does it".into(),
        parameters: json!({ "type": "object", "properties": { field: { "type": "string" } }, "required": [field] }),
    };
    ModelRequest {
        run: RunId::new(),
        replies_so_far: 0,
        errors_so_far: 0,
        system: "You keep the site tidy.".into(),
        messages,
        tools: vec![tool("site.read_page", "page"), tool("ledger.append", "text")],
        on_text: None,
    }
}

async fn ask(model: &ProviderModel, text: &str) -> Result<Reply, ModelError> {
    model.reply(request(vec![Message::User(text.into())])).await
}

#[tokio::test]
async fn each_protocol_gives_text_and_calls_and_takes_the_transcript_back() {
    let Some(server) = Aimock::start(&fixtures(), &["--chunk-size", "3"], &[("AIMOCK_API_KEYS", KEY)]).await else { return };
    for protocol in PROTOCOLS {
        let model = model(&server, protocol, KEY);
        assert_eq!(ask(&model, "hello").await.unwrap().text, "Hello from the other side.", "{protocol:?}");
        let reply = ask(&model, "two calls").await.unwrap_or_else(|e| panic!("{protocol:?}: {e}"));
        let called: Vec<(&str, Value)> =
            reply.calls.iter().map(|call| (call.tool.as_str(), serde_json::from_str(&call.raw_arguments).unwrap())).collect();
        let expected =
            [("site.read_page", json!({ "page": "berths" })), ("ledger.append", json!({ "text": "grün \"quoted\"" }))];
        assert_eq!(called, expected, "{protocol:?}");
        let mut messages = vec![Message::User("two calls".into())];
        let ids: Vec<CallId> = (0..2).map(|index| CallId::of(1, index)).collect();
        let calls = called.iter().zip(&ids).map(|((tool, arguments), id)| TranscriptCall {
            id: id.clone(),
            tool: (*tool).to_owned(),
            arguments: arguments.as_object().unwrap().clone(),
        });
        messages.push(Message::Assistant { text: reply.text.clone(), calls: calls.collect(), opaque: reply.opaque });
        messages.extend(ids.into_iter().map(|call_id| Message::ToolResult { call_id, text: "ok".into(), is_error: false }));
        let last = model.reply(request(messages)).await.unwrap_or_else(|e| panic!("{protocol:?}: {e}"));
        assert_eq!((last.text.as_str(), last.calls.len()), ("Both are done.", 0), "{protocol:?}");
    }
}

#[tokio::test]
async fn each_protocols_errors_become_their_classes() {
    let Some(server) = Aimock::start(&fixtures(), &["--chunk-size", "3"], &[("AIMOCK_API_KEYS", KEY)]).await else { return };
    for protocol in PROTOCOLS {
        let right = model(&server, protocol, KEY);
        for (text, class) in [("slow down", ModelErrorClass::RateLimited), ("overload", ModelErrorClass::Server)] {
            let error = ask(&right, text).await.unwrap_err();
            assert_eq!(error.class, class, "{protocol:?}: {error}");
        }
        let wrong = model(&server, protocol, "sk-wrong-key");
        let error = ask(&wrong, "hello").await.unwrap_err();
        assert_eq!(error.class, ModelErrorClass::Auth, "{protocol:?}: {error}");
        assert!(!error.detail.contains("sk-wrong-key"), "{error}");
    }
}

#[tokio::test]
async fn a_cut_or_exhausted_turn_is_never_a_call() {
    let Some(server) = Aimock::start(&fixtures(), &["--chunk-size", "3"], &[]).await else { return };
    for protocol in PROTOCOLS {
        let model = model(&server, protocol, KEY);
        if protocol.2 && protocol.0 != "gemini" && protocol.0 != "ollama" {
            let error = ask(&model, "cut").await.unwrap_err();
            assert!(error.class.is_transient(), "{protocol:?}: {error}");
        }
        // Ollama's protocol writes a call in one piece, and the mock says that it stopped by itself.
        if protocol.0 != "ollama" {
            let error = ask(&model, "limit").await.unwrap_err();
            assert_eq!(error.class, ModelErrorClass::Truncated, "{protocol:?}: {error}");
        }
    }
}

#[tokio::test]
async fn chaos_is_transient_whatever_the_protocol() {
    for chaos in ["--chaos-malformed", "--chaos-disconnect", "--chaos-drop", "--chaos-ratelimit"] {
        let Some(server) = Aimock::start(&fixtures(), &[chaos, "1"], &[]).await else { return };
        for protocol in PROTOCOLS {
            let error = ask(&model(&server, protocol, KEY), "two calls").await.unwrap_err();
            assert!(error.class.is_transient(), "{chaos} {protocol:?}: {error}");
            let is_limited = error.class == ModelErrorClass::RateLimited;
            assert_eq!(
                (is_limited, error.retry_after.is_some()),
                (chaos == "--chaos-ratelimit", is_limited),
                "{protocol:?}: {error:?}"
            );
        }
    }
}
