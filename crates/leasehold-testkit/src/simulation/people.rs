//! Persons: they decide, resolve what is in doubt by looking at the far side, cancel now and then, and clear what is dead.

use super::{Played, Sim, SimProcess};
use leasehold::{
    Decision, OrderError, Resolution, Submission,
    run::{Principal, Reason, ResolutionKind, RunId, Snapshot, State},
};
use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

pub(super) struct People {
    process: SimProcess,
    runs: Vec<RunId>,
    redriven: HashMap<RunId, u32>,
}

fn bob() -> Principal {
    Principal::person("bob")
}

impl People {
    pub(super) fn new(process: SimProcess, runs: Vec<RunId>) -> Self {
        Self { process, runs, redriven: HashMap::new() }
    }

    /// Looks at one run, or in calm times at all, and does what it needs.
    pub(super) async fn act(&mut self, sim: &Sim, played: &mut Played) {
        let calm = sim.calm.load(Ordering::SeqCst);
        let all = self.runs.clone();
        let one = usize::try_from(sim.chance.below(all.len() as u64)).unwrap_or(0);
        for (index, id) in all.into_iter().enumerate() {
            if !calm && index != one {
                continue;
            }
            // A store that does not answer is asked again the next time.
            let Ok(Some(row)) = sim.store.load(id).await else { continue };
            // Nobody waits for ever for an answer, and persons neither.
            let attended = self.attend(sim, &row, calm, played);
            tokio::time::timeout(Duration::from_secs(40), attended).await.ok();
        }
    }

    async fn attend(&mut self, sim: &Sim, row: &Snapshot, calm: bool, played: &mut Played) {
        let runtime = self.process.runtime.clone();
        let id = row.id;
        if !calm && !row.state.is_settled() && sim.chance.of_thousand(40) {
            *played.happened.entry("a person cancels").or_default() += 1;
            runtime.cancel(id, bob(), None).await.ok();
            return;
        }
        match row.state {
            State::WaitingForApproval => {
                let digest = row.turn.as_ref().and_then(|t| t.digest.clone()).unwrap_or_default();
                let decision = Decision {
                    digest,
                    rest: Some(!sim.chance.of_thousand(200)),
                    reason: None,
                    calls: Vec::new(),
                    by: bob(),
                    execute: sim.chance.of_thousand(600),
                };
                // Refused or lost: looked at again the next time. The same decision twice is one.
                let repeated = sim.chance.of_thousand(300);
                for _ in 0..=usize::from(repeated) {
                    if let Ok(decided) = runtime.decide(id, decision.clone()).await
                        && let Some(execution) = decided.execution
                    {
                        self.process.tasks.push(tokio::spawn(async move {
                            execution.finish().await.ok();
                        }));
                    }
                }
            }
            State::WaitingForInput => {
                *played.happened.entry("a person is asked for input").or_default() += 1;
                let digest = row.turn.as_ref().and_then(|t| t.digest.clone()).unwrap_or_default();
                let values = (!sim.chance.of_thousand(200)).then(serde_json::Map::new);
                let said = Submission { digest, values, by: bob(), execute: sim.chance.of_thousand(600) };
                // Refused or lost: looked at again the next time.
                if let Ok(decided) = runtime.submit(id, said).await
                    && let Some(execution) = decided.execution
                {
                    self.process.tasks.push(tokio::spawn(async move {
                        execution.finish().await.ok();
                    }));
                }
            }
            State::Dead if row.reason == Some(Reason::WriteInDoubt) => {
                let Some(fence) = row.fence.as_ref() else { return };
                let landed = !sim.far.met(&fence.idempotency_key).landed.is_empty();
                let outcome = match (landed, sim.chance.of_thousand(150)) {
                    (_, true) => ResolutionKind::Abandon,
                    (true, false) => ResolutionKind::Landed,
                    (false, false) => ResolutionKind::NotLanded,
                };
                let said = Resolution {
                    call_id: fence.call_id.clone(),
                    fence_epoch: Some(fence.epoch),
                    outcome,
                    result: None,
                    note: None,
                    by: bob(),
                };
                let looked = tokio::time::Instant::now();
                let key = fence.idempotency_key.clone();
                let ordered = runtime.resolve(id, said).await;
                // An order whose answer was lost may have been taken.
                if outcome == ResolutionKind::NotLanded && !matches!(ordered, Err(OrderError::Refused(_))) {
                    sim.far.said_absent(&key, looked);
                }
            }
            State::Dead => {
                let times = self.redriven.entry(id).or_default();
                *times += 1;
                if *times <= 2 && !row.cancel_requested {
                    runtime.redrive(id, bob(), None).await.ok();
                } else {
                    runtime.discard(id, bob(), None).await.ok();
                }
            }
            _ => {}
        }
    }
}
