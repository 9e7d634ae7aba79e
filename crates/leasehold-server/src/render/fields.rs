//! The values that a run waits for: what each is called, what fits, and whether it may be left out.

use crate::terminal::{Look, Screen, span};
use serde_json::Value;

/// Fields and labels of a schema that are shown.
const FIELDS_MAX: usize = 64;

/// Shows the fields that a schema declares.
pub(super) fn fields(screen: &mut Screen, schema: &Value) {
    screen.styled(Look::Faint, "    asked for");
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    let required = |name: &str| {
        let names = schema.get("required").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|required| required == name))
    };
    for (name, field) in properties.iter().take(FIELDS_MAX) {
        let need = if required(name) { "required" } else { "may be left out" };
        screen.spans(&[
            span(Look::Plain, "      - "),
            span(Look::Strong, name),
            span(Look::Plain, format!(": {}, {need}", kind(field))),
        ]);
        let text = |key: &str| field.get(key).and_then(Value::as_str);
        for said in [text("title"), text("description")].into_iter().flatten() {
            screen.block(8, said, super::BLOCK_LINES_MAX);
        }
        let labels = labels(field);
        if !labels.is_empty() {
            let left = labels.len().saturating_sub(FIELDS_MAX);
            let more = if left > 0 { format!(", and {left} more") } else { String::new() };
            let shown: Vec<String> = labels.into_iter().take(FIELDS_MAX).collect();
            screen.line(format!("        one of: {}{more}", shown.join(", ")));
        }
        if let Some(default) = field.get("default") {
            screen.line(format!("        usually: {default}"));
        }
    }
    let left = properties.len().saturating_sub(FIELDS_MAX);
    if left > 0 {
        screen.line(format!("      and {left} more: see `runs show --json`"));
    }
}

/// The type of a field with its bounds.
fn kind(field: &Value) -> String {
    let of = |value: &Value| match value.get("type") {
        Some(Value::String(one)) => one.clone(),
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" or "),
        _ => "any".to_owned(),
    };
    let mut text = of(field);
    if let Some(items) = field.get("items") {
        text = format!("{text} of {}", of(items));
    }
    let bounds = [
        ("minimum", "at least"),
        ("exclusiveMinimum", "more than"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "less than"),
        ("minLength", "characters at least"),
        ("maxLength", "characters at most"),
        ("pattern", "matching"),
        ("format", "as"),
    ];
    for (key, words) in bounds {
        if let Some(value) = field.get(key) {
            text = format!("{text}, {words} {value}");
        }
    }
    text
}

/// What a field may be, each with its label where it has one.
fn labels(field: &Value) -> Vec<String> {
    let places = [Some(field), field.get("items")];
    let mut all = Vec::new();
    for place in places.into_iter().flatten() {
        let names = place.get("enumNames").and_then(Value::as_array);
        for (index, value) in place.get("enum").and_then(Value::as_array).into_iter().flatten().enumerate() {
            all.push(labelled(value, names.and_then(|names| names.get(index))));
        }
        for key in ["oneOf", "anyOf"] {
            let choices = place.get(key).and_then(Value::as_array).into_iter().flatten();
            all.extend(choices.filter_map(|choice| Some(labelled(choice.get("const")?, choice.get("title")))));
        }
    }
    all
}

fn labelled(value: &Value, label: Option<&Value>) -> String {
    match label.and_then(Value::as_str) {
        Some(label) => format!("{value} ({label})"),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(schema: &Value) -> String {
        let mut screen = Screen::new(false);
        fields(&mut screen, schema);
        screen.into_text()
    }

    #[test]
    fn each_field_says_what_fits() {
        let text = shown(&json!({
            "type": "object",
            "required": ["amount"],
            "properties": {
                "amount": { "type": "integer", "minimum": 1, "description": "In cents" },
                "colour": { "type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"] },
                "size": { "oneOf": [{ "const": 1, "title": "Small" }, { "const": 2 }] },
                "tags": { "type": "array", "items": { "type": "string", "enum": ["a"] }, "default": [] },
            }
        }));
        for part in [
            "amount: integer, at least 1, required",
            "| In cents",
            "colour: string, may be left out",
            "one of: \"r\" (Red), \"g\" (Green)",
            "one of: 1 (Small), 2",
            "tags: array of string, may be left out",
            "one of: \"a\"",
            "usually: []",
        ] {
            assert!(text.contains(part), "{part} in:\n{text}");
        }
    }

    #[test]
    fn no_field_draws_a_line_of_its_own() {
        let evil = "x\n    leasehold input RUN\u{1b}[2J\u{202e}";
        let text = shown(&json!({ "properties": { evil: { "type": evil, "title": evil, "enum": [evil], "default": evil } } }));
        assert!(!text.chars().any(|c| c != '\n' && c.is_control()), "{text:?}");
        assert!(!text.lines().any(|line| line.trim_start().starts_with("leasehold input")), "{text}");
    }

    #[test]
    fn many_fields_and_labels_are_cut() {
        let many = |n: usize| {
            let properties: serde_json::Map<String, Value> = (0..n).map(|i| (format!("f{i:03}"), json!({}))).collect();
            shown(&json!({ "properties": properties }))
        };
        assert!(!many(FIELDS_MAX).contains("more") && many(FIELDS_MAX + 1).contains("and 1 more"));
        let labels = |n: usize| shown(&json!({ "properties": { "a": { "enum": (0..n).collect::<Vec<_>>() } } }));
        assert!(!labels(FIELDS_MAX).contains("more") && labels(FIELDS_MAX + 1).contains("and 1 more"));
    }
}
