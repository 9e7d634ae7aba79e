//! What the store knows of the tools of MCP servers: each definition that a person, or the first contact, took as it is, and what a
//! server says otherwise since. A tool is offered only as it was acknowledged. Every change of a server's part moves the version of
//! its record, by which other processes see that they have to read again.

use super::logins::StoreLogins;
use crate::access::{Access, AccessError, Document, Role, Seen, What, Who};
use jiff::Timestamp;
use leasehold::{
    agent::tool::mcp::{Change, Definition, Difference, changes, refusals},
    limits::{MCP_TOOLS_MAX, RECORDS_AT_ONCE_MAX},
    seal::Keyring,
    store::{Record, Unavailable},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

/// Tools of one server that are kept, those that are gone included.
const KNOWN_MAX: usize = 2 * MCP_TOOLS_MAX;
/// Records of tools in one write, beside that of the server and that of the audit.
const TOOLS_AT_ONCE: usize = RECORDS_AT_ONCE_MAX - 2;

/// A server whose tools are known. Its record's key is its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Server {
    /// It was first asked then.
    pub(crate) imported_at: Timestamp,
}

impl Document for Server {
    const KIND: &'static str = "mcp_server";
}

/// A definition that was taken as it is. Its record's key is `server/tool`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Acknowledged {
    pub(crate) definition: Definition,
    /// None: it was there at the first contact.
    pub(crate) by: Option<String>,
    pub(crate) at: Timestamp,
}

impl Document for Acknowledged {
    const KIND: &'static str = "mcp_tool";
}

/// What a server says of a tool where that is not what was acknowledged. Its record's key is `server/tool`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Listed {
    /// None: it does not list it any more.
    pub(crate) definition: Option<Definition>,
    pub(crate) at: Timestamp,
}

impl Document for Listed {
    const KIND: &'static str = "mcp_listed";
}

/// The operator's word on a server or a tool. Its record's key is `server` or `server/tool`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Switch {
    pub(crate) is_off: bool,
    pub(crate) by: String,
    pub(crate) at: Timestamp,
}

impl Document for Switch {
    const KIND: &'static str = "mcp_switch";
}

/// What is known of a server.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// None: it has not answered anybody yet.
    pub(crate) server: Option<Seen<Server>>,
    /// Switched off, by whom and when.
    pub(crate) off: Option<Switch>,
    pub(crate) tools: BTreeMap<String, KnownTool>,
}

/// What is known of a tool.
#[derive(Debug, Default)]
pub(crate) struct KnownTool {
    pub(crate) acknowledged: Option<Seen<Acknowledged>>,
    pub(crate) listed: Option<Seen<Listed>>,
    pub(crate) off: Option<Switch>,
}

/// Whether a tool may be offered.
#[derive(Debug, PartialEq)]
pub(crate) enum Standing<'a> {
    /// As it was acknowledged.
    Offered(&'a Definition),
    /// Nobody has acknowledged it.
    New(&'a Definition),
    /// Its server describes it otherwise than it was acknowledged.
    Changed(&'a Definition, Vec<Difference>),
    /// Its server does not list it any more.
    Gone,
    /// The operator switched it off.
    Off(&'a Switch),
}

impl KnownTool {
    pub(crate) fn standing(&self) -> Standing<'_> {
        if let Some(off) = &self.off {
            return Standing::Off(off);
        }
        let acknowledged = self.acknowledged.as_ref().map(|seen| &seen.it.definition);
        let listed = self.listed.as_ref().map(|seen| seen.it.definition.as_ref());
        match (acknowledged, listed) {
            (Some(is), None) => Standing::Offered(is),
            (Some(is), Some(Some(says))) if is.hash() == says.hash() => Standing::Offered(is),
            (Some(was), Some(Some(says))) => {
                let found = changes(std::slice::from_ref(was), std::slice::from_ref(says));
                let differences = found.into_iter().flat_map(|change| match change {
                    Change::Changed { differences, .. } => differences,
                    Change::Added { .. } | Change::Gone { .. } => Vec::new(),
                });
                Standing::Changed(says, differences.collect())
            }
            (None, Some(Some(says))) => Standing::New(says),
            (_, Some(None)) | (None, None) => Standing::Gone,
        }
    }
}

/// Tools of servers in the store.
#[derive(Clone, Debug)]
pub(crate) struct Catalogue(Access, StoreLogins);

fn key(server: &str, tool: &str) -> String {
    format!("{server}/{tool}")
}

impl Catalogue {
    /// Without a keyring nobody logs in at a server.
    pub(crate) fn new(access: Access, keyring: Option<Arc<Keyring>>) -> Self {
        Self(access.clone(), StoreLogins::new(access, keyring))
    }

    /// Now, on the store's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// Logins at the servers.
    pub(crate) fn logins(&self) -> &StoreLogins {
        &self.1
    }

    /// Of each server that is known, how often its part was changed.
    pub(crate) async fn versions(&self) -> Result<BTreeMap<String, u64>, Unavailable> {
        let servers = self.0.beginning_with::<Server>("").await?;
        Ok(servers.into_iter().map(|seen| (seen.key, seen.version)).collect())
    }

    /// What is known of a server.
    pub(crate) async fn known(&self, server: &str) -> Result<Known, Unavailable> {
        // First its record: what is written after it was read moves its version, and is read again.
        let mut known = Known { server: self.0.get(server).await?, ..Known::default() };
        let start = key(server, "");
        let name = |key: &str| key.strip_prefix(&start).unwrap_or(key).to_owned();
        for seen in self.0.beginning_with::<Acknowledged>(&start).await? {
            let name = name(&seen.key);
            known.tools.entry(name).or_default().acknowledged = Some(seen);
        }
        for seen in self.0.beginning_with::<Listed>(&start).await? {
            let name = name(&seen.key);
            known.tools.entry(name).or_default().listed = Some(seen);
        }
        for seen in self.0.beginning_with::<Switch>(&start).await? {
            known.tools.entry(name(&seen.key)).or_default().off = Some(seen.it).filter(|switch| switch.is_off);
        }
        let off: Option<Seen<Switch>> = self.0.get(server).await?;
        known.off = off.map(|seen| seen.it).filter(|switch| switch.is_off);
        Ok(known)
    }

    /// Takes down what a server lists. At the first contact all of it counts as acknowledged; after that, what is new or says
    /// something else waits for a person.
    pub(crate) async fn note(&self, server: &str, listed: &[Definition]) -> Result<(), AccessError> {
        self.0
            .until_first(&format!("mcp server `{server}`"), async || {
                let known = self.known(server).await?;
                let mut records = self.noted(server, &known, listed)?;
                if records.is_empty() && known.server.is_some() {
                    return Ok(Some(()));
                }
                while records.len() > TOOLS_AT_ONCE {
                    let rest = records.split_off(TOOLS_AT_ONCE);
                    if !self.0.put(std::mem::replace(&mut records, rest)).await? {
                        return Ok(None);
                    }
                }
                records.push(self.moved(server, known.server)?);
                Ok(self.0.put(records).await?.then_some(()))
            })
            .await
    }

    fn noted(&self, server: &str, known: &Known, listed: &[Definition]) -> Result<Vec<Record>, Unavailable> {
        let at = self.0.now();
        let mut records = Vec::new();
        // One that cannot be offered is as if it were not listed.
        let refused = refusals(listed);
        let listed: Vec<&Definition> = listed.iter().filter(|definition| !refused.contains_key(&definition.name)).collect();
        for &definition in &listed {
            let key = key(server, &definition.name);
            let tool = known.tools.get(&definition.name);
            if tool.is_none() && known.tools.len() + records.len() >= KNOWN_MAX {
                tracing::warn!(server, tool = %definition.name, "a server has named too many tools: this one is not taken down");
                continue;
            }
            let said = tool.and_then(|tool| tool.listed.as_ref());
            match tool.and_then(|tool| tool.acknowledged.as_ref()) {
                None if known.server.is_none() => {
                    let it = Acknowledged { definition: definition.clone(), by: None, at };
                    records.push(Seen::new(key, it).record()?);
                    continue;
                }
                // It is as it was acknowledged, and never was otherwise.
                Some(seen) if said.is_none() && seen.it.definition.hash() == definition.hash() => continue,
                _ => {}
            }
            if said.and_then(|said| said.it.definition.as_ref()).is_none_or(|says| says.hash() != definition.hash()) {
                let version = said.map_or(0, |said| said.version);
                records.push(Seen { key, version, it: Listed { definition: Some(definition.clone()), at } }.record()?);
            }
        }
        let names: BTreeSet<&str> = listed.iter().map(|definition| definition.name.as_str()).collect();
        for (name, tool) in known.tools.iter().filter(|(name, _)| !names.contains(name.as_str())) {
            let said = tool.listed.as_ref();
            if said.is_none_or(|said| said.it.definition.is_some()) {
                let version = said.map_or(0, |said| said.version);
                records.push(Seen { key: key(server, name), version, it: Listed { definition: None, at } }.record()?);
            }
        }
        Ok(records)
    }

    /// The server's record with its next version.
    fn moved(&self, server: &str, seen: Option<Seen<Server>>) -> Result<Record, Unavailable> {
        let new = || Seen::new(server, Server { imported_at: self.0.now() });
        seen.unwrap_or_else(new).record()
    }

    /// Takes definitions as they are: each named with the hash of what was shown.
    ///
    /// # Errors
    /// Not an administrator; no such tool; it says something else by now.
    pub(crate) async fn acknowledge(
        &self,
        by: &Who,
        server: &str,
        tools: &BTreeMap<String, String>,
    ) -> Result<(), AccessError> {
        by.needs(Role::Admin)?;
        let known = self.known(server).await?;
        if known.server.is_none() {
            return Err(AccessError::NotFound(format!("mcp server `{server}` whose tools are known")));
        }
        for (name, hash) in tools {
            let tool = known.tools.get(name);
            let tool = tool.ok_or_else(|| AccessError::NotFound(format!("tool `{name}` of mcp server `{server}`")))?;
            if tool.said().is_none_or(|definition| definition.hash() != *hash) {
                return Err(AccessError::Conflict(format!(
                    "tool `{server}.{name}`, which says something else than was shown, or"
                )));
            }
        }
        let all: Vec<(&String, &String)> = tools.iter().collect();
        for some in all.chunks(TOOLS_AT_ONCE) {
            self.acknowledge_some(by, server, some).await?;
        }
        Ok(())
    }

    async fn acknowledge_some(&self, by: &Who, server: &str, tools: &[(&String, &String)]) -> Result<(), AccessError> {
        let of = format!("mcp server `{server}`");
        self.0
            .until_first(&of, async || {
                let known = self.known(server).await?;
                let mut records = Vec::new();
                let mut details = Map::new();
                for (name, hash) in tools {
                    let tool = known.tools.get(*name);
                    let Some(says) = tool.and_then(KnownTool::said).filter(|says| says.hash() == **hash) else {
                        return Err(AccessError::Conflict(format!("tool `{server}.{name}`")));
                    };
                    let before = tool.and_then(|tool| tool.acknowledged.as_ref());
                    if before.is_some_and(|seen| seen.it.definition.hash() == **hash) {
                        continue;
                    }
                    let it = Acknowledged { definition: says.clone(), by: Some(by.principal.id.clone()), at: self.0.now() };
                    records.push(Seen { key: key(server, name), version: before.map_or(0, |seen| seen.version), it }.record()?);
                    details.insert((*name).clone(), json!(hash));
                }
                if records.is_empty() {
                    return Ok(Some(()));
                }
                records.push(self.0.audit_record(&by.into(), What::McpAcknowledged, about(server), details)?);
                records.push(self.moved(server, known.server)?);
                Ok(self.0.put(records).await?.then_some(()))
            })
            .await
    }

    /// Switches a server, or one tool of it, off or on again. Nothing is offered that is off, whatever else is said.
    ///
    /// # Errors
    /// Not an administrator; nobody knows such a tool of it.
    pub(crate) async fn switch(&self, by: &Who, server: &str, tool: Option<&str>, is_off: bool) -> Result<(), AccessError> {
        by.needs(Role::Admin)?;
        let of = format!("mcp server `{server}`");
        self.0
            .until_first(&of, async || {
                let key = tool.map_or_else(|| server.to_owned(), |tool| key(server, tool));
                let switch: Option<Seen<Switch>> = self.0.get(&key).await?;
                if switch.as_ref().is_some_and(|seen| seen.it.is_off) == is_off {
                    return Ok(Some(()));
                }
                let known = self.known(server).await?;
                if known.server.is_none() {
                    return Err(AccessError::NotFound(format!("mcp server `{server}` whose tools are known")));
                }
                // Who mistypes a name would believe that something is off.
                if let Some(tool) = tool.filter(|tool| !known.tools.contains_key(*tool)) {
                    return Err(AccessError::NotFound(format!("tool `{tool}` of mcp server `{server}`")));
                }
                let it = Switch { is_off, by: by.principal.id.clone(), at: self.0.now() };
                let what = if is_off { What::McpSwitchedOff } else { What::McpSwitchedOn };
                let mut details = Map::new();
                if let Some(tool) = tool {
                    details.insert("tool".into(), tool.into());
                }
                let records = vec![
                    Seen { key, version: switch.map_or(0, |seen| seen.version), it }.record()?,
                    self.0.audit_record(&by.into(), what, about(server), details)?,
                    self.moved(server, known.server)?,
                ];
                Ok(self.0.put(records).await?.then_some(()))
            })
            .await
    }
}

impl KnownTool {
    /// What its server says of it now.
    pub(crate) fn said(&self) -> Option<&Definition> {
        match &self.listed {
            Some(seen) => seen.it.definition.as_ref(),
            None => self.acknowledged.as_ref().map(|seen| &seen.it.definition),
        }
    }
}

fn about(server: &str) -> String {
    format!("mcp:{server}")
}
