//! `leasehold inbox`: what waits for a person, most urgent first.

use super::{
    Context, Exit, Failure, Outcome,
    local::{Local, Needs, order, unavailable},
};
use crate::{
    access::Role,
    render::{about, inbox_table},
    terminal::{self, Screen},
    wire::{InboxItem, Page},
};
use leasehold::{
    InboxKind, limits,
    store::{Listed, ReadError},
};

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
            let details = local.runtime.details(listed.id).await.map_err(|error| error.to_string());
            let unreadable = details.as_ref().ok().and_then(|details| details.unreadable.clone());
            let read = details.as_ref().map(|details| local.subject(details)).map_err(Clone::clone);
            all.push(InboxItem::new(*kind, listed, read, unreadable));
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
        rows.push((
            kind.as_str(),
            listed,
            about(*kind, listed, local.runtime.store().load(listed.id).await.ok().flatten().as_ref()),
        ));
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
