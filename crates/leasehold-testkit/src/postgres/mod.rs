//! Throw-away PostgreSQL servers, and a database of its own for each test.
//!
//! All test processes of a machine share one server per version ([`Cluster::shared`]); a test that stops or restarts its server takes
//! one for itself ([`Cluster::own`]). A server outlives no test: each process that uses one holds a shared lock on a file of it for as
//! long as it lives, however it ends, and a watching shell ends the server when it can get that lock for itself. Nothing here is
//! durable (`fsync = off`): a killed server keeps what it acknowledged, a machine that loses power need not.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test support: a server that cannot be had fails its test with the reason"
)]

mod programs;
mod user;

pub(crate) use user::current_is_root;

pub use programs::Version;
pub(crate) use programs::{run, target};

use self::user::User;
use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};
use tokio_postgres::NoTls;

/// The superuser of every server here; it needs no password, every other user does.
pub const USER: &str = "leasehold";

/// A server without users ends after this many seconds.
const LINGER_S: u32 = 60;

/// What a server of one's own has beyond the usual.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extra<'a> {
    /// Lines for `postgresql.conf`.
    pub settings: &'a [&'a str],
    /// Files for its data directory, by name.
    pub files: &'a [(&'a str, &'a str)],
    /// What its programs have in their environment.
    pub environment: &'a [(String, String)],
}

/// A server.
#[derive(Debug)]
pub struct Cluster {
    programs: PathBuf,
    directory: PathBuf,
    user: Option<User>,
    environment: Vec<(String, String)>,
    port: u16,
    /// Held while this value lives.
    _used: File,
}

/// A database; it is dropped with this value.
#[derive(Debug)]
pub struct Database {
    cluster: Arc<Cluster>,
    name: String,
}

fn check<T, E: std::fmt::Display>(what: &str, result: Result<T, E>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{what}: {error}"),
    }
}

fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}_{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

impl Cluster {
    /// The server that all tests of this machine share; started by the first of them. Blocks; call it from `spawn_blocking` where
    /// that matters.
    ///
    /// # Panics
    /// There is no such PostgreSQL and it cannot be installed; the message says what is missing.
    pub fn shared(version: Version) -> Arc<Self> {
        static SHARED: [OnceLock<Arc<Cluster>>; 2] = [OnceLock::new(), OnceLock::new()];
        let slot = match version {
            Version::V15 => &SHARED[0],
            Version::V18 => &SHARED[1],
        };
        let open = || Arc::new(check("a shared PostgreSQL server", Self::open(version, None, Extra::default())));
        Arc::clone(slot.get_or_init(open))
    }

    /// A server of one's own; it ends with this value.
    ///
    /// # Panics
    /// As for `shared`.
    pub fn own(version: Version, extra: Extra<'_>) -> Arc<Self> {
        Arc::new(check("a PostgreSQL server", Self::open(version, Some(unique()), extra)))
    }

    fn open(version: Version, own: Option<String>, extra: Extra<'_>) -> Result<Self, String> {
        let programs = version.programs()?;
        let user = User::needed()?;
        // Not in the target directory: another user must reach it, and a socket's path is short.
        let name = own.as_ref().map_or_else(|| "shared".into(), |o| format!("own-{o}"));
        let directory = std::env::temp_dir().join(format!("leasehold-pg{}-{}-{name}", version.major(), whose()));
        std::fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
        User::own(user, &directory)?;
        let file = |name: &str| File::create(directory.join(name)).map_err(|e| format!("{}: {e}", directory.display()));
        // Waits while the watching shell stops the server, and keeps it from stopping it from now on.
        let used = file("used.lock")?;
        used.lock_shared().map_err(|e| e.to_string())?;
        let starting = file("start.lock")?;
        starting.lock().map_err(|e| e.to_string())?;
        let environment = extra.environment.to_vec();
        let mut cluster = Self { programs, directory, user, environment, port: 0, _used: used };
        match cluster.running_port() {
            Some(port) => cluster.port = port,
            None => {
                cluster.initialise(extra)?;
                cluster.start_anew()?;
                cluster.watch(own.is_some())?;
            }
        }
        Ok(cluster)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.current_dir(&self.directory).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.env_remove("PGDATA").env_remove("PGPORT").env("LC_ALL", "C");
        command.envs(self.environment.iter().cloned());
        User::of(self.user, &mut command);
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Result<(), String> {
        let output = self.program(name).args(arguments).output().map_err(|e| format!("{name}: {e}"))?;
        if output.status.success() {
            return Ok(());
        }
        let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(8).collect();
        Err(format!("{name} {arguments:?}: {}: {} {tail:?}", output.status, String::from_utf8_lossy(&output.stderr)))
    }

    /// The port of the server that runs in this directory, if one does.
    fn running_port(&self) -> Option<u16> {
        let data = self.data();
        self.run("pg_ctl", &["status", "-D", data.to_str()?]).ok()?;
        std::fs::read_to_string(self.directory.join("port")).ok()?.trim().parse().ok()
    }

    fn initialise(&self, extra: Extra<'_>) -> Result<(), String> {
        let data = self.data();
        // What an unfinished start left is not trusted, and what tests left in a finished one is of no use.
        match std::fs::remove_dir_all(&data) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(format!("{}: {e}", data.display())),
            _ => {}
        }
        let arguments = [
            &format!("--pgdata={}", data.display()),
            "--no-sync",
            "--encoding=UTF8",
            "--locale=C",
            &format!("--username={USER}"),
            "--auth=trust",
        ];
        self.run("initdb", &arguments)?;
        let mut settings = format!(
            "listen_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\nmax_connections = 300\nshared_buffers = 64MB\n\
             fsync = off\nfull_page_writes = off\nautovacuum_naptime = 5s\nlog_min_messages = warning\n",
            self.directory.display()
        );
        for line in extra.settings {
            settings.push_str(line);
            settings.push('\n');
        }
        // A password costs each connection thousands of hashes; only who tests passwords has one.
        let hba = format!("local all all trust\nhost all {USER} 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
        let usual = [("postgresql.auto.conf", settings.as_str()), ("pg_hba.conf", hba.as_str())];
        for (name, content) in usual.iter().chain(extra.files) {
            let path = data.join(name);
            std::fs::write(&path, content).map_err(|e| e.to_string())?;
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).map_err(|e| e.to_string())?;
            User::own(self.user, &path)?;
        }
        Ok(())
    }

    /// Starts on a port that is free now; another program may take it in between, so it is tried again.
    fn start_anew(&mut self) -> Result<(), String> {
        let mut last = String::new();
        for _ in 0..5 {
            let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(|e| e.to_string())?;
            self.port = free.port();
            match self.start_on_port() {
                Ok(()) => {
                    return std::fs::write(self.directory.join("port"), self.port.to_string()).map_err(|e| e.to_string());
                }
                Err(why) => last = why,
            }
        }
        Err(last)
    }

    fn start_on_port(&self) -> Result<(), String> {
        let (data, log) = (self.data(), self.directory.join("log"));
        self.run(
            "pg_ctl",
            &[
                "start",
                "-w",
                "-t",
                "60",
                "-D",
                &data.display().to_string(),
                "-l",
                &log.display().to_string(),
                "-o",
                &format!("-p {}", self.port),
            ],
        )
    }

    /// Ends the server when nobody uses it any more, and removes it. A user that comes while it does waits for the lock.
    fn watch(&self, own: bool) -> Result<(), String> {
        let script = format!(
            "while :; do flock -x used.lock true; sleep {linger}; exec 9>used.lock; flock -x -n 9 && break; exec 9>&-; done; \
             {pg_ctl} stop -D data -m immediate >/dev/null 2>&1; {remove}",
            linger = if own { 0 } else { LINGER_S },
            pg_ctl = self.programs.join("pg_ctl").display(),
            remove = if own { "rm -rf data; rm -f *" } else { "rm -rf data port" },
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(&self.directory).process_group(0);
        shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        User::of(self.user, &mut shell);
        for lock in ["used.lock", "start.lock"] {
            User::own(self.user, &self.directory.join(lock))?;
        }
        shell.spawn().map(|_| ()).map_err(|e| format!("sh: {e}"))
    }

    /// Stops it at once, as a crash does, and starts it again on the same port.
    ///
    /// # Panics
    /// It does not come back.
    pub fn restart_immediate(&self) {
        self.stop_immediate();
        self.start();
    }

    /// Restarts it as an administrator does: connections are ended, transactions undone, everything written.
    ///
    /// # Panics
    /// It does not come back.
    pub fn restart_fast(&self) {
        let data = self.data().display().to_string();
        check("stopping PostgreSQL", self.run("pg_ctl", &["stop", "-w", "-m", "fast", "-D", &data]));
        self.start();
    }

    /// Stops it at once, as a crash does.
    ///
    /// # Panics
    /// It does not stop.
    pub fn stop_immediate(&self) {
        let data = self.data().display().to_string();
        check("stopping PostgreSQL", self.run("pg_ctl", &["stop", "-w", "-m", "immediate", "-D", &data]));
    }

    /// Starts it again on the same port.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(&self) {
        check("starting PostgreSQL", self.start_on_port());
    }

    /// Stops all its processes where they are, as a machine does that stands still: connections are taken, and nothing is said on any.
    /// They go on with the end of the value.
    ///
    /// # Panics
    /// It does not run.
    pub fn freeze(self: &Arc<Self>) -> Frozen {
        let frozen = Frozen(Arc::clone(self));
        frozen.signal("STOP");
        frozen
    }

    /// The server's processes: the first, and those it started.
    fn processes(&self) -> Vec<String> {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        let first = file.lines().next().unwrap_or_default().trim().to_owned();
        let children = std::fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
        std::iter::once(first).chain(children.split_whitespace().map(str::to_owned)).collect()
    }

    /// A URL of a database of this server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A new empty database.
    ///
    /// # Panics
    /// It cannot be created.
    pub async fn database(self: &Arc<Self>) -> Database {
        let name = format!("t_{}", unique());
        check("a database", self.execute("postgres", &format!("CREATE DATABASE {name} TEMPLATE template0")).await);
        Database { cluster: Arc::clone(self), name }
    }

    /// Runs statements as the superuser.
    ///
    /// # Errors
    /// What the server said.
    pub async fn execute(&self, database: &str, statements: &str) -> Result<(), tokio_postgres::Error> {
        let client = self.client(database).await?;
        client.batch_execute(statements).await
    }

    /// A connection of a test's own.
    ///
    /// # Errors
    /// What the server said.
    pub async fn client(&self, database: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(&self.url(database), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// Waits until it answers.
    ///
    /// # Panics
    /// It does not within half a minute.
    pub async fn answers(&self) {
        let started = Instant::now();
        while self.client("postgres").await.is_err() {
            assert!(started.elapsed() < Duration::from_secs(30), "PostgreSQL does not answer");
            // A server that starts gives no signal to wait for.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// A server that stands still.
#[derive(Debug)]
pub struct Frozen(Arc<Cluster>);

impl Frozen {
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).args(self.0.processes()).status();
        assert!(sent.is_ok_and(|status| status.success()) || name == "CONT", "SIG{name} was not sent");
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.signal("CONT");
    }
}

/// The user and the checkout: neither shares a server with another.
fn whose() -> String {
    let of = std::fs::metadata("/proc/self").map_or(0, |m| std::os::unix::fs::MetadataExt::uid(&m));
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).display().to_string();
    let hash = checkout.bytes().fold(5381_u32, |hash, byte| hash.wrapping_mul(33) ^ u32::from(byte));
    format!("{of}-{hash:08x}")
}

impl Database {
    /// Its URL, for the superuser.
    pub fn url(&self) -> String {
        self.cluster.url(&self.name)
    }
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
    /// Its server.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
    /// Runs statements in it as the superuser.
    ///
    /// # Errors
    /// What the server said.
    pub async fn execute(&self, statements: &str) -> Result<(), tokio_postgres::Error> {
        self.cluster.execute(&self.name, statements).await
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (cluster, name) = (Arc::clone(&self.cluster), self.name.clone());
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
            let statement = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
            runtime.block_on(async { cluster.execute("postgres", &statement).await }).ok()
        });
        // A server that is stopped has no database to drop, and ends with its tests anyway.
        dropped.join().ok();
    }
}
