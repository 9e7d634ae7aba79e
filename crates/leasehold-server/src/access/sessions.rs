//! Sessions of browsers, and the links that begin one. A login always makes a new secret, and ends the session that the browser had.
//! A session ends an hour after its last use, twelve hours after its login, when it is logged out, when its user is disabled or has
//! all its sessions revoked, and with the token that it was begun with.

use super::{
    Access, AccessError, Method, Role, Who,
    documents::{LAST_USED, Link, Seen, Session, User, What, later, person},
    rights::invalid,
    secret,
    store::{Actor, new_id},
    users::no_such_user,
};
use jiff::Timestamp;
use leasehold::{
    run::PrincipalKind,
    store::{Record, Unavailable},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Map;

/// A session that has just begun.
#[derive(Debug)]
pub(crate) struct NewSession {
    /// For the browser alone.
    pub(crate) secret: SecretString,
}

/// A login link that has just been made.
#[derive(Debug)]
pub(crate) struct NewLink {
    /// For its user alone.
    pub(crate) secret: SecretString,
    /// Can be used until then.
    pub(crate) ends_at: Timestamp,
}

impl NewLink {
    /// The page that takes it, of the server at this address.
    pub(crate) fn url(&self, server: &str) -> String {
        format!("{server}/login?link={}", self.secret.expose_secret())
    }
}

impl Access {
    /// Who has this session; none where it lets nobody in, for whatever reason.
    pub(crate) async fn session(&self, secret: &str) -> Result<Option<Who>, Unavailable> {
        let Some(mut seen) = self.open_session(secret).await? else { return Ok(None) };
        let Some(who) = self.who_of(&seen.it).await? else { return Ok(None) };
        let now = self.now();
        if later(seen.it.last_used_at, LAST_USED) <= now {
            seen.it.last_used_at = now;
            self.used(&seen).await;
        }
        Ok(Some(who))
    }

    /// The session of this secret, as long as it is none of its user's affairs that it is over.
    async fn open_session(&self, secret: &str) -> Result<Option<Seen<Session>>, Unavailable> {
        let Some(key) = secret::hash(secret) else { return Ok(None) };
        let seen = self.get::<Session>(&key).await?;
        Ok(seen.filter(|seen| seen.it.ended_at.is_none() && seen.it.ends_at() > self.now()))
    }

    async fn who_of(&self, session: &Session) -> Result<Option<Who>, Unavailable> {
        let method = Method::Session(session.id.clone());
        let (user, who) = match &session.token {
            Some(key) => match self.in_force(key).await? {
                Some(found) => (found.user, Who { method, ..found.who }),
                None => return Ok(None),
            },
            None => match self.user(&session.user).await?.filter(|user| !user.disabled) {
                Some(user) => {
                    let (principal, rights) = (user.principal(), user.rights.clone());
                    let person = principal.id.clone();
                    let who = Who { principal, person, role: rights.role, teams: rights.teams, tools: rights.tools, method };
                    (user, who)
                }
                None => return Ok(None),
            },
        };
        Ok((user.name == session.user && user.generation == session.generation).then_some(who))
    }

    /// Begins a session for the person who shows this token; `previous` is what the browser had, and ends. None where the token lets
    /// nobody in, or a machine: machines have no browsers.
    pub(crate) async fn start_session(&self, token: &str, previous: Option<&str>) -> Result<Option<NewSession>, AccessError> {
        let Some(key) = secret::hash(token) else { return Ok(None) };
        self.until_first("the session", async || {
            let found = self.in_force(&key).await?;
            let Some(found) = found.filter(|found| found.token.it.kind == PrincipalKind::Person) else { return Ok(Some(None)) };
            let by = Actor::from(&found.who);
            let (session, mut records) = self.new_session(&by, &found.user, Some(&key))?;
            records.extend(self.ended(&by, previous).await?);
            Ok(self.put(records).await?.then_some(Some(session)))
        })
        .await
    }

    fn new_session(&self, by: &Actor, user: &User, token: Option<&str>) -> Result<(NewSession, Vec<Record>), Unavailable> {
        let (secret, now) = (secret::fresh("")?, self.now());
        let session = Session {
            id: new_id(),
            user: user.name.clone(),
            token: token.map(str::to_owned),
            generation: user.generation,
            created_at: now,
            last_used_at: now,
            ended_at: None,
        };
        let about = format!("session:{}", session.id);
        let mut details = Map::new();
        details.insert("user".into(), person(&user.name).into());
        let told = self.audit_record(by, What::SessionStarted, about, details)?;
        let new = NewSession { secret };
        // It was just made and has a hash.
        let key = secret::hash(new.secret.expose_secret()).unwrap_or_default();
        Ok((new, vec![Seen::new(key, session).record()?, told]))
    }

    /// What has to be written to end a session, where there is one.
    async fn ended(&self, by: &Actor, secret: Option<&str>) -> Result<Vec<Record>, Unavailable> {
        let Some(secret) = secret else { return Ok(Vec::new()) };
        let Some(mut seen) = self.open_session(secret).await? else { return Ok(Vec::new()) };
        seen.it.ended_at = Some(self.now());
        let about = format!("session:{}", seen.it.id);
        Ok(vec![seen.record()?, self.audit_record(by, What::SessionEnded, about, Map::new())?])
    }

    /// Logs a browser out. False where it had no session any more.
    pub(crate) async fn end_session(&self, secret: &str) -> Result<bool, AccessError> {
        self.until_first("the session", async || {
            let Some(seen) = self.open_session(secret).await? else { return Ok(Some(false)) };
            let by = Actor { who: person(&seen.it.user), method: format!("session:{}", seen.it.id) };
            let records = self.ended(&by, Some(secret)).await?;
            if records.is_empty() {
                return Ok(Some(false));
            }
            Ok(self.put(records).await?.then_some(true))
        })
        .await
    }

    /// Makes a link that logs this user in once, within ten minutes.
    pub(crate) async fn login_link(&self, by: &Who, user: &str) -> Result<NewLink, AccessError> {
        by.needs(Role::Admin)?;
        let user = self.user(user).await?.ok_or_else(|| no_such_user(user))?;
        if user.disabled {
            return Err(invalid("name", format!("the user `{}` is disabled", user.name)));
        }
        let secret = secret::fresh("")?;
        let link = Link { id: new_id(), user: user.name, generation: user.generation, created_at: self.now(), used_at: None };
        let mut details = Map::new();
        details.insert("user".into(), person(&link.user).into());
        let told = self.audit_record(&by.into(), What::LoginLinkMade, format!("login_link:{}", link.id), details)?;
        let ends_at = link.ends_at();
        // It was just made and has a hash.
        let key = secret::hash(secret.expose_secret()).unwrap_or_default();
        let put = self.put(vec![Seen::new(key, link).record()?, told]).await?;
        if put { Ok(NewLink { secret, ends_at }) } else { Err(AccessError::Conflict("the link".into())) }
    }

    /// Begins a session for the user of this link, once: of many who show it at the same time one gets it, and none after. None where
    /// it logs nobody in. `previous` is what the browser had, and ends.
    pub(crate) async fn consume_link(&self, link: &str, previous: Option<&str>) -> Result<Option<NewSession>, AccessError> {
        let Some(key) = secret::hash(link) else { return Ok(None) };
        self.until_first("the link", async || {
            let Some(mut seen) = self.get::<Link>(&key).await? else { return Ok(Some(None)) };
            let now = self.now();
            let user = self.user(&seen.it.user).await?.filter(|user| !user.disabled && user.generation == seen.it.generation);
            let Some(user) = user.filter(|_| seen.it.used_at.is_none() && seen.it.ends_at() > now) else {
                return Ok(Some(None));
            };
            seen.it.used_at = Some(now);
            let about = format!("login_link:{}", seen.it.id);
            let by = Actor { who: person(&user.name), method: about.clone() };
            let (session, mut records) = self.new_session(&by, &user, None)?;
            records.push(seen.record()?);
            records.push(self.audit_record(&by, What::LoginLinkUsed, about, Map::new())?);
            records.extend(self.ended(&by, previous).await?);
            Ok(self.put(records).await?.then_some(Some(session)))
        })
        .await
    }

    /// Takes away sessions and links that are long over; how many.
    pub(crate) async fn forget_expired(&self) -> Result<usize, Unavailable> {
        Ok(self.forget::<Session>().await? + self.forget::<Link>().await?)
    }
}
