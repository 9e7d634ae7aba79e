//! The card: what exactly a person releases. Everything on it that came from a model, a tool or the far side is made visible
//! by the screen; the lines that ask are this program's own.

use super::{BLOCK_LINES_MAX, Subject, arguments, effect_words, when};
use crate::{
    terminal::{Look, Screen, span},
    wire::standing_card,
};
use leasehold::run::{CallId, CardCall, OpenCall};

/// The calls on the standing card that have no outcome yet, with their place in the row.
fn open_calls<'a>(subject: &Subject<'a>) -> Vec<(&'a CardCall, &'a OpenCall)> {
    let (Some(suspended), Some(turn)) = (standing_card(subject.row, subject.entries), subject.row.turn.as_ref()) else {
        return Vec::new();
    };
    suspended.card.calls.iter().filter_map(|card| Some((card, turn.call(&card.id).filter(|call| call.is_pending())?))).collect()
}

/// The digest that a decision has to name.
fn digest(subject: &Subject<'_>) -> Option<String> {
    let turn = subject.row.turn.as_ref()?;
    turn.digest.clone().or_else(|| standing_card(subject.row, subject.entries).map(|s| s.digest.clone()))
}

/// Shows every call of the card; `only`: one of them.
pub(crate) fn card(screen: &mut Screen, subject: &Subject<'_>, only: Option<&CallId>) {
    for (index, (card, open)) in open_calls(subject).into_iter().enumerate() {
        if only.is_some_and(|id| id != &card.id) {
            continue;
        }
        if index > 0 && only.is_none() {
            screen.gap();
        }
        let decided = match &open.verdict {
            Some(verdict) => format!("  {} by {}", if verdict.approved { "approved" } else { "denied" }, verdict.by),
            None => String::new(),
        };
        screen.spans(&[
            span(Look::Plain, "  "),
            span(Look::Strong, &card.tool.name),
            span(Look::Faint, format!("  call {}", card.id)),
            span(Look::Good, decided),
        ]);
        screen.fact(11, "  effect", effect_words(card.tool.effect));
        screen.fact(11, "  goes to", format!("{} ({})", card.tool.endpoint, card.tool.source));
        screen.fact(11, "  arguments", "");
        arguments(screen, 17, &card.arguments);
        match &card.preview {
            Some(preview) if preview.lines().count() <= 1 => {
                screen.spans(&[span(Look::Faint, "    change       "), span(Look::Strong, preview.trim_end())]);
            }
            Some(preview) => {
                screen.fact(11, "  change", "");
                screen.block(15, preview.trim_end(), BLOCK_LINES_MAX);
            }
            None => {
                screen.fact(11, "  change", "(this tool has no preview)");
            }
        }
        if let Some(condition) = &card.precondition {
            screen.fact(11, "  only while", condition);
        }
        if let Some(why) = &card.why {
            screen.spans(&[span(Look::Faint, "    asked       "), span(Look::Warn, format!(" {why}"))]);
        }
    }
    if only.is_none()
        && let Some(deadline) = subject.row.turn.as_ref().and_then(|turn| turn.deadline)
    {
        screen.gap().fact(11, "  decide by", when(deadline, subject.now));
    }
}

/// The commands that decide.
pub(crate) fn how_to_decide(screen: &mut Screen, subject: &Subject<'_>) {
    let Some(digest) = digest(subject) else { return };
    let (command, id) = (subject.command, subject.row.id);
    screen.styled(Look::Faint, "  to decide about exactly this:");
    screen.line(format!("    {command} approve {id} --digest {digest}"));
    screen.line(format!("    {command} deny {id} --digest {digest} --reason \"..\""));
    let undecided: Vec<_> = open_calls(subject).into_iter().filter(|(_, open)| open.is_undecided()).collect();
    if let [(first, _), _, ..] = undecided.as_slice() {
        screen.styled(Look::Faint, format!("  for one call only, add for example: --call {}", first.id));
    }
}
