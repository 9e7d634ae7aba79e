//! `leasehold runs artifacts`: what the calls of a run have had kept, and as files. The names are ours and no file is written over.

use super::{
    Context, Exit, Failure, Outcome,
    local::{Local, Needs},
};
use crate::{
    terminal::{self, Screen},
    wire::{Artifact, Page, served_as},
};
use sha2::{Digest as _, Sha256};
use std::{
    fs::File,
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
};

/// Options of `runs artifacts`.
#[derive(Debug, clap::Args)]
pub(crate) struct ArtifactsArgs {
    /// The run: its id, or the end of it
    pub(super) run: String,
    /// Write each into this directory, under its handle
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
}

/// Of a run in the store.
pub(super) async fn artifacts(context: &Context, args: ArtifactsArgs) -> Outcome {
    let local = Local::open(context, Needs::Store).await?;
    let id = local.find(&args.run).await?;
    let engine = local.runtime.engine();
    let read = |error: leasehold::store::ReadError| Failure::refused(error.to_string());
    let kept: Vec<Artifact> = engine.artifacts(id).await.map_err(read)?.into_iter().map(Artifact::from).collect();
    if let Some(directory) = &args.out {
        for artifact in &kept {
            let found = engine.artifact(id, &artifact.artifact).await.map_err(read)?;
            let (_, content) = found.ok_or_else(|| Failure::refused(format!("there is no {} any more", artifact.artifact)))?;
            write(directory, artifact, &content)?;
        }
    }
    show(kept, context.json)
}

/// Lists them.
pub(super) fn show(kept: Vec<Artifact>, json: bool) -> Outcome {
    if json {
        terminal::print_json(&Page::whole(kept))?;
        return Ok(Exit::Done);
    }
    if kept.is_empty() {
        terminal::note("no call of this run has had anything kept");
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> =
        kept.into_iter().map(|it| vec![it.artifact, it.call_id, it.kind, it.mime_type, it.bytes.to_string()]).collect();
    let mut screen = Screen::stdout();
    screen.table(&["artifact", "call", "type", "mime type", "bytes"], &rows);
    screen.print()?;
    Ok(Exit::Done)
}

/// Writes one into a directory, where there is no such file yet; one that is there already with this very content is left.
pub(super) fn write(directory: &Path, artifact: &Artifact, content: &[u8]) -> Result<(), Failure> {
    let is_ours = (1..=64).contains(&artifact.artifact.len()) && artifact.artifact.bytes().all(|b| b.is_ascii_hexdigit());
    if !is_ours || hex::encode(Sha256::digest(content)) != artifact.sha256 {
        return Err(Failure::refused(format!(
            "artifact {:?} is not what it says it is; it was not written",
            artifact.artifact
        )));
    }
    let path = directory.join(format!("{}.{}", artifact.artifact, served_as(&artifact.mime_type, content).1));
    let failed = |error: std::io::Error| Failure::refused(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(directory).map_err(failed)?;
    match File::create_new(&path) {
        Ok(mut file) => file.write_all(content).and_then(|()| file.sync_all()).map_err(failed)?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if std::fs::read(&path).map_err(failed)? != content {
                let why = "it is there already with other content, and is not written over; name another directory";
                return Err(Failure::refused(format!("{}: {why}", path.display())));
            }
        }
        Err(error) => return Err(failed(error)),
    }
    terminal::note(format!("{}", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(handle: &str, content: &[u8]) -> Artifact {
        Artifact {
            artifact: handle.into(),
            call_id: "t1c0".into(),
            sequence: 3,
            kind: "image".into(),
            mime_type: "image/png".into(),
            bytes: content.len() as u64,
            sha256: hex::encode(Sha256::digest(content)),
        }
    }

    #[test]
    fn no_file_is_written_over_and_no_name_leads_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("out");
        let one = artifact("0a", b"one");
        write(&out, &one, b"one").unwrap();
        write(&out, &one, b"one").unwrap();
        assert_eq!(std::fs::read(out.join("0a.bin")).unwrap(), b"one");
        std::fs::write(out.join("0a.bin"), "mine").unwrap();
        assert!(write(&out, &one, b"one").is_err());
        assert_eq!(std::fs::read(out.join("0a.bin")).unwrap(), b"mine");
        std::os::unix::fs::symlink(directory.path().join("elsewhere"), out.join("0b.bin")).unwrap();
        assert!(write(&out, &artifact("0b", b"one"), b"one").is_err());
        assert!(!directory.path().join("elsewhere").exists());
        for handle in ["../0a", "a/b", "", "0a.png"] {
            assert!(write(&out, &artifact(handle, b"one"), b"one").is_err(), "{handle}");
        }
        assert!(write(&out, &artifact("0c", b"one"), b"two").is_err(), "another content than was listed");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
