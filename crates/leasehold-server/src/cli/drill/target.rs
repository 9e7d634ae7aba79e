//! What is drilled: each tool that the agents are offered, as the operator declared it, with arguments for one call, and the
//! configuration of a throw-away place in which it goes to the drill's own far side. No secret of the operator gets into it.

use super::{
    Failure,
    far_side::{FarSide, Role, Upstream},
    sample::sample,
};
use crate::{
    cli::{context::env, setup},
    config::{Config, Http, Site},
};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use leasehold::{
    agent::{
        registry::Registry,
        tool::{
            Approval, Arguments, Tool,
            http::{Absent, BodyKind, HeaderSource, HttpTool, HttpToolConfig},
            site::Site as OpenSite,
        },
    },
    drill::{Answers, Asked},
    run::Effect,
};
use serde_json::{Map, Value, json};
use std::{path::Path, time::Duration};

/// A tool's timeout at the stub: a verify is not asked before it is over.
const STUB_TIMEOUT_MAX: Duration = Duration::from_secs(4);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);

/// Where a tool's calls go.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// To the drill's far side.
    Http(Box<HttpToolConfig>),
    /// To a site of its own.
    Site,
}

/// A tool to drill.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) agents: Vec<String>,
    pub(super) effect: Effect,
    pub(super) asked: Asked,
    pub(super) approval: Approval,
    pub(super) arguments: Arguments,
    pub(super) way: Way,
    /// The request line, for people.
    pub(super) endpoint: String,
    /// To the true endpoint.
    pub(super) real: bool,
}

/// A tool that is not drilled, and why.
#[derive(Clone, Debug)]
pub(super) struct Left {
    pub(super) name: String,
    pub(super) agents: Vec<String>,
    pub(super) effect: Option<Effect>,
    pub(super) why: String,
}

/// What is there to drill.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) targets: Vec<Target>,
    pub(super) left: Vec<Left>,
}

/// The tools that these agents are offered.
pub(super) fn find(config: &Config, agent: Option<&str>, real: bool) -> Result<Found, Failure> {
    if let Some(name) = agent
        && !config.agents.iter().any(|a| a.name == name)
    {
        let names: Vec<&str> = config.agents.iter().map(|a| a.name.as_str()).collect();
        return Err(Failure::usage(format!("there is no agent `{name}`; there are: {}", names.join(", "))));
    }
    let offered_to = |tool: &str| -> Vec<String> {
        let agents = config.agents.iter().filter(|a| agent.is_none_or(|name| a.name == name));
        agents.filter(|a| a.tools.iter().any(|pattern| setup::offers(pattern, tool))).map(|a| a.name.clone()).collect()
    };
    let mut found = Found::default();
    for http in &config.http {
        let agents = offered_to(&http.tool.name);
        if !agents.is_empty() {
            found.http(http, agents, real)?;
        }
    }
    if let Some(site) = &config.site {
        found.site(site, &offered_to)?;
    }
    found.targets.sort_by(|a, b| a.name.cmp(&b.name));
    found.left.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

impl Found {
    fn leave(&mut self, name: &str, agents: Vec<String>, effect: Option<Effect>, why: impl Into<String>) {
        self.left.push(Left { name: name.to_owned(), agents, effect, why: why.into() });
    }

    fn http(&mut self, http: &Http, agents: Vec<String>, real: bool) -> Result<(), Failure> {
        let config = &http.tool;
        let name = config.name.as_str();
        HttpTool::build_with_env(config.clone(), |_| Some("x".into()))
            .map_err(|e| Failure::usage(format!("{}: {e}", http.place)))?;
        let tool = match HttpTool::build(config.clone()) {
            Ok(tool) => tool,
            Err(e) => {
                self.leave(name, agents, Some(config.effect.into()), format!("cannot be set up here: {e}"));
                return Ok(());
            }
        };
        self.write(&tool, agents, Way::Http(Box::new(config.clone())), real, |arguments| fits_url(config, arguments))
    }

    fn site(&mut self, site: &Site, offered_to: &dyn Fn(&str) -> Vec<String>) -> Result<(), Failure> {
        let directory = tempfile::tempdir()?;
        let open = OpenSite::open(directory.path().join("site.db")).map_err(|e| Failure::refused(e.to_string()))?;
        for tool in open.tools_with(setup::site_approvals(&site.approval)) {
            let agents = offered_to(&tool.spec().name);
            if !agents.is_empty() {
                self.write(&tool, agents, Way::Site, false, |_| Ok(()))?;
            }
        }
        Ok(())
    }

    fn write(
        &mut self,
        tool: &Tool,
        agents: Vec<String>,
        way: Way,
        real: bool,
        fits: impl Fn(&Arguments) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let spec = tool.spec();
        let (name, effect) = (spec.name.clone(), tool.effect());
        let Tool::Write(write, approval) = tool else {
            self.leave(&name, agents, Some(effect), "reads only: there is no fence to drill");
            return Ok(());
        };
        let mut registry = Registry::new();
        registry.add_tool(tool.clone()).map_err(|e| Failure::usage(e.to_string()))?;
        let known = site_arguments(&name);
        let checked = |arguments: &Arguments| {
            registry.validate(tool, arguments.clone()).map(|_| ()).map_err(|why| {
                let schema = why.find(". They must match").unwrap_or(why.len());
                why[..schema].to_owned()
            })?;
            fits(arguments)
        };
        let arguments = match known {
            Some(arguments) => checked(&arguments).map(|()| arguments),
            None => sample(&spec.parameters, checked),
        };
        let arguments = match arguments {
            Ok(arguments) => arguments,
            Err(why) => {
                let why = format!("no arguments could be made up; give one in `parameters.examples`: {why}");
                self.leave(&name, agents, Some(effect), why);
                return Ok(());
            }
        };
        let asked = match write.verify() {
            None => Asked::Never,
            Some(verify) if verify.absent_is_not_applied() => Asked::NotApplied,
            Some(_) => Asked::InDoubt,
        };
        let endpoint = spec.endpoint.clone();
        self.targets.push(Target { name, agents, effect, asked, approval: *approval, arguments, way, endpoint, real });
        Ok(())
    }
}

/// Calls of the bundled site that do something.
fn site_arguments(name: &str) -> Option<Arguments> {
    let value = match name {
        "site.update_page_metadata" => json!({ "page": "berths", "fields": { "description": "A drill" } }),
        "site.create_page" => json!({ "slug": "drill", "title": "A drill", "body": "Made by a drill." }),
        _ => return None,
    };
    value.as_object().cloned()
}

/// What goes into the path must not be nothing, and no step up or down.
fn fits_url(config: &HttpToolConfig, arguments: &Arguments) -> Result<(), String> {
    let urls = [Some(config.url.as_str()), config.verify.as_ref().map(|verify| verify.url.as_str())];
    for (name, value) in arguments {
        let in_url = urls.iter().flatten().any(|url| url.contains(&format!("{{{name}}}")));
        let text = value.as_str().unwrap_or("fits");
        if in_url && (value.is_null() || value.is_object() || value.is_array() || matches!(text, "" | "." | "..")) {
            return Err(format!("`{name}` goes into the URL, and {value} does not fit there"));
        }
    }
    Ok(())
}

impl Target {
    /// What is known of the answers.
    pub(super) fn answers(&self) -> Answers {
        if self.real { Answers::Any } else { Answers::AlwaysDone }
    }

    /// How long the tool may need until a verify may be asked and has answered.
    pub(super) fn needs(&self) -> Duration {
        match &self.way {
            Way::Http(http) if self.real => {
                let settle = http.verify.as_ref().and_then(|v| v.settle_after).unwrap_or_default();
                http.timeout.unwrap_or(TIMEOUT_DEFAULT) * 2 + settle
            }
            Way::Http(_) => STUB_TIMEOUT_MAX,
            Way::Site => Duration::ZERO,
        }
    }

    /// Writes a place for one scene: store, script and configuration.
    pub(super) fn set(&self, directory: &Path, far: &FarSide, scene: &str) -> Result<(), Failure> {
        let mut tool = Map::new();
        match &self.way {
            Way::Http(http) => {
                let (write, verify) = far.place(scene, self.role(http)?);
                tool.insert("http".into(), json!([self.declared(http, &write, &verify)]));
            }
            Way::Site => {
                let mut approval = Map::new();
                approval.insert(self.name.clone(), self.approval.as_str().into());
                tool.insert("site".into(), json!({ "path": "site.db", "approval": approval }));
            }
        }
        let config = json!({
            "store": { "url": "sqlite:leasehold.db" },
            // Short, so that a dead worker is noticed within seconds; long enough for a busy machine.
            "lease": { "ttl": "2s", "sweep_interval": "200ms", "backoff": { "initial": "0s", "max": "1s" } },
            "model": [{ "name": "drill", "provider": "scripted", "script": "script.toml" }],
            "agent": [{ "name": "drill", "model": "drill", "tools": [self.name] }],
            "tool": tool,
        });
        let arguments = Value::Object(self.arguments.clone()).to_string();
        let script = json!({
            "reply": [{ "calls": [{ "tool": self.name, "raw_arguments": arguments }] }, { "text": "done" }],
        });
        for (name, value) in [("leasehold.toml", config), ("script.toml", script)] {
            let text = toml::to_string(&value).map_err(|e| Failure::refused(format!("{name} of {}: {e}", self.name)))?;
            std::fs::write(directory.join(name), text)?;
        }
        Ok(())
    }

    fn role(&self, http: &HttpToolConfig) -> Result<Role, Failure> {
        if !self.real {
            return Ok(Role::Stub(done_status(http)));
        }
        let write = split(&http.url).0.to_owned();
        let verify = http.verify.as_ref().map_or(write.clone(), |verify| split(&verify.url).0.to_owned());
        let mut headers = HeaderMap::new();
        for (name, source) in &http.headers {
            let text = match source {
                HeaderSource::Text(text) => Some(text.clone()),
                HeaderSource::Env { env: variable, prefix } => env(variable).map(|value| format!("{prefix}{value}")),
            };
            let header = text.and_then(|text| Some((name.parse::<HeaderName>().ok()?, text.parse::<HeaderValue>().ok()?)));
            let (name, mut value) =
                header.ok_or_else(|| Failure::usage(format!("tool `{}`: `headers.{name}` cannot be sent", self.name)))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Role::Proxy(Upstream { write, verify, headers, timeout: http.timeout.unwrap_or(TIMEOUT_DEFAULT) }))
    }

    /// The tool as it was declared, but for where it goes, its headers, and at the stub its times.
    fn declared(&self, http: &HttpToolConfig, write: &str, verify: &str) -> Value {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let timeout = http.timeout.unwrap_or(TIMEOUT_DEFAULT);
        let timeout = if self.real { timeout } else { timeout.min(STUB_TIMEOUT_MAX) };
        let mut tool = Map::new();
        let mut set = |key: &str, value: Value| tool.insert(key.to_owned(), value);
        set("name", http.name.clone().into());
        set("description", http.description.clone().into());
        set("effect", Effect::from(http.effect).as_str().into());
        set("approval", self.approval.as_str().into());
        set("method", http.method.clone().into());
        set("url", format!("{write}{}", split(&http.url).1).into());
        set("body", if http.body == BodyKind::Form { "form".into() } else { "json".into() });
        set("timeout", millis(timeout).into());
        if let Some(parameters) = &http.parameters {
            set("parameters", parameters.clone());
        }
        if let Some(max) = http.max_response.filter(|_| self.real) {
            set("max_response", format!("{max}B").into());
        }
        let outcomes = &http.outcomes;
        set("outcomes", json!({ "done": outcomes.done, "not_applied": outcomes.not_applied, "unknown": outcomes.unknown }));
        if let Some(ask) = &http.verify {
            let mut asked = Map::new();
            asked.insert("method".into(), ask.method.clone().into());
            asked.insert("url".into(), format!("{verify}{}", split(&ask.url).1).into());
            asked.insert("absent".into(), if ask.absent == Absent::NotApplied { "not_applied" } else { "in_doubt" }.into());
            if let Some(settle) = ask.settle_after.filter(|_| self.real) {
                asked.insert("settle_after".into(), millis(settle).into());
            }
            tool.insert("verify".into(), Value::Object(asked));
        }
        Value::Object(tool)
    }
}

/// A status that this tool's declaration takes for "done".
fn done_status(http: &HttpToolConfig) -> u16 {
    let moved = |status: &u16| http.outcomes.not_applied.contains(status) || http.outcomes.unknown.contains(status);
    let usual = [200, 201, 202, 203].into_iter().find(|status| !moved(status));
    usual.or_else(|| http.outcomes.done.first().copied()).unwrap_or(299)
}

/// Scheme and authority; path and query, beginning with `/`.
fn split(url: &str) -> (&str, String) {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url[start..].find(['/', '?']).map_or(url.len(), |at| start + at);
    let (base, tail) = url.split_at(end);
    (base, if tail.starts_with('/') { tail.to_owned() } else { format!("/{tail}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_split_where_its_authority_ends() {
        for (url, base, tail) in [
            ("http://h:81/a/{p}?q={p}", "http://h:81", "/a/{p}?q={p}"),
            ("https://h", "https://h", "/"),
            ("https://h?q=1", "https://h", "/?q=1"),
        ] {
            assert_eq!(split(url), (base, tail.to_owned()));
        }
    }

    fn http(more: Value) -> HttpToolConfig {
        let mut tool = json!({
            "name": "a.b", "description": "d", "effect": "non_idempotent_write", "method": "POST", "url": "http://h/{p}",
            "parameters": { "type": "object", "properties": { "p": { "type": "string" } }, "required": ["p"] },
        });
        tool.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        serde_json::from_value(tool).unwrap()
    }

    #[test]
    fn the_stub_answers_with_what_the_declaration_takes_for_done() {
        for (outcomes, status) in [
            (json!({}), 200),
            (json!({ "unknown": [200] }), 201),
            (json!({ "not_applied": [200, 201, 202], "unknown": [203], "done": [409] }), 409),
        ] {
            assert_eq!(done_status(&http(json!({ "outcomes": outcomes }))), status);
        }
    }

    #[test]
    fn the_place_of_a_scene_is_a_valid_configuration_of_the_same_tool() {
        let config = http(json!({
            "effect": "idempotent_write", "approval": "none", "body": "form", "timeout": "90s",
            "headers": { "Authorization": { "env": "A_SECRET", "prefix": "Bearer " }, "X-Org": "acme" },
            "outcomes": { "done": [409] },
            "verify": { "method": "GET", "url": "https://other/{p}/{idempotency_key}", "settle_after": "2m", "absent": "not_applied" },
        }));
        let tool = HttpTool::build_with_env(config.clone(), |_| Some("x".into())).unwrap();
        let mut found = Found::default();
        found.write(&tool, vec!["a".into()], Way::Http(Box::new(config)), false, |_| Ok(())).unwrap();
        let target = &found.targets[0];
        let declared = target.declared(
            match &target.way {
                Way::Http(http) => http,
                Way::Site => unreachable!(),
            },
            "http://127.0.0.1:1/s/w",
            "http://127.0.0.1:1/s/v",
        );
        let again: HttpToolConfig = toml::from_str(&toml::to_string(&declared).unwrap()).unwrap();
        assert!(again.headers.is_empty(), "no secret in a throw-away file");
        assert_eq!(again.timeout, Some(STUB_TIMEOUT_MAX));
        assert_eq!(again.verify.as_ref().unwrap().url, "http://127.0.0.1:1/s/v/{p}/{idempotency_key}");
        let again = HttpTool::build_with_env(again, |_| None).unwrap();
        let (was, is) = (tool.identity(), again.identity());
        assert_eq!((was.name, was.schema_hash, was.effect, was.approval), (is.name, is.schema_hash, is.effect, is.approval));
        let Tool::Write(write, _) = again else { panic!("a write") };
        assert!(write.verify().is_some_and(|verify| verify.absent_is_not_applied()));
    }
}
