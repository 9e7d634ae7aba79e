//! `[[tool.sql]]` as the operator writes it.

use super::{
    super::http::{TIMEOUT_DEFAULT, units},
    Bounds,
};
use crate::limits::{SQL_RESULT_BYTES_MAX, SQL_ROWS_MAX};
use serde::Deserialize;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

const ROWS_DEFAULT: usize = 200;
const BYTES_DEFAULT: usize = 64 * 1024;

/// One `[[tool.sql]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlConfig {
    /// The tool is `sql.` and this.
    pub name: String,
    /// `postgres://...` or `sqlite:PATH`.
    #[serde(default)]
    pub url: Option<String>,
    /// The environment variable with a URL of PostgreSQL.
    #[serde(default)]
    pub url_env: Option<String>,
    /// For the model.
    #[serde(default)]
    pub description: Option<String>,
    /// Named to the model; of SQLite no others can be read.
    #[serde(default)]
    pub tables: Option<Vec<String>>,
    /// For the whole call; left out: 30 s.
    #[serde(default, deserialize_with = "units::optional_duration")]
    pub timeout: Option<Duration>,
    /// Rows of an answer; left out: 200.
    #[serde(default)]
    pub max_rows: Option<usize>,
    /// Bytes of an answer's rows; left out: 64 KiB.
    #[serde(default, deserialize_with = "units::optional_size")]
    pub max_bytes: Option<usize>,
    /// A store of leasehold's may be queried.
    #[serde(default)]
    pub allow_store: bool,
}

/// What is wrong with the configuration. No message holds a URL.
#[derive(Debug, thiserror::Error)]
#[error("`{key}`: {why}")]
pub struct SqlError {
    /// The key.
    pub key: &'static str,
    /// What is wrong, and the mend.
    pub why: String,
}

/// Where the database is.
pub(super) enum Place {
    Sqlite(PathBuf),
    Postgres(String),
    /// This variable should say.
    Unset(String),
}

impl SqlConfig {
    pub(super) fn place(&self, base: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Place, SqlError> {
        let wrong = |key: &'static str, why: &str| Err(SqlError { key, why: why.to_owned() });
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if self.name.is_empty() || self.name.len() > 60 || !self.name.chars().all(is_name) {
            return wrong("name", "1 to 60 of letters, digits, `_` and `-`; the tool is `sql.` and this");
        }
        if self.max_rows.is_some_and(|rows| rows == 0 || rows > SQL_ROWS_MAX) {
            return wrong("max_rows", &format!("a number from 1 to {SQL_ROWS_MAX}"));
        }
        if self.max_bytes.is_some_and(|bytes| bytes > SQL_RESULT_BYTES_MAX) {
            return wrong("max_bytes", &format!("{} KiB at most", SQL_RESULT_BYTES_MAX / 1024));
        }
        if self.tables.as_ref().is_some_and(Vec::is_empty) {
            return wrong("tables", "it names none; name some, or leave it out");
        }
        match (&self.url, &self.url_env) {
            (Some(url), None) => match url.strip_prefix("sqlite:") {
                Some("") => wrong("url", "it names no file; write sqlite:orders.db"),
                Some(path) if path.contains('?') || path.starts_with(':') => {
                    wrong("url", "a file, without parameters; write sqlite:orders.db")
                }
                Some(path) => {
                    // Never relative, since a path that begins with `file:` is read as more than a path.
                    let path = std::path::absolute(base.join(path.strip_prefix("//").unwrap_or(path)));
                    path.map(Place::Sqlite).map_err(|e| SqlError { key: "url", why: e.to_string() })
                }
                None => super::postgres::check(url)
                    .map(|()| Place::Postgres(url.clone()))
                    .map_err(|why| SqlError { key: "url", why }),
            },
            (None, Some(variable)) => {
                let is_variable = |c: char| c.is_ascii_alphanumeric() || c == '_';
                if variable.is_empty() || !variable.chars().all(is_variable) {
                    // It may be the secret itself.
                    return wrong("url_env", "this is not the name of an environment variable; write the name, never the URL");
                }
                match env(variable).filter(|url| !url.trim().is_empty()) {
                    None => Ok(Place::Unset(variable.clone())),
                    Some(url) => super::postgres::check(url.trim())
                        .map(|()| Place::Postgres(url.trim().to_owned()))
                        .map_err(|why| SqlError { key: "url_env", why: format!("{variable}: {why}") }),
                }
            }
            (Some(_), Some(_)) => wrong("url_env", "`url` is there too; leave one of them out"),
            (None, None) => {
                wrong("url", "where the database is; write sqlite:orders.db, postgres://user@host/database, or url_env")
            }
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        Bounds {
            timeout: self.timeout.unwrap_or(TIMEOUT_DEFAULT),
            rows: self.max_rows.unwrap_or(ROWS_DEFAULT),
            bytes: self.max_bytes.unwrap_or(BYTES_DEFAULT),
        }
    }

    /// How long a call may take, and how much it may answer: `timeout`, `max_rows` and `max_bytes` as they are in effect.
    pub fn in_effect(&self) -> (Duration, usize, usize) {
        let Bounds { timeout, rows, bytes } = self.bounds();
        (timeout, rows, bytes)
    }

    pub(super) fn is_sqlite(&self) -> bool {
        self.url.as_ref().is_some_and(|url| url.starts_with("sqlite:"))
    }

    pub(super) fn url_key(&self) -> &'static str {
        if self.url.is_some() { "url" } else { "url_env" }
    }

    /// Where it goes, without secrets, and the same whoever has the secret.
    pub fn endpoint(&self) -> String {
        match (&self.url, &self.url_env) {
            (Some(url), _) if self.is_sqlite() => url.clone(),
            (Some(url), _) => super::postgres::shown(url),
            (None, variable) => format!("postgres: ${}", variable.as_deref().unwrap_or_default()),
        }
    }
}
