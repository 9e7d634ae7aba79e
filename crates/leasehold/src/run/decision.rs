//! What a person is shown, and the digest that binds a decision to exactly that.

use super::{
    ids::{CallId, RunId},
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
    /// Why a person is asked, where it is not simply the approval policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Preview and precondition of arguments that a person put in the place of the model's: they stand for those of the card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditedCard {
    /// What would change, in the tool's words; none where it has no preview.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
    /// What has to hold when it starts, where the tool has such a condition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precondition: Option<String>,
}

impl CardCall {
    /// As it is after a person changed the arguments: what was taken of the old ones does not count for the new ones.
    pub fn edited(mut self, arguments: Map<String, Value>, card: Option<EditedCard>) -> Self {
        let EditedCard { preview, precondition } = card.unwrap_or_default();
        self.arguments = arguments;
        self.preview = preview;
        self.precondition = precondition;
        self
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
