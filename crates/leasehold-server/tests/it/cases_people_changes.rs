//! What a run waits for changes under it: the configuration is another when the person decides, or the server was started anew many
//! times. What is not as it was shown is not done: the run waits again and says what has changed, or nobody goes on with it and it says
//! who is missing. A denial is taken in every case.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{
    self, Sandbox,
    api::{Answer, Server, TOKEN},
    kinds,
    people::decision,
    text,
};
use leasehold_testkit::far_side::Then;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

type Change = &'static [(&'static str, &'static str)];

/// Runs that wait, each with the digest of its card, and a server with the changed configuration.
struct Changed {
    sandbox: Sandbox,
    server: Server,
    approved: (String, String),
    denied: (String, String),
}

impl Changed {
    async fn under(change: Change) -> Self {
        let sandbox = Sandbox::new("").await;
        let server = sandbox.serve().await;
        let (approved, denied) = (server.suspended().await, server.suspended().await);
        server.kill().await;
        sandbox.change(change);
        let server = sandbox.serve().await;
        Self { sandbox, server, approved, denied }
    }
    async fn run(&self, id: &str) -> Value {
        self.server.get(&format!("/runs/{id}")).await.is(200)
    }
    async fn says(&self, (id, digest): &(String, String), word: &str) -> Answer {
        self.server.post(&format!("/runs/{id}/decision?wait=true&timeout=1"), decision(digest, word)).await
    }
    /// The approval does not count for what is there now: the run waits again and says what has changed. Denied, either run ends.
    async fn waits_again(&self, why: &str) {
        let (id, digest) = &self.approved;
        let run = self.says(&self.approved, "approve").await.is(200);
        assert_eq!(run["state"], "waiting_for_approval", "{why}: {run}");
        let run = self.run(id).await;
        let told = text(&run, "/waiting/calls/0/why");
        assert!(told.contains(why), "{why}: {run}");
        let again = text(&run, "/waiting/turn_digest");
        assert_ne!(&again, digest, "{why}");
        // The same in words, and what was decided about is not what waits.
        let plain = self.server.request(Method::GET, &format!("/runs/{id}")).header("accept", "text/plain");
        let screen = Answer::of(plain).await.body;
        let shown = screen.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.contains("asked, as") && shown.contains(why.split(':').next().unwrap()), "{why}: {screen}");
        self.says(&self.approved, "deny").await.problem(409, "stale_turn");
        assert_eq!(self.says(&(id.clone(), again), "deny").await.is(200)["state"], "completed", "{why}");
        self.denial_works().await;
        assert_eq!(self.sandbox.far.arrived().len(), 0, "{why}");
    }
    /// A denial of the first card is taken, and the run ends with it.
    async fn denial_works(&self) {
        let (id, _) = &self.denied;
        assert_eq!(self.says(&self.denied, "deny").await.is(200)["state"], "completed");
        let stands = self.sandbox.stands(&self.server, id).await;
        let outcome = stands.journal.iter().find(|event| event["kind"] == "tool_outcome").unwrap();
        assert_eq!(outcome["payload"]["outcome"], "denied");
        assert!(!kinds(&stands.journal).contains(&"write_stamped".to_owned()));
    }
}

/// While it waits, the tool of the call gets another address, other arguments, another effect, another policy of approval, or is
/// offered to its agent no more.
#[tokio::test]
async fn a_tool_that_changed_while_a_run_waits_is_shown_again_with_what_has_changed() {
    let changes: [(Change, &str); 6] = [
        (&[("/append\"", "/elsewhere\"")], "the tool changed since it was approved: endpoint: \"POST http://127.0.0.1:"),
        (&[("required = [\"text\"]", "required = [\"text\"], maxProperties = 1")], "since it was approved: schema: "),
        (
            &[("effect = \"non_idempotent_write\"", "effect = \"idempotent_write\"")],
            "effect: \"non_idempotent_write\" -> \"idempotent_write\"",
        ),
        (
            &[("effect = \"non_idempotent_write\"", "effect = \"non_idempotent_write\"\napproval = \"none\"")],
            "approval: \"required\" -> \"none\"",
        ),
        (
            &[("effect = \"non_idempotent_write\"", "effect = \"read_only\"")],
            "effect: \"non_idempotent_write\" -> \"read_only\"",
        ),
        (&[("tools = [\"ledger.*\"]", "tools = []")], "`ledger.append` is not offered any more"),
    ];
    for (change, why) in changes {
        Changed::under(change).await.waits_again(why).await;
    }
}

/// A tool is declared as one that only reads while a call of it waits as a write. Whoever approves that, too, does not make it a call
/// without a stamp: it is refused, and the run goes on.
#[tokio::test]
async fn a_write_that_is_called_a_read_now_is_refused_and_not_sent_without_a_stamp() {
    let changed = Changed::under(&[("effect = \"non_idempotent_write\"", "effect = \"read_only\"")]).await;
    let (id, _) = &changed.approved;
    changed.says(&changed.approved, "approve").await.is(200);
    let again = text(&changed.run(id).await, "/waiting/turn_digest");
    changed.server.post(&format!("/runs/{id}/decision"), decision(&again, "approve")).await.is(202);
    let run = changed.server.until_state(id, "completed").await;
    assert_eq!((&run["requeues"], changed.sandbox.far.arrived().len()), (&0.into(), 0), "{run}");
    let stands = changed.sandbox.stands(&changed.server, id).await;
    let outcome = stands.journal.iter().find(|event| event["kind"] == "tool_outcome").unwrap();
    assert_eq!(outcome["payload"]["outcome"], "refused");
    assert!(text(outcome, "/payload/result").contains("not offered as a write any more"), "{outcome}");
}

/// Two calls of a turn: one runs without a person, the other waits. While it waits the first becomes a write, or a write that has to be
/// approved. The approval of the other one does not release it: it is refused, or a person is asked about it by itself.
#[tokio::test]
async fn a_call_that_needed_nobody_and_does_by_now_is_not_released_by_the_approval_of_another() {
    let script = r#"
[[reply]]
calls = [
  { tool = "ledger.look", arguments = {} },
  { tool = "ledger.append", arguments = { text = "hello" } },
]
[[reply]]
text = "Done."
"#;
    const WRITE: &str = "effect = \"idempotent_write\"\napproval = \"none\"\n";
    for (before, now, asked) in [
        ("effect = \"read_only\"\n", "effect = \"idempotent_write\"\n", false),
        ("effect = \"read_only\"\n", WRITE, false),
        (WRITE, "effect = \"idempotent_write\"\napproval = \"required\"\n", true),
    ] {
        let sandbox = Sandbox::with_script("", script).await;
        let url = sandbox.far.url("/look");
        let look = format!(
            "[[tool.http]]\nname = \"ledger.look\"\ndescription = \"Look\"\nmethod = \"POST\"\nurl = \"{url}\"\n{before}[[tool.http]]"
        );
        sandbox.change(&[("[[tool.http]]", &look)]);
        let server = sandbox.serve().await;
        let (id, digest) = server.suspended().await;
        assert_eq!(sandbox.far.arrived().len(), 0, "no call of a turn runs before its people have spoken");
        server.kill().await;
        sandbox.change(&[(before, now)]);
        let server = sandbox.serve().await;
        server.post(&format!("/runs/{id}/decision?wait=true"), decision(&digest, "approve")).await.is(200);
        let run = server.get(&format!("/runs/{id}")).await.is(200);
        if asked {
            assert_eq!((&run["state"], sandbox.far.arrived().len()), (&"waiting_for_approval".into(), 0), "{run}");
            assert_eq!(run["waiting"]["calls"][0]["tool"], "ledger.look");
            assert!(text(&run, "/waiting/calls/0/why").contains("waits for an approval now"), "{run}");
            let again = text(&run, "/waiting/turn_digest");
            server.post(&format!("/runs/{id}/decision?wait=true"), decision(&again, "deny")).await.is(200);
        }
        let run = server.until_state(&id, "completed").await;
        let arrived: Vec<String> = sandbox.far.arrived().iter().map(|request| request.uri.path().to_owned()).collect();
        assert_eq!((arrived, &run["requeues"]), (vec!["/append".to_owned()], &0.into()), "{before}{now}: {run}");
    }
}

/// The agent wants a second person from now on. Whoever started the run has approved it, before or after that: it waits again and says
/// so, as often as they approve; another person's approval counts.
#[tokio::test]
async fn an_agent_that_wants_a_second_person_by_now_is_not_satisfied_by_who_started_the_run() {
    const TIGHTER: Change = &[("tools = [\"ledger.*\"]", "tools = [\"ledger.*\"]\nrequire_second_approver = true")];
    const WHY: &str = "agent `clerk` wants a second person now, and user:admin has started this run";
    Changed::under(TIGHTER).await.waits_again(WHY).await;

    // Approved before, and not gone on with.
    let sandbox = Sandbox::new("").await;
    let anna = sandbox.person("anna", "approver", &["ledger.*"]).await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let (other, its) = server.suspended().await;
    server.kill().await;
    let server = sandbox.serve_with(&[("LEASEHOLD_SERVER_EXECUTE", "false")]).await;
    assert_eq!(server.post(&format!("/runs/{id}/decision"), decision(&digest, "approve")).await.is(202)["state"], "queued");
    server.kill().await;
    sandbox.change(TIGHTER);
    let server = sandbox.serve().await;
    let mut run = server.until_state(&id, "waiting_for_approval").await;
    for _ in 0..3 {
        assert!(text(&run, "/waiting/calls/0/why").contains(WHY), "{run}");
        let again = decision(&text(&run, "/waiting/turn_digest"), "approve");
        server.post(&format!("/runs/{id}/decision?wait=true"), again).await.is(200);
        run = server.get(&format!("/runs/{id}")).await.is(200);
        assert_eq!((&run["state"], sandbox.far.arrived().len()), (&"waiting_for_approval".into(), 0));
    }
    anna.decides(&server, (&id, &text(&run, "/waiting/turn_digest")), "approve").await.is(202);
    server.until_state(&id, "completed").await;
    assert_eq!(sandbox.far.arrived().len(), 1);
    // Another person's first approval counts at once.
    anna.decides(&server, (&other, &its), "approve").await.is(202);
    server.until_state(&other, "completed").await;
    assert_eq!(sandbox.far.arrived().len(), 2);
}

/// The tool, the agent or what its model needs is gone when the person decides. The word is taken, nobody goes on with the run, and it
/// says what is missing; when that is back the run goes on, and a denied call is never made.
#[tokio::test]
async fn where_tool_agent_or_model_are_gone_nothing_runs_and_the_run_says_what_is_missing() {
    let changes: [(Change, &str, &str); 3] = [
        (&[("name = \"ledger.append\"", "name = \"ledger.other\"")], "has tool `ledger.append`", "completed"),
        (&[("name = \"clerk\"", "name = \"other\"")], "no live worker serves agent `clerk`", "queued"),
        (
            &[(
                "provider = \"scripted\"\nscript = \"script.toml\"",
                "provider = \"openai\"\nmodel = \"m\"\napi_key_env = \"NO_SUCH_KEY\"",
            )],
            "no live worker serves agent `clerk`",
            "queued",
        ),
    ];
    for (change, missing, after_denial) in changes {
        let changed = Changed::under(change).await;
        let (approved, _) = &changed.approved;
        assert_eq!(changed.says(&changed.approved, "approve").await.is(202)["state"], "queued");
        assert_eq!(changed.says(&changed.denied, "deny").await.json()["state"], after_denial, "{missing}");
        let run = changed.run(approved).await;
        assert!(text(&run, "/unserved").contains(missing), "{missing}: {run}");
        assert_eq!(changed.sandbox.far.arrived().len(), 0, "{missing}");

        let Changed { sandbox, server, approved: (approved, _), denied: (denied, _) } = changed;
        server.kill().await;
        for (old, new) in change {
            sandbox.change(&[(new, old)]);
        }
        let server = sandbox.serve().await;
        let run = server.until_state(&approved, "completed").await;
        assert_eq!(run.get("unserved"), None, "{run}");
        server.until_state(&denied, "completed").await;
        assert_eq!(sandbox.far.arrived().len(), 1, "{missing}");
    }
}

/// The model that the agent names is taken out of the configuration: no server starts with that, it says why, and the run waits.
#[tokio::test]
async fn a_configuration_without_the_agents_model_starts_no_server_and_the_run_waits_on() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    server.kill().await;
    let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    sandbox.change(&[("name = \"default\"", "name = \"other\"")]);
    let mut command = sandbox.command(&["serve"]);
    command.env("LEASEHOLD_SERVER_LISTEN", "127.0.0.1:0").env("LEASEHOLD_ADMIN_TOKEN", TOKEN);
    let said = support::said(command).await.exits(2);
    assert!(said.err.contains("model") && said.err.contains("default"), "{said:?}");
    sandbox.write("leasehold.toml", &config);
    let server = sandbox.serve().await;
    let done = server.post(&format!("/runs/{id}/decision?wait=true"), decision(&digest, "approve")).await.is(200);
    assert_eq!((&done["state"], sandbox.far.arrived().len()), (&"completed".into(), 1));
}

/// The instruction, the description of the tool, its timeout and the model's script are others: what was shown is still what runs, so
/// the approval counts.
#[tokio::test]
async fn what_was_not_on_the_card_may_change_while_a_run_waits() {
    let changes: [Change; 3] = [
        &[("tools = [\"ledger.*\"]", "tools = [\"ledger.*\"]\nsystem = \"Be brief.\"")],
        &[("Append one line", "Append a line to the ledger")],
        &[("timeout = \"2s\"", "timeout = \"20s\"")],
    ];
    for change in changes {
        let changed = Changed::under(change).await;
        assert_eq!(changed.says(&changed.approved, "approve").await.is(200)["state"], "completed", "{change:?}");
        changed.denial_works().await;
        let arrived = changed.sandbox.far.arrived();
        assert_eq!((arrived.len(), arrived[0].text()), (1, json!({ "text": "hello" }).to_string()), "{change:?}");
    }
}

/// Values were asked for when the tool went elsewhere. They are not sent there: a person is asked about the call as it is now.
#[tokio::test]
async fn values_for_a_tool_that_goes_elsewhere_now_are_shown_before_they_are_sent() {
    let asks = "approval = \"none\"\ninput = { type = \"object\", properties = { text = { type = \"string\" } }, required = [\"text\"] }";
    let sandbox = Sandbox::new(asks).await;
    let server = sandbox.serve().await;
    let run = server.post("/runs", json!({ "agent": "clerk", "input": "note", "mode": "wait" })).await.is(200);
    let (id, digest) = (text(&run, "/id"), text(&run, "/waiting/turn_digest"));
    server.kill().await;
    sandbox.change(&[("/append\"", "/elsewhere\"")]);
    let server = sandbox.serve().await;
    let values = json!({ "turn_digest": digest, "values": { "text": "by a person" } });
    server.post(&format!("/runs/{id}/input?wait=true"), values).await.is(200);
    let run = server.get(&format!("/runs/{id}")).await.is(200);
    assert_eq!((text(&run, "/state").as_str(), sandbox.far.arrived().len()), ("waiting_for_approval", 0), "{run}");
    assert!(text(&run, "/waiting/calls/0/why").contains("endpoint: "), "{run}");
    assert_eq!(run["waiting"]["calls"][0]["arguments"], json!({ "text": "by a person" }));
    let again = text(&run, "/waiting/turn_digest");
    server.post(&format!("/runs/{id}/decision?wait=true"), decision(&again, "deny")).await.is(200);
    assert_eq!(sandbox.far.arrived().len(), 0);
}

/// Twenty times the server is ended or killed and started anew with another instruction while the run waits. The digest of the first
/// card still decides, and the write is made once.
#[tokio::test]
async fn a_run_that_waits_through_twenty_restarts_is_decided_with_its_first_card() {
    let sandbox = Sandbox::new("").await;
    let mut server = sandbox.serve().await;
    let (id, digest) = server.suspended().await;
    let waits = sandbox.stands(&server, &id).await;
    let mut prompt = "tools = [\"ledger.*\"]".to_owned();
    for restart in 0..20 {
        if restart % 2 == 0 {
            server.signal(Signal::TERM);
            let (code, said) = server.ended().await;
            assert_eq!(code, Some(0), "restart {restart}: {said}");
        } else {
            server.kill().await;
        }
        let next = format!("system = \"Instruction {restart}.\"\ntools = [\"ledger.*\"]");
        sandbox.change(&[(&prompt, &next)]);
        prompt = next;
        server = sandbox.serve().await;
        assert_eq!(sandbox.stands(&server, &id).await, waits, "restart {restart}");
    }
    sandbox.far.then([Then::Json("{\"line\": 7}".into())]);
    let done = server.post(&format!("/runs/{id}/decision?wait=true"), decision(&digest, "approve")).await.is(200);
    assert_eq!((&done["state"], sandbox.far.arrived().len()), (&"completed".into(), 1), "{done}");
}
