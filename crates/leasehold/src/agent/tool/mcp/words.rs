//! The SDK's errors in words for people: the chain of causes, without the names of its types.

use rmcp::{
    service::{ClientInitializeError, ServiceError},
    transport::{auth::AuthError, streamable_http_client::StreamableHttpError},
};
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

/// What the right to use the server lacks, where that is why the handshake failed.
pub(super) fn unauthorized_handshake(error: &ClientInitializeError) -> Option<String> {
    match error {
        ClientInitializeError::LegacyFallbackFailed { discover, fallback } => {
            unauthorized_handshake(fallback).or_else(|| unauthorized_handshake(discover))
        }
        ClientInitializeError::TransportError { error, .. } => unauthorized(error.error.as_ref()),
        _ => None,
    }
}

/// The same of a request.
pub(super) fn unauthorized_request(error: &ServiceError) -> Option<String> {
    match error {
        ServiceError::TransportSend(error) => unauthorized(error.error.as_ref()),
        _ => None,
    }
}

fn unauthorized(error: Cause<'_>) -> Option<String> {
    match error.downcast_ref::<StreamableHttpError<reqwest::Error>>() {
        Some(StreamableHttpError::Auth(AuthError::AuthorizationFailed(why))) => Some(why.clone()),
        _ => None,
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

/// An error with its causes.
pub(super) fn chain(error: Cause<'_>) -> String {
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
