//! A tool as its server describes it, and what differs between two descriptions. What is kept of it, and where, is the caller's.

use crate::{limits::MCP_DEFINITION_BYTES_MAX, run::canonical_hash};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// One tool of a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// Without the server's name.
    pub name: String,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// For the model.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: Value,
    /// JSON Schema of structured results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// What the server says that the tool does to the world. For showing; it lowers nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<Value>,
}

impl Definition {
    /// Of everything that it says.
    pub fn hash(&self) -> String {
        canonical_hash(self)
    }

    /// Why no model can be offered it, in words; none: it can.
    pub fn refusal(&self) -> Option<String> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        if !(1..=NAME_CHARS_MAX).contains(&self.name.len()) || !self.name.chars().all(is_plain) {
            return Some(format!("its name is not 1 to {NAME_CHARS_MAX} of letters, digits, `_`, `-`, `.` and `/`"));
        }
        let bytes = serde_json::to_vec(self).map_or(usize::MAX, |bytes| bytes.len());
        if bytes > MCP_DEFINITION_BYTES_MAX {
            return Some(format!("its description and schemas have {bytes} bytes, more than {MCP_DEFINITION_BYTES_MAX}"));
        }
        if self.input_schema.get("type").and_then(Value::as_str) != Some("object") {
            return Some("the schema of its arguments is not of `type` object".into());
        }
        if let Err(error) = jsonschema::draft202012::new(&self.input_schema) {
            return Some(format!("the schema of its arguments is none: {error}"));
        }
        // What it answers could not be held against it.
        self.output().err().map(|why| format!("the schema of its results is none: {why}"))
    }

    /// What its structured results have to fit; none: it declares nothing. No schema is fetched from elsewhere.
    pub(super) fn output(&self) -> Result<Option<jsonschema::Validator>, String> {
        self.output_schema.as_ref().map(jsonschema::draft202012::new).transpose().map_err(|e| e.to_string())
    }
}

/// Which of these tools no model can be offered, by name, and why.
pub fn refusals(listed: &[Definition]) -> BTreeMap<String, String> {
    let mut names = BTreeSet::new();
    let mut refused = BTreeMap::new();
    for definition in listed {
        // Nobody knows which of them is called.
        let twice = (!names.insert(&definition.name)).then(|| "the server lists two tools of this name".to_owned());
        if let Some(why) = twice.or_else(|| definition.refusal()) {
            refused.insert(definition.name.clone(), why);
        }
    }
    refused
}

/// As the protocol has it.
const NAME_CHARS_MAX: usize = 128;

impl From<rmcp::model::Tool> for Definition {
    fn from(tool: rmcp::model::Tool) -> Self {
        Self {
            name: tool.name.into_owned(),
            title: tool.title,
            description: tool.description.unwrap_or_default().into_owned(),
            input_schema: Value::Object((*tool.input_schema).clone()),
            output_schema: tool.output_schema.map(|schema| Value::Object((*schema).clone())),
            // Only plain values, which always serialize.
            annotations: tool.annotations.and_then(|annotations| serde_json::to_value(annotations).ok()),
        }
    }
}

/// One tool that is not as it was known.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// Listed, and not known.
    Added {
        /// The tool.
        tool: String,
    },
    /// Known, and listed otherwise.
    Changed {
        /// The tool.
        tool: String,
        /// Where, and how.
        differences: Vec<Difference>,
    },
    /// Known, and not listed.
    Gone {
        /// The tool.
        tool: String,
    },
}

/// One place at which two definitions differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// A JSON pointer into the definition.
    pub path: String,
    /// As it was known; none: it was not there.
    pub before: Option<Value>,
    /// As it is listed; none: it is not there.
    pub after: Option<Value>,
}

/// What differs between the definitions that were known and those that a server lists, by name.
pub fn changes(known: &[Definition], listed: &[Definition]) -> Vec<Change> {
    let by_name = |definitions: &'_ [Definition]| -> BTreeMap<String, Definition> {
        definitions.iter().map(|definition| (definition.name.clone(), definition.clone())).collect()
    };
    let (known, listed) = (by_name(known), by_name(listed));
    let mut found = Vec::new();
    for (name, before) in &known {
        let tool = name.clone();
        match listed.get(name) {
            None => found.push(Change::Gone { tool }),
            Some(after) if after.hash() == before.hash() => {}
            Some(after) => {
                let mut differences = Vec::new();
                compare("", &content(before), &content(after), &mut differences);
                found.push(Change::Changed { tool, differences });
            }
        }
    }
    found.extend(listed.keys().filter(|name| !known.contains_key(*name)).map(|name| Change::Added { tool: name.clone() }));
    found
}

fn content(definition: &Definition) -> Map<String, Value> {
    match serde_json::to_value(definition) {
        Ok(Value::Object(content)) => content,
        // A struct of texts and JSON values is an object.
        _ => Map::new(),
    }
}

fn compare(at: &str, before: &Map<String, Value>, after: &Map<String, Value>, found: &mut Vec<Difference>) {
    let added = after.keys().filter(|key| !before.contains_key(*key));
    for key in before.keys().chain(added) {
        let path = format!("{at}/{}", key.replace('~', "~0").replace('/', "~1"));
        match (before.get(key), after.get(key)) {
            (Some(Value::Object(before)), Some(Value::Object(after))) => compare(&path, before, after, found),
            (before, after) if before == after => {}
            (before, after) => found.push(Difference { path, before: before.cloned(), after: after.cloned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn definition(name: &str) -> Definition {
        Definition {
            name: name.into(),
            title: None,
            description: "Writes".into(),
            input_schema: json!({ "type": "object", "properties": { "a/b": { "type": "string" } } }),
            output_schema: None,
            annotations: Some(json!({ "readOnlyHint": true })),
        }
    }

    #[test]
    fn each_difference_is_named_with_its_place() {
        let mut other = definition("b");
        other.description = "Writes and mails".into();
        other.input_schema["properties"]["a/b"]["type"] = json!("number");
        other.annotations = None;
        let found = changes(&[definition("a"), definition("b"), definition("c")], &[definition("a"), other, definition("d")]);
        let difference =
            |path: &str, before: Value, after: Option<Value>| Difference { path: path.into(), before: Some(before), after };
        let expected = [
            Change::Changed {
                tool: "b".into(),
                differences: vec![
                    difference("/annotations", json!({ "readOnlyHint": true }), None),
                    difference("/description", json!("Writes"), Some(json!("Writes and mails"))),
                    difference("/input_schema/properties/a~1b/type", json!("string"), Some(json!("number"))),
                ],
            },
            Change::Gone { tool: "c".into() },
            Change::Added { tool: "d".into() },
        ];
        // The order within one definition is that of its serialization.
        let sorted = |changes: Vec<Change>| -> Vec<Change> {
            let sort = |change| match change {
                Change::Changed { tool, mut differences } => {
                    differences.sort_by(|a, b| a.path.cmp(&b.path));
                    Change::Changed { tool, differences }
                }
                other => other,
            };
            changes.into_iter().map(sort).collect()
        };
        assert_eq!(sorted(found), expected);
        assert_eq!(changes(&[definition("a")], &[definition("a")]), []);
    }

    #[test]
    fn another_schema_of_results_is_another_definition() {
        let (mut before, mut after) = (definition("a"), definition("a"));
        before.output_schema = Some(json!({ "type": "object" }));
        after.output_schema = Some(json!({ "type": "object", "required": ["size"] }));
        assert_ne!(before.hash(), after.hash());
        assert_ne!(before.hash(), definition("a").hash());
        assert!(matches!(&changes(&[before], &[after])[..], [Change::Changed { .. }]));
    }

    #[test]
    fn of_two_tools_of_one_name_neither_is_offered() {
        let mut other = definition("a");
        other.description = "Mails".into();
        for listed in [[definition("a"), definition("b"), other.clone()], [other, definition("b"), definition("a")]] {
            let refused = refusals(&listed);
            assert_eq!(refused.keys().collect::<Vec<_>>(), ["a"]);
            assert!(refused["a"].contains("two tools"), "{refused:?}");
        }
        assert_eq!(refusals(&[definition("a"), definition("b")]), BTreeMap::new());
        assert!(refusals(&[definition("")]).contains_key(""));
    }

    #[test]
    fn names_and_sizes_that_nobody_can_carry_are_refused() {
        for name in ["", "two words", "n\u{e4}me", "a\n", &"x".repeat(NAME_CHARS_MAX + 1)] {
            assert!(definition(name).refusal().is_some(), "{name}");
        }
        for name in ["a", "read_text_file", "a.b/c-d", &"x".repeat(NAME_CHARS_MAX)] {
            assert_eq!(definition(name).refusal(), None, "{name}");
        }
        let mut long = definition("a");
        let rest = MCP_DEFINITION_BYTES_MAX - serde_json::to_vec(&long).unwrap().len();
        long.description.push_str(&"x".repeat(rest));
        assert_eq!(long.refusal(), None);
        long.description.push('x');
        assert!(long.refusal().unwrap().contains("bytes"));
        let mut wrong = definition("a");
        wrong.input_schema = json!({ "type": "array" });
        assert!(wrong.refusal().unwrap().contains("object"));
        for schema in [json!({ "type": 7 }), json!({ "$ref": "https://example.com/a.json" }), json!({ "$ref": "#/$defs/none" })]
        {
            let mut wrong = definition("a");
            wrong.output_schema = Some(schema.clone());
            assert!(wrong.refusal().is_some_and(|why| why.contains("of its results")), "{schema}");
        }
    }
}
