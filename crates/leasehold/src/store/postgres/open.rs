//! Opening: is the database there, does it take writes and keep them, and is its schema this version's.
//!
//! Two processes that open a new database at the same moment must both succeed, and the migration runner takes no lock of its own.
//! So whoever finds the schema behind takes an advisory lock on the connection that migrates and looks again. The lock belongs to
//! the session: through a transaction pooler run `leasehold migrate` against the server itself.

use super::{
    connections::{self, CALL_TIMEOUT, CONNECT_PATIENCE, Failed, NoAnswer, within},
    row,
    sql::{self, Params, Sql},
};
use crate::postgres::{Target, TargetError, connector, words};
use std::{path::PathBuf, time::Duration};
use tokio_postgres::{Client, Row, error::SqlState};
use tokio_postgres_rustls::MakeRustlsConnect;

mod embedded {
    #![allow(missing_docs, unreachable_pub, reason = "the macro writes public items without documents")]
    refinery::embed_migrations!("src/store/postgres/migrations");
}

/// Longer than this nobody waits for another process that migrates.
const MIGRATION_PATIENCE: Duration = Duration::from_secs(120);
/// The advisory lock of the schema: "leasehld" in ASCII.
const SCHEMA_LOCK: i64 = 0x6c65_6173_6568_6c64;

/// Why a database cannot be used as a store, and what helps. No message holds a password.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL does not read.
    #[error("the store's URL: {why}; write postgres://user@host:5432/database")]
    Url {
        /// What is wrong with it.
        why: String,
    },
    /// A file of certificates does not read.
    #[error("sslrootcert {}: {why}", path.display())]
    RootCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// TLS was not agreed on, or the server did not prove who it is.
    #[error("{place}: no TLS connection: {why}; see sslmode and sslrootcert")]
    Tls {
        /// Where.
        place: String,
        /// What was wrong.
        why: String,
    },
    /// No host answers.
    #[error("{place} cannot be reached: {why}; is PostgreSQL running there?")]
    Unreachable {
        /// Where.
        place: String,
        /// What the system said.
        why: String,
    },
    /// The server does not take this user.
    #[error("{place}: the server refused the user: {why}; check the user, and its password in the URL or in PGPASSWORD")]
    Refused {
        /// Where.
        place: String,
        /// What the server said.
        why: String,
    },
    /// The server has no such database.
    #[error("{place}: the server has no such database; create it: createdb --encoding=UTF8 {database}")]
    NoDatabase {
        /// Where.
        place: String,
        /// Its name.
        database: String,
    },
    /// Every connection of the server is taken.
    #[error("{place}: the server takes no more connections ({why}); raise max_connections or put a pooler in between")]
    TooManyConnections {
        /// Where.
        place: String,
        /// What the server said.
        why: String,
    },
    /// It is a standby, or read-only.
    #[error("{place} takes no writes: it is a standby or read-only; name the primary, or all hosts separated by commas")]
    ReadOnly {
        /// Where.
        place: String,
    },
    /// Text would not come back as it went in.
    #[error("{place}: the database's encoding is {encoding}; create one with: createdb --encoding=UTF8 --template=template0")]
    Encoding {
        /// Where.
        place: String,
        /// What it is.
        encoding: String,
    },
    /// A commit would not be on the disk when it is acknowledged.
    #[error(
        "{place}: synchronous_commit is {setting} and something between here and the server drops our setting; set it for the \
         user: ALTER ROLE ... SET synchronous_commit = on"
    )]
    NotDurable {
        /// Where.
        place: String,
        /// What is in force.
        setting: String,
    },
    /// A newer version has used the database.
    #[error("{place} has schema version {found}, this binary knows up to {known}; use a newer leasehold")]
    NewerSchema {
        /// Where.
        place: String,
        /// Its version.
        found: i64,
        /// The newest version that this binary knows.
        known: i64,
    },
    /// The schema is missing or behind, and this user may not change it.
    #[error(
        "{place}: its schema is missing or older than this binary, and this user may not change it ({why}); run `leasehold migrate` as its owner"
    )]
    MayNotMigrate {
        /// Where.
        place: String,
        /// What the server said.
        why: String,
    },
    /// The schema cannot be brought to this version.
    #[error("the schema of {place} cannot be brought to this version: {why}")]
    Migration {
        /// Where.
        place: String,
        /// What the migration runner said.
        why: String,
    },
    /// Anything else.
    #[error("{place}: {why}")]
    Failed {
        /// Where.
        place: String,
        /// What was said.
        why: String,
    },
}

impl From<TargetError> for OpenError {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Url { why } => Self::Url { why },
            TargetError::RootCertificate { path, why } => Self::RootCertificate { path, why },
            TargetError::Tls { place, why } => Self::Tls { place, why },
        }
    }
}

/// The newest schema version of this binary.
fn known_version() -> i64 {
    embedded::migrations::runner().get_migrations().iter().map(|m| i64::from(m.version())).max().unwrap_or(0)
}

/// Makes the database usable; the connector for more connections to it.
pub(super) async fn prepare(target: &Target) -> Result<MakeRustlsConnect, OpenError> {
    let tls = connector(target)?;
    let opened = connections::connect(target, &tls, CONNECT_PATIENCE).await;
    let mut client = opened.map_err(|why| unanswered(target, &why))?;
    inspect(target, &client).await?;
    if !is_ready(target, &client).await? {
        let migrated = tokio::time::timeout(MIGRATION_PATIENCE, migrate(target, &mut client)).await;
        migrated.unwrap_or_else(|_| {
            let why = "another process has been migrating it for two minutes".to_owned();
            Err(OpenError::Migration { place: target.place.clone(), why })
        })?;
    }
    Ok(tls)
}

async fn query(target: &Target, client: &Client, sql: &Sql, params: &Params<'_>) -> Result<Vec<Row>, OpenError> {
    let rows = within(CALL_TIMEOUT, client.query_typed(sql.text(params), params.typed())).await;
    rows.map_err(|why| unanswered(target, &why))
}

fn value<T: tokio_postgres::types::FromSqlOwned>(target: &Target, rows: &[Row], column: &str) -> Result<T, OpenError> {
    let missing = || OpenError::Failed { place: target.place.clone(), why: format!("the server did not tell its {column}") };
    row::column(rows.first().ok_or_else(missing)?, column).map_err(|_| missing())
}

async fn inspect(target: &Target, client: &Client) -> Result<(), OpenError> {
    let place = || target.place.clone();
    let found = query(target, client, &sql::INSPECT, &Params::default()).await?;
    if value(target, &found, "is_read_only")? {
        return Err(OpenError::ReadOnly { place: place() });
    }
    let encoding: String = value(target, &found, "encoding")?;
    if encoding != "UTF8" {
        return Err(OpenError::Encoding { place: place(), encoding });
    }
    let setting: String = value(target, &found, "synchronous_commit")?;
    if setting == "off" {
        return Err(OpenError::NotDurable { place: place(), setting });
    }
    Ok(())
}

/// The schema is this version's. An error where it is a newer version's.
async fn is_ready(target: &Target, client: &Client) -> Result<bool, OpenError> {
    let found = query(target, client, &sql::INSPECT, &Params::default()).await?;
    if !value::<bool>(target, &found, "has_schema")? {
        return Ok(false);
    }
    let found = query(target, client, &sql::SCHEMA_VERSION, &Params::default()).await?;
    let (found, known) = (value::<Option<i32>>(target, &found, "version")?.map_or(0, i64::from), known_version());
    if found > known {
        return Err(OpenError::NewerSchema { place: target.place.clone(), found, known });
    }
    Ok(found == known)
}

/// Under the schema's lock, which ends with the connection. All migrations are one transaction.
async fn migrate(target: &Target, client: &mut Client) -> Result<(), OpenError> {
    // Waiting for another process and rewriting a large table both take their time.
    client.batch_execute("SET statement_timeout = 0; SET lock_timeout = 0").await.map_err(|e| explain(target, &e))?;
    let mut params = Params::default();
    params.one("key", &SCHEMA_LOCK);
    client.query_typed(sql::LOCK_SCHEMA.text(&params), params.typed()).await.map_err(|e| explain(target, &e))?;
    if is_ready(target, client).await? {
        return Ok(());
    }
    let Err(error) = embedded::migrations::runner().set_grouped(true).run_async(client).await else { return Ok(()) };
    let place = target.place.clone();
    let postgres = std::error::Error::source(error.kind()).and_then(|s| s.downcast_ref::<tokio_postgres::Error>());
    let why = postgres.map_or_else(|| error.to_string(), words);
    Err(match postgres.and_then(tokio_postgres::Error::code) {
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE => OpenError::MayNotMigrate { place, why },
        _ => OpenError::Migration { place, why },
    })
}

fn unanswered(target: &Target, why: &NoAnswer) -> OpenError {
    match why {
        NoAnswer::Error(error) => explain(target, error),
        NoAnswer::Silence(_) => OpenError::Unreachable { place: target.place.clone(), why: why.to_string() },
    }
}

/// Why there is no connection.
fn explain(target: &Target, error: &tokio_postgres::Error) -> OpenError {
    let place = target.place.clone();
    let why = words(error);
    if let Some(code) = error.code() {
        return match code {
            c if *c == SqlState::INVALID_PASSWORD || *c == SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
                OpenError::Refused { place, why }
            }
            c if *c == SqlState::INVALID_CATALOG_NAME => {
                OpenError::NoDatabase { place, database: target.config.get_dbname().unwrap_or_default().to_owned() }
            }
            c if *c == SqlState::TOO_MANY_CONNECTIONS => OpenError::TooManyConnections { place, why },
            c if *c == SqlState::CANNOT_CONNECT_NOW => OpenError::Unreachable { place, why },
            _ => OpenError::Failed { place, why },
        };
    }
    if why.contains("password missing") {
        return OpenError::Refused { place, why: "it wants a password and none is given".into() };
    }
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        if inner.is::<rustls::Error>() {
            return OpenError::Tls { place, why: inner.to_string() };
        }
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            if io.to_string() == "database does not allow writes" {
                return OpenError::ReadOnly { place };
            }
            if let Some(tls) = io.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
                return OpenError::Tls { place, why: tls.to_string() };
            }
            return OpenError::Unreachable { place, why: io.to_string() };
        }
        source = inner.source();
    }
    if error.to_string().contains("TLS") {
        return OpenError::Tls { place, why };
    }
    match Failed::from(error) {
        Failed::Lost(_) => OpenError::Unreachable { place, why },
        Failed::Refused { .. } => OpenError::Failed { place, why },
    }
}
