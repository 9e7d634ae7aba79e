//! What the answer to a call is worth: a value of bounded size for the model. Binary content is put aside to be kept with the outcome, and
//! stands in the value as a reference; a link stays text, and nothing behind it is fetched.

use crate::agent::tool::{Asker, described};
use base64::prelude::*;
use jsonschema::Validator;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};
use serde_json::{Value, json};

/// Characters of a name or an address in a description; more: cut.
const NAME_CHARS_MAX: usize = 500;

/// The result's value, at most about `max` bytes of it: its structured content where it has one, else its text. What a structured result
/// shows beside that, an image, is named after it.
pub(super) async fn value_of(result: CallToolResult, max: usize, asker: &Asker) -> Value {
    let is_error = result.is_error == Some(true);
    let mut parts = Vec::with_capacity(result.content.len());
    for block in result.content {
        parts.push(part(block, asker).await);
    }
    let is_text = !parts.is_empty() && parts.iter().all(Value::is_string);
    let value = match result.structured_content {
        // An error says why in its text.
        Some(structured) if !(is_error && is_text) => {
            let kept: Vec<Value> = parts.into_iter().filter(|part| part.get("artifact").is_some()).collect();
            if kept.is_empty() { structured } else { json!({ "structured": structured, "artifacts": kept }) }
        }
        _ if is_text => Value::String(parts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")),
        _ if parts.is_empty() => Value::String("(an answer without content)".into()),
        _ if parts.len() == 1 => parts.remove(0),
        _ => Value::Array(parts),
    };
    bounded(value, max)
}

async fn part(block: ContentBlock, asker: &Asker) -> Value {
    match block {
        ContentBlock::Text(text) => Value::String(text.text),
        ContentBlock::Image(image) => media("image", &image.mime_type, &image.data, asker).await,
        ContentBlock::Audio(audio) => media("audio", &audio.mime_type, &audio.data, asker).await,
        ContentBlock::ResourceLink(link) => {
            json!({ "type": "resource_link", "uri": short(&link.uri), "name": short(&link.name), "mime_type": link.mime_type.as_deref().map(short) })
        }
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { uri, mime_type, text, .. } => {
                json!({ "type": "resource", "uri": short(&uri), "mime_type": mime_type.as_deref().map(short), "text": text })
            }
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let mut value = media("resource", mime_type.as_deref().unwrap_or_default(), &blob, asker).await;
                value["uri"] = short(&uri).into();
                value
            }
            _ => json!({ "type": "resource", "note": "of a kind that is not known here" }),
        },
        _ => json!({ "type": "unknown", "note": "content of a kind that is not known here" }),
    }
}

async fn media(kind: &str, mime_type: &str, base64: &str, asker: &Asker) -> Value {
    match BASE64_STANDARD.decode(base64) {
        Ok(content) => asker.keep(kind, mime_type, content).await,
        Err(_) => described(kind, &short(mime_type), base64.len() / 4 * 3, "its server did not send base64"),
    }
}

/// In what a result is not what its tool declares; an error answer need not be. A result of a form that was declared and that has none is
/// not what was declared either.
pub(super) fn unfit(output: Option<&Validator>, result: &CallToolResult) -> Option<String> {
    let output = output.filter(|_| result.is_error != Some(true))?;
    let Some(structured) = &result.structured_content else {
        return Some("the answer does not fit the output schema that its server declares: it has no structured content".into());
    };
    let error = output.iter_errors(structured).next()?;
    let place = error.instance_path().to_string();
    let place = if place.is_empty() { "the whole".to_owned() } else { format!("`{place}`") };
    // What is there is the server's, and may be long: the rule that it breaks says enough.
    let rule = error.schema_path().to_string();
    Some(format!("the answer does not fit the output schema that its server declares: {place} breaks `{rule}`"))
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

    const NOT_RECORDED: &str = "not kept: this call is of no run that is recorded";

    fn result(json: Value) -> CallToolResult {
        serde_json::from_value(json).unwrap()
    }

    async fn value(json: Value, max: usize) -> Value {
        value_of(result(json), max, &Asker::nobody()).await
    }

    #[tokio::test]
    async fn structured_content_comes_first_and_text_is_joined() {
        let both = json!({ "content": [{ "type": "text", "text": "{\"a\":1}" }], "structuredContent": { "a": 1 } });
        assert_eq!(value(both, 100).await, json!({ "a": 1 }));
        let texts = json!({ "content": [{ "type": "text", "text": "one" }, { "type": "text", "text": "two" }] });
        assert_eq!(value(texts, 100).await, json!("one\ntwo"));
        let error = json!({ "content": [{ "type": "text", "text": "no" }], "structuredContent": {}, "isError": true });
        assert_eq!(value(error, 100).await, json!("no"));
        assert_eq!(value(json!({ "content": [] }), 100).await, json!("(an answer without content)"));
    }

    #[tokio::test]
    async fn what_is_no_text_is_described_where_nothing_is_kept() {
        let data = "A".repeat(4_000_000);
        let mixed = json!({ "content": [
            { "type": "text", "text": "see" },
            { "type": "image", "data": data, "mimeType": "image/png" },
            { "type": "resource", "resource": { "uri": "a://b", "blob": "AAA=" } },
            { "type": "resource_link", "uri": "a://c", "name": "c" },
            { "type": "audio", "data": "no base64", "mimeType": "audio/wav" },
        ] });
        let expected = json!([
            "see",
            { "type": "image", "mime_type": "image/png", "bytes": 3_000_000, "note": NOT_RECORDED },
            { "type": "resource", "mime_type": "", "bytes": 2, "note": NOT_RECORDED, "uri": "a://b" },
            { "type": "resource_link", "uri": "a://c", "name": "c", "mime_type": null },
            { "type": "audio", "mime_type": "audio/wav", "bytes": 6, "note": "not kept: its server did not send base64" },
        ]);
        assert_eq!(value(mixed, 1000).await, expected);
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_place_and_rule() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "array", "items": { "type": "number" } } }, "required": ["a"] });
        let output = jsonschema::draft202012::new(&schema).unwrap();
        let why = |answer: Value| unfit(Some(&output), &result(answer));
        assert_eq!(why(json!({ "content": [], "structuredContent": { "a": [1, 2] } })), None);
        assert_eq!(why(json!({ "content": [], "isError": true })), None);
        assert_eq!(unfit(None, &result(json!({ "content": [] }))), None);
        let told = why(json!({ "content": [], "structuredContent": { "a": [1, "secret"] } })).unwrap();
        assert!(told.contains("`/a/1` breaks `/properties/a/items/type`") && !told.contains("secret"), "{told}");
        let told = why(json!({ "content": [], "structuredContent": {} })).unwrap();
        assert!(told.contains("the whole breaks `/required`"), "{told}");
        let told = why(json!({ "content": [{ "type": "text", "text": "{}" }] })).unwrap();
        assert!(told.contains("no structured content"), "{told}");
    }

    #[tokio::test]
    async fn a_result_beyond_its_bound_is_cut_and_says_so() {
        let text = |text: &str| json!({ "content": [{ "type": "text", "text": text }] });
        assert_eq!(value(text("12345678"), 8).await, json!("12345678"));
        assert_eq!(value(text("1234567ä"), 8).await, json!("1234567\n[cut: the result is longer than 8 bytes]"));
        let structured = json!({ "content": [], "structuredContent": { "a": "0123456789" } });
        assert_eq!(value(structured, 8).await, json!("{\"a\":\"01\n[cut: the result is longer than 8 bytes]"));
    }
}
