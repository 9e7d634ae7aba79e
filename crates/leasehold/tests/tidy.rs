//! Style and structure as a test: what must be true of the text of this repository, whoever changes it. Each rule is a function
//! of the files, so that the last tests can show each of them a file that breaks it.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use leasehold::run::{Reason, Rejection, RejectionDiscriminants};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use strum::IntoEnumIterator as _;

/// Lines of one Rust file.
const LINES_MAX: usize = 600;

/// This file names what it forbids.
const SELF: &str = "crates/leasehold/tests/tidy.rs";

#[derive(Clone, Debug)]
struct Text {
    path: String,
    text: String,
}

impl Text {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }
    fn is_in(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }
    /// Numbered lines without those that are only a comment.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(n, l)| (n + 1, l)).filter(|(_, l)| !l.trim_start().starts_with("//"))
    }
    /// A compile-fail case is not a module.
    fn is_case(&self) -> bool {
        ["/ui/", "/compile_fail/"].iter().any(|folder| self.path.contains(folder))
    }
}

type Broken = Vec<String>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn collect(folder: &Path, under: &Path, found: &mut Vec<Text>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder).expect("readable").flatten().map(|e| e.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let is_link = path.is_symlink();
        if path.is_dir() && !is_link {
            let is_ours = !name.starts_with('.') || [".ci", ".config", ".github"].contains(&name);
            if is_ours && !["target", "node_modules"].contains(&name) {
                collect(&path, under, found);
            }
            continue;
        }
        let is_text = ["rs", "md", "toml", "sql", "sh", "yml", "yaml"].iter().any(|e| name.ends_with(&format!(".{e}")));
        if is_text || ["check", "run"].contains(&name) {
            let path_in = path.strip_prefix(under).expect("under it").to_string_lossy().into_owned();
            found.push(Text { path: path_in, text: fs::read_to_string(&path).expect("text") });
        }
    }
}

fn everything() -> Vec<Text> {
    let mut found = Vec::new();
    let root = root();
    collect(&root, &root, &mut found);
    assert!(found.len() > 100, "the files are not found any more");
    found
}

fn document(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn holds(rule: fn(&[Text]) -> Broken) {
    let broken = rule(&everything());
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// A word in a line: what stands before it is no part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

fn found_in(file: &Text, words: &[&str], what: &str) -> Broken {
    let lines = file.code().filter(|(_, line)| words.iter().any(|word| has_word(line, word)));
    lines.map(|(number, line)| format!("{}:{number}: {what}: {}", file.path, line.trim())).collect()
}

fn modules_say_what_they_are(files: &[Text]) -> Broken {
    let silent = files.iter().filter(|f| f.is_rust() && !f.is_case() && !f.path.ends_with("build.rs"));
    silent.filter(|f| !f.text.starts_with("//!")).map(|f| format!("{}: does not begin with //!", f.path)).collect()
}

fn files_are_short(files: &[Text]) -> Broken {
    let mut broken = Vec::new();
    for file in files.iter().filter(|f| f.is_rust()) {
        let lines = file.text.lines().count();
        if lines > LINES_MAX {
            broken.push(format!("{}: {lines} lines; split it", file.path));
        }
    }
    broken
}

fn the_core_is_pure(files: &[Text]) -> Broken {
    let impure = [
        "std::time::Instant",
        "std::time::SystemTime",
        "SystemTime",
        "Instant::",
        "Timestamp::now",
        "Zoned::now",
        "now_v7",
        "tokio",
        "rusqlite",
        "fastrand",
        "async fn",
        "async move",
        ".await",
        "std::fs",
        "std::io",
        "std::net",
        "std::env",
        "std::process",
        "std::thread",
        "crate::store",
        "crate::worker",
        "crate::agent",
        "crate::client",
    ];
    let core = files.iter().filter(|f| f.is_in("crates/leasehold/src/run/"));
    let found = core.flat_map(|f| found_in(f, &impure, "the core asks nobody and does nothing"));
    // A new run's id is made by who starts the run; no transition makes one.
    found.filter(|line| !(line.contains("/ids.rs:") && line.contains("now_v7"))).collect()
}

fn only_the_engine_applies(files: &[Text]) -> Broken {
    let sources = files.iter().filter(|f| f.is_rust() && f.path.contains("/src/") && !f.is_in("crates/leasehold-testkit/"));
    let elsewhere = sources.filter(|f| f.path != "crates/leasehold/src/store/engine.rs");
    elsewhere
        .flat_map(|f| found_in(f, &["apply("], "only the engine calls apply"))
        .filter(|line| !line.contains("fn apply(") && !line.contains(".apply("))
        .collect()
}

fn agents_cannot_name_the_store(files: &[Text]) -> Broken {
    let words = ["store::", "dyn Store", "SqliteStore", "MemoryStore", "Engine"];
    let agents = files.iter().filter(|f| f.is_in("crates/leasehold/src/agent/"));
    agents.flat_map(|f| found_in(f, &words, "an agent writes only through its segment")).collect()
}

fn sql_is_in_the_stores(files: &[Text]) -> Broken {
    let words = ["rusqlite", "SELECT ", "INSERT INTO ", "DELETE FROM ", "CREATE TABLE ", "PRAGMA "];
    // The bundled site is a far side with a file of its own, and the databases that are queried are the operator's.
    let tools = "crates/leasehold/src/agent/tool";
    let may = ["crates/leasehold/src/store/".to_owned(), format!("{tools}/site/"), format!("{tools}/sql/")];
    let sources = files.iter().filter(|f| f.is_rust() && f.path.contains("/src/") && !may.iter().any(|m| f.is_in(m)));
    sources.flat_map(|f| found_in(f, &words, "SQL is only in store/<db>/")).collect()
}

fn only_the_terminal_prints(files: &[Text]) -> Broken {
    let words = ["println!", "eprintln!", "print!", "eprint!", "io::stdout().write", "dbg!"];
    let server = files.iter().filter(|f| f.is_in("crates/leasehold-server/src/") && !f.path.ends_with("/terminal.rs"));
    let library = files.iter().filter(|f| f.is_in("crates/leasehold/src/"));
    server.chain(library).flat_map(|f| found_in(f, &words, "only terminal.rs prints")).collect()
}

fn nothing_is_left_for_later(files: &[Text]) -> Broken {
    let mut broken = Vec::new();
    for file in files.iter().filter(|f| f.path != SELF) {
        for (number, line) in file.text.lines().enumerate() {
            if ["TODO", "FIXME", "XXX:"].iter().any(|word| has_word(line, word)) {
                broken.push(format!("{}:{}: {}", file.path, number + 1, line.trim()));
            }
        }
    }
    broken
}

/// Nothing names the machine or the tools it was written with: it must be understood by itself.
fn it_stands_by_itself(files: &[Text]) -> Broken {
    let words =
        ["/work/", "/root/", "/home/", "shared/", "issues show", "chatgpt", "claude code", "anthropic.com", "ai assistant"];
    let mut broken = Vec::new();
    for file in files.iter().filter(|f| f.path != SELF) {
        for (number, line) in file.text.lines().enumerate() {
            let lower = line.to_lowercase();
            for word in words.iter().filter(|word| lower.contains(**word)) {
                // A line of /etc/passwd in a test.
                if *word == "/home/" && line.contains("/bin/sh") {
                    continue;
                }
                broken.push(format!("{}:{}: `{word}`: {}", file.path, number + 1, line.trim()));
            }
        }
    }
    broken
}

/// What a heading is called in a link.
fn slug(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().replace(' ', "-")
}

fn headings(text: &str) -> BTreeSet<String> {
    text.lines().filter(|l| l.starts_with('#')).map(|l| slug(l.trim_start_matches('#'))).collect()
}

fn links_lead_somewhere(files: &[Text]) -> Broken {
    let mut broken = Vec::new();
    for file in files.iter().filter(|f| f.path.ends_with(".md")) {
        let targets = file.text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|t| !t.contains("://") && !t.starts_with("mailto:")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
            let full = if path.is_empty() { PathBuf::from(&file.path) } else { folder.join(path) };
            let text = files.iter().find(|f| Path::new(&f.path) == full).map(|f| f.text.clone());
            let is_there = text.is_some() || root().join(&full).exists();
            let has_anchor = anchor.is_empty() || text.is_some_and(|t| headings(&t).contains(anchor));
            if !is_there || !has_anchor {
                broken.push(format!("{}: the link to `{target}` leads nowhere", file.path));
            }
        }
    }
    broken
}

/// Names of tests, and of the cases of the conformance suite.
fn tests(files: &[Text]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files.iter().filter(|f| f.is_rust()) {
        let is_suite = file.path.contains("/src/conformance/");
        let mut is_marked = false;
        for line in file.text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                is_marked = true;
            }
            let function = line.strip_prefix("pub(super) ").unwrap_or(line);
            let function = function.strip_prefix("async ").unwrap_or(function);
            if let Some(name) = function.strip_prefix("fn ").and_then(|rest| rest.split(['(', '<']).next()) {
                if is_marked || is_suite {
                    names.insert(name.to_owned());
                }
                is_marked = false;
            }
        }
    }
    names
}

/// Names in back-quotes in the last column of each row of the tables.
fn named(page: &str) -> Vec<(String, Vec<String>)> {
    let rows = page.lines().filter(|l| l.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim().trim_matches('|').split(" | ").collect();
        let last = cells.last().copied().unwrap_or_default();
        let names = last.split('`').skip(1).step_by(2).filter(|n| n.len() > 14 && !n.contains([' ', '=', '.']));
        (cells[0].trim().to_owned(), names.map(str::to_owned).collect())
    })
    .collect()
}

fn promises_name_their_tests(files: &[Text]) -> Broken {
    let tests = tests(files);
    let mut broken = Vec::new();
    let Some(page) = files.iter().find(|f| f.path == "docs/guarantees.md") else {
        return vec!["docs/guarantees.md is not there".into()];
    };
    let section = |name: &str| page.text.split(name).nth(1).and_then(|t| t.split("\n## ").next()).unwrap_or_default();
    // Behind the two lines of the head.
    let promises: Vec<_> = named(section("## Promises")).into_iter().skip(2).collect();
    let invariants: Vec<_> = named(section("## The ten invariants")).into_iter().skip(2).collect();
    for (first, names) in promises.iter().chain(&invariants) {
        if names.is_empty() {
            broken.push(format!("docs/guarantees.md: `{first}` names no test"));
        }
        let gone = names.iter().filter(|name| !tests.contains(*name));
        broken.extend(gone.map(|name| format!("docs/guarantees.md: there is no test `{name}`")));
    }
    let numbers: Vec<&str> = invariants.iter().map(|(first, _)| first.as_str()).collect();
    if numbers != ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"] {
        broken.push(format!("docs/guarantees.md: the invariants are {numbers:?}"));
    }
    broken
}

fn errors_are_explained(files: &[Text]) -> Broken {
    let page = files.iter().find(|f| f.path == "docs/errors.md").map(|f| f.text.as_str()).unwrap_or_default();
    let explained: BTreeSet<&str> = page.lines().filter_map(|l| l.strip_prefix("### ")).collect();
    let refusals = RejectionDiscriminants::iter().map(<&'static str>::from);
    let reasons = Reason::iter().map(Reason::as_str);
    // Refused by the far side, and by a tool's schema, not by a rule.
    let known: BTreeSet<&str> = refusals.chain(reasons).chain(["verified_landed", "invalid_input"]).collect();
    let missing = known.difference(&explained).map(|name| format!("docs/errors.md: `{name}` is not explained"));
    let gone = explained.difference(&known).map(|name| format!("docs/errors.md: there is no `{name}` any more"));
    missing.chain(gone).collect()
}

#[test]
fn every_module_says_what_it_is() {
    holds(modules_say_what_they_are);
}

#[test]
fn no_file_is_too_long() {
    holds(files_are_short);
}

#[test]
fn the_core_asks_nobody_and_does_nothing() {
    holds(the_core_is_pure);
}

#[test]
fn nothing_but_the_engine_applies_an_event() {
    holds(only_the_engine_applies);
}

#[test]
fn an_agent_has_no_way_to_the_store() {
    holds(agents_cannot_name_the_store);
}

#[test]
fn sql_stays_in_the_stores() {
    holds(sql_is_in_the_stores);
}

#[test]
fn nothing_prints_but_the_terminal() {
    holds(only_the_terminal_prints);
}

#[test]
fn no_work_is_left_as_a_comment() {
    holds(nothing_is_left_for_later);
}

#[test]
fn the_repository_stands_by_itself() {
    holds(it_stands_by_itself);
}

#[test]
fn every_link_leads_somewhere() {
    holds(links_lead_somewhere);
}

#[test]
fn every_promise_names_a_test_that_exists() {
    holds(promises_name_their_tests);
}

#[test]
fn every_refusal_and_reason_is_explained() {
    holds(errors_are_explained);
    // The name on the page is the one a command prints.
    assert_eq!(Rejection::StaleTurn.code(), "stale_turn");
}

#[test]
fn the_readme_has_the_two_commands_and_the_check_is_what_integration_runs() {
    let readme = document("README.md");
    let commands: Vec<&str> = readme.split("```sh\n").skip(1).filter_map(|b| b.lines().next()).take(2).collect();
    assert_eq!(commands, ["cargo run -p leasehold-server -- demo", "./check"]);
    assert!(document(".ci/run").contains("exec ./check"));
}

fn breaks(rule: fn(&[Text]) -> Broken, path: &str, text: &str) {
    let file = Text { path: path.into(), text: text.into() };
    assert!(!rule(std::slice::from_ref(&file)).is_empty(), "not noticed in {path}: {text}");
}

#[test]
fn each_rule_notices_what_it_forbids() {
    breaks(modules_say_what_they_are, "crates/a/src/b.rs", "use std::fmt;\n");
    breaks(files_are_short, "crates/a/src/b.rs", &"//\n".repeat(601));
    for line in ["let t = Timestamp::now();", "use tokio::sync;", "use std::time::Instant;", "async fn a() {}", "x().await;"] {
        breaks(the_core_is_pure, "crates/leasehold/src/run/a.rs", line);
    }
    breaks(the_core_is_pure, "crates/leasehold/src/run/holder.rs", "let id = Uuid::now_v7();");
    breaks(only_the_engine_applies, "crates/leasehold/src/client.rs", "let delta = apply(&row, event, &now)?;");
    breaks(only_the_engine_applies, "crates/leasehold/src/client.rs", "let delta = crate::run::apply(&row, event, &now)?;");
    breaks(agents_cannot_name_the_store, "crates/leasehold/src/agent/a.rs", "use crate::{run::RunId, store::Store};");
    breaks(agents_cannot_name_the_store, "crates/leasehold/src/agent/a.rs", "fn a(store: &dyn Store) {}");
    breaks(sql_is_in_the_stores, "crates/leasehold/src/client.rs", "let q = \"SELECT 1\";");
    breaks(sql_is_in_the_stores, "crates/leasehold-server/src/cli/a.rs", "use rusqlite::Connection;");
    breaks(only_the_terminal_prints, "crates/leasehold-server/src/cli/a.rs", "println!(\"{text}\");");
    breaks(nothing_is_left_for_later, "docs/a.md", "TODO: say more");
    breaks(it_stands_by_itself, "docs/a.md", "see shared/design");
    breaks(it_stands_by_itself, "crates/a/src/b.rs", "let p = \"/root/x\";");
    breaks(links_lead_somewhere, "docs/a.md", "[there](nowhere.md)");
    breaks(links_lead_somewhere, "docs/a.md", "# Here\n[there](#not-here)");
    breaks(promises_name_their_tests, "docs/guarantees.md", "## Promises\n| p | if | test |\n| - | - | - |\n| x | | none |\n");
    let ten: String = (1..=10).map(|n| format!("| {n} | x | `a_test_that_nobody_wrote` |\n")).collect();
    let page = format!("## The ten invariants\n| no. | invariant | test |\n| - | - | - |\n{ten}");
    breaks(promises_name_their_tests, "docs/guarantees.md", &page);
    breaks(errors_are_explained, "docs/errors.md", "### no_such_refusal");
}

#[test]
fn comments_and_longer_words_are_not_taken_for_what_is_forbidden() {
    let text = "//! The engine calls apply(event).\n// SELECT is in the store.\nlet x = reapply(y);\nself.apply(z);\n";
    let file = [Text { path: "crates/leasehold/src/client.rs".into(), text: text.into() }];
    assert_eq!(only_the_engine_applies(&file), Broken::new());
    assert_eq!(sql_is_in_the_stores(&file), Broken::new());
    assert_eq!(modules_say_what_they_are(&file), Broken::new());
}
