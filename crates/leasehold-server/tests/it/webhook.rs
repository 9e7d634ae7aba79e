//! The webhook with the real command and a real receiver: nothing is lost, nothing is sent twice without need, nothing is said of what
//! a run is about, and it goes only where it may.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use leasehold::run::{RunId, State};
use leasehold_testkit::{
    far_side::{Arrived, FarSide, Then},
    home::{APPEND_ONCE, Home, Ledger, Running},
    postgres::{Cluster, Version},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    io::Write as _,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An agent whose model takes its time.
const SLOW: &str = r#"
[[model]]
name = "slow"
provider = "scripted"
script = "slow.toml"
[[agent]]
name = "sleeper"
model = "slow"
"#;

struct Scene {
    home: Home,
    ledger: FarSide,
}

impl Scene {
    /// A home whose webhook is there.
    async fn new(home: Home, hook: &str) -> Self {
        let ledger = FarSide::start().await.unwrap();
        let declared = Ledger { effect: "non_idempotent_write", approval: "required", timeout: "20s" };
        let webhook = format!("[webhook]\nurl = \"{hook}\"\nlink_base = \"https://lh.example.com/\"\n");
        home.write("slow.toml", "[[reply]]\ntext = \"slept\"\npause = \"60s\"\n");
        home.ledger_with(&ledger, declared, APPEND_ONCE, &format!("{SLOW}{webhook}"));
        Self { home, ledger }
    }

    fn worker(&self) -> Running {
        let mut command = self.home.command(&["worker"]);
        command.env("LEASEHOLD_WEBHOOK_SECRET", SECRET);
        self.home.start_as(command, None)
    }

    /// Releases what waits, for a worker to execute.
    async fn approve(&self, run: RunId) {
        let row = self.home.row(run).await;
        let digest = row.turn.unwrap().digest.unwrap();
        let ran = self.home.run(&["approve", &run.to_string(), "--digest", &digest, "--no-wait"]).await;
        assert_eq!(ran.code(), 0, "{ran}");
    }

    async fn waits(&self, run: RunId) {
        self.home.until(run, "waiting", |row| row.state == State::WaitingForApproval).await;
    }

    /// Looks at the events in the store until it is as it should be.
    async fn until_written(&self, what: &str, holds: impl Fn(&[Value]) -> bool) {
        let store = self.home.store().await;
        let started = Instant::now();
        loop {
            let records = store.records("webhook", None, 1_000).await.unwrap();
            let notices: Vec<Value> = records.iter().map(|r| serde_json::from_str(&r.body).unwrap()).collect();
            if holds(&notices) {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "not {what}: {notices:#?}");
            // Between two looks at what another process writes there is no signal to wait for.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A port on which nothing listens yet.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn body(arrived: &Arrived) -> Value {
    serde_json::from_slice(&arrived.body).unwrap()
}

fn kind_and_run(arrived: &Arrived) -> (String, String) {
    let body = body(arrived);
    (body["type"].as_str().unwrap().to_owned(), body["data"]["run"].as_str().unwrap().to_owned())
}

/// Waits until each of these has arrived at least once.
async fn arrive(receiver: &FarSide, expected: &[(&str, RunId)]) -> Vec<Arrived> {
    let expected: BTreeSet<(String, String)> =
        expected.iter().map(|(kind, run)| ((*kind).to_owned(), run.to_string())).collect();
    let mut count = 0;
    loop {
        let waited = tokio::time::timeout(Duration::from_secs(90), receiver.wait_for(count + 1)).await;
        let arrived = waited.unwrap_or_else(|_| {
            let got: Vec<_> = receiver.arrived().iter().map(kind_and_run).collect();
            panic!("not all of {expected:?} arrived, but {got:?}")
        });
        let got: BTreeSet<_> = arrived.iter().map(kind_and_run).collect();
        if expected.is_subset(&got) {
            return arrived;
        }
        count = arrived.len();
    }
}

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(name)
}

/// The library of the specification's own authors; none where this machine has no Python.
fn verifier() -> Option<PathBuf> {
    let ran = |program: &Path, arguments: &[&str]| {
        let ended = Command::new(program).args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).status();
        ended.is_ok_and(|status| status.success())
    };
    if !ran(Path::new("python3"), &["-c", "import venv"]) {
        eprintln!("python3 is missing: the signatures are not verified by the public library");
        return None;
    }
    let place = target("standardwebhooks");
    let python = place.join("bin/python");
    if !ran(&python, &["-c", "import standardwebhooks"]) {
        assert!(ran(Path::new("python3"), &["-m", "venv", place.to_str().unwrap()]), "no environment in {}", place.display());
        let package = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "standardwebhooks==1.0.1"];
        assert!(ran(&python, &package), "standardwebhooks cannot be installed into {}", place.display());
    }
    Some(python)
}

/// Each request is signed as the public library wants it, and no longer once one byte of it is another.
fn verified_by_the_public_library(arrived: &[Arrived]) {
    let Some(python) = verifier() else { return };
    let script = "
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
hook = Webhook(sys.argv[1])
for line in sys.stdin:
    request = json.loads(line)
    hook.verify(request['body'], request['headers'])
    for body, headers in (
        (request['body'] + ' ', request['headers']),
        (request['body'], dict(request['headers'], **{'webhook-id': 'msg_1'})),
        (request['body'], dict(request['headers'], **{'webhook-timestamp': str(int(request['headers']['webhook-timestamp']) + 1)})),
    ):
        try:
            hook.verify(body, headers)
        except WebhookVerificationError:
            continue
        sys.exit('a changed request was taken')
";
    let mut child = Command::new(python).args(["-c", script, SECRET]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for request in arrived {
        let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"].map(|name| (name, request.header(name)));
        let headers: Value = headers.into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
        writeln!(stdin, "{}", json!({ "body": request.text(), "headers": headers })).unwrap();
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
}

/// Keys and words of ours, ids, a link and a head: nothing that anybody said or configured.
fn says_nothing_of_its_run(arrived: &Arrived) {
    let text = arrived.text();
    for content in ["append a line", "ledger", "\"one\"", "sleeper", "local:", "appended", "127.0.0.1"] {
        assert!(!text.contains(content), "`{content}` is in {text}");
    }
    let body = body(arrived);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&body), ["data", "timestamp", "type"].map(str::to_owned).into());
    let known = ["head", "link", "reason", "run", "state"];
    assert!(keys(&body["data"]).iter().all(|key| known.contains(&key.as_str())), "{text}");
    let link = format!("https://lh.example.com/runs/{}", body["data"]["run"].as_str().unwrap());
    assert_eq!(body["data"]["link"], link);
}

async fn every_event_arrives_though_the_receiver_is_away_and_we_are_killed(home: Home) {
    let port = free_port();
    let scene = Scene::new(home, &format!("http://127.0.0.1:{port}/hook?key=1")).await;
    let (first, second) = (scene.home.enqueue().await, scene.home.enqueue().await);

    // The receiver is away: the events are written down, tried, and tried again by who comes after a killed one.
    let mut worker = scene.worker();
    for run in [first, second] {
        scene.waits(run).await;
    }
    scene.until_written("tried", |all| all.len() == 2 && all.iter().all(|n| n["attempts"].as_u64() > Some(0))).await;
    worker.kill();
    scene.approve(first).await;
    let mut worker = scene.worker();
    scene.home.until(first, "completed", |row| row.state == State::Completed).await;
    // In the middle of a write that nobody repeats, and of a run that somebody waits for.
    scene.ledger.then([Then::Hold]);
    scene.approve(second).await;
    scene.ledger.wait_for(2).await;
    worker.kill();
    let mut waits = scene.home.start(&["run", "--agent", "sleeper", "sleep"], None);
    let third = loop {
        let listed = scene.home.run(&["runs", "list", "--json"]).await.json();
        let row = listed["items"].as_array().unwrap().iter().find(|row| row["agent"] == "sleeper").cloned();
        if let Some(id) = row.and_then(|row| row["id"].as_str()?.parse().ok()) {
            break id;
        }
    };
    waits.kill();

    let receiver = FarSide::start_on(port).await.unwrap();
    // It is there, and not well.
    receiver.then([Then::Answer(503, String::new()), Then::HangUp]);
    let _worker = scene.worker();
    let expected = [
        ("run.waiting", first),
        ("run.waiting", second),
        ("run.settled", first),
        ("run.in_doubt", second),
        ("run.dead", third),
    ];
    let arrived = arrive(&receiver, &expected).await;
    scene.until_written("delivered", |all| all.len() == 5 && all.iter().all(|n| n["ended"][0] == "delivered")).await;

    verified_by_the_public_library(&arrived);
    for request in &arrived {
        says_nothing_of_its_run(request);
        assert_eq!(request.uri.to_string(), "/hook?key=1");
        assert_eq!(request.header("content-type"), "application/json");
    }
    // One id for each event, however often it was sent, and the same body each time.
    let ids: BTreeSet<String> = arrived.iter().map(|request| request.header("webhook-id")).collect();
    let said: BTreeSet<(String, String)> = arrived.iter().map(|r| (r.header("webhook-id"), r.text())).collect();
    assert_eq!((ids.len(), said.len()), (5, 5), "{said:?}");
    let settled = arrived.iter().find(|request| body(request)["type"] == "run.settled").unwrap();
    let head = body(settled)["data"]["head"].as_str().unwrap().to_owned();
    let verified = scene.home.run(&["verify", &first.to_string(), "--against", &head]).await;
    assert_eq!((verified.code(), verified.stdout().trim_end()), (0, head.as_str()), "{verified}");
    let dead = arrived.iter().find(|request| body(request)["type"] == "run.dead").unwrap();
    assert_eq!((&body(dead)["data"]["state"], &body(dead)["data"]["reason"]), (&json!("dead"), &json!("abandoned")));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_of_a_file_arrives_though_the_receiver_is_away_and_we_are_killed() {
    every_event_arrives_though_the_receiver_is_away_and_we_are_killed(Home::new(BINARY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_event_of_a_database_arrives_though_the_receiver_is_away_and_we_are_killed() {
    let database = Cluster::shared(Version::V15).database().await;
    every_event_arrives_though_the_receiver_is_away_and_we_are_killed(Home::on_database(BINARY, database)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_whose_process_is_killed_while_it_sends_comes_again_from_another_one_with_its_id() {
    let receiver = FarSide::start().await.unwrap();
    let scene = Scene::new(Home::new(BINARY), &receiver.url("/hook")).await;
    receiver.then([Then::Hold]);
    let run = scene.home.enqueue().await;
    let mut worker = scene.worker();
    receiver.wait_for(1).await;
    worker.kill();
    let _worker = scene.worker();
    let arrived = receiver.wait_for(2).await;
    assert!(arrived.iter().all(|request| kind_and_run(request) == ("run.waiting".into(), run.to_string())));
    assert_eq!((arrived[0].header("webhook-id"), arrived[0].text()), (arrived[1].header("webhook-id"), arrived[1].text()));
    scene.until_written("delivered", |all| all.len() == 1 && all[0]["ended"][0] == "delivered").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_side_by_side_send_each_event_once_and_nothing_of_before_the_webhook() {
    let receiver = FarSide::start().await.unwrap();
    let scene = Scene::new(Home::new(BINARY), &receiver.url("/hook")).await;
    // Settled before any worker was told to tell.
    let before = scene.home.enqueue().await;
    let cancelled = scene.home.run(&["runs", "cancel", &before.to_string()]).await;
    assert_eq!(cancelled.code(), 0, "{cancelled}");
    let _workers = [scene.worker(), scene.worker(), scene.worker()];
    let mut expected = Vec::new();
    for _ in 0..6 {
        expected.push(scene.home.enqueue().await);
    }
    for run in &expected {
        scene.waits(*run).await;
        let ran = scene.home.run(&["runs", "cancel", &run.to_string()]).await;
        assert_eq!(ran.code(), 0, "{ran}");
    }
    let settled: Vec<(&str, RunId)> = expected.iter().map(|run| ("run.settled", *run)).collect();
    arrive(&receiver, &settled).await;
    scene.until_written("all ended", |all| all.iter().all(|notice| notice["ended"][0] == "delivered")).await;
    let arrived = receiver.arrived();
    let ids: BTreeSet<String> = arrived.iter().map(|request| request.header("webhook-id")).collect();
    assert_eq!(ids.len(), arrived.len(), "some were sent twice: {arrived:?}");
    assert!(arrived.iter().all(|request| kind_and_run(request).1 != before.to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_is_not_followed_and_the_event_stays_to_be_delivered() {
    let (receiver, elsewhere) = (FarSide::start().await.unwrap(), FarSide::start().await.unwrap());
    let scene = Scene::new(Home::new(BINARY), &receiver.url("/hook")).await;
    receiver.then([Then::MovedTo(elsewhere.url("/")), Then::Redirect(elsewhere.url("/"))]);
    let run = scene.home.enqueue().await;
    let _worker = scene.worker();
    let arrived = receiver.wait_for(3).await;
    assert!(arrived.iter().all(|request| kind_and_run(request) == ("run.waiting".into(), run.to_string())));
    scene
        .until_written("delivered", |all| all.len() == 1 && all[0]["ended"][0] == "delivered" && all[0]["attempts"] == 3)
        .await;
    assert_eq!(elsewhere.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_by_itself_tells_what_it_did_and_one_without_the_secret_does_not_begin() {
    let receiver = FarSide::start().await.unwrap();
    let scene = Scene::new(Home::new(BINARY), &receiver.url("/hook")).await;
    let run = scene.home.enqueue().await;
    for (secret, said) in [("", "is not set"), ("hunter2", "does not begin with `whsec_`"), ("whsec_aHVudGVyMg==", "24 to 64")]
    {
        let ran = scene.home.run_with(&["worker", "--once"], &[("LEASEHOLD_WEBHOOK_SECRET", secret)]).await;
        assert_eq!(ran.code(), 2, "{ran}");
        assert!(
            ran.stderr().contains(said) && !ran.stderr().contains("hunter2") && !ran.stderr().contains("aHVudGVy"),
            "{ran}"
        );
    }
    let ran = scene.home.run_with(&["worker", "--once"], &[("LEASEHOLD_WEBHOOK_SECRET", SECRET)]).await;
    assert_eq!(ran.code(), 0, "{ran}");
    let arrived = receiver.arrived();
    assert_eq!(arrived.iter().map(kind_and_run).collect::<Vec<_>>(), [("run.waiting".to_owned(), run.to_string())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_that_may_not_be_is_refused_with_its_line_and_without_its_url() {
    let scene = Scene::new(Home::new(BINARY), "https://hooks.example.com/secret-path").await;
    let shown = scene.home.run(&["config"]).await;
    assert!(shown.code() == 0 && shown.stdout().contains("hooks.example.com/***") && !shown.stdout().contains("secret-path"));
    for (lines, said) in [
        ("url = \"http://169.254.169.254/secret-path\"\ninsecure_http = true", "link-local"),
        ("url = \"https://[fe80::1]/secret-path\"", "link-local"),
        ("url = \"http://hooks.example.com/secret-path\"", "insecure_http = true"),
        ("url = \"https://a:secret-path@hooks.example.com/\"", "no user"),
        ("url = \"https://hooks.example.com/\"\nevents = []", "no events"),
        ("url = \"https://hooks.example.com/\"\nevents = [\"waitin\"]", "waiting"),
        ("url = \"https://hooks.example.com/\"\nsecret_env = \"whsec_secret-path\"", "not the name"),
        ("url = \"https://hooks.example.com/\"\nlink_base = \"lh.example.com\"", "not an http"),
        ("secret_env = \"X\"", "`url` is missing"),
        ("url = \"https://hooks.example.com/\"\nurls = 1", "unknown key `urls`"),
    ] {
        scene.home.write("leasehold.toml", &format!("[webhook]\n{lines}\n"));
        let ran = scene.home.run(&["config"]).await;
        assert_eq!(ran.code(), 2, "{lines}: {ran}");
        let text = ran.stderr();
        assert!(text.contains("leasehold.toml:") && text.contains(said) && !text.contains("secret-path"), "{lines}: {text}");
    }
}
