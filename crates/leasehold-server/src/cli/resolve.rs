//! `leasehold resolve`: a person says what is true of a write in doubt. Only queues: whoever has what the run needs goes on.

use super::{
    Context, Exit, Failure, Outcome,
    local::{Local, Needs, order},
    runs::ordered,
};
use leasehold::{
    Resolution,
    run::{CallId, ResolutionKind},
};
use serde_json::Value;

/// Options of `resolve`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("outcome").required(true).args(["landed", "not_landed", "abandon"])))]
pub(crate) struct ResolveArgs {
    /// The run: its id, or the end of it
    run: String,
    /// The call in doubt
    #[arg(long, value_name = "ID")]
    call: String,
    /// Which doubt about it, as `runs show` names it; left out: the one that stands
    #[arg(long, value_name = "N")]
    fence_epoch: Option<u64>,
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
    note: Option<String>,
}

/// Settles a doubt.
pub(crate) async fn resolve(context: &Context, args: ResolveArgs) -> Outcome {
    let (outcome, result) = match (&args.landed, args.not_landed) {
        (Some(answer), _) => (ResolutionKind::Landed, answer.as_deref().map(value).transpose()?),
        (None, true) => (ResolutionKind::NotLanded, None),
        (None, false) => (ResolutionKind::Abandon, None),
    };
    // "Not landed" asks a tool that can be asked first, which takes the tool.
    let needs = if outcome == ResolutionKind::NotLanded { Needs::Agents } else { Needs::Store };
    let local = Local::open(context, needs).await?;
    let id = local.find(&args.run).await?;
    let said = Resolution {
        call_id: CallId(args.call),
        fence_epoch: args.fence_epoch,
        outcome,
        result,
        note: args.note,
        by: Context::principal(),
    };
    let row = local.runtime.resolve(id, said).await.map_err(order)?;
    ordered(&local, &row).await?;
    Ok(Exit::Done)
}

/// JSON, or the content of a file where it begins with `@`.
fn value(text: &str) -> Result<Value, Failure> {
    let (text, place) = match text.strip_prefix('@') {
        Some(path) => {
            let read =
                std::fs::read_to_string(path).map_err(|e| Failure::usage(format!("--landed: {path} cannot be read: {e}")))?;
            (read, format!("{path} is"))
        }
        None => (text.to_owned(), "its value is".to_owned()),
    };
    serde_json::from_str(&text).map_err(|e| Failure::usage(format!("--landed: {place} not JSON: {e}")))
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
