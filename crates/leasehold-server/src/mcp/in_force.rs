//! Agents and tools in force in this process: from the configuration file as it is now, and from what the store knows of MCP
//! servers. Both are looked at before the model is asked and before each write is stamped; what changed holds from that call on.
//! A file that is wrong changes nothing and is said; where the store does not answer, nothing is called.

use super::{
    Offers, Running, Servers,
    catalogue::{Catalogue, Known},
    offer,
};
use crate::{
    access::AccessError,
    cli::{Executable, Models, Use, executable_with},
    config::{self, Config, ConfigError, Stamp, may_name},
};
use async_trait::async_trait;
use futures::future::join_all;
use leasehold::{
    Runtime,
    agent::{
        registry::{Authority, Registry},
        tool::mcp::{Definition, McpServer},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::sync::Mutex;

/// A file that was written less long ago may be half written.
const SETTLED: Duration = Duration::from_millis(300);
/// Waits for whoever writes the file all the time; then it is read as it is.
const SETTLING_MAX: u32 = 10;
/// Between two looks of a process in which nothing is called.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// See the module.
pub(crate) struct InForce {
    catalogue: Catalogue,
    to: Use,
    state: Mutex<State>,
}

struct State {
    file: Option<(PathBuf, Option<Stamp>)>,
    config: Arc<Config>,
    servers: Servers,
    versions: BTreeMap<String, u64>,
    /// What each server said last that is in the store.
    noted: BTreeMap<String, Arc<Vec<Definition>>>,
    executable: Arc<Executable>,
    /// What is under way counts against a model's limits, whatever else changes.
    models: Models,
    /// Servers that this process has asked for their tools, whether they answered or not.
    asked: BTreeSet<String>,
    /// Of which it was said that they do not answer, and which have not since.
    silent: BTreeSet<String>,
}

/// Why it is not known what is in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKnown {
    /// The configuration this process began with is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What is known of MCP servers.
    #[error(transparent)]
    Store(#[from] AccessError),
}

impl From<leasehold::store::Unavailable> for NotKnown {
    fn from(unavailable: leasehold::store::Unavailable) -> Self {
        Self::Store(unavailable.into())
    }
}

impl InForce {
    /// As the configuration and the store have it now. No server is asked.
    ///
    /// # Errors
    /// The configuration is wrong, or the store does not answer.
    pub(crate) async fn new(config: &Config, catalogue: Catalogue, to: Use) -> Result<Self, NotKnown> {
        let mut state = State {
            file: config.file.clone().map(|file| (file, config.stamp)),
            config: Arc::new(config.clone()),
            servers: Servers::new(Arc::new(catalogue.logins().clone())),
            versions: BTreeMap::new(),
            noted: BTreeMap::new(),
            executable: Arc::default(),
            models: Models::default(),
            asked: BTreeSet::new(),
            silent: BTreeSet::new(),
        };
        state.configure(Arc::clone(&state.config), to);
        if !config.mcp.is_empty() {
            state.versions = catalogue.versions().await?;
        }
        let known = known_of(&catalogue, config).await?;
        state.executable = Arc::new(state.executable(to, &known)?);
        Ok(Self { catalogue, to, state: Mutex::new(state) })
    }

    /// What is in force now.
    ///
    /// # Errors
    /// The store does not answer.
    pub(crate) async fn now(&self) -> Result<(Arc<Config>, Arc<Executable>), NotKnown> {
        let mut state = self.state.lock().await;
        self.look(&mut state).await?;
        Ok((Arc::clone(&state.config), Arc::clone(&state.executable)))
    }

    async fn look(&self, state: &mut State) -> Result<(), NotKnown> {
        let (stamp, config) = state.changed_file().await;
        let mut versions = state.versions.clone();
        if !state.config.mcp.is_empty() || config.as_ref().is_some_and(|config| !config.mcp.is_empty()) {
            state.note(&self.catalogue).await?;
            versions = self.catalogue.versions().await?;
        }
        let mut known = None;
        if config.is_some() || versions != state.versions {
            let of_new = match &config {
                Some(config) => known_of(&self.catalogue, config).await?,
                None => BTreeMap::new(),
            };
            known = Some((of_new, known_of(&self.catalogue, &state.config).await?));
        }
        // From here on nothing waits: whoever asks may go away at any wait, and what was seen and not taken over would be lost.
        if let Some((of_new, of_old)) = known {
            self.take_over(state, config, &of_new, &of_old)?;
        }
        state.versions = versions;
        if let Some((_, seen)) = &mut state.file {
            *seen = stamp;
        }
        Ok(())
    }

    fn take_over(
        &self,
        state: &mut State,
        config: Option<Config>,
        of_new: &BTreeMap<String, Known>,
        of_old: &BTreeMap<String, Known>,
    ) -> Result<(), ConfigError> {
        if let Some(config) = config {
            let before = Arc::clone(&state.config);
            state.configure(Arc::new(config), self.to);
            match state.executable(self.to, of_new) {
                Ok(executable) => {
                    state.executable = Arc::new(executable);
                    return Ok(());
                }
                Err(error) => {
                    tracing::warn!("the changed configuration is not taken over, what was in force stays: {error}");
                    state.configure(before, self.to);
                }
            }
        }
        // What the store knows otherwise by now is not passed over, whatever becomes of the file.
        state.executable = Arc::new(state.executable(self.to, of_old)?);
        Ok(())
    }

    /// Looks at a server of this process.
    pub(super) async fn with_server<T>(&self, name: &str, look: impl FnOnce(Option<&Running>) -> T) -> T {
        look(self.state.lock().await.servers.get(name))
    }

    /// The catalogue.
    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Asks the servers that have not told their tools yet, or said that they changed, each within its deadline.
    pub(crate) async fn ask_servers(&self) {
        let is_to_ask =
            |state: &State, name: &str, server: &McpServer| !state.versions.contains_key(name) || server.health().list_changed;
        self.ask_those(is_to_ask).await;
    }

    /// Asks the servers that are meant, each within its deadline; whether there were any.
    async fn ask_those(&self, is_meant: impl Fn(&State, &str, &McpServer) -> bool) -> bool {
        // What is only declared has no secrets, and is not called.
        if self.to == Use::Declare {
            return false;
        }
        let servers: Vec<(String, McpServer)> = {
            let state = self.state.lock().await;
            let meant = state.servers.reachable().filter(|(name, server)| is_meant(&state, name, server));
            meant.map(|(name, server)| (name.clone(), server.clone())).collect()
        };
        let answers = join_all(servers.iter().map(|(_, server)| server.list())).await;
        let any = !servers.is_empty();
        let mut state = self.state.lock().await;
        for ((name, _), answer) in servers.into_iter().zip(answers) {
            match answer {
                Ok(_) => {
                    state.silent.remove(&name);
                }
                // Once, however often it is asked again.
                Err(error) => {
                    if state.silent.insert(name.clone()) {
                        tracing::warn!(server = %name, "mcp server `{name}` does not tell its tools: {error}");
                    }
                }
            }
            state.asked.insert(name);
        }
        any
    }

    /// Keeps a process at what is in force while nothing is called, until it is dropped: what it claims, and what servers have to
    /// tell.
    pub(crate) async fn tend(self: Arc<Self>, runtimes: Vec<Runtime>) {
        let looking = async {
            let mut turns = tokio::time::interval(LOOK_EVERY);
            turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                turns.tick().await;
                match self.now().await {
                    Ok((_, executable)) => runtimes.iter().for_each(|runtime| {
                        runtime.replace_registry(Arc::clone(&executable.registry));
                    }),
                    Err(error) => tracing::warn!("what is in force is not known: {error}"),
                }
            }
        };
        let asking = async {
            let mut turns = tokio::time::interval(LOOK_EVERY);
            turns.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                turns.tick().await;
                self.ask_servers().await;
            }
        };
        tokio::join!(looking, asking);
    }

    /// Ends the servers of this process, and waits for their processes.
    pub(crate) async fn shutdown(&self) {
        let servers: Vec<McpServer> = {
            let state = self.state.lock().await;
            state.servers.reachable().map(|(_, server)| server.clone()).collect()
        };
        join_all(servers.iter().map(McpServer::shutdown)).await;
    }
}

async fn known_of(catalogue: &Catalogue, config: &Config) -> Result<BTreeMap<String, Known>, NotKnown> {
    let mut known = BTreeMap::new();
    for server in &config.mcp {
        let name = &server.config.name;
        known.insert(name.clone(), catalogue.known(name).await?);
    }
    Ok(known)
}

#[async_trait]
impl Authority for InForce {
    async fn in_force(&self) -> Result<Arc<Registry>, String> {
        let (_, executable) = self.now().await.map_err(|error| error.to_string())?;
        Ok(Arc::clone(&executable.registry))
    }

    async fn look_for(&self, patterns: &[String]) -> bool {
        let is_meant = |state: &State, name: &str, _: &McpServer| {
            let is_known = state.versions.contains_key(name) || state.asked.contains(name);
            !is_known && patterns.iter().any(|pattern| may_name(pattern, &format!("{name}.*")))
        };
        self.ask_those(is_meant).await
    }
}

impl State {
    /// How the file is known by now, and the configuration where it is another than it was and reads.
    async fn changed_file(&self) -> (Option<Stamp>, Option<Config>) {
        let Some((file, before)) = self.file.clone() else { return (None, None) };
        let mut is = Stamp::of(&file);
        if is == before {
            return (is, None);
        }
        // Not before whoever writes it is done; a time to come says nothing about that.
        for _ in 0..SETTLING_MAX {
            let written = is.and_then(|is| is.modified?.elapsed().ok());
            let Some(rest) = written.and_then(|ago| SETTLED.checked_sub(ago)) else { break };
            tokio::time::sleep(rest).await;
            is = Stamp::of(&file);
        }
        // What is to be written is often made empty first, and an empty file is a configuration too.
        if is.is_some_and(|is| is.bytes == 0) {
            tracing::warn!("the changed configuration is not taken over, what was in force stays: {} is empty", file.display());
            return (is, None);
        }
        match config::load(Some(&file), &crate::cli::env) {
            Ok(config) => {
                tracing::info!(file = %file.display(), "the configuration was read anew");
                (is, Some(config))
            }
            Err(error) => {
                tracing::warn!("the changed configuration is not taken over, what was in force stays: {error}");
                (is, None)
            }
        }
    }

    /// Takes down what servers said since it was last taken down.
    async fn note(&mut self, catalogue: &Catalogue) -> Result<(), NotKnown> {
        let mut noted = Vec::new();
        for (name, server) in self.servers.reachable() {
            let Some(listed) = server.listed().borrow().clone() else { continue };
            if self.noted.get(name).is_none_or(|before| !Arc::ptr_eq(before, &listed)) {
                catalogue.note(name, &listed).await?;
                noted.push((name.clone(), listed));
            }
        }
        self.noted.extend(noted);
        Ok(())
    }

    fn configure(&mut self, config: Arc<Config>, to: Use) {
        for gone in self.servers.take(&config.mcp, to) {
            tokio::spawn(async move { gone.shutdown().await });
        }
        self.config = config;
    }

    fn executable(&mut self, to: Use, known: &BTreeMap<String, Known>) -> Result<Executable, ConfigError> {
        let offers = self.offers(known);
        executable_with(&self.config, to, offers, &mut self.models)
    }

    fn offers(&self, known: &BTreeMap<String, Known>) -> Offers {
        let one = |(name, known): (&String, &Known)| Some((name.clone(), offer(self.servers.get(name)?, known)));
        known.iter().filter_map(one).collect()
    }
}
