//! What is known of a server without asking it.

use jiff::Timestamp;
use std::time::Duration;

/// Whether there is a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nobody has needed it yet.
    NotTried,
    /// It stands.
    Up,
    /// It was lost or could not be made; the next call tries again.
    Down,
    /// This process has ended it for good.
    Closed,
}

/// A look at a server, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McpHealth {
    /// Whether there is a connection.
    pub link: Link,
    /// When it last answered.
    pub last_contact: Option<Timestamp>,
    /// How long that answer took, connecting included.
    pub latency: Option<Duration>,
    /// What last went wrong, without configured values.
    pub last_error: Option<String>,
    /// Connections made after the first.
    pub restarts: u64,
    /// Failures in a row; each makes the next attempt wait longer.
    pub failures: u32,
    /// How long the next attempt waits.
    pub next_attempt_in: Duration,
    /// Negotiated.
    pub protocol_version: Option<String>,
    /// As it names itself, with its version.
    pub server: Option<String>,
    /// How its last process ended.
    pub last_end: Option<String>,
    /// What it wrote last to its standard error, oldest first, without configured values.
    pub last_words: Vec<String>,
    /// It said that its tools changed, and nobody has listed them since.
    pub list_changed: bool,
}

/// The part of it that is noted.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) last_contact: Option<Timestamp>,
    pub(super) latency: Option<Duration>,
    pub(super) last_error: Option<String>,
    pub(super) connections: u64,
    pub(super) was_tried: bool,
    pub(super) protocol_version: Option<String>,
    pub(super) server: Option<String>,
}
