//! Each rule is seen where it does not hold: one change to a body in which all of them hold.

use super::*;
use serde_json::json;

fn good(wire: Wire) -> Value {
    let function = |name: &str| json!({ "name": name, "parameters": { "type": "object" } });
    match wire {
        Wire::OpenAi => {
            let call =
                |id: &str| json!({ "id": id, "type": "function", "function": { "name": "a__b", "arguments": "{\"n\":1}" } });
            let result = |id: &str| json!({ "role": "tool", "tool_call_id": id, "content": "" });
            json!({ "messages": [
                { "role": "system", "content": "be careful" },
                { "role": "user", "content": "go" },
                { "role": "assistant", "content": "", "tool_calls": [call("c00010000"), call("c00010001")] },
                result("c00010000"), result("c00010001"),
                { "role": "assistant", "content": "done" },
                { "role": "user", "content": "again" },
            ], "tools": [{ "type": "function", "function": function("a__b") }] })
        }
        Wire::Anthropic => {
            let call = |id: &str| json!({ "type": "tool_use", "id": id, "name": "a__b", "input": {} });
            let result = |id: &str| json!({ "type": "tool_result", "tool_use_id": id, "content": "" });
            json!({ "max_tokens": 9, "system": "be careful", "messages": [
                { "role": "user", "content": "go" },
                { "role": "assistant", "content": [
                    { "type": "thinking", "thinking": "so", "signature": "s" }, { "type": "text", "text": "I will." }, call("x"), call("y"),
                ] },
                { "role": "user", "content": [result("x"), result("y"), { "type": "text", "text": "go on" }] },
            ], "tools": [function("a__b")] })
        }
        Wire::Gemini => {
            let call = |name: &str| json!({ "functionCall": { "name": name, "id": "1", "args": {} } });
            let response = |name: &str| json!({ "functionResponse": { "name": name, "id": "1", "response": {} } });
            json!({ "systemInstruction": { "parts": [{ "text": "be careful" }] }, "contents": [
                { "role": "user", "parts": [{ "text": "go" }] },
                { "role": "model", "parts": [{ "text": "I will." }, call("a"), call("b")] },
                { "role": "user", "parts": [response("a"), response("b")] },
            ], "tools": [{ "functionDeclarations": [function("a"), function("b")] }] })
        }
        Wire::Ollama => {
            let call = json!({ "function": { "name": "a__b", "arguments": {} } });
            json!({ "messages": [
                { "role": "system", "content": "be careful" },
                { "role": "user", "content": "go" },
                { "role": "assistant", "tool_calls": [call, call] },
                { "role": "tool", "content": "" }, { "role": "tool", "content": "" },
            ], "tools": [{ "function": function("a__b") }] })
        }
    }
}

/// Puts a value at a pointer; null takes away what is there.
fn changed(wire: Wire, pointer: &str, value: &Value) -> Value {
    let mut body = good(wire);
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match (body.pointer_mut(parent).unwrap(), value) {
        (Value::Array(list), Value::Null) => drop(list.remove(key.parse().unwrap())),
        (Value::Array(list), value) => list.insert(key.parse().unwrap(), value.clone()),
        (Value::Object(map), Value::Null) => drop(map.remove(key).unwrap()),
        (Value::Object(map), value) => drop(map.insert(key.to_owned(), value.clone())),
        _ => panic!("{pointer}"),
    }
    body
}

#[track_caller]
fn broken(wire: Wire, rules: &[(&str, Value, &str)]) {
    assert_eq!(check(wire, wire.provider(), &good(wire)), Ok(()));
    for (pointer, value, why) in rules {
        let told = check(wire, wire.provider(), &changed(wire, pointer, value)).expect_err(pointer);
        assert!(told.contains(why), "{pointer} = {value}: {told}");
    }
}

#[test]
fn of_chat_completions() {
    broken(
        Wire::OpenAi,
        &[
            ("/messages", json!([]), "empty"),
            ("/messages/1", Value::Null, "begins with"),
            ("/messages/0/content", json!(" "), "nothing but space"),
            ("/messages/1", json!({ "role": "user", "content": "hm" }), "twice in a row"),
            ("/messages/1/content", json!("\n"), "nothing but space"),
            ("/messages/2/tool_calls", json!([]), "empty"),
            ("/messages/2/tool_calls", Value::Null, "nothing but space"),
            ("/messages/2/tool_calls/0", Value::Null, "does not ask for"),
            ("/messages/2/tool_calls/0/id", json!("no id"), "is not one"),
            ("/messages/2/tool_calls/0/id", json!("c00010001"), "comes twice"),
            ("/messages/2/tool_calls/0/type", json!("f"), "no type"),
            ("/messages/2/tool_calls/0/function/name", json!("a.b"), "alphabet"),
            ("/messages/2/tool_calls/0/function/name", json!("x".repeat(65)), "alphabet"),
            ("/messages/2/tool_calls/0/function/arguments", json!({}), "no text"),
            ("/messages/2/tool_calls/0/function/arguments", json!("[1]"), "no text of an object"),
            ("/messages/2/tool_calls/0/function/arguments", json!("{"), "no text of an object"),
            ("/messages/3", Value::Null, "no result"),
            ("/messages/3/content", json!({}), "no text"),
            ("/messages/4/tool_call_id", json!("c00010000"), "does not ask for"),
            ("/messages/4", json!({ "role": "user", "content": "hm" }), "no result"),
            ("/messages/5", Value::Null, "right after a result"),
            ("/messages/6", Value::Null, "ends with an answer"),
            ("/messages/7", json!({ "role": "system", "content": "x" }), "speaks here"),
            ("/tools/0/function/name", json!("a b"), "alphabet"),
            ("/tools/0", json!({ "function": { "name": "a__b" } }), "two functions"),
        ],
    );
    // One rule more of each of two that speak it.
    let thought = changed(Wire::OpenAi, "/messages/2/reasoning_content", &json!(""));
    assert_eq!(check(Wire::OpenAi, "deepseek", &thought), Ok(()));
    assert!(check(Wire::OpenAi, "deepseek", &good(Wire::OpenAi)).unwrap_err().contains("reasoning_content"));
    assert_eq!(check(Wire::OpenAi, "mistral", &good(Wire::OpenAi)), Ok(()));
    for id in ["t1c0", "call_1234", "c000100000"] {
        let other = changed(Wire::OpenAi, "/messages/2/tool_calls/0/id", &json!(id));
        assert!(check(Wire::OpenAi, "mistral", &other).unwrap_err().contains("is not one"), "{id}");
    }
}

#[test]
fn of_messages() {
    broken(
        Wire::Anthropic,
        &[
            ("/max_tokens", Value::Null, "max_tokens"),
            ("/system", json!("  "), "nothing but space"),
            ("/messages/0", Value::Null, "begins with"),
            ("/messages/0/content", json!(""), "nothing but space"),
            ("/messages/1", json!({ "role": "user", "content": "hm" }), "twice in a row"),
            ("/messages/1/content/1/text", json!("\n"), "nothing but space"),
            ("/messages/1/content/0", json!({ "type": "text", "text": "first" }), "a thought after"),
            ("/messages/1/content/0/signature", Value::Null, "no text"),
            ("/messages/1/content/4", json!({ "type": "thinking", "thinking": "so", "signature": "s" }), "a thought after"),
            ("/messages/1/content", json!([{ "type": "thinking", "thinking": "so", "signature": "s" }]), "ends with a thought"),
            ("/messages/1/content/2/id", json!("a b"), "is not one"),
            ("/messages/1/content/2/id", json!("y"), "comes twice"),
            ("/messages/1/content/2/name", json!("a.b"), "alphabet"),
            ("/messages/1/content/2/input", json!("{}"), "no object"),
            ("/messages/1/content/2", Value::Null, "does not ask for"),
            ("/messages/2/content/0", Value::Null, "no result"),
            ("/messages/2/content/0", json!({ "type": "text", "text": "here" }), "after something else"),
            ("/messages/2/content/1/tool_use_id", json!("x"), "does not ask for"),
            ("/messages/2/content", json!("go on"), "no result"),
            ("/messages/2/content", json!([]), "empty"),
            ("/messages/2", Value::Null, "no result"),
            ("/messages/3", json!({ "role": "assistant", "content": "done " }), "ends with an answer"),
            ("/tools/0/name", json!(""), "alphabet"),
        ],
    );
}

#[test]
fn of_generate_content() {
    broken(
        Wire::Gemini,
        &[
            ("/systemInstruction/parts/0/text", json!(""), "nothing but space"),
            ("/contents/0", Value::Null, "begins with"),
            ("/contents/0/parts", json!([]), "empty"),
            ("/contents/0/parts/0/text", json!(""), "nothing but space"),
            ("/contents/1", json!({ "role": "user", "parts": [{ "text": "hm" }] }), "twice in a row"),
            ("/contents/1/parts/1/functionCall/name", json!("3d"), "alphabet"),
            ("/contents/1/parts/1/functionCall/name", json!("other"), "the responses are"),
            ("/contents/1/parts/1/functionCall/id", json!("2"), "the responses are"),
            ("/contents/1/parts/1/functionCall/args", json!("{}"), "no object"),
            ("/contents/1/parts/1", Value::Null, "the responses are"),
            ("/contents/2/parts/0", Value::Null, "the responses are"),
            ("/contents/2/parts/2", json!({ "text": "and" }), "something else"),
            ("/contents/2/parts/0/functionResponse/response", json!("ok"), "no object"),
            ("/contents/2/parts", json!([{ "text": "and" }]), "the responses are"),
            ("/contents/2", Value::Null, "no result"),
            ("/contents/3", json!({ "role": "model", "parts": [{ "text": "done" }] }), "ends with an answer"),
            ("/tools/0/functionDeclarations/0", json!({ "name": "-a" }), "alphabet"),
        ],
    );
}

#[test]
fn of_ollamas_chat() {
    broken(
        Wire::Ollama,
        &[
            ("/messages/0/content", json!(""), "nothing but space"),
            ("/messages/1", Value::Null, "begins with"),
            ("/messages/1/content", json!(""), "nothing but space"),
            ("/messages/2/tool_calls", json!([]), "empty"),
            ("/messages/2/tool_calls/0", Value::Null, "no call before it"),
            ("/messages/2/tool_calls/0/function/arguments", json!("{}"), "no object"),
            ("/messages/2/tool_calls/0/function/name", json!("a b"), "alphabet"),
            ("/messages/3", Value::Null, "no result"),
            ("/messages/3/content", Value::Null, "no text"),
            ("/messages/4", json!({ "role": "user", "content": "hm" }), "no result"),
            ("/messages/5", json!({ "role": "assistant", "content": "done" }), "ends with an answer"),
            ("/tools/0/function/name", json!("a b"), "alphabet"),
        ],
    );
}
