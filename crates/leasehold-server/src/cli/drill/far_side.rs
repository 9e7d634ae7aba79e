//! The far side of the drilled HTTP tools, in the drill's own process: it records every write that arrives before anything else
//! happens to it, and then answers like a system that does what it is told, or passes the request on to the true endpoint. One
//! request that arrives is at most one that is passed on.

use super::Failure;
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use leasehold::drill::Entry;
use serde_json::json;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::watch;

/// Headers that belong to one connection, or that the client writes itself.
const HOP: [HeaderName; 5] =
    [header::HOST, header::CONTENT_LENGTH, header::CONNECTION, header::TRANSFER_ENCODING, header::ACCEPT_ENCODING];

/// Where one tool's requests truly go.
#[derive(Clone, Debug)]
pub(super) struct Upstream {
    /// `https://host:port` of the write.
    pub(super) write: String,
    /// The same of its verify.
    pub(super) verify: String,
    /// The operator's headers: they are in this process only.
    pub(super) headers: HeaderMap,
    /// The tool's own timeout.
    pub(super) timeout: Duration,
}

/// What one scene's far side does.
#[derive(Clone, Debug)]
pub(super) enum Role {
    /// Says with this status that it is done; a verify finds what arrived.
    Stub(u16),
    /// Passes on.
    Proxy(Upstream),
}

#[derive(Clone, Debug)]
struct Place {
    role: Role,
    entries: Vec<Entry>,
    absent: usize,
    /// Answers are held back while this is true.
    hold: watch::Sender<bool>,
}

struct Shared {
    places: Mutex<HashMap<String, Place>>,
    client: reqwest::Client,
}

impl Shared {
    fn places(&self) -> MutexGuard<'_, HashMap<String, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The far side of every scene, on a port of this machine.
#[derive(Clone)]
pub(super) struct FarSide {
    shared: Arc<Shared>,
    port: u16,
}

impl FarSide {
    /// Listens.
    pub(super) async fn open() -> Result<Self, Failure> {
        let client = reqwest::Client::builder()
            .retry(reqwest::retry::never())
            .redirect(reqwest::redirect::Policy::none())
            .pool_max_idle_per_host(0)
            .http1_only()
            .no_proxy()
            .referer(false)
            .build()
            .map_err(|e| Failure::refused(format!("no HTTP client: {e}")))?;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared { places: Mutex::default(), client });
        let router = Router::new().fallback(arrived).with_state(Arc::clone(&shared));
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { shared, port })
    }

    /// Makes a place for one scene, and says where its write and its verify go.
    pub(super) fn place(&self, scene: &str, role: Role) -> (String, String) {
        let place = Place { role, entries: Vec::new(), absent: 0, hold: watch::Sender::new(false) };
        self.shared.places().insert(scene.to_owned(), place);
        let base = format!("http://127.0.0.1:{}/{scene}", self.port);
        (format!("{base}/w"), format!("{base}/v"))
    }
    /// Holds answers of a scene back, or lets them go.
    pub(super) fn hold(&self, scene: &str, held: bool) {
        if let Some(place) = self.shared.places().get(scene) {
            place.hold.send_replace(held);
        }
    }
    /// Writes that arrived, and verifies that were answered "absent".
    pub(super) fn seen(&self, scene: &str) -> (Vec<Entry>, usize) {
        self.shared.places().get(scene).map(|place| (place.entries.clone(), place.absent)).unwrap_or_default()
    }
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

async fn arrived(State(shared): State<Arc<Shared>>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let whole = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut parts = whole.trim_start_matches('/').splitn(3, '/');
    let (scene, door) = (parts.next().unwrap_or_default().to_owned(), parts.next().unwrap_or_default());
    let rest = format!("/{}", parts.next().unwrap_or_default());
    let key = text(&headers, "idempotency-key");
    let is_write = door == "w";
    let (role, known, mut hold) = {
        let mut places = shared.places();
        let Some(place) = places.get_mut(&scene) else { return StatusCode::NOT_FOUND.into_response() };
        let known = place.entries.iter().any(|entry| entry.key == key);
        if is_write {
            let kind = text(&headers, "content-type");
            let arguments = format!("{method} {rest} {kind} {}", String::from_utf8_lossy(&body));
            place.entries.push(Entry { key, arguments });
        }
        (place.role.clone(), known, place.hold.subscribe())
    };
    let answer = match role {
        Role::Stub(status) if is_write => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            (status, axum::Json(json!({ "drill": "recorded" }))).into_response()
        }
        Role::Stub(_) if known => axum::Json(json!({ "drill": "found" })).into_response(),
        Role::Stub(_) => StatusCode::NOT_FOUND.into_response(),
        Role::Proxy(upstream) => {
            let base = if is_write { &upstream.write } else { &upstream.verify };
            let url = format!("{base}{rest}");
            // On a task of its own: what was passed on is not taken back when the caller dies.
            let passed = tokio::spawn(pass_on(shared.client.clone(), method, url, headers, body, upstream));
            match passed.await {
                Ok(Ok(answer)) => answer,
                // What is not known here must not look like an answer: the connection ends without one.
                _ => std::panic::resume_unwind(Box::new(())),
            }
        }
    };
    if !is_write {
        if answer.status() == StatusCode::NOT_FOUND
            && let Some(place) = shared.places().get_mut(&scene)
        {
            place.absent += 1;
        }
        return answer;
    }
    // The place outlives every request.
    hold.wait_for(|held| !held).await.ok();
    answer
}

async fn pass_on(
    client: reqwest::Client,
    method: Method,
    url: String,
    mut headers: HeaderMap,
    body: Bytes,
    upstream: Upstream,
) -> Result<Response, reqwest::Error> {
    for name in HOP {
        headers.remove(name);
    }
    headers.extend(upstream.headers);
    let request = client.request(method, url).headers(headers).timeout(upstream.timeout);
    let request = if body.is_empty() { request } else { request.body(body) };
    let reply = request.send().await?;
    let status = reply.status();
    let kind = reply.headers().get(header::CONTENT_TYPE).cloned();
    let encoding = reply.headers().get(header::CONTENT_ENCODING).cloned();
    let mut answer = (status, reply.bytes().await?).into_response();
    answer.headers_mut().remove(header::CONTENT_TYPE);
    for (name, value) in [(header::CONTENT_TYPE, kind), (header::CONTENT_ENCODING, encoding)] {
        if let Some(value) = value {
            answer.headers_mut().insert(name, value);
        }
    }
    Ok(answer)
}
