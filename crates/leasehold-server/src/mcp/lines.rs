//! An MCP server and its tools as lines of a list.

use super::{
    Running,
    catalogue::{Known, KnownTool, Standing},
};
use leasehold::agent::{
    registry::Registry,
    tool::mcp::{Definition, Difference, Link, McpHealth},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A server.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct McpLine {
    /// Its tools are `name.tool`.
    pub(crate) name: String,
    /// Where it is, without secrets; none where this process cannot reach it.
    pub(crate) endpoint: Option<String>,
    /// Why this process cannot reach it.
    pub(crate) problem: Option<String>,
    /// When it was first asked for its tools; none: it has not answered yet.
    pub(crate) imported_at: Option<String>,
    /// Who switched it off, and when.
    pub(crate) switched_off: Option<SwitchedOff>,
    /// How it does in this process.
    pub(crate) health: Option<Health>,
    /// The tools that it has or had.
    pub(crate) tools: Vec<McpToolLine>,
}

/// Who switched something off.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct SwitchedOff {
    /// The principal.
    pub(crate) by: String,
    /// RFC 3339.
    pub(crate) at: String,
}

/// How a server does in this process.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Health {
    /// `not_tried`, `up`, `down` or `closed`.
    pub(crate) link: String,
    /// When it last answered, RFC 3339.
    pub(crate) last_contact: Option<String>,
    /// How long that answer took, in milliseconds.
    pub(crate) latency_ms: Option<u64>,
    /// What last went wrong.
    pub(crate) last_error: Option<String>,
    /// Connections made after the first.
    pub(crate) restarts: u64,
    /// Negotiated.
    pub(crate) protocol_version: Option<String>,
    /// As it names itself.
    pub(crate) server: Option<String>,
    /// What it wrote last to its standard error.
    pub(crate) last_words: Vec<String>,
}

/// A tool of a server.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct McpToolLine {
    /// As agents are offered it: `server.tool`.
    pub(crate) name: String,
    /// `offered`, `new`, `changed`, `gone`, `off`, or `refused`.
    pub(crate) standing: String,
    /// Why it is not offered.
    pub(crate) why: Option<String>,
    /// As the operator declared it; none: it is not offered.
    pub(crate) effect: Option<String>,
    /// `required` or `none`.
    pub(crate) approval: Option<String>,
    /// Of its definition as its server gives it now; what acknowledging names.
    pub(crate) hash: Option<String>,
    /// Its server's words.
    pub(crate) description: Option<String>,
    /// The schema of its arguments, as its server gives it now.
    #[schema(value_type = Option<Object>)]
    pub(crate) parameters: Option<Value>,
    /// What its server says that it does to the world. It lowers nothing.
    #[schema(value_type = Option<Object>)]
    pub(crate) annotations: Option<Value>,
    /// Against what was acknowledged: a JSON pointer into the definition, what was there and what is.
    #[schema(value_type = Vec<Object>)]
    pub(crate) differences: Vec<Value>,
}

impl McpLine {
    /// Without what its server says, which may repeat calls of anybody's runs.
    pub(crate) fn without_words(&mut self) {
        if let Some(health) = &mut self.health {
            health.last_error = health.last_error.take().map(|_| "see an operator".to_owned());
            health.last_words.clear();
        }
    }
}

/// The line of a server.
pub(crate) fn line(name: &str, running: Option<&Running>, known: &Known, registry: &Registry) -> McpLine {
    let server = running.and_then(|running| running.server.as_ref().ok());
    McpLine {
        name: name.to_owned(),
        endpoint: server.map(|server| server.endpoint().to_owned()),
        problem: running.and_then(|running| running.server.as_ref().err().cloned()),
        imported_at: known.server.as_ref().map(|seen| seen.it.imported_at.to_string()),
        switched_off: known.off.as_ref().map(|off| SwitchedOff { by: off.by.clone(), at: off.at.to_string() }),
        health: server.map(|server| health(server.health())),
        tools: known.tools.iter().map(|(tool, known)| tool_line(&format!("{name}.{tool}"), known, registry)).collect(),
    }
}

fn tool_line(name: &str, known: &KnownTool, registry: &Registry) -> McpToolLine {
    let tool = registry.tool(name);
    let standing = known.standing();
    let said = known.said();
    let differences: &[Difference] = match &standing {
        Standing::Changed(_, differences) => differences,
        _ => &[],
    };
    McpToolLine {
        name: name.to_owned(),
        standing: match &standing {
            Standing::Offered(_) if tool.is_some() => "offered",
            Standing::Offered(_) => "refused",
            Standing::New(_) => "new",
            Standing::Changed(..) => "changed",
            Standing::Gone => "gone",
            Standing::Off(_) => "off",
        }
        .to_owned(),
        why: registry.withheld(name).map(str::to_owned),
        effect: tool.map(|tool| tool.effect().as_str().to_owned()),
        approval: tool.map(|tool| tool.approval().as_str().to_owned()),
        hash: said.map(Definition::hash),
        description: said.map(|definition| definition.description.clone()),
        parameters: said.map(|definition| definition.input_schema.clone()),
        annotations: said.and_then(|definition| definition.annotations.clone()),
        // Texts and JSON values, which always serialize.
        differences: differences.iter().filter_map(|difference| serde_json::to_value(difference).ok()).collect(),
    }
}

fn health(health: McpHealth) -> Health {
    Health {
        link: match health.link {
            Link::NotTried => "not_tried",
            Link::Up => "up",
            Link::Down => "down",
            Link::Closed => "closed",
        }
        .to_owned(),
        last_contact: health.last_contact.map(|at| at.to_string()),
        latency_ms: health.latency.map(|latency| u64::try_from(latency.as_millis()).unwrap_or(u64::MAX)),
        last_error: health.last_error,
        restarts: health.restarts,
        protocol_version: health.protocol_version,
        server: health.server,
        last_words: health.last_words,
    }
}
