//! What is not recorded cannot fence a write.

use leasehold::{agent::unrecorded::Unrecorded, run::StampCall};

fn fence(mut run: Unrecorded, stamp: StampCall) {
    run.fence(stamp);
    run.refence(stamp, true);
}

fn main() {}
