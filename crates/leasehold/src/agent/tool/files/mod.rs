//! Files within one directory, as tools: list, read, search; and where the operator lets it, write and edit. A path that leads out of
//! the directory, through `..` or through a link, leads nowhere: every access goes through a handle of the directory.
//!
//! A write is bound to what its caller read: it names the hash of the file that it replaces, takes the place of the whole file in one
//! rename, and is read back. So a repeat finds what it has done, and a file that somebody else changed is left alone. What another
//! program writes between that look and the rename is lost: nothing locks files against others.

#[cfg(test)]
mod tests;
mod tree;

use super::{
    Approval, Arguments, Preview, Previewed, ReadAnswer, ReadTool, Tool, ToolSpec, WriteAnswer, WriteEffect, WritePermit,
    WriteTool,
};
use crate::limits::{FILE_BYTES_MAX, FILE_FOUND_MAX, FILE_LISTED_MAX};
use async_trait::async_trait;
use serde_json::{Value, json};
use similar::TextDiff;
use std::{path::Path, sync::Arc, time::Duration};
use tree::{Problem, Tree, Written, hash};

const TIMEOUT: Duration = Duration::from_secs(15);
/// In place of a hash: there is no such file yet.
const ABSENT: &str = "absent";

/// A directory whose files agents may be offered.
#[derive(Clone, Debug)]
pub struct Files {
    tree: Tree,
    shown: String,
}

/// Why there are no tools.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct FilesError {
    path: String,
    why: String,
}

impl Files {
    /// Opens the directory. It stays the one that was opened, whatever its path leads to later.
    ///
    /// # Errors
    /// It is none, or cannot be read.
    pub fn open(root: impl AsRef<Path>) -> Result<Self, FilesError> {
        let shown = root.as_ref().display().to_string();
        let tree = Tree::open(root.as_ref()).map_err(|e| FilesError { path: shown.clone(), why: e.to_string() })?;
        Ok(Self { tree, shown })
    }

    /// The tools that change nothing: `files.list`, `files.read`, `files.search`.
    pub fn read_tools(&self) -> Vec<Tool> {
        let path =
            json!({ "type": "string", "maxLength": 4096, "description": "A path within the directory, / between names" });
        let list =
            self.spec("list", "List a directory: name, kind and size of each entry.", json!({ "path": path.clone() }), &[]);
        let read = self.spec(
            "read",
            "Read a text file. The answer has its text and its sha256, which files.write and files.edit want.",
            json!({ "path": path.clone() }),
            &["path"],
        );
        let search = self.spec(
            "search",
            "Find the lines of files that match a regular expression.",
            json!({ "pattern": { "type": "string", "maxLength": 1000 }, "path": path }),
            &["pattern"],
        );
        [(list, Look::List), (read, Look::Read), (search, Look::Search)]
            .into_iter()
            .map(|(spec, look)| Tool::Read(Arc::new(Reading { spec, look, tree: self.tree.clone() })))
            .collect()
    }

    /// The tools that write: `files.write` and `files.edit`, with who releases each.
    pub fn write_tools(&self, write: Approval, edit: Approval) -> Vec<Tool> {
        let path = json!({ "type": "string", "minLength": 1, "maxLength": 4096 });
        let text = json!({ "type": "string" });
        let expect = json!({
            "type": "string",
            "pattern": "^(absent|[0-9a-f]{64})$",
            "description": "The sha256 that files.read gave of the file as it is now, or \"absent\" for a new file",
        });
        let whole = self.spec(
            "write",
            "Write a text file as a whole. A file that is not as `expect` says is left alone.",
            json!({ "path": path, "expect": expect, "text": text }),
            &["path", "expect", "text"],
        );
        let part = self.spec(
            "edit",
            "Replace a piece of a text file. `old` must stand in it exactly once. A file that is not as `expect` says is left alone.",
            json!({ "path": path, "expect": expect, "old": { "type": "string", "minLength": 1 }, "new": text }),
            &["path", "expect", "old", "new"],
        );
        [(whole, Change::Whole, write), (part, Change::Part, edit)]
            .into_iter()
            .map(|(spec, change, approval)| Tool::Write(Arc::new(Writing { spec, change, tree: self.tree.clone() }), approval))
            .collect()
    }

    fn spec(&self, name: &str, description: &str, properties: Value, required: &[&str]) -> ToolSpec {
        ToolSpec {
            name: format!("files.{name}"),
            description: description.to_owned(),
            parameters: json!({
                "type": "object", "properties": properties, "required": required, "additionalProperties": false,
            }),
            input: None,
            source: "files".into(),
            endpoint: self.shown.clone(),
            timeout: TIMEOUT,
        }
    }
}

fn text<'a>(arguments: &'a Arguments, name: &str) -> &'a str {
    // The schema has asked for it where it is required.
    arguments.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Does it where blocking is allowed.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|_| "the look at the files broke".to_owned())
}

#[derive(Clone, Copy)]
enum Look {
    List,
    Read,
    Search,
}

struct Reading {
    spec: ToolSpec,
    look: Look,
    tree: Tree,
}

#[async_trait]
impl ReadTool for Reading {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        let (tree, look, arguments) = (self.tree.clone(), self.look, arguments.clone());
        let looked = blocking(move || {
            let path = text(&arguments, "path");
            match look {
                Look::List => tree.list(path).map(|(entries, more)| {
                    let note = more.then(|| format!("only the first {FILE_LISTED_MAX} entries"));
                    json!({ "entries": entries, "note": note })
                }),
                Look::Read => tree.read(path).map(|text| json!({ "path": path, "sha256": hash(&text), "text": text })),
                Look::Search => tree.search(text(&arguments, "pattern"), path, TIMEOUT / 2).map(|found| {
                    let note = found.cut.then(|| format!("cut: only {FILE_FOUND_MAX} lines, or not everything was looked at"));
                    json!({ "lines": found.lines, "note": note })
                }),
            }
        });
        match looked.await {
            Ok(Ok(result)) => ReadAnswer::ok(result),
            Ok(Err(problem)) => ReadAnswer::error(problem.to_string()),
            Err(why) => ReadAnswer::error(why),
        }
    }
}

#[derive(Clone, Copy)]
enum Change {
    Whole,
    Part,
}

struct Writing {
    spec: ToolSpec,
    change: Change,
    tree: Tree,
}

/// What is to become of a file.
enum Plan {
    /// This text in the place of that.
    Write { before: Option<String>, after: String },
    /// It is so already: an earlier entry of this call did it.
    Done,
}

impl Change {
    /// What a call would do to the file as it is now.
    fn plan(self, tree: &Tree, arguments: &Arguments) -> Result<Plan, Problem> {
        let (path, expect) = (text(arguments, "path"), text(arguments, "expect"));
        let before = match tree.read(path) {
            Ok(text) => Some(text),
            Err(Problem::Absent(_)) => None,
            Err(problem) => return Err(problem),
        };
        let is = before.as_deref().map_or_else(|| ABSENT.to_owned(), hash);
        let moved = || Problem::Moved { path: path.to_owned(), expected: expect.to_owned(), is: is.clone() };
        let after = match self {
            Self::Whole => {
                let after = text(arguments, "text").to_owned();
                if before.as_deref() == Some(after.as_str()) {
                    return Ok(Plan::Done);
                }
                after
            }
            Self::Part => {
                let (old, new) = (text(arguments, "old"), text(arguments, "new"));
                let Some(now) = &before else { return Err(moved()) };
                if is != expect && undone(now, old, new, expect) {
                    return Ok(Plan::Done);
                }
                if is != expect {
                    return Err(moved());
                }
                match now.matches(old).count() {
                    1 => now.replacen(old, new, 1),
                    count => return Err(Problem::NotOnce(path.to_owned(), count)),
                }
            }
        };
        if is != expect {
            return Err(moved());
        }
        if after.len() > FILE_BYTES_MAX {
            return Err(Problem::TooLong(path.to_owned()));
        }
        Ok(Plan::Write { before, after })
    }
}

/// Whether this text is what the edit makes of one with that hash.
fn undone(now: &str, old: &str, new: &str, expect: &str) -> bool {
    let is_it = |(at, _): (usize, &str)| {
        let before = format!("{}{old}{}", &now[..at], &now[at + new.len()..]);
        hash(&before) == expect
    };
    // An edit that took a piece away may have done it anywhere: that is not looked for.
    !new.is_empty() && now.match_indices(new).take(100).any(is_it)
}

#[async_trait]
impl WriteTool for Writing {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn write_effect(&self) -> WriteEffect {
        WriteEffect::Idempotent
    }

    fn preview(&self) -> Option<&dyn Preview> {
        Some(self)
    }

    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        let (tree, change, arguments) = (self.tree.clone(), self.change, arguments.clone());
        let worked = blocking(move || {
            let path = text(&arguments, "path");
            let after = match change.plan(&tree, &arguments) {
                Ok(Plan::Write { after, .. }) => after,
                Ok(Plan::Done) => return Ok(written(path, &tree)),
                // The earlier entry may have written it, and somebody else since.
                Err(problem @ Problem::Moved { .. }) if permit.attempt() > 1 => return Err(problem.to_string()),
                Err(problem) => return Ok(WriteAnswer::error(problem.to_string())),
            };
            if let Err(not_held) = permit.check() {
                return Ok(WriteAnswer::NotStarted { why: not_held.to_string() });
            }
            match tree.write(path, &after) {
                Ok(()) => Ok(written(path, &tree)),
                Err(Written::NotBegun(problem)) => Ok(WriteAnswer::error(problem.to_string())),
                Err(Written::MayBe(why)) => Err(why),
            }
        });
        match worked.await {
            Ok(Ok(answer)) => answer,
            Ok(Err(why)) | Err(why) => WriteAnswer::Unknown { why },
        }
    }
}

/// What stands in the file now, read back.
fn written(path: &str, tree: &Tree) -> WriteAnswer {
    match tree.read(path) {
        Ok(text) => WriteAnswer::done(json!({ "path": path, "sha256": hash(&text), "bytes": text.len() })),
        Err(problem) => WriteAnswer::Unknown { why: format!("it was written and cannot be read back: {problem}") },
    }
}

#[async_trait]
impl Preview for Writing {
    async fn preview(&self, arguments: &Arguments) -> Result<Previewed, String> {
        let (tree, change, arguments) = (self.tree.clone(), self.change, arguments.clone());
        let path = text(&arguments, "path").to_owned();
        let plan = blocking(move || change.plan(&tree, &arguments)).await?.map_err(|problem| problem.to_string())?;
        Ok(match plan {
            Plan::Done => Previewed::text(format!("{path}: it is so already")),
            Plan::Write { before, after } => {
                let is = before.as_deref().map_or_else(|| ABSENT.to_owned(), hash);
                let before = before.unwrap_or_default();
                let diff = TextDiff::from_lines(&before, &after).unified_diff().context_radius(2).to_string();
                Previewed::text(format!("{path}\n{diff}")).only_while(is)
            }
        })
    }
}
