//! Streams as a client reads them that nobody here wrote: npm's `eventsource`, which comes back by itself with `Last-Event-ID`. A
//! proxy between it and the server cuts the connection everywhere.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    self, PATIENCE, Sandbox,
    api::{Server, TOKEN},
    text,
};
use leasehold::run::EntryBody;
use leasehold_testkit::npm;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::{Arc, Mutex},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    process::Command,
    sync::watch,
    task::spawn_blocking,
    time::timeout,
};

const PACKAGE: &str = "eventsource@4.1.1";

/// Prints each event that it is given as a line, and how it was closed.
const CLIENT: &str = r#"
const [folder, url, token, kinds] = process.argv.slice(2);
const { EventSource } = await import(`${folder}/node_modules/eventsource/dist/index.js`);
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const source = new EventSource(url, {
  fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, Authorization: `Bearer ${token}` } }),
});
for (const kind of kinds.split(",")) {
  source.addEventListener(kind, (event) => say({ id: event.lastEventId, kind, data: JSON.parse(event.data) }));
}
source.addEventListener("error", (error) => {
  if (source.readyState === EventSource.CLOSED) say({ closed: error.code });
});
"#;

/// Where a connection is cut, seen from the first entry that it would bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// When the answer has begun.
    Before,
    /// In its middle.
    Within,
    /// When the client has it.
    After,
}

/// What the connections asked for with the same `Last-Event-ID` met; nothing for one that was answered 204.
type Met = BTreeMap<Option<u64>, Vec<Option<Cut>>>;

/// Between the client and the server.
struct Proxy {
    server: String,
    /// The last entry that the client has told of.
    seen: watch::Receiver<Option<u64>>,
    met: Mutex<Met>,
}

/// Reads until the head of a message is whole: the head, and what came with it.
async fn head(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let mut read = Vec::new();
    loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let rest = read.split_off(end + 4);
            return (String::from_utf8(read).unwrap(), rest);
        }
        assert_ne!(stream.read_buf(&mut read).await.unwrap(), 0, "it ended within its head");
    }
}

/// The first entry in what was read: its number, and where it begins and ends.
fn entry(read: &[u8]) -> Option<(u64, usize, usize)> {
    let text = std::str::from_utf8(read).ok()?;
    let mut from = 0;
    while let Some(length) = text[from..].find("\n\n") {
        let end = from + length + 2;
        let id = text[from..end].lines().find_map(|line| line.strip_prefix("id:"));
        if let Some(id) = id {
            return Some((id.trim().parse().unwrap(), from, end));
        }
        from = end;
    }
    None
}

impl Proxy {
    async fn start(server: &Server, seen: watch::Receiver<Option<u64>>) -> (Arc<Self>, String) {
        let server = server.url.strip_prefix("http://").unwrap().to_owned();
        let this = Arc::new(Self { server, seen, met: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let proxy = Arc::clone(&this);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(Arc::clone(&proxy).connection(client));
            }
        });
        (this, url)
    }

    fn meets(&self, last: Option<u64>, cut: Option<Cut>) {
        self.met.lock().unwrap().entry(last).or_default().push(cut);
    }

    async fn connection(self: Arc<Self>, mut client: TcpStream) {
        let (asked, _) = head(&mut client).await;
        let name = |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
        let last = asked.lines().filter_map(name).find(|(name, _)| name == "last-event-id");
        let last = last.map(|(_, value)| value.parse().unwrap());
        let mut server = TcpStream::connect(&self.server).await.unwrap();
        server.write_all(asked.as_bytes()).await.unwrap();
        let (answered, mut read) = head(&mut server).await;
        client.write_all(answered.as_bytes()).await.unwrap();
        if !answered.starts_with("HTTP/1.1 200") {
            self.meets(last, None);
            return;
        }
        assert!(answered.to_lowercase().contains("transfer-encoding: chunked"), "{answered}");
        // It comes back at once, not after its three seconds.
        client.write_all(b"a\r\nretry: 1\n\n\r\n").await.unwrap();
        let before = self.met.lock().unwrap().get(&last).map_or(0, Vec::len);
        let cut = [Cut::Before, Cut::Within, Cut::After][before.min(2)];
        self.meets(last, Some(cut));
        if cut == Cut::Before {
            return;
        }
        let (number, from, end) = loop {
            if let Some(found) = entry(&read) {
                break found;
            }
            // Where nothing more comes the client is told to come again.
            if server.read_buf(&mut read).await.unwrap() == 0 {
                return;
            }
        };
        if cut == Cut::Within {
            client.write_all(&read[..from + (end - from) / 2]).await.unwrap();
            return;
        }
        client.write_all(&read[..end]).await.unwrap();
        let mut seen = self.seen.clone();
        seen.wait_for(|seen| *seen >= Some(number)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_somebody_else_that_is_cut_off_everywhere_gets_each_entry_once_and_ends() {
    if npm::is_left_out() {
        eprintln!("left out: this machine was declared to have no Node.js");
        return;
    }
    let folder = spawn_blocking(|| npm::installed(PACKAGE)).await.unwrap().unwrap_or_else(|why| {
        panic!("{why}. (LEASEHOLD_TEST_WITHOUT_NODE=1 leaves this test out.)");
    });
    let sandbox = Sandbox::new("").await;
    sandbox.write("client.mjs", CLIENT);
    let server = sandbox.serve().await;
    let (sees, seen) = watch::channel(None);
    let (proxy, url) = Proxy::start(&server, seen).await;
    let id = server.queue().await;
    let mut client = Command::new("node")
        .arg(sandbox.path("client.mjs"))
        .arg(&folder)
        .args([&format!("{url}/api/v1/runs/{id}/events"), TOKEN, &EntryBody::KINDS.join(",")])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(client.stdout.take().unwrap()).lines();
    let (mut entries, mut closed) = (Vec::<Value>::new(), Vec::new());
    while let Some(line) = timeout(PATIENCE, lines.next_line()).await.expect("a line in time").unwrap() {
        let said: Value = serde_json::from_str(&line).unwrap();
        if said.get("closed").is_some() {
            closed.push(said["closed"].clone());
            continue;
        }
        let number: u64 = text(&said, "/id").parse().unwrap();
        assert_eq!(number, entries.len() as u64, "each once and in order: {said}");
        assert_eq!(said["kind"], said["data"]["kind"]);
        entries.push(said["data"].clone());
        if said["kind"] == "suspended" {
            let digest = text(&server.get(&format!("/runs/{id}")).await.is(200), "/waiting/turn_digest");
            let decision = json!({ "turn_digest": digest, "decision": "approve" });
            server.post(&format!("/runs/{id}/decision"), decision).await.is(202);
        }
        sees.send_replace(Some(number));
    }
    let ended = timeout(PATIENCE, client.wait()).await.expect("it ends").unwrap();
    assert!(ended.success(), "{ended}");
    assert_eq!(closed, [json!(204)], "it is told to stop, once");
    let journal = server.get(&format!("/runs/{id}/events?limit=1000")).await.is(200);
    assert_eq!(Value::Array(entries.clone()), journal["items"]);
    let kinds: Vec<String> = support::kinds(&entries);
    for kind in ["enqueued", "suspended", "approval", "write_stamped", "tool_outcome", "settled"] {
        assert!(kinds.iter().any(|had| had == kind), "{kind}: {kinds:?}");
    }
    assert_eq!(sandbox.far.arrived().len(), 1);

    // At every index each cut, and nothing else.
    let every = vec![Some(Cut::Before), Some(Cut::Within), Some(Cut::After)];
    let count = entries.len() as u64;
    let mut expected: Met = (0..count - 1).map(|last| (Some(last), every.clone())).collect();
    expected.insert(None, every);
    expected.insert(Some(count - 1), vec![None]);
    assert_eq!(*proxy.met.lock().unwrap(), expected);
}
