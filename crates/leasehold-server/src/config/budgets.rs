//! Limits of an agent: what one run may spend, and what its writes may do in a window of time. A limit that would count nothing is
//! refused, because whoever wrote it believes that it holds.

use super::{
    diagnostic::suggest,
    effective::Limits,
    file::{self, EffectBudget},
    mcp,
};
use leasehold::agent::registry::{self, EffectLimit};
use toml::Spanned;

/// Numbers beyond this many millionths are not what was written.
const MILLIONTHS_MAX: f64 = 9_007_199_254_740_992.0;

/// What is wrong, where, and what to do about it.
pub(super) struct Wrong {
    pub(super) at: Spanned<()>,
    pub(super) what: String,
    pub(super) mend: String,
}

fn wrong<T>(at: &Spanned<T>, what: impl Into<String>, mend: impl Into<String>) -> Wrong {
    Wrong { at: Spanned::new(at.span(), ()), what: what.into(), mend: mend.into() }
}

/// The limits of an agent that is offered these tools. `has_price`: the cost of its model is counted.
pub(super) fn limits(agent: &file::Agent, has_price: bool, offered: &[&str]) -> Result<Limits, Wrong> {
    let max_tokens = match &agent.max_tokens {
        Some(at) if *at.get_ref() == 0 => {
            return Err(wrong(at, "must be at least 1", "write how many tokens one run may use, or remove it"));
        }
        said => said.as_ref().map(|at| *at.get_ref()),
    };
    let max_cost_nano_usd = match &agent.max_cost {
        None => None,
        Some(at) => {
            let nano = (*at.get_ref() * 1e9).round();
            // Not a number is not in a range either.
            if !(1.0..=u64::MAX as f64 / 2.0).contains(&nano) {
                let mend = "write what one run may cost in US dollars, such as max_cost = 0.50";
                return Err(wrong(at, "must be a number greater than zero", mend));
            }
            if !has_price {
                let mend = "add to its [[model]]: price = { input = .., output = .. }, in US dollars per million tokens";
                return Err(wrong(
                    at,
                    "the agent's model, or a fallback of it, has no price, so nothing would be counted",
                    mend,
                ));
            }
            Some(nano as u64)
        }
    };
    let mut effect_budgets: Vec<registry::EffectBudget> = Vec::new();
    for at in &agent.effect_budgets {
        let budget = budget(at, offered)?;
        // Two of one key would count each write twice.
        if effect_budgets.iter().any(|other| other.key("") == budget.key("")) {
            return Err(wrong(at, "two budgets count the same in the same time", "keep the smaller one"));
        }
        effect_budgets.push(budget);
    }
    Ok(Limits { max_tokens, max_cost_nano_usd, effect_budgets })
}

fn budget(at: &Spanned<EffectBudget>, offered: &[&str]) -> Result<registry::EffectBudget, Wrong> {
    let EffectBudget { tool, max_writes, max_sum, argument, window } = at.get_ref();
    let pattern = tool.get_ref();
    if !offered.iter().any(|name| mcp::may_name(pattern, name)) {
        let what = format!("a budget of `{pattern}`, and the agent is offered no such tool");
        return Err(wrong(tool, what, suggest(pattern, offered)));
    }
    let period = window.get_ref().0;
    if period.is_zero() {
        return Err(wrong(window, "must be longer than zero", "write in how long, such as window = \"24h\""));
    }
    // Kept and counted in whole seconds.
    if period.subsec_nanos() != 0 {
        return Err(wrong(window, "must be of whole seconds", "write in how long, such as window = \"24h\""));
    }
    let limit = match (max_writes, max_sum) {
        (Some(_), Some(sum)) => {
            let mend = "keep one of them; for both write two budgets of the tool";
            return Err(wrong(sum, "a budget has either `max_writes` or `max_sum`", mend));
        }
        (None, None) => {
            let mend = "add max_writes = 5, or max_sum = 1000 with the argument that is added up";
            return Err(wrong(at, "a budget without a limit", mend));
        }
        (Some(writes), None) => {
            if let Some(argument) = argument {
                return Err(wrong(argument, "`argument` has no meaning beside `max_writes`", "remove it, or use max_sum"));
            }
            if *writes.get_ref() == 0 {
                return Err(wrong(writes, "must be at least 1", "take the tool away from the agent's tools instead"));
            }
            EffectLimit::Writes(*writes.get_ref())
        }
        (None, Some(sum)) => {
            let Some(argument) = argument.as_ref().map(|a| a.get_ref()).filter(|name| !name.is_empty()) else {
                return Err(wrong(sum, "which argument is added up?", "add: argument = \"amount\""));
            };
            let millionths = (*sum.get_ref() * 1e6).round();
            if !(1.0..=MILLIONTHS_MAX).contains(&millionths) {
                let mend = "write how much the argument may add up to, to the millionth";
                return Err(wrong(sum, "must be a number greater than zero and below nine thousand million", mend));
            }
            EffectLimit::Sum { argument: argument.clone(), max_millionths: millionths as i64 }
        }
    };
    Ok(registry::EffectBudget { tool: pattern.clone(), limit, window: period })
}
