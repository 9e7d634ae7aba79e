//! Records in PostgreSQL: what a database refuses is no lost race, and what is not committed is not there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::store::{Record, Store as _, postgres::PostgresStore};
use leasehold_testkit::postgres::{Cluster, Version};

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_records_that_the_database_refuses_is_an_error_and_no_lost_race() {
    let database = Cluster::shared(Version::V15).database().await;
    let owner = PostgresStore::connect(&database.url()).await.unwrap();
    assert!(owner.put_record(Record::new("user", "ada", "{}")).await.unwrap());
    let name = format!("reader_{}", database.name());
    let make = format!("CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}");
    database.execute(&make).await.unwrap();
    let url = format!("postgres://{name}:x@127.0.0.1:{}/{}", database.cluster().port(), database.name());
    let reader = PostgresStore::connect(&url).await.unwrap();
    let seen = reader.record("user", "ada").await.unwrap().unwrap();
    let new = || Record::new("user", "bob", "{}");
    for refused in [vec![seen.clone()], vec![new()], vec![new(), seen.clone()]] {
        let error = reader.put_records(refused).await.unwrap_err();
        assert!(error.0.contains("42501"), "{error}");
    }
    reader.remove_record("user", "ada", 1).await.unwrap_err();
    assert_eq!(owner.records("user", None, 9).await.unwrap(), [seen]);
    database.execute(&format!("DROP OWNED BY {name} CASCADE; DROP ROLE {name}")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_writer_of_records_that_goes_away_in_the_middle_has_written_none() {
    let database = Cluster::shared(Version::V15).database().await;
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    assert!(store.put_record(Record::new("user", "b", "{}")).await.unwrap());
    let other = database.cluster().client(database.name()).await.unwrap();
    other.batch_execute("BEGIN; SELECT 1 FROM records WHERE key = 'b' FOR UPDATE").await.unwrap();
    let both = vec![Record::new("user", "a", "{}"), Record { version: 1, ..Record::new("user", "b", "new") }];
    let writer = tokio::spawn({
        let store = store.clone();
        async move { store.put_records(both).await }
    });
    // It has written the first and waits for the second.
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
    let watch = database.cluster().client(database.name()).await.unwrap();
    while watch.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
    writer.abort();
    assert!(writer.await.unwrap_err().is_cancelled());
    other.batch_execute("COMMIT").await.unwrap();
    // Its connection is closed; what it had begun is undone, and nobody has to wait for it.
    assert!(store.put_record(Record::new("user", "a", "mine")).await.unwrap());
    let bodies: Vec<String> = store.records("user", None, 9).await.unwrap().into_iter().map(|r| r.body).collect();
    assert_eq!(bodies, ["mine", "{}"]);
}
