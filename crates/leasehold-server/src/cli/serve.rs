//! `leasehold serve`: the API, the worker pool and the reaper in one process.
//!
//! At its end nothing more is accepted, streams end, whoever waits gets the run as it is, and segments have a grace period to get
//! to their next step. What only this process knows of a write is on record before it ends.

use super::{
    Context, Exit, Failure, Outcome,
    identity::{bootstrap, refused},
    local::{Local, Needs, not_known},
    operate::GRACE,
    setup,
    watch::{Heard, Late, Signals, late_outcomes, untold},
};
use crate::{
    access::{ADMIN, Access, Who},
    api::{App, Parts, listen},
    config::ConfigError,
    mcp::InForce,
    terminal,
};
use leasehold::{Runtime, Worked, worker::pool::PoolConfig};
use std::{future::Future, sync::Arc};
use tokio::{net::TcpListener, sync::mpsc::unbounded_channel, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Executions of requests have this long for handing back after the grace period, as those of the pool have.
const HAND_BACK: std::time::Duration = std::time::Duration::from_secs(5);

/// Serves until it is asked to end.
pub(crate) async fn serve(context: &Context, mut signals: Signals) -> Outcome {
    let config = &context.config;
    config.server.may_listen(&config.listen)?;
    let needs = if config.execute.value { Needs::Agents } else { Needs::Declared };
    let mut local = tokio::select! {
        opened = Local::open(context, needs) => opened?,
        _ = signals.next() => {
            terminal::note("ended before it began to serve");
            return Ok(Exit::Done);
        }
    };
    let listener = TcpListener::bind(config.listen.value).await.map_err(|error| {
        let what = format!("[server] listen = \"{}\": {error}", config.listen.value);
        ConfigError::new(config.listen.origin.to_string(), what).mend("is another process there? choose another port")
    })?;
    let address = listener.local_addr()?;
    let access = Arc::new(Access::new(Arc::clone(local.runtime.store()), Arc::clone(&local.wall)));
    first_start(context, &access, &config.server.address(address)).await?;
    let Some(in_force) = local.in_force.clone() else { return Err(Failure::refused("nothing is declared to serve")) };
    // What is only declared must not be called: who does not execute asks with what it has.
    let (asking, asks) = match config.execute.value {
        true => (local.runtime.clone(), Arc::clone(&in_force)),
        false => {
            let catalogue = in_force.catalogue().clone();
            let asks = Arc::new(InForce::new(config, catalogue, setup::Use::Execute).await.map_err(not_known)?);
            let (_, executable) = asks.now().await.map_err(not_known)?;
            (local.runtime.with_registry(Arc::clone(&executable.registry)), asks)
        }
    };
    let mut tending = vec![tokio::spawn(Arc::clone(&in_force).tend(vec![local.runtime.clone()]))];
    if !Arc::ptr_eq(&in_force, &asks) {
        tending.push(tokio::spawn(Arc::clone(&asks).tend(vec![asking.clone()])));
    }
    let app = Arc::new(App::new(Parts {
        runtime: local.runtime.clone(),
        asking,
        live: std::mem::replace(&mut local.live, unbounded_channel().1),
        clock: Arc::clone(&local.clock),
        wall: Arc::clone(&local.wall),
        access: Arc::clone(&access) as _,
        in_force: Arc::clone(&in_force),
        asks: Arc::clone(&asks),
        // Whoever reads it is elsewhere, where this configuration is not.
        command: "leasehold".into(),
        execute: config.execute.value,
        server: config.server.clone(),
        listen: address,
    }));
    for (agent, why) in &local.executable.missing_agents {
        terminal::note(format!("agent `{agent}` is not served here: {why}"));
    }
    let ending = CancellationToken::new();
    let texts = {
        let app = Arc::clone(&app);
        tokio::spawn(async move { app.texts().forward().await })
    };
    let forget = tokio::spawn(forget(access));
    let webhook = crate::webhook::start(&context.config, &local.runtime, Arc::clone(&local.wall))?;
    let mut pool = config.execute.value.then(|| work(context, &local.runtime));
    let http = tokio::spawn(listen::serve(listener, app.router(), ending.clone()));
    terminal::note(format!("listening on http://{address}"));
    let broke = tokio::select! {
        _ = signals.next() => None,
        ended = ended(&mut pool) => Some(ended),
    };
    terminal::note("ending: what is in flight finishes, the rest is handed back; Ctrl-C again leaves at once");
    app.end();
    ending.cancel();
    local.runtime.stop();
    let finishing = async {
        if broke.is_none() && pool.is_some() {
            ended(&mut pool).await.ok();
        }
        if tokio::time::timeout(GRACE, app.done()).await.is_err() {
            local.runtime.leave();
            tokio::time::timeout(HAND_BACK, app.done()).await.ok();
        }
        http.await.ok();
    };
    or_leave(finishing, &mut signals).await;
    texts.abort();
    forget.abort();
    tending.iter().for_each(JoinHandle::abort);
    asks.shutdown().await;
    let late = late_outcomes(&local.runtime, &mut signals).await;
    if let Some(webhook) = webhook {
        webhook.end().await;
    }
    match broke {
        None if late == Late::Lost => Err(untold()),
        None => Ok(Exit::Done),
        Some(Ok(Worked { shared: Some(run), .. })) => Err(local.shared(run)),
        Some(Ok(_)) => Err(Failure::refused("the workers ended by themselves")),
        Some(Err(error)) => Err(Failure::refused(format!("the workers broke: {error}"))),
    }
}

/// Makes the first administrator where there is none, and says how to come in.
async fn first_start(context: &Context, access: &Access, server: &str) -> Result<(), Failure> {
    let owner = Who::local(Context::principal());
    let made = bootstrap(context, access, &owner).await?;
    if let Some(file) = &made.token_file {
        terminal::note(format!("made the user `{ADMIN}`; its token is in {}", file.display()));
        let link = access.login_link(&owner, ADMIN).await.map_err(refused)?;
        terminal::note(format!("log in once, until {}: {}", link.ends_at, link.url(server)));
    }
    Ok(())
}

/// Removes what has expired, now and then; what could not be removed is met again.
async fn forget(access: Arc<Access>) {
    let mut hours = tokio::time::interval(std::time::Duration::from_secs(3600));
    loop {
        hours.tick().await;
        if let Err(error) = access.forget_expired().await {
            tracing::warn!("what has expired was not removed: {error}");
        }
    }
}

fn work(context: &Context, runtime: &Runtime) -> JoinHandle<Worked> {
    let pool = PoolConfig {
        concurrency: usize::try_from(context.config.concurrency.value).unwrap_or(usize::MAX),
        sweep_interval: context.config.lease.sweep_interval.value.0,
        grace: GRACE,
        ..PoolConfig::default()
    };
    let runtime = runtime.clone();
    tokio::spawn(async move { runtime.work(pool).await })
}

/// How the pool ended; never where there is none.
async fn ended(pool: &mut Option<JoinHandle<Worked>>) -> Result<Worked, tokio::task::JoinError> {
    match pool {
        Some(pool) => pool.await,
        None => std::future::pending().await,
    }
}

/// Until it is done, or Ctrl-C says that nobody wants to wait.
async fn or_leave(finishing: impl Future<Output = ()>, signals: &mut Signals) {
    tokio::pin!(finishing);
    loop {
        tokio::select! {
            () = &mut finishing => return,
            heard = signals.next() => if heard == Heard::Interrupt {
                terminal::note("left: whatever was in flight is settled by the sweep");
                std::process::exit(i32::from(Exit::Refused.code()));
            },
        }
    }
}
