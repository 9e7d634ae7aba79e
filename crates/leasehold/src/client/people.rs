//! What a person orders: decisions, edits, cancels, resolutions.

use super::*;

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

impl Runtime {
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
                    let named = |refused: &Rejection| matches!(refused, Rejection::AlreadyDecided { .. });
                    return match self.decided_before(row, &decision).await {
                        // Who was faster says more than that somebody was.
                        Err(OrderError::Refused(faster)) if named(&faster) && !named(&refused) => Err(faster.into()),
                        Err(_) => Err(refused.into()),
                        decided => decided,
                    };
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
        if row.second_approver && calls.iter().any(|call| call.arguments.is_some()) {
            return self.propose(id, &row, decision, calls).await;
        }
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
        self.released(done, grant, sent, queued_because).await
    }

    /// What a person's word has come to that is durable: the execution, where this process was granted it.
    pub(super) async fn released(
        &self,
        done: Done,
        grant: Option<Grant>,
        sent: crate::clock::BootInstant,
        queued_because: Option<String>,
    ) -> Result<Decided, OrderError> {
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
        // Somebody decided about exactly this before, in another way or as another person: who, and when.
        let before = entries.iter().find_map(|entry| match &entry.body {
            crate::run::EntryBody::Approval(approval) if approval.digest == decision.digest && !approval.proposal => {
                let other = approval.calls.iter().find(|taken| {
                    let named = decision.calls.iter().find(|call| call.call_id == taken.call_id);
                    let said = named.map(|call| call.approved).or(decision.rest);
                    let edited = named.is_some_and(|call| call.arguments != taken.arguments);
                    said.is_some_and(|said| approval.by.id != decision.by.id || said != taken.approved || edited)
                })?;
                Some(Rejection::AlreadyDecided { call: other.call_id.clone(), by: approval.by.id.clone(), at: entry.at })
            }
            _ => None,
        });
        if let Some(decided) = before {
            return Err(decided.into());
        }
        Err(Rejection::NotWaiting(row.state).into())
    }

    /// Under four eyes other arguments are a proposal: a new card, which somebody else releases.
    async fn propose(
        &self,
        id: RunId,
        row: &Snapshot,
        decision: &Decision,
        calls: Vec<DecideCall>,
    ) -> Result<Decided, OrderError> {
        if calls.iter().any(|call| call.arguments.is_none()) {
            return Err(OrderError::Invalid(
                "under four eyes other arguments are a proposal, which somebody else releases: send them by themselves, and decide about \
                 the other calls on the card that follows"
                    .into(),
            ));
        }
        let story = Story::of(&self.engine.journal_of(row, 0).await?);
        let Some(standing) = story.card else {
            return Err(OrderError::Unreadable("what the run waits for is not in its record".into()));
        };
        let TurnCard { kind, turn, agent_version, calls: standing, schema, question } = standing.card;
        let undecided = |id: &CallId| row.turn.as_ref().and_then(|turn| turn.call(id)).is_some_and(|call| call.is_undecided());
        let shown = standing.into_iter().filter(|card| undecided(&card.id)).map(|card| {
            // What was proposed before stands on the card of the call.
            let now = story.calls.get(&card.id).and_then(|call| call.card.clone()).unwrap_or(card);
            match calls.iter().find(|call| call.call_id == now.id).and_then(|call| call.arguments.clone().zip(Some(call))) {
                Some((arguments, call)) => now.edited(arguments, call.edited_card.clone()),
                None => now,
            }
        });
        let card = TurnCard { calls: shown.collect(), kind, turn, agent_version, schema, question };
        let order = Order::Edit { digest: decision.digest.clone(), card, calls };
        let by = decision.by.clone();
        let done = self.engine.change(id, WriteId::random(), PATIENCE, |_| Event::Person(by.clone(), order.clone())).await?;
        Ok(Decided { row: done.row, execution: None, repeated: done.entries.is_empty(), queued_because: None })
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
        let registry = self.registry.now();
        let Some(agent) = registry.agent(&row.agent) else {
            return Err(OrderError::Invalid(format!(
                "this process has no agent `{}`, so an edit cannot be checked",
                row.agent
            )));
        };
        let story = Story::of(&self.engine.journal_of(row, 0).await?);
        let narrow = story.request.as_ref().and_then(|r| r.tools.clone());
        let gate = Gate { registry: &registry, agent, narrow: narrow.as_deref() };
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
            call.edited_card = Some(previewed(tool, &arguments).await);
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
        let valid_for = self.registry.now().agent(&row.agent).map_or(Duration::from_secs(24 * 3600), |a| a.approval_valid_for);
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
        if said.outcome == ResolutionKind::NotLanded && fence.verifiable {
            // Not before it can be sure. Refused here and not left to the core, for whom the limit may have passed by then: the word
            // would be taken without asking.
            if self.engine.now().wall < fence.in_flight_until {
                return Err(Rejection::TooEarly(fence.in_flight_until).into());
            }
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
        let registry = self.registry.now();
        let Some(tool) = registry.tool(&fence.tool) else {
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
