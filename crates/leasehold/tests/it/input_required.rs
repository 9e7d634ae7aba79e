//! A call that does not go on without input: the run waits for it without a process, and the same call is made again with what people
//! said, with the same key, in whatever process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use async_trait::async_trait;
use leasehold::{
    Decision, OrderError, Resolution, StartRun, Submission,
    agent::{
        registry::AgentSpec,
        tool::{
            Approval, Arguments, Asker, InputRequired, Previewed, ReadAnswer, ReadTool, Reply, Tool, ToolSpec, WriteAnswer,
            WriteEffect, WritePermit,
        },
    },
    limits::{INPUT_QUESTIONS_MAX, INPUT_STATE_BYTES_MAX, QUESTIONS_MAX},
    run::{CallId, DecideCall, InputQuestion, OnExpiry, Outcome, Principal, Reason, Rejection, ResolutionKind, RunId, State},
    worker::Point,
};
use leasehold_testkit::{
    park::{Park, Place},
    world::{Inside, RecordedWrite, Recorder, World, spec},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const SEND: &str =
    "[[reply]]\ncalls = [{ tool = \"box.send\", arguments = { text = \"pier 2\" } }]\n[[reply]]\ntext = \"done\"\n";

fn question(id: &str) -> InputQuestion {
    let schema =
        json!({ "type": "object", "properties": { "size": { "type": "integer", "maximum": 9 } }, "required": ["size"] });
    InputQuestion { id: id.into(), prompt: format!("Which {id}?"), schema }
}

fn needs(ids: &[&str]) -> InputRequired {
    InputRequired { questions: ids.iter().map(|id| question(id)).collect(), state: Some("sealed".into()) }
}

/// Asks these, and says afterwards what it was told.
struct Asks(&'static [&'static str]);

fn told(asker: &Asker) -> Option<Value> {
    let continued = asker.continued()?;
    let reply = |reply: &Reply| match reply {
        Reply::Values(values) => Value::Object(values.clone()),
        Reply::Declined => json!("declined"),
    };
    let replies: serde_json::Map<String, Value> =
        continued.replies.iter().map(|(id, said)| (id.clone(), reply(said))).collect();
    Some(json!({ "replies": replies, "state": continued.state, "rounds": continued.rounds }))
}

#[async_trait]
impl Inside for Asks {
    async fn inside(&self, permit: &WritePermit, _: &Arguments) -> Option<WriteAnswer> {
        Some(match told(permit.asked()) {
            None => WriteAnswer::NeedsInput(needs(self.0)),
            Some(told) => WriteAnswer::done(told),
        })
    }
}

fn write(recorder: &Recorder, effect: WriteEffect, ids: &'static [&'static str]) -> RecordedWrite {
    RecordedWrite::new("box.send", effect, recorder).inside(Arc::new(Asks(ids)))
}

fn world(place: &Place, tool: Tool, process: &str) -> World {
    World::builder(SEND).on(&place.store, &place.clock).process(process).tool(tool).build()
}

async fn submission(world: &World, id: RunId, values: Option<Value>) -> Submission {
    let values = values.map(|values| values.as_object().cloned().unwrap());
    Submission { digest: world.digest(id).await, values, by: World::person(), execute: true }
}

/// Somebody gives values, and their process goes on with the run.
async fn give(world: &World, id: RunId, values: Option<Value>) -> State {
    let decided = world.runtime.submit(id, submission(world, id, values).await).await.unwrap();
    decided.execution.unwrap().finish().await.unwrap().state
}

/// A person says that the call in doubt is not there.
async fn not_landed(world: &World, id: RunId, call_id: CallId) {
    let outcome = ResolutionKind::NotLanded;
    let said = Resolution { call_id, fence_epoch: None, outcome, result: None, note: None, by: World::person() };
    world.runtime.resolve(id, said).await.unwrap();
}

async fn result(world: &World, id: RunId) -> (Outcome, Value) {
    let outcome = world.story(id).await.calls[&CallId::of(1, 0)].outcome.clone().unwrap();
    (outcome.outcome, outcome.result)
}

#[tokio::test]
async fn a_write_that_asks_waits_without_a_process_and_goes_on_elsewhere_as_the_same_call() {
    for place in Place::each() {
        for approval in [Approval::None, Approval::Required] {
            let recorder = Recorder::default();
            let tool = || write(&recorder, WriteEffect::NonIdempotent, &["size", "lid"]).tool(approval);
            let one = world(&place, tool(), "one:1");
            let id = one.run("task").await;
            if approval == Approval::Required {
                one.approve(id).await.unwrap();
            }
            let row = one.row(id).await;
            assert_eq!((row.state, row.fence, row.lease), (State::WaitingForInput, None, None), "{}", place.name);
            // Whoever asked is gone, and days pass.
            drop(one);
            place.clock.advance(Duration::from_secs(3 * 24 * 3_600));
            let two = world(&place, tool(), "two:2");
            let card = two.story(id).await.card.unwrap().card;
            assert_eq!(card.question.map(|asked| asked.prompt).as_deref(), Some("Which size?"));
            assert_eq!(card.calls[0].arguments, json!({ "text": "pier 2" }).as_object().cloned().unwrap());
            let wrong = submission(&two, id, Some(json!({ "size": 10 }))).await;
            assert!(matches!(two.runtime.submit(id, wrong).await, Err(OrderError::InvalidFields(_))));
            let first = submission(&two, id, Some(json!({ "size": 7 }))).await;
            let next = two.runtime.submit(id, first.clone()).await.unwrap().execution.unwrap().finish().await.unwrap();
            assert_eq!((next.state, recorder.count("box.send")), (State::WaitingForInput, 1), "each is asked for");
            assert!(two.runtime.submit(id, first.clone()).await.unwrap().repeated);
            let other = Submission { values: None, ..first };
            let decided = two.runtime.submit(id, other).await;
            assert!(matches!(decided, Err(OrderError::Refused(Rejection::AlreadyDecided { .. }))));
            assert_eq!(give(&two, id, None).await, State::Completed);
            let replies = json!({ "size": { "size": 7 }, "lid": "declined" });
            let expected = json!({ "replies": replies, "state": "sealed", "rounds": 1 });
            assert_eq!(result(&two, id).await, (Outcome::Done, expected));
            let entered = recorder.entries();
            assert_eq!(entered.len(), 2);
            assert_eq!((&entered[0].key, &entered[0].arguments), (&entered[1].key, &entered[1].arguments), "the same call");
            assert!(entered[0].epoch < entered[1].epoch && (entered[0].attempt, entered[1].attempt) == (1, 2));
            let kinds = two.kinds(id).await;
            let from = kinds.iter().position(|kind| *kind == "write_stamped").unwrap();
            let rest = ["write_stamped", "input_required", "suspended", "input", "suspended", "input", "write_stamped"];
            assert_eq!(kinds[from..from + 7], rest);
            assert_eq!((kinds[from + 7], two.row(id).await.duplicates), ("tool_outcome", 0));
        }
    }
}

#[tokio::test]
async fn whoever_replies_to_a_write_that_asks_passes_the_gates_of_a_release_also_to_decline() {
    for four_eyes in [false, true] {
        let (place, recorder) = (Place::sqlite(), Recorder::default());
        let tool = write(&recorder, WriteEffect::NonIdempotent, &["size"]).tool(Approval::None);
        let agent = move |agent: AgentSpec| AgentSpec { second_approver: four_eyes, ..agent };
        let world = World::builder(SEND).on(&place.store, &place.clock).tool(tool).agent(agent).build();
        let id = world.run("task").await;
        let by = |by: Principal, said: Submission| Submission { by, ..said };
        let values = submission(&world, id, Some(json!({ "size": 7 }))).await;
        let declined = submission(&world, id, None).await;
        for said in [values, declined.clone()] {
            let machine = world.runtime.submit(id, by(Principal::machine("bot"), said.clone())).await;
            assert!(matches!(machine, Err(OrderError::Refused(Rejection::MachineMayNotRelease))));
            if four_eyes {
                let own = world.runtime.submit(id, said).await;
                assert!(matches!(own, Err(OrderError::Refused(Rejection::SelfApproval(_)))));
            }
        }
        let other = by(Principal::person("bob"), declined);
        let end = world.runtime.submit(id, other).await.unwrap().execution.unwrap().finish().await.unwrap();
        assert_eq!(end.state, State::Completed);
        assert_eq!(result(&world, id).await.1["replies"], json!({ "size": "declined" }));
    }
}

#[tokio::test]
async fn a_call_that_ends_before_anybody_replied_is_unknown_and_is_not_made_again() {
    for (what, on_expiry) in [("cancel", OnExpiry::Continue), ("late", OnExpiry::Continue), ("late", OnExpiry::DeadLetter)] {
        for effect in [WriteEffect::NonIdempotent, WriteEffect::Idempotent] {
            let (place, recorder) = (Place::sqlite(), Recorder::default());
            let agent =
                move |agent: AgentSpec| AgentSpec { decision_deadline: Some(Duration::from_secs(60)), on_expiry, ..agent };
            let tool = write(&recorder, effect, &["size"]).tool(Approval::None);
            let world = World::builder(SEND).on(&place.store, &place.clock).tool(tool).agent(agent).build();
            let id = world.run("task").await;
            assert_eq!(world.row(id).await.state, State::WaitingForInput);
            if what == "cancel" {
                world.runtime.cancel(id, World::person(), None).await.unwrap();
                assert_eq!(world.row(id).await.state, State::Cancelled);
            } else {
                place.clock.advance(Duration::from_secs(61));
                world.runtime.sweep(100, false).await.unwrap();
                if on_expiry == OnExpiry::DeadLetter {
                    assert_eq!(world.row(id).await.reason, Some(Reason::DecisionExpired));
                    // Sent on, it is asked for the same and for nothing else.
                    world.runtime.redrive(id, World::person(), None).await.unwrap();
                    world.claim(id).await.unwrap();
                    assert_eq!(world.row(id).await.state, State::WaitingForInput);
                    place.clock.advance(Duration::from_secs(61));
                    world.runtime.sweep(100, false).await.unwrap();
                    world.runtime.discard(id, World::person(), None).await.unwrap();
                } else {
                    world.claim(id).await.unwrap();
                    assert_eq!(world.row(id).await.state, State::Completed);
                }
            }
            let (outcome, text) = result(&world, id).await;
            assert_eq!(outcome, Outcome::Unknown, "its tool was entered: {text}");
            assert!(text.as_str().unwrap().contains("do not repeat"), "{text}");
            assert_eq!(recorder.count("box.send"), 1);
        }
    }
}

#[tokio::test]
async fn a_process_that_dies_before_it_recorded_that_its_tool_asks_leaves_what_any_write_leaves() {
    for place in Place::each() {
        for effect in [WriteEffect::NonIdempotent, WriteEffect::Idempotent] {
            let recorder = Recorder::default();
            let tool = || write(&recorder, effect, &["size"]).tool(Approval::None);
            let park = Park::at(Point::AfterReturn);
            let one = World::builder(SEND).on(&place.store, &place.clock).tool(tool()).probe(park.clone()).build();
            let id = one.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.unwrap();
            park.kill(one.runtime.claim(id).await.unwrap()).await;
            let two = world(&place, tool(), "two:2");
            two.lapse().await;
            let row = two.row(id).await;
            if effect == WriteEffect::NonIdempotent {
                assert_eq!((row.state, row.reason), (State::Dead, Some(Reason::WriteInDoubt)), "{}", place.name);
                assert_eq!(recorder.count("box.send"), 1);
                continue;
            }
            // The same call once more, with its key, asks again.
            two.claim(id).await.unwrap();
            assert_eq!((two.row(id).await.state, recorder.count("box.send")), (State::WaitingForInput, 2));
            assert_eq!(give(&two, id, Some(json!({ "size": 1 }))).await, State::Completed);
            let entered = recorder.entries();
            assert!(entered.len() == 3 && entered.iter().all(|e| e.key == entered[0].key));
        }
    }
}

#[tokio::test]
async fn a_process_that_dies_after_that_loses_nothing_and_one_that_dies_going_on_leaves_a_doubt_that_keeps_the_replies() {
    let (place, recorder) = (Place::sqlite(), Recorder::default());
    let tool = || write(&recorder, WriteEffect::NonIdempotent, &["size"]).tool(Approval::None);
    let park = Park::at(Point::AfterRecord);
    let one = World::builder(SEND).on(&place.store, &place.clock).tool(tool()).probe(park.clone()).build();
    let id = one.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.unwrap();
    park.kill(one.runtime.claim(id).await.unwrap()).await;
    assert_eq!(one.row(id).await.fence, None);
    let two = world(&place, tool(), "two:2");
    two.lapse().await;
    two.claim(id).await.unwrap();
    assert_eq!((two.row(id).await.state, recorder.count("box.send")), (State::WaitingForInput, 1), "it is asked, not called");

    let park = Park::at(Point::InTool);
    let three = World::builder(SEND).on(&place.store, &place.clock).tool(tool()).probe(park.clone()).process("three:3").build();
    let said = submission(&three, id, Some(json!({ "size": 4 }))).await;
    park.kill(three.runtime.submit(id, said).await.unwrap().execution.unwrap()).await;
    two.lapse().await;
    let row = two.row(id).await;
    assert_eq!((row.state, row.reason), (State::Dead, Some(Reason::WriteInDoubt)));
    let doubt = row.fence.unwrap();
    assert_eq!((doubt.attempt, doubt.repeat), (2, false));
    not_landed(&two, id, doubt.call_id).await;
    two.claim(id).await.unwrap();
    assert_eq!(two.row(id).await.state, State::Completed);
    assert_eq!(result(&two, id).await.1["replies"], json!({ "size": { "size": 4 } }), "nobody is asked twice");
}

#[tokio::test]
async fn a_call_that_asks_after_a_person_said_that_it_is_not_there_is_no_repeat() {
    let (place, recorder) = (Place::sqlite(), Recorder::default());
    let tool = || write(&recorder, WriteEffect::NonIdempotent, &["size"]).tool(Approval::None);
    let park = Park::at(Point::AfterStamp);
    let one = World::builder(SEND).on(&place.store, &place.clock).tool(tool()).probe(park.clone()).build();
    let id = one.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.unwrap();
    park.kill(one.runtime.claim(id).await.unwrap()).await;
    let two = world(&place, tool(), "two:2");
    two.lapse().await;
    let doubt = two.row(id).await.fence.unwrap();
    not_landed(&two, id, doubt.call_id).await;
    two.claim(id).await.unwrap();
    assert_eq!(two.row(id).await.state, State::WaitingForInput);
    let park = Park::at(Point::InTool);
    let three = World::builder(SEND).on(&place.store, &place.clock).tool(tool()).probe(park.clone()).process("three:3").build();
    let said = submission(&three, id, Some(json!({ "size": 4 }))).await;
    park.kill(three.runtime.submit(id, said).await.unwrap().execution.unwrap()).await;
    assert!(!two.row(id).await.fence.unwrap().repeat);
}

#[tokio::test]
async fn what_a_write_was_released_on_still_has_to_hold_when_it_goes_on() {
    let (place, recorder) = (Place::sqlite(), Recorder::default());
    let looks = [5, 5, 9].map(|rev| Previewed::text("pier 2").only_while(format!("rev {rev}")));
    let tool = write(&recorder, WriteEffect::NonIdempotent, &["size"]).previews(looks).tool(Approval::Required);
    let world = world(&place, tool, "one:1");
    let id = world.run("task").await;
    world.approve(id).await.unwrap();
    let card = world.story(id).await.card.unwrap().card;
    assert_eq!((world.row(id).await.state, card.calls[0].precondition.as_deref()), (State::WaitingForInput, Some("rev 5")));
    assert_eq!(give(&world, id, Some(json!({ "size": 1 }))).await, State::WaitingForApproval);
    let why = world.story(id).await.card.unwrap().card.calls[0].why.clone().unwrap();
    assert!(why.contains("rev 5") && why.contains("rev 9"), "{why}");
    assert_eq!(recorder.count("box.send"), 1);
    world.approve(id).await.unwrap();
    assert_eq!((world.row(id).await.state, recorder.count("box.send")), (State::Completed, 2), "nobody is asked twice");
}

#[tokio::test]
async fn replies_go_to_the_tool_that_was_shown_and_with_the_arguments_that_were_asked_about() {
    let (place, recorder) = (Place::sqlite(), Recorder::default());
    let tool = |endpoint: &str| {
        let endpoint = endpoint.to_owned();
        write(&recorder, WriteEffect::NonIdempotent, &["size"]).spec(|spec| spec.endpoint = endpoint).tool(Approval::None)
    };
    let one = world(&place, tool("test:here"), "one:1");
    let id = one.run("task").await;
    let two = world(&place, tool("test:there"), "two:2");
    assert_eq!(give(&two, id, Some(json!({ "size": 7 }))).await, State::WaitingForApproval);
    let edited = json!({ "text": "pier 3" }).as_object().cloned().unwrap();
    let decision = Decision {
        calls: vec![DecideCall::edit(CallId::of(1, 0), edited.clone())],
        ..World::decision(two.digest(id).await, true)
    };
    two.runtime.decide(id, decision).await.unwrap().execution.unwrap().finish().await.unwrap();
    // What it was told was about other arguments: it asks anew.
    assert_eq!(two.row(id).await.state, State::WaitingForInput);
    let entered = recorder.entries();
    assert_eq!((entered.len(), &entered[1].arguments), (2, &edited));
    assert_eq!(give(&two, id, Some(json!({ "size": 8 }))).await, State::Completed);
    assert_eq!(result(&two, id).await.1["replies"], json!({ "size": { "size": 8 } }));

    let read = |endpoint: &str| {
        let spec = ToolSpec { endpoint: endpoint.into(), ..spec("box.send") };
        world(&place, Tool::Read(Arc::new(AskingRead(spec, needs(&["size"])))), "one:1")
    };
    let id = read("test:here").run("task").await;
    let there = read("test:there");
    assert_eq!(give(&there, id, Some(json!({ "size": 7 }))).await, State::WaitingForApproval, "a read neither");
    there.approve(id).await.unwrap();
    assert_eq!(there.row(id).await.state, State::Completed);
}

/// Asks with whatever it was made with.
struct AskingRead(ToolSpec, InputRequired);

#[async_trait]
impl ReadTool for AskingRead {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }
    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        self.call_asking(arguments, Asker::nobody()).await
    }
    async fn call_asking(&self, _: &Arguments, asker: Asker) -> ReadAnswer {
        match told(&asker) {
            Some(told) if told["rounds"].as_u64() > Some(20) => ReadAnswer::ok(told),
            Some(told) if self.1.state.as_deref() != Some("again") => ReadAnswer::ok(told),
            _ => ReadAnswer::needs(self.1.clone()),
        }
    }
}

#[tokio::test]
async fn a_read_waits_too_and_what_people_cannot_be_asked_is_an_error_for_the_model() {
    let place = Place::sqlite();
    let asking = |input: InputRequired| world(&place, Tool::Read(Arc::new(AskingRead(spec("box.send"), input))), "one:1");
    let read = asking(needs(&["size"]));
    let id = read.run("task").await;
    assert_eq!(read.row(id).await.state, State::WaitingForInput);
    // A machine may answer a read.
    let said = Submission { by: Principal::machine("bot"), ..submission(&read, id, Some(json!({ "size": 2 }))).await };
    read.runtime.submit(id, said).await.unwrap().execution.unwrap().finish().await.unwrap();
    assert_eq!(result(&read, id).await.1["replies"], json!({ "size": { "size": 2 } }));

    let many =
        |count: usize| InputRequired { questions: (0..count).map(|n| question(&format!("q{n}"))).collect(), state: None };
    let state = |bytes: usize| InputRequired { state: Some("x".repeat(bytes)), ..needs(&["size"]) };
    for (input, waits) in [
        (many(INPUT_QUESTIONS_MAX), true),
        (many(INPUT_QUESTIONS_MAX + 1), false),
        (many(0), false),
        (state(INPUT_STATE_BYTES_MAX), true),
        (state(INPUT_STATE_BYTES_MAX + 1), false),
        (needs(&["size", "size"]), false),
        (InputRequired { questions: vec![InputQuestion { schema: json!(7), ..question("a") }], state: None }, false),
    ] {
        let world = asking(input);
        let id = world.run("task").await;
        assert_eq!(world.row(id).await.state == State::WaitingForInput, waits);
        if !waits {
            let (outcome, text) = result(&world, id).await;
            assert_eq!(outcome, Outcome::Done);
            assert!(text.as_str().unwrap().contains("people cannot be asked that"), "{text}");
        }
    }

    let insists = asking(InputRequired { state: Some("again".into()), ..needs(&["size"]) });
    let id = insists.run("task").await;
    for _ in 1..QUESTIONS_MAX {
        assert_eq!(give(&insists, id, Some(json!({ "size": 1 }))).await, State::WaitingForInput);
    }
    assert_eq!(give(&insists, id, Some(json!({ "size": 1 }))).await, State::Completed);
    let (_, text) = result(&insists, id).await;
    assert!(text.as_str().unwrap().contains("which is the limit"), "{text}");
}

#[tokio::test]
async fn who_declines_to_fill_in_what_a_tool_declares_denies_its_call() {
    let (place, recorder) = (Place::sqlite(), Recorder::default());
    let tool = RecordedWrite::new("box.send", WriteEffect::NonIdempotent, &recorder)
        .spec(|spec| spec.input = Some(question("size").schema))
        .tool(Approval::None);
    let world = world(&place, tool, "one:1");
    let id = world.run("task").await;
    assert_eq!(give(&world, id, None).await, State::Completed);
    let (outcome, text) = result(&world, id).await;
    assert_eq!((outcome, recorder.count("box.send")), (Outcome::Denied, 0));
    assert!(text.as_str().unwrap().contains("declined"), "{text}");
}
