//! A durable runtime for AI agents that write.
//!
//! Every segment that can execute a tool holds a lease on its run, and a side effect that cannot be fenced does not happen.

pub mod agent;
pub mod clock;
pub mod limits;
pub mod run;
pub mod store;
pub mod worker;
