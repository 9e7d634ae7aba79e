//! Calls and their arguments: what a model may ask for, what becomes of what it may not, and what is kept of every text.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    StartError, StartRun,
    agent::{
        model::{Message, ModelRequest, wire_name},
        registry::{Registry, RegistryError},
        tool::{Approval, ReadAnswer, WriteAnswer, WriteEffect},
    },
    limits,
    run::{EntryBody, InputMessage, Outcome, Role, State},
    store::sqlite::SqliteStore,
};
use leasehold_testkit::{
    fixture::EXTREME,
    park::Place,
    world::{RecordedRead, RecordedWrite, Recorder, World},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

fn toml(text: &str) -> String {
    serde_json::to_string(text).expect("a string")
}

/// A reply that asks for one call with these arguments as a model wrote them, and then an answer.
fn raw(tool: &str, arguments: &str) -> String {
    format!(
        "[[reply]]\ncalls = [{{ tool = {}, raw_arguments = {} }}]\n[[reply]]\ntext = \"done\"\n",
        toml(tool),
        toml(arguments)
    )
}

/// Every assistant message is followed by exactly one result for each of its calls, in order, and no id comes twice.
fn assert_valid(request: &ModelRequest) {
    let mut seen = BTreeSet::new();
    let mut open: Vec<String> = Vec::new();
    for message in &request.messages {
        match message {
            Message::ToolResult { call_id, .. } => {
                assert!(!open.is_empty(), "a result without a call");
                assert_eq!(open.remove(0), call_id.to_string());
            }
            Message::Assistant { calls, .. } => {
                assert_eq!(open, [""; 0], "calls without results");
                open = calls.iter().map(|c| c.id.to_string()).collect();
                assert!(open.iter().all(|id| seen.insert(id.clone())), "an id comes twice");
            }
            Message::User(_) => assert_eq!(open, [""; 0], "calls without results"),
        }
    }
    assert_eq!(open, [""; 0], "calls without results");
}

#[tokio::test]
async fn broken_arguments_are_refused_with_the_schema_stamp_nothing_and_ask_nobody() {
    let deep = format!("{{\"text\":{}{}}}", "[".repeat(100), "]".repeat(100));
    for broken in [
        "{\"text\": \"on",
        "null",
        "[]",
        "\"{}\"",
        "5",
        "{\"text\":\"a\"}{\"text\":\"b\"}",
        "{\"text\":5}",
        "{\"text\":null}",
        "{}",
        "",
        "{\"text\":\"a\",\"more\":1}",
        "{\"text\":\"a\",\"text\":\"b\"}",
        "{\"text\":1e400}",
        "{\"text\":\"\\ud800\"}",
        "{\"text\":\"a\"} trailing",
        deep.as_str(),
    ] {
        for approval in [Approval::Required, Approval::None] {
            let recorder = Recorder::default();
            let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder);
            let world = World::builder(&raw("ledger.append", broken)).tool(tool.tool(approval)).build();
            let id = world.run("append").await;
            assert_eq!(world.row(id).await.state, State::Completed, "{broken}");
            assert_eq!(recorder.entries(), [], "{broken}");
            let kinds = world.kinds(id).await;
            assert_eq!(kinds, ["started", "model_reply", "tool_outcome", "model_reply", "settled"], "{broken}");
            let [(call, told)] = world.results().try_into().expect("one result");
            assert_eq!(call, "t1c0");
            assert!(told.contains("nothing was done") && told.contains("\"additionalProperties\":false"), "{broken}: {told}");
            let story = world.story(id).await;
            let call = story.calls.values().next().expect("one call");
            assert_eq!(call.outcome.as_ref().expect("refused").outcome, Outcome::Refused);
            assert_eq!(call.asked.raw_arguments, broken, "as the model wrote them");
        }
    }
}

#[tokio::test]
async fn a_tool_that_is_not_offered_or_is_none_gets_an_error_that_lists_what_is() {
    for name in ["shop.order", "no.such", "ledger", "", "ledger.append "] {
        let recorder = Recorder::default();
        let world = World::builder(&raw(name, "{\"text\":\"a\"}"))
            .tool(RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder).tool(Approval::None))
            .tool(RecordedWrite::new("shop.order", WriteEffect::NonIdempotent, &recorder).tool(Approval::Required))
            .agent(|agent| agent.tools(["ledger.append"]))
            .build();
        let id = world.run("order").await;
        assert_eq!(world.row(id).await.state, State::Completed, "{name}");
        assert_eq!(recorder.entries(), []);
        assert_eq!(world.kinds(id).await, ["started", "model_reply", "tool_outcome", "model_reply", "settled"]);
        let (_, told) = world.results().pop().expect("a result");
        assert!(told.contains("there are: ledger.append"), "{told}");
        assert!(!told.contains("there are: ledger.append, shop.order"), "{told}");
    }
}

#[tokio::test]
async fn a_request_that_narrows_to_what_the_agent_is_not_offered_is_refused_before_the_run_exists() {
    let recorder = Recorder::default();
    let world = World::builder("").tool(RecordedRead::new("notes.read", &recorder).tool()).build();
    let mut start = StartRun::new("a", "task", World::person());
    start.request.tools = Some(vec!["shop.*".into()]);
    let refused = world.runtime.start(start).await.err().expect("refused");
    assert!(refused.to_string().contains("notes.read"), "{refused}");
    let none = StartRun::new("b", "task", World::person());
    assert!(matches!(world.runtime.start(none).await.err(), Some(StartError::NoAgent(..))));
    assert_eq!(world.runtime.list(&leasehold::store::Filter::default(), None, 10).await.expect("listed"), []);
}

#[tokio::test]
async fn every_call_has_an_id_of_ours_and_the_transcript_is_valid_over_turns() {
    let recorder = Recorder::default();
    let script = r#"
[[reply]]
calls = [{ tool = "notes.read", arguments = { text = "1" } }, { tool = "notes.read", arguments = { text = "1" } }]
[[reply]]
calls = [{ tool = "notes.read", arguments = { text = "1" } }, { tool = "no.such", arguments = {} }]
[[reply]]
text = "done"
"#;
    let world = World::builder(script).tool(RecordedRead::new("notes.read", &recorder).tool()).build();
    let id = world.run("read").await;
    for request in world.model.requests() {
        assert_valid(&request);
    }
    let ids: Vec<String> = world.results().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["t1c0", "t1c1", "t2c0", "t2c1"]);
    assert_eq!(world.story(id).await.calls.len(), 4);
}

#[tokio::test]
async fn two_identical_calls_in_a_turn_are_two_calls_two_decisions_two_keys_two_effects() {
    let script = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "x" } }, { tool = "ledger.append", arguments = { text = "x" } }]
[[reply]]
text = "done"
"#;
    // Released by a person, both at once.
    let recorder = Recorder::default();
    let tool = || RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder);
    let world = World::builder(script).tool(tool().tool(Approval::Required)).build();
    let id = world.run("twice").await;
    let card = world.story(id).await.card.expect("waits").card;
    assert_eq!(card.calls.iter().map(|c| c.id.to_string()).collect::<Vec<_>>(), ["t1c0", "t1c1"]);
    assert_eq!(world.approve(id).await.expect("held").state, State::Completed);
    let keys: BTreeSet<String> = recorder.entries().into_iter().map(|e| e.key).collect();
    assert_eq!((recorder.count("ledger.append"), keys.len()), (2, 2));

    // Where none is asked for: the first runs, and the second waits with the first on its card.
    let recorder = Recorder::default();
    let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder);
    let world = World::builder(script).tool(tool.tool(Approval::None)).build();
    let id = world.run("twice").await;
    assert_eq!((world.row(id).await.state, recorder.count("ledger.append")), (State::WaitingForApproval, 1));
    let card = world.story(id).await.card.expect("waits").card;
    assert_eq!(card.calls.len(), 1);
    assert_eq!(card.calls[0].id.to_string(), "t1c1");
    assert!(card.calls[0].why.as_ref().expect("says why").contains("t1c0"), "{card:?}");
    assert_eq!(world.approve(id).await.expect("held").state, State::Completed);
    assert_eq!(recorder.count("ledger.append"), 2);
    assert_ne!(recorder.entries()[0].key, recorder.entries()[1].key);
}

#[tokio::test]
async fn the_same_call_in_a_later_round_waits_for_a_person_with_the_earlier_one_on_the_card() {
    let same = "[[reply]]\ncalls = [{ tool = \"ledger.append\", arguments = { text = \"x\" } }]\n";
    let script = format!("{same}{same}[[reply]]\ntext = \"done\"\n");
    for (effect, waits) in [(WriteEffect::NonIdempotent, true), (WriteEffect::Idempotent, false)] {
        let recorder = Recorder::default();
        let tool = RecordedWrite::new("ledger.append", effect, &recorder).answers([WriteAnswer::error("refused")]);
        let world = World::builder(&script).tool(tool.tool(Approval::None)).build();
        let id = world.run("twice").await;
        if !waits {
            assert_eq!((world.row(id).await.state, recorder.count("ledger.append")), (State::Completed, 2));
            continue;
        }
        assert_eq!((world.row(id).await.state, recorder.count("ledger.append")), (State::WaitingForApproval, 1));
        let card = world.story(id).await.card.expect("waits").card;
        let why = card.calls[0].why.clone().expect("says why");
        assert!(why.contains("t1c0") && why.contains("done"), "{why}");
        // Denied: nothing happens, and the model is told.
        let deny = World::decision(world.digest(id).await, false);
        let decided = world.runtime.decide(id, deny).await.expect("taken");
        decided.execution.expect("goes on here").finish().await.expect("held");
        assert_eq!((world.row(id).await.state, recorder.count("ledger.append")), (State::Completed, 1));
    }
}

#[test]
fn tool_names_are_mapped_reversibly_or_refused_with_both_names() {
    let recorder = Recorder::default();
    let long = format!("source.{}", "x".repeat(73));
    for name in ["a.b.c", "a.with space", "bücher.lösche_Ümlaut", "a.__x", "a._-2e-", "日本.語"] {
        let wire = wire_name::to_wire(name);
        assert!(wire.len() <= 64 && wire.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'), "{wire}");
        assert_eq!(wire_name::decode(&wire).as_deref(), Some(name));
    }
    assert_eq!(long.len(), 80);
    assert!(wire_name::to_wire(&long).len() <= 64);
    let mut registry = Registry::new();
    registry.add_tool(RecordedRead::new(&long, &recorder).tool()).expect("fits");
    let taken = wire_name::to_wire(&long);
    // A name whose wire form is another's shortened one would be refused with both; a second of one name is.
    let twice = registry.add_tool(RecordedRead::new(&long, &recorder).tool()).expect_err("taken");
    assert_eq!(twice, RegistryError::ToolTwice(long.clone()));
    assert!(taken.contains("_-h"));
    let both = RegistryError::WireCollision("a.x".into(), "a.y".into(), "w".into()).to_string();
    assert!(both.contains("`a.x`") && both.contains("`a.y`"));
}

#[tokio::test]
async fn every_text_comes_back_as_it_went_in_from_each_store() {
    let line = "x".repeat(2_000_000);
    for text in [EXTREME, "\0", "\\u0000", "\u{1f600}\u{202e}\u{200b}", "1e400", line.as_str()] {
        for place in Place::each() {
            let recorder = Recorder::default();
            let arguments: String = text.chars().take(1000).collect();
            let call = json!({"text": arguments}).to_string();
            let script = format!(
                "[[reply]]\ntext = {said}\ncalls = [{{ tool = \"ledger.append\", raw_arguments = {call} }}, {{ tool = \"notes.read\", raw_arguments = {call} }}]\n[[reply]]\ntext = {said}\n",
                said = toml(&arguments),
                call = toml(&call)
            );
            let write = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder);
            let error = RecordedRead::new("notes.read", &recorder).answer(ReadAnswer::error(text));
            let world = World::builder(&script)
                .tool(write.answers([WriteAnswer::done(text)]).tool(Approval::Required))
                .tool(error.tool())
                .on(&place.store, &place.clock)
                .build();
            let id = world.run(text).await;
            assert_eq!(world.row(id).await.state, State::WaitingForApproval, "{}", place.name);
            assert_eq!(world.approve(id).await.expect("held").state, State::Completed, "{}", place.name);
            assert_eq!(recorder.entries()[0].arguments["text"], arguments);
            let asked = world.model.requests().pop().expect("asked");
            assert_eq!(asked.messages[0], Message::User(text.to_owned()));
            // Opened anew, as by another process.
            let again = match &place.file {
                Some(file) => SqliteStore::open(file, Arc::clone(&place.clock) as _).expect("opens") as Arc<_>,
                None => Arc::clone(&place.store),
            };
            let later = World::builder("").on(&again, &place.clock).process("test:2").build();
            let story = later.story(id).await;
            assert_eq!(story.request.as_ref().expect("stored").messages[0].text, text);
            let results: Vec<&Value> = story.calls.values().map(|c| &c.outcome.as_ref().expect("has one").result).collect();
            assert!(results.iter().all(|r| r.as_str() == Some(text)), "{}", place.name);
            assert_eq!(story.output.as_deref(), Some(arguments.as_str()));
        }
    }
}

#[tokio::test]
async fn what_is_too_long_is_refused_and_the_run_does_not_break() {
    let recorder = Recorder::default();
    let long = json!({"text": "x".repeat(limits::ARGUMENTS_BYTES_MAX)}).to_string();
    let write = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder);
    let world = World::builder(&raw("ledger.append", &long)).tool(write.tool(Approval::None)).build();
    let id = world.run("long").await;
    assert_eq!((world.row(id).await.state, recorder.count("ledger.append")), (State::Completed, 0));
    assert!(world.results()[0].1.contains("limit"));
    let refused = world.runtime.start(StartRun::new("a", "x".repeat(limits::REQUEST_BYTES_MAX + 1), World::person())).await;
    assert!(matches!(refused.err(), Some(StartError::Invalid(_))));
    let empty = world.runtime.start(StartRun::new("a", " \n", World::person())).await;
    assert!(matches!(empty.err(), Some(StartError::Invalid(_))));
}

/// A value of that many arrays in one another.
fn nested(depth: usize) -> Value {
    (0..depth).fold(json!("core"), |inside, _| json!([inside]))
}

#[tokio::test]
async fn values_nested_as_deep_as_json_allows_never_make_a_record_unreadable() {
    for place in Place::each() {
        for depth in [1, 60, 100, 120, 124, 125, 126, 127, 128, 200] {
            let recorder = Recorder::default();
            let mut spec_arguments = json!({"text": "x"});
            spec_arguments["deep"] = nested(depth);
            let open = |spec: &mut leasehold::agent::tool::ToolSpec| spec.parameters = json!({"type": "object"});
            let world = World::builder(&raw("ledger.append", &spec_arguments.to_string()))
                .tool(
                    RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder)
                        .spec(open)
                        .answers([WriteAnswer::done(nested(depth))])
                        .tool(Approval::Required),
                )
                .on(&place.store, &place.clock)
                .build();
            let mut start = StartRun::new("a", "deep", World::person());
            start.request.metadata.insert("deep".into(), nested(depth));
            let id = match world.runtime.start(start).await {
                Ok(execution) => {
                    let id = execution.run();
                    execution.finish().await.expect("held");
                    id
                }
                Err(StartError::Invalid(why)) => {
                    assert!(why.contains("nested") && depth > 60, "{why}");
                    world.run("deep").await
                }
                Err(other) => panic!("{other}"),
            };
            if world.row(id).await.state.is_waiting() {
                world.approve(id).await.expect("held");
                let result =
                    &world.story(id).await.calls.values().next().expect("a call").outcome.clone().expect("done").result;
                assert!(result == &nested(depth) || result.as_str() == Some(nested(depth).to_string().as_str()), "{depth}");
            }
            assert_eq!(world.row(id).await.state, State::Completed, "{} {depth}", place.name);
            assert_eq!(world.runtime.details(id).await.expect("readable").unreadable, None, "{} {depth}", place.name);
        }
    }
}

#[test]
fn numbers_come_back_from_the_record_as_they_were() {
    let mut seed = fastrand(17);
    for _ in 0..20_000 {
        let number = f64::from_bits(seed());
        if !number.is_finite() {
            continue;
        }
        let born = leasehold::run::body::Answered {
            call_id: leasehold::run::CallId::of(1, 0),
            question: 0,
            by: World::person(),
            values: json!({ "n": number }).as_object().cloned(),
        };
        let body = EntryBody::Answered(born);
        assert_eq!(EntryBody::decode("answered", &body.encode()).expect("decodes"), body, "{number:e}");
    }
}

/// Numbers that are the same in every run of the test.
fn fastrand(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[tokio::test]
async fn a_result_of_700_kb_is_stored_whole_and_shown_as_an_excerpt_cut_at_a_character() {
    let whole = format!("x{}", "é".repeat(350_000));
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = World::builder(&raw("notes.read", "{\"text\":\"a\"}"))
            .tool(RecordedRead::new("notes.read", &recorder).answer(ReadAnswer::ok(whole.as_str())).tool())
            .on(&place.store, &place.clock)
            .build();
        let id = world.run("read").await;
        assert_eq!(world.row(id).await.state, State::Completed);
        let stored = world.story(id).await.calls.values().next().expect("a call").outcome.clone().expect("done").result;
        assert_eq!(stored.as_str(), Some(whole.as_str()), "{}", place.name);
        let (_, shown) = world.results().pop().expect("a result");
        assert!(shown.len() < limits::RESULT_SHOWN_BYTES_MAX + 100, "{}", shown.len());
        let says_so = format!("of {} bytes] [the whole result of t1c0 is in the record]", whole.len());
        assert!(shown.ends_with(&says_so), "{}", &shown[shown.len() - 100..]);
        assert!(shown.starts_with("xé") && !shown.contains('\u{fffd}'));
    }
}

#[tokio::test]
async fn a_conversation_that_is_too_long_for_the_model_fails_once_and_is_not_asked_again() {
    for queued in [false, true] {
        let recorder = Recorder::default();
        let script = "[[reply]]\ncalls = [{ tool = \"notes.read\", arguments = { text = \"a\" } }]\n[[reply]]\nerror = \"context_overflow\"\n[[reply]]\ntext = \"no\"\n";
        let world = World::builder(script).tool(RecordedRead::new("notes.read", &recorder).tool()).build();
        let start = StartRun::new("a", "read", World::person());
        let id = if queued {
            let id = world.runtime.enqueue(start, None).await.expect("enqueued");
            world.claim(id).await.expect("held");
            id
        } else {
            world.run("read").await
        };
        let row = world.row(id).await;
        assert_eq!((row.state, row.reason.expect("failed").as_str()), (State::Failed, "context_overflow"));
        assert_eq!(world.model.requests().len(), 2);
        world.lapse().await;
        assert_eq!(world.row(id).await.state, State::Failed);
    }
}

#[tokio::test]
async fn a_turn_of_too_many_calls_runs_the_first_and_refuses_the_rest() {
    let recorder = Recorder::default();
    let call = "{ tool = \"notes.read\", arguments = { text = \"a\" } },";
    let script = format!("[[reply]]\ncalls = [{}]\n[[reply]]\ntext = \"done\"\n", call.repeat(limits::TURN_CALLS_MAX + 1));
    let world = World::builder(&script).tool(RecordedRead::new("notes.read", &recorder).tool()).build();
    let id = world.run("read").await;
    assert_eq!(world.row(id).await.state, State::Completed);
    assert_eq!(recorder.count("notes.read"), limits::TURN_CALLS_MAX);
    assert_valid(&world.model.requests().pop().expect("asked"));
}

#[tokio::test]
async fn without_tools_there_is_one_plain_completion() {
    let script = "[[reply]]\ntext = \"answer\"\ncalls = [{ tool = \"no.such\", arguments = {} }]\n[[reply]]\ntext = \"no\"\n";
    let world = World::builder(script).build();
    let mut start = StartRun::new("a", "hello", World::person());
    start.request.messages.insert(0, InputMessage { role: Role::Assistant, text: "Earlier.".into() });
    let execution = world.runtime.start(start).await.expect("started");
    let ended = execution.finish().await.expect("held");
    assert_eq!((ended.state, world.model.requests().len()), (State::Completed, 1));
    assert!(world.model.requests()[0].tools.is_empty());
    let story = world.story(ended.id).await;
    assert_eq!((story.output.as_deref(), story.truncated), (Some("answer"), false));
}
