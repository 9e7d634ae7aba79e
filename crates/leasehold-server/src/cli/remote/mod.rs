//! The commands as a client of a server's HTTP API: they order and look, and execute nothing. What they say and how they end is what
//! the same command says on the store itself.
//!
//! Text comes from the server as it shows it and is made safe here once more; JSON is printed as it came. What is not of a run but of
//! a store, such as a worker, has no remote form.

mod answer;
mod ask;
mod catalog;
mod client;
mod find;
mod follow;
mod mcp;
mod people;
mod run;
mod runs;
mod shown;

use super::{Command, Exit, Failure, Outcome};
use crate::terminal;
use client::Client;

/// What every remote command needs.
pub(super) struct Remote {
    client: Client,
    /// Print JSON.
    json: bool,
    /// How this program is called again with the same server, for commands that are shown.
    command: String,
}

/// Executes a command at a server.
pub(super) async fn remote(url: &str, json: bool, command: Command) -> Outcome {
    if let Some(name) = of_a_store(&command) {
        return Err(Failure::usage(format!(
            "`{name}` works on this machine, not on a server: leave --server and LEASEHOLD_URL out"
        )));
    }
    let client = Client::new(url)?;
    let from_environment = std::env::var("LEASEHOLD_URL").is_ok_and(|own| own == url);
    let called = if from_environment { "leasehold".to_owned() } else { format!("leasehold --server {}", client.url()) };
    let remote = Remote { client, json, command: called };
    match command {
        Command::Run(args) => remote.run(args).await,
        Command::Runs(command) => remote.runs(command).await,
        Command::Inbox => remote.inbox().await,
        Command::Approve(args) => remote.approve(args).await,
        Command::Deny(args) => remote.decide(args, false, None).await,
        Command::Input(args) => remote.input(args).await,
        Command::Answer(args) => remote.answer(args).await,
        Command::Resolve(args) => remote.resolve(args).await,
        Command::Agents => remote.agents().await,
        Command::Tools(args) => remote.tools(&args).await,
        Command::Mcp(command) => remote.mcp(command).await,
        // Refused above.
        _ => Ok(Exit::Usage),
    }
}

/// The name of a command that has no remote form.
fn of_a_store(command: &Command) -> Option<&'static str> {
    Some(match command {
        Command::Demo(_) => "demo",
        Command::Drill(_) => "drill",
        Command::Init => "init",
        Command::Serve => "serve",
        Command::Worker(_) => "worker",
        Command::Reap(_) => "reap",
        Command::Migrate => "migrate",
        Command::Config => "config",
        Command::Token(_) => "token",
        Command::User(_) => "user",
        Command::Audit(_) => "audit",
        Command::Key(_) => "key",
        Command::Verify(_) => "verify",
        Command::Run(_)
        | Command::Runs(_)
        | Command::Inbox
        | Command::Approve(_)
        | Command::Deny(_)
        | Command::Input(_)
        | Command::Answer(_)
        | Command::Resolve(_)
        | Command::Agents
        | Command::Tools(_)
        | Command::Mcp(_) => return None,
    })
}

impl Remote {
    /// Prints an answer as it came.
    fn print(&self, body: &str) -> Result<(), Failure> {
        terminal::print_json_text(body)?;
        Ok(())
    }
}
