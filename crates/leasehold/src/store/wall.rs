//! Wall time as a store has it: one for all its processes, whatever their own clocks say. A time limit that one process sets and another
//! looks at (until when a write may be on its way, when a run is due) means the same to both only on one clock.
//!
//! A server's store has a clock: the database's. On an embedded store all processes share this machine's boot-time clock, and the first of
//! them in each boot says what wall time that is; the others go by its word, so that neither a wrong clock nor a step moves a limit.

use super::{Record, Store, Unavailable};
use crate::clock::{BootClock, WallClock, to_millis};
use jiff::Timestamp;
use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

/// The kind of the records with the word of the first.
const KIND: &str = "wall";
/// How often a database is asked anew: its clock drifts against this machine's.
const AGAIN: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct StoreWall {
    boot: Arc<dyn BootClock>,
    /// Nanoseconds from the boot-time clock to wall time.
    offset: AtomicI64,
}

impl StoreWall {
    /// Asks the store. On a server's store it is asked again from time to time, for as long as this value lives.
    ///
    /// # Errors
    /// No answer.
    pub async fn of(store: &Arc<dyn Store>, boot: Arc<dyn BootClock>, own: &dyn WallClock) -> Result<Arc<Self>, Unavailable> {
        let (offset, is_servers) = match measured(store, &*boot).await? {
            Some(offset) => (offset, true),
            None => (said(store, &*boot, own).await?, false),
        };
        let wall = Arc::new(Self { boot, offset: AtomicI64::new(offset) });
        if is_servers {
            let (held, store) = (Arc::downgrade(&wall), Arc::clone(store));
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(AGAIN).await;
                    let Some(wall) = held.upgrade() else { return };
                    // A store that is away is asked at the next turn.
                    if let Ok(Some(offset)) = measured(&store, &*wall.boot).await {
                        wall.offset.store(offset, Ordering::Release);
                    }
                }
            });
        }
        Ok(wall)
    }
}

impl WallClock for StoreWall {
    fn now(&self) -> Timestamp {
        let ns = i128::from(self.boot.now().ns) + i128::from(self.offset.load(Ordering::Acquire));
        to_millis(Timestamp::from_nanosecond(ns).unwrap_or(Timestamp::UNIX_EPOCH))
    }
}

/// The difference to a server's clock; none where leases run on this machine's.
async fn measured(store: &Arc<dyn Store>, boot: &dyn BootClock) -> Result<Option<i64>, Unavailable> {
    let before = boot.now().ns;
    let now = store.now().await?;
    let after = boot.now().ns;
    let middle = before.saturating_add(after.saturating_sub(before) / 2);
    Ok((now.clock != boot.boot_id()).then(|| now.ns.saturating_sub(middle)))
}

/// The difference that the first process of this boot has said; this one's own where it is the first.
async fn said(store: &Arc<dyn Store>, boot: &dyn BootClock, own: &dyn WallClock) -> Result<i64, Unavailable> {
    let own = i64::try_from(own.now().as_nanosecond()).unwrap_or(i64::MAX).saturating_sub(boot.now().ns);
    let key = boot.boot_id().to_owned();
    let first = Record { kind: KIND.into(), key: key.clone(), version: 0, expires_at: None, body: own.to_string() };
    store.put_record(first).await?;
    let record = store.record(KIND, &key).await?;
    Ok(record.and_then(|record| record.body.parse().ok()).unwrap_or(own))
}
