//! What an operator switches off or changes in the configuration while a worker or a server runs is in force at the next call.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::mcp::{Place, once, tool};
use leasehold::run::{RunId, State};
use leasehold_testkit::far_side::FarSide;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

const AT_ONCE: &str = "requires_approval = false";
const ALL: &str = r#"["notes.*"]"#;

/// Who executes while the operator changes something.
const VERBS: [&str; 2] = ["worker", "serve"];

/// A run that somebody else executes until it is over or waits, and what became of its calls.
async fn next(place: &Place) -> (RunId, State, Vec<(String, String)>) {
    let id = place.home.enqueue().await;
    let row = place.home.until(id, "at rest", |row| row.state.is_settled() || row.state.is_waiting()).await;
    (id, row.state, place.outcomes(id).await)
}

async fn place() -> Option<Place> {
    let place = Place::new().await?;
    place.configure(&format!("{}\n{AT_ONCE}", place.by_pipes()), ALL);
    place.script(&once("notes.append"));
    place.ends(&["mcp", "import", "notes"], 0).await;
    Some(place)
}

#[tokio::test]
async fn a_server_or_a_tool_that_is_switched_off_is_not_called_and_is_when_it_is_on_again() {
    for verb in VERBS {
        let Some(place) = place().await else { return };
        let _running = place.running(verb);
        next(&place).await;
        let mut calls = 1;
        assert_eq!(place.calls().len(), calls);
        for name in ["notes", "notes.append"] {
            place.ends(&["mcp", "disable", name], 0).await;
            let (_, state, outcomes) = next(&place).await;
            assert_eq!(state, State::Completed);
            assert_eq!(place.calls().len(), calls, "{verb}: {name} is off: {outcomes:?}");
            assert!(outcomes[0].0 == "refused" && outcomes[0].1.contains("switched off by local:"), "{outcomes:?}");
            let listed = place.ends(&["mcp", "list"], 0).await.stdout();
            assert!(listed.contains("switched off by local:"), "{listed}");
            place.ends(&["mcp", "enable", name], 0).await;
            next(&place).await;
            calls += 1;
            assert_eq!(place.calls().len(), calls, "{verb}: {name} is on again");
        }
        for name in ["notes.apend", "nothing", "notes."] {
            let ran = place.ends(&["mcp", "disable", name], 1).await;
            assert!(ran.stderr().contains("there is no"), "{ran}");
        }
    }
}

#[tokio::test]
async fn a_switch_between_two_calls_of_a_run_stops_the_second() {
    let Some(place) = place().await else { return };
    let call =
        |text: &str| format!("[[reply]]\ncalls = [{{ tool = \"notes.append\", arguments = {{ text = \"{text}\" }} }}]\n");
    place.script(&format!("{}{}[[reply]]\ntext = \"So be it.\"\n", call("one"), call("two")));
    let id = place.home.enqueue().await;
    let mut worker = place.home.start(&["worker"], Some("after_return"));
    worker.stopped().await;
    place.ends(&["mcp", "disable", "notes.append"], 0).await;
    worker.go_on();
    place.home.until(id, "settled", |row| row.state.is_settled()).await;
    assert_eq!(place.calls().len(), 1);
    let outcomes: Vec<String> = place.outcomes(id).await.into_iter().map(|(outcome, _)| outcome).collect();
    assert_eq!(outcomes, ["done", "refused"]);
}

#[tokio::test]
async fn a_switch_while_the_model_answers_is_in_force_at_the_write_that_it_asks_for() {
    let Some(place) = place().await else { return };
    let id = place.home.enqueue().await;
    let mut worker = place.home.start(&["worker"], Some("before_model"));
    worker.stopped().await;
    place.ends(&["mcp", "disable", "notes"], 0).await;
    worker.go_on();
    place.home.until(id, "settled", |row| row.state.is_settled()).await;
    assert_eq!(place.calls().len(), 0, "{:?}", place.outcomes(id).await);
}

#[tokio::test]
async fn what_is_edited_in_the_configuration_is_in_force_at_the_next_call() {
    for verb in VERBS {
        let Some(place) = place().await else { return };
        place.lists(&[tool("append"), tool("other")]);
        place.ends(&["mcp", "probe", "notes"], 0).await;
        place.ends(&["mcp", "acknowledge", "notes", "--all", "--yes"], 0).await;
        let far = FarSide::start().await.unwrap();
        let pipes = place.by_pipes();
        let server = |keys: &str| format!("[[mcp]]\nname = \"notes\"\n{pipes}\n{keys}\n");
        let http = |approval: &str| {
            format!(
                "[[tool.http]]\nname = \"ledger.append\"\ndescription = \"Appends\"\neffect = \"non_idempotent_write\"\n\
                 approval = \"{approval}\"\nmethod = \"POST\"\nurl = \"{}\"\nparameters = {{ type = \"object\" }}\n",
                far.url("/append")
            )
        };
        let both = |keys: &str, approval: &str| format!("{}{}", server(keys), http(approval));
        let all = r#"["notes.*", "ledger.*"]"#;
        place.configure_more(&both(AT_ONCE, "none"), all);
        let _running = place.running(verb);
        next(&place).await;
        assert_eq!(place.calls().len(), 1);

        // A person releases from now on.
        place.configure_more(&both("requires_approval = true", "none"), all);
        assert_eq!(next(&place).await.1, State::WaitingForApproval, "{verb}");
        assert_eq!(place.calls().len(), 1);

        // A read from now on, which needs no stamp.
        place.configure_more(&both("effects = { append = \"read_only\" }", "none"), all);
        let (id, state, _) = next(&place).await;
        let kinds: Vec<&str> = place.home.journal(id).await.iter().map(|entry| entry.body.kind()).collect();
        assert!(state == State::Completed && !kinds.contains(&"write_stamped"), "{verb}: {kinds:?}");
        assert_eq!(place.calls().len(), 2);

        // The agent is offered less.
        place.configure_more(&both(AT_ONCE, "none"), r#"["notes.other", "ledger.*"]"#);
        let (_, _, outcomes) = next(&place).await;
        assert!(outcomes[0].0 == "refused" && outcomes[0].1.contains("there is no tool"), "{verb}: {outcomes:?}");
        assert_eq!(place.calls().len(), 2);

        // The server is gone, and its process with it.
        place.configure_more(&http("none"), r#"["ledger.*"]"#);
        let (_, _, outcomes) = next(&place).await;
        assert!(outcomes[0].0 == "refused", "{verb}: {outcomes:?}");
        assert_eq!(place.calls().len(), 2);
        let is_server = |line: &String| line.contains("shifting.py");
        crate::support::until(|| (!place.processes().iter().any(is_server)).then_some(())).await;

        // An HTTP tool is released by a person from now on.
        place.script(&crate::support::one_call("ledger.append", "{}"));
        place.configure_more(&http("none"), r#"["ledger.*"]"#);
        next(&place).await;
        assert_eq!(far.arrived().len(), 1);
        place.configure_more(&http("required"), r#"["ledger.*"]"#);
        assert_eq!(next(&place).await.1, State::WaitingForApproval, "{verb}");
        assert_eq!(far.arrived().len(), 1);
    }
}

#[tokio::test]
async fn a_broken_edit_changes_nothing_and_is_said_once() {
    let Some(place) = place().await else { return };
    let whole = std::fs::read_to_string(place.home.path().join("leasehold.toml")).unwrap();
    let worker = place.home.start_heard(&["worker"], &[], None);
    let half: String = whole.chars().take(whole.len() - 12).collect();
    // What only shows when it is set up, in a file that has no server any more.
    let nowhere = "[[tool.http]]\nname = \"ledger.append\"\ndescription = \"Appends\"\neffect = \"non_idempotent_write\"\n\
                   method = \"POST\"\nurl = \"nowhere\"\nparameters = { type = \"object\" }\n";
    let broken = [
        half,
        place.configuration(nowhere, r#"["ledger.*"]"#),
        format!("{whole}\n[[["),
        whole.replace(AT_ONCE, "requires_approval = \"no\""),
        whole.replace(AT_ONCE, "requires_aproval = true"),
        whole.replace("[\"notes.*\"]", "[\"nots.*\"]"),
        String::new(),
    ];
    // It has begun with the whole one.
    next(&place).await;
    let mut calls = 1;
    let mut edits = 0;
    for text in broken {
        // As an editor writes that knows of no other file.
        place.home.write("leasehold.toml", &text);
        for _ in 0..2 {
            let id = enqueued_elsewhere(&place, &whole).await;
            let row = place.home.until(id, "at rest", |row| row.state.is_settled() || row.state.is_waiting()).await;
            assert_eq!(row.state, State::Completed, "{text}");
            calls += 1;
            assert_eq!(place.calls().len(), calls, "{text}");
        }
        edits += 1;
    }
    std::fs::remove_file(place.home.path().join("leasehold.toml")).unwrap();
    let id = enqueued_elsewhere(&place, &whole).await;
    place.home.until(id, "settled", |row| row.state.is_settled()).await;
    edits += 1;

    // A good one is taken over after all that.
    place.replace("leasehold.toml", &whole.replace(AT_ONCE, "requires_approval = true"));
    assert_eq!(next(&place).await.1, State::WaitingForApproval);
    worker.signal("TERM");
    let said = worker.said().await.stderr();
    assert_eq!(said.matches("is not taken over").count(), edits, "{said}");
    for place in ["`requires_aproval`", "leasehold.toml:"] {
        assert!(said.contains(place), "{said}");
    }
}

/// A run that is queued with another copy of the configuration.
async fn enqueued_elsewhere(place: &Place, whole: &str) -> RunId {
    place.home.write("elsewhere.toml", whole);
    let arguments = ["--config", "elsewhere.toml", "run", "--agent", "a", "--queue", "--json", "note a line"];
    place.ends(&arguments, 0).await.json()["id"].as_str().unwrap().parse().unwrap()
}

/// Whoever writes the file all the time holds nobody up.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_written_all_the_time_is_read_as_it_is() {
    let Some(place) = place().await else { return };
    let file = place.home.path().join("leasehold.toml");
    let whole = std::fs::read_to_string(&file).unwrap();
    place.home.write("elsewhere.toml", &whole);
    let _worker = place.home.start(&["worker"], None);
    next(&place).await;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut writes = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                writes += 1;
                let next = file.with_extension("next");
                std::fs::write(&next, format!("{whole}\n# {writes}\n")).unwrap();
                std::fs::rename(&next, &file).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let settles = async {
            let id = enqueued_elsewhere(&place, &whole).await;
            place.home.until(id, "settled", |row| row.state.is_settled()).await;
        };
        let ended = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(tokio::time::timeout(Duration::from_secs(25), settles))
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(ended.is_ok(), "the run waits for whoever writes");
    });
    assert_eq!(place.calls().len(), 2);
}

/// An agent that names a tool which its server does not have is not served; what else is configured is, and what is switched off
/// then is off.
#[tokio::test]
async fn an_agent_that_names_a_tool_no_server_has_takes_nothing_else_with_it() {
    let Some(place) = Place::new().await else { return };
    let other = "[[agent]]\nname = \"b\"\nmodel = \"m\"\ntools = [\"notes.apend\"]\n";
    place.configure_more(&format!("{other}[[mcp]]\nname = \"notes\"\n{}\n{AT_ONCE}", place.by_pipes()), ALL);
    place.script(&once("notes.append"));
    let _worker = place.home.start(&["worker"], None);
    next(&place).await;
    assert_eq!(place.calls().len(), 1);
    place.ends(&["mcp", "disable", "notes"], 0).await;
    next(&place).await;
    assert_eq!(place.calls().len(), 1);
    place.ends(&["mcp", "enable", "notes"], 0).await;
    let ran = place.ends(&["run", "--agent", "b", "note a line"], 2).await;
    assert!(ran.stderr().contains("notes.apend") && ran.stderr().contains("leasehold.toml:"), "{ran}");
}
