//! The last look at the right to write: after the connection stands, before the first byte of the request. Finding a name and
//! connecting take time, and the trust window goes on meanwhile. The other half is `WritePermit::check` before connecting.

use crate::worker::trust::TrustWindow;
use futures::future::BoxFuture;
use std::{
    error::Error,
    sync::Arc,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

/// Asked once for each connection, when it stands.
pub(super) trait Gate: Send + Sync {
    /// Whether the request may go out.
    fn may_send(&self) -> bool;
}

impl Gate for TrustWindow {
    fn may_send(&self) -> bool {
        self.holds()
    }
}

tokio::task_local! {
    /// The gate of the call whose connection is being made. The client has no pool, so it connects in the caller's task.
    pub(super) static GATE: Arc<dyn Gate>;
}

/// The window closed while the connection was made; nothing was sent.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the lease on this run is no longer certain to hold; the connection was closed before anything was sent")]
pub(super) struct ClosedMeanwhile;

/// Whether an error of the client is, or comes from, this check.
pub(super) fn is_closed_meanwhile(error: &reqwest::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.is::<ClosedMeanwhile>() {
            return true;
        }
        source = cause.source();
    }
    false
}

/// Wraps the client's connector.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastCheck;

impl<S> Layer<S> for LastCheck {
    type Service = Checked<S>;
    fn layer(&self, inner: S) -> Checked<S> {
        Checked { inner }
    }
}

/// A connector that gives no connection to a call whose gate is closed.
#[derive(Clone, Debug)]
pub(super) struct Checked<S> {
    inner: S,
}

type BoxError = Box<dyn Error + Send + Sync>;

impl<S, R> Service<R> for Checked<S>
where
    S: Service<R, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: Send,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let connecting = self.inner.call(request);
        Box::pin(async move {
            let connection = connecting.await?;
            match GATE.try_with(|gate| gate.may_send()) {
                Ok(false) => Err(ClosedMeanwhile.into()),
                // A read has no gate.
                Ok(true) | Err(_) => Ok(connection),
            }
        })
    }
}
