//! `leasehold approve`, `deny`, and the question at a terminal. A decision names by its digest exactly what was shown; no
//! terminal and no digest is no decision, and the end of the input is never a yes.

use super::{
    Context, Exit, Failure, Outcome,
    local::{Local, Needs, order},
    run::{finish, report},
    watch::{Signals, execute},
};
use crate::{
    access::Role,
    render::{arguments, card, sentence},
    terminal::{self, Look, Screen},
};
use leasehold::{
    Decided, Decision, Details,
    run::{CallId, DecideCall, OpenCall, Snapshot, State},
};
use serde_json::{Map, Value};

/// Options of `approve` and `deny`.
#[derive(Debug, clap::Args)]
pub(crate) struct DecideArgs {
    /// The run: its id, or the end of it
    pub(super) run: String,
    /// Decide without being asked about exactly what has this digest
    #[arg(long, value_name = "D")]
    pub(super) digest: Option<String>,
    /// Only this call; may be repeated. Otherwise every undecided call
    #[arg(long = "call", value_name = "ID")]
    pub(super) calls: Vec<String>,
    /// Why; kept in the record and told to the model
    #[arg(long, value_name = "T")]
    pub(super) reason: Option<String>,
    /// Commit the decision and leave the run to a worker
    #[arg(long)]
    pub(super) no_wait: bool,
}

/// Options of `approve`.
#[derive(Debug, clap::Args)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    pub(super) decide: DecideArgs,
    /// Let the call run with these arguments instead (one call only)
    #[arg(long, value_name = "JSON")]
    pub(super) arguments: Option<String>,
}

/// Releases calls.
pub(crate) async fn approve(context: &Context, args: ApproveArgs) -> Outcome {
    let arguments = args.arguments.as_deref().map(object).transpose()?;
    decide(context, args.decide, true, arguments).await
}

/// Denies calls.
pub(crate) async fn deny(context: &Context, args: DecideArgs) -> Outcome {
    decide(context, args, false, None).await
}

pub(super) fn object(text: &str) -> Result<Map<String, Value>, Failure> {
    serde_json::from_str(text).map_err(|e| Failure::usage(format!("--arguments is not a JSON object: {e}")))
}

async fn decide(context: &Context, args: DecideArgs, approved: bool, arguments: Option<Map<String, Value>>) -> Outcome {
    can_name(args.digest.as_deref(), &context.command, &args.run)?;
    let execute_here = !args.no_wait && context.config.execute.value;
    let mut local = Local::open(context, if execute_here { Needs::Agents } else { Needs::Declared }).await?;
    let outcome = decide_on(&mut local, args, approved, arguments, execute_here).await;
    local.end().await;
    outcome
}

async fn decide_on(
    local: &mut Local<'_>,
    args: DecideArgs,
    approved: bool,
    arguments: Option<Map<String, Value>>,
    execute_here: bool,
) -> Outcome {
    local.needs(Role::Approver)?;
    let id = local.find(&args.run).await?;
    let details = local.details(id).await?;
    let calls = named_calls(&details, &args.calls, approved, args.reason.as_ref(), arguments)?;
    let mut signals = Signals::listen()?;
    let digest = match args.digest {
        Some(digest) => digest,
        None => match confirm(local, &details, approved, &args.calls, &calls, &mut signals).await? {
            Some(digest) => digest,
            None => {
                terminal::note("nothing was decided");
                return report(local, &details).await;
            }
        },
    };
    let rest = calls.is_empty().then_some(approved);
    may_decide(local, &details, rest, &calls)?;
    let by = local.who.by();
    let decision = Decision { digest, rest, reason: args.reason, calls, by, execute: execute_here };
    let decided = local.runtime.decide(id, decision).await.map_err(order)?;
    let executes = decided.execution.is_some();
    go_on(local, &details.row, decided, &mut signals).await?;
    finish(local, id, executes, &mut signals).await
}

/// Somebody can be asked here, or what is decided about is named.
pub(super) fn can_name(digest: Option<&str>, command: &str, run: &str) -> Result<(), Failure> {
    if digest.is_some() || terminal::can_ask() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "nobody can be asked here: name what you decide about with --digest, as `{command} runs show {run}` prints it"
    )))
}

/// The calls that `--call` and `--arguments` name.
fn named_calls(
    details: &Details,
    named: &[String],
    approved: bool,
    reason: Option<&String>,
    arguments: Option<Map<String, Value>>,
) -> Result<Vec<DecideCall>, Failure> {
    let mut ids: Vec<CallId> = named.iter().map(|id| CallId(id.clone())).collect();
    if arguments.is_some() && ids.is_empty() {
        ids = undecided(details).map(|call| call.id.clone()).collect();
    }
    if arguments.is_some() && ids.len() != 1 {
        return Err(Failure::usage("--arguments is for one call: name it with --call"));
    }
    Ok(ids
        .into_iter()
        .map(|call_id| DecideCall {
            approved,
            reason: reason.cloned(),
            arguments: arguments.clone(),
            ..DecideCall::approve(call_id)
        })
        .collect())
}

pub(super) fn undecided(details: &Details) -> impl Iterator<Item = &OpenCall> {
    details.row.turn.iter().flat_map(|turn| &turn.calls).filter(|call| call.is_undecided())
}

/// The caller may give these verdicts. What it was shown has the digest that is sent with them, so nothing else can be released.
fn may_decide(local: &Local<'_>, details: &Details, rest: Option<bool>, calls: &[DecideCall]) -> Result<(), Failure> {
    let released = undecided(details).filter(|call| {
        let named = calls.iter().find(|verdict| verdict.call_id == call.id);
        named.map_or(rest == Some(true), |verdict| verdict.approved)
    });
    let id = details.row.id.to_string();
    local.may(&id, &details.row, |who, run| who.may_decide(run, released))
}

/// Shows the card and asks; the digest of what was shown where the answer is yes.
async fn confirm(
    local: &Local<'_>,
    details: &Details,
    approved: bool,
    named: &[String],
    calls: &[DecideCall],
    signals: &mut Signals,
) -> Result<Option<String>, Failure> {
    let digest = details.row.turn.as_ref().and_then(|turn| turn.digest.clone());
    let (Some(digest), State::WaitingForApproval) = (digest, details.row.state) else {
        return Err(Failure::refused(format!("nothing waits for a decision: {}", sentence(&local.subject(details)).1)));
    };
    let mut screen = Screen::stderr();
    screen.styled(Look::Strong, format!("Run {} of {}", details.row.id, details.row.agent));
    card(&mut screen, &local.subject(details), None);
    for call in calls {
        if let Some(instead) = &call.arguments {
            screen.styled(Look::Warn, format!("  {} is to run with these arguments instead", call.call_id));
            arguments(&mut screen, 6, instead);
        }
    }
    screen.eprint();
    let which = if named.is_empty() { "all undecided calls".to_owned() } else { named.join(", ") };
    let verb = if approved { "Approve" } else { "Deny" };
    terminal::forget_typed()?;
    let answer = ask(format!("{verb} {which}? [y/N] "), &local.context.command, signals).await?;
    Ok(is_yes(answer).then_some(digest))
}

/// Nothing else is a yes, the end of the input least of all.
pub(super) fn is_yes(answer: Option<String>) -> bool {
    answer.is_some_and(|answer| matches!(answer.to_lowercase().as_str(), "y" | "yes"))
}

/// Asks on the terminal while Ctrl-C is heard: it leaves the run waiting.
pub(super) async fn ask(question: String, command: &str, signals: &mut Signals) -> Result<Option<String>, Failure> {
    let typed = tokio::task::spawn_blocking(move || terminal::ask(&question));
    tokio::select! {
        answer = typed => Ok(answer.map_err(|e| Failure::refused(e.to_string()))??),
        _ = signals.next() => {
            terminal::note("");
            terminal::note(format!("left waiting: decide later, see `{command} inbox`"));
            // The thread that reads the terminal cannot be stopped in any other way.
            std::process::exit(i32::from(Exit::Waits.code()));
        }
    }
}

/// Asks about each call that waits, decides, and goes on with the run. False where nothing was decided.
pub(crate) async fn ask_and_go_on(local: &mut Local<'_>, details: &Details, signals: &mut Signals) -> Result<bool, Failure> {
    let Some(digest) = details.row.turn.as_ref().and_then(|turn| turn.digest.clone()) else { return Ok(false) };
    let mut calls = Vec::new();
    for call in undecided(details) {
        let mut screen = Screen::stderr();
        screen.gap().styled(Look::Warn, "A person has to decide");
        card(&mut screen, &local.subject(details), Some(&call.id));
        screen.eprint();
        let Some((approved, reason)) = verdict(&local.context.command, signals).await? else { continue };
        calls.push(DecideCall { approved, reason, ..DecideCall::approve(call.id.clone()) });
    }
    if calls.is_empty() {
        return Ok(false);
    }
    let execute_here = local.context.config.execute.value;
    let id = details.row.id;
    may_decide(local, details, None, &calls)?;
    let by = local.who.by();
    let decision = Decision { digest, rest: None, reason: None, calls, by, execute: execute_here };
    let decided = match local.runtime.decide(id, decision).await {
        Ok(decided) => decided,
        Err(leasehold::OrderError::Refused(rejection)) => {
            terminal::note(format!("not taken: {rejection}"));
            return Ok(true);
        }
        Err(error) => return Err(order(error)),
    };
    let still_waits = decided.row.state.is_waiting();
    go_on(local, &details.row, decided, signals).await?;
    // A part was decided and the rest was skipped: it is not asked for again at once.
    Ok(!still_waits)
}

/// Approve with true, deny with false and perhaps a reason; none: skipped.
pub(super) async fn verdict(command: &str, signals: &mut Signals) -> Result<Option<(bool, Option<String>)>, Failure> {
    terminal::forget_typed()?;
    loop {
        let Some(answer) = ask("  [a]pprove, [d]eny or [s]kip? ".into(), command, signals).await? else { return Ok(None) };
        match answer.to_lowercase().as_str() {
            "a" | "approve" => return Ok(Some((true, None))),
            "d" | "deny" => {
                let reason = ask("  why, for the model (empty: no reason)? ".into(), command, signals).await?;
                return Ok(Some((false, reason.filter(|text| !text.is_empty()))));
            }
            "s" | "skip" => return Ok(None),
            _ => terminal::note("  answer with a, d or s"),
        }
    }
}

/// After a decision: executes the continuation, or says who will.
pub(super) async fn go_on(
    local: &mut Local<'_>,
    before: &Snapshot,
    decided: Decided,
    signals: &mut Signals,
) -> Result<(), Failure> {
    if decided.repeated {
        terminal::note("decided before in the same way; nothing was changed");
    }
    if let Some(why) = &decided.queued_because {
        terminal::note(format!("decided, and queued for a worker: {why}"));
    }
    if let Some(execution) = decided.execution {
        debug_assert_eq!(execution.run(), before.id);
        execute(local, execution, before.sequence, signals).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_to_be_an_object() {
        for text in ["[]", "1", "null", "{", "{} {}"] {
            assert!(matches!(object(text), Err(Failure::Said(Exit::Usage, _))), "{text}");
        }
        assert!(object("{\"a\": 1}").is_ok());
    }

    #[test]
    fn a_run_id_is_only_shown() {
        // The id type is a plain UUID: nothing of it needs escaping in a command line.
        assert!(leasehold::run::RunId::new().to_string().chars().all(|c| c.is_ascii_hexdigit() || c == '-'));
    }
}
