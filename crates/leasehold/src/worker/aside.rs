//! What may be kept of what the calls of a run put aside.

pub(crate) use crate::store::engine::PutAside;
use crate::{
    limits::{ARTIFACTS_RUN_BYTES_MAX, ARTIFACTS_RUN_MAX},
    run::RunId,
    store::engine::Engine,
};
use std::{collections::BTreeSet, sync::Arc};

/// What a run may keep yet, as far as the calls of one step take from it.
#[derive(Debug)]
pub(crate) struct Room {
    engine: Arc<Engine>,
    run: RunId,
    taken: tokio::sync::Mutex<Option<Taken>>,
}

#[derive(Debug)]
struct Taken {
    handles: BTreeSet<String>,
    bytes: u64,
}

impl Room {
    /// Of a run. The store is not asked before something is to be kept.
    pub(crate) fn of(engine: Arc<Engine>, run: RunId) -> Arc<Self> {
        Arc::new(Self { engine, run, taken: tokio::sync::Mutex::new(None) })
    }

    /// Takes the place of one artifact; why not, in words. What the run has already takes none.
    pub(crate) async fn take(&self, aside: &PutAside) -> Result<(), String> {
        let mut taken = self.taken.lock().await;
        if taken.is_none() {
            let had = self.engine.artifact_bytes(self.run).await;
            let had = had.map_err(|_| "the store did not say what the run has kept already".to_owned())?;
            let bytes = had.iter().map(|(_, bytes)| bytes).sum();
            *taken = Some(Taken { handles: had.into_iter().map(|(handle, _)| handle).collect(), bytes });
        }
        let Some(taken) = taken.as_mut() else { return Ok(()) };
        if taken.handles.contains(&aside.handle) {
            return Ok(());
        }
        let bytes = taken.bytes.saturating_add(aside.content.len() as u64);
        if taken.handles.len() >= ARTIFACTS_RUN_MAX || bytes > ARTIFACTS_RUN_BYTES_MAX {
            return Err(format!("a run keeps {ARTIFACTS_RUN_MAX} artifacts of {ARTIFACTS_RUN_BYTES_MAX} bytes at most"));
        }
        taken.bytes = bytes;
        taken.handles.insert(aside.handle.clone());
        Ok(())
    }
}
