//! The right to use a server over HTTP: OAuth 2.1 as MCP has it.
//!
//! - **The token goes to the configured server and nowhere else**: it is added where the request is made, no redirect is followed, and
//!   a login is of a server's name and place together.
//! - **A refresh token is not used by two.** Who refreshes has the right to from who keeps the logins; the others wait, and read. The
//!   refresh goes on where its caller gives up, so that what came of it is kept.
//! - **Nothing is sent a second time for want of a token** but what changes nothing: see [`super::guarded`].

mod config;
mod flow;
mod http;
mod login;
#[cfg(test)]
mod tests;

pub use config::{Grant, OAuthConfig};
pub use flow::PendingLogin;
pub use login::{Begun, Kept, Login, LoginError, LoginOf, Logins, Refreshed, Ticket};

use super::{McpServer, mask::Mask};
use crate::limits::{MCP_BACKOFF_MAX, MCP_REFRESH_LOCK, MCP_REFRESH_MAX};
use flow::{Flow, Wanted};
use jiff::Timestamp;
use reqwest::Url;
use secrecy::SecretString;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

impl McpServer {
    /// Begins a login of a person at its authorization server, which sends the browser back to `redirect`.
    ///
    /// # Errors
    /// It has no `[mcp.oauth]`, or there is no authorization server that can be used.
    pub async fn begin_login(&self, redirect: &str) -> Result<PendingLogin, LoginError> {
        match self.0.target.authorization() {
            Some(authorization) => authorization.begin_login(redirect).await,
            None => Err(LoginError::Failed(format!("mcp server `{}` has no [mcp.oauth] in the configuration", self.name()))),
        }
    }

    /// Which login it uses.
    pub fn login_of(&self) -> LoginOf {
        LoginOf { server: self.name().to_owned(), endpoint: self.endpoint().to_owned() }
    }

    /// How it gets the right to use the server; none: it asks for none.
    pub fn oauth(&self) -> Option<&OAuthConfig> {
        self.0.config.oauth.as_ref()
    }
}

/// Gives the tokens of one server.
pub(super) struct Authorization {
    of: LoginOf,
    flow: Flow,
    /// None: nobody keeps logins here.
    logins: Option<Arc<dyn Logins>>,
    /// Of a machine; it is got anew at any time.
    own: Mutex<Option<Login>>,
    /// The server said no to it.
    rejected: Mutex<Option<SecretString>>,
    /// When another token was last got for that.
    replaced: Mutex<Option<Instant>>,
    wanted: Mutex<Wanted>,
    /// What the token is good for that was used last.
    granted: Mutex<Vec<String>>,
    mask: Mask,
    /// Held while a token is got.
    turn: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorization").field("of", &self.of).finish_non_exhaustive()
    }
}

fn set<T>(mutex: &Mutex<T>, value: T) {
    *mutex.lock().unwrap_or_else(PoisonError::into_inner) = value;
}

fn get<T: Clone>(mutex: &Mutex<T>) -> T {
    mutex.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn wanted(challenge: &str, granted: Vec<String>) -> Wanted {
    Wanted { challenge: Some(challenge.to_owned()).filter(|challenge| !challenge.is_empty()), granted }
}

impl Authorization {
    pub(super) fn new(
        of: LoginOf,
        (url, client): (Url, reqwest::Client),
        (config, client_secret): (OAuthConfig, Option<SecretString>),
        mask: Mask,
        logins: Option<Arc<dyn Logins>>,
    ) -> Self {
        Self {
            of,
            flow: Flow { url, client, config, client_secret },
            logins,
            own: Mutex::default(),
            rejected: Mutex::default(),
            replaced: Mutex::default(),
            wanted: Mutex::default(),
            granted: Mutex::default(),
            mask,
            turn: tokio::sync::Mutex::default(),
        }
    }

    fn is_of_machine(&self) -> bool {
        self.flow.config.grant == Grant::ClientCredentials
    }

    /// The mend.
    fn log_in(&self) -> String {
        match self.is_of_machine() {
            true => "see `client_id` and `client_secret_env` of [mcp.oauth]".into(),
            false => format!("log in with `leasehold mcp login {}`", self.of.server),
        }
    }

    fn needed(&self, why: impl fmt::Display) -> LoginError {
        LoginError::Needed(self.mask.said(&format!("{why}: {}", self.log_in())))
    }

    /// A token that counts for now.
    pub(super) async fn token(self: &Arc<Self>) -> Result<SecretString, LoginError> {
        let kept = match &self.logins {
            _ if self.is_of_machine() => get(&self.own).map(|login| Kept { login, refused: None, failed: None }),
            None => return Err(LoginError::Needed("nobody keeps logins in this process".into())),
            Some(logins) => Some(logins.load(&self.of).await?.ok_or_else(|| self.needed("nobody has logged in"))?),
        };
        match kept {
            Some(kept) if !self.is_stale(&kept.login) || self.is_put_off(&kept) => Ok(self.used(&kept.login)),
            kept => {
                // Whoever waits for it may give up; what the authorization server gives is kept all the same.
                let this = Arc::clone(self);
                let got = tokio::spawn(async move { this.got_anew(kept).await });
                got.await.unwrap_or_else(|e| Err(LoginError::Failed(format!("the refresh ended early: {e}"))))
            }
        }
    }

    async fn got_anew(&self, kept: Option<Kept>) -> Result<SecretString, LoginError> {
        let _turn = self.turn.lock().await;
        let Some(logins) = self.logins.as_ref().filter(|_| !self.is_of_machine()) else {
            if let Some(login) = get(&self.own).filter(|login| !self.is_stale(login)) {
                return Ok(self.used(&login));
            }
            let login = tokio::time::timeout(MCP_REFRESH_MAX, self.flow.as_machine()).await;
            let login = login.unwrap_or_else(|_| Err(LoginError::Failed(format!("no token within {MCP_REFRESH_MAX:?}"))));
            let login = login.map_err(|e| self.needed(e))?;
            let token = self.used(&login);
            if let Some(before) = get(&self.own) {
                self.replaces(&before);
            }
            set(&self.own, Some(login));
            return Ok(token);
        };
        let last = |kept: &Kept, why: String| {
            // It counts until it ends, unless its server said otherwise.
            match kept.login.is_over(Timestamp::now()) || self.is_rejected(&kept.login) {
                true => Err(self.needed(why)),
                false => Ok(self.used(&kept.login)),
            }
        };
        // What another turn came to meanwhile is what this one would.
        let before = kept.as_ref().and_then(|kept| kept.failed.clone());
        let why_not = |kept: &Kept| {
            let failed = kept.failed.as_ref().filter(|failed| before.as_ref() != Some(*failed));
            let refused = |why: &String| format!("its authorization server refused to refresh the login ({why})");
            let failed = failed.map(|(_, why)| format!("the login was not refreshed ({why})"));
            kept.refused.as_ref().map(refused).or(failed)
        };
        let Some(kept) = kept else { return Err(self.needed("nobody has logged in")) };
        let kept = logins.load(&self.of).await?.unwrap_or(kept);
        if !self.is_stale(&kept.login) {
            return Ok(self.used(&kept.login));
        }
        if let Some(why) = why_not(&kept) {
            return last(&kept, why);
        }
        if !kept.login.can_refresh() {
            return last(&kept, "the login is over, and cannot be refreshed".into());
        }
        match logins.begin_refresh(&self.of, &|login| self.is_stale(login)).await? {
            Begun::Gone => Err(self.needed("nobody has logged in")),
            Begun::Current(kept) => match why_not(&kept) {
                Some(why) => last(&kept, why),
                None => Ok(self.used(&kept.login)),
            },
            Begun::Mine(login, ticket) => {
                login.secrets().for_each(|secret| self.mask.add_live(secret));
                let may_send = || ticket.since.elapsed() + MCP_REFRESH_MAX < MCP_REFRESH_LOCK;
                let refreshed = tokio::time::timeout(MCP_REFRESH_MAX, self.flow.refresh(&login, may_send)).await;
                let refreshed = match refreshed {
                    Ok(Refreshed::Login(login)) => Refreshed::Login(login),
                    Ok(Refreshed::Refused(why)) => Refreshed::Refused(self.mask.said(&why)),
                    Ok(Refreshed::Failed(why)) => Refreshed::Failed(self.mask.said(&why)),
                    Err(_) => Refreshed::Failed(format!("no answer within {MCP_REFRESH_MAX:?}")),
                };
                if let Refreshed::Login(login) = &refreshed {
                    login.secrets().for_each(|secret| self.mask.add_live(secret));
                }
                logins.end_refresh(&self.of, &ticket, &refreshed).await?;
                self.replaces(&login);
                match refreshed {
                    Refreshed::Login(login) => Ok(self.used(&login)),
                    Refreshed::Refused(why) => {
                        last(&kept, format!("its authorization server refused to refresh the login ({why})"))
                    }
                    Refreshed::Failed(why) => last(&kept, format!("the login was not refreshed ({why})")),
                }
            }
        }
    }

    fn used(&self, login: &Login) -> SecretString {
        login.secrets().for_each(|secret| self.mask.add_live(secret));
        set(&self.granted, login.scopes().to_vec());
        login.access_token()
    }

    /// A server that says no to every token is not given a new one each time.
    fn is_rejected(&self, login: &Login) -> bool {
        let is_it = get(&self.rejected).is_some_and(|rejected| login.is_for(&rejected));
        is_it && get(&self.replaced).is_none_or(|at| at.elapsed() >= MCP_BACKOFF_MAX)
    }

    fn replaces(&self, login: &Login) {
        if self.is_rejected(login) {
            set(&self.replaced, Some(Instant::now()));
        }
    }

    /// A refresh that failed is not tried again by each request, as long as there is a token that counts.
    fn is_put_off(&self, kept: &Kept) -> bool {
        let now = Timestamp::now();
        let is_recent = |at: Timestamp| {
            let ago = Duration::try_from(now.duration_since(at));
            // After a step of the clock it is tried again rather than never.
            ago.is_ok_and(|ago| ago < MCP_BACKOFF_MAX)
        };
        kept.failed.as_ref().is_some_and(|(at, _)| is_recent(*at)) && !kept.login.is_over(now) && !self.is_rejected(&kept.login)
    }

    fn is_stale(&self, login: &Login) -> bool {
        login.is_nearly_over(Timestamp::now()) || self.is_rejected(login)
    }

    /// The server said no to this token. What it wants, in words, with the mend.
    pub(super) fn refused(&self, token: &SecretString, challenge: &str) -> String {
        set(&self.rejected, Some(token.clone()));
        set(&self.wanted, wanted(challenge, Vec::new()));
        let said = if challenge.is_empty() { String::new() } else { format!(", {challenge}") };
        self.mask.said(&format!("the server does not take the token (401{said}): {} if that goes on", self.log_in()))
    }

    /// The server says that the token is good for less.
    pub(super) fn lacks(&self, scope: Option<&str>, challenge: &str) -> String {
        set(&self.wanted, wanted(challenge, get(&self.granted)));
        let what = match scope {
            Some(scope) => {
                format!(
                    "the server wants more than the login grants (403, scope `{scope}`): write it into `scopes` of [mcp.oauth], beside what is granted"
                )
            }
            None => "the server does not allow it to this login (403)".to_owned(),
        };
        self.mask.said(&format!("{what}: {}", self.log_in()))
    }

    /// Begins a login. The server's last words say what it wants.
    pub(super) async fn begin_login(&self, redirect: &str) -> Result<PendingLogin, LoginError> {
        if self.is_of_machine() {
            return Err(LoginError::Failed(
                "nobody logs in where `grant` is client_credentials: this program does it by itself".into(),
            ));
        }
        let pending = tokio::time::timeout(MCP_REFRESH_MAX, self.flow.begin(redirect, &get(&self.wanted))).await;
        let pending = pending.unwrap_or_else(|_| Err(LoginError::Failed(format!("no answer within {MCP_REFRESH_MAX:?}"))));
        pending.map_err(|error| match error {
            LoginError::Needed(why) => LoginError::Needed(self.mask.said(&why)),
            LoginError::Failed(why) => LoginError::Failed(self.mask.said(&why)),
        })
    }

    /// Waits until no refresh of this process is under way: as long as another process may have the right to, and one of ours may take.
    pub(super) async fn at_rest(&self) {
        // Who takes longer has lost the right meanwhile.
        let _ = tokio::time::timeout(MCP_REFRESH_LOCK + MCP_REFRESH_MAX, self.turn.lock()).await;
    }
}
