//! `leasehold agents`: the configured agents, and whether they can run in this process.

use super::{Context, Exit, Outcome, setup};
use crate::{
    terminal::{self, Screen},
    wire::Page,
};
use serde::Serialize;

#[derive(Debug, Serialize)]
struct AgentLine<'a> {
    name: &'a str,
    model: &'a str,
    tools: &'a [String],
    max_rounds: u32,
    require_second_approver: bool,
    problem: Option<&'a str>,
}

/// Lists the agents.
pub(crate) fn agents(context: &Context) -> Outcome {
    let executable = setup::executable(&context.config, setup::Use::Execute)?;
    let lines: Vec<AgentLine<'_>> = context
        .config
        .agents
        .iter()
        .map(|agent| AgentLine {
            name: &agent.name,
            model: match executable.models.get(&agent.model) {
                Some(Ok(shown)) => shown,
                _ => &agent.model,
            },
            tools: &agent.tools,
            max_rounds: agent.max_rounds,
            require_second_approver: agent.require_second_approver,
            problem: executable.missing_agents.get(&agent.name).map(String::as_str),
        })
        .collect();
    if context.json {
        terminal::print_json(&Page::whole(lines))?;
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = lines
        .iter()
        .map(|line| {
            let state = line.problem.map_or_else(|| "ready".to_owned(), |problem| format!("cannot run here: {problem}"));
            vec![line.name.into(), line.model.into(), line.tools.join(", "), line.max_rounds.to_string(), state]
        })
        .collect();
    let mut screen = Screen::stdout();
    screen.table(&["agent", "model", "tools", "rounds", "state"], &rows);
    screen.print()?;
    Ok(Exit::Done)
}
