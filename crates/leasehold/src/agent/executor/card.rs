//! The card of a turn: each call that waits for a person, with everything the decision is bound to.

use super::Executor;
use crate::{
    agent::{
        gate::{excerpt, repeats},
        registry::{AgentSpec, Registry},
        tool::{Arguments, Previewed, Tool},
    },
    limits,
    run::{CardCall, EditedCard, ReplyCall, Story, ToolIdentity, TurnCard, WaitKind},
};
use std::sync::Arc;

/// A call that is to be shown.
pub(crate) struct Shown {
    pub(crate) call: ReplyCall,
    pub(crate) arguments: Arguments,
    pub(crate) why: Option<String>,
    /// As it was shown before.
    pub(crate) before: Option<ToolIdentity>,
}

impl Shown {
    /// A call that the model has just asked for.
    pub(crate) fn first(call: &ReplyCall, story: &Story, registry: &Registry) -> Self {
        let arguments = call.arguments.clone().unwrap_or_default();
        let why = registry.tool(&call.tool).and_then(|tool| repeated(story, tool, call, &arguments));
        Self { call: call.clone(), arguments, why, before: None }
    }
}

/// Says that the same call was made before, where it was.
pub(crate) fn repeated(story: &Story, tool: &Tool, call: &ReplyCall, arguments: &Arguments) -> Option<String> {
    if !repeats(story, tool, &call.id, arguments) {
        return None;
    }
    let earlier = story.entered_before(&call.id, &call.tool, arguments)?;
    let became = earlier.outcome.as_ref().map_or("unknown so far".to_owned(), |o| o.outcome.to_string());
    Some(format!("the same call with the same arguments was made before in this run: {} ({became})", earlier.asked.id))
}

impl Executor {
    pub(crate) async fn card(&self, agent: &Arc<AgentSpec>, turn: u32, shown: Vec<Shown>) -> TurnCard {
        let registry = self.registry.now();
        let mut calls = Vec::with_capacity(shown.len());
        for Shown { call, arguments, why, before } in shown {
            let tool = registry.tool(&call.tool);
            // A preview asks the far side: not for a tool that is switched off.
            let taken = match tool {
                Some(tool) if registry.verdict(agent, None, &call.tool).is_ok() => previewed(tool, &arguments).await,
                _ => EditedCard::default(),
            };
            // One that is gone stays what it was, so that what comes in its place is held against that.
            let tool = tool.map(Tool::identity).or(before).unwrap_or_else(|| unknown_identity(&call));
            let (preview, precondition, preview_for) = (None, None, None);
            calls.push(CardCall { id: call.id, tool, arguments, preview, precondition, preview_for, why }.taken(taken));
        }
        TurnCard { kind: WaitKind::Approval, turn, agent_version: agent.version(), calls, schema: None, question: None }
    }
}

/// A tool that was there when the model asked, and is not any more: it can be denied.
fn unknown_identity(call: &ReplyCall) -> ToolIdentity {
    ToolIdentity {
        source: String::new(),
        name: call.tool.clone(),
        endpoint: String::new(),
        schema_hash: String::new(),
        effect: call.effect,
        approval: "required".into(),
    }
}

/// Preview and precondition of a call, as a card has them.
pub(crate) async fn previewed(tool: &Tool, arguments: &Arguments) -> EditedCard {
    let (preview, precondition) = match preview(tool, arguments).await {
        Some(Ok(previewed)) if previewed.text.trim().is_empty() => {
            (Some(none("the tool showed nothing")), previewed.precondition)
        }
        Some(Ok(previewed)) => (Some(bounded(&previewed.text)), previewed.precondition),
        Some(Err(why)) => (Some(none(&why)), None),
        None => (None, None),
    };
    EditedCard { preview, precondition, preview_for: tool.previews_only_deciders().then(|| tool.spec().name.clone()) }
}

/// Says in the place of a preview that there is none, and why.
fn none(why: &str) -> String {
    format!("no preview, you are deciding without one: {}", excerpt(why, 500))
}

/// At most so many lines, each of at most so many characters.
fn bounded(text: &str) -> String {
    let all = text.lines().count();
    let cut = |line: &str| match line.char_indices().nth(limits::PREVIEW_LINE_CHARS_MAX) {
        Some((end, _)) => format!("{} [cut: {} characters]", &line[..end], line.chars().count()),
        None => line.to_owned(),
    };
    let mut lines: Vec<String> = text.lines().take(limits::PREVIEW_LINES_MAX).map(cut).collect();
    if all > limits::PREVIEW_LINES_MAX {
        lines.push(format!("[{} more lines]", all - limits::PREVIEW_LINES_MAX));
    }
    excerpt(&lines.join("\n"), limits::PREVIEW_BYTES_MAX)
}

/// Asks the tool for a preview, bounded in time; a preview that panics or hangs is no preview.
pub(crate) async fn preview(tool: &Tool, arguments: &Arguments) -> Option<Result<Previewed, String>> {
    tool.preview()?;
    let (tool, arguments) = (tool.clone(), arguments.clone());
    let looking = tokio::spawn(async move {
        match tool.preview() {
            Some(preview) => preview.preview(&arguments).await,
            None => Err("the tool has none".into()),
        }
    });
    let abort = looking.abort_handle();
    Some(match tokio::time::timeout(limits::PREVIEW_TIMEOUT, looking).await {
        Ok(Ok(previewed)) => previewed,
        Ok(Err(_)) => Err("the tool's preview broke".into()),
        Err(_) => {
            abort.abort();
            Err(format!("the tool's preview took longer than {} s", limits::PREVIEW_TIMEOUT.as_secs()))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preview_is_twenty_lines_of_five_hundred_characters_and_says_what_is_cut() {
        let line = "\u{e4}".repeat(limits::PREVIEW_LINE_CHARS_MAX);
        assert_eq!(bounded("a\nb"), "a\nb");
        assert_eq!(bounded(&line), line);
        assert_eq!(bounded(&format!("{line}x")), format!("{line} [cut: 501 characters]"));
        let many = vec!["x"; 30].join("\n");
        assert_eq!(bounded(&many).lines().count(), 21);
        assert!(bounded(&many).ends_with("[10 more lines]"));
    }
}
