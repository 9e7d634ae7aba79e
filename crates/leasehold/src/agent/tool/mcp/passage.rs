//! The one way out for one call. It opens once, when the connection stands and the lease still holds, and whoever gives up closes it:
//! afterwards it is certain whether a byte of the request may have left.

use super::super::last_check::Gate;
use crate::worker::trust::TrustWindow;
use rmcp::model::{ClientJsonRpcMessage, GetExtensions as _, JsonRpcMessage};
use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

const WAITING: u8 = 0;
const USED: u8 = 1;
const CLOSED: u8 = 2;
const NOT_HELD: u8 = 3;
const REFUSED: u8 = 4;

/// Travels with the request, inside this process.
#[derive(Clone, Debug)]
pub(super) struct Passage(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// A read has none.
    trust: Option<Arc<TrustWindow>>,
    state: AtomicU8,
}

/// What became of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// No byte left, and none will.
    NothingSent,
    /// The lease did not hold any more; no byte left.
    NotHeld,
    /// It arrived, and the server let it in no further: 401 or 403.
    Refused,
    /// It may have arrived.
    MayHaveArrived,
}

impl Passage {
    /// Of a write where there is a lease, else of a read.
    pub(super) fn new(trust: Option<Arc<TrustWindow>>) -> Self {
        Self(Arc::new(Inner { trust, state: AtomicU8::new(WAITING) }))
    }

    /// Lets the request out, once; false: nothing may be sent.
    pub(super) fn open(&self) -> bool {
        let holds = self.0.trust.as_ref().is_none_or(|trust| trust.holds());
        let next = if holds { USED } else { NOT_HELD };
        let opened = self.0.state.compare_exchange(WAITING, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        holds && opened
    }

    /// The answer to it is that it may not be made.
    pub(super) fn refused(&self) {
        // Of a closed one nobody waits for the answer.
        let _ = self.0.state.compare_exchange(USED, REFUSED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whoever waited for the answer gives up: nothing goes out from now on.
    pub(super) fn close(&self) -> Fate {
        match self.0.state.compare_exchange(WAITING, CLOSED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(CLOSED) => Fate::NothingSent,
            Err(NOT_HELD) => Fate::NotHeld,
            Err(REFUSED) => Fate::Refused,
            Err(_) => Fate::MayHaveArrived,
        }
    }

    /// The passage of a request that has one.
    pub(super) fn of(message: &ClientJsonRpcMessage) -> Option<Self> {
        match message {
            JsonRpcMessage::Request(request) => request.request.extensions().get::<Self>().cloned(),
            _ => None,
        }
    }
}

impl Gate for Passage {
    fn may_send(&self) -> bool {
        self.open()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{BootClock as _, ManualClock};
    use std::time::Duration;

    #[test]
    fn it_opens_once_and_never_after_it_was_closed() {
        let passage = Passage::new(None);
        assert!(passage.open());
        assert!(!passage.open(), "the same request again finds it used");
        assert_eq!(passage.close(), Fate::MayHaveArrived);

        let passage = Passage::new(None);
        assert_eq!(passage.close(), Fate::NothingSent);
        assert!(!passage.open(), "what was given up does not go out later");
        assert_eq!(passage.close(), Fate::NothingSent);
    }

    #[test]
    fn it_was_refused_only_where_it_was_sent_and_somebody_waits() {
        let passage = Passage::new(None);
        passage.refused();
        assert_eq!(passage.close(), Fate::NothingSent);
        let passage = Passage::new(None);
        assert!(passage.open());
        passage.refused();
        assert_eq!(passage.close(), Fate::Refused);
        assert!(!passage.open(), "it is not sent again for that");
    }

    #[test]
    fn it_does_not_open_without_a_lease() {
        let clock = ManualClock::new();
        let trust = TrustWindow::new(clock.clone(), Duration::from_secs(60), clock.now());
        let passage = Passage::new(Some(Arc::clone(&trust)));
        trust.lose();
        assert!(!passage.open());
        assert_eq!(passage.close(), Fate::NotHeld);
    }
}
