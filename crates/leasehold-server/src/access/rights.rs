//! What somebody may do as it is written down: a role, teams, and patterns of tools. A token has at most those of its owner, when it
//! is made and again whenever it is used.

use super::{AccessError, Role};
use leasehold::limits::{NAME_BYTES_MAX, PATTERN_BYTES_MAX, RIGHTS_MAX};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rights {
    /// The role.
    pub(crate) role: Role,
    /// Sees the runs of these.
    pub(crate) teams: BTreeSet<String>,
    /// May release and run these; an admin all.
    pub(crate) tools: Vec<String>,
}

/// Wrong input, and of what.
pub(super) fn invalid(field: &'static str, why: impl Into<String>) -> AccessError {
    AccessError::Invalid { field, why: why.into() }
}

/// The name of a user, a token or a team.
pub(crate) fn check_name(field: &'static str, name: &str) -> Result<(), AccessError> {
    let plain = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_.@".contains(&b));
    if !name.is_empty() && name.len() <= NAME_BYTES_MAX && plain {
        return Ok(());
    }
    Err(invalid(field, format!("a name has 1 to {NAME_BYTES_MAX} characters of a to z, 0 to 9 and - _ . @")))
}

fn check_pattern(pattern: &str) -> Result<(), AccessError> {
    let stem = pattern.strip_suffix('*').unwrap_or(pattern);
    let plain = stem.bytes().all(|b| b.is_ascii_graphic() && !b"*,\"'\\".contains(&b));
    if !pattern.is_empty() && pattern.len() <= PATTERN_BYTES_MAX && plain {
        return Ok(());
    }
    let rule =
        format!("a pattern is the name of a tool, or its beginning and a `*`, of at most {PATTERN_BYTES_MAX} characters");
    Err(invalid("tools", rule))
}

/// Everything that `narrow` covers is covered by `wide`.
fn covers(wide: &str, narrow: &str) -> bool {
    match wide.strip_suffix('*') {
        Some(beginning) => narrow.strip_suffix('*').unwrap_or(narrow).starts_with(beginning),
        None => wide == narrow,
    }
}

impl Rights {
    /// As they are kept: names are names, nothing stands twice, an admin has every tool.
    pub(crate) fn checked(role: Role, teams: &[String], tools: &[String]) -> Result<Self, AccessError> {
        if teams.len() > RIGHTS_MAX || tools.len() > RIGHTS_MAX {
            return Err(invalid(
                if teams.len() > RIGHTS_MAX { "teams" } else { "tools" },
                format!("there are more than {RIGHTS_MAX}"),
            ));
        }
        teams.iter().try_for_each(|team| check_name("teams", team))?;
        tools.iter().try_for_each(|pattern| check_pattern(pattern))?;
        let tools: BTreeSet<String> = tools.iter().cloned().collect();
        let every = BTreeSet::from(["*".to_owned()]);
        if role == Role::Admin && !tools.is_empty() && tools != every {
            return Err(invalid("tools", "an admin may run every tool: leave the tools out, or take the role approver"));
        }
        let tools = if role == Role::Admin { every } else { tools };
        Ok(Self { role, teams: teams.iter().cloned().collect(), tools: tools.into_iter().collect() })
    }

    /// A role does not go beyond that of an owner.
    pub(super) fn role_within(role: Role, owner: &Self) -> Result<(), AccessError> {
        let most: &str = owner.role.into();
        let why = || format!("its owner has the role {most}, and a token has at most that");
        if role <= owner.role { Ok(()) } else { Err(invalid("role", why())) }
    }

    /// Nothing in them goes beyond those of an owner.
    pub(crate) fn within(&self, owner: &Self) -> Result<(), AccessError> {
        Self::role_within(self.role, owner)?;
        if let Some(team) = self.teams.difference(&owner.teams).next() {
            return Err(invalid("teams", format!("its owner is not of the team `{team}`")));
        }
        let beyond = self.tools.iter().find(|tool| !owner.tools.iter().any(|wide| covers(wide, tool)));
        match beyond {
            Some(tool) => Err(invalid("tools", format!("its owner may not run `{tool}`"))),
            None => Ok(()),
        }
    }

    /// What is in both.
    pub(crate) fn meet(&self, owner: &Self) -> Self {
        let mut tools = BTreeSet::new();
        for mine in &self.tools {
            for theirs in &owner.tools {
                if covers(theirs, mine) {
                    tools.insert(mine.clone());
                } else if covers(mine, theirs) {
                    tools.insert(theirs.clone());
                }
            }
        }
        Self {
            role: self.role.min(owner.role),
            teams: self.teams.intersection(&owner.teams).cloned().collect(),
            tools: tools.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::agent::registry::matches;
    use proptest::prelude::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    fn rights(role: Role, teams: &[&str], tools: &[&str]) -> Rights {
        Rights::checked(role, &words(teams), &words(tools)).unwrap()
    }

    #[test]
    fn names_are_plain_and_short() {
        for name in ["a", "ada.l-1_x@example.org", &"x".repeat(NAME_BYTES_MAX)] {
            check_name("name", name).unwrap();
        }
        for name in ["", "Ada", "a b", "a:b", "a/b", "\u{e4}", "a\n", &"x".repeat(NAME_BYTES_MAX + 1)] {
            assert!(check_name("name", name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn rights_have_bounds_and_an_admin_has_every_tool() {
        assert_eq!(rights(Role::Admin, &[], &[]).tools, ["*"]);
        assert!(Rights::checked(Role::Admin, &[], &words(&["ledger.*"])).is_err());
        for pattern in ["", "a*b", "**", "a b", &"x".repeat(PATTERN_BYTES_MAX + 1)] {
            assert!(Rights::checked(Role::Runner, &[], &words(&[pattern])).is_err(), "{pattern:?}");
        }
        let most: Vec<String> = (0..RIGHTS_MAX).map(|n| format!("t{n}")).collect();
        Rights::checked(Role::Runner, &most, &most).unwrap();
        let more = [most.clone(), words(&["more"])].concat();
        assert!(Rights::checked(Role::Runner, &more, &[]).is_err() && Rights::checked(Role::Runner, &[], &more).is_err());
        let longest = "x".repeat(PATTERN_BYTES_MAX);
        assert_eq!(rights(Role::Approver, &["b", "a", "a"], &[&longest]).teams.len(), 2);
    }

    #[test]
    fn a_token_has_at_most_what_its_owner_has() {
        let owner = rights(Role::Approver, &["harbour"], &["ledger.*", "site.read_page"]);
        for fine in [
            rights(Role::Approver, &["harbour"], &["ledger.*", "site.read_page"]),
            rights(Role::Viewer, &[], &[]),
            rights(Role::Runner, &[], &["ledger.append*", "ledger.append"]),
        ] {
            fine.within(&owner).unwrap();
            assert_eq!(fine.meet(&owner), fine);
        }
        for (beyond, field) in [
            (rights(Role::Operator, &[], &[]), "role"),
            (rights(Role::Viewer, &["pier"], &[]), "teams"),
            (rights(Role::Viewer, &[], &["ledge*"]), "tools"),
            (rights(Role::Viewer, &[], &["site.read_page*"]), "tools"),
            (rights(Role::Viewer, &[], &["*"]), "tools"),
        ] {
            assert!(matches!(beyond.within(&owner), Err(AccessError::Invalid { field: f, .. }) if f == field), "{beyond:?}");
        }
    }

    #[test]
    fn what_an_owner_loses_its_tokens_lose() {
        let token = rights(Role::Admin, &["a", "b"], &[]);
        let owner = rights(Role::Approver, &["b", "c"], &["ledger.*"]);
        assert_eq!(token.meet(&owner), rights(Role::Approver, &["b"], &["ledger.*"]));
        assert_eq!(rights(Role::Approver, &[], &["ledger.append", "x.y"]).meet(&owner).tools, ["ledger.append"]);
    }

    proptest! {
        #[test]
        fn both_allow_what_their_meeting_allows(
            mine in prop::collection::vec("[ab]{0,2}\\*|[ab]{1,3}", 0..4),
            theirs in prop::collection::vec("[ab]{0,2}\\*|[ab]{1,3}", 0..4),
            tool in "[ab]{1,3}",
        ) {
            let may = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, &tool));
            let of = |tools: &[String]| Rights { role: Role::Approver, teams: BTreeSet::new(), tools: tools.to_vec() };
            let both = of(&mine).meet(&of(&theirs));
            prop_assert_eq!(may(&both.tools), may(&mine) && may(&theirs));
            prop_assert!(both.within(&of(&theirs)).is_ok() && both.within(&of(&mine)).is_ok());
        }
    }
}
