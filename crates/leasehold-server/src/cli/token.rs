//! `leasehold token`: API tokens. A new one is printed once, on standard output and nowhere else.

use super::{
    Context, Exit, Failure, Outcome,
    identity::refused,
    local::{Local, Needs, unavailable},
    user::{role_word, words},
};
use crate::{
    access::{AccessError, NewToken, Role, ShownToken, Token},
    terminal::{self, Screen},
    wire::Page,
};
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};
use leasehold::{limits::PAGE_MAX, run::PrincipalKind};
use secrecy::ExposeSecret as _;
use serde::Serialize;

/// Verbs on tokens.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it once
    Create(CreateArgs),
    /// List tokens, oldest first
    List,
    /// Revoke a token for good
    Revoke {
        /// The token: its id, or the end of it
        id: String,
    },
}

/// Options of `token create`.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// What it is for; of a machine the machine's name
    name: String,
    /// The user who owns it
    #[arg(long, value_name = "USER")]
    owner: String,
    /// For a program: it acts as a machine of its owner, and releases no write
    #[arg(long)]
    machine: bool,
    /// At most the owner's; left out: the owner's, of a machine at most runner
    #[arg(long, value_name = "R", value_parser = role_word)]
    role: Option<Role>,
    /// Tools that it may release, such as `ledger.*`; may be repeated. Left out: the owner's
    #[arg(long = "tool", value_name = "PATTERN")]
    tools: Vec<String>,
    /// Teams whose runs it sees; may be repeated. Left out: the owner's
    #[arg(long = "team", value_name = "T")]
    teams: Vec<String>,
    /// How long it is taken, such as 30d or 12h; left out: until it is revoked
    #[arg(long, value_name = "TIME", value_parser = lifetime)]
    expires: Option<SignedDuration>,
}

/// A time from now on; a day has 24 hours.
fn lifetime(text: &str) -> Result<SignedDuration, String> {
    let wrong = || format!("`{text}` is not a time: write a number with a unit, such as 12h, 30d or 2w");
    let span: Span = text.trim().parse().map_err(|_| wrong())?;
    let time = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
    if time.is_positive() { Ok(time) } else { Err(format!("`{text}` is over already")) }
}

/// A token with its secret, which is nowhere else.
#[derive(Serialize)]
struct Created<'a> {
    #[serde(flatten)]
    token: ShownToken,
    secret: &'a str,
}

/// Executes a verb.
pub(crate) async fn token(context: &Context, command: TokenCommand) -> Outcome {
    let local = Local::open_unswept(context, Needs::Store).await?;
    match command {
        TokenCommand::Create(args) => create(&local, args).await,
        TokenCommand::List => list(&local).await,
        TokenCommand::Revoke { id } => revoke(&local, &id).await,
    }
}

async fn create(local: &Local<'_>, args: CreateArgs) -> Outcome {
    let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
    let expires_at = args.expires.map(|time| {
        let out_of_range = |_| Failure::usage("--expires is further away than any date");
        local.now().checked_add(time).map_err(out_of_range)
    });
    let new = NewToken {
        name: args.name,
        owner: args.owner,
        kind: if args.machine { PrincipalKind::Machine } else { PrincipalKind::Person },
        role: args.role,
        teams: some(args.teams),
        tools: some(args.tools),
        expires_at: expires_at.transpose()?,
    };
    let (token, secret) = local.access.create_token(&local.who, new).await.map_err(refused)?;
    let shown = ShownToken::from(token);
    terminal::note(format!(
        "token {} `{}` acts as {}, {}, {}; it is shown this once",
        shown.id,
        shown.name,
        shown.principal,
        shown.role,
        ends(shown.expires_at)
    ));
    if local.context.json {
        terminal::print_json(&Created { token: shown, secret: secret.expose_secret() })?;
    } else {
        let mut screen = Screen::stdout();
        screen.command(secret.expose_secret());
        screen.print()?;
    }
    Ok(Exit::Done)
}

fn ends(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "without an end".into(), |at| format!("until {}", crate::render::clock(at)))
}

async fn all(local: &Local<'_>) -> Result<Vec<Token>, Failure> {
    local.who.needs(Role::Admin).map_err(super::identity::denied)?;
    let mut all = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let page = local.access.tokens(after.as_deref(), PAGE_MAX).await.map_err(unavailable)?;
        all.extend(page.items);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    all.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(all)
}

async fn list(local: &Local<'_>) -> Outcome {
    let tokens: Vec<ShownToken> = all(local).await?.into_iter().map(ShownToken::from).collect();
    if local.context.json {
        terminal::print_json(&Page::whole(tokens))?;
        return Ok(Exit::Done);
    }
    if tokens.is_empty() {
        terminal::note(format!("no tokens in {}", local.runtime.store().describe()));
        return Ok(Exit::Done);
    }
    let now = local.now();
    let rows: Vec<Vec<String>> = tokens
        .iter()
        .map(|token| {
            let state = match (token.revoked_at, token.expires_at) {
                (Some(_), _) => "revoked".to_owned(),
                (None, Some(end)) if end <= now => "expired".into(),
                (None, end) => ends(end),
            };
            let used = token.last_used_at.map_or_else(|| "never".into(), crate::render::clock);
            vec![
                token.id.clone(),
                token.name.clone(),
                token.principal.clone(),
                token.owner.clone(),
                token.role.into(),
                words(&token.teams),
                words(&token.tools),
                used,
                state,
            ]
        })
        .collect();
    let mut screen = Screen::stdout();
    screen.table(&["token", "name", "acts as", "owner", "role", "teams", "tools", "used", "state"], &rows);
    screen.print()?;
    Ok(Exit::Done)
}

async fn revoke(local: &Local<'_>, text: &str) -> Outcome {
    let known = all(local).await?;
    let mut found = known.iter().filter(|token| !text.is_empty() && token.id.ends_with(text));
    let id = match (found.next(), found.next()) {
        (Some(token), None) => token.id.clone(),
        (None, _) => return Err(refused(AccessError::NotFound(format!("token `{text}`")))),
        (Some(_), Some(_)) => return Err(Failure::usage(format!("`{text}` is the end of more than one token's id"))),
    };
    let token = local.access.revoke_token(&local.who, &id).await.map_err(refused)?;
    if local.context.json {
        terminal::print_json(&ShownToken::from(token))?;
    } else {
        terminal::note(format!("token {} `{}` is revoked", token.id, token.name));
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_are_spans_that_end_later_than_now() {
        assert_eq!(lifetime("30d").unwrap(), SignedDuration::from_hours(30 * 24));
        assert_eq!(lifetime(" 2w ").unwrap(), SignedDuration::from_hours(14 * 24));
        assert_eq!(lifetime("90m").unwrap(), SignedDuration::from_mins(90));
        for text in ["", "30", "soon", "0s", "-1d", "1d ago", "1 month"] {
            assert!(lifetime(text).is_err(), "{text}");
        }
    }
}
