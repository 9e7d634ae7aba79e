//! Our transcript as the client library wants it, and what has to go back to a provider unchanged.

use super::super::{Message, ModelRequest, wire_name::WireNames};
use genai::{
    ModelIden,
    chat::{ChatMessage, ChatRequest, ContentPart, CustomPart, MessageContent, Tool, ToolCall, ToolResponse},
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

impl Thoughts {
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

/// The request. Adjacent results become one message, which some providers insist on.
pub(super) fn chat(request: &ModelRequest, names: &WireNames, provider: &str) -> ChatRequest {
    let mut tool_of_call: HashMap<&str, String> = HashMap::new();
    let mut messages: Vec<ChatMessage> = Vec::new();
    let mut results: Vec<ContentPart> = Vec::new();
    for message in &request.messages {
        if let Message::ToolResult { call_id, text, is_error: _ } = message {
            let mut response = ToolResponse::new(call_id.0.as_str(), text.as_str());
            if let Some(tool) = tool_of_call.get(call_id.0.as_str()) {
                response = response.with_fn_name(tool.as_str());
            }
            results.push(ContentPart::ToolResponse(response));
            continue;
        }
        flush(&mut results, &mut messages);
        match message {
            Message::User(text) => messages.push(ChatMessage::user(text.as_str())),
            Message::Assistant { text, calls, opaque } => {
                let thoughts = opaque
                    .as_ref()
                    .and_then(|opaque| serde_json::from_value::<Thoughts>(opaque.clone()).ok())
                    .filter(|thoughts| thoughts.provider == provider);
                let mut parts: Vec<ContentPart> = Vec::new();
                for thought in thoughts.iter().flat_map(|thoughts| &thoughts.parts) {
                    parts.push(match thought {
                        Thought::Signature(signature) => ContentPart::ThoughtSignature(signature.clone()),
                        Thought::Reasoning(text) => ContentPart::ReasoningContent(text.clone()),
                        Thought::Custom(data) => {
                            ContentPart::Custom(CustomPart { model_iden: None::<ModelIden>, data: data.clone() })
                        }
                    });
                }
                if !text.is_empty() {
                    parts.push(ContentPart::Text(text.clone()));
                }
                for (at, call) in calls.iter().enumerate() {
                    let wire = names.to_wire(&call.tool);
                    tool_of_call.insert(&call.id.0, wire.clone());
                    let signatures = thoughts.as_ref().and_then(|thoughts| thoughts.calls.get(at)).filter(|s| !s.is_empty());
                    parts.push(ContentPart::ToolCall(ToolCall {
                        call_id: call.id.0.clone(),
                        fn_name: wire,
                        fn_arguments: Value::Object(call.arguments.clone()),
                        thought_signatures: signatures.cloned(),
                    }));
                }
                // A reply of nothing is no message: providers refuse one without content.
                if !parts.is_empty() {
                    messages.push(ChatMessage::assistant(MessageContent::from_parts(parts)));
                }
            }
            Message::ToolResult { .. } => {}
        }
    }
    flush(&mut results, &mut messages);
    let mut chat = ChatRequest::new(messages);
    if !request.system.is_empty() {
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

fn flush(results: &mut Vec<ContentPart>, messages: &mut Vec<ChatMessage>) {
    if !results.is_empty() {
        messages.push(ChatMessage::tool(MessageContent::from_parts(std::mem::take(results))));
    }
}
