//! `leasehold mcp login` and `logout`: a person gives this program the right to use a server.

use super::{
    Exit, Failure, Outcome,
    local::Local,
    mcp::{done, unanswered},
};
use crate::{
    api::listen,
    mcp::{InForce, LoggedOut},
    terminal::{self, Screen},
};
use axum::{
    Router,
    extract::State,
    http::{StatusCode, Uri},
    routing::get,
};
use leasehold::{
    agent::tool::mcp::PendingLogin,
    limits::{MCP_LOGIN_WAIT_MAX, MCP_REDIRECT_BYTES_MAX},
};
use std::{
    io::{BufRead as _, Read as _},
    net::Ipv4Addr,
    sync::Arc,
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_util::sync::CancellationToken;

const PATH: &str = "/callback";

/// Options of `mcp login`.
#[derive(Debug, clap::Args)]
pub(crate) struct LoginArgs {
    /// The server
    pub(crate) name: String,
    /// The browser is on another machine: read the address that it is sent back to from the standard input
    #[arg(long)]
    pub(crate) no_browser: bool,
}

/// Logs in.
pub(super) async fn login(local: &Local<'_>, in_force: &InForce, args: &LoginArgs) -> Outcome {
    let port = in_force.redirect_port(&args.name).await.map_err(unanswered)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.map_err(|error| {
        Failure::usage(format!(
            "port {port} of 127.0.0.1: {error}: write another `redirect_port` in [mcp.oauth], or end what is there"
        ))
    })?;
    let redirect = format!("http://{}{PATH}", listener.local_addr()?);
    let pending = Arc::new(in_force.begin_login(&local.who, &args.name, &redirect).await.map_err(unanswered)?);
    let mut screen = Screen::stderr();
    screen.line("open this address in a browser, and log in there:");
    screen.eprint();
    println_url(pending.url())?;
    let answer = match args.no_browser {
        true => {
            drop(listener);
            terminal::note("then paste the whole address that the browser was sent to, however the page looks:");
            pasted().await?
        }
        false => {
            terminal::note(format!("waiting for the browser at {redirect}"));
            tokio::time::timeout(MCP_LOGIN_WAIT_MAX, came_back(listener, &redirect, Arc::clone(&pending))).await.map_err(
                |_| Failure::refused(format!("nobody has logged in within {} minutes", MCP_LOGIN_WAIT_MAX.as_secs() / 60)),
            )?
        }
    };
    let Some(answer) = answer else { return Err(Failure::refused("no address was given, and nobody is logged in")) };
    let login =
        pending.finish(&answer).await.map_err(|error| Failure::refused(format!("mcp server `{}`: {error}", args.name)))?;
    let line = in_force.log_in(&local.who, &args.name, &login).await.map_err(unanswered)?;
    let until = login.valid_until().map(|until| format!(", the token until {until}")).unwrap_or_default();
    let goes_on = if login.can_refresh() { "; it is refreshed by itself" } else { "; then somebody logs in again" };
    let goes_on = if login.valid_until().is_some() { goes_on } else { "" };
    done(&line, local.context.json, &format!("logged in at `{}`{until}{goes_on}", args.name))
}

/// Forgets the login.
pub(super) async fn logout(local: &Local<'_>, in_force: &InForce, name: &str) -> Outcome {
    logged_out(&in_force.log_out(&local.who, name).await.map_err(unanswered)?, local.context.json)
}

/// Prints what a logout came to.
pub(super) fn logged_out(out: &LoggedOut, json: bool) -> Outcome {
    if json {
        terminal::print_json(out)?;
        return Ok(Exit::Done);
    }
    terminal::note(match out.was_in {
        true => "the login is forgotten here, from the next call on; what its server knows of it, only its server can end",
        false => "nobody was logged in",
    });
    Ok(Exit::Done)
}

fn println_url(url: &str) -> std::io::Result<()> {
    let mut screen = Screen::stdout();
    screen.line(url);
    screen.print()
}

/// A line of the standard input.
async fn pasted() -> Result<Option<String>, Failure> {
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().take(MCP_REDIRECT_BYTES_MAX as u64).read_line(&mut line)?;
        Ok::<_, std::io::Error>(line.trim().to_owned())
    });
    let line = read.await.map_err(|e| Failure::refused(format!("the standard input: {e}")))??;
    Ok(Some(line).filter(|line| !line.is_empty()))
}

type Came = (Arc<PendingLogin>, String, mpsc::Sender<String>);

/// The address that the browser was sent back to. What is no answer to this login is told so, and the wait goes on.
async fn came_back(listener: TcpListener, redirect: &str, pending: Arc<PendingLogin>) -> Option<String> {
    let (sender, mut receiver) = mpsc::channel(1);
    let origin = redirect.trim_end_matches(PATH).to_owned();
    let router = Router::new().route(PATH, get(callback)).with_state((pending, origin, sender));
    let ending = CancellationToken::new();
    let serving = tokio::spawn(listen::serve(listener, router, ending.clone()));
    let answer = receiver.recv().await;
    // The browser gets its answer still.
    ending.cancel();
    serving.await.ok();
    answer
}

async fn callback(State((pending, origin, sender)): State<Came>, uri: Uri) -> (StatusCode, &'static str) {
    let address = format!("{origin}{uri}");
    if address.len() > MCP_REDIRECT_BYTES_MAX || !pending.is_answer(&address) {
        return (StatusCode::BAD_REQUEST, "This is not the answer to the login that waits here.\n");
    }
    // A second one comes too late to be read.
    sender.try_send(address).ok();
    (StatusCode::OK, "leasehold has the answer. Look at the terminal; this page can be closed.\n")
}
