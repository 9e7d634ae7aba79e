//! The directory itself: every access goes through its handle, which no path leads out of.

use crate::limits::{FILE_BYTES_MAX, FILE_FOUND_MAX, FILE_LISTED_MAX, FILE_SEARCHED_MAX};
use cap_std::{
    ambient_authority,
    fs::{Dir, File},
};
use cap_tempfile::TempFile;
use regex::RegexBuilder;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::{
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes of a line that a search shows.
const LINE_SHOWN_MAX: usize = 400;
/// Bytes that a compiled pattern may take.
const PATTERN_SIZE_MAX: usize = 1024 * 1024;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Tree(Arc<Dir>);

/// Why a file is not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum Problem {
    #[error("there is no `{0}` in the directory")]
    Absent(String),
    #[error("`{0}` is longer than {FILE_BYTES_MAX} bytes")]
    TooLong(String),
    #[error("`{0}` is not text in UTF-8")]
    NotText(String),
    #[error("`{0}` is not a file")]
    NotAFile(String),
    #[error("`{path}` is not as it was expected: its sha256 is {is}, and {expected} was expected; read it again")]
    Moved { path: String, expected: String, is: String },
    #[error("`old` stands {1} times in `{0}`, and has to stand in it once")]
    NotOnce(String, usize),
    #[error("the pattern is no regular expression: {0}")]
    Pattern(String),
    #[error("`{path}`: {why}")]
    Io { path: String, why: String },
}

/// How a write failed.
pub(super) enum Written {
    /// The file is as it was.
    NotBegun(Problem),
    /// It may be replaced.
    MayBe(String),
}

/// What a search found.
pub(super) struct Found {
    pub(super) lines: Vec<Value>,
    pub(super) cut: bool,
}

/// SHA-256 in hexadecimal.
pub(super) fn hash(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// Paths are said as within the directory, so an absolute one is none.
fn within(path: &str) -> &Path {
    Path::new(if path.is_empty() { "." } else { path })
}

fn problem(path: &str, error: &io::Error) -> Problem {
    match error.kind() {
        io::ErrorKind::NotFound => Problem::Absent(path.to_owned()),
        _ => Problem::Io { path: path.to_owned(), why: error.to_string() },
    }
}

impl Tree {
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        Ok(Self(Arc::new(Dir::open_ambient_dir(root, ambient_authority())?)))
    }

    fn open_file(&self, path: &str) -> Result<File, Problem> {
        // A pipe or a device could hold the opener up.
        let metadata = self.0.metadata(within(path)).map_err(|e| problem(path, &e))?;
        if !metadata.is_file() {
            return Err(Problem::NotAFile(path.to_owned()));
        }
        self.0.open(within(path)).map_err(|e| problem(path, &e))
    }

    pub(super) fn read(&self, path: &str) -> Result<String, Problem> {
        let mut bytes = Vec::new();
        let file = self.open_file(path)?;
        file.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|e| problem(path, &e))?;
        if bytes.len() > FILE_BYTES_MAX {
            return Err(Problem::TooLong(path.to_owned()));
        }
        String::from_utf8(bytes).map_err(|_| Problem::NotText(path.to_owned()))
    }

    /// Entries by name, and whether there are more.
    pub(super) fn list(&self, path: &str) -> Result<(Vec<Value>, bool), Problem> {
        let mut names = Vec::new();
        for entry in self.0.read_dir(within(path)).map_err(|e| problem(path, &e))? {
            let entry = entry.map_err(|e| problem(path, &e))?;
            // Of the entry itself: a link is not followed.
            let kind = entry.file_type().map_err(|e| problem(path, &e))?;
            let size = if kind.is_file() { entry.metadata().ok().map(|metadata| metadata.len()) } else { None };
            let kind = match () {
                () if kind.is_dir() => "directory",
                () if kind.is_file() => "file",
                () if kind.is_symlink() => "link",
                () => "other",
            };
            names.push((entry.file_name().to_string_lossy().into_owned(), kind, size));
            if names.len() > FILE_LISTED_MAX {
                break;
            }
        }
        let more = names.len() > FILE_LISTED_MAX;
        names.truncate(FILE_LISTED_MAX);
        names.sort();
        Ok((names.into_iter().map(|(name, kind, size)| json!({ "name": name, "kind": kind, "bytes": size })).collect(), more))
    }

    /// Lines that match, of the files under a path. Links are not followed; what is no text or too long is passed over.
    pub(super) fn search(&self, pattern: &str, path: &str, limit: Duration) -> Result<Found, Problem> {
        let regex =
            RegexBuilder::new(pattern).size_limit(PATTERN_SIZE_MAX).build().map_err(|e| Problem::Pattern(e.to_string()))?;
        let begun = Instant::now();
        let mut found = Found { lines: Vec::new(), cut: false };
        let mut open = vec![within(path).to_path_buf()];
        let mut seen = 0;
        while let Some(at) = open.pop() {
            let shown = at.display().to_string();
            let metadata = match self.0.symlink_metadata(&at) {
                Ok(metadata) => metadata,
                Err(error) if seen == 0 => return Err(problem(&shown, &error)),
                // Gone since it was listed.
                Err(_) => continue,
            };
            seen += 1;
            if seen > FILE_SEARCHED_MAX || begun.elapsed() > limit {
                found.cut = true;
                break;
            }
            if metadata.is_dir() {
                let Ok(entries) = self.0.read_dir(&at) else { continue };
                let room = FILE_SEARCHED_MAX - seen;
                let mut under: Vec<PathBuf> =
                    entries.filter_map(|entry| Some(at.join(entry.ok()?.file_name()))).take(room + 1).collect();
                // The last one is looked at first.
                under.sort_by(|a, b| b.cmp(a));
                open.extend(under);
            } else if metadata.is_file() {
                let Ok(text) = self.read(&shown) else { continue };
                for (number, line) in text.lines().enumerate().filter(|(_, line)| regex.is_match(line)) {
                    if found.lines.len() == FILE_FOUND_MAX {
                        found.cut = true;
                        return Ok(found);
                    }
                    let line = crate::agent::gate::excerpt(line, LINE_SHOWN_MAX);
                    let path = shown.strip_prefix("./").unwrap_or(&shown);
                    found.lines.push(json!({ "path": path, "line": number + 1, "text": line }));
                }
            }
        }
        Ok(found)
    }

    /// Puts a text in the place of a file, whole, in one step.
    pub(super) fn write(&self, path: &str, text: &str) -> Result<(), Written> {
        let not_begun = |error: &io::Error| Written::NotBegun(problem(path, error));
        let target = within(path);
        let name = target.file_name().ok_or_else(|| Written::NotBegun(Problem::NotAFile(path.to_owned())))?;
        // A link is written through to the file that it names within the directory, as any reader would see it.
        let target = match self.0.canonicalize(target) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
                self.0.canonicalize(parent).map_err(|e| not_begun(&e))?.join(name)
            }
            Err(error) => return Err(not_begun(&error)),
        };
        let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
            return Err(Written::NotBegun(Problem::NotAFile(path.to_owned())));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let directory = self.0.open_dir(parent).map_err(|e| not_begun(&e))?;
        let mut file = TempFile::new(&directory).map_err(|e| not_begun(&e))?;
        file.write_all(text.as_bytes()).map_err(|e| not_begun(&e))?;
        if let Ok(metadata) = directory.metadata(name) {
            file.as_file().set_permissions(metadata.permissions()).map_err(|e| not_begun(&e))?;
        }
        file.as_file().sync_all().map_err(|e| not_begun(&e))?;
        let may_be = |error: io::Error| Written::MayBe(format!("`{path}` may be replaced: {error}"));
        // A handle that can be flushed: the one of the directory only names it.
        let names = directory.open(".").map_err(|e| not_begun(&e))?;
        file.replace(name).map_err(may_be)?;
        // The name too is to outlive a crash of the machine.
        names.sync_all().map_err(may_be)
    }
}
