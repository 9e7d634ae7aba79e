//! The faulty store fails as armed, and only so.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    clock::ManualClock,
    run::Snapshot,
    store::{Answer, Inserted, ReadError, Record, Store as _, Unavailable, memory::MemoryStore},
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op,
    fixture::{TTL, insert, record, running},
};
use std::{sync::Arc, thread};

async fn with_a_run() -> (Arc<FaultyStore>, Snapshot) {
    let store = FaultyStore::new(MemoryStore::new(ManualClock::new()));
    let row = running("a");
    store.insert(insert(row.clone())).await.unwrap();
    (store, row)
}

#[tokio::test]
async fn before_it_was_not_applied_and_after_it_was() {
    let (store, row) = with_a_run().await;
    store.fail_next(Op::Write, How::Before);
    let write = record(&row, "step");
    let _: Unavailable = store.write(write.clone()).await.unwrap_err();
    assert_eq!(store.load(row.id).await.unwrap().unwrap().sequence, 1);
    store.fail_next(Op::Write, How::After);
    let _: Unavailable = store.write(write.clone()).await.unwrap_err();
    assert_eq!(store.load(row.id).await.unwrap().unwrap().sequence, 2);
    assert!(matches!(store.write(write).await.unwrap(), Answer::Applied(Some(_))));
    assert_eq!((store.load(row.id).await.unwrap().unwrap().sequence, store.hits()), (2, 2));
}

#[tokio::test]
async fn a_fault_takes_only_the_writes_it_names_and_only_so_often() {
    let (store, row) = with_a_run().await;
    store.arm(Fault::on(Op::Write, How::Before).on_entry("write_stamped"));
    store.arm(Fault::on(Op::Write, How::Before).on_entry("cancel_requested").times(2));
    let write = record(&row, "step");
    store.write(write.clone()).await.unwrap_err();
    store.write(write.clone()).await.unwrap_err();
    store.write(write).await.unwrap();
    store.fail_next(Op::Insert, How::After);
    let lost = insert(running("a"));
    store.insert(lost.clone()).await.unwrap_err();
    assert!(matches!(store.insert(lost).await.unwrap(), Inserted::Applied(Some(_))));
}

#[tokio::test]
async fn a_lost_store_answers_nothing_until_it_is_healed() {
    let (store, row) = with_a_run().await;
    store.lose();
    assert!(matches!(store.load(row.id).await, Err(ReadError::Unavailable(_))));
    store.journal(row.id, 0, 1).await.unwrap_err();
    store.lapsed(TTL, None, 1).await.unwrap_err();
    store.renewer().unwrap().renew(&[], TTL).unwrap_err();
    store.renewer().unwrap().look(&[]).unwrap_err();
    store.heal();
    store.load(row.id).await.unwrap().unwrap();
    store.renewer().unwrap().renew(&[], TTL).unwrap();
}

#[tokio::test]
async fn what_hangs_goes_on_when_it_is_healed() {
    for (how, sequence) in [(How::Hang, 1), (How::HangAfter, 2)] {
        let (store, row) = with_a_run().await;
        store.fail_next(Op::Write, how);
        let hung = tokio::spawn({
            let (store, write) = (store.clone(), record(&row, "step"));
            async move { store.write(write).await }
        });
        store.wait_for_hits(1).await;
        // The fault is counted before the operation, so the wrapped store is looked at until it shows what the fault lets through.
        while store.inner().load(row.id).await.unwrap().unwrap().sequence != sequence {
            tokio::task::yield_now().await;
        }
        assert!(!hung.is_finished());
        store.heal();
        assert!(matches!(hung.await.unwrap().unwrap(), Answer::Applied(Some(_))));
        assert_eq!(store.load(row.id).await.unwrap().unwrap().sequence, 2);
    }
}

#[tokio::test]
async fn a_renewal_that_hangs_goes_on_when_it_is_healed() {
    let (store, _) = with_a_run().await;
    store.fail_next(Op::Renew, How::Hang);
    let mut renewer = store.renewer().unwrap();
    let hung = thread::spawn(move || renewer.renew(&[], TTL));
    store.wait_for_hits(1).await;
    store.heal();
    assert_eq!(hung.join().unwrap().unwrap(), []);
}

#[tokio::test]
async fn records_fail_as_they_are_told_to() {
    let (store, _) = with_a_run().await;
    let record = || Record::new("user", "ada", "{}");
    store.fail_next(Op::PutRecords, How::Before);
    store.put_record(record()).await.unwrap_err();
    assert_eq!(store.record("user", "ada").await.unwrap(), None);
    store.fail_next(Op::PutRecords, How::After);
    store.put_record(record()).await.unwrap_err();
    store.fail_next(Op::Record, How::Before);
    store.record("user", "ada").await.unwrap_err();
    store.fail_next(Op::Record, How::Before);
    store.records("user", None, 9).await.unwrap_err();
    assert!(!store.put_record(record()).await.unwrap());
    store.fail_next(Op::PutRecords, How::Before);
    store.remove_record("user", "ada", 1).await.unwrap_err();
    assert_eq!(store.record("user", "ada").await.unwrap().map(|r| r.version), Some(1));
}
