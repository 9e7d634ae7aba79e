//! The run's append-only record: one body per kind of entry, and their stored form.
//!
//! A payload is one format-tag byte and then the body; tag 1 is JSON. Tags exist so that sealing and new formats are additive.
//! Numbers, text and U+0000 round-trip exactly.

use super::{
    chain::Hash256,
    decision::{EditedCard, TurnCard},
    ids::{CallId, LeaseId, WriteId},
    snapshot::{LeaseTime, Usage},
    state::{Effect, LateAnswer, Mode, Outcome, Principal, Reason, Recovery, ResolutionKind, SegmentKind, State, Via},
};
use crate::seal::FORMAT_SEALED;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Format tag of a JSON payload.
const FORMAT_JSON: u8 = 1;

/// Who speaks in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The caller.
    User,
    /// The model, in a conversation that the caller hands in.
    Assistant,
}

/// One message of a request; text only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputMessage {
    /// Who.
    pub role: Role,
    /// What.
    pub text: String,
}

/// What a run was asked to do: all that a continuation needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// The conversation; the last message is the task.
    pub messages: Vec<InputMessage>,
    /// Narrows the agent's tools (patterns as in the agent).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Narrows the agent's cap on rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_rounds: Option<u32>,
    /// The caller's own, given back as it came.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

/// One call of a model reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyCall {
    /// Our id.
    pub id: CallId,
    /// The tool as it is named here (`source.tool`), or what the model wrote where there is no such tool.
    pub tool: String,
    /// The arguments exactly as the model wrote them.
    pub raw_arguments: String,
    /// The arguments as an object, where they are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Map<String, Value>>,
    /// Declared when the reply was recorded.
    pub effect: Effect,
    /// A person has to decide.
    pub needs_person: bool,
}

/// What a call asks before it goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputQuestion {
    /// The tool's name for it.
    pub id: String,
    /// What it asks.
    pub prompt: String,
    /// What the values look like.
    pub schema: Value,
}

/// Bodies of journal entries.
pub mod body {
    use super::*;

    /// started, enqueued.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Born {
        /// What is asked.
        pub request: Request,
        /// How.
        pub mode: Mode,
        /// Who finishes it.
        pub recovery: Recovery,
        /// Hash of the agent's configuration at that time.
        pub agent_version: String,
        /// Who asked.
        pub by: Principal,
        /// The first segment's lease, where it was claimed at birth.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lease_id: Option<LeaseId>,
    }
    /// segment_opened.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct SegmentOpened {
        /// Why it executes.
        pub segment: SegmentKind,
        /// Its lease.
        pub lease_id: LeaseId,
    }
    /// model_reply.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ModelReply {
        /// Counts from 1.
        pub turn: u32,
        /// What it said.
        pub text: String,
        /// What it asks for.
        pub calls: Vec<ReplyCall>,
        /// Which model.
        pub model: String,
        /// Why it stopped, in the provider's word.
        pub stop: String,
        /// What this reply used.
        pub usage: Usage,
        /// What the provider wants to see again unchanged (thought signatures).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub opaque: Option<Value>,
    }
    /// write_stamped, write_restamped.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Stamped {
        /// The call.
        pub call_id: CallId,
        /// Its tool.
        pub tool: String,
        /// The effect it is fenced as.
        pub effect: Effect,
        /// Sent with it.
        pub idempotency_key: String,
        /// 1 for the first entry.
        pub attempt: u32,
        /// Where it is sent; empty in the entries of a version that did not say.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        pub endpoint: String,
    }
    /// write_not_started.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct NotStarted {
        /// The call.
        pub call_id: CallId,
        /// Said after the right moved on.
        pub late: bool,
        /// An earlier attempt may have been entered: the fence stands.
        pub fence_kept: bool,
        /// Why.
        pub why: String,
    }
    /// tool_outcome.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct ToolOutcome {
        /// The call.
        pub call_id: CallId,
        /// Its tool.
        pub tool: String,
        /// What became of it.
        pub outcome: Outcome,
        /// The answer is an error.
        pub is_error: bool,
        /// The answer; text is a JSON string.
        pub result: Value,
        /// Said after the right moved on.
        pub late: bool,
        /// How it came to be known.
        pub via: Via,
        /// Sequence of the late_evidence whose answer this is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub evidence: Option<u64>,
    }
    /// input_required.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct InputRequired {
        /// The call that does not go on without it.
        pub call_id: CallId,
        /// Its tool.
        pub tool: String,
        /// What it asks, in order.
        pub questions: Vec<InputQuestion>,
        /// What the tool wants to see again unchanged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub state: Option<String>,
    }
    /// suspended.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Suspended {
        /// What a person sees.
        pub card: TurnCard,
        /// Names exactly that.
        pub digest: String,
        /// Until when.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub deadline: Option<Timestamp>,
    }
    /// One call's part of an approval.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Decided {
        /// The call.
        pub call_id: CallId,
        /// Approved or denied.
        pub approved: bool,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub reason: Option<String>,
        /// The arguments it runs with, where the person changed them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub arguments: Option<Map<String, Value>>,
        /// What the tool says of them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub edited_card: Option<EditedCard>,
    }
    /// approval.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Approval {
        /// What it was about.
        pub digest: String,
        /// Who.
        pub by: Principal,
        /// Per call.
        pub calls: Vec<Decided>,
        /// An edit proposed under four eyes, not a release.
        pub proposal: bool,
        /// The continuing segment's lease, where the decider executes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lease_id: Option<LeaseId>,
    }
    /// input.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Input {
        /// What it was about.
        pub digest: String,
        /// Who.
        pub by: Principal,
        /// For which call.
        pub call_id: CallId,
        /// Which of the questions that the call has asked; none: the values that its tool declares.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub question: Option<String>,
        /// Values of the declared keys.
        pub values: Map<String, Value>,
        /// They do not want to give any.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub declined: bool,
        /// The continuing segment's lease, where the submitter executes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub lease_id: Option<LeaseId>,
    }
    /// question.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Question {
        /// The running call that asks.
        pub call_id: CallId,
        /// What it asks.
        pub prompt: String,
        /// What an answer looks like.
        pub schema: Value,
    }
    /// answered.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Answered {
        /// The call that asked.
        pub call_id: CallId,
        /// Sequence of the question.
        pub question: u64,
        /// Who.
        pub by: Principal,
        /// The answer; none: the person declined.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub values: Option<Map<String, Value>>,
    }
    /// expired.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Expired {
        /// Calls that nobody decided.
        pub calls: Vec<CallId>,
    }
    /// cancel_requested, redriven, discarded.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct By {
        /// Who.
        pub by: Principal,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub note: Option<String>,
    }
    /// requeued.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Requeued {
        /// In words.
        pub why: String,
        /// Spent so far.
        pub requeues: u32,
        /// Not claimed before.
        pub due_at: Timestamp,
    }
    /// lease_expired.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct LeaseExpired {
        /// Whose right ended.
        pub holder: String,
        /// The epoch that ended.
        pub epoch: u64,
        /// The lease that ended.
        pub lease_id: LeaseId,
        /// Until when its last renewal held; an entry of an earlier version does not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub expires_at: Option<LeaseTime>,
    }
    /// in_doubt.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct InDoubt {
        /// The write.
        pub call_id: CallId,
        /// Its tool.
        pub tool: String,
        /// Sent with it.
        pub idempotency_key: String,
        /// Epoch of the newest stamp.
        pub fence_epoch: u64,
        /// In words: what is known.
        pub why: String,
    }
    /// resolved.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Resolved {
        /// The write.
        pub call_id: CallId,
        /// Which doubt.
        pub fence_epoch: u64,
        /// What the person says.
        pub outcome: ResolutionKind,
        /// Who.
        pub by: Principal,
        /// Why.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub note: Option<String>,
    }
    /// late_evidence.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct LateEvidence {
        /// The call.
        pub call_id: CallId,
        /// The sender's epoch.
        pub epoch: u64,
        /// The sender's lease.
        pub lease_id: LeaseId,
        /// What it says.
        pub answer: LateAnswer,
        /// The answer is an error.
        pub is_error: bool,
        /// The answer.
        pub result: Value,
        /// The record says something else.
        pub contradicts: bool,
    }
    /// duplicate_effect.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct DuplicateEffect {
        /// The call that landed twice.
        pub call_id: CallId,
        /// Its tool.
        pub tool: String,
        /// The attempt known second.
        pub epoch: u64,
    }
    /// dead_lettered.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct DeadLettered {
        /// Why.
        pub reason: Reason,
        /// In words.
        pub detail: String,
    }
    /// settled.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub struct Settled {
        /// completed, failed or cancelled.
        pub state: State,
        /// Why, where failed.
        pub reason: Option<Reason>,
        /// The agent's answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub output: Option<String>,
        /// The cap on rounds ended it.
        pub truncated: bool,
        /// In words.
        pub detail: String,
    }
}

/// A payload that does not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("journal entry of kind {kind} does not decode: {why}")]
pub struct DecodeError {
    /// The stored kind.
    pub kind: String,
    /// What is wrong with it; no content.
    pub why: String,
}

macro_rules! entries {
    ($($(#[$doc:meta])* $variant:ident($body:ty) = $kind:literal),+ $(,)?) => {
        /// What happened, with its content.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum EntryBody {
            $($(#[$doc])* $variant($body),)+
            /// What is stored sealed, with its kind; nothing acts on it before it is opened.
            Sealed(&'static str, Vec<u8>),
        }

        impl EntryBody {
            /// Every kind of entry, in the order of the docs.
            pub const KINDS: &'static [&'static str] = &[$($kind),+];

            /// The stored kind.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $kind,)+ Self::Sealed(kind, _) => kind }
            }

            /// The content as JSON, as the API shows it.
            pub fn to_value(&self) -> Value {
                match self {
                    $(Self::$variant(b) => serde_json::to_value(b).unwrap_or(Value::Null),)+
                    Self::Sealed(..) => Value::Null,
                }
            }

            /// Reads what [`Self::to_value`] made of an entry of that kind.
            ///
            /// # Errors
            /// An unknown kind, or a value that is not of its kind.
            pub fn from_value(kind: &str, value: &Value) -> Result<Self, DecodeError> {
                let mut bytes = vec![FORMAT_JSON];
                // A JSON value in memory has no failing case.
                serde_json::to_writer(&mut bytes, value).ok();
                Self::decode(kind, &bytes)
            }

            /// The stored form: format tag, then JSON.
            pub fn encode(&self) -> Vec<u8> {
                if let Self::Sealed(_, envelope) = self {
                    return envelope.clone();
                }
                let mut bytes = vec![FORMAT_JSON];
                // Bodies are structs of strings, numbers and JSON values with string keys: serialising them into memory has
                // no failing case.
                match self {
                    $(Self::$variant(b) => serde_json::to_writer(&mut bytes, b).ok(),)+
                    Self::Sealed(..) => None,
                };
                bytes
            }

            /// Reads the stored form.
            ///
            /// # Errors
            /// An unknown kind or format tag, or a body that is not of its kind.
            pub fn decode(kind: &str, payload: &[u8]) -> Result<Self, DecodeError> {
                let fail = |why: String| DecodeError { kind: kind.to_owned(), why };
                if payload.first() == Some(&FORMAT_SEALED) {
                    let known = Self::KINDS.iter().find(|known| **known == kind);
                    return Ok(Self::Sealed(known.ok_or_else(|| fail("unknown kind".into()))?, payload.to_vec()));
                }
                let Some((&FORMAT_JSON, json)) = payload.split_first() else {
                    return Err(fail(match payload.first() {
                        Some(tag) => format!("unknown format tag {tag}"),
                        None => "empty payload".into(),
                    }));
                };
                match kind {
                    $($kind => serde_json::from_slice(json)
                        .map(Self::$variant)
                        .map_err(|e| fail(format!("line {} column {}", e.line(), e.column()))),)+
                    _ => Err(fail("unknown kind".into())),
                }
            }
        }
    };
}

entries!(
    /// Claimed at birth.
    Started(body::Born) = "started",
    /// Put in the queue.
    Enqueued(body::Born) = "enqueued",
    /// A claim.
    SegmentOpened(body::SegmentOpened) = "segment_opened",
    /// A model answered.
    ModelReply(body::ModelReply) = "model_reply",
    /// The fence was set.
    WriteStamped(body::Stamped) = "write_stamped",
    /// The fence was set anew for a repeat.
    WriteRestamped(body::Stamped) = "write_restamped",
    /// Stamped, and certainly not entered.
    WriteNotStarted(body::NotStarted) = "write_not_started",
    /// What became of a call.
    ToolOutcome(body::ToolOutcome) = "tool_outcome",
    /// A call does not go on without input.
    InputRequired(body::InputRequired) = "input_required",
    /// A person is asked.
    Suspended(body::Suspended) = "suspended",
    /// A person decided.
    Approval(body::Approval) = "approval",
    /// A person filled in values.
    Input(body::Input) = "input",
    /// A running tool asks.
    Question(body::Question) = "question",
    /// A person answered it.
    Answered(body::Answered) = "answered",
    /// Nobody decided in time.
    Expired(body::Expired) = "expired",
    /// Somebody cancelled.
    CancelRequested(body::By) = "cancel_requested",
    /// Back to the queue.
    Requeued(body::Requeued) = "requeued",
    /// A right ended without its holder's word.
    LeaseExpired(body::LeaseExpired) = "lease_expired",
    /// A write may have happened.
    InDoubt(body::InDoubt) = "in_doubt",
    /// A person settled a doubt.
    Resolved(body::Resolved) = "resolved",
    /// An operator sent it on.
    Redriven(body::By) = "redriven",
    /// An operator gave it up.
    Discarded(body::By) = "discarded",
    /// A former holder said something.
    LateEvidence(body::LateEvidence) = "late_evidence",
    /// One call landed twice.
    DuplicateEffect(body::DuplicateEffect) = "duplicate_effect",
    /// The runtime refuses to continue by itself.
    DeadLettered(body::DeadLettered) = "dead_lettered",
    /// The end.
    Settled(body::Settled) = "settled",
);

/// One entry of a run's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the run, from 0, without gaps.
    pub sequence: u64,
    /// When it was made, by the clock of the process that made it, to the millisecond.
    pub at: Timestamp,
    /// The run's epoch after it.
    pub epoch: u64,
    /// The segment that made it, where one did.
    pub holder: Option<String>,
    /// The store write it belongs to.
    pub write_id: WriteId,
    /// The keyed hash of its payload, by the chain of its run; none of a run without one.
    pub mac: Option<Hash256>,
    /// What happened.
    pub body: EntryBody,
}

impl EntryBody {
    /// Who ordered it, where a person or a machine did, and how they showed who they are.
    pub fn principal(&self) -> Option<String> {
        let by = match self {
            Self::Started(b) | Self::Enqueued(b) => &b.by,
            Self::Approval(b) => &b.by,
            Self::Input(b) => &b.by,
            Self::Answered(b) => &b.by,
            Self::Resolved(b) => &b.by,
            Self::CancelRequested(b) | Self::Redriven(b) | Self::Discarded(b) => &b.by,
            _ => return None,
        };
        Some(format!("{}:{} by {}", by.kind, by.id, by.method.as_deref().unwrap_or("-")))
    }
}
