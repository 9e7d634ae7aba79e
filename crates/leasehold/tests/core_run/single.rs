//! One run in the hands of one test.

use super::{given::*, world::World};
use leasehold::run::*;

pub(crate) const IDEM: Effect = Effect::IdempotentWrite;
pub(crate) const NON: Effect = Effect::NonIdempotentWrite;

/// A run in the hands of one test; time is its own.
pub(crate) struct Run {
    pub(crate) world: World,
    leases: u128,
    pub(crate) journal: Vec<EntryBody>,
}

impl Run {
    pub(crate) fn born(run: NewRun, grants: bool) -> Self {
        let first = grants.then(|| grant(1));
        let journal = birth(run.clone(), first.clone(), &now()).entries;
        Self { world: World::new(0, run, first), leases: 1, journal }
    }
    /// Claimed by its first worker.
    pub(crate) fn claimed() -> Self {
        let mut run = Self::born(new_run(Mode::Queue, None, false), false);
        run.claim();
        run
    }
    pub(crate) fn row(&self) -> &Snapshot {
        &self.world.row
    }
    pub(crate) fn state(&self) -> (State, Option<Reason>) {
        (self.row().state, self.row().reason)
    }
    pub(crate) fn right(&self) -> Right {
        Right { epoch: self.row().epoch, lease_id: self.row().lease.as_ref().unwrap().lease_id }
    }
    #[track_caller]
    pub(crate) fn ok(&mut self, event: Event) -> Vec<&'static str> {
        let delta = self.world.send(event).unwrap();
        let kinds = delta.entries.iter().map(EntryBody::kind).collect();
        self.journal.extend(delta.entries);
        kinds
    }
    #[track_caller]
    pub(crate) fn refused(&mut self, event: Event) -> &'static str {
        let before = self.row().clone();
        let code = self.world.send(event).unwrap_err().code();
        assert_eq!(&before, self.row());
        code
    }
    /// The next claim, when it is due.
    pub(crate) fn claim(&mut self) -> Right {
        self.leases += 1;
        self.world.seconds = self.world.seconds.max(self.row().due_at.as_second() - at(0).as_second() + 1);
        self.ok(Event::Claim { grant: grant(self.leases), claimer: claimer() });
        self.right()
    }
    #[track_caller]
    pub(crate) fn act(&mut self, act: Act) -> Vec<&'static str> {
        let right = self.right();
        self.ok(Event::Holder(right, act))
    }
    #[track_caller]
    pub(crate) fn cannot(&mut self, act: Act) -> &'static str {
        let right = self.right();
        self.refused(Event::Holder(right, act))
    }
    #[track_caller]
    pub(crate) fn order(&mut self, by: Principal, order: Order) -> Vec<&'static str> {
        self.ok(Event::Person(by, order))
    }
    pub(crate) fn reply(&mut self, calls: &[(Effect, bool)]) {
        let turn = self.row().rounds + 1;
        self.act(Act::Record(vec![reply(turn, calls)]));
    }
    /// A turn of one write, stamped.
    pub(crate) fn stamped(effect: Effect, verifiable: bool) -> (Self, Right) {
        let mut run = Self::claimed();
        run.reply(&[(effect, false)]);
        run.act(Act::Stamp(stamp(&c(0), effect, verifiable)));
        let right = run.right();
        (run, right)
    }
    pub(crate) fn expire(&mut self) -> Vec<&'static str> {
        let event = expiry(self.row());
        self.ok(event)
    }
    pub(crate) fn suspend(&mut self, calls: &[CallId], deadline: Option<i64>) -> String {
        self.act(Act::Suspend { card: card(WaitKind::Approval, calls), deadline: deadline.map(at) });
        self.digest()
    }
    pub(crate) fn digest(&self) -> String {
        self.row().turn.as_ref().unwrap().digest.clone().unwrap()
    }
    pub(crate) fn call(&self, index: usize) -> &OpenCall {
        &self.row().turn.as_ref().unwrap().calls[index]
    }
    pub(crate) fn stamps(&self) -> usize {
        self.journal.iter().filter(|e| matches!(e, EntryBody::WriteStamped(_) | EntryBody::WriteRestamped(_))).count()
    }
    pub(crate) fn last_outcome(&self) -> &body::ToolOutcome {
        let outcome = self.journal.iter().rev().find_map(|e| if let EntryBody::ToolOutcome(o) = e { Some(o) } else { None });
        outcome.unwrap()
    }
}

pub(crate) fn c(index: usize) -> CallId {
    call(1, index)
}

pub(crate) fn cancel() -> Order {
    Order::Cancel { note: None }
}

pub(crate) fn restamp(effect: Effect, found_absent: bool) -> Act {
    Act::Restamp { stamp: stamp(&c(0), effect, true), found_absent }
}

pub(crate) fn done(index: usize) -> Act {
    Act::Record(vec![outcome(&c(index), Outcome::Done, Via::Tool)])
}

pub(crate) fn resolve(fence_epoch: u64, outcome: ResolutionKind) -> Order {
    Order::Resolve { call_id: c(0), fence_epoch, outcome, result: None, note: None }
}

pub(crate) fn redrive() -> Order {
    Order::Redrive { approved_after: at(-10_000), note: None }
}

pub(crate) fn approve(digest: &str, calls: &[CallId]) -> Order {
    Order::Decide { digest: digest.into(), calls: calls.iter().map(|id| decided(id, true)).collect(), grant: None }
}
