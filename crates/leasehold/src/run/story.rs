//! The journal folded: what was asked, what was said, what became of each call. From this a run continues, and this is what
//! pages and commands show. Folding is incremental: a holder feeds it what it writes and what others wrote.

use super::{
    decision::{CardCall, TurnCard, WaitKind},
    ids::CallId,
    journal::{Entry, EntryBody, InputQuestion, ReplyCall, Request, body},
    state::{LateAnswer, Outcome, Reason, State, Via},
};
use jiff::Timestamp;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// How the detail of a journaled model failure begins; a script counts these.
pub const MODEL_CALL_FAILED: &str = "the model call failed";

/// A call over the whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct StoryCall {
    /// As the model asked for it.
    pub asked: ReplyCall,
    /// The turn it belongs to.
    pub turn: u32,
    /// What a person was shown of it last; after an edit, the edited arguments and what the tool says of them.
    pub card: Option<CardCall>,
    /// Arguments a person put in the place of the model's.
    pub edited: Option<Map<String, Value>>,
    /// Values a person filled in.
    pub input: Option<Map<String, Value>>,
    /// What it needs before it goes on, as it asked the newest time.
    pub requires: Option<CallInput>,
    /// What it asked a person last, while it ran.
    pub question: Option<CallQuestion>,
    /// Who released or denied it last, when, and why.
    pub decided: Option<CallDecided>,
    /// Every stamp: sequence, time, epoch, holder, attempt.
    pub stamps: Vec<CallStamped>,
    /// What became of it.
    pub outcome: Option<CallOutcome>,
}

impl StoryCall {
    /// A call that was just asked for.
    pub fn fresh(asked: ReplyCall, turn: u32) -> Self {
        Self {
            asked,
            turn,
            card: None,
            edited: None,
            input: None,
            requires: None,
            question: None,
            decided: None,
            stamps: Vec::new(),
            outcome: None,
        }
    }
    /// The arguments it runs with.
    pub fn arguments(&self) -> Map<String, Value> {
        // What a person was shown is what runs.
        let shown = || self.card.as_ref().map(|card| card.arguments.clone()).or_else(|| self.asked.arguments.clone());
        let mut arguments = self.edited.clone().or_else(shown).unwrap_or_default();
        if let Some(input) = &self.input {
            for (key, value) in input {
                arguments.insert(key.clone(), value.clone());
            }
        }
        arguments
    }
    /// Where it was sent last; none where nothing says so.
    pub fn sent_to(&self) -> Option<&str> {
        let stamped = self.stamps.last().map(|s| s.endpoint.as_str()).filter(|e| !e.is_empty());
        stamped.or_else(|| self.card.as_ref().map(|card| card.tool.endpoint.as_str()))
    }
    /// Some segment may have entered it.
    pub fn was_entered(&self) -> bool {
        self.stamps.iter().any(|s| s.entered)
    }
}

/// What a call asked before it goes on, and what people said.
#[derive(Clone, Debug, PartialEq)]
pub struct CallInput {
    /// As it was asked; without questions where a person has changed the arguments since.
    pub required: body::InputRequired,
    /// By question; none: declined.
    pub replies: BTreeMap<String, Option<Map<String, Value>>>,
    /// How often it has asked so far.
    pub rounds: u32,
}

impl CallInput {
    /// What nobody has replied to yet.
    pub fn open(&self) -> Option<&InputQuestion> {
        self.required.questions.iter().find(|question| !self.replies.contains_key(&question.id))
    }
}

/// What a running call asked a person.
#[derive(Clone, Debug, PartialEq)]
pub struct CallQuestion {
    /// The number of its entry, which names it.
    pub sequence: u64,
    /// What was asked.
    pub prompt: String,
    /// What an answer looks like.
    pub schema: Value,
    /// When.
    pub at: Timestamp,
    /// What a person said; none: nobody has.
    pub reply: Option<body::Answered>,
}

/// A decision on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDecided {
    /// Approved or denied.
    pub approved: bool,
    /// Who.
    pub by: String,
    /// When.
    pub at: Timestamp,
    /// Why.
    pub reason: Option<String>,
}

/// A stamp of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallStamped {
    /// When.
    pub at: Timestamp,
    /// Under which epoch.
    pub epoch: u64,
    /// By whom.
    pub holder: Option<String>,
    /// 1 for the first.
    pub attempt: u32,
    /// Where it was sent; empty where the entry does not say.
    pub endpoint: String,
    /// Not since known to be unused.
    pub entered: bool,
}

/// What became of a call, evidence resolved to its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct CallOutcome {
    /// What.
    pub outcome: Outcome,
    /// The answer is an error.
    pub is_error: bool,
    /// The answer.
    pub result: Value,
    /// How it came to be known.
    pub via: Via,
    /// When.
    pub at: Timestamp,
}

/// One turn: a reply and the ids of its calls.
#[derive(Clone, Debug, PartialEq)]
pub struct StoryTurn {
    /// Counts from 1.
    pub number: u32,
    /// What the model said.
    pub text: String,
    /// In order.
    pub calls: Vec<CallId>,
    /// What the provider wants to see again.
    pub opaque: Option<Value>,
}

/// The card that waits or waited last.
#[derive(Clone, Debug, PartialEq)]
pub struct StoryCard {
    /// What was shown.
    pub card: TurnCard,
    /// Since when.
    pub since: Timestamp,
}

/// How the run ended, or why the runtime stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoryEnd {
    /// completed, failed, cancelled or dead.
    pub state: State,
    /// Why.
    pub reason: Option<Reason>,
    /// In words.
    pub detail: String,
}

/// A run's journal, folded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Story {
    /// The number of the entry that comes next.
    pub next: u64,
    /// What was asked.
    pub request: Option<Request>,
    /// The agent's configuration hash then.
    pub agent_version: String,
    /// In order.
    pub turns: Vec<StoryTurn>,
    /// Every call of every turn.
    pub calls: BTreeMap<CallId, StoryCall>,
    /// The newest card.
    pub card: Option<StoryCard>,
    /// The agent's answer.
    pub output: Option<String>,
    /// The cap on rounds ended it.
    pub truncated: bool,
    /// The newest end; none while it goes on.
    pub end: Option<StoryEnd>,
    /// Model failures on record.
    pub model_failures: u32,
    /// Late evidence by sequence.
    pub late: BTreeMap<u64, body::LateEvidence>,
}

impl Story {
    /// Folds a journal from its first entry.
    pub fn of<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut story = Self::default();
        for entry in entries {
            story.fold(entry);
        }
        story
    }

    /// Folds the next entry. One that was folded before is skipped, so that a holder may feed both what it wrote and what it
    /// read.
    pub fn fold(&mut self, entry: &Entry) {
        if entry.sequence < self.next {
            return;
        }
        self.next = entry.sequence + 1;
        match &entry.body {
            EntryBody::Started(born) | EntryBody::Enqueued(born) => {
                self.request = Some(born.request.clone());
                self.agent_version.clone_from(&born.agent_version);
            }
            EntryBody::ModelReply(reply) => self.reply(reply),
            EntryBody::WriteStamped(stamped) | EntryBody::WriteRestamped(stamped) => {
                if let Some(call) = self.calls.get_mut(&stamped.call_id) {
                    call.stamps.push(CallStamped {
                        at: entry.at,
                        epoch: entry.epoch,
                        holder: entry.holder.clone(),
                        attempt: stamped.attempt,
                        endpoint: stamped.endpoint.clone(),
                        entered: true,
                    });
                }
            }
            EntryBody::WriteNotStarted(not_started) => {
                if let Some(stamp) = self.calls.get_mut(&not_started.call_id).and_then(|c| c.stamps.last_mut()) {
                    stamp.entered = false;
                }
            }
            EntryBody::ToolOutcome(outcome) => self.outcome(entry, outcome),
            EntryBody::Suspended(suspended) => {
                for shown in &suspended.card.calls {
                    if let Some(call) = self.calls.get_mut(&shown.id) {
                        call.card = Some(shown.clone());
                        if suspended.card.kind == WaitKind::Approval {
                            call.decided = None;
                        }
                    }
                }
                self.card = Some(StoryCard { card: suspended.card.clone(), since: entry.at });
            }
            EntryBody::Approval(approval) => {
                for decided in &approval.calls {
                    let Some(call) = self.calls.get_mut(&decided.call_id) else { continue };
                    if let Some(arguments) = &decided.arguments {
                        call.edited = Some(arguments.clone());
                        if let Some(requires) = &mut call.requires {
                            // What it has asked and was told was about other arguments: it is made from its beginning.
                            requires.required.questions.clear();
                            requires.required.state = None;
                            requires.replies.clear();
                        }
                        call.card = call.card.take().map(|card| card.edited(arguments.clone(), decided.edited_card.clone()));
                    }
                    if !approval.proposal {
                        call.decided = Some(CallDecided {
                            approved: decided.approved,
                            by: approval.by.id.clone(),
                            at: entry.at,
                            reason: decided.reason.clone(),
                        });
                    }
                }
            }
            EntryBody::Input(input) => {
                let Some(call) = self.calls.get_mut(&input.call_id) else { return };
                match &input.question {
                    None if input.declined => {}
                    None => call.input = Some(input.values.clone()),
                    Some(question) => {
                        if let Some(asked) = &mut call.requires {
                            let values = (!input.declined).then(|| input.values.clone());
                            asked.replies.insert(question.clone(), values);
                        }
                    }
                }
            }
            EntryBody::InputRequired(required) => {
                if let Some(call) = self.calls.get_mut(&required.call_id) {
                    let rounds = call.requires.as_ref().map_or(0, |asked| asked.rounds) + 1;
                    call.requires = Some(CallInput { required: required.clone(), replies: BTreeMap::new(), rounds });
                }
            }
            EntryBody::Question(question) => {
                if let Some(call) = self.calls.get_mut(&question.call_id) {
                    let (prompt, schema) = (question.prompt.clone(), question.schema.clone());
                    let (sequence, at) = (entry.sequence, entry.at);
                    call.question = Some(CallQuestion { sequence, prompt, schema, at, reply: None });
                }
            }
            EntryBody::Answered(answered) => {
                let asked = self.calls.get_mut(&answered.call_id).and_then(|call| call.question.as_mut());
                if let Some(question) = asked.filter(|question| question.sequence == answered.question) {
                    question.reply = Some(answered.clone());
                }
            }
            EntryBody::LateEvidence(late) => {
                self.late.insert(entry.sequence, late.clone());
            }
            EntryBody::Requeued(requeued) => {
                self.end = None;
                self.failure(&requeued.why);
            }
            EntryBody::InDoubt(doubt) => {
                self.end = Some(StoryEnd { state: State::Dead, reason: Some(Reason::WriteInDoubt), detail: doubt.why.clone() });
            }
            EntryBody::DeadLettered(dead) => {
                self.failure(&dead.detail);
                self.end = Some(StoryEnd { state: State::Dead, reason: Some(dead.reason), detail: dead.detail.clone() });
            }
            EntryBody::Settled(settled) => {
                self.failure(&settled.detail);
                if settled.output.is_some() {
                    self.output.clone_from(&settled.output);
                }
                self.truncated = settled.truncated;
                self.end = Some(StoryEnd { state: settled.state, reason: settled.reason, detail: settled.detail.clone() });
            }
            EntryBody::Redriven(_) | EntryBody::SegmentOpened(_) => self.end = None,
            EntryBody::Expired(_)
            | EntryBody::CancelRequested(_)
            | EntryBody::LeaseExpired(_)
            | EntryBody::Resolved(_)
            | EntryBody::Discarded(_)
            | EntryBody::DuplicateEffect(_)
            // The engine opens what is sealed before anybody folds it, or says that it cannot.
            | EntryBody::Sealed(..) => {}
        }
    }

    fn failure(&mut self, detail: &str) {
        if detail.starts_with(MODEL_CALL_FAILED) {
            self.model_failures += 1;
        }
    }

    fn reply(&mut self, reply: &body::ModelReply) {
        for asked in &reply.calls {
            let call = StoryCall::fresh(asked.clone(), reply.turn);
            self.calls.insert(asked.id.clone(), call);
        }
        self.turns.push(StoryTurn {
            number: reply.turn,
            text: reply.text.clone(),
            calls: reply.calls.iter().map(|c| c.id.clone()).collect(),
            opaque: reply.opaque.clone(),
        });
    }

    fn outcome(&mut self, entry: &Entry, outcome: &body::ToolOutcome) {
        let evidence = outcome.evidence.and_then(|sequence| self.late.get(&sequence));
        let (result, is_error) = match evidence {
            Some(late) => (late.result.clone(), late.is_error),
            None => (outcome.result.clone(), outcome.is_error),
        };
        if let Some(call) = self.calls.get_mut(&outcome.call_id) {
            call.outcome = Some(CallOutcome { outcome: outcome.outcome, is_error, result, via: outcome.via, at: entry.at });
        }
    }

    /// Another call of this run with the same tool and arguments that may have been entered.
    pub fn entered_before(&self, id: &CallId, tool: &str, arguments: &Map<String, Value>) -> Option<&StoryCall> {
        let same = super::decision::canonical_hash(arguments);
        self.calls.values().find(|other| {
            &other.asked.id != id
                && other.asked.tool == tool
                && other.was_entered()
                && super::decision::canonical_hash(&other.arguments()) == same
        })
    }

    /// Late evidence on this call that says it is done.
    pub fn late_done(&self, id: &CallId) -> Option<&body::LateEvidence> {
        self.late.values().find(|l| &l.call_id == id && l.answer == LateAnswer::Done)
    }
}
