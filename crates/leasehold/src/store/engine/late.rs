//! What a process says of its own writes after its right has moved on.

use super::*;

impl Engine {
    /// Offers what a tool answered after its segment had lost the right, until the store has taken it; in the background, for as
    /// long as this process lives. The same answer sent twice is one entry.
    pub(crate) fn offer_late(self: &Arc<Self>, run: RunId, late: Late, aside: Vec<PutAside>) {
        let engine = Arc::clone(self);
        let write_id = WriteId::of_content(&format!(
            "late/{run}/{}/{}/{}/{}",
            late.call_id, late.right.epoch, late.right.lease_id, late.answer
        ));
        let offer = async move {
            // What cannot be sealed is not kept; the outcome counts.
            let kept = engine.sealed_artifacts(run, &late.call_id, &aside).unwrap_or_default();
            let call = late.call_id.clone();
            loop {
                match engine.say_late(run, &late, write_id, &kept).await {
                    Ok(()) => return tracing::info!(%run, %call, "run {run}: the late outcome of call {call} is on record"),
                    // The lease has not been taken away yet (once it is, the answer counts), or the store is still away.
                    Err(
                        CommitError::Rejected(Rejection::StillHolder)
                        | CommitError::Unavailable(_)
                        | CommitError::Refused(_)
                        | CommitError::Moved
                        | CommitError::Fenced,
                    ) => tokio::time::sleep(Duration::from_secs(1)).await,
                    Err(error) => {
                        return tracing::error!(%run, %call, "run {run}: the late outcome of call {call} was refused: {error}");
                    }
                }
            }
        };
        self.late.spawn(offer);
    }

    async fn say_late(&self, run: RunId, late: &Late, write_id: WriteId, kept: &Sealed) -> Result<(), CommitError> {
        if late.answer == LateAnswer::NotStarted {
            // It is said where the stamp's own answer was lost, too: a stamp that never came to be has nothing to take back.
            let row = self.load(run).await?;
            let Right { epoch, lease_id } = late.right;
            if row.epoch == epoch && row.lease.as_ref().is_some_and(|l| l.lease_id == lease_id) {
                return Err(Rejection::StillHolder.into());
            }
            let call = row.turn.as_ref().and_then(|t| t.known(&late.call_id));
            if call.is_none_or(|c| c.stamp_of(epoch, lease_id).is_none()) {
                return Ok(());
            }
        }
        let event = |_: &Snapshot| Event::LateOutcome(late.clone());
        self.change_keeping(run, write_id, Duration::from_secs(60), event, kept).await.map(|_| ())
    }

    /// Waits until every late outcome is on record, at most `patience`. True where none is left.
    pub async fn late_outcomes_recorded(&self, patience: Duration) -> bool {
        self.late.close();
        let done = tokio::time::timeout(patience, self.late.wait()).await.is_ok();
        self.late.reopen();
        done
    }
}
