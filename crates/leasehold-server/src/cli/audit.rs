//! `leasehold audit`: what was changed about users, tokens, sessions and links, by whom. What was decided about runs is in their journals.

use super::{
    Context, Exit, Outcome,
    local::{Local, Needs, unavailable},
};
use crate::{
    access::{Role, ShownAudit},
    terminal::{self, Screen},
    wire::Page,
};
use leasehold::limits::PAGE_MAX;

/// Options of `audit`.
#[derive(Debug, clap::Args)]
pub(crate) struct AuditArgs {
    /// Only entries behind this one: an id, or the `next_cursor` of the page before
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
}

/// Lists it, oldest first.
pub(crate) async fn audit(context: &Context, args: AuditArgs) -> Outcome {
    let local = Local::open_unswept(context, Needs::Store).await?;
    local.needs(Role::Admin)?;
    let limit = usize::from(args.limit).min(PAGE_MAX);
    let page = local.access.audit(args.after.as_deref(), limit).await.map_err(unavailable)?;
    // A full page may be the last one.
    let next_cursor = match &page.next {
        Some(last) => {
            let more = local.access.audit(Some(last), 1).await.map_err(unavailable)?;
            (!more.items.is_empty() || more.next.is_some()).then(|| last.clone())
        }
        None => None,
    };
    let items: Vec<ShownAudit> = page.items.into_iter().map(ShownAudit::from).collect();
    if context.json {
        terminal::print_json(&Page { items, next_cursor })?;
        return Ok(Exit::Done);
    }
    if items.is_empty() {
        terminal::note(format!("no entries in {}", local.runtime.store().describe()));
    } else {
        let rows: Vec<Vec<String>> = items
            .iter()
            .map(|entry| {
                let what: &str = entry.what.into();
                let details = entry.details.iter().map(|(key, value)| format!("{key}={value}"));
                vec![
                    crate::render::clock(entry.at),
                    entry.who.clone(),
                    entry.method.clone(),
                    what.replace('_', " "),
                    entry.about.clone(),
                    details.collect::<Vec<_>>().join(" "),
                ]
            })
            .collect();
        let mut screen = Screen::stdout();
        screen.table(&["at", "who", "shown by", "what", "about", "details"], &rows);
        screen.print()?;
    }
    if let Some(cursor) = next_cursor {
        terminal::note(format!("there are more: --after {cursor}"));
    }
    Ok(Exit::Done)
}
