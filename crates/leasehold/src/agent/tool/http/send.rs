//! One request on the wire, and the classification of how it failed. The only place that touches the HTTP client.

use super::{
    super::{
        Arguments,
        fetch::address::reached,
        last_check::{ClosedMeanwhile, LastCheck, is_closed_meanwhile},
    },
    BodyKind,
    answer::Body,
    template::{UrlTemplate, scalar},
};
use reqwest::{
    Client, Method, Request, Response, StatusCode, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap},
    redirect,
};
use serde_json::Value;
use std::{
    error::Error as _,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

/// Longest wait for a connection; a third of the default lease is twice as long.
pub(in super::super) const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(10);
const READ_REDIRECTS_MAX: usize = 5;

/// Sends the requests of one tool.
#[derive(Debug)]
pub(super) struct Caller {
    client: Client,
    method: Method,
    url: UrlTemplate,
    headers: HeaderMap,
    body: BodyKind,
    timeout: Duration,
    max_response: usize,
}

/// A reply with its status; the body may be cut.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Body,
}

/// No reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// There never was a connection, so no byte of the request left.
    NoConnection(String),
    /// The right to write ended while the connection was made; no byte left either.
    NotHeld(String),
    /// It ended some other way, and the request may have arrived.
    Broken(String),
    /// Nothing within the timeout.
    TimedOut(Duration),
}

impl Failure {
    pub(super) fn why(&self) -> String {
        match self {
            Self::NoConnection(why) => format!("no connection, nothing was sent: {why}"),
            Self::NotHeld(why) => why.clone(),
            Self::Broken(why) => format!("the connection ended without a usable answer: {why}"),
            Self::TimedOut(after) => format!("no whole answer within {after:?}"),
        }
    }
}

impl Caller {
    pub(super) fn new(
        method: Method,
        url: UrlTemplate,
        headers: HeaderMap,
        body: BodyKind,
        timeout: Duration,
        max_response: usize,
        is_read: bool,
    ) -> Result<Self, String> {
        let may_follow = is_read && matches!(method, Method::GET | Method::HEAD);
        let client = Client::builder()
            // Nothing that could put a second request on the wire or change the first.
            .retry(reqwest::retry::never())
            .redirect(if may_follow { same_origin() } else { redirect::Policy::none() })
            .pool_max_idle_per_host(0)
            .http1_only()
            .no_proxy()
            .referer(false)
            .no_gzip()
            .no_brotli()
            .no_deflate()
            .no_zstd()
            .dns_resolver(NoLinkLocal)
            .connector_layer(LastCheck)
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT_MAX.min(timeout.mul_f64(0.75)))
            .build()
            .map_err(|e| format!("no HTTP client: {e}"))?;
        Ok(Self { client, method, url, headers, body, timeout, max_response })
    }

    /// The request of one call; changes nothing.
    pub(super) fn request(&self, arguments: &Arguments, own: &HeaderMap) -> Result<Request, String> {
        let mut url = self.url.fill(arguments)?;
        let placeholders: Vec<&str> = self.url.placeholders().collect();
        let rest = arguments.iter().filter(|(name, _)| !placeholders.contains(&name.as_str()));
        let has_body = !matches!(self.method, Method::GET | Method::HEAD | Method::DELETE);
        let mut headers = self.headers.clone();
        let mut body = None;
        if !has_body {
            append_query(&mut url, rest);
        } else {
            let (text, content_type) = match self.body {
                BodyKind::Json => {
                    let object: Arguments = rest.map(|(name, value)| (name.clone(), value.clone())).collect();
                    (Value::Object(object).to_string(), "application/json")
                }
                BodyKind::Form => {
                    // A scratch URL: its query is exactly the form encoding.
                    let mut form = url.clone();
                    form.set_query(None);
                    append_query(&mut form, rest);
                    (form.query().unwrap_or_default().to_owned(), "application/x-www-form-urlencoded")
                }
            };
            headers.entry(CONTENT_TYPE).or_insert(reqwest::header::HeaderValue::from_static(content_type));
            body = Some(text);
        }
        headers.extend(own.clone());
        let mut request = Request::new(self.method.clone(), url);
        *request.headers_mut() = headers;
        *request.body_mut() = body.map(Into::into);
        Ok(request)
    }

    /// Sends it, once, within the timeout.
    pub(super) async fn send(&self, request: Request) -> Result<Reply, Failure> {
        let answer = crate::agent::patience::within(self.timeout, self.exchange(request)).await;
        answer.unwrap_or(Err(Failure::TimedOut(self.timeout)))
    }

    async fn exchange(&self, request: Request) -> Result<Reply, Failure> {
        let mut response = self.client.execute(request).await.map_err(|e| {
            // `is_connect` is name resolution, TCP and TLS; a reset after that is an error of the request.
            if is_closed_meanwhile(&e) {
                Failure::NotHeld(ClosedMeanwhile.to_string())
            } else if e.is_connect() {
                Failure::NoConnection(in_words(e))
            } else {
                Failure::Broken(in_words(e))
            }
        })?;
        let status = response.status();
        let is_json = is_json(&response);
        let is_encoded =
            response.headers().get(CONTENT_ENCODING).is_some_and(|v| !v.as_bytes().eq_ignore_ascii_case(b"identity"));
        let mut body = Body { bytes: Vec::new(), is_oversized: false, cut: None, is_json, is_encoded };
        loop {
            match response.chunk().await {
                Ok(None) => break,
                Ok(Some(chunk)) => {
                    let room = self.max_response - body.bytes.len();
                    body.bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
                    if chunk.len() > room {
                        body.is_oversized = true;
                        break;
                    }
                }
                Err(e) => {
                    body.cut = Some(in_words(e));
                    break;
                }
            }
        }
        Ok(Reply { status, body })
    }
}

fn append_query<'a>(url: &mut Url, arguments: impl Iterator<Item = (&'a String, &'a Value)>) {
    let mut pairs = url.query_pairs_mut();
    let mut any = false;
    for (name, value) in arguments {
        match value {
            Value::Null => continue,
            // A list of plain values is the name again for each.
            Value::Array(items) if items.iter().all(|item| scalar(item).is_some()) => {
                for item in items {
                    pairs.append_pair(name, &scalar(item).unwrap_or_default());
                    any = true;
                }
            }
            value => {
                pairs.append_pair(name, &scalar(value).unwrap_or_else(|| value.to_string()));
                any = true;
            }
        }
    }
    drop(pairs);
    if !any && url.query() == Some("") {
        url.set_query(None);
    }
}

fn is_json(response: &Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence.ends_with("+json")
}

/// The chain of causes without the URL, which may hold arguments.
pub(in super::super) fn in_words(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

/// A read may be sent elsewhere on the same scheme, host and port, and nowhere else.
fn same_origin() -> redirect::Policy {
    redirect::Policy::custom(|attempt| {
        let first = attempt.previous().first();
        if attempt.previous().len() > READ_REDIRECTS_MAX {
            attempt.error("too many redirects")
        } else if first.is_some_and(|first| first.origin() == attempt.url().origin()) {
            attempt.follow()
        } else {
            attempt.stop()
        }
    })
}

/// A name never resolves to a link-local address: cloud metadata services live there. An address that the operator wrote
/// into the URL is not resolved and therefore not refused.
#[derive(Debug)]
pub(in super::super) struct NoLinkLocal;

impl Resolve for NoLinkLocal {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed: Vec<SocketAddr> = found.into_iter().filter(|address| !is_link_local(address.ip())).collect();
            if allowed.is_empty() {
                return Err("the name resolves to link-local addresses only, which are refused".into());
            }
            let addresses: Addrs = Box::new(allowed.into_iter());
            Ok(addresses)
        })
    }
}

fn is_link_local(address: IpAddr) -> bool {
    match reached(address) {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_addresses_are_link_local_in_either_spelling() {
        for text in ["169.254.169.254", "fe80::1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"] {
            assert!(is_link_local(text.parse().unwrap()), "{text}");
        }
        for text in ["127.0.0.1", "10.0.0.1", "::1", "2001:db8::1"] {
            assert!(!is_link_local(text.parse().unwrap()), "{text}");
        }
    }
}
