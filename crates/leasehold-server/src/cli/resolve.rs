//! `leasehold resolve`: a person says what is true of a write in doubt. Only queues: whoever has what the run needs goes on.

use super::{
    Context, Exit, Failure, Outcome,
    local::{Local, Needs, order},
};
use crate::{
    access::Role,
    render::sentence,
    terminal::{self, Look, Screen},
    wire,
};
use leasehold::{
    Asked, Resolution,
    run::{CallId, ResolutionKind},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Options of `resolve`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("outcome").required(true).args(["landed", "not_landed", "abandon"])))]
pub(crate) struct ResolveArgs {
    /// The run: its id, or the end of it
    pub(super) run: String,
    /// The call in doubt
    #[arg(long, value_name = "ID")]
    pub(super) call: String,
    /// Which doubt about it, as `runs show` names it; left out: the one that stands
    #[arg(long, value_name = "N")]
    pub(super) fence_epoch: Option<u64>,
    /// It happened; with what it answered, where that is known
    #[arg(long, value_name = "JSON|@FILE", num_args = 0..=1)]
    landed: Option<Option<String>>,
    /// It did not happen; the call may be made again
    #[arg(long)]
    not_landed: bool,
    /// Give it up: nobody knows, and it is not repeated
    #[arg(long)]
    abandon: bool,
    /// Why; kept in the record
    #[arg(long, value_name = "T")]
    pub(super) note: Option<String>,
}

impl ResolveArgs {
    /// What is said, and what the write answered.
    pub(super) fn said(&self) -> Result<(ResolutionKind, Option<Value>), Failure> {
        Ok(match (&self.landed, self.not_landed) {
            (Some(answer), _) => (ResolutionKind::Landed, answer.as_deref().map(value).transpose()?),
            (None, true) => (ResolutionKind::NotLanded, None),
            (None, false) => (ResolutionKind::Abandon, None),
        })
    }
}

/// Settles a doubt.
pub(crate) async fn resolve(context: &Context, args: ResolveArgs) -> Outcome {
    let (outcome, result) = args.said()?;
    // "Not landed" asks a tool that can be asked first, which takes the tool.
    let needs = if outcome == ResolutionKind::NotLanded { Needs::Agents } else { Needs::Store };
    let local = Local::open(context, needs).await?;
    local.needs(Role::Operator)?;
    let id = local.find(&args.run).await?;
    let said = Resolution {
        call_id: CallId(args.call),
        fence_epoch: args.fence_epoch,
        outcome,
        result,
        note: args.note,
        by: local.who.by(),
    };
    let tool = local.runtime.store().load(id).await.ok().flatten().and_then(|row| row.fence).map(|fence| fence.tool);
    let resolved = local.runtime.resolve(id, said).await.map_err(order)?;
    let missing = tool.and_then(|tool| local.executable.missing_tools.get(&tool));
    let verify = resolved.asked.map(|asked| match asked {
        Asked::Absent => Verify { asked: true, answer: Some("absent".into()), why: None },
        Asked::Unknown(why) => Verify { asked: true, answer: Some("unknown".into()), why: Some(why) },
        Asked::NotAsked(why) => {
            let why = missing.map_or_else(|| why.clone(), |more| format!("{why} ({more})"));
            Verify { asked: false, answer: None, why: Some(why) }
        }
    });
    let details = local.details(resolved.row.id).await?;
    if context.json {
        terminal::print_json(&Answer { run: wire::Run::new(&local.subject(&details)), verify })?;
    } else {
        let mut screen = Screen::stdout();
        let (look, text) = sentence(&local.subject(&details));
        screen.styled(look, text);
        if let Some(verify) = verify {
            let (look, text) = verify.words();
            screen.styled(look, text);
        }
        screen.print()?;
    }
    local.warn_unserved(&details.row).await?;
    Ok(Exit::Done)
}

/// The run, and what came of asking the far side before a person's "not landed" was taken.
#[derive(Debug, Serialize)]
struct Answer {
    #[serde(flatten)]
    run: wire::Run,
    #[serde(skip_serializing_if = "Option::is_none")]
    verify: Option<Verify>,
}

/// What came of asking.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Verify {
    asked: bool,
    answer: Option<String>,
    why: Option<String>,
}

impl Verify {
    pub(super) fn words(&self) -> (Look, String) {
        let why = self.why.as_deref().unwrap_or_default();
        match (self.asked, self.answer.as_deref()) {
            (false, _) => {
                (Look::Warn, format!("The far side was not asked: {why}. Your word alone counts, and the record says so."))
            }
            (true, Some("absent")) => (Look::Plain, "The far side was asked before: it does not have it.".into()),
            (true, _) => (Look::Warn, format!("The far side was asked before, and gave no usable answer: {why}")),
        }
    }
}

/// JSON, or the content of a file where it begins with `@`.
fn value(text: &str) -> Result<Value, Failure> {
    json_or_file("--landed", text)
}

/// The JSON of an option, or the content of a file where it begins with `@`.
pub(super) fn json_or_file(option: &str, text: &str) -> Result<Value, Failure> {
    let (text, place) = match text.strip_prefix('@') {
        Some(path) => {
            let read =
                std::fs::read_to_string(path).map_err(|e| Failure::usage(format!("{option}: {path} cannot be read: {e}")))?;
            (read, format!("{path} is"))
        }
        None => (text.to_owned(), "its value is".to_owned()),
    };
    serde_json::from_str(&text).map_err(|e| Failure::usage(format!("{option}: {place} not JSON: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_write_answered_is_json_or_a_file_with_it() {
        assert_eq!(value("{\"id\": 7}").unwrap()["id"], 7);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("answer.json");
        std::fs::write(&path, "[1]").unwrap();
        assert_eq!(value(&format!("@{}", path.display())).unwrap()[0], 1);
        assert!(matches!(value("nope"), Err(Failure::Said(Exit::Usage, _))));
        assert!(matches!(value("@/nowhere"), Err(Failure::Said(Exit::Usage, _))));
    }
}
