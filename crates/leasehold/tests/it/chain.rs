//! The chain that binds a journal, and sealed payloads, in both stores.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    Decision, StartRun,
    agent::tool::{Approval, WriteEffect},
    client::OrderError,
    run::{
        EntryBody, RunId, State,
        chain::{ChainError, Exported},
    },
    seal::Keyring,
};
use leasehold_testkit::{
    park::Place,
    world::{RecordedWrite, Recorder, World},
};
use std::sync::Arc;

const PUT: &str =
    "[[reply]]\ncalls = [{ tool = \"page.put\", arguments = { text = \"guarded-content\" } }]\n[[reply]]\ntext = \"done\"\n";

fn world(place: &Place, keyring: Option<&Arc<Keyring>>) -> World {
    let tool = RecordedWrite::new("page.put", WriteEffect::NonIdempotent, &Recorder::default());
    let builder = World::builder(PUT).on(&place.store, &place.clock).tool(tool.tool(Approval::Required));
    match keyring {
        Some(keyring) => builder.keyring(keyring).build(),
        None => builder.build(),
    }
}

/// A run that waited for a person and has completed.
async fn completed(world: &World) -> RunId {
    let start = StartRun::new("a", "a task of guarded-content", World::person());
    let waiting = world.runtime.start(start).await.unwrap().finish().await.unwrap();
    let digest = waiting.turn.as_ref().and_then(|turn| turn.digest.clone()).unwrap();
    let decided = world.runtime.decide(waiting.id, Decision::approve(digest, World::person())).await.unwrap();
    let row = decided.execution.unwrap().finish().await.unwrap();
    assert_eq!(row.state, State::Completed);
    row.id
}

fn keyring(id: &str) -> Arc<Keyring> {
    Arc::new(Keyring::parse(&Keyring::new_line(id).unwrap()).unwrap())
}

/// A change of the file by another hand.
fn change(place: &Place, sql: &str, id: RunId) -> usize {
    let raw = rusqlite::Connection::open(place.file.as_ref().unwrap()).unwrap();
    raw.execute(sql, [id.to_string()]).unwrap()
}

#[tokio::test]
async fn an_untouched_journal_leads_to_the_head_of_its_run_and_to_every_head_that_was_exported() {
    let place = Place::sqlite();
    let world = world(&place, None);
    let id = completed(&world).await;
    let head = world.runtime.verify_chain(id, &[]).await.unwrap().unwrap();
    assert_eq!(head.sequence, world.row(id).await.sequence);
    assert_eq!(world.runtime.verify_chain(id, &[head]).await.unwrap(), Ok(head));
    let other = Exported { sequence: head.sequence - 1, ..head };
    assert_eq!(world.runtime.verify_chain(id, &[other]).await.unwrap(), Err(ChainError::Exported(head.sequence - 1)));
    let beyond = Exported { sequence: head.sequence + 1, ..head };
    assert_eq!(world.runtime.verify_chain(id, &[beyond]).await.unwrap(), Err(ChainError::Exported(head.sequence + 1)));
}

#[tokio::test]
async fn what_another_hand_changed_in_a_journal_is_found() {
    let changes = [
        (
            "UPDATE journal SET payload = CAST(replace(CAST(payload AS TEXT), 'guarded', 'altered') AS BLOB) WHERE run_id = ?1 AND kind = 'model_reply'",
            ChainError::Content(1),
        ),
        ("UPDATE journal SET at_ms = at_ms + 1 WHERE run_id = ?1 AND kind = 'approval'", ChainError::Head),
        ("UPDATE journal SET mac = zeroblob(32) WHERE run_id = ?1 AND kind = 'model_reply'", ChainError::Content(1)),
        ("UPDATE journal SET mac = NULL WHERE run_id = ?1 AND kind = 'model_reply'", ChainError::Content(1)),
    ];
    for (sql, expected) in changes {
        let place = Place::sqlite();
        let world = world(&place, None);
        let id = completed(&world).await;
        assert!(change(&place, sql, id) > 0, "{sql}");
        assert_eq!(world.runtime.verify_chain(id, &[]).await.unwrap(), Err(expected), "{sql}");
    }
    // The newest entry taken away, and the row made to fit: only the head knows.
    let place = Place::sqlite();
    let world = world(&place, None);
    let id = completed(&world).await;
    let last = "DELETE FROM journal WHERE run_id = ?1 AND sequence = (SELECT max(sequence) FROM journal WHERE run_id = ?1)";
    assert_eq!(change(&place, last, id), 1);
    assert_eq!(change(&place, "UPDATE runs SET sequence = sequence - 1 WHERE id = ?1", id), 1);
    assert_eq!(world.runtime.verify_chain(id, &[]).await.unwrap(), Err(ChainError::Head));
}

#[tokio::test]
async fn a_sealed_store_shows_no_content_and_goes_on_as_an_open_one() {
    let place = Place::sqlite();
    let ring = keyring("a");
    let sealed = world(&place, Some(&ring));
    let id = completed(&sealed).await;
    assert!(sealed.runtime.verify_chain(id, &[]).await.unwrap().is_ok());
    let file = place.file.clone().unwrap();
    for name in [file.clone(), file.with_extension("db-wal")] {
        let bytes = std::fs::read(&name).unwrap_or_default();
        assert!(!bytes.windows(15).any(|part| part == b"guarded-content"), "{}", name.display());
    }
    // Without the key the run is listed, and nothing of it is read or done.
    for other in [None, Some(&keyring("b"))] {
        let blind = world(&place, other);
        assert_eq!(blind.runtime.list(&leasehold::store::Filter::default(), None, 10).await.unwrap().len(), 1);
        let shown = blind.runtime.details(id).await.unwrap();
        assert!(shown.unreadable.is_some_and(|why| why.contains("sealed with key `a`")));
        assert!(matches!(blind.runtime.verify_chain(id, &[]).await, Err(OrderError::Unreadable(_))));
    }
}

#[tokio::test]
async fn a_sealed_payload_that_was_moved_to_another_row_or_cut_does_not_open_and_hides_no_other_run() {
    let ring = keyring("a");
    let moves = [
        "UPDATE journal SET payload = (SELECT payload FROM journal WHERE run_id <> ?1 AND kind = 'model_reply' LIMIT 1) \
         WHERE run_id = ?1 AND sequence = 1",
        "UPDATE journal SET payload = substr(payload, 1, length(payload) - 1) WHERE run_id = ?1 AND kind = 'model_reply'",
    ];
    for sql in moves {
        let place = Place::sqlite();
        let world = world(&place, Some(&ring));
        let (moved, whole) = (completed(&world).await, completed(&world).await);
        assert!(change(&place, sql, moved) > 0);
        let shown = world.runtime.details(moved).await.unwrap();
        assert!(shown.unreadable.is_some_and(|why| why.contains("moved from another place")), "{sql}");
        assert!(world.runtime.details(whole).await.unwrap().unreadable.is_none());
    }
}

#[test]
fn a_reply_from_before_thoughts_were_counted_encodes_as_it_was_hashed() {
    let usage = r#"{"input_tokens":3,"output_tokens":2,"cached_tokens":0,"cost_nano_usd":0}"#;
    let old = format!(r#"{{"turn":1,"text":"so","calls":[],"model":"m","stop":"stop","usage":{usage}}}"#);
    let stored = [b"\x01", old.as_bytes()].concat();
    let body = EntryBody::decode("model_reply", &stored).unwrap();
    assert_eq!(String::from_utf8(body.encode()), String::from_utf8(stored));
}
