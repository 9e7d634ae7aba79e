//! Real processes on an embedded store, killed at the worst moments.

mod kill_scenes;

async fn home() -> leasehold_testkit::home::Home {
    leasehold_testkit::home::Home::new(env!("CARGO_BIN_EXE_leasehold"))
}
