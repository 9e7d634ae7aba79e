//! A run that is not persisted: it executes reads and answers, and refuses every write before it happens. It holds no lease,
//! so there is no way from here to a permit.

use super::{
    executor::calls::{ReadEnd, read},
    gate::Gate,
    model::{ModelError, ModelRequest, chain},
    registry::{AgentSpec, Registry},
    tool::{Asker, Tool},
    transcript,
};
use crate::run::{Entry, EntryBody, Mode, Outcome, Principal, Recovery, Request, RunId, Story, Via, WriteId, body};
use serde_json::Value;
use std::sync::Arc;

/// The refusal that a write gets here.
pub const WRITE_WITHOUT_DURABLE_EXECUTION: &str = "write_without_durable_execution";

/// A run without a record.
pub struct Unrecorded {
    registry: Arc<Registry>,
    agent: Arc<AgentSpec>,
    run: RunId,
    story: Story,
}

/// What it came to.
#[derive(Clone, Debug, PartialEq)]
pub struct UnrecordedEnd {
    /// The answer.
    pub output: String,
    /// The cap on rounds ended it.
    pub truncated: bool,
    /// Writes that were refused.
    pub refused_writes: u32,
    /// The journal it would have had, in memory.
    pub story: Story,
}

impl Unrecorded {
    /// A run of this agent on this request, kept nowhere.
    pub fn new(registry: Arc<Registry>, agent: Arc<AgentSpec>, request: Request) -> Self {
        let mut unrecorded = Self { registry, agent, run: RunId::new(), story: Story::default() };
        let born = body::Born {
            request,
            mode: Mode::Wait,
            recovery: Recovery::Abandon,
            agent_version: unrecorded.agent.version(),
            by: Principal::person("unrecorded"),
            lease_id: None,
        };
        unrecorded.fold(EntryBody::Started(born));
        unrecorded
    }

    fn fold(&mut self, body: EntryBody) {
        let entry = Entry {
            sequence: self.story.next,
            at: jiff::Timestamp::UNIX_EPOCH,
            epoch: 0,
            holder: None,
            write_id: WriteId::random(),
            mac: None,
            body,
        };
        self.story.fold(&entry);
    }

    fn fold_outcome(&mut self, call: &crate::run::ReplyCall, outcome: Outcome, result: Value, is_error: bool) {
        self.fold(EntryBody::ToolOutcome(super::executor::outcome(call, outcome, Via::Tool, result, is_error)));
    }

    /// Runs it to its answer.
    ///
    /// # Errors
    /// The model's error; there is nothing to resume.
    pub async fn run(mut self) -> Result<UnrecordedEnd, ModelError> {
        let mut refused_writes = 0;
        let registry = Arc::clone(&self.registry);
        let agent = Arc::clone(&self.agent);
        let request = self.story.request.clone().unwrap_or_default();
        let gate = Gate { registry: &registry, agent: &agent, narrow: request.tools.as_deref() };
        let cap = agent.max_rounds.min(request.max_rounds.unwrap_or(u32::MAX));
        loop {
            let rounds = u32::try_from(self.story.turns.len()).unwrap_or(u32::MAX);
            let closing = rounds >= cap;
            let tools = if closing { Vec::new() } else { gate.offered() };
            let tools_offered = !tools.is_empty();
            let request = ModelRequest {
                run: self.run,
                replies_so_far: rounds,
                errors_so_far: 0,
                system: agent.system.clone(),
                messages: transcript::messages(&self.story),
                tools,
                on_text: None,
            };
            let chain::Answer { reply, model } = chain::ask(&agent, &request).await?;
            let judged = gate.judge(&reply, rounds + 1, &self.story, tools_offered);
            self.fold(EntryBody::ModelReply(body::ModelReply {
                turn: rounds + 1,
                text: reply.text.clone(),
                calls: judged.iter().map(|g| g.call.clone()).collect(),
                model,
                stop: reply.stop.clone(),
                usage: reply.usage,
                opaque: reply.opaque.clone(),
            }));
            if judged.is_empty() || !tools_offered {
                return Ok(UnrecordedEnd { output: reply.text, truncated: closing, refused_writes, story: self.story });
            }
            for gated in judged {
                let call = gated.call;
                match (gated.refused, gate.tool(&call.tool)) {
                    (Some(why), _) => self.fold_outcome(&call, Outcome::Refused, Value::String(why), true),
                    (None, Some(Tool::Read(tool))) => {
                        let arguments = call.arguments.clone().unwrap_or_default();
                        match read(Arc::clone(tool), arguments, Asker::nobody()).await {
                            ReadEnd::Answered(answer) => {
                                self.fold_outcome(&call, Outcome::Done, answer.result, answer.is_error)
                            }
                            ReadEnd::Unknown(why) => self.fold_outcome(&call, Outcome::Unknown, Value::String(why), true),
                        }
                    }
                    (None, _) => {
                        refused_writes += 1;
                        let why = format!(
                            "{WRITE_WITHOUT_DURABLE_EXECUTION}: this run is not recorded, so no write can start; nothing was done"
                        );
                        self.fold_outcome(&call, Outcome::Refused, Value::String(why), true);
                    }
                }
            }
        }
    }
}
