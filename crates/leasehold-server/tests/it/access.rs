//! Users and tokens with the real command: who may what where `[auth] local = "token"`, on a file and on a database.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use leasehold_testkit::{
    far_side::FarSide,
    home::{APPEND_ONCE, Home, Ledger, Ran},
    postgres::{Cluster, Version},
};
use serde_json::Value;
use std::{cell::RefCell, fs, os::unix::fs::MetadataExt as _, path::Path};

const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

/// A home, and everything that any command said in it but for the secrets it was asked for.
struct Scene {
    home: Home,
    said: RefCell<String>,
}

impl Scene {
    async fn new(home: Home, far: &FarSide) -> Self {
        home.ledger(far, Ledger { effect: "non_idempotent_write", approval: "required", timeout: "2s" }, APPEND_ONCE);
        Self { home, said: RefCell::default() }
    }

    fn wants_tokens(&self) {
        let file = self.home.path().join("leasehold.toml");
        let config = fs::read_to_string(&file).unwrap();
        fs::write(file, format!("[auth]\nlocal = \"token\"\n{config}")).unwrap();
    }

    /// Runs a command with everything logged; what it said has to end so.
    #[track_caller]
    fn checked(ran: Ran, code: i32) -> Ran {
        assert_eq!(ran.code(), code, "{ran}");
        ran
    }

    async fn raw(&self, token: Option<&str>, arguments: &[&str]) -> Ran {
        let mut environment = vec![("LEASEHOLD_LOG", "trace")];
        environment.extend(token.map(|token| ("LEASEHOLD_TOKEN", token)));
        let ran = self.home.run_with(arguments, &environment).await;
        self.said.borrow_mut().push_str(&ran.stderr());
        ran
    }

    async fn run(&self, token: Option<&str>, arguments: &[&str], code: i32) -> Ran {
        let ran = Self::checked(self.raw(token, arguments).await, code);
        self.said.borrow_mut().push_str(&ran.stdout());
        ran
    }

    /// Makes a token: its secret and its id.
    async fn token(&self, admin: Option<&str>, name: &str, owner: &str, more: &[&str]) -> (String, String) {
        let arguments = [&["token", "create", name, "--owner", owner, "--json"], more].concat();
        let made = Self::checked(self.raw(admin, &arguments).await, 0).json();
        let text = |key: &str| made[key].as_str().unwrap().to_owned();
        assert!(text("secret").starts_with("lh_") && text("secret").len() == 46, "{made}");
        (text("secret"), text("id"))
    }

    /// No part of the record, of what was said, and of any file but the one for it has one of these.
    async fn nowhere(&self, secrets: &[&str]) {
        let store = self.home.store().await;
        let mut kept = self.said.borrow().clone();
        let mut kinds = 0;
        for kind in ["user", "token", "machine", "session", "login_link", "audit"] {
            let records = store.records(kind, None, 1_000).await.unwrap();
            kinds += usize::from(!records.is_empty());
            kept.push_str(&format!("{records:?}"));
        }
        assert!(kinds >= 3, "{kept}");
        for secret in secrets {
            assert!(secret.len() >= 43 && !kept.contains(secret.trim_start_matches("lh_")), "a secret is kept or was said");
            let core = secret.trim_start_matches("lh_").as_bytes();
            for file in files(self.home.path()) {
                let bytes = fs::read(&file).unwrap();
                assert!(!bytes.windows(core.len()).any(|part| part == core), "{} has a secret", file.display());
            }
        }
    }
}

fn files(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else if !path.to_string_lossy().ends_with("admin-token") {
            all.push(path);
        }
    }
    all
}

fn text(value: &Value, pointer: &str) -> String {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
}

async fn tokens_bound_what_commands_do(home: Home) {
    let far = FarSide::start().await.unwrap();
    let scene = Scene::new(home, &far).await;
    for user in [
        &["user", "add", "root", "--role", "admin"][..],
        &["user", "add", "rita", "--role", "runner", "--team", "harbour", "--tool", "ledger.append"],
        &["user", "add", "ruth", "--role", "runner"],
        &["user", "add", "anna", "--role", "approver", "--tool", "ledger.*"],
        &["user", "add", "abel", "--role", "approver", "--tool", "site.*"],
        &["user", "add", "olga", "--role", "operator", "--tool", "ledger.append"],
    ] {
        scene.run(None, user, 0).await;
    }
    let (root, _) = scene.token(None, "cli", "root", &["--expires", "30d"]).await;
    scene.wants_tokens();

    // Nobody without one.
    for arguments in [
        &["runs", "list"][..],
        &["inbox"],
        &["run", "append a line"],
        &["worker", "--once"],
        &["reap"],
        &["migrate"],
        &["token", "list"],
        &["user", "list"],
        &["approve", "0123", "--digest", "d"],
    ] {
        let ran = scene.run(None, arguments, 2).await;
        assert!(ran.stderr().contains("set LEASEHOLD_TOKEN"), "{arguments:?}: {ran}");
        let wrong = format!("lh_{}", "x".repeat(43));
        let ran = scene.run(Some(&wrong), arguments, 2).await;
        assert!(ran.stderr().contains("unknown, expired or revoked"), "{arguments:?}: {ran}");
    }

    // A runner starts a run in its own name. Who has nothing to do with it does not know of it.
    let mut secrets = vec![root.clone()];
    let mut token = async |name: &str, owner: &str, more: &[&str]| {
        let made = scene.token(Some(&root), name, owner, more).await;
        secrets.push(made.0.clone());
        made
    };
    let (rita, rita_id) = token("t", "rita", &[]).await;
    let (ruth, _) = token("t", "ruth", &[]).await;
    let (anna, anna_id) = token("t", "anna", &[]).await;
    let (abel, _) = token("t", "abel", &[]).await;
    let (olga, _) = token("t", "olga", &[]).await;
    let (program, _) = token("nightly", "anna", &["--machine", "--role", "approver"]).await;
    let waiting = scene.run(Some(&rita), &["run", "append a line", "--json"], 3).await.json();
    assert_eq!((text(&waiting, "/owner"), text(&waiting, "/initiator")), ("user:rita".into(), "user:rita".into()));
    let (id, digest) = (text(&waiting, "/id"), text(&waiting, "/waiting/turn_digest"));
    for (who, sees) in [(&rita, true), (&ruth, false), (&anna, true), (&abel, false), (&olga, true), (&root, true)] {
        let shown = scene.run(Some(who), &["runs", "show", &id], if sees { 0 } else { 1 }).await;
        assert!(sees || shown.stderr().contains("there is no run"), "{shown}");
        let inbox = scene.run(Some(who), &["inbox", "--json"], 0).await.json();
        assert_eq!(inbox["items"].as_array().unwrap().len(), usize::from(sees));
    }
    let listed = scene.run(Some(&ruth), &["runs", "list", "--json"], 0).await.json();
    assert_eq!(listed["items"].as_array().unwrap().len(), 0);

    // Decisions: a role, the tools, and a person.
    let approve = ["approve", &id, "--digest", &digest];
    for (who, code) in
        [(&rita, "not_permitted"), (&ruth, "not_permitted"), (&abel, "there is no run"), (&program, "machine_may_not_release")]
    {
        let ran = scene.run(Some(who), &approve, 1).await;
        assert!(ran.stderr().contains(code), "{ran}");
    }
    // Its own run it sees, and denies, and does not release: the call is not of its tools.
    let own = scene.run(Some(&abel), &["run", "append a line", "--json"], 3).await.json();
    let (its, seen) = (text(&own, "/id"), text(&own, "/waiting/turn_digest"));
    for verb in [&["approve"][..], &["approve", "--call", "t1c0"], &["approve", "--no-wait"]] {
        let ran = scene.run(Some(&abel), &[verb, &[its.as_str(), "--digest", &seen]].concat(), 1).await;
        assert!(ran.stderr().contains("approver_not_permitted"), "{ran}");
    }
    scene.run(Some(&abel), &["deny", &its, "--digest", &seen], 0).await;
    assert_eq!(far.arrived().len(), 0);
    let done = scene.run(Some(&anna), &[&approve[..], &["--json"]].concat(), 0).await.json();
    assert_eq!((text(&done, "/state"), text(&done, "/decisions/0/by")), ("completed".into(), "user:anna".into()));
    assert_eq!(far.arrived().len(), 1);

    // A machine denies, and what it starts is in its own name and its owner's.
    let queued = scene.run(Some(&program), &["run", "--queue", "append a line", "--json"], 0).await.json();
    assert_eq!((text(&queued, "/owner"), text(&queued, "/initiator")), ("machine:nightly".into(), "user:anna".into()));
    let id = text(&queued, "/id");
    for arguments in [&["worker", "--once"][..], &["reap"], &["token", "list"], &["user", "list"], &["runs", "redrive", &id]] {
        let ran = scene.run(Some(&program), arguments, 1).await;
        assert!(ran.stderr().contains("not_permitted"), "{arguments:?}: {ran}");
    }
    scene.run(Some(&olga), &["worker", "--once", &id], 3).await;
    let digest = text(&scene.run(Some(&olga), &["runs", "show", &id, "--json"], 0).await.json(), "/waiting/turn_digest");
    scene.run(Some(&program), &["deny", &id, "--digest", &digest, "--no-wait"], 0).await;
    let ran = scene.run(Some(&ruth), &["runs", "cancel", &id], 1).await;
    assert!(ran.stderr().contains("there is no run"), "{ran}");
    scene.run(Some(&anna), &["runs", "cancel", &id], 0).await;
    for verb in ["redrive", "discard"] {
        let ran = scene.run(Some(&anna), &["runs", verb, &id], 1).await;
        assert!(ran.stderr().contains("not_permitted"), "{ran}");
    }

    // Tokens and users are an admin's.
    for (who, arguments) in [
        (&olga, &["token", "create", "x", "--owner", "olga"][..]),
        (&anna, &["user", "add", "eve", "--role", "viewer"]),
        (&olga, &["user", "login", "root"]),
        (&olga, &["user", "set", "olga", "--role", "admin"]),
        (&olga, &["token", "revoke", &rita_id]),
    ] {
        let ran = scene.run(Some(who), arguments, 1).await;
        assert!(ran.stderr().contains("not_permitted") && ran.stdout().is_empty(), "{arguments:?}: {ran}");
    }
    let ran = scene.run(Some(&root), &["token", "create", "x", "--owner", "rita", "--role", "operator"], 2).await;
    assert!(ran.stderr().contains("at most that"), "{ran}");
    let ran = scene.run(Some(&root), &["user", "disable", "root"], 2).await;
    assert!(ran.stderr().contains("cannot disable itself"), "{ran}");

    // What is revoked or has no owner any more lets nobody in, from the next command on.
    let tail = &rita_id[rita_id.len() - 12..];
    scene.run(Some(&root), &["token", "revoke", tail], 0).await;
    scene.run(Some(&rita), &["runs", "list"], 2).await;
    scene.run(Some(&root), &["user", "disable", "anna"], 0).await;
    for gone in [&anna, &program] {
        scene.run(Some(gone), &["runs", "list"], 2).await;
    }
    scene.run(Some(&root), &["user", "set", "anna", "--enable"], 0).await;
    scene.run(Some(&anna), &["runs", "list"], 0).await;
    let tokens = scene.run(Some(&root), &["token", "list", "--json"], 0).await.json();
    let by_id = |id: &str| tokens["items"].as_array().unwrap().iter().find(|token| token["id"] == id).unwrap().clone();
    assert!(by_id(&rita_id)["revoked_at"].is_string() && by_id(&anna_id)["last_used_at"].is_string(), "{tokens}");
    let table = scene.run(Some(&root), &["token", "list"], 0).await.stdout();
    assert!(table.lines().any(|line| line.contains(&rita_id) && line.contains("revoked")), "{table}");

    // A link is printed once, and no secret is anywhere else.
    let link = Scene::checked(scene.raw(Some(&root), &["user", "login", "anna"]).await, 0);
    let url = link.stdout().trim_end().to_owned();
    assert!(link.stderr().contains("once, until"), "{link}");
    secrets.push(url.split_once("/login?link=").unwrap().1.to_owned());
    let plain = Scene::checked(scene.raw(Some(&root), &["token", "create", "plain", "--owner", "anna"]).await, 0);
    secrets.push(plain.stdout().trim_end().to_owned());
    scene.run(Some(secrets.last().unwrap()), &["runs", "list"], 0).await;
    let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
    scene.nowhere(&secrets).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_bound_what_commands_do_on_a_file() {
    tokens_bound_what_commands_do(Home::new(BINARY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_bound_what_commands_do_on_a_database() {
    let database = Cluster::shared(Version::V15).database().await;
    tokens_bound_what_commands_do(Home::on_database(BINARY, database)).await;
}

async fn the_first_who_comes_finds_the_token_of_the_first_administrator(home: Home, file: &str) {
    let far = FarSide::start().await.unwrap();
    let scene = Scene::new(home, &far).await;
    scene.wants_tokens();
    let file = scene.home.path().join(file);
    let ran = scene.run(None, &["user", "list"], 2).await;
    assert!(ran.stderr().contains(file.file_name().unwrap().to_str().unwrap()), "{ran}");
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap().trim_end().to_owned();
    let users = scene.run(Some(&token), &["user", "list", "--json"], 0).await.json();
    assert_eq!((text(&users, "/items/0/name"), text(&users, "/items/0/role")), ("admin".into(), "admin".into()));
    fs::remove_file(&file).unwrap();
    scene.run(None, &["user", "list"], 2).await;
    assert!(!file.exists(), "there is one administrator already");
    scene.nowhere(&[&token]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_administrators_token_is_beside_a_file() {
    let home = Home::new(BINARY);
    the_first_who_comes_finds_the_token_of_the_first_administrator(home, "leasehold.db.admin-token").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_administrators_token_is_in_the_data_directory_with_a_database() {
    let database = Cluster::shared(Version::V15).database().await;
    let home = Home::on_database(BINARY, database);
    the_first_who_comes_finds_the_token_of_the_first_administrator(home, "data/leasehold/admin-token").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operators_own_token_makes_the_first_administrator_without_a_file() {
    let far = FarSide::start().await.unwrap();
    let scene = Scene::new(Home::new(BINARY), &far).await;
    scene.wants_tokens();
    let chosen = "0123456789abcdef0123456789abcdef0123456789abcdef";
    let environment = |own: &'static str| [("LEASEHOLD_ADMIN_TOKEN", own), ("LEASEHOLD_TOKEN", chosen)];
    let ran = Scene::checked(scene.home.run_with(&["user", "list"], &environment("too short to be one")).await, 2);
    assert!(ran.stderr().contains("LEASEHOLD_ADMIN_TOKEN") && !ran.stderr().contains("too short to be"), "{ran}");
    Scene::checked(scene.home.run_with(&["user", "list"], &environment(chosen)).await, 0);
    assert!(!scene.home.path().join("leasehold.db.admin-token").exists());
    // Once there is an administrator, having the variable is not being one.
    let other = "fedcba9876543210fedcba9876543210fedcba9876543210";
    let taken = [("LEASEHOLD_ADMIN_TOKEN", other), ("LEASEHOLD_TOKEN", other)];
    Scene::checked(scene.home.run_with(&["user", "list"], &taken).await, 2);
    scene.nowhere(&[chosen]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_of_a_store_needs_no_token_and_names_are_checked() {
    let far = FarSide::start().await.unwrap();
    let scene = Scene::new(Home::new(BINARY), &far).await;
    let empty = scene.run(None, &["user", "list"], 0).await;
    assert!(empty.stdout().is_empty() && empty.stderr().contains("no users in"), "{empty}");
    scene.run(None, &["user", "add", "ada", "--role", "viewer"], 0).await;
    for (arguments, code, said) in [
        (&["user", "add", "Ada", "--role", "viewer"][..], 2, "a name has 1 to 64 characters"),
        (&["user", "add", "ada", "--role", "viewer"], 1, "already_exists"),
        (&["user", "add", "bob", "--role", "emperor"], 2, "there are: viewer, runner, approver, operator, admin"),
        (&["user", "set", "ada"], 2, "nothing is to be changed"),
        (&["user", "set", "bob", "--enable"], 1, "not_found"),
        (&["token", "create", "t", "--owner", "bob"], 1, "not_found"),
        (&["token", "create", "t", "--owner", "ada", "--expires", "soon"], 2, "is not a time"),
        (&["token", "revoke", "0123"], 1, "not_found"),
        (&["user", "login", "bob"], 1, "not_found"),
    ] {
        let ran = scene.run(None, arguments, code).await;
        assert!(ran.stderr().contains(said) && ran.stdout().is_empty(), "{arguments:?}: {ran}");
    }
    let (secret, id) = scene.token(None, "t", "ada", &[]).await;
    let (_, second) = scene.token(None, "t", "ada", &[]).await;
    let common: String = id.chars().rev().zip(second.chars().rev()).take_while(|(a, b)| a == b).map(|(a, _)| a).collect();
    assert!(common.len() < 12, "two ids end in the same way");
    // What stands in the environment does nothing where none is wanted.
    scene.run(Some(&secret), &["user", "add", "bob", "--role", "admin"], 0).await;
}

/// A run of somebody, released by somebody else, whose owner was changed by `meanwhile`: how it stands, and what arrived.
async fn released_after(meanwhile: &[&str]) -> (Scene, FarSide, Value) {
    let far = FarSide::start().await.unwrap();
    let scene = Scene::new(Home::new(BINARY), &far).await;
    scene.run(None, &["user", "add", "root", "--role", "admin"], 0).await;
    scene.run(None, &["user", "add", "rita", "--role", "runner", "--tool", "ledger.*"], 0).await;
    scene.run(None, &["user", "add", "anna", "--role", "approver", "--tool", "ledger.*"], 0).await;
    let (root, _) = scene.token(None, "t", "root", &[]).await;
    let (program, _) = scene.token(None, "nightly", "rita", &["--machine"]).await;
    let (anna, _) = scene.token(None, "t", "anna", &[]).await;
    scene.wants_tokens();
    let waiting = scene.run(Some(&program), &["run", "append a line", "--json"], 3).await.json();
    assert_eq!(text(&waiting, "/owner"), "machine:nightly");
    let (id, digest) = (text(&waiting, "/id"), text(&waiting, "/waiting/turn_digest"));
    scene.run(Some(&root), meanwhile, 0).await;
    scene.raw(Some(&anna), &["approve", &id, "--digest", &digest]).await;
    let shown = scene.run(Some(&root), &["runs", "show", &id, "--json"], 0).await.json();
    (scene, far, shown)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_owner_was_disabled_while_it_waited_is_refused_though_it_is_released() {
    let (scene, far, shown) = released_after(&["user", "disable", "rita"]).await;
    assert_eq!((text(&shown, "/state"), far.arrived().len()), ("completed".into(), 0), "{shown}");
    let id = text(&shown, "/id").parse().unwrap();
    let journal = format!("{:?}", scene.home.journal(id).await);
    assert!(journal.contains("user:rita, the owner of machine:nightly, is disabled; nothing runs as nobody"), "{journal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_its_owner_may_not_run_any_more_waits_again_and_says_why() {
    let (scene, far, shown) = released_after(&["user", "set", "rita", "--tool", "site.*"]).await;
    assert_eq!((text(&shown, "/state"), far.arrived().len()), ("waiting_for_approval".into(), 0), "{shown}");
    let why = "may not run `ledger.append`: it is not among its tools";
    let journal = format!("{:?}", scene.home.journal(text(&shown, "/id").parse().unwrap()).await);
    assert!(journal.contains(why), "{journal}");
    let (far_again, unchanged) = {
        let (_scene, far, shown) = released_after(&["user", "set", "rita", "--team", "harbour"]).await;
        (far.arrived().len(), text(&shown, "/state"))
    };
    assert_eq!((far_again, unchanged), (1, "completed".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_admin_reads_the_audit_in_pages_and_nobody_else_does() {
    let far = FarSide::start().await.unwrap();
    let scene = Scene::new(Home::new(BINARY), &far).await;
    let none = scene.run(None, &["audit"], 0).await;
    assert!(none.stdout().is_empty() && none.stderr().contains("no entries in"), "{none}");
    scene.run(None, &["user", "add", "root", "--role", "admin"], 0).await;
    scene.run(None, &["user", "add", "olga", "--role", "operator"], 0).await;
    let (root, _) = scene.token(None, "t", "root", &[]).await;
    let (olga, olga_id) = scene.token(None, "t", "olga", &[]).await;
    scene.run(None, &["token", "revoke", &olga_id], 0).await;
    let (olga_again, _) = scene.token(None, "u", "olga", &[]).await;
    let mut seen: Vec<(String, String)> = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let more = after.iter().flat_map(|cursor| ["--after", cursor.as_str()]);
        let arguments: Vec<&str> = ["audit", "--json", "--limit", "2"].into_iter().chain(more).collect();
        let page = scene.run(None, &arguments, 0).await.json();
        let items = page["items"].as_array().unwrap();
        assert!((1..=2).contains(&items.len()), "{page}");
        seen.extend(items.iter().map(|entry| (text(entry, "/what"), text(entry, "/about"))));
        after = page["next_cursor"].as_str().map(str::to_owned);
        if after.is_none() {
            break;
        }
    }
    let what: Vec<&str> = seen.iter().map(|(what, _)| what.as_str()).collect();
    let expected = ["user_added", "user_added", "token_created", "token_created", "token_revoked", "token_created"];
    assert_eq!(what, expected, "{seen:?}");
    assert_eq!((seen[0].1.as_str(), seen[4].1.as_str()), ("user:root", format!("token:{olga_id}").as_str()));
    let table = scene.run(None, &["audit"], 0).await.stdout();
    assert!(table.contains("token revoked") && table.contains("user:olga"), "{table}");
    scene.wants_tokens();
    let ran = scene.run(Some(&olga_again), &["audit"], 1).await;
    assert!(ran.stderr().contains("not_permitted") && ran.stdout().is_empty(), "{ran}");
    scene.run(Some(&root), &["audit"], 0).await;
    scene.nowhere(&[&root, &olga, &olga_again]).await;
}
