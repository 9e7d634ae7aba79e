//! Models. One trait, whatever the provider: a whole reply or a classified error, never half a reply.

pub(crate) mod chain;
pub mod limited;
pub mod provider;
pub mod scripted;
mod window;
pub mod wire_name;

use crate::run::{CallId, RunId, Usage};
use async_trait::async_trait;
use serde_json::{Map, Value};
use std::{borrow::Cow, sync::Arc, time::Duration};

/// What a model sees of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedTool {
    /// `source.tool`; the adapter maps it to the wire's alphabet and back.
    pub name: String,
    /// For the model.
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
}

/// One message of the transcript. Valid for every provider by construction: each call of an assistant message is followed by
/// exactly one result.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// From the caller.
    User(String),
    /// From the model.
    Assistant {
        /// What it said.
        text: String,
        /// What it asked for: our id, our tool name, and the arguments it ran with.
        calls: Vec<TranscriptCall>,
        /// What the provider wants to see again unchanged.
        opaque: Option<Value>,
    },
    /// The result of a call.
    ToolResult {
        /// Which.
        call_id: CallId,
        /// For the model.
        text: String,
        /// It is an error.
        is_error: bool,
    },
}

/// A call in the transcript.
#[derive(Clone, Debug, PartialEq)]
pub struct TranscriptCall {
    /// Our id.
    pub id: CallId,
    /// Our name, or what the model wrote where there is no such tool.
    pub tool: String,
    /// As an object; empty where the model did not write one.
    pub arguments: Map<String, Value>,
}

/// A request for one reply.
#[derive(Clone, Debug)]
pub struct ModelRequest {
    /// For whom; never sent.
    pub run: RunId,
    /// Replies of this run that are journaled.
    pub replies_so_far: u32,
    /// Model errors of this run that are journaled.
    pub errors_so_far: u32,
    /// The agent's instructions.
    pub system: String,
    /// The transcript.
    pub messages: Vec<Message>,
    /// What is offered; empty: a plain completion.
    pub tools: Vec<OfferedTool>,
    /// The reply as it comes, for whoever watches; not part of the record until it is whole.
    pub on_text: Option<tokio::sync::mpsc::UnboundedSender<Piece>>,
}

impl ModelRequest {
    /// The same within a window of so many tokens: where it would not fit, old tool results become excerpts that name their call.
    ///
    /// # Errors
    /// It does not fit, whatever is shortened.
    pub fn within(&self, window: Option<u64>) -> Result<Cow<'_, Self>, ModelError> {
        window::within(self, window)
    }

    /// Tells whoever watches.
    pub(crate) fn tell(&self, piece: Piece) {
        if let Some(watcher) = &self.on_text {
            // Nobody watching any more is no reason to stop.
            watcher.send(piece).ok();
        }
    }
}

/// What whoever watches sees of a reply that is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// More of its text.
    Text(String),
    /// All before this is no part of it: why, and who is asked now.
    Discarded(String),
}

/// A call as the model asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedCall {
    /// Our name of the tool, or what the model wrote where nothing of that name was offered.
    pub tool: String,
    /// Exactly as the model wrote them.
    pub raw_arguments: String,
}

/// One whole reply.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// What it said.
    pub text: String,
    /// What it asks for, in order. The provider's call ids are not kept.
    pub calls: Vec<RequestedCall>,
    /// What it used; cost is filled in by whoever knows the price.
    pub usage: Usage,
    /// Why it stopped, in the provider's word.
    pub stop: String,
    /// What the provider wants to see again unchanged.
    pub opaque: Option<Value>,
}

/// Classes of model errors; what the runtime does depends on the class alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum ModelErrorClass {
    /// Not reached, reset, timed out.
    Connection,
    /// 429 or the provider's own word for it.
    RateLimited,
    /// 5xx, or an answer that is none.
    Server,
    /// 401, 402, 403.
    Auth,
    /// Other 4xx.
    Client,
    /// The conversation is too long.
    ContextOverflow,
    /// The content was refused.
    Refused,
    /// The reply ended before it was whole.
    Truncated,
    /// Nothing was sent: the operator's limit of this model left no place for as long as one waits. Said only after that wait.
    Busy,
}

impl ModelErrorClass {
    /// The same request may work later.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Connection | Self::RateLimited | Self::Server | Self::Truncated)
    }
    /// Another model may answer the same request. Not where the request is wrong, and a refusal is not shopped around.
    pub fn falls_back(self) -> bool {
        !matches!(self, Self::Client | Self::Refused)
    }
}

/// No reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {detail}")]
pub struct ModelError {
    /// What kind.
    pub class: ModelErrorClass,
    /// For people; no secrets, bounded.
    pub detail: String,
    /// The provider said when to come back.
    pub retry_after: Option<Duration>,
}

/// A model. Its work may be dropped at any await.
#[async_trait]
pub trait Model: Send + Sync {
    /// The configured name and the provider's model, for the record.
    fn name(&self) -> &str;
    /// One reply, whole, or why not. Never repeats a request by itself.
    ///
    /// # Errors
    /// Classified, see [`ModelErrorClass`].
    async fn reply(&self, request: ModelRequest) -> Result<Reply, ModelError>;
}

/// A model that several agents share.
#[async_trait]
impl<M: Model + ?Sized> Model for Arc<M> {
    fn name(&self) -> &str {
        (**self).name()
    }
    async fn reply(&self, request: ModelRequest) -> Result<Reply, ModelError> {
        (**self).reply(request).await
    }
}
