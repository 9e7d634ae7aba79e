//! The SDK's transports with our last check before the first byte, and with an end where they would wait for ever.

use super::{super::last_check::GATE, mask::Mask, oauth::Authorization, passage::Passage};
use crate::limits::MCP_MESSAGE_BYTES_MAX;
use futures::StreamExt as _;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{
        Transport,
        auth::AuthError,
        common::client_side_sse::BoxedSseResponse,
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
        },
    },
};
use secrecy::{ExposeSecret as _, SecretString};
use std::{borrow::Cow, collections::HashMap, io, sync::Arc};

/// A transport over two pipes. Requests go out one after the other, and each is checked when it is its turn.
pub(super) struct GuardedPipes<T> {
    inner: T,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl<T> GuardedPipes<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, turn: Arc::default() }
    }
}

impl<T: Transport<RoleClient, Error = io::Error>> Transport<RoleClient> for GuardedPipes<T> {
    type Error = io::Error;

    fn send(&mut self, item: TxJsonRpcMessage<RoleClient>) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let passage = Passage::of(&item);
        let turn = Arc::clone(&self.turn);
        let sending = self.inner.send(item);
        async move {
            let _mine = turn.lock().await;
            if passage.is_some_and(|passage| !passage.open()) {
                return Err(io::Error::other("the request was given up before it was sent"));
            }
            sending.await
        }
    }

    fn receive(&mut self) -> impl Future<Output = Option<RxJsonRpcMessage<RoleClient>>> + Send {
        self.inner.receive()
    }

    fn close(&mut self) -> impl Future<Output = io::Result<()>> + Send {
        self.inner.close()
    }
}

/// An HTTP client that asks a request's passage when its connection stands, and that shows the right to use the server. A request with
/// a passage is made once whatever is answered; of the others, which change nothing, one that was refused for its token is made once
/// more with another.
#[derive(Clone, Debug)]
pub(super) struct GuardedHttp {
    pub(super) client: reqwest::Client,
    /// None: what is configured as headers is all there is to show.
    pub(super) authorization: Option<Arc<Authorization>>,
    /// Over what the server says.
    pub(super) mask: Mask,
}

type HttpError = StreamableHttpError<reqwest::Error>;
/// Statuses of HTTP with which a server takes a request no further, whatever is in it.
const NOT_TAKEN: [&str; 4] = ["HTTP 405", "HTTP 413", "HTTP 415", "HTTP 422"];

type Answer<T> = Result<T, HttpError>;
type Headers = HashMap<HeaderName, HeaderValue>;

impl GuardedHttp {
    /// What is shown to the server. Before the passage of a request is asked: to get it may take time.
    async fn token(&self) -> Answer<Option<SecretString>> {
        let Some(authorization) = &self.authorization else { return Ok(None) };
        authorization.token().await.map(Some).map_err(|error| unauthorized(error.to_string()))
    }

    /// The same error; where it is that the server wants other rights, in words with the mend, and that it was so.
    fn judged(&self, error: HttpError, token: Option<&SecretString>) -> (HttpError, bool) {
        let (challenge, lacks) = match &error {
            StreamableHttpError::AuthRequired(error) => (error.www_authenticate_header.clone(), None),
            StreamableHttpError::InsufficientScope(error) => {
                (error.www_authenticate_header.clone(), Some(error.required_scope.clone()))
            }
            // Without the header that says what is wanted.
            StreamableHttpError::UnexpectedServerResponse(said) if said.starts_with("HTTP 401") => (String::new(), None),
            StreamableHttpError::UnexpectedServerResponse(said) if said.starts_with("HTTP 403") => (String::new(), Some(None)),
            // Refused before the protocol looked at it.
            StreamableHttpError::UnexpectedServerResponse(said) => {
                let refused = NOT_TAKEN.iter().any(|status| said.starts_with(status));
                return (without_url(error), refused);
            }
            _ => return (without_url(error), false),
        };
        let status = if lacks.is_some() { 403 } else { 401 };
        let words = match (&self.authorization, token, lacks) {
            (Some(authorization), _, Some(scope)) => authorization.lacks(scope.as_deref(), &challenge),
            (Some(authorization), Some(token), None) => authorization.refused(token, &challenge),
            _ => format!("the server wants other rights ({status}, {challenge}): write [mcp.oauth], or mend `headers`"),
        };
        (unauthorized(words), true)
    }

    async fn post_once(
        &self,
        request: Posted,
        token: Option<&SecretString>,
        passage: Option<&Passage>,
    ) -> Answer<StreamableHttpPostResponse> {
        let Posted { uri, message, session, headers, limits } = request;
        let token = token.map(|token| token.expose_secret().to_owned());
        let post = self.client.post_message_with_response_limits(uri, message, session, token, headers, limits);
        match passage {
            Some(passage) => GATE.scope(Arc::new(passage.clone()), post).await,
            None => post.await,
        }
    }

    /// Without tokens that the server repeats.
    fn clean(&self, stream: BoxedSseResponse) -> BoxedSseResponse {
        if self.authorization.is_none() {
            return stream;
        }
        let mask = self.mask.clone();
        stream
            .map(move |event| {
                event.map(|mut event| {
                    event.data = event.data.map(|data| cleaned(&mask, data));
                    event
                })
            })
            .boxed()
    }

    fn clean_message(&self, message: ServerJsonRpcMessage) -> ServerJsonRpcMessage {
        if self.authorization.is_none() {
            return message;
        }
        // What was read from JSON is written as JSON, and what it was stays one.
        let Ok(text) = serde_json::to_string(&message) else { return message };
        match self.mask.over_tokens(&text) {
            Cow::Borrowed(_) => message,
            Cow::Owned(text) => serde_json::from_str(&text).unwrap_or(message),
        }
    }
}

/// The words of an event without tokens, however they are spelt in its JSON.
fn cleaned(mask: &Mask, data: String) -> String {
    let Ok(said) = serde_json::from_str::<serde_json::Value>(&data) else { return mask.over_tokens(&data).into_owned() };
    match mask.over_tokens(&said.to_string()) {
        Cow::Borrowed(_) => data,
        Cow::Owned(masked) => masked,
    }
}

/// A request that is made.
#[derive(Clone)]
struct Posted {
    uri: Arc<str>,
    message: ClientJsonRpcMessage,
    session: Option<Arc<str>>,
    headers: Headers,
    limits: StreamableHttpResponseLimits,
}

fn unauthorized(words: String) -> HttpError {
    StreamableHttpError::Auth(AuthError::AuthorizationFailed(words))
}

impl StreamableHttpClient for GuardedHttp {
    type Error = reqwest::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Answer<StreamableHttpPostResponse> {
        let limits = StreamableHttpResponseLimits::default();
        self.post_message_with_response_limits(uri, message, session, auth, headers, limits).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        _: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Answer<StreamableHttpPostResponse> {
        let passage = Passage::of(&message);
        let is_request = matches!(message, JsonRpcMessage::Request(_));
        let request = Posted { uri, message, session, headers, limits };
        let again = passage.is_none().then(|| request.clone());
        let mut token = self.token().await?;
        let mut answer = self.post_once(request, token.as_ref(), passage.as_ref()).await;
        let challenge = match &answer {
            Err(StreamableHttpError::AuthRequired(error)) => Some(error.www_authenticate_header.clone()),
            _ => None,
        };
        if let (Some(challenge), Some(used), Some(request), Some(authorization)) =
            (challenge, &token, again, &self.authorization)
        {
            authorization.refused(used, &challenge);
            token = self.token().await?;
            answer = self.post_once(request, token.as_ref(), None).await;
        }
        let answer = answer.map_err(|error| {
            let (error, is_refused) = self.judged(error, token.as_ref());
            if let (true, Some(passage)) = (is_refused, &passage) {
                passage.refused();
            }
            error
        })?;
        match answer {
            StreamableHttpPostResponse::Sse(stream, session) => {
                Ok(StreamableHttpPostResponse::Sse(self.clean(stream), session))
            }
            // An error that names no request is no answer to this one as far as the SDK is concerned, which waits on.
            StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), _) if is_request && error.id.is_none() => {
                let what = format!("an error that names no request: {} {}", error.error.code.0, error.error.message);
                Err(StreamableHttpError::UnexpectedServerResponse(what.into()))
            }
            StreamableHttpPostResponse::Accepted if is_request => {
                Err(StreamableHttpError::UnexpectedServerResponse("a request was accepted without an answer".into()))
            }
            StreamableHttpPostResponse::Json(message, session) => {
                Ok(StreamableHttpPostResponse::Json(self.clean_message(message), session))
            }
            answer => Ok(answer),
        }
    }

    async fn delete_session(&self, uri: Arc<str>, session: Arc<str>, _: Option<String>, headers: Headers) -> Answer<()> {
        let token = self.token().await?.map(|token| token.expose_secret().to_owned());
        self.client.delete_session(uri, session, token, headers).await.map_err(without_url)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Answer<BoxedSseResponse> {
        self.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, MCP_MESSAGE_BYTES_MAX).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        _: Option<String>,
        headers: Headers,
        size: usize,
    ) -> Answer<BoxedSseResponse> {
        let token = self.token().await?;
        let shown = token.as_ref().map(|token| token.expose_secret().to_owned());
        let stream = self.client.get_stream_with_max_sse_event_size(uri, session, last_event, shown, headers, size);
        // What a call was before is not known better for it: its passage hears nothing of this.
        stream.await.map(|stream| self.clean(stream)).map_err(|error| self.judged(error, token.as_ref()).0)
    }
}

/// A URL may hold a secret in its query.
fn without_url(error: HttpError) -> HttpError {
    match error {
        StreamableHttpError::Client(error) => StreamableHttpError::Client(error.without_url()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::{BootClock as _, ManualClock},
        worker::trust::TrustWindow,
    };
    use rmcp::model::{CallToolRequest, CallToolRequestParams, ClientRequest, RequestId};
    use std::time::Duration;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    fn request(passage: &Passage) -> ClientJsonRpcMessage {
        let mut request = CallToolRequest::new(CallToolRequestParams::new("write"));
        request.extensions.insert(passage.clone());
        JsonRpcMessage::request(ClientRequest::CallToolRequest(request), RequestId::Number(1))
    }

    #[test]
    fn a_token_is_taken_out_of_an_event_in_every_spelling() {
        let mask = Mask::default();
        mask.add_live("at/secret=1");
        mask.add_live("at\"quoted\\2");
        for (said, expected) in [
            (r#"{"shown":"Bearer at/secret=1"}"#, r#"{"shown":"Bearer ***"}"#),
            (r#"{"shown":"Bearer at\/secret\u003d1"}"#, r#"{"shown":"Bearer ***"}"#),
            (r#"{"\u0061t/secret=1":[1.50,"at\u0022quoted\\2"]}"#, r#"{"***":[1.5,"***"]}"#),
            ("no JSON: at/secret=1", "no JSON: ***"),
            (r#"{ "nothing": "a\/b", "n": 1.50 }"#, r#"{ "nothing": "a\/b", "n": 1.50 }"#),
        ] {
            assert_eq!(cleaned(&mask, said.to_owned()), expected);
        }
    }

    #[tokio::test]
    async fn over_http_the_passage_is_asked_when_the_connection_stands_and_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let config = super::super::McpConfig::url("far", &url);
        let resolved = super::super::target::resolve(&config, Duration::from_secs(5), &|_| None, None).unwrap();
        let super::super::target::Target::Http { client, .. } = resolved.target else { panic!("it is a URL") };
        let client = GuardedHttp { client, authorization: None, mask: Mask::default() };
        let clock = ManualClock::new();
        let trust = TrustWindow::new(clock.clone(), Duration::from_secs(60), clock.now());
        let received = tokio::spawn(async move {
            let mut received = Vec::new();
            for _ in 0..3 {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut buffer = vec![0; 64 * 1024];
                let read = stream.read(&mut buffer).await.unwrap();
                received.push(read > 0);
                let answer = "HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                // Nobody is there where nothing came.
                let _ = stream.write_all(answer.as_bytes()).await;
            }
            received
        });
        let post = async |passage: &Passage| {
            let posted = client.post_message(url.as_str().into(), request(passage), None, None, Headers::new()).await;
            posted.err().map(|error| error.to_string()).unwrap_or_default()
        };
        let passage = Passage::new(Some(Arc::clone(&trust)));
        assert!(post(&passage).await.contains("accepted without an answer"));
        // The same request again.
        post(&passage).await;
        // The lease ended after the first look.
        let late = Passage::new(Some(Arc::clone(&trust)));
        clock.advance(Duration::from_secs(50));
        post(&late).await;
        assert_eq!(late.close(), super::super::passage::Fate::NotHeld);
        assert_eq!(received.await.unwrap(), [true, false, false], "each connected, and only the first sent a byte");
    }
}
