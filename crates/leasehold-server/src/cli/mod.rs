//! The command line: what can be asked, and how a command ends.
//!
//! Data goes to standard output, everything else to standard error. A command ends with 0 where it is done, 1 where what was
//! asked was refused, failed, is dead or cancelled, 2 where it was asked wrongly or the configuration is wrong, 3 where a person
//! has to decide. A reader that goes away ends a command quietly.

mod agents;
mod answer;
mod artifacts;
mod audit;
mod children;
mod config;
mod context;
mod decide;
mod demo;
mod drill;
mod identity;
mod inbox;
mod init;
mod input;
mod key;
mod local;
mod mcp;
mod mcp_login;
mod operate;
mod probe;
mod remote;
mod resolve;
mod run;
mod runs;
mod serve;
mod setup;
mod token;
mod tools;
mod user;
mod verify;
mod watch;

use crate::{config::ConfigError, terminal};
use clap::{
    Args, Parser, Subcommand,
    builder::{OsStringValueParser, TypedValueParser as _},
    error::ErrorKind,
};
use context::Context;
pub(crate) use context::env;
pub(crate) use setup::{Executable, Models, Use, executable_with};
use std::{future::Future, io, path::PathBuf, process::ExitCode};

/// Runs agents that write: every write is fenced, every doubt is a work item.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command, before or after it.
#[derive(Debug, Args)]
struct Global {
    /// The configuration file; else ./leasehold.toml, else the user's configuration directory, else defaults
    // An empty variable is none.
    #[arg(long, global = true, value_name = "PATH", env = "LEASEHOLD_CONFIG",
        value_parser = OsStringValueParser::new().map(PathBuf::from))]
    config: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    /// The URL of a leasehold server to ask instead of the store of this machine; its token is in LEASEHOLD_TOKEN
    #[arg(long, global = true, value_name = "URL", env = "LEASEHOLD_URL", hide_env_values = true)]
    server: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an agent on a task and see it to its end, or to the decision it waits for
    Run(run::RunArgs),
    /// Show it all with real processes in a throw-away directory: no set-up, no key, no network
    Demo(demo::DemoArgs),
    /// Kill real workers at every point around every write of the configured tools, and count what arrives
    Drill(drill::DrillArgs),
    /// Write a commented leasehold.toml with one HTTP tool to start from
    Init,
    /// Serve the HTTP API, work the queue and settle what dead processes left
    Serve,
    /// Work the queue and settle what dead processes left
    Worker(operate::WorkerArgs),
    /// List, show, follow, cancel, redrive or discard runs
    #[command(subcommand)]
    Runs(runs::RunsCommand),
    /// List what waits for a person, most urgent first
    Inbox,
    /// Release calls that wait for a person
    Approve(decide::ApproveArgs),
    /// Deny calls that wait for a person
    Deny(decide::DecideArgs),
    /// Give the values that a call waits for
    Input(input::InputArgs),
    /// Answer what a running call asks, or decline to
    Answer(answer::AnswerArgs),
    /// Say what is true of a write in doubt
    Resolve(resolve::ResolveArgs),
    /// Make, list and revoke API tokens
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Add, list, change and disable users, and log them in
    #[command(subcommand)]
    User(user::UserCommand),
    /// List what was changed about users, tokens, sessions and links
    Audit(audit::AuditArgs),
    /// Make and list the keys that seal what lies in the store
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Compare a run's journal with its chain, and with heads that were exported before
    Verify(verify::VerifyArgs),
    /// Settle runs whose process ended without a word
    Reap(operate::ReapArgs),
    /// Bring the store to this version
    Migrate,
    /// Print what is in effect and where it came from, secrets masked
    Config,
    /// List the configured agents and whether they can run
    Agents,
    /// List the tools that agents can be offered
    Tools(tools::ToolsArgs),
    /// List and probe MCP servers, take in their tools, acknowledge changes, switch them off
    #[command(subcommand)]
    Mcp(mcp::McpCommand),
}

/// How a command that did what it could has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done,
    /// Refused, failed, dead, cancelled.
    Refused,
    /// Asked wrongly, or the configuration is wrong.
    Usage,
    /// A person has to decide.
    Waits,
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Refused => 1,
            Self::Usage => 2,
            Self::Waits => 3,
        }
    }
}

/// Why a command could not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Say this on standard error and end so.
    Said(Exit, String),
    /// Nobody reads the output any more.
    Closed,
}

impl Failure {
    /// Asked wrongly.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Said(Exit::Usage, text.into())
    }
    /// Refused or failed.
    pub(crate) fn refused(text: impl Into<String>) -> Self {
        Self::Said(Exit::Refused, text.into())
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::usage(error.to_string())
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::Closed } else { Self::refused(error.to_string()) }
    }
}

/// How a command ends.
pub(crate) type Outcome = Result<Exit, Failure>;

/// Parses the command line, executes the command, and says how it ended.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_use(&error),
    };
    context::log();
    children::end_with_parent();
    let exit = match execute(cli) {
        Ok(exit) => exit,
        Err(Failure::Closed) => Exit::Done,
        Err(Failure::Said(exit, text)) => {
            terminal::error(&text);
            exit
        }
    };
    ExitCode::from(exit.code())
}

/// Help as it is; a complaint with what was typed made visible first.
fn wrong_use(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(Exit::Usage.code());
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.print().ok();
        return ExitCode::from(code);
    }
    let typed = std::env::args_os().map(|word| terminal::Safe::line(&word.to_string_lossy()).as_str().to_owned());
    let text = match Cli::try_parse_from(typed) {
        Err(visible) => visible.render().to_string(),
        Ok(_) => error.render().to_string(),
    };
    terminal::error(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
    ExitCode::from(code)
}

fn execute(cli: Cli) -> Outcome {
    if let Some(url) = cli.global.server.as_deref().filter(|url| !url.is_empty()) {
        return block_on(remote::remote(url, cli.global.json, cli.command));
    }
    let context = || Context::load(&cli.global);
    match cli.command {
        Command::Demo(args) => block_on(demo::demo(&args)),
        Command::Drill(args) => block_on(drill::drill(&context()?, &args)),
        Command::Init => init::init(cli.global.config.as_deref()),
        Command::Config => config::config(&context()?),
        Command::Agents => agents::agents(&context()?),
        Command::Mcp(command) => block_on(async { mcp::mcp(&context()?, command).await }),
        Command::Tools(args) => block_on(async { tools::tools(&context()?, &args).await }),
        Command::Run(args) => block_on(run::run(&context()?, args)),
        Command::Worker(args) => block_on(async {
            let signals = watch::Signals::listen()?;
            operate::worker(&context()?, args, signals).await
        }),
        Command::Serve => block_on(async {
            let signals = watch::Signals::listen()?;
            serve::serve(&context()?, signals).await
        }),
        Command::Runs(command) => block_on(runs::runs(&context()?, command)),
        Command::Inbox => block_on(inbox::inbox(&context()?)),
        Command::Approve(args) => block_on(decide::approve(&context()?, args)),
        Command::Deny(args) => block_on(decide::deny(&context()?, args)),
        Command::Input(args) => block_on(input::input(&context()?, args)),
        Command::Answer(args) => block_on(answer::answer(&context()?, args)),
        Command::Resolve(args) => block_on(resolve::resolve(&context()?, args)),
        Command::Token(command) => block_on(token::token(&context()?, command)),
        Command::User(command) => block_on(user::user(&context()?, command)),
        Command::Audit(args) => block_on(audit::audit(&context()?, args)),
        Command::Key(command) => key::key(&context()?, &command),
        Command::Verify(args) => block_on(verify::verify(&context()?, args)),
        Command::Reap(args) => block_on(operate::reap(&context()?, args)),
        Command::Migrate => block_on(async { operate::migrate(&context()?).await }),
    }
}

fn block_on(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let outcome = runtime.block_on(command);
    // A thread that still waits for something must not keep an ended command from ending.
    runtime.shutdown_timeout(std::time::Duration::from_millis(200));
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn global_options_stand_before_or_after_the_command() {
        for line in [["leasehold", "--json", "--config", "x", "agents"], ["leasehold", "agents", "--json", "--config", "x"]] {
            let cli = Cli::try_parse_from(line).unwrap();
            assert!(cli.global.json && cli.global.config.as_deref() == Some("x".as_ref()));
        }
    }
}
