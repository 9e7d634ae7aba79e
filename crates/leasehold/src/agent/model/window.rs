//! Keeps a request within a model's window: where it would not fit, old tool results become excerpts, the oldest first and those of the
//! last turn at the very end. No message is taken away, so a call always keeps its result; what is left out is in the record, under the
//! call's id. Where even that does not fit, the model is not asked.

use super::{Message, ModelError, ModelErrorClass, ModelRequest, OfferedTool};
use crate::{agent::gate::excerpt, limits::WINDOW_EXCERPT_BYTES};
use std::borrow::Cow;

/// Bytes that are taken for a token: fewer than of most text, so that the guess errs on the safe side.
const BYTES_PER_TOKEN: u64 = 3;
/// Of the window, the part for the request; the rest is for the reply.
const SHARE_OF_THE_REQUEST: f64 = 0.8;

/// The request as it fits a window of so many tokens.
///
/// # Errors
/// It does not, whatever is shortened.
pub(super) fn within(request: &ModelRequest, window: Option<u64>) -> Result<Cow<'_, ModelRequest>, ModelError> {
    let Some(window) = window else { return Ok(Cow::Borrowed(request)) };
    // `as` saturates, and no window is near that.
    let most = (window.saturating_mul(BYTES_PER_TOKEN) as f64 * SHARE_OF_THE_REQUEST) as usize;
    let mut size = request.system.len() + request.tools.iter().map(of_tool).sum::<usize>();
    size += request.messages.iter().map(of_message).sum::<usize>();
    if size <= most {
        return Ok(Cow::Borrowed(request));
    }
    let mut shortened = request.clone();
    // In the order of the conversation: the last turn is the last to lose something.
    for message in &mut shortened.messages {
        if size <= most {
            break;
        }
        size -= shorten(message);
    }
    if size > most {
        let needs = size as u64 / BYTES_PER_TOKEN;
        return Err(ModelError {
            class: ModelErrorClass::ContextOverflow,
            detail: format!(
                "the conversation has about {needs} tokens with every tool result shortened, and {:.0}% of the model's window of {window} \
                 is for it: nothing was sent",
                SHARE_OF_THE_REQUEST * 100.0
            ),
            retry_after: None,
        });
    }
    Ok(Cow::Owned(shortened))
}

fn of_tool(tool: &OfferedTool) -> usize {
    tool.name.len() + tool.description.len() + tool.parameters.to_string().len()
}

fn of_message(message: &Message) -> usize {
    match message {
        Message::User(text) => text.len(),
        Message::Assistant { text, calls, opaque } => {
            let calls =
                calls.iter().map(|call| call.tool.len() + serde_json::to_string(&call.arguments).map_or(0, |text| text.len()));
            text.len() + calls.sum::<usize>() + opaque.as_ref().map_or(0, |opaque| opaque.to_string().len())
        }
        Message::ToolResult { text, .. } => text.len(),
    }
}

/// Shortens a result; how many bytes that saves.
fn shorten(message: &mut Message) -> usize {
    let Message::ToolResult { call_id, text, .. } = message else { return 0 };
    let short =
        format!("{} [shortened to fit; the whole result of {call_id} is in the record]", excerpt(text, WINDOW_EXCERPT_BYTES));
    let saved = text.len().saturating_sub(short.len());
    if saved > 0 {
        *text = short;
    }
    saved
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::model::TranscriptCall,
        run::{CallId, RunId},
    };
    use proptest::prelude::*;

    /// Turns of calls, each with the length of its result.
    fn request(turns: &[Vec<usize>]) -> ModelRequest {
        let mut messages = vec![Message::User("go".into())];
        for (turn, results) in turns.iter().enumerate() {
            let id = |index: usize| CallId::of(u32::try_from(turn).unwrap() + 1, index);
            let call = |(index, _)| TranscriptCall { id: id(index), tool: "a.b".into(), arguments: Default::default() };
            messages.push(Message::Assistant {
                text: "so".into(),
                calls: results.iter().enumerate().map(call).collect(),
                opaque: None,
            });
            messages.extend(results.iter().enumerate().map(|(index, length)| Message::ToolResult {
                call_id: id(index),
                text: "x".repeat(*length),
                is_error: false,
            }));
        }
        ModelRequest {
            run: RunId::new(),
            replies_so_far: 0,
            errors_so_far: 0,
            system: "be careful".into(),
            messages,
            tools: Vec::new(),
            on_text: None,
        }
    }

    /// What must not change: who speaks, and of which call.
    fn shape(request: &ModelRequest) -> Vec<String> {
        let one = |message: &Message| match message {
            Message::User(text) => format!("user {text}"),
            Message::Assistant { text, calls, .. } => {
                let ids: Vec<&str> = calls.iter().map(|call| call.id.0.as_str()).collect();
                format!("assistant {text} {ids:?}")
            }
            Message::ToolResult { call_id, is_error, .. } => format!("result {call_id} {is_error}"),
        };
        request.messages.iter().map(one).collect()
    }

    fn lengths(request: &ModelRequest) -> Vec<usize> {
        let one = |message: &Message| match message {
            Message::ToolResult { text, .. } => Some(text.len()),
            _ => None,
        };
        request.messages.iter().filter_map(one).collect()
    }

    #[test]
    fn the_oldest_results_are_shortened_first_and_those_of_the_last_turn_stay() {
        let request = request(&[vec![9_000], vec![9_000, 9_000], vec![9_000]]);
        assert_eq!(lengths(&within(&request, None).unwrap()), [9_000; 4]);
        assert_eq!(lengths(&within(&request, Some(1_000_000)).unwrap()), [9_000; 4]);
        let fitted = within(&request, Some(10_000)).unwrap();
        let lengths = lengths(&fitted);
        assert!(lengths[0] < 1_000 && lengths[1] < 1_000, "{lengths:?}");
        assert_eq!(lengths[2..], [9_000, 9_000]);
        let Message::ToolResult { text, .. } = &fitted.messages[2] else { panic!() };
        assert!(text.contains("the whole result of t1c0 is in the record"), "{text}");
    }

    #[test]
    fn what_does_not_fit_at_all_is_a_named_refusal() {
        let error = within(&request(&[vec![9_000; 20]]), Some(1_000)).unwrap_err();
        assert_eq!(error.class, ModelErrorClass::ContextOverflow);
        assert!(error.detail.contains("window of 1000"), "{}", error.detail);
    }

    proptest! {
        #[test]
        fn no_call_is_parted_from_its_result_and_what_is_sent_fits(
            turns in proptest::collection::vec(proptest::collection::vec(0_usize..5_000, 0..5), 0..12),
            window in 1_u64..30_000,
        ) {
            let request = request(&turns);
            if let Ok(fitted) = within(&request, Some(window)) {
                prop_assert_eq!(shape(&fitted), shape(&request));
                let size: usize = fitted.system.len() + fitted.messages.iter().map(of_message).sum::<usize>();
                prop_assert!(size as f64 <= window as f64 * BYTES_PER_TOKEN as f64 * SHARE_OF_THE_REQUEST);
                let whole = lengths(&request);
                for (now, was) in lengths(&fitted).into_iter().zip(whole) {
                    prop_assert!(now <= was);
                }
            }
        }
    }
}
