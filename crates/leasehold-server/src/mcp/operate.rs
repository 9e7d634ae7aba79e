//! What people do with MCP servers: look, ask one whether it answers, take in what it lists, acknowledge, switch off and on.

use super::{InForce, McpLine, in_force::NotKnown, line};
use crate::access::{AccessError, Role, Who};
use leasehold::agent::tool::mcp::{Login, LoginError, McpError, McpServer, PendingLogin, refusals};
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

/// A login that is forgotten.
#[derive(Clone, Debug, Serialize, Deserialize, utoipa::ToSchema)]
pub(crate) struct LoggedOut {
    /// Whether anybody was logged in.
    pub(crate) was_in: bool,
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
    /// Nobody logs in where it could not be sealed.
    #[error(
        "a login at mcp server `{0}` would lie open in the store: make a key with `leasehold key create` and write [seal] first"
    )]
    NoKeys(String),
    /// The login did not come about.
    #[error("mcp server `{0}`: {1}")]
    Login(String, LoginError),
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
        let login = self.catalogue().logins().of(name).await?;
        let login = (login.as_ref(), self.catalogue().now());
        Ok(self.with_server(name, |running| line(name, running, &known, login, &executable.registry)).await)
    }

    /// Asks a server for its tools, and takes down what it lists.
    pub(crate) async fn probe(&self, by: &Who, name: &str) -> Result<Probed, Unanswered> {
        by.needs(Role::Operator).map_err(AccessError::from)?;
        let server = self.reached(name).await?;
        let begun = Instant::now();
        let listed = server.list().await.map_err(|error| Unanswered::Silent(name.to_owned(), error))?;
        let latency_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Probed { latency_ms, listed: listed.len(), refused: refusals(&listed), server: self.line(name).await? })
    }

    async fn reached(&self, name: &str) -> Result<McpServer, Unanswered> {
        let (config, _) = self.now().await?;
        if !config.mcp.iter().any(|server| server.config.name == name) {
            return Err(Unanswered::NoSuchServer(name.to_owned()));
        }
        let server = self.with_server(name, |running| running.map(|running| running.server.clone())).await;
        server
            .ok_or_else(|| Unanswered::NoSuchServer(name.to_owned()))?
            .map_err(|why| Unanswered::Unreachable(name.to_owned(), why))
    }

    /// The port that the browser is sent back to; 0: a free one.
    pub(crate) async fn redirect_port(&self, name: &str) -> Result<u16, Unanswered> {
        let server = self.reached(name).await?;
        Ok(server.oauth().and_then(|oauth| oauth.redirect_port).unwrap_or_default())
    }

    /// Begins a login at a server's authorization server.
    pub(crate) async fn begin_login(&self, by: &Who, name: &str, redirect: &str) -> Result<PendingLogin, Unanswered> {
        by.needs(Role::Admin).map_err(AccessError::from)?;
        let server = self.reached(name).await?;
        if !self.catalogue().logins().can_seal() {
            return Err(Unanswered::NoKeys(name.to_owned()));
        }
        server.begin_login(redirect).await.map_err(|error| Unanswered::Login(name.to_owned(), error))
    }

    /// Keeps a login in place of the one before. Gives the server as it stands then.
    pub(crate) async fn log_in(&self, by: &Who, name: &str, login: &Login) -> Result<McpLine, Unanswered> {
        let server = self.reached(name).await?;
        self.catalogue().logins().log_in(by, &server.login_of(), login).await?;
        Ok(self.line(name).await?)
    }

    /// Forgets a login, in every process and from the next request on, whether or not its server can be reached or is configured still.
    pub(crate) async fn log_out(&self, by: &Who, name: &str) -> Result<LoggedOut, Unanswered> {
        by.needs(Role::Admin).map_err(AccessError::from)?;
        let (config, _) = self.now().await?;
        let was_in = self.catalogue().logins().log_out(by, name).await?;
        if !was_in && !config.mcp.iter().any(|server| server.config.name == name) {
            return Err(Unanswered::NoSuchServer(name.to_owned()));
        }
        Ok(LoggedOut { was_in, server: self.line(name).await? })
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
        by.needs(Role::Admin).map_err(AccessError::from)?;
        let (config, _) = self.now().await?;
        if !is_off && !config.mcp.iter().any(|server| server.config.name == name) {
            return Err(Unanswered::NoSuchServer(name.to_owned()));
        }
        self.catalogue().switch(by, name, tool, is_off).await?;
        Ok(self.line(name).await?)
    }
}
