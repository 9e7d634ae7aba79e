//! Renewals: a connection of its own, on a runtime of its own that runs only while the renewing thread asks. Nothing that the rest
//! of the process does, or fails to do, keeps a renewal waiting; and one statement renews all the rights of a process.

use super::{
    LeaseClock,
    connections::{self, words},
    row,
    sql::{self, Params, Sql},
    url::Target,
};
use crate::store::{Held, Look, Renewer, Unavailable};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Row};
use tokio_postgres_rustls::MakeRustlsConnect;
use uuid::Uuid;

/// The longest that one renewal waits, its connection included; a third of the ttl where that is less.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// The shortest: a busy server takes this long.
const PATIENCE_MIN: Duration = Duration::from_secs(1);

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

    fn ask(&mut self, sql: &Sql, held: &[Held], ttl: Option<Duration>, patience: Duration) -> Result<Vec<Look>, Unavailable> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        let runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| self.unavailable(e))?,
        };
        let asked = runtime.block_on(async { tokio::time::timeout(patience, self.round(sql, held, ttl)).await });
        self.runtime = Some(runtime);
        match asked {
            Ok(Ok(looks)) => Ok(looks),
            Ok(Err(error)) => {
                self.client = None;
                Err(self.unavailable(words(&error)))
            }
            Err(_) => {
                self.client = None;
                Err(self.unavailable(format_args!("no answer within {patience:?}")))
            }
        }
    }

    async fn round(&mut self, sql: &Sql, held: &[Held], ttl: Option<Duration>) -> Result<Vec<Look>, tokio_postgres::Error> {
        let client = match self.client.take() {
            Some(client) if !client.is_closed() => client,
            _ => connections::connect(&self.target, self.tls.clone()).await?,
        };
        let client = self.client.insert(client);
        let now = self.clock.now();
        let ids: Vec<Uuid> = held.iter().map(|h| h.id.0).collect();
        let epochs: Vec<i64> = held.iter().map(|h| row::total(h.epoch)).collect();
        let lease_ids: Vec<Uuid> = held.iter().map(|h| h.lease_id.0).collect();
        let ttl_ns = ttl.map(|ttl| i64::try_from(ttl.as_nanos()).unwrap_or(i64::MAX));
        let mut params = Params::default();
        params.many("ids", &ids).many("epochs", &epochs).many("lease_ids", &lease_ids);
        if let Some(ttl_ns) = &ttl_ns {
            params.one("ttl_ns", ttl_ns);
            now.bind(&mut params);
        }
        // Once in some seconds: the server need not keep the statement.
        let rows = client.query_typed(sql.text(&params), params.typed()).await?;
        Ok(rows.iter().filter_map(look).collect())
    }
}

fn look(row: &Row) -> Option<Look> {
    // The columns are the statement's own: one that does not decode is as good as no answer for its run.
    let look = || -> Result<Look, row::Damaged> {
        Ok(Look {
            id: row::run_id(row)?,
            held: row::column(row, "held")?,
            sequence: u64::try_from(row::column::<i64>(row, "sequence")?).unwrap_or(0),
            cancel_requested: row::column(row, "cancel_requested")?,
        })
    };
    look().ok()
}

impl Renewer for PostgresRenewer {
    fn renew(&mut self, held: &[Held], ttl: Duration) -> Result<Vec<Look>, Unavailable> {
        self.ask(&sql::RENEW, held, Some(ttl), (ttl / 3).clamp(PATIENCE_MIN, PATIENCE_MAX))
    }

    fn look(&mut self, held: &[Held]) -> Result<Vec<Look>, Unavailable> {
        self.ask(&sql::LOOK, held, None, PATIENCE_MIN * 2)
    }
}
