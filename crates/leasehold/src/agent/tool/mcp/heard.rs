//! What a server says while its calls run: how far one is, and lines of its log. It goes to whoever watches the run, in the server's words
//! without our secrets, bounded by the call's [`Teller`]; nothing of it is recorded.
//!
//! A line of a log does not say which call it belongs to. Runs of different people share a connection, so a line is shown only while one
//! call alone is under way on it, and none was given up on it that may go on talking; any other belongs to nobody here.
#![expect(deprecated, reason = "the protocol drops its log for standard error; servers write to it still")]

use super::mask::Mask;
use crate::agent::tool::{Progress, Teller};
use rmcp::{
    RoleClient,
    model::{
        ClientRequest, LoggingLevel, LoggingMessageNotificationParam, ProgressNotificationParam, ProgressToken,
        RequestMetaObject, SetLevelRequest, SetLevelRequestParams,
    },
    service::PeerRequestOptions,
};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// A line of a server's log.
pub(super) type Line = LoggingMessageNotificationParam;

/// From the level on that is shown, of everything on a connection. Nobody waits for the answer: it is a wish.
pub(super) async fn ask_for_log(peer: &rmcp::Peer<RoleClient>) {
    let request = SetLevelRequest::new(SetLevelRequestParams::new(LoggingLevel::Info));
    let asked = peer.send_cancellable_request(ClientRequest::SetLevelRequest(request), PeerRequestOptions::no_options()).await;
    if let Err(error) = asked {
        tracing::debug!(%error, "an MCP server was not asked for its log");
    }
}

/// The same of one call, which is how it is said since 2026-07-28.
pub(super) fn ask_for_log_with(meta: &mut RequestMetaObject) {
    meta.set_log_level(LoggingLevel::Info);
}

/// Where the calls of one connection are heard.
#[derive(Clone, Debug, Default)]
pub(super) struct Heard {
    mask: Mask,
    calls: Arc<Mutex<HashMap<ProgressToken, Teller>>>,
    was_given_up: Arc<AtomicBool>,
}

/// One call under way; dropped, it is heard no more.
pub(super) struct Listening {
    heard: Heard,
    token: ProgressToken,
    is_answered: bool,
}

impl Listening {
    /// The server has ended the call.
    pub(super) fn answered(mut self) {
        self.is_answered = true;
    }
}

impl Heard {
    pub(super) fn new(mask: Mask) -> Self {
        Self { mask, calls: Arc::default(), was_given_up: Arc::default() }
    }

    /// For another connection of the same server.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.mask.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ProgressToken, Teller>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call with this token of ours is under way.
    pub(super) fn listen(&self, token: &ProgressToken, teller: Teller) -> Listening {
        self.lock().insert(token.clone(), teller);
        Listening { heard: self.clone(), token: token.clone(), is_answered: false }
    }

    pub(super) fn progress(&self, said: &ProgressNotificationParam) {
        let Some(teller) = self.lock().get(&said.progress_token).cloned() else { return };
        teller.progress(|| Progress {
            value: said.progress,
            total: said.total,
            message: said.message.as_deref().map(|message| self.mask.said(message)),
        });
    }

    pub(super) fn log(&self, said: &Line) {
        let teller = {
            let calls = self.lock();
            match calls.values().next() {
                Some(teller) if calls.len() == 1 && !self.was_given_up.load(Ordering::Acquire) => teller.clone(),
                _ => return,
            }
        };
        let level = match said.level {
            // Not asked for.
            LoggingLevel::Debug => return,
            LoggingLevel::Info | LoggingLevel::Notice => "info",
            LoggingLevel::Warning => "warning",
            LoggingLevel::Error | LoggingLevel::Critical | LoggingLevel::Alert | LoggingLevel::Emergency => "error",
        };
        teller.log(level, || match &said.data {
            Value::String(text) => self.mask.said(text),
            other => self.mask.said(&other.to_string()),
        });
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.heard.lock().remove(&self.token);
        if !self.is_answered {
            self.heard.was_given_up.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::executor::Live,
        run::{CallId, RunId},
    };
    use rmcp::model::NumberOrString;
    use serde_json::json;

    #[test]
    fn a_line_belongs_to_the_one_call_that_runs_and_progress_to_its_own() {
        let mut mask = Mask::default();
        mask.add("sk-secret-1");
        let heard = Heard::new(mask);
        let (live, mut said) = tokio::sync::mpsc::unbounded_channel();
        let token = |n| ProgressToken(NumberOrString::Number(n));
        let line = |text: &str| serde_json::from_value(json!({ "level": "warning", "data": text })).unwrap();
        let step = |n| ProgressNotificationParam::new(token(n), 1.0).with_message("with sk-secret-1");
        let teller = |n| Teller::new(RunId::new(), CallId::of(1, n), live.clone());
        heard.log(&line("to nobody"));
        let one = heard.listen(&token(1), teller(1));
        heard.log(&line("about sk-secret-1"));
        let two = heard.listen(&token(2), teller(2));
        heard.log(&line("to whom?"));
        heard.progress(&step(2));
        heard.progress(&step(3));
        two.answered();
        heard.progress(&step(2));
        heard.log(&line("again"));
        drop(one);
        let _three = heard.listen(&token(3), teller(3));
        heard.log(&line("of a call that was given up?"));
        let mut all = Vec::new();
        while let Ok(live) = said.try_recv() {
            all.push(match live {
                Live::Log(_, call, level, text) => format!("{call} {level} {text}"),
                Live::Progress(_, call, progress) => format!("{call} {} {}", progress.value, progress.message.unwrap()),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(all, ["t1c1 warning about ***", "t1c2 1 with ***", "t1c1 warning again"]);
    }
}
