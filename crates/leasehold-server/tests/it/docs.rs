//! What the documents tell people to type is typed here, and what they say is printed is compared; what they say of the
//! configuration is compared with the code that reads it.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use leasehold_testkit::home::Home;
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// A fenced block: its info string, its text, and its line.
struct Block {
    info: String,
    text: String,
    line: usize,
}

fn blocks(document: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut is_open = false;
    for (number, line) in document.lines().enumerate() {
        match line.strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(info) => {
                is_open = true;
                found.push(Block { info: info.to_owned(), text: String::new(), line: number + 1 });
            }
            None if is_open => {
                if let Some(block) = found.last_mut() {
                    block.text.push_str(line);
                    block.text.push('\n');
                }
            }
            None => {}
        }
    }
    found
}

/// A line of a document against a line of output: `...` stands for anything.
fn matches(pattern: &str, line: &str) -> bool {
    let mut rest = line.trim_end();
    let mut parts = pattern.trim_end().split("...");
    let Some(after) = parts.next().and_then(|first| rest.strip_prefix(first)) else { return false };
    rest = after;
    let mut is_last_open = false;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
        is_last_open = part.is_empty();
    }
    rest.is_empty() || is_last_open
}

/// A shell in the directory of a walk.
struct Walk {
    home: Home,
    port: u16,
    groups: Vec<u32>,
}

impl Walk {
    fn new() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("bound").port();
        Self { home: Home::new(env!("CARGO_BIN_EXE_leasehold")), port, groups: Vec::new() }
    }

    /// The newest run and the digest of what waits in it, where there is one.
    fn stand_ins(&self) -> (String, String) {
        let list = self.json(&["runs", "list", "--limit", "1", "--json"]);
        let run = list["items"][0]["id"].as_str().unwrap_or("RUN").to_owned();
        let shown = if run == "RUN" { Value::Null } else { self.json(&["runs", "show", &run, "--json"]) };
        let digest = shown["waiting"]["turn_digest"].as_str().unwrap_or("DIGEST").to_owned();
        (run, digest)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.home.command(arguments).output().expect("the command runs");
        serde_json::from_slice(&output.stdout).unwrap_or(Value::Null)
    }

    fn fill(&self, text: &str) -> String {
        let text = text.replace("127.0.0.1:9000", &format!("127.0.0.1:{}", self.port));
        let text = text.replace("(\"127.0.0.1\", 9000)", &format!("(\"127.0.0.1\", {})", self.port));
        if !text.contains("RUN") && !text.contains("DIGEST") {
            return text;
        }
        let (run, digest) = self.stand_ins();
        text.replace("RUN", &run).replace("DIGEST", &digest)
    }

    /// Types a block, and gives what was printed and the exit code.
    fn shell(&mut self, script: &str) -> (String, i32) {
        // A file, not a pipe: what a block leaves in the background keeps it open. Appending, because it may go on writing.
        let said = self.home.path().join(format!("said-{}", self.groups.len()));
        let out = File::options().create(true).append(true).open(&said).expect("a file");
        let binary = Path::new(env!("CARGO_BIN_EXE_leasehold")).parent().expect("in a directory").to_owned();
        let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
        // The environment of the command under test, around a shell.
        let inner = self.home.command(&[]);
        let mut shell = Command::new("sh");
        for (name, value) in inner.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let mut child = shell
            .args(["-euc", script])
            .current_dir(self.home.path())
            .env("PATH", path)
            .stdin(Stdio::null())
            .stdout(out.try_clone().expect("a file"))
            .stderr(out)
            .process_group(0)
            .spawn()
            .expect("a shell");
        self.groups.push(child.id());
        let code = child.wait().expect("ended").code().unwrap_or(-1);
        (fs::read_to_string(&said).expect("text"), code)
    }

    fn until_the_far_side_listens(&self) {
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(started.elapsed() < Duration::from_secs(30), "the far side does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn play(&mut self, document: &str) {
        let text = read(document);
        let mut said = String::new();
        for block in blocks(&text) {
            let at = format!("{document}:{}", block.line);
            if block.info.starts_with("sh") {
                let mut script = self.fill(&block.text);
                let serves = script.contains("python3 ledger.py &");
                if serves && !has_python() {
                    script = script.replace("python3 ledger.py &", "");
                    stand_in_ledger(self.port, self.home.path().join("ledger.txt"));
                }
                let expected = block.info.split("exit=").nth(1).map_or(0, |code| code.parse().expect("a code"));
                let (output, code) = self.shell(&script);
                assert_eq!(code, expected, "{at}:\n{script}\n{output}");
                if serves {
                    self.until_the_far_side_listens();
                }
                said = output;
            } else if block.info == "text" {
                for line in self.fill(&block.text).lines() {
                    assert!(said.lines().any(|s| matches(line, s)), "{at}: `{line}` was not printed:\n{said}");
                }
            }
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        // What a block left in the background: only groups that this test made.
        for group in &self.groups {
            Command::new("kill").args(["-9", "--", &format!("-{group}")]).stderr(Stdio::null()).status().ok();
        }
    }
}

fn has_python() -> bool {
    Command::new("python3").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}

/// What `ledger.py` does, for a machine without Python.
fn stand_in_ledger(port: u16, file: PathBuf) {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let file = file.clone();
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
                let (mut key, mut length) = (String::new(), 0);
                loop {
                    let mut line = String::new();
                    if reader.read_line(&mut line).unwrap_or(0) == 0 {
                        return;
                    }
                    match line.trim_end().split_once(": ") {
                        Some((name, value)) if name.eq_ignore_ascii_case("idempotency-key") => key = value.to_owned(),
                        Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                            length = value.parse().expect("a number");
                        }
                        _ if line.trim_end().is_empty() => break,
                        _ => {}
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).expect("a body");
                let mut ledger = File::options().create(true).append(true).open(file).expect("the ledger");
                writeln!(ledger, "{key} {}", String::from_utf8_lossy(&body)).expect("appended");
                std::thread::sleep(Duration::from_secs(3));
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\nappended";
                // The other side may be dead by now: that is the point.
                (&stream).write_all(answer.as_bytes()).ok();
            });
        }
    });
}

#[test]
fn the_tutorial_works_as_it_is_written() {
    Walk::new().play("docs/tutorial.md");
}

#[test]
fn the_readmes_own_tool_works_as_it_is_written() {
    let readme = read("README.md");
    let files = [("provider = \"scripted\"", "leasehold.toml"), ("[[reply]]", "script.toml"), ("class Ledger", "ledger.py")];
    let mut walk = Walk::new();
    for (mark, name) in files {
        let block = blocks(&readme).into_iter().find(|b| b.info != "rust" && b.text.contains(mark)).expect(mark);
        if name == "leasehold.toml" {
            let lines = block.text.lines().filter(|l| !l.trim().is_empty()).count();
            assert!(lines <= 15, "the readme says 15 lines, and there are {lines}");
        }
        walk.home.write(name, &walk.fill(&block.text));
    }
    if has_python() {
        assert_eq!(walk.shell("python3 ledger.py &").1, 0);
    } else {
        stand_in_ledger(walk.port, walk.home.path().join("ledger.txt"));
    }
    walk.until_the_far_side_listens();
    let section = readme.split("## Your own HTTP tool").nth(1).expect("the section");
    let commands: Vec<Block> = blocks(section).into_iter().filter(|b| b.info == "sh").collect();
    for (block, expected) in commands.iter().zip([3, 0]) {
        let script = walk.fill(&block.text);
        let (output, code) = walk.shell(&script);
        assert_eq!(code, expected, "{script}\n{output}");
    }
    let ledger = fs::read_to_string(walk.home.path().join("ledger.txt")).expect("a line");
    assert!(ledger.starts_with("lh-") && ledger.ends_with("{\"text\":\"pier 2 is repaired\"}\n"), "{ledger}");
    assert_eq!(ledger.lines().count(), 1);
}

#[test]
fn the_sample_configuration_is_taken_and_shows_the_defaults() {
    let page = read("docs/configuration.md");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    let sample = blocks(&page).into_iter().find(|b| b.info == "toml").expect("a sample");
    home.write("leasehold.toml", &sample.text);
    home.write("script.toml", "[[reply]]\ntext = \"done\"\n");
    let run = |arguments: &[&str]| {
        let output = home.command(arguments).env("OPENAI_API_KEY", "k").env("LEDGER_TOKEN", "t").output().expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = run(&["config"]);
    assert!(run(&["agents"]).contains("ready"));
    // What the sample says is a default is what an empty file comes to, value for value.
    fs::write(home.path().join("leasehold.toml"), "").expect("written");
    let defaults = run(&["config"]);
    let value = |text: &str, key: &str| {
        let line = text.lines().find(|l| l.starts_with(&format!("{key} ")));
        line.map(|l| l.split("  #").next().unwrap_or_default().trim_end().to_owned())
    };
    for key in
        ["listen", "execute", "concurrency", "ttl", "sweep_interval", "max_requeues", "backoff.initial", "backoff.factor"]
    {
        assert_eq!(value(&shown, key), value(&defaults, key), "the sample says that its values are the defaults");
    }
}

/// The keys that a struct of a configuration has, from its source.
fn keys(source: &str) -> Vec<String> {
    let fields = source.lines().filter_map(|line| {
        let line = line.trim();
        let rest = line.strip_prefix("pub(crate) ").or_else(|| line.strip_prefix("pub "))?;
        let (name, kind) = rest.split_once(": ")?;
        let is_name = name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        (is_name && kind.ends_with(',')).then(|| name.to_owned())
    });
    fields.collect()
}

#[test]
fn every_key_and_every_variable_is_in_the_reference() {
    let page = read("docs/configuration.md");
    let prose: String = page.lines().filter(|l| !l.starts_with("```")).collect::<Vec<_>>().join("\n");
    let code = prose.split('`').skip(1).step_by(2);
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = code.flat_map(|code| code.split(|c| !is_word(c))).collect();
    let mut missing = Vec::new();
    for source in [
        "crates/leasehold-server/src/config/file.rs",
        "crates/leasehold/src/agent/tool/http/config.rs",
        "crates/leasehold/src/agent/tool/fetch/mod.rs",
        "crates/leasehold/src/agent/tool/sql/config.rs",
    ] {
        let keys = keys(&read(source));
        assert!(keys.len() > 5, "the keys are not found in {source} any more");
        // These two are of the error that stands beside the structs.
        missing.extend(keys.into_iter().filter(|key| !["key", "why"].contains(&key.as_str()) && !words.contains(key.as_str())));
    }
    let readers: String = ["effective", "check", "server"]
        .iter()
        .map(|name| read(&format!("crates/leasehold-server/src/config/{name}.rs")))
        .collect();
    let variables: Vec<&str> = readers.split('"').filter(|t| t.starts_with("LEASEHOLD_")).collect();
    assert!(variables.len() > 8, "the variables are not found any more");
    missing.extend(variables.into_iter().filter(|v| !words.contains(v)).map(str::to_owned));
    assert!(missing.is_empty(), "not in docs/configuration.md: {missing:?}");
}

/// The codes that a source gives its problems: the word behind a status.
fn codes(source: &str) -> impl Iterator<Item = String> {
    source.split("StatusCode::").skip(1).filter_map(|rest| {
        let rest = rest.trim_start_matches(|c: char| c.is_ascii_uppercase() || c == '_').strip_prefix(',')?;
        let word = rest.trim_start().strip_prefix('"')?.split('"').next()?;
        Some(word.to_owned())
    })
}

#[test]
fn every_code_of_the_api_is_on_the_page_of_errors() {
    let page = read("docs/errors.md");
    let headings = page.lines().filter_map(|line| line.strip_prefix("### "));
    let known: BTreeSet<&str> = page.split('`').skip(1).step_by(2).chain(headings).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/api");
    let sources: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| fs::read_to_string(entry.expect("an entry").path()).expect("a source"))
        .collect();
    let codes: BTreeSet<String> = sources.iter().flat_map(|source| codes(source)).collect();
    assert!(codes.len() > 15, "the codes are not found any more: {codes:?}");
    let missing: Vec<&String> = codes.iter().filter(|code| !known.contains(code.as_str())).collect();
    assert!(missing.is_empty(), "not in docs/errors.md: {missing:?}");
}

#[test]
fn every_command_is_in_the_operators_page() {
    let page = read("docs/operations.md");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    let help = home.command(&["--help"]).output().expect("runs");
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let commands = help.split("Commands:").nth(1).and_then(|t| t.split("Options:").next()).expect("a list of commands");
    for command in commands.lines().filter_map(|l| l.split_whitespace().next()).filter(|c| *c != "help") {
        assert!(page.contains(&format!("`{command}")), "`leasehold {command}` is not in docs/operations.md");
    }
}

#[test]
fn a_pattern_of_a_document_is_compared_strictly() {
    assert!(matches("in doubt  ...  clerk", "in doubt  8b43  clerk"));
    assert!(matches("key ...", "key lh-1"));
    assert!(!matches("key lh-2", "key lh-1"));
    assert!(!matches("done", "  done"));
    assert!(!matches("done", "done: appended"));
}
