//! What holds of every row, and each way in which one does not.

use super::{given::*, single::*};
use leasehold::run::*;

fn why(row: &Snapshot, change: impl FnOnce(&mut Snapshot)) -> String {
    let mut row = row.clone();
    change(&mut row);
    row.check().err().unwrap_or_default()
}

/// The change makes of a row that holds one that does not, for this reason.
#[track_caller]
fn breaks(row: &Snapshot, reason: &str, change: impl FnOnce(&mut Snapshot)) {
    assert_eq!(row.check(), Ok(()));
    let said = why(row, change);
    assert!(said.starts_with(reason), "{said:?} instead of {reason:?}");
}

fn waiting() -> Snapshot {
    let mut run = Run::claimed();
    run.reply(&[(NON, true)]);
    run.suspend(&[c(0)], None);
    run.row().clone()
}

fn completed() -> Snapshot {
    let mut run = Run::claimed();
    run.reply(&[(NON, false)]);
    run.act(Act::Stamp(stamp(&c(0), NON, false)));
    run.act(done(0));
    run.act(Act::Complete { output: "Ended.".into(), truncated: false });
    run.row().clone()
}

fn in_doubt() -> Snapshot {
    let (mut run, _) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    run.row().clone()
}

#[test]
fn a_lease_a_reason_and_a_finish_stand_exactly_where_they_belong() {
    let (running, queued, ended) =
        (Run::claimed().row().clone(), Run::born(new_run(Mode::Queue, None, false), false), completed());
    breaks(&running, "a lease stands", |row| row.lease = None);
    breaks(queued.row(), "a lease stands", |row| row.lease = running.lease.clone());
    breaks(&running, "a reason is given", |row| row.reason = Some(Reason::Budget));
    breaks(&in_doubt(), "a reason is given", |row| row.reason = None);
    breaks(&in_doubt(), "the reason is none", |row| row.reason = Some(Reason::Budget));
    breaks(&ended, "a finish time", |row| row.finished_at = None);
    breaks(&running, "a finish time", |row| row.finished_at = Some(at(0)));
    breaks(&running, "no journal", |row| row.sequence = 0);
}

#[test]
fn a_cancel_is_heard_in_every_state() {
    let (running, waits, ended) = (Run::claimed().row().clone(), waiting(), completed());
    breaks(&running, "cancelling without a cancel", |row| row.state = State::Cancelling);
    breaks(&running, "running after a cancel", |row| row.cancel_requested = true);
    breaks(&waits, "a cancel was not heard", |row| row.cancel_requested = true);
    breaks(&ended, "a cancel was not heard", |row| row.cancel_requested = true);
    let queued = Run::born(new_run(Mode::Queue, None, false), false);
    breaks(queued.row(), "a cancel was not heard", |row| row.cancel_requested = true);
    // A doubt waits for its person, cancelled or not; so does a queued run whose write may have happened.
    assert_eq!(why(&in_doubt(), |row| row.cancel_requested = true), "");
    let (mut verifiable, _) = Run::stamped(NON, true);
    verifiable.expire();
    assert_eq!(verifiable.state().0, State::Queued);
    assert_eq!(why(verifiable.row(), |row| row.cancel_requested = true), "");
}

#[test]
fn a_fence_names_a_pending_call_of_an_epoch_that_was_where_something_may_be_in_flight() {
    let (stamped, waits, ended) = (Run::stamped(NON, false).0, waiting(), completed());
    let fence = stamped.row().fence.clone();
    breaks(&waits, "a fence stands", |row| row.fence = fence.clone());
    breaks(&ended, "a fence stands", |row| row.fence = fence.clone());
    breaks(stamped.row(), "a fence of an epoch", |row| row.epoch = 0);
    breaks(stamped.row(), "the fence names no pending", |row| {
        row.turn.as_mut().unwrap().calls[0].outcome = Some(Outcome::Done);
    });
    breaks(stamped.row(), "the fence names no pending", |row| row.turn = None);
    breaks(&in_doubt(), "in doubt without", |row| row.fence = None);
    breaks(&in_doubt(), "in doubt without", |row| row.fence.as_mut().unwrap().effect = IDEM);
}

#[test]
fn a_question_stands_only_while_something_runs() {
    let asks = |row: &mut Snapshot| row.turn.as_mut().unwrap().calls[0].question = Some(3);
    breaks(&waiting(), "a question stands", asks);
    breaks(&in_doubt(), "a question stands", asks);
    assert_eq!(why(Run::stamped(NON, false).0.row(), asks), "");
}

#[test]
fn what_has_ended_left_no_call_open_and_what_waits_waits_for_one() {
    let open = |row: &mut Snapshot| row.turn.as_mut().unwrap().calls[0].outcome = None;
    breaks(&completed(), "ended with a call", open);
    breaks(&waiting(), "waits for nothing", |row| row.turn = None);
    breaks(&waiting(), "waits for nothing", |row| row.turn.as_mut().unwrap().digest = None);
    breaks(&waiting(), "waits for nothing", |row| {
        row.turn.as_mut().unwrap().calls[0].outcome = Some(Outcome::Denied);
    });
    let mut cancelled = Run::claimed();
    cancelled.reply(&[(NON, false)]);
    cancelled.order(bob(), cancel());
    cancelled.act(Act::Settle);
    breaks(cancelled.row(), "ended with a call", open);
    let mut failed = Run::claimed();
    failed.reply(&[(NON, false)]);
    failed.act(Act::Fail { reason: Reason::Budget, detail: "spent".into() });
    assert!(failed.row().has_pending_calls() && failed.row().check().is_ok(), "a redrive continues it");
}
