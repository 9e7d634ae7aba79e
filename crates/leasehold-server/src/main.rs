//! The leasehold command.
#![forbid(unsafe_code)]

mod cli;
mod config;
mod render;
mod terminal;
mod wire;

fn main() -> std::process::ExitCode {
    cli::main()
}
