//! `answer` at a server.

use super::{
    Remote,
    shown::{ASKS, Run, Shown},
};
use crate::{
    cli::{
        Exit, Failure, Outcome,
        answer::{AnswerArgs, said_so, to_be_said},
    },
    terminal::{self, Look, Screen},
};
use serde_json::json;

impl Remote {
    /// Answers what a running call asks.
    pub(super) async fn answer(&self, args: AnswerArgs) -> Outcome {
        let values = args.values()?;
        let id = self.find(&args.run).await?;
        let (call, question) = match (&args.call, args.question) {
            // Who names it need not see the run any more: whoever was faster is said to them.
            (Some(call), Some(question)) => (call.clone(), question),
            _ => {
                let Shown { run, text, .. } = self.show(id).await?;
                let standing: Vec<(String, u64)> =
                    run.questions.iter().map(|asked| (asked.call_id.clone(), asked.question)).collect();
                if standing.is_empty() {
                    let mut screen = Screen::new(false);
                    text.sentence(&mut screen);
                    return Err(Failure::refused(format!("no_question: nothing is asked: {}", screen.into_text().trim_end())));
                }
                let meant = args.meant(&standing)?;
                if args.question.is_none() {
                    let mut screen = Screen::stderr();
                    screen.styled(Look::Strong, format!("Run {} of {}", run.id, run.agent));
                    text.part(&mut screen, ASKS);
                    screen.line(format!("  call {}, question {}", meant.0, meant.1));
                    to_be_said(&mut screen, values.as_ref());
                    screen.eprint();
                    if !said_so(&self.command, values.is_some()).await? {
                        terminal::note("nothing was answered");
                        return Ok(Exit::Waits);
                    }
                }
                meant
            }
        };
        let mut body = json!({ "call_id": call, "question": question });
        match values {
            Some(values) => body["values"] = json!(values),
            None => body["decline"] = json!(true),
        }
        let said = self.client.post(&format!("/runs/{id}/answer"), &body, None).await?;
        if self.look(id).await.is_err_and(|trouble| trouble.is_hidden()) {
            terminal::note("it is taken; what the run does after it is not shown to this token");
            let run: Run = said.read()?;
            terminal::note(format!("run {}: {}", run.id, run.state.as_str().replace('_', " ")));
            return Ok(Exit::Done);
        }
        self.ordered(id, &said).await?;
        Ok(Exit::Done)
    }
}
