//! What needs a person, as a card: what it is about in its head, everything else inside.

use super::{
    Visitor, approve, ask, dead, doubt,
    kept::Kept,
    text::{icon, line, run_link, time},
};
use crate::{api::App, render::Subject};
use jiff::Timestamp;
use leasehold::{Details, InboxKind, run::State};
use maud::{Markup, html};
use std::sync::Arc;

/// A deadline within this time is soon.
const SOON_MINUTES: i64 = 60;

/// What a card is made of.
pub(super) struct Looked<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) visitor: &'a Visitor,
    pub(super) details: &'a Details,
    pub(super) subject: Subject<'a>,
    /// A form that is shown again.
    pub(super) kept: &'a Kept,
    /// Where a form goes back to.
    pub(super) back: Back,
    pub(super) open: bool,
}

/// Where somebody was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Back {
    Inbox,
    Run,
}

impl Looked<'_> {
    /// The fields of every form about this run: where it goes back to.
    pub(super) fn hidden(&self) -> Markup {
        let back = match self.back {
            Back::Inbox => "inbox",
            Back::Run => "run",
        };
        html! { input type="hidden" name="back" value=(back); }
    }

    pub(super) fn action(&self, order: &str) -> String {
        format!("/runs/{}/{order}", self.details.row.id)
    }

    /// Whose run it is, since when it waits, and until when.
    pub(super) fn facts(&self, more: &Markup) -> Markup {
        let row = &self.details.row;
        let deadline = row.turn.as_ref().and_then(|turn| turn.deadline).filter(|_| row.state.is_waiting());
        html! {
            div.card-side role="group" aria-label={ "Facts of run " (row.id) } {
                dl.facts {
                    dt { "Asked by" }
                    dd { "agent " (line(&row.agent)) span.sub { "run " (run_link(row.id)) } }
                    dt { "Started by" }
                    dd { (line(&row.initiator)) @if row.owner != row.initiator { span.sub { "runs as " (line(&row.owner)) } } }
                    @if let Some(at) = deadline {
                        dt { "Deadline" }
                        dd { (time(at, self.subject.now)) span.sub { "then nobody has decided in time" } }
                    }
                    (more)
                }
            }
        }
    }
}

/// The head of a card.
pub(super) struct Head {
    /// `approve`, `input`, `doubt` or `dead`.
    pub(super) kind: &'static str,
    pub(super) picture: &'static str,
    pub(super) word: &'static str,
    pub(super) title: Markup,
    pub(super) sub: Markup,
    pub(super) urgency: Urgency,
    pub(super) since: Markup,
}

/// How soon somebody has to act.
pub(super) enum Urgency {
    Now,
    Until(Timestamp),
    None,
}

fn urgency(urgency: &Urgency, now: Timestamp) -> Markup {
    let (level, before, words) = match urgency {
        Urgency::Now => ("now", "urgent: ", html! { "act now" }),
        Urgency::Until(at) if at.duration_since(now).as_mins() < SOON_MINUTES => ("soon", "soon: ", time(*at, now)),
        Urgency::Until(at) => ("later", "not urgent: ", time(*at, now)),
        Urgency::None => ("later", "not urgent: ", html! { "no deadline" }),
    };
    let off = |from: &str| if level == from || level == "later" { "off" } else { "" };
    html! {
        span.urgency data-level=(level) {
            svg viewBox="0 0 14 14" aria-hidden="true" {
                rect x="0" y="8" width="3.5" height="6" {}
                rect class=(if level == "later" { "off" } else { "" }) x="5" y="4.5" width="3.5" height="9.5" {}
                rect class=(off("soon")) x="10" y="1" width="3.5" height="13" {}
            }
            span.vh { (before) } (words)
        }
    }
}

impl Head {
    /// The card with this body.
    pub(super) fn around(self, looked: &Looked<'_>, body: &Markup) -> Markup {
        html! {
            li { details.card data-kind=(self.kind) open[looked.open] {
                summary {
                    span.chev { (icon("chev")) }
                    span.kind { (icon(self.picture)) (self.word) }
                    h2 { (self.title) }
                    (urgency(&self.urgency, looked.subject.now))
                    span.sub { (self.sub) }
                    span.since { (self.since) }
                }
                (body)
            } }
        }
    }
}

/// The card of an item; nothing where it is over meanwhile.
pub(super) async fn card(looked: &Looked<'_>, kind: InboxKind) -> Markup {
    match kind {
        InboxKind::Approval => approve::card(looked).await,
        InboxKind::Input => ask::input(looked),
        InboxKind::Question => html! { @for asked in looked.subject.questions() { (ask::question(looked, &asked)) } },
        InboxKind::InDoubt => doubt::card(looked),
        InboxKind::Dead => dead::card(looked),
        InboxKind::Duplicate => dead::twice(looked),
        InboxKind::Contradicted => dead::contradicted(looked),
    }
}

/// Everything about a run that needs a person.
pub(super) fn kinds(looked: &Looked<'_>) -> Vec<InboxKind> {
    let row = &looked.details.row;
    let mut kinds = match row.state {
        State::WaitingForApproval => vec![InboxKind::Approval],
        State::WaitingForInput => vec![InboxKind::Input],
        State::Dead if looked.subject.doubted().is_some() => vec![InboxKind::InDoubt],
        State::Dead => vec![InboxKind::Dead],
        _ => Vec::new(),
    };
    if looked.subject.questions().next().is_some() {
        kinds.push(InboxKind::Question);
    }
    if row.duplicates > 0 {
        kinds.push(InboxKind::Duplicate);
    }
    if row.contradictions > 0 {
        kinds.push(InboxKind::Contradicted);
    }
    kinds
}
