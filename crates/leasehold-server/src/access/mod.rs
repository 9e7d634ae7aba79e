//! Who may do what: roles, teams, kinds, and the rules that the runtime cannot know. It knows of machines and of four eyes; what is
//! decided here is what a caller may see, start, order and release at all.

mod bootstrap;
mod documents;
mod owners;
mod rights;
mod secret;
mod sessions;
mod shown;
mod store;
#[cfg(test)]
mod tests;
mod tokens;
mod users;

pub(crate) use bootstrap::{ADMIN, BootstrapError, Bootstrapped, token_file};
use documents::method_text;
pub(crate) use documents::{AuditEntry, Document, Seen, Token, User, What};
pub(crate) use rights::Rights;
pub(crate) use sessions::NewSession;
pub(crate) use shown::{ShownAudit, ShownToken, ShownUser};
pub(crate) use store::Access;
pub(crate) use tokens::NewToken;
pub(crate) use users::UserChange;

use leasehold::{
    run::{OpenCall, Principal, PrincipalKind, Snapshot},
    store::{Unavailable, Visible},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What a principal may do. Each may all that the one before may, but for approvers, whose right is over tools.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Serialize,
    Deserialize,
    strum::IntoStaticStr,
    strum::EnumString,
    strum::EnumIter,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Role {
    /// Sees its own runs and those of its teams.
    Viewer,
    /// And starts runs, and cancels its own.
    Runner,
    /// And sees and decides runs with a pending call of its tools.
    Approver,
    /// And sees, cancels, redrives, resolves and discards all.
    Operator,
    /// And manages tokens and users.
    Admin,
}

/// How a caller showed who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Whoever opens the store owns it.
    Local,
    /// An API token, by its id.
    Token(String),
    /// A browser session, by its id.
    Session(String),
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    /// Its name and kind.
    pub(crate) principal: Principal,
    /// The person: itself, or the one who owns the machine.
    pub(crate) person: String,
    /// What it may do.
    pub(crate) role: Role,
    /// Runs of these it sees.
    pub(crate) teams: BTreeSet<String>,
    /// The tools that an approver may release and run, as patterns (`ledger.*`); of an admin all.
    pub(crate) tools: Vec<String>,
    /// How it showed that.
    pub(crate) method: Method,
}

/// Why not, as the API names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// As if there were none.
    #[error("there is no such run")]
    NotYours,
    /// The role is too small.
    #[error("this needs the role {0:?}")]
    Role(Role),
    /// Another person has to say it.
    #[error("a machine releases no write")]
    Machine,
    /// Not its tools.
    #[error("the approver may not run every pending tool")]
    Tools,
}

impl Denied {
    /// The stable code of a problem.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::NotYours => "not_found",
            Self::Role(_) => "not_permitted",
            Self::Machine => "machine_may_not_release",
            Self::Tools => "approver_not_permitted",
        }
    }
}

/// Why users, tokens or sessions were not changed as asked. Nothing has changed, unless the store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AccessError {
    /// Not with this role.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Something in it is wrong.
    #[error("{field}: {why}")]
    Invalid {
        /// What.
        field: &'static str,
        /// How it is right.
        why: String,
    },
    /// It is not there.
    #[error("there is no {0}")]
    NotFound(String),
    /// It is there already.
    #[error("there is a {0} already")]
    Exists(String),
    /// Somebody else goes on changing it.
    #[error("{0} is being changed by somebody else; look again")]
    Conflict(String),
    /// No answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
}

impl AccessError {
    /// The stable code of a problem.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Denied(denied) => denied.code(),
            Self::Invalid { .. } => "invalid_input",
            Self::NotFound(_) => "not_found",
            Self::Exists(_) => "already_exists",
            Self::Conflict(_) => "changed_meanwhile",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

impl Who {
    /// The owner of an embedded store.
    pub(crate) fn local(principal: Principal) -> Self {
        let person = principal.id.clone();
        let tools = vec!["*".to_owned()];
        Self { principal, person, role: Role::Admin, teams: BTreeSet::new(), tools, method: Method::Local }
    }

    /// As it goes into the record.
    pub(crate) fn by(&self) -> Principal {
        Principal { method: Some(method_text(&self.method)), ..self.principal.clone() }
    }

    /// At least this role.
    pub(crate) fn needs(&self, role: Role) -> Result<(), Denied> {
        if self.role >= role { Ok(()) } else { Err(Denied::Role(role)) }
    }

    /// A release of this tool is among its rights.
    pub(crate) fn may_run(&self, tool: &str) -> bool {
        self.role == Role::Admin || self.tools.iter().any(|pattern| leasehold::agent::registry::matches(pattern, tool))
    }

    /// It may decide about calls of this tool, in runs that it sees.
    pub(crate) fn decides(&self, tool: &str) -> bool {
        self.role >= Role::Approver && self.may_run(tool)
    }

    /// It may know that this run exists. What it may not know it is told as if there were none.
    pub(crate) fn sees(&self, run: &Snapshot) -> Result<(), Denied> {
        let own = run.owner == self.principal.id || run.initiator == self.person;
        let of_team = run.team.as_ref().is_some_and(|team| self.teams.contains(team));
        let asks = || run.questions().any(|(call, _)| self.decides(&call.tool));
        let waits = || run.state.is_waiting() && open(run).any(|call| self.decides(&call.tool));
        let pending = || waits() || asks();
        if own || of_team || self.role >= Role::Operator || pending() { Ok(()) } else { Err(Denied::NotYours) }
    }

    /// Its own, or an operator.
    pub(crate) fn may_cancel(&self, run: &Snapshot) -> Result<(), Denied> {
        self.sees(run)?;
        let own = run.owner == self.principal.id || run.initiator == self.person;
        if own && self.role >= Role::Runner { Ok(()) } else { self.needs(Role::Operator) }
    }

    /// Whose runs a list shows it; none: all. A pending call of its tools is no column, so an approver sees more than a list has.
    pub(crate) fn visible(&self) -> Option<Visible> {
        let (owner, initiator) = (self.principal.id.clone(), self.person.clone());
        (self.role < Role::Operator).then(|| Visible { owner, initiator, teams: self.teams.iter().cloned().collect() })
    }

    /// Resolves, redrives and discards: an operator.
    pub(crate) fn may_settle(&self, run: &Snapshot) -> Result<(), Denied> {
        self.sees(run)?;
        self.needs(Role::Operator)
    }

    /// Decides about the pending calls of a run: a denial needs an approver, a release the right to each tool and a person. The
    /// runtime adds four eyes.
    pub(crate) fn may_decide<'a>(&self, run: &Snapshot, released: impl Iterator<Item = &'a OpenCall>) -> Result<(), Denied> {
        self.sees(run)?;
        self.needs(Role::Approver)?;
        let mut released = released.filter(|call| call.effect.is_write()).peekable();
        if released.peek().is_some() && self.principal.kind == PrincipalKind::Machine {
            return Err(Denied::Machine);
        }
        if released.all(|call| self.may_run(&call.tool)) { Ok(()) } else { Err(Denied::Tools) }
    }

    /// Answers a call of a run that asks; `given`: the call that is given values, none where nothing is. To decline needs an approver;
    /// to give values the right to the call's tool, and for a write a person. The runtime adds four eyes.
    pub(crate) fn may_answer(&self, run: &Snapshot, given: Option<&OpenCall>) -> Result<(), Denied> {
        self.may_decide(run, given.into_iter())?;
        if given.is_none_or(|call| self.may_run(&call.tool)) { Ok(()) } else { Err(Denied::Tools) }
    }
}

/// Calls that wait for a person.
fn open(run: &Snapshot) -> impl Iterator<Item = &OpenCall> {
    run.turn.iter().flat_map(|turn| &turn.calls).filter(|call| call.is_undecided())
}
