//! What the parts of a configuration mean together: names, references and values that no single key can tell. The result is
//! [`Config`], from which everything starts.

use super::{
    Found, budgets, bundled,
    diagnostic::{ConfigError, Source, closest, suggest},
    effective::{
        Agent, Config, Http, KeyringAt, Lease, Limits, Mcp, Model, Origin, Reader, Setting, Site, StoreAt, Webhook, any,
        at_least_one, plain, resolve,
    },
    file::{self, File},
    files, mcp, policy,
    server::Server,
};
use crate::webhook::{Event, check_url};
use leasehold::agent::tool::Approval;
use leasehold::run::OnExpiry;
use leasehold::store::postgres::PostgresStore;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use strum::IntoEnumIterator as _;
use toml::Spanned;

/// Tools of the bundled site, and whether they write.
pub(crate) const SITE_TOOLS: [(&str, bool); 4] =
    [("site.create_page", true), ("site.list_pages", false), ("site.read_page", false), ("site.update_page_metadata", true)];

/// Keys of an HTTP tool that can be wrong by their value.
const HTTP_KEYS: [&str; 9] = ["name", "approval", "method", "url", "headers", "parameters", "outcomes", "verify", "timeout"];

/// The agent there is when no other is configured.
pub(crate) const DEFAULT_AGENT: &str = "assistant";
/// The model an agent has when it does not say.
pub(crate) const DEFAULT_MODEL: &str = "default";

/// Reads a file's text and checks it; without one, the defaults.
pub(crate) fn check(found: &Found, env: &dyn Fn(&str) -> Option<String>) -> Result<Config, ConfigError> {
    let source = found.source.as_ref();
    let file: File = match source {
        Some(source) => toml::from_str(&source.text).map_err(|e| source.explain(&e))?,
        None => File::default(),
    };
    let checker = Checker { found, source, env, reader: Reader { source, env } };
    checker.config(&file)
}

pub(super) struct Checker<'a> {
    found: &'a Found,
    source: Option<&'a Source>,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    reader: Reader<'a>,
}

impl Checker<'_> {
    pub(super) fn error<T>(&self, at: &Spanned<T>, what: impl Into<String>) -> ConfigError {
        match self.source {
            Some(source) => source.error(&at.span(), what),
            None => ConfigError::new("configuration", what),
        }
    }
    pub(super) fn place<T>(&self, at: &Spanned<T>) -> String {
        self.source.map_or_else(String::new, |source| source.place(at.span().start))
    }
    pub(super) fn base(&self) -> PathBuf {
        self.source.and_then(|s| s.path.parent()).map_or_else(|| self.found.data_dir.clone(), Path::to_owned)
    }

    fn config(&self, file: &File) -> Result<Config, ConfigError> {
        let store = self.store(file)?;
        let http = self.http(file)?;
        let files = file.tool.files.as_ref().map(|at| files::files(at.get_ref(), &self.base(), self.place(at)));
        let files = files.transpose().map_err(|wrong| self.names_nothing(wrong))?;
        let (fetch, sql) = (self.fetch(file)?, self.sql(file)?);
        let place = |http: &Http| http.places.get("name").unwrap_or(&http.place).clone();
        let sources = http.iter().filter_map(|http| Some((http.tool.name.split_once('.')?.0, place(http))));
        let bundled = files.iter().map(|files| ("files", files.origin.to_string()));
        let bundled = bundled.chain(fetch.iter().map(|fetch| ("fetch", fetch.origin.to_string())));
        let bundled = bundled.chain(sql.iter().map(|sql| ("sql", sql.place.clone())));
        let mcp = mcp::servers(file, &self.base(), &sources.chain(bundled).collect(), &|server, key| match key {
            Some(key) => self.key_place(server, key),
            None => self.place(server),
        })?;
        let models = self.models(file)?;
        let mut known = known_tools(&http, &mcp);
        known.extend(file.tool.files.iter().flat_map(|files| files::tools(files.get_ref())));
        known.extend(fetch.iter().map(|_| bundled::FETCH_TOOL.to_owned()));
        known.extend(sql.iter().map(|sql| format!("sql.{}", sql.config.name)));
        let policy = policy::policy(&file.policy, &known).map_err(|wrong| self.names_nothing(wrong))?;
        let mut agents = self.agents(file, &models, &known)?;
        if let ([], [first, _, ..]) = (agents.as_slice(), file.model.as_slice())
            && !models.iter().any(|model| model.name == DEFAULT_MODEL)
        {
            return Err(self
                .error(&first.get_ref().name, "no agent is configured, and which of the models is meant is not said")
                .mend(format!("name one of them \"{DEFAULT_MODEL}\", or add an [[agent]] with its model")));
        }
        if agents.is_empty() {
            agents.push(default_agent(&http, &mcp, &models));
        }
        // Beside a store that is a file; otherwise beside the configuration.
        let site_beside = match &store.value {
            StoreAt::Sqlite(path) => path.clone(),
            StoreAt::Postgres { .. } => self.base().join("leasehold.db"),
        };
        let site = self.site(file, &agents, &site_beside)?;
        let listen = SocketAddr::from(([127, 0, 0, 1], 7878));
        Ok(Config {
            file: self.source.map(|s| s.path.clone()),
            stamp: self.source.and_then(|s| s.stamp),
            store,
            listen: self.listen(file, listen)?,
            execute: self.reader.setting(
                "LEASEHOLD_SERVER_EXECUTE",
                plain("true or false"),
                any,
                file.server.execute.as_ref(),
                true,
            )?,
            server: Server::read(&self.reader, &file.server)?,
            concurrency: self.reader.setting(
                "LEASEHOLD_WORKER_CONCURRENCY",
                plain("a whole number of at least 1"),
                at_least_one,
                file.worker.concurrency.as_ref(),
                64,
            )?,
            lease: Lease::read(&self.reader, &file.lease)?,
            admin_token_env: self.reader.setting(
                "LEASEHOLD_AUTH_ADMIN_TOKEN_ENV",
                |text| Ok(text.to_owned()),
                |text: &String| env_name(text),
                file.auth.admin_token_env.as_ref(),
                "LEASEHOLD_ADMIN_TOKEN".into(),
            )?,
            // No variable says it: whoever runs a command has its environment in hand.
            local: match &file.auth.local {
                Some(said) => Setting { value: *said.get_ref(), origin: Origin::File(self.place(said)) },
                None => Setting { value: file::Local::default(), origin: Origin::Default },
            },
            keyring: self.keyring(file),
            webhook: self.webhook(file)?,
            data_dir: self.found.data_dir.clone(),
            models,
            agents,
            http,
            mcp,
            policy,
            files,
            fetch,
            sql,
            site,
        })
    }

    fn store(&self, file: &File) -> Result<Setting<StoreAt>, ConfigError> {
        let default = match self.source {
            Some(_) => "sqlite:leasehold.db".to_owned(),
            None => format!("sqlite:{}", self.found.data_dir.join("leasehold.db").display()),
        };
        let url =
            self.reader.setting("LEASEHOLD_STORE_URL", |t| Ok(t.trim().to_owned()), any, file.store.url.as_ref(), default)?;
        let place = match (&url.origin, &file.store.url) {
            (Origin::File(place), _) => place.clone(),
            (Origin::Env(name), _) => format!("environment variable {name}"),
            _ => String::new(),
        };
        // The environment knows nothing of the file's folder.
        let base = match url.origin {
            Origin::Env(_) => PathBuf::new(),
            _ => self.base(),
        };
        let value = store_at(&url.value, &base).map_err(|(what, mend)| ConfigError::new(place, what).mend(mend))?;
        Ok(Setting { value, origin: url.origin })
    }

    fn keyring(&self, file: &File) -> Setting<KeyringAt> {
        // What it holds is read where a store is opened: a wrong one keeps nobody from looking at the configuration.
        let name = "LEASEHOLD_KEYRING";
        match &file.seal.keyring {
            _ if (self.env)(name).is_some_and(|text| !text.trim().is_empty()) => {
                Setting { value: KeyringAt::Environment, origin: Origin::Env(name.into()) }
            }
            Some(path) => Setting {
                value: KeyringAt::File(resolve(&self.base(), path.get_ref())),
                origin: Origin::File(self.place(path)),
            },
            None => Setting { value: KeyringAt::Nowhere, origin: Origin::Default },
        }
    }

    fn webhook(&self, file: &File) -> Result<Option<Webhook>, ConfigError> {
        let Some(spanned) = &file.webhook else { return Ok(None) };
        let said = spanned.get_ref();
        check_url(said.url.get_ref(), said.insecure_http).map_err(|(what, mend)| self.error(&said.url, what).mend(mend))?;
        let secret_env = match &said.secret_env {
            None => "LEASEHOLD_WEBHOOK_SECRET".to_owned(),
            Some(at) => {
                env_name(at.get_ref()).map_err(|what| self.error(at, what))?;
                at.get_ref().clone()
            }
        };
        let events: BTreeSet<Event> = match &said.events {
            None => Event::iter().collect(),
            Some(at) if at.get_ref().is_empty() => {
                return Err(self.error(at, "a webhook of no events").mend("name some, or remove the [webhook] section"));
            }
            Some(at) => at.get_ref().iter().copied().collect(),
        };
        let base = said.link_base.as_ref().or(file.server.public_url.as_ref());
        if let Some(at) = base.filter(|at| !["http://", "https://"].iter().any(|s| at.get_ref().starts_with(s))) {
            return Err(self.error(at, format!("`{}` is not an http or https URL", at.get_ref())));
        }
        Ok(Some(Webhook {
            url: said.url.get_ref().clone(),
            secret_env,
            events,
            link_base: base.map(|at| at.get_ref().clone()),
            insecure_http: said.insecure_http,
            origin: Origin::File(self.place(spanned)),
        }))
    }

    fn listen(&self, file: &File, default: SocketAddr) -> Result<Setting<SocketAddr>, ConfigError> {
        let parse = plain::<SocketAddr>("an address with a port, such as 127.0.0.1:7878");
        let in_file = match &file.server.listen {
            None => None,
            Some(text) => {
                let address = parse(text.get_ref()).map_err(|what| self.error(text, what))?;
                Some(Spanned::new(text.span(), address))
            }
        };
        self.reader.setting("LEASEHOLD_SERVER_LISTEN", &parse, any, in_file.as_ref(), default)
    }

    fn http(&self, file: &File) -> Result<Vec<Http>, ConfigError> {
        let mut seen: HashMap<&str, String> = HashMap::new();
        for spanned in &file.tool.http {
            let tool = spanned.get_ref();
            let name = tool.name.as_str();
            match name.split_once('.') {
                Some((source, rest)) if !source.is_empty() && !rest.is_empty() => {}
                _ => {
                    return Err(self
                        .key_error(spanned, "name", format!("the tool name `{name}` is not of the form source.tool"))
                        .mend(format!("name it after where it goes, for example `ledger.{name}`")));
                }
            }
            if name.starts_with("site.") {
                return Err(self
                    .key_error(spanned, "name", format!("`{name}`: names that begin with `site.` belong to the bundled site"))
                    .mend("choose another name before the dot"));
            }
            let place = self.key_place(spanned, "name");
            if let Some(other) = seen.insert(name, place.clone()) {
                return Err(ConfigError::new(place, format!("two tools are named `{name}`; the other one is at {other}"))
                    .mend("rename one"));
            }
        }
        Ok(file
            .tool
            .http
            .iter()
            .map(|spanned| Http {
                tool: spanned.get_ref().clone(),
                place: self.place(spanned),
                places: HTTP_KEYS.into_iter().map(|key| (key.to_owned(), self.key_place(spanned, key))).collect(),
            })
            .collect())
    }

    /// Where a key of a table stands; the table itself where it has no line of its own.
    pub(super) fn key_place<T>(&self, table: &Spanned<T>, key: &str) -> String {
        self.source.map_or_else(String::new, |source| source.key_place(table.span().start, key))
    }
    pub(super) fn key_error<T>(&self, table: &Spanned<T>, key: &str, what: impl Into<String>) -> ConfigError {
        ConfigError::new(self.key_place(table, key), what)
    }

    fn agents(&self, file: &File, models: &[Model], known: &[String]) -> Result<Vec<Agent>, ConfigError> {
        let mut seen = HashMap::new();
        let mut agents = Vec::new();
        for spanned in &file.agent {
            let agent = spanned.get_ref();
            self.unique("agents", &agent.name, &mut seen)?;
            let model = agent.model.as_ref().map_or(DEFAULT_MODEL, |m| m.get_ref().as_str());
            if !models.iter().any(|m| m.name == model) {
                let at = agent.model.as_ref().unwrap_or(&agent.name);
                let names: Vec<&str> = models.iter().map(|m| m.name.as_str()).collect();
                let name = agent.name.get_ref();
                return Err(match agent.model {
                    Some(_) => self
                        .error(at, format!("agent `{name}` names the model `{model}`, which is not there"))
                        .mend(suggest(model, &names)),
                    None => self
                        .error(at, format!("agent `{name}` names no model, and there is none called `{model}`"))
                        .mend(format!("add: model = \"..\"; there are: {}", names.join(", "))),
                });
            }
            for pattern in &agent.tools {
                self.pattern(agent.name.get_ref(), pattern, known)?;
            }
            let has_price = super::models::in_turn(models, model).iter().all(|m| m.price.is_some());
            let offered: Vec<&str> = known
                .iter()
                .map(String::as_str)
                .filter(|name| agent.tools.iter().any(|pattern| mcp::may_name(pattern.get_ref(), name)))
                .collect();
            let limits = budgets::limits(agent, has_price, &offered)
                .map_err(|wrong| self.error(&wrong.at, wrong.what).mend(wrong.mend))?;
            let at_least = |value: &Option<Spanned<u32>>, default: u32| match value {
                Some(at) => at_least_one(at.get_ref()).map(|()| *at.get_ref()).map_err(|what| self.error(at, what)),
                None => Ok(default),
            };
            agents.push(Agent {
                name: agent.name.get_ref().clone(),
                model: model.to_owned(),
                system: agent.system.clone(),
                tools: agent.tools.iter().map(|t| t.get_ref().clone()).collect(),
                disabled: policy::disabled(agent, known).map_err(|wrong| self.names_nothing(wrong))?,
                max_rounds: at_least(&agent.max_rounds, leasehold::limits::ROUNDS_DEFAULT)?,
                concurrency: at_least(&agent.concurrency, 16)?,
                require_second_approver: agent.require_second_approver,
                decision_deadline: agent.decision_deadline.and_then(|d| d.0),
                on_decision_expired: match agent.on_decision_expired {
                    file::OnExpired::Continue => OnExpiry::Continue,
                    file::OnExpired::DeadLetter => OnExpiry::DeadLetter,
                },
                approval_valid_for: agent.approval_valid_for.as_ref().map_or(Duration::from_secs(24 * 3600), |p| p.get_ref().0),
                limits,
                origin: Origin::File(self.place(spanned)),
            });
        }
        Ok(agents)
    }

    fn names_nothing(&self, wrong: policy::Wrong<'_>) -> ConfigError {
        self.error(wrong.at, wrong.what).mend(wrong.mend)
    }

    /// A pattern of an agent names at least one tool.
    fn pattern(&self, agent: &str, pattern: &Spanned<String>, known: &[String]) -> Result<(), ConfigError> {
        let text = pattern.get_ref().as_str();
        if known.iter().any(|name| mcp::may_name(text, name)) {
            return Ok(());
        }
        Err(self
            .error(pattern, format!("agent `{agent}` is offered `{text}`, and there is no such tool"))
            .mend(suggest(text, &known.iter().map(String::as_str).collect::<Vec<_>>())))
    }

    pub(super) fn unique(
        &self,
        what: &str,
        name: &Spanned<String>,
        seen: &mut HashMap<String, String>,
    ) -> Result<(), ConfigError> {
        if name.get_ref().trim().is_empty() {
            return Err(self.error(name, "a name must not be empty"));
        }
        match seen.insert(name.get_ref().clone(), self.place(name)) {
            None => Ok(()),
            Some(other) => Err(self
                .error(name, format!("two {what} are named `{}`; the other one is at {other}", name.get_ref()))
                .mend("rename one")),
        }
    }

    fn site(&self, file: &File, agents: &[Agent], store: &Path) -> Result<Option<Site>, ConfigError> {
        let mut approval = BTreeMap::new();
        if let Some(spanned) = &file.tool.site {
            let writes: Vec<&str> = SITE_TOOLS.iter().filter(|(_, write)| *write).map(|(name, _)| *name).collect();
            for (name, word) in &spanned.get_ref().approval {
                if !writes.contains(&name.get_ref().as_str()) {
                    let mut error = self.error(name, format!("`{}` is not a write of the bundled site", name.get_ref()));
                    error = match closest(name.get_ref(), writes.iter().copied()) {
                        Some(meant) => error.mend(format!("did you mean \"{meant}\"?")),
                        None => error.mend(format!("there are: {}", writes.join(", "))),
                    };
                    return Err(error);
                }
                let word = match word {
                    file::ApprovalWord::Required => Approval::Required,
                    file::ApprovalWord::None => Approval::None,
                };
                approval.insert(name.get_ref().clone(), word);
            }
        }
        let offered = agents.iter().flat_map(|a| &a.tools).any(|pattern| {
            SITE_TOOLS
                .iter()
                .any(|(name, _)| pattern.strip_suffix('*').map_or(pattern == name, |prefix| name.starts_with(prefix)))
        });
        let path = file.tool.site.as_ref().and_then(|s| s.get_ref().path.as_ref());
        Ok(match (&file.tool.site, path) {
            (Some(at), Some(path)) => {
                Some(Site { path: resolve(&self.base(), path.get_ref()), approval, origin: Origin::File(self.place(at)) })
            }
            (Some(at), None) => {
                Some(Site { path: store.with_file_name("site.db"), approval, origin: Origin::File(self.place(at)) })
            }
            (None, _) => offered.then(|| Site { path: store.with_file_name("site.db"), approval, origin: Origin::Default }),
        })
    }
}

/// Every tool that an agent can be offered.
fn known_tools(http: &[Http], mcp: &[Mcp]) -> Vec<String> {
    let site = SITE_TOOLS.iter().map(|(name, _)| (*name).to_owned());
    site.chain(http.iter().map(|h| h.tool.name.clone())).chain(mcp.iter().map(|s| format!("{}.*", s.config.name))).collect()
}

fn default_agent(http: &[Http], mcp: &[Mcp], models: &[Model]) -> Agent {
    // The file's only model is meant, whatever its name is.
    let model = match models {
        [one] => one.name.clone(),
        _ => DEFAULT_MODEL.into(),
    };
    Agent {
        name: DEFAULT_AGENT.into(),
        model,
        system: "You are a careful assistant. Use the tools you are offered; say plainly what you did and what you did not do."
            .into(),
        tools: std::iter::once("site.*".to_owned())
            .chain(http.iter().map(|h| h.tool.name.clone()))
            .chain(mcp.iter().map(|server| format!("{}.*", server.config.name)))
            .collect(),
        disabled: Vec::new(),
        max_rounds: leasehold::limits::ROUNDS_DEFAULT,
        concurrency: 16,
        require_second_approver: false,
        decision_deadline: None,
        on_decision_expired: OnExpiry::Continue,
        approval_valid_for: Duration::from_secs(24 * 3600),
        limits: Limits::default(),
        origin: Origin::Default,
    }
}

/// What stands where a variable's name belongs may be the secret itself: it is not repeated.
fn env_name(text: &str) -> Result<(), String> {
    if is_env_name(text) {
        Ok(())
    } else {
        Err("this is not the name of an environment variable\n  write the name of the variable, never the secret".into())
    }
}

pub(super) fn is_env_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// What `sqlite:PATH` or `postgres://...` names. What is wrong with a URL never repeats it: it may hold a password.
fn store_at(url: &str, base: &Path) -> Result<StoreAt, (String, String)> {
    if url.starts_with("postgres:") || url.starts_with("postgresql:") {
        let mend = "write: url = \"postgres://user@host:5432/database\", with the password in PGPASSWORD".to_owned();
        let place = PostgresStore::place(url).map_err(|e| (e.to_string(), mend))?;
        return Ok(StoreAt::Postgres { url: url.to_owned(), place });
    }
    let mend = "write: url = \"sqlite:leasehold.db\" or url = \"postgres://user@host:5432/database\"".to_owned();
    match url.strip_prefix("sqlite:") {
        Some(path) => {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.contains('?') {
                return Err(("the store's URL has parameters (`?`), and none are known".into(), mend));
            }
            if path.starts_with(':') {
                return Err(("the store is a file; one in memory would not survive the process".into(), mend));
            }
            if path.is_empty() {
                return Err(("the store's URL names no file".into(), mend));
            }
            Ok(StoreAt::Sqlite(resolve(base, path)))
        }
        None => Err(("the store's URL does not begin with `sqlite:` or `postgres:`".into(), mend)),
    }
}
