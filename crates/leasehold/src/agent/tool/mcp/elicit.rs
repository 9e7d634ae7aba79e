//! Where a server asks a person in the middle of a call. Where its operator gave people time for that (`questions`), the question goes
//! to the person behind the call's [`Asker`], in the server's name and with the server's schema; only what that person said goes back.
//! Where nobody said anything, there is no answer: accepting would invent values, declining and cancelling would be decisions in
//! somebody's name, and all three are a person's alone.
//!
//! An older server asks on the connection of the call (`elicitation/create`), without saying for which call: so its calls have one
//! turn after the other, the floor is that call's alone, and a connection on which a call was left unanswered is not used again.
//! No answer is an error answer then. Since 2026-07-28 the call itself ends in the questions: the run waits for the replies as it waits
//! for any input, without a process or a connection, and makes the call again with them; without a reply it is not made again.

use super::{deadline::Deadline, error::McpError, mask::Mask};
use crate::{
    agent::tool::{Asker, InputRequired, NotAsked, Reply},
    run::InputQuestion,
};
use rmcp::model::{
    ElicitRequestParams, ElicitResult, ElicitationAction, ErrorCode, ErrorData, InputRequest, InputRequiredResult,
    InputResponses,
};
use serde_json::Value;
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

const NOBODY: &str = "nobody can be asked here: `questions` is not set for this server, and nothing is answered for a person";
const NOT_SHOWN: &str = "the question cannot be shown here";

/// The answer to `elicitation/create` where `questions` is not set.
pub(super) fn nobody() -> ErrorData {
    ErrorData::new(ErrorCode::INVALID_REQUEST, NOBODY, None)
}

/// The answer to a question of a form that is not known here.
pub(super) fn not_shown() -> ErrorData {
    ErrorData::new(ErrorCode::INVALID_PARAMS, NOT_SHOWN, None)
}

/// Why a call that ended in a question of a form that is not known here has no result.
pub(super) fn ended_in_no_form() -> String {
    format!("the server asks for input before it goes on, and {NOT_SHOWN}")
}

fn over() -> ErrorData {
    ErrorData::new(ErrorCode::INVALID_REQUEST, "the call that this would belong to is over", None)
}

/// A server's question on its way to the call that has its turn.
#[derive(Debug)]
struct Question {
    asked: ElicitRequestParams,
    answer: oneshot::Sender<Result<ElicitResult, ErrorData>>,
}

/// Where the questions of one connection are heard: by the one call that has its turn on it, and by nobody between calls.
#[derive(Clone, Debug, Default)]
pub(super) struct Floor(Arc<Mutex<Option<mpsc::Sender<Question>>>>);

impl Floor {
    fn lock(&self) -> MutexGuard<'_, Option<mpsc::Sender<Question>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a question to the call that has its turn. `withdrawn`: the server wants no answer any more.
    pub(super) async fn ask(
        &self,
        asked: ElicitRequestParams,
        withdrawn: CancellationToken,
    ) -> Result<ElicitResult, ErrorData> {
        let Some(call) = self.lock().clone() else { return Err(over()) };
        let (answer, answered) = oneshot::channel();
        let answered = async {
            call.send(Question { asked, answer }).await.map_err(|_| over())?;
            answered.await.unwrap_or_else(|_| Err(over()))
        };
        tokio::select! {
            answered = answered => answered,
            () = withdrawn.cancelled() => Err(over()),
        }
    }

    /// Waits for the end of a call, and has a person answer what the server asks meanwhile; the deadline stands still for that.
    pub(super) async fn during<T>(&self, call: impl Future<Output = T>, person: &mut Person<'_>, deadline: &Deadline) -> T {
        let (sender, mut asked) = mpsc::channel(1);
        *self.lock() = Some(sender);
        let _ends_with_the_call = Cleared(self);
        tokio::pin!(call);
        loop {
            let question = tokio::select! {
                biased;
                ended = &mut call => return ended,
                Some(question) = asked.recv() => question,
            };
            tokio::select! {
                biased;
                ended = &mut call => return ended,
                () = person.answer(question, deadline) => {}
            }
        }
    }
}

struct Cleared<'a>(&'a Floor);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

fn result(reply: Reply) -> ElicitResult {
    match reply {
        Reply::Values(values) => ElicitResult::new(ElicitationAction::Accept).with_content(Value::Object(values)),
        Reply::Declined => ElicitResult::new(ElicitationAction::Decline),
    }
}

/// With what a call goes on that had ended in questions.
pub(super) struct Resumed {
    pub(super) responses: InputResponses,
    /// As the server gave it.
    pub(super) state: Option<String>,
}

/// The person behind one call, and the time that is left to ask.
pub(super) struct Person<'a> {
    asker: &'a mut Asker,
    server: &'a str,
    mask: &'a Mask,
    limit: Option<Duration>,
    left: Duration,
    was_asked: bool,
}

impl<'a> Person<'a> {
    /// `limit`: how long they have to answer, in all; none: they are not asked.
    pub(super) fn new(asker: &'a mut Asker, server: &'a str, mask: &'a Mask, limit: Option<Duration>) -> Self {
        Self { asker, server, mask, limit, left: limit.unwrap_or_default(), was_asked: false }
    }

    pub(super) fn was_asked(&self) -> bool {
        self.was_asked
    }

    /// The call's turn at the server, for one that cannot say for which call it asks. To wait for somebody else's person counts as to
    /// wait for one's own. None: nobody is asked, so that there is no turn to wait for.
    pub(super) async fn turn<'t>(
        &mut self,
        turns: &'t tokio::sync::Mutex<()>,
    ) -> Result<Option<tokio::sync::MutexGuard<'t, ()>>, McpError> {
        if self.limit.is_none() {
            return Ok(None);
        }
        let begun = Instant::now();
        let turn = tokio::time::timeout(self.left, turns.lock()).await;
        self.left = self.left.saturating_sub(begun.elapsed());
        turn.map(Some).map_err(|_| McpError::Busy)
    }

    async fn answer(&mut self, question: Question, deadline: &Deadline) {
        let Question { asked, mut answer } = question;
        let _stands_still = deadline.stands_still();
        let said = tokio::select! {
            biased;
            // Whoever asked does not want to know any more.
            () = answer.closed() => return,
            said = self.ask(&asked) => said,
        };
        answer.send(said).ok();
    }

    /// What a call needs that ended in questions, for people to reply to while nothing runs.
    ///
    /// # Errors
    /// They cannot be asked that: the call does not go on.
    pub(super) fn needs(&self, question: InputRequiredResult) -> Result<InputRequired, String> {
        if self.limit.is_none() || !self.asker.can_wait() {
            return Err(format!("the server asks for input before it goes on, and {NOBODY}"));
        }
        let requests = question.input_requests.unwrap_or_default();
        if requests.is_empty() {
            return Err("the server puts the call off and asks nothing, which is not waited for here".into());
        }
        let mut questions = Vec::new();
        for (id, request) in requests {
            let InputRequest::Elicitation(request) = request else {
                return Err("the server needs what is not switched on: it asks for a model or for files of ours".into());
            };
            let shown = self
                .shown(&request.params)
                .map_err(|why| format!("the server asks for input before it goes on: {}", why.message))?;
            questions.push(InputQuestion { id, prompt: shown.0, schema: shown.1 });
        }
        let input = InputRequired { questions, state: question.request_state };
        let rounds = self.asker.continued().map_or(0, |continued| continued.rounds);
        input.check(rounds).map_err(|why| format!("the server asks for input before it goes on, and {NOT_SHOWN}: {why}"))?;
        Ok(input)
    }

    /// With what a call goes on that had ended in questions.
    pub(super) fn resumed(&self) -> Option<Resumed> {
        let continued = self.asker.continued()?;
        let mut responses = InputResponses::new();
        for (id, reply) in &continued.replies {
            // A result of plain values has no failing case.
            responses.insert(id.clone(), serde_json::to_value(result(reply.clone())).unwrap_or_default());
        }
        Some(Resumed { responses, state: continued.state.clone() })
    }

    /// Somebody did not want to reply.
    pub(super) fn has_declined(&self) -> bool {
        self.asker.continued().is_some_and(|continued| continued.replies.values().any(|reply| *reply == Reply::Declined))
    }

    /// With what a call goes on that the server began anew, because it did not know its own state any more: where it asks the very same,
    /// nobody is asked twice.
    pub(super) fn resumed_as(&self, input: &InputRequired) -> Option<Resumed> {
        let asked_again = self.asker.continued()?.questions == input.questions;
        self.resumed().filter(|_| asked_again).map(|resumed| Resumed { state: input.state.clone(), ..resumed })
    }

    /// A question as a person sees it: words and schema.
    fn shown(&self, asked: &ElicitRequestParams) -> Result<(String, Value), ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } = asked else {
            return Err(ErrorData::new(ErrorCode::INVALID_PARAMS, "a question at a URL cannot be shown here", None));
        };
        let schema = serde_json::to_string(requested_schema).map_err(|_| not_shown())?;
        let schema = serde_json::from_str(&self.mask.over(&schema)).map_err(|_| not_shown())?;
        Ok((format!("{} asks: {}", self.server, self.mask.over(message)), schema))
    }

    /// Asks: what the person says, or why there is no answer.
    async fn ask(&mut self, asked: &ElicitRequestParams) -> Result<ElicitResult, ErrorData> {
        let (prompt, schema) = self.shown(asked)?;
        self.was_asked = true;
        let begun = Instant::now();
        let said = tokio::time::timeout(self.left, self.asker.ask(&prompt, schema)).await;
        self.left = self.left.saturating_sub(begun.elapsed());
        let none = |why: String| Err(ErrorData::new(ErrorCode::INTERNAL_ERROR, why, None));
        match said {
            Ok(Ok(reply)) => Ok(result(reply)),
            Ok(Err(NotAsked::Refused(why))) => {
                Err(ErrorData::new(ErrorCode::INVALID_PARAMS, format!("{NOT_SHOWN}: {why}"), None))
            }
            Ok(Err(why)) => none(format!("no person answered: {why}")),
            Err(_) => none(format!("no person answered within {:?}", self.limit.unwrap_or_default())),
        }
    }
}
