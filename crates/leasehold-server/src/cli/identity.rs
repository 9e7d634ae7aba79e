//! Who asks: the owner of the store, because whoever opens it owns it; or, with `[auth] local = "token"`, whoever the token in
//! `LEASEHOLD_TOKEN` stands for, and then its role and its tools bound what a command does.

use super::{Context, Failure, context::env, local::not_begun, setup};
use crate::{
    access::{Access, AccessError, BootstrapError, Bootstrapped, Denied, Who, token_file},
    config::{StoreAt, file::Local as Shown},
    terminal,
};
use secrecy::{ExposeSecret as _, SecretString};

/// The variable with the token.
pub(super) const TOKEN: &str = "LEASEHOLD_TOKEN";

/// A secret of the environment; none where it is empty.
pub(super) fn secret(name: &str) -> Option<SecretString> {
    env(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty()).map(SecretString::from)
}

/// Who asks. With exit 2 where a token is wanted and none is given that is taken.
pub(super) async fn who(context: &Context, access: &Access) -> Result<Who, Failure> {
    let owner = Who::local(Context::principal());
    if context.config.local.value == Shown::Owner {
        return Ok(owner);
    }
    let wanted = |why: &str, mend: &str| {
        let place = &context.config.local.origin;
        Failure::usage(format!("{place}: [auth] local = \"token\": {why}\n  {mend}"))
    };
    // The first who comes finds nobody to ask for a token.
    let first = if access.is_new().await.map_err(not_begun)? {
        bootstrap(context, access, &owner).await?
    } else {
        Bootstrapped::default()
    };
    if let Some(file) = &first.token_file {
        terminal::note(format!("made the user `admin`; its token is in {}", file.display()));
    }
    let Some(token) = secret(TOKEN) else {
        let mend = format!("set {TOKEN} to a token; an admin makes one with `leasehold token create`");
        return Err(wanted("whoever opens the store shows a token, and there is none", &mend));
    };
    let who = access.bearer(token.expose_secret()).await.map_err(not_begun)?;
    who.ok_or_else(|| {
        let mend = format!("set {TOKEN} to one that is in force; an admin looks with `leasehold token list`");
        wanted("the token is unknown, expired or revoked, or its owner is disabled", &mend)
    })
}

/// Makes the first administrator where there is none.
pub(crate) async fn bootstrap(context: &Context, access: &Access, by: &Who) -> Result<Bootstrapped, Failure> {
    let config = &context.config;
    let file = match &config.store.value {
        StoreAt::Sqlite(path) => token_file(Some(path), &config.data_dir),
        StoreAt::Postgres { .. } => token_file(None, &config.data_dir),
    };
    let chosen = secret(&config.admin_token_env.value);
    if chosen.is_none() {
        setup::make_directory(&file)
            .map_err(|e| Failure::usage(format!("{}: its directory cannot be made: {e}", file.display())))?;
    }
    access.bootstrap(by, &file, chosen.as_ref()).await.map_err(|error| match error {
        BootstrapError::Access(AccessError::Invalid { why, .. }) => {
            Failure::usage(format!("environment variable {}: {why}", config.admin_token_env.value))
        }
        BootstrapError::Access(error) => refused(error),
        file @ BootstrapError::File { .. } => Failure::usage(file.to_string()),
    })
}

/// Not with these rights.
pub(crate) fn denied(denied: Denied) -> Failure {
    Failure::refused(format!("{}: {denied}\n  nothing was changed", denied.code()))
}

/// A change of users or tokens was not made.
pub(crate) fn refused(error: AccessError) -> Failure {
    match error {
        AccessError::Denied(why) => denied(why),
        AccessError::Unavailable(error) => Failure::refused(format!(
            "{error}\n  what was asked may or may not have been done: look with `leasehold user list` and `token list`"
        )),
        AccessError::Invalid { .. } => Failure::usage(format!("{}: {error}", error.code())),
        other => Failure::refused(format!("{}: {other}\n  nothing was changed", other.code())),
    }
}
