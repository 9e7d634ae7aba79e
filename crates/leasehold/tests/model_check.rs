//! Every history of one run within small bounds; the proof command goes further. See `leasehold_testkit::model`.

use leasehold_testkit::model;

#[test]
fn no_history_within_small_bounds_breaks_an_invariant() {
    for plan in model::short() {
        match model::explore(&plan, 2_000_000) {
            Ok(report) => {
                eprintln!("{report:?}");
                assert!(!report.cut, "{}: not everything was seen", plan.name);
            }
            Err(history) => panic!("{history}"),
        }
    }
}
