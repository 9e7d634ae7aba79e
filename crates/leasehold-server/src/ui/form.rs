//! A form from a JSON Schema, and values from what it sends. What fits is the runtime's question: here only what a field cannot mean at
//! all is a mistake. Names of fields are JSON pointers behind a prefix, so that a refusal's pointer finds its field.

use super::{
    kept::Kept,
    text::{icon, is_plain, line},
};
use crate::terminal::safe_json;
use maud::{Markup, html};
use serde_json::{Map, Number, Value};
use std::collections::BTreeMap;

/// Fields of a form; a schema with more is not shown as one.
pub(super) const FIELDS_MAX: usize = 100;
/// Choices that are shown as such; of more a person gives JSON.
const CHOICES_MAX: usize = 200;
/// Objects in objects that have fields of their own; deeper ones are JSON.
const DEPTH_MAX: usize = 3;
/// Characters beyond which a text has several lines.
const SHORT: u64 = 80;

/// A form: what is asked for, under which names, and what is there already.
pub(super) struct Form<'a> {
    /// What is asked for.
    pub(super) schema: &'a Value,
    /// Before each name.
    pub(super) prefix: String,
    /// Tells its ids from those of the other forms of a page.
    pub(super) scope: String,
    /// What is there already.
    pub(super) now: Option<&'a Map<String, Value>>,
}

enum Kind<'a> {
    Choice(Vec<(&'a Value, String)>),
    Several(Vec<(&'a Value, String)>),
    YesNo,
    Whole,
    Number,
    Text(&'static str),
    Lines,
    List,
    Group(&'a Value),
    Json,
}

fn type_of(field: &Value) -> Option<&str> {
    match field.get("type") {
        Some(Value::String(one)) => Some(one),
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        _ => None,
    }
}

/// Values that are allowed, each with its label.
fn choices(field: &Value) -> Option<Vec<(&Value, String)>> {
    let plain = |value: &Value| match value {
        Value::String(text) => line(text),
        other => line(&other.to_string()),
    };
    let names = field.get("enumNames").and_then(Value::as_array);
    let listed = field.get("enum").and_then(Value::as_array).map(|all| {
        let label = |index| names.and_then(|names| names.get(index)).and_then(Value::as_str).map(line);
        all.iter().enumerate().map(|(index, value)| (value, label(index).unwrap_or_else(|| plain(value)))).collect()
    });
    let titled = |key: &str| {
        let all = field.get(key)?.as_array()?;
        let one = |choice: &'_ Value| choice.get("title").and_then(Value::as_str).map(line);
        all.iter()
            .map(|choice| choice.get("const").map(|value| (value, one(choice).unwrap_or_else(|| plain(value)))))
            .collect::<Option<Vec<_>>>()
    };
    let all: Option<Vec<(&Value, String)>> = listed.or_else(|| titled("oneOf")).or_else(|| titled("anyOf"));
    all.filter(|all| !all.is_empty() && all.len() <= CHOICES_MAX)
}

fn kind<'a>(field: &'a Value, now: Option<&Value>, depth: usize) -> Kind<'a> {
    if let Some(all) = choices(field) {
        // What is there and is none of them is not lost.
        return if now.is_none_or(|now| all.iter().any(|(value, _)| *value == now)) { Kind::Choice(all) } else { Kind::Json };
    }
    let fits = |is: fn(&Value) -> bool| now.is_none_or(is);
    match type_of(field) {
        Some("boolean") if fits(Value::is_boolean) => Kind::YesNo,
        Some("integer") if fits(Value::is_number) => Kind::Whole,
        Some("number") if fits(Value::is_number) => Kind::Number,
        Some("string") if now.is_none_or(|now| now.as_str().is_some_and(is_plain)) => {
            let short = field.get("maxLength").and_then(Value::as_u64).is_some_and(|most| most <= SHORT);
            match field.get("format").and_then(Value::as_str) {
                Some("date") => Kind::Text("date"),
                Some("email") => Kind::Text("email"),
                Some("uri") => Kind::Text("url"),
                Some(_) => Kind::Text("text"),
                None if short => Kind::Text("text"),
                None => Kind::Lines,
            }
        }
        Some("array") => match field.get("items") {
            Some(items) => match choices(items) {
                Some(all)
                    if now
                        .and_then(Value::as_array)
                        .is_none_or(|now| now.iter().all(|one| all.iter().any(|(v, _)| *v == one))) =>
                {
                    Kind::Several(all)
                }
                None if type_of(items) == Some("string") && now.is_none() => Kind::List,
                _ => Kind::Json,
            },
            None => Kind::Json,
        },
        Some("object")
            if depth < DEPTH_MAX && field.get("properties").is_some_and(Value::is_object) && fits(Value::is_object) =>
        {
            Kind::Group(field)
        }
        _ => Kind::Json,
    }
}

static NOTHING: Value = Value::Null;

/// The fields of an object, with what is there and is not declared.
fn fields<'a>(schema: &'a Value, now: Option<&'a Map<String, Value>>) -> Vec<(&'a str, &'a Value, bool)> {
    let declared = schema.get("properties").and_then(Value::as_object);
    let required = |name: &str| {
        let names = schema.get("required").and_then(Value::as_array);
        names.is_some_and(|names| names.iter().any(|required| required == name))
    };
    let of_schema = declared.into_iter().flatten().map(|(name, field)| (name.as_str(), field, required(name)));
    let others = now.into_iter().flatten().filter(|(name, _)| declared.is_none_or(|declared| !declared.contains_key(*name)));
    let mut all: Vec<_> = of_schema.chain(others.map(|(name, _)| (name.as_str(), &NOTHING, false))).collect();
    // A schema is read without its order: what has to be filled in comes first.
    all.sort_by_key(|(_, _, required)| !required);
    all
}

fn count(schema: &Value, depth: usize) -> usize {
    let of = |field: &Value| if depth < DEPTH_MAX { count(field, depth + 1) } else { 0 };
    schema.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(_, field)| 1 + of(field)).sum()
}

fn pointer(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn bounds(field: &Value) -> Option<String> {
    let said = [
        ("minimum", "at least "),
        ("exclusiveMinimum", "more than "),
        ("maximum", "at most "),
        ("exclusiveMaximum", "less than "),
        ("minLength", "characters at least: "),
        ("maxLength", "characters at most: "),
        ("minItems", "entries at least: "),
        ("maxItems", "entries at most: "),
        ("pattern", "like "),
    ];
    let all: Vec<String> =
        said.into_iter().filter_map(|(key, words)| Some(format!("{words}{}", line(&field.get(key)?.to_string())))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

impl Form<'_> {
    /// Too much for a page.
    pub(super) fn is_too_long(&self) -> bool {
        count(self.schema, 0) + self.now.map_or(0, Map::len) > FIELDS_MAX
    }

    /// The fields.
    pub(super) fn show(&self, kept: &Kept) -> Markup {
        html! { div.fields { (self.group(self.schema, self.now, "", 0, kept)) } }
    }

    fn group(&self, schema: &Value, now: Option<&Map<String, Value>>, at: &str, depth: usize, kept: &Kept) -> Markup {
        html! {
            @for (name, field, required) in fields(schema, now) {
                (self.field(name, field, required, now.and_then(|now| now.get(name)), &pointer(at, name), depth, kept))
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "one recursion, whose arguments are its state")]
    fn field(
        &self,
        name: &str,
        field: &Value,
        required: bool,
        now: Option<&Value>,
        at: &str,
        depth: usize,
        kept: &Kept,
    ) -> Markup {
        let control = format!("{}{at}", self.prefix);
        let id = id_of(&self.scope, &control);
        let said = |key: &str| field.get(key).and_then(Value::as_str).map(line);
        let label = said("title").unwrap_or_else(|| line(name));
        let mistake = kept.mistake(&control);
        let hint = [said("description"), bounds(field)].into_iter().flatten().collect::<Vec<_>>().join("; ");
        let kind = kind(field, now, depth);
        let form = match &kind {
            Kind::List => "one in each line",
            Kind::Json => "JSON",
            Kind::Whole => "a whole number",
            Kind::Number => "a number",
            Kind::Text("date") => "year-month-day",
            Kind::Text("text") if field.get("format").is_some_and(|format| format == "date-time") => {
                "like 2026-12-01T09:30:00Z"
            }
            _ => "",
        };
        let hint = [hint.as_str(), form].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
        let described: Vec<String> =
            [(!hint.is_empty()).then(|| format!("{id}-h")), mistake.map(|_| format!("{id}-e"))].into_iter().flatten().collect();
        let described = (!described.is_empty()).then(|| described.join(" "));
        let invalid = mistake.map(|_| "true");
        let before = now.or_else(|| field.get("default").filter(|_| self.now.is_none()));
        let typed = |before: Option<String>| if kept.is_sent() { kept.get(&control).map(str::to_owned) } else { before };
        let text = |value: &Value| value.as_str().map(str::to_owned).or_else(|| Some(value.to_string()));
        let mark = html! { @if required { " " span.req aria-hidden="true" { "*" } span.vh { "(required)" } } };
        let notes = html! {
            @if !hint.is_empty() { p.hint id={ (id) "-h" } { (hint) } }
            @if let Some(why) = mistake { p.error id={ (id) "-e" } { (icon("cross")) (line(why)) } }
        };
        let value = |is: &Value, index: usize| {
            if kept.is_sent() {
                kept.all(&control).any(|sent| sent == index.to_string())
            } else {
                before.is_some_and(|b| b == is || b.as_array().is_some_and(|all| all.contains(is)))
            }
        };
        match kind {
            Kind::Group(schema) => html! {
                fieldset.field.wide.group id=(id) tabindex="-1" {
                    legend.label { (label) (mark) }
                    div.fields { (self.group(schema, now.and_then(Value::as_object), at, depth + 1, kept)) }
                    (notes)
                }
            },
            Kind::Choice(all) => html! {
                div.field {
                    label for=(id) { (label) (mark) }
                    select id=(id) name=(control) aria-describedby=[described] aria-invalid=[invalid] {
                        option value="" { @if required { "choose one" } @else { "leave out" } }
                        @for (index, (is, label)) in all.iter().enumerate() {
                            option value=(index) selected[value(is, index)] { (label) }
                        }
                    }
                    (notes)
                }
            },
            Kind::Several(all) => html! {
                fieldset.field id=(id) tabindex="-1" aria-describedby=[described] {
                    legend.label { (label) (mark) }
                    div.checks { @for (index, (is, label)) in all.iter().enumerate() {
                        label.check { input type="checkbox" name=(control) value=(index) checked[value(is, index)]; (label) }
                    } }
                    (notes)
                }
            },
            Kind::YesNo => {
                let is = typed(before.and_then(Value::as_bool).map(|yes| if yes { "yes" } else { "no" }.to_owned()))
                    .unwrap_or_default();
                html! {
                    fieldset.field id=(id) tabindex="-1" aria-describedby=[described] {
                        legend.label { (label) (mark) }
                        div.checks {
                            label.check { input type="radio" name=(control) value="yes" checked[is == "yes"]; "yes" }
                            label.check { input type="radio" name=(control) value="no" checked[is == "no"]; "no" }
                            @if !required { label.check { input type="radio" name=(control) value="" checked[is.is_empty()]; "leave out" } }
                        }
                        (notes)
                    }
                }
            }
            Kind::Whole | Kind::Number => html! {
                div.field {
                    label for=(id) { (label) (mark) }
                    input id=(id) name=(control) type="text" inputmode="decimal" autocomplete="off" value=(typed(before.and_then(text)).unwrap_or_default())
                        aria-describedby=[described] aria-invalid=[invalid];
                    (notes)
                }
            },
            Kind::Text(kind) => html! {
                div.field {
                    label for=(id) { (label) (mark) }
                    input id=(id) name=(control) type=(kind) autocomplete="off" value=(typed(before.and_then(text)).unwrap_or_default())
                        aria-describedby=[described] aria-invalid=[invalid];
                    (notes)
                }
            },
            Kind::Lines | Kind::List | Kind::Json => {
                let shown = match kind {
                    Kind::Lines => before.and_then(text),
                    Kind::List => before
                        .and_then(Value::as_array)
                        .map(|all| all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")),
                    _ => before.and_then(|value| safe_json(value).ok()),
                };
                html! {
                    div.field.wide {
                        label for=(id) { (label) (mark) }
                        // A browser leaves out a line end right at the beginning.
                        textarea id=(id) name=(control) rows="2" aria-describedby=[described] aria-invalid=[invalid] { "\n" (typed(shown).unwrap_or_default()) }
                        (notes)
                    }
                }
            }
        }
    }

    /// The values that were sent.
    ///
    /// # Errors
    /// By field: what it cannot mean.
    pub(super) fn read(&self, kept: &Kept) -> Result<Map<String, Value>, BTreeMap<String, String>> {
        let mut mistakes = BTreeMap::new();
        let values = self.read_group(self.schema, self.now, "", 0, kept, &mut mistakes);
        if mistakes.is_empty() { Ok(values) } else { Err(mistakes) }
    }

    fn read_group(
        &self,
        schema: &Value,
        now: Option<&Map<String, Value>>,
        at: &str,
        depth: usize,
        kept: &Kept,
        mistakes: &mut BTreeMap<String, String>,
    ) -> Map<String, Value> {
        let mut values = Map::new();
        for (name, field, required) in fields(schema, now) {
            let at = pointer(at, name);
            let control = format!("{}{at}", self.prefix);
            let now = now.and_then(|now| now.get(name));
            let kind = kind(field, now, depth);
            if let Kind::Group(schema) = kind {
                let members = format!("{control}/");
                if !required && now.is_none() && kept.under(&members).all(|(_, value)| value.trim().is_empty()) {
                    continue;
                }
                let group = self.read_group(schema, now.and_then(Value::as_object), &at, depth + 1, kept, mistakes);
                values.insert(name.to_owned(), Value::Object(group));
                continue;
            }
            match read_one(&kind, required, now, kept, &control) {
                Ok(Some(value)) => {
                    values.insert(name.to_owned(), value);
                }
                Ok(None) if required => {
                    mistakes.insert(control, "this is needed".into());
                }
                Ok(None) => {}
                Err(why) => {
                    mistakes.insert(control, why);
                }
            }
        }
        values
    }
}

/// An id that a link can name.
pub(super) fn id_of(scope: &str, control: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_string() } else { format!("-{:x}", u32::from(c)) };
    format!("f-{scope}-{}", control.chars().map(plain).collect::<String>())
}

fn read_one(kind: &Kind<'_>, required: bool, now: Option<&Value>, kept: &Kept, control: &str) -> Result<Option<Value>, String> {
    let chosen = |all: &[(&Value, String)], sent: &str| {
        let value = sent.parse().ok().and_then(|index: usize| all.get(index)).map(|(value, _)| (*value).clone());
        value.ok_or_else(|| "this is none of the choices".to_owned())
    };
    let sent = kept.get(control).unwrap_or_default();
    // A text that nobody touched is the very same.
    if let Some(Value::String(text)) = now
        && matches!(kind, Kind::Lines | Kind::Text(_))
        && text == sent
    {
        return Ok(now.cloned());
    }
    match kind {
        Kind::Several(all) => {
            let ticked = kept.all(control).map(|sent| chosen(all, sent)).collect::<Result<Vec<_>, _>>()?;
            Ok((required || now.is_some() || !ticked.is_empty()).then_some(Value::Array(ticked)))
        }
        _ if sent.trim().is_empty() => Ok(None),
        Kind::Choice(all) => chosen(all, sent).map(Some),
        Kind::YesNo => Ok(Some(Value::Bool(sent == "yes"))),
        Kind::Whole | Kind::Number => {
            let number: Number = serde_json::from_str(sent.trim()).map_err(|_| "this is no number".to_owned())?;
            if matches!(kind, Kind::Whole) && number.is_f64() {
                Err("this is no whole number".into())
            } else {
                Ok(Some(Value::Number(number)))
            }
        }
        Kind::Text(_) => Ok(Some(Value::String(sent.trim().to_owned()))),
        Kind::Lines => Ok(Some(Value::String(sent.to_owned()))),
        Kind::List => {
            Ok(Some(sent.lines().filter(|line| !line.is_empty()).map(|line| Value::String(line.to_owned())).collect()))
        }
        Kind::Group(_) | Kind::Json => {
            leasehold::agent::unambiguous(sent).map_err(|why| format!("this is no JSON of one meaning: {why}"))?;
            serde_json::from_str(sent).map(Some).map_err(|error| format!("this is no JSON: {error}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sent(pairs: &[(&str, &str)]) -> Kept {
        Kept::of(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    fn schema() -> Value {
        json!({ "type": "object", "required": ["n", "text", "tags"], "properties": {
            "n": { "type": "integer", "minimum": 1 },
            "x": { "type": "number" },
            "text": { "type": "string" },
            "yes": { "type": "boolean" },
            "size": { "enum": [1, "big", null] },
            "tags": { "type": "array", "items": { "enum": ["a", "b"] } },
            "lines": { "type": "array", "items": { "type": "string" } },
            "to": { "type": "object", "required": ["a/b"], "properties": { "a/b": { "type": "string" } } },
            "any": {},
        } })
    }

    #[test]
    fn what_is_sent_becomes_values_of_the_declared_types() {
        let schema = schema();
        let form = Form { schema: &schema, prefix: "v".into(), scope: String::new(), now: None };
        let kept = sent(&[
            ("v/n", " 3 "),
            ("v/x", "1.5"),
            ("v/text", "one\r\ntwo"),
            ("v/yes", "no"),
            ("v/size", "0"),
            ("v/tags", "0"),
            ("v/tags", "1"),
            ("v/lines", "x\r\n\r\ny"),
            ("v/to/a~1b", "c"),
            ("v/any", "{\"k\": [1]}"),
            ("v/unknown", "x"),
        ]);
        let values = json!({ "n": 3, "x": 1.5, "text": "one\ntwo", "yes": false, "size": 1, "tags": ["a", "b"], "lines": ["x", "y"],
            "to": { "a/b": "c" }, "any": { "k": [1] } });
        assert_eq!(form.read(&kept).map(Value::Object), Ok(values));
    }

    #[test]
    fn what_is_missing_or_means_nothing_is_a_mistake_of_its_field() {
        let schema = schema();
        let form = Form { schema: &schema, prefix: "v".into(), scope: String::new(), now: None };
        let kept = sent(&[("v/n", "1.5"), ("v/x", "many"), ("v/size", "7"), ("v/any", "{\"a\": 1, \"a\": 2}")]);
        let mistakes: Vec<String> = form.read(&kept).unwrap_err().into_keys().collect();
        assert_eq!(mistakes, ["v/any", "v/n", "v/size", "v/text", "v/x"]);
        // An object that nobody fills in is left out.
        assert_eq!(
            form.read(&sent(&[("v/n", "1"), ("v/text", "x")])).map(Value::Object),
            Ok(json!({ "n": 1, "text": "x", "tags": [] }))
        );
    }

    #[test]
    fn what_nobody_touched_is_the_very_same() {
        let schema = json!({ "properties": { "text": { "type": "string" }, "size": { "enum": [1] } } });
        let now = json!({ "text": "a\r\nb\u{202e}", "plain": " x\n", "size": 9, "deep": { "k": [null] } });
        let form = Form { schema: &schema, prefix: "a".into(), scope: String::new(), now: now.as_object() };
        let page = form.show(&Kept::default()).into_string();
        assert!(!page.contains('\u{202e}') && page.contains("\\u202e"), "{page}");
        let kept =
            sent(&[("a/text", "\"a\\r\\nb\\u202e\""), ("a/plain", "\" x\\n\""), ("a/size", "9"), ("a/deep", "{\"k\":[null]}")]);
        assert_eq!(form.read(&kept).map(Value::Object), Ok(now.clone()));
    }

    #[test]
    fn a_form_has_so_many_fields() {
        let schema = |n: usize| json!({ "properties": (0..n).map(|i| (format!("f{i}"), json!({}))).collect::<Map<_, _>>() });
        let long = |n: usize| Form { schema: &schema(n), prefix: "v".into(), scope: String::new(), now: None }.is_too_long();
        assert!(!long(FIELDS_MAX) && long(FIELDS_MAX + 1));
    }
}
