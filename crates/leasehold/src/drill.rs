//! What a crash drill looks for: what the protocol says of a run whose worker dies or sleeps at each point around one write, and
//! what is wrong with what was seen. Pure: whoever drills kills, counts at the far side, reads the record, and asks here. It must
//! not take the record's word for how often a tool was entered.

use crate::run::{Effect, Outcome, Reason, State, Via, words};
use std::fmt;

words!(
    /// What happens to the worker that makes the write.
    Blow {
        /// Killed before the stamp.
        BeforeStamp,
        /// Killed when the stamp is durable and the tool not entered.
        AfterStamp,
        /// Killed in the tool.
        InTool,
        /// Killed when the tool has answered and the outcome is not recorded.
        AfterReturn,
        /// Killed when the outcome is durable.
        AfterRecord,
        /// Stopped between stamp and tool until its lease is gone and the run is settled by others, then let go on.
        PausedAfterStamp,
        /// The same in the tool, whose answer then comes late.
        PausedInTool,
        /// Not hurt: the decision is sent by two processes at once, or two processes claim at once.
        Twice,
    }
);

/// Every blow, in the order of a table.
pub const BLOWS: [Blow; 8] = [
    Blow::BeforeStamp,
    Blow::AfterStamp,
    Blow::InTool,
    Blow::AfterReturn,
    Blow::AfterRecord,
    Blow::PausedAfterStamp,
    Blow::PausedInTool,
    Blow::Twice,
];

words!(
    /// Whether the tool can be asked afterwards, and what it means that a call is absent.
    Asked {
        /// It cannot.
        Never,
        /// Absent is a doubt.
        InDoubt,
        /// The operator declared that absent means "did not happen".
        NotApplied,
    }
);

words!(
    /// What is known of the far side's answers.
    Answers {
        /// A recording stub: it always says "done", and a verify finds what arrived.
        AlwaysDone,
        /// A true far side: it may answer anything.
        Any,
    }
);

/// One cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What the tool does to the world.
    pub effect: Effect,
    /// Whether it can be asked.
    pub asked: Asked,
    /// What happens to the worker.
    pub blow: Blow,
    /// What the far side answers.
    pub answers: Answers,
}

/// One entry of the tool, as the far side saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The idempotency key it came with.
    pub key: String,
    /// Its arguments, or whatever is the same if and only if they are.
    pub arguments: String,
}

/// What was seen when everything had come to rest.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Entries, counted outside of the record.
    pub entries: Vec<Entry>,
    /// How often a verify was answered "absent".
    pub absent: usize,
    /// The run's state.
    pub state: State,
    /// Why, where it is failed or dead.
    pub reason: Option<Reason>,
    /// What the record says of the call.
    pub outcome: Option<(Outcome, Via)>,
    /// Decisions in the journal.
    pub decisions: usize,
    /// The paused worker's answer came into the record.
    pub late: bool,
}

/// How the run may stand at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Completed.
    Completed,
    /// Dead, and a person is asked whether the write happened.
    InDoubt,
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Completed => "completed",
            Self::InDoubt => "in doubt",
        })
    }
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// More entries of a non-idempotent write than a verify answered for.
    #[error("a non-idempotent write was entered {entered} times, and {allowed} may be")]
    EnteredTwice {
        /// How often it was.
        entered: usize,
        /// How often it may be.
        allowed: usize,
    },
    /// A repeat that the far side cannot recognise.
    #[error("a repeat carried another idempotency key")]
    OtherKey,
    /// A repeat that is another call.
    #[error("a repeat carried other arguments")]
    OtherArguments,
    /// The record says that it is done, and nothing arrived.
    #[error("recorded as done, and never entered")]
    NeverEntered,
    /// Two decisions on record.
    #[error("{0} decisions were recorded for one call")]
    DecidedAgain(usize),
    /// What a paused worker knew is lost.
    #[error("the answer of the paused worker never came into the record")]
    LateAnswerLost,
    /// Not as the protocol says.
    #[error("settled as {found}, and the protocol says {expected}")]
    SettledOtherwise {
        /// The protocol.
        expected: Settled,
        /// The record.
        found: String,
    },
}

/// How a run stands, in words.
pub fn settled_as(state: State, reason: Option<Reason>) -> String {
    match (state, reason) {
        (State::Dead, Some(Reason::WriteInDoubt)) => Settled::InDoubt.to_string(),
        (state, Some(reason)) => format!("{state} ({reason})").replace('_', " "),
        (state, None) => state.to_string().replace('_', " "),
    }
}

/// What the protocol says of a run to which nothing else happens: no person speaks.
pub fn expected(case: &Case) -> Settled {
    let nobody_knows = matches!(case.blow, Blow::AfterStamp | Blow::InTool | Blow::AfterReturn);
    match (case.effect, case.asked) {
        (Effect::NonIdempotentWrite, Asked::Never) if nobody_knows => Settled::InDoubt,
        // Asked, and nothing is there: evidence for a person.
        (Effect::NonIdempotentWrite, Asked::InDoubt) if case.blow == Blow::AfterStamp => Settled::InDoubt,
        _ => Settled::Completed,
    }
}

/// How often the far side is entered, where everything goes as expected and it answers at once.
pub fn entries_expected(case: &Case) -> usize {
    let repeats = matches!(case.blow, Blow::InTool | Blow::AfterReturn | Blow::PausedInTool);
    match case.effect {
        Effect::ReadOnly => 0,
        Effect::IdempotentWrite if repeats => 2,
        Effect::NonIdempotentWrite if case.blow == Blow::AfterStamp && case.asked != Asked::NotApplied => 0,
        _ => 1,
    }
}

/// Everything that is wrong with what was seen.
pub fn judge(case: &Case, seen: &Observed) -> Vec<Finding> {
    let mut findings = Vec::new();
    let entered = seen.entries.len();
    let allowed = if case.asked == Asked::NotApplied { 1 + seen.absent } else { 1 };
    if case.effect == Effect::NonIdempotentWrite && entered > allowed {
        findings.push(Finding::EnteredTwice { entered, allowed });
    }
    if seen.entries.iter().any(|entry| entry.key != seen.entries[0].key || entry.key.is_empty()) {
        findings.push(Finding::OtherKey);
    }
    if seen.entries.iter().any(|entry| entry.arguments != seen.entries[0].arguments) {
        findings.push(Finding::OtherArguments);
    }
    if seen.decisions > 1 {
        findings.push(Finding::DecidedAgain(seen.decisions));
    }
    if matches!(seen.outcome, Some((Outcome::Done, _))) && entered == 0 {
        findings.push(Finding::NeverEntered);
    }
    let expected = expected(case);
    if !is_as_expected(case, expected, seen) {
        let mut found = settled_as(seen.state, seen.reason);
        if let (State::Completed, Some((outcome, _))) = (seen.state, seen.outcome) {
            found = format!("{found} ({outcome})").replace('_', " ");
        }
        findings.push(Finding::SettledOtherwise { expected, found });
    }
    if case.blow == Blow::PausedInTool && case.answers == Answers::AlwaysDone && !seen.late {
        findings.push(Finding::LateAnswerLost);
    }
    findings
}

fn is_as_expected(case: &Case, expected: Settled, seen: &Observed) -> bool {
    let in_doubt = (seen.state, seen.reason) == (State::Dead, Some(Reason::WriteInDoubt));
    let done = matches!(seen.outcome, Some((Outcome::Done, _)));
    // Nothing was entered, and the sleeper has not said so yet: a doubt is the truth until it does.
    if case.blow == Blow::PausedAfterStamp && !seen.late && in_doubt && seen.entries.is_empty() {
        return true;
    }
    match (expected, case.answers) {
        (Settled::InDoubt, _) => in_doubt,
        (Settled::Completed, Answers::AlwaysDone) => seen.state == State::Completed && done,
        // An answer that says nothing is a doubt, or is repeated until the repeats are spent.
        (Settled::Completed, Answers::Any) if case.effect == Effect::NonIdempotentWrite => {
            seen.state == State::Completed || in_doubt
        }
        (Settled::Completed, Answers::Any) => seen.state == State::Completed || seen.reason == Some(Reason::RetriesExhausted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(effect: Effect, blow: Blow) -> Case {
        Case { effect, asked: Asked::Never, blow, answers: Answers::AlwaysDone }
    }

    fn entry() -> Entry {
        Entry { key: "lh-1".into(), arguments: "{}".into() }
    }

    /// As it should be.
    fn good(case: &Case) -> Observed {
        let completed = expected(case) == Settled::Completed;
        Observed {
            entries: vec![entry(); entries_expected(case)],
            absent: 0,
            state: if completed { State::Completed } else { State::Dead },
            reason: (!completed).then_some(Reason::WriteInDoubt),
            outcome: completed.then_some((Outcome::Done, Via::Tool)),
            decisions: 1,
            late: true,
        }
    }

    #[test]
    fn what_the_protocol_says_has_no_findings() {
        for blow in BLOWS {
            for effect in [Effect::IdempotentWrite, Effect::NonIdempotentWrite] {
                for asked in [Asked::Never, Asked::InDoubt, Asked::NotApplied] {
                    for answers in [Answers::AlwaysDone, Answers::Any] {
                        let case = Case { effect, asked, blow, answers };
                        assert_eq!(judge(&case, &good(&case)), [], "{case:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_second_entry_of_a_non_idempotent_write_is_found_at_every_point() {
        for blow in BLOWS {
            let case = case(Effect::NonIdempotentWrite, blow);
            let seen = Observed { entries: vec![entry(); 2], ..good(&case) };
            let twice = Finding::EnteredTwice { entered: 2, allowed: 1 };
            assert!(judge(&case, &seen).contains(&twice), "{blow}");
        }
    }

    #[test]
    fn a_verify_that_answers_absent_allows_one_more_entry_only_where_the_operator_says_so() {
        for (asked, found) in [(Asked::NotApplied, 0), (Asked::InDoubt, 1)] {
            let case = Case { asked, answers: Answers::Any, ..case(Effect::NonIdempotentWrite, Blow::InTool) };
            let seen = Observed { entries: vec![entry(); 2], absent: 1, ..good(&case) };
            assert_eq!(judge(&case, &seen).len(), found, "{asked}");
        }
    }

    #[test]
    fn a_repeat_with_another_key_or_other_arguments_is_found() {
        let case = case(Effect::IdempotentWrite, Blow::InTool);
        let with = |second| Observed { entries: vec![entry(), second], ..good(&case) };
        assert_eq!(judge(&case, &with(Entry { key: "lh-2".into(), ..entry() })), [Finding::OtherKey]);
        assert_eq!(judge(&case, &with(Entry { arguments: "[]".into(), ..entry() })), [Finding::OtherArguments]);
        let without = Observed { entries: vec![Entry { key: String::new(), ..entry() }], ..good(&case) };
        assert_eq!(judge(&case, &without), [Finding::OtherKey], "no key at all");
    }

    #[test]
    fn a_run_that_settles_otherwise_is_found() {
        let doubt = case(Effect::NonIdempotentWrite, Blow::InTool);
        let guessed =
            Observed { state: State::Completed, reason: None, outcome: Some((Outcome::Done, Via::Tool)), ..good(&doubt) };
        assert!(matches!(judge(&doubt, &guessed)[..], [Finding::SettledOtherwise { expected: Settled::InDoubt, .. }]));
        // Also where the far side may answer anything: its worker was killed before it could hear.
        let real = Case { answers: Answers::Any, ..doubt };
        assert_eq!(judge(&real, &guessed).len(), 1);
        let done = case(Effect::IdempotentWrite, Blow::AfterReturn);
        let stuck = Observed { state: State::Running, outcome: None, ..good(&done) };
        assert!(matches!(judge(&done, &stuck)[..], [Finding::SettledOtherwise { .. }]));
        let unsaid = Observed { outcome: Some((Outcome::NotApplied, Via::Tool)), ..good(&done) };
        assert!(matches!(judge(&done, &unsaid)[..], [Finding::SettledOtherwise { .. }]), "it arrived");
    }

    #[test]
    fn a_second_decision_a_lost_late_answer_and_a_done_that_never_arrived_are_found() {
        let twice = case(Effect::IdempotentWrite, Blow::Twice);
        let seen = Observed { decisions: 2, ..good(&twice) };
        assert_eq!(judge(&twice, &seen), [Finding::DecidedAgain(2)]);
        let paused = case(Effect::NonIdempotentWrite, Blow::PausedInTool);
        assert_eq!(judge(&paused, &Observed { late: false, ..good(&paused) }), [Finding::LateAnswerLost]);
        let silent = Observed { entries: Vec::new(), ..good(&twice) };
        assert_eq!(judge(&twice, &silent), [Finding::NeverEntered]);
    }
}
