//! A permit comes from a fenced segment, and from nowhere else.

use leasehold::{agent::tool::WritePermit, run::RunId};

fn main() {
    let _ = WritePermit { run: RunId::new() };
    let _ = WritePermit::new(RunId::new());
}
