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
        registry::{AgentSpec, Registry},
        tool::{Tool, Verified, VerifyQuery},
        unrecorded::Unrecorded,
    },
    clock::{BootClock, WallClock},
    limits,
    run::{
        Act, CallId, Claimer, DecideCall, EditedCard, Entry, Event, Grant, LeaseId, Mode, NewRun, Order, Policy, Principal,
        Reason, Recovery, Rejection, Request, ResolutionKind, Right, RunId, Snapshot, State, Story, TurnCard, WriteId,
        canonical_hash, lacking,
    },
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

/// How a process takes part.
pub struct RuntimeConfig {
    /// The store.
    pub store: Arc<dyn Store>,
    /// What this process can execute.
    pub registry: Arc<Registry>,
    /// The boot-time clock.
    pub clock: Arc<dyn BootClock>,
    /// Wall time.
    pub wall: Arc<dyn WallClock>,
    /// How long a lease lasts without renewal.
    pub ttl: Duration,
    /// Requeues and backoff.
    pub policy: Policy,
    /// Host and process, for holders' names: `web-01:4711`.
    pub process: String,
    /// Is told when a segment comes by; for drills and tests.
    pub probe: Option<Arc<dyn Probe>>,
    /// Is told what happens beside the journal.
    pub live: Option<UnboundedSender<Live>>,
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
            clock: Arc::clone(&clock) as Arc<dyn BootClock>,
            wall: clock,
            ttl: Duration::from_secs(60),
            policy: Policy::default(),
            process: this_process(),
            probe: None,
            live: None,
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
    pub(crate) registry: Arc<Registry>,
    pub(crate) process: String,
    probe: Option<Arc<dyn Probe>>,
    live: Option<UnboundedSender<Live>>,
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
        }
    }
}

/// Why a run was not started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StartError {
    /// No such agent here.
    #[error("there is no agent `{0}`; there are: {1}")]
    NoAgent(String, String),
    /// The request is too long, empty, or asks for more than the agent has.
    #[error("{0}")]
    Invalid(String),
    /// The key belongs to another request.
    #[error("the key belongs to run {0}, which was asked for something else")]
    KeyConflict(RunId),
    /// No answer: the run may exist.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store would not have it: nothing was started.
    #[error(transparent)]
    StoreRefused(#[from] StoreRefused),
    /// The lease ended before it could be used.
    #[error("{0}")]
    Lost(String),
}

/// A decision as a person makes it.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Names what the person saw.
    pub digest: String,
    /// For every undecided call that `calls` does not name: approve or deny.
    pub rest: Option<bool>,
    /// A reason for those.
    pub reason: Option<String>,
    /// Per call.
    pub calls: Vec<DecideCall>,
    /// Who.
    pub by: Principal,
    /// This process goes on with the run, where it has what the run needs.
    pub execute: bool,
}

impl Decision {
    /// Every undecided call of the turn runs, and this process goes on with it.
    pub fn approve(digest: impl Into<String>, by: Principal) -> Self {
        Self { digest: digest.into(), rest: Some(true), reason: None, calls: Vec::new(), by, execute: true }
    }
    /// No undecided call of the turn runs; the model is told the reason, and this process goes on with the run.
    pub fn deny(digest: impl Into<String>, by: Principal, reason: impl Into<String>) -> Self {
        let reason = Some(reason.into()).filter(|reason: &String| !reason.is_empty());
        Self { rest: Some(false), reason, ..Self::approve(digest, by) }
    }
    /// About these calls alone; the others stay undecided.
    pub fn calls(digest: impl Into<String>, by: Principal, calls: Vec<DecideCall>) -> Self {
        Self { rest: None, calls, ..Self::approve(digest, by) }
    }
}

/// What a decision came to.
pub struct Decided {
    /// The row now.
    pub row: Snapshot,
    /// The continuation, where this process executes it.
    pub execution: Option<Execution>,
    /// The same decision was made before; nothing was journaled.
    pub repeated: bool,
    /// Why this process does not execute it, where it was asked to.
    pub queued_because: Option<String>,
}

/// What a person says about a doubt.
#[derive(Clone, Debug)]
pub struct Resolution {
    /// The call in doubt.
    pub call_id: CallId,
    /// Which doubt; none: the one that stands.
    pub fence_epoch: Option<u64>,
    /// What the person says.
    pub outcome: ResolutionKind,
    /// What the write answered.
    pub result: Option<Value>,
    /// Why.
    pub note: Option<String>,
    /// Who.
    pub by: Principal,
}

/// What a resolution came to.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The row now.
    pub row: Snapshot,
    /// What came of asking the tool first; none where there was nothing to ask it: it has no verify, the person did not say "not
    /// landed", or the same was said before.
    pub asked: Option<Asked>,
}

/// What came of asking a tool with a verify before "not landed" was taken. In the record it is in the resolution's note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The write was not there.
    Absent,
    /// It gave no usable answer, and why.
    Unknown(String),
    /// This process cannot ask it, and why: the person's word was taken alone.
    NotAsked(String),
}

impl Asked {
    /// Beside the person's own note. What makes their word count for more comes first.
    fn noted(&self, note: Option<String>) -> String {
        match (self, note) {
            (Self::Absent, note) => noted(note, "asked before, and it was absent"),
            (Self::Unknown(why), note) => noted(note, &format!("asked before, without a usable answer: {why}")),
            (Self::NotAsked(why), None) => format!("without asking the far side: {why}"),
            (Self::NotAsked(why), Some(note)) => format!("without asking the far side: {why}; {note}"),
        }
    }
}

/// Why an order was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OrderError {
    /// A rule forbids it; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Rejection),
    /// No such run.
    #[error("there is no such run")]
    NotFound,
    /// Values that do not fit; nothing has changed.
    #[error("{0}")]
    Invalid(String),
    /// No answer: it may have been applied. The same order again gets the same answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store would not have it: nothing has changed.
    #[error(transparent)]
    StoreRefused(#[from] StoreRefused),
    /// The tool itself says that the write landed: "not landed" is refused. Its answer.
    #[error("the far side was asked and says that the write landed: {0}")]
    VerifiedLanded(Value),
    /// The row does not decode.
    #[error("{0}")]
    Unreadable(String),
}

impl From<CommitError> for OrderError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Rejected(rejection) => Self::Refused(rejection),
            CommitError::Gone => Self::NotFound,
            CommitError::Unavailable(unavailable) => Self::Unavailable(unavailable),
            CommitError::Refused(refused) => Self::StoreRefused(refused),
            CommitError::Fenced | CommitError::Moved => {
                Self::Unavailable(Unavailable("the run changed faster than the order could be applied".into()))
            }
            CommitError::Corrupt(why) => Self::Unreadable(why),
        }
    }
}

impl From<ReadError> for OrderError {
    fn from(error: ReadError) -> Self {
        CommitError::from(error).into()
    }
}

/// A run as it stands, with its whole journal.
#[derive(Clone, Debug)]
pub struct Details {
    /// The row.
    pub row: Snapshot,
    /// The journal, where it decodes.
    pub entries: Vec<Entry>,
    /// The journal, folded.
    pub story: Story,
    /// Why the journal or the whole row is not shown, where it does not decode.
    pub unreadable: Option<String>,
}

impl Details {
    /// What a decision has to name, while the run waits for one.
    pub fn digest(&self) -> Option<&str> {
        self.row.turn.as_ref().filter(|_| self.row.state.is_waiting())?.digest.as_deref()
    }
    /// What a person is shown before deciding, while the run waits.
    pub fn card(&self) -> Option<&TurnCard> {
        self.story.card.as_ref().filter(|_| self.row.state.is_waiting()).map(|standing| &standing.card)
    }
}

/// What needs a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InboxKind {
    /// A write may have happened.
    InDoubt,
    /// Calls wait for a decision.
    Approval,
    /// A call waits for values.
    Input,
    /// One call landed twice.
    Duplicate,
    /// The process that made a call says the opposite of its recorded outcome.
    Contradicted,
    /// The runtime refuses to continue.
    Dead,
}

impl InboxKind {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InDoubt => "in_doubt",
            Self::Approval => "approval",
            Self::Input => "input",
            Self::Duplicate => "duplicate",
            Self::Contradicted => "contradicted",
            Self::Dead => "dead",
        }
    }
}

/// What the live workers lack for a queued run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// There is none.
    #[error("no worker is running on this store")]
    NoWorker,
    /// None has its agent.
    #[error("no live worker serves agent `{0}`")]
    Agent(String),
    /// Those that have its agent have not this tool, which it needs next.
    #[error("no live worker that serves its agent has tool `{0}`")]
    Tool(String),
}

/// A run under a lease of this process, ready to go on.
pub struct Execution {
    segment: Segment,
    executor: Executor,
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
        let engine = Arc::new(Engine::new(config.store, config.wall, config.policy, config.ttl));
        let reaper = Arc::new(Reaper::new(Arc::clone(&engine), config.clock));
        Self {
            engine,
            heartbeat,
            reaper,
            registry: config.registry,
            process: config.process,
            probe: config.probe,
            live: config.live,
            stop: CancellationToken::new(),
            leave: CancellationToken::new(),
        }
    }

    /// What this process can execute.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
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
            registry: Arc::clone(&self.registry),
            probe: self.probe.clone(),
            live: self.live.clone(),
            stop: self.stop.clone(),
            leave: self.leave.clone(),
        }
    }

    fn grant(&self) -> Grant {
        Grant { lease_id: LeaseId::random(), process: self.process.clone() }
    }

    fn agent(&self, name: &str) -> Result<&Arc<AgentSpec>, StartError> {
        self.registry.agent(name).ok_or_else(|| {
            let known: Vec<&str> = self.registry.agents().map(|a| a.name.as_str()).collect();
            StartError::NoAgent(name.to_owned(), if known.is_empty() { "none".into() } else { known.join(", ") })
        })
    }

    fn new_run(&self, start: StartRun, mode: Mode) -> Result<NewRun, StartError> {
        let agent = self.agent(&start.agent)?;
        check_request(&start.request)?;
        if let Some(tools) = &start.request.tools {
            for pattern in tools {
                if self.registry.offered(agent, Some(std::slice::from_ref(pattern))).is_empty() {
                    let offered: Vec<&str> =
                        self.registry.offered(agent, None).into_iter().map(|t| t.spec().name.as_str()).collect();
                    return Err(StartError::Invalid(format!(
                        "agent `{}` is not offered `{pattern}`; it is offered: {}",
                        agent.name,
                        offered.join(", ")
                    )));
                }
            }
        }
        Ok(NewRun {
            id: RunId::new(),
            agent: start.agent,
            agent_version: agent.version(),
            request: start.request,
            mode,
            recovery: start.recovery,
            owner: start.by.id.clone(),
            initiator: start.initiator.unwrap_or_else(|| start.by.id.clone()),
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
        let new = self.new_run(start, Mode::Wait)?;
        let grant = self.grant();
        let write_id = WriteId(grant.lease_id.0);
        let sent = self.heartbeat.now();
        let (_, done) = self.born(new, Some(grant), None, write_id).await?;
        self.execution(done, sent).await.map_err(|e| StartError::Lost(e.to_string()))
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
        let first = self.engine.birth(new.clone(), grant.clone(), key.clone(), write_id);
        match tokio::time::timeout(patience, first).await.unwrap_or_else(silent) {
            Ok((Inserted::Refused(refused), _)) => Err(refused.into()),
            Ok(born) => Ok(born),
            Err(_) => {
                let again = self.engine.birth(new, grant, key, write_id);
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
        let hash = canonical_hash(&(&start.agent, &start.request, start.priority));
        let key = key.map(|key| RequestKey { scope: start.by.id.clone(), key, request_hash: hash });
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
        Claimer {
            agents: self.registry.agents().map(|a| a.name.clone()).collect(),
            tools: self.registry.tool_names().map(str::to_owned).collect(),
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
        if self.registry.agent(&row.agent).is_none() {
            return Some(format!("this process has no agent `{}`", row.agent));
        }
        let pending = row.turn.iter().flat_map(|t| t.pending());
        pending
            .map(|call| &call.tool)
            .find(|tool| self.registry.tool(tool).is_none())
            .map(|tool| format!("this process has no tool `{tool}`"))
    }

    /// Decides about waiting calls: one transaction with the claim, or with the queue.
    ///
    /// # Errors
    /// Refused with the rule's name; nothing has changed then.
    pub async fn decide(&self, id: RunId, decision: Decision) -> Result<Decided, OrderError> {
        loop {
            let refused = match self.decide_once(id, &decision).await {
                Err(OrderError::Refused(refused)) => refused,
                other => return other,
            };
            match refused {
                // Others decided about other calls in between: which of the decisions is the last is looked at again. Each
                // round needs one more decided call, and a turn has few.
                Rejection::LastDecision | Rejection::Undecided(_) => {}
                // The same decision may have been taken in between, and the run have gone on.
                Rejection::StaleTurn
                | Rejection::NotWaiting(_)
                | Rejection::NotInState { .. }
                | Rejection::AlreadyDecided { .. } => {
                    let row = self.engine.load(id).await?;
                    return self.decided_before(row, &decision).await.map_err(|_| refused.into());
                }
                refused => return Err(refused.into()),
            }
        }
    }

    async fn decide_once(&self, id: RunId, decision: &Decision) -> Result<Decided, OrderError> {
        let row = self.engine.load(id).await?;
        let current = row.turn.as_ref().is_some_and(|t| t.digest.as_deref() == Some(decision.digest.as_str()));
        if !current {
            return self.decided_before(row, decision).await;
        }
        let mut calls = expand(&row, decision);
        self.take_edits(&row, &mut calls).await?;
        let undecided_after = row
            .turn
            .iter()
            .flat_map(|t| &t.calls)
            .filter(|c| c.is_undecided() && !calls.iter().any(|d| d.call_id == c.id))
            .count();
        let queued_because = if decision.execute { self.lacks(&row) } else { None };
        let grant = (decision.execute && queued_because.is_none() && undecided_after == 0).then(|| self.grant());
        let write_id = grant.as_ref().map_or_else(WriteId::random, |g| WriteId(g.lease_id.0));
        let sent = self.heartbeat.now();
        let order = if undecided_after == 0 {
            Order::Decide { digest: decision.digest.clone(), calls, grant: grant.clone() }
        } else {
            Order::DecidePart { digest: decision.digest.clone(), calls }
        };
        let by = decision.by.clone();
        let done = self.engine.change(id, write_id, PATIENCE, |_| Event::Person(by.clone(), order.clone())).await?;
        let repeated = done.entries.is_empty();
        let row = done.row.clone();
        let granted = grant.is_some_and(|g| row.lease.as_ref().is_some_and(|l| l.lease_id == g.lease_id));
        let execution = if granted {
            Some(self.execution(done, sent).await.map_err(|e| OrderError::Unavailable(Unavailable(e.to_string())))?)
        } else {
            None
        };
        Ok(Decided { row, execution, repeated, queued_because })
    }

    /// A decision on a turn that has gone: the same answer where it was taken, stale where it was not.
    async fn decided_before(&self, row: Snapshot, decision: &Decision) -> Result<Decided, OrderError> {
        let entries = self.engine.journal_of(&row, 0).await?;
        let approvals = entries.iter().filter_map(|entry| match &entry.body {
            crate::run::EntryBody::Approval(approval) if approval.digest == decision.digest => Some(approval),
            _ => None,
        });
        let taken: Vec<_> = approvals.filter(|a| a.by.id == decision.by.id).flat_map(|a| &a.calls).collect();
        let same = !taken.is_empty()
            && decision.calls.iter().all(|c| {
                taken.iter().any(|t| t.call_id == c.call_id && t.approved == c.approved && t.arguments == c.arguments)
            })
            && decision.rest.is_none_or(|rest| {
                taken.iter().all(|t| decision.calls.iter().any(|c| c.call_id == t.call_id) || t.approved == rest)
            });
        if same {
            return Ok(Decided { row, execution: None, repeated: true, queued_because: None });
        }
        if row.state.is_waiting() {
            return Err(Rejection::StaleTurn.into());
        }
        // Somebody decided about exactly this before: who, and when.
        let before = entries.iter().find_map(|entry| match &entry.body {
            crate::run::EntryBody::Approval(approval) if approval.digest == decision.digest && !approval.proposal => {
                let call = approval.calls.first()?.call_id.clone();
                Some(Rejection::AlreadyDecided { call, by: approval.by.id.clone(), at: entry.at })
            }
            _ => None,
        });
        if let Some(decided) = before {
            return Err(decided.into());
        }
        Err(Rejection::NotWaiting(row.state).into())
    }

    /// Edited arguments must fit the tool as it is now, and preview and precondition are taken again for them.
    async fn take_edits(&self, row: &Snapshot, calls: &mut [DecideCall]) -> Result<(), OrderError> {
        let edited: Vec<&mut DecideCall> = calls
            .iter_mut()
            .filter_map(|call| {
                call.edited_card = None;
                call.arguments.is_some().then_some(call)
            })
            .collect();
        if edited.is_empty() {
            return Ok(());
        }
        if row.second_approver {
            return Err(OrderError::Invalid(
                "under four eyes an edit is a proposal that somebody else releases; that is not in this version: deny with a reason instead".into(),
            ));
        }
        let Some(agent) = self.registry.agent(&row.agent) else {
            return Err(OrderError::Invalid(format!(
                "this process has no agent `{}`, so an edit cannot be checked",
                row.agent
            )));
        };
        let story = Story::of(&self.engine.journal_of(row, 0).await?);
        let narrow = story.request.as_ref().and_then(|r| r.tools.clone());
        let gate = Gate { registry: &self.registry, agent, narrow: narrow.as_deref() };
        for call in edited {
            if !call.approved {
                return Err(OrderError::Invalid(format!("call {} is denied and edited at once", call.call_id)));
            }
            let name = story.calls.get(&call.call_id).map(|c| c.asked.tool.as_str()).unwrap_or_default();
            let Some(tool) = gate.tool(name) else {
                return Err(OrderError::Invalid(format!("`{name}` is not offered any more, so an edit cannot be checked")));
            };
            let arguments: Map<String, Value> = call.arguments.clone().unwrap_or_default();
            gate.validate(tool, arguments.clone()).map_err(OrderError::Invalid)?;
            let (preview, precondition) = previewed(tool, &arguments).await;
            call.edited_card = Some(EditedCard { preview, precondition });
        }
        Ok(())
    }

    /// Requests a cancel.
    ///
    /// # Errors
    /// Settled or dead otherwise, no such run, no answer.
    pub async fn cancel(&self, id: RunId, by: Principal, note: Option<String>) -> Result<Snapshot, OrderError> {
        self.order(id, by, Order::Cancel { note }).await
    }

    /// Sends a dead or failed run on.
    ///
    /// # Errors
    /// In doubt, cancelled, no such run, no answer.
    pub async fn redrive(&self, id: RunId, by: Principal, note: Option<String>) -> Result<Snapshot, OrderError> {
        let row = self.engine.load(id).await?;
        let valid_for = self.registry.agent(&row.agent).map_or(Duration::from_secs(24 * 3600), |a| a.approval_valid_for);
        let now = self.engine.now().wall;
        let approved_after = now.checked_sub(valid_for).unwrap_or(now);
        self.order(id, by, Order::Redrive { approved_after, note }).await
    }

    /// Gives a run up.
    ///
    /// # Errors
    /// Not dead, no such run, no answer.
    pub async fn discard(&self, id: RunId, by: Principal, note: Option<String>) -> Result<Snapshot, OrderError> {
        self.order(id, by, Order::Discard { note }).await
    }

    async fn order(&self, id: RunId, by: Principal, order: Order) -> Result<Snapshot, OrderError> {
        let ends = matches!(order, Order::Cancel { .. } | Order::Discard { .. });
        let changed = self.engine.change(id, WriteId::random(), PATIENCE, |_| Event::Person(by.clone(), order.clone())).await;
        let done = match changed {
            Err(CommitError::Corrupt(_)) if ends => {
                self.engine.end_unreadable(id, vec![Event::Person(by, order)], WriteId::random()).await?
            }
            changed => changed?,
        };
        Ok(done.row)
    }

    /// Settles a doubt. "Not landed" of a tool with a verify asks it first, where this process can; where it cannot, that is said
    /// and kept in the record.
    ///
    /// # Errors
    /// Another doubt stands, too early, not permitted, no such run, no answer.
    pub async fn resolve(&self, id: RunId, said: Resolution) -> Result<Resolved, OrderError> {
        let row = self.engine.load(id).await?;
        let standing = row.fence.as_ref().filter(|_| row.reason == Some(Reason::WriteInDoubt));
        let fence_epoch = match (said.fence_epoch, standing) {
            (Some(epoch), _) => epoch,
            (None, Some(fence)) => fence.epoch,
            (None, None) => return self.resolved_before(row, &said).await,
        };
        let Some(fence) = standing.filter(|f| f.call_id == said.call_id && f.epoch == fence_epoch) else {
            if standing.is_some() {
                // Another doubt stands: an answer to this one must not look like an answer to that.
                return Err(Rejection::StaleDoubt.into());
            }
            return self.resolved_before(row, &said).await;
        };
        let (mut note, mut asked) = (said.note, None);
        // Not before it can be sure; the core refuses the resolution then anyway.
        if said.outcome == ResolutionKind::NotLanded && fence.verifiable && fence.in_flight_until <= self.engine.now().wall {
            let answer = match self.ask(&row, fence).await? {
                Ok(Verified::Landed(result)) => return Err(OrderError::VerifiedLanded(result)),
                Ok(Verified::Absent) => Asked::Absent,
                Ok(Verified::Unknown(why)) => Asked::Unknown(why),
                Err(why) => Asked::NotAsked(why),
            };
            note = Some(answer.noted(note));
            asked = Some(answer);
        }
        let order =
            Order::Resolve { call_id: said.call_id, fence_epoch, outcome: said.outcome, result: said.result.map(stored), note };
        Ok(Resolved { row: self.order(id, said.by, order).await?, asked })
    }

    /// Asks a verifiable tool about the write in doubt; or why this process cannot.
    async fn ask(&self, row: &Snapshot, fence: &crate::run::Fence) -> Result<Result<Verified, String>, OrderError> {
        let Some(tool) = self.registry.tool(&fence.tool) else {
            return Ok(Err(format!("this process has no tool `{}`", fence.tool)));
        };
        let Tool::Write(write, _) = tool else {
            return Ok(Err(format!("`{}` is not a write here any more", fence.tool)));
        };
        if write.verify().is_none() {
            return Ok(Err(format!("`{}` cannot be asked here any more", fence.tool)));
        }
        let story = Story::of(&self.engine.journal_of(row, 0).await?);
        if let Some(why) = moved(story.calls.get(&fence.call_id), tool) {
            return Ok(Err(why));
        }
        let arguments = story.calls.get(&fence.call_id).map(|c| c.arguments()).unwrap_or_default();
        let query =
            VerifyQuery { idempotency_key: fence.idempotency_key.clone(), run: row.id.to_string(), fencing_token: row.epoch };
        Ok(Ok(verify(Arc::clone(write), query, arguments).await))
    }

    /// A resolution where nothing is in doubt: the same answer where it was taken, stale where it was not.
    async fn resolved_before(&self, row: Snapshot, said: &Resolution) -> Result<Resolved, OrderError> {
        let entries = self.engine.journal_of(&row, 0).await?;
        let same = entries.iter().any(|entry| match &entry.body {
            crate::run::EntryBody::Resolved(resolved) => {
                resolved.call_id == said.call_id
                    && resolved.outcome == said.outcome
                    && resolved.by.id == said.by.id
                    && said.fence_epoch.is_none_or(|epoch| epoch == resolved.fence_epoch)
            }
            _ => false,
        });
        if same { Ok(Resolved { row, asked: None }) } else { Err(Rejection::StaleDoubt.into()) }
    }

    /// A run as it stands. A journal that does not decode is said, and the row is shown all the same.
    ///
    /// # Errors
    /// No such run, no answer, a row that does not decode.
    pub async fn details(&self, id: RunId) -> Result<Details, OrderError> {
        // The journal first: the row is then at least as new as what is shown of the journal.
        let (entries, unreadable) = match self.engine.journal(id, 0).await {
            Ok(entries) => (entries, None),
            Err(error @ ReadError::Corrupt { .. }) => (Vec::new(), Some(error.to_string())),
            Err(ReadError::Unavailable(unavailable)) => return Err(unavailable.into()),
        };
        let (row, unreadable) = match self.engine.store().load(id).await {
            Ok(row) => (row.ok_or(OrderError::NotFound)?, unreadable),
            Err(ReadError::Corrupt { rest: Some(rest), why, .. }) => (*rest, Some(format!("its row does not decode: {why}"))),
            Err(error) => return Err(error.into()),
        };
        let (entries, unreadable) = match (unreadable, self.engine.journal_of(&row, entries.len() as u64).await) {
            (None, Ok(late)) => (entries.into_iter().chain(late).take_while(|e| e.sequence < row.sequence).collect(), None),
            (None, Err(error @ ReadError::Corrupt { .. })) => (entries, Some(error.to_string())),
            (unreadable, _) => (entries, unreadable),
        };
        let story = Story::of(&entries);
        Ok(Details { row, entries, story, unreadable })
    }

    /// Entries of a run from number `from`.
    ///
    /// # Errors
    /// No answer, an entry that does not decode.
    pub async fn events(&self, id: RunId, from: u64) -> Result<Vec<Entry>, OrderError> {
        Ok(self.engine.journal(id, from).await?)
    }

    /// Waits until the run has an entry of number `from` or later, and gives what is there. A commit of this process wakes it at
    /// once; one of another process is seen by polling.
    ///
    /// # Errors
    /// No answer, an entry that does not decode.
    pub async fn wait_events(&self, id: RunId, from: u64) -> Result<Vec<Entry>, OrderError> {
        let mut hints = self.engine.subscribe();
        loop {
            let entries = self.engine.journal(id, from).await?;
            if !entries.is_empty() {
                return Ok(entries);
            }
            let hinted = async {
                loop {
                    match hints.recv().await {
                        Ok(hint) if hint.run == id => return,
                        Ok(_) => {}
                        // Lagged: look. Closed cannot be while the engine lives.
                        Err(_) => return,
                    }
                }
            };
            // No hint within the time is no error: polling always follows.
            tokio::time::timeout(Duration::from_millis(250), hinted).await.ok();
        }
    }

    /// Rows, newest first.
    ///
    /// # Errors
    /// No answer.
    pub async fn list(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Result<Vec<Listed>, OrderError> {
        Ok(self.engine.store().list(filter, before, limit.min(limits::PAGE_MAX)).await?)
    }

    /// What needs a person, most urgent first: doubts, then decisions, then the rest; the longest waiting first.
    ///
    /// # Errors
    /// No answer.
    pub async fn inbox(&self, limit: usize) -> Result<Vec<(InboxKind, Listed)>, OrderError> {
        let in_state = |state: State| Filter { states: vec![state], ..Filter::default() };
        let doubts = Filter { reason: Some(Reason::WriteInDoubt.as_str().to_owned()), ..in_state(State::Dead) };
        let flagged = || Filter { flagged_only: true, ..Filter::default() };
        let mut items = Vec::new();
        for (kind, filter) in [
            (InboxKind::InDoubt, doubts),
            (InboxKind::Approval, in_state(State::WaitingForApproval)),
            (InboxKind::Input, in_state(State::WaitingForInput)),
            (InboxKind::Duplicate, flagged()),
            (InboxKind::Contradicted, flagged()),
            (InboxKind::Dead, in_state(State::Dead)),
        ] {
            if items.len() >= limit {
                break;
            }
            // Pages come newest first and the longest waiting is wanted: all of a kind is looked at, so that no number of newer
            // ones hides an older one.
            let mut all = self.every(&filter).await?;
            all.retain(|row| match kind {
                InboxKind::Dead => row.reason.as_deref() != Some(Reason::WriteInDoubt.as_str()),
                InboxKind::Duplicate => row.duplicates > 0,
                InboxKind::Contradicted => row.contradictions > 0,
                _ => true,
            });
            all.sort_by_key(|row| row.since);
            items.extend(all.into_iter().map(|row| (kind, row)));
        }
        items.truncate(limit);
        Ok(items)
    }

    /// Every row that a filter lets through.
    async fn every(&self, filter: &Filter) -> Result<Vec<Listed>, OrderError> {
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let page = self.list(filter, all.last().map(|row| row.id), limits::PAGE_MAX).await?;
            let full = page.len() == limits::PAGE_MAX;
            all.extend(page);
            if !full {
                return Ok(all);
            }
        }
    }

    /// One bounded sweep.
    ///
    /// # Errors
    /// No answer.
    pub async fn sweep(&self, limit: usize, dry_run: bool) -> Result<Swept, Unavailable> {
        self.reaper.sweep(limit, dry_run).await
    }

    /// Why nobody goes on with a queued run; none where a live worker serves it, and where it is not queued.
    ///
    /// # Errors
    /// No answer.
    pub async fn unserved(&self, row: &Snapshot) -> Result<Option<Unserved>, Unavailable> {
        if row.state != State::Queued {
            return Ok(None);
        }
        let workers = self.engine.store().workers().await?;
        let mut tool = None;
        for worker in &workers {
            match lacking(row, worker) {
                None => return Ok(None),
                Some(lacks) if worker.agents.contains(&row.agent) => tool = Some(lacks),
                Some(_) => {}
            }
        }
        Ok(Some(match tool {
            _ if workers.is_empty() => Unserved::NoWorker,
            Some(tool) => Unserved::Tool(tool),
            None => Unserved::Agent(row.agent.clone()),
        }))
    }

    /// Finds a run by its id or the end of it.
    ///
    /// # Errors
    /// None, several, no answer.
    pub async fn find(&self, text: &str) -> Result<RunId, OrderError> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let plain: String = text.chars().filter(|c| *c != '-').collect();
        if plain.len() < 4 || !plain.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(OrderError::Invalid(format!("`{text}` is neither a run id nor the end of one (4 hex digits or more)")));
        }
        match self.engine.store().find(&plain.to_lowercase()).await?.as_slice() {
            [id] => Ok(*id),
            [] => Err(OrderError::NotFound),
            _ => Err(OrderError::Invalid(format!("several runs end in `{text}`; give more of the id"))),
        }
    }

    /// Tools of this process that write, for messages.
    pub fn write_tools(&self) -> BTreeSet<String> {
        self.registry.tools().filter(|t| matches!(t, Tool::Write(..))).map(|t| t.spec().name.clone()).collect()
    }
}

/// A decision per undecided call: the named ones, and the rest alike. Where none is undecided, the calls that were: so that
/// a repeat is recognised as one.
fn expand(row: &Snapshot, decision: &Decision) -> Vec<DecideCall> {
    let mut calls = decision.calls.clone();
    let Some(approved) = decision.rest else { return calls };
    let Some(turn) = &row.turn else { return calls };
    let undecided: Vec<&CallId> = turn.calls.iter().filter(|c| c.is_undecided()).map(|c| &c.id).collect();
    let meant: Vec<&CallId> = if undecided.is_empty() {
        turn.calls.iter().filter(|c| c.needs_person && c.verdict.is_some()).map(|c| &c.id).collect()
    } else {
        undecided
    };
    for id in meant {
        if !calls.iter().any(|c| &c.call_id == id) {
            calls.push(DecideCall { reason: decision.reason.clone(), approved, ..DecideCall::approve(id.clone()) });
        }
    }
    calls
}

fn noted(note: Option<String>, more: &str) -> String {
    note.map_or_else(|| more.to_owned(), |note| format!("{note} ({more})"))
}

fn check_request(request: &Request) -> Result<(), StartError> {
    let bytes: usize = request.messages.iter().map(|m| m.text.len()).sum();
    if bytes > limits::REQUEST_BYTES_MAX {
        return Err(StartError::Invalid(format!(
            "the request is {bytes} bytes long, and the limit is {}",
            limits::REQUEST_BYTES_MAX
        )));
    }
    if request.messages.last().is_none_or(|m| m.text.trim().is_empty()) {
        return Err(StartError::Invalid("the request is empty: say what the agent should do".into()));
    }
    if request.metadata.values().any(|value| nested_deeper(value, limits::NESTING_MAX)) {
        return Err(StartError::Invalid(format!("the metadata is nested deeper than {} levels", limits::NESTING_MAX)));
    }
    if request.max_rounds == Some(0) {
        return Err(StartError::Invalid("max_rounds must be at least 1".into()));
    }
    Ok(())
}
