//! Reads a turn from what the provider wrote, where the library cannot be trusted to: tool calls of the OpenAI protocol, whether each
//! started call of an Anthropic stream also stopped, and an error or a refusal that the library passes over or does not repeat.
//!
//! The rule for deltas: arguments are appended to a call only if they are certainly its own. A delta that names a tool opens a
//! new call if its index is new, if the name or the id differs from the call of that index, or if that call's arguments are
//! already whole. A delta that belongs to nothing, or to one of several open calls, fails the turn.

use super::{super::RequestedCall, transcript::Thoughts};
use crate::{agent::model::ModelErrorClass, limits, run::Usage};
use genai::chat::StopReason;
use serde_json::Value;

/// How a provider writes tool calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    /// `choices[0].delta.tool_calls`.
    OpenAi,
    /// Content blocks.
    Anthropic,
    /// Whole calls in one piece, among the parts of a candidate.
    Gemini,
    /// Whole calls in one piece, a line each.
    #[default]
    Ollama,
}

/// A turn before it is checked.
#[derive(Debug, Default)]
pub(super) struct Turn {
    pub(super) text: String,
    /// With the names as on the wire.
    pub(super) calls: Vec<RequestedCall>,
    pub(super) stop: Option<StopReason>,
    pub(super) usage: Option<Usage>,
    pub(super) refusal: Option<String>,
    pub(super) thoughts: Option<Thoughts>,
    /// What it thought, where the OpenAI protocol tells that.
    pub(super) reasoning: Option<String>,
    /// Tokens it thought with, where the library does not say.
    pub(super) thought_tokens: u64,
    /// How many calls the raw stream started, where that is known apart from the calls.
    pub(super) started_calls: Option<usize>,
}

const EMPTY: &str = "the answer holds no reply: its list of choices is empty or missing";

type Failed = (ModelErrorClass, &'static str);

/// The frames of one stream, as far as they matter.
#[derive(Debug, Default)]
pub(super) struct Frames {
    protocol: Protocol,
    frames: usize,
    bytes: usize,
    has_choice: bool,
    slots: Vec<Slot>,
    stop: Option<String>,
    refusal: String,
    reasoning: Option<String>,
    usage: Option<Usage>,
    thought_tokens: u64,
    failed: Option<&'static str>,
    error: Option<Value>,
    blocks_started: usize,
    blocks_stopped: usize,
    open_block: Option<i64>,
}

#[derive(Debug, Default)]
struct Slot {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    /// The name came again after whole arguments: what follows is another call, if anything follows.
    repeated: Option<(String, String)>,
}

impl Slot {
    fn is_whole(&self) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(&self.arguments).is_ok()
    }
}

impl Frames {
    pub(super) fn new(protocol: Protocol) -> Self {
        Self { protocol, ..Self::default() }
    }

    /// Nothing that could be an event ever came.
    pub(super) fn is_empty(&self) -> bool {
        self.frames == 0
    }

    /// More came than a reply may have.
    pub(super) fn is_too_long(&self) -> bool {
        self.bytes > limits::MODEL_REPLY_BYTES_MAX
    }

    pub(super) fn push(&mut self, data: &str) {
        self.bytes = self.bytes.saturating_add(data.len());
        if self.is_too_long() {
            return;
        }
        if self.protocol == Protocol::Ollama {
            // Several lines may come together.
            data.lines().for_each(|line| self.push_frame(line));
        } else {
            self.push_frame(data);
        }
    }

    fn push_frame(&mut self, data: &str) {
        if data.trim().is_empty() {
            return;
        }
        self.frames += 1;
        // What is no JSON is the end mark, or an error that the library reports.
        let Ok(frame) = serde_json::from_str::<Value>(data) else { return };
        if self.error.is_none() {
            self.error = frame.get("error").filter(|error| !error.is_null()).cloned();
        }
        match self.protocol {
            Protocol::OpenAi => self.push_openai(&frame),
            Protocol::Anthropic => self.push_anthropic(&frame),
            Protocol::Gemini => self.refusal.push_str(blocked(&frame).unwrap_or_default()),
            Protocol::Ollama => {}
        }
    }

    /// The error that the server wrote, whatever it wrote after it.
    pub(super) fn take_error(&mut self) -> Option<Value> {
        self.error.take()
    }

    /// Why the server refused the question, where it says so instead of a reply.
    pub(super) fn blocked(&self) -> Option<&str> {
        Some(self.refusal.as_str()).filter(|why| self.protocol == Protocol::Gemini && !why.is_empty())
    }

    fn push_openai(&mut self, frame: &Value) {
        if let Some(usage) = openai_usage(frame) {
            self.usage = Some(usage);
        }
        let Some(choice) = frame.pointer("/choices/0") else { return };
        self.has_choice = true;
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.stop = Some(reason.to_owned());
        }
        if let Some(refusal) = choice.pointer("/delta/refusal").and_then(Value::as_str) {
            self.refusal.push_str(refusal);
        }
        if let Some(thought) = choice.pointer("/delta/reasoning_content").and_then(Value::as_str) {
            self.reasoning.get_or_insert_default().push_str(thought);
        }
        for delta in choice.pointer("/delta/tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.push_call(delta);
        }
    }

    fn push_call(&mut self, delta: &Value) {
        let text = |pointer: &str| delta.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (id, name) = (text("/id"), text("/function/name"));
        let index = delta.get("index").and_then(Value::as_u64);
        let arguments = match delta.pointer("/function/arguments") {
            Some(Value::String(piece)) => piece.clone(),
            None | Some(Value::Null) => String::new(),
            // Some servers write the object itself instead of its text.
            Some(value) => value.to_string(),
        };
        let at = match index {
            Some(index) => self.slots.iter().rposition(|slot| slot.index == Some(index)),
            None if !id.is_empty() => self.slots.iter().rposition(|slot| slot.id == id),
            None if !name.is_empty() => None,
            None => {
                let open: Vec<usize> = (0..self.slots.len()).filter(|at| !self.slots[*at].is_whole()).collect();
                match (open.as_slice(), self.slots.len()) {
                    ([only], _) => Some(*only),
                    // More text after one whole call stays with it and makes it invalid, which is refused later.
                    ([], 1..) => Some(self.slots.len() - 1),
                    _ => {
                        self.failed =
                            Some("a piece of a tool call says neither which call it belongs to nor which tool it is for");
                        return;
                    }
                }
            }
        };
        let Some(at) = at else {
            if name.is_empty() {
                self.failed = Some("a tool call without the name of a tool");
                return;
            }
            self.slots.push(Slot { index, id, name, arguments, repeated: None });
            return;
        };
        let slot = &mut self.slots[at];
        if !name.is_empty() {
            let is_other = slot.name != name || (!id.is_empty() && !slot.id.is_empty() && slot.id != id);
            if is_other || (slot.is_whole() && !arguments.trim().is_empty()) {
                self.slots.push(Slot { index, id, name, arguments, repeated: None });
                return;
            }
            if slot.is_whole() {
                slot.repeated = Some((id, name));
                return;
            }
        }
        if !arguments.trim().is_empty()
            && let Some((id, name)) = slot.repeated.take()
        {
            self.slots.push(Slot { index, id, name, arguments, repeated: None });
            return;
        }
        slot.arguments.push_str(&arguments);
    }

    fn push_anthropic(&mut self, frame: &Value) {
        let index = frame.get("index").and_then(Value::as_i64);
        if let Some(tokens) = frame.pointer("/usage/output_tokens_details/thinking_tokens").and_then(Value::as_u64) {
            self.thought_tokens = tokens;
        }
        match frame.get("type").and_then(Value::as_str) {
            Some("content_block_start") => {
                if self.open_block.is_some() {
                    self.failed = Some("a content block starts before the one before it stops");
                }
                self.open_block = Some(index.unwrap_or(-1));
                if frame.pointer("/content_block/type").and_then(Value::as_str) == Some("tool_use") {
                    self.blocks_started += 1;
                }
            }
            Some("content_block_delta") if index.is_some() && self.open_block != index => {
                self.failed = Some("a piece of a content block that is not open");
            }
            Some("content_block_stop") => {
                self.open_block = None;
                self.blocks_stopped += 1;
            }
            _ => {}
        }
    }

    /// The turn so far; the text is the library's.
    pub(super) fn into_turn(self) -> Result<Turn, Failed> {
        if let Some(why) = self.failed {
            return Err((ModelErrorClass::Server, why));
        }
        let mut turn = Turn::default();
        match self.protocol {
            Protocol::OpenAi => {
                turn.calls = self
                    .slots
                    .into_iter()
                    .map(|slot| RequestedCall { tool: slot.name, raw_arguments: slot.arguments })
                    .collect();
                turn.stop = self.stop.map(StopReason::from);
                turn.usage = self.usage;
                turn.reasoning = self.reasoning;
                turn.refusal = Some(self.refusal).filter(|refusal| !refusal.is_empty());
                if !self.has_choice {
                    return Err((ModelErrorClass::Server, EMPTY));
                }
            }
            Protocol::Anthropic => {
                if self.open_block.is_some() {
                    return Err((ModelErrorClass::Truncated, "the stream ended in the middle of a content block"));
                }
                turn.started_calls = Some(self.blocks_started);
                turn.thought_tokens = self.thought_tokens;
            }
            Protocol::Gemini | Protocol::Ollama => {}
        }
        Ok(turn)
    }
}

impl Turn {
    /// A reply that came in one piece.
    pub(super) fn of_openai_body(body: &Value) -> Result<Self, Failed> {
        let Some(choice) = body.pointer("/choices/0") else {
            return Err((ModelErrorClass::Server, EMPTY));
        };
        let text = |pointer: &str| choice.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut frames = Frames::new(Protocol::OpenAi);
        for call in choice.pointer("/message/tool_calls").and_then(Value::as_array).into_iter().flatten() {
            let name = call.pointer("/function/name").and_then(Value::as_str).unwrap_or_default();
            if name.is_empty() {
                return Err((ModelErrorClass::Server, "a tool call without the name of a tool"));
            }
            let raw_arguments = match call.pointer("/function/arguments") {
                Some(Value::String(raw)) => raw.clone(),
                None | Some(Value::Null) => String::new(),
                Some(value) => value.to_string(),
            };
            frames.slots.push(Slot { name: name.to_owned(), arguments: raw_arguments, ..Slot::default() });
        }
        frames.stop = choice.get("finish_reason").and_then(Value::as_str).map(str::to_owned);
        frames.refusal = text("/message/refusal");
        frames.reasoning = choice.pointer("/message/reasoning_content").and_then(Value::as_str).map(str::to_owned);
        frames.usage = openai_usage(body);
        frames.has_choice = true;
        let parts = choice.pointer("/message/content").and_then(Value::as_array);
        let content = match parts {
            Some(parts) => parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect(),
            None => text("/message/content"),
        };
        Ok(Self { text: content, ..frames.into_turn()? })
    }
}

/// Why Gemini refused a question.
pub(super) fn blocked(body: &Value) -> Option<&str> {
    body.pointer("/promptFeedback/blockReason").and_then(Value::as_str)
}

fn openai_usage(frame: &Value) -> Option<Usage> {
    let usage = frame.get("usage").filter(|usage| usage.is_object()).or_else(|| frame.pointer("/x_groq/usage"))?;
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
    let (input, output) = (count("/prompt_tokens"), count("/completion_tokens"));
    if input.is_none() && output.is_none() {
        return None;
    }
    let (input, output) = (input.unwrap_or(0), output.unwrap_or(0));
    // Tokens of reasoning are among those received, but for servers whose total says that they come on top, or that count more of them.
    let reasoning = count("/completion_tokens_details/reasoning_tokens").unwrap_or(0);
    let with_reasoning = output.saturating_add(reasoning);
    let is_on_top =
        reasoning > output || count("/total_tokens").is_some_and(|total| input.saturating_add(with_reasoning) == total);
    Some(Usage {
        input_tokens: input,
        output_tokens: if is_on_top { with_reasoning } else { output },
        reasoning_tokens: reasoning,
        cached_tokens: count("/prompt_tokens_details/cached_tokens").or_else(|| count("/prompt_cache_hit_tokens")).unwrap_or(0),
        ..Usage::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn read(deltas: &[Value]) -> Result<Vec<(String, String)>, Failed> {
        let mut frames = Frames::new(Protocol::OpenAi);
        for delta in deltas {
            frames.push(&json!({ "choices": [{ "delta": { "tool_calls": [delta] } }] }).to_string());
        }
        frames.push(&json!({ "choices": [{ "delta": {}, "finish_reason": "tool_calls" }] }).to_string());
        Ok(frames.into_turn()?.calls.into_iter().map(|call| (call.tool, call.raw_arguments)).collect())
    }

    fn whole(index: Value, id: Value, name: &str, arguments: &str) -> Value {
        json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
    }

    fn piece(index: Value, arguments: &str) -> Value {
        json!({ "index": index, "function": { "arguments": arguments } })
    }

    fn two(first: (&str, &str), second: (&str, &str)) -> Vec<(String, String)> {
        [first, second].map(|(name, arguments)| (name.to_owned(), arguments.to_owned())).to_vec()
    }

    #[test]
    fn interleaved_deltas_go_to_their_own_calls() {
        let calls = read(&[
            whole(json!(0), json!("a"), "x", ""),
            whole(json!(1), json!("b"), "y", ""),
            piece(json!(0), "{\"n\""),
            piece(json!(1), "{\"m\""),
            piece(json!(0), ":1}"),
            piece(json!(1), ":2}"),
        ]);
        assert_eq!(calls.unwrap(), two(("x", r#"{"n":1}"#), ("y", r#"{"m":2}"#)));
    }

    #[test]
    fn two_calls_on_one_index_stay_two() {
        for (first_id, second_id) in [("a", "b"), ("call_0", "call_0"), ("", "")] {
            let calls = read(&[
                whole(json!(0), json!(first_id), "x", ""),
                piece(json!(0), "{\"n\":"),
                piece(json!(0), "1}"),
                whole(json!(0), json!(second_id), "x", ""),
                piece(json!(0), "{\"n\":"),
                piece(json!(0), "2}"),
            ]);
            assert_eq!(calls.unwrap(), two(("x", r#"{"n":1}"#), ("x", r#"{"n":2}"#)), "{first_id} {second_id}");
            let calls = read(&[whole(json!(0), json!(first_id), "x", "{}"), whole(json!(0), json!(second_id), "y", "{}")]);
            assert_eq!(calls.unwrap(), two(("x", "{}"), ("y", "{}")));
        }
    }

    #[test]
    fn a_provider_that_starts_at_another_index_or_gives_none_asks_for_as_many_calls_as_it_wrote() {
        let far = whole(json!(4_294_967_295_u32), json!("a"), "x", "{}");
        assert_eq!(read(&[far]).unwrap().len(), 1);
        let none = [whole(Value::Null, json!("a"), "x", "{}"), whole(Value::Null, json!("b"), "x", "{}")];
        assert_eq!(read(&none).unwrap(), two(("x", "{}"), ("x", "{}")));
        let no_ids = [whole(Value::Null, Value::Null, "x", "{\"n\""), piece(Value::Null, ":1}")];
        assert_eq!(read(&no_ids).unwrap(), [("x".to_owned(), r#"{"n":1}"#.to_owned())]);
    }

    #[test]
    fn a_name_that_comes_with_each_delta_is_one_call() {
        let again = |arguments: &str| whole(json!(0), json!("a"), "x", arguments);
        assert_eq!(
            read(&[again(""), again("{\"n\""), again(":1}"), again("")]).unwrap(),
            [("x".to_owned(), r#"{"n":1}"#.to_owned())]
        );
    }

    #[test]
    fn a_piece_that_may_belong_to_either_of_two_calls_fails_the_turn() {
        let open = [
            whole(Value::Null, json!("a"), "x", "{"),
            whole(Value::Null, json!("b"), "y", "{"),
            piece(Value::Null, "\"n\":1}"),
        ];
        assert_eq!(read(&open).unwrap_err().0, ModelErrorClass::Server);
        assert_eq!(read(&[piece(json!(0), "{}")]).unwrap_err().0, ModelErrorClass::Server);
    }

    #[test]
    fn arguments_back_to_back_without_a_name_stay_one_invalid_text() {
        let calls = read(&[whole(json!(0), json!("a"), "x", "{\"n\":1}"), piece(json!(0), "{\"n\":2}")]).unwrap();
        assert_eq!(calls, [("x".to_owned(), r#"{"n":1}{"n":2}"#.to_owned())]);
    }

    proptest! {
        #[test]
        fn however_calls_are_cut_into_pieces_no_call_gets_another_ones_arguments(
            values in proptest::collection::vec((0_u8..3, 0_i32..1000), 1..5),
            cut in 1_usize..8,
            index in 0_u8..3,
            id in 0_u8..4,
        ) {
            let mut deltas = Vec::new();
            let mut expected = Vec::new();
            for (at, (tool, value)) in values.iter().enumerate() {
                let name = format!("tool{tool}");
                let arguments = json!({ "value": value }).to_string();
                let index = match index { 0 => json!(at), 1 => json!(0), _ => Value::Null };
                let id = match id { 0 => json!(format!("id{at}")), 1 => json!("call_0"), 2 => json!(""), _ => Value::Null };
                deltas.push(whole(index.clone(), id, &name, ""));
                for piece_of in arguments.as_bytes().chunks(cut) {
                    deltas.push(piece(index.clone(), std::str::from_utf8(piece_of).unwrap()));
                }
                expected.push((name, arguments));
            }
            // Either exactly the calls that were written, or a turn that is asked for again.
            if let Ok(calls) = read(&deltas) {
                prop_assert_eq!(calls, expected);
            }
        }
    }
}
