//! Real processes on an embedded store, killed at the worst moments.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

#[path = "kill_scenes/mod.rs"]
mod kill_scenes;

use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{APPEND_ONCE, Home, Ledger},
};

async fn home() -> leasehold_testkit::home::Home {
    leasehold_testkit::home::Home::new(env!("CARGO_BIN_EXE_leasehold"))
}

#[tokio::test]
async fn a_run_whose_store_is_deleted_in_mid_write_does_not_claim_that_it_is_recorded() {
    let far = FarSide::start().await.expect("a port");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout: "4s" }, APPEND_ONCE);
    far.then([Then::Hold]);
    let delete = async {
        far.wait_for(1).await;
        for name in ["leasehold.db", "leasehold.db-wal", "leasehold.db-shm"] {
            std::fs::remove_file(home.path().join(name)).expect("it is there");
        }
        far.release();
    };
    let (ran, ()) = tokio::join!(home.run(&["run", "--agent", "a", "append a line"]), delete);
    assert_eq!(ran.code(), 1, "{ran}");
    assert!(ran.stderr().contains("leasehold.db was deleted") && ran.stdout().is_empty(), "{ran}");
    assert!(ran.stderr().contains(&far.arrived()[0].header("idempotency-key")), "the log has the key: {ran}");
    assert_eq!(far.arrived().len(), 1);
}
