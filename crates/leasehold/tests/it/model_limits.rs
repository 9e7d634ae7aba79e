//! What a model may be asked: replies at once and requests in a minute, over all agents of a process. Who waits takes nothing and
//! leaves no trace.

#![allow(clippy::unwrap_used, reason = "helpers of a test fail by panicking")]

use async_trait::async_trait;
use leasehold::{
    agent::{
        model::{
            Message, Model, ModelError, ModelErrorClass, ModelRequest, Reply,
            limited::{Limited, ModelLimits},
        },
        registry::{AgentSpec, Fallback},
    },
    limits::MODEL_WAIT_MAX,
    run::{RunId, State, Usage},
};
use leasehold_testkit::world::{SpiedModel, World};
use std::{
    num::NonZeroU32,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// Answers when it is let, and counts who is inside.
struct Door {
    open: Semaphore,
    asked: AtomicUsize,
    inside: AtomicUsize,
    most: AtomicUsize,
}

impl Door {
    fn new(open: usize) -> Arc<Self> {
        let count = AtomicUsize::default;
        Arc::new(Self { open: Semaphore::new(open), asked: count(), inside: count(), most: count() })
    }
    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Model for Door {
    fn name(&self) -> &str {
        "door"
    }
    async fn reply(&self, _: ModelRequest) -> Result<Reply, ModelError> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        self.open.acquire().await.unwrap().forget();
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(Reply { text: "ok".into(), calls: vec![], usage: Usage::default(), stop: "stop".into(), opaque: None })
    }
}

fn request() -> ModelRequest {
    ModelRequest {
        run: RunId::new(),
        replies_so_far: 0,
        errors_so_far: 0,
        system: String::new(),
        messages: vec![Message::User("go".into())],
        tools: vec![],
        on_text: None,
    }
}

fn at_once(door: &Arc<Door>, n: u32) -> Arc<Limited> {
    let limits = ModelLimits { max_concurrency: NonZeroU32::new(n), ..ModelLimits::default() };
    Arc::new(Limited::new(Arc::clone(door) as _, limits))
}

fn in_a_minute(door: &Arc<Door>, n: u32) -> Arc<Limited> {
    let limits = ModelLimits { requests_per_minute: NonZeroU32::new(n), ..ModelLimits::default() };
    Arc::new(Limited::new(Arc::clone(door) as _, limits))
}

#[tokio::test(start_paused = true)]
async fn no_more_replies_are_under_way_than_allowed_and_a_wait_ends_at_its_bound() {
    let door = Door::new(0);
    let model = at_once(&door, 2);
    let ask = || {
        tokio::spawn({
            let model = Arc::clone(&model);
            async move { model.reply(request()).await }
        })
    };
    let begun = tokio::time::Instant::now();
    let (first, second, third) = (ask(), ask(), ask());
    let error = third.await.unwrap().unwrap_err();
    assert_eq!((error.class, begun.elapsed()), (ModelErrorClass::Busy, MODEL_WAIT_MAX));
    assert!(!error.class.is_transient() && error.class.falls_back());
    assert_eq!(door.asked(), 2, "nothing was sent for the third");
    // One that waits a moment less gets the place that becomes free.
    let fourth = ask();
    tokio::time::sleep(MODEL_WAIT_MAX - Duration::from_millis(1)).await;
    assert_eq!(door.asked(), 2);
    door.open.add_permits(3);
    for reply in [first, second, fourth] {
        reply.await.unwrap().unwrap();
    }
    assert_eq!((door.asked(), door.most.load(Ordering::SeqCst)), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_waiting_has_taken_no_place() {
    let door = Door::new(0);
    let model = at_once(&door, 1);
    let holds = tokio::spawn({
        let model = Arc::clone(&model);
        async move { model.reply(request()).await }
    });
    for _ in 0..5 {
        assert!(tokio::time::timeout(Duration::from_secs(1), model.reply(request())).await.is_err());
    }
    door.open.add_permits(2);
    holds.await.unwrap().unwrap();
    model.reply(request()).await.unwrap();
    // One whose reply is given up in the middle gives its place back.
    assert!(tokio::time::timeout(Duration::from_secs(1), model.reply(request())).await.is_err());
    door.open.add_permits(1);
    model.reply(request()).await.unwrap();
}

#[tokio::test]
async fn requests_are_spread_over_the_minute_and_whoever_stops_waiting_costs_the_others_nothing() {
    let door = Door::new(100);
    let model = in_a_minute(&door, 300);
    let begun = Instant::now();
    model.reply(request()).await.unwrap();
    // These give up before their turn.
    for _ in 0..3 {
        assert!(tokio::time::timeout(Duration::from_millis(5), model.reply(request())).await.is_err());
    }
    let others: Vec<_> = (0..4)
        .map(|_| {
            let model = Arc::clone(&model);
            tokio::spawn(async move { model.reply(request()).await })
        })
        .collect();
    for other in others {
        other.await.unwrap().unwrap();
    }
    // Five requests, a fifth of a second apart.
    let took = begun.elapsed();
    assert!((Duration::from_millis(790)..Duration::from_millis(1_350)).contains(&took), "{took:?}");
    assert_eq!(door.asked(), 5);
}

#[tokio::test(start_paused = true)]
async fn one_request_in_a_minute_is_one() {
    let door = Door::new(100);
    let model = in_a_minute(&door, 1);
    model.reply(request()).await.unwrap();
    // The pace goes by a real clock, which stands still here.
    assert_eq!(model.reply(request()).await.unwrap_err().class, ModelErrorClass::Busy);
    assert_eq!(door.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_a_place_spends_nothing_and_goes_on_when_there_is_one() {
    let door = Door::new(0);
    let model = at_once(&door, 1);
    let holds = tokio::spawn({
        let model = Arc::clone(&model);
        async move { model.reply(request()).await }
    });
    tokio::task::yield_now().await;
    let world = World::builder("").agent(|agent| AgentSpec { model, ..agent }).build();
    let execution = world.start("go").await;
    let id = execution.run();
    let running = tokio::spawn(execution.finish());
    tokio::time::sleep(MODEL_WAIT_MAX * 5).await;
    assert_eq!((world.row(id).await.state, door.asked()), (State::Running, 1));
    door.open.add_permits(2);
    running.await.unwrap().unwrap();
    holds.await.unwrap().unwrap();
    let row = world.row(id).await;
    assert_eq!((row.state, row.requeues, row.epoch), (State::Completed, 0, 1));
    assert_eq!(world.kinds(id).await, ["started", "model_reply", "settled"]);
    assert_eq!(world.story(id).await.model_failures, 0);
}

#[tokio::test]
async fn a_cancel_ends_the_wait_and_no_model_is_asked() {
    let door = Door::new(0);
    let model = at_once(&door, 1);
    let holds = tokio::spawn({
        let model = Arc::clone(&model);
        async move { model.reply(request()).await }
    });
    while door.asked() == 0 {
        tokio::task::yield_now().await;
    }
    let world = World::builder("").agent(|agent| AgentSpec { model, ..agent }).build();
    let execution = world.start("go").await;
    let id = execution.run();
    let running = tokio::spawn(execution.finish());
    world.runtime.cancel(id, World::person(), None).await.unwrap();
    running.await.unwrap().unwrap();
    assert_eq!((world.row(id).await.state, door.asked()), (State::Cancelled, 1));
    holds.abort();
}

#[tokio::test(start_paused = true)]
async fn a_model_without_a_place_leaves_the_reply_to_the_next() {
    let door = Door::new(0);
    let model = at_once(&door, 1);
    let holds = tokio::spawn({
        let model = Arc::clone(&model);
        async move { model.reply(request()).await }
    });
    tokio::task::yield_now().await;
    let spare = Fallback { model: SpiedModel::new("[[reply]]\ntext = \"spare\"\n"), price: None, window: None };
    let world = World::builder("").agent(|agent| AgentSpec { model, fallbacks: vec![spare], ..agent }).build();
    let id = world.run("go").await;
    assert_eq!((world.row(id).await.state, door.asked()), (State::Completed, 1));
    assert_eq!(world.story(id).await.turns[0].text, "spare");
    holds.abort();
}
