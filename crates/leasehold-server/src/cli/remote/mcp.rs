//! `mcp` at a server.

use super::{Remote, client::Want, shown::Page};
use crate::{
    cli::{
        Exit, Failure, Outcome,
        mcp::{McpCommand, done, list, parts, probed, switched, to_acknowledge},
        mcp_login::logged_out,
    },
    mcp::{LoggedOut, McpLine, Probed},
    terminal,
};
use serde_json::{Value, json};

impl Remote {
    /// Executes a verb.
    pub(super) async fn mcp(&self, command: McpCommand) -> Outcome {
        match command {
            McpCommand::List => {
                let answer = self.client.get("/mcp", &[], Want::Json).await?;
                if self.json {
                    self.print(&answer.body)?;
                    return Ok(Exit::Done);
                }
                list(&answer.read::<Page<McpLine>>()?.items)
            }
            McpCommand::Probe { name } => probed(&self.of_server::<Probed>(&name, "probe", None).await?, self.json),
            McpCommand::Import { name } => probed(&self.of_server::<Probed>(&name, "import", None).await?, self.json),
            McpCommand::Acknowledge(args) => {
                let lines = self.client.get("/mcp", &[], Want::Json).await?.read::<Page<McpLine>>()?.items;
                let Some(tools) = to_acknowledge(&lines, &args)? else { return Ok(Exit::Refused) };
                let named: Vec<Value> = tools.iter().map(|(name, hash)| json!({ "name": name, "hash": hash })).collect();
                let line = self.of_server::<McpLine>(&args.name, "acknowledge", Some(json!({ "tools": named }))).await?;
                done(&line, self.json, "acknowledged")
            }
            McpCommand::Login(args) => Err(Failure::usage(format!(
                "a login is made where the store is: run `leasehold mcp login {} --no-browser` on the machine of the server",
                terminal::Safe::line(&args.name).as_str()
            ))),
            McpCommand::Logout { name } => logged_out(&self.of_server::<LoggedOut>(&name, "logout", None).await?, self.json),
            McpCommand::Disable { name } => self.switch(&name, true).await,
            McpCommand::Enable { name } => self.switch(&name, false).await,
        }
    }

    async fn switch(&self, name: &str, off: bool) -> Outcome {
        let (server, tool) = parts(name);
        let line = self.of_server::<McpLine>(server, "switch", Some(json!({ "tool": tool, "off": off }))).await?;
        done(&line, self.json, &switched(name, off))
    }

    async fn of_server<T: serde::de::DeserializeOwned>(
        &self,
        server: &str,
        what: &str,
        body: Option<Value>,
    ) -> Result<T, Failure> {
        // A name of a server is a name of a path; what is none is no server.
        if !server.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return Err(Failure::usage(format!("there is no mcp server `{}`", terminal::Safe::line(server).as_str())));
        }
        let body = body.unwrap_or_else(|| json!({}));
        Ok(self.client.post(&format!("/mcp/{server}/{what}"), &body, None).await?.read()?)
    }
}
