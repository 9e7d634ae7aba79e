//! Queues, sweeps and lists.

use super::World;
use crate::fixture::{EXTREME, TTL, at, completed, full, in_doubt, queued, record, running, waiting};
use leasehold::{
    clock::BootClock as _,
    limits::PAGE_MAX,
    run::{Claimer, LeaseTime, RunId, Snapshot, State},
    store::{Answer, Filter, Lapse, Visible, Write},
};
use std::time::Duration;

fn agents(names: &[&str]) -> Vec<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

pub(super) async fn due_runs_come_by_priority_then_time(world: World) {
    let mut ids = Vec::new();
    for (priority, due) in [(0, 5), (0, 3), (7, 9), (-1, 0), (7, 8), (0, 3)] {
        ids.push(world.add(Snapshot { priority, due_at: at(due), ..queued("a") }).await.id);
    }
    let expected = [4, 2, 1, 5, 0, 3].map(|n: usize| ids[n]);
    assert_eq!(world.due(&[("a", 100)], 10).await, expected);
    assert_eq!(world.due(&[("a", 2)], 10).await, expected[..2]);
}

pub(super) async fn a_run_is_not_due_before_its_time(world: World) {
    let id = world.add(Snapshot { due_at: at(10), ..queued("a") }).await.id;
    assert_eq!(world.due(&[("a", 10)], 9).await, []);
    assert_eq!(world.due(&[("a", 10)], 10).await, [id]);
}

pub(super) async fn only_queued_runs_of_these_agents_are_due(world: World) {
    let mine = world.add(queued("a'\"\u{e4}")).await.id;
    let too = world.add(queued("b")).await.id;
    world.add(queued("B")).await;
    for row in [running("b"), waiting("b", None), completed("b"), in_doubt("b")] {
        world.add(row).await;
    }
    assert_eq!(world.due(&[("a'\"\u{e4}", 10), ("b", 10)], 10).await, [mine, too]);
    assert_eq!(world.due(&[], 10).await, []);
}

pub(super) async fn the_next_due_time_is_the_earliest(world: World) {
    assert_eq!(world.store.next_due(&agents(&["a"])).await.unwrap(), None);
    for (agent, due) in [("a", 9), ("a", 4), ("b", 1)] {
        world.add(Snapshot { due_at: at(due), ..queued(agent) }).await;
    }
    world.add(Snapshot { due_at: at(0), ..running("a") }).await;
    assert_eq!(world.store.next_due(&agents(&["a"])).await.unwrap(), Some(at(4)));
    assert_eq!(world.store.next_due(&agents(&["a", "b"])).await.unwrap(), Some(at(1)));
    assert_eq!(world.store.next_due(&[]).await.unwrap(), None);
}

pub(super) async fn lapsed_leases_come_in_id_order_and_pages(world: World) {
    let mut rows = Vec::new();
    for n in 0..5 {
        let row =
            if n == 3 { Snapshot { state: State::Cancelling, cancel_requested: true, ..running("a") } } else { running("a") };
        rows.push(world.add(row).await);
    }
    world.add(queued("a")).await;
    world.clock.advance(Duration::from_secs(1));
    world.add(running("a")).await;
    assert_eq!(world.store.lapsed(TTL, None, 10).await.unwrap(), []);
    world.clock.advance(TTL - Duration::from_secs(1));
    let all = world.store.lapsed(TTL, None, 10).await.unwrap();
    assert_eq!(all.iter().map(|l| l.id).collect::<Vec<_>>(), rows.iter().map(|r| r.id).collect::<Vec<_>>());
    for (lapsed, row) in all.iter().zip(&rows) {
        let lease = row.lease.as_ref().unwrap();
        assert_eq!((lapsed.epoch, lapsed.lease_id, lapsed.lapse), (1, lease.lease_id, Lapse::Passed));
        assert_eq!(lapsed.expires_at, lease.expires_at);
    }
    assert_eq!(world.store.lapsed(TTL, None, 2).await.unwrap(), all[..2]);
    assert_eq!(world.store.lapsed(TTL, Some(rows[1].id), 2).await.unwrap(), all[2..4]);
    assert_eq!(world.store.lapsed(TTL, Some(rows[4].id), 2).await.unwrap(), []);
}

pub(super) async fn a_lease_of_another_boot_is_lapsed_and_foreign(world: World) {
    let row = world.add(running("a")).await;
    world.clock.reboot("boot-2");
    world.add(running("a")).await;
    let lapsed = world.store.lapsed(TTL, None, 10).await.unwrap();
    assert_eq!(lapsed.len(), 1);
    assert_eq!((lapsed[0].id, lapsed[0].lapse), (row.id, Lapse::Foreign));
    assert_eq!(lapsed[0].expires_at, row.lease.unwrap().expires_at);
}

pub(super) async fn a_lease_that_ends_later_than_one_granted_now_is_lapsed(world: World) {
    let row = world.add(running("a")).await;
    let before = world.store.now().await.unwrap();
    assert_eq!(before, LeaseTime { clock: "boot-1".into(), ns: world.clock.now().ns });
    world.clock.step_boot(-1);
    assert_eq!(world.store.now().await.unwrap().ns, before.ns - 1);
    let lapsed = world.store.lapsed(TTL, None, 10).await.unwrap();
    assert_eq!(lapsed.iter().map(|l| (l.id, l.lapse)).collect::<Vec<_>>(), [(row.id, Lapse::Ahead)]);
    world.clock.step_boot(1);
    assert_eq!(world.store.lapsed(TTL, None, 10).await.unwrap(), []);
}

pub(super) async fn overdue_runs_come_in_id_order_and_pages(world: World) {
    let mut ids = Vec::new();
    for deadline in [30, 10, 20] {
        ids.push(world.add(waiting("a", Some(at(deadline)))).await.id);
    }
    world.add(waiting("a", None)).await;
    world.add(waiting("a", Some(at(31)))).await;
    let elsewhere = waiting("a", Some(at(1))).turn;
    world.add(Snapshot { turn: elsewhere, ..queued("a") }).await;
    assert_eq!(world.store.overdue(at(9), None, 10).await.unwrap(), []);
    assert_eq!(world.store.overdue(at(20), None, 10).await.unwrap(), ids[1..]);
    assert_eq!(world.store.overdue(at(30), None, 2).await.unwrap(), ids[..2]);
    assert_eq!(world.store.overdue(at(30), Some(ids[1]), 2).await.unwrap(), ids[2..]);
}

async fn listed(world: &World, filter: Filter) -> Vec<RunId> {
    world.store.list(&filter, None, 100).await.unwrap().iter().map(|l| l.id).collect()
}

pub(super) async fn lists_are_newest_first_and_paged(world: World) {
    let mut rows = Vec::new();
    for row in [queued("a"), full(), in_doubt("a"), completed("a")] {
        rows.insert(0, world.add(row).await);
    }
    let all = world.store.list(&Filter::default(), None, 10).await.unwrap();
    for (shown, row) in all.iter().zip(&rows) {
        assert_eq!((shown.id, shown.epoch, shown.duplicates), (row.id, row.epoch, row.duplicates));
        assert_eq!((&shown.agent, &shown.owner), (&row.agent, &row.owner));
        assert_eq!((shown.created_at, shown.since), (row.created_at, row.since));
        assert_eq!(shown.state, row.state.as_str());
        assert_eq!(shown.reason.as_deref(), row.reason.map(|r| r.as_str()));
        assert_eq!(shown.holder, row.lease.as_ref().map(|l| l.holder.clone()));
        assert_eq!(shown.fence_tool, row.fence.as_ref().map(|f| f.tool.clone()));
        assert_eq!(shown.cancel_requested, row.cancel_requested);
    }
    assert_eq!(all.len(), 4);
    assert_eq!(world.store.list(&Filter::default(), None, 3).await.unwrap(), all[..3]);
    assert_eq!(world.store.list(&Filter::default(), Some(all[2].id), 3).await.unwrap(), all[3..]);
}

pub(super) async fn each_filter_narrows_a_list(world: World) {
    let queued_run = world.add(queued("a")).await.id;
    let held = world.add(running("b")).await.id;
    let doubt = world.add(Snapshot { owner: "bob".into(), ..in_doubt("b") }).await.id;
    let wait = world.add(waiting("a", None)).await.id;
    let twice = world.add(Snapshot { duplicates: 1, created_at: at(50), ..completed("a") }).await.id;
    let states = |states: &[State]| Filter { states: states.to_vec(), ..Filter::default() };
    assert_eq!(listed(&world, states(&[State::Queued, State::Running])).await, [held, queued_run]);
    assert_eq!(listed(&world, states(&[State::Dead])).await, [doubt]);
    assert_eq!(listed(&world, states(&[State::WaitingForApproval, State::WaitingForInput, State::Dead])).await, [wait, doubt]);
    assert_eq!(listed(&world, states(&[State::Dead, State::Completed])).await, [twice, doubt]);
    assert_eq!(listed(&world, Filter { agent: Some("b".into()), ..Filter::default() }).await, [doubt, held]);
    assert_eq!(listed(&world, Filter { owner: Some("bob".into()), ..Filter::default() }).await, [doubt]);
    assert_eq!(listed(&world, Filter { reason: Some("write_in_doubt".into()), ..Filter::default() }).await, [doubt]);
    assert_eq!(listed(&world, Filter { since: Some(at(50)), ..Filter::default() }).await, [twice]);
    assert_eq!(listed(&world, Filter { since: Some(at(51)), ..Filter::default() }).await, []);
    let otherwise = world.add(Snapshot { contradictions: 1, created_at: at(49), ..completed("a") }).await.id;
    assert_eq!(listed(&world, Filter { flagged_only: true, ..Filter::default() }).await, [otherwise, twice]);
    let of_team = world.add(Snapshot { team: Some("shop".into()), created_at: at(10), ..completed("a") }).await.id;
    let behind = world.add(Snapshot { initiator: "eve".into(), created_at: at(10), ..completed("a") }).await.id;
    let seen = |owner: &str, teams: &[&str]| {
        let teams = teams.iter().map(|team| (*team).to_owned()).collect();
        let visible = Visible { owner: owner.into(), initiator: owner.into(), teams };
        Filter { visible_to: Some(visible), ..Filter::default() }
    };
    assert_eq!(listed(&world, seen("bob", &[])).await, [doubt]);
    assert_eq!(listed(&world, seen("bob", &["shop", "till"])).await, [of_team, doubt]);
    assert_eq!(listed(&world, seen("eve", &["%"])).await, [behind]);
    assert_eq!(listed(&world, seen("nobody", &[])).await, []);
    let both = Filter { agent: Some("a".into()), owner: Some("bob".into()), ..states(&[State::Dead]) };
    assert_eq!(listed(&world, both).await, []);
    let nothing = Filter { agent: Some("%".into()), ..Filter::default() };
    assert_eq!(listed(&world, nothing).await, []);
}

pub(super) async fn a_page_has_a_bound(world: World) {
    let adds: Vec<_> = (0..=PAGE_MAX)
        .map(|_| {
            let store = world.store.clone();
            tokio::spawn(async move { store.insert(crate::fixture::insert(queued("a"))).await.unwrap() })
        })
        .collect();
    for add in adds {
        add.await.unwrap();
    }
    assert_eq!(world.store.list(&Filter::default(), None, usize::MAX).await.unwrap().len(), PAGE_MAX);
    assert_eq!(world.due(&[("a", usize::MAX)], 1).await.len(), PAGE_MAX);
}

pub(super) async fn a_run_is_found_by_the_end_of_its_id(world: World) {
    let id = |text: &str| text.parse::<RunId>().unwrap();
    let one = id("01890a5d-ac96-774b-bcce-b302099a8057");
    let two = id("01890a5d-ac96-774b-bcce-b302099b8057");
    let three = id("01890a5d-ac96-774b-bcce-a302099b8057");
    for id in [one, two, three] {
        world.add(Snapshot { id, ..queued("a") }).await;
    }
    let find = async |text: &str| world.store.find(text).await.unwrap();
    assert_eq!(find("099a8057").await, [one]);
    assert_eq!(find("099A8057").await, [one]);
    assert_eq!(find(&one.to_string()).await, [one]);
    assert_eq!(find(&one.0.simple().to_string()).await, [one]);
    assert_eq!(find("bcce-b302099b8057").await, [two]);
    assert_eq!(find("bcceb302099b8057").await, [two]);
    assert_eq!(find("8057").await.len(), 2, "ambiguous, and no more than two");
    for none in ["", "-", "%", "_8057", "9%8057", "g", "0", "\0", &format!("0{}", one.0.simple())] {
        assert_eq!(find(none).await, [], "{none:?}");
    }
}

pub(super) async fn workers_live_until_their_time_or_word(world: World) {
    let alive = async || world.store.workers().await.unwrap().len();
    let (open, closed) = (serving("a"), Claimer::default());
    assert_eq!(alive().await, 0);
    world.store.announce("one", TTL, &open).await.unwrap();
    world.store.announce("two", TTL / 2, &open).await.unwrap();
    world.store.announce("two", TTL / 2, &open).await.unwrap();
    assert_eq!(alive().await, 2);
    world.clock.advance(TTL / 2);
    assert_eq!(alive().await, 1);
    world.store.announce("one", TTL, &closed).await.unwrap();
    assert_eq!(alive().await, 0);
    world.store.announce("two", TTL, &open).await.unwrap();
    world.clock.reboot("boot-2");
    assert_eq!(alive().await, 0);
}

fn serving(agent: &str) -> Claimer {
    Claimer { agents: [agent.to_owned()].into(), tools: [format!("{agent}.tool"), "b".into()].into(), open: true }
}

pub(super) async fn what_the_workers_serve_comes_back_as_it_was_last_said(world: World) {
    world.store.announce("one", TTL, &serving("x")).await.unwrap();
    world.store.announce("two", TTL, &serving(EXTREME)).await.unwrap();
    world.store.announce("one", TTL, &serving("a")).await.unwrap();
    let mut workers = world.subject.reopen().await.workers().await.unwrap();
    workers.sort_by_key(|w| w.agents.contains(EXTREME));
    assert_eq!(workers, [serving("a"), serving(EXTREME)]);
}

pub(super) async fn runs_that_called_a_tool_are_found_by_it(world: World) {
    let called = |row: &Snapshot, ms: i64, tools: &[&str]| {
        let mut write = record(row, "asked");
        write.entries.iter_mut().for_each(|entry| entry.at = at(ms));
        Write { called: tools.iter().map(|&tool| tool.to_owned()).collect(), ..write }
    };
    let shared = Snapshot { team: Some("docks".into()), initiator: "ann".into(), ..running("a") };
    let (one, two, three) = (world.add(running("a")).await, world.add(shared).await, world.add(running("a")).await);
    let one_now = world.apply(called(&one, 10, &["t", "u", EXTREME])).await;
    world.apply(called(&two, 20, &["t"])).await;
    // One that is refused says nothing.
    let stale = called(&Snapshot { sequence: 9, ..three.clone() }, 20, &["t"]);
    assert_eq!(world.store.write(stale).await.unwrap(), Answer::Moved);
    let store = world.subject.reopen().await;
    let callers = async |tool, since, to: Option<&Visible>, limit| store.callers(tool, at(since), to, limit).await.unwrap();
    assert_eq!(callers("t", 0, None, usize::MAX).await, [two.id, one.id]);
    assert_eq!(callers("t", 0, None, 1).await, [two.id]);
    assert_eq!(callers("t", 11, None, 9).await, [two.id]);
    assert_eq!(callers("u", 10, None, 9).await, [one.id]);
    assert_eq!(callers(EXTREME, 10, None, 9).await, [one.id]);
    assert_eq!(callers("v", 0, None, 9).await, []);
    let sees = |owner: &str, initiator: &str, team: &str| Visible {
        owner: owner.into(),
        initiator: initiator.into(),
        teams: vec!["x".into(), team.into()],
    };
    assert_eq!(callers("t", 0, Some(&sees(&one.owner, "-", "-")), 9).await, [two.id, one.id]);
    assert_eq!(callers("t", 0, Some(&sees("-", "ann", "-")), 9).await, [two.id]);
    assert_eq!(callers("t", 0, Some(&sees("-", "-", "docks")), 9).await, [two.id]);
    assert_eq!(callers("t", 0, Some(&sees("-", "-", "-")), 9).await, []);
    // The time of the last one counts.
    world.apply(called(&one_now, 30, &["t"])).await;
    assert_eq!(callers("t", 0, None, 9).await, [one.id, two.id]);
    assert_eq!(callers("t", 30, None, 9).await, [one.id]);
}

pub(super) async fn settled_runs_are_untold_until_somebody_was_told_of_that_end(world: World) {
    let ended = |n: i64| Snapshot { finished_at: Some(at(n)), ..completed("a") };
    let (late, early) = (world.add(ended(30)).await, world.add(ended(10)).await);
    let same = world.add(ended(30)).await;
    for row in [queued("a"), running("a"), waiting("a", None), in_doubt("a")] {
        world.add(row).await;
    }
    let untold = async |since, limit| world.store.untold(at(since), limit).await.unwrap();
    let mut both = [late.id, same.id];
    both.sort();
    let all = [(early.id, at(10)), (both[0], at(30)), (both[1], at(30))];
    assert_eq!(untold(0, usize::MAX).await, all);
    assert_eq!(untold(10, 2).await, all[..2]);
    assert_eq!(untold(11, 9).await, all[1..]);
    assert_eq!(untold(31, 9).await, []);
    // Of another end somebody was told: nothing.
    world.store.told(early.id, at(9)).await.unwrap();
    world.store.told(RunId::new(), at(10)).await.unwrap();
    assert_eq!(untold(0, 9).await, all);
    for _ in 0..2 {
        world.store.told(early.id, at(10)).await.unwrap();
    }
    assert_eq!(world.subject.reopen().await.untold(at(0), 9).await.unwrap(), all[1..]);
    assert_eq!(world.row(early.id).await, early, "the row says nothing of it");
}
