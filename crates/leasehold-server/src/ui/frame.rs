//! What every page has: navigation, the number of what waits, who is signed in, what came of the last order, and pages for refusals.

use super::{
    Visitor,
    text::{icon, line, notice, run_link, sprite},
};
use crate::api::{App, Problem};
use axum::{
    http::{HeaderMap, HeaderName, StatusCode, header},
    response::{IntoResponse as _, Redirect, Response},
};
use axum_extra::extract::{
    CookieJar,
    cookie::{Cookie, SameSite},
};
use leasehold::run::RunId;
use maud::{DOCTYPE, Markup, html};
use std::{str::FromStr as _, sync::Arc};

/// What a page may load and where its forms go: this server alone.
const POLICY: [(HeaderName, &str); 2] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    // A form of a page names its origin only where it may.
    (header::REFERRER_POLICY, "same-origin"),
];

/// Beyond this what waits is not counted further.
pub(super) const COUNTED_MAX: usize = 99;

/// Where somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Inbox,
    Runs,
    Elsewhere,
}

/// What came of an order, for the page that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub(super) enum Said {
    Approved,
    Denied,
    Decided,
    Answered,
    Declined,
    Landed,
    NotLanded,
    Abandoned,
    Redriven,
    Discarded,
    Cancelled,
}

impl Said {
    fn words(self) -> &'static str {
        match self {
            Self::Approved => "Approved. The decision is on record.",
            Self::Denied => "Denied. Nothing of it runs, and the agent is told.",
            Self::Decided => "Your decisions are on record.",
            Self::Answered => "Your answers are on record.",
            Self::Declined => "Declined. The agent is told that there will be no answer.",
            Self::Landed => "Settled: it landed. The call is not made again.",
            Self::NotLanded => "Settled: it did not land. The call may run once more.",
            Self::Abandoned => "Given up. Nothing more is sent.",
            Self::Redriven => "Sent on.",
            Self::Discarded => "Discarded. The run is over.",
            Self::Cancelled => "The cancel is on record. What is in flight finishes, and nothing new starts.",
        }
    }
}

/// The order, and the run it was about.
pub(super) type Flash = (Said, RunId);

impl App {
    fn flash_cookie(&self, value: String) -> Cookie<'static> {
        let name = if self.is_https() { "__Host-leasehold-said" } else { "leasehold-said" };
        let mut cookie = Cookie::new(name, value);
        cookie.set_http_only(true);
        cookie.set_secure(self.is_https());
        cookie.set_same_site(SameSite::Lax);
        cookie.set_path("/");
        cookie
    }

    /// What a browser was told to show next. Only a word of ours and an id are taken.
    pub(super) fn flash(&self, headers: &HeaderMap) -> Option<Flash> {
        let jar = CookieJar::from_headers(headers);
        let (said, run) = jar.get(self.flash_cookie(String::new()).name())?.value().split_once('.')?;
        Some((Said::from_str(said).ok()?, run.parse().ok()?))
    }
}

/// Goes on to a page of ours that says what came of an order.
pub(super) fn went(app: &App, said: Said, run: RunId, back: &str) -> Response {
    let word: &'static str = said.into();
    let jar = CookieJar::new().add(app.flash_cookie(format!("{word}.{run}")));
    (jar, Redirect::to(back)).into_response()
}

fn head(title: &str) -> Markup {
    html! {
        head {
            meta charset="utf-8";
            meta name="viewport" content="width=device-width, initial-scale=1";
            meta name="color-scheme" content="light dark";
            title { (title) " · leasehold" }
            link rel="icon" href="/assets/icon.svg";
            link rel="stylesheet" href="/assets/leasehold.css";
        }
    }
}

/// A page outside: for who is not signed in, and for refusals.
pub(super) fn plain(status: StatusCode, title: &str, main: &Markup) -> Response {
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            (head(title))
            body.plain {
                main id="main" { p.brand { (icon("fence")) "leasehold" } (main) }
                (sprite())
            }
        }
    };
    (status, POLICY, document).into_response()
}

/// How much waits, and whether that is not all.
pub(super) type Count = (usize, bool);

/// A page with all around it.
pub(super) async fn framed(
    app: &Arc<App>,
    visitor: &Visitor,
    status: StatusCode,
    title: &str,
    place: Place,
    main: &Markup,
) -> Response {
    // A page is not refused because what waits could not be counted.
    let waits = app.waiting(&visitor.who, None, None, COUNTED_MAX).await.ok();
    let count = waits.map(|(items, more)| (items.len(), more));
    counted(app, visitor, status, title, place, main, count)
}

/// The same where it has been counted.
pub(super) fn counted(
    app: &App,
    visitor: &Visitor,
    status: StatusCode,
    title: &str,
    place: Place,
    main: &Markup,
    count: Option<Count>,
) -> Response {
    let count = count.map(|(count, more)| (count, if more { "+" } else { "" })).filter(|(count, _)| *count > 0);
    let number = html! {
        @if let Some((count, more)) = count { " " span.count { (count) (more) span.vh { " waiting" } } }
    };
    let titled = match count {
        Some((count, more)) => format!("({count}{more}) {title}"),
        None => title.to_owned(),
    };
    let here = |is: Place| (place == is).then_some("page");
    let role: &'static str = visitor.who.role.into();
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            (head(&titled))
            body.app {
                a.skip href="#main" { "Skip to content" }
                div.side { div.side-in {
                    header.top {
                        a.brand href="/" { (icon("fence")) "leasehold" }
                        a.top-inbox href="/" { "Inbox" (number) }
                        button.btn.top-menu type="button" popovertarget="nav" { (icon("menu")) "Menu" }
                    }
                    nav.main id="nav" popover aria-label="Main" {
                        ul {
                            li { a href="/" aria-current=[here(Place::Inbox)] { (icon("inbox")) "Inbox" (number) } }
                            li { a href="/runs" aria-current=[here(Place::Runs)] { (icon("runs")) "Runs" } }
                        }
                        div.menu-foot { (account(&visitor.who.principal.id, role)) }
                    }
                    footer.side-foot.stack-tight { (account(&visitor.who.principal.id, role)) }
                } }
                main.main-col id="main" tabindex="-1" {
                    @if let Some((said, run)) = visitor.said {
                        div.notice.flash data-tone="ok" role="status" { (icon("check")) p { (said.words()) " " (run_link(run)) } }
                    }
                    (main)
                }
                (sprite())
            }
        }
    };
    let mut jar = CookieJar::new();
    if visitor.said.is_some() {
        let mut shown = app.flash_cookie(String::new());
        shown.make_removal();
        jar = jar.add(shown);
    }
    (status, POLICY, jar, document).into_response()
}

fn account(name: &str, role: &str) -> Markup {
    html! {
        div.row { span { (line(name)) } span.muted { (role) } }
        form method="post" action="/logout" { button.btn data-look="quiet" data-size="s" { "Sign out" } }
    }
}

/// What a refusal is called, for people.
pub(super) fn refused_as(problem: &Problem) -> &'static str {
    match (problem.status().as_u16(), problem.code) {
        (404, _) => "There is no such page or run",
        (_, "stale_turn" | "stale_doubt") => "Your decision was not taken: this has moved on",
        (_, "already_decided") => "Your decision was not taken: somebody else has decided",
        (_, "not_waiting" | "not_in_state") => "Your decision was not taken: nothing waits here any more",
        (_, "too_early") => "Too early: it may still be on its way",
        (_, "verified_landed") => "It did land",
        (403, _) => "You may not do this",
        (409, _) => "This was not taken",
        (422, _) => "Nothing was sent",
        (429, _) => "Too fast",
        (503, _) => "No answer just now",
        _ => "Something broke",
    }
}

/// A message as a sentence begins.
fn sentence(text: &str) -> String {
    let text = line(text);
    let mut rest = text.chars();
    rest.next().map(|first| first.to_uppercase().chain(rest).collect()).unwrap_or_default()
}

/// The sentences of a refusal. A refused order has changed nothing, but where the store did not answer.
pub(super) fn refusal_text(problem: &Problem) -> Markup {
    html! {
        p.code-line { (problem.status().as_u16()) " " code { (problem.code) } }
        h1 { (refused_as(problem)) }
        p.verdict-small { (sentence(problem.detail())) "." @if problem.status().as_u16() == 409 { " " b { "Your click changed nothing." } } }
    }
}

/// What was refused, where there is nothing else to show.
pub(super) fn refusal(is_known: bool, problem: &Problem) -> Response {
    let main = html! {
        div.sheet {
            (refusal_text(problem))
            @if is_known { div.row { a.btn data-look="primary" href="/" { "Inbox" } a.btn href="/runs" { "Runs" } } }
        }
    };
    let mut response = plain(problem.status(), refused_as(problem), &main);
    if let Some(after) = problem.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, after.into());
    }
    response
}

/// The mistakes of a form, which lead to their fields.
pub(super) fn summary(scope: &str, mistakes: &[(String, String)]) -> Markup {
    html! {
        div.notice data-tone="bad" role="alert" tabindex="-1" {
            (icon("cross"))
            div {
                p { b { "Nothing was sent. " @if mistakes.len() == 1 { "1 field needs" } @else { (mistakes.len()) " fields need" } " another look:" } }
                ul { @for (name, why) in mistakes { li { a href={ "#" (super::form::id_of(scope, name)) } { (line(field_name(name))) ": " (line(why)) } } } }
            }
        }
    }
}

fn field_name(control: &str) -> &str {
    control.rsplit('/').next().unwrap_or(control)
}

/// What somebody may not do here, and why.
pub(super) fn may_not(what: &str, why: &str) -> Markup {
    notice("wait", &html! { p { b { (what) } " " (line(why)) "." } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use strum::IntoEnumIterator as _;

    #[test]
    fn what_was_said_goes_through_a_cookie_as_a_word() {
        for said in Said::iter() {
            let word: &'static str = said.into();
            assert_eq!(Said::from_str(word), Ok(said));
            assert!(!word.contains('.') && !said.words().is_empty());
        }
    }
}
