//! One cell of the table: a throw-away store, one run with one call, and one blow to the worker that makes it. Everything that
//! executes is a child process; the drill's own process enqueues, decides, sweeps, looks and counts.

use super::{
    Failure,
    far_side::FarSide,
    target::{Target, Way},
};
use crate::cli::{
    Context,
    children::{Children, LOOK, PATIENCE},
    local::{Local, Needs, order, start},
};
use leasehold::{
    Decision, StartRun,
    agent::tool::{Approval, site::Site},
    drill::{Blow, Case, Entry, Observed},
    run::{self, Claimer, Effect, EntryBody, Outcome, RunId, Snapshot, State, Via},
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tokio::process::Child;

/// How long a settled run is watched for an entry that should not come.
const AFTERWARDS: Duration = Duration::from_millis(500);
/// How long the answer of a worker that goes on may need into the record.
const LATE: Duration = Duration::from_secs(30);

/// So that a worker which is to be stopped writes nothing but renewals.
const ONLY_RENEWS: [(&str, &str); 1] = [("LEASEHOLD_LEASE_SWEEP_INTERVAL", "1h")];

/// A cell.
pub(super) struct Scene {
    pub(super) target: Target,
    pub(super) blow: Blow,
    pub(super) far: FarSide,
    pub(super) number: usize,
}

/// A scene while it plays.
struct Play<'a> {
    scene: &'a Scene,
    name: String,
    directory: PathBuf,
    children: Children,
    local: Local<'a>,
    id: RunId,
    patience: Duration,
}

impl Scene {
    /// What it is.
    pub(super) fn case(&self) -> Case {
        let Target { effect, asked, .. } = self.target;
        Case { effect, asked, blow: self.blow, answers: self.target.answers() }
    }

    /// Plays it, and says what was seen.
    pub(super) async fn play(&self) -> Result<Observed, Failure> {
        let directory = tempfile::Builder::new().prefix("leasehold-drill-").tempdir()?;
        let name = format!("scene{}", self.number);
        self.target.set(directory.path(), &self.far, &name)?;
        let file = directory.path().join("leasehold.toml");
        let config = crate::config::load(Some(&file), &|_| None)?;
        let context = Context { config, json: false, command: "leasehold".into() };
        let local = Local::open_unswept(&context, Needs::Agents).await?;
        let id = local.runtime.enqueue(StartRun::new("drill", "a drill", Context::principal()), None).await.map_err(start)?;
        let children = Children::on(file)?;
        let patience = PATIENCE + self.target.needs();
        let play = Play { scene: self, name, directory: directory.path().to_owned(), children, local, id, patience };
        play.whole().await
    }
}

impl Play<'_> {
    async fn whole(&self) -> Result<Observed, Failure> {
        let digest = self.to_the_card().await?;
        // In these the process that is hurt is the command that approves.
        let approves = matches!(self.scene.blow, Blow::PausedAfterStamp | Blow::PausedInTool | Blow::Twice);
        if let Some(digest) = digest.as_ref().filter(|_| !approves) {
            self.approve(digest).await?;
        }
        let mut late = false;
        match self.scene.blow {
            Blow::BeforeStamp => self.kill_at("before_stamp").await?,
            Blow::AfterStamp => self.kill_at("after_stamp").await?,
            Blow::InTool => self.kill_at("in_tool").await?,
            Blow::AfterReturn => self.kill_at("after_return").await?,
            Blow::AfterRecord => self.kill_at("after_record").await?,
            Blow::PausedAfterStamp => late = self.pause_at("after_stamp", digest.as_deref()).await?,
            Blow::PausedInTool => late = self.pause_at("in_tool", digest.as_deref()).await?,
            Blow::Twice => self.twice(digest.as_deref()).await?,
        }
        self.to_its_rest().await?;
        self.seen(late).await
    }

    async fn row(&self) -> Result<Snapshot, Failure> {
        self.local.row(self.id).await
    }

    /// Executes until a person has to decide; the digest of what waits.
    async fn to_the_card(&self) -> Result<Option<String>, Failure> {
        if self.scene.target.approval == Approval::None {
            return Ok(None);
        }
        let id = self.id.to_string();
        let since = Instant::now();
        loop {
            let said = self.children.output(&["worker", "--once", &id]).await?;
            let row = self.row().await?;
            match (row.state, row.turn.and_then(|turn| turn.digest)) {
                (State::WaitingForApproval, Some(digest)) => return Ok(Some(digest)),
                // On a machine that is busy, or a disk that is slow, a worker may lose its lease; the next one goes on.
                (State::Queued | State::Running, _) if since.elapsed() < self.patience => tokio::time::sleep(LOOK).await,
                (state, _) => {
                    return Err(Failure::refused(format!(
                        "the run did not wait for a person, it is {state}: {}",
                        said.err.trim()
                    )));
                }
            }
        }
    }

    /// As the person who drills; the run goes to the queue.
    async fn approve(&self, digest: &str) -> Result<(), Failure> {
        let decision = Decision {
            digest: digest.to_owned(),
            rest: Some(true),
            reason: None,
            calls: Vec::new(),
            by: Context::principal(),
            execute: false,
        };
        self.local.runtime.decide(self.id, decision).await.map_err(order)?;
        Ok(())
    }

    /// A worker that comes to the point is killed there. In the tool it is killed when its call has arrived and is not answered.
    async fn kill_at(&self, point: &str) -> Result<(), Failure> {
        let in_tool = point == "in_tool";
        self.scene.far.hold(&self.name, in_tool);
        let mark = self.directory.join("reached");
        let mut worker = self.children.stopped_at(point, &mark, &["worker"], &[]).await?;
        if in_tool {
            self.until("the call did not arrive", async || Ok(!self.entries().await?.0.is_empty())).await?;
        }
        worker.kill().await?;
        self.scene.far.hold(&self.name, false);
        Ok(())
    }

    /// A process sleeps at the point until its lease is gone and others have settled what it left, and then goes on: a worker, or
    /// the command that approves, which may not end before what it knows is on record. True where that came into the record.
    async fn pause_at(&self, point: &str, digest: Option<&str>) -> Result<bool, Failure> {
        let mark = self.directory.join("reached");
        let id = self.id.to_string();
        let arguments = match digest {
            Some(digest) => vec!["approve", id.as_str(), "--digest", digest],
            None => vec!["worker"],
        };
        let mut worker = self.children.stopped_at(point, &mark, &arguments, &ONLY_RENEWS).await?;
        if point == "in_tool" {
            self.until("the call did not arrive", async || Ok(!self.entries().await?.0.is_empty())).await?;
        }
        self.stop(&worker).await?;
        self.until("the lease of a stopped worker did not end", async || {
            self.local
                .runtime
                .sweep(leasehold::limits::LOCAL_SWEEP_MAX, false)
                .await
                .map_err(crate::cli::local::unavailable)?;
            Ok(self.row().await?.state != State::Running)
        })
        .await?;
        // An idempotent write is repeated by another worker; everything else waits for what the sleeper knows.
        if self.scene.target.effect == Effect::IdempotentWrite {
            self.to_its_rest().await?;
        }
        signal(&worker, Signal::CONT)?;
        std::fs::remove_file(&mark)?;
        let since = Instant::now();
        let (mut late, mut ended) = (false, false);
        while !late && !ended && since.elapsed() < LATE {
            tokio::time::sleep(LOOK).await;
            ended = worker.try_wait()?.is_some();
            late = self.has_late_entry().await?;
        }
        if late && digest.is_none() {
            // Its word may have put the run back into the queue, and it may have claimed it: a kill now would be another blow.
            self.until_at_rest().await?;
        }
        if worker.try_wait()?.is_none() {
            worker.kill().await?;
        }
        Ok(late)
    }

    async fn has_late_entry(&self) -> Result<bool, Failure> {
        let entries = self.local.details(self.id).await?.entries;
        Ok(entries.iter().any(|entry| match &entry.body {
            EntryBody::LateEvidence(_) | EntryBody::DuplicateEffect(_) => true,
            EntryBody::ToolOutcome(outcome) => outcome.late,
            EntryBody::WriteNotStarted(said) => said.late,
            _ => false,
        }))
    }

    /// SIGSTOP, at a moment in which the worker does not hold the store's file: right after it has renewed its lease.
    async fn stop(&self, worker: &Child) -> Result<(), Failure> {
        let store = self.local.runtime.store();
        for _ in 0..10 {
            let before = self.row().await?.lease;
            self.until("the lease was not renewed", async || Ok(self.row().await?.lease != before)).await?;
            signal(worker, Signal::STOP)?;
            if store.announce("drill", Duration::from_secs(1), &Claimer::default()).await.is_ok() {
                return Ok(());
            }
            signal(worker, Signal::CONT)?;
        }
        Err(Failure::refused("the worker could not be stopped without holding the store's file"))
    }

    /// The same thing asked of two processes at once.
    async fn twice(&self, digest: Option<&str>) -> Result<(), Failure> {
        let id = self.id.to_string();
        let arguments = match digest {
            Some(digest) => vec!["approve", id.as_str(), "--digest", digest, "--json"],
            None => vec!["worker", "--once", id.as_str()],
        };
        let (first, second) = tokio::join!(self.children.output(&arguments), self.children.output(&arguments));
        // One of them may be refused; what counts is what arrived and what is on record.
        first.and(second).map(|_| ())
    }

    /// Another worker works until nothing happens any more by itself.
    async fn to_its_rest(&self) -> Result<(), Failure> {
        let mut worker = self.children.start(&["worker"], &[])?;
        self.until_at_rest().await?;
        tokio::time::sleep(AFTERWARDS).await;
        worker.kill().await?;
        Ok(())
    }

    async fn until_at_rest(&self) -> Result<(), Failure> {
        let at_rest = |row: &Snapshot| row.state.is_settled() || row.state == State::Dead;
        self.until("the run did not come to rest", async || Ok(at_rest(&self.row().await?))).await
    }

    async fn until(&self, otherwise: &str, holds: impl AsyncFn() -> Result<bool, Failure>) -> Result<(), Failure> {
        let since = Instant::now();
        while !holds().await? {
            if since.elapsed() > self.patience {
                return Err(Failure::refused(format!("{otherwise} within {} s", self.patience.as_secs())));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// What the far side counted.
    async fn entries(&self) -> Result<(Vec<Entry>, usize), Failure> {
        match self.scene.target.way {
            Way::Http(_) => Ok(self.scene.far.seen(&self.name)),
            Way::Site => Ok((site_entries(&self.directory).await.map_err(|e| Failure::refused(e.to_string()))?, 0)),
        }
    }

    async fn seen(&self, late: bool) -> Result<Observed, Failure> {
        let (entries, absent) = self.entries().await?;
        let details = self.local.details(self.id).await?;
        let outcome: Option<(Outcome, Via)> =
            details.story.calls.values().next().and_then(|call| call.outcome.as_ref()).map(|known| (known.outcome, known.via));
        let decisions = details.entries.iter().filter(|entry| matches!(entry.body, EntryBody::Approval(_))).count();
        let run::Snapshot { state, reason, .. } = details.row;
        Ok(Observed { entries, absent, state, reason, outcome, decisions, late })
    }
}

async fn site_entries(directory: &Path) -> Result<Vec<Entry>, leasehold::agent::tool::site::SiteError> {
    let arrivals = Site::open(directory.join("site.db"))?.arrivals().await?;
    let entry = |arrival: leasehold::agent::tool::site::Arrival| Entry {
        key: arrival.call.idempotency_key,
        arguments: format!("{} {}", arrival.tool, arrival.arguments),
    };
    Ok(arrivals.into_iter().map(entry).collect())
}

fn signal(child: &Child, signal: Signal) -> Result<(), Failure> {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let id = id.ok_or_else(|| Failure::refused("the worker has ended by itself"))?;
    kill_process(id, signal).map_err(|e| Failure::refused(format!("the worker cannot be stopped: {e}")))
}
