//! The way to a PostgreSQL server, for whoever has one: what a URL says, TLS, and what a server says in one line. What a session is
//! for, and what is sent on it, is the caller's.

mod tls;
mod url;

pub(crate) use tls::connector;
pub(crate) use url::Target;

use std::{error::Error as _, path::PathBuf};

/// Why nothing can be connected to. No message holds a password.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// The URL does not read.
    #[error("the URL does not read: {why}; write postgres://user@host:5432/database")]
    Url { why: String },
    /// A file of certificates does not read.
    #[error("sslrootcert {}: {why}", path.display())]
    RootCertificate { path: PathBuf, why: String },
    /// There can be no TLS.
    #[error("{place}: no TLS connection: {why}; see sslmode and sslrootcert")]
    Tls { place: String, why: String },
}

/// What the server or the system said, in one line, without the values of a row.
pub(crate) fn words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        // The detail of a failed constraint is the row's content: it is left out.
        (Some(db), _) => format!("{} ({})", db.message(), db.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
