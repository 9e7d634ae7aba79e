//! `leasehold drill`: what happens to the writes of the configured tools when their worker dies, is tried with real workers, and
//! counted where it arrives. For every write tool of the agents and every point around its call a worker is killed or paused;
//! the far side is the drill's own, unless the operator says in so many words that it is to be the true one.
//!
//! It never touches the configured store or the configured site.

mod far_side;
mod sample;
mod scene;
mod table;
mod target;

use super::{Context, Exit, Failure, Outcome};
use crate::{cli::children::yes_or_no, terminal};
use far_side::FarSide;
use futures::stream::{self, StreamExt as _};
use leasehold::drill::{BLOWS, entries_expected, judge};
use scene::Scene;
use table::Row;
use target::{Found, Way};

/// Scenes that play at once: most of their time is waiting for a lease to end.
const AT_ONCE: usize = 6;

/// Options of `drill`.
#[derive(Debug, clap::Args)]
pub(crate) struct DrillArgs {
    /// Only the tools of this agent
    #[arg(long, short, value_name = "A")]
    agent: Option<String>,
    /// Let the calls of HTTP tools go to their true endpoints, after asking
    #[arg(long)]
    real: bool,
}

/// Drills every write tool.
pub(crate) async fn drill(context: &Context, args: &DrillArgs) -> Outcome {
    let found = target::find(&context.config, args.agent.as_deref(), args.real)?;
    if args.real && !agreed(&found).await? {
        terminal::note("nothing was called");
        return Ok(Exit::Refused);
    }
    tokio::select! {
        rows = play(&found) => table::show(context, rows?, &found.left),
        // What was started ends with this future.
        _ = tokio::signal::ctrl_c() => Err(Failure::refused("interrupted; the workers of the drill are gone")),
    }
}

/// Nothing true is called without a person's yes.
async fn agreed(found: &Found) -> Result<bool, Failure> {
    let mut calls = Vec::new();
    for target in found.targets.iter().filter(|target| target.real && matches!(target.way, Way::Http(_))) {
        let times: usize = cases(target).map(|case| entries_expected(&case)).sum();
        calls.push(format!("{} for {}, {times} times", target.endpoint, target.name));
    }
    if calls.is_empty() {
        terminal::note("no HTTP tool writes: nothing true is called");
        return Ok(true);
    }
    if !terminal::can_ask() {
        return Err(Failure::usage(format!(
            "--real really calls {}, and nobody can be asked here: run it at a terminal, or leave --real out",
            calls.join("; ")
        )));
    }
    for call in &calls {
        terminal::note(format!("this really calls {call} (more where it answers with an error that is repeated)"));
    }
    yes_or_no("Really? [y/n] ").await
}

fn cases(target: &target::Target) -> impl Iterator<Item = leasehold::drill::Case> + '_ {
    let target::Target { effect, asked, .. } = *target;
    BLOWS.into_iter().map(move |blow| leasehold::drill::Case { effect, asked, blow, answers: target.answers() })
}

/// Plays all scenes; the rows in the order of the table.
async fn play(found: &Found) -> Result<Vec<Row>, Failure> {
    let far = FarSide::open().await?;
    let mut scenes = Vec::new();
    for target in &found.targets {
        terminal::note(format!("drilling {}: {} points", target.name, BLOWS.len()));
        for blow in BLOWS {
            scenes.push(Scene { target: target.clone(), blow, far: far.clone(), number: scenes.len() });
        }
    }
    let mut playing = stream::iter(&scenes).map(async |scene| (scene, scene.play().await)).buffer_unordered(AT_ONCE);
    let mut rows = Vec::new();
    while let Some((scene, seen)) = playing.next().await {
        let row = match seen {
            Ok(seen) => Row::seen(scene, &seen, &judge(&scene.case(), &seen)),
            Err(Failure::Closed) => return Err(Failure::Closed),
            Err(Failure::Said(_, why)) => Row::broken(scene, why),
        };
        rows.push((scene.number, row));
    }
    rows.sort_by_key(|(number, _)| *number);
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}
