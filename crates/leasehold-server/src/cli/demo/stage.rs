//! Where the demo plays: a throw-away directory, this very program as child processes, and a narrator who checks what he says.

use super::{Exit, Failure, Outcome};
use crate::{
    cli::probe::STOP_AT,
    terminal::{self, Look, Screen, span},
};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::process::Command;

const CONFIG: &str = include_str!("demo.toml");
const EDITOR: &str = include_str!("editor.toml");
const CLERK: &str = include_str!("clerk.toml");

/// How long anything in the demo may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between looks at something that another process changes.
const LOOK: Duration = Duration::from_millis(100);

/// The stage.
pub(super) struct Stage {
    directory: TempDir,
    program: PathBuf,
    yes: bool,
    checked: usize,
}

/// What a child process said.
pub(super) struct Said {
    pub(super) exit: Option<i32>,
    pub(super) out: String,
}

impl Said {
    /// Its last line, as JSON.
    pub(super) fn json(&self) -> Result<Value, Failure> {
        let line = self.out.lines().last().unwrap_or_default();
        serde_json::from_str(line).map_err(|e| Failure::refused(format!("a command did not answer with JSON ({e}): {line}")))
    }
}

/// A text in an answer; empty where there is none.
pub(super) fn text_at(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Arguments as they are typed.
fn shell(arguments: &[&str]) -> String {
    let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-+:=".contains(c));
    let quoted = arguments.iter().map(|text| if plain(text) { (*text).to_owned() } else { format!("'{text}'") });
    quoted.collect::<Vec<_>>().join(" ")
}

impl Stage {
    /// Writes configuration and scripts.
    pub(super) fn set(yes: bool, ledger_port: u16) -> Result<Self, Failure> {
        let directory = tempfile::Builder::new().prefix("leasehold-demo-").tempdir()?;
        let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text);
        write("leasehold.toml", &CONFIG.replace("LEDGER_PORT", &ledger_port.to_string()))?;
        write("editor.toml", EDITOR)?;
        write("clerk.toml", CLERK)?;
        Ok(Self { directory, program: std::env::current_exe()?, yes, checked: 0 })
    }
    /// Where everything is.
    pub(super) fn directory(&self) -> &Path {
        self.directory.path()
    }
    /// The site's file.
    pub(super) fn site(&self) -> PathBuf {
        self.directory().join("site.db")
    }

    /// A heading.
    pub(super) fn head(&self, text: &str) {
        let mut screen = Screen::stdout();
        screen.gap().styled(Look::Strong, text);
        screen.print().ok();
    }
    /// The narrator.
    pub(super) fn say(&self, text: &str) {
        let mut screen = Screen::stdout();
        screen.gap().line(text);
        screen.print().ok();
    }
    /// A claim; it is printed as one only if it holds.
    pub(super) fn check(&mut self, claim: &str, holds: bool) -> Result<(), Failure> {
        let mut screen = Screen::stdout();
        if holds {
            self.checked += 1;
            screen.spans(&[span(Look::Good, "  checked: "), span(Look::Plain, claim)]);
            return Ok(screen.print()?);
        }
        screen.spans(&[span(Look::Bad, "  NOT SO:  "), span(Look::Plain, claim)]);
        screen.print()?;
        Err(Failure::refused(format!("the demo stops: a claim did not hold: {claim}")))
    }
    /// A question; yes by itself where the demo was started so.
    pub(super) async fn ask(&self, question: &str) -> Result<bool, Failure> {
        let question = format!("{question} [y/n] ");
        if self.yes {
            self.say(&format!("{question}y (--yes)"));
            return Ok(true);
        }
        terminal::forget_typed()?;
        loop {
            let asked = question.clone();
            let typed = tokio::task::spawn_blocking(move || terminal::ask(&asked));
            let answer = typed.await.map_err(|e| Failure::refused(e.to_string()))??;
            match answer.map(|text| text.to_lowercase()).as_deref() {
                Some("y" | "yes") => return Ok(true),
                Some("n" | "no") | None => return Ok(false),
                Some(_) => terminal::note("answer with y or n"),
            }
        }
    }

    /// This program on the demo's configuration, with nothing of the user's own surroundings.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let ours = name.to_str().is_some_and(|name| name.starts_with("LEASEHOLD_") || name.ends_with("_API_KEY"));
            if ours {
                command.env_remove(&name);
            }
        }
        command
            .arg("--config")
            .arg(self.directory().join("leasehold.toml"))
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs a command and shows what it said.
    pub(super) async fn leasehold(&self, arguments: &[&str]) -> Result<Said, Failure> {
        let mut screen = Screen::stdout();
        screen.gap().styled(Look::Faint, format!("$ leasehold {}", shell(arguments)));
        let (said, err) = self.output(arguments).await?;
        if !err.is_empty() {
            screen.block(2, err.trim_end(), 60);
        }
        // JSON is for the checks.
        if !arguments.contains(&"--json") && !said.out.is_empty() {
            screen.block(2, said.out.trim_end(), 60);
        }
        screen.print()?;
        Ok(said)
    }
    /// Runs a command for a check.
    pub(super) async fn quiet(&self, arguments: &[&str]) -> Result<Said, Failure> {
        Ok(self.output(arguments).await?.0)
    }
    async fn output(&self, arguments: &[&str]) -> Result<(Said, String), Failure> {
        let output = tokio::time::timeout(PATIENCE, self.command(arguments).output())
            .await
            .map_err(|_| Failure::refused(format!("`leasehold {}` did not end", arguments.join(" "))))??;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((Said { exit: output.status.code(), out: text(output.stdout) }, text(output.stderr)))
    }
    /// A run's events.
    pub(super) async fn events(&self, id: &str) -> Result<Vec<Value>, Failure> {
        let said = self.quiet(&["runs", "follow", id, "--json"]).await?;
        said.out.lines().map(|line| serde_json::from_str(line).map_err(|e| Failure::refused(e.to_string()))).collect()
    }

    /// Starts a worker that stops at a point, and kills it there.
    pub(super) async fn kill_worker_at(&self, point: &str, id: &str) -> Result<(), Failure> {
        let mark = self.directory().join(format!("reached-{point}"));
        let mut worker = self
            .command(&["worker", "--once", id])
            .env(STOP_AT, format!("{point}:{}", mark.display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let since = Instant::now();
        while !mark.exists() {
            if worker.try_wait()?.is_some() || since.elapsed() > PATIENCE {
                return Err(Failure::refused(format!("the worker did not reach {point}")));
            }
            tokio::time::sleep(LOOK).await;
        }
        let pid = worker.id().unwrap_or_default();
        worker.kill().await?;
        let mut screen = Screen::stdout();
        screen.styled(Look::Faint, format!("  worker {pid} killed at {point}"));
        Ok(screen.print()?)
    }

    /// Looks until the run is dead: the sweep at the start of each command settles it once its lease has ended.
    pub(super) async fn until_dead(&self, id: &str) -> Result<Value, Failure> {
        let since = Instant::now();
        loop {
            let run = self.quiet(&["runs", "show", id, "--json"]).await?.json()?;
            if text_at(&run, "/state") == "dead" {
                return Ok(run);
            }
            if since.elapsed() > PATIENCE {
                return Err(Failure::refused("the run was not settled in time"));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Says how it went.
    pub(super) fn end(self) -> Outcome {
        let mut screen = Screen::stdout();
        screen.gap().styled(Look::Good, format!("{} claims, all checked.", self.checked));
        screen.line(
            "Not shown, and not claimed: exactly-once. A write is started at most once by us, and never silently unknown.",
        );
        screen.line("Next: `leasehold init` writes a configuration with an HTTP tool of your own.");
        screen.print()?;
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demos_configuration_is_valid() {
        let stage = Stage::set(true, 9).unwrap();
        let config = crate::config::load(Some(&stage.directory().join("leasehold.toml")), &|_| None).unwrap();
        let executable = crate::cli::setup::executable(&config).unwrap();
        assert!(executable.missing_agents.is_empty(), "{:?}", executable.missing_agents);
    }

    #[test]
    fn a_claim_that_does_not_hold_ends_the_demo_with_one() {
        let mut stage = Stage::set(true, 9).unwrap();
        assert!(matches!(stage.check("water runs uphill", false), Err(Failure::Said(Exit::Refused, _))));
    }
}
