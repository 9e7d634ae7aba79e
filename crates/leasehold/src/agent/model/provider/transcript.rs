//! Our transcript as the client library wants it, and what has to go back to a provider unchanged.

use super::{
    super::{Message, ModelRequest, wire_name::WireNames},
    frames::Protocol,
};
use crate::run::CallId;
use genai::{
    ModelIden,
    chat::{ChatMessage, ChatRequest, ChatRole, ContentPart, CustomPart, MessageContent, Tool, ToolCall, ToolResponse},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;

/// What a provider signed and wants back. In a form of our own, because it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Thoughts {
    /// For which provider; another one never sees it.
    provider: String,
    parts: Vec<Thought>,
    /// By position of the call.
    calls: Vec<Vec<String>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Thought {
    Signature(String),
    Reasoning(String),
    Custom(Value),
}

impl Thought {
    fn part(&self) -> ContentPart {
        match self {
            Self::Signature(signature) => ContentPart::ThoughtSignature(signature.clone()),
            Self::Reasoning(text) => ContentPart::ReasoningContent(text.clone()),
            Self::Custom(data) => ContentPart::Custom(CustomPart { model_iden: None::<ModelIden>, data: data.clone() }),
        }
    }
}

impl Thoughts {
    /// Where calls belong to it, DeepSeek and others who speak OpenAI's protocol with thoughts refuse what follows without them.
    pub(super) fn of_text(provider: &str, text: String) -> Self {
        Self { provider: provider.to_owned(), parts: vec![Thought::Reasoning(text)], calls: Vec::new() }
    }

    /// `None` where there is nothing to give back.
    pub(super) fn of(provider: &str, parts: &[ContentPart]) -> Option<Self> {
        let thoughts: Vec<Thought> = parts
            .iter()
            .filter_map(|part| match part {
                ContentPart::ThoughtSignature(signature) => Some(Thought::Signature(signature.clone())),
                ContentPart::ReasoningContent(text) => Some(Thought::Reasoning(text.clone())),
                ContentPart::Custom(custom) => Some(Thought::Custom(custom.data.clone())),
                _ => None,
            })
            .collect();
        let calls: Vec<Vec<String>> =
            calls_of(parts).iter().map(|call| call.thought_signatures.clone().unwrap_or_default()).collect();
        if thoughts.is_empty() && calls.iter().all(Vec::is_empty) {
            return None;
        }
        Some(Self { provider: provider.to_owned(), parts: thoughts, calls })
    }
}

/// The calls among the parts of a reply.
pub(super) fn calls_of(parts: &[ContentPart]) -> Vec<&ToolCall> {
    parts
        .iter()
        .filter_map(|part| match part {
            ContentPart::ToolCall(call) => Some(call),
            _ => None,
        })
        .collect()
}

/// The request, as every provider takes it: it begins with a user, the speakers alternate, nobody says nothing, and the results of a
/// turn are one message, or one each where the provider's message holds one.
pub(super) fn chat(request: &ModelRequest, names: &WireNames, provider: &str, protocol: Protocol) -> ChatRequest {
    let mut tool_of_call: HashMap<&CallId, String> = HashMap::new();
    let mut said = Said(Vec::new());
    for message in &request.messages {
        match message {
            Message::User(text) => said.push(ChatRole::User, text_of(text).into_iter().collect(), true),
            Message::Assistant { text, calls, opaque } => {
                let thoughts = opaque
                    .as_ref()
                    .and_then(|opaque| serde_json::from_value::<Thoughts>(opaque.clone()).ok())
                    .filter(|thoughts| thoughts.provider == provider);
                let mut parts = Vec::new();
                parts.extend(text_of(text));
                for (at, call) in calls.iter().enumerate() {
                    let wire = names.to_wire(&call.tool);
                    tool_of_call.insert(&call.id, wire.clone());
                    let signatures = thoughts.as_ref().and_then(|thoughts| thoughts.calls.get(at)).filter(|s| !s.is_empty());
                    parts.push(ContentPart::ToolCall(ToolCall {
                        call_id: wire_id(&call.id),
                        fn_name: wire,
                        fn_arguments: Value::Object(call.arguments.clone()),
                        thought_signatures: signatures.cloned(),
                    }));
                }
                // Thoughts alone are no message either.
                if !parts.is_empty() {
                    let mut thoughts: Vec<_> =
                        thoughts.iter().flat_map(|thoughts| &thoughts.parts).map(Thought::part).collect();
                    if provider == DEEPSEEK && !calls.is_empty() && thoughts.is_empty() {
                        // It wants the field also where another model asked for the calls.
                        thoughts.push(ContentPart::ReasoningContent(String::new()));
                    }
                    parts.splice(0..0, thoughts);
                }
                if said.0.is_empty() && !parts.is_empty() {
                    said.push(ChatRole::User, vec![ContentPart::Text(BEGINNING.to_owned())], true);
                }
                said.push(ChatRole::Assistant, parts, true);
            }
            Message::ToolResult { call_id, text, is_error: _ } => {
                let mut response = ToolResponse::new(wire_id(call_id), text.as_str());
                if let Some(tool) = tool_of_call.get(call_id) {
                    response = response.with_fn_name(tool.as_str());
                }
                said.push(ChatRole::Tool, vec![ContentPart::ToolResponse(response)], protocol != Protocol::Ollama);
            }
        }
    }
    let message = |(role, parts)| ChatMessage { role, content: MessageContent::from_parts(parts), options: None };
    let mut chat = ChatRequest::new(said.0.into_iter().map(message).collect());
    if !request.system.trim().is_empty() {
        chat = chat.with_system(request.system.as_str());
    }
    if !request.tools.is_empty() {
        chat = chat.with_tools(request.tools.iter().map(|tool| {
            Tool::new(names.to_wire(&tool.name))
                .with_description(tool.description.as_str())
                .with_schema(tool.parameters.clone())
        }));
    }
    chat
}

const DEEPSEEK: &str = "deepseek";
/// Stands before a conversation that a caller begins with the model's words.
const BEGINNING: &str = "(The conversation begins with your words.)";

/// The messages so far.
struct Said(Vec<(ChatRole, Vec<ContentPart>)>);

impl Said {
    /// Adds what somebody says; to their last message, where they spoke last and that `joins`.
    fn push(&mut self, role: ChatRole, parts: Vec<ContentPart>, joins: bool) {
        if parts.is_empty() {
            return;
        }
        let last = self.0.last_mut().filter(|(last, _)| joins && *last == role).map(|(_, parts)| parts);
        let Some(last) = last else { return self.0.push((role, parts)) };
        for part in parts {
            match (last.last_mut(), part) {
                // Some providers' messages have one text, and the library puts nothing between two.
                (Some(ContentPart::Text(before)), ContentPart::Text(text)) => {
                    before.push_str("\n\n");
                    before.push_str(&text);
                }
                (_, part) => last.push(part),
            }
        }
    }
}

/// A text of nothing but space is none: providers refuse it.
fn text_of(text: &str) -> Option<ContentPart> {
    (!text.trim().is_empty()).then(|| ContentPart::Text(text.to_owned()))
}

/// The id of a call on the wire: nine letters and digits, as Mistral insists, which every other provider takes.
fn wire_id(id: &CallId) -> String {
    let numbers = id.0.strip_prefix('t').and_then(|rest| rest.split_once('c'));
    let numbers = numbers.and_then(|(turn, index)| Some((base36(turn.parse().ok()?)?, base36(index.parse().ok()?)?)));
    numbers.map_or_else(|| id.0.clone(), |(turn, index)| format!("c{turn}{index}"))
}

/// Four digits; none where it does not fit, which no run and no reply comes near.
fn base36(number: u32) -> Option<String> {
    let digit = |place: u32| char::from_digit(number / 36_u32.pow(place) % 36, 36);
    (number < 36_u32.pow(4)).then(|| [3, 2, 1, 0].into_iter().filter_map(digit).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_nine_letters_and_digits_and_no_other_calls() {
        let mut seen = std::collections::BTreeSet::new();
        for turn in [1, 9, 10, 35, 36, 1_295, 1_296, 1_679_615] {
            for index in [0, 1, 63, 64, 35_999, 1_679_615] {
                let id = wire_id(&CallId::of(turn, index));
                assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
                assert!(seen.insert(id));
            }
        }
        assert_eq!(wire_id(&CallId::of(1, 0)), "c00010000");
        assert_eq!(wire_id(&CallId::of(1_679_616, 0)), "t1679616c0", "beyond what fits it stays as it is");
    }
}
