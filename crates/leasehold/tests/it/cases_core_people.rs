//! People: what they decide is bound to what they saw, taken once, and stands; what they say about a doubt is bound to that doubt.
#![allow(clippy::expect_used, reason = "a test that cannot go on has failed")]

use leasehold::{
    Decision, InboxKind, OrderError, Resolution, StartRun,
    agent::{
        registry::AgentSpec,
        tool::{Approval, Previewed, ToolSpec, WriteAnswer, WriteEffect, WritePermit, rust::write_tool},
    },
    run::{CallId, DecideCall, OnExpiry, Outcome, Principal, Rejection, ResolutionKind, RunId, State},
    worker::Point,
};
use leasehold_testkit::{
    Fault, FaultyStore, How, Op,
    park::{Park, Place},
    world::{RecordedRead, RecordedWrite, Recorder, World, WorldBuilder},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

const APPEND: &str = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "one" } }]
[[reply]]
text = "done"
"#;
const TWO: &str = r#"
[[reply]]
calls = [{ tool = "ledger.append", arguments = { text = "1" } }, { tool = "ledger.append", arguments = { text = "2" } }]
[[reply]]
text = "done"
"#;

fn append(recorder: &Recorder) -> RecordedWrite {
    RecordedWrite::new("ledger.append", WriteEffect::NonIdempotent, recorder)
}

fn asking(place: &Place, script: &str, recorder: &Recorder) -> WorldBuilder {
    World::builder(script).tool(append(recorder).tool(Approval::Required)).on(&place.store, &place.clock)
}

fn grace() -> Principal {
    Principal::person("local:grace")
}

fn one(index: usize, approved: bool) -> DecideCall {
    DecideCall { call_id: CallId::of(1, index), approved, reason: None, arguments: None, edited_card: None }
}

fn about(digest: &str, calls: Vec<DecideCall>, by: Principal) -> Decision {
    Decision { digest: digest.to_owned(), rest: None, reason: None, calls, by, execute: true }
}

async fn refused(world: &World, id: RunId, decision: Decision) -> Rejection {
    let before = world.row(id).await;
    let rejection = match world.runtime.decide(id, decision).await {
        Err(OrderError::Refused(rejection)) => rejection,
        Err(other) => panic!("{other}"),
        Ok(decided) => panic!("taken: {:?}", decided.row),
    };
    assert_eq!(world.row(id).await, before, "a refused decision changes nothing");
    rejection
}

#[tokio::test]
async fn a_decision_made_again_at_any_time_gets_the_same_answer_and_one_execution() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let park = Park::at(Point::BeforeModel);
        let first = asking(&place, APPEND, &recorder).build();
        let id = first.run("task").await;
        let world = asking(&place, APPEND, &recorder).probe(park.clone()).process("test:2").build();
        let digest = world.digest(id).await;
        let decision = || World::decision(digest.clone(), true);
        let taken = world.runtime.decide(id, decision()).await.expect("taken");
        assert!(!taken.repeated);
        // While it waits to run, in another process, and by somebody else.
        let again = first.runtime.decide(id, decision()).await.expect("the same answer");
        assert!(again.repeated && again.execution.is_none());
        let other = refused(&first, id, Decision { by: grace(), ..decision() }).await;
        assert!(matches!(other, Rejection::AlreadyDecided { ref by, .. } if by == "local:ada"), "{other}");
        let opposite = refused(&first, id, World::decision(digest.clone(), false)).await;
        assert!(matches!(opposite, Rejection::AlreadyDecided { .. }), "{opposite}");
        // After the write, while the model is asked; and after the end.
        let segment = taken.execution.expect("here").spawn();
        park.reached().await;
        assert!(first.runtime.decide(id, decision()).await.expect("the same answer").repeated);
        park.release();
        assert_eq!(segment.await.expect("joined").expect("held").state, State::Completed);
        assert!(first.runtime.decide(id, decision()).await.expect("the same answer").repeated);
        let kinds = world.kinds(id).await;
        assert_eq!(kinds.iter().filter(|k| **k == "approval").count(), 1, "{}", place.name);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_decision_made_ten_times_at_once_is_taken_once() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = asking(&place, APPEND, &recorder).build();
        let id = world.run("task").await;
        let digest = world.digest(id).await;
        let mut deciding = tokio::task::JoinSet::new();
        for _ in 0..10 {
            let (runtime, decision) = (world.runtime.clone(), World::decision(digest.clone(), true));
            deciding.spawn(async move {
                match runtime.decide(id, decision).await.expect("the same answer").execution {
                    Some(execution) => execution.finish().await.is_ok(),
                    None => false,
                }
            });
        }
        let executed = deciding.join_all().await.into_iter().filter(|executed| *executed).count();
        assert_eq!((executed, recorder.count("ledger.append")), (1, 1), "{}", place.name);
        assert_eq!(world.row(id).await.state, State::Completed);
    }
}

/// Two people's worlds on one store; the second one's writes can be held up.
fn two_deciders(place: &Place, script: &str, recorder: &Recorder) -> (World, World, Arc<FaultyStore>) {
    let faults = FaultyStore::new(Arc::clone(&place.store));
    let held_up = World::builder(script).tool(append(recorder).tool(Approval::Required)).process("test:2");
    let held_up = held_up.on(&(Arc::clone(&faults) as _), &place.clock).build();
    (asking(place, script, recorder).build(), held_up, faults)
}

#[tokio::test]
async fn decisions_about_each_call_add_up_and_the_last_one_continues_the_run() {
    for at_once in [false, true] {
        for place in Place::each() {
            let recorder = Recorder::default();
            let (world, held_up, faults) = two_deciders(&place, TWO, &recorder);
            let id = world.run("task").await;
            let digest = world.digest(id).await;
            let part = about(&digest, vec![one(0, true)], World::person());
            let rest = about(&digest, vec![one(1, false)], grace());
            let runtime = held_up.runtime.clone();
            let last = async move { runtime.decide(id, rest).await };
            let last = if at_once {
                // Both saw both calls undecided; the one whose write comes second is the last after all.
                faults.arm(Fault::on(Op::Write, How::Hang).on_entry("approval").times(1));
                let last = tokio::spawn(last);
                faults.wait_for_hits(1).await;
                assert!(world.runtime.decide(id, part).await.expect("taken").execution.is_none());
                faults.heal();
                last.await.expect("joined")
            } else {
                assert!(world.runtime.decide(id, part.clone()).await.expect("taken").execution.is_none());
                assert_eq!(world.row(id).await.state, State::WaitingForApproval);
                assert!(world.runtime.decide(id, part).await.expect("the same answer").repeated);
                last.await
            };
            let execution = last.expect("taken").execution.expect("the last decision continues the run");
            assert_eq!(execution.finish().await.expect("held").state, State::Completed);
            assert_eq!(recorder.entries().iter().map(|e| e.arguments["text"].clone()).collect::<Vec<_>>(), ["1"]);
        }
    }
}

#[tokio::test]
async fn a_decision_that_is_overtaken_by_the_same_one_gets_its_answer() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let (world, held_up, faults) = two_deciders(&place, APPEND, &recorder);
        let id = world.run("task").await;
        let decision = World::decision(world.digest(id).await, true);
        faults.arm(Fault::on(Op::Write, How::Hang).on_entry("approval").times(1));
        let (runtime, same) = (held_up.runtime.clone(), decision.clone());
        let second = tokio::spawn(async move { runtime.decide(id, same).await });
        faults.wait_for_hits(1).await;
        let taken = world.runtime.decide(id, decision).await.expect("taken");
        assert_eq!(taken.execution.expect("here").finish().await.expect("held").state, State::Completed);
        faults.heal();
        let second = second.await.expect("joined").expect("the same answer");
        assert!(second.repeated && second.execution.is_none());
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test]
async fn what_a_decision_does_not_name_rightly_is_refused() {
    let place = Place::sqlite();
    let recorder = Recorder::default();
    let script = "[[reply]]\ncalls = [{ tool = \"notes.read\", arguments = { text = \"1\" } }, { tool = \"ledger.append\", arguments = { text = \"2\" } }]\n";
    let world = asking(&place, script, &recorder).tool(RecordedRead::new("notes.read", &recorder).tool()).build();
    let id = world.run("task").await;
    let digest = world.digest(id).await;
    let stale = refused(&world, id, World::decision("0".repeat(64), true)).await;
    assert_eq!(stale, Rejection::StaleTurn);
    let read = refused(&world, id, about(&digest, vec![one(0, true), one(1, true)], World::person())).await;
    assert_eq!(read, Rejection::UnknownCall(CallId::of(1, 0)));
    let none = refused(&world, id, about(&digest, vec![one(7, true), one(1, true)], World::person())).await;
    assert_eq!(none, Rejection::UnknownCall(CallId::of(1, 7)));
    let nothing = refused(&world, id, about(&digest, vec![], World::person())).await;
    assert_eq!(nothing, Rejection::EmptyCard);
    let machine = Decision { by: Principal::machine("ci"), ..World::decision(digest.clone(), true) };
    assert_eq!(refused(&world, id, machine).await, Rejection::MachineMayNotRelease);
    // A denial executes nothing: a machine may deny.
    let denied = Decision { by: Principal::machine("ci"), ..World::decision(digest, false) };
    assert!(world.runtime.decide(id, denied).await.is_ok());
    assert_eq!(recorder.entries(), []);
}

#[tokio::test]
async fn under_four_eyes_whoever_started_the_run_may_deny_and_not_release() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let world = asking(&place, APPEND, &recorder).agent(|a| AgentSpec { second_approver: true, ..a }).build();
        let mut start = StartRun::new("a", "task", Principal::machine("ci"));
        start.initiator = Some(World::person().id);
        let execution = world.runtime.start(start).await.expect("started");
        let id = execution.run();
        execution.finish().await.expect("held");
        let own = refused(&world, id, World::decision(world.digest(id).await, true)).await;
        assert_eq!(own, Rejection::SelfApproval("local:ada".into()), "the person behind the machine");
        let mut edit = one(0, true);
        edit.arguments = serde_json::json!({"text": "mine"}).as_object().cloned();
        let proposed = world.runtime.decide(id, about(&world.digest(id).await, vec![edit], grace())).await.expect("taken");
        assert!(proposed.execution.is_none() && proposed.row.state.is_waiting(), "an edit is no release");
        let author = Decision { by: grace(), ..World::decision(world.digest(id).await, true) };
        assert_eq!(refused(&world, id, author).await, Rejection::SelfApproval(grace().id));
        let by_other = Decision { by: Principal::person("eve"), ..World::decision(world.digest(id).await, true) };
        let decided = world.runtime.decide(id, by_other).await.expect("taken");
        assert_eq!(decided.execution.expect("here").finish().await.expect("held").state, State::Completed);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test]
async fn after_the_deadline_nobody_decides_and_the_run_goes_on_or_is_dead_as_the_agent_says() {
    for on_expiry in [OnExpiry::Continue, OnExpiry::DeadLetter] {
        for place in Place::each() {
            let recorder = Recorder::default();
            let hour = Some(Duration::from_secs(3_600));
            let world =
                asking(&place, TWO, &recorder).agent(move |a| AgentSpec { decision_deadline: hour, on_expiry, ..a }).build();
            let id = world.run("task").await;
            let digest = world.digest(id).await;
            let first = about(&digest, vec![one(0, true)], World::person());
            world.runtime.decide(id, first).await.expect("taken");
            place.clock.advance(Duration::from_secs(3_601));
            let late = refused(&world, id, about(&digest, vec![one(1, true)], World::person())).await;
            assert!(matches!(late, Rejection::DeadlinePassed(_)), "{late}");
            let swept = world.runtime.sweep(10, false).await.expect("swept");
            assert_eq!(swept.overdue.len(), 1);
            if on_expiry == OnExpiry::DeadLetter {
                let row = world.row(id).await;
                assert_eq!((row.state, row.reason.expect("dead").as_str()), (State::Dead, "decision_expired"));
                // Redriven, it waits again on the same call, and an approve from before is stale.
                world.runtime.redrive(id, World::person(), None).await.expect("redriven");
                world.claim(id).await.expect("held");
                let again = world.digest(id).await;
                assert_ne!(again, digest);
                let stale = refused(&world, id, about(&digest, vec![one(1, true)], World::person())).await;
                assert_eq!(stale, Rejection::StaleTurn);
                world.approve(id).await.expect("held");
                assert_eq!(recorder.count("ledger.append"), 2);
            } else {
                assert_eq!(world.claim(id).await.expect("held").state, State::Completed);
                assert_eq!(recorder.entries().iter().map(|e| e.arguments["text"].clone()).collect::<Vec<_>>(), ["1"]);
                assert!(world.results()[1].1.contains("nobody decided in time"), "not denied: {:?}", world.results());
            }
        }
    }
}

#[tokio::test]
async fn a_precondition_that_no_longer_holds_waits_again_with_both_versions() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let seen = |version: &str| Previewed { text: format!("old -> new ({version})"), precondition: Some(version.into()) };
        // The card, the check at the start, the new card, and the check after that.
        let tool = append(&recorder).previews([seen("v1"), seen("v2"), seen("v2"), seen("v2")]).tool(Approval::Required);
        let world = World::builder(APPEND).tool(tool).on(&place.store, &place.clock).build();
        let id = world.run("task").await;
        let first = world.digest(id).await;
        assert_eq!(world.approve(id).await.expect("held").state, State::WaitingForApproval);
        assert_eq!(recorder.count("ledger.append"), 0);
        let card = world.story(id).await.card.expect("waits").card;
        let why = card.calls[0].why.clone().expect("says why");
        assert!(why.contains("v1") && why.contains("v2"), "{why}");
        assert_eq!(card.calls[0].preview.as_deref(), Some("old -> new (v2)"));
        assert_ne!(world.digest(id).await, first);
        assert_eq!(world.approve(id).await.expect("held").state, State::Completed);
        assert_eq!(recorder.count("ledger.append"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_preview_that_panics_hangs_or_shows_nothing_is_said_on_the_card_and_the_call_waits_all_the_same() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Line {
        text: String,
    }
    for (text, shown) in [
        ("panics", "no preview, you are deciding without one: the tool's preview broke"),
        ("hangs", "no preview, you are deciding without one: the tool's preview took longer than 10 s"),
        ("nothing", "no preview, you are deciding without one: the tool showed nothing"),
        ("fails", "no preview, you are deciding without one: it is closed"),
    ] {
        let entered = Arc::new(AtomicUsize::new(0));
        let entering = Arc::clone(&entered);
        let write = move |_: WritePermit, _: Line| {
            entering.fetch_add(1, Ordering::Relaxed);
            async { WriteAnswer::done("ok") }
        };
        let tool = write_tool("ledger.append", "Append", WriteEffect::NonIdempotent, Approval::Required, write).preview(
            |line: Line| async move {
                match line.text.as_str() {
                    "panics" => panic!("a defect of the tool"),
                    "hangs" => std::future::pending().await,
                    "fails" => Err("it is closed".to_owned()),
                    _ => Ok(Previewed::text(" ")),
                }
            },
        );
        let script = APPEND.replace("text = \"one\"", &format!("text = \"{text}\""));
        assert_ne!(script, APPEND);
        let world = World::builder(&script).tool(tool.into()).build();
        let id = world.run("task").await;
        let card = world.story(id).await.card.expect("it waits").card;
        assert_eq!(card.calls[0].preview.as_deref(), Some(shown), "{text}");
        assert_eq!((world.row(id).await.state, entered.load(Ordering::Relaxed)), (State::WaitingForApproval, 0), "{text}");
        assert_eq!(world.approve(id).await.expect("held").state, State::Completed);
        assert_eq!(entered.load(Ordering::Relaxed), 1, "{text}");
    }
}

#[tokio::test]
async fn a_tool_that_changed_while_the_run_waited_is_shown_again_with_the_difference() {
    type Change = fn(&mut ToolSpec);
    let changes: [(&str, Change); 2] = [
        ("endpoint", |spec| spec.endpoint = "test:elsewhere".into()),
        ("schema", |spec| spec.parameters["properties"]["more"] = serde_json::json!({"type": "string"})),
    ];
    for (what, change) in changes {
        for approve_again in [true, false] {
            let place = Place::sqlite();
            let recorder = Recorder::default();
            let old = asking(&place, APPEND, &recorder).build();
            let id = old.run("task").await;
            let changed = append(&recorder).spec(change).tool(Approval::Required);
            let newer = World::builder(APPEND).tool(changed).on(&place.store, &place.clock).process("test:2").build();
            let approved = newer.approve(id).await.expect("held");
            assert_eq!((approved.state, recorder.count("ledger.append")), (State::WaitingForApproval, 0));
            let why = newer.story(id).await.card.expect("waits").card.calls[0].why.clone().expect("says why");
            assert!(why.contains(what), "{why}");
            let decision = World::decision(newer.digest(id).await, approve_again);
            let decided = newer.runtime.decide(id, decision).await.expect("taken");
            assert_eq!(decided.execution.expect("here").finish().await.expect("held").state, State::Completed);
            assert_eq!(recorder.count("ledger.append"), usize::from(approve_again));
        }
    }
    // A deny works also where the tool is gone altogether.
    let place = Place::sqlite();
    let recorder = Recorder::default();
    let old = asking(&place, APPEND, &recorder).build();
    let id = old.run("task").await;
    let without = World::builder(APPEND).on(&place.store, &place.clock).process("test:2").build();
    let denied = without.runtime.decide(id, World::decision(without.digest(id).await, false)).await.expect("taken");
    let ended = match denied.execution {
        Some(execution) => execution.finish().await,
        None => without.claim(id).await,
    };
    assert_eq!(ended.expect("held").state, State::Completed);
}

/// A run whose write is in doubt.
async fn doubted(place: &Place, recorder: &Recorder) -> (World, RunId) {
    let tool = append(recorder).answers([WriteAnswer::Unknown { why: "reset".into() }]).tool(Approval::None);
    let world = World::builder(APPEND).tool(tool).on(&place.store, &place.clock).build();
    let id = world.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.expect("enqueued");
    assert_eq!(world.claim(id).await.expect("held").state, State::Dead);
    (world, id)
}

fn says(outcome: ResolutionKind, fence_epoch: Option<u64>) -> Resolution {
    Resolution { call_id: CallId::of(1, 0), fence_epoch, outcome, result: None, note: None, by: World::person() }
}

#[tokio::test]
async fn a_doubt_is_settled_by_what_a_person_says_once_and_bound_to_that_doubt() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let (world, id) = doubted(&place, &recorder).await;
        assert_eq!(world.runtime.inbox(10).await.expect("listed")[0].0, InboxKind::InDoubt);
        let stale = world.runtime.resolve(id, says(ResolutionKind::Landed, Some(7))).await.err();
        assert_eq!(stale, Some(OrderError::Refused(Rejection::StaleDoubt)));
        assert!(matches!(world.runtime.redrive(id, World::person(), None).await, Err(OrderError::Refused(_))));
        // Not before the request can no longer be on its way.
        let early = world.runtime.resolve(id, says(ResolutionKind::NotLanded, Some(1))).await.err();
        assert!(matches!(early, Some(OrderError::Refused(Rejection::TooEarly(_)))), "{early:?}");
        let by_machine = Resolution { by: Principal::machine("ci"), ..says(ResolutionKind::NotLanded, Some(1)) };
        let by_machine = world.runtime.resolve(id, by_machine).await.err();
        assert_eq!(by_machine, Some(OrderError::Refused(Rejection::MachineMayNotRelease)));
        place.clock.advance(Duration::from_secs(31));
        assert_eq!(
            world.runtime.resolve(id, says(ResolutionKind::NotLanded, Some(1))).await.expect("resolved").row.state,
            State::Queued
        );
        // Sent twice: the same answer; and another word on it is too late.
        let sequence = world.row(id).await.sequence;
        world.runtime.resolve(id, says(ResolutionKind::NotLanded, Some(1))).await.expect("the same answer");
        let other = world.runtime.resolve(id, says(ResolutionKind::Landed, Some(1))).await.err();
        assert_eq!(other, Some(OrderError::Refused(Rejection::StaleDoubt)));
        assert_eq!(world.row(id).await.sequence, sequence);
        assert_eq!(world.claim(id).await.expect("held").state, State::Completed);
        assert_eq!(recorder.count("ledger.append"), 2, "made again, because a person said that it had not happened");
        assert_ne!(recorder.entries()[0].epoch, recorder.entries()[1].epoch);
    }
}

#[tokio::test]
async fn not_landed_sent_again_after_a_new_doubt_of_the_same_call_is_stale() {
    let place = Place::sqlite();
    let recorder = Recorder::default();
    let unknown = || WriteAnswer::Unknown { why: "reset".into() };
    let tool = append(&recorder).answers([unknown(), unknown()]).tool(Approval::None);
    let world = World::builder(APPEND).tool(tool).on(&place.store, &place.clock).build();
    let id = world.runtime.enqueue(StartRun::new("a", "task", World::person()), None).await.expect("enqueued");
    world.claim(id).await.expect("held");
    let epoch = world.row(id).await.fence.expect("stands").epoch;
    place.clock.advance(Duration::from_secs(31));
    world.runtime.resolve(id, says(ResolutionKind::NotLanded, Some(epoch))).await.expect("resolved");
    world.claim(id).await.expect("held");
    place.clock.advance(Duration::from_secs(31));
    assert_eq!(world.row(id).await.reason.expect("dead").as_str(), "write_in_doubt");
    let again = world.runtime.resolve(id, says(ResolutionKind::NotLanded, Some(epoch))).await.err();
    assert_eq!(again, Some(OrderError::Refused(Rejection::StaleDoubt)));
    assert_eq!(recorder.count("ledger.append"), 2);
}

#[tokio::test]
async fn landed_continues_with_the_persons_word_and_abandon_ends_the_call_for_good() {
    for place in Place::each() {
        let recorder = Recorder::default();
        let (world, id) = doubted(&place, &recorder).await;
        let landed = Resolution { result: Some("order 7".into()), ..says(ResolutionKind::Landed, None) };
        world.runtime.resolve(id, landed).await.expect("resolved");
        assert_eq!(world.claim(id).await.expect("held").state, State::Completed);
        assert_eq!(world.results()[0].1, "A person states that this call happened. order 7");
        assert_eq!(recorder.count("ledger.append"), 1);

        let recorder = Recorder::default();
        let (world, id) = doubted(&place, &recorder).await;
        let abandoned = world.runtime.resolve(id, says(ResolutionKind::Abandon, None)).await.expect("resolved").row;
        assert_eq!((abandoned.state, abandoned.reason.expect("failed").as_str()), (State::Failed, "abandoned"));
        world.runtime.redrive(id, World::person(), None).await.expect("redriven");
        assert_eq!(world.claim(id).await.expect("held").state, State::Completed);
        let outcome = world.story(id).await.calls[&CallId::of(1, 0)].outcome.clone().expect("known");
        assert_eq!((outcome.outcome, recorder.count("ledger.append")), (Outcome::Unknown, 1));
        assert!(world.results()[0].1.contains("Do not repeat it"));
    }
}

#[tokio::test]
async fn a_redrive_asks_again_for_an_approval_that_is_too_old_and_a_discard_ends_the_run() {
    for (age, asks_again) in [(Duration::from_secs(3_600), false), (Duration::from_secs(25 * 3_600), true)] {
        let place = Place::sqlite();
        let recorder = Recorder::default();
        let first = asking(&place, APPEND, &recorder).build();
        let id = first.run("task").await;
        let digest = first.digest(id).await;
        let queued = Decision { execute: false, ..World::decision(digest.clone(), true) };
        let decided = first.runtime.decide(id, queued).await.expect("taken");
        assert_eq!((decided.row.state, decided.execution.is_none()), (State::Queued, true));
        // Its segments die before the write, until its requeues are spent.
        for _ in 0..4 {
            let park = Park::at(Point::BeforeStamp);
            let dying = asking(&place, APPEND, &recorder).probe(park.clone()).process("test:2").build();
            park.kill(dying.runtime.claim(id).await.expect("claimed")).await;
            dying.lapse().await;
        }
        assert_eq!(first.row(id).await.reason.expect("dead").as_str(), "retries_exhausted");
        place.clock.advance(age);
        first.runtime.redrive(id, World::person(), None).await.expect("redriven");
        let state = first.claim(id).await.expect("held").state;
        if asks_again {
            assert_eq!((state, recorder.count("ledger.append")), (State::WaitingForApproval, 0));
            let stale = refused(&first, id, World::decision(digest.clone(), false)).await;
            assert_eq!(stale, Rejection::StaleTurn);
            assert_eq!(first.approve(id).await.expect("held").state, State::Completed);
        } else {
            assert_eq!(state, State::Completed);
        }
        assert_eq!(recorder.count("ledger.append"), 1);
    }
    let place = Place::sqlite();
    let recorder = Recorder::default();
    let (world, id) = doubted(&place, &recorder).await;
    let discarded = world.runtime.discard(id, World::person(), Some("wrong".into())).await.expect("discarded");
    assert_eq!((discarded.state, discarded.fence), (State::Cancelled, None));
    let outcome = world.story(id).await.calls[&CallId::of(1, 0)].outcome.clone().expect("closed");
    assert_eq!(outcome.outcome, Outcome::Unknown);
    assert!(world.runtime.discard(id, World::person(), None).await.is_err());
}
