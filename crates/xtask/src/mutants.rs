//! Broken on purpose: each guard is taken out in a copy of the tree, and the test named beside it must turn red.

use crate::{
    mutate, root,
    tests::{Named, Ran, run as run_test},
};
use anyhow::{Context as _, bail};
use std::{fs, io::Write as _, path::Path, process::Command};

struct Mutant {
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
    test: Named,
}

const MODEL: Named = Named::of("model_check", "no_history_within_small_bounds_breaks_an_invariant");
const PAIRS: Named =
    Named::of("core_run", "enumerate::every_state_and_event_is_a_transition_of_the_table_or_a_named_rejection");
const MEMORY: Named = Named::it("conformance::the_memory_store_keeps_the_contract");
const DEATHS: Named = Named::it(
    "crash_points::a_process_that_dies_at_any_commit_or_effect_boundary_leaves_a_run_that_ends_with_each_write_made_once",
);
const DRILL: Named = Named {
    package: "leasehold-server",
    target: Some("it"),
    name: "drill::the_bundled_site_survives_every_point_and_the_configured_one_is_not_touched",
};

const fn segment(name: &'static str) -> Named {
    Named::of("cases_core_segment", name)
}

const RUN: &str = "crates/leasehold/src/run";

/// Every guard, and what says that it is gone.
fn mutants() -> Vec<Mutant> {
    let m = |name, file, find, replace, test| Mutant { name, file, find, replace, test };
    vec![
        m("a call that asks: its stamp does not say so", "holder.rs", "stamp.asked = true;", "stamp.asked = false;", MODEL),
        m(
            "a call that asks: under another segment's fence",
            "holder.rs",
            "Some(fence) if !is_own(draft, fence) => return Err(Rejection::NotOwnFence(id)),\n        Some(_) => {}\n        None if !call.is_released()",
            "Some(_) => {}\n        None if !call.is_released()",
            MODEL,
        ),
        m(
            "a call that asked and ended: not run",
            "draft.rs",
            "if call.has_asked() && matches!",
            "if false && call.has_asked() && matches!",
            MODEL,
        ),
        m(
            "lease check (settle, record, stamp): the epoch is not compared",
            "transition.rs",
            "row.state.is_held() && row.epoch == right.epoch && row.lease",
            "row.state.is_held() && row.lease",
            MODEL,
        ),
        m(
            "lease check (settle, record, stamp): the lease is not compared",
            "transition.rs",
            "row.lease.as_ref().is_some_and(|l| l.lease_id == right.lease_id);\n    if held",
            "row.lease.is_some();\n    if held",
            MODEL,
        ),
        m("suspend under a fence", "holder.rs", "no_fence(draft)?;\n    if card", "if card", MODEL),
        m(
            "renewal: another's lease is extended",
            "../store/memory.rs",
            ".filter(|l| epoch_is_right && l.lease_id == right.lease_id)",
            ".filter(|_| epoch_is_right)",
            MEMORY,
        ),
        m(
            "the store's guard: the lease is not compared",
            "../store/memory.rs",
            "row.epoch != guard.epoch || lease_id != guard.lease_id || row.sequence",
            "row.epoch != guard.epoch || row.sequence",
            MEMORY,
        ),
        m(
            "expiry: a renewal in between does not win",
            "../store/memory.rs",
            "lease.expires_at == expiry.expires_at && over",
            "over",
            MEMORY,
        ),
        m(
            "stamp before the call: the permit comes without a stamp",
            "../worker/segment.rs",
            "acts.push(Act::Stamp(stamp));",
            "drop(stamp);",
            segment("the_stamp_is_on_the_row_while_the_tool_runs_and_goes_in_the_transaction_of_the_outcome"),
        ),
        m(
            "the fence goes with the outcome: it stays",
            "draft.rs",
            "if self.is_fenced(&outcome.call_id) {\n            self.next.fence = None;\n        }",
            "",
            MODEL,
        ),
        m(
            "verdict order: the cancel before the fence",
            "clockwork.rs",
            "    match &row.fence {\n        Some(fence) if fence.effect == Effect::NonIdempotentWrite => {",
            "    match &row.fence {\n        _ if row.cancel_requested => Verdict::Cancelled,\n        Some(fence) if fence.effect == Effect::NonIdempotentWrite => {",
            Named::of(
                "core_run",
                "a_cancel_in_flight_then_an_expiry_with_a_verifiable_fence_is_never_stamped_again_and_ends_cancelled",
            ),
        ),
        m(
            "verdict: requeued under a non-idempotent fence that cannot be asked",
            "clockwork.rs",
            "if fence.verifiable && continues && requeues_left",
            "if continues && requeues_left",
            Named::of("core_run", ""),
        ),
        m(
            "the digest in the claim of a decision",
            "people.rs",
            "draft.row.turn.as_ref().filter(|t| t.digest.as_deref() == Some(digest)).ok_or",
            "draft.row.turn.as_ref().filter(|_| !digest.is_empty()).ok_or",
            MODEL,
        ),
        m(
            "journal replay: a continuation begins from nothing",
            "../client.rs",
            "let story = Story::of(&entries);\n        let mut segment",
            "let story = Story::default();\n        let mut segment",
            DEATHS,
        ),
        m(
            "sticky cancel: a claim forgets it",
            "clockwork.rs",
            "draft.next.state = if draft.row.cancel_requested { State::Cancelling } else { State::Running };",
            "draft.next.state = State::Running;\n    draft.next.cancel_requested = false;",
            MODEL,
        ),
        m(
            "sticky cancel: stamped after it",
            "table.rs",
            "rule(&[S::Running], E::Stamp,",
            "rule(&[S::Running, S::Cancelling], E::Stamp,",
            PAIRS,
        ),
        m(
            "write id: a write sent again is not recognised by the store",
            "../store/memory.rs",
            "return Ok(if has_write(stored, write.write_id) {",
            "return Ok(if false {",
            MEMORY,
        ),
        m(
            "a non-idempotent write is stamped again without a word that it is absent",
            "holder.rs",
            "if standing.effect == Effect::NonIdempotentWrite && !found_absent {",
            "if false && standing.effect == Effect::NonIdempotentWrite && !found_absent {",
            MODEL,
        ),
        m(
            "a holder verifies its own entry",
            "holder.rs",
            "found_absent && standing.verifiable && !entered_by_holder(draft, &stamp.call_id);",
            "found_absent && standing.verifiable;",
            MODEL,
        ),
        m(
            "\"not applied\" of a repeat speaks of the call",
            "holder.rs",
            "Some(fence) if outcome.outcome != Outcome::Done && fence.repeat && !has_evidence => {",
            "Some(fence) if false && outcome.outcome != Outcome::Done && fence.repeat && !has_evidence => {",
            MODEL,
        ),
        m(
            "a late \"not started\" of a repeat removes the fence",
            "clockwork.rs",
            "LateAnswer::NotApplied | LateAnswer::NotStarted => !fence.repeat,",
            "LateAnswer::NotApplied | LateAnswer::NotStarted => true,",
            MODEL,
        ),
        m(
            "a stranger's late word counts",
            "clockwork.rs",
            "&& call.stamp_of(late.right.epoch, late.right.lease_id).is_some()\n",
            "\n",
            MODEL,
        ),
        m(
            "late evidence does not keep a repeat from starting",
            "holder.rs",
            "if call.evidence.is_some() {\n        return Err(Rejection::EvidenceSaysDone(stamp.call_id.clone()));\n    }\n    // Only a claim",
            "// Only a claim",
            MODEL,
        ),
        m(
            "closing says \"not run\" of what may have been entered",
            "draft.rs",
            "(c.id.clone(), self.is_fenced(&c.id) || c.maybe_entered())",
            "(c.id.clone(), false)",
            MODEL,
        ),
        m(
            "a resolution of another doubt",
            "people.rs",
            "f.call_id == said.call_id && f.epoch == said.fence_epoch",
            "f.call_id == said.call_id",
            MODEL,
        ),
        m(
            "\"not landed\" while the request may be on its way",
            "people.rs",
            "if draft.now.wall < fence.in_flight_until {",
            "if false && draft.now.wall < fence.in_flight_until {",
            MODEL,
        ),
        m(
            "a verify while the request may be on its way",
            "clockwork.rs",
            "let due = draft.after_backoff().max(asked);",
            "let due = draft.after_backoff().min(asked.max(draft.after_backoff()));",
            MODEL,
        ),
        m(
            "the trust window before the entry",
            "../worker/trust.rs",
            "self.left() >= self.ttl / 3",
            "self.left() <= self.ttl.saturating_mul(1_000)",
            segment("stamped_and_then_out_of_trust_is_not_started_and_no_doubt"),
        ),
        m(
            "an answer that could not be recorded is not offered late",
            "../agent/executor/write.rs",
            "segment.offer_late(id.clone(), (answer, result, is_error), aside);",
            "drop((answer, result, is_error));",
            segment("a_store_that_fails_at_the_outcome_until_the_deadline_leaves_a_doubt_that_the_late_outcome_settles"),
        ),
        m(
            "a repeat in place whose stamp was lost says \"not started\" of the entry before it",
            "../worker/segment.rs",
            "if self.row.fence.as_ref().is_some_and(|f| self.is_own(f, &call_id)) {",
            "if false && self.row.fence.as_ref().is_some_and(|f| self.is_own(f, &call_id)) {",
            Named::it("late_words::a_repeat_that_could_not_be_stamped_is_no_word_on_the_entry_before_it"),
        ),
        m(
            "a jump of the store's clock is taken for time that passed",
            "../worker/reaper.rs",
            "if jump > ttl / JUMP_PART {",
            "if false && jump > ttl / JUMP_PART {",
            Named::it("reaper_clock::a_jump_of_the_stores_clock_expires_nothing_for_one_ttl_and_then_what_nobody_renewed"),
        ),
        m(
            "a dead lease from before a step back of the store's clock lasts until its end",
            "../store/mod.rs",
            "Some(Self::Ahead)",
            "None",
            Named::it("reaper_clock::a_step_back_of_the_stores_clock_lets_no_dead_lease_live_a_ttl_longer"),
        ),
        m(
            "the task of a write does not look at its permit when it runs",
            "../agent/executor/write.rs",
            "if permit.check().is_err() {\n            return",
            "if false && permit.check().is_err() {\n            return",
            Named::it("starvation::a_runtime_that_is_blocked_for_three_leases_at_any_point_before_the_tool_does_not_start_it"),
        ),
        m(
            "an idempotent write is not handed back at the end of the grace period",
            "../agent/executor/write.rs",
            "self.leave.cancelled(), if idempotent",
            "self.leave.cancelled(), if false && idempotent",
            Named::it("shutdown::an_idempotent_write_that_outlasts_the_grace_is_handed_back_and_repeated_with_its_key"),
        ),
        m(
            "an interrupted write is simply made again: the drill's exit code says so",
            "../run/holder.rs",
            "effect: entry.effect,",
            "effect: Effect::IdempotentWrite,",
            DRILL,
        ),
    ]
}

/// A copy of the committed tree and of what differs from it, removed when it is dropped.
struct Copy(tempfile::TempDir);

impl Copy {
    fn of(root: &Path) -> anyhow::Result<Self> {
        let copy = tempfile::Builder::new().prefix("mutants-").tempdir_in(root.join("target"))?;
        let files = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("git does not start")?;
        for name in String::from_utf8(files.stdout)?.split_terminator('\0') {
            let (from, to) = (root.join(name), copy.path().join(name));
            if let (true, Some(folder)) = (from.is_file(), to.parent()) {
                fs::create_dir_all(folder)?;
                fs::copy(&from, &to).with_context(|| format!("copy {name}"))?;
            }
        }
        Ok(Self(copy))
    }
}

pub(crate) fn run(only: Option<&str>) -> anyhow::Result<()> {
    let root = root();
    let copy = Copy::of(&root)?;
    // What is in the core is seen by the core's own tests, in a crate that is built in no time.
    let core = mutate::core(&root, "mutants")?;
    let mut out = std::io::stdout().lock();
    let chosen: Vec<Mutant> = mutants().into_iter().filter(|m| only.is_none_or(|only| m.name.contains(only))).collect();
    let mut green = Vec::new();
    for mutant in &chosen {
        let in_core = !mutant.file.starts_with("..");
        let place = if in_core { core.as_path() } else { copy.0.path() };
        let file = place.join(RUN).join(mutant.file);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        fs::write(&file, text.replacen(mutant.find, mutant.replace, 1))?;
        let target = if in_core { core.join("target") } else { root.join("target") };
        let ran = run_test(place, &target, &mutant.test, &[]);
        fs::write(&file, text)?;
        let ran = ran?;
        let verdict = verdict(&ran);
        writeln!(out, "| {} | `{}` | {verdict} |", mutant.name, mutant.test.name)?;
        out.flush()?;
        if verdict != "red" {
            eprintln!("{}", ran.output);
            green.push(mutant.name);
        }
    }
    // The copies as they are, without a mutation: the tests are red because of it and of nothing else.
    for (place, target) in [(core.as_path(), core.join("target")), (copy.0.path(), root.join("target"))] {
        let unbroken = run_test(place, &target, &MODEL, &[])?;
        if verdict(&unbroken) != "green" {
            bail!("the copy itself is red:\n{}", unbroken.output);
        }
    }
    if !green.is_empty() {
        bail!("{} of {} mutants live: {green:?}", green.len(), chosen.len());
    }
    writeln!(out, "{} mutants, all red; without one, green", chosen.len())?;
    Ok(())
}

fn verdict(ran: &Ran) -> &'static str {
    match (ran.built, ran.tests, ran.passed) {
        (false, ..) => "DOES NOT BUILD",
        (true, 0, _) => "NO SUCH TEST",
        (true, _, true) => "green",
        (true, _, false) => "red",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_has_its_one_place_in_the_tree() {
        let places = |m: &Mutant| {
            let file = root().join(RUN).join(m.file);
            let text = fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            text.matches(m.find).count()
        };
        let lost: Vec<_> = mutants().iter().map(|m| (m.name, places(m))).filter(|(_, places)| *places != 1).collect();
        assert_eq!(lost, []);
    }
}
