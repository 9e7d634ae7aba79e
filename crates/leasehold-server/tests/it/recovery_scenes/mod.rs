//! Real processes on one store: a worker, a person's commands from another directory, a sweep that is a process of its own. What
//! cannot be read is shown and ended; a worker is killed at each point; a cancel is heard by another process.

use super::Stage;
use leasehold::run::{EntryBody, Outcome, Reason, RunId, Snapshot, State, Story};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{APPEND_ONCE, Home, Ledger},
    invariants,
};
use std::{
    process::{Child, Stdio},
    time::{Duration, Instant},
};

/// A cancel of another process reaches a read or a model call within 2 s on a machine that is not busy; tests share theirs.
const HEARD_WITHIN: Duration = Duration::from_secs(15);

const NONE: Ledger<'_> = Ledger { effect: "non_idempotent_write", approval: "none", timeout: "4s" };

/// `leasehold reap`, over and over, as a process that does nothing else; ended when dropped.
struct Reaping(Child);

impl Reaping {
    fn start(home: &Home) -> Self {
        let reap = home.command(&["reap"]);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "while \"$0\" reap; do sleep 0.2; done"]).arg(reap.get_program()).current_dir(home.path());
        for (name, value) in reap.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let child = shell.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Self(child.expect("a shell"))
    }
}

impl Drop for Reaping {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

async fn holds(home: &Home, id: RunId) {
    invariants::journal(&home.row(id).await, &home.journal(id).await).expect("holds");
}

/// Approves or denies from a directory of its own: another process, another home, the same store.
async fn decides(stage: &Stage, id: RunId, word: &str) {
    let approver = stage.elsewhere();
    let row = stage.home.row(id).await;
    let digest = row.turn.and_then(|t| t.digest).expect("waits for something");
    let ran = approver.run(&[word, &id.to_string(), "--digest", &digest, "--no-wait"]).await;
    assert_eq!(ran.code(), 0, "{ran}");
}

/// A worker that dies at `point` of an approved write; a sweep that settles it; then whoever is left goes on.
async fn three_processes(point: &str, effect: &str) {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    home.ledger(&far, Ledger { effect, approval: "required", timeout: "4s" }, APPEND_ONCE);
    let id = home.enqueue().await;
    let mut worker = home.start(&["worker"], Some(point));
    home.until(id, "waiting", |row| row.state == State::WaitingForApproval).await;
    decides(&stage, id, "approve").await;
    worker.stopped().await;
    if point == "in_tool" {
        far.wait_for(1).await;
    }
    let holder = home.row(id).await.lease.expect("held").holder;
    worker.kill();
    let reaping = Reaping::start(home);
    let swept = home.until(id, "settled by the sweep", |row| !row.state.is_held()).await;
    drop(reaping);
    let said = |entry: &leasehold::run::Entry| match &entry.body {
        EntryBody::LeaseExpired(b) => Some(b.holder.clone()),
        _ => None,
    };
    assert_eq!(home.journal(id).await.iter().find_map(said), Some(holder), "{point}: the sweep names who is gone");
    let stamped = ["after_stamp", "in_tool", "after_return"].contains(&point);
    let sent = far.arrived().len();
    assert_eq!(sent, usize::from(!["before_stamp", "after_stamp"].contains(&point)), "{point} {effect}");
    if stamped && effect == "non_idempotent_write" {
        assert_eq!((swept.state, swept.reason), (State::Dead, Some(Reason::WriteInDoubt)), "{point}");
        let ran = stage.elsewhere().run(&["resolve", &id.to_string(), "--call", "t1c0", "--landed"]).await;
        assert_eq!(ran.code(), 0, "{ran}");
    } else {
        assert_eq!((swept.state, swept.fence.is_some()), (State::Queued, stamped), "{point} {effect}");
    }
    let _worker = home.start(&["worker"], None);
    let ended = home.until(id, "completed", |row| row.state == State::Completed).await;
    assert_eq!(ended.fence, None);
    let arrived = far.arrived();
    let repeated = usize::from(stamped && effect == "idempotent_write");
    let first = usize::from(point == "before_stamp");
    assert_eq!(arrived.len(), sent + repeated + first, "{point} {effect}");
    for one in &arrived {
        assert_eq!(one.header("idempotency-key"), arrived[0].header("idempotency-key"));
        assert_eq!(one.body, arrived[0].body);
    }
    holds(home, id).await;
}

#[tokio::test]
async fn a_worker_killed_at_any_point_of_an_idempotent_write_is_swept_by_one_process_and_approved_by_another() {
    for point in ["before_stamp", "after_stamp", "in_tool", "after_return", "after_record"] {
        three_processes(point, "idempotent_write").await;
    }
}

#[tokio::test]
async fn a_worker_killed_at_any_point_of_another_write_is_swept_by_one_process_and_approved_by_another() {
    for point in ["before_stamp", "after_stamp", "in_tool", "after_return", "after_record"] {
        three_processes(point, "non_idempotent_write").await;
    }
}

#[tokio::test]
async fn a_denial_of_another_process_executes_nothing_and_the_worker_goes_on() {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    home.ledger(&far, Ledger { approval: "required", ..NONE }, APPEND_ONCE);
    let id = home.enqueue().await;
    let _worker = home.start(&["worker"], None);
    home.until(id, "waiting", |row| row.state == State::WaitingForApproval).await;
    decides(&stage, id, "deny").await;
    home.until(id, "completed", |row| row.state == State::Completed).await;
    let outcome = Story::of(&home.journal(id).await).calls.into_values().next().and_then(|call| call.outcome);
    assert_eq!((outcome.expect("known").outcome, far.arrived().len()), (Outcome::Denied, 0));
    // The same word again is the same answer; the contrary is told what became of it.
    let digest = home.journal(id).await.iter().find_map(|entry| match &entry.body {
        EntryBody::Suspended(suspended) => Some(suspended.digest.clone()),
        _ => None,
    });
    let digest = digest.expect("was shown");
    let again = home.run(&["approve", &id.to_string(), "--digest", &digest, "--no-wait"]).await;
    assert_eq!((again.code(), again.stderr().contains("already_decided")), (1, true), "{again}");
    let other = home.run(&["approve", &id.to_string(), "--digest", &"0".repeat(64), "--no-wait"]).await;
    assert_eq!((other.code(), other.stderr().contains("not_waiting")), (1, true), "{other}");
}

/// Cancels from another directory; how long until the run has the state, counted from the accepted cancel.
async fn cancelled_within(stage: &Stage, id: RunId, state: State) -> Duration {
    let ran = stage.elsewhere().run(&["runs", "cancel", &id.to_string()]).await;
    assert_eq!(ran.code(), 0, "{ran}");
    let accepted = Instant::now();
    stage.home.until(id, "as the cancel wants it", |row| row.state == state).await;
    accepted.elapsed()
}

#[tokio::test]
async fn a_cancel_of_another_process_aborts_a_model_call_and_a_read() {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    // The model takes a minute; then the read does.
    let thinks = APPEND_ONCE.replacen("[[reply]]", "[[reply]]\npause = \"60s\"", 1);
    for (script, what) in [(thinks.as_str(), "a model call"), (APPEND_ONCE, "a read")] {
        home.ledger(&far, Ledger { effect: "read_only", approval: "none", timeout: "60s" }, script);
        far.then([Then::Hold]);
        let id = home.enqueue().await;
        let _worker = home.start(&["worker"], None);
        home.until(id, "running", |row| row.state == State::Running).await;
        if what == "a read" {
            far.wait_for(1).await;
        }
        let took = cancelled_within(&stage, id, State::Cancelled).await;
        eprintln!("{what} was aborted {took:?} after the accepted cancel");
        assert!(took < HEARD_WITHIN, "{what}: {took:?}");
        holds(home, id).await;
    }
}

#[tokio::test]
async fn a_cancel_waits_for_a_write_under_a_renewed_lease_and_says_cancelled_only_afterwards() {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    for answers in [true, false] {
        let timeout = if answers { "60s" } else { "7s" };
        home.ledger(&far, Ledger { timeout, ..NONE }, APPEND_ONCE);
        far.then([Then::Hold]);
        let before = far.arrived().len();
        let id = home.enqueue().await;
        let _worker = home.start(&["worker"], None);
        far.wait_for(before + 1).await;
        cancelled_within(&stage, id, State::Cancelling).await;
        // For longer than a lease of 2 s lasts, sweeps included, the write is waited for.
        let _reaping = Reaping::start(home);
        let (since, first) = (Instant::now(), home.row(id).await);
        let ends = |row: &Snapshot| row.lease.as_ref().expect("held").expires_at.ns;
        while since.elapsed() < Duration::from_secs(4) {
            let row = home.row(id).await;
            assert_eq!((row.state, row.epoch, &row.fence), (State::Cancelling, first.epoch, &first.fence));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(ends(&home.row(id).await) > ends(&first) + 2_000_000_000, "the lease was renewed");
        if answers {
            far.release();
            home.until(id, "cancelled", |row| row.state == State::Cancelled).await;
            let call = Story::of(&home.journal(id).await).calls.into_values().next().and_then(|call| call.outcome);
            assert_eq!(call.expect("known").outcome, Outcome::Done, "what was awaited is on record");
        } else {
            let row = home.until(id, "in doubt", |row| row.state == State::Dead).await;
            assert_eq!((row.reason, row.cancel_requested), (Some(Reason::WriteInDoubt), true));
            let ran = stage.elsewhere().run(&["resolve", &id.to_string(), "--call", "t1c0", "--landed"]).await;
            assert_eq!(ran.code(), 0, "{ran}");
            assert_eq!(home.row(id).await.state, State::Cancelled);
        }
        assert_eq!(far.arrived().len(), before + 1, "nothing starts after it");
        holds(home, id).await;
    }
}

#[tokio::test]
async fn whoever_follows_a_run_sees_the_end_that_the_sweep_wrote() {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    for (cancels, last) in [(false, "in_doubt"), (true, "settled")] {
        let effect = if cancels { "idempotent_write" } else { "non_idempotent_write" };
        home.ledger(&far, Ledger { effect, timeout: "60s", ..NONE }, APPEND_ONCE);
        far.then([Then::Hold]);
        let before = far.arrived().len();
        let id = home.enqueue().await;
        let mut worker = home.start(&["worker"], None);
        far.wait_for(before + 1).await;
        let follower = stage.elsewhere();
        let run = id.to_string();
        let follow = ["runs", "follow", run.as_str(), "--json"];
        let ends = async {
            if cancels {
                cancelled_within(&stage, id, State::Cancelling).await;
            }
            worker.kill();
            let reaping = Reaping::start(home);
            home.until(id, "ended", |row| row.state == State::Dead || row.state.is_settled()).await;
            reaping
        };
        let (followed, _reaping) = tokio::join!(follower.run(&follow), ends);
        assert_eq!(followed.code(), 0, "{followed}");
        let journal = home.journal(id).await;
        assert_eq!(followed.stdout().lines().count(), journal.len(), "every event once");
        assert_eq!(followed.json()["kind"], last, "{followed}");
        assert!(followed.stdout().contains("lease_expired"), "{followed}");
    }
}

/// A run as it is listed.
async fn listed(home: &Home, id: RunId) -> serde_json::Value {
    let ran = home.run(&["runs", "list", "--json"]).await;
    assert_eq!(ran.code(), 0, "{ran}");
    let found = ran.json()["items"].as_array().expect("a list").iter().find(|run| run["id"] == id.to_string()).cloned();
    found.unwrap_or_else(|| panic!("run {id} is not listed: {ran}"))
}

/// A run whose worker was killed while its first write was at the far side.
async fn killed_in_its_tool(home: &Home, far: &FarSide) -> RunId {
    let id = home.enqueue().await;
    far.then([Then::Hold]);
    let arrived = far.arrived().len();
    let mut worker = home.start(&["worker", "--once", &id.to_string()], None);
    far.wait_for(arrived + 1).await;
    worker.kill();
    far.release();
    id
}

#[tokio::test]
async fn runs_that_cannot_be_read_are_shown_and_can_be_ended_and_hide_no_other() {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    home.ledger(&far, Ledger { approval: "required", ..NONE }, APPEND_ONCE);
    // In this order, so that what cannot be read is the oldest.
    let card = home.enqueue().await;
    let deciding = home.enqueue().await;
    assert_eq!(home.run(&["worker", "--once"]).await.code(), 0);
    home.ledger(&far, NONE, APPEND_ONCE);
    let request = home.enqueue().await;
    let turn = home.enqueue().await;
    let mode = home.enqueue().await;
    let state = home.enqueue().await;
    let in_flight = killed_in_its_tool(home, &far).await;
    let good = home.enqueue().await;
    stage.without_constraints().await;
    stage.damage("UPDATE journal SET payload = BYTES WHERE run_id = 'RUN' AND sequence = 0", request).await;
    stage.damage("UPDATE journal SET payload = BYTES WHERE run_id = 'RUN' AND kind = 'suspended'", card).await;
    stage.damage("UPDATE runs SET turn = '{\"number\":' WHERE id = 'RUN'", deciding).await;
    stage.damage("UPDATE runs SET turn = '{\"number\":' WHERE id = 'RUN'", turn).await;
    stage.damage("UPDATE runs SET mode = 'sideways' WHERE id = 'RUN'", mode).await;
    stage.damage("UPDATE runs SET state = 'hibernating' WHERE id = 'RUN'", state).await;
    stage.damage("UPDATE runs SET fence_effect = 'sometimes', turn = '[' WHERE id = 'RUN'", in_flight).await;

    for id in [card, deciding, request, turn, mode, state, in_flight, good] {
        listed(home, id).await;
        let shown = home.run(&["runs", "show", &id.to_string()]).await;
        assert_eq!(shown.code(), 0, "{shown}");
        // Any command's sweep may have settled the one in flight by now, and then its row can be read.
        if id != in_flight {
            assert_eq!(shown.stderr().contains("cannot be read whole"), id != good, "{shown}");
        }
        assert_eq!(home.run(&["runs", "show", &id.to_string(), "--json"]).await.json()["id"], id.to_string());
    }
    let inbox = home.run(&["inbox"]).await;
    assert_eq!(inbox.code(), 0, "{inbox}");
    assert!(inbox.stdout().contains("cannot be read; a cancel ends it"), "{inbox}");
    let items = home.run(&["inbox", "--json"]).await.json()["items"].as_array().expect("items").clone();
    for id in [card, deciding] {
        let item = items.iter().find(|item| item["run"]["id"] == id.to_string()).expect("listed");
        assert!(item["unreadable"].as_str().is_some_and(|why| !why.is_empty()), "{item}");
    }

    // A worker goes on with what can be read, and settles what cannot.
    let _worker = home.start(&["worker"], None);
    home.until(good, "completed", |row| row.state == State::Completed).await;
    for id in [request, turn, mode] {
        let row = home.until(id, "given up", |row| row.state == State::Dead).await;
        assert_eq!(row.reason, Some(Reason::Unreadable));
    }
    let doubted = home.until(in_flight, "in doubt", |row| row.state == State::Dead).await;
    assert_eq!(doubted.reason, Some(Reason::WriteInDoubt), "an effect that nobody knows is the most careful one");
    let inbox = home.run(&["inbox"]).await;
    assert!(inbox.stdout().contains("its record cannot be read; a discard ends it"), "{inbox}");

    for (verb, ids) in [("cancel", vec![card, deciding]), ("discard", vec![request, turn, mode, state, in_flight])] {
        for id in ids {
            let ran = home.run(&["runs", verb, &id.to_string(), "--note", "cannot be read"]).await;
            assert_eq!(ran.code(), 0, "{verb}: {ran}");
            assert_eq!(home.row(id).await.state, State::Cancelled, "{verb}");
            assert_eq!(listed(home, id).await["state"], "cancelled");
        }
    }
    // What was in flight is on record as that, and nothing else was written.
    let journal = home.journal(in_flight).await;
    assert!(
        journal.iter().any(|e| matches!(&e.body, EntryBody::ToolOutcome(o) if o.outcome == Outcome::Unknown)),
        "{journal:?}"
    );
    assert_eq!(far.arrived().len(), 2, "the one in flight and the good one");
    let left = home.run(&["inbox", "--json"]).await.json();
    assert_eq!(left["items"].as_array().map(Vec::len), Some(0), "{left}");
    // What was ended by the part that could be read has nothing to continue from.
    let again = home.run(&["runs", "redrive", &turn.to_string()]).await;
    assert_eq!(again.code(), 1, "{again}");
}

#[tokio::test]
async fn what_another_hand_took_out_of_a_record_is_missed_and_no_write_is_made_again() {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    home.ledger(&far, Ledger { approval: "required", ..NONE }, APPEND_ONCE);
    let (middle, end) = (home.enqueue().await, home.enqueue().await);
    for _ in 0..2 {
        assert_eq!(home.run(&["worker", "--once"]).await.code(), 0);
    }
    home.ledger(&far, NONE, APPEND_ONCE);
    let in_flight = killed_in_its_tool(home, &far).await;
    let answered = killed_in_its_tool(home, &far).await;
    stage.without_constraints().await;
    let outcome = r#"replace(turn, '"needs_person":false', '"needs_person":false,"outcome":"done"')"#;
    stage.damage(&format!("UPDATE runs SET turn = {outcome} WHERE id = 'RUN'"), answered).await;
    let fence = "UPDATE runs SET fence_call = NULL, fence_tool = NULL, fence_effect = NULL, fence_key = NULL, \
                 fence_epoch = NULL, fence_lease_id = NULL, fence_attempt = NULL, fence_repeat = NULL, \
                 fence_verifiable = NULL, fence_stamped_at_ms = NULL, fence_in_flight_until_ms = NULL WHERE id = 'RUN'";
    stage.damage(fence, in_flight).await;
    stage.damage("DELETE FROM journal WHERE run_id = 'RUN' AND kind = 'model_reply'", middle).await;
    stage.damage("DELETE FROM journal WHERE run_id = 'RUN' AND kind = 'suspended'", end).await;

    for id in [middle, end] {
        let shown = home.run(&["runs", "show", &id.to_string()]).await;
        assert!(shown.stderr().contains("of its journal is missing"), "{shown}");
        let digest = home.row(id).await.turn.and_then(|t| t.digest).expect("waits for something");
        let approved = home.run(&["approve", &id.to_string(), "--digest", &digest]).await;
        assert_ne!(approved.code(), 0, "{approved}");
        assert!(approved.stderr().contains("of its journal is missing"), "{approved}");
        assert_eq!(home.row(id).await.reason, Some(Reason::Unreadable));
        let discarded = home.run(&["runs", "discard", &id.to_string()]).await;
        assert_eq!((discarded.code(), home.row(id).await.state), (0, State::Cancelled), "{discarded}");
    }
    let _worker = home.start(&["worker"], None);
    let doubted = home.until(in_flight, "in doubt", |row| row.state == State::Dead).await;
    assert_eq!(doubted.reason, Some(Reason::WriteInDoubt), "what lacks its fence may have happened");
    let ran = home.run(&["resolve", &in_flight.to_string(), "--call", "t1c0", "--landed"]).await;
    assert_eq!(ran.code(), 0, "{ran}");
    // Nothing continues from a row that another hand changed; what is known of its write stands.
    let row = home.row(in_flight).await;
    assert_eq!((row.reason, row.fence.is_some()), (Some(Reason::Abandoned), false));
    let outcome = Story::of(&home.journal(in_flight).await).calls.into_values().next().and_then(|call| call.outcome);
    assert_eq!(outcome.map(|o| o.outcome), Some(Outcome::Done));
    // A fence that names a call with an outcome is a doubt like any other: shown with its arguments, and with an exit.
    let doubted = home.until(answered, "in doubt", |row| row.state == State::Dead).await;
    assert_eq!(doubted.reason, Some(Reason::WriteInDoubt));
    let shown = home.run(&["runs", "show", &answered.to_string()]).await;
    assert!(shown.stdout().contains("text: \"one\""), "{shown}");
    let ran = home.run(&["resolve", &answered.to_string(), "--call", "t1c0", "--abandon"]).await;
    assert_eq!((ran.code(), home.row(answered).await.state), (0, State::Failed), "{ran}");
    assert_eq!(far.arrived().len(), 2, "nothing was made again");
}

/// A worker that is paused after its write has landed, and wakes when a person has said "not landed", another worker has made the
/// call again, or could not, and the run is over.
async fn wakes_after_the_end(reached: bool) -> (Stage, RunId) {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    home.ledger(&far, Ledger { timeout: "1s", ..NONE }, APPEND_ONCE);
    let id = home.enqueue().await;
    let mut paused = home.start(&["worker"], Some("after_return"));
    paused.stopped().await;
    home.pause(id, &paused).await;
    let reaping = Reaping::start(home);
    let doubted = home.until(id, "in doubt", |row| row.state == State::Dead).await;
    drop(reaping);
    // "Not landed" is not heard before this time: waiting for it is the rule.
    let until = doubted.fence.expect("stands").in_flight_until.duration_since(jiff::Timestamp::now());
    tokio::time::sleep(until.try_into().unwrap_or_default()).await;
    let ran = stage.elsewhere().run(&["resolve", &id.to_string(), "--call", "t1c0", "--not-landed"]).await;
    assert_eq!(ran.code(), 0, "{ran}");
    if !reached {
        let config = std::fs::read_to_string(home.path().join("leasehold.toml")).expect("its configuration");
        let closed = std::net::TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).expect("a port");
        home.write("leasehold.toml", &config.replace(&far.url("/append"), &format!("http://{closed}/append")));
    }
    let _worker = home.start(&["worker"], None);
    home.until(id, "completed", |row| row.state == State::Completed).await;
    paused.signal("CONT");
    paused.go_on();
    home.until(id, "heard", |row| row.duplicates + row.contradictions > 0).await;
    assert_eq!(far.arrived().len(), 1 + usize::from(reached));
    holds(home, id).await;
    (stage, id)
}

#[tokio::test]
async fn what_landed_twice_is_in_the_inbox_though_its_process_says_so_after_the_end() {
    let (stage, id) = wakes_after_the_end(true).await;
    let items = stage.home.run(&["inbox", "--json"]).await.json()["items"].clone();
    assert_eq!((&items[0]["kind"], &items[0]["run"]["id"]), (&"duplicate".into(), &id.to_string().into()), "{items}");
    let shown = stage.home.run(&["runs", "show", &id.to_string()]).await.stdout();
    assert!(shown.contains("1 effect landed twice"), "{shown}");
}

#[tokio::test]
async fn what_landed_against_the_record_is_in_the_inbox_and_in_the_first_line_of_its_run() {
    let (stage, id) = wakes_after_the_end(false).await;
    let items = stage.home.run(&["inbox", "--json"]).await.json()["items"].clone();
    assert_eq!((&items[0]["kind"], &items[0]["run"]["id"]), (&"contradicted".into(), &id.to_string().into()), "{items}");
    let shown = stage.home.run(&["runs", "show", &id.to_string()]).await.stdout();
    let said = "but of ledger.append t1c0, recorded as not applied, its own process says that it happened";
    assert!(shown.lines().next().is_some_and(|first| first.contains(said)), "{shown}");
}

#[tokio::test]
async fn a_held_run_of_a_state_that_nobody_here_knows_is_discarded_once_its_lease_has_ended_and_not_before() {
    let stage = Stage::new().await;
    let (home, far) = (&stage.home, FarSide::start().await.expect("a port"));
    home.ledger(&far, NONE, APPEND_ONCE);
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let mut worker = home.start(&["worker"], None);
    far.wait_for(1).await;
    stage.without_constraints().await;
    stage.damage("UPDATE runs SET state = 'hibernating' WHERE id = 'RUN'", id).await;
    let run = id.to_string();
    let discard = ["runs", "discard", run.as_str(), "--note", "cannot be read"];
    let held = home.run(&discard).await;
    assert_eq!((held.code(), held.stderr().contains("holds it: wait until its lease has ended")), (1, true), "{held}");
    worker.kill();
    let since = Instant::now();
    let mut ran = home.run(&discard).await;
    while ran.code() != 0 {
        assert!(since.elapsed() < HEARD_WITHIN, "{ran}");
        ran = home.run(&discard).await;
    }
    assert_eq!((home.row(id).await.state, far.arrived().len()), (State::Cancelled, 1));
    let journal = home.journal(id).await;
    let unknown = |e: &leasehold::run::Entry| matches!(&e.body, EntryBody::ToolOutcome(o) if o.outcome == Outcome::Unknown);
    assert!(journal.iter().any(unknown), "what was in flight is on record as that: {journal:?}");
    holds(home, id).await;
}
