//! Users, tokens, sessions and links on a store in memory with a clock that is moved.

mod first;
mod stores;

use super::*;
use jiff::SignedDuration;
use leasehold::{
    clock::{ManualClock, WallClock as _},
    limits::ACCESS_ATTEMPTS_MAX,
    store::{Record, Store, memory::MemoryStore},
};
use leasehold_testkit::{FaultyStore, How, Op};
use secrecy::{ExposeSecret as _, SecretString};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

struct Scene {
    clock: Arc<ManualClock>,
    store: Arc<FaultyStore>,
    access: Access,
    root: Who,
}

const MINUTE: Duration = Duration::from_secs(60);

impl Scene {
    fn new() -> Self {
        let clock = ManualClock::new();
        let store = FaultyStore::new(MemoryStore::new(clock.clone()));
        let access = Access::new(store.clone(), clock.clone());
        Self { clock, store, access, root: Who::local(Principal::person("local:root")) }
    }

    async fn user(&self, name: &str, role: Role, teams: &[&str], tools: &[&str]) -> User {
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let rights = Rights::checked(role, &words(teams), &words(tools)).unwrap();
        self.access.add_user(&self.root, name, rights).await.unwrap()
    }

    async fn token(&self, new: NewToken) -> (Token, SecretString) {
        self.access.create_token(&self.root, new).await.unwrap()
    }

    async fn shows(&self, secret: &SecretString) -> Option<Who> {
        self.access.bearer(secret.expose_secret()).await.unwrap()
    }

    async fn has(&self, session: &NewSession) -> Option<Who> {
        self.access.session(session.secret.expose_secret()).await.unwrap()
    }

    async fn linked(&self, user: &str) -> NewSession {
        let link = self.access.login_link(&self.root, user).await.unwrap();
        self.access.consume_link(link.secret.expose_secret(), None).await.unwrap().unwrap()
    }

    async fn change(&self, name: &str, change: UserChange) -> User {
        self.access.change_user(&self.root, name, &change).await.unwrap()
    }

    async fn disable(&self, name: &str, disabled: bool) {
        self.change(name, UserChange { disabled: Some(disabled), ..UserChange::default() }).await;
    }

    /// What and about whom, oldest first.
    async fn audit(&self) -> Vec<(&'static str, String)> {
        let entries = self.access.audit(None, 999).await.unwrap().items;
        entries.into_iter().map(|(_, entry)| (entry.what.into(), entry.about)).collect()
    }

    async fn everything(&self) -> Vec<Record> {
        let mut all = Vec::new();
        for kind in ["user", "token", "machine", "session", "login_link", "audit"] {
            all.extend(self.store.records(kind, None, 999).await.unwrap());
        }
        all
    }
}

fn new(name: &str, owner: &str) -> NewToken {
    let (name, owner) = (name.to_owned(), owner.to_owned());
    NewToken { name, owner, kind: PrincipalKind::Person, role: None, teams: None, tools: None, expires_at: None }
}

fn machine(name: &str, owner: &str) -> NewToken {
    NewToken { kind: PrincipalKind::Machine, ..new(name, owner) }
}

fn why<T: std::fmt::Debug>(result: Result<T, AccessError>) -> &'static str {
    result.unwrap_err().code()
}

#[tokio::test]
async fn a_token_of_a_person_acts_as_its_owner_and_one_of_a_machine_as_the_machine_of_its_owner() {
    let scene = Scene::new();
    scene.user("ada", Role::Approver, &["harbour"], &["ledger.*"]).await;
    let (token, secret) = scene.token(new("laptop", "ada")).await;
    let who = scene.shows(&secret).await.unwrap();
    assert_eq!((who.principal, who.person.as_str()), (Principal::person("user:ada"), "user:ada"));
    assert_eq!((who.role, who.tools, who.method), (Role::Approver, vec!["ledger.*".to_owned()], Method::Token(token.id)));
    let (_, secret) = scene.token(machine("nightly", "ada")).await;
    let who = scene.shows(&secret).await.unwrap();
    assert_eq!((who.principal, who.person.as_str()), (Principal::machine("machine:nightly"), "user:ada"));
    assert_eq!(who.role, Role::Runner, "a machine starts runs unless more is asked for");
}

#[tokio::test]
async fn unknown_expired_revoked_disabled_and_orphaned_tokens_get_the_same_answer() {
    let scene = Scene::new();
    scene.user("ada", Role::Runner, &[], &[]).await;
    let end = scene.clock.now().checked_add(SignedDuration::from_hours(1)).unwrap();
    let (_, brief) = scene.token(NewToken { expires_at: Some(end), ..new("brief", "ada") }).await;
    let (revoked, gone) = scene.token(new("gone", "ada")).await;
    let (_, stays) = scene.token(new("stays", "ada")).await;
    scene.access.revoke_token(&scene.root, &revoked.id).await.unwrap();
    assert!(scene.shows(&brief).await.is_some());
    scene.clock.advance(Duration::from_secs(3600) - Duration::from_millis(1));
    assert!(scene.shows(&brief).await.is_some());
    scene.clock.advance(Duration::from_millis(1));
    for text in
        [brief.expose_secret(), gone.expose_secret(), "lh_unknown", "", &"x".repeat(100_000), &stays.expose_secret()[1..]]
    {
        assert_eq!(scene.access.bearer(text).await.unwrap(), None);
    }
    scene.disable("ada", true).await;
    assert_eq!(scene.shows(&stays).await, None);
    scene.disable("ada", false).await;
    assert!(scene.shows(&stays).await.is_some());
    let ada = scene.store.record("user", "ada").await.unwrap().unwrap();
    assert!(scene.store.remove_record("user", "ada", ada.version).await.unwrap());
    assert_eq!(scene.shows(&stays).await, None);
}

#[tokio::test]
async fn what_an_owner_loses_its_token_loses_at_once_and_gains_nothing() {
    let scene = Scene::new();
    scene.user("ada", Role::Operator, &["a", "b"], &["ledger.*"]).await;
    let (_, secret) = scene.token(NewToken { role: Some(Role::Approver), ..new("t", "ada") }).await;
    let rights = |who: Who| (who.role, who.teams.into_iter().collect::<Vec<_>>(), who.tools);
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let full = (Role::Approver, words(&["a", "b"]), words(&["ledger.*"]));
    assert_eq!(rights(scene.shows(&secret).await.unwrap()), full);
    let change = UserChange {
        role: Some(Role::Runner),
        teams: Some(words(&["b", "c"])),
        tools: Some(words(&["ledger.append", "site.*"])),
        disabled: None,
    };
    scene.change("ada", change).await;
    assert_eq!(rights(scene.shows(&secret).await.unwrap()), (Role::Runner, words(&["b"]), words(&["ledger.append"])));
    scene.change("ada", UserChange { role: Some(Role::Admin), ..UserChange::default() }).await;
    assert_eq!(rights(scene.shows(&secret).await.unwrap()), (Role::Approver, words(&["b"]), words(&["ledger.*"])));
    // An admin's tools go with the role.
    scene.change("ada", UserChange { role: Some(Role::Approver), ..UserChange::default() }).await;
    assert_eq!(rights(scene.shows(&secret).await.unwrap()).2, words(&[]));
}

#[tokio::test]
async fn only_an_admin_changes_users_and_tokens_and_the_others_change_nothing() {
    let scene = Scene::new();
    scene.user("ada", Role::Operator, &[], &[]).await;
    scene.user("bob", Role::Runner, &[], &[]).await;
    let (own, secret) = scene.token(new("t", "ada")).await;
    let (other, _) = scene.token(new("t", "bob")).await;
    let ada = scene.shows(&secret).await.unwrap();
    let before = scene.everything().await;
    let rights = Rights::checked(Role::Viewer, &[], &[]).unwrap();
    let access = &scene.access;
    assert_eq!(why(access.create_token(&ada, new("x", "ada")).await), "not_permitted");
    assert_eq!(why(access.add_user(&ada, "eve", rights).await), "not_permitted");
    assert_eq!(why(access.change_user(&ada, "ada", &UserChange::default()).await), "not_permitted");
    assert_eq!(why(access.login_link(&ada, "ada").await), "not_permitted");
    assert_eq!(why(access.revoke_sessions(&ada, "bob").await), "not_permitted");
    // The same for a token of another and for one that is not there.
    assert_eq!(why(access.revoke_token(&ada, &other.id).await), "not_permitted");
    assert_eq!(why(access.revoke_token(&ada, "nothing").await), "not_permitted");
    assert_eq!(scene.everything().await, before);
    assert_eq!(why(access.revoke_token(&scene.root, "nothing").await), "not_found");
    // Its own it may revoke, but its machines may not do that for it.
    let (_, secret) = scene.token(machine("m", "ada")).await;
    let program = scene.shows(&secret).await.unwrap();
    assert_eq!(why(access.revoke_token(&program, &own.id).await), "not_permitted");
    access.revoke_token(&ada, &own.id).await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_with_a_new_token_or_user_is_named() {
    let scene = Scene::new();
    scene.user("ada", Role::Approver, &["harbour"], &["ledger.*"]).await;
    scene.user("bob", Role::Approver, &[], &[]).await;
    let field = |result: Result<(Token, SecretString), AccessError>| match result {
        Err(AccessError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let make = async |new: NewToken| scene.access.create_token(&scene.root, new).await;
    let now = scene.clock.now();
    assert_eq!(field(make(new("Bad Name", "ada")).await), "name");
    assert_eq!(field(make(NewToken { role: Some(Role::Admin), ..new("t", "ada") }).await), "role");
    assert_eq!(field(make(NewToken { teams: Some(vec!["pier".into()]), ..new("t", "ada") }).await), "teams");
    assert_eq!(field(make(NewToken { tools: Some(vec!["*".into()]), ..new("t", "ada") }).await), "tools");
    assert_eq!(field(make(NewToken { expires_at: Some(now), ..new("t", "ada") }).await), "expires_at");
    assert_eq!(why(make(new("t", "eve")).await), "not_found");
    // A machine's name is its owner's: nobody else's token acts as it. Its owner may replace the token.
    make(machine("nightly", "ada")).await.unwrap();
    make(machine("nightly", "ada")).await.unwrap();
    assert_eq!(field(make(machine("nightly", "bob")).await), "name");
    scene.disable("bob", true).await;
    assert_eq!(field(make(new("t", "bob")).await), "owner");
    let rights = || Rights::checked(Role::Viewer, &[], &[]).unwrap();
    assert_eq!(why(scene.access.add_user(&scene.root, "ada", rights()).await), "already_exists");
    assert_eq!(why(scene.access.add_user(&scene.root, "A", rights()).await), "invalid_input");
    assert_eq!(why(scene.access.change_user(&scene.root, "A", &UserChange::default()).await), "not_found");
    assert_eq!(why(scene.access.login_link(&scene.root, "bob").await), "invalid_input");
}

#[tokio::test]
async fn an_admin_cannot_lock_itself_out() {
    let scene = Scene::new();
    scene.user("ada", Role::Admin, &[], &[]).await;
    let (_, secret) = scene.token(new("t", "ada")).await;
    let ada = scene.shows(&secret).await.unwrap();
    for change in [
        UserChange { disabled: Some(true), ..UserChange::default() },
        UserChange { role: Some(Role::Operator), ..UserChange::default() },
    ] {
        assert_eq!(why(scene.access.change_user(&ada, "ada", &change).await), "invalid_input");
        assert!(scene.access.user("ada").await.unwrap().is_some_and(|user| !user.disabled));
        scene.access.change_user(&scene.root, "ada", &change).await.unwrap();
        scene.change("ada", UserChange { role: Some(Role::Admin), disabled: Some(false), ..UserChange::default() }).await;
    }
}

#[tokio::test]
async fn the_last_use_is_written_once_a_minute_and_fails_no_request() {
    let scene = Scene::new();
    scene.user("ada", Role::Runner, &[], &[]).await;
    let (token, secret) = scene.token(new("t", "ada")).await;
    let version = async || scene.store.records("token", None, 9).await.unwrap()[0].version;
    assert!(scene.shows(&secret).await.is_some());
    assert_eq!(version().await, 2);
    scene.clock.advance(MINUTE - Duration::from_millis(1));
    assert!(scene.shows(&secret).await.is_some());
    assert_eq!(version().await, 2);
    scene.clock.advance(Duration::from_millis(1));
    scene.store.fail_next(Op::PutRecords, How::Before);
    assert!(scene.shows(&secret).await.is_some(), "a request does not fail because its use is not written down");
    assert_eq!(version().await, 2);
    assert!(scene.shows(&secret).await.is_some());
    assert_eq!(version().await, 3);
    // A revocation at the same moment is not overwritten.
    scene.clock.advance(MINUTE);
    scene.store.fail_next(Op::PutRecords, How::Hang);
    let late = tokio::spawn({
        let (access, secret) = (scene.access.clone(), secret.clone());
        async move { access.bearer(secret.expose_secret()).await }
    });
    scene.store.wait_for_hits(2).await;
    scene.access.revoke_token(&scene.root, &token.id).await.unwrap();
    scene.store.heal();
    assert!(late.await.unwrap().unwrap().is_some());
    assert_eq!(scene.shows(&secret).await, None);
    // No answer of the store is no answer about a token either.
    scene.store.lose();
    scene.access.bearer(secret.expose_secret()).await.unwrap_err();
}

#[tokio::test]
async fn a_link_logs_its_user_in_once_and_for_ten_minutes() {
    let scene = Scene::new();
    scene.user("ada", Role::Approver, &["harbour"], &["ledger.*"]).await;
    let link = scene.access.login_link(&scene.root, "ada").await.unwrap();
    assert!(link.url("http://x").starts_with("http://x/login?link="));
    let text = link.secret.expose_secret();
    let session = scene.access.consume_link(text, None).await.unwrap().unwrap();
    let who = scene.has(&session).await.unwrap();
    assert_eq!((who.principal, who.role), (Principal::person("user:ada"), Role::Approver));
    assert!(matches!(who.method, Method::Session(_)));
    assert!(scene.access.consume_link(text, None).await.unwrap().is_none(), "a replay is refused");
    assert!(scene.has(&session).await.is_some(), "and ends nothing");
    // A session is no token, a token no session, and a link neither.
    assert_eq!(scene.access.bearer(session.secret.expose_secret()).await.unwrap(), None);
    assert_eq!(scene.access.session(text).await.unwrap(), None);
    let late = scene.access.login_link(&scene.root, "ada").await.unwrap();
    let last = scene.access.login_link(&scene.root, "ada").await.unwrap();
    scene.clock.advance(10 * MINUTE - Duration::from_millis(1));
    assert!(scene.access.consume_link(last.secret.expose_secret(), None).await.unwrap().is_some());
    scene.clock.advance(Duration::from_millis(1));
    assert!(scene.access.consume_link(late.secret.expose_secret(), None).await.unwrap().is_none());
    let link = scene.access.login_link(&scene.root, "ada").await.unwrap();
    scene.disable("ada", true).await;
    assert!(scene.access.consume_link(link.secret.expose_secret(), None).await.unwrap().is_none());
    scene.disable("ada", false).await;
    assert!(scene.access.consume_link(link.secret.expose_secret(), None).await.unwrap().is_none());
}

#[tokio::test]
async fn a_session_ends_when_idle_in_the_end_at_logout_and_with_the_next_login() {
    let scene = Scene::new();
    scene.user("ada", Role::Viewer, &[], &[]).await;
    let idle = scene.linked("ada").await;
    scene.clock.advance(60 * MINUTE - Duration::from_millis(1));
    assert!(scene.has(&idle).await.is_some());
    scene.clock.advance(60 * MINUTE);
    assert_eq!(scene.has(&idle).await, None);
    let busy = scene.linked("ada").await;
    for _ in 0..23 {
        scene.clock.advance(30 * MINUTE);
        assert!(scene.has(&busy).await.is_some());
    }
    scene.clock.advance(30 * MINUTE - Duration::from_millis(1));
    assert!(scene.has(&busy).await.is_some());
    scene.clock.advance(Duration::from_millis(1));
    assert_eq!(scene.has(&busy).await, None, "twelve hours are the most");
    let out = scene.linked("ada").await;
    assert!(scene.access.end_session(out.secret.expose_secret()).await.unwrap());
    assert_eq!(scene.has(&out).await, None);
    assert!(!scene.access.end_session(out.secret.expose_secret()).await.unwrap());
    let first = scene.linked("ada").await;
    let link = scene.access.login_link(&scene.root, "ada").await.unwrap();
    let second = scene.access.consume_link(link.secret.expose_secret(), Some(first.secret.expose_secret())).await.unwrap();
    assert_eq!(scene.has(&first).await, None, "a login replaces what the browser had");
    assert!(scene.has(&second.unwrap()).await.is_some());
}

#[tokio::test]
async fn a_session_that_began_with_a_token_may_no_more_than_it_and_ends_with_it() {
    let scene = Scene::new();
    scene.user("ada", Role::Admin, &[], &[]).await;
    let (token, secret) = scene.token(NewToken { role: Some(Role::Viewer), ..new("t", "ada") }).await;
    let session = scene.access.start_session(secret.expose_secret(), None).await.unwrap().unwrap();
    let who = scene.has(&session).await.unwrap();
    assert!(who.role == Role::Viewer && matches!(who.method, Method::Session(_)));
    let next = scene.access.start_session(secret.expose_secret(), Some(session.secret.expose_secret())).await.unwrap().unwrap();
    assert_eq!(scene.has(&session).await, None);
    scene.access.revoke_token(&scene.root, &token.id).await.unwrap();
    assert_eq!(scene.has(&next).await, None);
    assert!(scene.access.start_session(secret.expose_secret(), None).await.unwrap().is_none());
    let (_, program) = scene.token(machine("m", "ada")).await;
    assert!(scene.access.start_session(program.expose_secret(), None).await.unwrap().is_none(), "a machine has no browser");
}

#[tokio::test]
async fn all_sessions_of_a_user_end_together_and_nobody_elses() {
    let scene = Scene::new();
    scene.user("ada", Role::Viewer, &[], &[]).await;
    scene.user("bob", Role::Viewer, &[], &[]).await;
    let (one, two, other) = (scene.linked("ada").await, scene.linked("ada").await, scene.linked("bob").await);
    let unused = scene.access.login_link(&scene.root, "ada").await.unwrap();
    let ada = scene.has(&one).await.unwrap();
    scene.access.revoke_sessions(&ada, "ada").await.unwrap();
    assert_eq!((scene.has(&one).await, scene.has(&two).await), (None, None));
    assert!(scene.access.consume_link(unused.secret.expose_secret(), None).await.unwrap().is_none());
    assert!(scene.has(&other).await.is_some());
    let again = scene.linked("ada").await;
    scene.disable("ada", true).await;
    assert_eq!(scene.has(&again).await, None);
    scene.disable("ada", false).await;
    assert_eq!(scene.has(&again).await, None, "who is let in again logs in again");
}

#[tokio::test]
async fn every_change_is_in_the_audit_with_who_and_how_and_a_refused_one_is_not() {
    let scene = Scene::new();
    scene.user("ada", Role::Admin, &[], &[]).await;
    let (token, secret) = scene.token(new("t", "ada")).await;
    let ada = scene.shows(&secret).await.unwrap();
    let rights = Rights::checked(Role::Viewer, &[], &[]).unwrap();
    scene.access.add_user(&ada, "bob", rights.clone()).await.unwrap();
    scene.access.add_user(&ada, "bob", rights).await.unwrap_err();
    let operator = UserChange { role: Some(Role::Operator), disabled: Some(true), ..UserChange::default() };
    scene.access.change_user(&ada, "bob", &operator).await.unwrap();
    scene.access.change_user(&ada, "bob", &operator).await.unwrap();
    scene.disable("bob", false).await;
    let session = scene.linked("bob").await;
    scene.access.end_session(session.secret.expose_secret()).await.unwrap();
    scene.access.revoke_sessions(&ada, "bob").await.unwrap();
    scene.access.revoke_token(&scene.root, &token.id).await.unwrap();
    scene.access.revoke_token(&scene.root, &token.id).await.unwrap();
    let audit = scene.audit().await;
    let whats: Vec<&str> = audit.iter().map(|(what, _)| *what).collect();
    assert_eq!(
        whats,
        [
            "user_added",
            "token_created",
            "user_added",
            "user_changed",
            "user_disabled",
            "user_enabled",
            "login_link_made",
            "session_started",
            "login_link_used",
            "session_ended",
            "sessions_revoked",
            "token_revoked"
        ]
    );
    assert_eq!((audit[1].1.as_str(), audit[2].1.as_str()), (format!("token:{}", token.id).as_str(), "user:bob"));
    let entries = scene.access.audit(None, 99).await.unwrap().items;
    let (_, added) = &entries[2];
    assert_eq!(
        (added.who.as_str(), added.method.clone(), added.at),
        ("user:ada", format!("token:{}", token.id), scene.clock.now())
    );
    assert_eq!(entries[3].1.details["role"], "operator");
    assert_eq!((entries[0].1.who.as_str(), entries[0].1.method.as_str()), ("local:root", "local"));
    assert!(entries[8].1.method.starts_with("login_link:") && entries[8].1.who == "user:bob");
    assert_eq!(scene.access.audit(Some(&entries[9].0), 1).await.unwrap().items[0].1.what, What::SessionsRevoked);
    // A change and its entry are written together: neither where the store says nothing.
    scene.store.fail_next(Op::PutRecords, How::Before);
    assert_eq!(why(scene.access.create_token(&scene.root, new("lost", "ada")).await), "unavailable");
    assert_eq!(scene.audit().await.len(), 12);
    assert_eq!(scene.access.tokens(None, 9).await.unwrap().items.len(), 1);
}

#[tokio::test]
async fn no_secret_is_kept_or_shown() {
    let scene = Scene::new();
    scene.user("ada", Role::Admin, &[], &[]).await;
    let (token, secret) = scene.token(new("t", "ada")).await;
    let link = scene.access.login_link(&scene.root, "ada").await.unwrap();
    let session = scene.access.consume_link(link.secret.expose_secret(), None).await.unwrap().unwrap();
    let shown = format!("{token:?} {secret:?} {link:?} {session:?} {:?} {:?}", scene.shows(&secret).await, scene.store);
    let kept = format!("{:?}", scene.everything().await);
    for secret in [&secret, &link.secret, &session.secret] {
        let core = secret.expose_secret().trim_start_matches("lh_");
        assert!(!kept.contains(core) && !shown.contains(core));
    }
}

#[tokio::test]
async fn two_who_change_the_same_both_succeed_and_an_unreadable_record_lets_nobody_in() {
    let scene = Scene::new();
    scene.user("ada", Role::Viewer, &[], &[]).await;
    let (team, role) = (
        UserChange { teams: Some(vec!["a".into()]), ..UserChange::default() },
        UserChange { role: Some(Role::Runner), ..UserChange::default() },
    );
    let both =
        tokio::join!(scene.access.change_user(&scene.root, "ada", &team), scene.access.change_user(&scene.root, "ada", &role));
    both.0.unwrap();
    both.1.unwrap();
    let ada = scene.access.user("ada").await.unwrap().unwrap();
    assert_eq!((ada.rights.role, ada.rights.teams.len()), (Role::Runner, 1));
    let (_, secret) = scene.token(new("t", "ada")).await;
    let there = scene.store.record("user", "ada").await.unwrap().unwrap();
    assert!(scene.store.put_record(Record { body: "{\"role\":\"emperor\"}".into(), ..there }).await.unwrap());
    let error = scene.access.bearer(secret.expose_secret()).await.unwrap_err();
    assert!(!error.0.contains("emperor"), "{error}");
    scene.user("bob", Role::Viewer, &[], &[]).await;
    let names: Vec<String> = scene.access.users(None, 9).await.unwrap().items.into_iter().map(|user| user.name).collect();
    assert_eq!(names, ["bob"], "it hides no other");
    // Nor does it end a list, nor is a store with one a new one.
    let first = scene.access.users(None, 1).await.unwrap();
    assert_eq!((first.items.len(), first.next.as_deref()), (0, Some("ada")));
    let rest = scene.access.users(first.next.as_deref(), 9).await.unwrap();
    assert_eq!((rest.items.len(), rest.next), (1, None));
    assert!(!scene.access.is_new().await.unwrap() && Scene::new().access.is_new().await.unwrap());
}

#[tokio::test]
async fn a_change_is_tried_again_while_others_are_faster_and_not_for_ever() {
    let scene = Scene::new();
    for (needed, is_done) in [(1, true), (ACCESS_ATTEMPTS_MAX, true), (ACCESS_ATTEMPTS_MAX + 1, false)] {
        let tried = AtomicUsize::new(0);
        let attempt = async || Ok((tried.fetch_add(1, Ordering::Relaxed) + 1 == needed).then_some(()));
        let done = scene.access.until_first("it", attempt).await;
        assert_eq!(done.map_err(|error| error.code()), if is_done { Ok(()) } else { Err("changed_meanwhile") });
        assert_eq!(tried.into_inner(), needed.min(ACCESS_ATTEMPTS_MAX));
    }
}

#[tokio::test]
async fn what_is_long_over_is_forgotten_and_nothing_else() {
    let scene = Scene::new();
    scene.user("ada", Role::Viewer, &[], &[]).await;
    scene.linked("ada").await;
    scene.clock.advance(25 * 60 * MINUTE);
    let live = scene.linked("ada").await;
    assert_eq!(scene.access.forget_expired().await.unwrap(), 2);
    assert!(scene.has(&live).await.is_some());
    assert_eq!(scene.access.forget_expired().await.unwrap(), 0);
    assert_eq!(scene.store.records("session", None, 9).await.unwrap().len(), 1);
}

#[test]
fn what_a_server_awaits_can_move_between_threads() {
    fn moves(_: impl Send) {}
    let scene = Scene::new();
    let (access, root) = (&scene.access, &scene.root);
    moves(access.bearer("x"));
    moves(access.session("x"));
    moves(access.start_session("x", None));
    moves(access.end_session("x"));
    moves(access.login_link(root, "x"));
    moves(access.consume_link("x", None));
    moves(access.create_token(root, new("x", "x")));
    moves(access.revoke_token(root, "x"));
    moves(access.change_user(root, "x", &UserChange::default()));
    moves(access.revoke_sessions(root, "x"));
    moves(access.forget_expired());
    moves(access.bootstrap(root, "x".as_ref(), None));
}
