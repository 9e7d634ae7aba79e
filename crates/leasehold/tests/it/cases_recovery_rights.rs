//! Rights that moved on, and ends that race: what a holder, the sweep and a person do to one run at one time. On every store.
#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use leasehold::{
    StartRun,
    agent::tool::{Approval, WriteEffect},
    run::{
        Act, CallId, Effect, EntryBody, Event, Outcome, Principal, Reason, Recorded, Recovery, Rejection, Right, RunId,
        Snapshot, StampCall, State, TurnCard, Via, WaitKind, WriteId, body,
    },
    store::{
        Filter, Held, Store,
        engine::{CommitError, Engine},
    },
    worker::{Point, Swept},
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op, invariants,
    park::{Park, Place},
    world::{RecordedWrite, Recorder, World, WorldBuilder},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

const APPEND: &str = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "one" } }]
[[reply]]
text = "done"
"#;

fn append(recorder: &Recorder, effect: WriteEffect) -> RecordedWrite {
    RecordedWrite::new("ledger.append", effect, recorder)
}

fn world(place: &Place, recorder: &Recorder, effect: WriteEffect) -> WorldBuilder {
    World::builder(APPEND).tool(append(recorder, effect).tool(Approval::None)).on(&place.store, &place.clock)
}

async fn enqueue(world: &World) -> RunId {
    world.runtime.enqueue(StartRun::new("a", "append", World::person()), None).await.expect("enqueued")
}

fn right_of(row: &Snapshot) -> Right {
    Right { epoch: row.epoch, lease_id: row.lease.as_ref().expect("held").lease_id }
}

/// Everything that a holder can do.
fn every_act() -> Vec<Act> {
    let call_id = CallId::of(1, 0);
    let stamp = StampCall {
        call_id: call_id.clone(),
        effect: Effect::NonIdempotentWrite,
        verifiable: false,
        in_flight_for: Duration::from_secs(30),
        endpoint: "test:ledger.append".into(),
    };
    let outcome = body::ToolOutcome {
        call_id: call_id.clone(),
        tool: "ledger.append".into(),
        outcome: Outcome::Done,
        is_error: false,
        result: "ok".into(),
        late: false,
        via: Via::Tool,
        evidence: None,
    };
    let card =
        TurnCard { kind: WaitKind::Approval, turn: 1, agent_version: "v".into(), calls: vec![], schema: None, question: None };
    let why = || "woke".to_owned();
    vec![
        Act::Heartbeat,
        Act::Record(vec![Recorded::Outcome(outcome)]),
        Act::Stamp(stamp.clone()),
        Act::Restamp { stamp, found_absent: true },
        Act::Unstamp { call_id: call_id.clone(), why: why() },
        Act::Suspend { card, deadline: None },
        Act::Complete { output: why(), truncated: false },
        Act::Fail { reason: Reason::Policy, detail: why() },
        Act::Retry { why: why(), not_before: None },
        Act::Yield,
        Act::Doubt { why: why() },
        Act::Unreadable { why: why() },
        Act::Question(body::Question { call_id, prompt: why(), schema: serde_json::json!({}) }),
        Act::Settle,
    ]
}

/// A worker is paused inside its write; the lease ends; another holds the run, or nobody does. Whatever the first one tries when
/// it wakes, from what it knew or from what is there now, is refused and changes nothing, and a renewal extends nothing.
#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_paused_worker_tries_after_a_takeover_is_refused_and_changes_nothing() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        for (effect, taken_over) in
            [(WriteEffect::Idempotent, true), (WriteEffect::Idempotent, false), (WriteEffect::NonIdempotent, false)]
        {
            let recorder = Recorder::default();
            let held = Park::in_tool();
            let tool = || append(&recorder, effect).inside(held.clone()).tool(Approval::None);
            let paused = World::builder(APPEND).tool(tool()).on(&place.store, &place.clock).build();
            let id = enqueue(&paused).await;
            let execution = paused.runtime.claim(id).await.expect("claimed");
            held.kill(execution).await;
            let known = paused.row(id).await;
            let right = right_of(&known);
            let other = World::builder(APPEND).tool(tool()).on(&place.store, &place.clock).process("test:2").build();
            other.lapse().await;
            let segment = taken_over.then(|| other.runtime.clone());
            let segment = match segment {
                Some(runtime) => Some(runtime.claim(id).await.expect("claimed")),
                None => None,
            };
            let now = other.row(id).await;
            let entries = other.entries(id).await;
            let engine = paused.runtime.engine();
            for act in every_act() {
                for row in [&known, &now] {
                    let answer = engine.commit(row, vec![Event::Holder(right, act.clone())], WriteId::random()).await;
                    // What is impossible on the row as it knew it is refused before the store is asked.
                    let refused = match &answer {
                        Err(CommitError::Rejected(Rejection::Fenced) | CommitError::Fenced) => true,
                        Err(CommitError::Rejected(_)) => std::ptr::eq(row, &raw const known),
                        _ => false,
                    };
                    assert!(refused, "{} {act:?}: {answer:?}", place.name);
                }
            }
            let mut renewer = place.store.renewer().expect("a connection");
            let mine = Held { id, epoch: right.epoch, lease_id: right.lease_id };
            let looks = tokio::task::spawn_blocking(move || renewer.renew(&[mine], Duration::from_secs(600))).await;
            let looks = looks.expect("joined").expect("answers");
            assert!(looks.iter().all(|look| !look.held), "{}: {looks:?}", place.name);
            assert_eq!((other.row(id).await, other.entries(id).await), (now, entries), "{}", place.name);
            drop(segment);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_loses_and_claims_the_same_run_again_renews_the_new_claim() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        let recorder = Recorder::default();
        let faults = FaultyStore::new(Arc::clone(&place.store));
        let store = Arc::clone(&faults) as Arc<dyn Store>;
        let ttl = Duration::from_millis(600);
        let build = |park: &Arc<Park>| {
            let tool = append(&recorder, WriteEffect::Idempotent).inside(park.clone()).tool(Approval::None);
            World::builder(APPEND).tool(tool).on(&store, &place.clock).ttl(ttl).build()
        };
        let park = Park::in_tool();
        let worker = build(&park);
        let id = enqueue(&worker).await;
        // The first claim dies in its process, which goes on: its place in the book of leases is that run's, too.
        park.kill(worker.runtime.claim(id).await.expect("claimed")).await;
        // A renewal may have been under way while the clock moved: then it ends a little later.
        while worker.row(id).await.state.is_held() {
            worker.lapse().await;
        }
        let again = worker.runtime.claim(id).await.expect("the same process claims it again");
        let first_end = again.row().lease.clone().expect("held").expires_at;
        let segment = again.spawn();
        // The clock of leases moves under the heartbeat: without renewals the claim would end here.
        for _ in 0..4 {
            place.clock.advance(Duration::from_millis(250));
            let before = place.clock.clone();
            let renewed = async {
                loop {
                    let end = worker.row(id).await.lease.expect("held").expires_at;
                    if end.ns - leasehold::clock::BootClock::now(&*before).ns > 400_000_000 {
                        return end;
                    }
                    tokio::task::yield_now().await;
                }
            };
            tokio::time::timeout(Duration::from_secs(20), renewed).await.expect("the new claim is renewed");
            worker.runtime.sweep(10, false).await.expect("swept");
        }
        assert!(worker.row(id).await.lease.expect("held").expires_at.ns > first_end.ns);
        park.release();
        assert_eq!(segment.await.expect("joined").expect("still its own").state, State::Completed, "{}", place.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_fail_for_half_a_ttl_cost_nothing() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        let recorder = Recorder::default();
        let faults = FaultyStore::new(Arc::clone(&place.store));
        let store = Arc::clone(&faults) as Arc<dyn Store>;
        let park = Park::in_tool();
        let tool = append(&recorder, WriteEffect::NonIdempotent).inside(park.clone()).tool(Approval::None);
        let world = World::builder(APPEND).tool(tool).on(&store, &place.clock).ttl(Duration::from_secs(2)).build();
        let id = enqueue(&world).await;
        let segment = world.runtime.claim(id).await.expect("claimed").spawn();
        park.reached().await;
        let before = world.row(id).await;
        faults.arm(Fault::on(Op::Renew, How::Before));
        faults.wait_for_hits(1).await;
        place.clock.advance(Duration::from_secs(1));
        let swept = world.runtime.sweep(10, false).await.expect("swept");
        assert_eq!((swept.settled, world.row(id).await), (vec![], before.clone()), "{}", place.name);
        faults.heal();
        let renewed = async {
            while world.row(id).await.lease.expect("held").expires_at.ns == before.lease.as_ref().expect("held").expires_at.ns {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), renewed).await.expect("renewed again");
        park.release();
        let ended = segment.await.expect("joined").expect("the right was never lost");
        assert_eq!((ended.state, ended.epoch, ended.requeues), (State::Completed, 1, 0), "{}", place.name);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

/// A holder that finishes: completes, or settles where a cancel was faster.
async fn finish(engine: Arc<Engine>, id: RunId, right: Right) {
    loop {
        let row = engine.load(id).await.expect("there");
        let act = match row.state {
            State::Running => Act::Complete { output: "done".into(), truncated: false },
            State::Cancelling => Act::Settle,
            _ => return,
        };
        match engine.commit(&row, vec![Event::Holder(right, act)], WriteId::random()).await {
            Ok(_) | Err(CommitError::Fenced) => return,
            Err(CommitError::Moved | CommitError::Rejected(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Rounds of a hundred runs whose lease has just ended: their holders finish them, two processes sweep, a person cancels every
/// third, all at once.
async fn races(place: Place, rounds: usize) {
    let recorder = Recorder::default();
    let first = Arc::new(world(&place, &recorder, WriteEffect::Idempotent).build());
    let second = Arc::new(world(&place, &recorder, WriteEffect::Idempotent).process("test:2").build());
    let mut ends: BTreeMap<String, usize> = BTreeMap::new();
    for round in 0..rounds {
        let mut births = tokio::task::JoinSet::new();
        for _ in 0..100 {
            let runtime = first.runtime.clone();
            births.spawn(async move {
                let start = StartRun { recovery: Some(Recovery::Abandon), ..StartRun::new("a", "race", World::person()) };
                let execution = runtime.start(start).await.expect("started");
                // Nobody renews it from here on.
                (execution.run(), right_of(execution.row()))
            });
        }
        let mut held = births.join_all().await;
        held.sort_by_key(|(id, _)| *id);
        place.clock.advance(Duration::from_secs(61));
        let mut racing = tokio::task::JoinSet::new();
        for world in [&first, &second] {
            let runtime = world.runtime.clone();
            racing.spawn(async move {
                runtime.sweep(100, false).await.expect("swept");
            });
        }
        // The sweeps begin with the oldest, the holders with the newest, a person somewhere.
        for part in 0..4 {
            let (engine, held) = (Arc::clone(first.runtime.engine()), held.clone());
            racing.spawn(async move {
                for (id, right) in held.into_iter().rev().skip(part).step_by(4) {
                    finish(Arc::clone(&engine), id, right).await;
                }
            });
        }
        let (runtime, cancelled) = (second.runtime.clone(), held.clone());
        racing.spawn(async move {
            for (id, _) in cancelled.into_iter().cycle().skip(round * 7).step_by(3).take(34) {
                // Refused where it has ended already.
                runtime.cancel(id, Principal::person("local:bob"), None).await.ok();
            }
        });
        while let Some(raced) = racing.join_next().await {
            raced.expect("nothing broke");
        }
        for (id, _) in held {
            let (row, entries) = (first.row(id).await, first.entries(id).await);
            invariants::journal(&row, &entries).expect("holds");
            let terminal = entries.iter().filter(|e| matches!(e.body, EntryBody::Settled(_) | EntryBody::DeadLettered(_)));
            assert_eq!(terminal.count(), 1, "{}: {:?}", place.name, entries);
            assert!(row.state.is_settled() || row.state == State::Dead, "{}: {row:?}", place.name);
            *ends.entry(row.state.to_string()).or_default() += 1;
        }
    }
    // A race that one side always wins is none.
    for state in ["cancelled", "completed", "dead"] {
        assert!(ends.get(state).is_some_and(|n| *n > 0), "{}: {ends:?}", place.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_ends_that_race_in_memory_each_run_has_exactly_one() {
    races(Place::memory(), 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_ten_thousand_ends_that_race_in_a_file_each_run_has_exactly_one() {
    races(Place::sqlite(), 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_ends_that_race_in_a_database_each_run_has_exactly_one() {
    races(Place::postgres().await, 10).await;
}

/// Stale rows of which the oldest can never be settled, swept fifty at a time.
async fn swept(place: &Place, rows: usize, failing: usize) -> (Vec<Swept>, Vec<RunId>, World) {
    let faults = FaultyStore::new(Arc::clone(&place.store));
    let store = Arc::clone(&faults) as Arc<dyn Store>;
    let recorder = Recorder::default();
    let world = World::builder(APPEND)
        .tool(append(&recorder, WriteEffect::Idempotent).tool(Approval::None))
        .on(&store, &place.clock)
        .build();
    let mut births = tokio::task::JoinSet::new();
    for _ in 0..rows {
        let runtime = world.runtime.clone();
        births.spawn(async move {
            let start = StartRun { recovery: Some(Recovery::Abandon), ..StartRun::new("a", "stale", World::person()) };
            runtime.start(start).await.expect("started").run()
        });
    }
    let mut ids: Vec<RunId> = births.join_all().await;
    ids.sort();
    let bad: Vec<RunId> = ids[..failing].to_vec();
    let of_bad = bad.clone();
    faults.arm(Fault::on(Op::Write, How::Before).when(move |write| of_bad.contains(&write.next.id)));
    place.clock.advance(Duration::from_secs(61));
    let mut sweeps = Vec::new();
    // Two passes over everything are more than enough where nobody starves.
    for _ in 0..2 * rows.div_ceil(50) + 2 {
        sweeps.push(world.runtime.sweep(50, false).await.expect("swept"));
    }
    (sweeps, bad, world)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_five_thousand_stale_rows_those_that_always_fail_starve_no_other() {
    // Ten that fail, and more than a whole sweep of them.
    for (place, rows, failing) in [
        (Place::memory(), 5_000, 10),
        (Place::sqlite(), 5_000, 10),
        (Place::postgres().await, 5_000, 10),
        (Place::memory(), 1_000, 120),
        (Place::sqlite(), 1_000, 120),
    ] {
        let (sweeps, bad, world) = swept(&place, rows, failing).await;
        assert!(sweeps.iter().all(|s| s.settled.len() + s.failed.len() <= 50), "bounded");
        let settled: usize = sweeps.iter().map(|s| s.settled.len()).sum();
        assert_eq!(settled, rows - failing, "{} {failing}", place.name);
        assert!(sweeps.iter().flat_map(|s| &s.failed).all(|(id, _)| bad.contains(id)));
        let running = Filter { states: vec![State::Running], ..Filter::default() };
        let left = world.runtime.list(&running, None, 1_000).await.expect("listed");
        assert_eq!(left.len(), failing, "{}", place.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_its_holder_ends_under_the_sweep_is_left_alone() {
    for place in [Place::memory(), Place::sqlite(), Place::postgres().await] {
        let faults = FaultyStore::new(Arc::clone(&place.store));
        let store = Arc::clone(&faults) as Arc<dyn Store>;
        let recorder = Recorder::default();
        let park = Park::at(Point::BeforeModel);
        let tool = || append(&recorder, WriteEffect::Idempotent).tool(Approval::None);
        let holder = World::builder(APPEND).tool(tool()).on(&place.store, &place.clock).probe(park.clone()).build();
        let sweeper = World::builder(APPEND).tool(tool()).on(&store, &place.clock).process("test:2").build();
        let id = enqueue(&holder).await;
        let execution = holder.runtime.claim(id).await.expect("claimed");
        let right = right_of(execution.row());
        park.kill(execution).await;
        place.clock.advance(Duration::from_secs(61));
        // The sweep has read the row, and hangs where it writes.
        faults.arm(Fault::on(Op::Write, How::Hang));
        let runtime = sweeper.runtime.clone();
        let sweep = tokio::spawn(async move { runtime.sweep(10, false).await });
        faults.wait_for_hits(1).await;
        finish(Arc::clone(holder.runtime.engine()), id, right).await;
        let ended = holder.row(id).await;
        assert_eq!(ended.state, State::Completed);
        faults.heal();
        assert_eq!(sweep.await.expect("joined").expect("swept").settled, vec![], "{}", place.name);
        assert_eq!(holder.row(id).await, ended, "{}", place.name);
    }
}
