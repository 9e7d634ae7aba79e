//! The SDK's transports with our last check before the first byte, and with an end where they would wait for ever.

use super::{super::last_check::GATE, passage::Passage};
use crate::limits::MCP_MESSAGE_BYTES_MAX;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage},
    service::{RxJsonRpcMessage, TxJsonRpcMessage},
    transport::{
        Transport,
        common::client_side_sse::BoxedSseResponse,
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse, StreamableHttpResponseLimits,
        },
    },
};
use std::{collections::HashMap, io, sync::Arc};

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

/// An HTTP client that asks a request's passage when its connection stands.
#[derive(Clone, Debug)]
pub(super) struct GuardedHttp(pub(super) reqwest::Client);

type Answer<T> = Result<T, StreamableHttpError<reqwest::Error>>;
type Headers = HashMap<HeaderName, HeaderValue>;

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
        auth: Option<String>,
        headers: Headers,
        limits: StreamableHttpResponseLimits,
    ) -> Answer<StreamableHttpPostResponse> {
        let passage = Passage::of(&message);
        let is_request = matches!(message, JsonRpcMessage::Request(_));
        let post = self.0.post_message_with_response_limits(uri, message, session, auth, headers, limits);
        let answer = match &passage {
            Some(passage) => GATE.scope(Arc::new(passage.clone()), post).await,
            None => post.await,
        };
        let answer = answer.map_err(without_url)?;
        match answer {
            // An error that names no request is no answer to this one as far as the SDK is concerned, which waits on.
            StreamableHttpPostResponse::Json(ServerJsonRpcMessage::Error(error), _) if is_request && error.id.is_none() => {
                let what = format!("an error that names no request: {} {}", error.error.code.0, error.error.message);
                Err(StreamableHttpError::UnexpectedServerResponse(what.into()))
            }
            StreamableHttpPostResponse::Accepted if is_request => {
                Err(StreamableHttpError::UnexpectedServerResponse("a request was accepted without an answer".into()))
            }
            answer => Ok(answer),
        }
    }

    async fn delete_session(&self, uri: Arc<str>, session: Arc<str>, auth: Option<String>, headers: Headers) -> Answer<()> {
        self.0.delete_session(uri, session, auth, headers).await.map_err(without_url)
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
        auth: Option<String>,
        headers: Headers,
        size: usize,
    ) -> Answer<BoxedSseResponse> {
        let stream = self.0.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, size);
        stream.await.map_err(without_url)
    }
}

/// A URL may hold a secret in its query.
fn without_url(error: StreamableHttpError<reqwest::Error>) -> StreamableHttpError<reqwest::Error> {
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

    #[tokio::test]
    async fn over_http_the_passage_is_asked_when_the_connection_stands_and_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let config = super::super::McpConfig::url("far", &url);
        let resolved = super::super::target::resolve(&config, Duration::from_secs(5), &|_| None).unwrap();
        let super::super::target::Target::Http { client, .. } = resolved.target else { panic!("it is a URL") };
        let client = GuardedHttp(client);
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
