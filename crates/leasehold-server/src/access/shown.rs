//! What programs read of users, tokens and the audit. No secret and no hash of one is in any.

use super::{AuditEntry, Token, User, What, documents::person};
use jiff::Timestamp;
use leasehold::run::PrincipalKind;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// A user.
#[derive(Debug, Serialize)]
pub(crate) struct ShownUser {
    pub(crate) name: String,
    pub(crate) principal: String,
    pub(crate) role: &'static str,
    pub(crate) teams: BTreeSet<String>,
    pub(crate) tools: Vec<String>,
    pub(crate) disabled: bool,
    pub(crate) created_at: Timestamp,
    pub(crate) created_by: String,
}

impl From<User> for ShownUser {
    fn from(user: User) -> Self {
        Self {
            principal: person(&user.name),
            name: user.name,
            role: user.rights.role.into(),
            teams: user.rights.teams,
            tools: user.rights.tools,
            disabled: user.disabled,
            created_at: user.created_at,
            created_by: user.created_by,
        }
    }
}

/// A token.
#[derive(Debug, Serialize)]
pub(crate) struct ShownToken {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) kind: PrincipalKind,
    pub(crate) principal: String,
    pub(crate) owner: String,
    pub(crate) role: &'static str,
    pub(crate) teams: BTreeSet<String>,
    pub(crate) tools: Vec<String>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) revoked_at: Option<Timestamp>,
    pub(crate) last_used_at: Option<Timestamp>,
    pub(crate) created_at: Timestamp,
    pub(crate) created_by: String,
}

impl From<Token> for ShownToken {
    fn from(token: Token) -> Self {
        Self {
            kind: token.kind,
            principal: token.principal().id,
            id: token.id,
            name: token.name,
            owner: token.owner,
            role: token.rights.role.into(),
            teams: token.rights.teams,
            tools: token.rights.tools,
            expires_at: token.expires_at,
            revoked_at: token.revoked_at,
            last_used_at: token.last_used_at,
            created_at: token.created_at,
            created_by: token.created_by,
        }
    }
}

/// An entry of the audit.
#[derive(Debug, Serialize)]
pub(crate) struct ShownAudit {
    pub(crate) id: String,
    pub(crate) at: Timestamp,
    pub(crate) who: String,
    pub(crate) method: String,
    pub(crate) what: What,
    pub(crate) about: String,
    pub(crate) details: Map<String, Value>,
}

impl From<(String, AuditEntry)> for ShownAudit {
    fn from((id, entry): (String, AuditEntry)) -> Self {
        let AuditEntry { at, who, method, what, about, details } = entry;
        Self { id, at, who, method, what, about, details }
    }
}
