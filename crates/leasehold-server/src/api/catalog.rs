//! `/agents` and `/tools`: what is configured, and what of it can run on this server.

use super::{App, Caller, problem::Problem};
use crate::{
    catalog::{self, AgentLine, ToolLine},
    wire::Page,
};
use axum::{Json, extract::State};
use std::sync::Arc;

/// The configured agents.
#[utoipa::path(get, path = "/agents", tag = "configuration", responses((status = 200, description = "All", body = Page<AgentLine>)))]
pub(crate) async fn agents(State(app): State<Arc<App>>, _caller: Caller) -> Result<Json<Page<AgentLine>>, Problem> {
    let (config, executable) = app.in_force.now().await?;
    Ok(Json(Page::whole(catalog::agents(&config, &executable.models, &executable.missing_agents))))
}

/// The tools that agents can be offered.
#[utoipa::path(get, path = "/tools", tag = "configuration", responses((status = 200, description = "All", body = Page<ToolLine>)))]
pub(crate) async fn tools(State(app): State<Arc<App>>, _caller: Caller) -> Result<Json<Page<ToolLine>>, Problem> {
    let (config, executable) = app.in_force.now().await?;
    Ok(Json(Page::whole(catalog::tools(&config, &executable.registry, &executable.missing_tools))))
}
