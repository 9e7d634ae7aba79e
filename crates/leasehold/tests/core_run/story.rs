//! The journal folded.

use super::{given::*, single::*};
use leasehold::run::*;
use serde_json::{Map, Value, json};

fn entry(sequence: u64, body: EntryBody) -> Entry {
    let holder = Some(format!("worker:{sequence}"));
    let write_id = WriteId(uuid::Uuid::nil());
    Entry { sequence, at: at(sequence.cast_signed()), epoch: sequence, holder, write_id, mac: None, body }
}

fn entries(bodies: &[EntryBody]) -> Vec<Entry> {
    (0..).zip(bodies).map(|(sequence, body)| entry(sequence, body.clone())).collect()
}

fn story(run: &Run) -> Story {
    Story::of(&entries(&run.journal))
}

#[test]
fn a_journal_folds_to_its_request_its_turns_and_what_became_of_each_call() {
    let (mut run, right) = Run::stamped(NON, false);
    let before = story(&run);
    assert_eq!((before.request.is_some(), before.turns.len(), before.turns[0].calls.as_slice()), (true, 1, &[c(0)][..]));
    let stamp = &before.calls[&c(0)].stamps[0];
    assert_eq!((stamp.attempt, stamp.entered, stamp.epoch), (1, true, before.next - 1));
    assert!(before.calls[&c(0)].was_entered() && before.calls[&c(0)].outcome.is_none());
    run.act(done(0));
    let after = story(&run);
    assert_eq!(after.calls[&c(0)].outcome.as_ref().map(|o| (o.outcome, o.via)), Some((Outcome::Done, Via::Tool)));
    run.act(Act::Complete { output: "Ended.".into(), truncated: false });
    let end = story(&run);
    assert_eq!((end.output.as_deref(), end.end.map(|e| e.state)), (Some("Ended."), Some(State::Completed)));
    assert_eq!(right.epoch, 1);
}

#[test]
fn an_entry_is_folded_once_however_often_it_is_fed_and_the_next_one_continues() {
    let (mut run, _) = Run::stamped(IDEM, false);
    run.act(restamp(IDEM, false));
    let all = entries(&run.journal);
    let mut story = Story::default();
    for upto in 0..all.len() {
        for entry in &all[..=upto] {
            story.fold(entry);
        }
        assert_eq!(story.next, upto as u64 + 1);
    }
    assert_eq!(story, Story::of(&all));
    assert_eq!((story.calls[&c(0)].stamps.len(), story.turns.len()), (2, 1));
}

#[test]
fn a_stamp_that_was_not_used_is_no_entry() {
    let (mut run, _) = Run::stamped(NON, false);
    run.act(Act::Unstamp { call_id: c(0), why: "window gone".into() });
    let story = story(&run);
    assert!(!story.calls[&c(0)].was_entered() && !story.calls[&c(0)].stamps[0].entered);
}

#[test]
fn a_call_goes_where_its_newest_stamp_says_and_else_where_its_card_says() {
    let (run, _) = Run::stamped(NON, false);
    let mut call = story(&run).calls[&c(0)].clone();
    let newest = call.stamps[0].clone();
    call.stamps.push(CallStamped { endpoint: "POST http://far/2".into(), ..newest.clone() });
    assert_eq!(call.sent_to(), Some("POST http://far/2"));
    call.stamps.push(CallStamped { endpoint: String::new(), ..newest });
    assert_eq!(call.sent_to(), None);
    call.card = card(WaitKind::Approval, &[c(0)]).calls.first().cloned();
    let of_card = call.card.as_ref().map(|card| card.tool.endpoint.clone());
    assert_eq!(call.sent_to().map(str::to_owned), of_card);
    assert!(of_card.is_some_and(|endpoint| !endpoint.is_empty()));
}

#[test]
fn the_same_call_entered_before_is_found_by_tool_and_arguments_alone() {
    let mut run = Run::claimed();
    run.reply(&[(NON, false), (NON, false)]);
    let arguments = |story: &Story, index| story.calls[&c(index)].arguments();
    let fresh = story(&run);
    let (tool, same) = (fresh.calls[&c(0)].asked.tool.clone(), arguments(&fresh, 0));
    assert_eq!(arguments(&fresh, 1), same, "the two calls ask for the same");
    assert!(fresh.entered_before(&c(1), &tool, &same).is_none(), "nothing was entered");
    run.act(Act::Stamp(stamp(&c(0), NON, false)));
    run.act(done(0));
    let story = story(&run);
    assert_eq!(story.entered_before(&c(1), &tool, &same).map(|call| call.asked.id.clone()), Some(c(0)));
    assert!(story.entered_before(&c(0), &tool, &same).is_none(), "it is not another call than itself");
    assert!(story.entered_before(&c(1), "other.tool", &same).is_none());
    let mut other = Map::new();
    other.insert("text".into(), Value::String("else".into()));
    assert!(story.entered_before(&c(1), &tool, &other).is_none());
}

#[test]
fn late_evidence_of_a_call_is_found_and_its_answer_stands_for_the_outcome_that_took_it() {
    let (mut run, first) = Run::stamped(NON, true);
    run.expire();
    run.claim();
    run.act(restamp(NON, true));
    run.ok(late(&c(0), first, LateAnswer::Unknown));
    assert!(story(&run).late_done(&c(0)).is_none());
    run.ok(Event::LateOutcome(Late {
        call_id: c(0),
        right: first,
        answer: LateAnswer::Done,
        is_error: true,
        result: json!("from the first"),
    }));
    let with_evidence = story(&run);
    assert_eq!(with_evidence.late_done(&c(0)).map(|late| late.result.clone()), Some(json!("from the first")));
    assert!(with_evidence.late_done(&c(1)).is_none());
    run.act(Act::Unstamp { call_id: c(0), why: "window gone".into() });
    let outcome = story(&run).calls[&c(0)].outcome.clone().unwrap();
    assert_eq!((outcome.result, outcome.is_error, outcome.via), (json!("from the first"), true, Via::Evidence));
}

#[test]
fn failures_of_the_model_are_counted_and_nothing_else_is_one() {
    let mut run = Run::claimed();
    let retry = |run: &mut Run, why: &str| {
        run.act(Act::Retry { why: why.into(), not_before: None });
        run.claim();
    };
    retry(&mut run, "a write could not be started");
    assert_eq!(story(&run).model_failures, 0);
    retry(&mut run, &format!("{MODEL_CALL_FAILED}: 503"));
    retry(&mut run, &format!("{MODEL_CALL_FAILED}: 503"));
    assert_eq!(story(&run).model_failures, 2);
    assert!(story(&run).end.is_none(), "it goes on");
}

#[test]
fn a_proposal_is_no_decision_and_a_decision_is_kept_with_who_and_why() {
    let mut run = Run::born(new_run(Mode::Queue, None, true), false);
    run.claim();
    run.reply(&[(NON, true)]);
    let digest = run.suspend(&[c(0)], None);
    let changed = card(WaitKind::Approval, &[c(0)]);
    run.order(bob(), Order::Edit { digest, card: changed, calls: vec![edited(&c(0))] });
    let proposed = story(&run).calls[&c(0)].clone();
    assert!(proposed.decided.is_none() && proposed.edited.is_some());
    let digest = run.digest();
    let denied = DecideCall { reason: Some("too much".into()), ..decided(&c(0), false) };
    run.order(ann(), Order::Decide { digest, calls: vec![denied], grant: None });
    let decided = story(&run).calls[&c(0)].decided.clone().unwrap();
    assert_eq!((decided.approved, decided.by, decided.reason.as_deref()), (false, ann().id, Some("too much")));
}

#[test]
fn a_digest_without_a_call_names_both_and_is_its_own() {
    let names = [
        TurnCard::digest_without("a", &c(0)),
        TurnCard::digest_without("a", &c(1)),
        TurnCard::digest_without("b", &c(0)),
        card(WaitKind::Approval, &[c(0)]).digest(RunId(uuid::Uuid::nil()), 0),
    ];
    for (index, name) in names.iter().enumerate() {
        assert!(name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
        assert!(!names[..index].contains(name));
    }
    assert_eq!(names[0], TurnCard::digest_without("a", &c(0)));
}
