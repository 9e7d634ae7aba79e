//! Browsers: how a session begins, what it may, and how it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    self, Sandbox,
    api::{Answer, Events, Server, TOKEN},
    text,
};
use reqwest::{
    Client, Method, RequestBuilder,
    header::{HeaderMap, HeaderValue},
    redirect::Policy,
};
use serde_json::{Value, json};

/// A browser without a cookie jar: the test sees each cookie.
pub(crate) struct Browser {
    client: Client,
    url: String,
}

/// What a browser says of a form of the very page.
const OWN: [(&str, &str); 2] = [("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "navigate")];
/// What it says when somebody clicks on a link in a chat.
const CHAT: [(&str, &str); 2] = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")];

impl Browser {
    pub(crate) fn of(server: &Server) -> Self {
        let client = Client::builder().redirect(Policy::none()).build().unwrap();
        Self { client, url: server.url.clone() }
    }
    fn request(
        &self,
        method: Method,
        path: &str,
        cookie: Option<&str>,
        headers: &[(&'static str, &'static str)],
    ) -> RequestBuilder {
        let mut all = HeaderMap::new();
        all.extend(headers.iter().map(|(name, value)| (name.parse().ok(), HeaderValue::from_static(value))));
        let request = self.client.request(method, format!("{}{path}", self.url)).headers(all);
        match cookie {
            Some(cookie) => request.header("cookie", cookie),
            None => request,
        }
    }
    pub(crate) async fn get(&self, path: &str, cookie: Option<&str>) -> Answer {
        Answer::of(self.request(Method::GET, path, cookie, &CHAT)).await
    }
    pub(crate) async fn send(&self, path: &str, cookie: Option<&str>, form: &[(&str, &str)]) -> Answer {
        Answer::of(self.request(Method::POST, path, cookie, &OWN).form(form)).await
    }
    /// Logs in; name and value of the cookie.
    pub(crate) async fn enters(&self, cookie: Option<&str>, form: &[(&str, &str)]) -> String {
        let answer = self.send("/login", cookie, form).await;
        assert_eq!(answer.status.as_u16(), 303, "{answer:?}");
        cookie_of(&answer).split(';').next().unwrap().to_owned()
    }
}

pub(crate) fn header<'a>(answer: &'a Answer, name: &str) -> &'a str {
    answer.headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[track_caller]
fn cookie_of(answer: &Answer) -> &str {
    let cookie = header(answer, "set-cookie");
    assert!(!cookie.is_empty(), "{answer:?}");
    cookie
}

fn refuses(answer: &Answer) {
    assert!(answer.status.as_u16() == 401 && header(answer, "set-cookie").is_empty(), "{answer:?}");
}

/// A link for this user, as the command prints it: its secret.
pub(crate) async fn link(sandbox: &Sandbox, user: &str) -> String {
    let said = sandbox.leasehold(&["user", "login", user, "--json"]).await.exits(0).json();
    text(&said, "/url").split_once("/login?link=").expect("it is a link").1.to_owned()
}

async fn who_decided(server: &Server, run: &str) -> Value {
    server.get(&format!("/runs/{run}")).await.is(200)["decisions"][0].clone()
}

#[tokio::test]
async fn a_link_shows_a_button_and_only_the_button_uses_it_up_once() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve_with(&[("LEASEHOLD_LOG", "trace")]).await;
    let browser = Browser::of(&server);
    let link = link(&sandbox, "admin").await;
    for _ in 0..3 {
        let page = browser.get(&format!("/login?link={link}"), None).await;
        assert!(page.status == 200 && header(&page, "set-cookie").is_empty(), "{page:?}");
        assert!(page.body.contains("<button") && page.body.contains(&format!("value=\"{link}\"")), "{}", page.body);
        assert!(header(&page, "content-security-policy").starts_with("default-src 'none'; style-src 'self'"), "{page:?}");
    }
    let form = [("link", link.as_str()), ("next", "/runs/x")];
    let answer = browser.send("/login", None, &form).await;
    assert_eq!((answer.status.as_u16(), header(&answer, "location")), (303, "/runs/x"));
    let cookie = cookie_of(&answer);
    assert!(cookie.starts_with("leasehold=") && cookie.contains("HttpOnly") && cookie.contains("SameSite=Lax"), "{cookie}");
    assert!(cookie.contains("Path=/") && !cookie.contains("Secure") && !cookie.contains("Domain"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap().to_owned();
    assert_eq!(browser.get("/api/v1/runs", Some(&cookie)).await.is(200)["items"], json!([]));
    for cookie in [None, Some(cookie.as_str())] {
        refuses(&browser.send("/login", cookie, &form).await);
    }
    refuses(&browser.send("/login", None, &[("link", "none")]).await);
    refuses(&browser.send("/login", None, &[]).await);
    // Of what was shown nothing is in the log.
    let said = server.said();
    let secret = cookie.split_once('=').unwrap().1;
    assert!(said.contains("GET /login: 200") && !said.contains(&link) && !said.contains(secret), "{said}");
}

#[tokio::test]
async fn under_tls_the_cookie_is_bound_to_the_very_host_and_another_one_counts_for_nothing() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve_with(&[("LEASEHOLD_SERVER_PUBLIC_URL", "https://agents.example.org")]).await;
    let browser = Browser::of(&server);
    let said = sandbox.leasehold(&["user", "login", "admin"]).await.exits(0);
    assert!(!said.out.contains("127.0.0.1:0/"), "{said:?}");
    let answer = browser.send("/login", None, &[("token", TOKEN)]).await;
    let cookie = cookie_of(&answer);
    assert!(cookie.starts_with("__Host-leasehold=") && cookie.contains("Secure") && cookie.contains("Path=/"), "{cookie}");
    let value = cookie.split(';').next().unwrap().split_once('=').unwrap().1;
    let named = |name: &str| format!("{name}={value}");
    assert_eq!(browser.get("/api/v1/runs", Some(&named("__Host-leasehold"))).await.status.as_u16(), 200);
    browser.get("/api/v1/runs", Some(&named("leasehold"))).await.problem(401, "unauthenticated");
}

#[tokio::test]
async fn a_new_login_has_a_new_secret_and_ends_the_old_session_and_logging_out_ends_it() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let browser = Browser::of(&server);
    let token = [("token", TOKEN)];
    let first = browser.enters(None, &token).await;
    let second = browser.enters(Some(&first), &token).await;
    assert_ne!(first, second);
    browser.get("/api/v1/runs", Some(&first)).await.problem(401, "unauthenticated");
    assert_eq!(browser.get("/api/v1/runs", Some(&second)).await.status.as_u16(), 200);
    assert_eq!(header(&browser.get("/login", Some(&second)).await, "location"), "/");
    assert_eq!(browser.get("/logout", Some(&second)).await.status.as_u16(), 405, "a link logs nobody out");
    // Another site logs nobody in or out.
    for path in ["/login", "/logout"] {
        let foreign = browser.request(Method::POST, path, Some(&second), &CHAT).form(&token);
        Answer::of(foreign).await.problem(403, "cross_origin");
    }
    let answer = browser.send("/logout", Some(&second), &[]).await;
    assert_eq!((answer.status.as_u16(), header(&answer, "location")), (303, "/login"));
    assert!(cookie_of(&answer).contains("Max-Age=0"), "{answer:?}");
    browser.get("/api/v1/runs", Some(&second)).await.problem(401, "unauthenticated");
    assert_eq!(header(&browser.get("/", Some(&second)).await, "location"), "/login");
}

#[tokio::test]
async fn who_is_no_person_or_nobody_gets_no_session_and_is_told_alike() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let browser = Browser::of(&server);
    let machine =
        sandbox.leasehold(&["token", "create", "bot", "--owner", "admin", "--machine", "--json"]).await.exits(0).json();
    let machine = text(&machine, "/secret");
    assert!(
        server.client.get(format!("{}/api/v1/runs", server.url)).bearer_auth(&machine).send().await.unwrap().status() == 200
    );
    let mut pages = Vec::new();
    for token in [machine.as_str(), "lh_nobody", ""] {
        let answer = browser.send("/login", None, &[("token", token)]).await;
        refuses(&answer);
        assert!(token.is_empty() || !answer.body.contains(token));
        pages.push(answer.body);
    }
    assert!(pages.windows(2).all(|two| two[0] == two[1]));
    let cookie = "leasehold=nobody";
    browser.get("/api/v1/runs", Some(cookie)).await.problem(401, "unauthenticated");
    assert_eq!(header(&browser.get("/?a=b", Some(cookie)).await, "location"), "/login?next=%2F%3Fa%3Db");
}

#[tokio::test]
async fn the_link_of_a_chat_shows_the_card_to_who_is_signed_in_and_nothing_to_others() {
    let arguments = "{ text = \"<script>alert(1)</script> & more\" }";
    let sandbox = Sandbox::with_script("", &support::one_call("ledger.append", arguments)).await;
    let server = sandbox.serve().await;
    let browser = Browser::of(&server);
    let (run, digest) = server.suspended().await;
    let path = format!("/runs/{run}");
    let page = browser.get(&path, None).await;
    let there = format!("/login?next=%2Fruns%2F{}", run.replace('-', "%2D"));
    assert_eq!((page.status.as_u16(), header(&page, "location"), page.body.as_str()), (303, there.as_str(), ""));
    // The same of what is not there.
    assert_eq!(browser.get("/runs/0192f0c1-2a3b-7c4d-8e5f-6a7b8c9d0e1f", None).await.status.as_u16(), 303);
    let shown = browser.get(&there, None).await;
    assert!(shown.body.contains(&format!("value=\"{path}\"")), "{}", shown.body);
    let cookie = browser.enters(None, &[("token", TOKEN), ("next", &path)]).await;
    let page = browser.get(&path, Some(&cookie)).await;
    assert_eq!(page.status.as_u16(), 200, "{page:?}");
    assert!(page.body.contains("ledger.append") && page.body.contains(&digest), "{}", page.body);
    assert!(page.body.contains("&lt;script&gt;") && !page.body.contains("<script"), "{}", page.body);
    let inbox = browser.get("/", Some(&cookie)).await;
    assert!(inbox.status == 200 && inbox.body.contains("ledger.append"), "{inbox:?}");
    // Somebody else's is as unknown as none.
    sandbox.leasehold(&["user", "add", "vic", "--role", "viewer"]).await.exits(0);
    let vic = browser.enters(None, &[("link", &link(&sandbox, "vic").await)]).await;
    let (other, none) =
        (browser.get(&path, Some(&vic)).await, browser.get("/runs/0192f0c1-2a3b-7c4d-8e5f-6a7b8c9d0e1f", Some(&vic)).await);
    assert_eq!((other.status.as_u16(), &other.body), (404, &none.body));
}

#[tokio::test]
async fn a_session_decides_as_its_person_and_another_site_cannot_with_it() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let browser = Browser::of(&server);
    let (run, digest) = server.suspended().await;
    sandbox.leasehold(&["user", "add", "eve", "--role", "approver", "--tool", "ledger.*"]).await.exits(0);
    let eve = browser.enters(None, &[("link", &link(&sandbox, "eve").await)]).await;
    let path = format!("/api/v1/runs/{run}/decision?wait=true");
    let decision = json!({ "turn_digest": digest, "decision": "approve" }).to_string();
    let send = |headers: &[(&'static str, &'static str)]| {
        let request = browser.request(Method::POST, &path, Some(&eve), headers);
        Answer::of(request.header("content-type", "application/json").body(decision.clone()))
    };
    for foreign in [&CHAT[..], &[("sec-fetch-site", "same-site")], &[("origin", "https://evil.example")], &[("origin", "null")]]
    {
        send(foreign).await.problem(403, "cross_origin");
    }
    assert!(sandbox.far.arrived().is_empty());
    let mut events = Events::of(
        browser
            .request(Method::GET, &format!("/api/v1/runs/{run}/events"), Some(&eve), &OWN)
            .header("accept", "text/event-stream"),
    )
    .await;
    events.until("suspended").await;
    assert_eq!(send(&OWN).await.is(200)["state"], "completed");
    events.until("settled").await;
    let decided = who_decided(&server, &run).await;
    assert_eq!((&decided["by"], &decided["attribution"]), (&json!("user:eve"), &json!("second_person")));
    assert!(text(&decided, "/method").starts_with("session:"), "{decided}");
    let again = browser.enters(None, &[("link", &link(&sandbox, "eve").await)]).await;
    let unused = link(&sandbox, "eve").await;
    sandbox.leasehold(&["user", "logout", "eve"]).await.exits(0);
    for cookie in [&eve, &again] {
        browser.get("/api/v1/runs", Some(cookie)).await.problem(401, "unauthenticated");
    }
    refuses(&browser.send("/login", None, &[("link", &unused)]).await);
    // A token beside a session is what counts.
    let both = browser.request(Method::GET, "/api/v1/runs", Some(&eve), &OWN).bearer_auth(TOKEN);
    assert_eq!(Answer::of(both).await.is(200)["items"][0]["id"], run.as_str());
    let wrong = browser.enters(None, &[("token", TOKEN)]).await;
    let wrong = browser.request(Method::GET, "/api/v1/runs", Some(&wrong), &OWN).bearer_auth("nobody");
    Answer::of(wrong).await.problem(401, "unauthenticated");
}
