//! The drill for Rust tools counts what it says it counts.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    agent::{
        registry::Registry,
        tool::{Approval, Verified, WriteAnswer, WriteEffect},
    },
    drill::Blow,
};
use leasehold_testkit::{
    drill,
    world::{RecordedRead, RecordedWrite, Recorder},
};
use serde_json::json;

#[tokio::test]
async fn every_write_is_drilled_at_every_point_and_counted_where_it_is_entered() {
    let recorder = Recorder::default();
    let mut registry = Registry::new();
    let write = |name: &str, effect| RecordedWrite::new(name, effect, &recorder);
    registry.add_tool(write("x.once", WriteEffect::NonIdempotent).tool(Approval::Required)).unwrap();
    registry.add_tool(write("x.set", WriteEffect::Idempotent).tool(Approval::None)).unwrap();
    registry.add_tool(RecordedRead::new("x.read", &recorder).tool()).unwrap();
    let text = json!({ "text": "hello" });
    let report = drill(&registry, [("x.once", text.clone()), ("x.set", text)]).await;
    report.assert_clean();
    let expected = [
        (Blow::BeforeStamp, (1, "completed"), 1),
        (Blow::AfterStamp, (0, "in doubt"), 1),
        (Blow::InTool, (1, "in doubt"), 2),
        (Blow::AfterReturn, (1, "in doubt"), 2),
        (Blow::AfterRecord, (1, "completed"), 1),
        (Blow::Twice, (1, "completed"), 1),
    ];
    for (blow, once, set) in expected {
        let row = report.row("x.once", blow).unwrap();
        assert_eq!((row.entered, row.settled_as.as_str()), once, "{blow}\n{report}");
        assert_eq!(report.row("x.set", blow).unwrap().entered, set, "{blow}\n{report}");
    }
    assert_eq!(report.rows.len(), 12);
    let counted: usize = report.rows.iter().map(|row| row.entered).sum();
    assert_eq!(recorder.entries().len(), counted, "the tools saw what the drill counted");
}

#[tokio::test]
async fn a_verify_decides_and_its_declared_absent_allows_the_repeat() {
    let recorder = Recorder::default();
    let mut registry = Registry::new();
    let write = RecordedWrite::new("x.pay", WriteEffect::NonIdempotent, &recorder);
    // The far side says three times that nothing is there.
    let write = write.verifies([Verified::Absent, Verified::Absent, Verified::Absent], true);
    registry.add_tool(write.tool(Approval::Required)).unwrap();
    let report = drill(&registry, [("x.pay", json!({ "text": "hello" }))]).await;
    report.assert_clean();
    assert_eq!(report.row("x.pay", Blow::AfterStamp).unwrap().entered, 1);
    assert_eq!(report.row("x.pay", Blow::AfterReturn).unwrap().entered, 2, "absent was declared to mean: not applied");
}

#[tokio::test]
async fn a_tool_whose_answer_says_nothing_is_in_doubt_and_one_without_arguments_is_named() {
    let recorder = Recorder::default();
    let mut registry = Registry::new();
    let unknown = (0..20).map(|_| WriteAnswer::Unknown { why: "who knows".into() });
    let write = RecordedWrite::new("x.odd", WriteEffect::NonIdempotent, &recorder).answers(unknown);
    registry.add_tool(write.tool(Approval::None)).unwrap();
    registry.add_tool(RecordedWrite::new("x.left", WriteEffect::Idempotent, &recorder).tool(Approval::None)).unwrap();
    let report = drill(&registry, [("x.odd", json!({ "text": "hello" }))]).await;
    assert!(report.rows.iter().all(|row| row.findings.is_empty() && row.settled_as == "in doubt"), "{report}");
    assert_eq!(report.not_drilled.len(), 1);
    assert!(std::panic::catch_unwind(|| report.assert_clean()).is_err(), "a write that was left out is no clean drill");
}
