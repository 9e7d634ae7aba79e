//! A login: what an authorization server gave for a server. Where it lies is its keeper's part; that the same right to refresh is not
//! used by two at once, too.

use crate::{
    clock::BootInstant,
    limits::{MCP_LOGIN_BYTES_MAX, MCP_REFRESH_AHEAD},
};
use async_trait::async_trait;
use jiff::{SignedDuration, Timestamp};
use rmcp::transport::auth::StoredCredentials;
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;

/// Which login: of this server at this place and no other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginOf {
    /// As configured.
    pub server: String,
    /// Where it is, without secrets.
    pub endpoint: String,
}

/// Why there is no token. No secret is in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginError {
    /// A person has to log in.
    #[error("{0}")]
    Needed(String),
    /// It did not work this time.
    #[error("{0}")]
    Failed(String),
}

/// Tokens, and with whom they were got.
#[derive(Clone, Serialize, Deserialize)]
pub struct Login {
    pub(super) client_id: String,
    pub(super) client_secret: Option<String>,
    pub(super) issuer: Option<String>,
    /// Where it was got, and is refreshed; none: kept before that was written down.
    #[serde(default)]
    pub(super) token_endpoint: Option<String>,
    pub(super) scopes: Vec<String>,
    access_token: String,
    refresh_token: Option<String>,
    received_at: Timestamp,
    expires_in_s: Option<u64>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("client_id", &self.client_id).field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

impl Login {
    /// As the SDK has it.
    pub(super) fn from_stored(
        stored: &StoredCredentials,
        client_secret: Option<String>,
        token_endpoint: Option<String>,
    ) -> Result<Self, LoginError> {
        let no_token = |why: &str| LoginError::Failed(format!("the authorization server's answer is no token: {why}"));
        let Some(response) = &stored.token_response else { return Err(no_token("it has none")) };
        let response = serde_json::to_value(response).map_err(|_| no_token("it does not read"))?;
        let text = |key: &str| response.get(key).and_then(Value::as_str).map(str::to_owned);
        if !text("token_type").is_some_and(|kind| kind.eq_ignore_ascii_case("bearer")) {
            return Err(no_token("it is of another type than `bearer`"));
        }
        let access_token = text("access_token").filter(|token| is_header_value(token));
        let login = Self {
            client_id: stored.client_id.clone(),
            client_secret,
            issuer: stored.issuer.clone(),
            token_endpoint,
            scopes: stored.granted_scopes.clone(),
            access_token: access_token.ok_or_else(|| no_token("it has characters that no header takes"))?,
            refresh_token: text("refresh_token"),
            received_at: crate::clock::to_millis(Timestamp::now()),
            expires_in_s: response.get("expires_in").and_then(Value::as_u64),
        };
        if login.to_bytes().len() > MCP_LOGIN_BYTES_MAX {
            return Err(no_token(&format!("it is longer than {MCP_LOGIN_BYTES_MAX} bytes")));
        }
        Ok(login)
    }

    /// For the SDK, which refreshes it.
    pub(super) fn to_stored(&self) -> Result<StoredCredentials, LoginError> {
        let stored = json!({
            "client_id": self.client_id,
            "issuer": self.issuer,
            "granted_scopes": self.scopes,
            "token_received_at": self.received_at.as_second(),
            "token_response": {
                "access_token": self.access_token,
                "token_type": "bearer",
                "refresh_token": self.refresh_token,
                "expires_in": self.expires_in_s,
            },
        });
        serde_json::from_value(stored).map_err(|_| LoginError::Failed("the kept login does not read".into()))
    }

    /// To be kept, sealed: it is secret as a whole.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Texts and numbers, which always serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// As it was kept.
    ///
    /// # Errors
    /// It is none. Nothing of it is repeated.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LoginError> {
        serde_json::from_slice(bytes).map_err(|_| LoginError::Failed("the kept login does not read".into()))
    }

    /// Until when the access token counts; none: its server did not say.
    pub fn valid_until(&self) -> Option<Timestamp> {
        let lasts = SignedDuration::from_secs(i64::try_from(self.expires_in_s?).unwrap_or(i64::MAX));
        Some(self.received_at.checked_add(lasts).unwrap_or(Timestamp::MAX))
    }

    /// Whether it can be refreshed without a person.
    pub fn can_refresh(&self) -> bool {
        self.refresh_token.is_some()
    }

    /// What it is good for, as its server granted it.
    pub fn scopes(&self) -> &[String] {
        &self.scopes
    }

    /// Who gave it.
    pub fn issuer(&self) -> Option<&str> {
        self.issuer.as_deref()
    }

    pub(super) fn access_token(&self) -> SecretString {
        SecretString::from(self.access_token.clone())
    }

    pub(super) fn is_for(&self, token: &SecretString) -> bool {
        self.access_token == token.expose_secret()
    }

    /// Each that must not be repeated.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &str> {
        [Some(&self.access_token), self.refresh_token.as_ref(), self.client_secret.as_ref()]
            .into_iter()
            .flatten()
            .map(String::as_str)
    }

    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.valid_until().is_some_and(|until| until <= now)
    }

    /// It is to be refreshed before it is used: ahead of its end, but not at each use of a short one.
    pub(super) fn is_nearly_over(&self, now: Timestamp) -> bool {
        let half = SignedDuration::from_secs(i64::try_from(self.expires_in_s.unwrap_or_default() / 2).unwrap_or(i64::MAX));
        let ahead = half.min(SignedDuration::try_from(MCP_REFRESH_AHEAD).unwrap_or(SignedDuration::ZERO));
        self.valid_until().is_some_and(|until| until.duration_since(now) <= ahead)
    }
}

fn is_header_value(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic())
}

/// A login as it is kept.
#[derive(Clone, Debug)]
pub struct Kept {
    /// The login.
    pub login: Login,
    /// It cannot be refreshed any more, and why.
    pub refused: Option<String>,
    /// When it was last not refreshed, and why; none: it was since.
    pub failed: Option<(Timestamp, String)>,
}

/// Who refreshes.
#[derive(Debug)]
pub enum Begun {
    /// There is no login any more.
    Gone,
    /// Somebody else has refreshed it, or has just failed to.
    Current(Kept),
    /// Nobody else does until this is ended, or its time is over ([`crate::limits::MCP_REFRESH_LOCK`]).
    Mine(Login, Ticket),
}

/// The right to refresh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// Random.
    pub id: String,
    /// When it was asked for, on a clock that goes on while the machine sleeps.
    pub since: BootInstant,
}

/// What a refresh came to.
#[derive(Clone, Debug)]
pub enum Refreshed {
    /// Another login, which replaces the one before.
    Login(Login),
    /// The authorization server takes the refresh token no more.
    Refused(String),
    /// It did not work this time.
    Failed(String),
}

/// Keeps logins, for all processes.
#[async_trait]
pub trait Logins: fmt::Debug + Send + Sync {
    /// The login as it is kept now.
    async fn load(&self, of: &LoginOf) -> Result<Option<Kept>, LoginError>;

    /// Takes the right to refresh, where the login is stale still. Waits while another has it, and takes what that one came to, good or bad.
    async fn begin_refresh(
        &self,
        of: &LoginOf,
        is_stale: &(dyn for<'l> Fn(&'l Login) -> bool + Send + Sync),
    ) -> Result<Begun, LoginError>;

    /// Keeps what the refresh came to, and gives the right back. Where the login was replaced or ended meanwhile, it is not kept.
    async fn end_refresh(&self, of: &LoginOf, ticket: &Ticket, refreshed: &Refreshed) -> Result<(), LoginError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(expires_in: Option<u64>) -> Login {
        let stored = json!({
            "client_id": "c",
            "token_response": { "access_token": "at-secret", "token_type": "Bearer", "refresh_token": "rt-secret", "expires_in": expires_in },
        });
        Login::from_stored(&serde_json::from_value(stored).unwrap(), Some("cs-secret".into()), None).unwrap()
    }

    #[test]
    fn it_is_refreshed_ahead_of_its_end_and_a_short_one_at_its_half() {
        let after = |login: &Login, seconds: i64| login.received_at + SignedDuration::from_secs(seconds);
        let long = login(Some(3_600));
        let ahead = i64::try_from(MCP_REFRESH_AHEAD.as_secs()).unwrap();
        assert!(!long.is_nearly_over(after(&long, 3_599 - ahead)) && long.is_nearly_over(after(&long, 3_600 - ahead)));
        assert!(!long.is_over(after(&long, 3_599)) && long.is_over(after(&long, 3_600)));
        let short = login(Some(10));
        assert!(!short.is_nearly_over(after(&short, 4)) && short.is_nearly_over(after(&short, 5)));
        let endless = login(None);
        assert!(!endless.is_nearly_over(Timestamp::MAX) && endless.valid_until().is_none());
    }

    #[test]
    fn it_survives_being_kept_and_shows_nothing() {
        let before = login(Some(60));
        let after = Login::from_bytes(&before.to_bytes()).unwrap();
        assert_eq!(after.secrets().collect::<Vec<_>>(), ["at-secret", "rt-secret", "cs-secret"]);
        assert_eq!(after.to_stored().unwrap().client_id, "c");
        assert!(!format!("{after:?}").contains("secret"), "{after:?}");
        assert!(!Login::from_bytes(b"at-secret").unwrap_err().to_string().contains("secret"));
    }

    #[test]
    fn what_is_no_bearer_token_or_too_long_is_refused() {
        let of = |token: String, kind: &str| {
            let stored = json!({ "client_id": "c", "token_response": { "access_token": token, "token_type": kind } });
            Login::from_stored(&serde_json::from_value(stored).unwrap(), None, None).map(|login| login.to_bytes().len())
        };
        assert!(of("a".into(), "mac").is_err() && of("a b".into(), "bearer").is_err() && of("ä".into(), "bearer").is_err());
        let rest = of("a".into(), "bearer").unwrap() - 1;
        // The time of receipt is of a varying length.
        assert!(of("a".repeat(MCP_LOGIN_BYTES_MAX - rest - 16), "bearer").is_ok());
        assert!(of("a".repeat(MCP_LOGIN_BYTES_MAX), "bearer").is_err());
    }
}
