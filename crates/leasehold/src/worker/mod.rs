//! Segments: the only place where a run is executed.

pub(crate) mod permit;
pub(crate) mod trust;

pub use permit::{NotHeld, WritePermit};
pub use trust::TrustWindow;
