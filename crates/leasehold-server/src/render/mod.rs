//! What people read: one screen about a run, the card of a decision, the inbox and the lists. Written against the row and its
//! journal alone; everything is printed through [`crate::terminal`].

mod card;
mod doubt;
mod fields;
mod lists;
mod questions;
mod show;
mod timeline;
mod verdict;

pub(crate) use card::{card, digest, how_to_decide, open_calls};
pub(crate) use doubt::doubt;
pub(crate) use lists::{about, inbox_table, runs_table};
pub(crate) use questions::{Asked, answering, how_to_answer, questions};
pub(crate) use show::show;
pub(crate) use timeline::words;
pub(crate) use verdict::sentence;

use crate::terminal::Screen;
use jiff::{Timestamp, Unit};
use leasehold::{
    Similar, Unserved,
    clock::BootClock,
    run::{CallId, Effect, Entry, EntryBody, Fence, LeaseId, Reason, ReplyCall, Snapshot, body},
};
use serde_json::{Map, Value};
use std::time::Duration;

/// Lines of an argument or a preview that are shown.
const BLOCK_LINES_MAX: usize = 200;

/// A run to be shown: its row, its whole journal, and when and how it is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The row.
    pub(crate) row: &'a Snapshot,
    /// The journal from its first entry.
    pub(crate) entries: &'a [Entry],
    /// The clock of local leases.
    pub(crate) boot: &'a dyn BootClock,
    /// Why it is not shown whole, where its journal or its row does not decode.
    pub(crate) unreadable: Option<&'a str>,
    /// Calls like those on its card, where somebody looked for them.
    pub(crate) similar: Option<&'a Similar>,
    /// What the live workers lack for it, where somebody looked for that.
    pub(crate) unserved: Option<&'a Unserved>,
    /// Now.
    pub(crate) now: Timestamp,
    /// How this program is called, for the commands that are shown.
    pub(crate) command: &'a str,
}

impl Subject<'_> {
    /// A call of any turn, as the model asked for it.
    fn asked(&self, id: &leasehold::run::CallId) -> Option<&ReplyCall> {
        self.entries.iter().rev().find_map(|entry| match &entry.body {
            EntryBody::ModelReply(reply) => reply.calls.iter().find(|call| &call.id == id),
            _ => None,
        })
    }
    /// The write in doubt, if there is one.
    pub(crate) fn doubted(&self) -> Option<&Fence> {
        self.row.fence.as_ref().filter(|_| self.row.reason == Some(Reason::WriteInDoubt))
    }
    /// Why nobody knows what became of it.
    pub(crate) fn doubted_because(&self) -> &str {
        let why = self.entries.iter().rev().find_map(|entry| match &entry.body {
            EntryBody::InDoubt(b) => Some(b.why.as_str()),
            _ => None,
        });
        why.unwrap_or("its process ended without a word")
    }
    /// The newest stamp of a call.
    pub(crate) fn stamped(&self, id: &CallId) -> Option<(&Entry, &body::Stamped)> {
        self.entries.iter().rev().find_map(|entry| match &entry.body {
            EntryBody::WriteStamped(b) | EntryBody::WriteRestamped(b) if &b.call_id == id => Some((entry, b)),
            _ => None,
        })
    }
    /// How a lease ended without its holder's word.
    pub(crate) fn lease_of(&self, lease: LeaseId) -> Option<(Timestamp, &body::LeaseExpired)> {
        self.entries.iter().find_map(|entry| match &entry.body {
            EntryBody::LeaseExpired(b) if b.lease_id == lease => Some((entry.at, b)),
            _ => None,
        })
    }
    /// What former holders say of a call.
    pub(crate) fn evidence(&self, id: &CallId) -> impl Iterator<Item = (Timestamp, &body::LateEvidence)> {
        self.entries.iter().filter_map(move |entry| match &entry.body {
            EntryBody::LateEvidence(late) if &late.call_id == id => Some((entry.at, late)),
            _ => None,
        })
    }
    /// The arguments a call runs with: a person's edit over what the model asked for.
    pub(crate) fn arguments(&self, id: &leasehold::run::CallId) -> Map<String, Value> {
        let edited = self.entries.iter().rev().find_map(|entry| match &entry.body {
            EntryBody::Approval(approval) => {
                approval.calls.iter().find(|call| &call.call_id == id).and_then(|call| call.arguments.clone())
            }
            _ => None,
        });
        edited.or_else(|| self.asked(id).and_then(|call| call.arguments.clone())).unwrap_or_default()
    }
}

/// An effect in words.
pub(crate) fn effect_words(effect: Effect) -> &'static str {
    match effect {
        Effect::ReadOnly => "reads only",
        Effect::IdempotentWrite => "write; a repeat with the same key changes nothing more",
        Effect::NonIdempotentWrite => "write; a repeat is a second effect",
    }
}

/// `1 write`, `2 writes`.
fn many(n: impl TryInto<u64>, one: &str) -> String {
    match n.try_into().unwrap_or(u64::MAX) {
        1 => format!("1 {one}"),
        n if one.ends_with('y') => format!("{n} {}ies", &one[..one.len() - 1]),
        n => format!("{n} {one}s"),
    }
}

/// A time for people.
pub(crate) fn clock(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// A time and how long ago it was or how far away it is.
fn when(at: Timestamp, now: Timestamp) -> String {
    let age = now.duration_since(at);
    let side = if age.is_negative() {
        format!("in {}", span(age.unsigned_abs()))
    } else {
        format!("{} ago", span(age.unsigned_abs()))
    };
    format!("{} ({side})", clock(at))
}

/// How long, in two units at most.
pub(crate) fn span(length: Duration) -> String {
    let seconds = length.as_secs();
    match seconds {
        0..60 => format!("{}s", seconds),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How long after the run began.
fn offset(at: Timestamp, from: Timestamp) -> String {
    let since = at.duration_since(from).unsigned_abs();
    if since < Duration::from_secs(100) { format!("+{:.1}s", since.as_secs_f64()) } else { format!("+{}", span(since)) }
}

/// How long ago, for lists.
fn ago(at: Timestamp, now: Timestamp) -> String {
    let rounded = now.round(Unit::Second).unwrap_or(now);
    span(Duration::try_from(rounded.duration_since(at)).unwrap_or_default())
}

/// Arguments or other JSON, one key a line; text of several lines behind a gutter.
pub(crate) fn arguments(screen: &mut Screen, indent: usize, arguments: &Map<String, Value>) {
    if arguments.is_empty() {
        screen.line(format!("{:indent$}(none)", ""));
    }
    for (key, value) in arguments {
        match value {
            Value::String(text) if text.contains('\n') => {
                screen.line(format!("{:indent$}{key}:", ""));
                screen.block(indent + 2, text, BLOCK_LINES_MAX);
            }
            Value::Object(_) | Value::Array(_) => {
                let pretty = serde_json::to_string_pretty(value).unwrap_or_default();
                screen.line(format!("{:indent$}{key}:", ""));
                screen.block(indent + 2, &pretty, BLOCK_LINES_MAX);
            }
            other => {
                screen.line(format!("{:indent$}{key}: {other}", ""));
            }
        }
    }
}

/// A result for people: text as it is, anything else as JSON.
fn result_text(result: &Value) -> String {
    match result {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests;
