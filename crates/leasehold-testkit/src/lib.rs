//! Test support for leasehold.
pub mod world;
pub mod far_side;
