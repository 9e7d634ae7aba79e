//! Packages of npm that tests meet as strangers: each installed once for all test processes of this checkout, under `target/`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// This machine was declared to have no Node.js: `LEASEHOLD_TEST_WITHOUT_NODE=1`.
pub fn is_left_out() -> bool {
    std::env::var("LEASEHOLD_TEST_WITHOUT_NODE").is_ok_and(|v| v == "1")
}

/// The folder whose `node_modules` has the package, which is named with its version (`eventsource@4.1.1`).
///
/// # Errors
/// There is no npm, or it cannot install it; the message says what is missing.
pub fn installed(package: &str) -> Result<PathBuf, String> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let folder = target.join(package.replace(['@', '/'], "-").trim_start_matches('-'));
    let told = |e: std::io::Error| format!("{}: {e}", folder.display());
    std::fs::create_dir_all(&folder).map_err(told)?;
    let lock = std::fs::File::create(folder.join("lock")).map_err(told)?;
    lock.lock().map_err(told)?;
    let name = package.rsplit_once('@').map_or(package, |(name, _)| name);
    let manifest = folder.join("node_modules").join(name).join("package.json");
    if !manifest.exists() {
        let status = Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"])
            .arg(&folder)
            .arg(package)
            .stdout(Stdio::null())
            .status()
            .map_err(|e| format!("this test needs Node.js with npm to install {package}: {e}"))?;
        if !status.success() || !manifest.exists() {
            return Err(format!("npm could not install {package} into {} ({status})", folder.display()));
        }
    }
    folder.canonicalize().map_err(told)
}
