//! Places in a segment where a drill or a test stops a process for good. Without a probe they cost nothing.

use crate::run::{CallId, RunId, words};
use async_trait::async_trait;

words!(
    /// A place in a segment.
    Point {
        /// Before a model is called.
        BeforeModel,
        /// Before a write is stamped.
        BeforeStamp,
        /// The stamp is durable, the tool not entered.
        AfterStamp,
        /// The tool is entered.
        InTool,
        /// The tool has answered, the outcome is not recorded.
        AfterReturn,
        /// The outcome is durable.
        AfterRecord,
    }
);

/// Is told when a segment comes by.
#[async_trait]
pub trait Probe: Send + Sync {
    /// A segment is at this place, and goes on when this returns.
    async fn at(&self, point: Point, run: RunId, call: Option<&CallId>);
}
