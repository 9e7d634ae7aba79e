//! What the other crates' tests are made of, tested itself.

mod drill;
mod faulty;
