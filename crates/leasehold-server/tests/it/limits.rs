//! Limits of an agent as the configuration has them, with the real command.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use leasehold_testkit::{
    far_side::FarSide,
    home::{APPEND_ONCE, Home, Ledger},
};

const TIGHT: &str = r#"
[[agent]]
name = "tight"
model = "m"
tools = ["ledger.append"]
effect_budgets = [{ tool = "ledger.*", max_writes = 1, window = "1h" }]
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_write_beyond_the_configured_budget_waits_for_a_person_in_every_process_and_one_within_does_not() {
    let far = FarSide::start().await.unwrap();
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    home.ledger_with(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout: "2s" }, APPEND_ONCE, TIGHT);
    let run = async |agent: &str, code: i32| {
        let ran = home.run(&["run", "--agent", agent, "append a line", "--json"]).await;
        assert_eq!(ran.code(), code, "{ran}");
        ran.json()
    };
    run("tight", 0).await;
    let waiting = run("tight", 3).await;
    assert_eq!(far.arrived().len(), 1);
    let id = waiting["id"].as_str().unwrap();
    let shown = home.run(&["runs", "show", id]).await;
    assert!(shown.stdout().contains("over budget: tight: writes of ledger.* in 3600 s"), "{shown}");
    // Of another agent it is not.
    run("a", 0).await;
    // A person lets it through.
    let digest = waiting["waiting"]["turn_digest"].as_str().unwrap();
    let approved = home.run(&["approve", id, "--digest", digest, "--json"]).await;
    assert_eq!((approved.code(), far.arrived().len()), (0, 3), "{approved}");
    let config = home.run(&["config"]).await;
    assert!(
        config.stdout().contains("effect_budgets = [{ tool = \"ledger.*\", max_writes = 1, window = \"1h\" }]"),
        "{config}"
    );
}
