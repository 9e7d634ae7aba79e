//! The client that the suite tests: the MCP client of the runtime, as a process whose last argument is the place of the suite's server.
//! What a person or an operator would do is done here: opening the address of a login, logging in again where more is wanted.

use anyhow::{Context as _, anyhow, bail};
use leasehold::{
    Submission,
    agent::tool::{
        Tool,
        http::ConfiguredEffect,
        mcp::{
            Begun, Definition, Grant, Kept, Login, LoginError, LoginOf, Logins, McpConfig, McpError, McpServer, OAuthConfig,
            Refreshed, Ticket,
        },
    },
    clock::BootInstant,
    run::State,
};
use leasehold_testkit::{
    park::Place,
    world::{World, WorldBuilder},
};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

const REDIRECT: &str = "http://127.0.0.1:39217/callback";
const LOGINS_MAX: usize = 3;
/// The suite's own document of a client.
const CLIENT_DOCUMENT: &str = "https://conformance-test.local/client-metadata.json";

/// Keeps one login, for this process.
#[derive(Debug, Default)]
struct Memory(Mutex<Option<Login>>);

impl Memory {
    fn set(&self, login: Option<Login>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = login;
    }
    fn get(&self) -> Option<Kept> {
        let login = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        login.map(|login| Kept { login, refused: None, failed: None })
    }
}

#[async_trait::async_trait]
impl Logins for Memory {
    async fn load(&self, _: &LoginOf) -> Result<Option<Kept>, LoginError> {
        Ok(self.get())
    }
    async fn begin_refresh(
        &self,
        _: &LoginOf,
        is_stale: &(dyn for<'l> Fn(&'l Login) -> bool + Send + Sync),
    ) -> Result<Begun, LoginError> {
        Ok(match self.get() {
            None => Begun::Gone,
            Some(kept) if is_stale(&kept.login) => {
                Begun::Mine(kept.login, Ticket { id: String::new(), since: BootInstant::of_machine() })
            }
            Some(kept) => Begun::Current(kept),
        })
    }
    async fn end_refresh(&self, _: &LoginOf, _: &Ticket, refreshed: &Refreshed) -> Result<(), LoginError> {
        if let Refreshed::Login(login) = refreshed {
            self.set(Some(login.clone()));
        }
        Ok(())
    }
}

struct Client {
    scenario: String,
    context: Value,
    url: String,
    logins: Arc<Memory>,
    logged_in: usize,
    /// What an operator would write beside a secret.
    issuer: Option<String>,
}

/// Does what a scenario is about.
pub(super) async fn run(url: &str) -> anyhow::Result<()> {
    let scenario = std::env::var("MCP_CONFORMANCE_SCENARIO").context("MCP_CONFORMANCE_SCENARIO is not set")?;
    let context = std::env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_else(|_| "{}".into());
    let context = serde_json::from_str(&context)?;
    let mut client = Client { scenario, context, url: url.to_owned(), logins: Arc::default(), logged_in: 0, issuer: None };
    client.learn_issuer().await?;
    let done = client.drive().await;
    match done {
        // The suite sees what was sent; that the client said no is what some of it wants.
        Err(error) if client.is_to_be_refused() => {
            eprintln!("refused, as it should be: {error:#}");
            Ok(())
        }
        done => done,
    }
}

impl Client {
    fn is_to_be_refused(&self) -> bool {
        let refused = [
            "resource-mismatch",
            "iss-supported-missing",
            "iss-wrong-issuer",
            "iss-unexpected",
            "iss-normalized",
            "metadata-issuer-mismatch",
        ];
        refused.iter().any(|name| self.scenario == format!("auth/{name}"))
    }

    fn word(&self, key: &str) -> Option<String> {
        self.context.get(key).and_then(Value::as_str).map(str::to_owned)
    }

    /// Its authorization server, where a secret is for that: the suite does not tell it otherwise.
    async fn learn_issuer(&mut self) -> anyhow::Result<()> {
        if self.word("client_secret").is_none() {
            return Ok(());
        }
        let url: reqwest::Url = self.url.parse()?;
        for path in [url.path(), ""] {
            let published = url.join(&format!("/.well-known/oauth-protected-resource{path}"))?;
            let answer = reqwest::get(published).await?;
            if answer.status().is_success() {
                let said: Value = serde_json::from_str(&answer.text().await?)?;
                self.issuer = said["authorization_servers"][0].as_str().map(str::to_owned);
                return Ok(());
            }
        }
        Ok(())
    }

    fn server(&self, tools: &[Definition]) -> anyhow::Result<McpServer> {
        let mut config = McpConfig::url("suite", &self.url);
        config.timeout = Some(Duration::from_secs(12));
        config.questions = Some(Duration::from_secs(60));
        // Nothing here holds a lease, so all are called as reads.
        config.effects = tools.iter().map(|tool| (tool.name.clone(), ConfiguredEffect::ReadOnly)).collect();
        if self.scenario.starts_with("auth/") {
            let is_machine = self.scenario.starts_with("auth/client-credentials");
            let secret = self.word("client_secret");
            config.oauth = Some(OAuthConfig {
                grant: if is_machine { Grant::ClientCredentials } else { Grant::AuthorizationCode },
                client_id: self.word("client_id"),
                client_secret_env: secret.is_some().then(|| "SECRET".to_owned()),
                issuer: self.issuer.clone(),
                client_metadata_url: self.word("client_id").is_none().then(|| CLIENT_DOCUMENT.to_owned()),
                ..OAuthConfig::default()
            });
        }
        let secret = self.word("client_secret");
        let env = |name: &str| secret.clone().filter(|_| name == "SECRET");
        Ok(McpServer::new_with_logins(config, env, Some(Arc::clone(&self.logins) as Arc<dyn Logins>))?)
    }

    /// Opens the address as a browser would; the suite's authorization server sends it back at once.
    async fn log_in(&mut self, server: &McpServer) -> anyhow::Result<()> {
        self.logged_in += 1;
        if self.logged_in > LOGINS_MAX {
            bail!("logged in {LOGINS_MAX} times, and the server wants more still");
        }
        let pending = server.begin_login(REDIRECT).await?;
        let browser = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build()?;
        let answer = browser.get(pending.url()).send().await?;
        let back = answer.headers().get(reqwest::header::LOCATION).and_then(|back| back.to_str().ok());
        let back = back.with_context(|| format!("the authorization server sends nobody back: {}", answer.status()))?;
        self.logins.set(Some(pending.finish(back).await?));
        Ok(())
    }

    async fn list(&mut self, server: &McpServer) -> anyhow::Result<Vec<Definition>> {
        loop {
            match server.list().await {
                Ok(listed) => return Ok(listed),
                Err(McpError::Unauthorized(why))
                    if server.oauth().is_some_and(|oauth| oauth.grant == Grant::AuthorizationCode) =>
                {
                    eprintln!("{why}");
                    self.log_in(server).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn drive(&mut self) -> anyhow::Result<()> {
        let asked = self.server(&[])?;
        let listed = self.list(&asked).await?;
        eprintln!("listed {:?}", listed.iter().map(|tool| &tool.name).collect::<Vec<_>>());
        asked.shutdown().await;
        let server = self.server(&listed)?;
        let offered = server.tools(&listed)?;
        for refused in &offered.refused {
            eprintln!("not offered: {}: {}", refused.tool, refused.why);
        }
        if self.scenario.starts_with("sep-2322") {
            self.in_a_run(offered.tools, &listed).await?;
            server.shutdown().await;
            return Ok(());
        }
        let tools: BTreeMap<String, Tool> = offered.tools.into_iter().map(|tool| (tool.spec().name.clone(), tool)).collect();
        for (name, arguments) in self.calls(&listed) {
            let Some(Tool::Read(tool)) = tools.get(&format!("suite.{name}")) else { continue };
            loop {
                let answer = tool.call(&arguments).await;
                let said = answer.result.to_string();
                eprintln!("{name}: {}{said:.300}", if answer.is_error { "error: " } else { "" });
                let wants_more = said.contains("leasehold mcp login") && server.oauth().is_some();
                if !(answer.is_error && wants_more) {
                    break;
                }
                self.log_in(&server).await?;
            }
        }
        server.shutdown().await;
        Ok(())
    }

    /// Calls each tool in a run, which waits for what they ask, and gives it.
    async fn in_a_run(&self, tools: Vec<Tool>, listed: &[Definition]) -> anyhow::Result<()> {
        let call = |(name, arguments): (String, Map<String, Value>)| json!({ "calls": [{ "tool": format!("suite.{name}"), "arguments": arguments }] });
        let calls = self.calls(listed).into_iter().map(call).chain([json!({ "text": "done" })]);
        let script = toml::to_string(&json!({ "reply": calls.collect::<Vec<_>>() }))?;
        let place = Place::memory();
        let builder = World::builder(&script).on(&place.store, &place.clock);
        let world = tools.into_iter().fold(builder, WorldBuilder::tool).build();
        let id = world.run("call them").await;
        while world.row(id).await.state == State::WaitingForInput {
            let card = world.story(id).await.card.context("it waits for nothing")?.card;
            let values = made_up(&card.schema.context("it asks for nothing")?);
            eprintln!("{}: {values:?}", card.question.context("no call asks")?.prompt);
            let said = Submission { digest: world.digest(id).await, values: Some(values), by: World::person(), execute: true };
            let goes_on = world.runtime.submit(id, said).await?.execution.context("nobody goes on")?;
            goes_on.finish().await?;
        }
        for call in world.story(id).await.calls.values() {
            eprintln!("{}: {:?}", call.asked.tool, call.outcome);
        }
        Ok(())
    }

    /// What is called with what.
    fn calls(&self, listed: &[Definition]) -> Vec<(String, Map<String, Value>)> {
        if let Some(calls) = self.context.get("toolCalls").and_then(Value::as_array) {
            let one = |call: &Value| Some((call["name"].as_str()?.to_owned(), call["arguments"].as_object()?.clone()));
            return calls.iter().filter_map(one).collect();
        }
        if self.scenario == "json-schema-2020-12-preservation"
            && let [focal, echo] = listed
        {
            let arguments = json!({ "schema": focal.input_schema });
            return vec![(echo.name.clone(), arguments.as_object().cloned().unwrap_or_default())];
        }
        listed.iter().map(|tool| (tool.name.clone(), made_up(&tool.input_schema))).collect()
    }
}

/// Arguments that fit a simple schema.
fn made_up(schema: &Value) -> Map<String, Value> {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return Map::new() };
    let value = |schema: &Value| match schema.get("type").and_then(Value::as_str) {
        Some("number" | "integer") => json!(5),
        Some("boolean") => json!(true),
        Some("object") => json!({}),
        Some("array") => json!([]),
        _ => json!("text"),
    };
    properties.iter().map(|(name, schema)| (name.clone(), value(schema))).collect()
}

/// The command of the suite.
pub(super) fn main(url: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(run(url)).map_err(|error| anyhow!("{error:#}"))
}
