//! Where the questions of running calls come in. A question is committed under the segment's lease before anybody sees it, and its
//! reply is what the journal says, whoever of whatever process wrote it.

use crate::{
    agent::{
        executor::Live,
        tool::{Asker, Continued, NotAsked, Reply, Shelf, Teller, ask::AskedBy},
    },
    run::{Act, CallId, CallInput, RunId, body},
    worker::{PutAside, Room, Segment, SegmentError, Signal},
};
use std::{collections::HashMap, sync::Arc};
use tokio::sync::{
    mpsc::{self, UnboundedSender},
    oneshot, watch,
};

/// A question that was asked and has no reply yet.
struct Standing {
    call: CallId,
    question: u64,
    reply: oneshot::Sender<Result<Reply, NotAsked>>,
}

/// What there is to do.
pub(super) enum Woken {
    /// A call asks.
    Asked(AskedBy),
    /// The journal has grown: a reply may be in it.
    Moved,
}

/// What people said to what a call asked before it goes on.
fn continued(asked: &CallInput) -> Continued {
    let reply = |values: &Option<_>| values.clone().map_or(Reply::Declined, Reply::Values);
    Continued {
        questions: asked.required.questions.clone(),
        replies: asked.replies.iter().map(|(question, values)| (question.clone(), reply(values))).collect(),
        state: asked.required.state.clone(),
        rounds: asked.rounds,
    }
}

/// The questions of the calls that run now. Dropped, every question that stands is over.
pub(super) struct Desk {
    sender: mpsc::Sender<AskedBy>,
    asked: mpsc::Receiver<AskedBy>,
    signal: watch::Receiver<Signal>,
    standing: Vec<Standing>,
    closed: Option<NotAsked>,
    run: RunId,
    room: Arc<Room>,
    shelves: HashMap<CallId, Shelf>,
    live: Option<UnboundedSender<Live>>,
}

impl Desk {
    pub(super) fn new(segment: &Segment, live: Option<UnboundedSender<Live>>) -> Self {
        let (sender, asked) = mpsc::channel(1);
        let (run, room) = (segment.run(), segment.room());
        let (signal, standing, shelves) = (segment.signal(), Vec::new(), HashMap::new());
        Self { sender, asked, signal, standing, closed: None, run, room, shelves, live }
    }

    /// For one entry of a call.
    pub(super) fn asker(&mut self, segment: &Segment, call: &CallId) -> Asker {
        let shelf = Shelf::new(&self.room);
        self.shelves.insert(call.clone(), shelf.clone());
        let teller = self.live.clone().map(|live| Teller::new(self.run, call.clone(), live));
        let requires = segment.story().calls.get(call).and_then(|call| call.requires.as_ref());
        let continued = requires.filter(|requires| !requires.required.questions.is_empty()).map(continued);
        Asker::new(call.clone(), self.sender.clone(), continued).with(shelf, teller.unwrap_or_default())
    }

    /// What the newest entry of a call has put aside, once.
    pub(super) fn put_aside(&mut self, call: &CallId) -> Vec<PutAside> {
        self.shelves.remove(call).map(|shelf| shelf.take()).unwrap_or_default()
    }

    /// Somebody waits for a person.
    pub(super) fn is_asking(&self) -> bool {
        !self.standing.is_empty()
    }

    /// Every question from now on, and each that stands, has no reply for this reason.
    pub(super) fn close(&mut self, why: &NotAsked) {
        let why = self.closed.get_or_insert_with(|| why.clone());
        for standing in self.standing.drain(..) {
            // A call that does not wait any more does not want to know.
            standing.reply.send(Err(why.clone())).ok();
        }
    }

    /// The call has ended: nobody waits for its reply.
    pub(super) fn ended(&mut self, call: &CallId) {
        self.standing.retain(|standing| standing.call != *call);
    }

    /// Ends when there is something to do, for a holder that knows so many entries.
    pub(super) async fn woken(&mut self, known: u64) -> Woken {
        let asking = !self.standing.is_empty();
        let moved = async {
            let looked = self.signal.wait_for(|signal| signal.sequence > known).await.map(|_| ());
            if looked.is_err() {
                // The heartbeat is gone with its process.
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            Some(asked) = self.asked.recv() => Woken::Asked(asked),
            () = moved, if asking => Woken::Moved,
            // The desk has a sender of its own, so that the channel is never closed.
            else => std::future::pending().await,
        }
    }

    /// Asks, or looks whether somebody has replied.
    ///
    /// # Errors
    /// The right is gone, or the record does not decode: whoever asked has not been told.
    pub(super) async fn serve(&mut self, segment: &mut Segment, woken: Woken) -> Result<(), SegmentError> {
        match woken {
            Woken::Moved => segment.refresh().await?,
            Woken::Asked(asked) => self.ask(segment, asked).await?,
        }
        self.deliver(segment);
        Ok(())
    }

    async fn ask(&mut self, segment: &mut Segment, asked: AskedBy) -> Result<(), SegmentError> {
        let AskedBy { call, prompt, schema, reply } = asked;
        if let Some(why) = &self.closed {
            reply.send(Err(why.clone())).ok();
            return Ok(());
        }
        self.ended(&call);
        if reply.is_closed() {
            // Taken back before it was asked.
            return Ok(());
        }
        let question = body::Question { call_id: call.clone(), prompt, schema };
        match segment.commit(vec![Act::Question(question)]).await {
            Ok(()) => {
                if let Some(asked) = segment.story().calls.get(&call).and_then(|call| call.question.as_ref()) {
                    self.standing.push(Standing { call, question: asked.sequence, reply });
                }
                Ok(())
            }
            Err(SegmentError::Rejected(rejection)) => {
                let why = if segment.is_cancelled() { NotAsked::Cancelled } else { NotAsked::Refused(rejection.to_string()) };
                reply.send(Err(why)).ok();
                Ok(())
            }
            Err(error) => {
                reply.send(Err(NotAsked::Lost)).ok();
                Err(error)
            }
        }
    }

    /// Hands out the replies that are in the journal by now.
    pub(super) fn deliver(&mut self, segment: &Segment) {
        for standing in std::mem::take(&mut self.standing) {
            let asked = segment.story().calls.get(&standing.call).and_then(|call| call.question.as_ref());
            match asked.filter(|asked| asked.sequence == standing.question).map(|asked| &asked.reply) {
                Some(Some(answered)) => {
                    let reply = answered.values.clone().map_or(Reply::Declined, Reply::Values);
                    standing.reply.send(Ok(reply)).ok();
                }
                _ => self.standing.push(standing),
            }
        }
    }
}
