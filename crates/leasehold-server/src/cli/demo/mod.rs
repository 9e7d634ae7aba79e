//! `leasehold demo`: the whole promise on one screen, with real processes on a real store in a throw-away directory.
//!
//! Every sentence that claims something is checked against the store, the site or the ledger before it is printed, and the demo
//! ends with 0 only if all of them held. Nothing of the user's own configuration, store or keys is read.

mod far_side;
mod stage;

use super::{Exit, Failure, Outcome, watch::Signals};
use crate::terminal;
use far_side::Ledger;
use leasehold::agent::tool::site::Site;
use serde_json::Value;
use stage::{Stage, text_at};

/// Options of `demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Answer every question with yes
    #[arg(long, short)]
    yes: bool,
}

/// Plays both scenes.
pub(crate) async fn demo(args: &DemoArgs) -> Outcome {
    if !args.yes && !terminal::can_ask() {
        return Err(Failure::usage("the demo asks at two places, and nobody can be asked here: add --yes"));
    }
    // Dropping the play ends its processes and removes its directory.
    let mut signals = Signals::listen()?;
    tokio::select! {
        played = play(args) => played,
        _ = signals.next() => {
            terminal::note("");
            terminal::note("left: the demo's directory is removed");
            Ok(Exit::Refused)
        }
    }
}

async fn play(args: &DemoArgs) -> Outcome {
    let ledger = Ledger::open().await?;
    let mut stage = Stage::set(args.yes, ledger.port())?;
    let site = Site::open(stage.site()).map_err(|e| Failure::refused(e.to_string()))?;
    stage.say(&format!(
        "A scripted model, a small site and a ledger, no key and no network. Everything is in {}.",
        stage.directory().display()
    ));
    approval(&mut stage, &site).await?;
    crash(&mut stage, &ledger).await?;
    stage.end()
}

async fn description(site: &Site) -> Result<String, Failure> {
    let page = site.page("berths").await.map_err(|e| Failure::refused(e.to_string()))?;
    Ok(page.map(|page| page.field("description").to_owned()).unwrap_or_default())
}

const NEW_DESCRIPTION: &str = "Forty berths, water and power on the northern pier";

/// A write waits for a person, and what the person saw is what runs.
async fn approval(stage: &mut Stage, site: &Site) -> Result<(), Failure> {
    stage.head("1. A write waits for a person");
    let asked = stage.leasehold(&["run", "--agent", "editor", "--json", "Bring the berths page up to date"]).await?;
    stage.check("the run stopped before the write: exit 3, a person has to decide", asked.exit == Some(3))?;
    let run = asked.json()?;
    let id = text_at(&run, "/id");
    let digest = text_at(&run, "/waiting/turn_digest");
    let preview = text_at(&run, "/waiting/calls/0/preview");
    stage.check("its process has ended and the run waits in the store", text_at(&run, "/state") == "waiting_for_approval")?;
    stage.check(
        "the preview names both texts, before -> after",
        preview.contains("old text") && preview.contains(NEW_DESCRIPTION),
    )?;
    stage.check("nothing was written", description(site).await? == "old text")?;
    if !stage.ask("Approve exactly this?").await? {
        let denied = stage.leasehold(&["deny", &id, "--digest", &digest, "--reason", "not today", "--json"]).await?;
        stage.check("the denial was told to the model, and the run went on", denied.exit == Some(0))?;
        return stage.check("nothing was written", description(site).await? == "old text");
    }
    let approved = stage.leasehold(&["approve", &id, "--digest", &digest, "--json"]).await?;
    stage.check("another process took the decision and went on: exit 0", approved.exit == Some(0))?;
    let run = approved.json()?;
    stage.check("the run is completed", text_at(&run, "/state") == "completed")?;
    stage.check("the page has the approved text", description(site).await? == NEW_DESCRIPTION)?;
    let events = stage.events(&id).await?;
    let stamped: Vec<&Value> = events.iter().filter(|e| text_at(e, "/kind") == "write_stamped").collect();
    stage.check(
        "the write was stamped on the row before it ran, under the lease of the approving process",
        stamped.len() == 1 && text_at(stamped[0], "/holder").starts_with("resume:"),
    )?;
    stage.check("and the stamp went away with the recorded outcome", run.pointer("/fence") == Some(&Value::Null))?;
    let again = stage.leasehold(&["approve", &id, "--digest", &digest, "--json"]).await?;
    let events_after = stage.events(&id).await?;
    stage.check("the same approval again changes nothing", again.exit == Some(0) && events_after.len() == events.len())
}

/// A process dies in the middle of a write that must not be repeated.
async fn crash(stage: &mut Stage, ledger: &Ledger) -> Result<(), Failure> {
    stage.head("2. A process dies in the middle of a write that must not be repeated");
    let queued = stage.leasehold(&["run", "--agent", "clerk", "--queue", "--json", "Note that pier 2 is repaired"]).await?;
    let id = text_at(&queued.json()?, "/id");
    stage.check("the run is queued for a worker", queued.exit == Some(0))?;
    stage.say("A worker takes it. It is killed (SIGKILL) when the ledger has answered and the outcome is not recorded yet.");
    stage.kill_worker_at("after_return", &id).await?;
    let entries = ledger.entries();
    stage.check("the ledger has one line: the write happened", entries.len() == 1)?;
    let killed = stage.quiet(&["runs", "show", &id, "--json"]).await?.json()?;
    let key = text_at(&killed, "/fence/idempotency_key");
    stage
        .check("the store knows which write was in flight, and its key", text_at(&killed, "/fence/tool") == "ledger.append")?;
    let sent = entries.first().cloned().unwrap_or_default();
    stage.check(
        "the ledger got that key, the run's id and its epoch with the write",
        sent.key == key
            && sent.run == id
            && sent.epoch == killed.pointer("/fence/epoch").map(Value::to_string).unwrap_or_default(),
    )?;
    stage.say(
        "Its lease runs out. Whatever process looks next settles the run: it is not repeated, and it is not called failed.",
    );
    let run = stage.until_dead(&id).await?;
    stage.check("the run is in doubt", text_at(&run, "/reason") == "write_in_doubt")?;
    let worker = stage.leasehold(&["worker", "--once"]).await?;
    stage.check("another worker does not take it", worker.exit == Some(0) && ledger.entries().len() == 1)?;
    let inbox = stage.quiet(&["inbox", "--json"]).await?.json()?;
    let item = inbox.pointer("/items/0").cloned().unwrap_or_default();
    stage.leasehold(&["inbox"]).await?;
    stage.check("the inbox lists it as in doubt", text_at(&item, "/kind") == "in_doubt" && text_at(&item, "/run/id") == id)?;
    let shown = stage.leasehold(&["runs", "show", &id]).await?;
    stage.check(
        "one screen says what is known and how to settle it",
        shown.out.contains(&key) && shown.out.contains("--landed"),
    )?;
    stage.say("A person looks at the ledger: the line with that key is there. So it happened.");
    let call = text_at(&run, "/fence/call_id");
    let epoch = run.pointer("/fence/epoch").map(Value::to_string).unwrap_or_default();
    if !stage.ask("Say that it landed?").await? {
        stage.say("Then it stays in doubt, listed until somebody says what is true.");
        return Ok(());
    }
    let said =
        ["resolve", &id, "--call", &call, "--fence-epoch", &epoch, "--landed", "{\"line\":1}", "--note", "seen in the ledger"];
    let resolved = stage.leasehold(&said).await?;
    stage.check("the statement was taken, and the run is queued to go on", resolved.exit == Some(0))?;
    stage.leasehold(&["worker", "--once"]).await?;
    let run = stage.quiet(&["runs", "show", &id, "--json"]).await?.json()?;
    stage.check("the run is completed", text_at(&run, "/state") == "completed")?;
    let events = stage.events(&id).await?;
    let stamps = events.iter().filter(|e| matches!(text_at(e, "/kind").as_str(), "write_stamped" | "write_restamped")).count();
    stage.check("the write was started once, and the ledger still has one line", stamps == 1 && ledger.entries().len() == 1)
}
