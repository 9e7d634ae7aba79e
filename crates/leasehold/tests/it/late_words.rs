//! What a segment may say of a stamp once its right is gone. Both were found by the simulation and by reading what it played.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    StartRun,
    agent::tool::{Approval, WriteAnswer, WriteEffect},
    run::{RunId, State},
    store::Store,
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op,
    park::Place,
    world::{RecordedWrite, Recorder, World},
};
use std::{sync::Arc, time::Duration};

const PUT: &str = "[[reply]]\ncalls = [{ tool = \"page.put\", arguments = { text = \"one\" } }]\n[[reply]]\ntext = \"done\"\n";

struct Scene {
    place: Place,
    faults: Arc<FaultyStore>,
    recorder: Recorder,
    first: World,
    second: World,
}

impl Scene {
    fn new(effect: WriteEffect, answers: &[WriteAnswer]) -> Self {
        let place = Place::memory();
        let faults = FaultyStore::new(Arc::clone(&place.store));
        let recorder = Recorder::default();
        let world = |store: &Arc<dyn Store>, name| {
            let tool = RecordedWrite::new("page.put", effect, &recorder).answers(answers.to_vec());
            World::builder(PUT).on(store, &place.clock).process(name).tool(tool.tool(Approval::None)).build()
        };
        let faulty: Arc<dyn Store> = Arc::clone(&faults) as _;
        let (first, second) = (world(&faulty, "first:1"), world(&place.store, "second:2"));
        Self { place, faults, recorder, first, second }
    }

    /// The first process executes until it has met that many faults; then its lease ends, and a sweep settles the run.
    async fn lose_it(&self, hits: u64) -> RunId {
        let id = self.second.runtime.enqueue(StartRun::new("a", "go", World::person()), None).await.unwrap();
        let execution = self.first.runtime.claim(id).await.unwrap();
        let segment = tokio::spawn(execution.finish());
        self.faults.wait_for_hits(hits).await;
        self.place.clock.advance(Duration::from_secs(61));
        // Nothing of the first process runs between these two: this runtime has one thread, and the store never waits.
        self.second.runtime.sweep(10, false).await.unwrap();
        segment.await.unwrap().unwrap_err();
        self.faults.heal();
        assert!(self.first.runtime.engine().late_outcomes_recorded(Duration::from_secs(20)).await);
        id
    }
}

#[tokio::test]
async fn a_stamp_that_came_to_be_unheard_is_said_to_be_unused_once_the_right_is_gone_so_that_no_doubt_is_left() {
    let scene = Scene::new(WriteEffect::NonIdempotent, &[]);
    scene.faults.arm(Fault::on(Op::Write, How::After).on_entry("write_stamped").times(1));
    scene.faults.arm(Fault::on(Op::Write, How::Before).on_entry("write_stamped"));
    let id = scene.lose_it(2).await;
    let kinds = scene.second.kinds(id).await;
    assert_eq!(kinds[kinds.len() - 4..], ["lease_expired", "in_doubt", "write_not_started", "requeued"]);
    assert_eq!(scene.second.row(id).await.state, State::Queued);
    assert_eq!(scene.recorder.count("page.put"), 0);
}

#[tokio::test]
async fn a_repeat_that_could_not_be_stamped_is_no_word_on_the_entry_before_it() {
    let scene = Scene::new(WriteEffect::Idempotent, &[WriteAnswer::Unknown { why: "cut".into() }]);
    scene.faults.arm(Fault::on(Op::Write, How::Before).on_entry("write_restamped"));
    let id = scene.lose_it(1).await;
    let kinds = scene.second.kinds(id).await;
    assert_eq!(kinds.last(), Some(&"requeued"), "{kinds:?}");
    assert!(!kinds.contains(&"write_not_started"), "{kinds:?}");
    assert!(scene.second.row(id).await.fence.is_some(), "it was entered");
    assert_eq!(scene.recorder.count("page.put"), 1);
}
