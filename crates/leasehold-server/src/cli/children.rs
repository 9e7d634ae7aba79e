//! This very program as child processes on a configuration of its own: for commands that show or try what happens when a process
//! dies. Nothing of the user's own settings and keys reaches a child, and a child outlives neither its parent nor its
//! interest in it.

use super::{Exit, Failure, context::env, probe::STOP_AT};
use crate::terminal;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};
use tokio::process::{Child, Command};

/// How long anything a child does may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Between looks at something that another process changes.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// Names the process without which a child has nothing to do.
const ENDS_WITH: &str = "LEASEHOLD_ENDS_WITH";

/// Where this process was started by [`Children`]: the system kills it when its parent ends, however that ends, and also while this
/// one is stopped.
pub(crate) fn end_with_parent() {
    let Some(parent) = env(ENDS_WITH).and_then(|id| id.parse().ok()) else { return };
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)) {
        terminal::note(format!("this process may outlive the one that started it: {error}"));
    }
    // It may have ended before the system was asked.
    if rustix::process::getppid().map(|id| id.as_raw_nonzero().get()) != Some(parent) {
        std::process::exit(i32::from(Exit::Refused.code()));
    }
}

/// What a child process said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) exit: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Its last line, as JSON.
    pub(crate) fn json(&self) -> Result<Value, Failure> {
        let line = self.out.lines().last().unwrap_or_default();
        serde_json::from_str(line).map_err(|e| Failure::refused(format!("a command did not answer with JSON ({e}): {line}")))
    }
}

/// A text in an answer; empty where there is none.
pub(crate) fn text_at(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A question that is answered with y or n; the end of the input is no.
pub(crate) async fn yes_or_no(question: &str) -> Result<bool, Failure> {
    terminal::forget_typed()?;
    loop {
        let asked = question.to_owned();
        let typed = tokio::task::spawn_blocking(move || terminal::ask(&asked));
        let answer = typed.await.map_err(|e| Failure::refused(e.to_string()))??;
        match answer.map(|text| text.to_lowercase()).as_deref() {
            Some("y" | "yes") => return Ok(true),
            Some("n" | "no") | None => return Ok(false),
            Some(_) => terminal::note("answer with y or n"),
        }
    }
}

/// Makes children.
#[derive(Debug)]
pub(crate) struct Children {
    program: PathBuf,
    config: PathBuf,
}

impl Children {
    /// On that configuration file.
    pub(crate) fn on(config: PathBuf) -> Result<Self, Failure> {
        Ok(Self { program: std::env::current_exe()?, config })
    }

    /// This program.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The program with these arguments; killed when it is dropped.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        for (name, _) in std::env::vars_os() {
            let ours = name.to_str().is_some_and(|name| name.starts_with("LEASEHOLD_") || name.ends_with("_API_KEY"));
            if ours {
                command.env_remove(&name);
            }
        }
        command
            .arg("--config")
            .arg(&self.config)
            .args(arguments)
            .env("NO_COLOR", "1")
            .env(ENDS_WITH, std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs it to its end.
    pub(crate) async fn output(&self, arguments: &[&str]) -> Result<Said, Failure> {
        let output = tokio::time::timeout(PATIENCE, self.command(arguments).output())
            .await
            .map_err(|_| Failure::refused(format!("`leasehold {}` did not end", arguments.join(" "))))??;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(Said { exit: output.status.code(), out: text(output.stdout), err: text(output.stderr) })
    }

    /// Starts it with nobody who listens, and with these settings.
    pub(crate) fn start(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Result<Child, Failure> {
        let mut command = self.command(arguments);
        command.envs(settings.iter().copied());
        Ok(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?)
    }

    /// Starts it, and waits until it stands at a point and has made the mark.
    pub(crate) async fn stopped_at(
        &self,
        point: &str,
        mark: &Path,
        arguments: &[&str],
        settings: &[(&str, &str)],
    ) -> Result<Child, Failure> {
        let stop_at = format!("{point}:{}", mark.display());
        let mut child = self.start(arguments, &[settings, &[(STOP_AT, &stop_at)]].concat())?;
        let since = Instant::now();
        while !mark.exists() {
            if child.try_wait()?.is_some() || since.elapsed() > PATIENCE {
                return Err(Failure::refused(format!("the worker did not reach {point}")));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(child)
    }
}
