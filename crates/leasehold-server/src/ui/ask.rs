//! Values that a call waits for, and questions of a running call: a form from the schema, or that there will be no answer.

use super::{
    card::{Head, Looked, Urgency},
    form::{Form, id_of},
    frame::{may_not, summary},
    text::{effect, line, members, notice, says, time},
};
use crate::render::{Asked, digest, open_calls};
use maud::{Markup, html};
use serde_json::Value;

/// Before the names of the values.
pub(super) const VALUES: &str = "v";

/// The form of a schema.
pub(super) fn form(schema: &Value, scope: String) -> Form<'_> {
    Form { schema, prefix: VALUES.to_owned(), scope, now: None }
}

/// A call that waits for values.
pub(super) fn input(looked: &Looked<'_>) -> Markup {
    let (row, subject, who) = (&looked.details.row, &looked.subject, &looked.visitor.who);
    let calls = open_calls(subject);
    let card = looked.details.card();
    let (Some((call, open)), Some(digest), Some(schema)) =
        (calls.first(), digest(subject), card.and_then(|card| card.schema.as_ref()))
    else {
        return super::dead::cannot_be_read(looked);
    };
    let head = Head {
        kind: "input",
        picture: "form",
        word: "Input",
        title: html! { (line(&row.agent)) " needs values for " (line(&call.tool.name)) },
        sub: html! { (effect(call.tool.effect)) },
        urgency: row.turn.as_ref().and_then(|turn| turn.deadline).map_or(Urgency::None, Urgency::Until),
        since: html! { "asked " (time(looked.details.story.card.as_ref().map_or(row.created_at, |card| card.since), subject.now)) },
    };
    let may = who.may_decide(row, std::iter::once(*open));
    let prompt = card.and_then(|card| card.question.as_ref()).map(|asked| asked.prompt.as_str());
    let said = looked.details.story.turns.last().map(|turn| turn.text.as_str()).filter(|text| !text.trim().is_empty());
    let before = html! {
        @if let Some(said) = said { (says("The agent says", said)) }
        @if let Some(why) = &call.why { (notice("wait", &html! { p { b { "Asked, as " } (line(why)) } })) }
        @if let Some(prompt) = prompt { (says(&format!("{} asks", line(&call.tool.name)), prompt)) }
        @if !call.arguments.is_empty() { h3.lead { "With these arguments" } (members(&call.arguments)) }
    };
    let facts = looked.facts(&html! { dt { "Digest" } dd { code.id { (digest) } span.sub { "binds you to exactly this" } } });
    let hidden = html! { input type="hidden" name="turn_digest" value=(digest); };
    let words = may.err().map(|why| why.to_string());
    let may_decline = who.may_decide(row, std::iter::empty()).is_ok();
    head.around(
        looked,
        &fill_in(looked, "input", row.id.to_string(), schema, &before, &facts, &hidden, words.as_deref(), may_decline),
    )
}

/// A running call that asks.
pub(super) fn question(looked: &Looked<'_>, asked: &Asked<'_>) -> Markup {
    let (row, who) = (&looked.details.row, &looked.visitor.who);
    let head = Head {
        kind: "input",
        picture: "form",
        word: "Question",
        title: html! { (line(&asked.call.tool)) " asks while it runs" },
        sub: html! { (effect(asked.call.effect)) },
        urgency: Urgency::Now,
        since: html! { "asked " (time(asked.at, looked.subject.now)) },
    };
    let before = html! {
        (says(&format!("{} asks", line(&asked.call.tool)), &asked.question.prompt))
        @let arguments = looked.subject.arguments(&asked.call.id);
        @if !arguments.is_empty() { h3.lead { "The call" } (members(&arguments)) }
    };
    let hidden = html! {
        input type="hidden" name="call_id" value=(asked.call.id);
        input type="hidden" name="question" value=(asked.number);
    };
    let words = who.may_answer(row, Some(asked.call)).err().map(|why| why.to_string());
    let may_decline = who.may_answer(row, None).is_ok();
    let facts = looked.facts(&html! {});
    head.around(
        looked,
        &fill_in(
            looked,
            "answer",
            format!("{}-{}", row.id, asked.number),
            &asked.question.schema,
            &before,
            &facts,
            &hidden,
            words.as_deref(),
            may_decline,
        ),
    )
}

#[allow(clippy::too_many_arguments, reason = "the parts of one page")]
fn fill_in(
    looked: &Looked<'_>,
    order: &str,
    scope: String,
    schema: &Value,
    before: &Markup,
    facts: &Markup,
    hidden: &Markup,
    may_not_give: Option<&str>,
    may_decline: bool,
) -> Markup {
    let form = form(schema, scope);
    let stands = looked.kept.get("question").is_none_or(|asked| form.scope.ends_with(&format!("-{asked}")));
    let kept = looked.kept.only_if(stands);
    let mistakes: Vec<(String, String)> = kept.mistakes.iter().map(|(name, why)| (name.clone(), why.clone())).collect();
    html! {
        // What fits is said by this server, of all fields at once.
        form.card-body method="post" action=(looked.action(order)) novalidate {
            (looked.hidden()) (hidden)
            div.card-main {
                @if !mistakes.is_empty() { (summary(&form.scope, &mistakes)) }
                (before)
                @if form.is_too_long() { p.hint { "These are too many fields for a page: use " code { "leasehold " (order) } "." } }
                @else if may_not_give.is_none() {
                    p.small.muted { "Fields marked " span.req { "*" } " are required." }
                    div id=(id_of(&form.scope, VALUES)) tabindex="-1" { (form.show(&kept)) }
                }
            }
            (facts)
            div.card-act {
                @if let Some(why) = may_not_give { (may_not("You may look and not answer:", why)) }
                @else { p.sum { "What you fill in is kept while you correct it." } }
                @if may_not_give.is_none() && !form.is_too_long() { button.btn.last data-look="primary" name="say" value="values" { "Send answers" } }
                @if may_decline { button.btn data-look="danger" name="say" value="decline" { "Decline to answer" } }
            }
        }
    }
}
