//! Every event that can be sent to a row, in every variant that a guard tells apart.

use super::{given::*, rows::*};
use leasehold::run::*;
use serde_json::{Map, Value};

/// All of them.
pub(crate) fn events(row: &Snapshot) -> Vec<Event> {
    let mut events = claims();
    for right in [right(EPOCH, OWN), right(EPOCH - 1, OWN), right(EPOCH, 99)] {
        events.extend(acts().into_iter().map(|act| Event::Holder(right, act)));
    }
    events.extend(lates());
    events.extend(ticks(row));
    for by in [ann(), bob(), robot(), Principal::person(EDITOR)] {
        events.extend(orders().into_iter().map(|order| Event::Person(by.clone(), order)));
    }
    events
}

fn claims() -> Vec<Event> {
    let event = |change: &dyn Fn(&mut Claimer)| {
        let mut claimer = claimer();
        change(&mut claimer);
        Event::Claim { grant: grant(60), claimer }
    };
    vec![event(&|_| ()), event(&|c| c.open = false), event(&|c| c.agents.clear()), event(&|c| c.tools.clear())]
}

fn acts() -> Vec<Act> {
    let (subject, other, nobody) = (call(1, 0), call(1, 1), call(1, 9));
    let mut acts = vec![
        Act::Heartbeat,
        Act::Record(vec![reply(2, &[])]),
        Act::Record(vec![reply(2, &[(Effect::ReadOnly, false), (Effect::NonIdempotentWrite, true)])]),
        Act::Record(vec![reply(7, &[(Effect::ReadOnly, false)])]),
        Act::Record(vec![Recorded::Evidence(subject.clone())]),
        Act::Record(vec![outcome(&nobody, Outcome::Done, Via::Tool)]),
        Act::Record(vec![outcome(&other, Outcome::Done, Via::Tool)]),
        Act::Suspend { card: card(WaitKind::Approval, &[]), deadline: None },
        Act::Suspend { card: card(WaitKind::Approval, std::slice::from_ref(&subject)), deadline: Some(at(60)) },
        Act::Suspend { card: card(WaitKind::Approval, &[subject.clone(), other.clone()]), deadline: None },
        Act::Suspend { card: card(WaitKind::Input, std::slice::from_ref(&subject)), deadline: None },
        Act::Complete { output: "done".into(), truncated: false },
        Act::Fail { reason: Reason::Budget, detail: "spent".into() },
        Act::Retry { why: "503".into(), not_before: None },
        Act::Retry { why: "429".into(), not_before: Some(at(3_600)) },
        Act::Yield,
        Act::Doubt { why: "no answer".into() },
        Act::Unreadable { why: "tag 9".into() },
        Act::Settle,
    ];
    for said in [Outcome::Done, Outcome::NotApplied, Outcome::Unknown, Outcome::Refused, Outcome::Denied, Outcome::NotRun] {
        acts.push(Act::Record(vec![outcome(&subject, said, Via::Tool)]));
    }
    acts.push(Act::Record(vec![outcome(&subject, Outcome::Done, Via::Verify)]));
    for id in [&subject, &other, &nobody] {
        for effect in [Effect::IdempotentWrite, Effect::NonIdempotentWrite, Effect::ReadOnly] {
            acts.push(Act::Stamp(stamp(id, effect, true)));
        }
        for found_absent in [true, false] {
            acts.push(Act::Restamp { stamp: stamp(id, Effect::IdempotentWrite, true), found_absent });
        }
        acts.push(Act::Unstamp { call_id: id.clone(), why: "no time left".into() });
        let question = body::Question { call_id: id.clone(), prompt: "which?".into(), schema: Value::Null };
        acts.push(Act::Question(question));
        acts.push(Act::InputRequired(body::InputRequired {
            call_id: id.clone(),
            tool: "t".into(),
            questions: Vec::new(),
            state: None,
        }));
    }
    acts
}

fn lates() -> Vec<Event> {
    let mut events = Vec::new();
    let senders = [(EPOCH, OWN), FORMER[0], FORMER[1], (3, 30)].map(|(epoch, number)| right(epoch, number));
    for sender in senders {
        for answer in [LateAnswer::Done, LateAnswer::NotApplied, LateAnswer::NotStarted, LateAnswer::Unknown] {
            events.extend([call(1, 0), call(0, 0)].map(|id| late(&id, sender, answer)));
        }
    }
    events
}

fn ticks(row: &Snapshot) -> Vec<Event> {
    let seen = expiry(row);
    let mut renewed = seen.clone();
    if let Event::Clock(Tick::Expire { expires_at, .. }) = &mut renewed {
        expires_at.ns += 1;
    }
    let mut another = seen.clone();
    if let Event::Clock(Tick::Expire { right, .. }) = &mut another {
        right.epoch += 1;
    }
    vec![seen, renewed, another, Event::Clock(Tick::WaitExpired)]
}

fn orders() -> Vec<Order> {
    let (subject, other, nobody) = (call(1, 0), call(1, 1), call(1, 9));
    let mut orders = vec![
        Order::Cancel { note: None },
        Order::Redrive { approved_after: at(-200), note: None },
        Order::Redrive { approved_after: at(0), note: None },
        Order::Discard { note: None },
        Order::Restored,
    ];
    let words = [
        vec![],
        vec![decided(&subject, true)],
        vec![decided(&subject, false)],
        vec![edited(&subject)],
        vec![decided(&other, true)],
        vec![decided(&other, false)],
        vec![decided(&subject, true), decided(&other, true)],
        vec![decided(&subject, true), decided(&other, false)],
        vec![decided(&subject, false), decided(&other, false)],
        vec![decided(&nobody, true)],
    ];
    for calls in words {
        for digest in [DIGEST, "another"].map(String::from) {
            orders.push(Order::DecidePart { digest: digest.clone(), calls: calls.clone() });
            orders.push(Order::Decide { digest: digest.clone(), calls: calls.clone(), grant: None });
            orders.push(Order::Decide { digest, calls: calls.clone(), grant: Some(grant(70)) });
        }
    }
    for digest in [DIGEST, "another"].map(String::from) {
        for shown in [vec![subject.clone()], vec![subject.clone(), other.clone()]] {
            let card = card(WaitKind::Approval, &shown);
            orders.push(Order::Edit { digest: digest.clone(), card, calls: vec![edited(&subject)] });
        }
        for call_id in [&subject, &other, &nobody] {
            for grant in [None, Some(grant(70))] {
                for (question, values) in [(None, Some(Map::new())), (None, None), (Some("size".to_owned()), None)] {
                    let (digest, call_id, grant) = (digest.clone(), call_id.clone(), grant.clone());
                    orders.push(Order::Submit { digest, call_id, question, values, grant });
                }
            }
        }
    }
    orders.push(Order::Edit { digest: DIGEST.into(), card: card(WaitKind::Approval, &[]), calls: vec![] });
    for question in [3, 4] {
        for values in [Some(Map::new()), None] {
            orders.push(Order::Answer { call_id: subject.clone(), question, values });
        }
    }
    for fence_epoch in [EPOCH, FORMER[1].0] {
        for outcome in [ResolutionKind::Landed, ResolutionKind::NotLanded, ResolutionKind::Abandon] {
            orders.push(Order::Resolve { call_id: subject.clone(), fence_epoch, outcome, result: None, note: None });
        }
    }
    orders
}
