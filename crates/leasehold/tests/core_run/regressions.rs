//! What was wrong once, and the edges of rules that are easily lost.

use super::{given::*, single::*};
use leasehold::run::*;
use serde_json::{Map, Value};

#[test]
fn a_late_answer_to_a_failed_run_is_taken_by_its_redrive() {
    let (mut run, former) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    run.world.seconds += 60;
    run.order(bob(), resolve(former.epoch, ResolutionKind::NotLanded));
    run.claim();
    run.act(Act::Fail { reason: Reason::Budget, detail: "spent".into() });
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::Done)), ["late_evidence"]);
    assert_eq!(run.order(bob(), redrive()), ["redriven", "tool_outcome"]);
    let outcome = run.last_outcome();
    assert_eq!((outcome.outcome, outcome.via, outcome.evidence.is_some()), (Outcome::Done, Via::Evidence, true));
    run.claim();
    assert_eq!(run.cannot(Act::Stamp(stamp(&c(0), NON, false))), "has_outcome");
}

/// Stamped by a first process, found absent and stamped by a second, which is in the tool when the first says that it is done.
fn evidence_under_a_second_stamp() -> (Run, Right, Right) {
    let (mut run, first) = Run::stamped(NON, true);
    run.expire();
    let second = run.claim();
    run.act(restamp(NON, true));
    assert_eq!(run.ok(late(&c(0), first, LateAnswer::Done)), ["late_evidence"]);
    (run, first, second)
}

#[test]
fn whatever_would_say_that_a_call_did_not_happen_journals_the_evidence_instead() {
    let taken = |run: &Run| {
        assert_eq!((run.row().fence.clone(), run.call(0).outcome), (None, Some(Outcome::Done)));
        assert_eq!(run.last_outcome().via, Via::Evidence);
    };
    let (mut run, ..) = evidence_under_a_second_stamp();
    run.act(Act::Unstamp { call_id: c(0), why: "window gone".into() });
    taken(&run);
    let (mut run, ..) = evidence_under_a_second_stamp();
    run.act(Act::Record(vec![outcome(&c(0), Outcome::NotApplied, Via::Tool)]));
    taken(&run);
    let (mut run, _, second) = evidence_under_a_second_stamp();
    run.act(Act::Doubt { why: "timed out".into() });
    run.world.seconds += 120;
    run.order(bob(), resolve(second.epoch, ResolutionKind::NotLanded));
    taken(&run);
    let (mut run, ..) = evidence_under_a_second_stamp();
    run.expire();
    run.claim();
    assert_eq!(run.cannot(restamp(NON, true)), "evidence_says_done");
    run.act(Act::Record(vec![Recorded::Evidence(c(0))]));
    taken(&run);
}

#[test]
fn what_landed_twice_is_listed_once_for_each_further_landing() {
    let (mut run, first, second) = evidence_under_a_second_stamp();
    assert_eq!(run.act(done(0)), ["tool_outcome", "duplicate_effect"]);
    run.expire();
    for former in [first, second] {
        assert!(run.ok(late(&c(0), former, LateAnswer::Done)).is_empty());
    }
    assert_eq!(run.row().duplicates, 1);
}

#[test]
fn a_verify_that_found_it_and_the_late_answer_of_that_attempt_are_one_landing() {
    let (mut run, former) = Run::stamped(NON, true);
    run.expire();
    run.claim();
    run.act(Act::Record(vec![outcome(&c(0), Outcome::Done, Via::Verify)]));
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::Done)), ["late_evidence"]);
    assert_eq!(run.row().duplicates, 0);
}

#[test]
fn a_process_that_never_stamped_a_call_changes_nothing_by_speaking_of_it() {
    let (mut run, former) = Run::stamped(NON, true);
    run.expire();
    let stranger = right(former.epoch, 99);
    assert_eq!(run.ok(late(&c(0), stranger, LateAnswer::Done)), ["late_evidence"]);
    assert_eq!(run.call(0).evidence, None);
    run.claim();
    run.act(restamp(NON, true));
}

#[test]
fn a_late_answer_that_contradicts_the_record_is_marked() {
    let (mut run, former) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    run.order(bob(), resolve(former.epoch, ResolutionKind::Landed));
    run.ok(late(&c(0), former, LateAnswer::NotStarted));
    let EntryBody::LateEvidence(evidence) = run.journal.last().unwrap() else { panic!() };
    assert!(evidence.contradicts);
}

#[test]
fn only_a_claim_verifies() {
    let (mut run, _) = Run::stamped(NON, true);
    assert_eq!(run.cannot(restamp(NON, true)), "not_found_absent");
    run.expire();
    run.claim();
    assert_eq!(run.cannot(restamp(NON, false)), "not_found_absent");
    run.act(restamp(NON, true));
    assert_eq!(run.cannot(restamp(NON, true)), "not_found_absent");
    // Not entered after all: what was found before it still holds.
    run.act(Act::Unstamp { call_id: c(0), why: "window gone".into() });
    run.act(restamp(NON, true));
}

#[test]
fn a_call_in_flight_is_not_recorded_as_never_begun_and_a_claim_answers_for_nobody_elses_attempt() {
    let (mut run, _) = Run::stamped(NON, true);
    for said in [Outcome::NotRun, Outcome::Refused, Outcome::Denied] {
        assert_eq!(run.cannot(Act::Record(vec![outcome(&c(0), said, Via::Gate)])), "fence_stands");
    }
    run.expire();
    run.claim();
    for said in [Outcome::NotApplied, Outcome::Done] {
        assert_eq!(run.cannot(Act::Record(vec![outcome(&c(0), said, Via::Tool)])), "not_own_fence");
    }
}

#[test]
fn a_late_answer_takes_its_call_off_the_card_and_the_last_one_ends_the_wait() {
    let (mut run, former) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    run.world.seconds += 60;
    run.order(bob(), resolve(former.epoch, ResolutionKind::NotLanded));
    run.claim();
    let card = run.suspend(&[c(0)], None);
    assert_eq!(run.ok(late(&c(0), former, LateAnswer::Done)), ["tool_outcome", "requeued"]);
    assert_eq!(run.state().0, State::Queued);
    assert_eq!(run.refused(Event::Person(bob(), approve(&card, &[c(0)]))), "not_waiting");
}

#[test]
fn under_four_eyes_the_author_of_an_edit_may_deny_and_not_release() {
    let mut run = Run::born(new_run(Mode::Queue, None, true), false);
    run.claim();
    run.reply(&[(NON, true), (NON, true)]);
    let old = run.suspend(&[c(0), c(1)], None);
    assert_eq!(run.refused(Event::Person(ann(), approve(&old, &[c(0), c(1)]))), "self_approval");
    let other = Order::Decide { digest: old.clone(), calls: vec![edited(&c(0)), decided(&c(1), true)], grant: None };
    assert_eq!(run.refused(Event::Person(bob(), other)), "self_approval");
    let shown = card(WaitKind::Approval, &[c(0), c(1)]);
    run.order(bob(), Order::Edit { digest: old.clone(), card: shown, calls: vec![edited(&c(0))] });
    let new = run.digest();
    assert_eq!(run.refused(Event::Person(bob(), approve(&old, &[c(0), c(1)]))), "stale_turn");
    assert_eq!(run.refused(Event::Person(bob(), approve(&new, &[c(0), c(1)]))), "self_approval");
    run.order(Principal::person("eve"), approve(&new, &[c(0), c(1)]));
}

#[test]
fn a_card_shows_every_call_that_it_is_about() {
    let mut run = Run::claimed();
    run.reply(&[(NON, true), (NON, true)]);
    let partial = Act::Suspend { card: card(WaitKind::Approval, &[c(0)]), deadline: None };
    assert_eq!(run.cannot(partial), "undecided");
}

#[test]
fn an_input_to_a_read_is_no_release_and_an_input_to_a_write_is_one() {
    for (effect, refused) in [(Effect::ReadOnly, None), (NON, Some("machine_may_not_release"))] {
        let mut run = Run::claimed();
        run.reply(&[(effect, false)]);
        run.act(Act::Suspend { card: card(WaitKind::Input, &[c(0)]), deadline: None });
        let submit =
            Order::Submit { digest: run.digest(), call_id: c(0), question: None, values: Some(Map::new()), grant: None };
        match refused {
            Some(code) => assert_eq!(run.refused(Event::Person(robot(), submit)), code),
            None => assert_eq!(run.order(robot(), submit), ["input"]),
        }
    }
}

#[test]
fn a_decision_sent_again_gets_the_same_answer_and_another_hears_who_decided() {
    let mut run = Run::claimed();
    run.reply(&[(NON, true)]);
    let digest = run.suspend(&[c(0)], None);
    run.order(bob(), approve(&digest, &[c(0)]));
    assert!(run.order(bob(), approve(&digest, &[c(0)])).is_empty());
    let deny = Order::Decide { digest, calls: vec![decided(&c(0), false)], grant: None };
    assert_eq!(run.refused(Event::Person(bob(), deny)), "already_decided");
}

#[test]
fn a_redrive_asks_again_for_approvals_that_are_too_old() {
    let mut run = Run::claimed();
    run.reply(&[(NON, true)]);
    let digest = run.suspend(&[c(0)], None);
    run.order(bob(), approve(&digest, &[c(0)]));
    run.claim();
    run.act(Act::Fail { reason: Reason::Budget, detail: "spent".into() });
    run.order(bob(), Order::Redrive { approved_after: at(run.world.seconds + 1), note: None });
    run.claim();
    assert_eq!(run.cannot(Act::Stamp(stamp(&c(0), NON, false))), "not_released");
}

#[test]
fn a_restore_ends_every_right_and_no_epoch_of_the_lost_interval_comes_again() {
    let (mut run, former) = Run::stamped(NON, false);
    assert_eq!(run.order(bob(), Order::Restored), ["in_doubt"]);
    assert_eq!((run.row().epoch, run.row().lease.is_none()), (former.epoch + RESTORE_JUMP, true));
    let mut run = Run::claimed();
    assert_eq!(run.order(bob(), Order::Restored), ["dead_lettered"]);
    assert_eq!(run.refused(Event::Person(bob(), Order::Restored)), "nothing_to_restore");
    run.order(bob(), redrive());
    assert_eq!(run.state().0, State::Queued);
}

#[test]
fn a_not_landed_is_refused_while_the_request_may_still_be_on_its_way() {
    let (mut run, right) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    assert_eq!(run.refused(Event::Person(bob(), resolve(right.epoch, ResolutionKind::NotLanded))), "too_early");
    run.order(bob(), resolve(right.epoch, ResolutionKind::Landed));
    assert_eq!(run.last_outcome().result, Value::from("bob says that this call happened"));
}

#[test]
fn a_verify_is_not_due_before_it_may_be_asked() {
    let mut run = Run::claimed();
    run.reply(&[(NON, false)]);
    let long = StampCall { in_flight_for: std::time::Duration::from_secs(3_600), ..stamp(&c(0), NON, true) };
    run.act(Act::Stamp(long));
    let until = run.row().fence.as_ref().unwrap().in_flight_until;
    run.expire();
    assert_eq!(run.row().due_at, until);
}

/// A write stamped by a first process, said by a person not to have landed, and stamped again by a second, which records this.
fn second_attempt(recorded: Outcome) -> (Run, Right) {
    let (mut run, first) = Run::stamped(NON, false);
    run.expire();
    run.world.seconds += 120;
    run.order(bob(), resolve(first.epoch, ResolutionKind::NotLanded));
    run.claim();
    run.act(Act::Stamp(stamp(&c(0), NON, false)));
    run.act(Act::Record(vec![outcome(&c(0), recorded, Via::Tool)]));
    (run, first)
}

fn contradicts(run: &Run) -> bool {
    let late = run.journal.iter().rev().find_map(|e| if let EntryBody::LateEvidence(late) = e { Some(late) } else { None });
    late.unwrap().contradicts
}

#[test]
fn what_landed_twice_is_listed_however_many_turns_later_its_process_says_so() {
    let (mut run, first) = second_attempt(Outcome::Done);
    for _ in 0..3 {
        run.reply(&[(Effect::ReadOnly, false)]);
        let read = call(run.row().rounds, 0);
        run.act(Act::Record(vec![outcome(&read, Outcome::Done, Via::Tool)]));
    }
    run.act(Act::Complete { output: "Ended.".into(), truncated: false });
    assert_eq!(run.ok(late(&c(0), first, LateAnswer::Done)), ["late_evidence", "duplicate_effect"]);
    assert_eq!((run.row().duplicates, run.row().contradictions, contradicts(&run)), (1, 0, false));
    assert!(run.ok(late(&c(0), first, LateAnswer::Done)).is_empty());
    assert_eq!(run.row().duplicates, 1);
}

#[test]
fn a_word_against_the_record_is_marked_and_counted_after_its_turn_too() {
    for turns in 0..2 {
        let (mut run, first) = second_attempt(Outcome::NotApplied);
        for _ in 0..turns {
            run.reply(&[]);
        }
        assert_eq!(run.ok(late(&c(0), first, LateAnswer::Done)), ["late_evidence"]);
        assert_eq!((run.row().duplicates, run.row().contradictions, contradicts(&run)), (0, 1, true));
        assert!(run.ok(late(&c(0), first, LateAnswer::Done)).is_empty());
        assert_eq!(run.row().contradictions, 1);
    }
    let (mut run, former) = Run::stamped(NON, false);
    run.act(Act::Doubt { why: "timed out".into() });
    run.order(bob(), resolve(former.epoch, ResolutionKind::Landed));
    run.claim();
    run.reply(&[]);
    run.ok(late(&c(0), former, LateAnswer::NotApplied));
    assert_eq!((run.row().contradictions, contradicts(&run)), (1, true));
}

#[test]
fn an_attempt_that_was_taken_for_absent_and_is_done_is_counted_where_nobody_heard_of_the_later_one() {
    for (effect, counted) in [(NON, (0, 1)), (IDEM, (0, 0))] {
        let (mut run, first) = Run::stamped(effect, true);
        run.expire();
        run.world.seconds += 120;
        let second = run.claim();
        run.act(restamp(effect, true));
        run.expire();
        run.world.seconds += 120;
        run.claim();
        run.act(Act::Record(vec![outcome(&c(0), Outcome::Done, Via::Verify)]));
        assert_eq!(run.ok(late(&c(0), first, LateAnswer::Done)), ["late_evidence"]);
        assert_eq!((run.row().duplicates, run.row().contradictions), counted, "{effect}");
        run.ok(late(&c(0), second, LateAnswer::Done));
        // Heard of both, it is a duplicate.
        assert_eq!(run.row().duplicates, u32::from(effect == NON), "{effect}");
    }
}

#[test]
fn what_becomes_known_of_a_write_that_was_given_up_is_counted() {
    for (answer, counted) in [(LateAnswer::Done, 1), (LateAnswer::NotApplied, 1), (LateAnswer::Unknown, 0)] {
        let (mut run, former) = Run::stamped(NON, false);
        run.act(Act::Doubt { why: "timed out".into() });
        run.order(bob(), resolve(former.epoch, ResolutionKind::Abandon));
        run.ok(late(&c(0), former, answer));
        assert_eq!(run.row().contradictions, counted, "{answer}");
    }
}

#[test]
fn the_row_keeps_of_earlier_turns_only_calls_whose_process_may_still_say_something_that_matters() {
    let kept = |run: &Run| run.row().turn.iter().flat_map(|t| &t.earlier).map(|c| c.id.clone()).collect::<Vec<_>>();
    // Each attempt was heard of.
    let (mut run, _) = Run::stamped(NON, false);
    run.act(done(0));
    run.reply(&[]);
    assert_eq!(kept(&run), []);
    // Heard of late.
    let (mut run, first) = second_attempt(Outcome::Done);
    run.ok(late(&c(0), first, LateAnswer::NotApplied));
    run.reply(&[]);
    assert_eq!(kept(&run), []);
    // An idempotent write that is done: a second landing is none, and there is nothing to contradict.
    let (mut run, _) = Run::stamped(IDEM, false);
    run.expire();
    run.claim();
    run.act(restamp(IDEM, false));
    run.act(done(0));
    run.reply(&[]);
    assert_eq!(kept(&run), []);
    // Not heard of: kept over turns, until it is.
    let (mut run, first) = second_attempt(Outcome::Done);
    run.reply(&[]);
    run.reply(&[]);
    assert_eq!(kept(&run), [c(0)]);
    run.ok(late(&c(0), first, LateAnswer::Done));
    run.reply(&[]);
    assert_eq!(kept(&run), []);
    // Known not to have entered.
    let (mut run, first) = Run::stamped(NON, false);
    run.act(Act::Unstamp { call_id: c(0), why: "window gone".into() });
    run.act(Act::Record(vec![outcome(&c(0), Outcome::Refused, Via::Gate)]));
    run.reply(&[]);
    assert_eq!((kept(&run), run.right()), (vec![], first));
}

#[test]
fn a_row_whose_fence_was_taken_away_by_another_hand_is_told_from_one_that_a_person_cleared() {
    let (mut run, first) = Run::stamped(NON, false);
    let emptied = Snapshot { fence: None, ..run.row().clone() };
    assert_eq!((run.row().misses_fence(), emptied.misses_fence().map(|c| c.id.clone())), (None, Some(c(0))));
    run.expire();
    run.world.seconds += 120;
    run.order(bob(), resolve(first.epoch, ResolutionKind::NotLanded));
    assert_eq!(run.row().misses_fence(), None);
    run.claim();
    run.act(Act::Stamp(stamp(&c(0), NON, false)));
    let emptied = Snapshot { fence: None, ..run.row().clone() };
    assert_eq!(emptied.misses_fence().map(|c| c.id.clone()), Some(c(0)));
    run.act(Act::Unstamp { call_id: c(0), why: "window gone".into() });
    assert_eq!(run.row().misses_fence(), None);
}

#[test]
fn an_expiry_of_another_right_or_of_another_end_is_none() {
    let (mut run, right) = Run::stamped(NON, false);
    let end = run.row().lease.clone().unwrap().expires_at;
    let later = LeaseTime { ns: end.ns + 1, ..end.clone() };
    for (right, expires_at) in [
        (Right { epoch: right.epoch + 1, ..right }, end.clone()),
        (Right { lease_id: lease(77), ..right }, end.clone()),
        (right, later),
    ] {
        assert_eq!(run.refused(Event::Clock(Tick::Expire { right, expires_at })), "not_expired");
    }
}

#[test]
fn an_abandoned_run_says_whether_nothing_or_nobody_is_left_to_continue_it() {
    let claimed = Run::claimed();
    let said = |row: Snapshot| {
        let delta = apply(&row, expiry(&row), &now()).unwrap();
        let EntryBody::DeadLettered(dead) = delta.entries.last().unwrap() else { panic!("{delta:?}") };
        assert_eq!(dead.reason, Reason::Abandoned);
        dead.detail.clone()
    };
    let nothing = said(Snapshot { has_request: false, ..claimed.row().clone() });
    let nobody = said(Snapshot { recovery: Recovery::Abandon, ..claimed.row().clone() });
    assert!(nothing.ends_with("there is nothing to continue this run from"), "{nothing}");
    assert!(nobody.ends_with("nobody waits for this run any more"), "{nobody}");
}

#[test]
fn only_epoch_and_lease_together_make_the_holder_and_a_stranger_who_says_done_contradicts_the_record() {
    let (mut run, right) = Run::stamped(NON, false);
    assert_eq!(run.refused(late(&c(0), right, LateAnswer::Done)), "still_holder");
    for stranger in [Right { lease_id: lease(99), ..right }, Right { epoch: right.epoch + 5, ..right }] {
        for (answer, against) in [(LateAnswer::Done, true), (LateAnswer::NotApplied, false)] {
            assert_eq!(run.ok(late(&c(0), stranger, answer)), ["late_evidence"]);
            assert_eq!((contradicts(&run), run.row().contradictions), (against, 0));
        }
    }
}
