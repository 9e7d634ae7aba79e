//! Writes over MCP against real servers: what each kind of answer, or the lack of one, means, and what goes out with a call.

use super::{super::http::ConfiguredApproval, *};
use crate::{
    agent::tool::{Arguments, Tool, WriteAnswer, WritePermit},
    clock::{BootClock as _, ManualClock},
    run::{CallId, RunId},
    worker::trust::TrustWindow,
};
use leasehold_testkit::mcp::{self, HttpServer};
use serde_json::{Value, json};
use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// A lease of a minute, and a write under it.
struct Lease {
    clock: Arc<ManualClock>,
    trust: Arc<TrustWindow>,
    run: RunId,
}

impl Lease {
    fn new() -> Self {
        let clock = ManualClock::new();
        let trust = TrustWindow::new(clock.clone(), Duration::from_secs(60), clock.now());
        Self { clock, trust, run: RunId::new() }
    }

    fn permit(&self) -> WritePermit {
        WritePermit::for_test(self.run, CallId::of(1, 0), 7, Arc::clone(&self.trust))
    }

    async fn write(&self, tool: &Tool, arguments: Value) -> WriteAnswer {
        let Tool::Write(tool, _) = tool else { panic!("{tool:?} is no write") };
        let arguments: Arguments = arguments.as_object().unwrap().clone();
        tool.call(self.permit(), &arguments).await
    }
}

async fn tool(server: &McpServer, name: &str) -> Tool {
    let offered = server.tools(&server.list().await.unwrap()).unwrap();
    let name = format!("{}.{name}", server.name());
    offered.tools.into_iter().find(|tool| tool.spec().name == name).unwrap()
}

/// A file that a tool appends to.
struct Ledger {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Ledger {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { path: folder.path().join("ledger"), _folder: folder }
    }
    fn line(&self) -> Value {
        json!({ "path": self.path, "text": "pier 2" })
    }
    fn lines(&self) -> usize {
        std::fs::read_to_string(&self.path).unwrap_or_default().lines().count()
    }
}

fn own(name: &str, command: Vec<String>) -> McpConfig {
    // Python takes its time to start on a busy machine.
    McpConfig { timeout: Some(Duration::from_secs(30)), ..McpConfig::command(name, command) }
}

#[tokio::test]
async fn a_write_carries_its_key_run_and_token_and_puts_the_key_where_it_is_told() {
    let Some(command) = mcp::own().await else { return };
    let mut config = own("own", command);
    config.idempotency_argument.insert("meta".into(), "key".into());
    let server = McpServer::new(config).unwrap();
    let meta = tool(&server, "meta").await;
    assert!(meta.spec().parameters["properties"].get("key").is_none(), "the model does not see it");
    let lease = Lease::new();
    let permit = lease.permit();
    let WriteAnswer::Done { result, is_error: false } = lease.write(&meta, json!({})).await else { panic!("it answers") };
    let expected = json!({
        "leasehold/idempotency-key": permit.idempotency_key(),
        "leasehold/run": lease.run.to_string(),
        "leasehold/fencing-token": 7,
    });
    assert_eq!((&result["meta"], &result["key"]), (&expected, &json!(permit.idempotency_key())));
}

#[tokio::test]
async fn an_error_of_the_tool_is_an_answer_unless_the_operator_knows_better() {
    let Some(command) = mcp::own().await else { return };
    let ledger = Ledger::new();
    for outcome in [ErrorOutcome::Done, ErrorOutcome::Unknown] {
        let mut config = own("own", command.clone());
        config.error_outcome.insert("append_and_fail".into(), outcome);
        let server = McpServer::new(config).unwrap();
        let answer = Lease::new().write(&tool(&server, "append_and_fail").await, ledger.line()).await;
        match (outcome, answer) {
            (ErrorOutcome::Done, WriteAnswer::Done { result, is_error: true }) => {
                assert!(result.as_str().unwrap().contains("failed after it"), "{result}");
            }
            (ErrorOutcome::Unknown, WriteAnswer::Unknown { why }) => assert!(why.contains("failed after it"), "{why}"),
            (_, answer) => panic!("{outcome:?}: {answer:?}"),
        }
    }
    assert_eq!(ledger.lines(), 2);
}

#[tokio::test]
async fn a_write_that_is_sent_and_not_answered_is_unknown_and_never_sent_again() {
    let Some(command) = mcp::own().await else { return };
    for (name, within) in [("append_and_die", Duration::from_secs(4)), ("append_and_hang", Duration::from_secs(12))] {
        let ledger = Ledger::new();
        let config = own("own", command.clone());
        let hangs = McpConfig { timeout: Some(Duration::from_secs(10)), ..config.clone() };
        let server = McpServer::new(if name == "append_and_hang" { hangs } else { config }).unwrap();
        let tool = tool(&server, name).await;
        let begun = Instant::now();
        let answer = Lease::new().write(&tool, ledger.line()).await;
        assert!(matches!(answer, WriteAnswer::Unknown { .. }), "{name}: {answer:?}");
        assert!(begun.elapsed() < within, "{name}: {:?}", begun.elapsed());
        server.ping().await.unwrap();
        assert_eq!((ledger.lines(), server.health().restarts), (1, 1), "{name}");
    }
}

/// A server that lists one tool and answers its call with this message.
fn answering(answer: &str) -> McpServer {
    after_the_handshake(&format!(
        r#"read list; echo '{{"jsonrpc":"2.0","id":2,"result":{{"tools":[{{"name":"write","inputSchema":{{"type":"object"}}}}]}}}}'
        read call; echo '{answer}'; read more"#
    ))
}

#[tokio::test]
async fn each_kind_of_answer_means_what_the_protocol_says() {
    let error = |code: i32| format!(r#"{{"jsonrpc":"2.0","id":3,"error":{{"code":{code},"message":"so it says"}}}}"#);
    let result = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":3,"result":{result}}}"#);
    for (answer, expected) in [
        (error(-32602), "no"),
        (error(-32601), "no"),
        (error(-32603), "unknown"),
        (error(-32600), "unknown"),
        (error(-32000), "unknown"),
        (error(401), "unknown"),
        (result(r#"{"content":[{"type":"text","text":"so it says"}]}"#), "yes"),
        (result(r#"{"content":[{"type":"text","text":"so it says"}],"isError":true}"#), "no"),
        (result(r#"{"content":[{"type":"text","text":1}]}"#), "unknown"),
        (result(r#"{"tools":[]}"#), "unknown"),
        (result(r#"{"resultType":"input_required","inputRequests":{},"requestState":"s"}"#), "no"),
        (
            result(
                r#"{"resultType":"task","taskId":"t","status":"working","createdAt":"2026-12-01T00:00:00Z","lastUpdatedAt":"2026-12-01T00:00:00Z","ttlMs":1}"#,
            ),
            "unknown",
        ),
    ] {
        let server = answering(&answer);
        let said = Lease::new().write(&tool(&server, "write").await, json!({})).await;
        let is = match &said {
            WriteAnswer::Done { is_error: false, .. } => "yes",
            WriteAnswer::Done { is_error: true, .. } => "no",
            WriteAnswer::Unknown { .. } => "unknown",
            WriteAnswer::NeedsInput(_) => "asks",
            WriteAnswer::NotApplied { .. } | WriteAnswer::NotStarted { .. } => "nothing sent",
        };
        assert_eq!(is, expected, "{answer}: {said:?}");
    }
}

/// A server of the old handshake in a shell, which goes on with this script.
fn after_the_handshake(script: &str) -> McpServer {
    let script = format!(
        r#"
        read discover; echo '{{"jsonrpc":"2.0","id":0,"error":{{"code":-32601,"message":"no"}}}}'
        read initialize; echo '{{"jsonrpc":"2.0","id":1,"result":{{"protocolVersion":"2025-06-18","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"s","version":"1"}}}}}}'
        read initialized
        {script}"#
    );
    McpServer::new(own("shell", ["sh", "-c", &script].map(str::to_owned).to_vec())).unwrap()
}

#[tokio::test]
async fn a_server_that_asks_for_a_person_a_model_or_our_files_gets_a_reason_and_no_answer() {
    let ledger = Ledger::new();
    let questions = [
        r#""elicitation/create","params":{"message":"Sure?","requestedSchema":{"type":"object","properties":{}}}"#,
        r#""sampling/createMessage","params":{"messages":[],"maxTokens":1}"#,
        r#""roots/list""#,
    ];
    let asking = questions.iter().enumerate().map(|(id, question)| {
        format!(
            "echo '{{\"jsonrpc\":\"2.0\",\"id\":\"q{id}\",\"method\":{question}}}'; read answer; echo \"$answer\" >> {}\n",
            ledger.path.display()
        )
    });
    let server = after_the_handshake(&format!(
        r#"read list; echo '{{"jsonrpc":"2.0","id":2,"result":{{"tools":[{{"name":"write","inputSchema":{{"type":"object"}}}}]}}}}'
        read call
        {}
        echo '{{"jsonrpc":"2.0","id":3,"result":{{"content":[{{"type":"text","text":"without you"}}]}}}}'; read more"#,
        asking.collect::<String>()
    ));
    let answer = Lease::new().write(&tool(&server, "write").await, json!({})).await;
    assert_eq!(answer, WriteAnswer::done("without you"));
    let answers = std::fs::read_to_string(&ledger.path).unwrap();
    let answers: Vec<Value> = answers.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), questions.len());
    for (id, answer) in answers.iter().enumerate() {
        assert_eq!(answer["id"], format!("q{id}"));
        assert!(answer.get("result").is_none() && answer["error"]["code"].is_number(), "{answer}");
    }
    assert!(answers[0]["error"]["message"].as_str().unwrap().contains("`questions` is not set"), "{}", answers[0]);
}

#[tokio::test]
async fn pages_are_followed_as_far_as_a_list_may_go() {
    use crate::limits::{MCP_PAGES_MAX, MCP_TOOLS_MAX};
    // Each page names the next until the last, with so many tools a page.
    let pages = async |pages: usize, tools: usize| {
        let ledger = Ledger::new();
        let page: Vec<Value> =
            (0..tools).map(|n| json!({ "name": format!("t{n}"), "inputSchema": { "type": "object" } })).collect();
        std::fs::write(&ledger.path, serde_json::to_string(&page).unwrap()).unwrap();
        let server = after_the_handshake(&format!(
            r#"n=1; while read list; do
                n=$((n+1)); [ $n -le {pages} ] && next=',"nextCursor":"'$n'"' || next=
                printf '{{"jsonrpc":"2.0","id":%s,"result":{{"tools":%s%s}}}}\n' $n "$(cat {})" "$next"
            done"#,
            ledger.path.display()
        ));
        server.list().await.map(|tools| tools.len())
    };
    assert_eq!(pages(1, 3).await, Ok(3));
    assert_eq!(pages(MCP_PAGES_MAX, 1).await, Ok(MCP_PAGES_MAX));
    assert!(matches!(pages(MCP_PAGES_MAX + 1, 1).await, Err(McpError::Undecodable(why)) if why.contains("pages")));
    assert_eq!(pages(2, MCP_TOOLS_MAX / 2).await, Ok(MCP_TOOLS_MAX));
    assert!(matches!(pages(1, MCP_TOOLS_MAX + 1).await, Err(McpError::Undecodable(why)) if why.contains("tools")));
}

#[tokio::test]
async fn a_write_that_finds_no_connection_has_not_happened() {
    let missing = McpServer::new(own("no", vec!["/nowhere/at-all".into()])).unwrap();
    let definition = Definition {
        name: "write".into(),
        title: None,
        description: String::new(),
        input_schema: json!({ "type": "object" }),
        output_schema: None,
        annotations: None,
    };
    let tool = |server: &McpServer| server.tools(std::slice::from_ref(&definition)).unwrap().tools.remove(0);
    let mut mute = own("mute", ["sleep", "600"].map(str::to_owned).to_vec());
    mute.timeout = Some(Duration::from_secs(1));
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let gone = McpConfig::url("gone", format!("http://{gone}/mcp"));
    for server in [missing, McpServer::new(mute).unwrap(), McpServer::new(gone).unwrap()] {
        let answer = Lease::new().write(&tool(&server), json!({})).await;
        assert!(matches!(answer, WriteAnswer::NotApplied { .. }), "{server:?}: {answer:?}");
    }
}

#[tokio::test]
async fn nothing_is_sent_once_the_lease_is_not_certain() {
    let Some(command) = mcp::own().await else { return };
    let ledger = Ledger::new();
    let far = HttpServer::start(command.clone()).await;
    for config in [own("own", command.clone()), McpConfig::url("http", far.url())] {
        let server = McpServer::new(config).unwrap();
        let append = tool(&server, "append").await;
        let lease = Lease::new();
        lease.trust.lose();
        let answer = lease.write(&append, ledger.line()).await;
        assert!(matches!(answer, WriteAnswer::NotStarted { .. }), "{answer:?}");
    }
    // It ends while the connection is made, which is after the first look: a server that takes its time to shake hands.
    let slow = ["sh", "-c", r#"read go < "$2"; exec "$0" "$1""#].map(str::to_owned);
    let fifo = ledger.path.with_extension("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let slow = slow.into_iter().chain(command.clone()).chain([fifo.display().to_string()]).collect();
    let listed = McpServer::new(own("slow", command)).unwrap();
    let server = McpServer::new(own("slow", slow)).unwrap();
    let tools = server.tools(&listed.list().await.unwrap()).unwrap().tools;
    let append = tools.into_iter().find(|tool| tool.spec().name == "slow.append").unwrap();
    let lease = Lease::new();
    let writing = lease.write(&append, ledger.line());
    let meanwhile = async {
        lease.clock.advance(Duration::from_secs(50));
        // Opens only where the server's shell reads from it, which is while the write waits for the handshake.
        tokio::fs::write(&fifo, "go\n").await.unwrap();
    };
    let (answer, ()) = tokio::join!(writing, meanwhile);
    assert!(matches!(answer, WriteAnswer::NotStarted { .. }), "{answer:?}");
    assert_eq!(ledger.lines(), 0);
}

#[tokio::test]
async fn a_restart_between_two_writes_over_http_is_no_doubt() {
    let Some(program) = mcp::npm("mcp-server-everything").await else { return };
    let mut far = HttpServer::start(vec![program, "streamableHttp".into()]).await;
    let server = McpServer::new(McpConfig::url("every", far.url())).unwrap();
    let sum = tool(&server, "get-sum").await;
    let lease = Lease::new();
    let done =
        async || matches!(lease.write(&sum, json!({ "a": 2, "b": 40 })).await, WriteAnswer::Done { is_error: false, .. });
    assert!(done().await);
    far.restart().await;
    // The old session would answer 400, after which nothing is known: it is asked for a sign of life first.
    assert!(done().await);
    assert_eq!(server.health().restarts, 1);
}

#[test]
fn effects_and_approvals_are_the_operators_whatever_the_server_says() {
    let definition = |name: &str| Definition {
        name: name.into(),
        title: Some("Reads".into()),
        description: String::new(),
        input_schema: json!({ "type": "object" }),
        output_schema: None,
        annotations: Some(json!({ "readOnlyHint": true, "idempotentHint": true, "destructiveHint": false })),
    };
    let all = [definition("look"), definition("put"), definition("send"), definition("wipe")];
    let config = |extra: &str| -> McpConfig {
        let text = format!(
            "name = \"files\"\ncommand = [\"true\"]\n{extra}\neffects = {{ look = \"read_only\", put = \"idempotent_write\" }}"
        );
        toml::from_str(&text).unwrap()
    };
    for (extra, put, wipe) in [
        ("", "required", "required"),
        ("requires_approval = true", "required", "required"),
        ("requires_approval = false", "none", "none"),
        ("approval = { put = \"none\" }", "none", "required"),
        ("requires_approval = false\napproval = { wipe = \"required\" }", "none", "required"),
    ] {
        let server = McpServer::new(config(extra)).unwrap();
        let offered = server.tools(&all).unwrap();
        assert_eq!(offered.refused, []);
        let seen: Vec<_> = offered.tools.iter().map(|tool| (tool.effect().to_string(), tool.approval().as_str())).collect();
        let expected =
            [("read_only", "none"), ("idempotent_write", put), ("non_idempotent_write", put), ("non_idempotent_write", wipe)];
        let send = if extra.contains("put = ") { "required" } else { put };
        for (index, (effect, approval)) in expected.into_iter().enumerate() {
            let approval = if index == 2 { send } else { approval };
            assert_eq!(seen[index], (effect.to_owned(), approval), "{extra}: {index}");
        }
    }
    for text in ["\"\"", "2", "\"no\"", "\"false\"", "[]"] {
        let error =
            toml::from_str::<McpConfig>(&format!("name = \"a\"\nurl = \"http://a\"\nrequires_approval = {text}")).unwrap_err();
        assert!(error.to_string().contains("expected a boolean"), "{text}: {error}");
    }
    let null: McpConfig =
        serde_json::from_value(json!({ "name": "a", "command": ["true"], "requires_approval": null })).unwrap();
    let offered = McpServer::new(null).unwrap().tools(&[definition("put")]).unwrap();
    assert_eq!(offered.tools[0].approval().as_str(), "required");
}

#[test]
fn tools_that_cannot_be_told_apart_or_carried_are_refused_with_the_reason() {
    let definition = |name: &str| Definition {
        name: name.into(),
        title: None,
        description: "Writes".into(),
        input_schema: json!({ "type": "object", "properties": { "text": {} } }),
        output_schema: None,
        annotations: None,
    };
    let server = McpServer::new(McpConfig::command("files", ["true"])).unwrap();
    let all = ["put", "twice", "twice", "two words", "fine.name/x"].map(definition);
    let offered = server.tools(&all).unwrap();
    let names: Vec<&str> = offered.tools.iter().map(|tool| tool.spec().name.as_str()).collect();
    assert_eq!(names, ["files.put", "files.fine.name/x"]);
    let refused: Vec<(&str, bool)> = offered.refused.iter().map(|r| (r.tool.as_str(), r.why.contains("two tools"))).collect();
    assert_eq!(refused, [("twice", true), ("twice", true), ("two words", false)]);

    let mut config = McpConfig::command("files", ["true"]);
    config.approval.insert("putt".into(), ConfiguredApproval::Required);
    let error = McpServer::new(config).unwrap().tools(&all).unwrap_err();
    assert_eq!(error.key, "approval.putt");
    assert!(error.to_string().contains("it has: fine.name/x, put"), "{error}");
    let mut config = McpConfig::command("files", ["true"]);
    config.idempotency_argument.insert("put".into(), "key".into());
    let offered = McpServer::new(config).unwrap().tools(&all).unwrap();
    assert!(offered.refused[0].why.contains("none of its arguments"), "{:?}", offered.refused);
}

#[test]
fn a_configuration_that_contradicts_itself_names_the_key_and_the_mend() {
    for (text, key) in [
        ("", "command"),
        ("command = []", "command"),
        ("command = [\"\"]", "command"),
        ("command = [\"a\"]\nurl = \"http://a\"", "url"),
        ("command = [\"a\"]\nheaders = { a = \"b\" }", "headers"),
        ("url = \"http://a\"\nenv = { A = \"b\" }", "env"),
        ("url = \"ftp://a\"", "url"),
        ("url = \"http://user:hunter2@a\"", "url"),
        ("url = \"http://a\"\nheaders = { mcp-session-id = \"b\" }", "headers.mcp-session-id"),
        ("url = \"http://a\"\nheaders = { idempotency-key = \"b\" }", "headers.idempotency-key"),
        ("url = \"http://a\"\nheaders = { authorization = { env = \"NOT_SET\" } }", "headers.authorization"),
        ("command = [\"a\"]\nenv = { TOKEN = { env = \"NOT_SET\" } }", "env.TOKEN"),
        ("command = [\"a\"]\nenv = { \"A=B\" = \"c\" }", "env.A=B"),
        ("command = [\"a\"]\nmax_response = \"17MiB\"", "max_response"),
        ("command = [\"a\"]\nquestions = \"86401s\"", "questions"),
        ("command = [\"a\"]\neffects = { b = \"read_only\" }\napproval = { b = \"required\" }", "approval.b"),
        ("command = [\"a\"]\neffects = { b = \"read_only\" }\nerror_outcome = { b = \"unknown\" }", "error_outcome.b"),
    ] {
        let config: McpConfig = toml::from_str(&format!("name = \"files\"\n{text}")).unwrap();
        let error = McpServer::new_with_env(config, |_| None).unwrap_err();
        assert_eq!(error.key, key, "{text}: {error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
    for name in ["", "a.b", "a b", "site", &"x".repeat(65)] {
        let error = McpServer::new(McpConfig::command(name, ["true"])).unwrap_err();
        assert_eq!(error.key, "name", "{name}");
    }
    assert!(McpServer::new(McpConfig::command("x".repeat(64), ["true"])).is_ok());
    let largest = McpConfig { max_response: Some(crate::limits::MCP_MESSAGE_BYTES_MAX), ..McpConfig::command("a", ["true"]) };
    assert!(McpServer::new(largest).is_ok());
    let longest = McpConfig { questions: Some(crate::limits::MCP_QUESTIONS_MAX), ..McpConfig::command("a", ["true"]) };
    assert!(McpServer::new(longest).is_ok());
    for text in
        ["name = \"a\"\ncomand = [\"a\"]", "name = \"a\"\ntimeout = \"30\"", "name = \"a\"\neffects = { b = \"write\" }"]
    {
        assert!(toml::from_str::<McpConfig>(text).is_err(), "{text}");
    }
}
