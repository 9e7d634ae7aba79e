//! Edges of rules, each with the value on either side.

use super::{given::*, single::*};
use leasehold::run::*;
use serde_json::{Map, Value};

fn record(id: &CallId, said: Outcome) -> Act {
    Act::Record(vec![outcome(id, said, Via::Tool)])
}

#[test]
fn a_holder_denies_nothing_and_answers_for_nothing_that_nobody_released() {
    let mut run = Run::claimed();
    run.reply(&[(Effect::ReadOnly, false), (Effect::ReadOnly, true)]);
    assert_eq!(run.cannot(record(&c(0), Outcome::Denied)), "not_released");
    assert_eq!(run.cannot(record(&c(1), Outcome::Done)), "not_released");
    assert_eq!(run.cannot(record(&c(1), Outcome::Unknown)), "not_released");
    run.act(record(&c(1), Outcome::Refused));
    run.act(record(&c(0), Outcome::Done));
}

#[test]
fn a_fenced_unknown_is_a_doubt_but_for_an_idempotent_write_of_which_late_evidence_is_there() {
    let second = |effect| {
        let (mut run, first) = Run::stamped(effect, true);
        run.expire();
        run.world.seconds += 120;
        run.claim();
        run.act(restamp(effect, true));
        (run, first)
    };
    for effect in [IDEM, NON] {
        let (mut run, first) = second(effect);
        assert_eq!(run.cannot(record(&c(0), Outcome::Unknown)), "unknown_is_doubt", "{effect}");
        run.ok(late(&c(0), first, LateAnswer::Done));
        if effect == NON {
            assert_eq!(run.cannot(record(&c(0), Outcome::Unknown)), "unknown_is_doubt");
        } else {
            run.act(record(&c(0), Outcome::Unknown));
            assert_eq!((run.last_outcome().outcome, run.last_outcome().via), (Outcome::Done, Via::Evidence));
        }
    }
}

#[test]
fn what_a_process_recorded_it_may_say_again_once_its_right_has_gone() {
    for said in [(Outcome::Done, LateAnswer::Done), (Outcome::NotApplied, LateAnswer::NotApplied)] {
        let (mut run, former) = Run::stamped(NON, false);
        run.act(record(&c(0), said.0));
        run.expire();
        assert!(run.ok(late(&c(0), former, said.1)).is_empty(), "{:?}", said.0);
    }
}

#[test]
fn a_fence_is_the_holders_own_by_epoch_and_lease_together() {
    let unstamp = || Act::Unstamp { call_id: c(0), why: "window gone".into() };
    let (mut run, _) = Run::stamped(NON, false);
    // As after a restore that used an epoch again.
    run.world.row.fence.as_mut().unwrap().lease_id = lease(99);
    assert_eq!(run.cannot(unstamp()), "not_own_fence");
    let (mut run, _) = Run::stamped(NON, false);
    run.world.row.fence.as_mut().unwrap().epoch = 99;
    assert_eq!(run.cannot(unstamp()), "not_own_fence");
}

#[test]
fn a_stamp_is_found_by_epoch_and_lease_together() {
    let (run, right) = Run::stamped(NON, false);
    let call = run.call(0);
    assert!(call.stamp_of(right.epoch, right.lease_id).is_some());
    assert!(call.stamp_of(right.epoch + 1, right.lease_id).is_none());
    assert!(call.stamp_of(right.epoch, lease(99)).is_none());
    let mut call = call.clone();
    assert!(call.stamp_of_mut(right.epoch, right.lease_id).is_some());
    assert!(call.stamp_of_mut(right.epoch + 1, right.lease_id).is_none());
    assert!(call.stamp_of_mut(right.epoch, lease(99)).is_none());
}

#[test]
fn a_retry_spends_a_requeue_and_is_due_after_its_backoff_or_later_where_that_is_asked_for() {
    let seconds = |run: &Run| run.row().due_at.duration_since(at(run.world.seconds)).as_secs();
    let mut run = Run::claimed();
    run.act(Act::Retry { why: "503".into(), not_before: None });
    assert_eq!((run.row().requeues, run.row().next_segment), (1, SegmentKind::Worker));
    assert!((2..=5).contains(&seconds(&run)), "{}", seconds(&run));
    let mut run = Run::claimed();
    let later = at(run.world.seconds + 60);
    run.act(Act::Retry { why: "503".into(), not_before: Some(later) });
    assert_eq!(run.row().due_at, later);
    let mut run = Run::claimed();
    run.reply(&[(NON, true)]);
    let digest = run.suspend(&[c(0)], None);
    run.order(bob(), approve(&digest, &[c(0)]));
    run.claim();
    run.act(Act::Retry { why: "503".into(), not_before: None });
    assert_eq!(run.row().next_segment, SegmentKind::Resume, "what a person released stays that");
}

#[test]
fn two_landings_that_were_heard_of_late_are_one_duplicate_whatever_takes_the_evidence() {
    let (mut run, first) = Run::stamped(NON, true);
    let mut again = || {
        run.expire();
        run.world.seconds += 120;
        let right = run.claim();
        run.act(restamp(NON, true));
        right
    };
    let second = again();
    again();
    run.ok(late(&c(0), first, LateAnswer::Done));
    assert_eq!(run.ok(late(&c(0), second, LateAnswer::Done)), ["late_evidence", "duplicate_effect"]);
    run.act(Act::Unstamp { call_id: c(0), why: "window gone".into() });
    assert_eq!((run.last_outcome().via, run.row().duplicates), (Via::Evidence, 1));
}

#[test]
fn a_write_that_was_taken_for_absent_is_closed_as_unknown_all_the_same() {
    let (mut run, first) = Run::stamped(NON, false);
    run.expire();
    run.world.seconds += 120;
    run.order(bob(), resolve(first.epoch, ResolutionKind::NotLanded));
    run.order(bob(), cancel());
    assert_eq!((run.state().0, run.last_outcome().outcome), (State::Cancelled, Outcome::Unknown));
}

#[test]
fn a_question_is_answered_by_its_number_once() {
    let (mut run, _) = Run::stamped(NON, false);
    let question = run.row().sequence;
    let body = body::Question { call_id: c(0), prompt: "which?".into(), schema: Value::Null };
    run.act(Act::Question(body));
    let answer = |question| Order::Answer { call_id: c(0), question, values: Some(Map::new()) };
    assert_eq!(run.refused(Event::Person(bob(), answer(question + 1))), "no_question");
    run.order(bob(), answer(question));
    assert_eq!(run.refused(Event::Person(bob(), answer(question))), "no_question");
}

/// A run whose write `c(0)` has asked; under four eyes where so said. Gives the question.
fn asking(effect: Effect, second_approver: bool) -> (Run, u64) {
    let mut run = Run::born(new_run(Mode::Queue, None, second_approver), false);
    run.claim();
    run.reply(&[(effect, false)]);
    if effect.is_write() {
        run.act(Act::Stamp(stamp(&c(0), effect, false)));
    }
    run.world.seconds += 5;
    let question = run.row().sequence;
    run.act(Act::Question(body::Question { call_id: c(0), prompt: "which?".into(), schema: Value::Null }));
    assert_eq!(run.row().questions().map(|(call, question)| (&call.id, question)).collect::<Vec<_>>(), [(&c(0), question)]);
    assert_eq!(run.row().since, at(run.world.seconds), "somebody waits for a person since then");
    (run, question)
}

fn answered(question: u64, values: Option<Map<String, Value>>) -> Order {
    Order::Answer { call_id: c(0), question, values }
}

#[test]
fn a_question_ends_with_the_entry_of_the_call_that_asked_it() {
    type End = fn(&mut Run);
    let expired: End = |run| _ = run.expire();
    let cancelled: End = |run| _ = run.order(bob(), cancel());
    let ends: [(&str, Effect, End); 9] = [
        ("its lease ended", Effect::ReadOnly, expired),
        ("its lease ended, in a write", IDEM, expired),
        ("its lease ended, in doubt", NON, expired),
        ("its process shut down", IDEM, |run| _ = run.act(Act::Yield)),
        ("its tool does not know", NON, |run| _ = run.act(Act::Doubt { why: "timed out".into() })),
        ("entered anew", IDEM, |run| _ = run.act(restamp(IDEM, false))),
        ("not started", NON, |run| _ = run.act(Act::Unstamp { call_id: c(0), why: "no time left".into() })),
        ("done", NON, |run| _ = run.act(done(0))),
        ("cancelled", NON, cancelled),
    ];
    for (how, effect, end) in ends {
        let (mut run, question) = asking(effect, false);
        end(&mut run);
        assert_eq!(run.row().questions().next(), None, "{how}");
        assert!(run.call(0).question.is_none() || run.state().0 == State::Cancelling, "{how}");
        let refused = run.refused(Event::Person(bob(), answered(question, Some(Map::new()))));
        assert!(["no_question", "not_in_state", "has_outcome"].contains(&refused), "{how}: {refused}");
        if run.state().0 == State::Queued {
            run.claim();
            assert_eq!(run.refused(Event::Person(bob(), answered(question, None))), "no_question", "{how}");
        }
    }
    let (mut run, first) = asking(NON, false);
    let since = run.row().since;
    run.world.seconds += 5;
    run.act(Act::Question(body::Question { call_id: c(0), prompt: "or?".into(), schema: Value::Null }));
    assert_eq!((run.refused(Event::Person(bob(), answered(first, None))), run.row().since), ("no_question", since));
    run.order(bob(), answered(first + 1, None));
}

#[test]
fn who_may_not_release_a_write_may_not_answer_it_and_may_decline() {
    for (effect, by, second_approver, refused) in [
        (NON, robot(), false, Some("machine_may_not_release")),
        (IDEM, robot(), true, Some("machine_may_not_release")),
        (NON, ann(), true, Some("self_approval")),
        (NON, ann(), false, None),
        (IDEM, bob(), true, None),
        (Effect::ReadOnly, robot(), true, None),
        (Effect::ReadOnly, ann(), true, None),
    ] {
        for values in [Some(Map::new()), None] {
            let (mut run, question) = asking(effect, second_approver);
            let answers = Event::Person(by.clone(), answered(question, values.clone()));
            match refused.filter(|_| values.is_some()) {
                Some(code) => assert_eq!(run.refused(answers), code),
                None => assert_eq!(run.ok(answers), ["answered"]),
            }
        }
    }
}

#[test]
fn a_redrive_keeps_an_approval_of_its_limit_and_asks_again_for_an_older_one() {
    for (older, kept) in [(0, true), (-1, true), (1, false)] {
        let mut run = Run::claimed();
        run.reply(&[(NON, true)]);
        let digest = run.suspend(&[c(0)], None);
        run.order(bob(), approve(&digest, &[c(0)]));
        let approved = run.call(0).verdict.as_ref().unwrap().at;
        run.claim();
        run.act(Act::Fail { reason: Reason::Budget, detail: "spent".into() });
        let approved_after = approved + jiff::SignedDuration::from_secs(older);
        run.order(bob(), Order::Redrive { approved_after, note: None });
        assert_eq!(run.call(0).verdict.is_some(), kept, "{older}");
    }
}

#[test]
fn a_restored_dead_run_has_been_dead_since_it_was_and_any_other_since_now() {
    for dead in [true, false] {
        let mut run = Run::claimed();
        if dead {
            run.reply(&[(NON, false)]);
            run.act(Act::Stamp(stamp(&c(0), NON, false)));
            run.act(Act::Doubt { why: "timed out".into() });
        }
        let before = run.row().since;
        run.world.seconds += 500;
        run.order(bob(), Order::Restored);
        assert_eq!(run.row().since == before, dead);
    }
}

#[test]
fn an_edit_carries_its_arguments() {
    let arguments = Map::from_iter([("title".to_owned(), Value::from("new"))]);
    let edit = DecideCall::edit(c(0), arguments.clone());
    assert_eq!((edit.approved, edit.arguments), (true, Some(arguments)));
}

#[test]
fn reasons_of_the_agent_are_those_of_failed_and_the_runtimes_those_of_dead() {
    use Reason::{
        Abandoned, Budget, DecisionExpired, ModelAuth, Refused, Restored, RetriesExhausted, Unreadable, WriteInDoubt,
    };
    for reason in [WriteInDoubt, RetriesExhausted, Unreadable, DecisionExpired, Restored] {
        assert!(reason.belongs_to(State::Dead) && !reason.belongs_to(State::Failed), "{reason}");
    }
    for reason in [Budget, ModelAuth, Refused] {
        assert!(!reason.belongs_to(State::Dead) && reason.belongs_to(State::Failed), "{reason}");
    }
    assert!(Abandoned.belongs_to(State::Dead) && Abandoned.belongs_to(State::Failed));
    assert!(!Budget.belongs_to(State::Completed) && !Restored.belongs_to(State::Queued));
}

#[test]
fn a_right_is_held_by_state_epoch_and_lease_together() {
    let beat = |row: &Snapshot, right: Right| apply(row, Event::Holder(right, Act::Heartbeat), &now()).map(|_| ());
    let run = Run::claimed();
    let right = run.right();
    assert_eq!(beat(run.row(), right), Ok(()));
    let other_lease = Right { lease_id: lease(99), ..right };
    let other_epoch = Right { epoch: right.epoch + 1, ..right };
    for wrong in [other_lease, other_epoch] {
        assert_eq!(beat(run.row(), wrong), Err(Rejection::Fenced), "{wrong:?}");
    }
    let mut dead = run.row().clone();
    dead.state = State::Dead;
    assert_eq!(beat(&dead, right), Err(Rejection::Fenced));
}

#[test]
fn only_what_leaves_row_journal_and_lease_alone_is_unchanged() {
    let run = Run::claimed();
    let delta = |act| apply(run.row(), Event::Holder(run.right(), act), &now()).unwrap();
    assert!(!delta(Act::Heartbeat).is_unchanged(), "it extends the lease");
    assert!(!delta(Act::Yield).is_unchanged());
    let cancelling = apply(run.row(), Event::Person(bob(), cancel()), &now()).unwrap();
    assert!(!cancelling.is_unchanged());
    assert!(apply(&cancelling.next, Event::Person(bob(), cancel()), &now()).unwrap().is_unchanged());
}

#[test]
fn a_run_has_started_with_its_first_grant_and_not_before() {
    let claimed_at_birth = birth(new_run(Mode::Wait, None, false), Some(grant(1)), &now()).next;
    assert_eq!(claimed_at_birth.started_at, Some(now().wall));
    assert_eq!(birth(new_run(Mode::Queue, None, false), None, &now()).next.started_at, None);
    assert!(Run::claimed().row().started_at.is_some());
}

#[test]
fn another_attempt_is_another_lease_also_where_a_restore_used_the_epoch_again() {
    for (others, contradictions) in [(true, 0), (false, 1)] {
        let (mut run, former) = Run::stamped(NON, false);
        run.act(Act::Doubt { why: "timed out".into() });
        run.order(bob(), resolve(former.epoch, ResolutionKind::Landed));
        if others {
            let again = Stamp {
                epoch: former.epoch,
                lease_id: lease(99),
                entered: true,
                late: Vec::new(),
                asked: false,
                repeat: false,
            };
            run.world.row.turn.as_mut().unwrap().calls[0].stamps.push(again);
        }
        // It did not happen by this attempt: a contradiction only where there was no other.
        run.ok(late(&c(0), former, LateAnswer::NotApplied));
        assert_eq!(run.row().contradictions, contradictions);
    }
}
