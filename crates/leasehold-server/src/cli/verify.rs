//! `leasehold verify`: a run's journal against its chain, and against heads that were exported before.

use super::{
    Context, Exit, Failure, Outcome,
    local::{Local, Needs, order},
};
use crate::terminal::{self, Screen};
use leasehold::{
    OrderError,
    run::chain::{Exported, Hash256},
};
use serde::Serialize;

/// Options of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The run: its id, or the end of it
    run: String,
    /// A head that was exported before, as this command prints it; may be repeated
    #[arg(long, value_name = "SEQUENCE:HEAD", value_parser = exported)]
    against: Vec<Exported>,
}

/// A head as text.
fn exported(text: &str) -> Result<Exported, String> {
    let wrong = || format!("`{text}` is not a head: it is a number, a colon and 64 hexadecimal digits");
    let (sequence, head) = text.trim().split_once(':').ok_or_else(wrong)?;
    let sequence: u64 = sequence.parse().map_err(|_| wrong())?;
    let head: Hash256 = head.parse().map_err(|_| wrong())?;
    if sequence == 0 { Err("no head is exported of a run without entries".into()) } else { Ok(Exported { sequence, head }) }
}

#[derive(Debug, Serialize)]
struct Verified {
    run: String,
    ok: bool,
    head: Option<String>,
    error: Option<String>,
}

/// Verifies.
pub(crate) async fn verify(context: &Context, args: VerifyArgs) -> Outcome {
    let local = Local::open(context, Needs::Store).await?;
    let id = local.find(&args.run).await?;
    let broken = match local.runtime.verify_chain(id, &args.against).await {
        Ok(Ok(Exported { sequence, head })) => {
            let head = format!("{sequence}:{head}");
            if context.json {
                terminal::print_json(&Verified { run: id.to_string(), ok: true, head: Some(head), error: None })?;
            } else {
                terminal::note(format!("ok: the {sequence} entries of run {id} lead to its head"));
                let mut screen = Screen::stdout();
                screen.command(head);
                screen.print()?;
            }
            return Ok(Exit::Done);
        }
        Ok(Err(broken)) => broken.to_string(),
        Err(OrderError::Unreadable(why)) => why,
        Err(error) => return Err(order(error)),
    };
    if context.json {
        terminal::print_json(&Verified { run: id.to_string(), ok: false, head: None, error: Some(broken) })?;
        return Ok(Exit::Refused);
    }
    Err(Failure::refused(format!("run {id}: {broken}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_a_number_and_64_digits() {
        let head = "ab".repeat(32);
        let read = exported(&format!(" 12:{head} ")).unwrap();
        assert_eq!((read.sequence, read.head.to_string()), (12, head.clone()));
        for text in ["", "12", &head, "x:12", &format!("0:{head}"), &format!("-1:{head}"), &format!("12:{head}0")] {
            assert!(exported(text).is_err(), "{text}");
        }
    }
}
