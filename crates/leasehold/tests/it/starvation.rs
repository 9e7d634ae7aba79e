//! A process that gets no time: its async runtime is blocked by a tool, a probe or a busy machine. Renewals do not need the runtime;
//! and where they fail too, no write starts after the lease.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use async_trait::async_trait;
use leasehold::{
    Runtime, RuntimeConfig, StartRun,
    agent::{
        model::Model,
        registry::{AgentSpec, Registry},
        tool::{Approval, Arguments, WriteAnswer, WriteEffect, WritePermit},
    },
    clock::{ManualClock, SystemClock},
    run::{CallId, RunId, State},
    store::{Store, sqlite::SqliteStore},
    worker::{Point, Probe},
};
use leasehold_testkit::{
    park::Place,
    world::{Inside, RecordedWrite, Recorder, SpiedModel, World, WorldBuilder},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

const SCRIPT: &str =
    "[[reply]]\ncalls = [{ tool = \"ledger.append\", arguments = { text = \"one\" } }]\n[[reply]]\ntext = \"done\"\n";

fn world(place: &Place, recorder: &Recorder) -> WorldBuilder {
    let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, recorder).tool(Approval::None);
    World::builder(SCRIPT).tool(tool).on(&place.store, &place.clock)
}

/// Blocks the thread of the async runtime at one point, once, for three ttl of the clock, while another process sweeps.
struct Blocks {
    point: Point,
    clock: Arc<ManualClock>,
    other: Arc<World>,
    done: AtomicBool,
}

#[async_trait]
impl Probe for Blocks {
    async fn at(&self, point: Point, run: RunId, _: Option<&CallId>) {
        if point != self.point || self.done.swap(true, Ordering::SeqCst) {
            return;
        }
        let (clock, other) = (Arc::clone(&self.clock), Arc::clone(&self.other));
        // Joined without an await: nothing else runs on this runtime meanwhile.
        let sweeping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                for _ in 0..3 {
                    clock.advance(Duration::from_secs(60));
                    other.runtime.sweep(10, false).await.unwrap();
                }
                assert_ne!(other.row(run).await.state, State::Running, "the lease is taken away");
            });
        });
        sweeping.join().unwrap();
    }
}

#[tokio::test]
async fn a_runtime_that_is_blocked_for_three_leases_at_any_point_before_the_tool_does_not_start_it() {
    for point in [Point::BeforeModel, Point::BeforeStamp, Point::AfterStamp, Point::InTool] {
        for place in Place::each() {
            let recorder = Recorder::default();
            let other = Arc::new(world(&place, &recorder).process("test:2").build());
            // In the tool, the task of the tool has been made and has not run yet: this runtime has one thread.
            let blocks = Blocks { point, clock: place.clock.clone(), other: other.clone(), done: AtomicBool::new(false) };
            let blocked = world(&place, &recorder).probe(Arc::new(blocks)).build();
            let id = blocked.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.unwrap();
            let ended = blocked.claim(id).await;
            assert!(ended.is_err(), "{point} {}: {ended:?}", place.name);
            assert_eq!(recorder.entries(), [], "{point} {}: entered after its lease", place.name);
            assert!(blocked.runtime.engine().late_outcomes_recorded(Duration::from_secs(20)).await);
            place.clock.advance(Duration::from_secs(700));
            assert_eq!(other.claim(id).await.unwrap().state, State::Completed, "{point} {}", place.name);
            let entries = recorder.entries();
            assert_eq!(entries.len(), 1, "{point} {}", place.name);
            assert_eq!(entries[0].epoch, other.row(id).await.epoch);
        }
    }
}

/// A tool that takes its time before its effect, on the thread of the runtime or beside it, and looks at its permit last.
struct Slow {
    starts_for: Duration,
    blocks: bool,
}

#[async_trait]
impl Inside for Slow {
    async fn inside(&self, permit: &WritePermit, _: &Arguments) -> Option<WriteAnswer> {
        if self.blocks {
            thread::sleep(self.starts_for);
        } else {
            tokio::time::sleep(self.starts_for).await;
        }
        Some(match permit.check() {
            Ok(()) => WriteAnswer::done("ok"),
            Err(not_held) => WriteAnswer::NotStarted { why: not_held.to_string() },
        })
    }
}

fn real(file: &std::path::Path, recorder: &Recorder, inside: Slow, ttl: Duration) -> (Runtime, Arc<dyn Store>) {
    let clock = Arc::new(SystemClock::new().unwrap());
    let store: Arc<dyn Store> = SqliteStore::open(file, clock.clone()).unwrap();
    let mut registry = Registry::new();
    let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, recorder).inside(Arc::new(inside));
    registry.add_tool(tool.tool(Approval::None)).unwrap();
    let model = SpiedModel::new(SCRIPT) as Arc<dyn Model>;
    registry.add_agent(AgentSpec::new("a", model).tools(["ledger.append".to_owned()])).unwrap();
    let config = RuntimeConfig { ttl, ..RuntimeConfig::new(store.clone(), Arc::new(registry), clock) };
    (Runtime::new(config).unwrap(), store)
}

/// Sweeps a file from a thread of its own until it is told to end.
fn sweeper(file: std::path::PathBuf, recorder: Recorder, ttl: Duration, end: Arc<AtomicBool>) -> thread::JoinHandle<usize> {
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let idle = Slow { starts_for: Duration::ZERO, blocks: false };
            let (other, _) = real(&file, &recorder, idle, ttl);
            let mut sweeps = 0;
            while !end.load(Ordering::SeqCst) {
                assert_eq!(other.sweep(10, false).await.unwrap().settled, [], "a lease that is renewed was taken away");
                sweeps += 1;
                tokio::time::sleep(ttl / 10).await;
            }
            sweeps
        })
    })
}

#[tokio::test]
async fn a_tool_whose_start_takes_longer_than_the_lease_is_entered_once_under_a_lease_that_is_renewed() {
    let ttl = Duration::from_millis(1_500);
    for blocks in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("leasehold.db");
        let recorder = Recorder::default();
        let (runtime, store) = real(&file, &recorder, Slow { starts_for: ttl * 3, blocks }, ttl);
        let end = Arc::new(AtomicBool::new(false));
        let sweeping = sweeper(file.clone(), recorder.clone(), ttl, end.clone());
        let execution = runtime.start(StartRun::new("a", "task", World::person())).await.unwrap();
        let row = execution.finish().await.unwrap();
        end.store(true, Ordering::SeqCst);
        assert!(sweeping.join().unwrap() > 1, "nobody looked");
        assert_eq!((row.state, row.epoch, row.requeues), (State::Completed, 1, 0), "blocks: {blocks}");
        assert_eq!(recorder.count("ledger.append"), 1);
        let journal = store.journal(row.id, 0, 100).await.unwrap();
        assert!(journal.iter().all(|e| !["lease_expired", "write_not_started"].contains(&e.body.kind())));
    }
}
