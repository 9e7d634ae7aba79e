//! A claim of many rows: the one transaction here of more than one statement. Rows are locked as they are read, and rows that
//! somebody else has locked are passed over, so it waits for nobody; and it is bounded: where its process dies or stands still, the
//! server undoes it within [`STANDS_AT_MOST`] and the rows are anybody's again.

use super::{
    PostgresStore,
    committer::{self, Tried},
    connections::{Failed, Query as _, Transaction},
    corrupt, limited,
    row::{self, Damaged},
    sql::{self, Params},
    text::stored,
};
use crate::{
    run::Snapshot,
    store::{Answer, Choose, Chosen, ReadError, Store as _, Unavailable, Wanted, Write, shape},
};
use std::time::Duration;
use uuid::Uuid;

/// The longest that rows stay locked by a claim which does not go on.
pub(super) const STANDS_AT_MOST: Duration = Duration::from_secs(3);

/// What was shown to `choose`, and what it wrote.
enum Round {
    /// Nothing was due, or nothing was chosen.
    Nothing,
    /// Committed, as far as their guards held.
    Committed(Vec<Write>, committer::Written),
    /// The server refused the writes together; nothing of them is there.
    Refused(Vec<Write>),
}

impl PostgresStore {
    /// See [`Store::claim`](crate::store::Store::claim).
    pub(super) async fn claim_due(&self, wanted: &Wanted, choose: &Choose) -> Result<Chosen, Unavailable> {
        let (writes, mut written) = match self.round(wanted, choose).await {
            Ok(Round::Nothing) => return Ok(Vec::new()),
            Ok(Round::Committed(writes, written)) => (writes, written),
            // One of them is at fault: each by itself, under its own guard.
            Ok(Round::Refused(writes)) => (writes, committer::Written::default()),
            Err(failed) => return Err(self.shared.unavailable(&failed)),
        };
        let mut chosen = Vec::with_capacity(writes.len());
        for write in &writes {
            chosen.push(match written.remove(&write.next.id) {
                Some(Tried::Written(end)) => Ok(Answer::Applied(end)),
                _ => self.write(write.clone()).await,
            });
        }
        Ok(chosen)
    }

    async fn round(&self, wanted: &Wanted, choose: &Choose) -> Result<Round, Failed> {
        let transaction = self.shared.begin(STANDS_AT_MOST).await?;
        let due = self.due(&transaction, wanted).await?;
        let writes = if due.is_empty() { Vec::new() } else { choose(due) };
        let encoded: Vec<_> = writes.iter().filter(|w| shape::check_write(w).is_ok()).map(committer::Encoded::of).collect();
        if encoded.is_empty() {
            transaction.end("COMMIT").await?;
            return Ok(if writes.is_empty() { Round::Nothing } else { Round::Refused(writes) });
        }
        match committer::write_many(&transaction, &self.clock, &encoded).await {
            Ok(written) => {
                transaction.end("COMMIT").await?;
                Ok(Round::Committed(writes, written))
            }
            Err(Failed::Refused { .. }) => {
                transaction.end("ROLLBACK").await?;
                Ok(Round::Refused(writes))
            }
            Err(lost) => Err(lost),
        }
    }

    async fn due(&self, transaction: &Transaction, wanted: &Wanted) -> Result<Vec<Result<Snapshot, ReadError>>, Failed> {
        let agents: Vec<String> = wanted.agents.iter().map(|(agent, _)| stored(agent)).collect();
        let limits: Vec<i64> = wanted.agents.iter().map(|(_, most)| limited(*most)).collect();
        let except: Vec<Uuid> = wanted.except.iter().map(|id| id.0).collect();
        let now_ms = wanted.now.as_millisecond();
        let mut params = Params::default();
        params.many("agents", &agents).many("limits", &limits).one("now_ms", &now_ms).many("except", &except);
        let rows = transaction.query(&sql::DUE, &params).await?;
        let read = |row| {
            let id = row::run_id(row).map_err(|Damaged(why)| Failed::Lost(why))?;
            Ok(row::snapshot(row).map_err(|damaged| corrupt(id, damaged, row::rest(row))))
        };
        rows.iter().map(read).collect()
    }
}
