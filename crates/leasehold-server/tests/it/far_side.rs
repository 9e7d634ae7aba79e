//! What the far side answers after the effect, and what a run makes of it: a non-idempotent write is on the wire once, whatever
//! comes back, and where nobody knows, a person is asked and the model is told nothing.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::run::{Outcome, Reason, RunId, State, Story};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{APPEND_ONCE, Home, Ledger, Ran},
};

async fn ran(then: Then, timeout: &str) -> (Home, FarSide, RunId, Ran) {
    let far = FarSide::start().await.expect("a port");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout }, APPEND_ONCE);
    far.then([then]);
    let ran = home.run(&["run", "--agent", "a", "--json", "append a line"]).await;
    let id = ran.json()["id"].as_str().expect("an id").parse().expect("a run id");
    (home, far, id, ran)
}

#[tokio::test]
async fn a_write_that_commits_and_then_fails_to_say_so_is_in_doubt_after_one_request() {
    let answer = |status: u16| Then::Answer(status, "committed, and then something broke".into());
    let cases = [
        answer(500),
        answer(502),
        answer(503),
        answer(409),
        answer(408),
        answer(425),
        answer(429),
        Then::Redirect("/elsewhere".into()),
        Then::HangUp,
        Then::Hold,
    ];
    for then in cases {
        let (home, far, id, ran) = ran(then.clone(), "1s").await;
        assert_eq!(ran.code(), 3, "{then:?}: {ran}");
        let row = home.row(id).await;
        assert_eq!((row.state, row.reason), (State::Dead, Some(Reason::WriteInDoubt)), "{then:?}");
        assert!(row.fence.is_some());
        assert_eq!(far.arrived().len(), 1, "{then:?}: one request on the wire");
        let journal = home.journal(id).await;
        assert_eq!(
            journal.iter().filter(|e| e.body.kind() == "model_reply").count(),
            1,
            "{then:?}: the model is not asked again"
        );
        assert_eq!(
            journal.iter().filter(|e| e.body.kind() == "tool_outcome").count(),
            0,
            "{then:?}: nothing is said to have failed"
        );
        let inbox = home.run(&["inbox"]).await;
        assert!(inbox.stdout().contains("in doubt"), "{inbox}");
        // Whatever processes look at it later, it is not started again.
        let worked = home.run(&["worker", "--once"]).await;
        assert_eq!(worked.code(), 0, "{worked}");
        assert_eq!(far.arrived().len(), 1, "{then:?}: and none afterwards");
    }
}

#[tokio::test]
async fn a_write_that_the_far_side_refuses_is_done_with_an_error_for_the_model() {
    for status in [400, 401, 403, 404, 405, 410, 413, 415, 422] {
        let (home, far, id, ran) = ran(Then::Answer(status, "no".into()), "5s").await;
        assert_eq!(ran.code(), 0, "{status}: {ran}");
        let story = Story::of(&home.journal(id).await);
        let outcome = story.calls.values().next().and_then(|c| c.outcome.clone()).expect("known");
        assert_eq!((outcome.outcome, outcome.is_error), (Outcome::Done, true), "{status}");
        assert_eq!(far.arrived().len(), 1);
    }
}

#[tokio::test]
async fn a_write_that_could_not_connect_did_not_happen_and_is_no_doubt() {
    let far = FarSide::start().await.expect("a port");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout: "5s" }, APPEND_ONCE);
    // A port that is taken and that nobody listens on: it refuses, and no other test can get it.
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let free = socket.local_addr().expect("bound");
    let text = std::fs::read_to_string(home.path().join("leasehold.toml")).expect("written before");
    home.write("leasehold.toml", &text.replace(&far.url(""), &format!("http://{free}")));
    let ran = home.run(&["run", "--agent", "a", "--json", "append a line"]).await;
    assert_eq!(ran.code(), 0, "{ran}");
    let id = ran.json()["id"].as_str().expect("an id").parse().expect("a run id");
    let story = Story::of(&home.journal(id).await);
    let outcome = story.calls.values().next().and_then(|c| c.outcome.clone()).expect("known");
    assert_eq!(outcome.outcome, Outcome::NotApplied);
    assert_eq!(far.arrived().len(), 0);
}

#[tokio::test]
async fn a_write_that_a_worker_may_start_at_once_is_stamped_while_it_runs_and_not_after() {
    let far = FarSide::start().await.expect("a port");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "none", timeout: "20s" }, APPEND_ONCE);
    far.then([Then::Hold]);
    let id = home.enqueue().await;
    let _worker = home.start(&["worker"], None);
    far.wait_for(1).await;
    let row = home.row(id).await;
    assert!(row.lease.expect("held").holder.starts_with("worker:"));
    assert_eq!(row.fence.expect("stamped").idempotency_key, far.arrived()[0].header("idempotency-key"));
    far.release();
    let row = home.until(id, "completed", |row| row.state == State::Completed).await;
    assert_eq!(row.fence, None);
}
