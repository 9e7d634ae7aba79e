//! A PostgreSQL server that takes connections and says nothing, from the beginning or in mid-session: every command ends by itself, with
//! the exit code of a store that cannot be opened or did not answer, and says where.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of a test fail by panicking")]

use crate::hours::{ledger, on_a_file};
use leasehold::run::{RunId, State};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{Home, Ran, Running},
    postgres::{Cluster, Extra, Version},
};
use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::net::TcpListener;

/// A command waits this long for a connection, and for an answer; a busy machine gets as much again.
const PATIENCE: Duration = Duration::from_secs(50);

/// A port that takes connections and is silent on them.
async fn silent() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut taken = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            taken.push(socket);
        }
    });
    port
}

async fn in_time(home: &Home, arguments: &[&str]) -> Ran {
    tokio::time::timeout(PATIENCE, home.run(arguments)).await.unwrap_or_else(|_| panic!("{arguments:?} does not end"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_the_connection_and_never_answers_lets_every_command_end() {
    let (home, far) = (on_a_file(), FarSide::start().await.unwrap());
    ledger(&home, &far, "non_idempotent_write");
    let place = format!("leasehold@127.0.0.1:{}/runs", silent().await);
    let config = std::fs::read_to_string(home.path().join("leasehold.toml")).unwrap();
    let url = format!("postgres://{}", place.replace('@', ":hunter2@"));
    home.write("leasehold.toml", &config.replace(&home.store_url(), &url));
    let id = RunId::new().to_string();
    let commands: [&[&str]; 9] = [
        &["runs", "list"],
        &["runs", "cancel", &id],
        &["inbox"],
        &["run", "task"],
        &["approve", &id, "--digest", "d"],
        &["resolve", &id, "--call", "c", "--landed"],
        &["worker"],
        &["reap"],
        &["migrate"],
    ];
    for ran in futures::future::join_all(commands.map(|command| in_time(&home, command))).await {
        assert_eq!(ran.code(), 2, "{ran}");
        assert!(ran.stderr().contains(&place) && ran.stderr().contains("no answer within 12 s"), "{ran}");
        assert!(!ran.to_string().contains("hunter2"), "{ran}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_asked_to_end_while_it_opens_its_store_ends_in_order() {
    let home = on_a_file();
    home.write("leasehold.toml", &format!("[store]\nurl = \"postgres://ada@127.0.0.1:{}/runs\"\n", silent().await));
    for signal in ["TERM", "INT"] {
        let mut worker = home.start(&["worker"], None);
        // Its handlers are there: bit 15 of the signals that it catches.
        let status = format!("/proc/{}/status", worker.id());
        let caught = || {
            let text = std::fs::read_to_string(&status).unwrap();
            let mask = text.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim().to_owned();
            u64::from_str_radix(&mask, 16).unwrap() & (1 << 14) != 0
        };
        let started = Instant::now();
        while !caught() {
            assert!(started.elapsed() < Duration::from_secs(5), "it hears no signal while it opens its store");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        worker.signal(signal);
        worker.ended().await;
        assert!(started.elapsed() < Duration::from_secs(10), "it was not heard at once");
        assert_eq!(worker.wait(), Some(0), "SIG{signal}");
    }
}

/// What a command came to that is under way while its server freezes.
async fn ended(mut command: Running, log: &std::path::Path) -> (Option<i32>, String) {
    let started = Instant::now();
    while !command.has_ended() {
        assert!(started.elapsed() < PATIENCE * 2, "it does not end: {}", std::fs::read_to_string(log).unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (command.wait(), std::fs::read_to_string(log).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_answering_in_mid_session_lets_commands_that_are_under_way_end() {
    let cluster: Arc<Cluster> = tokio::task::spawn_blocking(|| Cluster::own(Version::V15, Extra::default())).await.unwrap();
    let home = Home::on_database(env!("CARGO_BIN_EXE_leasehold"), cluster.database().await);
    let far = FarSide::start().await.unwrap();
    ledger(&home, &far, "non_idempotent_write");
    far.then([Then::Hold]);
    let queued = home.enqueue().await;
    let start = |arguments: &[&str], name: &str| {
        let (mut command, log) = (home.command(arguments), home.path().join(name));
        let file = std::fs::File::create(&log).unwrap();
        command.stdout(Stdio::null()).stderr(file);
        (home.start_as_it_is(command), log)
    };
    let following = start(&["runs", "follow", &queued.to_string()], "follow.log");
    let executing = start(&["run", "--agent", "a", "append a line"], "run.log");
    far.wait_for(1).await;
    let frozen = cluster.freeze();
    far.release();
    let ((followed, of_follow), (executed, of_run)) =
        tokio::join!(ended(following.0, &following.1), ended(executing.0, &executing.1));
    for (code, said) in [(followed, of_follow), (executed, of_run)] {
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("the store did not answer") && said.contains(&home.store_url()), "{said}");
    }
    drop(frozen);
    cluster.answers().await;
    assert_eq!(home.row(queued).await.state, State::Queued);
}
