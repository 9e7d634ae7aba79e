//! Real chaos: worker processes on one store, killed and paused at random while they work, a store that breaks under them, people
//! who decide and settle doubts, and a far side that counts. What must hold at the end: no non-idempotent write arrived twice, no run is lost, and the record
//! says nothing that the far side contradicts.

use crate::home::{Home, Running};
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State as Shared},
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use jiff::Timestamp;
use leasehold::{
    Decision, Resolution, Runtime, StartRun,
    run::{Effect, Outcome, Principal, Reason, ResolutionKind, RunId, State, Story, Via},
    store::{Filter, Listed, Store},
};
use std::{
    collections::{BTreeMap, HashMap},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What chaos does.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long processes are disturbed.
    pub lasts: Duration,
    /// Worker processes.
    pub workers: usize,
    /// Runs in flight at once.
    pub in_flight: usize,
    /// Makes it repeatable as far as processes are.
    pub seed: u64,
    /// Lease of the processes; a pause lasts longer.
    pub ttl: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// SIGKILLs.
    pub kills: usize,
    /// SIGSTOPs past the lease.
    pub pauses: usize,
    /// Disturbances of the store, by name.
    pub outages: BTreeMap<&'static str, usize>,
    /// Workers that ended by themselves, because the store was away when they started, and were started again.
    pub restarts: usize,
    /// Runs enqueued.
    pub runs: usize,
    /// Runs by the state and reason they ended in.
    pub ended: HashMap<String, usize>,
    /// Writes that arrived, by tool.
    pub arrived: HashMap<String, usize>,
    /// Doubts that people settled.
    pub doubts: usize,
    /// Outcomes that came late and were taken.
    pub late_outcomes: usize,
    /// From a kill to the settlement of the runs it held, sorted, in milliseconds.
    pub settled_after_ms: Vec<u64>,
    /// What must not be; empty where all holds.
    pub violations: Vec<String>,
}

impl Report {
    /// One line of figures.
    pub fn line(&self) -> String {
        let at = |q: f64| {
            let last = self.settled_after_ms.len().saturating_sub(1);
            // A quantile of few values: the nearest one.
            self.settled_after_ms.get((last as f64 * q).round() as usize).copied().unwrap_or_default()
        };
        format!(
            "{} runs, {} kills, {} pauses, outages {:?}, {} workers started again; {} doubts settled by people, {} late outcomes; from a kill to settlement p50 {} ms, p99 {} ms; arrived {:?}; ended {:?}; violations {}",
            self.runs,
            self.kills,
            self.pauses,
            self.outages,
            self.restarts,
            self.doubts,
            self.late_outcomes,
            at(0.5),
            at(0.99),
            self.arrived,
            self.ended,
            self.violations.len()
        )
    }
}

#[derive(Clone, Debug)]
struct Arrival {
    tool: String,
    body: Bytes,
}

/// Everything that arrived, by idempotency key.
#[derive(Clone, Default)]
struct Book(Arc<Mutex<HashMap<String, Vec<Arrival>>>>);

impl Book {
    fn with<T>(&self, look: impl FnOnce(&mut HashMap<String, Vec<Arrival>>) -> T) -> T {
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn write(
    Shared(book): Shared<Book>,
    Path(tool): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, &'static str) {
    let key = headers.get("idempotency-key").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    book.with(|all| all.entry(key).or_default().push(Arrival { tool, body }));
    // The effect is there; how it is answered is another matter.
    match fastrand::u32(..100) {
        0..5 => (StatusCode::INTERNAL_SERVER_ERROR, "committed, and broke"),
        // Unwinding takes the connection with it, without an answer.
        5..8 => std::panic::resume_unwind(Box::new(())),
        8..40 => {
            tokio::time::sleep(Duration::from_millis(fastrand::u64(20..400))).await;
            (StatusCode::OK, "ok, late")
        }
        _ => (StatusCode::OK, "ok"),
    }
}

async fn ask(Shared(book): Shared<Book>, Path(key): Path<String>) -> (StatusCode, &'static str) {
    if book.with(|all| all.contains_key(&key)) { (StatusCode::OK, "there") } else { (StatusCode::NOT_FOUND, "not there") }
}

/// Tool, effect, approval, whether it can be asked.
const TOOLS: [(&str, &str, &str, bool); 4] = [
    ("far.put", "idempotent_write", "none", false),
    ("far.append", "non_idempotent_write", "none", false),
    ("far.release", "non_idempotent_write", "required", false),
    ("far.asked", "non_idempotent_write", "none", true),
];

fn configuration(store: &str, port: u16, ttl: Duration) -> String {
    let mut text = format!(
        r#"
[store]
url = "{store}"
[worker]
concurrency = 8
[lease]
ttl = "{}ms"
sweep_interval = "200ms"
max_requeues = 50
backoff = {{ initial = "50ms", factor = 1.5, max = "500ms", jitter = true }}
[[model]]
name = "m"
provider = "scripted"
script = "chaos.toml"
[[agent]]
name = "a"
model = "m"
tools = ["far.*"]
[[tool.http]]
name = "far.read"
description = "Look"
effect = "read_only"
method = "GET"
url = "http://127.0.0.1:{port}/entries/none"
timeout = "2s"
"#,
        ttl.as_millis()
    );
    for (name, effect, approval, asked) in TOOLS {
        let verify = format!(
            "verify = {{ method = \"GET\", url = \"http://127.0.0.1:{port}/entries/{{idempotency_key}}\", settle_after = \"100ms\" }}"
        );
        text.push_str(&format!(
            r#"
[[tool.http]]
name = "{name}"
description = "Write"
effect = "{effect}"
approval = "{approval}"
method = "POST"
url = "http://127.0.0.1:{port}/write/{name}"
parameters = {{ type = "object", properties = {{ text = {{ type = "string" }} }}, required = ["text"] }}
timeout = "4s"
{}
"#,
            if asked { verify.as_str() } else { "" }
        ));
    }
    text
}

fn script() -> String {
    let mut text = String::from("[[reply]]\ncalls = [{ tool = \"far.read\", arguments = {} }]\n");
    for (index, (name, ..)) in TOOLS.iter().enumerate() {
        text.push_str(&format!("[[reply]]\ncalls = [{{ tool = \"{name}\", arguments = {{ text = \"{index}\" }} }}]\n"));
    }
    text.push_str("[[reply]]\npause = \"50ms\"\ntext = \"done\"\n");
    text
}

/// Something that disturbs the store itself; it ends when the store can be reached again.
pub struct Outage {
    /// What it is.
    pub name: &'static str,
    /// Does it.
    pub strike: Box<dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>,
}

/// Every so many blows, one meets the store.
const OUTAGE_EVERY: usize = 25;

/// Runs the plan on a home whose store has this URL; `store` is the test's own connection to it.
///
/// # Errors
/// What kept it from running; what it found wrong is in the report.
pub async fn run(
    home: &Home,
    url: &str,
    store: Arc<dyn Store>,
    runtime: &Runtime,
    plan: &Plan,
    outages: &[Outage],
) -> std::io::Result<Report> {
    let book = Book::default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let router = Router::new().route("/write/{tool}", post(write)).route("/entries/{key}", get(ask)).with_state(book.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    home.write("chaos.toml", &script());
    home.write("leasehold.toml", &configuration(url, port, plan.ttl));

    let mut chance = fastrand::Rng::with_seed(plan.seed);
    let mut report = Report::default();
    let mut all: Vec<RunId> = Vec::new();
    let mut workers: Vec<Running> = (0..plan.workers).map(|_| home.start(&["worker"], None)).collect();
    let mut paused: Vec<(usize, Instant)> = Vec::new();
    let mut orphans: HashMap<RunId, Instant> = HashMap::new();
    let started = Instant::now();
    let mut next_blow = Instant::now() + Duration::from_secs(1);
    let mut blows = 0;
    let mut next_outage = outages.iter().cycle();
    let mut quiet_since = None;
    loop {
        let disturbing = started.elapsed() < plan.lasts;
        let open = open_runs(&store).await;
        settle_clocks(&mut orphans, &open, &mut report);
        if disturbing {
            for _ in open.len()..plan.in_flight {
                // The store may be away; the next round enqueues then.
                if let Ok(id) = runtime.enqueue(StartRun::new("a", "work", Principal::person("local:chaos")), None).await {
                    all.push(id);
                }
            }
        }
        people(runtime, &book, &open, &mut report).await;
        paused.retain(|(_, until)| Instant::now() < *until);
        if disturbing && Instant::now() >= next_blow {
            next_blow = Instant::now() + Duration::from_millis(chance.u64(50..600));
            let worker = chance.usize(..workers.len());
            blows += 1;
            for (index, worker) in workers.iter_mut().enumerate() {
                if worker.has_ended() {
                    paused.retain(|(p, _)| *p != index);
                    *worker = home.start(&["worker"], None);
                    report.restarts += 1;
                }
            }
            match chance.u32(..100) {
                _ if blows % OUTAGE_EVERY == 0 => {
                    if let Some(outage) = next_outage.next() {
                        (outage.strike)().await;
                        *report.outages.entry(outage.name).or_default() += 1;
                    }
                }
                0..70 => {
                    paused.retain(|(p, _)| *p != worker);
                    let pid = format!(":{}", workers[worker].id());
                    workers[worker].kill();
                    for row in &open {
                        if row.holder.as_deref().is_some_and(|h| h.ends_with(&pid)) {
                            orphans.insert(row.id, Instant::now());
                        }
                    }
                    workers[worker] = home.start(&["worker"], None);
                    report.kills += 1;
                }
                _ => {
                    if !paused.iter().any(|(p, _)| *p == worker) {
                        let lasts = plan.ttl.mul_f64(1.0 + chance.f64());
                        workers[worker].signal("STOP");
                        wake(workers[worker].id(), lasts);
                        paused.push((worker, Instant::now() + lasts));
                        report.pauses += 1;
                    }
                }
            }
        }
        if !disturbing && open.is_empty() && paused.is_empty() {
            // What a paused process still has to say comes within a moment of its waking.
            let since = *quiet_since.get_or_insert_with(Instant::now);
            if since.elapsed() > plan.ttl * 2 {
                break;
            }
        } else {
            quiet_since = None;
        }
        if started.elapsed() > plan.lasts + Duration::from_secs(120) {
            let stuck: Vec<String> = open.iter().map(|r| format!("{} {} {:?}", r.id, r.state, r.reason)).collect();
            report.violations.push(format!("runs did not come to rest: {stuck:?}"));
            break;
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    drop(workers);
    judge(&store, &all, &book, &mut report).await;
    report.settled_after_ms.sort_unstable();
    Ok(report)
}

/// SIGCONT after that long, whatever else waits: a process that stands still in the middle of a commit holds up everybody on its file,
/// this test as well.
fn wake(process: u32, after: Duration) {
    tokio::spawn(async move {
        tokio::time::sleep(after).await;
        // One that was killed meanwhile does not hear it.
        std::process::Command::new("kill").args(["-CONT", &process.to_string()]).output().ok();
    });
}

async fn open_runs(store: &Arc<dyn Store>) -> Vec<Listed> {
    let states =
        vec![State::Queued, State::Running, State::Cancelling, State::WaitingForApproval, State::WaitingForInput, State::Dead];
    let listed = store.list(&Filter { states, ..Filter::default() }, None, 1_000).await.unwrap_or_default();
    // Dead by its requeues is an end here; dead by a doubt has a person to wait for.
    listed.into_iter().filter(|row| row.state != "dead" || row.reason.as_deref() == Some("write_in_doubt")).collect()
}

/// Runs whose killed holder is not the holder any more.
fn settle_clocks(orphans: &mut HashMap<RunId, Instant>, open: &[Listed], report: &mut Report) {
    orphans.retain(|id, since| {
        let held = open.iter().any(|row| row.id == *id && row.state == "running");
        if !held {
            report.settled_after_ms.push(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX));
        }
        held && since.elapsed() < Duration::from_secs(60)
    });
}

/// A doubt is left alone for so long: longer than most pauses are.
const DOUBT_RESTS: jiff::SignedDuration = jiff::SignedDuration::from_millis(2_500);

/// People approve what waits, and settle doubts by looking at the far side. Nobody says "not landed": a process that is paused
/// between its check and its entry could still send the write, which is the documented exception.
async fn people(runtime: &Runtime, book: &Book, open: &[Listed], report: &mut Report) {
    let by = Principal::person("local:chaos");
    for row in open {
        match (row.state.as_str(), row.reason.as_deref()) {
            ("waiting_for_approval", _) => {
                let Ok(Some(snapshot)) = runtime.store().load(row.id).await else { continue };
                let Some(digest) = snapshot.turn.and_then(|t| t.digest) else { continue };
                let decision =
                    Decision { digest, rest: Some(true), reason: None, calls: vec![], by: by.clone(), execute: false };
                // Somebody was faster, or the store is away: the next round looks again.
                runtime.decide(row.id, decision).await.ok();
            }
            // A while after, so that a process which was only paused can say what it knows.
            ("dead", Some("write_in_doubt")) if Timestamp::now().duration_since(row.since) > DOUBT_RESTS => {
                let Ok(Some(snapshot)) = runtime.store().load(row.id).await else { continue };
                let Some(fence) = snapshot.fence.filter(|_| snapshot.reason == Some(Reason::WriteInDoubt)) else { continue };
                let landed = book.with(|all| all.contains_key(&fence.idempotency_key));
                let outcome = if landed { ResolutionKind::Landed } else { ResolutionKind::Abandon };
                let said = Resolution {
                    call_id: fence.call_id,
                    fence_epoch: Some(fence.epoch),
                    outcome,
                    result: None,
                    note: None,
                    by: by.clone(),
                };
                if runtime.resolve(row.id, said).await.is_ok() {
                    report.doubts += 1;
                }
            }
            _ => {}
        }
    }
}

async fn judge(store: &Arc<dyn Store>, all: &[RunId], book: &Book, report: &mut Report) {
    report.runs = all.len();
    let arrivals = book.with(|all| all.clone());
    for (key, arrived) in &arrivals {
        let tool = &arrived[0].tool;
        *report.arrived.entry(tool.clone()).or_default() += arrived.len();
        let idempotent = TOOLS.iter().any(|(name, effect, ..)| name == tool && *effect == "idempotent_write");
        if !idempotent && arrived.len() > 1 {
            report.violations.push(format!("{tool} arrived {} times under {key}", arrived.len()));
        }
        if arrived.iter().any(|a| a.body != arrived[0].body || &a.tool != tool) {
            report.violations.push(format!("{tool} arrived with other content under {key}"));
        }
    }
    for id in all {
        let row = match store.load(*id).await {
            Ok(Some(row)) => row,
            other => {
                report.violations.push(format!("run {id} is lost: {other:?}"));
                continue;
            }
        };
        let ended = format!("{}{}", row.state, row.reason.map(|r| format!("({r})")).unwrap_or_default());
        *report.ended.entry(ended).or_default() += 1;
        let mut entries = Vec::new();
        while let Ok(page) = store.journal(*id, entries.len() as u64, 1_000).await {
            if page.is_empty() {
                break;
            }
            entries.extend(page);
        }
        if entries.iter().zip(0..).any(|(e, n)| e.sequence != n) || entries.len() as u64 != row.sequence {
            report.violations.push(format!("run {id}: the journal has a gap"));
        }
        let story = Story::of(&entries);
        for call in story.calls.values().filter(|c| c.asked.effect != Effect::ReadOnly) {
            let key = id.idempotency_key(&call.asked.id);
            let arrived = arrivals.contains_key(&key);
            let Some(outcome) = &call.outcome else { continue };
            if outcome.via == Via::LateOutcome {
                report.late_outcomes += 1;
            }
            let says_done = outcome.outcome == Outcome::Done && !outcome.is_error;
            let says_nothing_happened = matches!(outcome.outcome, Outcome::NotApplied | Outcome::NotRun | Outcome::Denied);
            if says_done && !arrived {
                report.violations.push(format!("run {id} call {}: done, and never arrived", call.asked.id));
            }
            if says_nothing_happened && arrived {
                report.violations.push(format!("run {id} call {}: {}, and it arrived", call.asked.id, outcome.outcome));
            }
        }
    }
}
