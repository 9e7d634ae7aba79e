//! Artifacts: reading them, and writing them in an open transaction.

use super::row::{shown_count, total};
use crate::{
    run::RunId,
    store::{Artifact, Write},
};
use rusqlite::{Connection, Row, named_params};
use std::sync::Arc;

/// Those of a write that has just been made.
pub(super) fn keep(connection: &Connection, write: &Write) -> rusqlite::Result<()> {
    for artifact in &write.artifacts {
        connection.prepare_cached(include_str!("sql/keep.sql"))?.execute(named_params! {
            ":run_id": write.next.id.to_string(),
            ":handle": artifact.handle,
            ":sequence": total(artifact.sequence),
            ":bytes": total(artifact.bytes),
            ":about": artifact.about,
            ":content": &*artifact.content,
        })?;
    }
    Ok(())
}

/// Of a run, without their content.
pub(super) fn of_run(connection: &Connection, id: RunId, limit: i64) -> rusqlite::Result<Vec<Artifact>> {
    let mut statement = connection.prepare_cached(include_str!("sql/artifacts.sql"))?;
    let params = named_params! { ":run_id": id.to_string(), ":limit": limit };
    statement.query_map(params, |row| read(row, Arc::default()))?.collect()
}

/// A row of the statement `artifact`.
pub(super) fn whole(row: &Row<'_>) -> rusqlite::Result<Artifact> {
    let content = row.get_ref("content")?.as_blob().map(Arc::from)?;
    read(row, content)
}

fn read(row: &Row<'_>, content: Arc<[u8]>) -> rusqlite::Result<Artifact> {
    Ok(Artifact {
        handle: row.get("handle")?,
        sequence: shown_count(row.get("sequence")?),
        bytes: shown_count(row.get("bytes")?),
        about: row.get("about")?,
        content,
    })
}
