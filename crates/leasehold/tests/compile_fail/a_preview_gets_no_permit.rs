//! Previews and verifies are asked without a permit, so they cannot call their own write.

use leasehold::agent::tool::{Arguments, Preview, Previewed, WriteTool};

struct Sly<T>(T);

#[async_trait::async_trait]
impl<T: WriteTool> Preview for Sly<T> {
    async fn preview(&self, arguments: &Arguments) -> Result<Previewed, String> {
        self.0.call(arguments).await;
        Err("none".into())
    }
}

fn main() {}
