//! Sealed stores, keys and chains with the real command, on a file and on a database.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use leasehold_testkit::{
    far_side::FarSide,
    home::{APPEND_ONCE, Home, Ledger, Ran},
    postgres::{Cluster, Version},
};
use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

const BINARY: &str = env!("CARGO_BIN_EXE_leasehold");

struct Scene {
    home: Home,
    far: FarSide,
}

impl Scene {
    async fn new(home: Home) -> Self {
        let far = FarSide::start().await.unwrap();
        home.ledger(&far, Ledger { effect: "non_idempotent_write", approval: "required", timeout: "2s" }, APPEND_ONCE);
        Self { home, far }
    }

    async fn run(&self, arguments: &[&str], code: i32) -> Ran {
        self.run_with(arguments, &[], code).await
    }

    async fn run_with(&self, arguments: &[&str], environment: &[(&str, &str)], code: i32) -> Ran {
        let ran = self.home.run_with(arguments, environment).await;
        assert_eq!(ran.code(), code, "{arguments:?}: {ran}");
        ran
    }

    /// A configuration with these lines before the others.
    fn configured(&self, lines: &str) {
        let file = self.home.path().join("leasehold.toml");
        let config = fs::read_to_string(&file).unwrap();
        let config = config.rsplit("# ---\n").next().unwrap();
        fs::write(file, format!("{lines}# ---\n{config}")).unwrap();
    }

    fn seals(&self, keyring: &str) {
        self.configured(&format!("[seal]\nkeyring = \"{keyring}\"\n"));
    }

    /// A run that waits, with its digest.
    async fn waiting(&self) -> (String, String) {
        let run = self.run(&["run", "note the secret harbour", "--json"], 3).await.json();
        let text = |pointer: &str| run.pointer(pointer).unwrap().as_str().unwrap().to_owned();
        (text("/id"), text("/waiting/turn_digest"))
    }
}

async fn a_sealed_store_is_opened_with_its_newest_key_and_by_nobody_without_it(home: Home) {
    let scene = Scene::new(home).await;
    // One that was never sealed opens without a keyring.
    let (open, _) = scene.waiting().await;

    let made = scene.run(&["key", "create", "a"], 0).await;
    assert!(made.stderr().contains("[seal]\nkeyring = \"leasehold.keyring\"") && made.stdout().is_empty(), "{made}");
    let file = scene.home.path().join("leasehold.keyring");
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    scene.seals("leasehold.keyring");
    let (id, digest) = scene.waiting().await;
    let raw = format!("{:?}", scene.home.store().await.journal(id.parse().unwrap(), 0, 99).await.unwrap());
    assert!(!raw.contains("harbour") && raw.contains("Sealed"), "{raw}");
    let shown = scene.run(&["runs", "show", &id], 0).await;
    assert!(shown.stdout().contains("harbour"), "{shown}");

    // Another key: what is new is sealed with it, what is old still opens.
    let ring = fs::read_to_string(&file).unwrap();
    let more = scene.run(&["key", "create", "b"], 0).await;
    assert!(!more.stderr().contains("[seal]"), "{more}");
    let listed = scene.run(&["key", "list", "--json"], 0).await;
    assert_eq!(listed.json()["items"].to_string(), r#"[{"id":"a","seals":false},{"id":"b","seals":true}]"#);
    let key = ring.split('"').nth(1).unwrap();
    assert!(!listed.stdout().contains(key) && !scene.run(&["key", "list"], 0).await.stdout().contains(key));
    let (second, _) = scene.waiting().await;

    // Without the newest nothing opens, and nothing is settled.
    let before = scene.home.row(id.parse().unwrap()).await;
    scene.home.write("old.keyring", &ring);
    for (keyring, said) in [(Some("old.keyring"), "add the line of key `b` to"), (None, "[seal] keyring = ")] {
        scene.configured(&keyring.map_or_else(String::new, |name| format!("[seal]\nkeyring = \"{name}\"\n")));
        for arguments in [
            &["runs", "list"][..],
            &["inbox"],
            &["worker", "--once"],
            &["reap"],
            &["approve", &id, "--digest", &digest],
            &["user", "list"],
        ] {
            let ran = scene.run(arguments, 2).await;
            assert!(ran.stderr().contains("sealed with key `b`") && ran.stderr().contains(said), "{arguments:?}: {ran}");
        }
    }
    for run in [&id, &second, &open] {
        assert_eq!(scene.home.row(run.parse().unwrap()).await.state, before.state);
    }

    // The variable has the keys themselves.
    let both = fs::read_to_string(&file).unwrap();
    let environment = [("LEASEHOLD_KEYRING", both.as_str())];
    let approved = scene.run_with(&["approve", &id, "--digest", &digest, "--json"], &environment, 0).await;
    assert_eq!(approved.json()["state"], "completed");
    assert_eq!(scene.far.arrived().len(), 1);
    scene.run_with(&["runs", "show", &second], &environment, 0).await;
    let refused = scene.run_with(&["key", "create", "c"], &environment, 2).await;
    assert!(refused.stderr().contains("LEASEHOLD_KEYRING"), "{refused}");
    let shown = scene.run_with(&["config"], &environment, 0).await;
    assert!(!shown.stdout().contains(key) && shown.stdout().contains("keyring = \"***\""), "{shown}");
    let broken = scene.run_with(&["runs", "list"], &[("LEASEHOLD_KEYRING", "a = \"00ffee\"")], 2).await;
    assert!(broken.stderr().contains("LEASEHOLD_KEYRING") && !broken.stderr().contains("00ffee"), "{broken}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sealed_file_is_opened_with_its_newest_key_and_by_nobody_without_it() {
    a_sealed_store_is_opened_with_its_newest_key_and_by_nobody_without_it(Home::new(BINARY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sealed_database_is_opened_with_its_newest_key_and_by_nobody_without_it() {
    let database = Cluster::shared(Version::V15).database().await;
    a_sealed_store_is_opened_with_its_newest_key_and_by_nobody_without_it(Home::on_database(BINARY, database)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_added_behind_the_others_to_a_file_of_its_owner_or_not_at_all() {
    let scene = Scene::new(Home::new(BINARY)).await;
    let none = scene.run(&["key", "list"], 0).await;
    assert!(none.stdout().is_empty() && none.stderr().contains("no keyring is configured"), "{none}");
    scene.seals("keys.toml");
    let absent = scene.run(&["runs", "list"], 2).await;
    assert!(absent.stderr().contains("leasehold.toml:2: ") && absent.stderr().contains("leasehold key create"), "{absent}");
    scene.run(&["key", "create"], 0).await;
    let ids = scene.run(&["key", "list", "--json"], 0).await.json();
    assert!(ids["items"][0]["id"].as_str().unwrap().starts_with("20"), "{ids}");
    let file = scene.home.path().join("keys.toml");
    let before = fs::read_to_string(&file).unwrap();
    for (id, said) in [("0", "sorts before"), ("a b", "is no id"), (&"x".repeat(65), "is no id"), ("a.b", "is no id")] {
        let ran = scene.run(&["key", "create", id], 2).await;
        assert!(ran.stderr().contains(said), "{ran}");
    }
    scene.run(&["key", "create", "z"], 0).await;
    let ran = scene.run(&["key", "create", "z"], 2).await;
    assert!(ran.stderr().contains("there is a key `z` already"), "{ran}");
    assert!(fs::read_to_string(&file).unwrap().starts_with(&before));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let ran = scene.run(&["key", "create", "zz"], 2).await;
    assert!(ran.stderr().contains("chmod 600"), "{ran}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "half a li").unwrap();
    let ran = scene.run(&["key", "create", "zz"], 2).await;
    assert!(ran.stderr().contains("nothing was changed") && !ran.stderr().contains("half"), "{ran}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "half a li");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_verified_against_its_head_and_those_that_were_exported() {
    let scene = Scene::new(Home::new(BINARY)).await;
    let (id, digest) = scene.waiting().await;
    let first = scene.run(&["verify", &id], 0).await;
    let head = first.stdout().trim_end().to_owned();
    assert!(first.stderr().contains("ok: ") && head.split_once(':').is_some_and(|(_, hex)| hex.len() == 64), "{first}");
    scene.run(&["approve", &id, "--digest", &digest], 0).await;
    let second = scene.run(&["verify", &id, "--against", &head, "--json"], 0).await.json();
    assert!(second["ok"] == true && second["head"].as_str().is_some_and(|now| now != head), "{second}");
    let now = second["head"].as_str().unwrap();
    scene.run(&["verify", &id, "--against", &head, "--against", now], 0).await;

    // Another head, one of an entry that is not there, and no head at all.
    let (sequence, hex) = head.split_once(':').unwrap();
    let other = format!("{sequence}:{}", "0".repeat(64));
    let far = format!("999:{hex}");
    for wrong in [&other, &far] {
        let ran = scene.run(&["verify", &id, "--against", now, "--against", wrong], 1).await;
        assert!(ran.stderr().contains("do not lead to the head that was exported") && ran.stdout().is_empty(), "{ran}");
    }
    scene.run(&["verify", &id, "--against", hex], 2).await;
    scene.run(&["verify", "0123abcd"], 1).await;

    // Somebody changes what was said.
    let store = rusqlite::Connection::open(scene.home.path().join("leasehold.db")).unwrap();
    let sql =
        "UPDATE journal SET payload = CAST(replace(CAST(payload AS TEXT), 'harbour', 'airport') AS BLOB) WHERE sequence = 0";
    assert_eq!(store.execute(sql, []).unwrap(), 1);
    let ran = scene.run(&["verify", &id], 1).await;
    assert!(ran.stderr().contains("entry 0: its content was changed"), "{ran}");
    let ran = scene.run(&["verify", &id, "--json"], 1).await.json();
    assert!(ran["ok"] == false && ran["error"].as_str().is_some_and(|why| why.contains("entry 0")), "{ran}");
}
