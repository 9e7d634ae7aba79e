//! What the answer to a call is worth: a value of bounded size for the model. What is not text is described, never passed on.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Value, json};

/// Characters of a name or an address in a description; more: cut.
const NAME_CHARS_MAX: usize = 500;

/// The result's value, at most about `max` bytes of it: its structured content where it has one, else its text.
pub(super) fn value_of(result: CallToolResult, max: usize) -> Value {
    let is_error = result.is_error == Some(true);
    let mut parts: Vec<Value> = result.content.into_iter().map(described).collect();
    let is_text = !parts.is_empty() && parts.iter().all(Value::is_string);
    let value = match result.structured_content {
        // An error says why in its text.
        Some(structured) if !(is_error && is_text) => structured,
        _ if is_text => Value::String(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")),
        _ if parts.is_empty() => Value::String("(an answer without content)".into()),
        _ if parts.len() == 1 => parts.remove(0),
        _ => Value::Array(parts),
    };
    bounded(value, max)
}

fn described(block: ContentBlock) -> Value {
    match block {
        ContentBlock::Text(text) => Value::String(text.text),
        ContentBlock::Image(image) => media("image", &image.mime_type, &image.data),
        ContentBlock::Audio(audio) => media("audio", &audio.mime_type, &audio.data),
        ContentBlock::ResourceLink(link) => {
            json!({ "type": "resource_link", "uri": short(&link.uri), "name": short(&link.name), "mime_type": link.mime_type.as_deref().map(short) })
        }
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
                json!({ "type": "resource", "uri": short(&uri), "mime_type": mime_type.as_deref().map(short), "text": text })
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let mut value = media("resource", mime_type.as_deref().unwrap_or_default(), &blob);
                value["uri"] = short(&uri).into();
                value
            }
            _ => json!({ "type": "resource", "note": "of a kind that is not known here" }),
        },
        _ => json!({ "type": "unknown", "note": "content of a kind that is not known here" }),
    }
}

fn media(kind: &str, mime_type: &str, base64: &str) -> Value {
    let bytes = base64.len() / 4 * 3 - base64.bytes().rev().take_while(|b| *b == b'=').count().min(2).min(base64.len() / 4 * 3);
    json!({ "type": kind, "mime_type": short(mime_type), "bytes": bytes, "note": "not shown" })
}

fn short(text: &str) -> String {
    match text.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The value, or the beginning of its text, which says that it was cut.
fn bounded(value: Value, max: usize) -> Value {
    let text = match value {
        Value::String(text) => text,
        other => {
            let text = other.to_string();
            if text.len() <= max {
                return other;
            }
            text
        }
    };
    if text.len() <= max {
        return Value::String(text);
    }
    let kept = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    Value::String(format!("{}\n[cut: the result is longer than {max} bytes]", &text[..kept]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(json: Value) -> CallToolResult {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn structured_content_comes_first_and_text_is_joined() {
        let both = json!({ "content": [{ "type": "text", "text": "{\"a\":1}" }], "structuredContent": { "a": 1 } });
        assert_eq!(value_of(result(both), 100), json!({ "a": 1 }));
        let texts = json!({ "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] });
        assert_eq!(value_of(result(texts), 100), json!("one\ntwo"));
        let error = json!({ "content": [{ "type": "text", "text": "no" }], "structuredContent": {}, "isError": true });
        assert_eq!(value_of(result(error), 100), json!("no"));
        assert_eq!(value_of(result(json!({ "content": [] })), 100), json!("(an answer without content)"));
    }

    #[test]
    fn what_is_no_text_is_described() {
        let data = "A".repeat(4_000_000);
        let mixed = json!({ "content": [
            { "type": "text", "text": "see" },
            { "type": "image", "data": data, "mimeType": "image/png" },
            { "type": "resource", "resource": { "uri": "a://b", "blob": "AAA=" } },
            { "type": "resource_link", "uri": "a://c", "name": "c" },
        ] });
        let expected = json!([
            "see",
            { "type": "image", "mime_type": "image/png", "bytes": 3_000_000, "note": "not shown" },
            { "type": "resource", "mime_type": "", "bytes": 2, "note": "not shown", "uri": "a://b" },
            { "type": "resource_link", "uri": "a://c", "name": "c", "mime_type": null },
        ]);
        assert_eq!(value_of(result(mixed), 1000), expected);
    }

    #[test]
    fn a_result_beyond_its_bound_is_cut_and_says_so() {
        let text = |text: &str| result(json!({ "content": [{ "type": "text", "text": text }] }));
        assert_eq!(value_of(text("12345678"), 8), json!("12345678"));
        assert_eq!(value_of(text("1234567ä"), 8), json!("1234567\n[cut: the result is longer than 8 bytes]"));
        let structured = result(json!({ "content": [], "structuredContent": { "a": "0123456789" } }));
        assert_eq!(value_of(structured, 8), json!("{\"a\":\"01\n[cut: the result is longer than 8 bytes]"));
    }
}
