//! A question that a running call asks a person. It is journaled before anybody sees it, and stands until it is answered, the call
//! asks something else or ends, or its run is taken from this process. The time that the person takes counts towards the tool's
//! timeout: a tool that asks declares one that is long enough. A read that waits keeps its place among those that run side by side. A process that dies while a question stands leaves what any
//! interrupted call leaves: a read is made again and asks again, a write is repeated or in doubt by its effect.
//!
//! ```
//! use leasehold::agent::tool::{Approval, Asker, ReadAnswer, Reply, WriteAnswer, WriteEffect, WritePermit, rust};
//! use serde_json::json;
//! use std::time::Duration;
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Nothing {}
//!
//! let size = || json!({ "type": "object", "properties": { "size": { "type": "integer" } }, "required": ["size"] });
//! let read = rust::asking_read_tool("boxes.find", "Find a box", move |mut asker: Asker, _: Nothing| async move {
//!     match asker.ask("Which size?", size()).await {
//!         Ok(Reply::Values(values)) => ReadAnswer::ok(format!("box {}", values["size"])),
//!         Ok(Reply::Declined) => ReadAnswer::ok("no box is wanted"),
//!         Err(not_asked) => ReadAnswer::error(not_asked.to_string()),
//!     }
//! })
//! .timeout(Duration::from_secs(3_600));
//! let write = rust::write_tool(
//!     "boxes.send",
//!     "Send a box",
//!     WriteEffect::NonIdempotent,
//!     Approval::Required,
//!     move |mut permit: WritePermit, _: Nothing| async move {
//!         let said = permit.asker().ask("Which size?", size()).await;
//!         let Ok(Reply::Values(values)) = said else {
//!             return WriteAnswer::NotApplied { why: "nobody said which size".into() };
//!         };
//!         // That took its time, so the right is looked at again right before the first byte leaves:
//!         if let Err(not_held) = permit.check() {
//!             return WriteAnswer::NotStarted { why: not_held.to_string() };
//!         }
//!         WriteAnswer::done(format!("sent {}", values["size"]))
//!     },
//! )
//! .timeout(Duration::from_secs(3_600));
//! ```

use super::{Shelf, Teller};
use crate::{
    agent::arguments::nested_deeper,
    limits,
    run::{CallId, InputQuestion},
};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::{mpsc, oneshot};

/// What a person says to a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Values that fit the schema.
    Values(Map<String, Value>),
    /// They do not want to.
    Declined,
}

/// What a call needs before it goes on. The run waits for it without a process, and then makes the same call again, with the same
/// key and with what people said ([`Asker::continued`]). The tool has done nothing by then.
#[derive(Clone, Debug, PartialEq)]
pub struct InputRequired {
    /// What is asked, each on its own.
    pub questions: Vec<InputQuestion>,
    /// Given back unchanged.
    pub state: Option<String>,
}

/// With what a call goes on that had asked for input.
#[derive(Clone, Debug, PartialEq)]
pub struct Continued {
    /// What was asked.
    pub questions: Vec<InputQuestion>,
    /// By question.
    pub replies: BTreeMap<String, Reply>,
    /// As it was given.
    pub state: Option<String>,
    /// How often the call has asked so far.
    pub rounds: u32,
}

impl InputRequired {
    /// Whether people can be asked this, by a call that has asked so often before.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, rounds: u32) -> Result<(), String> {
        if rounds >= limits::QUESTIONS_MAX {
            return Err(format!("the call has asked {rounds} times, which is the limit"));
        }
        if self.questions.is_empty() || self.questions.len() > limits::INPUT_QUESTIONS_MAX {
            let asked = self.questions.len();
            return Err(format!("it asks {asked} questions, and takes 1 to {}", limits::INPUT_QUESTIONS_MAX));
        }
        if let Some(state) = self.state.as_ref().filter(|state| state.len() > limits::INPUT_STATE_BYTES_MAX) {
            return Err(format!("its state is {} bytes long, and the limit is {}", state.len(), limits::INPUT_STATE_BYTES_MAX));
        }
        let mut ids = BTreeSet::new();
        for question in &self.questions {
            if question.id.len() > limits::INPUT_ID_BYTES_MAX || !ids.insert(&question.id) {
                return Err("the names of its questions are too long, or the same".into());
            }
            check(&question.prompt, &question.schema)?;
        }
        Ok(())
    }
}

/// Why a question has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAsked {
    /// The run was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
    /// The run is not this process's any more, or that cannot be shown.
    #[error("the right to this run is gone")]
    Lost,
    /// The process shuts down.
    #[error("the process shuts down")]
    Stopping,
    /// The call is over.
    #[error("the call is over")]
    Over,
    /// Nobody can be asked here: what is not recorded asks no one.
    #[error("nobody can be asked here")]
    Nobody,
    /// The question itself; see [`limits`].
    #[error("the question was not asked: {0}")]
    Refused(String),
}

/// The way from a running call to whoever holds its run: to a person who is asked, to what is kept with its outcome
/// ([`keep`](Self::keep)), to whoever watches ([`teller`](Self::teller)). One question stands at a time: a call that drops the wait for one and asks another takes
/// the first back.
#[derive(Debug)]
pub struct Asker {
    desk: Option<(CallId, mpsc::Sender<AskedBy>)>,
    asked: u32,
    continued: Option<Continued>,
    pub(super) shelf: Option<Shelf>,
    teller: Teller,
}

/// A question on its way to whoever holds the run.
#[derive(Debug)]
pub(crate) struct AskedBy {
    pub(crate) call: CallId,
    pub(crate) prompt: String,
    pub(crate) schema: Value,
    pub(crate) reply: oneshot::Sender<Result<Reply, NotAsked>>,
}

impl Asker {
    pub(crate) fn new(call: CallId, desk: mpsc::Sender<AskedBy>, continued: Option<Continued>) -> Self {
        Self { desk: Some((call, desk)), asked: 0, continued, shelf: None, teller: Teller::nobody() }
    }

    /// With what this call goes on, where it had asked for input ([`InputRequired`]).
    pub fn continued(&self) -> Option<&Continued> {
        self.continued.as_ref()
    }

    /// The call is made in a run, which can wait for what it asks.
    pub fn can_wait(&self) -> bool {
        self.desk.is_some()
    }

    /// Asks nobody: every question ends as [`NotAsked::Nobody`]. For a tool that is called outside of a run.
    pub fn nobody() -> Self {
        Self { desk: None, asked: 0, continued: None, shelf: None, teller: Teller::nobody() }
    }

    /// The same, with a place for what is to be kept and a way to whoever watches.
    pub(crate) fn with(self, shelf: Shelf, teller: Teller) -> Self {
        Self { shelf: Some(shelf), teller, ..self }
    }

    /// Says to whoever watches how far the call is.
    pub fn teller(&self) -> Teller {
        self.teller.clone()
    }

    /// Asks, and waits for the reply. `schema` is the JSON Schema (2020-12) of the values, an object with `properties`; values of
    /// other keys are not taken.
    ///
    /// # Errors
    /// There will be no reply, and why.
    pub async fn ask(&mut self, prompt: &str, schema: Value) -> Result<Reply, NotAsked> {
        let Some((call, desk)) = &self.desk else { return Err(NotAsked::Nobody) };
        check(prompt, &schema).map_err(NotAsked::Refused)?;
        if self.asked >= limits::QUESTIONS_MAX {
            return Err(NotAsked::Refused(format!("the call has asked {} times, which is the limit", self.asked)));
        }
        self.asked += 1;
        let (reply, replied) = oneshot::channel();
        let asked = AskedBy { call: call.clone(), prompt: prompt.to_owned(), schema, reply };
        desk.send(asked).await.map_err(|_| NotAsked::Over)?;
        replied.await.unwrap_or(Err(NotAsked::Over))
    }
}

/// What is wrong with a question.
fn check(prompt: &str, schema: &Value) -> Result<(), String> {
    if prompt.trim().is_empty() {
        return Err("it is empty".into());
    }
    if prompt.len() > limits::QUESTION_PROMPT_BYTES_MAX {
        return Err(format!("it is {} bytes long, and the limit is {}", prompt.len(), limits::QUESTION_PROMPT_BYTES_MAX));
    }
    if nested_deeper(schema, limits::NESTING_MAX) {
        return Err(format!("its schema is nested deeper than {} levels", limits::NESTING_MAX));
    }
    let bytes = schema.to_string().len();
    if bytes > limits::QUESTION_SCHEMA_BYTES_MAX {
        return Err(format!("its schema is {bytes} bytes long, and the limit is {}", limits::QUESTION_SCHEMA_BYTES_MAX));
    }
    if schema.get("type").and_then(Value::as_str) != Some("object") || !schema.get("properties").is_some_and(Value::is_object) {
        return Err("its schema must be an object with `properties`".into());
    }
    jsonschema::draft202012::new(schema).map(|_| ()).map_err(|e| format!("its schema: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Value {
        json!({ "type": "object", "properties": { "size": { "type": "integer" } } })
    }

    /// A schema of exactly so many bytes.
    fn schema_of(bytes: usize) -> Value {
        let of = |text: String| json!({ "type": "object", "properties": {}, "title": text });
        of("x".repeat(bytes - of(String::new()).to_string().len()))
    }

    /// A schema of exactly so many levels.
    fn schema_nested(levels: usize) -> Value {
        let inner = (2..levels).fold(json!([]), |inner, _| json!([inner]));
        json!({ "type": "object", "properties": {}, "default": inner })
    }

    #[test]
    fn a_question_of_exactly_its_limits_is_one_and_a_longer_one_is_none() {
        let long = |bytes: usize| "x".repeat(bytes);
        assert_eq!(check(&long(limits::QUESTION_PROMPT_BYTES_MAX), &schema()), Ok(()));
        assert_eq!(check("?", &schema_of(limits::QUESTION_SCHEMA_BYTES_MAX)), Ok(()));
        assert_eq!(check("?", &schema_nested(limits::NESTING_MAX)), Ok(()));
        for (prompt, schema, why) in [
            (long(limits::QUESTION_PROMPT_BYTES_MAX + 1), schema(), "bytes long"),
            ("?".into(), schema_of(limits::QUESTION_SCHEMA_BYTES_MAX + 1), "bytes long"),
            ("?".into(), schema_nested(limits::NESTING_MAX + 1), "nested deeper"),
            (" \n".into(), schema(), "empty"),
            ("?".into(), json!({ "type": "string" }), "an object with"),
            ("?".into(), json!({ "type": "object" }), "an object with"),
            ("?".into(), json!({ "type": "object", "properties": [] }), "an object with"),
            ("?".into(), json!({ "type": "object", "properties": { "a": { "type": 7 } } }), "its schema"),
            // Nothing is fetched for a schema.
            (
                "?".into(),
                json!({ "type": "object", "properties": { "a": { "$ref": "https://example.com/a.json" } } }),
                "its schema",
            ),
        ] {
            let told = check(&prompt, &schema).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }

    #[tokio::test]
    async fn a_call_asks_so_often_and_no_more_and_what_was_refused_does_not_count() {
        let (desk, mut asked) = mpsc::channel(1);
        let mut asker = Asker::new(CallId::of(1, 0), desk, None);
        let declines = tokio::spawn(async move {
            let mut count = 0;
            while let Some(asked) = asked.recv().await {
                count += 1;
                asked.reply.send(Ok(Reply::Declined)).unwrap();
            }
            count
        });
        for _ in 0..limits::QUESTIONS_MAX {
            assert!(matches!(asker.ask("", schema()).await, Err(NotAsked::Refused(_))));
            assert_eq!(asker.ask("Which?", schema()).await, Ok(Reply::Declined));
        }
        assert!(matches!(asker.ask("Which?", schema()).await, Err(NotAsked::Refused(_))));
        drop(asker);
        assert_eq!(declines.await.unwrap(), limits::QUESTIONS_MAX);
    }

    #[tokio::test]
    async fn a_question_that_nobody_takes_is_over() {
        let (desk, asked) = mpsc::channel(1);
        let mut asker = Asker::new(CallId::of(1, 0), desk, None);
        drop(asked);
        assert_eq!(asker.ask("Which?", schema()).await, Err(NotAsked::Over));
        assert_eq!(Asker::nobody().ask("Which?", schema()).await, Err(NotAsked::Nobody));
    }
}
