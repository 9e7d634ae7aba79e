//! A query of PostgreSQL. It is given to the server as `DECLARE .. CURSOR FOR` it, so the server's own grammar takes nothing but one
//! query that changes no row (no second statement, no `COPY`, `CALL`, `SET` or `COMMIT`), and runs in a transaction that is read
//! only and is rolled back whatever happens. What a function does beyond the transaction depends on the role: one that could read or
//! write files, start programs or end other sessions is refused.

use super::{Bounds, Rows, SqlConfig, described, float};
use crate::postgres::{Target, connector, words};
use bytes::BytesMut;
use futures::{StreamExt as _, pin_mut};
use serde_json::Value;
use std::{
    error::Error,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_postgres::{
    Client, Column, Config, SimpleQueryMessage,
    config::Host,
    tls::MakeTlsConnect,
    types::{Format, IsNull, ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

/// So that what the server sends as text reads the same whatever it is set to.
const SESSION: &str = "-c default_transaction_read_only=on -c client_encoding=UTF8 -c DateStyle=ISO -c TimeZone=UTC \
                       -c IntervalStyle=iso_8601 -c bytea_output=hex -c extra_float_digits=1";
/// What the server may send beside the rows of an answer: greeting, names and types.
const BESIDE_BYTES: usize = 256 * 1024;
/// Longer than this nobody waits for a lock; others would wait behind.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const CURSOR: &str = "DECLARE leasehold NO SCROLL CURSOR FOR ";
const UNFIT: &str = include_str!("unfit.sql");

/// Whether a URL reads. No message repeats it.
pub(super) fn check(url: &str) -> Result<(), String> {
    target(url).map(|_| ())
}

/// A URL without secrets.
pub(super) fn shown(url: &str) -> String {
    target(url).map_or_else(|_| "postgres".into(), |target| target.place)
}

fn target(url: &str) -> Result<Target, String> {
    // What the environment has of a password is the store's, and is not sent elsewhere.
    Target::parse(url, |_| None, SESSION).map_err(|e| e.to_string())
}

/// A database.
pub(super) struct Postgres {
    target: Target,
    tls: MakeRustlsConnect,
    allow_store: bool,
}

impl Postgres {
    pub(super) fn new(url: &str, config: &SqlConfig) -> Result<Self, String> {
        let target = target(url)?;
        let tls = connector(&target).map_err(|e| e.to_string())?;
        Ok(Self { target, tls, allow_store: config.allow_store })
    }

    /// Why it may not be queried. A database that does not answer is asked again at each call.
    pub(super) async fn fit(&self) -> Result<(), String> {
        let Ok(open) = self.connect(BESIDE_BYTES).await else { return Ok(()) };
        match open.unfit(self.allow_store).await {
            Ok(Some(why)) => Err(why),
            Ok(None) | Err(_) => Ok(()),
        }
    }

    pub(super) async fn query(&self, query: &str, parameters: &[Value], bounds: Bounds) -> Result<Rows, String> {
        let open = self.connect(2 * bounds.bytes + BESIDE_BYTES).await?;
        open.begin(bounds.timeout).await.map_err(|e| words(&e))?;
        if let Some(why) = open.unfit(self.allow_store).await.map_err(|e| words(&e))? {
            return Err(why);
        }
        let answer = open.rows(query, parameters, bounds).await;
        // The connection ends with this call, and the transaction with it; this only spares the server the surprise.
        open.client.batch_execute("ROLLBACK").await.ok();
        answer
    }

    /// A connection of this call's own, to the first host that answers.
    async fn connect(&self, bytes_max: usize) -> Result<Open, String> {
        let mut why = "its URL names no host".to_owned();
        for host in &self.target.hosts {
            match self.connect_to(host, bytes_max).await {
                Ok(open) => return Ok(open),
                Err(error) => why = error,
            }
        }
        Err(format!("the database does not take a connection: {why}"))
    }

    async fn connect_to(&self, host: &Config, bytes_max: usize) -> Result<Open, String> {
        let patience = host.get_connect_timeout().copied().unwrap_or(LOCK_TIMEOUT);
        let dialled = tokio::time::timeout(patience, dial(host)).await;
        let stream = dialled.map_err(|_| "no answer".to_owned())?.map_err(|e| e.to_string())?;
        let exceeded = Arc::new(AtomicBool::new(false));
        let stream = Metered { stream, left: bytes_max, exceeded: exceeded.clone() };
        let name = match host.get_hosts().first() {
            Some(Host::Tcp(name)) => name.as_str(),
            _ => "",
        };
        let mut tls = self.tls.clone();
        let Ok(tls) = MakeTlsConnect::<Metered>::make_tls_connect(&mut tls, name);
        let opened = tokio::time::timeout(patience, host.connect_raw(stream, tls)).await;
        let (client, connection) = opened.map_err(|_| "no answer".to_owned())?.map_err(|e| words(&e))?;
        let task = tokio::spawn(async move { drop(connection.await) });
        Ok(Open { client, exceeded, _connection: AbortOnDropHandle::new(task) })
    }
}

async fn dial(host: &Config) -> io::Result<Box<dyn Stream>> {
    let port = host.get_ports().first().copied().unwrap_or(5432);
    let address = host.get_hostaddrs().first().copied();
    Ok(match (host.get_hosts().first(), address) {
        (_, Some(address)) => Box::new(TcpStream::connect((address, port)).await?),
        (Some(Host::Tcp(name)), None) => Box::new(TcpStream::connect((name.as_str(), port)).await?),
        (Some(Host::Unix(path)), None) => Box::new(UnixStream::connect(path.join(format!(".s.PGSQL.{port}"))).await?),
        (None, None) => return Err(io::Error::other("no host")),
    })
}

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connection that breaks once more has come than was agreed on: the driver itself takes in a row of any length.
struct Metered {
    stream: Box<dyn Stream>,
    left: usize,
    exceeded: Arc<AtomicBool>,
}

impl AsyncRead for Metered {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        match self.left.checked_sub(buffer.filled().len() - before) {
            Some(left) => self.left = left,
            None => {
                self.exceeded.store(true, Ordering::Relaxed);
                return Poll::Ready(Err(io::Error::other("the server sent more than was asked for")));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// A connection; dropped, it is closed at once.
struct Open {
    client: Client,
    exceeded: Arc<AtomicBool>,
    _connection: AbortOnDropHandle<()>,
}

impl Open {
    async fn begin(&self, timeout: Duration) -> Result<(), tokio_postgres::Error> {
        let ms = timeout.as_millis().clamp(1, i32::MAX as u128);
        let lock_ms = LOCK_TIMEOUT.as_millis().min(ms);
        let begin = format!(
            "BEGIN READ ONLY; SET LOCAL statement_timeout = {ms}; SET LOCAL lock_timeout = {lock_ms}; \
             SET LOCAL idle_in_transaction_session_timeout = {ms}"
        );
        self.client.batch_execute(&begin).await
    }

    /// Why this role or this database is none for a model's queries.
    async fn unfit(&self, allow_store: bool) -> Result<Option<String>, tokio_postgres::Error> {
        let found = self.client.query_one(UNFIT, &[]).await?;
        let power: Option<String> = found.try_get("power")?;
        if let Some(power) = power {
            return Ok(Some(format!(
                "it is not queried: its role {power}; make one that may only read what it needs: CREATE ROLE reader LOGIN; GRANT ..."
            )));
        }
        let is_store: bool = found.try_get("is_store")?;
        Ok((is_store && !allow_store).then(|| {
            "it is not queried: it is a store of leasehold's, and its role may read it; use a role that may not, or write \
             allow_store = true"
                .to_owned()
        }))
    }

    async fn rows(&self, query: &str, parameters: &[Value], bounds: Bounds) -> Result<Rows, String> {
        let said = |e: tokio_postgres::Error| said(&e);
        let declare = self.client.prepare(&format!("{CURSOR}{query}")).await.map_err(said)?;
        let wanted = declare.params().len();
        if wanted != parameters.len() {
            return Err(format!("the query has {wanted} parameters, and {} are given", parameters.len()));
        }
        let texts: Vec<Text> = parameters.iter().map(Text::of).collect();
        let texts: Vec<&(dyn ToSql + Sync)> = texts.iter().map(|text| text as _).collect();
        self.client.execute(&declare, &texts).await.map_err(said)?;
        // One more than wanted shows that there are more.
        let fetch = format!("FETCH FORWARD {} FROM leasehold", bounds.rows + 1);
        let columns = self.client.prepare(&fetch).await.map_err(said)?;
        let columns = columns.columns();
        let mut rows = Rows::new(columns.iter().map(|column| column.name().to_owned()).collect(), bounds);
        let messages = self.client.simple_query_raw(&fetch).await.map_err(said)?;
        pin_mut!(messages);
        while let Some(message) = messages.next().await {
            match message {
                Ok(SimpleQueryMessage::Row(row)) => {
                    let values = columns.iter().enumerate().map(|(at, column)| row.try_get(at).map(|text| value(column, text)));
                    if !rows.add(values.collect::<Result<_, _>>().map_err(said)?) {
                        break;
                    }
                }
                Ok(_) => {}
                Err(_) if self.exceeded.load(Ordering::Relaxed) => {
                    rows.cut_for_bytes();
                    break;
                }
                Err(error) => return Err(said(error)),
            }
        }
        Ok(rows)
    }
}

/// The server's words about the query, as far as they help to mend it.
fn said(error: &tokio_postgres::Error) -> String {
    let Some(db) = error.as_db_error() else { return words(error) };
    let hint = db.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{}{hint}", words(error))
}

/// A parameter as text, which the server reads as whatever it needs there.
#[derive(Debug)]
struct Text(Option<String>);

impl Text {
    fn of(value: &Value) -> Self {
        Self(match value {
            Value::Null => None,
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        })
    }
}

impl ToSql for Text {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        Ok(match &self.0 {
            None => IsNull::Yes,
            Some(text) => {
                out.extend_from_slice(text.as_bytes());
                IsNull::No
            }
        })
    }
    fn accepts(_: &Type) -> bool {
        true
    }
    fn to_sql_checked(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.to_sql(kind, out)
    }
    fn encode_format(&self, _: &Type) -> Format {
        Format::Text
    }
}

/// What the server wrote, as JSON has it. A `numeric` stays text: as a number it could lose digits.
fn value(column: &Column, text: Option<&str>) -> Value {
    let Some(text) = text else { return Value::Null };
    let plain = || Value::from(text);
    match *column.type_() {
        Type::BOOL => (text == "t").into(),
        Type::INT2 | Type::INT4 | Type::INT8 | Type::OID => text.parse::<i64>().map_or_else(|_| plain(), Value::from),
        Type::FLOAT4 | Type::FLOAT8 => text.parse::<f64>().ok().filter(|n| n.is_finite()).map_or_else(plain, float),
        Type::JSON | Type::JSONB => serde_json::from_str(text).unwrap_or_else(|_| plain()),
        Type::BYTEA => described(text.len().saturating_sub(2) / 2),
        Type::TIMESTAMP | Type::TIMESTAMPTZ => rfc3339(text).into(),
        _ => plain(),
    }
}

/// `2026-12-01 10:40:01.5+00` as RFC 3339 has it; what is no such time (`infinity`, before Christ) stays as it is.
fn rfc3339(text: &str) -> String {
    let is_time = text.as_bytes().get(10) == Some(&b' ') && !text.ends_with("BC");
    if !is_time {
        return text.to_owned();
    }
    let joined = text.replacen(' ', "T", 1);
    joined.strip_suffix("+00").map_or(joined.clone(), |time| format!("{time}Z"))
}
