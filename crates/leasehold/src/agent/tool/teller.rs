//! What a running call says to whoever watches its run just now: how far it is, and lines of a log. A hint: it is never recorded, holds
//! nobody up, and what comes too fast is left out and counted.

use crate::{
    agent::executor::Live,
    limits::{LIVE_BURST, LIVE_CHARS_MAX, LIVE_RATE},
    run::{CallId, RunId},
};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::mpsc::UnboundedSender;

/// How far a call is, in its tool's words.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// So far.
    pub value: f64,
    /// Of so much, where that is known.
    pub total: Option<f64>,
    /// In words.
    pub message: Option<String>,
}

/// The way from one entry of a call to whoever watches. Clones are the same.
#[derive(Clone, Default)]
pub struct Teller(Option<Arc<Way>>);

struct Way {
    run: RunId,
    call: CallId,
    live: UnboundedSender<Live>,
    rate: DefaultDirectRateLimiter,
    left_out: AtomicU64,
}

impl fmt::Debug for Teller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(way) => write!(f, "for call {} of run {}", way.call, way.run),
            None => f.write_str("for nobody"),
        }
    }
}

impl Teller {
    pub(crate) fn new(run: RunId, call: CallId, live: UnboundedSender<Live>) -> Self {
        let rate = RateLimiter::direct(Quota::per_second(LIVE_RATE).allow_burst(LIVE_BURST));
        Self(Some(Arc::new(Way { run, call, live, rate, left_out: AtomicU64::new(0) })))
    }

    /// Tells nobody.
    pub fn nobody() -> Self {
        Self::default()
    }

    /// Says how far the call is. It is made only where it is said.
    pub fn progress(&self, progress: impl FnOnce() -> Progress) {
        self.say(|run, call| {
            let Progress { value, total, message } = progress();
            Live::Progress(run, call, Progress { value, total, message: message.map(|text| cut(&text)) })
        });
    }

    /// Says a line of its log, of this level. It is made only where it is said.
    pub fn log(&self, level: &str, text: impl FnOnce() -> String) {
        self.say(|run, call| Live::Log(run, call, level.to_owned(), cut(&text())));
    }

    fn say(&self, live: impl FnOnce(RunId, CallId) -> Live) {
        let Some(way) = &self.0 else { return };
        if way.rate.check().is_err() {
            way.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        // Nobody listens any more: that is theirs to decide.
        way.live.send(live(way.run, way.call.clone())).ok();
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        let left_out = self.left_out.load(Ordering::Relaxed);
        if left_out > 0 {
            let (run, call) = (self.run, &self.call);
            tracing::info!(%run, %call, left_out, "run {run}: call {call} said {left_out} things too fast to be shown");
        }
    }
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(LIVE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_comes_too_fast_is_left_out_and_what_is_too_long_is_cut() {
        let (live, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let teller = Teller::new(RunId::new(), CallId::of(1, 0), live);
        let long = "ä".repeat(LIVE_CHARS_MAX + 1);
        for _ in 0..10_000 {
            teller.log("info", || long.clone());
        }
        let left_out = teller.0.as_ref().unwrap().left_out.load(Ordering::Relaxed);
        drop(teller);
        let mut count = 0;
        while let Some(Live::Log(_, _, level, text)) = heard.recv().await {
            assert_eq!((level.as_str(), text.chars().count()), ("info", LIVE_CHARS_MAX + 1));
            assert!(text.ends_with('…'));
            count += 1;
        }
        assert!(count >= u64::from(LIVE_BURST.get()) && count < 1_000, "{count}");
        assert_eq!(count + left_out, 10_000);
    }
}
