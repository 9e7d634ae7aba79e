//! Rows and journals as they are read and as they lie in the store: opened, sealed, and without a gap.

use super::*;

impl Engine {
    /// Entries as they lie in the store.
    pub(super) fn sealed(&self, run: RunId, entries: &[Entry]) -> Result<Vec<Entry>, Unavailable> {
        let Some(keyring) = &self.keyring else { return Ok(entries.to_vec()) };
        let seal = |entry: &Entry| {
            let place = Place { run, column: Column::Entry(entry.sequence) };
            let envelope = keyring.seal(place, &entry.body.encode()).map_err(|e| Unavailable(e.to_string()))?;
            Ok(Entry { body: EntryBody::Sealed(entry.body.kind(), envelope), ..entry.clone() })
        };
        entries.iter().map(seal).collect()
    }

    /// An entry as it was before it was sealed.
    fn opened(&self, run: RunId, entry: Entry) -> Result<Entry, ReadError> {
        let EntryBody::Sealed(kind, envelope) = &entry.body else { return Ok(entry) };
        let corrupt = |why: String| ReadError::Corrupt { run, why: format!("entry {}: {why}", entry.sequence), rest: None };
        let place = Place { run, column: Column::Entry(entry.sequence) };
        let payload = seal::open(self.keyring.as_deref(), place, envelope).map_err(|e| corrupt(e.to_string()))?;
        let body = EntryBody::decode(kind, &payload).map_err(|e| corrupt(e.to_string()))?;
        Ok(Entry { body, ..entry })
    }

    /// The row.
    ///
    /// # Errors
    /// Not there, not readable, no answer.
    pub async fn load(&self, id: RunId) -> Result<Snapshot, CommitError> {
        self.store.load(id).await?.ok_or(CommitError::Gone)
    }

    /// The row; of one that does not decode, what of it can be read: for ending the run, never for going on with it.
    ///
    /// # Errors
    /// Not there, not readable enough for that, no answer.
    pub(crate) async fn load_to_end(&self, id: RunId) -> Result<Snapshot, CommitError> {
        match self.store.load(id).await {
            Ok(row) => row.ok_or(CommitError::Gone),
            Err(ReadError::Corrupt { rest: Some(rest), .. }) => Ok(*rest),
            Err(error) => Err(error.into()),
        }
    }

    /// The whole journal; asked for again while the store does not answer, for as long as `patience`.
    pub(crate) async fn journal_within(&self, row: &Snapshot, patience: Duration) -> Result<Vec<Entry>, ReadError> {
        let started = tokio::time::Instant::now();
        let again = |error: &ReadError| matches!(error, ReadError::Unavailable(_)) && started.elapsed() < patience;
        (|| self.journal_of(row, 0)).retry(soon()).when(again).await
    }

    /// All entries of a run from number `from`, which are at least those that its row counts.
    ///
    /// # Errors
    /// An entry that is missing or does not decode, no answer.
    pub(crate) async fn journal_of(&self, row: &Snapshot, from: u64) -> Result<Vec<Entry>, ReadError> {
        let entries = self.journal(row.id, from).await?;
        match from + entries.len() as u64 {
            next if next < row.sequence => Err(missing(row.id, next)),
            _ => Ok(entries),
        }
    }

    /// All entries of a run from number `from`.
    ///
    /// # Errors
    /// An entry that is missing or does not decode, no answer.
    pub async fn journal(&self, id: RunId, from: u64) -> Result<Vec<Entry>, ReadError> {
        let mut entries = Vec::new();
        self.append_journal(id, from, limits::PAGE_MAX, &mut entries).await?;
        Ok(entries)
    }

    /// The entries of a run up to the first that is missing or does not decode, and what is wrong with that one.
    ///
    /// # Errors
    /// No answer.
    pub(crate) async fn readable_journal(&self, id: RunId) -> Result<(Vec<Entry>, Option<String>), Unavailable> {
        let mut entries = Vec::new();
        let mut limit = limits::PAGE_MAX;
        loop {
            let next = entries.len() as u64;
            match self.append_journal(id, next, limit, &mut entries).await {
                Ok(()) => return Ok((entries, None)),
                // A page with a bad entry in it gives none of its good ones: they are asked for in smaller pages.
                Err(ReadError::Corrupt { .. }) if limit > 1 => limit /= 2,
                Err(error @ ReadError::Corrupt { .. }) => return Ok((entries, Some(error.to_string()))),
                Err(ReadError::Unavailable(unavailable)) => return Err(unavailable),
            }
        }
    }

    async fn append_journal(&self, id: RunId, from: u64, limit: usize, entries: &mut Vec<Entry>) -> Result<(), ReadError> {
        let mut next = from;
        loop {
            let page = self.journal_page(id, next, limit).await?;
            next += page.len() as u64;
            let full = page.len() == limit;
            entries.extend(page);
            if !full {
                return Ok(());
            }
        }
    }

    /// At most `limit` entries from number `from` on.
    pub(crate) async fn journal_page(&self, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError> {
        let page = self.store.journal(id, from, limit).await?;
        let numbered = (from..).zip(page).map(|(next, entry)| match entry.sequence == next {
            true => self.opened(id, entry),
            false => Err(missing(id, next)),
        });
        numbered.collect()
    }
}

/// The store gave what it had.
fn missing(run: RunId, sequence: u64) -> ReadError {
    ReadError::Corrupt { run, why: format!("entry {sequence} of its journal is missing"), rest: None }
}
