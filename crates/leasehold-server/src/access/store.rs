//! Users, tokens, sessions and login links in the store, and the one way to change them: by compare-and-set, together with an entry
//! of the audit. What is read is judged at once, so a change counts from the next request on, in every process.
//!
//! Whoever shows a secret is told who it is or nothing: unknown, expired, revoked and disabled are the same answer.

use super::{
    AccessError, Who,
    documents::{AuditEntry, Document, Seen, What, method_text},
};
use jiff::Timestamp;
use leasehold::{
    clock::WallClock,
    limits::{ACCESS_ATTEMPTS_MAX, PAGE_MAX},
    store::{Record, Store, Unavailable},
};
use serde_json::{Map, Value};
use std::{future::Future, sync::Arc, time::Duration};
use uuid::Uuid;

/// The longest that a request waits until it is written down that its token was used.
const LAST_USED_PATIENCE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    store: Arc<dyn Store>,
    clock: Arc<dyn WallClock>,
}

/// A page of a list, and where the next one goes on; none: this was the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page<T> {
    /// What is in it.
    pub(crate) items: Vec<T>,
    /// For `after`.
    pub(crate) next: Option<String>,
}

impl<T> Page<T> {
    pub(super) fn map<U>(self, to: impl Fn(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(to).collect(), next: self.next }
    }
}

/// Who changes something, for the audit.
#[derive(Clone, Debug)]
pub(crate) struct Actor {
    pub(super) who: String,
    pub(super) method: String,
}

impl From<&Who> for Actor {
    fn from(who: &Who) -> Self {
        Self { who: who.principal.id.clone(), method: method_text(&who.method) }
    }
}

/// A time-ordered id.
pub(super) fn new_id() -> String {
    Uuid::now_v7().to_string()
}

impl Access {
    /// Over this store; the clock judges what has expired.
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn WallClock>) -> Self {
        Self { store, clock }
    }

    pub(crate) fn now(&self) -> Timestamp {
        leasehold::clock::to_millis(self.clock.now())
    }

    pub(crate) async fn get<T: Document>(&self, key: &str) -> Result<Option<Seen<T>>, Unavailable> {
        self.store.record(T::KIND, key).await?.map(Seen::read).transpose()
    }

    /// The documents from a key on, up to the end of those whose keys begin so.
    pub(crate) async fn beginning_with<T: Document>(&self, start: &str) -> Result<Vec<Seen<T>>, Unavailable> {
        let mut found = Vec::new();
        let mut after = Some(start.to_owned()).filter(|start| !start.is_empty());
        loop {
            let records = self.store.records(T::KIND, after.as_deref(), PAGE_MAX).await?;
            let is_last = records.len() < PAGE_MAX;
            after = records.last().map(|record| record.key.clone());
            for record in records {
                if !record.key.starts_with(start) {
                    return Ok(found);
                }
                found.push(Seen::read(record)?);
            }
            if is_last {
                return Ok(found);
            }
        }
    }

    /// A page in the order of the keys; what does not read is passed over, and said, so that it hides no other.
    pub(super) async fn page<T: Document>(&self, after: Option<&str>, limit: usize) -> Result<Page<Seen<T>>, Unavailable> {
        let limit = limit.min(PAGE_MAX);
        let records = self.store.records(T::KIND, after, limit).await?;
        let next = records.last().filter(|_| records.len() == limit).map(|last| last.key.clone());
        let read = |record| Seen::read(record).map_err(|e| tracing::warn!("{}", e.0)).ok();
        Ok(Page { items: records.into_iter().filter_map(read).collect(), next })
    }

    /// The first document of which this holds, however many pages there are.
    pub(super) async fn find<T: Document>(&self, mut holds: impl FnMut(&T) -> bool) -> Result<Option<Seen<T>>, Unavailable> {
        let mut after: Option<String> = None;
        loop {
            let records = self.store.records(T::KIND, after.as_deref(), PAGE_MAX).await?;
            let is_last = records.len() < PAGE_MAX;
            after = records.last().map(|record| record.key.clone());
            for record in records {
                match Seen::<T>::read(record) {
                    Ok(seen) if holds(&seen.it) => return Ok(Some(seen)),
                    Ok(_) => {}
                    Err(error) => tracing::warn!("{}", error.0),
                }
            }
            if is_last {
                return Ok(None);
            }
        }
    }

    pub(crate) fn audit_record(
        &self,
        by: &Actor,
        what: What,
        about: String,
        details: Map<String, Value>,
    ) -> Result<Record, Unavailable> {
        let Actor { who, method } = by.clone();
        Seen::new(new_id(), AuditEntry { at: self.now(), who, method, what, about, details }).record()
    }

    /// Writes all of them or none; false where somebody was faster.
    pub(crate) async fn put(&self, records: Vec<Record>) -> Result<bool, Unavailable> {
        self.store.put_records(records).await
    }

    /// Tries a change again while somebody else is faster; `attempt` reads anew and says what became of it, or none.
    pub(crate) async fn until_first<T, F>(&self, of: &str, attempt: impl Fn() -> F) -> Result<T, AccessError>
    where
        F: Future<Output = Result<Option<T>, AccessError>>,
    {
        for _ in 0..ACCESS_ATTEMPTS_MAX {
            if let Some(done) = attempt().await? {
                return Ok(done);
            }
        }
        Err(AccessError::Conflict(of.to_owned()))
    }

    /// Notes that something was used. Whoever used it does not suffer where that is not written, and does not wait for long.
    pub(super) async fn used<T: Document>(&self, seen: &Seen<T>) {
        let Ok(record) = seen.record() else { return };
        let why = match tokio::time::timeout(LAST_USED_PATIENCE, self.store.put_record(record)).await {
            // Somebody else changed it meanwhile: used at the same time, or revoked.
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the store takes its time".to_owned(),
        };
        tracing::warn!(kind = T::KIND, "the last use of a {} is not written down: {why}", T::KIND);
    }

    /// Entries of the audit with their ids, oldest first.
    pub(crate) async fn audit(&self, after: Option<&str>, limit: usize) -> Result<Page<(String, AuditEntry)>, Unavailable> {
        Ok(self.page::<AuditEntry>(after, limit).await?.map(|seen| (seen.key, seen.it)))
    }

    /// Takes away what expired a day ago or longer of a kind whose documents end by themselves; how many.
    pub(super) async fn forget<T: Document>(&self) -> Result<usize, Unavailable> {
        let long_ago = self.now().checked_sub(jiff::SignedDuration::from_hours(24)).unwrap_or(Timestamp::MIN);
        let mut after: Option<String> = None;
        let mut forgotten = 0;
        loop {
            let records = self.store.records(T::KIND, after.as_deref(), PAGE_MAX).await?;
            let is_last = records.len() < PAGE_MAX;
            after = records.last().map(|record| record.key.clone());
            for Record { kind, key, version, expires_at, .. } in records {
                if expires_at.is_some_and(|end| end <= long_ago) && self.store.remove_record(&kind, &key, version).await? {
                    forgotten += 1;
                }
            }
            if is_last {
                return Ok(forgotten);
            }
        }
    }
}
