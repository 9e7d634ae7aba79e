//! Why a server has not answered as it should.

use std::time::Duration;

/// Why a server has not answered as it should.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum McpError {
    /// There is no connection.
    #[error("not connected: {0}")]
    NotConnected(String),
    /// The connection ended.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The right to use the server is lacking: there is no token, or the server does not take it.
    #[error("{0}")]
    Unauthorized(String),
    /// Nothing within the deadline.
    #[error("no whole answer within {0:?}")]
    TimedOut(Duration),
    /// An error answer of the protocol.
    #[error("the server answered with error {code}: {message}")]
    Refused {
        /// JSON-RPC.
        code: i32,
        /// Its words.
        message: String,
    },
    /// An answer that is none.
    #[error("{0}")]
    Undecodable(String),
    /// It asks a question instead.
    #[error("{0}")]
    NeedsInput(String),
    /// It can ask one person at a time, and that was another call's all the while. Nothing was sent.
    #[error("another call of this server waits for a person, and it takes one at a time")]
    Busy,
    /// It describes the tool otherwise than the tool was registered. Nothing was sent.
    #[error("`{0}` is not what it was: its server describes it otherwise now")]
    Changed(String),
}

impl McpError {
    /// Nothing more can be expected of the connection.
    pub(super) fn ends_the_connection(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::TimedOut(_))
    }
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Self::NotConnected(_) | Self::Lost(_) | Self::TimedOut(_))
    }
}
