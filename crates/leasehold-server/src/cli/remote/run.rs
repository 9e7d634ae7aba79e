//! `run`: starts a run on the server, and sees it to its end or its wait. It is queued for whoever works there, so it is finished
//! whatever becomes of this process or of the server's.

use super::{
    Remote,
    client::Want,
    follow::Place,
    shown::{Page, Run},
};
use crate::{
    catalog::AgentLine,
    cli::{Exit, Failure, Outcome, run::RunArgs, watch::Signals},
    terminal::{self, Screen},
};
use leasehold::run::State;
use serde_json::json;

impl Remote {
    /// Starts it.
    pub(super) async fn run(&self, args: RunArgs) -> Outcome {
        if args.unrecorded {
            return Err(Failure::usage(
                "--unrecorded works on this machine, not on a server: leave --server and LEASEHOLD_URL out",
            ));
        }
        let agent = match &args.agent {
            Some(agent) => agent.clone(),
            None => self.only_agent().await?,
        };
        let mut body = json!({ "agent": agent, "input": args.prompt()?, "mode": "queue" });
        if let Some(tools) = args.tools() {
            body["tools"] = json!(tools);
        }
        if let Some(rounds) = args.max_rounds {
            body["max_rounds"] = json!(rounds);
        }
        let mut signals = Signals::listen()?;
        let started = tokio::select! {
            answer = self.client.post("/runs", &body, args.key.as_deref()) => answer?,
            _ = signals.next() => return Err(Failure::refused("left: the run may or may not have been started")),
        };
        let run: Run = started.read()?;
        if args.queue {
            if self.json {
                self.print(&started.body)?;
            } else {
                let mut screen = Screen::stdout();
                screen.line(run.id.to_string());
                screen.print()?;
            }
            if args.key.is_some() && !matches!(run.state, State::Queued | State::Running) {
                let state = run.state.as_str().replace('_', " ");
                terminal::note(format!("the key belongs to this run, which is {state} now"));
            }
            return Ok(Exit::Done);
        }
        terminal::note(format!("run {}", run.id));
        self.see(Place::after(run.id, None), &mut signals).await
    }

    async fn only_agent(&self) -> Result<String, Failure> {
        let agents: Page<AgentLine> = self.client.get("/agents", &[], Want::Json).await?.read()?;
        let names: Vec<String> = agents.items.into_iter().map(|agent| agent.name).collect();
        match names.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(Failure::usage(format!("which agent? add --agent; there are: {}", names.join(", ")))),
        }
    }

    /// Shows the steps until the run rests, and says how it stands; asks where a person is there to answer.
    pub(super) async fn see(&self, mut place: Place, signals: &mut Signals) -> Outcome {
        let id = place.id();
        loop {
            self.watch(&mut place, signals).await?;
            if !self.json && terminal::can_ask() && self.ask_and_decide(id, signals).await? {
                continue;
            }
            return self.report(id).await;
        }
    }
}
