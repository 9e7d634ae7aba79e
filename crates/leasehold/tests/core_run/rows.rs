//! Rows to try every event on: the product of everything that some guard reads.

use super::given::*;
use leasehold::run::*;

/// The epoch of every row here.
pub(crate) const EPOCH: u64 = 5;
/// The lease of a row that is held.
pub(crate) const OWN: u128 = 50;
/// Earlier segments: their epochs and leases.
pub(crate) const FORMER: [(u64, u128); 2] = [(2, 20), (4, 40)];
/// The digest of what waits.
pub(crate) const DIGEST: &str = "digest";
/// Wrote an edit, where one was written.
pub(crate) const EDITOR: &str = "eve";

/// A turn, and the fence that stands on its first call.
#[derive(Clone)]
pub(crate) struct Shape {
    pub(crate) name: String,
    pub(crate) turn: Option<OpenTurn>,
    pub(crate) fence: Option<Fence>,
}

fn open(index: usize, effect: Effect) -> OpenCall {
    OpenCall {
        id: call(1, index),
        tool: tool_of(effect).into(),
        effect,
        needs_person: false,
        verdict: None,
        outcome: None,
        stamps: Vec::new(),
        absent: false,
        evidence: None,
        question: None,
    }
}

fn asked(mut call: OpenCall) -> OpenCall {
    call.needs_person = true;
    call
}

fn said(call: OpenCall, approved: bool) -> OpenCall {
    let verdict = Some(CallVerdict { approved, by: APPROVER.into(), at: at(-100) });
    OpenCall { verdict, outcome: (!approved).then_some(Outcome::Denied), ..asked(call) }
}

fn stamped((epoch, number): (u64, u128), entered: bool, late: &[LateAnswer]) -> Stamp {
    Stamp { epoch, lease_id: lease(number), entered, late: late.to_vec(), asked: false, repeat: false }
}

/// After earlier attempts, entered and answered with a request for input.
fn has_asked(effect: Effect, earlier: &[Stamp]) -> OpenCall {
    let mut stamps = earlier.to_vec();
    stamps.push(Stamp { asked: true, repeat: !earlier.is_empty(), ..stamped(FORMER[1], true, &[]) });
    OpenCall { stamps, ..said(open(0, effect), true) }
}

fn turn(calls: Vec<OpenCall>) -> Option<OpenTurn> {
    let digest = Some(DIGEST.to_owned());
    let (edited_by, earlier) = (Vec::new(), Vec::new());
    Some(OpenTurn { number: 1, digest, deadline: None, on_expiry: OnExpiry::Continue, edited_by, calls, earlier })
}

/// Every turn and fence.
pub(crate) fn shapes() -> Vec<Shape> {
    use Effect::{IdempotentWrite as Idem, NonIdempotentWrite as Non, ReadOnly};
    use LateAnswer::Done;
    let landed_earlier = |outcome| OpenCall {
        outcome,
        stamps: vec![stamped(FORMER[0], true, &[]), stamped(FORMER[1], true, &[Done])],
        ..said(open(0, Non), true)
    };
    let not_landed = OpenCall { stamps: vec![stamped(FORMER[1], true, &[])], absent: true, ..said(open(0, Non), true) };
    let unfenced: Vec<(&str, Vec<OpenCall>)> = vec![
        ("free", vec![open(0, Non)]),
        ("free idempotent", vec![open(0, Idem)]),
        ("read", vec![open(0, ReadOnly)]),
        ("asking read", vec![OpenCall { question: Some(3), ..open(0, ReadOnly) }]),
        ("undecided read", vec![asked(open(0, ReadOnly))]),
        ("released", vec![said(open(0, Non), true)]),
        ("undecided", vec![asked(open(0, Non))]),
        ("two undecided", vec![asked(open(0, Non)), asked(open(1, Idem))]),
        ("one approved", vec![said(open(0, Non), true), asked(open(1, Non))]),
        ("one denied", vec![said(open(0, Non), false), asked(open(1, Non))]),
        (
            "done",
            vec![OpenCall { stamps: vec![stamped(FORMER[1], true, &[Done])], outcome: Some(Outcome::Done), ..open(0, Non) }],
        ),
        ("done, entered twice", vec![landed_earlier(Some(Outcome::Done))]),
        ("closed as unknown", vec![landed_earlier(Some(Outcome::Unknown))]),
        ("denied after not landed", vec![OpenCall { outcome: Some(Outcome::Denied), ..not_landed.clone() }]),
        ("done by a person's word", vec![OpenCall { outcome: Some(Outcome::Done), ..not_landed.clone() }]),
        ("not landed", vec![not_landed.clone()]),
        ("not landed, asked again", vec![asked(OpenCall { verdict: None, ..not_landed.clone() })]),
        (
            "not landed, asked again with another",
            vec![asked(OpenCall { verdict: None, ..not_landed.clone() }), asked(open(1, Non))],
        ),
        ("has asked", vec![has_asked(Non, &[])]),
        ("has asked, idempotent", vec![has_asked(Idem, &[])]),
        ("has asked after an attempt", vec![has_asked(Non, &[stamped(FORMER[0], true, &[])])]),
        ("waits for what it asked", vec![asked(OpenCall { verdict: None, ..has_asked(Non, &[]) })]),
        ("waits for what a read asked", vec![asked(open(0, ReadOnly))]),
        (
            "not landed, late evidence",
            vec![OpenCall { evidence: Some(4), stamps: vec![stamped(FORMER[1], true, &[Done])], ..not_landed }],
        ),
    ];
    let mut shapes = vec![Shape { name: "no turn".into(), turn: None, fence: None }];
    shapes.extend(unfenced.into_iter().map(|(name, calls)| Shape { name: name.into(), turn: turn(calls), fence: None }));
    let mut edited = Shape { name: "edited".into(), turn: turn(vec![asked(open(0, Non))]), fence: None };
    edited.turn.iter_mut().for_each(|t| t.edited_by.push(EDITOR.into()));
    shapes.push(edited);
    for effect in [Idem, Non] {
        for own in [true, false] {
            for repeat in [true, false] {
                for (verifiable, evidence) in [(false, false), (true, false), (false, true), (true, true)] {
                    shapes.push(fenced(effect, own, repeat, verifiable, evidence));
                }
            }
        }
    }
    // Taken over, stamped anew, and certainly not entered: the fence stands for the earlier attempt.
    let mut kept = fenced(Non, true, true, true, false);
    kept.name.push_str(", newest not entered");
    kept.turn.iter_mut().flat_map(|t| &mut t.calls).flat_map(|c| c.stamps.last_mut()).for_each(|s| s.entered = false);
    shapes.push(kept);
    shapes
}

fn fenced(effect: Effect, own: bool, repeat: bool, verifiable: bool, evidence: bool) -> Shape {
    let newest = if own { (EPOCH, OWN) } else { FORMER[1] };
    let said_done: &[LateAnswer] = if evidence { &[LateAnswer::Done] } else { &[] };
    // Evidence without `repeat`: a person had said "not landed" of the earlier attempt.
    let earlier = (repeat || evidence).then(|| stamped(FORMER[0], true, said_done));
    let stamps: Vec<Stamp> = earlier.into_iter().chain([stamped(newest, true, &[])]).collect();
    let fence = Fence {
        call_id: call(1, 0),
        tool: tool_of(effect).into(),
        effect,
        idempotency_key: "key".into(),
        epoch: newest.0,
        lease_id: lease(newest.1),
        attempt: u32::try_from(stamps.len()).unwrap(),
        repeat,
        verifiable,
        stamped_at: at(-60),
        in_flight_until: at(-30),
    };
    let fenced = OpenCall { stamps, evidence: evidence.then_some(4), ..said(open(0, effect), true) };
    Shape {
        name: format!("{effect} own {own} repeat {repeat} verifiable {verifiable} evidence {evidence}"),
        turn: turn(vec![fenced, open(1, Effect::ReadOnly)]),
        fence: Some(fence),
    }
}

/// A row of this state with nothing special.
pub(crate) fn plain(state: State, reason: Option<Reason>, shape: &Shape) -> Snapshot {
    let mut row = birth(new_run(Mode::Queue, None, false), None, &now_at(-1_000)).next;
    row.state = state;
    row.reason = reason;
    row.epoch = EPOCH;
    row.sequence = 10;
    row.rounds = 1;
    row.lease = state.is_held().then(|| Lease {
        lease_id: lease(OWN),
        holder: "resume:web-01:4711".into(),
        expires_at: LeaseTime { clock: "boot".into(), ns: 1 },
    });
    row.finished_at = state.is_settled().then(|| at(-10));
    row.turn = shape.turn.clone();
    row.fence = shape.fence.clone();
    row
}

/// Every row that can be.
pub(crate) fn rows(mut visit: impl FnMut(&str, &Snapshot)) {
    use State::*;
    let standings = [
        (Queued, None),
        (Running, None),
        (Cancelling, None),
        (WaitingForApproval, None),
        (WaitingForInput, None),
        (Completed, None),
        (Failed, Some(Reason::Policy)),
        (Cancelled, None),
        (Dead, Some(Reason::WriteInDoubt)),
        (Dead, Some(Reason::RetriesExhausted)),
        (Dead, Some(Reason::Restored)),
    ];
    let shapes = shapes();
    for (state, reason) in standings {
        for shape in &shapes {
            let plain = plain(state, reason, shape);
            for row in variants(plain) {
                if row.check().is_ok() && row.misses_fence().is_none() {
                    visit(&shape.name, &row);
                }
            }
        }
    }
}

/// The columns that guards of this state read, each with every value that matters.
fn variants(row: Snapshot) -> Vec<Snapshot> {
    let state = row.state;
    let mut rows = vec![row];
    let vary = |rows: &mut Vec<Snapshot>, change: &dyn Fn(&mut Snapshot)| {
        let mut changed = rows.clone();
        changed.iter_mut().for_each(change);
        rows.append(&mut changed);
    };
    vary(&mut rows, &|r| r.cancel_requested = true);
    vary(&mut rows, &|r| r.recovery = Recovery::Abandon);
    if state.is_held() {
        vary(&mut rows, &|r| r.recovery_explicit = true);
        vary(&mut rows, &|r| r.requeues = now().policy.max_requeues);
        vary(&mut rows, &|r| r.has_request = false);
    }
    if state == State::Queued {
        vary(&mut rows, &|r| r.due_at = at(60));
    }
    if state.is_waiting() || state == State::Dead {
        vary(&mut rows, &|r| r.second_approver = true);
    }
    if state.is_waiting() {
        let set = |r: &mut Snapshot, deadline| r.turn.iter_mut().for_each(|t| t.deadline = Some(at(deadline)));
        let before = rows.clone();
        vary(&mut rows, &|r| set(r, -1));
        vary(&mut rows, &|r| r.turn.iter_mut().for_each(|t| t.on_expiry = OnExpiry::DeadLetter));
        rows.extend(before.into_iter().map(|mut r| {
            set(&mut r, 60);
            r
        }));
    }
    if state == State::Dead {
        vary(&mut rows, &|r| r.has_request = false);
    }
    if row_in_doubt(&rows) {
        vary(&mut rows, &|r| r.fence.iter_mut().for_each(|f| f.in_flight_until = at(60)));
    }
    rows
}

fn row_in_doubt(rows: &[Snapshot]) -> bool {
    rows.first().is_some_and(|r| r.reason == Some(Reason::WriteInDoubt))
}
