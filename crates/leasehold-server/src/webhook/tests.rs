//! The sender on a store in memory with a clock that is moved, against a real receiver.

use super::{
    deliver::Delivery,
    outbox::{Event, KIND},
    sender::Sender,
    sign::Secret,
};
use crate::config::{Origin, Webhook};
use leasehold::{
    Runtime, RuntimeConfig,
    agent::registry::Registry,
    clock::{ManualClock, WallClock as _},
    run::Snapshot,
    store::{Record, Store, memory::MemoryStore, sqlite::SqliteStore},
};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    fixture,
};
use std::{sync::Arc, time::Duration};
use strum::IntoEnumIterator as _;

const HOUR: Duration = Duration::from_secs(3600);

struct Scene {
    clock: Arc<ManualClock>,
    store: Arc<dyn Store>,
    runtime: Runtime,
    receiver: FarSide,
}

impl Scene {
    async fn new() -> Self {
        let clock = ManualClock::new();
        Self::on(MemoryStore::new(clock.clone()), clock).await
    }

    async fn on(store: Arc<dyn Store>, clock: Arc<ManualClock>) -> Self {
        let runtime = Runtime::new(RuntimeConfig::new(store.clone(), Registry::new(), clock.clone())).unwrap();
        Self { clock, store, runtime, receiver: FarSide::start().await.unwrap() }
    }

    /// As a process that has just started.
    fn sender(&self) -> Sender {
        let webhook = Webhook {
            url: self.receiver.url("/hook"),
            secret_env: String::new(),
            events: Event::iter().collect(),
            link_base: None,
            insecure_http: false,
            origin: Origin::Default,
        };
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let delivery = Delivery::new(&webhook, secret).unwrap();
        Sender::new(self.runtime.clone(), self.clock.clone(), delivery, webhook.events)
    }

    async fn add(&self, row: Snapshot) -> Snapshot {
        self.store.insert(fixture::insert(row.clone())).await.unwrap();
        row
    }

    async fn settled_now(&self) -> Snapshot {
        let finished_at = Some(leasehold::clock::to_millis(self.clock.now()));
        self.add(Snapshot { finished_at, ..fixture::completed("a") }).await
    }

    async fn records(&self) -> Vec<Record> {
        self.store.records(KIND, None, 999).await.unwrap()
    }
}

#[tokio::test]
async fn what_still_waits_after_a_day_is_not_told_again_and_what_is_old_is_taken_away() {
    let scene = Scene::new().await;
    let mut first = scene.sender();
    first.once().await.unwrap();
    scene.add(fixture::waiting("a", None)).await;
    scene.add(fixture::in_doubt("a")).await;
    let settled = scene.settled_now().await;
    first.once().await.unwrap();
    assert_eq!((scene.receiver.arrived().len(), scene.records().await.len()), (3, 3));
    // By the same process or another one, at once or days later.
    scene.clock.advance(23 * HOUR);
    for sender in [&mut first, &mut scene.sender()] {
        sender.once().await.unwrap();
    }
    assert_eq!(scene.records().await.len(), 3);
    scene.clock.advance(2 * HOUR);
    for sender in [&mut first, &mut scene.sender()] {
        sender.once().await.unwrap();
    }
    assert_eq!(scene.receiver.arrived().len(), 3);
    let kept = scene.records().await;
    let gone = settled.id.0.simple().to_string();
    assert!(kept.len() == 2 && kept.iter().all(|record| !record.key.contains(&gone)), "{kept:?}");
}

#[tokio::test]
async fn an_event_is_tried_until_it_is_given_up_and_one_that_does_not_read_keeps_no_other_back() {
    let scene = Scene::new().await;
    scene.store.put_record(Record::new(KIND, "msg_0", "damaged")).await.unwrap();
    scene.add(fixture::waiting("a", None)).await;
    scene.receiver.then((0..99).map(|_| Then::Answer(500, String::new())));
    let mut attempts = 0;
    for _ in 0..80 {
        scene.sender().once().await.unwrap();
        // Nobody can have it twice at once, whoever looks.
        scene.sender().once().await.unwrap();
        let arrived = scene.receiver.arrived().len();
        assert!(arrived <= attempts + 1);
        attempts = arrived;
        scene.clock.advance(HOUR);
    }
    let last = scene.records().await.pop().unwrap();
    assert!(attempts > 70 && last.body.contains("given_up"), "{attempts}: {last:?}");
    scene.clock.advance(48 * HOUR);
    scene.sender().once().await.unwrap();
    assert_eq!(scene.receiver.arrived().len(), attempts, "it is over, and its run still waits");
}

#[tokio::test]
async fn a_receiver_that_asks_for_time_gets_it_and_what_settled_before_is_never_told() {
    let scene = Scene::new().await;
    scene.settled_now().await;
    scene.clock.advance(HOUR);
    scene.sender().once().await.unwrap();
    assert_eq!(scene.receiver.arrived().len(), 0);
    let row = scene.settled_now().await;
    scene.receiver.then([Then::RetryAfter(600)]);
    scene.sender().once().await.unwrap();
    scene.clock.advance(Duration::from_secs(599));
    scene.sender().once().await.unwrap();
    assert_eq!(scene.receiver.arrived().len(), 1);
    scene.clock.advance(Duration::from_secs(1));
    scene.sender().once().await.unwrap();
    let arrived = scene.receiver.arrived();
    assert!(arrived.len() == 2 && arrived[1].text().contains(&row.id.to_string()), "{arrived:?}");
    assert_eq!(arrived[0].header("webhook-id"), arrived[1].header("webhook-id"));
    assert_ne!(arrived[0].header("webhook-timestamp"), arrived[1].header("webhook-timestamp"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_who_have_the_same_events_in_mind_one_sends_each() {
    let directory = tempfile::tempdir().unwrap();
    let clock = ManualClock::new();
    let store = SqliteStore::open(directory.path().join("runs.db"), clock.clone()).unwrap();
    let scene = Scene::on(store, clock).await;
    const EVENTS: usize = 40;
    for _ in 0..EVENTS {
        scene.add(fixture::waiting("a", None)).await;
    }
    scene.receiver.then((0..EVENTS).map(|_| Then::Answer(500, String::new())));
    scene.sender().once().await.unwrap();
    assert_eq!(scene.receiver.arrived().len(), EVENTS);
    scene.clock.advance(Duration::from_secs(2));
    let senders = (0..4).map(|_| {
        let mut sender = scene.sender();
        tokio::spawn(async move { sender.once().await })
    });
    for ended in futures::future::join_all(senders).await {
        ended.unwrap().unwrap();
    }
    assert_eq!(scene.receiver.arrived().len(), 2 * EVENTS);
}
