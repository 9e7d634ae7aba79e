//! What people read about a run, whatever it contains.

use super::*;
use leasehold::{clock::ManualClock, run::*};
use serde_json::json;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_225_600 + second).unwrap()
}

fn object(value: Value) -> Map<String, Value> {
    value.as_object().unwrap().clone()
}

fn run_id() -> RunId {
    "01234567-89ab-7cde-8123-456789abcdef".parse().unwrap()
}

fn row(state: State, reason: Option<Reason>) -> Snapshot {
    Snapshot {
        id: run_id(),
        agent: "editor".into(),
        owner: "local:ann".into(),
        initiator: "local:ann".into(),
        team: None,
        mode: Mode::Wait,
        state,
        reason,
        epoch: 1,
        sequence: 0,
        lease: None,
        next_segment: SegmentKind::Resume,
        cancel_requested: false,
        recovery: Recovery::Requeue,
        recovery_explicit: false,
        requeues: 0,
        priority: 0,
        due_at: at(0),
        fence: None,
        turn: None,
        has_request: true,
        second_approver: false,
        rounds: 1,
        usage: Usage { input_tokens: 120, output_tokens: 30, cached_tokens: 0, reasoning_tokens: 12, cost_nano_usd: 0 },
        duplicates: 0,
        contradictions: 0,
        attribution: None,
        chain: None,
        created_at: at(0),
        started_at: Some(at(0)),
        finished_at: None,
        since: at(2),
    }
}

fn open_call(effect: Effect) -> OpenCall {
    OpenCall {
        id: CallId::of(1, 0),
        tool: "ledger.append".into(),
        effect,
        needs_person: true,
        verdict: None,
        outcome: None,
        stamps: Vec::new(),
        absent: false,
        evidence: None,
        question: None,
    }
}

fn entries(bodies: Vec<(i64, EntryBody)>) -> Vec<Entry> {
    bodies
        .into_iter()
        .enumerate()
        .map(|(index, (second, body))| Entry {
            sequence: index as u64,
            at: at(second),
            epoch: 1,
            holder: Some("interactive:web-01:4711".into()),
            mac: None,
            write_id: WriteId::random(),
            body,
        })
        .collect()
}

fn born(task: &str) -> EntryBody {
    EntryBody::Started(body::Born {
        request: Request { messages: vec![InputMessage { role: Role::User, text: task.into() }], ..Request::default() },
        mode: Mode::Wait,
        recovery: Recovery::Abandon,
        agent_version: "v".into(),
        by: Principal::person("local:ann"),
        lease_id: None,
    })
}

fn reply(arguments: Value) -> EntryBody {
    EntryBody::ModelReply(body::ModelReply {
        turn: 1,
        text: "I will note it.".into(),
        calls: vec![ReplyCall {
            id: CallId::of(1, 0),
            tool: "ledger.append".into(),
            raw_arguments: arguments.to_string(),
            arguments: Some(object(arguments)),
            effect: Effect::NonIdempotentWrite,
            needs_person: true,
        }],
        model: "default".into(),
        stop: "tool_calls".into(),
        usage: Usage::default(),
        opaque: None,
    })
}

fn suspended(arguments: Value, preview: Option<&str>) -> EntryBody {
    let card = TurnCard {
        kind: WaitKind::Approval,
        turn: 1,
        agent_version: "v".into(),
        calls: vec![CardCall {
            id: CallId::of(1, 0),
            tool: ToolIdentity {
                source: "http".into(),
                name: "ledger.append".into(),
                endpoint: "POST http://127.0.0.1:9000/append".into(),
                schema_hash: "h".into(),
                effect: Effect::NonIdempotentWrite,
                approval: "required".into(),
            },
            arguments: object(arguments),
            preview: preview.map(Into::into),
            precondition: None,
            preview_for: None,
            why: None,
        }],
        schema: None,
        question: None,
    };
    EntryBody::Suspended(body::Suspended { digest: "d1".into(), card, deadline: None })
}

fn waiting_run(arguments: Value, preview: Option<&str>) -> (Snapshot, Vec<Entry>) {
    let mut row = row(State::WaitingForApproval, None);
    row.turn = Some(OpenTurn {
        number: 1,
        digest: Some("d1".into()),
        deadline: None,
        on_expiry: OnExpiry::Continue,
        edited_by: Vec::new(),
        calls: vec![open_call(Effect::NonIdempotentWrite)],
        earlier: Vec::new(),
    });
    (row, entries(vec![(0, born("Note it")), (1, reply(arguments.clone())), (2, suspended(arguments, preview))]))
}

fn doubtful_run() -> (Snapshot, Vec<Entry>) {
    let key = run_id().idempotency_key(&CallId::of(1, 0));
    let lease_id = LeaseId::random();
    let mut row = row(State::Dead, Some(Reason::WriteInDoubt));
    row.fence = Some(Fence {
        call_id: CallId::of(1, 0),
        tool: "ledger.append".into(),
        effect: Effect::NonIdempotentWrite,
        idempotency_key: key.clone(),
        epoch: 1,
        lease_id,
        attempt: 1,
        repeat: false,
        verifiable: false,
        stamped_at: at(5),
        in_flight_until: at(35),
    });
    let stamped = body::Stamped {
        call_id: CallId::of(1, 0),
        tool: "ledger.append".into(),
        effect: Effect::NonIdempotentWrite,
        idempotency_key: key.clone(),
        attempt: 1,
        endpoint: "POST http://ledger.example/append".into(),
    };
    let mut all = entries(vec![
        (0, born("Note it")),
        (1, reply(json!({ "text": "hello" }))),
        (5, EntryBody::WriteStamped(stamped)),
        (
            70,
            EntryBody::InDoubt(body::InDoubt {
                call_id: CallId::of(1, 0),
                tool: "ledger.append".into(),
                idempotency_key: key,
                fence_epoch: 1,
                why: "its holder's lease ended while the write was in flight".into(),
            }),
        ),
    ]);
    all[3].holder = None;
    all[3].epoch = 2;
    (row, all)
}

fn shown(row: &Snapshot, entries: &[Entry], second: i64) -> String {
    let clock = ManualClock::new();
    let mut screen = Screen::new(false);
    show(
        &mut screen,
        &Subject {
            row,
            entries,
            boot: &*clock,
            unreadable: None,
            similar: None,
            unserved: None,
            now: at(second),
            command: "leasehold",
        },
    );
    screen.into_text()
}

fn first_line(row: &Snapshot, entries: &[Entry]) -> String {
    shown(row, entries, 100).lines().next().unwrap().to_owned()
}

#[test]
fn a_write_in_doubt_is_explained_on_one_screen_with_the_commands_that_settle_it() {
    let (row, entries) = doubtful_run();
    let text = shown(&row, &entries, 100);
    assert_eq!(
        text.lines().next().unwrap(),
        "In doubt: ledger.append may have happened once; nobody knows. Nothing repeats it until a person says what is true."
    );
    for part in [
        "lh-",
        "POST http://ledger.example/append",
        "interactive:web-01:4711 (epoch 1)",
        "text: \"hello\"",
        "attempt 1",
        "none: the far side cannot be asked",
        "leasehold resolve 01234567-89ab-7cde-8123-456789abcdef --call t1c0 --fence-epoch 1 --landed",
        "--not-landed",
        "--abandon",
        "its holder's lease ended while the write was in flight",
    ] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
    assert!(text.lines().count() <= 50, "one screen:\n{text}");
}

#[test]
fn a_doubt_tells_programs_what_it_tells_people() {
    let (row, mut entries) = doubtful_run();
    let clock = ManualClock::new();
    let fence = row.fence.clone().unwrap();
    let ended = LeaseTime { clock: leasehold::store::postgres::CLOCK.into(), ns: at(68).as_nanosecond().try_into().unwrap() };
    let (holder, lease_id) = ("interactive:web-01:4711".into(), fence.lease_id);
    entries[3].body = EntryBody::LeaseExpired(body::LeaseExpired { holder, epoch: 1, lease_id, expires_at: Some(ended) });
    let late = body::LateEvidence {
        call_id: fence.call_id.clone(),
        epoch: 1,
        lease_id,
        answer: leasehold::run::LateAnswer::Unknown,
        is_error: true,
        result: json!("timed out"),
        contradicts: false,
    };
    entries.push(Entry { sequence: 4, at: at(80), body: EntryBody::LateEvidence(late), ..entries[3].clone() });
    let told = |second| {
        let subject = Subject {
            row: &row,
            entries: &entries,
            boot: &*clock,
            unreadable: None,
            similar: None,
            unserved: None,
            now: at(second),
            command: "leasehold",
        };
        serde_json::to_value(crate::wire::Run::new(&subject)).unwrap()["doubt"].clone()
    };
    assert_eq!(
        told(20),
        json!({
            "tool": "ledger.append",
            "call_id": "t1c0",
            "arguments": { "text": "hello" },
            "idempotency_key": fence.idempotency_key,
            "endpoint": "POST http://ledger.example/append",
            "stamped_at": at(5),
            "stamped_by": "interactive:web-01:4711",
            "last_renewal_held_until": at(68),
            "in_flight_until": at(35),
            "may_still_be_in_flight": true,
            "why": "its process ended without a word",
            "evidence": [{ "at": at(80), "epoch": 1, "answer": "unknown" }],
            "check": format!("look at the far side for the key {}, which went with the write", fence.idempotency_key),
        })
    );
    assert_eq!(told(100)["may_still_be_in_flight"], false);
    let text = shown(&row, &entries, 100);
    for part in ["for the last time until 2026-01-01 00:01:08Z (32s ago)", "does not know either", "to check"] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
    let mut settled = row.clone();
    settled.reason = Some(Reason::Abandoned);
    let subject = Subject {
        row: &settled,
        entries: &entries,
        boot: &*clock,
        unreadable: None,
        similar: None,
        unserved: None,
        now: at(20),
        command: "leasehold",
    };
    assert_eq!(serde_json::to_value(crate::wire::Run::new(&subject)).unwrap().get("doubt"), None);
}

#[test]
fn whatever_ends_a_run_with_a_standing_fence_names_the_write() {
    let unknown = "ledger.append may have happened, nobody knows";
    for reason in [Reason::RetriesExhausted, Reason::Abandoned, Reason::Unreadable, Reason::DecisionExpired, Reason::Restored] {
        let (mut dead, entries) = doubtful_run();
        dead.reason = Some(reason);
        assert!(first_line(&dead, &entries).contains(unknown), "{reason}: {}", first_line(&dead, &entries));
        dead.fence = None;
        assert!(!first_line(&dead, &entries).contains(unknown), "{reason}: {}", first_line(&dead, &entries));
    }
}

#[test]
fn a_read_without_an_answer_is_no_write_that_may_have_happened() {
    let unknown = EntryBody::ToolOutcome(body::ToolOutcome {
        call_id: CallId::of(1, 0),
        tool: "ledger.read".into(),
        outcome: Outcome::Unknown,
        is_error: true,
        result: json!("it did not answer"),
        late: false,
        via: Via::Tool,
        evidence: None,
    });
    let entries = entries(vec![(0, unknown)]);
    assert_eq!(first_line(&row(State::Completed, None), &entries), "Completed: 1 model reply, nothing was written.");
}

#[test]
fn a_write_that_may_still_be_on_its_way_says_until_when() {
    let (row, entries) = doubtful_run();
    let text = shown(&row, &entries, 10);
    assert!(text.contains("may still be in flight until 2026-01-01 00:00:35Z (in 25s)"), "{text}");
    assert!(text.contains("\"it did not\" is taken from 2026-01-01 00:00:35Z on"), "{text}");
}

#[test]
fn a_waiting_run_shows_the_card_and_how_to_decide() {
    let (row, entries) = waiting_run(json!({ "text": "hello" }), Some("description: \"old\" -> \"new\""));
    let text = shown(&row, &entries, 10);
    assert!(text.starts_with("Waits for a person: ledger.append runs only if somebody approves it."), "{text}");
    for part in [
        "write; a repeat is a second effect",
        "POST http://127.0.0.1:9000/append",
        "text: \"hello\"",
        "description: \"old\" -> \"new\"",
        "leasehold approve 01234567-89ab-7cde-8123-456789abcdef --digest d1",
        "leasehold deny 01234567-89ab-7cde-8123-456789abcdef --digest d1",
    ] {
        assert!(text.contains(part), "{part} in:\n{text}");
    }
}

#[test]
fn no_argument_preview_or_task_can_draw_a_prompt() {
    let evil = "x\u{1b}[2J\u{1b}]0;t\u{7}\rApproved. y/n?\u{8}\u{202e}\u{200b}";
    let several = format!("a\n    leasehold approve {evil}\nc");
    let (row, mut entries) =
        waiting_run(json!({ "text": several, "other": evil, "nested": { "k\n": [evil] } }), Some(&several));
    entries[0].body = born(evil);
    let text = shown(&row, &entries, 10);
    assert!(!text.chars().any(|c| c != '\n' && c.is_control()), "{text:?}");
    assert!(!text.contains(['\u{202e}', '\u{200b}']), "{text:?}");
    let forged = text.lines().filter(|line| line.trim_start().starts_with("leasehold approve")).count();
    assert_eq!(forged, 1, "only our own line begins so:\n{text}");
}

#[test]
fn what_a_run_waits_for_and_cannot_be_read_is_said_and_can_only_be_ended() {
    let (row, entries) = waiting_run(json!({ "text": "hello" }), None);
    let without_turn = Snapshot { turn: None, ..row.clone() };
    let without_card = entries[..2].to_vec();
    for state in [State::WaitingForApproval, State::WaitingForInput] {
        for (row, entries) in [(&without_turn, &entries), (&row, &without_card), (&without_turn, &Vec::new())] {
            let text = shown(&Snapshot { state, ..row.clone() }, entries, 10);
            let first = text.lines().next().unwrap();
            assert!(first.starts_with("Waits for a person, and what it waits for cannot be read"), "{text}");
            assert!(text.contains("leasehold runs cancel 01234567") && !text.contains("leasehold approve"), "{text}");
        }
    }
}

#[test]
fn a_run_that_its_living_process_gave_up_does_not_say_that_the_process_ended() {
    let given_up = |holder: Option<&str>| {
        let body = EntryBody::DeadLettered(body::DeadLettered { reason: Reason::Abandoned, detail: "unknown".into() });
        let mut entries = entries(vec![(1, body)]);
        entries[0].holder = holder.map(Into::into);
        first_line(&row(State::Dead, Some(Reason::Abandoned)), &entries)
    };
    assert_eq!(
        given_up(Some("interactive:web-01:4711")),
        "Dead: its process gave it up, and nobody else goes on with it (unknown)."
    );
    assert_eq!(given_up(None), "Dead: its process lost it or ended, and nobody waits for it any more (unknown).");
}

#[test]
fn each_state_has_its_sentence() {
    let (mut queued, entries) = doubtful_run();
    (queued.state, queued.reason, queued.fence) = (State::Queued, None, None);
    assert_eq!(first_line(&queued, &entries), "Queued: waits for a worker.");
    let mut running = row(State::Running, None);
    running.lease = Some(Lease {
        lease_id: LeaseId::random(),
        holder: "worker:web-01:4711".into(),
        expires_at: LeaseTime { clock: "boot-1".into(), ns: 31_000_000_000 },
    });
    assert_eq!(first_line(&running, &[]), "Running: worker:web-01:4711 executes it.");
    assert!(shown(&running, &[], 0).contains("lease until 2026-01-01 00:00:30Z (in 30s)"));
    assert_eq!(first_line(&row(State::Cancelled, None), &[]), "Cancelled.");
    let failed = entries_of_end(State::Failed, Some(Reason::ModelAuth), "401 from the provider");
    assert_eq!(
        first_line(&row(State::Failed, Some(Reason::ModelAuth)), &failed),
        "Failed: the model's provider did not accept the credentials (401 from the provider)."
    );
    let completed = entries_of_end(State::Completed, None, "");
    assert_eq!(first_line(&row(State::Completed, None), &completed), "Completed: 1 model reply, nothing was written.");
    assert_eq!(first_line(&row(State::Dead, Some(Reason::RetriesExhausted)), &[]), "Dead: given up after 0 requeues.");
}

fn entries_of_end(state: State, reason: Option<Reason>, detail: &str) -> Vec<Entry> {
    let output = (state == State::Completed).then(|| "Done.".to_owned());
    entries(vec![(1, EntryBody::Settled(body::Settled { state, reason, output, truncated: false, detail: detail.into() }))])
}

#[test]
fn a_long_journal_keeps_its_beginning_and_its_end() {
    let opened = || EntryBody::SegmentOpened(body::SegmentOpened { segment: SegmentKind::Worker, lease_id: LeaseId::random() });
    let all = entries((0..100).map(|n| (n, opened())).collect());
    let text = shown(&row(State::Queued, None), &all, 100);
    assert!(text.contains("... 70 entries; all: leasehold runs follow"), "{text}");
    assert!(text.contains("+5.0s") && !text.contains("+6.0s") && text.contains("+76.0s") && text.contains("+99.0s"), "{text}");
}

#[test]
fn the_wire_object_has_the_keys_of_the_contract() {
    let (row, entries) = waiting_run(json!({ "text": "hello" }), None);
    let clock = ManualClock::new();
    let run = serde_json::to_value(crate::wire::Run::new(&Subject {
        row: &row,
        entries: &entries,
        boot: &*clock,
        unreadable: None,
        similar: None,
        unserved: None,
        now: at(10),
        command: "leasehold",
    }))
    .unwrap();
    let keys: Vec<&str> = run.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = vec![
        "id",
        "agent",
        "state",
        "reason",
        "mode",
        "recovery",
        "owner",
        "initiator",
        "holder",
        "epoch",
        "lease_expires_at",
        "cancel_requested",
        "fence",
        "waiting",
        "questions",
        "decisions",
        "output",
        "truncated",
        "rounds",
        "usage",
        "cost",
        "requeues",
        "error",
        "created_at",
        "started_at",
        "finished_at",
        "metadata",
        "attribution",
    ];
    expected.sort_unstable();
    let mut sorted = keys;
    sorted.sort_unstable();
    assert_eq!(sorted, expected);
    assert_eq!(run["waiting"]["turn_digest"], "d1");
    assert_eq!(run["waiting"]["calls"][0]["tool"], "ledger.append");
    assert_eq!(run["waiting"]["calls"][0]["source"], "http");
    assert_eq!(run["waiting"]["calls"][0]["decision"], Value::Null);
}

#[test]
fn of_a_settled_run_that_cannot_be_read_nothing_is_said_of_what_it_wrote() {
    let (mut row, entries) = waiting_run(json!({ "text": "hello" }), None);
    row.state = State::Completed;
    let clock = ManualClock::new();
    let whole = Subject {
        row: &row,
        entries: &entries[..1],
        boot: &*clock,
        unreadable: None,
        similar: None,
        unserved: None,
        now: at(10),
        command: "leasehold",
    };
    assert!(sentence(&whole).1.contains("nothing was written"));
    let broken = Subject { unreadable: Some("entry 2 does not decode"), ..whole };
    let (_, said) = sentence(&broken);
    assert!(said.contains("cannot be read: entry 2 does not decode") && !said.contains("written"), "{said}");
    let mut screen = Screen::new(false);
    show(&mut screen, &broken);
    assert!(screen.into_text().contains("it is not shown whole: entry 2 does not decode"));
    let run = serde_json::to_value(crate::wire::Run::new(&broken)).unwrap();
    assert_eq!(run["unreadable"], "entry 2 does not decode");
}
