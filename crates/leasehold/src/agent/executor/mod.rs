//! The loop: from where the journal stands to a settled state, a wait, or the loss of the right. Every step is durable before
//! the next begins.

pub(crate) mod calls;
mod card;
mod desk;
mod transactional;
pub(crate) mod write;

pub(crate) use card::previewed;

use super::{
    arguments::nested_deeper,
    gate::Gate,
    model::{ModelError, ModelErrorClass, ModelRequest, OfferedTool, Piece, chain},
    owner::Owners,
    registry::{AgentSpec, Authority, InForce},
    tool::Progress,
    transcript,
};
use crate::{
    limits,
    run::{
        Act, CallId, MODEL_CALL_FAILED, Outcome, Reason, Recorded, Rejection, ReplyCall, RunId, SegmentKind, StampCall, Story,
        Usage, Via, body,
    },
    worker::{Point, Probe, Segment, SegmentError},
};
use backon::{ExponentialBuilder, Retryable};
use serde_json::Value;
use std::{sync::Arc, time::Duration};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;

/// What whoever watches a run in this process sees beside the journal. A hint: nothing is lost where nobody listens.
#[derive(Clone, Debug)]
pub enum Live {
    /// A model is asked.
    Model(RunId),
    /// A piece of text that is not part of a reply until the reply is whole.
    Text(RunId, String),
    /// The text before this is no part of the reply, which is asked for again: why, and of whom.
    Discarded(RunId, String),
    /// A tool is entered.
    Tool(RunId, CallId, String),
    /// How far a running call is, as its tool says.
    Progress(RunId, CallId, Progress),
    /// A line of the log of a running call, with its level, as its tool says.
    Log(RunId, CallId, String, String),
}

/// What an executor needs beside the segment.
#[derive(Clone)]
pub(crate) struct Executor {
    pub(crate) registry: InForce,
    /// None: the registry stays as it is.
    pub(crate) authority: Option<Arc<dyn Authority>>,
    pub(crate) probe: Option<Arc<dyn Probe>>,
    pub(crate) live: Option<UnboundedSender<Live>>,
    /// None: every owner may.
    pub(crate) owners: Option<Arc<dyn Owners>>,
    /// Set when the process shuts down: the segment yields at its next step.
    pub(crate) stop: CancellationToken,
    /// Set when its time to finish is over: what may be handed back is, also from the middle of a read or an idempotent write.
    pub(crate) leave: CancellationToken,
}

/// Steps that the core may refuse one after the other because the run moved under them; more is a defect.
const REFUSED_IN_A_ROW_MAX: u32 = 8;

/// How the model step ended.
enum Asked {
    Reply(chain::Answer),
    Failed(ModelError),
    /// No model had a place, and nothing was sent.
    Busy,
    Cancelled,
    Lost,
    Stopping,
}

/// What a segment's wait was interrupted by.
pub(super) enum Interrupt {
    Cancel,
    Lost,
}

impl Executor {
    pub(super) async fn at(&self, point: Point, segment: &Segment, call: Option<&CallId>) {
        self.at_run(point, segment.run(), call).await;
    }

    async fn at_run(&self, point: Point, run: RunId, call: Option<&CallId>) {
        if let Some(probe) = &self.probe {
            probe.at(point, run, call).await;
        }
    }

    fn tell(&self, live: Live) {
        if let Some(sender) = &self.live {
            // Nobody listens any more: that is theirs to decide.
            sender.send(live).ok();
        }
    }

    /// Executes the run until its right ends: it settled, waits, was queued again, is dead - or the right was lost.
    ///
    /// # Errors
    /// Lost, or a defect. What is journaled is true in every case.
    pub(crate) async fn drive(&self, segment: &mut Segment) -> Result<(), SegmentError> {
        let mut refused_in_a_row = 0;
        let mut not_entered_in_a_row = 0;
        loop {
            let before = segment.row().sequence;
            let step = self.step(segment).await;
            if !matches!(step, Err(SegmentError::Rejected(_))) {
                refused_in_a_row = 0;
            }
            if !matches!(step, Err(SegmentError::NotEntered(_))) {
                not_entered_in_a_row = 0;
            }
            match step {
                Ok(()) if !segment.is_open() => return Ok(()),
                // A person or the clock was faster: what is there now decides the next step.
                Ok(()) => {}
                Err(SegmentError::NotEntered(why)) => {
                    not_entered_in_a_row += 1;
                    if not_entered_in_a_row >= limits::NOT_STARTED_IN_A_ROW_MAX && !segment.is_cancelled() {
                        self.give_back(segment, why).await?;
                        if !segment.is_open() {
                            return Ok(());
                        }
                    }
                }
                Err(SegmentError::Rejected(Rejection::EvidenceSaysDone(id))) => {
                    segment.record(vec![Recorded::Evidence(id)]).await?;
                }
                Err(SegmentError::Rejected(rejection)) => {
                    refused_in_a_row += 1;
                    segment.refresh().await?;
                    if !segment.is_open() {
                        return Ok(());
                    }
                    let moved = segment.row().sequence != before || segment.is_cancelled();
                    if !moved || refused_in_a_row > REFUSED_IN_A_ROW_MAX {
                        // Nothing moved, and the core refuses: the same step would be refused again.
                        return Err(SegmentError::Rejected(rejection));
                    }
                }
                Err(SegmentError::Unreadable(why)) => {
                    segment.commit(vec![Act::Unreadable { why }]).await?;
                    return Ok(());
                }
                // The write that exceeds a budget asks a person itself.
                Err(end @ (SegmentError::Lost(_) | SegmentError::OverBudget(_))) => return Err(end),
            }
        }
    }

    /// A write that does not come to be entered here costs the run a retry. One that may have been entered before, and was found
    /// absent since, is a doubt: nobody requeues past it.
    async fn give_back(&self, segment: &mut Segment, why: String) -> Result<(), SegmentError> {
        let act = if segment.row().has_non_idempotent_fence() {
            Act::Doubt { why: format!("it could not be made again: {why}") }
        } else {
            Act::Retry { why: format!("a write could not be started: {why}"), not_before: None }
        };
        match segment.commit(vec![act]).await {
            // A cancel or a late answer was faster: the next step looks at it.
            Err(SegmentError::Rejected(_)) => segment.refresh().await,
            other => other,
        }
    }

    /// Takes over what is in force now.
    async fn refresh(&self) -> Result<(), String> {
        let Some(authority) = &self.authority else { return Ok(()) };
        let registry = authority.in_force().await.map_err(|why| format!("which tools are in force is not known: {why}"))?;
        self.registry.replace(registry);
        Ok(())
    }

    async fn step(&self, segment: &mut Segment) -> Result<(), SegmentError> {
        if segment.is_lost() {
            return Err(SegmentError::Lost("no renewal was confirmed by the lease's deadline".into()));
        }
        if segment.is_cancelled() && !segment.row().cancel_requested {
            segment.refresh().await?;
        }
        if segment.row().fence.is_some() {
            return self.settle_fence(segment).await;
        }
        if segment.row().cancel_requested {
            return segment.commit(vec![Act::Settle]).await;
        }
        if self.stop.is_cancelled() {
            return segment.commit(vec![Act::Yield]).await;
        }
        if let Err(why) = self.refresh().await {
            return segment.commit(vec![Act::Retry { why, not_before: None }]).await;
        }
        let registry = self.registry.now();
        let Some(agent) = registry.agent(&segment.row().agent).cloned() else {
            let why = format!("this process has no agent `{}` any more", segment.row().agent);
            return segment.commit(vec![Act::Retry { why, not_before: None }]).await;
        };
        if segment.row().has_pending_calls() {
            return self.calls(segment, &agent).await;
        }
        // A reply that asks for nothing is the answer.
        if let Some(text) = last_answer(segment.story()) {
            let truncated = segment.row().rounds > max_rounds(&agent, segment.story());
            return segment.commit(vec![Act::Complete { output: text, truncated }]).await;
        }
        self.ask(segment, &agent).await
    }

    /// Tools of the agent that nobody had looked for were, or that was interrupted.
    async fn looked_for(&self, segment: &Segment, agent: &AgentSpec) -> bool {
        let Some(authority) = &self.authority else { return false };
        tokio::select! {
            looked = authority.look_for(&agent.tools) => looked,
            _ = interrupt(segment) => true,
            () = self.stop.cancelled() => true,
        }
    }

    /// One model reply, and what follows from it at once, as one durable step.
    async fn ask(&self, segment: &mut Segment, agent: &Arc<AgentSpec>) -> Result<(), SegmentError> {
        if let Some(detail) = spent(agent, segment.row().usage) {
            return segment.commit(vec![Act::Fail { reason: Reason::Budget, detail }]).await;
        }
        if self.looked_for(segment, agent).await {
            // The next step takes over what was found, or looks at what came between.
            return segment.refresh().await;
        }
        let closing = segment.row().rounds >= max_rounds(agent, segment.story());
        let narrow = segment.story().request.as_ref().and_then(|r| r.tools.clone());
        let registry = self.registry.now();
        let gate = Gate { registry: &registry, agent, narrow: narrow.as_deref() };
        let tools = if closing { Vec::new() } else { gate.offered() };
        let tools_offered = !tools.is_empty();
        self.at(Point::BeforeModel, segment, None).await;
        let chain::Answer { reply, model } = match self.model(segment, agent, tools, closing).await {
            Asked::Reply(answer) => answer,
            // Waited for anew, under the lease, if the run is still to go on.
            Asked::Busy => return Ok(()),
            Asked::Failed(error) => return self.model_failed(segment, &error).await,
            // The next step looks at what happened.
            Asked::Cancelled => return segment.refresh().await,
            Asked::Stopping => return Ok(()),
            Asked::Lost => return Err(SegmentError::Lost("the right moved on while the model answered".into())),
        };
        let turn = segment.row().rounds + 1;
        let judged = gate.judge(&reply, turn, segment.story(), tools_offered);
        let mut records = Vec::with_capacity(judged.len() + 1);
        records.push(Recorded::Reply {
            reply: body::ModelReply {
                turn,
                text: reply.text.clone(),
                calls: judged.iter().map(|g| g.call.clone()).collect(),
                model,
                stop: reply.stop,
                usage: reply.usage,
                opaque: reply.opaque.filter(|opaque| !nested_deeper(opaque, limits::NESTING_MAX)),
            },
            on_expiry: agent.on_expiry,
        });
        for gated in &judged {
            if let Some(why) = &gated.refused {
                records.push(Recorded::Outcome(outcome(
                    &gated.call,
                    Outcome::Refused,
                    Via::Gate,
                    Value::String(why.clone()),
                    true,
                )));
            }
        }
        let pending: Vec<&ReplyCall> = judged.iter().filter(|g| g.refused.is_none()).map(|g| &g.call).collect();
        let mut acts = vec![Act::Record(records)];
        // Of the closing reply, and where there is nothing to call, the text is the answer whatever else it asks for. That something is
        // withheld for now is for the model to hear.
        let is_withheld = reply.calls.iter().any(|asked| gate.denied(asked).is_some());
        if judged.is_empty() || closing || !tools_offered && !is_withheld {
            acts.push(Act::Complete { output: reply.text, truncated: closing });
            return segment.commit(acts).await;
        }
        let asked: Vec<&ReplyCall> = pending.iter().copied().filter(|c| c.needs_person).collect();
        if !asked.is_empty() {
            let shown: Vec<card::Shown> =
                asked.into_iter().map(|call| card::Shown::first(call, segment.story(), &registry)).collect();
            let card = self.card(agent, turn, shown).await;
            acts.push(Act::Suspend { card, deadline: self.deadline(agent, segment) });
            return segment.commit(acts).await;
        }
        let asks = |call: &ReplyCall| registry.tool(&call.tool).is_some_and(|tool| tool.spec().input.is_some());
        if pending.iter().any(|call| asks(call)) {
            return segment.commit(acts).await;
        }
        // A write that may run at once is stamped in the same step as the reply that asks for it.
        if let Some(first) = pending.first().filter(|c| c.effect.is_write()) {
            let first = (*first).clone();
            return self.write(segment, agent, &first.id, Some((first.clone(), acts))).await;
        }
        segment.commit(acts).await
    }

    async fn model(&self, segment: &Segment, agent: &Arc<AgentSpec>, tools: Vec<OfferedTool>, closing: bool) -> Asked {
        let run = segment.run();
        self.tell(Live::Model(run));
        let mut system = agent.system.clone();
        if closing {
            system.push_str(
                "\n\nNo more tools can be called in this run. Give your closing answer now, and say what is left undone.",
            );
        }
        let story = segment.story();
        let (text, mut pieces) = tokio::sync::mpsc::unbounded_channel();
        let request = ModelRequest {
            run,
            replies_so_far: u32::try_from(story.turns.len()).unwrap_or(u32::MAX),
            errors_so_far: story.model_failures,
            system,
            messages: transcript::messages(story),
            tools,
            on_text: Some(text),
        };
        // Under `interactive` and `resume` somebody waits: a transient error is tried again in place, under the lease. A worker
        // gives the run back to the queue instead.
        let in_place = !segment.row().lease.as_ref().is_some_and(|l| l.holder.starts_with(SegmentKind::Worker.as_str()));
        let attempts = if in_place { limits::MODEL_ATTEMPTS_IN_PLACE } else { 1 };
        let policy = ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(500))
            .with_max_delay(Duration::from_secs(10))
            .with_max_times(attempts.saturating_sub(1))
            .with_jitter();
        let replying = (|| chain::ask(agent, &request))
            .retry(policy)
            .when(|error| error.class.is_transient())
            .adjust(|error, delay| {
                let asked = error.retry_after.unwrap_or_default();
                // A long Retry-After is not waited out under a lease.
                delay.filter(|_| asked <= Duration::from_secs(30)).map(|d| d.max(asked))
            })
            .notify(|error, _| {
                request.tell(Piece::Discarded(format!("{} failed ({}) and is asked again", agent.model.name(), error.class)));
            });
        let told = |piece| match piece {
            Piece::Text(text) => Live::Text(run, text),
            Piece::Discarded(why) => Live::Discarded(run, why),
        };
        let interrupted = interrupt(segment);
        let stopping = self.stop.cancelled();
        tokio::pin!(replying, interrupted, stopping);
        loop {
            tokio::select! {
                biased;
                interrupt = &mut interrupted => return match interrupt {
                    Interrupt::Cancel => Asked::Cancelled,
                    Interrupt::Lost => Asked::Lost,
                },
                () = &mut stopping => return Asked::Stopping,
                Some(piece) = pieces.recv() => self.tell(told(piece)),
                reply = &mut replying => {
                    // The last pieces may have come with it.
                    while let Ok(piece) = pieces.try_recv() {
                        self.tell(told(piece));
                    }
                    return match reply {
                        Ok(answer) => Asked::Reply(answer),
                        Err(error) if error.class == ModelErrorClass::Busy => Asked::Busy,
                        Err(error) => Asked::Failed(error),
                    };
                }
            }
        }
    }

    async fn model_failed(&self, segment: &mut Segment, error: &ModelError) -> Result<(), SegmentError> {
        let detail = format!("{MODEL_CALL_FAILED}: {error}");
        let fail = |reason| Act::Fail { reason, detail: detail.clone() };
        let act = match error.class {
            ModelErrorClass::Auth => fail(Reason::ModelAuth),
            ModelErrorClass::Client => fail(Reason::ModelClient),
            ModelErrorClass::ContextOverflow => fail(Reason::ContextOverflow),
            ModelErrorClass::Refused => fail(Reason::Refused),
            ModelErrorClass::Connection
            | ModelErrorClass::RateLimited
            | ModelErrorClass::Server
            | ModelErrorClass::Truncated
            | ModelErrorClass::Busy => {
                let not_before = error.retry_after.and_then(|after| segment.now().checked_add(after).ok());
                Act::Retry { why: detail.clone(), not_before: not_before.map(crate::clock::to_millis) }
            }
        };
        segment.commit(vec![act]).await
    }

    fn deadline(&self, agent: &AgentSpec, segment: &Segment) -> Option<jiff::Timestamp> {
        let after = agent.decision_deadline?;
        segment.now().checked_add(after).ok().map(crate::clock::to_millis)
    }

    /// How a tool's write is stamped now.
    pub(super) fn stamp_of(&self, call_id: &CallId, tool: &super::tool::Tool) -> StampCall {
        let verify = match tool {
            super::tool::Tool::Write(write, _) => write.verify().map(|v| v.settle_after()),
            super::tool::Tool::Read(_) | super::tool::Tool::Transactional(..) => None,
        };
        StampCall {
            call_id: call_id.clone(),
            effect: tool.effect(),
            verifiable: verify.is_some(),
            in_flight_for: tool.spec().timeout.saturating_add(verify.unwrap_or_default()),
            endpoint: tool.spec().endpoint.clone(),
        }
    }
}

/// Ends when the segment's run is cancelled or its right is gone.
pub(super) fn interrupt(segment: &Segment) -> impl Future<Output = Interrupt> + use<> {
    let mut signal = segment.signal();
    async move {
        match signal.wait_for(|s| s.cancel || s.lost).await {
            Ok(found) if found.lost => Interrupt::Lost,
            Ok(_) => Interrupt::Cancel,
            // The heartbeat is gone with its process; nothing more will be heard.
            Err(_) => Interrupt::Lost,
        }
    }
}

pub(crate) fn outcome(call: &ReplyCall, outcome: Outcome, via: Via, result: Value, is_error: bool) -> body::ToolOutcome {
    body::ToolOutcome {
        call_id: call.id.clone(),
        tool: call.tool.clone(),
        outcome,
        is_error,
        result: stored(result),
        late: false,
        via,
        evidence: None,
    }
}

/// A result as it is stored: whole up to the limit; one that is nested too deep to be read back is kept as its text.
pub(crate) fn stored(result: Value) -> Value {
    match result {
        Value::String(text) => Value::String(super::gate::excerpt(&text, limits::RESULT_STORED_BYTES_MAX)),
        other => {
            let text = other.to_string();
            if text.len() <= limits::RESULT_STORED_BYTES_MAX && !nested_deeper(&other, limits::NESTING_MAX) {
                other
            } else {
                Value::String(super::gate::excerpt(&text, limits::RESULT_STORED_BYTES_MAX))
            }
        }
    }
}

/// What a run may use is used up.
fn spent(agent: &AgentSpec, usage: Usage) -> Option<String> {
    let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
    if let Some(max) = agent.max_tokens.filter(|max| tokens >= *max) {
        return Some(format!("it has used {tokens} tokens, and its agent may use {max} in a run"));
    }
    let cost = usage.cost_nano_usd;
    let max = agent.max_cost_nano_usd.filter(|max| cost >= *max)?;
    let dollars = |nano: u64| nano as f64 / 1e9;
    Some(format!("it has cost {} US dollars, and its agent may cost {} in a run", dollars(cost), dollars(max)))
}

fn max_rounds(agent: &AgentSpec, story: &Story) -> u32 {
    let asked = story.request.as_ref().and_then(|r| r.max_rounds).unwrap_or(u32::MAX);
    agent.max_rounds.min(asked)
}

fn last_answer(story: &Story) -> Option<String> {
    story.turns.last().filter(|turn| turn.calls.is_empty()).map(|turn| turn.text.clone())
}
