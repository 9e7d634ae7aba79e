//! How the command is asked, and how it ends.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::support::{self, Sandbox, command, kinds, said, text};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn wrong_use_ends_with_two() {
    let dir = tempfile::tempdir().unwrap();
    for arguments in [
        &["nonsense"][..],
        &["run"],
        &["run", "--max-rounds", "0", "x"],
        &["run", "--key", "k", "x"],
        &["run", "--agent", "nobody", "x"],
        &["--config", "absent.toml", "config"],
        &["--server", "http://127.0.0.1:1", "inbox"],
        &["runs", "show", "zz"],
        &["approve", "0123abcd"],
        &["resolve", "0123abcd", "--call", "t1c0"],
        &["resolve", "0123abcd", "--call", "t1c0", "--abandon", "--not-landed"],
        &["demo"],
    ] {
        let said = said(command(dir.path(), arguments)).await;
        assert_eq!(said.exit, Some(2), "{arguments:?}: {said:?}");
        assert_eq!(said.out, "", "{arguments:?}: data only on standard output");
        assert!(!said.err.is_empty(), "{arguments:?} says why");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_not_asked_without_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let mut asked = command(dir.path(), &["inbox"]);
    asked.env("LEASEHOLD_URL", "https://leasehold.example");
    let said = said(asked).await.exits(2);
    assert!(said.err.contains("set LEASEHOLD_TOKEN"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_configuration_is_named_before_anything_starts() {
    let sandbox = Sandbox::new("").await;
    sandbox.write("wrong.toml", "[store]\nurl = \"sqlite:other.db\"\n[lease]\nttl = \"1 fortnight\"\n");
    for place in [&["--config", "wrong.toml", "run", "x"][..], &["run", "x", "--config", "wrong.toml"]] {
        let said = sandbox.leasehold(place).await.exits(2);
        assert!(said.err.contains("wrong.toml:4: `1 fortnight` is not a duration"), "{said:?}");
    }
    assert!(!sandbox.path("other.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_list_names_its_store() {
    let sandbox = Sandbox::new("").await;
    for arguments in [&["runs", "list"][..], &["inbox"]] {
        let said = sandbox.leasehold(arguments).await.exits(0);
        assert!(said.out.is_empty() && said.err.contains("runs.db"), "{said:?}");
        let listed = sandbox.leasehold(&[arguments, &["--json"]].concat()).await.exits(0);
        assert_eq!(listed.json(), json!({ "items": [], "next_cursor": null }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_configuration_the_scripted_model_says_what_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let said = said(command(dir.path(), &["run", "tidy up"])).await.exits(3);
    assert!(said.err.contains("plays a fixed script"), "{said:?}");
    assert!(dir.path().join(".local/share/leasehold/leasehold.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_whose_key_is_missing_is_named_before_the_run_exists() {
    let sandbox = Sandbox::new("").await;
    let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    let provider = "provider = \"openai\"\nmodel = \"m\"\napi_key_env = \"NO_SUCH_KEY\"";
    sandbox.write("leasehold.toml", &config.replace("provider = \"scripted\"\nscript = \"script.toml\"", provider));
    let said = sandbox.leasehold(&["run", "x"]).await.exits(2);
    assert!(said.err.contains("NO_SUCH_KEY is not set"), "{said:?}");
    assert_eq!(sandbox.leasehold(&["runs", "list", "--json"]).await.json()["items"], json!([]));
    let agents = sandbox.leasehold(&["agents", "--json"]).await.exits(0).json();
    assert!(text(&agents, "/items/0/problem").contains("NO_SUCH_KEY"), "{agents}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_is_shown_without_secrets() {
    let sandbox =
        Sandbox::new("headers = { Authorization = { env = \"TOKEN\", prefix = \"Bearer \" }, X-Key = \"plain-secret\" }").await;
    let mut asked = sandbox.command(&["config"]);
    asked.env("TOKEN", "env-secret");
    let shown = said(asked).await.exits(0);
    assert!(!shown.out.contains("secret"), "{shown:?}");
    assert!(shown.out.contains("leasehold.toml:5") && shown.out.contains("set"), "{shown:?}");
    let config = sandbox.leasehold(&["config", "--json"]).await.exits(0).json();
    assert_eq!(config["lease"]["ttl"]["value"], "1s");
    assert!(!config.to_string().contains("secret"), "{config}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_say_why_they_may_or_may_not_run() {
    let sandbox = Sandbox::new("headers = { Authorization = { env = \"TOKEN\" } }").await;
    let said = sandbox.leasehold(&["tools", "--why"]).await.exits(0);
    assert!(said.out.contains("cannot run here") && said.out.contains("TOKEN"), "{said:?}");
    let sandbox = Sandbox::new("").await;
    let said = sandbox.leasehold(&["tools", "--why"]).await.exits(0);
    assert!(said.out.contains("waits for a person each time") && said.out.contains("offered to clerk"), "{said:?}");
    let tools = sandbox.leasehold(&["tools", "--json"]).await.exits(0).json();
    assert_eq!(tools["items"][0]["effect"], "non_idempotent_write");
    assert_eq!(tools["items"][0]["approval"], "required");
}

#[tokio::test(flavor = "multi_thread")]
async fn init_writes_once() {
    let dir = tempfile::tempdir().unwrap();
    said(command(dir.path(), &["init"])).await.exits(0);
    let agents = said(command(dir.path(), &["agents", "--json"])).await.exits(0).json();
    assert_eq!(agents["items"][0]["name"], "clerk");
    said(command(dir.path(), &["init"])).await.exits(1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_goes_away_is_no_failure() {
    let sandbox = Sandbox::new("").await;
    let (id, _) = sandbox.suspended().await;
    for arguments in [&["runs", "show", &id][..], &["config"], &["tools", "--why"]] {
        let mut asked = sandbox.command(arguments);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        asked.stdout(writer);
        let said = said(asked).await;
        assert_eq!((said.exit, said.err.contains("panicked")), (Some(0), false), "{arguments:?}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_run_says_that_no_worker_is_there_and_a_worker_takes_it() {
    let sandbox = Sandbox::new("approval = \"none\"").await;
    let said = sandbox.leasehold(&["run", "--queue", "--key", "k1", "note hello"]).await.exits(0);
    assert!(said.err.contains("no worker is running"), "{said:?}");
    let id = said.out.trim().to_owned();
    let shown = sandbox.leasehold(&["runs", "show", &id]).await.exits(0);
    assert!(shown.err.contains("due since ") && shown.err.contains("no worker is running"), "{shown:?}");
    let listed = sandbox.leasehold(&["runs", "list"]).await.exits(0);
    assert!(listed.err.contains("are queued, and no live worker serves it"), "{listed:?}");
    let again = sandbox.leasehold(&["run", "--queue", "--key", "k1", "note hello"]).await.exits(0);
    assert_eq!(again.out.trim(), id, "the same key is the same run");
    sandbox.leasehold(&["run", "--queue", "--key", "k1", "something else"]).await.exits(1);
    sandbox.leasehold(&["worker", "--once"]).await.exits(0);
    let run = sandbox.show(&id).await;
    assert_eq!((text(&run, "/state"), text(&run, "/output")), ("completed".into(), "It is done.".into()));
    assert_eq!(sandbox.far.arrived().len(), 1);
    let events = sandbox.events(&id).await;
    let stamped = events.iter().find(|event| event["kind"] == "write_stamped").unwrap();
    assert!(text(stamped, "/holder").starts_with("worker:"), "{stamped}");
    assert_eq!(kinds(&events).last().unwrap(), "settled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_data_and_everything_else_is_not() {
    let sandbox = Sandbox::with_script("", "[[reply]]\ntext = \"first\\nsecond\"\n").await;
    let said = sandbox.leasehold(&["run", "say it"]).await.exits(0);
    assert_eq!(said.out, "first\nsecond\n");
    assert!(said.err.contains("completed"), "{said:?}");
    let said = sandbox.leasehold(&["run", "say it", "--json"]).await.exits(0);
    assert_eq!(said.out.lines().count(), 1);
    assert_eq!(said.json()["output"], "first\nsecond");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_model_ends_with_one_and_its_reason() {
    let sandbox = Sandbox::with_script("", "[[reply]]\nerror = \"auth\"\n").await;
    let said = sandbox.leasehold(&["run", "x", "--json"]).await.exits(1);
    let run = said.json();
    assert_eq!((text(&run, "/state"), text(&run, "/reason")), ("failed".into(), "model_auth".into()));
    assert_eq!(run["error"]["code"], "model_auth");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_page_and_filter() {
    let sandbox = Sandbox::with_script("", "[[reply]]\ntext = \"hi\"\n").await;
    for _ in 0..3 {
        sandbox.leasehold(&["run", "x"]).await.exits(0);
    }
    let first = sandbox.leasehold(&["runs", "list", "--limit", "2", "--json"]).await.exits(0).json();
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    let cursor = text(&first, "/next_cursor");
    let rest = sandbox.leasehold(&["runs", "list", "--cursor", &cursor, "--json"]).await.exits(0).json();
    assert_eq!((rest["items"].as_array().unwrap().len(), &rest["next_cursor"]), (1, &json!(null)));
    let none = sandbox.leasehold(&["runs", "list", "--state", "dead", "--json"]).await.exits(0).json();
    assert_eq!(none["items"], json!([]));
    let id = text(&first, "/items/0/id");
    let by_end = sandbox.leasehold(&["runs", "show", &id[id.len() - 6..], "--json"]).await.exits(0).json();
    assert_eq!(text(&by_end, "/id"), id);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unrecorded_run_reads_and_answers_and_writes_nothing() {
    let sandbox = Sandbox::new("approval = \"none\"").await;
    let said = sandbox.leasehold(&["run", "--unrecorded", "note hello"]).await.exits(0);
    assert_eq!(said.out, "It is done.\n");
    assert!(said.err.contains("write_without_durable_execution"), "{said:?}");
    assert_eq!(sandbox.far.arrived().len(), 0);
    assert!(!sandbox.path("runs.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_ends_names_what_is_queued_for_agents_it_does_not_have() {
    let sandbox = Sandbox::new("").await;
    let id = sandbox.leasehold(&["run", "--queue", "note hello"]).await.exits(0).out.trim().to_owned();
    let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    sandbox.write("leasehold.toml", &config.replace("name = \"clerk\"", "name = \"other\""));
    let said = sandbox.leasehold(&["worker", "--once"]).await.exits(0);
    assert!(said.err.contains(&id) && said.err.contains("does not serve agent `clerk`"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_text_is_refused_and_never_taken_for_nothing() {
    use std::{ffi::OsStr, io::Write as _, os::unix::ffi::OsStrExt as _};
    let sandbox = Sandbox::new("").await;
    let mut asked = sandbox.command(&["runs", "list"]);
    asked.env("LEASEHOLD_STORE_URL", OsStr::from_bytes(b"sqlite:\xff.db"));
    let refused = said(asked).await.exits(2);
    assert!(refused.err.contains("LEASEHOLD_STORE_URL"), "{refused:?}");
    assert!(!sandbox.path("runs.db").exists(), "no other store in its place");
    let mut task = tempfile::tempfile().unwrap();
    task.write_all(b"note \xff").unwrap();
    std::io::Seek::rewind(&mut task).unwrap();
    let mut asked = sandbox.command(&["run", "-"]);
    asked.stdin(task);
    let refused = said(asked).await.exits(2);
    assert!(refused.err.contains("standard input"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_gave_up_names_its_unsettled_write_everywhere() {
    let sandbox = Sandbox::new("approval = \"none\"\neffect = \"idempotent_write\"").await;
    let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    sandbox.write("leasehold.toml", &config.replace("[lease]", "[lease]\nmax_requeues = 0"));
    let id = sandbox.leasehold(&["run", "--queue", "note hello"]).await.exits(0).out.trim().to_owned();
    sandbox.kill_worker_at("after_return", &["worker", "--once", &id]).await;
    sandbox.until_state(&id, "dead").await;
    let shown = sandbox.leasehold(&["runs", "show", &id]).await.exits(0);
    let first = shown.out.lines().next().unwrap_or_default();
    assert!(first.starts_with("Dead: given up") && first.contains("ledger.append may have happened"), "{shown:?}");
    let inbox = sandbox.leasehold(&["inbox"]).await.exits(0);
    assert!(inbox.out.contains("retries exhausted; ledger.append may have happened"), "{inbox:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_queues_needs_no_key_of_the_model_no_script_and_no_secret_of_a_tool() {
    let secret = "headers = { Authorization = { env = \"TEST_LEDGER_TOKEN\" } }";
    let sandbox = Sandbox::new(secret).await;
    let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    let mut asked = sandbox.command(&["run", "--json", "note hello"]);
    asked.env("TEST_LEDGER_TOKEN", "t");
    let id = text(&support::said(asked).await.exits(3).json(), "/id");
    let digest = text(&sandbox.show(&id).await, "/waiting/turn_digest");
    std::fs::rename(sandbox.path("script.toml"), sandbox.path("elsewhere.toml")).unwrap();
    let queued = sandbox.leasehold(&["run", "--queue", "--json", "note hello"]).await.exits(0).json();
    assert_eq!(text(&queued, "/state"), "queued");
    let edit = "{\"text\": \"changed\"}";
    sandbox.leasehold(&["approve", &id, "--digest", &digest, "--arguments", edit, "--no-wait"]).await.exits(0);
    // The versions of an agent agree, whoever queued its run.
    let version = |events: Vec<Value>| text(&events[0], "/payload/agent_version");
    let queued = version(sandbox.events_so_far(&text(&queued, "/id")).await);
    assert_eq!((queued.is_empty(), queued), (false, version(sandbox.events_so_far(&id).await)));
    let provider = "provider = \"openai\"\nmodel = \"gpt-4o-mini\"\napi_key_env = \"TEST_MODEL_KEY\"";
    sandbox.write("leasehold.toml", &config.replace("provider = \"scripted\"\nscript = \"script.toml\"", provider));
    sandbox.leasehold(&["run", "--queue", "note hello"]).await.exits(0);
    let refused = sandbox.leasehold(&["run", "note hello"]).await.exits(2);
    assert!(refused.err.contains("TEST_MODEL_KEY"), "who executes needs it: {refused:?}");
}
