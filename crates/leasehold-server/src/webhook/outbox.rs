//! Events in the store: one record each, written before it is sent, changed by compare-and-set, taken away a day after its end.

use jiff::{SignedDuration, Timestamp};
use leasehold::{
    run::{Reason, RunId, State},
    store::{Listed, Record, Unavailable},
};
use serde::{Deserialize, Serialize};

/// Records of this kind.
pub(super) const KIND: &str = "webhook";
/// How long an event that was delivered or given up is remembered, so that another process does not write it again.
pub(super) const REMEMBERED: SignedDuration = SignedDuration::from_hours(24);
/// How long delivery is tried.
const TRIED: SignedDuration = SignedDuration::from_hours(3 * 24);
/// The wait before the second attempt, and the longest.
const WAIT_FIRST: SignedDuration = SignedDuration::from_secs(1);
const WAIT_MAX: SignedDuration = SignedDuration::from_hours(1);
/// How long a process has an event for itself: longer than an attempt lasts.
const TAKEN: SignedDuration = SignedDuration::from_secs(20);

/// What happened to a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr, strum::EnumIter)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Event {
    /// It waits for a decision or for values.
    Waiting,
    /// A write may have happened.
    InDoubt,
    /// The runtime does not go on with it.
    Dead,
    /// It has ended.
    Settled,
}

impl Event {
    /// Of a run in a state that needs a person.
    pub(super) fn of(run: &Listed) -> Option<Self> {
        let is = |state: State| run.state == state.as_str();
        if is(State::WaitingForApproval) || is(State::WaitingForInput) {
            Some(Self::Waiting)
        } else if is(State::Dead) && run.reason.as_deref() == Some(Reason::WriteInDoubt.as_str()) {
            Some(Self::InDoubt)
        } else {
            is(State::Dead).then_some(Self::Dead)
        }
    }
}

/// How it ended with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Ended {
    /// The receiver has it.
    Delivered,
    /// It was tried for three days.
    GivenUp,
}

/// An event: ids and words of ours alone, no content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notice {
    pub(super) event: Event,
    pub(super) run: RunId,
    pub(super) state: String,
    pub(super) reason: Option<String>,
    /// When the state began.
    pub(super) at: Timestamp,
    /// `SEQUENCE:HEAD` of the run's chain.
    pub(super) head: Option<String>,
    /// Written down then.
    pub(super) found_at: Timestamp,
    /// Attempts that were begun.
    pub(super) attempts: u32,
    /// Not tried before.
    pub(super) due_at: Timestamp,
    /// Delivered or given up, and when.
    pub(super) ended: Option<(Ended, Timestamp)>,
}

/// The id of an event: the same in every process and for every attempt. A run is in the state anew only after another segment, so its
/// epoch is another; the time tells those apart that one segment's end and a person's order brought about.
pub(super) fn id(event: Event, run: RunId, epoch: u64, at: Timestamp) -> String {
    let event: &str = event.into();
    format!("msg_{}_{event}_{epoch}_{}", run.0.simple(), at.as_millisecond())
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

impl Notice {
    pub(super) fn new(event: Event, run: RunId, state: &str, reason: Option<&str>, at: Timestamp, now: Timestamp) -> Self {
        let (state, reason) = (state.to_owned(), reason.map(str::to_owned));
        Self { event, run, state, reason, at, head: None, found_at: now, attempts: 0, due_at: now, ended: None }
    }

    pub(super) fn read(record: &Record) -> Result<Self, Unavailable> {
        let damaged = |_| Unavailable(format!("the record of event {} does not read", record.key));
        serde_json::from_str(&record.body).map_err(damaged)
    }

    /// As the version after the one that was seen.
    pub(super) fn record(&self, key: &str, version: u64) -> Result<Record, Unavailable> {
        let body = serde_json::to_string(self).map_err(|e| Unavailable(e.to_string()))?;
        Ok(Record { version, ..Record::new(KIND, key, body) })
    }

    /// Taken by this process, for an attempt.
    pub(super) fn taken(&self, now: Timestamp) -> Self {
        Self { attempts: self.attempts.saturating_add(1), due_at: later(now, TAKEN), ..self.clone() }
    }

    /// After an attempt that failed; `asked`: how long the receiver wants to be left alone.
    pub(super) fn failed(&self, now: Timestamp, asked: Option<SignedDuration>, chance: f64) -> Self {
        if later(self.found_at, TRIED) <= now {
            return Self { ended: Some((Ended::GivenUp, now)), ..self.clone() };
        }
        let doubled = WAIT_FIRST * 2_i32.saturating_pow(self.attempts.saturating_sub(1).min(12));
        // Spread over the upper half, so that many do not come back together.
        let wait = doubled.min(WAIT_MAX).mul_f64(0.5 + chance / 2.0);
        let wait = wait.max(asked.unwrap_or_default().min(WAIT_MAX));
        Self { due_at: later(now, wait), ..self.clone() }
    }

    /// After one that came there.
    pub(super) fn delivered(&self, now: Timestamp) -> Self {
        Self { ended: Some((Ended::Delivered, now)), ..self.clone() }
    }

    /// Nobody needs it any more.
    pub(super) fn is_old(&self, now: Timestamp) -> bool {
        self.ended.is_some_and(|(_, at)| later(at, REMEMBERED) <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn notice() -> Notice {
        let run = RunId(uuid::Uuid::from_u128(7));
        Notice::new(Event::InDoubt, run, "dead", Some("write_in_doubt"), at(90), at(100))
    }

    #[test]
    fn the_wait_doubles_up_to_an_hour_and_is_as_long_as_the_receiver_asks() {
        let waits = |chance: f64| -> Vec<i64> {
            let mut notice = notice();
            (0..14)
                .map(|_| {
                    notice = notice.taken(at(100)).failed(at(100), None, chance);
                    notice.due_at.as_second() - 100
                })
                .collect()
        };
        assert_eq!(waits(1.0), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3600, 3600]);
        assert_eq!(waits(0.0)[3..5], [4, 8]);
        let asked = |seconds| notice().taken(at(100)).failed(at(100), Some(SignedDuration::from_secs(seconds)), 0.0).due_at;
        assert_eq!((asked(60), asked(86_400)), (at(160), at(3700)));
    }

    #[test]
    fn an_event_is_given_up_after_three_days_and_forgotten_a_day_later() {
        let days = |n: i64| at(100 + n * 86_400);
        assert_eq!(notice().failed(at(100 + 3 * 86_400 - 1), None, 0.0).ended, None);
        let given_up = notice().failed(days(3), None, 0.0);
        assert_eq!(given_up.ended, Some((Ended::GivenUp, days(3))));
        assert!(!given_up.is_old(at(99 + 4 * 86_400)) && given_up.is_old(days(4)));
        assert!(!notice().is_old(days(400)) && notice().delivered(days(1)).is_old(days(2)));
    }

    #[test]
    fn an_id_has_no_full_stop_and_tells_two_waits_of_a_run_apart() {
        let run = RunId(uuid::Uuid::from_u128(7));
        let one = id(Event::InDoubt, run, 3, at(1));
        assert_eq!(one, "msg_00000000000000000000000000000007_in_doubt_3_1000");
        assert!(one != id(Event::InDoubt, run, 4, at(1)) && one != id(Event::Dead, run, 3, at(1)));
    }

    #[test]
    fn a_record_comes_back_as_it_was_written_and_a_damaged_one_is_named_without_what_it_says() {
        let record = notice().record("k", 4).unwrap();
        assert_eq!((record.version, Notice::read(&record).unwrap()), (4, notice()));
        let error = Notice::read(&Record::new(KIND, "k", "secret")).unwrap_err();
        assert!(error.to_string().contains("event k") && !error.to_string().contains("secret"));
    }
}
