//! Recovery: a run goes on from its journal, and what was done or decided is neither done nor decided again.
#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use leasehold::{
    StartRun,
    agent::{
        registry::{AgentSpec, Price},
        tool::{Approval, Arguments, ReadAnswer, Verified, WriteAnswer, WriteEffect, WritePermit},
    },
    client::InboxKind,
    run::{CallId, Outcome, RunId, State, Usage},
    store::{Filter, sqlite::SqliteStore},
    worker::{Point, pool::PoolConfig},
};
use leasehold_testkit::{
    park::{Park, Place},
    world::{Inside, RecordedRead, RecordedWrite, Recorder, World, WorldBuilder},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const APPEND: &str = "[[reply]]\ncalls = [{ tool = \"ledger.append\", arguments = { text = \"one\" } }]\n";
const DONE: &str = "[[reply]]\ntext = \"done\"\n";

fn append(recorder: &Recorder) -> RecordedWrite {
    RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, recorder)
}

fn world(place: &Place, script: &str, recorder: &Recorder, approval: Approval) -> WorldBuilder {
    World::builder(script).tool(append(recorder).tool(approval)).on(&place.store, &place.clock)
}

async fn enqueue(world: &World) -> RunId {
    world.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.expect("enqueued")
}

#[tokio::test]
async fn a_write_of_round_one_happens_once_however_often_a_failed_round_two_is_redriven() {
    let failing = "[[reply]]\nerror = \"auth\"\n".repeat(4);
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = world(&place, &format!("{APPEND}{failing}{DONE}"), &recorder, Approval::None).build();
        let id = world.run("task").await;
        for _ in 0..4 {
            let row = world.row(id).await;
            assert_eq!((row.state, row.reason.expect("failed").as_str()), (State::Failed, "model_auth"));
            assert_eq!(world.runtime.redrive(id, World::person(), None).await.expect("redriven").state, State::Queued);
            world.claim(id).await.expect("held");
        }
        assert_eq!(world.row(id).await.state, State::Completed, "{}", place.name);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test]
async fn a_worker_gives_a_run_with_a_failing_model_back_to_the_queue_until_its_requeues_are_spent() {
    let failing = "[[reply]]\nerror = \"server\"\n".repeat(9);
    let place = Place::sqlite();
    let recorder = Recorder::default();
    let world = world(&place, &format!("{APPEND}{failing}{DONE}"), &recorder, Approval::None).build();
    let id = enqueue(&world).await;
    for requeues in 1..=3 {
        let row = world.claim(id).await.expect("held");
        assert_eq!((row.state, row.requeues), (State::Queued, requeues));
        assert_eq!(world.model.requests().len(), 1 + requeues as usize, "one attempt each time");
        assert!(world.runtime.claim(id).await.is_err(), "not due before the backoff");
        place.clock.advance(Duration::from_secs(700));
    }
    let dead = world.claim(id).await.expect("held");
    assert_eq!((dead.state, dead.reason.expect("dead").as_str()), (State::Dead, "retries_exhausted"));
    world.runtime.redrive(id, World::person(), None).await.expect("redriven");
    assert_eq!(world.claim(id).await.expect("held").requeues, 1);
    assert_eq!(recorder.count("ledger.append"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_fails_for_a_moment_is_asked_again_in_place_where_a_caller_waits() {
    let place = Place::memory();
    let recorder = Recorder::default();
    let script =
        format!("[[reply]]\nerror = \"connection\"\n[[reply]]\nerror = \"rate_limited\"\nretry_after = \"7s\"\n{DONE}");
    let begun = tokio::time::Instant::now();
    let asking = world(&place, &script, &recorder, Approval::None).build();
    let id = asking.run("task").await;
    assert_eq!((asking.row(id).await.state, asking.model.requests().len()), (State::Completed, 3));
    assert!(begun.elapsed() >= Duration::from_secs(7), "after the time the provider named");
    // One attempt more than there are: the caller is told.
    let failing = "[[reply]]\nerror = \"connection\"\n".repeat(3);
    let failed = world(&place, &failing, &recorder, Approval::None).build();
    let id = failed.run("task").await;
    let row = failed.row(id).await;
    assert_eq!((row.state, row.reason.expect("failed").as_str()), (State::Failed, "model_unavailable"));
    assert_eq!(failed.model.requests().len(), 3);
}

#[tokio::test]
async fn a_run_that_dies_around_its_approved_write_asks_nobody_again_and_writes_once() {
    // Before the first call of the turn, after the write before the next model call, and right after the record.
    for (point, visit) in [(Point::BeforeStamp, 1), (Point::BeforeModel, 1), (Point::AfterRecord, 1)] {
        for place in Place::each() {
            let script = format!("{APPEND}{DONE}");
            let recorder = Recorder::default();
            let first = world(&place, &script, &recorder, Approval::Required).build();
            let id = first.run("task").await;
            let park = Park::at_visit(point, visit);
            let killed = world(&place, &script, &recorder, Approval::Required).probe(park.clone()).process("test:2").build();
            let decided = killed.runtime.decide(id, World::decision(killed.digest(id).await, true)).await.expect("taken");
            park.kill(decided.execution.expect("executes here")).await;
            let other = world(&place, &script, &recorder, Approval::Required).process("test:3").build();
            other.lapse().await;
            assert_eq!(other.row(id).await.state, State::Queued, "goes on, not abandoned");
            assert_eq!(other.claim(id).await.expect("held").state, State::Completed, "{point} {}", place.name);
            let kinds = other.kinds(id).await;
            let count = |kind| kinds.iter().filter(|k| **k == kind).count();
            assert_eq!((count("suspended"), count("approval"), count("write_stamped")), (1, 1, 1), "{kinds:?}");
            assert_eq!(recorder.count("ledger.append"), 1);
        }
    }
}

#[tokio::test]
async fn of_two_approved_writes_killed_after_the_first_only_the_second_runs() {
    let script = format!(
        "[[reply]]\ncalls = [{{ tool = \"ledger.append\", arguments = {{ text = \"1\" }} }}, {{ tool = \"ledger.append\", arguments = {{ text = \"2\" }} }}]\n{DONE}"
    );
    for place in Place::each() {
        let recorder = Recorder::default();
        let first = world(&place, &script, &recorder, Approval::Required).build();
        let id = first.run("task").await;
        let park = Park::at(Point::AfterRecord);
        let killed = world(&place, &script, &recorder, Approval::Required).probe(park.clone()).process("test:2").build();
        let decided = killed.runtime.decide(id, World::decision(killed.digest(id).await, true)).await.expect("taken");
        park.kill(decided.execution.expect("executes here")).await;
        let other = world(&place, &script, &recorder, Approval::Required).process("test:3").build();
        other.lapse().await;
        assert_eq!(other.claim(id).await.expect("held").state, State::Completed);
        let texts: Vec<String> = recorder.entries().iter().map(|e| e.arguments["text"].to_string()).collect();
        assert_eq!(texts, ["\"1\"", "\"2\""], "{}", place.name);
    }
}

#[tokio::test]
async fn killed_at_each_point_each_kind_of_write_ends_as_the_protocol_says() {
    use Point::{AfterRecord, AfterReturn, AfterStamp, BeforeModel, BeforeStamp, InTool};
    let script = format!("{APPEND}{DONE}");
    for effect in [WriteEffect::Idempotent, WriteEffect::NonIdempotent] {
        for point in [BeforeModel, BeforeStamp, AfterStamp, InTool, AfterReturn, AfterRecord] {
            for place in Place::each() {
                let recorder = Recorder::default();
                let park = Park::at(point);
                let tool = || RecordedWrite::new("ledger.append", effect, &recorder).tool(Approval::None);
                let build = || World::builder(&script).tool(tool()).on(&place.store, &place.clock);
                let killed = build().probe(park.clone()).build();
                let id = enqueue(&killed).await;
                park.kill(killed.runtime.claim(id).await.expect("claimed")).await;
                let other = build().process("test:2").build();
                other.lapse().await;
                let fenced = matches!(point, AfterStamp | InTool | AfterReturn);
                let row = other.row(id).await;
                if fenced && effect == WriteEffect::NonIdempotent {
                    assert_eq!(row.reason.expect("dead").as_str(), "write_in_doubt", "{point}");
                    assert!(recorder.count("ledger.append") <= 1);
                    continue;
                }
                assert_eq!((row.state, row.fence.is_some()), (State::Queued, fenced), "{point}");
                assert_eq!(other.claim(id).await.expect("held").state, State::Completed, "{point}");
                let entries = recorder.entries();
                assert!(entries.len() <= if fenced { 2 } else { 1 }, "{point}: {entries:?}");
                let first = entries.first().expect("entered");
                let same = |e: &leasehold_testkit::world::Entered| e.key == first.key && e.arguments == first.arguments;
                assert!(entries.iter().all(same), "repeats carry the same key and arguments");
                assert_eq!(other.kinds(id).await.contains(&"write_restamped"), fenced);
            }
        }
    }
}

#[tokio::test]
async fn a_run_that_waits_is_listed_and_decided_a_day_later_by_a_newer_binary() {
    let place = Place::sqlite();
    let recorder = Recorder::default();
    let script = format!("{APPEND}{DONE}");
    let old = world(&place, &script, &recorder, Approval::Required).build();
    let id = old.run("task").await;
    let version = old.row(id).await;
    drop(old);
    place.clock.advance(Duration::from_secs(86_400));
    let store = SqliteStore::open(place.file.as_ref().expect("a file"), Arc::clone(&place.clock) as _).expect("opens");
    let newer = World::builder(&script)
        .tool(append(&recorder).tool(Approval::Required))
        .on(&(store as Arc<_>), &place.clock)
        .process("test:2")
        .agent(|agent| agent.system("A newer prompt."))
        .build();
    newer.runtime.sweep(50, false).await.expect("swept");
    assert_eq!(newer.row(id).await, version);
    let inbox = newer.runtime.inbox(10).await.expect("listed");
    assert_eq!((inbox.len(), inbox[0].0, inbox[0].1.id), (1, InboxKind::Approval, id));
    assert_eq!(newer.approve(id).await.expect("held").state, State::Completed);
    assert_eq!(recorder.count("ledger.append"), 1);
}

#[tokio::test]
async fn over_a_hundred_rounds_what_is_stored_grows_with_what_is_new() {
    let result = "r".repeat(5_000);
    let round = |n: usize| format!("[[reply]]\ncalls = [{{ tool = \"notes.read\", arguments = {{ text = \"{n:03}\" }} }}]\n");
    let script: String = (0..100).map(round).collect::<String>() + DONE;
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = World::builder(&script)
            .tool(RecordedRead::new("notes.read", &recorder).answer(ReadAnswer::ok(result.as_str())).tool())
            .agent(|agent| AgentSpec { max_rounds: 200, ..agent })
            .on(&place.store, &place.clock)
            .build();
        let mut commits = world.runtime.engine().subscribe();
        let id = world.run("task").await;
        assert_eq!(world.row(id).await.state, State::Completed);
        let entries = world.entries(id).await;
        let mut rounds: Vec<(usize, usize)> = Vec::new();
        for entry in &entries {
            if entry.body.kind() == "model_reply" {
                rounds.push((0, 0));
            }
            if let Some((count, bytes)) = rounds.last_mut() {
                *count += 1;
                *bytes += entry.body.encode().len();
            }
        }
        assert_eq!(rounds.len(), 101);
        let (first, last) = (rounds[0], rounds[99]);
        assert_eq!(first.0, last.0, "as many entries in round 100 as in round 1");
        assert!(last.1 < first.1 + 50 && last.1 < 6_000, "round 1: {} bytes, round 100: {} bytes", first.1, last.1);
        let row = serde_json::to_vec(&world.row(id).await).expect("serialises").len();
        assert!(row < 3_000, "the row keeps the open turn only: {row} bytes");
        // One commit for the start, two a round, one for the answer.
        let counted = std::iter::from_fn(|| commits.try_recv().ok()).filter(|c| c.run == id).count();
        assert_eq!(counted, 202, "{}", place.name);
    }
}

#[tokio::test]
async fn rounds_tokens_and_cost_are_those_of_the_whole_run_over_two_suspends_and_a_crash() {
    let price = Price { input: 1.0, output: 2.0, cached: 0.5 };
    let script = format!("{APPEND}{}{}{DONE}", APPEND.replace("one", "two"), APPEND.replace("one", "three"));
    for cap in [10, 3] {
        for place in Place::each() {
            let recorder = Recorder::default();
            let build = || {
                world(&place, &script, &recorder, Approval::Required).agent(move |agent| AgentSpec {
                    price: Some(price),
                    max_rounds: cap,
                    ..agent
                })
            };
            let first = build().build();
            let id = first.run("task").await;
            first.approve(id).await.expect("held");
            // The second approval's segment dies after its write.
            let park = Park::at(Point::AfterRecord);
            let killed = build().probe(park.clone()).process("test:2").build();
            let decided = killed.runtime.decide(id, World::decision(killed.digest(id).await, true)).await.expect("taken");
            park.kill(decided.execution.expect("here")).await;
            let other = build().process("test:3").build();
            other.lapse().await;
            other.claim(id).await.expect("held");
            other.approve(id).await.expect("held");
            let row = other.row(id).await;
            let story = other.story(id).await;
            // A cap of three: the fourth reply is the closing answer, without tools.
            assert_eq!((row.state, row.rounds, story.truncated), (State::Completed, 4, cap == 3), "{}", place.name);
            let sum = other.entries(id).await.iter().fold(Usage::default(), |sum, entry| match &entry.body {
                leasehold::run::EntryBody::ModelReply(reply) => sum.plus(reply.usage),
                _ => sum,
            });
            assert_eq!(row.usage, sum);
            let cost = row.usage.input_tokens * 1_000 + row.usage.output_tokens * 2_000;
            assert_eq!((row.usage.cost_nano_usd, recorder.count("ledger.append")), (cost, 3));
            assert!(row.usage.input_tokens > 0);
        }
    }
}

#[tokio::test]
async fn after_the_last_round_there_is_one_closing_answer_without_tools() {
    let recorder = Recorder::default();
    let script = format!("{APPEND}{}{DONE}", APPEND.replace("one", "two"));
    let place = Place::memory();
    for closing_asks_for_calls in [true, false] {
        let script = if closing_asks_for_calls { script.clone() } else { format!("{APPEND}{DONE}") };
        let world =
            world(&place, &script, &recorder, Approval::None).agent(|agent| AgentSpec { max_rounds: 1, ..agent }).build();
        let id = world.run("task").await;
        let story = world.story(id).await;
        assert_eq!((world.row(id).await.state, story.truncated), (State::Completed, true));
        let requests = world.model.requests();
        assert_eq!((requests.len(), requests[0].tools.len(), requests[1].tools.len()), (2, 1, 0));
        assert!(requests[1].system.contains("closing answer"));
        if closing_asks_for_calls {
            assert_eq!(story.calls[&CallId::of(2, 0)].outcome.as_ref().expect("refused").outcome, Outcome::Refused);
        }
    }
    assert_eq!(recorder.count("ledger.append"), 2, "one in each run");
}

#[tokio::test]
async fn a_cancel_aborts_a_model_call_and_a_read_and_waits_for_a_write() {
    struct Slow(leasehold::agent::tool::ToolSpec, Arc<tokio::sync::Notify>);
    #[async_trait::async_trait]
    impl leasehold::agent::tool::ReadTool for Slow {
        fn spec(&self) -> &leasehold::agent::tool::ToolSpec {
            &self.0
        }
        async fn call(&self, _: &leasehold::agent::tool::Arguments) -> ReadAnswer {
            self.1.notify_one();
            std::future::pending().await
        }
    }
    let reading = Arc::new(tokio::sync::Notify::new());
    let slow = Slow(leasehold_testkit::world::spec("notes.read"), Arc::clone(&reading));
    let script = "[[reply]]\ncalls = [{ tool = \"notes.read\", arguments = { text = \"1\" } }]\n";
    let world = World::builder(script).tool(leasehold::agent::tool::Tool::Read(Arc::new(slow))).build();
    let execution = world.start("task").await;
    let id = execution.run();
    let segment = execution.spawn();
    reading.notified().await;
    world.runtime.cancel(id, World::person(), None).await.expect("cancelled");
    assert_eq!(segment.await.expect("joined").expect("held").state, State::Cancelled);
    let outcome = world.story(id).await.calls[&CallId::of(1, 0)].outcome.clone().expect("closed");
    assert_eq!(outcome.outcome, Outcome::NotRun);

    // A write that ends in a doubt under a cancel: never stamped again, and cancelled once somebody knows.
    for place in Place::each() {
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let answer = WriteAnswer::Unknown { why: "reset".into() };
        let tool = append(&recorder).inside(park.clone()).answers([answer]).tool(Approval::None);
        let world = World::builder(APPEND).tool(tool).on(&place.store, &place.clock).build();
        let id = enqueue(&world).await;
        let segment = world.runtime.claim(id).await.expect("claimed").spawn();
        park.reached().await;
        world.runtime.cancel(id, World::person(), None).await.expect("cancelled");
        park.release();
        let doubted = segment.await.expect("joined").expect("held");
        assert_eq!((doubted.state, doubted.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"));
        assert!(world.runtime.redrive(id, World::person(), None).await.is_err());
        place.clock.advance(Duration::from_secs(31));
        let said = leasehold::Resolution {
            call_id: CallId::of(1, 0),
            fence_epoch: None,
            outcome: leasehold::run::ResolutionKind::NotLanded,
            result: None,
            note: None,
            by: World::person(),
        };
        assert_eq!(world.runtime.resolve(id, said).await.expect("resolved").row.state, State::Cancelled);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test]
async fn a_run_whose_process_dies_with_its_caller_is_abandoned_and_listed() {
    let recorder = Recorder::default();
    for place in Place::each() {
        let park = Park::at(Point::BeforeModel);
        let killed = world(&place, DONE, &recorder, Approval::None).probe(park.clone()).build();
        let id = park.kill(killed.start("task").await).await;
        let other = world(&place, DONE, &recorder, Approval::None).process("test:2").build();
        other.lapse().await;
        let row = other.row(id).await;
        assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "abandoned"));
        assert_eq!(other.runtime.list(&Filter::default(), None, 10).await.expect("listed").len(), 1);
        other.runtime.redrive(id, World::person(), None).await.expect("redriven");
        assert_eq!(other.claim(id).await.expect("held").state, State::Completed);
    }
}

/// Counts who is inside at once.
#[derive(Default)]
struct Crowd {
    inside: AtomicUsize,
    most: AtomicUsize,
}

#[async_trait::async_trait]
impl Inside for Crowd {
    async fn inside(&self, _: &WritePermit, _: &Arguments) -> Option<WriteAnswer> {
        self.most.fetch_max(self.inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        None
    }
}

#[tokio::test]
async fn a_pool_works_the_whole_queue_and_keeps_an_agents_cap_on_segments() {
    for cap in [1, 3] {
        for place in Place::each() {
            let recorder = Recorder::default();
            let crowd = Arc::new(Crowd::default());
            let world = World::builder(&format!("{APPEND}{DONE}"))
                .tool(append(&recorder).inside(crowd.clone()).tool(Approval::None))
                .agent(move |agent| AgentSpec { concurrency: cap, ..agent })
                .on(&place.store, &place.clock)
                .build();
            for _ in 0..6 {
                enqueue(&world).await;
            }
            let config = PoolConfig { concurrency: 4, sweep_interval: Duration::from_secs(3_600), ..PoolConfig::drain() };
            let worked = world.runtime.work(config).await;
            assert!(worked.executed.iter().all(|(_, ended)| ended.as_ref().is_ok_and(|row| row.state == State::Completed)));
            assert_eq!((worked.executed.len(), recorder.count("ledger.append")), (6, 6), "{}", place.name);
            assert!(crowd.most.load(Ordering::SeqCst) <= cap, "{cap}: {:?}", crowd.most);
        }
    }
}

/// A tool whose process dies in it, and the same tool as another process has it: there it goes somewhere else.
async fn killed_in_a_tool_that_moves(
    place: &Place,
    approval: Approval,
    tool: impl Fn() -> RecordedWrite,
) -> (RunId, World, World) {
    let script = format!("{APPEND}{DONE}");
    let build = |tool: RecordedWrite| World::builder(&script).tool(tool.tool(approval)).on(&place.store, &place.clock);
    let park = Park::at(Point::AfterReturn);
    let killed = build(tool()).probe(park.clone()).build();
    let id = enqueue(&killed).await;
    if approval == Approval::Required {
        killed.claim(id).await.expect("held");
        let decided = killed.runtime.decide(id, World::decision(killed.digest(id).await, true)).await.expect("taken");
        park.kill(decided.execution.expect("executes here")).await;
    } else {
        park.kill(killed.runtime.claim(id).await.expect("claimed")).await;
    }
    let moved = build(tool().spec(|spec| spec.endpoint = "elsewhere".into())).process("test:2").build();
    moved.lapse().await;
    place.clock.advance(Duration::from_secs(60));
    (id, moved, build(tool()).process("test:3").build())
}

#[tokio::test]
async fn an_unsettled_idempotent_write_is_repeated_only_where_it_went() {
    for approval in [Approval::None, Approval::Required] {
        for place in Place::each() {
            let recorder = Recorder::default();
            let tool = || RecordedWrite::new("ledger.append", WriteEffect::Idempotent, &recorder);
            let (id, moved, as_it_was) = killed_in_a_tool_that_moves(&place, approval, tool).await;
            let row = moved.claim(id).await.expect("held");
            assert_eq!((row.state, row.fence.is_some()), (State::Queued, true), "{} {approval:?}", place.name);
            assert_eq!(recorder.count("ledger.append"), 1, "nothing goes where no attempt went");
            place.clock.advance(Duration::from_secs(60));
            assert_eq!(as_it_was.claim(id).await.expect("held").state, State::Completed);
            let keys: Vec<String> = recorder.entries().iter().map(|e| e.key.clone()).collect();
            assert_eq!(keys, vec![id.idempotency_key(&CallId::of(1, 0)); 2]);
        }
    }
}

#[tokio::test]
async fn what_an_unsettled_write_did_is_not_asked_where_it_did_not_go() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let tool = || {
            let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder);
            tool.verifies([Verified::Absent, Verified::Absent], true)
        };
        let (id, moved, _) = killed_in_a_tool_that_moves(&place, Approval::None, tool).await;
        let row = moved.claim(id).await.expect("held");
        assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"), "{}", place.name);
        assert_eq!(recorder.count("ledger.append"), 1, "absent there says nothing about here");
        let why = moved.story(id).await.end.expect("dead").detail;
        assert!(why.contains("elsewhere") && why.contains("test:ledger.append"), "{why}");
    }
}
