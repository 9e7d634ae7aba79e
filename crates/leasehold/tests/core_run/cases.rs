//! Cases by name: each line that exploring the protocol found, and what the core decides about fences, turns and recovery.

use super::{given::*, single::*};
use leasehold::run::*;

// Found by exploring the protocol.

#[test]
fn a_doubt_that_was_given_up_is_not_made_again_by_a_redrive() {
    let (mut run, right) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    assert_eq!(run.order(bob(), resolve(right.epoch, ResolutionKind::Abandon)), ["resolved", "tool_outcome", "settled"]);
    assert_eq!(run.state(), (State::Failed, Some(Reason::Abandoned)));
    run.order(bob(), redrive());
    run.claim();
    assert_eq!(run.cannot(Act::Stamp(stamp(&c(0), NON, false))), "has_outcome");
    assert_eq!(run.call(0).outcome, Some(Outcome::Unknown));
}

#[test]
fn not_landed_sent_twice_with_a_new_doubt_in_between_is_a_stale_doubt() {
    let (mut run, first) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    run.world.seconds += 60;
    run.order(bob(), resolve(first.epoch, ResolutionKind::NotLanded));
    run.claim();
    run.act(Act::Stamp(stamp(&c(0), NON, false)));
    run.act(Act::Doubt { why: "timed out again".into() });
    run.world.seconds += 60;
    assert_eq!(run.refused(Event::Person(bob(), resolve(first.epoch, ResolutionKind::NotLanded))), "stale_doubt");
}

#[test]
fn a_cancel_in_flight_then_an_expiry_with_a_verifiable_fence_is_never_stamped_again_and_ends_cancelled() {
    let (mut run, _) = Run::stamped(NON, true);
    run.order(ann(), cancel());
    assert_eq!(run.expire(), ["lease_expired", "requeued"]);
    assert!(run.row().fence.is_some() && run.row().cancel_requested);
    run.claim();
    assert_eq!(run.state().0, State::Cancelling);
    assert_eq!(run.cannot(restamp(NON, true)), "not_in_state");
    run.act(Act::Doubt { why: "absent, and cancelled".into() });
    run.world.seconds += 60;
    let epoch = run.row().fence.as_ref().unwrap().epoch;
    run.order(bob(), resolve(epoch, ResolutionKind::NotLanded));
    assert_eq!((run.state().0, run.stamps()), (State::Cancelled, 1));
}

#[test]
fn a_cancel_then_a_doubt_then_any_resolution_ends_cancelled() {
    for said in [ResolutionKind::Landed, ResolutionKind::NotLanded, ResolutionKind::Abandon] {
        let (mut run, right) = Run::stamped(NON, false);
        run.order(ann(), cancel());
        run.act(Act::Doubt { why: "timed out".into() });
        run.world.seconds += 60;
        run.order(bob(), resolve(right.epoch, said));
        assert_eq!((run.state().0, run.stamps()), (State::Cancelled, 1));
    }
}

#[test]
fn a_cancel_then_a_doubt_then_a_late_answer_ends_cancelled() {
    for answer in [LateAnswer::Done, LateAnswer::NotApplied, LateAnswer::NotStarted] {
        let (mut run, right) = Run::stamped(NON, false);
        run.order(ann(), cancel());
        run.expire();
        assert_eq!(run.state(), (State::Dead, Some(Reason::WriteInDoubt)));
        run.ok(late(&c(0), right, answer));
        assert_eq!((run.state().0, run.stamps()), (State::Cancelled, 1));
    }
}

#[test]
fn a_cancel_of_a_doubt_is_kept_and_a_cancel_of_a_queued_verify_is_too() {
    let (mut run, right) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    assert_eq!(run.order(ann(), cancel()), ["cancel_requested"]);
    run.ok(late(&c(0), right, LateAnswer::Done));
    assert_eq!(run.state().0, State::Cancelled);

    let (mut run, right) = Run::stamped(NON, true);
    run.expire();
    assert_eq!(run.order(ann(), cancel()), ["cancel_requested"]);
    assert_eq!(run.state().0, State::Queued);
    run.ok(late(&c(0), right, LateAnswer::NotApplied));
    assert_eq!(run.state().0, State::Cancelled);
}

#[test]
fn the_former_holders_answer_counts_while_a_verify_runs() {
    let (mut run, former) = Run::stamped(NON, true);
    run.expire();
    run.claim();
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::Done)), ["tool_outcome"]);
    assert_eq!(run.state().0, State::Running);
    // What the verify found comes too late.
    assert_eq!(run.cannot(restamp(NON, true)), "no_fence");
    assert_eq!(run.cannot(Act::Stamp(stamp(&c(0), NON, true))), "has_outcome");
}

#[test]
fn the_former_holders_answer_counts_while_the_run_is_queued_for_a_verify() {
    let (mut run, former) = Run::stamped(NON, true);
    run.expire();
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::Done)), ["tool_outcome"]);
    run.claim();
    assert_eq!(run.cannot(Act::Stamp(stamp(&c(0), NON, true))), "has_outcome");
}

#[test]
fn the_former_holders_answer_counts_after_not_landed_and_before_the_new_stamp() {
    let (mut run, former) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    run.world.seconds += 60;
    run.order(bob(), resolve(former.epoch, ResolutionKind::NotLanded));
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::Done)), ["tool_outcome"]);
    run.claim();
    assert_eq!(run.cannot(Act::Stamp(stamp(&c(0), NON, false))), "has_outcome");
    assert_eq!(run.stamps(), 1);
}

#[test]
fn a_late_unknown_settles_nothing() {
    let (mut run, former) = Run::stamped(NON, false);
    run.expire();
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::Unknown)), ["late_evidence"]);
    assert_eq!(run.state(), (State::Dead, Some(Reason::WriteInDoubt)));
    assert!(run.row().fence.is_some());
}

#[test]
fn a_repeat_refused_by_a_closed_port_is_unknown_and_not_did_not_happen() {
    let (mut run, _) = Run::stamped(IDEM, false);
    run.act(restamp(IDEM, false));
    let refused = Act::Record(vec![outcome(&c(0), Outcome::NotApplied, Via::Tool)]);
    assert_eq!(run.cannot(refused), "repeat_is_unknown");
    run.act(Act::Retry { why: "unknown".into(), not_before: None });
    let next = run.claim();
    run.act(restamp(IDEM, false));
    run.expire();
    assert_eq!(run.ok(late(&c(0), next, LateAnswer::NotApplied)), ["late_evidence"]);
    assert!(run.row().fence.is_some());
}

#[test]
fn a_record_that_is_sent_again_gives_no_second_result() {
    let (mut run, right) = Run::stamped(NON, false);
    run.act(done(0));
    assert_eq!(run.cannot(done(0)), "has_outcome");
    // Nor when its process believes that it was lost, and offers it once the run is another's.
    run.expire();
    assert!(run.ok(late(&c(0), right, LateAnswer::Done)).is_empty());
}

#[test]
fn a_late_outcome_that_is_sent_again_is_not_journaled_again() {
    for (index, answer) in
        [LateAnswer::Done, LateAnswer::NotApplied, LateAnswer::NotStarted, LateAnswer::Unknown].into_iter().enumerate()
    {
        let (mut run, former) = Run::stamped(NON, true);
        run.expire();
        assert!(!run.ok(late(&c(0), former, answer)).is_empty(), "{index}");
        assert!(run.ok(late(&c(0), former, answer)).is_empty(), "{index}");
    }
}

#[test]
fn a_run_cancelled_while_queued_with_an_idempotent_fence_settles_the_call_as_unknown() {
    let (mut run, _) = Run::stamped(IDEM, false);
    run.expire();
    assert!(run.row().fence.is_some());
    assert_eq!(run.order(ann(), cancel()), ["cancel_requested", "tool_outcome", "settled"]);
    assert_eq!((run.state().0, run.call(0).outcome), (State::Cancelled, Some(Outcome::Unknown)));
}

#[test]
fn a_cancelling_segment_that_inherited_an_idempotent_fence_settles_the_call_as_unknown() {
    let (mut run, _) = Run::stamped(IDEM, false);
    run.expire();
    run.claim();
    run.order(ann(), cancel());
    assert_eq!(run.cannot(restamp(IDEM, false)), "not_in_state");
    run.act(Act::Settle);
    assert_eq!((run.state().0, run.call(0).outcome), (State::Cancelled, Some(Outcome::Unknown)));
}

#[test]
fn a_stamp_whose_trust_window_is_gone_is_recorded_as_not_started_and_is_no_doubt() {
    let (mut run, _) = Run::stamped(NON, false);
    assert_eq!(run.act(Act::Unstamp { call_id: c(0), why: "window gone".into() }), ["write_not_started"]);
    assert_eq!((run.row().fence.is_none(), run.call(0).is_pending()), (true, true));
    run.expire();
    assert_eq!(run.state().0, State::Queued);
    // The same from a process whose lease was gone too.
    let (mut run, former) = Run::stamped(NON, false);
    run.expire();
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::NotStarted)), ["write_not_started", "requeued"]);
    assert_eq!(run.state().0, State::Queued);
}

#[test]
fn an_approved_interactive_run_whose_resume_dies_or_is_deployed_over_goes_on() {
    for deployed in [true, false] {
        let mut run = Run::born(new_run(Mode::Wait, None, false), true);
        run.reply(&[(NON, true)]);
        let digest = run.suspend(&[c(0)], None);
        let decide = Order::Decide { digest, calls: vec![decided(&c(0), true)], grant: Some(grant(9)) };
        run.order(bob(), decide);
        assert_eq!(run.row().lease.as_ref().unwrap().holder, "resume:web-01:4711");
        if deployed {
            run.act(Act::Yield)
        } else {
            run.expire()
        };
        assert_eq!((run.state().0, run.row().next_segment), (State::Queued, SegmentKind::Resume));
        // The decision stands: nobody is asked again.
        run.claim();
        run.act(Act::Stamp(stamp(&c(0), NON, false)));
    }
}

#[test]
fn a_run_that_was_started_with_abandon_stays_abandoned_after_a_suspend() {
    let mut run = Run::born(new_run(Mode::Wait, Some(Recovery::Abandon), false), true);
    run.reply(&[(NON, true)]);
    let digest = run.suspend(&[c(0)], None);
    run.order(bob(), approve(&digest, &[c(0)]));
    run.claim();
    run.expire();
    assert_eq!(run.state(), (State::Dead, Some(Reason::Abandoned)));
}

#[test]
fn an_approve_from_before_an_expiry_and_a_redrive_is_stale_on_the_same_calls() {
    let mut run = Run::claimed();
    run.act(Act::Record(vec![dead_letters(reply(1, &[(NON, true)]))]));
    let before = run.suspend(&[c(0)], Some(30));
    run.world.seconds = 31;
    assert_eq!(run.ok(Event::Clock(Tick::WaitExpired)), ["expired", "dead_lettered"]);
    run.order(bob(), redrive());
    run.claim();
    let after = run.suspend(&[c(0)], None);
    assert_ne!(before, after);
    assert_eq!(run.refused(Event::Person(bob(), approve(&before, &[c(0)]))), "stale_turn");
    run.order(bob(), approve(&after, &[c(0)]));
}

fn dead_letters(recorded: Recorded) -> Recorded {
    match recorded {
        Recorded::Reply { reply, .. } => Recorded::Reply { reply, on_expiry: OnExpiry::DeadLetter },
        other => other,
    }
}

// Fences, turns and recovery, as far as the core decides them.

#[test]
fn the_fence_stands_with_its_key_from_the_stamp_until_the_outcome() {
    let (mut run, right) = Run::stamped(NON, false);
    let fence = run.row().fence.clone().unwrap();
    assert_eq!((fence.epoch, fence.lease_id, fence.attempt, fence.repeat), (right.epoch, right.lease_id, 1, false));
    assert_eq!(fence.idempotency_key, run.row().id.idempotency_key(&c(0)));
    assert_eq!(run.act(done(0)), ["tool_outcome"]);
    assert_eq!(run.row().fence, None);
}

#[test]
fn two_identical_calls_of_a_turn_have_two_keys_and_two_decisions() {
    let mut run = Run::claimed();
    run.reply(&[(NON, true), (NON, true)]);
    let digest = run.suspend(&[c(0), c(1)], None);
    assert_eq!(run.order(bob(), Order::DecidePart { digest: digest.clone(), calls: vec![decided(&c(0), true)] }), ["approval"]);
    let deny = Order::Decide { digest, calls: vec![decided(&c(1), false)], grant: None };
    assert_eq!(run.order(bob(), deny), ["approval", "tool_outcome"]);
    assert_ne!(run.row().id.idempotency_key(&c(0)), run.row().id.idempotency_key(&c(1)));
    run.claim();
    assert_eq!(run.cannot(Act::Stamp(stamp(&c(1), NON, false))), "has_outcome");
    run.act(Act::Stamp(stamp(&c(0), NON, false)));
}

#[test]
fn a_call_id_that_came_before_is_refused_because_its_key_came_before() {
    let (mut run, _) = Run::stamped(NON, false);
    run.act(done(0));
    assert_eq!(run.cannot(Act::Record(vec![reply(1, &[(NON, false)])])), "unknown_call");
}

#[test]
fn after_a_denial_the_same_call_is_a_new_turn_to_which_the_old_decision_does_not_apply() {
    let mut run = Run::claimed();
    run.reply(&[(NON, true)]);
    let old = run.suspend(&[c(0)], None);
    run.order(bob(), Order::Decide { digest: old.clone(), calls: vec![decided(&c(0), false)], grant: None });
    run.claim();
    run.reply(&[(NON, true)]);
    assert_eq!(run.cannot(Act::Stamp(stamp(&call(2, 0), NON, false))), "not_released");
    let new = run.suspend(&[call(2, 0)], None);
    assert_ne!(old, new);
    assert_eq!(run.refused(Event::Person(bob(), approve(&old, &[call(2, 0)]))), "stale_turn");
}

#[test]
fn killed_with_one_of_three_calls_done_and_cancelled_the_others_are_answered_truthfully() {
    let mut run = Run::claimed();
    run.reply(&[(Effect::ReadOnly, false), (IDEM, false), (NON, false)]);
    run.act(done(0));
    run.act(Act::Stamp(stamp(&c(1), IDEM, false)));
    run.order(ann(), cancel());
    run.expire();
    let outcomes: Vec<_> = (0..3).map(|i| run.call(i).outcome.unwrap()).collect();
    assert_eq!(outcomes, [Outcome::Done, Outcome::Unknown, Outcome::NotRun]);
}

#[test]
fn a_turn_of_two_approved_writes_killed_after_the_first_runs_only_the_second() {
    let mut run = Run::claimed();
    run.reply(&[(NON, true), (NON, true)]);
    let digest = run.suspend(&[c(0), c(1)], None);
    run.order(bob(), approve(&digest, &[c(0), c(1)]));
    run.claim();
    run.act(Act::Stamp(stamp(&c(0), NON, false)));
    run.act(done(0));
    run.expire();
    run.claim();
    assert_eq!(run.cannot(Act::Stamp(stamp(&c(0), NON, false))), "has_outcome");
    run.act(Act::Stamp(stamp(&c(1), NON, false)));
}

#[test]
fn an_outcome_that_could_not_be_recorded_is_accepted_late_and_settles_the_doubt() {
    let (mut run, former) = Run::stamped(NON, false);
    run.expire();
    assert_eq!(run.state(), (State::Dead, Some(Reason::WriteInDoubt)));
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::Done)), ["tool_outcome", "requeued"]);
    assert_eq!(run.row().next_segment, SegmentKind::Resume);
    let outcome = run.last_outcome();
    assert_eq!((outcome.via, outcome.late), (Via::LateOutcome, true));
    // Nothing else of that process counts.
    for act in [Act::Heartbeat, done(0), Act::Complete { output: String::new(), truncated: false }, Act::Yield, Act::Settle] {
        assert_eq!(run.refused(Event::Holder(former, act)), "fenced");
    }
}

#[test]
fn totals_are_of_the_whole_run() {
    let mut run = Run::claimed();
    run.reply(&[(Effect::ReadOnly, false)]);
    run.act(done(0));
    run.expire();
    run.claim();
    run.reply(&[]);
    assert_eq!((run.row().rounds, run.row().usage.input_tokens, run.row().usage.output_tokens), (2, 6, 4));
}
