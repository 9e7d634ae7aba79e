//! A model within the operator's limits: replies at once, and requests in a minute.
//!
//! Guarantees: over all agents of this process that share it, no more replies are under way than allowed, and no minute sees more
//! requests than allowed. Who waits is served in turn; waiting is bounded, takes nothing when it is dropped, and ends as
//! [`ModelErrorClass::Busy`], which is no failure of the model and no attempt at it.

use super::{Model, ModelError, ModelErrorClass, ModelRequest, Reply};
use crate::limits;
use async_trait::async_trait;
use governor::{
    DefaultDirectRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use std::{num::NonZeroU32, sync::Arc};
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

/// What a model may be asked by one process; none: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelLimits {
    /// Replies under way at once.
    pub max_concurrency: Option<NonZeroU32>,
    /// Requests in any minute, spread evenly over it.
    pub requests_per_minute: Option<NonZeroU32>,
}

/// A model within limits.
pub struct Limited {
    model: Arc<dyn Model>,
    places: Option<Semaphore>,
    /// Locked by whoever is next, so that the others wait in turn.
    pace: Option<Mutex<DefaultDirectRateLimiter>>,
}

impl Limited {
    /// This model within these limits.
    pub fn new(model: Arc<dyn Model>, limits: ModelLimits) -> Self {
        let places = |n: NonZeroU32| Semaphore::new(usize::try_from(n.get()).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS));
        // A burst beside the even flow would let one minute see twice the limit.
        let pace = |n| Mutex::new(RateLimiter::direct(Quota::per_minute(n).allow_burst(NonZeroU32::MIN)));
        Self { model, places: limits.max_concurrency.map(places), pace: limits.requests_per_minute.map(pace) }
    }

    /// Waits for a place and then for the pace, so that who is dropped has taken nothing.
    async fn place(&self) -> Option<SemaphorePermit<'_>> {
        let place = match &self.places {
            // It is never closed.
            Some(places) => places.acquire().await.ok(),
            None => None,
        };
        if let Some(pace) = &self.pace {
            let pace = pace.lock().await;
            while let Err(early) = pace.check() {
                tokio::time::sleep(early.wait_time_from(DefaultClock::default().now())).await;
            }
        }
        place
    }
}

#[async_trait]
impl Model for Limited {
    fn name(&self) -> &str {
        self.model.name()
    }

    async fn reply(&self, request: ModelRequest) -> Result<Reply, ModelError> {
        let Ok(_place) = tokio::time::timeout(limits::MODEL_WAIT_MAX, self.place()).await else {
            let detail = format!("no place within {:?}: its limits in this process are used up", limits::MODEL_WAIT_MAX);
            return Err(ModelError { class: ModelErrorClass::Busy, detail, retry_after: None });
        };
        self.model.reply(request).await
    }
}
