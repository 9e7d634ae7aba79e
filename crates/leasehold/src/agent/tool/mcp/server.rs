//! A server: one connection that all calls share, made when the first needs it, thrown away when it fails, and made anew by the next.

use super::{
    config::{McpConfig, McpConfigError},
    connection::{Answered, Connection, Handler, NotOpen, Said},
    deadline::Deadline,
    definition::{Definition, refusals},
    elicit::{Floor, Person, Resumed},
    error::McpError,
    health::{Link, McpHealth, Record},
    heard::Heard,
    mask::Mask,
    oauth::Logins,
    pace::Pace,
    passage::{Fate, Passage},
    process::LastWords,
    target::{Resolved, Target, resolve},
};
use crate::{
    agent::{
        patience::before,
        tool::{
            InputRequired, Teller,
            http::{RESPONSE_BYTES_DEFAULT, TIMEOUT_DEFAULT},
        },
    },
    limits::{MCP_GRACE, MCP_MESSAGE_BYTES_MAX},
    worker::trust::TrustWindow,
};
use jiff::Timestamp;
use rmcp::model::{CallToolRequestParams, CallToolResult, ErrorCode, JsonObject, RequestMetaObject};
use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// After this long the SDK tries the old handshake on the same connection, which a server that is slow to start needs.
const SDK_FALLBACK: Duration = Duration::from_secs(10);
/// Of a deadline that leaves no room for that, the part for the newest handshake; then the old one has a connection of its own.
const SHARE_OF_THE_NEWEST: f64 = 0.4;

/// For so long a read over HTTP relies on what was listed: without a session nothing tells that the server was started anew since.
/// A write asks each time.
const LISTED_FRESH: Duration = Duration::from_secs(10);

/// An MCP server. Clones are the same server.
#[derive(Clone)]
pub struct McpServer(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) config: McpConfig,
    pub(super) timeout: Duration,
    pub(super) max_response: usize,
    pub(super) endpoint: String,
    pub(super) mask: Mask,
    pub(super) target: Target,
    handler: Handler,
    words: LastWords,
    current: Mutex<Option<Arc<Connection>>>,
    /// Held while connecting, so that those who come meanwhile wait for the same connection.
    connecting: tokio::sync::Mutex<()>,
    /// Of calls at a server that cannot say for which of them it asks.
    turns: tokio::sync::Mutex<()>,
    pace: Mutex<Pace>,
    record: Mutex<Record>,
    /// Only the old handshake works.
    only_initialize: AtomicBool,
    closed: CancellationToken,
    listed_at: AtomicU64,
    listed: watch::Sender<Option<Arc<Vec<Definition>>>>,
}

/// A tool as it was registered.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// As its server names it.
    pub(super) name: String,
    /// Of its definition.
    pub(super) hash: String,
}

/// A call to be made.
pub(super) struct Request<'a> {
    pub(super) tool: &'a Known,
    pub(super) arguments: JsonObject,
    pub(super) meta: RequestMetaObject,
    /// A second call does no more than the first.
    pub(super) can_repeat: bool,
    /// The lease of a write; none: a read.
    pub(super) trust: Option<Arc<TrustWindow>>,
    /// Who watches.
    pub(super) teller: Teller,
}

/// What a call came to.
pub(super) enum Called {
    Result(CallToolResult),
    /// The server goes on when it has this.
    Needs(InputRequired),
}

/// Why a call has no result, and what became of its last request.
pub(super) struct NoResult {
    pub(super) error: McpError,
    pub(super) fate: Fate,
}

/// How far an operation came.
enum Stage {
    Waiting,
    Connecting,
    On(Arc<Connection>),
}

fn ended() -> McpError {
    McpError::NotConnected("this process has ended it".into())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl McpServer {
    /// A server, with values from this process's environment. Nothing is started yet.
    ///
    /// # Errors
    /// The key that is wrong and the mend.
    pub fn new(config: McpConfig) -> Result<Self, McpConfigError> {
        Self::new_with_env(config, |name| std::env::var(name).ok())
    }

    /// A server, with values from the given environment. Nothing is started yet.
    ///
    /// # Errors
    /// The key that is wrong and the mend.
    pub fn new_with_env(config: McpConfig, env: impl Fn(&str) -> Option<String>) -> Result<Self, McpConfigError> {
        Self::new_with_logins(config, env, None)
    }

    /// A server, with values from the given environment and with logins from whoever keeps them. Nothing is started yet.
    ///
    /// # Errors
    /// The key that is wrong and the mend.
    pub fn new_with_logins(
        config: McpConfig,
        env: impl Fn(&str) -> Option<String>,
        logins: Option<Arc<dyn Logins>>,
    ) -> Result<Self, McpConfigError> {
        let timeout = config.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let floor = config.questions.map(|_| Floor::default());
        let max_response = config.max_response.unwrap_or(RESPONSE_BYTES_DEFAULT);
        if max_response > MCP_MESSAGE_BYTES_MAX {
            return Err(McpConfigError {
                server: config.name,
                key: "max_response".into(),
                why: format!("no message is longer than {MCP_MESSAGE_BYTES_MAX} bytes: write less"),
            });
        }
        let Resolved { target, endpoint, mask } = resolve(&config, timeout, &env, logins)?;
        let handler = Handler {
            list_changes: watch::Sender::new(0),
            progress: watch::Sender::new(0),
            floor,
            heard: Heard::new(mask.clone()),
        };
        Ok(Self(Arc::new(Inner {
            config,
            timeout,
            max_response,
            endpoint,
            mask,
            target,
            handler,
            words: LastWords::default(),
            current: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
            turns: tokio::sync::Mutex::default(),
            pace: Mutex::default(),
            record: Mutex::default(),
            only_initialize: AtomicBool::new(false),
            closed: CancellationToken::new(),
            listed_at: AtomicU64::new(0),
            listed: watch::Sender::new(None),
        })))
    }

    /// As configured.
    pub fn name(&self) -> &str {
        &self.0.config.name
    }

    /// Where it is, without secrets.
    pub fn endpoint(&self) -> &str {
        &self.0.endpoint
    }

    /// Asks it for its tools.
    ///
    /// # Errors
    /// It does not answer as it should.
    pub async fn list(&self) -> Result<Vec<Definition>, McpError> {
        let definitions =
            self.0.operate(false, &self.0.deadline(), async |connection| self.0.list_on(&connection).await).await?;
        Ok(definitions.as_ref().clone())
    }

    /// What it listed last, also where that was not asked for here: before the first call on a connection, and after it said that
    /// its tools changed, it is asked again.
    pub fn listed(&self) -> watch::Receiver<Option<Arc<Vec<Definition>>>> {
        self.0.listed.subscribe()
    }

    /// Asks it for a sign of life; how long that took, connecting included.
    ///
    /// # Errors
    /// It gives none.
    pub async fn ping(&self) -> Result<Duration, McpError> {
        let begun = Instant::now();
        self.0.operate(false, &self.0.deadline(), async |connection| connection.ping().await).await?;
        Ok(begun.elapsed())
    }

    /// Counts what it says of changes of its tools.
    pub fn list_changes(&self) -> watch::Receiver<u64> {
        self.0.handler.list_changes.subscribe()
    }

    /// Counts its notifications of progress.
    pub fn progress(&self) -> watch::Receiver<u64> {
        self.0.handler.progress.subscribe()
    }

    /// What is known of it without asking it.
    pub fn health(&self) -> McpHealth {
        let inner = &self.0;
        let is_up = lock(&inner.current).as_ref().is_some_and(|connection| !connection.is_over());
        let (failures, wait) = {
            let pace = lock(&inner.pace);
            (pace.failures(), pace.wait(Instant::now()))
        };
        let record = lock(&inner.record);
        McpHealth {
            link: match () {
                () if inner.closed.is_cancelled() => Link::Closed,
                () if is_up => Link::Up,
                () if record.was_tried => Link::Down,
                () => Link::NotTried,
            },
            last_contact: record.last_contact,
            latency: record.latency,
            last_error: record.last_error.clone(),
            restarts: record.connections.saturating_sub(1),
            failures,
            next_attempt_in: wait,
            protocol_version: record.protocol_version.clone(),
            server: record.server.clone(),
            last_end: inner.words.end(),
            last_words: inner.words.lines(&inner.mask),
            list_changed: *inner.handler.list_changes.borrow() > inner.listed_at.load(Ordering::Acquire),
        }
    }

    /// Ends it for good, and waits for the end of its process.
    pub async fn shutdown(&self) {
        // Whoever connects gives up: a server that says nothing does not hold up the end.
        self.0.closed.cancel();
        let _nobody_connects = self.0.connecting.lock().await;
        if let Some(authorization) = self.0.target.authorization() {
            authorization.at_rest().await;
        }
        let Some(connection) = lock(&self.0.current).take() else { return };
        connection.close(MCP_GRACE).await;
        let over = connection.process_over();
        // The process is told to end where the last of its connection goes; a call that is under way keeps it as long as its deadline.
        drop(connection);
        if let Some(mut over) = over {
            // An error is that nobody is left to say so, which is the same.
            let _ = over.wait_for(|over| *over).await;
        }
    }
}

impl Inner {
    fn deadline(&self) -> Deadline {
        Deadline::new(self.timeout)
    }

    /// Calls a tool once: a call that had ended in questions with what people said to them. A server may not know its state any more (a
    /// process of it has the key, or it is too old). What it says then its tool could say too, so that only a call that can be repeated
    /// is made from its beginning; and none that somebody declined to go on with.
    pub(super) async fn call(&self, request: &Request<'_>, person: &mut Person<'_>) -> Result<Called, NoResult> {
        let deadline = self.deadline();
        let Some(resumed) = person.resumed() else { return self.once(request, None, person, &deadline).await };
        let begins_anew = request.can_repeat && resumed.state.is_some() && !person.has_declined();
        match self.once(request, Some(resumed), person, &deadline).await {
            Err(NoResult { error: McpError::Refused { code, .. }, .. })
                if begins_anew && code == ErrorCode::INVALID_PARAMS.0 => {}
            ended => return ended,
        }
        match self.once(request, None, person, &deadline).await? {
            Called::Needs(input) => match person.resumed_as(&input) {
                Some(resumed) => self.once(request, Some(resumed), person, &deadline).await,
                None => Ok(Called::Needs(input)),
            },
            ended => Ok(ended),
        }
    }

    async fn once(
        &self,
        request: &Request<'_>,
        resumed: Option<Resumed>,
        person: &mut Person<'_>,
        deadline: &Deadline,
    ) -> Result<Called, NoResult> {
        let passage = Passage::new(request.trust.clone());
        let error = match self.request(request, resumed, &passage, person, deadline).await {
            Ok(Answered::Result(result)) => return Ok(Called::Result(result)),
            Ok(Answered::Question(question)) => match person.needs(question) {
                Ok(input) => return Ok(Called::Needs(input)),
                Err(why) => McpError::NeedsInput(self.mask.said(&why)),
            },
            Err(error) => error,
        };
        Err(NoResult { error, fate: passage.close() })
    }

    async fn request(
        &self,
        request: &Request<'_>,
        resumed: Option<Resumed>,
        passage: &Passage,
        person: &mut Person<'_>,
        deadline: &Deadline,
    ) -> Result<Answered, McpError> {
        let mut params = CallToolRequestParams::new(request.tool.name.clone()).with_arguments(request.arguments.clone());
        if let Some(resumed) = resumed {
            params.input_responses = Some(resumed.responses);
            params.request_state = resumed.state;
        }
        let turn = person.turn(&self.turns).await?;
        let work = async |connection: Arc<Connection>| {
            // Who asks in its answer says for which call.
            let _turn = turn.filter(|_| connection.floor.is_some());
            let hash = self.definition_on(&connection, &request.tool.name, request.trust.is_some()).await?;
            if hash.as_deref() != Some(request.tool.hash.as_str()) {
                return Err(McpError::Changed(request.tool.name.clone()));
            }
            let call = connection.call(params, request.meta.clone(), passage, request.teller.clone());
            let Some(floor) = &connection.floor else { return call.await };
            let mut unanswered = Unanswered { server: self, connection: &connection, is_answered: false };
            let answered = floor.during(call, person, deadline).await;
            unanswered.is_answered = true;
            answered
        };
        self.operate(request.trust.is_some(), deadline, work).await
    }

    /// Hash of the definition that the server of this connection gives of a tool, where it is one that can be offered: the process or
    /// host may be another than the one that was asked before.
    async fn definition_on(&self, connection: &Connection, tool: &str, is_write: bool) -> Result<Option<String>, McpError> {
        let changes = *self.handler.list_changes.borrow();
        let is_known = lock(&connection.definitions).as_ref().is_some_and(|said| {
            let is_fresh = !connection.is_http() || (!is_write && said.at.elapsed() < LISTED_FRESH);
            said.changes == changes && is_fresh
        });
        if !is_known {
            self.list_on(connection).await?;
        }
        Ok(lock(&connection.definitions).as_ref().and_then(|said| said.hashes.get(tool).cloned()))
    }

    async fn list_on(&self, connection: &Connection) -> Result<Arc<Vec<Definition>>, McpError> {
        let seen = *self.handler.list_changes.borrow();
        let at = Instant::now();
        let definitions: Arc<Vec<Definition>> = Arc::new(connection.list().await?.into_iter().map(Definition::from).collect());
        self.listed_at.fetch_max(seen, Ordering::AcqRel);
        let refused = refusals(&definitions);
        let offered = definitions.iter().filter(|definition| !refused.contains_key(&definition.name));
        let hashes = offered.map(|definition| (definition.name.clone(), definition.hash())).collect();
        *lock(&connection.definitions) = Some(Said { changes: seen, at, hashes });
        self.listed.send_if_modified(|last| {
            let is_other = last.as_ref() != Some(&definitions);
            *last = Some(Arc::clone(&definitions));
            is_other
        });
        Ok(definitions)
    }

    /// Does something on the connection, within one deadline over everything.
    async fn operate<T>(
        &self,
        is_write: bool,
        deadline: &Deadline,
        work: impl AsyncFnOnce(Arc<Connection>) -> Result<T, McpError>,
    ) -> Result<T, McpError> {
        let had = deadline.left();
        let runs = deadline.runs();
        let mut stage = Stage::Waiting;
        let done = before(deadline.has_run_out(), async {
            let connection = self.connected(deadline, is_write, &mut stage).await?;
            stage = Stage::On(Arc::clone(&connection));
            work(connection).await
        });
        let done = done.await.unwrap_or(Err(McpError::TimedOut(self.timeout)));
        drop(runs);
        match &done {
            Err(error) if error.is_failure() => {
                if let (Stage::On(connection), true) = (&stage, error.ends_the_connection()) {
                    self.throw_away(connection);
                }
                // Who only waited, or was told to wait, has seen no failure.
                if !matches!(stage, Stage::Waiting) {
                    self.failed(&error.to_string());
                }
            }
            Err(error) => {
                if let (Stage::On(connection), McpError::Unauthorized(_)) = (&stage, error) {
                    self.throw_away(connection);
                }
                lock(&self.record).last_error = Some(self.mask.said(&error.to_string()));
            }
            Ok(_) => {}
        }
        if !matches!(&done, Err(error) if error.is_failure() || matches!(error, McpError::Unauthorized(_))) {
            let mut record = lock(&self.record);
            record.last_contact = Some(Timestamp::now());
            record.latency = Some(had.saturating_sub(deadline.left()));
            drop(record);
            lock(&self.pace).answered();
        }
        done.map_err(|error| self.mask.over_error(error))
    }

    fn failed(&self, why: &str) {
        lock(&self.pace).failed(Instant::now());
        let why = self.mask.said(why);
        tracing::warn!(server = %self.config.name, error = %why, "an MCP server failed");
        lock(&self.record).last_error = Some(why);
    }

    fn throw_away(&self, connection: &Arc<Connection>) {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|standing| Arc::ptr_eq(standing, connection)) {
            *current = None;
        }
    }

    /// The connection that stands.
    fn standing(&self) -> Option<Arc<Connection>> {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|connection| connection.is_over()) {
            *current = None;
        }
        current.clone()
    }

    async fn connected(&self, deadline: &Deadline, is_write: bool, stage: &mut Stage) -> Result<Arc<Connection>, McpError> {
        tokio::select! {
            biased;
            connected = self.connect(deadline, is_write, stage) => connected,
            () = self.closed.cancelled() => Err(ended()),
        }
    }

    async fn connect(&self, deadline: &Deadline, is_write: bool, stage: &mut Stage) -> Result<Arc<Connection>, McpError> {
        if let Some(connection) = self.usable(is_write).await {
            return Ok(connection);
        }
        let _turn = self.connecting.lock().await;
        if let Some(connection) = self.usable(is_write).await {
            return Ok(connection);
        }
        if self.closed.is_cancelled() {
            return Err(ended());
        }
        let (wait, failures) = {
            let pace = lock(&self.pace);
            (pace.wait(Instant::now()), pace.failures())
        };
        if let Some(authorization) = self.target.authorization() {
            // Who has no right to it has not failed to reach it.
            authorization.token().await.map_err(|error| McpError::Unauthorized(error.to_string()))?;
        }
        if wait >= deadline.left() {
            let last = lock(&self.record).last_error.clone().unwrap_or_default();
            let wait = wait.as_secs_f32().ceil();
            return Err(McpError::NotConnected(format!(
                "it failed {failures} times in a row, last: {last}; next try in {wait} s"
            )));
        }
        tokio::time::sleep(wait).await;
        *stage = Stage::Connecting;
        let connection = Arc::new(self.open().await?);
        {
            let mut record = lock(&self.record);
            record.connections += 1;
            record.protocol_version = Some(connection.version.to_string());
            record.server = connection.server.as_deref().map(|server| self.mask.said(server));
        }
        *lock(&self.current) = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// The standing connection. A session is asked for a sign of life before a write goes out on it: a server that was restarted
    /// meanwhile does not know it, and what it would answer to the write says nothing certain.
    async fn usable(&self, is_write: bool) -> Option<Arc<Connection>> {
        let connection = self.standing()?;
        if is_write && connection.may_be_stale {
            let alive = tokio::time::timeout(self.timeout / 3, connection.ping()).await;
            if !matches!(alive, Ok(Ok(()))) {
                self.throw_away(&connection);
                return None;
            }
        }
        Some(connection)
    }

    async fn open(&self) -> Result<Connection, McpError> {
        lock(&self.record).was_tried = true;
        let only_initialize = self.only_initialize.load(Ordering::Acquire);
        let open =
            |only_initialize| Connection::open(&self.target, self.handler.clone(), &self.words, &self.mask, only_initialize);
        // A server of the old handshake may also keep silent about a question that it does not know; then there is time for another.
        let first = async {
            if only_initialize {
                return open(true).await;
            }
            let has_room = self.timeout >= SDK_FALLBACK * 2;
            let limit = if has_room { self.timeout } else { self.timeout.mul_f64(SHARE_OF_THE_NEWEST) };
            match tokio::time::timeout(limit, open(false)).await {
                Ok(opened) => opened,
                Err(_) => Err(NotOpen::Handshake(format!("no handshake within {limit:?}"))),
            }
        };
        match first.await {
            Ok(connection) => Ok(connection),
            Err(NotOpen::Unreachable(why)) => Err(McpError::NotConnected(why)),
            Err(NotOpen::Unauthorized(why)) => Err(McpError::Unauthorized(why)),
            Err(NotOpen::Handshake(why)) if only_initialize => Err(McpError::NotConnected(why)),
            // A server of the old handshake may break the connection over a question that it does not know.
            Err(NotOpen::Handshake(newest)) => match open(true).await {
                Ok(connection) => {
                    self.only_initialize.store(true, Ordering::Release);
                    Ok(connection)
                }
                Err(NotOpen::Unauthorized(why)) => Err(McpError::Unauthorized(why)),
                Err(NotOpen::Unreachable(_) | NotOpen::Handshake(_)) => Err(McpError::NotConnected(newest)),
            },
        }
    }
}

/// A call on its way. One that is given up leaves a server that may still ask for it: the connection goes with it.
struct Unanswered<'a> {
    server: &'a Inner,
    connection: &'a Arc<Connection>,
    is_answered: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.server.throw_away(self.connection);
        }
    }
}

impl fmt::Debug for McpServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.name(), self.0.target)
    }
}
