//! What goes in comes back; what is sent twice is there once.

use super::World;
use crate::fixture::{EXTREME, completed, entry, full, guard, insert, large_entry, queued, record, running};
use leasehold::{
    clock::BootClock as _,
    run::{Entry, LeaseTime, RunId, Snapshot, WriteId},
    store::{Inserted, LeaseOp, RequestKey, Write},
};

fn with_store_end(world: &World, mut row: Snapshot) -> Snapshot {
    if let Some(lease) = &mut row.lease {
        let ns = world.clock.now().ns + i64::try_from(crate::fixture::TTL.as_nanos()).unwrap();
        lease.expires_at = LeaseTime { clock: "boot-1".into(), ns };
    }
    row
}

pub(super) async fn every_field_comes_back_as_it_went_in(world: World) {
    for row in [queued("a"), running("a"), full(), completed("a")] {
        let back = world.add(row.clone()).await;
        assert_eq!(back, with_store_end(&world, row));
    }
}

pub(super) async fn a_row_after_a_write_is_the_row_of_the_write(world: World) {
    let row = world.add(running("a")).await;
    let write = record(&row, "all of it");
    let id = row.id;
    let next = Snapshot { id, sequence: 2, ..full() };
    let write = Write { next: next.clone(), ..write };
    assert_eq!(world.apply(write).await, with_store_end(&world, next));
}

pub(super) async fn entries_come_back_as_they_went_in(world: World) {
    let row = world.add(queued("a")).await;
    let mut write = record(&row, EXTREME);
    write.next.sequence = 3;
    write.entries.push(Entry { holder: None, write_id: write.write_id, ..entry(2, "") });
    let sent = write.entries.clone();
    world.apply(write).await;
    assert_eq!(world.journal(row.id).await[1..], sent[..]);
}

pub(super) async fn an_insert_sent_again_is_applied_once(world: World) {
    let sent = insert(running("a"));
    let first = world.store.insert(sent.clone()).await.unwrap();
    let row = world.row(sent.row.id).await;
    assert_eq!(first, Inserted::Applied(row.lease.clone().map(|l| l.expires_at)));
    assert_eq!(world.store.insert(sent.clone()).await.unwrap(), first);
    assert_eq!(world.row(row.id).await, row);
    world.apply(record(&row, "later")).await;
    assert!(matches!(world.store.insert(sent).await.unwrap(), Inserted::Applied(Some(_))));
    assert_eq!(world.journal(row.id).await.len(), 2);
}

pub(super) async fn a_run_id_of_another_insert_is_refused(world: World) {
    let row = world.add(queued("a")).await;
    world.store.insert(insert(Snapshot { id: row.id, ..queued("b") })).await.unwrap_err();
    assert_eq!(world.row(row.id).await, row);
}

pub(super) async fn an_insert_that_leaves_a_gap_is_refused(world: World) {
    let mut gap = insert(queued("a"));
    gap.entries[0].sequence = 1;
    let mut miscounted = insert(queued("a"));
    miscounted.row.sequence = 2;
    let mut ungranted = insert(running("a"));
    ungranted.lease = LeaseOp::Keep;
    for bad in [gap, miscounted, ungranted] {
        let id = bad.row.id;
        world.store.insert(bad).await.unwrap_err();
        assert_eq!(world.store.load(id).await.unwrap(), None);
    }
}

fn key(scope: &str, key: &str, hash: &str) -> Option<RequestKey> {
    Some(RequestKey { scope: scope.into(), key: key.into(), request_hash: hash.into() })
}

pub(super) async fn the_request_key_finds_its_run(world: World) {
    let mut first = insert(queued("a"));
    first.key = key(EXTREME, EXTREME, "h");
    let id = first.row.id;
    world.insert(first.clone()).await;
    let mut second = insert(queued("a"));
    second.key = key(EXTREME, EXTREME, "h");
    assert_eq!(world.store.insert(second.clone()).await.unwrap(), Inserted::Existing(id));
    assert_eq!(world.store.load(second.row.id).await.unwrap(), None);
    assert_eq!(world.store.insert(first).await.unwrap(), Inserted::Applied(None), "the first, sent again, is itself");
}

pub(super) async fn another_request_under_a_key_is_a_conflict(world: World) {
    let mut first = insert(queued("a"));
    first.key = key("s", "k", "h");
    let id = first.row.id;
    world.insert(first).await;
    let mut second = insert(queued("a"));
    second.key = key("s", "k", "other");
    assert_eq!(world.store.insert(second).await.unwrap(), Inserted::KeyConflict(id));
}

pub(super) async fn the_same_key_in_another_scope_is_another_key(world: World) {
    for scope in ["s", "S", "s ", ""] {
        let mut one = insert(queued("a"));
        one.key = key(scope, "k", scope);
        world.insert(one).await;
    }
}

pub(super) async fn fifty_inserts_under_one_key_make_one_run(world: World) {
    let sends: Vec<_> = (0..50)
        .map(|_| {
            let mut one = insert(queued("a"));
            one.key = key("s", "k", "h");
            let (id, store) = (one.row.id, world.store.clone());
            tokio::spawn(async move { (id, store.insert(one).await.unwrap()) })
        })
        .collect();
    let (mut made, mut found) = (Vec::new(), Vec::new());
    for send in sends {
        match send.await.unwrap() {
            (id, Inserted::Applied(None)) => made.push(id),
            (_, Inserted::Existing(id)) => found.push(id),
            (_, other) => panic!("{other:?}"),
        }
    }
    assert_eq!(made.len(), 1);
    assert_eq!(found, vec![made[0]; 49]);
    assert_eq!(world.store.list(&Default::default(), None, 100).await.unwrap().len(), 1);
}

pub(super) async fn an_unknown_run_has_neither_row_nor_journal(world: World) {
    assert_eq!(world.store.load(RunId::new()).await.unwrap(), None);
    assert_eq!(world.journal(RunId::new()).await, []);
}

pub(super) async fn three_megabytes_come_back_as_they_went_in(world: World) {
    let row = world.add(running("a")).await;
    let mut write = record(&row, "");
    write.entries = vec![Entry { write_id: write.write_id, ..large_entry(1, 3 * 1024 * 1024) }];
    let sent = write.entries.clone();
    world.apply(write).await;
    assert!(world.journal(row.id).await[1..] == sent[..], "the payload differs");
}

pub(super) async fn a_journal_is_read_in_pages(world: World) {
    let row = world.add(queued("a")).await;
    let write_id = WriteId::random();
    let entries = (1..=9).map(|n| Entry { write_id, ..entry(n, "e") }).collect();
    let next = Snapshot { sequence: 10, ..row.clone() };
    world
        .apply(Write {
            write_id,
            guard: guard(&row),
            next,
            lease: LeaseOp::Keep,
            entries,
            charges: Vec::new(),
            called: Vec::new(),
            artifacts: Vec::new(),
        })
        .await;
    let numbers = |page: Vec<Entry>| page.iter().map(|e| e.sequence).collect::<Vec<_>>();
    assert_eq!(numbers(world.store.journal(row.id, 0, 4).await.unwrap()), [0, 1, 2, 3]);
    assert_eq!(numbers(world.store.journal(row.id, 4, 4).await.unwrap()), [4, 5, 6, 7]);
    assert_eq!(numbers(world.store.journal(row.id, 8, 4).await.unwrap()), [8, 9]);
    assert_eq!(numbers(world.store.journal(row.id, 10, 4).await.unwrap()), [0u64; 0]);
    assert_eq!(numbers(world.store.journal(row.id, u64::MAX, 4).await.unwrap()), [0u64; 0]);
    assert_eq!(numbers(world.store.journal(row.id, 0, 0).await.unwrap()), [0u64; 0]);
}
