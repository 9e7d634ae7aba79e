//! The card: what exactly a person releases. Everything on it that came from a model, a tool or the far side is made visible
//! by the screen; the lines that ask are this program's own.

use super::{BLOCK_LINES_MAX, Subject, arguments, effect_words, fields::fields, when};
use crate::{
    terminal::{Look, Screen, span},
    wire::{as_decided, on_card, standing_card},
};
use leasehold::{
    SimilarStage,
    run::{CallId, CardCall, OpenCall, State},
};

/// The calls that are still on the standing card, with their place in the row.
pub(crate) fn open_calls<'a>(subject: &Subject<'a>) -> Vec<(CardCall, &'a OpenCall)> {
    let (Some(suspended), Some(turn)) = (standing_card(subject.row, subject.entries), subject.row.turn.as_ref()) else {
        return Vec::new();
    };
    let open = |card: &CardCall| turn.call(&card.id).filter(|call| on_card(call));
    suspended.card.calls.iter().filter_map(|card| Some((as_decided(card, subject.entries), open(card)?))).collect()
}

/// The run waits, and the row or the journal does not say for what.
pub(super) fn cannot_be_shown(subject: &Subject<'_>) -> bool {
    subject.row.state.is_waiting() && open_calls(subject).is_empty()
}

/// The digest that a decision has to name.
pub(crate) fn digest(subject: &Subject<'_>) -> Option<String> {
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
        let mut fact = |name: &str, look: Look, value: &str| {
            screen.spans(&[span(Look::Faint, format!("    {name:<11}")), span(look, value)]);
        };
        fact("effect", Look::Plain, effect_words(card.tool.effect));
        fact("goes to", Look::Plain, &format!("{} ({})", card.tool.endpoint, card.tool.source));
        if let Some(why) = &card.why {
            fact("asked, as", Look::Warn, why);
        }
        if let Some(condition) = &card.precondition {
            fact("only while", Look::Plain, condition);
        }
        let preview = card.preview.as_deref().map(str::trim_end);
        match preview {
            None if card.is_withheld() => fact("change", Look::Warn, "(only for who may decide about it)"),
            None => fact("change", Look::Plain, "(this tool has no preview)"),
            Some(text) if !text.contains('\n') => fact("change", Look::Strong, text),
            Some(_) => {}
        }
        if let Some(text) = preview.filter(|text| text.contains('\n')) {
            screen.styled(Look::Faint, "    change");
            screen.block(6, text, BLOCK_LINES_MAX);
        }
        screen.styled(Look::Faint, "    arguments");
        arguments(screen, 6, &card.arguments);
        for similar in subject.similar.and_then(|similar| similar.get(&card.id)).into_iter().flatten() {
            let like = if similar.same { "the same call" } else { "a similar call" };
            let stage = match similar.stage {
                SimilarStage::Open => "may still start",
                SimilarStage::Started => "was started, its outcome is unknown",
                SimilarStage::Done => "is done",
            };
            let place = if similar.run == subject.row.id { "this run".into() } else { format!("run {}", similar.run) };
            let said = format!("{like} {stage}: {} of {place}, {}", similar.call, when(similar.at, subject.now));
            screen.spans(&[span(Look::Faint, "    beware     "), span(Look::Warn, said)]);
            if !similar.same {
                arguments(screen, 8, &similar.arguments);
            }
        }
    }
    let standing = standing_card(subject.row, subject.entries).map(|standing| &standing.card);
    if let Some(asked) = standing.and_then(|card| card.question.as_ref()) {
        screen.styled(Look::Faint, "    it asks");
        screen.block(6, &asked.prompt, BLOCK_LINES_MAX);
    }
    if let Some(schema) = standing.and_then(|card| card.schema.as_ref()) {
        fields(screen, schema);
    }
    if only.is_none()
        && let Some(deadline) = subject.row.turn.as_ref().and_then(|turn| turn.deadline)
    {
        screen.fact(11, "  decide by", when(deadline, subject.now));
    }
}

/// The commands that decide.
pub(crate) fn how_to_decide(screen: &mut Screen, subject: &Subject<'_>) {
    let (command, id) = (subject.command, subject.row.id);
    if cannot_be_shown(subject) {
        // Nobody is told how to release what nobody can see.
        screen.command(format!("  to end it:       {command} runs cancel {id}"));
        return;
    }
    let Some(digest) = digest(subject) else { return };
    if subject.row.state == State::WaitingForInput {
        screen.styled(Look::Faint, "  to answer exactly this:");
        screen.command(format!("    {command} input {id} --digest {digest} --values '{{..}}'"));
        screen.command(format!("    {command} input {id} --digest {digest} --decline"));
        screen.command(format!("  to end it:       {command} runs cancel {id}"));
        return;
    }
    screen.styled(Look::Faint, "  to decide about exactly this:");
    screen.command(format!("    {command} approve {id} --digest {digest}"));
    screen.command(format!("    {command} deny {id} --digest {digest} --reason \"..\""));
    let undecided: Vec<_> = open_calls(subject).into_iter().filter(|(_, open)| open.is_undecided()).collect();
    if let [(first, _), _, ..] = undecided.as_slice() {
        screen.styled(Look::Faint, format!("  for one call only, add for example: --call {}", first.id));
    }
}
