//! Who may do what through pages is what the API says: each order as a form and as a request, of the same people about runs that stand
//! the same. What is refused has changed nothing.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::{
    login::{Browser, header, link},
    support::{Sandbox, api::Server, text},
};
use serde_json::json;

/// Nobody sees this run but who may: another team's viewer, an approver of other tools, of its tool, an operator without tools.
const PEOPLE: [(&str, &[&str]); 4] = [
    ("vic", &["--role", "viewer"]),
    ("otto", &["--role", "approver", "--tool", "other.*"]),
    ("ada", &["--role", "approver", "--tool", "ledger.*"]),
    ("olga", &["--role", "operator"]),
];

async fn entered(sandbox: &Sandbox, browser: &Browser) -> Vec<(&'static str, String, String)> {
    let mut all = Vec::new();
    for (name, rights) in PEOPLE {
        sandbox.leasehold(&[&["user", "add", name][..], rights].concat()).await.exits(0);
        let made = sandbox.leasehold(&["token", "create", "t", "--owner", name, "--json"]).await.exits(0).json();
        let cookie = browser.enters(None, &[("link", &link(sandbox, name).await)]).await;
        all.push((name, cookie, text(&made, "/secret")));
    }
    all
}

/// The same order as a form and as a request: the status of each where it is refused, and 200 where it is taken.
async fn both(browser: &Browser, server: &Server, who: &(&'static str, String, String), order: &str) -> (u16, u16) {
    let taken = |status: u16| if matches!(status, 200 | 202 | 303) { 200 } else { status };
    let (run, digest) = server.suspended().await;
    let mut form = vec![("back", "run")];
    if matches!(order, "approve" | "deny") {
        form.extend([("turn_digest", digest.as_str()), ("decision", order)]);
    }
    if order == "resolve" {
        form.extend([("call_id", "t1c0"), ("fence_epoch", "1"), ("outcome", "landed")]);
    }
    let path = if matches!(order, "approve" | "deny") { "decision" } else { order };
    let before = server.record(&run).await;
    let page = browser.send(&format!("/runs/{run}/{path}"), Some(&who.1), &form).await;
    let by_page = taken(page.status.as_u16());
    if by_page == 200 {
        assert_eq!(header(&page, "location"), format!("/runs/{run}"));
    } else {
        assert_eq!(server.record(&run).await, before, "{order} of {} was refused and changed something", who.0);
        assert!(header(&page, "content-type").starts_with("text/html"), "{page:?}");
        assert!(by_page != 404 || !page.body.contains("hello"), "{page:?}");
    }
    let (run, digest) = server.suspended().await;
    let body = match order {
        "approve" | "deny" => json!({ "turn_digest": digest, "decision": order }),
        "resolve" => json!({ "call_id": "t1c0", "fence_epoch": 1, "outcome": "landed" }),
        _ => json!({}),
    };
    let request = server.client.post(format!("{}/api/v1/runs/{run}/{path}", server.url)).bearer_auth(&who.2);
    let answer = request.header("content-type", "application/json").body(body.to_string()).send().await.unwrap();
    (by_page, taken(answer.status().as_u16()))
}

#[tokio::test]
async fn a_form_is_refused_to_whom_the_api_refuses_the_order_and_taken_from_the_others() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let browser = Browser::of(&server);
    let people = entered(&sandbox, &browser).await;
    let mut seen = Vec::new();
    for who in &people {
        for order in ["approve", "deny", "cancel", "resolve", "redrive", "discard"] {
            let (page, api) = both(&browser, &server, who, order).await;
            assert_eq!(page, api, "{order} of {}", who.0);
            seen.push((who.0, order, page));
        }
    }
    for expected in [
        ("vic", "approve", 404),
        ("otto", "deny", 404),
        ("ada", "approve", 200),
        ("ada", "cancel", 403),
        ("olga", "approve", 403),
        ("olga", "deny", 200),
        ("olga", "cancel", 200),
        ("olga", "redrive", 409),
    ] {
        assert!(seen.contains(&expected), "{expected:?} in {seen:?}");
    }
}

#[tokio::test]
async fn lists_show_whom_they_are_for_and_a_run_of_others_is_as_unknown_as_none() {
    let sandbox = Sandbox::new("").await;
    let server = sandbox.serve().await;
    let browser = Browser::of(&server);
    let people = entered(&sandbox, &browser).await;
    let (run, _) = server.suspended().await;
    for (name, cookie, _) in &people {
        let sees = matches!(*name, "ada" | "olga");
        let inbox = browser.get("/", Some(cookie)).await;
        assert_eq!((inbox.status.as_u16(), inbox.body.contains(&run)), (200, sees), "{name}");
        let page = browser.get(&format!("/runs/{run}"), Some(cookie)).await;
        let none = browser.get("/runs/0192f0c1-2a3b-7c4d-8e5f-6a7b8c9d0e1f", Some(cookie)).await;
        let nonsense = browser.get("/runs/nonsense", Some(cookie)).await;
        assert_eq!((none.status.as_u16(), &none.body), (404, &nonsense.body));
        assert_eq!(page.status.as_u16(), if sees { 200 } else { 404 }, "{name}");
        assert!(sees || page.body == none.body, "{name}");
        // Found by the end of its id: the same.
        let found = browser.get(&format!("/runs?q={}", &run[28..]), Some(cookie)).await;
        assert_eq!(found.status.as_u16(), if sees { 303 } else { 200 }, "{name}");
        // An approver's list has no column for pending calls, as the API's.
        let list = browser.get("/runs", Some(cookie)).await;
        assert_eq!(list.body.contains(&run), *name == "olga", "{name}");
    }
    // Who is not there is sent to sign in, and a form of nobody changes nothing.
    let before = server.record(&run).await;
    let sent = browser.send(&format!("/runs/{run}/cancel"), None, &[]).await;
    assert_eq!((sent.status.as_u16(), header(&sent, "location")), (303, "/login"));
    assert_eq!(server.record(&run).await, before);
}
