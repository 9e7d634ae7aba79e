//! The crash drill for tools written in Rust: what [`leasehold drill`](leasehold::drill) does with real processes, in this one. An
//! execution that is dropped at a point leaves behind what a killed process leaves: a lease that runs out, and a stamp.
//!
//! The tools are truly entered, with the arguments you give: build the registry on doubles of your systems.

use crate::{park::Park, world::World};
use async_trait::async_trait;
use leasehold::{
    Execution, StartRun,
    agent::{
        registry::Registry,
        tool::{
            Approval, Arguments, Preview, Tool, ToolSpec, Verified, Verify, VerifyQuery, WriteAnswer, WriteEffect, WritePermit,
            WriteTool,
        },
    },
    drill::{Answers, Asked, Blow, Case, Entry, Finding, Observed, judge, settled_as},
    run::{EntryBody, RunId, State},
    worker::Point,
};
use serde_json::Value;
use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

/// Points at which an execution is dropped.
const POINTS: [(Blow, Point); 5] = [
    (Blow::BeforeStamp, Point::BeforeStamp),
    (Blow::AfterStamp, Point::AfterStamp),
    (Blow::InTool, Point::InTool),
    (Blow::AfterReturn, Point::AfterReturn),
    (Blow::AfterRecord, Point::AfterRecord),
];

/// Claims until a run is at rest; more: it is not.
const CLAIMS_MAX: usize = 16;

/// One tool at one point.
#[derive(Clone, Debug)]
pub struct DrillRow {
    /// The tool.
    pub tool: String,
    /// What happened to the execution.
    pub point: Blow,
    /// How often the tool was entered.
    pub entered: usize,
    /// How the run stands.
    pub settled_as: String,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// What a drill found.
#[derive(Clone, Debug, Default)]
pub struct DrillReport {
    /// Tools by points.
    pub rows: Vec<DrillRow>,
    /// Tools that were not drilled, and why.
    pub not_drilled: Vec<(String, String)>,
}

impl DrillReport {
    /// The row of a tool and a point.
    pub fn row(&self, tool: &str, point: Blow) -> Option<&DrillRow> {
        self.rows.iter().find(|row| row.tool == tool && row.point == point)
    }
    /// Nothing is wrong, and no tool that writes was left out.
    ///
    /// # Panics
    /// Something is; the message is the whole table.
    pub fn assert_clean(&self) {
        let is_clean = self.not_drilled.is_empty() && self.rows.iter().all(|row| row.findings.is_empty());
        assert!(is_clean, "the drill found something:\n{self}");
    }
}

impl fmt::Display for DrillReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for row in &self.rows {
            write!(f, "{:<32} {:<14} entered {}  {}", row.tool, row.point.as_str(), row.entered, row.settled_as)?;
            for finding in &row.findings {
                write!(f, "  ! {finding}")?;
            }
            writeln!(f)?;
        }
        for (tool, why) in &self.not_drilled {
            writeln!(f, "{tool:<32} not drilled: {why}")?;
        }
        Ok(())
    }
}

/// Drills every write tool of a registry with the arguments given for it, at every point and with the decision sent twice. Reads
/// have no fence and no row; a write without arguments, or with such that its schema refuses, is listed as not drilled.
///
/// ```
/// use leasehold::agent::{
///     registry::Registry,
///     tool::{Approval, WriteAnswer, WriteEffect, WritePermit, rust},
/// };
/// use leasehold::drill::Blow;
/// use serde_json::{Value, json};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let refund = rust::write_tool(
///     "refunds.create",
///     "Pay an order back",
///     WriteEffect::NonIdempotent,
///     Approval::Required,
///     |permit: WritePermit, order: std::collections::BTreeMap<String, Value>| async move {
///         match permit.check() {
///             Ok(()) => WriteAnswer::done(format!("paid back {order:?}")),
///             Err(not_held) => WriteAnswer::NotStarted { why: not_held.to_string() },
///         }
///     },
/// );
/// let mut registry = Registry::new();
/// registry.add_tool(refund.tool())?;
///
/// let report = leasehold_testkit::drill(&registry, [("refunds.create", json!({ "order": "A-17" }))]).await;
/// report.assert_clean();
/// let row = report.row("refunds.create", Blow::AfterReturn).expect("drilled");
/// assert_eq!((row.entered, row.settled_as.as_str()), (1, "in doubt"));
/// # Ok(())
/// # }
/// ```
pub async fn drill<'a>(registry: &Registry, arguments: impl IntoIterator<Item = (&'a str, Value)>) -> DrillReport {
    let given: Vec<(&str, Value)> = arguments.into_iter().collect();
    let mut report = DrillReport::default();
    for tool in registry.tools() {
        let name = tool.spec().name.clone();
        let (write, approval) = match tool {
            Tool::Read(_) => continue,
            Tool::Write(write, approval) => (write, approval),
            Tool::Transactional(..) => {
                report.not_drilled.push((name, "it is committed with its record: there is no fence to drill".into()));
                continue;
            }
        };
        let arguments = match given.iter().find(|(of, _)| *of == name) {
            None => Err("no arguments are given for it".to_owned()),
            Some((_, Value::Object(arguments))) => registry.validate(tool, arguments.clone()),
            Some(_) => Err("its arguments are no JSON object".into()),
        };
        match arguments {
            Err(why) => report.not_drilled.push((name, why)),
            Ok(arguments) => {
                for (blow, point) in POINTS {
                    report.rows.push(Scene::new(write, *approval, &arguments).cut_off(blow, point).await);
                }
                report.rows.push(Scene::new(write, *approval, &arguments).twice().await);
            }
        }
    }
    report
}

/// A write that is counted when it is entered.
struct Counted {
    inner: Arc<dyn WriteTool>,
    entries: Mutex<Vec<Entry>>,
    absent: AtomicUsize,
}

impl Counted {
    fn entries(&self) -> Vec<Entry> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[async_trait]
impl WriteTool for Counted {
    fn spec(&self) -> &ToolSpec {
        self.inner.spec()
    }
    fn write_effect(&self) -> WriteEffect {
        self.inner.write_effect()
    }
    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        let entry = Entry { key: permit.idempotency_key().to_owned(), arguments: Value::Object(arguments.clone()).to_string() };
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        self.inner.call(permit, arguments).await
    }
    fn preview(&self) -> Option<&dyn Preview> {
        self.inner.preview()
    }
    fn verify(&self) -> Option<&dyn Verify> {
        self.inner.verify().map(|_| self as &dyn Verify)
    }
}

#[async_trait]
impl Verify for Counted {
    fn settle_after(&self) -> Duration {
        self.inner.verify().map_or(Duration::ZERO, Verify::settle_after)
    }
    fn absent_is_not_applied(&self) -> bool {
        self.inner.verify().is_some_and(Verify::absent_is_not_applied)
    }
    async fn verify(&self, query: &VerifyQuery, arguments: &Arguments) -> Verified {
        let Some(verify) = self.inner.verify() else { return Verified::Unknown("it cannot be asked".into()) };
        let verified = verify.verify(query, arguments).await;
        if verified == Verified::Absent {
            self.absent.fetch_add(1, Ordering::AcqRel);
        }
        verified
    }
}

/// One tool, one run, one thing that happens.
struct Scene {
    tool: Arc<Counted>,
    approval: Approval,
    script: String,
}

impl Scene {
    fn new(write: &Arc<dyn WriteTool>, approval: Approval, arguments: &Arguments) -> Self {
        let tool = Arc::new(Counted { inner: Arc::clone(write), entries: Mutex::default(), absent: AtomicUsize::new(0) });
        // A JSON string is a TOML string too.
        let text = |text: &str| Value::from(text).to_string();
        let call = format!(
            "{{ tool = {}, raw_arguments = {} }}",
            text(&tool.spec().name),
            text(&Value::Object(arguments.clone()).to_string())
        );
        let script = format!("[[reply]]\ncalls = [{call}]\n[[reply]]\ntext = \"done\"\n");
        Self { tool, approval, script }
    }

    fn tool(&self) -> Tool {
        Tool::Write(Arc::clone(&self.tool) as Arc<dyn WriteTool>, self.approval)
    }

    /// The same store and clocks, as another process would have them.
    fn beside(&self, world: &World, process: &str) -> World {
        World::builder(&self.script).tool(self.tool()).on(&world.store, &world.clock).process(process).build()
    }

    /// A queued run, taken to the decision where it needs one.
    async fn queued(&self, world: &World) -> RunId {
        let run = match world.runtime.enqueue(StartRun::new("a", "a drill", World::person()), None).await {
            Ok(run) => run,
            Err(error) => panic!("the drill's run was not enqueued: {error}"),
        };
        if self.approval == Approval::Required {
            // How it stands is looked at when it is decided.
            world.claim(run).await.ok();
        }
        run
    }

    /// The execution that makes the write.
    async fn execution(&self, world: &World, run: RunId) -> Execution {
        let execution = match self.approval {
            Approval::None => world.runtime.claim(run).await.ok(),
            Approval::Required => {
                let decision = World::decision(world.digest(run).await, true);
                world.runtime.decide(run, decision).await.ok().and_then(|decided| decided.execution)
            }
        };
        match execution {
            Some(execution) => execution,
            None => panic!("run {run} of the drill cannot be executed here"),
        }
    }

    async fn cut_off(self, blow: Blow, point: Point) -> DrillRow {
        let park = Park::at(point);
        let world = World::builder(&self.script).tool(self.tool()).probe(Arc::clone(&park) as _).build();
        let run = self.queued(&world).await;
        let execution = self.execution(&world, run).await;
        let segment = tokio::spawn(execution.finish());
        park.reached().await;
        while point == Point::InTool && self.tool.entries().is_empty() {
            tokio::task::yield_now().await;
        }
        segment.abort();
        // That it was aborted is what was asked for.
        segment.await.ok();
        self.settled(blow, &self.beside(&world, "drill:2"), run).await
    }

    /// The decision comes from two processes at once; where none is needed, two claim at once.
    async fn twice(self) -> DrillRow {
        let first = World::builder(&self.script).tool(self.tool()).build();
        let run = self.queued(&first).await;
        let second = self.beside(&first, "drill:2");
        let digest = if self.approval == Approval::Required { Some(first.digest(run).await) } else { None };
        let go = async |world: &World| {
            let execution = match &digest {
                None => world.runtime.claim(run).await.ok(),
                Some(digest) => {
                    let decision = World::decision(digest.clone(), true);
                    world.runtime.decide(run, decision).await.ok().and_then(|decided| decided.execution)
                }
            };
            if let Some(execution) = execution {
                // How it ended is in the record.
                execution.finish().await.ok();
            }
        };
        tokio::join!(go(&first), go(&second));
        self.settled(Blow::Twice, &second, run).await
    }

    /// Lets another process go on until nothing happens any more by itself, and judges.
    async fn settled(&self, blow: Blow, world: &World, run: RunId) -> DrillRow {
        for _ in 0..CLAIMS_MAX {
            let state = world.row(run).await.state;
            if state.is_settled() || state == State::Dead {
                break;
            }
            world.lapse().await;
            if let Ok(execution) = world.runtime.claim(run).await {
                // How it ended is in the record.
                execution.finish().await.ok();
            }
        }
        let row = world.row(run).await;
        let entries = world.entries(run).await;
        let known = world.story(run).await.calls.into_values().next().and_then(|call| call.outcome);
        let seen = Observed {
            entries: self.tool.entries(),
            absent: self.tool.absent.load(Ordering::Acquire),
            state: row.state,
            reason: row.reason,
            outcome: known.map(|known| (known.outcome, known.via)),
            decisions: entries.iter().filter(|entry| matches!(entry.body, EntryBody::Approval(_))).count(),
            late: false,
        };
        let asked = match WriteTool::verify(&*self.tool) {
            None => Asked::Never,
            Some(verify) if verify.absent_is_not_applied() => Asked::NotApplied,
            Some(_) => Asked::InDoubt,
        };
        let case = Case { effect: self.tool.write_effect().into(), asked, blow, answers: Answers::Any };
        DrillRow {
            tool: self.tool.spec().name.clone(),
            point: blow,
            entered: seen.entries.len(),
            settled_as: settled_as(seen.state, seen.reason),
            findings: judge(&case, &seen),
        }
    }
}
