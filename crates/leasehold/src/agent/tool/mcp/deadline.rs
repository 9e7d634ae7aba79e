//! The time that an operation has. It stands still while a person is asked, and what is left of it goes on with the next request of the
//! same call.

use std::time::Duration;
use tokio::{sync::watch, time::Instant};

#[derive(Clone, Copy)]
struct State {
    left: Duration,
    /// None: it stands still.
    runs_since: Option<Instant>,
}

impl State {
    fn left(&self) -> Duration {
        self.left.saturating_sub(self.runs_since.map(|since| since.elapsed()).unwrap_or_default())
    }
}

pub(super) struct Deadline(watch::Sender<State>);

impl Deadline {
    /// That stands still.
    pub(super) fn new(left: Duration) -> Self {
        Self(watch::Sender::new(State { left, runs_since: None }))
    }

    pub(super) fn left(&self) -> Duration {
        self.0.borrow().left()
    }

    /// Runs until what it gives is dropped.
    pub(super) fn runs(&self) -> Switched<'_> {
        self.switched(true)
    }

    /// Stands still until what it gives is dropped.
    pub(super) fn stands_still(&self) -> Switched<'_> {
        self.switched(false)
    }

    fn switched(&self, runs: bool) -> Switched<'_> {
        let did_run = self.0.borrow().runs_since.is_some();
        self.switch(runs);
        Switched { deadline: self, back: did_run }
    }

    fn switch(&self, runs: bool) {
        self.0.send_modify(|state| *state = State { left: state.left(), runs_since: runs.then(Instant::now) });
    }

    /// Ends when it has run out.
    pub(super) async fn has_run_out(&self) {
        let mut changes = self.0.subscribe();
        loop {
            let state = *changes.borrow_and_update();
            let runs_out = async {
                match state.runs_since {
                    Some(_) => tokio::time::sleep(state.left()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = runs_out => return,
                // The sender is this one, which is there.
                Ok(()) = changes.changed() => {}
            }
        }
    }
}

/// As it is switched until this is dropped.
pub(super) struct Switched<'a> {
    deadline: &'a Deadline,
    back: bool,
}

impl Drop for Switched<'_> {
    fn drop(&mut self) {
        self.deadline.switch(self.back);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_counts_what_runs_and_not_what_stands_still() {
        let deadline = Deadline::new(Duration::from_secs(10));
        let hour = Duration::from_secs(3_600);
        tokio::time::sleep(hour).await;
        assert_eq!(deadline.left(), Duration::from_secs(10), "it stands still at first");
        let begun = Instant::now();
        let running = async {
            let _runs = deadline.runs();
            deadline.has_run_out().await;
        };
        let asking = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            let _still = deadline.stands_still();
            tokio::time::sleep(hour).await;
            assert_eq!(deadline.left(), Duration::from_secs(6));
        };
        tokio::join!(running, asking);
        assert_eq!(begun.elapsed(), hour + Duration::from_secs(10));
        assert_eq!(deadline.left(), Duration::ZERO);
    }
}
