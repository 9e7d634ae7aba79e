//! Artifacts as they are put aside, sealed, and read back.

use super::*;
use crate::{run::CallId, store::Artifact};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Format tag of what an artifact is, which is JSON, and of its content, which is as it came.
const FORMAT_PLAIN: u8 = 1;
/// Bytes of the hash that make a handle.
const HANDLE_BYTES: usize = 16;

/// What a running call has put aside, to be kept with its outcome.
#[derive(Clone, Debug)]
pub(crate) struct PutAside {
    pub(crate) handle: String,
    pub(crate) sha256: String,
    /// `image`, `audio`, `resource`: in the words of the tool's result.
    pub(crate) kind: String,
    pub(crate) mime_type: String,
    pub(crate) content: Arc<[u8]>,
}

impl PutAside {
    pub(crate) fn new(kind: &str, mime_type: &str, content: Vec<u8>) -> Self {
        let hash = Sha256::digest(&content);
        let (handle, sha256) = (hex::encode(&hash[..HANDLE_BYTES]), hex::encode(hash));
        Self { handle, sha256, kind: kind.to_owned(), mime_type: mime_type.to_owned(), content: content.into() }
    }
}

/// What is stored of an artifact beside its content.
#[derive(Debug, Serialize, Deserialize)]
struct About {
    kind: String,
    mime_type: String,
    sha256: String,
    call_id: CallId,
}

/// Artifacts of one call as they lie in the store, before it is known with which entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sealed {
    call: Option<CallId>,
    artifacts: Vec<Artifact>,
}

/// An artifact of a run, opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptArtifact {
    /// What names it in its run.
    pub handle: String,
    /// The number of the entry that it came with first.
    pub sequence: u64,
    /// Bytes of its content.
    pub bytes: u64,
    /// What the result of its call names it: `image`, `audio`, `resource`.
    pub kind: String,
    /// What its tool says it is, which nobody has checked.
    pub mime_type: String,
    /// SHA-256 of its content, in hex.
    pub sha256: String,
    /// The call that it came with first.
    pub call_id: CallId,
}

impl Drafted {
    /// With what the call of this outcome has put aside, where the write has an entry that says what became of it.
    pub(crate) fn keeping(mut self, kept: &Sealed) -> Self {
        let says = |entry: &&Entry| match &entry.body {
            EntryBody::ToolOutcome(outcome) => Some(&outcome.call_id) == kept.call.as_ref(),
            EntryBody::LateEvidence(late) => Some(&late.call_id) == kept.call.as_ref(),
            _ => false,
        };
        if let (Some(write), Some(entry)) = (&mut self.write, self.done.entries.iter().find(says)) {
            let with = |artifact: &Artifact| Artifact { sequence: entry.sequence, ..artifact.clone() };
            write.artifacts = kept.artifacts.iter().map(with).collect();
        }
        self
    }
}

impl Engine {
    /// What a call has put aside, as it lies in the store.
    ///
    /// # Errors
    /// It cannot be sealed.
    pub(crate) fn sealed_artifacts(&self, run: RunId, call: &CallId, aside: &[PutAside]) -> Result<Sealed, Unavailable> {
        let mut artifacts = Vec::with_capacity(aside.len());
        for PutAside { handle, sha256, kind, mime_type, content } in aside {
            let about =
                About { kind: kind.clone(), mime_type: mime_type.clone(), sha256: sha256.clone(), call_id: call.clone() };
            // A struct of texts: it has no failing case.
            let about = serde_json::to_vec(&about).unwrap_or_default();
            artifacts.push(Artifact {
                handle: handle.clone(),
                sequence: 0,
                bytes: content.len() as u64,
                about: self.payload(Place { run, column: Column::ArtifactAbout(handle) }, &about)?,
                content: self.payload(Place { run, column: Column::ArtifactContent(handle) }, content)?.into(),
            });
        }
        Ok(Sealed { call: Some(call.clone()), artifacts })
    }

    fn payload(&self, place: Place<'_>, plain: &[u8]) -> Result<Vec<u8>, Unavailable> {
        match &self.keyring {
            Some(keyring) => keyring.seal(place, plain).map_err(|e| Unavailable(e.to_string())),
            None => Ok([&[FORMAT_PLAIN], plain].concat()),
        }
    }

    fn plain(&self, place: Place<'_>, payload: &[u8]) -> Result<Vec<u8>, String> {
        match payload.split_first() {
            Some((&FORMAT_PLAIN, plain)) => Ok(plain.to_vec()),
            Some((&seal::FORMAT_SEALED, _)) => seal::open(self.keyring.as_deref(), place, payload).map_err(|e| e.to_string()),
            _ => Err("its format is not known here".into()),
        }
    }

    fn about(&self, run: RunId, artifact: &Artifact) -> Result<KeptArtifact, ReadError> {
        let Artifact { handle, sequence, bytes, about, .. } = artifact;
        let damaged = |why: String| ReadError::Corrupt { run, why: format!("artifact {handle}: {why}"), rest: None };
        let about = self.plain(Place { run, column: Column::ArtifactAbout(handle) }, about).map_err(damaged)?;
        let About { kind, mime_type, sha256, call_id } =
            serde_json::from_slice(&about).map_err(|_| damaged("what it is does not decode".into()))?;
        Ok(KeptArtifact { handle: handle.clone(), sequence: *sequence, bytes: *bytes, kind, mime_type, sha256, call_id })
    }

    /// The artifacts of a run, in the order in which they came.
    ///
    /// # Errors
    /// One that does not decode, no answer.
    pub async fn artifacts(&self, run: RunId) -> Result<Vec<KeptArtifact>, ReadError> {
        let listed = self.store.artifacts(run).await?;
        listed.iter().map(|artifact| self.about(run, artifact)).collect()
    }

    /// Handles and bytes of what a run has: for what more it may keep, nothing is opened.
    pub(crate) async fn artifact_bytes(&self, run: RunId) -> Result<Vec<(String, u64)>, Unavailable> {
        Ok(self.store.artifacts(run).await?.into_iter().map(|artifact| (artifact.handle, artifact.bytes)).collect())
    }

    /// An artifact and its content, which is what it was when it was kept; none where the run has no such one.
    ///
    /// # Errors
    /// It does not open or is not what it was, no answer.
    pub async fn artifact(&self, run: RunId, handle: &str) -> Result<Option<(KeptArtifact, Vec<u8>)>, ReadError> {
        let Some(artifact) = self.store.artifact(run, handle).await? else { return Ok(None) };
        let damaged = |why: String| ReadError::Corrupt { run, why: format!("artifact {handle}: {why}"), rest: None };
        let kept = self.about(run, &artifact)?;
        let content = self.plain(Place { run, column: Column::ArtifactContent(handle) }, &artifact.content).map_err(damaged)?;
        if hex::encode(&Sha256::digest(&content)[..HANDLE_BYTES]) != handle {
            return Err(damaged("its content is not what it was".into()));
        }
        Ok(Some((kept, content)))
    }
}
