//! Under whose identity a run writes. The runtime knows owners by name alone; whether one is still there, and may still run a tool, is
//! known to whoever keeps the accounts.

use async_trait::async_trait;

/// What an owner may do with a tool now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerRight {
    /// Run it.
    May,
    /// Not any more: the run waits again, and says why.
    MayNot(String),
    /// There is no such owner any more: the call is refused. Nothing runs as nobody.
    Gone(String),
    /// That could not be found out: the run is retried.
    NotKnown(String),
}

/// Keeps the accounts. Asked before each write is stamped.
#[async_trait]
pub trait Owners: Send + Sync {
    /// What this owner may do with this tool now.
    async fn right(&self, owner: &str, tool: &str) -> OwnerRight;
}
