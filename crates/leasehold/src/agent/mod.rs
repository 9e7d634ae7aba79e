//! Agents: the loop, models and tools.
pub mod model;
pub mod registry;
pub mod tool;
