//! What holds of every journal, whatever happened: counted from its entries, and compared with the row.

use leasehold::agent::model::Message;
use leasehold::run::{
    CallId, Effect, Entry, EntryBody, Outcome, ResolutionKind, Snapshot, State,
    chain::{self, ChainError},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Default)]
struct Books {
    asked: BTreeSet<CallId>,
    outcomes: BTreeMap<CallId, Outcome>,
    /// Stamped, and neither answered nor known to be unused.
    fenced: Option<CallId>,
    /// Non-idempotent calls that were stamped and may not be stamped again by a first stamp.
    stamped: BTreeSet<CallId>,
    resolved: BTreeSet<(CallId, u64)>,
    decided: BTreeSet<(String, CallId)>,
    cancelled: bool,
    epoch: u64,
}

/// Checks what a model is asked with against what every provider insists on: each call of an assistant message is followed at once
/// by its one result, in order; no result stands elsewhere; no id comes twice; it does not end with an answer.
///
/// # Errors
/// The first rule that does not hold.
pub fn transcript(messages: &[Message]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    let mut owed: VecDeque<&CallId> = VecDeque::new();
    for (at, message) in messages.iter().enumerate() {
        let told = |why: String| format!("message {at}: {why}");
        match message {
            Message::ToolResult { call_id, .. } => match owed.pop_front() {
                Some(owed) if owed == call_id => {}
                Some(owed) => return Err(told(format!("the result of {call_id} stands where that of {owed} has to"))),
                None => return Err(told(format!("a result of {call_id}, which no call before it asks for"))),
            },
            _ if !owed.is_empty() => return Err(told(format!("{owed:?} have no result"))),
            Message::User(_) => {}
            Message::Assistant { calls, .. } => {
                for call in calls {
                    if !seen.insert(&call.id) {
                        return Err(told(format!("{} comes twice", call.id)));
                    }
                    owed.push_back(&call.id);
                }
            }
        }
    }
    match messages.last() {
        _ if !owed.is_empty() => Err(format!("{owed:?} have no result at the end")),
        Some(Message::User(_) | Message::ToolResult { .. }) => Ok(()),
        Some(Message::Assistant { .. }) | None => Err("it asks for nothing: it ends with an answer, or is empty".into()),
    }
}

/// Checks a journal against its row.
///
/// # Errors
/// The first invariant that does not hold, with the number of the entry.
pub fn journal(row: &Snapshot, entries: &[Entry]) -> Result<(), String> {
    let mut books = Books::default();
    for (expected, entry) in (0..).zip(entries) {
        let told = |why: String| format!("entry {expected} ({}): {why}", entry.body.kind());
        if entry.sequence != expected {
            return Err(told(format!("8: it has the number {}", entry.sequence)));
        }
        if entry.epoch < books.epoch {
            return Err(told("the epoch fell".into()));
        }
        books.epoch = entry.epoch;
        books.take(&entry.body).map_err(told)?;
    }
    books.at_the_end(row, entries.len() as u64)?;
    match chain::verify(row.chain.as_ref(), entries, &[]) {
        Ok(_) | Err(ChainError::None) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

impl Books {
    fn take(&mut self, body: &EntryBody) -> Result<(), String> {
        match body {
            EntryBody::ModelReply(reply) => self.asked.extend(reply.calls.iter().map(|c| c.id.clone())),
            EntryBody::CancelRequested(_) => self.cancelled = true,
            EntryBody::WriteStamped(s) | EntryBody::WriteRestamped(s) => {
                if self.outcomes.contains_key(&s.call_id) {
                    return Err("3: a call with an outcome was stamped".into());
                }
                if self.cancelled {
                    return Err("7: stamped after an accepted cancel".into());
                }
                let again = matches!(body, EntryBody::WriteRestamped(_));
                if again != (self.fenced.as_ref() == Some(&s.call_id)) || !again && self.fenced.is_some() {
                    return Err("stamped under another fence, or again without its own".into());
                }
                if s.effect == Effect::NonIdempotentWrite && !again && !self.stamped.insert(s.call_id.clone()) {
                    return Err("2: stamped a second time without a word that it did not happen".into());
                }
                self.fenced = Some(s.call_id.clone());
            }
            EntryBody::WriteNotStarted(n) if !n.fence_kept => {
                self.stamped.remove(&n.call_id);
                self.fenced.take_if(|c| *c == n.call_id);
            }
            EntryBody::InputRequired(asked) => {
                // Its tool's word that it did nothing.
                self.stamped.remove(&asked.call_id);
                self.fenced.take_if(|c| *c == asked.call_id);
            }
            EntryBody::Input(said) if !self.decided.insert((said.digest.clone(), said.call_id.clone())) => {
                return Err("5: values taken twice for one card".into());
            }
            EntryBody::ToolOutcome(said) => {
                if self.outcomes.insert(said.call_id.clone(), said.outcome).is_some() {
                    return Err("8: a second outcome".into());
                }
                self.fenced.take_if(|c| *c == said.call_id);
            }
            EntryBody::Resolved(said) => {
                if !self.resolved.insert((said.call_id.clone(), said.fence_epoch)) {
                    return Err("5: a resolution consumed twice".into());
                }
                if said.outcome == ResolutionKind::NotLanded {
                    self.stamped.remove(&said.call_id);
                    self.fenced.take_if(|c| *c == said.call_id);
                }
            }
            EntryBody::Approval(said) if !said.proposal => {
                for call in &said.calls {
                    if !self.decided.insert((said.digest.clone(), call.call_id.clone())) {
                        return Err("5: a call decided twice on one card".into());
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn at_the_end(&self, row: &Snapshot, entries: u64) -> Result<(), String> {
        row.check()?;
        if let Some(call) = row.misses_fence() {
            return Err(format!("9: call {} may have been entered, and no fence says so", call.id));
        }
        if row.sequence != entries {
            return Err(format!("8: the row counts {} entries, and there are {entries}", row.sequence));
        }
        if row.epoch != self.epoch {
            return Err(format!("the row's epoch is {}, the journal's {}", row.epoch, self.epoch));
        }
        if self.fenced != row.fence.as_ref().map(|f| f.call_id.clone()) {
            return Err(format!("9: the journal says that {:?} is in flight, the row {:?}", self.fenced, row.fence));
        }
        if self.cancelled != row.cancel_requested {
            return Err("7: the row and the journal differ about a cancel".into());
        }
        if matches!(row.state, State::Completed | State::Cancelled) {
            let open = self.asked.iter().find(|c| !self.outcomes.contains_key(*c));
            if let Some(open) = open {
                return Err(format!("8: ended, and call {open} has no outcome"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::agent::model::TranscriptCall;

    #[test]
    fn each_rule_of_a_transcript_is_seen_where_it_does_not_hold() {
        let user = || Message::User("go".into());
        let asks = |calls: &[usize]| Message::Assistant {
            text: String::new(),
            calls: calls
                .iter()
                .map(|at| TranscriptCall { id: CallId::of(1, *at), tool: "a.b".into(), arguments: Default::default() })
                .collect(),
            opaque: None,
        };
        let result = |at| Message::ToolResult { call_id: CallId::of(1, at), text: String::new(), is_error: false };
        transcript(&[user(), asks(&[0, 1]), result(0), result(1)]).unwrap();
        transcript(&[user(), asks(&[0]), result(0), asks(&[]), user()]).unwrap();
        for (messages, why) in [
            (vec![user(), asks(&[0, 1]), result(1), result(0)], "stands where"),
            (vec![user(), asks(&[0]), user(), result(0)], "have no result"),
            (vec![user(), asks(&[0, 1]), result(0)], "at the end"),
            (vec![user(), result(0)], "which no call"),
            (vec![user(), asks(&[0]), result(0), result(0)], "which no call"),
            (vec![user(), asks(&[0, 0]), result(0), result(0)], "comes twice"),
            (vec![user(), asks(&[])], "ends with an answer"),
            (Vec::new(), "is empty"),
        ] {
            let told = transcript(&messages).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
