//! The runtime as a program uses it: start or enqueue runs, decide, cancel, settle doubts, look, work the queue.
//!
//! A [`Runtime`] belongs to one process and is cheap to clone. What executes is an [`Execution`], and the only ways to one are a
//! start, a claim and a decision: each holds its own lease from the first moment.

use crate::{
    agent::{
        arguments::nested_deeper,
        executor::{
            Executor, Live, previewed, stored,
            write::{moved, verify},
        },
        gate::Gate,
        owner::Owners,
        registry::{AgentSpec, Authority, InForce, Registry},
        tool::{Tool, Verified, VerifyQuery},
        unrecorded::Unrecorded,
    },
    clock::{BootClock, WallClock},
    limits,
    run::{
        Act, CallId, Claimer, DecideCall, Entry, Event, Grant, Hash256, LeaseId, Mode, NewRun, Order, Policy, Principal,
        Reason, Recovery, Rejection, Request, ResolutionKind, Right, RunId, Snapshot, State, Story, TurnCard, WriteId,
        canonical_hash, lacking,
    },
    seal::Keyring,
    store::{
        Filter, Inserted, Listed, ReadError, RequestKey, Store, StoreRefused, Unavailable,
        engine::{CommitError, Done, Engine},
    },
    worker::{Heartbeat, Probe, Reaper, Segment, SegmentError, Swept},
};
use serde_json::{Map, Value};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

mod answer;
mod errors;
mod input;
mod look;
mod people;
mod request;
mod similar;

pub use answer::QuestionAnswer;
pub use errors::{InvalidField, OrderError, StartError};
pub use input::Submission;
pub use look::{Details, InboxKind, StandingQuestion, Unserved};
pub use people::{Asked, Decided, Decision, Resolution, Resolved};
use request::{check_request, request_key};
pub use similar::{Similar, SimilarCall, SimilarStage};

/// How a process takes part.
pub struct RuntimeConfig {
    /// The store.
    pub store: Arc<dyn Store>,
    /// What this process can execute.
    pub registry: Arc<Registry>,
    /// Knows what of it is in force; none: all of it, until [`Runtime::replace_registry`].
    pub authority: Option<Arc<dyn Authority>>,
    /// The boot-time clock.
    pub clock: Arc<dyn BootClock>,
    /// Wall time. Where several processes share the store, [`StoreWall`](crate::store::StoreWall): a time limit that one sets and
    /// another looks at means the same to both only on one clock.
    pub wall: Arc<dyn WallClock>,
    /// How long a lease lasts without renewal.
    pub ttl: Duration,
    /// Requeues and backoff.
    pub policy: Policy,
    /// Host and process, for holders' names: `web-01:4711`.
    pub process: String,
    /// Is told when a segment comes by; for drills and tests.
    pub probe: Option<Arc<dyn Probe>>,
    /// Seals what lies in the store; none: it lies open.
    pub keyring: Option<Arc<Keyring>>,
    /// Is told what happens beside the journal.
    pub live: Option<UnboundedSender<Live>>,
    /// Knows what owners may do; none: every owner may run what its agent is offered.
    pub owners: Option<Arc<dyn Owners>>,
}

impl RuntimeConfig {
    /// With the defaults of the configuration file; change a field where another value is wanted:
    /// `RuntimeConfig { ttl: Duration::from_secs(10), ..RuntimeConfig::new(store, registry, clock) }`.
    pub fn new<C>(store: Arc<dyn Store>, registry: impl Into<Arc<Registry>>, clock: Arc<C>) -> Self
    where
        C: BootClock + WallClock + 'static,
    {
        Self {
            store,
            registry: registry.into(),
            authority: None,
            clock: Arc::clone(&clock) as Arc<dyn BootClock>,
            wall: clock,
            ttl: Duration::from_secs(60),
            policy: Policy::default(),
            process: this_process(),
            probe: None,
            keyring: None,
            live: None,
            owners: None,
        }
    }
}

/// Host and process as holders are named: `web-01:4711`.
pub fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host: String =
        host.trim().chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    format!("{}:{}", if host.is_empty() { "localhost" } else { &host }, std::process::id())
}

/// A process's part in the runs of a store.
#[derive(Clone)]
pub struct Runtime {
    pub(crate) engine: Arc<Engine>,
    pub(crate) heartbeat: Arc<Heartbeat>,
    pub(crate) reaper: Arc<Reaper>,
    pub(crate) registry: InForce,
    authority: Option<Arc<dyn Authority>>,
    pub(crate) process: String,
    probe: Option<Arc<dyn Probe>>,
    live: Option<UnboundedSender<Live>>,
    owners: Option<Arc<dyn Owners>>,
    stop: CancellationToken,
    pub(crate) leave: CancellationToken,
}

/// What is asked of a new run.
#[derive(Clone, Debug)]
pub struct StartRun {
    /// The agent.
    pub agent: String,
    /// The conversation and its limits.
    pub request: Request,
    /// Who finishes it; none: the default of the way it is started.
    pub recovery: Option<Recovery>,
    /// Larger is claimed earlier.
    pub priority: i32,
    /// Not claimed before.
    pub run_at: Option<jiff::Timestamp>,
    /// Who asks.
    pub by: Principal,
    /// The person behind a machine; none: the asker.
    pub initiator: Option<String>,
    /// The team whose members see it, besides its owner.
    pub team: Option<String>,
}

impl StartRun {
    /// A task for an agent.
    pub fn new(agent: impl Into<String>, task: impl Into<String>, by: Principal) -> Self {
        let message = crate::run::InputMessage { role: crate::run::Role::User, text: task.into() };
        Self {
            agent: agent.into(),
            request: Request { messages: vec![message], ..Request::default() },
            recovery: None,
            priority: 0,
            run_at: None,
            by,
            initiator: None,
            team: None,
        }
    }
}

/// A run under a lease of this process, ready to go on.
pub struct Execution {
    segment: Segment,
    executor: Executor,
}

/// What a start under a request key came to.
pub enum Started {
    /// A run of this process, claimed at birth.
    New(Box<Execution>),
    /// The same request came before under this key: its run, whoever executes it.
    Existing(RunId),
}

/// How an execution ended: the right is over, and the row says why.
pub type Executed = Result<Snapshot, SegmentError>;

impl Execution {
    /// The run.
    pub fn run(&self) -> RunId {
        self.segment.run()
    }
    /// The row at the grant.
    pub fn row(&self) -> &Snapshot {
        self.segment.row()
    }
    /// Executes on a task of its own: the run goes on whether anybody waits for it or not.
    pub fn spawn(self) -> tokio::task::JoinHandle<Executed> {
        tokio::spawn(self.finish())
    }
    /// Executes until the run settles, waits, is queued again or dead, or the right is lost.
    ///
    /// Dropped before its end, the segment stops where it is, as if its process had died: the lease runs out, and a write that
    /// is in its tool is in doubt. Where the one who waits may go away, [`spawn`](Self::spawn).
    ///
    /// # Errors
    /// The right was lost: what is journaled is true, and somebody else settles the run.
    pub async fn finish(mut self) -> Executed {
        let run = self.segment.run();
        match self.executor.drive(&mut self.segment).await {
            Ok(()) => Ok(self.segment.row().clone()),
            Err(error) => {
                tracing::warn!(%run, "run {run}: this segment stops: {error}");
                Err(error)
            }
        }
    }
}

/// How long a foreign change is tried against a busy or absent store.
const PATIENCE: Duration = Duration::from_secs(30);

impl Runtime {
    /// Takes part.
    ///
    /// # Errors
    /// The store gives no connection for renewals.
    pub fn new(config: RuntimeConfig) -> Result<Self, Unavailable> {
        let heartbeat = Heartbeat::start(&config.store, Arc::clone(&config.clock), config.ttl)?;
        Ok(Self::with_heartbeat(config, heartbeat))
    }

    /// Takes part with renewals that somebody else makes: see [`Heartbeat::ticked`].
    pub fn with_heartbeat(config: RuntimeConfig, heartbeat: Arc<Heartbeat>) -> Self {
        let engine = Engine::new(config.store, config.wall, config.policy, config.ttl).with_keyring(config.keyring);
        let engine = Arc::new(engine);
        let reaper = Arc::new(Reaper::new(Arc::clone(&engine), config.clock));
        Self {
            engine,
            heartbeat,
            reaper,
            registry: InForce::new(config.registry),
            authority: config.authority,
            process: config.process,
            probe: config.probe,
            live: config.live,
            owners: config.owners,
            stop: CancellationToken::new(),
            leave: CancellationToken::new(),
        }
    }

    /// What this process can execute now.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.now()
    }

    /// From now on this process executes with these agents and tools; segments under way from their next step on. With an
    /// [`Authority`] its word replaces this at the next step.
    pub fn replace_registry(&self, registry: impl Into<Arc<Registry>>) {
        self.registry.replace(registry.into());
    }

    /// The same part in the store with other agents and tools: for a process that starts and decides by what is declared and
    /// asks with what it has.
    pub fn with_registry(&self, registry: Arc<Registry>) -> Self {
        Self { registry: InForce::new(registry), authority: None, ..self.clone() }
    }

    /// The store, for messages and for reading.
    pub fn store(&self) -> &Arc<dyn Store> {
        self.engine.store()
    }

    /// The engine: hints of commits, late outcomes.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Every segment of this process yields at its next step, and nothing new is claimed.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The time to finish is over: every segment hands back what may be handed back, also from the middle of a read or an
    /// idempotent write. A pool does this at the end of its grace period; executions outside of one need it said.
    pub fn leave(&self) {
        self.leave.cancel();
    }

    pub(crate) fn stopping(&self) -> &CancellationToken {
        &self.stop
    }

    /// [`stop`](Self::stop), and [waits](Self::late_outcomes_recorded): the last thing to call in a process that executes, after the
    /// tasks that do have ended. False where an outcome that only this process knows is not on record.
    pub async fn shutdown(&self) -> bool {
        self.stop();
        self.late_outcomes_recorded().await
    }

    /// Waits until everything that tools of this process answered after their lease was gone is on record, for at most
    /// [`LATE_OUTCOMES_LEASES`](limits::LATE_OUTCOMES_LEASES); at once where there is nothing. A process that ends before takes
    /// the answer with it, and its write stays in doubt. False where something is left.
    pub async fn late_outcomes_recorded(&self) -> bool {
        let patience = (self.engine.ttl() * limits::LATE_OUTCOMES_LEASES).max(limits::LATE_OUTCOMES_WAIT_MIN);
        let recorded = async {
            while !self.engine.late_outcomes_recorded(Duration::from_secs(1)).await {
                // Nobody else need be there to end the lease that was lost, and before that the answer does not count as late.
                if let Err(error) = self.sweep(limits::LOCAL_SWEEP_MAX, false).await {
                    tracing::warn!("the sweep did not reach the store: {error}");
                }
            }
        };
        tokio::time::timeout(patience, recorded).await.is_ok()
    }

    /// Something that a tool of this process answered after its lease was gone is not on record yet.
    pub async fn has_late_outcomes(&self) -> bool {
        !self.engine.late_outcomes_recorded(Duration::ZERO).await
    }

    fn executor(&self) -> Executor {
        Executor {
            registry: self.registry.clone(),
            authority: self.authority.clone(),
            probe: self.probe.clone(),
            live: self.live.clone(),
            owners: self.owners.clone(),
            stop: self.stop.clone(),
            leave: self.leave.clone(),
        }
    }

    fn grant(&self) -> Grant {
        Grant { lease_id: LeaseId::random(), process: self.process.clone() }
    }

    fn agent(registry: &Registry, name: &str) -> Result<Arc<AgentSpec>, StartError> {
        registry.agent(name).cloned().ok_or_else(|| {
            let known: Vec<&str> = registry.agents().map(|a| a.name.as_str()).collect();
            StartError::NoAgent(name.to_owned(), if known.is_empty() { "none".into() } else { known.join(", ") })
        })
    }

    fn new_run(&self, start: StartRun, mode: Mode) -> Result<NewRun, StartError> {
        let registry = self.registry.now();
        let agent = Self::agent(&registry, &start.agent)?;
        check_request(&start.request)?;
        if let Some(tools) = &start.request.tools {
            for pattern in tools {
                if registry.offered(&agent, Some(std::slice::from_ref(pattern))).is_empty() {
                    let offered: Vec<&str> =
                        registry.offered(&agent, None).into_iter().map(|t| t.spec().name.as_str()).collect();
                    return Err(StartError::Invalid(format!(
                        "agent `{}` is not offered `{pattern}`; it is offered: {}",
                        agent.name,
                        offered.join(", ")
                    )));
                }
            }
        }
        let salt = Hash256::random().map_err(|e| StartError::Unavailable(Unavailable(e.to_string())))?;
        Ok(NewRun {
            id: RunId::new(),
            salt,
            agent: start.agent,
            agent_version: agent.version(),
            request: start.request,
            mode,
            recovery: start.recovery,
            owner: start.by.id.clone(),
            initiator: start.initiator.unwrap_or_else(|| start.by.id.clone()),
            team: start.team,
            by: start.by,
            priority: start.priority,
            run_at: start.run_at.map(crate::clock::to_millis),
            second_approver: agent.second_approver,
        })
    }

    /// Starts a run that is claimed at birth, for a caller who waits.
    ///
    /// # Errors
    /// See [`StartError`]; where the store does not answer, the caller may run [`unrecorded`](Self::unrecorded).
    pub async fn start(&self, start: StartRun) -> Result<Execution, StartError> {
        match self.start_once(start, None).await? {
            Started::New(execution) => Ok(*execution),
            // Only a key finds a run of before.
            Started::Existing(run) => Err(StartError::Lost(format!("run {run} was there before"))),
        }
    }

    /// The same under a key: the same key with the same request is the same run, and is started once.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn start_once(&self, start: StartRun, key: Option<String>) -> Result<Started, StartError> {
        let key = request_key(&start, key);
        let new = self.new_run(start, Mode::Wait)?;
        let grant = self.grant();
        let write_id = WriteId(grant.lease_id.0);
        let sent = self.heartbeat.now();
        let (inserted, done) = self.born(new, Some(grant), key, write_id).await?;
        match inserted {
            Inserted::Existing(run) => Ok(Started::Existing(run)),
            Inserted::KeyConflict(run) => Err(StartError::KeyConflict(run)),
            Inserted::Applied(_) | Inserted::Refused(_) => {
                let execution = self.execution(done, sent).await.map_err(|e| StartError::Lost(e.to_string()))?;
                Ok(Started::New(Box::new(execution)))
            }
        }
    }

    /// Says whether a run could be started here, and starts none.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn check_start(&self, start: StartRun) -> Result<(), StartError> {
        self.new_run(start, Mode::Queue).map(|_| ())
    }

    /// Asks twice, and waits for a silent store no longer than a renewal would. The run's id and the write's id were chosen
    /// before, so that a repeat after a lost answer is the same run.
    async fn born(
        &self,
        new: NewRun,
        grant: Option<Grant>,
        key: Option<RequestKey>,
        write_id: WriteId,
    ) -> Result<(Inserted, Done), StartError> {
        let patience = self.engine.ttl() / 3;
        let silent = |_| Err(Unavailable("it is silent".into()));
        let (insert, done) = self.engine.conceive(new, grant, key, write_id)?;
        let first = self.engine.birth(insert.clone(), done.clone());
        match tokio::time::timeout(patience, first).await.unwrap_or_else(silent) {
            Ok((Inserted::Refused(refused), _)) => Err(refused.into()),
            Ok(born) => Ok(born),
            Err(_) => {
                let again = self.engine.birth(insert, done);
                match tokio::time::timeout(patience, again).await.unwrap_or_else(silent)? {
                    // What was sent first may yet come to be, or have.
                    (Inserted::Refused(refused), _) => Err(Unavailable(refused.why).into()),
                    born => Ok(born),
                }
            }
        }
    }

    /// A run without a record: reads work, every write is refused before it happens.
    ///
    /// # Errors
    /// No such agent, or a request that is none.
    pub fn unrecorded(registry: &Arc<Registry>, start: StartRun) -> Result<Unrecorded, StartError> {
        check_request(&start.request)?;
        let agent = registry
            .agent(&start.agent)
            .ok_or_else(|| StartError::NoAgent(start.agent.clone(), "see `leasehold agents`".into()))?;
        Ok(Unrecorded::new(Arc::clone(registry), Arc::clone(agent), start.request))
    }

    /// Puts a run in the queue. The same key with the same request is the same run.
    ///
    /// # Errors
    /// See [`StartError`].
    pub async fn enqueue(&self, start: StartRun, key: Option<String>) -> Result<RunId, StartError> {
        let key = request_key(&start, key);
        let new = self.new_run(start, Mode::Queue)?;
        let id = new.id;
        let write_id = WriteId::random();
        let (inserted, _) = self.born(new, None, key, write_id).await?;
        match inserted {
            Inserted::Applied(_) => Ok(id),
            Inserted::Existing(run) => Ok(run),
            Inserted::KeyConflict(run) => Err(StartError::KeyConflict(run)),
            Inserted::Refused(refused) => Err(refused.into()),
        }
    }

    /// An execution from a grant that is durable.
    pub(crate) async fn execution(&self, done: Done, sent: crate::clock::BootInstant) -> Result<Execution, SegmentError> {
        // The grant's own entries are the whole journal only for a start; for the rest a store that is away is waited for, so that
        // it costs the run no requeue.
        let whole = done.row.sequence == done.entries.len() as u64;
        let patience = if whole { Duration::ZERO } else { self.engine.ttl() / 3 };
        let (entries, unreadable) = match self.engine.journal_within(&done.row, patience).await {
            Ok(entries) => (entries, None),
            Err(ReadError::Corrupt { why, .. }) => (Vec::new(), Some(why)),
            // The lease runs out by itself.
            Err(ReadError::Unavailable(unavailable)) if !whole => {
                return Err(SegmentError::Lost(unavailable.to_string()));
            }
            Err(ReadError::Unavailable(_)) => (done.entries.clone(), None),
        };
        let story = Story::of(&entries);
        let mut segment = Segment::new(Arc::clone(&self.engine), Arc::clone(&self.heartbeat), done.row, story, sent)?;
        if let Some(why) = unreadable {
            segment.commit(vec![crate::run::Act::Unreadable { why: why.clone() }]).await?;
            return Err(SegmentError::Unreadable(why));
        }
        Ok(Execution { segment, executor: self.executor() })
    }

    /// What this process can claim.
    pub fn claimer(&self) -> Claimer {
        let registry = self.registry.now();
        Claimer {
            agents: registry.agents().map(|a| a.name.clone()).collect(),
            // A call of a tool that is withheld is shown again, or refused.
            tools: registry.tool_names().chain(registry.withheld_names()).map(str::to_owned).collect(),
            open: !self.stop.is_cancelled(),
        }
    }

    /// Claims one queued run.
    ///
    /// # Errors
    /// Not due, not served, taken by somebody else, no answer.
    pub async fn claim(&self, id: RunId) -> Result<Execution, OrderError> {
        let grant = self.grant();
        let write_id = WriteId(grant.lease_id.0);
        let claimer = self.claimer();
        let sent = self.heartbeat.now();
        let claim = Event::Claim { grant: grant.clone(), claimer };
        let claimed = self.engine.change(id, write_id, self.engine.ttl() / 3, |_| claim.clone()).await;
        let done = match claimed {
            Err(CommitError::Corrupt(why)) => {
                self.settle_unreadable(id, claim, &grant, why.clone()).await?;
                return Err(OrderError::Unreadable(why));
            }
            claimed => claimed?,
        };
        self.execution(done, sent).await.map_err(|error| match error {
            SegmentError::Unreadable(why) => OrderError::Unreadable(why),
            other => OrderError::Unavailable(Unavailable(other.to_string())),
        })
    }

    /// A queued run whose row does not decode is settled by who would claim it, in one write.
    async fn settle_unreadable(&self, id: RunId, claim: Event, grant: &Grant, why: String) -> Result<(), CommitError> {
        let epoch = self.engine.load_to_end(id).await?.epoch + 1;
        let right = Right { epoch, lease_id: grant.lease_id };
        let events = vec![claim, Event::Holder(right, Act::Unreadable { why })];
        self.engine.end_unreadable(id, events, WriteId(grant.lease_id.0)).await.map(|_| ())
    }

    /// Why this process cannot go on with a run.
    fn lacks(&self, row: &Snapshot) -> Option<String> {
        let registry = self.registry.now();
        if registry.agent(&row.agent).is_none() {
            return Some(format!("this process has no agent `{}`", row.agent));
        }
        let pending = row.turn.iter().flat_map(|t| t.pending());
        pending.map(|call| &call.tool).find(|tool| registry.tool(tool).is_none()).map(|tool| match registry.withheld(tool) {
            Some(why) => format!("`{tool}` is not offered now: {why}"),
            None => format!("this process has no tool `{tool}`"),
        })
    }
}
