//! A segment comes from a grant: a start, a claim, a decision.

use leasehold::{run::Snapshot, worker::Segment};

fn from_a_row(row: Snapshot) -> Segment {
    Segment { row }
}

fn main() {
    let _make = Segment::new;
}
