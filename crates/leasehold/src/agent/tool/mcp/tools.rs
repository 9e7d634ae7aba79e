//! A server's tools as ours: effect and approval as the operator declared them, and what each answer means.

use super::{
    answer::{unfit, value_of},
    config::{ErrorOutcome, McpConfigError},
    definition::{Definition, refusals},
    elicit::Person,
    error::McpError,
    passage::Fate,
    server::{Called, Inner, Known, McpServer, NoResult, Request},
};
use crate::agent::{
    model::wire_name::to_wire,
    tool::{
        Approval, Arguments, Asker, ReadAnswer, ReadTool, Tool, ToolSpec, WriteAnswer, WriteEffect, WritePermit, WriteTool,
        http::ConfiguredEffect,
    },
};
use async_trait::async_trait;
use jsonschema::Validator;
use rmcp::model::{CallToolResult, ErrorCode, RequestMetaObject};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// What goes out with a write, in `_meta`.
const IDEMPOTENCY_KEY: &str = "leasehold/idempotency-key";
const RUN: &str = "leasehold/run";
const FENCING_TOKEN: &str = "leasehold/fencing-token";
/// The call's own deadline comes first, because it knows whether anything was sent.
const MARGIN: Duration = Duration::from_secs(1);

/// What becomes of a server's definitions.
#[derive(Debug)]
pub struct Offered {
    /// Can be registered.
    pub tools: Vec<Tool>,
    /// Cannot.
    pub refused: Vec<Refused>,
}

/// A tool that cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// As its server names it.
    pub tool: String,
    /// In words.
    pub why: String,
}

impl Inner {
    /// The value of an answer. What a tool says of an error is masked like other errors; a result is its own.
    async fn kept(&self, result: CallToolResult, asker: &Asker) -> Value {
        let is_error = result.is_error == Some(true);
        match value_of(result, self.max_response, asker).await {
            Value::String(text) if is_error => Value::String(self.mask.over(&text)),
            value => value,
        }
    }

    fn person<'a>(&'a self, asker: &'a mut Asker) -> Person<'a> {
        Person::new(asker, &self.config.name, &self.mask, self.config.questions)
    }
}

impl McpServer {
    /// The tools of these definitions: all that the server lists, or that are kept of it.
    ///
    /// # Errors
    /// The configuration names a tool that is not among them: what it says would be lost without a word.
    pub fn tools(&self, definitions: &[Definition]) -> Result<Offered, McpConfigError> {
        let names: Vec<&str> = definitions.iter().map(|definition| definition.name.as_str()).collect();
        self.tools_among(definitions, &names)
    }

    /// The tools of these definitions, where the server has more tools than are to be offered: it has those that are named.
    ///
    /// # Errors
    /// The configuration names a tool that is not among them.
    pub fn tools_among(&self, definitions: &[Definition], names: &[&str]) -> Result<Offered, McpConfigError> {
        let config = &self.0.config;
        let names: BTreeSet<&str> = names.iter().copied().collect();
        for (key, tool) in config.named_tools() {
            if !names.contains(tool) {
                let known = names.iter().copied().collect::<Vec<_>>().join(", ");
                let why = format!("the server has no such tool; it has: {}", self.0.mask.said(&known));
                return Err(McpConfigError { server: config.name.clone(), key: format!("{key}.{tool}"), why });
            }
        }
        let mut offered = Offered { tools: Vec::new(), refused: Vec::new() };
        let refused = refusals(definitions);
        for definition in definitions {
            let tool = refused.get(&definition.name).map_or_else(|| self.tool(definition, definitions), |why| Err(why.clone()));
            match tool {
                Ok(tool) => offered.tools.push(tool),
                Err(why) => offered.refused.push(Refused { tool: definition.name.clone(), why }),
            }
        }
        Ok(offered)
    }

    fn tool(&self, definition: &Definition, all: &[Definition]) -> Result<Tool, String> {
        let name = format!("{}.{}", self.name(), definition.name);
        let wire = to_wire(&name);
        let is_other = |other: &&Definition| other.name != definition.name;
        let same = |other: &&Definition| to_wire(&format!("{}.{}", self.name(), other.name)) == wire;
        if let Some(other) = all.iter().filter(is_other).find(same) {
            return Err(format!("it has the same name for models as `{}`", other.name));
        }
        let config = &self.0.config;
        let key_argument = config.idempotency_argument.get(&definition.name).cloned();
        let parameters = match &key_argument {
            None => definition.input_schema.clone(),
            Some(argument) => without_argument(&definition.input_schema, argument)?,
        };
        let description = match (&definition.description, &definition.title) {
            (description, Some(title)) if description.is_empty() => title.clone(),
            (description, _) => description.clone(),
        };
        let spec = ToolSpec {
            name,
            description,
            parameters,
            input: None,
            source: "mcp".into(),
            endpoint: self.0.endpoint.clone(),
            timeout: self.0.timeout + config.questions.unwrap_or_default() + MARGIN,
        };
        let server = Arc::clone(&self.0);
        let tool = Known { name: definition.name.clone(), hash: definition.hash() };
        // Definitions with a schema that is none are refused before.
        let output = definition.output()?;
        let effect = match config.effects.get(&definition.name) {
            Some(ConfiguredEffect::ReadOnly) => return Ok(Tool::Read(Arc::new(McpRead { spec, server, tool, output }))),
            Some(ConfiguredEffect::IdempotentWrite) => WriteEffect::Idempotent,
            Some(ConfiguredEffect::NonIdempotentWrite) | None => WriteEffect::NonIdempotent,
        };
        let approval = match config.approval.get(&definition.name) {
            Some(approval) => Approval::from(*approval),
            None if config.requires_approval == Some(false) => Approval::None,
            None => Approval::Required,
        };
        let error_outcome = config.error_outcome.get(&definition.name).copied().unwrap_or_default();
        Ok(Tool::Write(Arc::new(McpWrite { spec, server, tool, output, effect, error_outcome, key_argument }), approval))
    }
}

/// The schema for the model, without the argument that gets the key.
fn without_argument(schema: &Value, argument: &str) -> Result<Value, String> {
    let mut schema = schema.clone();
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    if properties.and_then(|properties| properties.remove(argument)).is_none() {
        return Err(format!("`idempotency_argument` names `{argument}`, which is none of its arguments"));
    }
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name.as_str() != Some(argument));
    }
    Ok(schema)
}

struct McpRead {
    spec: ToolSpec,
    server: Arc<Inner>,
    tool: Known,
    output: Option<Validator>,
}

#[async_trait]
impl ReadTool for McpRead {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn call(&self, arguments: &Arguments) -> ReadAnswer {
        self.call_asking(arguments, Asker::nobody()).await
    }

    async fn call_asking(&self, arguments: &Arguments, mut asker: Asker) -> ReadAnswer {
        let teller = asker.teller();
        let mut person = self.server.person(&mut asker);
        let meta = RequestMetaObject::new();
        let request = Request { tool: &self.tool, arguments: arguments.clone(), meta, can_repeat: true, trust: None, teller };
        let mut is_first = true;
        loop {
            return match self.server.call(&request, &mut person).await {
                Ok(Called::Needs(input)) => ReadAnswer::needs(input),
                Ok(Called::Result(result)) => {
                    let is_error = result.is_error == Some(true);
                    // Nothing is lost by not believing it: a read can be made again.
                    if let Some(why) = unfit(self.output.as_ref(), &result) {
                        return ReadAnswer::error(self.server.mask.said(&why));
                    }
                    ReadAnswer { is_error, ..ReadAnswer::ok(self.server.kept(result, &asker).await) }
                }
                // A read changes nothing, so it may be asked for once more, on a new connection; a person is not asked twice for it.
                Err(NoResult { error: McpError::Lost(_) | McpError::Unauthorized(_), .. })
                    if is_first && !person.was_asked() =>
                {
                    is_first = false;
                    continue;
                }
                Err(NoResult { error, .. }) => ReadAnswer::error(error.to_string()),
            };
        }
    }
}

struct McpWrite {
    spec: ToolSpec,
    server: Arc<Inner>,
    tool: Known,
    output: Option<Validator>,
    effect: WriteEffect,
    error_outcome: ErrorOutcome,
    key_argument: Option<String>,
}

#[async_trait]
impl WriteTool for McpWrite {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn write_effect(&self) -> WriteEffect {
        self.effect
    }

    async fn call(&self, mut permit: WritePermit, arguments: &Arguments) -> WriteAnswer {
        if let Err(not_held) = permit.check() {
            return WriteAnswer::NotStarted { why: not_held.to_string() };
        }
        let mut arguments = arguments.clone();
        if let Some(argument) = &self.key_argument {
            arguments.insert(argument.clone(), permit.idempotency_key().into());
        }
        let mut meta = RequestMetaObject::new();
        meta.0.0.insert(IDEMPOTENCY_KEY.into(), permit.idempotency_key().into());
        meta.0.0.insert(RUN.into(), permit.run().to_string().into());
        meta.0.0.insert(FENCING_TOKEN.into(), permit.fencing_token().into());
        // Checked again when it is the request's turn on a standing connection.
        let (trust, teller) = (Some(Arc::clone(&permit.trust)), permit.asker().teller());
        let can_repeat = self.effect == WriteEffect::Idempotent;
        let request = Request { tool: &self.tool, arguments, meta, can_repeat, trust, teller };
        let goes_on = permit.asker().continued().is_some();
        let answer = self.server.call(&request, &mut self.server.person(permit.asker())).await;
        let NoResult { error, fate } = match answer {
            Ok(Called::Needs(input)) => return WriteAnswer::NeedsInput(input),
            Ok(Called::Result(result)) => {
                let is_error = result.is_error == Some(true);
                // It was decoded, and says that the tool is through: that it is not of the declared form takes back neither. To call it
                // unknown would ask a person whether something happened that the server has just said.
                let unfit = unfit(self.output.as_ref(), &result).map(|why| self.server.mask.said(&why));
                let result = self.server.kept(result, permit.asker()).await;
                let result = match unfit {
                    Some(why) => json!({ "result": result, "note": why }),
                    None => result,
                };
                if is_error && self.error_outcome == ErrorOutcome::Unknown {
                    let said = self.server.mask.said(&text_of(&result));
                    return WriteAnswer::Unknown {
                        why: format!("the tool answered with an error, after which nothing is known: {said}"),
                    };
                }
                return WriteAnswer::Done { result, is_error };
            }
            Err(error) => error,
        };
        match error {
            McpError::Refused { code, .. } if is_a_no(code) => WriteAnswer::error(error.to_string()),
            error @ McpError::Changed(_) => WriteAnswer::NotStarted { why: error.to_string() },
            // An answer, and the tool's own: it did not go on without the input.
            McpError::NeedsInput(why) if self.error_outcome == ErrorOutcome::Done => WriteAnswer::error(why),
            error => match fate {
                // The server was asked before and waits for this: that it was not sent is no word on that, and it can be sent later.
                Fate::NothingSent if goes_on => WriteAnswer::NotStarted { why: format!("nothing was sent: {error}") },
                // Its guard stands before the tool.
                Fate::Refused => WriteAnswer::error(error.to_string()),
                Fate::NothingSent => WriteAnswer::NotApplied { why: format!("nothing was sent: {error}") },
                Fate::NotHeld => WriteAnswer::NotStarted {
                    why: "the lease on this run is no longer certain to hold; nothing was sent".into(),
                },
                Fate::MayHaveArrived => WriteAnswer::Unknown { why: error.to_string() },
            },
        }
    }
}

/// Errors of the protocol that say that the tool was not entered.
fn is_a_no(code: i32) -> bool {
    code == ErrorCode::INVALID_PARAMS.0 || code == ErrorCode::METHOD_NOT_FOUND.0
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
