//! Watches a run: pages of its journal, asked for again and again. A server that is away for a moment is asked again; nothing is
//! missed, because each page begins behind the last entry that was seen.

use super::{
    Remote,
    client::{Trouble, Want},
    shown::{Event, Page, Run},
};
use crate::{
    cli::{
        Exit, Failure,
        watch::{Heard, Signals},
    },
    render::answering,
    terminal,
};
use leasehold::{limits::PAGE_MAX, run::RunId};
use serde_json::json;
use std::time::{Duration, Instant};

/// Between two looks at a run where something happens.
const LOOK: Duration = Duration::from_millis(100);
/// And where nothing does.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// How long a server may be away.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// Looks without an entry before the run itself is asked for again.
const QUIET_LOOKS: u32 = 20;

/// Where a reader of a journal is.
pub(super) struct Place {
    id: RunId,
    last: Option<u64>,
    pause: Duration,
    /// Since the run itself was asked for.
    looks: u32,
    away: Option<Instant>,
}

impl Place {
    /// Of this run.
    pub(super) fn id(&self) -> RunId {
        self.id
    }
    /// Behind this entry; none: at the beginning.
    pub(super) fn after(id: RunId, last: Option<u64>) -> Self {
        Self { id, last, pause: LOOK, looks: QUIET_LOOKS, away: None }
    }
}

impl Remote {
    /// The entries behind that place, all there are now.
    async fn entries(&self, place: &mut Place, said: &mut impl FnMut(&Event) -> Result<(), Failure>) -> Result<bool, Stopped> {
        let mut some = false;
        loop {
            let after = place.last.map(|last| ("after", last.to_string()));
            let query: Vec<_> = [("limit", PAGE_MAX.to_string())].into_iter().chain(after).collect();
            let page: Page<Event> = self.client.get(&format!("/runs/{}/events", place.id), &query, Want::Json).await?.read()?;
            for event in &page.items {
                said(event).map_err(Stopped::Failed)?;
                place.last = Some(event.sequence);
                some = true;
            }
            if page.items.is_empty() || page.next_cursor.is_none() {
                return Ok(some);
            }
        }
    }

    /// The number of the last entry there is.
    pub(super) async fn last_entry(&self, id: RunId) -> Result<Place, Stopped> {
        let mut place = Place::after(id, None);
        self.entries(&mut place, &mut |_| Ok(())).await?;
        Ok(place)
    }

    /// Says each entry once, until `over` of the run; the run then.
    pub(super) async fn until(
        &self,
        place: &mut Place,
        over: impl Fn(&Run) -> bool,
        mut said: impl FnMut(&Event) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        loop {
            match self.glance(place, &over, &mut said).await {
                Ok(true) => return Ok(()),
                Ok(false) => place.away = None,
                Err(Stopped::Trouble(trouble)) if trouble.passes() => {
                    let since = *place.away.get_or_insert_with(Instant::now);
                    if since.elapsed() > AWAY_MAX {
                        let Failure::Said(exit, why) = trouble.into() else { return Err(Failure::Closed) };
                        let more = format!("the run goes on without this command: `{} runs follow {}`", self.command, place.id);
                        return Err(Failure::Said(exit, format!("{why}\n  {more}")));
                    }
                    place.pause = LOOK_MAX;
                }
                Err(stopped) => return Err(stopped.into()),
            }
            tokio::time::sleep(place.pause).await;
        }
    }

    /// One look: whether it is over.
    async fn glance(
        &self,
        place: &mut Place,
        over: &impl Fn(&Run) -> bool,
        said: &mut impl FnMut(&Event) -> Result<(), Failure>,
    ) -> Result<bool, Stopped> {
        // A state changes with an entry, so the run is asked for where there was one.
        let some = self.entries(place, said).await?;
        place.pause = if some { LOOK } else { (place.pause * 2).min(LOOK_MAX) };
        place.looks += 1;
        if !some && place.looks <= QUIET_LOOKS {
            return Ok(false);
        }
        place.looks = 0;
        let (run, _) = self.look(place.id).await?;
        if !over(&run) {
            return Ok(false);
        }
        // What belongs to that state is there to be read.
        self.entries(place, said).await?;
        Ok(true)
    }

    /// Shows the steps of a run until it rests. The first Ctrl-C asks to cancel, the second leaves; so does the request to end, and
    /// the run goes on.
    pub(super) async fn watch(&self, place: &mut Place, signals: &mut Signals) -> Result<(), Failure> {
        let id = place.id;
        let until = self.until(place, Run::rests, |event| {
            terminal::note(format!("  {}", event.words()));
            if let Some(call) = event.asks() {
                let command = answering(&self.command, id, &call, event.sequence);
                terminal::note(format!("  to answer it:  {command} --values '{{..}}'"));
            }
            Ok(())
        });
        tokio::pin!(until);
        let cancel = || async {
            let note = json!({ "note": "Ctrl-C" });
            if let Err(trouble) = self.client.post(&format!("/runs/{id}/cancel"), &note, None).await
                && let Failure::Said(_, why) = trouble.into()
            {
                terminal::note(format!("the cancel was not taken: {why}"));
            }
            std::future::pending::<()>().await
        };
        let cancelling = futures::future::Either::Left(std::future::pending::<()>());
        tokio::pin!(cancelling);
        let mut interrupted = false;
        loop {
            tokio::select! {
                ended = &mut until => return ended,
                () = &mut cancelling => {}
                heard = signals.next() => {
                    if interrupted || heard == Heard::Terminate {
                        terminal::note("left: the run goes on on the server");
                        std::process::exit(i32::from(Exit::Refused.code()));
                    }
                    interrupted = true;
                    terminal::note("cancelling: what is in flight finishes first; press Ctrl-C again to leave at once");
                    cancelling.set(futures::future::Either::Right(cancel()));
                }
            }
        }
    }
}

/// Why a look ended early.
pub(super) enum Stopped {
    Trouble(Trouble),
    Failed(Failure),
}

impl From<Trouble> for Stopped {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

impl From<Stopped> for Failure {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Trouble(trouble) => trouble.into(),
            Stopped::Failed(failure) => failure,
        }
    }
}
