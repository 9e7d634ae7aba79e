//! What a person says: `inbox`, `approve`, `deny`, `input`, `resolve`.

use super::{
    Remote,
    ask::word,
    client::{Answer, Want},
    follow::Stopped,
    shown::{Page, Run, Shown},
};
use crate::{
    cli::{
        Exit, Failure, Outcome,
        answer::{question, to_be_said},
        decide::{ApproveArgs, DecideArgs, can_name, object},
        input::InputArgs,
        resolve::{ResolveArgs, Verify},
        run::answer,
        watch::Signals,
    },
    render::arguments,
    terminal::{self, Look, Screen},
};
use leasehold::{
    limits::PAGE_MAX,
    run::{ResolutionKind, RunId, State},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Seconds after which a wait is asked for again; less than an answer may take.
const AGAIN_AFTER: u32 = 30;

/// What came of asking the far side.
#[derive(Debug, Deserialize)]
struct Resolved {
    verify: Option<Verify>,
}

impl Remote {
    /// Lists what waits.
    pub(super) async fn inbox(&self) -> Outcome {
        let query = [("limit", PAGE_MAX.to_string())];
        let list = self.client.get("/inbox", &query, Want::Json).await?;
        let page: Page<Value> = list.read()?;
        if page.next_cursor.is_some() {
            terminal::note(format!("more waits than the {PAGE_MAX} most urgent, which are shown"));
        }
        if self.json {
            self.print(&list.body)?;
            return Ok(Exit::Done);
        }
        if page.items.is_empty() {
            terminal::note(format!("nothing waits for a person on {}", self.client.url()));
            return Ok(Exit::Done);
        }
        let text = self.client.get("/inbox", &query, Want::Text).await?;
        let mut screen = Screen::stdout();
        screen.lines(&text.body);
        screen.print()?;
        terminal::note(format!("look at one, and how to decide: {} runs show RUN", self.command));
        Ok(Exit::Done)
    }

    /// Releases calls.
    pub(super) async fn approve(&self, args: ApproveArgs) -> Outcome {
        let arguments = args.arguments.as_deref().map(object).transpose()?;
        self.decide(args.decide, true, arguments).await
    }

    /// Decides about calls.
    pub(super) async fn decide(&self, args: DecideArgs, approved: bool, instead: Option<Map<String, Value>>) -> Outcome {
        can_name(args.digest.as_deref(), &self.command, &args.run)?;
        let id = self.find(&args.run).await?;
        let mut calls = args.calls.clone();
        // Who names what is decided need not see the run any more: whoever was faster is said to them.
        let look = args.digest.is_none() || (instead.is_some() && calls.is_empty());
        let shown = if look { Some(self.show(id).await?) } else { None };
        if let (Some(shown), true, true) = (&shown, instead.is_some(), calls.is_empty()) {
            calls = shown.run.undecided().into_iter().map(|call| call.id.clone()).collect();
        }
        if instead.is_some() && calls.len() != 1 {
            return Err(Failure::usage("--arguments is for one call: name it with --call"));
        }
        let mut signals = Signals::listen()?;
        let digest = match (args.digest, &shown) {
            (Some(digest), _) => Some(digest),
            (None, None) => None,
            (None, Some(shown)) => {
                self.waits(shown, State::WaitingForApproval, "a decision")?;
                let which = if args.calls.is_empty() { "all undecided calls".to_owned() } else { args.calls.join(", ") };
                let question = format!("{} {which}? [y/N] ", if approved { "Approve" } else { "Deny" });
                let edited = |screen: &mut Screen| {
                    if let (Some(instead), [call]) = (&instead, calls.as_slice()) {
                        screen.styled(Look::Warn, format!("  {call} is to run with these arguments instead"));
                        arguments(screen, 6, instead);
                    }
                };
                self.confirm(shown, question, edited, &mut signals).await?
            }
        };
        let Some(digest) = digest else {
            terminal::note("nothing was decided");
            return self.report(id).await;
        };
        let mut body = json!({ "turn_digest": digest, "reason": args.reason });
        if calls.is_empty() {
            body["decision"] = json!(word(approved));
        }
        let call = |call: &String| {
            let mut said = json!({ "id": call, "decision": word(approved), "reason": args.reason });
            if let Some(instead) = &instead {
                said["arguments"] = json!(instead);
            }
            said
        };
        body["calls"] = calls.iter().map(call).collect();
        self.say(id, "decision", &body, args.no_wait, &mut signals).await
    }

    /// Gives values.
    pub(super) async fn input(&self, args: InputArgs) -> Outcome {
        let values = args.values()?;
        can_name(args.digest.as_deref(), &self.command, &args.run)?;
        let id = self.find(&args.run).await?;
        let mut signals = Signals::listen()?;
        let digest = match args.digest.clone() {
            Some(digest) => Some(digest),
            None => {
                let shown = self.show(id).await?;
                self.waits(&shown, State::WaitingForInput, "values")?;
                let asked = question(values.is_some()).into();
                self.confirm(&shown, asked, |screen| to_be_said(screen, values.as_ref()), &mut signals).await?
            }
        };
        let Some(digest) = digest else {
            terminal::note("no values were given");
            return self.report(id).await;
        };
        let body = match values {
            Some(values) => json!({ "turn_digest": digest, "values": values }),
            None => json!({ "turn_digest": digest, "decline": true }),
        };
        self.say(id, "input", &body, args.no_wait, &mut signals).await
    }

    fn waits(&self, shown: &Shown, state: State, what: &str) -> Result<(), Failure> {
        if shown.run.state == state {
            return Ok(());
        }
        let mut screen = Screen::new(false);
        shown.text.sentence(&mut screen);
        Err(Failure::refused(format!("nothing waits for {what}: {}", screen.into_text().trim_end())))
    }

    /// Says it, and sees what becomes of it.
    async fn say(&self, id: RunId, what: &str, body: &Value, no_wait: bool, signals: &mut Signals) -> Outcome {
        let path = format!("/runs/{id}/{what}");
        // What comes after this is what becomes of it.
        let place = match self.last_entry(id).await {
            Ok(place) => Some(place),
            Err(Stopped::Trouble(trouble)) if trouble.is_hidden() => None,
            Err(stopped) => return Err(stopped.into()),
        };
        let said = self.client.post(&path, body, None).await?;
        let hidden = self.look(id).await.is_err_and(|trouble| trouble.is_hidden());
        match place {
            Some(place) if !hidden && !no_wait => self.see(place, signals).await,
            Some(_) if !hidden => self.report(id).await,
            _ => self.unseen(&path, body, said, no_wait, signals).await,
        }
    }

    /// Who may decide sees a run while it waits for that, and perhaps not after. The same said again gets the same answer: the run,
    /// once it rests.
    async fn unseen(&self, path: &str, body: &Value, said: Answer, no_wait: bool, signals: &mut Signals) -> Outcome {
        terminal::note("it is taken; what the run does after it is not shown to this token, but how it ends");
        let path = format!("{path}?wait=true&timeout={AGAIN_AFTER}");
        let (mut run, mut said): (Run, Answer) = (said.read()?, said);
        while !no_wait && !run.rests() {
            said = tokio::select! {
                answer = self.client.post(&path, body, None) => answer?,
                _ = signals.next() => {
                    terminal::note("left: the run goes on on the server");
                    return Ok(Exit::Refused);
                }
            };
            run = said.read()?;
        }
        let reason = run.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        terminal::note(format!("run {}: {}{reason}", run.id, run.state.as_str().replace('_', " ")));
        match &run.output {
            _ if self.json => self.print(&said.body)?,
            Some(output) => answer(output)?,
            None => {}
        }
        Ok(run.exit())
    }

    /// Settles a doubt.
    pub(super) async fn resolve(&self, args: ResolveArgs) -> Outcome {
        let (outcome, result) = args.said()?;
        let id = self.find(&args.run).await?;
        let fence_epoch = match args.fence_epoch {
            Some(epoch) => epoch,
            // Of a run without a doubt the server says so.
            None => self.look(id).await?.0.fence.map_or(0, |fence| fence.epoch),
        };
        let outcome = match outcome {
            ResolutionKind::Landed => "landed",
            ResolutionKind::NotLanded => "not_landed",
            ResolutionKind::Abandon => "abandon",
        };
        let mut body = json!({ "call_id": args.call, "fence_epoch": fence_epoch, "outcome": outcome, "note": args.note });
        if let Some(result) = result {
            body["result"] = result;
        }
        let settled = self.client.post(&format!("/runs/{id}/resolve"), &body, None).await?;
        let resolved: Resolved = settled.read()?;
        self.ordered(id, &settled).await?;
        if let (Some(verify), false) = (resolved.verify, self.json) {
            let mut screen = Screen::stdout();
            let (look, text) = verify.words();
            screen.styled(look, text);
            screen.print()?;
        }
        Ok(Exit::Done)
    }
}
