//! Workers: claim what is due and what this process can serve, execute, sweep. Every process is equal.

use super::{
    queue::{PassedOver, Turns},
    said::{Asked, Unsettled},
};
use crate::{
    client::{OrderError, Runtime},
    limits,
    run::{Claimer, Rejection, RunId, Snapshot},
    store::{
        Hint, Unavailable, Wanted,
        engine::{Claim, Committed},
    },
    worker::{Heartbeat, SegmentError, Swept},
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
    /// Looks for due runs this often where no hint came.
    pub poll_interval: Duration,
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
            poll_interval: Duration::from_millis(500),
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
    /// Due runs that this process passed over, and why; the first [`PASSED_OVER_MAX`](limits::PASSED_OVER_MAX).
    pub not_served: HashMap<RunId, String>,
    /// The queue could not be read, or a run that was due not be claimed, when this was tried last: what the store said.
    pub failed: Option<String>,
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
            // One look answers all that were said until now.
            while hints.try_recv().is_ok() {}
            return;
        }
    }
}

/// Handing back is one write for each run; whoever does not is inside a write that cannot be.
const HAND_BACK: Duration = Duration::from_secs(5);

/// Ends when another process has queued a run, or may have. A change to a run of this process is looked at at once.
async fn told(hints: &mut Option<broadcast::Receiver<Hint>>, heartbeat: &Heartbeat) {
    let Some(hints) = hints else { return std::future::pending().await };
    loop {
        let mut heard = match hints.recv().await {
            Ok(hint) => Some(hint),
            Err(broadcast::error::RecvError::Lagged(_)) => return,
            Err(broadcast::error::RecvError::Closed) => return std::future::pending().await,
        };
        let mut look = false;
        // One look answers all that were said until now.
        while let Some(hint) = heard {
            match hint {
                Hint { queued: false, run: Some(run) } => heartbeat.look_now(run),
                _ => look = true,
            }
            heard = hints.try_recv().ok();
        }
        if look {
            return;
        }
    }
}

/// What a pool knows between two looks at the queue.
#[derive(Default)]
struct Pool {
    running: JoinSet<(RunId, Result<Snapshot, SegmentError>)>,
    places: Places,
    turns: Turns,
    passed_over: PassedOver,
    unsettled: Unsettled,
    /// Due, not readable, and not to be ended either.
    unclaimed: Unsettled,
    watched: usize,
    announcing: Asked,
    sweeping: Asked,
    claiming: Asked,
    worked: Worked,
}

impl Pool {
    /// What a sweep could not do is said by whoever swept.
    fn swept(&mut self, swept: &Swept) {
        self.sweeping.answered("the sweep");
        for (run, why) in &swept.failed {
            self.unsettled.say(*run, "settled", why);
        }
        if !swept.partial {
            self.unsettled.are(&swept.failed);
        }
        if swept.watched > self.watched {
            let (watched, ttl) = (swept.watched, "is watched for one ttl before it counts as ended");
            tracing::warn!(
                watched,
                "{watched} leases of an earlier boot, or from before the store's clock stepped back: each {ttl}"
            );
        }
        self.watched = swept.watched;
        for run in &swept.shared {
            tracing::error!(%run, "run {run}: its lease is renewed by another machine; a SQLite store belongs to one machine");
        }
        self.worked.shared = self.worked.shared.or(swept.shared.first().copied());
    }

    fn ended(&mut self, ended: Result<(RunId, Result<Snapshot, SegmentError>), tokio::task::JoinError>, config: &PoolConfig) {
        match ended {
            Ok(ended) if config.drain => self.worked.executed.push(ended),
            Ok(_) => {}
            Err(error) => tracing::error!("a segment broke: {error}; its run is settled by the sweep"),
        }
    }

    /// A due run that this process cannot serve.
    fn pass_over(&mut self, run: RunId, why: String) {
        if self.passed_over.add(run, &why) {
            tracing::warn!(%run, "run {run} is due, and {why}; others like it are passed over without a word");
        }
        let not_served = &mut self.worked.not_served;
        if not_served.len() < limits::PASSED_OVER_MAX || not_served.contains_key(&run) {
            not_served.insert(run, why);
        }
    }
}

impl Runtime {
    /// Works the queue until [`stop`](Runtime::stop), or until nothing is due where `drain` says so.
    pub async fn work(&self, config: PoolConfig) -> Worked {
        tokio::select! {
            biased;
            worked = self.work_on(config) => worked,
            () = self.reaper.watch_own_time() => Worked::default(),
        }
    }

    async fn work_on(&self, config: PoolConfig) -> Worked {
        let name = format!("{}#{:016x}", std::process::id(), fastrand::u64(..));
        let mut pool = Pool::default();
        let mut sweeps = tokio::time::interval(config.sweep_interval);
        sweeps.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut hints = self.engine.subscribe();
        let mut foreign_hints = self.engine.store().hints();
        loop {
            let stopping = self.stopping().is_cancelled();
            while let Some(ended) = pool.running.try_join_next() {
                pool.ended(ended, &config);
            }
            let claimed = if stopping { 0 } else { self.claim_due(&config, &mut pool).await };
            if pool.running.is_empty() && (stopping || config.drain && claimed == 0) {
                break;
            }
            tokio::select! {
                // In this order, so that a simulation plays a seed the same way twice; each round comes by all of them.
                biased;
                Some(ended) = pool.running.join_next() => pool.ended(ended, &config),
                _ = sweeps.tick() => {
                    pool.passed_over.look_again();
                    pool.worked.not_served.clear();
                    match self.engine.store().announce(&name, self.engine.ttl(), &self.claimer()).await {
                        Ok(()) => pool.announcing.answered("the announcement"),
                        Err(error) => pool.announcing.failed("this worker could not be announced", &error),
                    }
                    match self.sweep(limits::PAGE_MAX, false).await {
                        Ok(swept) => {
                            pool.swept(&swept);
                            if !swept.shared.is_empty() {
                                self.stop();
                            }
                        }
                        Err(error) => pool.sweeping.failed("the sweep did not reach the store", &error),
                    }
                }
                () = queued(&mut hints) => {}
                () = told(&mut foreign_hints, &self.heartbeat) => {}
                () = self.stopping().cancelled(), if !stopping => {
                    if !all_end(&mut pool.running, config.grace).await {
                        self.leave.cancel();
                        if !all_end(&mut pool.running, HAND_BACK).await {
                            tracing::warn!(
                                left = pool.running.len(),
                                "writes are still under way at the end of the grace period: whatever this process does not live to \
                                 record is in doubt"
                            );
                            // They go on, and renew, for as long as this process lives.
                            pool.running.detach_all();
                        }
                        break;
                    }
                }
                () = tokio::time::sleep(config.poll_interval) => {}
            }
        }
        if let Err(error) = self.engine.store().announce(&name, self.engine.ttl(), &Claimer::default()).await {
            tracing::warn!("this worker could not take its announcement back: {error}");
        }
        pool.worked
    }

    /// Claims until there is no free place or nothing more that this process can serve. How many it claimed.
    async fn claim_due(&self, config: &PoolConfig, pool: &mut Pool) -> usize {
        pool.worked.failed = None;
        if let Some(run) = config.only {
            return self.claim_only(run, config, pool).await;
        }
        let mut claimed = 0;
        loop {
            let passed_over = pool.passed_over.runs().len();
            match self.claim_batch(config, pool).await {
                Ok(more) => {
                    pool.claiming.answered("the queue");
                    claimed += more;
                }
                Err(error) => {
                    pool.claiming.failed("the queue could not be read", &error);
                    pool.worked.failed = Some(format!("the queue could not be read: {error}"));
                    return claimed;
                }
            }
            // What was passed over may have stood before something that can be served.
            if pool.passed_over.runs().len() == passed_over {
                return claimed;
            }
        }
    }

    /// One exchange with the store.
    async fn claim_batch(&self, config: &PoolConfig, pool: &mut Pool) -> Result<usize, Unavailable> {
        let free = config.concurrency.saturating_sub(pool.running.len());
        let places = |name: &str, cap: usize| free.min(cap.saturating_sub(pool.places.taken(name)));
        let registry = self.registry.now();
        let agents = registry.agents().map(|a| (a.name.clone(), places(&a.name, a.concurrency)));
        let places: HashMap<String, usize> = agents.filter(|(_, places)| *places > 0).collect();
        if places.is_empty() {
            return Ok(0);
        }
        let mut agents: Vec<(String, usize)> =
            places.iter().map(|(agent, places)| (agent.clone(), pool.passed_over.depth(*places))).collect();
        agents.sort();
        let wanted = Wanted { agents, now: self.engine.now().wall, except: pool.passed_over.runs().to_vec() };
        let claim = Claim { claimer: self.claimer(), process: self.process.clone(), most: free, places, wanted };
        let turns = pool.turns.clone();
        let sent = self.heartbeat.now();
        let claimed = self
            .engine
            .claim(claim, move |rows| turns.order(rows, |r: &Snapshot| (&r.agent, r.priority, r.due_at, r.id)))
            .await?;
        for (run, why) in claimed.passed_over {
            pool.pass_over(run, why);
        }
        if claimed.failed.is_some() {
            pool.worked.failed = claimed.failed;
        }
        for run in claimed.unreadable {
            // It has no execution: the claim ends it, or says why it cannot.
            if let Err(error) = self.claim(run).await {
                pool.unclaimed.say(run, "claimed", &error.to_string());
            }
        }
        let count = claimed.held.len();
        for done in claimed.held {
            pool.turns.took(&done.row.agent);
            let (runtime, place) = (self.clone(), pool.places.take(&done.row.agent));
            pool.running.spawn(async move {
                let run = done.row.id;
                let ended = match runtime.execution(done, sent).await {
                    Ok(execution) => execution.finish().await,
                    Err(error) => {
                        tracing::warn!(%run, "run {run} was claimed and cannot be executed: {error}");
                        Err(error)
                    }
                };
                drop(place);
                (run, ended)
            });
        }
        Ok(count)
    }

    async fn claim_only(&self, run: RunId, config: &PoolConfig, pool: &mut Pool) -> usize {
        if pool.running.len() >= config.concurrency {
            return 0;
        }
        match self.claim(run).await {
            Ok(execution) => {
                pool.running.spawn(async move { (run, execution.finish().await) });
                return 1;
            }
            Err(OrderError::Refused(Rejection::NotServed(what))) => {
                pool.pass_over(run, format!("this process does not serve `{what}`"));
            }
            // Taken, cancelled or not due after all.
            Err(OrderError::Refused(_) | OrderError::NotFound) => {}
            Err(error) => {
                tracing::warn!(%run, "run {run} could not be claimed: {error}");
                pool.worked.failed = Some(format!("run {run} could not be claimed: {error}"));
            }
        }
        0
    }
}
