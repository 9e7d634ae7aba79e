//! Executes a run in the foreground and shows its steps as they become durable. Watching is reading the journal: it neither
//! slows the run nor is needed for it.
//!
//! The first Ctrl-C requests a cancel and waits for what is in flight; the second leaves at once, and the sweep settles the run.
//!
//! A process that lost its lease while a tool ran knows an outcome that nobody else knows: it does not end before the store has it.

use super::{
    Exit, Failure,
    local::{Local, safe},
};
use crate::{
    render::{answering, words},
    terminal,
};
use indicatif::{ProgressBar, ProgressStyle};
use leasehold::{
    Execution, Live, Runtime,
    agent::tool::Progress,
    run::{Entry, EntryBody, RunId},
};
use std::{io::IsTerminal as _, time::Duration};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Shows steps on standard error: with a spinner on a terminal, as plain lines elsewhere.
pub(crate) struct Steps {
    spinner: Option<ProgressBar>,
}

impl Steps {
    /// For standard error as it is.
    pub(crate) fn new() -> Self {
        let spinner = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { spinner }
    }
    fn doing(&self, text: &str) {
        if let Some(bar) = &self.spinner {
            bar.set_message(safe(text).to_string());
            bar.enable_steady_tick(Duration::from_millis(120));
        }
    }
    /// One step that is durable.
    pub(crate) fn entry(&self, entry: &Entry) {
        self.say(&format!("  {}", words(entry)));
    }
    /// A line of our own.
    pub(crate) fn say(&self, text: &str) {
        match &self.spinner {
            Some(bar) => bar.suspend(|| terminal::note(text)),
            None => terminal::note(text),
        }
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        if let Some(bar) = &self.spinner {
            bar.finish_and_clear();
        }
    }
}

/// Ctrl-C and the request to end, heard for the whole life of a command.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// From here on neither kills the process by itself.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }
    /// The next of either.
    pub(crate) async fn next(&mut self) -> Heard {
        tokio::select! {
            _ = self.interrupt.recv() => Heard::Interrupt,
            _ = self.terminate.recv() => Heard::Terminate,
        }
    }
}

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Ctrl-C.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// What became of answers that came after their lease was gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Late {
    /// There were none.
    None,
    /// They are on record, and may have changed their runs.
    Recorded,
    /// They are not: the store did not take them in time, or somebody did not want to wait.
    Lost,
}

/// Waits, bounded, until what this process alone knows is on record; Ctrl-C leaves at once.
pub(crate) async fn late_outcomes(runtime: &Runtime, signals: &mut Signals) -> Late {
    if !runtime.has_late_outcomes().await {
        return Late::None;
    }
    terminal::note(
        "the lease was gone before all that this process knows of a write was on record; it is offered to the store now; Ctrl-C leaves",
    );
    let recorded = runtime.late_outcomes_recorded();
    tokio::pin!(recorded);
    loop {
        tokio::select! {
            recorded = &mut recorded => return if recorded { Late::Recorded } else { said_lost() },
            heard = signals.next() => if heard == Heard::Interrupt { return said_lost() },
        }
    }
}

/// How a process ends that takes an outcome along.
pub(crate) fn untold() -> Failure {
    Failure::refused("what this process knows of a write is not on record: see the log, and `leasehold inbox`")
}

fn said_lost() -> Late {
    terminal::note(
        "what this process knows of a write may not be on record, and goes with it: `runs show` says how the write stands",
    );
    Late::Lost
}

/// Executes until the run settles, waits or is somebody else's. Shows the journal from entry number `next` on.
pub(crate) async fn execute(
    local: &mut Local<'_>,
    execution: Execution,
    mut next: u64,
    signals: &mut Signals,
) -> Result<(), Failure> {
    let run = execution.run();
    let runtime = local.runtime.clone();
    let steps = Steps::new();
    let mut interrupted = false;
    let task = tokio::spawn(execution.finish());
    tokio::pin!(task);
    loop {
        tokio::select! {
            ended = &mut task => {
                show(&runtime, run, &mut next, &steps).await;
                match ended {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) => steps.say(&format!("this process stops executing run {run}: {error}")),
                    Err(error) => return Err(Failure::refused(format!("run {run}: its segment broke ({error}); the sweep settles it"))),
                }
                if late_outcomes(&runtime, signals).await == Late::Recorded {
                    show(&runtime, run, &mut next, &steps).await;
                }
                return Ok(());
            }
            entries = wait(&runtime, run, next) => {
                for entry in &entries {
                    steps.entry(entry);
                    if let EntryBody::Question(asked) = &entry.body {
                        let command = answering(&local.context.command, run, &asked.call_id, entry.sequence);
                        steps.say(&format!("  to answer it:  {command} --values '{{..}}'"));
                    }
                    next = entry.sequence + 1;
                }
            }
            Some(live) = local.live.recv() => match live {
                Live::Model(_) | Live::Text(..) => steps.doing("the model works"),
                Live::Discarded(_, why) => steps.say(&why),
                Live::Tool(_, call, tool) => steps.doing(&format!("{tool} {call}")),
                Live::Progress(_, call, progress) => steps.doing(&format!("{call}: {}", so_far(&progress))),
                Live::Log(_, call, level, text) => steps.doing(&format!("{call}: {level}: {text}")),
            },
            heard = signals.next() => match heard {
                Heard::Interrupt if interrupted => {
                    steps.say("left: whatever was in flight is settled by the sweep");
                    drop(steps);
                    std::process::exit(i32::from(Exit::Refused.code()));
                }
                Heard::Interrupt => {
                    interrupted = true;
                    steps.say("cancelling: what is in flight finishes first; press Ctrl-C again to leave at once");
                    let by = local.who.by();
                    let cancelling = runtime.clone();
                    // On its own, so that a slow store does not keep the second Ctrl-C from being heard.
                    tokio::spawn(async move {
                        if let Err(error) = cancelling.cancel(run, by, Some("Ctrl-C".into())).await {
                            terminal::note(format!("the cancel was not taken: {error}"));
                        }
                    });
                }
                Heard::Terminate => {
                    steps.say("asked to end: the run is handed back at its next step");
                    runtime.stop();
                }
            },
        }
    }
}

/// How far a call is, on a line.
fn so_far(progress: &Progress) -> String {
    let Progress { value, total, message } = progress;
    let so_far = total.map_or_else(|| value.to_string(), |total| format!("{value} of {total}"));
    message.as_ref().map_or_else(|| so_far.clone(), |message| format!("{so_far}, {message}"))
}

/// Entries from `next` on, once there are some. A store that does not answer is asked again: it is only watched.
async fn wait(runtime: &Runtime, run: RunId, next: u64) -> Vec<Entry> {
    loop {
        match runtime.wait_events(run, next).await {
            Ok(entries) => return entries,
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

async fn show(runtime: &Runtime, run: RunId, next: &mut u64, steps: &Steps) {
    // What cannot be read now is in the journal all the same.
    for entry in runtime.events(run, *next).await.unwrap_or_default() {
        steps.entry(&entry);
        *next = entry.sequence + 1;
    }
}
