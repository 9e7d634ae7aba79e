//! The proofs as one command.
//!
//! `cargo xtask proof [--short]` runs all of them and prints a table; `model`, `simulate [from..to]`, `crash-points`, `walk`,
//! `chaos [seconds]` and `mutants [name]` run one; `mutate` is mutation testing of the core by a general tool; `real-model` lets a small
//! model drive a run; `conformance [name]` runs the public MCP conformance suite against our client. What `docs/testing.md` says was printed here.

mod conformance;
mod mutants;
mod mutate;
mod real_model;
mod tests;

use anyhow::{Context as _, bail};
use leasehold_testkit::{model, simulation};
use std::{
    collections::BTreeMap,
    io::Write as _,
    ops::Range,
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Seeds that failed once, replayed by the tests for ever.
const SEEDS: &str = "crates/leasehold/tests/simulation_seeds.txt";
/// A plan with more states than this is reported as cut, and the proof fails.
const STATES_MAX: usize = 40_000_000;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let short = args.iter().any(|a| a == "--short");
    let words: Vec<&str> = args.iter().map(String::as_str).filter(|a| !a.starts_with("--")).collect();
    match words.as_slice() {
        ["proof"] => proof(short),
        ["model"] => print(&[model_check(short)?]),
        ["simulate"] => print(&[simulate(if short { 0..200 } else { 0..20_000 })?]),
        ["simulate", range] => {
            let (from, to) = range.split_once("..").context("a range: from..to")?;
            print(&[simulate(from.parse()?..to.parse()?)?])
        }
        ["crash-points"] => print(&[tests::crash_points()?]),
        ["walk"] => print(&[tests::walk(if short { 6_000 } else { 60_000 })?]),
        ["chaos"] => print(&[tests::chaos(if short { 60 } else { 1_800 })?]),
        ["chaos", seconds] => print(&[tests::chaos(seconds.parse()?)?]),
        ["conformance"] => conformance::run(None),
        ["conformance", only] => conformance::run(Some(only)),
        ["conformance-client", url] => conformance::client(url),
        ["real-model"] => print(&[real_model::run()?]),
        ["mutants"] => mutants::run(None),
        ["mutants", only] => mutants::run(Some(only)),
        ["mutate"] => mutate::run(&[]),
        ["mutate", only @ ..] => mutate::run(&only.iter().flat_map(|file| ["--file", file]).collect::<Vec<_>>()),
        _ => bail!(
            "proof | model | simulate [from..to] | crash-points | walk | chaos [seconds] | mutants [name] | mutate [files], each with --short; real-model; conformance [name]"
        ),
    }
}

/// The root of the workspace.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).unwrap_or(here)
}

/// One line of the table.
struct Line {
    proof: String,
    figures: String,
    took: Duration,
}

fn print(lines: &[Line]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "| proof | figures | took |\n| --- | --- | --- |")?;
    for line in lines {
        writeln!(out, "| {} | {} | {} s |", line.proof, line.figures, line.took.as_secs())?;
    }
    Ok(())
}

fn proof(short: bool) -> anyhow::Result<()> {
    let lines = [
        model_check(short)?,
        tests::crash_points()?,
        simulate(if short { 0..200 } else { 0..20_000 })?,
        tests::walk(if short { 6_000 } else { 60_000 })?,
        tests::chaos(if short { 60 } else { 1_800 })?,
    ];
    print(&lines)?;
    if short { Ok(()) } else { mutants::run(None) }
}

/// Every plan, two at a time.
fn model_check(short: bool) -> anyhow::Result<Line> {
    let started = Instant::now();
    let plans = if short { model::short() } else { model::full() };
    let mut bounds: BTreeMap<String, usize> = BTreeMap::new();
    for plan in &plans {
        *bounds.entry(format!("{:?}", plan.bounds)).or_default() += 1;
    }
    let bounds: Vec<String> = bounds.iter().map(|(bounds, plans)| format!("{plans} with {bounds}")).collect();
    let next = AtomicU64::new(0);
    let reports = Mutex::new(Vec::new());
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(plan) = plans.get(usize::try_from(next.fetch_add(1, Ordering::SeqCst)).unwrap_or(usize::MAX)) {
                    match model::explore(plan, STATES_MAX) {
                        Ok(report) => {
                            eprintln!(
                                "{}: {} states, {} steps, {} rows, longest {}, {} s{}\n    {:?}",
                                report.name,
                                report.states,
                                report.steps,
                                report.rows,
                                report.depth,
                                report.took.as_secs(),
                                if report.cut { ", CUT" } else { "" },
                                report.happened
                            );
                            reports.lock().unwrap_or_else(PoisonError::into_inner).push(report);
                        }
                        Err(history) => *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(history),
                    }
                }
            });
        }
    });
    if let Some(history) = failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        bail!("the model check found a history:\n{history}");
    }
    let reports = reports.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(cut) = reports.iter().find(|r| r.cut) {
        bail!("{}: more than {STATES_MAX} states", cut.name);
    }
    let states: usize = reports.iter().map(|r| r.states).sum();
    let steps: u64 = reports.iter().map(|r| r.steps).sum();
    Ok(Line {
        proof: "model check".into(),
        figures: format!("{} plans, {states} states, {steps} steps, all of them; {}", reports.len(), bounds.join(", ")),
        took: started.elapsed(),
    })
}

/// Plays the seeds in two threads. One that fails is kept.
fn simulate(seeds: Range<u64>) -> anyhow::Result<Line> {
    let started = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let happened: Mutex<BTreeMap<&'static str, u64>> = Mutex::default();
    let failed: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::SeqCst);
                    if seed >= seeds.end {
                        return;
                    }
                    match simulation::play(seed) {
                        Ok(played) => {
                            let mut all = happened.lock().unwrap_or_else(PoisonError::into_inner);
                            for (what, times) in played.happened {
                                *all.entry(what).or_default() += times;
                            }
                        }
                        Err(why) => {
                            eprintln!("{why}");
                            keep(seed, &why);
                            failed.lock().unwrap_or_else(PoisonError::into_inner).push(why);
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(first) = failed.first() {
        bail!("{} seeds failed and are kept in {SEEDS}; the first: {first}", failed.len());
    }
    let happened = happened.into_inner().unwrap_or_else(PoisonError::into_inner);
    eprintln!("{happened:?}");
    let count = |what: &str| happened.get(what).copied().unwrap_or(0);
    Ok(Line {
        proof: "simulation".into(),
        figures: format!(
            "{} seeds, {} runs, {} entries into writes ({} after a pause), {} deaths, {} pauses, {} cuts, {} leases ended, {} doubts, \
             {} landed twice (all the documented exception)",
            seeds.end - seeds.start,
            count("enqueued"),
            count("entered"),
            count("entered after a pause"),
            count("a process dies"),
            count("a process stands still"),
            count("a process is cut off from its store"),
            count("lease_expired"),
            count("in_doubt"),
            count("landed twice: the documented exception"),
        ),
        took: started.elapsed(),
    })
}

fn keep(seed: u64, why: &str) {
    let first = why.lines().next().unwrap_or_default();
    let file = std::fs::OpenOptions::new().append(true).open(root().join(SEEDS));
    let kept = file.and_then(|mut file| writeln!(file, "{seed} # {first}"));
    if let Err(error) = kept {
        eprintln!("seed {seed} could not be kept in {SEEDS}: {error}");
    }
}
