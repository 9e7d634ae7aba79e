//! `leasehold agents`: the configured agents, and whether they can run in this process.

use super::{Context, Exit, Outcome, setup};
use crate::{
    catalog::{self, AgentLine},
    mcp,
    terminal::{self, Screen},
    wire::Page,
};

/// Lists the agents.
pub(crate) fn agents(context: &Context) -> Outcome {
    let executable = setup::executable(&context.config, setup::Use::Execute, mcp::unrecorded(&context.config))?;
    let lines = catalog::agents(&context.config, &executable.models, &executable.missing_agents);
    if context.json {
        terminal::print_json(&Page::whole(lines))?;
        return Ok(Exit::Done);
    }
    print(&lines)
}

/// As a table.
pub(super) fn print(lines: &[AgentLine]) -> Outcome {
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            let state =
                line.problem.as_ref().map_or_else(|| "ready".to_owned(), |problem| format!("cannot run here: {problem}"));
            vec![line.name.clone(), line.model.clone(), line.tools.join(", "), line.max_rounds.to_string(), state]
        })
        .collect();
    let mut screen = Screen::stdout();
    screen.table(&["agent", "model", "tools", "rounds", "state"], &rows);
    screen.print()?;
    Ok(Exit::Done)
}
