//! Workers: claim what is due and what this process can serve, execute, sweep. Every process is equal.

use crate::{
    client::{OrderError, Runtime},
    limits,
    run::{RunId, Snapshot},
    worker::SegmentError,
};
use std::{collections::HashMap, time::Duration};
use tokio::task::JoinSet;

/// How a pool works.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Segments at once.
    pub concurrency: usize,
    /// Between sweeps.
    pub sweep_interval: Duration,
    /// How long running segments may go on after the stop.
    pub grace: Duration,
    /// Ends once nothing is due.
    pub drain: bool,
    /// Only this run.
    pub only: Option<RunId>,
}

/// What a pool did.
#[derive(Clone, Debug, Default)]
pub struct Worked {
    /// Segments executed, with the row each ended with.
    pub executed: Vec<(RunId, Result<Snapshot, SegmentError>)>,
    /// Due runs that this process cannot serve, with what it lacks.
    pub not_served: HashMap<RunId, String>,
}

/// Looks for due runs this often where no hint came.
const POLL: Duration = Duration::from_millis(500);

impl Runtime {
    /// Works the queue until [`stop`](Runtime::stop), or until nothing is due where `drain` says so.
    pub async fn work(&self, config: PoolConfig) -> Worked {
        let name = format!("{}#{:016x}", std::process::id(), fastrand::u64(..));
        let mut worked = Worked::default();
        let mut running: JoinSet<(RunId, String, Result<Snapshot, SegmentError>)> = JoinSet::new();
        let mut per_agent: HashMap<String, usize> = HashMap::new();
        let mut sweeps = tokio::time::interval(config.sweep_interval);
        sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut hints = self.engine.subscribe();
        loop {
            let stopping = self.stopping().is_cancelled();
            let mut claimed = 0;
            if !stopping {
                claimed = self.claim_due(&config, &mut running, &mut per_agent, &mut worked).await;
            }
            if running.is_empty() && (stopping || config.drain && claimed == 0) {
                break;
            }
            tokio::select! {
                Some(ended) = running.join_next() => match ended {
                    Ok((run, agent, result)) => {
                        if let Some(count) = per_agent.get_mut(&agent) { *count = count.saturating_sub(1); }
                        if config.drain { worked.executed.push((run, result)); }
                    }
                    Err(error) => tracing::error!("a segment broke: {error}; its run is settled by the sweep"),
                },
                _ = sweeps.tick() => {
                    if let Err(error) = self.engine.store().announce(&name, self.engine.ttl(), !stopping).await {
                        tracing::warn!("this worker could not be announced: {error}");
                    }
                    if let Err(error) = self.sweep(limits::PAGE_MAX, false).await {
                        tracing::warn!("the sweep did not reach the store: {error}");
                    }
                }
                // A hint may have been for a run that is queued now; a lagging receiver looks all the same.
                _ = hints.recv() => {}
                () = self.stopping().cancelled(), if !stopping => {
                    let waited = tokio::time::timeout(config.grace, async { while running.join_next().await.is_some() {} }).await;
                    if waited.is_err() {
                        tracing::warn!(left = running.len(), "segments were still running at the end of the grace period");
                        break;
                    }
                }
                () = tokio::time::sleep(POLL) => {}
            }
        }
        if let Err(error) = self.engine.store().announce(&name, self.engine.ttl(), false).await {
            tracing::warn!("this worker could not take its announcement back: {error}");
        }
        worked
    }

    async fn claim_due(
        &self,
        config: &PoolConfig,
        running: &mut JoinSet<(RunId, String, Result<Snapshot, SegmentError>)>,
        per_agent: &mut HashMap<String, usize>,
        worked: &mut Worked,
    ) -> usize {
        let free = config.concurrency.saturating_sub(running.len());
        if free == 0 {
            return 0;
        }
        let due = match config.only {
            Some(run) => Ok(vec![run]),
            None => {
                let now = self.engine.now().wall;
                self.engine.store().due(&self.agent_names(), now, free + worked.not_served.len()).await
            }
        };
        let due = match due {
            Ok(due) => due,
            Err(error) => {
                tracing::warn!("the queue could not be read: {error}");
                return 0;
            }
        };
        let mut claimed = 0;
        for run in due {
            if claimed == free {
                break;
            }
            let execution = match self.claim(run).await {
                Ok(execution) => execution,
                Err(OrderError::Refused(crate::run::Rejection::NotServed(what))) => {
                    tracing::debug!(%run, "run {run} is due, and this process does not serve `{what}`");
                    worked.not_served.insert(run, what);
                    continue;
                }
                // Taken, cancelled or not due after all.
                Err(OrderError::Refused(_) | OrderError::NotFound) => continue,
                Err(error) => {
                    tracing::warn!(%run, "run {run} could not be claimed: {error}");
                    continue;
                }
            };
            let agent = execution.row().agent.clone();
            *per_agent.entry(agent.clone()).or_default() += 1;
            claimed += 1;
            running.spawn(async move { (run, agent, execution.finish().await) });
        }
        claimed
    }
}
