//! What writes count against budgets.

use super::World;
use crate::fixture::{at, record, running};
use leasehold::{
    run::{CallId, Charge, Snapshot},
    store::{Answer, Write},
};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn charge(budget: &str, call: usize, seconds: i64, max: i64, amount: i64) -> Charge {
    let call = CallId::of(1, call);
    Charge { budget: budget.into(), call, at: at(seconds * 1000), window: HOUR, max: Some(max), amount }
}

fn charged(row: &Snapshot, charges: Vec<Charge>) -> Write {
    Write { charges, ..record(row, "stamped") }
}

fn over(budget: &str) -> Answer {
    Answer::OverBudget(budget.into())
}

pub(super) async fn a_write_over_a_budget_changes_nothing_and_one_within_it_counts(world: World) {
    let (mut row, other) = (world.add(running("a")).await, world.add(running("a")).await);
    for call in 0..3 {
        row = world.apply(charged(&row, vec![charge("b", call, 1, 3, 1)])).await;
    }
    let refused = charged(&other, vec![charge("b", 0, 2, 3, 1)]);
    assert_eq!(world.write(refused).await, over("b"));
    assert_eq!((world.row(other.id).await, world.journal(other.id).await.len()), (other.clone(), 1));
    // Another budget has its own count, and what a person let through is counted and not refused.
    let row = world.apply(charged(&row, vec![charge("c", 3, 2, 1, 1)])).await;
    let told = Charge { max: None, ..charge("b", 4, 2, 0, 1) };
    let row = world.apply(charged(&row, vec![told])).await;
    assert_eq!(world.write(charged(&row, vec![charge("b", 5, 2, 4, 1)])).await, over("b"));
    world.apply(charged(&row, vec![charge("b", 5, 2, 5, 1)])).await;
}

pub(super) async fn a_call_is_counted_once_and_a_write_sent_again_is_the_same(world: World) {
    let row = world.add(running("a")).await;
    let first = charged(&row, vec![charge("b", 0, 1, 1, 1)]);
    let row = world.apply(first.clone()).await;
    let end = row.lease.as_ref().map(|l| l.expires_at.clone());
    assert_eq!(world.write(first).await, Answer::Applied(end));
    // The same call stamped anew, as after a stamp that was not used.
    let row = world.apply(charged(&row, vec![charge("b", 0, 2, 1, 1)])).await;
    assert_eq!(world.write(charged(&row, vec![charge("b", 1, 3, 1, 1)])).await, over("b"));
}

pub(super) async fn what_is_older_than_the_window_does_not_count(world: World) {
    let row = world.add(running("a")).await;
    let row = world.apply(charged(&row, vec![charge("b", 0, 0, 10, 7)])).await;
    assert_eq!(world.write(charged(&row, vec![charge("b", 1, 3599, 10, 4)])).await, over("b"));
    let row = world.apply(charged(&row, vec![charge("b", 1, 3599, 10, 3)])).await;
    let row = world.apply(charged(&row, vec![charge("b", 2, 3600, 10, 7)])).await;
    assert_eq!(world.write(charged(&row, vec![charge("b", 3, 3600, 10, 1)])).await, over("b"));
}

pub(super) async fn a_charged_write_whose_guard_does_not_hold_charges_nothing(world: World) {
    let row = world.add(running("a")).await;
    let now = world.apply(record(&row, "step")).await;
    assert_eq!(world.write(charged(&row, vec![charge("b", 0, 1, 1, 1)])).await, Answer::Moved);
    let mut stranger = charged(&now, vec![charge("b", 0, 1, 1, 1)]);
    stranger.guard.epoch += 1;
    assert_eq!(world.write(stranger).await, Answer::Fenced);
    world.apply(charged(&now, vec![charge("b", 0, 1, 1, 1)])).await;
}

pub(super) async fn charges_at_once_never_exceed_their_budgets(world: World) {
    let mut writes = Vec::new();
    for n in 0..24 {
        let row = world.add(running("a")).await;
        // In either order, so that two of them would wait for each other.
        let mut charges = vec![charge("x", 0, n, 9, 1), charge("y", 0, n, 1_000, 1)];
        if n % 2 == 0 {
            charges.reverse();
        }
        let (store, write) = (world.store.clone(), charged(&row, charges));
        writes.push(tokio::spawn(async move { store.write(write).await.unwrap() }));
    }
    let mut applied = 0;
    for write in writes {
        match write.await.unwrap() {
            Answer::Applied(_) => applied += 1,
            answer => assert_eq!(answer, over("x")),
        }
    }
    assert_eq!(applied, 9);
}
