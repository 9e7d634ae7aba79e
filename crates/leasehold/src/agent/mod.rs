//! Agents: the loop, models and tools. Nothing here can name a store: whatever is written goes through the segment that holds
//! the lease.

pub(crate) mod arguments;
pub(crate) mod executor;
pub(crate) mod gate;
pub mod model;
pub mod owner;
pub(crate) mod patience;
pub mod policy;
pub mod registry;
pub mod tool;
pub mod transcript;
pub mod unrecorded;

pub use arguments::unambiguous;
