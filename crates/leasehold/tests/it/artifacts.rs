//! Binary content that a call puts aside: there with the outcome that says so, or neither is, whoever dies when; bounded; sealed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use leasehold::{
    StartRun,
    agent::{
        registry::AgentSpec,
        tool::{Approval, Asker, ReadAnswer, Tool, WriteAnswer, WriteEffect, WritePermit, rust},
    },
    limits::{ARTIFACT_BYTES_MAX, ARTIFACTS_CALL_BYTES_MAX, ARTIFACTS_CALL_MAX, ARTIFACTS_RUN_BYTES_MAX, ARTIFACTS_RUN_MAX},
    run::{CallId, EntryBody, RunId, State},
    seal::Keyring,
    store::{ReadError, Store, engine::KeptArtifact},
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op,
    park::Place,
    world::{World, WorldBuilder},
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Pictures {
    /// Bytes of each, all of this number.
    sizes: Vec<usize>,
    /// What they are made of.
    of: u8,
}

impl Pictures {
    async fn kept(self, asker: &Asker) -> Value {
        let mut kept = Vec::new();
        for (n, bytes) in self.sizes.into_iter().enumerate() {
            let mut content = vec![self.of; bytes];
            // Each is another one.
            content.iter_mut().zip(n.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
            kept.push(asker.keep("image", "image/png", content).await);
        }
        kept.into()
    }
}

fn look() -> Tool {
    let call = |asker: Asker, pictures: Pictures| async move { ReadAnswer::ok(pictures.kept(&asker).await) };
    rust::asking_read_tool("camera.look", "Takes pictures", call).into()
}

fn shoot(effect: WriteEffect) -> Tool {
    let call =
        |mut permit: WritePermit, pictures: Pictures| async move { WriteAnswer::done(pictures.kept(permit.asker()).await) };
    rust::write_tool("camera.shoot", "Takes pictures and moves on", effect, Approval::None, call).into()
}

fn tools(world: WorldBuilder) -> WorldBuilder {
    world.tool(look()).tool(shoot(WriteEffect::NonIdempotent))
}

fn script(calls: &[(&str, u8, &[usize])]) -> String {
    let replies = calls.iter().map(|(tool, of, sizes)| {
        format!("[[reply]]\ncalls = [{{ tool = \"{tool}\", arguments = {{ of = {of}, sizes = {sizes:?} }} }}]\n")
    });
    replies.collect::<String>() + "[[reply]]\ntext = \"done\"\n"
}

fn world(place: &Place, script: &str) -> WorldBuilder {
    tools(World::builder(script).on(&place.store, &place.clock))
}

/// What the outcomes of a run name, in order.
async fn results(world: &World, id: RunId) -> Vec<Value> {
    let outcomes = world.entries(id).await.into_iter().filter_map(|entry| match entry.body {
        EntryBody::ToolOutcome(outcome) => Some(outcome.result),
        _ => None,
    });
    outcomes.flat_map(|result| result.as_array().cloned().unwrap_or_else(|| panic!("{result}"))).collect()
}

fn is_kept(part: &Value) -> bool {
    part["artifact"].is_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_read_and_a_write_put_aside_is_named_by_their_results_and_there_once() {
    for place in Place::each().into_iter().chain([Place::postgres().await]) {
        let (again, two): (&[usize], &[usize]) = (&[10], &[10, 20]);
        let script = script(&[("camera.look", 1, two), ("camera.shoot", 2, again), ("camera.look", 1, again)]);
        let world = world(&place, &script).build();
        let id = world.run("look").await;
        assert_eq!(world.row(id).await.state, State::Completed, "{}", place.name);
        let engine = world.runtime.engine();
        let kept = engine.artifacts(id).await.unwrap();
        let named = results(&world, id).await;
        assert_eq!((kept.len(), named.len()), (3, 4), "{}: {named:?}", place.name);
        assert_eq!(named[0], named[3], "the same content is the same artifact");
        let entries = world.entries(id).await;
        for (part, call) in named.iter().zip(["t1c0", "t1c0", "t2c0"]) {
            let KeptArtifact { handle, sequence, bytes, kind, mime_type, sha256, call_id } =
                kept.iter().find(|kept| part["artifact"] == kept.handle.as_str()).unwrap().clone();
            assert_eq!((part["bytes"].as_u64(), part["sha256"].as_str()), (Some(bytes), Some(sha256.as_str())));
            assert_eq!((kind.as_str(), mime_type.as_str(), call_id.0.as_str()), ("image", "image/png", call));
            assert!(matches!(&entries[sequence as usize].body, EntryBody::ToolOutcome(it) if it.call_id == call_id));
            let (again, content) = engine.artifact(id, &handle).await.unwrap().unwrap();
            assert_eq!((again.handle, content.len() as u64), (handle.clone(), bytes));
            assert_eq!(engine.artifact(RunId::new(), &handle).await.unwrap(), None);
        }
        // What the model was told of.
        assert!(world.results()[0].1.contains(&kept[0].handle), "{:?}", world.results());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_a_limit_is_described_with_the_reason_and_not_kept() {
    let place = Place::memory();
    let whole = ARTIFACT_BYTES_MAX;
    let over_a_call = [whole, ARTIFACTS_CALL_BYTES_MAX - whole, 1];
    let many = [8; ARTIFACTS_CALL_MAX + 1];
    let script =
        script(&[("camera.look", 1, &[whole, whole + 1]), ("camera.look", 2, &over_a_call), ("camera.look", 3, &many)]);
    let world = world(&place, &script).build();
    let id = world.run("look").await;
    let named = results(&world, id).await;
    let kept: Vec<bool> = named.iter().map(is_kept).collect();
    let mut expected = vec![true, false, true, true, false];
    expected.extend([true; ARTIFACTS_CALL_MAX]);
    expected.push(false);
    assert_eq!(kept, expected);
    for part in named.iter().filter(|part| !is_kept(part)) {
        assert!(
            part["note"].as_str().is_some_and(|note| note.starts_with("not kept: ") && note.ends_with("at most")),
            "{part}"
        );
        assert!(part["bytes"].is_u64() && part["mime_type"] == "image/png");
    }
    assert_eq!(world.runtime.engine().artifacts(id).await.unwrap().len(), expected.iter().filter(|kept| **kept).count());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_keeps_so_many_artifacts_and_so_many_bytes_over_all_its_calls() {
    let place = Place::memory();
    let sixteen = [8; ARTIFACTS_CALL_MAX];
    let calls = ARTIFACTS_RUN_MAX / ARTIFACTS_CALL_MAX;
    let mut turns: Vec<(&str, u8, &[usize])> = (0..=calls).map(|n| ("camera.look", n as u8, &sixteen[..])).collect();
    // What is there already takes no place.
    turns.push(("camera.look", 0, &sixteen));
    let world = world(&place, &script(&turns)).agent(|agent| AgentSpec { max_rounds: 100, ..agent }).build();
    let id = world.run("look").await;
    let kept: Vec<bool> = results(&world, id).await.iter().map(is_kept).collect();
    let (first, rest) = kept.split_at(ARTIFACTS_RUN_MAX);
    assert!(first.iter().all(|kept| *kept));
    assert_eq!(rest, [[false; ARTIFACTS_CALL_MAX], [true; ARTIFACTS_CALL_MAX]].concat());

    let half = [ARTIFACTS_CALL_BYTES_MAX / 2; 2];
    let calls = usize::try_from(ARTIFACTS_RUN_BYTES_MAX).unwrap() / ARTIFACTS_CALL_BYTES_MAX;
    let mut turns: Vec<(&str, u8, &[usize])> = (0..calls).map(|n| ("camera.look", n as u8, &half[..])).collect();
    turns.push(("camera.look", 200, &[1]));
    let world = tools(World::builder(&script(&turns))).agent(|agent| AgentSpec { max_rounds: 100, ..agent }).build();
    let id = world.run("look").await;
    let kept: Vec<bool> = results(&world, id).await.iter().map(is_kept).collect();
    assert_eq!(kept, [vec![true; 2 * calls], vec![false]].concat());
}

/// A process dies right before or right after the store has taken an outcome with its artifacts: at that moment both are there or
/// neither is, and at the end the run has them.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_at_the_outcome_leaves_the_artifact_and_the_entry_or_neither() {
    for how in [How::Hang, How::HangAfter] {
        for tool in ["camera.look", "camera.shoot"] {
            for place in Place::each().into_iter().chain([Place::postgres().await]) {
                let here = format!("{how:?}, {tool}, {}", place.name);
                let script = script(&[(tool, 1, &[100_000])]);
                let faults = FaultyStore::new(Arc::clone(&place.store));
                let store: Arc<dyn Store> = Arc::clone(&faults) as _;
                let shoot = || shoot(WriteEffect::Idempotent);
                let first =
                    World::builder(&script).on(&store, &place.clock).tool(look()).tool(shoot()).process("first:1").build();
                let id = first.runtime.enqueue(StartRun::new("a", "look", World::person()), None).await.unwrap();
                let execution = first.runtime.claim(id).await.unwrap();
                faults.arm(Fault::on(Op::Write, how).on_entry("tool_outcome"));
                let segment = execution.spawn();
                faults.wait_for_hits(1).await;
                let is_there = || async { first.kinds(id).await.contains(&"tool_outcome") };
                while how == How::HangAfter && !is_there().await {
                    // The store says nothing of what it has done: its answer is what is held.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                faults.lose();
                segment.abort();
                segment.await.ok();

                let second = World::builder(&script)
                    .on(&place.store, &place.clock)
                    .tool(look())
                    .tool(shoot())
                    .process("second:2")
                    .build();
                let outcomes = second.kinds(id).await.iter().filter(|kind| **kind == "tool_outcome").count();
                let there = second.runtime.engine().artifacts(id).await.unwrap().len();
                assert_eq!((outcomes, there), if how == How::Hang { (0, 0) } else { (1, 1) }, "{here}");
                second.lapse().await;
                assert_eq!(second.claim(id).await.unwrap().state, State::Completed, "{here}");
                let kept = second.runtime.engine().artifacts(id).await.unwrap();
                let named = results(&second, id).await;
                assert_eq!((kept.len(), named.len()), (1, 1), "{here}");
                assert_eq!(named[0]["artifact"], kept[0].handle.as_str(), "{here}");
                assert_eq!(second.runtime.engine().artifact(id, &kept[0].handle).await.unwrap().unwrap().1.len(), 100_000);
            }
        }
    }
}

/// The store is away when a write comes back, for longer than the lease; what it has put aside comes with its late outcome.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_write_has_put_aside_comes_with_its_late_outcome() {
    for place in Place::each() {
        let script = script(&[("camera.shoot", 1, &[1_000])]);
        let faults = FaultyStore::new(Arc::clone(&place.store));
        let store: Arc<dyn Store> = Arc::clone(&faults) as _;
        let first = tools(World::builder(&script).on(&store, &place.clock)).ttl(Duration::from_secs(2)).build();
        let execution = first.start("shoot").await;
        let id = execution.run();
        faults.arm(Fault::on(Op::Write, How::Before).on_entry("tool_outcome"));
        let segment = execution.spawn();
        faults.wait_for_hits(1).await;
        faults.arm(Fault::on(Op::Renew, How::Before));
        place.clock.advance(Duration::from_secs(3));
        assert!(segment.await.unwrap().is_err(), "{}", place.name);
        let second = world(&place, &script).process("second:2").build();
        second.lapse().await;
        assert_eq!(second.runtime.engine().artifacts(id).await.unwrap(), [], "nothing without its entry");
        faults.heal();
        assert!(first.runtime.engine().late_outcomes_recorded(Duration::from_secs(20)).await);
        let kept = second.runtime.engine().artifacts(id).await.unwrap();
        assert_eq!((kept.len(), &kept[0].call_id), (1, &CallId::of(1, 0)), "{}", place.name);
        let entries = second.entries(id).await;
        assert!(matches!(&entries[kept[0].sequence as usize].body, EntryBody::ToolOutcome(outcome) if outcome.late));
        assert_eq!(results(&second, id).await[0]["artifact"], kept[0].handle.as_str());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn artifacts_of_a_sealed_store_lie_there_sealed_and_open_in_their_place_alone() {
    let line = Keyring::new_line("a").unwrap();
    let keyring = Arc::new(Keyring::parse(&line).unwrap());
    for place in Place::each() {
        let world = world(&place, &script(&[("camera.look", 7, &[5_000, 6_000])])).keyring(&keyring).build();
        let id = world.run("look").await;
        let engine = world.runtime.engine();
        let kept = engine.artifacts(id).await.unwrap();
        assert_eq!(kept.len(), 2);
        for it in &kept {
            let lies = place.store.artifact(id, &it.handle).await.unwrap().unwrap();
            let shows = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).any(|part| part == what);
            assert!(!shows(&lies.content, &[7; 64]) && !shows(&lies.about, b"image"), "{}", place.name);
            let (_, content) = engine.artifact(id, &it.handle).await.unwrap().unwrap();
            assert!(shows(&content, &[7; 64]));
        }
        let stranger = World::builder("").on(&place.store, &place.clock).build();
        let refused = stranger.runtime.engine().artifact(id, &kept[0].handle).await;
        assert!(matches!(refused, Err(ReadError::Corrupt { .. })), "{refused:?}");
        assert!(stranger.runtime.engine().artifacts(id).await.is_err());
    }
}

/// Somebody changes the file under the store: what is read is what was kept, or an error.
#[tokio::test(flavor = "multi_thread")]
async fn content_that_was_changed_in_the_store_is_not_given_out() {
    let place = Place::sqlite();
    let world = world(&place, &script(&[("camera.look", 7, &[5_000])])).build();
    let id = world.run("look").await;
    let kept = world.runtime.engine().artifacts(id).await.unwrap();
    let file = rusqlite::Connection::open(place.file.as_ref().unwrap()).unwrap();
    let changed = file.execute("UPDATE artifacts SET content = ?", [[1; 5001].to_vec()]).unwrap();
    assert_eq!(changed, 1);
    let read = world.runtime.engine().artifact(id, &kept[0].handle).await;
    assert!(matches!(&read, Err(ReadError::Corrupt { why, .. }) if why.contains("is not what it was")), "{read:?}");
}
