//! A write that is counted against budgets: a transaction of its own, which holds each budget's lock in the order of their names; so is
//! one that carries artifacts. It is rare beside the writes that are committed together, and bounded like a claim.

use super::{
    PostgresStore,
    artifacts::{self, CARRIES_AT_MOST},
    claim::STANDS_AT_MOST,
    committer::{self, Encoded},
    connections::{Failed, Query as _, Transaction},
    row::{self, Damaged},
    sql::{self, Params},
    text::stored,
};
use crate::{
    run::{Charge, LeaseTime},
    store::{Answer, Unavailable, Write},
};

/// What became of a write in its transaction.
pub(super) enum Tried {
    /// It is there, once the transaction is committed.
    Applied(Option<LeaseTime>),
    /// A charge is too much for this budget.
    Over(String),
    /// Its guard does not hold, or its row is not there, or somebody else has it locked.
    Unwritten {
        /// No row came back.
        locked: bool,
    },
}

impl PostgresStore {
    /// Writes and charges, or neither.
    pub(super) async fn write_charged(&self, write: &Write) -> Result<Answer, Unavailable> {
        let encoded = Encoded::of(write);
        let (locked, over) = match self.charged(write, &encoded).await {
            Ok(Tried::Applied(end)) => return Ok(Answer::Applied(end)),
            Ok(Tried::Over(budget)) => (false, Some(budget)),
            Ok(Tried::Unwritten { locked }) => (locked, None),
            Err(failed) => return self.shared.refused(&failed).map(Answer::Refused),
        };
        // Charged by an earlier send of the same write, it is there and not charged again.
        match (committer::unwritten(&self.shared, &encoded, locked).await, over) {
            (Ok(Answer::Moved), Some(budget)) => Ok(Answer::OverBudget(budget)),
            (Ok(answer), _) => Ok(answer),
            (Err(unanswered), _) => Err(unanswered.in_words(self.shared.place(), write.next.id)),
        }
    }

    async fn charged(&self, write: &Write, encoded: &Encoded) -> Result<Tried, Failed> {
        let at_most = if write.artifacts.is_empty() { STANDS_AT_MOST } else { CARRIES_AT_MOST };
        let transaction = self.shared.begin(at_most).await?;
        let tried = self.write_in(&transaction, write, encoded).await?;
        transaction.end(if matches!(tried, Tried::Applied(_)) { "COMMIT" } else { "ROLLBACK" }).await?;
        Ok(tried)
    }

    /// Writes and charges in an open transaction, which is to be undone where it is not applied.
    pub(super) async fn write_in(&self, transaction: &Transaction, write: &Write, encoded: &Encoded) -> Result<Tried, Failed> {
        artifacts::keep(transaction, write).await?;
        let mut charges: Vec<&Charge> = write.charges.iter().collect();
        charges.sort_by(|a, b| a.budget.cmp(&b.budget));
        for charge in &charges {
            let budget = stored(&charge.budget);
            let mut params = Params::default();
            params.one("budget", &budget);
            transaction.query(&sql::LOCK_BUDGET, &params).await?;
            if charge.exceeds(self.spent(transaction, write, charge).await?) {
                return Ok(Tried::Over(charge.budget.clone()));
            }
        }
        let mut written = committer::write_many(transaction, &self.clock, &[encoded]).await?;
        let end = match written.remove(&write.next.id) {
            Some(committer::Tried::Written(end)) => end,
            tried => return Ok(Tried::Unwritten { locked: tried.is_none() }),
        };
        for charge in charges {
            self.charge(transaction, write, charge).await?;
        }
        Ok(Tried::Applied(end))
    }

    async fn spent(&self, transaction: &Transaction, write: &Write, charge: &Charge) -> Result<i64, Failed> {
        let (budget, call) = (stored(&charge.budget), stored(&charge.call.0));
        let since_ms = charge.since().as_millisecond();
        let mut params = Params::default();
        params.one("budget", &budget).one("since_ms", &since_ms).one("run_id", &write.next.id.0).one("call_id", &call);
        let rows = transaction.query(&sql::SPENT, &params).await?;
        let spent = rows.first().map(|row| row::column(row, "spent")).transpose();
        spent.map(Option::unwrap_or_default).map_err(|Damaged(why)| Failed::Lost(why))
    }

    async fn charge(&self, transaction: &Transaction, write: &Write, charge: &Charge) -> Result<(), Failed> {
        let (budget, call) = (stored(&charge.budget), stored(&charge.call.0));
        let (since_ms, at_ms) = (charge.since().as_millisecond(), charge.at.as_millisecond());
        let mut params = Params::default();
        params.one("budget", &budget).one("since_ms", &since_ms);
        transaction.query(&sql::FORGET_EFFECTS, &params).await?;
        let mut params = Params::default();
        params
            .one("budget", &budget)
            .one("run_id", &write.next.id.0)
            .one("call_id", &call)
            .one("at_ms", &at_ms)
            .one("amount", &charge.amount);
        transaction.query(&sql::CHARGE, &params).await.map(|_| ())
    }
}
