//! Binary content of a tool's result as a store keeps it: written in the transaction of the entry that came with it, named by what is
//! in it. A store knows nothing of what it is; payloads are sealed before they get here.

use std::sync::Arc;

/// One artifact of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// What names it in its run, made of its content: the same content is there once.
    pub handle: String,
    /// The number of the entry that it came with first.
    pub sequence: u64,
    /// Bytes of its content.
    pub bytes: u64,
    /// What it is, as a payload.
    pub about: Vec<u8>,
    /// Its content, as a payload; empty in a list.
    pub content: Arc<[u8]>,
}
