//! Values that a person fills in for a call.

use super::*;

/// Values as a person gives them.
#[derive(Clone, Debug)]
pub struct Submission {
    /// Names what the person saw.
    pub digest: String,
    /// The values, by key, and only keys that are asked for; none: they decline. A call that waits for values of its tool is denied
    /// then, and one that has asked goes on and is told so.
    pub values: Option<Map<String, Value>>,
    /// Who.
    pub by: Principal,
    /// This process goes on with the run, where it has what the run needs.
    pub execute: bool,
}

impl Runtime {
    /// Fills in the values that a run waits for: validated before anything is consumed, one transaction with the claim, or with the
    /// queue.
    ///
    /// # Errors
    /// Values that do not fit, with a pointer each; refused with the rule's name. Nothing has changed then.
    pub async fn submit(&self, id: RunId, said: Submission) -> Result<Decided, OrderError> {
        let row = self.engine.load(id).await?;
        let current = row.turn.as_ref().is_some_and(|t| t.digest.as_deref() == Some(said.digest.as_str()));
        if row.state != State::WaitingForInput || !current {
            return self.submitted_before(row, &said).await;
        }
        let story = Story::of(&self.engine.journal_of(&row, 0).await?);
        let card = story.card.as_ref().map(|standing| &standing.card);
        let (Some(shown), Some(schema)) = (card.and_then(|c| c.calls.first()), card.and_then(|c| c.schema.as_ref())) else {
            return Err(OrderError::Unreadable("what the run waits for is not in its record".into()));
        };
        if let Some(values) = &said.values {
            check(schema, values)?;
        }
        let question = card.and_then(|card| card.question.as_ref()).map(|question| question.id.clone());
        let queued_because = if said.execute { self.lacks(&row) } else { None };
        let grant = (said.execute && queued_because.is_none()).then(|| self.grant());
        let write_id = grant.as_ref().map_or_else(WriteId::random, |g| WriteId(g.lease_id.0));
        let sent = self.heartbeat.now();
        let (digest, call_id) = (said.digest.clone(), shown.id.clone());
        let order = Order::Submit { digest, call_id, question, values: said.values.clone(), grant: grant.clone() };
        let by = said.by.clone();
        let done = match self.engine.change(id, write_id, PATIENCE, |_| Event::Person(by.clone(), order.clone())).await {
            // Somebody else's values were taken in between.
            Err(CommitError::Rejected(
                Rejection::StaleTurn | Rejection::NotWaiting(_) | Rejection::NotInState { .. } | Rejection::UnknownCall(_),
            )) => {
                let row = self.engine.load(id).await?;
                return self.submitted_before(row, &said).await;
            }
            done => done?,
        };
        self.released(done, grant, sent, queued_because).await
    }

    /// Values for a turn that has gone: the same answer where they were taken, stale where others were.
    async fn submitted_before(&self, row: Snapshot, said: &Submission) -> Result<Decided, OrderError> {
        let entries = self.engine.journal_of(&row, 0).await?;
        let taken = entries.iter().find_map(|entry| match &entry.body {
            crate::run::EntryBody::Input(input) if input.digest == said.digest => Some((entry.at, input)),
            _ => None,
        });
        match taken {
            Some((_, input))
                if input.by.id == said.by.id
                    && input.declined == said.values.is_none()
                    && (input.declined || Some(&input.values) == said.values.as_ref()) =>
            {
                Ok(Decided { row, execution: None, repeated: true, queued_because: None })
            }
            Some((at, input)) => {
                Err(Rejection::AlreadyDecided { call: input.call_id.clone(), by: input.by.id.clone(), at }.into())
            }
            None if row.state == State::WaitingForInput => Err(Rejection::StaleTurn.into()),
            None if row.state.is_waiting() => {
                Err(Rejection::NotInState { state: row.state, event: crate::run::EventKind::Submit }.into())
            }
            None => Err(Rejection::NotWaiting(row.state).into()),
        }
    }
}

/// The values fit, and name nothing that was not asked for.
pub(super) fn check(schema: &Value, values: &Map<String, Value>) -> Result<(), OrderError> {
    let declared = schema.get("properties").and_then(Value::as_object);
    let unknown = values.keys().filter(|key| declared.is_none_or(|declared| !declared.contains_key(*key)));
    let mut fields: Vec<InvalidField> =
        unknown.map(|key| InvalidField { pointer: format!("/{}", escaped(key)), why: "is not asked for".into() }).collect();
    // A person is told that this is no address or no date; the draft alone would take it for a remark.
    let compiled = jsonschema::draft202012::options()
        .should_validate_formats(true)
        .build(schema)
        .map_err(|e| OrderError::Unreadable(e.to_string()))?;
    let value = Value::Object(values.clone());
    if nested_deeper(&value, limits::NESTING_MAX) {
        let why = format!("is nested deeper than {} levels", limits::NESTING_MAX);
        return Err(OrderError::InvalidFields(vec![InvalidField { pointer: String::new(), why }]));
    }
    let misfits = compiled.iter_errors(&value).take(limits::INVALID_FIELDS_MAX);
    fields.extend(misfits.map(|e| InvalidField {
        pointer: e.instance_path().to_string(),
        why: crate::agent::gate::excerpt(&e.to_string(), 300),
    }));
    if fields.is_empty() { Ok(()) } else { Err(OrderError::InvalidFields(fields)) }
}

/// As a token of a JSON pointer (RFC 6901).
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}
