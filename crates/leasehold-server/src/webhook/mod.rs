//! Tells the operator's URL that a run waits for a person, is in doubt, is dead or has settled.
//!
//! What is to be sent is derived from the store, never from what this process remembers: a sender looks for runs in those states, writes
//! one [record](outbox) for each event before it is sent, and takes a record for a short time by compare-and-set before it sends it. So
//! an event survives the death of every process, several processes share the work, and nothing of it is in the path of a step. After a
//! crash a delivery may come twice, with the same id.
//!
//! Bounds: waiting, doubtful and dead runs are listed whole, by the index of what needs attention. Settled ones are found by an index that
//! has only those of which nobody was told yet, and leave it when their record is there; those that settled before the webhook was
//! first configured are not looked at.

mod deliver;
mod outbox;
mod sender;
mod sign;
mod target;
#[cfg(test)]
mod tests;

use crate::{
    cli::Failure,
    config::{Config, Webhook},
};
use deliver::Delivery;
use leasehold::{Runtime, clock::WallClock};
use sender::Sender;
use sign::Secret;
use std::sync::Arc;
use tokio::{sync::watch, task::JoinHandle};

pub(crate) use outbox::Event;
pub(crate) use target::check_url;

/// The sender of this process.
#[derive(Debug)]
pub(crate) struct Sending {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Sending {
    /// Looks once more, sends what is due, and ends; a little later where the receiver does not answer. What is left is in the store.
    pub(crate) async fn end(self) {
        // The other half lives as long as the task.
        self.stop.send(true).ok();
        if let Err(error) = self.task.await {
            tracing::error!("the sender of the webhook broke: {error}; what it had to send is in the store");
        }
    }
}

/// Starts sending where a webhook is configured: for every process that works or serves. With exit 2 where its secret is not here.
pub(crate) fn start(config: &Config, runtime: &Runtime, clock: Arc<dyn WallClock>) -> Result<Option<Sending>, Failure> {
    let Some(webhook) = &config.webhook else { return Ok(None) };
    let delivery = Delivery::new(webhook, secret(webhook)?).map_err(|why| Failure::usage(format!("[webhook]: {why}")))?;
    let (stop, stopped) = watch::channel(false);
    let sender = Sender::new(runtime.clone(), clock, delivery, webhook.events.clone());
    Ok(Some(Sending { stop, task: tokio::spawn(sender.run(stopped)) }))
}

fn secret(webhook: &Webhook) -> Result<Secret, Failure> {
    let Webhook { secret_env, origin, .. } = webhook;
    let text = std::env::var(secret_env).unwrap_or_default();
    let wrong = |why: &str| {
        let mend = "set it to `whsec_` and the base64 of 24 to 64 random bytes, such as of `openssl rand -base64 32`";
        Failure::usage(format!("{origin}: [webhook]: environment variable {secret_env}: {why}\n  {mend}"))
    };
    if text.trim().is_empty() {
        return Err(wrong("the secret that signs is not set"));
    }
    Secret::parse(text.trim()).map_err(wrong)
}
