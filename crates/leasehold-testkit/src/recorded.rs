//! A model server that plays recorded bytes, whatever they are, and keeps what it was asked. And the bytes: how each family of
//! providers writes a turn, in pieces and whole, so that a test can cut it, turn it round or end it too early.

use serde_json::{Value, json};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

/// A running server; it ends with this value.
#[derive(Debug)]
pub struct Recorded {
    url: String,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Recorded {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Recorded {
    /// Answers its n-th request with the n-th of these, and every further one with the last, each on a connection of its own.
    ///
    /// # Panics
    /// There is no answer, or no port to listen on.
    pub async fn play<B: Into<Vec<u8>>>(answers: impl IntoIterator<Item = B>) -> Self {
        let answers: Vec<Vec<u8>> = answers.into_iter().map(Into::into).collect();
        assert!(!answers.is_empty(), "a server that never answers");
        let listener = match TcpListener::bind("127.0.0.1:0").await {
            Ok(listener) => listener,
            Err(error) => panic!("no port: {error}"),
        };
        let url = listener.local_addr().map(|at| format!("http://{at}")).unwrap_or_default();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut answered = 0;
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(request) = read(&mut stream).await else { continue };
                kept.lock().unwrap_or_else(PoisonError::into_inner).push(request);
                // A client that has heard enough may hang up.
                stream.write_all(&answers[answered.min(answers.len() - 1)]).await.ok();
                answered += 1;
            }
        });
        Self { url, requests, task }
    }

    /// Where it listens, without a path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What it was asked: head and body of each request.
    pub fn requests(&self) -> Vec<(String, Value)> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, and keeps none of it.
    pub fn take(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn read(stream: &mut TcpStream) -> Option<(String, Value)> {
    let (mut seen, mut buffer) = (Vec::new(), [0; 65536]);
    loop {
        let n = stream.read(&mut buffer).await.ok().filter(|n| *n > 0)?;
        seen.extend_from_slice(&buffer[..n]);
        let text = String::from_utf8_lossy(&seen);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse::<usize>().ok());
        if body.len() >= length? {
            return Some((head.to_owned(), serde_json::from_str(body).ok()?));
        }
    }
}

/// An answer as HTTP writes it, its body whole.
pub fn http(status: &str, content_type: &str, body: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\nconnection: close");
    format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A JSON body under a status.
pub fn answer(status: &str, body: &Value) -> Vec<u8> {
    http(status, "application/json", &body.to_string())
}

/// How a family of providers writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// Chat completions of OpenAI and of all who speak its protocol.
    OpenAi,
    /// Messages of Anthropic.
    Anthropic,
    /// `generateContent` of Gemini.
    Gemini,
    /// `/api/chat` of Ollama.
    Ollama,
}

/// Why a turn ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is over.
    Done,
    /// It asks for calls.
    Calls,
    /// It ran into a limit.
    Length,
    /// Its content was refused.
    Refused,
}

impl Wire {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::OpenAi, Self::Anthropic, Self::Gemini, Self::Ollama];

    /// That of a provider by its configured name.
    pub fn of(provider: &str) -> Self {
        Self::ALL.into_iter().find(|wire| wire.provider() == provider).unwrap_or(Self::OpenAi)
    }

    /// The configured name of a provider of this family.
    pub fn provider(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Gemini => "gemini",
            Self::Ollama => "ollama",
        }
    }

    /// The path of its API.
    pub fn path(self) -> &'static str {
        match self {
            Self::OpenAi | Self::Anthropic => "/v1/",
            Self::Gemini => "/v1beta/",
            Self::Ollama => "/",
        }
    }

    fn content_type(self) -> &'static str {
        if self == Self::Ollama { "application/x-ndjson" } else { "text/event-stream" }
    }

    fn word(self, why: Why) -> &'static str {
        match (self, why) {
            (Self::OpenAi, Why::Done) | (Self::Ollama, Why::Done | Why::Calls | Why::Refused) => "stop",
            (Self::OpenAi, Why::Calls) => "tool_calls",
            (Self::OpenAi | Self::Ollama, Why::Length) => "length",
            (Self::OpenAi, Why::Refused) => "content_filter",
            (Self::Anthropic, Why::Done) => "end_turn",
            (Self::Anthropic, Why::Calls) => "tool_use",
            (Self::Anthropic, Why::Length) => "max_tokens",
            (Self::Anthropic, Why::Refused) => "refusal",
            (Self::Gemini, Why::Done | Why::Calls) => "STOP",
            (Self::Gemini, Why::Length) => "MAX_TOKENS",
            (Self::Gemini, Why::Refused) => "SAFETY",
        }
    }

    /// A frame of a stream.
    pub fn frame(self, data: &Value) -> String {
        match self {
            Self::Anthropic => format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default()),
            Self::OpenAi | Self::Gemini => format!("data: {data}\n\n"),
            Self::Ollama => format!("{data}\n"),
        }
    }

    /// The frames of a turn: its text in two pieces, then each call with its arguments in two pieces where the family cuts them, then
    /// why it ends, and the usage: 30 tokens sent, 10 of them cached, and 9 received, 4 of them thoughts, which Ollama does not tell. No
    /// `why`: no end.
    pub fn frames(self, text: &str, calls: &[(&str, Value)], why: Option<Why>) -> Vec<String> {
        let half = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
        let texts = [&text[..half], &text[half..]].into_iter().filter(|piece| !piece.is_empty());
        let mut data: Vec<Value> = Vec::new();
        match self {
            Self::OpenAi => {
                let delta = |delta: Value| json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] });
                data.extend(texts.map(|text| delta(json!({ "content": text }))));
                for (index, (name, arguments)) in calls.iter().enumerate() {
                    let function = json!({ "name": name, "arguments": "" });
                    data.push(delta(
                        json!({ "tool_calls": [{ "index": index, "id": format!("call_{index}"), "function": function }] }),
                    ));
                    for piece in halves(arguments) {
                        data.push(delta(json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] })));
                    }
                }
                if let Some(why) = why {
                    data.push(json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": self.word(why) }] }));
                    data.push(json!({ "choices": [], "usage": self.usage() }));
                }
            }
            Self::Anthropic => {
                data.push(json!({ "type": "message_start", "message": { "usage": self.usage() } }));
                let texts: Vec<&str> = texts.collect();
                let mut blocks = Vec::new();
                if !texts.is_empty() {
                    let deltas = texts.iter().map(|text| json!({ "type": "text_delta", "text": text }));
                    blocks.push((json!({ "type": "text", "text": "" }), deltas.collect::<Vec<_>>()));
                }
                for (at, (name, arguments)) in calls.iter().enumerate() {
                    let block = json!({ "type": "tool_use", "id": format!("toolu_{at}"), "name": name, "input": {} });
                    let deltas = halves(arguments).map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }));
                    blocks.push((block, deltas.to_vec()));
                }
                for (index, (block, deltas)) in blocks.into_iter().enumerate() {
                    data.push(json!({ "type": "content_block_start", "index": index, "content_block": block }));
                    data.extend(
                        deltas
                            .into_iter()
                            .map(|delta| json!({ "type": "content_block_delta", "index": index, "delta": delta })),
                    );
                    data.push(json!({ "type": "content_block_stop", "index": index }));
                }
                if let Some(why) = why {
                    let delta = json!({ "stop_reason": self.word(why) });
                    let usage = json!({ "output_tokens": 9, "output_tokens_details": { "thinking_tokens": 4 } });
                    data.push(json!({ "type": "message_delta", "delta": delta, "usage": usage }));
                    data.push(json!({ "type": "message_stop" }));
                }
            }
            Self::Gemini => {
                let parts = |parts: Value| json!({ "candidates": [{ "content": { "role": "model", "parts": parts } }] });
                data.extend(texts.map(|text| parts(json!([{ "text": text }]))));
                let call =
                    |(name, arguments): &(&str, Value)| parts(json!([{ "functionCall": { "name": name, "args": arguments } }]));
                data.extend(calls.iter().map(call));
                if let Some(why) = why {
                    let candidate = json!({ "content": { "parts": [] }, "finishReason": self.word(why) });
                    data.push(json!({ "candidates": [candidate], "usageMetadata": self.usage() }));
                }
            }
            Self::Ollama => {
                data.extend(texts.map(|text| json!({ "message": { "role": "assistant", "content": text }, "done": false })));
                for (name, arguments) in calls {
                    let call = json!({ "function": { "name": name, "arguments": arguments } });
                    data.push(
                        json!({ "message": { "role": "assistant", "content": "", "tool_calls": [call] }, "done": false }),
                    );
                }
                if let Some(why) = why {
                    let mut last = self.usage();
                    last["message"] = json!({ "role": "assistant", "content": "" });
                    last["done"] = json!(true);
                    last["done_reason"] = json!(self.word(why));
                    data.push(last);
                }
            }
        }
        let mut frames: Vec<String> = data.iter().map(|data| self.frame(data)).collect();
        if self == Self::OpenAi && why.is_some() {
            frames.push("data: [DONE]\n\n".to_owned());
        }
        frames
    }

    /// The event or line with which a server gives up in the middle of a stream.
    pub fn error(self) -> Value {
        match self {
            Self::OpenAi => json!({ "error": { "message": "The server had an error", "type": "server_error" } }),
            Self::Anthropic => json!({ "type": "error", "error": { "type": "overloaded_error", "message": "Overloaded" } }),
            Self::Gemini => json!({ "error": { "code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE" } }),
            Self::Ollama => json!({ "error": "an error was encountered while running the model" }),
        }
    }

    /// A reply without any content.
    pub fn nothing(self) -> Value {
        match self {
            Self::OpenAi => json!({ "id": "c", "choices": [] }),
            Self::Anthropic => json!({ "type": "message", "role": "assistant", "content": [] }),
            Self::Gemini => json!({ "candidates": [] }),
            Self::Ollama => json!({ "model": "m" }),
        }
    }

    fn usage(self) -> Value {
        match self {
            Self::OpenAi => json!({
                "prompt_tokens": 30, "completion_tokens": 9, "total_tokens": 39,
                "prompt_tokens_details": { "cached_tokens": 10 }, "completion_tokens_details": { "reasoning_tokens": 4 },
            }),
            // What was cached is not among the tokens sent.
            Self::Anthropic => json!({
                "input_tokens": 20, "cache_read_input_tokens": 10, "output_tokens": 9,
                "output_tokens_details": { "thinking_tokens": 4 },
            }),
            // Thoughts are not among the tokens received.
            Self::Gemini => json!({
                "promptTokenCount": 30, "cachedContentTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 4,
                "totalTokenCount": 39,
            }),
            Self::Ollama => json!({ "prompt_eval_count": 30, "prompt_eval_cached_count": 10, "eval_count": 9 }),
        }
    }

    /// These frames as one answer that ends as HTTP says, whatever they are.
    pub fn stream(self, frames: &[String]) -> Vec<u8> {
        http("200 OK", self.content_type(), &frames.concat())
    }

    /// The same, whose connection breaks before the end that HTTP announced.
    pub fn broken_stream(self, frames: &[String]) -> Vec<u8> {
        let body = frames.concat();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {}\r\nconnection: close", self.content_type());
        format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len() + 100).into_bytes()
    }

    /// A turn in one piece.
    pub fn whole(self, text: &str, calls: &[(&str, Value)], why: Option<Why>) -> Vec<u8> {
        let word = why.map(|why| self.word(why));
        let body = match self {
            Self::OpenAi => {
                let call = |(at, (name, arguments)): (usize, &(&str, Value))| {
                    let function = json!({ "name": name, "arguments": arguments.to_string() });
                    json!({ "id": format!("call_{at}"), "type": "function", "function": function })
                };
                let mut message = json!({ "role": "assistant", "content": text });
                if !calls.is_empty() {
                    message["tool_calls"] = calls.iter().enumerate().map(call).collect();
                }
                json!({ "id": "c", "choices": [{ "index": 0, "message": message, "finish_reason": word }], "usage": self.usage() })
            }
            Self::Anthropic => {
                let mut content = vec![json!({ "type": "text", "text": text })];
                let call = |(at, (name, arguments)): (usize, &(&str, Value))| json!({ "type": "tool_use", "id": format!("toolu_{at}"), "name": name, "input": arguments });
                content.extend(calls.iter().enumerate().map(call));
                json!({ "type": "message", "role": "assistant", "content": content, "stop_reason": word, "usage": self.usage() })
            }
            Self::Gemini => {
                let mut parts = vec![json!({ "text": text })];
                parts.extend(
                    calls.iter().map(|(name, arguments)| json!({ "functionCall": { "name": name, "args": arguments } })),
                );
                let candidate = json!({ "content": { "role": "model", "parts": parts }, "finishReason": word });
                json!({ "candidates": [candidate], "usageMetadata": self.usage() })
            }
            Self::Ollama => {
                let call = |(name, arguments): &(&str, Value)| json!({ "function": { "name": name, "arguments": arguments } });
                let calls: Value = calls.iter().map(call).collect();
                let mut body = self.usage();
                body["message"] = json!({ "role": "assistant", "content": text, "tool_calls": calls });
                body["done"] = json!(true);
                body["done_reason"] = json!(word);
                body
            }
        };
        answer("200 OK", &body)
    }
}

fn halves(arguments: &Value) -> [String; 2] {
    let text = arguments.to_string();
    let half = text.char_indices().nth(text.chars().count() / 2).map_or(0, |(at, _)| at);
    [text[..half].to_owned(), text[half..].to_owned()]
}
