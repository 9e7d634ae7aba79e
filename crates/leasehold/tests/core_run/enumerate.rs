//! Every row by every event: a transition that the table allows, or a named rejection.

use super::{
    events::events,
    given::*,
    rows::{EPOCH, OWN, rows},
    rules,
};
use leasehold::run::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};
use strum::IntoEnumIterator as _;

/// What was seen.
#[derive(Default)]
struct Seen {
    pairs: usize,
    /// What became of a state and an event.
    results: BTreeMap<(State, EventKind), BTreeSet<String>>,
    rules: BTreeSet<usize>,
    /// Per rule and state before: the states it led to.
    edges: BTreeSet<(usize, State, State)>,
    /// Per rule: the entries it made.
    entries: BTreeSet<(usize, &'static str)>,
    rejections: BTreeSet<RejectionDiscriminants>,
}

fn visit(seen: &mut Seen, shape: &str, row: &Snapshot) {
    for event in events(row) {
        let kind = event.kind();
        let told = || format!("{event:?}\nsent to ({shape}) {row:?}");
        seen.pairs += 1;
        let applied = apply(row, event.clone(), &now());
        if let Event::Holder(claimed, _) = &event
            && (!row.state.is_held() || *claimed != right(EPOCH, OWN))
        {
            assert_eq!(applied, Err(Rejection::Fenced), "acted without the right: {}", told());
        }
        let result = match applied {
            Ok(delta) => {
                if let Some(wrong) = rules::wrong(row, kind, &delta) {
                    panic!("{wrong}: {}\ngave {delta:?}", told());
                }
                if delta.is_unchanged() {
                    "the same answer".to_owned()
                } else {
                    assert!(takes(row.state, kind), "not in the table: {}", told());
                    let fitting = rules::fitting(row, kind, &delta);
                    assert!(!fitting.is_empty(), "no rule fits {}\ngave {delta:?}", told());
                    for rule in fitting {
                        seen.rules.insert(rule);
                        seen.edges.insert((rule, row.state, delta.next.state));
                        seen.entries.extend(delta.entries.iter().map(|e| (rule, e.kind())));
                    }
                    let kinds: Vec<&str> = delta.entries.iter().map(EntryBody::kind).collect();
                    format!("{}: {}", delta.next.state, kinds.join(", "))
                }
            }
            Err(rejection) => {
                let name = RejectionDiscriminants::from(&rejection);
                assert_ne!(name, RejectionDiscriminants::OffTable, "{rejection}: {}", told());
                if !takes(row.state, kind) {
                    use RejectionDiscriminants::{AlreadyDecided, Fenced, NotInState, NotWaiting};
                    assert!(matches!(name, NotInState | NotWaiting | Fenced | AlreadyDecided), "{rejection}: {}", told());
                }
                seen.rejections.insert(name);
                format!("! {}", rejection.code())
            }
        };
        seen.results.entry((row.state, kind)).or_default().insert(result);
    }
}

fn golden(seen: &Seen) -> String {
    let mut text = format!("{} pairs of a row and an event\n", seen.pairs);
    for ((state, event), results) in &seen.results {
        if results.iter().all(|r| ["! not_in_state", "! not_waiting", "! fenced"].contains(&r.as_str())) {
            continue;
        }
        writeln!(text, "\n{state} x {event}").unwrap();
        for result in results {
            writeln!(text, "    {result}").unwrap();
        }
    }
    text
}

#[test]
fn every_state_and_event_is_a_transition_of_the_table_or_a_named_rejection() {
    let mut seen = Seen::default();
    rows(|shape, row| visit(&mut seen, shape, row));
    compare("tests/golden/transitions.txt", &golden(&seen));

    // Nothing in the table is for show: each rule is taken, to each of its states, with each of its entries.
    for (index, rule) in TABLE.iter().enumerate().filter(|(_, r)| !r.from.is_empty()) {
        let name = format!("{} in {:?} ({})", rule.event, rule.from, rule.guard);
        assert!(seen.rules.contains(&index), "never taken: {name}");
        for (from, to) in rule.from.iter().flat_map(|from| rule.to.iter().map(move |to| (*from, *to))) {
            let to = if let To::Is(state) = to { state } else { from };
            assert!(seen.edges.contains(&(index, from, to)), "never from {from} to {to}: {name}");
        }
        for kind in rule.journal {
            assert!(seen.entries.contains(&(index, *kind)), "never {kind}: {name}");
        }
    }
    let unused: Vec<_> = RejectionDiscriminants::iter()
        .filter(|r| *r != RejectionDiscriminants::OffTable && !seen.rejections.contains(r))
        .collect();
    assert!(unused.is_empty(), "never refused by: {unused:?}");
    // Every pair was tried.
    let kinds = EventKind::iter().filter(|k| !matches!(k, EventKind::Start | EventKind::Enqueue)).count();
    assert_eq!(seen.results.len(), State::iter().count() * kinds);
}

#[test]
fn a_run_is_born_running_with_a_grant_and_queued_without() {
    let started = birth(new_run(Mode::Wait, None, false), Some(grant(1)), &now());
    assert_eq!((started.next.state, started.next.epoch, started.entries[0].kind()), (State::Running, 1, "started"));
    assert_eq!((started.next.recovery, started.next.recovery_explicit), (Recovery::Abandon, false));
    assert_eq!(started.next.lease.as_ref().unwrap().holder, "interactive:web-01:4711");
    let queued = birth(new_run(Mode::Queue, Some(Recovery::Requeue), false), None, &now());
    assert_eq!((queued.next.state, queued.next.epoch, queued.entries[0].kind()), (State::Queued, 0, "enqueued"));
    assert_eq!((queued.next.recovery, queued.next.recovery_explicit), (Recovery::Requeue, true));
    assert_eq!((started.next.check(), queued.next.check()), (Ok(()), Ok(())));
}
