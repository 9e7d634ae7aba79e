//! Mutation testing of the pure core: `run/`, its tests and the model explorer make a small crate of their own, which a general tool
//! (cargo-mutants) changes at every place it knows. What no test there notices is listed.

use crate::root;
use anyhow::{Context as _, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The tool, as it was run for the figures.
const TOOL: &str = "cargo-mutants@27.1.0";
/// What the core and its tests need of the workspace's dependencies.
const NEEDS: [&str; 10] =
    ["fastrand", "jiff", "proptest", "rustix", "serde", "serde_json", "serde_json_canonicalizer", "sha2", "strum", "thiserror"];

/// Makes the crate and lets the tool loose on it; `arguments` go to the tool. First with the tests that take no time and a build
/// that is not optimised; what those do not notice is tried again with all of them and the model explorer.
pub(crate) fn run(arguments: &[&str]) -> anyhow::Result<()> {
    let root = root();
    let tool = installed(&root)?;
    let core = core(&root, "mutate")?;
    let explorer = core.join("crates/leasehold/tests/model_check");
    let aside = core.join("model_check");
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::rename(&explorer, &aside)?;
    let quick = ["--", "-E", "not (test(enumerate::) | test(histories::))"];
    mutate(&root, &tool, &core, "0", &[arguments, &quick].concat())?;
    fs::rename(&aside, &explorer)?;
    mutate(&root, &tool, &core, "1", &[arguments, &["--iterate"]].concat())
}

fn mutate(root: &Path, tool: &Path, core: &Path, optimised: &str, arguments: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(tool)
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", optimised)
        .args(["mutants", "--dir"])
        .arg(core)
        .args(["--output"])
        .arg(root.join("target"))
        // nextest ends with the first test that is red.
        .args([
            "--no-shuffle",
            "--colors",
            "never",
            "--caught",
            "--jobs",
            "2",
            "--exclude",
            "crates/leasehold/src/clock.rs",
            "--minimum-test-timeout",
            "300",
            "--test-tool",
            "nextest",
        ])
        .args(arguments)
        .status()
        .context("cargo-mutants does not start")?;
    match status.code() {
        // 2: some were not noticed; 3: some ran for ever, which is noticed. They are listed in target/mutants.out.
        Some(0 | 2 | 3) => Ok(()),
        other => bail!("cargo-mutants ended with {other:?}"),
    }
}

fn installed(root: &Path) -> anyhow::Result<PathBuf> {
    let tools = root.join("target/tools");
    let tool = tools.join("bin/cargo-mutants");
    if !tool.is_file() {
        let installed = Command::new("cargo").args(["install", TOOL, "--locked", "--root"]).arg(&tools).status()?;
        if !installed.success() {
            bail!("{TOOL} could not be installed in {}", tools.display());
        }
    }
    Ok(tool)
}

/// A workspace with one crate of the name `leasehold`, and nothing in that but the core.
pub(crate) fn core(root: &Path, name: &str) -> anyhow::Result<PathBuf> {
    let whole: toml::Table = fs::read_to_string(root.join("Cargo.toml"))?.parse()?;
    let known = whole.get("workspace").and_then(|w| w.get("dependencies")).and_then(|d| d.as_table());
    let known = known.context("the workspace has no dependencies")?;
    let mut dependencies = toml::Table::new();
    for name in NEEDS.into_iter().chain(["uuid"]) {
        dependencies.insert(name.into(), known.get(name).with_context(|| format!("no `{name}` in the workspace"))?.clone());
    }
    let table = toml::toml! {
        [package]
        name = "leasehold"
        version = "0.0.0"
        edition = "2024"
        publish = false
    };
    let workspace = toml::toml! {
        [workspace]
        resolver = "3"
        members = ["crates/leasehold"]
        [profile.dev]
        debug = false
    };
    let mut manifest = table;
    manifest.insert("dependencies".into(), dependencies.into());
    let home = root.join("target").join(name);
    let core = home.join("crates/leasehold");
    for old in ["src", "tests"].map(|old| core.join(old)).into_iter().filter(|old| old.exists()) {
        fs::remove_dir_all(old)?;
    }
    let from = root.join("crates/leasehold");
    copy(&from.join("src/run"), &core.join("src/run"))?;
    copy(&from.join("tests/core_run"), &core.join("tests/core_run"))?;
    copy(&from.join("tests/golden"), &core.join("tests/golden"))?;
    copy(&root.join("crates/leasehold-testkit/src/model"), &core.join("tests/model_check/model"))?;
    // A generated page is compared with what the core says.
    copy(&root.join("docs"), &home.join("docs"))?;
    fs::copy(from.join("src/clock.rs"), core.join("src/clock.rs"))?;
    fs::write(core.join("src/lib.rs"), "pub mod clock;\npub mod run;\n")?;
    let check = fs::read_to_string(from.join("tests/model_check.rs"))?;
    fs::write(core.join("tests/model_check/main.rs"), check.replacen("use leasehold_testkit::model;", "mod model;", 1))?;
    fs::write(core.join("Cargo.toml"), toml::to_string(&manifest)?)?;
    fs::write(home.join("Cargo.toml"), toml::to_string(&workspace)?)?;
    fs::copy(root.join("Cargo.lock"), home.join("Cargo.lock"))?;
    Ok(home)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}
