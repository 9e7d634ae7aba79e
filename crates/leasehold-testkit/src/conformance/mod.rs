//! The store contract as tests: one entry, [`run`], for every store. A behaviour of stores begins as a case here.
//!
//! Each case gets a fresh store and is named by the sentence it holds the store to. All cases run; then the entry panics with
//! the names of those that failed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "an assertion library: panicking is how it says that a store breaks its contract"
)]

mod artifacts;
mod charges;
mod claims;
mod guard;
mod load;
mod queries;
mod records;
mod rows;
mod work;

use leasehold::{
    clock::ManualClock,
    run::{Entry, RunId, Snapshot},
    store::{Answer, Insert, Inserted, Store, Write},
};
use std::{fmt, future::Future, pin::Pin, sync::Arc};

/// A fresh store of its own.
#[async_trait::async_trait]
pub trait Subject: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;
    /// The clock that ends its leases; only its case moves it.
    fn clock(&self) -> Arc<ManualClock>;
    /// Another handle on the same data, as another process has; what it finds must have been durable.
    async fn reopen(&self) -> Arc<dyn Store>;
}

/// What a case works with.
struct World {
    store: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    subject: Box<dyn Subject>,
}

type CaseFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Case {
    name: &'static str,
    run: fn(World) -> CaseFuture,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

macro_rules! cases {
    ($($module:ident::$name:ident),+ $(,)?) => {
        &[$(Case { name: stringify!($name), run: |world| Box::pin($module::$name(world)) }),+]
    };
}

/// Every case; one that is not here does not exist.
const CASES: &[Case] = cases![
    rows::every_field_comes_back_as_it_went_in,
    rows::a_row_after_a_write_is_the_row_of_the_write,
    rows::entries_come_back_as_they_went_in,
    rows::an_insert_sent_again_is_applied_once,
    rows::a_run_id_of_another_insert_is_refused,
    rows::an_insert_that_leaves_a_gap_is_refused,
    rows::the_request_key_finds_its_run,
    rows::another_request_under_a_key_is_a_conflict,
    rows::the_same_key_in_another_scope_is_another_key,
    rows::fifty_inserts_under_one_key_make_one_run,
    rows::an_unknown_run_has_neither_row_nor_journal,
    rows::three_megabytes_come_back_as_they_went_in,
    rows::a_journal_is_read_in_pages,
    guard::a_write_changes_row_and_journal_together,
    guard::a_stale_sequence_has_moved,
    guard::another_epoch_is_fenced,
    guard::another_lease_is_fenced,
    guard::a_lease_where_none_was_seen_is_fenced,
    guard::an_unknown_run_is_gone,
    guard::a_write_sent_again_is_applied_and_changes_nothing,
    guard::a_write_sent_again_after_the_right_moved_on_is_applied,
    guard::a_write_with_a_gap_is_refused_and_changes_nothing,
    guard::a_row_that_no_transition_makes_is_refused,
    guard::a_granted_lease_ends_a_ttl_after_the_stores_now,
    guard::a_foreign_change_keeps_the_renewed_lease,
    guard::a_dropped_lease_is_gone,
    guard::an_expiry_waits_for_the_stores_clock,
    guard::a_renewal_in_between_wins_over_an_expiry,
    guard::a_lease_of_another_boot_ends_only_when_watched,
    guard::a_lease_of_this_boot_is_not_ended_by_watching,
    guard::a_lease_that_ends_later_than_one_granted_now_ends_only_when_watched,
    guard::fifty_writes_at_once_each_get_their_own_answer,
    guard::a_lost_race_for_a_claim_is_fenced,
    queries::due_runs_come_by_priority_then_time,
    queries::a_run_is_not_due_before_its_time,
    queries::only_queued_runs_of_these_agents_are_due,
    claims::a_claim_shows_whole_rows_of_each_agent_but_those_excepted,
    claims::an_idle_queue_asks_nobody,
    claims::what_a_claim_writes_is_one_commit_with_an_answer_each,
    claims::a_write_of_a_claim_that_is_refused_fails_alone,
    claims::a_write_of_a_claim_with_a_stale_guard_changes_nothing,
    claims::claims_at_once_never_get_the_same_row,
    queries::the_next_due_time_is_the_earliest,
    queries::lapsed_leases_come_in_id_order_and_pages,
    queries::a_lease_of_another_boot_is_lapsed_and_foreign,
    queries::a_lease_that_ends_later_than_one_granted_now_is_lapsed,
    queries::overdue_runs_come_in_id_order_and_pages,
    queries::lists_are_newest_first_and_paged,
    queries::each_filter_narrows_a_list,
    queries::a_page_has_a_bound,
    queries::runs_that_called_a_tool_are_found_by_it,
    queries::settled_runs_are_untold_until_somebody_was_told_of_that_end,
    queries::a_run_is_found_by_the_end_of_its_id,
    queries::workers_live_until_their_time_or_word,
    queries::what_the_workers_serve_comes_back_as_it_was_last_said,
    charges::a_write_over_a_budget_changes_nothing_and_one_within_it_counts,
    charges::a_call_is_counted_once_and_a_write_sent_again_is_the_same,
    charges::what_is_older_than_the_window_does_not_count,
    charges::a_charged_write_whose_guard_does_not_hold_charges_nothing,
    charges::charges_at_once_never_exceed_their_budgets,
    artifacts::artifacts_are_there_with_the_write_that_brings_them,
    artifacts::a_write_whose_guard_does_not_hold_keeps_nothing,
    artifacts::a_content_is_kept_once_and_a_write_sent_again_changes_nothing,
    records::a_record_comes_back_as_it_went_in,
    records::a_record_is_written_only_over_the_version_that_was_seen,
    records::an_expired_record_stays_until_it_is_removed,
    records::records_come_in_the_order_of_their_keys_and_in_pages,
    records::a_page_of_records_has_a_bound,
    records::records_are_written_all_or_none,
    records::a_malformed_record_is_refused_and_changes_nothing,
    records::of_twenty_writers_of_a_record_one_is_the_first,
    records::writers_of_the_same_records_in_any_order_do_not_wait_for_each_other_for_ever,
    work::work_is_there_with_its_write_or_the_store_says_that_it_has_no_database,
    work::work_that_is_undone_leaves_nothing_of_its_write,
    work::work_under_a_guard_that_does_not_hold_leaves_nothing,
    work::work_that_is_there_already_is_not_there_twice,
    work::work_whose_write_cannot_be_made_leaves_nothing,
    load::a_renewal_extends_only_what_is_held,
    load::a_look_reports_foreign_changes_and_extends_nothing,
    load::what_was_acknowledged_is_there_for_another_handle,
    load::eight_writers_leave_no_gap,
    load::readers_and_renewals_stand_beside_large_writes,
];

/// Runs every case, each on a store of its own.
///
/// # Panics
/// A case failed; the message names each.
pub async fn run<F, Fut>(fresh: F)
where
    F: Fn() -> Fut,
    Fut: Future<Output = Box<dyn Subject>>,
{
    let mut failed = Vec::new();
    for case in CASES {
        let subject = fresh().await;
        let world = World { store: subject.store(), clock: subject.clock(), subject };
        if tokio::spawn((case.run)(world)).await.is_err() {
            eprintln!("failed: {}", case.name);
            failed.push(case.name);
        }
    }
    assert!(failed.is_empty(), "{} of {} cases failed: {failed:#?}", failed.len(), CASES.len());
}

impl World {
    /// Inserts a row and reads it back.
    async fn add(&self, row: Snapshot) -> Snapshot {
        let id = row.id;
        self.insert(crate::fixture::insert(row)).await;
        self.row(id).await
    }

    async fn insert(&self, insert: Insert) {
        let inserted = self.store.insert(insert).await.unwrap();
        assert!(matches!(inserted, Inserted::Applied(_)), "{inserted:?}");
    }

    async fn row(&self, id: RunId) -> Snapshot {
        self.store.load(id).await.unwrap().expect("the row is there")
    }

    async fn journal(&self, id: RunId) -> Vec<Entry> {
        self.store.journal(id, 0, usize::MAX).await.unwrap()
    }

    async fn write(&self, write: Write) -> Answer {
        self.store.write(write).await.unwrap()
    }

    /// A write that must be applied; the row afterwards.
    async fn apply(&self, write: Write) -> Snapshot {
        let id = write.next.id;
        let answer = self.write(write).await;
        let row = self.row(id).await;
        assert_eq!(answer, Answer::Applied(row.lease.as_ref().map(|l| l.expires_at.clone())));
        row
    }
}
