//! `leasehold mcp`: which MCP servers there are, whether they answer, and what they may offer.

use super::{
    Context, Exit, Failure, Outcome, identity,
    local::{Local, Needs, not_known},
    mcp_login::{LoginArgs, login, logout},
    watch::Signals,
};
use crate::{
    access::AccessError,
    mcp::{InForce, LoginLine, McpLine, McpToolLine, Probed, Unanswered},
    terminal::{self, Look, Screen, span},
    wire::Page,
};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};

/// What is done with servers.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum McpCommand {
    /// List the servers, how they do, and their tools
    List,
    /// Ask a server whether it answers, and take down what it lists
    Probe {
        /// The server
        name: String,
    },
    /// The same, for a server that nobody has asked yet
    Import {
        /// The server
        name: String,
    },
    /// Take definitions as they are that are new or were changed by their server
    Acknowledge(AcknowledgeArgs),
    /// Log in at a server's authorization server, with a browser
    Login(LoginArgs),
    /// Forget that login
    Logout {
        /// The server
        name: String,
    },
    /// Offer and call nothing of a server, or of one tool, from the next call on
    Disable {
        /// A server, or a tool as `server.tool`
        name: String,
    },
    /// Offer it again
    Enable {
        /// A server, or a tool as `server.tool`
        name: String,
    },
}

/// Options of `mcp acknowledge`.
#[derive(Debug, clap::Args)]
pub(crate) struct AcknowledgeArgs {
    /// The server
    pub(crate) name: String,
    /// Its tools
    #[arg(required_unless_present = "all")]
    pub(crate) tools: Vec<String>,
    /// Every tool of it that is new or changed
    #[arg(long, conflicts_with = "tools")]
    pub(crate) all: bool,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Executes a verb on the store of this machine.
pub(crate) async fn mcp(context: &Context, command: McpCommand) -> Outcome {
    let local = Local::open_unswept(context, Needs::Agents).await?;
    let Some(in_force) = local.in_force.clone() else { return Ok(Exit::Usage) };
    let mut signals = Signals::listen()?;
    let outcome = tokio::select! {
        outcome = on(&local, &in_force, command) => outcome,
        // Servers that do not look at the end of their input are to end with this process too.
        _ = signals.next() => Err(Failure::refused("interrupted")),
    };
    local.end().await;
    outcome
}

async fn on(local: &Local<'_>, in_force: &Arc<InForce>, command: McpCommand) -> Outcome {
    let (who, json) = (&local.who, local.context.json);
    match command {
        McpCommand::List => {
            let lines = in_force.lines().await.map_err(not_known)?;
            if json {
                terminal::print_json(&Page::whole(lines))?;
                return Ok(Exit::Done);
            }
            list(&lines)
        }
        McpCommand::Probe { name } | McpCommand::Import { name } => {
            probed(&in_force.probe(who, &name).await.map_err(unanswered)?, json)
        }
        McpCommand::Acknowledge(args) => {
            let lines = in_force.lines().await.map_err(not_known)?;
            match to_acknowledge(&lines, &args)? {
                None => Ok(Exit::Refused),
                Some(tools) => {
                    let line = in_force.acknowledge(who, &args.name, &tools).await.map_err(unanswered)?;
                    done(&line, json, &format!("{} acknowledged", count(tools.len())))
                }
            }
        }
        McpCommand::Login(args) => login(local, in_force, &args).await,
        McpCommand::Logout { name } => logout(local, in_force, &name).await,
        McpCommand::Disable { name } => switch(local, in_force, &name, true).await,
        McpCommand::Enable { name } => switch(local, in_force, &name, false).await,
    }
}

async fn switch(local: &Local<'_>, in_force: &Arc<InForce>, name: &str, is_off: bool) -> Outcome {
    let (server, tool) = parts(name);
    let line = in_force.switch(&local.who, server, tool, is_off).await.map_err(unanswered)?;
    done(&line, local.context.json, &switched(name, is_off))
}

/// What a switch came to, in words.
pub(super) fn switched(name: &str, is_off: bool) -> String {
    if is_off { format!("`{name}` is off, from the next call on") } else { format!("`{name}` is on again") }
}

/// Server and tool of a name.
pub(super) fn parts(name: &str) -> (&str, Option<&str>) {
    name.split_once('.').map_or((name, None), |(server, tool)| (server, Some(tool)))
}

pub(super) fn unanswered(error: Unanswered) -> Failure {
    match error {
        Unanswered::Access(AccessError::Denied(denied)) => identity::denied(denied),
        Unanswered::NotKnown(error) => not_known(error),
        Unanswered::NoSuchServer(_) => Failure::usage(error.to_string()),
        other => Failure::refused(other.to_string()),
    }
}

fn count(tools: usize) -> String {
    if tools == 1 { "1 tool".into() } else { format!("{tools} tools") }
}

/// Prints what a change came to.
pub(super) fn done(line: &McpLine, json: bool, what: &str) -> Outcome {
    if json {
        terminal::print_json(line)?;
    } else {
        terminal::note(what);
    }
    Ok(Exit::Done)
}

/// Prints what a server answered.
pub(super) fn probed(probed: &Probed, json: bool) -> Outcome {
    if json {
        terminal::print_json(probed)?;
        return Ok(Exit::Done);
    }
    let mut screen = Screen::stdout();
    screen.line(format!("answered within {} ms and lists {}", probed.latency_ms, count(probed.listed)));
    for (tool, why) in &probed.refused {
        screen.styled(Look::Bad, format!("  {tool}: cannot be offered: {why}"));
    }
    server(&mut screen, &probed.server);
    screen.print()?;
    Ok(Exit::Done)
}

/// Prints all servers.
pub(super) fn list(lines: &[McpLine]) -> Outcome {
    if lines.is_empty() {
        terminal::note("no MCP servers are configured: add an [[mcp]] section");
        return Ok(Exit::Done);
    }
    let mut screen = Screen::stdout();
    for line in lines {
        server(&mut screen, line);
    }
    screen.print()?;
    Ok(Exit::Done)
}

fn server(screen: &mut Screen, line: &McpLine) {
    screen.spans(&[
        span(Look::Strong, &line.name),
        span(Look::Faint, format!("  {}", line.endpoint.as_deref().unwrap_or_default())),
    ]);
    if let Some(problem) = &line.problem {
        screen.styled(Look::Bad, format!("  cannot be reached from here: {problem}"));
    }
    if let Some(off) = &line.switched_off {
        screen.styled(Look::Bad, format!("  switched off by {} at {}", off.by, off.at));
    }
    if let Some(login) = &line.login {
        let (look, text) = login_text(login, &line.name);
        screen.styled(look, format!("  {text}"));
    }
    match &line.imported_at {
        None => screen.line("  its tools are not known yet: whoever works the queue asks it, or `leasehold mcp import` does"),
        Some(at) => screen.line(format!("  first asked at {at}")),
    };
    if let Some(health) = &line.health {
        if let (Some(server), Some(version)) = (&health.server, &health.protocol_version) {
            screen.line(format!("  it is {server}, protocol {version}"));
        }
        if let Some(error) = &health.last_error {
            screen.styled(Look::Bad, format!("  last error: {error}"));
        }
    }
    let rows: Vec<Vec<String>> = line
        .tools
        .iter()
        .map(|tool| {
            vec![
                tool.name.clone(),
                tool.standing.clone(),
                tool.effect.as_deref().unwrap_or_default().replace('_', " "),
                tool.approval.clone().filter(|_| tool.effect.as_deref() != Some("read_only")).unwrap_or_default(),
                tool.why.clone().unwrap_or_default(),
            ]
        })
        .collect();
    if !rows.is_empty() {
        screen.table(&["tool", "standing", "effect", "approval", ""], &rows);
    }
}

/// A login in a line, with the mend.
fn login_text(login: &LoginLine, server: &str) -> (Look, String) {
    let log_in = format!("`leasehold mcp login {server}`");
    let by = format!("{} at {}", login.by.as_deref().unwrap_or_default(), login.at.as_deref().unwrap_or_default());
    let until = login.valid_until.as_deref().unwrap_or("its server says");
    let why = login.why.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
    match login.state.as_str() {
        "machine" => (Look::Plain, "logs in by itself".into()),
        "valid" => (Look::Plain, format!("logged in by {by}, the token is valid until {until}")),
        "expired" => (Look::Plain, format!("logged in by {by}, the token is refreshed with the next call")),
        "refresh_failed" => (Look::Bad, format!("logged in by {by}, the last refresh failed{why}; the next call tries again")),
        "needed" => (Look::Bad, format!("the login by {by} is over{why}: {log_in}")),
        "other_place" => (Look::Bad, format!("the login by {by} is for another place than `url`: {log_in}")),
        _ => (Look::Bad, format!("nobody has logged in: {log_in}")),
    }
}

/// The tools that are meant with the hash of what was shown; none: the person would not have it.
pub(super) fn to_acknowledge(lines: &[McpLine], args: &AcknowledgeArgs) -> Result<Option<BTreeMap<String, String>>, Failure> {
    let line = lines.iter().find(|line| line.name == args.name);
    let line = line.ok_or_else(|| Failure::usage(format!("there is no mcp server `{}` in the configuration", args.name)))?;
    let start = format!("{}.", line.name);
    let name = |tool: &McpToolLine| tool.name.strip_prefix(&start).unwrap_or(&tool.name).to_owned();
    let waits = |tool: &&McpToolLine| matches!(tool.standing.as_str(), "new" | "changed");
    let mut meant: Vec<&McpToolLine> = Vec::new();
    if args.all {
        meant.extend(line.tools.iter().filter(waits));
    }
    for wanted in &args.tools {
        let tool = line.tools.iter().find(|tool| name(tool) == *wanted || tool.name == *wanted);
        let tool = tool.ok_or_else(|| Failure::usage(format!("mcp server `{}` has no tool `{wanted}`", line.name)))?;
        if !waits(&tool) {
            return Err(Failure::refused(format!("`{}` does not wait to be acknowledged: it is {}", tool.name, tool.standing)));
        }
        meant.push(tool);
    }
    if meant.is_empty() {
        return Err(Failure::refused(format!("no tool of mcp server `{}` waits to be acknowledged", line.name)));
    }
    let mut screen = Screen::stderr();
    for tool in &meant {
        shown(&mut screen, tool);
    }
    screen.eprint();
    if !args.yes {
        if !terminal::can_ask() {
            return Err(Failure::usage("nobody can be asked here: add --yes to take it as it is shown"));
        }
        let answer = terminal::ask("take this as it is? [y/N] ")?;
        if !answer.is_some_and(|answer| matches!(answer.trim(), "y" | "Y" | "yes")) {
            terminal::note("nothing was acknowledged");
            return Ok(None);
        }
    }
    Ok(Some(meant.into_iter().filter_map(|tool| Some((name(tool), tool.hash.clone()?))).collect()))
}

fn shown(screen: &mut Screen, tool: &McpToolLine) {
    screen.spans(&[span(Look::Strong, &tool.name), span(Look::Faint, format!("  {}", tool.standing))]);
    if tool.standing == "new" {
        screen.block(2, tool.description.as_deref().unwrap_or_default(), usize::MAX);
        let schema = tool.parameters.as_ref().and_then(|schema| serde_json::to_string_pretty(schema).ok());
        screen.block(2, schema.as_deref().unwrap_or_default(), usize::MAX);
    }
    for difference in &tool.differences {
        let at = difference.get("path").and_then(Value::as_str).unwrap_or_default();
        let value =
            |key: &str| difference.get(key).filter(|value| !value.is_null()).map_or("nothing".to_owned(), Value::to_string);
        screen.line(format!("  {at}"));
        screen.line(format!("    was {}", value("before")));
        screen.line(format!("    is  {}", value("after")));
    }
}
