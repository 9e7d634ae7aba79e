//! A run from start to end, as the record and the far side see it.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use async_trait::async_trait;
use leasehold::{
    agent::tool::{Approval, Arguments, WriteAnswer, WriteEffect, WritePermit},
    run::{Fence, Outcome, State},
    store::Store,
};
use leasehold_testkit::world::{Inside, RecordedRead, RecordedWrite, Recorder, World};
use std::sync::{Arc, Mutex, OnceLock};

const APPEND: &str = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "one" } }]
[[reply]]
text = "done"
"#;

/// Looks at the row from outside while the tool runs.
#[derive(Default)]
struct Look {
    store: OnceLock<Arc<dyn Store>>,
    seen: Mutex<Option<(Option<Fence>, String)>>,
}

#[async_trait]
impl Inside for Look {
    async fn inside(&self, permit: &WritePermit, _: &Arguments) -> Option<WriteAnswer> {
        let store = self.store.get().expect("set before the run");
        let row = store.load(permit.run()).await.expect("readable").expect("there");
        *self.seen.lock().expect("not poisoned") = Some((row.fence, row.lease.expect("held").holder));
        None
    }
}

#[tokio::test]
async fn a_write_waits_for_a_person_and_runs_once_under_the_lease_of_the_segment_that_resumes() {
    let recorder = Recorder::default();
    let look = Arc::new(Look::default());
    let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder).inside(look.clone());
    let world = World::builder(APPEND).tool(tool.tool(Approval::Required)).build();
    look.store.set(Arc::clone(&world.store)).ok();
    let id = world.run("append").await;
    let waiting = world.row(id).await;
    assert_eq!(waiting.state, State::WaitingForApproval);
    assert_eq!(waiting.fence, None);
    assert_eq!(recorder.entries(), []);

    let ended = world.approve(id).await.expect("held to the end");
    assert_eq!(ended.state, State::Completed);
    assert_eq!(recorder.count("ledger.append"), 1);
    let entered = &recorder.entries()[0];
    let (fence, holder) = look.seen.lock().expect("not poisoned").clone().expect("entered");
    let fence = fence.expect("stamped while it runs");
    assert_eq!(holder, "resume:test:1");
    assert_eq!(fence.idempotency_key, entered.key);
    assert_eq!(entered.key, id.idempotency_key(&fence.call_id));
    assert_eq!((fence.epoch, entered.epoch), (2, 2));
    let story = world.story(id).await;
    assert_eq!(story.output.as_deref(), Some("done"));
    assert_eq!(story.calls[&fence.call_id].outcome.as_ref().expect("known").outcome, Outcome::Done);
}

#[tokio::test]
async fn a_write_that_needs_no_approval_runs_on_the_first_pass_fenced_under_interactive_and_worker() {
    for queued in [false, true] {
        let recorder = Recorder::default();
        let look = Arc::new(Look::default());
        let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder).inside(look.clone());
        let world = World::builder(APPEND).tool(tool.tool(Approval::None)).build();
        look.store.set(Arc::clone(&world.store)).ok();
        let id = if queued {
            let start = leasehold::StartRun::new("a", "append", World::person());
            let id = world.runtime.enqueue(start, None).await.expect("enqueued");
            world.runtime.claim(id).await.expect("claimed").finish().await.expect("held to the end");
            id
        } else {
            world.run("append").await
        };
        assert_eq!(world.row(id).await.state, State::Completed);
        assert_eq!(recorder.count("ledger.append"), 1);
        let (fence, holder) = look.seen.lock().expect("not poisoned").clone().expect("entered");
        assert!(fence.is_some());
        assert_eq!(holder, if queued { "worker:test:1" } else { "interactive:test:1" });
        assert_eq!(world.row(id).await.fence, None);
    }
}

#[tokio::test]
async fn a_doubtful_write_is_in_doubt_and_the_model_is_not_told_that_it_failed() {
    let recorder = Recorder::default();
    let tool = RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, &recorder)
        .answers([WriteAnswer::Unknown { why: "status 500".into() }]);
    let world = World::builder(APPEND).tool(tool.tool(Approval::None)).build();
    let id = world.run("append").await;
    let doubted = world.row(id).await;
    assert_eq!((doubted.state, doubted.reason.expect("dead").as_str()), (State::Dead, "write_in_doubt"));
    assert!(doubted.fence.is_some());
    assert_eq!(recorder.count("ledger.append"), 1);
    assert_eq!(world.model.requests().len(), 1, "the model hears nothing before a person does");
}

#[tokio::test]
async fn reads_of_a_turn_run_and_their_results_stand_in_the_order_of_the_calls() {
    let recorder = Recorder::default();
    let script = r#"
[[reply]]
calls = [{ tool = "notes.a", arguments = { text = "1" } }, { tool = "notes.b", arguments = { text = "2" } }]
[[reply]]
text = "read"
"#;
    let world = World::builder(script)
        .tool(RecordedRead::new("notes.a", &recorder).tool())
        .tool(RecordedRead::new("notes.b", &recorder).tool())
        .build();
    let id = world.run("read").await;
    assert_eq!(world.row(id).await.state, State::Completed);
    assert_eq!(world.results(), [("t1c0".into(), "1".into()), ("t1c1".into(), "2".into())]);
}
