//! Renewals, durability, and many callers at once.

use super::World;
use crate::fixture::{TTL, expire, foreign, insert, large_entry, queued, record, running};
use leasehold::{
    run::{Entry, LeaseId, RunId, Snapshot, State},
    store::{Answer, Filter, Held, Look, Renewer},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

fn held(row: &Snapshot) -> Held {
    Held { id: row.id, epoch: row.epoch, lease_id: row.lease.as_ref().unwrap().lease_id }
}

/// Uses a renewer where it belongs: on a thread that may block.
async fn renewing<T: Send + 'static>(world: &World, work: impl FnOnce(&mut dyn Renewer) -> T + Send + 'static) -> T {
    let store = world.store.clone();
    tokio::task::spawn_blocking(move || work(&mut *store.renewer().unwrap())).await.unwrap()
}

fn sorted(mut looks: Vec<Look>) -> Vec<Look> {
    looks.sort_by_key(|l| (l.right.id, l.right.epoch));
    looks
}

pub(super) async fn a_renewal_extends_only_what_is_held(world: World) {
    let mine = world.add(running("a")).await;
    let too = world.add(running("a")).await;
    let not_asked = world.add(running("a")).await;
    let waits = world.add(queued("a")).await;
    world.clock.advance(Duration::from_secs(9));
    let other_epoch = Held { epoch: 2, ..held(&not_asked) };
    let other_lease = Held { lease_id: LeaseId::random(), ..held(&not_asked) };
    let gone = Held { id: RunId::new(), ..held(&mine) };
    let unheld = Held { id: waits.id, epoch: 0, lease_id: LeaseId::random() };
    let asked = [held(&mine), held(&too), other_epoch, gone, unheld];
    let looks = renewing(&world, move |r| r.renew(&asked, TTL).unwrap()).await;
    let look = |right: Held, held| Look { right, held, renewed: held, sequence: 1, cancel_requested: false };
    let [mine_held, too_held, ..] = asked;
    let found = [look(mine_held, true), look(too_held, true), look(other_epoch, false), look(unheld, false)];
    assert_eq!(sorted(looks), found);
    let looks = renewing(&world, move |r| r.renew(&[other_lease], TTL).unwrap()).await;
    assert_eq!(looks, [look(other_lease, false)]);
    let ends = |row: &Snapshot| row.lease.as_ref().map(|l| l.expires_at.ns);
    for row in [&mine, &too] {
        assert_eq!(ends(&world.row(row.id).await), ends(row).map(|ns| ns + 9_000_000_000));
        assert_eq!(world.journal(row.id).await.len(), 1, "a renewal journals nothing");
    }
    for row in [&not_asked, &waits] {
        assert_eq!(world.row(row.id).await, *row);
    }
    assert_eq!(renewing(&world, |r| r.renew(&[], TTL).unwrap()).await, []);
    // A process that lost the run and claimed it again asks about both of its rights to it.
    let both = [Held { epoch: 0, lease_id: LeaseId::random(), ..mine_held }, mine_held, Held { epoch: 2, ..mine_held }];
    let told = |looks: Vec<Look>| sorted(looks).iter().map(|l| (l.right, l.held)).collect::<Vec<_>>();
    for asked in [both, [both[2], both[1], both[0]]] {
        let expected = [(both[0], false), (both[1], true), (both[2], false)];
        assert_eq!(told(renewing(&world, move |r| r.renew(&asked, TTL).unwrap()).await), expected);
        assert_eq!(told(renewing(&world, move |r| r.look(&asked).unwrap()).await), expected);
    }
}

pub(super) async fn a_look_reports_foreign_changes_and_extends_nothing(world: World) {
    let row = world.add(running("a")).await;
    let mut cancel = foreign(&row, "cancel");
    (cancel.next.state, cancel.next.cancel_requested) = (State::Cancelling, true);
    let cancelled = world.apply(cancel).await;
    world.clock.advance(TTL);
    let asked = held(&row);
    let looks = renewing(&world, move |r| r.look(&[asked]).unwrap()).await;
    assert_eq!(looks, [Look { right: asked, held: true, renewed: false, sequence: 2, cancel_requested: true }]);
    assert_eq!(world.row(row.id).await, cancelled);
    let mut end = expire(&cancelled, false);
    (end.next.state, end.next.cancel_requested) = (State::Cancelled, true);
    world.apply(end).await;
    let looks = renewing(&world, move |r| r.look(&[asked]).unwrap()).await;
    assert_eq!(looks, [Look { right: asked, held: false, renewed: false, sequence: 3, cancel_requested: true }]);
}

pub(super) async fn what_was_acknowledged_is_there_for_another_handle(world: World) {
    let row = world.add(running("a")).await;
    let row = world.apply(record(&row, "acknowledged")).await;
    let other = world.subject.reopen().await;
    assert_eq!(other.load(row.id).await.unwrap(), Some(row.clone()));
    assert_eq!(other.journal(row.id, 0, 10).await.unwrap(), world.journal(row.id).await);
    assert!(matches!(other.write(record(&row, "by the other")).await.unwrap(), Answer::Applied(Some(_))));
    assert_eq!(world.write(record(&row, "stale")).await, Answer::Moved);
    assert_eq!(world.journal(row.id).await.len(), 3);
}

pub(super) async fn eight_writers_leave_no_gap(world: World) {
    const EACH: usize = 12;
    let row = world.add(queued("a")).await;
    let id = row.id;
    let stores = [world.store.clone(), world.subject.reopen().await];
    let writers: Vec<_> = (0..8)
        .map(|n| {
            let store = stores[n % 2].clone();
            tokio::spawn(async move {
                for _ in 0..EACH {
                    loop {
                        let seen = store.load(id).await.unwrap().unwrap();
                        match store.write(foreign(&seen, &format!("writer {n}"))).await.unwrap() {
                            Answer::Applied(_) => break,
                            other => assert_eq!(other, Answer::Moved),
                        }
                    }
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    let journal = world.journal(id).await;
    let expected: Vec<u64> = (0..=8 * EACH as u64).collect();
    assert_eq!(journal.iter().map(|e| e.sequence).collect::<Vec<_>>(), expected);
    assert_eq!(world.row(id).await.sequence, 8 * EACH as u64 + 1);
    for n in 0..8 {
        let name = format!("writer {n}");
        assert_eq!(journal.iter().filter(|e| e.holder.as_ref() == Some(&name)).count(), EACH);
    }
}

pub(super) async fn readers_and_renewals_stand_beside_large_writes(world: World) {
    const WRITERS: usize = 20;
    let done = Arc::new(AtomicBool::new(false));
    let renewed = world.add(running("renewed")).await;
    let asked = held(&renewed);
    let (store, stop) = (world.store.clone(), done.clone());
    let renewals = tokio::task::spawn_blocking(move || {
        let mut renewer = store.renewer().unwrap();
        let mut count = 0;
        while !stop.load(Ordering::SeqCst) {
            let looks = renewer.renew(&[asked], TTL).unwrap();
            assert!(looks[0].held);
            count += 1;
        }
        count
    });
    let stores = [world.store.clone(), world.subject.reopen().await];
    let mut work = Vec::new();
    for n in 0..WRITERS {
        let store = stores[n % 2].clone();
        work.push(tokio::spawn(async move {
            let first = insert(running("a"));
            let id = first.row.id;
            store.insert(first).await.unwrap();
            for step in 1..=5 {
                let row = store.load(id).await.unwrap().unwrap();
                let mut write = record(&row, "");
                write.entries = vec![Entry { write_id: write.write_id, ..large_entry(step, 300_000) }];
                assert!(matches!(store.write(write).await.unwrap(), Answer::Applied(_)));
                assert_eq!(store.journal(id, step, 1).await.unwrap().len(), 1);
                store.list(&Filter::default(), None, 50).await.unwrap();
            }
            assert_eq!(store.journal(id, 0, 100).await.unwrap().len(), 6);
        }));
    }
    for one in work {
        one.await.unwrap();
    }
    done.store(true, Ordering::SeqCst);
    let count = renewals.await.unwrap();
    assert!(count >= 5, "renewals were kept out by writes: {count}");
}
