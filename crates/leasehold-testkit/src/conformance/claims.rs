//! Claims of many rows.

use super::World;
use crate::fixture::{at, claim, full, queued, record};
use leasehold::{
    limits::PAGE_MAX,
    run::{Reason, RunId, Snapshot, State},
    store::{Answer, Choose, Chosen, ReadError, Store, Wanted, Write},
};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

type Shown = Vec<Result<Snapshot, ReadError>>;

fn wanted(agents: &[(&str, usize)], now: i64, except: &[RunId]) -> Wanted {
    let agents = agents.iter().map(|(agent, most)| ((*agent).to_owned(), *most)).collect();
    Wanted { agents, now: at(now), except: except.to_vec() }
}

/// What a claim is shown, and what becomes of the writes that it makes of that.
async fn claimed(
    store: &dyn Store,
    wanted: Wanted,
    choose: impl Fn(&[Snapshot]) -> Vec<Write> + Send + Sync + 'static,
) -> (Option<Vec<Snapshot>>, Chosen) {
    let shown = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&shown);
    let choose: Choose = Arc::new(move |rows: Shown| {
        let rows: Vec<Snapshot> = rows.into_iter().map(Result::unwrap).collect();
        let writes = choose(&rows);
        *seen.lock().unwrap() = Some(rows);
        writes
    });
    let chosen = store.claim(wanted, choose).await.unwrap();
    let shown = shown.lock().unwrap().take();
    (shown, chosen)
}

impl World {
    /// What a claim is shown that takes nothing: the rows of one agent after those of another.
    pub(super) async fn due(&self, agents: &[(&str, usize)], now: i64) -> Vec<RunId> {
        let (shown, chosen) = claimed(&*self.store, wanted(agents, now, &[]), |_| Vec::new()).await;
        assert_eq!(chosen, []);
        shown.unwrap_or_default().iter().map(|row| row.id).collect()
    }
}

pub(super) async fn a_claim_shows_whole_rows_of_each_agent_but_those_excepted(world: World) {
    let whole = Snapshot { state: State::Queued, lease: None, agent: "a".into(), due_at: at(0), ..full() };
    let whole = world.add(whole).await;
    let (left_out, too) = (world.add(queued("a")).await, world.add(queued("a")).await);
    let other = world.add(queued("b")).await;
    world.add(queued("c")).await;
    let asked = wanted(&[("a", 1), ("b", 5)], 0, &[left_out.id]);
    let (shown, _) = claimed(&*world.store, asked, |_| Vec::new()).await;
    assert_eq!(shown, Some(vec![too, other.clone()]));
    let asked = wanted(&[("b", 1), ("a", PAGE_MAX)], 0, &[RunId::new(), left_out.id, other.id]);
    let (shown, _) = claimed(&*world.store, asked, |_| Vec::new()).await;
    assert_eq!(shown.unwrap()[1], whole, "the lowest priority comes last, with every column");
}

pub(super) async fn an_idle_queue_asks_nobody(world: World) {
    world.add(Snapshot { due_at: at(10), ..queued("a") }).await;
    let (shown, chosen) = claimed(&*world.store, wanted(&[("a", 10), ("b", 10)], 9, &[]), |_| Vec::new()).await;
    assert_eq!((shown, chosen.len()), (None, 0));
}

pub(super) async fn what_a_claim_writes_is_one_commit_with_an_answer_each(world: World) {
    let mut ids = Vec::new();
    for _ in 0..30 {
        ids.push(world.add(queued("a")).await.id);
    }
    let (shown, chosen) = claimed(&*world.store, wanted(&[("a", 20)], 0, &[]), |rows| rows.iter().map(claim).collect()).await;
    let shown: Vec<RunId> = shown.unwrap().iter().map(|r| r.id).collect();
    assert_eq!(shown, ids[..20]);
    assert_eq!(chosen.len(), 20);
    let elsewhere = world.subject.reopen().await;
    for (id, answer) in shown.iter().zip(chosen) {
        let row = elsewhere.load(*id).await.unwrap().unwrap();
        assert_eq!((row.state, row.epoch, row.sequence), (State::Running, 1, 2));
        assert_eq!(answer, Ok(Answer::Applied(row.lease.map(|l| l.expires_at))));
        assert_eq!(world.journal(*id).await.len(), 2);
    }
    assert_eq!(world.due(&[("a", 100)], 0).await, ids[20..]);
}

pub(super) async fn a_write_of_a_claim_that_is_refused_fails_alone(world: World) {
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(world.add(queued("a")).await.id);
    }
    let (_, chosen) = claimed(&*world.store, wanted(&[("a", 10)], 0, &[]), |rows| {
        let mut writes: Vec<Write> = rows.iter().map(claim).collect();
        writes[1].next.reason = Some(Reason::Budget);
        writes[2].entries.clear();
        writes
    })
    .await;
    let fine: Vec<bool> = chosen.iter().map(|answer| matches!(answer, Ok(Answer::Applied(Some(_))))).collect();
    assert_eq!(fine, [true, false, false, true], "{chosen:?}");
    for (id, fine) in ids.iter().zip(fine) {
        assert_eq!(world.row(*id).await.state, if fine { State::Running } else { State::Queued });
        assert_eq!(world.journal(*id).await.len(), if fine { 2 } else { 1 });
    }
}

pub(super) async fn a_write_of_a_claim_with_a_stale_guard_changes_nothing(world: World) {
    let (row, other) = (world.add(queued("a")).await, world.add(queued("a")).await);
    let (_, chosen) = claimed(&*world.store, wanted(&[("a", 10)], 0, &[]), |rows| {
        let mut stale = record(&rows[0], "of another time");
        (stale.guard.sequence, stale.next.sequence, stale.entries[0].sequence) = (4, 5, 4);
        vec![stale, claim(&rows[1])]
    })
    .await;
    assert_eq!(chosen[0], Ok(Answer::Moved));
    assert!(matches!(chosen[1], Ok(Answer::Applied(Some(_)))), "{chosen:?}");
    assert_eq!(world.row(row.id).await, row);
    assert_eq!(world.row(other.id).await.epoch, 1);
}

pub(super) async fn claims_at_once_never_get_the_same_row(world: World) {
    const ROWS: usize = 60;
    for n in 0..ROWS {
        world.add(queued(if n % 3 == 0 { "a" } else { "b" })).await;
    }
    let mut claimers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let store = world.subject.reopen().await;
        claimers.spawn(async move {
            let mut mine = Vec::new();
            let mut idle = 0;
            // Rows that another claimer looks at this moment are not shown; they may come back.
            while idle < 20 {
                let asked = wanted(&[("a", 4), ("b", 4)], 0, &[]);
                let (shown, chosen) = claimed(&*store, asked, |rows| rows.iter().take(5).map(claim).collect()).await;
                assert!(chosen.iter().all(|a| matches!(a, Ok(Answer::Applied(Some(_))))), "nobody was in the way: {chosen:?}");
                idle = if chosen.is_empty() { idle + 1 } else { 0 };
                mine.extend(shown.unwrap_or_default().iter().take(5).map(|r| r.id));
            }
            mine
        });
    }
    let mine: Vec<RunId> = claimers.join_all().await.concat();
    assert_eq!(mine.len(), ROWS);
    assert_eq!(mine.iter().collect::<HashSet<_>>().len(), ROWS);
    for id in mine {
        assert_eq!((world.row(id).await.epoch, world.journal(id).await.len()), (1, 2));
    }
}
