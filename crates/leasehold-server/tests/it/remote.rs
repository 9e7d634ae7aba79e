//! The command line as a client of a real `leasehold serve`: what it says, how it ends, and that it executes nothing itself.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::support::{
    PATIENCE, Said, Sandbox,
    api::{Server, TOKEN},
    command, one_call, said, text, until,
};
use leasehold_testkit::far_side::Then;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

/// A machine that knows of the server only what its environment says: no configuration, no store.
struct Elsewhere {
    dir: TempDir,
    url: String,
}

impl Elsewhere {
    fn of(server: &Server) -> Self {
        Self::at(&server.url)
    }
    fn at(url: &str) -> Self {
        Self { dir: tempfile::tempdir().unwrap(), url: url.to_owned() }
    }
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(self.dir.path(), arguments);
        command.env("LEASEHOLD_URL", &self.url).env("LEASEHOLD_TOKEN", TOKEN);
        command
    }
    async fn leasehold(&self, arguments: &[&str]) -> Said {
        let said = said(self.command(arguments)).await;
        assert!(!said.err.contains(TOKEN) && !said.out.contains(TOKEN), "{arguments:?}: {said:?}");
        assert_eq!(std::fs::read_dir(self.dir.path()).unwrap().count(), 0, "{arguments:?} left something here");
        said
    }
    /// A run that waits, and the digest of its card.
    async fn suspended(&self) -> (String, String) {
        let run = self.leasehold(&["run", "--json", "note hello"]).await.exits(3).json();
        (text(&run, "/id"), text(&run, "/waiting/turn_digest"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_and_another_process_approves_it_once() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let elsewhere = Elsewhere::of(&server);
    let waits = elsewhere.leasehold(&["run", "note hello"]).await.exits(3);
    for part in [
        "queued by",
        "asks for ledger.append",
        "waits for a person: ledger.append t1c0",
        "Waits for a person: ledger.append runs only if somebody approves it.",
        "text: \"hello\"",
        "leasehold approve",
    ] {
        assert!(waits.err.contains(part), "{part} in:\n{}", waits.err);
    }
    assert_eq!((waits.out.as_str(), sandbox.far.arrived().len()), ("", 0));
    let id = text(&server.get("/runs").await.is(200), "/items/0/id");
    let digest = text(&server.get(&format!("/runs/{id}")).await.is(200), "/waiting/turn_digest");

    // The end of the id names the run, and nobody decides without naming what was shown.
    let end = &id[28..];
    let nobody = elsewhere.leasehold(&["approve", end]).await.exits(2);
    assert!(nobody.err.contains("--digest"), "{nobody:?}");
    let stale = elsewhere.leasehold(&["approve", end, "--digest", "0"]).await.exits(1);
    assert!(stale.err.contains("error: stale_turn: ") && stale.err.contains("nothing was changed"), "{stale:?}");
    assert_eq!(sandbox.far.arrived().len(), 0);

    let approve = ["approve", end, "--digest", &digest, "--reason", "it is right"];
    let done = elsewhere.leasehold(&approve).await.exits(0);
    assert_eq!(done.out, "It is done.\n");
    for part in ["approved t1c0 (it is right)", "ledger.append t1c0 done", "completed", "Completed: "] {
        assert!(done.err.contains(part), "{part} in:\n{}", done.err);
    }
    assert!(!done.err.contains("queued by"), "only what came after the decision:\n{}", done.err);
    // The same again is the same answer.
    elsewhere.leasehold(&approve).await.exits(0);
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approver_who_sees_a_run_only_while_it_waits_is_told_how_it_ends() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let elsewhere = Elsewhere::of(&server);
    sandbox.leasehold(&["user", "add", "anna", "--role", "approver", "--tool", "ledger.*"]).await.exits(0);
    let made = sandbox.leasehold(&["token", "create", "cli", "--owner", "anna", "--json"]).await.exits(0).json();
    let anna = async |arguments: &[&str]| {
        let mut asked = elsewhere.command(arguments);
        asked.env("LEASEHOLD_TOKEN", text(&made, "/secret"));
        said(asked).await
    };
    let (id, digest) = elsewhere.suspended().await;
    // The list has it not, the inbox has.
    assert_eq!(anna(&["runs", "list", "--json"]).await.exits(0).json()["items"], json!([]));
    let approve = ["approve", &id[28..], "--digest", &digest];
    let done = anna(&approve).await.exits(0);
    assert_eq!(done.out, "It is done.\n", "{done:?}");
    assert!(done.err.contains("completed"), "{done:?}");
    let missing = anna(&["runs", "show", &id]).await.exits(1);
    assert!(missing.err.contains(&format!("there is no run `{id}` on")), "{missing:?}");
    anna(&["approve", &id, "--digest", &digest]).await.exits(0);
    let denied = anna(&["deny", &id, "--digest", &digest]).await.exits(1);
    assert!(denied.err.contains("error: already_decided: "), "{denied:?}");
    let (id, digest) = elsewhere.suspended().await;
    let order = anna(&["runs", "cancel", &id]).await.exits(1);
    assert!(order.err.contains("error: not_permitted: ") && order.err.contains("nothing was changed"), "{order:?}");
    anna(&["deny", &id, "--digest", &digest, "--no-wait"]).await.exits(0);
    assert_eq!(sandbox.far.arrived().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_reaches_the_model_and_nothing_is_written() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let elsewhere = Elsewhere::of(&server);
    let (id, digest) = elsewhere.suspended().await;
    let denied = elsewhere.leasehold(&["deny", &id, "--digest", &digest, "--reason", "not today", "--json"]).await.exits(0);
    let run = denied.json();
    assert_eq!((text(&run, "/state"), text(&run, "/decisions/0/reason")), ("completed".into(), "not today".into()));
    assert_eq!((denied.out.lines().count(), sandbox.far.arrived().len()), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_at_a_terminal_is_asked_about_what_is_shown() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let remote = |command: &mut Command| {
        command.env("LEASEHOLD_URL", &server.url).env("LEASEHOLD_TOKEN", TOKEN).env("LEASEHOLD_CONFIG", "/nowhere.toml");
    };
    let mut terminal = sandbox.on_terminal_with(&["run", "--agent", "clerk", "note hello"], remote);
    terminal.shows("[a]pprove, [d]eny or [s]kip?").await;
    assert!(terminal.seen().contains("text: \"hello\""), "{}", terminal.seen());
    terminal.types("s");
    assert_eq!(terminal.exit().await, Some(3), "{}", terminal.seen());
    let id = text(&server.get("/runs").await.is(200), "/items/0/id");
    let mut terminal = sandbox.on_terminal_with(&["approve", &id], remote);
    terminal.shows("Approve all undecided calls? [y/N]").await;
    terminal.ends_input();
    assert_eq!(terminal.exit().await, Some(3), "the end of the input is no yes: {}", terminal.seen());
    assert_eq!(sandbox.far.arrived().len(), 0);
    let mut terminal = sandbox.on_terminal_with(&["approve", &id], remote);
    terminal.shows("Approve all undecided calls? [y/N]").await;
    terminal.types("y");
    assert_eq!(terminal.exit().await, Some(0), "{}", terminal.seen());
    assert_eq!(sandbox.far.arrived().len(), 1);
    let mut terminal = sandbox.on_terminal_with(&["run", "note hello"], remote);
    terminal.shows("[a]pprove, [d]eny or [s]kip?").await;
    terminal.types("a");
    assert_eq!(terminal.exit().await, Some(0), "{}", terminal.seen());
    assert_eq!(sandbox.far.arrived().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_asks_the_server_to_cancel_and_waits_for_it() {
    let script = one_call("ledger.append", "{ text = \"x\" }").replacen("[[reply]]\n", "[[reply]]\npause = \"2s\"\n", 1);
    let sandbox = Sandbox::with_script("", &script).await;
    let server = sandbox.serve().await;
    let mut terminal = sandbox.on_terminal_with(&["run", "note hello"], |command| {
        command.env("LEASEHOLD_URL", &server.url).env("LEASEHOLD_TOKEN", TOKEN);
    });
    terminal.shows("claimed by").await;
    terminal.interrupts();
    terminal.shows("asked to cancel (Ctrl-C)").await;
    terminal.shows("Cancelled.").await;
    assert_eq!(terminal.exit().await, Some(1), "{}", terminal.seen());
    assert_eq!(sandbox.far.arrived().len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_in_the_tool_leaves_a_doubt_that_its_successor_shows_and_a_person_resolves() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let elsewhere = Elsewhere::of(&server);
    let (id, digest) = elsewhere.suspended().await;
    sandbox.far.then([Then::Hold]);
    let mut approving = elsewhere.command(&["approve", &id, "--digest", &digest]).spawn().unwrap();
    sandbox.far.wait_for(1).await;
    // Its order was answered, and it watches: an order whose answer is lost is said as that and waits for nothing.
    let mut heard = BufReader::new(approving.stderr.take().unwrap()).lines();
    while !timeout(PATIENCE, heard.next_line()).await.unwrap().unwrap().expect("it watches").contains("stamped ledger.append") {
    }
    let listen = server.url.strip_prefix("http://").unwrap().to_owned();
    server.kill().await;
    // The one who waits asks on until the next server is there.
    let next = sandbox.serve_with(&[("LEASEHOLD_SERVER_LISTEN", &listen)]).await;
    assert_eq!(next.url, elsewhere.url);
    let mut shown = String::new();
    while let Some(line) = timeout(PATIENCE, heard.next_line()).await.unwrap().unwrap() {
        shown += &(line + "\n");
    }
    assert_eq!(timeout(PATIENCE, approving.wait()).await.unwrap().unwrap().code(), Some(3), "{shown}");
    for part in ["in doubt: ledger.append t1c0", "The write in doubt", "resolve", "--fence-epoch"] {
        assert!(shown.contains(part), "{part} in:\n{shown}");
    }
    let inbox = elsewhere.leasehold(&["inbox"]).await.exits(0);
    assert!(inbox.out.contains("in doubt") && inbox.out.contains("ledger.append may have happened"), "{inbox:?}");

    let early = elsewhere.leasehold(&["resolve", &id, "--call", "t9c9", "--landed"]).await.exits(1);
    assert!(early.err.contains("error: stale_doubt: "), "{early:?}");
    let landed = ["resolve", &id, "--call", "t1c0", "--landed", "{\"ok\": true}", "--note", "I looked"];
    let resolved = elsewhere.leasehold(&landed).await.exits(0);
    assert_eq!(resolved.out.lines().count(), 1, "{resolved:?}");
    next.until_state(&id, "completed").await;
    let followed = elsewhere.leasehold(&["runs", "follow", &id]).await.exits(0);
    assert!(followed.out.contains("says it happened: t1c0 (I looked)"), "{followed:?}");
    assert_eq!(sandbox.far.arrived().len(), 1);
}

/// What a command prints here and there: the same once the clock stands still between the two.
async fn same(sandbox: &Sandbox, elsewhere: &Elsewhere, arguments: &[&str]) -> String {
    let mut shown = None;
    for _ in 0..10 {
        let here = sandbox.leasehold(arguments).await.exits(0);
        let there = elsewhere.leasehold(arguments).await.exits(0);
        if here.out == there.out {
            return there.out;
        }
        shown = Some((here, there));
    }
    panic!("{arguments:?}: {shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_is_what_the_store_shows() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let elsewhere = Elsewhere::of(&server);
    let none = elsewhere.leasehold(&["runs", "list"]).await.exits(0);
    assert!(none.out.is_empty() && none.err.contains(&format!("no such runs on {}", server.url)), "{none:?}");
    let none = elsewhere.leasehold(&["inbox"]).await.exits(0);
    assert!(none.out.is_empty() && none.err.contains("nothing waits for a person on"), "{none:?}");

    let (done, digest) = elsewhere.suspended().await;
    elsewhere.leasehold(&["approve", &done, "--digest", &digest]).await.exits(0);
    let (waits, _) = elsewhere.suspended().await;
    for arguments in [
        &["runs", "list"][..],
        &["runs", "list", "--json"],
        &["runs", "list", "--state", "completed", "--limit", "1", "--json"],
        &["runs", "list", "--limit", "1", "--json"],
        &["runs", "show", &done],
        &["runs", "show", &waits],
        &["runs", "show", &done, "--json"],
        &["runs", "show", &waits[28..], "--json"],
        &["runs", "follow", &done],
        &["runs", "follow", &done, "--json"],
        &["runs", "follow", &done, "--after", "3"],
        &["inbox"],
        &["inbox", "--json"],
        &["agents"],
        &["agents", "--json"],
        &["tools"],
        &["tools", "--why"],
        &["tools", "--json"],
    ] {
        let shown = same(&sandbox, &elsewhere, arguments).await;
        assert!(!shown.is_empty(), "{arguments:?}");
    }
    let raw = server.get(&format!("/runs/{waits}")).await.body;
    assert_eq!(elsewhere.leasehold(&["runs", "show", &waits, "--json"]).await.exits(0).out, format!("{raw}\n"));

    // An option instead of the variable is in the commands that are shown.
    let mut asked = command(elsewhere.dir.path(), &["--server", &server.url, "runs", "show", &waits]);
    asked.env("LEASEHOLD_TOKEN", TOKEN);
    let shown = said(asked).await.exits(0);
    assert!(shown.out.contains(&format!("    leasehold --server {} approve {waits} --digest", server.url)), "{shown:?}");

    let cancelled = elsewhere.leasehold(&["runs", "cancel", &waits, "--note", "enough"]).await.exits(0);
    assert_eq!(cancelled.out, "Cancelled.\n");
    let again = elsewhere.leasehold(&["runs", "redrive", &waits]).await.exits(1);
    assert!(again.err.contains("error: not_in_state: ") && again.err.contains("nothing was changed"), "{again:?}");
    let here = sandbox.leasehold(&["runs", "redrive", &waits]).await.exits(1);
    assert_eq!(here.err, again.err);
    for unknown in ["01234567-89ab-7cde-8123-456789abcdef", "ffff0000"] {
        let missing = elsewhere.leasehold(&["runs", "show", unknown]).await.exits(1);
        assert!(missing.err.contains(&format!("there is no run `{unknown}` on")), "{missing:?}");
    }
    elsewhere.leasehold(&["runs", "show", "xyz"]).await.exits(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_is_the_same_run_and_another_request_is_refused() {
    let sandbox = Sandbox::with_script("", "[[reply]]\ntext = \"hi\"\n").await;
    let server = sandbox.serve().await;
    let elsewhere = Elsewhere::of(&server);
    let queue = |what: &'static str| ["run", "--queue", "--key", "order-17", what];
    let first = elsewhere.leasehold(&queue("x")).await.exits(0).out;
    assert_eq!(elsewhere.leasehold(&queue("x")).await.exits(0).out, first);
    let other = elsewhere.leasehold(&queue("y")).await.exits(1);
    assert!(other.err.contains("error: key_conflict: "), "{other:?}");
    server.until_state(first.trim(), "completed").await;
    let run = elsewhere.leasehold(&["run", "x"]).await.exits(0);
    assert_eq!(run.out, "hi\n");
    let nobody = elsewhere.leasehold(&["run", "--agent", "nobody", "x"]).await.exits(2);
    assert!(nobody.err.contains("error: invalid_input: ") && nobody.err.contains("#/agent: "), "{nobody:?}");
    elsewhere.leasehold(&["run", "--unrecorded", "x"]).await.exits(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_missing_or_wrong_is_said_and_never_shown() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let elsewhere = Elsewhere::of(&server);
    let wrong = "another-token-0123456789abcdefghijk";
    for (token, mend) in [("", "set LEASEHOLD_TOKEN to one"), (wrong, "error: unauthenticated: ")] {
        for arguments in
            [&["inbox"][..], &["run", "--agent", "clerk", "x"], &["runs", "cancel", "01234567-89ab-7cde-8123-456789abcdef"]]
        {
            let mut asked = elsewhere.command(arguments);
            asked.env("LEASEHOLD_TOKEN", token).env("LEASEHOLD_LOG", "trace");
            let said = said(asked).await.exits(2);
            assert!(said.err.contains(mend) && said.err.contains("LEASEHOLD_TOKEN"), "{said:?}");
            assert!(!said.err.contains(wrong), "{said:?}");
        }
    }
    assert_eq!(server.get("/runs").await.is(200)["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_answer_or_is_no_server_is_said_with_what_may_have_been_done() {
    let sandbox = Sandbox::new("").await;
    let run = "01234567-89ab-7cde-8123-456789abcdef";
    let nobody = Elsewhere::at("http://127.0.0.1:1").leasehold(&["runs", "cancel", run]).await.exits(1);
    assert!(nobody.err.contains("does not answer") && nobody.err.contains("was not begun"), "{nobody:?}");
    let other = Elsewhere::at(sandbox.far.url("").trim_end_matches('/'));
    let redirect = Then::Redirect(sandbox.far.url("/there"));
    for (then, told) in [
        (Then::HangUp, "may or may not have been done"),
        (redirect, "a redirect, which is not followed"),
        (Then::Answer(200, "hi".into()), "this is no leasehold server"),
        (Then::Answer(502, "bad gateway".into()), "answered 502"),
        (Then::Json("[1]".into()), "not that of a leasehold server"),
    ] {
        let before = sandbox.far.arrived().len();
        sandbox.far.then([then.clone()]);
        let said = other.leasehold(&["resolve", run, "--call", "t1c0", "--fence-epoch", "1", "--abandon"]).await.exits(1);
        assert!(said.err.contains(told), "{then:?}: {said:?}");
        assert_eq!(sandbox.far.arrived().len(), before + 1, "{then:?}: it is sent once");
    }
    for wrong in ["http://agents.example.org", "ftp://h", "https://ann:secret-of-ann@h"] {
        let said = Elsewhere::at(wrong).leasehold(&["inbox"]).await.exits(2);
        assert!(said.err.contains("LEASEHOLD_URL") && !said.err.contains("secret-of-ann"), "{said:?}");
    }
    for arguments in [
        &["worker"][..],
        &["serve"],
        &["drill"],
        &["demo"],
        &["init"],
        &["migrate"],
        &["reap"],
        &["config"],
        &["token", "list"],
        &["user", "list"],
    ] {
        let said = other.leasehold(arguments).await.exits(2);
        assert!(said.err.contains(&format!("`{}` works on this machine", arguments[0])), "{said:?}");
    }
}

const ASKS: &str = r#"approval = "none"
input = { type = "object", properties = { text = { type = "string", minLength = 3, description = "What to note" } }, required = ["text"] }"#;

/// Bad values change nothing, good ones are written once.
async fn asks(sandbox: &Sandbox, run: &Said, leasehold: impl AsyncFn(&[&str]) -> Said) -> Value {
    for part in
        ["values are asked for", "- text: string, characters at least 3, required", "| What to note", " --values '{..}'"]
    {
        assert!(run.err.contains(part), "{part} in:\n{}", run.err);
    }
    assert!(!run.err.contains("leasehold approve"), "{}", run.err);
    let run = run.json();
    let (id, digest) = (text(&run, "/id"), text(&run, "/waiting/turn_digest"));
    assert_eq!(text(&run, "/waiting/kind"), "input");
    let before = sandbox.far.arrived().len();
    for (values, told) in [
        ("{\"text\": 7}", "\n  /text: "),
        ("{}", "\n  the values: "),
        ("{\"text\": \"long\", \"other\": 1}", "\n  /other: is not asked for"),
    ] {
        let bad = leasehold(&["input", &id, "--digest", &digest, "--values", values]).await.exits(2);
        assert!(bad.err.contains("error: invalid_input: the values do not fit; nothing was changed"), "{bad:?}");
        assert!(bad.err.contains(told), "{values}: {bad:?}");
    }
    let values = "{\"text\": \"by a person\"}";
    let nobody = leasehold(&["input", &id, "--values", values]).await.exits(2);
    assert!(nobody.err.contains("--digest"), "{nobody:?}");
    let stale = leasehold(&["input", &id, "--digest", "0", "--values", values]).await.exits(1);
    assert!(stale.err.contains("stale_turn"), "{stale:?}");
    leasehold(&["input", &id, "--digest", &digest, "--values", "[]"]).await.exits(2);
    assert_eq!(sandbox.far.arrived().len(), before);
    assert_eq!(text(&sandbox.show(&id).await, "/state"), "waiting_for_input");
    let done = leasehold(&["input", &id, "--digest", &digest, "--values", values]).await.exits(0);
    assert!(done.err.contains("filled in values for t1c0") && done.out == "It is done.\n", "{done:?}");
    let arrived = sandbox.far.arrived();
    assert_eq!(arrived.len(), before + 1);
    serde_json::from_slice(&arrived[before].body).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_given_on_the_store_and_at_a_server_alike() {
    let sandbox = Sandbox::new(ASKS).await;
    let run = sandbox.leasehold(&["run", "--json", "note hello"]).await.exits(3);
    let written = asks(&sandbox, &run, async |arguments: &[&str]| sandbox.leasehold(arguments).await).await;
    assert_eq!(written, json!({ "text": "by a person" }));
    let server = sandbox.serve().await;
    let elsewhere = Elsewhere::of(&server);
    let run = elsewhere.leasehold(&["run", "--json", "note hello"]).await.exits(3);
    let written = asks(&sandbox, &run, async |arguments: &[&str]| elsewhere.leasehold(arguments).await).await;
    assert_eq!(written, json!({ "text": "by a person" }));
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_from_a_file_or_standard_input_and_a_terminal_is_asked_before_they_are_given() {
    let sandbox = Sandbox::new(ASKS).await;
    sandbox.write("values.json", "{\"text\": \"from a file\"}");
    let suspended = async || {
        let run = sandbox.leasehold(&["run", "--json", "note hello"]).await.exits(3).json();
        (text(&run, "/id"), text(&run, "/waiting/turn_digest"))
    };
    let (id, digest) = suspended().await;
    let queued = ["input", &id, "--digest", &digest, "--values", "@values.json", "--no-wait"];
    sandbox.leasehold(&queued).await.exits(0);
    assert_eq!((text(&sandbox.show(&id).await, "/state"), sandbox.far.arrived().len()), ("queued".into(), 0));
    let (other, digest) = suspended().await;
    let mut asked = sandbox.command(&["input", &other, "--digest", &digest, "--values", "-"]);
    asked.stdin(std::fs::File::open(sandbox.path("values.json")).unwrap());
    said(asked).await.exits(0);
    let (third, _) = suspended().await;
    for (key, exit) in [("n", 3), ("y", 0)] {
        let mut terminal = sandbox.on_terminal(&["input", &third, "--values", "{\"text\": \"typed\"}"]);
        terminal.shows("Give these values? [y/N]").await;
        assert!(terminal.seen().contains("text: \"typed\""), "{}", terminal.seen());
        terminal.types(key);
        assert_eq!(terminal.exit().await, Some(exit), "{}", terminal.seen());
    }
    let server = sandbox.serve().await;
    let (last, _) = suspended().await;
    let mut terminal = sandbox.on_terminal_with(&["input", &last[28..], "--values", "{\"text\": \"typed\"}"], |command| {
        command.env("LEASEHOLD_URL", &server.url).env("LEASEHOLD_TOKEN", TOKEN);
    });
    terminal.shows("Give these values? [y/N]").await;
    terminal.types("y");
    assert_eq!(terminal.exit().await, Some(0), "{}", terminal.seen());
    let texts: Vec<String> = until(|| {
        // The queued one is taken by the server.
        let arrived = sandbox.far.arrived();
        (arrived.len() == 4).then(|| arrived.iter().map(leasehold_testkit::far_side::Arrived::text).collect())
    })
    .await;
    let of = |part: &str| texts.iter().filter(|text| text.contains(part)).count();
    assert_eq!((of("from a file"), of("typed")), (2, 2), "{texts:?}");
}
