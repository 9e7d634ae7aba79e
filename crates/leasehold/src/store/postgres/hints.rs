//! Hints between processes, by NOTIFY. A NOTIFY makes its transaction wait for every other one that notifies, so it is never in one
//! that writes: it is sent after the commit, by a task of its own, many hints at once. One connection listens, only in a process that
//! asked for hints; it comes back after a cut, and tells its process to look then. Where it cannot listen (a transaction pooler), nothing
//! but time is lost.

use super::{
    connections::{self, CALL_TIMEOUT, CONNECT_PATIENCE, Connections, NoAnswer, within},
    sql::{self, Params},
};
use crate::{postgres::Target, run::RunId, store::Hint};
use backon::{BackoffBuilder as _, ExponentialBuilder};
use std::{
    future::{pending, poll_fn},
    pin::pin,
    sync::OnceLock,
    time::Duration,
};
use tokio::{
    sync::{broadcast, mpsc, oneshot},
    task::AbortHandle,
};
use tokio_postgres::AsyncMessage;
use tokio_postgres_rustls::MakeRustlsConnect;

const CHANNEL: &str = "leasehold";
/// Hints of one notification, whose payload has less than 8000 bytes.
const TOGETHER_MAX: usize = 128;
/// Hints that wait to be sent; further ones are dropped.
const WAITING_MAX: usize = 4_096;
/// Before the listener connects again; doubled up to the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(30);

enum Said {
    Hint(Hint),
    /// Answered when everything before it is sent.
    Mark(oneshot::Sender<()>),
}

/// See the module.
pub(super) struct Hints {
    /// Marks this process's own notifications, which it need not hear.
    own: String,
    say: mpsc::Sender<Said>,
    heard: broadcast::Sender<Hint>,
    listener: OnceLock<AbortHandle>,
}

impl Drop for Hints {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
    }
}

impl Hints {
    /// Starts the task that sends, on the current runtime; it ends with the value.
    pub(super) fn start(connections: Connections) -> Self {
        let own = format!("{:016x}", fastrand::u64(..));
        let (say, said) = mpsc::channel(WAITING_MAX);
        tokio::spawn(send(connections, own.clone(), said));
        Self { own, say, heard: broadcast::Sender::new(1_024), listener: OnceLock::new() }
    }

    pub(super) fn say(&self, hint: Hint) {
        // Full: somebody looks anyway.
        self.say.try_send(Said::Hint(hint)).ok();
    }

    pub(super) async fn sent(&self, patience: Duration) {
        let (mark, passed) = oneshot::channel();
        let sent = async {
            self.say.send(Said::Mark(mark)).await.ok();
            passed.await.ok();
        };
        tokio::time::timeout(patience, sent).await.ok();
    }

    /// Listens from the first call on.
    pub(super) fn heard(&self, target: &Target, tls: &MakeRustlsConnect) -> broadcast::Receiver<Hint> {
        self.listener.get_or_init(|| {
            let listener =
                Listener { target: target.clone(), tls: tls.clone(), own: self.own.clone(), heard: self.heard.clone() };
            tokio::spawn(listener.run()).abort_handle()
        });
        self.heard.subscribe()
    }
}

async fn send(connections: Connections, own: String, mut said: mpsc::Receiver<Said>) {
    let channel = CHANNEL.to_owned();
    while let Some(first) = said.recv().await {
        let (mut hints, mut marks) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(one) = next {
            match one {
                Said::Hint(hint) if hints.contains(&hint) => {}
                Said::Hint(hint) => hints.push(hint),
                Said::Mark(mark) => marks.push(mark),
            }
            next = if hints.len() < TOGETHER_MAX { said.try_recv().ok() } else { None };
        }
        if !hints.is_empty() {
            let payload = encode(&own, &hints);
            let mut params = Params::default();
            params.one("channel", &channel).one("payload", &payload);
            if let Err(error) = connections.read(&sql::NOTIFY, &params).await {
                tracing::debug!(hints = hints.len(), "{} hints could not be sent: {error}", hints.len());
            }
        }
        for mark in marks {
            // Who waited may have gone.
            mark.send(()).ok();
        }
    }
}

/// The sender, then each run with a mark where it is queued.
fn encode(own: &str, hints: &[Hint]) -> String {
    let mut payload = own.to_owned();
    for hint in hints {
        payload.push(if hint.queued { '+' } else { '-' });
        if let Some(run) = hint.run {
            payload.push_str(&run.0.simple().to_string());
        }
    }
    payload
}

/// What another process said; what does not read is anything.
fn decode(own: &str, payload: &str) -> Vec<Hint> {
    let Some(at) = payload.find(['+', '-']) else { return vec![Hint { run: None, queued: true }] };
    let (sender, hints) = payload.split_at(at);
    if sender == own {
        return Vec::new();
    }
    let one = |part: &str| {
        let (mark, run) = part.split_at(1);
        Hint { run: uuid::Uuid::parse_str(run).ok().map(RunId), queued: mark == "+" }
    };
    hints
        .char_indices()
        .filter(|(_, c)| matches!(c, '+' | '-'))
        .map(|(at, _)| {
            let rest = &hints[at..];
            one(&rest[..rest[1..].find(['+', '-']).map_or(rest.len(), |end| end + 1)])
        })
        .collect()
}

struct Listener {
    target: Target,
    tls: MakeRustlsConnect,
    own: String,
    heard: broadcast::Sender<Hint>,
}

impl Listener {
    async fn run(self) {
        // With jitter: a server that comes back is not met by all at once.
        let pauses = || {
            let backoff = ExponentialBuilder::default().with_min_delay(PAUSE_MIN).with_max_delay(PAUSE_MAX);
            backoff.with_jitter().without_max_times().build()
        };
        let mut pause = pauses();
        loop {
            let listened = tokio::time::Instant::now();
            let ended = self.listen().await;
            let why = ended.err().map_or_else(|| "the server ended the connection".to_owned(), |why| why.to_string());
            tracing::debug!("hints of other processes are not heard for now: {why}");
            if listened.elapsed() > PAUSE_MAX {
                pause = pauses();
            }
            tokio::time::sleep(pause.next().unwrap_or(PAUSE_MAX)).await;
        }
    }

    /// Until the connection ends.
    async fn listen(&self) -> Result<(), NoAnswer> {
        let (client, mut connection) = connections::open(&self.target, &self.tls, CONNECT_PATIENCE).await?;
        let mut asked = pin!(async {
            within(CALL_TIMEOUT, client.batch_execute(&format!("LISTEN {CHANNEL}"))).await?;
            // What was said before is not heard.
            self.heard.send(Hint { run: None, queued: true }).ok();
            pending::<Result<(), NoAnswer>>().await
        });
        loop {
            tokio::select! {
                message = poll_fn(|cx| connection.poll_message(cx)) => match message {
                    Some(Ok(AsyncMessage::Notification(said))) => {
                        for hint in decode(&self.own, said.payload()) {
                            // Nobody may be listening at this moment.
                            self.heard.send(hint).ok();
                        }
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(NoAnswer::Error(error)),
                    None => return Ok(()),
                },
                refused = &mut asked => return refused,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{TOGETHER_MAX, decode, encode};
    use crate::{run::RunId, store::Hint};

    #[test]
    fn what_one_process_says_another_hears_and_itself_does_not() {
        let hints =
            [(true, true), (true, false), (false, true)].map(|(named, queued)| Hint { run: named.then(RunId::new), queued });
        let payload = encode("me", &hints);
        assert_eq!(decode("you", &payload), hints);
        assert_eq!(decode("me", &payload), []);
    }

    #[test]
    fn what_does_not_read_is_a_reason_to_look() {
        for payload in ["", "x", "x+", "x+\u{e4}\u{e4}"] {
            assert_eq!(decode("me", payload), [Hint { run: None, queued: true }], "{payload:?}");
        }
    }

    #[test]
    fn the_most_that_is_sent_at_once_fits_a_notification() {
        let hints = vec![Hint { run: Some(RunId::new()), queued: true }; TOGETHER_MAX];
        assert!(encode("0123456789abcdef", &hints).len() < 8_000);
    }
}
