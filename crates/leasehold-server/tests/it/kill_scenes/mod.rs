//! Real processes, killed with SIGKILL at the worst moments, for an idempotent and a non-idempotent write: at most one effect
//! (repeats of an idempotent one carry the same key and arguments), the outcome the protocol names, and one screen that tells it.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::run::{Outcome, Reason, RunId, Snapshot, State, Story, Via};
use leasehold_testkit::{
    far_side::{Arrived, FarSide, Then},
    home::{APPEND_ONCE, Home, Ledger, Ran},
};

const EFFECTS: [&str; 2] = ["idempotent_write", "non_idempotent_write"];

struct Scene {
    home: Home,
    far: FarSide,
    id: RunId,
}

async fn scene(effect: &str, script: &str) -> Scene {
    let far = FarSide::start().await.expect("a port");
    let home = super::home().await;
    home.ledger(&far, Ledger { effect, approval: "required", timeout: "4s" }, script);
    let id = home.enqueue().await;
    Scene { home, far, id }
}

impl Scene {
    /// The run waits, is approved and queued, and a worker that stops at `point` has claimed it.
    async fn approved_and_stopped_at(&self, point: &str) -> leasehold_testkit::home::Running {
        let ran = self.home.run(&["worker", "--once"]).await;
        assert_eq!(ran.code(), 0, "{ran}");
        self.approve(&["--no-wait"]).await;
        let mut worker = self.home.start(&["worker"], Some(point));
        worker.stopped().await;
        worker
    }

    async fn approve(&self, more: &[&str]) {
        let row = self.home.row(self.id).await;
        assert_eq!(row.state, State::WaitingForApproval);
        let digest = row.turn.and_then(|t| t.digest).expect("waits for something");
        let id = self.id.to_string();
        let mut arguments = vec!["approve", id.as_str(), "--digest", digest.as_str()];
        arguments.extend(more);
        let ran = self.home.run(&arguments).await;
        assert_eq!(ran.code(), 0, "{ran}");
    }

    /// The stamp is on the row, under the resuming segment.
    async fn fenced(&self) {
        let row = self.home.row(self.id).await;
        let fence = row.fence.expect("stamped");
        assert_eq!(fence.idempotency_key, self.id.idempotency_key(&fence.call_id));
        assert!(row.lease.expect("held").holder.starts_with("resume:"));
    }

    /// Another worker takes over until the run is at rest.
    async fn taken_over(&self) -> Snapshot {
        let _worker = self.home.start(&["worker"], None);
        self.home.until(self.id, "at rest", |row| row.state.is_settled() || row.state == State::Dead).await
    }

    async fn show(&self) -> String {
        let ran = self.home.run(&["runs", "show", &self.id.to_string()]).await;
        ran.stdout()
    }

    async fn resolve(&self, how: &[&str]) -> leasehold_testkit::home::Ran {
        let id = self.id.to_string();
        let mut arguments = vec!["resolve", id.as_str(), "--call", "t1c0"];
        arguments.extend(how);
        self.home.run(&arguments).await
    }

    async fn ends_completed(&self) {
        let row = self.taken_over().await;
        assert_eq!(row.state, State::Completed, "{}", self.show().await);
        assert_eq!(row.fence, None);
        let story = Story::of(&self.home.journal(self.id).await);
        let call = story.calls.values().next().expect("one call");
        assert_eq!(call.outcome.as_ref().expect("known").outcome, Outcome::Done);
    }

    async fn in_doubt(&self) {
        let row = self.taken_over().await;
        assert_eq!((row.state, row.reason), (State::Dead, Some(Reason::WriteInDoubt)));
        let screen = self.show().await;
        let key = row.fence.expect("kept").idempotency_key;
        assert!(screen.starts_with("In doubt"), "{screen}");
        for told in [key.as_str(), "ledger.append", "resume:", "leasehold resolve"] {
            assert!(screen.contains(told), "`{told}` is missing: {screen}");
        }
        assert!(screen.lines().count() <= 60, "more than one screen: {screen}");
    }
}

fn same_call(arrived: &[Arrived]) {
    for one in arrived {
        assert_eq!(one.header("idempotency-key"), arrived[0].header("idempotency-key"));
        assert_eq!(one.body, arrived[0].body);
    }
}

#[tokio::test]
async fn killed_while_it_waits_for_approval() {
    for effect in EFFECTS {
        let scene = scene(effect, APPEND_ONCE).await;
        let mut worker = scene.home.start(&["worker"], None);
        scene.home.until(scene.id, "waiting", |row| row.state == State::WaitingForApproval).await;
        worker.kill();
        scene.approve(&[]).await;
        assert_eq!(scene.home.row(scene.id).await.state, State::Completed);
        let arrived = scene.far.arrived();
        assert_eq!(arrived.len(), 1);
        assert_eq!(arrived[0].header("idempotency-key"), scene.id.idempotency_key(&leasehold::run::CallId("t1c0".into())));
        assert_eq!(arrived[0].header("leasehold-run"), scene.id.to_string());
        assert_eq!(arrived[0].header("leasehold-fencing-token"), "2");
    }
}

#[tokio::test]
async fn killed_after_the_stamp_and_before_the_tool() {
    for effect in EFFECTS {
        let scene = scene(effect, APPEND_ONCE).await;
        let mut worker = scene.approved_and_stopped_at("after_stamp").await;
        scene.fenced().await;
        worker.kill();
        assert_eq!(scene.far.arrived().len(), 0);
        if effect == "idempotent_write" {
            scene.ends_completed().await;
        } else {
            scene.in_doubt().await;
            assert_eq!(scene.far.arrived().len(), 0, "nothing is started by guess");
            // Not before the request can no longer be on its way.
            let until = scene.home.row(scene.id).await.fence.expect("kept").in_flight_until;
            if until > jiff::Timestamp::now() {
                let ran = scene.resolve(&["--not-landed"]).await;
                assert!(ran.code() == 1 && ran.stderr().contains("may still be in flight"), "{ran}");
            }
            while jiff::Timestamp::now() < until {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
            let ran = scene.resolve(&["--not-landed", "--note", "looked at the ledger"]).await;
            assert_eq!(ran.code(), 0, "{ran}");
            scene.ends_completed().await;
        }
        assert_eq!(scene.far.arrived().len(), 1);
    }
}

#[tokio::test]
async fn killed_in_the_tool() {
    for effect in EFFECTS {
        let scene = scene(effect, APPEND_ONCE).await;
        scene.far.then([Then::Hold]);
        let ran = scene.home.run(&["worker", "--once"]).await;
        assert_eq!(ran.code(), 0, "{ran}");
        scene.approve(&["--no-wait"]).await;
        let mut worker = scene.home.start(&["worker"], None);
        scene.far.wait_for(1).await;
        scene.fenced().await;
        worker.kill();
        scene.far.release();
        settled_after_one_arrival(&scene, effect).await;
    }
}

#[tokio::test]
async fn killed_after_the_tool_and_before_the_record() {
    for effect in EFFECTS {
        let scene = scene(effect, APPEND_ONCE).await;
        let mut worker = scene.approved_and_stopped_at("after_return").await;
        scene.fenced().await;
        worker.kill();
        assert_eq!(scene.far.arrived().len(), 1);
        settled_after_one_arrival(&scene, effect).await;
    }
}

async fn settled_after_one_arrival(scene: &Scene, effect: &str) {
    if effect == "idempotent_write" {
        scene.ends_completed().await;
        let arrived = scene.far.arrived();
        assert_eq!(arrived.len(), 2, "repeated once");
        same_call(&arrived);
        assert!(arrived[0].header("leasehold-fencing-token") < arrived[1].header("leasehold-fencing-token"));
    } else {
        scene.in_doubt().await;
        let ran = scene.resolve(&["--landed", "--note", "it is in the ledger"]).await;
        assert_eq!(ran.code(), 0, "{ran}");
        scene.ends_completed().await;
        assert_eq!(scene.far.arrived().len(), 1, "never a second one");
    }
}

#[tokio::test]
async fn killed_during_the_model_call_after_a_completed_write() {
    for effect in EFFECTS {
        let script = APPEND_ONCE.replace("text = \"appended\"", "text = \"appended\"\npause = \"3s\"");
        let scene = scene(effect, &script).await;
        let ran = scene.home.run(&["worker", "--once"]).await;
        assert_eq!(ran.code(), 0, "{ran}");
        scene.approve(&["--no-wait"]).await;
        let mut worker = scene.home.start(&["worker"], None);
        scene.far.wait_for(1).await;
        scene.home.until(scene.id, "past its write", |row| !row.has_pending_calls()).await;
        worker.kill();
        assert_eq!(scene.home.row(scene.id).await.state, State::Running);
        scene.ends_completed().await;
        assert_eq!(scene.far.arrived().len(), 1);
        let approvals = scene.home.journal(scene.id).await.iter().filter(|e| e.body.kind() == "suspended").count();
        assert_eq!(approvals, 1, "nobody is asked again");
    }
}

#[tokio::test]
async fn an_interactive_run_that_is_killed_in_its_tool_is_abandoned_with_the_write_listed() {
    for (effect, reason) in [("idempotent_write", Reason::Abandoned), ("non_idempotent_write", Reason::WriteInDoubt)] {
        let far = FarSide::start().await.expect("a port");
        let home = super::home().await;
        home.ledger(&far, Ledger { effect, approval: "none", timeout: "4s" }, APPEND_ONCE);
        far.then([Then::Hold]);
        let mut run = home.start(&["run", "--agent", "a", "append a line"], None);
        let arrived = far.wait_for(1).await;
        let id: RunId = arrived[0].header("leasehold-run").parse().expect("a run id");
        assert!(home.row(id).await.lease.expect("held").holder.starts_with("interactive:"));
        run.kill();
        let scene = Scene { home, far, id };
        let row = scene.taken_over().await;
        assert_eq!((row.state, row.reason), (State::Dead, Some(reason)));
        assert!(row.fence.is_some(), "never shown as clean");
        assert_eq!(scene.far.arrived().len(), 1);
        assert!(scene.show().await.contains("ledger.append"));
    }
}

/// So that a process which is to be stopped writes nothing but renewals.
const ONLY_RENEWS: [(&str, &str); 1] = [("LEASEHOLD_LEASE_SWEEP_INTERVAL", "1h")];

/// How a process that executes is started.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Approve,
    Run,
    Worker,
}

/// A process that sleeps through the end of its lease, between the answer of its write and the record of it, and wakes when another
/// process has put the write in doubt. What it said at its end, and the row then.
async fn slept(by: By) -> (Ran, Snapshot) {
    let far = FarSide::start().await.expect("a port");
    let home = super::home().await;
    let approval = if by == By::Approve { "required" } else { "none" };
    home.ledger(&far, Ledger { effect: "non_idempotent_write", approval, timeout: "4s" }, APPEND_ONCE);
    let queued = if by == By::Run { None } else { Some(home.enqueue().await) };
    let (named, digest);
    let arguments = match (by, queued) {
        (By::Approve, Some(id)) => {
            assert_eq!(home.run(&["worker", "--once"]).await.code(), 0);
            named = id.to_string();
            digest = home.row(id).await.turn.and_then(|turn| turn.digest).expect("waits for something");
            vec!["approve", named.as_str(), "--digest", digest.as_str(), "--json"]
        }
        (By::Run, _) => vec!["run", "--agent", "a", "--json", "append a line"],
        _ => vec!["worker", "--once"],
    };
    let mut sleeper = home.start_heard(&arguments, &ONLY_RENEWS, Some("after_return"));
    sleeper.stopped().await;
    let id: RunId = far.arrived()[0].header("leasehold-run").parse().expect("a run id");
    home.pause(id, &sleeper).await;
    while home.row(id).await.state.is_held() {
        assert_eq!(home.run(&["reap"]).await.code(), 0);
    }
    assert_eq!(home.row(id).await.reason, Some(Reason::WriteInDoubt));
    sleeper.signal("CONT");
    sleeper.go_on();
    let ran = sleeper.said().await;
    let row = home.row(id).await;
    assert_eq!(row.fence, None, "{by:?}: what the process knew is on record before it ends: {ran}");
    let known = Story::of(&home.journal(id).await).calls.into_values().next().and_then(|call| call.outcome).expect("known");
    assert_eq!((known.outcome, known.via), (Outcome::Done, Via::LateOutcome), "{ran}");
    assert_eq!(far.arrived().len(), 1);
    (ran, row)
}

#[tokio::test]
async fn an_approve_that_lost_its_lease_in_the_tool_does_not_end_before_the_outcome_is_on_record() {
    let (ran, row) = slept(By::Approve).await;
    assert_eq!((row.state, ran.code()), (State::Queued, 0), "{ran}");
    assert_eq!(ran.json()["state"], "queued", "the run as it is now: {ran}");
}

#[tokio::test]
async fn a_run_that_lost_its_lease_in_the_tool_does_not_end_before_the_outcome_is_on_record() {
    let (ran, row) = slept(By::Run).await;
    // Nobody but its caller was to go on with it: it is given up, and no doubt is left.
    assert_eq!((row.state, row.reason, ran.code()), (State::Dead, Some(Reason::Abandoned), 1), "{ran}");
    assert_eq!(ran.json()["reason"], "abandoned", "the run as it is now: {ran}");
}

#[tokio::test]
async fn a_worker_that_drains_and_lost_its_lease_in_the_tool_records_the_outcome_and_goes_on_with_the_run() {
    let (ran, row) = slept(By::Worker).await;
    assert_eq!((row.state, ran.code()), (State::Completed, 0), "{ran}");
}

#[tokio::test]
async fn a_worker_that_is_asked_to_end_and_lost_its_lease_in_the_tool_ends_with_the_outcome_on_record() {
    let far = FarSide::start().await.expect("a port");
    let home = super::home().await;
    home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout: "4s" }, APPEND_ONCE);
    let id = home.enqueue().await;
    let mut worker = home.start_heard(&["worker"], &ONLY_RENEWS, Some("after_return"));
    worker.stopped().await;
    home.pause(id, &worker).await;
    while home.row(id).await.state.is_held() {
        assert_eq!(home.run(&["reap"]).await.code(), 0);
    }
    // The request to end waits for it when it wakes.
    worker.signal("TERM");
    worker.signal("CONT");
    worker.go_on();
    let ran = worker.said().await;
    let row = home.row(id).await;
    assert_eq!((&row.fence, ran.code()), (&None, 0), "{ran}");
    // It may have claimed the run again before it heard the request to end.
    assert!(matches!(row.state, State::Queued | State::Completed), "{} {ran}", row.state);
}
