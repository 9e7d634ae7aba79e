//! Arguments that fit a JSON Schema, for a call that means nothing. A few strategies, each checked by whoever asks with the
//! schema itself; where none fits, the tool is not drilled and that is said.

use leasehold::agent::tool::Arguments;
use serde_json::{Map, Value, json};

/// Levels of a schema that are followed.
const DEPTH_MAX: usize = 12;
/// How many alternatives of each choice are tried.
const VARIANTS: usize = 4;

/// Texts that patterns of everyday fields accept.
const TEXTS: [&str; 42] = [
    "drill",
    "drill-1",
    "Drill",
    "DRILL",
    "drill_1",
    "drill.txt",
    "/drill",
    "#drill",
    "a",
    "A",
    "1",
    "0",
    "12",
    "123",
    "1234",
    "12345",
    "123456",
    "1234567",
    "12345678",
    "1234567890",
    "ABC",
    "ABC-123",
    "AB12",
    "A1",
    "DRILL-1",
    "en",
    "en-GB",
    "EUR",
    "1.0",
    "1.0.0",
    "v1.0.0",
    "2026-01-01",
    "2026-01-01T00:00:00Z",
    "12:00",
    "12:00:00",
    "drill@example.com",
    "https://example.com/",
    "example.com",
    "+12025550123",
    "00000000-0000-4000-8000-000000000000",
    "0123456789abcdef",
    "192.0.2.1",
];

/// Arguments that `fits` accepts.
///
/// # Errors
/// What the last try was refused for.
pub(super) fn sample(schema: &Value, fits: impl Fn(&Arguments) -> Result<(), String>) -> Result<Arguments, String> {
    let given = schema.get("examples").and_then(Value::as_array).into_iter().flatten().chain(schema.get("default"));
    let mut why = "the schema asks for something that no strategy makes".to_owned();
    let made = (0..VARIANTS).flat_map(|variant| {
        [false, true].map(|all| Maker { root: schema, all, variant }.value(schema, 0).unwrap_or_else(|| json!({})))
    });
    for value in given.cloned().chain(made) {
        let Value::Object(arguments) = value else { continue };
        match fits(&arguments) {
            Ok(()) => return Ok(arguments),
            Err(refused) => why = refused,
        }
    }
    Err(why)
}

/// One strategy.
struct Maker<'a> {
    root: &'a Value,
    /// Optional properties too.
    all: bool,
    /// Which alternative of a choice.
    variant: usize,
}

impl Maker<'_> {
    /// A value; none: the schema accepts none, or is too deep.
    fn value(&self, schema: &Value, depth: usize) -> Option<Value> {
        if depth > DEPTH_MAX || schema == &Value::Bool(false) {
            return None;
        }
        let schema = self.flat(schema, depth);
        if let Some(value) = schema.get("const").or_else(|| schema.get("default")) {
            return Some(value.clone());
        }
        for list in ["enum", "examples"] {
            if let Some(values) = schema.get(list).and_then(Value::as_array).filter(|values| !values.is_empty()) {
                return values.get(self.variant % values.len()).cloned();
            }
        }
        match kind(&schema) {
            "object" => self.object(&schema, depth),
            "array" => self.array(&schema, depth),
            "integer" => Some(number(&schema, true)),
            "number" => Some(number(&schema, false)),
            "boolean" => Some(Value::Bool(true)),
            "null" => Some(Value::Null),
            _ => text(&schema, self.variant).map(Value::String),
        }
    }

    /// The schema with its references and combinations put into it.
    fn flat(&self, schema: &Value, depth: usize) -> Map<String, Value> {
        let mut flat = schema.as_object().cloned().unwrap_or_default();
        if depth > DEPTH_MAX {
            return flat;
        }
        if let Some(Value::String(reference)) = flat.remove("$ref")
            && let Some(target) = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer))
        {
            merge(&mut flat, self.flat(target, depth + 1));
        }
        if let Some(Value::Array(parts)) = flat.remove("allOf") {
            for part in &parts {
                merge(&mut flat, self.flat(part, depth + 1));
            }
        }
        for choice in ["oneOf", "anyOf"] {
            if let Some(Value::Array(parts)) = flat.remove(choice)
                && let Some(part) = parts.get(self.variant % parts.len().max(1))
            {
                merge(&mut flat, self.flat(part, depth + 1));
            }
        }
        flat
    }

    fn object(&self, schema: &Map<String, Value>, depth: usize) -> Option<Value> {
        let mut object = Map::new();
        let none = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let required: Vec<&str> =
            schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
        for name in &required {
            let value = properties.get(*name).map_or(Some(json!("drill")), |property| self.value(property, depth + 1))?;
            object.insert((*name).to_owned(), value);
        }
        let least = at(schema, "minProperties").unwrap_or(0.0);
        for (name, property) in properties {
            let wanted = self.all || (object.len() as f64) < least;
            if wanted
                && !object.contains_key(name)
                && let Some(value) = self.value(property, depth + 1)
            {
                object.insert(name.clone(), value);
            }
        }
        while (object.len() as f64) < least && object.len() < DEPTH_MAX {
            let value = schema.get("additionalProperties").map_or(Some(json!("drill")), |more| self.value(more, depth + 1))?;
            object.insert(format!("drill{}", object.len()), value);
        }
        Some(Value::Object(object))
    }

    fn array(&self, schema: &Map<String, Value>, depth: usize) -> Option<Value> {
        let least = at(schema, "minItems").unwrap_or(if self.all { 1.0 } else { 0.0 });
        let firsts = schema.get("prefixItems").and_then(Value::as_array);
        let any = json!({});
        let mut items = Vec::new();
        while (items.len() as f64) < least && items.len() < 64 {
            let item = firsts.and_then(|firsts| firsts.get(items.len())).or_else(|| schema.get("items")).unwrap_or(&any);
            // Another variant for each, so that unique items have a chance.
            let maker = Maker { variant: self.variant + items.len(), ..*self };
            items.push(maker.value(item, depth + 1)?);
        }
        Some(Value::Array(items))
    }
}

/// Puts more into a schema: lists and properties grow, everything else is the newer word.
fn merge(into: &mut Map<String, Value>, more: Map<String, Value>) {
    for (key, value) in more {
        match (into.get_mut(&key), value) {
            (Some(Value::Object(old)), Value::Object(new)) => old.extend(new),
            (Some(Value::Array(old)), Value::Array(new)) if key == "required" => old.extend(new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// The type, or what the other keys let guess.
fn kind(schema: &Map<String, Value>) -> &str {
    let has = |keys: &[&str]| keys.iter().any(|key| schema.contains_key(*key));
    match schema.get("type") {
        Some(Value::String(kind)) => kind,
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("null"),
        _ if has(&["properties", "required", "minProperties"]) => "object",
        _ if has(&["items", "prefixItems", "minItems"]) => "array",
        _ if has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) => "number",
        _ => "string",
    }
}

fn at(schema: &Map<String, Value>, key: &str) -> Option<f64> {
    schema.get(key).and_then(Value::as_f64)
}

fn number(schema: &Map<String, Value>, whole: bool) -> Value {
    let step = at(schema, "multipleOf").filter(|step| *step > 0.0).unwrap_or(if whole { 1.0 } else { 0.5 });
    let low = at(schema, "minimum").or_else(|| at(schema, "exclusiveMinimum").map(|low| low + step));
    let high = at(schema, "maximum").or_else(|| at(schema, "exclusiveMaximum").map(|high| high - step));
    let found = match (low, high) {
        (Some(low), _) => (low / step).ceil() * step,
        (None, Some(high)) => (high / step).floor() * step,
        (None, None) => step.max(1.0),
    };
    // `as` saturates; the schema judges the result.
    if found.fract() == 0.0 { json!(found as i64) } else { json!(found) }
}

fn text(schema: &Map<String, Value>, variant: usize) -> Option<String> {
    let format = match schema.get("format").and_then(Value::as_str) {
        Some("date-time") => Some("2026-01-01T00:00:00Z"),
        Some("date") => Some("2026-01-01"),
        Some("time") => Some("12:00:00Z"),
        Some("duration") => Some("PT1M"),
        Some("email" | "idn-email") => Some("drill@example.com"),
        Some("uri" | "url" | "iri" | "uri-reference") => Some("https://example.com/drill"),
        Some("hostname") => Some("example.com"),
        Some("ipv4") => Some("192.0.2.1"),
        Some("ipv6") => Some("2001:db8::1"),
        Some("uuid") => Some("00000000-0000-4000-8000-000000000000"),
        _ => None,
    };
    let least = at(schema, "minLength").unwrap_or(0.0);
    let most = at(schema, "maxLength").unwrap_or(f64::MAX);
    // `as` saturates.
    let stretch = |text: &str| {
        let missing = (least - text.chars().count() as f64).clamp(0.0, 4096.0) as usize;
        let mut stretched = format!("{text}{}", "a".repeat(missing));
        if (stretched.chars().count() as f64) > most {
            stretched = stretched.chars().take(most as usize).collect();
        }
        stretched
    };
    let bounds = ["pattern", "minLength", "maxLength"].map(|key| (key.to_owned(), schema.get(key).cloned()));
    let bounds: Map<String, Value> = bounds.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
    let validator = jsonschema::draft202012::new(&Value::Object(bounds)).ok()?;
    let fits = |text: &String| validator.is_valid(&Value::String(text.clone()));
    let mut found = format.into_iter().chain(TEXTS).map(stretch).filter(fits);
    let first = found.next();
    match variant {
        0 => first,
        // A pattern may leave only one.
        more => found.nth(more - 1).or(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(schema: Value) -> Result<Arguments, String> {
        let validator = jsonschema::draft202012::new(&schema).unwrap();
        sample(&schema, |arguments| {
            let value = Value::Object(arguments.clone());
            validator.validate(&value).map_err(|e| e.to_string())
        })
    }

    #[test]
    fn everyday_schemas_have_a_sample() {
        let property = |property: Value| json!({ "type": "object", "properties": { "p": property }, "required": ["p"], "additionalProperties": false });
        for schema in [
            json!({ "type": "string" }),
            json!({ "type": "string", "minLength": 12, "maxLength": 14 }),
            json!({ "type": "string", "maxLength": 2 }),
            json!({ "type": "string", "pattern": "^[A-Z]{3}-[0-9]+$" }),
            json!({ "type": "string", "pattern": "^[a-z0-9]+(-[a-z0-9]+)*$", "maxLength": 80 }),
            json!({ "type": "string", "format": "date-time" }),
            json!({ "enum": ["red", "green"] }),
            json!({ "const": { "a": 1 } }),
            json!({ "type": "integer", "minimum": 7 }),
            json!({ "type": "integer", "exclusiveMinimum": 0, "multipleOf": 5 }),
            json!({ "type": "number", "maximum": -3.5 }),
            json!({ "type": ["null", "boolean"] }),
            json!({ "type": "array", "items": { "type": "string" }, "minItems": 3, "uniqueItems": true }),
            json!({ "type": "object", "properties": { "a": { "type": "string" } }, "minProperties": 1, "additionalProperties": false }),
            json!({ "oneOf": [{ "type": "string", "pattern": "^never-this$" }, { "type": "integer" }] }),
            json!({ "allOf": [{ "type": "object", "required": ["a"] }, { "properties": { "a": { "type": "integer" } } }] }),
        ] {
            let schema = property(schema);
            assert!(made(schema.clone()).is_ok(), "{schema}: {:?}", made(schema.clone()));
        }
        let referring = json!({
            "type": "object", "required": ["p"], "properties": { "p": { "$ref": "#/$defs/p" } },
            "$defs": { "p": { "type": "object", "required": ["n"], "properties": { "n": { "type": "integer" } } } },
        });
        assert_eq!(Value::Object(made(referring).unwrap()), json!({ "p": { "n": 1 } }));
    }

    #[test]
    fn what_the_operator_gives_as_an_example_comes_first() {
        let schema = json!({ "type": "object", "examples": [{ "p": "mine" }], "properties": { "p": { "type": "string" } } });
        assert_eq!(Value::Object(made(schema).unwrap()), json!({ "p": "mine" }));
    }

    #[test]
    fn where_no_strategy_fits_it_says_why() {
        let schema =
            json!({ "type": "object", "required": ["p"], "properties": { "p": { "type": "string", "pattern": "^q{9}$" } } });
        assert!(made(schema).is_err());
        assert!(made(json!({ "type": "object", "required": ["p"], "properties": { "p": false } })).is_err());
    }
}
