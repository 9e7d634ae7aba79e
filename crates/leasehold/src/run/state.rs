//! The words of a run's row: states, reasons, effects and the small enumerations beside them. Each has one spelling, the
//! one in the store, in the API and in the docs.

use serde::{Deserialize, Serialize};

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
            strum::Display, strum::EnumString, strum::IntoStaticStr, strum::EnumIter,
        )]
        #[serde(rename_all = "snake_case")]
        #[strum(serialize_all = "snake_case")]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// The stored and printed spelling.
            pub fn as_str(self) -> &'static str {
                self.into()
            }
        }
    };
}
pub(crate) use words;

words!(
    /// Where a run stands. The last four are settled or dead.
    State {
        /// Waits for a claim.
        Queued,
        /// A segment holds the lease.
        Running,
        /// A segment holds the lease; a cancel was accepted; nothing new starts.
        Cancelling,
        /// A person decides about calls.
        WaitingForApproval,
        /// A person fills in values.
        WaitingForInput,
        /// The agent answered.
        Completed,
        /// The agent's failure, with a reason.
        Failed,
        /// Cancelled or discarded.
        Cancelled,
        /// The runtime refuses to continue by itself, with a reason.
        Dead,
    }
);

impl State {
    /// A segment may hold a lease.
    pub fn is_held(self) -> bool {
        matches!(self, Self::Running | Self::Cancelling)
    }
    /// A person is asked.
    pub fn is_waiting(self) -> bool {
        matches!(self, Self::WaitingForApproval | Self::WaitingForInput)
    }
    /// Nothing happens any more unless a person redrives.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }
}

words!(
    /// Why a run is failed or dead.
    Reason {
        /// Failed: the model or its provider refused the content.
        Refused,
        /// Failed: a policy of the operator forbids it.
        Policy,
        /// Failed: a budget is spent.
        Budget,
        /// Failed: the provider did not accept our credentials.
        ModelAuth,
        /// Failed: the provider says that the request is wrong.
        ModelClient,
        /// Failed: the provider could not be reached or answered with errors, and nobody waits for a retry.
        ModelUnavailable,
        /// Failed: the conversation is longer than the model takes.
        ContextOverflow,
        /// Failed: a person gave up a write in doubt. Dead: nobody is left to continue for.
        Abandoned,
        /// Dead: a non-idempotent write may have happened, and nobody knows.
        WriteInDoubt,
        /// Dead: requeued too often.
        RetriesExhausted,
        /// Dead: the request or the journal does not decode.
        Unreadable,
        /// Dead: nobody decided in time.
        DecisionExpired,
        /// Dead: was unsettled when the store was restored from a backup.
        Restored,
    }
);

impl Reason {
    /// The agent's reasons are those of `failed`, the runtime's those of `dead`; `abandoned` is both.
    pub fn belongs_to(self, state: State) -> bool {
        let runtimes = matches!(
            self,
            Self::WriteInDoubt | Self::RetriesExhausted | Self::Unreadable | Self::DecisionExpired | Self::Restored
        );
        match state {
            State::Failed => !runtimes,
            State::Dead => runtimes || self == Self::Abandoned,
            _ => false,
        }
    }
}

words!(
    /// What a tool does to the world. A property of the tool's code or of the operator's declaration, never of a model, of a
    /// remote server's hints or of a default.
    Effect {
        /// Changes nothing.
        ReadOnly,
        /// A repeat with the same key and arguments converges.
        IdempotentWrite,
        /// A repeat is a second effect.
        NonIdempotentWrite,
    }
);

impl Effect {
    /// Reads a stored value; one that this version does not know (a newer version wrote it) is the most careful one.
    pub fn from_stored(text: &str) -> Self {
        text.parse().unwrap_or(Self::NonIdempotentWrite)
    }
    /// Needs a fence.
    pub fn is_write(self) -> bool {
        self != Self::ReadOnly
    }
}

words!(
    /// The kind of a segment: who executes and why. First part of the holder's name.
    SegmentKind {
        /// A caller waits for it.
        Interactive,
        /// Claimed from the queue.
        Worker,
        /// Continues after a decision, an input or a resolution.
        Resume,
    }
);

words!(
    /// Who finishes the run when its process dies.
    Recovery {
        /// The system: it goes back to the queue.
        Requeue,
        /// Nobody: a caller waited for it.
        Abandon,
    }
);

words!(
    /// How the run was asked for.
    Mode {
        /// Enqueued for a worker.
        Queue,
        /// A caller waited.
        Wait,
    }
);

words!(
    /// What became of a call.
    Outcome {
        /// The tool answered, an error answer included.
        Done,
        /// It certainly did not happen.
        NotApplied,
        /// It may have happened.
        Unknown,
        /// The gate refused it.
        Refused,
        /// A person denied it.
        Denied,
        /// It was never begun.
        NotRun,
    }
);

words!(
    /// How an outcome came to be known.
    Via {
        /// The tool's own answer to the segment that entered it.
        Tool,
        /// The tool's own answer, from a segment that no longer held the run.
        LateOutcome,
        /// The gate before the call.
        Gate,
        /// A person's decision.
        Decision,
        /// The tool's verify.
        Verify,
        /// A person's statement about a write in doubt.
        Resolution,
        /// An earlier attempt's late answer, taken as the outcome.
        Evidence,
        /// The end of the run closed what was open.
        Close,
        /// Nobody decided in time.
        Expiry,
    }
);

words!(
    /// What a process that entered a call can say about it later.
    LateAnswer {
        /// The tool answered.
        Done,
        /// It did not happen.
        NotApplied,
        /// It was stamped and never entered.
        NotStarted,
        /// It may have happened.
        Unknown,
    }
);

words!(
    /// A person's word on a write in doubt.
    ResolutionKind {
        /// It happened.
        Landed,
        /// It did not happen; the call may be made again.
        NotLanded,
        /// Give it up: unknown, not to be repeated.
        Abandon,
    }
);

words!(
    /// A person or a program.
    PrincipalKind {
        /// A person.
        Person,
        /// A program; it never releases a write.
        Machine,
    }
);

words!(
    /// What happens to a run when nobody decides before the deadline.
    OnExpiry {
        /// The model is told that nobody decided.
        Continue,
        /// The run is dead-lettered.
        DeadLetter,
    }
);

/// Who acts. Derived from the authenticated caller, never from a body.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Principal {
    /// Stable name, `local:<os user>` for the owner of an embedded store.
    pub id: String,
    /// Person or machine.
    pub kind: PrincipalKind,
    /// How it showed who it is: `local`, `token:<id>`, `session:<id>`; none where nobody asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
}

words!(
    /// Who released a write, beside who is behind the run; from the weakest to the strongest.
    Attribution {
        /// A machine, or nobody that is known.
        Unknown,
        /// The person who is behind the run.
        #[serde(rename = "self")]
        #[strum(serialize = "self")]
        Initiator,
        /// Somebody else.
        SecondPerson,
    }
);

impl Attribution {
    /// Of what somebody said about a run of this initiator.
    pub fn of(by: &Principal, initiator: &str) -> Self {
        match by.kind {
            PrincipalKind::Machine => Self::Unknown,
            PrincipalKind::Person if by.id == initiator => Self::Initiator,
            PrincipalKind::Person => Self::SecondPerson,
        }
    }
}

impl Principal {
    /// A person.
    pub fn person(id: impl Into<String>) -> Self {
        Self { id: id.into(), kind: PrincipalKind::Person, method: None }
    }
    /// A machine.
    pub fn machine(id: impl Into<String>) -> Self {
        Self { id: id.into(), kind: PrincipalKind::Machine, method: None }
    }
}
