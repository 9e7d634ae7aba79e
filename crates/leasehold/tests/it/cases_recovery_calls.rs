//! Calls and models that fail: what is tried again, when, with what, and where it ends.
#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use leasehold::{
    Decision, StartRun,
    agent::tool::{
        Approval, Arguments, Tool, ToolSpec, Verified, Verify, VerifyQuery, WriteAnswer, WriteEffect, WritePermit, WriteTool,
    },
    run::{CallId, Effect, Late, LateAnswer, Principal, RunId, State, WriteId},
    worker::Point,
};
use leasehold_testkit::{
    invariants,
    park::{Park, Place},
    world::{Inside, RecordedWrite, Recorder, World, WorldBuilder},
};
use std::{sync::Arc, time::Duration};

const APPEND: &str = "[[reply]]\ncalls = [{ tool = \"ledger.append\", arguments = { text = \"one\" } }]\n";
const DONE: &str = "[[reply]]\ntext = \"done\"\n";

fn append(recorder: &Recorder, effect: WriteEffect) -> RecordedWrite {
    RecordedWrite::new("ledger.append", effect, recorder)
}

fn world(place: &Place, script: &str) -> WorldBuilder {
    World::builder(script).on(&place.store, &place.clock)
}

async fn enqueue(world: &World) -> RunId {
    world.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.expect("enqueued")
}

async fn holds(world: &World, id: RunId) {
    invariants::journal(&world.row(id).await, &world.entries(id).await).expect("holds");
}

/// Says of every call that it was not started.
struct NeverStarts;

#[async_trait::async_trait]
impl Inside for NeverStarts {
    async fn inside(&self, _: &WritePermit, _: &Arguments) -> Option<WriteAnswer> {
        Some(WriteAnswer::NotStarted { why: "the sidecar is not up".into() })
    }
}

#[tokio::test]
async fn a_write_that_never_starts_spends_the_requeues_and_ends() {
    for effect in [WriteEffect::Idempotent, WriteEffect::NonIdempotent] {
        for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
            let recorder = Recorder::default();
            let tool = || append(&recorder, effect).inside(Arc::new(NeverStarts)).tool(Approval::None);
            let world = world(&place, &format!("{APPEND}{DONE}")).tool(tool()).build();
            let id = enqueue(&world).await;
            for requeues in 1..=3 {
                let row = world.claim(id).await.expect("held");
                assert_eq!((row.state, row.requeues, row.fence), (State::Queued, requeues, None), "{}", place.name);
                assert_eq!(recorder.count("ledger.append"), 3 * requeues as usize, "three times a segment");
                assert!(world.runtime.claim(id).await.is_err(), "not before the backoff");
                place.clock.advance(Duration::from_secs(700));
            }
            let dead = world.claim(id).await.expect("held");
            assert_eq!((dead.state, dead.reason.expect("dead").as_str()), (State::Dead, "retries_exhausted"));
            assert_eq!(dead.fence, None, "it certainly did not happen");
            let why = world.story(id).await.end.expect("dead").detail;
            assert!(why.contains("could not be started") && why.contains("the sidecar is not up"), "{why}");
            holds(&world, id).await;
            // Where a caller waits there is no queue to go back to.
            let waited = world.run("task").await;
            let row = world.row(waited).await;
            assert_eq!((row.state, row.reason.expect("failed").as_str()), (State::Failed, "model_unavailable"));
        }
    }
}

#[tokio::test]
async fn a_write_found_absent_that_never_starts_again_is_a_doubt() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        let recorder = Recorder::default();
        let absent = || std::iter::repeat_n(Verified::Absent, 9);
        let script = format!("{APPEND}{DONE}");
        let tool = append(&recorder, WriteEffect::NonIdempotent).verifies(absent(), true);
        let park = Park::at(Point::AfterReturn);
        let killed = world(&place, &script).tool(tool.tool(Approval::None)).probe(park.clone()).build();
        let id = enqueue(&killed).await;
        park.kill(killed.runtime.claim(id).await.expect("claimed")).await;
        let tool = append(&recorder, WriteEffect::NonIdempotent).verifies(absent(), true).inside(Arc::new(NeverStarts));
        let other = world(&place, &script).tool(tool.tool(Approval::None)).process("test:2").build();
        other.lapse().await;
        let row = other.claim(id).await.expect("held");
        assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"), "{}", place.name);
        assert_eq!(recorder.count("ledger.append"), 4, "once, and three that were not started");
        holds(&other, id).await;
    }
}

/// A tool whose verify never answers, and says when it is asked.
struct Deadly {
    tool: RecordedWrite,
    asked: Arc<tokio::sync::Notify>,
}

#[async_trait::async_trait]
impl WriteTool for Deadly {
    fn spec(&self) -> &ToolSpec {
        WriteTool::spec(&self.tool)
    }
    fn write_effect(&self) -> WriteEffect {
        self.tool.write_effect()
    }
    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        self.tool.call(permit, arguments).await
    }
    fn verify(&self) -> Option<&dyn Verify> {
        Some(self)
    }
}

#[async_trait::async_trait]
impl Verify for Deadly {
    fn settle_after(&self) -> Duration {
        Duration::from_secs(120)
    }
    fn absent_is_not_applied(&self) -> bool {
        true
    }
    async fn verify(&self, _: &VerifyQuery, _: &Arguments) -> Verified {
        self.asked.notify_one();
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_verify_that_kills_its_worker_spends_the_requeues_and_a_person_is_asked() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        let recorder = Recorder::default();
        let asked = Arc::new(tokio::sync::Notify::new());
        let script = format!("{APPEND}{DONE}");
        let park = Park::in_tool();
        let build = |process: &str| {
            let tool = append(&recorder, WriteEffect::NonIdempotent).inside(park.clone());
            let deadly = Tool::Write(Arc::new(Deadly { tool, asked: Arc::clone(&asked) }), Approval::None);
            world(&place, &script).tool(deadly).process(process).build()
        };
        let first = build("test:1");
        let id = enqueue(&first).await;
        park.kill(first.runtime.claim(id).await.expect("claimed")).await;
        let until = first.row(id).await.fence.expect("stamped").in_flight_until;
        for requeues in 1..=3 {
            let next = build(&format!("test:{}", requeues + 1));
            place.clock.advance(Duration::from_secs(61));
            next.runtime.sweep(10, false).await.expect("swept");
            let row = next.row(id).await;
            assert_eq!((row.state, row.requeues), (State::Queued, requeues), "{}", place.name);
            assert!(row.due_at >= until, "not while the first request may still be on its way");
            place.clock.advance(Duration::from_secs(700));
            let asking = next.runtime.claim(id).await.expect("claimed").spawn();
            asked.notified().await;
            asking.abort();
            asking.await.expect_err("its process died while it asked");
        }
        let last = build("test:9");
        last.lapse().await;
        let row = last.row(id).await;
        assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"), "{}", place.name);
        assert_eq!(recorder.count("ledger.append"), 1, "no second write by itself");
        holds(&last, id).await;
    }
}

#[tokio::test]
async fn an_idempotent_write_is_repeated_as_it_was_and_never_planned_again() {
    for point in [Point::AfterStamp, Point::InTool, Point::AfterReturn] {
        for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
            let recorder = Recorder::default();
            let park = Park::at(point);
            let tool = || append(&recorder, WriteEffect::Idempotent).tool(Approval::None);
            let killed = world(&place, &format!("{APPEND}{DONE}")).tool(tool()).probe(park.clone()).build();
            let id = enqueue(&killed).await;
            park.kill(killed.runtime.claim(id).await.expect("claimed")).await;
            let before = recorder.count("ledger.append");
            // A model that would plan something else, and is held where it would be asked.
            let park = Park::at(Point::BeforeModel);
            let other = APPEND.replace("one", "two");
            let replanning = world(&place, &format!("{other}{other}{DONE}")).tool(tool()).process("test:2");
            let replanning = replanning.probe(park.clone()).build();
            replanning.lapse().await;
            park.kill(replanning.runtime.claim(id).await.expect("claimed")).await;
            assert_eq!(replanning.model.requests().len(), 0, "{point}: nobody is asked before it is settled");
            let entered = recorder.entries();
            assert_eq!(entered.len(), before + 1, "{} {point}", place.name);
            let key = id.idempotency_key(&CallId::of(1, 0));
            for one in &entered {
                assert_eq!((&one.key, one.arguments["text"].as_str()), (&key, Some("one")), "{point}");
            }
            assert_eq!(replanning.row(id).await.fence, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_arrives_while_a_call_runs_starts_it_again() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let tool = || append(&recorder, WriteEffect::NonIdempotent).inside(park.clone()).tool(Approval::Required);
        let world = world(&place, &format!("{APPEND}{DONE}")).tool(tool()).build();
        let id = world.run("task").await;
        let other = world.run("another task").await;
        let digest = world.digest(id).await;
        let decided = world.runtime.decide(id, World::decision(digest.clone(), true)).await.expect("taken");
        let segment = decided.execution.expect("here").spawn();
        park.reached().await;
        let running = world.row(id).await;
        // The same decision again, its contrary, one about another turn, one about another run; a sweep; claims; a stranger's word.
        let again = world.runtime.decide(id, World::decision(digest.clone(), true)).await.expect("the same answer");
        assert!(again.repeated && again.execution.is_none());
        assert!(world.runtime.decide(id, World::decision(digest.clone(), false)).await.is_err());
        let late = World::decision(digest, true);
        let eve = Decision { by: Principal::person("local:eve"), ..late };
        assert!(world.runtime.decide(id, eve).await.is_err());
        let unknown = world.runtime.decide(id, World::decision("0".repeat(64), true)).await.err().expect("refused");
        assert!(unknown.to_string().contains("running waits for no decision"), "{unknown}");
        let deny = World::decision(world.digest(other).await, false);
        world.runtime.decide(other, deny).await.expect("taken").execution.expect("here").finish().await.expect("held");
        world.runtime.sweep(100, false).await.expect("swept");
        assert!(world.runtime.claim(id).await.is_err());
        world.runtime.resolve(id, resolution()).await.expect_err("nothing is in doubt");
        let stranger = leasehold::run::Right { epoch: 1, lease_id: leasehold::run::LeaseId::random() };
        let said =
            Late { call_id: CallId::of(1, 0), right: stranger, answer: LateAnswer::Done, is_error: false, result: "x".into() };
        let event = leasehold::run::Event::LateOutcome(said);
        world.runtime.engine().change(id, WriteId::random(), Duration::from_secs(5), |_| event.clone()).await.expect("listed");
        let row = world.row(id).await;
        assert_eq!((row.state, row.epoch, &row.fence), (State::Running, running.epoch, &running.fence), "{}", place.name);
        park.release();
        assert_eq!(segment.await.expect("joined").expect("still the holder").state, State::Completed, "{}", place.name);
        assert_eq!(recorder.count("ledger.append"), 1, "{}", place.name);
        holds(&world, id).await;
    }
}

fn resolution() -> leasehold::Resolution {
    leasehold::Resolution {
        call_id: CallId::of(1, 0),
        fence_epoch: None,
        outcome: leasehold::run::ResolutionKind::NotLanded,
        result: None,
        note: None,
        by: World::person(),
    }
}

#[tokio::test]
async fn what_a_model_fails_with_decides_when_it_is_asked_again() {
    let failed = |reason| Some((State::Failed, reason));
    for (error, after, ends) in [
        ("error = \"rate_limited\"\nretry_after = \"90s\"", 90, None),
        ("error = \"rate_limited\"\nretry_after = \"1s\"", 5, None),
        ("error = \"rate_limited\"", 5, None),
        ("error = \"server\"", 5, None),
        ("error = \"connection\"", 5, None),
        ("error = \"auth\"", 0, failed("model_auth")),
        ("error = \"client\"", 0, failed("model_client")),
        ("error = \"context_overflow\"", 0, failed("context_overflow")),
        ("error = \"refused\"", 0, failed("refused")),
    ] {
        for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
            let world = world(&place, &format!("[[reply]]\n{error}\n{DONE}")).build();
            let id = enqueue(&world).await;
            let row = world.claim(id).await.expect("held");
            assert_eq!(world.model.requests().len(), 1, "{error}: not asked again at once");
            if let Some((state, reason)) = ends {
                assert_eq!((row.state, row.reason.expect("failed").as_str()), (state, reason), "{error}");
                assert_eq!(row.requeues, 0);
                continue;
            }
            assert_eq!((row.state, row.requeues), (State::Queued, 1), "{error}");
            let wait = row.due_at.duration_since(world.runtime.engine().now().wall);
            assert_eq!(wait.as_secs(), after, "{} {error}", place.name);
            place.clock.advance(Duration::from_secs(after.unsigned_abs() - 1));
            assert!(world.runtime.claim(id).await.is_err(), "{error}: not before");
            place.clock.advance(Duration::from_secs(1));
            assert_eq!(world.claim(id).await.expect("held").state, State::Completed, "{error}");
        }
    }
}

/// What a newer version wrote into the column of an effect.
async fn write_an_unknown_effect(place: &Place) {
    let change = "UPDATE runs SET fence_effect = 'sometimes'";
    if let Some(database) = &place.database {
        database.execute(change).await.expect("changed");
    } else if let Some(file) = &place.file {
        let raw = rusqlite::Connection::open(file).expect("opens");
        assert_eq!(raw.execute(change, []).expect("changed"), 1);
    }
}

#[tokio::test]
async fn a_fence_whose_effect_a_newer_version_wrote_is_a_doubt_and_is_not_repeated() {
    for place in [Place::sqlite(), Place::postgres().await] {
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let script = format!("{APPEND}{DONE}");
        let tool = append(&recorder, WriteEffect::Idempotent).inside(park.clone()).tool(Approval::None);
        let killed = world(&place, &script).tool(tool).build();
        let id = enqueue(&killed).await;
        park.kill(killed.runtime.claim(id).await.expect("claimed")).await;
        write_an_unknown_effect(&place).await;
        let other = world(&place, &script)
            .tool(append(&recorder, WriteEffect::Idempotent).tool(Approval::None))
            .process("test:2")
            .build();
        other.lapse().await;
        let row = other.row(id).await;
        assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"), "{}", place.name);
        assert_eq!(row.fence.expect("kept").effect, Effect::NonIdempotentWrite);
        assert!(other.runtime.claim(id).await.is_err());
        assert_eq!(recorder.count("ledger.append"), 1, "{}", place.name);
    }
}
