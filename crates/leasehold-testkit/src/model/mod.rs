//! A model check: every history of one run within stated bounds, over the shipped [`apply`](leasehold::run::apply). Nothing of a
//! transition is modelled here. What is modelled is what surrounds it: processes with a permit in hand, tools that land or do
//! not, answers that are lost, clocks that run past a lease, persons who may be wrong.
//!
//! Time is free: a lease may end at any moment, which is at once a crash, a pause and a process cut off from its store. The only
//! times that the core compares (due, in flight until, deadlines) are asked for on both sides. In a [`Plan`] that is `prompt`
//! nothing is on its way any more when a verify or a person is asked, and persons do not say "not landed" of what landed:
//! there no effect happens twice, without any exception. In the others the documented exception is marked per call, at the moment when
//! somebody says "not applied" while an attempt is under way or has landed, and only marked calls may show it.

mod checks;
mod given;
mod moves;
mod world;

use given::CallPlan;
use leasehold::run::{Effect, OnExpiry, Recovery};
use std::{
    collections::{BTreeMap, HashSet},
    fmt::Write as _,
    time::{Duration, Instant},
};
use world::World;

/// How far histories go. Each is a count over the whole history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Processes.
    pub processes: usize,
    /// Grants after the first: claims and decisions that execute.
    pub grants: u8,
    /// Requeues that the policy allows.
    pub requeues: u32,
    /// Answers that are lost although the write was applied.
    pub losses: u8,
    /// Resolutions by a person.
    pub resolutions: u8,
    /// Redrives by an operator.
    pub redrives: u8,
    /// Shutdowns, model failures and agent failures together.
    pub stops: u8,
    /// Restores from a backup.
    pub restores: u8,
    /// Stamps that their holder takes back.
    pub unstamps: u8,
    /// Times that a tool asks for input before it goes on.
    pub asks: u8,
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Its name in the report.
    pub name: &'static str,
    /// The calls of each turn.
    pub turns: Vec<Vec<CallPlan>>,
    /// A caller waits (claimed at birth, abandoned with its process), or it is queued.
    pub recovery: Recovery,
    /// What happens when nobody decides.
    pub on_expiry: OnExpiry,
    /// Nothing is under way when somebody says "not applied", and persons are right about it.
    pub prompt: bool,
    /// Its bounds.
    pub bounds: Bounds,
}

/// What an exploration found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The plan.
    pub name: &'static str,
    /// Different states.
    pub states: usize,
    /// Events and steps of the world tried from them.
    pub steps: u64,
    /// Different rows among the states.
    pub rows: usize,
    /// The longest path that was followed.
    pub depth: usize,
    /// What happened how often, to show that nothing was vacuous.
    pub happened: BTreeMap<&'static str, u64>,
    /// How long it took.
    pub took: Duration,
    /// Stopped at the limit of states before everything was seen.
    pub cut: bool,
}

const WRITE: CallPlan = CallPlan { effect: Effect::NonIdempotentWrite, needs_person: false, verify: None };

fn non_idempotent(needs_person: bool) -> CallPlan {
    CallPlan { needs_person, ..WRITE }
}

fn idempotent() -> CallPlan {
    CallPlan { effect: Effect::IdempotentWrite, ..WRITE }
}

fn verifiable(absent_is_not_applied: bool) -> CallPlan {
    CallPlan { verify: Some(absent_is_not_applied), ..WRITE }
}

/// The plans with small bounds: what a test can explore.
pub fn short() -> Vec<Plan> {
    let bounds = Bounds {
        processes: 2,
        grants: 2,
        requeues: 1,
        losses: 1,
        resolutions: 1,
        redrives: 0,
        stops: 0,
        restores: 0,
        unstamps: 0,
        asks: 0,
    };
    let mut plans = plans(bounds);
    // Where less waits for a person there are far more histories: no lost answers there.
    for plan in plans.iter_mut().filter(|plan| plan.is_free()) {
        plan.bounds = Bounds { losses: 0, ..plan.bounds };
    }
    plans
}

/// The plans with the bounds of the proof.
pub fn full() -> Vec<Plan> {
    let bounds = Bounds {
        processes: 2,
        grants: 3,
        requeues: 1,
        losses: 1,
        resolutions: 2,
        redrives: 1,
        stops: 1,
        restores: 0,
        unstamps: 1,
        asks: 0,
    };
    let mut plans = plans(bounds);
    // Where no person holds a history up there are tens of millions: fewer of the rare things there, each of which the other plans
    // have.
    for plan in plans.iter_mut().filter(|plan| plan.is_free()) {
        plan.bounds = Bounds { resolutions: 1, redrives: 0, stops: 0, unstamps: 0, ..plan.bounds };
    }
    plans
}

fn plans(bounds: Bounds) -> Vec<Plan> {
    let plan = |name, turns: &[&[CallPlan]], prompt| Plan {
        name,
        turns: turns.iter().map(|calls| calls.to_vec()).collect(),
        recovery: Recovery::Requeue,
        on_expiry: OnExpiry::Continue,
        prompt,
        bounds,
    };
    let asked = non_idempotent(true);
    let free = non_idempotent(false);
    vec![
        plan("two writes of one turn, approved; the second idempotent", &[&[asked, idempotent()]], false),
        plan("the same, prompt", &[&[asked, idempotent()]], true),
        plan("two non-idempotent writes in two turns", &[&[free], &[free]], false),
        plan("a verifiable write (absent: not applied), then a non-idempotent one", &[&[verifiable(true), free]], false),
        plan("the same, prompt", &[&[verifiable(true), free]], true),
        plan("a verifiable write (absent: a doubt), then an idempotent one", &[&[verifiable(false), idempotent()]], false),
        Plan {
            recovery: Recovery::Abandon,
            ..plan("a caller waits: an approved write, then one that needs nobody", &[&[asked, free]], false)
        },
        asking(plan(
            "an approved write that asks for input, then an idempotent one that may",
            &[&[asked, idempotent()]],
            false,
        )),
        asking(plan("a verifiable write (absent: not applied) that asks for input", &[&[verifiable(true)]], false)),
        Plan {
            on_expiry: OnExpiry::DeadLetter,
            ..plan(
                "undecided is dead: two approved writes, one verifiable",
                &[&[asked, CallPlan { needs_person: true, ..verifiable(true) }]],
                true,
            )
        },
    ]
}

/// A plan whose tools ask for input. There are more histories of it: a redrive and a failure less, which the others have.
fn asking(plan: Plan) -> Plan {
    Plan { bounds: Bounds { asks: 2, redrives: 0, stops: 0, ..plan.bounds }, ..plan }
}

struct Frame {
    world: World,
    label: String,
    next: std::vec::IntoIter<(String, World)>,
}

/// Explores a plan, at most `states_max` states.
///
/// # Errors
/// The first history that breaks an invariant, step by step.
pub fn explore(plan: &Plan, states_max: usize) -> Result<Report, String> {
    let started = Instant::now();
    let mut report = Report { name: plan.name, ..Report::default() };
    let mut seen: HashSet<u128> = HashSet::new();
    let mut rows = checks::Rows::default();
    let ids = plan.call_ids();
    let mut stack: Vec<Frame> = Vec::new();
    let told = |stack: &[Frame], last: &str, why: String, world: Option<&World>| {
        let mut text = format!("{why}\nplan: {plan:?}\n");
        for frame in stack {
            let _ = writeln!(text, "  {}  -> {}", frame.label, frame.world.in_short());
        }
        let _ = writeln!(text, "  {last}");
        if let Some(world) = world {
            let _ = writeln!(text, "{world:#?}");
        }
        text
    };
    let first = World::born(plan);
    let mut entering = Some(("born".to_owned(), first));
    loop {
        if let Some((label, world)) = entering.take()
            && seen.insert(world.key(&ids))
        {
            world.holds(plan, &ids).map_err(|why| told(&stack, &label, why, Some(&world)))?;
            rows.check(&world, plan, &ids).map_err(|why| told(&stack, &label, why, Some(&world)))?;
            world.note(&mut report.happened);
            let next =
                moves::from(&world, plan, &ids).map_err(|why| told(&stack, &format!("{label}; then:"), why, Some(&world)))?;
            report.steps += next.len() as u64;
            stack.push(Frame { world, label, next: next.into_iter() });
            report.depth = report.depth.max(stack.len());
            if seen.len() >= states_max {
                report.cut = true;
                break;
            }
        }
        let Some(frame) = stack.last_mut() else { break };
        entering = frame.next.next();
        if entering.is_none() {
            stack.pop();
        }
    }
    report.states = seen.len();
    report.rows = rows.seen();
    report.took = started.elapsed();
    Ok(report)
}
