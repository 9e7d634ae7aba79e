//! What a worker meets again and again is said when it begins and when it changes, not each time.

use crate::{limits, run::RunId};
use std::{
    collections::{HashMap, HashSet},
    fmt,
};

/// Runs that could not be settled or claimed, with the reason that was said last.
#[derive(Debug, Default)]
pub(crate) struct Unsettled(HashMap<RunId, String>);

impl Unsettled {
    /// True where this is new of the run.
    fn is_new(&mut self, run: RunId, why: &str) -> bool {
        let has_place = self.0.len() < limits::UNSETTLED_SAID_MAX || self.0.contains_key(&run);
        has_place && self.0.insert(run, why.to_owned()).as_deref() != Some(why)
    }

    /// Says it where it is new: `cannot` is what could not be done.
    pub(crate) fn say(&mut self, run: RunId, cannot: &str, why: &str) {
        if self.is_new(run, why) {
            tracing::error!(%run, "run {run} cannot be {cannot}: {why}");
        }
    }

    /// All that could not be settled now: the others have been, or are somebody else's.
    pub(crate) fn are(&mut self, failed: &[(RunId, String)]) {
        let failed: HashSet<RunId> = failed.iter().map(|(run, _)| *run).collect();
        self.0.retain(|run, _| failed.contains(run));
    }
}

/// Something that needs the store, and whether the store answered the last time.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    silent: bool,
}

impl Asked {
    /// The store did not answer: said where it did before.
    pub(crate) fn failed(&mut self, what: &str, why: &impl fmt::Display) {
        if std::mem::replace(&mut self.silent, true) {
            tracing::debug!("{what}: {why}");
        } else {
            tracing::warn!("{what}: {why}; it is tried again, and said when that works");
        }
    }

    /// The store answered: said where it did not before.
    pub(crate) fn answered(&mut self, what: &str) {
        if std::mem::take(&mut self.silent) {
            tracing::warn!("{what}: the store answers again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Asked, Unsettled};
    use crate::{limits::UNSETTLED_SAID_MAX, run::RunId};

    #[test]
    fn what_could_not_be_settled_is_new_once_and_with_each_other_reason_and_again_after_it_was_settled() {
        let (mut unsettled, run, other) = (Unsettled::default(), RunId::new(), RunId::new());
        let failed = |why: &str| vec![(run, why.to_owned())];
        assert!(unsettled.is_new(run, "x"));
        assert!(unsettled.is_new(other, "x"));
        unsettled.are(&failed("x"));
        assert!(!unsettled.is_new(run, "x"));
        assert!(unsettled.is_new(run, "y"));
        assert!(unsettled.is_new(other, "x"), "it was settled in between");
    }

    #[test]
    fn no_more_is_kept_of_what_could_not_be_settled_than_its_bound() {
        let mut unsettled = Unsettled::default();
        let first = RunId::new();
        assert!(unsettled.is_new(first, "x"));
        let new = (0..2 * UNSETTLED_SAID_MAX).filter(|_| unsettled.is_new(RunId::new(), "x")).count();
        assert_eq!(new + 1, UNSETTLED_SAID_MAX);
        assert!(unsettled.is_new(first, "y"), "what is kept may change");
    }

    #[test]
    fn a_store_that_is_silent_is_so_from_its_first_failure_to_its_next_answer() {
        let mut asked = Asked::default();
        for _ in 0..2 {
            asked.failed("a sweep", &"gone");
            assert!(asked.silent);
        }
        asked.answered("a sweep");
        assert!(!asked.silent);
    }
}
