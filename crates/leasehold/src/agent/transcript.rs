//! What a model sees: the folded journal as messages. Each call of an assistant message is followed by exactly one result, also
//! after a denial, a crash, a cancel or an unknown outcome. Keys, epochs and holders never appear.

use super::{
    gate::excerpt,
    model::{Message, TranscriptCall},
};
use crate::{
    limits,
    run::{Outcome, Role, Story, StoryCall, Via},
};
use serde_json::Value;

/// The messages of a run whose open turn has no pending call.
pub fn messages(story: &Story) -> Vec<Message> {
    let mut messages = Vec::new();
    for said in story.request.iter().flat_map(|r| &r.messages) {
        messages.push(match said.role {
            Role::User => Message::User(said.text.clone()),
            Role::Assistant => Message::Assistant { text: said.text.clone(), calls: Vec::new(), opaque: None },
        });
    }
    for turn in &story.turns {
        let calls: Vec<&StoryCall> = turn.calls.iter().filter_map(|id| story.calls.get(id)).collect();
        messages.push(Message::Assistant {
            text: turn.text.clone(),
            calls: calls
                .iter()
                .map(|call| TranscriptCall {
                    id: call.asked.id.clone(),
                    tool: call.asked.tool.clone(),
                    arguments: call.asked.arguments.clone().unwrap_or_default(),
                })
                .collect(),
            opaque: turn.opaque.clone(),
        });
        for call in calls {
            let (text, is_error) = result(call);
            messages.push(Message::ToolResult { call_id: call.asked.id.clone(), text, is_error });
        }
    }
    messages
}

/// What the model is told of a call.
fn result(call: &StoryCall) -> (String, bool) {
    let Some(known) = &call.outcome else {
        // A pending call is never sent; should it be, this is the truth.
        return ("no result yet".into(), true);
    };
    let text = match &known.result {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let id = &call.asked.id;
    let mut said = match text.len() {
        0..=limits::RESULT_SHOWN_BYTES_MAX => text,
        _ => format!("{} [the whole result of {id} is in the record]", excerpt(&text, limits::RESULT_SHOWN_BYTES_MAX)),
    };
    if let Some(edited) = &call.edited {
        let edited = excerpt(&Value::Object(edited.clone()).to_string(), limits::RESULT_SHOWN_BYTES_MAX);
        said = format!("A person changed the arguments of this call; it ran with {edited}. {said}");
    }
    // What became of it stands first: a shorter excerpt keeps that.
    match known.outcome {
        Outcome::Done | Outcome::Refused if known.is_error => said = format!("Error: {said}"),
        Outcome::Done if known.via == Via::Resolution => said = format!("A person states that this call happened. {said}"),
        Outcome::Done if known.via == Via::Verify => said = format!("The call happened, as was found by asking. {said}"),
        Outcome::NotApplied => said = format!("This call did not happen: {said}"),
        Outcome::Unknown if call.asked.effect.is_write() => {
            said = format!("The outcome of this call is unknown; it may have happened. Do not repeat it. {said}");
        }
        _ => {}
    }
    (said, known.is_error)
}
