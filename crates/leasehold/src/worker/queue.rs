//! Whose run is next. Priority first; among equals agents take turns, so that a long queue of one starves no other; within an agent
//! the run that is due earlier. And what a worker need not look at again. Pure: no store, no clock.

use crate::{limits, run::RunId};
use jiff::Timestamp;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, HashSet, VecDeque},
};

/// When each agent had its last turn, by a count of turns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    last: HashMap<String, u64>,
    count: u64,
}

impl Turns {
    /// A run of this agent was claimed.
    pub(crate) fn took(&mut self, agent: &str) {
        self.count += 1;
        self.last.insert(agent.to_owned(), self.count);
    }

    /// The rows in the order in which they are to be claimed; `key` gives agent, priority, due time and id.
    pub(crate) fn order<T>(&self, rows: Vec<T>, key: impl Fn(&T) -> (&str, i32, Timestamp, RunId)) -> Vec<T> {
        let mut turns = self.clone();
        let mut queues: HashMap<String, VecDeque<T>> = HashMap::new();
        for row in rows {
            queues.entry(key(&row).0.to_owned()).or_default().push_back(row);
        }
        for queue in queues.values_mut() {
            queue.make_contiguous().sort_by_key(|row| {
                let (_, priority, due_at, id) = key(row);
                (Reverse(priority), due_at, id)
            });
        }
        let head = |turns: &Self, row: &T| {
            let (agent, priority, due_at, id) = key(row);
            let last = turns.last.get(agent).copied().unwrap_or(0);
            (priority, Reverse((last, due_at, id)), agent.to_owned())
        };
        let mut heads: BinaryHeap<_> = queues.values().filter_map(|q| q.front()).map(|row| head(&turns, row)).collect();
        let mut ordered = Vec::new();
        while let Some((.., agent)) = heads.pop() {
            let Some(queue) = queues.get_mut(&agent) else { continue };
            ordered.extend(queue.pop_front());
            turns.took(&agent);
            heads.extend(queue.front().map(|row| head(&turns, row)));
        }
        ordered
    }
}

/// Due runs that this worker cannot serve, with what it lacks; each reason is said once.
#[derive(Debug, Default)]
pub(crate) struct PassedOver {
    runs: Vec<RunId>,
    said: HashSet<String>,
}

impl PassedOver {
    /// True where this is the first run with this reason.
    pub(crate) fn add(&mut self, run: RunId, why: &str) -> bool {
        if self.runs.len() < limits::PASSED_OVER_MAX {
            self.runs.push(run);
        }
        self.said.len() < limits::PASSED_OVER_MAX && self.said.insert(why.to_owned())
    }

    /// They are looked at again: what they need may have changed.
    pub(crate) fn look_again(&mut self) {
        self.runs.clear();
    }

    /// What a claim leaves out.
    pub(crate) fn runs(&self) -> &[RunId] {
        &self.runs
    }

    /// How many rows of an agent to ask for, where there are places for so many.
    pub(crate) fn depth(&self, places: usize) -> usize {
        if self.runs.len() < limits::PASSED_OVER_MAX { places } else { limits::PAGE_MAX }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::{PassedOver, Turns};
    use crate::{limits, run::RunId};
    use jiff::Timestamp;

    /// Agent, priority, due time.
    type Row = (&'static str, i32, i64);

    fn key((row, id): &(Row, RunId)) -> (&str, i32, Timestamp, RunId) {
        (row.0, row.1, Timestamp::from_millisecond(row.2).unwrap(), *id)
    }

    fn order(turns: &Turns, rows: &[Row]) -> Vec<Row> {
        let rows = rows.iter().enumerate().map(|(n, row)| (*row, RunId(uuid::Uuid::from_u128(n as u128)))).collect();
        turns.order(rows, key).into_iter().map(|(row, _)| row).collect()
    }

    #[test]
    fn a_larger_priority_comes_first_whoever_had_the_last_turn() {
        let mut turns = Turns::default();
        turns.took("a");
        assert_eq!(order(&turns, &[("b", 0, 0), ("a", 1, 9), ("b", 2, 9)]), [("b", 2, 9), ("a", 1, 9), ("b", 0, 0)]);
    }

    #[test]
    fn agents_of_one_priority_take_turns_and_each_keeps_its_own_order() {
        let rows = [("a", 0, 3), ("a", 0, 1), ("a", 0, 2), ("a", 0, 4), ("b", 0, 8), ("b", 0, 7), ("c", 0, 9)];
        let expected = [("a", 0, 1), ("b", 0, 7), ("c", 0, 9), ("a", 0, 2), ("b", 0, 8), ("a", 0, 3), ("a", 0, 4)];
        assert_eq!(order(&Turns::default(), &rows), expected);
    }

    #[test]
    fn an_agent_that_had_a_turn_waits_for_the_others_also_in_the_next_round() {
        let mut turns = Turns::default();
        let mut served = Vec::new();
        for _ in 0..6 {
            // One place is free each time, and the queue of `a` never ends.
            let next = order(&turns, &[("a", 0, 0), ("b", 0, 5), ("c", 0, 6)])[0].0;
            turns.took(next);
            served.push(next);
        }
        assert_eq!(served, ["a", "b", "c", "a", "b", "c"]);
    }

    #[test]
    fn runs_that_are_due_at_once_come_in_the_order_of_their_ids() {
        let rows = [("a", 0, 1), ("a", 0, 1), ("a", 0, 1)];
        let ids: Vec<RunId> = (1..=3).map(|n| RunId(uuid::Uuid::from_u128(n))).collect();
        let mixed = vec![ids[2], ids[0], ids[1]];
        assert_eq!(Turns::default().order(mixed, |id| (rows[0].0, 0, Timestamp::UNIX_EPOCH, *id)), ids);
    }

    #[test]
    fn what_is_passed_over_is_bounded_said_once_a_reason_and_then_looked_for_a_page_deep() {
        let mut over = PassedOver::default();
        assert!(over.add(RunId::new(), "x"));
        assert!(!over.add(RunId::new(), "x"));
        assert!(over.add(RunId::new(), "y"));
        assert_eq!((over.runs().len(), over.depth(2)), (3, 2));
        for n in 0..2 * limits::PASSED_OVER_MAX {
            over.add(RunId::new(), &n.to_string());
        }
        assert_eq!((over.runs().len(), over.depth(2)), (limits::PASSED_OVER_MAX, limits::PAGE_MAX));
        over.look_again();
        assert_eq!((over.runs().len(), over.depth(2)), (0, 2));
        assert!(!over.add(RunId::new(), "x"), "said before");
    }
}
