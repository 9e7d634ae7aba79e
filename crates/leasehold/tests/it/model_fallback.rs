//! Models that are asked when another fails: which failures go on to the next, what of the failed one is kept, and who is named
//! and paid.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    Live, StartRun,
    agent::{
        model::{
            Model, ModelErrorClass,
            provider::{ProviderConfig, ProviderModel},
        },
        registry::{AgentSpec, Fallback, Price, Registry},
        tool::{Approval, WriteEffect},
        unrecorded::Unrecorded,
    },
    run::{EntryBody, InputMessage, Reason, Request, Role, RunId, State, body},
};
use leasehold_testkit::{
    recorded::{Recorded, Why, Wire, answer},
    world::{RecordedWrite, Recorder, SpiedModel, World, WorldBuilder},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

fn provider(name: &str, wire: Wire, url: &str) -> Arc<dyn Model> {
    let config = ProviderConfig {
        base_url: Some(format!("{url}{}", wire.path())),
        api_key: Some("sk-key".into()),
        timeout: Duration::from_secs(20),
        ..ProviderConfig::new(name, wire.provider(), "some-model")
    };
    Arc::new(ProviderModel::new(config).unwrap())
}

fn price(input: f64) -> Option<Price> {
    Some(Price { input, output: 0.0, cached: 0.0 })
}

fn world(first: Arc<dyn Model>, second: Arc<dyn Model>) -> WorldBuilder {
    let fallbacks = vec![Fallback { model: second, price: price(7.0), window: None }];
    World::builder("").agent(|agent| AgentSpec { model: first, price: price(1.0), fallbacks, ..agent })
}

async fn replies(world: &World, id: RunId) -> Vec<body::ModelReply> {
    let reply = |body| if let EntryBody::ModelReply(reply) = body { Some(reply) } else { None };
    world.entries(id).await.into_iter().filter_map(|entry| reply(entry.body)).collect()
}

/// The task as the provider was sent it, whatever the family.
fn asked(body: &Value) -> Vec<&Value> {
    body["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "user").map(|m| &m["content"]).collect()
}

#[tokio::test]
async fn the_next_model_starts_from_the_same_transcript_and_nothing_of_half_a_stream_is_kept() {
    let half = Wire::OpenAi.frames("I will transfer it all.", &[("ledger__append", json!({ "text": "stolen" }))], None);
    let first = Recorded::play([Wire::OpenAi.broken_stream(&half)]).await;
    let write = [("ledger__append", json!({ "text": "right" }))];
    let second = Recorded::play([
        Wire::Anthropic.stream(&Wire::Anthropic.frames("So be it.", &write, Some(Why::Calls))),
        Wire::Anthropic.stream(&Wire::Anthropic.frames("It is done.", &[], Some(Why::Done))),
    ])
    .await;
    let recorder = Recorder::default();
    let (send, mut live) = tokio::sync::mpsc::unbounded_channel();
    let world = world(provider("main", Wire::OpenAi, first.url()), provider("spare", Wire::Anthropic, second.url()))
        .tool(RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder).tool(Approval::None))
        .live(send)
        .build();
    let id = world.run("append it").await;
    assert_eq!(world.row(id).await.state, State::Completed);
    // Each turn begins with the first again, and both were told the same.
    let (first, second) = (first.requests(), second.requests());
    assert_eq!((first.len(), second.len()), (2, 2));
    assert_eq!(asked(&first[0].1)[0], "append it");
    assert!(second[0].1.to_string().contains("append it") && !second[1].1.to_string().contains("transfer"), "{second:?}");
    assert!(!first[1].1.to_string().contains("transfer") && first[1].1.to_string().contains("So be it."));
    let entered: Vec<Value> = recorder.entries().iter().map(|entered| entered.arguments["text"].clone()).collect();
    assert_eq!(entered, ["right"]);
    // The record has the words, the name and the price of the one that answered.
    let replies = replies(&world, id).await;
    let said: Vec<(&str, &str)> = replies.iter().map(|reply| (reply.model.as_str(), reply.text.as_str())).collect();
    let spare = "spare (anthropic/some-model)";
    assert_eq!(said, [(spare, "So be it."), (spare, "It is done.")]);
    assert!(replies.iter().all(|reply| reply.usage.cost_nano_usd == 20 * 7_000), "{replies:?}");
    assert_eq!(world.row(id).await.usage.cost_nano_usd, 2 * 20 * 7_000);
    assert!(!format!("{:?}", world.entries(id).await).contains("transfer"));
    // Who watches has seen the half, that it does not count, and then the reply.
    let mut seen = Vec::new();
    while let Ok(said) = live.try_recv() {
        match said {
            Live::Text(_, text) => seen.push(text),
            Live::Discarded(_, why) => seen.push(format!("<{why}>")),
            Live::Model(_) | Live::Tool(..) | Live::Progress(..) | Live::Log(..) => {}
        }
    }
    let void = "<main (openai/some-model) failed (truncated); spare (anthropic/some-model) is asked>";
    assert_eq!(seen[..5], ["I will tran", "sfer it all.", void, "So b", "e it."]);
}

#[tokio::test]
async fn a_wrong_request_and_a_refusal_are_not_taken_to_another_model_and_everything_else_is() {
    let too_long = json!({ "error": { "message": "maximum context length", "code": "context_length_exceeded" } });
    let html = json!({ "error": null });
    for (class, bytes) in [
        (ModelErrorClass::RateLimited, answer("429 Too Many Requests", &html)),
        (ModelErrorClass::Server, answer("500 Oops", &html)),
        (ModelErrorClass::Auth, answer("401 Unauthorized", &html)),
        (ModelErrorClass::Auth, answer("402 Payment Required", &html)),
        (ModelErrorClass::ContextOverflow, answer("400 Bad Request", &too_long)),
        (ModelErrorClass::Connection, Vec::new()),
        (ModelErrorClass::Truncated, Wire::OpenAi.stream(&Wire::OpenAi.frames("hal", &[], None))),
        (ModelErrorClass::Client, answer("404 Not Found", &html)),
        (ModelErrorClass::Client, answer("400 Bad Request", &html)),
        (ModelErrorClass::Refused, Wire::OpenAi.stream(&Wire::OpenAi.frames("I", &[], Some(Why::Refused)))),
    ] {
        let first = Recorded::play([bytes]).await;
        let second = Recorded::play([Wire::Gemini.stream(&Wire::Gemini.frames("ok", &[], Some(Why::Done)))]).await;
        let world = world(provider("main", Wire::OpenAi, first.url()), provider("spare", Wire::Gemini, second.url())).build();
        let id = world.run("go").await;
        let row = world.row(id).await;
        let falls = !matches!(class, ModelErrorClass::Client | ModelErrorClass::Refused);
        assert_eq!(class.falls_back(), falls, "{class}");
        assert_eq!((first.requests().len(), second.requests().len()), (1, usize::from(falls)), "{class}");
        let reason = if class == ModelErrorClass::Client { Reason::ModelClient } else { Reason::Refused };
        let expected = if falls { (State::Completed, None) } else { (State::Failed, Some(reason)) };
        assert_eq!((row.state, row.reason), expected, "{class}");
    }
}

#[tokio::test]
async fn where_all_fail_one_that_may_work_later_decides_and_each_is_named() {
    let limited = |seconds: u32| {
        let text = format!("HTTP/1.1 429 Slow\r\nretry-after: {seconds}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}");
        text.into_bytes()
    };
    // No key for one of them is no reason to give the run up.
    let cases = [(answer("401 Unauthorized", &json!({})), limited(90), 90), (limited(200), limited(100), 100)];
    for (first, second, seconds) in cases {
        let first = Recorded::play([first]).await;
        let second = Recorded::play([second]).await;
        let world = world(provider("main", Wire::OpenAi, first.url()), provider("spare", Wire::Ollama, second.url())).build();
        let id = world.runtime.enqueue(StartRun::new("a", "go", World::person()), None).await.unwrap();
        let row = world.claim(id).await.unwrap();
        assert_eq!((row.state, first.requests().len(), second.requests().len()), (State::Queued, 1, 1));
        let due = row.due_at.duration_since(world.runtime.engine().now().wall).as_secs();
        assert_eq!(due, seconds, "the shortest wait of those that may answer later");
        let entries = format!("{:?}", world.entries(id).await);
        assert!(
            entries.contains("main (openai/some-model): ") && entries.contains("then spare (ollama/some-model): "),
            "{entries}"
        );
    }
    let no = answer("401 Unauthorized", &json!({}));
    let (first, second) = (Recorded::play([no.clone()]).await, Recorded::play([no]).await);
    let world = world(provider("main", Wire::OpenAi, first.url()), provider("spare", Wire::Ollama, second.url())).build();
    let id = world.run("go").await;
    let row = world.row(id).await;
    assert_eq!((row.state, row.reason), (State::Failed, Some(Reason::ModelAuth)));
}

#[tokio::test]
async fn a_run_without_a_record_falls_back_too_and_the_agents_version_says_who_is_asked() {
    let script = |text: &str| SpiedModel::new(text) as Arc<dyn Model>;
    let failing = || script("[[reply]]\nerror = \"server\"\n");
    let alone = AgentSpec::new("a", failing());
    let version = alone.version();
    let spare = Fallback { model: script("[[reply]]\ntext = \"from the spare\"\n"), price: None, window: None };
    let agent = AgentSpec { fallbacks: vec![spare], ..alone };
    assert_ne!(agent.version(), version);
    let messages = vec![InputMessage { role: Role::User, text: "go".into() }];
    let request = Request { messages, ..Request::default() };
    let ended = Unrecorded::new(Arc::new(Registry::new()), Arc::new(agent), request).run().await.unwrap();
    assert_eq!(ended.output, "from the spare");
}
