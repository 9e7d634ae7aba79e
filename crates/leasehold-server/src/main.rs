//! The leasehold command.
#![forbid(unsafe_code)]

mod config;
mod render;
mod terminal;
mod wire;

fn main() {}
