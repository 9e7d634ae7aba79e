//! A model server that nobody here wrote: aimock (npm `@copilotkit/aimock`), which speaks the protocols of several providers
//! from fixtures. Needs Node.js; a test that wants it fails without, unless `LEASEHOLD_TEST_WITHOUT_NODE=1` says that this
//! machine has none.

use crate::npm;
use serde_json::Value;
use std::{path::PathBuf, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

const PACKAGE: &str = "@copilotkit/aimock@1.43.0";
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running server; it ends with this value.
#[derive(Debug)]
pub struct Aimock {
    url: String,
    _child: Child,
    _fixtures: tempfile::TempDir,
}

impl Aimock {
    /// Starts one on a free port with `{"fixtures": [..]}`, further arguments and environment. `None`: the machine was
    /// declared to have no Node.js.
    ///
    /// # Panics
    /// It cannot be installed or does not start; the message says what is missing.
    pub async fn start(fixtures: &Value, arguments: &[&str], environment: &[(&str, &str)]) -> Option<Self> {
        if npm::is_left_out() {
            return None;
        }
        match Self::try_start(fixtures, arguments, environment).await {
            Ok(server) => Some(server),
            Err(why) => panic!("{why}. (LEASEHOLD_TEST_WITHOUT_NODE=1 leaves the tests with aimock out.)"),
        }
    }

    async fn try_start(fixtures: &Value, arguments: &[&str], environment: &[(&str, &str)]) -> Result<Self, String> {
        let program = match std::env::var_os("LEASEHOLD_AIMOCK") {
            Some(program) => PathBuf::from(program),
            None => tokio::task::spawn_blocking(installed).await.map_err(|e| e.to_string())??,
        };
        let folder = tempfile::tempdir().map_err(|e| format!("no folder for fixtures: {e}"))?;
        let file = folder.path().join("fixtures.json");
        std::fs::write(&file, fixtures.to_string()).map_err(|e| format!("no fixtures: {e}"))?;
        let mut child = Command::new(&program)
            .args(["--port", "0", "--validate-on-load", "--strict", "--fixtures"])
            .arg(&file)
            .args(arguments)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("{} does not start: {e}", program.display()))?;
        let output = child.stdout.take().ok_or("it has no output")?;
        let mut lines = BufReader::new(output).lines();
        let url = tokio::time::timeout(START_TIMEOUT, async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some((_, url)) = line.split_once("listening on ") {
                    return Ok(url.trim().to_owned());
                }
            }
            Err("aimock ended before it listened".to_owned())
        })
        .await
        .map_err(|_| format!("aimock did not listen within {START_TIMEOUT:?}"))??;
        // Keep reading, so that it never waits for a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { url, _child: child, _fixtures: folder })
    }

    /// Where it listens, without a path.
    pub fn url(&self) -> &str {
        &self.url
    }
}

fn installed() -> Result<PathBuf, String> {
    let program = npm::installed(PACKAGE)?.join("node_modules/.bin/llmock");
    if program.exists() { Ok(program) } else { Err(format!("{PACKAGE} has no {}", program.display())) }
}
