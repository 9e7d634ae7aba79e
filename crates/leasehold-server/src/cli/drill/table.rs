//! What a drill found, as a table for people and as rows for programs; and how the command ends.

use super::{scene::Scene, target::Left};
use crate::{
    cli::{Context, Exit, Outcome},
    terminal::{self, Look, Screen},
    wire::Page,
};
use leasehold::{
    agent::tool::Approval,
    drill::{Asked, Blow, Finding, Observed, settled_as},
    run::Via,
};
use serde::Serialize;

/// One cell: a tool and a point.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Row {
    tool: String,
    agents: Vec<String>,
    effect: Option<&'static str>,
    verify: Option<&'static str>,
    /// None: the tool is not drilled.
    point: Option<&'static str>,
    entered: Option<usize>,
    settled_as: Option<String>,
    via: Option<&'static str>,
    ok: bool,
    findings: Vec<String>,
    not_drilled: Option<String>,
}

impl Row {
    fn of(scene: &Scene) -> Self {
        let target = &scene.target;
        Self {
            tool: target.name.clone(),
            agents: target.agents.clone(),
            effect: Some(target.effect.as_str()),
            verify: match target.asked {
                Asked::Never => None,
                asked => Some(asked.as_str()),
            },
            point: Some(point(scene.blow, target.approval)),
            entered: None,
            settled_as: None,
            via: None,
            ok: false,
            findings: Vec::new(),
            not_drilled: None,
        }
    }
    /// What was seen, and what is wrong with it.
    pub(super) fn seen(scene: &Scene, seen: &Observed, findings: &[Finding]) -> Self {
        Self {
            entered: Some(seen.entries.len()),
            settled_as: Some(settled_as(seen.state, seen.reason)),
            via: seen.outcome.map(|(_, via)| via.as_str()),
            ok: findings.is_empty(),
            findings: findings.iter().map(ToString::to_string).collect(),
            ..Self::of(scene)
        }
    }
    /// The scene could not be played to its end.
    pub(super) fn broken(scene: &Scene, why: String) -> Self {
        Self { findings: vec![why], ..Self::of(scene) }
    }
    fn left(left: &Left) -> Self {
        Self {
            tool: left.name.clone(),
            agents: left.agents.clone(),
            effect: left.effect.map(|effect| effect.as_str()),
            verify: None,
            point: None,
            entered: None,
            settled_as: None,
            via: None,
            ok: true,
            findings: Vec::new(),
            not_drilled: Some(left.why.clone()),
        }
    }

    fn cells(&self) -> Vec<String> {
        let words = |text: &str| text.replace('_', " ");
        let via = match self.via {
            None => String::new(),
            Some(via) if via == Via::Tool.as_str() => String::new(),
            Some(via) => format!(", by its {}", words(via)),
        };
        vec![
            self.tool.clone(),
            words(self.effect.unwrap_or_default()),
            words(self.point.unwrap_or_default()),
            self.entered.map_or_else(|| "?".into(), |entered| entered.to_string()),
            format!("{}{via}", self.settled_as.as_deref().unwrap_or("?")),
            if self.ok { "as it should be".into() } else { self.findings.join("; ") },
        ]
    }
}

/// The point's name; what is sent twice depends on the tool.
fn point(blow: Blow, approval: Approval) -> &'static str {
    match (blow, approval) {
        (Blow::Twice, Approval::Required) => "decided_twice",
        (Blow::Twice, Approval::None) => "claimed_twice",
        (blow, _) => blow.as_str(),
    }
}

/// Prints it all; refused where anything is wrong.
pub(super) fn show(context: &Context, mut rows: Vec<Row>, left: &[Left]) -> Outcome {
    let wrong = rows.iter().filter(|row| !row.ok).count();
    let exit = if wrong == 0 { Exit::Done } else { Exit::Refused };
    if context.json {
        rows.extend(left.iter().map(Row::left));
        terminal::print_json(&Page::whole(rows))?;
        return Ok(exit);
    }
    let mut screen = Screen::stdout();
    if !rows.is_empty() {
        let cells: Vec<Vec<String>> = rows.iter().map(Row::cells).collect();
        screen.table(&["tool", "effect", "worker", "entered", "settled as", ""], &cells);
    }
    for tool in left {
        screen.line(format!("not drilled: {}: {}", tool.name, tool.why));
    }
    if rows.is_empty() {
        screen.line("there is nothing to drill: no agent is offered a tool that writes");
    } else if wrong == 0 {
        let text = format!("{} points, all as they should be: no non-idempotent write was entered twice.", rows.len());
        screen.styled(Look::Good, text);
    } else {
        screen.styled(Look::Bad, format!("{wrong} of {} points are not as they should be.", rows.len()));
    }
    screen.print()?;
    Ok(exit)
}
