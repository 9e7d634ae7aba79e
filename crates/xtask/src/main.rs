//! The proofs as one command: `cargo xtask proof [--short]`, and its parts by name.

use leasehold_testkit::model;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let plans = if args.iter().any(|a| a == "--short") { model::short() } else { model::full() };
    let only: Option<usize> = args.iter().find_map(|a| a.parse().ok());
    for (i, plan) in plans.iter().enumerate() {
        if only.is_some_and(|n| n != i) {
            continue;
        }
        match model::explore(plan, std::env::var("MAX").ok().and_then(|m| m.parse().ok()).unwrap_or(100_000)) {
            Ok(r) => println!("{r:?}"),
            Err(e) => println!("BROKEN {}", e.chars().take(6000).collect::<String>()),
        }
    }
    Ok(())
}
