//! Test support for leasehold.
pub mod aimock;
pub mod world;
