//! Logins at MCP servers, in the store: sealed, of a server's name and place together, for all processes. A refresh is one process's at
//! a time: who begins one writes that down first, and nobody else uses the refresh token until it is ended or its time is over.

use crate::access::{Access, AccessError, Document, Role, Seen, What, Who};
use async_trait::async_trait;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use jiff::{SignedDuration, Timestamp};
use leasehold::{
    agent::tool::mcp::{Begun, Kept, Login, LoginError, LoginOf, Logins, Refreshed, Ticket},
    clock::BootInstant,
    limits::MCP_REFRESH_LOCK,
    seal::{Keyring, RecordPlace, open_record},
    store::Unavailable,
};
use serde::{Deserialize, Serialize};
use serde_json::Map;
use std::{sync::Arc, time::Duration};
use uuid::Uuid;

/// Between two looks at a refresh of another process, and at a store that does not answer.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// A login. Its record's key is the server's name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoginRecord {
    /// Where the server was.
    pub(crate) endpoint: String,
    /// Who logged in or out last.
    pub(crate) by: String,
    pub(crate) at: Timestamp,
    /// None: logged out.
    sealed: Option<String>,
    pub(crate) valid_until: Option<Timestamp>,
    pub(crate) can_refresh: bool,
    pub(crate) scopes: Vec<String>,
    /// Of the last refresh.
    pub(crate) failed: Option<Failed>,
    refreshing: Option<Refreshing>,
}

impl Document for LoginRecord {
    const KIND: &'static str = "mcp_login";
}

/// A refresh that gave nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Failed {
    pub(crate) why: String,
    pub(crate) at: Timestamp,
    /// The authorization server does not take the refresh token any more.
    pub(crate) is_final: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Refreshing {
    id: String,
    until: Timestamp,
}

impl LoginRecord {
    pub(crate) fn is_in(&self) -> bool {
        self.sealed.is_some()
    }

    fn log_in(&mut self, sealed: String, login: &Login) {
        self.sealed = Some(sealed);
        self.valid_until = login.valid_until();
        self.can_refresh = login.can_refresh();
        self.scopes = login.scopes().to_vec();
        self.failed = None;
        self.refreshing = None;
    }
}

/// The logins of a store.
#[derive(Clone, Debug)]
pub(crate) struct StoreLogins {
    access: Access,
    /// None: nothing is sealed, and nobody logs in.
    keyring: Option<Arc<Keyring>>,
}

fn unavailable(error: Unavailable) -> LoginError {
    LoginError::Failed(format!("the login is not known: {error}"))
}

fn place(of: &LoginOf) -> RecordPlace<'_> {
    RecordPlace { kind: LoginRecord::KIND, key: &of.server, about: &of.endpoint }
}

impl StoreLogins {
    pub(crate) fn new(access: Access, keyring: Option<Arc<Keyring>>) -> Self {
        Self { access, keyring }
    }

    /// Whether there are keys to seal a login with.
    pub(crate) fn can_seal(&self) -> bool {
        self.keyring.is_some()
    }

    /// What is known of a server's login.
    pub(crate) async fn of(&self, server: &str) -> Result<Option<LoginRecord>, Unavailable> {
        Ok(self.access.get::<LoginRecord>(server).await?.map(|seen| seen.it))
    }

    fn sealed(&self, of: &LoginOf, login: &Login) -> Result<String, LoginError> {
        let why = |why: String| LoginError::Failed(format!("the login cannot be sealed, so it is not kept: {why}"));
        let keyring = self.keyring.as_ref().ok_or_else(|| why("there is no [seal] keyring".into()))?;
        let sealed = keyring.seal_record(place(of), &login.to_bytes()).map_err(|e| why(e.to_string()))?;
        Ok(BASE64_STANDARD.encode(sealed))
    }

    fn opened(&self, of: &LoginOf, record: &LoginRecord) -> Result<Option<Login>, LoginError> {
        let Some(sealed) = &record.sealed else { return Ok(None) };
        let log_in = format!("log in with `leasehold mcp login {}`", of.server);
        if record.endpoint != of.endpoint {
            return Err(LoginError::Needed(format!(
                "the login is for {}, and the server is at {} now: {log_in}",
                record.endpoint, of.endpoint
            )));
        }
        let bytes = BASE64_STANDARD.decode(sealed).ok();
        let bytes = bytes.ok_or_else(|| LoginError::Failed(format!("the kept login is damaged: {log_in}")))?;
        let opened = open_record(self.keyring.as_deref(), place(of), &bytes);
        let opened =
            opened.map_err(|e| LoginError::Failed(format!("the kept login does not open ({e}): {log_in}, or mend [seal]")))?;
        Login::from_bytes(&opened).map(Some)
    }

    async fn seen(&self, of: &LoginOf) -> Result<Option<(Seen<LoginRecord>, Kept)>, LoginError> {
        let Some(seen) = self.access.get::<LoginRecord>(&of.server).await.map_err(unavailable)? else { return Ok(None) };
        let Some(login) = self.opened(of, &seen.it)? else { return Ok(None) };
        let refused = seen.it.failed.as_ref().filter(|failed| failed.is_final).map(|failed| failed.why.clone());
        let failed = seen.it.failed.as_ref().map(|failed| (failed.at, failed.why.clone()));
        Ok(Some((seen, Kept { login, refused, failed })))
    }

    /// Keeps a new login in place of what was there.
    ///
    /// # Errors
    /// Not an administrator; it cannot be sealed.
    pub(crate) async fn log_in(&self, by: &Who, of: &LoginOf, login: &Login) -> Result<(), AccessError> {
        by.needs(Role::Admin)?;
        let sealed = self.sealed(of, login).map_err(|e| AccessError::Invalid { field: "seal", why: e.to_string() })?;
        self.changed(by, of, What::McpLoggedIn, |record| record.log_in(sealed.clone(), login)).await
    }

    /// Forgets a login, wherever its server is or was; whether there was one.
    ///
    /// # Errors
    /// Not an administrator.
    pub(crate) async fn log_out(&self, by: &Who, server: &str) -> Result<bool, AccessError> {
        by.needs(Role::Admin)?;
        let Some(record) = self.of(server).await?.filter(LoginRecord::is_in) else { return Ok(false) };
        let of = &LoginOf { server: server.to_owned(), endpoint: record.endpoint };
        let out = |record: &mut LoginRecord| {
            record.sealed = None;
            record.refreshing = None;
            record.failed = None;
        };
        self.changed(by, of, What::McpLoggedOut, out).await?;
        Ok(true)
    }

    async fn changed(&self, by: &Who, of: &LoginOf, what: What, change: impl Fn(&mut LoginRecord)) -> Result<(), AccessError> {
        self.access
            .until_first(&format!("the login at mcp server `{}`", of.server), async || {
                let seen = self.access.get::<LoginRecord>(&of.server).await?;
                let version = seen.map_or(0, |seen| seen.version);
                let mut it = LoginRecord {
                    endpoint: of.endpoint.clone(),
                    by: by.principal.id.clone(),
                    at: self.access.now(),
                    sealed: None,
                    valid_until: None,
                    can_refresh: false,
                    scopes: Vec::new(),
                    failed: None,
                    refreshing: None,
                };
                change(&mut it);
                let mut details = Map::new();
                details.insert("endpoint".into(), of.endpoint.clone().into());
                details.insert("scopes".into(), it.scopes.clone().into());
                let records = vec![
                    Seen { key: of.server.clone(), version, it }.record()?,
                    self.access.audit_record(&by.into(), what, format!("mcp:{}", of.server), details)?,
                ];
                Ok(self.access.put(records).await?.then_some(()))
            })
            .await
    }

    async fn put(&self, seen: &Seen<LoginRecord>) -> Result<bool, Unavailable> {
        self.access.put(vec![seen.record()?]).await
    }

    fn after(&self, refreshed: &Refreshed, of: &LoginOf, record: &mut LoginRecord) -> Result<(), LoginError> {
        let at = self.access.now();
        record.refreshing = None;
        match refreshed {
            Refreshed::Login(login) => record.log_in(self.sealed(of, login)?, login),
            Refreshed::Refused(why) => record.failed = Some(Failed { why: why.clone(), at, is_final: true }),
            Refreshed::Failed(why) => record.failed = Some(Failed { why: why.clone(), at, is_final: false }),
        }
        Ok(())
    }
}

#[async_trait]
impl Logins for StoreLogins {
    async fn load(&self, of: &LoginOf) -> Result<Option<Kept>, LoginError> {
        Ok(self.seen(of).await?.map(|(_, kept)| kept))
    }

    async fn begin_refresh(
        &self,
        of: &LoginOf,
        is_stale: &(dyn for<'l> Fn(&'l Login) -> bool + Send + Sync),
    ) -> Result<Begun, LoginError> {
        let lock = SignedDuration::try_from(MCP_REFRESH_LOCK).unwrap_or(SignedDuration::MAX);
        let mut before = None;
        loop {
            let Some((mut seen, kept)) = self.seen(of).await? else { return Ok(Begun::Gone) };
            // Not by its time: a clock may step.
            let has_failed = *before.get_or_insert_with(|| kept.failed.clone()) != kept.failed;
            if !is_stale(&kept.login) || kept.refused.is_some() || has_failed {
                return Ok(Begun::Current(kept));
            }
            let now = self.access.now();
            let until = now.checked_add(lock).unwrap_or(Timestamp::MAX);
            // One that lasts longer than any is of a clock that was ahead.
            if seen.it.refreshing.as_ref().is_some_and(|other| other.until > now && other.until <= until) {
                // Only the record says when the other is done.
                tokio::time::sleep(LOOK_AGAIN).await;
                continue;
            }
            let ticket = Ticket { id: Uuid::new_v4().to_string(), since: BootInstant::of_machine() };
            seen.it.refreshing = Some(Refreshing { id: ticket.id.clone(), until });
            if self.put(&seen).await.map_err(unavailable)? {
                return Ok(Begun::Mine(kept.login, ticket));
            }
        }
    }

    async fn end_refresh(&self, of: &LoginOf, ticket: &Ticket, refreshed: &Refreshed) -> Result<(), LoginError> {
        loop {
            let ended = async {
                let Some(mut seen) = self.access.get::<LoginRecord>(&of.server).await? else { return Ok(Ok(true)) };
                // Somebody has logged in or out meanwhile, or it is written already.
                if seen.it.refreshing.as_ref().is_none_or(|mine| mine.id != ticket.id) {
                    return Ok(Ok(true));
                }
                if let Err(error) = self.after(refreshed, of, &mut seen.it) {
                    return Ok(Err(error));
                }
                self.put(&seen).await.map(Ok)
            };
            match ended.await {
                Ok(Ok(true)) => return Ok(()),
                Ok(Ok(false)) => {}
                Ok(Err(error)) => return Err(error),
                // What the authorization server gave is given once: as long as it is ours to keep, it is tried again.
                Err(error) if ticket.since.elapsed() >= MCP_REFRESH_LOCK => return Err(unavailable(error)),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }
}
