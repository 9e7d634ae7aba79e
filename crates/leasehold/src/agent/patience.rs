//! A time limit that a process which stood still does not hold against an answer that has come meanwhile.

use std::time::Duration;

/// What lies there when the limit has passed is taken in within this time. After a pause of the process the timer and the socket are
/// ready at once, and the timer is looked at first.
const TAKING_IN: Duration = Duration::from_millis(250);

/// Waits for an answer, at most so long; one that has come by then counts.
pub(crate) async fn within<T>(limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(answer);
    match tokio::time::timeout(limit, &mut answer).await {
        Ok(answer) => Some(answer),
        Err(_) => tokio::time::timeout(TAKING_IN, answer).await.ok(),
    }
}
