//! Renewals: a connection of its own, one statement for all the rights of a process. It takes its turn before the writer thread
//! (see [`turns`](super::turns)), because a renewal that comes too late stops every segment of its process.

use super::{
    busy::patiently,
    change::{end, now},
    place::Place,
    row::shown_count,
    turns::Turns,
};
use crate::{
    clock::BootClock,
    store::{Held, Look, Renewer, Unavailable},
};
use rusqlite::{Connection, named_params};
use std::{sync::Arc, time::Duration};

/// See the module.
pub(super) struct SqliteRenewer {
    pub(super) connection: Connection,
    pub(super) clock: Arc<dyn BootClock>,
    pub(super) turns: Arc<Turns>,
    pub(super) place: Arc<Place>,
}

impl SqliteRenewer {
    fn extend(&self, held: &str, ttl: Duration) -> rusqlite::Result<Vec<Look>> {
        let connection = &self.connection;
        connection.execute_batch("BEGIN IMMEDIATE")?;
        // Inside the transaction: waiting for the file must not shorten what is granted, nor count as held.
        let end = end(&now(&*self.clock), ttl);
        connection.prepare_cached(include_str!("sql/renew.sql"))?.execute(named_params! {
            ":held": held, ":clock": end.clock, ":expires_ns": end.ns
        })?;
        let looks = look(connection, held, true)?;
        connection.execute_batch("COMMIT")?;
        Ok(looks)
    }
}

fn look(connection: &Connection, held: &str, extended: bool) -> rusqlite::Result<Vec<Look>> {
    let mut look = connection.prepare_cached(include_str!("sql/look.sql"))?;
    let looks = look.query_map(named_params! { ":held": held }, |row| {
        let (id, epoch, lease_id) = (row.get::<_, String>(0)?.parse(), row.get::<_, i64>(1)?, row.get::<_, String>(2)?.parse());
        let (held, sequence, cancel_requested): (bool, _, _) = (row.get(3)?, shown_count(row.get(4)?), row.get(5)?);
        // They are the parameter's own.
        let right = id.ok().zip(lease_id.ok()).map(|(id, lease_id)| Held { id, epoch: shown_count(epoch), lease_id });
        Ok(right.map(|right| Look { right, held, renewed: held && extended, sequence, cancel_requested }))
    })?;
    looks.filter_map(Result::transpose).collect()
}

/// The rights as one parameter: `[[id, epoch, lease id], ...]`.
fn as_parameter(held: &[Held]) -> String {
    let rows = held.iter().map(|h| serde_json::json!([h.id, h.epoch, h.lease_id]));
    serde_json::Value::Array(rows.collect()).to_string()
}

impl Renewer for SqliteRenewer {
    fn renew(&mut self, held: &[Held], ttl: Duration) -> Result<Vec<Look>, Unavailable> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        self.place.check()?;
        let held = as_parameter(held);
        let result = patiently(|| {
            let _turn = self.turns.renewal();
            let looks = self.extend(&held, ttl);
            if looks.is_err() && !self.connection.is_autocommit() {
                self.connection.execute_batch("ROLLBACK")?;
            }
            looks
        });
        result.map_err(|e| self.place.unavailable(&e))
    }

    fn look(&mut self, held: &[Held]) -> Result<Vec<Look>, Unavailable> {
        if held.is_empty() {
            return Ok(Vec::new());
        }
        self.place.check()?;
        let held = as_parameter(held);
        patiently(|| look(&self.connection, &held, false)).map_err(|e| self.place.unavailable(&e))
    }
}
