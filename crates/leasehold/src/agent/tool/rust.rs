//! Tools written in Rust: a name, a description and an async function. The arguments' schema is derived from their type, and
//! they reach the function as that type.
//!
//! ```
//! use leasehold::agent::tool::{Approval, ReadAnswer, WriteAnswer, WriteEffect, WritePermit, rust};
//! use schemars::JsonSchema;
//! use serde::Deserialize;
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(deny_unknown_fields)]
//! struct Refund {
//!     order: String,
//!     cents: u32,
//! }
//!
//! let refund = rust::write_tool(
//!     "refunds.create",
//!     "Pay an order back",
//!     WriteEffect::NonIdempotent,
//!     Approval::Required,
//!     |permit: WritePermit, refund: Refund| async move {
//!         // Right before the first byte leaves:
//!         if let Err(not_held) = permit.check() {
//!             return WriteAnswer::NotStarted { why: not_held.to_string() };
//!         }
//!         WriteAnswer::done(format!("paid {} cents for {}", refund.cents, refund.order))
//!     },
//! );
//! assert_eq!(refund.tool().spec().parameters["required"], serde_json::json!(["order", "cents"]));
//! ```

use super::{
    Approval, Arguments, Asker, Preview, Previewed, ReadAnswer, ReadTool, Tool, ToolSpec, Verified, Verify, VerifyQuery,
    WriteAnswer, WriteEffect, WritePermit, WriteTool,
};
use async_trait::async_trait;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::{fmt, future::Future, sync::Arc, time::Duration};

/// How long a call may take where the tool does not say.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

type ReadFn = dyn Fn(Asker, Arguments) -> BoxFuture<'static, ReadAnswer> + Send + Sync;
type WriteFn = dyn Fn(WritePermit, Arguments) -> BoxFuture<'static, WriteAnswer> + Send + Sync;
type VerifyFn = dyn Fn(VerifyQuery, Arguments) -> BoxFuture<'static, Verified> + Send + Sync;
type PreviewFn = dyn Fn(Arguments) -> BoxFuture<'static, Result<Previewed, String>> + Send + Sync;

/// A tool that changes nothing.
pub fn read_tool<T, F, Fut>(name: &str, description: &str, call: F) -> RustRead
where
    T: JsonSchema + DeserializeOwned + Send,
    F: Fn(T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ReadAnswer> + Send + 'static,
{
    asking_read_tool(name, description, move |_, typed| call(typed))
}

/// A tool that changes nothing and may ask a person while it runs; see [`ask`](super::ask).
pub fn asking_read_tool<T, F, Fut>(name: &str, description: &str, call: F) -> RustRead
where
    T: JsonSchema + DeserializeOwned + Send,
    F: Fn(Asker, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = ReadAnswer> + Send + 'static,
{
    let call = move |asker: Asker, arguments: Arguments| -> BoxFuture<'static, ReadAnswer> {
        match typed(arguments) {
            Ok(typed) => Box::pin(call(asker, typed)),
            Err(why) => Box::pin(std::future::ready(ReadAnswer::error(why))),
        }
    };
    RustRead { spec: spec::<T>(name, description), call: Arc::new(call) }
}

/// A tool that changes the world. The function takes the permit and checks it again before the first byte leaves.
pub fn write_tool<T, F, Fut>(name: &str, description: &str, effect: WriteEffect, approval: Approval, call: F) -> RustWrite
where
    T: JsonSchema + DeserializeOwned + Send,
    F: Fn(WritePermit, T) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = WriteAnswer> + Send + 'static,
{
    let call = move |permit: WritePermit, arguments: Arguments| -> BoxFuture<'static, WriteAnswer> {
        match typed(arguments) {
            Ok(typed) => Box::pin(call(permit, typed)),
            // The schema is only as strict as the type's derive; nothing was done yet.
            Err(why) => Box::pin(std::future::ready(WriteAnswer::error(why))),
        }
    };
    RustWrite { spec: spec::<T>(name, description), effect, approval, call: Arc::new(call), preview: None, verify: None }
}

pub(super) fn typed<T: DeserializeOwned>(arguments: Arguments) -> Result<T, String> {
    serde_json::from_value(Value::Object(arguments)).map_err(|e| format!("the arguments do not fit the tool: {e}"))
}

pub(super) fn spec<T: JsonSchema>(name: &str, description: &str) -> ToolSpec {
    let mut parameters = schemars::schema_for!(T).to_value();
    if let Some(schema) = parameters.as_object_mut() {
        // For `()` and the like: a tool without arguments is one with an empty object.
        if schema.get("type").is_none_or(|kind| kind == "null") {
            schema.insert("type".into(), "object".into());
        }
        schema.remove("$schema");
    }
    ToolSpec {
        input: None,
        name: name.to_owned(),
        description: description.to_owned(),
        parameters,
        source: "rust".into(),
        endpoint: format!("{name} in this program"),
        timeout: TIMEOUT_DEFAULT,
    }
}

/// A read before it is a [`Tool`].
#[derive(Clone)]
pub struct RustRead {
    spec: ToolSpec,
    call: Arc<ReadFn>,
}

impl RustRead {
    /// With another timeout than 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.spec.timeout = timeout;
        self
    }
    /// For the registry.
    pub fn tool(self) -> Tool {
        Tool::Read(Arc::new(self))
    }
}

impl From<RustRead> for Tool {
    fn from(tool: RustRead) -> Self {
        tool.tool()
    }
}

impl fmt::Debug for RustRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spec.name)
    }
}

#[async_trait]
impl ReadTool for RustRead {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        self.call_asking(arguments, Asker::nobody()).await
    }
    async fn call_asking(&self, arguments: &Arguments, asker: Asker) -> ReadAnswer {
        (self.call)(asker, arguments.clone()).await
    }
}

/// A write before it is a [`Tool`].
#[derive(Clone)]
pub struct RustWrite {
    spec: ToolSpec,
    effect: WriteEffect,
    approval: Approval,
    call: Arc<WriteFn>,
    preview: Option<RustPreview>,
    verify: Option<RustVerify>,
}

impl RustWrite {
    /// With another timeout than 30 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.spec.timeout = timeout;
        self
    }
    /// With a preview for the person who decides. It changes nothing.
    pub fn preview<T, F, Fut>(mut self, preview: F) -> Self
    where
        T: DeserializeOwned + Send,
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Previewed, String>> + Send + 'static,
    {
        self.preview = Some(RustPreview::new(preview));
        self
    }
    /// With a question to the far side whether a call happened, by its key. `settle_after` is how long after the timeout it needs to be
    /// sure. Absent is evidence for a person; see [`absent_is_not_applied`](Self::absent_is_not_applied).
    pub fn verify<T, F, Fut>(mut self, settle_after: Duration, verify: F) -> Self
    where
        T: DeserializeOwned + Send,
        F: Fn(VerifyQuery, T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Verified> + Send + 'static,
    {
        let verify = move |query: VerifyQuery, arguments: Arguments| -> BoxFuture<'static, Verified> {
            match typed(arguments) {
                Ok(typed) => Box::pin(verify(query, typed)),
                Err(why) => Box::pin(std::future::ready(Verified::Unknown(why))),
            }
        };
        self.verify = Some(RustVerify { settle_after, absent_is_not_applied: false, verify: Arc::new(verify) });
        self
    }
    /// What its verify says is absent did not happen, and the call is made again. Nothing without a verify.
    pub fn absent_is_not_applied(mut self) -> Self {
        if let Some(verify) = &mut self.verify {
            verify.absent_is_not_applied = true;
        }
        self
    }
    /// For the registry.
    pub fn tool(self) -> Tool {
        let approval = self.approval;
        Tool::Write(Arc::new(self), approval)
    }
}

impl From<RustWrite> for Tool {
    fn from(tool: RustWrite) -> Self {
        tool.tool()
    }
}

impl fmt::Debug for RustWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spec.name)
    }
}

#[async_trait]
impl WriteTool for RustWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }
    fn write_effect(&self) -> WriteEffect {
        self.effect
    }
    async fn call(&self, permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        (self.call)(permit, arguments.clone()).await
    }
    fn preview(&self) -> Option<&dyn Preview> {
        self.preview.as_ref().map(|preview| preview as &dyn Preview)
    }
    fn verify(&self) -> Option<&dyn Verify> {
        self.verify.as_ref().map(|verify| verify as &dyn Verify)
    }
}

#[derive(Clone)]
struct RustVerify {
    settle_after: Duration,
    absent_is_not_applied: bool,
    verify: Arc<VerifyFn>,
}

#[async_trait]
impl Verify for RustVerify {
    fn settle_after(&self) -> Duration {
        self.settle_after
    }
    fn absent_is_not_applied(&self) -> bool {
        self.absent_is_not_applied
    }
    async fn verify(&self, query: &VerifyQuery, arguments: &Arguments) -> Verified {
        (self.verify)(query.clone(), arguments.clone()).await
    }
}

/// A function as a preview.
#[derive(Clone)]
pub(super) struct RustPreview(Arc<PreviewFn>);

impl RustPreview {
    pub(super) fn new<T, F, Fut>(preview: F) -> Self
    where
        T: DeserializeOwned + Send,
        F: Fn(T) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Previewed, String>> + Send + 'static,
    {
        let preview = move |arguments: Arguments| -> BoxFuture<'static, Result<Previewed, String>> {
            match typed(arguments) {
                Ok(typed) => Box::pin(preview(typed)),
                Err(why) => Box::pin(std::future::ready(Err(why))),
            }
        };
        Self(Arc::new(preview))
    }
}

#[async_trait]
impl Preview for RustPreview {
    async fn preview(&self, arguments: &Arguments) -> Result<Previewed, String> {
        (self.0)(arguments.clone()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::registry::Registry,
        clock::{BootClock, ManualClock},
        run::{CallId, Effect, RunId},
        worker::trust::TrustWindow,
    };
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Note {
        /// Which one.
        id: u32,
        text: Option<String>,
    }

    fn arguments(value: Value) -> Arguments {
        value.as_object().unwrap().clone()
    }

    fn permit() -> WritePermit {
        let clock = ManualClock::new();
        let trust = TrustWindow::new(clock.clone(), Duration::from_secs(60), clock.now());
        WritePermit::for_test(RunId::new(), CallId::of(1, 0), 3, trust)
    }

    #[tokio::test]
    async fn a_function_becomes_a_read_tool_with_the_schema_of_its_arguments() {
        let tool = read_tool("notes.get", "One note", |note: Note| async move { ReadAnswer::ok(format!("note {}", note.id)) });
        let Tool::Read(read) = tool.clone().tool() else { panic!() };
        assert_eq!(read.call(&arguments(json!({ "id": 7 }))).await, ReadAnswer::ok("note 7"));
        assert!(read.call(&arguments(json!({ "id": "7" }))).await.is_error);
        let spec = read.spec();
        assert_eq!(spec.parameters["additionalProperties"], false);
        assert_eq!(spec.parameters["properties"]["id"]["description"], "Which one.");
        let mut registry = Registry::new();
        registry.add_tool(tool.tool()).unwrap();
    }

    #[tokio::test]
    async fn a_function_becomes_a_write_tool_that_takes_a_permit() {
        let tool =
            write_tool(
                "notes.set",
                "Set",
                WriteEffect::Idempotent,
                Approval::None,
                |permit: WritePermit, note: Note| async move {
                    WriteAnswer::done(json!([permit.fencing_token(), note.id, note.text]))
                },
            )
            .timeout(Duration::from_secs(5))
            .preview(|note: Note| async move { Ok(Previewed { text: format!("note {}", note.id), precondition: None }) })
            .tool();
        assert_eq!((tool.effect(), tool.approval()), (Effect::IdempotentWrite, Approval::None));
        let Tool::Write(write, _) = tool else { panic!() };
        assert_eq!(write.spec().timeout, Duration::from_secs(5));
        let given = arguments(json!({ "id": 7, "text": "x" }));
        assert_eq!(write.call(permit(), &given).await, WriteAnswer::done(json!([3, 7, "x"])));
        assert_eq!(write.preview().unwrap().preview(&given).await.unwrap().text, "note 7");
        let wrong = write.call(permit(), &arguments(json!({}))).await;
        assert!(matches!(wrong, WriteAnswer::Done { is_error: true, .. }), "{wrong:?}");
    }

    #[tokio::test]
    async fn a_function_becomes_the_verify_of_a_write_tool() {
        let tool =
            write_tool("notes.add", "Add", WriteEffect::NonIdempotent, Approval::None, |_: WritePermit, _: Note| async move {
                WriteAnswer::done("added")
            })
            .verify(Duration::from_secs(7), |query: VerifyQuery, note: Note| async move {
                if note.id == 7 { Verified::Landed(query.idempotency_key.into()) } else { Verified::Absent }
            });
        assert!(!tool.verify.as_ref().unwrap().absent_is_not_applied());
        let Tool::Write(write, _) = tool.absent_is_not_applied().tool() else { panic!() };
        let verify = write.verify().unwrap();
        assert_eq!((verify.settle_after(), verify.absent_is_not_applied()), (Duration::from_secs(7), true));
        let query = VerifyQuery { idempotency_key: "lh-1".into(), run: "r".into(), fencing_token: 3 };
        assert_eq!(verify.verify(&query, &arguments(json!({ "id": 7 }))).await, Verified::Landed("lh-1".into()));
        assert_eq!(verify.verify(&query, &arguments(json!({ "id": 8 }))).await, Verified::Absent);
        assert!(matches!(verify.verify(&query, &arguments(json!({}))).await, Verified::Unknown(_)));
    }

    #[test]
    fn a_tool_without_arguments_has_the_schema_of_an_empty_object() {
        #[derive(Deserialize, JsonSchema)]
        struct Nothing {}
        let mut registry = Registry::new();
        registry.add_tool(read_tool("a.b", "d", |_: Nothing| async { ReadAnswer::ok("") }).tool()).unwrap();
    }
}
