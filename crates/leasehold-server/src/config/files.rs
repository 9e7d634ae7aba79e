//! `[tool.files]`: files within one directory. Off unless it stands in the file, and it writes only where it says so.

use super::{
    diagnostic::suggest,
    effective::{Files, Origin, resolve},
    file::{self, ApprovalWord},
    policy::Wrong,
};
use leasehold::agent::tool::Approval;
use std::{collections::BTreeMap, path::Path};

const READS: [&str; 3] = ["files.list", "files.read", "files.search"];
const WRITES: [&str; 2] = ["files.edit", "files.write"];

/// The tools that there are then.
pub(super) fn tools(files: &file::Files) -> Vec<String> {
    let writes = WRITES.iter().filter(|_| files.write);
    READS.iter().chain(writes).map(|name| (*name).to_owned()).collect()
}

/// The operator's word on it.
pub(super) fn files<'a>(files: &'a file::Files, base: &Path, place: String) -> Result<Files, Wrong<'a>> {
    let mut approval = BTreeMap::new();
    for (name, word) in &files.approval {
        if !WRITES.contains(&name.get_ref().as_str()) {
            let what = format!("`{}` is not a write of [tool.files]", name.get_ref());
            return Err(Wrong { at: name, what, mend: suggest(name.get_ref(), &WRITES) });
        }
        let word = match word {
            ApprovalWord::Required => Approval::Required,
            ApprovalWord::None => Approval::None,
        };
        approval.insert(name.get_ref().clone(), word);
    }
    Ok(Files { root: resolve(base, files.root.get_ref()), write: files.write, approval, origin: Origin::File(place) })
}
