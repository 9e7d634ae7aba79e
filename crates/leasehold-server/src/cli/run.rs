//! `leasehold run`: one run, in the foreground or for a worker.

use super::{
    Context, Exit, Failure, Outcome,
    decide::ask_and_go_on,
    local::{Local, Needs, exit_of, exit_of_executed, start},
    setup,
    watch::{Signals, execute},
};
use crate::{
    access::Role,
    mcp,
    render::{card, doubt, how_to_answer, how_to_decide, questions, sentence},
    terminal::{self, Screen},
    wire,
};
use leasehold::{
    Details, Runtime, StartError, StartRun,
    agent::unrecorded::WRITE_WITHOUT_DURABLE_EXECUTION,
    run::{Reason, RunId, State},
};
use serde_json::json;
use std::io::{IsTerminal as _, Read as _};

/// Options of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// The agent; may be left out where there is only one
    #[arg(long, short, value_name = "A")]
    pub(super) agent: Option<String>,
    /// Put the run in the queue for a worker instead of executing it here
    #[arg(long)]
    pub(super) queue: bool,
    /// The same key again is the same run, not a new one
    #[arg(long, value_name = "K", requires = "queue", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(super) key: Option<String>,
    /// Narrow the agent's tools to these names or patterns
    #[arg(long, value_name = "T", value_delimiter = ',')]
    pub(super) tools: Option<Vec<String>>,
    /// Narrow the agent's cap on model replies
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) max_rounds: Option<u32>,
    /// Keep no record and need no store: reads work, every write is refused
    #[arg(long, conflicts_with = "queue")]
    pub(super) unrecorded: bool,
    /// What the agent should do; `-` reads it from standard input
    pub(super) prompt: String,
}

impl RunArgs {
    /// What the agent should do.
    pub(super) fn prompt(&self) -> Result<String, Failure> {
        if self.prompt != "-" {
            return Ok(self.prompt.clone());
        }
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|e| Failure::usage(format!("standard input cannot be read as the request: {e}")))?;
        Ok(text)
    }

    /// The tools that it is narrowed to.
    pub(super) fn tools(&self) -> Option<Vec<String>> {
        Some(self.tools.as_ref()?.iter().map(|tool| tool.trim().to_owned()).collect())
    }
}

/// Starts a run and sees it to its end or its wait.
pub(crate) async fn run(context: &Context, args: RunArgs) -> Outcome {
    let agent = choose_agent(context, args.agent.as_deref())?;
    let mut new = StartRun::new(&agent.name, args.prompt()?, Context::principal());
    new.request.tools = args.tools();
    new.request.max_rounds = args.max_rounds;
    if args.unrecorded {
        return unrecorded(context, new).await;
    }
    let execute_here = context.config.execute.value;
    let queue = args.queue || !execute_here;
    let mut local = Local::open(context, if queue { Needs::Declared } else { Needs::Agents }).await?;
    let outcome = run_on(&mut local, agent, new, args, queue).await;
    local.end().await;
    outcome
}

async fn run_on(local: &mut Local<'_>, agent: &crate::config::Agent, mut new: StartRun, args: RunArgs, queue: bool) -> Outcome {
    local.needs(Role::Runner)?;
    let mut signals = Signals::listen()?;
    if !queue {
        tokio::select! {
            met = local.meet_servers(&agent.tools) => met?,
            _ = signals.next() => return Err(Failure::refused("interrupted before the run began")),
        }
    }
    let context = local.context;
    new.by = local.who.by();
    new.initiator = (new.by.id != local.who.person).then(|| local.who.person.clone());
    if let Some(why) = local.executable.missing_agents.get(&agent.name) {
        return Err(Failure::usage(format!("agent `{}` cannot run here: {why}", agent.name)));
    }
    setup::announce(&context.config, &agent.model);
    if !args.queue && !context.config.execute.value {
        terminal::note("[server] execute = false: the run is queued for a worker");
    }
    if queue {
        let id = local.runtime.enqueue(new, args.key).await.map_err(start)?;
        return queued(local, id).await;
    }
    let execution = match local.runtime.start(new.clone()).await {
        Ok(execution) => execution,
        Err(error @ (StartError::Unavailable(_) | StartError::StoreRefused(_))) => {
            // The answer may still be wanted; what needs a record is refused there before it happens.
            terminal::note(format!("the store took no run: {error}"));
            return unrecorded(context, new).await;
        }
        Err(error) => return Err(start(error)),
    };
    let id = execution.run();
    terminal::note(format!("run {id}"));
    execute(local, execution, 0, &mut signals).await?;
    finish(local, id, true, &mut signals).await
}

/// The agent that is meant.
fn choose_agent<'c>(context: &'c Context, named: Option<&str>) -> Result<&'c crate::config::Agent, Failure> {
    let agents = &context.config.agents;
    let names = || agents.iter().map(|a| a.name.as_str()).collect::<Vec<_>>().join(", ");
    match (named, agents.as_slice()) {
        (Some(name), _) => agents
            .iter()
            .find(|a| a.name == name)
            .ok_or_else(|| Failure::usage(format!("there is no agent `{name}`; there are: {}", names()))),
        (None, [one]) => Ok(one),
        (None, _) => Err(Failure::usage(format!("which agent? add --agent; there are: {}", names()))),
    }
}

async fn queued(local: &Local<'_>, id: RunId) -> Outcome {
    let details = local.details(id).await?;
    if local.context.json {
        local.print_run(&details)?;
    } else {
        let mut screen = Screen::stdout();
        screen.line(id.to_string());
        screen.print()?;
    }
    if details.row.state == State::Queued {
        local.warn_unserved(&details.row).await?;
    } else {
        terminal::note(format!("the key belongs to this run, which is {} now", details.row.state.as_str().replace('_', " ")));
    }
    Ok(Exit::Done)
}

/// Says how the run stands after this process `executed` it or decided about it; asks where a person is there to answer.
pub(crate) async fn finish(local: &mut Local<'_>, id: RunId, mut executed: bool, signals: &mut Signals) -> Outcome {
    loop {
        let details = local.details(id).await?;
        // Nobody is asked who may not answer.
        let may = local.who.may_decide(&details.row, std::iter::empty()).is_ok();
        let waits = details.row.state == State::WaitingForApproval && may;
        if waits && !local.context.json && terminal::can_ask() && ask_and_go_on(local, &details, signals).await? {
            executed = true;
            continue;
        }
        let said = report(local, &details).await?;
        // Held still: by this process, which ends, or by one that took it over.
        return Ok(if executed && details.row.state.is_held() { exit_of_executed(&details.row) } else { said });
    }
}

/// The end of a command that executed a run or decided about it.
pub(crate) async fn report(local: &Local<'_>, details: &Details) -> Outcome {
    let subject = local.subject(details);
    let row = &details.row;
    let mut screen = Screen::stderr();
    let (look, text) = sentence(&subject);
    screen.styled(look, text);
    match (row.state, row.reason) {
        (State::WaitingForApproval | State::WaitingForInput, _) => {
            card(&mut screen, &subject, None);
            how_to_decide(&mut screen, &subject);
        }
        (State::Running, _) => {
            questions(&mut screen, &subject, None);
            how_to_answer(&mut screen, &subject);
        }
        (State::Dead, Some(Reason::WriteInDoubt)) => doubt(&mut screen, &subject),
        _ => {}
    }
    screen.eprint();
    local.warn_unserved(row).await?;
    let printed = match wire::settled(row, &details.entries).and_then(|end| end.output) {
        _ if local.context.json => local.print_run(details),
        Some(output) => answer(&output),
        None => Ok(()),
    };
    match printed {
        // A reader that has gone away does not change how the run ended.
        Ok(()) | Err(Failure::Closed) => Ok(exit_of(row)),
        Err(failure) => Err(failure),
    }
}

/// The agent's answer: behind a gutter on a terminal, as lines elsewhere; visible everywhere.
pub(super) fn answer(output: &str) -> Result<(), Failure> {
    let mut screen = Screen::stdout();
    if std::io::stdout().is_terminal() {
        screen.block(0, output, usize::MAX);
    } else {
        screen.lines(output);
    }
    screen.print()?;
    Ok(())
}

async fn unrecorded(context: &Context, new: StartRun) -> Outcome {
    let executable = setup::executable(&context.config, setup::Use::Execute, mcp::unrecorded(&context.config))?;
    if let Some(why) = executable.missing_agents.get(&new.agent) {
        return Err(Failure::usage(format!("agent `{}` cannot run here: {why}", new.agent)));
    }
    terminal::note("unrecorded: nothing is kept, nothing can be resumed, every write is refused");
    let agent = new.agent.clone();
    let run = Runtime::unrecorded(&executable.registry, new).map_err(start)?;
    let end = run.run().await.map_err(|error| Failure::refused(format!("the model call failed: {error}")))?;
    if end.refused_writes > 0 {
        terminal::note(format!("{WRITE_WITHOUT_DURABLE_EXECUTION}: {} refused, nothing was done", end.refused_writes));
    }
    if context.json {
        let object = json!({
            "id": null, "agent": agent, "state": "completed", "output": end.output, "truncated": end.truncated,
            "refused_writes": end.refused_writes,
        });
        terminal::print_json(&object)?;
    } else {
        answer(&end.output)?;
    }
    Ok(Exit::Done)
}
