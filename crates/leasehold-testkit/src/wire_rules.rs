//! What each family of providers insists on in the conversation of a request, checked on the body as it goes over the wire. The rules
//! are the providers' own words: their references, and the errors with which they answer; the place is named beside each.

use crate::recorded::Wire;
use serde_json::Value;
use std::collections::BTreeSet;

type Checked = Result<(), String>;

/// Checks a body against the rules of its wire, and of the provider by its configured name where it has more.
///
/// # Errors
/// The first rule that does not hold, and where.
pub fn check(wire: Wire, provider: &str, body: &Value) -> Checked {
    match wire {
        Wire::OpenAi => openai(provider, body),
        Wire::Anthropic => anthropic(body),
        Wire::Gemini => gemini(body),
        Wire::Ollama => ollama(body),
    }
}

/// The results of calls in a body, in order.
pub fn results(wire: Wire, body: &Value) -> Vec<String> {
    let parts = |message: &Value| -> Vec<Value> {
        let blocks = |key: &str| message[key].as_array().cloned().unwrap_or_default();
        match wire {
            Wire::OpenAi | Wire::Ollama if message["role"] == "tool" => vec![message["content"].clone()],
            Wire::OpenAi | Wire::Ollama => Vec::new(),
            Wire::Anthropic => {
                let results = blocks("content").into_iter().filter(|block| block["type"] == "tool_result");
                results.map(|block| block["content"].clone()).collect()
            }
            Wire::Gemini => {
                let parts = blocks("parts");
                parts.iter().filter_map(|part| part.pointer("/functionResponse/response/content").cloned()).collect()
            }
        }
    };
    let messages = body["messages"].as_array().or_else(|| body["contents"].as_array()).into_iter().flatten();
    messages.flat_map(parts).map(|text| text.as_str().map_or_else(|| text.to_string(), str::to_owned)).collect()
}

fn list<'a>(of: &'a Value, key: &str) -> Result<&'a [Value], String> {
    match of[key].as_array() {
        Some(list) if !list.is_empty() => Ok(list),
        _ => Err(format!("`{key}` is no list, or an empty one")),
    }
}

fn text<'a>(of: &'a Value, key: &str) -> Result<&'a str, String> {
    of[key].as_str().ok_or_else(|| format!("`{key}` is no text"))
}

fn said(of: &Value, key: &str) -> Checked {
    if text(of, key)?.trim().is_empty() { Err(format!("`{key}` is nothing but space")) } else { Ok(()) }
}

fn all(text: &str, most: usize, also: &str) -> bool {
    (1..=most).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
}

/// A function's name: <https://platform.openai.com/docs/api-reference/chat/create> ("a-z, A-Z, 0-9, or contain underscores and dashes,
/// with a maximum length of 64"), the same in <https://docs.claude.com/en/docs/agents-and-tools/tool-use/implement-tool-use>. Gemini
/// wants a letter or an underscore first: <https://cloud.google.com/vertex-ai/generative-ai/docs/reference/rest/v1/Tool>.
fn name(of: &Value) -> Checked {
    let name = text(of, "name")?;
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if begins && all(name, 64, "_-") { Ok(()) } else { Err(format!("the function's name `{name}` is not of the alphabet")) }
}

fn names<'a>(functions: impl Iterator<Item = &'a Value>) -> Checked {
    let mut seen = BTreeSet::new();
    for function in functions {
        name(function)?;
        if !seen.insert(function["name"].as_str()) {
            return Err(format!("two functions are called {}", function["name"]));
        }
    }
    Ok(())
}

/// Who speaks, one after the other.
struct Turns {
    last: Option<String>,
    /// Calls that have no result yet.
    owed: Vec<String>,
    ids: BTreeSet<String>,
}

impl Turns {
    fn new() -> Self {
        Self { last: None, owed: Vec::new(), ids: BTreeSet::new() }
    }

    fn speaks(&mut self, role: &str) -> Checked {
        match self.last.replace(role.to_owned()) {
            None if role != "user" => Err(format!("it begins with `{role}`")),
            Some(last) if last == role => Err(format!("`{role}` twice in a row")),
            _ => Ok(()),
        }
    }

    fn asked(&mut self, id: &str) -> Checked {
        self.owed.push(id.to_owned());
        if self.ids.insert(id.to_owned()) { Ok(()) } else { Err(format!("the id `{id}` comes twice")) }
    }

    fn answered(&mut self, id: &str) -> Checked {
        let at = self.owed.iter().position(|owed| owed == id);
        let at = at.ok_or_else(|| format!("a result of `{id}`, which the turn before it does not ask for"))?;
        self.owed.remove(at);
        Ok(())
    }

    fn nothing_owed(&self) -> Checked {
        if self.owed.is_empty() { Ok(()) } else { Err(format!("{:?} have no result", self.owed)) }
    }

    /// A request asks for something: it ends with a user's words or with results.
    fn ends(&self) -> Checked {
        self.nothing_owed()?;
        match self.last.as_deref() {
            Some("assistant" | "model") | None => Err("it ends with an answer".into()),
            Some(_) => Ok(()),
        }
    }
}

fn at(index: usize, checked: Checked) -> Checked {
    checked.map_err(|why| format!("message {index}: {why}"))
}

/// "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'":
/// <https://platform.openai.com/docs/guides/function-calling>. `arguments` is a text of JSON, and a message of the assistant has content
/// unless it has calls: <https://platform.openai.com/docs/api-reference/chat/create>. That users and assistants take turns is said by
/// those who speak the protocol: Mistral, and the chat templates behind vLLM and llama.cpp ("Conversation roles must alternate").
fn openai(provider: &str, body: &Value) -> Checked {
    let mut turns = Turns::new();
    for (index, message) in list(body, "messages")?.iter().enumerate() {
        at(index, openai_message(provider, message, index, &mut turns))?;
    }
    turns.ends()?;
    names(body["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"]))
}

fn openai_message(provider: &str, message: &Value, index: usize, turns: &mut Turns) -> Checked {
    let role = text(message, "role")?;
    if role == "tool" {
        text(message, "content")?;
        turns.answered(text(message, "tool_call_id")?)?;
        turns.last = Some(role.to_owned());
        return Ok(());
    }
    turns.nothing_owed()?;
    match role {
        "system" if index == 0 => said(message, "content"),
        "user" => {
            // "Unexpected role 'user' after role 'tool'": Mistral.
            if turns.last.as_deref() == Some("tool") {
                return Err("a user speaks right after a result".into());
            }
            turns.speaks(role)?;
            said(message, "content")
        }
        "assistant" => {
            turns.speaks(role)?;
            if message.get("tool_calls").is_none() {
                return said(message, "content");
            }
            // "Missing reasoning_content field in the assistant message": <https://api-docs.deepseek.com/guides/thinking_mode>.
            if provider == "deepseek" {
                text(message, "reasoning_content")?;
            }
            for call in list(message, "tool_calls")? {
                let id = text(call, "id")?;
                // "Tool call id was .. but must be a-z, A-Z, 0-9, with a length of 9": Mistral, also where its models are served by
                // others, as in <https://github.com/anomalyco/opencode/issues/1680>. Fewer than 64 where others count.
                if !all(id, 64, "_-") || provider == "mistral" && !(all(id, 9, "") && id.len() == 9) {
                    return Err(format!("the id `{id}` is not one"));
                }
                turns.asked(id)?;
                name(&call["function"])?;
                let arguments = serde_json::from_str::<Value>(text(&call["function"], "arguments")?);
                if call["type"] != "function" || !arguments.is_ok_and(|arguments| arguments.is_object()) {
                    return Err(format!("call `{id}` has no type, or arguments that are no text of an object"));
                }
            }
            Ok(())
        }
        other => Err(format!("`{other}` speaks here")),
    }
}

/// Results "must immediately follow their corresponding tool use blocks" and "come first in the content array", "each `tool_use` block
/// must have a corresponding `tool_result` block in the next message": <https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls>.
/// The rest is in its errors: "text content blocks must be non-empty", "must contain non-whitespace text", "final assistant content
/// cannot end with trailing whitespace", `tool_use.id` "should match pattern '^[a-zA-Z0-9_-]+$'", "Expected `thinking`..., but found
/// `tool_use`": <https://platform.claude.com/docs/en/api/errors>.
fn anthropic(body: &Value) -> Checked {
    if body["max_tokens"].as_u64().is_none_or(|most| most == 0) {
        return Err("`max_tokens` is required".into());
    }
    if body.get("system").is_some_and(|system| system.as_str().is_some_and(|text| text.trim().is_empty())) {
        return Err("`system` is nothing but space".into());
    }
    let mut turns = Turns::new();
    for (index, message) in list(body, "messages")?.iter().enumerate() {
        at(index, anthropic_message(message, &mut turns))?;
    }
    turns.ends()?;
    names(body["tools"].as_array().into_iter().flatten())
}

fn anthropic_message(message: &Value, turns: &mut Turns) -> Checked {
    let role = text(message, "role")?;
    turns.speaks(role)?;
    if role == "assistant" {
        turns.nothing_owed()?;
    }
    if message["content"].is_string() {
        turns.nothing_owed()?;
        return said(message, "content");
    }
    let (mut began, mut ends) = (false, false);
    for block in list(message, "content")? {
        let kind = text(block, "type")?;
        match (role, kind) {
            (_, "text") => said(block, "text")?,
            ("assistant", "thinking" | "redacted_thinking") if began => {
                return Err("a thought after what was thought of".into());
            }
            ("assistant", "thinking") => drop((text(block, "thinking")?, text(block, "signature")?)),
            ("assistant", "redacted_thinking") => drop(text(block, "data")?),
            ("assistant", "tool_use") => {
                let id = text(block, "id")?;
                if !all(id, usize::MAX, "_-") {
                    return Err(format!("the id `{id}` is not one"));
                }
                turns.asked(id)?;
                name(block)?;
                if !block["input"].is_object() {
                    return Err("`input` is no object".into());
                }
            }
            ("user", "tool_result") if began => return Err("a result after something else".into()),
            ("user", "tool_result") => {
                text(block, "content")?;
                turns.answered(text(block, "tool_use_id")?)?;
            }
            _ => return Err(format!("`{kind}` of `{role}`")),
        }
        began |= matches!(kind, "text" | "tool_use");
        ends = matches!(kind, "thinking" | "redacted_thinking");
    }
    if ends {
        return Err("it ends with a thought".into());
    }
    if role == "user" { turns.nothing_owed() } else { Ok(()) }
}

/// "Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn",
/// "that function call turn comes immediately after a user turn or after a function response turn", "that multiturn requests alternate
/// between user and model": errors of <https://ai.google.dev/api/generate-content>, as in
/// <https://github.com/google-gemini/gemini-cli/issues/4217>. `args` and `response` are objects, and a response has its call's name:
/// <https://ai.google.dev/api/caching#FunctionResponse>.
fn gemini(body: &Value) -> Checked {
    if let Some(system) = body.get("systemInstruction") {
        said(&system["parts"][0], "text")?;
    }
    let mut turns = Turns::new();
    let mut owed: Vec<(&Value, &Value)> = Vec::new();
    for (index, content) in list(body, "contents")?.iter().enumerate() {
        let role = content["role"].as_str().unwrap_or_default();
        at(index, turns.speaks(role))?;
        let calls: Vec<(&Value, &Value)> = functions(content, "functionCall");
        let responses = functions(content, "functionResponse");
        at(
            index,
            if responses == owed { Ok(()) } else { Err(format!("called {owed:?}, and the responses are {responses:?}")) },
        )?;
        for part in list(content, "parts")? {
            at(index, gemini_part(role, part, !responses.is_empty()))?;
        }
        owed = calls;
    }
    turns.owed.extend(owed.iter().map(|(name, _)| name.to_string()));
    turns.ends()?;
    let declared = body["tools"].as_array().into_iter().flatten();
    names(declared.flat_map(|tool| tool["functionDeclarations"].as_array().into_iter().flatten()))
}

/// Names and ids, in order.
fn functions<'a>(content: &'a Value, key: &str) -> Vec<(&'a Value, &'a Value)> {
    let parts = content["parts"].as_array().into_iter().flatten();
    parts.filter_map(|part| part.get(key)).map(|function| (&function["name"], &function["id"])).collect()
}

fn gemini_part(role: &str, part: &Value, is_response: bool) -> Checked {
    if let Some(call) = part.get("functionCall") {
        name(call)?;
        return match call["args"].is_object() && role == "model" {
            true => Ok(()),
            false => Err("a call of a user, or one whose `args` are no object".into()),
        };
    }
    if let Some(response) = part.get("functionResponse") {
        return match response["response"].is_object() && role == "user" {
            true => Ok(()),
            false => Err("a response of the model, or one that is no object".into()),
        };
    }
    if is_response {
        return Err("something else among the responses".into());
    }
    said(part, "text")
}

/// A call's `arguments` are an object, and each call has a message of its own with its result right after it, in order:
/// <https://docs.ollama.com/capabilities/tool-calling>.
fn ollama(body: &Value) -> Checked {
    let mut turns = Turns::new();
    for (index, message) in list(body, "messages")?.iter().enumerate() {
        at(index, ollama_message(message, index, &mut turns))?;
    }
    turns.ends()?;
    names(body["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"]))
}

fn ollama_message(message: &Value, index: usize, turns: &mut Turns) -> Checked {
    let role = text(message, "role")?;
    if role == "tool" {
        text(message, "content")?;
        if turns.owed.is_empty() {
            return Err("a result that no call before it asks for".into());
        }
        turns.owed.remove(0);
        turns.last = Some(role.to_owned());
        return Ok(());
    }
    turns.nothing_owed()?;
    if role == "system" && index == 0 {
        return said(message, "content");
    }
    turns.speaks(role)?;
    if role != "assistant" || message.get("tool_calls").is_none() {
        return said(message, "content");
    }
    for (at, call) in list(message, "tool_calls")?.iter().enumerate() {
        name(&call["function"])?;
        turns.asked(&format!("{index}/{at}"))?;
        if !call["function"]["arguments"].is_object() {
            return Err("`arguments` are no object".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
