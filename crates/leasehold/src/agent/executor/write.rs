//! A write, in the one order there is: gate, stamp, trust window, entry with the permit, outcome. And what a segment does first
//! when it finds a fence that another one left.

use super::{
    Executor, Interrupt, Live,
    calls::{changed, not_offered, required},
    card,
    desk::Desk,
    interrupt, outcome,
};
use crate::{
    agent::{
        gate::Gate,
        owner::OwnerRight,
        patience::within,
        registry::{AgentSpec, matches},
        tool::{Approval, Arguments, NotAsked, Tool, Verified, VerifyQuery, WriteAnswer, WriteTool},
    },
    limits,
    run::{Act, BASIS_MOVED, CallId, Charge, Effect, LateAnswer, Outcome, Recorded, ReplyCall, Snapshot, StoryCall, Via},
    worker::{Point, PutAside, Segment, SegmentError, WritePermit},
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// How the reason begins for which a person is asked about a call that exceeds a budget.
const OVER_BUDGET: &str = "over budget";

/// Why a stamped write is not entered.
const OUT_OF_TRUST: &str = "the lease ran out between the stamp and the entry";

impl Executor {
    /// Runs one released write. `reply` holds the acts of the reply that asks for it, where that is not durable yet: they are
    /// committed with the stamp.
    pub(super) async fn write(
        &self,
        segment: &mut Segment,
        agent: &Arc<AgentSpec>,
        id: &CallId,
        reply: Option<(ReplyCall, Vec<Act>)>,
    ) -> Result<(), SegmentError> {
        let (asked, before) = match reply {
            Some((asked, acts)) => (StoryCall::fresh(asked, segment.row().rounds + 1), acts),
            None => match segment.story().calls.get(id) {
                Some(call) => (call.clone(), Vec::new()),
                None => return Err(SegmentError::Unreadable(format!("call {id} is in the row and not in the journal"))),
            },
        };
        let arguments = asked.arguments();
        let narrow = segment.story().request.as_ref().and_then(|r| r.tools.clone());
        // A step that began with a reply of the model began long ago.
        if !before.is_empty()
            && let Err(why) = self.refresh().await
        {
            return retry(segment, why, before).await;
        }
        let registry = self.registry.now();
        let Some(agent) = registry.agent(&segment.row().agent).cloned() else {
            let why = format!("this process has no agent `{}` any more", agent.name);
            return retry(segment, why, before).await;
        };
        let agent = &agent;
        let gate = Gate { registry: &registry, agent, narrow: narrow.as_deref() };
        let tool = match registry.verdict(agent, narrow.as_deref(), &asked.asked.tool) {
            Ok(tool) if tool.effect().is_write() && !asked.asked.effect.is_write() => {
                let why = format!("`{}` was asked for as a read and is a write now; nothing was done", asked.asked.tool);
                return refuse(segment, &asked, why, before).await;
            }
            Ok(tool) if tool.effect().is_write() => tool.clone(),
            Ok(_) => {
                let why = format!("`{}` is not offered as a write any more; nothing was done", asked.asked.tool);
                return refuse(segment, &asked, why, before).await;
            }
            Err(denial) => {
                let why = format!("{}; nothing was done", not_offered(&asked.asked.tool, &denial));
                return refuse(segment, &asked, why, before).await;
            }
        };
        if let Err(why) = gate.validate(&tool, arguments.clone()) {
            return refuse(segment, &asked, why, before).await;
        }
        match self.owner_right(segment, &asked.asked.tool).await {
            OwnerRight::May => {}
            OwnerRight::MayNot(why) => return self.ask_again(segment, agent, &asked, why, before).await,
            OwnerRight::Gone(why) => return refuse(segment, &asked, why, before).await,
            OwnerRight::NotKnown(why) => {
                return retry(segment, format!("what its owner may do is not known: {why}"), before).await;
            }
        }
        let released_by_person = asked.decided.as_ref().is_some_and(|d| d.approved);
        if !released_by_person && let Some(why) = card::repeated(segment.story(), &tool, &asked.asked, &arguments) {
            return self.ask_again(segment, agent, &asked, why, before).await;
        }
        if !released_by_person && tool.approval() == Approval::Required && asked.input.is_none() {
            // It did not wait when the model asked for it, or it would have been decided about.
            let why = format!("`{}` waits for an approval now, and did not when the model asked for it", asked.asked.tool);
            return self.ask_again(segment, agent, &asked, why, before).await;
        }
        if let Some(shown) = &asked.card {
            if let Some(difference) = changed(shown, Ok(&tool)) {
                return self.ask_again(segment, agent, &asked, difference, before).await;
            }
            if let Some(difference) = precondition_moved(&tool, shown, &arguments).await {
                return self.ask_again(segment, agent, &asked, difference, before).await;
            }
        }
        if let Some(why) = released_alone(segment.row(), agent, &asked) {
            return self.ask_again(segment, agent, &asked, why, before).await;
        }
        let charges = match charges(agent, &asked, &arguments, segment.now(), released_by_person) {
            Ok(charges) => charges,
            Err(why) => return self.ask_again(segment, agent, &asked, why, before).await,
        };
        self.at(Point::BeforeStamp, segment, Some(id)).await;
        let stamp = self.stamp_of(id, &tool);
        let written = match &tool {
            Tool::Read(_) => Ok(()),
            Tool::Write(write, _) => match segment.fence_after(before.clone(), stamp, &charges).await {
                Ok(permit) => self.enter(segment, Arc::clone(write), permit, arguments).await,
                Err(error) => Err(error),
            },
            Tool::Transactional(tool, _) => {
                self.transact(segment, &asked, &**tool, arguments, stamp, (before.clone(), charges)).await
            }
        };
        match written {
            Err(SegmentError::OverBudget(budget)) => {
                let why = format!("{OVER_BUDGET}: {budget}");
                self.ask_again(segment, agent, &asked, why, before).await
            }
            written => written,
        }
    }

    async fn owner_right(&self, segment: &Segment, tool: &str) -> OwnerRight {
        match &self.owners {
            Some(owners) => owners.right(&segment.row().owner, tool).await,
            None => OwnerRight::May,
        }
    }

    /// Enters a stamped write and records what it answers.
    async fn enter(
        &self,
        segment: &mut Segment,
        mut tool: Arc<dyn WriteTool>,
        mut permit: WritePermit,
        arguments: Arguments,
    ) -> Result<(), SegmentError> {
        let id = permit.call().clone();
        let mut entries = 0;
        loop {
            entries += 1;
            self.at(Point::AfterStamp, segment, Some(&id)).await;
            let mut aside = Vec::new();
            let answer = if permit.check().is_ok() {
                match self.in_tool(segment, &tool, permit, &arguments).await {
                    Some((answer, put)) => {
                        aside = put;
                        answer
                    }
                    // Whoever claims the run next repeats it with its key.
                    None => return segment.commit(vec![Act::Yield]).await,
                }
            } else {
                WriteAnswer::NotStarted { why: OUT_OF_TRUST.into() }
            };
            self.at(Point::AfterReturn, segment, Some(&id)).await;
            match self.answered(segment, &id, (answer, aside), entries).await {
                Ok(None) => {
                    self.at(Point::AfterRecord, segment, Some(&id)).await;
                    return Ok(());
                }
                Ok(Some(wait)) => {
                    tokio::time::sleep(wait).await;
                    if segment.is_cancelled() {
                        // None is repeated once the cancel is heard; the next step settles.
                        return segment.refresh().await;
                    }
                    // Where it may not be, the next step says why.
                    let Ok((write, stamped)) = self.repeatable(segment, &id, &tool.spec().name).await else { return Ok(()) };
                    tool = write;
                    permit = segment.refence(self.stamp_of(&id, &stamped), false).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What the tool answers, and what it has put aside; none: it is to be handed back from the middle of the call. That is for an idempotent write; any other has
    /// one chance to be known: to be waited for.
    async fn in_tool(
        &self,
        segment: &mut Segment,
        tool: &Arc<dyn WriteTool>,
        mut permit: WritePermit,
        arguments: &Arguments,
    ) -> Option<(WriteAnswer, Vec<PutAside>)> {
        let (id, run) = (permit.call().clone(), segment.run());
        self.tell(Live::Tool(run, id.clone(), tool.spec().name.clone()));
        let idempotent = segment.row().fence.as_ref().is_some_and(|f| f.effect == Effect::IdempotentWrite);
        let mut desk = Desk::new(segment, self.live.clone());
        permit.asker = desk.asker(segment, &id);
        let answered = async {
            let entered = call(Arc::clone(tool), permit, arguments.clone());
            tokio::join!(entered, self.at_run(Point::InTool, run, Some(&id))).0
        };
        let interrupted = interrupt(segment);
        tokio::pin!(answered, interrupted);
        let (mut is_interrupted, mut is_stopping) = (false, false);
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return Some((answer, desk.put_aside(&id))),
                () = self.leave.cancelled(), if idempotent => return None,
                // A person is not waited for: whoever goes on asks again, or the tool goes on without.
                () = self.stop.cancelled(), if !is_stopping && desk.is_asking() => {
                    if idempotent {
                        return None;
                    }
                    is_stopping = true;
                    desk.close(&NotAsked::Stopping);
                }
                interrupt = &mut interrupted, if !is_interrupted => {
                    is_interrupted = true;
                    desk.close(&match interrupt {
                        Interrupt::Cancel => NotAsked::Cancelled,
                        Interrupt::Lost => NotAsked::Lost,
                    });
                }
                woken = desk.woken(segment.row().sequence) => {
                    if desk.serve(segment, woken).await.is_err() {
                        // What the tool answers is still to be recorded, or offered late: it is waited for.
                        desk.close(&NotAsked::Lost);
                    }
                }
            }
        }
    }

    /// Records an answer. `Some(wait)`: an idempotent write that is repeated with the same key after that long.
    async fn answered(
        &self,
        segment: &mut Segment,
        id: &CallId,
        (answer, mut aside): (WriteAnswer, Vec<PutAside>),
        entries: u32,
    ) -> Result<Option<Duration>, SegmentError> {
        let Some(call) = segment.story().calls.get(id).cloned() else {
            return Err(SegmentError::Unreadable(format!("call {id} is in the row and not in the journal")));
        };
        let fence = segment.row().fence.clone();
        let repeat = fence.as_ref().is_some_and(|f| f.repeat);
        // Late evidence that an earlier attempt is done is what the core records then.
        let has_evidence = segment.row().fenced_call().is_some_and(|c| c.evidence.is_some());
        let idempotent = fence.as_ref().is_some_and(|f| f.effect == Effect::IdempotentWrite);
        let known = match answer {
            WriteAnswer::Done { result, is_error } => outcome(&call.asked, Outcome::Done, Via::Tool, result, is_error),
            WriteAnswer::NotApplied { why } if !repeat || has_evidence => {
                outcome(&call.asked, Outcome::NotApplied, Via::Tool, Value::String(why), true)
            }
            WriteAnswer::NeedsInput(input) => {
                let act = match required(segment, &call.asked, input) {
                    Ok(asked) => Act::InputRequired(asked),
                    // None is repeated once the cancel is heard; the next step settles.
                    Err(_) if idempotent && segment.is_cancelled() => {
                        segment.refresh().await?;
                        return Ok(None);
                    }
                    Err(why) if idempotent => Act::Retry { why, not_before: None },
                    Err(why) => Act::Doubt { why },
                };
                let why = "the tool asked for input before it goes on";
                return match segment.commit(vec![act]).await {
                    Ok(()) => Ok(None),
                    Err(error) => {
                        let late = (LateAnswer::Unknown, Value::String(why.into()), true);
                        Err(self.keep(segment, id, late, Vec::new(), error))
                    }
                };
            }
            WriteAnswer::NotStarted { why } => {
                let act = Act::Unstamp { call_id: id.clone(), why: why.clone() };
                return match segment.commit(vec![act]).await {
                    Ok(()) => Err(SegmentError::NotEntered(why)),
                    Err(error) => {
                        let late = (LateAnswer::NotStarted, Value::String(why), true);
                        Err(self.keep(segment, id, late, Vec::new(), error))
                    }
                };
            }
            WriteAnswer::NotApplied { why } | WriteAnswer::Unknown { why } => {
                if idempotent {
                    if entries < limits::IDEMPOTENT_ATTEMPTS_MAX && !segment.is_cancelled() {
                        return Ok(Some(Duration::from_millis(200 << entries.min(4))));
                    }
                    if segment.is_cancelled() {
                        segment.refresh().await?;
                        return Ok(None);
                    }
                    let why = format!("the outcome of an idempotent write is unknown: {why}");
                    segment.commit(vec![Act::Retry { why, not_before: None }]).await?;
                    return Ok(None);
                }
                segment.commit(vec![Act::Doubt { why }]).await?;
                return Ok(None);
            }
        };
        let (result, is_error) = (known.result.clone(), known.is_error);
        let late = if known.outcome == Outcome::Done { LateAnswer::Done } else { LateAnswer::NotApplied };
        if known.outcome != Outcome::Done {
            aside.clear();
        }
        match segment.record_outcome(known, aside.clone()).await {
            Ok(()) => Ok(None),
            Err(error) => Err(self.keep(segment, id, (late, result, is_error), aside, error)),
        }
    }

    /// The record was not possible any more: what the tool answered is kept and offered as a late outcome.
    fn keep(
        &self,
        segment: &mut Segment,
        id: &CallId,
        (answer, result, is_error): (LateAnswer, Value, bool),
        aside: Vec<PutAside>,
        error: SegmentError,
    ) -> SegmentError {
        // Key and class let an operator find the effect at the far side; content has no place in a log.
        let key = segment.run().idempotency_key(id);
        tracing::warn!(
            run = %segment.run(), call = %id, %key, class = %answer,
            "run {}: what call {id} answered could not be recorded; it is offered late: {error}", segment.run()
        );
        segment.offer_late(id.clone(), (answer, result, is_error), aside);
        match error {
            // The holder is one no more, whatever the core said first.
            SegmentError::Rejected(rejection) => SegmentError::Lost(rejection.to_string()),
            other => other,
        }
    }

    /// The tool of a standing fence, where its call may be made again: a repeat is a call, and passes what a call passes.
    async fn repeatable(&self, segment: &Segment, id: &CallId, name: &str) -> Result<(Arc<dyn WriteTool>, Tool), String> {
        self.refresh().await?;
        let registry = self.registry.now();
        let row = segment.row();
        let agent = registry.agent(&row.agent).ok_or_else(|| format!("this process has no agent `{}` any more", row.agent))?;
        let narrow = segment.story().request.as_ref().and_then(|r| r.tools.clone());
        let tool = registry
            .verdict(agent, narrow.as_deref(), name)
            .map_err(|denial| format!("{}, and an earlier call of it is unsettled", not_offered(name, &denial)))?;
        let Tool::Write(write, _) = tool else {
            return Err(format!("`{name}` is not a write here any more, and an earlier call of it is unsettled"));
        };
        if let Some(why) = moved(segment.story().calls.get(id), tool) {
            return Err(why);
        }
        match self.owner_right(segment, name).await {
            OwnerRight::May => Ok((Arc::clone(write), tool.clone())),
            OwnerRight::MayNot(why) | OwnerRight::Gone(why) => Err(why),
            OwnerRight::NotKnown(why) => Err(format!("what its owner may do is not known: {why}")),
        }
    }

    /// Settles the fence that stands before anything else happens in this segment.
    pub(super) async fn settle_fence(&self, segment: &mut Segment) -> Result<(), SegmentError> {
        let Some(fence) = segment.row().fence.clone() else { return Ok(()) };
        let id = fence.call_id.clone();
        if segment.row().fenced_call().is_some_and(|c| c.evidence.is_some()) {
            return segment.record(vec![Recorded::Evidence(id)]).await;
        }
        let arguments = segment.story().calls.get(&id).map(StoryCall::arguments).unwrap_or_default();
        let cancelled = segment.row().cancel_requested;
        if fence.effect != Effect::NonIdempotentWrite {
            if cancelled {
                return segment.commit(vec![Act::Settle]).await;
            }
            let (write, tool) = match self.repeatable(segment, &id, &fence.tool).await {
                Ok(repeatable) => repeatable,
                Err(why) => return segment.commit(vec![Act::Retry { why, not_before: None }]).await,
            };
            self.at(Point::BeforeStamp, segment, Some(&id)).await;
            let permit = segment.refence(self.stamp_of(&id, &tool), false).await?;
            return self.enter(segment, write, permit, arguments).await;
        }
        // Asking changes nothing, and is the only way to know: it is done for a tool that is switched off, too.
        let tool = self.registry.now().tool(&fence.tool).cloned();
        let write = match &tool {
            Some(Tool::Write(write, _)) => Some(Arc::clone(write)),
            _ => None,
        };
        let moved = tool.as_ref().and_then(|tool| moved(segment.story().calls.get(&id), tool));
        if let Some(why) = moved.filter(|_| fence.verifiable) {
            return segment.commit(vec![Act::Doubt { why }]).await;
        }
        let Some(write) = write.filter(|w| fence.verifiable && w.verify().is_some()) else {
            let why = "the process that started this write is gone, and the tool cannot be asked whether it happened";
            return segment.commit(vec![Act::Doubt { why: why.into() }]).await;
        };
        let query = VerifyQuery {
            idempotency_key: fence.idempotency_key.clone(),
            run: segment.run().to_string(),
            fencing_token: segment.right().epoch,
        };
        let absent_is_not_applied = write.verify().is_some_and(|v| v.absent_is_not_applied());
        let asked_at = segment.now();
        match verify(Arc::clone(&write), query, arguments.clone()).await {
            Verified::Landed(result) => {
                let Some(call) = segment.story().calls.get(&id) else {
                    return Err(SegmentError::Unreadable(format!("call {id} is in the row and not in the journal")));
                };
                let known = outcome(&call.asked, Outcome::Done, Via::Verify, result, false);
                segment.record(vec![Recorded::Outcome(known)]).await
            }
            Verified::Absent if absent_is_not_applied && !cancelled => {
                let (write, tool) = match self.repeatable(segment, &id, &fence.tool).await {
                    Ok(repeatable) => repeatable,
                    Err(why) => {
                        let why = format!("asked, and absent as of {asked_at}; {why}");
                        return segment.commit(vec![Act::Doubt { why }]).await;
                    }
                };
                let permit = segment.refence(self.stamp_of(&id, &tool), true).await?;
                self.enter(segment, write, permit, arguments).await
            }
            Verified::Absent => segment.commit(vec![Act::Doubt { why: format!("asked, and absent as of {asked_at}") }]).await,
            Verified::Unknown(why) => {
                segment.commit(vec![Act::Doubt { why: format!("asked, without a usable answer: {why}") }]).await
            }
        }
    }
}

/// Ends a call before anything of it has happened, after the acts of the reply that asks for it; the model is told why.
pub(super) async fn refuse(
    segment: &mut Segment,
    call: &StoryCall,
    why: String,
    mut before: Vec<Act>,
) -> Result<(), SegmentError> {
    let refused = outcome(&call.asked, Outcome::Refused, Via::Gate, Value::String(why), true);
    before.push(Act::Record(vec![Recorded::Outcome(refused)]));
    segment.commit(before).await
}

/// Says that whoever started the run released this call alone, where the agent wants two people by now and did not when the run was
/// started. Where it did, the decision itself was refused.
fn released_alone(row: &Snapshot, agent: &AgentSpec, call: &StoryCall) -> Option<String> {
    let decided = call.decided.as_ref().filter(|decided| decided.approved && decided.by == row.initiator)?;
    let since = agent.second_approver && !row.second_approver;
    since.then(|| {
        format!(
            "agent `{}` wants a second person now, and {} has started this run: somebody else has to approve",
            agent.name, decided.by
        )
    })
}

/// What a call counts against the budgets of its agent; why a person is asked, where that cannot be told.
fn charges(
    agent: &AgentSpec,
    call: &StoryCall,
    arguments: &Arguments,
    at: jiff::Timestamp,
    released_by_person: bool,
) -> Result<Vec<Charge>, String> {
    // A person who was told that a budget is exceeded has let it through.
    let told = call.card.as_ref().and_then(|card| card.why.as_deref()).is_some_and(|why| why.starts_with(OVER_BUDGET));
    let let_through = released_by_person && told;
    let budgets = agent.effect_budgets.iter().filter(|budget| matches(&budget.tool, &call.asked.tool));
    budgets
        .map(|budget| {
            let key = budget.key(&agent.name);
            let amount = match budget.amount(arguments) {
                Some(amount) => amount,
                None if let_through => 0,
                None => return Err(format!("{OVER_BUDGET}: {key}: the argument is not a number from 0 on")),
            };
            let max = (!let_through).then(|| budget.max());
            Ok(Charge { budget: key, call: call.asked.id.clone(), at, window: budget.window, max, amount })
        })
        .collect()
}

async fn retry(segment: &mut Segment, why: String, mut acts: Vec<Act>) -> Result<(), SegmentError> {
    acts.push(Act::Retry { why, not_before: None });
    segment.commit(acts).await
}

/// Calls a write. A panic or a timeout is unknown: it may have happened.
async fn call(tool: Arc<dyn WriteTool>, permit: WritePermit, arguments: Arguments) -> WriteAnswer {
    let timeout = tool.spec().timeout;
    let task = tokio::spawn(async move {
        // The runtime may have been busy with something else for longer than the lease since the task was made.
        if permit.check().is_err() {
            return Some(WriteAnswer::NotStarted { why: OUT_OF_TRUST.into() });
        }
        within(timeout, tool.call(permit, &arguments)).await
    });
    match task.await {
        Ok(Some(answer)) => answer,
        Ok(None) => WriteAnswer::Unknown { why: format!("the tool did not answer within {} s", timeout.as_secs_f32()) },
        Err(_) => WriteAnswer::Unknown { why: "the tool broke in the middle of the call".into() },
    }
}

/// Asks, bounded in time; a verify that breaks says nothing.
pub(crate) async fn verify(tool: Arc<dyn WriteTool>, query: VerifyQuery, arguments: Arguments) -> Verified {
    let timeout = tool.spec().timeout;
    let task = tokio::spawn(async move {
        match tool.verify() {
            Some(verify) => verify.verify(&query, &arguments).await,
            None => Verified::Unknown("the tool cannot be asked any more".into()),
        }
    });
    let abort = task.abort_handle();
    match tokio::time::timeout(timeout, task).await {
        Ok(Ok(verified)) => verified,
        Ok(Err(_)) => Verified::Unknown("the verify broke".into()),
        Err(_) => {
            abort.abort();
            Verified::Unknown(format!("the verify did not answer within {} s", timeout.as_secs_f32()))
        }
    }
}

/// Says that the tool sends elsewhere now than where an unsettled call of it went. A repeat would be a first write there, and who
/// is asked there knows nothing of it.
pub(crate) fn moved(call: Option<&StoryCall>, tool: &Tool) -> Option<String> {
    let (was, is) = (call?.sent_to()?, tool.spec().endpoint.as_str());
    let name = &tool.spec().name;
    (was != is).then(|| format!("`{name}` goes to \"{is}\" now, and an earlier call of it that is unsettled went to \"{was}\""))
}

/// In what the world differs from what the person saw, where the tool has a precondition.
async fn precondition_moved(tool: &Tool, shown: &crate::run::CardCall, arguments: &Arguments) -> Option<String> {
    let was = shown.precondition.as_ref()?;
    match card::preview(tool, arguments).await? {
        Ok(now) if now.precondition.as_ref() == Some(was) => None,
        Ok(now) => Some(format!(
            "{BASIS_MOVED} has changed: it was {was}, and it is {}",
            now.precondition.unwrap_or_else(|| "gone".into())
        )),
        Err(why) => Some(format!("{BASIS_MOVED} cannot be checked: {why}")),
    }
}
