//! Lists: runs, and the inbox of what waits for a person.

use super::ago;
use crate::terminal::Screen;
use jiff::Timestamp;
use leasehold::{InboxKind, run::Snapshot, store::Listed};

/// The shortest end of an id that tells it from the others of a list, at least eight characters.
fn short_ids(ids: &[String]) -> Vec<String> {
    let length = (8..=36)
        .find(|&n| {
            let mut ends: Vec<&str> = ids.iter().map(|id| tail(id, n)).collect();
            ends.sort_unstable();
            ends.windows(2).all(|pair| pair[0] != pair[1])
        })
        .unwrap_or(36);
    ids.iter().map(|id| tail(id, length).to_owned()).collect()
}

fn tail(id: &str, n: usize) -> &str {
    id.get(id.len().saturating_sub(n)..).unwrap_or(id)
}

fn state(listed: &Listed) -> String {
    let reason = listed.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let cancel = if listed.cancel_requested && listed.state != "cancelled" { ", cancel requested" } else { "" };
    format!("{}{reason}{cancel}", listed.state)
}

/// Runs, newest first.
pub(crate) fn runs_table(screen: &mut Screen, runs: &[Listed], now: Timestamp) {
    let ids = short_ids(&runs.iter().map(|run| run.id.to_string()).collect::<Vec<_>>());
    let rows: Vec<Vec<String>> = runs
        .iter()
        .zip(ids)
        .map(|(run, id)| {
            let flight = run.fence_tool.clone().unwrap_or_default();
            vec![
                id,
                state(run),
                run.agent.clone(),
                run.owner.clone(),
                ago(run.created_at, now),
                flight,
                run.holder.clone().unwrap_or_default(),
            ]
        })
        .collect();
    screen.table(&["run", "state", "agent", "owner", "age", "write in flight", "holder"], &rows);
}

/// What waits for a person: kind, run and what it is about.
pub(crate) fn inbox_table(screen: &mut Screen, items: &[(&'static str, &Listed, String)], now: Timestamp) {
    let ids = short_ids(&items.iter().map(|(_, run, _)| run.id.to_string()).collect::<Vec<_>>());
    let rows: Vec<Vec<String>> = items
        .iter()
        .zip(ids)
        .map(|((kind, run, about), id)| {
            vec![kind.replace('_', " "), id, run.agent.clone(), about.clone(), ago(run.since, now), run.owner.clone()]
        })
        .collect();
    screen.table(&["what", "run", "agent", "about", "since", "owner"], &rows);
}

/// What an item is about, in a few words; of a run that waits with its row, where that can be read.
pub(crate) fn about(kind: InboxKind, listed: &Listed, row: Option<&Snapshot>) -> String {
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
        InboxKind::Question => {
            let asks: Vec<&str> = row.iter().flat_map(|row| row.questions()).map(|(call, _)| call.tool.as_str()).collect();
            if asks.is_empty() { "nothing any more".into() } else { format!("{} asks", asks.join(", ")) }
        }
        InboxKind::Approval | InboxKind::Input => match row {
            Some(row) => {
                let calls: Vec<&str> = row
                    .turn
                    .iter()
                    .flat_map(|turn| &turn.calls)
                    .filter(|call| call.is_undecided())
                    .map(|call| call.tool.as_str())
                    .collect();
                calls.join(", ")
            }
            None => "what it waits for cannot be read; a cancel ends it".into(),
        },
    }
}
