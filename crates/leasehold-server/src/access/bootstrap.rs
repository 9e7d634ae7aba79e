//! The first administrator. A store without one gets a user `admin` and a token for it, and the token is written to a file that only
//! its owner reads. The file comes first and is the truth about the token: whoever dies between the two goes on with what the file
//! has, and of two that start at once on one file both mean the same token.

use super::{
    Access, AccessError, Rights, Role, Who,
    documents::{Seen, Token, What, rights_details},
    rights::invalid,
    secret,
    store::Actor,
    tokens::NewToken,
};
use leasehold::{
    run::PrincipalKind,
    store::{Record, Unavailable},
};
use secrecy::{ExposeSecret as _, SecretString};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// The user that the first start makes.
pub(crate) const ADMIN: &str = "admin";
/// The shortest token that an operator may choose.
const CHOSEN_BYTES_MIN: usize = 32;
/// The longest; longer ones are never looked up.
const CHOSEN_BYTES_MAX: usize = leasehold::limits::SECRET_BYTES_MAX;

/// Why there is no first administrator.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BootstrapError {
    /// The file with its token.
    #[error("{}: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Anything else.
    #[error(transparent)]
    Access(#[from] AccessError),
}

impl From<Unavailable> for BootstrapError {
    fn from(error: Unavailable) -> Self {
        Self::Access(error.into())
    }
}

/// What a start found or made.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bootstrapped {
    /// The file with the first administrator's token, where this start made them.
    pub(crate) token_file: Option<PathBuf>,
    /// The operator's own token was taken, for the first time or again.
    pub(crate) registered: bool,
}

impl Access {
    /// Makes the first administrator where there is none, and sees to it that the operator's own token is one of its tokens. With such
    /// a token no file is written: it is known already.
    pub(crate) async fn bootstrap(
        &self,
        by: &Who,
        token_file: &Path,
        chosen: Option<&SecretString>,
    ) -> Result<Bootstrapped, BootstrapError> {
        by.needs(Role::Admin).map_err(AccessError::from)?;
        if let Some(chosen) = chosen {
            let registered = self.register(by, chosen).await?;
            return Ok(Bootstrapped { token_file: None, registered });
        }
        if self.user(ADMIN).await?.is_some() {
            return Ok(Bootstrapped::default());
        }
        let (secret, made) = token_in(token_file)?;
        let (_, records) = self.first(&by.into(), "bootstrap", &secret)?;
        let put = self.put(records).await?;
        // Somebody else was faster: it may have used the same file.
        let is_ours = put || self.is_known(&secret).await?;
        if !is_ours && made {
            std::fs::remove_file(token_file).map_err(|e| failed(token_file, &e))?;
        }
        Ok(Bootstrapped { token_file: is_ours.then(|| token_file.to_owned()), registered: false })
    }

    async fn is_known(&self, secret: &SecretString) -> Result<bool, Unavailable> {
        match secret::hash(secret.expose_secret()) {
            Some(key) => Ok(self.get::<Token>(&key).await?.is_some()),
            None => Ok(false),
        }
    }

    /// What has to be written for the first administrator and its token.
    fn first(&self, by: &Actor, name: &str, secret: &SecretString) -> Result<(Token, Vec<Record>), AccessError> {
        let rights = Rights::checked(Role::Admin, &[], &[])?;
        let (_, mut records) = self.new_user(by, ADMIN, rights.clone())?;
        let (token, more) = self.new_token(by, &admin_token(name), rights, secret.expose_secret())?;
        records.extend(more);
        Ok((token, records))
    }

    /// True where the operator's token was not in force before. One that was revoked is taken again: who sets the variable says so.
    async fn register(&self, by: &Who, chosen: &SecretString) -> Result<bool, AccessError> {
        let text = chosen.expose_secret();
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !(CHOSEN_BYTES_MIN..=CHOSEN_BYTES_MAX).contains(&text.len()) || !plain {
            let rule = format!("a token of your own has {CHOSEN_BYTES_MIN} to {CHOSEN_BYTES_MAX} visible ASCII characters");
            return Err(invalid("admin_token_env", format!("{rule}; take for example the output of `openssl rand -hex 32`")));
        }
        let by = Actor::from(by);
        let key = secret::hash(text).ok_or_else(|| invalid("admin_token_env", "it is empty or too long"))?;
        self.until_first("the administrator's token", async || {
            let admin = self.user(ADMIN).await?;
            let known = self.get::<Token>(&key).await?;
            let records = match (&admin, known) {
                (Some(_), Some(known)) if known.it.revoked_at.is_none() => return Ok(Some(false)),
                (_, Some(known)) => {
                    let token = Token { revoked_at: None, ..known.it };
                    let about = format!("token:{}", token.id);
                    let told = self.audit_record(&by, What::TokenCreated, about, rights_details(&token.rights))?;
                    vec![Seen { it: token, ..known }.record()?, told]
                }
                (Some(_), None) => {
                    let rights = Rights::checked(Role::Admin, &[], &[])?;
                    self.new_token(&by, &admin_token("environment"), rights, text)?.1
                }
                (None, None) => self.first(&by, "environment", chosen)?.1,
            };
            Ok(self.put(records).await?.then_some(true))
        })
        .await
    }
}

fn admin_token(name: &str) -> NewToken {
    NewToken {
        name: name.into(),
        owner: ADMIN.into(),
        kind: PrincipalKind::Person,
        role: None,
        teams: None,
        tools: None,
        expires_at: None,
    }
}

fn failed(path: &Path, error: &io::Error) -> BootstrapError {
    BootstrapError::File { path: path.into(), why: error.to_string() }
}

/// The token that the file has, made with the file where there is none; true where it was made.
fn token_in(path: &Path) -> Result<(SecretString, bool), BootstrapError> {
    let secret = secret::fresh(secret::TOKEN_PREFIX)?;
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Whole or not at all, under its name; for its owner alone from its first byte on.
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(|e| failed(path, &e))?;
    let text = format!("{}\n", secret.expose_secret());
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(|e| failed(path, &e))?;
    match file.persist_noclobber(path) {
        Ok(_) => {
            File::open(directory).and_then(|directory| directory.sync_all()).map_err(|e| failed(path, &e))?;
            Ok((secret, true))
        }
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok((read_token(path)?, false)),
        Err(error) => Err(failed(path, &error.error)),
    }
}

/// The token of an earlier start that did not come to its end, where nobody else can have read or placed it.
fn read_token(path: &Path) -> Result<SecretString, BootstrapError> {
    let wrong = |why: &str| BootstrapError::File { path: path.into(), why: format!("{why}; move it away and start again") };
    let no_follow = i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(no_follow).open(path).map_err(|e| failed(path, &e))?;
    let about = file.metadata().map_err(|e| failed(path, &e))?;
    if !about.is_file() || about.uid() != rustix::process::getuid().as_raw() || about.mode() & 0o077 != 0 {
        return Err(wrong("it is there already, and not a file that this user alone can read"));
    }
    let mut text = String::new();
    file.take(1024).read_to_string(&mut text).map_err(|e| failed(path, &e))?;
    let token = text.trim_end();
    if token.len() != secret::TOKEN_PREFIX.len() + 43 || !token.starts_with(secret::TOKEN_PREFIX) {
        return Err(wrong("it is there already and holds no token"));
    }
    Ok(SecretString::from(token))
}

/// Where the token of the first administrator is written: beside a store that is a file, else in the user's data directory.
pub(crate) fn token_file(store_file: Option<&Path>, data_dir: &Path) -> PathBuf {
    match store_file {
        Some(file) => {
            let mut name = file.file_name().unwrap_or_default().to_owned();
            name.push(".admin-token");
            file.with_file_name(name)
        }
        None => data_dir.join("admin-token"),
    }
}
