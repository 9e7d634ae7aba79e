//! A write that can be asked about: after its process was killed, the next segment asks before anything else, and what the far
//! side says decides - unless it says "absent", which only the operator may take for "did not happen".

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::run::{EntryBody, Outcome, Reason, RunId, Snapshot, State, Story, Via};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{APPEND_ONCE, Home, Ledger},
};

struct Scene {
    home: Home,
    far: FarSide,
    id: RunId,
}

/// The run's worker was killed after its write arrived; the far side then answers verifies as told.
async fn killed(absent: &str, then: impl IntoIterator<Item = Then>) -> Scene {
    let far = FarSide::start().await.expect("a port");
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    let keys = format!(
        "verify = {{ method = \"GET\", url = \"{}/{{idempotency_key}}\", settle_after = \"200ms\", absent = \"{absent}\" }}",
        far.url("/entries")
    );
    let ledger = Ledger { effect: "non_idempotent_write", approval: "none", timeout: "1s" };
    home.ledger_with(&far, ledger, APPEND_ONCE, &keys);
    let id = home.enqueue().await;
    let mut worker = home.start(&["worker"], Some("after_return"));
    worker.stopped().await;
    worker.kill();
    assert_eq!(far.arrived().len(), 1);
    far.then(then);
    Scene { home, far, id }
}

impl Scene {
    async fn taken_over(&self) -> Snapshot {
        let _worker = self.home.start(&["worker"], None);
        self.home.until(self.id, "at rest", |row| row.state.is_settled() || row.state == State::Dead).await
    }

    /// Writes and verifies that arrived.
    fn arrived(&self) -> (usize, usize) {
        let all = self.far.arrived();
        let writes = all.iter().filter(|a| a.method == "POST").count();
        (writes, all.len() - writes)
    }
}

#[tokio::test]
async fn a_write_that_is_found_is_done_and_the_run_goes_on() {
    let scene = killed("in_doubt", [Then::Answer(200, "line 7".into())]).await;
    assert_eq!(scene.taken_over().await.state, State::Completed);
    assert_eq!(scene.arrived(), (1, 1));
    let story = Story::of(&scene.home.journal(scene.id).await);
    let outcome = story.calls.values().next().and_then(|c| c.outcome.clone()).expect("known");
    assert_eq!((outcome.outcome, outcome.via, outcome.result), (Outcome::Done, Via::Verify, "line 7".into()));
    let asked = &scene.far.arrived()[1];
    let key = scene.id.idempotency_key(&leasehold::run::CallId("t1c0".into()));
    assert_eq!(asked.uri.path(), format!("/entries/{key}"));
    assert_eq!(asked.header("idempotency-key"), key);
    assert_eq!(
        asked.header("leasehold-fencing-token"),
        "3",
        "the asker's epoch, so that the far side can close the door behind it"
    );
}

#[tokio::test]
async fn a_write_that_is_absent_or_not_told_is_a_doubt_and_is_not_made_again() {
    for then in
        [Then::Answer(404, "none".into()), Then::Answer(500, "broken".into()), Then::Redirect("/login".into()), Then::HangUp]
    {
        let scene = killed("in_doubt", [then.clone()]).await;
        let row = scene.taken_over().await;
        assert_eq!((row.state, row.reason), (State::Dead, Some(Reason::WriteInDoubt)), "{then:?}");
        assert_eq!(scene.arrived(), (1, 1), "{then:?}");
        let screen = scene.home.run(&["runs", "show", &scene.id.to_string()]).await;
        assert!(screen.stdout().contains("asked"), "the card says that it was asked: {screen}");
    }
}

#[tokio::test]
async fn a_write_that_is_absent_is_made_again_with_the_same_key_where_the_operator_declared_it() {
    let scene = killed("not_applied", [Then::Answer(404, "none".into())]).await;
    assert_eq!(scene.taken_over().await.state, State::Completed);
    assert_eq!(scene.arrived(), (2, 1));
    let writes: Vec<_> = scene.far.arrived().into_iter().filter(|a| a.method == "POST").collect();
    assert_eq!(writes[0].header("idempotency-key"), writes[1].header("idempotency-key"));
    assert_eq!(writes[0].body, writes[1].body);
}

#[tokio::test]
async fn not_landed_is_refused_where_the_far_side_says_that_it_landed_and_taken_where_it_does_not() {
    let scene = killed("in_doubt", [Then::Answer(404, "none".into())]).await;
    scene.taken_over().await;
    let id = scene.id.to_string();
    scene.far.then([Then::Answer(200, "line 7".into())]);
    let refused = scene.home.run(&["resolve", &id, "--call", "t1c0", "--not-landed"]).await;
    assert_eq!(refused.code(), 1, "{refused}");
    assert!(refused.stderr().contains("landed") && refused.stderr().contains("line 7"), "{refused}");
    assert_eq!(scene.home.row(scene.id).await.reason, Some(Reason::WriteInDoubt));
    scene.far.then([Then::Answer(404, "none".into())]);
    let taken = scene.home.run(&["resolve", &id, "--call", "t1c0", "--not-landed", "--note", "not in the book"]).await;
    assert_eq!(taken.code(), 0, "{taken}");
    assert_eq!(scene.taken_over().await.state, State::Completed);
    assert_eq!(scene.arrived().0, 2, "a person said so");
}

#[tokio::test]
async fn not_landed_from_a_process_that_cannot_ask_the_far_side_is_taken_and_says_so_everywhere() {
    for json in [false, true] {
        let scene = killed("in_doubt", [Then::Answer(404, "none".into())]).await;
        scene.taken_over().await;
        let asked = scene.arrived().1;
        // A process without the secret that the tool needs.
        let config = std::fs::read_to_string(scene.home.path().join("leasehold.toml")).expect("is there");
        let secret = "headers = { Authorization = { env = \"LEDGER_TOKEN\" } }\nverify =";
        scene.home.write("leasehold.toml", &config.replace("verify =", secret));
        let id = scene.id.to_string();
        let mut order = vec!["resolve", &id, "--call", "t1c0", "--not-landed", "--note", "not in the book"];
        order.extend(json.then_some("--json"));
        let taken = scene.home.run(&order).await;
        assert_eq!((taken.code(), scene.arrived().1), (0, asked), "{taken}");
        if json {
            let verify = &taken.json()["verify"];
            assert_eq!((&verify["asked"], &verify["answer"]), (&false.into(), &serde_json::Value::Null), "{taken}");
            assert!(verify["why"].as_str().is_some_and(|why| why.contains("LEDGER_TOKEN")), "{taken}");
            assert_eq!(taken.json()["state"], "queued", "{taken}");
        } else {
            assert!(taken.stdout().contains("was not asked") && taken.stdout().contains("LEDGER_TOKEN"), "{taken}");
        }
        let shown = scene.home.run(&["runs", "show", &id]).await.stdout();
        let said = shown.lines().find(|line| line.contains("says it did not happen")).expect("on the page");
        assert!(said.contains("without asking the far side") && said.contains("local:"), "{said}");
        let noted = scene.home.journal(scene.id).await.into_iter().find_map(|entry| match entry.body {
            EntryBody::Resolved(resolved) => resolved.note,
            _ => None,
        });
        let noted = noted.expect("has a note");
        assert!(noted.contains("no tool `ledger.append`") && noted.contains("not in the book"), "{noted}");
    }
}

#[tokio::test]
async fn a_tool_that_goes_elsewhere_now_is_not_asked_about_a_write_that_went_where_it_went() {
    let scene = killed("in_doubt", [Then::Answer(404, "none".into())]).await;
    scene.taken_over().await;
    let asked = scene.arrived().1;
    let config = std::fs::read_to_string(scene.home.path().join("leasehold.toml")).expect("is there");
    scene.home.write("leasehold.toml", &config.replace("/append", "/elsewhere"));
    let taken = scene.home.run(&["resolve", &scene.id.to_string(), "--call", "t1c0", "--not-landed"]).await;
    assert_eq!((taken.code(), scene.arrived().1), (0, asked), "{taken}");
    assert!(taken.stdout().contains("was not asked") && taken.stdout().contains("/elsewhere"), "{taken}");
}
