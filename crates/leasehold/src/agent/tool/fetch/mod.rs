//! `fetch.get`: a GET of what the operator's list allows, as a tool.
//!
//! Guarantees: a name is resolved here, once, every address it has is judged, and the connection goes to one of those. Each redirect
//! is judged as the first URL was, and never leads from https to http. Nothing goes out but the URL: no cookie, no header of the
//! model's, no credentials, no proxy of the environment. Time and bytes are bounded over all of it, and nothing is unpacked.

pub(super) mod address;
mod allow;
#[cfg(test)]
mod tests;

use super::{
    Arguments, ReadAnswer, ReadTool, Tool, ToolSpec,
    http::{
        RESPONSE_BYTES_DEFAULT, TIMEOUT_DEFAULT,
        send::{CONNECT_TIMEOUT_MAX, in_words},
        units,
    },
};
use crate::limits::{FETCH_REDIRECTS_MAX, FETCH_URL_BYTES_MAX};
use address::Networks;
use allow::Allowed;
use async_trait::async_trait;
use encoding_rs::{Encoding, UTF_8};
use futures::future::BoxFuture;
use reqwest::{
    Client, Response, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, LOCATION},
    redirect,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::{fmt, io, net::SocketAddr, sync::Arc, time::Duration};

/// `[tool.fetch]` as the operator writes it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchConfig {
    /// Hosts: `docs.example.com`, `*.example.com`, with a port, the beginning of a path, and `http://` where they differ.
    pub allow: Vec<String>,
    /// Networks beyond the public internet that may be gone to.
    #[serde(default)]
    pub allow_networks: Vec<String>,
    /// For the whole call, redirects included; left out: 30 s.
    #[serde(default, deserialize_with = "units::optional_duration")]
    pub timeout: Option<Duration>,
    /// Bytes of the body that are read; left out: 1 MiB.
    #[serde(default, deserialize_with = "units::optional_size")]
    pub max_response: Option<usize>,
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
#[error("`{key}`: {why}")]
pub struct FetchError {
    /// The key.
    pub key: &'static str,
    /// What is wrong, and the mend.
    pub why: String,
}

/// Finds the addresses of a name.
type Lookup = Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// The tool.
pub struct Fetch {
    spec: ToolSpec,
    allowed: Allowed,
    networks: Arc<Networks>,
    client: Client,
    max_response: usize,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fetches {}", self.allowed)
    }
}

impl Fetch {
    /// The tool, as it is registered.
    ///
    /// # Errors
    /// The key that is wrong and the mend.
    pub fn tool(config: &FetchConfig) -> Result<Tool, FetchError> {
        let lookup: Lookup =
            Arc::new(|name| Box::pin(async move { tokio::net::lookup_host((name.as_str(), 0)).await.map(Iterator::collect) }));
        Self::new(config, lookup).map(|tool| Tool::Read(Arc::new(tool)))
    }

    fn new(config: &FetchConfig, lookup: Lookup) -> Result<Self, FetchError> {
        let wrong = |key: &'static str| move |why| FetchError { key, why };
        let allowed = Allowed::parse(&config.allow).map_err(wrong("allow"))?;
        let networks = Arc::new(Networks::parse(&config.allow_networks).map_err(wrong("allow_networks"))?);
        let timeout = config.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let client = Client::builder()
            .retry(reqwest::retry::never())
            .redirect(redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .http1_only()
            .no_proxy()
            .referer(false)
            .no_gzip()
            .no_brotli()
            .no_deflate()
            .no_zstd()
            .dns_resolver(Judged { lookup, networks: networks.clone() })
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT_MAX.min(timeout))
            .build()
            .map_err(|e| FetchError { key: "allow", why: format!("no HTTP client: {e}") })?;
        let spec = ToolSpec {
            name: "fetch.get".into(),
            description: format!(
                "Get a web page or document by its URL, as text. https unless an entry says http. What may be fetched: {allowed}"
            ),
            parameters: json!({
                "type": "object",
                "properties": { "url": { "type": "string", "minLength": 1, "maxLength": FETCH_URL_BYTES_MAX } },
                "required": ["url"],
                "additionalProperties": false,
            }),
            input: None,
            source: "fetch".into(),
            endpoint: format!("GET {allowed}"),
            timeout,
        };
        Ok(Self { spec, allowed, networks, client, max_response: config.max_response.unwrap_or(RESPONSE_BYTES_DEFAULT) })
    }

    async fn get(&self, text: &str) -> Result<ReadAnswer, String> {
        if text.len() > FETCH_URL_BYTES_MAX {
            return Err(format!("the URL is longer than {FETCH_URL_BYTES_MAX} bytes"));
        }
        let mut url = Url::parse(text).map_err(|e| format!("this is not a URL ({e}); write it whole, as https://host/path"))?;
        url.set_fragment(None);
        self.check(&url)?;
        for _ in 0..=FETCH_REDIRECTS_MAX {
            let response = self.client.get(url.clone()).send().await.map_err(|e| format!("no answer: {}", in_words(e)))?;
            match redirected(&url, &response) {
                None => return self.answer(&url, response).await,
                Some(next) => {
                    let next = next.map_err(|why| format!("it was redirected, and {why}"))?;
                    self.check(&next).map_err(|why| format!("it was redirected, and {why}"))?;
                    url = next;
                }
            }
        }
        Err(format!("it was redirected more than {FETCH_REDIRECTS_MAX} times"))
    }

    /// Everything that is known before a name is resolved. An address in the URL is not resolved by anybody.
    fn check(&self, url: &Url) -> Result<(), String> {
        self.allowed.check(url)?;
        let host = url.host_str().unwrap_or_default();
        match host.trim_start_matches('[').trim_end_matches(']').parse() {
            Ok(address) => self.networks.check(address).map_err(|refused| refused.to_string()),
            Err(_) => Ok(()),
        }
    }

    async fn answer(&self, url: &Url, mut response: Response) -> Result<ReadAnswer, String> {
        let status = response.status();
        let said = |name: HeaderName| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let content_type = said(CONTENT_TYPE);
        let encoding = said(CONTENT_ENCODING).filter(|encoding| !encoding.eq_ignore_ascii_case("identity"));
        let (body, truncated) = match (charset(content_type.as_deref()), encoding) {
            (_, Some(encoding)) => (format!("[not shown: it is packed ({encoding}), which was not asked for]"), false),
            (None, None) => {
                let kind = content_type.as_deref().unwrap_or("of no content type");
                let bytes = response.content_length().map_or("of unknown length".into(), |bytes| format!("{bytes} bytes"));
                (format!("[not shown: no text but {kind}, {bytes}]"), false)
            }
            (Some(charset), None) => {
                let (bytes, truncated) = self.read(&mut response).await?;
                (decoded(charset, &bytes, truncated), truncated)
            }
        };
        let result = json!({
            "url": url.as_str(),
            "status": status.as_u16(),
            "content_type": content_type,
            "body": body,
            "truncated": truncated,
        });
        Ok(ReadAnswer { is_error: !status.is_success(), ..ReadAnswer::ok(result) })
    }

    /// As much as is wanted, and whether there was more.
    async fn read(&self, response: &mut Response) -> Result<(Vec<u8>, bool), String> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| format!("its answer was cut: {}", in_words(e)))? {
            let room = self.max_response - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                return Ok((bytes, true));
            }
        }
        Ok((bytes, false))
    }
}

#[async_trait]
impl ReadTool for Fetch {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        // The schema has asked for it.
        let url = arguments.get("url").and_then(Value::as_str).unwrap_or_default();
        let timeout = self.spec.timeout;
        let answer = crate::agent::patience::within(timeout, self.get(url)).await;
        match answer.unwrap_or_else(|| Err(format!("no whole answer within {timeout:?}"))) {
            Ok(answer) => answer,
            Err(why) => ReadAnswer::error(why),
        }
    }
}

/// Where an answer sends on to; none: it is the answer.
fn redirected(from: &Url, response: &Response) -> Option<Result<Url, String>> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get(LOCATION)?;
    Some(location.to_str().map_err(|_| "where to is not readable".to_owned()).and_then(|location| next(from, location)))
}

fn next(from: &Url, location: &str) -> Result<Url, String> {
    if location.len() > FETCH_URL_BYTES_MAX {
        return Err(format!("where to is longer than {FETCH_URL_BYTES_MAX} bytes"));
    }
    let mut to = from.join(location).map_err(|e| format!("where to is not a URL ({e})"))?;
    to.set_fragment(None);
    match (from.scheme(), to.scheme()) {
        ("https", "http") => Err("from https to http is not gone".into()),
        _ => Ok(to),
    }
}

/// How text of this type is written; none: it is no text.
fn charset(content_type: Option<&str>) -> Option<&'static Encoding> {
    let lower = content_type?.to_ascii_lowercase();
    let (kind, parameters) = lower.split_once(';').unwrap_or((&lower, ""));
    let kind = kind.trim();
    let is_text = kind.starts_with("text/")
        || ["application/json", "application/xml"].contains(&kind)
        || kind.ends_with("+json")
        || kind.ends_with("+xml");
    let named = parameters.split(';').find_map(|parameter| parameter.trim().strip_prefix("charset="));
    let label = named.map_or("utf-8", |label| label.trim_matches('"'));
    // One that is not known is read as far as it goes.
    is_text.then(|| Encoding::for_label(label.as_bytes()).unwrap_or(UTF_8))
}

/// The text; where it was cut, without the half of a character at its end.
fn decoded(encoding: &'static Encoding, bytes: &[u8], is_cut: bool) -> String {
    let mut decoder = encoding.new_decoder();
    let mut text = String::with_capacity(decoder.max_utf8_buffer_length(bytes.len()).unwrap_or(bytes.len()));
    let _all_fits = decoder.decode_to_string(bytes, &mut text, !is_cut);
    text
}

/// The resolver: the addresses that were judged are those that are connected to.
struct Judged {
    lookup: Lookup,
    networks: Arc<Networks>,
}

impl Resolve for Judged {
    fn resolve(&self, name: Name) -> Resolving {
        let (found, networks) = ((self.lookup)(name.as_str().to_owned()), self.networks.clone());
        Box::pin(async move {
            let found = found.await?;
            // One that is refused refuses the name: which of its addresses is taken is nobody's choice.
            found.iter().try_for_each(|address| networks.check(address.ip()))?;
            let addresses: Addrs = Box::new(found.into_iter());
            Ok(addresses)
        })
    }
}
