//! What may be offered and called at all, in one place and one order: the tool is known, switched on, offered to the agent, and its
//! data may be seen by who serves the model. Offering, execution, approval and input ask the same question. What comes after that, the
//! owner's right and the budgets, is asked before each write is stamped.

use super::registry::{AgentSpec, Registry, matches};
use super::tool::Tool;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How sensitive data is, least first. Of a tool: what its arguments and results may hold. Of a model: what its provider may see.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, strum::IntoStaticStr, strum::Display,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum DataClass {
    /// Anybody may see it. What is not classed, and a model that is not placed.
    #[default]
    Public,
    /// Of the house.
    Internal,
    /// Of few in it, or of customers.
    Confidential,
    /// Next to secrets: what could give access.
    SecretAdjacent,
}

/// What becomes of a tool whose data the model's provider may not see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Enforcement {
    /// It is not offered and not called.
    #[default]
    Enforce,
    /// It is, and the log says so.
    Observe,
}

/// Rules over all agents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolPolicy {
    /// Offered to nobody: `source.tool`, or `source.*`.
    pub disabled: Vec<String>,
    /// Patterns with the class of their data; of several that name a tool the most sensitive counts.
    pub classes: Vec<(String, DataClass)>,
    /// Whether classes bind.
    pub enforcement: Enforcement,
}

impl ToolPolicy {
    /// The class of a tool's data.
    pub fn class_of(&self, tool: &str) -> DataClass {
        let named = self.classes.iter().filter(|(pattern, _)| matches(pattern, tool));
        named.map(|(_, class)| *class).max().unwrap_or_default()
    }
}

/// Why a tool may not be offered to an agent or called by it. [`name`](Self::name) is stable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// There is no such tool here.
    Unknown,
    /// The operator has it, and it is not offered now.
    Withheld(String),
    /// Switched off for everybody, by this pattern.
    Disabled(String),
    /// Switched off for this agent, by this pattern.
    DisabledForAgent(String),
    /// Not among the agent's tools.
    NotOffered,
    /// The request was narrowed to others.
    Narrowed,
    /// The provider of the agent's model may not see its data.
    DataClass {
        /// Of the tool.
        class: DataClass,
        /// Of the model.
        zone: DataClass,
    },
}

impl Denial {
    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Withheld(_) => "withheld",
            Self::Disabled(_) => "disabled",
            Self::DisabledForAgent(_) => "disabled_for_agent",
            Self::NotOffered => "not_offered",
            Self::Narrowed => "narrowed",
            Self::DataClass { .. } => "data_class",
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("there is no such tool"),
            Self::Withheld(why) => f.write_str(why),
            Self::Disabled(pattern) => write!(f, "it is switched off for every agent (`{pattern}`)"),
            Self::DisabledForAgent(pattern) => write!(f, "it is switched off for this agent (`{pattern}`)"),
            Self::NotOffered => f.write_str("it is not among the agent's tools"),
            Self::Narrowed => f.write_str("the request was narrowed to other tools"),
            Self::DataClass { class, zone } => {
                write!(f, "its data is {class}, and the provider of the agent's model may see {zone} data at most")
            }
        }
    }
}

impl Registry {
    /// Whether an agent may be offered a tool and call it, the request's own patterns among the rules where it has some.
    ///
    /// # Errors
    /// The first rule in their order that denies it.
    pub fn verdict(&self, agent: &AgentSpec, narrow: Option<&[String]>, name: &str) -> Result<&Tool, Denial> {
        let first = |patterns: &[String]| patterns.iter().find(|pattern| matches(pattern, name)).cloned();
        let Some(tool) = self.tool(name) else {
            return Err(self.withheld(name).map_or(Denial::Unknown, |why| Denial::Withheld(why.to_owned())));
        };
        if let Some(pattern) = first(&self.policy().disabled) {
            return Err(Denial::Disabled(pattern));
        }
        if let Some(pattern) = first(&agent.disabled) {
            return Err(Denial::DisabledForAgent(pattern));
        }
        if first(&agent.tools).is_none() {
            return Err(Denial::NotOffered);
        }
        if narrow.is_some_and(|patterns| first(patterns).is_none()) {
            return Err(Denial::Narrowed);
        }
        if self.policy().enforcement == Enforcement::Enforce
            && let Some(denial) = self.beyond_its_zone(agent, name)
        {
            return Err(denial);
        }
        Ok(tool)
    }

    /// The tool's data is more sensitive than the provider of the agent's model may see, whether that binds or not.
    pub fn beyond_its_zone(&self, agent: &AgentSpec, name: &str) -> Option<Denial> {
        let (class, zone) = (self.policy().class_of(name), agent.zone);
        (class > zone).then_some(Denial::DataClass { class, zone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{
        model::scripted::ScriptedModel,
        tool::{ReadAnswer, rust::read_tool},
    };

    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct Nothing {}

    fn registry(policy: ToolPolicy) -> Registry {
        let mut registry = Registry::new();
        for name in ["crm.read", "crm.list", "mail.read"] {
            registry.add_tool(read_tool(name, "d", |_: Nothing| async { ReadAnswer::ok("") }).tool()).unwrap();
        }
        registry.withhold("crm.old", "it is gone");
        registry.set_policy(policy);
        registry
    }

    fn agent() -> AgentSpec {
        let model = ScriptedModel::from_toml("m", "[[reply]]\ntext = 'x'\n").unwrap();
        AgentSpec::new("a", model).tools(["crm.*"])
    }

    #[test]
    fn the_first_rule_in_their_order_denies() {
        let list = |patterns: &[&str]| patterns.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>();
        let classes = vec![("crm.*".to_owned(), DataClass::Internal), ("crm.read".to_owned(), DataClass::Confidential)];
        let all = ToolPolicy { disabled: list(&["crm.r*"]), classes, enforcement: Enforcement::Enforce };
        let denied = |policy: &ToolPolicy, agent: &AgentSpec, narrow: Option<&[String]>, name: &str| {
            registry(policy.clone()).verdict(agent, narrow, name).err().map(|denial| denial.name())
        };
        let mut agent = agent();
        agent.disabled = list(&["crm.read"]);
        let narrow = list(&["crm.list"]);
        let mut policy = all.clone();
        assert_eq!(denied(&policy, &agent, None, "crm.none"), Some("unknown"));
        assert_eq!(denied(&policy, &agent, None, "crm.old"), Some("withheld"));
        assert_eq!(denied(&policy, &agent, Some(&narrow), "crm.read"), Some("disabled"));
        policy.disabled.clear();
        assert_eq!(denied(&policy, &agent, Some(&narrow), "crm.read"), Some("disabled_for_agent"));
        agent.disabled.clear();
        assert_eq!(denied(&policy, &agent, Some(&narrow), "mail.read"), Some("not_offered"));
        assert_eq!(denied(&policy, &agent, Some(&narrow), "crm.read"), Some("narrowed"));
        assert_eq!(denied(&policy, &agent, None, "crm.read"), Some("data_class"));
        agent.zone = DataClass::Internal;
        assert_eq!(denied(&policy, &agent, None, "crm.list"), None);
        assert_eq!(denied(&policy, &agent, None, "crm.read"), Some("data_class"), "the most sensitive class counts");
        policy.enforcement = Enforcement::Observe;
        assert_eq!(denied(&policy, &agent, None, "crm.read"), None);
        assert!(registry(policy).beyond_its_zone(&agent, "crm.read").is_some(), "and it is known that it would");
    }

    #[test]
    fn what_is_denied_is_not_offered() {
        let classes = vec![("crm.read".to_owned(), DataClass::Confidential)];
        let registry = registry(ToolPolicy { classes, ..ToolPolicy::default() });
        let offered: Vec<&str> = registry.offered(&agent(), None).iter().map(|tool| tool.spec().name.as_str()).collect();
        assert_eq!(offered, ["crm.list"]);
    }
}
