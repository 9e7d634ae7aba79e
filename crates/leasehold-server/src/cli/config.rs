//! `leasehold config`: what is in effect and where it came from. Of a secret only whether it is set is known here.

use super::{Context, Exit, Outcome, context::env};
use crate::{
    config::{
        Config, KeyringAt, ModelKind,
        effective::{Limits, Origin, Setting},
        file::{Period, period_text},
    },
    terminal::{self, Look, Screen, span},
};
use leasehold::{
    agent::policy::{DataClass, Enforcement},
    agent::tool::{
        Approval,
        http::{self, Absent, BodyKind, ConfiguredEffect, HeaderSource},
        mcp::ErrorOutcome,
    },
    agent::{model::limited::ModelLimits, registry::EffectLimit},
    run::{Effect, OnExpiry},
};
use serde_json::{Map, Value, json};

/// Prints it.
pub(crate) fn config(context: &Context) -> Outcome {
    let sections = sections(&context.config);
    if context.json {
        terminal::print_json(&as_json(&context.config, &sections))?;
        return Ok(Exit::Done);
    }
    let mut screen = Screen::stdout();
    match &context.config.file {
        Some(file) => screen.styled(Look::Faint, format!("# from {}", file.display())),
        None => screen.styled(Look::Faint, "# no configuration file: defaults"),
    };
    for section in &sections {
        screen
            .gap()
            .styled(Look::Strong, if section.many { format!("[[{}]]", section.name) } else { format!("[{}]", section.name) });
        for Line { key, value, note } in &section.lines {
            let text = format!("{key} = {}", toml_text(value));
            screen.spans(&[span(Look::Plain, format!("{text:<44}")), span(Look::Faint, format!("  # {note}"))]);
        }
    }
    screen.print()?;
    Ok(Exit::Done)
}

struct Section {
    name: &'static str,
    many: bool,
    lines: Vec<Line>,
}

struct Line {
    key: String,
    value: Value,
    note: String,
}

fn line(key: &str, value: impl Into<Value>, note: impl ToString) -> Line {
    Line { key: key.into(), value: value.into(), note: note.to_string() }
}

fn setting<T>(key: &str, setting: &Setting<T>, value: impl FnOnce(&T) -> Value) -> Line {
    line(key, value(&setting.value), &setting.origin)
}

fn period(value: &Period) -> Value {
    period_text(value.0).into()
}

/// A value as it is written in the file.
fn toml_text(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(toml_text).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let fields: Vec<String> =
                map.iter().map(|(key, value)| format!("{} = {}", toml_key(key), toml_text(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        other => other.to_string(),
    }
}

fn toml_key(key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if bare { key.to_owned() } else { Value::from(key).to_string() }
}

/// Whether a secret is there; never what it is.
fn is_set(variable: &str) -> &'static str {
    if env(variable).is_some_and(|value| !value.is_empty()) { "set" } else { "not set" }
}

fn sections(config: &Config) -> Vec<Section> {
    let lease = &config.lease;
    let mut sections = vec![
        Section { name: "store", many: false, lines: vec![setting("url", &config.store, |at| at.shown().into())] },
        Section {
            name: "server",
            many: false,
            lines: vec![
                setting("listen", &config.listen, |v| v.to_string().into()),
                setting("execute", &config.execute, |v| (*v).into()),
                setting("public_url", &config.server.public_url, |v| v.as_ref().map_or("none", |url| url.as_str()).into()),
                setting("trusted_proxies", &config.server.trusted_proxies, |v| {
                    v.iter().map(ToString::to_string).collect::<Vec<_>>().into()
                }),
                setting("insecure_http", &config.server.insecure_http, |v| (*v).into()),
            ],
        },
        Section { name: "worker", many: false, lines: vec![setting("concurrency", &config.concurrency, |v| (*v).into())] },
        Section {
            name: "lease",
            many: false,
            lines: vec![
                setting("ttl", &lease.ttl, period),
                setting("sweep_interval", &lease.sweep_interval, period),
                setting("max_requeues", &lease.max_requeues, |v| (*v).into()),
                setting("backoff.initial", &lease.backoff_initial, period),
                setting("backoff.factor", &lease.backoff_factor, |v| (*v).into()),
                setting("backoff.max", &lease.backoff_max, period),
                setting("backoff.jitter", &lease.backoff_jitter, |v| (*v).into()),
            ],
        },
        Section {
            name: "auth",
            many: false,
            lines: vec![
                line(
                    "admin_token_env",
                    config.admin_token_env.value.clone(),
                    format!("{}; {}", config.admin_token_env.origin, is_set(&config.admin_token_env.value)),
                ),
                setting("local", &config.local, |v| Value::from(<&str>::from(*v))),
            ],
        },
    ];
    if let Some(line) = keyring(config) {
        sections.push(Section { name: "seal", many: false, lines: vec![line] });
    }
    sections.extend(config.webhook.iter().map(webhook));
    sections.extend(config.models.iter().map(model));
    sections.extend(config.agents.iter().map(agent));
    sections.extend(config.site.iter().map(site));
    sections.extend(policy(config));
    sections.extend(config.files.iter().map(files));
    sections.extend(config.fetch.iter().map(fetch));
    sections.extend(config.sql.iter().map(sql));
    sections.extend(config.http.iter().map(http_tool));
    sections.extend(config.mcp.iter().map(mcp_server));
    sections
}

fn webhook(webhook: &crate::config::Webhook) -> Section {
    let origin = &webhook.origin;
    let events: Vec<&str> = webhook.events.iter().map(|event| event.into()).collect();
    // Its path may be a secret, too.
    let host = without_secrets(&webhook.url).splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
    let mut lines = vec![
        line("url", format!("{host}/***"), format!("{origin}; its path is not shown")),
        line("secret_env", webhook.secret_env.clone(), format!("{origin}; {}", is_set(&webhook.secret_env))),
        line("events", events, origin),
        line("insecure_http", webhook.insecure_http, origin),
    ];
    lines.extend(webhook.link_base.as_ref().map(|base| line("link_base", without_secrets(base), origin)));
    Section { name: "webhook", many: false, lines }
}

fn keyring(config: &Config) -> Option<Line> {
    match &config.keyring.value {
        KeyringAt::Nowhere => None,
        KeyringAt::File(path) => Some(line("keyring", path.display().to_string(), &config.keyring.origin)),
        KeyringAt::Environment => Some(line("keyring", "***", format!("{}; not shown", config.keyring.origin))),
    }
}

fn model(model: &crate::config::Model) -> Section {
    let origin = &model.origin;
    let mut lines = vec![line("name", model.name.clone(), origin)];
    match &model.kind {
        ModelKind::Scripted { script } => {
            lines.push(line("provider", "scripted", origin));
            let (value, note) = match script {
                Some(path) => (path.display().to_string(), origin.to_string()),
                None => ("(built in)".into(), "plays a fixed script".into()),
            };
            lines.push(line("script", value, note));
        }
        ModelKind::Provider { provider, model, base_url, api_key_env, timeout, stream } => {
            lines.push(line("provider", provider.clone(), origin));
            lines.push(line("model", model.clone(), origin));
            if let Some(url) = base_url {
                lines.push(line("base_url", without_secrets(url), origin));
            }
            if let Some(variable) = api_key_env {
                lines.push(line("api_key_env", variable.clone(), is_set(variable)));
            }
            lines.push(line("timeout", period_text(*timeout), origin));
            lines.push(line("stream", *stream, origin));
        }
    }
    if let Some(price) = model.price {
        lines.push(line(
            "price",
            json!({ "input": price.input, "output": price.output, "cached": price.cached }),
            "US dollars per million tokens",
        ));
    }
    if !model.fallback.is_empty() {
        lines.push(line("fallback", model.fallback.clone(), origin));
    }
    lines.extend(model.window.map(|tokens| line("window", tokens, origin)));
    if model.zone != DataClass::default() {
        lines.push(line("zone", model.zone.to_string(), origin));
    }
    let ModelLimits { max_concurrency, requests_per_minute } = model.limits;
    lines.extend(max_concurrency.map(|n| line("max_concurrency", n.get(), origin)));
    lines.extend(requests_per_minute.map(|n| line("requests_per_minute", n.get(), origin)));
    Section { name: "model", many: true, lines }
}

/// A URL without its user, password and query.
fn without_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or(url);
    match url.split_once("://") {
        Some((scheme, rest)) => {
            let (host, path) = rest.split_once('/').map_or((rest, None), |(host, path)| (host, Some(path)));
            let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
            path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/{path}"))
        }
        None => url.to_owned(),
    }
}

fn agent(agent: &crate::config::Agent) -> Section {
    let origin = &agent.origin;
    let mut lines = vec![
        line("name", agent.name.clone(), origin),
        line("model", agent.model.clone(), origin),
        line("system", agent.system.clone(), origin),
        line("tools", agent.tools.clone(), origin),
        line("max_rounds", agent.max_rounds, origin),
        line("concurrency", agent.concurrency, origin),
        line("require_second_approver", agent.require_second_approver, origin),
        line("decision_deadline", agent.decision_deadline.map_or_else(|| "none".into(), period_text), origin),
        line(
            "on_decision_expired",
            match agent.on_decision_expired {
                OnExpiry::Continue => "continue",
                OnExpiry::DeadLetter => "dead_letter",
            },
            origin,
        ),
        line("approval_valid_for", period_text(agent.approval_valid_for), origin),
    ];
    if !agent.disabled.is_empty() {
        lines.push(line("disabled", agent.disabled.clone(), origin));
    }
    let Limits { max_tokens, max_cost_nano_usd, effect_budgets } = &agent.limits;
    lines.extend(max_tokens.map(|max| line("max_tokens", max, origin)));
    lines.extend(max_cost_nano_usd.map(|nano| line("max_cost", nano as f64 / 1e9, "US dollars")));
    if !effect_budgets.is_empty() {
        let budgets = effect_budgets.iter().map(|budget| match &budget.limit {
            EffectLimit::Writes(max) => {
                json!({ "tool": budget.tool, "max_writes": max, "window": period_text(budget.window) })
            }
            EffectLimit::Sum { argument, max_millionths } => json!({
                "tool": budget.tool,
                "max_sum": *max_millionths as f64 / 1e6,
                "argument": argument,
                "window": period_text(budget.window),
            }),
        });
        lines.push(line("effect_budgets", Value::Array(budgets.collect()), origin));
    }
    Section { name: "agent", many: true, lines }
}

fn site(site: &crate::config::effective::Site) -> Section {
    let mut lines = vec![line("path", site.path.display().to_string(), &site.origin)];
    if !site.approval.is_empty() {
        let words: Map<String, Value> = site.approval.iter().map(|(name, a)| (name.clone(), a.as_str().into())).collect();
        lines.push(line("approval", words, &site.origin));
    }
    Section { name: "tool.site", many: false, lines }
}

fn policy(config: &Config) -> Option<Section> {
    let policy = &config.policy;
    let file = config.file.as_ref().map_or_else(String::new, |file| file.display().to_string());
    let mut lines = Vec::new();
    if !policy.disabled.is_empty() {
        lines.push(line("disabled", policy.disabled.clone(), &file));
    }
    if !policy.classes.is_empty() {
        let enforcement = match policy.enforcement {
            Enforcement::Enforce => "enforce",
            Enforcement::Observe => "observe",
        };
        lines.push(line("data_classes", enforcement, &file));
    }
    for (pattern, class) in &policy.classes {
        lines.push(line(&format!("classes.{}", toml_key(pattern)), class.to_string(), &file));
    }
    (!lines.is_empty()).then_some(Section { name: "policy", many: false, lines })
}

fn files(files: &crate::config::Files) -> Section {
    let mut lines =
        vec![line("root", files.root.display().to_string(), &files.origin), line("write", files.write, &files.origin)];
    for (tool, approval) in &files.approval {
        lines.push(line(&format!("approval.{}", toml_key(tool)), approval.as_str(), &files.origin));
    }
    Section { name: "tool.files", many: false, lines }
}

fn fetch(fetch: &crate::config::Fetch) -> Section {
    let (config, origin) = (&fetch.config, &fetch.origin);
    let default_or_origin = |given: bool| if given { origin } else { &Origin::Default };
    let timeout = config.timeout.unwrap_or(http::TIMEOUT_DEFAULT);
    let bytes = config.max_response.unwrap_or(http::RESPONSE_BYTES_DEFAULT);
    let lines = vec![
        line("allow", config.allow.clone(), origin),
        line("allow_networks", config.allow_networks.clone(), default_or_origin(!config.allow_networks.is_empty())),
        line("timeout", period_text(timeout), default_or_origin(config.timeout.is_some())),
        line("max_response", format!("{bytes}B"), default_or_origin(config.max_response.is_some())),
    ];
    Section { name: "tool.fetch", many: false, lines }
}

fn sql(sql: &crate::config::Sql) -> Section {
    let (config, place) = (&sql.config, &sql.place);
    let default_or_place = |given: bool| if given { place.clone() } else { Origin::Default.to_string() };
    let mut lines = vec![line("name", config.name.clone(), place)];
    match &config.url_env {
        Some(variable) => lines.push(line("url_env", variable.clone(), format!("{place}; {}", is_set(variable)))),
        None => lines.push(line("url", config.endpoint(), place)),
    }
    lines.extend(config.description.iter().map(|text| line("description", text.clone(), place)));
    lines.extend(config.tables.iter().map(|tables| line("tables", tables.clone(), place)));
    let (timeout, rows, bytes) = config.in_effect();
    lines.push(line("timeout", period_text(timeout), default_or_place(config.timeout.is_some())));
    lines.push(line("max_rows", rows, default_or_place(config.max_rows.is_some())));
    lines.push(line("max_bytes", format!("{bytes}B"), default_or_place(config.max_bytes.is_some())));
    lines.push(line("allow_store", config.allow_store, default_or_place(config.allow_store)));
    Section { name: "tool.sql", many: true, lines }
}

fn http_tool(configured: &crate::config::Http) -> Section {
    let (tool, place) = (&configured.tool, &configured.place);
    let mut lines = vec![
        line("name", tool.name.clone(), place),
        line("description", tool.description.clone(), place),
        line("effect", Effect::from(tool.effect).as_str(), place),
        match tool.approval {
            _ if tool.effect == ConfiguredEffect::ReadOnly => line("approval", "none", "a read waits for nobody"),
            Some(approval) => line("approval", Approval::from(approval).as_str(), place),
            None => line("approval", Approval::Required.as_str(), Origin::Default),
        },
        line("method", tool.method.clone(), place),
        line("url", without_secrets(&tool.url), place),
    ];
    lines.extend(tool.headers.iter().map(|(header, source)| secret("headers", header, source, place)));
    let default_or_place = |given: bool| if given { place.clone() } else { Origin::Default.to_string() };
    lines.push(line(
        "body",
        match tool.body {
            BodyKind::Json => "json",
            BodyKind::Form => "form",
        },
        place,
    ));
    if let Some(parameters) = &tool.parameters {
        lines.push(line("parameters", parameters.clone(), place));
    }
    let timeout = tool.timeout.unwrap_or(http::TIMEOUT_DEFAULT);
    lines.push(line("timeout", period_text(timeout), default_or_place(tool.timeout.is_some())));
    let bytes = tool.max_response.unwrap_or(http::RESPONSE_BYTES_DEFAULT);
    lines.push(line("max_response", format!("{bytes}B"), default_or_place(tool.max_response.is_some())));
    let moved = &tool.outcomes;
    for (meaning, statuses) in [("done", &moved.done), ("not_applied", &moved.not_applied), ("unknown", &moved.unknown)] {
        if !statuses.is_empty() {
            lines.push(line(&format!("outcomes.{meaning}"), statuses.clone(), place));
        }
    }
    if let Some(verify) = &tool.verify {
        lines.push(line("verify.method", verify.method.clone(), place));
        lines.push(line("verify.url", without_secrets(&verify.url), place));
        lines.push(line(
            "verify.settle_after",
            period_text(verify.settle_after.unwrap_or_default()),
            default_or_place(verify.settle_after.is_some()),
        ));
        let absent = match verify.absent {
            Absent::InDoubt => "in_doubt",
            Absent::NotApplied => "not_applied",
        };
        lines.push(line("verify.absent", absent, place));
    }
    Section { name: "tool.http", many: true, lines }
}

/// A value that may be a secret: where it comes from.
fn secret(table: &str, name: &str, source: &HeaderSource, place: &str) -> Line {
    let key = format!("{table}.{}", toml_key(name));
    match source {
        HeaderSource::Text(_) => line(&key, "***", format!("{place}; text in the file, not shown")),
        HeaderSource::Env { env, .. } => {
            line(&key, json!({ "env": env, "prefix": "***" }), format!("{place}; {}", is_set(env)))
        }
    }
}

fn mcp_server(configured: &crate::config::Mcp) -> Section {
    let (config, place) = (&configured.config, &configured.place);
    let default_or_place = |given: bool| if given { place.clone() } else { Origin::Default.to_string() };
    let mut lines = vec![line("name", config.name.clone(), place)];
    if let Some([program, arguments @ ..]) = config.command.as_deref() {
        // An argument may be a secret.
        let shown: Vec<&str> = std::iter::once(program.as_str()).chain(arguments.iter().map(|_| "***")).collect();
        lines.push(line("command", json!(shown), place));
    }
    lines.extend(config.url.iter().map(|url| line("url", without_secrets(url), place)));
    lines.extend(config.env.iter().map(|(name, source)| secret("env", name, source, place)));
    lines.extend(config.headers.iter().map(|(name, source)| secret("headers", name, source, place)));
    let asks = config.requires_approval.unwrap_or(true);
    lines.push(line("requires_approval", asks, default_or_place(config.requires_approval.is_some())));
    for (tool, effect) in &config.effects {
        lines.push(line(&format!("effects.{}", toml_key(tool)), Effect::from(*effect).as_str(), place));
    }
    for (tool, approval) in &config.approval {
        lines.push(line(&format!("approval.{}", toml_key(tool)), Approval::from(*approval).as_str(), place));
    }
    for (tool, outcome) in &config.error_outcome {
        let outcome = match outcome {
            ErrorOutcome::Done => "done",
            ErrorOutcome::Unknown => "unknown",
        };
        lines.push(line(&format!("error_outcome.{}", toml_key(tool)), outcome, place));
    }
    for (tool, argument) in &config.idempotency_argument {
        lines.push(line(&format!("idempotency_argument.{}", toml_key(tool)), argument.clone(), place));
    }
    let timeout = config.timeout.unwrap_or(http::TIMEOUT_DEFAULT);
    lines.push(line("timeout", period_text(timeout), default_or_place(config.timeout.is_some())));
    lines.extend(config.questions.map(|limit| line("questions", period_text(limit), place)));
    let bytes = config.max_response.unwrap_or(http::RESPONSE_BYTES_DEFAULT);
    lines.push(line("max_response", format!("{bytes}B"), default_or_place(config.max_response.is_some())));
    Section { name: "mcp", many: true, lines }
}

fn as_json(config: &Config, sections: &[Section]) -> Value {
    let mut all = Map::new();
    all.insert("file".into(), config.file.as_ref().map(|f| f.display().to_string()).into());
    for section in sections {
        let mut values = Map::new();
        for Line { key, value, note } in &section.lines {
            values.insert(key.clone(), json!({ "value": value, "from": note }));
        }
        if section.many {
            let list = all.entry(section.name).or_insert_with(|| Value::Array(Vec::new()));
            if let Value::Array(list) = list {
                list.push(values.into());
            }
        } else {
            all.insert(section.name.into(), values.into());
        }
    }
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_what_may_be_secret() {
        assert_eq!(without_secrets("https://u:p@h.example/v1/?key=1#x"), "https://h.example/v1/");
        assert_eq!(without_secrets("http://h:1"), "http://h:1");
    }
}
