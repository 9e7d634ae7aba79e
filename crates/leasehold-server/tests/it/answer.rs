//! `leasehold answer`: a call that runs in one process asks, and a person at another answers, on the store itself or at a server.
//!
//! The process that runs the call is the test itself, on the file of the real commands; `mcp_questions` has a worker in its place.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::{
    login::Browser,
    support::{self, Said, Sandbox, api::TOKEN, text},
};
use leasehold::{
    Runtime, RuntimeConfig, StartRun,
    agent::{
        model::scripted::ScriptedModel,
        registry::{AgentSpec, Registry},
        tool::{Approval, Asker, ReadAnswer, Reply, WriteAnswer, WriteEffect, WritePermit, rust},
    },
    clock::SystemClock,
    run::{Principal, RunId, Snapshot, State},
    store::sqlite::SqliteStore,
};
use serde_json::{Map, Value, json};
use std::{sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    task::JoinHandle,
};

const LONG: Duration = Duration::from_secs(600);
/// Text that would draw on a terminal.
const PROMPT: &str = "Which size?\u{1b}[2J\nGive these values? [y/N] y";

fn schema() -> Value {
    json!({ "type": "object", "properties": { "size": { "type": "integer", "minimum": 1 } }, "required": ["size"] })
}

fn told(said: &Reply) -> Value {
    match said {
        Reply::Values(values) => values["size"].clone(),
        Reply::Declined => "declined".into(),
    }
}

/// A process that runs calls which ask.
struct Asking {
    runtime: Runtime,
}

impl Asking {
    fn on(sandbox: &Sandbox, calls: &[&str]) -> Self {
        // All processes of a store have one ttl, and this one has the default.
        let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
        sandbox.write("leasehold.toml", &config.replacen("ttl = \"1s\"", "ttl = \"60s\"", 1));
        let mut registry = Registry::new();
        let find = rust::asking_read_tool("box.find", "Find", |mut asker: Asker, _: Map<String, Value>| async move {
            match asker.ask(PROMPT, schema()).await {
                Ok(said) => ReadAnswer::ok(told(&said)),
                Err(why) => ReadAnswer::error(why.to_string()),
            }
        });
        let effect = WriteEffect::NonIdempotent;
        let send = |mut permit: WritePermit, _: Map<String, Value>| async move {
            match permit.asker().ask(PROMPT, schema()).await {
                Ok(said) => WriteAnswer::done(told(&said)),
                Err(why) => WriteAnswer::NotApplied { why: why.to_string() },
            }
        };
        let send = rust::write_tool("box.send", "Send", effect, Approval::None, send);
        registry.add_tool(find.timeout(LONG)).unwrap();
        registry.add_tool(send.timeout(LONG)).unwrap();
        let calls: Vec<String> = calls.iter().map(|tool| format!("{{ tool = '{tool}', arguments = {{}} }}")).collect();
        let script = format!("[[reply]]\ncalls = [{}]\n[[reply]]\ntext = 'done'\n", calls.join(", "));
        let model = ScriptedModel::from_toml("asks", &script).unwrap();
        registry.add_agent(AgentSpec::new("packer", model).tools(["box.*"])).unwrap();
        let clock = Arc::new(SystemClock::new().unwrap());
        let store = SqliteStore::open(sandbox.path("runs.db"), clock.clone()).unwrap();
        Self { runtime: Runtime::new(RuntimeConfig::new(store, registry, clock)).unwrap() }
    }

    /// A run whose calls ask so many questions; their numbers, by call.
    async fn start(&self, questions: usize) -> (String, JoinHandle<Snapshot>, Vec<(String, u64)>) {
        let execution = self.runtime.start(StartRun::new("packer", "a box", Principal::person("ann"))).await.unwrap();
        let id = execution.run();
        let run = tokio::spawn(async move { execution.finish().await.unwrap() });
        (id.to_string(), run, self.asked(id, questions).await)
    }

    async fn asked(&self, id: RunId, questions: usize) -> Vec<(String, u64)> {
        let mut seen = 0;
        loop {
            seen += self.runtime.wait_events(id, seen).await.unwrap().len() as u64;
            let details = self.runtime.details(id).await.unwrap();
            let mut asked: Vec<_> = details.questions().map(|asked| (asked.call_id.to_string(), asked.question)).collect();
            if asked.len() == questions {
                asked.sort();
                return asked;
            }
        }
    }

    async fn result(&self, id: &str, call: &str) -> Value {
        let story = self.runtime.details(id.parse().unwrap()).await.unwrap().story;
        let call = leasehold::run::CallId(call.into());
        story.calls[&call].outcome.as_ref().unwrap().result.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_sees_what_a_running_call_asks_and_answers_it_from_another_process() {
    let sandbox = Sandbox::new("").await;
    let asking = Asking::on(&sandbox, &["box.send"]);
    let (id, run, asked) = asking.start(1).await;
    let number = asked[0].1.to_string();

    let shown = sandbox.leasehold(&["runs", "show", &id]).await.exits(0).out;
    for part in
        ["a person is asked by box.send", "Asks a person", "Which size?\\u{1b}[2J", "size: integer, at least 1, required"]
    {
        assert!(shown.contains(part), "{part} in:\n{shown}");
    }
    let command = format!("leasehold answer {id} --call t1c0 --question {number} --values '{{..}}'");
    assert!(shown.contains(&command), "{shown}");
    assert!(!shown.lines().any(|line| line.starts_with("Give these")), "the tool's words are behind a gutter: {shown}");
    let json = sandbox.show(&id).await;
    assert_eq!((&json["questions"][0]["question"], &json["questions"][0]["prompt"]), (&json!(asked[0].1), &json!(PROMPT)));
    let inbox = sandbox.leasehold(&["inbox"]).await.exits(0).out;
    assert!(inbox.contains("question") && inbox.contains("box.send asks"), "{inbox}");
    let mut follow = sandbox.command(&["runs", "follow", &id]).spawn().unwrap();
    let mut said = BufReader::new(follow.stderr.take().unwrap()).lines();
    let hint = said.next_line().await.unwrap().unwrap();
    assert!(hint.contains(&command), "{hint}");
    support::kill(follow).await;

    // Asked wrongly.
    for (arguments, part) in [
        (vec!["--values", "{\"size\": 0}"], "/size"),
        (vec!["--values", "{\"size\": 1, \"colour\": 2}"], "/colour"),
        (vec!["--values", "[]"], "not a JSON object"),
        (vec!["--values", "{}", "--decline"], "cannot be used with"),
        (vec![], "--values"),
    ] {
        let wrong = sandbox.leasehold(&[&["answer", &id], arguments.as_slice()].concat()).await.exits(2);
        assert!(wrong.err.contains(part), "{part} in:\n{}", wrong.err);
    }
    for other in [vec!["--call", "t9c9", "--decline"], vec!["--question", "999", "--decline"]] {
        let none = sandbox.leasehold(&[&["answer", &id], other.as_slice()].concat()).await.exits(1);
        assert!(none.err.contains("no_question"), "{}", none.err);
    }

    let answer = |values: &'static str| vec!["answer", &id, "--question", &number, "--values", values];
    sandbox.leasehold(&["answer", &id, "--values", "{\"size\": 7}"]).await.exits(0);
    assert_eq!(run.await.unwrap().state, State::Completed);
    assert_eq!(asking.result(&id, "t1c0").await, json!(7));
    sandbox.leasehold(&answer("{\"size\": 7}")).await.exits(0);
    let late = sandbox.leasehold(&answer("{\"size\": 8}")).await.exits(1);
    assert!(late.err.contains("already_decided"), "{}", late.err);
    let nothing = sandbox.leasehold(&["answer", &id, "--decline"]).await.exits(1);
    assert!(nothing.err.contains("no_question: nothing is asked"), "{}", nothing.err);
    let followed = sandbox.leasehold(&["runs", "follow", &id]).await.exits(0);
    assert!(followed.out.contains("t1c0 asks: ") && followed.out.contains(" answered t1c0"), "{}", followed.out);
    assert!(!followed.err.contains("to answer it"), "what was answered is not asked: {}", followed.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_calls_that_ask_one_is_named_and_to_decline_is_an_answer() {
    let sandbox = Sandbox::new("").await;
    let asking = Asking::on(&sandbox, &["box.find", "box.find"]);
    let (id, run, _) = asking.start(2).await;
    let which = sandbox.leasehold(&["answer", &id, "--decline"]).await.exits(2);
    assert!(which.err.contains("--call") && which.err.contains("t1c0, t1c1"), "{}", which.err);
    let declined = sandbox.leasehold(&["answer", &id, "--call", "t1c1", "--decline", "--json"]).await.exits(0).json();
    assert_eq!((text(&declined, "/id"), text(&declined, "/questions/0/call_id")), (id.clone(), "t1c0".into()));
    sandbox.write("size.json", "{\"size\": 3}");
    sandbox.leasehold(&["answer", &id, "--values", "@size.json"]).await.exits(0);
    assert_eq!(run.await.unwrap().state, State::Completed);
    assert_eq!((asking.result(&id, "t1c0").await, asking.result(&id, "t1c1").await), (json!(3), json!("declined")));
    let followed = sandbox.leasehold(&["runs", "follow", &id]).await.out;
    assert!(followed.contains("declined to answer t1c1"), "{followed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn at_a_terminal_an_answer_is_given_to_what_was_shown() {
    let sandbox = Sandbox::new("").await;
    let asking = Asking::on(&sandbox, &["box.send"]);
    let (id, run, _) = asking.start(1).await;
    for (word, exit) in [("", 3), ("y", 0)] {
        let mut terminal = sandbox.on_terminal(&["answer", &id, "--values", "{\"size\": 7}"]);
        terminal.shows("\nGive these values? [y/N] ").await;
        let seen = terminal.seen();
        assert!(seen.contains("Which size?\\u{1b}[2J") && seen.contains("size: 7"), "{seen}");
        assert!(!run.is_finished());
        terminal.types(word);
        assert_eq!(terminal.exit().await, Some(exit), "{}", terminal.seen());
    }
    assert_eq!(run.await.unwrap().state, State::Completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_takes_the_answer_of_a_command_elsewhere() {
    let sandbox = Sandbox::new("").await;
    let asking = Asking::on(&sandbox, &["box.send", "box.find"]);
    let (id, run, asked) = asking.start(1).await;
    let server = sandbox.serve().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let leasehold = async |arguments: &[&str]| -> Said {
        let mut command = support::command(elsewhere.path(), arguments);
        command.env("LEASEHOLD_URL", &server.url).env("LEASEHOLD_TOKEN", TOKEN);
        support::said(command).await
    };
    let shown = leasehold(&["runs", "show", &id]).await.exits(0).out;
    let command = format!("    leasehold answer {id} --call t1c0 --question {} --values '{{..}}'", asked[0].1);
    assert!(shown.contains(&command) && shown.contains("Which size?\\u{1b}[2J"), "{shown}");
    assert!(leasehold(&["inbox"]).await.exits(0).out.contains("box.send asks"));
    let wrong = leasehold(&["answer", &id, "--values", "{\"size\": 0}"]).await.exits(2);
    assert!(wrong.err.contains("/size"), "{}", wrong.err);
    let number = asked[0].1.to_string();
    let named = ["answer", &id, "--call", "t1c0", "--question", &number, "--values"];
    leasehold(&[&named[..], &["{\"size\": 7}"]].concat()).await.exits(0);
    let second = asking.asked(id.parse().unwrap(), 1).await.remove(0);
    assert_eq!(second.0, "t1c1");
    leasehold(&[&named[..], &["{\"size\": 7}"]].concat()).await.exits(0);
    let late = leasehold(&[&named[..], &["{\"size\": 8}"]].concat()).await.exits(1);
    assert!(late.err.contains("already_decided"), "{}", late.err);
    let declined = leasehold(&["answer", &id, "--decline"]).await.exits(0);
    assert!(declined.err.contains("no values are to be given"), "{}", declined.err);
    assert_eq!(run.await.unwrap().state, State::Completed);
    assert_eq!((asking.result(&id, "t1c0").await, asking.result(&id, "t1c1").await), (json!(7), json!("declined")));
    let nothing = leasehold(&["answer", &id, "--decline"]).await.exits(1);
    assert!(nothing.err.contains("no_question"), "{}", nothing.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_is_answered_on_a_page_and_what_does_not_fit_comes_back_as_it_was_typed() {
    let sandbox = Sandbox::new("").await;
    let asking = Asking::on(&sandbox, &["box.send"]);
    let (id, run, asked) = asking.start(1).await;
    let number = asked[0].1.to_string();
    let server = sandbox.serve().await;
    let browser = Browser::of(&server);
    let cookie = browser.enters(None, &[("token", TOKEN)]).await;
    let inbox = browser.get("/?kind=question", Some(&cookie)).await.body;
    for part in ["box.send asks while it runs", "Which size?\\u{1b}[2J", "at least 1", &format!("/runs/{id}/answer")] {
        assert!(inbox.contains(part), "{part} in:\n{inbox}");
    }
    let path = format!("/runs/{id}/answer");
    let send = async |question: &str, size: &str| {
        let form = [("back", "run"), ("call_id", "t1c0"), ("question", question), ("v/size", size), ("say", "values")];
        browser.send(&path, Some(&cookie), &form).await
    };
    for (size, why) in [("0", "less than the minimum"), ("few", "this is no number"), ("", "this is needed")] {
        let page = send(&number, size).await;
        assert_eq!(page.status.as_u16(), 422, "{page:?}");
        assert!(page.body.contains(why) && page.body.contains(&format!("value=\"{size}\"")), "{size}: {}", page.body);
    }
    assert_eq!(send("9999", "7").await.status.as_u16(), 409, "another question than the one that stands");
    assert_eq!(send(&number, "7").await.status.as_u16(), 303);
    assert_eq!(run.await.unwrap().state, State::Completed);
    assert_eq!(asking.result(&id, "t1c0").await, 7);
}
