//! The tool against real sockets: what it must not reach it does not connect to, and nothing that answers it is endless.

use super::*;
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};

/// What is answered to a path.
#[derive(Clone)]
enum Then {
    Answer(Vec<u8>),
    /// A head, then bytes for as long as they are taken.
    Endless(&'static str),
    /// A head, then nothing more.
    Stall(&'static str),
}

/// A far side on an address of this machine that keeps what it was asked.
struct Far {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Far {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Far {
    async fn at(address: &str, answers: &[(&str, Then)]) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let answers: BTreeMap<String, Then> = answers.iter().map(|(path, then)| ((*path).to_owned(), then.clone())).collect();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = asked.clone();
        let task = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (kept, answers) = (kept.clone(), answers.clone());
                tokio::spawn(async move {
                    let mut bytes = Vec::new();
                    while !bytes.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => bytes.push(byte),
                            Err(_) => return,
                        }
                    }
                    let request = String::from_utf8(bytes).unwrap();
                    let path = request.split(' ').nth(1).unwrap().to_owned();
                    kept.lock().unwrap().push(request);
                    match answers.get(&path).cloned().unwrap_or_else(|| ok("text/plain", "hello")) {
                        Then::Answer(bytes) => drop(stream.write_all(&bytes).await),
                        Then::Endless(head) => {
                            let _ = stream.write_all(head.as_bytes()).await;
                            while stream.write_all(&[b'x'; 4096]).await.is_ok() {}
                        }
                        Then::Stall(head) => {
                            let _ = stream.write_all(head.as_bytes()).await;
                            std::future::pending::<()>().await;
                        }
                    }
                });
            }
        });
        Self { address, asked, task }
    }

    async fn start(answers: &[(&str, Then)]) -> Self {
        Self::at("127.0.0.1:0", answers).await
    }

    fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.address.port())
    }
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn answer(status: u16, headers: &str, body: impl AsRef<[u8]>) -> Then {
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status} x\r\n{headers}content-length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    Then::Answer(bytes)
}

fn ok(content_type: &str, body: impl AsRef<[u8]>) -> Then {
    answer(200, &format!("content-type: {content_type}\r\n"), body)
}

fn to(location: &str) -> Then {
    answer(302, &format!("location: {location}\r\n"), "")
}

/// Every name is one of these addresses, each asked for in turn; the last one for ever.
fn names(addresses: &[&[&str]]) -> (Lookup, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let turns: Vec<Vec<SocketAddr>> =
        addresses.iter().map(|turn| turn.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect()).collect();
    let counted = count.clone();
    let lookup: Lookup = Arc::new(move |_| {
        let at = counted.fetch_add(1, Ordering::SeqCst).min(turns.len() - 1);
        let found = turns[at].clone();
        Box::pin(async { Ok(found) })
    });
    (lookup, count)
}

/// With that list, and these networks beside the public internet.
fn fetch_with(allow: &[&str], networks: &[&str], lookup: Lookup) -> Fetch {
    let list = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    let config = FetchConfig {
        allow: list(allow),
        allow_networks: list(networks),
        timeout: Some(Duration::from_secs(3)),
        max_response: Some(1000),
    };
    Fetch::new(&config, lookup).unwrap()
}

/// What is allowed is this far side by two names and its address.
fn fetch(far: &Far) -> Fetch {
    let port = far.address.port();
    let allow = ["a.test", "b.test", "127.0.0.1"].map(|host| format!("http://{host}:{port}"));
    fetch_with(&allow.each_ref().map(String::as_str), &["127.0.0.1"], names(&[&["127.0.0.1"]]).0)
}

async fn call(fetch: &Fetch, url: &str) -> ReadAnswer {
    let Value::Object(arguments) = json!({ "url": url }) else { unreachable!() };
    fetch.call(&arguments).await
}

/// Why it was refused.
async fn refused(fetch: &Fetch, url: &str) -> String {
    let answer = call(fetch, url).await;
    assert!(answer.is_error, "{url}: {answer:?}");
    answer.result.as_str().unwrap_or_else(|| panic!("{url}: {answer:?}")).to_owned()
}

#[tokio::test]
async fn a_page_comes_with_its_url_status_and_type_and_nothing_goes_out_but_the_url() {
    let far = Far::start(&[("/a?b=c", ok("text/html; charset=utf-8", "<p>é</p>"))]).await;
    let answer = call(&fetch(&far), &far.url("a.test", "/a?b=c#part")).await;
    let url = far.url("a.test", "/a?b=c");
    let page = json!({
        "url": url, "status": 200, "content_type": "text/html; charset=utf-8", "body": "<p>é</p>", "truncated": false,
    });
    assert_eq!(answer, ReadAnswer::ok(page));
    let [request] = far.asked().try_into().unwrap();
    let mut lines: Vec<String> = request.trim_end().lines().map(str::to_ascii_lowercase).collect();
    lines[1..].sort();
    let host = format!("host: a.test:{}", far.address.port());
    let agent = concat!("user-agent: leasehold/", env!("CARGO_PKG_VERSION"));
    assert_eq!(lines, ["get /a?b=c http/1.1", "accept: */*", host.as_str(), agent]);
}

#[tokio::test]
async fn a_name_that_leads_to_a_special_address_is_not_connected_to() {
    let far = Far::start(&[]).await;
    let port = far.address.port();
    let allow = format!("http://a.test:{port}");
    for address in [
        "127.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "198.18.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "::ffff:127.0.0.1",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:0:7f00:1::",
        "fd00::1",
        "fe80::1",
        "ff02::1",
    ] {
        let fetch = fetch_with(&[&allow], &[], names(&[&[address]]).0);
        let why = refused(&fetch, &far.url("a.test", "/")).await;
        let address: std::net::IpAddr = address.parse().unwrap();
        assert!(why.contains(&format!("the address {address} is refused")) && why.contains("allow_networks"), "{why}");
        // Nor where another of its addresses would do.
        let fetch = fetch_with(&[&allow], &[], names(&[&["1.1.1.1", &address.to_string()]]).0);
        assert!(refused(&fetch, &far.url("a.test", "/")).await.contains("is refused"));
    }
    assert_eq!(far.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn an_address_in_a_url_is_judged_in_every_spelling_although_nobody_resolves_it() {
    let far = Far::start(&[]).await;
    let port = far.address.port();
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f.0.0.1",
        "0x7f000001",
        "017700000001",
        "127.1",
        "127.0.0.1.",
        "%31%32%37.0.0.1",
        "１２７.0.0.1",
        "0",
        "169.254.169.254",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "[fd00:ec2::254]",
    ] {
        let (lookup, count) = names(&[&["1.1.1.1"]]);
        let fetch = fetch_with(&[&format!("http://{host}:{port}")], &[], lookup);
        let why = refused(&fetch, &format!("http://{host}:{port}/")).await;
        assert!(why.contains("is refused ("), "{host}: {why}");
        assert_eq!(count.load(Ordering::SeqCst), 0, "{host}");
    }
    assert_eq!(far.asked(), Vec::<String>::new());
}

#[tokio::test]
async fn a_name_that_is_rebound_reaches_nothing_that_was_not_judged() {
    // Two machines on one port: who resolves twice is sent from the allowed one to the other.
    let (good, bad) = loop {
        let good = Far::at("127.0.0.1:0", &[("/on", to("/"))]).await;
        if let Ok(free) = std::net::TcpListener::bind(("127.0.0.2", good.address.port())) {
            drop(free);
            let bad = Far::at(&format!("127.0.0.2:{}", good.address.port()), &[]).await;
            break (good, bad);
        }
    };
    let allow = format!("http://a.test:{}", good.address.port());
    let (lookup, count) = names(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let rebound = fetch_with(&[&allow], &["127.0.0.1"], lookup);
    assert!(!call(&rebound, &good.url("a.test", "/")).await.is_error);
    assert_eq!(count.load(Ordering::SeqCst), 1, "resolved once");
    assert!(refused(&rebound, &good.url("a.test", "/")).await.contains("127.0.0.2 is refused"));
    // And between two hops of one fetch.
    let (lookup, _) = names(&[&["127.0.0.1"], &["127.0.0.2"]]);
    let rebound = fetch_with(&[&allow], &["127.0.0.1"], lookup);
    assert!(refused(&rebound, &good.url("a.test", "/on")).await.contains("127.0.0.2 is refused"));
    assert_eq!((good.asked().len(), bad.asked().len()), (2, 0));
}

#[tokio::test]
async fn each_redirect_is_judged_as_the_first_url_was() {
    let other = Far::start(&[]).await;
    let targets = [
        ("http://169.254.169.254/latest/meta-data/", "not among what may be fetched"),
        ("//169.254.169.254/", "not among what may be fetched"),
        ("http://evil.test/", "not among what may be fetched"),
        ("http://u:p@a.test/", "a user or a password"),
        ("file:///etc/passwd", "`file` URLs are not fetched"),
        ("gopher://a.test/", "`gopher` URLs are not fetched"),
        ("http://[::1", "where to is not a URL"),
    ];
    for (location, words) in targets {
        let far = Far::start(&[("/", to(location))]).await;
        let why = refused(&fetch(&far), &far.url("a.test", "/")).await;
        assert!(why.starts_with("it was redirected, and ") && why.contains(words), "{location}: {why}");
        assert_eq!(far.asked().len(), 1, "{location}");
    }
    // The same host on another port.
    let far = Far::start(&[("/", to(&other.url("a.test", "/")))]).await;
    assert!(refused(&fetch(&far), &far.url("a.test", "/")).await.contains("not among"));
    assert_eq!(other.asked().len(), 0);
    // An entry of the list whose address is none that may be gone to.
    let far = Far::start(&[("/", to("http://169.254.169.254/"))]).await;
    let allow = [format!("http://a.test:{}", far.address.port()), "http://169.254.169.254".into()];
    let fetch = fetch_with(&allow.each_ref().map(String::as_str), &["127.0.0.1"], names(&[&["127.0.0.1"]]).0);
    assert!(refused(&fetch, &far.url("a.test", "/")).await.contains("169.254.169.254 is refused (link-local"));
}

#[tokio::test]
async fn redirects_that_are_allowed_are_followed_a_few_times_and_the_last_url_is_told() {
    let chain: Vec<(String, Then)> =
        (0..=FETCH_REDIRECTS_MAX).map(|n| (format!("/{n}"), to(&format!("{}#x", n + 1)))).collect();
    let chain: Vec<(&str, Then)> = chain.iter().map(|(path, then)| (path.as_str(), then.clone())).collect();
    let far = Far::start(&chain).await;
    let answer = call(&fetch(&far), &far.url("a.test", "/1")).await;
    assert!(!answer.is_error, "{answer:?}");
    assert_eq!(answer.result["url"], far.url("a.test", &format!("/{}", FETCH_REDIRECTS_MAX + 1)));
    assert_eq!(far.asked().len(), FETCH_REDIRECTS_MAX + 1);
    assert!(refused(&fetch(&far), &far.url("a.test", "/0")).await.contains("more than 5 times"));
    let other_host = Far::start(&[]).await;
    let location = other_host.url("b.test", "/there");
    let far = Far::start(&[("/", to(&location))]).await;
    let allow = [format!("http://a.test:{}", far.address.port()), format!("http://b.test:{}", other_host.address.port())];
    let both = fetch_with(&allow.each_ref().map(String::as_str), &["127.0.0.1"], names(&[&["127.0.0.1"]]).0);
    assert_eq!(call(&both, &far.url("a.test", "/")).await.result["url"], location);
}

#[test]
fn a_redirect_never_leads_from_https_to_http() {
    let from = Url::parse("https://a.test/x").unwrap();
    assert!(next(&from, "http://a.test/x").unwrap_err().contains("https to http"));
    assert_eq!(next(&from, "//b.test/y#z").unwrap().as_str(), "https://b.test/y");
    let plain = Url::parse("http://a.test/x").unwrap();
    assert_eq!(next(&plain, "https://a.test/").unwrap().scheme(), "https");
    let long = |length: usize| format!("/{}", "x".repeat(length - 1));
    assert!(next(&from, &long(FETCH_URL_BYTES_MAX)).is_ok());
    assert!(next(&from, &long(FETCH_URL_BYTES_MAX + 1)).unwrap_err().contains("longer than"));
}

#[tokio::test]
async fn a_url_that_is_too_long_or_none_or_not_allowed_is_refused_before_anything_happens() {
    let far = Far::start(&[]).await;
    let (lookup, count) = names(&[&["127.0.0.1"]]);
    let fetch = fetch_with(&[&format!("http://a.test:{}", far.address.port())], &["127.0.0.1"], lookup);
    for url in ["", "a.test", "//a.test/", "http://", "http://evil.test/", "https://a.test/", "http://a.test/"] {
        refused(&fetch, url).await;
    }
    refused(&fetch, &far.url("u:p@a.test", "/")).await;
    let base = far.url("a.test", "/");
    let long = |length: usize| format!("{base}{}", "x".repeat(length - base.len()));
    assert!(refused(&fetch, &long(FETCH_URL_BYTES_MAX + 1)).await.contains("longer than"));
    assert_eq!((far.asked().len(), count.load(Ordering::SeqCst)), (0, 0));
    assert!(!call(&fetch, &long(FETCH_URL_BYTES_MAX)).await.is_error);
}

#[tokio::test]
async fn no_body_is_endless_and_none_is_unpacked() {
    let bomb = answer(200, "content-type: text/plain\r\ncontent-encoding: gzip\r\n", b"\x1f\x8b\x08\x00bomb");
    let far = Far::start(&[
        ("/exact", ok("text/plain", "x".repeat(1000))),
        ("/more", ok("text/plain", "x".repeat(1001))),
        ("/half", ok("text/plain", format!("{}é", "x".repeat(999)))),
        ("/bomb", bomb),
        ("/endless", Then::Endless("HTTP/1.1 200 x\r\ncontent-type: text/plain\r\n\r\n")),
        ("/head", Then::Endless("HTTP/1.1 200 x\r\nx: ")),
        ("/cut", Then::Answer(b"HTTP/1.1 200 x\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\nx".to_vec())),
        ("/image", Then::Endless("HTTP/1.1 200 x\r\ncontent-type: image/png\r\ncontent-length: 99999999\r\n\r\n")),
        ("/untyped", answer(200, "", "text?")),
    ])
    .await;
    let fetch = fetch(&far);
    let body = async |path: &str| {
        let answer = call(&fetch, &far.url("a.test", path)).await;
        assert!(!answer.is_error, "{path}: {answer:?}");
        (answer.result["body"].as_str().unwrap().to_owned(), answer.result["truncated"].as_bool().unwrap())
    };
    assert_eq!(body("/exact").await, ("x".repeat(1000), false));
    assert_eq!(body("/more").await, ("x".repeat(1000), true));
    assert_eq!(body("/half").await, ("x".repeat(999), true));
    assert_eq!(body("/endless").await, ("x".repeat(1000), true));
    assert_eq!(body("/bomb").await.0, "[not shown: it is packed (gzip), which was not asked for]");
    assert_eq!(body("/image").await.0, "[not shown: no text but image/png, 99999999 bytes]");
    assert_eq!(body("/untyped").await.0, "[not shown: no text but of no content type, 5 bytes]");
    assert!(refused(&fetch, &far.url("a.test", "/head")).await.starts_with("no answer"));
    assert!(refused(&fetch, &far.url("a.test", "/cut")).await.contains("was cut"));
}

#[tokio::test]
async fn an_answer_that_does_not_end_or_begin_is_given_up_in_time() {
    let far = Far::start(&[
        ("/body", Then::Stall("HTTP/1.1 200 x\r\ncontent-type: text/plain\r\ncontent-length: 9\r\n\r\nx")),
        ("/head", Then::Stall("HTTP/1.1 200 x\r\n")),
        ("/hop", to("/body")),
    ])
    .await;
    let mut fetch = fetch(&far);
    fetch.spec.timeout = Duration::from_millis(300);
    for path in ["/body", "/head", "/hop"] {
        assert!(refused(&fetch, &far.url("a.test", path)).await.contains("no whole answer within 300ms"), "{path}");
    }
}

#[tokio::test]
async fn text_is_read_as_it_says_it_is_written_and_an_error_keeps_its_status() {
    let far = Far::start(&[
        ("/latin", ok("text/plain; charset=ISO-8859-1", b"caf\xe9")),
        ("/json", ok("application/problem+json", "{\"a\":1}")),
        ("/xml", ok("Application/XML; charset=\"utf-16le\"", b"<\0a\0/\0>\0")),
        ("/wrong", ok("text/plain; charset=nonsense", b"a\xffb")),
        ("/gone", answer(404, "content-type: text/plain\r\n", "no such page")),
        ("/broken", answer(503, "content-type: text/plain\r\n", "later")),
        ("/nowhere", answer(302, "content-type: text/plain\r\n", "?")),
    ])
    .await;
    for (path, status, body) in [
        ("/latin", 200, "café"),
        ("/json", 200, "{\"a\":1}"),
        ("/xml", 200, "<a/>"),
        ("/wrong", 200, "a\u{fffd}b"),
        ("/gone", 404, "no such page"),
        ("/broken", 503, "later"),
        ("/nowhere", 302, "?"),
    ] {
        let answer = call(&fetch(&far), &far.url("a.test", path)).await;
        assert_eq!((&answer.result["status"], &answer.result["body"]), (&json!(status), &json!(body)), "{path}");
        assert_eq!(answer.is_error, status != 200, "{path}");
    }
}
