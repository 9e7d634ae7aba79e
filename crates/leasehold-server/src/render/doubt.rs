//! A write in doubt: what is known about it, and how a person settles it.

use super::{Subject, arguments, effect_words, when};
use crate::{
    terminal::{Look, Screen},
    wire::{how_to_check, lease_end},
};
use leasehold::run::LateAnswer;

/// Shows the write in doubt, its evidence and the commands that settle it. Nothing where there is none.
pub(crate) fn doubt(screen: &mut Screen, subject: &Subject<'_>) {
    let Some(fence) = subject.doubted() else { return };
    screen.styled(Look::Strong, "The write in doubt");
    screen.fact(11, "tool", format!("{} ({})", fence.tool, effect_words(fence.effect)));
    let again = if fence.repeat { ", it may have been entered before" } else { "" };
    screen.fact(11, "call", format!("{}, attempt {}{again}", fence.call_id, fence.attempt));
    screen.styled(Look::Faint, "  arguments");
    arguments(screen, 4, &subject.arguments(&fence.call_id));
    screen.fact(
        11,
        "key",
        format!(
            "{} (sent as Idempotency-Key, over MCP as leasehold/idempotency-key: look for it on the far side)",
            fence.idempotency_key
        ),
    );
    let stamped = subject.stamped(&fence.call_id);
    if let Some((_, stamped)) = stamped.filter(|(_, stamped)| !stamped.endpoint.is_empty()) {
        screen.fact(11, "goes to", stamped.endpoint.clone());
    }
    let by = stamped.and_then(|(entry, _)| entry.holder.as_deref()).unwrap_or("an unknown process");
    screen.fact(11, "stamped", format!("{} by {by} (epoch {})", when(fence.stamped_at, subject.now), fence.epoch));
    if let Some((ended, expired)) = subject.lease_of(fence.lease_id) {
        let held = expired.expires_at.as_ref().and_then(|end| lease_end(end, subject.boot, subject.now));
        if let Some(held) = held {
            screen.fact(11, "renewed", format!("for the last time until {}", when(held, subject.now)));
        }
        let since = format!(
            "{by} has said nothing since its lease ended, {}; while it lives it may still send this",
            when(ended, subject.now)
        );
        screen.fact(11, "process", since);
    }
    if fence.in_flight_until > subject.now {
        screen.fact(11, "on its way", format!("may still be in flight until {}", when(fence.in_flight_until, subject.now)));
    } else {
        screen.fact(
            11,
            "on its way",
            format!("no longer by its own time limit, which ended {}", when(fence.in_flight_until, subject.now)),
        );
    }
    screen.fact(11, "why", subject.doubted_because());
    evidence(screen, subject);
    how_to_settle(screen, subject);
}

fn evidence(screen: &mut Screen, subject: &Subject<'_>) {
    let Some(fence) = &subject.row.fence else { return };
    let mut found = false;
    for (at, late) in subject.evidence(&fence.call_id) {
        found = true;
        let says = match late.answer {
            LateAnswer::Done => "says that it is done",
            LateAnswer::NotApplied => "says that it did not happen",
            LateAnswer::NotStarted => "says that it was never entered",
            LateAnswer::Unknown => "does not know either",
        };
        screen.fact(11, "evidence", format!("{}: the process of epoch {} {says}", when(at, subject.now), late.epoch));
    }
    if !found {
        let verify = if fence.verifiable {
            "the far side can be asked, and has not settled it"
        } else {
            "none: the far side cannot be asked"
        };
        screen.fact(11, "evidence", verify);
    }
}

fn how_to_settle(screen: &mut Screen, subject: &Subject<'_>) {
    let Some(fence) = &subject.row.fence else { return };
    let resolve =
        format!("{} resolve {} --call {} --fence-epoch {}", subject.command, subject.row.id, fence.call_id, fence.epoch);
    screen.fact(11, "to check", how_to_check(fence));
    screen.styled(Look::Faint, "  look at the far side, then say what is true:");
    screen.command(format!("    it happened:    {resolve} --landed"));
    screen.command(format!("    it did not:     {resolve} --not-landed"));
    screen.command(format!("    give it up:     {resolve} --abandon"));
    if fence.in_flight_until > subject.now {
        screen.styled(Look::Faint, format!("  \"it did not\" is taken from {} on", super::clock(fence.in_flight_until)));
    }
}
