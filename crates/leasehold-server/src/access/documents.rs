//! What is kept of users, tokens, sessions, login links and of changes to them: documents in the store's records. No secret is in
//! any; the key of what has one is its hash.

use super::{Method, Rights, Role};
use jiff::Timestamp;
use leasehold::{
    run::{Principal, PrincipalKind},
    store::{Record, Unavailable},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// A kind of documents.
pub(crate) trait Document: Serialize + DeserializeOwned {
    /// The records' kind.
    const KIND: &'static str;
    /// When it counts for nothing any more.
    fn expires_at(&self) -> Option<Timestamp> {
        None
    }
}

/// A document as it was read: whoever changes it says which one it saw.
#[derive(Clone, Debug)]
pub(crate) struct Seen<T> {
    pub(crate) key: String,
    pub(crate) version: u64,
    pub(crate) it: T,
}

impl<T: Document> Seen<T> {
    /// One that must not be there yet.
    pub(crate) fn new(key: impl Into<String>, it: T) -> Self {
        Self { key: key.into(), version: 0, it }
    }

    pub(crate) fn read(record: Record) -> Result<Self, Unavailable> {
        let Record { key, version, body, .. } = record;
        // What the parser says may repeat what is in it, which nobody needs in a log.
        let it = serde_json::from_str(&body).map_err(|_| {
            Unavailable(format!("a record of kind {} does not read: it is damaged, or a newer version wrote it", T::KIND))
        })?;
        Ok(Self { key, version, it })
    }

    pub(crate) fn record(&self) -> Result<Record, Unavailable> {
        let body = serde_json::to_string(&self.it).map_err(|e| Unavailable(format!("{}: {e}", T::KIND)))?;
        Ok(Record { version: self.version, expires_at: self.it.expires_at(), ..Record::new(T::KIND, self.key.clone(), body) })
    }
}

/// A person who may use the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    /// Unique and for ever.
    pub(crate) name: String,
    /// What it may do.
    #[serde(flatten)]
    pub(crate) rights: Rights,
    /// Neither it nor any of its tokens is let in.
    pub(crate) disabled: bool,
    /// Sessions and links of an earlier count are over.
    pub(crate) generation: u64,
    /// Made then.
    pub(crate) created_at: Timestamp,
    /// And by whom.
    pub(crate) created_by: String,
}

impl User {
    /// Its id as a principal.
    pub(crate) fn principal(&self) -> Principal {
        Principal::person(person(&self.name))
    }
}

/// The id of a user as a principal.
pub(crate) fn person(user: &str) -> String {
    format!("user:{user}")
}

impl Document for User {
    const KIND: &'static str = "user";
}

/// An API token. Its record's key is the hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Token {
    /// Time-ordered.
    pub(crate) id: String,
    /// What it is for; of a machine its principal's name.
    pub(crate) name: String,
    /// The user behind it.
    pub(crate) owner: String,
    /// Acts as its owner, or as a machine of its owner.
    pub(crate) kind: PrincipalKind,
    /// At most the owner's.
    #[serde(flatten)]
    pub(crate) rights: Rights,
    /// Not taken from then on.
    pub(crate) expires_at: Option<Timestamp>,
    /// Not taken any more.
    pub(crate) revoked_at: Option<Timestamp>,
    /// To the minute.
    pub(crate) last_used_at: Option<Timestamp>,
    /// Made by.
    pub(crate) created_by: String,
    /// Made then.
    pub(crate) created_at: Timestamp,
}

impl Token {
    /// As whom it acts.
    pub(crate) fn principal(&self) -> Principal {
        match self.kind {
            PrincipalKind::Machine => Principal::machine(format!("machine:{}", self.name)),
            _ => Principal::person(person(&self.owner)),
        }
    }
}

impl Document for Token {
    const KIND: &'static str = "token";
}

/// Who owns the machine of a name, so that no two people have the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) owner: String,
}

impl Document for Machine {
    const KIND: &'static str = "machine";
}

/// How long a session may be without a request.
pub(crate) const SESSION_IDLE: jiff::SignedDuration = jiff::SignedDuration::from_hours(1);
/// How long a session lasts at most.
pub(crate) const SESSION_LASTS: jiff::SignedDuration = jiff::SignedDuration::from_hours(12);
/// How long a login link can be used.
pub(crate) const LINK_LASTS: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);
/// How exactly the last use is known.
pub(crate) const LAST_USED: jiff::SignedDuration = jiff::SignedDuration::from_mins(1);

/// A time so much later; the last there is where that is beyond it.
pub(super) fn later(at: Timestamp, by: jiff::SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// A browser's session. Its record's key is the hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// Time-ordered.
    pub(crate) id: String,
    /// Whose.
    pub(crate) user: String,
    /// The key of the token that it was begun with: it may no more than that, and ends with it.
    pub(crate) token: Option<String>,
    /// The user's count when it began.
    pub(crate) generation: u64,
    /// Begun then.
    pub(crate) created_at: Timestamp,
    /// To the minute.
    pub(crate) last_used_at: Timestamp,
    /// Logged out then, or replaced by another login.
    pub(crate) ended_at: Option<Timestamp>,
}

impl Session {
    /// Its end, unless it is used again.
    pub(crate) fn ends_at(&self) -> Timestamp {
        later(self.last_used_at, SESSION_IDLE).min(later(self.created_at, SESSION_LASTS))
    }
}

impl Document for Session {
    const KIND: &'static str = "session";
    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.ends_at())
    }
}

/// A link that logs a browser in, once. Its record's key is the hash of its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) id: String,
    pub(super) user: String,
    pub(super) generation: u64,
    pub(super) created_at: Timestamp,
    pub(super) used_at: Option<Timestamp>,
}

impl Link {
    pub(super) fn ends_at(&self) -> Timestamp {
        later(self.created_at, LINK_LASTS)
    }
}

impl Document for Link {
    const KIND: &'static str = "login_link";
    fn expires_at(&self) -> Option<Timestamp> {
        Some(self.ends_at())
    }
}

/// What was changed about users, tokens, sessions and MCP servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum What {
    /// A user is there now.
    UserAdded,
    /// Its role, teams or tools.
    UserChanged,
    /// It is let in no more.
    UserDisabled,
    /// It is let in again.
    UserEnabled,
    /// A token is there now.
    TokenCreated,
    /// It is taken no more.
    TokenRevoked,
    /// A session began.
    SessionStarted,
    /// It was ended by its browser.
    SessionEnded,
    /// All sessions and links of a user are over.
    SessionsRevoked,
    /// A login link is there now.
    LoginLinkMade,
    /// And was used.
    LoginLinkUsed,
    /// Definitions of an MCP server's tools were taken as they are.
    McpAcknowledged,
    /// An MCP server, or a tool of it, is offered no more.
    McpSwitchedOff,
    /// It is offered again.
    McpSwitchedOn,
    /// Somebody logged in at an MCP server's authorization server.
    McpLoggedIn,
    /// That login is forgotten.
    McpLoggedOut,
}

/// An entry of the audit. Its record's key is its time-ordered id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuditEntry {
    /// When.
    pub(crate) at: Timestamp,
    /// The principal who did it.
    pub(crate) who: String,
    /// How it showed who it is.
    pub(crate) method: String,
    /// What.
    pub(crate) what: What,
    /// Of whom: `user:ada`, `token:<id>`, `session:<id>`, `login_link:<id>`, `mcp:<server>`.
    pub(crate) about: String,
    /// More about it; no secret.
    pub(crate) details: Map<String, Value>,
}

impl Document for AuditEntry {
    const KIND: &'static str = "audit";
}

/// How a caller showed who it is, in a word.
pub(super) fn method_text(method: &Method) -> String {
    match method {
        Method::Local => "local".into(),
        Method::Token(id) => format!("token:{id}"),
        Method::Session(id) => format!("session:{id}"),
    }
}

/// Rights as the audit has them.
pub(super) fn rights_details(rights: &Rights) -> Map<String, Value> {
    let role: &str = rights.role.into();
    let teams: Vec<&String> = rights.teams.iter().collect();
    let mut details = Map::new();
    details.insert("role".into(), role.into());
    details.insert("teams".into(), serde_json::json!(teams));
    details.insert("tools".into(), serde_json::json!(rights.tools));
    details
}

/// The role of a machine whose token does not say: it starts runs, and no more than its owner.
pub(super) fn machine_role(owner: Role) -> Role {
    owner.min(Role::Runner)
}
