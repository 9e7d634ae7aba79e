//! `leasehold runs`: list, show, follow, cancel, redrive, discard; its artifacts are in `artifacts`.

use super::{
    Context, Exit, Failure, Outcome,
    artifacts::{ArtifactsArgs, artifacts},
    local::{Local, Needs, order},
    watch::{Heard, Signals},
};
use crate::{
    access::{Role, Who},
    render::{answering, runs_table, sentence, show, words},
    terminal::{self, Look, Screen, span},
    wire::{Event, Page, RunLine},
};
use jiff::Timestamp;
use leasehold::{
    limits,
    run::{Reason, RunId, Snapshot, State, withhold},
    store::Filter,
};
use strum::IntoEnumIterator as _;

/// Verbs on runs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs, newest first
    List(ListArgs),
    /// Say on one screen what happened to a run
    Show {
        /// The run: its id, or the end of it
        run: String,
    },
    /// Print a run's events as they happen, until it settles
    Follow {
        /// The run: its id, or the end of it
        run: String,
        /// Only events after this number
        #[arg(long, value_name = "SEQUENCE")]
        after: Option<u64>,
    },
    /// List the images and files that the calls of a run came with, or write them into a directory
    Artifacts(ArtifactsArgs),
    /// Cancel a run: what is in flight finishes, nothing new starts
    Cancel(OrderArgs),
    /// Send a dead or failed run on
    Redrive(OrderArgs),
    /// Give a dead run up
    Discard(OrderArgs),
}

/// Options of `runs list`.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only runs in this state
    #[arg(long, value_parser = state_word)]
    pub(super) state: Option<State>,
    /// Only runs of this agent
    #[arg(long)]
    pub(super) agent: Option<String>,
    /// Only runs of this owner
    #[arg(long)]
    pub(super) owner: Option<String>,
    /// Only runs with this reason
    #[arg(long, value_parser = reason_word)]
    pub(super) reason: Option<Reason>,
    /// Only runs made since then (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub(super) since: Option<Timestamp>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) limit: u32,
    /// Go on after this run, as `next_cursor` names it
    #[arg(long, value_name = "ID")]
    pub(super) cursor: Option<RunId>,
}

fn one_of<T: std::str::FromStr + Copy + Into<&'static str>>(word: &str, all: impl Iterator<Item = T>) -> Result<T, String> {
    word.parse().map_err(|_| {
        let all: Vec<&'static str> = all.map(Into::into).collect();
        format!("there are: {}", all.join(", "))
    })
}

fn state_word(word: &str) -> Result<State, String> {
    one_of(word, State::iter())
}

fn reason_word(word: &str) -> Result<Reason, String> {
    one_of(word, Reason::iter())
}

/// Options of an order.
#[derive(Debug, clap::Args)]
pub(crate) struct OrderArgs {
    /// The run: its id, or the end of it
    pub(super) run: String,
    /// Why; kept in the record
    #[arg(long, value_name = "T")]
    pub(super) note: Option<String>,
}

/// Executes a verb.
pub(crate) async fn runs(context: &Context, command: RunsCommand) -> Outcome {
    match command {
        RunsCommand::List(args) => list(context, args).await,
        RunsCommand::Show { run } => show_run(context, &run).await,
        RunsCommand::Follow { run, after } => follow(context, &run, after).await,
        RunsCommand::Artifacts(args) => artifacts(context, args).await,
        RunsCommand::Cancel(args) => cancel(context, args).await,
        RunsCommand::Redrive(args) => redrive(context, args).await,
        RunsCommand::Discard(args) => discard(context, args).await,
    }
}

async fn list(context: &Context, args: ListArgs) -> Outcome {
    let local = Local::open(context, Needs::Store).await?;
    let filter = Filter {
        visible_to: local.who.visible(),
        states: args.state.into_iter().collect(),
        agent: args.agent,
        owner: args.owner,
        reason: args.reason.map(|reason| reason.as_str().to_owned()),
        since: args.since,
        flagged_only: false,
    };
    let limit = usize::try_from(args.limit).unwrap_or(limits::PAGE_MAX);
    let rows = local.runtime.list(&filter, args.cursor, limit).await.map_err(order)?;
    // A store gives no more than a page, so whether there is more is a question of its own.
    let more = match rows.last() {
        Some(last) if rows.len() == limit => !local.runtime.list(&filter, Some(last.id), 1).await.map_err(order)?.is_empty(),
        _ => false,
    };
    let next_cursor = if more { rows.last().map(|row| row.id.to_string()) } else { None };
    if context.json {
        terminal::print_json(&Page { items: rows.iter().map(RunLine::from).collect(), next_cursor })?;
        return Ok(Exit::Done);
    }
    if rows.is_empty() {
        terminal::note(format!("no such runs in {}", local.runtime.store().describe()));
        return Ok(Exit::Done);
    }
    let mut screen = Screen::stdout();
    runs_table(&mut screen, &rows, local.now());
    screen.print()?;
    if let Some(cursor) = next_cursor {
        terminal::note(format!("there are more: --cursor {cursor}"));
    }
    local.warn_unserved_agents(&rows).await?;
    Ok(Exit::Done)
}

async fn show_run(context: &Context, run: &str) -> Outcome {
    let local = Local::open(context, Needs::Store).await?;
    let details = local.details(local.find(run).await?).await?;
    if context.json {
        local.print_run(&details)?;
    } else {
        let mut screen = Screen::stdout();
        show(&mut screen, &local.subject(&details));
        screen.print()?;
    }
    local.warn_unserved(&details.row).await?;
    Ok(Exit::Done)
}

async fn follow(context: &Context, run: &str, after: Option<u64>) -> Outcome {
    let local = Local::open(context, Needs::Store).await?;
    let id = local.find(run).await?;
    let mut signals = Signals::listen()?;
    let mut next = after.map_or(0, |n| n.saturating_add(1));
    loop {
        let row = local.row(id).await?;
        // The row was read first: what it counts is there to be read.
        while next < row.sequence {
            for mut entry in local.runtime.events(id, next).await.map_err(order)? {
                withhold(&mut entry.body, &|_| true);
                if context.json {
                    terminal::print_json(&Event::from(&entry))?;
                } else {
                    print_event(entry.sequence, entry.at, &words(&entry))?;
                    if let Some((call, question)) = row.questions().find(|(_, question)| *question == entry.sequence) {
                        let command = answering(&context.command, id, &call.id, question);
                        terminal::note(format!("  to answer it:  {command} --values '{{..}}'"));
                    }
                }
                next = entry.sequence + 1;
            }
        }
        if row.state.is_settled() || row.state == State::Dead {
            return Ok(Exit::Done);
        }
        tokio::select! {
            waited = local.runtime.wait_events(id, next) => { waited.map_err(order)?; }
            heard = signals.next() => return Ok(if heard == Heard::Interrupt { Exit::Done } else { Exit::Refused }),
        }
    }
}

/// An event on a line.
pub(super) fn print_event(sequence: u64, at: Timestamp, words: &str) -> Result<(), Failure> {
    let mut screen = Screen::stdout();
    let head = format!("{sequence:>4}  {}  ", crate::render::clock(at));
    screen.spans(&[span(Look::Faint, head), span(Look::Plain, words)]);
    screen.print()?;
    Ok(())
}

/// Says how the run stands after an order, on one line.
pub(crate) async fn ordered(local: &Local<'_>, row: &Snapshot) -> Result<(), Failure> {
    let details = local.details(row.id).await?;
    if local.context.json {
        local.print_run(&details)?;
    } else {
        let mut screen = Screen::stdout();
        let (look, text) = sentence(&local.subject(&details));
        screen.styled(look, text);
        screen.print()?;
    }
    local.warn_unserved(&details.row).await?;
    Ok(())
}

async fn cancel(context: &Context, args: OrderArgs) -> Outcome {
    let local = Local::open(context, Needs::Store).await?;
    let id = local.find(&args.run).await?;
    local.needs(Role::Runner)?;
    if local.who.role < Role::Operator {
        local.may(&args.run, &local.row(id).await?, Who::may_cancel)?;
    }
    let row = local.runtime.cancel(id, local.who.by(), args.note).await.map_err(order)?;
    ordered(&local, &row).await?;
    Ok(Exit::Done)
}

async fn redrive(context: &Context, args: OrderArgs) -> Outcome {
    let local = Local::open(context, Needs::Declared).await?;
    local.needs(Role::Operator)?;
    let id = local.find(&args.run).await?;
    let row = local.runtime.redrive(id, local.who.by(), args.note).await.map_err(order)?;
    ordered(&local, &row).await?;
    Ok(Exit::Done)
}

async fn discard(context: &Context, args: OrderArgs) -> Outcome {
    let local = Local::open(context, Needs::Store).await?;
    local.needs(Role::Operator)?;
    let id = local.find(&args.run).await?;
    let row = local.runtime.discard(id, local.who.by(), args.note).await.map_err(order)?;
    ordered(&local, &row).await?;
    Ok(Exit::Done)
}
