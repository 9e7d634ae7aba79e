//! Who may what, as the endpoints say it: several callers on one router, a store in memory, a far side that counts. And what needs
//! a hand inside: a handler that breaks, a reader that does not read.

use super::{
    App, Parts,
    auth::{Authenticate, Shown},
    events::{self, Until},
    guard, input_tests, limits,
    listen::Connection,
    question_tests,
};
use crate::{
    access::{Access, AccessError, Method, NewSession, Role, Who},
    cli::Use,
    config::{effective::Reader, file, load, server::Server},
    mcp::{InForce, catalogue::Catalogue},
};
use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    http::{Request, StatusCode, header},
    routing::get,
};
use leasehold::{
    Live, Runtime, RuntimeConfig,
    agent::{
        model::scripted::ScriptedModel,
        registry::{AgentSpec, Registry},
        tool::http::HttpTool,
    },
    clock::SystemClock,
    run::{Principal, RunId},
    store::{Unavailable, memory::MemoryStore},
};
use leasehold_testkit::far_side::{FarSide, Then};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tower_service::Service as _;

/// A token is the name of who has it.
struct Known(Mutex<BTreeMap<String, Who>>);

#[async_trait]
impl Authenticate for Known {
    async fn bearer(&self, token: &str) -> Result<Option<Who>, Unavailable> {
        Ok(self.0.lock().unwrap().get(token).cloned())
    }
    async fn session(&self, _: &str) -> Result<Option<Who>, Unavailable> {
        Ok(None)
    }
    async fn with_token(&self, _: &str, _: Option<&str>) -> Result<Option<NewSession>, AccessError> {
        Ok(None)
    }
    async fn with_link(&self, _: &str, _: Option<&str>) -> Result<Option<NewSession>, AccessError> {
        Ok(None)
    }
    async fn end(&self, _: &str) -> Result<bool, AccessError> {
        Ok(false)
    }
}

pub(super) fn who(name: &str, role: Role, teams: &[&str], tools: &[&str]) -> Who {
    Who {
        principal: Principal::person(name),
        person: name.into(),
        role,
        teams: teams.iter().map(|&team| team.into()).collect(),
        tools: tools.iter().map(|&tool| tool.into()).collect(),
        method: Method::Token(name.into()),
    }
}

pub(super) struct World {
    pub(super) app: Arc<App>,
    access: Arc<Known>,
    router: Router,
    far: FarSide,
    live: UnboundedSender<Live>,
}

pub(super) async fn world() -> World {
    world_at(([127, 0, 0, 1], 7878).into(), &[]).await
}

/// Listens there, behind these proxies.
async fn world_at(listen: SocketAddr, environment: &[(&str, &str)]) -> World {
    let env = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let far = FarSide::start().await.unwrap();
    let tool = |name: &str| {
        format!(
            "name = '{name}'\ndescription = 'Append'\neffect = 'non_idempotent_write'\nmethod = 'POST'\nurl = '{}'\n\
         parameters = {{ type = 'object', properties = {{ text = {{ type = 'string' }} }} }}",
            far.url("/append")
        )
    };
    let script = "[[reply]]\ncalls = [{ tool = 'ledger.append', arguments = { text = 'x' } }]\n[[reply]]\ntext = 'done'\n";
    let mut registry = Registry::new();
    for name in ["ledger.append", "ledger.erase"] {
        registry.add_tool(HttpTool::build(toml::from_str(&tool(name)).unwrap()).unwrap()).unwrap();
    }
    let preview = far.url("/lines");
    let preview = format!("{}\npreview = {{ url = '{preview}', shown_to = 'deciders' }}", tool("diary.write"));
    registry.add_tool(HttpTool::build(toml::from_str(&preview).unwrap()).unwrap()).unwrap();
    let kept = far.url("/kept");
    let kept = format!("{}\nprecondition = {{ url = '{kept}', shown_to = 'deciders' }}", tool("diary.keep"));
    registry.add_tool(HttpTool::build(toml::from_str(&kept).unwrap()).unwrap()).unwrap();
    let model = ScriptedModel::from_toml("keeper", &script.replace("ledger.append", "diary.keep")).unwrap();
    registry.add_agent(AgentSpec::new("keeper", model).tools(["diary.*"])).unwrap();
    let model = ScriptedModel::from_toml("writer", &script.replace("ledger.append", "diary.write")).unwrap();
    registry.add_agent(AgentSpec::new("writer", model).tools(["diary.*"])).unwrap();
    let both = "[[reply]]\ncalls = [{ tool = 'ledger.append', arguments = {} }, { tool = 'ledger.erase', arguments = {} }]\n";
    let both = ScriptedModel::from_toml("both", both).unwrap();
    registry.add_agent(AgentSpec::new("both", both).tools(["ledger.*"])).unwrap();
    let model = ScriptedModel::from_toml("m", script).unwrap();
    registry.add_agent(AgentSpec::new("clerk", model).tools(["ledger.*"])).unwrap();
    input_tests::add_to(&mut registry);
    question_tests::add_to(&mut registry);
    let clock = Arc::new(SystemClock::new().unwrap());
    let (sender, live) = unbounded_channel();
    let store = MemoryStore::new(clock.clone());
    let config = RuntimeConfig { live: Some(sender.clone()), ..RuntimeConfig::new(store, registry, clock.clone()) };
    let machine = Who { principal: Principal::machine("bot"), ..who("olga", Role::Approver, &[], &["*"]) };
    let known = [
        ("ann", who("ann", Role::Runner, &["docks"], &[])),
        ("bob", who("bob", Role::Runner, &[], &[])),
        ("tim", who("tim", Role::Viewer, &["docks"], &[])),
        ("vic", who("vic", Role::Viewer, &[], &[])),
        ("eve", who("eve", Role::Approver, &[], &["ledger.*"])),
        ("eva", who("eva", Role::Approver, &[], &["ledger.append"])),
        ("dot", who("dot", Role::Approver, &[], &["diary.*"])),
        ("zoe", who("zoe", Role::Approver, &[], &["box.*"])),
        ("sid", who("sid", Role::Approver, &[], &["site.*"])),
        ("olga", who("olga", Role::Operator, &[], &[])),
        ("root", who("root", Role::Admin, &[], &[])),
        ("bot", machine),
    ];
    let access = Arc::new(Known(Mutex::new(known.into_iter().map(|(name, who)| (name.to_owned(), who)).collect())));
    let catalogue = Catalogue::new(Access::new(Arc::clone(&config.store), clock.clone()), None);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[[agent]]\nname = 'a'\n").unwrap();
    let configured = load(Some(file.path()), &|_| None).unwrap();
    let in_force = Arc::new(InForce::new(&configured, catalogue, Use::Declare).await.unwrap());
    let runtime = Runtime::new(config).unwrap();
    let app = Arc::new(App::new(Parts {
        asking: runtime.clone(),
        runtime,
        live,
        wall: clock.clone(),
        clock,
        access: Arc::clone(&access) as Arc<dyn Authenticate>,
        in_force: Arc::clone(&in_force),
        asks: in_force,
        command: "leasehold".into(),
        execute: true,
        server: Server::read(&Reader { source: None, env: &env }, &file::Server::default()).unwrap(),
        listen,
    }));
    World { router: app.router(), app, access, far, live: sender }
}

impl World {
    async fn ask(&self, who: &str, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"))
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::AUTHORIZATION, format!("Bearer {who}"))
            .body(body.map_or_else(Body::empty, |body| Body::from(body.to_string())))
            .unwrap();
        let response = self.router.clone().call(request).await.unwrap();
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }
    /// The screen, as text.
    pub(super) async fn text(&self, who: &str, path: &str) -> String {
        let request = Request::builder()
            .uri(format!("/api/v1{path}"))
            .header(header::HOST, "localhost")
            .header(header::ACCEPT, "text/plain")
            .header(header::AUTHORIZATION, format!("Bearer {who}"))
            .body(Body::empty())
            .unwrap();
        let response = self.router.clone().call(request).await.unwrap();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }
    pub(super) async fn get(&self, who: &str, path: &str) -> (u16, Value) {
        self.ask(who, "GET", path, None).await
    }
    pub(super) async fn post(&self, who: &str, path: &str, body: Value) -> (u16, Value) {
        self.ask(who, "POST", path, Some(body)).await
    }
    /// The status and the code of a refusal.
    pub(super) async fn refused(&self, who: &str, path: &str, body: Value) -> (u16, String) {
        let (status, problem) = self.post(who, path, body).await;
        (status, problem["code"].as_str().unwrap_or_default().to_owned())
    }
    /// All of an answer in this form.
    async fn whole(&self, who: &str, path: &str, accept: &str) -> String {
        let request = Request::builder().uri(format!("/api/v1{path}")).header(header::HOST, "localhost");
        let request = request.header(header::ACCEPT, accept).header(header::AUTHORIZATION, format!("Bearer {who}"));
        let response = self.router.clone().call(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        String::from_utf8(axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap().into()).unwrap()
    }
    /// A run of this owner that waits, and its digest.
    pub(super) async fn suspended(&self, owner: &str, more: Value) -> (String, String) {
        let mut body = json!({ "agent": "clerk", "input": "append", "mode": "wait" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (status, run) = self.post(owner, "/runs", body).await;
        assert_eq!((status, &run["state"]), (200, &"waiting_for_approval".into()), "{run}");
        (run["id"].as_str().unwrap().into(), run["waiting"]["turn_digest"].as_str().unwrap().into())
    }
    pub(super) async fn listed(&self, who: &str, list: &str) -> usize {
        let (status, page) = self.get(who, list).await;
        assert_eq!(status, 200, "{page}");
        page["items"].as_array().unwrap().len()
    }
}

const ORDERS: [&str; 7] = ["decision", "input", "answer", "cancel", "resolve", "redrive", "discard"];

fn body_of(order: &str, digest: &str) -> Value {
    match order {
        "decision" => json!({ "turn_digest": digest, "decision": "approve" }),
        "input" => json!({ "turn_digest": digest, "values": {} }),
        "answer" => json!({ "call_id": "t1c0", "question": 0, "decline": true }),
        "resolve" => json!({ "call_id": "t1c0", "fence_epoch": 1, "outcome": "abandon" }),
        _ => json!({}),
    }
}

#[tokio::test]
async fn somebody_elses_run_is_as_unknown_as_none() {
    let world = world().await;
    let (id, digest) = world.suspended("ann", json!({})).await;
    let none = RunId::new();
    for who in ["bob", "tim", "vic", "sid"] {
        for path in ["", "/events"] {
            let other = world.get(who, &format!("/runs/{id}{path}")).await;
            assert_eq!(other, world.get(who, &format!("/runs/{none}{path}")).await, "{who} {path}");
            assert_eq!(other.0, 404);
        }
        for order in ORDERS {
            let body = body_of(order, &digest);
            let other = world.post(who, &format!("/runs/{id}/{order}"), body.clone()).await;
            assert_eq!(other, world.post(who, &format!("/runs/{none}/{order}"), body).await, "{who} {order}");
            assert_eq!(other.0, 404);
        }
        assert_eq!((world.listed(who, "/runs").await, world.listed(who, "/inbox").await), (0, 0), "{who}");
    }
    for who in ["ann", "eve", "olga", "root", "bot"] {
        assert_eq!(world.get(who, &format!("/runs/{id}")).await.0, 200, "{who}");
        assert_eq!(world.listed(who, "/inbox").await, 1, "{who}");
    }
    assert_eq!((world.listed("ann", "/runs").await, world.listed("olga", "/runs").await), (1, 1));
    assert!(world.far.arrived().is_empty());
}

#[tokio::test]
async fn a_run_of_a_team_is_seen_by_the_team() {
    let world = world().await;
    let (id, _) = world.suspended("ann", json!({ "team": "docks" })).await;
    assert_eq!(world.get("tim", &format!("/runs/{id}")).await.0, 200);
    assert_eq!((world.listed("tim", "/runs").await, world.listed("tim", "/inbox").await), (1, 1));
    assert_eq!(world.get("vic", &format!("/runs/{id}")).await.0, 404);
    assert_eq!(world.refused("tim", &format!("/runs/{id}/cancel"), json!({})).await, (403, "not_permitted".into()));
    let start = json!({ "agent": "clerk", "input": "x", "team": "docks" });
    assert_eq!(world.refused("bob", "/runs", start.clone()).await, (422, "invalid_input".into()));
    assert_eq!(world.post("olga", "/runs", start).await.0, 202);
}

#[tokio::test]
async fn each_role_may_what_it_says() {
    let world = world().await;
    let start = json!({ "agent": "clerk", "input": "x" });
    assert_eq!(world.refused("vic", "/runs", start).await, (403, "not_permitted".into()));
    let (id, digest) = world.suspended("ann", json!({})).await;
    let decision = format!("/runs/{id}/decision");
    let approve = body_of("decision", &digest);
    assert_eq!(world.refused("ann", &decision, approve.clone()).await, (403, "not_permitted".into()));
    assert_eq!(world.refused("olga", &decision, approve.clone()).await, (403, "approver_not_permitted".into()));
    assert_eq!(world.refused("bot", &decision, approve.clone()).await, (403, "machine_may_not_release".into()));
    for order in ["resolve", "redrive", "discard"] {
        let (status, problem) = world.post("ann", &format!("/runs/{id}/{order}"), body_of(order, &digest)).await;
        assert_eq!((status, &problem["role"]), (403, &"operator".into()), "{order}");
    }
    assert_eq!(world.refused("eve", &format!("/runs/{id}/cancel"), json!({})).await, (403, "not_permitted".into()));
    assert!(world.far.arrived().is_empty());

    let (status, run) = world.post("eve", &format!("{decision}?wait=true"), approve.clone()).await;
    assert_eq!((status, &run["state"], &run["decisions"][0]["by"]), (200, &"completed".into(), &"eve".into()));
    // Nothing is pending any more, so an approver sees it no longer; whoever was shown the card is told what became of it.
    assert_eq!(world.get("eve", &format!("/runs/{id}")).await.0, 404);
    assert_eq!(world.post("eve", &decision, approve.clone()).await.0, 202);
    let (status, late) = world.post("eva", &decision, approve.clone()).await;
    assert_eq!((status, &late["code"], &late["by"]), (409, &"already_decided".into(), &"eve".into()));
    assert_eq!(world.refused("eva", &decision, body_of("decision", "0")).await, (404, "not_found".into()));
    assert_eq!(world.refused("bob", &decision, approve).await, (404, "not_found".into()));
    assert_eq!(world.far.arrived().len(), 1);

    let (id, digest) = world.suspended("ann", json!({})).await;
    let deny = json!({ "turn_digest": digest, "decision": "deny" });
    assert_eq!(world.post("bot", &format!("/runs/{id}/decision?wait=true"), deny).await.1["state"], "completed");
    let (id, _) = world.suspended("ann", json!({})).await;
    assert_eq!(world.post("ann", &format!("/runs/{id}/cancel"), json!({})).await.1["state"], "cancelled");
    assert_eq!(world.far.arrived().len(), 1);
}

#[tokio::test]
async fn who_was_shown_a_card_may_still_release_only_its_own_tools() {
    let world = world().await;
    let (id, digest) = world.suspended("ann", json!({ "agent": "both" })).await;
    let decision = format!("/runs/{id}/decision");
    let append = json!({ "turn_digest": digest, "calls": [{ "id": "t1c0", "decision": "approve" }] });
    let all = json!({ "turn_digest": digest, "decision": "approve" });
    assert_eq!(world.refused("eva", &decision, all.clone()).await, (403, "approver_not_permitted".into()));
    assert_eq!(world.post("eva", &decision, append.clone()).await.1["state"], "waiting_for_approval");
    // What still waits is none of its tools: it does not see the run any more.
    assert_eq!(world.get("eva", &format!("/runs/{id}")).await.0, 404);
    assert_eq!(world.refused("eva", &decision, all.clone()).await, (403, "approver_not_permitted".into()));
    assert_eq!(world.post("eva", &decision, append).await.0, 202);
    assert!(world.far.arrived().is_empty());
    assert_eq!(world.post("eve", &format!("{decision}?wait=true"), all).await.1["state"], "completed");
    assert_eq!(world.far.arrived().len(), 2);
}

#[tokio::test]
async fn a_machine_that_starts_names_the_person_behind_it() {
    let world = world().await;
    let (id, _) = world.suspended("bot", json!({})).await;
    let (_, run) = world.get("olga", &format!("/runs/{id}")).await;
    assert_eq!((&run["owner"], &run["initiator"]), (&"bot".into(), &"olga".into()));
}

#[tokio::test]
async fn a_handler_that_breaks_says_nothing_of_what_it_was() {
    let world = world().await;
    async fn broken() -> StatusCode {
        panic!("a secret")
    }
    let mut router = guard::around(&world.app, Router::new().route("/broken", get(broken)));
    let request = Request::builder().uri("/broken").header(header::HOST, "localhost").body(Body::empty()).unwrap();
    let response = router.call(request).await.unwrap();
    assert_eq!((response.status().as_u16(), &response.headers()["x-content-type-options"]), (500, &"nosniff".parse().unwrap()));
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let problem: Value = serde_json::from_slice(&bytes).unwrap();
    assert!(problem["code"] == "internal" && !problem.to_string().contains("secret"), "{problem}");
}

#[tokio::test]
async fn a_reader_that_does_not_read_is_cut_off() {
    let world = world().await;
    let (id, _) = world.suspended("ann", json!({})).await;
    let id: RunId = id.parse().unwrap();
    let connection = Connection::new(([127, 0, 0, 1], 1).into());
    let free = world.app.streams.available_permits();
    let reader = events::Reader {
        connection: Some(connection.clone()),
        shown: Shown::Bearer("ann".into()),
        _place: world.app.stream_place().unwrap(),
    };
    let ann = who("ann", Role::Runner, &[], &[]);
    let response = events::stream(&world.app, &ann, id, 0, Until::Settled, reader);
    assert_eq!(world.app.streams.available_permits(), free - 1);
    // More than waits for a reader, who never comes.
    tokio::time::pause();
    for n in 0..limits::STREAM_BUFFER + 10 {
        world.live.send(Live::Text(id, n.to_string())).unwrap();
        world.app.texts.catch_up();
        tokio::task::yield_now().await;
    }
    tokio::time::timeout(limits::READER_PATIENCE * 2, connection.is_cut()).await.expect("cut off in time");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(world.app.streams.available_permits(), free, "its place is free");
    drop(response);
}

#[tokio::test]
async fn a_token_that_is_revoked_ends_its_streams() {
    let world = world().await;
    let (id, _) = world.suspended("ann", json!({})).await;
    tokio::time::pause();
    let open = |token: &str| {
        let place = world.app.stream_place().unwrap();
        let reader = events::Reader { connection: None, shown: Shown::Bearer(token.into()), _place: place };
        events::stream(&world.app, &who(token, Role::Operator, &[], &[]), id.parse().unwrap(), 0, Until::Settled, reader)
    };
    let whole = |response: axum::response::Response| async {
        tokio::time::timeout(limits::RECHECK * 3, axum::body::to_bytes(response.into_body(), usize::MAX)).await
    };
    let (revoked, kept) = (open("ann"), open("olga"));
    world.access.0.lock().unwrap().remove("ann");
    let (revoked, kept) = futures::future::join(whole(revoked), whole(kept)).await;
    assert!(revoked.is_ok() && kept.is_err(), "{revoked:?} {kept:?}");
}

#[tokio::test]
async fn who_may_not_see_a_run_any_more_reads_its_stream_no_longer() {
    let world = world().await;
    let (id, _) = world.suspended("ann", json!({ "team": "docks" })).await;
    tokio::time::pause();
    let open = |token: &str| {
        let place = world.app.stream_place().unwrap();
        let reader = events::Reader { connection: None, shown: Shown::Bearer(token.into()), _place: place };
        events::stream(&world.app, &who(token, Role::Operator, &[], &[]), id.parse().unwrap(), 0, Until::Settled, reader)
    };
    let whole = |response: axum::response::Response| async {
        tokio::time::timeout(limits::RECHECK * 3, axum::body::to_bytes(response.into_body(), usize::MAX)).await
    };
    // Of the team, its owner, and an approver of the call that waits.
    let streams = futures::future::join3(whole(open("tim")), whole(open("ann")), whole(open("eve")));
    world.access.0.lock().unwrap().get_mut("tim").unwrap().teams.clear();
    let (left, owner, approver) = streams.await;
    assert!(left.is_ok() && owner.is_err() && approver.is_err(), "{left:?} {owner:?} {approver:?}");
}

#[tokio::test]
async fn what_does_not_fit_is_told_to_come_again() {
    let world = world().await;
    let places = Arc::clone(&world.app.streams).acquire_many_owned(u32::try_from(limits::STREAMS_MAX).unwrap()).await.unwrap();
    let wait = json!({ "agent": "clerk", "input": "x", "mode": "wait" });
    assert_eq!(world.refused("ann", "/runs", wait).await, (503, "overloaded".into()));
    assert_eq!(world.listed("ann", "/runs").await, 0, "who cannot be answered starts nothing");
    drop(places);
    let places =
        Arc::clone(&world.app.requests).acquire_many_owned(u32::try_from(limits::REQUESTS_MAX).unwrap()).await.unwrap();
    assert_eq!(world.get("ann", "/runs").await.0, 503);
    assert_eq!(world.refused("ann", "/runs", json!({ "agent": "clerk", "input": "x" })).await, (503, "overloaded".into()));
    drop(places);
    world.app.end();
    assert_eq!(world.refused("ann", "/runs", json!({ "agent": "clerk", "input": "x" })).await, (503, "ending".into()));
}

#[tokio::test]
async fn from_elsewhere_only_what_ends_tls_is_let_in() {
    let environment =
        [("LEASEHOLD_SERVER_PUBLIC_URL", "https://agents.example"), ("LEASEHOLD_SERVER_TRUSTED_PROXIES", "10.1.0.0/16")];
    let world = world_at(([0, 0, 0, 0], 7878).into(), &environment).await;
    for (peer, host, status) in [
        ([10, 1, 2, 3], "agents.example", 204),
        ([127, 0, 0, 1], "localhost", 204),
        ([10, 2, 2, 3], "agents.example", 403),
        ([10, 1, 2, 3], "evil.example", 421),
    ] {
        let request = Request::builder().uri("/healthz").header(header::HOST, host);
        let request = request.extension(Connection::new((peer, 1).into())).body(Body::empty()).unwrap();
        assert_eq!(world.router.clone().call(request).await.unwrap().status().as_u16(), status, "{peer:?} {host}");
    }
}

#[tokio::test]
async fn what_a_tool_shows_only_to_who_decides_is_withheld_from_everybody_else() {
    let world = world().await;
    world.far.then([Then::Json("\"the canary\"".into())]);
    let (id, digest) = world.suspended("ann", json!({ "agent": "writer", "team": "docks" })).await;
    let places = [
        (format!("/runs/{id}"), "application/json"),
        (format!("/runs/{id}"), "text/plain"),
        (format!("/runs/{id}/events"), "application/json"),
        (format!("/runs/{id}/events?until=waiting"), "text/event-stream"),
        ("/inbox".to_owned(), "application/json"),
    ];
    for (reader, shown) in [("ann", false), ("tim", false), ("olga", false), ("dot", true), ("root", true)] {
        for (path, accept) in &places {
            let said = world.whole(reader, path, accept).await;
            assert_eq!(said.contains("the canary"), shown, "{reader} {path} {accept}: {said}");
        }
        let (_, run) = world.get(reader, &format!("/runs/{id}")).await;
        let call = &run["waiting"]["calls"][0];
        let withheld = call["preview_withheld"] == true && call["preview"].is_null();
        assert_eq!(withheld, !shown, "{reader}: {call}");
    }
    assert!(world.whole("tim", &format!("/runs/{id}"), "text/plain").await.contains("(only for who may decide about it)"));
    // New arguments, and what the tool says of them.
    world.far.then([Then::Json("\"the other canary\"".into())]);
    let edit = json!({ "id": "t1c0", "decision": "approve", "arguments": { "text": "y" } });
    let decision = json!({ "turn_digest": digest, "calls": [edit] });
    let (status, run) = world.post("dot", &format!("/runs/{id}/decision?wait=true"), decision).await;
    assert_eq!((status, &run["state"]), (200, &"completed".into()), "{run}");
    for (reader, shown) in [("ann", false), ("tim", false), ("olga", false), ("root", true)] {
        let said = world.whole(reader, &format!("/runs/{id}/events"), "application/json").await;
        assert_eq!(said.contains("the other canary"), shown, "{reader}: {said}");
    }
}

/// Run, stage and sameness of what the card of a run names.
async fn similar(world: &World, who: &str, id: &str) -> Vec<(String, String, bool)> {
    let (status, run) = world.get(who, &format!("/runs/{id}")).await;
    assert_eq!(status, 200, "{run}");
    let similar = run["waiting"]["calls"][0]["similar"].as_array().expect("they were looked for").clone();
    let text = |call: &Value, key: &str| call[key].as_str().unwrap().to_owned();
    similar.iter().map(|call| (text(call, "run"), text(call, "stage"), call["same"].as_bool().unwrap())).collect()
}

#[tokio::test]
async fn a_card_names_similar_calls_of_runs_that_one_may_see_and_no_others() {
    let world = world().await;
    let (first, digest) = world.suspended("ann", json!({})).await;
    assert_eq!(similar(&world, "ann", &first).await, []);
    let (second, _) = world.suspended("bob", json!({})).await;
    let open = |id: &str| vec![(id.to_owned(), "open".to_owned(), true)];
    // Each owner sees its own, whoever decides both.
    assert_eq!((similar(&world, "ann", &first).await, similar(&world, "bob", &second).await), (vec![], vec![]));
    for reader in ["eve", "olga", "root"] {
        assert_eq!(similar(&world, reader, &first).await, open(&second), "{reader}");
        assert_eq!(similar(&world, reader, &second).await, open(&first), "{reader}");
    }
    let screen = world.whole("eve", &format!("/runs/{second}"), "text/plain").await;
    assert!(screen.contains("the same call may still start") && screen.contains(&first), "{screen}");
    let (status, run) = world.post("eve", &format!("/runs/{first}/decision?wait=true"), body_of("decision", &digest)).await;
    assert_eq!((status, &run["state"], &run["attribution"]), (200, &"completed".into(), &"second_person".into()), "{run}");
    // What is settled an approver does not see; who sees all is told that it is done.
    assert_eq!(similar(&world, "eve", &second).await, []);
    assert_eq!(similar(&world, "olga", &second).await, [(first.clone(), "done".to_owned(), true)]);
    // Lists say by whom a run's writes were released.
    let (_, page) = world.get("olga", "/runs").await;
    let listed: BTreeMap<&str, &Value> =
        page["items"].as_array().unwrap().iter().map(|run| (run["id"].as_str().unwrap(), &run["attribution"])).collect();
    assert_eq!((listed[first.as_str()], listed[second.as_str()]), (&"second_person".into(), &Value::Null));
}

#[tokio::test]
async fn what_a_withheld_precondition_was_and_is_nobody_else_is_told_when_it_has_changed() {
    let world = world().await;
    let says = |text: &str| Then::Json(format!("\"{text}\""));
    world.far.then([says("first canary")]);
    let (id, digest) = world.suspended("ann", json!({ "agent": "keeper", "team": "docks" })).await;
    world.far.then([says("second canary"), says("second canary")]);
    let decision = format!("/runs/{id}/decision?wait=true");
    let (_, run) = world.post("dot", &decision, body_of("decision", &digest)).await;
    assert_eq!(run["state"], "waiting_for_approval", "{run}");
    for (reader, shown) in [("ann", false), ("tim", false), ("olga", false), ("dot", true)] {
        for (path, accept) in [
            (format!("/runs/{id}"), "application/json"),
            (format!("/runs/{id}"), "text/plain"),
            (format!("/runs/{id}/events"), "application/json"),
            ("/inbox".to_owned(), "application/json"),
        ] {
            let said = world.whole(reader, &path, accept).await;
            assert_eq!(said.contains("canary"), shown, "{reader} {path} {accept}: {said}");
            assert!(said.contains("what the decision was based on has changed") || path == "/inbox", "{reader} {path}: {said}");
        }
    }
}

#[tokio::test]
async fn a_body_that_can_be_read_in_two_ways_decides_nothing() {
    let world = world().await;
    let (id, digest) = world.suspended("ann", json!({})).await;
    let (path, row) = (format!("/api/v1/runs/{id}/decision"), world.app.row(id.parse().unwrap()).await.ok().unwrap());
    let one = |call: &str| format!(r#"{{"turn_digest": "{digest}", "calls": [{call}]}}"#);
    let long = "x".repeat(limits::NOTE_BYTES_MAX + 1);
    for (body, pointer) in [
        (format!(r#"["{digest}", "approve", null, []]"#), "#"),
        (one(r#"["t1c0", "approve", null, null]"#), "#/calls/0"),
        (one(r#"{"id": "t1c0", "decision": "approve", "arguments": {"text": "a", "text": "b"}}"#), "#"),
        (one(r#"{"id": "t1c0", "decision": "approve", "arguments": {"text": {"a": 1, "a": 1}}}"#), "#"),
        (format!(r#"{{"turn_digest": "{digest}", "decision": "deny", "reason": "{long}"}}"#), "#/reason"),
        (one(&format!(r#"{{"id": "t1c0", "decision": "deny", "reason": "{long}"}}"#)), "#/calls/0/reason"),
    ] {
        let request = Request::builder().method("POST").uri(&path).header(header::HOST, "localhost");
        let request = request.header(header::CONTENT_TYPE, "application/json").header(header::AUTHORIZATION, "Bearer root");
        let response = world.router.clone().call(request.body(Body::from(body.clone())).unwrap()).await.unwrap();
        let status = response.status().as_u16();
        let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let problem: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &pointer.into()), "{problem}");
        assert!(!problem.to_string().contains("struct"), "{problem}");
        assert_eq!(world.app.row(id.parse().unwrap()).await.ok().unwrap(), row);
    }
    let (status, _) = world.post("root", "/runs", json!(["clerk", "x"])).await;
    assert_eq!(status, 422);
    let longest = json!({ "turn_digest": digest, "decision": "deny", "reason": &long[1..] });
    assert_eq!(world.post("root", &format!("/runs/{id}/decision"), longest).await.0, 202);
}
