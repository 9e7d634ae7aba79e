//! The pages in a real browser: runs that wait, died, asked and were killed at a real server, and a script that clicks.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use crate::support::{Sandbox, api::TOKEN, text};
use leasehold_testkit::{browser, far_side::Then, npm};
use serde_json::{Value, json};
use std::{path::Path, process::Stdio, time::Duration};
use tokio::{process::Command, task::spawn_blocking, time::timeout};

const PLAYWRIGHT: &str = "playwright-core@1.65.1";
const AXE: &str = "axe-core@4.14.1";

/// Longer than the script needs by far; with pictures it takes its time.
const PATIENCE: Duration = Duration::from_secs(180);

const MORE: &str = r#"
[[tool.http]]
name = "forms.append"
description = "Append what a person fills in"
method = "POST"
url = "FAR"
effect = "non_idempotent_write"
approval = "none"
parameters = { type = "object", properties = { for = { type = "string" } } }
[tool.http.input]
type = "object"
required = ["guests", "mail", "table"]
[tool.http.input.properties]
guests = { type = "integer", minimum = 1, title = "Guests" }
day = { type = "string", format = "date", title = "When" }
mail = { type = "string", format = "email", title = "Mail", description = "For the receipt" }
site = { type = "string", format = "uri", title = "Site" }
weight = { type = "number", title = "Weight" }
words = { type = "string", title = "Words" }
table = { type = "string", enum = ["w", "d"], enumNames = ["window", "door"], title = "Table" }
extras = { type = "array", items = { type = "string", enum = ["cake", "candles"] }, title = "Extras" }
sure = { type = "boolean", title = "Sure" }
address = { type = "object", properties = { town = { type = "string", maxLength = 40, title = "Town" } }, title = "Address" }

[[tool.http]]
name = "hasty.append"
description = "Append without asking"
method = "POST"
url = "FAR"
timeout = "2s"
effect = "non_idempotent_write"
approval = "none"
parameters = { type = "object", properties = { text = { type = "string" } } }

[[tool.http]]
name = "pages.title"
description = "Give a page another title"
method = "POST"
url = "FAR"
effect = "idempotent_write"
parameters = { type = "object", properties = { title = { type = "string", maxLength = 60 }, page = { type = "string" }, tags = { type = "array", items = { type = "string" } } }, required = ["title"] }
preview = { url = "FAR" }
"#;

/// What a model, a person or a far side may write.
const EVIL: &str = r#"<script>document.title='owned'</script><b id=evil>x</b>\u202E\u200B\u0007\"'"#;

fn agent(name: &str, tools: &str, more: &str) -> String {
    format!(
        "[[model]]\nname = \"{name}\"\nprovider = \"scripted\"\nscript = \"{name}.toml\"\n\
         [[agent]]\nname = \"{name}\"\nmodel = \"{name}\"\ntools = [\"{tools}\"]\n{more}\n"
    )
}

async fn place() -> Sandbox {
    let sandbox = Sandbox::new("").await;
    let call = |tool: &str, arguments: &str| format!("{{ tool = \"{tool}\", arguments = {arguments} }}");
    let reply = |text: &str, calls: &str| format!("[[reply]]\ntext = \"{text}\"\ncalls = [{calls}]\n");
    let append = |words: &str| call("ledger.append", &format!("{{ text = \"{words}\" }}"));
    let end = "[[reply]]\ntext = \"It is done.\"\n";
    let scripts = [
        ("two", reply("First the one.", &append("first")) + &reply("Then the other.", &append("second"))),
        ("some", reply("Both, please.", &format!("{}, {}", append("one"), append("another")))),
        ("evil", reply(EVIL, &append(EVIL))),
        ("asker", reply("I need to know more.", &call("forms.append", "{ for = \"the party\" }"))),
        ("hasty", reply("At once.", &call("hasty.append", "{ text = \"hasty\" }"))),
        ("late", reply("In time?", &append("late"))),
        (
            "titles",
            reply(
                "Both are cut off in search results.",
                &call(
                    "pages.title",
                    "{ title = \"Opening hours and how to find us\", page = \"/opening-hours\", tags = [\"hours\", \"way\"] }",
                ),
            ),
        ),
    ];
    for (name, script) in &scripts {
        sandbox.write(&format!("{name}.toml"), &format!("{script}{end}"));
    }
    let agents = [
        agent("two", "ledger.*", ""),
        agent("some", "ledger.*", ""),
        agent("evil", "ledger.*", ""),
        agent("asker", "forms.*", ""),
        agent("hasty", "hasty.*", ""),
        agent("late", "ledger.*", "decision_deadline = \"1s\"\non_decision_expired = \"dead_letter\""),
        agent("titles", "pages.*", "decision_deadline = \"20m\""),
    ];
    let config = std::fs::read_to_string(sandbox.path("leasehold.toml")).unwrap();
    let more = MORE.replace("FAR", &sandbox.far.url("/append"));
    sandbox.write("leasehold.toml", &format!("{config}\n{}\n{more}", agents.concat()));
    sandbox
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_find_what_needs_them_and_decide_in_a_real_browser() {
    if npm::is_left_out() {
        eprintln!("left out: this machine was declared to have no Node.js");
        return;
    }
    let Some(chromium) = spawn_blocking(browser::chromium).await.unwrap() else { return };
    let folders = spawn_blocking(|| Ok::<_, String>((npm::installed(PLAYWRIGHT)?, npm::installed(AXE)?))).await.unwrap();
    let (playwright, axe) =
        folders.unwrap_or_else(|why| panic!("{why}. (LEASEHOLD_TEST_WITHOUT_NODE=1 leaves this test out.)"));

    let sandbox = place().await;
    // A worker that is killed after its write has landed and before it could say so.
    let doubt = sandbox.leasehold(&["run", "--agent", "hasty", "--queue", "--json", "append at once"]).await.exits(0).json();
    let doubt = text(&doubt, "/id");
    sandbox.kill_worker_at("after_return", &["worker", "--once", &doubt]).await;
    let server = sandbox.serve().await;
    let begin = async |agent: &str, input: &str, state: &str| {
        let body = json!({ "agent": agent, "input": input, "mode": "wait" });
        let run = server.post("/runs", body).await.is(200);
        assert_eq!(run["state"], state, "{run}");
        text(&run, "/id")
    };
    let waits = "waiting_for_approval";
    let approve = begin("clerk", "note hello", waits).await;
    let deny = begin("clerk", "note hello", waits).await;
    let edit = begin("clerk", "note hello", waits).await;
    let two = begin("two", "note both", waits).await;
    let some = begin("some", "note some", waits).await;
    let evil = begin("evil", &format!("{}\u{202e}\u{200b}", EVIL.replace("\\u0007", "")), waits).await;
    let asks = begin("asker", "arrange the party", "waiting_for_input").await;
    let dead = begin("late", "decide soon", waits).await;
    sandbox.far.then([Then::Answer(
        200,
        "title: Opening hours and directions and parking -> Opening hours and how to find us".into(),
    )]);
    let preview = begin("titles", "shorten the titles", waits).await;
    sandbox.far.then([Then::Answer(200, "<img src=x onerror=alert(1)>\u{202e} from the far side".into())]);
    let told = begin("hasty", "append at once", "completed").await;
    // More than a page of the list.
    for _ in 0..45 {
        server.queue().await;
    }
    server.until_state(&dead, "dead").await;
    server.until_state(&doubt, "dead").await;

    let screens =
        std::env::var_os("LEASEHOLD_SCREENS").map(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/screens"));
    let runs = json!({ "approve": approve, "deny": deny, "edit": edit, "two": two, "some": some, "evil": evil, "asks": asks, "dead": dead,
        "doubt": doubt, "preview": preview, "told": told });
    let place = json!({ "url": server.url, "token": TOKEN, "runs": runs, "screens": screens });
    let mut script = Command::new("node");
    script.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pages/browser.mjs"));
    script
        .args([&playwright, &axe, &chromium])
        .arg(place.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let ended = timeout(PATIENCE, script.output()).await.expect("the script ends").unwrap();
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", told(&ended.stdout));
    assert!(ended.status.success(), "{}\n{}", told(&ended.stdout), told(&ended.stderr));

    // What people clicked is what arrived.
    let arrived: Vec<String> = sandbox.far.arrived().iter().map(|request| request.text()).collect();
    let times = |words: &str| arrived.iter().filter(|body| body.contains(words)).count();
    assert_eq!(times("hello, edited\\nin two lines"), 1, "{arrived:?}");
    assert_eq!(
        (times("first"), times("second"), times("\"one\""), times("another"), times("hasty")),
        (1, 1, 1, 0, 2),
        "{arrived:?}"
    );
    let plain: Vec<Value> = arrived
        .iter()
        .filter_map(|body| serde_json::from_str(body).ok())
        .filter(|body| *body == json!({ "text": "hello" }))
        .collect();
    assert_eq!(plain.len(), 1, "one of them was approved: {arrived:?}");
}
