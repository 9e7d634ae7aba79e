//! Models behind an HTTP API, through the client library `genai`, whose types do not leave this module.
//!
//! Guarantees: one request per call, no retry and no redirect; a reply is whole or it is an error. A streamed turn is whole
//! only if its end came, nothing failed before, and a stop reason was given - the library reports some cut streams as ended.
//! Tool calls of the OpenAI protocol are read from the raw frames, because the library merges calls that share an index and
//! loses those without one: calls that cannot be told apart are an error, never one call with both arguments. The provider's
//! call ids are dropped on the way in; ours go out. No secret is in a debug form or an error.

mod error;
mod frames;
mod transcript;

use super::{
    Model, ModelError, ModelErrorClass, ModelRequest, Piece, Reply, RequestedCall,
    wire_name::{WireCollision, WireNames},
};
use crate::{limits, run::Usage};
use async_trait::async_trait;
use error::Faults;
use frames::{Frames, Protocol, Turn, blocked};
use futures::StreamExt as _;
use genai::{
    Client, ModelIden,
    adapter::AdapterKind,
    chat::{ChatOptions, ChatRequest, ChatStreamEvent, ReasoningEffort, StopReason, ToolCall},
    resolver::{AuthData, Endpoint},
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use transcript::Thoughts;

/// Longest wait for a connection.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// Providers by their configured name, the library's adapter, and the variable their key is usually in.
const PROVIDERS: [(&str, AdapterKind, Protocol, Option<&str>); 12] = [
    ("openai", AdapterKind::OpenAI, Protocol::OpenAi, Some("OPENAI_API_KEY")),
    ("anthropic", AdapterKind::Anthropic, Protocol::Anthropic, Some("ANTHROPIC_API_KEY")),
    ("gemini", AdapterKind::Gemini, Protocol::Gemini, Some("GEMINI_API_KEY")),
    ("ollama", AdapterKind::Ollama, Protocol::Ollama, None),
    (AZURE, AdapterKind::OpenAI, Protocol::OpenAi, Some("AZURE_OPENAI_API_KEY")),
    ("deepseek", AdapterKind::DeepSeek, Protocol::OpenAi, Some("DEEPSEEK_API_KEY")),
    ("fireworks", AdapterKind::Fireworks, Protocol::OpenAi, Some("FIREWORKS_API_KEY")),
    ("groq", AdapterKind::Groq, Protocol::OpenAi, Some("GROQ_API_KEY")),
    ("mistral", AdapterKind::Mistral, Protocol::OpenAi, Some("MISTRAL_API_KEY")),
    ("openrouter", AdapterKind::OpenRouter, Protocol::OpenAi, Some("OPENROUTER_API_KEY")),
    ("together", AdapterKind::Together, Protocol::OpenAi, Some("TOGETHER_API_KEY")),
    ("xai", AdapterKind::Xai, Protocol::OpenAi, Some("XAI_API_KEY")),
];

/// OpenAI's protocol at an address of the operator's own, with the key in a header of its own.
const AZURE: &str = "azure";

/// The names of the providers that a [`ProviderConfig`] takes.
pub fn providers() -> impl Iterator<Item = &'static str> {
    PROVIDERS.iter().map(|(name, ..)| *name)
}

/// The provider has no address that is everybody's: it needs a `base_url`.
pub fn needs_base_url(provider: &str) -> bool {
    provider == AZURE
}

/// A model as the operator configured it.
#[derive(Clone, Debug)]
pub struct ProviderConfig {
    /// Its name in the configuration.
    pub name: String,
    /// `openai` (and whatever speaks its protocol, by `base_url`), `anthropic`, `gemini`, `ollama`, ...
    pub provider: String,
    /// The provider's name of the model.
    pub model: String,
    /// Instead of the provider's own.
    pub base_url: Option<String>,
    /// Its key. Not shown by `Debug`.
    pub api_key: Option<SecretString>,
    /// For a whole reply.
    pub timeout: Duration,
    /// Text as it comes; switch it off for servers that stream badly.
    pub stream: bool,
}

impl ProviderConfig {
    /// With the defaults of the configuration file: streaming, 120 s, no key.
    pub fn new(name: impl Into<String>, provider: impl Into<String>, model: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            provider: provider.into(),
            model: model.into(),
            base_url: None,
            api_key: None,
            timeout: Duration::from_secs(120),
            stream: true,
        }
    }
}

/// A model that cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// No such provider.
    #[error("model `{name}`: there is no provider `{provider}`; there are: {known} (use `openai` with `base_url` for others)")]
    UnknownProvider {
        /// The model.
        name: String,
        /// What was configured.
        provider: String,
        /// What there is.
        known: String,
    },
    /// Not a URL to send requests to.
    #[error("model `{name}`: `base_url`: {why}")]
    BadUrl {
        /// The model.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// The provider has no address that is everybody's.
    #[error("model `{name}`: the provider `{provider}` needs a `base_url`")]
    MissingUrl {
        /// The model.
        name: String,
        /// The provider.
        provider: String,
    },
    /// The provider wants a key.
    #[error("model `{name}`: the provider `{provider}` needs a key: set `api_key_env`{hint}")]
    MissingKey {
        /// The model.
        name: String,
        /// The provider.
        provider: String,
        /// The usual variable.
        hint: String,
    },
    /// The HTTP client cannot be made.
    #[error("model `{name}`: {why}")]
    Client {
        /// The model.
        name: String,
        /// What is wrong.
        why: String,
    },
}

/// The provider and the variable of the first known key in an environment, in a fixed order.
pub fn provider_in_environment(env: impl Fn(&str) -> Option<String>) -> Option<(&'static str, &'static str)> {
    PROVIDERS.iter().find_map(|(name, _, _, variable)| {
        let variable = (*variable)?;
        env(variable).filter(|key| !key.is_empty()).map(|_| (*name, variable))
    })
}

/// A model of a provider.
pub struct ProviderModel {
    shown: String,
    client: Client,
    target: ModelIden,
    /// As it is configured, which is how it goes out.
    model: String,
    protocol: Protocol,
    timeout: Duration,
    stream: bool,
    faults: Faults,
    /// The library's Ollama adapter sends no key; a server behind a proxy wants one.
    authorization: Option<SecretString>,
}

impl fmt::Debug for ProviderModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl ProviderModel {
    /// Sets it up; sends nothing.
    ///
    /// # Errors
    /// What is wrong in the configuration.
    pub fn new(config: ProviderConfig) -> Result<Self, ProviderError> {
        let ProviderConfig { name, provider, model, base_url, api_key, timeout, stream } = config;
        let Some((_, kind, protocol, variable)) = PROVIDERS.iter().find(|(known, ..)| *known == provider) else {
            let known = providers().collect::<Vec<_>>().join(", ");
            return Err(ProviderError::UnknownProvider { name, provider, known: format!("scripted, {known}") });
        };
        if needs_base_url(&provider) && base_url.is_none() {
            return Err(ProviderError::MissingUrl { name, provider });
        }
        let key = match (&api_key, &base_url, variable) {
            (Some(key), ..) => key.expose_secret().trim().to_owned(),
            // A server of one's own that asks for no key is sent one that says so.
            (None, Some(_), _) | (None, _, None) => "none".to_owned(),
            (None, None, Some(variable)) => {
                return Err(ProviderError::MissingKey { name, provider, hint: format!(" (usually {variable})") });
            }
        };
        let authorization = api_key.as_ref().filter(|_| provider == "ollama").map(|_| format!("Bearer {key}").into());
        let faults = Faults::new(api_key.as_ref().map(|_| key.clone()));
        let endpoint = match base_url {
            Some(url) => Some(base(&url).map_err(|why| ProviderError::BadUrl { name: name.clone(), why })?),
            None => None,
        };
        let http = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT_MAX.min(timeout))
            .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|e| ProviderError::Client { name: name.clone(), why: format!("no HTTP client: {e}") })?;
        let auth = match &endpoint {
            Some(endpoint) if provider == AZURE => {
                azure(endpoint, key).map_err(|why| ProviderError::BadUrl { name: name.clone(), why })?
            }
            _ => AuthData::from_single(key),
        };
        let client = match endpoint {
            Some(endpoint) => Client::builder().append_provider_config(*kind, (endpoint, auth)),
            None => Client::builder().append_provider_config(*kind, auth),
        };
        let client = client.with_reqwest(http).build();
        let client = client.map_err(|e| ProviderError::Client { name: name.clone(), why: e.to_string() })?;
        // The library takes the end of some names (`-medium`) for an effort, and sends that beside the rest of the name.
        let is_cut = *protocol == Protocol::OpenAi && ReasoningEffort::from_model_name(&model).0.is_some();
        let target = ModelIden::new(*kind, if is_cut { "model" } else { model.as_str() });
        Ok(Self {
            shown: format!("{name} ({provider}/{model})"),
            client,
            target,
            model,
            protocol: *protocol,
            timeout,
            stream,
            faults,
            authorization,
        })
    }

    async fn ask(&self, request: ModelRequest) -> Result<Reply, ModelError> {
        let names = WireNames::new(request.tools.iter().map(|tool| tool.name.as_str()))
            .map_err(|collision: WireCollision| self.faults.of(ModelErrorClass::Client, collision))?;
        let chat = transcript::chat(&request, &names, self.target.adapter_kind.as_lower_str(), self.protocol);
        let mut turn = if self.stream { self.streamed(chat, &request).await? } else { self.whole(chat).await? };
        let keeps_thoughts = matches!(self.target.adapter_kind, AdapterKind::OpenAI | AdapterKind::DeepSeek);
        if let Some(text) = turn.reasoning.take().filter(|_| keeps_thoughts) {
            turn.thoughts = Some(Thoughts::of_text(self.target.adapter_kind.as_lower_str(), text));
        }
        self.checked(turn, &names)
    }

    fn options(&self) -> ChatOptions {
        let mut options = ChatOptions::default().with_capture_usage(true);
        if self.protocol == Protocol::OpenAi {
            options = options.with_extra_body(serde_json::json!({ "model": self.model }));
        }
        match &self.authorization {
            Some(value) => options.with_extra_headers([("authorization", value.expose_secret().to_owned())]),
            None => options,
        }
    }

    async fn streamed(&self, chat: ChatRequest, request: &ModelRequest) -> Result<Turn, ModelError> {
        let frames = Arc::new(Mutex::new(Frames::new(self.protocol)));
        let seen = frames.clone();
        let too_long = || frames.lock().unwrap_or_else(PoisonError::into_inner).is_too_long();
        let options = self
            .options()
            // The library allocates up to the index a frame names; ours come from the frames.
            .with_capture_tool_calls(self.protocol != Protocol::OpenAi)
            .with_capture_reasoning_content(self.protocol != Protocol::OpenAi)
            .with_raw_frame_fn(move |_, frame| seen.lock().unwrap_or_else(PoisonError::into_inner).push(frame.data));
        let answer = self.client.exec_chat_stream(self.target.clone(), chat, Some(&options)).await;
        let mut stream = answer.map_err(|e| self.faults.classify(e))?.stream;
        let mut text = String::new();
        let mut end = Ok(None);
        while let Some(event) = stream.next().await {
            if too_long() {
                let why = format!("the reply is longer than {} bytes", limits::MODEL_REPLY_BYTES_MAX);
                return Err(self.faults.of(ModelErrorClass::Server, why));
            }
            match event {
                Ok(ChatStreamEvent::Chunk(chunk)) => {
                    text.push_str(&chunk.content);
                    request.tell(Piece::Text(chunk.content));
                }
                Ok(ChatStreamEvent::End(last)) => {
                    end = Ok(Some(last));
                    break;
                }
                Ok(_) => {}
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
        }
        let mut frames = std::mem::take(&mut *frames.lock().unwrap_or_else(PoisonError::into_inner));
        // The server's own word tells more than what the library makes of it, and counts also where the library goes on.
        if let Some(error) = frames.take_error() {
            return Err(self.faults.of_body(&error));
        }
        if let Some(why) = frames.blocked() {
            return Err(self.blocked(why));
        }
        let Some(end) = end.map_err(|e| self.faults.classify(e))? else {
            let (class, why) = if frames.is_empty() {
                (ModelErrorClass::Server, "the answer is no event stream")
            } else {
                (ModelErrorClass::Truncated, "the stream stopped before its end")
            };
            return Err(self.faults.of(class, why));
        };
        let mut turn = frames.into_turn().map_err(|(class, why)| self.faults.of(class, why))?;
        turn.text = text;
        if turn.stop.is_none() {
            turn.stop = end.captured_stop_reason;
        }
        if turn.usage.is_none() {
            turn.usage = end.captured_usage.map(usage);
        }
        if let Some(usage) = turn.usage.as_mut().filter(|usage| usage.reasoning_tokens == 0) {
            usage.reasoning_tokens = turn.thought_tokens.min(usage.output_tokens);
        }
        if self.protocol != Protocol::OpenAi {
            let parts = end.captured_content.map(|content| content.into_parts()).unwrap_or_default();
            let calls = transcript::calls_of(&parts);
            if turn.started_calls.is_some_and(|started| started != calls.len()) {
                return Err(self.faults.of(ModelErrorClass::Truncated, "a tool call of the stream is not whole"));
            }
            turn.calls = calls.iter().map(|call| requested(call)).collect();
            turn.thoughts = Thoughts::of(self.target.adapter_kind.as_lower_str(), &parts);
        }
        Ok(turn)
    }

    async fn whole(&self, chat: ChatRequest) -> Result<Turn, ModelError> {
        let options =
            self.options().with_capture_raw_body(true).with_capture_reasoning_content(self.protocol != Protocol::OpenAi);
        let answer = self.client.exec_chat(self.target.clone(), chat, Some(&options)).await;
        if self.protocol == Protocol::OpenAi {
            // The library refuses arguments that are no JSON and calls without an id; the body has them as they were written.
            let body = match answer {
                Ok(answer) => answer.captured_raw_body.unwrap_or_default(),
                Err(genai::Error::ChatResponseGeneration { response_body, .. }) => *response_body,
                Err(e) => return Err(self.faults.classify(e)),
            };
            if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
                return Err(self.faults.of_body(error));
            }
            return Turn::of_openai_body(&body).map_err(|(class, why)| self.faults.of(class, why));
        }
        let answer = answer.map_err(|e| match &e {
            genai::Error::ChatResponseGeneration { response_body: body, .. } => match (body.get("error"), blocked(body)) {
                (Some(error), _) if !error.is_null() => self.faults.of_body(error),
                (_, Some(why)) => self.blocked(why),
                _ => self.faults.classify(e),
            },
            _ => self.faults.classify(e),
        })?;
        let parts = answer.content.into_parts();
        Ok(Turn {
            text: parts.iter().filter_map(|part| part.as_text()).collect::<Vec<_>>().join(""),
            calls: transcript::calls_of(&parts).iter().map(|call| requested(call)).collect(),
            stop: answer.stop_reason,
            usage: Some(usage(answer.usage)),
            thoughts: Thoughts::of(self.target.adapter_kind.as_lower_str(), &parts),
            ..Turn::default()
        })
    }

    fn blocked(&self, why: &str) -> ModelError {
        self.faults.of(ModelErrorClass::Refused, format!("the question was refused ({why})"))
    }

    /// A turn becomes a reply only if it says why it stopped, and that is not in the middle of a call.
    fn checked(&self, turn: Turn, names: &WireNames) -> Result<Reply, ModelError> {
        let of = |class, why: String| Err(self.faults.of(class, why));
        if let Some(refusal) = turn.refusal {
            return of(ModelErrorClass::Refused, format!("the model refused: {refusal}"));
        }
        let Some(stop) = turn.stop else {
            return of(ModelErrorClass::Truncated, "the reply ended without a reason".into());
        };
        let word = stop.raw().to_owned();
        match stop {
            StopReason::ContentFilter(_) => return of(ModelErrorClass::Refused, format!("the content was refused ({word})")),
            StopReason::MaxTokens(_) if !turn.calls.is_empty() => {
                return of(ModelErrorClass::Truncated, format!("the reply was cut in a tool call ({word})"));
            }
            StopReason::ToolCall(_) if turn.calls.is_empty() => {
                return of(ModelErrorClass::Server, format!("the reply stopped for tool calls ({word}) and has none"));
            }
            StopReason::Other(_) if matches!(word.as_str(), "MALFORMED_FUNCTION_CALL" | "UNEXPECTED_TOOL_CALL") => {
                return of(ModelErrorClass::Truncated, format!("the model's tool call is malformed ({word})"));
            }
            StopReason::Other(_)
                if matches!(
                    word.as_str(),
                    "error" | "cancelled" | "pause_turn" | "insufficient_system_resource" | "network_error"
                ) =>
            {
                return of(ModelErrorClass::Server, format!("the provider gave up ({word})"));
            }
            _ => {}
        }
        let calls = turn.calls.into_iter().map(|call| RequestedCall { tool: names.from_wire(&call.tool), ..call }).collect();
        Ok(Reply {
            text: turn.text,
            calls,
            usage: turn.usage.unwrap_or_default(),
            stop: word,
            opaque: turn.thoughts.and_then(|thoughts| serde_json::to_value(thoughts).ok()),
        })
    }
}

fn base(url: &str) -> Result<Endpoint, String> {
    let mut parsed = reqwest::Url::parse(url).map_err(|e| format!("`{url}`: {e}"))?;
    if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
        return Err(format!("`{url}` is not an http or https URL"));
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("it contains a user or a password: use `api_key_env`".into());
    }
    // The library joins paths relative to the last slash.
    if !parsed.path().ends_with('/') {
        let path = format!("{}/", parsed.path());
        parsed.set_path(&path);
    }
    Ok(Endpoint::from_owned(parsed.to_string()))
}

/// The key in Azure's header, and nothing in the header where it looks for a token of another kind.
fn azure(base: &Endpoint, key: String) -> Result<AuthData, String> {
    let base = reqwest::Url::parse(base.base_url()).map_err(|e| e.to_string())?;
    let mut url = base.join("chat/completions").map_err(|e| e.to_string())?;
    // Its `api-version`.
    url.set_query(base.query());
    Ok(AuthData::RequestOverride { url: url.to_string(), headers: genai::Headers::from(("api-key".to_owned(), key)) })
}

fn requested(call: &ToolCall) -> RequestedCall {
    let raw_arguments = match &call.fn_arguments {
        // What the library could not parse it leaves as the model wrote it.
        Value::String(raw) => raw.clone(),
        value => value.to_string(),
    };
    RequestedCall { tool: call.fn_name.clone(), raw_arguments }
}

fn usage(usage: genai::chat::Usage) -> Usage {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok()).unwrap_or(0);
    let reasoning_tokens = count(usage.completion_tokens_details.and_then(|details| details.reasoning_tokens));
    Usage {
        input_tokens: count(usage.prompt_tokens),
        // The library adds Gemini's thoughts to what was received, but for a reply of thoughts alone.
        output_tokens: count(usage.completion_tokens).max(reasoning_tokens),
        cached_tokens: count(usage.prompt_tokens_details.and_then(|details| details.cached_tokens)),
        reasoning_tokens,
        ..Usage::default()
    }
}

#[async_trait]
impl Model for ProviderModel {
    fn name(&self) -> &str {
        &self.shown
    }

    async fn reply(&self, request: ModelRequest) -> Result<Reply, ModelError> {
        match tokio::time::timeout(self.timeout, self.ask(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.faults.of(ModelErrorClass::Connection, format!("no whole reply within {:?}", self.timeout))),
        }
    }
}
