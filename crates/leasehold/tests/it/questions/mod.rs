//! A running call asks a person: who hears what, and what is left where nobody answers.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

mod killed;

use leasehold::{
    InboxKind, OrderError, QuestionAnswer, StandingQuestion, StartRun,
    agent::tool::{
        Approval, Asker, NotAsked, ReadAnswer, Reply, Tool, WriteAnswer, WriteEffect, WritePermit,
        rust::{asking_read_tool, write_tool},
    },
    client::Executed,
    limits::ANSWER_BYTES_MAX,
    run::{CallId, EntryBody, Outcome, Principal, Rejection, RunId, State},
};
use leasehold_testkit::{park::Place, world::World};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::{sync::mpsc, task::JoinHandle};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct About {
    text: String,
}

fn script(tools: &[&str]) -> String {
    let calls: Vec<String> = tools
        .iter()
        .enumerate()
        .map(|(n, tool)| format!("{{ tool = \"{tool}\", arguments = {{ text = \"{n}\" }} }}"))
        .collect();
    format!("[[reply]]\ncalls = [{}]\n[[reply]]\ntext = \"done\"\n", calls.join(", "))
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": { "size": { "type": "integer", "minimum": 1 }, "note": { "type": "string" } },
        "required": ["size"]
    })
}

/// What the tools heard.
type Heard = mpsc::UnboundedSender<Result<Reply, NotAsked>>;

async fn ask(asker: &mut Asker, about: &str, heard: &Heard) -> Result<Reply, NotAsked> {
    let said = asker.ask(&format!("Which size, {about}?"), schema()).await;
    heard.send(said.clone()).ok();
    said
}

fn told(said: &Reply) -> Value {
    match said {
        Reply::Values(values) => values["size"].clone(),
        Reply::Declined => "declined".into(),
    }
}

fn read(heard: &Heard, timeout: Duration) -> Tool {
    let heard = heard.clone();
    let read = asking_read_tool("boxes.find", "Find", move |mut asker: Asker, about: About| {
        let heard = heard.clone();
        async move {
            match ask(&mut asker, &about.text, &heard).await {
                Ok(said) => ReadAnswer::ok(told(&said)),
                Err(why) => ReadAnswer::error(why.to_string()),
            }
        }
    });
    read.timeout(timeout).tool()
}

fn write(effect: WriteEffect, heard: &Heard, timeout: Duration) -> Tool {
    let heard = heard.clone();
    let write = write_tool("boxes.send", "Send", effect, Approval::None, move |mut permit: WritePermit, about: About| {
        let heard = heard.clone();
        async move {
            match ask(permit.asker(), &about.text, &heard).await {
                Ok(_) if permit.check().is_err() => WriteAnswer::NotStarted { why: "not held".into() },
                Ok(said) => WriteAnswer::done(told(&said)),
                Err(why) => WriteAnswer::NotApplied { why: why.to_string() },
            }
        }
    });
    write.timeout(timeout).tool()
}

const LONG: Duration = Duration::from_secs(600);

/// What runs, and what its tools hear.
struct Asking {
    world: World,
    heard: mpsc::UnboundedReceiver<Result<Reply, NotAsked>>,
}

impl Asking {
    fn on(place: &Place, calls: &[&str], timeout: Duration, effect: WriteEffect, process: &str) -> Self {
        Self::with(place, calls, timeout, effect, process, false)
    }
    fn with(
        place: &Place,
        calls: &[&str],
        timeout: Duration,
        effect: WriteEffect,
        process: &str,
        second_approver: bool,
    ) -> Self {
        let (sender, heard) = mpsc::unbounded_channel();
        let world = World::builder(&script(calls))
            .tool(read(&sender, timeout))
            .tool(write(effect, &sender, timeout))
            .on(&place.store, &place.clock)
            .process(process)
            .agent(move |mut agent| {
                agent.second_approver = second_approver;
                agent
            })
            .build();
        Self { world, heard }
    }
    async fn enqueue(&self) -> RunId {
        self.world.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.unwrap()
    }
    async fn claim(&self, id: RunId) -> JoinHandle<Executed> {
        self.world.runtime.claim(id).await.unwrap().spawn()
    }
    async fn start(&self) -> (RunId, JoinHandle<Executed>) {
        let id = self.enqueue().await;
        (id, self.claim(id).await)
    }
    /// Waits until so many questions stand.
    async fn asked(&self, id: RunId, count: usize) -> Vec<StandingQuestion> {
        let mut seen = 0;
        loop {
            seen += self.world.runtime.wait_events(id, seen).await.unwrap().len() as u64;
            let questions: Vec<_> = self.world.runtime.details(id).await.unwrap().questions().collect();
            if questions.len() == count {
                return questions;
            }
        }
    }
    async fn answer(&self, id: RunId, asked: &StandingQuestion, values: Option<Value>) -> Result<State, OrderError> {
        self.answer_as(id, asked, values, Principal::person("bob")).await
    }
    async fn answer_as(
        &self,
        id: RunId,
        asked: &StandingQuestion,
        values: Option<Value>,
        by: Principal,
    ) -> Result<State, OrderError> {
        let values = values.map(|values| values.as_object().cloned().unwrap());
        let said = QuestionAnswer { call_id: asked.call_id.clone(), question: asked.question, values, by };
        self.world.runtime.answer(id, said).await.map(|row| row.state)
    }
    async fn outcome(&self, id: RunId, index: usize) -> (Outcome, Value) {
        let outcome = self.world.story(id).await.calls[&CallId::of(1, index)].outcome.clone().unwrap();
        (outcome.outcome, outcome.result)
    }
}

fn size(size: i64) -> Value {
    json!({ "size": size })
}

fn code<T: std::fmt::Debug>(answered: Result<T, OrderError>) -> &'static str {
    match answered {
        Err(OrderError::Refused(rejection)) => rejection.code(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_of_a_read_or_a_write_is_answered_by_another_process_and_the_call_goes_on_with_the_values() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        for tool in ["boxes.find", "boxes.send"] {
            let runs = Asking::on(&place, &[tool], LONG, WriteEffect::NonIdempotent, "test:1");
            let other = Asking::on(&place, &[tool], LONG, WriteEffect::NonIdempotent, "test:2");
            let (id, run) = runs.start().await;
            let asked = other.asked(id, 1).await.remove(0);
            assert_eq!((asked.tool.as_str(), asked.prompt.as_str()), (tool, "Which size, 0?"));
            assert_eq!(asked.schema, schema());
            let row = other.world.row(id).await;
            assert_eq!(row.fence.is_some(), tool == "boxes.send", "the fence of a write stands while it asks");
            let inbox = other.world.runtime.inbox(10).await.unwrap();
            assert_eq!(inbox.iter().map(|(kind, run)| (*kind, run.id)).collect::<Vec<_>>(), [(InboxKind::Question, id)]);
            assert_eq!(inbox[0].1.since, asked.asked_at);
            assert_eq!(other.answer(id, &asked, Some(size(7))).await, Ok(State::Running));
            assert_eq!(run.await.unwrap().unwrap().state, State::Completed);
            assert_eq!(runs.outcome(id, 0).await, (Outcome::Done, json!(7)));
            assert_eq!(other.world.runtime.inbox(10).await.unwrap(), []);
            assert_eq!(other.world.runtime.details(id).await.unwrap().questions().count(), 0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_declines_is_heard_and_the_same_answer_again_is_the_same_and_another_is_refused_with_who_and_when() {
    let place = Place::sqlite();
    for (values, other) in [(None, Some(size(3))), (Some(size(3)), Some(size(4))), (Some(size(3)), None)] {
        let runs = Asking::on(&place, &["boxes.send"], LONG, WriteEffect::Idempotent, "test:1");
        let (id, run) = runs.start().await;
        let asked = runs.asked(id, 1).await.remove(0);
        runs.answer(id, &asked, values.clone()).await.unwrap();
        assert_eq!(run.await.unwrap().unwrap().state, State::Completed);
        let told = values.as_ref().map_or(json!("declined"), |values| values["size"].clone());
        assert_eq!(runs.outcome(id, 0).await, (Outcome::Done, told));
        let entries = runs.world.entries(id).await;
        assert_eq!(runs.answer(id, &asked, values.clone()).await, Ok(State::Completed), "the same again");
        let refusals =
            [runs.answer(id, &asked, other).await, runs.answer_as(id, &asked, values, Principal::person("eve")).await];
        let answered = entries.iter().find(|entry| matches!(entry.body, EntryBody::Answered(_))).unwrap();
        for refused in refusals {
            let before = Rejection::AlreadyDecided { call: CallId::of(1, 0), by: "bob".into(), at: answered.at };
            assert_eq!(refused, Err(before.into()));
        }
        let never = StandingQuestion { question: asked.question + 1, ..asked.clone() };
        assert_eq!(code(runs.answer(id, &never, None).await), "no_question");
        assert_eq!(runs.world.entries(id).await.len(), entries.len(), "none of that is journaled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_do_not_fit_are_refused_with_a_pointer_each_and_consume_nothing() {
    let place = Place::memory();
    let runs = Asking::on(&place, &["boxes.send"], LONG, WriteEffect::NonIdempotent, "test:1");
    let (id, run) = runs.start().await;
    let asked = runs.asked(id, 1).await.remove(0);
    let before = runs.world.entries(id).await.len();
    let note = |bytes: usize| {
        let of = |note: String| json!({ "size": 1, "note": note });
        of("x".repeat(bytes - of(String::new()).to_string().len()))
    };
    for (values, pointers) in [
        (json!({}), vec![""]),
        (json!({ "size": 0 }), vec!["/size"]),
        (json!({ "size": "7", "note": 7 }), vec!["/note", "/size"]),
        (json!({ "size": 7, "a/b": 1 }), vec!["/a~1b"]),
        (note(ANSWER_BYTES_MAX + 1), vec![""]),
    ] {
        let Err(OrderError::InvalidFields(fields)) = runs.answer(id, &asked, Some(values.clone())).await else {
            panic!("{values} was taken")
        };
        let mut named: Vec<&str> = fields.iter().map(|field| field.pointer.as_str()).collect();
        named.sort_unstable();
        assert_eq!(named, pointers);
    }
    assert_eq!(runs.world.entries(id).await.len(), before);
    assert_eq!(runs.asked(id, 1).await, std::slice::from_ref(&asked), "it is asked as before");
    runs.answer(id, &asked, Some(note(ANSWER_BYTES_MAX))).await.unwrap();
    assert_eq!(run.await.unwrap().unwrap().state, State::Completed);
    assert_eq!(runs.outcome(id, 0).await, (Outcome::Done, json!(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_reads_ask_at_once_and_each_hears_its_own_answer() {
    let place = Place::sqlite();
    let runs = Asking::on(&place, &["boxes.find", "boxes.find"], LONG, WriteEffect::Idempotent, "test:1");
    let (id, run) = runs.start().await;
    let asked = runs.asked(id, 2).await;
    for asked in asked.iter().rev() {
        let value = if asked.call_id == CallId::of(1, 0) { 10 } else { 20 };
        runs.answer(id, asked, Some(size(value))).await.unwrap();
    }
    assert_eq!(run.await.unwrap().unwrap().state, State::Completed);
    assert_eq!(runs.outcome(id, 0).await, (Outcome::Done, json!(10)));
    assert_eq!(runs.outcome(id, 1).await, (Outcome::Done, json!(20)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_ends_the_wait_and_the_question_with_it() {
    for (tool, effect) in [
        ("boxes.find", WriteEffect::Idempotent),
        ("boxes.send", WriteEffect::Idempotent),
        ("boxes.send", WriteEffect::NonIdempotent),
    ] {
        let place = Place::memory();
        let mut runs = Asking::on(&place, &[tool], LONG, effect, "test:1");
        let (id, run) = runs.start().await;
        let asked = runs.asked(id, 1).await.remove(0);
        runs.world.runtime.cancel(id, World::person(), None).await.unwrap();
        assert_eq!(code(runs.answer(id, &asked, Some(size(7))).await), "no_question");
        assert_eq!(run.await.unwrap().unwrap().state, State::Cancelled);
        if tool == "boxes.send" {
            assert_eq!(runs.heard.recv().await, Some(Err(NotAsked::Cancelled)));
        }
        assert_eq!(code(runs.answer(id, &asked, None).await), "no_question");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_timeout_of_a_tool_covers_the_time_it_waits_for_a_person() {
    let short = Duration::from_millis(300);
    for (tool, effect, state) in [
        ("boxes.find", WriteEffect::Idempotent, State::Completed),
        ("boxes.send", WriteEffect::NonIdempotent, State::Dead),
        ("boxes.send", WriteEffect::Idempotent, State::Queued),
    ] {
        let place = Place::memory();
        let runs = Asking::on(&place, &[tool], short, effect, "test:1");
        let (id, run) = runs.start().await;
        assert_eq!(run.await.unwrap().unwrap().state, state);
        let entries = runs.world.entries(id).await;
        let asked: Vec<_> = entries.iter().filter(|entry| matches!(entry.body, EntryBody::Question(_))).collect();
        let repeats = state == State::Queued;
        assert_eq!(asked.len() > 1, repeats, "each entry of an idempotent write asks for itself");
        for entry in asked {
            let (call_id, question, by) = (CallId::of(1, 0), entry.sequence, Principal::person("bob"));
            let said = QuestionAnswer { call_id, question, values: size(7).as_object().cloned(), by };
            assert_eq!(code(runs.world.runtime.answer(id, said).await), "no_question");
        }
        assert_eq!(runs.world.row(id).await.questions().count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_lost_its_lease_tells_its_call_and_its_question_is_void() {
    for effect in [WriteEffect::Idempotent, WriteEffect::NonIdempotent] {
        let place = Place::sqlite();
        let mut runs = Asking::on(&place, &["boxes.send"], LONG, effect, "test:1");
        let (id, run) = runs.start().await;
        let asked = runs.asked(id, 1).await.remove(0);
        let other = Asking::on(&place, &["boxes.send"], LONG, effect, "test:2");
        other.world.lapse().await;
        assert_eq!(code(other.answer(id, &asked, Some(size(7))).await), "no_question");
        assert_eq!(runs.heard.recv().await, Some(Err(NotAsked::Lost)));
        run.await.unwrap().unwrap_err();
        let state = other.world.row(id).await.state;
        assert_eq!(state, if effect == WriteEffect::Idempotent { State::Queued } else { State::Dead });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_while_it_asks_leaves_what_an_interrupted_call_leaves_and_no_question() {
    for (tool, effect) in [
        ("boxes.find", WriteEffect::Idempotent),
        ("boxes.send", WriteEffect::Idempotent),
        ("boxes.send", WriteEffect::NonIdempotent),
    ] {
        let place = Place::sqlite();
        let died = Asking::on(&place, &[tool], LONG, effect, "test:1");
        let (id, run) = died.start().await;
        let asked = died.asked(id, 1).await.remove(0);
        run.abort();
        run.await.unwrap_err();
        let other = Asking::on(&place, &[tool], LONG, effect, "test:2");
        other.world.lapse().await;
        assert_eq!(code(other.answer(id, &asked, Some(size(7))).await), "no_question");
        if (tool, effect) == ("boxes.send", WriteEffect::NonIdempotent) {
            let row = other.world.row(id).await;
            assert_eq!((row.state, row.reason.unwrap().as_str()), (State::Dead, "write_in_doubt"));
            continue;
        }
        let run = other.claim(id).await;
        let anew = other.asked(id, 1).await.remove(0);
        assert!(anew.question > asked.question, "it asks again");
        assert_eq!(code(other.answer(id, &asked, Some(size(7))).await), "no_question");
        other.answer(id, &anew, Some(size(8))).await.unwrap();
        assert_eq!(run.await.unwrap().unwrap().state, State::Completed);
        assert_eq!(other.outcome(id, 0).await, (Outcome::Done, json!(8)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_shuts_down_waits_for_no_person() {
    for (tool, effect) in [
        ("boxes.find", WriteEffect::Idempotent),
        ("boxes.send", WriteEffect::Idempotent),
        ("boxes.send", WriteEffect::NonIdempotent),
    ] {
        let place = Place::memory();
        let mut runs = Asking::on(&place, &[tool], LONG, effect, "test:1");
        let (id, run) = runs.start().await;
        let asked = runs.asked(id, 1).await.remove(0);
        runs.world.runtime.stop();
        let row = run.await.unwrap().unwrap();
        assert_eq!((row.state, row.requeues), (State::Queued, 0), "handed back, and no requeue spent");
        assert_eq!(code(runs.answer(id, &asked, Some(size(7))).await), "no_question");
        if effect == WriteEffect::NonIdempotent {
            assert_eq!(runs.heard.recv().await, Some(Err(NotAsked::Stopping)), "the tool says what came of it");
            assert_eq!(runs.outcome(id, 0).await.0, Outcome::NotApplied);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_answers_no_write_and_under_four_eyes_its_initiator_does_not_and_both_may_decline() {
    let machine = Principal::machine("robot");
    for (second_approver, by, refused) in [
        (false, machine.clone(), "machine_may_not_release"),
        (true, machine, "machine_may_not_release"),
        (true, World::person(), "self_approval"),
    ] {
        let place = Place::memory();
        let runs = Asking::with(&place, &["boxes.send"], LONG, WriteEffect::Idempotent, "test:1", second_approver);
        let (id, run) = runs.start().await;
        let asked = runs.asked(id, 1).await.remove(0);
        assert_eq!(code(runs.answer_as(id, &asked, Some(size(7)), by.clone()).await), refused);
        assert_eq!(runs.asked(id, 1).await, std::slice::from_ref(&asked), "it is asked as before");
        runs.answer_as(id, &asked, None, by).await.unwrap();
        assert_eq!(run.await.unwrap().unwrap().state, State::Completed);
        assert_eq!(runs.outcome(id, 0).await, (Outcome::Done, json!("declined")));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_asks_something_else_takes_its_first_question_back() {
    let place = Place::memory();
    let impatient = asking_read_tool("boxes.find", "Find", |mut asker: Asker, _: About| async move {
        let first = tokio::time::timeout(Duration::from_millis(50), asker.ask("First?", schema())).await;
        let second = asker.ask("Second?", schema()).await;
        let third = asker.ask("Third?", json!({ "type": "string" })).await;
        ReadAnswer::ok(json!([first.is_err(), matches!(second, Ok(Reply::Values(_))), format!("{third:?}").contains("object")]))
    });
    let world =
        World::builder(&script(&["boxes.find"])).tool(impatient.timeout(LONG).tool()).on(&place.store, &place.clock).build();
    let runs = Asking { world, heard: mpsc::unbounded_channel().1 };
    let (id, run) = runs.start().await;
    let first = runs.asked(id, 1).await.remove(0);
    let second = loop {
        match runs.asked(id, 1).await.remove(0) {
            asked if asked.prompt == "Second?" => break asked,
            _ => tokio::task::yield_now().await,
        }
    };
    assert_eq!(code(runs.answer(id, &StandingQuestion { question: second.question - 1, ..first }, None).await), "no_question");
    runs.answer(id, &second, Some(size(7))).await.unwrap();
    assert_eq!(run.await.unwrap().unwrap().state, State::Completed);
    assert_eq!(runs.outcome(id, 0).await, (Outcome::Done, json!([true, true, true])));
}

#[tokio::test]
async fn a_run_that_is_not_recorded_asks_nobody() {
    let (sender, mut heard) = mpsc::unbounded_channel();
    let world = World::builder(&script(&["boxes.find"])).tool(read(&sender, LONG)).build();
    let start = StartRun::new("a", "task", World::person());
    let end = leasehold::Runtime::unrecorded(&world.runtime.registry(), start).unwrap().run().await.unwrap();
    assert_eq!(end.output, "done");
    assert_eq!(heard.recv().await, Some(Err(NotAsked::Nobody)));
}
