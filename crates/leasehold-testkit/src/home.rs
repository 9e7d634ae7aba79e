//! A place for real processes: a directory with a configuration, a store and a script, and the built command run in it. What is
//! asserted about the record is read over a second connection, not from the process under test.

use crate::{far_side::FarSide, postgres::Database};
use leasehold::{
    clock::SystemClock,
    run::{Claimer, Entry, RunId, Snapshot},
    store::{Store, postgres::PostgresStore, sqlite::SqliteStore},
};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::OnceCell;

/// A directory to run the command in.
pub struct Home {
    directory: tempfile::TempDir,
    binary: PathBuf,
    database: Option<Database>,
    store: OnceCell<Arc<dyn Store>>,
}

/// How one HTTP tool `ledger.append` is declared.
#[derive(Clone, Copy, Debug)]
pub struct Ledger<'a> {
    /// `idempotent_write` or `non_idempotent_write`.
    pub effect: &'a str,
    /// `required` or `none`.
    pub approval: &'a str,
    /// Its timeout.
    pub timeout: &'a str,
}

/// A script that appends once and then answers.
pub const APPEND_ONCE: &str = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "one" } }]
[[reply]]
text = "appended"
"#;

fn check<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

impl Home {
    /// SIGSTOP to the process that holds this run, at a moment in which it does not hold an embedded store's file: right after it
    /// has renewed its lease.
    ///
    /// # Panics
    /// It holds the file each time, or no lease.
    pub async fn pause(&self, id: RunId, process: &Running) {
        let store = self.store().await;
        for _ in 0..20 {
            let lease = self.row(id).await.lease;
            assert!(lease.is_some(), "nobody holds the run");
            self.until(id, "renewed", |row| row.lease != lease).await;
            process.signal("STOP");
            if store.announce("a test", Duration::from_secs(1), &Claimer::default()).await.is_ok() {
                return;
            }
            process.signal("CONT");
        }
        panic!("it could not be stopped without holding the store's file");
    }

    /// With the built command; a test gives `env!("CARGO_BIN_EXE_leasehold")`.
    ///
    /// # Panics
    /// No temporary directory.
    pub fn new(binary: &str) -> Self {
        let directory = check("a temporary directory", tempfile::tempdir());
        Self { directory, binary: binary.into(), database: None, store: OnceCell::new() }
    }

    /// The same with its runs in a database instead of a file.
    ///
    /// # Panics
    /// No temporary directory.
    pub fn on_database(binary: &str, database: Database) -> Self {
        Self { database: Some(database), ..Self::new(binary) }
    }

    /// The store's URL, as its configuration has it.
    pub fn store_url(&self) -> String {
        self.database.as_ref().map_or_else(|| "sqlite:leasehold.db".into(), Database::url)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file into it.
    ///
    /// # Panics
    /// The file cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        check(name, std::fs::write(self.path().join(name), text));
    }

    /// Agent `a`, a script, and the ledger at the far side; leases of 2 s, so that a dead process is found soon.
    pub fn ledger(&self, far: &FarSide, ledger: Ledger<'_>, script: &str) {
        self.ledger_with(far, ledger, script, "");
    }

    /// The same with more keys of the tool.
    ///
    /// # Panics
    /// The files cannot be written.
    pub fn ledger_with(&self, far: &FarSide, ledger: Ledger<'_>, script: &str, keys: &str) {
        self.write("script.toml", script);
        self.write(
            "leasehold.toml",
            &format!(
                r#"
[store]
url = "{}"
[lease]
ttl = "2s"
sweep_interval = "200ms"
backoff = {{ initial = "100ms", factor = 1.0, max = "100ms", jitter = false }}
[[model]]
name = "m"
provider = "scripted"
script = "script.toml"
[[agent]]
name = "a"
model = "m"
tools = ["ledger.append"]
[[tool.http]]
name = "ledger.append"
description = "Append one line to the ledger"
effect = "{}"
approval = "{}"
method = "POST"
url = "{}"
parameters = {{ type = "object", properties = {{ text = {{ type = "string" }} }}, required = ["text"] }}
timeout = "{}"
{keys}
"#,
                self.store_url(),
                ledger.effect,
                ledger.approval,
                far.url("/append"),
                ledger.timeout
            ),
        );
    }

    /// The command, in this directory and without the caller's own configuration; no terminal.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .current_dir(self.path())
            .args(arguments)
            .env("XDG_DATA_HOME", self.path().join("data"))
            .env("XDG_CONFIG_HOME", self.path().join("config"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for variable in [
            "LEASEHOLD_CONFIG",
            "LEASEHOLD_URL",
            "LEASEHOLD_TOKEN",
            "LEASEHOLD_ADMIN_TOKEN",
            "OPENAI_API_KEY",
            "ANTHROPIC_API_KEY",
            "GEMINI_API_KEY",
            "PGPASSWORD",
        ] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs the command to its end, off the test's own thread, so that a far side on it goes on answering.
    ///
    /// # Panics
    /// The command does not start.
    pub async fn run(&self, arguments: &[&str]) -> Ran {
        self.run_with(arguments, &[]).await
    }

    /// The same with more environment.
    ///
    /// # Panics
    /// The command does not start.
    pub async fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Ran {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied());
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        Ran(check("the command", check("the thread", output)))
    }

    /// Starts the command and leaves it running.
    ///
    /// # Panics
    /// The command does not start.
    pub fn start(&self, arguments: &[&str], stop_at: Option<&str>) -> Running {
        self.start_as(self.command(arguments), stop_at)
    }

    /// The same with a command that the caller has changed.
    ///
    /// # Panics
    /// The command does not start.
    pub fn start_as(&self, mut command: Command, stop_at: Option<&str>) -> Running {
        command.stdout(Stdio::null()).stderr(Stdio::null());
        self.spawn(command, stop_at)
    }

    /// The same as [`start`](Self::start), and [`Running::said`] has what it said; it says little, or a pipe is full and it stands.
    ///
    /// # Panics
    /// The command does not start.
    pub fn start_heard(&self, arguments: &[&str], environment: &[(&str, &str)], stop_at: Option<&str>) -> Running {
        let mut command = self.command(arguments);
        command.envs(environment.iter().copied());
        self.spawn(command, stop_at)
    }

    fn spawn(&self, mut command: Command, stop_at: Option<&str>) -> Running {
        if let Some(point) = stop_at {
            // A mark of an earlier process would be taken for this one's.
            std::fs::remove_file(self.mark()).ok();
            command.env("LEASEHOLD_STOP_AT", format!("{point}:{}", self.mark().display()));
        }
        self.start_as_it_is(command)
    }

    fn mark(&self) -> PathBuf {
        self.path().join("stopped")
    }

    /// Starts a command with its output where the caller has sent it.
    ///
    /// # Panics
    /// The command does not start.
    pub fn start_as_it_is(&self, mut command: Command) -> Running {
        let child = check("the command", command.spawn());
        Running { child, mark: self.mark() }
    }

    /// The store, over a connection of this test's own.
    ///
    /// # Panics
    /// It does not open.
    pub async fn store(&self) -> Arc<dyn Store> {
        let open = async || -> Arc<dyn Store> {
            match &self.database {
                Some(database) => check("the store", PostgresStore::connect(&database.url()).await) as Arc<dyn Store>,
                None => {
                    let clock = Arc::new(check("the clock", SystemClock::new()));
                    check("the store", SqliteStore::open(self.path().join("leasehold.db"), clock))
                }
            }
        };
        Arc::clone(self.store.get_or_init(open).await)
    }

    /// The row of a run.
    ///
    /// # Panics
    /// It is not there.
    pub async fn row(&self, id: RunId) -> Snapshot {
        match self.store().await.load(id).await {
            Ok(Some(row)) => row,
            other => panic!("run {id}: {other:?}"),
        }
    }

    /// The journal of a run.
    ///
    /// # Panics
    /// It does not decode.
    pub async fn journal(&self, id: RunId) -> Vec<Entry> {
        check("the journal", self.store().await.journal(id, 0, 1_000).await)
    }

    /// Waits until the row is as it should be.
    ///
    /// # Panics
    /// It is not within half a minute.
    pub async fn until(&self, id: RunId, what: &str, holds: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let store = self.store().await;
        let started = Instant::now();
        loop {
            if let Ok(Some(row)) = store.load(id).await
                && holds(&row)
            {
                return row;
            }
            if started.elapsed() > Duration::from_secs(30) {
                let journal: Vec<&str> = self.journal(id).await.iter().map(|e| e.body.kind()).collect();
                panic!("run {id}: not {what} in time: {:?} {journal:?}", store.load(id).await);
            }
            tokio::task::yield_now().await;
            // Between two looks at a file that another process writes there is no signal to wait for.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Enqueues a task for agent `a`.
    ///
    /// # Panics
    /// It is refused.
    pub async fn enqueue(&self) -> RunId {
        let ran = self.run(&["run", "--agent", "a", "--queue", "--json", "append a line"]).await;
        let id = ran.json()["id"].as_str().map(str::to_owned);
        match id.as_deref().map(str::parse) {
            Some(Ok(id)) => id,
            _ => panic!("no run id: {ran}"),
        }
    }
}

/// A command that has ended.
pub struct Ran(pub Output);

impl Ran {
    /// Its exit code.
    pub fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }
    /// What it said on standard output.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }
    /// What it said on standard error.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }
    /// The last line of its standard output as JSON.
    ///
    /// # Panics
    /// It is none.
    pub fn json(&self) -> Value {
        let stdout = self.stdout();
        match serde_json::from_str(stdout.lines().last().unwrap_or_default()) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}): {self}"),
        }
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "exit {}\nstdout: {}\nstderr: {}", self.code(), self.stdout(), self.stderr())
    }
}

/// A command that runs; killed when dropped.
pub struct Running {
    child: Child,
    mark: PathBuf,
}

impl Running {
    /// Waits until it stopped at its point.
    ///
    /// # Panics
    /// It ended, or did not get there within half a minute.
    pub async fn stopped(&mut self) {
        let started = Instant::now();
        while !self.mark.exists() {
            if let Ok(Some(status)) = self.child.try_wait() {
                panic!("the process ended before its point: {status}");
            }
            assert!(started.elapsed() < Duration::from_secs(30), "the process did not reach its point");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// It has not within half a minute.
    pub async fn ended(&mut self) {
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            assert!(started.elapsed() < Duration::from_secs(30), "the process does not end");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether it has ended, by itself or not.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        // One that is gone already is as dead as it should be.
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Sends it a signal by name: `STOP`, `CONT`, `TERM`.
    ///
    /// # Panics
    /// There is no such signal, or no `kill`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status();
        assert!(sent.is_ok_and(|status| status.success()) || name == "CONT", "SIG{name} was not sent");
    }

    /// Waits until it has ended by itself; its exit code.
    pub fn wait(&mut self) -> Option<i32> {
        self.child.wait().ok().and_then(|status| status.code())
    }

    /// Lets it go on from its point, where it stands at one.
    ///
    /// # Panics
    /// It does not stand there.
    pub fn go_on(&self) {
        check("the point", std::fs::remove_file(&self.mark));
    }

    /// Waits until it has ended by itself; what it said, where it was started with [`Home::start_heard`].
    ///
    /// # Panics
    /// It has not within half a minute.
    pub async fn said(mut self) -> Ran {
        use std::io::Read as _;
        self.ended().await;
        let status = check("the process", self.child.wait());
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        if let Some(mut pipe) = self.child.stdout.take() {
            check("its output", pipe.read_to_end(&mut stdout));
        }
        if let Some(mut pipe) = self.child.stderr.take() {
            check("its output", pipe.read_to_end(&mut stderr));
        }
        Ran(Output { status, stdout, stderr })
    }

    /// Its standard input, where it was started with a pipe.
    pub fn input(&mut self) -> Option<std::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
