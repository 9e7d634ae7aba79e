//! One permit enters one write, once.

use leasehold::agent::tool::{Arguments, WritePermit, WriteTool};

async fn twice(tool: &dyn WriteTool, permit: WritePermit, arguments: &Arguments) {
    tool.call(permit, arguments).await;
    tool.call(permit, arguments).await;
}

fn main() {}
