//! `leasehold tools`: what can be offered to agents, and why it may or may not run.

use super::{Context, Exit, Outcome, setup};
use crate::{
    catalog::{self, ToolLine},
    render::effect_words,
    terminal::{self, Look, Screen, span},
    wire::Page,
};
use leasehold::agent::tool::{Approval, Tool};

/// Options of `tools`.
#[derive(Debug, clap::Args)]
pub(crate) struct ToolsArgs {
    /// Say of each tool why it may or may not run
    #[arg(long)]
    why: bool,
}

/// Lists the tools.
pub(crate) fn tools(context: &Context, args: &ToolsArgs) -> Outcome {
    let executable = setup::executable(&context.config, setup::Use::Execute)?;
    let lines = catalog::tools(&context.config, &executable.registry, &executable.missing_tools);
    if context.json {
        terminal::print_json(&Page::whole(lines.into_iter().map(|(line, _)| line).collect::<Vec<_>>()))?;
        return Ok(Exit::Done);
    }
    if lines.is_empty() {
        terminal::note("no tools are configured: add a [[tool.http]] section, or offer \"site.*\" to an agent");
        return Ok(Exit::Done);
    }
    let mut screen = Screen::stdout();
    if args.why {
        for (line, tool) in &lines {
            why(&mut screen, line, *tool);
        }
    } else {
        let rows: Vec<Vec<String>> = lines
            .iter()
            .map(|(line, tool)| {
                let approval = match (tool, line.approval) {
                    (Some(Tool::Read(_)), _) => "",
                    (_, Some(approval)) => approval,
                    (_, None) => "",
                };
                let state = if line.problem.is_some() { "cannot run here" } else { "" };
                let effect = line.effect.unwrap_or("").replace('_', " ");
                vec![
                    line.name.clone(),
                    effect,
                    approval.into(),
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

fn why(screen: &mut Screen, line: &ToolLine, tool: Option<&Tool>) {
    let look = if line.problem.is_some() { Look::Bad } else { Look::Strong };
    screen.spans(&[span(look, &line.name), span(Look::Faint, format!("  {}", line.endpoint.as_deref().unwrap_or_default()))]);
    match tool {
        Some(Tool::Read(_)) => {
            screen.line("  reads only: runs at once, and again after a crash");
        }
        Some(tool @ Tool::Write(_, approval)) => {
            screen.line(format!("  {}", effect_words(tool.effect())));
            screen.line(match approval {
                Approval::Required => {
                    "  waits for a person each time: that is the rule for every write unless approval = \"none\""
                }
                Approval::None => "  runs on the first pass, fenced: the operator wrote approval = \"none\"",
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
}
