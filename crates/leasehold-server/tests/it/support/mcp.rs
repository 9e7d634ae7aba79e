//! A place for real processes that reach MCP servers: a server of the tests whose tools are a file and whose calls are lines of another,
//! or one that nobody here wrote.

use super::{PATIENCE, api::TOKEN};
use leasehold::run::{RunId, State};
use leasehold_testkit::{
    home::{Home, Ran, Running},
    mcp,
};
use serde_json::{Value, json};
use std::{path::PathBuf, time::Instant};

/// See the module.
pub(crate) struct Place {
    pub(crate) home: Home,
    python: String,
}

/// A tool with one text, as a server lists it.
pub(crate) fn tool(name: &str) -> Value {
    let properties = json!({ "text": { "type": "string" } });
    let input = json!({ "type": "object", "properties": properties, "required": ["text"] });
    json!({ "name": name, "description": "Notes a line", "inputSchema": input })
}

/// A script that makes one call of that tool, with the text `one`, and answers.
pub(crate) fn once(tool: &str) -> String {
    super::one_call(tool, "{ text = \"one\" }")
}

impl Place {
    /// None where this machine has no Python.
    pub(crate) async fn new() -> Option<Self> {
        Self::at(Home::new(env!("CARGO_BIN_EXE_leasehold"))).await
    }

    /// The same in a home of the caller's.
    pub(crate) async fn at(home: Home) -> Option<Self> {
        let place = Self { home, python: mcp::python().await? };
        place.lists(&[tool("append")]);
        Some(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// What the server lists from now on.
    pub(crate) fn lists(&self, tools: &[Value]) {
        self.replace("tools.json", &Value::from(tools).to_string());
    }

    /// Puts a file in the place of another at once.
    pub(crate) fn replace(&self, name: &str, text: &str) {
        self.home.write("next", text);
        std::fs::rename(self.path("next"), self.path(name)).unwrap();
    }

    /// The calls that arrived.
    pub(crate) fn calls(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Calls are not answered until [`Place::release`].
    pub(crate) fn hold(&self) {
        self.home.write("calls.hold", "");
    }

    pub(crate) fn release(&self) {
        std::fs::remove_file(self.path("calls.hold")).unwrap();
    }

    /// What each call is answered with from now on.
    pub(crate) fn answers(&self, result: &Value) {
        self.replace("calls.answer", &result.to_string());
    }

    /// What the server was told without being asked, of this method.
    pub(crate) fn told(&self, method: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.path("calls.told")).unwrap_or_default();
        let all = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        all.filter(|message| message["method"] == method).collect()
    }

    /// The server as a command; another one with each `of`.
    pub(crate) fn command_of(&self, of: &[&str]) -> Vec<String> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../leasehold/tests/mcp/shifting.py");
        let path = |name: &str| self.path(name).display().to_string();
        let mut command = vec![self.python.clone(), script.to_owned()];
        command.extend(of.iter().map(|name| path(name)));
        command
    }

    pub(crate) fn command(&self) -> Vec<String> {
        self.command_of(&["tools.json", "calls"])
    }

    /// `command = [..]` of the server.
    pub(crate) fn by_pipes(&self) -> String {
        format!("command = {}", Value::from(self.command()))
    }

    /// Writes the configuration: the server `notes` with these keys, and agent `a` that is offered these tools.
    pub(crate) fn configure(&self, keys: &str, tools: &str) {
        self.configure_more(&format!("[[mcp]]\nname = \"notes\"\n{keys}\n"), tools);
    }

    /// The same with whole sections.
    pub(crate) fn configure_more(&self, sections: &str, tools: &str) {
        self.replace("leasehold.toml", &self.configuration(sections, tools));
    }

    pub(crate) fn configuration(&self, sections: &str, tools: &str) -> String {
        format!(
            r#"
[store]
url = "{}"
[lease]
ttl = "2s"
sweep_interval = "200ms"
backoff = {{ initial = "100ms", factor = 1.0, max = "100ms", jitter = false }}
[[model]]
name = "m"
provider = "scripted"
script = "script.toml"
[[agent]]
name = "a"
model = "m"
tools = {tools}
{sections}
"#,
            self.home.store_url()
        )
    }

    pub(crate) fn script(&self, script: &str) {
        self.home.write("script.toml", script);
    }

    /// `worker` or `serve`, which goes on running.
    pub(crate) fn running(&self, verb: &str) -> Running {
        let mut command = self.home.command(&[verb]);
        command.env("LEASEHOLD_SERVER_LISTEN", "127.0.0.1:0").env("LEASEHOLD_ADMIN_TOKEN", TOKEN);
        self.home.start_as(command, None)
    }

    /// A command that ends with this code.
    #[track_caller]
    pub(crate) fn ends(&self, arguments: &[&str], code: i32) -> impl Future<Output = Ran> {
        let at = std::panic::Location::caller();
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        async move {
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            let ran = self.home.run(&arguments).await;
            assert_eq!(ran.code(), code, "{at}: {arguments:?}: {ran}");
            ran
        }
    }

    /// A run in the foreground that waits.
    pub(crate) async fn suspended(&self) -> RunId {
        self.ends(&["run", "--json", "note a line"], 3).await.json()["id"].as_str().unwrap().parse().unwrap()
    }

    /// Approves what is on the card of a run now.
    pub(crate) async fn approve(&self, id: RunId, more: &[&str]) -> Ran {
        let row = self.home.row(id).await;
        assert_eq!(row.state, State::WaitingForApproval);
        let (id, digest) = (id.to_string(), row.turn.and_then(|turn| turn.digest).unwrap());
        self.home.run(&[&["approve", &id, "--digest", &digest][..], more].concat()).await
    }

    /// The run as `runs show --json` has it.
    pub(crate) async fn show(&self, id: RunId) -> Value {
        self.ends(&["runs", "show", &id.to_string(), "--json"], 0).await.json()
    }

    /// A server as `mcp list` shows it.
    pub(crate) async fn server(&self, name: &str) -> Value {
        let listed = self.ends(&["mcp", "list", "--json"], 0).await.json();
        listed["items"].as_array().unwrap().iter().find(|server| server["name"] == name).cloned().unwrap()
    }

    /// A tool of it, by its whole name.
    pub(crate) async fn tool(&self, name: &str) -> Value {
        let server = self.server(name.split('.').next().unwrap()).await;
        let tools = server["tools"].as_array().unwrap();
        tools.iter().find(|tool| tool["name"] == name).cloned().unwrap_or_else(|| panic!("no {name}: {server}"))
    }

    /// Looks until a tool stands like that.
    pub(crate) async fn until_tool(&self, name: &str, standing: &str) -> Value {
        let since = Instant::now();
        loop {
            let server = self.server(name.split('.').next().unwrap()).await;
            let is_it = |tool: &&Value| tool["name"] == name && tool["standing"] == standing;
            if let Some(tool) = server["tools"].as_array().unwrap().iter().find(is_it) {
                return tool.clone();
            }
            assert!(since.elapsed() < PATIENCE, "{name} is not {standing}: {server}");
        }
    }

    /// What the tool said or why it was not called, of each call that is over.
    pub(crate) async fn outcomes(&self, id: RunId) -> Vec<(String, String)> {
        let of = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let journal = self.home.journal(id).await;
        let ended = journal.iter().filter_map(|entry| match &entry.body {
            leasehold::run::EntryBody::ToolOutcome(it) => Some((it.outcome.to_string(), of(&it.result))),
            _ => None,
        });
        ended.collect()
    }

    /// Processes whose command line names this place, without the command itself.
    pub(crate) fn processes(&self) -> Vec<String> {
        let here = self.home.path().display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            if line.contains(&here) {
                found.push(format!("{}: {line}", entry.file_name().display()));
            }
        }
        found
    }
}
