//! What people give beside a yes or a no: values for a call, other arguments under four eyes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    Decision, SimilarStage, StartRun, Submission,
    agent::{
        owner::{OwnerRight, Owners},
        registry::{AgentSpec, Registry, RegistryError},
        tool::{Approval, Previewed, WriteEffect},
    },
    client::OrderError,
    limits,
    run::{Attribution, CallId, DecideCall, Principal, Rejection, RunId, Snapshot, State},
    store::Filter,
};
use leasehold_testkit::{
    park::Place,
    world::{RecordedWrite, Recorder, World},
};
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};

const PAY: &str =
    "[[reply]]\ncalls = [{ tool = \"till.pay\", arguments = { to = \"ann\", amount = 1 } }]\n[[reply]]\ntext = \"done\"\n";
const TWO: &str = "[[reply]]\ncalls = [{ tool = \"till.pay\", arguments = { to = \"ann\" } }, { tool = \"till.pay\", \
                   arguments = { to = \"bob\" } }]\n[[reply]]\ntext = \"done\"\n";

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        other => panic!("{other}"),
    }
}

fn till(recorder: &Recorder) -> RecordedWrite {
    let input = json!({
        "type": "object",
        "properties": { "amount": { "type": "integer", "minimum": 1 }, "note/to": { "type": "string", "enum": ["a", "b"] } },
        "required": ["amount"]
    });
    RecordedWrite::new("till.pay", WriteEffect::NonIdempotent, recorder).spec(|spec| {
        spec.parameters = json!({ "type": "object" });
        spec.input = Some(input);
    })
}

fn asking(place: &Place, recorder: &Recorder, script: &str, four_eyes: bool) -> World {
    let agent = move |agent: AgentSpec| AgentSpec { second_approver: four_eyes, ..agent };
    World::builder(script).on(&place.store, &place.clock).tool(till(recorder).tool(Approval::None)).agent(agent).build()
}

async fn run(world: &World) -> Snapshot {
    world.runtime.start(StartRun::new("a", "pay", World::person())).await.unwrap().finish().await.unwrap()
}

fn digest(row: &Snapshot) -> String {
    row.turn.as_ref().and_then(|turn| turn.digest.clone()).unwrap()
}

fn values(row: &Snapshot, by: Principal, values: Value) -> Submission {
    Submission { digest: digest(row), values: Some(object(values)), by, execute: true }
}

async fn refused(world: &World, id: RunId, said: Submission) -> OrderError {
    let before = world.row(id).await;
    let Err(error) = world.runtime.submit(id, said).await else { panic!("it was taken") };
    assert_eq!(world.row(id).await, before, "a refusal changes nothing");
    error
}

#[tokio::test]
async fn values_are_validated_before_anything_is_consumed_and_reach_exactly_the_declared_keys_of_one_call() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = asking(&place, &recorder, TWO, false);
        let row = run(&world).await;
        assert_eq!(row.state, State::WaitingForInput, "{}", place.name);
        let misfits = [
            (json!({}), vec![""]),
            (json!({ "amount": "7" }), vec!["/amount"]),
            (json!({ "amount": 0 }), vec!["/amount"]),
            (json!({ "amount": null }), vec!["/amount"]),
            (json!({ "amount": 7, "to": "eve" }), vec!["/to"]),
            (json!({ "amount": 7, "note/to": "c" }), vec!["/note~1to"]),
            (json!({ "amount": true, "a/~b": 1 }), vec!["/a~1~0b", "/amount"]),
        ];
        for (wrong, expected) in misfits {
            let error = refused(&world, row.id, values(&row, World::person(), wrong.clone())).await;
            let OrderError::InvalidFields(fields) = error else { panic!("{wrong}: {error:?}") };
            assert_eq!(fields.iter().map(|f| f.pointer.as_str()).collect::<Vec<_>>(), expected, "{wrong}");
        }
        let decision = Decision::approve(digest(&row), World::person());
        assert!(world.runtime.decide(row.id, decision).await.is_err(), "a decision is no input");
        let stale = Submission { digest: "0".repeat(64), ..values(&row, World::person(), json!({ "amount": 7 })) };
        assert_eq!(refused(&world, row.id, stale).await, OrderError::Refused(Rejection::StaleTurn));

        let first = values(&row, World::person(), json!({ "amount": 7, "note/to": "a" }));
        let next = world.runtime.submit(row.id, first.clone()).await.unwrap().execution.unwrap().finish().await.unwrap();
        // The second call of the same tool has its own values, and neither ran before both had.
        assert_eq!((next.state, recorder.count("till.pay")), (State::WaitingForInput, 0));
        assert!(world.runtime.submit(row.id, first.clone()).await.unwrap().repeated, "the same again gets the same answer");
        let other = Submission { values: Some(object(json!({ "amount": 8 }))), ..first };
        let decided = refused(&world, row.id, other).await;
        assert!(matches!(decided, OrderError::Refused(Rejection::AlreadyDecided { .. })), "{decided:?}");
        let second = values(&next, World::person(), json!({ "amount": 9 }));
        let end = world.runtime.submit(row.id, second).await.unwrap().execution.unwrap().finish().await.unwrap();
        assert_eq!(end.state, State::Completed);
        let entered: Vec<Value> = recorder.entries().into_iter().map(|e| Value::Object(e.arguments)).collect();
        assert_eq!(entered, [json!({ "to": "ann", "amount": 7, "note/to": "a" }), json!({ "to": "bob", "amount": 9 })]);
    }
}

#[tokio::test]
async fn values_for_a_write_are_a_release_and_twelve_at_once_execute_once() {
    let (place, recorder) = (Place::sqlite(), Recorder::default());
    let world = asking(&place, &recorder, PAY, true);
    let row = run(&world).await;
    let initiator = values(&row, World::person(), json!({ "amount": 7 }));
    let error = refused(&world, row.id, initiator).await;
    assert!(matches!(error, OrderError::Refused(Rejection::SelfApproval(_))), "{error:?}");
    let machine = values(&row, Principal::machine("bot"), json!({ "amount": 7 }));
    assert_eq!(refused(&world, row.id, machine).await, OrderError::Refused(Rejection::MachineMayNotRelease));
    let mut all = Vec::new();
    for n in 0..12 {
        let said = values(&row, Principal::person(format!("p{n}")), json!({ "amount": 10 + n }));
        let (runtime, id) = (world.runtime.clone(), row.id);
        all.push(tokio::spawn(async move {
            match runtime.submit(id, said).await {
                Ok(decided) => {
                    decided.execution.expect("it executes").finish().await.unwrap();
                    true
                }
                Err(OrderError::Refused(Rejection::AlreadyDecided { .. })) => false,
                Err(other) => panic!("{other:?}"),
            }
        }));
    }
    let mut taken = 0;
    for one in all {
        taken += usize::from(one.await.unwrap());
    }
    assert_eq!((taken, recorder.count("till.pay"), world.row(row.id).await.state), (1, 1, State::Completed));
}

#[test]
fn a_tool_that_asks_for_input_and_for_approval_is_refused_with_the_reason() {
    let mut registry = Registry::new();
    let error = registry.add_tool(till(&Recorder::default()).tool(Approval::Required)).unwrap_err();
    assert_eq!(error, RegistryError::InputAndApproval("till.pay".into()));
    let broken = till(&Recorder::default()).spec(|spec| spec.input = Some(json!({ "type": "array" })));
    assert!(matches!(registry.add_tool(broken.tool(Approval::None)), Err(RegistryError::BadSchema { .. })));
}

fn four_eyes(place: &Place, recorder: &Recorder) -> World {
    let previews = ["as asked", "as proposed"].map(Previewed::text);
    let tool = RecordedWrite::new("till.pay", WriteEffect::NonIdempotent, recorder)
        .spec(|spec| spec.parameters = json!({ "type": "object", "properties": { "amount": { "maximum": 100 } } }))
        .previews(previews);
    let agent = |agent: AgentSpec| AgentSpec { second_approver: true, ..agent };
    World::builder(PAY).on(&place.store, &place.clock).tool(tool.tool(Approval::Required)).agent(agent).build()
}

fn edit(row: &Snapshot, by: Principal, arguments: Value) -> Decision {
    let call = DecideCall { arguments: Some(object(arguments)), ..DecideCall::approve(CallId::of(1, 0)) };
    Decision::calls(digest(row), by, vec![call])
}

#[tokio::test]
async fn an_edit_under_four_eyes_is_a_proposal_on_a_card_of_its_own_that_its_author_may_deny_and_not_release() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = four_eyes(&place, &recorder);
        let (bob, eve) = (Principal::person("bob"), Principal::person("eve"));
        let row = run(&world).await;
        let wrong = world.runtime.decide(row.id, edit(&row, bob.clone(), json!({ "amount": 101 }))).await.err().unwrap();
        assert!(matches!(wrong, OrderError::Invalid(_)), "{wrong:?}");
        let proposed = world.runtime.decide(row.id, edit(&row, bob.clone(), json!({ "amount": 5 }))).await.unwrap();
        assert!(proposed.execution.is_none());
        let row = proposed.row;
        assert_eq!((row.state, recorder.count("till.pay")), (State::WaitingForApproval, 0));
        let details = world.runtime.details(row.id).await.unwrap();
        let card = &details.card().unwrap().calls[0];
        assert_eq!(
            (Value::Object(card.arguments.clone()), card.preview.as_deref()),
            (json!({ "amount": 5 }), Some("as proposed"))
        );
        // Neither who started the run nor who proposed releases it, whatever was on the first card.
        for by in [World::person(), bob.clone()] {
            let error = world.runtime.decide(row.id, Decision::approve(digest(&row), by)).await.err().unwrap();
            assert!(matches!(error, OrderError::Refused(Rejection::SelfApproval(_))), "{error:?}");
        }
        let end = world.runtime.decide(row.id, Decision::approve(digest(&row), eve)).await.unwrap();
        assert_eq!(end.execution.unwrap().finish().await.unwrap().state, State::Completed);
        assert_eq!(Value::Object(recorder.entries()[0].arguments.clone()), json!({ "amount": 5 }));
    }
    let (place, recorder) = (Place::memory(), Recorder::default());
    let world = four_eyes(&place, &recorder);
    let bob = Principal::person("bob");
    let row = run(&world).await;
    let row = world.runtime.decide(row.id, edit(&row, bob.clone(), json!({ "amount": 5 }))).await.unwrap().row;
    let denied = world.runtime.decide(row.id, Decision::deny(digest(&row), bob, "not now")).await.unwrap();
    denied.execution.unwrap().finish().await.unwrap();
    assert_eq!(recorder.count("till.pay"), 0);
}

/// Accounts of which a test takes one away.
struct Accounts(std::sync::Mutex<OwnerRight>);

#[async_trait::async_trait]
impl Owners for Accounts {
    async fn right(&self, _owner: &str, _tool: &str) -> OwnerRight {
        self.0.lock().unwrap().clone()
    }
}

#[tokio::test]
async fn a_write_whose_owner_is_gone_while_it_waits_is_refused_and_one_whose_owner_may_not_waits_again() {
    let cases = [
        (OwnerRight::May, State::Completed, 1),
        (OwnerRight::Gone("user:ada is gone".into()), State::Completed, 0),
        (OwnerRight::MayNot("user:ada may not run till.pay any more".into()), State::WaitingForApproval, 0),
        (OwnerRight::NotKnown("no answer".into()), State::Queued, 0),
    ];
    for (then, state, entered) in cases {
        let (place, recorder) = (Place::memory(), Recorder::default());
        let accounts = Arc::new(Accounts(std::sync::Mutex::new(OwnerRight::May)));
        let tool = RecordedWrite::new("till.pay", WriteEffect::NonIdempotent, &recorder);
        let tool = tool.spec(|spec| spec.parameters = json!({ "type": "object" })).tool(Approval::Required);
        let world = World::builder(PAY).on(&place.store, &place.clock).tool(tool).owners(Arc::clone(&accounts) as _).build();
        let row = run(&world).await;
        *accounts.0.lock().unwrap() = then.clone();
        let decided = world.runtime.decide(row.id, Decision::approve(digest(&row), World::person())).await.unwrap();
        let end = decided.execution.unwrap().finish().await.unwrap();
        assert_eq!((end.state, recorder.count("till.pay")), (state, entered), "{then:?}");
    }
}

/// A world whose model asks to pay this to this one.
fn paying(place: &Place, recorder: &Recorder, to: &str, amount: u32) -> World {
    let script = format!(
        "[[reply]]\ncalls = [{{ tool = \"till.pay\", arguments = {{ to = \"{to}\", amount = {amount} }} }}]\n[[reply]]\ntext = \"done\"\n"
    );
    let tool = RecordedWrite::new("till.pay", WriteEffect::NonIdempotent, recorder)
        .spec(|spec| spec.parameters = json!({ "type": "object" }))
        .tool(Approval::Required);
    World::builder(&script).on(&place.store, &place.clock).tool(tool).build()
}

/// Run, stage and sameness of what the card of this run names.
async fn named(world: &World, id: RunId) -> Vec<(RunId, SimilarStage, bool)> {
    let details = world.runtime.details(id).await.unwrap();
    let similar = world.runtime.similar(&details, None, |_| true).await.unwrap();
    similar.into_values().flatten().map(|call| (call.run, call.stage, call.same)).collect()
}

#[tokio::test]
async fn a_card_names_similar_calls_the_same_first_then_the_newest_within_a_day() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let (ann, ann_less, bob) =
            (paying(&place, &recorder, "ann", 7), paying(&place, &recorder, "ann", 5), paying(&place, &recorder, "bob", 9));
        let same = run(&ann).await;
        let decided = ann.runtime.decide(same.id, Decision::approve(digest(&same), World::person())).await.unwrap();
        decided.execution.unwrap().finish().await.unwrap();
        run(&bob).await;
        let denied = run(&ann).await;
        let no = Decision::deny(digest(&denied), World::person(), "no");
        ann.runtime.decide(denied.id, no).await.unwrap().execution.unwrap().finish().await.unwrap();
        place.clock.advance(Duration::from_secs(1));
        let less = run(&ann_less).await;
        place.clock.advance(Duration::from_secs(1));
        let newest = run(&ann_less).await;
        let card = run(&ann).await;
        // Not the other person's, not the denied one, not the card's own call.
        let expected =
            [(same.id, SimilarStage::Done, true), (newest.id, SimilarStage::Open, false), (less.id, SimilarStage::Open, false)];
        assert_eq!(named(&ann, card.id).await, expected, "{}", place.name);
        place.clock.advance(limits::SIMILAR_WITHIN - Duration::from_secs(2));
        assert_eq!(named(&ann, card.id).await, expected, "{}", place.name);
        place.clock.advance(Duration::from_millis(1));
        assert_eq!(named(&ann, card.id).await, expected[1..], "{}", place.name);
    }
}

#[tokio::test]
async fn a_card_names_as_many_similar_calls_and_looks_at_as_many_runs_as_its_bounds_say() {
    let (place, recorder) = (Place::memory(), Recorder::default());
    let (ann, bob) = (paying(&place, &recorder, "ann", 7), paying(&place, &recorder, "bob", 9));
    let first = run(&ann).await;
    let card = run(&ann).await;
    let mut others = 0;
    let mut until = async |count: usize| {
        while others < count {
            place.clock.advance(Duration::from_millis(1));
            run(&bob).await;
            others += 1;
        }
    };
    // The card's own run is one of those that called it.
    until(limits::SIMILAR_RUNS_MAX - 2).await;
    assert_eq!(named(&ann, card.id).await, [(first.id, SimilarStage::Open, true)]);
    until(limits::SIMILAR_RUNS_MAX - 1).await;
    assert_eq!(named(&ann, card.id).await, []);
    for count in 1..=limits::SIMILAR_SHOWN_MAX + 1 {
        run(&ann).await;
        assert_eq!(named(&ann, card.id).await.len(), count.min(limits::SIMILAR_SHOWN_MAX));
    }
}

#[tokio::test]
async fn the_row_says_by_whom_writes_were_released_the_weakest_of_them() {
    for place in Place::each() {
        let (recorder, eve) = (Recorder::default(), Principal::person("eve"));
        let script = "[[reply]]\ncalls = [{ tool = \"till.pay\", arguments = { to = \"ann\" } }, { tool = \"till.pay\", \
                      arguments = { to = \"bob\" } }, { tool = \"till.pay\", arguments = { to = \"eve\" } }]\n";
        let tool = RecordedWrite::new("till.pay", WriteEffect::NonIdempotent, &recorder)
            .spec(|spec| spec.parameters = json!({ "type": "object" }));
        let world = World::builder(script).on(&place.store, &place.clock).tool(tool.tool(Approval::Required)).build();
        let row = run(&world).await;
        assert_eq!(row.attribution, None);
        let say = |index: usize, by: &Principal, approved: bool| {
            let call = DecideCall { approved, ..DecideCall::approve(CallId::of(1, index)) };
            Decision::calls(digest(&row), by.clone(), vec![call])
        };
        for (index, by, approved, expected) in [
            (0, &World::person(), false, None),
            (1, &eve, true, Some(Attribution::SecondPerson)),
            (2, &World::person(), true, Some(Attribution::Initiator)),
        ] {
            let decided = world.runtime.decide(row.id, say(index, by, approved)).await.unwrap();
            assert_eq!(decided.row.attribution, expected, "{}", place.name);
            assert_eq!(world.row(row.id).await.attribution, expected, "{}", place.name);
        }
        let listed = world.store.list(&Filter::default(), None, 1).await.unwrap();
        assert_eq!(listed[0].attribution.as_deref(), Some("self"), "{}", place.name);
    }
}
