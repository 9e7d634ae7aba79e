//! Many random histories. The seeds are fixed; `WALKS=100000` goes further.

use super::walk::Walk;
use leasehold::run::TABLE;

#[test]
fn no_random_history_breaks_an_invariant() {
    let walks: u64 = std::env::var("WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(6_000);
    let mut rules = std::collections::BTreeSet::new();
    let mut happened = std::collections::BTreeMap::new();
    for seed in 0..walks {
        let mut walk = Walk::new(seed);
        assert_eq!(walk.world.born.entries.len() as u64, walk.world.row.sequence, "a run begins with what it counts");
        for _ in 0..walk.rng.u32(40..240) {
            walk.step();
        }
        walk.world.check_history();
        walk.drain();
        walk.world.check_history();
        rules.extend(walk.world.rules.keys().copied());
        for (what, times) in &walk.world.happened {
            *happened.entry(*what).or_insert(0) += times;
        }
    }
    // A history that never gets anywhere would break nothing.
    for (index, rule) in TABLE.iter().enumerate().filter(|(_, r)| !r.from.is_empty()) {
        assert!(rules.contains(&index), "no history took {} from {:?} ({}); {happened:?}", rule.event, rule.from, rule.guard);
    }
    for what in [
        "entered",
        "entered after a pause",
        "evidence taken",
        "late outcome",
        "late not started",
        "verified",
        "restamped after a verify",
        "a tool asks",
        "landed twice, and listed",
    ] {
        assert!(happened.get(what).is_some_and(|n| *n > 10), "{what}: {happened:?}");
    }
}
