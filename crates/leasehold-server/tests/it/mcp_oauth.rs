//! A server that wants a token, and the authorization server that gives it: FastMCP and `oidc-provider`, which nobody here wrote, and
//! the real command between them. Whoever opens the address is let in at once; everything else is as those two do it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{PATIENCE, mcp::Place, one_call};
use leasehold::run::State;
use leasehold_testkit::{
    home::{Ran, Running},
    mcp::{self, HttpServer},
};
use reqwest::{Client, Url, header, redirect};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write as _,
    process::Stdio,
    time::{Duration, Instant},
};

struct Scene {
    place: Place,
    giver: HttpServer,
    server: HttpServer,
}

/// Between two looks at a file of another process, which gives no signal.
const LOOK: Duration = Duration::from_millis(20);

async fn scene(ttl: u32) -> Option<Scene> {
    let place = Place::new().await?;
    let giver = HttpServer::start(mcp::authorization_server(ttl, &place.home.path().join("giver")).await?).await;
    let server = HttpServer::start(mcp::protected(&giver.origin(), &place.home.path().join("ledger")).await?).await;
    let scene = Scene { place, giver, server };
    scene.place.home.write("script.toml", &one_call("notes.append", "{ text = \"one\" }"));
    scene.configure(&scene.server.url(), "", true);
    scene.place.ends(&["key", "create", "a"], 0).await;
    scene.configure(&scene.server.url(), "", false);
    Some(scene)
}

impl Scene {
    fn configure(&self, url: &str, oauth: &str, is_open: bool) {
        let seal = if is_open { "" } else { "[seal]\nkeyring = \"leasehold.keyring\"\n" };
        let server = format!("[[mcp]]\nname = \"notes\"\nurl = \"{url}\"\nrequires_approval = false\n[mcp.oauth]\n{oauth}\n");
        self.place.configure_more(&format!("{seal}{server}"), r#"["notes.*"]"#);
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.place.home.path().join(name)).unwrap_or_default()
    }

    fn lines(&self, name: &str, with: &str) -> Vec<String> {
        self.text(name).lines().filter(|line| line.contains(with)).map(str::to_owned).collect()
    }

    /// Waits for so many lines of a file.
    async fn until_lines(&self, name: &str, with: &str, count: usize) {
        let since = Instant::now();
        while self.lines(name, with).len() < count {
            assert!(since.elapsed() < PATIENCE, "{name} has no {count} lines with {with}: {}", self.text(name));
            tokio::time::sleep(LOOK).await;
        }
    }

    /// `mcp login`, which waits for its browser, and the address that it says.
    async fn login(&self, arguments: &[&str]) -> (Running, String) {
        let name = "login.out";
        let out = fs::File::create(self.place.home.path().join(name)).unwrap();
        let err = fs::File::create(self.place.home.path().join("login.err")).unwrap();
        let mut command = self.place.home.command(&[&["mcp", "login", "notes"][..], arguments].concat());
        let input = self.place.home.path().join("login.in");
        fs::write(&input, "").unwrap();
        command.stdin(Stdio::piped()).stdout(out).stderr(err);
        let running = self.place.home.start_as_it_is(command);
        let since = Instant::now();
        loop {
            if let Some(url) = self.lines(name, "http").first().filter(|_| self.text(name).ends_with('\n')) {
                return (running, url.clone());
            }
            assert!(since.elapsed() < PATIENCE, "no address: {}{}", self.text(name), self.text("login.err"));
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn log_in(&self) {
        let (mut login, url) = self.login(&[]).await;
        let back = browse(&url).await;
        let shown = reqwest::get(&back).await.unwrap();
        assert_eq!(shown.status(), 200, "{}", shown.text().await.unwrap());
        assert_eq!(ended(&mut login).await, 0, "{}", self.text("login.err"));
    }

    async fn state(&self) -> (String, Value) {
        let line = self.place.server("notes").await;
        (line["login"]["state"].as_str().unwrap().to_owned(), line)
    }

    async fn until_state(&self, state: &str) -> Value {
        let since = Instant::now();
        loop {
            let (is, line) = self.state().await;
            if is == state {
                return line;
            }
            assert!(since.elapsed() < PATIENCE, "it is {is} and not {state}: {line}");
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn run(&self, code: i32) -> Ran {
        self.place.ends(&["run", "--json", "note a line"], code).await
    }

    /// What the one call of a run came to: its outcome and what was said.
    async fn outcome(&self, ran: &Ran) -> (String, String) {
        self.outcome_of(ran.json()["id"].as_str().unwrap()).await
    }

    async fn outcome_of(&self, id: &str) -> (String, String) {
        let ran = self.place.home.run(&["runs", "follow", id, "--json"]).await;
        let said = ran.stdout();
        let mut events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let event = events.find(|event| event["kind"] == "tool_outcome").unwrap_or_else(|| panic!("no outcome: {ran}"));
        (event["payload"]["outcome"].as_str().unwrap().to_owned(), event["payload"]["result"].to_string())
    }

    /// A run of a worker: what its call came to.
    async fn worked(&self) -> (String, String) {
        let id = self.place.home.enqueue().await;
        self.place.home.until(id, "settled", |row| row.state.is_settled()).await;
        self.outcome_of(&id.to_string()).await
    }

    fn written(&self) -> usize {
        self.text("ledger").lines().count()
    }

    /// Everything that was given, and what of it can be found where it must not be.
    fn tokens(&self) -> Vec<String> {
        let text = self.text("giver.tokens");
        text.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
    }

    fn leaks(&self) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.place.home.path()).unwrap().flatten() {
            let name = entry.file_name().display().to_string();
            if name.starts_with("giver") || entry.path().is_dir() {
                continue;
            }
            let bytes = fs::read(entry.path()).unwrap();
            let holds = |token: &String| bytes.windows(token.len()).any(|part| part == token.as_bytes());
            found.extend(self.tokens().iter().filter(|token| holds(token)).map(|token| format!("{name}: {token:.12}")));
        }
        found
    }
}

async fn ended(process: &mut Running) -> i32 {
    process.ended().await;
    process.wait().unwrap_or(-1)
}

/// A browser: follows the addresses with its cookies, up to the one of the command.
async fn browse(start: &str) -> String {
    let client = Client::builder().redirect(redirect::Policy::none()).build().unwrap();
    let mut cookies: BTreeMap<String, String> = BTreeMap::new();
    let mut url: Url = start.parse().unwrap();
    for _ in 0..10 {
        let jar: Vec<String> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let answer = client.get(url.clone()).header(header::COOKIE, jar.join("; ")).send().await.unwrap();
        for cookie in answer.headers().get_all(header::SET_COOKIE) {
            let pair = cookie.to_str().unwrap().split(';').next().unwrap().to_owned();
            let (name, value) = pair.split_once('=').unwrap();
            cookies.insert(name.to_owned(), value.to_owned());
        }
        let status = answer.status();
        let Some(next) = answer.headers().get(header::LOCATION).map(|next| next.to_str().unwrap().to_owned()) else {
            panic!("{url} leads nowhere: {status}: {}", answer.text().await.unwrap());
        };
        url = url.join(&next).unwrap();
        if url.path() == "/callback" {
            return url.into();
        }
    }
    panic!("it goes round in circles at {url}")
}

#[tokio::test]
async fn a_write_is_made_with_a_login_that_is_refreshed_once_by_many_and_shown_nowhere() {
    let Some(scene) = scene(8).await else { return };
    scene.configure(&scene.server.url(), "", true);
    let refused = scene.place.ends(&["mcp", "login", "notes"], 1).await;
    assert!(refused.stderr().contains("leasehold key create"), "{refused}");
    scene.configure(&scene.server.url(), "", false);
    assert_eq!(scene.state().await.0, "none");
    let refused = scene.place.ends(&["mcp", "probe", "notes"], 1).await;
    assert!(refused.stderr().contains("leasehold mcp login notes"), "{refused}");
    assert_eq!(scene.text("ledger.requests"), "", "without a token nothing is asked");

    scene.log_in().await;
    let (state, line) = scene.state().await;
    assert_eq!((state.as_str(), &line["login"]["can_refresh"]), ("valid", &json!(true)), "{line}");
    let ran = scene.run(0).await;
    assert_eq!((scene.outcome(&ran).await.0.as_str(), scene.written()), ("done", 1));

    // The token is over in the middle of its life here; of many processes one refreshes it, and what it is given is rotated.
    scene.until_state("expired").await;
    let refreshed = scene.lines("giver", "refresh_token").len();
    let many: Vec<Ran> = futures::future::join_all((0..4).map(|_| scene.run(0))).await;
    assert_eq!(many.len(), 4);
    assert_eq!(scene.written(), 5);
    let refreshes = scene.lines("giver", "refresh_token");
    // A slow machine may need a second one before all four are through.
    assert!((1..=2).contains(&(refreshes.len() - refreshed)), "{refreshes:?}");
    assert!(refreshes.iter().all(|line| line.contains(" 200 ") && line.ends_with("/mcp")), "{refreshes:?}");
    let used: BTreeSet<&str> = refreshes.iter().map(|line| line.split(' ').nth(1).unwrap()).collect();
    assert_eq!(used.len(), refreshes.len(), "no refresh token came twice: {refreshes:?}");

    // A server that repeats what it was shown.
    scene.place.script(&one_call("notes.token", "{}"));
    let ran = scene.run(0).await;
    let (outcome, said) = scene.outcome(&ran).await;
    assert!(outcome == "done" && said.contains("shown: Bearer ***"), "{said}");
    assert!(scene.tokens().len() >= 4);
    assert_eq!(scene.leaks(), Vec::<String>::new());
    for arguments in [&["mcp", "list", "--json"][..], &["audit", "--json"], &["mcp", "list"]] {
        let ran = scene.place.ends(arguments, 0).await;
        let said = format!("{}{}", ran.stdout(), ran.stderr());
        assert!(scene.tokens().iter().all(|token| !said.contains(token.as_str())), "{said}");
    }
}

#[tokio::test]
async fn a_logout_counts_from_the_next_call_and_a_login_is_for_its_place_only() {
    let Some(scene) = scene(600).await else { return };
    scene.log_in().await;
    assert_eq!(scene.run(0).await.code(), 0);
    assert_eq!(scene.written(), 1);

    // The same name at another place does not get the token.
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    scene.configure(&format!("http://{}/mcp", other.local_addr().unwrap()), "", false);
    assert_eq!(scene.state().await.0, "other_place");
    let refused = scene.place.ends(&["mcp", "probe", "notes"], 1).await;
    assert!(refused.stderr().contains("the login is for"), "{refused}");
    assert!(tokio::time::timeout(Duration::ZERO, other.accept()).await.is_err(), "nobody came");
    scene.configure(&scene.server.url(), "", false);
    assert_eq!(scene.state().await.0, "valid");

    // A process that runs hears of the logout too.
    let worker = scene.place.running("worker");
    let id = scene.place.home.enqueue().await;
    scene.place.home.until(id, "settled", |row| row.state.is_settled()).await;
    assert_eq!(scene.written(), 2);
    scene.place.ends(&["mcp", "logout", "notes"], 0).await;
    assert_eq!(scene.state().await.0, "none");
    let requests = scene.text("ledger.requests");
    let id = scene.place.home.enqueue().await;
    scene.place.home.until(id, "settled", |row| row.state.is_settled()).await;
    assert_eq!((scene.written(), scene.text("ledger.requests")), (2, requests), "nothing was sent");
    drop(worker);
    let audit = scene.place.ends(&["audit", "--json"], 0).await.stdout();
    assert!(audit.contains("mcp_logged_in") && audit.contains("mcp_logged_out"), "{audit}");
    let again = scene.place.ends(&["mcp", "logout", "notes"], 0).await;
    assert!(again.stderr().contains("nobody was logged in"), "{again}");

    // One whose server is gone from the configuration, or cannot be reached, is forgotten as well.
    scene.log_in().await;
    scene.place.configure_more("[seal]\nkeyring = \"leasehold.keyring\"\n", "[]");
    let gone = scene.place.ends(&["mcp", "logout", "notes", "--json"], 0).await;
    assert_eq!(gone.json()["was_in"], json!(true), "{gone}");
    let unknown = scene.place.ends(&["mcp", "logout", "notes"], 2).await;
    assert!(unknown.stderr().contains("no mcp server `notes`"), "{unknown}");
    scene.configure(&scene.server.url(), "", false);
    assert_eq!(scene.state().await.0, "none");
}

#[tokio::test]
async fn a_write_that_is_refused_for_its_token_is_over_and_the_next_has_another() {
    let Some(scene) = scene(600).await else { return };
    scene.log_in().await;
    assert_eq!(scene.run(0).await.code(), 0);
    let calls = || scene.lines("ledger.requests", "tools/call");
    assert_eq!((calls().len(), scene.written()), (1, 1));
    let worker = scene.place.running("worker");

    scene.place.home.write("ledger.refuse", "401 Bearer error=\"invalid_token\"");
    let (outcome, said) = scene.worked().await;
    assert!(outcome == "done" && said.contains("401") && said.contains("leasehold mcp login notes"), "{outcome}: {said}");
    assert_eq!((calls().len(), scene.written()), (2, 1), "it was not sent again");
    assert_eq!(scene.worked().await.0, "done");
    assert_eq!((calls().len(), scene.written()), (3, 2));
    let shown: Vec<String> = calls().iter().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect();
    assert!(shown[0] == shown[1] && shown[1] != shown[2], "{shown:?}");
    assert_eq!(scene.lines("giver", "refresh_token").len(), 1);

    // One that says no to every token gets no other each time.
    scene.place.home.write("ledger.refuse", "401 Bearer error=\"invalid_token\"");
    assert!(scene.worked().await.1.contains("401"));
    assert_eq!(scene.worked().await.0, "done");
    assert_eq!((calls().len(), scene.written()), (5, 3));
    assert_eq!(scene.lines("giver", "refresh_token").len(), 1, "the one before was got just now");

    scene.place.home.write("ledger.refuse", "403 Bearer error=\"insufficient_scope\", scope=\"admin\"");
    let (outcome, said) = scene.worked().await;
    assert!(outcome == "done" && said.contains("403") && said.contains("`admin`") && said.contains("`scopes`"), "{said}");
    assert_eq!((calls().len(), scene.written()), (6, 3));
    assert_eq!(scene.lines("giver", "refresh_token").len(), 1, "another token would be good for as little");

    // Nor is the token taken elsewhere.
    let elsewhere = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    scene.place.home.write("ledger.refuse", &format!("307 http://{}/mcp", elsewhere.local_addr().unwrap()));
    let id = scene.place.home.enqueue().await;
    scene.place.home.until(id, "in doubt", |row| row.state == State::Dead).await;
    assert!(tokio::time::timeout(Duration::ZERO, elsewhere.accept()).await.is_err(), "nobody came");
    drop(worker);

    let server = format!("[[mcp]]\nname = \"notes\"\nurl = \"{}\"\n", scene.server.url());
    scene.place.configure_more(&format!("[seal]\nkeyring = \"leasehold.keyring\"\n{server}"), r#"["notes.*"]"#);
    let refused = scene.place.ends(&["mcp", "probe", "notes"], 1).await;
    assert!(refused.stderr().contains("401") && refused.stderr().contains("write [mcp.oauth]"), "{refused}");
}

#[tokio::test]
async fn a_process_that_is_killed_between_a_refresh_and_keeping_it_leaves_a_login_that_says_so() {
    let Some(scene) = scene(4).await else { return };
    scene.log_in().await;
    assert_eq!(scene.run(0).await.code(), 0);
    scene.until_state("expired").await;
    scene.place.home.write("giver.hold", "");
    let refreshed = scene.lines("giver", "refresh_token").len();
    let mut killed = scene.place.home.start(&["run", "note a line"], None);
    scene.until_lines("giver", "refresh_token", refreshed + 1).await;
    killed.kill();
    assert_eq!(scene.written(), 1);

    // Who comes next waits until the right to refresh is free, and is told no: what the dead one was given replaced what is kept.
    let ran = scene.run(0).await;
    let (outcome, said) = scene.outcome(&ran).await;
    assert!(outcome == "not_applied" && said.contains("leasehold mcp login notes"), "{outcome}: {said}");
    assert_eq!(scene.written(), 1);
    let line = scene.until_state("needed").await;
    assert!(line["login"]["why"].as_str().unwrap().contains("invalid_grant"), "{line}");
    let asked = scene.text("giver");
    scene.place.ends(&["mcp", "probe", "notes"], 1).await;
    assert_eq!(scene.text("giver"), asked, "what was refused for good is not asked for again");

    scene.log_in().await;
    assert_eq!(scene.run(0).await.code(), 0);
    assert_eq!(scene.written(), 2);
}

#[tokio::test]
async fn a_login_that_is_ended_at_its_giver_says_so_and_a_machine_logs_in_by_itself() {
    let Some(scene) = scene(4).await else { return };
    scene.log_in().await;
    let given = scene.text("giver.tokens");
    let (token, client) = given.lines().nth(1).unwrap().split_once(' ').unwrap();
    let form = [("token", token), ("client_id", client)];
    let answer = Client::new().post(format!("{}/token/revocation", scene.giver.origin())).form(&form).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    scene.until_state("expired").await;
    let refused = scene.place.ends(&["mcp", "probe", "notes"], 1).await;
    assert!(refused.stderr().contains("refused to refresh") && refused.stderr().contains("mcp login notes"), "{refused}");
    assert_eq!(scene.state().await.0, "needed");

    let machine = "grant = \"client_credentials\"\nclient_id = \"machine\"\nclient_secret_env = \"SECRET\"";
    let machine = &format!("{machine}\nissuer = \"{}\"", scene.giver.origin());
    scene.configure(&scene.server.url(), machine, false);
    assert!(scene.place.server("notes").await["problem"].as_str().unwrap().contains("SECRET"));
    let secret = [("SECRET", "machine-secret-of-the-tests")];
    let ran = scene.place.home.run_with(&["run", "--json", "note a line"], &secret).await;
    assert_eq!((ran.code(), scene.written()), (0, 1), "{ran}");
    let lines = scene.lines("giver", "client_credentials");
    assert!(lines.len() == 1 && lines[0].ends_with("/mcp"), "{lines:?}");
}

#[tokio::test]
async fn a_login_takes_its_own_answer_only() {
    let Some(scene) = scene(600).await else { return };
    let (mut login, url) = scene.login(&[]).await;
    let back = browse(&url).await;
    let mut forged: Url = back.parse().unwrap();
    forged.set_query(Some("code=stolen&state=guessed"));
    assert_eq!(reqwest::get(forged).await.unwrap().status(), 400, "and it waits on");
    // Another issuer than the one that was asked.
    let issuer: String = url_encoded(&scene.giver.origin());
    let mixed = back.replace(&format!("iss={issuer}"), "iss=https%3A%2F%2Fevil.example");
    assert_ne!(mixed, back);
    assert_eq!(reqwest::get(&mixed).await.unwrap().status(), 200);
    assert_eq!(ended(&mut login).await, 1);
    assert!(scene.text("login.err").contains("issuer"), "{}", scene.text("login.err"));
    assert!(scene.tokens().is_empty(), "no code went anywhere");

    scene.place.home.write("giver.deny", "");
    let (mut login, url) = scene.login(&[]).await;
    assert_eq!(reqwest::get(browse(&url).await).await.unwrap().status(), 200);
    assert_eq!(ended(&mut login).await, 1);
    assert!(scene.text("login.err").contains("access_denied: not today"), "{}", scene.text("login.err"));
    assert_eq!(scene.state().await.0, "none");

    // The browser is elsewhere.
    let (mut login, url) = scene.login(&["--no-browser"]).await;
    let back = browse(&url).await;
    let mut input = login.input().unwrap();
    writeln!(input, "{back}").unwrap();
    drop(input);
    assert_eq!(ended(&mut login).await, 0, "{}", scene.text("login.err"));
    assert_eq!(scene.state().await.0, "valid");
}

fn url_encoded(text: &str) -> String {
    Url::parse_with_params("http://x/", [("k", text)]).unwrap().query().unwrap()[2..].to_owned()
}
