//! The leasehold command.
#![forbid(unsafe_code)]
// Only `terminal` prints, because only it makes text safe first.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod access;
mod api;
mod catalog;
mod cli;
mod config;
mod keyring;
mod mcp;
mod render;
mod terminal;
mod ui;
mod webhook;
mod wire;

fn main() -> std::process::ExitCode {
    cli::main()
}
