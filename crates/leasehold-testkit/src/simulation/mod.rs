//! A simulation: the shipped runtime, several workers on one store, in virtual time, with everything that goes wrong drawn from a
//! seed: errors and lost answers of the store, processes that stand still past their lease, die, are cut off or have wrong wall clocks, requests that
//! arrive after their sender is gone, persons who cancel, decide and resolve. The same seed plays the same history.
//!
//! A process that stands still is held wherever it touches something outside of itself: its store, its tools, its model.

mod far;
mod people;
mod process;

use crate::invariants;
use far::{FarSide, SimModel, SimRead, SimWrite, tool_spec};
use leasehold::{
    Runtime, RuntimeConfig, StartRun,
    agent::{
        registry::{AgentSpec, Registry},
        tool::{Approval, Tool, WriteEffect},
    },
    run::{Backoff, CallId, Effect, Entry, EntryBody, Outcome, Policy, Principal, RunId, Snapshot, Via},
    store::{Store, memory::MemoryStore},
    worker::{Heartbeat, Ticker},
};
use process::{Gate, SimClock, SimStore};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};

/// Draws from the seed.
#[derive(Clone, Debug)]
pub(crate) struct Chance(Arc<Mutex<fastrand::Rng>>);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed))))
    }
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).u64(0..end.max(1))
    }
    pub(crate) fn of_thousand(&self, times: u64) -> bool {
        times > 0 && self.below(1_000) < times
    }
}

/// What a seed came to.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// Hash of all journals, to see that a seed plays the same twice.
    pub trace: u64,
    /// How often what happened.
    pub happened: BTreeMap<&'static str, u64>,
}

const TTL: Duration = Duration::from_secs(10);
const CHAOS: Duration = Duration::from_secs(90);
const END: Duration = Duration::from_secs(4_000);
const WORKERS: usize = 3;

/// The agents, and the calls of their turns.
fn plans() -> [(&'static str, Vec<Vec<&'static str>>); 4] {
    [
        ("plain", vec![vec!["notes.read", "ledger.append"], vec!["page.put"]]),
        ("asked", vec![vec!["ledger.sell", "notes.read", "page.put"], vec!["ledger.sell"]]),
        ("verified", vec![vec!["order.place"], vec!["ledger.append"]]),
        ("shown", vec![vec!["order.show", "order.place"]]),
    ]
}

struct Sim {
    base: Instant,
    store: Arc<dyn Store>,
    far: Arc<FarSide>,
    chance: Chance,
    calm: Arc<AtomicBool>,
}

struct SimProcess {
    runtime: Runtime,
    gate: Arc<Gate>,
    clock: Arc<SimClock>,
    cut_off: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl SimProcess {
    fn die(&mut self) {
        self.gate.die();
        for task in self.tasks.drain(..) {
            task.abort();
        }
    }
}

impl Sim {
    fn process(&self, name: &str, faults: u64) -> Result<SimProcess, String> {
        let gate = Gate::open();
        let clock = SimClock::new(self.base);
        let cut_off = Arc::new(AtomicBool::new(false));
        let store: Arc<dyn Store> = Arc::new(SimStore {
            inner: Arc::clone(&self.store),
            gate: Arc::clone(&gate),
            chance: self.chance.clone(),
            faults,
            cut_off: Arc::clone(&cut_off),
            calm: Arc::clone(&self.calm),
        });
        let (heartbeat, ticker): (_, Ticker) =
            Heartbeat::ticked(&store, Arc::clone(&clock) as _, TTL).map_err(|e| e.to_string())?;
        let config = RuntimeConfig {
            authority: None,
            keyring: None,
            owners: None,
            store,
            registry: Arc::new(self.registry(&gate)?),
            clock: Arc::clone(&clock) as _,
            wall: Arc::clone(&clock) as _,
            ttl: TTL,
            policy: Policy {
                max_requeues: 3,
                backoff: Backoff { initial: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(8), jitter: true },
            },
            process: name.to_owned(),
            probe: None,
            live: None,
        };
        let runtime = Runtime::with_heartbeat(config, heartbeat);
        Ok(SimProcess { runtime, gate, clock, cut_off, tasks: vec![tokio::spawn(ticker.run())] })
    }

    fn registry(&self, gate: &Arc<Gate>) -> Result<Registry, String> {
        let mut registry = Registry::new();
        let write = |name, effect, verify, approval| {
            let (far, gate, chance) = (Arc::clone(&self.far), Arc::clone(gate), self.chance.clone());
            Tool::Write(Arc::new(SimWrite { spec: tool_spec(name), effect, verify, far, gate, chance }), approval)
        };
        let (once, again) = (WriteEffect::NonIdempotent, WriteEffect::Idempotent);
        let read = SimRead { spec: tool_spec("notes.read"), gate: Arc::clone(gate), chance: self.chance.clone() };
        for tool in [
            Tool::Read(Arc::new(read)),
            write("ledger.append", once, None, Approval::None),
            write("ledger.sell", once, None, Approval::Required),
            write("page.put", again, None, Approval::None),
            write("order.place", once, Some(true), Approval::None),
            write("order.show", once, Some(false), Approval::None),
        ] {
            registry.add_tool(tool).map_err(|e| e.to_string())?;
        }
        for (name, turns) in plans() {
            let far = Arc::clone(&self.far);
            let model =
                SimModel { turns, far, gate: Arc::clone(gate), chance: self.chance.clone(), calm: Arc::clone(&self.calm) };
            let mut agent = AgentSpec::new(name, Arc::new(model)).tools(["*"]);
            agent.decision_deadline = (name == "asked").then_some(Duration::from_secs(60));
            registry.add_agent(agent).map_err(|e| e.to_string())?;
        }
        Ok(registry)
    }

    fn worker(&self, name: &str) -> Result<SimProcess, String> {
        let mut process = self.process(name, self.chance.below(60))?;
        let runtime = process.runtime.clone();
        process.tasks.push(tokio::spawn(async move {
            let config = leasehold::worker::pool::PoolConfig {
                concurrency: 2,
                sweep_interval: Duration::from_secs(3),
                poll_interval: Duration::from_millis(500),
                grace: Duration::from_secs(5),
                drain: false,
                only: None,
            };
            runtime.work(config).await;
        }));
        Ok(process)
    }

    /// One thing that goes wrong with one of the workers, or none.
    fn disturb(&self, workers: &mut [SimProcess], played: &mut Played, born: &mut usize) -> Result<(), String> {
        let mut note = |what| *played.happened.entry(what).or_default() += 1;
        let index = usize::try_from(self.chance.below(workers.len() as u64)).unwrap_or(0);
        let worker = &mut workers[index];
        match self.chance.below(24) {
            0 | 1 => {
                note("a process dies");
                worker.die();
                *born += 1;
                workers[index] = self.worker(&format!("worker-{born}:1"))?;
            }
            2 | 3 => {
                note("a process stands still");
                worker.gate.stand_still();
                let gate = Arc::clone(&worker.gate);
                let pause = Duration::from_millis(self.chance.below(30_000));
                worker.tasks.push(tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    gate.go_on();
                }));
            }
            4 | 5 => {
                note("a process is cut off from its store");
                let cut_off = Arc::clone(&worker.cut_off);
                cut_off.store(true, Ordering::SeqCst);
                let pause = Duration::from_millis(self.chance.below(20_000));
                worker.tasks.push(tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    cut_off.store(false, Ordering::SeqCst);
                }));
            }
            6 => {
                note("a wall clock jumps");
                worker.clock.step_wall(i64::try_from(self.chance.below(120_000)).unwrap_or(0) - 60_000);
            }
            7 => {
                note("a process shuts down");
                worker.runtime.stop();
                *born += 1;
                let new = self.worker(&format!("worker-{born}:1"))?;
                let old = std::mem::replace(&mut workers[index], new);
                // It drains by itself; its tasks live on.
                drop(old);
            }
            _ => {}
        }
        Ok(())
    }

    async fn play(&self, played: &mut Played) -> Result<(), String> {
        let mut runs: Vec<RunId> = Vec::new();
        let clean = self.process("caller:1", 0)?;
        for (agent, _) in plans() {
            for _ in 0..2 {
                let start = StartRun::new(agent, "go", Principal::person("ada"));
                runs.push(clean.runtime.enqueue(start, None).await.map_err(|e| e.to_string())?);
            }
        }
        let mut workers = Vec::new();
        for index in 0..WORKERS {
            workers.push(self.worker(&format!("worker-{index}:1"))?);
        }
        let mut born = WORKERS;
        let mut people = people::People::new(self.process("person:1", self.chance.below(30))?, runs.clone());
        while self.base.elapsed() < CHAOS {
            tokio::time::sleep(Duration::from_millis(500 + self.chance.below(1_500))).await;
            self.disturb(&mut workers, played, &mut born)?;
            people.act(self, played).await;
        }
        self.calm.store(true, Ordering::SeqCst);
        for worker in &workers {
            worker.gate.go_on();
            worker.clock.step_wall(0);
        }
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let mut left = Vec::new();
            for id in &runs {
                let row = self.store.load(*id).await.ok().flatten().ok_or("a run is lost")?;
                if !row.state.is_settled() {
                    left.push(format!("{id} {} {:?}", row.state, row.reason));
                }
            }
            if left.is_empty() {
                break;
            }
            if self.base.elapsed() > END {
                return Err(format!("6: no end: {left:?}"));
            }
            people.act(self, played).await;
        }
        // What was under way arrives, and whoever has something to say says it.
        tokio::time::sleep(Duration::from_secs(40)).await;
        let mut hasher = DefaultHasher::new();
        for id in runs {
            let row = self.store.load(id).await.ok().flatten().ok_or("a run is lost")?;
            let mut entries = Vec::new();
            loop {
                let page = self.store.journal(id, entries.len() as u64, 1_000).await.map_err(|e| e.to_string())?;
                if page.is_empty() {
                    break;
                }
                entries.extend(page);
            }
            let kinds: Vec<&str> = entries.iter().map(|e| e.body.kind()).collect();
            (&kinds, row.epoch).hash(&mut hasher);
            self.judge(&row, &entries, played).map_err(|why| format!("{why}\n{}: {}", row.agent, kinds.join(" ")))?;
        }
        played.trace = hasher.finish();
        self.far.broken().map_or(Ok(()), Err)
    }

    /// The record against what really happened.
    fn judge(&self, row: &Snapshot, entries: &[Entry], played: &mut Played) -> Result<(), String> {
        invariants::journal(row, entries)?;
        *played.happened.entry(row.state.as_str()).or_default() += 1;
        let mut effects: BTreeMap<CallId, Effect> = BTreeMap::new();
        let mut outcomes: BTreeMap<CallId, (Outcome, Via)> = BTreeMap::new();
        for entry in entries {
            match &entry.body {
                EntryBody::ModelReply(reply) => effects.extend(reply.calls.iter().map(|c| (c.id.clone(), c.effect))),
                EntryBody::ToolOutcome(said) => drop(outcomes.insert(said.call_id.clone(), (said.outcome, said.via))),
                _ => {}
            }
            *played.happened.entry(entry.body.kind()).or_default() += 1;
        }
        for (id, effect) in effects.iter().filter(|(_, effect)| effect.is_write()) {
            let key = row.id.idempotency_key(id);
            let met = self.far.met(&key);
            let first = met.landed.first();
            // The documented exception, exactly: somebody said that it was not there before it had landed.
            let excepted = first.is_some_and(|first| met.said_absent.iter().any(|said| said < first));
            if *effect == Effect::NonIdempotentWrite && met.landed.len() > 1 {
                if !excepted {
                    return Err(format!("2: {id} landed {} times, and nobody had said that it was absent", met.landed.len()));
                }
                *played.happened.entry("landed twice: the documented exception").or_default() += 1;
            }
            match outcomes.get(id) {
                Some((outcome @ (Outcome::NotApplied | Outcome::Denied | Outcome::NotRun | Outcome::Refused), _))
                    if first.is_some() && !excepted =>
                {
                    return Err(format!("8: {id} is {outcome}, and it landed"));
                }
                Some((Outcome::Done, via)) if *via != Via::Resolution && first.is_none() => {
                    return Err(format!("8: {id} is done, and nothing landed"));
                }
                None if first.is_some() && row.state == leasehold::run::State::Completed => {
                    return Err(format!("9: {id} landed, and is forgotten"));
                }
                _ => {}
            }
            let paused = met.entered_after_a_pause as u64;
            *played.happened.entry("entered after a pause").or_default() += paused;
            *played.happened.entry("entered").or_default() += met.entered as u64;
        }
        Ok(())
    }
}

/// Plays one seed.
///
/// # Errors
/// The invariant that does not hold.
pub fn play(seed: u64) -> Result<Played, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|e| format!("no runtime: {e}"))?;
    // What the runtime itself draws: jitter.
    fastrand::seed(seed);
    let mut played = Played::default();
    let result = runtime.block_on(async {
        let base = Instant::now();
        let store: Arc<dyn Store> = MemoryStore::new(SimClock::new(base));
        let calm = Arc::new(AtomicBool::new(false));
        let far = FarSide::new(Arc::clone(&store), Arc::clone(&calm));
        let sim = Sim { base, store, far, chance: Chance::new(seed), calm };
        sim.play(&mut played).await
    });
    result.map(|()| played).map_err(|why| format!("seed {seed}: {why}"))
}
