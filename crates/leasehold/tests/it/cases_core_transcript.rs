//! What the model is told: one truthful result for each call, in order, whatever interrupted the turn.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    Decision, OrderError, Resolution, StartRun,
    agent::tool::{Approval, WriteAnswer, WriteEffect},
    run::{CallId, DecideCall, Outcome, Rejection, ResolutionKind, RunId, State, Via},
    worker::Point,
};
use leasehold_testkit::{
    park::{Park, Place},
    world::{RecordedRead, RecordedWrite, Recorder, World, WorldBuilder},
};
use serde_json::json;
use std::sync::Arc;

const THREE: &str = r#"
[[reply]]
calls = [
  { tool = "notes.read", arguments = { text = "1" } },
  { tool = "ledger.append", arguments = { text = "2" } },
  { tool = "shop.order", arguments = { text = "3" } },
]
[[reply]]
text = "done"
"#;

fn three(place: &Place, recorder: &Recorder, approval: Approval) -> WorldBuilder {
    World::builder(THREE)
        .tool(RecordedRead::new("notes.read", recorder).tool())
        .tool(RecordedWrite::new("shop.order", WriteEffect::NonIdempotent, recorder).tool(approval))
        .on(&place.store, &place.clock)
}

fn append(recorder: &Recorder) -> RecordedWrite {
    RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, recorder)
}

async fn enqueue(world: &World) -> RunId {
    world.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.expect("enqueued")
}

fn texts(world: &World) -> Vec<String> {
    let results = world.results();
    assert_eq!(results.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["t1c0", "t1c1", "t1c2"]);
    results.into_iter().map(|(_, text)| text).collect()
}

fn resolution(outcome: ResolutionKind) -> Resolution {
    Resolution { call_id: CallId::of(1, 1), fence_epoch: None, outcome, result: None, note: None, by: World::person() }
}

#[tokio::test]
async fn killed_with_one_of_three_calls_done_the_next_request_has_the_real_result_of_each() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let park = Park::at(Point::BeforeStamp);
        let killed =
            three(&place, &recorder, Approval::None).tool(append(&recorder).tool(Approval::None)).probe(park.clone()).build();
        let id = enqueue(&killed).await;
        park.kill(killed.runtime.claim(id).await.expect("claimed")).await;
        assert_eq!((recorder.count("notes.read"), recorder.count("ledger.append")), (1, 0));

        let other = three(&place, &recorder, Approval::None).tool(append(&recorder).tool(Approval::None)).process("test:2");
        let other = other.build();
        other.lapse().await;
        assert_eq!(other.claim(id).await.expect("held").state, State::Completed, "{}", place.name);
        assert_eq!(texts(&other), ["1", "ok", "ok"]);
        let counts = ["notes.read", "ledger.append", "shop.order"].map(|tool| recorder.count(tool));
        assert_eq!(counts, [1, 1, 1], "{}", place.name);
    }
}

#[tokio::test]
async fn killed_in_the_second_of_three_calls_the_model_hears_what_a_person_says_of_it() {
    for (said, outcome, told) in [
        (ResolutionKind::Landed, Outcome::Done, "A person states that this call happened."),
        (ResolutionKind::NotLanded, Outcome::Done, "ok"),
        (ResolutionKind::Abandon, Outcome::Unknown, "Do not repeat it."),
    ] {
        let place = Place::sqlite();
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let killed =
            three(&place, &recorder, Approval::None).tool(append(&recorder).inside(park.clone()).tool(Approval::None)).build();
        let id = enqueue(&killed).await;
        park.kill(killed.runtime.claim(id).await.expect("claimed")).await;

        let other = three(&place, &recorder, Approval::None).tool(append(&recorder).tool(Approval::None)).process("test:2");
        let other = other.build();
        other.lapse().await;
        let row = other.row(id).await;
        assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"));
        assert_eq!(other.model.requests().len(), 0, "the model hears nothing before a person does");
        let resolved = other.runtime.resolve(id, resolution(said)).await.expect("resolved");
        if said == ResolutionKind::Abandon {
            assert_eq!(resolved.row.state, State::Failed);
            other.runtime.redrive(id, World::person(), None).await.expect("redriven");
        }
        assert_eq!(other.claim(id).await.expect("held").state, State::Completed);
        assert!(texts(&other)[1].contains(told), "{:?}", texts(&other));
        assert_eq!(texts(&other)[2], "ok");
        let entered = if said == ResolutionKind::NotLanded { 2 } else { 1 };
        assert_eq!((recorder.count("ledger.append"), recorder.count("shop.order")), (entered, 1));
        assert_eq!(other.story(id).await.calls[&CallId::of(1, 1)].outcome.as_ref().expect("known").outcome, outcome);
    }
}

#[tokio::test]
async fn cancelled_in_the_second_of_three_calls_each_has_one_truthful_outcome() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let world =
            three(&place, &recorder, Approval::None).tool(append(&recorder).inside(park.clone()).tool(Approval::None)).build();
        let id = enqueue(&world).await;
        let segment = tokio::spawn(world.runtime.claim(id).await.expect("claimed").finish());
        park.reached().await;
        let cancelling = world.runtime.cancel(id, World::person(), None).await.expect("cancelled");
        assert_eq!(cancelling.state, State::Cancelling, "never shown as cancelled while the write runs");
        park.release();
        assert_eq!(segment.await.expect("joined").expect("held").state, State::Cancelled, "{}", place.name);
        let story = world.story(id).await;
        let outcomes: Vec<(Outcome, Via)> =
            story.calls.values().map(|c| c.outcome.as_ref().map(|o| (o.outcome, o.via)).expect("one each")).collect();
        let expected = [(Outcome::Done, Via::Tool), (Outcome::Done, Via::Tool), (Outcome::NotRun, Via::Close)];
        assert_eq!(outcomes, expected, "{}", place.name);
        assert_eq!((world.model.requests().len(), recorder.count("shop.order")), (1, 0));
        let again = world.runtime.cancel(id, World::person(), None).await.expect("the same answer");
        assert_eq!(again.sequence, world.row(id).await.sequence, "and nothing journaled");
    }
}

#[tokio::test]
async fn the_first_call_of_the_first_turn_interrupted_is_told_like_any_other() {
    let script =
        "[[reply]]\ncalls = [{ tool = \"ledger.append\", arguments = { text = \"1\" } }]\n[[reply]]\ntext = \"done\"\n";
    // Killed before the stamp, which is made together with the reply: the model is asked anew, and one write happens.
    for (point, entered_before) in [(Point::BeforeStamp, 0), (Point::AfterRecord, 1)] {
        let place = Place::sqlite();
        let recorder = Recorder::default();
        let park = Park::at(point);
        let world = |probe: Option<Arc<Park>>| {
            let builder = World::builder(script).tool(append(&recorder).tool(Approval::None)).on(&place.store, &place.clock);
            match probe {
                Some(park) => builder.probe(park).build(),
                None => builder.process("test:2").build(),
            }
        };
        let killed = world(Some(park.clone()));
        let id = enqueue(&killed).await;
        park.kill(killed.runtime.claim(id).await.expect("claimed")).await;
        assert_eq!(recorder.count("ledger.append"), entered_before);
        let other = world(None);
        other.lapse().await;
        assert_eq!(other.claim(id).await.expect("held").state, State::Completed);
        assert_eq!(other.results(), [("t1c0".into(), "ok".into())]);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
    // Cancelled while the model answers.
    let world = World::builder("[[reply]]\ntext = \"late\"\npause = \"1h\"\n").build();
    let execution = world.start("task").await;
    let id = execution.run();
    let segment = tokio::spawn(execution.finish());
    while world.model.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    world.runtime.cancel(id, World::person(), None).await.expect("cancelled");
    assert_eq!(segment.await.expect("joined").expect("held").state, State::Cancelled);
}

#[tokio::test]
async fn a_denied_an_approved_and_a_read_call_of_one_turn_have_their_results_in_order() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = three(&place, &recorder, Approval::Required).tool(append(&recorder).tool(Approval::Required)).build();
        let id = world.run("task").await;
        assert_eq!(recorder.entries(), [], "a turn that needs a person waits before any of its calls runs");
        let deny = DecideCall::deny(CallId::of(1, 1), Some("not today".into()));
        let decision = Decision { calls: vec![deny], ..World::decision(world.digest(id).await, true) };
        let decided = world.runtime.decide(id, decision).await.expect("taken");
        assert_eq!(decided.execution.expect("here").finish().await.expect("held").state, State::Completed);
        assert_eq!(texts(&world), ["1", "a person denied this call: not today", "ok"], "{}", place.name);
        let order: Vec<String> = recorder.entries().into_iter().map(|e| e.tool).collect();
        assert_eq!(order, ["notes.read", "shop.order"]);
    }
}

#[tokio::test]
async fn after_a_denial_the_same_call_again_is_a_new_turn_and_no_old_decision_applies_to_it() {
    let same = "[[reply]]\ncalls = [{ tool = \"ledger.append\", arguments = { text = \"x\" } }]\n";
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = World::builder(&format!("{same}{same}[[reply]]\ntext = \"done\"\n"))
            .tool(append(&recorder).tool(Approval::Required))
            .on(&place.store, &place.clock)
            .build();
        let id = world.run("task").await;
        let first = world.digest(id).await;
        let decided = world.runtime.decide(id, World::decision(first.clone(), false)).await.expect("taken");
        decided.execution.expect("here").finish().await.expect("held");
        let second = world.digest(id).await;
        assert_ne!(first, second);
        assert_eq!(world.row(id).await.turn.expect("a turn").number, 2);
        let sequence = world.row(id).await.sequence;
        let refused = world.runtime.decide(id, World::decision(first.clone(), true)).await.err();
        assert_eq!(refused, Some(OrderError::Refused(Rejection::StaleTurn)));
        let repeated = world.runtime.decide(id, World::decision(first, false)).await.expect("the same answer");
        assert!(repeated.repeated && repeated.execution.is_none());
        let row = world.row(id).await;
        assert_eq!((row.state, row.sequence), (State::WaitingForApproval, sequence), "nothing has changed");
        assert_eq!(recorder.count("ledger.append"), 0);
        assert_eq!(world.approve(id).await.expect("held").state, State::Completed);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test]
async fn an_edit_is_validated_and_told_to_the_model_and_the_call_runs_with_it() {
    let recorder = Recorder::default();
    let place = Place::sqlite();
    let world = three(&place, &recorder, Approval::None).tool(append(&recorder).tool(Approval::Required)).build();
    let id = world.run("task").await;
    let edit =
        |arguments: serde_json::Value| DecideCall::edit(CallId::of(1, 1), arguments.as_object().cloned().expect("an object"));
    let digest = world.digest(id).await;
    let decision = |call: DecideCall| Decision { calls: vec![call], rest: None, ..World::decision(digest.clone(), true) };
    let sequence = world.row(id).await.sequence;
    for bad in [json!({"text": 5}), json!({"text": "a", "more": 1}), json!({})] {
        let refused = world.runtime.decide(id, decision(edit(bad))).await.err();
        assert!(matches!(refused, Some(OrderError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(world.row(id).await.sequence, sequence, "a refused edit changes nothing");
    let taken = world.runtime.decide(id, decision(edit(json!({"text": "better"})))).await.expect("taken");
    let execution = taken.execution.expect("here");
    let repeated = world.runtime.decide(id, decision(edit(json!({"text": "better"})))).await.expect("the same answer");
    assert!(repeated.repeated);
    let other = world.runtime.decide(id, decision(edit(json!({"text": "other"})))).await.err();
    assert!(matches!(other, Some(OrderError::Refused(Rejection::AlreadyDecided { .. }))), "{other:?}");
    assert_eq!(execution.finish().await.expect("held").state, State::Completed);
    let entered = recorder.entries().into_iter().find(|e| e.tool == "ledger.append").expect("entered");
    assert_eq!(entered.arguments["text"], "better");
    assert!(texts(&world)[1].contains("A person changed the arguments") && texts(&world)[1].contains("better"));
}

#[tokio::test]
async fn a_certain_failure_is_told_as_one_and_a_broken_tool_is_not() {
    let recorder = Recorder::default();
    for (answer, state, told) in [
        (WriteAnswer::NotApplied { why: "refused".into() }, State::Completed, Some("This call did not happen: refused")),
        (WriteAnswer::error("no such page"), State::Completed, Some("Error: no such page")),
        (WriteAnswer::Unknown { why: "reset".into() }, State::Dead, None),
    ] {
        let place = Place::memory();
        let world = three(&place, &recorder, Approval::None).tool(append(&recorder).answers([answer]).tool(Approval::None));
        let world = world.build();
        let id = world.run("task").await;
        assert_eq!(world.row(id).await.state, state);
        match told {
            Some(told) => assert_eq!(texts(&world)[1], told),
            None => assert_eq!(world.model.requests().len(), 1),
        }
    }
}
