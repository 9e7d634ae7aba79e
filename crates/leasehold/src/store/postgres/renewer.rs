//! Renewals: a connection of its own, on a runtime of its own that runs only while the renewing thread asks. Nothing that the rest
//! of the process does, or fails to do, keeps a renewal waiting; and one statement renews all the rights of a process. It waits for
//! no row: one that somebody else has locked is passed over, asked for again for a moment, and then left without word, so that a row
//! which is kept locked costs no other right its renewal.

use super::{
    LeaseClock, LeaseNow, committer,
    connections::{self, NoAnswer},
    row,
    sql::{self, Params, Sql},
};
use crate::{
    postgres::Target,
    run::LeaseId,
    store::{Held, Look, Renewer, Unavailable},
};
use backon::Retryable as _;
use std::{
    cell::RefCell,
    time::{Duration, Instant},
};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

/// The longest that one renewal waits, its connection included; a third of the ttl where that is less.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// The shortest: a busy server takes this long.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
/// How long a renewal asks for rows that somebody else has locked, and this part of the ttl at most.
const LOCKED_PATIENCE: Duration = Duration::from_millis(500);
const LOCKED_PART: u32 = 20;

/// See the module.
pub(super) struct PostgresRenewer {
    pub(super) target: Target,
    pub(super) tls: MakeRustlsConnect,
    pub(super) clock: LeaseClock,
    pub(super) runtime: Option<Runtime>,
    pub(super) client: Option<Client>,
}

impl Drop for PostgresRenewer {
    fn drop(&mut self) {
        // The value may be dropped on a thread that must not block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl PostgresRenewer {
    fn unavailable(&self, why: impl std::fmt::Display) -> Unavailable {
        Unavailable(format!("{}: {why}", self.target.place))
    }

    fn ask(&mut self, held: &[Held], ttl: Option<Duration>, patience: Duration) -> Result<Vec<Look>, Unavailable> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| self.unavailable(e))?,
        };
        let asked = runtime.block_on(async { tokio::time::timeout(patience, self.round(held, ttl, patience)).await });
        self.runtime = Some(runtime);
        match asked {
            Ok(Ok(looks)) => Ok(looks),
            Ok(Err(error)) => {
                self.client = None;
                Err(self.unavailable(error))
            }
            Err(_) => {
                self.client = None;
                Err(self.unavailable(format_args!("no answer within {patience:?}")))
            }
        }
    }

    async fn round(&mut self, held: &[Held], ttl: Option<Duration>, patience: Duration) -> Result<Vec<Look>, NoAnswer> {
        let client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            _ => connections::connect(&self.target, &self.tls, patience).await?,
        };
        let client = self.client.insert(client);
        let Some(ttl) = ttl else { return asked(client, &sql::LOOK, held, None).await.map_err(NoAnswer::Error) };
        // What is left to ask for, and what was said of the others.
        let (left, said, started) = (RefCell::new(held.to_vec()), RefCell::new(Vec::new()), Instant::now());
        let attempt = || async {
            let held = left.borrow().clone();
            let looks = asked(client, &sql::RENEW, &held, Some((ttl, self.clock.now()))).await.map_err(Unrenewed::Failed)?;
            let (locked, done): (Vec<Look>, Vec<Look>) = looks.into_iter().partition(|look| look.held && !look.renewed);
            said.borrow_mut().extend(done);
            left.borrow_mut().retain(|right| locked.iter().any(|look| look.right == *right));
            if locked.is_empty() { Ok(()) } else { Err(Unrenewed::Locked(locked)) }
        };
        let patience = LOCKED_PATIENCE.min(ttl / LOCKED_PART);
        let again = |why: &Unrenewed| matches!(why, Unrenewed::Locked(_)) && started.elapsed() < patience;
        match attempt.retry(committer::until_unlocked()).when(again).await {
            Ok(()) => Ok(said.into_inner()),
            Err(Unrenewed::Locked(locked)) => Ok([said.into_inner(), locked].concat()),
            Err(Unrenewed::Failed(error)) => Err(NoAnswer::Error(error)),
        }
    }
}

/// Why a renewal is not done.
enum Unrenewed {
    /// These are without word.
    Locked(Vec<Look>),
    Failed(tokio_postgres::Error),
}

async fn asked(
    client: &Client,
    sql: &Sql,
    held: &[Held],
    extend: Option<(Duration, LeaseNow)>,
) -> Result<Vec<Look>, tokio_postgres::Error> {
    let ids: Vec<Uuid> = held.iter().map(|h| h.id.0).collect();
    let epochs: Vec<i64> = held.iter().map(|h| row::total(h.epoch)).collect();
    let lease_ids: Vec<Uuid> = held.iter().map(|h| h.lease_id.0).collect();
    let extend = extend.map(|(ttl, now)| (i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX), now));
    let mut params = Params::default();
    params.many("ids", &ids).many("epochs", &epochs).many("lease_ids", &lease_ids);
    if let Some((ttl_ns, now)) = &extend {
        params.one("ttl_ns", ttl_ns);
        now.bind(&mut params);
    }
    // Once in some seconds: the server need not keep the statement.
    let rows = client.query_typed(sql.text(&params), params.typed()).await?;
    Ok(rows.iter().filter_map(look).collect())
}

fn look(row: &Row) -> Option<Look> {
    // The columns are the statement's own: one that does not decode is as good as no answer for its run.
    let look = || -> Result<Look, row::Damaged> {
        Ok(Look {
            right: Held {
                id: row::run_id(row)?,
                epoch: u64::try_from(row::column::<i64>(row, "epoch")?).unwrap_or(0),
                lease_id: LeaseId(row::column(row, "lease_id")?),
            },
            held: row::column(row, "held")?,
            renewed: row::column(row, "renewed")?,
            sequence: u64::try_from(row::column::<i64>(row, "sequence")?).unwrap_or(0),
            cancel_requested: row::column(row, "cancel_requested")?,
        })
    };
    look().ok()
}

impl Renewer for PostgresRenewer {
    fn renew(&mut self, held: &[Held], ttl: Duration) -> Result<Vec<Look>, Unavailable> {
        self.ask(held, Some(ttl), (ttl / 3).clamp(PATIENCE_MIN, PATIENCE_MAX))
    }

    fn look(&mut self, held: &[Held]) -> Result<Vec<Look>, Unavailable> {
        self.ask(held, None, PATIENCE_MIN * 2)
    }
}
