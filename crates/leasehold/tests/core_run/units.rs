//! The small parts.

use super::{given::*, single::*};
use jiff::Timestamp;
use leasehold::{clock::to_millis, run::*};
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::time::Duration;
use uuid::Uuid;

#[test]
fn a_wait_grows_by_its_factor_and_stops_at_its_maximum() {
    let backoff = Backoff { jitter: false, ..Policy::default().backoff };
    let waits: Vec<u64> = [0, 1, 2, 6, 7, 1_000_000].iter().map(|n| backoff.wait(*n, 0.3).as_secs()).collect();
    assert_eq!(waits, [5, 10, 20, 320, 600, 600]);
}

proptest! {
    #[test]
    fn jitter_stays_in_the_upper_half_of_the_wait(requeues in 0..u32::MAX, chance in -1.0..2.0f64) {
        let with = Policy::default().backoff;
        let whole = Backoff { jitter: false, ..with }.wait(requeues, chance);
        let wait = with.wait(requeues, chance);
        prop_assert!(wait >= whole / 2 && wait <= whole);
    }

    #[test]
    fn text_of_any_kind_comes_back_as_it_was(text in "(?s).{0,40}", number in any::<i64>()) {
        let text = format!("{text}\0\u{202e}🦀\\u0000");
        let result = json!({ "text": text, "number": number, "key\0": [null, true, 0.1] });
        for body in bodies(&text, &result) {
            let stored = body.encode();
            prop_assert_eq!(stored[0], 1);
            prop_assert_eq!(EntryBody::decode(body.kind(), &stored).unwrap(), body);
        }
    }

    #[test]
    fn the_wall_clock_is_kept_to_the_millisecond_and_never_moved_forward(nanos in -9_000_000_000_000_000_000i128..9_000_000_000_000_000_000) {
        let time = Timestamp::from_nanosecond(nanos).unwrap();
        let kept = to_millis(time);
        let lost = time.as_nanosecond() - kept.as_nanosecond();
        prop_assert!((0..1_000_000).contains(&lost), "{} lost {}", time, lost);
        prop_assert_eq!(to_millis(kept), kept);
    }
}

#[test]
fn a_wait_that_nobody_configured_sensibly_is_still_a_wait() {
    let backoff = Backoff { initial: Duration::ZERO, factor: f64::NAN, max: Duration::from_secs(1), jitter: true };
    assert_eq!(backoff.wait(3, f64::NAN), Duration::from_secs(1));
    assert_eq!(backoff.wait(3, 0.5), Duration::ZERO);
    let shrinking = Backoff { initial: Duration::from_secs(4), factor: 0.1, max: Duration::from_secs(60), jitter: false };
    assert_eq!(shrinking.wait(9, 0.0), Duration::from_secs(4));
}

#[test]
fn the_key_of_a_call_is_the_hash_of_run_and_call_and_stays_what_it_is() {
    // printf '%s' '00000000-0000-0000-0000-000000000007/t3c1' | sha256sum
    let key = RunId(Uuid::from_u128(7)).idempotency_key(&call(3, 1));
    assert_eq!(key, "lh-2b37b2e3432ec9820d93d618bdea9ab8");
}

#[test]
fn a_call_is_named_by_its_turn_and_its_place() {
    assert_eq!((call(1, 0).to_string(), format!("{:?}", call(12, 34))), ("t1c0".into(), "t12c34".into()));
    assert_eq!(serde_json::to_value(call(1, 0)).unwrap(), json!("t1c0"));
}

#[test]
fn a_digest_does_not_depend_on_the_order_in_which_keys_were_written() {
    // printf '%s' '{"a":1,"b":[true,null],"é":"x"}' | sha256sum
    let known = "dacc43f43f57dbcce17c4ef3324969d52ce505deb9e661538f8ea8b8d9e69b2f";
    for text in [r#"{"a":1,"b":[true,null],"é":"x"}"#, r#"{ "é":"x", "b":[true, null], "a":1.0 }"#] {
        assert_eq!(canonical_hash(&serde_json::from_str::<Value>(text).unwrap()), known);
    }
}

#[test]
fn a_digest_names_run_suspend_and_everything_on_the_card() {
    let shown = || card(WaitKind::Approval, &[call(1, 0)]);
    let (run, other) = (RunId(Uuid::from_u128(7)), RunId(Uuid::from_u128(8)));
    let digest = shown().digest(run, 5);
    assert_eq!(digest, shown().digest(run, 5));
    let mut changed =
        vec![shown().digest(other, 5), shown().digest(run, 6), card(WaitKind::Input, &[call(1, 0)]).digest(run, 5)];
    let edits: [fn(&mut TurnCard); 9] = [
        |c| c.turn = 2,
        |c| c.agent_version.push('2'),
        |c| c.calls[0].id = call(1, 1),
        |c| c.calls[0].tool.endpoint.push('/'),
        |c| c.calls[0].tool.effect = Effect::IdempotentWrite,
        |c| c.calls[0].tool.approval = "none".into(),
        |c| drop(c.calls[0].arguments.insert("title".into(), "x".into())),
        |c| c.calls[0].preview = Some("old -> new".into()),
        |c| c.calls[0].precondition = Some("v1".into()),
    ];
    for edit in edits {
        let mut card = shown();
        edit(&mut card);
        changed.push(card.digest(run, 5));
    }
    changed.push(TurnCard::digest_without(&digest, &call(1, 0)));
    changed.push(digest);
    let distinct: std::collections::BTreeSet<_> = changed.iter().collect();
    assert_eq!(distinct.len(), changed.len());
}

#[test]
fn what_a_newer_version_wrote_is_an_error_that_names_no_content() {
    let body = &bodies("secret", &json!("secret"))[0];
    let stored = body.encode();
    let told = |kind: &str, bytes: &[u8]| EntryBody::decode(kind, bytes).unwrap_err().to_string();
    let mut newer = stored.clone();
    newer[0] = 9;
    assert_eq!(told("started", &newer), "journal entry of kind started does not decode: unknown format tag 9");
    assert_eq!(told("started", &[]), "journal entry of kind started does not decode: empty payload");
    assert_eq!(told("sung", &stored), "journal entry of kind sung does not decode: unknown kind");
    for cut in 1..stored.len() {
        assert!(!told("started", &stored[..cut]).contains("secret"));
    }
    assert!(!told("settled", &stored).contains("secret"));
}

#[test]
fn an_answer_without_values_is_a_person_who_declines_and_one_with_them_is_stored_as_ever() {
    let answer = |values| EntryBody::Answered(body::Answered { call_id: call(1, 0), question: 7, by: bob(), values });
    let stored = |values: &str| {
        let json = format!(r#"{{"call_id":"t1c0","question":7,"by":{}{values}}}"#, serde_json::to_string(&bob()).unwrap());
        [&answer(None).encode()[..1], json.as_bytes()].concat()
    };
    let given = Map::from_iter([("size".to_owned(), json!(3))]);
    for (text, values) in [(r#","values":{"size":3}"#, Some(given)), (r#","values":{}"#, Some(Map::new())), ("", None)] {
        assert_eq!(answer(values.clone()).encode(), stored(text));
        assert_eq!(EntryBody::decode("answered", &stored(text)).unwrap(), answer(values));
    }
}

#[test]
fn an_effect_that_a_newer_version_wrote_is_the_most_careful_one() {
    assert_eq!(Effect::from_stored("teleport"), Effect::NonIdempotentWrite);
    assert_eq!(Effect::from_stored("read_only"), Effect::ReadOnly);
}

#[test]
fn every_kind_of_entry_has_a_body_here() {
    let kinds: Vec<&str> = bodies("", &Value::Null).iter().map(EntryBody::kind).collect();
    assert_eq!(kinds, EntryBody::KINDS);
}

/// One of each kind, in the order of `KINDS`, each with the text wherever it has text.
fn bodies(text: &str, value: &Value) -> Vec<EntryBody> {
    let (t, id, by) = (|| text.to_owned(), || call(1, 0), || Principal::person(text));
    let map = || Map::from_iter([(text.to_owned(), value.clone())]);
    let born = || body::Born {
        request: Request {
            messages: vec![InputMessage { role: Role::User, text: t() }],
            tools: Some(vec![t()]),
            max_rounds: Some(3),
            metadata: map(),
        },
        mode: Mode::Wait,
        recovery: Recovery::Abandon,
        agent_version: t(),
        by: by(),
        lease_id: Some(lease(1)),
    };
    let by_whom = || body::By { by: by(), note: Some(t()) };
    let stamped = || body::Stamped {
        call_id: id(),
        tool: t(),
        effect: Effect::IdempotentWrite,
        idempotency_key: t(),
        attempt: 2,
        endpoint: t(),
    };
    let edited_card = Some(EditedCard { preview: Some(t()), precondition: Some(t()), preview_for: Some(t()) });
    let said = body::Decided { call_id: id(), approved: true, reason: Some(t()), arguments: Some(map()), edited_card };
    let Recorded::Reply { mut reply, .. } = reply(1, &[(Effect::ReadOnly, true)]) else { panic!() };
    (reply.text, reply.opaque, reply.calls[0].raw_arguments, reply.calls[0].arguments) =
        (t(), Some(value.clone()), t(), Some(map()));
    let Recorded::Outcome(mut outcome) = outcome(&id(), Outcome::Done, Via::Evidence) else { panic!() };
    (outcome.result, outcome.evidence) = (value.clone(), Some(7));
    let mut card = card(WaitKind::Input, &[id()]);
    (card.schema, card.calls[0].preview, card.calls[0].arguments) = (Some(value.clone()), Some(t()), map());
    vec![
        EntryBody::Started(born()),
        EntryBody::Enqueued(born()),
        EntryBody::SegmentOpened(body::SegmentOpened { segment: SegmentKind::Resume, lease_id: lease(2) }),
        EntryBody::ModelReply(reply),
        EntryBody::WriteStamped(stamped()),
        EntryBody::WriteRestamped(stamped()),
        EntryBody::WriteNotStarted(body::NotStarted { call_id: id(), late: true, fence_kept: false, why: t() }),
        EntryBody::ToolOutcome(outcome),
        EntryBody::InputRequired(body::InputRequired {
            call_id: id(),
            tool: t(),
            questions: vec![InputQuestion { id: t(), prompt: t(), schema: value.clone() }],
            state: Some(t()),
        }),
        EntryBody::Suspended(body::Suspended { card, digest: t(), deadline: Some(at(1)) }),
        EntryBody::Approval(body::Approval { digest: t(), by: by(), calls: vec![said], proposal: true, lease_id: None }),
        EntryBody::Input(body::Input {
            digest: t(),
            by: by(),
            call_id: id(),
            question: Some(t()),
            values: map(),
            declined: true,
            lease_id: Some(lease(3)),
        }),
        EntryBody::Question(body::Question { call_id: id(), prompt: t(), schema: value.clone() }),
        EntryBody::Answered(body::Answered { call_id: id(), question: u64::MAX, by: by(), values: Some(map()) }),
        EntryBody::Expired(body::Expired { calls: vec![id()] }),
        EntryBody::CancelRequested(by_whom()),
        EntryBody::Requeued(body::Requeued { why: t(), requeues: 1, due_at: at(2) }),
        EntryBody::LeaseExpired(body::LeaseExpired { holder: t(), epoch: 4, lease_id: lease(4), expires_at: None }),
        EntryBody::InDoubt(body::InDoubt { call_id: id(), tool: t(), idempotency_key: t(), fence_epoch: 4, why: t() }),
        EntryBody::Resolved(body::Resolved {
            call_id: id(),
            fence_epoch: 4,
            outcome: ResolutionKind::NotLanded,
            by: by(),
            note: Some(t()),
        }),
        EntryBody::Redriven(by_whom()),
        EntryBody::Discarded(by_whom()),
        EntryBody::LateEvidence(body::LateEvidence {
            call_id: id(),
            epoch: 4,
            lease_id: lease(5),
            answer: LateAnswer::NotStarted,
            is_error: true,
            result: value.clone(),
            contradicts: true,
        }),
        EntryBody::DuplicateEffect(body::DuplicateEffect { call_id: id(), tool: t(), epoch: 4 }),
        EntryBody::DeadLettered(body::DeadLettered { reason: Reason::Restored, detail: t() }),
        EntryBody::Settled(body::Settled {
            state: State::Failed,
            reason: Some(Reason::Policy),
            output: Some(t()),
            truncated: true,
            detail: t(),
        }),
    ]
}

#[test]
fn a_time_that_is_reached_exactly_is_reached() {
    // Due.
    let claim = || Event::Claim { grant: grant(5), claimer: claimer() };
    let mut run = Run::born(NewRun { run_at: Some(at(10)), ..new_run(Mode::Queue, None, false) }, false);
    run.world.seconds = 9;
    assert_eq!(run.refused(claim()), "not_due");
    run.world.seconds = 10;
    run.ok(claim());
    // A deadline of a decision.
    let waiting = || {
        let mut run = Run::claimed();
        run.reply(&[(NON, true)]);
        let digest = run.suspend(&[c(0)], Some(100));
        (run, digest)
    };
    let (mut run, digest) = waiting();
    run.world.seconds = 99;
    assert_eq!(run.refused(Event::Clock(Tick::WaitExpired)), "deadline_not_passed");
    run.order(bob(), approve(&digest, &[c(0)]));
    let (mut run, digest) = waiting();
    run.world.seconds = 100;
    assert_eq!(run.refused(Event::Person(bob(), approve(&digest, &[c(0)]))), "deadline_passed");
    run.ok(Event::Clock(Tick::WaitExpired));
    // The end of a flight.
    let doubted = || {
        let (mut run, former) = Run::stamped(NON, false);
        run.act(Act::Doubt { why: "timed out".into() });
        let until = run.row().fence.as_ref().unwrap().in_flight_until.as_second() - at(0).as_second();
        (run, former, until)
    };
    let (mut run, former, until) = doubted();
    run.world.seconds = until - 1;
    assert_eq!(run.refused(Event::Person(bob(), resolve(former.epoch, ResolutionKind::NotLanded))), "too_early");
    run.world.seconds = until;
    run.order(bob(), resolve(former.epoch, ResolutionKind::NotLanded));
}

#[test]
fn the_last_requeue_is_spent_and_no_further_one() {
    let most = Policy::default().max_requeues;
    for (fence, spent) in [(None, Verdict::RetriesExhausted), (Some(true), Verdict::InDoubt)] {
        let mut run = match fence {
            Some(verifiable) => Run::stamped(NON, verifiable).0,
            None => Run::claimed(),
        };
        let left = Snapshot { requeues: most - 1, ..run.row().clone() };
        assert!(matches!(verdict(&left, most), Verdict::Requeue | Verdict::Verify));
        let none = Snapshot { requeues: most, ..left };
        assert_eq!(verdict(&none, most), spent);
        run.expire();
        assert_eq!(run.row().requeues, 1, "an expiry costs one");
    }
}

#[test]
fn a_call_runs_with_what_a_person_was_shown_whatever_the_reply_says_now() {
    let text = |text: &str| Map::from_iter([("text".to_owned(), Value::from(text))]);
    let Recorded::Reply { reply, .. } = reply(1, &[(NON, true)]) else { panic!() };
    let mut call = StoryCall::fresh(ReplyCall { arguments: Some(text("asked")), ..reply.calls[0].clone() }, 1);
    assert_eq!(call.arguments(), text("asked"));
    let shown = card(WaitKind::Approval, &[c(0)]).calls[0].clone();
    call.card = Some(CardCall { arguments: text("shown"), ..shown });
    assert_eq!(call.arguments(), text("shown"));
    call.edited = Some(text("edited"));
    assert_eq!(call.arguments(), text("edited"));
}
