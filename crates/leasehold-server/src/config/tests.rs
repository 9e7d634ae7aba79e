//! What a configuration may say, and what it hears when it is wrong.

use super::{
    check::check,
    diagnostic::Source,
    effective::{Limits, Setting},
    *,
};
use leasehold::agent::{registry::EffectLimit, tool::Approval};
use std::time::Duration;

fn read_with(text: &str, env: &[(&str, &str)]) -> Result<Config, String> {
    let env: Vec<(String, String)> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    let source = Source::new(Path::new("/etc/lh/leasehold.toml"), text.as_bytes().to_vec()).map_err(|e| e.to_string())?;
    let found = Found { source: Some(source), data_dir: "/data/leasehold".into() };
    check(&found, &|name| env.iter().find(|(k, _)| k == name).map(|(_, v)| v.clone())).map_err(|e| e.to_string())
}

pub(super) fn read(text: &str) -> Result<Config, String> {
    read_with(text, &[])
}

pub(super) fn wrong(text: &str) -> String {
    read(text).expect_err("the configuration is wrong")
}

const TOOL: &str = r#"
[[tool.http]]
name = "ledger.append"
description = "Append one line to the ledger"
effect = "non_idempotent_write"
method = "POST"
url = "http://127.0.0.1:9000/append"
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
"#;

#[test]
fn the_documented_example_works_but_for_what_is_not_there_yet() {
    let text = r#"
[store]
url = "sqlite:leasehold.db"
[server]
listen = "127.0.0.1:7878"
execute = true
[worker]
concurrency = 64
[lease]
ttl = "60s"
sweep_interval = "5s"
max_requeues = 3
backoff = { initial = "5s", factor = 2.0, max = "10m", jitter = true }
[auth]
admin_token_env = "LEASEHOLD_ADMIN_TOKEN"
[[model]]
name = "default"
provider = "openai"
model = "gpt-4o-mini"
base_url = "https://example.org/v1"
api_key_env = "OPENAI_API_KEY"
timeout = "120s"
price = { input = 0.15, output = 0.60, cached = 0.075 }
[[agent]]
name = "editor"
model = "default"
system = "You keep the site tidy."
tools = ["site.*", "ledger.append"]
max_rounds = 20
concurrency = 16
require_second_approver = false
decision_deadline = "none"
on_decision_expired = "continue"
approval_valid_for = "24h"
[[tool.http]]
name = "ledger.append"
description = "Append one line to the ledger"
effect = "non_idempotent_write"
approval = "required"
method = "POST"
url = "http://127.0.0.1:9000/append"
headers = { Authorization = { env = "LEDGER_TOKEN", prefix = "Bearer " }, X-Org = "acme" }
body = "json"
parameters = { type = "object", properties = { text = { type = "string" } }, required = ["text"] }
timeout = "30s"
max_response = "1MiB"
outcomes = { done = [409], not_applied = [503] }
"#;
    let config = read(text).unwrap();
    assert_eq!(config.store.value.shown(), "sqlite:/etc/lh/leasehold.db");
    assert_eq!(config.lease.backoff_max.value.0, Duration::from_secs(600));
    assert_eq!(config.agents[0].tools, ["site.*", "ledger.append"]);
    assert_eq!(config.site.unwrap().path, Path::new("/etc/lh/site.db"));
}

#[test]
fn an_empty_file_is_the_defaults_beside_the_file() {
    let config = read("").unwrap();
    assert_eq!(config.store.value.shown(), "sqlite:/etc/lh/leasehold.db");
    assert_eq!(config.agents[0].name, "assistant");
    assert!(matches!(config.models[0].kind, ModelKind::Scripted { script: None }));
}

#[test]
fn without_a_file_the_store_is_in_the_users_data_directory() {
    let found = Found { source: None, data_dir: "/data/leasehold".into() };
    let config = check(&found, &|_| None).unwrap();
    assert_eq!(config.store.value.shown(), "sqlite:/data/leasehold/leasehold.db");
    assert_eq!(config.site.unwrap().path, Path::new("/data/leasehold/site.db"));
}

#[test]
fn a_known_key_in_the_environment_chooses_its_provider() {
    let config = read_with("", &[("GEMINI_API_KEY", "k"), ("ANTHROPIC_API_KEY", " ")]).unwrap();
    let ModelKind::Provider { provider, api_key_env, .. } = &config.models[0].kind else { panic!("a provider") };
    assert_eq!((provider.as_str(), api_key_env.as_deref()), ("gemini", Some("GEMINI_API_KEY")));
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_one_that_is_meant() {
    let error = wrong("[lease]\nttl = \"60s\"\nsweep_intervall = \"5s\"\n");
    assert!(error.starts_with("/etc/lh/leasehold.toml:3: unknown key `sweep_intervall`"), "{error}");
    assert!(error.contains("did you mean `sweep_interval`?"), "{error}");
}

#[test]
fn an_unknown_section_is_named() {
    let error = wrong("\n[leases]\nttl = \"60s\"\n");
    assert!(error.starts_with("/etc/lh/leasehold.toml:2: unknown key `leases`"), "{error}");
    assert!(error.contains("did you mean `lease`?"), "{error}");
}

#[test]
fn a_tool_without_an_effect_is_refused_because_there_is_no_default() {
    let error = wrong(&TOOL.replace("effect = \"non_idempotent_write\"\n", ""));
    assert!(error.starts_with("/etc/lh/leasehold.toml:2: the key `effect` is missing"), "{error}");
    assert!(error.contains("there is no default"), "{error}");
}

#[test]
fn an_effect_that_is_none_is_refused_with_those_there_are() {
    let error = wrong(&TOOL.replace("non_idempotent_write", "idempotent"));
    assert!(error.starts_with("/etc/lh/leasehold.toml:5: "), "{error}");
    assert!(error.contains("idempotent_write"), "{error}");
}

#[test]
fn two_of_one_name_are_refused_with_both_lines() {
    let error = wrong(&format!("{TOOL}{TOOL}"));
    assert!(error.starts_with("/etc/lh/leasehold.toml:11: two tools are named `ledger.append`"), "{error}");
    assert!(error.contains("leasehold.toml:3"), "{error}");
    let model = "[[model]]\nname = \"m\"\nprovider = \"openai\"\nmodel = \"x\"\n";
    assert!(wrong(&format!("{model}{model}")).starts_with("/etc/lh/leasehold.toml:6: two models are named `m`"));
    let agent = "[[agent]]\nname = \"a\"\n";
    assert!(wrong(&format!("{agent}{agent}")).starts_with("/etc/lh/leasehold.toml:4: two agents are named `a`"));
}

#[test]
fn an_agent_that_names_what_is_not_there_is_refused() {
    let error = wrong("[[agent]]\nname = \"a\"\nmodel = \"defualt\"\n");
    assert!(error.starts_with("/etc/lh/leasehold.toml:3: agent `a` names the model `defualt`"), "{error}");
    assert!(error.contains("did you mean `default`?"), "{error}");
    let error = wrong("[[agent]]\nname = \"a\"\ntools = [\"site.*\",\n  \"ledger.apend\"]\n");
    assert!(error.starts_with("/etc/lh/leasehold.toml:4: agent `a` is offered `ledger.apend`"), "{error}");
}

#[test]
fn a_key_that_is_there_twice_is_named() {
    let error = wrong("[store]\nurl = \"sqlite:a\"\nurl = \"sqlite:b\"\n");
    assert_eq!(error, "/etc/lh/leasehold.toml:3: the key `url` is there twice\n  keep one of them");
}

#[test]
fn durations_are_refused_without_or_with_a_wrong_unit_and_when_negative() {
    for (value, what) in [
        ("\"60 parsecs\"", "`60 parsecs` is not a duration: write a number with a unit"),
        ("\"60\"", "`60` is not a duration"),
        ("60", "expected a duration with its unit"),
        ("\"-5s\"", "`-5s` is negative"),
        ("\"0s\"", "a lease must last at least 300ms"),
    ] {
        let error = wrong(&format!("[lease]\n\nttl = {value}\n"));
        assert!(error.starts_with("/etc/lh/leasehold.toml:3: "), "{value}: {error}");
        assert!(error.contains(what), "{value}: {error}");
    }
}

#[test]
fn durations_are_read_as_people_write_them() {
    for (value, seconds) in [("60s", 60), ("5m", 300), ("1h 30m", 5400), ("24h", 86_400), ("PT2M", 120), ("2 minutes", 120)] {
        assert_eq!(
            read(&format!("[lease]\nttl = \"{value}\"\n")).unwrap().lease.ttl.value.0,
            Duration::from_secs(seconds),
            "{value}"
        );
    }
}

#[test]
fn numbers_that_are_negative_or_zero_are_refused() {
    let error = wrong("[lease]\nmax_requeues = -1\n");
    assert!(error.starts_with("/etc/lh/leasehold.toml:2: "), "{error}");
    assert!(error.contains("a whole number from 0 to 4294967295"), "{error}");
    assert!(wrong("[worker]\nconcurrency = 0\n").contains(":2: must be at least 1"));
    assert!(wrong("[lease]\nbackoff = { factor = 0.5 }\n").contains("at least 1"));
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_work() {
    let config = read("\u{feff}[lease]\r\nttl = \"30s\"\r\n").unwrap();
    assert_eq!(config.lease.ttl.value.0, Duration::from_secs(30));
    let error = wrong("\u{feff}[lease]\r\nttl = \"30s\"\r\nttll = 1\r\n");
    assert!(error.starts_with("/etc/lh/leasehold.toml:3: "), "{error}");
}

#[test]
fn a_file_that_is_too_large_is_refused_with_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("leasehold.toml");
    std::fs::write(&path, format!("# {}", "x".repeat(1024 * 1024))).unwrap();
    let error = load(Some(&path), &|_| None).unwrap_err().to_string();
    assert!(error.contains("longer than 1048576 bytes"), "{error}");
}

#[test]
fn text_that_is_no_toml_is_refused_with_its_line() {
    let error = wrong("[store]\nurl = sqlite\n");
    assert!(error.starts_with("/etc/lh/leasehold.toml:2: "), "{error}");
}

#[test]
fn a_server_of_tools_is_refused_with_its_line_and_the_mend() {
    let server = "[[mcp]]\nname = \"files\"\ncommand = [\"npx\"]\n";
    assert_eq!(read(server).unwrap().mcp[0].config.requires_approval, None);
    for (more, line, said) in [
        ("requires_approval = \"false\"\n", 4, "expected true or false"),
        ("requires_approval = 2\n", 4, "expected true or false"),
        ("requires_approval = \"\"\n", 4, "expected true or false"),
        ("url = \"http://localhost\"\n", 4, "remove one of the two"),
        ("effects = { write = \"reads\" }\n", 4, "read_only"),
        ("headers = { a = \"b\" }\n", 4, "belong to a `url`"),
        ("idempotent = true\n", 4, "idempotent"),
        ("max_response = \"17MiB\"\n", 4, "write less"),
        (&format!("\n{server}"), 6, "two sources of tools are named `files`; the other one is at /etc/lh/leasehold.toml:2"),
        (
            "\n[[tool.http]]\nname = \"files.read\"\ndescription = \"d\"\neffect = \"read_only\"\nmethod = \"GET\"\nurl = \"http://h\"\n",
            2,
            "two sources",
        ),
        ("\n[[agent]]\nname = \"a\"\ntools = [\"file.*\"]\n", 7, "no such tool"),
    ] {
        let error = wrong(&format!("{server}{more}"));
        assert!(error.starts_with(&format!("/etc/lh/leasehold.toml:{line}: ")) && error.contains(said), "{more}: {error}");
    }
    for name in ["site", "leasehold", "", "a.b"] {
        let error = wrong(&server.replace("files", name));
        assert!(error.starts_with("/etc/lh/leasehold.toml:2: "), "{name}: {error}");
    }
    let agent = "\n[[agent]]\nname = \"a\"\ntools = [\"files.read\", \"files.*\", \"*\"]\n";
    assert_eq!(read(&format!("{server}{agent}")).unwrap().agents[0].tools.len(), 3, "any tool of a server may be meant");
}

#[test]
fn what_a_command_shows_that_opens_the_store_is_the_files_word_alone() {
    use super::file::Local;
    let of = |text: &str, env: &[(&str, &str)]| read_with(text, env).unwrap().local;
    assert_eq!((of("", &[]).value, of("", &[]).origin), (Local::Owner, super::Origin::Default));
    let wants = of("[auth]\nlocal = \"token\"\n", &[("LEASEHOLD_AUTH_LOCAL", "owner")]);
    assert_eq!((wants.value, wants.origin.to_string()), (Local::Token, "/etc/lh/leasehold.toml:2".to_owned()));
}

#[test]
fn a_database_is_named_without_its_password() {
    let config = read("[store]\nurl = \"postgres://user:hunter2@host/db\"\n").unwrap();
    assert_eq!(config.store.value.shown(), "postgres://user@host:5432/db");
    assert!(!format!("{config:?}").contains("hunter2"));
    for url in ["postgres://user:hunter2@host", "postgres://user:hunter2@host/db?sslmode=maybe", "postgresql:user:hunter2"] {
        let error = wrong(&format!("[store]\nurl = \"{url}\"\n"));
        assert!(error.starts_with("/etc/lh/leasehold.toml:2: ") && !error.contains("hunter2"), "{url}: {error}");
    }
}

#[test]
fn a_key_written_where_its_variable_belongs_is_not_repeated() {
    let error = wrong("[[model]]\nname = \"m\"\nprovider = \"openai\"\nmodel = \"x\"\napi_key_env = \"sk-proj-12345\"\n");
    assert!(error.contains(":5: this is not the name of an environment variable"), "{error}");
    assert!(!error.contains("12345"), "{error}");
}

#[test]
fn the_environment_overrides_the_file_and_is_named_in_its_errors() {
    let text = "[lease]\nttl = \"30s\"\n";
    let config = read_with(text, &[("LEASEHOLD_LEASE_TTL", "9s"), ("LEASEHOLD_STORE_URL", "sqlite:/tmp/x.db")]).unwrap();
    assert_eq!(config.lease.ttl.value.0, Duration::from_secs(9));
    assert_eq!(config.lease.ttl.origin, Origin::Env("LEASEHOLD_LEASE_TTL".into()));
    assert_eq!(config.store.value.shown(), "sqlite:/tmp/x.db");
    let error = read_with(text, &[("LEASEHOLD_LEASE_TTL", "soon")]).unwrap_err();
    assert!(error.starts_with("environment variable LEASEHOLD_LEASE_TTL: `soon` is not a duration"), "{error}");
}

#[test]
fn the_operator_can_let_a_write_of_the_site_run() {
    let config = read("[tool.site]\npath = \"pages.db\"\napproval = { \"site.update_page_metadata\" = \"none\" }\n").unwrap();
    let site = config.site.unwrap();
    assert_eq!(site.path, Path::new("/etc/lh/pages.db"));
    assert_eq!(site.approval.get("site.update_page_metadata"), Some(&Approval::None));
    let error = wrong("[tool.site]\napproval = { \"site.read_page\" = \"none\" }\n");
    assert!(error.contains(":2: `site.read_page` is not a write"), "{error}");
}

#[test]
fn an_approval_that_is_not_one_of_the_two_words_is_refused() {
    for value in ["false", "\"no\"", "\"\"", "\"None\""] {
        let error = wrong(&TOOL.replace("method =", &format!("approval = {value}\nmethod =")));
        assert!(error.starts_with("/etc/lh/leasehold.toml:6: "), "{value}: {error}");
    }
}

#[test]
fn a_section_with_one_bracket_too_few_is_mended() {
    for (text, line, mend) in [
        ("[model]\nname = \"m\"\n", 1, "[[model]]"),
        ("\n[tool.http]\nname = \"a.b\"\n", 2, "[[tool.http]]"),
        ("[agent]\nname = \"a\"\n", 1, "[[agent]]"),
    ] {
        let error = wrong(text);
        assert!(error.starts_with(&format!("/etc/lh/leasehold.toml:{line}: ")) && error.contains(mend), "{error}");
    }
}

#[test]
fn values_of_a_wrong_type_are_answered_in_words() {
    assert!(wrong("[server]\nexecute = \"yes\"\n").contains("expected true or false"));
    assert!(wrong("[worker]\nconcurrency = 4294967296\n").contains("from 0 to 4294967295"));
    assert!(wrong("[lease]\nbackoff = { factor = \"2\" }\n").contains("expected a number"));
}

#[test]
fn the_only_model_is_the_one_that_is_meant() {
    let model = |name: &str| format!("[[model]]\nname = \"{name}\"\nprovider = \"ollama\"\nmodel = \"x\"\n");
    assert_eq!(read(&model("mine")).unwrap().agents[0].model, "mine");
    let error = wrong(&format!("{}{}", model("a"), model("b")));
    assert!(error.starts_with("/etc/lh/leasehold.toml:2: ") && error.contains("[[agent]]"), "{error}");
    let error = wrong(&format!("{}[[agent]]\nname = \"clerk\"\n", model("mine")));
    assert!(error.contains("names no model") && error.contains("there are: mine"), "{error}");
}

#[test]
fn a_token_written_where_its_variable_belongs_is_not_repeated() {
    let error = wrong("[auth]\nadmin_token_env = \"lh-12345\"\n");
    assert!(error.starts_with("/etc/lh/leasehold.toml:2: ") && !error.contains("12345"), "{error}");
    let error = read_with("", &[("LEASEHOLD_AUTH_ADMIN_TOKEN_ENV", "lh-12345")]).unwrap_err();
    assert!(!error.contains("12345"), "{error}");
}

#[test]
fn the_stores_url_is_a_file_and_nothing_more() {
    for url in ["sqlite:a.db?mode=ro", "sqlite::memory:", "sqlite:", "a.db"] {
        assert!(wrong(&format!("[store]\nurl = \"{url}\"\n")).starts_with("/etc/lh/leasehold.toml:2: "), "{url}");
    }
}

const PRICED: &str = "[[model]]\nname = \"m\"\nprovider = \"openai\"\nmodel = \"x\"\nprice = { input = 1, output = 2 }\n";

/// An agent that is offered the ledger, with these lines, of which the first is line 9.
fn agent_with(lines: &str) -> String {
    format!("{PRICED}[[agent]]\nname = \"a\"\nmodel = \"m\"\ntools = [\"ledger.*\"]\n{lines}\n{TOOL}")
}

#[test]
fn limits_of_an_agent_are_read_to_the_last_digit() {
    let budgets = "effect_budgets = [{ tool = \"ledger.*\", max_writes = 5, window = \"1h\" }, \
                   { tool = \"ledger.append\", max_sum = 1000.25, argument = \"amount\", window = \"24h\" }]";
    let config = read(&agent_with(&format!("max_tokens = 9000\nmax_cost = 0.50\n{budgets}"))).unwrap();
    let limits = &config.agents[0].limits;
    assert_eq!((limits.max_tokens, limits.max_cost_nano_usd), (Some(9000), Some(500_000_000)));
    assert_eq!(limits.effect_budgets[0].limit, EffectLimit::Writes(5));
    let sum = EffectLimit::Sum { argument: "amount".into(), max_millionths: 1_000_250_000 };
    assert_eq!((&limits.effect_budgets[1].limit, limits.effect_budgets[1].window), (&sum, Duration::from_secs(24 * 3600)));
    assert_eq!(read(&agent_with("")).unwrap().agents[0].limits, Limits::default());
    // A whole number is one too.
    let whole = "effect_budgets = [{ tool = \"ledger.*\", max_sum = 10, argument = \"amount\", window = \"1h\" }]";
    let whole = read(&agent_with(whole)).unwrap();
    assert_eq!(whole.agents[0].limits.effect_budgets[0].max(), 10_000_000);
}

#[test]
fn a_limit_that_would_count_nothing_is_refused_with_its_line_and_the_mend() {
    let budget = |text: &str| format!("effect_budgets = [\n{{ {text} }}]");
    for (lines, at, what, mend) in [
        ("max_tokens = 0".to_owned(), 10, "at least 1", "remove it"),
        ("max_cost = 0.0".into(), 10, "greater than zero", "max_cost = 0.50"),
        ("max_cost = nan".into(), 10, "greater than zero", "max_cost = 0.50"),
        (budget("tool = \"ledgr.*\", max_writes = 1, window = \"1h\""), 11, "offered no such tool", "ledger.append"),
        (budget("tool = \"site.*\", max_writes = 1, window = \"1h\""), 11, "offered no such tool", "ledger.append"),
        (budget("tool = \"ledger.*\", max_writes = 1, window = \"0s\""), 11, "longer than zero", "24h"),
        (budget("tool = \"ledger.*\", max_writes = 1, window = \"1500ms\""), 11, "whole seconds", "24h"),
        (budget("tool = \"ledger.*\", window = \"1h\""), 11, "without a limit", "max_writes = 5"),
        (
            budget("tool = \"ledger.*\", max_writes = 1, max_sum = 1, argument = \"a\", window = \"1h\""),
            11,
            "either",
            "keep one",
        ),
        (budget("tool = \"ledger.*\", max_sum = 1, window = \"1h\""), 11, "which argument", "argument = \"amount\""),
        (budget("tool = \"ledger.*\", max_sum = 0, argument = \"a\", window = \"1h\""), 11, "greater than zero", "millionth"),
        (budget("tool = \"ledger.*\", max_writes = 0, window = \"1h\""), 11, "at least 1", "take the tool away"),
        (budget("tool = \"ledger.*\", max_writes = 1, argument = \"a\", window = \"1h\""), 11, "no meaning", "max_sum"),
        (budget("tool = \"ledger.*\", max_write = 1, window = \"1h\""), 11, "unknown key `max_write`", "`max_writes`"),
        (budget("max_writes = 1, window = \"1h\""), 11, "`tool` is missing", ""),
        (
            budget(
                "tool = \"ledger.*\", max_writes = 1, window = \"60m\" }, { tool = \"ledger.*\", max_writes = 2, window = \"1h\"",
            ),
            11,
            "two budgets count the same",
            "smaller",
        ),
    ] {
        let error = wrong(&agent_with(&lines));
        let place = format!("/etc/lh/leasehold.toml:{at}: ");
        assert!(error.starts_with(&place) && error.contains(what) && error.contains(mend), "{lines}:\n{error}");
    }
    let unpriced = agent_with("max_cost = 1").replace("price =", "# price =");
    assert!(
        wrong(&unpriced).contains("has no price, so nothing would be counted\n  add to its [[model]]: price"),
        "{unpriced}"
    );
}

#[test]
fn a_keyring_is_named_by_the_file_or_is_in_the_environment_and_its_text_is_not_kept() {
    let text = "[seal]\nkeyring = \"keys.toml\"\n";
    let named = KeyringAt::File("/etc/lh/keys.toml".into());
    assert_eq!(read(text).unwrap().keyring, Setting { value: named, origin: Origin::File("/etc/lh/leasehold.toml:2".into()) });
    let config = read_with(text, &[("LEASEHOLD_KEYRING", "a = \"0011223344\"")]).unwrap();
    assert_eq!(config.keyring.value, KeyringAt::Environment);
    assert!(!format!("{config:?}").contains("0011223344"));
    assert_eq!(read_with("", &[("LEASEHOLD_KEYRING", " ")]).unwrap().keyring.value, KeyringAt::Nowhere);
}

#[test]
fn files_are_offered_where_the_file_says_so_and_written_where_it_says_that_too() {
    let files = "[tool.files]\nroot = \"site\"\n";
    let agent = |tool: &str| format!("\n[[agent]]\nname = \"a\"\ntools = [\"{tool}\"]\n");
    assert!(wrong(&agent("files.read")).contains("no such tool"));
    let config = read(&format!("{files}{}", agent("files.read"))).unwrap();
    assert_eq!(config.files.unwrap().root, Path::new("/etc/lh/site"));
    assert!(wrong(&format!("{files}{}", agent("files.write"))).contains("no such tool"));
    let config =
        read(&format!("{files}write = true\napproval = {{ \"files.edit\" = \"none\" }}\n{}", agent("files.write"))).unwrap();
    assert_eq!(config.files.unwrap().approval.len(), 1);
    let error = wrong(&format!("{files}approval = {{ \"files.read\" = \"none\" }}\n"));
    assert!(error.starts_with("/etc/lh/leasehold.toml:3: ") && error.contains("not a write"), "{error}");
    let error = wrong(&format!("{files}\n[[mcp]]\nname = \"files\"\ncommand = [\"x\"]\n"));
    assert!(error.contains("two sources of tools are named `files`"), "{error}");
}
