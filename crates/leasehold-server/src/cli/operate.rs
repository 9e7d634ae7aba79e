//! `leasehold worker`, `reap` and `migrate`.

use super::{
    Context, Exit, Failure, Outcome,
    local::{Local, Needs, exit_of_executed, unavailable},
    watch::{self, Heard, Late, Signals, late_outcomes},
};
use crate::{
    access::Role,
    terminal::{self, Screen},
    wire::Page,
};
use leasehold::{
    limits,
    run::{RunId, State},
    store::Filter,
    worker::pool::{PoolConfig, Worked},
};
use serde::Serialize;
use std::{collections::HashMap, time::Duration};

/// How long running segments may go on after the request to end.
pub(crate) const GRACE: Duration = Duration::from_secs(90);

/// Options of `worker`.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// Execute what is due, or this one run, and end
    #[arg(long, value_name = "RUN", num_args = 0..=1)]
    once: Option<Option<String>>,
}

/// Works the queue. Who asks it to end while it still opens its store has ended it in order: nothing is claimed yet.
pub(crate) async fn worker(context: &Context, args: WorkerArgs, mut signals: Signals) -> Outcome {
    let mut local = tokio::select! {
        opened = Local::open(context, Needs::Agents) => opened?,
        _ = signals.next() => {
            terminal::note("ended before it began to work");
            return Ok(Exit::Done);
        }
    };
    local.needs(Role::Operator)?;
    for (agent, why) in &local.executable.missing_agents {
        terminal::note(format!("agent `{agent}` is not served here: {why}"));
    }
    let only = match &args.once {
        Some(Some(text)) => Some(local.find(text).await?),
        _ => None,
    };
    let drain = args.once.is_some();
    if drain {
        let all = ["*".to_owned()];
        let is_met = tokio::select! {
            met = local.meet_servers(&all) => met.map(|()| true)?,
            _ = signals.next() => false,
        };
        if !is_met {
            local.end().await;
            terminal::note("ended before it began to work");
            return Ok(Exit::Done);
        }
    }
    let tending = local.in_force.clone().map(|in_force| tokio::spawn(in_force.tend(vec![local.runtime.clone()])));
    if !drain {
        let registry = local.runtime.registry();
        let agents: Vec<&str> = registry.agents().map(|a| a.name.as_str()).collect();
        let serves = if agents.is_empty() { "no agent".to_owned() } else { agents.join(", ") };
        terminal::note(format!("working {} for {serves}; Ctrl-C ends", local.runtime.store().describe()));
    }
    let config = PoolConfig {
        concurrency: usize::try_from(context.config.concurrency.value).unwrap_or(usize::MAX),
        sweep_interval: context.config.lease.sweep_interval.value.0,
        grace: GRACE,
        drain,
        only,
        ..PoolConfig::default()
    };
    let webhook = crate::webhook::start(&context.config, &local.runtime, local.wall.clone())?;
    let mut stopping = false;
    let mut worked = Worked::default();
    let mut untold = false;
    loop {
        let more = work(&local, config.clone(), &mut signals, &mut stopping).await?;
        let lost = more.executed.iter().any(|(_, ended)| ended.is_err());
        worked = Worked { executed: [worked.executed, more.executed].concat(), ..more };
        let late = late_outcomes(&local.runtime, &mut signals).await;
        let recorded = late == Late::Recorded;
        untold |= late == Late::Lost;
        // What came into the record late, before the last look at the queue or since, may have put its run back there.
        if !drain || stopping || !(lost || recorded) {
            break;
        }
    }
    if let Some(webhook) = webhook {
        webhook.end().await;
    }
    if let Some(tending) = tending {
        tending.abort();
    }
    local.end().await;
    worked_words(&worked);
    if let Some(run) = worked.shared {
        return Err(local.shared(run));
    }
    if drain && only.is_none() {
        of_other_agents(&local).await;
    }
    if let Some(why) = worked.failed.as_ref().filter(|_| drain) {
        return Err(Failure::refused(format!("not everything that is due was executed: {why}")));
    }
    if untold {
        return Err(watch::untold());
    }
    match only {
        Some(run) if !worked.executed.iter().any(|(id, _)| *id == run) => Err(not_executed(&local, &worked, run).await?),
        _ => {
            let worst = lost(&local, &worked).await?;
            match only {
                // Who asks for one run is told how that one stands, as `run` does.
                Some(run) => Ok(exit_of_executed(&local.row(run).await?)),
                None => Ok(worst),
            }
        }
    }
}

/// Works once, until nothing is due or a signal ends it.
async fn work(local: &Local<'_>, config: PoolConfig, signals: &mut Signals, stopping: &mut bool) -> Result<Worked, Failure> {
    let runtime = local.runtime.clone();
    let work = tokio::spawn(async move { runtime.work(config).await });
    tokio::pin!(work);
    loop {
        tokio::select! {
            worked = &mut work => return worked.map_err(|e| Failure::refused(format!("the worker broke: {e}"))),
            heard = signals.next() => {
                if *stopping && heard == Heard::Interrupt {
                    terminal::note("left: whatever was in flight is settled by the sweep");
                    std::process::exit(i32::from(Exit::Refused.code()));
                }
                *stopping = true;
                terminal::note("ending: what is in flight finishes, the rest is handed back; Ctrl-C again leaves at once");
                local.runtime.stop();
            }
        }
    }
}

/// Says how the runs stand whose right was lost in the middle, and ends as the worst of them.
async fn lost(local: &Local<'_>, worked: &Worked) -> Outcome {
    let last: HashMap<RunId, bool> = worked.executed.iter().map(|(run, ended)| (*run, ended.is_ok())).collect();
    let mut worst = Exit::Done;
    for (run, _) in last.into_iter().filter(|(_, ended)| !ended) {
        let row = local.row(run).await?;
        terminal::note(format!("run {run}: it is {} now", words(row.state)));
        worst = match (worst, exit_of_executed(&row)) {
            (Exit::Done, exit) | (exit @ Exit::Waits, _) | (Exit::Refused, exit @ Exit::Waits) => exit,
            (worst, _) => worst,
        };
    }
    Ok(worst)
}

fn words(state: State) -> String {
    state.as_str().replace('_', " ")
}

fn worked_words(worked: &Worked) {
    for (run, ended) in &worked.executed {
        match ended {
            Ok(row) => {
                let reason = row.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
                terminal::note(format!("run {run}: {}{reason}", words(row.state)));
            }
            Err(error) => terminal::note(format!("run {run}: {error}")),
        }
    }
    for (run, why) in &worked.not_served {
        terminal::note(format!("run {run} is due, and {why}"));
    }
}

/// Names what is queued for agents that this process does not have: it never looks at those.
async fn of_other_agents(local: &Local<'_>) {
    let queued = Filter { states: vec![State::Queued], ..Filter::default() };
    match local.runtime.list(&queued, None, limits::PAGE_MAX).await {
        Ok(listed) => {
            for run in listed.iter().filter(|run| local.runtime.registry().agent(&run.agent).is_none()) {
                terminal::note(format!("run {} is queued, and this process does not serve agent `{}`", run.id, run.agent));
            }
        }
        Err(error) => terminal::note(format!("what is queued for other agents is not known: {error}")),
    }
}

/// Why the one run that was asked for was not executed.
async fn not_executed(local: &Local<'_>, worked: &Worked, run: RunId) -> Result<Failure, Failure> {
    if worked.not_served.contains_key(&run) {
        return Ok(Failure::refused(format!("run {run} was not executed")));
    }
    let row = local.details(run).await?.row;
    let due = if row.state == State::Queued && row.due_at > local.now() {
        format!(", not due before {}", row.due_at)
    } else {
        String::new()
    };
    Ok(Failure::refused(format!("run {run} was not executed: it is {}{due}", words(row.state))))
}

/// Options of `reap`.
#[derive(Debug, clap::Args)]
pub(crate) struct ReapArgs {
    /// Look at this many runs at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only say what would be settled
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Serialize)]
struct Reaped {
    run: String,
    why: &'static str,
    state: Option<&'static str>,
    error: Option<String>,
}

/// One sweep.
pub(crate) async fn reap(context: &Context, args: ReapArgs) -> Outcome {
    let local = Local::open_unswept(context, Needs::Store).await?;
    local.needs(Role::Operator)?;
    let limit = usize::try_from(args.limit).unwrap_or(limits::PAGE_MAX);
    let swept = local.runtime.sweep(limit, args.dry_run).await.map_err(unavailable)?;
    let state = |state: State| (!args.dry_run).then_some(state.as_str());
    let reaped = |why: &'static str| move |(run, now): &(RunId, State)| (run.to_string(), why, *now);
    let mut items: Vec<Reaped> = swept
        .settled
        .iter()
        .map(reaped("lease_expired"))
        .chain(swept.overdue.iter().map(reaped("expired")))
        .map(|(run, why, now)| Reaped { run, why, state: state(now), error: None })
        .collect();
    items.extend(swept.failed.iter().map(|(run, error)| Reaped {
        run: run.to_string(),
        why: "failed",
        state: None,
        error: Some(error.clone()),
    }));
    if swept.watched > 0 {
        terminal::note(format!(
            "{} of an earlier boot of this machine, or from before the store's clock stepped back: a worker watches them for one ttl \
             before they count as ended",
            swept.watched
        ));
    }
    for run in &swept.shared {
        terminal::note(format!("run {run}: its lease is renewed by another machine; a SQLite store belongs to one machine"));
    }
    let exit = if swept.failed.is_empty() { Exit::Done } else { Exit::Refused };
    if context.json {
        terminal::print_json(&Page::whole(items))?;
        return Ok(exit);
    }
    if items.is_empty() {
        terminal::note(format!("nothing to settle in {}", local.runtime.store().describe()));
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = items
        .iter()
        .map(|item| {
            let now = match (&item.error, item.state) {
                (Some(error), _) => error.clone(),
                (None, Some(state)) => state.replace('_', " "),
                (None, None) => "would be settled".into(),
            };
            vec![item.run.clone(), item.why.replace('_', " "), now]
        })
        .collect();
    let mut screen = Screen::stdout();
    screen.table(&["run", "because", "now"], &rows);
    screen.print()?;
    Ok(exit)
}

/// Brings the store to this version; opening it does.
pub(crate) async fn migrate(context: &Context) -> Outcome {
    let local = Local::open_unswept(context, Needs::Store).await?;
    local.needs(Role::Operator)?;
    let store = local.runtime.store().describe();
    if context.json {
        terminal::print_json(&serde_json::json!({ "store": store, "migrated": true }))?;
    } else {
        let mut screen = Screen::stdout();
        screen.line(format!("{store} is ready for this version"));
        screen.print()?;
    }
    Ok(Exit::Done)
}
