//! The pure core: no I/O, no clock, no async, no SQL. What it needs is an argument. The same code is what stores enforce and
//! what a model checker explores.

pub mod chain;
mod clockwork;
mod decision;
mod draft;
mod event;
mod holder;
mod ids;
mod journal;
mod people;
mod snapshot;
mod state;
mod story;
mod table;
mod transition;

pub use chain::{Chain, Hash256};
pub use clockwork::{Verdict, lacking, verdict};
pub use decision::*;
pub use event::*;
pub use ids::*;
pub use journal::*;
pub use snapshot::*;
pub(crate) use state::words;
pub use state::*;
pub use story::*;
pub use table::*;
pub use transition::*;
