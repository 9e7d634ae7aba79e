//! A durable runtime for AI agents that write.
//!
//! Every segment that can execute a tool holds a lease on its run, and a side effect that cannot be fenced does not happen.
//!
//! Where to start:
//!
//! - [`agent::tool::rust`]: a function becomes a tool. Reads and writes are different types; a write takes a
//!   [`WritePermit`](agent::tool::WritePermit) by value, and only a segment that holds a lease makes one.
//! - [`agent::tool::transactional`]: a write to the database of the store, committed with its record. Never in doubt.
//! - [`agent::registry::Registry`]: the agents and tools of this process. Nothing that is not in it can be called.
//! - [`store::sqlite::SqliteStore`]: the durable store, one file. [`store::memory::MemoryStore`]: for tests.
//! - [`Runtime`]: this process's part in the runs of a store. [`start`](Runtime::start), [`enqueue`](Runtime::enqueue) and
//!   [`decide`](Runtime::decide); [`work`](Runtime::work) for a worker; [`inbox`](Runtime::inbox) and
//!   [`resolve`](Runtime::resolve) for what needs a person; [`shutdown`](Runtime::shutdown) before the process ends.
//! - [`run`]: the rules, as pure functions: [`run::apply`] over [`run::TABLE`].
//!
//! An example from a tool to a completed run is in `README.md`; it is compiled and run with these documents' tests.
//! A shorter one, in memory:
//!
//! ```
//! use leasehold::{
//!     Runtime, RuntimeConfig, StartRun,
//!     agent::{model::scripted::ScriptedModel, registry::{AgentSpec, Registry}},
//!     clock::SystemClock,
//!     run::{Principal, State},
//!     store::memory::MemoryStore,
//! };
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = ScriptedModel::from_toml("scripted", "[[reply]]\ntext = \"Good morning.\"")?;
//! let mut registry = Registry::new();
//! registry.add_agent(AgentSpec::new("greeter", model))?;
//! let clock = Arc::new(SystemClock::new()?);
//! let runtime = Runtime::new(RuntimeConfig::new(MemoryStore::new(clock.clone()), registry, clock))?;
//! let execution = runtime.start(StartRun::new("greeter", "Say something", Principal::person("ann"))).await?;
//! assert_eq!(execution.finish().await?.state, State::Completed);
//! # Ok(())
//! # }
//! ```

pub mod agent;
pub mod client;
pub mod clock;
pub mod drill;
pub mod limits;
mod postgres;
pub mod run;
pub mod seal;
pub mod store;
pub mod worker;

pub use agent::executor::Live;
pub use client::{
    Asked, Decided, Decision, Details, Execution, InboxKind, OrderError, QuestionAnswer, Resolution, Resolved, Runtime,
    RuntimeConfig, Similar, SimilarCall, SimilarStage, StandingQuestion, StartError, StartRun, Started, Submission, Unserved,
};
pub use worker::pool::{PoolConfig, Worked};

/// The readme's Rust is a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So is that of the page about tools.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/rust-tools.md")]
struct RustTools;
