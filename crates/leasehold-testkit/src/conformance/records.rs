//! Records: compared and set, all of them or none, in the order of their names.

use super::World;
use crate::fixture::EXTREME;
use jiff::Timestamp;
use leasehold::{
    limits::{PAGE_MAX, RECORD_BODY_BYTES_MAX, RECORD_NAME_BYTES_MAX, RECORDS_AT_ONCE_MAX},
    store::Record,
};
use std::sync::Arc;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap()
}

fn named(key: &str) -> Record {
    Record::new("user", key, "{}")
}

impl World {
    async fn put(&self, record: Record) -> bool {
        self.store.put_record(record).await.unwrap()
    }
    async fn at_version(&self, key: &str) -> u64 {
        self.store.record("user", key).await.unwrap().map_or(0, |r| r.version)
    }
    async fn keys(&self) -> Vec<String> {
        self.store.records("user", None, usize::MAX).await.unwrap().into_iter().map(|r| r.key).collect()
    }
}

pub(super) async fn a_record_comes_back_as_it_went_in(world: World) {
    assert_eq!(world.store.record("user", "ada").await.unwrap(), None);
    let full =
        Record { expires_at: Some(at(1_767_225_600_123)), ..Record::new("user", "ada@ex-1._", format!("{EXTREME}\0\u{1a}")) };
    assert!(world.put(full.clone()).await);
    assert!(world.put(named("plain")).await);
    let there = world.subject.reopen().await;
    assert_eq!(there.record("user", &full.key).await.unwrap(), Some(Record { version: 1, ..full.clone() }));
    assert_eq!(there.record("user", "plain").await.unwrap(), Some(Record { version: 1, ..named("plain") }));
    assert_eq!(there.record("token", "plain").await.unwrap(), None);
    let changed = Record { version: 1, expires_at: None, body: "[]".into(), ..full };
    assert!(world.put(changed.clone()).await);
    assert_eq!(there.record("user", &changed.key).await.unwrap(), Some(Record { version: 2, ..changed }));
    // Finer than a millisecond is not kept, and nothing is rounded up.
    let fine = Record { expires_at: Some(Timestamp::from_nanosecond(1_999_999).unwrap()), ..named("fine") };
    assert!(world.put(fine).await);
    assert_eq!(there.record("user", "fine").await.unwrap().unwrap().expires_at, Some(at(1)));
}

pub(super) async fn a_record_is_written_only_over_the_version_that_was_seen(world: World) {
    assert!(!world.put(Record { version: 1, ..named("ada") }).await, "there is none to be changed");
    assert_eq!(world.at_version("ada").await, 0);
    assert!(world.put(named("ada")).await);
    assert!(!world.put(named("ada")).await, "there is one already");
    assert!(!world.put(Record { version: 2, ..named("ada") }).await);
    assert!(world.put(Record { version: 1, ..named("ada") }).await);
    assert!(!world.put(Record { version: 1, ..named("ada") }).await);
    assert_eq!(world.at_version("ada").await, 2);
    assert!(!world.put(Record { version: u64::MAX, ..named("ada") }).await);
}

pub(super) async fn an_expired_record_stays_until_it_is_removed(world: World) {
    let old = Record { expires_at: Some(at(1)), ..named("old") };
    assert!(world.put(old).await);
    world.clock.advance(std::time::Duration::from_secs(3600));
    assert_eq!(world.keys().await, ["old"]);
    assert!(!world.store.remove_record("user", "old", 2).await.unwrap());
    assert!(!world.store.remove_record("token", "old", 1).await.unwrap());
    assert_eq!(world.at_version("old").await, 1);
    assert!(world.store.remove_record("user", "old", 1).await.unwrap());
    assert!(!world.store.remove_record("user", "old", 1).await.unwrap());
    assert_eq!(world.at_version("old").await, 0);
    assert!(world.put(named("old")).await);
}

pub(super) async fn records_come_in_the_order_of_their_keys_and_in_pages(world: World) {
    // By their bytes: upper case first, and no language's own order.
    let order = ["A", "B", "a", "a-b", "aa", "b", "\u{e4}"];
    for key in order.iter().rev() {
        assert!(world.put(named(key)).await);
    }
    assert!(world.put(Record::new("token", "aaa", "{}")).await);
    assert_eq!(world.keys().await, order);
    let page = world.store.records("user", Some("a"), 2).await.unwrap();
    assert_eq!(page.iter().map(|r| r.key.as_str()).collect::<Vec<_>>(), ["a-b", "aa"]);
    // What follows a key that is not there (any more) is found all the same.
    let rest = world.store.records("user", Some("a-c"), 9).await.unwrap();
    assert_eq!(rest.len(), 3);
    assert_eq!(world.store.records("user", Some("\u{e4}"), 9).await.unwrap(), []);
    assert_eq!(world.store.records("session", None, 9).await.unwrap(), []);
}

pub(super) async fn a_page_of_records_has_a_bound(world: World) {
    let all: Vec<Record> = (0..=PAGE_MAX).map(|n| named(&format!("{n:04}"))).collect();
    for some in all.chunks(RECORDS_AT_ONCE_MAX) {
        assert!(world.store.put_records(some.to_vec()).await.unwrap());
    }
    assert_eq!(world.keys().await.len(), PAGE_MAX);
    assert_eq!(world.store.records("user", Some("0999"), usize::MAX).await.unwrap().len(), 1);
}

pub(super) async fn records_are_written_all_or_none(world: World) {
    assert!(world.put(named("b")).await);
    let of = |key: &str, version| Record { version, body: "new".into(), ..named(key) };
    // The first, one in the middle, the last: wherever somebody was faster, none is written.
    for stale in [
        vec![of("a", 1), of("b", 1), of("c", 0)],
        vec![of("a", 0), of("b", 0), of("c", 0)],
        vec![of("a", 0), of("b", 1), of("c", 7)],
        vec![of("c", 7), of("b", 1), of("a", 0)],
    ] {
        assert!(!world.store.put_records(stale).await.unwrap());
        assert_eq!(world.keys().await, ["b"]);
        assert_eq!(world.store.record("user", "b").await.unwrap().unwrap().body, "{}");
    }
    let mixed = vec![of("c", 0), Record { version: 1, ..of("b", 1) }, Record::new("audit", "1", "b was changed")];
    assert!(world.store.put_records(mixed).await.unwrap());
    let there = world.subject.reopen().await;
    assert_eq!(there.records("user", None, 9).await.unwrap(), [Record { version: 2, ..of("b", 2) }, of("c", 1)]);
    assert_eq!(there.record("audit", "1").await.unwrap().unwrap().version, 1);
    assert!(world.store.put_records(Vec::new()).await.unwrap());
}

pub(super) async fn a_malformed_record_is_refused_and_changes_nothing(world: World) {
    let longest = "k".repeat(RECORD_NAME_BYTES_MAX);
    let largest = "b".repeat(RECORD_BODY_BYTES_MAX);
    assert!(world.put(Record::new(longest.clone(), longest.clone(), largest.clone())).await);
    let fine = || named("fine");
    for bad in [
        vec![fine(), Record::new("user", format!("{longest}k"), "{}")],
        vec![fine(), Record::new(format!("{longest}k"), "x", "{}")],
        vec![fine(), Record::new("user", "x", format!("{largest}b"))],
        vec![fine(), Record::new("user", "", "{}")],
        vec![fine(), Record::new("", "x", "{}")],
        vec![fine(), Record::new("user", "a\0b", "{}")],
        vec![fine(), fine()],
        (0..=RECORDS_AT_ONCE_MAX).map(|n| named(&n.to_string())).collect(),
    ] {
        world.store.put_records(bad).await.unwrap_err();
        assert_eq!(world.keys().await, [""; 0]);
    }
}

pub(super) async fn of_twenty_writers_of_a_record_one_is_the_first(world: World) {
    assert!(world.put(named("ada")).await);
    let mut writers = Vec::new();
    for n in 0..20 {
        let (store, record) = (Arc::clone(&world.store), Record { version: 1, body: n.to_string(), ..named("ada") });
        let told = Record::new("audit", n.to_string(), "ada was changed");
        writers.push(tokio::spawn(async move { store.put_records(vec![record, told]).await.unwrap() }));
    }
    let mut won = Vec::new();
    for (n, writer) in writers.into_iter().enumerate() {
        if writer.await.unwrap() {
            won.push(n.to_string());
        }
    }
    let there = world.store.record("user", "ada").await.unwrap().unwrap();
    let told: Vec<String> = world.store.records("audit", None, 99).await.unwrap().into_iter().map(|r| r.key).collect();
    assert_eq!((won.len(), there.version), (1, 2));
    assert_eq!((won.clone(), vec![there.body]), (told, won));
}

pub(super) async fn writers_of_the_same_records_in_any_order_do_not_wait_for_each_other_for_ever(world: World) {
    let keys = ["a", "b", "c"];
    for key in keys {
        assert!(world.put(named(key)).await);
    }
    let mut writers = Vec::new();
    for n in 0..8 {
        let store = Arc::clone(&world.store);
        writers.push(tokio::spawn(async move {
            let mut written = 0;
            while written < 5 {
                let mut all = store.records("user", None, 9).await.unwrap();
                if n % 2 == 0 {
                    all.reverse();
                }
                written += usize::from(store.put_records(all).await.unwrap());
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    for key in keys {
        assert_eq!(world.at_version(key).await, 1 + 8 * 5);
    }
}
