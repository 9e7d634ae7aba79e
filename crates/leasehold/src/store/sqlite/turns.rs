//! Who writes next in this process. SQLite has one write lock and no queue before it: a writer thread that begins again as soon as
//! it committed could keep a renewal out for long. Here renewals go first, and the writer thread lets every waiting one pass between
//! two of its transactions. Between processes the busy handler's short pauses do the same, without an order.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
struct Waiting {
    renewals: usize,
    writing: bool,
}

/// Shared by the writer thread and the renewers of one store.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<Waiting>,
    changed: Condvar,
}

/// The write lock is this thread's to take, within this process; ends with the value.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
}

impl Turns {
    fn state(&self) -> MutexGuard<'_, Waiting> {
        // Both fields are set in one step each; a panic in between leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until<'a>(&self, state: MutexGuard<'a, Waiting>, ready: impl Fn(&Waiting) -> bool) -> MutexGuard<'a, Waiting> {
        self.changed.wait_while(state, |s| !ready(s)).unwrap_or_else(PoisonError::into_inner)
    }

    /// For the writer thread: after every renewal that waits.
    pub(super) fn writer(&self) -> Turn<'_> {
        let mut state = self.wait_until(self.state(), |s| !s.writing && s.renewals == 0);
        state.writing = true;
        Turn { turns: self }
    }

    /// For a renewal: next.
    pub(super) fn renewal(&self) -> Turn<'_> {
        let mut state = self.state();
        state.renewals += 1;
        let mut state = self.wait_until(state, |s| !s.writing);
        state.renewals -= 1;
        state.writing = true;
        Turn { turns: self }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.state().writing = false;
        self.turns.changed.notify_all();
    }
}
