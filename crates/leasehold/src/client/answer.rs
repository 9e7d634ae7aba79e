//! Answers to what a running call asks.

use super::{input::check, *};

/// What a person says to a question.
#[derive(Clone, Debug)]
pub struct QuestionAnswer {
    /// The call that asks.
    pub call_id: CallId,
    /// Which of its questions: the number of its entry.
    pub question: u64,
    /// Values that fit the question's schema; none: they decline.
    pub values: Option<Map<String, Value>>,
    /// Who.
    pub by: Principal,
}

impl Runtime {
    /// Answers a question that stands. The values are validated before anything is consumed; the process that runs the call hears of
    /// them within about a second, wherever it is.
    ///
    /// # Errors
    /// Values that do not fit, with a pointer each; refused with the rule's name. Nothing has changed then.
    pub async fn answer(&self, id: RunId, said: QuestionAnswer) -> Result<Snapshot, OrderError> {
        let row = self.engine.load(id).await?;
        let stands = row.questions().any(|(call, question)| call.id == said.call_id && question == said.question);
        if !stands {
            return self.answered_before(row, &said).await;
        }
        if let Some(values) = &said.values {
            let entries = self.engine.journal_page(id, said.question, 1).await?;
            let Some(crate::run::EntryBody::Question(asked)) = entries.first().map(|entry| &entry.body) else {
                return Err(OrderError::Unreadable("what is asked is not in the run's record".into()));
            };
            let bytes = serde_json::to_vec(values).map_or(usize::MAX, |bytes| bytes.len());
            if bytes > limits::ANSWER_BYTES_MAX {
                let why = format!("is {bytes} bytes long, and the limit is {}", limits::ANSWER_BYTES_MAX);
                return Err(OrderError::InvalidFields(vec![InvalidField { pointer: String::new(), why }]));
            }
            check(&asked.schema, values)?;
        }
        let QuestionAnswer { call_id, question, values, by } = said.clone();
        let order = Order::Answer { call_id, question, values };
        match self.engine.change(id, WriteId::random(), PATIENCE, |_| Event::Person(by.clone(), order.clone())).await {
            Ok(done) => {
                // Where this very process runs the call, it need not wait for its next look.
                self.heartbeat.look_now(id);
                Ok(done.row)
            }
            // Somebody else's answer was taken in between, or nobody asks any more.
            Err(CommitError::Rejected(
                Rejection::NoQuestion | Rejection::NotInState { .. } | Rejection::HasOutcome(_) | Rejection::UnknownCall(_),
            )) => {
                let row = self.engine.load(id).await?;
                self.answered_before(row, &said).await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// An answer to a question that does not stand: the same reply where it was taken, refused where another was, or none.
    async fn answered_before(&self, row: Snapshot, said: &QuestionAnswer) -> Result<Snapshot, OrderError> {
        let entries = self.engine.journal_of(&row, 0).await?;
        let taken = entries.iter().find_map(|entry| match &entry.body {
            crate::run::EntryBody::Answered(answered) if answered.question == said.question => Some((entry.at, answered)),
            _ => None,
        });
        match taken.filter(|(_, answered)| answered.call_id == said.call_id) {
            Some((_, answered)) if answered.by.id == said.by.id && answered.values == said.values => Ok(row),
            Some((at, answered)) => {
                Err(Rejection::AlreadyDecided { call: answered.call_id.clone(), by: answered.by.id.clone(), at }.into())
            }
            None => Err(Rejection::NoQuestion.into()),
        }
    }
}
