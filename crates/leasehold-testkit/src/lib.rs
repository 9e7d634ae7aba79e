//! Test support for leasehold: the store contract as tests ([`conformance`]), a store that fails on command ([`FaultyStore`]), a
//! small recorded world to run agents in ([`world`]), a far side that counts what arrives ([`far_side`]), a model server that
//! somebody else wrote ([`aimock`]), and throw-away PostgreSQL servers ([`postgres`]).

pub mod aimock;
pub mod chaos;
pub mod conformance;
pub mod far_side;
mod faulty;
pub mod fixture;
pub mod home;
pub mod park;
pub mod postgres;
pub mod world;

pub use faulty::{Fault, FaultyStore, How, Op};
