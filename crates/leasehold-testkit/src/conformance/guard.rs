//! The answers of a guarded write, and that they never collapse.

use super::World;
use crate::fixture::{TTL, claim, expire, foreign, queued, record, running};
use leasehold::{
    clock::BootClock as _,
    run::{LeaseId, LeaseTime, Reason, RunId, Snapshot, State},
    store::{Answer, Held, LeaseOp, Write},
};
use std::time::Duration;

fn end(world: &World, ttl: Duration) -> LeaseTime {
    LeaseTime { clock: "boot-1".into(), ns: world.clock.now().ns + i64::try_from(ttl.as_nanos()).unwrap() }
}

/// The write changes nothing and is answered so.
async fn refused_with(world: &World, write: Write, expected: Answer) {
    let id = write.next.id;
    let (row, journal) = (world.row(id).await, world.journal(id).await);
    assert_eq!(world.write(write).await, expected);
    assert_eq!(world.row(id).await, row);
    assert_eq!(world.journal(id).await, journal);
}

pub(super) async fn a_write_changes_row_and_journal_together(world: World) {
    let row = world.add(running("a")).await;
    let after = world.apply(record(&row, "step")).await;
    assert_eq!((after.sequence, after.rounds), (2, 1));
    let journal = world.journal(row.id).await;
    assert_eq!(journal.iter().map(|e| e.sequence).collect::<Vec<_>>(), [0, 1]);
}

pub(super) async fn a_stale_sequence_has_moved(world: World) {
    let row = world.add(running("a")).await;
    world.apply(foreign(&row, "somebody")).await;
    refused_with(&world, record(&row, "late"), Answer::Moved).await;
    let unheld = world.add(queued("a")).await;
    world.apply(foreign(&unheld, "somebody")).await;
    refused_with(&world, foreign(&unheld, "late"), Answer::Moved).await;
    let mut ahead = record(&row, "ahead");
    (ahead.guard.sequence, ahead.next.sequence, ahead.entries[0].sequence) = (7, 8, 7);
    refused_with(&world, ahead, Answer::Moved).await;
}

pub(super) async fn another_epoch_is_fenced(world: World) {
    let row = world.add(running("a")).await;
    let mut write = record(&row, "other");
    write.guard.epoch = 2;
    refused_with(&world, write, Answer::Fenced).await;
    let mut both = record(&row, "other, and stale");
    (both.guard.epoch, both.guard.sequence, both.next.sequence, both.entries[0].sequence) = (2, 0, 1, 0);
    refused_with(&world, both, Answer::Fenced).await;
}

pub(super) async fn another_lease_is_fenced(world: World) {
    let row = world.add(running("a")).await;
    let mut write = record(&row, "other");
    write.guard.lease_id = Some(LeaseId::random());
    refused_with(&world, write, Answer::Fenced).await;
    let unheld = world.add(queued("a")).await;
    let mut write = record(&unheld, "a lease that is gone");
    write.guard.lease_id = Some(LeaseId::random());
    refused_with(&world, write, Answer::Fenced).await;
}

pub(super) async fn a_lease_where_none_was_seen_is_fenced(world: World) {
    let row = world.add(running("a")).await;
    let mut write = foreign(&row, "seen unheld");
    write.guard.lease_id = None;
    refused_with(&world, write, Answer::Fenced).await;
}

pub(super) async fn an_unknown_run_is_gone(world: World) {
    let row = running("a");
    assert_eq!(world.write(record(&row, "nowhere")).await, Answer::Gone);
    assert_eq!(world.store.load(row.id).await.unwrap(), None);
    assert_eq!(world.journal(row.id).await, []);
}

pub(super) async fn a_write_sent_again_is_applied_and_changes_nothing(world: World) {
    let row = world.add(running("a")).await;
    let write = record(&row, "once");
    let after = world.apply(write.clone()).await;
    world.clock.advance(Duration::from_secs(1));
    let end = after.lease.clone().map(|l| l.expires_at);
    refused_with(&world, write.clone(), Answer::Applied(end)).await;
    let later = world.apply(record(&after, "later")).await;
    let end = later.lease.clone().map(|l| l.expires_at);
    refused_with(&world, write, Answer::Applied(end)).await;
}

pub(super) async fn a_write_sent_again_after_the_right_moved_on_is_applied(world: World) {
    let row = world.add(running("a")).await;
    let write = record(&row, "once");
    let after = world.apply(write.clone()).await;
    world.clock.advance(TTL);
    let queued = world.apply(expire(&after, false)).await;
    refused_with(&world, write.clone(), Answer::Applied(None)).await;
    let claimed = world.apply(claim(&queued)).await;
    refused_with(&world, write, Answer::Applied(claimed.lease.map(|l| l.expires_at))).await;
    refused_with(&world, record(&after, "another of the same holder"), Answer::Fenced).await;
}

pub(super) async fn a_write_with_a_gap_is_refused_and_changes_nothing(world: World) {
    let row = world.add(running("a")).await;
    let mut gap = record(&row, "gap");
    (gap.entries[0].sequence, gap.next.sequence) = (2, 3);
    let mut miscounted = record(&row, "miscounted");
    miscounted.next.sequence = 3;
    let mut silent = record(&row, "counts an entry that it has not");
    silent.entries.clear();
    for write in [gap, miscounted, silent] {
        world.store.write(write).await.unwrap_err();
        assert_eq!(world.row(row.id).await, row);
        assert_eq!(world.journal(row.id).await.len(), 1);
    }
}

pub(super) async fn a_row_that_no_transition_makes_is_refused(world: World) {
    let row = world.add(running("a")).await;
    let bad = |change: fn(&mut Snapshot), op: LeaseOp| {
        let mut write = record(&row, "impossible");
        change(&mut write.next);
        write.lease = op;
        write
    };
    let extend = LeaseOp::Extend(TTL);
    let writes = [
        bad(|r| r.state = State::WaitingForApproval, LeaseOp::Keep),
        bad(|r| r.state = State::Completed, extend),
        bad(|r| r.lease = None, LeaseOp::Drop),
        bad(|r| r.cancel_requested = true, extend),
        bad(|r| r.state = State::Cancelling, extend),
        bad(|r| r.reason = Some(Reason::Budget), extend),
        bad(|r| (r.state, r.lease) = (State::Failed, None), LeaseOp::Drop),
        bad(|r| (r.state, r.reason, r.lease) = (State::Failed, Some(Reason::Restored), None), LeaseOp::Drop),
        bad(|r| (r.state, r.reason, r.lease) = (State::Dead, Some(Reason::WriteInDoubt), None), LeaseOp::Drop),
        bad(|r| (r.state, r.fence, r.lease) = (State::Completed, Some(crate::fixture::fence(1)), None), LeaseOp::Drop),
        bad(|r| r.fence = Some(crate::fixture::fence(2)), extend),
    ];
    for (n, write) in writes.into_iter().enumerate() {
        let answer = world.store.write(write).await;
        assert!(matches!(answer, Err(_) | Ok(Answer::Refused(_))), "number {n}: {answer:?}");
        assert_eq!(world.row(row.id).await, row);
        assert_eq!(world.journal(row.id).await.len(), 1);
    }
}

pub(super) async fn a_granted_lease_ends_a_ttl_after_the_stores_now(world: World) {
    let row = world.add(queued("a")).await;
    let claimed = world.apply(claim(&row)).await;
    assert_eq!(claimed.lease.as_ref().unwrap().expires_at, end(&world, TTL));
    world.clock.advance(Duration::from_secs(7));
    let mut write = record(&claimed, "shorter");
    write.lease = LeaseOp::Extend(Duration::from_secs(3));
    let after = world.apply(write).await;
    assert_eq!(after.lease.unwrap().expires_at, end(&world, Duration::from_secs(3)));
}

pub(super) async fn a_foreign_change_keeps_the_renewed_lease(world: World) {
    let row = world.add(running("a")).await;
    world.clock.advance(Duration::from_secs(5));
    let held = Held { id: row.id, epoch: 1, lease_id: row.lease.as_ref().unwrap().lease_id };
    let store = world.store.clone();
    tokio::task::spawn_blocking(move || store.renewer().unwrap().renew(&[held], TTL).unwrap()).await.unwrap();
    let mut write = foreign(&row, "cancel");
    (write.next.state, write.next.cancel_requested) = (State::Cancelling, true);
    let after = world.apply(write).await;
    assert_eq!(after.lease.unwrap().expires_at, end(&world, TTL));
}

pub(super) async fn a_dropped_lease_is_gone(world: World) {
    let row = world.add(running("a")).await;
    let mut write = record(&row, "answer");
    (write.next.state, write.next.lease, write.lease) = (State::Completed, None, LeaseOp::Drop);
    assert_eq!(world.apply(write).await.lease, None);
}

pub(super) async fn an_expiry_waits_for_the_stores_clock(world: World) {
    let row = world.add(running("a")).await;
    world.clock.advance(TTL - Duration::from_nanos(1));
    refused_with(&world, expire(&row, false), Answer::Moved).await;
    world.clock.advance(Duration::from_nanos(1));
    let after = world.apply(expire(&row, false)).await;
    assert_eq!((after.state, after.epoch, after.lease), (State::Queued, 2, None));
}

pub(super) async fn a_renewal_in_between_wins_over_an_expiry(world: World) {
    let row = world.add(running("a")).await;
    world.clock.advance(TTL);
    let held = Held { id: row.id, epoch: 1, lease_id: row.lease.as_ref().unwrap().lease_id };
    let store = world.store.clone();
    tokio::task::spawn_blocking(move || store.renewer().unwrap().renew(&[held], TTL).unwrap()).await.unwrap();
    refused_with(&world, expire(&row, false), Answer::Moved).await;
    world.clock.advance(TTL);
    refused_with(&world, expire(&row, false), Answer::Moved).await;
    let seen = world.row(row.id).await;
    world.apply(expire(&seen, false)).await;
}

pub(super) async fn a_lease_of_another_boot_ends_only_when_watched(world: World) {
    let row = world.add(running("a")).await;
    world.clock.reboot("boot-2");
    world.clock.advance(TTL * 100);
    refused_with(&world, expire(&row, false), Answer::Moved).await;
    world.apply(expire(&row, true)).await;
}

pub(super) async fn a_lease_that_ends_later_than_one_granted_now_ends_only_when_watched(world: World) {
    let row = world.add(running("a")).await;
    world.clock.step_boot(-1);
    refused_with(&world, expire(&row, false), Answer::Moved).await;
    world.apply(expire(&row, true)).await;
}

pub(super) async fn a_lease_of_this_boot_is_not_ended_by_watching(world: World) {
    let row = world.add(running("a")).await;
    refused_with(&world, expire(&row, true), Answer::Moved).await;
}

pub(super) async fn fifty_writes_at_once_each_get_their_own_answer(world: World) {
    let mut sends = Vec::new();
    for n in 0..50 {
        let row = world.add(running("a")).await;
        let (write, expected) = match n % 10 {
            3 => (record(&Snapshot { id: RunId::new(), ..row.clone() }, "gone"), Some(Answer::Gone)),
            5 => {
                let mut write = record(&row, "impossible");
                write.next.reason = Some(Reason::Budget);
                (write, None)
            }
            7 => {
                let mut write = record(&row, "fenced");
                write.guard.epoch = 9;
                (write, Some(Answer::Fenced))
            }
            _ => (record(&row, "fine"), Some(Answer::Applied(Some(end(&world, TTL))))),
        };
        sends.push((row.id, write, expected));
    }
    let sends = sends.into_iter().map(|(id, write, expected)| {
        let store = world.store.clone();
        // A row that no transition makes is refused in words of the store's own, or not answered.
        let answer = |answer: Option<Answer>| answer.filter(|a| !matches!(a, Answer::Refused(_)));
        (id, expected, tokio::spawn(async move { answer(store.write(write).await.ok()) }))
    });
    for (id, expected, answer) in sends.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), expected);
        let applied = matches!(expected, Some(Answer::Applied(_)));
        assert_eq!(world.journal(id).await.len(), if applied { 2 } else { 1 });
    }
}

pub(super) async fn a_lost_race_for_a_claim_is_fenced(world: World) {
    let row = world.add(queued("a")).await;
    let claims: Vec<_> = (0..8)
        .map(|_| {
            let (store, claim) = (world.store.clone(), claim(&row));
            tokio::spawn(async move { store.write(claim).await.unwrap() })
        })
        .collect();
    let mut won = 0;
    for claim in claims {
        match claim.await.unwrap() {
            Answer::Applied(_) => won += 1,
            other => assert_eq!(other, Answer::Fenced),
        }
    }
    assert_eq!((won, world.row(row.id).await.epoch), (1, 1));
}
