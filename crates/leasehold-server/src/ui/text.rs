//! What pages show of others' words: every character visible, of each text a bounded part, and how much is left out is said. What is
//! escaped for HTML is maud's part.

use crate::{render::span, terminal::Safe};
use jiff::Timestamp;
use leasehold::run::{Effect, RunId};
use maud::{Markup, PreEscaped, html};
use serde_json::{Map, Value};

/// Characters of a text in a line.
const LINE_CHARS_MAX: usize = 300;
/// Bytes of a text of several lines.
const BLOCK_BYTES_MAX: usize = 16 * 1024;
/// Lines of it.
const BLOCK_LINES_MAX: usize = 200;
/// Objects in objects that are shown as lists; deeper ones as JSON.
const DEPTH_MAX: usize = 3;
/// Members of an object or a list that are shown.
const MEMBERS_MAX: usize = 64;

/// A text in a line: its beginning.
pub(super) fn line(text: &str) -> String {
    match text.char_indices().nth(LINE_CHARS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes in all)", Safe::line(&text[..end]), text.len()),
        None => Safe::line(text).to_string(),
    }
}

/// The beginning of a text, which ends at a character, and whether there is more.
fn cut(text: &str, most: usize) -> (&str, bool) {
    if text.len() <= most {
        return (text, false);
    }
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    (&text[..end], true)
}

/// A text of several lines: its beginning, and how much it is in all where that is not everything.
pub(super) fn block(text: &str) -> String {
    let (shown, mut more) = cut(text, BLOCK_BYTES_MAX);
    let mut lines: Vec<String> = Safe::lines(shown).take(BLOCK_LINES_MAX + 1).map(|line| line.to_string()).collect();
    if lines.len() > BLOCK_LINES_MAX {
        lines.truncate(BLOCK_LINES_MAX);
        more = true;
    }
    if more {
        lines.push(format!("… {} lines, {} bytes in all", text.split('\n').count(), text.len()));
    }
    lines.join("\n")
}

/// A text in a field that a person may change shows what it is: it has no character that a browser would not show.
pub(super) fn is_plain(text: &str) -> bool {
    text.split('\n').all(|line| Safe::line(line).as_str() == line)
}

/// A picture of the page's own set.
pub(super) fn icon(name: &str) -> Markup {
    html! { svg.i aria-hidden="true" { use href={ "#i-" (name) } {} } }
}

/// The set.
pub(super) fn sprite() -> Markup {
    PreEscaped(include_str!("assets/sprite.svg").to_owned())
}

/// Raw text that scrolls.
pub(super) fn code(label: &str, text: &str) -> Markup {
    html! { pre.code tabindex="0" role="group" aria-label=(label) { (block(text)) } }
}

/// What a model or a tool said, as a quote.
pub(super) fn says(who: &str, text: &str) -> Markup {
    html! {
        blockquote.says { span.muted.small { (line(who)) } @for line in block(text).split('\n') { br; (line) } }
    }
}

/// How long ago it was or how far away it is; the whole time on hover.
pub(super) fn time(at: Timestamp, now: Timestamp) -> Markup {
    let age = now.duration_since(at);
    let words = match (age.is_negative(), span(age.unsigned_abs())) {
        (true, span) => format!("in {span}"),
        (false, span) if span == "0s" => "now".to_owned(),
        (false, span) => format!("{span} ago"),
    };
    html! { time datetime=(at) title=(whole(at)) { (words) } }
}

/// A time of day; the whole time on hover.
pub(super) fn clock(at: Timestamp) -> Markup {
    html! { time datetime=(at) title=(whole(at)) { (at.strftime("%H:%M:%S%.1f").to_string()) } }
}

fn whole(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S%.3f UTC").to_string()
}

/// What a call does to the world.
pub(super) fn effect(effect: Effect) -> Markup {
    let (picture, word) = match effect {
        Effect::ReadOnly => ("eye", "read"),
        Effect::IdempotentWrite => ("loop", "idempotent write"),
        Effect::NonIdempotentWrite => ("once", "non-idempotent write"),
    };
    html! { span.effect data-effect=(effect.as_str()) { (icon(picture)) span.word { (word) } } }
}

/// A state, told by picture and word.
pub(super) fn chip(state: &str, reason: Option<&str>) -> Markup {
    let (state, word) = match (state, reason) {
        ("dead", Some("write_in_doubt")) => ("doubt", "in doubt".to_owned()),
        ("waiting_for_approval", _) => (state, "waiting: approval".to_owned()),
        ("waiting_for_input", _) => (state, "waiting: input".to_owned()),
        _ => (state, line(&state.replace('_', " "))),
    };
    let picture = match state {
        "queued" => "ring",
        "running" => "play",
        "cancelling" | "cancelled" => "slash",
        "waiting_for_approval" => "hand",
        "waiting_for_input" => "form",
        "completed" => "check",
        "failed" => "cross",
        "doubt" => "doubt",
        _ => "stop",
    };
    html! { span.chip data-state=(state) { (icon(picture)) (word) } }
}

/// The end of an id, which leads to its run.
pub(super) fn run_link(id: RunId) -> Markup {
    let id = id.to_string();
    let tail = id.get(id.len().saturating_sub(8)..).unwrap_or(&id);
    html! { a href={ "/runs/" (id) } title=(id) { "…" (tail) } }
}

/// Something that is to be noticed.
pub(super) fn notice(tone: &str, text: &Markup) -> Markup {
    html! { div.notice data-tone=(tone) { (icon("warn")) div { (text) } } }
}

/// Arguments or another object, member by member.
pub(super) fn members(object: &Map<String, Value>) -> Markup {
    nested(object, DEPTH_MAX)
}

fn nested(object: &Map<String, Value>, depth: usize) -> Markup {
    html! {
        @if object.is_empty() { p.small.muted { "nothing" } } @else {
            dl.kv {
                @for (key, value) in object.iter().take(MEMBERS_MAX) {
                    div { dt { (line(key)) } dd { (member(value, depth)) } }
                }
            }
        }
        @if object.len() > MEMBERS_MAX { p.small.muted { "and " (object.len() - MEMBERS_MAX) " more" } }
    }
}

fn member(value: &Value, depth: usize) -> Markup {
    match value {
        Value::String(text) if text.is_empty() => html! { span.muted { "empty text" } },
        Value::String(text) if text.contains('\n') => html! { @for line in block(text).split('\n') { (line) br; } },
        Value::String(text) => html! { (block(text)) },
        Value::Object(object) if depth > 1 => nested(object, depth - 1),
        Value::Array(list) if depth > 1 && list.len() <= MEMBERS_MAX && !list.is_empty() => {
            html! { ul { @for value in list { li { (member(value, depth - 1)) } } } }
        }
        Value::Object(_) | Value::Array(_) => {
            html! { code { (block(&serde_json::to_string_pretty(value).unwrap_or_default())) } }
        }
        other => html! { code { (other) } },
    }
}

/// What a tool says would change: its lines, those of a difference marked as taken away or added.
pub(super) fn preview(text: &str) -> Markup {
    let text = block(text.trim_end());
    let changes: Option<Vec<(&str, &str, &str)>> = text
        .lines()
        .map(|line| {
            let (field, rest) = line.split_once(": ")?;
            let (before, after) = rest.split_once(" -> ")?;
            (!field.contains(' ')).then_some((field, before, after))
        })
        .collect();
    match changes {
        Some(changes) if !changes.is_empty() => html! {
            div.diff {
                div.diff-head.diff-row aria-hidden="true" { span { "Field" } span { "Now" } span { "After this call" } }
                dl {
                    @for (field, before, after) in changes {
                        div.diff-row {
                            dt { (field) }
                            dd.was { span.vh { "Now: " } del { (before) } }
                            dd.will { span.vh { "After: " } ins { (after) } }
                        }
                    }
                }
            }
        },
        _ => html! {
            pre.code.lines tabindex="0" role="group" aria-label="Preview" {
                @for line in text.lines() {
                    @if line.starts_with('+') { ins { (line) } } @else if line.starts_with('-') { del { (line) } } @else { (line) }
                    "\n"
                }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_and_a_block_show_so_much_and_say_what_is_left_out() {
        let line_of = |n: usize| line(&"x".repeat(n));
        assert_eq!(line_of(LINE_CHARS_MAX).len(), LINE_CHARS_MAX);
        assert!(line_of(LINE_CHARS_MAX + 1).ends_with("… (301 bytes in all)"));
        assert_eq!(block(&"x".repeat(BLOCK_BYTES_MAX)).len(), BLOCK_BYTES_MAX);
        assert!(block(&"é".repeat(BLOCK_BYTES_MAX)).ends_with("\n… 1 lines, 32768 bytes in all"));
        let lines = |n: usize| block(&vec!["x"; n].join("\n"));
        assert!(!lines(BLOCK_LINES_MAX).contains('…') && lines(BLOCK_LINES_MAX + 1).ends_with("… 201 lines, 401 bytes in all"));
    }

    #[test]
    fn nothing_hidden_and_no_markup_comes_through() {
        let evil = "<script>alert(1)</script>\u{202e}\u{200b}\u{1b}[2J\"'";
        let object = json!({ evil: { evil: [evil, { evil: { evil: { evil: evil } } }] } });
        let shown =
            [members(object.as_object().unwrap()), preview(evil), preview(&format!("a: {evil} -> {evil}")), says(evil, evil)];
        for shown in shown
            .map(PreEscaped::into_string)
            .into_iter()
            .chain([line(evil), block(evil)].map(|text| html! { (text) }.into_string()))
        {
            assert!(!shown.contains("<script") && shown.contains("\\u{202e}"), "{shown}");
            assert!(!shown.chars().any(|c| matches!(c, '\u{202e}' | '\u{200b}' | '\u{1b}')), "{shown}");
        }
        assert!(is_plain("a\nb") && !is_plain("a\u{200b}") && !is_plain("a\r\nb"));
    }

    #[test]
    fn many_members_are_cut() {
        let many = |n: usize| members(&(0..n).map(|i| (format!("k{i}"), json!(i))).collect()).into_string();
        assert!(!many(MEMBERS_MAX).contains("more") && many(MEMBERS_MAX + 1).contains("and 1 more"));
    }
}
