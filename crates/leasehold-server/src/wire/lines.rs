//! Lines of lists, and entries of journals.

use jiff::Timestamp;
use leasehold::{run::Entry, store::Listed};
use serde::Serialize;
use serde_json::Value;

/// A line of a list: what is known without reading the run's content.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct RunLine {
    pub(crate) id: String,
    agent: String,
    owner: String,
    team: Option<String>,
    state: String,
    reason: Option<String>,
    holder: Option<String>,
    epoch: u64,
    cancel_requested: bool,
    fence: Option<FenceLine>,
    duplicates: u32,
    contradictions: u32,
    /// By whom its writes were released, the weakest of them: `unknown`, `self`, `second_person`.
    attribution: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    since: Timestamp,
}

/// The tool of a standing fence.
#[derive(Debug, Serialize, utoipa::ToSchema)]
struct FenceLine {
    tool: String,
}

impl From<&Listed> for RunLine {
    fn from(listed: &Listed) -> Self {
        Self {
            id: listed.id.to_string(),
            agent: listed.agent.clone(),
            owner: listed.owner.clone(),
            team: listed.team.clone(),
            state: listed.state.clone(),
            reason: listed.reason.clone(),
            holder: listed.holder.clone(),
            epoch: listed.epoch,
            cancel_requested: listed.cancel_requested,
            fence: listed.fence_tool.clone().map(|tool| FenceLine { tool }),
            duplicates: listed.duplicates,
            contradictions: listed.contradictions,
            attribution: listed.attribution.clone(),
            created_at: listed.created_at,
            since: listed.since,
        }
    }
}

/// An entry of a run's journal.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(crate) struct Event {
    sequence: u64,
    /// What happened.
    kind: &'static str,
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    epoch: u64,
    holder: Option<String>,
    #[schema(value_type = Object)]
    payload: Value,
}

impl From<&Entry> for Event {
    fn from(entry: &Entry) -> Self {
        Self {
            sequence: entry.sequence,
            kind: entry.body.kind(),
            at: entry.at,
            epoch: entry.epoch,
            holder: entry.holder.clone(),
            payload: entry.body.to_value(),
        }
    }
}
