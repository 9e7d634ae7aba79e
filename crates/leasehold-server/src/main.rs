//! The leasehold command.
#![forbid(unsafe_code)]

mod config;
mod terminal;

fn main() {}
