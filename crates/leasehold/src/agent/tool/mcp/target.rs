//! Where a server is: checked configuration with the values of `env` and `headers` read.

use super::{
    super::http::{self, HeaderSource, send::NoLinkLocal},
    config::{McpConfig, McpConfigError},
    mask::Mask,
    oauth::{Authorization, LoginOf, Logins},
};
use crate::{limits::NAME_BYTES_MAX, run::canonical_hash};
use reqwest::{Url, header::HeaderMap, redirect};
use secrecy::SecretString;
use std::{fmt, sync::Arc, time::Duration};

/// Headers that the protocol writes itself.
const PROTOCOL_HEADERS: [&str; 7] =
    ["accept", "content-type", "last-event-id", "mcp-method", "mcp-name", "mcp-protocol-version", "mcp-session-id"];
/// Names that tools of this program have.
const TAKEN: [&str; 2] = ["leasehold", "site"];

/// How a server is reached.
pub(super) enum Target {
    /// A process of ours.
    Process(Command),
    /// HTTP.
    Http {
        /// Where.
        url: Url,
        /// With the headers.
        client: reqwest::Client,
        /// What is shown beside them.
        authorization: Option<Arc<Authorization>>,
    },
}

impl Target {
    /// What is shown beside the headers.
    pub(super) fn authorization(&self) -> Option<&Arc<Authorization>> {
        match self {
            Self::Http { authorization, .. } => authorization.as_ref(),
            Self::Process(_) => None,
        }
    }
}

/// What is started.
pub(super) struct Command {
    pub(super) program: String,
    pub(super) arguments: Vec<String>,
    pub(super) env: Vec<(String, SecretString)>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(command) => write!(f, "process {}", command.program),
            Self::Http { url, .. } => f.write_str(&shown_url(url.as_str())),
        }
    }
}

/// A checked configuration.
pub(super) struct Resolved {
    pub(super) target: Target,
    /// For the identity of the tools, without secrets.
    pub(super) endpoint: String,
    pub(super) mask: Mask,
}

/// Scheme, host, port and path; a query only as that it is there.
pub(super) fn shown_url(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "(no URL)".into() };
    let query = url.query().map(|query| format!("?#{:.8}", canonical_hash(&query))).unwrap_or_default();
    url.set_query(None);
    url.set_fragment(None);
    // Fails only for URLs that have no host, which have no user either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    format!("{url}{query}")
}

pub(super) fn resolve(
    config: &McpConfig,
    timeout: Duration,
    env: &impl Fn(&str) -> Option<String>,
    logins: Option<Arc<dyn Logins>>,
) -> Result<Resolved, McpConfigError> {
    let wrong = |key: &str, why: String| McpConfigError { server: config.name.clone(), key: key.to_owned(), why };
    let is_plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if config.name.is_empty() || config.name.len() > NAME_BYTES_MAX || !is_plain(&config.name) {
        return Err(wrong("name", format!("must be 1 to {NAME_BYTES_MAX} of letters, digits, `_` and `-`")));
    }
    if TAKEN.contains(&config.name.as_str()) {
        return Err(wrong("name", format!("`{}` is a source of this program itself: choose another name", config.name)));
    }
    config.check()?;
    let mut mask = Mask::default();
    let (target, endpoint) = match (&config.command, &config.url) {
        (Some(_), Some(_)) => return Err(wrong("url", "there is a `command` too: remove one of the two".into())),
        (None, None) => return Err(wrong("command", "is missing: write `command = [..]` or `url = \"..\"`".into())),
        (Some(command), None) => {
            if !config.headers.is_empty() {
                return Err(wrong("headers", "belong to a `url`; for a `command` write `env`".into()));
            }
            let Some((program, arguments)) = command.split_first().filter(|(program, _)| !program.is_empty()) else {
                return Err(wrong("command", "is empty: write the program and its arguments".into()));
            };
            let env = variables(config, env, &mut mask).map_err(|(name, why)| wrong(&format!("env.{name}"), why))?;
            let names: Vec<&String> = config.env.keys().collect();
            let endpoint = format!("{program} #{:.16}", canonical_hash(&(command, names)));
            (Target::Process(Command { program: program.clone(), arguments: arguments.to_vec(), env }), endpoint)
        }
        (None, Some(url)) => {
            if !config.env.is_empty() {
                return Err(wrong("env", "belongs to a `command`; for a `url` write `headers`".into()));
            }
            let url = checked_url(url).map_err(|why| wrong("url", why))?;
            let headers =
                http::headers(&config.headers, env).map_err(|(header, why)| wrong(&format!("headers.{header}"), why))?;
            if let Some(name) = headers.keys().find(|name| PROTOCOL_HEADERS.contains(&name.as_str())) {
                return Err(wrong(&format!("headers.{name}"), "is written by the protocol itself: remove it".into()));
            }
            for value in headers.values() {
                mask.add(&String::from_utf8_lossy(value.as_bytes()));
            }
            let endpoint = shown_url(url.as_str());
            let client = client(headers, timeout).map_err(|why| wrong("url", why))?;
            let authorization = match &config.oauth {
                None => None,
                Some(oauth) => {
                    let secret = oauth.client_secret_env.as_ref().map(|name| {
                        let value = env(name).filter(|value| !value.is_empty());
                        value.ok_or_else(|| wrong("oauth.client_secret_env", format!("environment variable {name} is not set")))
                    });
                    let secret = secret.transpose()?;
                    secret.iter().for_each(|secret| mask.add(secret));
                    let of = LoginOf { server: config.name.clone(), endpoint: endpoint.clone() };
                    let as_client = (oauth.clone(), secret.map(SecretString::from));
                    let there = (url.clone(), client.clone());
                    Some(Arc::new(Authorization::new(of, there, as_client, mask.clone(), logins)))
                }
            };
            (Target::Http { url, client, authorization }, endpoint)
        }
    };
    Ok(Resolved { target, endpoint, mask })
}

fn checked_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|e| format!("is no URL ({e})"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("must begin with http:// or https:// and name a host".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("must not contain a user or password; write `headers`".into());
    }
    Ok(url)
}

fn variables(
    config: &McpConfig,
    env: &impl Fn(&str) -> Option<String>,
    mask: &mut Mask,
) -> Result<Vec<(String, SecretString)>, (String, String)> {
    let one = |(name, source): (&String, &HeaderSource)| {
        if !http::is_variable_name(name) {
            return Err((name.clone(), "is not the name of an environment variable".to_owned()));
        }
        let value = http::value_of(source, env).map_err(|why| (name.clone(), why))?;
        if value.contains('\0') {
            return Err((name.clone(), "its value contains a NUL".to_owned()));
        }
        mask.add(&value);
        Ok((name.clone(), SecretString::from(value)))
    };
    config.env.iter().map(one).collect()
}

fn client(headers: HeaderMap, timeout: Duration) -> Result<reqwest::Client, String> {
    reqwest::Client::builder()
        .default_headers(headers)
        // Nothing that could put a second request on the wire or send it elsewhere.
        .retry(reqwest::retry::never())
        .redirect(redirect::Policy::none())
        .pool_max_idle_per_host(0)
        .http1_only()
        .no_proxy()
        .referer(false)
        .dns_resolver(NoLinkLocal)
        .connector_layer(super::super::last_check::LastCheck)
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(http::send::CONNECT_TIMEOUT_MAX.min(timeout.mul_f64(0.75)))
        .build()
        .map_err(|e| format!("no HTTP client: {e}"))
}
