//! The gate: what of a model's reply may become a call at all, and which calls wait for a person. A refusal is an error result
//! for the model and stamps nothing.

use super::{
    arguments,
    model::{OfferedTool, Reply, RequestedCall},
    policy::Denial,
    registry::{AgentSpec, Registry, matches},
    tool::{Approval, Arguments, Tool},
};
use crate::{
    limits,
    run::{CallId, Effect, ReplyCall, Story},
};

/// A call of a reply, judged.
pub(crate) struct Gated {
    /// As it is journaled.
    pub(crate) call: ReplyCall,
    /// Why it is not made.
    pub(crate) refused: Option<String>,
}

/// Agent, tools and request of a run.
#[derive(Clone, Copy)]
pub(crate) struct Gate<'a> {
    pub(crate) registry: &'a Registry,
    pub(crate) agent: &'a AgentSpec,
    pub(crate) narrow: Option<&'a [String]>,
}

impl Gate<'_> {
    /// What the model is offered.
    pub(crate) fn offered(&self) -> Vec<OfferedTool> {
        self.registry
            .offered(self.agent, self.narrow)
            .into_iter()
            .map(|tool| {
                let spec = tool.spec();
                OfferedTool {
                    name: spec.name.clone(),
                    description: spec.description.clone(),
                    parameters: spec.parameters.clone(),
                }
            })
            .collect()
    }

    /// The tool, where it is offered.
    pub(crate) fn tool(&self, name: &str) -> Option<&Tool> {
        self.registry.verdict(self.agent, self.narrow, name).ok()
    }

    /// Why it is not offered now. A tool that is not the agent's is no business of its model.
    pub(crate) fn denied(&self, asked: &RequestedCall) -> Option<String> {
        match self.registry.verdict(self.agent, self.narrow, &asked.tool).err()? {
            Denial::Unknown | Denial::NotOffered | Denial::Narrowed => None,
            Denial::Withheld(_) if !self.is_in_reach(&asked.tool) => None,
            denial => Some(format!("`{}` is not offered now ({}): {denial}", asked.tool, denial.name())),
        }
    }

    /// A pattern of the agent covers it, and one of the request.
    fn is_in_reach(&self, name: &str) -> bool {
        self.agent.tools.iter().any(|pattern| matches(pattern, name))
            && self.narrow.is_none_or(|patterns| patterns.iter().any(|pattern| matches(pattern, name)))
    }

    /// Judges a whole reply; `tools_offered` is false for a plain completion, in which nothing can be called.
    pub(crate) fn judge(&self, reply: &Reply, turn: u32, story: &Story, tools_offered: bool) -> Vec<Gated> {
        let mut judged: Vec<Gated> = Vec::with_capacity(reply.calls.len());
        for (index, asked) in reply.calls.iter().enumerate() {
            let id = CallId::of(turn, index);
            let gated = if index >= limits::TURN_CALLS_MAX {
                refuse(id, asked, Effect::ReadOnly, format!("a turn has at most {} calls", limits::TURN_CALLS_MAX))
            } else if !tools_offered {
                let withheld = self.denied(asked).map(|why| format!("{why}; ")).unwrap_or_default();
                refuse(id, asked, Effect::ReadOnly, format!("{withheld}no tools are offered any more; answer in words"))
            } else {
                self.judge_call(id, asked, story)
            };
            judged.push(gated);
        }
        judged
    }

    fn judge_call(&self, id: CallId, asked: &RequestedCall, story: &Story) -> Gated {
        let tool = match self.registry.verdict(self.agent, self.narrow, &asked.tool) {
            Ok(tool) => tool,
            Err(_) => {
                let offered: Vec<String> = self.offered().into_iter().map(|t| t.name).collect();
                let effect = self.registry.tool(&asked.tool).map_or(Effect::NonIdempotentWrite, Tool::effect);
                let named = self.denied(asked).unwrap_or_else(|| format!("there is no tool `{}` here", asked.tool));
                let why = format!("{named}; there are: {}", offered.join(", "));
                return refuse(id, asked, effect, why);
            }
        };
        if let Some(denial) = self.registry.beyond_its_zone(self.agent, &asked.tool) {
            tracing::warn!(tool = %asked.tool, agent = %self.agent.name, "a call is let through: {denial}");
        }
        match self.check(tool, &asked.raw_arguments) {
            Err(why) => refuse(id, asked, tool.effect(), why),
            Ok(arguments) => {
                let needs_person = tool.effect().is_write()
                    && (tool.approval() == Approval::Required || repeats(story, tool, &id, &arguments));
                Gated {
                    call: ReplyCall {
                        id,
                        tool: asked.tool.clone(),
                        raw_arguments: asked.raw_arguments.clone(),
                        arguments: Some(arguments),
                        effect: tool.effect(),
                        needs_person,
                    },
                    refused: None,
                }
            }
        }
    }

    /// Reads and validates arguments.
    ///
    /// # Errors
    /// A sentence for the model, with the schema.
    fn check(&self, tool: &Tool, raw: &str) -> Result<Arguments, String> {
        let arguments = arguments::parse(raw).map_err(|why| with_schema(tool, &why))?;
        self.validate(tool, arguments)
    }

    /// Validates arguments against the tool's schema.
    ///
    /// # Errors
    /// A sentence, with the schema.
    pub(crate) fn validate(&self, tool: &Tool, arguments: Arguments) -> Result<Arguments, String> {
        self.registry.validate(tool, arguments)
    }
}

impl Registry {
    /// Validates arguments against a tool's schema, as the gate does before anything else happens to them.
    ///
    /// # Errors
    /// A sentence, with the schema.
    pub fn validate(&self, tool: &Tool, arguments: Arguments) -> Result<Arguments, String> {
        let Some(registered) = self.registered(&tool.spec().name) else {
            return Err(format!("there is no tool `{}` here", tool.spec().name));
        };
        let value = serde_json::Value::Object(arguments);
        if arguments::nested_deeper(&value, limits::NESTING_MAX) {
            return Err(with_schema(tool, &format!("they are nested deeper than {} levels", limits::NESTING_MAX)));
        }
        let problems: Vec<String> = registered
            .schema
            .iter_errors(&value)
            .take(5)
            .map(|e| format!("at `{}`: {}", e.instance_path(), excerpt(&e.to_string(), 300)))
            .collect();
        match value {
            serde_json::Value::Object(arguments) if problems.is_empty() => Ok(arguments),
            _ => Err(with_schema(tool, &problems.join("; "))),
        }
    }
}

/// The repeat guard: the same non-idempotent call as one that was entered in this run.
pub(crate) fn repeats(story: &Story, tool: &Tool, id: &CallId, arguments: &Arguments) -> bool {
    tool.effect() == Effect::NonIdempotentWrite && story.entered_before(id, &tool.spec().name, arguments).is_some()
}

fn with_schema(tool: &Tool, why: &str) -> String {
    format!(
        "the arguments of `{}` are refused, and nothing was done: {why}. They must match this schema: {}",
        tool.spec().name,
        excerpt(&tool.spec().parameters.to_string(), 4_000)
    )
}

fn refuse(id: CallId, asked: &RequestedCall, effect: Effect, why: String) -> Gated {
    Gated {
        call: ReplyCall {
            id,
            tool: excerpt(&asked.tool, 200),
            raw_arguments: excerpt(&asked.raw_arguments, limits::ARGUMENTS_BYTES_MAX),
            arguments: None,
            effect,
            needs_person: false,
        },
        refused: Some(why),
    }
}

/// At most `bytes` of a text, cut at a character boundary, with a word that it was cut.
pub(crate) fn excerpt(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let mut end = bytes;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{} [excerpt: the first {end} of {} bytes]", &text[..end], text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_cut_at_a_character_boundary_and_says_so() {
        assert_eq!(excerpt("abc", 3), "abc");
        assert_eq!(excerpt("aé", 2), "a [excerpt: the first 1 of 3 bytes]");
        assert_eq!(excerpt("😀", 3), " [excerpt: the first 0 of 4 bytes]");
    }
}
