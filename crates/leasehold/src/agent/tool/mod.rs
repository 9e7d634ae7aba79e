//! Tools. A tool says what it does to the world by the trait it implements: a [`ReadTool`] changes nothing and may be called
//! at any time; a [`WriteTool`] takes a [`WritePermit`] by value, and only a segment that holds a lease makes one; a
//! [`TransactionalTool`] says what is to be done in the database of the store, and the segment does it in the transaction of the record.

mod artifact;
pub mod ask;
pub mod fetch;
pub mod files;
pub mod http;
mod last_check;
pub mod mcp;
pub mod rust;
pub mod site;
pub mod sql;
mod teller;
pub mod transactional;

pub(crate) use self::artifact::{Shelf, described};
pub use self::{
    ask::{Asker, Continued, InputRequired, NotAsked, Reply},
    teller::{Progress, Teller},
    transactional::TransactionalTool,
};
use crate::run::{Effect, ToolIdentity};
pub use crate::worker::permit::{NotHeld, WritePermit};
use async_trait::async_trait;
use serde_json::{Map, Value};
use std::{fmt, sync::Arc, time::Duration};

/// A call's arguments: validated against the tool's schema before any tool sees them.
pub type Arguments = Map<String, Value>;

/// Whether a person has to release a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Approval {
    /// A person decides.
    Required,
    /// The operator lets it run on the first pass, fenced.
    None,
}

impl Approval {
    /// As configured and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::None => "none",
        }
    }
}

/// What is known of a tool without calling it.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// `source.tool`.
    pub name: String,
    /// For the model.
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub parameters: Value,
    /// JSON Schema of the values that a person fills in before each call, an object; they take the place of the model's arguments of
    /// those keys. None: nobody is asked.
    pub input: Option<Value>,
    /// The source kind: `rust`, `http`, `mcp`, `site`.
    pub source: String,
    /// Where it goes, without secrets.
    pub endpoint: String,
    /// How long one call may take, the time included for which it waits for a person that it asked.
    pub timeout: Duration,
}

/// A tool that changes nothing. Its work may be dropped at any await: cancel and timeout abort it.
#[async_trait]
pub trait ReadTool: Send + Sync {
    /// What it is.
    fn spec(&self) -> &ToolSpec;
    /// Does it.
    async fn call(&self, arguments: &Arguments) -> ReadAnswer;
    /// Does it where a person can be asked meanwhile; this is what a run calls. Without an own one, nobody is asked.
    async fn call_asking(&self, arguments: &Arguments, _asker: Asker) -> ReadAnswer {
        self.call(arguments).await
    }
}

/// What a read answers; an error is data for the model.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadAnswer {
    /// Text is a JSON string.
    pub result: Value,
    /// The tool says it is an error.
    pub is_error: bool,
    /// This is no answer yet: the tool needs input before it goes on.
    pub needs: Option<InputRequired>,
}

impl ReadAnswer {
    /// A result.
    pub fn ok(result: impl Into<Value>) -> Self {
        Self { result: result.into(), is_error: false, needs: None }
    }
    /// An error.
    pub fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::ok(text.into()) }
    }
    /// A result that is an error.
    pub fn error_value(result: Value) -> Self {
        Self { is_error: true, ..Self::ok(result) }
    }
    /// The tool does not go on before it has this.
    pub fn needs(input: InputRequired) -> Self {
        Self { needs: Some(input), ..Self::error("the tool needs input before it goes on, and nobody can be asked here") }
    }
}

/// A tool that changes the world. `call` is entered only with a permit, and is never dropped before its timeout.
#[async_trait]
pub trait WriteTool: Send + Sync {
    /// What it is.
    fn spec(&self) -> &ToolSpec;
    /// What a repeat does. There is no default.
    fn write_effect(&self) -> WriteEffect;
    /// Does it, once. The permit carries key, run and epoch for the far side, checks the right again, and has the way to a person who
    /// can be asked meanwhile.
    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer;
    /// Says what would change (`description: "old" -> "new"`), for the person who decides.
    fn preview(&self) -> Option<&dyn Preview> {
        None
    }
    /// Can be asked afterwards whether a call happened.
    fn verify(&self) -> Option<&dyn Verify> {
        None
    }
}

/// Looks, for the person who decides; changes nothing.
#[async_trait]
pub trait Preview: Send + Sync {
    /// What would change, and what has to hold when it starts.
    ///
    /// # Errors
    /// A sentence that says why there is no preview.
    async fn preview(&self, arguments: &Arguments) -> Result<Previewed, String>;
    /// What it says is only for who may decide about the call, not for everybody who sees the run.
    fn only_deciders(&self) -> bool {
        false
    }
}

/// What a preview says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Previewed {
    /// In words, before -> after.
    pub text: String,
    /// Compared again when the call starts; different: the run waits again.
    pub precondition: Option<String>,
}

impl Previewed {
    /// Words alone.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), precondition: None }
    }
    /// With a condition that is compared again when the call starts.
    pub fn only_while(mut self, precondition: impl Into<String>) -> Self {
        self.precondition = Some(precondition.into());
        self
    }
}

/// Asks the far side whether a call happened; changes nothing.
#[async_trait]
pub trait Verify: Send + Sync {
    /// How long after the tool's timeout the far side needs to be sure.
    fn settle_after(&self) -> Duration;
    /// The operator declared that "absent" means "did not happen".
    fn absent_is_not_applied(&self) -> bool {
        false
    }
    /// Asks.
    async fn verify(&self, query: &VerifyQuery, arguments: &Arguments) -> Verified;
}

/// Which call is meant.
#[derive(Clone, Debug)]
pub struct VerifyQuery {
    /// Sent with the write.
    pub idempotency_key: String,
    /// The run.
    pub run: String,
    /// The asker's epoch.
    pub fencing_token: u64,
}

/// What the far side says.
#[derive(Clone, Debug, PartialEq)]
pub enum Verified {
    /// It happened; its result.
    Landed(Value),
    /// Not there now.
    Absent,
    /// No usable answer.
    Unknown(String),
}

/// What a repeat of a write does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteEffect {
    /// Converges.
    Idempotent,
    /// Is a second effect.
    NonIdempotent,
}

impl From<WriteEffect> for Effect {
    fn from(effect: WriteEffect) -> Self {
        match effect {
            WriteEffect::Idempotent => Self::IdempotentWrite,
            WriteEffect::NonIdempotent => Self::NonIdempotentWrite,
        }
    }
}

/// What a write answers. Choose `Unknown` whenever in doubt: it is never repeated by guess.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteAnswer {
    /// The far side answered, an error answer included.
    Done {
        /// Text is a JSON string.
        result: Value,
        /// The answer is an error.
        is_error: bool,
    },
    /// It certainly did not happen.
    NotApplied {
        /// In words, for the model and for people.
        why: String,
    },
    /// It may have happened.
    Unknown {
        /// In words, for people.
        why: String,
    },
    /// The tool has done nothing, and does not go on before it has this.
    NeedsInput(InputRequired),
    /// The right had run out before anything was sent.
    NotStarted {
        /// In words, for people.
        why: String,
    },
}

impl WriteAnswer {
    /// A result.
    pub fn done(result: impl Into<Value>) -> Self {
        Self::Done { result: result.into(), is_error: false }
    }
    /// An error answer: the far side says no, and did nothing.
    pub fn error(text: impl Into<String>) -> Self {
        Self::Done { result: Value::String(text.into()), is_error: true }
    }
}

/// A tool of either kind.
#[derive(Clone)]
pub enum Tool {
    /// Changes nothing.
    Read(Arc<dyn ReadTool>),
    /// Changes the world.
    Write(Arc<dyn WriteTool>, Approval),
    /// Changes the database of the store, in the transaction of the record.
    Transactional(Arc<dyn TransactionalTool>, Approval),
}

impl Tool {
    /// What it is.
    pub fn spec(&self) -> &ToolSpec {
        match self {
            Self::Read(tool) => tool.spec(),
            Self::Write(tool, _) => tool.spec(),
            Self::Transactional(tool, _) => tool.spec(),
        }
    }
    /// What it does to the world.
    pub fn effect(&self) -> Effect {
        match self {
            Self::Read(_) => Effect::ReadOnly,
            Self::Write(tool, _) => tool.write_effect().into(),
            // A second call is a second effect; that one call is never in doubt does not change that.
            Self::Transactional(..) => Effect::NonIdempotentWrite,
        }
    }
    /// Whether a person has to release it.
    pub fn approval(&self) -> Approval {
        match self {
            Self::Read(_) => Approval::None,
            Self::Write(_, approval) | Self::Transactional(_, approval) => *approval,
        }
    }
    /// Its preview is only for who may decide about the call.
    pub(crate) fn previews_only_deciders(&self) -> bool {
        self.preview().is_some_and(Preview::only_deciders)
    }
    /// Its preview, where it has one.
    pub(crate) fn preview(&self) -> Option<&dyn Preview> {
        match self {
            Self::Read(_) => None,
            Self::Write(tool, _) => tool.preview(),
            Self::Transactional(tool, _) => tool.preview(),
        }
    }
    /// Which tool exactly.
    pub fn identity(&self) -> ToolIdentity {
        let spec = self.spec();
        ToolIdentity {
            source: spec.source.clone(),
            name: spec.name.clone(),
            endpoint: spec.endpoint.clone(),
            schema_hash: match &spec.input {
                None => crate::run::canonical_hash(&spec.parameters),
                Some(input) => crate::run::canonical_hash(&(&spec.parameters, input)),
            },
            effect: self.effect(),
            approval: self.approval().as_str().to_owned(),
        }
    }
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.spec().name, self.effect())
    }
}
