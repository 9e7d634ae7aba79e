//! What is asked of a new run: whether it can be, and how a repeat of it is known.

use super::*;

/// What makes a repeat find its run.
pub(super) fn request_key(start: &StartRun, key: Option<String>) -> Option<RequestKey> {
    let request_hash = canonical_hash(&(&start.agent, &start.request, start.priority));
    key.map(|key| RequestKey { scope: start.by.id.clone(), key, request_hash })
}

/// What is wrong with a request, wherever it is executed.
pub(super) fn check_request(request: &Request) -> Result<(), StartError> {
    let bytes: usize = request.messages.iter().map(|m| m.text.len()).sum();
    if bytes > limits::REQUEST_BYTES_MAX {
        return Err(StartError::Invalid(format!(
            "the request is {bytes} bytes long, and the limit is {}",
            limits::REQUEST_BYTES_MAX
        )));
    }
    if request.messages.last().is_none_or(|m| m.text.trim().is_empty()) {
        return Err(StartError::Invalid("the request is empty: say what the agent should do".into()));
    }
    if request.metadata.values().any(|value| nested_deeper(value, limits::NESTING_MAX)) {
        return Err(StartError::Invalid(format!("the metadata is nested deeper than {} levels", limits::NESTING_MAX)));
    }
    if request.max_rounds == Some(0) {
        return Err(StartError::Invalid("max_rounds must be at least 1".into()));
    }
    Ok(())
}
