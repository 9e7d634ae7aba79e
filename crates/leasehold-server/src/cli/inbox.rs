//! `leasehold inbox`: what waits for a person, most urgent first.

use super::{
    Context, Exit, Failure, Outcome,
    local::{Local, Needs, order, unavailable},
};
use crate::{
    access::Role,
    render::inbox_table,
    terminal::{self, Screen},
    wire::{self, Page},
};
use leasehold::{
    InboxKind, limits,
    run::RunId,
    store::{Listed, ReadError},
};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct Item {
    kind: &'static str,
    run: ItemRun,
    /// Why the run is not shown whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
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
    let mut items = local.runtime.inbox(limits::PAGE_MAX).await.map_err(order)?;
    let is_full = items.len() == limits::PAGE_MAX;
    if local.who.role < Role::Operator {
        items = seen(&local, items).await?;
    }
    if is_full {
        terminal::note(format!("more may wait than the {} most urgent, which are shown", limits::PAGE_MAX));
    }
    if context.json {
        let mut all = Vec::with_capacity(items.len());
        for (kind, listed) in &items {
            let (run, unreadable) = match local.runtime.details(listed.id).await {
                Ok(details) if details.unreadable.is_none() => {
                    (ItemRun::Whole(Box::new(wire::Run::new(&local.subject(&details)))), None)
                }
                Ok(details) => (ItemRun::Line(Box::new(listed.into())), details.unreadable),
                Err(error) => (ItemRun::Line(Box::new(listed.into())), Some(error.to_string())),
            };
            all.push(Item { kind: kind.as_str(), run, unreadable });
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

/// What of it the caller sees; a row that does not decode only an operator does.
async fn seen(local: &Local<'_>, items: Vec<(InboxKind, Listed)>) -> Result<Vec<(InboxKind, Listed)>, Failure> {
    let mut seen = Vec::new();
    for (kind, listed) in items {
        match local.runtime.store().load(listed.id).await {
            Ok(Some(row)) if local.who.sees(&row).is_ok() => seen.push((kind, listed)),
            Ok(_) | Err(ReadError::Corrupt { .. }) => {}
            Err(ReadError::Unavailable(error)) => return Err(unavailable(error)),
        }
    }
    Ok(seen)
}

/// What an item is about, in a few words.
async fn about(local: &Local<'_>, kind: InboxKind, id: RunId, listed: &Listed) -> String {
    match kind {
        InboxKind::InDoubt => format!("{} may have happened", listed.fence_tool.as_deref().unwrap_or("a write")),
        InboxKind::Dead => {
            let reason = match listed.reason.as_deref() {
                Some("unreadable") => "its record cannot be read; a discard ends it".to_owned(),
                reason => reason.unwrap_or_default().replace('_', " "),
            };
            match &listed.fence_tool {
                Some(tool) => format!("{reason}; {tool} may have happened"),
                None => reason,
            }
        }
        InboxKind::Duplicate => format!("landed twice: {}", listed.duplicates),
        InboxKind::Contradicted => "a call's own process says otherwise than the record".to_owned(),
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
            _ => "what it waits for cannot be read; a cancel ends it".into(),
        },
    }
}
