//! What is in effect, and where each value came from: a flag, the environment, the file or the default, in that order.

use super::{
    diagnostic::{ConfigError, Source, Stamp},
    file::{self, Period, parse_period},
    server::Server,
};
use crate::webhook::Event;
use leasehold::agent::tool::mcp::McpConfig;
use leasehold::agent::{
    model::limited::ModelLimits,
    policy::{DataClass, ToolPolicy},
    registry::{EffectBudget, Price},
    tool::{Approval, fetch::FetchConfig, http::HttpToolConfig, sql::SqlConfig},
};
use leasehold::run::OnExpiry;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};
use toml::Spanned;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody said anything.
    Default,
    /// `leasehold.toml:12`.
    File(String),
    /// The environment variable.
    Env(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(place) => f.write_str(place),
            Self::Env(name) => write!(f, "environment {name}"),
        }
    }
}

/// A value and where it came from.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
}

/// Reads values in their order of precedence.
pub(crate) struct Reader<'a> {
    pub(crate) source: Option<&'a Source>,
    pub(crate) env: &'a dyn Fn(&str) -> Option<String>,
}

impl Reader<'_> {
    /// The environment's word over the file's over the default. `check` says what is wrong with a value, if anything.
    pub(crate) fn setting<T: Clone>(
        &self,
        env_name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
        check: impl Fn(&T) -> Result<(), String>,
        in_file: Option<&Spanned<T>>,
        default: T,
    ) -> Result<Setting<T>, ConfigError> {
        if let Some(text) = (self.env)(env_name) {
            let wrong = |what| ConfigError::new(format!("environment variable {env_name}"), what);
            let value = parse(&text).map_err(wrong)?;
            check(&value).map_err(wrong)?;
            return Ok(Setting { value, origin: Origin::Env(env_name.to_owned()) });
        }
        match (in_file, self.source) {
            (Some(spanned), Some(source)) => {
                check(spanned.get_ref()).map_err(|what| source.error(&spanned.span(), what))?;
                Ok(Setting { value: spanned.get_ref().clone(), origin: Origin::File(source.place(spanned.span().start)) })
            }
            _ => Ok(Setting { value: default, origin: Origin::Default }),
        }
    }
}

/// Reads anything that reads itself.
pub(crate) fn plain<T: std::str::FromStr>(what: &'static str) -> impl Fn(&str) -> Result<T, String> {
    move |text| text.trim().parse().map_err(|_| format!("`{text}` is not {what}"))
}

/// Nothing is wrong with any value.
pub(crate) fn any<T>(_: &T) -> Result<(), String> {
    Ok(())
}

/// Not nothing.
pub(crate) fn some_time(period: &Period) -> Result<(), String> {
    if period.0.is_zero() { Err("must be longer than zero".into()) } else { Ok(()) }
}

/// At least one.
pub(crate) fn at_least_one(n: &u32) -> Result<(), String> {
    if *n == 0 { Err("must be at least 1".into()) } else { Ok(()) }
}

/// The lease's settings.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) ttl: Setting<Period>,
    pub(crate) sweep_interval: Setting<Period>,
    pub(crate) max_requeues: Setting<u32>,
    pub(crate) backoff_initial: Setting<Period>,
    pub(crate) backoff_factor: Setting<f64>,
    pub(crate) backoff_max: Setting<Period>,
    pub(crate) backoff_jitter: Setting<bool>,
}

impl Lease {
    pub(crate) fn read(reader: &Reader<'_>, lease: &file::Lease) -> Result<Self, ConfigError> {
        let seconds = |n| Period(Duration::from_secs(n));
        let factor = |f: &f64| {
            if f.is_finite() && *f >= 1.0 { Ok(()) } else { Err("must be a number of at least 1".to_owned()) }
        };
        let back = &lease.backoff;
        Ok(Self {
            ttl: reader.setting("LEASEHOLD_LEASE_TTL", parse_period, ttl, lease.ttl.as_ref(), seconds(60))?,
            sweep_interval: reader.setting(
                "LEASEHOLD_LEASE_SWEEP_INTERVAL",
                parse_period,
                some_time,
                lease.sweep_interval.as_ref(),
                seconds(5),
            )?,
            max_requeues: reader.setting(
                "LEASEHOLD_LEASE_MAX_REQUEUES",
                plain("a whole number that is not negative"),
                any,
                lease.max_requeues.as_ref(),
                3,
            )?,
            backoff_initial: reader.setting(
                "LEASEHOLD_LEASE_BACKOFF_INITIAL",
                parse_period,
                any,
                back.initial.as_ref(),
                seconds(5),
            )?,
            backoff_factor: reader.setting(
                "LEASEHOLD_LEASE_BACKOFF_FACTOR",
                plain("a number"),
                factor,
                back.factor.as_ref(),
                2.0,
            )?,
            backoff_max: reader.setting("LEASEHOLD_LEASE_BACKOFF_MAX", parse_period, any, back.max.as_ref(), seconds(600))?,
            backoff_jitter: reader.setting(
                "LEASEHOLD_LEASE_BACKOFF_JITTER",
                plain("true or false"),
                any,
                back.jitter.as_ref(),
                true,
            )?,
        })
    }
}

/// Long enough to be renewed in time.
fn ttl(period: &Period) -> Result<(), String> {
    if period.0 < Duration::from_millis(300) { Err("a lease must last at least 300ms".into()) } else { Ok(()) }
}

/// A model.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) kind: ModelKind,
    pub(crate) price: Option<Price>,
    /// Tokens of a request and its reply.
    pub(crate) window: Option<u64>,
    /// How sensitive data may be that its provider sees.
    pub(crate) zone: DataClass,
    /// As written: names of models that are asked when it fails.
    pub(crate) fallback: Vec<String>,
    pub(crate) limits: ModelLimits,
    pub(crate) origin: Origin,
}

/// Who answers.
#[derive(Clone, Debug)]
pub(crate) enum ModelKind {
    /// A fixed script; none: the built-in one.
    Scripted {
        /// Its file.
        script: Option<PathBuf>,
    },
    /// A provider.
    Provider {
        /// Which.
        provider: String,
        /// The provider's name of the model.
        model: String,
        /// Another address than the provider's own.
        base_url: Option<String>,
        /// The environment variable with the key.
        api_key_env: Option<String>,
        /// How long one reply may take.
        timeout: Duration,
        /// The text as it comes.
        stream: bool,
    },
}

/// An agent.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) name: String,
    pub(crate) model: String,
    pub(crate) system: String,
    pub(crate) tools: Vec<String>,
    pub(crate) disabled: Vec<String>,
    pub(crate) max_rounds: u32,
    pub(crate) concurrency: u32,
    pub(crate) require_second_approver: bool,
    pub(crate) decision_deadline: Option<Duration>,
    pub(crate) on_decision_expired: OnExpiry,
    pub(crate) approval_valid_for: Duration,
    pub(crate) limits: Limits,
    pub(crate) origin: Origin,
}

/// What one run, and what all of an agent's runs together, may spend and do; none: no limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Limits {
    /// Tokens of one run.
    pub(crate) max_tokens: Option<u64>,
    /// Billionths of a US dollar of one run.
    pub(crate) max_cost_nano_usd: Option<u64>,
    /// Writes in a window of time.
    pub(crate) effect_budgets: Vec<EffectBudget>,
}

/// Where the operator is told of runs.
#[derive(Clone)]
pub(crate) struct Webhook {
    /// May hold a secret.
    pub(crate) url: String,
    /// The variable with the secret that signs.
    pub(crate) secret_env: String,
    /// Of what.
    pub(crate) events: BTreeSet<Event>,
    /// Where the pages of runs are; none: no link.
    pub(crate) link_base: Option<String>,
    /// In plain text to other machines too.
    pub(crate) insecure_http: bool,
    pub(crate) origin: Origin,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the webhook of {}", self.origin)
    }
}

/// Where the keys are that seal what lies in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyringAt {
    /// Nowhere: it lies open.
    Nowhere,
    /// In a file.
    File(PathBuf),
    /// In the environment variable `LEASEHOLD_KEYRING`. What it says is not kept here.
    Environment,
}

/// The bundled site: where it is, and what the operator said of its writes.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) path: PathBuf,
    pub(crate) approval: BTreeMap<String, Approval>,
    pub(crate) origin: Origin,
}

/// Files within one directory, and what the operator said of its writes.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) root: PathBuf,
    pub(crate) write: bool,
    pub(crate) approval: BTreeMap<String, Approval>,
    pub(crate) origin: Origin,
}

/// What may be fetched, and where that stands.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub(crate) config: FetchConfig,
    pub(crate) origin: Origin,
}

/// A database that may be queried, and where that stands.
#[derive(Clone, Debug)]
pub(crate) struct Sql {
    pub(crate) config: SqlConfig,
    /// What a relative path is relative to.
    pub(crate) base: PathBuf,
    pub(crate) place: String,
    /// Where its URL stands, or the name of its variable.
    pub(crate) url_place: String,
}

/// An HTTP tool and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    /// Where its keys stand.
    pub(crate) places: BTreeMap<String, String>,
    pub(crate) tool: HttpToolConfig,
    pub(crate) place: String,
}

/// An MCP server and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Mcp {
    pub(crate) config: McpConfig,
    /// Where its keys stand.
    pub(crate) places: BTreeMap<String, String>,
    pub(crate) place: String,
}

impl Mcp {
    /// Where a key stands, such as `effects.write_file`.
    pub(crate) fn at(&self, key: &str) -> &str {
        let head = key.split('.').next().unwrap_or(key);
        self.places.get(head).unwrap_or(&self.place)
    }
}

/// Where a store is.
#[derive(Clone)]
pub(crate) enum StoreAt {
    /// A file of this machine.
    Sqlite(PathBuf),
    /// A database; the URL may hold a password, the place does not.
    Postgres { url: String, place: String },
}

impl StoreAt {
    /// As a URL that may be shown.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Postgres { place, .. } => place.clone(),
        }
    }
}

impl std::fmt::Debug for StoreAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown())
    }
}

/// What is in effect.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    /// Of that file before it was read.
    pub(crate) stamp: Option<Stamp>,
    /// Where the runs are.
    pub(crate) store: Setting<StoreAt>,
    pub(crate) listen: Setting<SocketAddr>,
    pub(crate) execute: Setting<bool>,
    pub(crate) server: Server,
    pub(crate) concurrency: Setting<u32>,
    pub(crate) lease: Lease,
    pub(crate) admin_token_env: Setting<String>,
    /// What a command shows that opens the store.
    pub(crate) local: Setting<file::Local>,
    pub(crate) keyring: Setting<KeyringAt>,
    pub(crate) webhook: Option<Webhook>,
    /// The user's data directory, for what no file places.
    pub(crate) data_dir: PathBuf,
    pub(crate) models: Vec<Model>,
    pub(crate) agents: Vec<Agent>,
    pub(crate) http: Vec<Http>,
    pub(crate) mcp: Vec<Mcp>,
    pub(crate) policy: ToolPolicy,
    pub(crate) files: Option<Files>,
    pub(crate) fetch: Option<Fetch>,
    pub(crate) sql: Vec<Sql>,
    /// None where no agent is offered it and the file does not name it.
    pub(crate) site: Option<Site>,
}

/// A path of a configuration: relative to its file.
pub(crate) fn resolve(base: &Path, path: &str) -> PathBuf {
    base.join(path)
}
