//! `/mcp`: the configured MCP servers, and what people do with them.

use super::{
    App, Caller,
    extract::{Json as Body, ServerPath, objects},
    problem::Problem,
};
use crate::{
    access::Role,
    mcp::{LoggedOut, McpLine, NotKnown, Probed, Unanswered},
    wire::Page,
};
use axum::{Json, extract::State, http::StatusCode};
use serde::Deserialize;
use std::sync::Arc;

/// The configured servers, their health on this server, and their tools. What a server says in its errors and to its standard error
/// may repeat calls of anybody's runs: it is for operators.
#[utoipa::path(get, path = "/mcp", tag = "configuration", responses((status = 200, description = "All", body = Page<McpLine>)))]
pub(crate) async fn servers(State(app): State<Arc<App>>, Caller { who, .. }: Caller) -> Result<Json<Page<McpLine>>, Problem> {
    let mut lines = app.asks.lines().await?;
    if who.needs(Role::Operator).is_err() {
        lines.iter_mut().for_each(McpLine::without_words);
    }
    Ok(Json(Page::whole(lines)))
}

/// Asks a server whether it answers, and takes down what it lists, as import does. For operators.
#[utoipa::path(post, path = "/mcp/{name}/probe", tag = "configuration", params(("name" = String, Path, description = "The server")),
    responses((status = 200, description = "It answered", body = Probed)))]
pub(crate) async fn probe(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    ServerPath(name): ServerPath,
) -> Result<Json<Probed>, Problem> {
    Ok(Json(app.asks.probe(&who, &name).await?))
}

/// Asks a server for its tools and takes down what it lists. At the first contact all of it is offered from then on; later, what is
/// new or different waits to be acknowledged. For operators.
#[utoipa::path(post, path = "/mcp/{name}/import", tag = "configuration", params(("name" = String, Path, description = "The server")),
    responses((status = 200, description = "Taken down", body = Probed)))]
pub(crate) async fn import(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    ServerPath(name): ServerPath,
) -> Result<Json<Probed>, Problem> {
    Ok(Json(app.asks.probe(&who, &name).await?))
}

/// A definition that is taken as it is.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcknowledgedTool {
    /// As its server names it, without the server's name.
    name: String,
    /// Of the definition that was shown.
    hash: String,
}

/// Definitions that are taken as they are.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcknowledgeBody {
    /// At least one.
    #[serde(deserialize_with = "objects")]
    #[schema(min_items = 1)]
    tools: Vec<AcknowledgedTool>,
}

/// Takes definitions as they are: these tools are offered again. For administrators.
#[utoipa::path(post, path = "/mcp/{name}/acknowledge", tag = "configuration", request_body = AcknowledgeBody,
    params(("name" = String, Path, description = "The server")),
    responses((status = 200, description = "Acknowledged", body = McpLine)))]
pub(crate) async fn acknowledge(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    ServerPath(name): ServerPath,
    Body(body): Body<AcknowledgeBody>,
) -> Result<Json<McpLine>, Problem> {
    if body.tools.is_empty() {
        return Err(Problem::field("#/tools", "names no tool"));
    }
    let tools = body.tools.into_iter().map(|tool| (tool.name, tool.hash)).collect();
    Ok(Json(app.asks.acknowledge(&who, &name, &tools).await?))
}

/// What is switched, and how.
#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SwitchBody {
    /// One tool, as its server names it; none: the whole server.
    tool: Option<String>,
    /// Off: nothing of it is offered or called.
    off: bool,
}

/// Switches a server or a tool of it off, or on again, in every process and from the next call on. For administrators.
#[utoipa::path(post, path = "/mcp/{name}/switch", tag = "configuration", request_body = SwitchBody,
    params(("name" = String, Path, description = "The server")),
    responses((status = 200, description = "Switched", body = McpLine)))]
pub(crate) async fn switch(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    ServerPath(name): ServerPath,
    Body(body): Body<SwitchBody>,
) -> Result<Json<McpLine>, Problem> {
    Ok(Json(app.asks.switch(&who, &name, body.tool.as_deref(), body.off).await?))
}

/// Forgets the login at a server's authorization server, in every process and from the next request on. For administrators.
#[utoipa::path(post, path = "/mcp/{name}/logout", tag = "configuration", params(("name" = String, Path, description = "The server")),
    responses((status = 200, description = "Forgotten, or there was none", body = LoggedOut)))]
pub(crate) async fn logout(
    State(app): State<Arc<App>>,
    Caller { who, .. }: Caller,
    ServerPath(name): ServerPath,
) -> Result<Json<LoggedOut>, Problem> {
    Ok(Json(app.asks.log_out(&who, &name).await?))
}

impl From<NotKnown> for Problem {
    fn from(error: NotKnown) -> Self {
        match error {
            NotKnown::Store(error) => error.into(),
            NotKnown::Config(error) => {
                tracing::warn!("what is in force is not known: {error}");
                Self::internal()
            }
        }
    }
}

impl From<Unanswered> for Problem {
    fn from(error: Unanswered) -> Self {
        match error {
            Unanswered::NoSuchServer(_) => Self::new(StatusCode::NOT_FOUND, "not_found", error.to_string()),
            Unanswered::Unreachable(..) | Unanswered::Silent(..) => {
                Self::new(StatusCode::BAD_GATEWAY, "mcp_unanswered", error.to_string())
            }
            Unanswered::NoKeys(_) | Unanswered::Login(..) => Self::new(StatusCode::CONFLICT, "mcp_login", error.to_string()),
            Unanswered::Access(error) => error.into(),
            Unanswered::NotKnown(error) => error.into(),
        }
    }
}
