//! What people say through forms. Each order is the API's own; what is refused has changed nothing, and is answered with what stands now
//! and with what was typed.

use super::{
    Run, Sent, Visitor, approve, ask,
    card::{Back, Looked, card, kinds},
    frame::{Place, Said, framed, refusal, refusal_text, refused_as, went},
    kept::Kept,
};
use crate::{
    api::{
        App, Problem,
        decisions::{CallDecision, DecisionBody, InputBody, Verdict},
        orders::{ResolveBody, Truth},
        questions::AnswerBody,
    },
    render::{digest, open_calls},
};
use axum::{extract::State, http::StatusCode, response::Response};
use leasehold::run::{Rejection, RunId};
use maud::html;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, sync::Arc};

fn back(kept: &Kept) -> Back {
    if kept.get("back") == Some("run") { Back::Run } else { Back::Inbox }
}

/// Goes back to where the form was, or says why nothing was taken.
async fn told(app: &Arc<App>, visitor: &Visitor, id: RunId, kept: Kept, done: Result<Said, Wrong>) -> Response {
    match done {
        Ok(said) => match back(&kept) {
            Back::Inbox => went(app, said, id, "/"),
            Back::Run => went(app, said, id, &format!("/runs/{id}")),
        },
        Err(wrong) => refused(app, visitor, id, wrong, kept).await,
    }
}

/// Why nothing was taken.
enum Wrong {
    Refused(Problem),
    Mistakes(BTreeMap<String, String>),
}

impl From<Problem> for Wrong {
    fn from(problem: Problem) -> Self {
        Self::Refused(problem)
    }
}

/// A pointer into a body as the name of a field.
fn field(pointer: &str) -> Option<String> {
    let rest = pointer.strip_prefix("#/values")?;
    Some(format!("{}{rest}", ask::VALUES))
}

async fn refused(app: &Arc<App>, visitor: &Visitor, id: RunId, wrong: Wrong, mut kept: Kept) -> Response {
    let problem = match wrong {
        Wrong::Mistakes(mistakes) => {
            kept.mistakes = mistakes;
            Problem::field("#", "some fields need another look")
        }
        Wrong::Refused(problem) => {
            let fields =
                problem.errors().iter().filter_map(|error| Some((field(error.pointer.as_deref()?)?, error.detail.clone())));
            kept.mistakes = fields.collect();
            problem
        }
    };
    let seen = async {
        app.seen(&visitor.who, id).await?;
        app.details_with_similar(&visitor.who, id).await
    };
    // Who may not see the run is told what the order was told, and nothing else.
    let Ok(details) = seen.await else { return refusal(true, &problem) };
    let subject = app.subject(&details);
    let stands = match (kept.get("turn_digest"), kept.get("fence_epoch")) {
        (Some(shown), _) => digest(&subject).as_deref() == Some(shown),
        (_, Some(epoch)) => subject.doubted().is_some_and(|fence| fence.epoch.to_string() == epoch),
        _ => true,
    };
    let typed = if stands { Vec::new() } else { approve::typed(&kept) };
    let nothing = Kept::default();
    let looked = Looked {
        app,
        visitor,
        details: &details,
        subject,
        kept: if stands { &kept } else { &nothing },
        back: back(&kept),
        open: true,
    };
    let mut cards = Vec::new();
    for kind in kinds(&looked) {
        cards.push(card(&looked, kind).await);
    }
    let main = html! {
        div.narrow {
            div.stack.refused {
                (refusal_text(&problem))
                @if !typed.is_empty() {
                    dl.tell.small { @for (name, text) in &typed { dt { "You typed: " (super::text::line(name)) } dd { (text) } } }
                }
                div.row { a.btn href={ "/runs/" (id) } { "What happened in this run" } a.btn data-look="quiet" href="/" { "Inbox" } }
            }
            @if cards.is_empty() { p.gap-top { "Nothing of this run waits for a person now." } } @else {
                h2.gap-top { "As it stands now" }
                ol.items.gap-s { @for card in &cards { (card) } }
            }
        }
    };
    framed(app, visitor, problem.status(), refused_as(&problem), Place::Elsewhere, &main).await
}

/// Approve, deny or edit.
pub(super) async fn decision(State(app): State<Arc<App>>, visitor: Visitor, Run(id): Run, Sent(kept): Sent) -> Response {
    let done = decide(&app, &visitor, id, &kept).await;
    told(&app, &visitor, id, kept, done).await
}

async fn decide(app: &Arc<App>, visitor: &Visitor, id: RunId, kept: &Kept) -> Result<Said, Wrong> {
    let turn_digest = kept.needed("turn_digest")?;
    let (decision, said) = match kept.get("decision") {
        Some("approve") => (Some(Verdict::Approve), Said::Approved),
        Some("deny") => (Some(Verdict::Deny), Said::Denied),
        _ => (None, Said::Decided),
    };
    let calls = if decision.is_none() { marked(app, visitor, id, kept, &turn_digest).await? } else { Vec::new() };
    let reason = kept.text("reason").filter(|_| decision == Some(Verdict::Deny));
    let said = match calls.as_slice() {
        [] => said,
        calls if calls.iter().all(|call| call.decision == Verdict::Approve) => Said::Approved,
        calls if calls.iter().all(|call| call.decision == Verdict::Deny) => Said::Denied,
        _ => said,
    };
    app.decided(&visitor.who, id, DecisionBody { turn_digest, decision, reason, calls }).await?;
    Ok(said)
}

/// What was marked, call by call.
async fn marked(app: &Arc<App>, visitor: &Visitor, id: RunId, kept: &Kept, shown: &str) -> Result<Vec<CallDecision>, Wrong> {
    let mut calls = Vec::new();
    let mut mistakes = BTreeMap::new();
    for (call, mark) in kept.under("call/") {
        let (decision, arguments) = match mark {
            "approve" => (Verdict::Approve, None),
            "deny" => (Verdict::Deny, None),
            "edit" => match edited(app, visitor, id, kept, shown, call).await? {
                Ok(arguments) => (Verdict::Approve, Some(arguments)),
                Err(wrong) => {
                    mistakes.extend(wrong);
                    continue;
                }
            },
            _ => return Err(Problem::field("#/calls", "mark approve, edit or deny").into()),
        };
        let reason = kept.text(&format!("reason/{call}")).filter(|_| decision == Verdict::Deny);
        calls.push(CallDecision { id: call.to_owned(), decision, reason, arguments });
    }
    if mistakes.is_empty() { Ok(calls) } else { Err(Wrong::Mistakes(mistakes)) }
}

/// The arguments that a person wants instead, or the fields that cannot be read.
async fn edited(
    app: &Arc<App>,
    visitor: &Visitor,
    id: RunId,
    kept: &Kept,
    shown: &str,
    call: &str,
) -> Result<Result<Map<String, Value>, BTreeMap<String, String>>, Problem> {
    app.seen(&visitor.who, id).await?;
    let details = app.details_with_similar(&visitor.who, id).await?;
    let subject = app.subject(&details);
    // The fields are those of a card that is gone: what they would mean now is not asked.
    let stale = || Problem::new(StatusCode::CONFLICT, Rejection::StaleTurn.code(), Rejection::StaleTurn.to_string());
    if digest(&subject).as_deref() != Some(shown) {
        return Err(stale());
    }
    let card = open_calls(&subject).into_iter().map(|(card, _)| card).find(|card| card.id.0 == call).ok_or_else(stale)?;
    let schema = app.parameters(&card.tool.name).await.unwrap_or(Value::Null);
    let form = approve::editor(&schema, id, &card);
    if form.is_too_long() {
        return Err(Problem::field("#/calls", "these are too many fields for a page"));
    }
    Ok(form.read(kept).and_then(|arguments| {
        if arguments == card.arguments {
            return Err(BTreeMap::from([(
                format!("{}/", approve::edits(call)),
                "nothing is changed: approve it, or change something".to_owned(),
            )]));
        }
        Ok(arguments)
    }))
}

/// Values, or that there will be none.
pub(super) async fn input(State(app): State<Arc<App>>, visitor: Visitor, Run(id): Run, Sent(kept): Sent) -> Response {
    let done = give(&app, &visitor, id, &kept).await;
    told(&app, &visitor, id, kept, done).await
}

async fn give(app: &Arc<App>, visitor: &Visitor, id: RunId, kept: &Kept) -> Result<Said, Wrong> {
    let turn_digest = kept.needed("turn_digest")?;
    let decline = kept.get("say") == Some("decline");
    let values = if decline {
        None
    } else {
        app.seen(&visitor.who, id).await?;
        let details = app.details_with_similar(&visitor.who, id).await?;
        let schema =
            details.card().and_then(|card| card.schema.clone()).filter(|_| details.digest() == Some(turn_digest.as_str()));
        match schema {
            Some(schema) => Some(ask::form(&schema, String::new()).read(kept).map_err(Wrong::Mistakes)?),
            // It has moved on, and the runtime says how.
            None => Some(Map::new()),
        }
    };
    app.given(&visitor.who, id, InputBody { turn_digest, values, decline }).await?;
    Ok(if decline { Said::Declined } else { Said::Answered })
}

/// What a running call asks.
pub(super) async fn answer(State(app): State<Arc<App>>, visitor: Visitor, Run(id): Run, Sent(kept): Sent) -> Response {
    let done = reply(&app, &visitor, id, &kept).await;
    told(&app, &visitor, id, kept, done).await
}

fn number(kept: &Kept, name: &str) -> Result<u64, Problem> {
    kept.needed(name)?.parse().map_err(|_| Problem::field(format!("#/{name}"), "this is no number"))
}

async fn reply(app: &Arc<App>, visitor: &Visitor, id: RunId, kept: &Kept) -> Result<Said, Wrong> {
    let (call_id, question) = (kept.needed("call_id")?, number(kept, "question")?);
    let decline = kept.get("say") == Some("decline");
    let values = if decline {
        None
    } else {
        app.seen(&visitor.who, id).await?;
        let details = app.details_with_similar(&visitor.who, id).await?;
        let subject = app.subject(&details);
        let schema = subject.questions().find(|asked| asked.number == question).map(|asked| asked.question.schema.clone());
        match schema {
            Some(schema) => Some(ask::form(&schema, String::new()).read(kept).map_err(Wrong::Mistakes)?),
            None => Some(Map::new()),
        }
    };
    app.answered(&visitor.who, id, AnswerBody { call_id, question, values, decline }).await?;
    Ok(if decline { Said::Declined } else { Said::Answered })
}

/// What is true of a write in doubt.
pub(super) async fn resolve(State(app): State<Arc<App>>, visitor: Visitor, Run(id): Run, Sent(kept): Sent) -> Response {
    let done = settle(&app, &visitor, id, &kept).await;
    told(&app, &visitor, id, kept, done).await
}

async fn settle(app: &Arc<App>, visitor: &Visitor, id: RunId, kept: &Kept) -> Result<Said, Wrong> {
    let (outcome, said) = match kept.get("outcome") {
        Some("landed") => (Truth::Landed, Said::Landed),
        Some("not_landed") => (Truth::NotLanded, Said::NotLanded),
        Some("abandon") => (Truth::Abandon, Said::Abandoned),
        _ => return Err(Problem::field("#/outcome", "say what happened: it landed, it did not, or abandon").into()),
    };
    // A text is what it is where it is no JSON.
    let result = kept.text("result").filter(|_| matches!(outcome, Truth::Landed));
    let result = result.map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)));
    let (call_id, fence_epoch) = (kept.needed("call_id")?, number(kept, "fence_epoch")?);
    app.resolved(&visitor.who, id, ResolveBody { call_id, fence_epoch, outcome, result, note: kept.text("note") }).await?;
    Ok(said)
}

/// Sends a dead run on.
pub(super) async fn redrive(State(app): State<Arc<App>>, visitor: Visitor, Run(id): Run, Sent(kept): Sent) -> Response {
    let done = app.redriven(&visitor.who, id, kept.text("note")).await;
    told(&app, &visitor, id, kept, done.map(|_| Said::Redriven).map_err(Wrong::from)).await
}

/// Gives a dead run up.
pub(super) async fn discard(State(app): State<Arc<App>>, visitor: Visitor, Run(id): Run, Sent(kept): Sent) -> Response {
    let done = app.discarded(&visitor.who, id, kept.text("note")).await;
    told(&app, &visitor, id, kept, done.map(|_| Said::Discarded).map_err(Wrong::from)).await
}

/// Cancels a run.
pub(super) async fn cancel(State(app): State<Arc<App>>, visitor: Visitor, Run(id): Run, Sent(kept): Sent) -> Response {
    let done = app.cancelled(&visitor.who, id, kept.text("note")).await;
    told(&app, &visitor, id, kept, done.map(|_| Said::Cancelled).map_err(Wrong::from)).await
}
