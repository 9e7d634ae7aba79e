//! What a running call asks a person. Its words are the tool's: they stand behind a gutter.

use super::{BLOCK_LINES_MAX, Subject, fields::fields, when};
use crate::terminal::{Look, Screen, span};
use jiff::Timestamp;
use leasehold::run::{CallId, EntryBody, OpenCall, RunId, body};

/// A question that stands.
pub(crate) struct Asked<'a> {
    /// The call that asks.
    pub(crate) call: &'a OpenCall,
    /// The number of the question.
    pub(crate) number: u64,
    /// What it asks.
    pub(crate) question: &'a body::Question,
    /// When.
    pub(crate) at: Timestamp,
}

impl<'a> Subject<'a> {
    /// What running calls ask, as far as the journal can be read.
    pub(crate) fn questions(&self) -> impl Iterator<Item = Asked<'a>> {
        let entries = self.entries;
        self.row.questions().filter_map(|(call, number)| {
            let entry = entries.iter().rev().find(|entry| entry.sequence == number)?;
            let EntryBody::Question(question) = &entry.body else { return None };
            Some(Asked { call, number, question, at: entry.at })
        })
    }
}

/// Shows what is asked; `only`: one of them.
pub(crate) fn questions(screen: &mut Screen, subject: &Subject<'_>, only: Option<u64>) {
    for asked in subject.questions().filter(|asked| only.is_none_or(|only| only == asked.number)) {
        screen.spans(&[
            span(Look::Plain, "  "),
            span(Look::Strong, &asked.call.tool),
            span(Look::Faint, format!("  call {}, question {}, {}", asked.call.id, asked.number, when(asked.at, subject.now))),
        ]);
        screen.block(4, &asked.question.prompt, BLOCK_LINES_MAX);
        fields(screen, &asked.question.schema);
    }
}

/// The commands that answer a question.
pub(crate) fn how_to_answer(screen: &mut Screen, subject: &Subject<'_>) {
    for asked in subject.questions() {
        let command = answering(subject.command, subject.row.id, &asked.call.id, asked.number);
        screen.styled(Look::Faint, "  to answer exactly this:");
        screen.command(format!("    {command} --values '{{..}}'"));
        screen.command(format!("    {command} --decline"));
    }
}

/// The beginning of a command that answers that question.
pub(crate) fn answering(command: &str, run: RunId, call: &CallId, question: u64) -> String {
    format!("{command} answer {run} --call {call} --question {question}")
}
