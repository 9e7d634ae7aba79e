//! The pure core: no I/O, no clock, no async, no SQL. What it needs is an argument. The same code is what stores enforce and
//! what a model checker explores.

mod decision;
mod ids;
mod journal;
mod snapshot;
mod state;

pub use decision::*;
pub use ids::*;
pub use journal::*;
pub use snapshot::*;
pub use state::*;
