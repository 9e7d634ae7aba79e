//! Test support for leasehold.
pub mod world;
