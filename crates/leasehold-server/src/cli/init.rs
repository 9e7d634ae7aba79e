//! `leasehold init`: a configuration to start from.

use super::{Exit, Failure, Outcome};
use crate::terminal;
use std::{fs::OpenOptions, io::Write as _, path::Path};

/// What is written.
pub(crate) const TEMPLATE: &str = include_str!("init.toml");

/// Writes `leasehold.toml`, here or where `--config` says. Never over a file that is there.
pub(crate) fn init(path: Option<&Path>) -> Outcome {
    let path = path.filter(|p| !p.as_os_str().is_empty()).unwrap_or_else(|| Path::new("leasehold.toml"));
    let shown = path.display();
    let mut file = OpenOptions::new().write(true).create_new(true).open(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::refused(format!(
            "{shown} is there already and is left as it is\n  remove it first, or choose another --config PATH"
        )),
        _ => Failure::refused(format!("{shown} cannot be written: {e}")),
    })?;
    file.write_all(TEMPLATE.as_bytes()).map_err(|e| Failure::refused(format!("{shown} cannot be written: {e}")))?;
    terminal::note(format!("wrote {shown}: set the tool's URL and the model, then try `leasehold tools --why`"));
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_template_is_valid_and_declares_one_http_tool() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leasehold.toml");
        assert_eq!(init(Some(&path)).unwrap(), Exit::Done);
        let config = crate::config::load(Some(&path), &|_| None).unwrap();
        assert_eq!(config.http.len(), 1);
        assert!(config.agents[0].tools.contains(&config.http[0].tool.name));
    }

    #[test]
    fn the_templates_own_comments_are_valid_when_they_are_taken_in() {
        let text: String = TEMPLATE.lines().map(|line| format!("{}\n", line.strip_prefix("#: ").unwrap_or(line))).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leasehold.toml");
        std::fs::write(&path, text).unwrap();
        crate::config::load(Some(&path), &|_| None).unwrap();
    }

    #[test]
    fn a_file_that_is_there_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("leasehold.toml");
        std::fs::write(&path, "mine").unwrap();
        let Err(Failure::Said(Exit::Refused, text)) = init(Some(&path)) else { panic!("refused") };
        assert!(text.contains("is there already"), "{text}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
