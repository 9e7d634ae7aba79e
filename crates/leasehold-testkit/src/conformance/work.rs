//! Work in the store's own database: it is there with the write that journals it, or neither is. Its statements are another test's; these
//! cases hold the store to the guard and to its answers.

use super::World;
use crate::fixture::{expire, foreign, record, running};
use leasehold::{
    run::Snapshot,
    store::{
        Answer, Transacted, Transaction, Unavailable, Write,
        transaction::{Undone, Work},
    },
};
use serde_json::Value;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Work without a statement, in each dialect, and how often it was begun.
struct Works {
    answer: Result<Value, Undone>,
    begun: Arc<AtomicUsize>,
}

impl Works {
    fn that(answer: Result<Value, Undone>) -> Self {
        Self { answer, begun: Arc::default() }
    }
    fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }
    fn each(&self) -> [Work; 2] {
        let (begun, answer) = (Arc::clone(&self.begun), self.answer.clone());
        let (begun_there, answer_there) = (Arc::clone(&begun), answer.clone());
        let sqlite = Work::Sqlite(Arc::new(move |_| {
            begun.fetch_add(1, Ordering::SeqCst);
            answer.clone()
        }));
        let postgres = Work::Postgres(Arc::new(move |_| {
            begun_there.fetch_add(1, Ordering::SeqCst);
            Box::pin(std::future::ready(answer_there.clone()))
        }));
        [sqlite, postgres]
    }
}

/// Does the work in the dialect that the store has; a store that has neither says so of both.
async fn transact(world: &World, works: &Works, write: &Write) -> Transacted {
    let mut last = None;
    for work in works.each() {
        let concluded = write.clone();
        let transaction = Transaction {
            run: write.next.id,
            write_id: write.write_id,
            guard: write.guard.clone(),
            work,
            bound: Duration::from_secs(5),
            conclude: Box::new(move |value| {
                assert_eq!(value, Value::from(7), "the work's result is what the write is made of");
                Ok(concluded)
            }),
        };
        match world.store.transact(transaction).await.unwrap() {
            Transacted::NoDatabase(why) => last = Some(Transacted::NoDatabase(why)),
            transacted => return transacted,
        }
    }
    last.unwrap()
}

/// Nothing of the write is there.
async fn is_as_before(world: &World, row: &Snapshot, entries: usize) {
    assert_eq!(&world.row(row.id).await, row);
    assert_eq!(world.journal(row.id).await.len(), entries);
}

/// A store without a database: it said so before it began, and nothing has changed.
async fn has_none(world: &World, works: &Works, transacted: &Transacted, row: &Snapshot, entries: usize) -> bool {
    let Transacted::NoDatabase(why) = transacted else { return false };
    let says = why.contains(&world.store.describe()) || why.contains("statement_cache=off");
    assert!(says && works.begun() == 0, "{why}");
    is_as_before(world, row, entries).await;
    true
}

pub(super) async fn work_is_there_with_its_write_or_the_store_says_that_it_has_no_database(world: World) {
    let row = world.add(running("a")).await;
    let works = Works::that(Ok(7.into()));
    let transacted = transact(&world, &works, &record(&row, "booked")).await;
    if has_none(&world, &works, &transacted, &row, 1).await {
        return;
    }
    let after = world.row(row.id).await;
    assert_eq!(transacted, Transacted::Answered(Answer::Applied(after.lease.as_ref().map(|l| l.expires_at.clone()))));
    assert_eq!((after.sequence, world.journal(row.id).await.len(), works.begun()), (2, 2, 1));
    let reopened = world.subject.reopen().await;
    assert_eq!(reopened.journal(row.id, 0, 10).await.unwrap().len(), 2);
}

pub(super) async fn work_that_is_undone_leaves_nothing_of_its_write(world: World) {
    let row = world.add(running("a")).await;
    let no = Undone::refused("the account is closed");
    let works = Works::that(Err(no.clone()));
    let transacted = transact(&world, &works, &record(&row, "booked")).await;
    if !has_none(&world, &works, &transacted, &row, 1).await {
        assert_eq!((transacted, works.begun()), (Transacted::Undone(no), 1));
        is_as_before(&world, &row, 1).await;
    }
}

pub(super) async fn work_under_a_guard_that_does_not_hold_leaves_nothing(world: World) {
    let works = Works::that(Ok(7.into()));
    let lost = world.add(running("a")).await;
    world.clock.advance(Duration::from_secs(61));
    let expired = world.apply(expire(&lost, false)).await;
    let transacted = transact(&world, &works, &record(&lost, "late")).await;
    if has_none(&world, &works, &transacted, &expired, 2).await {
        return;
    }
    assert_eq!(transacted, Transacted::Answered(Answer::Fenced));
    is_as_before(&world, &expired, 2).await;

    let moved = world.add(running("a")).await;
    let grown = world.apply(foreign(&moved, "somebody")).await;
    assert_eq!(transact(&world, &works, &record(&moved, "late")).await, Transacted::Answered(Answer::Moved));
    is_as_before(&world, &grown, 2).await;

    let gone = record(&running("a"), "nowhere");
    assert_eq!(transact(&world, &works, &gone).await, Transacted::Answered(Answer::Gone));
}

pub(super) async fn work_that_is_there_already_is_not_there_twice(world: World) {
    let row = world.add(running("a")).await;
    let (works, write) = (Works::that(Ok(7.into())), record(&row, "booked"));
    let transacted = transact(&world, &works, &write).await;
    if has_none(&world, &works, &transacted, &row, 1).await {
        return;
    }
    let after = world.row(row.id).await;
    // "Moved", and not "applied": the caller finds its write id in the journal, and the second work was undone.
    assert_eq!(transact(&world, &works, &write).await, Transacted::Answered(Answer::Moved));
    is_as_before(&world, &after, 2).await;
}

pub(super) async fn work_whose_write_cannot_be_made_leaves_nothing(world: World) {
    let row = world.add(running("a")).await;
    let works = Works::that(Ok(7.into()));
    for work in works.each() {
        let write = record(&row, "booked");
        let transaction = Transaction {
            run: row.id,
            write_id: write.write_id,
            guard: write.guard,
            work,
            bound: Duration::from_secs(5),
            conclude: Box::new(|_| Err(Unavailable("it cannot be sealed".into()))),
        };
        let answer = world.store.transact(transaction).await;
        let is_none = matches!(answer, Ok(Transacted::NoDatabase(_)));
        assert!(is_none || answer == Err(Unavailable("it cannot be sealed".into())), "{answer:?}");
    }
    is_as_before(&world, &row, 1).await;
}
