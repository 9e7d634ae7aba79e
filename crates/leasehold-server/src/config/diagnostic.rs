//! Errors of configuration: which file and line, what is wrong, and how to mend it.

use std::{
    fmt,
    io::{self, Read as _},
    ops::Range,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

/// Bytes of a configuration file; more is refused before it is read as one.
pub(crate) const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Something in the configuration cannot be used. Nothing was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct ConfigError {
    /// `leasehold.toml:12`, or the environment variable.
    pub(crate) place: String,
    /// What is wrong.
    pub(crate) what: String,
    /// What to do about it.
    pub(crate) mend: Option<String>,
}

impl ConfigError {
    /// Without a mend.
    pub(crate) fn new(place: impl Into<String>, what: impl Into<String>) -> Self {
        Self { place: place.into(), what: what.into(), mend: None }
    }
    /// With what to do about it.
    pub(crate) fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)?;
        match &self.mend {
            Some(mend) => write!(f, "\n  {mend}"),
            None => Ok(()),
        }
    }
}

/// A configuration file's text, and where in it a byte is.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// As it was asked for.
    pub(crate) path: PathBuf,
    /// Without a byte-order mark.
    pub(crate) text: String,
    /// Of the file before it was read; none: it is not known.
    pub(crate) stamp: Option<Stamp>,
}

/// By which a file is known to be the same one with the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// When its content was last changed, as far as that is known.
    pub(crate) modified: Option<SystemTime>,
    /// Device and number, which another file in its place does not have.
    file: (u64, u64),
    /// When it was last changed in any way, in seconds and nanoseconds. Nobody can set that back.
    changed: (i64, i64),
    /// Its length.
    pub(crate) bytes: u64,
}

impl Stamp {
    /// None: the file is not there, or cannot be looked at.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self {
            modified: found.modified().ok(),
            file: (found.dev(), found.ino()),
            changed: (found.ctime(), found.ctime_nsec()),
            bytes: found.len(),
        })
    }
}

impl Source {
    /// Reads a file that has to be there.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let place = path.display().to_string();
        let failed = |e: &io::Error| ConfigError::new(&place, format!("the configuration cannot be read: {e}"));
        // What is written from here on makes another stamp.
        let stamp = Stamp::of(path);
        // Not the size that the file system tells: a device or a pipe has none.
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(|e| failed(&e))?;
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| failed(&e))?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ConfigError::new(
                &place,
                format!("the configuration is longer than {FILE_BYTES_MAX} bytes; no more are read"),
            )
            .mend("keep long texts, such as a model's script, in files of their own"));
        }
        Ok(Self { stamp, ..Self::new(path, bytes)? })
    }

    /// From bytes.
    pub(crate) fn new(path: &Path, bytes: Vec<u8>) -> Result<Self, ConfigError> {
        let mut text = String::from_utf8(bytes).map_err(|e| {
            let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            let line = good.iter().filter(|&&b| b == b'\n').count() + 1;
            ConfigError::new(format!("{}:{line}", path.display()), "this is not UTF-8 text").mend("save the file as UTF-8")
        })?;
        if text.starts_with('\u{feff}') {
            text.drain(..'\u{feff}'.len_utf8());
        }
        Ok(Self { path: path.to_owned(), text, stamp: None })
    }

    /// `file:line` of a byte.
    pub(crate) fn place(&self, at: usize) -> String {
        let before = self.text.as_bytes().get(..at.min(self.text.len())).unwrap_or_default();
        let line = before.iter().filter(|&&b| b == b'\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }

    /// `file:line` of a key in the table that starts at a byte; the table's own where the key has no line.
    pub(crate) fn key_place(&self, table: usize, key: &str) -> String {
        let mut at = table;
        let rest = self.text.get(table..).unwrap_or_default();
        for (index, line) in rest.split_inclusive('\n').enumerate() {
            let code = line.trim_start();
            if index > 0 && code.starts_with('[') {
                break;
            }
            if code.strip_prefix(key).is_some_and(|after| after.trim_start().starts_with('=')) {
                return self.place(at);
            }
            at += line.len();
        }
        self.place(table)
    }

    /// An error at a span.
    pub(crate) fn error(&self, span: &Range<usize>, what: impl Into<String>) -> ConfigError {
        ConfigError::new(self.place(span.start), what)
    }

    /// An error of the parser, in our words.
    pub(crate) fn explain(&self, error: &toml::de::Error) -> ConfigError {
        let span = error.span().unwrap_or(0..0);
        let found = self.text.get(span.clone()).unwrap_or_default().trim();
        let (what, mend) = explain(error.message(), found);
        ConfigError { place: self.place(span.start), what, mend }
    }
}

/// The words in backticks of a parser's message.
fn quoted(message: &str) -> Vec<&str> {
    message.split('`').skip(1).step_by(2).collect()
}

/// The known word that is meant by a misspelt one.
pub(crate) fn closest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(word, candidate), candidate))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// `did you mean ..? There are: ..`
pub(crate) fn suggest(word: &str, known: &[&str]) -> String {
    let all = match known {
        [] => "there are none".to_owned(),
        known => format!("there are: {}", known.join(", ")),
    };
    match closest(word, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`? {}{}", all[..1].to_uppercase(), &all[1..]),
        None => all,
    }
}

/// What a missing key is for.
fn missing(key: &str) -> String {
    match key {
        "effect" => {
            "say what the tool does to the world, there is no default: effect = \"read_only\", \"idempotent_write\" (a \
                     repeat with the same key converges) or \"non_idempotent_write\" (a repeat is a second effect)"
                .into()
        }
        "name" => "give it a name: name = \"..\"".into(),
        "provider" => {
            "say who serves the model: provider = \"openai\", \"anthropic\", \"gemini\", \"ollama\" or \"scripted\"".into()
        }
        other => format!("add: {other} = .."),
    }
}

fn explain(message: &str, found: &str) -> (String, Option<String>) {
    let words = quoted(message);
    if let ([key, known @ ..], true) = (words.as_slice(), message.starts_with("unknown field")) {
        return (format!("unknown key `{key}`"), Some(suggest(key, known)));
    }
    if let ([value, known @ ..], true) = (words.as_slice(), message.starts_with("unknown variant")) {
        return (format!("`{value}` is not one of the values of this key"), Some(suggest(value, known)));
    }
    if let ([key], true) = (words.as_slice(), message.starts_with("missing field")) {
        return (format!("the key `{key}` is missing"), Some(missing(key)));
    }
    if message.starts_with("duplicate key") {
        return (format!("the key `{}` is there twice", found.trim_matches('"')), Some("keep one of them".into()));
    }
    if message == "invalid type: map, expected a sequence" {
        let mend = match found.strip_prefix('[').and_then(|rest| rest.split(']').next()).map(str::trim) {
            Some(name) if !name.is_empty() && !name.starts_with('[') => format!("write it with two brackets: [[{name}]]"),
            _ => "write it with two brackets, such as [[model]]".to_owned(),
        };
        return ("there can be several of this section".to_owned(), Some(mend));
    }
    for (kind, words) in [
        ("u8", "a whole number from 0 to 255"),
        ("u16", "a whole number from 0 to 65535"),
        ("u32", "a whole number from 0 to 4294967295"),
        ("u64", "a whole number that is not negative"),
        ("usize", "a whole number that is not negative"),
        ("f64", "a number"),
        ("a boolean", "true or false, without quotes"),
        ("a sequence", "a list: [..]"),
    ] {
        if let Some(rest) = message.strip_suffix(kind).filter(|rest| rest.ends_with("expected ")) {
            return (format!("{rest}{words}"), None);
        }
    }
    (message.to_owned(), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_place_of_another_is_another_whatever_its_length_and_its_time_are() {
        let folder = tempfile::tempdir().unwrap();
        let (file, next) = (folder.path().join("leasehold.toml"), folder.path().join("next"));
        std::fs::write(&file, "a = 1").unwrap();
        let read = Source::read(&file).unwrap();
        assert_eq!(read.stamp, Stamp::of(&file));
        let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
        std::fs::write(&next, "a = 2").unwrap();
        std::fs::File::options().write(true).open(&next).unwrap().set_modified(modified).unwrap();
        std::fs::rename(&next, &file).unwrap();
        let now = Stamp::of(&file);
        assert_eq!(now.unwrap().modified, read.stamp.unwrap().modified);
        assert_ne!(now, read.stamp);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(Stamp::of(&file), None);
    }

    #[test]
    fn a_misspelt_key_is_answered_with_the_one_that_is_meant() {
        let (what, mend) = explain("unknown field `efect`, expected one of `name`, `effect`", "efect");
        assert_eq!(what, "unknown key `efect`");
        assert_eq!(mend.unwrap(), "did you mean `effect`? There are: name, effect");
    }

    #[test]
    fn a_far_off_key_is_answered_with_those_there_are() {
        let (_, mend) = explain("unknown field `zzz`, expected `ttl` or `backoff`", "zzz");
        assert_eq!(mend.unwrap(), "there are: ttl, backoff");
    }

    #[test]
    fn bytes_that_are_no_text_are_named_with_their_line() {
        let error = Source::new(Path::new("x.toml"), b"[store]\nurl = \"\xff\"".to_vec()).unwrap_err();
        assert_eq!(error.to_string(), "x.toml:2: this is not UTF-8 text\n  save the file as UTF-8");
    }
}
