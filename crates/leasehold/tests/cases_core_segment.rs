//! Segments and their fences: what a store that fails, a person who leaves and a lease that ends do to a write.
#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use async_trait::async_trait;
use leasehold::{
    Runtime, StartError, StartRun,
    agent::{
        tool::{Approval, Arguments, WriteAnswer, WriteEffect, WritePermit},
        unrecorded::WRITE_WITHOUT_DURABLE_EXECUTION,
    },
    run::{CallId, Entry, EntryBody, Fence, Outcome, RunId, State, Via, WriteId},
    store::{Filter, Held, Store, Write, sqlite::SqliteStore},
    worker::{Point, SegmentError},
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op,
    park::{Park, Place},
    world::{Inside, RecordedRead, RecordedWrite, Recorder, World, WorldBuilder},
};
use std::{
    fmt::{self, Write as _},
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};
use tracing::field::{Field, Visit};

const APPEND: &str = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "one" } }]
[[reply]]
text = "done"
"#;

fn append(recorder: &Recorder) -> RecordedWrite {
    RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, recorder)
}

/// A place whose store fails on command.
struct Faulty {
    place: Place,
    faults: Arc<FaultyStore>,
    store: Arc<dyn Store>,
}

impl Faulty {
    fn each() -> [Self; 2] {
        Place::each().map(|place| {
            let faults = FaultyStore::new(Arc::clone(&place.store));
            Self { store: Arc::clone(&faults) as _, faults, place }
        })
    }
    fn world(&self, script: &str) -> WorldBuilder {
        World::builder(script).on(&self.store, &self.place.clock)
    }
    fn second(&self, script: &str) -> WorldBuilder {
        self.world(script).process("test:2")
    }
    /// The leases of this world end: neither a renewal nor any other write comes through, and their time passes.
    fn outlive(&self) {
        self.faults.arm(Fault::on(Op::Renew, How::Before));
        self.faults.arm(Fault::on(Op::Write, How::Before));
        self.place.clock.advance(Duration::from_secs(61));
    }
    /// Keeps every write that is sent from now on.
    fn spy(&self) -> Arc<Mutex<Vec<Write>>> {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let keep = Arc::clone(&seen);
        self.faults.arm(Fault::on(Op::Write, How::Before).when(move |write| {
            keep.lock().expect("not poisoned").push(write.clone());
            false
        }));
        seen
    }
}

fn kinds(write: &Write) -> Vec<&'static str> {
    write.entries.iter().map(|e| e.body.kind()).collect()
}

async fn enqueue(world: &World) -> RunId {
    world.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.expect("enqueued")
}

/// Looks at the row from outside while the tool runs, on a connection of its own where there is a file.
struct Look {
    store: Arc<dyn Store>,
    file: Option<PathBuf>,
    seen: Mutex<Option<Fence>>,
}

#[async_trait]
impl Inside for Look {
    async fn inside(&self, permit: &WritePermit, _: &Arguments) -> Option<WriteAnswer> {
        let clock = leasehold::clock::ManualClock::new();
        let store = match &self.file {
            Some(file) => SqliteStore::open(file, clock).expect("opens") as Arc<dyn Store>,
            None => Arc::clone(&self.store),
        };
        let row = store.load(permit.run()).await.expect("readable").expect("there");
        *self.seen.lock().expect("not poisoned") = row.fence;
        None
    }
}

#[tokio::test]
async fn the_stamp_is_on_the_row_while_the_tool_runs_and_goes_in_the_transaction_of_the_outcome() {
    for faulty in Faulty::each() {
        let recorder = Recorder::default();
        let (store, file) = (Arc::clone(&faulty.place.store), faulty.place.file.clone());
        let look = Arc::new(Look { store, file, seen: Mutex::default() });
        let world = faulty.world(APPEND).tool(append(&recorder).inside(look.clone()).tool(Approval::None)).build();
        let writes = faulty.spy();
        let id = world.run("append").await;
        let fence = look.seen.lock().expect("not poisoned").clone().expect("stamped while it runs");
        assert_eq!(fence.idempotency_key, id.idempotency_key(&CallId::of(1, 0)));
        assert_eq!(fence.idempotency_key, recorder.entries()[0].key);
        let writes = writes.lock().expect("not poisoned").clone();
        let stamp = writes.iter().find(|w| kinds(w).contains(&"write_stamped")).expect("stamped");
        assert_eq!(kinds(stamp), ["model_reply", "write_stamped"], "the stamp goes with what led to it");
        assert!(stamp.next.fence.is_some());
        let outcome = writes.iter().find(|w| kinds(w).contains(&"tool_outcome")).expect("recorded");
        assert_eq!((kinds(outcome), outcome.next.fence.clone()), (vec!["tool_outcome"], None));
        assert_eq!(world.row(id).await.fence, None);
    }
}

#[tokio::test]
async fn a_store_that_fails_at_the_stamp_for_a_moment_costs_nothing() {
    for how in [How::Before, How::After] {
        for faulty in Faulty::each() {
            let recorder = Recorder::default();
            let world = faulty.world(APPEND).tool(append(&recorder).tool(Approval::None)).build();
            let writes = faulty.spy();
            faulty.faults.arm(Fault::on(Op::Write, how).on_entry("write_stamped").times(2));
            let id = world.run("append").await;
            assert_eq!(world.row(id).await.state, State::Completed);
            assert_eq!(recorder.count("ledger.append"), 1);
            let writes = writes.lock().expect("not poisoned").clone();
            let ids: Vec<WriteId> = writes.iter().filter(|w| kinds(w).contains(&"write_stamped")).map(|w| w.write_id).collect();
            assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0]), "repeated by its id: {ids:?}");
            let stamped = world.kinds(id).await.into_iter().filter(|k| *k == "write_stamped").count();
            assert_eq!(stamped, 1, "{how:?}");
        }
    }
}

#[tokio::test]
async fn a_store_that_fails_at_the_stamp_until_the_deadline_lets_no_tool_be_entered_and_leaves_no_doubt() {
    for how in [How::Before, How::After, How::Hang, How::HangAfter] {
        for faulty in Faulty::each() {
            let recorder = Recorder::default();
            let world = faulty.world(APPEND).tool(append(&recorder).tool(Approval::None)).ttl(Duration::from_secs(2)).build();
            let id = enqueue(&world).await;
            let execution = world.runtime.claim(id).await.expect("claimed");
            faulty.faults.arm(Fault::on(Op::Write, how).on_entry("write_stamped"));
            let segment = execution.spawn();
            faulty.faults.wait_for_hits(1).await;
            faulty.outlive();
            assert!(matches!(segment.await.expect("joined"), Err(SegmentError::Lost(_))), "{how:?}");
            assert_eq!(recorder.entries(), [], "{how:?}");
            faulty.faults.heal();
            world.lapse().await;
            assert!(world.runtime.engine().late_outcomes_recorded(Duration::from_secs(20)).await);
            let row = world.row(id).await;
            assert_eq!((row.state, &row.fence), (State::Queued, &None), "{how:?} {}", faulty.place.name);
            let other = faulty.second(APPEND).tool(append(&recorder).tool(Approval::None)).build();
            assert_eq!(other.claim(id).await.expect("held").state, State::Completed);
            assert_eq!(recorder.count("ledger.append"), 1);
        }
    }
}

#[tokio::test]
async fn a_store_that_fails_at_the_outcome_for_a_moment_costs_nothing() {
    for how in [How::Before, How::After] {
        for faulty in Faulty::each() {
            let recorder = Recorder::default();
            let world = faulty.world(APPEND).tool(append(&recorder).tool(Approval::None)).build();
            let writes = faulty.spy();
            faulty.faults.arm(Fault::on(Op::Write, how).on_entry("tool_outcome").times(3));
            let id = world.run("append").await;
            assert_eq!((world.row(id).await.state, recorder.count("ledger.append")), (State::Completed, 1));
            let writes = writes.lock().expect("not poisoned").clone();
            let ids: Vec<WriteId> = writes.iter().filter(|w| kinds(w).contains(&"tool_outcome")).map(|w| w.write_id).collect();
            assert!(ids.len() == 4 && ids.iter().all(|id| *id == ids[0]), "repeated by its id: {ids:?}");
            let outcomes = world.kinds(id).await.into_iter().filter(|k| *k == "tool_outcome").count();
            assert_eq!(outcomes, 1, "one result");
        }
    }
}

/// What is logged on this thread, as text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl Visit for Log {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        writeln!(self.0.lock().expect("not poisoned"), "{field}={value:?}").expect("to memory");
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("leasehold")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn a_store_that_fails_at_the_outcome_until_the_deadline_leaves_a_doubt_that_the_late_outcome_settles() {
    for how in [How::Before, How::After, How::Hang] {
        for faulty in Faulty::each() {
            let log = Log::default();
            let logging = tracing::subscriber::set_default(log.clone());
            let recorder = Recorder::default();
            let secret = || append(&recorder).answers([WriteAnswer::done("secret result")]).tool(Approval::None);
            let world = faulty.world(APPEND).tool(secret()).ttl(Duration::from_secs(2)).build();
            let id = enqueue(&world).await;
            let execution = world.runtime.claim(id).await.expect("claimed");
            faulty.faults.arm(Fault::on(Op::Write, how).on_entry("tool_outcome"));
            let segment = execution.spawn();
            faulty.faults.wait_for_hits(1).await;
            faulty.outlive();
            let ended = segment.await.expect("joined");
            if how == How::After {
                // It was applied each time: found at the last look, and the run goes on as if acknowledged until the lease ends.
                assert!(matches!(ended, Err(SegmentError::Lost(_))));
                assert_eq!(world.row(id).await.fence, None);
            } else {
                assert!(matches!(ended, Err(SegmentError::Lost(_))));
                assert!(world.row(id).await.fence.is_some(), "nothing is settled without a record");
                faulty.faults.heal();
                world.runtime.sweep(10, false).await.expect("swept");
                let row = world.row(id).await;
                assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"));
            }
            faulty.faults.heal();
            world.lapse().await;
            assert!(world.runtime.engine().late_outcomes_recorded(Duration::from_secs(20)).await);
            assert_eq!(world.row(id).await.state, State::Queued, "{how:?} {}", faulty.place.name);
            let other = faulty.second(APPEND).tool(append(&recorder).tool(Approval::None)).build();
            assert_eq!(other.claim(id).await.expect("held").state, State::Completed);
            assert_eq!(recorder.count("ledger.append"), 1);
            assert_eq!(other.results(), [("t1c0".into(), "secret result".into())]);
            let outcome = other.story(id).await.calls[&CallId::of(1, 0)].outcome.clone().expect("known");
            assert_eq!(outcome.via, if how == How::After { Via::Tool } else { Via::LateOutcome });
            drop(logging);
            let said = log.0.lock().expect("not poisoned").clone();
            assert!(!said.contains("secret result"), "no content in the log");
            if how != How::After {
                let key = id.idempotency_key(&CallId::of(1, 0));
                assert!(said.contains("call=t1c0") && said.contains(&key) && said.contains("class=done"), "{said}");
            }
        }
    }
}

#[tokio::test]
async fn a_final_update_that_fails_does_not_execute_the_run_again() {
    for (how, times) in [(How::Before, 2), (How::After, 1), (How::After, 1000), (How::HangAfter, 1)] {
        for faulty in Faulty::each() {
            let recorder = Recorder::default();
            let world = faulty.world(APPEND).tool(append(&recorder).tool(Approval::None)).ttl(Duration::from_secs(2)).build();
            let execution = world.start("append").await;
            let id = execution.run();
            faulty.faults.arm(Fault::on(Op::Write, how).on_entry("settled").times(times));
            let segment = execution.spawn();
            faulty.faults.wait_for_hits(1).await;
            if times == 1000 {
                faulty.outlive();
            }
            let ended = segment.await.expect("joined");
            assert_eq!(ended.expect("its own last write is recognised").state, State::Completed, "{how:?} {times}");
            faulty.faults.heal();
            world.lapse().await;
            assert_eq!(world.row(id).await.state, State::Completed);
            assert_eq!((world.model.requests().len(), recorder.count("ledger.append")), (2, 1));
            assert!(world.runtime.claim(id).await.is_err());
        }
    }
}

#[tokio::test]
async fn a_final_update_that_never_arrives_makes_no_write_happen_again() {
    for faulty in Faulty::each() {
        let recorder = Recorder::default();
        let world = faulty.world(APPEND).tool(append(&recorder).tool(Approval::None)).build();
        let id = enqueue(&world).await;
        let execution = world.runtime.claim(id).await.expect("claimed");
        faulty.faults.arm(Fault::on(Op::Write, How::Before).on_entry("settled"));
        let segment = execution.spawn();
        faulty.faults.wait_for_hits(1).await;
        faulty.place.clock.advance(Duration::from_secs(61));
        assert!(matches!(segment.await.expect("joined"), Err(SegmentError::Lost(_))));
        faulty.faults.heal();
        world.lapse().await;
        let other = faulty.second(APPEND).tool(append(&recorder).tool(Approval::None)).build();
        assert_eq!(other.claim(id).await.expect("held").state, State::Completed);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test]
async fn with_the_store_down_at_the_start_reads_work_and_every_write_is_refused_before_it_happens() {
    let script = r#"
[[reply]]
calls = [{ tool = "notes.read", arguments = { text = "1" } }, { tool = "ledger.append", arguments = { text = "2" } }]
[[reply]]
text = "answer"
"#;
    for hung in [false, true] {
        for faulty in Faulty::each() {
            let recorder = Recorder::default();
            let world = faulty
                .world(script)
                .tool(RecordedRead::new("notes.read", &recorder).tool())
                .tool(append(&recorder).tool(Approval::None))
                .ttl(Duration::from_millis(300))
                .build();
            if hung {
                faulty.faults.arm(Fault::on(Op::Insert, How::Hang));
            } else {
                faulty.faults.lose();
            }
            let start = StartRun::new("a", "task", World::person());
            assert!(matches!(world.runtime.start(start.clone()).await.err(), Some(StartError::Unavailable(_))));
            let run = Runtime::unrecorded(&world.runtime.registry(), start).expect("a request");
            let end = run.run().await.expect("answers");
            assert_eq!((end.output.as_str(), end.truncated, end.refused_writes), ("answer", false, 1));
            assert_eq!((recorder.count("notes.read"), recorder.count("ledger.append")), (1, 0));
            let told = world.results();
            assert_eq!(told[0].1, "1");
            assert!(told[1].1.contains(WRITE_WITHOUT_DURABLE_EXECUTION), "{told:?}");
            assert_eq!(end.story.calls[&CallId::of(1, 1)].outcome.as_ref().expect("refused").outcome, Outcome::Refused);
            if !hung {
                faulty.faults.heal();
                let listed = world.runtime.list(&Filter::default(), None, 10).await.expect("listed");
                assert_eq!(listed, [], "nothing pretends to be resumable");
            }
        }
    }
}

#[tokio::test]
async fn a_start_whose_answer_is_lost_is_one_run() {
    for faulty in Faulty::each() {
        let recorder = Recorder::default();
        let world = faulty.world(APPEND).tool(append(&recorder).tool(Approval::None)).build();
        faulty.faults.fail_next(Op::Insert, How::After);
        let id = world.run("append").await;
        assert_eq!(world.row(id).await.state, State::Completed);
        assert_eq!(world.runtime.list(&Filter::default(), None, 10).await.expect("listed").len(), 1);
        // And an enqueue, where the caller repeats it with its key.
        faulty.faults.arm(Fault::on(Op::Insert, How::After).times(2));
        let key = || Some("order-7".to_owned());
        let start = StartRun::new("a", "append", World::person());
        assert!(world.runtime.enqueue(start.clone(), key()).await.is_err());
        let first = world.runtime.enqueue(start.clone(), key()).await.expect("found");
        assert_eq!(world.runtime.enqueue(start, key()).await.expect("found"), first);
        assert_eq!(world.runtime.list(&Filter::default(), None, 10).await.expect("listed").len(), 2);
        let other = world.runtime.enqueue(StartRun::new("a", "other", World::person()), key()).await;
        assert_eq!(other.err(), Some(StartError::KeyConflict(first)));
    }
}

#[tokio::test]
async fn whoever_watches_may_leave_in_the_middle_and_the_run_goes_on() {
    for faulty in Faulty::each() {
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let world = faulty.world(APPEND).tool(append(&recorder).inside(park.clone()).tool(Approval::None)).build();
        let execution = world.start("append").await;
        let id = execution.run();
        let runtime = world.runtime.clone();
        let watching = tokio::spawn(async move {
            let mut next = 0;
            loop {
                next += runtime.wait_events(id, next).await.expect("readable").len() as u64;
            }
        });
        let waiting = execution.spawn();
        park.reached().await;
        watching.abort();
        drop(waiting);
        park.release();
        let mut next = 0;
        while !world.row(id).await.state.is_settled() {
            next += world.runtime.wait_events(id, next).await.expect("readable").len() as u64;
        }
        assert_eq!(world.row(id).await.state, State::Completed);
        let entries = world.entries(id).await;
        assert!(entries.iter().zip(0..).all(|(entry, sequence)| entry.sequence == sequence));
        let expected = ["started", "model_reply", "write_stamped", "tool_outcome", "model_reply", "settled"];
        assert_eq!(entries.iter().map(|e| e.body.kind()).collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn two_renewals_at_one_time_and_one_in_flight_at_the_end_raise_no_alarm() {
    for how in [How::Hang, How::HangAfter] {
        for faulty in Faulty::each() {
            let recorder = Recorder::default();
            let park = Park::in_tool();
            let tool = || append(&recorder).inside(park.clone()).tool(Approval::None);
            let world = faulty.world(APPEND).tool(tool()).ttl(Duration::from_millis(300)).build();
            let execution = world.start("append").await;
            let row = execution.row().clone();
            let held = Held { id: row.id, epoch: row.epoch, lease_id: row.lease.expect("held").lease_id };
            let segment = execution.spawn();
            park.reached().await;
            let mut renewer = faulty.place.store.renewer().expect("a connection");
            for _ in 0..2 {
                let looks = renewer.renew(&[held], Duration::from_millis(300)).expect("renewed");
                assert!(looks.len() == 1 && looks[0].held, "the clock stands still, and both find it held");
            }
            faulty.faults.arm(Fault::on(Op::Renew, how).times(1));
            faulty.faults.wait_for_hits(1).await;
            park.release();
            let ended = segment.await.expect("joined").expect("no false alarm");
            faulty.faults.heal();
            assert_eq!(ended.state, State::Completed);
            let again = world.start("append").await.finish().await.expect("no false alarm");
            assert_eq!(again.state, State::Completed);
        }
    }
}

#[tokio::test]
async fn a_paused_segment_that_wakes_after_a_takeover_changes_nothing() {
    for point in [Point::BeforeModel, Point::BeforeStamp] {
        for faulty in Faulty::each() {
            let recorder = Recorder::default();
            let park = Park::at(point);
            let tool = || append(&recorder).tool(Approval::None);
            let paused = faulty.world(APPEND).tool(tool()).probe(park.clone()).build();
            let id = enqueue(&paused).await;
            let segment = paused.runtime.claim(id).await.expect("claimed").spawn();
            park.reached().await;
            let other = faulty.second(APPEND).tool(tool()).build();
            other.lapse().await;
            let ended = other.claim(id).await.expect("held");
            assert_eq!(ended.state, State::Completed);
            park.release();
            assert!(matches!(segment.await.expect("joined"), Err(SegmentError::Lost(_))), "{point}");
            assert_eq!(other.row(id).await, ended, "{point}");
            assert_eq!(recorder.count("ledger.append"), 1);
        }
    }
}

#[tokio::test]
async fn stamped_and_then_out_of_trust_is_not_started_and_no_doubt() {
    for swept in [false, true] {
        for faulty in Faulty::each() {
            let recorder = Recorder::default();
            let park = Park::at(Point::AfterStamp);
            let tool = || append(&recorder).tool(Approval::None);
            let world = faulty.world(APPEND).tool(tool()).probe(park.clone()).build();
            let id = enqueue(&world).await;
            let segment = world.runtime.claim(id).await.expect("claimed").spawn();
            park.reached().await;
            // No renewal comes through any more.
            faulty.faults.arm(Fault::on(Op::Renew, How::Before));
            faulty.place.clock.advance(Duration::from_secs(61));
            if swept {
                world.runtime.sweep(10, false).await.expect("swept");
                assert_eq!(world.row(id).await.reason.expect("dead").as_str(), "write_in_doubt");
            }
            park.release();
            let ended = segment.await.expect("joined");
            if !swept {
                // The unstamp is the holder's own, and renews: the same segment goes on and enters it under a new stamp.
                assert_eq!(ended.expect("still the holder").state, State::Completed);
            } else {
                assert!(matches!(ended, Err(SegmentError::Lost(_))));
                assert_eq!(recorder.entries(), [], "the tool is not entered");
                assert!(world.runtime.engine().late_outcomes_recorded(Duration::from_secs(20)).await);
                let row = world.row(id).await;
                assert_eq!((row.state, &row.fence), (State::Queued, &None), "{row:?}");
                faulty.faults.heal();
                let other = faulty.second(APPEND).tool(tool()).build();
                assert_eq!(other.claim(id).await.expect("held").state, State::Completed);
            }
            assert!(world.kinds(id).await.contains(&"write_not_started"));
            assert_eq!(recorder.count("ledger.append"), 1);
        }
    }
}

#[tokio::test]
async fn two_processes_of_one_name_are_strangers_to_each_others_runs() {
    for faulty in Faulty::each() {
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let old = faulty.world(APPEND).process("web:1");
        let old = old.tool(append(&recorder).inside(park.clone()).tool(Approval::None)).build();
        let id = enqueue(&old).await;
        let segment = old.runtime.claim(id).await.expect("claimed").spawn();
        park.reached().await;
        faulty.faults.arm(Fault::on(Op::Renew, How::Before));
        let new = faulty.second(APPEND).process("web:1").tool(append(&recorder).tool(Approval::None)).build();
        new.runtime.sweep(10, false).await.expect("swept");
        assert!(new.runtime.claim(id).await.is_err(), "it is held, and not by this one");
        assert_eq!((new.row(id).await.state, new.row(id).await.epoch), (State::Running, 1));
        new.lapse().await;
        assert_eq!(new.row(id).await.reason.expect("dead").as_str(), "write_in_doubt", "not gone on with");
        park.release();
        assert!(matches!(segment.await.expect("joined"), Err(SegmentError::Lost(_))));
        assert!(old.runtime.engine().late_outcomes_recorded(Duration::from_secs(20)).await);
        assert_eq!(new.claim(id).await.expect("held").state, State::Completed);
        let of_segments = |e: &Entry| matches!(e.body, EntryBody::SegmentOpened(_));
        let holders: Vec<_> = new.entries(id).await.into_iter().filter(of_segments).map(|e| (e.holder, e.epoch)).collect();
        assert_eq!(holders, [(Some("worker:web:1".to_owned()), 1), (Some("resume:web:1".to_owned()), 3)]);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test]
async fn renewals_that_fail_for_twice_the_ttl_make_a_doubt_that_the_tools_answer_settles() {
    for faulty in Faulty::each() {
        let recorder = Recorder::default();
        let park = Park::in_tool();
        let world = faulty.world(APPEND).tool(append(&recorder).inside(park.clone()).tool(Approval::None)).build();
        let id = enqueue(&world).await;
        let segment = world.runtime.claim(id).await.expect("claimed").spawn();
        park.reached().await;
        faulty.faults.arm(Fault::on(Op::Renew, How::Before));
        // Half a ttl: nothing happened.
        faulty.place.clock.advance(Duration::from_secs(30));
        world.runtime.sweep(10, false).await.expect("swept");
        assert_eq!(world.row(id).await.state, State::Running);
        faulty.place.clock.advance(Duration::from_secs(90));
        world.runtime.sweep(10, false).await.expect("swept");
        assert_eq!(world.row(id).await.reason.expect("dead").as_str(), "write_in_doubt");
        park.release();
        assert!(matches!(segment.await.expect("joined"), Err(SegmentError::Lost(_))));
        assert!(world.runtime.engine().late_outcomes_recorded(Duration::from_secs(20)).await);
        let row = world.row(id).await;
        assert_eq!((row.state, row.fence), (State::Queued, None));
        faulty.faults.heal();
        assert_eq!(world.claim(id).await.expect("held").state, State::Completed);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test]
async fn a_shutdown_ends_the_lost_lease_itself_and_then_with_the_outcome_on_record() {
    for faulty in Faulty::each() {
        let recorder = Recorder::default();
        let tool = append(&recorder).tool(Approval::None);
        let world = faulty.world(APPEND).tool(tool).ttl(Duration::from_secs(2)).build();
        let id = enqueue(&world).await;
        let execution = world.runtime.claim(id).await.expect("claimed");
        faulty.faults.arm(Fault::on(Op::Write, How::Before).on_entry("tool_outcome"));
        let segment = execution.spawn();
        faulty.faults.wait_for_hits(1).await;
        faulty.outlive();
        assert!(matches!(segment.await.expect("joined"), Err(SegmentError::Lost(_))));
        faulty.faults.heal();
        assert!(world.row(id).await.state == State::Running, "nobody else has swept");
        assert!(world.runtime.has_late_outcomes().await);
        assert!(world.runtime.shutdown().await, "{}", faulty.place.name);
        let row = world.row(id).await;
        assert_eq!((row.state, row.fence), (State::Queued, None), "{}", faulty.place.name);
        assert!(world.runtime.claim(id).await.is_err(), "nothing new starts");
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}
