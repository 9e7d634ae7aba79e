//! What a running call puts aside: binary content that is kept with its outcome, in the transaction that journals it. Until then it is
//! in memory alone, so that a process that dies leaves both or neither.

use super::Asker;
use crate::{
    limits::{ARTIFACT_BYTES_MAX, ARTIFACTS_CALL_BYTES_MAX, ARTIFACTS_CALL_MAX},
    worker::{PutAside, Room},
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};

/// Characters of what a tool says that its content is; more: cut.
const MIME_CHARS_MAX: usize = 200;

/// What one call has put aside.
#[derive(Clone, Debug)]
pub(crate) struct Shelf {
    room: Arc<Room>,
    aside: Arc<Mutex<Vec<PutAside>>>,
}

impl Shelf {
    pub(crate) fn new(room: &Arc<Room>) -> Self {
        Self { room: Arc::clone(room), aside: Arc::default() }
    }

    /// All of it, once.
    pub(crate) fn take(&self) -> Vec<PutAside> {
        std::mem::take(&mut *self.aside.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn put(&self, aside: PutAside) -> Result<(), String> {
        let (many, bytes) = {
            let there = self.aside.lock().unwrap_or_else(PoisonError::into_inner);
            if there.iter().any(|other| other.handle == aside.handle) {
                return Ok(());
            }
            (there.len(), there.iter().map(|other| other.content.len()).sum::<usize>())
        };
        if many >= ARTIFACTS_CALL_MAX || bytes + aside.content.len() > ARTIFACTS_CALL_BYTES_MAX {
            return Err(format!("a call keeps {ARTIFACTS_CALL_MAX} artifacts of {ARTIFACTS_CALL_BYTES_MAX} bytes at most"));
        }
        self.room.take(&aside).await?;
        self.aside.lock().unwrap_or_else(PoisonError::into_inner).push(aside);
        Ok(())
    }
}

impl Asker {
    /// Has binary content kept as an artifact of the run, together with the outcome of this call, and gives what stands for it in the
    /// tool's result: its `type` (in the tool's word: `image`, `audio`, `resource`), `mime_type`, `bytes`, `sha256` and the handle
    /// under which it can be read, `artifact`. What is over a limit, and what has no run that is recorded, is described alone, with
    /// the reason. A call that has no outcome keeps nothing.
    pub async fn keep(&self, kind: &str, mime_type: &str, content: Vec<u8>) -> Value {
        let mime_type: String = mime_type.chars().take(MIME_CHARS_MAX).collect();
        let bytes = content.len();
        let kept = match &self.shelf {
            _ if bytes > ARTIFACT_BYTES_MAX => Err(format!("an artifact has {ARTIFACT_BYTES_MAX} bytes at most")),
            None => Err("this call is of no run that is recorded".to_owned()),
            Some(shelf) => {
                let aside = PutAside::new(kind, &mime_type, content);
                let named = (aside.sha256.clone(), aside.handle.clone());
                shelf.put(aside).await.map(|()| named)
            }
        };
        match kept {
            Ok((sha256, handle)) => {
                json!({ "type": kind, "mime_type": mime_type, "bytes": bytes, "sha256": sha256, "artifact": handle })
            }
            Err(why) => described(kind, &mime_type, bytes, &why),
        }
    }
}

/// Content that is not kept, and why.
pub(crate) fn described(kind: &str, mime_type: &str, bytes: usize, why: &str) -> Value {
    json!({ "type": kind, "mime_type": mime_type, "bytes": bytes, "note": format!("not kept: {why}") })
}
