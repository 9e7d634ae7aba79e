//! Authorization servers that lie or fail, and what reaches them.

use super::*;
use crate::{
    agent::tool::mcp::McpConfig,
    clock::{BootInstant, to_millis},
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

/// A server over HTTP that notes each request as a whole.
struct Place {
    origin: String,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Place {
    /// Answers each path with what is made of its own origin and the path; none: 404.
    async fn new(answer: impl Fn(&str, &str) -> Option<(u16, Value)> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let (own, noted) = (origin.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = String::new();
                let mut buffer = [0; 4096];
                while !is_whole(&request) {
                    let read = stream.read(&mut buffer).await.unwrap_or(0);
                    if read == 0 {
                        break;
                    }
                    request.push_str(&String::from_utf8_lossy(&buffer[..read]));
                }
                let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
                let (status, body) = answer(&own, &path).unwrap_or((404, Value::Null));
                noted.lock().unwrap().push(request);
                let body = body.to_string();
                let head = format!("HTTP/1.1 {status} S\r\ncontent-type: application/json\r\nconnection: close\r\n");
                let _ = stream.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
            }
        });
        Self { origin, seen }
    }

    fn with(&self, part: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|request| request.contains(part)).count()
    }
}

fn is_whole(request: &str) -> bool {
    let Some((head, body)) = request.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    body.len() >= length.and_then(|length| length.parse().ok()).unwrap_or(0)
}

fn about(issuer: &str, token: &str) -> Value {
    json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{token}/authorize"),
        "token_endpoint": format!("{token}/token"),
        "code_challenge_methods_supported": ["S256"],
        "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
        "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
    })
}

fn given() -> Value {
    json!({ "access_token": "at-given-1", "token_type": "bearer", "expires_in": 3600 })
}

/// An authorization server, whose tokens come with this status.
async fn giver(status: u16) -> Place {
    Place::new(move |own, path| match path {
        "/.well-known/oauth-authorization-server" => Some((200, about(own, own))),
        "/token" => Some((status, given())),
        _ => None,
    })
    .await
}

/// A server that says that its authorization server is there; of what is published at its own place, it is in the other's name.
async fn server(at: impl Fn(&str) -> String + Send + 'static, in_the_name_of: String) -> Place {
    Place::new(move |own, path| match path {
        "/mcp" => Some((401, Value::Null)),
        "/.well-known/oauth-protected-resource/mcp" => {
            Some((200, json!({ "resource": format!("{own}/mcp"), "authorization_servers": [at(own)] })))
        }
        "/.well-known/x" => Some((200, about(&in_the_name_of, own))),
        "/token" => Some((200, given())),
        _ => None,
    })
    .await
}

#[derive(Debug)]
struct Memory(Mutex<Kept>);

#[async_trait::async_trait]
impl Logins for Memory {
    async fn load(&self, _: &LoginOf) -> Result<Option<Kept>, LoginError> {
        Ok(Some(get(&self.0)))
    }
    async fn begin_refresh(
        &self,
        _: &LoginOf,
        is_stale: &(dyn for<'l> Fn(&'l Login) -> bool + Send + Sync),
    ) -> Result<Begun, LoginError> {
        let kept = get(&self.0);
        Ok(match is_stale(&kept.login) {
            true => Begun::Mine(kept.login, Ticket { id: String::new(), since: BootInstant::of_machine() }),
            false => Begun::Current(kept),
        })
    }
    async fn end_refresh(&self, _: &LoginOf, _: &Ticket, refreshed: &Refreshed) -> Result<(), LoginError> {
        let mut kept = self.0.lock().unwrap();
        match refreshed {
            Refreshed::Login(login) => *kept = Kept { login: login.clone(), refused: None, failed: None },
            Refreshed::Refused(why) => kept.refused = Some(why.clone()),
            Refreshed::Failed(why) => kept.failed = Some((to_millis(Timestamp::now()), why.clone())),
        }
        Ok(())
    }
}

/// A login of this issuer, which lasts so long and was got so long ago.
fn login(issuer: &str, token_endpoint: Option<&str>, lasts_s: u64, ago_s: u64) -> Login {
    let login = json!({
        "client_id": "c", "issuer": issuer, "token_endpoint": token_endpoint, "scopes": [], "access_token": "at-before",
        "refresh_token": "rt-secret", "received_at": Timestamp::now() - Duration::from_secs(ago_s), "expires_in_s": lasts_s,
    });
    Login::from_bytes(login.to_string().as_bytes()).unwrap()
}

fn authorization(server: &Place, grant: Grant, issuer: &str, login: Login) -> Arc<Authorization> {
    let mut config = McpConfig::url("notes", format!("{}/mcp", server.origin));
    config.oauth = Some(OAuthConfig {
        grant,
        client_id: Some("c".into()),
        client_secret_env: Some("SECRET".into()),
        issuer: Some(issuer.into()),
        ..OAuthConfig::default()
    });
    let logins: Arc<dyn Logins> = Arc::new(Memory(Mutex::new(Kept { login, refused: None, failed: None })));
    let env = |_: &str| Some("cs-secret".to_owned());
    let resolved = super::super::target::resolve(&config, Duration::from_secs(5), &env, Some(logins)).unwrap();
    Arc::clone(resolved.target.authorization().unwrap())
}

#[tokio::test]
async fn a_document_in_anothers_name_gets_no_secret_no_refresh_token_and_no_code() {
    let real = giver(200).await;
    let evil = server(|own| format!("{own}/.well-known/x"), real.origin.clone()).await;
    let over = || login(&real.origin, None, 1, 10);
    let of = |grant| authorization(&evil, grant, &real.origin, over());
    let why = of(Grant::AuthorizationCode).token().await.unwrap_err().to_string();
    assert!(why.contains("does not say the same of itself"), "{why}");
    of(Grant::ClientCredentials).token().await.unwrap_err();
    let begun = of(Grant::AuthorizationCode).begin_login("http://127.0.0.1:1/callback").await;
    assert!(begun.err().is_some_and(|why| why.to_string().contains("does not say the same")), "nobody is sent there");
    for place in [&evil, &real] {
        let (tokens, secrets) = (place.with("rt-secret"), place.with("cs-secret"));
        assert_eq!((tokens, secrets, place.with("POST /token")), (0, 0, 0), "{:?}", place.seen);
    }

    // The same where the server says the truth.
    let honest = real.origin.clone();
    let server = server(move |_| honest.clone(), String::new()).await;
    authorization(&server, Grant::AuthorizationCode, &real.origin, over()).token().await.unwrap();
    authorization(&server, Grant::ClientCredentials, &real.origin, over()).token().await.unwrap();
    assert_eq!((real.with("rt-secret"), real.with("POST /token")), (1, 2));
}

#[tokio::test]
async fn a_secret_is_for_the_configured_issuer_and_a_login_for_where_it_was_got() {
    let real = giver(200).await;
    let there = real.origin.clone();
    let server = server(move |_| there.clone(), String::new()).await;
    let over = |endpoint: Option<&str>| login(&real.origin, endpoint, 1, 10);
    let other = "https://other.example";
    for grant in [Grant::ClientCredentials, Grant::AuthorizationCode] {
        let why = authorization(&server, grant, other, over(None)).token().await.unwrap_err().to_string();
        assert!(why.contains("`issuer` of [mcp.oauth]"), "{why}");
    }
    let moved = authorization(&server, Grant::AuthorizationCode, &real.origin, over(Some("http://127.0.0.1:1/token")));
    let why = moved.token().await.unwrap_err().to_string();
    assert!(why.contains("gave tokens at"), "{why}");
    assert_eq!(real.with("POST /token"), 0);
    let same = format!("{}/token", real.origin);
    authorization(&server, Grant::AuthorizationCode, &format!("{}/", real.origin), over(Some(&same))).token().await.unwrap();
    assert_eq!(real.with("POST /token"), 1);
}

/// What failed until now, failed before what comes then.
fn until_later() {
    let now = to_millis(Timestamp::now());
    while to_millis(Timestamp::now()) <= now {
        std::hint::spin_loop();
    }
}

#[tokio::test]
async fn a_refresh_that_failed_is_not_tried_by_each_request() {
    let real = giver(503).await;
    let there = real.origin.clone();
    let server = server(move |_| there.clone(), String::new()).await;
    // It is nearly over, and counts still.
    let counts = authorization(&server, Grant::AuthorizationCode, &real.origin, login(&real.origin, None, 100, 60));
    for _ in 0..3 {
        counts.token().await.unwrap();
        until_later();
    }
    assert_eq!(real.with("POST /token"), 1);
    // It is over: who waited for the one that failed has its answer, and who comes later tries anew.
    let over = authorization(&server, Grant::AuthorizationCode, &real.origin, login(&real.origin, None, 1, 10));
    let many = futures::future::join_all((0..4).map(|_| over.token())).await;
    assert!(many.iter().all(Result::is_err));
    assert_eq!(real.with("POST /token"), 2);
    until_later();
    over.token().await.unwrap_err();
    assert_eq!(real.with("POST /token"), 3);
}
