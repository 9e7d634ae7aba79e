//! A durable runtime for AI agents that write.
//!
//! Every segment that can execute a tool holds a lease on its run, and a side effect that cannot be fenced does not happen.

pub mod agent;
pub mod client;
pub mod clock;
pub mod limits;
pub mod run;
pub mod store;
pub mod worker;

pub use agent::executor::Live;
pub use client::{
    Decided, Decision, Details, Execution, InboxKind, OrderError, Resolution, Runtime, RuntimeConfig, StartError, StartRun,
};
