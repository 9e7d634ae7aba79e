//! An MCP server and its tools as lines of a list.

use super::{
    Running,
    catalogue::{Known, KnownTool, Standing},
    logins::LoginRecord,
};
use jiff::Timestamp;
use leasehold::agent::{
    registry::Registry,
    tool::mcp::{Definition, Difference, Grant, Link, McpHealth, McpServer},
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
    /// The login at its authorization server; none: the server has no `[mcp.oauth]`.
    pub(crate) login: Option<LoginLine>,
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

/// The login at a server's authorization server. Nothing of a token is in it.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct LoginLine {
    /// `none`, `valid`, `expired` (it is refreshed when it is needed), `refresh_failed`, `needed` (a person has to log in again),
    /// `other_place` (it is for where the server was), or `machine` (this program logs in by itself).
    pub(crate) state: String,
    /// Who logged in or out last.
    pub(crate) by: Option<String>,
    /// When, RFC 3339.
    pub(crate) at: Option<String>,
    /// Until when the token counts, RFC 3339; none: not said.
    pub(crate) valid_until: Option<String>,
    /// It is refreshed without a person.
    pub(crate) can_refresh: bool,
    /// What it is good for.
    pub(crate) scopes: Vec<String>,
    /// Why the last refresh gave nothing.
    pub(crate) why: Option<String>,
}

fn login(server: &McpServer, known: Option<&LoginRecord>, now: Timestamp) -> Option<LoginLine> {
    let is_machine = server.oauth()?.grant == Grant::ClientCredentials;
    let record = known.filter(|_| !is_machine);
    let failed = record.and_then(|record| record.failed.as_ref());
    let is_over = |record: &LoginRecord| record.valid_until.is_some_and(|until| until <= now);
    let state = match record {
        _ if is_machine => "machine",
        None => "none",
        Some(record) if !record.is_in() => "none",
        Some(record) if record.endpoint != server.endpoint() => "other_place",
        Some(record) if failed.is_some_and(|failed| failed.is_final) || (is_over(record) && !record.can_refresh) => "needed",
        Some(_) if failed.is_some() => "refresh_failed",
        Some(record) if is_over(record) => "expired",
        Some(_) => "valid",
    };
    let is_in = record.filter(|record| record.is_in());
    Some(LoginLine {
        state: state.to_owned(),
        by: record.map(|record| record.by.clone()),
        at: record.map(|record| record.at.to_string()),
        valid_until: is_in.and_then(|record| record.valid_until).map(|until| until.to_string()),
        can_refresh: is_in.is_some_and(|record| record.can_refresh),
        scopes: is_in.map(|record| record.scopes.clone()).unwrap_or_default(),
        why: failed.map(|failed| failed.why.clone()),
    })
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
        if let Some(login) = &mut self.login {
            login.why = login.why.take().map(|_| "see an operator".to_owned());
        }
    }
}

/// The line of a server.
pub(crate) fn line(
    name: &str,
    running: Option<&Running>,
    known: &Known,
    (known_login, now): (Option<&LoginRecord>, Timestamp),
    registry: &Registry,
) -> McpLine {
    let server = running.and_then(|running| running.server.as_ref().ok());
    McpLine {
        name: name.to_owned(),
        endpoint: server.map(|server| server.endpoint().to_owned()),
        problem: running.and_then(|running| running.server.as_ref().err().cloned()),
        imported_at: known.server.as_ref().map(|seen| seen.it.imported_at.to_string()),
        switched_off: known.off.as_ref().map(|off| SwitchedOff { by: off.by.clone(), at: off.at.to_string() }),
        login: server.and_then(|server| login(server, known_login, now)),
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
