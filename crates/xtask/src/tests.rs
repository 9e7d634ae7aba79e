//! Proofs that are tests: run in the dev profile, by name.

use crate::{Line, root};
use anyhow::{Context as _, bail};
use std::{path::Path, process::Command, time::Instant};

/// A test by its target and name.
pub(crate) struct Named {
    /// Whose.
    pub(crate) package: &'static str,
    /// `--test` target; none: the library's own tests.
    pub(crate) target: Option<&'static str>,
    pub(crate) name: &'static str,
}

impl Named {
    /// A test of the library.
    pub(crate) const fn of(target: &'static str, name: &'static str) -> Self {
        Self { package: "leasehold", target: Some(target), name }
    }

    /// A test of the library in the target that has most of them, its module in front of its name.
    pub(crate) const fn it(name: &'static str) -> Self {
        Self::of("it", name)
    }
}

/// How a test command ended, and what it said.
pub(crate) struct Ran {
    pub(crate) passed: bool,
    pub(crate) built: bool,
    pub(crate) tests: usize,
    pub(crate) output: String,
}

/// Runs the test in this workspace, its artifacts in `target`.
pub(crate) fn run(workspace: &Path, target: &Path, test: &Named, env: &[(&str, &str)]) -> anyhow::Result<Ran> {
    let mut command = Command::new("cargo");
    command.args(["test", "--quiet", "-p", test.package]);
    match test.target {
        Some(target) => command.args(["--test", target]),
        None => command.arg("--lib"),
    };
    command.args([test.name, "--", "--nocapture"]);
    command.current_dir(workspace).env("CARGO_TARGET_DIR", target).env("RUST_BACKTRACE", "0");
    command.envs(env.iter().copied());
    let output = command.output().context("cargo test does not start")?;
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let tests = text.lines().find_map(|line| line.strip_prefix("running ")?.split(' ').next()?.parse().ok());
    Ok(Ran { passed: output.status.success(), built: tests.is_some(), tests: tests.unwrap_or(0), output: text })
}

fn must_pass(test: &Named, env: &[(&str, &str)]) -> anyhow::Result<Ran> {
    let ran = run(&root(), &root().join("target"), test, env)?;
    if !ran.passed || ran.tests == 0 {
        bail!("{} does not pass:\n{}", test.name, ran.output);
    }
    Ok(ran)
}

pub(crate) fn crash_points() -> anyhow::Result<Line> {
    let started = Instant::now();
    let ran = must_pass(&Named::it("crash_points::"), &[])?;
    let told: Vec<&str> = ran.output.lines().filter(|line| line.contains("commit points")).collect();
    Ok(Line { proof: "crash points".into(), figures: told.join("; "), took: started.elapsed() })
}

pub(crate) fn walk(histories: u64) -> anyhow::Result<Line> {
    let started = Instant::now();
    let test = Named::of("core_run", "no_random_history_breaks_an_invariant");
    must_pass(&test, &[("WALKS", &histories.to_string())])?;
    Ok(Line { proof: "random walk".into(), figures: format!("{histories} histories"), took: started.elapsed() })
}

pub(crate) fn chaos(seconds: u64) -> anyhow::Result<Line> {
    let started = Instant::now();
    let test = Named {
        package: "leasehold-server",
        target: Some("it"),
        name: "chaos::on_postgresql_they_lose_no_run_and_start_no_write_twice",
    };
    let ran = must_pass(&test, &[("CHAOS_SECONDS", &seconds.to_string())])?;
    let told = ran.output.lines().find(|line| line.contains(" kills, ")).unwrap_or_default();
    Ok(Line { proof: "real chaos on PostgreSQL".into(), figures: told.to_owned(), took: started.elapsed() })
}
