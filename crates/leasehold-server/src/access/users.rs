//! Users: people who may use the server. A user is never deleted, because runs name it; it is disabled.

use super::{
    Access, AccessError, Rights, Role, Who,
    documents::{Seen, User, What, person, rights_details},
    rights::{check_name, invalid},
    store::{Actor, Page},
};
use leasehold::store::{Record, Unavailable};
use serde_json::Map;

/// What is to be different about a user; none: stays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserChange {
    /// Another role.
    pub(crate) role: Option<Role>,
    /// These teams instead.
    pub(crate) teams: Option<Vec<String>>,
    /// These tools instead.
    pub(crate) tools: Option<Vec<String>>,
    /// Let in or not.
    pub(crate) disabled: Option<bool>,
}

pub(super) fn no_such_user(name: &str) -> AccessError {
    AccessError::NotFound(format!("user `{name}`"))
}

impl Access {
    /// A user, as it is now.
    pub(crate) async fn user(&self, name: &str) -> Result<Option<User>, Unavailable> {
        Ok(self.seen_user(name).await?.map(|seen| seen.it))
    }

    pub(super) async fn seen_user(&self, name: &str) -> Result<Option<Seen<User>>, Unavailable> {
        // What is no name is no user's, and need not be asked for.
        if check_name("name", name).is_err() { Ok(None) } else { self.get(name).await }
    }

    /// Users in the order of their names.
    pub(crate) async fn users(&self, after: Option<&str>, limit: usize) -> Result<Page<User>, Unavailable> {
        Ok(self.page(after, limit).await?.map(|seen| seen.it))
    }

    /// There has never been a user.
    pub(crate) async fn is_new(&self) -> Result<bool, Unavailable> {
        let first = self.users(None, 1).await?;
        Ok(first.items.is_empty() && first.next.is_none())
    }

    /// Adds a user.
    pub(crate) async fn add_user(&self, by: &Who, name: &str, rights: Rights) -> Result<User, AccessError> {
        by.needs(Role::Admin)?;
        check_name("name", name)?;
        let (user, records) = self.new_user(&by.into(), name, rights)?;
        if self.put(records).await? { Ok(user) } else { Err(AccessError::Exists(format!("user `{name}`"))) }
    }

    /// A user that is not there yet, and what has to be written for it.
    pub(super) fn new_user(&self, by: &Actor, name: &str, rights: Rights) -> Result<(User, Vec<Record>), Unavailable> {
        let details = rights_details(&rights);
        let (created_at, created_by) = (self.now(), by.who.clone());
        let user = User { name: name.into(), rights, disabled: false, generation: 0, created_at, created_by };
        let told = self.audit_record(by, What::UserAdded, person(name), details)?;
        Ok((user.clone(), vec![Seen::new(name, user).record()?, told]))
    }

    /// Changes a user. Nobody takes the role of an admin from itself: the last one would be gone.
    pub(crate) async fn change_user(&self, by: &Who, name: &str, change: &UserChange) -> Result<User, AccessError> {
        by.needs(Role::Admin)?;
        self.until_first(&format!("user `{name}`"), async || {
            let Seen { key, version, it: old } = self.seen_user(name).await?.ok_or_else(|| no_such_user(name))?;
            let role = change.role.unwrap_or(old.rights.role);
            let teams = change.teams.clone().unwrap_or_else(|| old.rights.teams.iter().cloned().collect());
            let tools = change.tools.clone().unwrap_or_else(|| {
                // An admin's tools come with the role, and go with it.
                if old.rights.role == Role::Admin || role == Role::Admin { Vec::new() } else { old.rights.tools.clone() }
            });
            let rights = Rights::checked(role, &teams, &tools)?;
            let disabled = change.disabled.unwrap_or(old.disabled);
            if by.person == person(name) && (disabled || rights.role < Role::Admin) {
                return Err(invalid("name", "an admin cannot disable itself or give up its role: let another one do it"));
            }
            // Who is disabled and enabled again logs in again.
            let generation = old.generation + u64::from(disabled && !old.disabled);
            let new = User { rights, disabled, generation, ..old.clone() };
            if new == old {
                return Ok(Some(old));
            }
            let mut records = Vec::new();
            if new.rights != old.rights {
                records.push(self.audit_record(&by.into(), What::UserChanged, person(name), rights_details(&new.rights))?);
            }
            if new.disabled != old.disabled {
                let what = if new.disabled { What::UserDisabled } else { What::UserEnabled };
                records.push(self.audit_record(&by.into(), what, person(name), Map::new())?);
            }
            records.push(Seen { key, version, it: new.clone() }.record()?);
            Ok(self.put(records).await?.then_some(new))
        })
        .await
    }

    /// Ends all sessions of a user, and its login links that nobody has used: itself, or an admin.
    pub(crate) async fn revoke_sessions(&self, by: &Who, name: &str) -> Result<(), AccessError> {
        if by.person != person(name) {
            by.needs(Role::Admin)?;
        }
        self.until_first(&format!("user `{name}`"), async || {
            let mut seen = self.seen_user(name).await?.ok_or_else(|| no_such_user(name))?;
            seen.it.generation += 1;
            let told = self.audit_record(&by.into(), What::SessionsRevoked, person(name), Map::new())?;
            Ok(self.put(vec![seen.record()?, told]).await?.then_some(()))
        })
        .await
    }
}
