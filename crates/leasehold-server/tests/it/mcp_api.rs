//! `/api/v1/mcp` and the command as its client: look, ask, take a definition as it is, switch off; who may, what is written down, and
//! that nobody takes what was not shown.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::{
    Said, Sandbox,
    api::{Answer, Server, TOKEN},
    command,
    mcp::{Place, once, tool},
    said, text,
};
use reqwest::Method;
use serde_json::{Value, json};

/// A place whose server's files are beside a sandbox's configuration.
struct Scene {
    place: Place,
    sandbox: Sandbox,
    server: Server,
}

async fn scene() -> Option<Scene> {
    let place = Place::new().await?;
    let sandbox = Sandbox::new("").await;
    let section = format!("[[mcp]]\nname = \"notes\"\n{}\nrequires_approval = false\n", place.by_pipes());
    let nowhere = "[[mcp]]\nname = \"nowhere\"\nurl = \"http://127.0.0.1:9/mcp\"\ntimeout = \"2s\"\n";
    sandbox.write("leasehold.toml", &place.configuration(&format!("{section}{nowhere}"), r#"["notes.*"]"#));
    sandbox.write("script.toml", &once("notes.append"));
    let server = sandbox.serve().await;
    Some(Scene { place, sandbox, server })
}

impl Scene {
    async fn line(&self) -> Value {
        let listed = self.server.get("/mcp").await.is(200);
        listed["items"].as_array().unwrap().iter().find(|line| line["name"] == "notes").cloned().unwrap()
    }
    async fn tool(&self) -> Value {
        self.line().await["tools"][0].clone()
    }
    /// A run to its end; what its call came to.
    async fn run(&self) -> String {
        let run = self.server.post("/runs", r#"{"agent": "a", "input": "note", "mode": "wait"}"#).await.is(200);
        let events = self.server.get(&format!("/runs/{}/events", text(&run, "/id"))).await.is(200);
        let items = events["items"].as_array().unwrap().clone();
        items.iter().find(|event| event["kind"] == "tool_outcome").map(|event| text(event, "/payload/outcome")).unwrap()
    }
    /// What the audit has of MCP servers, oldest first.
    async fn audit(&self) -> Vec<(String, Value)> {
        let said = self.sandbox.leasehold(&["audit", "--json"]).await.exits(0);
        let entries: Vec<Value> = match said.json() {
            Value::Object(page) => page["items"].as_array().unwrap().clone(),
            _ => said.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
        };
        let of_servers = entries.iter().filter(|entry| entry["about"] == "mcp:notes");
        of_servers.map(|entry| (text(entry, "/what"), entry.clone())).collect()
    }
    /// The command as a client, on a machine that has nothing else.
    async fn remote(&self, arguments: &[&str]) -> Said {
        let elsewhere = tempfile::tempdir().unwrap();
        let mut command = command(elsewhere.path(), &[&["--server", &self.server.url][..], arguments].concat());
        command.env("LEASEHOLD_TOKEN", TOKEN);
        said(command).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_tool_is_acknowledged_with_the_hash_of_what_was_shown_and_written_down() {
    let Some(scene) = scene().await else { return };
    let probed = scene.server.post("/mcp/notes/probe", "{}").await.is(200);
    assert_eq!((&probed["listed"], &probed["server"]["tools"][0]["standing"]), (&json!(1), &json!("offered")));
    assert_eq!(scene.run().await, "done");
    assert_eq!(scene.place.calls().len(), 1);
    let first = text(&scene.tool().await, "/hash");

    let mut changed = tool("append");
    changed["description"] = json!("Notes a line, and mails it");
    scene.place.lists(&[changed.clone()]);
    let imported = scene.server.post("/mcp/notes/import", "{}").await.is(200);
    let shown = imported["server"]["tools"][0].clone();
    assert_eq!((&shown["standing"], &shown["differences"][0]["path"]), (&json!("changed"), &json!("/description")));
    assert_eq!(scene.run().await, "refused");
    assert_eq!(scene.place.calls().len(), 1);

    // What was shown is not what it says by now.
    changed["description"] = json!("Notes a line, and mails it to everybody");
    scene.place.lists(&[changed]);
    scene.server.post("/mcp/notes/probe", "{}").await.is(200);
    for hash in [text(&shown, "/hash"), first, "0".into()] {
        let body = json!({ "tools": [{ "name": "append", "hash": hash }] });
        scene.server.post("/mcp/notes/acknowledge", body).await.problem(409, "changed_meanwhile");
    }
    assert_eq!(scene.tool().await["standing"], "changed");
    let body = json!({ "tools": [{ "name": "append", "hash": text(&scene.tool().await, "/hash") }] });
    let line = scene.server.post("/mcp/notes/acknowledge", &body).await.is(200);
    assert_eq!(line["tools"][0]["standing"], "offered");
    assert_eq!(scene.run().await, "done");
    assert_eq!(scene.place.calls().len(), 2);

    for (path, body) in [
        ("/mcp/notes/acknowledge", json!({ "tools": [{ "name": "nothing", "hash": "0" }] })),
        ("/mcp/nobody/acknowledge", body.clone()),
        ("/mcp/nobody/probe", json!({})),
        ("/mcp/nobody/switch", json!({ "off": true })),
        ("/mcp/notes/switch", json!({ "off": true, "tool": "apend" })),
    ] {
        scene.server.post(path, body).await.problem(404, "not_found");
    }
    scene.server.post("/mcp/nowhere/probe", "{}").await.problem(502, "mcp_unanswered");
    scene.server.post("/mcp/notes/acknowledge", json!({ "tools": [] })).await.problem(422, "invalid_input");

    for off in [true, false] {
        let line = scene.server.post("/mcp/notes/switch", json!({ "off": off })).await.is(200);
        assert_eq!(line["switched_off"].is_object(), off, "{line}");
        assert_eq!(scene.run().await, if off { "refused" } else { "done" });
    }
    scene.server.post("/mcp/notes/switch", json!({ "off": true, "tool": "append" })).await.is(200);
    assert_eq!(scene.run().await, "refused");
    assert_eq!(scene.place.calls().len(), 3);

    let audit = scene.audit().await;
    let what: Vec<&str> = audit.iter().map(|(what, _)| what.as_str()).collect();
    assert_eq!(what, ["mcp_acknowledged", "mcp_switched_off", "mcp_switched_on", "mcp_switched_off"], "{audit:?}");
    assert_eq!(audit[0].1["details"]["append"], body["tools"][0]["hash"]);
    assert_eq!(audit[3].1["details"]["tool"], "append");
    assert!(audit.iter().all(|(_, entry)| !text(entry, "/who").is_empty()), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_changes_nothing() {
    let Some(scene) = scene().await else { return };
    scene.server.post("/mcp/notes/probe", "{}").await.is(200);
    let hash = text(&scene.tool().await, "/hash");
    let acknowledge = json!({ "tools": [{ "name": "append", "hash": hash }] });
    let asks = [
        ("probe", json!({}), "operator"),
        ("import", json!({}), "operator"),
        ("acknowledge", acknowledge, "admin"),
        ("switch", json!({ "off": true }), "admin"),
    ];
    for role in ["viewer", "runner", "operator"] {
        scene.sandbox.user(role, role, &[]).await;
        let token = scene.sandbox.token(role, &[]).await.secret;
        for (what, body, least) in &asks {
            let path = format!("/api/v1/mcp/notes/{what}");
            let answer = Answer::of(scene.server.asked_by(Some(&token), Method::POST, &path, Some(body))).await;
            let may = *least == role;
            assert_eq!(answer.status.as_u16(), if may { 200 } else { 403 }, "{role} {what}: {answer:?}");
            let nobody = Answer::of(scene.server.asked_by(None, Method::POST, &path, Some(body))).await;
            assert_eq!(nobody.status.as_u16(), 401, "{what}");
        }
    }
    assert_eq!(scene.audit().await, []);
    assert!(scene.line().await["switched_off"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_does_the_same_at_a_server_and_nothing_here() {
    let Some(scene) = scene().await else { return };
    let probed = scene.remote(&["mcp", "probe", "notes"]).await.exits(0);
    assert!(probed.out.contains("lists 1 tool") && probed.out.contains("notes.append"), "{probed:?}");
    assert_eq!(scene.remote(&["mcp", "list", "--json"]).await.exits(0).json()["items"][0]["name"], "notes");
    let silent = scene.remote(&["mcp", "probe", "nowhere"]).await.exits(1);
    assert!(silent.err.contains("mcp_unanswered"), "{silent:?}");

    let mut changed = tool("append");
    changed["description"] = json!("Notes a line, and mails it\u{202e}");
    scene.place.lists(&[changed]);
    scene.remote(&["mcp", "import", "notes"]).await.exits(0);
    let asked = scene.remote(&["mcp", "acknowledge", "notes", "append"]).await.exits(2);
    assert!(asked.err.contains("/description") && asked.err.contains("--yes") && !asked.err.contains('\u{202e}'), "{asked:?}");
    assert_eq!(scene.run().await, "refused");
    scene.remote(&["mcp", "acknowledge", "notes", "append", "--yes"]).await.exits(0);
    assert_eq!(scene.run().await, "done");
    scene.remote(&["mcp", "disable", "notes"]).await.exits(0);
    assert_eq!(scene.run().await, "refused");
    let listed = scene.remote(&["mcp", "list"]).await.exits(0);
    assert!(listed.out.contains("switched off by"), "{listed:?}");
    scene.remote(&["mcp", "enable", "notes"]).await.exits(0);
    assert_eq!(scene.run().await, "done");
    assert_eq!(scene.place.calls().len(), 2);
    for name in ["../users", "notes.apend", "nobody"] {
        let ran = scene.remote(&["mcp", "disable", name]).await;
        assert!(ran.exit != Some(0), "{name}: {ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_says_of_its_troubles_is_for_operators() {
    let Some(scene) = scene().await else { return };
    scene.server.post("/mcp/nowhere/probe", "{}").await.is(502);
    let troubles = |list: &Value| {
        let line = list["items"].as_array().unwrap().iter().find(|line| line["name"] == "nowhere").cloned().unwrap();
        text(&line, "/health/last_error")
    };
    assert!(troubles(&scene.server.get("/mcp").await.is(200)).contains("connect"));
    scene.sandbox.user("vera", "viewer", &[]).await;
    let token = scene.sandbox.token("vera", &[]).await.secret;
    let seen = Answer::of(scene.server.asked_by(Some(&token), Method::GET, "/api/v1/mcp", None)).await.is(200);
    assert_eq!(troubles(&seen), "see an operator");
}
