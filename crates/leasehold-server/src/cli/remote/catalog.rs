//! `agents` and `tools`: what is configured at the server, and what of it can run there.

use super::{Remote, client::Want, shown::Page};
use crate::{
    catalog::{AgentLine, ToolLine},
    cli::{
        Exit, Outcome, agents,
        tools::{self, ToolsArgs},
    },
    terminal,
};

impl Remote {
    /// Lists the agents.
    pub(super) async fn agents(&self) -> Outcome {
        let answer = self.client.get("/agents", &[], Want::Json).await?;
        if self.json {
            self.print(&answer.body)?;
            return Ok(Exit::Done);
        }
        agents::print(&answer.read::<Page<AgentLine>>()?.items)
    }

    /// Lists the tools.
    pub(super) async fn tools(&self, args: &ToolsArgs) -> Outcome {
        let answer = self.client.get("/tools", &[], Want::Json).await?;
        if self.json {
            self.print(&answer.body)?;
            return Ok(Exit::Done);
        }
        let lines = answer.read::<Page<ToolLine>>()?.items;
        if lines.is_empty() {
            terminal::note(format!("no tools are configured on {}", self.client.url()));
            return Ok(Exit::Done);
        }
        tools::print(&lines, args)
    }
}
