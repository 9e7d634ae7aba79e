//! The SDK's errors in words for people: the chain of causes, without the names of its types.

use rmcp::{service::ClientInitializeError, service::ServiceError, transport::streamable_http_client::StreamableHttpError};
use std::error::Error;

type Cause<'a> = &'a (dyn Error + 'static);

/// Why the handshake failed.
pub(super) fn of_handshake(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => of_handshake(fallback),
        ClientInitializeError::TransportError { error, .. } => chain(error.error.as_ref()),
        other => chain(other),
    }
}

/// Why a request failed.
pub(super) fn of_request(error: &ServiceError) -> String {
    match error {
        ServiceError::TransportSend(error) => chain(error.error.as_ref()),
        other => chain(other),
    }
}

/// There never was a connection.
pub(super) fn is_unreachable(error: &ClientInitializeError) -> bool {
    match error {
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => is_unreachable(fallback),
        ClientInitializeError::TransportError { error, .. } => {
            client(error.error.as_ref()).is_some_and(reqwest::Error::is_connect)
        }
        _ => false,
    }
}

/// The HTTP client's error, which the SDK does not name as a cause.
fn client(error: Cause<'_>) -> Option<&reqwest::Error> {
    match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Client(error)) => Some(error),
        _ => None,
    }
}

fn chain(error: Cause<'_>) -> String {
    let mut next = Some(client(error).map_or(error, |error| error as Cause<'_>));
    let mut words = String::new();
    while let Some(cause) = next {
        let text = cause.to_string();
        // Some repeat their cause's words in their own.
        if !words.contains(&text) {
            words = if words.is_empty() { text } else { format!("{words}: {text}") };
        }
        next = cause.source();
    }
    words
}
