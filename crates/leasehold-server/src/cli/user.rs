//! `leasehold user`: people who may use the server, and one-time links that log them in.

use super::{
    Context, Exit, Failure, Outcome,
    identity::{denied, refused},
    local::{Local, Needs, unavailable},
};
use crate::{
    access::{Rights, Role, ShownUser, User, UserChange},
    terminal::{self, Screen},
    wire::Page,
};
use leasehold::limits::PAGE_MAX;
use serde_json::json;
use strum::IntoEnumIterator as _;

/// Verbs on users.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum UserCommand {
    /// Add a user
    Add(AddArgs),
    /// List users by name
    List,
    /// Change a user; what is left out stays
    Set(SetArgs),
    /// Let a user and its tokens in no more, and end its sessions
    Disable {
        /// The user
        name: String,
    },
    /// Print a link that logs a user in once, within ten minutes
    Login {
        /// The user
        name: String,
    },
    /// End all sessions of a user's browsers, and its login links that nobody has used
    Logout {
        /// The user
        name: String,
    },
}

/// Options of `user add`.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// Its name, for ever: 1 to 64 characters of a to z, 0 to 9 and - _ . @
    name: String,
    /// viewer, runner, approver, operator or admin
    #[arg(long, value_name = "R", value_parser = role_word)]
    role: Role,
    /// A team whose runs it sees; may be repeated
    #[arg(long = "team", value_name = "T")]
    teams: Vec<String>,
    /// Tools that it may release, such as `ledger.*`; may be repeated. An admin has all
    #[arg(long = "tool", value_name = "PATTERN")]
    tools: Vec<String>,
}

/// Options of `user set`.
#[derive(Debug, clap::Args)]
pub(crate) struct SetArgs {
    /// The user
    name: String,
    /// Another role
    #[arg(long, value_name = "R", value_parser = role_word)]
    role: Option<Role>,
    /// These teams instead of those it has; may be repeated
    #[arg(long = "team", value_name = "T")]
    teams: Vec<String>,
    /// No teams
    #[arg(long, conflicts_with = "teams")]
    no_teams: bool,
    /// These tools instead of those it has; may be repeated
    #[arg(long = "tool", value_name = "PATTERN")]
    tools: Vec<String>,
    /// No tools
    #[arg(long, conflicts_with = "tools")]
    no_tools: bool,
    /// Let it in again
    #[arg(long)]
    enable: bool,
}

pub(super) fn role_word(word: &str) -> Result<Role, String> {
    word.parse().map_err(|_| {
        let all: Vec<&'static str> = Role::iter().map(Into::into).collect();
        format!("there are: {}", all.join(", "))
    })
}

/// A list in a cell.
pub(super) fn words<'a>(list: impl IntoIterator<Item = &'a String>) -> String {
    list.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Executes a verb.
pub(crate) async fn user(context: &Context, command: UserCommand) -> Outcome {
    let local = Local::open_unswept(context, Needs::Store).await?;
    let (access, who) = (&local.access, &local.who);
    match command {
        UserCommand::Add(args) => {
            let rights = Rights::checked(args.role, &args.teams, &args.tools).map_err(refused)?;
            let user = access.add_user(who, &args.name, rights).await.map_err(refused)?;
            done(&local, user, "is there now")
        }
        UserCommand::List => list(&local).await,
        UserCommand::Set(args) => {
            let list = |list: Vec<String>, none: bool| (none || !list.is_empty()).then_some(list);
            let change = UserChange {
                role: args.role,
                teams: list(args.teams, args.no_teams),
                tools: list(args.tools, args.no_tools),
                disabled: args.enable.then_some(false),
            };
            if change == UserChange::default() {
                return Err(Failure::usage("nothing is to be changed; name a role, teams or tools, or --enable"));
            }
            let user = access.change_user(who, &args.name, &change).await.map_err(refused)?;
            done(&local, user, "is changed")
        }
        UserCommand::Disable { name } => {
            let change = UserChange { disabled: Some(true), ..UserChange::default() };
            let user = access.change_user(who, &name, &change).await.map_err(refused)?;
            done(&local, user, "is disabled, and so are its tokens")
        }
        UserCommand::Login { name } => login(&local, &name).await,
        UserCommand::Logout { name } => {
            access.revoke_sessions(who, &name).await.map_err(refused)?;
            let user = access.user(&name).await.map_err(unavailable)?;
            user.map_or(Ok(Exit::Done), |user| done(&local, user, "is signed in nowhere any more"))
        }
    }
}

fn done(local: &Local<'_>, user: User, what: &str) -> Outcome {
    if local.context.json {
        terminal::print_json(&ShownUser::from(user))?;
    } else {
        terminal::note(format!("user `{}` {what}", user.name));
    }
    Ok(Exit::Done)
}

async fn list(local: &Local<'_>) -> Outcome {
    local.who.needs(Role::Admin).map_err(denied)?;
    let mut users: Vec<ShownUser> = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = local.access.users(after.as_deref(), PAGE_MAX).await.map_err(unavailable)?;
        users.extend(page.items.into_iter().map(ShownUser::from));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if local.context.json {
        terminal::print_json(&Page::whole(users))?;
        return Ok(Exit::Done);
    }
    if users.is_empty() {
        terminal::note(format!("no users in {}", local.runtime.store().describe()));
        return Ok(Exit::Done);
    }
    let rows: Vec<Vec<String>> = users
        .iter()
        .map(|user| {
            let state = if user.disabled { "disabled" } else { "enabled" };
            let (teams, tools) = (words(&user.teams), words(&user.tools));
            vec![user.name.clone(), user.role.into(), teams, tools, state.into(), crate::render::clock(user.created_at)]
        })
        .collect();
    let mut screen = Screen::stdout();
    screen.table(&["user", "role", "teams", "tools", "state", "created"], &rows);
    screen.print()?;
    Ok(Exit::Done)
}

async fn login(local: &Local<'_>, name: &str) -> Outcome {
    let link = local.access.login_link(&local.who, name).await.map_err(refused)?;
    let config = &local.context.config;
    let url = link.url(&config.server.address(config.listen.value));
    terminal::note(format!("logs `{name}` in once, until {}", crate::render::clock(link.ends_at)));
    if local.context.json {
        terminal::print_json(&json!({ "url": url, "expires_at": link.ends_at }))?;
    } else {
        let mut screen = Screen::stdout();
        screen.command(url);
        screen.print()?;
    }
    Ok(Exit::Done)
}
