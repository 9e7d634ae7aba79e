//! Questions at the terminal. What is asked about is shown first, and an answer names its digest.

use super::{
    Remote,
    client::Trouble,
    shown::{Run, Shown, WAITS},
};
use crate::{
    cli::{
        Failure,
        decide::{ask, is_yes, verdict},
        watch::Signals,
    },
    terminal::{self, Look, Screen},
};
use leasehold::run::{RunId, State};
use serde_json::{Value, json};

impl Remote {
    /// Shows what waits and, after that, `more`; the digest of what was shown where the answer is yes.
    pub(super) async fn confirm(
        &self,
        shown: &Shown,
        question: String,
        more: impl FnOnce(&mut Screen),
        signals: &mut Signals,
    ) -> Result<Option<String>, Failure> {
        let mut screen = Screen::stderr();
        let Some(waiting) = &shown.run.waiting else {
            shown.text.sentence(&mut screen);
            screen.eprint();
            return Err(Failure::refused("nothing waits for a person"));
        };
        screen.styled(Look::Strong, format!("Run {} of {}", shown.run.id, shown.run.agent));
        shown.text.part(&mut screen, WAITS);
        more(&mut screen);
        screen.eprint();
        terminal::forget_typed()?;
        Ok(is_yes(ask(question, &self.command, signals).await?).then(|| waiting.turn_digest.clone()))
    }

    /// Asks about each call that waits, and decides. False where nothing more is to be asked.
    pub(super) async fn ask_and_decide(&self, id: RunId, signals: &mut Signals) -> Result<bool, Failure> {
        let Shown { run, text, .. } = self.show(id).await?;
        let (Some(waiting), State::WaitingForApproval) = (&run.waiting, run.state) else { return Ok(false) };
        let mut screen = Screen::stderr();
        screen.gap().styled(Look::Warn, "A person has to decide");
        text.part(&mut screen, WAITS);
        screen.eprint();
        let mut calls: Vec<Value> = Vec::new();
        for call in run.undecided() {
            terminal::note(format!("{} {}", call.tool, call.id));
            let Some((approved, reason)) = verdict(&self.command, signals).await? else { continue };
            calls.push(json!({ "id": call.id, "decision": word(approved), "reason": reason }));
        }
        if calls.is_empty() {
            return Ok(false);
        }
        let body = json!({ "turn_digest": waiting.turn_digest, "calls": calls });
        match self.client.post(&format!("/runs/{id}/decision"), &body, None).await {
            // A part was decided and the rest was skipped: it is not asked for again at once.
            Ok(answer) => Ok(!answer.read::<Run>()?.state.is_waiting()),
            Err(Trouble::Refused(status, problem)) if status.is_client_error() => {
                let again = status == reqwest::StatusCode::CONFLICT;
                let Failure::Said(_, why) = Trouble::Refused(status, problem).into() else { return Ok(false) };
                terminal::note(format!("not taken: {why}"));
                Ok(again)
            }
            Err(trouble) => Err(trouble.into()),
        }
    }
}

/// A verdict as the API takes it.
pub(super) fn word(approved: bool) -> &'static str {
    if approved { "approve" } else { "deny" }
}
