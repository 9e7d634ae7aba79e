//! What a card says of other calls: the same tool with much the same arguments, asked for, on its way or done not long ago, in this run
//! or another. Two runs that were asked for the same thing are seen before both have done it.

use super::*;
use crate::{
    run::{Outcome, StoryCall},
    store::Visible,
};
use jiff::Timestamp;
use std::{cmp::Reverse, collections::BTreeMap};

/// A call like one of a card.
#[derive(Clone, Debug, PartialEq)]
pub struct SimilarCall {
    /// Its run.
    pub run: RunId,
    /// That run's agent.
    pub agent: String,
    /// The call.
    pub call: CallId,
    /// What it was or would be called with.
    pub arguments: Map<String, Value>,
    /// All of its arguments are the same.
    pub same: bool,
    /// How far it has come.
    pub stage: SimilarStage,
    /// When it got there.
    pub at: Timestamp,
}

/// How far a similar call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimilarStage {
    /// It may still start.
    Open,
    /// It was started, and nobody knows yet what became of it.
    Started,
    /// It is done.
    Done,
}

impl SimilarStage {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Started => "started",
            Self::Done => "done",
        }
    }
}

/// By call of the card, at most [`SIMILAR_SHOWN_MAX`](limits::SIMILAR_SHOWN_MAX) each: those with the same arguments first, then the newest.
pub type Similar = BTreeMap<CallId, Vec<SimilarCall>>;

/// At least half of the arguments are the same; where there are none, they are.
fn is_similar(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let equal = one.iter().filter(|(key, value)| other.get(*key) == Some(value)).count();
    let all = one.len() + other.keys().filter(|key| !one.contains_key(*key)).count();
    equal * 2 >= all
}

/// How far a call has come and when it got there; none where it will not happen, or happened before `since`.
fn stage(row: &Snapshot, story: &Story, call: &StoryCall, since: Timestamp) -> Option<(SimilarStage, Timestamp)> {
    let stamped = call.stamps.iter().rfind(|stamp| stamp.entered).map(|stamp| stamp.at);
    match &call.outcome {
        Some(outcome) if outcome.outcome == Outcome::Done => Some((SimilarStage::Done, outcome.at)),
        Some(outcome) if outcome.outcome == Outcome::Unknown => Some((SimilarStage::Started, stamped?)),
        Some(_) => None,
        None => match stamped {
            Some(at) => Some((SimilarStage::Started, at)),
            None if row.state.is_settled() => None,
            None => Some((SimilarStage::Open, story.card.as_ref().map_or(row.since, |card| card.since))),
        },
    }
    .filter(|(_, at)| *at >= since)
}

impl Runtime {
    /// Looks for calls like those that wait on the card of this run, of the last [`SIMILAR_WITHIN`](limits::SIMILAR_WITHIN), in runs
    /// that whoever looks may see: `visible_to` for the store, `sees` for what only the row tells.
    ///
    /// # Errors
    /// No answer. A run that cannot be read is passed over.
    pub async fn similar(
        &self,
        details: &Details,
        visible_to: Option<&Visible>,
        sees: impl Fn(&Snapshot) -> bool,
    ) -> Result<Similar, OrderError> {
        let Some(card) = details.card() else { return Ok(Similar::new()) };
        let since = self.engine.now().wall.checked_sub(limits::SIMILAR_WITHIN).unwrap_or(Timestamp::MIN);
        let mut candidates = BTreeMap::new();
        let tools: BTreeSet<&str> =
            card.calls.iter().filter(|call| call.tool.effect.is_write()).map(|call| call.tool.name.as_str()).collect();
        for tool in tools {
            for run in self.engine.store().callers(tool, since, visible_to, limits::SIMILAR_RUNS_MAX).await? {
                if candidates.contains_key(&run) {
                    continue;
                }
                match self.details(run).await {
                    Ok(other) if sees(&other.row) => {
                        candidates.insert(run, other);
                    }
                    Ok(_) | Err(OrderError::NotFound | OrderError::Unreadable(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let mut similar = Similar::new();
        for shown in &card.calls {
            // As it would run: with what a person put in the place of the model's arguments.
            let Some(wanted) = details.story.calls.get(&shown.id).map(StoryCall::arguments) else { continue };
            let mut found = Vec::new();
            for other in candidates.values() {
                for (id, call) in &other.story.calls {
                    let arguments = call.arguments();
                    let itself = other.row.id == details.row.id && id == &shown.id;
                    if itself || call.asked.tool != shown.tool.name || !is_similar(&wanted, &arguments) {
                        continue;
                    }
                    let Some((stage, at)) = stage(&other.row, &other.story, call, since) else { continue };
                    let (run, agent, same) = (other.row.id, other.row.agent.clone(), arguments == wanted);
                    found.push(SimilarCall { run, agent, call: id.clone(), arguments, same, stage, at });
                }
            }
            found.sort_by_key(|call| Reverse((call.same, call.at)));
            found.truncate(limits::SIMILAR_SHOWN_MAX);
            if !found.is_empty() {
                similar.insert(shown.id.clone(), found);
            }
        }
        Ok(similar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn half_of_the_arguments_make_a_call_similar() {
        let map = |value: Value| value.as_object().cloned().unwrap();
        let alike = |one: Value, other: Value| is_similar(&map(one), &map(other));
        assert!(alike(json!({}), json!({})));
        assert!(alike(json!({"order": 7, "amount": 20}), json!({"order": 7, "amount": 25})));
        assert!(alike(json!({"order": 7}), json!({"order": 7, "note": "x"})));
        assert!(!alike(json!({"order": 7}), json!({"order": 8})));
        assert!(!alike(json!({"order": 7, "amount": 20, "to": "a"}), json!({"order": 7, "amount": 25, "to": "b"})));
        assert!(!alike(json!({"order": 7}), json!({"order": 7, "a": 1, "b": 2})));
        assert!(!alike(json!({}), json!({"order": 7})));
    }
}
