//! Workers: claim what is due and what this process can serve, execute, sweep. Every process is equal.

use crate::{
    client::{OrderError, Runtime},
    limits,
    run::{RunId, Snapshot},
    store::engine::Committed,
    worker::SegmentError,
};
use std::{collections::HashMap, sync::Arc, time::Duration};
use tokio::{sync::broadcast, task::JoinSet};

/// How a pool works.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Segments at once.
    pub concurrency: usize,
    /// Between sweeps.
    pub sweep_interval: Duration,
    /// How long running segments may go on after the stop; then what may be handed back is, and the pool ends.
    pub grace: Duration,
    /// Ends once nothing is due.
    pub drain: bool,
    /// Only this run.
    pub only: Option<RunId>,
}

impl Default for PoolConfig {
    /// As the configuration file has it: until it is stopped.
    fn default() -> Self {
        Self {
            concurrency: 64,
            sweep_interval: Duration::from_secs(5),
            grace: Duration::from_secs(90),
            drain: false,
            only: None,
        }
    }
}

impl PoolConfig {
    /// Works off what is due and ends.
    pub fn drain() -> Self {
        Self { drain: true, ..Self::default() }
    }
}

/// What a pool did.
#[derive(Clone, Debug, Default)]
pub struct Worked {
    /// Segments executed, with the row each ended with.
    pub executed: Vec<(RunId, Result<Snapshot, SegmentError>)>,
    /// Due runs that this process cannot serve, with what it lacks.
    pub not_served: HashMap<RunId, String>,
    /// The pool ended because the lease of this run is renewed by another machine: the store is a file that belongs to one.
    pub shared: Option<RunId>,
}

/// Segments of each agent in this pool. A place is free again when its segment ends, however it ends.
#[derive(Default)]
struct Places(HashMap<String, Arc<()>>);

impl Places {
    fn taken(&self, agent: &str) -> usize {
        self.0.get(agent).map_or(0, |places| Arc::strong_count(places) - 1)
    }
    fn take(&mut self, agent: &str) -> Arc<()> {
        Arc::clone(self.0.entry(agent.to_owned()).or_default())
    }
}

/// Waits until every segment has ended, at most so long.
async fn all_end<T: 'static>(running: &mut JoinSet<T>, patience: Duration) -> bool {
    tokio::time::timeout(patience, async { while running.join_next().await.is_some() {} }).await.is_ok()
}

/// Ends when this process has queued a run, or may have: a receiver that lags looks all the same.
async fn queued(hints: &mut broadcast::Receiver<Committed>) {
    while let Ok(hint) = hints.recv().await {
        if hint.queued {
            return;
        }
    }
}

/// Handing back is one write for each run; whoever does not is inside a write that cannot be.
const HAND_BACK: Duration = Duration::from_secs(5);

/// Looks for due runs this often where no hint came.
const POLL: Duration = Duration::from_millis(500);

impl Runtime {
    /// Works the queue until [`stop`](Runtime::stop), or until nothing is due where `drain` says so.
    pub async fn work(&self, config: PoolConfig) -> Worked {
        let name = format!("{}#{:016x}", std::process::id(), fastrand::u64(..));
        let mut worked = Worked::default();
        let mut running: JoinSet<(RunId, Result<Snapshot, SegmentError>)> = JoinSet::new();
        let mut per_agent = Places::default();
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
                // In this order, so that a simulation plays a seed the same way twice; each round comes by all of them.
                biased;
                Some(ended) = running.join_next() => match ended {
                    Ok((run, result)) => if config.drain { worked.executed.push((run, result)); },
                    Err(error) => tracing::error!("a segment broke: {error}; its run is settled by the sweep"),
                },
                _ = sweeps.tick() => {
                    if let Err(error) = self.engine.store().announce(&name, self.engine.ttl(), !stopping).await {
                        tracing::warn!("this worker could not be announced: {error}");
                    }
                    match self.sweep(limits::PAGE_MAX, false).await {
                        Ok(swept) => if let Some(run) = swept.shared.first() {
                            worked.shared = Some(*run);
                            self.stop();
                        },
                        Err(error) => tracing::warn!("the sweep did not reach the store: {error}"),
                    }
                }
                () = queued(&mut hints) => {}
                () = self.stopping().cancelled(), if !stopping => {
                    if !all_end(&mut running, config.grace).await {
                        self.leave.cancel();
                        if !all_end(&mut running, HAND_BACK).await {
                            tracing::warn!(
                                left = running.len(),
                                "writes are still under way at the end of the grace period: whatever this process does not live to \
                                 record is in doubt"
                            );
                            // They go on, and renew, for as long as this process lives.
                            running.detach_all();
                        }
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
        running: &mut JoinSet<(RunId, Result<Snapshot, SegmentError>)>,
        per_agent: &mut Places,
        worked: &mut Worked,
    ) -> usize {
        let free = config.concurrency.saturating_sub(running.len());
        if free == 0 {
            return 0;
        }
        let agents: Vec<(String, usize)> =
            self.registry.agents().map(|a| (a.name.clone(), a.concurrency.saturating_sub(per_agent.taken(&a.name)))).collect();
        // Only where an agent could run out of places in this round does it matter whose run is next.
        let scarce = agents.iter().any(|(_, places)| *places < free);
        let due = match config.only {
            Some(run) => Ok(vec![run]),
            None => {
                let now = self.engine.now().wall;
                let open: Vec<String> = agents.into_iter().filter(|(_, places)| *places > 0).map(|(name, _)| name).collect();
                self.engine.store().due(&open, now, free + worked.not_served.len()).await
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
            if scarce && config.only.is_none() {
                // One that does not decode is settled by the claim.
                if let Ok(row) = self.engine.load(run).await
                    && self.registry.agent(&row.agent).is_none_or(|a| per_agent.taken(&a.name) >= a.concurrency)
                {
                    continue;
                }
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
            let place = per_agent.take(&execution.row().agent);
            claimed += 1;
            running.spawn(async move {
                let ended = execution.finish().await;
                drop(place);
                (run, ended)
            });
        }
        claimed
    }
}
