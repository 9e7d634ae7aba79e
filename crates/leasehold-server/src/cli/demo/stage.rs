//! Where the demo plays: a throw-away directory, this very program as child processes, and a narrator who checks what he says.

use super::{Exit, Failure, Outcome};
use crate::{
    cli::children::{Children, LOOK, PATIENCE, Said, yes_or_no},
    terminal::{Look, Screen, span},
};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    time::Instant,
};
use tempfile::TempDir;

pub(super) use crate::cli::children::text_at;

const CONFIG: &str = include_str!("demo.toml");
const EDITOR: &str = include_str!("editor.toml");
const CLERK: &str = include_str!("clerk.toml");

/// The stage.
pub(super) struct Stage {
    directory: TempDir,
    children: Children,
    yes: bool,
    checked: usize,
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
        let children = Children::on(directory.path().join("leasehold.toml"))?;
        Ok(Self { directory, children, yes, checked: 0 })
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
        yes_or_no(&question).await
    }

    /// Runs a command and shows what it said.
    pub(super) async fn leasehold(&self, arguments: &[&str]) -> Result<Said, Failure> {
        let mut screen = Screen::stdout();
        screen.gap().styled(Look::Faint, format!("$ leasehold {}", shell(arguments)));
        let said = self.children.output(arguments).await?;
        if !said.err.is_empty() {
            screen.block(2, said.err.trim_end(), 60);
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
        self.children.output(arguments).await
    }
    /// A run's events.
    pub(super) async fn events(&self, id: &str) -> Result<Vec<Value>, Failure> {
        let said = self.quiet(&["runs", "follow", id, "--json"]).await?;
        said.out.lines().map(|line| serde_json::from_str(line).map_err(|e| Failure::refused(e.to_string()))).collect()
    }

    /// Starts a worker that stops at a point, and kills it there.
    pub(super) async fn kill_worker_at(&self, point: &str, id: &str) -> Result<(), Failure> {
        let mark = self.directory().join(format!("reached-{point}"));
        let mut worker = self.children.stopped_at(point, &mark, &["worker", "--once", id], &[]).await?;
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
        screen.line(format!(
            "Next: `{} init` writes a configuration with an HTTP tool of your own.",
            self.children.program().display()
        ));
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
        let executable =
            crate::cli::setup::executable(&config, crate::cli::setup::Use::Execute, crate::mcp::Offers::new()).unwrap();
        assert!(executable.missing_agents.is_empty(), "{:?}", executable.missing_agents);
    }

    #[test]
    fn a_claim_that_does_not_hold_ends_the_demo_with_one() {
        let mut stage = Stage::set(true, 9).unwrap();
        assert!(matches!(stage.check("water runs uphill", false), Err(Failure::Said(Exit::Refused, _))));
    }
}
