//! The pages' file. Each method is one transaction on a blocking thread, and says for a failure whether the change may have
//! been committed: only a failed commit may.

use super::super::WriteAnswer;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// The descriptive fields, and there are no others.
pub(super) const FIELDS: [&str; 5] = ["title", "description", "keywords", "author", "language"];
/// Values for some of [`FIELDS`].
pub(super) type FieldValues = Vec<(&'static str, String)>;
/// How long one process waits for another one's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS page (
    slug TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    description TEXT NOT NULL DEFAULT '',
    keywords TEXT NOT NULL DEFAULT '',
    author TEXT NOT NULL DEFAULT '',
    language TEXT NOT NULL DEFAULT '',
    body TEXT NOT NULL DEFAULT '',
    idempotency_key TEXT,
    run TEXT,
    epoch INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS entry (
    number INTEGER PRIMARY KEY,
    tool TEXT NOT NULL,
    arguments TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    run TEXT NOT NULL,
    epoch INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS seeded (once INTEGER PRIMARY KEY CHECK (once = 1)) STRICT;
";

const SEED: [(&str, &str, &str, &str, &str); 4] = [
    ("home", "Home", "Welcome", "en", "Welcome to the harbour office. Opening hours are on the contact page."),
    ("berths", "Berths", "old text", "en", "Forty berths for boats up to 14 m. The northern pier has water and power."),
    ("contact", "Contact", "", "en", "Open daily from 8 to 18. Call channel 12 before you enter."),
    ("gebuehren", "Gebühren", "Preise 2023", "de", "Liegegeld je Nacht: 2 Euro je Meter. Strom nach Verbrauch."),
];

/// A page as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page {
    /// Its name.
    pub slug: String,
    /// Its descriptive fields.
    pub fields: BTreeMap<String, String>,
    /// Its text.
    pub body: String,
    /// Which call made it; `None`: it came with the site.
    pub made_by: Option<Provenance>,
}

impl Page {
    /// One descriptive field.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }
    /// Its title.
    pub fn title(&self) -> &str {
        self.field("title")
    }
}

/// The call that made a page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// Sent with it.
    pub idempotency_key: String,
    /// Its run.
    pub run: String,
    /// Its epoch.
    pub epoch: u64,
}

/// One write call that arrived: what a far side can count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrival {
    /// The tool.
    pub tool: String,
    /// Hash of its arguments.
    pub arguments: String,
    /// Which call it was.
    pub call: Provenance,
}

/// The file could not be used.
#[derive(Debug, thiserror::Error)]
#[error("the site's file: {source}")]
pub struct SiteError {
    /// It failed while it committed.
    may_have_happened: bool,
    source: Box<dyn std::error::Error + Send + Sync>,
}

impl From<rusqlite::Error> for SiteError {
    fn from(e: rusqlite::Error) -> Self {
        Self { may_have_happened: false, source: e.into() }
    }
}

impl SiteError {
    fn at_commit(e: rusqlite::Error) -> Self {
        // Another process held the file for the whole wait: SQLite left the transaction open, and it is rolled back.
        let is_busy = e.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
        Self { may_have_happened: !is_busy, source: e.into() }
    }

    pub(super) fn into_answer(self) -> WriteAnswer {
        let why = self.to_string();
        if self.may_have_happened { WriteAnswer::Unknown { why } } else { WriteAnswer::NotApplied { why } }
    }
}

pub(super) enum Updated {
    NoSuchPage,
    /// Read back after the commit.
    Verified(Page),
    /// Read back, and this field is something else.
    Different(&'static str),
}

pub(super) enum Created {
    Made,
    Taken,
}

#[derive(Clone, Debug)]
pub(super) struct Pages {
    connection: Arc<Mutex<Connection>>,
}

impl Pages {
    pub(super) fn open(path: &Path) -> Result<Self, SiteError> {
        let mut connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(SCHEMA)?;
        // Once in the file's life: a page that was removed does not come back.
        if transaction.execute("INSERT OR IGNORE INTO seeded (once) VALUES (1)", [])? == 1 {
            for (slug, title, description, language, body) in SEED {
                transaction.execute(
                    "INSERT INTO page (slug, title, description, language, body) VALUES (?1, ?2, ?3, ?4, ?5)",
                    params![slug, title, description, language, body],
                )?;
            }
        }
        transaction.commit()?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    async fn on<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> Result<R, SiteError> + Send + 'static,
    ) -> Result<R, SiteError> {
        let connection = self.connection.clone();
        let task = tokio::task::spawn_blocking(move || work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner)));
        // A panic or a runtime that shuts down: the work may have been done.
        task.await.unwrap_or_else(|e| Err(SiteError { may_have_happened: true, source: e.into() }))
    }

    pub(super) async fn list(&self) -> Result<Vec<Page>, SiteError> {
        self.on(|connection| {
            let mut statement = connection.prepare_cached(&format!("{SELECT} ORDER BY slug"))?;
            Ok(statement.query_map([], page_of)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn read(&self, slug: String) -> Result<Option<Page>, SiteError> {
        self.on(move |connection| read(connection, &slug)).await
    }

    pub(super) async fn arrivals(&self) -> Result<Vec<Arrival>, SiteError> {
        self.on(|connection| {
            let mut statement =
                connection.prepare_cached("SELECT tool, arguments, idempotency_key, run, epoch FROM entry ORDER BY number")?;
            Ok(statement.query_map([], arrival_of)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub(super) async fn update(&self, slug: String, fields: FieldValues, arrival: Arrival) -> Result<Updated, SiteError> {
        self.on(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            arrived(&transaction, &arrival)?;
            if read(&transaction, &slug)?.is_none() {
                transaction.commit().map_err(SiteError::at_commit)?;
                return Ok(Updated::NoSuchPage);
            }
            for (name, value) in &fields {
                // The name is one of `FIELDS`, never the caller's text.
                transaction.execute(&format!("UPDATE page SET {name} = ?2 WHERE slug = ?1"), params![slug, value])?;
            }
            transaction.commit().map_err(SiteError::at_commit)?;
            let after = read(connection, &slug).map_err(|e| SiteError { may_have_happened: true, ..e })?;
            let Some(page) = after else { return Ok(Updated::NoSuchPage) };
            match fields.iter().find(|(name, value)| page.field(name) != value) {
                Some((name, _)) => Ok(Updated::Different(name)),
                None => Ok(Updated::Verified(page)),
            }
        })
        .await
    }

    pub(super) async fn create(
        &self,
        slug: String,
        title: String,
        body: String,
        arrival: Arrival,
    ) -> Result<Created, SiteError> {
        self.on(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            arrived(&transaction, &arrival)?;
            let made_by = arrival.call;
            if read(&transaction, &slug)?.is_some() {
                transaction.commit().map_err(SiteError::at_commit)?;
                return Ok(Created::Taken);
            }
            transaction.execute(
                "INSERT INTO page (slug, title, body, idempotency_key, run, epoch) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![slug, title, body, made_by.idempotency_key, made_by.run, stored_epoch(made_by.epoch)],
            )?;
            transaction.commit().map_err(SiteError::at_commit)?;
            Ok(Created::Made)
        })
        .await
    }
}

const SELECT: &str = "SELECT slug, title, description, keywords, author, language, body, idempotency_key, run, epoch FROM page";

fn read(connection: &Connection, slug: &str) -> Result<Option<Page>, SiteError> {
    let mut statement = connection.prepare_cached(&format!("{SELECT} WHERE slug = ?1"))?;
    Ok(statement.query_row([slug], page_of).optional()?)
}

/// Keeps that a call arrived, in the transaction of what it does.
fn arrived(transaction: &rusqlite::Transaction<'_>, arrival: &Arrival) -> rusqlite::Result<()> {
    let Arrival { tool, arguments, call } = arrival;
    transaction.execute(
        "INSERT INTO entry (tool, arguments, idempotency_key, run, epoch) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![tool, arguments, call.idempotency_key, call.run, stored_epoch(call.epoch)],
    )?;
    Ok(())
}

fn stored_epoch(epoch: u64) -> i64 {
    i64::try_from(epoch).unwrap_or(i64::MAX)
}

fn arrival_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Arrival> {
    let call = Provenance {
        idempotency_key: row.get("idempotency_key")?,
        run: row.get("run")?,
        epoch: u64::try_from(row.get::<_, i64>("epoch")?).unwrap_or(0),
    };
    Ok(Arrival { tool: row.get("tool")?, arguments: row.get("arguments")?, call })
}

fn page_of(row: &rusqlite::Row<'_>) -> rusqlite::Result<Page> {
    let mut fields = BTreeMap::new();
    for name in FIELDS {
        fields.insert(name.to_owned(), row.get(name)?);
    }
    let made_by = match (row.get("idempotency_key")?, row.get("run")?, row.get::<_, Option<i64>>("epoch")?) {
        (Some(idempotency_key), Some(run), Some(epoch)) => {
            Some(Provenance { idempotency_key, run, epoch: u64::try_from(epoch).unwrap_or(0) })
        }
        _ => None,
    };
    Ok(Page { slug: row.get("slug")?, fields, body: row.get("body")?, made_by })
}
