//! Small documents of the server: who may use it, sessions, and what was changed about that. Named by kind and key, written by
//! compare-and-set on a version. A store knows nothing of what is in them, and nothing of their expiry: whoever reads one judges
//! that with its own clock.

use super::Unavailable;
use crate::limits::{RECORD_BODY_BYTES_MAX, RECORD_NAME_BYTES_MAX, RECORDS_AT_ONCE_MAX};
use jiff::Timestamp;
use std::collections::BTreeSet;

/// A document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub kind: String,
    /// Its name among its kind.
    pub key: String,
    /// How often it was written. In a write: the version that the writer saw, 0 where there must be none.
    pub version: u64,
    /// When it counts for nothing any more, to the millisecond; it stays until somebody removes it.
    pub expires_at: Option<Timestamp>,
    /// What it says.
    pub body: String,
}

impl Record {
    /// One that is not there yet.
    pub fn new(kind: impl Into<String>, key: impl Into<String>, body: impl Into<String>) -> Self {
        Self { kind: kind.into(), key: key.into(), version: 0, expires_at: None, body: body.into() }
    }

    /// As a store keeps it once it is written.
    pub(super) fn written(self) -> Self {
        Self { version: self.version.saturating_add(1), expires_at: self.expires_at.map(crate::clock::to_millis), ..self }
    }
}

fn malformed(why: &str) -> Unavailable {
    Unavailable(format!("the record is malformed and was not sent: {why}"))
}

/// Names sort by their bytes in every store, and come back as they went in.
pub(super) fn check_name(text: &str) -> Result<(), Unavailable> {
    let fits = (1..=RECORD_NAME_BYTES_MAX).contains(&text.len()) && !text.chars().any(char::is_control);
    if fits { Ok(()) } else { Err(malformed("its kind and its key are 1 to 200 bytes without control characters")) }
}

/// Puts them in the order in which every store locks them; an error where a write of them could not be what its maker meant.
pub(super) fn in_order(mut records: Vec<Record>) -> Result<Vec<Record>, Unavailable> {
    if records.len() > RECORDS_AT_ONCE_MAX {
        return Err(malformed("too many at once"));
    }
    let mut seen = BTreeSet::new();
    for record in &records {
        check_name(&record.kind)?;
        check_name(&record.key)?;
        if record.body.len() > RECORD_BODY_BYTES_MAX {
            return Err(malformed("its body is too long"));
        }
        if !seen.insert((&record.kind, &record.key)) {
            return Err(malformed("it is written twice at once"));
        }
    }
    records.sort_by(|a, b| (&a.kind, &a.key).cmp(&(&b.kind, &b.key)));
    Ok(records)
}
