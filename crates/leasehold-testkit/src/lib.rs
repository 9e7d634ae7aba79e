//! Test support for leasehold: the store contract as tests ([`conformance`]) and a store that fails on command ([`FaultyStore`]).

pub mod conformance;
mod faulty;
pub mod fixture;

pub use faulty::{Fault, FaultyStore, How, Op};
