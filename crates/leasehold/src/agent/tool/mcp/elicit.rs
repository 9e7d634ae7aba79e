//! Where a server asks a person in the middle of a call. Nobody can be asked here, so the question is answered with an error that
//! says so: accepting would invent values, declining would be a decision in somebody's name, and both are a person's alone.
//! The way to a person that a call has, `Asker`, does not come here: whoever brings it answers here instead.

use rmcp::model::{ElicitRequestParams, ElicitResult, ErrorCode, ErrorData, InputRequiredResult};

const NOBODY: &str =
    "nobody can be asked here: this client takes no questions in the middle of a call, and answers none for a person";

/// The answer to `elicitation/create`.
pub(super) fn answer(_question: &ElicitRequestParams) -> Result<ElicitResult, ErrorData> {
    Err(ErrorData::new(ErrorCode::INVALID_REQUEST, NOBODY, None))
}

/// Why a call that ended in a question has no result.
pub(super) fn ended_in_a_question(_question: &InputRequiredResult) -> String {
    format!("the server asks for input before it goes on, and {NOBODY}")
}
