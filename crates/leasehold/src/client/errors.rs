//! Why something was not started or not carried out.

use super::*;

/// Why a run was not started.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StartError {
    /// No such agent here.
    #[error("there is no agent `{0}`; there are: {1}")]
    NoAgent(String, String),
    /// The request is too long, empty, or asks for more than the agent has.
    #[error("{0}")]
    Invalid(String),
    /// The key belongs to another request.
    #[error("the key belongs to run {0}, which was asked for something else")]
    KeyConflict(RunId),
    /// No answer: the run may exist.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store would not have it: nothing was started.
    #[error(transparent)]
    StoreRefused(#[from] StoreRefused),
    /// The lease ended before it could be used.
    #[error("{0}")]
    Lost(String),
}

/// What is wrong with one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidField {
    /// Where: a JSON pointer (RFC 6901).
    pub pointer: String,
    /// Why, without the value.
    pub why: String,
}

/// Why an order was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OrderError {
    /// A rule forbids it; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Rejection),
    /// No such run.
    #[error("there is no such run")]
    NotFound,
    /// Values that do not fit; nothing has changed.
    #[error("{0}")]
    Invalid(String),
    /// Values that do not fit, each with its place; nothing has changed.
    #[error("{}", .0.iter().map(|f| format!("at `{}`: {}", f.pointer, f.why)).collect::<Vec<_>>().join("; "))]
    InvalidFields(Vec<InvalidField>),
    /// No answer: it may have been applied. The same order again gets the same answer.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The store would not have it: nothing has changed.
    #[error(transparent)]
    StoreRefused(#[from] StoreRefused),
    /// The tool itself says that the write landed: "not landed" is refused. Its answer.
    #[error("the far side was asked and says that the write landed: {0}")]
    VerifiedLanded(Value),
    /// The row does not decode.
    #[error("{0}")]
    Unreadable(String),
}

impl From<CommitError> for OrderError {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Rejected(rejection) => Self::Refused(rejection),
            CommitError::Gone => Self::NotFound,
            CommitError::Unavailable(unavailable) => Self::Unavailable(unavailable),
            CommitError::Refused(refused) => Self::StoreRefused(refused),
            // Nothing that anybody orders is charged.
            CommitError::OverBudget(_) | CommitError::Fenced | CommitError::Moved => {
                Self::Unavailable(Unavailable("the run changed faster than the order could be applied".into()))
            }
            CommitError::Corrupt(why) => Self::Unreadable(why),
        }
    }
}

impl From<ReadError> for OrderError {
    fn from(error: ReadError) -> Self {
        CommitError::from(error).into()
    }
}
