//! Artifacts. A write that has some is a transaction of its own, so that megabytes on their way hold up no other run's commit; they are
//! sent before the row is locked.

use super::{
    PostgresStore,
    connections::{Failed, Query as _, Transaction},
    limited,
    row::{self, Damaged, total},
    sql::{self, Params},
    text::stored,
};
use crate::{
    run::RunId,
    store::{Artifact, Unavailable, Write},
};
use std::{sync::Arc, time::Duration};
use tokio_postgres::Row;

/// As a transaction that carries artifacts may stand: it holds no row while they are on their way.
pub(super) const CARRIES_AT_MOST: Duration = Duration::from_secs(20);

/// Those of a write that is about to be made in the same transaction.
pub(super) async fn keep(transaction: &Transaction, write: &Write) -> Result<(), Failed> {
    for artifact in &write.artifacts {
        let (sequence, bytes, content) = (total(artifact.sequence), total(artifact.bytes), &*artifact.content);
        let handle = stored(&artifact.handle);
        let mut params = Params::default();
        params
            .one("run_id", &write.next.id.0)
            .one("handle", &handle)
            .one("sequence", &sequence)
            .one("bytes", &bytes)
            .one("about", &artifact.about)
            .one("content", &content);
        transaction.query(&sql::KEEP, &params).await?;
    }
    Ok(())
}

fn read(row: &Row, content: Arc<[u8]>) -> Result<Artifact, Damaged> {
    let count = |column| Ok(u64::try_from(row::column::<i64>(row, column)?).unwrap_or(0));
    Ok(Artifact {
        handle: row::column(row, "handle")?,
        sequence: count("sequence")?,
        bytes: count("bytes")?,
        about: row::column(row, "about")?,
        content,
    })
}

impl PostgresStore {
    /// See [`Store::artifacts`](crate::store::Store::artifacts).
    pub(super) async fn artifacts_of(&self, id: RunId) -> Result<Vec<Artifact>, Unavailable> {
        let limit = limited(usize::MAX);
        let mut params = Params::default();
        params.one("run_id", &id.0).one("limit", &limit);
        self.rows(&sql::ARTIFACTS, &params, |row| read(row, Arc::default())).await
    }

    /// See [`Store::artifact`](crate::store::Store::artifact).
    pub(super) async fn artifact_of(&self, id: RunId, handle: &str) -> Result<Option<Artifact>, Unavailable> {
        let handle = stored(handle);
        let mut params = Params::default();
        params.one("run_id", &id.0).one("handle", &handle);
        let rows = self.shared.read(&sql::ARTIFACT, &params).await?;
        let whole = |row: &Row| read(row, Arc::from(row::column::<Vec<u8>>(row, "content")?));
        rows.first().map(whole).transpose().map_err(|Damaged(why)| self.unreadable(&why))
    }
}
