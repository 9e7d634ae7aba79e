//! Workers and deciders killed with SIGKILL at moments that nobody chose, several on one file, while the far side commits and then
//! answers, fails, breaks off or stays silent. Asserted is safety alone: whatever the moments were, nothing is made twice that must not be,
//! every run comes to rest, and the record says of no write that it did not happen when it did. The seed is printed on failure;
//! it fixes what is chosen, not how processes interleave.

#![allow(clippy::expect_used, reason = "helpers of a test fail by panicking")]

use leasehold::{
    run::{Effect, EntryBody, Outcome, Reason, ResolutionKind, RunId, Snapshot, State, Story},
    store::Filter,
};
use leasehold_testkit::{
    far_side::{FarSide, Then},
    home::{Home, Running},
};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

const SEED: u64 = 0x5eed_1ea5;
const RUNS: usize = 8;
const WORKERS: usize = 3;
/// How long processes are killed.
const STORM: Duration = Duration::from_secs(4);

/// A small generator (splitmix64): the choices of the test.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

fn home(far: &FarSide) -> Home {
    let home = Home::new(env!("CARGO_BIN_EXE_leasehold"));
    let mut config = r#"
[store]
url = "sqlite:leasehold.db"
[lease]
ttl = "500ms"
sweep_interval = "100ms"
max_requeues = 50
backoff = { initial = "20ms", factor = 1.0, max = "20ms", jitter = false }
[[model]]
name = "m"
provider = "scripted"
script = "script.toml"
[[agent]]
name = "a"
model = "m"
tools = ["ledger.*"]
"#
    .to_owned();
    let mut script = String::new();
    for (name, effect, approval) in [
        ("once", "non_idempotent_write", "none"),
        ("again", "idempotent_write", "none"),
        ("asked", "non_idempotent_write", "required"),
    ] {
        config.push_str(&format!(
            "[[tool.http]]\nname = \"ledger.{name}\"\ndescription = \"Append\"\neffect = \"{effect}\"\napproval = \"{approval}\"\n\
             method = \"POST\"\nurl = \"{}\"\ntimeout = \"400ms\"\n\
             parameters = {{ type = \"object\", properties = {{ text = {{ type = \"string\" }} }} }}\n",
            far.url("/append")
        ));
        script.push_str(&format!("[[reply]]\ncalls = [{{ tool = \"ledger.{name}\", arguments = {{ text = \"{name}\" }} }}]\n"));
    }
    script.push_str("[[reply]]\ntext = \"done\"\n");
    home.write("leasehold.toml", &config);
    home.write("script.toml", &script);
    home
}

fn behaviour(chance: &mut Chance) -> Then {
    match chance.below(8) {
        0 => Then::Answer(500, "commits and fails".into()),
        1 => Then::HangUp,
        2 => Then::Hold,
        3 => Then::Answer(400, "refused".into()),
        _ => Then::Answer(200, "appended".into()),
    }
}

/// Starts what a person does about a run that waits for one; it may be killed like any other process.
fn person(home: &Home, row: &Snapshot, chance: &mut Chance) -> Option<Running> {
    let id = row.id.to_string();
    match (row.state, row.reason) {
        (State::WaitingForApproval, _) => {
            let digest = row.turn.as_ref()?.digest.clone()?;
            let verb = if chance.one_in(6) { "deny" } else { "approve" };
            let mut arguments = vec![verb, &id, "--digest", &digest];
            arguments.extend(chance.one_in(2).then_some("--no-wait"));
            Some(home.start(&arguments, None))
        }
        (State::Dead, Some(Reason::WriteInDoubt)) => {
            let fence = row.fence.as_ref()?;
            let how = ["--landed", "--not-landed", "--abandon"][usize::try_from(chance.below(3)).ok()?];
            let epoch = fence.epoch.to_string();
            Some(home.start(&["resolve", &id, "--call", &fence.call_id.0, "--fence-epoch", &epoch, how], None))
        }
        (State::Dead, Some(_)) => Some(home.start(&["runs", "redrive", &id], None)),
        _ => None,
    }
}

async fn rows(home: &Home) -> Vec<Snapshot> {
    let store = home.store().await;
    let mut rows = Vec::new();
    for listed in store.list(&Filter::default(), None, 100).await.expect("the store answers") {
        rows.extend(store.load(listed.id).await.expect("it decodes"));
    }
    rows
}

fn is_at_rest(row: &Snapshot) -> bool {
    row.state.is_settled()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_moment_processes_are_killed_at_no_write_is_made_twice_or_denied() {
    let mut chance = Chance(SEED);
    let far = FarSide::start().await.expect("a port");
    let home = home(&far);
    far.then((0..200).map(|_| behaviour(&mut chance)).collect::<Vec<_>>());
    for _ in 0..RUNS {
        home.enqueue().await;
    }
    let mut workers: Vec<Running> = (0..WORKERS).map(|_| home.start(&["worker"], None)).collect();
    let mut people: Vec<Running> = Vec::new();
    let begun = Instant::now();
    let mut kills = 0;
    while begun.elapsed() < STORM {
        tokio::time::sleep(Duration::from_millis(20 + chance.below(120))).await;
        let victim = usize::try_from(chance.below(WORKERS as u64)).expect("small");
        // Dropped, the old one is killed.
        workers[victim] = home.start(&["worker"], None);
        kills += 1;
        if people.len() > 4 {
            people.remove(0);
        }
        let rows = rows(&home).await;
        let row = &rows[usize::try_from(chance.below(rows.len() as u64)).expect("small")];
        people.extend(person(&home, row, &mut chance));
        if chance.one_in(25) {
            people.push(home.start(&["runs", "cancel", &row.id.to_string()], None));
        }
    }
    drop(workers);
    drop(people);
    let _worker = home.start(&["worker"], None);
    let begun = Instant::now();
    loop {
        let open: Vec<Snapshot> = rows(&home).await.into_iter().filter(|row| !is_at_rest(row)).collect();
        if open.is_empty() {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "seed {SEED:#x}: not at rest: {open:#?}");
        for row in &open {
            far.release();
            if let Some(mut person) = person(&home, row, &mut chance) {
                person.ended().await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut requests: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for one in far.arrived() {
        requests.entry(one.header("idempotency-key")).or_default().push(one.text());
    }
    let context = format!("seed {SEED:#x}, {kills} kills, {} requests", far.arrived().len());
    assert_eq!(rows(&home).await.len(), RUNS, "{context}: a run was lost");
    for row in rows(&home).await {
        truthful(&home, row.id, &mut requests, &context).await;
    }
    assert!(requests.is_empty(), "{context}: keys that no run stamped: {requests:?}");
}

/// The record of one run says nothing that the far side contradicts.
async fn truthful(home: &Home, id: RunId, requests: &mut BTreeMap<String, Vec<String>>, context: &str) {
    let journal = home.journal(id).await;
    let told = || journal.iter().map(|e| e.body.kind()).collect::<Vec<_>>();
    for (call_id, call) in Story::of(&journal).calls {
        let bodies = requests.remove(&id.idempotency_key(&call_id)).unwrap_or_default();
        let context =
            format!("{context}: run {id} call {call_id}, {} requests, {:?}: {:?}", bodies.len(), call.outcome, told());
        assert!(bodies.iter().all(|body| *body == bodies[0]), "{context}");
        let not_landed = journal.iter().filter(
            |e| matches!(&e.body, EntryBody::Resolved(r) if r.call_id == call_id && r.outcome == ResolutionKind::NotLanded),
        );
        if call.asked.effect == Effect::NonIdempotentWrite {
            assert!(bodies.len() <= 1 + not_landed.count(), "{context}");
        }
        let outcomes = journal.iter().filter(|e| matches!(&e.body, EntryBody::ToolOutcome(o) if o.call_id == call_id));
        assert!(outcomes.count() <= 1, "{context}");
        let outcome = call.outcome.as_ref().map(|o| o.outcome);
        if matches!(outcome, Some(Outcome::NotRun | Outcome::NotApplied | Outcome::Denied | Outcome::Refused)) {
            assert!(bodies.is_empty(), "{context}");
        }
        assert!(bodies.is_empty() || outcome.is_some(), "{context}: forgotten");
    }
}
