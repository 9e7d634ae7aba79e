//! What there is to see: runs, their records, what waits for a person.

use super::*;
use crate::run::{
    self,
    chain::{self, ChainError, Exported},
};
use futures::StreamExt as _;

/// A run as it stands, with its whole journal.
#[derive(Clone, Debug)]
pub struct Details {
    /// The row.
    pub row: Snapshot,
    /// The journal, where it decodes.
    pub entries: Vec<Entry>,
    /// The journal, folded.
    pub story: Story,
    /// Why the journal or the whole row is not shown, where it does not decode.
    pub unreadable: Option<String>,
    /// Calls like those on its card, where somebody looked for them.
    pub similar: Option<Similar>,
    /// What the live workers lack for it while it is queued, where [`Runtime::unserved`] was asked.
    pub unserved: Option<Unserved>,
}

impl Details {
    /// Takes away the words of tools that are only for who decides about them, where whoever looks does not.
    pub fn withhold(&mut self, decides: impl Fn(&str) -> bool) {
        self.entries.iter_mut().for_each(|entry| run::withhold(&mut entry.body, &decides));
        self.story = Story::of(&self.entries);
    }

    /// What a decision has to name, while the run waits for one.
    pub fn digest(&self) -> Option<&str> {
        self.row.turn.as_ref().filter(|_| self.row.state.is_waiting())?.digest.as_deref()
    }
    /// What running calls ask, as far as the record can be read.
    pub fn questions(&self) -> impl Iterator<Item = StandingQuestion> {
        self.row.questions().filter_map(|(call, question)| {
            let asked = self.story.calls.get(&call.id)?.question.as_ref().filter(|asked| asked.sequence == question)?;
            Some(StandingQuestion {
                call_id: call.id.clone(),
                tool: call.tool.clone(),
                question,
                prompt: asked.prompt.clone(),
                schema: asked.schema.clone(),
                asked_at: asked.at,
            })
        })
    }
    /// What a person is shown before deciding, while the run waits.
    pub fn card(&self) -> Option<&TurnCard> {
        self.story.card.as_ref().filter(|_| self.row.state.is_waiting()).map(|standing| &standing.card)
    }
}

/// What a running call asks a person.
#[derive(Clone, Debug, PartialEq)]
pub struct StandingQuestion {
    /// The call.
    pub call_id: CallId,
    /// Its tool.
    pub tool: String,
    /// What names the question: the number of its entry.
    pub question: u64,
    /// What is asked, in the tool's words.
    pub prompt: String,
    /// JSON Schema of the values.
    pub schema: Value,
    /// Since when.
    pub asked_at: jiff::Timestamp,
}

/// What needs a person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InboxKind {
    /// A write may have happened.
    InDoubt,
    /// Calls wait for a decision.
    Approval,
    /// A running call asks.
    Question,
    /// A call waits for values.
    Input,
    /// One call landed twice.
    Duplicate,
    /// The process that made a call says the opposite of its recorded outcome.
    Contradicted,
    /// The runtime refuses to continue.
    Dead,
}

impl InboxKind {
    /// As in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InDoubt => "in_doubt",
            Self::Approval => "approval",
            Self::Question => "question",
            Self::Input => "input",
            Self::Duplicate => "duplicate",
            Self::Contradicted => "contradicted",
            Self::Dead => "dead",
        }
    }
}

/// What the live workers lack for a queued run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unserved {
    /// There is none.
    #[error("no worker is running on this store")]
    NoWorker,
    /// None has its agent.
    #[error("no live worker serves agent `{0}`")]
    Agent(String),
    /// Those that have its agent have not this tool, which it needs next.
    #[error("no live worker that serves its agent has tool `{0}`")]
    Tool(String),
}

impl Runtime {
    /// A run as it stands. A journal that does not decode is said, and the row is shown all the same.
    ///
    /// # Errors
    /// No such run, no answer, a row that does not decode.
    pub async fn details(&self, id: RunId) -> Result<Details, OrderError> {
        // The journal first: the row is then at least as new as what is shown of the journal.
        let (entries, unreadable) = self.engine.readable_journal(id).await?;
        let (row, unreadable) = match self.engine.store().load(id).await {
            Ok(row) => (row.ok_or(OrderError::NotFound)?, unreadable),
            Err(ReadError::Corrupt { rest: Some(rest), why, .. }) => (*rest, Some(format!("its row does not decode: {why}"))),
            Err(error) => return Err(error.into()),
        };
        let (entries, unreadable) = match (unreadable, self.engine.journal_of(&row, entries.len() as u64).await) {
            (None, Ok(late)) => (entries.into_iter().chain(late).take_while(|e| e.sequence < row.sequence).collect(), None),
            (None, Err(error @ ReadError::Corrupt { .. })) => (entries, Some(error.to_string())),
            (unreadable, _) => (entries, unreadable),
        };
        let story = Story::of(&entries);
        Ok(Details { row, entries, story, unreadable, similar: None, unserved: None })
    }

    /// Compares a run's journal with its chain, and with heads that were exported before; the head as it is now.
    ///
    /// # Errors
    /// No such run, no answer, an entry that does not decode; inside: where journal and chain part.
    pub async fn verify_chain(&self, id: RunId, exported: &[Exported]) -> Result<Result<Exported, ChainError>, OrderError> {
        // The journal after the row: what was added in between is not the row's yet.
        let row = self.engine.load(id).await?;
        let mut entries = self.engine.journal_of(&row, 0).await?;
        entries.retain(|entry| entry.sequence < row.sequence);
        Ok(chain::verify(row.chain.as_ref(), &entries, exported))
    }

    /// Entries of a run from number `from`.
    ///
    /// # Errors
    /// No answer, an entry that does not decode.
    pub async fn events(&self, id: RunId, from: u64) -> Result<Vec<Entry>, OrderError> {
        Ok(self.engine.journal(id, from).await?)
    }

    /// At most `limit` entries of a run from number `from` on.
    ///
    /// # Errors
    /// No answer, an entry that does not decode.
    pub async fn events_page(&self, id: RunId, from: u64, limit: usize) -> Result<Vec<Entry>, ReadError> {
        self.engine.journal_page(id, from, limit).await
    }

    /// Waits until the run has an entry of number `from` or later, and gives what is there. A commit of this process wakes it at
    /// once; one of another process is seen by polling.
    ///
    /// # Errors
    /// No answer, an entry that does not decode.
    pub async fn wait_events(&self, id: RunId, from: u64) -> Result<Vec<Entry>, OrderError> {
        let mut hints = self.engine.subscribe();
        loop {
            let entries = self.engine.journal(id, from).await?;
            if !entries.is_empty() {
                return Ok(entries);
            }
            let hinted = async {
                loop {
                    match hints.recv().await {
                        Ok(hint) if hint.run == id => return,
                        Ok(_) => {}
                        // Lagged: look. Closed cannot be while the engine lives.
                        Err(_) => return,
                    }
                }
            };
            // No hint within the time is no error: polling always follows.
            tokio::time::timeout(Duration::from_millis(250), hinted).await.ok();
        }
    }

    /// Rows, newest first.
    ///
    /// # Errors
    /// No answer.
    pub async fn list(&self, filter: &Filter, before: Option<RunId>, limit: usize) -> Result<Vec<Listed>, OrderError> {
        Ok(self.engine.store().list(filter, before, limit.min(limits::PAGE_MAX)).await?)
    }

    /// What needs a person, most urgent first: doubts, then decisions, then the rest; the longest waiting first.
    ///
    /// # Errors
    /// No answer.
    pub async fn inbox(&self, limit: usize) -> Result<Vec<(InboxKind, Listed)>, OrderError> {
        let in_state = |state: State| Filter { states: vec![state], ..Filter::default() };
        let doubts = Filter { reason: Some(Reason::WriteInDoubt.as_str().to_owned()), ..in_state(State::Dead) };
        let flagged = || Filter { flagged_only: true, ..Filter::default() };
        let mut items = Vec::new();
        for (kind, filter) in [
            (InboxKind::InDoubt, doubts),
            (InboxKind::Approval, in_state(State::WaitingForApproval)),
            (InboxKind::Question, in_state(State::Running)),
            (InboxKind::Input, in_state(State::WaitingForInput)),
            (InboxKind::Duplicate, flagged()),
            (InboxKind::Contradicted, flagged()),
            (InboxKind::Dead, in_state(State::Dead)),
        ] {
            if items.len() >= limit {
                break;
            }
            // Pages come newest first and the longest waiting is wanted: all of a kind is looked at, so that no number of newer
            // ones hides an older one.
            let mut all = self.every(&filter).await?;
            if kind == InboxKind::Question {
                all = self.asking(all).await?;
            }
            all.retain(|row| match kind {
                InboxKind::Dead => row.reason.as_deref() != Some(Reason::WriteInDoubt.as_str()),
                InboxKind::Duplicate => row.duplicates > 0,
                InboxKind::Contradicted => row.contradictions > 0,
                _ => true,
            });
            all.sort_by_key(|row| row.since);
            items.extend(all.into_iter().map(|row| (kind, row)));
        }
        items.truncate(limit);
        Ok(items)
    }

    /// Those of running runs whose calls ask somebody. What runs is as much as processes run at once, so it is looked at run by run; a
    /// row that does not decode asks nobody anything that could be shown.
    async fn asking(&self, running: Vec<Listed>) -> Result<Vec<Listed>, OrderError> {
        let store = self.engine.store();
        let looks = futures::stream::iter(running).map(|listed| async move { (store.load(listed.id).await, listed) });
        let mut looks = looks.buffered(limits::LOOKS_AT_ONCE_MAX);
        let mut asking = Vec::new();
        while let Some((row, listed)) = looks.next().await {
            match row {
                // It was listed before it was looked at.
                Ok(Some(row)) if row.questions().next().is_some() => asking.push(Listed { since: row.since, ..listed }),
                Ok(_) | Err(ReadError::Corrupt { .. }) => {}
                Err(ReadError::Unavailable(unavailable)) => return Err(unavailable.into()),
            }
        }
        Ok(asking)
    }

    /// Every row that a filter lets through.
    async fn every(&self, filter: &Filter) -> Result<Vec<Listed>, OrderError> {
        let mut all: Vec<Listed> = Vec::new();
        loop {
            let page = self.list(filter, all.last().map(|row| row.id), limits::PAGE_MAX).await?;
            let full = page.len() == limits::PAGE_MAX;
            all.extend(page);
            if !full {
                return Ok(all);
            }
        }
    }

    /// One bounded sweep.
    ///
    /// # Errors
    /// No answer.
    pub async fn sweep(&self, limit: usize, dry_run: bool) -> Result<Swept, Unavailable> {
        self.reaper.sweep(limit, dry_run).await
    }

    /// Why nobody goes on with a queued run; none where a live worker serves it, and where it is not queued.
    ///
    /// # Errors
    /// No answer.
    pub async fn unserved(&self, row: &Snapshot) -> Result<Option<Unserved>, Unavailable> {
        if row.state != State::Queued {
            return Ok(None);
        }
        let workers = self.engine.store().workers().await?;
        let mut tool = None;
        for worker in &workers {
            match lacking(row, worker) {
                None => return Ok(None),
                Some(lacks) if worker.agents.contains(&row.agent) => tool = Some(lacks),
                Some(_) => {}
            }
        }
        Ok(Some(match tool {
            _ if workers.is_empty() => Unserved::NoWorker,
            Some(tool) => Unserved::Tool(tool),
            None => Unserved::Agent(row.agent.clone()),
        }))
    }

    /// Finds a run by its id or the end of it.
    ///
    /// # Errors
    /// None, several, no answer.
    pub async fn find(&self, text: &str) -> Result<RunId, OrderError> {
        if let Ok(id) = text.parse() {
            return Ok(id);
        }
        let plain: String = text.chars().filter(|c| *c != '-').collect();
        if plain.len() < 4 || !plain.chars().all(|c| c.is_ascii_hexdigit()) {
            return Err(OrderError::Invalid(format!("`{text}` is neither a run id nor the end of one (4 hex digits or more)")));
        }
        match self.engine.store().find(&plain.to_lowercase()).await?.as_slice() {
            [id] => Ok(*id),
            [] => Err(OrderError::NotFound),
            _ => Err(OrderError::Invalid(format!("several runs end in `{text}`; give more of the id"))),
        }
    }

    /// Tools of this process that write, for messages.
    pub fn write_tools(&self) -> BTreeSet<String> {
        self.registry.now().tools().filter(|t| t.effect().is_write()).map(|t| t.spec().name.clone()).collect()
    }
}
