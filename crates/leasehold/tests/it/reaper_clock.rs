//! The sweep against the store's clock: where that jumps, steps back or cannot be asked, no lease of a living holder is taken away,
//! and no lease of a dead one lasts longer than a ttl more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    clock::ManualClock,
    run::{Backoff, Policy, RunId, State},
    store::{Held, Store, engine::Engine, memory::MemoryStore},
    worker::{Reaper, Skip, Swept},
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op,
    fixture::{TTL, insert, running},
};
use std::{sync::Arc, time::Duration};

const HOUR_NS: i64 = 3_600_000_000_000;

/// A store on one clock, and a sweeper on another.
struct Apart {
    faults: Arc<FaultyStore>,
    store_clock: Arc<ManualClock>,
    own_clock: Arc<ManualClock>,
    reaper: Reaper,
}

impl Apart {
    fn new() -> Self {
        let (store_clock, own_clock) = (ManualClock::new(), ManualClock::new());
        let faults = FaultyStore::new(MemoryStore::new(store_clock.clone()));
        let backoff = Backoff { initial: TTL, factor: 1.0, max: TTL, jitter: false };
        let policy = Policy { max_requeues: 3, backoff };
        let engine = Arc::new(Engine::new(faults.clone(), own_clock.clone(), policy, TTL));
        Self { faults, store_clock, own_clock: own_clock.clone(), reaper: Reaper::new(engine, own_clock) }
    }

    /// Time that truly passes.
    fn pass(&self, by: Duration) {
        self.store_clock.advance(by);
        self.own_clock.advance(by);
    }

    async fn held(&self) -> Held {
        let first = insert(running("a"));
        let id = first.row.id;
        self.faults.insert(first).await.unwrap();
        let row = self.faults.load(id).await.unwrap().unwrap();
        Held { id, epoch: row.epoch, lease_id: row.lease.unwrap().lease_id }
    }

    async fn renew(&self, held: Held) {
        let store = self.faults.clone();
        let looks = tokio::task::spawn_blocking(move || store.renewer().unwrap().renew(&[held], TTL)).await.unwrap().unwrap();
        assert!(looks[0].held);
    }

    async fn sweep(&self) -> Swept {
        self.reaper.sweep(10, false).await.unwrap()
    }
}

fn ids(swept: &Swept) -> Vec<RunId> {
    swept.settled.iter().map(|(id, _)| *id).collect()
}

#[tokio::test]
async fn a_jump_of_the_stores_clock_expires_nothing_for_one_ttl_and_then_what_nobody_renewed() {
    let apart = Apart::new();
    let (living, orphan) = (apart.held().await, apart.held().await);
    assert_eq!(apart.sweep().await, Swept::default());
    apart.pass(Duration::from_secs(5));
    apart.store_clock.step_boot(HOUR_NS);
    let swept = apart.sweep().await;
    assert_eq!((swept.skipped, ids(&swept)), (Some(Skip::ClockJump(Duration::from_secs(3_600))), vec![]));
    assert_eq!(swept.skipped.unwrap().to_string(), "the store's clock jumped forward by 3600.0 s");
    apart.renew(living).await;
    apart.pass(TTL - Duration::from_nanos(1));
    assert!(apart.sweep().await.skipped.is_some(), "for a whole ttl");
    apart.renew(living).await;
    apart.pass(Duration::from_nanos(1));
    let swept = apart.sweep().await;
    assert_eq!((swept.skipped, ids(&swept)), (None, vec![orphan.id]));
    assert_eq!(apart.faults.load(living.id).await.unwrap().unwrap().state, State::Running);
}

#[tokio::test]
async fn a_clock_that_is_set_a_little_is_no_jump() {
    let apart = Apart::new();
    let orphan = apart.held().await;
    apart.sweep().await;
    apart.pass(TTL);
    let tenth = i64::try_from(TTL.as_nanos()).unwrap() / 10;
    apart.store_clock.step_boot(tenth);
    assert_eq!(ids(&apart.sweep().await), [orphan.id]);
    apart.held().await;
    apart.pass(TTL);
    apart.store_clock.step_boot(tenth + 1);
    assert!(matches!(apart.sweep().await.skipped, Some(Skip::ClockJump(_))));
}

#[tokio::test]
async fn a_step_back_of_the_stores_clock_lets_no_dead_lease_live_a_ttl_longer() {
    let apart = Apart::new();
    let (living, orphan) = (apart.held().await, apart.held().await);
    apart.sweep().await;
    apart.store_clock.step_boot(-HOUR_NS);
    let swept = apart.sweep().await;
    assert_eq!((swept.skipped, swept.watched, ids(&swept)), (None, 2, vec![]), "neither is known to be over");
    apart.pass(TTL / 3);
    apart.renew(living).await;
    let swept = apart.sweep().await;
    assert_eq!((swept.watched, &swept.shared), (1, &vec![]), "a renewed lease ends when it should again");
    apart.pass(TTL / 3);
    apart.renew(living).await;
    apart.pass(TTL / 3 + Duration::from_secs(1));
    let swept = apart.sweep().await;
    assert_eq!((ids(&swept), swept.watched), (vec![orphan.id], 0));
    assert_eq!(apart.faults.load(living.id).await.unwrap().unwrap().epoch, living.epoch);
}

#[tokio::test]
async fn a_holder_with_a_longer_lease_that_renews_is_watched_and_keeps_it() {
    let apart = Apart::new();
    let held = apart.held().await;
    let store = apart.faults.clone();
    for _ in 0..5 {
        let store = store.clone();
        let renew = move || store.renewer().unwrap().renew(&[held], TTL * 2);
        tokio::task::spawn_blocking(renew).await.unwrap().unwrap();
        let swept = apart.sweep().await;
        assert_eq!((swept.watched, ids(&swept), swept.shared), (1, vec![], vec![]));
        apart.pass(TTL * 2 / 3);
    }
}

#[tokio::test]
async fn a_store_that_was_away_for_longer_than_a_lease_expires_nothing_for_one_ttl() {
    let apart = Apart::new();
    let (living, orphan) = (apart.held().await, apart.held().await);
    apart.sweep().await;
    apart.faults.arm(Fault::on(Op::Query, How::Before));
    apart.reaper.sweep(10, false).await.unwrap_err();
    apart.pass(TTL + Duration::from_secs(1));
    apart.reaper.sweep(10, false).await.unwrap_err();
    apart.faults.heal();
    let swept = apart.sweep().await;
    assert_eq!((swept.skipped, ids(&swept)), (Some(Skip::Outage), vec![]));
    apart.renew(living).await;
    apart.pass(TTL / 2);
    apart.renew(living).await;
    apart.pass(TTL / 2);
    assert_eq!(ids(&apart.sweep().await), [orphan.id]);
}

#[tokio::test(start_paused = true)]
async fn a_process_that_stood_still_does_not_blame_the_store_and_expires_nothing_for_one_ttl_either() {
    let second = Duration::from_secs(1);
    for (ticks, expected) in [(1, Skip::StoodStill(TTL * 2 - second)), (120, Skip::Outage)] {
        let apart = Apart::new();
        apart.held().await;
        apart.sweep().await;
        apart.faults.arm(Fault::on(Op::Query, How::Before));
        apart.reaper.sweep(10, false).await.unwrap_err();
        let pass = async {
            // Stopped: the machine's clock goes on and nothing here does. Or running, tick by tick.
            for _ in 0..ticks {
                apart.pass(TTL * 2 / ticks);
                tokio::time::sleep(second).await;
            }
        };
        tokio::select! {
            biased;
            () = apart.reaper.watch_own_time() => {}
            () = pass => {}
        }
        apart.faults.heal();
        let swept = apart.sweep().await;
        assert_eq!((swept.skipped, ids(&swept)), (Some(expected), vec![]));
    }
}
