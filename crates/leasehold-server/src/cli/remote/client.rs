//! Requests and answers. A request is sent once and follows no redirect, because it carries a token; the token goes over TLS, or to
//! this machine, and is in no error. Every answer has a bound and a time.

use super::super::{
    Failure,
    identity::{TOKEN, secret},
    local::{mend, values_do_not_fit},
};
use reqwest::{Method, StatusCode, Url, header};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use std::{error::Error as _, net::IpAddr, time::Duration};

/// To reach the server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For a whole answer. The server takes a minute at most for what neither streams nor waits.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);
/// Bytes of an answer: what is longer is no answer of a server. A page may hold a thousand entries.
const ANSWER_BYTES_MAX: usize = 256 * 1024 * 1024;

/// A server, and who asks.
pub(super) struct Client {
    http: reqwest::Client,
    base: String,
    token: SecretString,
    /// Bytes of an answer.
    most: usize,
}

/// What an answer should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    Json,
    Text,
}

/// A refusal of the server.
#[derive(Debug, Deserialize)]
pub(super) struct Problem {
    code: String,
    detail: String,
    #[serde(default)]
    errors: Vec<FieldError>,
}

#[derive(Debug, Deserialize)]
struct FieldError {
    pointer: Option<String>,
    parameter: Option<String>,
    detail: String,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server was not reached; whether it may have heard the request.
    Unreachable { heard: bool, why: String },
    /// It refused.
    Refused(StatusCode, Problem),
    /// Whatever answers there is no leasehold server.
    Foreign(String),
}

impl Trouble {
    /// It may be over soon.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused(status, _) => status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS,
            Self::Foreign(_) => false,
        }
    }
    /// There is no such run, or none that the caller may know of.
    pub(super) fn is_hidden(&self) -> bool {
        matches!(self, Self::Refused(_, problem) if problem.code == "not_found")
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Unreachable { heard: true, why } => {
                Self::refused(format!("{why}\n  what was asked may or may not have been done: look with `leasehold runs list`"))
            }
            Trouble::Unreachable { heard: false, why } => Self::refused(format!("{why}\n  what was asked was not begun")),
            Trouble::Foreign(why) => Self::refused(why),
            Trouble::Refused(StatusCode::UNAUTHORIZED, problem) => Self::usage(format!(
                "{}: {}\n  set {TOKEN} to a token that is in force; an admin looks with `leasehold token list`",
                problem.code, problem.detail
            )),
            Trouble::Refused(status, problem) => refused(status, &problem),
        }
    }
}

fn refused(status: StatusCode, problem: &Problem) -> Failure {
    let Problem { code, detail, errors } = problem;
    let of_values = |error: &FieldError| error.pointer.as_deref().is_some_and(|place| place.starts_with("#/values"));
    if !errors.is_empty() && errors.iter().all(of_values) {
        let fields = errors.iter().map(|e| (e.pointer.as_deref().unwrap_or_default(), e.detail.as_str()));
        return values_do_not_fit(fields.map(|(place, why)| (place.trim_start_matches("#/values"), why)));
    }
    let wrong = matches!(status, StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST);
    let mut text = format!("{code}: {detail}");
    for error in errors {
        let place = error.pointer.as_deref().or(error.parameter.as_deref()).unwrap_or_default();
        text.push_str(&format!("\n  {place}: {}", error.detail));
    }
    // What an order became where the server had no answer from its store is in the detail.
    if status.is_client_error() && !wrong && code != "not_found" {
        text.push_str(mend(code));
    }
    if wrong { Failure::usage(text) } else { Failure::refused(text) }
}

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// As it came.
    pub(super) body: String,
}

impl Answer {
    /// What it says.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, Trouble> {
        serde_json::from_str(&self.body)
            .map_err(|e| Trouble::Foreign(format!("the answer is not that of a leasehold server of this version: {e}")))
    }
}

/// A URL of a host alone, over TLS or of this machine.
fn parse(text: &str) -> Result<Url, Failure> {
    let wrong = |why: &str| Failure::usage(format!("--server (LEASEHOLD_URL): {why}, such as https://agents.example.org"));
    // A URL may hold a password: it is not repeated.
    let url = Url::parse(text.trim()).map_err(|_| wrong("this is no URL of a server"))?;
    let plain = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    if !["http", "https"].contains(&url.scheme()) || !url.has_host() || !plain {
        return Err(wrong("this is no http or https URL of a host alone"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong(&format!("it has no user and no password: the token is in {TOKEN}")));
    }
    if url.scheme() == "http" && !is_this_machine(&url) {
        return Err(wrong("http would send the token readable for everybody on the way: use https"));
    }
    Ok(url)
}

fn is_this_machine(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

impl Client {
    /// For the server at a URL, with the token of the environment.
    pub(super) fn new(url: &str) -> Result<Self, Failure> {
        let url = parse(url)?;
        let token = secret(TOKEN).ok_or_else(|| {
            Failure::usage(format!(
                "a server takes a token: set {TOKEN} to one; an admin makes one with `leasehold token create`"
            ))
        })?;
        if header::HeaderValue::from_str(token.expose_secret()).is_err() {
            return Err(Failure::usage(format!("environment variable {TOKEN}: its value is no token")));
        }
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(ANSWER_TIMEOUT)
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
        if url.scheme() == "http" {
            // What stays on this machine is shown to no proxy.
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|e| Failure::refused(format!("no HTTP client: {e}")))?;
        Ok(Self { http, base: url.as_str().trim_end_matches('/').to_owned(), token, most: ANSWER_BYTES_MAX })
    }

    /// The server.
    pub(super) fn url(&self) -> &str {
        &self.base
    }

    /// Looks.
    pub(super) async fn get(&self, path: &str, query: &[(&str, String)], want: Want) -> Result<Answer, Trouble> {
        self.send(self.request(Method::GET, path, want).query(query), want).await
    }

    /// Orders.
    pub(super) async fn post(&self, path: &str, body: &Value, key: Option<&str>) -> Result<Answer, Trouble> {
        let mut request = self.request(Method::POST, path, Want::Json);
        request = request.header(header::CONTENT_TYPE, "application/json").body(body.to_string());
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        self.send(request, Want::Json).await
    }

    fn request(&self, method: Method, path: &str, want: Want) -> reqwest::RequestBuilder {
        let accept = if want == Want::Json { "application/json" } else { "text/plain" };
        let request = self.http.request(method, format!("{}/api/v1{path}", self.base));
        request.bearer_auth(self.token.expose_secret()).header(header::ACCEPT, accept)
    }

    /// Fetches what is no text.
    pub(super) async fn bytes(&self, path: &str) -> Result<Vec<u8>, Trouble> {
        let (status, kind, bytes) = self.receive(self.request(Method::GET, path, Want::Json)).await?;
        if status.is_success() { Ok(bytes) } else { Err(self.refused(status, &kind, bytes)) }
    }

    async fn send(&self, request: reqwest::RequestBuilder, want: Want) -> Result<Answer, Trouble> {
        let (status, kind, bytes) = self.receive(request).await?;
        if !status.is_success() {
            return Err(self.refused(status, &kind, bytes));
        }
        let body = String::from_utf8(bytes).map_err(|_| self.foreign("sent what is not text in UTF-8"))?;
        let wanted = if want == Want::Json { "application/json" } else { "text/plain" };
        if kind == wanted {
            Ok(Answer { body })
        } else {
            Err(self.foreign(&format!("answered with `{kind}` instead of {wanted}")))
        }
    }

    /// The status, the type and the body of an answer.
    async fn receive(&self, request: reqwest::RequestBuilder) -> Result<(StatusCode, String, Vec<u8>), Trouble> {
        let mut response = request.send().await.map_err(|error| self.unreachable(error))?;
        let status = response.status();
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_owned();
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.unreachable(error))? {
            if bytes.len() + chunk.len() > self.most {
                return Err(self.foreign(&format!("sent more than {} bytes", self.most)));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok((status, kind, bytes))
    }

    fn refused(&self, status: StatusCode, kind: &str, bytes: Vec<u8>) -> Trouble {
        if kind == "application/problem+json"
            && let Ok(problem) = serde_json::from_slice(&bytes)
        {
            return Trouble::Refused(status, problem);
        }
        if status.is_redirection() {
            return self.foreign("answered with a redirect, which is not followed: name the server itself");
        }
        self.foreign(&format!("answered {}", status.as_u16()))
    }

    fn foreign(&self, what: &str) -> Trouble {
        Trouble::Foreign(format!("{} {what}: this is no leasehold server, or something stands before it", self.base))
    }

    fn unreachable(&self, error: reqwest::Error) -> Trouble {
        let heard = !error.is_connect() && !error.is_builder();
        let error = error.without_url();
        let mut why = format!("{} does not answer: {error}", self.base);
        let mut source = error.source();
        while let Some(inner) = source {
            why.push_str(&format!(": {inner}"));
            source = inner.source();
        }
        Trouble::Unreachable { heard, why }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Exit;

    #[test]
    fn a_token_goes_over_tls_or_stays_here() {
        for good in
            ["https://agents.example.org", "http://127.0.0.1:7878/", "http://[::1]:7878", "http://localhost:1", " https://h "]
        {
            assert!(parse(good).is_ok(), "{good}");
        }
        for wrong in [
            "http://agents.example.org",
            "http://10.0.0.1:7878",
            "http://localhost.example.org",
            "https://ann:secret-of-ann@h",
            "https://h/path",
            "https://h/?a=secret-of-ann",
            "ftp://h",
            "h:7878",
            "https://",
            "secret-of-ann",
        ] {
            let Err(Failure::Said(Exit::Usage, said)) = parse(wrong) else { panic!("{wrong}") };
            assert!(!said.contains("secret-of-ann"), "{said}");
        }
    }

    #[tokio::test]
    async fn an_answer_has_a_bound() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
                let head =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\nconnection: close\r\n\r\n";
                stream.write_all(format!("{head}true").as_bytes()).await.unwrap();
            }
        });
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let mut client = Client { http, base: url, token: "t".to_owned().into(), most: 4 };
        assert!(client.get("/x", &[], Want::Json).await.unwrap().read::<bool>().unwrap());
        client.most = 3;
        let Err(Trouble::Foreign(why)) = client.get("/x", &[], Want::Json).await else { panic!() };
        assert!(why.contains("sent more than 3 bytes"), "{why}");
    }

    #[test]
    fn a_refusal_has_the_words_and_the_exit_of_the_command_on_the_store() {
        let told = |status: u16, problem: Value| {
            let problem = serde_json::from_value(problem).unwrap();
            let Failure::Said(exit, text) = Trouble::Refused(StatusCode::from_u16(status).unwrap(), problem).into() else {
                panic!()
            };
            (exit, text)
        };
        let of = |status, code: &str| told(status, serde_json::json!({ "code": code, "detail": "d" }));
        assert_eq!(
            of(409, "too_early"),
            (Exit::Refused, "too_early: d\n  nothing was changed; look at the far side again after that time".into())
        );
        assert_eq!(of(403, "self_approval"), (Exit::Refused, "self_approval: d\n  nothing was changed".into()));
        assert_eq!(of(503, "unavailable"), (Exit::Refused, "unavailable: d".into()));
        assert_eq!(of(401, "unauthenticated").0, Exit::Usage);
        let errors = serde_json::json!([{ "pointer": "#/agent", "detail": "none" }]);
        let field = told(422, serde_json::json!({ "code": "invalid_input", "detail": "d", "errors": errors }));
        assert_eq!(field, (Exit::Usage, "invalid_input: d\n  #/agent: none".into()));
        let errors = serde_json::json!([{ "pointer": "#/values/a", "detail": "no" }, { "pointer": "#/values", "detail": "b" }]);
        let values = told(422, serde_json::json!({ "code": "invalid_input", "detail": "d", "errors": errors }));
        let words = "invalid_input: the values do not fit; nothing was changed\n  /a: no\n  the values: b";
        assert_eq!(values, (Exit::Usage, words.into()));
    }
}
