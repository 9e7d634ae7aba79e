//! A command on the store of this machine: it takes part like any other process. It begins with one bounded sweep, so that what
//! a dead process left is settled before anybody looks.

use super::{
    Context, Exit, Failure,
    context::env,
    identity,
    probe::StopAt,
    setup::{self, Executable, Use},
};
use crate::{
    access::{Access, Denied, Role, Who},
    config::{Config, Origin, StoreAt, may_name},
    keyring,
    mcp::{InForce, catalogue::Catalogue, in_force::NotKnown},
    render::Subject,
    terminal::{self, Safe},
    wire,
};
use jiff::Timestamp;
use leasehold::{
    Details, Live, OrderError, Runtime, RuntimeConfig, StartError, Unserved,
    agent::registry::Authority,
    clock::{SystemClock, WallClock},
    limits,
    run::{Backoff, Policy, Reason, RunId, Snapshot, State},
    store::{Listed, Store, StoreWall, Unavailable, postgres::PostgresStore, sqlite::SqliteStore},
    worker::Probe,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::sync::mpsc::{self, UnboundedReceiver};

/// What a command needs of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// To look and to order.
    Store,
    /// To order what others execute: what is configured, whatever this process lacks for it. Nothing is called.
    Declared,
    /// To execute too: agents, tools, models.
    Agents,
}

/// How long the end of a command waits for other processes to be told.
const HINT_PATIENCE: Duration = Duration::from_secs(1);

/// An open store and this process's part in it.
pub(crate) struct Local<'a> {
    pub(crate) context: &'a Context,
    pub(crate) runtime: Runtime,
    /// Who asks.
    pub(crate) who: Who,
    /// Users, tokens and sessions.
    pub(crate) access: Access,
    pub(crate) clock: Arc<SystemClock>,
    /// Wall time as the store has it.
    pub(crate) wall: Arc<dyn WallClock>,
    /// None: nothing is executed or declared here.
    pub(crate) in_force: Option<Arc<InForce>>,
    /// What this process could execute when it began, and what not.
    pub(crate) executable: Arc<Executable>,
    /// What happens beside the journal.
    pub(crate) live: UnboundedReceiver<Live>,
}

/// Opens the store that the configuration names; a file that nobody placed gets its directory.
async fn open_store(config: &Config, clock: &Arc<SystemClock>) -> Result<Arc<dyn Store>, Failure> {
    let unusable = |why: String| Failure::usage(format!("the store: {why}"));
    match &config.store.value {
        StoreAt::Sqlite(path) => {
            if config.store.origin == Origin::Default && config.file.is_none() {
                setup::make_directory(path)
                    .map_err(|e| Failure::usage(format!("{}: its directory cannot be made: {e}", path.display())))?;
            }
            let store = SqliteStore::open(path, clock.clone()).map_err(|e| unusable(e.to_string()))?;
            Ok(store)
        }
        StoreAt::Postgres { url, .. } => {
            let store = PostgresStore::connect(url).await.map_err(|e| unusable(e.to_string()))?;
            Ok(store)
        }
    }
}

/// Why a command cannot begin without what is in force.
pub(super) fn not_known(error: NotKnown) -> Failure {
    match error {
        NotKnown::Config(error) => error.into(),
        NotKnown::Store(error) => Failure::refused(error.to_string()),
    }
}

impl<'a> Local<'a> {
    /// Opens the store and sweeps once.
    pub(crate) async fn open(context: &'a Context, needs: Needs) -> Result<Self, Failure> {
        let local = Self::open_unswept(context, needs).await?;
        let swept = local.runtime.sweep(limits::LOCAL_SWEEP_MAX, false).await.map_err(not_begun)?;
        for (run, state) in &swept.settled {
            terminal::note(format!(
                "run {run}: its process had ended without a word; it is {} now",
                state.as_str().replace('_', " ")
            ));
        }
        for (run, why) in &swept.failed {
            terminal::note(format!("run {run}: its process had ended without a word, and it cannot be settled: {why}"));
        }
        if let Some(run) = swept.shared.first() {
            return Err(local.shared(*run));
        }
        Ok(local)
    }

    /// The lease of this run is renewed on another clock than this machine's.
    pub(crate) fn shared(&self, run: RunId) -> Failure {
        Failure::usage(format!(
            "{}: the lease of run {run} is renewed by another machine: a SQLite store belongs to one machine; give each its own file",
            self.runtime.store().describe()
        ))
    }

    /// Opens the store.
    pub(crate) async fn open_unswept(context: &'a Context, needs: Needs) -> Result<Self, Failure> {
        let config = &context.config;
        let clock =
            Arc::new(SystemClock::new().map_err(|e| Failure::usage(format!("this machine does not tell its boot id: {e}")))?);
        let store = open_store(config, &clock).await?;
        let keyring = keyring::for_store(config, &store).await?;
        let wall: Arc<dyn WallClock> = StoreWall::of(&store, clock.clone(), &*clock).await.map_err(not_begun)?;
        let access = Access::new(Arc::clone(&store), Arc::clone(&wall));
        let who = identity::who(context, &access).await?;
        let catalogue = Catalogue::new(access.clone(), keyring.clone());
        let in_force = match needs {
            Needs::Store => None,
            Needs::Declared => Some(InForce::new(config, catalogue, Use::Declare).await.map_err(not_known)?),
            Needs::Agents => Some(InForce::new(config, catalogue, Use::Execute).await.map_err(not_known)?),
        };
        let in_force = in_force.map(Arc::new);
        let executable = match &in_force {
            Some(in_force) => in_force.now().await.map_err(not_known)?.1,
            None => Arc::default(),
        };
        let lease = &config.lease;
        let (sender, live) = mpsc::unbounded_channel();
        let runtime = Runtime::new(RuntimeConfig {
            ttl: lease.ttl.value.0,
            policy: Policy {
                max_requeues: lease.max_requeues.value,
                backoff: Backoff {
                    initial: lease.backoff_initial.value.0,
                    factor: lease.backoff_factor.value,
                    max: lease.backoff_max.value.0,
                    jitter: lease.backoff_jitter.value,
                },
            },
            probe: StopAt::from_environment(&env)?.map(|probe| Arc::new(probe) as Arc<dyn Probe>),
            keyring,
            live: Some(sender),
            owners: Some(Arc::new(access.clone())),
            authority: in_force.clone().map(|in_force| in_force as Arc<dyn Authority>),
            wall: Arc::clone(&wall),
            ..RuntimeConfig::new(store, Arc::clone(&executable.registry), clock.clone())
        })
        .map_err(not_begun)?;
        Ok(Self { context, runtime, who, access, clock, wall, in_force, executable, live })
    }

    /// Asks the MCP servers that have not told their tools yet, where an agent with these patterns is offered some, each within its
    /// deadline; says what is not offered for all that.
    pub(crate) async fn meet_servers(&mut self, patterns: &[String]) -> Result<(), Failure> {
        let Some(in_force) = &self.in_force else { return Ok(()) };
        in_force.look_for(patterns).await;
        self.executable = in_force.now().await.map_err(not_known)?.1;
        self.runtime.replace_registry(Arc::clone(&self.executable.registry));
        let of_servers = self.executable.registry.all_withheld().filter(|(tools, _)| tools.ends_with('*'));
        for (tools, why) in of_servers.filter(|(tools, _)| patterns.iter().any(|pattern| may_name(pattern, tools))) {
            terminal::note(format!("{tools}: not offered: {why}"));
        }
        Ok(())
    }

    /// Ends the servers of this process in order.
    pub(crate) async fn end(&self) {
        if let Some(in_force) = &self.in_force {
            in_force.shutdown().await;
        }
    }

    /// Now.
    pub(crate) fn now(&self) -> Timestamp {
        self.wall.now()
    }

    /// At least this role.
    pub(crate) fn needs(&self, role: Role) -> Result<(), Failure> {
        self.who.needs(role).map_err(identity::denied)
    }

    /// The run that a text names: its id, or the end of it. One that is not to be seen is told as if there were none.
    pub(crate) async fn find(&self, text: &str) -> Result<RunId, Failure> {
        let id = self.runtime.find(text).await.map_err(|error| match error {
            OrderError::NotFound => self.no_such_run(text),
            OrderError::Invalid(why) => Failure::usage(why),
            other => order(other),
        })?;
        // Who sees all sees also what does not decode.
        if self.who.role < Role::Operator {
            self.may(text, &self.row(id).await?, Who::sees)?;
        }
        Ok(id)
    }

    /// What the caller's rights say of a run.
    pub(crate) fn may(
        &self,
        text: &str,
        run: &Snapshot,
        rule: impl FnOnce(&Who, &Snapshot) -> Result<(), Denied>,
    ) -> Result<(), Failure> {
        rule(&self.who, run).map_err(|why| match why {
            Denied::NotYours => self.no_such_run(text),
            why => identity::denied(why),
        })
    }

    /// The run's row alone.
    pub(crate) async fn row(&self, id: RunId) -> Result<Snapshot, Failure> {
        let row = self.runtime.store().load(id).await.map_err(|error| order(error.into()))?;
        row.ok_or_else(|| self.no_such_run(&id.to_string()))
    }

    fn no_such_run(&self, text: &str) -> Failure {
        Failure::refused(format!("there is no run `{text}` in {}", self.runtime.store().describe()))
    }

    /// The run with its whole journal.
    pub(crate) async fn details(&self, id: RunId) -> Result<Details, Failure> {
        let mut details = self.runtime.details(id).await.map_err(|error| match error {
            OrderError::NotFound => self.no_such_run(&id.to_string()),
            other => order(other),
        })?;
        // Whoever opens the store sees all of it.
        details.similar = Some(self.runtime.similar(&details, None, |_| true).await.map_err(order)?);
        details.unserved = self.runtime.unserved(&details.row).await.map_err(unavailable)?;
        if let Some(why) = &details.unreadable {
            terminal::note(format!("it cannot be read whole, and what can be is shown: {why}"));
        }
        Ok(details)
    }

    /// What is shown of a run.
    pub(crate) fn subject<'s>(&'s self, details: &'s Details) -> Subject<'s> {
        Subject {
            row: &details.row,
            entries: &details.entries,
            boot: &*self.clock,
            unreadable: details.unreadable.as_deref(),
            similar: details.similar.as_ref(),
            unserved: details.unserved.as_ref(),
            now: self.now(),
            command: &self.context.command,
        }
    }

    /// The run as the API shows it, on one line.
    pub(crate) fn print_run(&self, details: &Details) -> Result<(), Failure> {
        terminal::print_json(&wire::Run::new(&self.subject(details)))?;
        Ok(())
    }

    /// Names the agents of which runs are queued and which no live worker serves.
    pub(crate) async fn warn_unserved_agents(&self, rows: &[Listed]) -> Result<(), Failure> {
        let queued = rows.iter().filter(|row| row.state == State::Queued.as_str());
        let agents: BTreeSet<&str> = queued.map(|row| row.agent.as_str()).collect();
        if agents.is_empty() {
            return Ok(());
        }
        let workers = self.runtime.store().workers().await.map_err(unavailable)?;
        for agent in agents.into_iter().filter(|agent| !workers.iter().any(|w| w.agents.contains(*agent))) {
            terminal::note(format!("runs of agent `{agent}` are queued, and no live worker serves it"));
        }
        Ok(())
    }

    /// Says so where a queued run has nobody to take it.
    pub(crate) async fn warn_unserved(&self, row: &Snapshot) -> Result<(), Failure> {
        // The command ends soon, and a worker should hear of its run at once.
        self.runtime.store().hints_sent(HINT_PATIENCE).await;
        let Some(unserved) = self.runtime.unserved(row).await.map_err(unavailable)? else { return Ok(()) };
        let due = if row.due_at <= self.now() { "due since" } else { "due at" };
        let mend = match &unserved {
            Unserved::NoWorker => format!("start one with `{} worker`", self.context.command),
            Unserved::Agent(_) | Unserved::Tool(_) => "start a worker whose configuration has it".to_owned(),
        };
        terminal::note(format!("run {}: {due} {}, {unserved}: {mend}", row.id, row.due_at));
        Ok(())
    }
}

/// How a command ends that leaves a run in this state.
pub(crate) fn exit_of(row: &Snapshot) -> Exit {
    exit_in(row.state, row.reason)
}

/// The same of a state and its reason.
pub(crate) fn exit_in(state: State, reason: Option<Reason>) -> Exit {
    match (state, reason) {
        (State::Completed | State::Queued | State::Running | State::Cancelling, _) => Exit::Done,
        (State::WaitingForApproval | State::WaitingForInput, _) | (State::Dead, Some(Reason::WriteInDoubt)) => Exit::Waits,
        (State::Failed | State::Cancelled | State::Dead, _) => Exit::Refused,
    }
}

/// How a command ends that executed a run and leaves it in this state: what is neither settled nor waits was not done.
pub(crate) fn exit_of_executed(row: &Snapshot) -> Exit {
    match exit_of(row) {
        Exit::Done if row.state.is_settled() => Exit::Done,
        Exit::Done if row.has_non_idempotent_fence() => Exit::Waits,
        Exit::Done => Exit::Refused,
        exit => exit,
    }
}

/// The store did not answer.
pub(crate) fn unavailable(error: Unavailable) -> Failure {
    Failure::refused(format!("{error}\n  what was asked may or may not have been done: look with `leasehold runs list`"))
}

/// The store did not answer before what was asked was begun.
pub(super) fn not_begun(error: Unavailable) -> Failure {
    Failure::refused(format!("{error}\n  what was asked was not begun"))
}

/// An order was not carried out.
pub(crate) fn order(error: OrderError) -> Failure {
    match error {
        OrderError::Refused(rejection) => {
            Failure::refused(format!("{}: {rejection}{}", rejection.code(), mend(rejection.code())))
        }
        OrderError::InvalidFields(fields) => {
            values_do_not_fit(fields.iter().map(|field| (field.pointer.as_str(), field.why.as_str())))
        }
        OrderError::Unavailable(error) => unavailable(error),
        landed @ OrderError::VerifiedLanded(_) => {
            Failure::refused(format!("verified_landed: {landed}{}", mend("verified_landed")))
        }
        other => Failure::refused(other.to_string()),
    }
}

/// What is wrong with each value.
pub(super) fn values_do_not_fit<'a>(fields: impl Iterator<Item = (&'a str, &'a str)>) -> Failure {
    let lines = fields.map(|(pointer, why)| {
        let place = if pointer.is_empty() { "the values" } else { pointer };
        format!("\n  {place}: {why}")
    });
    Failure::usage(format!("invalid_input: the values do not fit; nothing was changed{}", lines.collect::<String>()))
}

/// What to do about a refusal.
pub(super) fn mend(code: &str) -> &'static str {
    match code {
        "stale_turn" => "\n  nothing was changed; look again with `leasehold runs show` and decide about what waits now",
        "not_waiting" => "\n  nothing waits for a decision; `leasehold runs show` says what happened",
        "stale_doubt" => "\n  nothing was changed; look again with `leasehold runs show`",
        "too_early" => "\n  nothing was changed; look at the far side again after that time",
        "verified_landed" => "\n  nothing was changed; `leasehold resolve .. --landed` takes it for that",
        _ => "\n  nothing was changed",
    }
}

/// A run was not started.
pub(crate) fn start(error: StartError) -> Failure {
    match error {
        StartError::NoAgent(..) | StartError::Invalid(_) => Failure::usage(error.to_string()),
        StartError::Unavailable(error) => Failure::refused(format!(
            "{error}\n  the run may or may not have been started; with --unrecorded a run works without the store: it reads, and every \
             write is refused"
        )),
        other => Failure::refused(other.to_string()),
    }
}

/// A text in one line, safe for a spinner or a prompt.
pub(crate) fn safe(text: &str) -> Safe {
    Safe::line(text)
}
