//! HTTP tools against real sockets: what each kind of answer, or the lack of one, means, and what is on the wire.

use super::*;
use crate::{
    agent::tool::WriteAnswer,
    clock::{BootClock, BootInstant, ManualClock},
    run::{CallId, RunId},
    worker::trust::TrustWindow,
};
use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// What the far side does after it read a request.
#[derive(Clone)]
enum Then {
    /// Answers these bytes and closes.
    Answer(Vec<u8>),
    /// Closes with a reset.
    Reset,
    /// Answers these bytes, then resets.
    AnswerThenReset(Vec<u8>),
    /// Never answers.
    Stall,
}

/// A far side that commits each request it reads (it keeps it) and then does one thing.
struct FarSide {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FarSide {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FarSide {
    async fn that(then: Then) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (requests, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (kept, counted) = (requests.clone(), connections.clone());
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                let (kept, then) = (kept.clone(), then.clone());
                tokio::spawn(async move {
                    let Some(request) = read_request(&mut stream).await else { return };
                    kept.lock().unwrap().push(request);
                    match then {
                        Then::Answer(bytes) => {
                            let _ = stream.write_all(&bytes).await;
                        }
                        Then::Reset => stream.set_zero_linger().unwrap(),
                        Then::AnswerThenReset(bytes) => {
                            stream.write_all(&bytes).await.unwrap();
                            stream.set_zero_linger().unwrap();
                        }
                        Then::Stall => std::future::pending().await,
                    }
                });
            }
        });
        Self { url, requests, connections, task }
    }

    async fn answering(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Self {
        Self::that(Then::Answer(answer(status, headers, body))).await
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn answer(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status} x\r\n{headers}content-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

async fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = stream.read(&mut buffer).await.ok()?;
        if read == 0 {
            return None;
        }
        bytes.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned))
                .map_or(0, |length| length.trim().parse().unwrap());
            if body.len() >= length {
                return Some(text);
            }
        }
    }
}

const JSON: &str = "content-type: application/json\r\n";
const TEXT: &str = "content-type: text/plain\r\n";

fn config(url: &str, extra: &str) -> HttpToolConfig {
    let text = format!("name = \"ledger.append\"\ndescription = \"Append\"\nurl = \"{url}\"\n{extra}");
    toml::from_str(&text).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn write_tool(url: &str, extra: &str) -> Arc<dyn WriteTool> {
    let extra = format!("effect = \"non_idempotent_write\"\nmethod = \"POST\"\nparameters = {{ type = \"object\" }}\n{extra}");
    match HttpTool::build_with_env(config(url, &extra), env).unwrap() {
        Tool::Write(tool, _) => tool,
        Tool::Transactional(..) | Tool::Read(_) => panic!("a write was declared"),
    }
}

fn read_tool(url: &str, extra: &str) -> Arc<dyn ReadTool> {
    match HttpTool::build_with_env(config(url, &format!("effect = \"read_only\"\n{extra}")), env).unwrap() {
        Tool::Read(tool) => tool,
        Tool::Write(..) | Tool::Transactional(..) => panic!("a read was declared"),
    }
}

fn env(name: &str) -> Option<String> {
    (name == "LEDGER_TOKEN").then(|| "s3cret".to_owned())
}

fn permit_of(run: RunId, left: Duration) -> WritePermit {
    let clock = ManualClock::new();
    let trust = TrustWindow::new(clock.clone(), Duration::from_secs(60), clock.now());
    clock.advance(Duration::from_secs(60) - left);
    WritePermit::for_test(run, CallId::of(1, 0), 7, trust)
}

fn permit() -> WritePermit {
    permit_of(RunId::new(), Duration::from_secs(60))
}

fn arguments(value: Value) -> Arguments {
    value.as_object().unwrap().clone()
}

fn one_line() -> Arguments {
    arguments(json!({ "text": "one" }))
}

async fn append(far: &FarSide, extra: &str) -> WriteAnswer {
    write_tool(&format!("{}/append", far.url), extra).call(permit(), &one_line()).await
}

fn is_unknown(answer: &WriteAnswer) -> bool {
    matches!(answer, WriteAnswer::Unknown { .. })
}

#[tokio::test]
async fn a_write_carries_its_key_run_and_epoch_and_the_operators_headers() {
    let far = FarSide::answering(200, JSON, r#"{"line":1}"#).await;
    let tool = write_tool(
        &format!("{}/append", far.url),
        "headers = { Authorization = { env = \"LEDGER_TOKEN\", prefix = \"Bearer \" }, X-Org = \"acme\" }",
    );
    let run = RunId::new();
    let permit = permit_of(run, Duration::from_secs(60));
    let key = permit.idempotency_key().to_owned();
    assert_eq!(tool.call(permit, &one_line()).await, WriteAnswer::done(json!({ "line": 1 })));
    let requests = far.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].starts_with("POST /append HTTP/1.1\r\n"), "{}", requests[0]);
    for line in [
        format!("idempotency-key: {key}"),
        format!("leasehold-run: {run}"),
        "leasehold-fencing-token: 7".into(),
        "authorization: Bearer s3cret".into(),
        "x-org: acme".into(),
        "content-type: application/json".into(),
    ] {
        assert!(requests[0].contains(&format!("\r\n{line}\r\n")), "{line} in {}", requests[0]);
    }
    assert!(requests[0].ends_with(r#"{"text":"one"}"#));
    assert!(!requests[0].contains("accept-encoding"), "{}", requests[0]);
}

#[tokio::test]
async fn each_status_means_what_the_protocol_says() {
    for status in [200, 201, 202, 204, 400, 401, 403, 404, 405, 410, 413, 415, 422] {
        let far = FarSide::answering(status, "", "").await;
        let WriteAnswer::Done { is_error, result } = append(&far, "").await else { panic!("{status}") };
        assert_eq!(is_error, status >= 400, "{status}");
        assert!(!is_error || result["status"] == status, "{result}");
        assert_eq!(far.requests().len(), 1, "{status}");
    }
    for status in [300, 301, 302, 303, 307, 308, 402, 406, 408, 409, 412, 418, 425, 429, 451, 500, 501, 502, 503, 504, 599] {
        let far = FarSide::answering(status, "location: /elsewhere\r\n", "{}").await;
        let answer = append(&far, "").await;
        assert!(is_unknown(&answer), "{status}: {answer:?}");
        assert_eq!((far.requests().len(), far.connections.load(Ordering::SeqCst)), (1, 1), "{status}");
    }
}

#[tokio::test]
async fn the_operator_moves_statuses() {
    let moved = "outcomes = { done = [409], not_applied = [503], unknown = [404] }";
    let far = FarSide::answering(409, TEXT, "there already").await;
    assert_eq!(
        append(&far, moved).await,
        WriteAnswer::Done { result: json!({ "status": 409, "body": "there already" }), is_error: true }
    );
    let far = FarSide::answering(503, TEXT, "later").await;
    assert!(matches!(append(&far, moved).await, WriteAnswer::NotApplied { .. }));
    let far = FarSide::answering(404, TEXT, "").await;
    assert!(is_unknown(&append(&far, moved).await));
}

#[tokio::test]
async fn a_far_side_that_commits_and_resets_stalls_or_breaks_off_is_unknown_after_one_request() {
    for then in [
        Then::Reset,
        Then::Stall,
        Then::Answer(Vec::new()),
        Then::Answer(b"HTTP/1.1 200 OK\r\ncontent-le".to_vec()),
        Then::Answer(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_vec()),
        Then::Answer(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel".to_vec()),
        Then::AnswerThenReset(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_vec()),
        Then::Answer(b"SSH-2.0-x\r\n".to_vec()),
    ] {
        let far = FarSide::that(then).await;
        let answer = append(&far, "timeout = \"400ms\"").await;
        assert!(is_unknown(&answer), "{answer:?}");
        assert_eq!((far.requests().len(), far.connections.load(Ordering::SeqCst)), (1, 1));
    }
}

#[tokio::test]
async fn a_body_that_stalls_after_its_status_runs_into_the_same_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/append", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await.unwrap();
        std::future::pending::<()>().await;
    });
    assert!(is_unknown(&write_tool(&url, "timeout = \"300ms\"").call(permit(), &one_line()).await));
    server.abort();
}

#[tokio::test]
async fn each_write_has_a_connection_of_its_own_though_the_far_side_would_keep_one() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/append", listener.local_addr().unwrap());
    let served = Arc::new(Mutex::new(Vec::new()));
    let counted = served.clone();
    let server = tokio::spawn(async move {
        for connection in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            let served = counted.clone();
            tokio::spawn(async move {
                while read_request(&mut stream).await.is_some() {
                    served.lock().unwrap().push(connection);
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                }
            });
        }
    });
    let tool = write_tool(&url, "");
    for _ in 0..3 {
        assert!(matches!(tool.call(permit(), &one_line()).await, WriteAnswer::Done { is_error: false, .. }));
    }
    assert_eq!(*served.lock().unwrap(), [0, 1, 2]);
    server.abort();
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_the_other_server_hears_nothing() {
    let other = FarSide::answering(200, "", "").await;
    for status in [301, 302, 303, 307, 308] {
        let far = FarSide::answering(status, &format!("location: {}/append\r\n", other.url), "").await;
        assert!(is_unknown(&append(&far, "").await), "{status}");
    }
    assert_eq!(other.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_connection_that_never_was_is_not_applied() {
    // A port that was free a moment ago and that nobody listens on.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = format!("http://{}/append", listener.local_addr().unwrap());
    drop(listener);
    // A server that speaks no TLS, so the handshake fails before any request.
    let plain = FarSide::answering(400, "", "").await;
    let no_tls = plain.url.replace("http://", "https://");
    for url in [refused.as_str(), "http://nobody.invalid/append", no_tls.as_str()] {
        let answer = write_tool(url, "timeout = \"1s\"").call(permit(), &one_line()).await;
        assert!(matches!(&answer, WriteAnswer::NotApplied { .. }), "{url}: {answer:?}");
    }
    assert!(plain.requests().iter().all(|request| !request.contains("append")));
}

#[tokio::test]
async fn a_connection_that_is_accepted_and_closed_at_once_is_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/append", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_zero_linger().unwrap();
        drop(stream);
        listener.accept().await.map(|_| "a second connection")
    });
    let answer = write_tool(&url, "").call(permit(), &one_line()).await;
    assert!(is_unknown(&answer), "{answer:?}");
    assert!(!server.is_finished(), "the write was sent again");
    server.abort();
}

#[tokio::test]
async fn nothing_is_sent_once_the_trust_window_is_gone() {
    let far = FarSide::answering(200, "", "").await;
    let tool = write_tool(&format!("{}/append", far.url), "");
    let answer = tool.call(permit_of(RunId::new(), Duration::from_secs(19)), &one_line()).await;
    assert!(matches!(answer, WriteAnswer::NotStarted { .. }), "{answer:?}");
    assert_eq!(far.connections.load(Ordering::SeqCst), 0);
}

/// Time of which 45 s pass between two looks.
#[derive(Debug, Default)]
struct EachLookTakesLong(AtomicUsize);

impl BootClock for EachLookTakesLong {
    fn now(&self) -> BootInstant {
        let looks = i64::try_from(self.0.fetch_add(1, Ordering::SeqCst)).unwrap();
        BootInstant { ns: looks * 45_000_000_000 }
    }
    fn boot_id(&self) -> &str {
        "boot"
    }
}

#[tokio::test]
async fn nothing_is_sent_when_the_trust_window_closes_while_the_connection_is_made() {
    let far = FarSide::answering(200, "", "").await;
    let tool = write_tool(&format!("{}/append", far.url), "");
    let trust = TrustWindow::new(Arc::new(EachLookTakesLong::default()), Duration::from_secs(60), BootInstant { ns: 0 });
    let permit = WritePermit::for_test(RunId::new(), CallId::of(1, 0), 7, trust);
    let answer = tool.call(permit, &one_line()).await;
    assert!(matches!(answer, WriteAnswer::NotStarted { .. }), "{answer:?}");
    // It connected, and the next request is the first that the far side reads.
    assert_eq!(append(&far, "").await, WriteAnswer::done("HTTP 200 without a body"));
    assert_eq!((far.requests().len(), far.connections.load(Ordering::SeqCst)), (1, 2));
}

#[tokio::test]
async fn an_undecodable_reply_to_a_write_is_unknown() {
    for (headers, body) in
        [(JSON, &b"<html>"[..]), (JSON, b"{\"a\":"), (TEXT, b"\xff\xfe"), ("content-encoding: gzip\r\n", b"\x1f\x8b")]
    {
        let far = FarSide::answering(200, headers, body).await;
        let answer = append(&far, "").await;
        assert!(is_unknown(&answer), "{answer:?}");
    }
}

#[tokio::test]
async fn a_reply_longer_than_the_limit_is_done_and_says_that_it_was_cut() {
    let far = FarSide::answering(200, JSON, format!("\"{}\"", "ü".repeat(5000))).await;
    let WriteAnswer::Done { result, is_error: false } = append(&far, "max_response = \"1KiB\"").await else { panic!() };
    let text = result.as_str().unwrap();
    assert!(text.ends_with("[cut: the reply is longer than 1024 bytes]") && text.len() < 1100, "{text}");
    let far = FarSide::answering(200, TEXT, "x".repeat(1024)).await;
    assert_eq!(append(&far, "max_response = \"1KiB\"").await, WriteAnswer::done("x".repeat(1024)));
}

#[tokio::test]
async fn arguments_go_into_placeholders_body_form_or_query() {
    let far = FarSide::answering(200, TEXT, "ok").await;
    let parameters = "parameters = { type = \"object\", properties = { id = { type = \"string\" } }, required = [\"id\"] }";
    let url = format!("{}/pages/{{id}}?v=1", far.url);
    let given = arguments(json!({ "id": "../a b", "n": 1, "list": ["x", "y"], "nothing": null, "deep": { "k": [1] } }));
    for (method, body) in [("PUT", "json"), ("POST", "form"), ("DELETE", "json")] {
        let extra = format!("effect = \"idempotent_write\"\nmethod = \"{method}\"\nbody = \"{body}\"\n{parameters}");
        let Tool::Write(tool, approval) = HttpTool::build(config(&url, &extra)).unwrap() else { panic!() };
        assert_eq!(approval, Approval::Required);
        assert_eq!(tool.call(permit(), &given).await, WriteAnswer::done("ok"));
    }
    let requests = far.requests();
    assert!(requests[0].starts_with("PUT /pages/..%2Fa%20b?v=1 HTTP"), "{}", requests[0]);
    assert!(requests[0].ends_with(r#"{"n":1,"list":["x","y"],"nothing":null,"deep":{"k":[1]}}"#), "{}", requests[0]);
    let form = "n=1&list=x&list=y&deep=%7B%22k%22%3A%5B1%5D%7D";
    assert!(requests[1].contains("x-www-form-urlencoded") && requests[1].ends_with(form), "{}", requests[1]);
    assert!(requests[2].starts_with(&format!("DELETE /pages/..%2Fa%20b?v=1&{form} HTTP")), "{}", requests[2]);
}

#[tokio::test]
async fn a_dot_segment_is_refused_before_anything_is_sent() {
    let far = FarSide::answering(200, TEXT, "ok").await;
    let parameters = "properties = { id = { type = \"string\" } }, required = [\"id\"] }";
    let extra = format!("effect = \"idempotent_write\"\nmethod = \"DELETE\"\nparameters = {{ type = \"object\", {parameters}");
    let Tool::Write(tool, _) = HttpTool::build(config(&format!("{}/pages/{{id}}", far.url), &extra)).unwrap() else { panic!() };
    for id in ["..", ".", ""] {
        let answer = tool.call(permit(), &arguments(json!({ "id": id }))).await;
        assert!(matches!(answer, WriteAnswer::NotApplied { .. }), "{answer:?}");
    }
    assert_eq!(far.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_read_answers_json_text_or_an_error_with_its_status() {
    let get = "method = \"GET\"\nparameters = { type = \"object\" }";
    for (status, headers, body, expected) in [
        (200, JSON, &b"[1]"[..], ReadAnswer::ok(json!([1]))),
        (200, TEXT, b"hi", ReadAnswer::ok("hi")),
        (404, TEXT, b"no", ReadAnswer::error_value(json!({ "status": 404, "body": "no" }))),
    ] {
        let far = FarSide::answering(status, headers, body).await;
        assert_eq!(read_tool(&far.url, get).call(&arguments(json!({ "q": "a&b" }))).await, expected);
        assert!(far.requests()[0].starts_with("GET /?q=a%26b HTTP"), "{}", far.requests()[0]);
    }
    let far = FarSide::that(Then::Reset).await;
    assert!(read_tool(&far.url, get).call(&Arguments::new()).await.is_error);
    let far = FarSide::answering(200, JSON, "<html>").await;
    assert!(read_tool(&far.url, get).call(&Arguments::new()).await.is_error);
}

#[tokio::test]
async fn a_read_follows_a_redirect_on_the_same_host_only() {
    let get = "method = \"GET\"\nheaders = { Authorization = { env = \"LEDGER_TOKEN\" } }";
    let other = FarSide::answering(200, TEXT, "stolen").await;
    let far = FarSide::answering(302, &format!("location: {}/\r\n", other.url), "").await;
    let answer = read_tool(&far.url, get).call(&Arguments::new()).await;
    assert!(answer.is_error && answer.result["status"] == 302, "{answer:?}");
    assert_eq!(other.connections.load(Ordering::SeqCst), 0);
    let round = FarSide::answering(302, "location: /again\r\n", "").await;
    assert!(read_tool(&round.url, get).call(&Arguments::new()).await.is_error);
    assert_eq!(round.requests().len(), 6, "the first and five redirects");
}

#[test]
fn a_wrong_configuration_is_refused_with_its_key() {
    let base = "effect = \"idempotent_write\"\nmethod = \"POST\"\n";
    let with_p = "parameters = { type = \"object\", properties = { p = {} } }";
    for (url, extra, key) in [
        ("http://h/", "effect = \"idempotent_write\"\nmethod = \"post\"".to_owned(), "method"),
        ("http://{p}/", base.to_owned(), "url"),
        ("http://h/{p}", base.to_owned(), "url"),
        ("http://h/{p}", format!("{base}{with_p}"), "url"),
        ("http://h/", format!("{base}headers = {{ Idempotency-Key = \"x\" }}"), "headers.Idempotency-Key"),
        ("http://h/", format!("{base}headers = {{ Leasehold-Run = \"x\" }}"), "headers.Leasehold-Run"),
        ("http://h/", format!("{base}headers = {{ LEASEHOLD-fencing-token = \"x\" }}"), "headers.LEASEHOLD-fencing-token"),
        ("http://h/", format!("{base}headers = {{ Authorization = {{ env = \"NOT_SET\" }} }}"), "headers.Authorization"),
        ("http://h/", format!("{base}headers = {{ X = \"a\\nb\" }}"), "headers.X"),
        ("http://h/", format!("{base}outcomes = {{ done = [409], unknown = [409] }}"), "outcomes"),
        ("http://h/", format!("{base}verify = {{ method = \"POST\", url = \"http://h/v\" }}"), "verify.method"),
        ("http://h/", format!("{base}verify = {{ method = \"GET\", url = \"http://h/{{nope}}\" }}"), "verify.url"),
        (
            "http://h/",
            "effect = \"read_only\"\nmethod = \"GET\"\nverify = { method = \"GET\", url = \"http://h/v\" }".into(),
            "verify",
        ),
        ("http://h/", "effect = \"read_only\"\nmethod = \"GET\"\napproval = \"required\"".into(), "approval"),
        ("http://h/", "effect = \"read_only\"\nmethod = \"GET\"\noutcomes = { done = [409] }".into(), "outcomes"),
    ] {
        let error = HttpTool::build_with_env(config(url, &extra), env).unwrap_err();
        assert_eq!(error.key, key, "{error}");
        assert_eq!(error.tool, "ledger.append");
    }
}

#[test]
fn a_secret_written_where_its_variables_name_belongs_is_not_repeated() {
    let extra = "effect = \"idempotent_write\"\nmethod = \"POST\"\nheaders = { A = { env = \"sk-12345\" } }";
    let error = HttpTool::build_with_env(config("http://h/", extra), |_| Some("x".into())).unwrap_err();
    assert_eq!(error.key, "headers.A");
    assert!(!error.to_string().contains("12345"), "{error}");
}

#[test]
fn a_variable_that_is_empty_is_not_set() {
    let extra = "effect = \"idempotent_write\"\nmethod = \"POST\"\nheaders = { A = { env = \"EMPTY\", prefix = \"Bearer \" } }";
    let error = HttpTool::build_with_env(config("http://h/", extra), |_| Some(" ".into())).unwrap_err();
    assert!(error.to_string().contains("EMPTY is not set"), "{error}");
}

#[test]
fn an_unknown_key_a_missing_effect_and_a_wrong_unit_do_not_parse() {
    let base = "name = \"a.b\"\ndescription = \"d\"\nurl = \"http://h/\"\nmethod = \"POST\"\n";
    for (extra, part) in [
        ("", "effect"),
        ("effect = \"write\"", "unknown variant"),
        ("effect = \"read_only\"\nretries = 3", "retries"),
        ("effect = \"read_only\"\ntimeout = \"-1s\"", "more than zero"),
        ("effect = \"read_only\"\ntimeout = \"0s\"", "more than zero"),
        ("effect = \"read_only\"\ntimeout = \"30\"", "unit"),
        ("effect = \"read_only\"\nmax_response = \"1 apple\"", "unit"),
        ("effect = \"read_only\"\nheaders = { A = { env = \"X\", suffix = \"y\" } }", "suffix"),
        ("effect = \"idempotent_write\"\napproval = \"no\"", "unknown variant"),
    ] {
        let error = toml::from_str::<HttpToolConfig>(&format!("{base}{extra}")).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn the_endpoint_and_the_debug_forms_show_no_secret() {
    let extra = "effect = \"read_only\"\nmethod = \"GET\"\nheaders = { A = \"s3cret\" }";
    let config = config("http://h/x?key=s3cret", extra);
    let shown = format!("{config:?}");
    assert!(!shown.contains("\"s3cret\""), "{shown}");
    let tool = HttpTool::build(config).unwrap();
    assert!(tool.spec().endpoint.starts_with("GET http://h/x?#"), "{}", tool.spec().endpoint);
}

#[test]
fn a_far_side_that_is_sure_at_once_may_be_declared_with_a_wait_of_zero_and_none_may_be_negative() {
    let verify = |wait: &str| {
        toml::from_str::<super::VerifyConfig>(&format!(
            "method = \"GET\"\nurl = \"http://127.0.0.1/{{idempotency_key}}\"\nsettle_after = \"{wait}\""
        ))
    };
    assert_eq!(verify("0s").unwrap().settle_after, Some(Duration::ZERO));
    assert_eq!(verify("2m").unwrap().settle_after, Some(Duration::from_secs(120)));
    for wrong in ["-1s", "soon"] {
        assert!(verify(wrong).unwrap_err().to_string().contains(wrong));
    }
}

#[tokio::test]
async fn what_would_change_and_what_has_to_hold_are_asked_with_a_get_and_the_tools_headers() {
    let far = FarSide::answering(200, TEXT, "title: old").await;
    let looks = format!(
        "headers = {{ Authorization = {{ env = \"LEDGER_TOKEN\" }} }}\npreview = {{ url = \"{0}/diff/{{text}}\" }}\nprecondition = {{ \
         method = \"GET\", url = \"{0}/etag\" }}",
        far.url
    );
    let text = format!(
        "effect = \"idempotent_write\"\nmethod = \"PUT\"\nparameters = {{ type = \"object\", properties = {{ text = {{ \
         type = \"string\" }} }}, required = [\"text\"] }}\n{looks}"
    );
    let Tool::Write(tool, _) = HttpTool::build_with_env(config(&far.url, &text), env).unwrap() else { panic!("a write") };
    let seen = tool.preview().unwrap().preview(&one_line()).await.unwrap();
    assert_eq!((seen.text.as_str(), seen.precondition.as_deref()), ("title: old", Some("title: old")));
    let requests = far.requests();
    let lines: Vec<&str> = requests.iter().filter_map(|request| request.lines().next()).collect();
    assert_eq!(lines, ["GET /etag HTTP/1.1", "GET /diff/one HTTP/1.1"]);
    assert!(requests.iter().all(|request| request.contains("authorization: s3cret") && !request.contains("idempotency-key")));
}

#[tokio::test]
async fn a_look_that_fails_says_why_and_never_passes_for_an_answer() {
    for (status, gone) in [(500, false), (302, false), (404, true)] {
        let far = FarSide::answering(status, "location: /else\r\n", "x").await;
        let look = |key: &str| write_tool(&far.url, &format!("{key} = {{ url = \"{}/now\" }}", far.url));
        let preview = look("preview").preview().unwrap().preview(&one_line()).await;
        assert_eq!(preview.unwrap_err(), format!("HTTP {status}"));
        let condition = look("precondition").preview().unwrap().preview(&one_line()).await;
        assert_eq!(condition.ok().and_then(|seen| seen.precondition), gone.then(|| "nothing is there".to_owned()));
    }
    let wrong =
        config("http://127.0.0.1:1/", "effect = \"read_only\"\nmethod = \"GET\"\npreview = { url = \"http://127.0.0.1:1/\" }");
    assert_eq!(HttpTool::build_with_env(wrong, env).unwrap_err().key, "preview");
    let posts =
        "effect = \"idempotent_write\"\nmethod = \"PUT\"\npreview = { method = \"POST\", url = \"http://127.0.0.1:1/\" }";
    assert_eq!(HttpTool::build_with_env(config("http://127.0.0.1:1/", posts), env).unwrap_err().key, "preview");
}
