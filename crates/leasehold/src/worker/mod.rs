//! Segments: the only place where a run is executed. Every segment holds a lease.

mod aside;
pub(crate) mod heartbeat;
pub(crate) mod permit;
pub mod pool;
pub(crate) mod probe;
pub(crate) mod queue;
pub(crate) mod reaper;
pub(crate) mod said;
pub(crate) mod segment;
pub(crate) mod trust;

pub use crate::store::transaction::{PostgresTransaction, SqliteTransaction, Undone, Work};
pub(crate) use aside::{PutAside, Room};
pub use heartbeat::{Heartbeat, Signal, Ticker};
pub use permit::{NotHeld, WritePermit};
pub use probe::{Point, Probe};
pub use reaper::{Reaper, Skip, Swept};
pub use segment::{Segment, SegmentError};
pub(crate) use segment::{Transacting, TransactionalCall};
pub use trust::TrustWindow;
