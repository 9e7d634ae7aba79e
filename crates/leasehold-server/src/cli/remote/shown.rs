//! What of an answer the commands use, and the text that the server shows, in parts.

use super::{
    Remote,
    client::{Answer, Trouble, Want},
};
use crate::{
    cli::{Exit, Failure, local::exit_in},
    terminal::{Look, Screen},
};
use jiff::Timestamp;
use leasehold::run::{CallId, Entry, EntryBody, Reason, RunId, State, WriteId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A page of a list.
#[derive(Debug, Deserialize)]
pub(super) struct Page<T> {
    pub(super) items: Vec<T>,
    pub(super) next_cursor: Option<String>,
}

/// A line of a list.
#[derive(Debug, Deserialize)]
pub(super) struct Line {
    pub(super) id: RunId,
}

/// A run.
#[derive(Debug, Deserialize)]
pub(super) struct Run {
    pub(super) id: RunId,
    pub(super) agent: String,
    pub(super) state: State,
    pub(super) reason: Option<Reason>,
    pub(super) waiting: Option<Waiting>,
    /// A server of before has none.
    #[serde(default)]
    pub(super) questions: Vec<Question>,
    pub(super) fence: Option<Fence>,
    pub(super) output: Option<String>,
}

/// What it waits for.
#[derive(Debug, Deserialize)]
pub(super) struct Waiting {
    pub(super) turn_digest: String,
    pub(super) calls: Vec<Call>,
}

/// A call of the card.
#[derive(Debug, Deserialize)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) tool: String,
    needs_approval: bool,
    decision: Option<String>,
}

/// What a running call asks.
#[derive(Debug, Deserialize)]
pub(super) struct Question {
    pub(super) call_id: String,
    pub(super) question: u64,
}

/// The write in flight.
#[derive(Debug, Deserialize)]
pub(super) struct Fence {
    pub(super) epoch: u64,
}

impl Run {
    /// Nothing more happens until a person acts.
    pub(super) fn rests(&self) -> bool {
        self.state.is_settled() || self.state.is_waiting() || self.state == State::Dead
    }
    /// How a command ends that leaves it so.
    pub(super) fn exit(&self) -> Exit {
        exit_in(self.state, self.reason)
    }
    /// The calls that a person has still to decide about.
    pub(super) fn undecided(&self) -> Vec<&Call> {
        let calls = self.waiting.iter().flat_map(|waiting| &waiting.calls);
        calls.filter(|call| call.needs_approval && call.decision.is_none()).collect()
    }
}

/// An entry of a journal.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Event {
    pub(super) sequence: u64,
    kind: String,
    pub(super) at: Timestamp,
    epoch: u64,
    holder: Option<String>,
    payload: Value,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl Event {
    /// The call that asks a person with this entry.
    pub(super) fn asks(&self) -> Option<CallId> {
        match EntryBody::from_value(&self.kind, &self.payload) {
            Ok(EntryBody::Question(question)) => Some(question.call_id),
            _ => None,
        }
    }
    /// What happened, as it is said of an entry; of a kind that this version does not know its name.
    pub(super) fn words(&self) -> String {
        let Ok(body) = EntryBody::from_value(&self.kind, &self.payload) else { return self.kind.replace('_', " ") };
        crate::render::words(&Entry {
            sequence: self.sequence,
            at: self.at,
            epoch: self.epoch,
            holder: self.holder.clone(),
            write_id: WriteId::random(),
            mac: None,
            body,
        })
    }
}

/// Beginnings of the server's own lines that end in a command.
const BEFORE_COMMANDS: [&str; 9] = [
    "",
    "to end it:",
    "to continue it:",
    "to give it up:",
    "to see it live:",
    "to stop it:",
    "it happened:",
    "it did not:",
    "give it up:",
];

/// A line with a command to copy: it names the server as this command was told to. Text of others stands behind a name, a quote
/// or a gutter.
fn command(line: &str, called: &str) -> Option<String> {
    let (before, rest) = line.split_once("leasehold ")?;
    let ours = before.starts_with("  ") && BEFORE_COMMANDS.contains(&before.trim());
    ours.then(|| format!("{before}{called} {rest}"))
}

/// The screen about a run, as the server shows it.
pub(super) struct Text {
    text: String,
    called: String,
}

impl Text {
    /// The whole.
    pub(super) fn all(&self, screen: &mut Screen) {
        self.put(screen, self.text.lines());
    }
    /// How the run stands, in a sentence.
    pub(super) fn sentence(&self, screen: &mut Screen) {
        screen.line(self.text.lines().next().unwrap_or_default());
    }
    /// What stands below a head, up to the next.
    pub(super) fn part(&self, screen: &mut Screen, head: &str) {
        let below = self.text.lines().skip(1).skip_while(|line| *line != head).skip(1);
        let lines: Vec<&str> = below.take_while(|line| line.is_empty() || line.starts_with(' ')).collect();
        self.put(screen, lines.into_iter());
    }
    /// It shows what this names.
    pub(super) fn names(&self, digest: &str) -> bool {
        self.text.lines().any(|line| command(line, "").is_some_and(|line| line.contains(digest)))
    }

    fn put<'a>(&self, screen: &mut Screen, lines: impl Iterator<Item = &'a str>) {
        for line in lines {
            match command(line, &self.called) {
                Some(line) => screen.command(line),
                None => screen.line(line),
            };
        }
    }
}

/// A run, as JSON and as it is shown; of the same moment as far as a decision counts.
pub(super) struct Shown {
    pub(super) run: Run,
    pub(super) json: Answer,
    pub(super) text: Text,
}

/// Looks until the text and the JSON are of the same card.
const LOOKS_MAX: usize = 5;

/// The head over what waits.
pub(super) const WAITS: &str = "Waits for a decision";
/// The head over what is asked.
pub(super) const ASKS: &str = "Asks a person";
/// The head over a doubt.
const DOUBT: &str = "The write in doubt";

impl Remote {
    /// The run in the API's own form.
    pub(super) async fn look(&self, id: RunId) -> Result<(Run, Answer), Trouble> {
        let json = self.client.get(&format!("/runs/{id}"), &[], Want::Json).await?;
        Ok((json.read()?, json))
    }

    /// The run as people read it.
    pub(super) async fn text(&self, id: RunId) -> Result<Text, Trouble> {
        let text = self.client.get(&format!("/runs/{id}"), &[], Want::Text).await?.body;
        Ok(Text { text, called: self.command.clone() })
    }

    /// Both.
    pub(super) async fn show(&self, id: RunId) -> Result<Shown, Failure> {
        for _ in 0..LOOKS_MAX {
            let (run, json) = self.look(id).await?;
            let text = self.text(id).await?;
            // What cannot be shown cannot be decided about, and is not named.
            let same = |waiting: &Waiting| waiting.calls.is_empty() || text.names(&waiting.turn_digest);
            if run.waiting.as_ref().is_none_or(same) {
                return Ok(Shown { run, json, text });
            }
        }
        Err(Failure::refused(format!("run {id} changes faster than it can be shown; look again")))
    }

    /// The end of a command that saw a run to where it rests, or decided about it.
    pub(super) async fn report(&self, id: RunId) -> Result<Exit, Failure> {
        let Shown { run, json, text } = self.show(id).await?;
        let mut screen = Screen::stderr();
        text.sentence(&mut screen);
        if run.state.is_waiting() {
            text.part(&mut screen, WAITS);
        } else if !run.questions.is_empty() {
            text.part(&mut screen, ASKS);
        } else if run.state == State::Dead && run.reason == Some(Reason::WriteInDoubt) {
            screen.styled(Look::Strong, DOUBT);
            text.part(&mut screen, DOUBT);
        }
        screen.eprint();
        let printed = match &run.output {
            _ if self.json => self.print(&json.body),
            Some(output) => crate::cli::run::answer(output),
            None => Ok(()),
        };
        match printed {
            // A reader that has gone away does not change how the run ended.
            Ok(()) | Err(Failure::Closed) => Ok(run.exit()),
            Err(failure) => Err(failure),
        }
    }

    /// How a run stands after an order: on one line, or the answer as it came.
    pub(super) async fn ordered(&self, id: RunId, answer: &Answer) -> Result<(), Failure> {
        if self.json {
            return self.print(&answer.body);
        }
        let mut screen = Screen::stdout();
        self.text(id).await?.sentence(&mut screen);
        screen.print()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TEXT: &str = "Waits for a person: x.\n\n  run          1\n\nWaits for a decision\n  ledger.append\n      text: \"leasehold approve\"\n      | leasehold approve evil\n  to decide about exactly this:\n    leasehold approve 1 --digest d1\n  to end it:       leasehold runs cancel 1\n\nWhat happened\n      +0.0s  started\n";

    fn text() -> Text {
        Text { text: TEXT.into(), called: "leasehold --server https://h".into() }
    }

    #[test]
    fn a_part_ends_where_the_next_begins_and_its_commands_name_the_server() {
        let mut screen = Screen::new(false);
        text().part(&mut screen, WAITS);
        let shown = screen.into_text();
        assert!(!shown.contains("started") && !shown.contains("run          1"), "{shown}");
        assert!(shown.contains("    leasehold --server https://h approve 1 --digest d1\n"), "{shown}");
        assert!(shown.contains("  to end it:       leasehold --server https://h runs cancel 1\n"), "{shown}");
        assert!(shown.contains("text: \"leasehold approve\"") && shown.contains("| leasehold approve evil"), "{shown}");
        assert!(text().names("d1") && !text().names("evil"));
    }

    #[test]
    fn what_a_server_says_is_made_safe_here_too() {
        let evil = Text { text: "\u{1b}[2Jx\u{202e}\r\n".into(), called: String::new() };
        let mut screen = Screen::new(false);
        evil.all(&mut screen);
        assert_eq!(screen.into_text(), "\\u{1b}[2Jx\\u{202e}\n");
    }

    #[test]
    fn an_event_is_told_like_its_entry_and_an_unknown_one_by_its_name() {
        let event = |kind: &str, payload: Value| -> Event {
            let at = "2026-01-01T00:00:00Z";
            let event =
                json!({ "sequence": 1, "kind": kind, "at": at, "epoch": 1, "holder": null, "payload": payload, "new": 1 });
            serde_json::from_value(event).unwrap()
        };
        let settled =
            event("settled", json!({ "state": "completed", "reason": null, "output": "x", "truncated": false, "detail": "" }));
        assert_eq!(settled.words(), "completed");
        assert_eq!(event("tool_outcome", Value::Null).words(), "tool outcome");
        assert_eq!(event("of_a_later_version", json!({})).words(), "of a later version");
        assert_eq!(serde_json::to_value(event("x", json!(1))).unwrap()["new"], 1);
    }
}
