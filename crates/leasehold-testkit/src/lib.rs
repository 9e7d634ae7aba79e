//! Test support for leasehold: the store contract as tests ([`conformance`]), a store that fails on command ([`FaultyStore`]), a
//! small recorded world to run agents in ([`world`]), a far side that counts what arrives ([`far_side`]), a model server that
//! somebody else wrote ([`aimock`]), one that plays recorded bytes ([`recorded`]), what providers insist on ([`wire_rules`]), MCP servers of others ([`mcp`]), packages of npm ([`npm`]), a browser ([`browser`]), wall clocks that are wrong
//! ([`wall_clock`]), and throw-away PostgreSQL servers ([`postgres`]).

pub mod aimock;
pub mod browser;
pub mod chaos;
pub mod conformance;
mod drill;
pub mod far_side;
mod faulty;
pub mod fixture;
pub mod home;
pub mod invariants;
pub mod mcp;
pub mod model;
pub mod npm;
pub mod park;
pub mod postgres;
pub mod recorded;
pub mod simulation;
pub mod wall_clock;
pub mod wire_rules;
pub mod world;

pub use drill::{DrillReport, DrillRow, drill};
pub use faulty::{Fault, FaultyStore, How, Op};
