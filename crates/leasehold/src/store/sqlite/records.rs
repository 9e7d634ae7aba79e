//! Records: reading them, and writing or removing them in an open transaction.

use super::row::total;
use crate::store::Record;
use jiff::Timestamp;
use rusqlite::{Connection, Row, named_params};

/// A row of `records`; one whose numbers no store writes is read as far as it can be.
pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        kind: row.get("kind")?,
        key: row.get("key")?,
        version: super::row::shown_count(row.get("version")?),
        expires_at: row.get::<_, Option<i64>>("expires_at_ms")?.map(super::row::shown_time),
        body: row.get("body")?,
    })
}

/// All of them or none; in the order of their names.
pub(super) fn put(connection: &Connection, records: &[Record]) -> rusqlite::Result<bool> {
    let run = |sql: &str| connection.prepare_cached(sql)?.execute([]).map(|_| ());
    run("SAVEPOINT records")?;
    let mut all = true;
    for record in records {
        // An error is undone by whoever opened the transaction.
        all = put_one(connection, record)?;
        if !all {
            run("ROLLBACK TO records")?;
            break;
        }
    }
    run("RELEASE records")?;
    Ok(all)
}

fn put_one(connection: &Connection, record: &Record) -> rusqlite::Result<bool> {
    let expires_at_ms = record.expires_at.map(crate::clock::to_millis).map(Timestamp::as_millisecond);
    let (kind, key, body) = (&record.kind, &record.key, &record.body);
    let written = if record.version == 0 {
        let params = named_params! { ":kind": kind, ":key": key, ":expires_at_ms": expires_at_ms, ":body": body };
        connection.prepare_cached(include_str!("sql/insert_record.sql"))?.execute(params)?
    } else {
        let version = total(record.version);
        let params = named_params! {
            ":kind": kind, ":key": key, ":version": version, ":expires_at_ms": expires_at_ms, ":body": body
        };
        connection.prepare_cached(include_str!("sql/update_record.sql"))?.execute(params)?
    };
    Ok(written == 1)
}

/// False where it has another version, or is gone.
pub(super) fn remove(connection: &Connection, kind: &str, key: &str, version: u64) -> rusqlite::Result<bool> {
    let params = named_params! { ":kind": kind, ":key": key, ":version": total(version) };
    Ok(connection.prepare_cached(include_str!("sql/remove_record.sql"))?.execute(params)? == 1)
}
