//! `leasehold tools`: what can be offered to agents, and why it may or may not run.

use super::{
    Context, Exit, Outcome,
    local::{Local, Needs},
    setup,
};
use crate::{
    catalog::{self, ToolLine},
    mcp::Offers,
    render::effect_words,
    terminal::{self, Look, Screen, span},
    wire::Page,
};
use leasehold::run::Effect;
use std::sync::Arc;

/// Options of `tools`.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolsArgs {
    /// Say of each tool why it may or may not run
    #[arg(long)]
    why: bool,
}

/// Lists the tools.
pub(crate) async fn tools(context: &Context, args: &ToolsArgs) -> Outcome {
    // What tools MCP servers have is in the store.
    let executable = match context.config.mcp.is_empty() {
        true => Arc::new(setup::executable(&context.config, setup::Use::Execute, Offers::new())?),
        false => Local::open_unswept(context, Needs::Agents).await?.executable,
    };
    let lines = catalog::tools(&context.config, &executable.registry, &executable.missing_tools);
    if context.json {
        terminal::print_json(&Page::whole(lines))?;
        return Ok(Exit::Done);
    }
    if lines.is_empty() {
        terminal::note("no tools are configured: add a [[tool.http]] section, or offer \"site.*\" to an agent");
        return Ok(Exit::Done);
    }
    print(&lines, args)
}

/// As a table, or with the reasons.
pub(super) fn print(lines: &[ToolLine], args: &ToolsArgs) -> Outcome {
    let mut screen = Screen::stdout();
    if args.why {
        lines.iter().for_each(|line| why(&mut screen, line));
    } else {
        let rows: Vec<Vec<String>> = lines
            .iter()
            .map(|line| {
                let approval = line.approval.clone().filter(|_| effect(line) != Some(Effect::ReadOnly));
                let state = if line.problem.is_some() { "cannot run here" } else { "" };
                vec![
                    line.name.clone(),
                    line.effect.as_deref().unwrap_or_default().replace('_', " "),
                    approval.unwrap_or_default(),
                    line.agents.join(", "),
                    line.endpoint.clone().unwrap_or_default(),
                    state.into(),
                ]
            })
            .collect();
        screen.table(&["tool", "effect", "approval", "offered to", "goes to", ""], &rows);
    }
    screen.print()?;
    Ok(Exit::Done)
}

fn effect(line: &ToolLine) -> Option<Effect> {
    line.effect.as_deref()?.parse().ok()
}

fn why(screen: &mut Screen, line: &ToolLine) {
    let look = if line.problem.is_some() { Look::Bad } else { Look::Strong };
    screen.spans(&[span(look, &line.name), span(Look::Faint, format!("  {}", line.endpoint.as_deref().unwrap_or_default()))]);
    match effect(line) {
        Some(Effect::ReadOnly) => {
            screen.line("  reads only: runs at once, and again after a crash");
        }
        Some(effect) => {
            screen.line(format!("  {}", effect_words(effect)));
            screen.line(match line.approval.as_deref() {
                Some("none") => "  runs on the first pass, fenced: the operator wrote approval = \"none\"",
                _ => "  waits for a person each time: that is the rule for every write unless approval = \"none\"",
            });
        }
        None => {}
    }
    if let Some(problem) = &line.problem {
        screen.styled(Look::Bad, format!("  cannot run here: {problem}"));
    }
    screen.line(match line.agents.as_slice() {
        [] => "  offered to no agent: it cannot be called".to_owned(),
        agents => format!("  offered to {}", agents.join(", ")),
    });
    for (agent, denied) in &line.denied {
        screen.line(format!("  not to {agent} ({}): {}", denied.rule, denied.why));
    }
}
