//! `runs`: list, show, follow, cancel, redrive, discard.

use super::{
    Remote,
    client::{Trouble, Want},
    follow::Place,
    shown::{Page, Run},
};
use crate::{
    cli::{
        Exit, Failure, Outcome,
        artifacts::{ArtifactsArgs, show, write},
        runs::{ListArgs, OrderArgs, RunsCommand, print_event},
        watch::{Heard, Signals},
    },
    terminal::{self, Screen},
    wire::Artifact,
};
use leasehold::run::State;
use serde_json::{Value, json};

impl Remote {
    /// Executes a verb.
    pub(super) async fn runs(&self, command: RunsCommand) -> Outcome {
        match command {
            RunsCommand::List(args) => self.list(args).await,
            RunsCommand::Show { run } => self.show_run(&run).await,
            RunsCommand::Follow { run, after } => self.follow(&run, after).await,
            RunsCommand::Artifacts(args) => self.artifacts(args).await,
            RunsCommand::Cancel(args) => self.order("cancel", args).await,
            RunsCommand::Redrive(args) => self.order("redrive", args).await,
            RunsCommand::Discard(args) => self.order("discard", args).await,
        }
    }

    async fn list(&self, args: ListArgs) -> Outcome {
        let query: Vec<(&str, String)> = [
            ("state", args.state.map(|state| state.as_str().to_owned())),
            ("agent", args.agent),
            ("owner", args.owner),
            ("reason", args.reason.map(|reason| reason.as_str().to_owned())),
            ("since", args.since.map(|since| since.to_string())),
            ("limit", Some(args.limit.to_string())),
            ("cursor", args.cursor.map(|cursor| cursor.to_string())),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect();
        let answer = self.client.get("/runs", &query, Want::Json).await?;
        if self.json {
            self.print(&answer.body)?;
            return Ok(Exit::Done);
        }
        let page: Page<Value> = answer.read()?;
        if page.items.is_empty() {
            terminal::note(format!("no such runs on {}", self.client.url()));
            return Ok(Exit::Done);
        }
        let text = self.client.get("/runs", &query, Want::Text).await?;
        let mut screen = Screen::stdout();
        screen.lines(&text.body);
        screen.print()?;
        if let Some(cursor) = page.next_cursor {
            terminal::note(format!("there are more: --cursor {cursor}"));
        }
        Ok(Exit::Done)
    }

    async fn show_run(&self, text: &str) -> Outcome {
        let id = self.find(text).await?;
        let unknown = |trouble: Trouble| if trouble.is_hidden() { self.no_such_run(text) } else { trouble.into() };
        if self.json {
            self.print(&self.look(id).await.map_err(unknown)?.1.body)?;
            return Ok(Exit::Done);
        }
        let mut screen = Screen::stdout();
        self.text(id).await.map_err(unknown)?.all(&mut screen);
        screen.print()?;
        Ok(Exit::Done)
    }

    async fn artifacts(&self, args: ArtifactsArgs) -> Outcome {
        let id = self.find(&args.run).await?;
        let place = format!("/runs/{id}/artifacts");
        let unknown = |trouble: Trouble| if trouble.is_hidden() { self.no_such_run(&args.run) } else { trouble.into() };
        let listed: Page<Artifact> = self.client.get(&place, &[], Want::Json).await.map_err(unknown)?.read()?;
        if let Some(directory) = &args.out {
            for artifact in &listed.items {
                let content = self.client.bytes(&format!("{place}/{}", artifact.artifact)).await?;
                write(directory, artifact, &content)?;
            }
        }
        show(listed.items, self.json)
    }

    async fn follow(&self, run: &str, after: Option<u64>) -> Outcome {
        let id = self.find(run).await?;
        let mut signals = Signals::listen()?;
        let mut place = Place::after(id, after);
        let over = |run: &Run| run.state.is_settled() || run.state == State::Dead;
        let until = self.until(&mut place, over, |event| {
            if self.json {
                terminal::print_json(event)?;
                return Ok(());
            }
            print_event(event.sequence, event.at, &event.words())
        });
        tokio::select! {
            ended = until => ended.map(|()| Exit::Done),
            heard = signals.next() => Ok(if heard == Heard::Interrupt { Exit::Done } else { Exit::Refused }),
        }
    }

    async fn order(&self, verb: &str, args: OrderArgs) -> Result<Exit, Failure> {
        let id = self.find(&args.run).await?;
        let answer = self.client.post(&format!("/runs/{id}/{verb}"), &json!({ "note": args.note }), None).await?;
        self.ordered(id, &answer).await?;
        Ok(Exit::Done)
    }
}
