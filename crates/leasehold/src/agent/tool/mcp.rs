//! Tools of MCP servers, as a client of the official SDK.
//!
//! What the far side cannot do to us, whatever it sends:
//!
//! - **Be believed about itself.** Effect and approval are the operator's; annotations are kept for showing and lower nothing.
//! - **Get a call twice.** A write opens its passage once, under its lease, and whatever is sent again finds it used. No session is
//!   made anew in the middle of a call, no redirect is followed, no connection is taken from a pool.
//! - **Make a write look undone that may be done.** Not applied is said only where the passage was closed before a byte went out;
//!   a lost connection, a timeout, an error of a kind we do not know, a task and what cannot be decoded are unknown.
//! - **Hold us up.** Each operation has one deadline over connecting, handshake and call; a connection that did not answer in time is
//!   thrown away; what fails is tried again after growing pauses. Its standard error is read and forgotten, garbage is skipped.
//! - **Outlive us.** Its process leads a group that ends with the connection, with the runtime and with this value.
//! - **Ask our models or our people.** It gets no sampling and no roots, asks a person only where its operator
//!   says so, and gets no answer in anybody's name.
//! - **See our environment, or show our secrets.** A process gets a few harmless variables and what is configured for it; values of
//!   `env` and `headers` are replaced where its words are repeated, and the tokens of its login in all that it says.
//! - **Flood us.** Messages, lists, definitions, results, artifacts and quoted words are bounded in `limits`; what it says of a running
//!   call is shown at a bounded rate and recorded nowhere.

mod answer;
mod config;
mod connection;
mod deadline;
mod definition;
mod elicit;
mod error;
mod guarded;
mod health;
mod heard;
mod lines;
mod mask;
mod oauth;
mod pace;
mod passage;
mod process;
mod server;
mod target;
#[cfg(test)]
mod tests;
mod tools;
mod words;

pub use config::{ErrorOutcome, McpConfig, McpConfigError};
pub use definition::{Change, Definition, Difference, changes, refusals};
pub use error::McpError;
pub use health::{Link, McpHealth};
pub use oauth::{Begun, Grant, Kept, Login, LoginError, LoginOf, Logins, OAuthConfig, PendingLogin, Refreshed, Ticket};
pub use server::McpServer;
pub use tools::{Offered, Refused};
