//! What people do with MCP servers: look, ask one whether it answers, take in what it lists, acknowledge, switch off and on.

use super::{InForce, McpLine, in_force::NotKnown, line};
use crate::access::{AccessError, Role, Who};
use leasehold::agent::tool::mcp::{McpError, refusals};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Instant};

/// A server that answered.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct Probed {
    /// How long its list took, connecting included, in milliseconds.
    pub(crate) latency_ms: u64,
    /// Tools that it lists.
    pub(crate) listed: usize,
    /// Of these, the ones that no model can be offered, and why.
    pub(crate) refused: BTreeMap<String, String>,
    /// The server as it stands now.
    pub(crate) server: McpLine,
}

/// Why nothing was learnt of a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    /// Not configured.
    #[error("there is no mcp server `{0}` in the configuration")]
    NoSuchServer(String),
    /// This process lacks something for it.
    #[error("mcp server `{0}` cannot be reached from here: {1}")]
    Unreachable(String, String),
    /// It did not answer as it should.
    #[error("mcp server `{0}`: {1}")]
    Silent(String, McpError),
    /// Not with this role, or the store.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// What is in force.
    #[error(transparent)]
    NotKnown(#[from] NotKnown),
}

impl InForce {
    /// The configured servers by name.
    pub(crate) async fn lines(&self) -> Result<Vec<McpLine>, NotKnown> {
        let (config, _) = self.now().await?;
        let mut lines = Vec::with_capacity(config.mcp.len());
        for server in &config.mcp {
            lines.push(self.line(&server.config.name).await?);
        }
        lines.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(lines)
    }

    async fn line(&self, name: &str) -> Result<McpLine, NotKnown> {
        let (_, executable) = self.now().await?;
        let known = self.catalogue().known(name).await?;
        Ok(self.with_server(name, |running| line(name, running, &known, &executable.registry)).await)
    }

    /// Asks a server for its tools, and takes down what it lists.
    pub(crate) async fn probe(&self, by: &Who, name: &str) -> Result<Probed, Unanswered> {
        by.needs(Role::Operator).map_err(AccessError::from)?;
        let (config, _) = self.now().await?;
        if !config.mcp.iter().any(|server| server.config.name == name) {
            return Err(Unanswered::NoSuchServer(name.to_owned()));
        }
        let server = self.with_server(name, |running| running.map(|running| running.server.clone())).await;
        let server = server
            .ok_or_else(|| Unanswered::NoSuchServer(name.to_owned()))?
            .map_err(|why| Unanswered::Unreachable(name.to_owned(), why))?;
        let begun = Instant::now();
        let listed = server.list().await.map_err(|error| Unanswered::Silent(name.to_owned(), error))?;
        let latency_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Probed { latency_ms, listed: listed.len(), refused: refusals(&listed), server: self.line(name).await? })
    }

    /// Takes definitions as they are: tools with the hash of what was shown. Gives the server as it stands then.
    pub(crate) async fn acknowledge(
        &self,
        by: &Who,
        name: &str,
        tools: &BTreeMap<String, String>,
    ) -> Result<McpLine, Unanswered> {
        self.catalogue().acknowledge(by, name, tools).await?;
        Ok(self.line(name).await?)
    }

    /// Switches a server, or a tool of it, off or on. Gives the server as it stands then.
    pub(crate) async fn switch(&self, by: &Who, name: &str, tool: Option<&str>, is_off: bool) -> Result<McpLine, Unanswered> {
        self.catalogue().switch(by, name, tool, is_off).await?;
        Ok(self.line(name).await?)
    }
}
