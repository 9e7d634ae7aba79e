//! The end of a pool: what is in flight finishes within the grace period, what may be handed back then is, and an interruption costs
//! no requeue. A lost lease does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use async_trait::async_trait;
use leasehold::{
    StartRun,
    agent::tool::{Approval, Arguments, ReadAnswer, ReadTool, Tool, ToolSpec, WriteEffect},
    run::{RunId, State},
    worker::pool::{PoolConfig, Worked},
};
use leasehold_testkit::{
    park::{Park, Place},
    world::{RecordedWrite, Recorder, World, spec},
};
use std::{sync::Arc, time::Duration};
use tokio::{sync::Notify, task::JoinHandle};

const SCRIPT: &str =
    "[[reply]]\ncalls = [{ tool = \"desk.do\", arguments = { text = \"one\" } }]\n[[reply]]\ntext = \"done\"\n";
const GRACE: Duration = Duration::from_secs(10);

fn write(effect: WriteEffect, recorder: &Recorder, park: &Arc<Park>) -> Tool {
    RecordedWrite::new("desk.do", effect, recorder).inside(park.clone()).tool(Approval::None)
}

fn world(place: &Place, name: &str, tool: Tool) -> World {
    World::builder(SCRIPT).tool(tool).on(&place.store, &place.clock).process(name).build()
}

async fn enqueue(world: &World) -> RunId {
    world.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.unwrap()
}

/// A pool that runs, and is asked to end once somebody is in the tool.
fn pool(world: &World) -> JoinHandle<Worked> {
    let runtime = world.runtime.clone();
    tokio::spawn(async move { runtime.work(PoolConfig { grace: GRACE, ..PoolConfig::default() }).await })
}

#[tokio::test(start_paused = true)]
async fn an_idempotent_write_that_outlasts_the_grace_is_handed_back_and_repeated_with_its_key() {
    let place = Place::memory();
    let (recorder, park) = (Recorder::default(), Park::in_tool());
    let ending = world(&place, "test:1", write(WriteEffect::Idempotent, &recorder, &park));
    let id = enqueue(&ending).await;
    let working = pool(&ending);
    park.reached().await;
    ending.runtime.stop();
    working.await.unwrap();
    let row = ending.row(id).await;
    assert_eq!((row.state, row.requeues, row.epoch), (State::Queued, 0, 1), "handed back, and no requeue spent");
    assert!(row.fence.is_some() && row.lease.is_none(), "what may have happened stays fenced");
    park.release();
    let next = world(&place, "test:2", write(WriteEffect::Idempotent, &recorder, &park));
    assert_eq!(next.claim(id).await.unwrap().state, State::Completed);
    let entries = recorder.entries();
    assert_eq!(entries.len(), 2);
    assert_eq!((&entries[0].key, &entries[0].arguments), (&entries[1].key, &entries[1].arguments));
}

/// A read that never answers.
struct Endless(ToolSpec, Arc<Notify>);

#[async_trait]
impl ReadTool for Endless {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }
    async fn call(&self, _: &Arguments) -> ReadAnswer {
        self.1.notify_one();
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_read_that_outlasts_the_grace_is_handed_back() {
    let place = Place::memory();
    let entered = Arc::new(Notify::new());
    let endless = ToolSpec { timeout: Duration::from_secs(3_600), ..spec("desk.do") };
    let ending = world(&place, "test:1", Tool::Read(Arc::new(Endless(endless, entered.clone()))));
    let id = enqueue(&ending).await;
    let working = pool(&ending);
    entered.notified().await;
    ending.runtime.stop();
    working.await.unwrap();
    let row = ending.row(id).await;
    assert_eq!((row.state, row.requeues), (State::Queued, 0));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_nobody_may_repeat_is_never_handed_back() {
    for lives in [true, false] {
        let place = Place::memory();
        let (recorder, park) = (Recorder::default(), Park::in_tool());
        let ending = world(&place, "test:1", write(WriteEffect::NonIdempotent, &recorder, &park));
        let id = enqueue(&ending).await;
        let working = pool(&ending);
        park.reached().await;
        ending.runtime.stop();
        working.await.unwrap();
        let row = ending.row(id).await;
        assert_eq!((row.state, row.epoch), (State::Running, 1), "it is still in the tool, and still the holder");
        let next = world(&place, "test:2", write(WriteEffect::NonIdempotent, &recorder, &park));
        if lives {
            // The process goes on with other things: the outcome is recorded when it comes, and then the run is handed back.
            park.release();
            while ending.row(id).await.state == State::Running {
                tokio::task::yield_now().await;
            }
            let row = ending.row(id).await;
            assert_eq!((row.state, row.requeues, &row.fence), (State::Queued, 0, &None));
            assert_eq!(next.claim(id).await.unwrap().state, State::Completed);
        } else {
            next.lapse().await;
            let row = next.row(id).await;
            assert_eq!((row.state, row.reason.unwrap().as_str()), (State::Dead, "write_in_doubt"));
        }
        assert_eq!(recorder.entries().len(), 1, "once, whatever became of it");
    }
}

#[tokio::test(start_paused = true)]
async fn an_interruption_costs_no_requeue_and_a_lost_lease_does() {
    let place = Place::memory();
    for (interrupted, spent) in [(true, 0), (false, 1)] {
        let (recorder, park) = (Recorder::default(), Park::in_tool());
        let first = world(&place, "test:1", write(WriteEffect::Idempotent, &recorder, &park));
        let id = enqueue(&first).await;
        let working = pool(&first);
        park.reached().await;
        if interrupted {
            first.runtime.stop();
            working.await.unwrap();
        } else {
            working.abort();
            working.await.unwrap_err();
            world(&place, "test:2", write(WriteEffect::Idempotent, &recorder, &park)).lapse().await;
        }
        assert_eq!((first.row(id).await.state, first.row(id).await.requeues), (State::Queued, spent));
        park.release();
    }
}
