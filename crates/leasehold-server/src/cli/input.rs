//! `leasehold input`: values for the call that waits for them. They are validated before anything is consumed; of a write they are
//! its release, so they name by their digest what was shown, as a decision does.

use super::{
    Context, Failure, Outcome,
    answer::{question, to_be_said},
    decide::{ask, can_name, go_on, is_yes, undecided},
    local::{Local, Needs, order},
    resolve::json_or_file,
    run::{finish, report},
    watch::Signals,
};
use crate::{
    access::Role,
    render::{arguments, card, sentence},
    terminal::{self, Look, Screen},
};
use leasehold::{Details, Submission, run::State};
use serde_json::{Map, Value};
use std::io::Read as _;

/// Options of `input`.
#[derive(Debug, clap::Args)]
pub(crate) struct InputArgs {
    /// The run: its id, or the end of it
    pub(super) run: String,
    /// Answer without being asked exactly what has this digest
    #[arg(long, value_name = "D")]
    pub(super) digest: Option<String>,
    /// The values: a JSON object, a file with one, or `-` for standard input
    #[arg(
        long,
        value_name = "JSON|@FILE|-",
        allow_hyphen_values = true,
        required_unless_present = "decline",
        conflicts_with = "decline"
    )]
    values: Option<String>,
    /// Give none: the call is denied, or goes on without where it asked itself
    #[arg(long)]
    decline: bool,
    /// Commit the values and leave the run to a worker
    #[arg(long)]
    pub(super) no_wait: bool,
}

impl InputArgs {
    /// The values, by key; none: declined.
    pub(super) fn values(&self) -> Result<Option<Map<String, Value>>, Failure> {
        self.values.as_deref().map(values_of).transpose()
    }
}

/// Values as `--values` has them: JSON, a file with it, or standard input.
pub(super) fn values_of(text: &str) -> Result<Map<String, Value>, Failure> {
    let value = if text == "-" {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(|e| Failure::usage(format!("--values: standard input cannot be read: {e}")))?;
        serde_json::from_str(&text).map_err(|e| Failure::usage(format!("--values: standard input is not JSON: {e}")))?
    } else {
        json_or_file("--values", text)?
    };
    match value {
        Value::Object(values) => Ok(values),
        _ => Err(Failure::usage("--values is not a JSON object: give each value with its name")),
    }
}

/// Gives the values, and goes on with the run.
pub(crate) async fn input(context: &Context, args: InputArgs) -> Outcome {
    let values = args.values()?;
    can_name(args.digest.as_deref(), &context.command, &args.run)?;
    let execute = !args.no_wait && context.config.execute.value;
    let mut local = Local::open(context, if execute { Needs::Agents } else { Needs::Declared }).await?;
    let outcome = input_to(&mut local, args, values, execute).await;
    local.end().await;
    outcome
}

async fn input_to(local: &mut Local<'_>, args: InputArgs, values: Option<Map<String, Value>>, execute: bool) -> Outcome {
    local.needs(Role::Approver)?;
    let id = local.find(&args.run).await?;
    let details = local.details(id).await?;
    let mut signals = Signals::listen()?;
    let digest = match args.digest {
        Some(digest) => digest,
        None => match confirm(local, &details, values.as_ref(), &mut signals).await? {
            Some(digest) => digest,
            None => {
                terminal::note("no values were given");
                return report(local, &details).await;
            }
        },
    };
    let given = values.is_some();
    local.may(&args.run, &details.row, |who, run| {
        who.may_decide(run, undecided(&details).filter(|call| given || call.has_asked()))
    })?;
    let by = local.who.principal.clone();
    let submitted = local.runtime.submit(id, Submission { digest, values, by, execute }).await.map_err(order)?;
    let executes = submitted.execution.is_some();
    go_on(local, &details.row, submitted, &mut signals).await?;
    finish(local, id, executes, &mut signals).await
}

/// Shows what is asked and what is to be answered; the digest of what was shown where the answer is yes.
async fn confirm(
    local: &Local<'_>,
    details: &Details,
    values: Option<&Map<String, Value>>,
    signals: &mut Signals,
) -> Result<Option<String>, Failure> {
    let digest = details.row.turn.as_ref().and_then(|turn| turn.digest.clone());
    let (Some(digest), State::WaitingForInput) = (digest, details.row.state) else {
        return Err(Failure::refused(format!("nothing waits for values: {}", sentence(&local.subject(details)).1)));
    };
    let mut screen = Screen::stderr();
    screen.styled(Look::Strong, format!("Run {} of {}", details.row.id, details.row.agent));
    card(&mut screen, &local.subject(details), None);
    to_be_said(&mut screen, values);
    screen.eprint();
    terminal::forget_typed()?;
    Ok(is_yes(ask(question(values.is_some()).into(), &local.context.command, signals).await?).then_some(digest))
}

/// Shows the values.
pub(super) fn to_be_given(screen: &mut Screen, values: &Map<String, Value>) {
    screen.styled(Look::Warn, "  these values are to be given");
    arguments(screen, 6, values);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Exit;

    #[test]
    fn values_are_an_object() {
        let of = |values: &str| {
            let values = Some(values.into());
            InputArgs { run: String::new(), digest: None, values, decline: false, no_wait: false }.values()
        };
        assert_eq!(of("{\"amount\": 7}").unwrap().unwrap()["amount"], 7);
        for wrong in ["[]", "7", "null", "{", "@/nowhere"] {
            assert!(matches!(of(wrong), Err(Failure::Said(Exit::Usage, _))), "{wrong}");
        }
    }
}
