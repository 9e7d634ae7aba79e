//! MCP servers that nobody here wrote: the reference servers from npm, and FastMCP, `mcp-server-git` and `mcp-server-time` from PyPI;
//! and an authorization server, `oidc-provider` from npm. Each is installed
//! once under `target/`. A test that wants one is left out with a printed reason only where there is no Node.js or no Python.

use std::{
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
};

/// Of each server on npm.
const NPM_VERSION: &str = "2026.8.31";
const PYPI: [&str; 3] = ["fastmcp==4.2.3", "mcp-server-git==2026.10.19", "mcp-server-time==2026.10.19"];
const OIDC_PROVIDER: &str = "oidc-provider@9.13.3";
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A program of the npm servers: `mcp-server-everything`, `-memory`, `-filesystem`.
///
/// # Panics
/// There is Node.js, and they cannot be installed; the message says why.
pub async fn npm(program: &str) -> Option<String> {
    let package = format!("@modelcontextprotocol/{}@{NPM_VERSION}", program.trim_start_matches("mcp-"));
    let program = program.to_owned();
    installed("npm", "Node.js with npm", move || Ok(crate::npm::installed(&package)?.join("node_modules/.bin").join(program)))
        .await
}

/// A Python that has FastMCP, `mcp_server_git` and `mcp_server_time`.
///
/// # Panics
/// There is Python, and they cannot be installed; the message says why.
pub async fn python() -> Option<String> {
    installed("python3", "Python 3", || {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/mcp-python");
        std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let lock = std::fs::File::create(folder.with_extension("lock")).map_err(|e| format!("{}: {e}", folder.display()))?;
        lock.lock().map_err(|e| format!("{}: {e}", folder.display()))?;
        let path = folder.join("bin/python");
        // By its Python, not by a script that names the folder it was made in.
        let mut works = std::process::Command::new(&path);
        if run(works.args(["-c", "import fastmcp, mcp_server_git, mcp_server_time"])).is_err() {
            run(std::process::Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
            run(std::process::Command::new(&path).args(["-m", "pip", "install", "--quiet"]).args(PYPI))?;
        }
        Ok(path)
    })
    .await
}

/// The git server for a fresh repository with one commit, as a command; and what counts its commits. None: no Python or no git.
///
/// # Panics
/// The repository cannot be made.
pub async fn git(repository: &Path) -> Option<(Vec<String>, impl Fn() -> usize)> {
    let git = |arguments: &[&str]| {
        let named = ["-c", "user.name=t", "-c", "user.email=t@example.com"];
        std::process::Command::new("git").args(named).arg("-C").arg(repository).args(arguments).output()
    };
    git(&["version"]).ok()?;
    let python = python().await?;
    let must = |arguments: &[&str]| match git(arguments) {
        Ok(output) if output.status.success() => {}
        other => panic!("git {arguments:?}: {other:?}"),
    };
    must(&["init", "-q", "."]);
    // The server commits what is staged; after each commit something is, so that the same call could be made again.
    let (hook, stage) = (repository.join(".git/hooks/post-commit"), "#!/bin/sh\necho line >> page && git add page\n");
    let written = std::fs::write(&hook, stage);
    if let Err(error) = written.and_then(|()| std::fs::set_permissions(&hook, std::fs::Permissions::from_mode(0o755))) {
        panic!("{}: {error}", hook.display());
    }
    must(&["commit", "-q", "--allow-empty", "-m", "first"]);
    let repository = repository.to_owned();
    let command = [python, "-m".into(), "mcp_server_git".into(), "--repository".into(), repository.display().to_string()];
    Some((command.into(), move || {
        let log = std::process::Command::new("git").arg("-C").arg(&repository).args(["rev-list", "--count", "HEAD"]).output();
        let count = log.ok().and_then(|log| String::from_utf8_lossy(&log.stdout).trim().parse().ok());
        count.unwrap_or_default()
    }))
}

/// The tests' own server on FastMCP, as a command.
pub async fn own() -> Option<Vec<String>> {
    script("server.py").await
}

/// The tests' own server on the official SDK that tells changes of its tools to who listens, as a command.
pub async fn telling() -> Option<Vec<String>> {
    script("telling.py").await
}

/// The tests' own server on the official SDK that asks people, as a command.
pub async fn asking() -> Option<Vec<String>> {
    script("asking.py").await
}

/// An authorization server whose access tokens last so many seconds, as a command: `oidc-provider`. It notes what it gave in `log`, and
/// does once what a file beside that asks for: `deny` a login, `hold` the answer to a refresh.
pub async fn authorization_server(ttl: u32, log: &Path) -> Option<Vec<String>> {
    let folder = installed("npm", "Node.js with npm", || crate::npm::installed(OIDC_PROVIDER)).await?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../leasehold/tests/mcp/provider.mjs");
    Some(vec!["node".into(), script.display().to_string(), folder, ttl.to_string(), log.display().to_string()])
}

/// The tests' own server on FastMCP that takes tokens of this issuer, as a command. It notes what came in `ledger`.
pub async fn protected(issuer: &str, ledger: &Path) -> Option<Vec<String>> {
    let mut command = script("protected.py").await?;
    command.extend([issuer.to_owned(), ledger.display().to_string()]);
    Some(command)
}

async fn script(name: &str) -> Option<Vec<String>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../leasehold/tests/mcp").join(name);
    Some(vec![python().await?, script.display().to_string()])
}

async fn installed(
    tool: &'static str,
    what: &'static str,
    install: impl FnOnce() -> Result<PathBuf, String> + Send + 'static,
) -> Option<String> {
    if crate::npm::is_left_out() && tool == "npm" {
        return None;
    }
    if Command::new(tool).arg("--version").stdout(Stdio::null()).status().await.is_err() {
        #[expect(clippy::print_stderr, reason = "a test that is left out says so")]
        {
            eprintln!("left out: this machine has no {what}");
        }
        return None;
    }
    match tokio::task::spawn_blocking(install).await {
        Ok(Ok(path)) => Some(path.display().to_string()),
        Ok(Err(why)) => panic!("MCP servers from {tool} cannot be installed: {why}"),
        Err(error) => panic!("{error}"),
    }
}

fn run(command: &mut std::process::Command) -> Result<(), String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
}

/// A server over HTTP that can be killed and started again at the same place.
#[derive(Debug)]
pub struct HttpServer {
    /// Where it listens.
    pub port: u16,
    command: Vec<String>,
    child: Child,
}

impl HttpServer {
    /// Starts `command`, which reads the port from its last argument and from `PORT`.
    ///
    /// # Panics
    /// It does not listen in time.
    pub async fn start(command: Vec<String>) -> Self {
        let port = match TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr()) {
            Ok(address) => address.port(),
            Err(error) => panic!("no free port: {error}"),
        };
        let child = listening(&command, port).await;
        Self { port, command, child }
    }

    /// Where it is.
    pub fn origin(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The place of the protocol.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/mcp", self.port)
    }

    /// Kills it.
    ///
    /// # Panics
    /// It cannot be killed.
    pub async fn kill(&mut self) {
        if let Err(error) = self.child.kill().await {
            panic!("the server was not killed: {error}");
        }
    }

    /// Kills it and starts it again at the same place: its sessions are forgotten.
    pub async fn restart(&mut self) {
        self.kill().await;
        self.child = listening(&self.command, self.port).await;
    }
}

async fn listening(command: &[String], port: u16) -> Child {
    let started = Command::new(&command[0])
        .args(&command[1..])
        .arg(port.to_string())
        .env("PORT", port.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let child = match started {
        Ok(child) => child,
        Err(error) => panic!("{command:?}: {error}"),
    };
    let up = tokio::time::timeout(START_TIMEOUT, async {
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_err() {
            // Nothing but the port itself says that it listens.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(up.await.is_ok(), "{command:?} did not listen within {START_TIMEOUT:?}");
    child
}
