//! The tools on a real directory: nothing outside of it is reached, and what somebody else changed is left alone.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of a test fail by panicking")]

use super::*;
use crate::{
    clock::{BootClock as _, ManualClock},
    run::{CallId, RunId},
    worker::trust::TrustWindow,
};
use std::os::unix::fs::{PermissionsExt as _, symlink};

struct Place {
    directory: tempfile::TempDir,
    files: Files,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("root/docs")).unwrap();
        std::fs::write(directory.path().join("secret.txt"), "a secret").unwrap();
        std::fs::write(directory.path().join("root/docs/a.txt"), "one\ntwo\nthree\n").unwrap();
        let files = Files::open(directory.path().join("root")).unwrap();
        Self { directory, files }
    }

    async fn look(&self, name: &str, arguments: Value) -> ReadAnswer {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        let tools = self.files.read_tools();
        let Some(Tool::Read(tool)) = tools.into_iter().find(|tool| tool.spec().name == name) else { panic!("{name}") };
        tool.call(&arguments).await
    }

    fn writing(&self, name: &str) -> Arc<dyn WriteTool> {
        let tools = self.files.write_tools(Approval::Required, Approval::Required);
        match tools.into_iter().find(|tool| tool.spec().name == name) {
            Some(Tool::Write(tool, _)) => tool,
            _ => panic!("{name}"),
        }
    }

    async fn write_as(&self, name: &str, arguments: Value, attempt: u32) -> WriteAnswer {
        let Value::Object(arguments) = arguments else { panic!("an object") };
        let clock = ManualClock::new();
        let trust = TrustWindow::new(clock.clone(), Duration::from_secs(60), clock.now());
        let mut permit = WritePermit::for_test(RunId::new(), CallId::of(1, 0), 1, trust);
        permit.attempt = attempt;
        self.writing(name).call(permit, &arguments).await
    }

    async fn write(&self, name: &str, arguments: Value) -> WriteAnswer {
        self.write_as(name, arguments, 1).await
    }

    fn at(&self, path: &str) -> String {
        std::fs::read_to_string(self.directory.path().join("root").join(path)).unwrap()
    }
}

fn refused(answer: &ReadAnswer) -> &str {
    assert!(answer.is_error, "{answer:?}");
    answer.result.as_str().unwrap()
}

#[tokio::test]
async fn no_path_leads_out_of_the_directory() {
    let place = Place::new();
    let root = place.directory.path().join("root");
    symlink("../secret.txt", root.join("link.txt")).unwrap();
    symlink("..", root.join("up")).unwrap();
    symlink(place.directory.path(), root.join("absolute")).unwrap();
    let outside = place.directory.path().join("secret.txt").display().to_string();
    for path in ["../secret.txt", "docs/../../secret.txt", &outside, "link.txt", "up/secret.txt", "absolute/secret.txt"] {
        let read = place.look("files.read", json!({ "path": path })).await;
        assert!(read.is_error && !read.result.to_string().contains("a secret"), "{path}: {read:?}");
        for (name, more) in [("files.write", json!({ "text": "x" })), ("files.edit", json!({ "old": "secret", "new": "x" }))] {
            for expect in [ABSENT.to_owned(), hash("a secret")] {
                let mut arguments = json!({ "path": path, "expect": expect });
                arguments.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                let answer = place.write(name, arguments).await;
                assert!(matches!(answer, WriteAnswer::Done { is_error: true, .. }), "{path}: {answer:?}");
            }
        }
    }
    assert_eq!(std::fs::read_to_string(outside).unwrap(), "a secret");
    for path in ["..", "up", "absolute"] {
        refused(&place.look("files.list", json!({ "path": path })).await);
    }
    let found = place.look("files.search", json!({ "pattern": "secret" })).await;
    assert_eq!(found.result["lines"], json!([]), "links are not followed");
}

#[tokio::test]
async fn what_is_there_is_listed_read_and_found() {
    let place = Place::new();
    let listed = place.look("files.list", json!({})).await;
    assert_eq!(listed.result["entries"], json!([{ "name": "docs", "kind": "directory", "bytes": null }]));
    let read = place.look("files.read", json!({ "path": "docs/a.txt" })).await;
    assert_eq!(read.result["sha256"], hash("one\ntwo\nthree\n"));
    let found = place.look("files.search", json!({ "pattern": "^t" })).await;
    let line = |line: u32, text: &str| json!({ "path": "docs/a.txt", "line": line, "text": text });
    assert_eq!(found.result["lines"], json!([line(2, "two"), line(3, "three")]));
    assert!(refused(&place.look("files.search", json!({ "pattern": "(" })).await).contains("regular expression"));
    assert!(refused(&place.look("files.read", json!({ "path": "docs/b.txt" })).await).contains("there is no"));
    assert!(refused(&place.look("files.read", json!({ "path": "docs" })).await).contains("not a file"));
    let file = place.directory.path().join("root/long.txt");
    std::fs::write(&file, "x".repeat(FILE_BYTES_MAX)).unwrap();
    assert!(!place.look("files.read", json!({ "path": "long.txt" })).await.is_error);
    std::fs::write(&file, "x".repeat(FILE_BYTES_MAX + 1)).unwrap();
    assert!(refused(&place.look("files.read", json!({ "path": "long.txt" })).await).contains("longer than"));
    std::fs::write(&file, [0xff, 0xfe]).unwrap();
    assert!(refused(&place.look("files.read", json!({ "path": "long.txt" })).await).contains("not text"));
}

#[tokio::test]
async fn a_file_is_written_only_as_it_was_expected_and_a_repeat_finds_what_it_did() {
    let place = Place::new();
    let fresh = json!({ "path": "docs/new.txt", "expect": ABSENT, "text": "new" });
    assert!(matches!(place.write("files.write", fresh.clone()).await, WriteAnswer::Done { is_error: false, .. }));
    let again = place.write_as("files.write", fresh.clone(), 2).await;
    assert!(matches!(&again, WriteAnswer::Done { result, is_error: false } if result["sha256"] == hash("new")), "{again:?}");
    std::fs::write(place.directory.path().join("root/docs/new.txt"), "of somebody else").unwrap();
    let WriteAnswer::Done { result, is_error: true } = place.write("files.write", fresh.clone()).await else { panic!() };
    assert!(result.as_str().unwrap().contains("not as it was expected"), "{result}");
    // A repeat cannot tell whether it was that one who came after it.
    assert!(matches!(place.write_as("files.write", fresh, 2).await, WriteAnswer::Unknown { .. }));
    assert_eq!(place.at("docs/new.txt"), "of somebody else");
}

#[tokio::test]
async fn an_edit_replaces_one_piece_and_a_repeat_finds_what_it_did() {
    let place = Place::new();
    let text = "one\ntwo\nthree\n";
    let edit = |old: &str, new: &str| json!({ "path": "docs/a.txt", "expect": hash(text), "old": old, "new": new });
    let WriteAnswer::Done { result, is_error: true } = place.write("files.edit", edit("e", "E")).await else { panic!() };
    assert!(result.as_str().unwrap().contains("stands 3 times"), "{result}");
    let twice = edit("two", "two\ntwo");
    assert!(matches!(place.write("files.edit", twice.clone()).await, WriteAnswer::Done { is_error: false, .. }));
    assert_eq!(place.at("docs/a.txt"), "one\ntwo\ntwo\nthree\n");
    let again = place.write_as("files.edit", twice, 2).await;
    assert!(matches!(again, WriteAnswer::Done { is_error: false, .. }), "{again:?}");
    assert_eq!(place.at("docs/a.txt"), "one\ntwo\ntwo\nthree\n", "it is not made twice");
}

#[tokio::test]
async fn a_write_keeps_the_mode_of_the_file_and_the_link_that_names_it() {
    let place = Place::new();
    let file = place.directory.path().join("root/docs/a.txt");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o750)).unwrap();
    symlink("docs/a.txt", place.directory.path().join("root/named")).unwrap();
    let change = json!({ "path": "named", "expect": hash("one\ntwo\nthree\n"), "text": "four\n" });
    assert!(matches!(place.write("files.write", change).await, WriteAnswer::Done { is_error: false, .. }));
    assert_eq!(place.at("docs/a.txt"), "four\n");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o750);
    assert!(std::fs::symlink_metadata(place.directory.path().join("root/named")).unwrap().is_symlink());
}

#[tokio::test]
async fn the_preview_shows_the_lines_that_change_and_holds_while_the_file_does() {
    let place = Place::new();
    let write = place.writing("files.write");
    let change = json!({ "path": "docs/a.txt", "expect": hash("one\ntwo\nthree\n"), "text": "one\n2\nthree\n" });
    let Value::Object(change) = change else { panic!() };
    let shown = write.preview().unwrap().preview(&change).await.unwrap();
    assert!(shown.text.contains("-two\n+2\n"), "{}", shown.text);
    assert_eq!(shown.precondition, Some(hash("one\ntwo\nthree\n")));
    std::fs::write(place.directory.path().join("root/docs/a.txt"), "other").unwrap();
    assert!(write.preview().unwrap().preview(&change).await.unwrap_err().contains("not as it was expected"));
}
