//! Records. A write of one is one statement; a write of several is a bounded transaction that takes them in the order of their
//! names, so that no two writers wait for each other in a ring. A row that somebody else has locked is waited for as long as a
//! statement may last; then nothing of it is there.

use super::{
    PostgresStore,
    claim::STANDS_AT_MOST,
    connections::{Failed, Query},
    limited,
    row::{self, Damaged, total},
    sql::{self, Params},
    text::{shown, stored},
};
use crate::store::{Record, Unavailable, record};
use jiff::Timestamp;
use tokio_postgres::Row;

fn read(row: &Row) -> Result<Record, Damaged> {
    let ms: Option<i64> = row::column(row, "expires_at_ms")?;
    Ok(Record {
        kind: row::column(row, "kind")?,
        key: row::column(row, "key")?,
        version: u64::try_from(row::column::<i64>(row, "version")?).unwrap_or(0),
        expires_at: ms.map(|ms| Timestamp::from_millisecond(ms).unwrap_or(Timestamp::UNIX_EPOCH)),
        body: shown(row::column(row, "body")?),
    })
}

/// False where it has another version than its writer saw.
async fn put_one(to: &impl Query, record: &Record) -> Result<bool, Failed> {
    let (version, body) = (total(record.version), stored(&record.body));
    let expires_at_ms = record.expires_at.map(crate::clock::to_millis).map(Timestamp::as_millisecond);
    let mut params = Params::default();
    params.one("kind", &record.kind).one("key", &record.key).one("expires_at_ms", &expires_at_ms).one("body", &body);
    let written = if record.version == 0 {
        to.query(&sql::INSERT_RECORD, &params).await?
    } else {
        params.one("version", &version);
        to.query(&sql::UPDATE_RECORD, &params).await?
    };
    Ok(!written.is_empty())
}

impl PostgresStore {
    /// See [`Store::record`](crate::store::Store::record). No record has a name that the server could not hold.
    pub(super) async fn record_of(&self, kind: &str, key: &str) -> Result<Option<Record>, Unavailable> {
        let (kind, key) = (stored(kind), stored(key));
        let mut params = Params::default();
        params.one("kind", &kind).one("key", &key);
        let rows = self.shared.read(&sql::RECORD, &params).await?;
        rows.first().map(read).transpose().map_err(|Damaged(why)| self.unreadable(&why))
    }

    /// See [`Store::records`](crate::store::Store::records).
    pub(super) async fn records_of(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>, Unavailable> {
        let (kind, after, limit) = (stored(kind), stored(after.unwrap_or_default()), limited(limit));
        let mut params = Params::default();
        params.one("kind", &kind).one("after", &after).one("limit", &limit);
        self.rows(&sql::RECORDS, &params, read).await
    }

    /// See [`Store::put_records`](crate::store::Store::put_records).
    pub(super) async fn put_all(&self, records: Vec<Record>) -> Result<bool, Unavailable> {
        let records = record::in_order(records)?;
        let put = match records.as_slice() {
            [] => Ok(true),
            [one] => put_one(&self.shared, one).await,
            all => self.put_together(all).await,
        };
        put.map_err(|failed| self.shared.unavailable(&failed))
    }

    async fn put_together(&self, records: &[Record]) -> Result<bool, Failed> {
        let transaction = self.shared.begin(STANDS_AT_MOST).await?;
        for record in records {
            if !put_one(&transaction, record).await? {
                transaction.end("ROLLBACK").await?;
                return Ok(false);
            }
        }
        transaction.end("COMMIT").await?;
        Ok(true)
    }

    /// See [`Store::remove_record`](crate::store::Store::remove_record).
    pub(super) async fn remove(&self, kind: &str, key: &str, version: u64) -> Result<bool, Unavailable> {
        let (kind, key, version) = (stored(kind), stored(key), total(version));
        let mut params = Params::default();
        params.one("kind", &kind).one("key", &key).one("version", &version);
        Ok(!self.shared.read(&sql::REMOVE_RECORD, &params).await?.is_empty())
    }
}
