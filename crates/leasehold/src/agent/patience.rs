//! A time limit that a process which stood still does not hold against an answer that has come meanwhile.

use std::time::Duration;

/// What lies there when the limit has passed is taken in within this time. After a pause of the process the timer and the socket are
/// ready at once, and the timer is looked at first.
const TAKING_IN: Duration = Duration::from_millis(250);

/// Waits for an answer, at most so long; one that has come by then counts.
pub(crate) async fn within<T>(limit: Duration, answer: impl Future<Output = T>) -> Option<T> {
    before(tokio::time::sleep(limit), answer).await
}

/// The same with a limit that is told.
pub(crate) async fn before<T>(limit: impl Future<Output = ()>, answer: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return Some(answer),
        () = limit => {}
    }
    tokio::time::timeout(TAKING_IN, answer).await.ok()
}
