//! Seeded histories of several workers in virtual time. See `leasehold_testkit::simulation`. Seeds that failed once are kept in
//! `simulation_seeds.txt` and played for ever.

use leasehold_testkit::simulation;
use std::collections::BTreeMap;

#[test]
fn no_seed_breaks_an_invariant() {
    let kept = include_str!("../simulation_seeds.txt").lines().filter_map(|line| line.split('#').next()?.trim().parse().ok());
    let mut happened: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in kept.chain(0..200) {
        match simulation::play(seed) {
            Ok(played) => {
                for (what, times) in played.happened {
                    *happened.entry(what).or_default() += times;
                }
            }
            Err(why) => panic!("add the seed to simulation_seeds.txt: {why}"),
        }
    }
    for what in [
        "a process dies",
        "a process stands still",
        "a process is cut off from its store",
        "a process shuts down",
        "a wall clock jumps",
        "a person cancels",
        "completed",
        "cancelled",
        "lease_expired",
        "in_doubt",
        "resolved",
        "input_required",
        "input",
        "write_restamped",
        "write_not_started",
        "late_evidence",
        "entered after a pause",
    ] {
        assert!(happened.get(what).is_some_and(|n| *n > 0), "never: {what}; {happened:?}");
    }
    eprintln!("{happened:?}");
}

#[test]
fn a_seed_plays_the_same_history_twice() {
    for seed in 0..20 {
        let traces = [simulation::play(seed), simulation::play(seed)].map(|played| played.map(|p| p.trace));
        assert_eq!(traces[0], traces[1], "seed {seed}");
    }
}
