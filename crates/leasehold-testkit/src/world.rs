//! A small world to run agents in: scripted models, tools that record how they were entered, a store of choice and clocks that a
//! test moves. "Once" is counted at the recorder, never in the store.

use async_trait::async_trait;
use leasehold::{
    Decided, Decision, Execution, Live, Runtime, RuntimeConfig, StartRun,
    agent::{
        model::{Message, Model, ModelError, ModelRequest, Reply, scripted::ScriptedModel},
        owner::Owners,
        registry::{AgentSpec, Registry},
        tool::{
            Approval, Arguments, Preview, Previewed, ReadAnswer, ReadTool, Tool, ToolSpec, Verified, Verify, VerifyQuery,
            WriteAnswer, WriteEffect, WritePermit, WriteTool,
        },
    },
    client::Executed,
    clock::ManualClock,
    run::{Backoff, Entry, OpenTurn, Policy, Principal, RunId, Snapshot, Story},
    seal::Keyring,
    store::{Store, memory::MemoryStore},
    worker::Probe,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One entry of a recorded tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Entered {
    /// The tool.
    pub tool: String,
    /// Its arguments.
    pub arguments: Arguments,
    /// The key it was sent with; empty for a read.
    pub key: String,
    /// The fencing token.
    pub epoch: u64,
    /// 1 for the first entry of a call.
    pub attempt: u32,
}

/// Everything that was entered, in order. The external counter of a test.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    log: Arc<Mutex<Vec<Entered>>>,
}

impl Recorder {
    /// What was entered so far.
    pub fn entries(&self) -> Vec<Entered> {
        lock(&self.log).clone()
    }
    /// How often a tool was entered.
    pub fn count(&self, tool: &str) -> usize {
        lock(&self.log).iter().filter(|e| e.tool == tool).count()
    }
    fn push(&self, entered: Entered) {
        lock(&self.log).push(entered);
    }
}

/// Runs inside a recorded write while it is entered.
#[async_trait]
pub trait Inside: Send + Sync {
    /// The tool is entered; what this returns is what it answers, `None`: the next prepared answer.
    async fn inside(&self, permit: &WritePermit, arguments: &Arguments) -> Option<WriteAnswer>;
}

/// A write that records its entries.
pub struct RecordedWrite {
    spec: ToolSpec,
    effect: WriteEffect,
    recorder: Recorder,
    answers: Mutex<VecDeque<WriteAnswer>>,
    inside: Option<Arc<dyn Inside>>,
    preview: Option<Mutex<VecDeque<Previewed>>>,
    verify: Option<Mutex<VecDeque<Verified>>>,
    absent_is_not_applied: bool,
}

/// A spec with a schema that takes `{"text": string}` and nothing else.
pub fn spec(name: &str) -> ToolSpec {
    ToolSpec {
        input: None,
        name: name.to_owned(),
        description: format!("test tool {name}"),
        parameters: serde_json::json!({
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": ["text"],
            "additionalProperties": false
        }),
        source: "rust".into(),
        endpoint: format!("test:{name}"),
        timeout: Duration::from_secs(30),
    }
}

impl RecordedWrite {
    /// A write that answers "ok".
    pub fn new(name: &str, effect: WriteEffect, recorder: &Recorder) -> Self {
        Self {
            spec: spec(name),
            effect,
            recorder: recorder.clone(),
            answers: Mutex::default(),
            inside: None,
            preview: None,
            verify: None,
            absent_is_not_applied: false,
        }
    }
    /// Answers in this order before it answers "ok".
    pub fn answers(mut self, answers: impl IntoIterator<Item = WriteAnswer>) -> Self {
        self.answers = Mutex::new(answers.into_iter().collect());
        self
    }
    /// Runs this while it is entered.
    pub fn inside(mut self, inside: Arc<dyn Inside>) -> Self {
        self.inside = Some(inside);
        self
    }
    /// Previews in this order; the last one stays.
    pub fn previews(mut self, previews: impl IntoIterator<Item = Previewed>) -> Self {
        self.preview = Some(Mutex::new(previews.into_iter().collect()));
        self
    }
    /// Verifies in this order, then unknown.
    pub fn verifies(mut self, verifies: impl IntoIterator<Item = Verified>, absent_is_not_applied: bool) -> Self {
        self.verify = Some(Mutex::new(verifies.into_iter().collect()));
        self.absent_is_not_applied = absent_is_not_applied;
        self
    }
    /// Changes the spec.
    pub fn spec(mut self, change: impl FnOnce(&mut ToolSpec)) -> Self {
        change(&mut self.spec);
        self
    }
    /// As a tool.
    pub fn tool(self, approval: Approval) -> Tool {
        Tool::Write(Arc::new(self), approval)
    }
}

#[async_trait]
impl WriteTool for RecordedWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    fn write_effect(&self) -> WriteEffect {
        self.effect
    }
    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        self.recorder.push(Entered {
            tool: self.spec.name.clone(),
            arguments: arguments.clone(),
            key: permit.idempotency_key().to_owned(),
            epoch: permit.fencing_token(),
            attempt: permit.attempt(),
        });
        if let Some(inside) = &self.inside
            && let Some(answer) = inside.inside(&permit, arguments).await
        {
            return answer;
        }
        lock(&self.answers).pop_front().unwrap_or_else(|| WriteAnswer::done("ok"))
    }
    fn preview(&self) -> Option<&dyn Preview> {
        self.preview.as_ref().map(|_| self as &dyn Preview)
    }
    fn verify(&self) -> Option<&dyn Verify> {
        self.verify.as_ref().map(|_| self as &dyn Verify)
    }
}

#[async_trait]
impl Preview for RecordedWrite {
    async fn preview(&self, _: &Arguments) -> Result<Previewed, String> {
        let Some(previews) = &self.preview else { return Err("none".into()) };
        let mut previews = lock(previews);
        let next = if previews.len() > 1 { previews.pop_front() } else { previews.front().cloned() };
        next.ok_or_else(|| "none".into())
    }
}

#[async_trait]
impl Verify for RecordedWrite {
    fn settle_after(&self) -> Duration {
        Duration::ZERO
    }
    fn absent_is_not_applied(&self) -> bool {
        self.absent_is_not_applied
    }
    async fn verify(&self, _: &VerifyQuery, _: &Arguments) -> Verified {
        let next = self.verify.as_ref().and_then(|v| lock(v).pop_front());
        next.unwrap_or_else(|| Verified::Unknown("no more answers".into()))
    }
}

/// A read that records its entries and answers its `text`.
pub struct RecordedRead {
    spec: ToolSpec,
    recorder: Recorder,
    answer: Option<ReadAnswer>,
}

impl RecordedRead {
    /// A read that answers what it was asked.
    pub fn new(name: &str, recorder: &Recorder) -> Self {
        Self { spec: spec(name), recorder: recorder.clone(), answer: None }
    }
    /// Answers this.
    pub fn answer(mut self, answer: ReadAnswer) -> Self {
        self.answer = Some(answer);
        self
    }
    /// As a tool.
    pub fn tool(self) -> Tool {
        Tool::Read(Arc::new(self))
    }
}

#[async_trait]
impl ReadTool for RecordedRead {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        self.recorder.push(Entered {
            tool: self.spec.name.clone(),
            arguments: arguments.clone(),
            key: String::new(),
            epoch: 0,
            attempt: 1,
        });
        let echo = || ReadAnswer::ok(arguments.get("text").cloned().unwrap_or_default());
        self.answer.clone().unwrap_or_else(echo)
    }
}

/// A scripted model that keeps what it was asked.
pub struct SpiedModel {
    script: ScriptedModel,
    requests: Mutex<Vec<ModelRequest>>,
}

impl SpiedModel {
    /// On a script in TOML.
    ///
    /// # Panics
    /// The script does not parse: a defect of the test.
    pub fn new(script: &str) -> Arc<Self> {
        let script = match ScriptedModel::from_toml("scripted", script) {
            Ok(script) => script,
            Err(error) => panic!("the test's script does not parse: {error}"),
        };
        Arc::new(Self { script, requests: Mutex::default() })
    }
    /// What it was asked so far.
    pub fn requests(&self) -> Vec<ModelRequest> {
        lock(&self.requests).clone()
    }
}

#[async_trait]
impl Model for SpiedModel {
    fn name(&self) -> &str {
        self.script.name()
    }
    async fn reply(&self, request: ModelRequest) -> Result<Reply, ModelError> {
        lock(&self.requests).push(request.clone());
        self.script.reply(request).await
    }
}

/// A process of the world: a runtime on a store.
pub struct World {
    /// The process.
    pub runtime: Runtime,
    /// The store they share.
    pub store: Arc<dyn Store>,
    /// The clocks.
    pub clock: Arc<ManualClock>,
    /// The model.
    pub model: Arc<SpiedModel>,
}

/// What a world is made of.
pub struct WorldBuilder {
    script: String,
    tools: Vec<Tool>,
    store: Option<Arc<dyn Store>>,
    clock: Arc<ManualClock>,
    process: String,
    ttl: Duration,
    policy: Policy,
    probe: Option<Arc<dyn Probe>>,
    keyring: Option<Arc<Keyring>>,
    owners: Option<Arc<dyn Owners>>,
    live: Option<tokio::sync::mpsc::UnboundedSender<Live>>,
    agent: Box<dyn FnOnce(AgentSpec) -> AgentSpec + Send>,
}

impl World {
    /// A world with agent `a`, its script, and the store in memory.
    pub fn builder(script: &str) -> WorldBuilder {
        WorldBuilder {
            script: script.to_owned(),
            tools: Vec::new(),
            store: None,
            clock: ManualClock::new(),
            process: "test:1".into(),
            ttl: Duration::from_secs(60),
            policy: Policy {
                max_requeues: 3,
                backoff: Backoff { initial: Duration::from_secs(5), factor: 2.0, max: Duration::from_secs(600), jitter: false },
            },
            probe: None,
            keyring: None,
            owners: None,
            live: None,
            agent: Box::new(|agent| agent),
        }
    }

    /// The row as the store has it.
    ///
    /// # Panics
    /// It is not there: a defect of the test.
    pub async fn row(&self, id: RunId) -> Snapshot {
        match self.store.load(id).await {
            Ok(Some(row)) => row,
            other => panic!("run {id} is not there: {other:?}"),
        }
    }

    /// The whole journal.
    ///
    /// # Panics
    /// It does not decode.
    pub async fn entries(&self, id: RunId) -> Vec<Entry> {
        match self.runtime.events(id, 0).await {
            Ok(entries) => entries,
            Err(error) => panic!("the journal of {id} cannot be read: {error}"),
        }
    }

    /// The kinds of its entries, in order.
    ///
    /// # Panics
    /// It does not decode.
    pub async fn kinds(&self, id: RunId) -> Vec<&'static str> {
        self.entries(id).await.iter().map(|e| e.body.kind()).collect()
    }

    /// The journal, folded.
    ///
    /// # Panics
    /// It does not decode.
    pub async fn story(&self, id: RunId) -> Story {
        Story::of(&self.entries(id).await)
    }

    /// What the waiting turn is named by.
    ///
    /// # Panics
    /// It does not wait.
    pub async fn digest(&self, id: RunId) -> String {
        match self.row(id).await {
            Snapshot { state, turn: Some(OpenTurn { digest: Some(digest), .. }), .. } if state.is_waiting() => digest,
            row => panic!("run {id} does not wait, it is {}", row.state),
        }
    }

    /// A decision about all that waits, by the person of these tests, executed by the decider.
    pub fn decision(digest: String, approved: bool) -> Decision {
        Decision { digest, rest: Some(approved), reason: None, calls: vec![], by: Self::person(), execute: true }
    }

    /// Approves all that waits and executes the run to the end of that segment.
    ///
    /// # Panics
    /// The decision is refused, or this process does not go on with the run.
    pub async fn approve(&self, id: RunId) -> Executed {
        let decision = Self::decision(self.digest(id).await, true);
        match self.runtime.decide(id, decision).await {
            Ok(Decided { execution: Some(execution), .. }) => execution.finish().await,
            Ok(decided) => panic!("run {id} is not executed here: {:?}", decided.queued_because),
            Err(error) => panic!("the decision about {id} is refused: {error}"),
        }
    }

    /// Claims a queued run and executes it to the end of that segment.
    ///
    /// # Panics
    /// It cannot be claimed.
    pub async fn claim(&self, id: RunId) -> Executed {
        match self.runtime.claim(id).await {
            Ok(execution) => execution.finish().await,
            Err(error) => panic!("run {id} is not claimed: {error}"),
        }
    }

    /// Lets every lease of this world run out, sweeps, and waits out the backoff of what is queued.
    ///
    /// # Panics
    /// The store does not answer.
    pub async fn lapse(&self) {
        self.clock.advance(Duration::from_secs(61));
        if let Err(error) = self.runtime.sweep(100, false).await {
            panic!("the sweep reached no store: {error}");
        }
        self.clock.advance(Duration::from_secs(700));
    }

    /// The results in the newest request to the model, in order: call, text.
    pub fn results(&self) -> Vec<(String, String)> {
        let newest = self.model.requests().pop();
        let messages = newest.map(|request| request.messages).unwrap_or_default();
        let result = |message| match message {
            Message::ToolResult { call_id, text, .. } => Some((call_id.to_string(), text)),
            _ => None,
        };
        messages.into_iter().filter_map(result).collect()
    }

    /// The person in these tests.
    pub fn person() -> Principal {
        Principal::person("local:ada")
    }

    /// Starts a run of agent `a` and executes its first segment to its end.
    ///
    /// # Panics
    /// The start is refused: a defect of the test.
    pub async fn run(&self, task: &str) -> RunId {
        let execution = self.start(task).await;
        let id = execution.run();
        // How the segment ended is in the record, which is what tests look at.
        execution.finish().await.ok();
        id
    }

    /// Starts a run of agent `a`.
    ///
    /// # Panics
    /// The start is refused: a defect of the test.
    pub async fn start(&self, task: &str) -> Execution {
        match self.runtime.start(StartRun::new("a", task, Self::person())).await {
            Ok(execution) => execution,
            Err(error) => panic!("the run was not started: {error}"),
        }
    }
}

impl WorldBuilder {
    /// With a tool.
    pub fn tool(mut self, tool: Tool) -> Self {
        self.tools.push(tool);
        self
    }
    /// On this store and these clocks, which another process of the world uses too.
    pub fn on(mut self, store: &Arc<dyn Store>, clock: &Arc<ManualClock>) -> Self {
        self.store = Some(Arc::clone(store));
        self.clock = Arc::clone(clock);
        self
    }
    /// As this process.
    pub fn process(mut self, name: &str) -> Self {
        self.process = name.to_owned();
        self
    }
    /// With this ttl.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }
    /// With these rules.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }
    /// With sealed payloads.
    pub fn keyring(mut self, keyring: &Arc<Keyring>) -> Self {
        self.keyring = Some(Arc::clone(keyring));
        self
    }
    /// With accounts.
    pub fn owners(mut self, owners: Arc<dyn Owners>) -> Self {
        self.owners = Some(owners);
        self
    }
    /// Watched.
    pub fn live(mut self, watcher: tokio::sync::mpsc::UnboundedSender<Live>) -> Self {
        self.live = Some(watcher);
        self
    }
    /// With a probe.
    pub fn probe(mut self, probe: Arc<dyn Probe>) -> Self {
        self.probe = Some(probe);
        self
    }
    /// With another agent.
    pub fn agent(mut self, change: impl FnOnce(AgentSpec) -> AgentSpec + Send + 'static) -> Self {
        self.agent = Box::new(change);
        self
    }
    /// The world.
    ///
    /// # Panics
    /// Agent and tools do not fit together: a defect of the test.
    pub fn build(self) -> World {
        let model = SpiedModel::new(&self.script);
        let mut registry = Registry::new();
        let names: Vec<String> = self.tools.iter().map(|t| t.spec().name.clone()).collect();
        for tool in self.tools {
            if let Err(error) = registry.add_tool(tool) {
                panic!("the test's tools do not fit: {error}");
            }
        }
        let agent = AgentSpec::new("a", Arc::clone(&model) as Arc<dyn Model>).system("You are a test.").tools(names);
        if let Err(error) = registry.add_agent((self.agent)(agent)) {
            panic!("the test's agent does not fit: {error}");
        }
        let store = self.store.unwrap_or_else(|| MemoryStore::new(Arc::clone(&self.clock) as _));
        let runtime = Runtime::new(RuntimeConfig {
            authority: None,
            keyring: self.keyring,
            owners: self.owners,
            store: Arc::clone(&store),
            registry: Arc::new(registry),
            clock: Arc::clone(&self.clock) as _,
            wall: Arc::clone(&self.clock) as _,
            ttl: self.ttl,
            policy: self.policy,
            process: self.process,
            probe: self.probe,
            live: self.live,
        });
        match runtime {
            Ok(runtime) => World { runtime, store, clock: self.clock, model },
            Err(error) => panic!("the test's runtime does not start: {error}"),
        }
    }
}
