//! Arguments as a model writes them: one JSON object, read strictly. Whatever would be read in two ways, or could not be
//! given back as it came, is refused with a reason, and no tool sees it.

use super::tool::Arguments;
use crate::limits;
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Reads arguments.
///
/// # Errors
/// A sentence for the model: what is wrong.
pub(crate) fn parse(raw: &str) -> Result<Arguments, String> {
    if raw.len() > limits::ARGUMENTS_BYTES_MAX {
        return Err(format!("they are {} bytes long, and the limit is {}", raw.len(), limits::ARGUMENTS_BYTES_MAX));
    }
    // Some providers write nothing where there are no arguments.
    if raw.trim().is_empty() {
        return Ok(Map::new());
    }
    let mut reader = serde_json::Deserializer::from_str(raw);
    let value = Strict { exact: true }.deserialize(&mut reader).map_err(|e| format!("they are not valid JSON: {e}"))?;
    reader.end().map_err(|e| format!("they are not one JSON object: {e}"))?;
    match value {
        Value::Object(map) => Ok(map),
        other => Err(format!("they are {}, not a JSON object", name_of(&other))),
    }
}

/// Whether JSON text is read alike by everybody: no key comes twice in any of its objects.
///
/// # Errors
/// What is not so, or why it is no JSON.
pub fn unambiguous(json: &str) -> Result<(), String> {
    let mut reader = serde_json::Deserializer::from_str(json);
    Strict { exact: false }.deserialize(&mut reader).and_then(|_| reader.end()).map_err(|error| error.to_string())
}

/// The value has more levels than that of arrays and objects in one another.
pub(crate) fn nested_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels == 0 || items.iter().any(|item| nested_deeper(item, levels - 1)),
        Value::Object(map) => levels == 0 || map.values().any(|item| nested_deeper(item, levels - 1)),
        _ => false,
    }
}

fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// A JSON value in which no key comes twice, and no number loses digits where each has to be exact.
#[derive(Clone, Copy)]
struct Strict {
    exact: bool,
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Integers up to here are exact as a double.
const EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

impl<'de> Visitor<'de> for Strict {
    type Value = Value;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        if self.exact && value.fract() == 0.0 && value.abs() > EXACT_INTEGER {
            return Err(E::custom("a number is too large to be kept exactly; write it as a string"));
        }
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number is out of range"))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let value = access.next_value_seed(self)?;
            if map.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key `{key}` comes twice")));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_one_object_is_refused_with_the_reason() {
        for (raw, says) in [
            ("null", "null"),
            ("[]", "an array"),
            ("\"{}\"", "a string"),
            ("5", "a number"),
            ("{\"a\":1}{\"b\":2}", "not one JSON object"),
            ("{\"a\":1", "not valid JSON"),
            ("{\"a\":1,\"a\":2}", "comes twice"),
            ("{\"a\":{\"b\":1,\"b\":1}}", "comes twice"),
            ("{\"a\":1e400}", "not valid JSON"),
            ("{\"a\":123456789012345678901234567890}", "too large"),
            ("{\"a\":\"\\ud800\"}", "not valid JSON"),
        ] {
            let error = parse(raw).expect_err(raw);
            assert!(error.contains(says), "{raw}: {error}");
        }
    }

    #[test]
    fn what_is_one_object_comes_back_as_it_was_written() {
        let raw = "{\"a\":\"\\u0000\",\"b\":\"\\\\u0000\",\"c\":0.1,\"d\":18446744073709551615,\"e\":\"😀\u{202e}\",\"f\":[null,true]}";
        let read = parse(raw).expect("one object");
        assert_eq!(read["a"], "\0");
        assert_eq!(read["b"], "\\u0000");
        assert_eq!(read["d"], u64::MAX);
        let written = serde_json::to_string(&read).expect("serialises");
        assert_eq!(parse(&written).expect("again"), read);
        assert_eq!(parse("  ").expect("nothing is no arguments"), Map::new());
    }

    #[test]
    fn the_limit_on_their_length_has_its_edge() {
        let fits = format!("{{\"a\":\"{}\"}}", "x".repeat(limits::ARGUMENTS_BYTES_MAX - 8));
        assert_eq!(fits.len(), limits::ARGUMENTS_BYTES_MAX);
        assert!(parse(&fits).is_ok());
        let longer = format!("{fits} ");
        assert!(parse(&longer).expect_err("one byte more").contains("limit"));
    }
}
