//! One clean run with a read, an approved non-idempotent write, an idempotent write and a model that fails once; its commit
//! points and effect boundaries are counted, and then a process dies before and after each of them, in both stores. A second
//! process sweeps, claims, decides and resolves until the run is settled; effects are counted at the recorder.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use async_trait::async_trait;
use leasehold::{
    Resolution, StartRun,
    agent::tool::{Approval, Arguments, WriteAnswer, WriteEffect, WritePermit},
    run::{CallId, Effect, EntryBody, Outcome, Reason, ResolutionKind, RunId, State},
    store::{Filter, Store},
    worker::{Point, Probe},
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op, invariants,
    park::Place,
    world::{Inside, RecordedRead, RecordedWrite, Recorder, World, WorldBuilder},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::watch;

const SCRIPT: &str = r#"
[[reply]]
error = "server"
[[reply]]
calls = [
    { tool = "notes.read", arguments = { text = "before" } },
    { tool = "ledger.append", arguments = { text = "one" } },
]
[[reply]]
calls = [{ tool = "page.put", arguments = { text = "two" } }]
[[reply]]
text = "done"
"#;

/// Where a process dies, or where an answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Nowhere.
    Never,
    /// At this commit point, from 1; the insert is 0.
    Commit(usize, How),
    /// At this visit of an effect boundary, from 1, over all points.
    Boundary(usize),
}

/// Counts the boundaries that segments come by, and holds for ever whoever comes to the one where it dies.
struct Boundaries {
    dies_at: Option<usize>,
    visits: Mutex<Vec<Point>>,
    reached: watch::Sender<bool>,
    entered: watch::Sender<usize>,
}

#[async_trait]
impl Inside for Boundaries {
    async fn inside(&self, _: &WritePermit, _: &Arguments) -> Option<WriteAnswer> {
        self.entered.send_modify(|n| *n += 1);
        None
    }
}

#[async_trait]
impl Probe for Boundaries {
    async fn at(&self, point: Point, _: RunId, _: Option<&CallId>) {
        let (visit, in_tool) = {
            let mut visits = self.visits.lock().unwrap();
            visits.push(point);
            (visits.len(), visits.iter().filter(|p| **p == Point::InTool).count())
        };
        if point == Point::InTool {
            // A tool that has not begun yet would go on beginning after this process died, which no process does.
            self.entered.subscribe().wait_for(|entered| *entered >= in_tool).await.ok();
        }
        if Some(visit) == self.dies_at {
            self.reached.send_replace(true);
            std::future::pending::<()>().await;
        }
    }
}

struct Scene {
    place: Place,
    recorder: Recorder,
    faults: Arc<FaultyStore>,
    commits: Arc<AtomicUsize>,
    boundaries: Arc<Boundaries>,
}

impl Scene {
    fn new(place: Place, at: At) -> Self {
        let faults = FaultyStore::new(Arc::clone(&place.store));
        let commits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&commits);
        let (dies_at, commit) = match at {
            At::Never => (None, None),
            At::Boundary(visit) => (Some(visit), None),
            At::Commit(commit, how) => (None, Some((commit, how))),
        };
        let (target, how) = commit.unwrap_or((usize::MAX, How::Before));
        if target == 0 {
            faults.fail_next(Op::Insert, how);
        }
        faults.arm(Fault::on(Op::Write, how).when(move |_| counted.fetch_add(1, Ordering::SeqCst) + 1 == target));
        let boundaries = Boundaries {
            dies_at,
            visits: Mutex::default(),
            reached: watch::Sender::new(false),
            entered: watch::Sender::new(0),
        };
        Self { place, recorder: Recorder::default(), faults, commits, boundaries: Arc::new(boundaries) }
    }

    fn world(&self, store: &Arc<dyn Store>) -> WorldBuilder {
        let write = |name, effect| {
            RecordedWrite::new(name, effect, &self.recorder).inside(Arc::clone(&self.boundaries) as Arc<dyn Inside>)
        };
        World::builder(SCRIPT)
            .on(store, &self.place.clock)
            .tool(RecordedRead::new("notes.read", &self.recorder).tool())
            .tool(write("ledger.append", WriteEffect::NonIdempotent).tool(Approval::Required))
            .tool(write("page.put", WriteEffect::Idempotent).tool(Approval::None))
    }

    /// The process that may die.
    fn first(&self) -> World {
        let store: Arc<dyn Store> = Arc::clone(&self.faults) as _;
        self.world(&store).process("first:1").probe(Arc::clone(&self.boundaries) as _).build()
    }

    /// The process that finds what is left.
    fn second(&self) -> World {
        self.world(&self.place.store).process("second:2").build()
    }

    /// Somebody is held where a process dies.
    async fn death(&self) {
        let mut boundary = self.boundaries.reached.subscribe();
        tokio::select! {
            () = self.faults.wait_for_hits(1) => {}
            reached = boundary.wait_for(|reached| *reached) => { reached.ok(); }
        }
    }
}

/// What this process can do for the run next: claim, decide, resolve as the person who looked, sweep.
async fn step(world: &World, id: RunId, recorder: &Recorder) {
    let row = world.row(id).await;
    match row.state {
        State::Queued => {
            world.clock.advance(Duration::from_secs(700));
            // Refused or lost: the next step looks again.
            if let Ok(execution) = world.runtime.claim(id).await {
                execution.finish().await.ok();
            }
        }
        State::WaitingForApproval => {
            // What the dead process had sent may still come to be between two looks: the digest is of this one.
            let digest = row.turn.and_then(|turn| turn.digest).unwrap();
            let decision = World::decision(digest, true);
            if let Ok(decided) = world.runtime.decide(id, decision).await
                && let Some(execution) = decided.execution
            {
                execution.finish().await.ok();
            }
        }
        State::Running | State::Cancelling => world.lapse().await,
        State::Dead => {
            assert_eq!(row.reason, Some(Reason::WriteInDoubt), "dead of something else");
            let fence = row.fence.unwrap();
            let landed = recorder.entries().iter().any(|e| e.key == fence.idempotency_key);
            let outcome = if landed { ResolutionKind::Landed } else { ResolutionKind::NotLanded };
            world.clock.advance(Duration::from_secs(700));
            let said = Resolution {
                call_id: fence.call_id,
                fence_epoch: Some(fence.epoch),
                outcome,
                result: None,
                note: None,
                by: World::person(),
            };
            // Refused where the same word of the dead process came to be in between: the next step looks again.
            world.runtime.resolve(id, said).await.ok();
        }
        _ => {}
    }
}

async fn to_the_end(world: &World, id: RunId, recorder: &Recorder) {
    for _ in 0..40 {
        if world.row(id).await.state.is_settled() {
            return;
        }
        step(world, id, recorder).await;
    }
    panic!("no end: {:?}", world.kinds(id).await);
}

/// What one run came to.
#[derive(Debug, Default)]
struct Ended {
    commits: usize,
    boundaries: Vec<Point>,
    entered: BTreeMap<String, usize>,
    doubts: usize,
}

/// Runs it with a process that dies there (`Hang`, `HangAfter`, a boundary) or loses an answer there (`Before`, `After`).
async fn run(place: Place, at: At) -> Ended {
    let name = place.name;
    let scene = Scene::new(place, at);
    let first = scene.first();
    let second = scene.second();
    let recorder = scene.recorder.clone();
    let life = {
        let recorder = recorder.clone();
        async move {
            let id = first.runtime.enqueue(StartRun::new("a", "go", World::person()), None).await.unwrap();
            to_the_end(&first, id, &recorder).await;
        }
    };
    let mut life = tokio::spawn(life);
    let died = tokio::select! {
        // An answer that is lost kills nobody.
        () = scene.death(), if !matches!(at, At::Never | At::Commit(_, How::Before | How::After)) => true,
        ended = &mut life => { ended.unwrap(); false }
    };
    if died {
        // Nothing that the dead process still asks for reaches the store.
        scene.faults.lose();
        life.abort();
        life.await.ok();
    }
    let all = second.runtime.list(&Filter::default(), None, 10).await.unwrap();
    assert!(all.len() <= 1, "{name}, {at:?}: two runs");
    let id = match all.first() {
        Some(listed) => listed.id,
        // It died before there was a run: nothing is lost.
        None => second.runtime.enqueue(StartRun::new("a", "go", World::person()), None).await.unwrap(),
    };
    to_the_end(&second, id, &recorder).await;

    let row = second.row(id).await;
    let entries = second.entries(id).await;
    let told = || format!("{name}, {at:?}: {:?}", entries.iter().map(|e| e.body.kind()).collect::<Vec<_>>());
    assert_eq!(row.state, State::Completed, "{}", told());
    invariants::journal(&row, &entries).unwrap_or_else(|why| panic!("{why}; {}", told()));
    let entered = recorder.entries();
    let count = |tool: &str| entered.iter().filter(|e| e.tool == tool).count();
    assert_eq!(count("ledger.append"), 1, "{}", told());
    assert!(count("page.put") >= 1 && count("notes.read") >= 1, "{}", told());
    let keys: std::collections::BTreeSet<_> = entered
        .iter()
        .filter(|e| e.tool == "page.put")
        .map(|e| (&e.key, serde_json::to_string(&e.arguments).unwrap()))
        .collect();
    assert_eq!(keys.len(), 1, "another key or other arguments: {}", told());
    for entry in &entries {
        if let EntryBody::ToolOutcome(said) = &entry.body {
            assert_eq!(said.outcome, Outcome::Done, "{}", told());
        }
    }
    let stamped =
        entries.iter().filter(|e| matches!(&e.body, EntryBody::WriteStamped(s) if s.effect == Effect::NonIdempotentWrite));
    assert!(stamped.count() >= 1, "{}", told());
    Ended {
        commits: scene.commits.load(Ordering::SeqCst),
        boundaries: scene.boundaries.visits.lock().unwrap().clone(),
        entered: ["notes.read", "ledger.append", "page.put"].map(|t| (t.to_owned(), count(t))).into(),
        doubts: entries.iter().filter(|e| matches!(e.body, EntryBody::InDoubt(_))).count(),
    }
}

fn places() -> [fn() -> Place; 2] {
    [Place::memory, Place::sqlite]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_process_that_dies_at_any_commit_or_effect_boundary_leaves_a_run_that_ends_with_each_write_made_once() {
    for place in places() {
        let clean = run(place(), At::Never).await;
        assert_eq!(clean.doubts, 0);
        assert!(clean.entered.values().all(|n| *n == 1), "{clean:?}");
        assert!(clean.commits >= 9 && clean.boundaries.len() >= 12, "the clean run got shorter: {clean:?}");
        let commits = (0..=clean.commits).flat_map(|n| [At::Commit(n, How::Hang), At::Commit(n, How::HangAfter)]);
        let boundaries = (1..=clean.boundaries.len()).map(At::Boundary);
        let runs: Vec<_> = commits.chain(boundaries).map(|at| tokio::spawn(run(place(), at))).collect();
        let points = runs.len();
        let mut doubts = 0;
        for ended in runs {
            doubts += ended.await.unwrap().doubts;
        }
        eprintln!(
            "{}: {} commit points, {} boundaries, {points} deaths, {doubts} doubts",
            place().name,
            clean.commits + 1,
            clean.boundaries.len()
        );
        assert!(doubts > 0, "no death left a write in doubt");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_answer_lost_at_any_commit_changes_nothing_that_a_run_does() {
    for place in places() {
        let clean = run(place(), At::Never).await;
        let lost = (0..=clean.commits).flat_map(|n| [At::Commit(n, How::Before), At::Commit(n, How::After)]);
        let runs: Vec<_> = lost.map(|at| (at, tokio::spawn(run(place(), at)))).collect();
        for (at, ended) in runs {
            let ended = ended.await.unwrap();
            assert_eq!((&ended.entered, ended.doubts), (&clean.entered, 0), "{}, {at:?}", place().name);
        }
    }
}
