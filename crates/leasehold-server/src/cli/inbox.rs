//! `leasehold inbox`: what waits for a person, most urgent first.

use super::{
    Context, Exit, Outcome,
    local::{Local, Needs, order},
};
use crate::{
    render::inbox_table,
    terminal::{self, Screen},
    wire::{self, Page},
};
use leasehold::{InboxKind, limits, run::RunId, store::Listed};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Item {
    kind: &'static str,
    run: ItemRun,
}

/// The whole run where it can be read, its plain columns where not: one unreadable row hides no other.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum ItemRun {
    Whole(Box<wire::Run>),
    Line(Box<wire::RunLine>),
}

/// Lists it.
pub(crate) async fn inbox(context: &Context) -> Outcome {
    let local = Local::open(context, Needs::Store).await?;
    let items = local.runtime.inbox(limits::PAGE_MAX).await.map_err(order)?;
    if items.len() == limits::PAGE_MAX {
        terminal::note(format!("more may wait than the {} most urgent, which are shown", limits::PAGE_MAX));
    }
    if context.json {
        let mut all = Vec::with_capacity(items.len());
        for (kind, listed) in &items {
            let run = match local.runtime.details(listed.id).await {
                Ok(details) if details.unreadable.is_none() => {
                    ItemRun::Whole(Box::new(wire::Run::new(&details.row, &details.entries, &*local.clock, local.now())))
                }
                _ => ItemRun::Line(Box::new(listed.into())),
            };
            all.push(Item { kind: kind.as_str(), run });
        }
        terminal::print_json(&Page::whole(all))?;
        return Ok(Exit::Done);
    }
    if items.is_empty() {
        terminal::note(format!("nothing waits for a person in {}", local.runtime.store().describe()));
        return Ok(Exit::Done);
    }
    let mut rows: Vec<(&'static str, &Listed, String)> = Vec::with_capacity(items.len());
    for (kind, listed) in &items {
        rows.push((kind.as_str(), listed, about(&local, *kind, listed.id, listed).await));
    }
    let mut screen = Screen::stdout();
    inbox_table(&mut screen, &rows, local.now());
    screen.print()?;
    terminal::note(format!("look at one, and how to decide: {} runs show RUN", context.command));
    Ok(Exit::Done)
}

/// What an item is about, in a few words.
async fn about(local: &Local<'_>, kind: InboxKind, id: RunId, listed: &Listed) -> String {
    match kind {
        InboxKind::InDoubt => format!("{} may have happened", listed.fence_tool.as_deref().unwrap_or("a write")),
        InboxKind::Dead => {
            let reason = listed.reason.clone().unwrap_or_default().replace('_', " ");
            match &listed.fence_tool {
                Some(tool) => format!("{reason}; {tool} may have happened"),
                None => reason,
            }
        }
        InboxKind::Duplicate => format!("landed twice: {}", listed.duplicates),
        InboxKind::Approval | InboxKind::Input => match local.runtime.store().load(id).await {
            Ok(Some(row)) => {
                let calls: Vec<&str> = row
                    .turn
                    .iter()
                    .flat_map(|turn| &turn.calls)
                    .filter(|call| call.is_undecided())
                    .map(|call| call.tool.as_str())
                    .collect();
                calls.join(", ")
            }
            _ => "cannot be read".into(),
        },
    }
}
