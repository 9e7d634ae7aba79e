//! The bundled site through its tools.

use super::*;
use crate::{
    agent::registry::Registry,
    clock::{BootClock, ManualClock},
    run::{CallId, Effect, RunId},
    worker::trust::TrustWindow,
};

fn permit_of(run: RunId, left: Duration) -> WritePermit {
    let clock = ManualClock::new();
    let trust = TrustWindow::new(clock.clone(), Duration::from_secs(60), clock.now());
    clock.advance(Duration::from_secs(60) - left);
    WritePermit::for_test(run, CallId::of(2, 1), 5, trust)
}

fn permit() -> WritePermit {
    permit_of(RunId::new(), Duration::from_secs(60))
}

fn site() -> (tempfile::TempDir, Site) {
    let folder = tempfile::tempdir().unwrap();
    let site = Site::open(folder.path().join("site.db")).unwrap();
    (folder, site)
}

fn arguments(value: Value) -> Arguments {
    value.as_object().unwrap().clone()
}

fn write(site: &Site, name: &str) -> Arc<dyn WriteTool> {
    site.tools()
        .into_iter()
        .find_map(|tool| match tool {
            Tool::Write(write, approval) if write.spec().name == name => {
                assert_eq!(approval, Approval::Required);
                Some(write)
            }
            _ => None,
        })
        .unwrap()
}

async fn read(site: &Site, name: &str, given: Value) -> ReadAnswer {
    for tool in site.tools() {
        if let Tool::Read(read) = tool
            && read.spec().name == name
        {
            return read.call(&arguments(given)).await;
        }
    }
    panic!("no tool {name}")
}

fn is_error(answer: &WriteAnswer) -> bool {
    matches!(answer, WriteAnswer::Done { is_error: true, .. })
}

#[tokio::test]
async fn a_new_site_has_pages_that_can_be_listed_and_read_and_is_seeded_once() {
    let (folder, site) = site();
    let listed = read(&site, "site.list_pages", json!({})).await;
    assert_eq!(listed.result.as_array().unwrap().len(), 4);
    let page = read(&site, "site.read_page", json!({ "page": "berths" })).await;
    assert_eq!(page.result["fields"]["description"], "old text");
    assert!(read(&site, "site.read_page", json!({ "page": "nowhere" })).await.is_error);
    let again = Site::open(folder.path().join("site.db")).unwrap();
    assert_eq!(again.pages().await.unwrap(), site.pages().await.unwrap());
}

#[tokio::test]
async fn the_tools_fit_the_registry_and_declare_their_effects() {
    let (_folder, site) = site();
    let mut registry = Registry::new();
    let effects: Vec<Effect> = site.tools().iter().map(Tool::effect).collect();
    for tool in site.tools() {
        registry.add_tool(tool).unwrap();
    }
    assert_eq!(effects, [Effect::ReadOnly, Effect::ReadOnly, Effect::IdempotentWrite, Effect::NonIdempotentWrite]);
    let open = site.tools_with(SiteApprovals { update: Approval::None, ..SiteApprovals::default() });
    assert_eq!((open[2].approval(), open[3].approval()), (Approval::None, Approval::Required));
}

#[tokio::test]
async fn an_update_changes_the_named_fields_and_a_repeat_converges() {
    let (_folder, site) = site();
    let tool = write(&site, "site.update_page_metadata");
    let given = arguments(json!({ "page": "berths", "fields": { "description": "new \"text\"", "keywords": "boats" } }));
    let previewed = tool.preview().unwrap().preview(&given).await.unwrap();
    assert_eq!(previewed.text, "description: \"old text\" -> \"new \\\"text\\\"\"\nkeywords: \"\" -> \"boats\"");
    let before = site.page("berths").await.unwrap().unwrap();
    for _ in 0..2 {
        let WriteAnswer::Done { result, is_error: false } = tool.call(permit(), &given).await else { panic!() };
        assert_eq!(result["fields"]["description"], "new \"text\"");
    }
    let after = site.page("berths").await.unwrap().unwrap();
    assert_eq!((after.field("title"), &after.body), (before.field("title"), &before.body));
    let again = tool.preview().unwrap().preview(&given).await.unwrap();
    assert_eq!(again.text, "nothing would change");
    assert_ne!(again.precondition, previewed.precondition);
}

#[tokio::test]
async fn an_unknown_field_refuses_the_whole_call_and_an_unknown_page_is_an_error() {
    let (_folder, site) = site();
    let tool = write(&site, "site.update_page_metadata");
    let before = site.pages().await.unwrap();
    for given in [
        json!({ "page": "home", "fields": { "title": "x", "body": "y" } }),
        json!({ "page": "home", "fields": { "title": "x", "slug": "y" } }),
        json!({ "page": "home", "fields": { "title": 1 } }),
        json!({ "page": "home", "fields": {} }),
        json!({ "page": "nowhere", "fields": { "title": "x" } }),
    ] {
        let schema = jsonschema::draft202012::new(&tool.spec().parameters).unwrap();
        assert_eq!(schema.is_valid(&given), given["page"] == "nowhere", "{given}");
        let given = arguments(given);
        assert!(is_error(&tool.call(permit(), &given).await), "{given:?}");
        assert!(tool.preview().unwrap().preview(&given).await.is_err());
    }
    assert_eq!(site.pages().await.unwrap(), before);
}

#[tokio::test]
async fn a_created_page_keeps_the_call_that_made_it_and_is_not_created_twice() {
    let (_folder, site) = site();
    let tool = write(&site, "site.create_page");
    let given = arguments(json!({ "slug": "winter", "title": "Winter", "body": "ü".repeat(900) }));
    let preview = tool.preview().unwrap().preview(&given).await.unwrap();
    assert!(preview.text.starts_with("page winter: none -> new\n") && preview.text.contains("bytes more"), "{}", preview.text);
    let permit = permit_of(RunId::new(), Duration::from_secs(60));
    let made_by = Provenance { idempotency_key: permit.idempotency_key().into(), run: permit.run().to_string(), epoch: 5 };
    assert_eq!(tool.call(permit, &given).await, WriteAnswer::done(json!({ "page": "winter", "created": true })));
    assert_eq!(site.page("winter").await.unwrap().unwrap().made_by, Some(made_by));
    assert!(is_error(&tool.call(self::permit(), &given).await));
    assert_eq!(tool.preview().unwrap().preview(&given).await.unwrap().precondition.as_deref(), Some("taken"));
    assert!(is_error(&tool.call(self::permit(), &arguments(json!({ "slug": "../x", "title": "t", "body": "" }))).await));
}

#[tokio::test]
async fn nothing_is_written_once_the_trust_window_is_gone() {
    let (_folder, site) = site();
    let before = site.pages().await.unwrap();
    for (name, given) in [
        ("site.create_page", json!({ "slug": "x", "title": "t", "body": "" })),
        ("site.update_page_metadata", json!({ "page": "home", "fields": { "title": "x" } })),
    ] {
        let answer = write(&site, name).call(permit_of(RunId::new(), Duration::from_secs(19)), &arguments(given)).await;
        assert!(matches!(answer, WriteAnswer::NotStarted { .. }), "{answer:?}");
    }
    assert_eq!(site.pages().await.unwrap(), before);
}

#[tokio::test]
async fn two_processes_may_use_one_site_and_one_of_two_creators_is_refused() {
    let (folder, site) = site();
    let other = Site::open(folder.path().join("site.db")).unwrap();
    let given = arguments(json!({ "slug": "race", "title": "t", "body": "" }));
    let (here, there) = (write(&site, "site.create_page"), write(&other, "site.create_page"));
    let (one, two) = tokio::join!(here.call(permit(), &given), there.call(permit(), &given));
    assert_eq!([&one, &two].iter().filter(|answer| is_error(answer)).count(), 1, "{one:?} {two:?}");
}

#[tokio::test]
async fn a_failure_before_the_commit_is_not_applied() {
    let (folder, site) = site();
    let other = rusqlite::Connection::open(folder.path().join("site.db")).unwrap();
    other.execute_batch("ALTER TABLE page RENAME TO elsewhere").unwrap();
    let given = arguments(json!({ "slug": "x", "title": "t", "body": "" }));
    let answer = write(&site, "site.create_page").call(permit(), &given).await;
    assert!(matches!(answer, WriteAnswer::NotApplied { .. }), "{answer:?}");
}

#[tokio::test]
async fn each_write_call_that_arrives_is_counted_whatever_it_is_answered() {
    let (_folder, site) = site();
    let given = arguments(json!({ "slug": "drill", "title": "Drill", "body": "text" }));
    let run = RunId::new();
    for is_taken in [false, true] {
        let answer = write(&site, "site.create_page").call(permit_of(run, Duration::from_secs(60)), &given).await;
        assert_eq!(is_error(&answer), is_taken);
    }
    let answer = write(&site, "site.create_page").call(permit_of(run, Duration::from_secs(1)), &given).await;
    assert!(matches!(answer, WriteAnswer::NotStarted { .. }), "{answer:?}");
    let arrivals = site.arrivals().await.unwrap();
    assert_eq!(arrivals.len(), 2, "what was not started did not arrive");
    assert_eq!(arrivals[0], arrivals[1], "the same key and arguments");
    assert_eq!(arrivals[0].call.run, run.to_string());
}
