//! `leasehold answer`: what a person says to a running call that asks. Whoever runs the call, wherever that is, hears of it. What is
//! asked is shown before it is answered, unless the answer names the question by its number.

use super::{
    Context, Exit, Failure, Outcome,
    decide::{ask, is_yes},
    input::{to_be_given, values_of},
    local::{Local, Needs, order},
    runs::ordered,
    watch::Signals,
};
use crate::{
    access::Role,
    render::{questions, sentence},
    terminal::{self, Look, Screen},
};
use leasehold::{
    Details, QuestionAnswer,
    run::{CallId, EntryBody},
};
use serde_json::{Map, Value};

/// Options of `answer`.
#[derive(Debug, clap::Args)]
pub(crate) struct AnswerArgs {
    /// The run: its id, or the end of it
    pub(super) run: String,
    /// The call that asks, where several do
    #[arg(long, value_name = "ID")]
    pub(super) call: Option<String>,
    /// Answer without being asked exactly the question of this number
    #[arg(long, value_name = "N")]
    pub(super) question: Option<u64>,
    /// The values: a JSON object, a file with one, or `-` for standard input
    #[arg(
        long,
        value_name = "JSON|@FILE|-",
        allow_hyphen_values = true,
        required_unless_present = "decline",
        conflicts_with = "decline"
    )]
    values: Option<String>,
    /// Give none: the call goes on without
    #[arg(long)]
    decline: bool,
}

impl AnswerArgs {
    /// The values, by key; none: declined.
    pub(super) fn values(&self) -> Result<Option<Map<String, Value>>, Failure> {
        self.values.as_deref().map(values_of).transpose()
    }

    /// The one question that is meant of those that stand, each a call and a number.
    pub(super) fn meant(&self, standing: &[(String, u64)]) -> Result<(String, u64), Failure> {
        let fits = |(call, number): &&(String, u64)| {
            self.call.as_ref().is_none_or(|id| id == call) && self.question.is_none_or(|question| question == *number)
        };
        let mut fitting = standing.iter().filter(fits);
        match (fitting.next(), fitting.next()) {
            (Some(one), None) => Ok(one.clone()),
            (None, _) => Err(Failure::refused("no_question: no such question stands\n  nothing was changed")),
            (Some(_), Some(_)) => {
                let calls: Vec<&str> = standing.iter().map(|(call, _)| call.as_str()).collect();
                Err(Failure::usage(format!("several calls ask: name one with --call; there are: {}", calls.join(", "))))
            }
        }
    }
}

/// Gives the answer.
pub(crate) async fn answer(context: &Context, args: AnswerArgs) -> Outcome {
    let values = args.values()?;
    let local = Local::open(context, Needs::Store).await?;
    local.needs(Role::Approver)?;
    let id = local.find(&args.run).await?;
    let details = local.details(id).await?;
    let (call, question) = match asked_before(&args, &details) {
        Some(named) => named,
        None => {
            let standing: Vec<(String, u64)> =
                local.subject(&details).questions().map(|asked| (asked.call.id.to_string(), asked.number)).collect();
            if standing.is_empty() {
                return Err(Failure::refused(format!(
                    "no_question: nothing is asked: {}",
                    sentence(&local.subject(&details)).1
                )));
            }
            args.meant(&standing)?
        }
    };
    if args.question.is_none() && !confirm(&local, &details, question, values.as_ref()).await? {
        terminal::note("nothing was answered");
        return Ok(Exit::Waits);
    }
    local.may(&args.run, &details.row, |who, run| {
        let asking = run.questions().find(|(asking, number)| asking.id.0 == call && *number == question);
        who.may_answer(run, asking.map(|(call, _)| call).filter(|_| values.is_some()))
    })?;
    let said = QuestionAnswer { call_id: CallId(call), question, values, by: local.who.by() };
    let row = local.runtime.answer(id, said).await.map_err(order)?;
    ordered(&local, &row).await?;
    Ok(Exit::Done)
}

/// The question that is named by its number, whether it stands or not: a repeat gets the same answer.
fn asked_before(args: &AnswerArgs, details: &Details) -> Option<(String, u64)> {
    let number = args.question?;
    let entry = details.entries.iter().find(|entry| entry.sequence == number)?;
    let EntryBody::Question(asked) = &entry.body else { return None };
    args.call.as_ref().is_none_or(|call| *call == asked.call_id.0).then(|| (asked.call_id.to_string(), number))
}

/// Shows what is asked and what is to be said, and asks where somebody is there.
async fn confirm(
    local: &Local<'_>,
    details: &Details,
    question: u64,
    values: Option<&Map<String, Value>>,
) -> Result<bool, Failure> {
    let mut screen = Screen::stderr();
    screen.styled(Look::Strong, format!("Run {} of {}", details.row.id, details.row.agent));
    questions(&mut screen, &local.subject(details), Some(question));
    to_be_said(&mut screen, values);
    screen.eprint();
    said_so(&local.context.command, values.is_some()).await
}

/// Shows what is to be said.
pub(super) fn to_be_said(screen: &mut Screen, values: Option<&Map<String, Value>>) {
    match values {
        Some(values) => to_be_given(screen, values),
        None => {
            screen.styled(Look::Warn, "  no values are to be given");
        }
    }
}

/// Asks whether it is to be said; where nobody can be asked, it is.
pub(super) async fn said_so(command: &str, gives: bool) -> Result<bool, Failure> {
    if !terminal::can_ask() {
        return Ok(true);
    }
    let mut signals = Signals::listen()?;
    terminal::forget_typed()?;
    Ok(is_yes(ask(question(gives).into(), command, &mut signals).await?))
}

/// Nobody says what they have not seen.
pub(super) fn question(gives: bool) -> &'static str {
    if gives { "Give these values? [y/N] " } else { "Decline? [y/N] " }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(call: Option<&str>, question: Option<u64>) -> AnswerArgs {
        AnswerArgs { run: String::new(), call: call.map(Into::into), question, values: None, decline: true }
    }

    #[test]
    fn the_question_that_is_meant_is_one_of_those_that_stand() {
        let standing = [("t1c0".to_owned(), 5), ("t1c1".to_owned(), 7)];
        assert_eq!(args(Some("t1c1"), None).meant(&standing).unwrap(), ("t1c1".into(), 7));
        assert_eq!(args(None, Some(5)).meant(&standing).unwrap(), ("t1c0".into(), 5));
        assert_eq!(args(None, None).meant(&standing[..1]).unwrap(), ("t1c0".into(), 5));
        assert!(matches!(args(None, None).meant(&standing), Err(Failure::Said(Exit::Usage, _))));
        for none in [args(Some("t1c0"), Some(7)), args(None, Some(6)), args(Some("t9c9"), None)] {
            assert!(matches!(none.meant(&standing), Err(Failure::Said(Exit::Refused, _))));
        }
    }
}
