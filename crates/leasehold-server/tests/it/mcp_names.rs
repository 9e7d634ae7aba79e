//! Names that two things have, hints that a server gives of its tools, and what turns an approval off: nothing but the operator's own
//! word does.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support::mcp::{Place, once, tool};
use leasehold::run::State;
use serde_json::{Value, json};

const ALL: &str = r#"["notes.*"]"#;

#[tokio::test]
async fn a_name_that_is_taken_is_an_error_with_its_line() {
    let Some(place) = Place::new().await else { return };
    let server = |name: &str| format!("[[mcp]]\nname = \"{name}\"\n{}\n", place.by_pipes());
    let http = "[[tool.http]]\nname = \"ledger.append\"\ndescription = \"Appends\"\neffect = \"non_idempotent_write\"\nmethod = \"POST\"\n\
                url = \"http://127.0.0.1:9/\"\nparameters = { type = \"object\" }\n";
    for (sections, name) in [
        (format!("{}{}", server("notes"), server("notes")), "notes"),
        (server("site"), "site"),
        (server("leasehold"), "leasehold"),
        (format!("{http}{}", server("ledger")), "ledger"),
        (server("two words"), "two words"),
        (server("a.b"), "a.b"),
        (server(""), ""),
    ] {
        place.configure_more(&sections, "[]");
        let text = std::fs::read_to_string(place.home.path().join("leasehold.toml")).unwrap();
        let said = format!("name = \"{name}\"");
        let line = text.lines().enumerate().filter(|(_, line)| *line == said).last().unwrap().0 + 1;
        for command in [&["mcp", "list"][..], &["worker", "--once"], &["run", "note a line"]] {
            let ran = place.ends(command, 2).await;
            assert!(ran.stderr().contains(&format!("leasehold.toml:{line}")), "{name}: line {line}: {ran}");
        }
    }
    assert_eq!(place.calls().len(), 0);
}

#[tokio::test]
async fn tools_of_one_name_of_two_servers_are_two_tools() {
    let Some(place) = Place::new().await else { return };
    place.lists(&[tool("search")]);
    let other = Value::from(place.command_of(&["tools.json", "others"]));
    let sections = format!(
        "[[mcp]]\nname = \"one\"\n{}\n[[mcp]]\nname = \"two\"\ncommand = {other}\nrequires_approval = false\n",
        place.by_pipes()
    );
    place.configure_more(&sections, r#"["one.*", "two.*"]"#);
    place.script(&once("two.search"));
    place.ends(&["run", "look for it"], 0).await;
    assert_eq!(place.calls().len(), 0);
    assert_eq!(std::fs::read_to_string(place.home.path().join("others")).unwrap().lines().count(), 1);
    // The word on one says nothing of the other.
    place.script(&once("one.search"));
    let id = place.suspended().await;
    place.ends(&["mcp", "disable", "two.search"], 0).await;
    assert_eq!(place.tool("one.search").await["standing"], "offered");
    assert_eq!(place.approve(id, &[]).await.code(), 0);
    assert_eq!(place.calls().len(), 1);
}

#[tokio::test]
async fn two_tools_of_one_name_of_one_server_are_both_refused_and_hold_up_nothing_else() {
    let Some(place) = Place::new().await else { return };
    let mut second = tool("append");
    second["description"] = json!("Mails a line");
    place.configure(&format!("{}\nrequires_approval = false", place.by_pipes()), ALL);

    // From the first contact on.
    place.lists(&[tool("append"), second.clone(), tool("other")]);
    place.script(&once("notes.append"));
    place.ends(&["run", "note a line"], 0).await;
    assert_eq!(place.calls().len(), 0);
    place.script(&once("notes.other"));
    place.ends(&["run", "note a line"], 0).await;
    assert_eq!(place.calls().len(), 1);
    // One of them is left.
    place.lists(&[tool("append"), tool("other")]);
    place.ends(&["mcp", "probe", "notes"], 0).await;
    place.ends(&["mcp", "acknowledge", "notes", "append", "--yes"], 0).await;
    place.script(&once("notes.append"));
    place.ends(&["run", "note a line"], 0).await;
    assert_eq!(place.calls().len(), 2);

    // One that is added later takes the name of one that is known.
    for both in [[tool("append"), second.clone()], [second.clone(), tool("append")]] {
        place.lists(&[&both[..], &[tool("other")]].concat());
        place.script(&once("notes.append"));
        place.ends(&["run", "note a line"], 0).await;
        assert_eq!(place.calls().len(), 2, "nobody knows which of them is called");
        assert_eq!(place.tool("notes.append").await["standing"], "gone");
        let probed = place.ends(&["mcp", "probe", "notes", "--json"], 0).await.json();
        assert!(probed["refused"]["append"].as_str().unwrap().contains("two tools"), "{probed}");
    }
}

#[tokio::test]
async fn a_description_that_cannot_be_offered_any_more_is_not() {
    let Some(place) = Place::new().await else { return };
    place.configure(&format!("{}\nrequires_approval = false", place.by_pipes()), ALL);
    place.script(&once("notes.append"));
    place.ends(&["run", "note a line"], 0).await;
    assert_eq!(place.calls().len(), 1);
    let mut endless = tool("append");
    endless["description"] = json!("x".repeat(70_000));
    place.lists(&[endless]);
    place.ends(&["run", "note a line"], 0).await;
    assert_eq!(place.calls().len(), 1);
    assert_eq!(place.tool("notes.append").await["standing"], "gone");
}

#[tokio::test]
async fn hints_of_a_server_lower_nothing() {
    let Some(place) = Place::new().await else { return };
    let mut hinted = tool("append");
    hinted["annotations"] = json!({ "readOnlyHint": true, "destructiveHint": false, "idempotentHint": true });
    place.lists(&[hinted]);
    place.configure(&place.by_pipes(), ALL);
    place.script(&once("notes.append"));
    place.suspended().await;
    assert_eq!(place.calls().len(), 0);
    let listed = place.tool("notes.append").await;
    assert_eq!((&listed["effect"], &listed["approval"]), (&json!("non_idempotent_write"), &json!("required")));
    assert_eq!(listed["annotations"]["readOnlyHint"], true, "it is shown");
}

#[tokio::test]
async fn only_false_turns_an_approval_off() {
    let Some(place) = Place::new().await else { return };
    place.script(&once("notes.append"));
    for said in ["", "requires_approval = true"] {
        place.configure(&format!("{}\n{said}", place.by_pipes()), ALL);
        let id = place.suspended().await;
        assert_eq!(place.home.row(id).await.state, State::WaitingForApproval);
    }
    for said in ["null", "\"\"", "2", "0", "\"no\"", "\"false\"", "False", "[]", "{}"] {
        place.configure(&format!("{}\nrequires_approval = {said}", place.by_pipes()), ALL);
        let text = std::fs::read_to_string(place.home.path().join("leasehold.toml")).unwrap();
        let line = text.lines().position(|line| line.starts_with("requires_approval")).unwrap() + 1;
        let ran = place.ends(&["run", "note a line"], 2).await;
        assert!(ran.stderr().contains(&format!("leasehold.toml:{line}")), "{said}: {ran}");
    }
    assert_eq!(place.calls().len(), 0);
    place.configure(&format!("{}\nrequires_approval = false", place.by_pipes()), ALL);
    place.ends(&["run", "note a line"], 0).await;
    assert_eq!(place.calls().len(), 1);
}
