//! API tokens. A token is a secret, shown once when it is made; it acts as its owner, or as a machine of its owner, and may never
//! more than its owner may at that moment.

use super::{
    Access, AccessError, Method, Rights, Role, Who,
    documents::{LAST_USED, Machine, Seen, Token, User, What, later, machine_role, person, rights_details},
    rights::{check_name, invalid},
    secret,
    store::{Actor, Page, new_id},
    users::no_such_user,
};
use jiff::Timestamp;
use leasehold::{
    run::PrincipalKind,
    store::{Record, Unavailable},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Map;

/// A token to be made; what is none comes from its owner.
#[derive(Clone, Debug)]
pub(crate) struct NewToken {
    /// What it is for.
    pub(crate) name: String,
    /// A user.
    pub(crate) owner: String,
    /// Person or machine.
    pub(crate) kind: PrincipalKind,
    /// None: the owner's; of a machine at most a runner.
    pub(crate) role: Option<Role>,
    /// None: the owner's.
    pub(crate) teams: Option<Vec<String>>,
    /// None: the owner's.
    pub(crate) tools: Option<Vec<String>>,
    /// None: it does not expire.
    pub(crate) expires_at: Option<Timestamp>,
}

/// A token that lets somebody in right now, and whom.
#[derive(Clone, Debug)]
pub(super) struct InForce {
    pub(super) token: Seen<Token>,
    pub(super) user: User,
    pub(super) who: Who,
}

impl Access {
    /// Who shows this token; none where it lets nobody in, for whatever reason.
    pub(crate) async fn bearer(&self, token: &str) -> Result<Option<Who>, Unavailable> {
        let Some(key) = secret::hash(token) else { return Ok(None) };
        let Some(InForce { mut token, who, .. }) = self.in_force(&key).await? else { return Ok(None) };
        let now = self.now();
        if token.it.last_used_at.is_none_or(|at| later(at, LAST_USED) <= now) {
            token.it.last_used_at = Some(now);
            self.used(&token).await;
        }
        Ok(Some(who))
    }

    /// The token of this key, where it and its owner are let in.
    pub(super) async fn in_force(&self, key: &str) -> Result<Option<InForce>, Unavailable> {
        let Some(token) = self.get::<Token>(key).await? else { return Ok(None) };
        let over = token.it.revoked_at.is_some() || token.it.expires_at.is_some_and(|end| end <= self.now());
        let owner = self.user(&token.it.owner).await?.filter(|owner| !owner.disabled);
        let Some(user) = owner.filter(|_| !over) else { return Ok(None) };
        let Rights { role, teams, tools } = token.it.rights.meet(&user.rights);
        let method = Method::Token(token.it.id.clone());
        let who = Who { principal: token.it.principal(), person: person(&user.name), role, teams, tools, method };
        Ok(Some(InForce { token, user, who }))
    }

    /// Makes a token; its secret is here and nowhere else.
    pub(crate) async fn create_token(&self, by: &Who, new: NewToken) -> Result<(Token, SecretString), AccessError> {
        by.needs(Role::Admin)?;
        check_name("name", &new.name)?;
        let now = self.now();
        if new.expires_at.is_some_and(|end| end <= now) {
            return Err(invalid("expires_at", "it would have expired already"));
        }
        let secret = secret::fresh(secret::TOKEN_PREFIX)?;
        let token = self
            .until_first(&format!("machine `{}`", new.name), async || {
                let owner = self.user(&new.owner).await?.ok_or_else(|| no_such_user(&new.owner))?;
                if owner.disabled {
                    return Err(invalid("owner", format!("the user `{}` is disabled", owner.name)));
                }
                let rights = rights_of(&new, &owner)?;
                let mut records = self.machine(&new).await?;
                let (token, more) = self.new_token(&by.into(), &new, rights, secret.expose_secret())?;
                records.extend(more);
                Ok(self.put(records).await?.then_some(token))
            })
            .await?;
        Ok((token, secret))
    }

    /// What has to be written so that a machine's name is its owner's; an error where it is somebody else's.
    async fn machine(&self, new: &NewToken) -> Result<Vec<Record>, AccessError> {
        if new.kind != PrincipalKind::Machine {
            return Ok(Vec::new());
        }
        match self.get::<Machine>(&new.name).await? {
            None => Ok(vec![Seen::new(&new.name, Machine { owner: new.owner.clone() }).record()?]),
            Some(machine) if machine.it.owner == new.owner => Ok(Vec::new()),
            Some(_) => Err(invalid("name", format!("the machine `{}` is another user's", new.name))),
        }
    }

    /// A token that is not there yet, and what has to be written for it.
    pub(super) fn new_token(
        &self,
        by: &Actor,
        new: &NewToken,
        rights: Rights,
        secret: &str,
    ) -> Result<(Token, Vec<Record>), AccessError> {
        let key = secret::hash(secret).ok_or_else(|| invalid("token", "it is empty or too long"))?;
        let token = Token {
            id: new_id(),
            name: new.name.clone(),
            owner: new.owner.clone(),
            kind: new.kind,
            rights,
            expires_at: new.expires_at.map(leasehold::clock::to_millis),
            revoked_at: None,
            last_used_at: None,
            created_by: by.who.clone(),
            created_at: self.now(),
        };
        let mut details = rights_details(&token.rights);
        details.insert("name".into(), token.name.clone().into());
        details.insert("principal".into(), token.principal().id.into());
        details.insert("owner".into(), person(&token.owner).into());
        let told = self.audit_record(by, What::TokenCreated, format!("token:{}", token.id), details)?;
        Ok((token.clone(), vec![Seen::new(key, token).record()?, told]))
    }

    /// Tokens in an order of no meaning.
    pub(crate) async fn tokens(&self, after: Option<&str>, limit: usize) -> Result<Page<Token>, Unavailable> {
        Ok(self.page(after, limit).await?.map(|seen| seen.it))
    }

    /// Revokes the token of this id, for good: an admin, or the person who owns it. One that is revoked stays so.
    pub(crate) async fn revoke_token(&self, by: &Who, id: &str) -> Result<Token, AccessError> {
        self.until_first(&format!("token {id}"), async || {
            let none = || AccessError::NotFound(format!("token `{id}`"));
            let found = self.find::<Token>(|token| token.id == id).await?;
            let own = |token: &Token| by.principal.kind == PrincipalKind::Person && by.person == person(&token.owner);
            let mut seen = match found {
                Some(seen) if own(&seen.it) => seen,
                // Whoever may not revoke it is not told whether it is there.
                found => {
                    by.needs(Role::Admin)?;
                    found.ok_or_else(none)?
                }
            };
            if seen.it.revoked_at.is_some() {
                return Ok(Some(seen.it));
            }
            seen.it.revoked_at = Some(self.now());
            let told = self.audit_record(&by.into(), What::TokenRevoked, format!("token:{id}"), Map::new())?;
            Ok(self.put(vec![seen.record()?, told]).await?.then_some(seen.it))
        })
        .await
    }
}

/// What a new token may do: what is asked for, and no more than its owner may.
fn rights_of(new: &NewToken, owner: &User) -> Result<Rights, AccessError> {
    let most = &owner.rights;
    let role = new.role.unwrap_or(if new.kind == PrincipalKind::Machine { machine_role(most.role) } else { most.role });
    // First, because what an admin may not have narrower is not what is wrong.
    Rights::role_within(role, most)?;
    let teams = new.teams.clone().unwrap_or_else(|| most.teams.iter().cloned().collect());
    let rights = Rights::checked(role, &teams, new.tools.as_deref().unwrap_or(&most.tools))?;
    rights.within(most)?;
    Ok(rights)
}
