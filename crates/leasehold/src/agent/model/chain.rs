//! An agent's model, and those that are asked in its place when it fails.
//!
//! Guarantees: each model starts from the same request; nothing that a failed one said is part of the reply, and whoever watches is
//! told so; the reply names the model that gave it, and is priced as that model's. Which failures go on to the next is
//! [`ModelErrorClass::falls_back`]. Never repeats a request to the same model.

use super::{Model, ModelError, ModelErrorClass, ModelRequest, Piece, Reply};
use crate::agent::registry::{AgentSpec, Price};

/// A reply and who gave it.
pub(crate) struct Answer {
    /// With its cost, where its model has a price.
    pub(crate) reply: Reply,
    /// The model, for the record.
    pub(crate) model: String,
}

/// Asks the models of an agent in order until one answers.
///
/// # Errors
/// None did. The class decides what happens next: that of the first failure after which the same request may work later, else the
/// first.
pub(crate) async fn ask(agent: &AgentSpec, request: &ModelRequest) -> Result<Answer, ModelError> {
    let mut models: Vec<(&dyn Model, Option<Price>, Option<u64>)> = vec![(&*agent.model, agent.price, agent.window)];
    models.extend(agent.fallbacks.iter().map(|other| (&*other.model as &dyn Model, other.price, other.window)));
    let mut failed = Vec::new();
    for (at, (model, price, window)) in models.iter().enumerate() {
        let replied = match request.within(*window) {
            Ok(fitted) => model.reply(fitted.into_owned()).await,
            Err(error) => Err(error),
        };
        let error = match replied {
            Ok(reply) => {
                let usage = price.map_or(reply.usage, |price| price.of(reply.usage));
                return Ok(Answer { reply: Reply { usage, ..reply }, model: model.name().to_owned() });
            }
            Err(error) => error,
        };
        let next = models.get(at + 1).filter(|_| error.class.falls_back());
        failed.push((model.name(), error.clone()));
        let Some((next, ..)) = next else { break };
        // Without its text, which may repeat the conversation.
        tracing::warn!(run = %request.run, model = model.name(), class = %error.class, next = next.name(), "a model failed, and the next is asked");
        request.tell(Piece::Discarded(format!("{} failed ({}); {} is asked", model.name(), error.class, next.name())));
    }
    Err(together(failed))
}

fn together(mut failed: Vec<(&str, ModelError)>) -> ModelError {
    if failed.len() == 1 {
        return failed.remove(0).1;
    }
    let first = |wanted: fn(ModelErrorClass) -> bool| failed.iter().map(|(_, error)| error.class).find(|class| wanted(*class));
    let class =
        first(ModelErrorClass::is_transient).or_else(|| first(|class| class == ModelErrorClass::Busy)).or(first(|_| true));
    let waits = failed.iter().filter(|(_, error)| error.class.is_transient()).map(|(_, error)| error.retry_after);
    let said: Vec<String> = failed.iter().map(|(model, error)| format!("{model}: {error}")).collect();
    ModelError {
        // There is an agent's model, so there is a failure.
        class: class.unwrap_or(ModelErrorClass::Server),
        detail: said.join("; then "),
        // None is the least: where one of them may be asked at once, nobody waits.
        retry_after: waits.min().flatten(),
    }
}
