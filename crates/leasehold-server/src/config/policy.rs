//! `[policy]`: what is offered to nobody, and how sensitive the data of tools is. A pattern that names no tool is refused, because
//! whoever wrote it believes that it holds.

use super::{
    diagnostic::suggest,
    file::{Agent, Policy},
    mcp::may_name,
};
use leasehold::agent::policy::{DataClass, ToolPolicy};
use toml::Spanned;

/// A pattern that names nothing, and what to write.
pub(super) struct Wrong<'a> {
    pub(super) at: &'a Spanned<String>,
    pub(super) what: String,
    pub(super) mend: String,
}

fn names<'a>(pattern: &'a Spanned<String>, of: &str, known: &[String]) -> Result<String, Wrong<'a>> {
    let text = pattern.get_ref();
    if known.iter().any(|name| may_name(text, name)) {
        return Ok(text.clone());
    }
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    Err(Wrong { at: pattern, what: format!("{of} names `{text}`, and there is no such tool"), mend: suggest(text, &known) })
}

/// The rules over all agents.
pub(super) fn policy<'a>(policy: &'a Policy, known: &[String]) -> Result<ToolPolicy, Wrong<'a>> {
    let disabled = policy.disabled.iter().map(|pattern| names(pattern, "`disabled`", known)).collect::<Result<_, _>>()?;
    let class = |(pattern, class): (&'a Spanned<String>, &DataClass)| Ok((names(pattern, "`classes`", known)?, *class));
    let classes = policy.classes.iter().map(class).collect::<Result<_, _>>()?;
    Ok(ToolPolicy { disabled, classes, enforcement: policy.data_classes })
}

/// What is switched off for an agent.
pub(super) fn disabled<'a>(agent: &'a Agent, known: &[String]) -> Result<Vec<String>, Wrong<'a>> {
    agent.disabled.iter().map(|pattern| names(pattern, "`disabled`", known)).collect()
}
