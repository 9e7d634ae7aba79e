//! Under whose identity a run writes, and whether that one may: asked before each write is stamped. A run that waits for days is
//! released by somebody else, and meanwhile its owner may have gone.

use super::{Access, Role, documents::Machine};
use async_trait::async_trait;
use leasehold::{
    agent::{
        owner::{OwnerRight, Owners},
        registry::matches,
    },
    store::Unavailable,
};

impl Access {
    async fn user_right(&self, owner: &str, name: &str, tool: &str) -> Result<OwnerRight, Unavailable> {
        let behind = if owner == super::documents::person(name) { String::new() } else { format!(", the owner of {owner},") };
        let named = format!("user:{name}{behind}");
        let Some(user) = self.user(name).await? else {
            return Ok(OwnerRight::Gone(format!("{named} does not exist; nothing runs as nobody")));
        };
        if user.disabled {
            return Ok(OwnerRight::Gone(format!("{named} is disabled; nothing runs as nobody")));
        }
        let covered = user.rights.role == Role::Admin || user.rights.tools.iter().any(|pattern| matches(pattern, tool));
        if covered {
            return Ok(OwnerRight::May);
        }
        let mend = format!("an admin adds it with `leasehold user set {name} --tool ..`");
        Ok(OwnerRight::MayNot(format!("{named} may not run `{tool}`: it is not among its tools; {mend}")))
    }

    async fn right_of(&self, owner: &str, tool: &str) -> Result<OwnerRight, Unavailable> {
        if let Some(user) = owner.strip_prefix("user:") {
            return self.user_right(owner, user, tool).await;
        }
        if let Some(name) = owner.strip_prefix("machine:") {
            return match self.get::<Machine>(name).await? {
                Some(machine) => self.user_right(owner, &machine.it.owner, tool).await,
                None => Ok(OwnerRight::Gone(format!("{owner} does not exist; nothing runs as nobody"))),
            };
        }
        // The owner of the store, and principals of a program that embeds the library: no accounts of theirs are kept here.
        Ok(OwnerRight::May)
    }
}

#[async_trait]
impl Owners for Access {
    async fn right(&self, owner: &str, tool: &str) -> OwnerRight {
        self.right_of(owner, tool).await.unwrap_or_else(|error| OwnerRight::NotKnown(error.to_string()))
    }
}
