//! The far side, the tools that reach it, and the model that asks for them. What landed is known here and nowhere else.

use super::{Chance, process::Gate};
use crate::{invariants, world::spec};
use async_trait::async_trait;
use leasehold::{
    agent::{
        model::{Model, ModelError, ModelErrorClass, ModelRequest, Reply, RequestedCall},
        tool::{
            Arguments, Asker, InputRequired, ReadAnswer, ReadTool, ToolSpec, Verified, Verify, VerifyQuery, WriteAnswer,
            WriteEffect, WritePermit, WriteTool,
        },
    },
    run::{InputQuestion, Usage},
    store::Store,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};
use tokio::time::Instant;

/// What one key met.
#[derive(Clone, Debug, Default)]
pub(super) struct Met {
    pub(super) landed: Vec<Instant>,
    /// When a verify or a person said that it is not there.
    pub(super) said_absent: Vec<Instant>,
    pub(super) entered: usize,
    pub(super) entered_after_a_pause: usize,
}

#[derive(Default)]
struct Seen {
    met: BTreeMap<String, Met>,
    broken: Option<String>,
}

/// The recorder outside of the store.
pub(super) struct FarSide {
    seen: Mutex<Seen>,
    pub(super) store: Arc<dyn Store>,
    pub(super) calm: Arc<AtomicBool>,
}

impl FarSide {
    pub(super) fn new(store: Arc<dyn Store>, calm: Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Self { seen: Mutex::default(), store, calm })
    }
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
    pub(super) fn met(&self, key: &str) -> Met {
        self.seen().met.get(key).cloned().unwrap_or_default()
    }
    pub(super) fn broken(&self) -> Option<String> {
        self.seen().broken.clone()
    }
    /// A model was asked with what no provider takes.
    fn breaks(&self, why: String) {
        self.seen().broken.get_or_insert(why);
    }
    /// Somebody said that it is not there, having looked at that time.
    pub(super) fn said_absent(&self, key: &str, looked: Instant) {
        self.seen().met.entry(key.to_owned()).or_default().said_absent.push(looked);
    }
    fn lands(&self, key: &str) {
        self.seen().met.entry(key.to_owned()).or_default().landed.push(Instant::now());
    }
    /// 1: entered only under its own stamp, unless its process stood still between its last check and here.
    async fn entered(&self, permit: &WritePermit, paused: bool) {
        let row = self.store.load(permit.run()).await;
        let fence = row.ok().flatten().and_then(|row| row.fence);
        let own = fence.is_some_and(|f| f.call_id == *permit.call() && f.epoch == permit.fencing_token());
        let mut seen = self.seen();
        let met = seen.met.entry(permit.idempotency_key().to_owned()).or_default();
        met.entered += 1;
        met.entered_after_a_pause += usize::from(paused);
        if !own && !paused {
            let why = format!("1: {} was entered without its own stamp", permit.idempotency_key());
            seen.broken.get_or_insert(why);
        }
    }
}

pub(super) struct SimWrite {
    pub(super) spec: ToolSpec,
    pub(super) effect: WriteEffect,
    pub(super) verify: Option<bool>,
    pub(super) far: Arc<FarSide>,
    pub(super) gate: Arc<Gate>,
    pub(super) chance: Chance,
}

/// No request is on its way for longer than this.
const ON_ITS_WAY_MS: u64 = 8_000;

fn size() -> InputRequired {
    let schema = serde_json::json!({ "type": "object", "properties": { "size": { "type": "integer" } } });
    let question = InputQuestion { id: "size".into(), prompt: "Which size?".into(), schema };
    InputRequired { questions: vec![question], state: Some("state".into()) }
}

pub(super) fn tool_spec(name: &str) -> ToolSpec {
    ToolSpec { timeout: Duration::from_secs(10), ..spec(name) }
}

#[async_trait]
impl WriteTool for SimWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    fn write_effect(&self) -> WriteEffect {
        self.effect
    }
    async fn call(&self, permit: WritePermit, _: &Arguments) -> WriteAnswer {
        if !self.far.calm.load(Ordering::SeqCst) && self.chance.of_thousand(30) {
            // Between the last check and the entry, for longer than the lease may last.
            self.gate.stand_still();
            let (gate, pause) = (Arc::clone(&self.gate), Duration::from_millis(self.chance.below(40_000)));
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                gate.go_on();
            });
        }
        let paused = self.gate.pass().await;
        if permit.check().is_err() && self.chance.of_thousand(500) {
            return WriteAnswer::NotStarted { why: "the lease ran out".into() };
        }
        self.far.entered(&permit, paused).await;
        let calm = self.far.calm.load(Ordering::SeqCst);
        let fate = if calm { 1_000 } else { self.chance.below(1_000) };
        if fate < 60 {
            return WriteAnswer::NotApplied { why: "refused before a byte".into() };
        }
        // It does nothing before somebody has said something, and is not content with the first word now and then.
        if permit.asked().continued().is_none_or(|said| said.rounds < 3) && self.chance.of_thousand(60) && !calm {
            tokio::time::sleep(Duration::from_millis(self.chance.below(2_000))).await;
            self.gate.pass().await;
            return WriteAnswer::NeedsInput(size());
        }
        let on_its_way = Duration::from_millis(self.chance.below(if calm { 50 } else { ON_ITS_WAY_MS }));
        if fate < 120 {
            tokio::time::sleep(on_its_way).await;
            return WriteAnswer::Unknown { why: "cut, and never arrived".into() };
        }
        // A request that is on its way arrives whether its sender lives or not.
        let (far, key) = (Arc::clone(&self.far), permit.idempotency_key().to_owned());
        let arrived = tokio::spawn(async move {
            tokio::time::sleep(on_its_way).await;
            far.lands(&key);
        });
        if fate < 200 {
            return WriteAnswer::Unknown { why: "cut".into() };
        }
        arrived.await.ok();
        self.gate.pass().await;
        if fate < 260 {
            std::future::pending::<()>().await;
        }
        WriteAnswer::done("ok")
    }
    fn verify(&self) -> Option<&dyn Verify> {
        self.verify.map(|_| self as &dyn Verify)
    }
}

#[async_trait]
impl Verify for SimWrite {
    fn settle_after(&self) -> Duration {
        Duration::from_secs(5)
    }
    fn absent_is_not_applied(&self) -> bool {
        self.verify == Some(true)
    }
    async fn verify(&self, query: &VerifyQuery, _: &Arguments) -> Verified {
        self.gate.pass().await;
        if self.chance.of_thousand(150) && !self.far.calm.load(Ordering::SeqCst) {
            return Verified::Unknown("no usable answer".into());
        }
        if self.far.met(&query.idempotency_key).landed.is_empty() {
            self.far.said_absent(&query.idempotency_key, Instant::now());
            return Verified::Absent;
        }
        Verified::Landed("there".into())
    }
}

pub(super) struct SimRead {
    pub(super) spec: ToolSpec,
    pub(super) gate: Arc<Gate>,
    pub(super) chance: Chance,
}

#[async_trait]
impl ReadTool for SimRead {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        self.call_asking(arguments, Asker::nobody()).await
    }
    async fn call_asking(&self, _: &Arguments, asker: Asker) -> ReadAnswer {
        self.gate.pass().await;
        tokio::time::sleep(Duration::from_millis(self.chance.below(2_000))).await;
        if asker.can_wait() && asker.continued().is_none() && self.chance.of_thousand(60) {
            return ReadAnswer::needs(size());
        }
        ReadAnswer::ok("read")
    }
}

/// Asks for the calls of its plan, turn by turn, and then answers.
pub(super) struct SimModel {
    pub(super) turns: Vec<Vec<&'static str>>,
    pub(super) far: Arc<FarSide>,
    pub(super) gate: Arc<Gate>,
    pub(super) chance: Chance,
    pub(super) calm: Arc<AtomicBool>,
}

#[async_trait]
impl Model for SimModel {
    fn name(&self) -> &str {
        "simulated"
    }
    async fn reply(&self, request: ModelRequest) -> Result<Reply, ModelError> {
        if let Err(why) = invariants::transcript(&request.messages) {
            self.far.breaks(format!("a transcript: {why}"));
        }
        self.gate.pass().await;
        tokio::time::sleep(Duration::from_millis(self.chance.below(3_000))).await;
        self.gate.pass().await;
        if self.chance.of_thousand(80) && !self.calm.load(Ordering::SeqCst) {
            return Err(ModelError { class: ModelErrorClass::Server, detail: "503".into(), retry_after: None });
        }
        let turn = request.replies_so_far as usize;
        let tools: &[&str] = if request.tools.is_empty() { &[] } else { self.turns.get(turn).map_or(&[], Vec::as_slice) };
        let calls = tools.iter().enumerate().map(|(index, tool)| RequestedCall {
            tool: (*tool).to_owned(),
            raw_arguments: format!("{{\"text\":\"{turn}.{index}\"}}"),
        });
        Ok(Reply { text: "said".into(), calls: calls.collect(), usage: Usage::default(), stop: "stop".into(), opaque: None })
    }
}
