//! The pure core, tested through what it exports: every pair of row and event, random histories, and the cases by name.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

mod cases;
mod check;
mod edges;
mod enumerate;
mod events;
mod given;
mod histories;
mod page;
mod regressions;
mod rows;
mod rules;
mod single;
mod story;
mod units;
mod walk;
mod world;
