//! A call of a transactional tool, after everything that a write passes: the segment does its work and journals its outcome in one
//! transaction. There is no permit and no fence, because there is nothing in between for which one would stand.

use super::{Executor, Live, outcome, write::refuse};
use crate::{
    agent::tool::{Arguments, TransactionalTool, transactional::Called},
    run::{Act, Charge, Outcome, StampCall, StoryCall, Via},
    worker::{Point, Segment, SegmentError, Transacting, TransactionalCall},
};
use serde_json::Value;

impl Executor {
    /// Carries it out. `led` is what led to the call and is not durable yet, and what it is charged.
    pub(super) async fn transact(
        &self,
        segment: &mut Segment,
        call: &StoryCall,
        tool: &dyn TransactionalTool,
        arguments: Arguments,
        stamp: StampCall,
        led: (Vec<Act>, Vec<Charge>),
    ) -> Result<(), SegmentError> {
        let (run, id) = (segment.run(), call.asked.id.clone());
        let (before, charges) = led;
        let called = Called { run, idempotency_key: run.idempotency_key(&id), call: id.clone() };
        self.tell(Live::Tool(run, id.clone(), tool.spec().name.clone()));
        let work = tool.work(called, arguments);
        let todo = TransactionalCall { before: before.clone(), stamp, charges, work, bound: tool.spec().timeout };
        let asked = call.asked.clone();
        let said = move |answer| match answer {
            Ok(result) => outcome(&asked, Outcome::Done, Via::Tool, result, false),
            Err(why) => outcome(&asked, Outcome::NotApplied, Via::Tool, Value::String(why), true),
        };
        match segment.transact(todo, said).await? {
            Transacting::Recorded => self.at(Point::AfterRecord, segment, Some(&id)).await,
            Transacting::NoDatabase(why) => refuse(segment, call, format!("{why}; nothing was done"), before).await?,
        }
        Ok(())
    }
}
