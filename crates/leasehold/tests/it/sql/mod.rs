//! Queries of databases as tools: what they answer, and that nothing that a model writes changes anything.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

mod postgres;
mod sqlite;

use leasehold::agent::tool::{
    ReadAnswer, Tool,
    sql::{SqlConfig, SqlTool},
};
use serde_json::{Value, json};
use std::path::Path;

/// The configuration of a database named `shop`.
fn config(url: &str, more: &str) -> SqlConfig {
    toml::from_str(&format!("name = \"shop\"\nurl = '{url}'\n{more}")).unwrap()
}

fn tool(config: &SqlConfig) -> Tool {
    SqlTool::open(config, Path::new("/"), |_| None).unwrap()
}

async fn call(tool: &Tool, query: &str, parameters: Value) -> ReadAnswer {
    let Tool::Read(tool) = tool else { panic!("it reads") };
    let Value::Object(arguments) = json!({ "query": query, "parameters": parameters }) else { panic!("an object") };
    tool.call(&arguments).await
}

async fn answer(tool: &Tool, query: &str, parameters: Value) -> Value {
    let answer = call(tool, query, parameters).await;
    assert!(!answer.is_error, "{query}: {answer:?}");
    answer.result
}

async fn refused(tool: &Tool, query: &str) -> String {
    let answer = call(tool, query, json!([])).await;
    assert!(answer.is_error, "{query}: {answer:?}");
    answer.result.as_str().unwrap().to_owned()
}

fn rows(answer: &Value) -> usize {
    answer["rows"].as_array().unwrap().len()
}

/// The most memory that this process ever had.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
