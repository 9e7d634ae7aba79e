//! A model that plays a fixed script: for demonstrations, drills and tests. It is a model like any other behind the same
//! trait, and it knows where it stands from the run's own journal, so a resumed run does not start over.

use super::{Message, Model, ModelError, ModelErrorClass, ModelRequest, Piece, Reply, RequestedCall};
use crate::{
    agent::tool::http::units,
    run::{RunId, Usage},
};
use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// What the script says after its last reply.
const ENDED: &str = "script ended";
/// Runs whose consumed errors are remembered; beyond that the journal's count alone decides.
const RUNS_REMEMBERED_MAX: usize = 4096;

/// A script that cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("script `{name}`, line {line}: {why}")]
pub struct ScriptError {
    /// The script.
    pub name: String,
    /// From 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    reply: Vec<toml::Spanned<Entry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    text: Option<String>,
    calls: Option<Vec<toml::Spanned<Call>>>,
    error: Option<ScriptedClass>,
    #[serde(default, deserialize_with = "units::optional_duration")]
    retry_after: Option<Duration>,
    #[serde(default, deserialize_with = "units::optional_duration")]
    pause: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    tool: String,
    arguments: Option<Map<String, Value>>,
    raw_arguments: Option<String>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScriptedClass {
    Connection,
    RateLimited,
    Server,
    Auth,
    Client,
    ContextOverflow,
    Refused,
}

impl From<ScriptedClass> for ModelErrorClass {
    fn from(class: ScriptedClass) -> Self {
        match class {
            ScriptedClass::Connection => Self::Connection,
            ScriptedClass::RateLimited => Self::RateLimited,
            ScriptedClass::Server => Self::Server,
            ScriptedClass::Auth => Self::Auth,
            ScriptedClass::Client => Self::Client,
            ScriptedClass::ContextOverflow => Self::ContextOverflow,
            ScriptedClass::Refused => Self::Refused,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Line {
    text: String,
    calls: Vec<RequestedCall>,
    pause: Duration,
}

#[derive(Clone, Debug)]
struct Fault {
    class: ModelErrorClass,
    retry_after: Option<Duration>,
    pause: Duration,
}

/// A reply, and the errors that come before it.
#[derive(Clone, Debug, Default)]
struct Scene {
    /// How many errors of the script come before this scene's own.
    errors_before: usize,
    errors: Vec<Fault>,
    /// `None`: the script ends here.
    line: Option<Line>,
}

/// Plays a script.
#[derive(Debug)]
pub struct ScriptedModel {
    name: String,
    scenes: Vec<Scene>,
    /// Errors a run consumed in this process: those retried in place are in no journal.
    consumed: Mutex<HashMap<RunId, usize>>,
}

impl ScriptedModel {
    /// Reads a script; `name` is the model's configured name.
    ///
    /// # Errors
    /// What is wrong, and in which line.
    pub fn from_toml(name: &str, text: &str) -> Result<Self, ScriptError> {
        let error = |offset: usize, why: String| ScriptError {
            name: name.to_owned(),
            line: text.get(..offset).unwrap_or(text).matches('\n').count() + 1,
            why,
        };
        let file: File =
            toml::from_str(text).map_err(|e| error(e.span().map_or(0, |span| span.start), e.message().to_owned()))?;
        let mut scenes = vec![Scene::default()];
        let mut errors = 0;
        for entry in file.reply {
            let at = entry.span().start;
            let entry = entry.into_inner();
            let pause = entry.pause.unwrap_or_default();
            // There is always a last scene: the list starts with one and only grows.
            let Some(scene) = scenes.last_mut() else { continue };
            match (entry.error, entry.text, entry.calls) {
                (Some(class), None, None) => {
                    scene.errors.push(Fault { class: class.into(), retry_after: entry.retry_after, pause });
                    errors += 1;
                }
                (None, None, None) => return Err(error(at, "a reply has one of `text`, `calls` or `error`".into())),
                (Some(_), _, _) => return Err(error(at, "a reply with `error` has neither `text` nor `calls`".into())),
                (None, ..) if entry.retry_after.is_some() => {
                    return Err(error(at, "`retry_after` belongs to a reply with `error`".into()));
                }
                (None, text, calls) => {
                    let mut line = Line { text: text.unwrap_or_default(), calls: Vec::new(), pause };
                    for call in calls.unwrap_or_default() {
                        let at = call.span().start;
                        let call = call.into_inner();
                        let raw_arguments = match (call.arguments, call.raw_arguments) {
                            (Some(_), Some(_)) => {
                                return Err(error(at, "a call has `arguments` or `raw_arguments`, not both".into()));
                            }
                            (None, Some(raw)) => raw,
                            (arguments, None) => Value::Object(arguments.unwrap_or_default()).to_string(),
                        };
                        line.calls.push(RequestedCall { tool: call.tool, raw_arguments });
                    }
                    scene.line = Some(line);
                    scenes.push(Scene { errors_before: errors, ..Scene::default() });
                }
            }
        }
        Ok(Self { name: format!("{name} (scripted)"), scenes, consumed: Mutex::new(HashMap::new()) })
    }

    /// The run's next error of this scene, marked as consumed.
    fn next_error(&self, scene: &Scene, request: &ModelRequest) -> Option<Fault> {
        let mut consumed = self.consumed.lock().unwrap_or_else(PoisonError::into_inner);
        let journaled = usize::try_from(request.errors_so_far).unwrap_or(usize::MAX);
        let so_far = consumed.get(&request.run).copied().unwrap_or(0).max(journaled).max(scene.errors_before);
        let fault = scene.errors.get(so_far - scene.errors_before)?.clone();
        if consumed.len() >= RUNS_REMEMBERED_MAX {
            consumed.clear();
        }
        consumed.insert(request.run, so_far + 1);
        Some(fault)
    }
}

/// About four bytes a token, as a stand-in that is the same on every machine.
fn tokens(bytes: usize) -> u64 {
    u64::try_from(bytes.div_ceil(4)).unwrap_or(u64::MAX)
}

fn usage(request: &ModelRequest, line: &Line) -> Usage {
    let sent: usize = request
        .messages
        .iter()
        .map(|message| match message {
            Message::User(text) | Message::ToolResult { text, .. } => text.len(),
            Message::Assistant { text, calls, .. } => text.len() + calls.iter().map(|c| c.tool.len()).sum::<usize>(),
        })
        .sum();
    let received = line.text.len() + line.calls.iter().map(|c| c.tool.len() + c.raw_arguments.len()).sum::<usize>();
    Usage { input_tokens: tokens(request.system.len() + sent), output_tokens: tokens(received), ..Usage::default() }
}

#[async_trait]
impl Model for ScriptedModel {
    fn name(&self) -> &str {
        &self.name
    }

    async fn reply(&self, request: ModelRequest) -> Result<Reply, ModelError> {
        let at = usize::try_from(request.replies_so_far).unwrap_or(usize::MAX).min(self.scenes.len() - 1);
        let scene = &self.scenes[at];
        if let Some(fault) = self.next_error(scene, &request) {
            tokio::time::sleep(fault.pause).await;
            return Err(ModelError { class: fault.class, detail: "the script says so".into(), retry_after: fault.retry_after });
        }
        let ended = Line { text: ENDED.into(), ..Line::default() };
        let line = scene.line.as_ref().unwrap_or(&ended);
        tokio::time::sleep(line.pause).await;
        if !line.text.is_empty() {
            request.tell(Piece::Text(line.text.clone()));
        }
        Ok(Reply {
            text: line.text.clone(),
            calls: line.calls.clone(),
            usage: usage(&request, line),
            stop: if line.calls.is_empty() { "stop" } else { "tool_calls" }.into(),
            opaque: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(run: RunId, replies: u32, errors: u32) -> ModelRequest {
        ModelRequest {
            run,
            replies_so_far: replies,
            errors_so_far: errors,
            system: "system".into(),
            messages: vec![Message::User("hello".into())],
            tools: Vec::new(),
            on_text: None,
        }
    }

    const SCRIPT: &str = r#"
[[reply]]
text = "I will append."
calls = [{ tool = "ledger.append", arguments = { text = "one" } }, { tool = "x.y", raw_arguments = "{\"cut" }]

[[reply]]
error = "rate_limited"
retry_after = "7s"

[[reply]]
error = "connection"

[[reply]]
text = "done"
"#;

    #[tokio::test]
    async fn a_resumed_run_goes_on_where_its_journal_ends() {
        let model = ScriptedModel::from_toml("default", SCRIPT).unwrap();
        let reply = model.reply(request(RunId::new(), 0, 0)).await.unwrap();
        assert_eq!(reply.text, "I will append.");
        assert_eq!(reply.calls[0].raw_arguments, r#"{"text":"one"}"#);
        assert_eq!(reply.calls[1].raw_arguments, "{\"cut");
        assert!(reply.usage.input_tokens > 0 && reply.usage.output_tokens > 0);
        // Another process: nothing in memory, two errors in the journal.
        let resumed = ScriptedModel::from_toml("default", SCRIPT).unwrap();
        assert_eq!(resumed.reply(request(RunId::new(), 1, 2)).await.unwrap().text, "done");
        assert_eq!(resumed.reply(request(RunId::new(), 2, 2)).await.unwrap().text, ENDED);
        assert_eq!(resumed.reply(request(RunId::new(), 99, 2)).await.unwrap().text, ENDED);
    }

    #[tokio::test]
    async fn an_error_is_consumed_once_per_run_also_where_no_journal_counts_it() {
        let model = ScriptedModel::from_toml("default", SCRIPT).unwrap();
        let (run, other) = (RunId::new(), RunId::new());
        let first = model.reply(request(run, 1, 0)).await.unwrap_err();
        assert_eq!((first.class, first.retry_after), (ModelErrorClass::RateLimited, Some(Duration::from_secs(7))));
        assert_eq!(model.reply(request(run, 1, 0)).await.unwrap_err().class, ModelErrorClass::Connection);
        assert_eq!(model.reply(request(run, 1, 0)).await.unwrap().text, "done");
        assert_eq!(model.reply(request(other, 1, 1)).await.unwrap_err().class, ModelErrorClass::Connection);
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_comes_before_the_reply_and_can_be_dropped() {
        let model = ScriptedModel::from_toml("m", "[[reply]]\ntext = \"late\"\npause = \"2s\"\n").unwrap();
        let begun = tokio::time::Instant::now();
        assert!(tokio::time::timeout(Duration::from_secs(1), model.reply(request(RunId::new(), 0, 0))).await.is_err());
        model.reply(request(RunId::new(), 0, 0)).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::from_secs(3));
    }

    #[test]
    fn a_mistake_is_named_with_its_line() {
        for (text, line, part) in [
            ("[[reply]]\ntext = \"a\"\nspeed = 1\n", 3, "speed"),
            ("[[reply]]\ntext = \"a\"\n\n[[reply]]\npause = \"1s\"\n", 4, "one of `text`"),
            ("[[reply]]\nerror = \"nope\"\n", 2, "nope"),
            ("[[reply]]\nerror = \"server\"\ntext = \"a\"\n", 1, "neither"),
            ("[[reply]]\ntext = \"a\"\nretry_after = \"1s\"\n", 1, "retry_after"),
            ("[[reply]]\ntext = \"a\"\npause = \"-1s\"\n", 3, "more than zero"),
            ("[[reply]]\ncalls = [{ tool = \"a.b\", arguments = {}, raw_arguments = \"\" }]\n", 2, "not both"),
        ] {
            let error = ScriptedModel::from_toml("s", text).unwrap_err();
            assert_eq!(error.line, line, "{error}");
            assert!(error.why.contains(part), "{error}");
        }
    }
}
