//! The calls of a turn: adjacent reads side by side; a write waits for everything before it and holds back everything after
//! it. Each outcome is journaled by itself, so that a crash in the middle continues with what is left.

use super::{Executor, Interrupt, Live, card, desk::Desk, interrupt, outcome};
use crate::{
    agent::{
        gate::Gate,
        policy::Denial,
        registry::AgentSpec,
        tool::{Arguments, Asker, InputRequired, ReadAnswer, ReadTool, Tool},
    },
    limits,
    run::{Act, AskedInput, CallId, CallInput, CardCall, InputQuestion, Outcome, ReplyCall, StoryCall, Via, WaitKind, body},
    worker::{Segment, SegmentError},
};
use serde_json::Value;
use std::sync::Arc;
use tokio::{sync::Semaphore, task::JoinSet};

/// What a started read comes to.
pub(crate) enum ReadEnd {
    Answered(ReadAnswer),
    Unknown(String),
}

impl Executor {
    /// One step through the open turn: asks people about what is undecided, or runs the next read group or write.
    pub(super) async fn calls(&self, segment: &mut Segment, agent: &Arc<AgentSpec>) -> Result<(), SegmentError> {
        if self.ask_people(segment, agent).await? || self.ask_input(segment, agent).await? {
            return Ok(());
        }
        let pending: Vec<CallId> = segment.row().turn.iter().flat_map(|t| t.pending()).map(|c| c.id.clone()).collect();
        let Some(first) = pending.first() else { return Ok(()) };
        let story = segment.story();
        let narrow = story.request.as_ref().and_then(|r| r.tools.clone());
        let registry = self.registry.now();
        let gate = Gate { registry: &registry, agent, narrow: narrow.as_deref() };
        let is_read = |id: &CallId| {
            // One that was asked for as a write stays one, whatever its tool is now: it is refused, not called without a stamp.
            let call = story.calls.get(id).filter(|call| !call.asked.effect.is_write());
            call.and_then(|c| gate.tool(&c.asked.tool)).is_some_and(|t| matches!(t, Tool::Read(_)))
        };
        if !is_read(first) {
            return self.write(segment, agent, first, None).await;
        }
        let mut reads: Vec<(ReplyCall, Arguments, Arc<dyn ReadTool>)> = Vec::new();
        for id in pending.iter().take_while(|id| is_read(id)) {
            if let Some(call) = story.calls.get(id)
                && let Some(Tool::Read(tool)) = gate.tool(&call.asked.tool)
            {
                reads.push((call.asked.clone(), call.arguments(), Arc::clone(tool)));
            }
        }
        self.reads(segment, reads).await
    }

    async fn reads(
        &self,
        segment: &mut Segment,
        reads: Vec<(ReplyCall, Arguments, Arc<dyn ReadTool>)>,
    ) -> Result<(), SegmentError> {
        let run = segment.run();
        let interrupted = interrupt(segment);
        tokio::pin!(interrupted);
        let mut desk = Desk::new(segment, self.live.clone());
        // Dropped, the set aborts what is running.
        let mut running = JoinSet::new();
        let places = Arc::new(Semaphore::new(limits::PARALLEL_READS_MAX));
        for (call, arguments, tool) in reads {
            self.tell(Live::Tool(run, call.id.clone(), call.tool.clone()));
            let (places, asker) = (Arc::clone(&places), desk.asker(segment, &call.id));
            running.spawn(async move {
                // The semaphore is never closed; were it, the read would simply not be limited.
                let _place = places.acquire().await;
                let end = read(tool, arguments, asker).await;
                (call, end)
            });
        }
        loop {
            let answered = tokio::select! {
                biased;
                interrupt = &mut interrupted => return match interrupt {
                    // The next step settles the run.
                    Interrupt::Cancel => { drop(running); segment.refresh().await }
                    Interrupt::Lost => Err(SegmentError::Lost("the right moved on during a read".into())),
                },
                () = self.leave.cancelled() => { drop(running); return segment.commit(vec![Act::Yield]).await }
                // A person is not waited for: whoever goes on asks again.
                () = self.stop.cancelled(), if desk.is_asking() => { drop(running); return segment.commit(vec![Act::Yield]).await }
                next = running.join_next() => next,
                woken = desk.woken(segment.row().sequence) => { desk.serve(segment, woken).await?; continue }
            };
            // `read` catches what breaks in a tool, so a task that ends without an answer was aborted with the set.
            let Some(Ok((call, end))) = answered else { return Ok(()) };
            desk.ended(&call.id);
            let recorded = match end {
                ReadEnd::Answered(ReadAnswer { needs: Some(input), .. }) => match required(segment, &call, input) {
                    Ok(asked) => {
                        segment.commit(vec![Act::InputRequired(asked)]).await?;
                        desk.deliver(segment);
                        continue;
                    }
                    Err(why) => outcome(&call, Outcome::Done, Via::Tool, Value::String(why), true),
                },
                ReadEnd::Answered(answer) => outcome(&call, Outcome::Done, Via::Tool, answer.result, answer.is_error),
                ReadEnd::Unknown(why) => outcome(&call, Outcome::Unknown, Via::Tool, Value::String(why), true),
            };
            let aside = if recorded.outcome == Outcome::Done { desk.put_aside(&call.id) } else { Vec::new() };
            segment.record_outcome(recorded, aside).await?;
            desk.deliver(segment);
        }
    }

    /// Suspends where a person has to decide: a call that has no decision yet, or one whose tool is not what was approved.
    /// True where the run waits now.
    async fn ask_people(&self, segment: &mut Segment, agent: &Arc<AgentSpec>) -> Result<bool, SegmentError> {
        let narrow = segment.story().request.as_ref().and_then(|r| r.tools.clone());
        let registry = self.registry.now();
        let gate = Gate { registry: &registry, agent, narrow: narrow.as_deref() };
        let Some(turn) = segment.row().turn.clone() else { return Ok(false) };
        let mut shown = Vec::new();
        for open in turn.pending() {
            let Some(call) = segment.story().calls.get(&open.id) else { continue };
            let arguments = call.arguments();
            let changed = call
                .card
                .as_ref()
                .filter(|_| call.decided.is_some() || call.input.is_some() || call.requires.is_some())
                .and_then(|card| changed(card, gate.registry.verdict(agent, gate.narrow, &call.asked.tool)));
            let why = match (open.is_undecided(), changed) {
                // It is asked for what it needs first; the replies are its release.
                (_, None) if call.requires.as_ref().is_some_and(|asked| asked.open().is_some()) => None,
                (_, Some(changed)) => Some(Some(changed)),
                (true, None) => {
                    Some(gate.tool(&call.asked.tool).and_then(|t| card::repeated(segment.story(), t, &call.asked, &arguments)))
                }
                (false, None) => None,
            };
            if let Some(why) = why {
                let before = call.card.as_ref().map(|card| card.tool.clone());
                shown.push(card::Shown { call: call.asked.clone(), arguments, why, before });
            }
        }
        if shown.is_empty() {
            return Ok(false);
        }
        let card = self.card(agent, turn.number, shown).await;
        let deadline = self.deadline(agent, segment);
        segment.commit(vec![Act::Suspend { card, deadline }]).await?;
        Ok(true)
    }

    /// Suspends where a call lacks the values that its tool wants a person to fill in, or a reply to what it asked. True where the run
    /// waits now.
    async fn ask_input(&self, segment: &mut Segment, agent: &Arc<AgentSpec>) -> Result<bool, SegmentError> {
        let Some(turn) = segment.row().turn.clone() else { return Ok(false) };
        let registry = self.registry.now();
        let narrow = segment.story().request.as_ref().and_then(|r| r.tools.clone());
        let gate = Gate { registry: &registry, agent, narrow: narrow.as_deref() };
        let lacks = turn.pending().find_map(|open| {
            let call = segment.story().calls.get(&open.id)?;
            let (schema, question) = match call.requires.as_ref().map(CallInput::open) {
                Some(question) => {
                    // Nobody is asked for a tool that is not to be called.
                    gate.tool(&call.asked.tool)?;
                    let InputQuestion { id, prompt, schema } = question?.clone();
                    (schema, Some(AskedInput { id, prompt }))
                }
                None if call.input.is_none() => (gate.tool(&call.asked.tool)?.spec().input.clone()?, None),
                None => return None,
            };
            Some((call.clone(), call.arguments(), schema, question))
        });
        let Some((StoryCall { asked: call, card: before, .. }, arguments, schema, question)) = lacks else { return Ok(false) };
        let shown = card::Shown { call, arguments, why: None, before: before.as_ref().map(|card| card.tool.clone()) };
        let mut card = self.card(agent, turn.number, vec![shown]).await;
        card.kind = WaitKind::Input;
        for call in &mut card.calls {
            match before.as_ref().filter(|_| question.is_some()) {
                // What a person has released it on still has to hold when it goes on.
                Some(before) => {
                    let CardCall { preview, precondition, preview_for, why, .. } = before.clone();
                    *call = CardCall { preview, precondition, preview_for, why, ..call.clone() };
                }
                // What has to hold is asked for when the values are known.
                None => call.precondition = None,
            }
        }
        card.schema = Some(schema);
        card.question = question;
        let deadline = self.deadline(agent, segment);
        segment.commit(vec![Act::Suspend { card, deadline }]).await?;
        Ok(true)
    }

    /// Shows one call again, in the middle of its turn.
    pub(super) async fn ask_again(
        &self,
        segment: &mut Segment,
        agent: &Arc<AgentSpec>,
        call: &StoryCall,
        why: String,
        mut before: Vec<Act>,
    ) -> Result<(), SegmentError> {
        let seen = call.card.as_ref().map(|card| card.tool.clone());
        let shown = card::Shown { call: call.asked.clone(), arguments: call.arguments(), why: Some(why), before: seen };
        let card = self.card(agent, call.turn, vec![shown]).await;
        before.push(Act::Suspend { card, deadline: self.deadline(agent, segment) });
        segment.commit(before).await
    }
}

/// What a call asks before it goes on, as it is journaled.
///
/// # Errors
/// People cannot be asked that: why.
pub(super) fn required(segment: &Segment, call: &ReplyCall, input: InputRequired) -> Result<body::InputRequired, String> {
    let asked = segment.story().calls.get(&call.id).and_then(|call| call.requires.as_ref());
    let no = |why| format!("the tool needs input before it goes on, and people cannot be asked that: {why}");
    input.check(asked.map_or(0, |asked| asked.rounds)).map_err(no)?;
    let InputRequired { questions, state } = input;
    Ok(body::InputRequired { call_id: call.id.clone(), tool: call.tool.clone(), questions, state })
}

/// Says that a tool is not offered any more, and why.
pub(super) fn not_offered(tool: &str, denial: &Denial) -> String {
    format!("`{tool}` is not offered any more ({}): {denial}", denial.name())
}

/// In what the tool differs from the one on the card.
pub(super) fn changed(card: &CardCall, tool: Result<&Tool, Denial>) -> Option<String> {
    let tool = match tool {
        Ok(tool) => tool,
        Err(denial) => return Some(not_offered(&card.tool.name, &denial)),
    };
    let (was, is) = (&card.tool, tool.identity());
    let mut differences = Vec::new();
    for (what, old, new) in [
        ("source", was.source.as_str(), is.source.as_str()),
        ("endpoint", was.endpoint.as_str(), is.endpoint.as_str()),
        ("schema", was.schema_hash.as_str(), is.schema_hash.as_str()),
        ("effect", was.effect.as_str(), is.effect.as_str()),
        ("approval", was.approval.as_str(), is.approval.as_str()),
    ] {
        if old != new {
            differences.push(format!("{what}: \"{old}\" -> \"{new}\""));
        }
    }
    (!differences.is_empty()).then(|| format!("the tool changed since it was approved: {}", differences.join(", ")))
}

/// Runs a read, bounded in time; dropped, it is aborted.
pub(crate) async fn read(tool: Arc<dyn ReadTool>, arguments: Arguments, asker: Asker) -> ReadEnd {
    let timeout = tool.spec().timeout;
    let task = tokio::spawn(async move { tool.call_asking(&arguments, asker).await });
    let _abort = AbortOnDrop(task.abort_handle());
    match tokio::time::timeout(timeout, task).await {
        Ok(Ok(answer)) => ReadEnd::Answered(answer),
        Ok(Err(_)) => ReadEnd::Unknown("the tool broke while it was reading".into()),
        Err(_) => ReadEnd::Unknown(format!("the tool did not answer within {} s", timeout.as_secs_f32())),
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
