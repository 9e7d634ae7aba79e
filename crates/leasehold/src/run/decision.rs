//! What a person is shown, and the digest that binds a decision to exactly that.

use super::{
    ids::{CallId, RunId},
    journal::EntryBody,
    state::Effect,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// Which tool exactly: two tools that differ in any of this are different tools to a person who approves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolIdentity {
    /// `rust`, `http`, `mcp`, `site`.
    pub source: String,
    /// `source.tool`.
    pub name: String,
    /// Where it goes, without secrets: URL template and method, or a hash of a command.
    pub endpoint: String,
    /// Hash of the argument schema.
    pub schema_hash: String,
    /// What it is declared to do.
    pub effect: Effect,
    /// The approval policy in force.
    pub approval: String,
}

/// One call on a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardCall {
    /// Its id.
    pub id: CallId,
    /// The tool.
    pub tool: ToolIdentity,
    /// The validated arguments.
    pub arguments: Map<String, Value>,
    /// What would change, in the tool's words; none where it has no preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// What has to hold when it starts, where the tool has such a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precondition: Option<String>,
    /// Preview and precondition are shown only to who may decide about this tool; none: to everybody who sees the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_for: Option<String>,
    /// Why a person is asked, where it is not simply the approval policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Preview and precondition of arguments: the model's, or those that a person put in their place, which then stand for those of the card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditedCard {
    /// What would change, in the tool's words; none where it has no preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// What has to hold when it starts, where the tool has such a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precondition: Option<String>,
    /// Preview and precondition are shown only to who may decide about this tool; none: to everybody who sees the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_for: Option<String>,
}

impl EditedCard {
    /// Takes away what somebody may not see who `decides` about these tools only.
    fn withhold(&mut self, decides: &dyn Fn(&str) -> bool) {
        if self.preview_for.as_deref().is_some_and(|tool| !decides(tool)) {
            self.preview = None;
            self.precondition = None;
        }
    }
}

impl CardCall {
    /// The tool's words were taken away from whoever looks.
    pub fn is_withheld(&self) -> bool {
        self.preview.is_none() && self.preview_for.is_some()
    }
    /// With what the tool says of the arguments.
    pub fn taken(self, card: EditedCard) -> Self {
        let EditedCard { preview, precondition, preview_for } = card;
        Self { preview, precondition, preview_for, ..self }
    }
    /// As it is after a person changed the arguments: what was taken of the old ones does not count for the new ones.
    pub fn edited(self, arguments: Map<String, Value>, card: Option<EditedCard>) -> Self {
        Self { arguments, ..self }.taken(card.unwrap_or_default())
    }
}

/// Approval or input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitKind {
    /// Release or deny.
    Approval,
    /// Fill in values.
    Input,
}

/// Everything a person sees before deciding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnCard {
    /// Approval or input.
    pub kind: WaitKind,
    /// The turn.
    pub turn: u32,
    /// The agent's configuration hash as recorded then.
    pub agent_version: String,
    /// The calls that need a person, in order.
    pub calls: Vec<CardCall>,
    /// For an input: what the values look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// For an input that the call asks for: its question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<AskedInput>,
}

/// Which of its questions a call asks, and in which words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedInput {
    /// The tool's name for it.
    pub id: String,
    /// What it asks.
    pub prompt: String,
}

/// How the reason begins where what a decision rested on is not what it was; what it was and is follows a colon.
pub const BASIS_MOVED: &str = "what the decision was based on";

/// Takes away from an entry the words of tools that are only for who decides about them, where whoever looks does not, and what is
/// for no person.
pub fn withhold(entry: &mut EntryBody, decides: &dyn Fn(&str) -> bool) {
    match entry {
        EntryBody::Suspended(suspended) => {
            for call in &mut suspended.card.calls {
                let mut taken = EditedCard {
                    preview: call.preview.take(),
                    precondition: call.precondition.take(),
                    preview_for: call.preview_for.take(),
                };
                taken.withhold(decides);
                *call = call.clone().taken(taken);
                if call.preview_for.as_deref().is_some_and(|tool| !decides(tool)) {
                    // The reason may say both conditions.
                    call.why = call.why.take().map(|why| match why.split_once(": ") {
                        Some((moved, _)) if moved.starts_with(BASIS_MOVED) => moved.to_owned(),
                        _ => why,
                    });
                }
            }
        }
        // What only the tool is to see again.
        EntryBody::InputRequired(required) => required.state = None,
        EntryBody::Approval(approval) => {
            approval.calls.iter_mut().filter_map(|call| call.edited_card.as_mut()).for_each(|card| card.withhold(decides));
        }
        _ => {}
    }
}

/// SHA-256 of the canonical JSON (RFC 8785) of a value, in hex.
pub fn canonical_hash<T: Serialize>(value: &T) -> String {
    let bytes = serde_json_canonicalizer::to_vec(value).unwrap_or_default();
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl TurnCard {
    /// Names this card in this run at this suspend: the same content shown again later has another digest.
    pub fn digest(&self, run: RunId, suspended_sequence: u64) -> String {
        canonical_hash(&(run, suspended_sequence, self))
    }

    /// The digest after calls left the card because their outcome became known.
    pub fn digest_without(digest: &str, call: &CallId) -> String {
        canonical_hash(&(digest, "without", call))
    }
}
