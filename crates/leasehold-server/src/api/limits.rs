//! Every bound of the server, with what happens beyond it.

use std::{num::NonZeroU32, time::Duration};

/// Bytes of a request's body: 413. The messages of a run may have 4 MiB, and JSON writes some characters longer.
pub(crate) const BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Bytes of a request's headers: 431.
pub(crate) const HEADER_BYTES_MAX: usize = 32 * 1024;
/// Time for a request's head and for the next one on a connection: the connection is closed.
pub(crate) const HEAD_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a request's body: 408.
pub(crate) const BODY_READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Connections at once; further ones are closed at once.
pub(crate) const CONNECTIONS_MAX: usize = 2_048;
/// Requests at once, without those that stream or wait: 503.
pub(crate) const REQUESTS_MAX: usize = 256;
/// Streams and waiting requests at once: 503.
pub(crate) const STREAMS_MAX: usize = 512;
/// Time for a request that neither streams nor waits: 503. An order may take its patience with the store, half a minute.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Requests of a principal in a second, over time: 429.
pub(crate) const RATE: NonZeroU32 = at_least_one(100);
/// Requests of a principal at once, after a pause: 429.
pub(crate) const BURST: NonZeroU32 = at_least_one(1_000);
/// How long a `wait` waits when it does not say.
pub(crate) const WAIT_DEFAULT: u32 = 60;
/// And at most, in seconds: 422.
pub(crate) const WAIT_MAX: u32 = 600;
/// How long a reader of a stream may leave an event, or of any answer its next byte; then its connection is closed, and it comes back
/// with `Last-Event-ID`.
pub(crate) const READER_PATIENCE: Duration = Duration::from_secs(30);
/// Events of a stream that wait for its reader; the others wait in the journal.
pub(crate) const STREAM_BUFFER: usize = 64;
/// And their bytes, or one event that is longer.
pub(crate) const STREAM_BYTES: usize = 256 * 1024;
/// Entries that a stream reads at once while its reader keeps up.
pub(crate) const STREAM_PAGE: usize = 16;
/// Journals that are read at once for whoever asks, fewer than an embedded store reads side by side; further ones wait.
pub(crate) const JOURNAL_READS_MAX: usize = 2;
/// Artifacts that are on their way to whoever asked at once, each whole in memory; further ones are refused: 503.
pub(crate) const DOWNLOADS_MAX: usize = 8;
/// Bytes of a piece of one.
pub(crate) const DOWNLOAD_CHUNK: usize = 64 * 1024;
/// Between two comments on a stream without events.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Looks at a watched run this often where no hint came.
pub(crate) const POLL: Duration = Duration::from_millis(500);
/// Pieces of text that a slow stream may be behind; older ones are left out, as the reply has them all.
pub(crate) const LIVE_BUFFER: usize = 1_024;
/// Who reads a stream is asked for again so often: a token that is revoked ends its streams.
pub(crate) const RECHECK: Duration = Duration::from_secs(30);
/// Bytes of an idempotency key: 422.
pub(crate) const KEY_BYTES_MAX: usize = 256;
/// Rows of a page when nobody says.
pub(crate) const PAGE_DEFAULT: u32 = 50;
/// Bytes of a reason or a note; more: refused.
pub(crate) const NOTE_BYTES_MAX: usize = 16 * 1024;

const fn at_least_one(n: u32) -> NonZeroU32 {
    match NonZeroU32::new(n) {
        Some(n) => n,
        None => NonZeroU32::MIN,
    }
}
