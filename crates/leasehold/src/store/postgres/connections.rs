//! Connections, and what became of a statement on one. A statement that fails is one of two things and they never collapse: the
//! server **refused** it, so nothing of it is there; or its answer is **lost**, so it may be. A connection whose answer was lost, or
//! which leads to a server that no longer takes writes, is not used again.
//!
//! Nothing here cancels a statement: a cancel that meets a commit waiting for a synchronous standby would make the server acknowledge
//! what the standby does not have. A statement that takes too long is ended by the server, or its connection is dropped.

use super::{
    OpenError,
    sql::{Params, Sql},
};
use crate::{
    postgres::{Target, words},
    store::{StoreRefused, Unavailable},
};
use deadpool_postgres::{
    Connect, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime, TimeoutType, Timeouts,
};
use futures::future::BoxFuture;
use std::{error::Error as _, fmt, sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, Config, Connection, Row, Socket, config::LoadBalanceHosts, error::SqlState, tls::MakeTlsConnect, types::ToSql,
};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Beyond it the server ends a statement.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(15);
/// Beyond it a statement gives up on a row that somebody else keeps locked, so that others do not wait behind it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(4);
/// Longer than this no caller waits for one statement: the server's own bound, and the way there and back.
pub(super) const CALL_TIMEOUT: Duration = STATEMENT_TIMEOUT.saturating_add(Duration::from_secs(5));
/// Longer than this nobody waits for a new connection, over all hosts.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(12);

/// When a refused statement may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// By itself at once: it was another statement's fault.
    Now,
    /// Once the server has what it lacks: room, time, a lock, the right to write.
    Later,
    /// Not before somebody changes the database or the statement.
    Never,
}

/// SQLSTATE classes of what stays refused: data and constraints, missing objects and privileges, features.
const LASTING: [&str; 7] = ["0A", "22", "23", "28", "3D", "3F", "42"];

/// What became of a statement that gave no rows.
#[derive(Clone, Debug)]
pub(super) enum Failed {
    /// The server said no: nothing of it is there.
    Refused {
        /// Whether it is worth sending again.
        again: Again,
        /// What the server said.
        why: String,
    },
    /// No answer: it may be there.
    Lost(String),
}

impl From<&tokio_postgres::Error> for Failed {
    fn from(error: &tokio_postgres::Error) -> Self {
        let why = words(error);
        let Some(code) = error.code() else {
            // What could not be encoded was not sent; everything else broke on the way.
            let unsent = error.source().is_some_and(|s| s.is::<tokio_postgres::types::WrongType>());
            return if unsent { Self::Refused { again: Again::Never, why } } else { Self::Lost(why) };
        };
        // The server goes away (57P..), does not take us (53300), or lost its own way (08...): perhaps after the commit.
        let lost = code.code().starts_with("57P") || code.code().starts_with("08") || *code == SqlState::TOO_MANY_CONNECTIONS;
        if lost {
            return Self::Lost(why);
        }
        let again = match code.code().get(..2) {
            _ if [SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE].contains(code) => Again::Now,
            Some(class) if LASTING.contains(&class) => Again::Never,
            _ => Again::Later,
        };
        Self::Refused { again, why }
    }
}

/// Reads a store's URL; `env` is the environment.
pub(super) fn target(url: &str, env: impl Fn(&str) -> Option<String>) -> Result<Target, OpenError> {
    let session = format!(
        "-c synchronous_commit=on -c default_transaction_isolation=read\\ committed -c statement_timeout={} \
         -c lock_timeout={} -c idle_in_transaction_session_timeout=30000 -c client_encoding=UTF8",
        STATEMENT_TIMEOUT.as_millis(),
        LOCK_TIMEOUT.as_millis(),
    );
    Ok(Target::parse(url, env, &session)?)
}

/// Why something that was asked has no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The server or the system said why.
    Error(tokio_postgres::Error),
    /// Nobody said anything for so long.
    Silence(Duration),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(error) => f.write_str(&words(error)),
            Self::Silence(patience) => write!(f, "no answer within {} s", (patience.as_secs_f64() * 10.0).round() / 10.0),
        }
    }
}

/// Waits for an answer, and no longer than `patience`: a server that is there and stands still says nothing for ever.
pub(super) async fn within<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, tokio_postgres::Error>> + Send,
) -> Result<T, NoAnswer> {
    tokio::time::timeout(patience, work).await.map_err(|_| NoAnswer::Silence(patience))?.map_err(NoAnswer::Error)
}

/// Both halves of a connection.
type Opened = (Client, Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>);

/// A connection to the first host that answers as it should. The hosts share the patience, so that one which takes the connection
/// and is silent does not hide the next; the last is waited for until the caller has enough.
async fn first(target: &Target, tls: &MakeRustlsConnect, patience: Duration) -> Result<Opened, tokio_postgres::Error> {
    let mut hosts: Vec<&Config> = target.hosts.iter().collect();
    if target.config.get_load_balance_hosts() == LoadBalanceHosts::Random {
        fastrand::shuffle(&mut hosts);
    }
    // At most the hosts of one URL.
    let share = patience / u32::try_from(hosts.len().max(1)).unwrap_or(u32::MAX);
    if let Some((_, others)) = hosts.split_last() {
        for host in others {
            if let Ok(opened) = within(share, host.connect(tls.clone())).await {
                return Ok(opened);
            }
        }
    }
    hosts.last().copied().unwrap_or(&target.config).connect(tls.clone()).await
}

/// Opens a connection: the way there, TLS, the server's greeting and the login, all within `patience`.
pub(super) async fn open(target: &Target, tls: &MakeRustlsConnect, patience: Duration) -> Result<Opened, NoAnswer> {
    within(patience, first(target, tls, patience)).await
}

/// One connection outside any pool; its other half runs on the current runtime until the client is dropped.
pub(super) async fn connect(target: &Target, tls: &MakeRustlsConnect, patience: Duration) -> Result<Client, NoAnswer> {
    let (client, connection) = open(target, tls, patience).await?;
    drive(connection);
    Ok(client)
}

fn drive(connection: Connection<Socket, <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream>) -> JoinHandle<()> {
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!("a database connection ended: {}", words(&error));
        }
    })
}

/// How a pool connects; the pool bounds it.
struct Pooled {
    target: Target,
    tls: MakeRustlsConnect,
}

impl Connect for Pooled {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async {
            let (client, connection) = first(&self.target, &self.tls, CONNECT_PATIENCE).await?;
            Ok((client, drive(connection)))
        })
    }
}

/// A pool and how to use it.
#[derive(Clone)]
pub(super) struct Connections {
    pool: Pool,
    place: Arc<str>,
    prepared: bool,
}

impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connections to {}", self.place)
    }
}

impl Connections {
    /// At most `max` connections; none is opened yet.
    pub(super) fn new(target: &Target, tls: MakeRustlsConnect, max: usize) -> Result<Self, String> {
        let recycling_method = RecyclingMethod::Fast;
        let pooled = Pooled { target: target.clone(), tls };
        let manager = Manager::from_connect(target.config.clone(), pooled, ManagerConfig { recycling_method });
        let timeouts = Timeouts { wait: Some(CALL_TIMEOUT), create: Some(CONNECT_PATIENCE), recycle: Some(CALL_TIMEOUT) };
        let pool = Pool::builder(manager).max_size(max).runtime(Runtime::Tokio1).timeouts(timeouts).build();
        Ok(Self { pool: pool.map_err(|e| e.to_string())?, place: target.place.as_str().into(), prepared: target.prepared })
    }

    /// The server keeps prepared statements for a connection.
    pub(super) fn is_prepared(&self) -> bool {
        self.prepared
    }

    /// Where.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    async fn get(&self) -> Result<Object, Failed> {
        self.pool.get().await.map_err(|error| {
            Failed::Lost(match &error {
                PoolError::Backend(e) => words(e),
                PoolError::Timeout(TimeoutType::Create) => format!("no connection within {} s", CONNECT_PATIENCE.as_secs()),
                PoolError::Timeout(_) => format!("no connection became free within {} s", CALL_TIMEOUT.as_secs()),
                other => other.to_string(),
            })
        })
    }

    /// Begins a transaction of several statements, which the server undoes where the next one does not come within `stands_at_most`.
    pub(super) async fn begin(&self, stands_at_most: Duration) -> Result<Transaction, Failed> {
        let transaction = Transaction { client: Some(self.get().await?), prepared: self.prepared };
        let ms = stands_at_most.as_millis();
        // The bound on a whole transaction is known from PostgreSQL 17 on.
        let begin = format!(
            "BEGIN; SET LOCAL idle_in_transaction_session_timeout = {ms}; SET LOCAL statement_timeout = {ms}; \
             SELECT set_config('transaction_timeout', '{}', true) WHERE current_setting('transaction_timeout', true) IS NOT NULL",
            ms * 2
        );
        transaction.execute(&begin).await?;
        Ok(transaction)
    }

    /// Runs one statement for a caller who can do nothing but ask again.
    pub(super) async fn read(&self, sql: &Sql, params: &Params<'_>) -> Result<Vec<Row>, Unavailable> {
        self.query(sql, params).await.map_err(|failed| self.unavailable(&failed))
    }

    /// Of a write: nothing of it is there, or there is no answer.
    pub(super) fn refused(&self, failed: &Failed) -> Result<StoreRefused, Unavailable> {
        match failed {
            Failed::Refused { again, why } => {
                Ok(StoreRefused { why: format!("{}: {why}", self.place), lasting: *again == Again::Never })
            }
            Failed::Lost(_) => Err(self.unavailable(failed)),
        }
    }

    /// In a caller's words.
    pub(super) fn unavailable(&self, failed: &Failed) -> Unavailable {
        match failed {
            Failed::Refused { why, .. } | Failed::Lost(why) => Unavailable(format!("{}: {why}", self.place)),
        }
    }
}

async fn ask(client: &Object, prepared: bool, sql: &Sql, params: &Params<'_>) -> Result<Vec<Row>, tokio_postgres::Error> {
    let text = sql.text(params);
    if prepared {
        let statement = client.prepare_typed_cached(text, &params.types()).await?;
        client.query(&statement, &params.values()).await
    } else {
        client.query_typed(text, params.typed()).await
    }
}

/// Waits for an answer, and no longer than a caller may; with a failure, whether its connection is of no use any more.
async fn answer<T>(work: impl Future<Output = Result<T, tokio_postgres::Error>> + Send) -> Result<T, (Failed, bool)> {
    match within(CALL_TIMEOUT, work).await {
        Ok(done) => Ok(done),
        Err(NoAnswer::Error(error)) => {
            let failed = Failed::from(&error);
            let demoted = error.code().is_some_and(|c| *c == SqlState::READ_ONLY_SQL_TRANSACTION);
            let unusable = demoted || matches!(failed, Failed::Lost(_));
            Err((failed, unusable))
        }
        Err(silence) => Err((Failed::Lost(silence.to_string()), true)),
    }
}

/// What takes statements.
pub(super) trait Query: Sync {
    /// Runs one statement.
    fn query(&self, sql: &Sql, params: &Params<'_>) -> impl Future<Output = Result<Vec<Row>, Failed>> + Send;
}

impl Query for Connections {
    async fn query(&self, sql: &Sql, params: &Params<'_>) -> Result<Vec<Row>, Failed> {
        let client = self.get().await?;
        answer(ask(&client, self.prepared, sql, params)).await.map_err(|(failed, unusable)| {
            if unusable {
                drop(Object::take(client));
            }
            failed
        })
    }
}

/// A connection in an open transaction. Unless it came to its [`end`](Self::end), the connection is closed with this value, and the
/// server undoes what was begun: also where the future that held it is dropped.
pub(super) struct Transaction {
    client: Option<Object>,
    prepared: bool,
}

impl Transaction {
    fn client(&self) -> Result<&Object, Failed> {
        self.client.as_ref().ok_or_else(|| Failed::Lost("the transaction has ended".into()))
    }

    /// Statements without parameters, which are the code's own.
    pub(super) async fn execute(&self, statements: &str) -> Result<(), Failed> {
        answer(self.client()?.batch_execute(statements)).await.map_err(|(failed, _)| failed)
    }

    /// A tool's statement.
    pub(super) async fn rows(&self, statement: &str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, Failed> {
        answer(self.client()?.query(statement, values)).await.map_err(|(failed, _)| failed)
    }

    /// A tool's statement; the number of rows that it changed.
    pub(super) async fn changed(&self, statement: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64, Failed> {
        answer(self.client()?.execute(statement, values)).await.map_err(|(failed, _)| failed)
    }

    /// Commits or rolls back, and gives the connection back.
    pub(super) async fn end(mut self, statement: &str) -> Result<(), Failed> {
        self.execute(statement).await?;
        drop(self.client.take());
        Ok(())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

impl Query for Transaction {
    async fn query(&self, sql: &Sql, params: &Params<'_>) -> Result<Vec<Row>, Failed> {
        answer(ask(self.client()?, self.prepared, sql, params)).await.map_err(|(failed, _)| failed)
    }
}
