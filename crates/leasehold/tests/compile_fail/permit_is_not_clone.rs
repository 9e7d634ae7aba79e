//! A permit cannot be kept for later.

use leasehold::agent::tool::WritePermit;

fn keep<T: Clone>(kept: &T) -> T {
    kept.clone()
}

fn again(permit: WritePermit) -> WritePermit {
    keep(&permit)
}

fn main() {}
