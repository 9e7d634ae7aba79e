//! The right to refresh a login, and what becomes of a refresh that ends too late.

use super::logins::StoreLogins;
use crate::access::{Access, Method, Role, Who};
use leasehold::{
    agent::tool::mcp::{Begun, Login, LoginOf, Logins as _, Refreshed, Ticket},
    clock::ManualClock,
    limits::MCP_REFRESH_LOCK,
    run::Principal,
    seal::Keyring,
    store::memory::MemoryStore,
};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

fn login(token: &str) -> Login {
    let text = format!(
        "{{\"client_id\":\"c\",\"scopes\":[],\"access_token\":\"{token}\",\"refresh_token\":\"r\",\"received_at\":\"2026-01-01T00:00:00Z\"}}"
    );
    Login::from_bytes(text.as_bytes()).unwrap()
}

fn of() -> LoginOf {
    LoginOf { server: "notes".into(), endpoint: "http://127.0.0.1/mcp".into() }
}

fn admin() -> Who {
    Who {
        principal: Principal::person("ada"),
        person: "ada".into(),
        role: Role::Admin,
        teams: BTreeSet::new(),
        tools: Vec::new(),
        method: Method::Local,
    }
}

async fn scene() -> (StoreLogins, Arc<ManualClock>) {
    let clock = ManualClock::new();
    let ring = Keyring::parse(&Keyring::new_line("a").unwrap()).unwrap();
    let access = Access::new(MemoryStore::new(clock.clone()), clock.clone());
    let logins = StoreLogins::new(access, Some(Arc::new(ring)));
    logins.log_in(&admin(), &of(), &login("first")).await.unwrap();
    (logins, clock)
}

async fn token(logins: &StoreLogins) -> Option<Vec<u8>> {
    Some(logins.load(&of()).await.unwrap()?.login.to_bytes())
}

async fn mine(logins: &StoreLogins) -> Ticket {
    match logins.begin_refresh(&of(), &|_| true).await.unwrap() {
        Begun::Mine(_, ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_refresh_that_ends_after_a_logout_or_another_login_keeps_nothing() {
    let (logins, _) = scene().await;
    let ticket = mine(&logins).await;
    logins.log_out(&admin(), "notes").await.unwrap();
    logins.end_refresh(&of(), &ticket, &Refreshed::Login(login("late"))).await.unwrap();
    assert_eq!(token(&logins).await, None);

    logins.log_in(&admin(), &of(), &login("second")).await.unwrap();
    let ticket = mine(&logins).await;
    logins.log_in(&admin(), &of(), &login("third")).await.unwrap();
    logins.end_refresh(&of(), &ticket, &Refreshed::Refused("no".into())).await.unwrap();
    let kept = logins.load(&of()).await.unwrap().unwrap();
    assert_eq!((kept.login.to_bytes(), kept.refused), (login("third").to_bytes(), None));
}

#[tokio::test(start_paused = true)]
async fn the_right_to_refresh_is_one_processs_until_it_ends_or_its_time_is_over() {
    let (logins, clock) = scene().await;
    let first = mine(&logins).await;
    let waits = async || tokio::time::timeout(Duration::from_secs(5), logins.begin_refresh(&of(), &|_| true)).await.is_err();
    assert!(waits().await);
    clock.advance(MCP_REFRESH_LOCK - Duration::from_millis(1));
    assert!(waits().await, "it is the first one's still");
    clock.advance(Duration::from_millis(1));
    let second = mine(&logins).await;
    // Who was late ends nothing of the other.
    logins.end_refresh(&of(), &first, &Refreshed::Login(login("late"))).await.unwrap();
    assert_eq!(token(&logins).await.unwrap(), login("first").to_bytes());
    logins.end_refresh(&of(), &second, &Refreshed::Login(login("next"))).await.unwrap();
    let is_first = |it: &Login| it.to_bytes() == login("first").to_bytes();
    assert!(matches!(logins.begin_refresh(&of(), &is_first).await.unwrap(), Begun::Current(_)));
    assert_eq!(token(&logins).await.unwrap(), login("next").to_bytes());
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_failed_is_the_answer_of_who_waited_and_a_clock_that_was_ahead_holds_nobody() {
    let (logins, clock) = scene().await;
    let first = mine(&logins).await;
    let fails = async {
        tokio::task::yield_now().await;
        clock.advance(Duration::from_millis(1));
        logins.end_refresh(&of(), &first, &Refreshed::Failed("silent".into())).await.unwrap();
    };
    let (waited, ()) = tokio::join!(async { logins.begin_refresh(&of(), &|_| true).await }, fails);
    let Begun::Current(kept) = waited.unwrap() else { panic!("the same token would be sent at once again") };
    assert_eq!((kept.refused, kept.failed.map(|(_, why)| why)), (None, Some("silent".to_owned())));

    // Who comes later tries anew.
    mine(&logins).await;
    clock.step_wall(-3_600_000);
    let at_once = tokio::time::timeout(Duration::from_secs(1), logins.begin_refresh(&of(), &|_| true)).await;
    assert!(matches!(at_once, Ok(Ok(Begun::Mine(..)))), "{at_once:?}");
}

#[tokio::test]
async fn a_login_is_not_given_to_another_place_and_not_kept_without_keys() {
    let (logins, clock) = scene().await;
    let other = LoginOf { endpoint: "http://127.0.0.1/other".into(), ..of() };
    assert!(logins.load(&other).await.unwrap_err().to_string().contains("leasehold mcp login notes"));
    let open = StoreLogins::new(Access::new(MemoryStore::new(clock.clone()), clock), None);
    assert!(open.log_in(&admin(), &of(), &login("open")).await.unwrap_err().to_string().contains("[seal]"));
    assert_eq!(token(&open).await, None);
}
